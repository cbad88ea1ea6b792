/* SPDX-License-Identifier: Apache-2.0
 *
 * The attention kernel for decode, speculative verify and everything that reads much KV for few rows: memory bound, so
 * every byte of a page is read once, by 16-byte asynchronous copies several tiles ahead, and goes to the tensor cores from
 * shared memory.
 *
 * A CTA of four warps holds 16 * MT rows. MT warps share a tile of keys (each its 16 rows); the 4 / MT such groups take
 * turns on the tiles of a segment and merge their running maxima, sums and outputs at its end. A group owns a ring of NS
 * slots; K and V tiles alternate in it.
 */
#ifndef KVD_CUDA_OPS_ATTENTION_KERNEL_CUH
#define KVD_CUDA_OPS_ATTENTION_KERNEL_CUH

#include "ops_attention_params.cuh"
#include "ops_attention_tile.cuh"

namespace attn {

constexpr int max_of(int a, int b) {
    return a > b ? a : b;
}

constexpr float NO_SCORE = -1e30f; /* start of a running maximum: finite, so that differences stay defined */

template <int S, int D, int MT> struct shape {
    static constexpr int TK = S == KVD_STORAGE_BF16 ? (D == 256 && MT < 4 ? 16 : 32) : 32; /* keys a tile */
    using tile = attn::tile<S, D, TK>;
    static constexpr int RB = 16 * MT;   /* rows a block */
    static constexpr int GROUPS = 4 / MT; /* groups of warps */
    static constexpr int SLOT = max_of(TK * (tile::K_ROW + tile::K_SCALE), TK * (tile::V_ROW + tile::V_SCALE));
    static constexpr int Q_BYTES = RB * D * 2;
    static constexpr int BUDGET = 107 * 1024 - Q_BYTES; /* two CTAs a multiprocessor */
    static constexpr int FIT = BUDGET / (GROUPS * SLOT);
    static constexpr int NS = FIT > 8 ? 8 : FIT;
    static constexpr int RING = GROUPS * NS * SLOT;
    static constexpr int MERGE = GROUPS * RB * D * 4;
    static constexpr int Q_AT = max_of(RING, MERGE); /* where the queries lie */
    static constexpr int SMEM = Q_AT + Q_BYTES;
    static_assert(NS >= 3, "the ring needs a slot in use and two in flight");
};

/* Small shared state of a CTA. */
template <int RB, int GROUPS> struct control {
    uint32_t line[MAX_ENTRIES + 1];
    int limit[RB];               /* keys that a row sees */
    int lowest;                  /* smallest of them: tiles below need no mask */
    float factor[RB];            /* of a raw score to log2 units */
    float m[GROUPS][RB], l[GROUPS][RB];
};

/* One segment: pages [first, end) of one pair. */
struct segment {
    uint32_t b, block, head, first, end;
    uint32_t keys; /* that the block sees in all */
    const int32_t *table;
};

/* ---- page ids: 32 a warp in registers, the next 32 on their way --------------------------------- */

struct page_ids {
    const int32_t *table;
    uint32_t base, end, n_pages;
    int32_t now, next;

