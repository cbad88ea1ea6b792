/* SPDX-License-Identifier: Apache-2.0 */
#include "ops_attention_coded.cuh"
#include "ops_attention_columns.cuh"

namespace attn {

template <int S> static instance pick_instance(uint64_t rows, bool logits) {
    return rows <= 8    ? make_columns<S, 256, 1>()
           : rows <= 16 ? make_columns<S, 256, 2>()
           : logits     ? make_coded<S, 2, true>()
           : rows <= 64 ? make_coded<S, 1, false>()
                        : make_coded<S, 2, false>();
}

instance find_byte(uint32_t storage, uint64_t rows, bool logits) {
    return storage == KVD_STORAGE_INT8  ? pick_instance<KVD_STORAGE_INT8>(rows, logits)
           : storage == KVD_STORAGE_FP8 ? pick_instance<KVD_STORAGE_FP8>(rows, logits)
                                        : instance{};
}

} /* namespace attn */
