/* SPDX-License-Identifier: Apache-2.0
 *
 * Paged attention on the GPU: choice of kernel, workspace, launch, and the merge of partial results.
 *
 * Kernels of one launch, in the order of the stream:
 *   find_shared, pass    only where the caller says that sequences begin with the same pages: counts them, and reads
 *                        them once for the queries of all sequences (ops_attention_params.cuh)
 *   pass                 reads all other pages: one of the forms below, over the work list
 *   combine_few, _many   merge the partial results of rows whose keys several CTAs had; where there can be none, there
 *                        is no such launch
 *
 * Forms of a pass. Rows are columns times query heads of one kv head.
 *   rows                 BF16                               INT8, FP8, NVFP4, K8V4
 *   1 to 8, to 16        columns (decode): mma, queries are the narrow side; every warp copies for itself (cp.async)
 *   17 to 64             block, one multiplying warpgroup   coded, one multiplying warpgroup
 *   more                 block, two; three at head_dim 64   coded, two (with a window or a soft cap for 17 rows on)
 *   other head_dims      plain: FP32, no tensor cores
 * Columns of INT8 at head_dim 64, and of more than 8 rows of any quantized profile there, go through coded.
 * Columns: ops_attention_columns.cuh. Block: ops_attention_block.cuh. Coded: ops_attention_coded.cuh. Plain:
 * ops_attention_plain.cu. What they share: ops_attention_params.cuh (work list), ops_attention_work.cuh (its walk, page
 * ids), ops_attention_code.cuh (codes in registers), ops_wgmma.cuh, ops_ptx.cuh.
 *
 * Nothing here allocates, waits for the device or reads device data on the host, so a launch can be captured in a graph
 * (VIEW-5): grid and workspace follow from shapes, the envelope and the number of multiprocessors.
 */
#include <cuda_runtime.h>
#include <stdio.h>

#include "ops.h"
#include "ops_attention_block.cuh"
#include "ops_attention_plain.cuh"

namespace attn {

/* ---- merge of partial results ------------------------------------------------------------------ */

constexpr int COMBINE_THREADS = 256;

/* Maximum or sum over a CTA; every thread gets it. red: one float a warp. */
template <bool MAX> __device__ __forceinline__ float over_cta(float x, float *red) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) {
        const float y = __shfl_xor_sync(0xffffffffu, x, d);
        x = MAX ? fmaxf(x, y) : x + y;
    }
    if (threadIdx.x % 32 == 0) red[threadIdx.x / 32] = x;
    __syncthreads();
    x = red[0];
#pragma unroll
    for (int i = 1; i < COMBINE_THREADS / 32; i++) x = MAX ? fmaxf(x, red[i]) : x + red[i];
    return x;
}

constexpr int MAX_RESULTS = MAX_CTAS + MAX_PIECES; /* of a row: of the ordinary pass and of a shared prefix */

/* Where the pass over a shared prefix left its partial results. */
struct shared_results {
    const shared_prefix *prefix; /* NULL: there was no such pass */
    uint64_t before;             /* rows of partial results ahead of its own */
    uint32_t rows, rows_kept, pieces;
};

/* A row whose pair is spread over several shares or pieces; false where there is nothing to merge. */
struct spread {
    uint32_t first; /* share, or partial result of the first piece */
    int n;          /* partial results, those of the shared prefix first */
    bool whole;     /* `first` is the only one of the ordinary pass */
    bool live;      /* a column that counts */
    float sink;     /* logit of the head's sink, log2 units */
    uint16_t *out;
    int n_shared;
    uint64_t shared;      /* row of the first one of those */
    uint32_t shared_step; /* rows to the next */
};

/* Of a row of the batch, numbered as the pass over the shared prefix does: that of all columns of a kv head. */
__device__ __forceinline__ void add_shared(const params &p, const shared_results &x, uint32_t head, uint64_t row,
                                           spread *spread) {
    const uint32_t pages = x.prefix->pages, block = (uint32_t)(row / x.rows);
    spread->n_shared = pages > 0 ? (int)pieces_of(pages, x.pieces) : 0;
    spread->shared = x.before + ((uint64_t)block * p.heads + head) * x.pieces * x.rows_kept + row % x.rows;
    spread->shared_step = x.rows_kept;
    spread->n += spread->n_shared;
}

