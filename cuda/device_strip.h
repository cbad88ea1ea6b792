/* SPDX-License-Identifier: Apache-2.0
 *
 * Moves as two-dimensional copies: what both backends do with device_moves. Pure C, no device.
 *
 * The pieces of a layer group (geom_piece) are equal stretches at constant pitches on both sides, in up to three
 * directions: over layers, over the heads of a plane (head-major), and over a run of adjacent pages with adjacent
 * packed forms (HOST-6). Each group of a run becomes strips along whichever of them gives the fewest.
 */
#ifndef KVD_CUDA_DEVICE_STRIP_H
#define KVD_CUDA_DEVICE_STRIP_H

#include "device.h"

/* rows stretches of width bytes. Pitches mean nothing where there is one row. */
struct move_strip {
    uint64_t region_offset, region_pitch;
    uint8_t *host;
    uint64_t host_pitch;
    uint64_t width, rows;
};

struct move_walk {
    const struct geom_pool_spec *spec;
    const struct device_move *moves;
    uint32_t n, n_pages, rank;
    uint64_t packed;
    uint32_t at, run;                            /* the run in work: moves[at .. at + run) */
    uint32_t group, n_groups;                    /* in work, of the pool */
    uint32_t first_piece, pieces, layers, heads; /* of the group in a page; heads: pieces of one plane */
    uint64_t strip, n_strips;                    /* of the group */
    uint32_t per_page;                           /* strips, unless they are along pages */
    enum { STRIP_LAYERS, STRIP_HEADS, STRIP_PAGES } along;
};

/* spec and moves stay the caller's, and stay, as long as the walk. The moves have been checked (device_check_moves). */
void move_walk_begin(struct move_walk *walk, const struct geom_pool_spec *spec, uint32_t n_pages, uint32_t rank,
                     const struct device_move *moves, uint32_t n);
/* The next strip; false at the end. */
bool move_walk_next(struct move_walk *walk, struct move_strip *ret_strip);

/* Zeroes the bytes of a packed page that no plane has (DEVICE_TO_HOST). */
void move_clear_padding(const struct geom_pool_spec *spec, uint8_t *host);

#endif
