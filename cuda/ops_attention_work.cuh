/* SPDX-License-Identifier: Apache-2.0
 *
 * What the forms of the attention kernel share around their products: the work list on the device, page ids, the ring
 * of tiles that runs ahead of the products, the queries in fragment order, and the result of a segment.
 *
 * In the columns form every warp owns a ring of NS slots, in which K and V tiles of TK keys alternate, and the warps
 * take turns on the tiles of a segment. A form C names these numbers: codes, WARPS, TK, RB (rows of a block), NS, SLOT
 * (bytes), place<ROW>(base, row, piece), Q_SPLIT (queries are two bytes of an integer), q_place(row, d) (in 16-bit
 * elements, or in bytes). The block form has its own ring, queries and results (ops_attention_block.cuh).
 */
#ifndef KVD_CUDA_OPS_ATTENTION_WORK_CUH
#define KVD_CUDA_OPS_ATTENTION_WORK_CUH

#include "ops_attention_code.cuh"
#include "ops_attention_params.cuh"

namespace attn {

/* Small shared state of a CTA. */
template <class C> struct control {
    uint32_t line[MAX_ENTRIES + 1]; /* units before each entry */
    uint32_t row[MAX_ROWS];         /* table rows of the first sequences */
    int limit[C::RB];               /* keys that a row sees */
    int span[C::RB];                /* of those, the last so many */
    int lowest, highest;            /* smallest limit, and largest first key: tiles between need no mask */
    float factor[C::RB];            /* of a raw score to log2 units */
    float m[C::WARPS][C::RB], l[C::WARPS][C::RB]; /* maximum and sum of each warp's share of the keys */
};

/* One segment: pages [first, end) of one pair. */
struct key_segment {
    uint32_t b, block, head, first, end;
    uint32_t from, keys; /* the block sees [from, keys) in all */
    bool whole;          /* all pages of the pair */
    uint32_t to;         /* index of the partial result where not */
    const int32_t *table;
};

/* ---- page ids: 32 a warp in registers, the next 32 on their way --------------------------------- */

struct page_ids {
    const int32_t *table;
    uint32_t base, end, n_pages;
    int32_t now, next;