    __device__ __forceinline__ int32_t fetch(uint32_t at) const { return at < end ? table[at] : 0; }
    __device__ __forceinline__ void start(const segment &s, uint32_t pages, int lane) {
        table = s.table, base = s.first, end = s.end, n_pages = pages;
        now = fetch(base + lane);
        next = fetch(base + 32 + lane);
    }
    __device__ __forceinline__ uint32_t at(uint32_t page, int lane) {
        if (page - base >= 32) {
            base += 32;
            now = next;
            next = fetch(base + 32 + lane);
        }
        const uint32_t id = (uint32_t)__shfl_sync(0xffffffffu, now, (int)(page - base));
        return id < n_pages ? id : 0; /* an unmapped entry is the caller's error; never a stray read */
    }
};

/* ---- the ring of one group ----------------------------------------------------------------------- */

template <class C> struct ring {
    using T = typename C::tile;
    static constexpr int MT = 4 / C::GROUPS;
    static constexpr int TILES = KVD_PAGE_TOKENS / C::TK; /* a page */
    const params &p;
    page_ids ids;
    uint32_t smem, head, first;
    int lane, member; /* member: warp of the group */
    int tile, step, n_tiles;
    int issued, slot_in, slot_out;
    uint32_t page; /* of the K tile issued last, for its V tile */
    int row;

    __device__ __forceinline__ ring(const params &params, uint32_t base, int lane_, int member_)
        : p(params), smem(base), lane(lane_), member(member_) {
    }

    __device__ __forceinline__ void start(const segment &s, int group) {
        ids.start(s, p.n_pages, lane);
        head = s.head, first = s.first;
        const uint32_t before = s.first * KVD_PAGE_TOKENS, keys = s.end * KVD_PAGE_TOKENS;
        n_tiles = (int)((s.keys < keys ? s.keys : keys) - before + C::TK - 1) / C::TK;
        tile = group, step = C::GROUPS;
        issued = slot_in = slot_out = 0;
        for (int i = 0; i < C::NS - 1; i++)
            issue();
    }

    template <int ROW, int SCALE>
    __device__ __forceinline__ void copy(uint32_t to, const plane &codes, const plane &scales) const {
        constexpr int PIECES = ROW / 16, TURNS = C::TK * PIECES / 32 / MT;
        const uint8_t *from = codes.base + page * codes.page + head * codes.head + row * ROW;
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
            const int c = (i * MT + member) * 32 + lane;
            ptx::copy16(T::template piece<ROW>(to, c / PIECES, c % PIECES), from + c * 16);
        }
        if constexpr (SCALE != 0) {
            if (member == MT - 1 && lane < C::TK * SCALE / 16)
                ptx::copy16(to + C::TK * ROW + lane * 16,
                            scales.base + page * scales.page + head * scales.head + row * SCALE + lane * 16);
        }
    }

    /* Starts the copy of the next half tile, if any; always closes a copy group, so that counting works. */
    __device__ __forceinline__ void issue() {
        const uint32_t to = smem + slot_in * C::SLOT;
        if (tile < n_tiles) {
            if ((issued & 1) == 0) {
                page = ids.at(first + (uint32_t)tile / TILES, lane);
                row = tile % TILES * C::TK;
                copy<T::K_ROW, T::K_SCALE>(to, p.k, p.k_scale);
            } else {
                copy<T::V_ROW, T::V_SCALE>(to, p.v, p.v_scale);
                tile += step;
            }
        }
        issued++;
        slot_in = slot_in + 1 == C::NS ? 0 : slot_in + 1;
        ptx::copy_commit();
    }

    /* Waits for the oldest half tile and reuses the slot before it. The barrier also says that the group is done with it. */
    __device__ __forceinline__ uint32_t take(int group) {
        ptx::copy_wait<C::NS - 2>();
        ptx::group_sync<32 * MT>(group + 1);
        issue();
        const uint32_t at = smem + slot_out * C::SLOT;
        slot_out = slot_out + 1 == C::NS ? 0 : slot_out + 1;
        return at;
    }

    /* Rows of the value tile from `row` on hold no key: whatever bytes stand there must not reach the sums, not even times
     * zero. Codes of quantized profiles always decode to finite numbers, so their scales are enough. */
    __device__ __forceinline__ void clear_values(uint32_t v, int row, int group) const {
        constexpr int FROM = T::V_SCALE ? C::TK * T::V_ROW : 0, BYTES = T::V_SCALE ? T::V_SCALE : T::V_ROW;
        for (int i = row * BYTES + (member * 32 + lane) * 2; i < C::TK * BYTES; i += MT * 64)
            ptx::store16(v + FROM + i, 0);
        ptx::group_sync<32 * MT>(group + 1);
    }
};

