/* SPDX-License-Identifier: Apache-2.0
 *
 * Ops over paged KV: append and attention. C reference implementations (this header) define the bytes and
 * the numbers; the CUDA kernels (ops_cuda.h) must give identical bytes for append and meet VIEW-6 for attention.
 *
 * Dense tensors are BF16 (uint16_t bits), first extent contiguous, head_dim fastest:
 *     q, out: [D, n_q_heads, W, B]      k, v: [D, n_kv_heads, W, B]
 * W = query columns a sequence (1 = decode, up to 16 = speculative verify, more = prefill chunk, any W when B == 1).
 * positions: I32 [W, B] cache ordinals of the columns, consecutive in a row.   valid: I32 [B] columns that count, or
 * NULL = W. table_rows: I32 [B], the row of the table matrix for compact row b; for a single layer view make a batch
 * view of one row.
 *
 * Errors: 0, or OPS_E_INVALID with a sentence (the reference attention also -ENOMEM); the wrapper checks everything
 * that it can without reading device data (VIEW-3); the caller guarantees mapping, read domain, complete writes and
 * stable rows. Threads: pure functions of their arguments; two calls that write the same page are the caller's race.
 */
#ifndef KVD_CUDA_OPS_H
#define KVD_CUDA_OPS_H

#include <stddef.h>
#include <stdint.h>

#include "paged_view.h"

#ifdef __cplusplus
extern "C" {
#endif

enum ops_error {
    OPS_E_INVALID = 1, /* an argument: the same call never succeeds */
    OPS_E_LAUNCH = 2   /* CUDA refused the launch of a good call; the sentence has its words (CUDA ops only) */
};

/* ---- codecs of one row (reference-exact; GEOM-9) ------------------------------------------- */

/* Encodes one row of n BF16 elements. codes/scales: as the schema says for the slot. n is 256 except BF16. */
void ops_encode_bf16(const uint16_t *x, uint32_t n, uint16_t *codes);
void ops_encode_int8(const uint16_t *x, int8_t codes[256], uint16_t scales[4]);
void ops_encode_fp8(const uint16_t *x, uint8_t codes[256], uint16_t scale[1]);
void ops_encode_nvfp4(const uint16_t *x, uint8_t codes[128], uint8_t scales[16]);
/* Decodes one stored row to FP32 (exact products as the reference defines them). */
void ops_decode_int8(const int8_t codes[256], const uint16_t scales[4], float *x);
void ops_decode_fp8(const uint8_t codes[256], const uint16_t scale[1], float *x);
void ops_decode_nvfp4(const uint8_t codes[128], const uint8_t scales[16], float *x);

/* Scalar conversions, exposed for tests and for the demo model. RNE everywhere; E4M3FN saturates to finite. */
float ops_bf16_to_f32(uint16_t bits);
uint16_t ops_f32_to_bf16(float x);
float ops_f16_to_f32(uint16_t bits);
uint16_t ops_f32_to_f16(float x);
float ops_e4m3_to_f32(uint8_t bits);
uint8_t ops_f32_to_e4m3(float x);
uint8_t ops_f32_to_e2m1(float x); /* 4 bits */
float ops_e2m1_to_f32(uint8_t nibble);

/* ---- append -------------------------------------------------------------------------------- */

struct ops_append {
    PagedKVBatchLayerView view;
    const uint16_t *k, *v;     /* [D, H, W, B] */
    const int32_t *positions;  /* [W, B] */
    const int32_t *valid;      /* [B] or NULL */
    const int32_t *table_rows; /* [B] */
    uint32_t w, b;
};
/* Writes every code and scale byte of every addressed (token, head); nothing else changes. Columns past valid are not
 * written; a column whose block is unmapped (-1) or outside the table is skipped on the GPU and refused here. */
int ops_append_ref(const struct ops_append *op, char *err, size_t err_bytes);

/* ---- attention ------------------------------------------------------------------------------ */

struct ops_attention {
    PagedKVBatchLayerView view;
    const uint16_t *q;
    uint16_t *out;
    const int32_t *positions;  /* [W, B]: query column at position p attends keys [0, p] (causal) */
    const int32_t *valid;      /* [B] or NULL */
    const int32_t *table_rows; /* [B] */
    const int32_t
        *context;       /* non-causal only: [B] committed context length; keys [0, context) plus the W block columns */
    uint32_t n_q_heads; /* multiple of n_kv_heads; kv head of q head h is h / (n_q_heads / n_kv_heads) */
    uint32_t w, b;
    uint32_t causal; /* 1; 0 = draft context attention: every valid column sees [0, context + valid) */
    float scale;     /* softmax scale, normally 1/sqrt(D) */
};
/* FP64 oracle on stored codes (VIEW-6). Columns past valid are exactly zero. */
int ops_attention_oracle(const struct ops_attention *op, char *err, size_t err_bytes);
/* The same in FP32 with an online softmax, fast enough for the demo; reads pages directly, no gather (VIEW-4). Its
 * result for a query depends only on that query's keys: not on batch, W, or page ids. */
int ops_attention_ref(const struct ops_attention *op, char *err, size_t err_bytes);

/* The checks of VIEW-3, shared by the CPU and the CUDA wrappers. */
int ops_append_check(const struct ops_append *op, char *err, size_t err_bytes);
int ops_attention_check(const struct ops_attention *op, char *err, size_t err_bytes);

#ifdef __cplusplus
}
#endif
#endif
