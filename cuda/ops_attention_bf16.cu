/* SPDX-License-Identifier: Apache-2.0 */
#include "ops_attention_block.cuh"
#include "ops_attention_columns.cuh"

namespace attn {

template <int D, bool LOGITS> static instance pick_block(uint64_t rows) {
    constexpr int WG = D == 64 ? 3 : 2;
    return rows <= 64 ? make_block<D, 1, LOGITS>() : make_block<D, WG, LOGITS>();
}

template <int D> static instance pick_instance(uint64_t rows, bool logits) {
    return rows <= 8    ? make_columns<KVD_STORAGE_BF16, D, 1>()
           : rows <= 16 ? make_columns<KVD_STORAGE_BF16, D, 2>()
           : logits     ? pick_block<D, true>(rows)
                        : pick_block<D, false>(rows);
}

instance find_bf16(uint32_t head_dim, uint64_t rows, bool logits) {
    return head_dim == 64    ? pick_instance<64>(rows, logits)
           : head_dim == 128 ? pick_instance<128>(rows, logits)
           : head_dim == 256 ? pick_instance<256>(rows, logits)
                             : instance{};
}

} /* namespace attn */
