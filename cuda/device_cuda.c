/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA backend: a GPU's memory, exported by CUDA IPC handles or as file descriptors. See device_cuda_internal.h for the
 * files and the copy forms.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "device_cuda_internal.h"

static bool cuda_available(char *err, size_t err_bytes) {
    int count = 0;
    if (cuda_driver_load(err, err_bytes) || CUDA_CALL(err, err_bytes, cuDeviceGetCount, &count)) return false;
    if (count == 0) refuse_with(0, err, err_bytes, "the CUDA driver sees no device");
    return count > 0;
}

static void cuda_identify(const struct device *device, struct device_identity *ret_identity) {
    *ret_identity = ((const struct cuda_device *)device)->identity;
}

static int cuda_event_fd(struct device *device) { return cuda_of(device)->event_fd; }

/* ---- open and close ----------------------------------------------------------------------- */

static int find_device(struct cuda_device *d, char *err, size_t err_bytes) {
    int count = 0, r = CUDA_CALL(err, err_bytes, cuDeviceGetCount, &count);
    if (r) return r;
    if (d->identity.index >= (uint32_t)count)
        return refuse_with(-ENODEV, err, err_bytes,
                           "cuda device %u is not there: the driver shows %d (CUDA_VISIBLE_DEVICES limits them)",
                           d->identity.index, count);
    return CUDA_CALL(err, err_bytes, cuDeviceGet, &d->ordinal, (int)d->identity.index);
}

/* For the NUMA node; whoever does not tell has none. */
static void fill_pci(struct cuda_device *d) {
    int domain = 0, bus = 0, slot = 0;
    if (cuda_driver.cuDeviceGetAttribute(&domain, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, d->ordinal) == CUDA_SUCCESS &&
        cuda_driver.cuDeviceGetAttribute(&bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, d->ordinal) == CUDA_SUCCESS &&
        cuda_driver.cuDeviceGetAttribute(&slot, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, d->ordinal) == CUDA_SUCCESS)
        snprintf(d->identity.pci, sizeof d->identity.pci, "%04x:%02x:%02x.0", (unsigned)domain & 0xffff,
                 (unsigned)bus & 0xff, (unsigned)slot & 0xff);
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
    fill_pci(d);
    return 0;
}

/* The context is current. What was made on the way is freed by drop_driver_objects. */
static int make_driver_objects(struct cuda_device *d, char *err, size_t err_bytes) {
    int r = CUDA_CALL(err, err_bytes, cuStreamCreate, &d->stream, CU_STREAM_NON_BLOCKING);
    if (!r) r = CUDA_CALL(err, err_bytes, cuEventCreate, &d->event, CU_EVENT_DISABLE_TIMING);
    for (int i = 0; !r && i < 2; i++) r = cuda_mover_make(d, (enum device_direction)i, err, err_bytes);
    if (r) return r;
    return CUDA_CALL(err, err_bytes, cuMemHostAlloc, (void **)&d->bounce, CUDA_BOUNCE_BYTES, CU_MEMHOSTALLOC_PORTABLE);
}

static void drop_driver_objects(struct cuda_device *d) {
    for (int i = 0; i < 2; i++) cuda_mover_drop(&d->movers[i]);
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

static int start_threads(struct cuda_device *d) {
    int e = cuda_queue_start(&d->batches, d, cuda_batch_thread);
    for (int i = 0; !e && i < 2; i++) e = cuda_queue_start(&d->movers[i].queue, d, cuda_move_thread);
    if (e) cuda_queues_stop(d);
    return e;
}

static int open_process_side(struct cuda_device *d) {
    d->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int e = d->event_fd < 0 ? errno : start_threads(d);
    if (e && d->event_fd >= 0) close(d->event_fd);
    return e;
}

static void free_device(struct cuda_device *d) {
    cuda_queue_fini(&d->batches);
    for (int i = 0; i < 2; i++) cuda_queue_fini(&d->movers[i].queue);
    free(d->windows);
    free(d->pieces);
    free(d);
}

static int cuda_open(const struct device_config *config, struct device **ret_device, char *err, size_t err_bytes) {
    struct cuda_device *d = calloc(1, sizeof *d);
    sigset_t all, before;
    if (!d) return refuse_with(-ENOMEM, err, err_bytes, "no memory to open cuda device %u", config->index);
    d->base.backend = &device_cuda_backend;
    d->identity.kind = DEVICE_CUDA;
    d->identity.index = config->index;
    d->export_fd = config->export_fd;
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
            r = refuse_with(-e, err, err_bytes, "cuda device %u has no event fd or thread: %s", config->index,
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
    bool ended = cuda_queues_stop(d);
    while (device->n_pins) device_unpin(device, device->pins[0].address);
    while (d->regions) cuda_region_free(&d->regions->base);
    if (!ended) return; /* what a thread may still use goes with the process: the driver's objects, the event fd, d */
    close(d->event_fd);
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
    .region_adopt = cuda_region_adopt,
    .region_free = cuda_region_free,
    .region_export = cuda_region_export,
    .region_address = cuda_region_address,
    .submit = cuda_submit,
    .poll = cuda_poll,
    .event_fd = cuda_event_fd,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
    .move = cuda_move,
    .poll_moves = cuda_poll_moves,
    .import = cuda_import,
    .import_address = cuda_import_address,
    .unimport = cuda_unimport,
};
