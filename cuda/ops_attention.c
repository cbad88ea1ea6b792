/* SPDX-License-Identifier: Apache-2.0
 *
 * Reference attention over paged KV: an FP64 oracle, and an FP32 form with an online softmax.
 *
 * The FP32 form takes keys in absolute tiles of one page. For one query head, every floating-point operation depends on
 * that query and its keys alone; queries are only walked side by side so that a decoded tile serves all of them. Hence
 * the result is the same to the bit for any batch, W, order of rows, or page ids, and on any machine (no fused
 * multiply-add, own exponential).
 */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ops.h"
#include "ops_internal.h"

#define TILE KVD_PAGE_TOKENS
#define LANES 8
#define BLOCK 32 /* query heads walked side by side */
#define UNROLL 4 /* of them share the loads of a key */

/* Element-aligned, so that rows of any head_dim can be walked. */
typedef float v8 __attribute__((vector_size(32), aligned(4), may_alias));

/* ---- keys and values of a page ------------------------------------------------------------ */

struct half { /* K or V of a view */
    const kvd_plane_view *codes, *scales;
    uint32_t dim; /* elements of a row */
    float scale;  /* of all rows, where they have none (FP8_TENSOR) */
};

static struct half key_half(const struct kvd_ops_attention *op) {
    return (struct half){ &op->view.k, &op->view.k_scale, op->view.head_dim, op->k_scale };
}

static struct half value_half(const struct kvd_ops_attention *op) {
    return (struct half){ &op->view.v, &op->view.v_scale, ops_v_dim(&op->view), op->v_scale };
}

OPS_CLONES static void decode_bf16(const uint16_t *codes, uint32_t n, float *x) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)codes[i] << 16;
        memcpy(&x[i], &bits, sizeof bits);
    }
}

static void decode_row(struct half half, int32_t page, uint32_t head, uint32_t offset, float *x) {
    const void *codes = ops_plane_row(half.codes, page, head, offset);
    const void *scales = half.scales->dtype == KVD_DTYPE_NONE ? NULL : ops_plane_row(half.scales, page, head, offset);
    switch (half.codes->dtype) {
    case KVD_DTYPE_I8: ops_decode_int8(codes, scales, half.dim, x); break;
    case KVD_DTYPE_E4M3:
        if (scales) ops_decode_fp8(codes, scales, half.dim, x);
        else ops_decode_fp8_tensor(codes, half.scale, half.dim, x);
        break;
    case KVD_DTYPE_U8: ops_decode_nvfp4(codes, scales, half.dim, x); break;
    default: decode_bf16(codes, half.dim, x); break;
    }
}

/* Keys that column w of compact row b sees: [0, n). 0 for a column that does not count. */
static uint32_t visible(const struct kvd_ops_attention *op, uint32_t b, uint32_t w) {
    uint32_t valid = ops_valid(op->valid, op->w, b);
    if (w >= valid) return 0;
    return op->causal ? (uint32_t)op->positions[(size_t)b * op->w + w] + 1 : (uint32_t)op->context[b] + valid;
}

/* Of those, the ones behind column w's window are not seen: it sees [first, visible). */
static uint32_t first_key(const struct kvd_ops_attention *op, uint32_t b, uint32_t w) {
    return op->causal ? ops_first_key(op, (uint32_t)op->positions[(size_t)b * op->w + w]) : 0;
}

/* Heads of q and out before head h of column w of row b. */
static size_t heads_before(const struct kvd_ops_attention *op, uint32_t b, uint32_t w, uint32_t h) {
    return ((size_t)b * op->w + w) * op->n_q_heads + h;
}

static int check_all(const struct kvd_ops_attention *op, char *err, size_t err_bytes) {
    int r = ops_attention_check(op, err, err_bytes);
    return r ? r : ops_check_attention_values(op, err, err_bytes);
}

/* ---- oracle ------------------------------------------------------------------------------- */

