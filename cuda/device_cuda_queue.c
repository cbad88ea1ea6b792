/* SPDX-License-Identifier: Apache-2.0
 *
 * Queues of a CUDA device: submitters put items, one thread takes them. Submitting makes no driver call, so that a GPU
 * or driver that does not answer cannot hold up the submitter. A thread never waits inside the driver, so that it can
 * be ended while the GPU does not answer: it asks events, in growing intervals.
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

#define LINGER_NS 100000u      /* looking at an empty queue before sleeping: the next round is often near */
#define GIVE_UP_NS 2000000000u /* after stop, for a GPU that does not answer */
#define IDLE_SECONDS 2u
#define JOIN_SECONDS 5

uint64_t cuda_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static struct timespec after_ns(uint64_t ns) {
    uint64_t t = cuda_now_ns() + ns;
    return (struct timespec){ .tv_sec = (time_t)(t / 1000000000u), .tv_nsec = (long)(t % 1000000000u) };
}

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* ---- loss --------------------------------------------------------------------------------- */

void cuda_tell(struct cuda_device *d) {
    ssize_t n = write(d->event_fd, &(uint64_t){ 1 }, sizeof(uint64_t));
    (void)n; /* fails only when the counter is full, and then it is readable */
}

void cuda_lose(struct cuda_device *d, const char *why) {
    if (!atomic_exchange(&d->losing, true)) {
        snprintf(d->why, sizeof d->why, "%s", why);
        atomic_store_explicit(&d->lost, true, memory_order_release);
    }
    cuda_tell(d);
}

int cuda_check_lost(struct cuda_device *d, char *err, size_t err_bytes) {
    if (!atomic_load_explicit(&d->lost, memory_order_acquire)) return 0;
    return refuse_with(-EIO, err, err_bytes, "cuda device %u is lost: %s", d->identity.index, d->why);
}

/* ---- waiting for the GPU ------------------------------------------------------------------ */

/* How long to sleep before asking again: a tenth of what it has taken already, between 20 us and 1 ms. */
static uint64_t pause_ns(uint64_t taken) {
    uint64_t ns = taken / 10;
    return ns < 20000 ? 20000 : ns > 1000000 ? 1000000 : ns;
}

int cuda_pause(struct cuda_device *d, uint64_t since, uint64_t spin_ns, char *err, size_t err_bytes) {
    uint64_t now = cuda_now_ns();
    if (now - since < spin_ns) {
        relax();
        return 0;
    }
    if (atomic_load(&d->stop) && now > atomic_load(&d->stop_ns) + GIVE_UP_NS) /* stop may be later than now */
        return refuse_with(-ETIMEDOUT, err, err_bytes, "the GPU did not finish its work before the device was closed");
    struct timespec pause = { .tv_nsec = (long)pause_ns(now - since) };
    nanosleep(&pause, NULL);
    return 0;
}

int cuda_await(struct cuda_device *d, CUevent event, uint64_t spin_ns, char *err, size_t err_bytes) {
    uint64_t begin = cuda_now_ns();
    for (;;) {
        CUresult result = cuda_driver.cuEventQuery(event);
        if (result != CUDA_ERROR_NOT_READY) return cuda_result(result, CUDA_NAME(cuEventQuery), err, err_bytes);
        int r = cuda_pause(d, begin, spin_ns, err, err_bytes);
        if (r) return r;
    }
}

int cuda_drain(struct cuda_device *d, CUstream stream) {
    uint64_t begin = cuda_now_ns();
    int r = 0;
    while (!r && cuda_driver.cuStreamQuery(stream) == CUDA_ERROR_NOT_READY) r = cuda_pause(d, begin, 0, NULL, 0);
    return r;
}

/* ---- items -------------------------------------------------------------------------------- */

void cuda_queue_put(struct cuda_queue *q, struct cuda_item *item) {
    item->next = NULL;
    item->ticket = ++q->last_ticket;
    pthread_mutex_lock(&q->lock);
    *q->tail = item;
    q->tail = &item->next;
    atomic_fetch_add_explicit(&q->queued, 1, memory_order_release);
    pthread_mutex_unlock(&q->lock);
    pthread_cond_broadcast(&q->changed); /* after the unlock: the thread need not wait a second time */
}

/* With the lock held: the first item, and those that follow as long as they go along. */
static struct cuda_item *take_items(struct cuda_queue *q, bool (*goes_along)(const struct cuda_item *item)) {
    struct cuda_item *first = q->head, *last = first;
    uint32_t n = 1;
    if (!first) return NULL;
    while (goes_along && last->next && goes_along(last->next)) {
        last = last->next;
        n++;
    }
    q->head = last->next;
    if (!q->head) q->tail = &q->head;
    last->next = NULL;
    atomic_fetch_sub_explicit(&q->queued, n, memory_order_relaxed);
    q->busy = true;
    return first;
}

