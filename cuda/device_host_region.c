/* SPDX-License-Identifier: Apache-2.0
 *
 * Regions of a host device. All of their memory is allocated when they are made, so that no access can fault later.
 *
 * With export_fd a region is a memfd that is sealed against shrinking and growing, so that it cannot be pulled away
 * under those who map it, and against further seals. Its name, which the kernel shows to holders of the descriptor,
 * says which device and which region it is: that is what adoption checks.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "device_host_internal.h"

#define SHM_DIR "/dev/shm"

/* ---- regions ------------------------------------------------------------------------------ */

/* Bytes that /dev/shm can still take; what is free there may also be used up by others at any time. */
static uint64_t shm_free(void) {
    struct statvfs fs;
    if (statvfs(SHM_DIR, &fs)) return 0;
    return (uint64_t)fs.f_bavail * fs.f_frsize;
}

/* Memory behind descriptors is not limited by the size of /dev/shm. */
int host_free_bytes(struct device *device, uint64_t *ret_bytes, char *err, size_t err_bytes) {
    const struct host_device *d = host_of(device);
    (void)err, (void)err_bytes;
    uint64_t left = d->identity.total_bytes - d->charged, shm = d->export_fd ? left : shm_free();
    *ret_bytes = left < shm ? left : shm;
    return 0;
}

static int check_memory(const struct host_device *d, const char *label, uint64_t need, char *err, size_t err_bytes) {
    uint64_t left = d->identity.total_bytes - d->charged;
    if (need <= left) return 0;
    return device_refuse(-ENOMEM, err, err_bytes,
                         "region %s needs %" PRIu64 " bytes, %" PRIu64 " of %" PRIu64
                         " are left on host device %u: raise its memory_bytes or ask for less",
                         label, need, left, d->identity.total_bytes, d->identity.index);
}

static int check_space(const struct host_device *d, const char *label, uint64_t need, char *err, size_t err_bytes) {
    uint64_t shm = d->export_fd ? need : shm_free();
    int r = check_memory(d, label, need, err, err_bytes);
    if (r || need <= shm) return r;
    return device_refuse(-ENOSPC, err, err_bytes,
                         "region %s needs %" PRIu64 " bytes, %" PRIu64 " are free in " SHM_DIR
                         ": enlarge it (mount -o remount,size=...) or ask for less",
                         label, need, shm);
}

/* The new object at its full size with every page allocated, so that no access can fault later. -1 with err set. */
static int create_object(const struct host_device *d, const char *name, uint64_t bytes, int *ret_fd, char *err,
                         size_t err_bytes) {
    int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        int e = errno;
        return device_refuse(-e, err, err_bytes, "shared memory %s: %s%s", name, strerror(e),
                             e == EEXIST
                                 ? ": another region has the label, or a killed owner left it (sweep the prefix)"
                                 : "");
    }
    int e;
    do e = posix_fallocate(fd, 0, (off_t)bytes);
    while (e == EINTR);
    if (!e && fchmod(fd, d->mode)) e = errno;
    if (e) {
        close(fd);
        shm_unlink(name);
        return device_refuse(-e, err, err_bytes,
                             "shared memory %s of %" PRIu64 " bytes: %s; " SHM_DIR " has %" PRIu64 " free", name, bytes,
                             strerror(e), shm_free());
    }
    *ret_fd = fd;
    return 0;
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
    if (!e && (fchmod(fd, d->mode) || fcntl(fd, F_ADD_SEALS, FD_SEALS))) e = errno;
    if (e) {
        if (fd >= 0) close(fd);
        return device_refuse(-e, err, err_bytes, "memory of %" PRIu64 " bytes behind a descriptor for region %s: %s",
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
        return device_refuse(-EINVAL, err, err_bytes,
                             "descriptor %d for region %s is no sealed memory of a host device: it is something else",
                             fd, label);
    if ((uint64_t)object.st_size != bytes)
        return device_refuse(-EINVAL, err, err_bytes,
                             "the memory kept for region %s has %jd bytes, it needs %" PRIu64
                             ": the geometry has changed, start without it",
                             label, (intmax_t)object.st_size, bytes);
    fd_name(d, label, name);
    snprintf(want, sizeof want, "/memfd:%s (deleted)", name);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, there, sizeof there - 1);
    if (n < 0)
        return device_refuse(-EINVAL, err, err_bytes, "descriptor %d for region %s has no name in /proc: %s", fd, label,
                             strerror(errno));
    there[n] = '\0';
    if (strcmp(there, want) != 0)
        return device_refuse(-EINVAL, err, err_bytes, "descriptor %d for region %s is \"%s\", not \"%s\"", fd, label,
                             there, want);
    return 0;
}

