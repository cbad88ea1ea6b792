/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by extent.c (one extent) and extent_pages.c (many at once).
 */
#ifndef KVD_HOSTARENA_EXTENT_INTERNAL_H
#define KVD_HOSTARENA_EXTENT_INTERNAL_H

#include "extent.h"
#include "extent_runs.h"

struct extent_slot {
    uint64_t offset, stride;  /* stride 0: free */
    uint32_t tag, generation; /* generation 0: retired, since a wrapped one could revive an old handle */
    uint32_t next;            /* of the free list; while live: a mark of extent_pages_fit */
};

struct extent_arena {
    uint64_t capacity;
    uint32_t max_extents, live, unused;
    struct runs runs;
    struct extent_slot *slots;
    uint32_t audited, recount_live; /* slots that an audit in steps has counted: a change there counts twice */
    uint64_t recount_bytes;
};

struct extent_slot *extent_find(const struct extent_arena *arena, extent_id id); /* NULL: stale */
/* Slots on the free list, counted up to `most`; retired ones are neither live nor free. */
uint32_t extent_slots_left(const struct extent_arena *arena, uint64_t most);
bool extent_good_shape(uint64_t stride, uint32_t pages);
/* A slot for bytes that are the caller's already; one must be free. */
struct extent_slot *extent_occupy(struct extent_arena *arena, uint64_t offset, uint64_t stride, uint32_t tag);
extent_id extent_id_of(const struct extent_arena *arena, const struct extent_slot *slot);

#endif