    __device__ __forceinline__ int32_t fetch(uint32_t at) const { return at < end ? table[at] : 0; }
    __device__ __forceinline__ void start_share(const key_segment &s, uint32_t pages, int lane) {
        table = s.table, base = s.first, end = s.end, n_pages = pages;
        now = fetch(base + lane);
        next = fetch(base + 32 + lane);
    }
    __device__ __forceinline__ uint32_t entry_at(uint32_t page, int lane) {
        if (page - base >= 32) {
            base += 32;
            now = next;
            next = fetch(base + 32 + lane);
        }
        const uint32_t id = (uint32_t)__shfl_sync(0xffffffffu, now, (int)(page - base));
        return id < n_pages ? id : 0; /* an unmapped entry is the caller's error; never a stray read */
    }
};

/* ---- the ring of one warp ------------------------------------------------------------------------ */

template <class C> struct ring {
    static constexpr int TILES = KVD_PAGE_TOKENS / C::TK; /* a page */
    const params &p;
    page_ids ids;
    uint32_t smem, head, first;
    int lane;
    int first_tile, tile, step, n_tiles; /* of the segment: those before first_tile are behind all windows */
    int issued, slot_in, slot_out;
    uint32_t page; /* of the K tile issued last, for its V tile */
    int row;

    __device__ __forceinline__ ring(const params &params, uint32_t base, int lane_)
        : p(params), smem(base), lane(lane_) {}

    __device__ __forceinline__ void start_share(const key_segment &s, int warp) {
        ids.start_share(s, p.n_pages, lane);
        head = s.head, first = s.first;
        const uint32_t before = s.first * KVD_PAGE_TOKENS, keys = s.end * KVD_PAGE_TOKENS;
        n_tiles = (int)((s.keys < keys ? s.keys : keys) - before + C::TK - 1) / C::TK;
        first_tile = s.from > before ? (int)(s.from - before) / C::TK : 0;
        tile = first_tile + warp, step = C::WARPS;
        issued = slot_in = slot_out = 0;
        for (int i = 0; i < C::NS - 1; i++) issue();
    }

    /* A turn later the piece is the same and the row has DOWN more: its part of the exclusive-or lies in bits that are
     * zero in the first row. So all turns share one address, but for constants. */
    template <int ROW, int SCALE>
    __device__ __forceinline__ void copy_tile(uint32_t to, const plane &codes, const plane &scales) const {
        constexpr int PIECES = ROW / 16, TURNS = C::TK * PIECES / 32, DOWN = 32 / PIECES;
        static_assert(C::SLOT % 128 == 0 && 32 % PIECES == 0 && (DOWN % 8 == 0 || 8 % DOWN == 0), "");
        const uint8_t *from = codes.base + page * codes.page + head * codes.head + row * ROW;
        const uint32_t at = C::template place<ROW>(to, lane / PIECES, lane % PIECES);
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
            const uint32_t mix = (uint32_t)piece_mix<ROW>(i * DOWN) << 4;
            ptx::copy16_once((at ^ mix) + C::template place<ROW>(0, i * DOWN, 0) - mix, from + lane * 16 + i * 512);
        }
        if constexpr (SCALE != 0) {
            const uint8_t *scale = scales.base + page * scales.page + head * scales.head + row * SCALE;
#pragma unroll
            for (int i = 0; i < C::TK * SCALE / 16; i += 32)
                if (i + lane < C::TK * SCALE / 16)
                    ptx::copy16_once(to + C::TK * ROW + (i + lane) * 16, scale + (i + lane) * 16);
        }
    }

    /* Starts the copy of the next half tile, if any; always closes a copy group, so that counting works. */
    __device__ __forceinline__ void issue() {
        const uint32_t to = smem + slot_in * C::SLOT;
        if (tile < n_tiles) {
            if ((issued & 1) == 0) {
                page = ids.entry_at(first + (uint32_t)tile / TILES, lane);
                row = tile % TILES * C::TK;
                copy_tile<C::codes::K_ROW, C::codes::K_SCALE>(to, p.k, p.k_scale);
            } else {
                copy_tile<C::codes::V_ROW, C::codes::V_SCALE>(to, p.v, p.v_scale);
                tile += step;
            }
        }
        issued++;
        slot_in = slot_in + 1 == C::NS ? 0 : slot_in + 1;
        ptx::copy_commit();
    }

    /* Waits for the oldest half tile and reuses the slot before it. */
    __device__ __forceinline__ uint32_t take() {
        ptx::copy_wait<C::NS - 2>();
        __syncwarp();
        issue();
        const uint32_t at = smem + slot_out * C::SLOT;
        slot_out = slot_out + 1 == C::NS ? 0 : slot_out + 1;
        return at;
    }

    /* Rows of the value tile from `row` on hold no key: whatever bytes stand there must not reach the sums, not even
     * times zero. Codes of quantized profiles always decode to finite numbers, so their scales are enough. */
    __device__ __forceinline__ void clear_values(uint32_t v, int row) const {
        using K = typename C::codes;
        constexpr int FROM = K::V_SCALE ? C::TK * K::V_ROW : 0, BYTES = K::V_SCALE ? K::V_SCALE : K::V_ROW;
        for (int i = row * BYTES + lane * 2; i < C::TK * BYTES; i += 64)
            ptx::store16(K::V_SCALE
                             ? v + FROM + i
                             : C::template place<K::V_ROW>(v, i / K::V_ROW, i % K::V_ROW / 16) + (uint32_t)(i & 15),
                         0);
        __syncwarp();
    }
};

/* ---- queries ---------------------------------------------------------------------------------------- */