template <int D>
__device__ __forceinline__ bool find_own(const params &p, uint32_t pair, uint32_t row, uint32_t rows,
                                         spread *ret_spread) {
    const uint32_t e = pair / p.heads, head = pair % p.heads, b = e / p.n_blocks;
    const uint32_t r = e % p.n_blocks * rows + row, w = r / p.group;
    if (w >= p.w || row >= p.rows_kept) return false;
    uint16_t *out = p.out + (((uint64_t)b * p.w + w) * p.heads * p.group + head * p.group + r % p.group) * D;
    const bool live = (int)w < valid_columns(p, b);
    const float sink = sink_of(p, head * p.group + r % p.group);
    if (!p.cut) {
        const uint32_t pieces = pieces_of(pages_of(p, b, e % p.n_blocks, rows), p.pieces);
        *ret_spread = { pair * p.pieces, (int)pieces, false, live, sink, out };
        return pieces > 1 || p.keep;
    }
    const uint32_t before = p.line[e], pages = (p.line[e + 1] - before) / p.heads, total = p.line[p.entries];
    if (pages == 0) {
        *ret_spread = { 0, 0, false, live, sink, out };
        return p.keep;
    }
    const uint32_t u0 = before + head * pages;
    const uint32_t first = share_of(u0, p.shares, total), last = share_of(u0 + pages - 1, p.shares, total);
    const bool whole = first == last;
    *ret_spread = { whole ? whole_index(p.shares, pair) : first, (int)(last - first) + 1, whole, live, sink, out };
    return !whole || p.keep;
}

/* SHARED: there was a pass over a shared prefix. Where there was none, its part costs nothing. */
template <int D, bool SHARED>
__device__ __forceinline__ bool find_spread(const params &p, const shared_results &x, uint32_t pair, uint32_t row,
                                            uint32_t rows, spread *ret_spread) {
    if (!find_own<D>(p, pair, row, rows, ret_spread)) return false;
    if (!SHARED) return ret_spread->n > 1;
    const uint32_t e = pair / p.heads, b = e / p.n_blocks, r = e % p.n_blocks * rows + row;
    add_shared(p, x, pair % p.heads, (uint64_t)b * p.w * p.group + r, ret_spread);
    return true;
}

template <bool SHARED>
__device__ __forceinline__ uint64_t spread_row(const params &p, const spread &s, int i, uint32_t row) {
    if (SHARED && i < s.n_shared) return s.shared + (uint64_t)(uint32_t)i * s.shared_step;
    if (SHARED) i -= s.n_shared;
    const uint32_t at =
        p.cut && !(SHARED && s.whole) ? partial_index(s.first + (uint32_t)i, i > 0) : s.first + (uint32_t)i;
    return (uint64_t)at * p.rows_kept + row;
}

__device__ __forceinline__ void store_merged(const spread &s, int d, const float4 &x, float sum) {
    const float f = s.live && sum > 0.0f ? 1.0f / sum : 0.0f;
    *(uint2 *)(s.out + d) = f > 0.0f
                                ? make_uint2(ptx::pack<false>(x.x * f, x.y * f), ptx::pack<false>(x.z * f, x.w * f))
                                : make_uint2(0, 0);
}

/* Few shares a pair: four channels of a row a thread, every thread weighs the shares for itself. */
template <int D, bool SHARED>
__global__ void __launch_bounds__(COMBINE_THREADS)
    combine_few(const __grid_constant__ params p, uint32_t rows, const __grid_constant__ shared_results shared) {
    constexpr int LANES = D / 4;
    const uint32_t row = blockIdx.y * (COMBINE_THREADS / LANES) + threadIdx.x / LANES;
    const int d = threadIdx.x % LANES * 4;
    spread s;
    ptx::let_next_start();
    ptx::wait_for_earlier();
    if (!find_spread<D, SHARED>(p, shared, blockIdx.x, row, rows, &s)) return;
    float most = NO_SCORE, sum = 0.0f;
#pragma unroll 4
    for (int i = 0; i < s.n; i++) most = fmaxf(most, p.stats[spread_row<SHARED>(p, s, i, row) * 2]);
    float4 acc = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
    for (int i = 0; i < s.n; i++) {
        const uint64_t at = spread_row<SHARED>(p, s, i, row);
        const float2 stat = *(const float2 *)(p.stats + at * 2);
        const float4 x = *(const float4 *)(p.partial + at * D + d);
        const float f = ptx::exp2(stat.x - most);
        sum += f * stat.y;
        acc.x += f * x.x, acc.y += f * x.y, acc.z += f * x.z, acc.w += f * x.w;
    }
    store_merged(s, d, acc, sum + ptx::exp2(s.sink - most));
}

