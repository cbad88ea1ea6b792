/* SPDX-License-Identifier: Apache-2.0
 *
 * Logical pages: identity, content and references; independent of where the bytes are (INV-5). And the places of their
 * bytes: a device replica comes and goes with a lease, a host replica with an extent.
 *
 * Writer and protection are functions of the references: a page that one active space alone holds has that space as its
 * writer; a page that any inactive continuation holds is protected as far as it is committed. That needs no scan over
 * continuations: a page that is held several times is always full (partial tails are copied, never shared), and a
 * partial tail is held by one continuation alone, whose frontier then is what is committed. The audit recomputes both
 * from the memberships.
 *
 * Descriptors: the one with a page's own number is its home. A free one is either on the spare list or the home of a
 * free page, so that neighbours on the device are neighbours here; with as many spare ones as the arena holds pages,
 * one is there for any page that can be opened.
 */
#include "store_internal.h"

#include <string.h>

/* The home of a free page is free, or it lives elsewhere (host-only, or restored to another page): then a spare one
 * exists. */
static uint32_t take_descriptor(struct pool *pool, uint32_t device) {
    struct page *home = &pool->pages[device];
    if (!(home->flags & (PAGE_OCCUPIED | PAGE_LISTED))) return device;
    uint32_t d = pool->spare;
    pool->spare = pool->pages[d].mark;
    return d;
}

static void list_descriptor(struct pool *pool, uint32_t d) {
    page_touch(pool, d);
    pool->pages[d].flags = PAGE_LISTED;
    pool->pages[d].mark = pool->spare;
    pool->spare = d;
}

uint32_t page_open(struct store *store, uint32_t pool_index, uint32_t device, uint32_t block, bool active) {
    struct pool *pool = &store->pool[pool_index];
    uint32_t d = take_descriptor(pool, device), generation = pool->pages[d].generation;
    page_touch(pool, d);
    pool->leases[device].owner = d;
    pool->pages[d] = (struct page){ .epoch = ++store->epoch,
                                    .touched = true,
                                    .generation = generation,
                                    .references = 1,
                                    .active_references = active,
                                    .device = device,
                                    .lease = pool->leases[device].generation,
                                    .flags = (uint8_t)(active ? PAGE_OCCUPIED | PAGE_WRITER : PAGE_OCCUPIED) };
    if (pool->tier) pool->tier[d] = (struct page_tier){ .link = KVD_NONE, .block = block };
    pool->occupied++;
    return d;
}

uint32_t page_open_in_host(struct store *store, uint32_t pool_index, extent_id id, uint32_t block, uint32_t columns) {
    struct pool *pool = &store->pool[pool_index];
    uint32_t d = pool->spare;
    page_touch(pool, d);
    pool->spare = pool->pages[d].mark;
    store->epoch++;
    pool->pages[d] = (struct page){ .epoch = store->epoch,
                                    .host_epoch = store->epoch,
                                    .host = id,
                                    .touched = true,
                                    .generation = pool->pages[d].generation,
                                    .device = KVD_NONE,
                                    .committed = (uint8_t)columns,
                                    .host_columns = (uint8_t)columns,
                                    .flags = PAGE_OCCUPIED };
    pool->tier[d] = (struct page_tier){ .link = KVD_NONE, .block = block };
    pool->occupied++;
    pool->absent++;
    pool->host_pages++;
    return d;
}

/* What only a store with a tier or a directory has to do: out of the way of those that have none. */
__attribute__((noinline)) static void leave_places(struct store *store, struct pool *pool, uint32_t d) {
    uint32_t p = (uint32_t)(pool - store->pool);
    if (!MUTANT(directory_keeps_page)) record_page_close(store, p, d);
    page_leave_host(store, p, d);
    if (!page_on_device(&pool->pages[d])) pool->absent--;
}

/* Recycled only with no reference, replica or pin left (PAGE-6). */
static void page_close(struct store *store, struct pool_batch *batch, uint32_t d) {
    struct pool *pool = batch->pool;
    struct page *page = &pool->pages[d];
    uint32_t device = page->device;
    page_touch(pool, d);
    if (pool->tier) leave_places(store, pool, d);
    page->flags = 0;
    page->device = KVD_NONE;
    page->committed = page->protected = page->pinned = 0;
    if (++page->generation == 0) page->generation = 1;
    pool->occupied--;
    if (d != device) list_descriptor(pool, d);
    if (device != KVD_NONE) pool_put(batch, device, page->lease);
}

/* ---- references and pins ---- */

static inline void page_loosen(struct store *store, struct pool_batch *batch, uint32_t d) {
    struct page *page = &batch->pool->pages[d];
    if (page->references == 0 && page->pins == 0) {
        page_close(store, batch, d);
        return;
    }
    page_update(batch->pool, d);
    if (batch->pool->tier) page_leave_if_unused(store, batch, d);
}

