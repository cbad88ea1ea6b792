/* SPDX-License-Identifier: Apache-2.0
 *
 * What the demo model computes on a GPU beside the ops over paged KV. All pointers are device pointers, tensors are as
 * in model_cpu.c: one column after the other. Each result is a sum in an order that depends on no other column and not
 * on their number, so that batches and chunks cannot change a bit. Launches are asynchronous and may be captured;
 * cudaGetLastError() tells of one that failed.
 */
#ifndef KVD_DEMO_MODEL_KERNELS_H
#define KVD_DEMO_MODEL_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "model_weights.h"

#ifdef __cplusplus
extern "C" {
#endif

/* x[i] = embedding[token[i]] */
void kernel_embed(const float *embedding, const int32_t *token, uint32_t columns, float *x, cudaStream_t stream);
/* y[i] = x[which[i]] / rms;  which == NULL: i itself */
void kernel_norm(const float *x, const int32_t *which, uint32_t columns, float *y, cudaStream_t stream);
/* y[columns][n_out] (+)= x[columns][n_in] * w.  w: panels as matmul() has them; n_in a multiple of 16 */
void kernel_matmul(const float *x, uint32_t columns, uint32_t n_in, const float *w, uint32_t n_out, int add, float *y,
                   cudaStream_t stream);
void kernel_matmul_bf16(const uint16_t *x, uint32_t columns, uint32_t n_in, const float *w, uint32_t n_out, int add,
                        float *y, cudaStream_t stream);
/* qkv[columns][MODEL_QKV] to BF16 tensors of the ops, queries and keys rotated. cos, sin: [position][128] */
void kernel_rotate(const float *qkv, const float *cos, const float *sin, const int32_t *positions, uint32_t columns,
                   uint16_t *q, uint16_t *k, uint16_t *v, cudaStream_t stream);
/* act = silu(gate) * up */
void kernel_gate(const float *gate_up, uint32_t columns, float *act, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
