/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention: the oracle against a plain dense computation, the FP32 form against the oracle (VIEW-6), bit-identity over
 * batch, W, page ids, order and arrangement, and what a wrapper refuses.
 */
#include <math.h>
#include <stdlib.h>

#include "ops_fixture.h"

static char err[256];

/* VIEW-6: relative L2 against the FP64 oracle on the stored codes. */
static const double limits[KVD_N_STORAGE] = { 2.8e-3, 3.15e-3, 1.2e-2, 1.5e-2, 1.5e-2, 1.2e-2 };

/* One call with its tensors; out starts as canaries and has a guard behind it. */
struct call {
    struct kvd_ops_attention op;
    uint16_t *q, *out;
    int32_t *positions;
    size_t n;
};

static void call_open(struct call *c, const struct fix *fix, uint32_t q_heads, uint32_t w, uint32_t b,
                      const int32_t *starts, const int32_t *valid, const int32_t *rows, uint64_t seed) {
    size_t column = (size_t)fix->spec.head_dim * q_heads;
    *c = (struct call){ .n = column * w * b };
    c->q = malloc(c->n * 2);
    c->out = malloc((c->n + 64) * 2);
    c->positions = malloc(w * b * sizeof *c->positions);
    for (size_t i = 0; i < c->n + 64; i++) c->out[i] = FIX_CANARY;
    for (uint32_t i = 0; i < b; i++)
        for (uint32_t j = 0; j < w;
             j++) { /* a query is named by row and position, so that other cuts meet the same one */
            uint64_t own = seed * 31 + (uint64_t)rows[i] * 1000003 + (uint64_t)(starts[i] + (int32_t)j) * 7919;
            fix_random(c->q + (i * w + j) * column, column, 1.0f, &own);
            c->positions[i * w + j] = starts[i] + (int32_t)j;
        }
    c->op = (struct kvd_ops_attention){ .view = fix->view,
                                        .q = c->q,
                                        .out = c->out,
                                        .positions = c->positions,
                                        .valid = valid,
                                        .table_rows = rows,
                                        .n_q_heads = q_heads,
                                        .w = w,
                                        .b = b,
                                        .causal = 1,
                                        .scale = 1 / sqrtf((float)fix->spec.head_dim),
                                        .k_scale = fix->k_scale,
                                        .v_scale = fix->v_scale };
}

static void call_close(struct call *c) {
    for (int i = 0; i < 64; i++) KVT_EQ(c->out[c->n + (size_t)i], FIX_CANARY);
    free(c->q);
    free(c->out);
    free(c->positions);
}

static uint16_t *run(struct call *c, int (*attention)(const struct kvd_ops_attention *, char *, size_t)) {
    if (!KVT_OK(attention(&c->op, err, sizeof err))) printf("  %s\n", err);
    uint16_t *result = malloc(c->n * 2);
    memcpy(result, c->out, c->n * 2);
    for (size_t i = 0; i < c->n; i++) c->out[i] = FIX_CANARY;
    return result;
}

/* Both forms on one call: the limit holds, and no canary is left. */
static double compare(struct call *c, enum kvd_storage storage) {
    uint16_t *got = run(c, kvd_ops_attention_host), *want = run(c, kvd_ops_attention_oracle);
    double error = fix_relative_l2(got, want, c->n);
    uint32_t left = 0;
    for (size_t i = 0; i < c->n; i++) left += got[i] == FIX_CANARY || want[i] == FIX_CANARY;
    KVT_EQ(left, 0);
    KVT_TRUE(error <= limits[storage]);
    if (!(error <= limits[storage])) printf("  %s: relative L2 %g\n", geom_storage_name(storage), error);
    free(got);
    free(want);
    return error;
}

/* ---- the oracle --------------------------------------------------------------------------- */

