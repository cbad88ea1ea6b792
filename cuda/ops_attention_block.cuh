/* SPDX-License-Identifier: Apache-2.0
 *
 * Block form: 64 rows of packed queries a warpgroup against tiles of one or two pages, for verify (one warpgroup,
 * memory bound) and prefill (two or three that share the tiles). This file has the kernel for BF16; its multiplier also
 * serves the coded form (ops_attention_coded.cuh). Who knows FlashAttention-3 finds a producer warpgroup with TMA,
 * overlap inside a warpgroup and turns between two here; what differs is said at "Not as there".
 *
 * Who does what. The last warpgroup copies: its first warp reads page ids and has the bulk copy unit bring boxes of 64
 * channels x 64 keys through the tensor maps of K and V, each tile into the next slot of a ring. The maps have the page
 * as their last dimension, so that a page id is a coordinate; each of the first lanes starts one box. The warp runs
 * ahead of the products, over the ends of segments too, as far as there are empty slots. Its warpgroup gives most of
 * its registers away (setmaxnreg; its other three warps end). Every other warpgroup multiplies (wgmma): its queries lie
 * in shared memory (the first Q_STEPS contraction steps in registers, which spares shared memory their reads), S, P and
 * O in registers.
 *
 * Stages of a tile t in a warpgroup (overlap inside the warpgroup):
 *   wait for K(t) and V(t - 1), and for the turn       next_tile
 *   issue S' = Q K(t)                                  multiply_scores
 *   issue O += P V(t - 1), pass the turn on            multiply_values
 *   wait for S', give the slot of K(t) back            wait_scores
 *   mask, maximum, exponentials, sums of S'            soften; O is still on its way
 *   wait for O, give the slot of V(t - 1) back
 *   bring O to the new maximum, if that rose           follow
 *   round S' to P, the next left operand               round_weights
 * The first tile has no O, the last V has no S (first_tile, last_tile). With two warpgroups the issues of one stand
 * against the softmax of the other: named barriers 6 and 7 hand the turn over.
 *
 * Order in the ring: K(0), then K(t), V(t - 1) for every t, then the last V. Each slot has two barriers: full (one
 * arrival of the copying warp and the bytes) and empty (one arrival of every multiplying warp).
 *
 * Not as there. Rows are the heads of a group and columns together, so KV is read once for both (PackGQA is the only
 * form). Softmax is lazy: the maximum in use follows the true one only when it fell behind by more than 2^LAZY; P and
 * its sum share it, so the result is exact, and a tile mostly needs a vote and no exchange. Keys behind the limit or
 * before a window are masked in the few tiles that have any (lowest, highest). Work is cut by pages, not by blocks of
 * queries alone (ops_attention_params.cuh), so CTAs do not stay for a next block but where the line is cut.
 *
 * Numbers of an instance (D: head_dim; K and V a slot each; registers of a thread that multiplies, that copies):
 *   D    warpgroups   keys a tile   slots        queries   CTAs a multiprocessor   registers
 *   256  1            64            6 of 32 KiB  32 KiB    1                       as compiled
 *   256  2            64            5 of 32 KiB  64 KiB    1                       240, 24
 *   128  1            64            5 of 16 KiB  16 KiB    2                       208, 40
 *   128  2            128           6 of 32 KiB  32 KiB    1                       240, 24; queries: 8 steps of 8
 *   64   1            64            8 of 8 KiB   8 KiB     2                       208, 40
 *   64   3            128           8 of 16 KiB  24 KiB    1                       160, 32
 *
 * Shared memory, from address 0 (AT): NS slots [D / 64][TK][128 bytes]; Q_AT: queries [WG][D / 64][64][128 bytes], all
 * in the 128-byte swizzle (the outputs of a block pass through the latter as BF16); BARRIERS_AT: full and empty of each
 * slot; LINE_AT: units before each entry of the work list; FROM_AT, with windows: the first key that a row sees.
 *
 * Named barriers: 0 the CTA; 1 to 3 a multiplying warpgroup; 5 all multipliers; 6, 7 turns.
 */
#ifndef KVD_CUDA_OPS_ATTENTION_BLOCK_CUH
#define KVD_CUDA_OPS_ATTENTION_BLOCK_CUH

#include <cuda.h>

