/* SPDX-License-Identifier: Apache-2.0
 *
 * Dispatch to the backends.
 */
#include "device.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

#include "device_backend.h"
#include "device_host_map.h"

static const struct device_backend *cuda_backend(void) {
#ifdef KVD_HAVE_CUDA_BACKEND
    return &device_cuda_backend;
#else
    return NULL;
#endif
}

bool device_cuda_available(char *err, size_t err_bytes) {
    const struct device_backend *backend = cuda_backend();
    if (backend) return backend->available(err, err_bytes);
    refuse_with(0, err, err_bytes, "this build has no CUDA backend");
    return false;
}

int device_open(const struct device_config *config, struct device **ret_device, char *err, size_t err_bytes) {
    switch (config->kind) {
    case DEVICE_HOST: return device_host_backend.open(config, ret_device, err, err_bytes);
    case DEVICE_CUDA:
        if (cuda_backend()) return cuda_backend()->open(config, ret_device, err, err_bytes);
        return refuse_with(
            -ENODEV, err, err_bytes,
            "device %u is a CUDA device and this build has no CUDA backend: use a host device or a CUDA build",
            config->index);
    default:
        return refuse_with(-EINVAL, err, err_bytes, "device kind %u is unknown: use host (0) or cuda (1)",
                           (unsigned)config->kind);
    }
}

void device_close(struct device *device) {
    if (device) device->backend->close(device);
}

void device_identify(const struct device *device, struct device_identity *ret_identity) {
    device->backend->identify(device, ret_identity);
}

int device_free_bytes(struct device *device, uint64_t *ret_bytes, char *err, size_t err_bytes) {
    return device->backend->free_bytes(device, ret_bytes, err, err_bytes);
}

static bool label_ok(const char *label) {
    return label && *label && label[strspn(label, "abcdefghijklmnopqrstuvwxyz0123456789-")] == '\0';
}

int device_region_new(struct device *device, const char *label, uint64_t bytes, uint8_t fill,
                      struct device_region **ret_region, char *err, size_t err_bytes) {
    if (!label_ok(label))
        return refuse_with(-EINVAL, err, err_bytes, "region label \"%s\" is not [a-z0-9-]+", label ? label : "");
    if (bytes == 0 || bytes > INT64_MAX)
        return refuse_with(-EINVAL, err, err_bytes, "region %s of %" PRIu64 " bytes: a region has 1..2^63-1", label,
                           bytes);
    return device->backend->region_new(device, label, bytes, fill, ret_region, err, err_bytes);
}

int device_region_adopt(struct device *device, const char *label, uint64_t bytes, int fd,
                        struct device_region **ret_region, char *err, size_t err_bytes) {
    if (!label_ok(label))
        return refuse_with(-EINVAL, err, err_bytes, "region label \"%s\" is not [a-z0-9-]+", label ? label : "");
    if (bytes == 0 || bytes > INT64_MAX || fd < 0)
        return refuse_with(-EINVAL, err, err_bytes,
                           "region %s of %" PRIu64 " bytes behind descriptor %d: a region has 1..2^63-1 bytes, and a "
                           "descriptor",
                           label, bytes, fd);
    return device->backend->region_adopt(device, label, bytes, fd, ret_region, err, err_bytes);
}

void device_region_free(struct device_region *region) {
    if (region) region->device->backend->region_free(region);
}

void device_region_export(const struct device_region *region, struct device_export *ret_export) {
    region->device->backend->region_export(region, ret_export);
}

void *device_region_address(const struct device_region *region) {
    return region->device->backend->region_address(region);
}

/* ---- batches ------------------------------------------------------------------------------ */

int device_submit(struct device *device, const struct device_batch *batch, uint64_t *ret_ticket, bool *ret_inline_done,
                  char *err, size_t err_bytes) {
    int r = device_check_batch(device, batch, err, err_bytes);
    return r ? r : device->backend->submit(device, batch, ret_ticket, ret_inline_done, err, err_bytes);
}

int device_poll(struct device *device, uint64_t *ret_done, char *err, size_t err_bytes) {
    return device->backend->poll(device, ret_done, err, err_bytes);
}

int device_event_fd(struct device *device) { return device->backend->event_fd(device); }

/* ---- pages to and from the host ----------------------------------------------------------- */