struct cuda_item *cuda_queue_take(struct cuda_queue *q, bool (*goes_along)(const struct cuda_item *item)) {
    struct cuda_device *d = q->device;
    uint64_t begin = cuda_now_ns();
    while (!atomic_load_explicit(&q->queued, memory_order_acquire) && !atomic_load(&d->stop) &&
           cuda_now_ns() - begin < LINGER_NS)
        relax();
    pthread_mutex_lock(&q->lock);
    q->busy = false;
    pthread_cond_broadcast(&q->changed);
    while (!q->head && !atomic_load(&d->stop)) pthread_cond_wait(&q->changed, &q->lock);
    struct cuda_item *item = take_items(q, goes_along);
    pthread_mutex_unlock(&q->lock);
    return item;
}

struct cuda_item *cuda_queue_look(struct cuda_queue *q) {
    if (!atomic_load_explicit(&q->queued, memory_order_acquire)) return NULL;
    pthread_mutex_lock(&q->lock);
    struct cuda_item *item = take_items(q, NULL);
    pthread_mutex_unlock(&q->lock);
    return item;
}

void cuda_items_free(struct cuda_item *item) {
    for (struct cuda_item *next; item; item = next) {
        next = item->next;
        free(item);
    }
}

int cuda_queue_poll(struct cuda_queue *q, uint64_t *ret_done, char *err, size_t err_bytes) {
    int r = cuda_check_lost(q->device, err, err_bytes);
    if (!r) *ret_done = atomic_load_explicit(&q->done, memory_order_acquire);
    return r;
}

/* ---- start and stop ----------------------------------------------------------------------- */

static void *queue_thread(void *argument) {
    struct cuda_queue *q = argument;
    char why[sizeof q->device->why] = "";
    prctl(PR_SET_TIMERSLACK, 1000UL);
    if (cuda_context_push(q->device->context, why, sizeof why)) cuda_lose(q->device, why);
    q->run(q);
    return NULL;
}

int cuda_queue_start(struct cuda_queue *q, struct cuda_device *d, void (*run)(struct cuda_queue *q)) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    q->device = d;
    q->run = run;
    q->tail = &q->head;
    int e = pthread_create(&q->thread, NULL, queue_thread, q);
    q->started = e == 0;
    return e;
}

/* Until nothing is queued or in work, or the device is being closed. */
static bool await_idle_queue(struct cuda_queue *q, const struct timespec *end) {
    atomic_bool *stop = &q->device->stop;
    int e = 0;
    pthread_mutex_lock(&q->lock);
    while ((q->busy || q->head) && !atomic_load(stop) && !e) e = pthread_cond_timedwait(&q->changed, &q->lock, end);
    bool idle = atomic_load(stop) || !(q->busy || q->head);
    pthread_mutex_unlock(&q->lock);
    return idle;
}

bool cuda_may_free(struct cuda_device *d) {
    if (atomic_load(&d->abandoned)) return false;
    struct timespec end = after_ns(IDLE_SECONDS * UINT64_C(1000000000));
    bool idle = await_idle_queue(&d->batches, &end);
    for (int i = 0; i < 2; i++) idle = await_idle_queue(&d->movers[i].queue, &end) && idle;
    if (!idle) cuda_lose(d, "the GPU did not finish its work before memory that it may use was given back");
    return idle;
}

/* Ends the thread; what it has not taken is dropped. False: it is inside the driver. */
static bool join_thread(struct cuda_queue *q, const struct timespec *end) {
    if (!q->started) return true;
    pthread_mutex_lock(&q->lock);
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    if (pthread_timedjoin_np(q->thread, NULL, end)) {
        pthread_detach(q->thread);
        return false;
    }
    cuda_items_free(q->head);
    q->head = NULL;
    return true;
}

bool cuda_queues_stop(struct cuda_device *d) {
    struct timespec end;
    atomic_store(&d->stop_ns, cuda_now_ns());
    atomic_store(&d->stop, true);
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += JOIN_SECONDS;
    if (!join_thread(&d->batches, &end)) atomic_store(&d->abandoned, true);
    for (int i = 0; i < 2; i++)
        if (!join_thread(&d->movers[i].queue, &end)) atomic_store(&d->abandoned, true);
    return !atomic_load(&d->abandoned);
}

void cuda_queue_fini(struct cuda_queue *q) {
    if (!q->device) return;
    pthread_cond_destroy(&q->changed);
    pthread_mutex_destroy(&q->lock);
}
