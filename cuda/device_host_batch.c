/* SPDX-License-Identifier: Apache-2.0
 *
 * Batches of a host device, and what its threads have in common.
 *
 * Batches whose copies have up to HOST_INLINE_BYTES are done in device_submit; larger ones go to the device's thread.
 * Once a batch is queued, every later one is queued behind it, so that tickets complete in order and table writes never
 * overtake copies.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device_host_internal.h"

struct host_batch {
    struct host_batch *next;
    uint64_t ticket;
    uint32_t n_copies, n_writes;
    struct device_page_copy *copies;
    struct geom_pool_spec *specs; /* one a copy: the caller's may be gone by then */
    struct device_table_write *writes;
};

/* ---- for all threads of a device ---------------------------------------------------------- */

void host_tell(struct host_device *d) {
    ssize_t n = write(d->event_fd, &(uint64_t){ 1 }, sizeof(uint64_t));
    (void)n; /* fails only when the counter is full, and then it is readable */
}

int host_check_lost(struct host_device *d, char *err, size_t err_bytes) {
    if (!atomic_load_explicit(&d->lost, memory_order_acquire)) return 0;
    return refuse_with(-EIO, err, err_bytes, "host device %u is lost: %s", d->identity.index, d->why);
}

int host_thread_start(pthread_t *thread, void *(*run)(void *), void *argument) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int e = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return e;
}

/* ---- copies and writes -------------------------------------------------------------------- */

static uint64_t copy_bytes(const struct device_page_copy *copy) {
    return geom_rank_page_bytes(copy->spec) / KVD_PAGE_TOKENS * copy->columns;
}

/* The columns that matter, head by head: a head's tokens stand one after another in every order and arrangement. */
static void do_copy(const struct device_page_copy *copy, const struct geom_pool_spec *spec) {
    char *region = host_region_address(copy->region);
    uint32_t count = geom_plane_count(spec);
    if (copy->src == copy->dst) return;
    for (uint32_t i = 0; i < count; i++) {
        struct geom_plane p;
        geom_plane_at(spec, copy->n_pages, copy->rank, i, &p);
        bool page_major = p.order == GEOM_PAGE_MAJOR;
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

void host_wait_batches(struct host_device *d) {
    pthread_mutex_lock(&d->lock);
    while (d->head) pthread_cond_wait(&d->changed, &d->lock);
    pthread_mutex_unlock(&d->lock);
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

int host_submit(struct device *device, const struct device_batch *batch, uint64_t *ret_ticket, bool *ret_inline_done,
                char *err, size_t err_bytes) {
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
            return refuse_with(-ENOMEM, err, err_bytes, "no memory to queue a batch of %u copies and %u table writes",
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

int host_poll(struct device *device, uint64_t *ret_done, char *err, size_t err_bytes) {
    struct host_device *d = host_of(device);
    int r = host_check_lost(d, err, err_bytes);
    if (!r) *ret_done = atomic_load_explicit(&d->done, memory_order_acquire);
    return r;
}

/* ---- start and stop ----------------------------------------------------------------------- */

static void fini_queue(struct host_device *d) {
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
}

int host_batches_start(struct host_device *d) {
    d->tail = &d->head;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, NULL);
    int e = host_thread_start(&d->thread, batch_thread, d);
    if (e) fini_queue(d);
    return e;
}

void host_batches_stop(struct host_device *d) {
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    pthread_join(d->thread, NULL);
    fini_queue(d);
}
