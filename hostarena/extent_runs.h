/* SPDX-License-Identifier: Apache-2.0
 *
 * Free runs of the arena: disjoint, never adjacent, ordered by offset, found first-fit. A treap over offsets whose
 * nodes also know the longest run below them, so that first fit, take and give are O(log n). Priorities are a hash of
 * the offset: the shape depends on the contents alone.
 */
#ifndef KVD_HOSTARENA_EXTENT_RUNS_H
#define KVD_HOSTARENA_EXTENT_RUNS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct run_node {
    uint64_t offset, bytes, longest; /* longest: over this subtree */
    uint32_t left, right;            /* index, RUN_NONE */
};
#define RUN_NONE UINT32_MAX

struct runs {
    struct run_node *nodes;             /* [limit] */
    uint32_t limit, used, root, unused; /* unused: head of the list of free nodes, linked by left */
    uint64_t free_bytes;
};

void runs_init(struct runs *runs, struct run_node *nodes, uint32_t limit);
/* Adds [offset, offset + bytes), which must not touch a free byte; joins both neighbours. */
void runs_give(struct runs *runs, uint64_t offset, uint64_t bytes);
/* Removes [offset, offset + bytes) if all of it is free. */
bool runs_take(struct runs *runs, uint64_t offset, uint64_t bytes);
/* Lowest offset of a run of at least `bytes`; false if there is none. */
bool runs_first_fit(const struct runs *runs, uint64_t bytes, uint64_t *ret_offset);
/* The same, with the length of that run. */
bool runs_first_run(const struct runs *runs, uint64_t bytes, uint64_t *ret_offset, uint64_t *ret_bytes);
/* How many of n pieces of `bytes` the runs hold, each piece in one run. Looks at no more runs than it needs and passes
 * over those that are too short. */
uint32_t runs_count(const struct runs *runs, uint64_t bytes, uint32_t n);
uint64_t runs_longest(const struct runs *runs);
/* Walks in order of offset: the first run at or after *cursor; advances it past that run. */
bool runs_next(const struct runs *runs, uint64_t *cursor, uint64_t *ret_offset, uint64_t *ret_bytes);
/* Order, adjacency, heap property, longest and sums: number of contradictions. */
uint32_t runs_audit(const struct runs *runs);

#endif
