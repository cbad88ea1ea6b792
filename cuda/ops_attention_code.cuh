/* SPDX-License-Identifier: Apache-2.0
 *
 * Stored codes in registers: what a profile stores, and how codes become tensor-core operands.
 *
 * Two freedoms make decoding cheap, and the columns form of the attention kernels uses them:
 *
 *   - the order of the contraction index is free as long as both operands agree, so a thread takes 16 stored bytes of
 * one row with one load and Q is laid out in the matching order once (q_index);
 *   - the order of keys and of output channels is free as long as the mask and the last store know it (key_order,
 * channel).
 *
 * Lane = 4 * g + t. In a fragment g names the row or column that is kept (a key of K, a channel of V) and t the
 * contraction index. Rows of a tile lie in shared memory as they lie in the page, except that the 16-byte piece c of
 * row r is at c ^ (r & 7), so that the eight threads of a quarter warp touch all banks. Rows shorter than 128 bytes lie
 * side by side in 128, and are mixed by piece_mix().
 *
 * Numbers of the columns form, by profile (VIEW-6); those of the coded form stand in ops_attention_coded.cuh:
 *   BF16   Q, K, P, V in BF16.
 *   INT8   codes are exact in BF16. The scale of a key group multiplies the FP32 sum of its 64 products; the scale of a
 *          value group multiplies P before it is rounded to BF16. Keys are multiplied as they are
 *          stored: a row of Q is brought to integers of 16 bits (largest 127 * 257), split into 256 * high + low, and
 *          both go through INT8 products.
 *   FP8    K codes are exact in FP16, V codes in BF16; the row scale multiplies the FP32 score, or P.
 *   NVFP4  code * scale is exact in FP16 when it carries a factor 2^-14, which is taken out at the end. The same for V
 * of K8V4. Where K is FP16, a row of Q is brought to FP16 by a power of two that makes its largest element about 2^7.
 */
#ifndef KVD_CUDA_OPS_ATTENTION_CODE_CUH
#define KVD_CUDA_OPS_ATTENTION_CODE_CUH

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

constexpr code value_code(int storage) { return storage == KVD_STORAGE_K8V4 ? CODE_FP4 : key_code(storage); }

constexpr int row_bytes(code c, int d) { return c == CODE_BF16 ? 2 * d : c == CODE_FP4 ? d / 2 : d; }

constexpr int scale_bytes(code c, int d) {
    return c == CODE_INT8 ? (d + 63) / 64 * 2 : c == CODE_FP8 ? 2 : c == CODE_FP4 ? d / 16 : 0;
}

constexpr int max_of(int a, int b) { return a > b ? a : b; }

/* The FP16 form of NVFP4 carries 2^-FP4_SHIFT. */
constexpr int FP4_SHIFT = 14;

constexpr float HALF_BASE = 6.0f; /* log2 of P in FP16 where a score is the maximum in use */

constexpr float NO_SCORE = -1e30f; /* start of a running maximum: finite, so that differences stay defined */

