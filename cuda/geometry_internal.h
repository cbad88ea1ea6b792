/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the geometry room: error sentences and checked sums.
 */
#ifndef KVD_CUDA_GEOMETRY_INTERNAL_H
#define KVD_CUDA_GEOMETRY_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "geometry.h"
#include "refuse.h"

/* Wide enough for any model, small enough that a page and a packed page never overflow 64 bits:
 * 2^16 elements * 64 tokens * 2 bytes * 2^16 heads * 2^16 layers * 4 slots < 2^58. */
#define GEOM_MAX_COUNT (1u << 16)

/* Bytes that n_pages cost in a region, without alignment between dense planes: exactly linear in n_pages. */
uint64_t geom_region_linear(const struct geom_pool_spec *spec);

/* The schema of a group, whatever its format: a latent or packed row is one slot of bytes. */
int geom_group_schema(const struct geom_group *group, struct geom_schema *ret_schema, char *err, size_t err_bytes);

/* Both false on overflow; *sum is written only on success. */
static inline bool geom_add(uint64_t *sum, uint64_t more) {
    uint64_t total;
    if (__builtin_add_overflow(*sum, more, &total)) return false;
    *sum = total;
    return true;
}

static inline bool geom_align_up(uint64_t value, uint64_t align, uint64_t *ret_value) {
    uint64_t up;
    if (__builtin_add_overflow(value, align - 1, &up)) return false;
    *ret_value = up / align * align;
    return true;
}

#endif