static bool pins_touch(const struct device *device, const void *address, uint64_t bytes) {
    uintptr_t begin = (uintptr_t)address;
    for (uint32_t i = 0; i < device->n_pins; i++) {
        uintptr_t first = (uintptr_t)device->pins[i].address;
        if (begin < first + device->pins[i].bytes && first < begin + bytes) return true;
    }
    return false;
}

int device_pin(struct device *device, void *address, uint64_t bytes, char *err, size_t err_bytes) {
    if (!address || bytes == 0 || bytes > UINTPTR_MAX - (uintptr_t)address)
        return refuse_with(-EINVAL, err, err_bytes, "memory to pin of %" PRIu64 " bytes at %p: name a whole mapping",
                           bytes, address);
    if (pins_touch(device, address, bytes))
        return refuse_with(-EEXIST, err, err_bytes,
                           "memory of %" PRIu64 " bytes at %p is pinned already, or a part of it: unpin it first",
                           bytes, address);
    if (device->n_pins == DEVICE_MAX_PINS)
        return refuse_with(-ENOSPC, err, err_bytes, "a device has at most %d pinned mappings: pin fewer, larger ones",
                           DEVICE_MAX_PINS);
    int r = device->backend->pin(device, address, bytes, err, err_bytes);
    if (!r) device->pins[device->n_pins++] = (struct device_pinned){ address, bytes };
    return r;
}

void device_unpin(struct device *device, void *address) {
    for (uint32_t i = 0; i < device->n_pins; i++)
        if (device->pins[i].address == address) {
            device->backend->unpin(device, address);
            device->pins[i] = device->pins[--device->n_pins];
            return;
        }
}

int device_move(struct device *device, const struct device_moves *moves, uint64_t *ret_ticket, bool *ret_inline_done,
                char *err, size_t err_bytes) {
    int r = device_check_moves(device, moves, err, err_bytes);
    return r ? r : device->backend->move(device, moves, ret_ticket, ret_inline_done, err, err_bytes);
}

int device_poll_moves(struct device *device, enum device_direction direction, uint64_t *ret_done, char *err,
                      size_t err_bytes) {
    return device->backend->poll_moves(device, direction, ret_done, err, err_bytes);
}

void device_count_moved(struct device *device, enum device_direction direction, uint64_t operations, uint64_t bytes) {
    atomic_fetch_add_explicit(&device->moved[direction].operations, operations, memory_order_relaxed);
    atomic_fetch_add_explicit(&device->moved[direction].bytes, bytes, memory_order_relaxed);
}

void device_get_move_stats(struct device *device, enum device_direction direction,
                           struct device_move_stats *ret_stats) {
    ret_stats->operations = atomic_load_explicit(&device->moved[direction].operations, memory_order_relaxed);
    ret_stats->bytes = atomic_load_explicit(&device->moved[direction].bytes, memory_order_relaxed);
}

/* ---- consumer side ------------------------------------------------------------------------ */

int device_import(const struct device_export *exported, const uint8_t *expect_uuid, bool read_only,
                  struct device_import **ret_import, char *err, size_t err_bytes) {
    if (exported->bytes == 0 || exported->bytes > INT64_MAX)
        return refuse_with(-EINVAL, err, err_bytes, "the export names %" PRIu64 " bytes: a region has 1..2^63-1",
                           exported->bytes);
    switch (exported->kind) {
    case DEVICE_EXPORT_FD:
        if (exported->fd < 0)
            return refuse_with(-EACCES, err, err_bytes,
                               "the export has no descriptor: its owner sends it over a Unix socket to those who may "
                               "map it, attach as a worker");
        if (device_host_is_memory(exported->fd))
            return device_host_backend.import(exported, expect_uuid, read_only, ret_import, err, err_bytes);
        __attribute__((fallthrough)); /* memory of a GPU */
    case DEVICE_EXPORT_CUDA_IPC:
        if (cuda_backend()) return cuda_backend()->import(exported, expect_uuid, read_only, ret_import, err, err_bytes);
        return refuse_with(
            -ENODEV, err, err_bytes,
            "the region is no memory of a host device, and this build has no CUDA backend: use a CUDA build of the "
            "library");
    default:
        return refuse_with(-EINVAL, err, err_bytes, "export kind %u is unknown: the owner is of a newer version",
                           exported->kind);
    }
}

void *device_import_address(const struct device_import *import) { return import->backend->import_address(import); }

void device_unimport(struct device_import *import) {
    if (import) import->backend->unimport(import);
}
