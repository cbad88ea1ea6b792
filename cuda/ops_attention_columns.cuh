/* SPDX-License-Identifier: Apache-2.0
 *
 * Columns form: queries are the narrow side. S^T[keys, 8 NQ] = K Q^T and O^T[channels, 8 NQ] += V^T P^T, in m16n8k16
 * products whose A operand is decoded K or V and whose B operand is Q or P. A code is decoded once for all queries, and
 * eight queries cost half of what sixteen rows would. For decode: 8 NQ rows of packed queries, every warp takes tiles
 * of its own. Layouts and numbers: ops_attention_code.cuh.
 *
 * Who does what. Four warps a CTA, all alike: none is a producer. Each has a ring of NS slots of its own, copies with
 * cp.async (16 bytes a lane) into it, decodes from it in registers and multiplies. Tile i of a segment is warp
 * i mod 4's. Warps meet twice a segment: when the queries are laid out, and when their sums are merged.
 *
 * Stages of a tile in a warp:
 *   wait for K(t), start the copy of the half tile NS - 1 further on   ring.take
 *   S^T = K Q^T: 16 bytes of a row are loaded, widened, multiplied     multiply_scores
 *   mask, lazy maximum (a vote), exponentials, sums                    softmax
 *   wait for V(t), start the next copy                                 ring.take
 *   O^T += V^T P^T; P goes from sums to operands by movmatrix          multiply_values
 * At the end the four sums of a query are brought to their common maximum in shared memory (merge), and leave as BF16
 * or as one partial result (store_rows).
 *
 * Numbers of an instance at head_dim 256 and up to 8 rows: BF16 has tiles of 16 keys, 3 slots of 8 KiB a warp, 2 CTAs a
 * multiprocessor; quantized profiles have tiles of 32 keys, 2 slots of 8.25 KiB (INT8), 2 of 8.1 (FP8), 3 of 4.5
 * (NVFP4), and 3 CTAs. All but one slot of every warp are on their way: 97 to 128 KiB a multiprocessor, which hide the
 * latency of memory.
 *
 * Shared memory: [4 warps][NS][SLOT], later the sums of the warps as FP32 [4][8 NQ][D + 4]; Q_AT: queries as B
 * fragments. Beside it (control, ops_attention_work.cuh): the line, table rows, limits and sums of a segment.
 */
#ifndef KVD_CUDA_OPS_ATTENTION_COLUMNS_CUH
#define KVD_CUDA_OPS_ATTENTION_COLUMNS_CUH

#include "ops_attention_work.cuh"

