/* SPDX-License-Identifier: Apache-2.0
 *
 * Append on the GPU: encodes new K and V rows into their pages, byte for byte as kvd_ops_append_host() does (GEOM-9). A
 * warp takes one or several heads of a column, 16 bytes of K and of V a lane. They are loaded before the page is looked
 * up, so that the two latencies overlap, and the page is looked up once for all heads.
 */
#include <cuda_runtime.h>
#include <stdio.h>

#include "ops.h"
#include "ops_ptx.cuh"

namespace append {

constexpr int THREADS = 256;

struct append_params {
    kvd_plane_view k, v, k_scale, v_scale;
    const int32_t *tables, *positions, *valid, *table_rows;
    const uint16_t *k_in, *v_in;
    uint32_t n_logical, n_rows, n_pages, heads, k_dim, v_dim, w, b;
};

/* Where a column goes: page and offset. False: past valid, or not mapped. */
struct place {
    uint32_t page, offset;
};

__device__ __forceinline__ bool find_place(const append_params &p, uint32_t column, place *ret_place) {
    const uint32_t b = p.b == 1 ? 0 : column / p.w, w = column - b * p.w;
    const int32_t position = p.positions[column], valid = p.valid ? p.valid[b] : INT32_MAX;
    const uint32_t row = (uint32_t)p.table_rows[b], block = (uint32_t)position >> KVD_PAGE_SHIFT;
    if ((int)w >= valid || position < 0 || row >= p.n_rows || block >= p.n_logical) return false;
    const uint32_t page = (uint32_t)p.tables[(uint64_t)row * p.n_logical + block];
    *ret_place = { page, (uint32_t)position & KVD_PAGE_MASK };
    return page < p.n_pages;
}

__device__ __forceinline__ uint8_t *row_of(const kvd_plane_view &v, const place &at, uint32_t head) {
    return (uint8_t *)v.base + at.page * v.stride_page + head * v.stride_head + at.offset * v.stride_token;
}

/* The column and the first of HEADS heads of this warp. False: nothing to do. */
template <int HEADS>
__device__ __forceinline__ bool find_work(const append_params &p, uint32_t *ret_column, uint32_t *ret_head) {
    const uint32_t warp = (blockIdx.x * THREADS + threadIdx.x) / 32, parts = (p.heads + HEADS - 1) / HEADS;
    *ret_column = warp / parts, *ret_head = warp % parts * HEADS;
    return *ret_column < p.w * p.b;
}

/* ---- BF16: bit copy ----------------------------------------------------------------------------- */

/* Rows of PIECES times 16 bytes, HEADS heads of a column a warp. */
template <int PIECES, int HEADS>
__global__ void __launch_bounds__(THREADS) copy_rows(const __grid_constant__ append_params p) {
    constexpr int TURNS = (HEADS * PIECES + 31) / 32;
    uint32_t column, first;
    ptx::let_next_start();
    if (!find_work<HEADS>(p, &column, &first)) return;
    const int lane = threadIdx.x & 31;
    const uint64_t from = ((uint64_t)column * p.heads + first) * PIECES;
    uint4 k[TURNS], v[TURNS];
    bool mine[TURNS];
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
        const int c = i * 32 + lane;
        mine[i] = c < HEADS * PIECES && first + c / PIECES < p.heads;
        if (mine[i]) k[i] = ((const uint4 *)p.k_in)[from + c], v[i] = ((const uint4 *)p.v_in)[from + c];
    }
    place at;
    if (!find_place(p, column, &at)) return;
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
        const int c = i * 32 + lane;
        if (!mine[i]) continue;
        ((uint4 *)row_of(p.k, at, first + c / PIECES))[c % PIECES] = k[i];
        ((uint4 *)row_of(p.v, at, first + c / PIECES))[c % PIECES] = v[i];
    }
}

