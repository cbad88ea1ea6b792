/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA backend: a GPU's memory, exported by CUDA IPC handles. See device_cuda_internal.h for the files and the copy
 * forms.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "device_cuda_internal.h"

#define SETTLE_SECONDS 2u

static bool cuda_available(char *err, size_t err_bytes) {
    int count = 0;
    if (cuda_driver_load(err, err_bytes) || CUDA_CALL(err, err_bytes, cuDeviceGetCount, &count)) return false;
    if (count == 0) device_refuse(0, err, err_bytes, "the CUDA driver sees no device");
    return count > 0;
}

static void cuda_identify(const struct device *device, struct device_identity *ret_identity) {
    *ret_identity = ((const struct cuda_device *)device)->identity;
}

static int cuda_event_fd(struct device *device) { return cuda_of(device)->event_fd; }

static int cuda_free_bytes(struct device *device, uint64_t *ret_bytes, char *err, size_t err_bytes) {
    struct cuda_device *d = cuda_of(device);
    size_t free_bytes = 0, total = 0;
    int r = cuda_context_push(d->context, err, err_bytes);
    if (r) return r;
    r = CUDA_CALL(err, err_bytes, cuMemGetInfo, &free_bytes, &total);
    cuda_context_pop();
    if (!r) *ret_bytes = free_bytes;
    return r;
}

/* ---- regions ------------------------------------------------------------------------------ */

/* Consumers cannot exist yet, so the fill may take the form that it likes. */
static int fill_region(struct cuda_device *d, const struct cuda_region *region, char *err, size_t err_bytes) {
    int r = CUDA_CALL(err, err_bytes, cuMemsetD8Async, region->address, region->fill, region->bytes, d->stream);
    return r ? r : CUDA_CALL(err, err_bytes, cuStreamSynchronize, d->stream);
}

/* The context is current. On failure nothing is left. */
static int back_region(struct cuda_device *d, struct cuda_region *region, char *err, size_t err_bytes) {
    int r = CUDA_CALL(err, err_bytes, cuMemAlloc, &region->address, region->bytes);
    if (r) return r;
    r = fill_region(d, region, err, err_bytes);
    if (!r) r = CUDA_CALL(err, err_bytes, cuIpcGetMemHandle, &region->handle, region->address);
    if (!r && region->bytes <= CUDA_EAGER_MIRROR_BYTES) r = cuda_mirror_new(region, err, err_bytes);
    if (r) (void)cuda_driver.cuMemFree(region->address);
    return r;
}

static int cuda_region_new(struct device *device, const char *label, uint64_t bytes, uint8_t fill,
                           struct device_region **ret_region, char *err, size_t err_bytes) {
    struct cuda_device *d = cuda_of(device);
    char why[256] = "";
    if (atomic_load(&d->lost))
        return device_refuse(-EIO, err, err_bytes, "cuda device %u is lost: %s", d->identity.index, d->why);
    struct cuda_region *region = calloc(1, sizeof *region);
    if (!region) return device_refuse(-ENOMEM, err, err_bytes, "no memory to describe region %s", label);
    region->base = (struct device_region) { .device = device, .bytes = bytes };
    region->bytes = (bytes + GEOM_REGION_MIN - 1) / GEOM_REGION_MIN * GEOM_REGION_MIN;
    region->fill = fill;
    int r = cuda_context_push(d->context, why, sizeof why);
    if (!r) {
        r = back_region(d, region, why, sizeof why);
        cuda_context_pop();
    }
    if (r) {
        uint64_t left = 0;
        bool known = r == -ENOMEM && !cuda_free_bytes(device, &left, NULL, 0);
        device_refuse(r, err, err_bytes, "region %s of %" PRIu64 " bytes on cuda device %u: %s", label, region->bytes,
                      d->identity.index, why);
        if (known)
            device_refuse(r, err, err_bytes,
                          "region %s needs %" PRIu64 " bytes, %" PRIu64 " of %" PRIu64
                          " are free on cuda device %u: free some, or ask for less (%s)",
                          label, region->bytes, left, d->identity.total_bytes, d->identity.index, why);
        free(region);
        return r;
    }
    region->next = d->regions;
    d->regions = region;
    cuda_own_add(region);
    *ret_region = &region->base;
    return 0;
}