namespace attn {

constexpr float LAZY = 8.0f; /* P may exceed one by 2^LAZY before the running maximum is brought up to date */

template <int S, int D, int TK, int NQ> struct columns_tile {
    using C = codes<S, D>;
    static constexpr code KC = C::KC, VC = C::VC;
    static constexpr int K_ROW = C::K_ROW, V_ROW = C::V_ROW, K_SCALE = C::K_SCALE, V_SCALE = C::V_SCALE;
    static constexpr int KM = TK / 16; /* keys, in sixteens */
    static constexpr int DM = D / 16;  /* channels, in sixteens */
    /* Independent sums, where products would wait for each other. */
    static constexpr int CHAINS = KC != CODE_INT8 && KM * NQ < 4 ? 2 : 1;

    /* Where element d of query n stands among the B fragments: index of a 16-bit value. */
    __device__ static __forceinline__ int q_place(int n, int d) {
        const typename C::q_at at = C::q_index(d);
        const int i = at.f * NQ + (n >> 3);
        return ((((i >> 1) * 32 + (n & 7) * 4 + at.t) * 4) + (i & 1) * 2 + at.hi) * 2 + at.half;
    }

    /* Key (row of the tile) of row g + 8 * e of the m-th sixteen. */
    __device__ static __forceinline__ int key_of(int m, int g, int e) { return m * 16 + C::key_order(g) + 8 * e; }

    /* The fragments of the queries for contraction step f. Steps come in pairs where one load holds two. */
    struct q_fragments {
        uint4 x[(NQ + 1) / 2];
        __device__ __forceinline__ void load(uint32_t q, int f, int lane) {
            if (NQ == 1 && (f & 1)) return;
#pragma unroll
            for (int i = 0; i < (NQ + 1) / 2; i++)
                x[i] = ptx::load128(q + (uint32_t)(((f * NQ >> 1) + i) * 32 + lane) * 16);
        }
        __device__ __forceinline__ uint2 entry_at(int f, int nq) const {
            const uint4 &y = x[NQ == 1 ? 0 : nq >> 1];
            return (NQ == 1 ? f : nq) & 1 ? make_uint2(y.z, y.w) : make_uint2(y.x, y.y);
        }
    };

    /* ---- S^T = K Q^T ------------------------------------------------------------------------------ */

    using score = float[KM][NQ][4];

    __device__ static __forceinline__ void multiply_scores(score &s, uint32_t q, uint32_t k, int lane) {
        score part[CHAINS];
#pragma unroll
        for (int c = 0; c < CHAINS; c++) clear(part[c]);
        if constexpr (KC == CODE_BF16) scores_bf16(part, q, k, lane);
        else if constexpr (KC == CODE_INT8) scores_int8(part[0], q, k, lane);
        else if constexpr (KC == CODE_FP4) scores_fp4(part, q, k, lane);
        else scores_fp8(part, q, k, lane);
#pragma unroll
        for (int m = 0; m < KM; m++)
#pragma unroll
            for (int n = 0; n < NQ; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    s[m][n][i] = CHAINS == 2 ? part[0][m][n][i] + part[CHAINS - 1][m][n][i] : part[0][m][n][i];
    }

    __device__ static __forceinline__ void clear(score &s) {
#pragma unroll
        for (int m = 0; m < KM; m++)
#pragma unroll
            for (int n = 0; n < NQ; n++) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0.0f;
    }

    __device__ static __forceinline__ void scores_bf16(score (&s)[CHAINS], uint32_t q, uint32_t k, int lane) {
        q_fragments b;
#pragma unroll
        for (int f = 0; f < D / 16; f++) {
            b.load(q, f, lane);
#pragma unroll
            for (int m = 0; m < KM; m++) {
                const uint4 a = ptx::matrix4(piece<K_ROW>(k, m * 16 + (lane & 15), f * 2 + (lane >> 4)));
#pragma unroll
                for (int n = 0; n < NQ; n++)
                    ptx::mma<false>(s[f % CHAINS][m][n], a, b.entry_at(f, n).x, b.entry_at(f, n).y);
            }
        }
    }

    __device__ static __forceinline__ float key_scale(uint32_t k, int key, int group) {
        return ptx::half_to_float(ptx::load16(k + (uint32_t)(TK * K_ROW + key * K_SCALE + group * 2)));
    }

    /* Where the high byte of element d of query n stands among the B fragments of INT8; the low byte is 8 further. */
    __device__ static __forceinline__ int q_byte(int n, int d) {
        const int chunk = d >> 4, word = (d >> 2) & 3, f = (chunk >> 2) * 2 + (word >> 1);
        return ((f * NQ + (n >> 3)) * 32 + (n & 7) * 4 + (chunk & 3)) * 16 + (word & 1) * 4 + (d & 3);
    }

    /* Keys are multiplied as they are stored, by the high and by the low bytes of the queries. */
    __device__ static __forceinline__ void scores_int8(score &s, uint32_t q, uint32_t k, int lane) {
        const int g = lane >> 2, t = lane & 3;
#pragma unroll
        for (int c = 0; c < D / 64; c++) {
            int high[KM][NQ][4] = {}, low[KM][NQ][4] = {};
            uint4 w[KM][2];
#pragma unroll
            for (int m = 0; m < KM; m++)
#pragma unroll
                for (int e = 0; e < 2; e++) w[m][e] = ptx::load128(piece<K_ROW>(k, key_of(m, g, e), c * 4 + t));
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int n = 0; n < NQ; n++) {
                    const uint4 b = ptx::load128(q + (uint32_t)(((c * 2 + i) * NQ + n) * 32 + lane) * 16);
#pragma unroll
                    for (int m = 0; m < KM; m++) {
                        const uint4 &x = w[m][0], &y = w[m][1];
                        const uint4 a = i == 0 ? make_uint4(x.x, y.x, x.y, y.y) : make_uint4(x.z, y.z, x.w, y.w);
                        ptx::mma_int8(high[m][n], a, b.x, b.y);
                        ptx::mma_int8(low[m][n], a, b.z, b.w);
                    }
                }
            score group;
#pragma unroll
            for (int m = 0; m < KM; m++)
#pragma unroll
                for (int n = 0; n < NQ; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        group[m][n][i] = (float)(high[m][n][i] * 256 + low[m][n][i]); /* below 2^28 */
            add_scaled(s, group, k, c, g);
        }
    }

    __device__ static __forceinline__ void scores_fp8(score (&s)[CHAINS], uint32_t q, uint32_t k, int lane) {
        const int g = lane >> 2, t = lane & 3;
        q_fragments b;
#pragma unroll
        for (int c = 0; c < D / 64; c++) {
            uint4 w[KM][2];
#pragma unroll
            for (int m = 0; m < KM; m++)
#pragma unroll
                for (int e = 0; e < 2; e++) w[m][e] = ptx::load128(piece<K_ROW>(k, key_of(m, g, e), c * 4 + t));
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int f = c * 4 + i;
                b.load(q, f, lane);
#pragma unroll
                for (int m = 0; m < KM; m++) {
                    const uint32_t x = word_of(w[m][0], i), y = word_of(w[m][1], i);
                    const uint4 a = make_uint4(ptx::e4m3_to_half2(x), ptx::e4m3_to_half2(y),
                                               ptx::e4m3_to_half2(x >> 16), ptx::e4m3_to_half2(y >> 16));
#pragma unroll
                    for (int n = 0; n < NQ; n++)
                        ptx::mma<true>(s[f % CHAINS][m][n], a, b.entry_at(f, n).x, b.entry_at(f, n).y);
                }
            }
        }
#pragma unroll
        for (int c = 0; c < CHAINS; c++) {
            score zero;
            clear(zero);
            add_scaled(zero, s[c], k, 0, g);
            copy_tile(s[c], zero);
        }
    }

    __device__ static __forceinline__ void copy_tile(score &to, const score &from) {
#pragma unroll
        for (int m = 0; m < KM; m++)
#pragma unroll
            for (int n = 0; n < NQ; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) to[m][n][i] = from[m][n][i];
    }

    /* s += x times the key's scale of a group. */
    __device__ static __forceinline__ void add_scaled(score &s, const score &x, uint32_t k, int group, int g) {
#pragma unroll
        for (int m = 0; m < KM; m++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float scale = key_scale(k, key_of(m, g, e), group);
#pragma unroll
                for (int n = 0; n < NQ; n++) {
                    s[m][n][2 * e] += scale * x[m][n][2 * e];
                    s[m][n][2 * e + 1] += scale * x[m][n][2 * e + 1];
                }
            }
    }

    /* Codes of keys that a lane takes at a time: 32, or 16 where a row has no more for four lanes. */
    static constexpr int FP4_WORDS = D < 128 ? 2 : 4;

    __device__ static __forceinline__ uint4 load_fp4(uint32_t k, int key, int part) {
        if constexpr (D < 128) {
            const uint2 two = ptx::load64(piece<K_ROW>(k, key, part >> 1) + (uint32_t)(part & 1) * 8);
            return make_uint4(two.x, two.y, 0, 0);
        } else {
            return ptx::load128(piece<K_ROW>(k, key, part));
        }
    }

    __device__ static __forceinline__ void scores_fp4(score (&s)[CHAINS], uint32_t q, uint32_t k, int lane) {
        const int g = lane >> 2, t = lane & 3;
        q_fragments b;
#pragma unroll
        for (int c = 0; c < (D + 127) / 128; c++) {
            uint4 w[KM][2];
            uint32_t scale[KM][2][2]; /* of both groups of the 32 codes, twice in a register */
#pragma unroll
            for (int m = 0; m < KM; m++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int key = key_of(m, g, e);
                    w[m][e] = load_fp4(k, key, c * 4 + t);
                    const uint32_t at = k + (uint32_t)(TK * K_ROW + key * K_SCALE);
                    const uint32_t two = D < 128 ? ptx::load16(at + (uint32_t)(t & 2)) >> (t & 1) * 8
                                                 : ptx::load16(at + (uint32_t)(c * 4 + t) * 2);
                    const uint32_t halves = ptx::e4m3_to_half2(two);
                    scale[m][e][0] = __byte_perm(halves, 0, 0x1010);
                    scale[m][e][1] = __byte_perm(halves, 0, 0x3232);
                }
#pragma unroll
            for (int i = 0; i < FP4_WORDS; i++) {
                const int f = c * FP4_WORDS * 2 + i * 2;
#pragma unroll
                for (int m = 0; m < KM; m++) {
                    const fp4_pairs x(word_of(w[m][0], i)), y(word_of(w[m][1], i));
                    const uint32_t sx = scale[m][0][i >> 1], sy = scale[m][1][i >> 1];
#pragma unroll
                    for (int u = 0; u < 2; u++) {
                        b.load(q, f + u, lane);
                        const uint4 a = make_uint4(x.times(2 * u, sx), y.times(2 * u, sy), x.times(2 * u + 1, sx),
                                                   y.times(2 * u + 1, sy));
#pragma unroll
                        for (int n = 0; n < NQ; n++)
                            ptx::mma<true>(s[u % CHAINS][m][n], a, b.entry_at(f + u, n).x, b.entry_at(f + u, n).y);
                    }
                }
            }
        }
    }

    /* ---- O^T += V^T P^T ----------------------------------------------------------------------------- */

    using output = float[DM][NQ][4];

    /* B fragments of P for the ks-th sixteen keys, times the scales of the thread's keys g and g + 8. */
    struct p_fragments {
        uint2 x[NQ];
        __device__ __forceinline__ p_fragments(const float (&p)[NQ][4], float f0, float f1) {
#pragma unroll
            for (int n = 0; n < NQ; n++) {
                x[n].x = ptx::transpose8(ptx::pack<C::P_HALF>(p[n][0] * f0, p[n][1] * f0));
                x[n].y = ptx::transpose8(ptx::pack<C::P_HALF>(p[n][2] * f1, p[n][3] * f1));
            }
        }
    };

    __device__ static __forceinline__ void add(output &o, int dm, const uint4 &a, const p_fragments &p) {
#pragma unroll
        for (int n = 0; n < NQ; n++) ptx::mma<C::P_HALF>(o[dm][n], a, p.x[n].x, p.x[n].y);
    }

    __device__ static __forceinline__ void multiply_values(output &o, const score &p, uint32_t v, int lane) {
        const int g = lane >> 2, t = lane & 3;
#pragma unroll
        for (int ks = 0; ks < KM; ks++) {
            if constexpr (VC == CODE_BF16) values_bf16(o, p_fragments(p[ks], 1.0f, 1.0f), v, ks, lane);
            else if constexpr (VC == CODE_INT8) values_int8(o, p[ks], v, ks, g, t);
            else if constexpr (VC == CODE_FP8)
                values_fp8(o, p_fragments(p[ks], value_scale(v, ks, g, 0, 0), value_scale(v, ks, g, 1, 0)), v, ks, g,
                           t);
            else values_fp4(o, p_fragments(p[ks], 1.0f, 1.0f), v, ks, g, t);
        }
    }

    __device__ static __forceinline__ float value_scale(uint32_t v, int ks, int g, int e, int group) {
        return ptx::half_to_float(ptx::load16(v + (uint32_t)(TK * V_ROW + key_of(ks, g, e) * V_SCALE + group * 2)));
    }

    __device__ static __forceinline__ void values_bf16(output &o, const p_fragments &p, uint32_t v, int ks, int lane) {
        const int row = ks * 16 + (lane & 7) + ((lane >> 4) << 3), half = (lane >> 3) & 1;
#pragma unroll
        for (int dm = 0; dm < DM; dm++) add(o, dm, ptx::matrix4_transposed(piece<V_ROW>(v, row, dm * 2 + half)), p);
    }

    __device__ static __forceinline__ void values_int8(output &o, const float (&p)[NQ][4], uint32_t v, int ks, int g,
                                                       int t) {
#pragma unroll
        for (int c = 0; c < D / 64; c++) {
            uint2 w[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                w[j] = ptx::load64(piece<V_ROW>(v, ks * 16 + j * 4 + t, c * 4 + (g >> 1)) + (uint32_t)(g & 1) * 8);
            const p_fragments b(p, value_scale(v, ks, g, 0, c), value_scale(v, ks, g, 1, c));
#pragma unroll
            for (int i = 0; i < 4; i++) { /* two channels a turn: bytes 2i, 2i+1 of the eight */
                const uint32_t x =
                    __byte_perm(i < 2 ? w[0].x : w[0].y, i < 2 ? w[1].x : w[1].y, i & 1 ? 0x7632 : 0x5410);
                const uint32_t y =
                    __byte_perm(i < 2 ? w[2].x : w[2].y, i < 2 ? w[3].x : w[3].y, i & 1 ? 0x7632 : 0x5410);
                add(o, c * 4 + i, make_uint4(int8_pair(x), int8_pair(x >> 8), int8_pair(y), int8_pair(y >> 8)), b);
            }
        }
    }

    /* The g-th of eight parts of V_ROW bytes, or of 128 of them from piece `first` on: 16, 8 or 4 bytes. Parts of 16 in
     * an order in which neighbours of a quarter warp meet all banks. */
    __device__ static __forceinline__ uint4 load_values(uint32_t v, int row, int first, int g) {
        if constexpr (V_ROW >= 128) {
            return ptx::load128(piece<V_ROW>(v, row, first + (((g & 1) << 2) | (g >> 1))));
        } else if constexpr (V_ROW == 64) {
            const uint2 two = ptx::load64(piece<V_ROW>(v, row, g >> 1) + (uint32_t)(g & 1) * 8);
            return make_uint4(two.x, two.y, 0, 0);
        } else {
            return make_uint4(ptx::load32(piece<V_ROW>(v, row, g >> 2) + (uint32_t)(g & 3) * 4), 0, 0, 0);
        }
    }

    __device__ static __forceinline__ void values_fp8(output &o, const p_fragments &p, uint32_t v, int ks, int g,
                                                      int t) {
        constexpr int TURNS = D < 128 ? 4 : 8;
#pragma unroll
        for (int c = 0; c < (D + 127) / 128; c++) {
            uint4 w[4];
#pragma unroll
            for (int j = 0; j < 4; j++) w[j] = load_values(v, ks * 16 + j * 4 + t, c * 8, g);
#pragma unroll
            for (int i = 0; i < TURNS; i++) { /* two channels a turn: bytes 2i, 2i+1 of the sixteen or eight */
                const uint32_t x = __byte_perm(word_of(w[0], i >> 1), word_of(w[1], i >> 1), i & 1 ? 0x7632 : 0x5410);
                const uint32_t y = __byte_perm(word_of(w[2], i >> 1), word_of(w[3], i >> 1), i & 1 ? 0x7632 : 0x5410);
                add(o, c * TURNS + i,
                    make_uint4(e4m3_pair(x << 8, x << 4), e4m3_pair(x, x >> 4), e4m3_pair(y << 8, y << 4),
                               e4m3_pair(y, y >> 4)),
                    p);
            }
        }
    }

    /* The scales of the g-th part of a row of values: of two groups of 16, or of one in the low byte. */
    __device__ static __forceinline__ uint32_t fp4_scales(uint32_t scales, int g) {
        if constexpr (D >= 256) return ptx::load16(scales + (uint32_t)(((g & 1) << 2) | (g >> 1)) * 2);
        const int group = D == 128 ? g : g >> 1;
        return ptx::load16(scales + (uint32_t)(group & ~1)) >> (group & 1) * 8;
    }

    __device__ static __forceinline__ void values_fp4(output &o, const p_fragments &p, uint32_t v, int ks, int g,
                                                      int t) {
        constexpr int WORDS = D / 64; /* of eight channels: of a lane */
        uint4 w[4];
        uint32_t two[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int key = ks * 16 + j * 4 + t;
            w[j] = load_values(v, key, 0, g);
            two[j] = ptx::e4m3_to_half2(fp4_scales(v + (uint32_t)(TK * V_ROW + key * V_SCALE), g));
        }
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            const uint32_t sx = __byte_perm(two[0], two[1], i < 2 ? 0x5410 : 0x7632);
            const uint32_t sy = __byte_perm(two[2], two[3], i < 2 ? 0x5410 : 0x7632);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const fp4_pairs x(__byte_perm(word_of(w[0], i), word_of(w[1], i), h ? 0x7632 : 0x5410));
                const fp4_pairs y(__byte_perm(word_of(w[2], i), word_of(w[3], i), h ? 0x7632 : 0x5410));
#pragma unroll
                for (int u = 0; u < 2; u++)
                    add(o, i * 4 + h * 2 + u,
                        make_uint4(x.times(2 * u, sx), x.times(2 * u + 1, sx), y.times(2 * u, sy),
                                   y.times(2 * u + 1, sy)),
                        p);
            }
        }
    }
};

