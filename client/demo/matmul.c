/* SPDX-License-Identifier: Apache-2.0 */
#include "matmul.h"

#include <stddef.h>
#include <string.h>

typedef float lanes __attribute__((vector_size(32)));

/* Compiled without contraction: every clone gives the same bits. Sanitizers cannot run the resolvers of clones. */
#if defined(KVD_SANITIZE_ADDRESS) || defined(KVD_SANITIZE_THREAD) || !defined(__x86_64__) || defined(__clang__)
#define MATMUL_CLONES
#else
#define MATMUL_CLONES __attribute__((target_clones("avx2", "default")))
#endif

#define MATMUL_ROWS 4

static inline __attribute__((always_inline)) void panel_rows(const float *x, uint32_t n_in, const float *w,
                                                             uint32_t n_out, int add, float *y, const uint32_t rows) {
    lanes sum[MATMUL_ROWS][2];
    memset(sum, 0, sizeof sum);
    for (uint32_t k = 0; k < n_in; k++) {
        lanes a, b;
        memcpy(&a, w + (size_t)k * MATMUL_PANEL, sizeof a);
        memcpy(&b, w + (size_t)k * MATMUL_PANEL + 8, sizeof b);
        for (uint32_t r = 0; r < rows; r++) {
            float v = x[(size_t)r * n_in + k];
            sum[r][0] += a * v;
            sum[r][1] += b * v;
        }
    }
    for (uint32_t r = 0; r < rows; r++) {
        float *out = y + (size_t)r * n_out;
        if (add) {
            lanes old[2];
            memcpy(old, out, sizeof old);
            sum[r][0] += old[0];
            sum[r][1] += old[1];
        }
        memcpy(out, sum[r], sizeof sum[r]);
    }
}

MATMUL_CLONES void matmul(const float *x, uint32_t rows, uint32_t n_in, const float *w, uint32_t n_out, int add,
                          float *y) {
    for (uint32_t p = 0; p < n_out; p += MATMUL_PANEL) {
        const float *panel = w + (size_t)p * n_in;
        uint32_t r = 0;
        for (; r + MATMUL_ROWS <= rows; r += MATMUL_ROWS)
            panel_rows(x + (size_t)r * n_in, n_in, panel, n_out, add, y + (size_t)r * n_out + p, MATMUL_ROWS);
        for (; r < rows; r++) panel_rows(x + (size_t)r * n_in, n_in, panel, n_out, add, y + (size_t)r * n_out + p, 1);
    }
}
