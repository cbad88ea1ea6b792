/* SPDX-License-Identifier: Apache-2.0
 *
 * Wide form: the block form for quantized profiles. A tile of codes is decoded once for all rows of the block into a
 * 16-bit operand in shared memory ("wide"), and warpgroup products read it there. Numbers as in ops_attention_code.cuh:
 * codes of INT8 and the values of FP8 are decoded to BF16 without their scales, which go to the FP32 scores and to P;
 * keys of FP8 to FP16 without, NVFP4 to FP16 with its scales.
 */
#ifndef KVD_CUDA_OPS_ATTENTION_WIDE_CUH
#define KVD_CUDA_OPS_ATTENTION_WIDE_CUH

#include "ops_attention_block.cuh"

namespace attn {

template <int S, int WG> struct wide_form {
    static constexpr int D = 256;
    using codes = attn::codes<S, D>;
    using tile = block_tile<D>;
    static constexpr bool ASYNC = false; /* codes are read by threads; the wide tile is fenced where it is written */
    static constexpr int TK = KVD_PAGE_TOKENS, RB = 64 * WG, WARPS = 4 * WG, GROUPS = 1, SUMS = 1,
                         PER_SM = WG == 1 ? 2 : 1;
    static constexpr int SLOT =
        (TK * max_of(codes::K_ROW + codes::K_SCALE, codes::V_ROW + codes::V_SCALE) + 127) / 128 * 128;
    static constexpr int Q_BYTES = RB * D * 2, WIDE = TK * D * 2;
    static constexpr int FIT = ((PER_SM == 2 ? 105 : 221) * 1024 - Q_BYTES - WIDE) / SLOT;
    static constexpr int NS = FIT > 6 ? 6 : FIT;
    static constexpr int Q_AT = (max_of(WIDE + NS * SLOT, RB *(D + 4) * 4) + 1023) / 1024 * 1024;
    static constexpr int SMEM = Q_AT + Q_BYTES + 1024; /* to align the start */
    static_assert(NS >= 2, "the ring needs a slot in use and one in flight");

    template <int ROW> __device__ static __forceinline__ uint32_t place(uint32_t base, int row, int chunk) {
        return piece<ROW>(base, row, chunk);
    }
    static constexpr bool Q_SPLIT = false;
    __device__ static __forceinline__ int q_place(int row, int d) { return operand_index<RB>(row, d); }
};

/* ---- decoding of 16 stored bytes into pieces of the wide tile -------------------------------------------- */

__device__ __forceinline__ uint4 widen_int8(uint32_t a, uint32_t b) {
    return make_uint4(int8_pair(__byte_perm(a, 0, 0x4140)), int8_pair(__byte_perm(a, 0, 0x4342)),
                      int8_pair(__byte_perm(b, 0, 0x4140)), int8_pair(__byte_perm(b, 0, 0x4342)));
}

__device__ __forceinline__ uint32_t widen_e4m3_bf16(uint32_t x) { return e4m3_pair(x, x >> 4); }

template <bool HALF> __device__ __forceinline__ uint4 widen_e4m3(uint32_t a, uint32_t b) {
    if constexpr (HALF)
        return make_uint4(ptx::e4m3_to_half2(a), ptx::e4m3_to_half2(a >> 16), ptx::e4m3_to_half2(b),
                          ptx::e4m3_to_half2(b >> 16));
    else
        return make_uint4(widen_e4m3_bf16(__byte_perm(a, 0, 0x1404)), widen_e4m3_bf16(__byte_perm(a, 0, 0x3424)),
                          widen_e4m3_bf16(__byte_perm(b, 0, 0x1404)), widen_e4m3_bf16(__byte_perm(b, 0, 0x3424)));
}

/* Eight nibbles; scale: twice in a register. */
__device__ __forceinline__ uint4 widen_fp4(uint32_t w, uint32_t scale) {
    const uint32_t odd = choose(w, w >> 3, 0xf0f0f0f0u), even = choose(w << 4, w << 1, 0xf0f0f0f0u);
    const uint32_t mask = 0x8e008e00u; /* a pair is byte i of even above byte i of odd, each in the upper byte */
    return make_uint4(ptx::mul_half2(__byte_perm(even, odd, 0x4000) & mask, scale),
                      ptx::mul_half2(__byte_perm(even, odd, 0x5010) & mask, scale),
                      ptx::mul_half2(__byte_perm(even, odd, 0x6020) & mask, scale),
                      ptx::mul_half2(__byte_perm(even, odd, 0x7030) & mask, scale));
}

__device__ __forceinline__ void store128(uint32_t at, const uint4 &x) {
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}

/* Decodes the TK rows of a slot into `wide`, all threads of the CTA. HALF: E4M3 goes to FP16. */
template <code KIND, bool HALF, int ROW, int TK, int THREADS>
__device__ __forceinline__ void widen(uint32_t wide, uint32_t slot) {
    constexpr int PIECES = ROW / 16, STEP = THREADS / PIECES; /* rows from one turn to the next */
    static_assert(STEP % 8 == 0 && TK % STEP == 0, "then all turns share their addresses, but for constants");
    /* Eight rows a quarter warp: all banks, both ways. */
    const int row = (int)threadIdx.x / (8 * PIECES) * 8 + (int)threadIdx.x % 8, c = (int)threadIdx.x / 8 % PIECES;
    const uint32_t from = piece<ROW>(slot, row, c), scales = slot + (uint32_t)(TK * ROW + row * 16 + c * 2);
    const uint32_t to = operand_place<TK>(wide, row, c * (KIND == CODE_FP4 ? 4 : 2)); /* piece j: to ^ j << 4 */
#pragma unroll 4
    for (int i = 0; i < TK / STEP; i++) {
        const uint4 w = ptx::load128(from + (uint32_t)(i * STEP * ROW));
        const uint32_t down = (uint32_t)(i * STEP * 128);
        if constexpr (KIND == CODE_FP4) {
            const uint32_t two = ptx::e4m3_to_half2(ptx::load16(scales + (uint32_t)(i * STEP * 16)));
            const uint32_t first = __byte_perm(two, 0, 0x1010), second = __byte_perm(two, 0, 0x3232);
            store128(to + down, widen_fp4(w.x, first));
            store128((to ^ 16u) + down, widen_fp4(w.y, first));
            store128((to ^ 32u) + down, widen_fp4(w.z, second));
            store128((to ^ 48u) + down, widen_fp4(w.w, second));
        } else if constexpr (KIND == CODE_INT8) {
            store128(to + down, widen_int8(w.x, w.y));
            store128((to ^ 16u) + down, widen_int8(w.z, w.w));
        } else {
            store128(to + down, widen_e4m3<HALF>(w.x, w.y));
            store128((to ^ 16u) + down, widen_e4m3<HALF>(w.z, w.w));
        }
    }
    ptx::fence_async();
    __syncthreads();
}

/* ---- kernel ------------------------------------------------------------------------------------------------ */

template <int S, int WG> struct wide_kernel {
    using C = wide_form<S, WG>;
    using K = typename C::codes;
    static constexpr int HEAD_DIM = C::D, TK = C::TK;

    __device__ static __forceinline__ float scale_at(uint32_t scales, int key, int row_scale, int group) {
        return ptx::half_to_float(ptx::load16(scales + (uint32_t)(key * row_scale + group * 2)));
    }

    /* Four contraction steps: 64 channels, which are one group of INT8. */
    __device__ static __forceinline__ void group_scores(float (&s)[8][4], uint32_t q, uint32_t k, int c, bool add) {
#pragma unroll
        for (int f = 0; f < 4; f++)
            wgmma::product<K::Q_HALF>(s, wgmma::along_rows(q + (uint32_t)(c * C::RB * 128 + f * 32)),
                                      wgmma::along_rows(k + (uint32_t)(c * TK * 128 + f * 32)), add || f > 0);
    }

    __device__ static __forceinline__ void scores(float (&s)[8][4], uint32_t q, uint32_t wide, uint32_t slot, int t) {
        const uint32_t scales = slot + TK * K::K_ROW;
        if constexpr (K::KC == CODE_INT8) {
            float sum[8][4];
#pragma unroll
            for (int c = 0; c < 4; c++) {
                wgmma::hold(sum);
                wgmma::begin();
                group_scores(sum, q, wide, c, false);
                wgmma::finish();
                wgmma::hold(sum);
#pragma unroll
                for (int i = 0; i < 16; i++) {
                    const int n = i / 2, e = i % 2;
                    const float f = scale_at(scales, n * 8 + 2 * t + e, K::K_SCALE, c);
                    s[n][e] = (c ? s[n][e] : 0.0f) + f * sum[n][e];
                    s[n][2 + e] = (c ? s[n][2 + e] : 0.0f) + f * sum[n][2 + e];
                }
            }
            return;
        }
        wgmma::hold(s);
        wgmma::begin();
#pragma unroll
        for (int c = 0; c < 4; c++) group_scores(s, q, wide, c, c > 0);
        wgmma::finish();
        wgmma::hold(s);
        if constexpr (K::KC == CODE_FP8) {
#pragma unroll
            for (int i = 0; i < 16; i++) {
                const int n = i / 2, e = i % 2;
                const float f = scale_at(scales, n * 8 + 2 * t + e, K::K_SCALE, 0);
                s[n][e] *= f;
                s[n][2 + e] *= f;
            }
        }
    }

    /* A fragments of P, times the value scales of a group where they are not in the wide tile. */
    __device__ static __forceinline__ void weights(uint4 (&a)[4], const float (&p)[8][4], uint32_t slot, int t,
                                                   int group) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float f[4] = { 1.0f, 1.0f, 1.0f, 1.0f };
            if constexpr (K::VC != CODE_FP4) {
#pragma unroll
                for (int j = 0; j < 4; j++)
                    f[j] = scale_at(slot + TK * K::V_ROW, (2 * i + j / 2) * 8 + 2 * t + j % 2, K::V_SCALE, group);
            }
            const float(&x)[4] = p[2 * i], (&y)[4] = p[2 * i + 1];
            a[i] = make_uint4(ptx::pack<K::P_HALF>(x[0] * f[0], x[1] * f[1]),
                              ptx::pack<K::P_HALF>(x[2] * f[0], x[3] * f[1]),
                              ptx::pack<K::P_HALF>(y[0] * f[2], y[1] * f[3]),
                              ptx::pack<K::P_HALF>(y[2] * f[2], y[3] * f[3]));
        }
    }

    __device__ static __forceinline__ void values(float (&o)[32][4], const float (&p)[8][4], uint32_t wide,
                                                  uint32_t slot, int t) {
        uint4 a[4];
        if constexpr (K::VC == CODE_INT8) {
#pragma unroll
            for (int c = 0; c < 4; c++) {
                float(&part)[8][4] = *(float(*)[8][4]) & o[c * 8];
                weights(a, p, slot, t, c);
                wgmma::hold(part);
                wgmma::begin();
#pragma unroll
                for (int i = 0; i < 4; i++)
                    wgmma::product<false>(part, a[i],
                                          wgmma::across_rows(wide + (uint32_t)(c * TK * 128 + i * 16 * 128), TK * 128));
                wgmma::finish();
                wgmma::hold(part);
            }
            return;
        }
        weights(a, p, slot, t, 0);
        wgmma::hold(o);
        wgmma::begin();
#pragma unroll
        for (int i = 0; i < 4; i++)
            wgmma::product<K::P_HALF>(o, a[i], wgmma::across_rows(wide + (uint32_t)(i * 16 * 128), TK * 128));
        wgmma::finish();
        wgmma::hold(o);
    }

    __device__ static __forceinline__ void run(const params &p, const segment &s, uint8_t *smem, control<C> &ctl,
                                               bool whole, uint32_t to) {
        const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, t = lane & 3;
        const uint32_t wide = ptx::smem_address(smem), q = wide + C::Q_AT + (uint32_t)(warp >> 2) * 64 * 128;
        __syncthreads(); /* the segment before is stored */
        ring<C> ring(p, wide + C::WIDE, lane, warp);
        ring.start(s, 0);
        if (threadIdx.x == 0) ctl.lowest = INT32_MAX;
        __syncthreads();
        load_queries<C, C::D>(p, s, (uint16_t *)(smem + C::Q_AT), ctl, warp, lane);
        ptx::fence_async();
        __syncthreads();
        rows16<C> rows;
        rows.start(ctl, warp * 16 + (lane >> 2));
        const int lowest = ctl.lowest;
        for (int tile = 0; tile < ring.n_tiles; tile++) {
            float x[8][4];
            const uint32_t k = ring.take(0);
            widen<K::KC, true, K::K_ROW, TK, C::WARPS * 32>(wide, k);
            scores(x, q, wide, k, t);
            const int key0 = (int)s.first * KVD_PAGE_TOKENS + tile * TK;
            rows.softmax(x, key0, key0 + TK > lowest, t);
            const uint32_t v = ring.take(0); /* its barrier: every warp is done with the keys in the wide tile */
            if (key0 + TK > (int)s.keys) ring.clear_values(v, (int)s.keys - key0, 0);
            widen<K::VC, false, K::V_ROW, TK, C::WARPS * 32>(wide, v);
            values(rows.o, x, wide, v, t);
        }
        ptx::copy_wait<0>();
        merge_rows<C, C::D>(rows, ctl, (float *)smem, warp * 16);
        store_rows<C, C::D>(p, s, ctl, (const float *)smem, whole, to);
    }
};

template <int S, int WG>
__global__ void __launch_bounds__(128 * WG, (wide_form<S, WG>::PER_SM))
    attention_wide(const __grid_constant__ params p) {
    extern __shared__ uint8_t smem[];
    walk_share<wide_kernel<S, WG>>(p, (uint8_t *)(((uintptr_t)smem + 1023) & ~(uintptr_t)1023));
}

template <int S, int WG> instance make_wide() {
    using C = wide_form<S, WG>;
    static_assert(fits<C>(), "fewer CTAs a multiprocessor than planned");
    return { (const void *)attention_wide<S, WG>, C::SMEM, C::RB, C::PER_SM, 128 * WG };
}

} /* namespace attn */

#endif
