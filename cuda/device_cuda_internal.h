/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the CUDA backend:
 *
 *   device_cuda.c         open, close, identity
 *   device_cuda_region.c  regions
 *   device_cuda_memory.c  memory behind descriptors, and memory of the host
 *   device_cuda_queue.c   queues and their threads, loss, waiting for the GPU
 *   device_cuda_batch.c   batches: page copies within the device, publication
 *   device_cuda_copy.c    what their thread enqueues
 *   device_cuda_move.c    pages to and from the host: a queue, a thread and streams for each direction
 *   device_cuda_form.c    copies in copy-engine forms only
 *   device_cuda_import.c  the consumer's side
 *   device_cuda_driver.c  the driver's functions
 *
 * Copy forms. Another process keeps the SMs busy while kvd works; two processes on a GPU share it in time slices of
 * about 2 ms. Kernels, device-to-device copies and 1-D host-to-device copies of up to 24 KiB wait for a slice;
 * host-to-device 2-D copies of two or more rows, 1-D ones of 28 KiB and more, and device-to-host copies do not: copy
 * engines run them. So the thread uses those three forms and no other.
 *
 * Threads: the thread of the batches alone touches event, bounce buffer and mirrors once the device is open, the thread
 * of a direction its streams and flights. Submitters touch the queues. Who makes a region fills it on the stream of the
 * batches and waits for that. Bulk copies have streams of their own, so that publication does not stand behind them.
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

/* ---- queues ------------------------------------------------------------------------------- */

struct cuda_item {
    struct cuda_item *next;
    uint64_t ticket;
};

struct cuda_queue {
    struct cuda_device *device;
    void (*run)(struct cuda_queue *q);
    uint64_t last_ticket; /* of the submitting thread */
    _Atomic uint64_t done;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;   /* the items, and busy */
    pthread_cond_t changed; /* CLOCK_MONOTONIC; the queue grew, work ended, or stop */
    struct cuda_item *head, **tail;
    _Atomic uint32_t queued; /* items in the queue: lets the thread look without the lock */
    bool busy;               /* the thread has items of its own in work */
};

/* A batch, one allocation: the caller's memory is not needed after submit. */
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
    struct cuda_item item;
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
    int fd;         /* of memory that is exported so, else -1 and */
    CUipcMemHandle handle;
    uint8_t fill;
    bool adopted; /* holds what an earlier owner left, not `fill` */
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

/* ---- moves -------------------------------------------------------------------------------- */

/* What the driver is asked for where a page is several rows at a pitch. */
enum cuda_form {
    CUDA_FORM_2D,        /* a 2-D copy a strip */
    CUDA_FORM_ROWS,      /* a 1-D copy a row */
    CUDA_FORM_BATCH,     /* one call for many strips; drivers for CUDA 13 and newer */
    CUDA_FORM_BATCH_ROWS /* one call for many rows, likewise */
};
struct cuda_move_tuning {
    uint32_t streams;    /* of a direction, 1..CUDA_MOVE_STREAMS */
    enum cuda_form near; /* layers within the pitch that the driver documents */
    enum cuda_form
        wide; /* the same, for strips of wide_bytes and more: what a copy costs beside its bytes is little there */
    uint64_t wide_bytes; /* 0: none */
    enum cuda_form far;  /* beyond it: regions of about n_layers * 2 GiB and more */
    bool chain; /* a flight begins when the one before it, on another stream, has ended: between the two the engine
                   looks at other queues */
    uint64_t flight_bytes; /* a copy is not larger; a flight is one copy or several smaller ones */
    uint64_t depth_bytes;  /* enqueued at most, beside the flight that is being made: what a copy of somebody else may
                            * find  before it in the engine, where flights are not chained */
};
/* Used by devices that are opened from now on. Measured: tests/gpu/bench_moves. */
extern struct cuda_move_tuning cuda_move_tuning;

#define CUDA_MOVE_STREAMS 4
#define CUDA_MOVE_FLIGHTS 32 /* in the air at most */
#define CUDA_MOVE_OPS 256    /* of a batched call */

struct cuda_job {
    struct cuda_item item;
    struct geom_pool_spec spec;
    CUdeviceptr region; /* a region is not freed while moves are queued */
    uint32_t n_pages, rank, n;
    struct device_move moves[];
};

