/* SPDX-License-Identifier: Apache-2.0
 *
 * What the attention kernels share: the launch parameters, and the work list.
 *
 * Rows. The queries of one kv head are packed as rows r = w * G + g of an M dimension (w column, g query head of the
 * group), so that KV is read once for all of them; a row block is RB rows. A "pair" is (row block, kv head).
 *
 * Work list. Entry e = b * n_blocks + block needs pages(e) pages of every kv head. All pages of all pairs, in the order
 * (entry, head, page), are one line of T units, cut into equal shares, one a CTA: ragged batches and single long
 * sequences fill the machine alike. Grid and workspace depend on shapes and the envelope only; T is read from device
 * data (VIEW-5). A pair that lies inside one share is finished by its CTA; else every share leaves a partial result,
 * and the combine kernel merges them. A share has at most two partial pairs, its first (begun by another share) and its
 * last.
 *
 * Windows. Pages wholly behind the windows of a row block are no units: the pages of an entry begin at its first key.
 *
 * Pieces. One sequence of many columns (prefill) needs no line: its pairs are nearly alike. There CTA = piece of a
 * pair, in equal pieces of its pages, the longest pairs first: CTAs that run together are then at the same pages, which
 * they find in the L2. With one piece a pair there is nothing to merge.
 *
 * Shared prefix (cascade). Where the caller says that sequences may begin with the same pages, find_shared counts
 * these. One pass then takes the queries of all sequences as rows of one and reads the shared pages only; the ordinary
 * pass skips them. Both keep partial results, which the combine kernel merges.
 */
#ifndef KVD_CUDA_OPS_ATTENTION_PARAMS_CUH
#define KVD_CUDA_OPS_ATTENTION_PARAMS_CUH

#include <stdint.h>

#include "ops_ptx.cuh"
#include "paged_view.h"