void page_unref(struct store *store, struct pool_batch *batch, uint32_t d, bool active) {
    struct page *page = &batch->pool->pages[d];
    if (--page->references == 1) batch->pool->shared--;
    page->active_references -= active;
    page_loosen(store, batch, d);
}

void page_pin(struct pool *pool, uint32_t d, uint32_t columns) {
    struct page *page = &pool->pages[d];
    page_touch(pool, d);
    page->pins++;
    if (columns > page->pinned) page_protect(pool, d, columns);
}

void page_protect(struct pool *pool, uint32_t d, uint32_t columns) {
    pool->pages[d].pinned = (uint8_t)columns;
    page_update(pool, d);
}

void page_unpin(struct store *store, struct pool_batch *batch, uint32_t d) {
    batch->pool->pages[d].pins--;
    page_loosen(store, batch, d);
}

__attribute__((noinline)) static void outdate_replicas(struct store *store, uint32_t p, uint32_t d) {
    const struct page *page = &store->pool[p].pages[d];
    if (p == 0) record_page_name(store, d);
    if (page->host.bits && !(page->flags & PAGE_BACKING)) page_leave_host(store, p, d); /* matches no more */
}

void page_commit(struct store *store, uint32_t pool_index, uint32_t d, uint32_t columns) {
    struct page *page = &store->pool[pool_index].pages[d];
    if (columns < page->committed) {
        page->epoch = ++store->epoch;
        page->flags = (uint8_t)(page->flags & ~PAGE_NAMED);
        if (store->pool[pool_index].tier) outdate_replicas(store, pool_index, d);
    }
    page->committed = (uint8_t)columns;
    page_update(&store->pool[pool_index], d);
}

void page_write_on(struct store *store, uint32_t pool_index, uint32_t d) {
    if (record_covers_more(store, pool_index, d) && !MUTANT(cut_replica_is_taken_over))
        page_leave_host(store, pool_index, d);
}

/* ---- places ---- */

void page_leave_if_unused(struct store *store, struct pool_batch *batch, uint32_t d) {
    const struct page *page = &batch->pool->pages[d];
    if (page->pins || page->active_references || page->references == 0 || page->device == KVD_NONE) return;
    if (batch->pool->tier[d].demoted == page->references) page_leave_device(store, batch, d);
}

void page_leave_device(struct store *store, struct pool_batch *batch, uint32_t d) {
    struct pool *pool = batch->pool;
    struct page *page = &pool->pages[d];
    uint32_t device = page->device;
    page_touch(pool, d);
    if (!(page->flags & PAGE_RESTORING)) pool->absent++;
    page->flags = (uint8_t)(page->flags & ~(PAGE_RESTORING | PAGE_LEAVING));
    page->device = KVD_NONE;
    if (!MUTANT(directory_keeps_device)) record_page_device(store, (uint32_t)(pool - store->pool), d);
    pool_put(batch, device, page->lease);
}

void page_bring(struct store *store, uint32_t pool_index, uint32_t d, uint32_t device) {
    struct pool *pool = &store->pool[pool_index];
    struct page *page = &pool->pages[d], *home = &pool->pages[device];
    page_touch(pool, d);
    page->device = device;
    page->lease = pool->leases[device].generation;
    page->flags |= PAGE_RESTORING;
    pool->leases[device].owner = d;
    if (!(home->flags & (PAGE_OCCUPIED | PAGE_LISTED))) list_descriptor(pool, device); /* its page is taken now */
}

void page_lose(struct store *store, uint32_t pool_index, uint32_t d) {
    struct page *page = &store->pool[pool_index].pages[d];
    page_touch(&store->pool[pool_index], d);
    page->flags |= PAGE_LOST;
    page->host_epoch = 0; /* of no content */
    if (!MUTANT(directory_keeps_host)) record_page_host(store, pool_index, d);
}

void tier_give_back(struct store *store, extent_id id) {
    bool read = false;
    for (uint32_t i = 0; i < READS && !MUTANT(scrub_frees_what_it_reads); i++) {
        if (id.bits != store->reads[i].extent.bits) continue;
        store->reads[i].gone = read = true; /* arena_read_end gives it back */
    }
    if (!read) extent_release(store->arena, id);
}

void page_leave_host(struct store *store, uint32_t pool_index, uint32_t d) {
    struct page *page = &store->pool[pool_index].pages[d];
    extent_id id = page->host;
    if (!id.bits) return;
    page_touch(&store->pool[pool_index], d);
    page->host = (extent_id){ 0 };
    page->host_columns = 0;
    page->flags = (uint8_t)(page->flags & ~PAGE_BACKING);
    if (MUTANT(bytes_before_record)) tier_give_back(store, id);
    if (!MUTANT(directory_keeps_host)) record_page_host(store, pool_index, d);
    if (!MUTANT(bytes_before_record)) tier_give_back(store, id);
    store->pool[pool_index].host_pages--;
}
