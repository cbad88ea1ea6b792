/* SPDX-License-Identifier: Apache-2.0
 *
 * Regions of a GPU: cudaMalloc's memory, which other processes open by its IPC handle while this one lives; or, with
 * export_fd, memory behind a descriptor, which lives as long as somebody holds that.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device_cuda_internal.h"

int cuda_free_bytes(struct device *device, uint64_t *ret_bytes, char *err, size_t err_bytes) {
    struct cuda_device *d = cuda_of(device);
    size_t free_bytes = 0, total = 0;
    int r = cuda_context_push(d->context, err, err_bytes);
    if (r) return r;
    r = CUDA_CALL(err, err_bytes, cuMemGetInfo, &free_bytes, &total);
    cuda_context_pop();
    if (!r) *ret_bytes = free_bytes;
    return r;
}

/* ---- memory ------------------------------------------------------------------------------- */

/* Consumers cannot exist yet, so the fill may take the form that it likes. */
static int fill_region(struct cuda_device *d, const struct cuda_region *region, char *err, size_t err_bytes) {
    int r = CUDA_CALL(err, err_bytes, cuMemsetD8Async, region->address, region->fill, region->bytes, d->stream);
    return r ? r : CUDA_CALL(err, err_bytes, cuStreamSynchronize, d->stream);
}

static int new_memory(struct cuda_device *d, struct cuda_region *region, char *err, size_t err_bytes) {
    if (!d->export_fd) return CUDA_CALL(err, err_bytes, cuMemAlloc, &region->address, region->bytes);
    int r = cuda_vmm_round(d->ordinal, &region->bytes, err, err_bytes);
    return r ? r : cuda_vmm_new(d->ordinal, region->bytes, &region->address, &region->fd, err, err_bytes);
}

static int adopt_memory(struct cuda_device *d, struct cuda_region *region, int fd, char *err, size_t err_bytes) {
    int r = cuda_vmm_round(d->ordinal, &region->bytes, err, err_bytes);
    if (!r) r = cuda_vmm_map(d->ordinal, fd, region->bytes, &region->address, err, err_bytes);
    return r == -EMSGSIZE ? -EINVAL : r;
}

static void give_memory_back(const struct cuda_region *region) {
    if (region->fd < 0 && !region->adopted) (void)cuda_driver.cuMemFree(region->address);
    else cuda_vmm_unmap(region->address, region->bytes);
    if (region->fd >= 0) (void)close(region->fd);
}

/* The context is current. fd >= 0: what is behind it, which is then the region's. On failure nothing is left. */
static int back_region(struct cuda_device *d, struct cuda_region *region, int fd, char *err, size_t err_bytes) {
    region->adopted = fd >= 0;
    int r = fd >= 0 ? adopt_memory(d, region, fd, err, err_bytes) : new_memory(d, region, err, err_bytes);
    if (r) return r;
    if (!region->adopted) r = fill_region(d, region, err, err_bytes);
    if (!r && region->fd < 0 && !region->adopted)
        r = CUDA_CALL(err, err_bytes, cuIpcGetMemHandle, &region->handle, region->address);
    if (!r && region->bytes <= CUDA_EAGER_MIRROR_BYTES) r = cuda_mirror_new(d, region, err, err_bytes);
    if (r) give_memory_back(region);
    else if (region->adopted) region->fd = fd;
    return r;
}

/* ---- new, adopted, freed ------------------------------------------------------------------ */

static int refuse_region(struct cuda_device *d, const char *label, uint64_t bytes, int code, const char *why, char *err,
                         size_t err_bytes) {
    uint64_t left = 0;
    if (code == -ENOMEM && !cuda_free_bytes(&d->base, &left, NULL, 0))
        return refuse_with(code, err, err_bytes,
                           "region %s needs %" PRIu64 " bytes, %" PRIu64 " of %" PRIu64
                           " are free on cuda device %u: free some, or ask for less (%s)",
                           label, bytes, left, d->identity.total_bytes, d->identity.index, why);
    return refuse_with(code, err, err_bytes, "region %s of %" PRIu64 " bytes on cuda device %u: %s", label, bytes,
                       d->identity.index, why);
}

/* fd < 0: new memory. */
static int make_region(struct cuda_device *d, const char *label, uint64_t bytes, uint8_t fill, int fd,
                       struct device_region **ret_region, char *err, size_t err_bytes) {
    char why[256] = "";
    int r = cuda_check_lost(d, err, err_bytes);
    if (r) return r;
    struct cuda_region *region = calloc(1, sizeof *region);
    if (!region) return refuse_with(-ENOMEM, err, err_bytes, "no memory to describe region %s", label);
    region->base = (struct device_region){ .device = &d->base, .bytes = bytes };
    region->bytes = (bytes + GEOM_REGION_MIN - 1) / GEOM_REGION_MIN * GEOM_REGION_MIN;
    region->fill = fill;
    region->fd = -1;
    r = cuda_context_push(d->context, why, sizeof why);
    if (!r) {
        r = back_region(d, region, fd, why, sizeof why);
        cuda_context_pop();
    }
    if (r) {
        refuse_region(d, label, region->bytes, r, why, err, err_bytes);
        free(region);
        return r;
    }
    region->next = d->regions;
    d->regions = region;
    cuda_own_add(region);
    *ret_region = &region->base;
    return 0;
}

int cuda_region_new(struct device *device, const char *label, uint64_t bytes, uint8_t fill,
                    struct device_region **ret_region, char *err, size_t err_bytes) {
    return make_region(cuda_of(device), label, bytes, fill, -1, ret_region, err, err_bytes);
}

int cuda_region_adopt(struct device *device, const char *label, uint64_t bytes, int fd,
                      struct device_region **ret_region, char *err, size_t err_bytes) {
    return make_region(cuda_of(device), label, bytes, 0, fd, ret_region, err, err_bytes);
}

void cuda_region_free(struct device_region *base) {
    struct cuda_region *region = (struct cuda_region *)base;
    struct cuda_device *d = cuda_of(base->device);
    struct cuda_region **link = &d->regions;
    bool give_back = cuda_may_free(d);
    while (*link != region) link = &(*link)->next;
    *link = region->next;
    cuda_own_drop(region);
    if (!give_back) return; /* the thread may still refer to it: all of it is left to the end of the process */
    if (!cuda_context_push(d->context, NULL, 0)) {
        give_memory_back(region);
        if (region->mirror) (void)cuda_driver.cuMemFreeHost(region->mirror);
        cuda_context_pop();
    }
    free(region);
}

void *cuda_region_address(const struct device_region *region) {
    return (void *)(uintptr_t)((const struct cuda_region *)region)->address;
}

void cuda_region_export(const struct device_region *base, struct device_export *ret_export) {
    const struct cuda_region *region = (const struct cuda_region *)base;
    struct device_export e = { .kind = region->fd >= 0 ? DEVICE_EXPORT_FD : DEVICE_EXPORT_CUDA_IPC,
                               .fd = region->fd,
                               .bytes = base->bytes,
                               .owner_pid = (uint64_t)getpid(),
                               .local_address = region->address };
    _Static_assert(sizeof e.ipc_handle == sizeof region->handle, "an IPC handle has 64 bytes");
    if (region->fd < 0) memcpy(e.ipc_handle, &region->handle, sizeof e.ipc_handle);
    memcpy(e.uuid, ((const struct cuda_device *)base->device)->identity.uuid, sizeof e.uuid);
    *ret_export = e;
}
