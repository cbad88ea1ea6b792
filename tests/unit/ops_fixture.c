/* SPDX-License-Identifier: Apache-2.0 */
#include "ops_fixture.h"

#include <math.h>
#include <stdlib.h>

struct geom_pool_spec fix_spec(enum kvd_storage storage, uint32_t heads, uint32_t dim, unsigned variant) {
    return (struct geom_pool_spec){ .storage = storage,
                                    .order = (enum geom_order)(variant & 1),
                                    .arrangement = (enum geom_arrangement)(variant >> 1 & 1),
                                    .n_layers = 2,
                                    .n_kv_heads = heads,
                                    .head_dim = dim,
                                    .n_ranks = 1 };
}

static void map_ids(struct fix *fix, uint32_t count, enum fix_ids ids, uint64_t *seed) {
    for (uint32_t i = 0; i < count; i++)
        fix->table[i] = (int32_t)(ids == FIX_OFFSET ? i + 3 : ids == FIX_FRAGMENTED ? 2 * i + 1 : i);
    for (uint32_t i = count; ids == FIX_SHUFFLED && i > 1; i--) {
        uint32_t j = kvt_below(seed, i);
        int32_t id = fix->table[i - 1];
        fix->table[i - 1] = fix->table[j];
        fix->table[j] = id;
    }
}

void fix_open(struct fix *fix, struct geom_pool_spec spec, uint32_t n_logical, uint32_t n_rows, enum fix_ids ids,
              uint64_t *seed) {
    uint32_t count = n_logical * n_rows, pages = ids == FIX_OFFSET       ? count + 3
                                                 : ids == FIX_FRAGMENTED ? 2 * count + 1
                                                                         : count;
    *fix = (struct fix){ .spec = spec, .bytes = geom_region_bytes(&spec, pages) };
    if (spec.storage == KVD_STORAGE_FP8_TENSOR) fix->k_scale = 0.0006f, fix->v_scale = 0.0023f;
    fix->memory = aligned_alloc(4096, (fix->bytes + 2 * FIX_GUARD + 4095) / 4096 * 4096);
    fix->region = fix->memory + FIX_GUARD;
    memset(fix->memory, 0xFF, fix->bytes + 2 * FIX_GUARD);
    fix->table = calloc(count, sizeof *fix->table);
    map_ids(fix, count, ids, seed);
    KVT_OK(geom_layer_view(&spec, pages, 0, 1, fix->region, &fix->view, NULL, 0));
    fix->view.block_tables = fix->table;
    fix->view.n_logical = n_logical;
    fix->view.n_rows = n_rows;
}

void fix_close(struct fix *fix) {
    free(fix->memory);
    free(fix->table);
}

bool fix_guards_ok(const struct fix *fix) {
    bool ok = true;
    for (uint32_t i = 0; i < FIX_GUARD; i++) ok = ok && fix->memory[i] == 0xFF && fix->region[fix->bytes + i] == 0xFF;
    return ok;
}

void fix_random(uint16_t *x, size_t n, float limit, uint64_t *seed) {
    for (size_t i = 0; i < n; i++) {
        float unit = (float)(kvt_random(seed) >> 40) * 0x1p-23f - 1.0f;
        x[i] = ops_f32_to_bf16(unit * limit);
    }
}

void fix_append(struct fix *fix, int32_t row, uint32_t begin, uint32_t end, uint64_t seed, uint16_t *k, uint16_t *v) {
    size_t column = (size_t)fix->spec.head_dim * fix->view.n_kv_heads;
    uint32_t n = end - begin;
    uint16_t *x = malloc(2 * column * n * sizeof *x);
    int32_t *positions = malloc(n * sizeof *positions);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t own = seed * 1000003 + (uint64_t)row * 77777777 + begin + i;
        positions[i] = (int32_t)(begin + i);
        fix_random(x + i * column, column, 0.25f, &own);
        fix_random(x + (n + i) * column, column, 1.0f, &own);
    }
    struct kvd_ops_append op = {
        .view = fix->view, .k = x, .v = x + n * column, .positions = positions, .table_rows = &row, .w = n, .b = 1
    };
    op.k_scale = fix->k_scale, op.v_scale = fix->v_scale;
    char err[256] = "";
    if (n && !KVT_OK(kvd_ops_append_host(&op, err, sizeof err))) printf("  %s\n", err);
    if (k) memcpy(k, op.k, n * column * sizeof *k);
    if (v) memcpy(v, op.v, n * column * sizeof *v);
    free(positions);
    free(x);
}

double fix_relative_l2(const uint16_t *a, const uint16_t *b, size_t n) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        double x = (double)ops_bf16_to_f32(a[i]), y = (double)ops_bf16_to_f32(b[i]);
        difference += (x - y) * (x - y);
        norm += y * y;
    }
    return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}
