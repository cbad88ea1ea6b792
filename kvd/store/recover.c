/* SPDX-License-Identifier: Apache-2.0
 *
 * Recovery: a store out of the directory that an earlier one left, however it ended (CONT-3). Nothing is believed that
 * does not fit the geometry and everything else: a page counts when its record checks and it has a place that nobody
 * else has; a bundle reaches as far as its chain of pages does; what is left over is dropped and counted.
 *
 * Scratch: until a page is adopted, its tier record's link is its predecessor, and mark that one's generation;
 * membership is collected from the last page on in a row of the table, which is empty now.
 */
#include "store_internal.h"

#include <string.h>

struct recovery {
    struct store *store;
    struct directory *directory;
    bool device_lives;
    struct store_recovered out;
};

/* ---- pages ---- */

/* Takes the arena bytes that a record names; it keeps none if somebody has them, or they are none of this pool's. */
static void load_host(struct recovery *r, uint32_t p, uint32_t d, const struct directory_page *from) {
    struct store *store = r->store;
    struct page *page = &store->pool[p].pages[d];
    struct extent_info extent;
    if (!from->has_host || !store->arena) return;
    if (!from->host.checksum || /* never written: 0 says that none was told */
        extent_allocate_at(store->arena, from->host.offset, store->config.host_stride[p], p, &extent)) {
        r->out.damaged++;
        return;
    }
    page->host = extent.id;
    page->host_epoch = page->epoch;
    page->host_columns = (uint8_t)from->host.columns;
    store->pool[p].tier[d].checksum = from->host.checksum;
    store->pool[p].host_pages++;
}

static void load_device(struct recovery *r, uint32_t p, uint32_t d, uint32_t device) {
    struct pool *pool = &r->store->pool[p];
    if (!r->device_lives || device >= pool->capacity) return;
    if (!pool_is_free(pool, device)) {
        r->out.damaged++;
        return;
    }
    pool_take(pool, device, 1);
    pool->leases[device].owner = d;
    pool->pages[d].device = device;
    pool->pages[d].lease = pool->leases[device].generation;
}

static void load_page(struct recovery *r, uint32_t p, uint32_t d) {
    struct store *store = r->store;
    struct pool *pool = &store->pool[p];
    struct page *page = &pool->pages[d];
    struct directory_page from;
    bool damaged = false;
    if (!directory_page_load(r->directory, p, d, &from, &damaged)) {
        r->out.damaged += damaged;
        return;
    }
    r->out.damaged += from.damaged_parts;
    *page = (struct page){ .epoch = ++store->epoch,
                           .generation = from.base.generation,
                           .device = KVD_NONE,
                           .flags = PAGE_OCCUPIED,
                           .mark = from.base.parent_generation };
    pool->tier[d] = (struct page_tier){ .link = from.base.parent, .block = from.base.block };
    load_host(r, p, d, &from);
    load_device(r, p, d, from.device);
    if (p == 0 && from.named) {
        page->flags |= PAGE_NAMED;
        memcpy(store->digests[d], from.digest, 32);
    }
    pool->occupied++;
    pool->absent += page->device == KVD_NONE;
}

/* ---- bundles ---- */

struct chain {
    uint32_t *pages; /* [L], by block */
    uint32_t first;  /* block: of a window, whose earlier ones nobody reads */
    uint32_t n;      /* blocks from there on that can be used end before this one */
};

static bool page_serves(const struct recovery *r, uint32_t p, uint32_t d, uint32_t columns) {
    const struct page *page = &r->store->pool[p].pages[d];
    if (page->device == KVD_NONE && !page_in_host(page, MUTANT(recovery_takes_all_columns) ? 1 : columns)) return false;
    return page->references == 0 ||
           (page->committed == KVD_PAGE_TOKENS && columns == KVD_PAGE_TOKENS); /* partial ones are not shared */
}

/* From the last page to the first; then forward as far as they serve. A page has one predecessor, whoever comes by. */
static bool load_chain(const struct recovery *r, uint32_t p, const struct directory_bundle *from, struct chain *chain) {
    const struct pool *pool = &r->store->pool[p];
    uint32_t count = pages_of(from->frontier[p]), d = from->last[p], generation = from->last_generation[p];
    for (uint32_t block = count; block-- > chain->first;) {
        if (d >= pool->descriptors || !(pool->pages[d].flags & PAGE_OCCUPIED)) return false;
        if (pool->pages[d].generation != generation || pool->tier[d].block != block) return false;
        chain->pages[block] = d;
        generation = pool->pages[d].mark;
        d = pool->tier[d].link;
    }
    chain->n = chain->first;
    while (chain->n < count && page_serves(r, p, chain->pages[chain->n], columns_of(from->frontier[p], chain->n)))
        chain->n++;
    return true;
}

