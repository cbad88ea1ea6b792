/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads of the arena beside everything else: by the scrub, and for the cold tier. A reader pins nothing. It keeps the
 * extent that it reads from being given to others; whose replica that is may let go of it meanwhile.
 */
#include "store_internal.h"

#include <string.h>

static void arena_read_start(struct store *store, uint32_t reader, extent_id extent, uint64_t replica) {
    store->reads[reader] = (struct arena_read){ .extent = extent, .replica = replica };
}

uint32_t arena_reads_gone(const struct store *store) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < READS; i++) {
        bool again = false;
        for (uint32_t k = 0; k < i; k++) again |= store->reads[k].extent.bits == store->reads[i].extent.bits;
        n += store->reads[i].gone && !again;
    }
    return n;
}

static bool arena_read_end(struct store *store, uint32_t reader, bool right, uint32_t *ret_released) {
    struct arena_read *read = &store->reads[reader];
    extent_id extent = read->extent;
    if (!extent.bits) return false;
    bool damage = !right && !read->gone;
    if (damage) *ret_released = store_damaged(store, read->replica);
    bool gone = read->gone;
    *read = (struct arena_read){ .gone = false };
    if (gone && (!arena_is_read(store, extent) || MUTANT(reader_frees_what_another_reads))) {
        extent_release(store->arena, extent);
        store_changed(store, true);
    }
    return damage;
}

/* ---- pieces of a continuation ---- */

static bool read_page(struct store *store, const struct cont *cont, uint32_t p, uint32_t block,
                      struct store_piece *ret_piece) {
    if (block < cont->space[p].base) return false; /* behind its window */
    uint32_t columns = columns_of(cont->frontier, block), d = space_entry(store, &cont->space[p], block);
    const struct page *page = &store->pool[p].pages[d];
    if (!page->host.bits || page->flags & (PAGE_BACKING | PAGE_RESTORING | PAGE_LOST) || !page_in_host(page, columns))
        return false;
    *ret_piece = (struct store_piece){ .kind = columns == KVD_PAGE_TOKENS ? STORE_PIECE_PAGE : STORE_PIECE_TAIL,
                                       .copy = page_copy(store, p, d) };
    ret_piece->copy.columns = columns;
    if (columns < KVD_PAGE_TOKENS) ret_piece->tail = cont->tail;
    memcpy(ret_piece->digest.bytes, index_digest(store, cont, columns < KVD_PAGE_TOKENS ? block : block + 1),
           KVD_DIGEST_BYTES);
    arena_read_start(store, READ_COLD, page->host, ret_piece->copy.replica);
    return true;
}

static bool read_image(struct store *store, const struct cont *cont, struct store_piece *ret_piece) {
    if (!cont->image.bits || cont->image_backing || cont->image_lost) return false;
    *ret_piece = (struct store_piece){ .kind = STORE_PIECE_IMAGE,
                                       .copy = image_copy(store, cont, false, cont->slot),
                                       .tail = cont->tail };
    memcpy(ret_piece->digest.bytes, index_digest(store, cont, cont->frontier / KVD_PAGE_TOKENS), KVD_DIGEST_BYTES);
    arena_read_start(store, READ_COLD, cont->image, ret_piece->copy.replica);
    return true;
}

bool store_read_begin(struct store *store, store_cont handle, uint64_t *cursor, struct store_piece *ret_piece) {
    const struct cont *cont = cont_find(store, handle);
    if (!store->arena || store->reads[READ_COLD].extent.bits || !cont || !cont->published || cont_is_live(cont))
        return false;
    bool whole = cont_is_whole(cont);
    uint64_t blocks = whole ? pages_of(cont->frontier) : cont->named, end = blocks * store->n_pools;
    while (*cursor < end) {
        uint64_t at = (*cursor)++;
        if (read_page(store, cont, (uint32_t)(at % store->n_pools), (uint32_t)(at / store->n_pools), ret_piece))
            return true;
    }
    return (*cursor)++ == end && whole && store->config.has_state && read_image(store, cont, ret_piece);
}

bool store_read_end(struct store *store, bool right, uint32_t *ret_released) {
    return arena_read_end(store, READ_COLD, right, ret_released);
}

/* ---- scrub ---- */

#define SCRUB_LOOK 4096u /* descriptors in one call */

/* Nothing is pinned: a pin would keep a continuation from being released, and a page on the device whose place is
 * promised. The extent alone is kept. */
static bool scrub_page_at(struct store *store, uint32_t p, uint32_t d, struct store_copy *ret_copy) {
    const struct page *page = &store->pool[p].pages[d];
    if (!(page->flags & PAGE_OCCUPIED) || !page->host.bits || page->flags & (PAGE_BACKING | PAGE_RESTORING | PAGE_LOST))
        return false;
    *ret_copy = page_copy(store, p, d);
    arena_read_start(store, READ_SCRUB, page->host, ret_copy->replica);
    return true;
}

static bool scrub_image_at(struct store *store, uint32_t i, struct store_copy *ret_copy) {
    const struct cont *cont = &store->conts[i];
    if (!cont->occupied || !cont->published || !cont->image.bits || cont->image_backing || cont->image_lost)
        return false;
    *ret_copy = image_copy(store, cont, false, cont->slot);
    arena_read_start(store, READ_SCRUB, cont->image, ret_copy->replica);
    return true;
}

static bool scrub_at(struct store *store, uint32_t p, uint32_t i, struct store_copy *ret_copy) {
    return p < store->n_pools ? scrub_page_at(store, p, i, ret_copy) : scrub_image_at(store, i, ret_copy);
}

bool store_scrub_begin(struct store *store, struct store_copy *ret_copy) {
    uint32_t looked = 0;
    if (!store->arena || store->reads[READ_SCRUB].extent.bits) return false;
    *ret_copy = (struct store_copy){ .bytes = 0 };
    for (; store->scrub_pool <= store->n_pools; store->scrub_pool++, store->scrub_next = 0) {
        uint32_t p = store->scrub_pool,
                 end = p < store->n_pools ? store->pool[p].descriptors : store->config.max_continuations;
        if (p < store->n_pools ? !store->pool[p].host_pages : !store->host_images) continue;
        for (; store->scrub_next < end; looked++) {
            if (looked == SCRUB_LOOK || scrub_at(store, p, store->scrub_next++, ret_copy)) return true;
        }
    }
    store->scrub_pool = store->scrub_next = 0;
    return false;
}

bool store_scrub_end(struct store *store, bool right, uint32_t *ret_released) {
    return arena_read_end(store, READ_SCRUB, right, ret_released);
}