/* Copies on one stream, with an event behind them. */
struct cuda_flight {
    CUevent event;
    uint64_t bytes, began;
    uint64_t ticket; /* done with it, 0: a later flight has the rest */
};

/* The moves of one direction. */
struct cuda_mover {
    struct cuda_queue queue;
    enum device_direction direction;
    struct cuda_move_tuning tuning;
    CUstream streams[CUDA_MOVE_STREAMS];
    uint32_t stream;                               /* of the flight that is being made */
    uint64_t loaded, loaded_ops;                   /* on it: bytes and copies */
    struct cuda_flight flights[CUDA_MOVE_FLIGHTS]; /* a ring in the order of their copies */
    uint32_t first, n;
    uint64_t in_air;      /* bytes of the n flights */
    struct cuda_ops *ops; /* gathered for a batched call */
};

/* ---- the device --------------------------------------------------------------------------- */

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
    bool export_fd;

    int event_fd;
    struct cuda_queue batches;
    struct cuda_mover movers[2]; /* by direction */
    atomic_bool lost, losing;    /* why is written between them, by the first to lose it */
    char why[320];
    atomic_bool stop;
    _Atomic uint64_t stop_ns;
    atomic_bool abandoned; /* a thread gave up on a GPU that does not answer: nothing of the driver may be waited for */
};

static inline struct cuda_device *cuda_of(struct device *device) { return (struct cuda_device *)device; }

/* ---- device_cuda_queue.c ---- */
uint64_t cuda_now_ns(void);
/* The owner's event fd. */
void cuda_tell(struct cuda_device *d);
/* The device is lost from now on; the first reason stays. Tells. */
void cuda_lose(struct cuda_device *d, const char *why);
int cuda_check_lost(struct cuda_device *d, char *err, size_t err_bytes); /* 0 or -EIO */
/* Between two questions to the driver about work that began at `since`: spins a while, then sleeps. -ETIMEDOUT: the
 * device is being closed and the GPU does not answer. */
int cuda_pause(struct cuda_device *d, uint64_t since, uint64_t spin_ns, char *err, size_t err_bytes);
int cuda_await(struct cuda_device *d, CUevent event, uint64_t spin_ns, char *err, size_t err_bytes);
/* After a failure: until what the stream was given before it has ended, so that the memory of both sides is free to go.
 * 0 or -ETIMEDOUT. */
int cuda_drain(struct cuda_device *d, CUstream stream);

/* 0 or errno. run is the thread; it has the context current, and ends when cuda_queue_take gives NULL. */
int cuda_queue_start(struct cuda_queue *q, struct cuda_device *d, void (*run)(struct cuda_queue *q));
void cuda_queue_put(struct cuda_queue *q, struct cuda_item *item); /* takes it over, and gives it its ticket */
/* For the thread, with nothing in work: the next item, with those behind it that go along (NULL: none do); waits for
 * it. NULL: stop. */
struct cuda_item *cuda_queue_take(struct cuda_queue *q, bool (*goes_along)(const struct cuda_item *item));
/* For the thread, with something in work: the next item or NULL. */
struct cuda_item *cuda_queue_look(struct cuda_queue *q);
void cuda_items_free(struct cuda_item *item);
int cuda_queue_poll(struct cuda_queue *q, uint64_t *ret_done, char *err, size_t err_bytes);
void cuda_queue_fini(struct cuda_queue *q); /* after stop */

/* Waits for the work that may use memory: whether that can be given back. If not, the GPU does not answer, and the
 * device is lost. */
bool cuda_may_free(struct cuda_device *d);
/* Ends the threads; false, and d->abandoned, when one cannot be ended because the GPU does not answer. */
bool cuda_queues_stop(struct cuda_device *d);

/* ---- device_cuda_batch.c ---- */
int cuda_submit(struct device *device, const struct device_batch *batch, uint64_t *ret_ticket, bool *ret_inline_done,
                char *err, size_t err_bytes);
int cuda_poll(struct device *device, uint64_t *ret_done, char *err, size_t err_bytes);
void cuda_batch_thread(struct cuda_queue *q);

/* ---- device_cuda_move.c ---- */
int cuda_move(struct device *device, const struct device_moves *moves, uint64_t *ret_ticket, bool *ret_inline_done,
              char *err, size_t err_bytes);