/* Whether memory may be given back: freeing it waits for the work that uses it, and that never ends on a GPU that does
 * not answer. */
static bool may_free(struct cuda_device *d) { return !d->abandoned && cuda_queue_settle(d, SETTLE_SECONDS); }

static void cuda_region_free(struct device_region *base) {
    struct cuda_region *region = (struct cuda_region *)base;
    struct cuda_device *d = cuda_of(base->device);
    struct cuda_region **link = &d->regions;
    bool give_back = may_free(d);
    while (*link != region) link = &(*link)->next;
    *link = region->next;
    cuda_own_drop(region);
    if (!give_back) return; /* the thread may still refer to it: all of it is left to the end of the process */
    if (!cuda_context_push(d->context, NULL, 0)) {
        (void)cuda_driver.cuMemFree(region->address);
        if (region->mirror) (void)cuda_driver.cuMemFreeHost(region->mirror);
        cuda_context_pop();
    }
    free(region);
}

static void *cuda_region_address(const struct device_region *region) {
    return (void *)(uintptr_t)((const struct cuda_region *)region)->address;
}

static void cuda_region_export(const struct device_region *base, struct device_export *ret_export) {
    const struct cuda_region *region = (const struct cuda_region *)base;
    struct device_export e = { .kind = DEVICE_EXPORT_CUDA_IPC,
                               .fd = -1,
                               .bytes = base->bytes,
                               .owner_pid = (uint64_t)getpid(),
                               .local_address = region->address };
    _Static_assert(sizeof e.ipc_handle == sizeof region->handle, "an IPC handle has 64 bytes");
    memcpy(e.ipc_handle, &region->handle, sizeof e.ipc_handle);
    memcpy(e.uuid, ((const struct cuda_device *)base->device)->identity.uuid, sizeof e.uuid);
    *ret_export = e;
}

/* ---- open and close ----------------------------------------------------------------------- */

static int find_device(struct cuda_device *d, char *err, size_t err_bytes) {
    int count = 0, r = CUDA_CALL(err, err_bytes, cuDeviceGetCount, &count);
    if (r) return r;
    if (d->identity.index >= (uint32_t)count)
        return device_refuse(-ENODEV, err, err_bytes,
                             "cuda device %u is not there: the driver shows %d (CUDA_VISIBLE_DEVICES limits them)",
                             d->identity.index, count);
    return CUDA_CALL(err, err_bytes, cuDeviceGet, &d->ordinal, (int)d->identity.index);
}

static int fill_identity(struct cuda_device *d, char *err, size_t err_bytes) {
    CUuuid uuid;
    size_t total = 0;
    int pitch = 0;
    int r = CUDA_CALL(err, err_bytes, cuDeviceGetUuid_v2, &uuid, d->ordinal);
    if (!r) r = CUDA_CALL(err, err_bytes, cuDeviceGetName, d->identity.name, (int)sizeof d->identity.name, d->ordinal);
    if (!r) r = CUDA_CALL(err, err_bytes, cuDeviceTotalMem, &total, d->ordinal);
    if (!r) r = CUDA_CALL(err, err_bytes, cuDeviceGetAttribute, &pitch, CU_DEVICE_ATTRIBUTE_MAX_PITCH, d->ordinal);
    if (r) return r;
    memcpy(d->identity.uuid, &uuid, sizeof d->identity.uuid);
    d->identity.total_bytes = total;
    d->pitch_limit = (uint64_t)pitch;
    return 0;
}

