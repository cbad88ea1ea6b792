/* SPDX-License-Identifier: Apache-2.0
 *
 * The launch of the plain form (ops_attention_plain.cu).
 */
#ifndef KVD_CUDA_OPS_ATTENTION_PLAIN_CUH
#define KVD_CUDA_OPS_ATTENTION_PLAIN_CUH

#include <cuda_runtime.h>

#include "ops_attention_code.cuh"
#include "ops_attention_params.cuh"

namespace attn {

constexpr uint32_t PLAIN_DIM_MAX = 1152; /* of K and of V: what fits in shared memory */

/* Needs no workspace and none of what a plan says; k_dim and v_dim are at most PLAIN_DIM_MAX, and row blocks, eight
 * rows each, fewer than 2^31. */
cudaError_t launch_plain(params p, uint32_t storage, uint32_t k_dim, uint32_t v_dim, cudaStream_t stream);

} /* namespace attn */

#endif