/* Many shares a pair: 64 channels of one row a CTA; sixteen teams of sixteen threads take turns on the shares. */
template <int D, bool SHARED>
__global__ void __launch_bounds__(COMBINE_THREADS)
    combine_many(const __grid_constant__ params p, uint32_t rows, const __grid_constant__ shared_results shared) {
    constexpr int LANES = 16, TEAMS = COMBINE_THREADS / LANES, MOST = SHARED ? MAX_RESULTS : MAX_CTAS,
                  TURNS = (MOST + COMBINE_THREADS - 1) / COMBINE_THREADS;
    __shared__ float weight[MOST], red[2][COMBINE_THREADS / 32];
    __shared__ float4 sums[TEAMS][LANES];
    spread s;
    ptx::let_next_start();
    ptx::wait_for_earlier();
    if (!find_spread<D, SHARED>(p, shared, blockIdx.x, blockIdx.y, rows, &s)) return;
    const int t = threadIdx.x, lane = t % LANES, team = t / LANES, d = blockIdx.z * 64 + lane * 4;
    float2 mine[TURNS];
    float most = NO_SCORE, sum = 0.0f;
#pragma unroll
    for (int k = 0; k < TURNS; k++)
        if (const int i = t + k * COMBINE_THREADS; i < s.n) {
            mine[k] = *(const float2 *)(p.stats + spread_row<SHARED>(p, s, i, blockIdx.y) * 2);
            most = fmaxf(most, mine[k].x);
        }
    most = over_cta<true>(most, red[0]);
#pragma unroll
    for (int k = 0; k < TURNS; k++)
        if (const int i = t + k * COMBINE_THREADS; i < s.n) {
            weight[i] = ptx::exp2(mine[k].x - most);
            sum += weight[i] * mine[k].y;
        }
    sum = over_cta<false>(sum, red[1]) + ptx::exp2(s.sink - most);
    float4 acc = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
    for (int i = team; i < s.n; i += TEAMS) {
        const float4 x = *(const float4 *)(p.partial + spread_row<SHARED>(p, s, i, blockIdx.y) * D + d);
        const float f = weight[i];
        acc.x += f * x.x, acc.y += f * x.y, acc.z += f * x.z, acc.w += f * x.w;
    }
    sums[team][lane] = acc;
    __syncthreads();
    if (t >= LANES) return;
#pragma unroll
    for (int i = 1; i < TEAMS; i++) {
        const float4 x = sums[i][t];
        acc.x += x.x, acc.y += x.y, acc.z += x.z, acc.w += x.w;
    }
    store_merged(s, d, acc, sum);
}

/* ---- shared prefix -------------------------------------------------------------------------------------- */

constexpr int FIND_THREADS = 1024;

/* Pages, at most `most`, that the first column of every sequence that counts sees whole; by the whole CTA. first: a
 * sequence that counts. */
__device__ uint32_t seen_by_all(const params &p, uint32_t most, uint32_t *pages, uint32_t *first) {
    if (threadIdx.x == 0) *pages = most, *first = UINT32_MAX;
    __syncthreads();
    for (uint32_t b = threadIdx.x; b < p.b; b += FIND_THREADS)
        if (const int valid = valid_columns(p, b); valid > 0) {
            atomicMin(pages, (uint32_t)key_limit(p, b, 0, valid) / KVD_PAGE_TOKENS);
            atomicMin(first, b);
        }
    __syncthreads();
    return *pages;
}

