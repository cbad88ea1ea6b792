/* SPDX-License-Identifier: Apache-2.0 */
#include "scrub.h"

#include <pthread.h>
#include <stdlib.h>

#include "checksum.h"
#include "clock.h"
#include "core.h"
#include "events.h"
#include "log.h"

#define SECOND UINT64_C(1000000000)
#define LEAST_SLEEP (SECOND / 100) /* small pages are read several at a time */
#define IDLE_SLEEP SECOND          /* between two rounds */

struct scrub {
    struct service *service;
    const uint8_t *arena;
    uint64_t rate, pages, bytes;
    pthread_mutex_t lock; /* of stop alone; a leaf */
    pthread_cond_t changed;
    bool stop;
    pthread_t thread;
};

/* False: stop. */
static bool pause_for(struct scrub *scrub, uint64_t ns) {
    uint64_t until = clock_ns() + ns;
    struct timespec t = { .tv_sec = (time_t)(until / SECOND), .tv_nsec = (long)(until % SECOND) };
    pthread_mutex_lock(&scrub->lock);
    int r = 0;
    while (!scrub->stop && !r) r = pthread_cond_timedwait(&scrub->changed, &scrub->lock, &t);
    bool stop = scrub->stop;
    pthread_mutex_unlock(&scrub->lock);
    return !stop;
}

void damage_found(uint32_t lost) {
    LOG(LOG_ERROR,
        "a page in the host arena does not match its checksum: its copy there is dropped, %u continuations are lost; "
        "of "
        "others the pages before it stay",
        lost);
}

/* One page, or none among those looked at. False: the end of a round. */
static bool read_one(struct scrub *scrub, uint64_t *ret_bytes) {
    struct service *s = scrub->service;
    struct store_copy copy;
    pthread_mutex_lock(&s->lock);
    bool some = store_scrub_begin(s->store, &copy);
    pthread_mutex_unlock(&s->lock);
    *ret_bytes = some ? copy.bytes : 0;
    if (!*ret_bytes) return some;
    bool right = checksum_of(scrub->arena + copy.host, copy.bytes) == copy.checksum;
    pthread_mutex_lock(&s->lock);
    uint32_t lost = 0;
    if (store_scrub_end(s->store, right, &lost)) damage_found(lost);
    events_lost(s);
    scrub->pages++;
    scrub->bytes += copy.bytes;
    pthread_mutex_unlock(&s->lock);
    if (!right) events_flush(s, NULL);
    return true;
}

/* At ordinary priority: it holds the core mutex at times, and must not be kept from giving it back. */
static void *scrub_arena(void *argument) {
    struct scrub *scrub = argument;
    uint64_t owed = 0;
    for (;;) {
        uint64_t bytes;
        if (!read_one(scrub, &bytes)) owed += IDLE_SLEEP;
        owed += (uint64_t)((double)bytes / (double)scrub->rate * (double)SECOND);
        if (owed < LEAST_SLEEP) continue;
        if (!pause_for(scrub, owed)) return NULL;
        owed = 0;
    }
}

int scrub_new(struct service *service, const uint8_t *arena, uint64_t rate, struct scrub **ret_scrub) {
    struct scrub *scrub = calloc(1, sizeof *scrub);
    pthread_condattr_t clock;
    if (!scrub) return 1;
    scrub->service = service;
    scrub->arena = arena;
    scrub->rate = rate;
    pthread_mutex_init(&scrub->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&scrub->changed, &clock);
    pthread_condattr_destroy(&clock);
    if (pthread_create(&scrub->thread, NULL, scrub_arena, scrub)) {
        free(scrub);
        return 1;
    }
    *ret_scrub = scrub;
    return 0;
}

struct scrub *scrub_free(struct scrub *scrub) {
    if (!scrub) return NULL;
    pthread_mutex_lock(&scrub->lock);
    scrub->stop = true;
    pthread_cond_signal(&scrub->changed);
    pthread_mutex_unlock(&scrub->lock);
    pthread_join(scrub->thread, NULL);
    pthread_cond_destroy(&scrub->changed);
    pthread_mutex_destroy(&scrub->lock);
    free(scrub);
    return NULL;
}

void scrub_get(const struct scrub *scrub, uint64_t *ret_pages, uint64_t *ret_bytes) {
    if (!scrub) return;
    *ret_pages = scrub->pages;
    *ret_bytes = scrub->bytes;
}
