/* SPDX-License-Identifier: Apache-2.0 */
#include "ops_attention_block.cuh"
#include "ops_attention_columns.cuh"

namespace attn {

template <int D> static instance pick_instance(uint64_t rows) {
    return rows <= 8    ? make_columns<KVD_STORAGE_BF16, D, 1>()
           : rows <= 16 ? make_columns<KVD_STORAGE_BF16, D, 2>()
           : rows <= 64 ? make_block<D, 1>()
                        : make_block < D,
           D == 64 ? 3 : 2 > ();
}

instance find_bf16(uint32_t head_dim, uint64_t rows) {
    return head_dim == 64    ? pick_instance<64>(rows)
           : head_dim == 128 ? pick_instance<128>(rows)
           : head_dim == 256 ? pick_instance<256>(rows)
                             : instance{};
}

} /* namespace attn */
