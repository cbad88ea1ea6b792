/* SPDX-License-Identifier: Apache-2.0 */
#include "ops_attention_columns.cuh"
#include "ops_attention_rows.cuh"
#include "ops_attention_wide.cuh"

namespace attn {

/* Up to 64 rows of NVFP4 stay in the rows form: decoding keys and values into the wide tile was measured slower there. */
template <int S> static instance pick(uint64_t rows) {
    if (rows <= 8)
        return make_columns<S, 256, 1>();
    if (rows <= 16)
        return make_columns<S, 256, 2>();
    if constexpr (S == KVD_STORAGE_NVFP4) {
        if (rows <= 64)
            return rows <= 32 ? make_rows<S, 256, 2>() : make_rows<S, 256, 4>();
    }
    return rows <= 64 ? make_wide<S, 1>() : make_wide<S, 2>();
}

instance find_fp4(uint32_t storage, uint64_t rows) {
    return storage == KVD_STORAGE_NVFP4   ? pick<KVD_STORAGE_NVFP4>(rows)
           : storage == KVD_STORAGE_K8V4 ? pick<KVD_STORAGE_K8V4>(rows)
                                         : instance{};
}

} /* namespace attn */
