/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the host backend:
 *
 *   device_host.c         open, close, identity
 *   device_host_batch.c   batches: copies within the device, publication; what all threads of a device use
 *   device_host_region.c  regions: sealed memory behind a file descriptor
 *   device_host_move.c    pages to and from the host: a queue and a thread for each direction
 *   device_host_map.c     mappings of this process, and the consumer's side
 */
#ifndef KVD_CUDA_DEVICE_HOST_INTERNAL_H
#define KVD_CUDA_DEVICE_HOST_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "device_backend.h"
#include "device_host_hook.h"
#include "device_host_map.h"

#define HOST_INLINE_BYTES (256u << 10) /* done by the caller where nothing is queued before it */

struct host_batch;
struct host_job;

struct host_region {
    struct device_region base;
    struct host_region *next;
    struct host_map *map;
    int fd;
    uint64_t charged; /* whole pages of memory */
};

/* The moves of one direction. */
struct host_mover {
    struct host_device *device;
    enum device_direction direction;
    uint64_t last_ticket; /* of the submitting thread */
    _Atomic uint64_t done;
    pthread_t thread;
    pthread_mutex_t lock;   /* the queue and stop */
    pthread_cond_t changed; /* queue became non-empty or empty, or stop */
    struct host_job *head, **tail;
    bool stop;
};

struct host_device {
    struct device base;
    struct device_identity identity;
    uint64_t charged;
    struct host_region *regions;
    int event_fd;
    atomic_bool lost; /* only a test's hook loses a host device; why is written before */
    _Atomic uint32_t losing;
    char why[128];
    struct host_mover movers[2]; /* by direction */

    uint64_t last_ticket; /* of batches, of the submitting thread */
    _Atomic uint64_t done;
    pthread_t thread;
    pthread_mutex_t lock;   /* the queue and stop */
    pthread_cond_t changed; /* queue became non-empty or empty, or stop */
    struct host_batch *head, **tail;
    bool stop;
};

static inline struct host_device *host_of(struct device *device) { return (struct host_device *)device; }

static inline void *host_region_address(const struct device_region *region) {
    return host_map_address(((const struct host_region *)region)->map);
}

/* ---- device_host_batch.c ---- */
/* 0 or errno; the thread takes no signals. */
int host_thread_start(pthread_t *thread, void *(*run)(void *), void *argument);
/* Makes the device's event fd readable. */
void host_tell(struct host_device *d);
/* 0, or -EIO with the reason where the device is lost. */
int host_check_lost(struct host_device *d, char *err, size_t err_bytes);
int host_batches_start(struct host_device *d); /* 0 or errno, and then nothing runs */
void host_batches_stop(struct host_device *d); /* after what is queued is done */
void host_wait_batches(struct host_device *d); /* until nothing is queued */
int host_submit(struct device *device, const struct device_batch *batch, uint64_t *ret_ticket, bool *ret_inline_done,
                char *err, size_t err_bytes);
int host_poll(struct device *device, uint64_t *ret_done, char *err, size_t err_bytes);

/* ---- device_host_region.c ---- */
int host_free_bytes(struct device *device, uint64_t *ret_bytes, char *err, size_t err_bytes);
int host_region_new(struct device *device, const char *label, uint64_t bytes, uint8_t fill,
                    struct device_region **ret_region, char *err, size_t err_bytes);
int host_region_adopt(struct device *device, const char *label, uint64_t bytes, int fd,
                      struct device_region **ret_region, char *err, size_t err_bytes);
void host_region_free(struct device_region *region);
void host_region_export(const struct device_region *region, struct device_export *ret_export);

/* ---- device_host_move.c ---- */
int host_movers_start(struct host_device *d); /* 0 or errno, and then nothing runs */
void host_movers_stop(struct host_device *d); /* after what is queued is done */
void host_wait_moves(struct host_device *d);
int host_pin(struct device *device, void *address, uint64_t bytes, char *err, size_t err_bytes);
void host_unpin(struct device *device, void *address);
int host_move(struct device *device, const struct device_moves *moves, uint64_t *ret_ticket, bool *ret_inline_done,
              char *err, size_t err_bytes);
int host_poll_moves(struct device *device, enum device_direction direction, uint64_t *ret_done, char *err,
                    size_t err_bytes);

#endif