/* Any head_dims: one element a lane and turn, one head of a column a warp. */
__global__ void __launch_bounds__(THREADS) copy_elements(const __grid_constant__ append_params p) {
    uint32_t column, head;
    place at;
    ptx::let_next_start();
    if (!find_work<1>(p, &column, &head) || !find_place(p, column, &at)) return;
    const uint64_t from = (uint64_t)column * p.heads + head;
    uint16_t *k = (uint16_t *)row_of(p.k, at, head), *v = (uint16_t *)row_of(p.v, at, head);
    for (uint32_t i = threadIdx.x & 31; i < p.k_dim; i += 32) k[i] = p.k_in[from * p.k_dim + i];
    for (uint32_t i = threadIdx.x & 31; i < p.v_dim; i += 32) v[i] = p.v_in[from * p.v_dim + i];
}

/* ---- what the codecs share ------------------------------------------------------------------------ */

/* Eight BF16 of a lane; NaN counts as zero. */
struct eight {
    uint32_t pair[4];

    __device__ __forceinline__ float value_at(int i) const {
        return i & 1 ? ptx::bf16_high(pair[i / 2]) : ptx::bf16_low(pair[i / 2]);
    }
};

__device__ __forceinline__ uint32_t without_nan(uint32_t pair) {
    const uint32_t low = (pair & 0x7fffu) > 0x7f80u ? 0 : pair & 0xffffu;
    const uint32_t high = (pair & 0x7fff0000u) > 0x7f800000u ? 0 : pair & 0xffff0000u;
    return low | high;
}

/* Zeros where the lane is past the row: they change no largest magnitude. */
__device__ __forceinline__ eight load_eight(const uint16_t *from, int lane, uint32_t dim) {
    const uint4 x = (uint32_t)lane * 8 < dim ? ((const uint4 *)from)[lane] : make_uint4(0, 0, 0, 0);
    return { { x.x, x.y, x.z, x.w } };
}

__device__ __forceinline__ uint32_t largest_here(const eight &x) {
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) most = __vmaxu2(most, x.pair[i] & 0x7fff7fffu);
    return most;
}

/* Largest magnitude over LANES lanes: magnitudes of BF16 order like integers, NaN on top. Also clears NaN. */
template <int LANES> __device__ __forceinline__ float largest(eight &x) {
    uint32_t most = largest_here(x);
    if (__vmaxu2(most, 0x7f807f80u) != 0x7f807f80u) { /* rare: a NaN of this lane's */
#pragma unroll
        for (int i = 0; i < 4; i++) x.pair[i] = without_nan(x.pair[i]);
        most = largest_here(x);
    }
#pragma unroll
    for (int d = LANES / 2; d > 0; d >>= 1) most = __vmaxu2(most, __shfl_xor_sync(0xffffffffu, most, d));
    return fmaxf(ptx::bf16_low(most), ptx::bf16_high(most));
}

__device__ __forceinline__ uint16_t half_bits(float x) {
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}

/* Two FP32 to two E4M3FN, to nearest even, saturating; low in the low byte. */
__device__ __forceinline__ uint32_t e4m3_pair(float low, float high) {
    uint16_t two;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(high), "f"(low));
    return two;
}

/* ---- codecs: 8 elements a lane, a row to LANES lanes, of which those within the row store ------------ */

/* FP16 of FP32(most / DIVISOR), for 127 and 448. In the normal range no quotient of a BF16 is near a tie of FP16, so
 * that the product with the reciprocal rounds alike; below it is divided. */
template <int DIVISOR> __device__ __forceinline__ uint16_t scale_of(float most, float least) {
    const float quick = most * (1.0f / DIVISOR), exact = quick > 0x1p-13f ? quick : __fdiv_rn(most, (float)DIVISOR);
    return half_bits(fminf(fmaxf(exact, least), 65504.0f));
}

