/* SPDX-License-Identifier: Apache-2.0 */
#include "ops_attention_columns.cuh"
#include "ops_attention_rows.cuh"

namespace attn {

template <int S> static instance pick(uint64_t rows) {
    return rows <= 8    ? make_columns<S, 256, 1>()
           : rows <= 16 ? make_columns<S, 256, 2>()
           : rows <= 32 ? make_rows<S, 256, 2>()
                        : make_rows<S, 256, 4>();
}

instance find_fp4(uint32_t storage, uint64_t rows) {
    return storage == KVD_STORAGE_NVFP4   ? pick<KVD_STORAGE_NVFP4>(rows)
           : storage == KVD_STORAGE_K8V4 ? pick<KVD_STORAGE_K8V4>(rows)
                                         : instance{};
}

} /* namespace attn */
