/* SPDX-License-Identifier: Apache-2.0
 *
 * Address spaces of one pool: rows, entitlement, and the pages mapped at their end (SPACE-*, ROW-*).
 */
#include "store_internal.h"

/* ---- rows: leased by active spaces, -1 outside the membership; a row owns nothing ---- */

uint32_t row_take(struct store *store, uint32_t pool_index, uint32_t owner) {
    struct pool *pool = &store->pool[pool_index];
    uint32_t row = 0;
    while (pool->rows[row].owner != KVD_NONE) row++;
    pool->rows[row].owner = owner;
    pool->rows_used++;
    return row;
}

void row_release(struct store *store, uint32_t pool_index, uint32_t row, uint32_t used) {
    struct pool *pool = &store->pool[pool_index];
    int32_t *entries = row_entries(store, pool_index, row);
    for (uint32_t i = 0; i < used; i++) entries[i] = -1;
    pool->rows[row].owner = KVD_NONE;
    if (++pool->rows[row].generation == 0) pool->rows[row].generation = 1;
    pool->rows_used--;
}

/* ---- entitlement in pages (SPACE-3); the formulas stand in store.h ---- */

/* An MTP pool runs draft_window - 1 tokens ahead of the target (CAP-5); a Draft Full pool does not. */
static uint64_t draft_lead(const struct store *store, uint32_t pool) {
    return pool == 1 && store->config.backend == GEOM_MTP ? store->config.draft_window - 1u : 0;
}

uint32_t entitle_ceiling(const struct store *store, uint32_t pool, uint32_t ceiling_tokens) {
    return pages_of(min_u64(store->config.max_context, ceiling_tokens + draft_lead(store, pool)));
}

uint32_t entitle_cushion(const struct store *store) {
    return pages_of((uint64_t)store->config.widest_verify + store->config.draft_window + 2) + 1;
}

uint32_t entitle_rung(const struct store *store, uint32_t i) {
    if (i == 0) return max_u32(store->config.lease_window, store->config.prefill_chunk);
    return i == 1 ? 128 : 64;
}

uint32_t entitle_at_start(const struct store *store, uint32_t pool, uint32_t prompt, uint32_t ceiling_tokens) {
    uint32_t ceiling = entitle_ceiling(store, pool, ceiling_tokens);
    if (!store->config.lease_growth) return ceiling;
    uint64_t tokens = (uint64_t)prompt + entitle_rung(store, 0) + draft_lead(store, pool);
    return (uint32_t)min_u64(ceiling,
                             (uint64_t)pages_of(min_u64(store->config.max_context, tokens)) + entitle_cushion(store));
}

uint32_t seq_reach(const struct store *store, const struct seq *seq, uint32_t pool) {
    if (store->window_pages[pool]) return entitle_ceiling(store, pool, seq->ceiling);
    return space_entitlement(&seq->space[pool]);
}

/* ---- pages ---- */

uint32_t space_device(const struct store *store, uint32_t pool, uint32_t entry) {
    if (entry == KVD_NONE) return KVD_NONE; /* behind a window */
    return entry & PROMISED ? entry & ~PROMISED : store->pool[pool].pages[entry].device;
}

uint32_t space_copy_ids(const struct store *store, uint32_t pool, const struct space *space, uint32_t *ret_ids,
                        uint32_t max) {
    uint32_t n, total = min_u32(max, space->count);
    for (uint32_t i = 0; i < total; i += n) {
        const uint32_t *run = space_run(store, space, i, &n);
        n = min_u32(n, total - i);
        for (uint32_t k = 0; k < n; k++) ret_ids[i + k] = space_device(store, pool, run[k]);
    }
    return total;
}

void space_map(struct store *store, uint32_t pool_index, struct space *space, uint32_t n, int32_t *row) {
    struct pool *pool = &store->pool[pool_index];
    struct pool_choice choice = { n, KVD_NONE, false };
    uint32_t before = chunks_for(space->count), start;
    if (space_held(space))
        choice.predecessor = space_device(store, pool_index, space_entry(store, space, space->count - 1));
    store->chunks.reserved -= chunks_for(space->count + n) - before;
    pool->reserved -= n;
    space->reserved -= n;
    while (choice.need) {
        uint32_t got = pool_choose(pool, &choice, &start), pages[CHUNK];
        pool_take(pool, start, got);
        for (uint32_t i = 0, part; i < got; i += part) {
            part = min_u32(CHUNK, got - i);
            for (uint32_t k = 0; k < part; k++) {
                if (row) row[space->count + k] = (int32_t)(start + i + k);
                pages[k] = page_open(store, pool_index, start + i + k, space->count + k, true);
            }
            space_append(store, space, pages, part);
        }
    }
}

void space_drop(struct store *store, uint32_t pool_index, struct space *space, uint32_t count, bool active,
                bool keep_reserved, int32_t *row) {
    struct pool *pool = &store->pool[pool_index];
    struct pool_batch batch = { pool, 0, 0 };
    uint32_t first = max_u32(count, space->base), dropped = space->count - first, n,
             freed = chunks_for(space->count) - chunks_for(count);
    for (uint32_t i = first; i < space->count; i += n) {
        const uint32_t *run = space_run(store, space, i, &n);
        for (uint32_t k = 0; k < n; k++) {
            if (row) row[i + k] = -1;
            if (!(run[k] & PROMISED)) page_unref(store, &batch, run[k], active);
        }
    }
    pool_flush(&batch);
    space_cut(store, space, count);
    if (!keep_reserved) return;
    pool->reserved += dropped;
    space->reserved += dropped;
    store->chunks.reserved += freed;
}