#include "ops_attention_work.cuh"
#include "ops_wgmma.cuh"

namespace attn {

/* K and V as the copy unit sees them: channel, token, kv head, page. */
struct page_maps {
    CUtensorMap k, v;
};

/* Address of the 16-byte piece of a row in an operand: pieces of [rows][128 bytes], one a 64 channels. */
template <int ROWS> __device__ __forceinline__ uint32_t operand_place(uint32_t base, int row, int chunk) {
    return base + (uint32_t)((chunk >> 3) * ROWS * 128 + row * 128 + (((chunk & 7) ^ (row & 7)) << 4));
}

constexpr float BLOCK_LAZY = 8.0f; /* P may exceed its first value by 2^this before the maximum follows */

template <int D_, int WG_, bool LOGITS_> struct block_form {
    static constexpr int D = D_, WG = WG_;
    static constexpr bool LOGITS =
        LOGITS_; /* with windows and soft caps, which cost a few percent where there are none */
    static constexpr int TK = WG > 1 && D <= 128 ? 128 : 64, PAGES = TK / KVD_PAGE_TOKENS;
    static constexpr bool CODED = false, DIRECT = false;
    using key_slots = block_form; /* keys and values share a ring */
    static constexpr int AT = 0;
    static constexpr float FIRST = 0.0f; /* log2 of P where a score is the maximum in use */
    static constexpr int RB = 64 * WG, WARPS = 4 * WG + 4, MULTIPLIERS = 128 * WG;
    static constexpr int PER_SM = WG == 1 && D <= 128 ? 2 : 1;
    static constexpr bool TURNS = WG == 2;
    static constexpr int Q_STEPS = WG == 2 && D == 128 ? 8 : 0; /* for more there are no registers */
    /* Registers of a thread that multiplies and of one that copies; 0: as compiled. */
    static constexpr int MORE = WG == 3 ? 160 : WG == 2 ? 240 : PER_SM == 2 ? 208 : 0;
    static constexpr int FEWER = WG == 3 ? 32 : WG == 2 ? 24 : 40;
    static constexpr int SLOT = TK * D * 2, Q_BYTES = 64 * D * 2;
    static constexpr int FROM_BYTES = LOGITS ? RB * 4 : 0;
    static constexpr int CONTROL = (MAX_ENTRIES + 1) * 4 + 8 * 16 + FROM_BYTES;
    static constexpr int FIT = ((PER_SM == 2 ? 113 : 227) * 1024 - WG * Q_BYTES - CONTROL) / SLOT;
    static constexpr int NS = FIT > 8 ? 8 : FIT;
    static constexpr int Q_AT = NS * SLOT, BARRIERS_AT = Q_AT + WG * Q_BYTES, LINE_AT = BARRIERS_AT + 8 * 16;
    static constexpr int FROM_AT = LINE_AT + (MAX_ENTRIES + 1) * 4, SMEM = FROM_AT + FROM_BYTES;
    static_assert(NS >= 3, "a tile of V in use, one of K in use, one in flight");
};

/* The ring of tiles, as either side sees it. */
template <class C> struct tile_ring {
    uint32_t base, barriers;
    int slot = 0;
    uint32_t parity = 0;

    __device__ __forceinline__ explicit tile_ring(uint32_t smem)
        : base(smem + C::AT), barriers(smem + C::BARRIERS_AT) {}
    __device__ __forceinline__ uint32_t entry_at(int i) const { return base + (uint32_t)(i * C::SLOT); }
    __device__ __forceinline__ uint32_t full(int i) const { return barriers + (uint32_t)(i * 16); }
    __device__ __forceinline__ uint32_t empty(int i) const { return barriers + (uint32_t)(i * 16 + 8); }
    __device__ __forceinline__ void advance() {
        if (++slot == C::NS) slot = 0, parity ^= 1;
    }
    /* Waits for the next tile; returns its slot. */
    __device__ __forceinline__ int take_tile() {
        const int i = slot;
        ptx::barrier_wait(full(i), parity);
        advance();
        return i;
    }
    /* Coded pages: what one in a slot is worth. The copying side writes it before the slot is full. */
    __device__ __forceinline__ uint32_t unit_at(int i) const { return base + C::UNITS_AT + (uint32_t)i * 4; }
    __device__ __forceinline__ float unit(int i) const { return __uint_as_float(ptx::load32(unit_at(i))); }
    /* This warp is done with a slot. */
    __device__ __forceinline__ void give(int i, int lane) const {
        if (lane == 0) ptx::barrier_arrive(empty(i));
    }
    __device__ static void start_share(uint32_t smem) {
        const tile_ring ring(smem);
        for (int i = 0; i < C::NS; i++) {
            ptx::barrier_start(ring.full(i), 1);
            ptx::barrier_start(ring.empty(i), C::MULTIPLIERS / 32);
        }
    }
};

__device__ __forceinline__ int tiles_of(const key_segment &s, int tk) {
    const uint32_t end = s.end * KVD_PAGE_TOKENS, keys = s.keys < end ? s.keys : end;
    return (int)(keys - s.first * KVD_PAGE_TOKENS + tk - 1) / tk;
}

/* ---- the warp that copies ---------------------------------------------------------------------------------------- */

template <class C> struct tile_copier {
    tile_ring<C> ring;
    const params &p;
    const page_maps &maps;
    uint64_t policy;
    int lane;

    static constexpr int THREADS = 32;

    __device__ static __forceinline__ void start_share(uint32_t, const page_maps *m) {
        ptx::fetch_map(&m->k);
        ptx::fetch_map(&m->v);
    }
    __device__ __forceinline__ tile_copier(uint32_t smem, const params &params, const page_maps *m)
        : ring(smem), p(params), maps(*m), policy(params.n_blocks > 1 ? ptx::READ_OFTEN : ptx::READ_ONCE),
          lane(threadIdx.x & 31) {}

    /* Pages `ids` of a head into the next slot; each lane starts one box. */
    __device__ __forceinline__ void copy_tile(const CUtensorMap &map, uint32_t head, const int32_t (&ids)[C::PAGES],
                                              int n) {
        constexpr int BOXES = C::D / 64;
        const int i = ring.slot;
        ptx::barrier_wait(ring.empty(i), ring.parity ^ 1);
        if (lane == 0) ptx::barrier_expect(ring.full(i), (uint32_t)(n * KVD_PAGE_TOKENS * C::D * 2));
        __syncwarp();
        if (lane < n * BOXES) {
            const int page = lane / BOXES, box = lane % BOXES;
            ptx::copy_box(ring.entry_at(i) + (uint32_t)((box * C::TK + page * KVD_PAGE_TOKENS) * 128), &map,
                          ring.full(i), box * 64, 0, (int)head, C::PAGES == 1 || page == 0 ? ids[0] : ids[C::PAGES - 1],
                          policy);
        }
        ring.advance();
    }

    __device__ __forceinline__ void run_share(key_segment &s) {
        const int n = tiles_of(s, C::TK), pages = (int)(s.end - s.first);
        page_ids table;
        int32_t k[C::PAGES], v[C::PAGES];
        s.table = table_row(p, (uint32_t)p.table_rows[s.b]);
        table.start_share(s, p.n_pages, lane);
        for (int t = 0; t <= n; t++) {
            const int left = pages - t * C::PAGES, before = left + C::PAGES;
            if (t < n) {
#pragma unroll
                for (int j = 0; j < C::PAGES; j++)
                    if (j < left) k[j] = (int32_t)table.entry_at(s.first + (uint32_t)(t * C::PAGES + j), lane);
                copy_tile(maps.k, s.head, k, left < C::PAGES ? left : C::PAGES);
            }
            if (t > 0) copy_tile(maps.v, s.head, v, before < C::PAGES ? before : C::PAGES);
#pragma unroll
            for (int j = 0; j < C::PAGES; j++) v[j] = k[j];
        }
    }
};

/* ---- a warpgroup that multiplies ---- */

template <class C> struct multiplier {
    static constexpr int D = C::D, TK = C::TK, STEPS = D / 16, Q_STEPS = C::Q_STEPS;
    const params &p;
    tile_ring<C> ring;
    tile_ring<typename C::key_slots> keys; /* where keys have a ring of their own */
    uint32_t q;                            /* of this warpgroup */
    int group, warp, lane;                 /* warpgroup; warp in it */
    float o[D / 8][4], s[TK / 8][4];
    uint4 weights[TK / 16], queries[Q_STEPS > 0 ? Q_STEPS : 1];
    float m[2], l[2], change[2], factor[2]; /* factor: of a score to log2 units */
    int limit[2], lowest, highest; /* keys before `limit` are seen; tiles from highest to lowest need no mask */
    bool raised;
    float worth; /* of one in O */

    __device__ __forceinline__ multiplier(uint32_t smem, const params &params)
        : p(params), ring(smem), keys(smem), group(threadIdx.x >> 7), warp((threadIdx.x >> 5) & 3),
          lane(threadIdx.x & 31) {
        q = smem + C::Q_AT + (uint32_t)(group * C::Q_BYTES);
        if (C::TURNS && group == 1) ptx::group_arrive<256>(6); /* the first turn is group 0's */
    }
    __device__ __forceinline__ void finish_rows() {
        if (C::TURNS && group == 0) ptx::group_sync<256>(6); /* and so is the one left over */
    }
    __device__ __forceinline__ void sync_group() const { ptx::group_sync<128>(1 + group); }
    __device__ __forceinline__ void wait_turn() const {
        if constexpr (C::TURNS) ptx::group_sync<256>(6 + group);
    }
    __device__ __forceinline__ void pass_turn() const {
        if constexpr (C::TURNS) ptx::group_arrive<256>(6 + (1 ^ group));
    }

    /* Row i of this warp's sixteen, among those of the kv head. */
    __device__ __forceinline__ uint32_t row_of(const key_segment &x, int i) const {
        return x.block * C::RB + (uint32_t)(group * 64 + warp * 16 + i);
    }
    __device__ __forceinline__ uint64_t element_of(const key_segment &x, uint32_t r) const {
        return (((uint64_t)x.b * p.w + r / p.group) * p.heads * p.group + x.head * p.group + r % p.group) * D;
    }

    /* The warp's rows of Q; those that do not count are zero and see everything: they cost no mask, and their results
     * are dropped. Beside coded pages in FP16, each row times a power of two that goes to its factor. */
    __device__ __forceinline__ void load_queries(const key_segment &x, int valid) {
        constexpr int LANES = D / 8, ROWS = 32 / LANES; /* lanes a row, rows a turn */
        const int piece = lane % LANES;
        factor[0] = factor[1] = p.scale_log2;
#pragma unroll 4
        for (int i = lane / LANES; i < 16; i += ROWS) {
            const uint32_t r = row_of(x, i);
            uint4 v = make_uint4(0, 0, 0, 0);
            if ((int)(r / p.group) < valid) v = *(const uint4 *)(p.q + element_of(x, r) + piece * 8);
            if constexpr (C::CODED) {
                const float power = __uint_as_float((uint32_t)(127 + to_half<LANES>(v)) << 23) * p.scale_log2;
                const int from = lane / 4 % ROWS * LANES; /* ROWS divides 8 */
                const float mine = ROWS == 1 ? power : __shfl_sync(0xffffffffu, power, from);
                if (i / ROWS == lane / 4 / ROWS) factor[0] = mine;
                if (i / ROWS == (lane / 4 + 8) / ROWS) factor[1] = mine;
            }
            if constexpr (C::DIRECT) store_split(warp * 16 + i, piece, v);
            else ptx::store128(operand_place<64>(q, warp * 16 + i, piece), v);
        }
        ptx::fence_async();
        sync_group();
#pragma unroll
        for (int f = 0; f < Q_STEPS; f++)
            queries[f] = ptx::matrix4(operand_place<64>(q, warp * 16 + (lane & 15), f * 2 + (lane >> 4)));
    }

    /* Where the first key that row i of the thread's two sees is noted: for few tiles, so it takes no register. */
    __device__ __forceinline__ uint32_t from_at(int i) const {
        return ring.base + C::FROM_AT + (uint32_t)(group * 64 + warp * 16 + lane / 4 + 8 * i) * 4;
    }
    /* Eight elements of a row, FP16 of eight significant bits, as two E4M3 each whose sum they are: the second halves
     * lie behind the first ones of all rows. */
    __device__ __forceinline__ void store_split(int row, int piece, const uint4 &v) const {
        const uint32_t at = operand_place<64>(q, row, piece >> 1) + (uint32_t)(piece & 1) * 8;
        uint32_t high[4], low[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            high[j] = ptx::half2_to_e4m3(word_of(v, j));
            low[j] = ptx::half2_to_e4m3(ptx::sub_half2(word_of(v, j), ptx::e4m3_to_half2(high[j])));
        }
        ptx::store64(at, make_uint2(high[0] | high[1] << 16, high[2] | high[3] << 16));
        ptx::store64(at + 64 * D, make_uint2(low[0] | low[1] << 16, low[2] | low[3] << 16));
    }

    __device__ __forceinline__ void start_share(const key_segment &x, int valid) {
        const int end = (int)(x.end * KVD_PAGE_TOKENS);
        int from[2] = {};
#pragma unroll
        for (int n = 0; n < D / 8; n++) o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0.0f;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t w = row_of(x, lane / 4 + 8 * i) / p.group;
            m[i] = NO_SCORE, l[i] = 0.0f;
            limit[i] = (int)w < valid ? min(key_limit(p, x.b, w, valid), end) : INT32_MAX;
            if constexpr (C::LOGITS) {
                from[i] = (int)w < valid ? first_key(p, x.b, w) : 0;
                ptx::store32(from_at(i), (uint32_t)from[i]);
            }
        }
        lowest = __reduce_min_sync(0xffffffffu, min(limit[0], limit[1]));
        if constexpr (C::LOGITS) highest = __reduce_max_sync(0xffffffffu, max(from[0], from[1]));
        worth = 1.0f;
    }

