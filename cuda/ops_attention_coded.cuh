/* SPDX-License-Identifier: Apache-2.0
 *
 * Coded form: the block form for quantized profiles. The warpgroups that multiply are those of the block form
 * (multiplier), in FP16; the others bring stored pages into a small ring of their own (bulk copies of codes and scales
 * as they lie), and decode each once for all rows of the block into the slots that the products read.
 *
 * Who does what. One warpgroup decodes (page_decoder); two beside one that multiplies, for keys and values at head_dim
 * 128 and more (FETCHERS). Its first warp also reads page ids and starts the copies: one thread, one bulk copy of the
 * codes and one of the scales of a page and head. Warpgroups that multiply: one for up to 64 rows, else two.
 *
 * Stages of an item (half a tile: keys or values) on the decoding side:
 *   wait until its codes have arrived                     arrived
 *   find the power of two of its scales                   power_of
 *   wait until the products gave the next slot back       ring.empty
 *   load 16 bytes, widen, scale, store 32 or 64           decode_bytes, decode_fp4
 *   fence to the asynchronous proxy, barrier 8, full      decode
 *   start the copies of the item NC further on            copy_item, copy_pair
 * The multiplying side goes through the stages of the block form, but waits for V(t - 1) behind the issue of the
 * scores, since decoded values come later than copied ones.
 *
 * Numbers. Every stored number becomes FP16, each page times a power of two that brings its largest scale to about 2^6:
 * codes of INT8 and FP8 are exact in FP16, so a number keeps 11 bits, and what falls below FP16's range is 2^-25 of the
 * page's largest. For keys the power goes to the factor of the tile's scores; for values it only ever falls while a
 * segment lasts, and the sums follow where it does. NVFP4 is exact with a factor 2^-14 for all pages. P starts at 2^6.
 * What one in a slot is worth (its unit) stands beside the slots; multipliers read it with the slot.
 *
 * Items. Half tiles in the order of the block form's ring: K(0), then K(t), V(t - 1), then the last V. The copies of
 * item j + NC start when item j is decoded.
 *
 * Keys in FP8 (FP8, K8V4; DIRECT) at head_dim 256 are not decoded. Tensor maps bring their codes into a ring of their
 * own, and E4M3 products read them there. A query has eight significant bits, E4M3 has four: it is the sum of two E4M3,
 * and both are multiplied, which costs as much as one product in FP16. The scale of a key multiplies its scores. Only
 * values are items then; the copies of tile t + NC start when V(t) is decoded.
 *
 * Numbers of an instance at head_dim 256 (tiles of 64 keys, slots of FP16 of 32 KiB, one CTA a multiprocessor):
 *   profile   multiplying, decoding   slots   as stored       keys in FP8     registers
 *   INT8      1, 2                    3       5 of 16.5 KiB                   240, 128
 *   NVFP4     1, 2                    3       8 of 9 KiB                      240, 128
 *   FP8       1, 1                    2       3 of 16.1 KiB   4 of 16.1 KiB   240, 128
 *   K8V4      1, 1                    2       4 of 9 KiB      5 of 16.1 KiB   240, 128
 *   INT8      2, 1                    3       3 of 16.5 KiB                   224, 56
 *   NVFP4     2, 1                    4       3 of 9 KiB                      224, 56
 *   FP8       2, 1                    2       2 of 16.1 KiB   3 of 16.1 KiB   224, 56
 *   K8V4      2, 1                    2       3 of 9 KiB      4 of 16.1 KiB   224, 56
 * Below 256 channels there are 4 slots, up to 8 stored items, and registers stay as compiled.
 *
 * Shared memory: NS slots of FP16; Q_AT: queries; KEYS_AT: NK slots of keys in FP8; STORED_AT: NC slots of codes and
 * scales as stored; SCALES_AT: scales of the keys in FP8; BARRIERS_AT: full and empty of the slots of FP16; ARRIVED_AT:
 * one a stored item; UNITS_AT; KEY_BARRIERS_AT: full and empty of the slots of keys; LINE_AT: the line; FROM_AT.
 */
#ifndef KVD_CUDA_OPS_ATTENTION_CODED_CUH
#define KVD_CUDA_OPS_ATTENTION_CODED_CUH

#include "ops_attention_block.cuh"
#include "ops_attention_columns.cuh"

