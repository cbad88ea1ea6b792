/* SPDX-License-Identifier: Apache-2.0
 *
 * Host backend: regions are POSIX shared memory. It is the embedded default and what the tests run on.
 *
 * Copies of up to INLINE_BYTES are done in device_submit; larger batches go to the device's thread. Once a batch is
 * queued, every later one is queued behind it, so that tickets complete in order and table writes never overtake
 * copies.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "device.h"
#include "device_backend.h"
#include "device_host_map.h"

#define INLINE_BYTES (256u << 10)
#define SHM_DIR "/dev/shm"

struct batch {
    struct batch *next;
    uint64_t ticket;
    uint32_t n_copies, n_writes;
    struct device_page_copy *copies;
    struct geom_pool_spec *specs; /* one a copy: the caller's may be gone by then */
    struct device_table_write *writes;
};

struct host_region {
    struct device_region base;
    struct host_region *next;
    struct host_map *map;
    char shm_name[64];
    uint64_t charged; /* whole pages of memory */
};

struct host_device {
    struct device base;
    struct device_identity identity;
    char prefix[48];
    mode_t mode;
    uint64_t charged;
    struct host_region *regions;
    uint64_t last_ticket; /* of the submitting thread */
    _Atomic uint64_t done;
    int event_fd;
    pthread_t thread;
    pthread_mutex_t lock;   /* the queue and stop */
    pthread_cond_t changed; /* queue became non-empty or empty, or stop */
    struct batch *head, **tail;
    bool stop;
};

static struct host_device *host(struct device *device) { return (struct host_device *)device; }

/* ---- identity ----------------------------------------------------------------------------- */

/* What names this machine: the machine id, or the host name where a container has none. */
static size_t machine_name(char *name, size_t bytes) {
    static const char *const files[] = { "/etc/machine-id", "/var/lib/dbus/machine-id" };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        int fd = open(files[i], O_RDONLY | O_CLOEXEC);
        if (fd < 0) continue;
        ssize_t n = read(fd, name, bytes);
        close(fd);
        if (n >= 32) return 32;
    }
    struct utsname system;
    if (uname(&system)) return 0;
    size_t n = strnlen(system.nodename, bytes);
    memcpy(name, system.nodename, n);
    return n;
}

/* The machine id itself is not shown (machine-id(5)): only its hash with our domain and the index is. */
static void derive_uuid(uint32_t index, uint8_t uuid[16]) {
    static const unsigned char domain[] = "kvd host device";
    char machine[64];
    size_t n = machine_name(machine, sizeof machine);
    unsigned char number[4] = { (unsigned char)index, (unsigned char)(index >> 8), (unsigned char)(index >> 16),
                                (unsigned char)(index >> 24) };
    crypto_generichash_state hash;
    crypto_generichash_init(&hash, NULL, 0, 16);
    crypto_generichash_update(&hash, domain, sizeof domain);
    crypto_generichash_update(&hash, (const unsigned char *)machine, n);
    crypto_generichash_update(&hash, number, sizeof number);
    crypto_generichash_final(&hash, uuid, 16);
    uuid[6] = (uint8_t)((uuid[6] & 0x0f) | 0x80); /* RFC 9562: version 8, custom */
    uuid[8] = (uint8_t)((uuid[8] & 0x3f) | 0x80);
}

static bool host_available(char *err, size_t err_bytes) {
    (void)err, (void)err_bytes;
    return true;
}

static void host_identify(const struct device *device, struct device_identity *ret_identity) {
    *ret_identity = ((const struct host_device *)device)->identity;
}

/* ---- regions ------------------------------------------------------------------------------ */

/* Bytes that /dev/shm can still take; what is free there may also be used up by others at any time. */
static uint64_t shm_free(void) {
    struct statvfs fs;
    if (statvfs(SHM_DIR, &fs)) return 0;
    return (uint64_t)fs.f_bavail * fs.f_frsize;
}

static int host_free_bytes(struct device *device, uint64_t *ret_bytes, char *err, size_t err_bytes) {
    const struct host_device *d = host(device);
    (void)err, (void)err_bytes;
    uint64_t left = d->identity.total_bytes - d->charged, shm = shm_free();
    *ret_bytes = left < shm ? left : shm;
    return 0;
}