/* How many pages all sequences that count have in common, for the passes behind. One CTA: a warp a sequence. */
__global__ void __launch_bounds__(FIND_THREADS)
    find_shared(const __grid_constant__ params p, uint32_t most, shared_prefix *to) {
    constexpr uint32_t AHEAD = 8; /* loads on their way before the first is used */
    __shared__ uint32_t pages, first;
    ptx::let_next_start();
    ptx::wait_for_earlier();
    const uint32_t seen = seen_by_all(p, most, &pages, &first), of = first;
    __syncthreads();
    if (of == UINT32_MAX) { /* no sequence counts */
        if (threadIdx.x == 0) *to = { 0, -(int32_t)(p.w * p.b), 0 };
        return;
    }
    const int32_t *model = table_row(p, (uint32_t)p.table_rows[of]);
    for (uint32_t b = threadIdx.x / 32; b < p.b; b += FIND_THREADS / 32) {
        if (valid_columns(p, b) == 0) continue;
        const int32_t *table = table_row(p, (uint32_t)p.table_rows[b]);
        for (uint32_t at = threadIdx.x % 32; at < seen; at += 32 * AHEAD) {
            uint32_t other = UINT32_MAX;
#pragma unroll
            for (uint32_t i = 0; i < AHEAD; i++)
                if (const uint32_t j = at + 32 * i; j < seen && table[j] != model[j]) other = min(other, j);
            if (other < seen) atomicMin(&pages, other);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) *to = { pages, (int32_t)(pages * KVD_PAGE_TOKENS) - (int32_t)(p.w * p.b), p.table_rows[of] };
}

/* ---- plan -------------------------------------------------------------------------------------------- */

/* Everything about one pass of the attention kernel that depends on shapes, the envelope and the machine only. */
struct pass_plan {
    instance kernel;
    uint32_t n_blocks, entries, pairs, grid, rows_kept, pieces;
    bool cut;
    uint64_t results; /* partial results that it may leave */
};

/* The same of a launch. */
struct launch_plan {
    pass_plan own, shared; /* shared: over the pages that a batch begins with; no kernel where none is wanted */
    uint32_t shared_pages; /* at most */
    size_t line_bytes, partial_bytes, stats_bytes, prefix_bytes;
};

static size_t align256(size_t n) { return (n + 255) & ~(size_t)255; }

/* Multiprocessors of the current device; without one, the largest number that MAX_CTAS is made for. */
static uint32_t multiprocessors(void) {
    int device = 0, n = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device) != cudaSuccess || n <= 0)
        return MAX_CTAS / 3;
    return (uint32_t)n < MAX_CTAS / 3 ? (uint32_t)n : MAX_CTAS / 3;
}

/* Pieces of a pair of so many pages that let `pairs` of them end earliest on `ctas`. A piece costs about START pages
 * more than its own, and a little where results have to be merged. */
static uint32_t choose_pieces(uint64_t pairs, uint32_t ctas, uint32_t pages) {
    constexpr uint32_t START = 4;
    uint32_t best = 1;
    double least = 0;
    for (uint32_t n = 1; n <= MAX_PIECES && (n == 1 || (n * 8 <= pages && pairs * n <= 4ull * ctas)); n++) {
        const double waves = (double)((pairs * n + ctas - 1) / ctas);
        const double cost = waves * ((double)((pages + n - 1) / n) + START + (n > 1 ? 2 : 0));
        if (n == 1 || cost < least) best = n, least = cost;
    }
    return best;
}

/* Shares that end with pairs where all pairs are alike, if these are few less than CTAs: a share then leaves one
 * partial result, or none, instead of two. */
static uint32_t choose_shares(uint64_t pairs, uint32_t ctas) {
    const uint64_t each = (pairs + ctas - 1) / ctas; /* pairs a share, at least one */
    const uint64_t shares = pairs < ctas ? ctas / pairs * pairs : (pairs + each - 1) / each;
    return shares * 16 >= ctas * 15ull ? (uint32_t)shares : ctas;
}

/* The most pages that a row block reads: of so many tokens, of a row of the table, and of the windows of its columns,
 * wherever they begin in a page. */
static uint32_t most_pages(const kvd_ops_attention *op, uint32_t tokens, uint32_t rb, uint32_t group) {
    const uint32_t asked = tokens / KVD_PAGE_TOKENS + (tokens % KVD_PAGE_TOKENS != 0);
    const uint32_t pages = asked < op->view.n_logical ? asked : op->view.n_logical;
    const uint32_t columns = (rb + group - 2) / group + 1;
    const uint64_t keys = (uint64_t)op->window + (columns < op->w ? columns : op->w) - 1;
    const uint64_t seen = (keys + 2 * KVD_PAGE_MASK) / KVD_PAGE_TOKENS;
    return op->window != 0 && seen < pages ? (uint32_t)seen : pages;
}

