/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows form: a warp holds 16 rows of packed queries and multiplies them with a tile of TK keys, S[16, TK] = Q K^T and
 * O[16, D] += P V, in m16n8k16 products whose A operand is Q or P. For blocks of more than 16 rows, where each of several
 * warps has its own rows. Layouts and numbers: ops_attention_code.cuh.
 */
#ifndef KVD_CUDA_OPS_ATTENTION_ROWS_CUH
#define KVD_CUDA_OPS_ATTENTION_ROWS_CUH

#include "ops_attention_softmax.cuh"

namespace attn {

template <int S, int D, int TK> struct rows_tile {
    using C = codes<S, D>;
    static constexpr code KC = C::KC, VC = C::VC;
    static constexpr int K_ROW = C::K_ROW, V_ROW = C::V_ROW, K_SCALE = C::K_SCALE, V_SCALE = C::V_SCALE;
    static constexpr int NF = D / 16;                                   /* contraction steps of Q K^T */
    static constexpr int NT = TK / 8;                                   /* key columns of S, in eights */
    static constexpr int NO = D / 8;                                    /* columns of O, in eights */

    /* Key (row of the tile) of column 2t + e of the nt-th eight. */
    __device__ static __forceinline__ int key_of(int nt, int t, int e) {
        return nt * 8 + C::key_order(2 * t + e);
    }

    /* Where element d of row r (0..15) of Q stands among the A fragments: index of a 16-bit value. */
    __device__ static __forceinline__ int q_place(int r, int d) {
        const typename C::q_at at = C::q_index(d);
        return ((at.f * 32 + (r & 7) * 4 + at.t) * 4 + at.hi * 2 + (r >> 3)) * 2 + at.half;
    }

    /* ---- S = Q K^T ------------------------------------------------------------------------------ */

    __device__ static __forceinline__ void scores(float (&s)[NT][4], uint32_t q, uint32_t k, int lane) {
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
            s[nt][0] = s[nt][1] = s[nt][2] = s[nt][3] = 0.0f;
        if constexpr (KC == CODE_BF16)
            scores_bf16(s, q, k, lane);
        else if constexpr (KC == CODE_FP4)
            scores_fp4(s, q, k, lane);
        else
            scores_byte(s, q, k, lane);
    }

    __device__ static __forceinline__ void scores_bf16(float (&s)[NT][4], uint32_t q, uint32_t k, int lane) {
        const int row = (lane & 7) + ((lane >> 4) << 3), half = (lane >> 3) & 1;
#pragma unroll
        for (int f = 0; f < NF; f++) {
            const uint4 a = ptx::load128(q + (uint32_t)(f * 32 + lane) * 16);
#pragma unroll
            for (int n2 = 0; n2 < NT / 2; n2++) {
                const uint4 b = ptx::matrix4(piece<K_ROW>(k, n2 * 16 + row, f * 2 + half));
                ptx::mma<false>(s[2 * n2], a, b.x, b.y);
                ptx::mma<false>(s[2 * n2 + 1], a, b.z, b.w);
            }
        }
    }

    __device__ static __forceinline__ void scores_byte(float (&s)[NT][4], uint32_t q, uint32_t k, int lane) {
        const int g = lane >> 2, t = lane & 3, row = ((g & 1) << 2) | (g >> 1);
        const uint32_t scales = k + TK * K_ROW;
#pragma unroll
        for (int c = 0; c < D / 64; c++) {
            uint4 codes[NT];
            float sum[NT][4];
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                codes[nt] = ptx::load128(piece<K_ROW>(k, nt * 8 + row, c * 4 + t));
                sum[nt][0] = sum[nt][1] = sum[nt][2] = sum[nt][3] = 0.0f;
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint4 a = ptx::load128(q + (uint32_t)((c * 4 + i) * 32 + lane) * 16);
#pragma unroll
                for (int nt = 0; nt < NT; nt++) {
                    const uint32_t w = word_of(codes[nt], i);
                    if constexpr (KC == CODE_INT8)
                        ptx::mma<false>(sum[nt], a, int8_pair(w), int8_pair(w >> 8));
                    else
                        ptx::mma<true>(s[nt], a, ptx::e4m3_to_half2(w), ptx::e4m3_to_half2(w >> 16));
                }
            }
            if constexpr (KC == CODE_INT8) {
#pragma unroll
                for (int nt = 0; nt < NT; nt++) {
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        const uint32_t at = scales + (uint32_t)(key_of(nt, t, e) * K_SCALE + c * 2);
                        const float scale = ptx::half_to_float(ptx::load16(at));
                        s[nt][e] += scale * sum[nt][e];
                        s[nt][2 + e] += scale * sum[nt][2 + e];
                    }
                }
            }
        }
        if constexpr (KC == CODE_FP8) {
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const uint32_t at = scales + (uint32_t)(key_of(nt, t, e) * K_SCALE);
                    const float scale = ptx::half_to_float(ptx::load16(at));
                    s[nt][e] *= scale;
                    s[nt][2 + e] *= scale;
                }
            }
        }
    }

    __device__ static __forceinline__ void scores_fp4(float (&s)[NT][4], uint32_t q, uint32_t k, int lane) {
        const int g = lane >> 2, t = lane & 3, row = ((g & 1) << 2) | (g >> 1);
        const uint32_t scales = k + TK * K_ROW;
#pragma unroll
        for (int c = 0; c < D / 128; c++) {
            uint4 codes[NT];
            uint32_t scale[NT][2];
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                codes[nt] = ptx::load128(piece<K_ROW>(k, nt * 8 + row, c * 4 + t));
                const uint32_t at = scales + (uint32_t)((nt * 8 + row) * K_SCALE + (c * 4 + t) * 2);
                const uint32_t two = ptx::e4m3_to_half2(ptx::load16(at));
                scale[nt][0] = __byte_perm(two, 0, 0x1010);
                scale[nt][1] = __byte_perm(two, 0, 0x3232);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint4 a0 = ptx::load128(q + (uint32_t)((c * 8 + i * 2) * 32 + lane) * 16);
                const uint4 a1 = ptx::load128(q + (uint32_t)((c * 8 + i * 2 + 1) * 32 + lane) * 16);
#pragma unroll
                for (int nt = 0; nt < NT; nt++) {
                    const uint32_t w = word_of(codes[nt], i);
                    const uint32_t m = scale[nt][i >> 1];
                    ptx::mma<true>(s[nt], a0, ptx::mul_half2(fp4_pair<0>(w), m), ptx::mul_half2(fp4_pair<1>(w), m));
                    ptx::mma<true>(s[nt], a1, ptx::mul_half2(fp4_pair<2>(w), m), ptx::mul_half2(fp4_pair<3>(w), m));
                }
            }
        }
    }

    /* ---- O += P V --------------------------------------------------------------------------------- */

    /* p: probabilities in the layout of S. v: the value tile, its scales behind the codes. */
    __device__ static __forceinline__ void values(float (&o)[NO][4], const float (&p)[NT][4], uint32_t v, int lane) {
#pragma unroll
        for (int ks = 0; ks < TK / 16; ks++) {
            if constexpr (VC == CODE_BF16)
                values_bf16(o, fragment<false>(p, ks), v, ks, lane);
            else if constexpr (VC == CODE_INT8)
                values_int8(o, p, v, ks, lane);
            else if constexpr (VC == CODE_FP8)
                values_fp8(o, p, v, ks, lane);
            else
                values_fp4(o, fragment<true>(p, ks), v, ks, lane);
        }
    }

    template <bool HALF> __device__ static __forceinline__ uint4 fragment(const float (&p)[NT][4], int ks) {
        const float(&x)[4] = p[2 * ks], (&y)[4] = p[2 * ks + 1];
        return make_uint4(ptx::pack<HALF>(x[0], x[1]), ptx::pack<HALF>(x[2], x[3]), ptx::pack<HALF>(y[0], y[1]),
                          ptx::pack<HALF>(y[2], y[3]));
    }

    /* The A fragment of P with the scales f of the thread's four keys (t, t+4, t+8, t+12) folded in. */
    __device__ static __forceinline__ uint4 scaled(const float (&p)[NT][4], int ks, float f0, float f1, float f2,
                                                   float f3) {
        const float(&x)[4] = p[2 * ks], (&y)[4] = p[2 * ks + 1];
        return make_uint4(ptx::pack<false>(x[0] * f0, x[1] * f1), ptx::pack<false>(x[2] * f0, x[3] * f1),
                          ptx::pack<false>(y[0] * f2, y[1] * f3), ptx::pack<false>(y[2] * f2, y[3] * f3));
    }

    __device__ static __forceinline__ void values_bf16(float (&o)[NO][4], const uint4 &a, uint32_t v, int ks, int lane) {
        const int row = ks * 16 + (lane & 15), half = lane >> 4;
#pragma unroll
        for (int n2 = 0; n2 < NO / 2; n2++) {
            const uint4 b = ptx::matrix4_transposed(piece<V_ROW>(v, row, n2 * 2 + half));
            ptx::mma<false>(o[2 * n2], a, b.x, b.y);
            ptx::mma<false>(o[2 * n2 + 1], a, b.z, b.w);
        }
    }

    __device__ static __forceinline__ void values_int8(float (&o)[NO][4], const float (&p)[NT][4], uint32_t v, int ks,
                                                       int lane) {
        const int g = lane >> 2, t = lane & 3;
        const uint32_t scales = v + TK * V_ROW;
#pragma unroll
        for (int c = 0; c < D / 64; c++) {
            uint2 w[4];
            float f[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int key = ks * 16 + j * 4 + t;
                w[j] = ptx::load64(piece<V_ROW>(v, key, c * 4 + (g >> 1)) + (uint32_t)(g & 1) * 8);
                f[j] = ptx::half_to_float(ptx::load16(scales + (uint32_t)(key * V_SCALE + c * 2)));
            }
            const uint4 a = scaled(p, ks, f[0], f[1], f[2], f[3]);
#pragma unroll
            for (int i = 0; i < 4; i++) { /* two channels a turn: bytes 2i, 2i+1 of the eight */
                const uint32_t x0 = i < 2 ? w[0].x : w[0].y, x1 = i < 2 ? w[1].x : w[1].y;
                const uint32_t y0 = i < 2 ? w[2].x : w[2].y, y1 = i < 2 ? w[3].x : w[3].y;
                const uint32_t x = __byte_perm(x0, x1, i & 1 ? 0x7632 : 0x5410);
                const uint32_t y = __byte_perm(y0, y1, i & 1 ? 0x7632 : 0x5410);
                ptx::mma<false>(o[c * 8 + 2 * i], a, int8_pair(x), int8_pair(y));
                ptx::mma<false>(o[c * 8 + 2 * i + 1], a, int8_pair(x >> 8), int8_pair(y >> 8));
            }
        }
    }

    __device__ static __forceinline__ void values_fp8(float (&o)[NO][4], const float (&p)[NT][4], uint32_t v, int ks,
                                                      int lane) {
        const int g = lane >> 2, t = lane & 3, column = ((g & 1) << 2) | (g >> 1);
        float f[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            f[j] = ptx::half_to_float(ptx::load16(v + (uint32_t)(TK * V_ROW + (ks * 16 + j * 4 + t) * V_SCALE)));
        const uint4 a = scaled(p, ks, f[0], f[1], f[2], f[3]);
#pragma unroll
        for (int c = 0; c < D / 128; c++) {
            uint32_t w[4][4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint4 x = ptx::load128(piece<V_ROW>(v, ks * 16 + j * 4 + t, c * 8 + column));
                w[j][0] = x.x, w[j][1] = x.y, w[j][2] = x.z, w[j][3] = x.w;
            }
#pragma unroll
            for (int i = 0; i < 8; i++) { /* two channels a turn: bytes 2i, 2i+1 of the sixteen */
                const uint32_t x = __byte_perm(w[0][i >> 1], w[1][i >> 1], i & 1 ? 0x7632 : 0x5410);
                const uint32_t y = __byte_perm(w[2][i >> 1], w[3][i >> 1], i & 1 ? 0x7632 : 0x5410);
                ptx::mma<false>(o[c * 16 + 2 * i], a, e4m3_pair(x << 8, x << 4), e4m3_pair(y << 8, y << 4));
                ptx::mma<false>(o[c * 16 + 2 * i + 1], a, e4m3_pair(x, x >> 4), e4m3_pair(y, y >> 4));
            }
        }
    }

    __device__ static __forceinline__ void values_fp4(float (&o)[NO][4], const uint4 &a, uint32_t v, int ks, int lane) {
        const int g = lane >> 2, t = lane & 3, column = ((g & 1) << 2) | (g >> 1);
        const uint32_t scales = v + TK * V_ROW;
        uint32_t w[4][4], two[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int key = ks * 16 + j * 4 + t;
            const uint4 x = ptx::load128(piece<V_ROW>(v, key, column));
            w[j][0] = x.x, w[j][1] = x.y, w[j][2] = x.z, w[j][3] = x.w;
            two[j] = ptx::e4m3_to_half2(ptx::load16(scales + (uint32_t)(key * V_SCALE + column * 2)));
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t sx = __byte_perm(two[0], two[1], i < 2 ? 0x5410 : 0x7632);
            const uint32_t sy = __byte_perm(two[2], two[3], i < 2 ? 0x5410 : 0x7632);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint32_t x = __byte_perm(w[0][i], w[1][i], h ? 0x7632 : 0x5410);
                const uint32_t y = __byte_perm(w[2][i], w[3][i], h ? 0x7632 : 0x5410);
                const int n = i * 8 + h * 4;
                ptx::mma<true>(o[n], a, ptx::mul_half2(fp4_pair<0>(x), sx), ptx::mul_half2(fp4_pair<0>(y), sy));
                ptx::mma<true>(o[n + 1], a, ptx::mul_half2(fp4_pair<1>(x), sx), ptx::mul_half2(fp4_pair<1>(y), sy));
                ptx::mma<true>(o[n + 2], a, ptx::mul_half2(fp4_pair<2>(x), sx), ptx::mul_half2(fp4_pair<2>(y), sy));
                ptx::mma<true>(o[n + 3], a, ptx::mul_half2(fp4_pair<3>(x), sx), ptx::mul_half2(fp4_pair<3>(y), sy));
            }
        }
    }
};