__device__ __forceinline__ void store_int8(eight x, uint8_t *codes, uint8_t *scales, int lane, bool mine) {
    const float most = largest<8>(x);
    const uint16_t scale = scale_of<127>(most, 0.0f);
    const float s = ptx::half_to_float(scale), inverse = s == 0.0f ? 0.0f : __frcp_rn(s);
    uint32_t word[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        uint32_t c[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            /* An infinite element times the zero of a zero scale cannot meet: its own magnitude made the scale. */
            const float y = fminf(fmaxf(__fmul_rn(x.value_at(4 * j + i), inverse), -127.0f), 127.0f);
            c[i] = __float_as_uint(__fadd_rn(y, 12582912.0f)); /* the integer stands in the low bits, ties to even */
        }
        word[j] = __byte_perm(__byte_perm(c[0], c[1], 0x0040), __byte_perm(c[2], c[3], 0x0040), 0x5410);
    }
    if (!mine) return;
    ((uint2 *)codes)[lane] = make_uint2(word[0], word[1]);
    if (lane % 8 == 0) ((uint16_t *)scales)[lane / 8] = scale;
}

template <int LANES>
__device__ __forceinline__ void store_fp8(eight x, uint8_t *codes, uint8_t *scales, int lane, bool mine) {
    const float most = largest<LANES>(x);
    const uint16_t scale = most == 0.0f ? 0 : scale_of<448>(most, 0x1p-24f);
    const float inverse = most == 0.0f ? 0.0f : __frcp_rn(ptx::half_to_float(scale));
    uint32_t word[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const uint32_t low =
            e4m3_pair(__fmul_rn(x.value_at(4 * j), inverse), __fmul_rn(x.value_at(4 * j + 1), inverse));
        const uint32_t high =
            e4m3_pair(__fmul_rn(x.value_at(4 * j + 2), inverse), __fmul_rn(x.value_at(4 * j + 3), inverse));
        word[j] = most == 0.0f ? 0 : low | high << 16;
    }
    if (!mine) return;
    ((uint2 *)codes)[lane] = make_uint2(word[0], word[1]);
    if (lane == 0) *(uint16_t *)scales = scale;
}

/* The boundaries of both roundings below are numbers of a few bits, and operands have eight: a quotient either is a
 * boundary or is 2^-9 of itself away from it. So the FP32 product with a reciprocal, rounded once more to FP16, stands
 * on the same side of every boundary as the true quotient, and on it when that one does. */

/* E4M3 of most / 6, to nearest even, clamped to [2^-9, 448]. */
__device__ __forceinline__ uint32_t fp4_scale(float most) {
    const float quotient = fminf(fmaxf(most * (1.0f / 6.0f), 0x1p-9f), 448.0f);
    uint16_t two;
    asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(two) : "r"(ptx::pack<true>(quotient, 0.0f)));
    return two & 0xffu;
}

/* Magnitude codes of two elements. An FP16 of v * 2^-14 has the exponent range of E2M1 (normal from v = 1 on), so that
 * its bits, rounded after the first mantissa bit, are the code. factor: 2^-14 / scale. */
__device__ __forceinline__ uint32_t e2m1_pair(uint32_t magnitudes, float factor) {
    uint32_t u = ptx::pack<true>(ptx::bf16_low(magnitudes) * factor, ptx::bf16_high(magnitudes) * factor);
    u = __vminu2(u, 0x0e000e00u); /* 6 * 2^-14 */
    return ((u + 0x00ff00ffu + ((u >> 9) & 0x00010001u)) >> 9) & 0x00070007u;
}

__device__ __forceinline__ void store_fp4(eight x, uint8_t *codes, uint8_t *scales, int lane, bool mine) {
    const float most = largest<2>(x);
    const uint32_t scale = most == 0.0f ? 0 : fp4_scale(most);
    const float factor =
        most == 0.0f ? 0.0f : __frcp_rn(ptx::half_to_float(ptx::e4m3_to_half2(scale) & 0xffff)) * 0x1p-14f;
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t n = e2m1_pair(x.pair[i] & 0x7fff7fffu, factor) | ((x.pair[i] >> 12) & 0x00080008u);
        word |= ((n | n >> 12) & 0xffu) << (8 * i);
    }
    if (!mine) return;
    ((uint32_t *)codes)[lane] = most == 0.0f ? 0 : word;
    if (lane % 2 == 0) scales[lane / 2] = (uint8_t)scale;
}

/* ---- quantized profiles --------------------------------------------------------------------------- */