/* ---- queries ---------------------------------------------------------------------------------------- */

/* Lays the rows of the block out as A fragments, four rows a warp and turn, and sets limits and factors. */
template <class C, int D> __device__ void load_queries(const params &p, const segment &s, uint16_t *q,
                                                       control<C::RB, C::GROUPS> &ctl, int warp, int lane) {
    using T = typename C::tile;
    constexpr int N = D / 32; /* elements a lane */
    const int valid = valid_columns(p, s.b);
#pragma unroll 2
    for (int i = warp; i < C::RB; i += 4) {
        const uint32_t r = s.block * C::RB + (uint32_t)i, w = r / p.group;
        const bool live = (int)w < valid;
        uint16_t x[N];
#pragma unroll
        for (int j = 0; j < N; j++)
            x[j] = 0;
        if (live) {
            const uint16_t *from = p.q + (((uint64_t)s.b * p.w + w) * p.heads * p.group + s.head * p.group + r % p.group) * D;
#pragma unroll
            for (int j = 0; j < N; j += 2) {
                const uint32_t two = *(const uint32_t *)(from + lane * N + j);
                x[j] = (uint16_t)two, x[j + 1] = (uint16_t)(two >> 16);
            }
        }
        float factor = p.scale_log2;
        if constexpr (T::Q_HALF) { /* to FP16 by a power of two, see ops_attention_tile.cuh */
            float most = 0.0f;
#pragma unroll
            for (int j = 0; j < N; j++)
                most = fmaxf(most, fabsf(__uint_as_float((uint32_t)x[j] << 16)));
#pragma unroll
            for (int j = 16; j > 0; j >>= 1)
                most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, j));
            int exponent = most > 0.0f && most < 3e38f ? ilogbf(most) - 7 : 0;
            exponent = exponent < -100 ? -100 : exponent;
#pragma unroll
            for (int j = 0; j < N; j++) {
                const float y = scalbnf(__uint_as_float((uint32_t)x[j] << 16), -exponent);
                x[j] = (uint16_t)ptx::pack<true>(y, 0.0f);
            }
            factor = scalbnf(factor, exponent + (T::KC == CODE_FP4 ? (int)FP4_SHIFT : 0));
        }
#pragma unroll
        for (int j = 0; j < N; j++)
            q[(i >> 4) * 16 * D + T::q_place(i & 15, lane * N + j)] = x[j];
        if (lane == 0) {
            const int limit = live ? key_limit(p, s.b, w, valid) : INT32_MAX;
            ctl.limit[i] = limit;
            ctl.factor[i] = factor;
            atomicMin(&ctl.lowest, limit);
        }
    }
}

/* ---- softmax and sums of one warp --------------------------------------------------------------------- */

template <class C, int D> struct rows16 {
    using T = typename C::tile;
    float o[T::NO][4];
    float m[2], l[2], factor[2];
    int limit[2];

    __device__ __forceinline__ void start(const control<C::RB, C::GROUPS> &ctl, int row) {
#pragma unroll
        for (int n = 0; n < T::NO; n++)
            o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0.0f;
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
                    if (mask && key0 + T::key_of(nt, t, e) >= limit[i])
                        x = -INFINITY;
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
            const float zero = most - (T::P_HALF ? FP4_SHIFT : 0.0f);
#pragma unroll
            for (int nt = 0; nt < T::NT; nt++) {
                float p0 = ptx::exp2(s[nt][2 * i] - zero), p1 = ptx::exp2(s[nt][2 * i + 1] - zero);
                if constexpr (T::VC == CODE_BF16) { /* sum what is multiplied: the weights then add up to one */
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
            if constexpr (T::P_HALF)
                l[i] *= 1.0f / 16384.0f;
        }
    }
};

/* ---- results ------------------------------------------------------------------------------------------ */

/* Merges the groups through shared memory and stores the block: BF16 rows, or a partial result at index `to`. */
template <class C, int D> __device__ void store_block(const params &p, const segment &s, rows16<C, D> &rows,
                                                      control<C::RB, C::GROUPS> &ctl, float *merge, int group,
                                                      int member, bool whole, uint32_t to) {
    using T = typename C::tile;
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    rows.finish();
    if (t == 0) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            ctl.m[group][member * 16 + g + 8 * i] = rows.m[i];
            ctl.l[group][member * 16 + g + 8 * i] = rows.l[i];
        }
    }
    __syncthreads(); /* the rings are idle now: their memory holds the outputs of the groups */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int row = member * 16 + g + 8 * i;
        float most = NO_SCORE;
