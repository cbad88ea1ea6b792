/* SPDX-License-Identifier: Apache-2.0
 *
 * A pool of layer groups (GRP-1) for tests that go through layouts.
 */
#ifndef KVD_TESTS_GROUPS_AROUND_H
#define KVD_TESTS_GROUPS_AROUND_H

#include "geometry.h"

/* The spec's shape, with a latent group before and a packed one of the other order behind it. It must have one shape,
 * and a number of ranks that divides 4. */
static inline struct geom_pool_spec groups_around(const struct geom_pool_spec *spec) {
    const struct geom_group shape = geom_group_at(spec, 0);
    struct geom_pool_spec made = {
        .arrangement = spec->arrangement, .n_layers = shape.n_layers + 5, .n_ranks = spec->n_ranks, .n_groups = 3
    };
    made.group[0] = (struct geom_group){ .format = KVD_FORMAT_LATENT, .n_layers = 3, .n_kv_heads = 1, .row_bytes = 37 };
    made.group[1] = shape;
    made.group[2] = (struct geom_group){ .format = KVD_FORMAT_PACKED,
                                         .order = shape.order == GEOM_PAGE_MAJOR ? GEOM_HEAD_MAJOR : GEOM_PAGE_MAJOR,
                                         .n_layers = 2,
                                         .n_kv_heads = 4,
                                         .row_bytes = 64 };
    return made;
}

#endif