/* BF16 only: dense K and V as they were given to append, in plain loops over a contiguous array. */
static void oracle_is_plain_attention(void) {
    enum { D = 48, H = 2, Q = 6, N = 150 };
    uint64_t seed = kvt_seed();
    struct fix fix;
    fix_open(&fix, fix_spec(KVD_STORAGE_BF16, H, D, 3), 3, 2, FIX_FRAGMENTED, &seed);
    static uint16_t k[N * H * D], v[N * H * D];
    fix_append(&fix, 1, 0, N, 3, k, v);
    struct call c;
    int32_t start = N - 5, row = 1;
    call_open(&c, &fix, Q, 5, 1, &start, NULL, &row, 4);
    uint16_t *out = run(&c, kvd_ops_attention_oracle);
    for (int w = 0; w < 5; w++)
        for (int h = 0; h < Q; h++) {
            double p[N], total = 0, sum[D] = { 0 };
            for (int j = 0; j <= start + w; j++) {
                double dot = 0;
                for (int d = 0; d < D; d++)
                    dot += (double)ops_bf16_to_f32(c.q[(w * Q + h) * D + d]) *
                           (double)ops_bf16_to_f32(k[(j * H + h / 3) * D + d]);
                total += p[j] = exp(dot / sqrt(D)); /* scores are small: no maximum is needed here */
            }
            for (int j = 0; j <= start + w; j++)
                for (int d = 0; d < D; d++)
                    sum[d] += p[j] / total * (double)ops_bf16_to_f32(v[(j * H + h / 3) * D + d]);
            for (int d = 0; d < D; d++) {
                double got = (double)ops_bf16_to_f32(out[(w * Q + h) * D + d]);
                KVT_NEAR(got, sum[d], fabs(sum[d]) / 256 + 1e-6);
            }
        }
    free(out);
    call_close(&c);
    fix_close(&fix);
}

/* ---- VIEW-6 ------------------------------------------------------------------------------- */

static void view_6_limits(void) {
    static const struct {
        enum kvd_storage storage;
        uint32_t dim;
    } kinds[] = { { KVD_STORAGE_BF16, 64 },        { KVD_STORAGE_BF16, 128 },       { KVD_STORAGE_BF16, 256 },
                  { KVD_STORAGE_INT8, 256 },       { KVD_STORAGE_FP8, 256 },        { KVD_STORAGE_NVFP4, 256 },
                  { KVD_STORAGE_K8V4, 256 },       { KVD_STORAGE_BF16, 80 },        { KVD_STORAGE_BF16, 3 },
                  { KVD_STORAGE_INT8, 64 },        { KVD_STORAGE_FP8, 64 },         { KVD_STORAGE_NVFP4, 64 },
                  { KVD_STORAGE_K8V4, 64 },        { KVD_STORAGE_INT8, 96 },        { KVD_STORAGE_FP8, 96 },
                  { KVD_STORAGE_NVFP4, 96 },       { KVD_STORAGE_K8V4, 96 },        { KVD_STORAGE_INT8, 128 },
                  { KVD_STORAGE_FP8, 128 },        { KVD_STORAGE_NVFP4, 128 },      { KVD_STORAGE_K8V4, 128 },
                  { KVD_STORAGE_INT8, 192 },       { KVD_STORAGE_FP8, 192 },        { KVD_STORAGE_NVFP4, 192 },
                  { KVD_STORAGE_K8V4, 192 },       { KVD_STORAGE_FP8_TENSOR, 64 },  { KVD_STORAGE_FP8_TENSOR, 80 },
                  { KVD_STORAGE_FP8_TENSOR, 128 }, { KVD_STORAGE_FP8_TENSOR, 256 }, { KVD_STORAGE_FP8_TENSOR, 3 } };
    static const int32_t positions[] = { 0, 1, 31, 32, 63, 64, 65, 127, 128 };
    uint64_t seed = kvt_seed();
    double worst = 0;
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct fix fix;
        int32_t row = 0;
        fix_open(&fix, fix_spec(kinds[i].storage, 2, kinds[i].dim, i), 3, 1, FIX_SHUFFLED, &seed);
        fix_append(&fix, 0, 0, 150, i, NULL, NULL);
        for (unsigned p = 0; p < sizeof positions / sizeof *positions; p++) {
            struct call c;
            call_open(&c, &fix, 4 * (1 + p % 4), 1 + p % 3, 1, &positions[p], NULL, &row, p);
            double error = compare(&c, kinds[i].storage);
            if (error > worst) worst = error;
            call_close(&c);
        }
        KVT_TRUE(fix_guards_ok(&fix));
        fix_close(&fix);
    }
    KVT_TRUE(worst <= 4e-4); /* FP32 sums before one BF16 rounding: far inside the contract's limits */
    printf("worst relative L2 %.3g ", worst);
}

