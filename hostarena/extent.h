/* SPDX-License-Identifier: Apache-2.0
 *
 * Extents: the geometry of the host arena as a pure state machine. Bytes [0, capacity) are handed out as extents of
 * whole packed pages; first fit by offset, free neighbours coalesce, each extent keeps the stride of its pool's packed
 * page (HOST-2, HOST-3). No memory is touched here: the segment behind the offsets is the arena's business.
 *
 * free_bytes proves nothing (HOST-4): whether a set of allocations fits after a set of releases is decided by
 * extent_plan on the exact geometry, and extent_apply executes precisely that plan or changes nothing when the arena
 * moved on (HOST-5).
 *
 * Cost: allocation, release and split are O(log n) in the number of free runs. Nothing is allocated after extent_init.
 * Deterministic. No locks: the caller serialises.
 */
#ifndef KVD_HOSTARENA_EXTENT_H
#define KVD_HOSTARENA_EXTENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXTENT_ALIGN 256u /* of every offset and stride (HOST-2) */

struct extent_arena;
typedef struct extent_id {
    uint64_t bits;
} extent_id; /* index | generation << 32; 0 = none */

enum extent_error {
    EXTENT_E_STALE = 1,      /* no such extent, or an older generation of it */
    EXTENT_E_SPACE = 2,      /* no free run is long enough (even where free_bytes would be) */
    EXTENT_E_DESCRIPTOR = 3, /* out of extent descriptors */
    EXTENT_E_ARGUMENT = 4,   /* zero pages, bad stride, range outside the extent, duplicate or overlapping releases */
    EXTENT_E_REVISION = 5    /* the recipe was made at another revision */
};

struct extent_info {
    extent_id id;
    uint64_t offset, stride; /* bytes; stride = packed page bytes of the pool */
    uint32_t pages;
    uint32_t tag; /* the owner's, e.g. the pool */
};

/* Bytes for at most max_extents extents at a time; 0 on overflow. capacity 0 is legal: every allocation is refused
 * (HOST-7). */
size_t extent_bytes(uint32_t max_extents);
int extent_init(void *memory, size_t bytes, uint64_t capacity, uint32_t max_extents, struct extent_arena **ret_arena);

int extent_allocate(struct extent_arena *arena, uint64_t stride, uint32_t pages, uint32_t tag,
                    struct extent_info *ret_extent);
int extent_release(struct extent_arena *arena, extent_id id);
/* Takes exactly these bytes, for recovery from a directory. EXTENT_E_SPACE when any of them is taken or outside. */
int extent_allocate_at(struct extent_arena *arena, uint64_t offset, uint64_t stride, uint32_t pages, uint32_t tag,
                       struct extent_info *ret_extent);
/* [0, at) and [at, pages) become two extents with new handles; the old handle dies. 1 <= at < pages. */
int extent_split(struct extent_arena *arena, extent_id id, uint32_t at, extent_id ret_parts[2]);
/* Frees pages [first, first + n) of an extent. What survives is one or two extents with new handles and the same bytes;
 * parts are none where nothing survives on that side. */
int extent_release_range(struct extent_arena *arena, extent_id id, uint32_t first, uint32_t n, extent_id ret_parts[2]);

/* ---- pages, each an extent of its own ------------------------------------------------------------------ */

/* n extents of one page each, so that every page can be given back alone: adjacent, in order, where one free run holds
 * them all (first fit); else from the lowest free runs on, each as far as it reaches. All or nothing. ret_ids: [n]. */
int extent_take_pages(struct extent_arena *arena, uint64_t stride, uint32_t n, uint32_t tag, extent_id *ret_ids);
/* Would extent_take_pages succeed for all the wants, in this order, after the drops (whole extents, all live and
 * different)? The arena is as it was; played on the free runs and taken back, so it is exact. ret_placed[i]: pages of
 * want i that find a place (pages of it: all do) beside those that the wants before it found; an extent descriptor is a
 * place too. False with nothing placed: a stale drop or a bad stride. scratch: [sum of wants.pages], given by the
 * caller, left with nothing of use. */
struct extent_page_want {
    uint64_t stride;
    uint32_t pages, tag;
};
bool extent_pages_fit(struct extent_arena *arena, const extent_id *drops, uint32_t n_drops,
                      const struct extent_page_want *wants, uint32_t n_wants, uint64_t *scratch, uint32_t *ret_placed);
/* Offset of a live extent; UINT64_MAX where the handle is stale. */
uint64_t extent_offset(const struct extent_arena *arena, extent_id id);

int extent_look(const struct extent_arena *arena, extent_id id, struct extent_info *ret_extent);
/* Iterates live extents by slot; *cursor 0 to begin. */
bool extent_next(const struct extent_arena *arena, uint32_t *cursor, struct extent_info *ret_extent);

struct extent_stats {
    uint64_t capacity, occupied, free_bytes, largest_free, revision;
    uint32_t extents, free_runs, max_extents;
};
void extent_get_stats(const struct extent_arena *arena, struct extent_stats *ret_stats);

/* ---- recipes ---------------------------------------------------------------------------- */

struct extent_drop {
    extent_id id;
    uint32_t first, pages;
}; /* pages of one extent to free; pages == 0 means the whole */
struct extent_want {
    uint64_t stride;
    uint32_t pages, tag;
};
#define EXTENT_RECIPE_MAX 64
struct extent_recipe {
    uint64_t revision;
    uint32_t n_drops, n_wants;
    struct extent_drop drops[EXTENT_RECIPE_MAX];
    struct extent_want wants[EXTENT_RECIPE_MAX];
    uint64_t offsets[EXTENT_RECIPE_MAX]; /* planned, by want */
};

/* Would the wants fit, in this order, first fit, after all the drops? Fills offsets and revision of the recipe, whose
 * drops and wants the caller has set. The arena is as it was. Several drops may name one extent (disjoint ranges). */
int extent_plan(struct extent_arena *arena, struct extent_recipe *recipe);
/* Executes a planned recipe at the same revision; every allocation lands on its planned offset. ret_extents: by want.
 * Survivors of partial drops are reported through extent_next; their pages keep their bytes. */
int extent_apply(struct extent_arena *arena, const struct extent_recipe *recipe, struct extent_info *ret_extents);

/* Recomputes everything from the live extents: runs, coalescing, sums, maxima. Number of contradictions; 0 is right. */
uint32_t extent_audit(const struct extent_arena *arena);

#endif
