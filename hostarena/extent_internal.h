/* SPDX-License-Identifier: Apache-2.0
 * Shared by extent.c (single extents), extent_recipe.c (plans over many) and extent_pages.c (pages that are extents of
 * their own). */
#ifndef KVD_HOSTARENA_EXTENT_INTERNAL_H
#define KVD_HOSTARENA_EXTENT_INTERNAL_H

#include "extent.h"
#include "extent_runs.h"

struct slot {
    uint64_t offset, stride;
    uint32_t pages, tag, generation; /* pages 0: free */
    uint32_t next;                   /* of the free list; while live: a mark of extent_pages_fit */
};

struct extent_arena {
    uint64_t capacity, revision;
    uint32_t max_extents, live, unused;
    struct runs runs;
    struct slot *slots;
};

struct slot *extent_find(const struct extent_arena *arena, extent_id id); /* NULL: stale */
/* Whether n more extents can be made. */
bool extent_slots_free(const struct extent_arena *arena, uint32_t n);
bool extent_good_shape(uint64_t stride, uint32_t pages);
/* A slot for bytes that are the caller's already; one must be free. */
struct slot *extent_occupy(struct extent_arena *arena, uint64_t offset, uint64_t stride, uint32_t pages, uint32_t tag);
extent_id extent_id_of(const struct extent_arena *arena, const struct slot *slot);
struct extent_info extent_describe(const struct extent_arena *arena, const struct slot *slot);

/* Frees sorted, disjoint page ranges of one extent; its survivors become new extents (the old handle dies). Descriptors
 * were checked. ret_ends: the survivor before the first range and the one after the last (none where there is none);
 * may be NULL. */
struct extent_range {
    uint32_t first, pages;
};
void extent_cut(struct extent_arena *arena, struct slot *slot, const struct extent_range *ranges, uint32_t n,
                extent_id ret_ends[2]);
/* Survivors that such a cut leaves. */
uint32_t extent_survivors(const struct slot *slot, const struct extent_range *ranges, uint32_t n);

#endif