/* A row of LANES lanes to FP16 by the power of two 2^-e that makes its largest element about 2^7. Returns e. */
template <int LANES, int N> __device__ __forceinline__ int to_half(uint16_t (&x)[N]) {
    float most = 0.0f;
#pragma unroll
    for (int j = 0; j < N; j++) most = fmaxf(most, fabsf(__uint_as_float((uint32_t)x[j] << 16)));
#pragma unroll
    for (int j = LANES / 2; j > 0; j >>= 1) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, j));
    int e = (int)(__float_as_uint(most) >> 23) - 127 - 7;
    e = most == 0.0f ? 0 : e > 100 ? 100 : e < -100 ? -100 : e;
    const float power = __uint_as_float((uint32_t)(127 - e) << 23);
#pragma unroll
    for (int j = 0; j < N; j++) x[j] = (uint16_t)ptx::pack<true>(__uint_as_float((uint32_t)x[j] << 16) * power, 0.0f);
    return e;
}

/* The same for eight elements a lane. */
template <int LANES> __device__ __forceinline__ int to_half(uint4 &v) {
    uint16_t x[8] = { (uint16_t)v.x, (uint16_t)(v.x >> 16), (uint16_t)v.y, (uint16_t)(v.y >> 16),
                      (uint16_t)v.z, (uint16_t)(v.z >> 16), (uint16_t)v.w, (uint16_t)(v.w >> 16) };
    const int e = to_half<LANES>(x);
    v = make_uint4(x[0] | (uint32_t)x[1] << 16, x[2] | (uint32_t)x[3] << 16, x[4] | (uint32_t)x[5] << 16,
                   x[6] | (uint32_t)x[7] << 16);
    return e;
}

/* To integers of 16 bits, whose largest is 127 * 257. Returns what one is worth; NaN where an element is not finite. */
template <int N> __device__ __forceinline__ float to_integers(uint16_t (&x)[N]) {
    uint32_t most = 0;
#pragma unroll
    for (int j = 0; j < N; j++) most = max(most, (uint32_t)x[j] & 0x7fffu);
    most = __reduce_max_sync(0xffffffffu, most);
    const float size = __uint_as_float(most << 16), inverse = size > 1e-30f ? 32639.0f / size : 0.0f;
#pragma unroll
    for (int j = 0; j < N; j++) x[j] = (uint16_t)__float2int_rn(__uint_as_float((uint32_t)x[j] << 16) * inverse);
    return most < 0x7f80u ? size * (1.0f / 32639.0f) : __uint_as_float(0x7fffffffu);
}

/* Lays the rows of the block out in fragment order, and sets limits and factors. Rows that do not count are zero and
 * see everything: they cost no mask, and their results are dropped. */
template <class C, int D>
__device__ void load_queries(const params &p, const key_segment &s, uint16_t *q, control<C> &ctl, int warp, int lane) {
    constexpr int N = D / 32; /* elements a lane */
    const int valid = valid_columns(p, s.b);
#pragma unroll 2
    for (int i = warp; i < C::RB; i += C::WARPS) {
        const uint32_t r = s.block * C::RB + (uint32_t)i, w = r / p.group;
        const bool live = (int)w < valid;
        uint16_t x[N] = {};
        if (live) {
            const uint16_t *from =
                p.q + (((uint64_t)s.b * p.w + w) * p.heads * p.group + s.head * p.group + r % p.group) * D;
#pragma unroll
            for (int j = 0; j < N; j += 2) {
                const uint32_t two = *(const uint32_t *)(from + lane * N + j);
                x[j] = (uint16_t)two, x[j + 1] = (uint16_t)(two >> 16);
            }
        }
        float factor = p.scale_log2;
        if constexpr (C::Q_SPLIT) {
            factor *= to_integers(x);
        } else if constexpr (C::codes::Q_HALF) {
            const int e = to_half<32>(x);
            factor *= __uint_as_float((uint32_t)(127 + e + (C::codes::KC == CODE_FP4 ? FP4_SHIFT : 0)) << 23);
        }
#pragma unroll
        for (int j = 0; j < N; j++) {
            const int at = C::q_place(i, lane * N + j);
            if constexpr (C::Q_SPLIT) { /* x = 256 * high + low, low in -128..127 */
                ((uint8_t *)q)[at] = (uint8_t)((x[j] + 128) >> 8);
                ((uint8_t *)q)[at + 8] = (uint8_t)x[j];
            } else {
                q[at] = x[j];
            }
        }
        if (lane == 0) {
            const int limit = live ? key_limit(p, s.b, w, valid) : INT32_MAX, from = live ? first_key(p, s.b, w) : 0;
            ctl.limit[i] = limit;
            ctl.span[i] = limit - from;
            ctl.factor[i] = factor;
            atomicMin(&ctl.lowest, limit);
            atomicMax(&ctl.highest, from);
        }
    }
}

