/* SPDX-License-Identifier: Apache-2.0
 *
 * Batches of a CUDA device. Submit copies a batch into the queue and makes no driver call, so that a GPU or driver that
 * does not answer cannot hold up the submitter. The device's thread takes batches in order, a group at a time: one
 * batch, and the following ones as long as they copy no pages, which lets a publication share the completion of those
 * before it and never wait for the copies of a later one. One group is in flight at a time, so that mirrors and bounce
 * buffer are never changed under a copy engine.
 *
 * Completion: the thread asks the event for a little while without sleeping (a publication takes about 10 us), then in
 * growing intervals. It never waits inside the driver, so that it can be ended while the GPU does not answer.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "device_cuda_internal.h"

#define SPIN_NS 200000u       /* asking an event without a pause */
#define LINGER_NS 100000u     /* looking at an empty queue before sleeping: the next round is often near */
#define GIVE_UP_NS 2000000000 /* after stop, for a GPU that does not answer */
#define JOIN_SECONDS 5

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static struct timespec after_ns(uint64_t ns) {
    uint64_t t = now_ns() + ns;
    return (struct timespec) { .tv_sec = (time_t)(t / 1000000000u), .tv_nsec = (long)(t % 1000000000u) };
}

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* ---- submit ------------------------------------------------------------------------------- */

static struct cuda_batch *batch_copy(const struct device_batch *from) {
    size_t values = 0;
    for (uint32_t i = 0; i < from->n_writes; i++) values += from->writes[i].count;
    size_t copies_bytes = from->n_copies * sizeof(struct cuda_copy),
           writes_bytes = from->n_writes * sizeof(struct cuda_write);
    struct cuda_batch *b = malloc(sizeof *b + copies_bytes + writes_bytes + values * sizeof(int32_t));
    if (!b) return NULL;
    *b = (struct cuda_batch) { .n_copies = from->n_copies, .n_writes = from->n_writes, .copies = (void *)(b + 1) };
    b->writes = (void *)(b->copies + from->n_copies);
    int32_t *at = (void *)(b->writes + from->n_writes);
    for (uint32_t i = 0; i < from->n_copies; i++) {
        const struct device_page_copy *c = &from->copies[i];
        b->copies[i] = (struct cuda_copy) { .spec = *c->spec,
                                            .region = (struct cuda_region *)c->region,
                                            .n_pages = c->n_pages,
                                            .rank = c->rank,
                                            .src = c->src,
                                            .dst = c->dst };
    }
    for (uint32_t i = 0; i < from->n_writes; i++) {
        const struct device_table_write *w = &from->writes[i];
        b->writes[i] = (struct cuda_write) {
            .region = (struct cuda_region *)w->region, .offset = w->offset, .count = w->count, .values = at
        };
        if (w->count) memcpy(at, w->values, w->count * sizeof *at);
        at += w->count;
    }
    return b;
}

static int lost_error(const struct cuda_device *d, char *err, size_t err_bytes) {
    return device_refuse(-EIO, err, err_bytes, "cuda device %u is lost: %s", d->identity.index, d->why);
}

int cuda_submit(struct device *device, const struct device_batch *batch, uint64_t *ret_ticket, bool *ret_inline_done,
                char *err, size_t err_bytes) {
    struct cuda_device *d = cuda_of(device);
    if (atomic_load_explicit(&d->lost, memory_order_acquire)) return lost_error(d, err, err_bytes);
    struct cuda_batch *b = batch_copy(batch);
    if (!b)
        return device_refuse(-ENOMEM, err, err_bytes, "no memory to queue a batch of %u copies and %u table writes",
                             batch->n_copies, batch->n_writes);
    b->ticket = ++d->last_ticket;
    *ret_ticket = b->ticket;
    *ret_inline_done = false;
    pthread_mutex_lock(&d->lock);
    *d->tail = b;
    d->tail = &b->next;
    atomic_fetch_add_explicit(&d->queued, 1, memory_order_release);
    pthread_mutex_unlock(&d->lock);
    pthread_cond_broadcast(&d->changed); /* after the unlock: the thread need not wait a second time */
    return 0;
}

int cuda_poll(struct device *device, uint64_t *ret_done, char *err, size_t err_bytes) {
    struct cuda_device *d = cuda_of(device);
    if (atomic_load_explicit(&d->lost, memory_order_acquire)) return lost_error(d, err, err_bytes);
    *ret_done = atomic_load_explicit(&d->done, memory_order_acquire);
    return 0;
}

/* ---- the thread --------------------------------------------------------------------------- */

static void tell(struct cuda_device *d) {
    ssize_t n = write(d->event_fd, &(uint64_t) { 1 }, sizeof(uint64_t));
    (void)n; /* fails only when the counter is full, and then it is readable */
}

static void lose(struct cuda_device *d, const char *why) {
    snprintf(d->why, sizeof d->why, "%s", why);
    atomic_store_explicit(&d->lost, true, memory_order_release);
    tell(d);
}

static void free_batches(struct cuda_batch *b) {
    for (struct cuda_batch *next; b; b = next) {
        next = b->next;
        free(b);
    }
}

