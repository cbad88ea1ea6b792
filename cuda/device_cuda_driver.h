/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA driver, loaded when it is first needed: one binary starts with or without a driver. Only device_cuda*.c
 * includes this header; nothing here links against libcuda.
 *
 * Every driver call goes through CUDA_CALL, which turns a CUresult into 0 or a negative errno and a sentence that names
 * the call and the driver's own text. Calls act on the context that is current in the calling thread;
 * cuda_context_push/pop bracket them.
 */
#ifndef KVD_CUDA_DEVICE_CUDA_DRIVER_H
#define KVD_CUDA_DEVICE_CUDA_DRIVER_H

#include <cuda.h>
#include <stddef.h>

/* cuda.h maps some names to versioned ones (cuMemAlloc to cuMemAlloc_v2) by macros; expanded here, the member's name,
 * its type and the symbol that is looked up are always those of one version. */
#define CUDA_DRIVER_FUNCTIONS(X)                                                                                       \
    X(cuInit)                                                                                                          \
    X(cuDriverGetVersion)                                                                                              \
    X(cuGetErrorName)                                                                                                  \
    X(cuGetErrorString)                                                                                                \
    X(cuDeviceGetCount)                                                                                                \
    X(cuDeviceGet)                                                                                                     \
    X(cuDeviceGetName)                                                                                                 \
    X(cuDeviceTotalMem)                                                                                                \
    X(cuDeviceGetAttribute)                                                                                            \
    X(cuDeviceGetUuid_v2)                                                                                              \
    X(cuDevicePrimaryCtxRetain)                                                                                        \
    X(cuDevicePrimaryCtxRelease)                                                                                       \
    X(cuCtxPushCurrent)                                                                                                \
    X(cuCtxPopCurrent)                                                                                                 \
    X(cuCtxGetCurrent)                                                                                                 \
    X(cuCtxGetDevice)                                                                                                  \
    X(cuMemGetInfo)                                                                                                    \
    X(cuMemAlloc)                                                                                                      \
    X(cuMemFree)                                                                                                       \
    X(cuMemHostAlloc)                                                                                                  \
    X(cuMemFreeHost)                                                                                                   \
    X(cuMemHostRegister)                                                                                               \
    X(cuMemHostUnregister)                                                                                             \
    X(cuMemGetAllocationGranularity)                                                                                   \
    X(cuMemCreate)                                                                                                     \
    X(cuMemRelease)                                                                                                    \
    X(cuMemAddressReserve)                                                                                             \
    X(cuMemAddressFree)                                                                                                \
    X(cuMemMap)                                                                                                        \
    X(cuMemUnmap)                                                                                                      \
    X(cuMemSetAccess)                                                                                                  \
    X(cuMemExportToShareableHandle)                                                                                    \
    X(cuMemImportFromShareableHandle)                                                                                  \
    X(cuMemGetAllocationPropertiesFromHandle)                                                                          \
    X(cuMemGetAddressRange)                                                                                            \
    X(cuMemsetD8Async)                                                                                                 \
    X(cuMemcpy2DAsync)                                                                                                 \
    X(cuMemcpyHtoDAsync)                                                                                               \
    X(cuMemcpyDtoHAsync)                                                                                               \
    X(cuStreamCreate)                                                                                                  \
    X(cuStreamDestroy)                                                                                                 \
    X(cuStreamSynchronize)                                                                                             \
    X(cuStreamQuery)                                                                                                   \
    X(cuEventCreate)                                                                                                   \
    X(cuEventDestroy)                                                                                                  \
    X(cuEventRecord)                                                                                                   \
    X(cuEventQuery)                                                                                                    \
    X(cuStreamWaitEvent)                                                                                               \
    X(cuIpcGetMemHandle)                                                                                               \
    X(cuIpcOpenMemHandle)                                                                                              \
    X(cuIpcCloseMemHandle)

/* NULL where the driver has not got them. */
#if CUDA_VERSION >= 13000
#define CUDA_DRIVER_EXTRAS(X)                                                                                          \
    X(cuMemcpyBatchAsync)                                                                                              \
    X(cuMemcpy3DBatchAsync)
#else
#define CUDA_DRIVER_EXTRAS(X)
#endif

struct cuda_driver {
#define CUDA_DRIVER_MEMBER(function) __typeof__(function) *function;
    CUDA_DRIVER_FUNCTIONS(CUDA_DRIVER_MEMBER)
    CUDA_DRIVER_EXTRAS(CUDA_DRIVER_MEMBER)
#undef CUDA_DRIVER_MEMBER
};

/* The functions; valid after cuda_driver_load returned 0. */
extern struct cuda_driver cuda_driver;

/* Loads libcuda.so.1 and initialises it, once a process; a failed attempt may be repeated. Any thread. 0, -ENODEV (no
 * driver), -ENOTSUP (too old) or the error of cuInit. */
int cuda_driver_load(char *err, size_t err_bytes);

/* 0 for CUDA_SUCCESS, else -ENOMEM, -ENODEV, -ENOTSUP, -EACCES or -EIO with "cuMemAlloc_v2: out of memory
 * (CUDA_ERROR_OUT_OF_MEMORY)". */
int cuda_result(CUresult result, const char *call, char *err, size_t err_bytes);

#define CUDA_NAME_(function) #function
#define CUDA_NAME(function) CUDA_NAME_(function)
#define CUDA_CALL(err, err_bytes, function, ...)                                                                       \
    cuda_result(cuda_driver.function(__VA_ARGS__), CUDA_NAME(function), err, err_bytes)

/* Makes a context current, and the one before it again. pop is for after a successful push only. */
int cuda_context_push(CUcontext context, char *err, size_t err_bytes);
void cuda_context_pop(void);

#endif