/* ---- form ------------------------------------------------------------------------------------------ */

template <int S, int D, int MT> struct rows_form {
    using codes = attn::codes<S, D>;
    static constexpr int TK = D == 256 && S == KVD_STORAGE_BF16 && MT < 4 ? 16 : 32;
    using tile = rows_tile<S, D, TK>;
    static constexpr int RB = 16 * MT;
    static constexpr bool NATURAL = codes::VC == CODE_BF16; /* O has its channels in order */
    static constexpr bool ASYNC = false;
    static constexpr int WARPS = 4, GROUPS = 4 / MT, SUMS = GROUPS;
    static constexpr int SLOT = max_of(TK * (codes::K_ROW + codes::K_SCALE), TK * (codes::V_ROW + codes::V_SCALE));
    static constexpr int Q_BYTES = RB * D * 2;
    static constexpr int FIT = (107 * 1024 - Q_BYTES) / (GROUPS * SLOT); /* two CTAs a multiprocessor */
    static constexpr int NS = FIT > 8 ? 8 : FIT;
    static constexpr int Q_AT = max_of(GROUPS * NS * SLOT, GROUPS * RB * (D + 4) * 4); /* where the queries lie */
    static constexpr int SMEM = Q_AT + Q_BYTES;
    static_assert(NS >= 3, "the ring needs a slot in use and two in flight");

    template <int ROW> __device__ static __forceinline__ uint32_t place(uint32_t base, int row, int chunk) {
        return piece<ROW>(base, row, chunk);
    }
    __device__ static __forceinline__ int q_place(int row, int d) {
        return (row >> 4) * 16 * D + tile::q_place(row & 15, d);
    }
};

