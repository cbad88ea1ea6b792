/* SPDX-License-Identifier: Apache-2.0
 *
 * Regions of a host device. All of their memory is allocated when they are made, so that no access can fault later.
 *
 * A region is a memfd that is sealed against shrinking and growing, so that it cannot be pulled away under those who
 * map it, and against further seals. Its name, which the kernel shows to holders of the descriptor, says which device
 * and which region it is: that is what adoption checks.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "device_host_internal.h"

/* ---- regions ------------------------------------------------------------------------------ */

int host_free_bytes(struct device *device, uint64_t *ret_bytes, char *err, size_t err_bytes) {
    const struct host_device *d = host_of(device);
    (void)err, (void)err_bytes;
    *ret_bytes = d->identity.total_bytes - d->charged;
    return 0;
}

static int check_memory(const struct host_device *d, const char *label, uint64_t need, char *err, size_t err_bytes) {
    uint64_t left = d->identity.total_bytes - d->charged;
    if (need <= left) return 0;
    return refuse_with(-ENOMEM, err, err_bytes,
                       "region %s needs %" PRIu64 " bytes, %" PRIu64 " of %" PRIu64
                       " are left on host device %u: raise its memory_bytes or ask for less",
                       label, need, left, d->identity.total_bytes, d->identity.index);
}

static uint64_t whole_pages(uint64_t bytes) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

/* ---- memory behind a descriptor ----------------------------------------------------------- */

#define FD_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* "kvd-UUID-LABEL", of at most 249 bytes. */
static void fd_name(const struct host_device *d, const char *label, char name[128]) {
    char uuid[33];
    for (int i = 0; i < 16; i++) snprintf(uuid + 2 * i, 3, "%02x", d->identity.uuid[i]);
    snprintf(name, 128, "kvd-%s-%s", uuid, label);
}

static int create_fd(const struct host_device *d, const char *label, uint64_t bytes, int *ret_fd, char *err,
                     size_t err_bytes) {
    char name[128];
    fd_name(d, label, name);
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING), e = fd < 0 ? errno : 0;
    if (!e) {
        do e = posix_fallocate(fd, 0, (off_t)bytes);
        while (e == EINTR);
    }
    if (!e && (fchmod(fd, 0600) || fcntl(fd, F_ADD_SEALS, FD_SEALS))) e = errno;
    if (e) {
        if (fd >= 0) close(fd);
        return refuse_with(-e, err, err_bytes, "memory of %" PRIu64 " bytes behind a descriptor for region %s: %s",
                           bytes, label, strerror(e));
    }
    *ret_fd = fd;
    return 0;
}

/* 0 or -EINVAL: it is the memory that this device made for this label, at this size. */
static int check_fd(const struct host_device *d, const char *label, uint64_t bytes, int fd, char *err,
                    size_t err_bytes) {
    char want[160], name[128], link[64], there[256];
    struct stat object;
    if (!device_host_is_memory(fd) || fstat(fd, &object))
        return refuse_with(-EINVAL, err, err_bytes,
                           "descriptor %d for region %s is no sealed memory of a host device: it is something else", fd,
                           label);
    if ((uint64_t)object.st_size != bytes)
        return refuse_with(-EINVAL, err, err_bytes,
                           "the memory kept for region %s has %jd bytes, it needs %" PRIu64
                           ": the geometry has changed, start without it",
                           label, (intmax_t)object.st_size, bytes);
    fd_name(d, label, name);
    snprintf(want, sizeof want, "/memfd:%s (deleted)", name);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, there, sizeof there - 1);
    if (n < 0)
        return refuse_with(-EINVAL, err, err_bytes, "descriptor %d for region %s has no name in /proc: %s", fd, label,
                           strerror(errno));
    there[n] = '\0';
    if (strcmp(there, want) != 0)
        return refuse_with(-EINVAL, err, err_bytes, "descriptor %d for region %s is \"%s\", not \"%s\"", fd, label,
                           there, want);
    return 0;
}

/* ---- new, adopted, freed ------------------------------------------------------------------ */

/* The region of this memory, which it owns from here on. */
static int take_fd(struct host_device *d, const char *label, uint64_t bytes, int fd, struct host_region **ret_region,
                   char *err, size_t err_bytes) {
    struct host_region *region = calloc(1, sizeof *region);
    if (!region) return refuse_with(-ENOMEM, err, err_bytes, "no memory to describe region %s", label);
    *region = (struct host_region){
        .base = { .device = &d->base, .bytes = bytes }, .next = d->regions, .fd = fd, .charged = whole_pages(bytes)
    };
    int r = host_map_add(fd, bytes, false, &region->map);
    if (r) {
        free(region);
        return refuse_with(r, err, err_bytes, "region %s of %" PRIu64 " bytes cannot be mapped: %s", label, bytes,
                           strerror(-r));
    }
    d->regions = region;
    d->charged += region->charged;
    *ret_region = region;
    return 0;
}

int host_region_new(struct device *device, const char *label, uint64_t bytes, uint8_t fill,
                    struct device_region **ret_region, char *err, size_t err_bytes) {
    struct host_device *d = host_of(device);
    struct host_region *region;
    int fd = -1, r = host_check_lost(d, err, err_bytes);
    if (!r) r = check_memory(d, label, whole_pages(bytes), err, err_bytes);
    if (!r) r = create_fd(d, label, bytes, &fd, err, err_bytes);
    if (r) return r;
    r = take_fd(d, label, bytes, fd, &region, err, err_bytes);
    if (r) {
        close(fd);
        return r;
    }
    memset(host_map_address(region->map), fill, bytes);
    *ret_region = &region->base;
    return 0;
}

int host_region_adopt(struct device *device, const char *label, uint64_t bytes, int fd,
                      struct device_region **ret_region, char *err, size_t err_bytes) {
    struct host_device *d = host_of(device);
    struct host_region *region;
    int r = check_fd(d, label, bytes, fd, err, err_bytes);
    if (!r) r = check_memory(d, label, whole_pages(bytes), err, err_bytes);
    if (!r) r = take_fd(d, label, bytes, fd, &region, err, err_bytes);
    if (!r) *ret_region = &region->base;
    return r;
}

void host_region_free(struct device_region *base) {
    struct host_region *region = (struct host_region *)base;
    struct host_device *d = host_of(base->device);
    struct host_region **link = &d->regions;
    host_wait_batches(d); /* they, and moves, may still use it */
    host_wait_moves(d);
    while (*link != region) link = &(*link)->next;
    *link = region->next;
    d->charged -= region->charged;
    close(region->fd);
    host_map_drop(region->map);
    free(region);
}

void host_region_export(const struct device_region *base, struct device_export *ret_export) {
    const struct host_region *region = (const struct host_region *)base;
    struct device_export e = {
        .kind = DEVICE_EXPORT_FD, .fd = region->fd, .bytes = base->bytes, .owner_pid = (uint64_t)getpid()
    };
    memcpy(e.uuid, ((const struct host_device *)base->device)->identity.uuid, sizeof e.uuid);
    e.local_address = (uint64_t)(uintptr_t)host_region_address(base);
    *ret_export = e;
}