/* GRP-4: a window that was cut serves no lower frontier, unless that begins at the same block. */
static bool reaches(const struct recovery *r, uint32_t frontier, const struct chain *chains) {
    for (uint32_t p = 0; p < r->store->n_pools; p++)
        if (window_first(r->store, p, frontier) < chains[p].first) return false;
    return true;
}

/* The frontier that all pools reach: the record's, or the end of the last page that can be used. */
static uint32_t common_frontier(const struct recovery *r, const struct directory_bundle *from, struct chain *chains) {
    uint32_t frontier = from->frontier[0];
    for (uint32_t p = 0; p < r->store->n_pools; p++) frontier = min_u32(frontier, from->frontier[p]);
    for (uint32_t p = 0; p < r->store->n_pools; p++) chains[p].first = window_first(r->store, p, frontier);
    for (uint32_t p = 0; p < r->store->n_pools; p++) {
        if (from->frontier[p] > r->store->config.max_context || !load_chain(r, p, from, &chains[p])) return 0;
        if (chains[p].n < pages_of(frontier)) frontier = chains[p].n * KVD_PAGE_TOKENS;
    }
    for (uint32_t p = 0; p < r->store->n_pools;
         p++) { /* a page that another bundle has already, and that is partial here now */
        uint32_t tail = frontier / KVD_PAGE_TOKENS;
        if (frontier % KVD_PAGE_TOKENS && r->store->pool[p].pages[chains[p].pages[tail]].references)
            frontier = tail * KVD_PAGE_TOKENS;
    }
    return reaches(r, frontier, chains) ? frontier : 0;
}

/* All of it is in the host, and not all on the device. */
static bool lies_in_host(const struct recovery *r, uint32_t frontier, const struct chain *chains) {
    bool absent = false;
    for (uint32_t p = 0; p < r->store->n_pools; p++)
        for (uint32_t i = chains[p].first; i < pages_of(frontier); i++) {
            const struct page *page = &r->store->pool[p].pages[chains[p].pages[i]];
            if (!page_in_host(page, columns_of(frontier, i))) return false;
            absent |= page->device == KVD_NONE;
        }
    return absent;
}

static bool load_image(struct recovery *r, struct cont *cont, const struct directory_bundle *from, uint32_t frontier,
                       bool *in_host) {
    struct store *store = r->store;
    struct extent_info extent;
    if (!store->config.has_state) return true;
    if (from->frontier[0] != frontier || from->state_frontier != frontier) return false;
    if (from->has_image && from->image.checksum && store->arena &&
        extent_allocate_at(store->arena, from->image.offset, store->config.host_state_stride, KVD_MAX_POOLS, &extent) ==
            0) {
        cont->image = extent.id;
        cont->image_checksum = from->image.checksum;
        store->host_images++;
    }
    uint32_t slot = from->state_slot;
    if (r->device_lives && slot < store->config.state_slots && !store->slots[slot].used) {
        store->slots[slot].used = true;
        store->slots_used++;
        cont->slot = slot;
    }
    if (cont->slot == KVD_NONE && cont->image.bits) *in_host = true;
    return cont->slot != KVD_NONE || cont->image.bits;
}

static bool knows_tail(const struct directory_bundle *from, uint32_t frontier) {
    uint32_t columns = frontier % KVD_PAGE_TOKENS;
    return columns == 0 || (frontier == from->frontier[0] && from->tail_named && from->n_tail == columns);
}

/* Who knew the rest by its handle went with the instance that gave it. */
uint32_t recover_reach(const struct store *store, const struct directory_bundle *from, uint32_t frontier,
                       uint32_t named) {
    bool whole = named == frontier / KVD_PAGE_TOKENS && knows_tail(from, frontier);
    if (whole || MUTANT(recovery_keeps_the_nameless)) return frontier;
    return store->config.has_state ? 0 : named * KVD_PAGE_TOKENS;
}

static uint32_t named_of_chain(const struct recovery *r, const struct chain *chain, uint32_t full) {
    uint32_t n = 0;
    while (n < full && (r->store->pool[0].pages[chain->pages[n]].flags & PAGE_NAMED)) n++;
    return n;
}

uint32_t named_pages(const struct store *store, const struct space *space, uint32_t frontier) {
    uint32_t named = 0;
    while (named < frontier / KVD_PAGE_TOKENS &&
           (store->pool[0].pages[space_entry(store, space, named)].flags & PAGE_NAMED))
        named++;
    return named;
}