namespace attn {

template <int S, int D_, int WG_, bool LOGITS_> struct coded_form {
    static constexpr bool LOGITS = LOGITS_;
    static constexpr int D = D_, WG = WG_;
    using codes = attn::codes<S, D>;
    static constexpr bool DIRECT = codes::KC == CODE_FP8 && D == 256;     /* keys are multiplied as stored */
    static constexpr int FETCHERS = WG == 1 && D > 64 && !DIRECT ? 2 : 1; /* warpgroups that copy and decode */
    static constexpr int TK = KVD_PAGE_TOKENS, PAGES = 1;
    static constexpr bool CODED = true, TURNS = WG == 2;
    static constexpr float FIRST = HALF_BASE;
    static constexpr int RB = 64 * WG, WARPS = 4 * (WG + FETCHERS), MULTIPLIERS = 128 * WG, PER_SM = 1;
    static constexpr int Q_STEPS = 0, MORE = D < 256 ? 0 : WG == 2 ? 224 : 240, FEWER = WG == 2 ? 56 : 128;
    static constexpr int SLOT = TK * D * 2, Q_BYTES = 64 * D * 2;
    static constexpr int K_SLOT = DIRECT ? TK * codes::K_ROW : 0, K_SCALES = DIRECT ? TK * codes::K_SCALE : 0;
    static constexpr int V_STORED = TK * (codes::V_ROW + codes::V_SCALE);
    static constexpr int STORED = DIRECT ? V_STORED : max_of(TK * (codes::K_ROW + codes::K_SCALE), V_STORED);
    static constexpr int NS = DIRECT ? 2 : D < 256 || (WG == 2 && S == KVD_STORAGE_NVFP4) ? 4 : 3;
    static constexpr int FROM_BYTES = LOGITS ? RB * 4 : 0, KEY_BARRIERS = DIRECT ? 8 * 16 : 0;
    static constexpr int CONTROL = (MAX_ENTRIES + 1) * 4 + 8 * 16 + 8 * 8 + 8 * 4 + KEY_BARRIERS + FROM_BYTES;
    static constexpr int FIT =
        (227 * 1024 - WG * Q_BYTES - NS * SLOT - CONTROL - K_SLOT - K_SCALES) / (STORED + K_SLOT + K_SCALES);
    static constexpr int MOST = DIRECT ? 7 : 8, NC = FIT > MOST ? MOST : FIT, NK = DIRECT ? NC + 1 : 0;
    static constexpr int AT = 0, Q_AT = NS * SLOT, KEYS_AT = Q_AT + WG * Q_BYTES, STORED_AT = KEYS_AT + NK * K_SLOT;
    static constexpr int SCALES_AT = STORED_AT + NC * STORED, BARRIERS_AT = SCALES_AT + NK * K_SCALES;
    static constexpr int ARRIVED_AT = BARRIERS_AT + 8 * 16, UNITS_AT = ARRIVED_AT + 8 * 8;
    static constexpr int KEY_BARRIERS_AT = UNITS_AT + 8 * 4, LINE_AT = KEY_BARRIERS_AT + KEY_BARRIERS;
    static constexpr int FROM_AT = LINE_AT + (MAX_ENTRIES + 1) * 4, SMEM = FROM_AT + FROM_BYTES;
    static_assert(NC >= 2, "one item being decoded, one in flight");

    /* The ring of keys as stored. */
    struct key_slots {
        static constexpr int AT = KEYS_AT, NS = NK, SLOT = K_SLOT, BARRIERS_AT = KEY_BARRIERS_AT;
        static constexpr int MULTIPLIERS = coded_form::MULTIPLIERS;
    };
};

/* ---- decoding of 16 stored bytes into pieces of a slot ---- */

/* Four INT8 codes, sign bits turned, to FP16: 1024 + 128 + code, less 1152. */
__device__ __forceinline__ uint2 widen_int8(uint32_t x, uint32_t scale) {
    x ^= 0x80808080u;
    const uint32_t a = ptx::sub_half2(__byte_perm(x, 0x64646464u, 0x4140), 0x64806480u);
    const uint32_t b = ptx::sub_half2(__byte_perm(x, 0x64646464u, 0x4342), 0x64806480u);
    return make_uint2(ptx::mul_half2(a, scale), ptx::mul_half2(b, scale));
}

__device__ __forceinline__ uint2 widen_e4m3(uint32_t x, uint32_t scale) {
    return make_uint2(ptx::mul_half2(ptx::e4m3_to_half2(x), scale), ptx::mul_half2(ptx::e4m3_to_half2(x >> 16), scale));
}

template <code KIND> __device__ __forceinline__ uint4 widen_bytes(uint32_t x, uint32_t y, uint32_t scale) {
    const uint2 a = KIND == CODE_INT8 ? widen_int8(x, scale) : widen_e4m3(x, scale);
    const uint2 b = KIND == CODE_INT8 ? widen_int8(y, scale) : widen_e4m3(y, scale);
    return make_uint4(a.x, a.y, b.x, b.y);
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

/* ---- the warpgroups that copy and decode ---- */

template <class C> struct page_decoder {
    using K = typename C::codes;
    static constexpr int THREADS = 128 * C::FETCHERS, TK = C::TK, D = C::D;
    tile_ring<C> ring;
    tile_ring<typename C::key_slots> keys;
    const params &p;
    const page_maps *maps;
    uint64_t policy;
    page_ids table;
    int32_t now, before; /* pages of the last two K items copied */
    uint32_t stored, arrived;
    int thread, lane, slot_in, slot_out;
    uint32_t parity;
    int lowest; /* power of the values so far */

    __device__ static __forceinline__ void start_share(uint32_t smem, const page_maps *m) {
        if constexpr (C::DIRECT) {
            ptx::fetch_map(&m->k);
            tile_ring<typename C::key_slots>::start_share(smem);
        }
        for (int i = 0; i < C::NC; i++) ptx::barrier_start(smem + C::ARRIVED_AT + (uint32_t)i * 8, 1);
    }
    __device__ __forceinline__ page_decoder(uint32_t smem, const params &params, const page_maps *m)
        : ring(smem), keys(smem), p(params), maps(m), policy(params.n_blocks > 1 ? ptx::READ_OFTEN : ptx::READ_ONCE),
          stored(smem + C::STORED_AT), arrived(smem + C::ARRIVED_AT), thread((int)threadIdx.x - C::MULTIPLIERS),
          lane(threadIdx.x & 31), slot_in(0), slot_out(0), parity(0) {
        asm volatile("" : "+r"(thread)); /* a value to keep */
    }

    __device__ __forceinline__ void copy_plane(uint32_t to, const plane &from, uint32_t head, uint32_t bytes) const {
        ptx::copy_bulk(to, from.base + (uint64_t)(uint32_t)before * from.page + head * from.head, bytes,
                       arrived + (uint32_t)slot_in * 8, policy);
    }
    template <int ROW, int SCALE>
    __device__ __forceinline__ void copy_tile(const plane &from, const plane &scales, uint32_t head) const {
        const uint32_t to = stored + (uint32_t)(slot_in * C::STORED);
        ptx::barrier_expect(arrived + (uint32_t)slot_in * 8, TK * (ROW + SCALE));
        copy_plane(to, from, head, TK * ROW);
        copy_plane(to + TK * ROW, scales, head, TK * SCALE);
    }
    /* Starts the copies of item j of 2 n; the first warp. */
    __device__ __forceinline__ void copy_item(const key_segment &s, int j, int n) {
        if (j >= 2 * n) return;
        const bool keys = j == 0 || ((j & 1) && j != 2 * n - 1);
        if (keys) {
            const int32_t last = now;
            now = (int32_t)table.entry_at(s.first + (uint32_t)(j == 0 ? 0 : (j + 1) / 2), lane);
            before = now;
            if (lane == 0) copy_tile<K::K_ROW, K::K_SCALE>(p.k, p.k_scale, s.head);
            before = last;
        } else {
            if (j == 2 * n - 1) before = now;
            if (lane == 0) copy_tile<K::V_ROW, K::V_SCALE>(p.v, p.v_scale, s.head);
        }
        slot_in = slot_in + 1 == C::NC ? 0 : slot_in + 1;
    }

    /* Keys in their slot as the products read them: codes by boxes of 128 channels, scales as they lie. */
    __device__ __forceinline__ void copy_keys(uint32_t head) const {
        const int i = keys.slot;
        ptx::barrier_expect(keys.full(i), TK * (K::K_ROW + K::K_SCALE));
#pragma unroll
        for (int box = 0; box < K::K_ROW / 128; box++)
            ptx::copy_box(keys.entry_at(i) + (uint32_t)(box * TK * 128), &maps->k, keys.full(i), box * 128, 0,
                          (int)head, before, policy);
        ptx::copy_bulk(ring.base + C::SCALES_AT + (uint32_t)i * C::K_SCALES,
                       p.k_scale.base + (uint64_t)(uint32_t)before * p.k_scale.page + head * p.k_scale.head,
                       TK * K::K_SCALE, keys.full(i), policy);
    }
    /* Starts the copies of the keys and values of tile t of n; the first warp. The slot of keys was given back before
     * the last slot of values that was waited for. */
    __device__ __forceinline__ void copy_pair(const key_segment &s, int t, int n) {
        if (t >= n) return;
        before = (int32_t)table.entry_at(s.first + (uint32_t)t, lane);
        ptx::barrier_wait(keys.empty(keys.slot), keys.parity ^ 1);
        if (lane == 0) {
            copy_keys(s.head);
            copy_tile<K::V_ROW, K::V_SCALE>(p.v, p.v_scale, s.head);
        }
        keys.advance();
        slot_in = slot_in + 1 == C::NC ? 0 : slot_in + 1;
    }

    /* Two FP16 scales a word: the larger one's bits. They are never negative. */
    __device__ static __forceinline__ uint32_t larger(uint32_t most, uint32_t two) {
        return max(most, max(two & 0xffffu, two >> 16));
    }
    /* The power of two that a page's scales are brought up by: of those of the first `live` keys. */
    template <code KIND, int ROW, int SCALE> __device__ __forceinline__ int power_of(uint32_t from, int live) const {
        if constexpr (KIND == CODE_FP4) return FP4_SHIFT;
        uint32_t most = 0;
        if constexpr (SCALE == 2) {
            const uint32_t two = ptx::load32(from + TK * ROW + (uint32_t)lane * 4);
            most = larger(0, 2 * lane + 1 < live ? two : 2 * lane < live ? two & 0xffffu : 0);
        } else if constexpr (SCALE == 4) {
            const uint2 x = ptx::load64(from + TK * ROW + (uint32_t)lane * 8);
            if (2 * lane < live) most = larger(0, x.x);
            if (2 * lane + 1 < live) most = larger(most, x.y);
        } else {
            const uint4 x = ptx::load128(from + TK * ROW + (uint32_t)lane * 16);
            if (2 * lane < live) most = larger(larger(0, x.x), x.y);
            if (2 * lane + 1 < live) most = larger(larger(most, x.z), x.w);
        }
        most = __reduce_max_sync(0xffffffffu, most);
        const int exponent = most < 0x400u ? -14 : (int)(most >> 10) - 15;
        return min(15, 6 - exponent);
    }

    /* Rows of codes of one byte into a slot. Of eight neighbours four read one row and four the next, so that reads and
     * writes of a quarter warp touch all banks. PART: rows from `live` on are made zero. */
    template <code KIND, int SCALE, bool PART>
    __device__ __forceinline__ void decode_bytes(uint32_t to, uint32_t from, int power, int live) const {
        constexpr int ROW = D, PIECES = D / 16, STEP = THREADS / PIECES; /* rows from one turn to the next */
        constexpr int BATCH = TK / STEP < 4 ? TK / STEP : 4;
        const int eighth = thread & 7, pair = thread / (2 * PIECES); /* of rows */
        const int c = D < 128 ? thread & 3 : thread / 8 * 8 % PIECES + eighth;
        const int row = pair * 2 + (D < 128 ? eighth >> 2 : (eighth >> 2) ^ (thread / PIECES & 1));
        const uint32_t at = from + (uint32_t)(row * ROW + c * 16), two = (uint32_t)(power + 15) << 10;
        const uint32_t scale_at = from + (uint32_t)(TK * ROW + row * SCALE + (SCALE == 2 ? 0 : (c >> 2) * 2));
        const uint32_t first = operand_place<TK>(to, row, 2 * c), up = two << 16 | two;
#pragma unroll 1
        for (int i = 0; i < TK / STEP; i += BATCH) { /* four loads on their way before the first is used */
            uint4 w[BATCH];
            uint32_t scale[BATCH];
#pragma unroll
            for (int k = 0; k < BATCH; k++) {
                w[k] = ptx::load128(at + (uint32_t)((i + k) * STEP * ROW));
                scale[k] = ptx::load16(scale_at + (uint32_t)((i + k) * STEP * SCALE));
            }
#pragma unroll
            for (int k = 0; k < BATCH; k++) {
                const uint32_t down = (uint32_t)((i + k) * STEP * 128),
                               x = ptx::mul_half2(scale[k] << 16 | scale[k], up);
                const bool none = PART && row + (i + k) * STEP >= live;
                const uint4 &y = w[k];
                ptx::store128(first + down, none ? make_uint4(0, 0, 0, 0) : widen_bytes<KIND>(y.x, y.y, x));
                ptx::store128((first ^ 16u) + down, none ? make_uint4(0, 0, 0, 0) : widen_bytes<KIND>(y.z, y.w, x));
            }
        }
    }
    /* The same for NVFP4: eight neighbours read eight pieces of four rows. */
    template <bool PART> __device__ __forceinline__ void decode_fp4(uint32_t to, uint32_t from, int live) const {
        constexpr int ROW = D / 2, SCALE = D / 16, PIECES = D / 32, STEP = THREADS / PIECES;
        const int eighth = thread & 7, four = thread / (4 * PIECES) * 4; /* rows of a turn, in fours */
        const int c = D == 256   ? eighth
                      : D == 128 ? (eighth & 1) | ((eighth >> 2) ^ (thread >> 3 & 1)) << 1
                                 : eighth & 1;
        const int row = four + (D == 256 ? (eighth >> 1) + (thread >> 3 & 3) & 3 : eighth >> 1);
        const uint32_t at = from + (uint32_t)(row * ROW + c * 16),
                       scales = from + (uint32_t)(TK * ROW + row * SCALE + c * 2);
        const uint32_t first = operand_place<TK>(to, row, 4 * c); /* piece j: first ^ j << 4 */
        uint4 w[TK / STEP];
        uint32_t scale[TK / STEP];
#pragma unroll
        for (int i = 0; i < TK / STEP; i++) {
            w[i] = ptx::load128(at + (uint32_t)(i * STEP * ROW));
            scale[i] = ptx::load16(scales + (uint32_t)(i * STEP * SCALE));
        }
#pragma unroll
        for (int i = 0; i < TK / STEP; i++) {
            const uint32_t two = PART && row + i * STEP >= live ? 0 : ptx::e4m3_to_half2(scale[i]);
            const uint32_t down = (uint32_t)(i * STEP * 128), a = __byte_perm(two, 0, 0x1010),
                           b = __byte_perm(two, 0, 0x3232);
            ptx::store128(first + down, widen_fp4(w[i].x, a));
            ptx::store128((first ^ 16u) + down, widen_fp4(w[i].y, a));
            ptx::store128((first ^ 32u) + down, widen_fp4(w[i].z, b));
            ptx::store128((first ^ 48u) + down, widen_fp4(w[i].w, b));
        }
    }
    template <code KIND, int SCALE, bool PART>
    __device__ __forceinline__ void decode_rows(uint32_t to, uint32_t from, int power, int live) const {
        if constexpr (KIND == CODE_FP4) decode_fp4<PART>(to, from, live);
        else decode_bytes<KIND, SCALE, PART>(to, from, power, live);
    }
    /* Of keys, what lies in the rows from `live` on does not matter: their scores are masked. */
    template <code KIND, int ROW, int SCALE, bool VALUES>
    __device__ __forceinline__ void decode(uint32_t from, int live) {
        const int i = ring.slot;
        int power = power_of<KIND, ROW, SCALE>(from, live);
        if (VALUES) lowest = power = min(lowest, power);
        ptx::barrier_wait(ring.empty(i), ring.parity ^ 1);
        if (VALUES && live < TK) decode_rows<KIND, SCALE, true>(ring.entry_at(i), from, power, live);
        else decode_rows<KIND, SCALE, false>(ring.entry_at(i), from, power, live);
        if (thread == 0) ptx::store32(ring.unit_at(i), (uint32_t)(127 - (KIND == CODE_FP4 ? -power : power)) << 23);
        ptx::fence_async();
        ptx::group_sync<THREADS>(8);
        if (thread == 0) ptx::barrier_arrive(ring.full(i));
        ring.advance();
    }

    __device__ __forceinline__ void run_share(key_segment &s) {
        const int n = tiles_of(s, TK),
                  keys = (int)min(s.keys, s.end * KVD_PAGE_TOKENS) - (int)(s.first * KVD_PAGE_TOKENS);
        s.table = table_row(p, (uint32_t)p.table_rows[s.b]);
        lowest = 15;
        if (thread < 32) table.start_share(s, p.n_pages, lane);
        if constexpr (C::DIRECT) run_pairs(s, n, keys);
        else run_items(s, n, keys);
    }
    __device__ __forceinline__ void run_pairs(const key_segment &s, int n, int keys) {
        if (thread < 32)
            for (int t = 0; t < C::NC; t++) copy_pair(s, t, n);
        for (int t = 0; t < n; t++) {
            ptx::barrier_wait(arrived + (uint32_t)slot_out * 8, parity);
            decode<K::VC, K::V_ROW, K::V_SCALE, true>(stored + (uint32_t)(slot_out * C::STORED), keys - t * TK);
            if (++slot_out == C::NC) slot_out = 0, parity ^= 1;
            if (thread < 32) copy_pair(s, t + C::NC, n);
        }
    }
    __device__ __forceinline__ void run_items(const key_segment &s, int n, int keys) {
        if (thread < 32)
            for (int j = 0; j < C::NC; j++) copy_item(s, j, n);
        for (int j = 0; j < 2 * n; j++) {
            const bool last = j == 2 * n - 1;
            const uint32_t from = stored + (uint32_t)(slot_out * C::STORED);
            ptx::barrier_wait(arrived + (uint32_t)slot_out * 8, parity);
            if (j == 0 || ((j & 1) && !last)) decode<K::KC, K::K_ROW, K::K_SCALE, false>(from, keys - (j + 1) / 2 * TK);
            else decode<K::VC, K::V_ROW, K::V_SCALE, true>(from, keys - (last ? n - 1 : j / 2 - 1) * TK);
            if (++slot_out == C::NC) slot_out = 0, parity ^= 1;
            if (thread < 32) copy_item(s, j + C::NC, n);
        }
    }
};

template <int S, int D, int WG, bool LOGITS>
__global__ void __launch_bounds__(32 * (coded_form<S, D, WG, LOGITS>::WARPS), 1)
    attention_coded(const __grid_constant__ params p, const __grid_constant__ page_maps maps) {
    run_block<coded_form<S, D, WG, LOGITS>, page_decoder<coded_form<S, D, WG, LOGITS>>>(p, &maps);
}

template <int S, int D, int WG, bool LOGITS> instance make_coded() {
    using C = coded_form<S, D, WG, LOGITS>;
    static_assert(C::SMEM + 1024 <= SM_SHARED, "more shared memory than a multiprocessor has");
    static_assert(registers_suffice<C>(), "the multipliers would wait for registers for ever");
    return { (const void *)attention_coded<S, D, WG, LOGITS>, C::SMEM, C::RB, C::PER_SM, 32 * C::WARPS, C::DIRECT };
}

/* Windows and soft caps have one block form, of 128 rows. Below 256 channels it is that of 128 rows without them, too:
 * an instance less to build, for a few percent. */
template <int S, int D> instance pick_coded(uint64_t rows, bool logits) {
    if (rows <= 64 && !logits) return make_coded<S, D, 1, false>();
    if constexpr (D == 256)
        if (!logits) return make_coded<S, D, 2, false>();
    return make_coded<S, D, 2, true>();
}

/* The columns form rounds the product of a weight and a scale to BF16. INT8 at 64 has one scale a row: where a sequence
 * has one key, nothing evens that error out, and it is more than VIEW-6 allows. */
template <int S, int D> instance pick_quantized(uint64_t rows, bool logits) {
    if constexpr (S != KVD_STORAGE_INT8 || D > 64)
        if (rows <= 8) return make_columns<S, D, 1>();
    if constexpr (D > 64)
        if (rows <= 16) return make_columns<S, D, 2>();
    return pick_coded<S, D>(rows, logits);
}

} /* namespace attn */

#endif