/* Where the rows of a head go. */
struct targets {
    uint8_t *k, *k_scale, *v, *v_scale;

    __device__ __forceinline__ targets(const append_params &p, const place &at, uint32_t head)
        : k(row_of(p.k, at, head)), k_scale(row_of(p.k_scale, at, head)), v(row_of(p.v, at, head)),
          v_scale(row_of(p.v_scale, at, head)) {}
};

/* k_mine, v_mine: whether the lane has a part of that row. */
template <int S, int LANES>
__device__ __forceinline__ void encode(const targets &to, const eight &k, const eight &v, int lane, bool k_mine,
                                       bool v_mine) {
    if constexpr (S == KVD_STORAGE_INT8) {
        store_int8(k, to.k, to.k_scale, lane, k_mine);
        store_int8(v, to.v, to.v_scale, lane, v_mine);
    } else if constexpr (S == KVD_STORAGE_NVFP4) {
        store_fp4(k, to.k, to.k_scale, lane, k_mine);
        store_fp4(v, to.v, to.v_scale, lane, v_mine);
    } else {
        store_fp8<LANES>(k, to.k, to.k_scale, lane, k_mine);
        if constexpr (S == KVD_STORAGE_FP8) store_fp8<LANES>(v, to.v, to.v_scale, lane, v_mine);
        else store_fp4(v, to.v, to.v_scale, lane, v_mine);
    }
}

/* 32 / LANES heads of a column a warp; 8 * LANES is the larger head_dim rounded up to a power of two, WHOLE: and both.
 * So few registers that a multiprocessor is full of warps: they hide the arithmetic and the look-up of the page. */
template <int S, int LANES, bool WHOLE>
__global__ void __launch_bounds__(THREADS, 2048 / THREADS) encode_rows(const __grid_constant__ append_params p) {
    constexpr int HEADS = 32 / LANES;
    uint32_t column, first;
    ptx::let_next_start();
    if (!find_work<HEADS>(p, &column, &first)) return;
    const int lane = threadIdx.x % LANES;
    const uint32_t head = first + threadIdx.x % 32 / LANES;
    const uint64_t from = (uint64_t)column * p.heads + head;
    const bool here = HEADS == 1 || head < p.heads; /* lanes without a head go along: they shuffle */
    const uint32_t k_row = WHOLE ? LANES * 8 : p.k_dim, v_row = WHOLE ? LANES * 8 : p.v_dim;
    const uint32_t k_dim = here ? k_row : 0, v_dim = here ? v_row : 0;
    const eight k = load_eight(p.k_in + from * k_row, lane, k_dim);
    const eight v = load_eight(p.v_in + from * v_row, lane, v_dim);
    place at;
    if (!find_place(p, column, &at)) return;
    encode<S, LANES>(targets(p, at, head), k, v, lane, (uint32_t)lane * 8 < k_dim, (uint32_t)lane * 8 < v_dim);
}

/* ---- launch ------------------------------------------------------------------------------------------ */

static append_params make_params(const kvd_ops_append *op) {
    const PagedKVBatchLayerView *v = &op->view;
    append_params p = {};
    p.k = v->k, p.v = v->v, p.k_scale = v->k_scale, p.v_scale = v->v_scale;
    p.tables = v->block_tables, p.positions = op->positions, p.valid = op->valid, p.table_rows = op->table_rows;
    p.k_in = op->k, p.v_in = op->v;
    p.n_logical = v->n_logical, p.n_rows = v->n_rows, p.n_pages = v->n_pages;
    p.heads = v->n_kv_heads, p.w = op->w, p.b = op->b;
    p.k_dim = v->head_dim, p.v_dim = v->v_head_dim ? v->v_head_dim : v->head_dim;
    return p;
}

/* True where K and V are alike and every row of inputs and planes begins at a multiple of 16 bytes. */
static bool whole_pieces(const append_params &p) {
    const kvd_plane_view *planes[] = { &p.k, &p.v };
    if (p.k_dim != p.v_dim) return false;
    uintptr_t bits = (uintptr_t)p.k_in | (uintptr_t)p.v_in | p.k_dim * 2;
    for (const kvd_plane_view *v : planes)
        bits |= (uintptr_t)v->base | v->stride_head | v->stride_page | v->stride_token;
    return bits % 16 == 0;
}