/* One query head against [first, n): scores, softmax and sum, each in its plain form. */
static void oracle_query(const struct kvd_ops_attention *op, const int32_t *table, uint32_t first, uint32_t n,
                         uint32_t head, const uint16_t *q, uint16_t *out, double *scores, double *sum, float *row) {
    const PagedKVBatchLayerView *view = &op->view;
    uint32_t d = view->head_dim, dv = ops_v_dim(view), kv_head = head / (op->n_q_heads / view->n_kv_heads);
    double most = op->sinks ? (double)op->sinks[head] : -INFINITY, total = 0;
    for (uint32_t j = first; j < n; j++) {
        double dot = 0;
        decode_row(key_half(op), table[j >> KVD_PAGE_SHIFT], kv_head, j & KVD_PAGE_MASK, row);
        for (uint32_t i = 0; i < d; i++) dot += (double)ops_bf16_to_f32(q[i]) * (double)row[i];
        scores[j] = (double)op->scale * dot;
        if (op->soft_cap > 0) scores[j] = (double)op->soft_cap * tanh(scores[j] / (double)op->soft_cap);
        most = fmax(most, scores[j]);
    }
    memset(sum, 0, dv * sizeof *sum);
    if (op->sinks) total = exp((double)op->sinks[head] - most);
    for (uint32_t j = first; j < n; j++) {
        double p = exp(scores[j] - most);
        decode_row(value_half(op), table[j >> KVD_PAGE_SHIFT], kv_head, j & KVD_PAGE_MASK, row);
        for (uint32_t i = 0; i < dv; i++) sum[i] += p * (double)row[i];
        total += p;
    }
    for (uint32_t i = 0; i < dv; i++) out[i] = ops_f32_to_bf16((float)(sum[i] / total));
}

int kvd_ops_attention_oracle(const struct kvd_ops_attention *op, char *err, size_t err_bytes) {
    int r = check_all(op, err, err_bytes);
    if (r) return r;
    uint32_t d = op->view.head_dim, dv = ops_v_dim(&op->view);
    double *scores = calloc((size_t)op->view.n_logical * TILE + dv, sizeof *scores);
    float *row = calloc(d > dv ? d : dv, sizeof *row);
    if (!scores || !row)
        r = refuse_with(KVD_OPS_NO_MEMORY, err, err_bytes, "no memory for the scores of %u keys",
                        op->view.n_logical * TILE);
    for (uint32_t b = 0; !r && b < op->b; b++)
        for (uint32_t w = 0; w < op->w; w++)
            for (uint32_t h = 0; h < op->n_q_heads; h++) {
                uint32_t n = visible(op, b, w);
                size_t at = heads_before(op, b, w, h);
                if (n == 0) memset(op->out + at * dv, 0, dv * sizeof *op->out);
                else
                    oracle_query(op, ops_table_row(&op->view, op->table_rows[b]), first_key(op, b, w), n, h,
                                 op->q + at * d, op->out + at * dv, scores + dv, scores, row);
            }
    free(scores);
    free(row);
    return r;
}

/* ---- FP32, tile by tile ------------------------------------------------------------------- */

/* Up to BLOCK query heads that share a KV head, walked over the tiles together. Rows of q, sum and tile are `stride`
 * floats apart: head_dim rounded up to lanes and zero there, plus a cache line, so that a column of a tile does not
 * fall into a few cache sets. */
struct block {
    uint32_t count;                    /* query heads */
    uint32_t k_width, v_width, stride; /* floats */
    float *q, *sum, *tile;
    float (*scores)[TILE];
    uint32_t first[BLOCK], keys[BLOCK]; /* each sees keys [first, keys) */
    uint32_t from[BLOCK], to[BLOCK];    /* of them in the tile; 0, 0 where it has none there */
    float most[BLOCK], total[BLOCK], fade[BLOCK];
};