/* ---- new, adopted, freed ------------------------------------------------------------------ */

static struct host_region *new_region(const struct host_device *d, const char *label, uint64_t bytes, char *err,
                                      size_t err_bytes) {
    struct host_region *region = calloc(1, sizeof *region);
    if (!region) {
        device_refuse(0, err, err_bytes, "no memory to describe region %s", label);
        return NULL;
    }
    region->base = (struct device_region){ .device = (struct device *)(uintptr_t)d, .bytes = bytes };
    region->charged = whole_pages(bytes);
    region->fd = -1;
    return region;
}

static void enlist(struct host_device *d, struct host_region *region) {
    region->next = d->regions;
    d->regions = region;
    d->charged += region->charged;
}

static int map_failed(int code, const char *label, uint64_t bytes, char *err, size_t err_bytes) {
    return device_refuse(code, err, err_bytes, "region %s of %" PRIu64 " bytes cannot be mapped: %s", label, bytes,
                         strerror(-code));
}

/* The region's memory, mapped. On failure nothing is left. */
static int back_region(const struct host_device *d, struct host_region *region, const char *label, char *err,
                       size_t err_bytes) {
    uint64_t bytes = region->base.bytes;
    int fd = -1, n = snprintf(region->shm_name, sizeof region->shm_name, "%s%s", d->prefix, label);
    if (n < 0 || (size_t)n >= sizeof region->shm_name)
        return device_refuse(-ENAMETOOLONG, err, err_bytes, "region name %s%s: a name has at most 63 characters",
                             d->prefix, label);
    int r = d->export_fd ? create_fd(d, label, bytes, &fd, err, err_bytes)
                         : create_object(d, region->shm_name, bytes, &fd, err, err_bytes);
    if (r) return r;
    r = host_map_add(fd, bytes, false, &region->map);
    if (r && !d->export_fd) shm_unlink(region->shm_name);
    if (r || !d->export_fd) close(fd);
    else region->fd = fd;
    return r ? map_failed(r, label, bytes, err, err_bytes) : 0;
}

int host_region_new(struct device *device, const char *label, uint64_t bytes, uint8_t fill,
                    struct device_region **ret_region, char *err, size_t err_bytes) {
    struct host_device *d = host_of(device);
    int r = host_check_lost(d, err, err_bytes);
    if (!r) r = check_space(d, label, whole_pages(bytes), err, err_bytes);
    if (r) return r;
    struct host_region *region = new_region(d, label, bytes, err, err_bytes);
    if (!region) return -ENOMEM;
    r = back_region(d, region, label, err, err_bytes);
    if (r) {
        free(region);
        return r;
    }
    memset(host_map_address(region->map), fill, bytes);
    enlist(d, region);
    *ret_region = &region->base;
    return 0;
}

int host_region_adopt(struct device *device, const char *label, uint64_t bytes, int fd,
                      struct device_region **ret_region, char *err, size_t err_bytes) {
    struct host_device *d = host_of(device);
    int r = check_fd(d, label, bytes, fd, err, err_bytes);
    if (!r) r = check_memory(d, label, whole_pages(bytes), err, err_bytes);
    if (r) return r;
    struct host_region *region = new_region(d, label, bytes, err, err_bytes);
    if (!region) return -ENOMEM;
    r = host_map_add(fd, bytes, false, &region->map);
    if (r) {
        free(region);
        return map_failed(r, label, bytes, err, err_bytes);
    }
    region->fd = fd;
    enlist(d, region);
    *ret_region = &region->base;
    return 0;
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
    if (region->fd >= 0) close(region->fd);
    else shm_unlink(region->shm_name);
    host_map_drop(region->map);
    free(region);
}

void host_region_export(const struct device_region *base, struct device_export *ret_export) {
    const struct host_region *region = (const struct host_region *)base;
    struct device_export e = { .kind = region->fd >= 0 ? DEVICE_EXPORT_FD : DEVICE_EXPORT_SHM,
                               .fd = region->fd,
                               .bytes = base->bytes,
                               .owner_pid = (uint64_t)getpid() };
    if (region->fd < 0) memcpy(e.shm_name, region->shm_name, sizeof e.shm_name);
    memcpy(e.uuid, ((const struct host_device *)base->device)->identity.uuid, sizeof e.uuid);
    e.local_address = (uint64_t)(uintptr_t)host_region_address(base);
    *ret_export = e;
}
