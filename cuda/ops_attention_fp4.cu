/* SPDX-License-Identifier: Apache-2.0 */
#include "ops_attention_kernel.cuh"

namespace attn {

template <int S> static instance pick(int mt) {
    return mt == 1 ? make_instance<S, 256, 1>() : mt == 2 ? make_instance<S, 256, 2>() : make_instance<S, 256, 4>();
}

instance find_fp4(uint32_t storage, int mt) {
    return storage == KVD_STORAGE_NVFP4  ? pick<KVD_STORAGE_NVFP4>(mt)
           : storage == KVD_STORAGE_K8V4 ? pick<KVD_STORAGE_K8V4>(mt)
                                        : instance{};
}

} /* namespace attn */
