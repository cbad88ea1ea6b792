/* SPDX-License-Identifier: Apache-2.0
 *
 * Moves of a host device: a queue and a thread for each direction. Moves of up to HOST_INLINE_BYTES are copied by the
 * caller where nothing is queued before them. Once moves are queued, every later one of the direction is queued behind
 * them, so that tickets complete in order.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device_host_internal.h"
#include "device_strip.h"

struct host_job {
    struct host_job *next;
    uint64_t ticket;
    struct geom_pool_spec spec;
    uint8_t *region; /* its address: a region is not freed while moves are queued */
    uint32_t n_pages, rank, n;
    struct device_move moves[];
};

static _Atomic(const struct device_host_hook *) hook;

void device_host_set_hook(const struct device_host_hook *now) { atomic_store(&hook, now); }

/* ---- copies ------------------------------------------------------------------------------- */

static void copy_strip(enum device_direction direction, uint8_t *region, const struct move_strip *s) {
    uint8_t *there = region + s->region_offset, *host = s->host;
    for (uint64_t row = 0; row < s->rows; row++, there += s->region_pitch, host += s->host_pitch)
        if (direction == DEVICE_TO_HOST) memcpy(host, there, s->width);
        else memcpy(there, host, s->width);
}

static int ask_hook(const struct host_mover *m, uint64_t ticket, enum device_host_step step) {
    const struct device_host_hook *now = atomic_load(&hook);
    return now ? now->step(now->context, m->direction, ticket, step) : 0;
}

static int copy_moves(const struct host_mover *m, uint64_t ticket, struct move_walk *walk, uint8_t *region) {
    struct move_strip strip;
    int r = 0;
    for (uint32_t i = 0; m->direction == DEVICE_TO_HOST && i < walk->n; i++)
        move_clear_padding(walk->spec, walk->moves[i].host);
    while (move_walk_next(walk, &strip) && !(r = ask_hook(m, ticket, DEVICE_HOST_BEFORE_COPY))) {
        copy_strip(m->direction, region, &strip);
        device_count_moved(&m->device->base, m->direction, 1, strip.width * strip.rows);
    }
    return r ? r : ask_hook(m, ticket, DEVICE_HOST_BEFORE_DONE);
}

/* ---- the thread --------------------------------------------------------------------------- */

/* The first to lose the device says why. */
static void lose_device(struct host_device *d, enum device_direction direction, uint64_t ticket, int code) {
    if (atomic_exchange(&d->losing, 1)) return;
    snprintf(d->why, sizeof d->why, "move %" PRIu64 " %s failed: %d", ticket,
             direction == DEVICE_TO_HOST ? "to the host" : "to the device", code);
    atomic_store_explicit(&d->lost, true, memory_order_release);
}

static void run_job(struct host_mover *m, const struct host_job *job) {
    struct host_device *d = m->device;
    struct move_walk walk;
    if (atomic_load_explicit(&d->lost, memory_order_acquire)) return;
    move_walk_begin(&walk, &job->spec, job->n_pages, job->rank, job->moves, job->n);
    int r = copy_moves(m, job->ticket, &walk, job->region);
    if (r) lose_device(d, m->direction, job->ticket, r);
    else atomic_store_explicit(&m->done, job->ticket, memory_order_release);
}