static void view_6_long_context(void) {
    uint64_t seed = kvt_seed();
    for (unsigned s = 0; s < KVD_N_STORAGE; s++) {
        struct fix fix;
        struct call c;
        int32_t at = 16384, row = 0;
        fix_open(&fix, fix_spec((enum kvd_storage)s, 1, 256, 2), 257, 1, FIX_FRAGMENTED, &seed);
        fix_append(&fix, 0, 0, 16385, s, NULL, NULL);
        call_open(&c, &fix, 2, 1, 1, &at, NULL, &row, 1);
        compare(&c, (enum kvd_storage)s);
        call_close(&c);
        fix_close(&fix);
    }
    struct fix fix;
    struct call c;
    int32_t at = 65535, row = 0;
    fix_open(&fix, fix_spec(KVD_STORAGE_INT8, 1, 256, 2), 1024, 1, FIX_OFFSET, &seed);
    fix_append(&fix, 0, 0, 65536, 7, NULL, NULL);
    call_open(&c, &fix, 1, 1, 1, &at, NULL, &row, 1);
    compare(&c, KVD_STORAGE_INT8);
    call_close(&c);
    fix_close(&fix);
}

static void gqa_ratios(void) {
    uint64_t seed = kvt_seed();
    struct fix fix;
    int32_t at = 100, row = 0;
    fix_open(&fix, fix_spec(KVD_STORAGE_K8V4, 2, 256, 0), 2, 1, FIX_SHUFFLED, &seed);
    fix_append(&fix, 0, 0, 110, 7, NULL, NULL);
    for (uint32_t ratio = 1; ratio <= 16; ratio++) {
        struct call c;
        call_open(&c, &fix, 2 * ratio, 3, 1, &at, NULL, &row, ratio);
        compare(&c, KVD_STORAGE_K8V4);
        call_close(&c);
    }
    fix_close(&fix);
}

/* Sharp and wide score ranges: the running maximum moves, early tiles fade to nothing. */
static void softmax_extremes(void) {
    uint64_t seed = kvt_seed();
    struct fix fix;
    int32_t at = 300, row = 0;
    fix_open(&fix, fix_spec(KVD_STORAGE_BF16, 1, 64, 0), 5, 1, FIX_IDENTITY, &seed);
    fix_append(&fix, 0, 0, 310, 7, NULL, NULL);
    /* Beyond the contract's limit: FP32 dots of +-2 are good to 1e-6, which a scale of 500 makes 5e-4 of a weight. */
    static const float scales[] = { 1e-6f, 0.125f, 1, 5, 60, 500 };
    static const double most[] = { 3e-4, 3e-4, 3e-4, 3e-4, 6e-4, 1.5e-3 };
    for (unsigned i = 0; i < sizeof scales / sizeof *scales; i++) {
        struct call c;
        call_open(&c, &fix, 32, 8, 1, &at, NULL, &row, i);
        c.op.scale = scales[i];
        double error = compare(&c, KVD_STORAGE_BF16);
        KVT_TRUE(error <= most[i]);
        memset(c.q, 0, c.n * 2); /* the zero query: a plain mean of the values */
        compare(&c, KVD_STORAGE_BF16);
        call_close(&c);
    }
    fix_close(&fix);
}

/* ---- bit-identity ------------------------------------------------------------------------- */

enum { LEN = 200, ROWS = 8, HEADS = 6 };

static void fill_rows(struct fix *fix, enum kvd_storage storage, unsigned variant, enum fix_ids ids, uint64_t *seed) {
    fix_open(fix, fix_spec(storage, 2, 256, variant), 4, ROWS, ids, seed);
    for (int32_t row = 0; row < ROWS; row++) fix_append(fix, row, 0, LEN, 11, NULL, NULL);
}

