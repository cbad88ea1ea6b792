/* SPDX-License-Identifier: Apache-2.0
 *
 * Overviews for people, in steps of bounded work: what pages and arena bytes are used for, and continuations without a
 * look at their pages. Changes nothing.
 */
#include "store_internal.h"

static enum store_use use_of(const struct pool *pool, uint32_t physical) {
    uint32_t d = pool->leases[physical].owner;
    if (d == KVD_NONE) return STORE_FREE;
    const struct page *page = &pool->pages[d];
    if (page->references > 1) return STORE_SHARED;
    return page->active_references ? STORE_RUNNING : STORE_CACHED;
}

uint32_t store_count_uses(const struct store *store, uint32_t p, uint32_t first, uint32_t n,
                          uint32_t ret_counts[STORE_USES]) {
    const struct pool *pool = &store->pool[p];
    if (p >= store->n_pools || first >= pool->capacity) return 0;
    n = min_u32(n, pool->capacity - first);
    for (uint32_t i = 0; i < n; i++) ret_counts[use_of(pool, first + i)]++;
    return n;
}

bool store_next_extent(const struct store *store, uint32_t *cursor, uint64_t *ret_offset, uint64_t *ret_bytes) {
    struct extent_info extent;
    if (!store->arena || !extent_next(store->arena, cursor, &extent)) return false;
    *ret_offset = extent.offset;
    *ret_bytes = extent.stride;
    return true;
}

bool store_next_brief(const struct store *store, uint32_t *cursor, struct store_brief *ret_brief) {
    while (*cursor < store->config.max_continuations) {
        const struct cont *cont = &store->conts[(*cursor)++];
        if (!cont->occupied || !cont->published || cont->owned) continue;
        *ret_brief = (struct store_brief){ .cont = cont_handle(store, cont),
                                           .retention = cont->retention,
                                           .used = cont->used,
                                           .root = &store->domains.list[cont->domain].root };
        return true;
    }
    return false;
}
