/* SPDX-License-Identifier: Apache-2.0 */
#include "ops_attention_columns.cuh"
#include "ops_attention_rows.cuh"

namespace attn {

template <int D> static instance pick(uint64_t rows) {
    return rows <= 8    ? make_columns<KVD_STORAGE_BF16, D, 1>()
           : rows <= 16 ? make_columns<KVD_STORAGE_BF16, D, 2>()
           : rows <= 32 ? make_rows<KVD_STORAGE_BF16, D, 2>()
                        : make_rows<KVD_STORAGE_BF16, D, 4>();
}

instance find_bf16(uint32_t head_dim, uint64_t rows) {
    return head_dim == 64 ? pick<64>(rows) : head_dim == 128 ? pick<128>(rows) : head_dim == 256 ? pick<256>(rows) : instance{};
}

} /* namespace attn */