/* VIEW-4, VIEW-5, INV-15: the same bits for any ids, order and arrangement of planes. */
static void view_4_ids_do_not_matter(void) {
    uint64_t seed = kvt_seed();
    static const int32_t starts[ROWS] = { 0, 31, 63, 64, 120, 126, 150, 196 }, rows[ROWS] = { 7, 0, 4, 2, 6, 1, 5, 3 };
    for (unsigned s = 0; s < KVD_N_STORAGE; s++) {
        uint16_t *first = NULL;
        size_t n = 0;
        for (unsigned kind = 0; kind < 8; kind++) {
            struct fix fix;
            struct call c;
            fill_rows(&fix, (enum kvd_storage)s, kind & 3, (enum fix_ids)(kind >> 1), &seed);
            call_open(&c, &fix, HEADS, 4, ROWS, starts, NULL, rows, 5);
            uint16_t *out = run(&c, kvd_ops_attention_host);
            n = c.n;
            if (first) KVT_EQ_MEM(out, first, n * 2);
            call_close(&c);
            fix_close(&fix);
            if (first) free(out);
            else first = out;
        }
        free(first);
    }
}

/* Decode one by one = verify of 8 = prefill chunk = a ragged batch in any order, bit for bit. */
static void batch_and_width_do_not_matter(void) {
    uint64_t seed = kvt_seed();
    enum { BASE = 58, CHUNK = 80, COLUMN = HEADS * 256 };
    static const int32_t base = BASE, zero = 0;
    for (unsigned s = 0; s < KVD_N_STORAGE; s++) {
        struct fix fix;
        struct call c;
        fill_rows(&fix, (enum kvd_storage)s, 2, FIX_SHUFFLED, &seed);
        call_open(&c, &fix, HEADS, CHUNK, 1, &base, NULL, &zero, 5);
        uint16_t *chunk = run(&c, kvd_ops_attention_host);
        call_close(&c);
        for (int32_t i = 0; i < CHUNK; i++) {
            int32_t at = BASE + i;
            call_open(&c, &fix, HEADS, 1, 1, &at, NULL, &zero, 5);
            uint16_t *one = run(&c, kvd_ops_attention_host);
            KVT_EQ_MEM(one, chunk + i * COLUMN, COLUMN * 2);
            free(one);
            call_close(&c);
        }
        for (int32_t i = 0; i < CHUNK; i += 8) {
            int32_t at = BASE + i;
            call_open(&c, &fix, HEADS, 8, 1, &at, NULL, &zero, 5);
            uint16_t *verify = run(&c, kvd_ops_attention_host);
            KVT_EQ_MEM(verify, chunk + i * COLUMN, 8 * COLUMN * 2);
            free(verify);
            call_close(&c);
        }
        /* Row 0 stands fourth, among strangers. */
        int32_t starts[5] = { 10, 190, 0, BASE + 16, 64 }, valid[5] = { 3, 10, 0, 16, 1 }, rows[5] = { 4, 2, 7, 0, 1 };
        call_open(&c, &fix, HEADS, 16, 5, starts, valid, rows, 5);
        uint16_t *batch = run(&c, kvd_ops_attention_host);
        KVT_EQ_MEM(batch + 3 * 16 * COLUMN, chunk + 16 * COLUMN, 16 * COLUMN * 2);
        free(batch);
        call_close(&c);
        free(chunk);
        fix_close(&fix);
    }
}

/* Windows, sinks and soft caps of a call; by which it is told apart below. */
static void set_logits(struct call *c, unsigned kind, const float *sinks) {
    static const uint32_t windows[] = { 1, 20, 64, 70, 130 };
    c->op.window = windows[kind % 5];
    c->op.aligned = kind / 5 % 2;
    c->op.sinks = kind % 3 ? sinks : NULL;
    c->op.soft_cap = kind % 4 == 3 ? 2.5f : 0;
}

