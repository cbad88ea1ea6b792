/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA ops over paged KV (see ops.h for tensors and meaning). All pointers in the op structs are device pointers.
 *
 * Launches are asynchronous on `stream`, allocate nothing, read no device value on the host, and are safe under CUDA
 * Graph capture: grid and workspace depend on shapes and on max_context only, so that a captured graph can be replayed
 * with other table contents, positions, valid counts and row selectors (VIEW-5). They may be placed on the machine
 * before the kernel ahead of them in the stream has ended (programmatic dependent launch), and wait for it there.
 *
 * Attention takes BF16 at head_dim 64, 128 and 256 and the quantized profiles at 256; append takes all that ops.h
 * allows. Any ratio of query heads to kv heads. Kernels are built for sm_90 (Hopper). What stands in a page after the
 * last key that a launch sees never reaches a result, whatever its bytes.
 *
 * Errors: OPS_E_INVALID with a sentence, nothing launched; OPS_E_LAUNCH with CUDA's words where it refused the launch.
 */
#ifndef KVD_CUDA_OPS_CUDA_H
#define KVD_CUDA_OPS_CUDA_H

#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cudaStream_t, opaque here so that C code can include this header without CUDA. */
typedef void *ops_stream;

int ops_append_cuda(const struct ops_append *op, ops_stream stream, char *err, size_t err_bytes);

/* max_context: the largest number of keys that any row of the batch will have during this launch or any replay of it
 * (an envelope, not a mask). Workspace bytes are a function of shapes and max_context (never larger than a fixed bound
 * times B * W * n_q_heads), aligned 256; 0 where none is needed. */
size_t ops_attention_workspace(const struct ops_attention *op, uint32_t max_context);
int ops_attention_cuda(const struct ops_attention *op, uint32_t max_context, void *workspace, size_t workspace_bytes,
                       ops_stream stream, char *err, size_t err_bytes);

#ifdef __cplusplus
}
#endif
#endif
