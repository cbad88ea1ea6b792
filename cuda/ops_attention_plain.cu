/* SPDX-License-Identifier: Apache-2.0
 *
 * Plain form: paged attention for every shape that no other form has (K and V of unlike or unusual head_dim), in FP32
 * and without tensor cores. A CTA takes eight rows of packed queries of a kv head, a warp each, over all of their keys
 * in tiles of 32: it decodes K to shared memory, a lane scores a key, then it decodes V there and each warp adds up its
 * row. So one sequence at a time is far from the speed of memory; there is no workspace and nothing to merge.
 */
#include "ops_attention_plain.cuh"

#include <cuda_runtime.h>

namespace attn {

constexpr int PLAIN_ROWS = 8, PLAIN_KEYS = 32, PLAIN_THREADS = PLAIN_ROWS * 32;

/* One of K and V: its planes, and the bytes of a row of each. */
struct stored_half {
    plane codes, scales;
    uint32_t kind, dim, row, scale_row; /* kind: enum code */
};

struct plain_params {
    stored_half k, v;
    uint32_t stride; /* floats from one row of a tile to the next: odd, so that lanes of a column meet all banks */
};

/* E2M1 as a number. */
__device__ __forceinline__ float number_of_fp4(uint32_t nibble) {
    const uint32_t exponent = nibble >> 1 & 3, half = nibble & 1;
    const float x = exponent ? (float)((2 + half) << exponent) * 0.25f : (float)half * 0.5f;
    return nibble & 8 ? -x : x;
}

__device__ __forceinline__ float number_of_e4m3(uint32_t byte) {
    return ptx::half_to_float(ptx::e4m3_to_half2(byte) & 0xffffu);
}

/* Element d of row `token` of a page and head. */
__device__ __forceinline__ float stored_number(const stored_half &x, const uint8_t *codes, const uint8_t *scales,
                                               uint32_t token, uint32_t d) {
    const uint8_t *row = codes + (uint64_t)token * x.row, *scale = scales + (uint64_t)token * x.scale_row;
    if (x.kind == CODE_BF16) return __uint_as_float((uint32_t)((const uint16_t *)row)[d] << 16);
    if (x.kind == CODE_INT8) return (float)(int8_t)row[d] * ptx::half_to_float(((const uint16_t *)scale)[d / 64]);
    if (x.kind == CODE_FP8) return number_of_e4m3(row[d]) * ptx::half_to_float(*(const uint16_t *)scale);
    return number_of_fp4(row[d / 2] >> (d & 1) * 4 & 15) * number_of_e4m3(scale[d / 16]);
}

/* Rows [token, token + n) of a page and head into a tile, by the whole CTA. */
__device__ __forceinline__ void decode_tile(const stored_half &x, float *tile, uint32_t stride, uint32_t page,
                                            uint32_t head, uint32_t token, uint32_t n) {
    const uint8_t *codes = x.codes.base + page * x.codes.page + head * x.codes.head;
    const uint8_t *scales = x.scales.base + page * x.scales.page + head * x.scales.head;
    for (uint32_t i = threadIdx.x; i < n * x.dim; i += PLAIN_THREADS) {
        const uint32_t row = i / x.dim, d = i % x.dim;
        tile[row * stride + d] = stored_number(x, codes, scales, token + row, d);
    }
}

__device__ __forceinline__ float over_warp_max(float x) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}

__device__ __forceinline__ float over_warp_sum(float x) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

/* The row of a warp: what it sees, and its softmax so far. */
struct plain_row {
    int from, limit;
    float most, total, change;

    /* The weight of this lane's key, whose raw score is `dot`. */
    __device__ __forceinline__ float soften_score(const params &p, int key, float dot) {
        float x = dot * p.scale_log2;
        if (p.cap != 0.0f) x = cap_softly(p, x);
        if (key < from || key >= limit) x = -INFINITY;
        const float highest = fmaxf(most, over_warp_max(x)), weight = ptx::exp2(x - highest);
        change = ptx::exp2(most - highest), most = highest;
        total = total * change + over_warp_sum(weight);
        return weight;
    }
};

