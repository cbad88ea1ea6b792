/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the CUDA backend:
 *
 *   device_cuda.c         open, close, identity, regions
 *   device_cuda_queue.c   batches: submit, the device's thread, completion
 *   device_cuda_copy.c    what the thread enqueues: page copies and table windows, in copy-engine forms only
 *   device_cuda_import.c  the consumer's side
 *   device_cuda_driver.c  the driver's functions
 *
 * Copy forms. Another process keeps the SMs busy while kvd works; two processes on a GPU share it in time slices of
 * about 2 ms. Kernels, device-to-device copies and 1-D host-to-device copies of up to 24 KiB wait for a slice;
 * host-to-device 2-D copies of two or more rows, 1-D ones of 28 KiB and more, and device-to-host copies do not: copy
 * engines run them. So the thread uses those three forms and no other.
 *
 * Threads: the device's own thread alone touches stream, event, bounce buffer and mirrors once the device is open.
 * Submitters touch the queue.
 */
#ifndef KVD_CUDA_DEVICE_CUDA_INTERNAL_H
#define KVD_CUDA_DEVICE_CUDA_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "device_backend.h"
#include "device_cuda_driver.h"

#define CUDA_BOUNCE_BYTES (16u << 20)       /* pinned: pages on their way through the host */
#define CUDA_EAGER_MIRROR_BYTES (64u << 20) /* regions up to this get their mirror when they are made */
#define CUDA_FLAT_COPY_BYTES (64u << 10)    /* 1-D host-to-device copies from here on; 2-D below */

/* A batch in the queue, one allocation: the caller's memory is not needed after submit. */
struct cuda_copy {
    struct geom_pool_spec spec;
    struct cuda_region *region;
    uint32_t n_pages, rank, src, dst;
};
struct cuda_write {
    struct cuda_region *region;
    uint64_t offset; /* bytes */
    uint32_t count;
    const int32_t *values; /* in the batch */
};
struct cuda_batch {
    struct cuda_batch *next;
    uint64_t ticket;
    uint32_t n_copies, n_writes;
    struct cuda_copy *copies;
    struct cuda_write *writes;
};

struct cuda_region {
    struct device_region base;
    struct cuda_region *next;     /* of the device */
    struct cuda_region *next_own; /* of this process: see cuda_own_address */
    CUdeviceptr address;
    uint64_t bytes; /* allocated: whole 2 MiB, so that the handle exposes nothing else */
    CUipcMemHandle handle;
    uint8_t fill;
    /* Pinned copy of a table region, as long as the region: what every table write up to the last submitted one amounts
     * to. Windows that are sent may be wider than a write, and take their neighbours from here. NULL until first
     * needed. */
    uint8_t *mirror;
};

/* Part of a page that has come to the bounce buffer and is to go on: rows of width bytes, at a pitch on the device. */
struct cuda_piece {
    CUdeviceptr to;
    uint64_t pitch, width, rows, at; /* at: in the bounce buffer */
};

/* A stretch of a table region to be sent from its mirror. */
struct cuda_window {
    struct cuda_region *region;
    uint64_t begin, end; /* bytes, multiples of 8 */
};

struct cuda_device {
    struct device base;
    struct device_identity identity;
    CUdevice ordinal;
    CUcontext context; /* the primary one, retained */
    CUstream stream;
    CUevent event; /* completion of a group */
    uint8_t *bounce;
    uint64_t pitch_limit;        /* of 2-D copies, bytes */
    struct cuda_window *windows; /* room of the thread */
    struct cuda_piece *pieces;
    size_t room_windows, room_pieces;
    struct cuda_region *regions;

    uint64_t last_ticket; /* of the submitting thread */
    _Atomic uint64_t done;
    atomic_bool lost; /* why is written before */
    char why[320];
    int event_fd;
    pthread_t thread;
    pthread_mutex_t lock;   /* the queue, busy and stop */
    pthread_cond_t changed; /* CLOCK_MONOTONIC; the queue grew, work ended, or stop */
    struct cuda_batch *head, **tail;
    _Atomic uint32_t queued; /* batches in the queue: lets the thread look without the lock */
    bool busy;               /* the thread has batches of its own in work */
    atomic_bool stop;
    _Atomic uint64_t stop_ns;
    bool abandoned; /* the thread gave up on a GPU that does not answer: nothing of the driver may be waited for */
};

static inline struct cuda_device *cuda_of(struct device *device) { return (struct cuda_device *)device; }

/* ---- device_cuda_queue.c ---- */
int cuda_submit(struct device *device, const struct device_batch *batch, uint64_t *ret_ticket, bool *ret_inline_done,
                char *err, size_t err_bytes);
int cuda_poll(struct device *device, uint64_t *ret_done, char *err, size_t err_bytes);
int cuda_queue_start(struct cuda_device *d); /* 0 or errno */
/* Waits up to `seconds` for everything submitted to be done or lost. False: the GPU does not answer. */
bool cuda_queue_settle(struct cuda_device *d, unsigned seconds);
/* Ends the thread; false, and d->abandoned, when it cannot be ended because the GPU does not answer. */
bool cuda_queue_stop(struct cuda_device *d);

/* ---- device_cuda_copy.c: on the device's thread, its context current ---- */
int cuda_enqueue_copy(struct cuda_device *d, const struct cuda_copy *copy, char *err, size_t err_bytes);
/* Puts the write into the mirror and notes its window at d->windows[n]. */
int cuda_apply_write(struct cuda_device *d, const struct cuda_write *write, size_t n, char *err, size_t err_bytes);
/* Sends d->windows[0..n), neighbours merged. */
int cuda_enqueue_windows(struct cuda_device *d, size_t n, char *err, size_t err_bytes);
int cuda_mirror_new(struct cuda_region *region, char *err, size_t err_bytes);

/* ---- device_cuda_import.c ---- */
int cuda_import(const struct device_export *exported, const uint8_t *expect_uuid, bool read_only,
                struct device_import **ret_import, char *err, size_t err_bytes);
void *cuda_import_address(const struct device_import *import);
void cuda_unimport(struct device_import *import);
/* The regions that this process exports, so that it imports them by their address: the driver does not open a handle in
 * the process that made it. */
void cuda_own_add(struct cuda_region *region);
void cuda_own_drop(struct cuda_region *region);

#endif
