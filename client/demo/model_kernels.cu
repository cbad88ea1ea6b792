/* SPDX-License-Identifier: Apache-2.0 */
#include "model_kernels.h"

#include <cuda_bf16.h>

#include "matmul.h"

namespace {

constexpr int HALF = MODEL_HEAD_DIM / 2;
constexpr uint32_t PANEL = MATMUL_PANEL;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(uint16_t x) { return __bfloat162float(__ushort_as_bfloat16(x)); }
__device__ __forceinline__ uint16_t to_bf16(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }

/* ---- product ----------------------------------------------------------------------------------------- */

constexpr uint32_t SLICES = 16, ROWS = 8;

/* A CTA makes one panel of ROWS rows. Thread (slice, column) sums the inputs slice, slice + 16, ... of its column for
 * each row; then the slices are added in their order. */
template <typename X>
__global__ void __launch_bounds__(SLICES *PANEL)
    matmul_panel(const X *x, uint32_t rows, uint32_t n_in, const float *w, uint32_t n_out, int add, float *y) {
    __shared__ float sums[ROWS][SLICES][PANEL];
    const uint32_t slice = threadIdx.x / PANEL, column = threadIdx.x % PANEL, first = blockIdx.y * ROWS;
    const uint32_t n = rows - first < ROWS ? rows - first : ROWS;
    const float *panel = w + (size_t)blockIdx.x * PANEL * n_in;
    float sum[ROWS] = {};
    x += (size_t)first * n_in;
#pragma unroll 4
    for (uint32_t k = slice; k < n_in; k += SLICES) {
        const float weight = panel[(size_t)k * PANEL + column];
#pragma unroll
        for (uint32_t r = 0; r < ROWS; r++)
            if (r < n) sum[r] = fmaf(to_float(x[(size_t)r * n_in + k]), weight, sum[r]);
    }
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++) sums[r][slice][column] = sum[r];
    __syncthreads();
    if (slice >= n) /* from here on, slice is the row */
        return;
    float total = sums[slice][0][column];
    for (uint32_t i = 1; i < SLICES; i++) total += sums[slice][i][column];
    float *out = y + (size_t)(first + slice) * n_out + blockIdx.x * PANEL + column;
    *out = add ? *out + total : total;
}

template <typename X>
void matmul_launch(const X *x, uint32_t columns, uint32_t n_in, const float *w, uint32_t n_out, int add, float *y,
                   cudaStream_t stream) {
    const dim3 grid(n_out / PANEL, (columns + ROWS - 1) / ROWS);
    if (columns > 0) matmul_panel<X><<<grid, SLICES * PANEL, 0, stream>>>(x, columns, n_in, w, n_out, add, y);
}

/* ---- the rest: a CTA or a warp makes one column -------------------------------------------------------- */

__global__ void embed(const float *embedding, const int32_t *token, float *x) {
    x[blockIdx.x * MODEL_HIDDEN + threadIdx.x] = embedding[token[blockIdx.x] * MODEL_HIDDEN + threadIdx.x];
}

__global__ void norm(const float *x, const int32_t *which, float *y) {
    const uint32_t from = which ? (uint32_t)which[blockIdx.x] : blockIdx.x;
    float value[MODEL_HIDDEN / 32], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < MODEL_HIDDEN / 32; i++) {
        value[i] = x[from * MODEL_HIDDEN + i * 32 + threadIdx.x];
        sum = fmaf(value[i], value[i], sum);
    }
    for (int d = 16; d > 0; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    const float scale = 1.0f / sqrtf(sum / MODEL_HIDDEN + MODEL_NORM_EPSILON);
#pragma unroll
    for (int i = 0; i < MODEL_HIDDEN / 32; i++) y[blockIdx.x * MODEL_HIDDEN + i * 32 + threadIdx.x] = value[i] * scale;
}

/* Rotates pairs (i, i + HALF) of a head. */
__device__ __forceinline__ void rotate_head(const float *x, float c, float s, uint32_t i, uint16_t *y) {
    const float a = x[i], b = x[i + HALF];
    y[i] = to_bf16(a * c - b * s);
    y[i + HALF] = to_bf16(a * s + b * c);
}

__global__ void __launch_bounds__(HALF) rotate(const float *qkv, const float *cos, const float *sin,
                                               const int32_t *positions, uint16_t *q, uint16_t *k, uint16_t *v) {
    const uint32_t column = blockIdx.x, i = threadIdx.x;
    const size_t at = (size_t)positions[column] * HALF + i;
    const float c = cos[at], s = sin[at];
    const float *x = qkv + (size_t)column * MODEL_QKV;
    for (uint32_t h = 0; h < MODEL_HEADS; h++)
        rotate_head(x + h * MODEL_HEAD_DIM, c, s, i, q + (size_t)column * MODEL_Q + h * MODEL_HEAD_DIM);
    for (uint32_t h = 0; h < MODEL_KV_HEADS; h++)
        rotate_head(x + MODEL_Q + h * MODEL_HEAD_DIM, c, s, i, k + (size_t)column * MODEL_KV + h * MODEL_HEAD_DIM);
    for (uint32_t d = i; d < MODEL_KV; d += HALF) v[(size_t)column * MODEL_KV + d] = to_bf16(x[MODEL_Q + MODEL_KV + d]);
}

__global__ void gate(const float *gate_up, float *act) {
    const float *x = gate_up + (size_t)blockIdx.x * 2 * MODEL_FFN;
    const float g = x[threadIdx.x];
    act[blockIdx.x * MODEL_FFN + threadIdx.x] = g / (1.0f + expf(-g)) * x[MODEL_FFN + threadIdx.x];
}

} /* namespace */

/* ---- launches ------------------------------------------------------------------------------------------------- */

void kernel_matmul(const float *x, uint32_t columns, uint32_t n_in, const float *w, uint32_t n_out, int add, float *y,
                   cudaStream_t stream) {
    matmul_launch(x, columns, n_in, w, n_out, add, y, stream);
}

void kernel_matmul_bf16(const uint16_t *x, uint32_t columns, uint32_t n_in, const float *w, uint32_t n_out, int add,
                        float *y, cudaStream_t stream) {
    matmul_launch(x, columns, n_in, w, n_out, add, y, stream);
}

void kernel_embed(const float *embedding, const int32_t *token, uint32_t columns, float *x, cudaStream_t stream) {
    if (columns > 0) embed<<<columns, MODEL_HIDDEN, 0, stream>>>(embedding, token, x);
}

void kernel_norm(const float *x, const int32_t *which, uint32_t columns, float *y, cudaStream_t stream) {
    if (columns > 0) norm<<<columns, 32, 0, stream>>>(x, which, y);
}

void kernel_rotate(const float *qkv, const float *cos, const float *sin, const int32_t *positions, uint32_t columns,
                   uint16_t *q, uint16_t *k, uint16_t *v, cudaStream_t stream) {
    if (columns > 0) rotate<<<columns, HALF, 0, stream>>>(qkv, cos, sin, positions, q, k, v);
}

void kernel_gate(const float *gate_up, uint32_t columns, float *act, cudaStream_t stream) {
    if (columns > 0) gate<<<columns, MODEL_FFN, 0, stream>>>(gate_up, act);
}