/* ---- results ------------------------------------------------------------------------------------------ */

/* The outputs of the warps meet in shared memory as [WARPS][RB][D + 4] floats. Four neighbours stay together; the
 * exclusive-or spreads channels that lie 32 apart, as the fragments of quantized values do, over the banks. */
template <int D> __device__ __forceinline__ int merge_place(int row, int d) {
    return row * (D + 4) + (d ^ ((d >> 5 & 7) << 2));
}

/* After every warp stored its maxima, sums and outputs (already brought to the common maximum): the rows of the block
 * as BF16, or as a partial result. */
template <class C, int D>
__device__ void store_rows(const params &p, const key_segment &s, const control<C> &ctl, const float *merge) {
    const uint32_t rows_left = p.group * p.w - s.block * C::RB;
    const int live = rows_left < (uint32_t)C::RB ? (int)rows_left : C::RB, valid = valid_columns(p, s.b);
    for (int i = threadIdx.x; i < live * D / 4; i += C::WARPS * 32) {
        const int row = i / (D / 4), d = i % (D / 4) * 4;
        float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        float most = NO_SCORE, sum = 0.0f;
#pragma unroll
        for (int k = 0; k < C::WARPS; k++) {
            const float4 y = *(const float4 *)(merge + merge_place<D>(k * C::RB + row, d));
            x.x += y.x, x.y += y.y, x.z += y.z, x.w += y.w;
        }
#pragma unroll
        for (int k = 0; k < C::WARPS; k++) most = fmaxf(most, ctl.m[k][row]);
#pragma unroll
        for (int k = 0; k < C::WARPS; k++) sum += ctl.l[k][row] * ptx::exp2(ctl.m[k][row] - most);
        most -= C::codes::P_HALF ? HALF_BASE : 0.0f; /* of a weight of one */
        if (!s.whole) {
            *(float4 *)(p.partial + ((uint64_t)s.to * p.rows_kept + row) * D + d) = x;
            if (d == 0) *(float2 *)(p.stats + ((uint64_t)s.to * p.rows_kept + row) * 2) = make_float2(most, sum);
            continue;
        }
        const uint32_t r = s.block * C::RB + (uint32_t)row, w = r / p.group;
        if (p.sinks) sum += ptx::exp2(sink_of(p, s.head * p.group + r % p.group) - most);
        const float f = (int)w < valid && sum > 0.0f ? 1.0f / sum : 0.0f;
        uint16_t *out =
            p.out + (((uint64_t)s.b * p.w + w) * p.heads * p.group + s.head * p.group + r % p.group) * D + d;
        *(uint2 *)out = f > 0.0f ? make_uint2(ptx::pack<false>(x.x * f, x.y * f), ptx::pack<false>(x.z * f, x.w * f))
                                 : make_uint2(0, 0);
    }
}

/* Weight of a warp's outputs for a row, once all maxima are in shared memory. */
template <class C> __device__ __forceinline__ float merge_weight(const control<C> &ctl, int row, float m) {
    float most = NO_SCORE;
#pragma unroll
    for (int k = 0; k < C::WARPS; k++) most = fmaxf(most, ctl.m[k][row]);
    return ptx::exp2(m - most);
}

