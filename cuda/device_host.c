/* SPDX-License-Identifier: Apache-2.0
 *
 * Host backend: device memory is shared memory. It is the embedded default and what the tests run on. See
 * device_host_internal.h for the files.
 *
 * Copies of up to HOST_INLINE_BYTES are done in device_submit; larger batches go to the device's thread. Once a batch
 * is queued, every later one is queued behind it, so that tickets complete in order and table writes never overtake
 * copies.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "device_host_internal.h"

#define SHM_DIR "/dev/shm"

struct host_batch {
    struct host_batch *next;
    uint64_t ticket;
    uint32_t n_copies, n_writes;
    struct device_page_copy *copies;
    struct geom_pool_spec *specs; /* one a copy: the caller's may be gone by then */
    struct device_table_write *writes;
};

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

static void free_batch(struct host_batch *batch) {
    free(batch->copies);
    free(batch->specs);
    free(batch->writes);
    free(batch);
}

static struct host_batch *copy_batch(const struct device_batch *from) {
    struct host_batch *batch = calloc(1, sizeof *batch);
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

void host_tell(struct host_device *d) {
    ssize_t n = write(d->event_fd, &(uint64_t){ 1 }, sizeof(uint64_t));
    (void)n; /* fails only when the counter is full, and then it is readable */
}

void host_wait_batches(struct host_device *d) {
    pthread_mutex_lock(&d->lock);
    while (d->head) pthread_cond_wait(&d->changed, &d->lock);
    pthread_mutex_unlock(&d->lock);
}

int host_check_lost(struct host_device *d, char *err, size_t err_bytes) {
    if (!atomic_load_explicit(&d->lost, memory_order_acquire)) return 0;
    return device_refuse(-EIO, err, err_bytes, "host device %u is lost: %s", d->identity.index, d->why);
}

static void *batch_thread(void *argument) {
    struct host_device *d = argument;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        while (!d->head && !d->stop) pthread_cond_wait(&d->changed, &d->lock);
        struct host_batch *batch = d->head;
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
        host_tell(d);
        free_batch(batch);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

static bool is_small(const struct device_batch *batch) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < batch->n_copies && bytes <= HOST_INLINE_BYTES; i++) bytes += copy_bytes(&batch->copies[i]);
    return bytes <= HOST_INLINE_BYTES;
}

/* Only the submitting thread fills the queue, so an idle device stays idle until it queues something. */
static bool is_idle(const struct host_device *d) {
    return atomic_load_explicit(&d->done, memory_order_acquire) == d->last_ticket;
}

static int host_submit(struct device *device, const struct device_batch *batch, uint64_t *ret_ticket,
                       bool *ret_inline_done, char *err, size_t err_bytes) {
    struct host_device *d = host_of(device);
    int r = host_check_lost(d, err, err_bytes);
    if (r) return r;
    bool inline_done = is_small(batch) && is_idle(d);
    if (inline_done) {
        for (uint32_t i = 0; i < batch->n_copies; i++) do_copy(&batch->copies[i], batch->copies[i].spec);
        for (uint32_t i = 0; i < batch->n_writes; i++) do_write(&batch->writes[i]);
        atomic_store_explicit(&d->done, ++d->last_ticket, memory_order_release);
    } else {
        struct host_batch *queued = copy_batch(batch);
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
    struct host_device *d = host_of(device);
    int r = host_check_lost(d, err, err_bytes);
    if (!r) *ret_done = atomic_load_explicit(&d->done, memory_order_acquire);
    return r;
}

static int host_event_fd(struct device *device) { return host_of(device)->event_fd; }

/* ---- open and close ----------------------------------------------------------------------- */

int host_thread_start(pthread_t *thread, void *(*run)(void *), void *argument) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int e = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return e;
}

static void stop_batches(struct host_device *d) {
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    pthread_join(d->thread, NULL);
}

static int start_threads(struct host_device *d) {
    int e = host_thread_start(&d->thread, batch_thread, d);
    if (e) return e;
    e = host_movers_start(d);
    if (e) stop_batches(d);
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
    d->export_fd = config->export_fd;
    d->tail = &d->head;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, NULL);
    d->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int e = d->event_fd < 0 ? errno : start_threads(d);
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
    struct host_device *d = host_of(device);
    while (d->regions) host_region_free(&d->regions->base);
    stop_batches(d);
    host_movers_stop(d);
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
    .region_adopt = host_region_adopt,
    .region_free = host_region_free,
    .region_export = host_region_export,
    .region_address = host_region_address,
    .submit = host_submit,
    .poll = host_poll,
    .event_fd = host_event_fd,
    .pin = host_pin,
    .unpin = host_unpin,
    .move = host_move,
    .poll_moves = host_poll_moves,
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
