/* SPDX-License-Identifier: Apache-2.0
 *
 * Append on the GPU: encodes new K and V rows into their pages, byte for byte as ops_append_ref() does (GEOM-9). One warp a
 * (column, head) for the quantized profiles, 8 elements a lane; one thread per 16 bytes for BF16. K and V are loaded before
 * the page is looked up, so that the two latencies overlap.
 */
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdio.h>

#include "ops_cuda.h"
#include "ops_ptx.cuh"

namespace append {

constexpr int THREADS = 256;
constexpr int D_QUANTIZED = 256;

struct params {
    kvd_plane_view k, v, k_scale, v_scale;
    const int32_t *tables, *positions, *valid, *table_rows;
    const uint16_t *k_in, *v_in;
    uint32_t n_logical, n_rows, n_pages, heads, head_dim, w, b;
};

/* Where a column of a head goes: page and offset. False: past valid, or not mapped. */
struct place {
    uint32_t page, offset, head;
};

__device__ __forceinline__ bool find_place(const params &p, uint32_t column, uint32_t head, place *ret_place) {
    const uint32_t b = column / p.w, w = column % p.w;
    if (p.valid && (int)w >= p.valid[b])
        return false;
    const int32_t position = p.positions[column];
    const uint32_t row = (uint32_t)p.table_rows[b], block = (uint32_t)position >> KVD_PAGE_SHIFT;
    if (position < 0 || row >= p.n_rows || block >= p.n_logical)
        return false;
    const uint32_t page = (uint32_t)p.tables[(uint64_t)row * p.n_logical + block];
    *ret_place = {page, (uint32_t)position & KVD_PAGE_MASK, head};
    return page < p.n_pages;
}

__device__ __forceinline__ uint8_t *row_of(const kvd_plane_view &v, const place &at) {
    return (uint8_t *)v.base + at.page * v.stride_page + at.head * v.stride_head + at.offset * v.stride_token;
}

/* ---- BF16: bit copy ----------------------------------------------------------------------------- */

/* T: uint4 where rows are whole 16-byte pieces, else uint16_t. */
template <typename T> __global__ void __launch_bounds__(THREADS) copy_rows(const __grid_constant__ params p, uint32_t pieces) {
    const uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x, row = i / pieces;
    if (row >= (uint64_t)p.w * p.b * p.heads)
        return;
    const T k = ((const T *)p.k_in)[i], v = ((const T *)p.v_in)[i];
    place at;
    if (!find_place(p, (uint32_t)(row / p.heads), (uint32_t)(row % p.heads), &at))
        return;
    ((T *)row_of(p.k, at))[i % pieces] = k;
    ((T *)row_of(p.v, at))[i % pieces] = v;
}

/* ---- what the codecs share ------------------------------------------------------------------------ */

/* Eight BF16 of a lane; NaN counts as zero. */
struct eight {
    uint32_t pair[4];