/* Puts a group on the stream: the copies of its first batch, then all writes. */
static int enqueue(struct cuda_device *d, const struct cuda_batch *group, char *err, size_t err_bytes) {
    size_t n_windows = 0;
    int r = 0;
    for (const struct cuda_batch *b = group; b; b = b->next) {
        for (uint32_t i = 0; !r && i < b->n_copies; i++) r = cuda_enqueue_copy(d, &b->copies[i], err, err_bytes);
        for (uint32_t i = 0; !r && i < b->n_writes; i++) {
            if (!b->writes[i].count) continue;
            r = cuda_apply_write(d, &b->writes[i], n_windows, err, err_bytes);
            n_windows += !r;
        }
    }
    if (!r) r = cuda_enqueue_windows(d, n_windows, err, err_bytes);
    if (!r) r = CUDA_CALL(err, err_bytes, cuEventRecord, d->event, d->stream);
    return r;
}

/* How long to sleep before asking again: a tenth of what it has taken already, between 20 us and 1 ms. */
static uint64_t pause_ns(uint64_t taken) {
    uint64_t ns = taken / 10;
    return ns < 20000 ? 20000 : ns > 1000000 ? 1000000 : ns;
}

static bool give_up(struct cuda_device *d, uint64_t now) {
    return atomic_load(&d->stop) && now - atomic_load(&d->stop_ns) > GIVE_UP_NS;
}

static int await(struct cuda_device *d, char *err, size_t err_bytes) {
    uint64_t begin = now_ns();
    for (;;) {
        CUresult result = cuda_driver.cuEventQuery(d->event);
        if (result != CUDA_ERROR_NOT_READY) return cuda_result(result, CUDA_NAME(cuEventQuery), err, err_bytes);
        uint64_t now = now_ns();
        if (now - begin < SPIN_NS) {
            relax();
            continue;
        }
        if (give_up(d, now))
            return device_refuse(-ETIMEDOUT, err, err_bytes,
                                 "the GPU did not finish its work before the device was closed");
        struct timespec pause = { .tv_nsec = (long)pause_ns(now - begin) };
        nanosleep(&pause, NULL);
    }
}

/* The next group, or NULL to stop. */
static struct cuda_batch *take_group(struct cuda_device *d) {
    uint64_t begin = now_ns();
    while (!atomic_load_explicit(&d->queued, memory_order_acquire) && !atomic_load(&d->stop) &&
           now_ns() - begin < LINGER_NS)
        relax();
    pthread_mutex_lock(&d->lock);
    d->busy = false;
    pthread_cond_broadcast(&d->changed);
    while (!d->head && !atomic_load(&d->stop)) pthread_cond_wait(&d->changed, &d->lock);
    struct cuda_batch *group = d->head, *last = group;
    if (group) {
        uint32_t n = 1;
        while (last->next && !last->next->n_copies) {
            last = last->next;
            n++;
        }
        d->head = last->next;
        if (!d->head) d->tail = &d->head;
        last->next = NULL;
        atomic_fetch_sub_explicit(&d->queued, n, memory_order_relaxed);
        d->busy = true;
    }
    pthread_mutex_unlock(&d->lock);
    return group;
}

static uint64_t last_ticket(const struct cuda_batch *group) {
    while (group->next) group = group->next;
    return group->ticket;
}

static void *device_thread(void *argument) {
    struct cuda_device *d = argument;
    char why[sizeof d->why] = "";
    prctl(PR_SET_TIMERSLACK, 1000UL);
    int r = cuda_context_push(d->context, why, sizeof why);
    if (r) lose(d, why);
    for (struct cuda_batch *group; (group = take_group(d));) {
        if (!r) {
            r = enqueue(d, group, why, sizeof why);
            if (!r) r = await(d, why, sizeof why);
            if (r) lose(d, why);
        }
        if (!r) {
            atomic_store_explicit(&d->done, last_ticket(group), memory_order_release);
            tell(d);
        }
        free_batches(group);
        if (r == -ETIMEDOUT) {
            d->abandoned = true; /* seen after the join */
            break;
        }
    }
    return NULL;
}

/* ---- start and stop ----------------------------------------------------------------------- */

int cuda_queue_start(struct cuda_device *d) { return pthread_create(&d->thread, NULL, device_thread, d); }

bool cuda_queue_settle(struct cuda_device *d, unsigned seconds) {
    struct timespec end = after_ns(seconds * UINT64_C(1000000000));
    int e = 0;
    pthread_mutex_lock(&d->lock);
    while ((d->busy || d->head) && !atomic_load(&d->stop) && !e)
        e = pthread_cond_timedwait(&d->changed, &d->lock, &end);
    bool settled = atomic_load(&d->stop) || !(d->busy || d->head);
    pthread_mutex_unlock(&d->lock);
    return settled;
}

bool cuda_queue_stop(struct cuda_device *d) {
    struct timespec end;
    pthread_mutex_lock(&d->lock);
    atomic_store(&d->stop_ns, now_ns());
    atomic_store(&d->stop, true);
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += JOIN_SECONDS;
    if (pthread_timedjoin_np(d->thread, NULL, &end)) {
        pthread_detach(d->thread); /* it is inside the driver */
        d->abandoned = true;
        return false;
    }
    free_batches(d->head);
    d->head = NULL;
    return !d->abandoned;
}