/* VIEW-6: with windows, sinks and soft caps, too, a query's bits depend on its keys alone, and are near FP64. */
static void windows_cut_alike(void) {
    enum { BASE = 120, CHUNK = 40, COLUMN = HEADS * 256 };
    static const float sinks[HEADS] = { -3, 0, 0.5f, 2, 7, 30 };
    static const int32_t base = BASE, zero = 0;
    uint64_t seed = kvt_seed();
    for (unsigned kind = 0; kind < 2 * KVD_N_STORAGE; kind++) {
        struct fix fix;
        struct call c;
        fill_rows(&fix, (enum kvd_storage)(kind % KVD_N_STORAGE), 2, FIX_SHUFFLED, &seed);
        call_open(&c, &fix, HEADS, CHUNK, 1, &base, NULL, &zero, 5);
        set_logits(&c, kind, sinks);
        compare(&c, fix.spec.storage);
        uint16_t *chunk = run(&c, kvd_ops_attention_host);
        call_close(&c);
        for (int32_t i = 0; i < CHUNK; i += 1 + i % 3) {
            int32_t starts[3] = { 10, BASE + i, 64 }, valid[3] = { 2, 1, 0 }, rows[3] = { 4, 0, 1 };
            call_open(&c, &fix, HEADS, 2, 3, starts, valid, rows, 5);
            set_logits(&c, kind, sinks);
            uint16_t *batch = run(&c, kvd_ops_attention_host);
            KVT_EQ_MEM(batch + 2 * COLUMN, chunk + i * COLUMN, COLUMN * 2);
            free(batch);
            call_close(&c);
        }
        free(chunk);
        fix_close(&fix);
    }
}

/* The read domain ends at a query's own position: what stands behind it (here NaN and Inf of a later column) changes
 * nothing. */
static void later_keys_are_never_met(void) {
    uint64_t seed = kvt_seed();
    struct fix fix;
    struct call c;
    int32_t at = 70, row = 0;
    fix_open(&fix, fix_spec(KVD_STORAGE_BF16, 1, 64, 0), 2, 1, FIX_IDENTITY, &seed);
    fix_append(&fix, 0, 0, 80, 7, NULL, NULL);
    call_open(&c, &fix, 4, 8, 1, &at, NULL, &row, 5);
    uint16_t *clean = run(&c, kvd_ops_attention_host), poison[64];
    for (int i = 0; i < 64; i++) poison[i] = i & 1 ? 0x7F80 : 0x7FC0;
    struct kvd_ops_append op = {
        .view = fix.view, .k = poison, .v = poison, .positions = &(int32_t){ 74 }, .table_rows = &row, .w = 1, .b = 1
    };
    KVT_OK(kvd_ops_append_host(&op, err, sizeof err));
    uint16_t *dirty = run(&c, kvd_ops_attention_host);
    KVT_EQ_MEM(dirty, clean, 4 * 4 * 64 * 2); /* columns 70..73 */
    KVT_TRUE(isnan(ops_bf16_to_f32(dirty[4 * 4 * 64])));
    free(clean);
    free(dirty);
    call_close(&c);
    fix_close(&fix);
}

/* ---- ragged and non-causal ---------------------------------------------------------------- */

static void view_6_ragged_valid(void) {
    uint64_t seed = kvt_seed();
    static const int32_t rows[ROWS] = { 7, 0, 4, 2, 6, 1, 5, 3 };
    for (unsigned s = 0; s < KVD_N_STORAGE; s++) {
        struct fix fix;
        fill_rows(&fix, (enum kvd_storage)s, s & 3, FIX_FRAGMENTED, &seed);
        for (uint32_t b = 1; b <= ROWS; b++) {
            int32_t starts[ROWS], valid[ROWS];
            for (int i = 0; i < ROWS; i++) {
                starts[i] = (int32_t)kvt_below(&seed, LEN - 7);
                valid[i] = (int32_t)kvt_below(&seed, 8);
            }
            valid[b - 1] = b == 1 ? 7 : 0;
            struct call c;
            call_open(&c, &fix, 4, 7, b, starts, valid, rows, 5);
            compare(&c, (enum kvd_storage)s);
            uint16_t *out = run(&c, kvd_ops_attention_host);
            uint32_t wrong = 0;
            for (uint32_t i = 0; i < b; i++)
                for (uint32_t w = (uint32_t)valid[i]; w < 7; w++)
                    for (uint32_t e = 0; e < 4 * 256; e++)
                        wrong += out[(i * 7 + w) * 4 * 256 + e] != 0; /* exactly +0 */
            KVT_EQ(wrong, 0);
            free(out);
            call_close(&c);
        }
        fix_close(&fix);
    }
}

