/* SPDX-License-Identifier: Apache-2.0
 *
 * A pool in plain memory with guard bytes around it and a block table, for tests of the reference ops.
 */
#ifndef KVD_TESTS_OPS_FIXTURE_H
#define KVD_TESTS_OPS_FIXTURE_H

#include "geometry.h"
#include "kvt.h"
#include "ops.h"

#define FIX_GUARD 4096
#define FIX_CANARY 0x7FC1 /* a BF16 NaN that no op produces */

/* How logical pages get physical ids: i, i + 3, 2i + 1, shuffled. */
enum fix_ids { FIX_IDENTITY, FIX_OFFSET, FIX_FRAGMENTED, FIX_SHUFFLED };

struct fix {
    struct geom_pool_spec spec;
    PagedKVBatchLayerView view;
    uint64_t bytes; /* of the region */
    uint8_t *memory, *region;
    int32_t *table;         /* n_rows x n_logical, all mapped */
    float k_scale, v_scale; /* of every op: for the keys and values of fix_append() with FP8_TENSOR, else 0 */
};

struct geom_pool_spec fix_spec(enum kvd_storage storage, uint32_t heads, uint32_t dim, unsigned variant);
/* The region is filled with 0xFF: as BF16, FP8 and FP16 it is NaN, so that a read of what was never written shows. */
void fix_open(struct fix *fix, struct geom_pool_spec spec, uint32_t n_logical, uint32_t n_rows, enum fix_ids ids,
              uint64_t *seed);
void fix_close(struct fix *fix);
bool fix_guards_ok(const struct fix *fix);

/* BF16 values, uniform in +-limit. */
void fix_random(uint16_t *x, size_t n, float limit, uint64_t *seed);

/* Appends random K (+-0.25) and V (+-1) at [begin, end) of a row; the same seed gives the same values for a (position,
 * row) whatever the ids. Keeps the BF16 inputs in k, v ([D, H, end - begin]) where not NULL. */
void fix_append(struct fix *fix, int32_t row, uint32_t begin, uint32_t end, uint64_t seed, uint16_t *k, uint16_t *v);

/* sqrt(sum (a-b)^2 / sum b^2) over BF16 tensors. */
double fix_relative_l2(const uint16_t *a, const uint16_t *b, size_t n);

#endif