/* ---- kernel ------------------------------------------------------------------------------------------- */

/* MT warps share a tile of keys, each with its 16 rows. */
template <int S, int D, int MT> struct rows_kernel {
    using C = rows_form<S, D, MT>;
    static constexpr int HEAD_DIM = D;

    __device__ static __forceinline__ void run(const params &p, const segment &s, uint8_t *smem, control<C> &ctl, bool whole,
                                               uint32_t to) {
        using T = typename C::tile;
        const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, group = warp / MT, member = warp % MT;
        const uint32_t base = ptx::smem_address(smem);
        __syncthreads(); /* the segment before is stored */
        ring<C> ring(p, base + group * C::NS * C::SLOT, lane, member);
        ring.start(s, group);
        if (threadIdx.x == 0)
            ctl.lowest = INT32_MAX;
        __syncthreads();
        load_queries<C, D>(p, s, (uint16_t *)(smem + C::Q_AT), ctl, warp, lane);
        __syncthreads();
        rows16<C> rows;
        rows.start(ctl, member * 16 + (lane >> 2));
        const uint32_t q = base + C::Q_AT + member * 32 * D;
        const int lowest = ctl.lowest;
        for (int tile = group; tile < ring.n_tiles; tile += C::GROUPS) {
            float x[T::NT][4];
            T::scores(x, q, ring.take(group), lane);
            const int key0 = (int)s.first * KVD_PAGE_TOKENS + tile * C::TK;
            rows.softmax(x, key0, key0 + C::TK > lowest, lane & 3);
            const uint32_t v = ring.take(group);
            if (key0 + C::TK > (int)s.keys)
                ring.clear_values(v, (int)s.keys - key0, group);
            T::values(rows.o, x, v, lane);
        }
        ptx::copy_wait<0>();
        merge_rows<C, D>(rows, ctl, (float *)smem, group, member * 16);
        store_rows<C, D>(p, s, ctl, (const float *)smem, whole, to);
    }
};

template <int S, int D, int MT>
__global__ void __launch_bounds__(128, 2) attention_rows(const __grid_constant__ params p) {
    extern __shared__ __align__(1024) uint8_t smem[];
    walk_share<rows_kernel<S, D, MT>>(p, smem);
}

template <int S, int D, int MT> instance make_rows() {
    return {(const void *)attention_rows<S, D, MT>, rows_form<S, D, MT>::SMEM, 16 * MT, 2, 128};
}

} /* namespace attn */

#endif