/* The lanes of eight partial sums, in one fixed tree. */
static inline float add_lanes(const v8 *sum) {
    float x[LANES];
    memcpy(x, sum, sizeof x);
    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

/* Two keys against UNROLL queries: eight independent sums, each over d in lanes of eight, in order. */
static inline __attribute__((always_inline)) void dots(const struct block *block, uint32_t first, uint32_t j,
                                                       uint32_t k, const uint32_t unroll) {
    const float *q = block->q + (size_t)first * block->stride;
    const float *a = block->tile + (size_t)j * block->stride, *c = block->tile + (size_t)k * block->stride;
    v8 x[UNROLL] = { { 0 } }, y[UNROLL] = { { 0 } };
    for (uint32_t i = 0; i < block->k_width; i += LANES) {
        v8 ka = *(const v8 *)(a + i), kc = *(const v8 *)(c + i);
        for (uint32_t u = 0; u < unroll; u++) {
            v8 qu = *(const v8 *)(q + (size_t)u * block->stride + i);
            x[u] += qu * ka;
            y[u] += qu * kc;
        }
    }
    for (uint32_t u = 0; u < unroll; u++) {
        block->scores[first + u][j] = add_lanes(&x[u]);
        block->scores[first + u][k] = add_lanes(&y[u]);
    }
}

/* Dots of every query with the first n keys of the tile; those that a query does not see are masked later. */
OPS_CLONES static void score_tile(const struct block *block, uint32_t n) {
    uint32_t first = 0;
    for (; first + UNROLL <= block->count; first += UNROLL)
        for (uint32_t j = 0; j < n; j += 2) dots(block, first, j, j + 1 < n ? j + 1 : j, UNROLL);
    for (; first < block->count; first++)
        for (uint32_t j = 0; j < n; j += 2) dots(block, first, j, j + 1 < n ? j + 1 : j, 1);
}

/* e^x for x <= 0 (also -inf): 2^n * e^r with |r| <= ln2/2, Taylor to degree 7: below 2 ulp. */
static inline float exp_negative(float x) {
    float bounded = x > -87.0f ? x : -87.0f;
    float shifted = bounded * 0x1.715476p+0f + 0x1.8p+23f; /* rounds to an integer in the low mantissa bits */
    float n = shifted - 0x1.8p+23f;
    float r = (bounded - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits, scale;
    memcpy(&scale, &shifted, sizeof scale);
    memcpy(&bits, &p, sizeof bits);
    bits += scale << 23;
    memcpy(&p, &bits, sizeof bits);
    float in_domain = x >= -87.0f ? p : 0.0f;
    return x != x ? x : in_domain;
}

/* cap * tanh(x / cap), with an error of 2^-23 of the cap. */
static inline float cap_softly(float x, float cap) {
    float e = exp_negative(-2.0f * fabsf(x / cap));
    return copysignf(cap * ((1.0f - e) / (1.0f + e)), x);
}

/* Scores to weights under the running maximum; fade is what earlier tiles are to be multiplied with. */
OPS_CLONES static void soften_tile(struct block *block, float softmax_scale, float soft_cap) {
    for (uint32_t i = 0; i < block->count; i++) {
        float *s = block->scores[i], most = block->most[i];
        uint32_t from = block->from[i], n = block->to[i];
        if (n == 0) continue;
        for (uint32_t j = from; j < n; j++) s[j] *= softmax_scale;
        for (uint32_t j = from; soft_cap > 0 && j < n; j++) s[j] = cap_softly(s[j], soft_cap);
        for (uint32_t j = 0; j < from; j++) s[j] = -INFINITY;
        for (uint32_t j = n; j < TILE; j++) s[j] = -INFINITY;
        for (uint32_t j = from; j < n; j++) most = s[j] > most ? s[j] : most;
        for (uint32_t j = 0; j < TILE; j++) s[j] = exp_negative(s[j] - most);
        v8 sum = { 0 };
        for (uint32_t j = 0; j < TILE; j += LANES) sum += *(const v8 *)(s + j);
        block->fade[i] = exp_negative(block->most[i] - most);
        block->total[i] = block->total[i] * block->fade[i] + add_lanes(&sum);
        block->most[i] = most;
    }
}

/* sum = sum * fade + weights . values, for `unroll` queries with the same keys, 16 elements at a time. */
static inline __attribute__((always_inline)) void weigh(const struct block *block, uint32_t first,
                                                        const uint32_t unroll) {
    uint32_t from = block->from[first], n = block->to[first];
    for (uint32_t i = 0; i < block->v_width; i += 2 * LANES) {
        v8 x[UNROLL] = { { 0 } }, y[UNROLL] = { { 0 } };
        for (uint32_t j = from; j < n; j++) {
            const float *row = block->tile + (size_t)j * block->stride + i;
            v8 va = *(const v8 *)row, vb = *(const v8 *)(row + LANES);
            for (uint32_t u = 0; u < unroll; u++) {
                x[u] += block->scores[first + u][j] * va;
                y[u] += block->scores[first + u][j] * vb;
            }
        }
        for (uint32_t u = 0; u < unroll; u++) {
            float *sum = block->sum + (size_t)(first + u) * block->stride + i;
            *(v8 *)sum = *(v8 *)sum * block->fade[first + u] + x[u];
            *(v8 *)(sum + LANES) = *(v8 *)(sum + LANES) * block->fade[first + u] + y[u];
        }
    }
}

/* A query never meets a value that is not of its own keys, not even with weight 0: the value may be anything. */
OPS_CLONES static void value_tile(const struct block *block) {
    for (uint32_t first = 0; first < block->count;) {
        uint32_t from = block->from[first], n = block->to[first], same = 1;
        while (same < UNROLL && first + same < block->count && block->from[first + same] == from &&
               block->to[first + same] == n)
            same++;
        if (same == UNROLL) weigh(block, first, UNROLL);
        else
            for (uint32_t u = 0; u < same; u++) weigh(block, first + u, 1);
        first += same;
    }
}

/* A key of the tile: zero where the query's rows are, whatever values stood there. */
static void decode_key(const struct kvd_ops_attention *op, int32_t page, uint32_t head, uint32_t offset, uint32_t width,
                       float *row) {
    uint32_t d = op->view.head_dim;
    decode_row(key_half(op), page, head, offset, row);
    if (width > d) memset(row + d, 0, (width - d) * sizeof *row);
}

/* One page: decode the keys once, score, soften, decode the values once, add. */
static void walk_tile(const struct kvd_ops_attention *op, struct block *block, uint32_t kv_head, int32_t page,
                      uint32_t begin) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < block->count; i++) {
        uint32_t left = block->keys[i] > begin ? block->keys[i] - begin : 0;
        block->to[i] = left < TILE ? left : TILE;
        block->from[i] = block->first[i] > begin ? block->first[i] - begin : 0;
        if (block->from[i] >= block->to[i]) block->from[i] = block->to[i] = 0;
        if (block->to[i] > n) n = block->to[i];
        block->fade[i] = 1; /* of a query that has no key in this tile */
    }
    for (uint32_t j = 0; j < n; j++)
        decode_key(op, page, kv_head, j, block->k_width, block->tile + (size_t)j * block->stride);
    score_tile(block, n);
    soften_tile(block, op->scale, op->soft_cap);
    for (uint32_t j = 0; j < n; j++)
        decode_row(value_half(op), page, kv_head, j, block->tile + (size_t)j * block->stride);
    value_tile(block);
}