__device__ __forceinline__ float dot_of(const float *q, const float *key, uint32_t dim) {
    float sum[4] = {};
    uint32_t d = 0;
    for (; d + 4 <= dim; d += 4)
#pragma unroll
        for (int i = 0; i < 4; i++) sum[i] += q[d + i] * key[d + i];
    for (; d < dim; d++) sum[0] += q[d] * key[d];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* A value that a row does not see never meets it, whatever it is. */
__device__ __forceinline__ void add_values(const plain_params &x, float *o, const float *weights, const float *tile,
                                           float change, uint32_t n) {
    for (uint32_t d = threadIdx.x % 32; d < x.v.dim; d += 32) {
        float sum = o[d] * change;
        for (uint32_t j = 0; j < n; j++)
            if (weights[j] != 0.0f) sum += weights[j] * tile[j * x.stride + d];
        o[d] = sum;
    }
}

/* Shared memory: q [8][K dim], sums [8][V dim], weights [8][32], a tile of 32 keys. */
__global__ void __launch_bounds__(PLAIN_THREADS)
    attention_plain(const __grid_constant__ params p, const __grid_constant__ plain_params x) {
    extern __shared__ float plain_smem[];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t block = blockIdx.x % p.n_blocks, head = blockIdx.x / p.n_blocks % p.heads,
                   b = blockIdx.x / p.n_blocks / p.heads;
    float *q = plain_smem + warp * x.k.dim, *o = plain_smem + PLAIN_ROWS * x.k.dim + warp * x.v.dim;
    float *weights = plain_smem + PLAIN_ROWS * (x.k.dim + x.v.dim), *tile = weights + PLAIN_ROWS * PLAIN_KEYS;
    weights += warp * PLAIN_KEYS;
    const uint32_t r = block * PLAIN_ROWS + warp, w = r / p.group, q_head = head * p.group + r % p.group;
    const uint64_t at = ((uint64_t)b * p.w + w) * p.heads * p.group + q_head;
    const int valid = valid_columns(p, b);
    const bool live = (int)w < valid;
    for (uint32_t d = lane; d < x.k.dim; d += 32)
        q[d] = live ? __uint_as_float((uint32_t)p.q[at * x.k.dim + d] << 16) : 0.0f;
    for (uint32_t d = lane; d < x.v.dim; d += 32) o[d] = 0.0f;
    plain_row row = { live ? first_key(p, b, w) : 0, live ? key_limit(p, b, w, valid) : 0, NO_SCORE, 0.0f, 1.0f };
    const uint32_t keys = keys_of(p, b, block, PLAIN_ROWS), from = first_key_of(p, b, block, PLAIN_ROWS, keys);
    const int32_t *table = table_row(p, (uint32_t)p.table_rows[b]);
    for (uint32_t begin = from / PLAIN_KEYS * PLAIN_KEYS; begin < keys; begin += PLAIN_KEYS) {
        const uint32_t id = (uint32_t)table[begin >> KVD_PAGE_SHIFT], page = id < p.n_pages ? id : 0;
        const uint32_t token = begin & KVD_PAGE_MASK, n = min(keys - begin, (uint32_t)PLAIN_KEYS);
        __syncthreads();
        decode_tile(x.k, tile, x.stride, page, head, token, n);
        __syncthreads();
        const float dot = lane < n ? dot_of(q, tile + lane * x.stride, x.k.dim) : 0.0f;
        weights[lane] = row.soften_score(p, (int)(begin + lane), dot);
        __syncthreads();
        decode_tile(x.v, tile, x.stride, page, head, token, n);
        __syncthreads();
        add_values(x, o, weights, tile, row.change, n);
    }
    if (w >= p.w) return;
    const float total = row.total + ptx::exp2(sink_of(p, q_head) - row.most);
    const float f = live && row.total > 0.0f ? 1.0f / total : 0.0f;
    for (uint32_t d = lane; d < x.v.dim; d += 32)
        p.out[at * x.v.dim + d] = f > 0.0f ? (uint16_t)ptx::pack<false>(o[d] * f, 0.0f) : 0;
}

static stored_half make_half(const plane &codes, const plane &scales, code kind, uint32_t dim) {
    const uint32_t row = (uint32_t)row_bytes(kind, (int)dim), scale_row = (uint32_t)scale_bytes(kind, (int)dim);
    return { codes, scales, (uint32_t)kind, dim, row, scale_row };
}

cudaError_t launch_plain(params p, uint32_t storage, uint32_t k_dim, uint32_t v_dim, cudaStream_t stream) {
    plain_params x = { make_half(p.k, p.k_scale, key_code((int)storage), k_dim),
                       make_half(p.v, p.v_scale, value_code((int)storage), v_dim),
                       (k_dim > v_dim ? k_dim : v_dim) | 1 };
    p.n_blocks = (p.group * p.w + PLAIN_ROWS - 1) / PLAIN_ROWS;
    const size_t floats =
        (size_t)PLAIN_ROWS * (k_dim + v_dim) + PLAIN_ROWS * PLAIN_KEYS + (size_t)PLAIN_KEYS * x.stride;
    const int smem = (int)(floats * sizeof(float));
    const cudaError_t rc = cudaFuncSetAttribute(attention_plain, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
    if (rc != cudaSuccess) return rc;
    attention_plain<<<p.n_blocks * p.heads * p.b, PLAIN_THREADS, (size_t)smem, stream>>>(p, x);
    return cudaGetLastError();
}

} /* namespace attn */
