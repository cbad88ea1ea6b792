/* SPDX-License-Identifier: Apache-2.0
 *
 * One tile of paged attention on tensor cores: TK keys of one page and kv head, 16 rows of packed queries.
 *
 * A warp computes S[16, TK] = Q K^T and O[16, D] += P V with m16n8k16 products. Stored codes go from shared memory
 * straight into B fragments; nothing is written back. Two freedoms make that cheap:
 *
 *   - the order of the contraction index is free as long as both operands agree, so a thread takes 16 stored bytes of one
 *     row with one load and Q is laid out in the matching order once (q_place);
 *   - the order of keys and of output columns is free as long as the mask and the last store know it (key_of, column_of).
 *
 * Lane = 4 * g + t. In a B fragment g names the column (a key of K, a channel of V) and t the contraction index.
 *
 * Rows of a tile lie in shared memory as they lie in the page, except that the 16-byte piece c of row r is at c ^ (r & 7),
 * so that the eight threads of a quarter warp touch all banks.
 *
 * Numbers, by profile (VIEW-6):
 *   BF16   Q, K, P, V in BF16.
 *   INT8   codes are exact in BF16. The scale of a key group multiplies the FP32 sum of its 64 products; the scale of a
 *          value group multiplies P before it is rounded to BF16.
 *   FP8    K codes are exact in FP16, V codes in BF16; the row scale multiplies the FP32 score, or P.
 *   NVFP4  code * scale is exact in FP16 when both carry a factor 2^-14; P carries 2^14. The same for V of K8V4.
 *   Where K is FP16, a row of Q is brought to FP16 by a power of two that makes its largest element about 2^7.
 */
#ifndef KVD_CUDA_OPS_ATTENTION_TILE_CUH
#define KVD_CUDA_OPS_ATTENTION_TILE_CUH

#include "ops_ptx.cuh"
#include "paged_view.h"

namespace attn {

enum code { CODE_BF16, CODE_INT8, CODE_FP8, CODE_FP4 };

constexpr code key_code(int storage) {
    return storage == KVD_STORAGE_BF16    ? CODE_BF16
           : storage == KVD_STORAGE_INT8  ? CODE_INT8
           : storage == KVD_STORAGE_NVFP4 ? CODE_FP4
                                          : CODE_FP8;
}

constexpr code value_code(int storage) {
    return storage == KVD_STORAGE_K8V4 ? CODE_FP4 : key_code(storage);
}

constexpr int row_bytes(code c, int d) {
    return c == CODE_BF16 ? 2 * d : c == CODE_FP4 ? d / 2 : d;
}

constexpr int scale_bytes(code c, int d) {
    return c == CODE_INT8 ? d / 64 * 2 : c == CODE_FP8 ? 2 : c == CODE_FP4 ? d / 16 : 0;
}

/* Factor that the FP16 form of NVFP4 carries: 2^-14 on values, 2^14 on P. */
constexpr float FP4_SHIFT = 14.0f;

template <int S, int D, int TK> struct tile {
    static constexpr code KC = key_code(S), VC = value_code(S);
    static constexpr int K_ROW = row_bytes(KC, D), V_ROW = row_bytes(VC, D);
    static constexpr int K_SCALE = scale_bytes(KC, D), V_SCALE = scale_bytes(VC, D);
    static constexpr int NF = D / 16;                                   /* contraction steps of Q K^T */
    static constexpr int NT = TK / 8;                                   /* key columns of S, in eights */
    static constexpr int NO = D / 8;                                    /* columns of O, in eights */
    static constexpr bool Q_HALF = KC == CODE_FP8 || KC == CODE_FP4;    /* Q in FP16 */
    static constexpr bool P_HALF = VC == CODE_FP4;                      /* P in FP16 */

    /* Key (row of the tile) of column 2t + e of the nt-th eight. */
    __device__ static __forceinline__ int key_of(int nt, int t, int e) {
        return KC == CODE_BF16 ? nt * 8 + 2 * t + e : nt * 8 + t + 4 * e;
    }

    /* Channel of column 2t + e of the nt-th eight of O. */
    __device__ static __forceinline__ int column_of(int nt, int t, int e) {
        if constexpr (VC == CODE_BF16)
            return nt * 8 + 2 * t + e;
        else if constexpr (VC == CODE_INT8)
            return (nt >> 3) * 64 + (2 * t + e) * 8 + (nt & 7);
        else if constexpr (VC == CODE_FP8)
            return ((nt >> 4) * 8 + t + 4 * e) * 16 + (nt & 15);
        else
            return (t + 4 * e) * 32 + nt;
    }

    /* Where element d of row r (0..15) of Q stands among the A fragments: index of a 16-bit value. */
    __device__ static __forceinline__ int q_place(int r, int d) {
        int f, t, hi, half;
        if constexpr (KC == CODE_BF16) {
            f = d >> 4, hi = (d >> 3) & 1, t = (d >> 1) & 3, half = d & 1;
        } else if constexpr (KC == CODE_FP4) {
            const int chunk = d >> 5, n = d & 7;
            t = chunk & 3, f = (chunk >> 2) * 8 + ((d >> 3) & 3) * 2 + ((n >> 1) & 1), hi = n & 1, half = n >> 2;
        } else {
            const int chunk = d >> 4, i = d & 3;
            t = chunk & 3, f = (chunk >> 2) * 4 + ((d >> 2) & 3);
            hi = KC == CODE_INT8 ? i & 1 : i >> 1;
            half = KC == CODE_INT8 ? i >> 1 : i & 1;
        }
        return ((f * 32 + (r & 7) * 4 + t) * 4 + hi * 2 + (r >> 3)) * 2 + half;
    }

    template <int ROW> __device__ static __forceinline__ uint32_t piece(uint32_t base, int row, int chunk) {
        return base + (uint32_t)(row * ROW + ((chunk ^ (row & 7)) << 4));
    }

    /* ---- decoding of codes in registers -------------------------------------------------------- */

    /* Bytes 0 and 2 of w as INT8 to two BF16: 128 + low seven bits, less 128 or 256 by the sign. */
    __device__ static __forceinline__ uint32_t int8_pair(uint32_t w) {
        return ptx::sub_bf162((w & 0x007f007fu) | 0x43004300u, (w & 0x00800080u) | 0x43004300u);
    }

    /* Bytes 1 and 3 of w as E4M3 to two BF16: the exponent bias differs by 120. */
    __device__ static __forceinline__ uint32_t e4m3_pair(uint32_t sign, uint32_t magnitude) {
        return ptx::mul_bf162((sign & 0x80008000u) | (magnitude & 0x07f007f0u), 0x7b807b80u);
    }

    /* Nibble I of both halves of w to two FP16 times 2^-14 (exponent and mantissa bit moved to where FP16 has them). */
    template <int I> __device__ static __forceinline__ uint32_t fp4_pair(uint32_t w) {
        const uint32_t sign = w << (12 - 4 * I);
        const uint32_t magnitude = I == 3 ? w >> 3 : w << (9 - 4 * I);
        return (sign & 0x80008000u) | (magnitude & 0x0e000e00u);
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
                    const uint32_t w = i == 0 ? codes[nt].x : i == 1 ? codes[nt].y : i == 2 ? codes[nt].z : codes[nt].w;
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
                    const uint32_t w = i == 0 ? codes[nt].x : i == 1 ? codes[nt].y : i == 2 ? codes[nt].z : codes[nt].w;
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

} /* namespace attn */

#endif
