/* SPDX-License-Identifier: Apache-2.0
 *
 * The C reference ops on this machine: what a decode step, a verify of 8 columns, a prefill chunk and an append cost a
 * layer, for each profile. D 256, 8 query heads, 2 kv heads, 1,000 keys in shuffled pages. Microseconds, median.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "geometry.h"
#include "ops.h"

#define D 256u
#define HQ 8u
#define HKV 2u
#define KEYS 1000u
#define PAGES 64u
#define COLUMNS 64u
#define REPEATS 41

static uint16_t q[COLUMNS * HQ * D], out[COLUMNS * HQ * D], k[COLUMNS * HKV * D], v[COLUMNS * HKV * D];
static int32_t positions[COLUMNS], table[PAGES], rows[1];

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void noise(uint16_t *x, size_t n, float scale) {
    static uint32_t state = 1;
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = ops_f32_to_bf16(((float)(state >> 8) / 8388608.0f - 1.0f) * scale);
    }
}

static void must(int rc, const char *err) {
    if (!rc) return;
    fprintf(stderr, "bench_ops: %s\n", err);
    exit(1);
}

/* Of a layer, where pages hold none. */
static float scale_of(const PagedKVBatchLayerView *view) {
    return view->storage == KVD_STORAGE_FP8_TENSOR ? 0.003f : 0;
}

static void append(const PagedKVBatchLayerView *view, uint32_t from, uint32_t w) {
    struct kvd_ops_append op = {
        .view = *view, .k = k, .v = v, .positions = positions, .table_rows = rows, .w = w, .b = 1
    };
    op.k_scale = op.v_scale = scale_of(view);
    char err[256];
    for (uint32_t i = 0; i < w; i++) positions[i] = (int32_t)(from + i);
    must(kvd_ops_append_host(&op, err, sizeof err), err);
}

static void attend(const PagedKVBatchLayerView *view, uint32_t w) {
    struct kvd_ops_attention op = { .view = *view,
                                    .q = q,
                                    .out = out,
                                    .positions = positions,
                                    .table_rows = rows,
                                    .n_q_heads = HQ,
                                    .w = w,
                                    .b = 1,
                                    .causal = 1,
                                    .scale = 0.0625f,
                                    .k_scale = scale_of(view),
                                    .v_scale = scale_of(view) };
    char err[256];
    for (uint32_t i = 0; i < w; i++) positions[i] = (int32_t)(KEYS - w + i);
    must(kvd_ops_attention_host(&op, err, sizeof err), err);
}

static void report(const char *what, const char *profile, const PagedKVBatchLayerView *view, uint32_t w, int appends) {
    double us[REPEATS];
    for (int i = 0; i < REPEATS; i++) {
        double begin = now_us();
        if (appends) append(view, KEYS - w, w);
        else attend(view, w);
        us[i] = now_us() - begin;
    }
    qsort(us, REPEATS, sizeof us[0], by_value);
    printf("BENCH ops_%s_%s_us %.1f us\n", what, profile, us[REPEATS / 2]);
}

static void profile(enum kvd_storage storage) {
    struct geom_pool_spec spec = { .storage = storage, .n_layers = 1, .n_kv_heads = HKV, .head_dim = D, .n_ranks = 1 };
    PagedKVBatchLayerView view;
    char err[256];
    uint64_t bytes = geom_region_bytes(&spec, PAGES);
    void *pool = aligned_alloc(4096, (bytes + 4095) & ~UINT64_C(4095));
    if (!pool) exit(1);
    memset(pool, 0, bytes);
    must(geom_layer_view(&spec, PAGES, 0, 0, pool, &view, err, sizeof err), err);
    view.block_tables = table;
    view.n_logical = PAGES;
    view.n_rows = 1;
    for (uint32_t at = 0; at < KEYS; at += COLUMNS) {
        noise(k, COLUMNS * HKV * D, 0.25f);
        noise(v, COLUMNS * HKV * D, 1.0f);
        append(&view, at, KEYS - at < COLUMNS ? KEYS - at : COLUMNS);
    }
    const char *name = geom_storage_name(storage);
    report("decode", name, &view, 1, 0);
    report("verify8", name, &view, 8, 0);
    report("prefill64", name, &view, 64, 0);
    report("append64", name, &view, 64, 1);
    free(pool);
}

int main(void) {
    noise(q, COLUMNS * HQ * D, 1.0f);
    for (uint32_t i = 0; i < PAGES; i++) table[i] = (int32_t)((i * 37 + 11) % PAGES);
    for (int s = 0; s < KVD_N_STORAGE; s++) profile((enum kvd_storage)s);
    return 0;
}