    /* S = Q K^T, keys in E4M3 as stored: both halves of the queries. */
    __device__ __forceinline__ void issue_split(uint64_t a, uint64_t b) {
#pragma unroll
        for (int f = 0; f < STEPS; f++) { /* of 32 channels, first halves first */
            const int half = f / (STEPS / 2), step = f % (STEPS / 2);
            wgmma::product_e4m3(s,
                                wgmma::further(a, (uint32_t)(half * 64 * D + (step >> 2) * 64 * 128 + (step & 3) * 32)),
                                wgmma::further(b, (uint32_t)((step >> 2) * TK * 128 + (step & 3) * 32)), f > 0);
        }
    }
    /* Each key's scores times its scale. */
    __device__ __forceinline__ void scale_scores(uint32_t scales) {
#pragma unroll
        for (int n = 0; n < TK / 8; n++) {
            const uint32_t two = ptx::load32(scales + (uint32_t)(n * 8 + (lane & 3) * 2) * 2);
            const float f[2] = { ptx::half_to_float(two & 0xffffu), ptx::half_to_float(two >> 16) };
#pragma unroll
            for (int j = 0; j < 4; j++) s[n][j] *= f[j & 1];
        }
    }

    /* Issues S = Q K^T. */
    __device__ __forceinline__ void multiply_scores(int slot) {
        const uint64_t a = wgmma::along_rows(q), b = wgmma::along_rows(key_ring().entry_at(slot));
        wgmma::hold(s);
        wgmma::begin();
        if constexpr (C::DIRECT) issue_split(a, b);
        else issue_scores(a, b);
        wgmma::close();
    }
    __device__ __forceinline__ void issue_scores(uint64_t a, uint64_t b) {
#pragma unroll
        for (int f = 0; f < STEPS; f++) {
            const uint64_t keys = wgmma::further(b, (uint32_t)((f >> 2) * TK * 128 + (f & 3) * 32));
            if (f < Q_STEPS) wgmma::product_along<C::CODED>(s, queries[f < Q_STEPS ? f : 0], keys, f > 0);
            else
                wgmma::product<C::CODED>(s, wgmma::further(a, (uint32_t)((f >> 2) * 64 * 128 + (f & 3) * 32)), keys,
                                         f > 0);
        }
    }
    __device__ __forceinline__ auto &key_ring() {
        if constexpr (C::DIRECT) return keys;
        else return ring;
    }
    /* Waits for the scores, which other products may be behind, and gives the slot of their keys back. */
    template <int PENDING> __device__ __forceinline__ void wait_scores(int slot) {
        wgmma::wait<PENDING>();
        wgmma::hold(s);
        if constexpr (C::DIRECT) {
            scale_scores(ring.base + C::SCALES_AT + (uint32_t)(slot * TK * 2));
            __syncwarp(); /* every lane has read the scales */
        }
        key_ring().give(slot, lane);
    }

