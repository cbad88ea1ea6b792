/* SPDX-License-Identifier: Apache-2.0
 *
 * Online softmax of a warp that holds 16 rows of S and O as fragments (a thread has rows g and g + 8): shared by the
 * block form and the wide form.
 */
#ifndef KVD_CUDA_OPS_ATTENTION_SOFTMAX_CUH
#define KVD_CUDA_OPS_ATTENTION_SOFTMAX_CUH

#include "ops_attention_work.cuh"

namespace attn {

template <class C> struct rows16 {
    using T = typename C::tile;
    float o[T::NO][4];
    float m[2], l[2], factor[2];
    int limit[2];

    __device__ __forceinline__ void start(const control<C> &ctl, int row) {
#pragma unroll
        for (int n = 0; n < T::NO; n++) o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0.0f;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            m[i] = NO_SCORE, l[i] = 0.0f;
            factor[i] = ctl.factor[row + 8 * i];
            limit[i] = ctl.limit[row + 8 * i];
        }
    }

    /* Turns scores into probabilities relative to the running maximum, and brings earlier sums to it. */
    __device__ __forceinline__ void softmax(float (&s)[T::NT][4], int key0, bool mask, int t) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float most = m[i];
#pragma unroll
            for (int nt = 0; nt < T::NT; nt++) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &x = s[nt][2 * i + e];
                    x *= factor[i];
                    if (mask && key0 + T::key_of(nt, t, e) >= limit[i]) x = -INFINITY;
                    most = fmaxf(most, x);
                }
            }
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
            const float change = ptx::exp2(m[i] - most);
            if (__any_sync(0xffffffffu, most > m[i])) {
                l[i] *= change;
#pragma unroll
                for (int n = 0; n < T::NO; n++) {
                    o[n][2 * i] *= change;
                    o[n][2 * i + 1] *= change;
                }
            }
            m[i] = most;
            const float zero = most - (C::codes::P_HALF ? (float)FP4_SHIFT : 0.0f);
#pragma unroll
            for (int nt = 0; nt < T::NT; nt++) {
                float p0 = ptx::exp2(s[nt][2 * i] - zero), p1 = ptx::exp2(s[nt][2 * i + 1] - zero);
                if constexpr (C::codes::VC == CODE_BF16) { /* sum what is multiplied: the weights then add up to one */
                    const uint32_t rounded = ptx::pack<false>(p0, p1);
                    p0 = ptx::bf16_low(rounded), p1 = ptx::bf16_high(rounded);
                }
                s[nt][2 * i] = p0, s[nt][2 * i + 1] = p1;
                l[i] += p0 + p1;
            }
        }
    }

    /* Sum over the four lanes of a row, without the factor that P carries. */
    __device__ __forceinline__ void finish() {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            l[i] += __shfl_xor_sync(0xffffffffu, l[i], 1);
            l[i] += __shfl_xor_sync(0xffffffffu, l[i], 2);
            if constexpr (C::codes::P_HALF) l[i] *= 1.0f / 16384.0f;
        }
    }
};

/* Outputs of a warp into shared memory, for store_rows. row0: of the block. */
template <class C, int D>
__device__ __forceinline__ void merge_rows(rows16<C> &rows, control<C> &ctl, float *to, int row0) {
    static_assert(C::GROUPS == 1 && C::SUMS == 1, "one warp has all keys of a row");
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    rows.finish();
    __syncthreads(); /* the rings are idle now: their memory takes the outputs */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int row = row0 + g + 8 * i;
        if (t == 0) ctl.m[0][row] = rows.m[i], ctl.l[0][row] = rows.l[i];
#pragma unroll
        for (int n = 0; n < C::tile::NO; n++)
            *(float2 *)(to + merge_place<D>(row, n * 8 + 2 * t)) = make_float2(rows.o[n][2 * i], rows.o[n][2 * i + 1]);
    }
    __syncthreads();
}

} /* namespace attn */

#endif