namespace attn {

constexpr int MAX_CTAS = 480;    /* shares of the line: three a multiprocessor, on parts of up to 160 */
constexpr int MAX_PIECES = 160;  /* of a pair */
constexpr int MAX_ENTRIES = 640; /* of the work list; more are not cut (one CTA a pair) */

constexpr int MAX_ROWS = 128; /* table rows fetched ahead; more are fetched when used */

struct plane {
    const uint8_t *base;
    uint64_t head, page; /* strides, bytes; tokens of a (page, head) piece are contiguous */
};

struct params {
    plane k, v, k_scale, v_scale;
    const int32_t *tables; /* [n_logical, n_rows] */
    const int32_t *positions, *valid, *table_rows, *context;
    const uint16_t *q;
    uint16_t *out;
    uint32_t n_logical, n_rows, n_pages;
    uint32_t heads, group, w, b; /* kv heads, query heads of one, columns, sequences */
    uint32_t n_blocks;           /* row blocks of a sequence */
    uint32_t entries;            /* b * n_blocks */
    uint32_t causal;
    uint32_t cut;    /* 1: the line is cut into `shares`; 0: CTA = piece of a pair */
    uint32_t shares; /* CTAs of the attention kernel */
    uint32_t pieces; /* of a pair, where the line is not cut */
    float scale_log2;
    int32_t window; /* keys that a query sees at most; 0: all */
    uint32_t aligned;
    const float *sinks;   /* or NULL */
    float cap, cap_rate;  /* soft cap in log2 units, and 2 / cap; 0: none */
    uint32_t *line;       /* workspace: [entries + 1] units before each entry, for the combine kernel */
    uint32_t rows_kept;   /* rows of a partial result: those of a block that exist */
    float *partial;       /* workspace: [2 * shares][rows_kept][D], not yet divided by the sum */
    float *stats;         /* workspace: [2 * shares][rows_kept][2] maximum (log2) and sum */
    uint32_t keep;        /* 1: every pair leaves partial results, to be merged with those of another pass */
    const uint32_t *skip; /* workspace: leading pages that another pass reads; NULL: none */
};

/* What find_shared leaves in the workspace for the two passes behind it. */
struct shared_prefix {
    uint32_t pages;  /* that all sequences which count begin with */
    int32_t context; /* of the pass over them, which takes all columns of the batch for those of one sequence */
    int32_t row;     /* a table row that has them */
};

/* Share i of n has the units [begin(i), begin(i + 1)) of `total`. No share is empty unless all its units are spoken
 * for, so with fewer units than shares the first `total` shares have one unit each. */
__host__ __device__ __forceinline__ uint32_t share_begin(uint32_t i, uint32_t n, uint32_t total) {
    if (total < n) return i < total ? i : total;
    return (uint32_t)((uint64_t)i * total / n);
}

/* The share that holds unit u: the largest i with begin(i) <= u. */
__host__ __device__ __forceinline__ uint32_t share_of(uint32_t u, uint32_t n, uint32_t total) {
    if (total < n) return u;
    return (uint32_t)((((uint64_t)u + 1) * n - 1) / total);
}

/* Pieces that a pair of so many pages is really cut into; at least one. */
__host__ __device__ __forceinline__ uint32_t pieces_of(uint32_t pages, uint32_t pieces) {
    return pages == 0 ? 1 : pages < pieces ? pages : pieces;
}

/* Index of the partial result of a share: of the pair that an earlier share began, or of the one that it begins. */
__host__ __device__ __forceinline__ uint32_t partial_index(uint32_t share, bool begun) {
    return 2 * share + (begun ? 0 : 1);
}

/* Of a pair that lies inside one share, where it is kept as a partial result: behind those of the shares. */
__host__ __device__ __forceinline__ uint32_t whole_index(uint32_t shares, uint32_t pair) { return 2 * shares + pair; }

__device__ __forceinline__ int valid_columns(const params &p, uint32_t b) {
    const int n = p.valid ? p.valid[b] : (int)p.w;
    return n < 0 ? 0 : n > (int)p.w ? (int)p.w : n;
}

__device__ __forceinline__ uint32_t skipped_pages(const params &p) { return p.skip ? *p.skip : 0; }

/* Tables, keys and pages count from behind what is skipped. */
__device__ __forceinline__ const int32_t *table_row(const params &p, uint32_t row) {
    return p.tables + (uint64_t)(row < p.n_rows ? row : 0) * p.n_logical + skipped_pages(p);
}

/* Keys that column w of sequence b sees, clamped to what the table can name. */
__device__ __forceinline__ int key_limit(const params &p, uint32_t b, uint32_t w, int valid) {
    const int64_t n = p.causal ? (int64_t)p.positions[(uint64_t)b * p.w + w] + 1 : (int64_t)p.context[b] + valid;
    const int64_t most = (int64_t)p.n_logical * KVD_PAGE_TOKENS;
    return max((int)(n < 0 ? 0 : n > most ? most : n) - (int)(skipped_pages(p) * KVD_PAGE_TOKENS), 0);
}

/* Keys that row block `block` of rb rows of sequence b needs: those that its last valid row sees; 0 without one. */
__device__ __forceinline__ uint32_t keys_of(const params &p, uint32_t b, uint32_t block, uint32_t rb) {
    const int valid = valid_columns(p, b);
    const uint32_t first = block * rb / p.group;
    if ((int)first >= valid) return 0;
    uint32_t last = (block * rb + rb - 1) / p.group;
    if ((int)last >= valid) last = (uint32_t)valid - 1;
    return (uint32_t)key_limit(p, b, last, valid);
}

__device__ __forceinline__ uint32_t pages_for(uint32_t keys) { return (keys + KVD_PAGE_MASK) >> KVD_PAGE_SHIFT; }

/* First key that column w of sequence b sees. */
__device__ __forceinline__ int first_key(const params &p, uint32_t b, uint32_t w) {
    if (p.window == 0) return 0;
    const int32_t at = p.positions[(uint64_t)b * p.w + w];
    return p.aligned ? at - at % p.window : max(at - p.window + 1, 0);
}

/* First key that any row of a row block sees, which is its first row's; no more than `keys`. */
__device__ __forceinline__ uint32_t first_key_of(const params &p, uint32_t b, uint32_t block, uint32_t rb,
                                                 uint32_t keys) {
    return keys == 0 ? 0 : min((uint32_t)max(first_key(p, b, block * rb / p.group), 0), keys - 1);
}

/* Pages that hold keys [from, keys). */
__device__ __forceinline__ uint32_t pages_between(uint32_t from, uint32_t keys) {
    return pages_for(keys) - (from >> KVD_PAGE_SHIFT);
}

/* The same for a row block. */
__device__ __forceinline__ uint32_t pages_of(const params &p, uint32_t b, uint32_t block, uint32_t rb) {
    const uint32_t keys = keys_of(p, b, block, rb);
    return pages_between(first_key_of(p, b, block, rb, keys), keys);
}

/* Logit of the sink of a query head in log2 units; minus infinity where there is none. */
__device__ __forceinline__ float sink_of(const params &p, uint32_t q_head) {
    return p.sinks ? p.sinks[q_head] * 1.44269504088896341f : -INFINITY;
}

/* Soft cap of a score in log2 units: cap * tanh(x / cap), within 2^-21 of the cap. */
__device__ __forceinline__ float cap_softly(const params &p, float x) {
    return p.cap - __fdividef(2.0f * p.cap, 1.0f + ptx::exp2(x * p.cap_rate));
}

} /* namespace attn */

#endif