#pragma unroll
        for (int k = 0; k < C::GROUPS; k++)
            most = fmaxf(most, ctl.m[k][row]);
        const float weight = ptx::exp2(rows.m[i] - most);
        float *at = merge + (group * C::RB + row) * D;
#pragma unroll
        for (int n = 0; n < T::NO; n++) {
            at[T::column_of(n, t, 0)] = rows.o[n][2 * i] * weight;
            at[T::column_of(n, t, 1)] = rows.o[n][2 * i + 1] * weight;
        }
    }
    __syncthreads();
    const uint32_t rows_here = p.group * p.w - s.block * C::RB;
    const int live = rows_here < (uint32_t)C::RB ? (int)rows_here : C::RB;
    const int valid = valid_columns(p, s.b);
    for (int i = threadIdx.x; i < live * D / 2; i += THREADS) {
        const int row = i / (D / 2), d = i % (D / 2) * 2;
        float x = 0.0f, y = 0.0f, most = NO_SCORE, sum = 0.0f;
#pragma unroll
        for (int k = 0; k < C::GROUPS; k++) {
            const float2 two = *(const float2 *)(merge + (k * C::RB + row) * D + d);
            x += two.x, y += two.y;
            most = fmaxf(most, ctl.m[k][row]);
        }
#pragma unroll
        for (int k = 0; k < C::GROUPS; k++)
            sum += ctl.l[k][row] * ptx::exp2(ctl.m[k][row] - most);
        const uint32_t r = s.block * C::RB + (uint32_t)row, w = r / p.group;
        if (!whole) {
            *(float2 *)(p.partial + ((uint64_t)to * p.rows_kept + row) * D + d) = make_float2(x, y);
            if (d == 0)
                *(float2 *)(p.stats + ((uint64_t)to * p.rows_kept + row) * 2) = make_float2(most, sum);
            continue;
        }
        const float inverse = (int)w < valid && sum > 0.0f ? 1.0f / sum : 0.0f;
        uint16_t *out = p.out + (((uint64_t)s.b * p.w + w) * p.heads * p.group + s.head * p.group + r % p.group) * D + d;
        *(uint32_t *)out = inverse > 0.0f ? ptx::pack<false>(x * inverse, y * inverse) : 0u;
    }
}

/* ---- the work list ------------------------------------------------------------------------------------- */

/* Prefix sums of units over the entries, by the whole CTA. Returns T. */
template <int RB> __device__ uint32_t build_line(const params &p, uint32_t *line) {
    for (uint32_t e = threadIdx.x; e < p.entries; e += THREADS)
        line[e + 1] = p.heads * pages_for(keys_of<RB>(p, e / p.n_blocks, e % p.n_blocks));
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
            if (at < p.entries)
                line[at + 1] = before + x;
            before += __shfl_sync(0xffffffffu, x, 31);
        }
        if (threadIdx.x == 0)
            line[0] = 0;
    }
    __syncthreads();
    return line[p.entries];
}