    /* Issues O += P V. */
    __device__ __forceinline__ void multiply_values(uint32_t v) {
        const uint64_t b = wgmma::across_rows(v, TK * 128);
        wgmma::hold(o);
        wgmma::begin();
#pragma unroll
        for (int i = 0; i < TK / 16; i++)
            wgmma::product<C::CODED>(o, weights[i], wgmma::further(b, (uint32_t)(i * 16 * 128)));
        wgmma::close();
    }

    /* Turns scores into probabilities relative to the maximum in use. O, which may be on its way, is left to follow.
     * Four chains a row, since a maximum or a sum waits longer for the one before than for its turn. */
    template <bool MASK> __device__ __forceinline__ void soften(int key0, float unit) {
        const int t2 = (lane & 3) * 2;
        float f[2] = { factor[0] * unit, factor[1] * unit };
        if constexpr (C::LOGITS)
            if (p.cap != 0.0f) cap_scores(f);
        float most[2];
        bool behind = false;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int from = MASK && C::LOGITS ? (int)ptx::load32(from_at(i)) : 0;
            float chain[4];
#pragma unroll
            for (int n = 0; n < TK / 8; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &x = s[n][2 * i + e], &c = chain[n % 2 * 2 + e];
                    const int key = key0 + n * 8 + t2 + e;
                    if (MASK && (key >= limit[i] || (C::LOGITS && key < from))) x = -INFINITY;
                    c = n < 2 ? x : fmaxf(c, x);
                }
            most[i] = fmaxf(fmaxf(chain[0], chain[1]), fmaxf(chain[2], chain[3]));
            most[i] *= f[i];
            behind |= most[i] > m[i] + BLOCK_LAZY;
        }
        raised = __any_sync(0xffffffffu, behind);
        if (raised) raise_maximum(most);
        const float base[2] = { C::FIRST - m[0], C::FIRST - m[1] };
        float sum[4] = {};
#pragma unroll
        for (int n = 0; n < TK / 8; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float x = fmaf(s[n][j], f[j >> 1], base[j >> 1]);
                s[n][j] = ptx::exp2(x);
                sum[j] += s[n][j];
            }
        l[0] += sum[0] + sum[1], l[1] += sum[2] + sum[3];
    }
    /* To log2 units, softly capped; f, what one is worth, becomes one. */
    __device__ __forceinline__ void cap_scores(float (&f)[2]) {
#pragma unroll
        for (int n = 0; n < TK / 8; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) s[n][j] = cap_softly(p, s[n][j] * f[j >> 1]);
        f[0] = f[1] = 1.0f;
    }
    __device__ __forceinline__ void raise_maximum(const float (&most)[2]) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float x = fmaxf(most[i], __shfl_xor_sync(0xffffffffu, most[i], 1));
            x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
            x = fmaxf(m[i], x);
            change[i] = ptx::exp2(m[i] - x);
            m[i] = x;
            l[i] *= change[i];
        }
    }
    __device__ __forceinline__ void soften(int key0, float unit) {
        if (key0 + TK > lowest || (C::LOGITS && key0 < highest)) soften<true>(key0, unit);
        else soften<false>(key0, unit);
    }

    /* Rounds the probabilities to P. */
    __device__ __forceinline__ void round_weights() {
#pragma unroll
        for (int n = 0; n < TK / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t two = ptx::pack<C::CODED>(s[n][2 * i], s[n][2 * i + 1]);
                (n & 1 ? (i ? weights[n / 2].w : weights[n / 2].z) : (i ? weights[n / 2].y : weights[n / 2].x)) = two;
            }
    }
    __device__ __forceinline__ void follow() {
        if (!raised) return;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) o[n][j] *= change[j >> 1];
    }

    /* Rows of the tile of V from `row` on hold no key: whatever bytes stand there must not reach the sums, not even
     * times zero. All multipliers, each a part. */
    __device__ __forceinline__ void clear_values(uint32_t v, int row) const {
        for (int i = row * (D / 8) + (int)threadIdx.x; i < TK * (D / 8); i += C::MULTIPLIERS)
            ptx::store128(operand_place<TK>(v, i / (D / 8), i % (D / 8)), make_uint4(0, 0, 0, 0));
        ptx::fence_async();
        ptx::group_sync<C::MULTIPLIERS>(5);
    }

    /* What one in a slot of K is worth. */
    __device__ __forceinline__ float unit_of(int k) const {
        if constexpr (C::CODED && !C::DIRECT) return ring.unit(k);
        else return 1.0f;
    }

    /* Brings O to the unit of a slot of V, which is mostly the one that it has. */
    __device__ __forceinline__ void take_unit(int v) {
        if constexpr (C::CODED) {
            const float unit = ring.unit(v);
            if (unit == worth) return;
            const float f = worth / unit;
            worth = unit;
#pragma unroll
            for (int n = 0; n < D / 8; n++)
#pragma unroll
                for (int j = 0; j < 4; j++) o[n][j] *= f;
        }
    }

    __device__ __forceinline__ void first_tile(int key0) {
        const int k = key_ring().take_tile();
        multiply_scores(k);
        const float unit = unit_of(k);
        wait_scores<0>(k);
        soften(key0, unit); /* there is nothing in O yet that would have to follow */
        round_weights();
    }
    __device__ __forceinline__ void next_tile(int key0) {
        const int k = key_ring().take_tile();
        int v = 0;
        if constexpr (!C::CODED)
            v = ring.take_tile(); /* decoded values may be late: they are waited for beside the scores */
        wait_turn();
        multiply_scores(k);
        if constexpr (C::CODED) v = ring.take_tile();
        const float unit = unit_of(k);
        take_unit(v);
        multiply_values(ring.entry_at(v));
        pass_turn();
        wait_scores<1>(k);
        soften(key0, unit);
        wgmma::wait<0>();
        wgmma::hold(o);
        ring.give(v, lane);
        follow();
        round_weights();
    }
    __device__ __forceinline__ void last_tile(int keys) {
        const int v = ring.take_tile();
        if (!C::CODED && keys < TK) clear_values(ring.entry_at(v), keys);
        take_unit(v);
        multiply_values(ring.entry_at(v));
        wgmma::wait<0>();
        wgmma::hold(o);
        __syncwarp(); /* every lane has read the unit */
        ring.give(v, lane);
    }

    __device__ __forceinline__ void run_share(const key_segment &x) {
        const int valid = valid_columns(p, x.b), n = tiles_of(x, TK), key0 = (int)(x.first * KVD_PAGE_TOKENS);
        const int end = min((int)x.keys, (int)(x.end * KVD_PAGE_TOKENS));
        load_queries(x, valid);
        start_share(x, valid);
        if (n > 0) {
            first_tile(key0);
#pragma unroll 1
            for (int t = 1; t < n; t++) next_tile(key0 + t * TK);
            last_tile(end - key0 - (n - 1) * TK);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            l[i] += __shfl_xor_sync(0xffffffffu, l[i], 1);
            l[i] += __shfl_xor_sync(0xffffffffu, l[i], 2);
        }
        if (x.whole) store_rows(x, valid);
        else store_partial(x);
    }

    /* The outputs as BF16, by way of where the queries were, so that whole rows are written. */
    __device__ __forceinline__ void store_rows(const key_segment &x, int valid) {
        constexpr int LANES = D / 8, ROWS = 32 / LANES;
        const int g = lane >> 2, t = lane & 3;
        sync_group(); /* all products with the queries are done */
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t r = row_of(x, g + 8 * i);
            const bool live = (int)(r / p.group) < valid && l[i] > 0.0f;
            if (live && p.sinks) l[i] += ptx::exp2(sink_of(p, x.head * p.group + r % p.group) - m[i] + C::FIRST);
            const float f = live ? worth / l[i] : 0.0f;
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                ptx::store32(operand_place<64>(q, warp * 16 + g + 8 * i, n) + (uint32_t)t * 4,
                             live ? ptx::pack<false>(o[n][2 * i] * f, o[n][2 * i + 1] * f) : 0);
        }
        __syncwarp();