int cuda_poll_moves(struct device *device, enum device_direction direction, uint64_t *ret_done, char *err,
                    size_t err_bytes);
void cuda_move_thread(struct cuda_queue *q);
/* Streams and events, the context current. What was made on the way is freed by drop. */
int cuda_mover_make(struct cuda_device *d, enum device_direction direction, char *err, size_t err_bytes);
void cuda_mover_drop(struct cuda_mover *m);

/* ---- device_cuda_form.c: the driver's copies ---- */
/* A strip between a region and the host, in forms that do not wait. A single row to the device has an even width. */
struct move_strip;
int cuda_to_host(CUstream stream, CUdeviceptr region, const struct move_strip *strip, char *err, size_t err_bytes);
int cuda_to_device(CUstream stream, CUdeviceptr region, const struct move_strip *strip, char *err, size_t err_bytes);
/* Puts a strip on the mover's stream, or gathers it; flush sends what is gathered. */
int cuda_form_add(struct cuda_mover *m, CUdeviceptr region, const struct move_strip *strip, char *err,
                  size_t err_bytes);
int cuda_form_flush(struct cuda_mover *m, char *err, size_t err_bytes);
int cuda_ops_new(struct cuda_mover *m);
void cuda_ops_free(struct cuda_mover *m);

/* ---- device_cuda_memory.c: memory that is exported as a descriptor, and memory of the host ---- */
/* Whole granules of `ordinal` for at least `bytes`. */
int cuda_vmm_round(CUdevice ordinal, uint64_t *bytes, char *err, size_t err_bytes);
/* New memory, mapped; *ret_fd is the caller's. bytes: whole granules. */
int cuda_vmm_new(CUdevice ordinal, uint64_t bytes, CUdeviceptr *ret_address, int *ret_fd, char *err, size_t err_bytes);
/* Maps what is behind fd, which stays the caller's. -EINVAL: it is no such memory, or of another device; -EMSGSIZE: it
 * has another size. */
int cuda_vmm_map(CUdevice ordinal, int fd, uint64_t bytes, CUdeviceptr *ret_address, char *err, size_t err_bytes);
void cuda_vmm_unmap(CUdeviceptr address, uint64_t bytes);
int cuda_pin(struct device *device, void *address, uint64_t bytes, char *err, size_t err_bytes);
void cuda_unpin(struct device *device, void *address);

/* ---- device_cuda_copy.c: on the device's thread, its context current ---- */
int cuda_enqueue_copy(struct cuda_device *d, const struct cuda_copy *copy, char *err, size_t err_bytes);
/* Puts the write into the mirror and notes its window at d->windows[n]. */
int cuda_apply_write(struct cuda_device *d, const struct cuda_write *write, size_t n, char *err, size_t err_bytes);
/* Sends d->windows[0..n), neighbours merged. */
int cuda_enqueue_windows(struct cuda_device *d, size_t n, char *err, size_t err_bytes);
int cuda_mirror_new(struct cuda_device *d, struct cuda_region *region, char *err, size_t err_bytes);

/* ---- device_cuda_import.c ---- */
int cuda_import(const struct device_export *exported, const uint8_t *expect_uuid, bool read_only,
                struct device_import **ret_import, char *err, size_t err_bytes);
void *cuda_import_address(const struct device_import *import);
void cuda_unimport(struct device_import *import);
/* The regions that this process exports, so that it imports them by their address: the driver does not open a handle in
 * the process that made it. */
void cuda_own_add(struct cuda_region *region);
void cuda_own_drop(struct cuda_region *region);

/* ---- device_cuda_region.c ---- */
int cuda_free_bytes(struct device *device, uint64_t *ret_bytes, char *err, size_t err_bytes);
int cuda_region_new(struct device *device, const char *label, uint64_t bytes, uint8_t fill,
                    struct device_region **ret_region, char *err, size_t err_bytes);
int cuda_region_adopt(struct device *device, const char *label, uint64_t bytes, int fd,
                      struct device_region **ret_region, char *err, size_t err_bytes);
void cuda_region_free(struct device_region *region);
void *cuda_region_address(const struct device_region *region);
void cuda_region_export(const struct device_region *region, struct device_export *ret_export);

#endif
