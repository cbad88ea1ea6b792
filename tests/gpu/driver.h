/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA driver for test programs: the functions that they need, and a kernel in PTX that keeps SMs busy or scribbles
 * over memory. Functions that a stand-in driver lacks are NULL.
 */
#ifndef KVD_TESTS_GPU_DRIVER_H
#define KVD_TESTS_GPU_DRIVER_H

#include <cuda.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fake_driver.h"

/* clang-format off */
#define DRIVER_FUNCTIONS(X)                                                                                            \
    X(cuInit)                                                                                                          \
    X(cuGetErrorName) X(cuDeviceGet) X(cuDeviceGetCount) X(cuDeviceGetUuid_v2) X(cuDevicePrimaryCtxRetain)             \
        X(cuCtxSetCurrent) X(cuMemGetInfo) X(cuMemAlloc) X(cuMemFree) X(cuMemcpyDtoH) X(cuMemcpyHtoD)                  \
        X(cuMemcpyDtoHAsync) X(cuMemcpyHtoDAsync)                                                                      \
            X(cuStreamCreate) X(cuStreamSynchronize) X(cuStreamWaitValue32) X(cuMemHostAlloc)                          \
                X(cuMemHostGetDevicePointer) X(cuModuleLoadData) X(cuModuleGetFunction) X(cuLaunchKernel)
/* clang-format on */

#define DRIVER_NAME_(f) #f
#define DRIVER_NAME(f) DRIVER_NAME_(f)

struct driver {
#define DRIVER_MEMBER(f) __typeof__(f) *f;
    DRIVER_FUNCTIONS(DRIVER_MEMBER)
#undef DRIVER_MEMBER
    struct fake_cuda *fake; /* NULL: a real driver */
};

/* Ends the program where a call fails: what a test stands on. */
#define DRIVER_OK(call)                                                                                                \
    do {                                                                                                               \
        CUresult driver_rc = (call);                                                                                   \
        if (driver_rc != CUDA_SUCCESS) {                                                                               \
            fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, (int)driver_rc);                             \
            exit(2);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* False: no driver or no GPU here. */
static inline bool driver_load(struct driver *driver) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *symbol;
    int count = 0;
    if (!library) return false;
#define DRIVER_FIND(f)                                                                                                 \
    symbol = dlsym(library, DRIVER_NAME(f));                                                                           \
    memcpy(&driver->f, &symbol, sizeof symbol);
    DRIVER_FUNCTIONS(DRIVER_FIND)
#undef DRIVER_FIND
    driver->fake = dlsym(library, "fake_cuda");
    return driver->cuInit(0) == CUDA_SUCCESS && driver->cuDeviceGetCount(&count) == CUDA_SUCCESS && count > 0;
}

static inline double driver_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* spin(at, n): every thread stores 0, 1, ... n-1 to at[0..1] (n = UINT64_MAX: for ever). */
static const char driver_spin_ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry spin(.param .u64 at, .param .u64 n) {\n"
    " .reg .u64 %a, %n, %i;\n .reg .pred %p;\n"
    " ld.param.u64 %a, [at];\n ld.param.u64 %n, [n];\n cvta.to.global.u64 %a, %a;\n mov.u64 %i, 0;\n"
    "LOOP:\n st.volatile.global.u64 [%a], %i;\n add.u64 %i, %i, 1;\n setp.lt.u64 %p, %i, %n;\n @%p bra LOOP;\n "
    "ret;\n}\n";

static inline CUfunction driver_spin(const struct driver *driver) {
    CUmodule module;
    CUfunction function;
    DRIVER_OK(driver->cuModuleLoadData(&module, driver_spin_ptx));
    DRIVER_OK(driver->cuModuleGetFunction(&function, module, "spin"));
    return function;
}

/* Launches and returns. */
static inline void driver_launch_spin(const struct driver *driver, CUfunction spin, unsigned blocks, CUdeviceptr at,
                                      uint64_t n, CUstream stream) {
    void *arguments[] = { &at, &n };
    DRIVER_OK(driver->cuLaunchKernel(spin, blocks, 1, 1, 256, 1, 1, 0, stream, arguments, NULL));
}

#endif