bool window_pass(struct store *store, uint32_t p, struct space *space, uint32_t base, int32_t *row) {
    struct pool *pool = &store->pool[p];
    struct pool_batch batch = { pool, 0, 0 };
    uint32_t n, returned = 0;
    for (uint32_t i = space->base; i < base; i += n) {
        uint32_t *run = space_run(store, space, i, &n);
        n = min_u32(n, base - i);
        for (uint32_t k = 0; k < n; k++) {
            returned += page_is_own(&pool->pages[run[k]]) && !MUTANT(passed_page_is_nobodys);
            page_unref(store, &batch, run[k], true);
            run[k] = KVD_NONE;
            if (row) row[i + k] = -1;
        }
    }
    pool_flush(&batch);
    bool others = space->base + returned < base;
    space->base = max_u32(space->base, base);
    pool->reserved += returned;
    space->reserved += returned;
    return others;
}

void space_commit(struct store *store, uint32_t pool, struct space *space, uint32_t frontier) {
    uint32_t first = min_u32(space->committed, frontier) / KVD_PAGE_TOKENS, n;
    uint32_t end = pages_of(max_u32(space->committed, frontier));
    for (uint32_t i = first; i < end; i += n) {
        const uint32_t *run = space_run(store, space, i, &n);
        n = min_u32(n, end - i);
        for (uint32_t k = 0; k < n; k++)
            if (store->pool[pool].pages[run[k]].committed != columns_of(frontier, i + k))
                page_commit(store, pool, run[k], columns_of(frontier, i + k));
    }
    space->committed = frontier;
}

void space_end_lending(struct store *store, uint32_t pool, const struct space *space) {
    uint32_t n;
    for (uint32_t i = 0; i < space->count; i += n) {
        const uint32_t *run = space_run(store, space, i, &n);
        for (uint32_t k = 0; k < n; k++) page_lend(&store->pool[pool], run[k], false);
    }
}

void space_touch(struct store *store, uint32_t pool, const struct space *space) {
    uint32_t n;
    for (uint32_t i = space->base; i < space->count; i += n) {
        const uint32_t *run = space_run(store, space, i, &n);
        for (uint32_t k = 0; k < n; k++) page_touch(&store->pool[pool], run[k]);
    }
}

static bool is_shared(const struct store *store, uint32_t pool, const struct space *space, uint32_t index) {
    uint32_t entry = space_entry(store, space, index);
    return !(entry & PROMISED) && store->pool[pool].pages[entry].references > 1;
}

/* In a window others may have gone on past the first pages, so the last shared one is looked for, from the end. */
static uint32_t shared_in_window(const struct store *store, uint32_t pool, const struct space *space) {
    uint32_t n = space->count;
    while (n > space->base && !is_shared(store, pool, space, n - 1)) n--;
    return n;
}

/* References never rise along a space: whoever holds page i holds all before it (sharing is always of a prefix, and a
 * page that is replaced takes all behind it along). So the boundary is found by its old place or by bisection. What a
 * sequence lends counts beside that, at any page: where there are such, the last shared page is looked for. */
uint32_t space_shared(const struct store *store, uint32_t pool, const struct space *space) {
    uint32_t low = 0, high = space->count, hint = space->shared;
    if (store->window_pages[pool]) return shared_in_window(store, pool, space);
    if (store->pool[pool].lent && !MUTANT(lent_page_is_unprotected)) {
        while (high > 0 && !is_shared(store, pool, space, high - 1)) high--;
        return high;
    }
    if (hint <= high && (hint == 0 || is_shared(store, pool, space, hint - 1)) &&
        (hint == high || !is_shared(store, pool, space, hint)))
        return hint;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (is_shared(store, pool, space, mid)) low = mid + 1;
        else high = mid;
    }
    return low;
}

/* The last page that is shared, or that a checkpoint is being copied from. */
static uint32_t protected_in_window(const struct store *store, uint32_t pool, const struct space *space) {
    for (uint32_t i = min_u32(space->count, pages_of(space->committed)); i-- > space->base;) {
        uint32_t entry = space_entry(store, space, i);
        const struct page *page = entry & PROMISED ? NULL : &store->pool[pool].pages[entry];
        if (page && page->references > 1) return (i + 1) * KVD_PAGE_TOKENS;
        if (page && page->pinned) return i * KVD_PAGE_TOKENS + page->pinned;
    }
    return 0;
}

uint32_t space_protected(const struct store *store, uint32_t pool, const struct space *space) {
    if (store->window_pages[pool]) return protected_in_window(store, pool, space);
    uint32_t shared = space_shared(store, pool, space), tokens = shared * KVD_PAGE_TOKENS;
    if (shared == space->count) return tokens;
    uint32_t entry = space_entry(store, space, shared);
    const struct page *page = entry & PROMISED ? NULL : &store->pool[pool].pages[entry];
    return page ? tokens + page->pinned : tokens; /* the tail that a checkpoint is being copied from */
}