constexpr int HEADS_COPY = 4; /* heads of a column that a warp takes when there are many columns */
constexpr uint64_t COLUMNS_MANY = 1024;

static uint32_t ctas(const append_params &p, uint32_t heads_a_warp) {
    const uint64_t warps = (uint64_t)p.w * p.b * ((p.heads + heads_a_warp - 1) / heads_a_warp);
    return (uint32_t)((warps * 32 + THREADS - 1) / THREADS);
}

static bool many_columns(const append_params &p) { return (uint64_t)p.w * p.b >= COLUMNS_MANY; }

template <int PIECES> static void launch_copy(const append_params &p, cudaStream_t stream) {
    if (many_columns(p)) copy_rows<PIECES, HEADS_COPY><<<ctas(p, HEADS_COPY), THREADS, 0, stream>>>(p);
    else copy_rows<PIECES, 1><<<ctas(p, 1), THREADS, 0, stream>>>(p);
}

template <int S, int LANES> static void launch_lanes(const append_params &p, cudaStream_t stream) {
    const uint32_t n = ctas(p, 32 / LANES);
    if (p.k_dim == LANES * 8 && p.v_dim == LANES * 8) encode_rows<S, LANES, true><<<n, THREADS, 0, stream>>>(p);
    else encode_rows<S, LANES, false><<<n, THREADS, 0, stream>>>(p);
}

template <int S> static void launch_encode(const append_params &p, cudaStream_t stream) {
    const uint32_t dim = p.k_dim > p.v_dim ? p.k_dim : p.v_dim;
    if (dim <= 64) launch_lanes<S, 8>(p, stream);
    else if (dim <= 128) launch_lanes<S, 16>(p, stream);
    else launch_lanes<S, 32>(p, stream);
}

static void launch_append(const append_params &p, uint32_t storage, cudaStream_t stream) {
    if (storage == KVD_STORAGE_INT8) launch_encode<KVD_STORAGE_INT8>(p, stream);
    else if (storage == KVD_STORAGE_FP8) launch_encode<KVD_STORAGE_FP8>(p, stream);
    else if (storage == KVD_STORAGE_NVFP4) launch_encode<KVD_STORAGE_NVFP4>(p, stream);
    else if (storage == KVD_STORAGE_K8V4) launch_encode<KVD_STORAGE_K8V4>(p, stream);
    else if (whole_pieces(p) && p.k_dim == 256) launch_copy<32>(p, stream);
    else if (whole_pieces(p) && p.k_dim == 128) launch_copy<16>(p, stream);
    else if (whole_pieces(p) && p.k_dim == 64) launch_copy<8>(p, stream);
    else copy_elements<<<ctas(p, 1), THREADS, 0, stream>>>(p);
}

} /* namespace append */

extern "C" int kvd_ops_append_cuda(const struct kvd_ops_append *op, kvd_ops_stream stream, char *err,
                                   size_t err_bytes) {
    int rc = ops_append_check(op, err, err_bytes);
    rc = rc ? rc : ops_cuda_check(&op->view, err, err_bytes);
    if (rc) return rc;
    const append::append_params p = append::make_params(op);
    if (op->view.storage != KVD_STORAGE_BF16 && ((uintptr_t)op->k | (uintptr_t)op->v) % 16 != 0) {
        snprintf(err, err ? err_bytes : 0, "k at %p and v at %p must be aligned to 16 bytes for quantized storage",
                 (const void *)op->k, (const void *)op->v);
        return KVD_OPS_INVALID;
    }
    append::launch_append(p, op->view.storage, (cudaStream_t)stream);
    const cudaError_t e = cudaGetLastError();
    if (e != cudaSuccess) {
        snprintf(err, err ? err_bytes : 0, "launching append failed: %s", cudaGetErrorString(e));
        return KVD_OPS_LAUNCH;
    }
    return 0;
}
