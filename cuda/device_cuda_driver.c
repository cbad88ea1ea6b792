/* SPDX-License-Identifier: Apache-2.0 */
#include "device_cuda_driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "device_backend.h"

#define DRIVER_LIBRARY "libcuda.so.1"
#define DRIVER_LEAST 11040 /* CUDA 11.4: the first with the UUID of a MIG instance */

struct cuda_driver cuda_driver;

static pthread_mutex_t driver_lock = PTHREAD_MUTEX_INITIALIZER;
static bool driver_loaded;

int cuda_result(CUresult result, const char *call, char *err, size_t err_bytes) {
    const char *name = NULL, *text = NULL;
    if (result == CUDA_SUCCESS) return 0;
    cuda_driver.cuGetErrorName(result, &name);
    cuda_driver.cuGetErrorString(result, &text);
    int code = result == CUDA_ERROR_OUT_OF_MEMORY                                      ? -ENOMEM
               : result == CUDA_ERROR_NO_DEVICE || result == CUDA_ERROR_INVALID_DEVICE ? -ENODEV
               : result == CUDA_ERROR_NOT_SUPPORTED                                    ? -ENOTSUP
               : result == CUDA_ERROR_NOT_PERMITTED                                    ? -EACCES
                                                                                       : -EIO;
    return refuse_with(code, err, err_bytes, "%s: %s (%s)", call, text ? text : "unknown error", name ? name : "?");
}

static int find_functions(void *library, struct cuda_driver *ret_driver, char *err, size_t err_bytes) {
    struct cuda_driver found;
    void *symbol;
    /* POSIX lets a data pointer hold a function's address; C does not convert between them, so the bits are copied. */
#define CUDA_DRIVER_FIND(function)                                                                                     \
    if (!(symbol = dlsym(library, CUDA_NAME(function))))                                                               \
        return refuse_with(-ENOTSUP, err, err_bytes,                                                                   \
                           "the CUDA driver has no %s: it is too old, install one for CUDA %d.%d or newer",            \
                           CUDA_NAME(function), DRIVER_LEAST / 1000, DRIVER_LEAST % 1000 / 10);                        \
    memcpy(&found.function, &symbol, sizeof symbol);
    CUDA_DRIVER_FUNCTIONS(CUDA_DRIVER_FIND)
#undef CUDA_DRIVER_FIND
#define CUDA_DRIVER_LOOK(function)                                                                                     \
    symbol = dlsym(library, CUDA_NAME(function));                                                                      \
    memcpy(&found.function, &symbol, sizeof symbol);
    CUDA_DRIVER_EXTRAS(CUDA_DRIVER_LOOK)
#undef CUDA_DRIVER_LOOK
    *ret_driver = found;
    return 0;
}

static int load_driver(char *err, size_t err_bytes) {
    int version = 0, r;
    void *library = dlopen(DRIVER_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return refuse_with(-ENODEV, err, err_bytes,
                           "no CUDA driver on this machine (%s): install it, or use a host device", dlerror());
    r = find_functions(library, &cuda_driver, err, err_bytes);
    if (!r) r = CUDA_CALL(err, err_bytes, cuDriverGetVersion, &version);
    if (!r && version < DRIVER_LEAST)
        r = refuse_with(-ENOTSUP, err, err_bytes, "the CUDA driver is for CUDA %d.%d: install one for %d.%d or newer",
                        version / 1000, version % 1000 / 10, DRIVER_LEAST / 1000, DRIVER_LEAST % 1000 / 10);
    if (!r) r = CUDA_CALL(err, err_bytes, cuInit, 0);
    if (r) dlclose(library);
    return r;
}

int cuda_driver_load(char *err, size_t err_bytes) {
    pthread_mutex_lock(&driver_lock);
    int r = driver_loaded ? 0 : load_driver(err, err_bytes);
    driver_loaded = r == 0;
    pthread_mutex_unlock(&driver_lock);
    return r;
}

int cuda_context_push(CUcontext context, char *err, size_t err_bytes) {
    return CUDA_CALL(err, err_bytes, cuCtxPushCurrent, context);
}

void cuda_context_pop(void) {
    CUcontext popped;
    (void)cuda_driver.cuCtxPopCurrent(&popped);
}