#pragma unroll 4
        for (int i = lane / LANES; i < 16; i += ROWS) {
            const uint32_t r = row_of(x, i);
            if (r < p.group * p.w)
                *(uint4 *)(p.out + element_of(x, r) + lane % LANES * 8) =
                    ptx::load128(operand_place<64>(q, warp * 16 + i, lane % LANES));
        }
        sync_group();
    }
    __device__ __forceinline__ void store_partial(const key_segment &x) {
        const int t2 = (lane & 3) * 2;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t row = (uint32_t)(group * 64 + warp * 16 + lane / 4 + 8 * i);
            if (row >= p.rows_kept) continue;
            const uint64_t at = (uint64_t)x.to * p.rows_kept + row;
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                *(float2 *)(p.partial + at * D + n * 8 + t2) =
                    make_float2(o[n][2 * i] * worth, o[n][2 * i + 1] * worth);
            if (t2 == 0) *(float2 *)(p.stats + at * 2) = make_float2(m[i] - C::FIRST, l[i]);
        }
        sync_group(); /* all products with the queries are done */
    }
};

/* ---- kernel ---- */

/* Hands the segments of this CTA to `worker`, one after the other. total: units of the line, where it is cut. */
template <class C, class W>
__device__ __forceinline__ void work_through(const params &p, const uint32_t *line, uint32_t total, W &worker) {
    uint32_t u = 0, end = 1;
    if (p.cut) u = share_begin(blockIdx.x, gridDim.x, total), end = share_begin(blockIdx.x + 1, gridDim.x, total);
#pragma unroll 1
    while (u < end) {
        key_segment s;
        bool any = true;
        if (p.cut) s = find_segment<C>(p, line, u, end);
        else any = find_piece<C>(p, &s);
        if (any) worker.run_share(s);
        u += p.cut ? s.end - s.first : 1;
    }
}