/* ---- form ------------------------------------------------------------------------------------------ */

template <int S, int D, int NQ> struct columns_form {
    using codes = attn::codes<S, D>;
    static constexpr int PER_SM = NQ == 1 && S != KVD_STORAGE_BF16 ? 3 : 2;
    static constexpr int TK = D == 256 && (S == KVD_STORAGE_BF16 || NQ == 2) ? 16 : 32;
    using tile = columns_tile<S, D, TK, NQ>;
    static constexpr int RB = 8 * NQ;
    static constexpr int WARPS = 4;
    static constexpr int SLOT =
        (TK * max_of(codes::K_ROW + codes::K_SCALE, codes::V_ROW + codes::V_SCALE) + 127) / 128 * 128;
    static constexpr int Q_BYTES = RB * D * 2;
    static constexpr int FIT = ((PER_SM == 3 ? 71 : 109) * 1024 - Q_BYTES) / (WARPS * SLOT);
    static constexpr int NS = FIT > 8 ? 8 : FIT;
    static constexpr int Q_AT = max_of(WARPS * NS * SLOT, WARPS *RB *(D + 4) * 4); /* where the queries lie */
    static constexpr int SMEM = Q_AT + Q_BYTES;
    static_assert(NS >= 2, "the ring needs a slot in use and one in flight");

    template <int ROW> __device__ static __forceinline__ uint32_t place(uint32_t base, int row, int chunk) {
        return piece<ROW>(base, row, chunk);
    }
    static constexpr bool Q_SPLIT = codes::KC == CODE_INT8;
    __device__ static __forceinline__ int q_place(int row, int d) {
        return Q_SPLIT ? tile::q_byte(row, d) : tile::q_place(row, d);
    }
};