void recover_cont(struct store *store, struct cont *cont, const struct directory_bundle *from, uint32_t frontier) {
    struct kvd_root root = { .label = "" };
    if (!MUTANT(recovery_forgets_domain)) memcpy(root.digest.bytes, from->root, sizeof from->root);
    memcpy(root.label, from->label, sizeof from->label);
    cont->domain = domain_take(store, &root);
    cont->frontier = frontier;
    cont->named = named_pages(store, &cont->space[0], frontier);
    cont->retention = from->retention;
    cont->tag = from->tag;
    cont->created = from->created;
    cont->used = from->used;
    cont->tail_named = knows_tail(from, frontier);
    if (cont->tail_named && frontier % KVD_PAGE_TOKENS) {
        cont->tail.n = from->n_tail;
        memcpy(cont->tail.tokens, from->tail, from->n_tail * sizeof from->tail[0]);
    }
    store->operations = max_u64(store->operations, max_u64(from->created, from->used));
}

static void adopt_space(struct recovery *r, uint32_t p, struct cont *cont, const struct chain *chain,
                        uint32_t frontier) {
    struct store *store = r->store;
    struct pool *pool = &store->pool[p];
    uint32_t n = pages_of(frontier), first = chain->first;
    for (uint32_t i = first; i < n; i++) {
        struct page *page = &pool->pages[chain->pages[i]];
        page->committed = (uint8_t)columns_of(frontier, i);
        if (page->committed < KVD_PAGE_TOKENS) page->flags = (uint8_t)(page->flags & ~PAGE_NAMED);
        page->host_columns = (uint8_t)min_u32(page->host_columns, page->committed); /* as shorten.c does */
        page_ref(pool, chain->pages[i], false);
    }
    space_skip(store, &cont->space[p], first);
    space_append(store, &cont->space[p], chain->pages + first, n - first);
    cont->space[p].committed = frontier;
}

static bool has_chunks_for(const struct store *store, uint32_t frontier) {
    return chunks_available(&store->chunks) >= store->n_pools * chunks_for(pages_of(frontier));
}

/* place: the continuation's own slot, or NONE for any. */
static void adopt_bundle(struct recovery *r, const struct directory_bundle *from, uint32_t place,
                         struct chain *chains) {
    struct store *store = r->store;
    bool in_host = false;
    uint32_t frontier = common_frontier(r, from, chains);
    frontier = recover_reach(store, from, frontier, named_of_chain(r, &chains[0], frontier / KVD_PAGE_TOKENS));
    if (!reaches(r, frontier, chains)) frontier = 0;
    if (frontier) in_host = lies_in_host(r, frontier, chains);
    if (frontier && place == KVD_NONE) { /* a sequence's: the first free one */
        for (place = 0; place < store->config.max_continuations && store->conts[place].occupied;) place++;
    }
    if (frontier == 0 || place >= store->config.max_continuations || !has_chunks_for(store, frontier)) {
        r->out.dropped++;
        return;
    }
    struct cont *cont = &store->conts[place];
    uint32_t generation = cont->generation;
    *cont = (struct cont){ .generation = generation,
                           .slot = KVD_NONE,
                           .source_slot = KVD_NONE,
                           .domain = KVD_NONE,
                           .node = KVD_NONE,
                           .next_victim = KVD_NONE,
                           .next_free = KVD_NONE };
    for (uint32_t p = 0; p < KVD_MAX_POOLS; p++) cont->tail_source[p] = cont->tail_copy[p] = KVD_NONE;
    if (!load_image(r, cont, from, frontier, &in_host)) {
        r->out.dropped++;
        return;
    }
    cont->occupied = true;
    store->conts_used++;
    for (uint32_t p = 0; p < store->n_pools; p++) adopt_space(r, p, cont, &chains[p], frontier);
    recover_cont(store, cont, from, frontier);
    cont->demoting = in_host; /* until all bundles are there */
    r->out.continuations++;
    r->out.shortened += frontier != from->frontier[0];
    r->out.images += cont->image.bits != 0;
}

/* ---- the rest ---- */