/* Query heads first .. first + count of a KV head's group over all columns: number i is head i % group of column i /
 * group. */
static void walk_block(const struct kvd_ops_attention *op, struct block *block, uint32_t b, uint32_t kv_head,
                       uint64_t first) {
    uint32_t d = op->view.head_dim, dv = ops_v_dim(&op->view), group = op->n_q_heads / op->view.n_kv_heads;
    uint32_t least = UINT32_MAX, most = 0;
    const int32_t *table = ops_table_row(&op->view, op->table_rows[b]);
    for (uint32_t i = 0; i < block->count; i++) {
        uint32_t w = (uint32_t)((first + i) / group), h = kv_head * group + (uint32_t)((first + i) % group);
        const uint16_t *q = op->q + heads_before(op, b, w, h) * d;
        float *row = block->q + (size_t)i * block->stride;
        decode_bf16(q, d, row);
        memset(block->sum + (size_t)i * block->stride, 0, block->stride * sizeof *block->sum);
        block->first[i] = first_key(op, b, w);
        block->keys[i] = visible(op, b, w);
        block->most[i] = op->sinks ? op->sinks[h] : -INFINITY; /* a sink is a key without a value, seen first */
        block->total[i] = op->sinks ? 1 : 0;
        if (block->first[i] < least) least = block->first[i];
        if (block->keys[i] > most) most = block->keys[i];
    }
    for (uint32_t begin = least / TILE * TILE; begin < most; begin += TILE)
        walk_tile(op, block, kv_head, table[begin / TILE], begin);
    for (uint32_t i = 0; i < block->count; i++) {
        uint32_t w = (uint32_t)((first + i) / group), h = kv_head * group + (uint32_t)((first + i) % group);
        uint16_t *out = op->out + heads_before(op, b, w, h) * dv;
        const float *sum = block->sum + (size_t)i * block->stride;
        for (uint32_t e = 0; e < dv; e++) out[e] = ops_f32_to_bf16(sum[e] / block->total[i]);
    }
}