template <int S, int D> struct codes {
    static constexpr code KC = key_code(S), VC = value_code(S);
    static constexpr int K_ROW = row_bytes(KC, D), V_ROW = row_bytes(VC, D);
    static constexpr int K_SCALE = scale_bytes(KC, D), V_SCALE = scale_bytes(VC, D);
    static constexpr bool Q_HALF = KC == CODE_FP8 || KC == CODE_FP4; /* Q in FP16 */
    static constexpr bool P_HALF = VC == CODE_FP4;                   /* P in FP16 */

    /* The key of an eight that stands at place i (0..7) of a fragment. */
    __device__ static __forceinline__ int key_order(int i) { return KC == CODE_BF16 ? i : ((i & 1) << 2) | (i >> 1); }

    /* The channel at place i (0..7) of the nt-th eight of V's fragments. */
    __device__ static __forceinline__ int channel(int nt, int i) {
        const int mixed = ((i & 1) << 2) | (i >> 1);
        if constexpr (VC == CODE_BF16) return nt * 8 + i;
        else if constexpr (VC == CODE_INT8 || (VC == CODE_FP8 && D < 128)) return (nt >> 3) * 64 + i * 8 + (nt & 7);
        else if constexpr (VC == CODE_FP8) return ((nt >> 4) * 8 + mixed) * 16 + (nt & 15);
        else return (D < 256 ? i : mixed) * (D / 8) + nt;
    }

    /* Where element d of a query stands: contraction step f, lane part t, register hi of two, half of it. */
    struct q_at {
        int f, t, hi, half;
    };
    __device__ static __forceinline__ q_at q_index(int d) {
        if constexpr (KC == CODE_BF16) {
            return { d >> 4, (d >> 1) & 3, (d >> 3) & 1, d & 1 };
        } else if constexpr (KC == CODE_FP4) {
            constexpr int CODES = D < 128 ? 16 : 32; /* of a lane's load */
            const int load = d / CODES, word = d % CODES / 8, n = d & 7;
            return { (load >> 2) * (CODES / 4) + word * 2 + ((n >> 1) & 1), load & 3, n & 1, n >> 2 };
        } else {
            const int chunk = d >> 4, i = d & 3, f = (chunk >> 2) * 4 + ((d >> 2) & 3);
            if constexpr (KC == CODE_INT8) return { f, chunk & 3, i & 1, i >> 1 };
            else return { f, chunk & 3, i >> 1, i & 1 };
        }
    }
};

/* What the pieces of a row are exclusive-ored with: the bits of its number that its place in 128 bytes does not show.
 */
template <int ROW> __device__ __forceinline__ int piece_mix(int row) {
    return row & (ROW >= 128 ? 7 : ROW == 64 ? 6 : 4);
}

/* Address of piece `chunk` of a row of a tile, which begins at a multiple of 128. */
template <int ROW> __device__ __forceinline__ uint32_t piece(uint32_t base, int row, int chunk) {
    return base + (uint32_t)((row * ROW + chunk * 16) ^ (piece_mix<ROW>(row) << 4));
}

/* The bits of `a` where `mask` has ones, else those of `b`: one instruction. */
__device__ __forceinline__ uint32_t choose(uint32_t a, uint32_t b, uint32_t mask) {
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(r) : "r"(a), "r"(b), "r"(mask));
    return r;
}

/* Bytes 0 and 2 of w as INT8 to two BF16: 128 + low seven bits, less 128 or 256 by the sign. */
__device__ __forceinline__ uint32_t int8_pair(uint32_t w) {
    return ptx::sub_bf162(choose(w, 0x43004300u, 0x007f007fu), choose(w, 0x43004300u, 0x00800080u));
}

/* Bytes 1 and 3 of w as E4M3 to two BF16: the exponent bias differs by 120. */
__device__ __forceinline__ uint32_t e4m3_pair(uint32_t sign, uint32_t magnitude) {
    return ptx::mul_bf162((sign & 0x80008000u) | (magnitude & 0x07f007f0u), 0x7b807b80u);
}

/* Eight codes of NVFP4 to FP16 times 2^-14: pair[i] has nibble i of both halves of a word. Sign and the other three
 * bits of a code go to bits 15 and 11..9. Every second nibble is spread over a byte first (sign on top, the rest in
 * bits 3..1), for two pairs at once. */
struct fp4_pairs {
    uint32_t pair[4];
    __device__ __forceinline__ explicit fp4_pairs(uint32_t w) {
        const uint32_t odd = choose(w, w >> 3, 0xf0f0f0f0u), even = choose(w << 4, w << 1, 0xf0f0f0f0u);
        pair[0] = (even << 8) & 0x8e008e00u, pair[1] = (odd << 8) & 0x8e008e00u;
        pair[2] = even & 0x8e008e00u, pair[3] = odd & 0x8e008e00u;
    }
    __device__ __forceinline__ uint32_t times(int i, uint32_t scale) const { return ptx::mul_half2(pair[i], scale); }
};

/* Word I of a 16-byte load; I is known after unrolling. */
__device__ __forceinline__ uint32_t word_of(const uint4 &x, int i) {
    return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

} /* namespace attn */

#endif
