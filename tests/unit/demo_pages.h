/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages for the demo's engine without a kvd: regions and block tables in this process, in the geometry of a real store,
 * with page ids dealt in a random order. Built with DEMO_CUDA they are in pinned memory, for host and GPU.
 */
#ifndef DEMO_PAGES_H
#define DEMO_PAGES_H

#include "engine.h"
#include "geometry.h"

#define DEMO_PAGES_ROWS 4
#define DEMO_PAGES_ENTRIES 16 /* L: contexts of 1024 tokens */
#define DEMO_PAGES_PAGES (DEMO_PAGES_ROWS * DEMO_PAGES_ENTRIES)

struct demo_pages {
    struct geom_pool_spec spec[ENGINE_POOLS];
    uint8_t *region[ENGINE_POOLS];
    uint64_t bytes[ENGINE_POOLS];
    int32_t (*table[ENGINE_POOLS])[DEMO_PAGES_ENTRIES]; /* [DEMO_PAGES_ROWS] */
    int32_t ids[ENGINE_POOLS][DEMO_PAGES_PAGES];        /* shuffled; row r owns ids[r * L ..) */
};

/* Fresh pages for an engine (n_pools 1 or 2, K = window): sets its views. All entries are -1; bytes are noise. */
void demo_pages_init(struct demo_pages *pages, enum kvd_storage storage, struct engine *engine, uint32_t n_pools,
                     uint32_t window, uint64_t seed);
void demo_pages_free(struct demo_pages *pages);
/* Maps the first n_tokens of a row in both pools, unmaps the rest, and says so to the lane. */
void demo_pages_map(struct demo_pages *pages, struct engine *engine, struct engine_lane *lane, uint32_t n_tokens);
/* Address of element 0 of a row of K or V. */
uint8_t *demo_pages_at(const struct demo_pages *pages, const struct engine *engine, uint32_t row, uint32_t layer,
                       uint32_t position, uint32_t head, bool value);

#endif
