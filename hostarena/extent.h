/* SPDX-License-Identifier: Apache-2.0
 *
 * Extents: the geometry of the host arena as a pure state machine. It hands out the bytes [0, capacity) as extents. An
 * extent is one packed page or one state image, so each can be given back alone; its stride is the packed size of what
 * it holds (HOST-2, HOST-3). Free neighbours join. No memory is touched here: the segment owns the bytes.
 *
 * A sum of free bytes proves nothing (HOST-4): extent_pages_fit decides on the exact geometry whether pages would fit.
 *
 * Cost: O(log n) in the number of free runs for one extent. Nothing is allocated after extent_init. The same calls give
 * the same answers. No locks: the caller serialises.
 */
#ifndef KVD_HOSTARENA_EXTENT_H
#define KVD_HOSTARENA_EXTENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXTENT_ALIGN 256u /* every offset and stride is a multiple of it (HOST-2) */

struct extent_arena;
typedef struct extent_id {
    uint64_t bits;
} extent_id; /* index | generation << 32; 0 = none */

/* Functions return 0 or one of these; after an error nothing has changed. */
enum extent_error {
    EXTENT_E_STALE = 1,      /* no such extent, or an older generation of it */
    EXTENT_E_SPACE = 2,      /* no free run is long enough, whatever the sum of free bytes is */
    EXTENT_E_DESCRIPTOR = 3, /* out of extent descriptors */
    EXTENT_E_ARGUMENT = 4    /* zero pages, or a stride or offset that is no multiple of EXTENT_ALIGN */
};

struct extent_info {
    extent_id id;
    uint64_t offset, stride; /* bytes */
    uint32_t tag;            /* the owner's, e.g. the pool */
};

/* Returns the bytes that extent_init needs for at most max_extents extents at a time; 0 on overflow. */
size_t extent_bytes(uint32_t max_extents);
/* memory: extent_bytes() bytes of the caller, kept until the arena is no longer used. A capacity of 0 is legal: every
 * allocation is refused (HOST-7). */
int extent_init(void *memory, size_t bytes, uint64_t capacity, uint32_t max_extents, struct extent_arena **ret_arena);

/* Takes n extents of `stride` bytes. They are adjacent and in order where one free run holds them all (first fit); else
 * they fill the lowest free runs, each as far as it reaches. All or nothing. ret_ids: [n]. */
int extent_take_pages(struct extent_arena *arena, uint64_t stride, uint32_t n, uint32_t tag, extent_id *ret_ids);
/* Takes exactly these bytes, for recovery from a directory. Returns EXTENT_E_SPACE when any of them is taken or
 * outside. */
int extent_allocate_at(struct extent_arena *arena, uint64_t offset, uint64_t stride, uint32_t tag,
                       struct extent_info *ret_extent);
int extent_release(struct extent_arena *arena, extent_id id);

/* Would extent_take_pages succeed for all the wants, in this order, after the drops? The drops are live extents; one
 * that is named twice counts once. The answer is exact, and the arena is left as it was. ret_placed[i] is the number of
 * pages of want i that find a place beside those of the wants before it; a descriptor is a place too. Returns false
 * with nothing placed for a stale drop or a bad stride. scratch: [sum of wants.pages] words of the caller. */
struct extent_page_want {
    uint64_t stride;
    uint32_t pages, tag;
};
bool extent_pages_fit(struct extent_arena *arena, const extent_id *drops, uint32_t n_drops,
                      const struct extent_page_want *wants, uint32_t n_wants, uint64_t *scratch, uint32_t *ret_placed);

/* Returns the offset of a live extent; UINT64_MAX where the handle is stale. */
uint64_t extent_offset(const struct extent_arena *arena, extent_id id);
int extent_look(const struct extent_arena *arena, extent_id id, struct extent_info *ret_extent);
/* Iterates live extents by slot. *cursor is 0 to begin; false at the end. */
bool extent_next(const struct extent_arena *arena, uint32_t *cursor, struct extent_info *ret_extent);

struct extent_stats {
    uint64_t capacity, occupied, free_bytes, largest_free;
    uint32_t extents, free_runs, max_extents;
};
void extent_get_stats(const struct extent_arena *arena, struct extent_stats *ret_stats);

/* Recomputes everything from the live extents: runs, joins, sums, maxima. Returns the number of contradictions. */
uint32_t extent_audit(struct extent_arena *arena);
/* The same in steps, between which the arena may change. Adds the contradictions of the next n descriptors to *bad;
 * false: those were the last. Then the counts are compared. The free runs are looked at all at once. */
void extent_audit_begin(struct extent_arena *arena);
bool extent_audit_some(struct extent_arena *arena, uint32_t n, uint32_t *bad);
uint32_t extent_audit_counts(const struct extent_arena *arena);
uint32_t extent_audit_runs(const struct extent_arena *arena);

#endif