/* Draft context: head-major BF16, D 128, 8 heads; every valid column sees the context and the whole block. */
static void draft_context_is_not_causal(void) {
    uint64_t seed = kvt_seed();
    static const int32_t rows[2] = { 1, 0 }, contexts[][2] = { { 0, 1 }, { 63, 64 }, { 100, 120 }, { 57, 112 } };
    for (unsigned variant = 1; variant < 4; variant += 2) {
        struct fix fix;
        fix_open(&fix, fix_spec(KVD_STORAGE_BF16, 8, 128, variant), 3, 2, FIX_SHUFFLED, &seed);
        fix_append(&fix, 0, 0, 192, 7, NULL, NULL);
        fix_append(&fix, 1, 0, 192, 7, NULL, NULL);
        for (unsigned i = 0; i < sizeof contexts / sizeof *contexts; i++) {
            struct call c;
            int32_t valid[2] = { 8, 5 };
            call_open(&c, &fix, 32, 8, 2, contexts[i], valid, rows, 3);
            c.op.causal = 0;
            c.op.context = contexts[i];
            c.op.positions = NULL;
            compare(&c, KVD_STORAGE_BF16);
            uint16_t *block = run(&c, kvd_ops_attention_host);
            /* The last valid column of a causal call at context + valid - 1 sees the same keys: same bits. */
            for (int b = 0; b < 2; b++) {
                struct call last;
                int32_t at = contexts[i][b] + valid[b] - 1;
                call_open(&last, &fix, 32, 1, 1, &at, NULL, &rows[b], 3);
                uint16_t *one = run(&last, kvd_ops_attention_host);
                KVT_EQ_MEM(one, block + ((size_t)b * 8 + (size_t)valid[b] - 1) * 32 * 128, 32 * 128 * 2);
                free(one);
                call_close(&last);
            }
            free(block);
            call_close(&c);
        }
        fix_close(&fix);
    }
}

/* ---- refusals ----------------------------------------------------------------------------- */