static uint32_t v_dim(const PagedKVBatchLayerView *v) { return v->v_head_dim ? v->v_head_dim : v->head_dim; }

/* b sequences of w columns each, of so many tokens at most. keep: every pair leaves partial results. alike: all pairs
 * are of one length. */
static bool plan_pass(const kvd_ops_attention *op, uint64_t w, uint32_t b, uint32_t tokens, bool keep, bool alike,
                      pass_plan *ret_plan) {
    const PagedKVBatchLayerView *v = &op->view;
    const uint32_t group = op->n_q_heads / v->n_kv_heads;
    const uint64_t rows = w * group;
    const bool logits = op->window != 0 || op->soft_cap > 0;
    pass_plan x = {};
    x.kernel = v->storage == KVD_STORAGE_BF16 ? find_bf16(v->head_dim, rows, logits)
               : v->storage == KVD_STORAGE_INT8 || v->storage == KVD_STORAGE_FP8
                   ? find_byte(v->storage, v->head_dim, rows, logits)
                   : find_fp4(v->storage, v->head_dim, rows, logits);
    if (x.kernel.kernel == nullptr) return false;
    const uint32_t rb = (uint32_t)x.kernel.rows;
    const uint64_t blocks = (rows + rb - 1) / rb, entries = blocks * b, pairs = entries * v->n_kv_heads;
    if (rows > INT32_MAX || pairs > INT32_MAX) return false;
    const uint32_t pages = most_pages(op, tokens, rb, group);
    const uint64_t units = pairs * pages;
    const uint32_t ctas = (uint32_t)x.kernel.per_sm * multiprocessors();
    x.n_blocks = (uint32_t)blocks, x.entries = (uint32_t)entries, x.pairs = (uint32_t)pairs;
    x.rows_kept = rows < rb ? (uint32_t)rows : rb;
    alike = alike || (b == 1 && rb > 64); /* pairs of a prefill: nearly of one length */
    x.cut = !alike && entries <= MAX_ENTRIES && pairs < 8ull * ctas && units < UINT32_MAX;
    x.pieces = x.cut ? 1 : choose_pieces(pairs, ctas, pages);
    x.grid = !x.cut         ? x.pairs * x.pieces
             : units < ctas ? (uint32_t)(units > 0 ? units : 1)
                            : choose_shares(pairs, ctas);
    x.results = x.cut ? 2ull * x.grid + (keep ? pairs : 0) : x.pieces > 1 || keep ? x.grid : 0;
    *ret_plan = x;
    return true;
}

/* False where the plain form is what there is. */
static bool make_plan(const kvd_ops_attention *op, uint32_t max_context, launch_plan *ret_plan) {
    const uint32_t most = op->shared_prefix < max_context ? op->shared_prefix : max_context;
    launch_plan x = {};
    if (v_dim(&op->view) != op->view.head_dim) return false;
    const bool keep = op->b > 1 && op->window == 0 && most >= KVD_PAGE_TOKENS &&
                      plan_pass(op, (uint64_t)op->w * op->b, 1, most, true, true, &x.shared);
    if (keep) x.shared_pages = most_pages(op, most, 1, 1);
    if (!plan_pass(op, op->w, op->b, max_context, keep, false, &x.own)) return false;
    const size_t rows = (size_t)(x.own.results * x.own.rows_kept + x.shared.results * x.shared.rows_kept);
    if (x.own.cut) x.line_bytes = align256(((size_t)x.own.entries + 1) * sizeof(uint32_t));
    x.partial_bytes = align256(rows * op->view.head_dim * sizeof(float));
    x.stats_bytes = align256(rows * 2 * sizeof(float));
    if (keep) x.prefix_bytes = align256(sizeof(shared_prefix));
    *ret_plan = x;
    return true;
}

static size_t workspace_of(const launch_plan &x) {
    return x.line_bytes + x.partial_bytes + x.stats_bytes + x.prefix_bytes;
}

static plane make_plane(const kvd_plane_view *v) {
    return { (const uint8_t *)v->base, v->stride_head, v->stride_page };
}

