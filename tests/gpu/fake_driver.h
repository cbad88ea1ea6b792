/* SPDX-License-Identifier: Apache-2.0
 *
 * A stand-in for libcuda.so.1, for machines without a GPU: device memory is shared memory, work on a stream is done
 * when somebody asks for its completion, never earlier. It checks what a real driver lets pass: every asynchronous copy
 * must have one of the forms that do not wait for a time slice (others are refused), stay inside its allocations, and
 * touch pinned host memory only. Memory of cuMemCreate is a file that lives as long as a descriptor of it.
 *
 * Tests find the controls by dlsym(dlopen("libcuda.so.1"), "fake_cuda"); a real driver has none.
 */
#ifndef KVD_TESTS_FAKE_DRIVER_H
#define KVD_TESTS_FAKE_DRIVER_H

#include <stdatomic.h>
#include <stdint.h>

struct fake_cuda {
    atomic_int wedged;          /* work never completes. Also while the file named by $FAKE_CUDA_WEDGE is there */
    atomic_int fail_copies;     /* copies fail with CUDA_ERROR_ILLEGAL_ADDRESS. Also while $FAKE_CUDA_FAIL is there */
    _Atomic uint64_t copies;    /* enqueued */
    _Atomic uint64_t slow_form; /* copies in a form that would wait for a time slice */
    _Atomic uint64_t batched;   /* copies that came in a call for many */
    _Atomic uint64_t objects;   /* allocations, reservations, mappings, handles and registrations of this process */
    _Atomic(void *) held[4];    /* streams on which nothing completes */
    /* Calls of this name fail with this CUresult once fail_after more have passed. NULL: none. */
    _Atomic(const char *) fail_call;
    atomic_int fail_code, fail_after;
    _Atomic uint64_t outside; /* copies outside an allocation, or of host memory that is not pinned */
    _Atomic uint64_t early;   /* memory given back under copies that had not ended */
    atomic_int stuck;         /* copies do not return to their caller */
    atomic_int callers;       /* that are in such a call now */
};

#endif