static int check_space(const struct host_device *d, const char *label, uint64_t need, char *err, size_t err_bytes) {
    uint64_t left = d->identity.total_bytes - d->charged, shm = shm_free();
    if (need > left)
        return device_refuse(-ENOMEM, err, err_bytes,
                             "region %s needs %" PRIu64 " bytes, %" PRIu64 " of %" PRIu64
                             " are left on host device %u: raise its memory_bytes or ask for less",
                             label, need, left, d->identity.total_bytes, d->identity.index);
    if (need > shm)
        return device_refuse(-ENOSPC, err, err_bytes,
                             "region %s needs %" PRIu64 " bytes, %" PRIu64 " are free in " SHM_DIR
                             ": enlarge it (mount -o remount,size=...) or ask for less",
                             label, need, shm);
    return 0;
}

/* The new object at its full size with every page allocated, so that no access can fault later. -1 with err set. */
static int create_object(const struct host_device *d, const char *name, uint64_t bytes, int *ret_fd, char *err,
                         size_t err_bytes) {
    int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        int e = errno;
        return device_refuse(
            -e, err, err_bytes, "shared memory %s: %s%s", name, strerror(e),
            e == EEXIST ? ": another region has the label, or a killed owner left it (sweep the prefix)" : "");
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

static int host_region_new(struct device *device, const char *label, uint64_t bytes, uint8_t fill,
                           struct device_region **ret_region, char *err, size_t err_bytes) {
    struct host_device *d = host(device);
    uint64_t charged = whole_pages(bytes);
    int fd = -1, r = check_space(d, label, charged, err, err_bytes);
    if (r) return r;
    struct host_region *region = calloc(1, sizeof *region);
    if (!region) return device_refuse(-ENOMEM, err, err_bytes, "no memory to describe region %s", label);
    int n = snprintf(region->shm_name, sizeof region->shm_name, "%s%s", d->prefix, label);
    if (n < 0 || (size_t)n >= sizeof region->shm_name) {
        free(region);
        return device_refuse(-ENAMETOOLONG, err, err_bytes, "region name %s%s: a name has at most 63 characters",
                             d->prefix, label);
    }
    if ((r = create_object(d, region->shm_name, bytes, &fd, err, err_bytes))) {
        free(region);
        return r;
    }
    r = host_map_add(fd, bytes, false, &region->map);
    close(fd);
    if (r) {
        shm_unlink(region->shm_name);
        free(region);
        return device_refuse(r, err, err_bytes, "region %s of %" PRIu64 " bytes cannot be mapped: %s", label, bytes,
                             strerror(-r));
    }
    memset(host_map_address(region->map), fill, bytes);
    region->base = (struct device_region){ .device = device, .bytes = bytes };
    region->charged = charged;
    region->next = d->regions;
    d->regions = region;
    d->charged += charged;
    *ret_region = &region->base;
    return 0;
}

/* Queued batches may still write into a region that its owner frees. */
static void wait_idle(struct host_device *d) {
    pthread_mutex_lock(&d->lock);
    while (d->head) pthread_cond_wait(&d->changed, &d->lock);
    pthread_mutex_unlock(&d->lock);
}

static void host_region_free(struct device_region *base) {
    struct host_region *region = (struct host_region *)base;
    struct host_device *d = host(base->device);
    struct host_region **link = &d->regions;
    wait_idle(d);
    while (*link != region) link = &(*link)->next;
    *link = region->next;
    d->charged -= region->charged;
    shm_unlink(region->shm_name);
    host_map_drop(region->map);
    free(region);
}

static void *host_region_address(const struct device_region *region) {
    return host_map_address(((const struct host_region *)region)->map);
}

static void host_region_export(const struct device_region *base, struct device_export *ret_export) {
    const struct host_region *region = (const struct host_region *)base;
    struct device_export e = { .kind = DEVICE_EXPORT_SHM, .bytes = base->bytes, .owner_pid = (uint64_t)getpid() };
    memcpy(e.shm_name, region->shm_name, sizeof e.shm_name);
    memcpy(e.uuid, ((const struct host_device *)base->device)->identity.uuid, sizeof e.uuid);
    e.local_address = (uint64_t)(uintptr_t)host_region_address(base);
    *ret_export = e;
}

/* ---- batches ------------------------------------------------------------------------------ */

static uint64_t copy_bytes(const struct device_page_copy *copy) {
    return geom_rank_page_bytes(copy->spec) / KVD_PAGE_TOKENS * copy->columns;
}

/* The columns that matter, head by head: a head's tokens stand one after another in every order and arrangement. */
static void do_copy(const struct device_page_copy *copy, const struct geom_pool_spec *spec) {
    char *region = host_region_address(copy->region);
    uint32_t count = geom_plane_count(spec), slots = count / spec->n_layers;
    bool page_major = spec->order == GEOM_PAGE_MAJOR;
    if (copy->src == copy->dst) return;
    for (uint32_t i = 0; i < count; i++) {
        struct geom_plane p;
        if (geom_plane(spec, copy->n_pages, copy->rank, i / slots, (enum geom_slot)(i % slots), &p, NULL, 0)) continue;
        uint64_t page = page_major ? p.nb3 : p.nb2, head = page_major ? p.nb2 : p.nb3;
        for (uint32_t h = 0; h < p.n_heads; h++) {
            char *plane = region + p.offset + h * head;
            memcpy(plane + copy->dst * page, plane + copy->src * page, copy->columns * p.nb1);
        }
    }
}

/* Each entry is stored whole: a reader in another process sees the old id or the new one. */
static void do_write(const struct device_table_write *write) {
    _Atomic int32_t *entry = (_Atomic int32_t *)(void *)((char *)host_region_address(write->region) + write->offset);
    for (uint32_t i = 0; i < write->count; i++)
        atomic_store_explicit(&entry[i], write->values[i], memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
}

static void free_batch(struct batch *batch) {
    free(batch->copies);
    free(batch->specs);
    free(batch->writes);
    free(batch);
}

static struct batch *copy_batch(const struct device_batch *from) {
    struct batch *batch = calloc(1, sizeof *batch);
    if (!batch) return NULL;
    batch->copies = calloc(from->n_copies + 1u, sizeof *batch->copies);
    batch->specs = calloc(from->n_copies + 1u, sizeof *batch->specs);
    batch->writes = calloc(from->n_writes + 1u, sizeof *batch->writes);
    if (!batch->copies || !batch->specs || !batch->writes) {
        free_batch(batch);
        return NULL;
    }
    batch->n_copies = from->n_copies;
    batch->n_writes = from->n_writes;
    for (uint32_t i = 0; i < from->n_copies; i++) {
        batch->copies[i] = from->copies[i];
        batch->specs[i] = *from->copies[i].spec;
    }
    for (uint32_t i = 0; i < from->n_writes; i++) batch->writes[i] = from->writes[i];
    return batch;
}

static void *device_thread(void *argument) {
    struct host_device *d = argument;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        while (!d->head && !d->stop) pthread_cond_wait(&d->changed, &d->lock);
        struct batch *batch = d->head;
        if (!batch) break; /* stop, with nothing left to do */
        pthread_mutex_unlock(&d->lock);
        for (uint32_t i = 0; i < batch->n_copies; i++) do_copy(&batch->copies[i], &batch->specs[i]);
        for (uint32_t i = 0; i < batch->n_writes; i++) do_write(&batch->writes[i]);
        pthread_mutex_lock(&d->lock);
        /* Off the queue only now: until then later batches must not be done inline. */
        d->head = batch->next;
        if (!d->head) d->tail = &d->head;
        atomic_store_explicit(&d->done, batch->ticket, memory_order_release);
        pthread_cond_broadcast(&d->changed);
        ssize_t n = write(d->event_fd, &(uint64_t){ 1 }, sizeof(uint64_t));
        (void)n; /* fails only when the counter is full, and then it is readable */
        free_batch(batch);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

static bool is_small(const struct device_batch *batch) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < batch->n_copies && bytes <= INLINE_BYTES; i++) bytes += copy_bytes(&batch->copies[i]);
    return bytes <= INLINE_BYTES;
}

/* Only the submitting thread fills the queue, so an idle device stays idle until it queues something. */
static bool is_idle(const struct host_device *d) {
    return atomic_load_explicit(&d->done, memory_order_acquire) == d->last_ticket;
}

static int host_submit(struct device *device, const struct device_batch *batch, uint64_t *ret_ticket,
                       bool *ret_inline_done, char *err, size_t err_bytes) {
    struct host_device *d = host(device);
    bool inline_done = is_small(batch) && is_idle(d);
    if (inline_done) {
        for (uint32_t i = 0; i < batch->n_copies; i++) do_copy(&batch->copies[i], batch->copies[i].spec);
        for (uint32_t i = 0; i < batch->n_writes; i++) do_write(&batch->writes[i]);
        atomic_store_explicit(&d->done, ++d->last_ticket, memory_order_release);
    } else {
        struct batch *queued = copy_batch(batch);
        if (!queued)
            return device_refuse(-ENOMEM, err, err_bytes, "no memory to queue a batch of %u copies and %u table writes",
                                 batch->n_copies, batch->n_writes);
        queued->ticket = ++d->last_ticket;
        pthread_mutex_lock(&d->lock);
        *d->tail = queued;
        d->tail = &queued->next;
        pthread_cond_broadcast(&d->changed);
        pthread_mutex_unlock(&d->lock);
    }
    *ret_ticket = d->last_ticket;
    *ret_inline_done = inline_done;
    return 0;
}

static int host_poll(struct device *device, uint64_t *ret_done, char *err, size_t err_bytes) {
    (void)err, (void)err_bytes;
    *ret_done = atomic_load_explicit(&host(device)->done, memory_order_acquire);
    return 0;
}

static int host_event_fd(struct device *device) { return host(device)->event_fd; }

/* ---- open and close ----------------------------------------------------------------------- */

static int start_thread(struct host_device *d) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int e = pthread_create(&d->thread, NULL, device_thread, d);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return e;
}