/* ---- softmax and sums of one warp --------------------------------------------------------------------- */

/* Queries 2t and 2t + 1 of every eight, over the warp's keys. */
template <class C> struct columns8 {
    using T = typename C::tile;
    typename T::output o;
    static constexpr int NQ = C::RB / 8;
    float m[NQ][2], l[NQ][2], factor[NQ][2];

    __device__ __forceinline__ void start_share(const control<C> &ctl, int t) {
#pragma unroll
        for (int d = 0; d < T::DM; d++)
#pragma unroll
            for (int n = 0; n < NQ; n++) o[d][n][0] = o[d][n][1] = o[d][n][2] = o[d][n][3] = 0.0f;
#pragma unroll
        for (int n = 0; n < NQ; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                m[n][e] = NO_SCORE, l[n][e] = 0.0f;
                factor[n][e] = ctl.factor[n * 8 + 2 * t + e];
            }
    }

    /* To log2 units, and softly capped. */
    __device__ __forceinline__ void scale_scores(const params &p, typename T::score &s) const {
#pragma unroll
        for (int k = 0; k < T::KM; k++)
#pragma unroll
            for (int n = 0; n < NQ; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) s[k][n][i] *= factor[n][i & 1];
        if (p.cap == 0.0f) return;
#pragma unroll
        for (int k = 0; k < T::KM; k++)
#pragma unroll
            for (int n = 0; n < NQ; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) s[k][n][i] = cap_softly(p, s[k][n][i]);
    }

    /* Turns scores into probabilities relative to the maximum in use. That one follows the true maximum only when it
     * fell behind by more than LAZY: exact in the end, since sums and outputs share it, and mostly a vote instead of
     * shuffles. */
    __device__ __forceinline__ void softmax(const params &p, const control<C> &ctl, typename T::score &s, int key0,
                                            bool mask, int g, int t) {
        float most[NQ][2];
        bool behind = false;
        scale_scores(p, s);
#pragma unroll
        for (int n = 0; n < NQ; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int limit = mask ? ctl.limit[n * 8 + 2 * t + e] : 0;
                const uint32_t span = mask ? (uint32_t)ctl.span[n * 8 + 2 * t + e] : 0;
                most[n][e] = NO_SCORE;
#pragma unroll
                for (int k = 0; k < T::KM; k++)
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        float &x = s[k][n][2 * h + e];
                        if (mask && (uint32_t)(limit - 1 - key0 - T::key_of(k, g, h)) >= span) x = -INFINITY;
                        most[n][e] = fmaxf(most[n][e], x);
                    }
                behind |= most[n][e] > m[n][e] + LAZY;
            }
        if (__any_sync(0xffffffffu, behind)) raise(most);
#pragma unroll
        for (int n = 0; n < NQ; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float zero = m[n][e] - (C::codes::P_HALF ? HALF_BASE : 0.0f);
#pragma unroll
                for (int k = 0; k < T::KM; k++)
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        float p = ptx::exp2(s[k][n][2 * h + e] - zero);
                        if constexpr (C::codes::VC ==
                                      CODE_BF16) /* sum what is multiplied: weights then add up to one */
                            p = ptx::bf16_low(ptx::pack<false>(p, 0.0f));
                        s[k][n][2 * h + e] = p;
                        l[n][e] += p;
                    }
            }
    }

    __device__ __forceinline__ void raise(float (&most)[NQ][2]) {
#pragma unroll
        for (int n = 0; n < NQ; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float x = most[n][e];
#pragma unroll
                for (int d = 4; d < 32; d <<= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
                x = fmaxf(x, m[n][e]);
                const float change = ptx::exp2(m[n][e] - x);
                m[n][e] = x;
                l[n][e] *= change;
#pragma unroll
                for (int d = 0; d < T::DM; d++) {
                    o[d][n][e] *= change;
                    o[d][n][2 + e] *= change;
                }
            }
    }

    /* Sum over the eight lanes of a query. */
    __device__ __forceinline__ void finish_rows() {
#pragma unroll
        for (int n = 0; n < NQ; n++)
#pragma unroll
            for (int e = 0; e < 2; e++)
#pragma unroll
                for (int d = 4; d < 32; d <<= 1) l[n][e] += __shfl_xor_sync(0xffffffffu, l[n][e], d);
    }
};

