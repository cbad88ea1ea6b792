/* SPDX-License-Identifier: Apache-2.0 */
#include "checksum.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xxh_x86dispatch.h> /* the widest vectors of this CPU: three times the rate of the baseline */
#else
#include <xxhash.h>
#endif

#define MAX_THREADS 64u
#define NORMAL_TURN 4u /* one in so many is a normal batch, where both wait */

struct list {
    struct checksum_batch *first, **last;
};

struct checksum {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct list urgent, normal, done;
    struct checksum_batch *open; /* of which pages are handed out: all threads work on one, so that it is done soon */
    uint32_t turn;
    bool stop;
    int event_fd;
    uint32_t n_threads;
    pthread_t thread[MAX_THREADS];
};

static void list_clear(struct list *list) {
    list->first = NULL;
    list->last = &list->first;
}

static void list_add(struct list *list, struct checksum_batch *batch) {
    batch->next = NULL;
    *list->last = batch;
    list->last = &batch->next;
}

static struct checksum_batch *list_take(struct list *list) {
    struct checksum_batch *batch = list->first;
    if (!batch) return NULL;
    list->first = batch->next;
    if (!list->first) list->last = &list->first;
    return batch;
}

/* What is urgent, mostly: its stream may never end. */
static struct checksum_batch *take_next(struct checksum *c) {
    bool normal = c->normal.first && (!c->urgent.first || ++c->turn % NORMAL_TURN == 0);
    return list_take(normal ? &c->normal : &c->urgent);
}

uint64_t checksum_of(const uint8_t *at, uint64_t bytes) { return XXH3_64bits(at, bytes); }

void checksum_kick(struct checksum *c) {
    ssize_t n = write(c->event_fd, &(uint64_t){ 1 }, sizeof(uint64_t));
    (void)n; /* fails only when the counter is full, and then it is readable */
}

static void *sum_pages(void *argument) {
    struct checksum *c = argument;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (!c->open && !c->urgent.first && !c->normal.first && !c->stop) pthread_cond_wait(&c->changed, &c->lock);
        if (c->stop) break;
        struct checksum_batch *batch = c->open ? c->open : take_next(c);
        uint32_t i = batch->taken++;
        c->open = batch->taken < batch->n ? batch : NULL;
        pthread_mutex_unlock(&c->lock);
        batch->page[i].sum = checksum_of(batch->page[i].at, batch->page[i].bytes);
        pthread_mutex_lock(&c->lock);
        if (++batch->summed < batch->n) continue;
        list_add(&c->done, batch);
        checksum_kick(c);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

uint32_t checksum_threads(uint32_t devices) {
    long cpus = sysconf(_SC_NPROCESSORS_ONLN) / 2, most = 8L * devices; /* a link of 55 GB/s wants about seven */
    return cpus < 1 ? 1 : (uint32_t)(cpus > most ? most : cpus);
}

int checksum_new(uint32_t threads, struct checksum **ret_checksum) {
    struct checksum *c = calloc(1, sizeof *c);
    if (!c) return 1;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    list_clear(&c->urgent);
    list_clear(&c->normal);
    list_clear(&c->done);
    c->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    while (c->event_fd >= 0 && c->n_threads < threads && c->n_threads < MAX_THREADS &&
           !pthread_create(&c->thread[c->n_threads], NULL, sum_pages, c))
        c->n_threads++;
    if (!c->n_threads) {
        checksum_free(c);
        return 1;
    }
    *ret_checksum = c;
    return 0;
}

struct checksum *checksum_free(struct checksum *c) {
    if (!c) return NULL;
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    for (uint32_t i = 0; i < c->n_threads; i++) pthread_join(c->thread[i], NULL);
    if (c->event_fd >= 0) close(c->event_fd);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c);
    return NULL;
}

void checksum_submit(struct checksum *c, struct checksum_batch *batch, bool urgent) {
    batch->taken = batch->summed = 0;
    pthread_mutex_lock(&c->lock);
    list_add(urgent ? &c->urgent : &c->normal, batch);
    if (batch->n > 1) pthread_cond_broadcast(&c->changed);
    else pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

struct checksum_batch *checksum_collect(struct checksum *c) {
    pthread_mutex_lock(&c->lock);
    struct checksum_batch *batch = list_take(&c->done);
    pthread_mutex_unlock(&c->lock);
    return batch;
}

int checksum_event_fd(const struct checksum *c) { return c->event_fd; }