static int host_open(const struct device_config *config, struct device **ret_device, char *err, size_t err_bytes) {
    const char *prefix = config->name_prefix;
    if (!prefix || prefix[0] != '/' || !prefix[1] || strchr(prefix + 1, '/'))
        return device_refuse(-EINVAL, err, err_bytes, "name prefix \"%s\" is not \"/name-\"", prefix ? prefix : "");
    if (config->memory_bytes == 0)
        return device_refuse(-EINVAL, err, err_bytes, "host device %u has memory_bytes 0: say how much it may use",
                             config->index);
    if (strlen(prefix) >= sizeof((struct host_device *)0)->prefix)
        return device_refuse(-ENAMETOOLONG, err, err_bytes, "name prefix %s: at most 47 characters", prefix);
    struct host_device *d = calloc(1, sizeof *d);
    if (!d) return device_refuse(-ENOMEM, err, err_bytes, "no memory to open host device %u", config->index);
    d->base.backend = &device_host_backend;
    d->identity =
        (struct device_identity){ .kind = DEVICE_HOST, .index = config->index, .total_bytes = config->memory_bytes };
    snprintf(d->identity.name, sizeof d->identity.name, "host memory %u", config->index);
    derive_uuid(config->index, d->identity.uuid);
    snprintf(d->prefix, sizeof d->prefix, "%s", prefix);
    d->mode = config->shm_mode ? config->shm_mode & 0777 : 0600;
    d->tail = &d->head;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, NULL);
    d->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int e = d->event_fd < 0 ? errno : start_thread(d);
    if (e) {
        if (d->event_fd >= 0) close(d->event_fd);
        pthread_cond_destroy(&d->changed);
        pthread_mutex_destroy(&d->lock);
        free(d);
        return device_refuse(-e, err, err_bytes, "host device %u has no event fd or thread: %s", config->index,
                             strerror(e));
    }
    *ret_device = &d->base;
    return 0;
}