/* ---- the work list ------------------------------------------------------------------------------------- */

/* Prefix sums of units over the entries, by the whole CTA. Returns T. Block 0 leaves them for the combine kernel. */
template <class C> __device__ uint32_t build_line(const params &p, uint32_t *line) {
    for (uint32_t e = threadIdx.x; e < p.entries; e += C::WARPS * 32)
        line[e + 1] = p.heads * pages_of(p, e / p.n_blocks, e % p.n_blocks, C::RB);
    __syncthreads();
    if (threadIdx.x < 32) {
        uint32_t before = 0;
        for (uint32_t e = 0; e < p.entries; e += 32) {
            const uint32_t at = e + threadIdx.x;
            uint32_t x = at < p.entries ? line[at + 1] : 0;
#pragma unroll
            for (int d = 1; d < 32; d <<= 1) {
                const uint32_t y = __shfl_up_sync(0xffffffffu, x, d);
                x += (int)threadIdx.x >= d ? y : 0;
            }
            if (at < p.entries) line[at + 1] = before + x;
            before += __shfl_sync(0xffffffffu, x, 31);
        }
        if (threadIdx.x == 0) line[0] = 0;
    }
    __syncthreads();
    if (blockIdx.x == 0)
        for (uint32_t e = threadIdx.x; e <= p.entries; e += C::WARPS * 32) p.line[e] = line[e];
    return line[p.entries];
}

/* The entry that unit u belongs to. */
__device__ __forceinline__ uint32_t entry_of(const uint32_t *line, uint32_t entries, uint32_t u) {
    uint32_t low = 0, high = entries; /* line[low] <= u < line[high] */
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (line[middle] <= u) low = middle;
        else high = middle;
    }
    return low;
}

/* Columns past valid and sequences without keys: exactly zero, also where no share touches the pair. threads: that call
 * this, the first of the CTA. */
template <class C> __device__ void clear_idle(const params &p, const uint32_t *line, int d, uint32_t threads) {
    constexpr uint32_t RB = C::RB;
    for (uint32_t e = blockIdx.x; e < p.entries; e += gridDim.x) {
        if (line[e + 1] != line[e]) continue;
        const uint32_t b = e / p.n_blocks, block = e % p.n_blocks;
        const uint32_t rows = p.group * p.w, end = (block + 1) * RB < rows ? (block + 1) * RB : rows;
        for (uint32_t r = block * RB; r < end; r++)
            for (uint32_t i = threadIdx.x; i < p.heads * (uint32_t)d / 8; i += threads) {
                const uint32_t head = i / (d / 8);
                const uint64_t at =
                    ((uint64_t)b * p.w + r / p.group) * p.heads * p.group + head * p.group + r % p.group;
                ((uint4 *)(p.out + at * d))[i % (d / 8)] = make_uint4(0, 0, 0, 0);
            }
    }
}

/* The piece of a pair that is this CTA's, where the line is not cut; false where the pair has none so far. */
template <class C> __device__ bool find_piece(const params &p, key_segment *ret_segment) {
    const uint32_t pairs = p.entries * p.heads, pair = blockIdx.x % pairs, piece = blockIdx.x / pairs;
    const uint32_t e = p.entries - 1 - pair / p.heads; /* the longest first */
    key_segment s;
    s.b = e / p.n_blocks, s.block = e % p.n_blocks, s.head = pair % p.heads;
    s.keys = keys_of(p, s.b, s.block, C::RB), s.from = first_key_of(p, s.b, s.block, C::RB, s.keys);
    const uint32_t pages = pages_between(s.from, s.keys), pieces = pieces_of(pages, p.pieces);
    const uint32_t behind = s.from >> KVD_PAGE_SHIFT;
    s.first = behind + share_begin(piece, pieces, pages), s.end = behind + share_begin(piece + 1, pieces, pages);
    s.whole = pieces == 1 && !p.keep, s.to = (e * p.heads + s.head) * p.pieces + piece;
    *ret_segment = s;
    return piece < pieces;
}