static void walk_row(const struct kvd_ops_attention *op, struct block *block, uint32_t b) {
    uint32_t group = op->n_q_heads / op->view.n_kv_heads, valid = ops_valid(op->valid, op->w, b);
    uint32_t dv = ops_v_dim(&op->view);
    uint64_t queries = (uint64_t)group * valid;
    for (uint32_t kv_head = 0; kv_head < op->view.n_kv_heads; kv_head++)
        for (uint64_t first = 0; first < queries; first += BLOCK) {
            block->count = (uint32_t)(queries - first < BLOCK ? queries - first : BLOCK);
            walk_block(op, block, b, kv_head, first);
        }
    memset(op->out + heads_before(op, b, valid, 0) * dv, 0,
           (op->w - valid) * (size_t)op->n_q_heads * dv * sizeof *op->out);
}

static uint32_t padded(uint32_t dim) { return (dim + 2 * LANES - 1) / (2 * LANES) * (2 * LANES); }

int kvd_ops_attention_host(const struct kvd_ops_attention *op, char *err, size_t err_bytes) {
    struct block block = { 0 };
    int r = check_all(op, err, err_bytes);
    if (r) return r;
    block.k_width = padded(op->view.head_dim);
    block.v_width = padded(ops_v_dim(&op->view));
    block.stride = (block.k_width > block.v_width ? block.k_width : block.v_width) + 2 * LANES;
    /* Zeroed once: what lies between head_dim and width of a query stays zero. */
    size_t floats = (size_t)(2 * BLOCK + TILE) * block.stride + BLOCK * TILE;
    float *memory = calloc(floats, sizeof *memory);
    if (!memory)
        return refuse_with(KVD_OPS_NO_MEMORY, err, err_bytes, "no memory for tiles of head_dim %u", op->view.head_dim);
    block.q = memory;
    block.sum = block.q + (size_t)BLOCK * block.stride;
    block.tile = block.sum + (size_t)BLOCK * block.stride;
    block.scores = (float(*)[TILE])(void *)(block.tile + (size_t)TILE * block.stride);
    for (uint32_t b = 0; b < op->b; b++) walk_row(op, &block, b);
    free(memory);
    return 0;
}
