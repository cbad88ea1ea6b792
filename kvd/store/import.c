/* SPDX-License-Identifier: Apache-2.0
 *
 * Import: what a directory of other limits and sizes names, one bundle after the other, into this store (KEEP-1). The
 * caller says the order, so that what does not fit any more is what is worth least. Only replicas in the host count.
 *
 * Scratch: the old descriptors of the bundle in work stand in a row of the table, which is empty now.
 */
#include "store_internal.h"

#include <string.h>

#include "crash.h"

/* Blocks from `first` on. */
static bool read_chain(const struct store *store, const struct store_import *from, uint32_t p,
                       const struct directory_bundle *bundle, uint32_t first) {
    uint32_t *old = (uint32_t *)row_entries(store, p, 0), d = bundle->last[p], generation = bundle->last_generation[p];
    for (uint32_t block = pages_of(bundle->frontier[p]); block-- > first;) {
        struct directory_page page;
        bool damaged;
        if (!directory_page_load(from->directory, p, d, &page, &damaged)) return false;
        if (page.base.generation != generation || page.base.block != block) return false;
        if (block < store->row_entries) old[block] = d;
        d = page.base.parent;
        generation = page.base.parent_generation;
    }
    return true;
}

static bool in_arena(const struct store_import *from, const struct directory_host *host, uint64_t bytes) {
    bool inside = bytes <= from->arena_bytes && host->offset <= from->arena_bytes - bytes;
    return host->checksum && (inside || MUTANT(import_reads_past_the_arena));
}

/* A page of the old directory as one of this store, which another bundle may hold already. KVD_NONE: it cannot be. */
static uint32_t import_page(struct store *store, const struct store_import *from, uint32_t p, uint32_t old,
                            uint32_t columns) {
    struct pool *pool = &store->pool[p];
    struct directory_page page;
    extent_id id;
    bool damaged;
    uint64_t stride = store->config.host_stride[p];
    uint32_t d = from->map[p][old];
    bool full = columns == KVD_PAGE_TOKENS && d != KVD_NONE && pool->pages[d].committed == KVD_PAGE_TOKENS;
    if (d != KVD_NONE) return full || MUTANT(import_shares_tails) ? d : KVD_NONE;
    if (!directory_page_load(from->directory, p, old, &page, &damaged) || !page.has_host) return KVD_NONE;
    if ((page.host.columns < columns && !MUTANT(import_takes_short_replicas)) || !in_arena(from, &page.host, stride) ||
        pool->spare == KVD_NONE)
        return KVD_NONE;
    if (extent_take_pages(store->arena, stride, 1, p, &id)) return KVD_NONE;
    d = page_open_in_host(store, p, id, page.base.block, columns);
    pool->tier[d].checksum = page.host.checksum;
    if (p == 0 && page.named && columns == KVD_PAGE_TOKENS) {
        pool->pages[d].flags |= PAGE_NAMED;
        memcpy(store->digests[d], page.digest, sizeof page.digest);
    }
    from->copy(from->context, page.host.offset, extent_offset(store->arena, id), stride);
    from->map[p][old] = d;
    CRASH_POINT("import.page");
    return d;
}

/* Pages that go again are unknown again. */
static void cut_import(struct store *store, const struct store_import *from, struct cont *cont, uint32_t count) {
    for (uint32_t p = 0; p < store->n_pools; p++) {
        const uint32_t *old = (uint32_t *)row_entries(store, p, 0);
        uint32_t had = cont->space[p].count, first = max_u32(count, cont->space[p].base);
        if (had > count) space_drop(store, p, &cont->space[p], count, false, false, NULL);
        for (uint32_t i = first; i < had; i++)
            if (!(store->pool[p].pages[from->map[p][old[i]]].flags & PAGE_OCCUPIED) &&
                !MUTANT(import_remembers_what_went))
                from->map[p][old[i]] = KVD_NONE;
    }
}

