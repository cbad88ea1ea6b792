/* SPDX-License-Identifier: Apache-2.0
 *
 * Logical pages: identity, content and references; independent of where the bytes are (INV-5).
 *
 * Writer and protection are functions of the references: a page that one active space alone holds has that space as its
 * writer; a page that any inactive continuation holds is protected as far as it is committed. That needs no scan over
 * continuations: a page that is held several times is always full (partial tails are copied, never shared), and a
 * partial tail is held by one continuation alone, whose frontier then is what is committed. The audit recomputes both
 * from the memberships.
 */
#include "store_internal.h"

#include <string.h>

/* A free descriptor: the one with the page's own number if it is free, so that neighbours on the device are neighbours
 * here; else a spare one. The home of a free page is free or lives on as a host-only page, so a spare one exists then.
 */
static uint32_t take_descriptor(struct pool *pool, uint32_t device) {
    struct page *home = &pool->pages[device];
    if (!(home->flags & (PAGE_OCCUPIED | PAGE_LISTED))) return device;
    uint32_t d = pool->spare;
    pool->spare = pool->pages[d].mark;
    return d;
}

uint32_t page_open(struct store *store, uint32_t pool_index, uint32_t device, bool active) {
    struct pool *pool = &store->pool[pool_index];
    uint32_t d = take_descriptor(pool, device), generation = pool->pages[d].generation;
    pool->leases[device].owner = d;
    pool->pages[d] = (struct page){.epoch = ++store->epoch,
                                   .host_extent = NONE,
                                   .generation = generation,
                                   .references = 1,
                                   .active_references = active,
                                   .device = device,
                                   .lease = pool->leases[device].generation,
                                   .flags = (uint8_t)(active ? PAGE_OCCUPIED | PAGE_WRITER : PAGE_OCCUPIED)};
    pool->occupied++;
    return d;
}

/* Recycled only with no reference, replica or pin left (PAGE-6). */
static void page_close(struct pool_batch *batch, uint32_t d) {
    struct pool *pool = batch->pool;
    struct page *page = &pool->pages[d];
    uint32_t device = page->device;
    page->flags = 0;
    page->device = NONE;
    page->committed = page->protected = page->pinned = 0;
    if (++page->generation == 0) page->generation = 1;
    pool->occupied--;
    if (d != device) {
        page->flags = PAGE_LISTED;
        page->mark = pool->spare;
        pool->spare = d;
    }
    pool_put(batch, device);
}

void page_unref(struct pool_batch *batch, uint32_t d, bool active) {
    struct page *page = &batch->pool->pages[d];
    if (--page->references == 1) batch->pool->shared--;
    page->active_references -= active;
    if (page->references == 0 && page->pins == 0) page_close(batch, d);
    else page_settle(page);
}

void page_pin(struct pool *pool, uint32_t d, uint32_t columns) {
    struct page *page = &pool->pages[d];
    page->pins++;
    if (columns > page->pinned) page_protect(pool, d, columns);
}

void page_protect(struct pool *pool, uint32_t d, uint32_t columns) {
    pool->pages[d].pinned = (uint8_t)columns;
    page_settle(&pool->pages[d]);
}

void page_unpin(struct pool_batch *batch, uint32_t d) {
    struct page *page = &batch->pool->pages[d];
    page->pins--;
    if (page->references == 0 && page->pins == 0) page_close(batch, d);
    else page_settle(page);
}

void page_commit(struct store *store, uint32_t pool_index, uint32_t d, uint32_t columns) {
    struct page *page = &store->pool[pool_index].pages[d];
    if (columns < page->committed) {
        page->epoch = ++store->epoch;
        page->flags = (uint8_t)(page->flags & ~PAGE_NAMED);
    }
    page->committed = (uint8_t)columns;
    page_settle(page);
}