/* The multipliers wait for registers that the others have given up: more than a CTA starts with, and they wait for
 * ever. */
template <class C> constexpr bool registers_suffice() {
    constexpr int threads = 32 * C::WARPS, start = 65536 / C::PER_SM / threads / 8 * 8;
    return C::MORE == 0 || C::MORE * C::MULTIPLIERS + C::FEWER * (threads - C::MULTIPLIERS) <= start * threads;
}

/* The kernel of a form; F: fetches tiles, made of (base, params, maps). */
template <class C, class F> __device__ __forceinline__ void run_block(const params &p, const page_maps *maps) {
    extern __shared__ __align__(1024) uint8_t smem[];
    uint32_t base = ptx::smem_address(smem), total = 0, *line = (uint32_t *)(smem + C::LINE_AT);
    asm volatile("" : "+r"(base)); /* a value to keep, where the compiler would ask a special register every time */
    if (threadIdx.x == 0) {
        tile_ring<C>::start_share(base);
        F::start_share(base, maps);
        ptx::barriers_started();
    }
    ptx::wait_for_earlier();
    if (p.cut) total = build_line<C>(p, line);
    else __syncthreads();
    ptx::let_next_start(); /* the combine kernel takes its place early */
    if (threadIdx.x >= C::MULTIPLIERS) {
        if constexpr (C::MORE > 0) ptx::fewer_registers<C::FEWER>();
        if (threadIdx.x < C::MULTIPLIERS + F::THREADS) {
            F fetcher(base, p, maps);
            work_through<C>(p, line, total, fetcher);
        }
    } else {
        if constexpr (C::MORE > 0) ptx::more_registers<C::MORE>();
        multiplier<C> worker(base, p);
        work_through<C>(p, line, total, worker);
        worker.finish_rows();
        if (p.cut) clear_idle<C>(p, line, C::D, C::MULTIPLIERS);
    }
}

template <int D, int WG, bool LOGITS>
__global__ void __launch_bounds__(128 * WG + 128, (block_form<D, WG, LOGITS>::PER_SM))
    attention_block(const __grid_constant__ params p, const __grid_constant__ page_maps maps) {
    run_block<block_form<D, WG, LOGITS>, tile_copier<block_form<D, WG, LOGITS>>>(p, &maps);
}

template <int D, int WG, bool LOGITS> instance make_block() {
    using C = block_form<D, WG, LOGITS>;
    static_assert(C::PER_SM * (C::SMEM + 1024) <= SM_SHARED, "fewer CTAs a multiprocessor than planned");
    static_assert(registers_suffice<C>(), "the multipliers would wait for registers for ever");
    return { (const void *)attention_block<D, WG, LOGITS>, C::SMEM, C::RB, C::PER_SM, 128 * WG + 128, true };
}

} /* namespace attn */

#endif