static bool import_block(struct store *store, const struct store_import *from, struct cont *cont, uint32_t block,
                         uint32_t columns) {
    for (uint32_t p = 0; p < store->n_pools; p++) {
        if (block < cont->space[p].base) continue;
        uint32_t d = import_page(store, from, p, ((uint32_t *)row_entries(store, p, 0))[block], columns);
        if (d == KVD_NONE) return false;
        page_ref(&store->pool[p], d, false);
        space_append(store, &cont->space[p], &d, 1);
    }
    return true;
}

static bool import_image(struct store *store, const struct store_import *from, struct cont *cont,
                         const struct directory_bundle *bundle, uint32_t frontier) {
    uint64_t stride = store->config.host_state_stride;
    extent_id id;
    if (!store->config.has_state) return true;
    if (bundle->frontier[0] != frontier || bundle->state_frontier != frontier || !bundle->has_image ||
        !in_arena(from, &bundle->image, stride) || extent_take_pages(store->arena, stride, 1, KVD_MAX_POOLS, &id))
        return false;
    from->copy(from->context, bundle->image.offset, extent_offset(store->arena, id), stride);
    cont->image = id;
    cont->image_checksum = bundle->image.checksum;
    store->host_images++;
    return true;
}

/* The frontier that all pools name and this store can number; 0: none. */
static uint32_t named_frontier(const struct store *store, const struct store_import *from,
                               const struct directory_bundle *bundle) {
    uint32_t frontier = bundle->frontier[0];
    for (uint32_t p = 0; p < store->n_pools; p++) frontier = min_u32(frontier, bundle->frontier[p]);
    for (uint32_t p = 0; p < store->n_pools; p++)
        if (!read_chain(store, from, p, bundle, window_first(store, p, frontier))) return 0;
    if (frontier <= store->config.max_context) return frontier;
    return store->has_windows ? 0 : store->config.max_context / KVD_PAGE_TOKENS * KVD_PAGE_TOKENS;
}

uint32_t store_import(struct store *store, const struct store_import *from, uint32_t kind, uint32_t slot) {
    struct directory_bundle bundle;
    bool damaged;
    uint32_t block = 0;
    if (!store->arena || store->cont_free == KVD_NONE || store->conts_used >= store->config.max_continuations ||
        !directory_bundle_load(from->directory, (enum directory_kind)kind, slot, &bundle, &damaged))
        return 0;
    uint32_t frontier = named_frontier(store, from, &bundle);
    if (chunks_available(&store->chunks) < store->n_pools * chunks_for(pages_of(frontier))) frontier = 0;
    struct cont *cont = cont_take(store);
    for (uint32_t p = 0; p < store->n_pools; p++) space_skip(store, &cont->space[p], window_first(store, p, frontier));
    while (block < pages_of(frontier) && import_block(store, from, cont, block, columns_of(frontier, block))) block++;
    if (block < pages_of(frontier)) frontier = block * KVD_PAGE_TOKENS;
    frontier = recover_reach(store, &bundle, frontier, named_pages(store, &cont->space[0], frontier));
    if (!windows_hold(store, cont->space, frontier)) frontier = 0;
    if (frontier && !import_image(store, from, cont, &bundle, frontier)) frontier = 0;
    cut_import(store, from, cont, pages_of(frontier));
    for (uint32_t p = 0; p < store->n_pools; p++) memset(row_entries(store, p, 0), 0xff, store->row_entries * 4u);
    if (!frontier) {
        cont_free(store, cont);
        return 0;
    }
    for (uint32_t p = 0; p < store->n_pools; p++) cont->space[p].committed = frontier;
    recover_cont(store, cont, &bundle, frontier);
    cont->published = true;
    life_begin(store, cont, true);
    index_insert(store, cont);
    record_cont(store, cont);
    CRASH_POINT("import.bundle");
    cont_demote(store, cont);
    return frontier;
}