/* The entry that unit u belongs to. */
__device__ __forceinline__ uint32_t entry_of(const uint32_t *line, uint32_t entries, uint32_t u) {
    uint32_t low = 0, high = entries; /* line[low] <= u < line[high] */
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (line[middle] <= u)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* ---- kernel ---------------------------------------------------------------------------------------------- */

template <int S, int D, int MT>
__device__ __forceinline__ void run_segment(const params &p, const segment &s, uint8_t *smem,
                                            control<16 * MT, 4 / MT> &ctl, bool whole, uint32_t to) {
    using C = shape<S, D, MT>;
    using T = typename C::tile;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, group = warp / MT, member = warp % MT;
    const uint32_t base = ptx::smem_address(smem), queries = base + C::Q_AT;
    __syncthreads(); /* the segment before is stored */
    ring<C> ring(p, base + group * C::NS * C::SLOT, lane, member);
    ring.start(s, group);
    if (threadIdx.x == 0)
        ctl.lowest = INT32_MAX;
    __syncthreads();
    load_queries<C, D>(p, s, (uint16_t *)(smem + C::Q_AT), ctl, warp, lane);
    __syncthreads();
    rows16<C, D> rows;
    rows.start(ctl, member * 16 + (lane >> 2));
    const uint32_t q = queries + member * 32 * D;
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
    store_block<C, D>(p, s, rows, ctl, (float *)smem, group, member, whole, to);
}

template <int S, int D, int MT> __global__ void __launch_bounds__(THREADS, 2) attention(const __grid_constant__ params p) {
    extern __shared__ __align__(1024) uint8_t smem[];
    __shared__ control<16 * MT, 4 / MT> ctl;
    constexpr int RB = 16 * MT;
    segment s;
    if (!p.cut) {
        const uint32_t e = blockIdx.x / p.heads;
        s.b = e / p.n_blocks, s.block = p.n_blocks - 1 - e % p.n_blocks; /* the longest first */
        s.head = blockIdx.x % p.heads;
        s.keys = keys_of<RB>(p, s.b, s.block);
        s.first = 0, s.end = pages_for(s.keys);
        s.table = table_row(p, s.b);
        run_segment<S, D, MT>(p, s, smem, ctl, true, 0);
        return;
    }
    const uint32_t total = build_line<RB>(p, ctl.line), share = (total + gridDim.x - 1) / gridDim.x;
    if (blockIdx.x == 0) {
        for (uint32_t e = threadIdx.x; e <= p.entries; e += THREADS)
            p.line[e] = ctl.line[e];
        if (threadIdx.x == 0)
            p.line[p.entries + 1] = share;
    }
    asm volatile("griddepcontrol.launch_dependents;"); /* the combine kernel may take its place early */
    uint32_t u = blockIdx.x * share;
    const uint32_t end = u + share < total ? u + share : total;
    while (u < end) {
        const uint32_t e = entry_of(ctl.line, p.entries, u), before = ctl.line[e];
        const uint32_t pages = (ctl.line[e + 1] - before) / p.heads;
        s.b = e / p.n_blocks, s.block = e % p.n_blocks;
        s.head = (u - before) / pages, s.first = (u - before) % pages;
        s.end = pages - s.first < end - u ? pages : s.first + (end - u);
        s.keys = keys_of<RB>(p, s.b, s.block);
        s.table = table_row(p, s.b);
        const bool whole = s.first == 0 && s.end == pages;
        run_segment<S, D, MT>(p, s, smem, ctl, whole, partial_index(blockIdx.x, s.first > 0));
        u += s.end - s.first;
    }
}

/* How one instance is launched; ops_attention.cu picks it from the table of its file. */
struct instance {
    const void *kernel;
    int smem, rows;
};

template <int S, int D, int MT> instance make_instance() {
    return {(const void *)attention<S, D, MT>, shape<S, D, MT>::SMEM, 16 * MT};
}

/* mt: 1, 2 or 4 tiles of sixteen rows. A null kernel: no such instance. */
instance find_bf16(uint32_t head_dim, int mt);
instance find_byte(uint32_t storage, int mt); /* INT8, FP8 */
instance find_fp4(uint32_t storage, int mt);  /* NVFP4, K8V4 */

} /* namespace attn */

#endif