static void *mover_thread(void *argument) {
    struct host_mover *m = argument;
    pthread_mutex_lock(&m->lock);
    for (;;) {
        while (!m->head && !m->stop) pthread_cond_wait(&m->changed, &m->lock);
        struct host_job *job = m->head;
        if (!job) break; /* stop, with nothing left to do */
        pthread_mutex_unlock(&m->lock);
        run_job(m, job);
        pthread_mutex_lock(&m->lock);
        /* Off the queue only now: until then later moves must not be done inline. */
        m->head = job->next;
        if (!m->head) m->tail = &m->head;
        pthread_cond_broadcast(&m->changed);
        host_tell(m->device);
        free(job);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

static int mover_start(struct host_device *d, enum device_direction direction) {
    struct host_mover *m = &d->movers[direction];
    *m = (struct host_mover){ .device = d, .direction = direction, .tail = &m->head };
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->changed, NULL);
    int e = host_thread_start(&m->thread, mover_thread, m);
    if (e) {
        pthread_cond_destroy(&m->changed);
        pthread_mutex_destroy(&m->lock);
    }
    return e;
}

static void mover_stop(struct host_mover *m) {
    pthread_mutex_lock(&m->lock);
    m->stop = true;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
    pthread_join(m->thread, NULL);
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
}

int host_movers_start(struct host_device *d) {
    int e = mover_start(d, DEVICE_TO_HOST);
    if (e) return e;
    e = mover_start(d, HOST_TO_DEVICE);
    if (e) mover_stop(&d->movers[DEVICE_TO_HOST]);
    return e;
}

void host_movers_stop(struct host_device *d) {
    for (int i = 0; i < 2; i++) mover_stop(&d->movers[i]);
}

void host_wait_moves(struct host_device *d) {
    for (int i = 0; i < 2; i++) {
        struct host_mover *m = &d->movers[i];
        pthread_mutex_lock(&m->lock);
        while (m->head) pthread_cond_wait(&m->changed, &m->lock);
        pthread_mutex_unlock(&m->lock);
    }
}

/* ---- the interface ------------------------------------------------------------------------ */

int host_pin(struct device *device, void *address, uint64_t bytes, char *err, size_t err_bytes) {
    (void)device, (void)address, (void)bytes, (void)err, (void)err_bytes;
    return 0;
}

void host_unpin(struct device *device, void *address) {
    (void)address;
    host_wait_moves(host_of(device));
}

/* Only the submitting thread fills the queue, so an idle direction stays idle until it queues something. */
static bool is_idle(const struct host_mover *m) {
    return atomic_load_explicit(&m->done, memory_order_acquire) == m->last_ticket;
}

static bool is_small(const struct device_moves *moves) {
    return (uint64_t)moves->n * geom_rank_page_bytes(moves->spec) <= HOST_INLINE_BYTES;
}

static struct host_job *new_job(const struct device_moves *moves, uint64_t ticket) {
    size_t bytes = moves->n * sizeof *moves->moves;
    struct host_job *job = malloc(sizeof *job + bytes);
    if (!job) return NULL;
    *job = (struct host_job){ .ticket = ticket,
                              .spec = *moves->spec,
                              .region = host_region_address(moves->region),
                              .n_pages = moves->n_pages,
                              .rank = moves->rank,
                              .n = moves->n };
    if (bytes) memcpy(job->moves, moves->moves, bytes);
    return job;
}

static void append_job(struct host_mover *m, struct host_job *job) {
    pthread_mutex_lock(&m->lock);
    *m->tail = job;
    m->tail = &job->next;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
}

int host_move(struct device *device, const struct device_moves *moves, uint64_t *ret_ticket, bool *ret_inline_done,
              char *err, size_t err_bytes) {
    struct host_device *d = host_of(device);
    struct host_mover *m = &d->movers[moves->direction];
    uint64_t ticket = m->last_ticket + 1;
    int r = host_check_lost(d, err, err_bytes);
    if (r) return r;
    bool inline_done = !atomic_load(&hook) && is_small(moves) && is_idle(m);
    if (inline_done) {
        struct move_walk walk;
        move_walk_begin(&walk, moves->spec, moves->n_pages, moves->rank, moves->moves, moves->n);
        (void)copy_moves(m, ticket, &walk, host_region_address(moves->region)); /* fails by a hook only */
        atomic_store_explicit(&m->done, ticket, memory_order_release);
    } else {
        struct host_job *job = new_job(moves, ticket);
        if (!job) return refuse_with(-ENOMEM, err, err_bytes, "no memory to queue %u moves of pages", moves->n);
        append_job(m, job);
    }
    m->last_ticket = ticket;
    *ret_ticket = ticket;
    *ret_inline_done = inline_done;
    return 0;
}

int host_poll_moves(struct device *device, enum device_direction direction, uint64_t *ret_done, char *err,
                    size_t err_bytes) {
    struct host_device *d = host_of(device);
    int r = host_check_lost(d, err, err_bytes);
    if (!r) *ret_done = atomic_load_explicit(&d->movers[direction].done, memory_order_acquire);
    return r;
}
