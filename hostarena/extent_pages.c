/* SPDX-License-Identifier: Apache-2.0
 *
 * Many extents at once. extent_take_pages and extent_pages_fit place pages by the same function, and a page needs no
 * more than a run of its own length, so what fits is what can be taken.
 */
#include <assert.h>

#include "extent_internal.h"

/* Where the next of n pages begin, and how many of them: all n in the first run that holds them, while none is placed
 * yet; else those that the lowest run holds. */
static bool find_piece(const struct runs *runs, uint64_t stride, uint32_t n, bool first, uint64_t *ret_offset,
                       uint32_t *ret_pages) {
    uint64_t bytes;
    *ret_pages = n;
    if (first && runs_first_fit(runs, stride * n, ret_offset)) return true;
    if (!runs_first_run(runs, stride, ret_offset, &bytes)) return false;
    if (bytes / stride < n) *ret_pages = (uint32_t)(bytes / stride);
    return true;
}

int extent_take_pages(struct extent_arena *a, uint64_t stride, uint32_t n, uint32_t tag, extent_id *ret_ids) {
    uint64_t offset;
    uint32_t pages;
    if (!extent_good_shape(stride, n)) return EXTENT_E_ARGUMENT;
    if (extent_slots_left(a, n) < n) return EXTENT_E_DESCRIPTOR;
    if (runs_count(&a->runs, stride, n) < n) return EXTENT_E_SPACE;
    for (uint32_t done = 0; done < n; done += pages) {
        find_piece(&a->runs, stride, n - done, done == 0, &offset, &pages);
        runs_take(&a->runs, offset, stride * pages);
        for (uint32_t i = 0; i < pages; i++)
            ret_ids[done + i] = extent_id_of(a, extent_occupy(a, offset + stride * i, stride, tag));
    }
    return 0;
}

/* ---- would they fit ----------------------------------------------------------------------------------------- */

#define PLAYED 1u /* in slot.next: this drop is on the free runs */

static bool drops_live(const struct extent_arena *a, const extent_id *drops, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        struct extent_slot *slot = extent_find(a, drops[i]);
        if (!slot) return false;
        slot->next = 0;
    }
    return true;
}

/* Puts the drops on the free runs. Returns the number of descriptors that they give back. */
static uint32_t play_drops(struct extent_arena *a, const extent_id *drops, uint32_t n) {
    uint32_t slots = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct extent_slot *slot = extent_find(a, drops[i]);
        if (slot->next == PLAYED) continue;
        slot->next = PLAYED;
        slots += slot->generation != UINT32_MAX;
        runs_give(&a->runs, slot->offset, slot->stride);
    }
    return slots;
}

static void unplay_drops(struct extent_arena *a, const extent_id *drops, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        struct extent_slot *slot = extent_find(a, drops[i]);
        if (slot->next != PLAYED) continue;
        slot->next = 0;
        runs_take(&a->runs, slot->offset, slot->stride);
    }
}

/* What was placed, piece by piece, in no more words than it has pages: the offset of one page, or the offset | 1 and
 * the number of pages. */
struct pieces {
    uint64_t *words;
    uint64_t n;
};
static_assert(EXTENT_ALIGN > 1, "the lowest bit of an offset is free");

static void add_piece(struct pieces *p, uint64_t offset, uint32_t pages) {
    p->words[p->n++] = offset | (pages > 1);
    if (pages > 1) p->words[p->n++] = pages;
}

static uint32_t place_pages(struct runs *runs, uint64_t stride, uint32_t n, struct pieces *pieces) {
    uint64_t offset;
    uint32_t pages, left = n;
    while (left && find_piece(runs, stride, left, left == n, &offset, &pages)) {
        runs_take(runs, offset, stride * pages);
        add_piece(pieces, offset, pages);
        left -= pages;
    }
    return n - left;
}

/* Gives the pieces of one want back; the words that they took. */
static uint64_t unplace_pages(struct runs *runs, uint64_t stride, uint32_t n, const uint64_t *words) {
    uint64_t at = 0;
    for (uint32_t pages; n; n -= pages) {
        uint64_t offset = words[at++];
        pages = offset & 1 ? (uint32_t)words[at++] : 1;
        runs_give(runs, offset & ~UINT64_C(1), stride * pages);
    }
    return at;
}

bool extent_pages_fit(struct extent_arena *a, const extent_id *drops, uint32_t n_drops,
                      const struct extent_page_want *wants, uint32_t n_wants, uint64_t *scratch, uint32_t *ret_placed) {
    struct pieces pieces = { scratch, 0 };
    uint64_t sum = 0, at = 0;
    uint32_t last = n_wants ? n_wants - 1 : 0; /* nobody comes after it: counted, not placed */
    bool fits = true;
    for (uint32_t i = 0; i < n_wants; i++) ret_placed[i] = 0;
    for (uint32_t i = 0; i < n_wants; i++) {
        if (wants[i].pages && !extent_good_shape(wants[i].stride, wants[i].pages)) return false;
        sum += wants[i].pages;
    }
    if (!drops_live(a, drops, n_drops)) return false;
    uint64_t slots = (uint64_t)play_drops(a, drops, n_drops) + extent_slots_left(a, sum);
    for (uint32_t i = 0; i < n_wants; i++) {
        uint32_t n = wants[i].pages < slots ? wants[i].pages : (uint32_t)slots;
        if (n)
            ret_placed[i] = i == last ? runs_count(&a->runs, wants[i].stride, n)
                                      : place_pages(&a->runs, wants[i].stride, n, &pieces);
        slots -= ret_placed[i];
        fits = fits && ret_placed[i] == wants[i].pages;
    }
    for (uint32_t i = 0; i < last; i++) at += unplace_pages(&a->runs, wants[i].stride, ret_placed[i], scratch + at);
    unplay_drops(a, drops, n_drops);
    return fits;
}