/* ---- kernel ------------------------------------------------------------------------------------------- */

template <int S, int D, int NQ> struct columns_kernel {
    using C = columns_form<S, D, NQ>;
    static constexpr int HEAD_DIM = D;

    /* Outputs of this warp into shared memory, brought to the common maximum of their query. */
    __device__ static __forceinline__ void merge(columns8<C> &x, control<C> &ctl, float *to, int warp) {
        using T = typename C::tile;
        const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
        x.finish_rows();
#pragma unroll
        for (int n = 0; n < NQ; n++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (g == 0) ctl.m[warp][n * 8 + 2 * t + e] = x.m[n][e], ctl.l[warp][n * 8 + 2 * t + e] = x.l[n][e];
        __syncthreads(); /* the rings are idle now: their memory takes the outputs */
#pragma unroll
        for (int n = 0; n < NQ; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int query = n * 8 + 2 * t + e, row = warp * C::RB + query;
                const float f = merge_weight<C>(ctl, query, x.m[n][e]) * (C::codes::P_HALF ? 16384.0f : 1.0f);
#pragma unroll
                for (int d = 0; d < T::DM; d += C::codes::VC == CODE_BF16 ? 1 : 2) {
                    float *at = to + merge_place<D>(row, C::codes::channel(2 * d, g));
                    if constexpr (C::codes::VC == CODE_BF16) {
                        *at = x.o[d][n][e] * f;
                        to[merge_place<D>(row, C::codes::channel(2 * d + 1, g))] = x.o[d][n][2 + e] * f;
                    } else {
                        *(float4 *)at = make_float4(x.o[d][n][e] * f, x.o[d][n][2 + e] * f, x.o[d + 1][n][e] * f,
                                                    x.o[d + 1][n][2 + e] * f);
                    }
                }
            }
        __syncthreads();
    }

    __device__ static __forceinline__ void run_share(const params &p, const key_segment &s, uint8_t *smem,
                                                     control<C> &ctl) {
        using T = typename C::tile;
        const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
        const uint32_t base = ptx::smem_address(smem);
        __syncthreads(); /* the segment before is stored */
        ring<C> ring(p, base + warp * C::NS * C::SLOT, lane);
        ring.start_share(s, warp);
        if (threadIdx.x == 0) ctl.lowest = INT32_MAX, ctl.highest = 0;
        __syncthreads();
        load_queries<C, D>(p, s, (uint16_t *)(smem + C::Q_AT), ctl, warp, lane);
        __syncthreads();
        columns8<C> x;
        x.start_share(ctl, lane & 3);
        for (int tile = ring.first_tile + warp; tile < ring.n_tiles; tile += C::WARPS) {
            typename T::score scores;
            T::multiply_scores(scores, base + C::Q_AT, ring.take(), lane);
            const int key0 = (int)s.first * KVD_PAGE_TOKENS + tile * C::TK;
            x.softmax(p, ctl, scores, key0, key0 + C::TK > ctl.lowest || key0 < ctl.highest, lane >> 2, lane & 3);
            const uint32_t v = ring.take();
            if (key0 + C::TK > (int)s.keys) ring.clear_values(v, (int)s.keys - key0);
            T::multiply_values(x.o, scores, v, lane);
        }
        ptx::copy_wait<0>();
        merge(x, ctl, (float *)smem, warp);
        store_rows<C, D>(p, s, ctl, (const float *)smem);
    }
};

template <int S, int D, int NQ>
__global__ void __launch_bounds__(128, columns_form<S, D, NQ>::PER_SM)
    attention_columns(const __grid_constant__ params p) {
    extern __shared__ __align__(1024) uint8_t smem[];
    walk_share<columns_kernel<S, D, NQ>>(p, smem);
}

template <int S, int D, int NQ> instance make_columns() {
    using C = columns_form<S, D, NQ>;
    static_assert(fits<C>(), "fewer CTAs a multiprocessor than planned");
    return { (const void *)attention_columns<S, D, NQ>, C::SMEM, C::RB, C::PER_SM, 128, false };
}

} /* namespace attn */

#endif