static void view_3_bad_calls_refused(void) {
    uint64_t seed = kvt_seed();
    struct fix fix;
    struct call c;
    int32_t starts[2] = { 10, 20 }, rows[2] = { 0, 2 }, context[2] = { 10, 20 };
    fix_open(&fix, fix_spec(KVD_STORAGE_NVFP4, 2, 256, 0), 3, 3, FIX_OFFSET, &seed);
    fix_append(&fix, 0, 0, 64, 1, NULL, NULL);
    fix_append(&fix, 2, 0, 64, 1, NULL, NULL);
    call_open(&c, &fix, 4, 2, 2, starts, NULL, rows, 1);
    struct kvd_ops_attention good = c.op, op;
#define REFUSED(change, word)                                                                                          \
    do {                                                                                                               \
        op = good;                                                                                                     \
        change;                                                                                                        \
        err[0] = 0;                                                                                                    \
        KVT_EQ_I(kvd_ops_attention_host(&op, err, sizeof err), KVD_OPS_INVALID);                                       \
        KVT_HAS(err, word);                                                                                            \
        KVT_EQ_I(kvd_ops_attention_oracle(&op, err, sizeof err), KVD_OPS_INVALID);                                     \
        for (size_t i = 0; i < c.n; i++)                                                                               \
            if (c.out[i] != FIX_CANARY) KVT_EQ(i, c.n);                                                                \
    } while (0)
    REFUSED(op.n_q_heads = 3, "query heads");
    REFUSED(op.n_q_heads = 0, "query heads");
    REFUSED(op.n_q_heads = UINT32_MAX - 1, "overlaps"); /* tensors of terabytes would run into each other */
    REFUSED(op.scale = 0, "scale");
    REFUSED(op.scale = NAN, "scale");
    REFUSED(op.scale = INFINITY, "scale");
    REFUSED(op.causal = 2, "causal");
    REFUSED((op.causal = 0, op.context = rows, op.window = 5), "window");
    REFUSED(op.aligned = 1, "window");
    REFUSED((op.window = 5, op.aligned = 2), "aligned");
    REFUSED(op.soft_cap = -1, "soft cap");
    REFUSED(op.soft_cap = NAN, "soft cap");
    REFUSED(op.soft_cap = INFINITY, "soft cap");
    REFUSED(op.sinks = (const float *)(const void *)((const char *)&op.scale + 2), "sinks");
    REFUSED(op.causal = 0, "context");
    REFUSED(op.positions = NULL, "positions");
    REFUSED(op.q = NULL, "tensor q");
    REFUSED(op.out = NULL, "tensor out");
    REFUSED(op.out = c.q, "overlaps q");
    REFUSED(op.out = c.q + 100, "overlaps q");
    REFUSED(op.out = op.view.k.base, "overlaps the cache");
    REFUSED(op.view.storage = KVD_STORAGE_K8V4, "plane k");
    REFUSED(op.view.v_scale.base = NULL, "v_scale");
    REFUSED(op.w = 17, "columns");
    REFUSED(op.table_rows = NULL, "table_rows");
    int32_t far[2] = { 10, 190 }, wrong_row[2] = { 0, 3 }, negative[2] = { -1, 3 }, long_context[2] = { 0, INT32_MAX };
    REFUSED(op.table_rows = wrong_row, "table row");
    REFUSED((op.causal = 0, op.context = negative), "ordinals");
    REFUSED((op.causal = 0, op.context = long_context), "ordinals");
    int32_t bad[4] = { 10, 11, 22, 21 }, below[4] = { -2, -1, 20, 21 };
    REFUSED(op.positions = bad, "consecutive");
    REFUSED(op.positions = below, "ordinals");
    int32_t hole = fix.table[2 * 3 + 0];
    fix.table[2 * 3 + 0] = -1;
    REFUSED((void)op, "map it");
    REFUSED((op.causal = 0, op.context = context), "map it");
    int32_t behind[4] = { 10, 11, 70, 71 }; /* VIEW-3: the keys before the block are read, too */
    REFUSED(op.positions = behind, "map it");
    fix.table[2 * 3 + 0] = hole;
    fix.table[2 * 3 + 1] = -1; /* beyond every key of this call: not looked at */
    KVT_OK(kvd_ops_attention_host(&good, err, sizeof err));
    op = good;
    op.context = far;
    op.causal = 0;
    fix.table[2 * 3 + 1] = hole;
    KVT_OK(kvd_ops_attention_host(&op, err, sizeof err));
    far[1] = 191;
    KVT_EQ_I(kvd_ops_attention_host(&op, err, sizeof err), KVD_OPS_INVALID);
    KVT_EQ_I(kvd_ops_attention_host(&(struct kvd_ops_attention){ 0 }, NULL, 0), KVD_OPS_INVALID);
    call_close(&c);
    fix_close(&fix);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = {
        KVT_CASE(oracle_is_plain_attention),
        KVT_CASE(view_6_limits),
        KVT_CASE(view_6_long_context),
        KVT_CASE(gqa_ratios),
        KVT_CASE(softmax_extremes),
        KVT_CASE(view_4_ids_do_not_matter),
        KVT_CASE(batch_and_width_do_not_matter),
        KVT_CASE(windows_cut_alike),
        KVT_CASE(later_keys_are_never_met),
        KVT_CASE(view_6_ragged_valid),
        KVT_CASE(draft_context_is_not_causal),
        KVT_CASE(view_3_bad_calls_refused),
        { 0 },
    };
    return kvt_main("ops_attention", cases, argc, argv);
}
