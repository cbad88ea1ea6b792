/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the GPU op tests and benches: error checks, a random generator, a one-layer pool on device and host, and
 * block tables of chosen order. Header of C++ sources that nvcc compiles; nothing here needs CUnit, nng or protobuf-c.
 */
#ifndef KVD_TESTS_GPU_FIXTURE_H
#define KVD_TESTS_GPU_FIXTURE_H

#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

extern "C" {
#include "geometry.h"
}
#include "ops.h"

#define CUDA_OK(call)                                                                                                  \
    do {                                                                                                               \
        const cudaError_t cuda_rc = (call);                                                                            \
        if (cuda_rc != cudaSuccess) {                                                                                  \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(cuda_rc));                \
            exit(2);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Profiles that have kernels. */
enum { N_PROFILES = KVD_STORAGE_FP8_TENSOR };
static const char *const storage_names[N_PROFILES] = { "bf16", "int8", "fp8", "nvfp4", "k8v4" };

/* splitmix64 */
struct rng {
    uint64_t state;
    uint64_t next() {
        uint64_t z = (state += 0x9e3779b97f4a7c15ull);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    }
    uint32_t below(uint32_t n) { return (uint32_t)(next() % n); }
    float uniform(float a) { return ((float)(next() >> 40) * 0x1p-23f - 1.0f) * a; } /* in [-a, a) */
};

/* Device memory that frees itself. */
template <typename T> struct device_array {
    T *at = nullptr;
    size_t n = 0;
    device_array() = default;
    explicit device_array(size_t count) { alloc(count); }
    device_array(const device_array &) = delete;
    device_array &operator=(const device_array &) = delete;
    ~device_array() { cudaFree(at); }
    void alloc(size_t count) {
        cudaFree(at);
        at = nullptr;
        n = count;
        CUDA_OK(cudaMalloc((void **)&at, (count ? count : 1) * sizeof(T)));
    }
    void fill(int byte) { CUDA_OK(cudaMemset(at, byte, n * sizeof(T))); }
    void put(const std::vector<T> &x) {
        if (x.size() != n) alloc(x.size());
        CUDA_OK(cudaMemcpy(at, x.data(), n * sizeof(T), cudaMemcpyHostToDevice));
    }
    std::vector<T> get() const {
        std::vector<T> x(n);
        CUDA_OK(cudaMemcpy(x.data(), at, n * sizeof(T), cudaMemcpyDeviceToHost));
        return x;
    }
};

static inline geom_pool_spec pool_spec(int storage, geom_order order, geom_arrangement arrangement, uint32_t layers,
                                       uint32_t heads, uint32_t head_dim, uint32_t v_head_dim = 0) {
    geom_pool_spec spec = {};
    spec.arrangement = arrangement;
    spec.n_layers = layers;
    spec.n_ranks = 1;
    spec.n_groups = 1;
    spec.group[0].format = KVD_FORMAT_KV;
    spec.group[0].storage = (enum kvd_storage)storage;
    spec.group[0].order = order;
    spec.group[0].n_layers = layers;
    spec.group[0].n_kv_heads = heads;
    spec.group[0].head_dim = head_dim;
    spec.group[0].v_head_dim = v_head_dim;
    return spec;
}

/* The view of a layer whose region lies at `base`; the caller adds the table. */
static inline PagedKVBatchLayerView layer_view(const geom_pool_spec &spec, uint32_t pages, uint32_t layer, void *base) {
    PagedKVBatchLayerView view = {};
    char err[256];
    if (geom_layer_view(&spec, pages, 0, layer, base, &view, err, sizeof err) != 0) {
        fprintf(stderr, "layer view: %s\n", err);
        exit(2);
    }
    return view;
}

static inline std::vector<int32_t> shuffled(uint32_t n, rng &r) {
    std::vector<int32_t> x(n);
    for (uint32_t i = 0; i < n; i++) x[i] = (int32_t)i;
    for (uint32_t i = n; i > 1; i--) {
        const uint32_t j = r.below(i);
        const int32_t t = x[i - 1];
        x[i - 1] = x[j], x[j] = t;
    }
    return x;
}

#endif