static void set_pass(params *p, const pass_plan &x) {
    p->n_blocks = x.n_blocks, p->entries = x.entries, p->cut = x.cut;
    p->rows_kept = x.rows_kept, p->shares = x.grid, p->pieces = x.pieces;
}

static params make_params(const kvd_ops_attention *op, const launch_plan &x, void *workspace) {
    const PagedKVBatchLayerView *v = &op->view;
    params p = {};
    p.k = make_plane(&v->k), p.v = make_plane(&v->v);
    p.k_scale = make_plane(&v->k_scale), p.v_scale = make_plane(&v->v_scale);
    p.tables = v->block_tables;
    p.positions = op->positions, p.valid = op->valid, p.table_rows = op->table_rows, p.context = op->context;
    p.q = op->q, p.out = op->out;
    p.n_logical = v->n_logical, p.n_rows = v->n_rows, p.n_pages = v->n_pages;
    p.heads = v->n_kv_heads, p.group = op->n_q_heads / v->n_kv_heads, p.w = op->w, p.b = op->b;
    p.causal = op->causal, p.scale_log2 = op->scale * 1.44269504088896341f;
    p.window = op->window < INT32_MAX ? (int32_t)op->window : INT32_MAX, p.aligned = op->aligned;
    p.sinks = op->sinks;
    if (op->soft_cap > 0) p.cap = op->soft_cap * 1.44269504088896341f, p.cap_rate = 2.0f / op->soft_cap;
    set_pass(&p, x.own);
    uint8_t *at = (uint8_t *)workspace;
    p.line = (uint32_t *)at;
    p.partial = (float *)(at + x.line_bytes);
    p.stats = (float *)(at + x.line_bytes + x.partial_bytes);
    return p;
}

/* The pass over the pages that the sequences of p share: one sequence, whose columns are those of all and see all of
 * them. */
static params shared_params(const params &p, const launch_plan &x, uint32_t head_dim, const shared_prefix *prefix) {
    const uint64_t rows = x.own.results * x.own.rows_kept;
    params y = p;
    set_pass(&y, x.shared);
    y.w = p.w * p.b, y.b = 1, y.valid = nullptr, y.causal = 0;
    y.context = &prefix->context, y.table_rows = &prefix->row;
    y.partial = p.partial + rows * head_dim, y.stats = p.stats + rows * 2;
    y.keep = 1;
    return y;
}

/* ---- launch -------------------------------------------------------------------------------------------- */

/* begin_early: with leave to begin before the kernel ahead in the stream has ended; every kernel here waits for it
 * first. */
static cudaError_t launch_kernel(const void *kernel, dim3 grid, int threads, int smem, bool begin_early,
                                 cudaStream_t stream, void **args) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = begin_early;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = (size_t)smem;
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = 1;
    return cudaLaunchKernelExC(&config, kernel, args);
}

/* All shared memory of a multiprocessor for CTAs: no kernel of this file makes it change its split. */
static cudaError_t prepare(const void *kernel, int smem) {
    cudaError_t rc =
        cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    return rc == cudaSuccess && smem > 0
               ? cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem)
               : rc;
}

template <int D>
static cudaError_t launch_combine(params p, const pass_plan &x, shared_results shared, cudaStream_t stream) {
    const bool many = x.grid / x.pairs + shared.pieces >= 16; /* partial results of a row, about */
    const void *kernel = shared.prefix ? many ? (const void *)combine_many<D, true> : (const void *)combine_few<D, true>
                         : many ? (const void *)combine_many<D, false>
                                       : (const void *)combine_few<D, false>;
    constexpr uint32_t rows_a_cta = COMBINE_THREADS / (D / 4);
    const dim3 grid =
        many ? dim3(x.pairs, x.rows_kept, D / 64) : dim3(x.pairs, (x.rows_kept + rows_a_cta - 1) / rows_a_cta);
    uint32_t rows = (uint32_t)x.kernel.rows;
    void *args[] = { &p, &rows, &shared };
    const cudaError_t rc = prepare(kernel, 0);
    return rc == cudaSuccess ? launch_kernel(kernel, grid, COMBINE_THREADS, 0, true, stream, args) : rc;
}

using encode_map = decltype(&cuTensorMapEncodeTiled);

