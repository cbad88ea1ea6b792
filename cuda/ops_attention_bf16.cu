/* SPDX-License-Identifier: Apache-2.0 */
#include "ops_attention_kernel.cuh"

namespace attn {

template <int D> static instance pick(int mt) {
    return mt == 1 ? make_instance<KVD_STORAGE_BF16, D, 1>()
           : mt == 2 ? make_instance<KVD_STORAGE_BF16, D, 2>()
                     : make_instance<KVD_STORAGE_BF16, D, 4>();
}

instance find_bf16(uint32_t head_dim, int mt) {
    return head_dim == 64 ? pick<64>(mt) : head_dim == 128 ? pick<128>(mt) : head_dim == 256 ? pick<256>(mt) : instance{};
}

} /* namespace attn */