/* The context is current. What was made on the way is freed by drop_driver_objects. */
static int make_driver_objects(struct cuda_device *d, char *err, size_t err_bytes) {
    int r = CUDA_CALL(err, err_bytes, cuStreamCreate, &d->stream, CU_STREAM_NON_BLOCKING);
    if (!r) r = CUDA_CALL(err, err_bytes, cuEventCreate, &d->event, CU_EVENT_DISABLE_TIMING);
    if (r) return r;
    return CUDA_CALL(err, err_bytes, cuMemHostAlloc, (void **)&d->bounce, CUDA_BOUNCE_BYTES, CU_MEMHOSTALLOC_PORTABLE);
}

static void drop_driver_objects(struct cuda_device *d) {
    if (d->bounce) (void)cuda_driver.cuMemFreeHost(d->bounce);
    if (d->event) (void)cuda_driver.cuEventDestroy(d->event);
    if (d->stream) (void)cuda_driver.cuStreamDestroy(d->stream);
}

static int open_driver_side(struct cuda_device *d, char *err, size_t err_bytes) {
    int r = cuda_driver_load(err, err_bytes);
    if (!r) r = find_device(d, err, err_bytes);
    if (!r) r = fill_identity(d, err, err_bytes);
    if (!r) r = CUDA_CALL(err, err_bytes, cuDevicePrimaryCtxRetain, &d->context, d->ordinal);
    if (r) return r;
    r = cuda_context_push(d->context, err, err_bytes);
    if (!r) {
        r = make_driver_objects(d, err, err_bytes);
        if (r) drop_driver_objects(d);
        cuda_context_pop();
    }
    if (r) (void)cuda_driver.cuDevicePrimaryCtxRelease(d->ordinal);
    return r;
}

static void close_driver_side(struct cuda_device *d) {
    if (!cuda_context_push(d->context, NULL, 0)) {
        drop_driver_objects(d);
        cuda_context_pop();
    }
    (void)cuda_driver.cuDevicePrimaryCtxRelease(d->ordinal);
}

static int open_process_side(struct cuda_device *d) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    d->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int e = d->event_fd < 0 ? errno : cuda_queue_start(d);
    if (e && d->event_fd >= 0) close(d->event_fd);
    return e;
}

static void free_device(struct cuda_device *d) {
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    free(d->windows);
    free(d->pieces);
    free(d);
}

static int cuda_open(const struct device_config *config, struct device **ret_device, char *err, size_t err_bytes) {
    struct cuda_device *d = calloc(1, sizeof *d);
    sigset_t all, before;
    if (!d) return device_refuse(-ENOMEM, err, err_bytes, "no memory to open cuda device %u", config->index);
    d->base.backend = &device_cuda_backend;
    d->identity.kind = DEVICE_CUDA;
    d->identity.index = config->index;
    d->tail = &d->head;
    /* The driver starts threads of its own: they must not take the process's signals. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = open_driver_side(d, err, err_bytes);
    if (!r) {
        int e = open_process_side(d);
        if (e) {
            close_driver_side(d);
            free_device(d);
            d = NULL;
            r = device_refuse(-e, err, err_bytes, "cuda device %u has no event fd or thread: %s", config->index,
                              strerror(e));
        }
    } else {
        free(d);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!r) *ret_device = &d->base;
    return r;
}

static void cuda_close(struct device *device) {
    struct cuda_device *d = cuda_of(device);
    bool ended = cuda_queue_stop(d);
    while (d->regions) cuda_region_free(&d->regions->base);
    close(d->event_fd);
    if (!ended) return; /* see cuda_region_free: the driver's objects and d itself go with the process */
    close_driver_side(d);
    free_device(d);
}

const struct device_backend device_cuda_backend = {
    .available = cuda_available,
    .open = cuda_open,
    .close = cuda_close,
    .identify = cuda_identify,
    .free_bytes = cuda_free_bytes,
    .region_new = cuda_region_new,
    .region_free = cuda_region_free,
    .region_export = cuda_region_export,
    .region_address = cuda_region_address,
    .submit = cuda_submit,
    .poll = cuda_poll,
    .event_fd = cuda_event_fd,
    .import = cuda_import,
    .import_address = cuda_import_address,
    .unimport = cuda_unimport,
};