    __device__ __forceinline__ float at(int i) const {
        return i & 1 ? ptx::bf16_high(pair[i / 2]) : ptx::bf16_low(pair[i / 2]);
    }
};

__device__ __forceinline__ uint32_t without_nan(uint32_t pair) {
    const uint32_t low = (pair & 0x7fffu) > 0x7f80u ? 0 : pair & 0xffffu;
    const uint32_t high = (pair & 0x7fff0000u) > 0x7f800000u ? 0 : pair & 0xffff0000u;
    return low | high;
}

__device__ __forceinline__ eight load_eight(const uint16_t *from, int lane) {
    const uint4 x = ((const uint4 *)from)[lane];
    return {{x.x, x.y, x.z, x.w}};
}

/* Largest magnitude over LANES lanes: magnitudes of BF16 order like integers. Also clears NaN. */
template <int LANES> __device__ __forceinline__ float largest(eight &x) {
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x.pair[i] = without_nan(x.pair[i]);
        most = __vmaxu2(most, x.pair[i] & 0x7fff7fffu);
    }
#pragma unroll
    for (int d = LANES / 2; d > 0; d >>= 1)
        most = __vmaxu2(most, __shfl_xor_sync(0xffffffffu, most, d));
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

/* ---- codecs: 8 elements a lane, one row a warp ---------------------------------------------------- */

__device__ __forceinline__ void store_int8(eight x, uint8_t *codes, uint8_t *scales, int lane) {
    const float most = largest<8>(x);
    const uint16_t scale = half_bits(fminf(__fdiv_rn(most, 127.0f), 65504.0f));
    const float s = ptx::half_to_float(scale), inverse = s == 0.0f ? 0.0f : __fdiv_rn(1.0f, s);
    uint32_t word[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        uint32_t c[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            /* An infinite element times the zero of a zero scale cannot meet: its own magnitude made the scale. */
            const float y = fminf(fmaxf(__fmul_rn(x.at(4 * j + i), inverse), -127.0f), 127.0f);
            c[i] = __float_as_uint(__fadd_rn(y, 12582912.0f)); /* the integer stands in the low bits, ties to even */
        }
        word[j] = __byte_perm(__byte_perm(c[0], c[1], 0x0040), __byte_perm(c[2], c[3], 0x0040), 0x5410);
    }
    ((uint2 *)codes)[lane] = make_uint2(word[0], word[1]);
    if (lane % 8 == 0)
        ((uint16_t *)scales)[lane / 8] = scale;
}

__device__ __forceinline__ void store_fp8(eight x, uint8_t *codes, uint8_t *scales, int lane) {
    const float most = largest<32>(x);
    const uint16_t scale =
        most == 0.0f ? 0 : half_bits(fminf(fmaxf(__fdiv_rn(most, 448.0f), 0x1p-24f), 65504.0f));
    const float inverse = most == 0.0f ? 0.0f : __fdiv_rn(1.0f, ptx::half_to_float(scale));
    uint32_t word[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const uint32_t low = e4m3_pair(__fmul_rn(x.at(4 * j), inverse), __fmul_rn(x.at(4 * j + 1), inverse));
        const uint32_t high = e4m3_pair(__fmul_rn(x.at(4 * j + 2), inverse), __fmul_rn(x.at(4 * j + 3), inverse));
        word[j] = most == 0.0f ? 0 : low | high << 16;
    }
    ((uint2 *)codes)[lane] = make_uint2(word[0], word[1]);
    if (lane == 0)
        *(uint16_t *)scales = scale;
}

/* Magnitude codes of two elements: how many of the seven rounding boundaries of E2M1 they pass. A boundary times the scale
 * is exact in BF16, as the elements are, so that comparing is as exact as the true division of the definition. */
__device__ __forceinline__ uint32_t e2m1_pair(uint32_t magnitudes, const __nv_bfloat162 (&edge)[7]) {
    __nv_bfloat162 x, n;
    *(uint32_t *)&x = magnitudes;
    *(uint32_t *)&n = 0x43004300u; /* 128: from here the low bits of a BF16 count in ones */
#pragma unroll
    for (int i = 0; i < 7; i++) /* ties go to the even code */
        n = __hadd2(n, i & 1 ? __hge2(x, edge[i]) : __hgt2(x, edge[i]));
    return *(uint32_t *)&n & 0x00070007u;
}

__device__ __forceinline__ void store_fp4(eight x, uint8_t *codes, uint8_t *scales, int lane) {
    const float most = largest<2>(x);
    const uint32_t scale = most == 0.0f ? 0 : e4m3_pair(fminf(fmaxf(__fdiv_rn(most, 6.0f), 0x1p-9f), 448.0f), 0.0f) & 0xff;
    const float s = ptx::half_to_float(ptx::e4m3_to_half2(scale) & 0xffff);
    const float edges[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    __nv_bfloat162 edge[7];
#pragma unroll
    for (int i = 0; i < 7; i++)
        edge[i] = __float2bfloat162_rn(edges[i] * s);
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t n = e2m1_pair(x.pair[i] & 0x7fff7fffu, edge) | ((x.pair[i] >> 12) & 0x00080008u);
        word |= ((n | n >> 12) & 0xffu) << (8 * i);
    }
    ((uint32_t *)codes)[lane] = most == 0.0f ? 0 : word;
    if (lane % 2 == 0)
        scales[lane / 2] = (uint8_t)scale;
}

/* ---- quantized profiles --------------------------------------------------------------------------- */

template <int S> __global__ void __launch_bounds__(THREADS) encode_rows(const __grid_constant__ params p) {
    const uint64_t row = ((uint64_t)blockIdx.x * THREADS + threadIdx.x) / 32;
    const int lane = threadIdx.x & 31;
    if (row >= (uint64_t)p.w * p.b * p.heads)
        return;
    const eight k = load_eight(p.k_in + row * D_QUANTIZED, lane), v = load_eight(p.v_in + row * D_QUANTIZED, lane);
    place at;
    if (!find_place(p, (uint32_t)(row / p.heads), (uint32_t)(row % p.heads), &at))
        return;
    uint8_t *kc = row_of(p.k, at), *ks = row_of(p.k_scale, at), *vc = row_of(p.v, at), *vs = row_of(p.v_scale, at);
    if constexpr (S == KVD_STORAGE_INT8) {
        store_int8(k, kc, ks, lane);
        store_int8(v, vc, vs, lane);
    } else if constexpr (S == KVD_STORAGE_NVFP4) {
        store_fp4(k, kc, ks, lane);
        store_fp4(v, vc, vs, lane);
    } else {
        store_fp8(k, kc, ks, lane);
        if constexpr (S == KVD_STORAGE_FP8)
            store_fp8(v, vc, vs, lane);
        else
            store_fp4(v, vc, vs, lane);
    }
}

/* ---- launch ------------------------------------------------------------------------------------------ */

static params make_params(const ops_append *op) {
    const PagedKVBatchLayerView *v = &op->view;
    params p = {};
    p.k = v->k, p.v = v->v, p.k_scale = v->k_scale, p.v_scale = v->v_scale;
    p.tables = v->block_tables, p.positions = op->positions, p.valid = op->valid, p.table_rows = op->table_rows;
    p.k_in = op->k, p.v_in = op->v;
    p.n_logical = v->n_logical, p.n_rows = v->n_rows, p.n_pages = v->n_pages;
    p.heads = v->n_kv_heads, p.head_dim = v->head_dim, p.w = op->w, p.b = op->b;
    return p;
}

/* True where every row of inputs and planes begins at a multiple of 16 bytes. */
static bool whole_pieces(const params &p) {
    const kvd_plane_view *planes[] = {&p.k, &p.v};
    uintptr_t bits = (uintptr_t)p.k_in | (uintptr_t)p.v_in | p.head_dim * 2;
    for (const kvd_plane_view *v : planes)
        bits |= (uintptr_t)v->base | v->stride_head | v->stride_page | v->stride_token;
    return bits % 16 == 0;
}

static uint32_t ctas(uint64_t threads) {
    return (uint32_t)((threads + THREADS - 1) / THREADS);
}

static void launch(const params &p, uint32_t storage, cudaStream_t stream) {
    const uint64_t rows = (uint64_t)p.w * p.b * p.heads;
    const uint32_t by_warp = ctas(rows * 32), vector = p.head_dim / 8;
    if (storage == KVD_STORAGE_BF16 && whole_pieces(p))
        copy_rows<uint4><<<ctas(rows * vector), THREADS, 0, stream>>>(p, vector);
    else if (storage == KVD_STORAGE_BF16)
        copy_rows<uint16_t><<<ctas(rows * p.head_dim), THREADS, 0, stream>>>(p, p.head_dim);
    else if (storage == KVD_STORAGE_INT8)
        encode_rows<KVD_STORAGE_INT8><<<by_warp, THREADS, 0, stream>>>(p);
    else if (storage == KVD_STORAGE_FP8)
        encode_rows<KVD_STORAGE_FP8><<<by_warp, THREADS, 0, stream>>>(p);
    else if (storage == KVD_STORAGE_NVFP4)
        encode_rows<KVD_STORAGE_NVFP4><<<by_warp, THREADS, 0, stream>>>(p);
    else
        encode_rows<KVD_STORAGE_K8V4><<<by_warp, THREADS, 0, stream>>>(p);
}

} /* namespace append */

extern "C" int ops_append_cuda(const struct ops_append *op, ops_stream stream, char *err, size_t err_bytes) {
    const int rc = ops_append_check(op, err, err_bytes);
    if (rc)
        return rc;
    const append::params p = append::make_params(op);
    if (op->view.storage != KVD_STORAGE_BF16 && ((uintptr_t)op->k | (uintptr_t)op->v) % 16 != 0) {
        snprintf(err, err ? err_bytes : 0, "k at %p and v at %p must be aligned to 16 bytes for quantized storage",
                 (const void *)op->k, (const void *)op->v);
        return OPS_E_INVALID;
    }
    append::launch(p, op->view.storage, (cudaStream_t)stream);
    const cudaError_t e = cudaGetLastError();
    if (e != cudaSuccess) {
        snprintf(err, err ? err_bytes : 0, "launching append failed: %s", cudaGetErrorString(e));
        return OPS_E_INVALID;
    }
    return 0;
}