/* The segment at unit u of the line, of those that end before `end`. */
template <class C>
__device__ __forceinline__ key_segment find_segment(const params &p, const uint32_t *line, uint32_t u, uint32_t end) {
    const uint32_t e = entry_of(line, p.entries, u), before = line[e], pages = (line[e + 1] - before) / p.heads;
    key_segment s;
    s.b = e / p.n_blocks, s.block = e % p.n_blocks;
    const uint32_t first = (u - before) % pages, last = pages - first < end - u ? pages : first + (end - u);
    s.head = (u - before) / pages;
    s.keys = keys_of(p, s.b, s.block, C::RB), s.from = first_key_of(p, s.b, s.block, C::RB, s.keys);
    s.whole = first == 0 && last == pages;
    s.to = s.whole ? whole_index(p.shares, e * p.heads + s.head) : partial_index(blockIdx.x, first > 0);
    s.whole = s.whole && !p.keep;
    s.first = (s.from >> KVD_PAGE_SHIFT) + first, s.end = (s.from >> KVD_PAGE_SHIFT) + last;
    return s;
}

/* The body of the kernel of the forms whose warps are alike: walks the share of this CTA and hands each segment to
 * FORM::run_share. */
template <class F> __device__ __forceinline__ void walk_share(const params &p, uint8_t *smem) {
    using C = typename F::C;
    __shared__ control<C> ctl;
    key_segment s;
    ptx::wait_for_earlier();
    if (!p.cut) {
        if (!find_piece<C>(p, &s)) return;
        s.table = table_row(p, (uint32_t)p.table_rows[s.b]);
        F::run_share(p, s, smem, ctl);
        return;
    }
    for (uint32_t b = threadIdx.x; b < p.b && b < MAX_ROWS; b += C::WARPS * 32) ctl.row[b] = (uint32_t)p.table_rows[b];
    const uint32_t total = build_line<C>(p, ctl.line);
    ptx::let_next_start(); /* the combine kernel takes its place early */
    uint32_t u = share_begin(blockIdx.x, gridDim.x, total);
    const uint32_t end = share_begin(blockIdx.x + 1, gridDim.x, total);
    while (u < end) {
        s = find_segment<C>(p, ctl.line, u, end);
        s.table = table_row(p, s.b < MAX_ROWS ? ctl.row[s.b] : (uint32_t)p.table_rows[s.b]);
        F::run_share(p, s, smem, ctl);
        u += s.end - s.first;
    }
    clear_idle<C>(p, ctl.line, F::HEAD_DIM, C::WARPS * 32);
}

constexpr int SM_SHARED = 228 * 1024; /* of a multiprocessor of sm_90; a CTA costs 1024 more than it asks for */

/* Whether PER_SM CTAs of a form fit a multiprocessor. */
template <class C> constexpr bool fits() {
    return C::PER_SM * (C::SMEM + (int)sizeof(control<C>) + 1024 + 1024) <= SM_SHARED;
}

/* How one instance is launched; ops_attention.cu picks it from the table of its file. */
struct instance {
    const void *kernel;
    int smem, rows, per_sm, threads; /* dynamic shared memory, rows of a block, CTAs a multiprocessor, threads of one */
    bool maps;                       /* takes tensor maps of K and V as well */
};

/* rows: query rows of a sequence and kv head; logits: with a window or a soft cap. A null kernel: no such instance. */
instance find_bf16(uint32_t head_dim, uint64_t rows, bool logits);
instance find_byte(uint32_t storage, uint32_t head_dim, uint64_t rows, bool logits); /* INT8, FP8 */
instance find_fp4(uint32_t storage, uint32_t head_dim, uint64_t rows, bool logits);  /* NVFP4, K8V4 */

} /* namespace attn */

#endif
