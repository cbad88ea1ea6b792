/* SPDX-License-Identifier: Apache-2.0
 *
 * Window pools (GRP-2 to GRP-4): which pages of a space going on from a frontier reads, and how many a running sequence
 * is entitled to.
 *
 * A space of such a pool maps the blocks [base, count); the entries before its base are KVD_NONE. Of a continuation the
 * base follows from its frontier: it holds exactly what going on from there reads. Of a sequence it moves with the
 * commits and never back, `lead` tokens behind what is read.
 *
 * Pages that leave a window come back to the reservation if the sequence alone holds them. What a continuation holds
 * too stays with it, so whoever makes such a page shared (a checkpoint) reserves another one in its stead. Hence the
 * rule that the audit checks: the reservation suffices for every block up to the ceiling, as long as no more than
 * window_pages of them are mapped at once.
 */
#include "store_internal.h"

uint32_t window_first(const struct store *store, uint32_t p, uint32_t frontier) {
    const struct store_window *window = &store->config.window[p];
    if (!window->tokens) return 0;
    if (window->aligned) return frontier / window->tokens * window->tokens / KVD_PAGE_TOKENS;
    uint32_t reads = window->tokens - (MUTANT(window_is_short) ? 1u : 0u);
    return frontier < reads ? 0 : (frontier + 1 - reads) / KVD_PAGE_TOKENS;
}

uint32_t store_first_block(const struct store *store, uint32_t pool, uint32_t frontier) {
    return window_first(store, pool, frontier);
}

uint32_t window_kept(const struct store *store, uint32_t p, uint32_t frontier) {
    return window_first(store, p, frontier - min_u32(frontier, store->config.window[p].lead));
}

uint32_t window_lowest(const struct store *store, uint32_t p, uint32_t base) {
    const struct store_window *window = &store->config.window[p];
    uint64_t first = (uint64_t)base * KVD_PAGE_TOKENS;
    if (base == 0) return 0;
    if (window->aligned) return (uint32_t)((first + window->tokens - 1) / window->tokens * window->tokens);
    return (uint32_t)(first + window->tokens - 1);
}

uint32_t store_window_pages(const struct store_config *config, uint32_t p) {
    const struct store_window *window = &config->window[p];
    uint64_t growth = max_u32(config->prefill_chunk, config->widest_verify + config->draft_window + 2);
    return (uint32_t)min_u64(pages_of(config->max_context),
                             (uint64_t)pages_of((uint64_t)window->tokens + window->lead + growth) + 1);
}

bool windows_hold(const struct store *store, const struct space spaces[KVD_MAX_POOLS], uint32_t frontier) {
    for (uint32_t p = 0; p < store->n_pools; p++)
        if (window_first(store, p, frontier) < spaces[p].base) return false;
    return true;
}

uint32_t window_end(const struct store *store, uint32_t p, uint32_t base, uint32_t reach) {
    return min_u32(base + store->window_pages[p], reach);
}

/* The worst is the base with which the window ends at the reach: what is mapped from there on is all there will be, and
 * of what is mapped now the sequence's own pages before it have come back. */
uint32_t window_needs(const struct store *store, uint32_t p, const struct space *space, uint32_t count, uint32_t reach,
                      struct blocks others, const struct activation *act) {
    uint32_t bound = store->window_pages[p], base = reach > bound ? min_u32(reach - bound, count) : 0, returns = 0, n;
    base = max_u32(base, space->base);
    for (uint32_t i = space->base; i < base; i += n) {
        const uint32_t *run = space_run(store, space, i, &n);
        n = min_u32(n, base - i);
        for (uint32_t k = 0; k < n; k++)
            returns += (i + k < others.begin || i + k >= others.end) && store->pool[p].pages[run[k]].pins == 0 &&
                       victims_leave(store, MUTANT(victims_stay_in_the_window) ? NULL : act, p, i + k, run[k]) == 1;
    }
    return min_u32(base + bound, reach) - count - returns;
}