/* The driver's function, without linking the driver. */
static encode_map find_encode_map(void) {
    void *at = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t rc =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &at, 12000, cudaEnableDefault, &found);
    return rc == cudaSuccess && found == cudaDriverEntryPointSuccess ? (encode_map)at : nullptr;
}

/* A plane of BF16 or of codes of a byte as channel, token, head, page, in boxes of 128 bytes x 64 tokens with 128-byte
 * swizzle. */
static cudaError_t make_map(const PagedKVBatchLayerView *view, const kvd_plane_view *v, CUtensorMap *ret_map) {
    static const encode_map encode = find_encode_map();
    const cuuint64_t sizes[] = { v->extent, KVD_PAGE_TOKENS, view->n_kv_heads, view->n_pages };
    const cuuint64_t strides[] = { v->stride_token, v->stride_head ? v->stride_head : 16,
                                   v->stride_page ? v->stride_page : 16 }; /* 0 only where there is one */
    const cuuint32_t box[] = { (cuuint32_t)(128 / v->stride_elem), KVD_PAGE_TOKENS, 1, 1 }, steps[] = { 1, 1, 1, 1 };
    if (encode == nullptr) return cudaErrorNotSupported;
    const CUtensorMapDataType type =
        v->stride_elem == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8;
    const CUresult rc =
        encode(ret_map, type, 4, v->base, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
               CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return rc == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

static cudaError_t make_maps(const PagedKVBatchLayerView *view, page_maps *ret_maps) {
    const cudaError_t rc = make_map(view, &view->k, &ret_maps->k);
    return rc == cudaSuccess ? make_map(view, &view->v, &ret_maps->v) : rc;
}

static cudaError_t launch_pass(params p, const pass_plan &x, const PagedKVBatchLayerView *view, cudaStream_t stream) {
    page_maps maps;
    cudaError_t rc = prepare(x.kernel.kernel, x.kernel.smem);
    if (rc == cudaSuccess && x.kernel.maps) rc = make_maps(view, &maps);
    if (rc != cudaSuccess) return rc;
    void *args[] = { &p, &maps };
    /* CTAs of a grid of three a multiprocessor that come early crowd the combine kernel before them: measured slower.
     */
    const bool begin_early = x.kernel.per_sm <= 2;
    return launch_kernel(x.kernel.kernel, dim3(x.grid), x.kernel.threads, x.kernel.smem, begin_early, stream, args);
}

/* Finds the shared prefix and reads it; p is then the pass over the rest. */
static cudaError_t launch_shared(params *p, const launch_plan &x, const PagedKVBatchLayerView *view,
                                 shared_results *ret_shared, cudaStream_t stream) {
    shared_prefix *prefix = (shared_prefix *)((uint8_t *)p->stats + x.stats_bytes);
    uint32_t most = x.shared_pages;
    void *args[] = { p, &most, &prefix };
    cudaError_t rc = prepare((const void *)find_shared, 0);
    if (rc == cudaSuccess) rc = launch_kernel((const void *)find_shared, dim3(1), FIND_THREADS, 0, true, stream, args);
    if (rc == cudaSuccess) rc = launch_pass(shared_params(*p, x, view->head_dim, prefix), x.shared, view, stream);
    p->skip = &prefix->pages, p->keep = 1;
    *ret_shared = { prefix, x.own.results * x.own.rows_kept, (uint32_t)x.shared.kernel.rows, x.shared.rows_kept,
                    x.shared.pieces };
    return rc;
}

static cudaError_t launch_attention(params p, const launch_plan &x, const PagedKVBatchLayerView *view,
                                    cudaStream_t stream) {
    shared_results shared = {};
    cudaError_t rc = x.shared_pages > 0 ? launch_shared(&p, x, view, &shared, stream) : cudaSuccess;
    if (rc == cudaSuccess) rc = launch_pass(p, x.own, view, stream);
    if (rc != cudaSuccess || (!x.own.cut && x.own.pieces == 1 && !p.keep)) return rc;
    return view->head_dim == 64    ? launch_combine<64>(p, x.own, shared, stream)
           : view->head_dim == 128 ? launch_combine<128>(p, x.own, shared, stream)
                                   : launch_combine<256>(p, x.own, shared, stream);
}

/* What the kernels need beyond ops_attention_check(): 16-byte pieces everywhere. */
static int check_plane(const kvd_plane_view *v, const char *name, char *err, size_t err_bytes) {
    if (v->dtype == KVD_DTYPE_NONE) return 0;
    if (((uintptr_t)v->base | v->stride_head | v->stride_page) % 16 != 0) {
        snprintf(err, err ? err_bytes : 0,
                 "plane %s: base %p, head stride %llu and page stride %llu must be multiples of 16 bytes on a GPU",
                 name, v->base, (unsigned long long)v->stride_head, (unsigned long long)v->stride_page);
        return KVD_OPS_INVALID;
    }
    return 0;
}

static int check_planes(const PagedKVBatchLayerView *v, char *err, size_t err_bytes) {
    int rc = check_plane(&v->k, "K", err, err_bytes);
    rc = rc ? rc : check_plane(&v->v, "V", err, err_bytes);
    rc = rc ? rc : check_plane(&v->k_scale, "K scale", err, err_bytes);
    return rc ? rc : check_plane(&v->v_scale, "V scale", err, err_bytes);
}

static int launch_result(cudaError_t e, char *err, size_t err_bytes) {
    if (e == cudaSuccess) return 0;
    snprintf(err, err ? err_bytes : 0, "launching attention failed: %s", cudaGetErrorString(e));
    return KVD_OPS_LAUNCH;
}

/* What no plan is made for. */
static int attend_plainly(const kvd_ops_attention *op, cudaStream_t stream, char *err, size_t err_bytes) {
    const PagedKVBatchLayerView *v = &op->view;
    const uint64_t rows = (uint64_t)op->n_q_heads * op->w * op->b; /* no more than eight times the blocks */
    if (v->head_dim > PLAIN_DIM_MAX || v_dim(v) > PLAIN_DIM_MAX || rows > INT32_MAX) {
        snprintf(
            err, err ? err_bytes : 0,
            "no GPU kernel for K of head_dim %u with V of %u and %llu rows of queries: at most %u each, and %d rows",
            v->head_dim, v_dim(v), (unsigned long long)rows, PLAIN_DIM_MAX, INT32_MAX);
        return KVD_OPS_UNIMPLEMENTED;
    }
    const params p = make_params(op, launch_plan{}, nullptr);
    return launch_result(launch_plain(p, v->storage, v->head_dim, v_dim(v), stream), err, err_bytes);
}

} /* namespace attn */

extern "C" size_t kvd_ops_attention_workspace(const struct kvd_ops_attention *op, uint32_t max_context) {
    attn::launch_plan x;
    if (op->view.n_kv_heads == 0 || op->w == 0 || op->b == 0 || !attn::make_plan(op, max_context, &x)) return 0;
    return attn::workspace_of(x);
}

extern "C" int kvd_ops_attention_cuda(const struct kvd_ops_attention *op, uint32_t max_context, void *workspace,
                                      size_t workspace_bytes, kvd_ops_stream stream, char *err, size_t err_bytes) {
    int rc = ops_attention_check(op, err, err_bytes);
    rc = rc ? rc : ops_cuda_check(&op->view, err, err_bytes);
    rc = rc ? rc : attn::check_planes(&op->view, err, err_bytes);
    if (rc) return rc;
    attn::launch_plan x;
    if (!attn::make_plan(op, max_context, &x)) return attn::attend_plainly(op, (cudaStream_t)stream, err, err_bytes);
    if (((uintptr_t)op->q | (uintptr_t)op->out) % 16 != 0) {
        snprintf(err, err ? err_bytes : 0, "q at %p and out at %p must be aligned to 16 bytes", (const void *)op->q,
                 (void *)op->out);
        return KVD_OPS_INVALID;
    }
    const size_t need = attn::workspace_of(x);
    if (need > 0 && (workspace == nullptr || workspace_bytes < need || (uintptr_t)workspace % 256 != 0)) {
        snprintf(err, err ? err_bytes : 0,
                 "attention needs a workspace of %zu bytes aligned to 256; there are %zu at %p", need, workspace_bytes,
                 workspace);
        return KVD_OPS_INVALID;
    }
    const attn::params p = attn::make_params(op, x, workspace);
    return attn::launch_result(attn::launch_attention(p, x, &op->view, (cudaStream_t)stream), err, err_bytes);
}
