/* SPDX-License-Identifier: Apache-2.0 */
#include "ops_attention_coded.cuh"

namespace attn {

template <int S> static instance pick_instance(uint32_t head_dim, uint64_t rows, bool logits) {
    return head_dim == 64    ? pick_quantized<S, 64>(rows, logits)
           : head_dim == 128 ? pick_quantized<S, 128>(rows, logits)
           : head_dim == 256 ? pick_quantized<S, 256>(rows, logits)
                             : instance{};
}

instance find_fp4(uint32_t storage, uint32_t head_dim, uint64_t rows, bool logits) {
    return storage == KVD_STORAGE_NVFP4  ? pick_instance<KVD_STORAGE_NVFP4>(head_dim, rows, logits)
           : storage == KVD_STORAGE_K8V4 ? pick_instance<KVD_STORAGE_K8V4>(head_dim, rows, logits)
                                         : instance{};
}

} /* namespace attn */