static void host_close(struct device *device) {
    struct host_device *d = host(device);
    while (d->regions) host_region_free(&d->regions->base);
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    pthread_join(d->thread, NULL);
    close(d->event_fd);
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

const struct device_backend device_host_backend = {
    .available = host_available,
    .open = host_open,
    .close = host_close,
    .identify = host_identify,
    .free_bytes = host_free_bytes,
    .region_new = host_region_new,
    .region_free = host_region_free,
    .region_export = host_region_export,
    .region_address = host_region_address,
    .submit = host_submit,
    .poll = host_poll,
    .event_fd = host_event_fd,
    .import = host_import,
    .import_address = host_import_address,
    .unimport = host_unimport,
};

/* ---- sweep -------------------------------------------------------------------------------- */

int device_host_sweep(const char *prefix) {
    /* A bare "/" would take every object on the machine. */
    if (!prefix || prefix[0] != '/' || !prefix[1] || strchr(prefix + 1, '/')) return -EINVAL;
    DIR *dir = opendir(SHM_DIR);
    if (!dir) return -errno;
    int swept = 0;
    size_t n = strlen(prefix + 1);
    for (const struct dirent *entry; (entry = readdir(dir));) {
        char name[sizeof entry->d_name + 1];
        if (strncmp(entry->d_name, prefix + 1, n) != 0) continue;
        snprintf(name, sizeof name, "/%s", entry->d_name);
        swept += shm_unlink(name) == 0;
    }
    closedir(dir);
    return swept;
}