/* Pages that no bundle reached. */
static void drop_unused(struct recovery *r, uint32_t p) {
    struct pool *pool = &r->store->pool[p];
    struct pool_batch batch = { pool, 0, 0 };
    for (uint32_t d = 0; d < pool->descriptors; d++) {
        struct page *page = &pool->pages[d];
        if (!(page->flags & PAGE_OCCUPIED)) {
            directory_page_close(r->directory, p, d);
            continue;
        }
        pool->tier[d].link = KVD_NONE;
        page->mark = 0;
        if (page->references) { /* parts of it that did not hold go from the record, too */
            r->out.pages[p]++;
            if (!MUTANT(recovery_keeps_stale_device))
                directory_page_device(r->directory, p, d, page->device == KVD_NONE ? DIRECTORY_NONE : page->device);
            if (!page->host.bits) directory_page_host(r->directory, p, d, NULL);
            if (!(page->flags & PAGE_NAMED)) directory_page_name(r->directory, p, d, NULL);
            continue;
        }
        r->out.dropped_pages[p]++;
        directory_page_close(r->directory, p, d);
        page_leave_host(r->store, p, d);
        if (page->device != KVD_NONE) pool_put(&batch, page->device, page->lease);
        else pool->absent--;
        pool->occupied--;
        *page = (struct page){ .generation = page->generation + 1 ? page->generation + 1 : 1, .device = KVD_NONE };
    }
    pool_flush(&batch);
}

/* Free descriptors: the homes of free pages stay so, all others are spare. */
static void rebuild_spare(struct pool *pool) {
    pool->spare = KVD_NONE;
    for (uint32_t d = pool->descriptors; d-- > 0;) {
        struct page *page = &pool->pages[d];
        if (page->flags & PAGE_OCCUPIED) continue;
        page->flags = 0;
        if (d < pool->capacity && pool_is_free(pool, d)) continue;
        page->flags = PAGE_LISTED;
        page->mark = pool->spare;
        pool->spare = d;
    }
}

static void rebuild_conts(struct store *store) {
    store->cont_free = KVD_NONE;
    for (uint32_t i = store->config.max_continuations; i-- > 0;) {
        struct cont *cont = &store->conts[i];
        if (cont->occupied) continue;
        cont->next_free = store->cont_free;
        store->cont_free = i;
    }
}

static void publish_bundles(struct recovery *r) {
    struct store *store = r->store;
    for (uint32_t i = 0; i < store->config.max_continuations; i++) {
        struct cont *cont = &store->conts[i];
        if (!cont->occupied) {
            directory_bundle_drop(r->directory, DIRECTORY_CONTINUATION, i);
            continue;
        }
        bool in_host = cont->demoting;
        cont->demoting = false;
        cont->published = true;
        life_begin(store, cont, true);
        index_insert(store, cont);
        record_cont(store, cont);
        if (in_host && tier_all_current(store, cont)) cont_demote(store, cont);
    }
    for (uint32_t i = 0; i < store->config.max_concurrency; i++)
        directory_bundle_drop(r->directory, DIRECTORY_SEQUENCE, i);
}

void store_recover(struct store *store, struct directory *directory, bool device_lives,
                   struct store_recovered *ret_recovered) {
    struct recovery r = { .store = store, .directory = directory, .device_lives = device_lives };
    struct chain chains[KVD_MAX_POOLS] = { { 0 } };
    struct directory_bundle bundle;
    bool damaged = false;
    for (uint32_t p = 0; p < store->n_pools; p++) {
        chains[p].pages = (uint32_t *)row_entries(store, p, 0);
        for (uint32_t d = 0; d < store->pool[p].descriptors; d++) load_page(&r, p, d);
    }
    for (uint32_t i = 0; i < store->config.max_continuations; i++, r.out.damaged += damaged)
        if (directory_bundle_load(directory, DIRECTORY_CONTINUATION, i, &bundle, &damaged))
            adopt_bundle(&r, &bundle, i, chains);
    for (uint32_t i = 0; i < store->config.max_concurrency; i++, r.out.damaged += damaged)
        if (directory_bundle_load(directory, DIRECTORY_SEQUENCE, i, &bundle, &damaged))
            adopt_bundle(&r, &bundle, KVD_NONE, chains);
    for (uint32_t p = 0; p < store->n_pools; p++) {
        memset(chains[p].pages, 0xff, store->row_entries * sizeof *chains[p].pages);
        drop_unused(&r, p);
        rebuild_spare(&store->pool[p]);
    }
    rebuild_conts(store);
    store->directory = directory;
    publish_bundles(&r);
    store_changed(store, true);
    *ret_recovered = r.out;
}

void store_set_directory(struct store *store, struct directory *directory) { store->directory = directory; }

void store_directory_limits(const struct store *store, struct directory_limits *ret_limits) {
    struct directory_limits limits = { .n_pools = store->n_pools,
                                       .continuations = store->config.max_continuations,
                                       .sequences = store->config.max_concurrency };
    for (uint32_t p = 0; p < store->n_pools; p++) limits.pages[p] = store->pool[p].descriptors;
    *ret_limits = limits;
}
