/* SPDX-License-Identifier: Apache-2.0 */
#include "cold_reader.h"

#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "cold_desk.h"
#include "core.h"
#include "pending.h"

#define FINDER_LANES 1u /* one pipeline a node: questions come one after the other */
#define LANE_OBJECTS 2u /* a reply is in the buffer of its connection, and then on its own */

struct cold_job *cold_job_new(const struct kvd_cold_want *want, bool load, size_t more) {
    size_t bytes = (sizeof(struct cold_job) + want->n * sizeof(kvd_digest) + 15) & ~(size_t)15;
    struct cold_job *job = calloc(1, bytes + more);
    if (!job) return NULL;
    job->load = load;
    job->more = (uint8_t *)job + bytes;
    job->want = *want;
    job->want.digests = NULL; /* those of the message go with it */
    if (want->n) memcpy(job->digests, want->digests, want->n * sizeof job->digests[0]);
    return job;
}

/* ---- desks --------------------------------------------------------------------------------------- */

/* NULL: stop. */
static struct cold_job *next_job(struct cold_desk *desk) {
    struct cold_reader *reader = desk->reader;
    pthread_mutex_lock(&reader->lock);
    while (!reader->stop && !desk->first) pthread_cond_wait(&desk->asked, &reader->lock);
    struct cold_job *job = reader->stop ? NULL : desk->first;
    if (job) {
        desk->first = job->next;
        if (!desk->first) desk->last = &desk->first;
    }
    pthread_mutex_unlock(&reader->lock);
    return job;
}

static void *work_at(void *argument) {
    struct cold_desk *desk = argument;
    for (struct cold_job *job; (job = next_job(desk));) {
        if (job->load) cold_load(desk, job);
        else cold_find(desk, job);
    }
    return NULL;
}

void cold_reader_ask(struct service *s, struct cold_job *job, struct pending *op) {
    struct cold_reader *reader = s->cold_reader;
    struct cold_desk *desk = job->load ? &reader->loader : &reader->finder;
    op->kind = PENDING_COLD;
    op->cold = job;
    job->tag = pending_tag(s, op);
    job->next = NULL;
    pthread_mutex_lock(&reader->lock);
    *desk->last = job;
    desk->last = &job->next;
    pthread_cond_signal(&desk->asked);
    pthread_mutex_unlock(&reader->lock);
}

void cold_reader_stats(const struct service *s, struct cold_reads *ret_reads) {
    struct cold_reader *reader = s->cold_reader;
    memset(ret_reads, 0, sizeof *ret_reads);
    if (!reader) return;
    pthread_mutex_lock(&reader->lock);
    *ret_reads = reader->reads;
    pthread_mutex_unlock(&reader->lock);
    cold_engine_get_state(reader->finder.engine, &ret_reads->finder);
    cold_engine_get_state(reader->loader.engine, &ret_reads->loader);
}

/* ---- life ---------------------------------------------------------------------------------------- */

static int open_desk(struct cold_reader *reader, struct cold_desk *desk, uint32_t lanes, char *err, size_t err_bytes) {
    struct cold_engine_config config = cold_engine_config_of(&reader->service->config);
    sigset_t all, before;
    config.lanes = lanes;
    desk->reader = reader;
    desk->last = &desk->first;
    pthread_cond_init(&desk->asked, NULL);
    desk->ops = calloc(DESK_OPS, sizeof *desk->ops);
    if (cold_engine_new(&config, &desk->engine, err, err_bytes)) return 1;
    sigfillset(&all); /* no signal is theirs */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    desk->runs = desk->ops && !pthread_create(&desk->thread, NULL, work_at, desk);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (desk->runs) return 0;
    snprintf(err, err_bytes, "no memory or thread for the reader of the cold tier");
    return 1;
}

static void close_desk(struct cold_desk *desk) {
    if (!desk->reader) return;
    if (desk->engine) cold_engine_stop(desk->engine);
    if (desk->runs) pthread_join(desk->thread, NULL);
    cold_engine_free(desk->engine);
    pthread_cond_destroy(&desk->asked);
    free(desk->ops);
}

static void stop_reader(struct cold_reader *reader) {
    pthread_mutex_lock(&reader->lock);
    reader->stop = true;
    if (reader->finder.reader) pthread_cond_signal(&reader->finder.asked);
    if (reader->loader.reader) pthread_cond_signal(&reader->loader.asked);
    pthread_mutex_unlock(&reader->lock);
}

static void free_reader(struct cold_reader *reader) {
    stop_reader(reader);
    close_desk(&reader->finder);
    close_desk(&reader->loader);
    pthread_mutex_destroy(&reader->lock);
    sodium_memzero(&reader->naming, sizeof reader->naming);
    free(reader->buffer);
    free(reader->batch);
    free(reader->absent);
    free(reader);
}

static int take_buffer(struct cold_reader *reader, char *err, size_t err_bytes) {
    struct service *s = reader->service;
    uint64_t tables = sizeof *reader + 2 * DESK_OPS * sizeof(struct cold_op) + cold_batch_bytes() +
                      COLD_ABSENT_SLOTS * sizeof(struct cold_absent);
    if (cold_measure_pieces(s, &reader->most, err, err_bytes)) return 1;
    reader->room = cold_room_for_values(s, &reader->most, tables, LANE_OBJECTS);
    reader->buffer = malloc(reader->room);
    return !reader->buffer;
}

int cold_reader_open(struct service *s, uint8_t *arena, char *err, size_t err_bytes) {
    if (s->config.cold_address.kind == LISTEN_NONE) return 0;
    struct cold_reader *reader = calloc(1, sizeof *reader);
    snprintf(err, err_bytes, "no memory for the reader of the cold tier; lower [cold] buffer");
    if (!reader) return 1;
    reader->service = s;
    reader->arena = arena;
    reader->batch = cold_batch_new();
    reader->absent = calloc(COLD_ABSENT_SLOTS, sizeof *reader->absent);
    pthread_mutex_init(&reader->lock, NULL);
    if (!reader->batch || !reader->absent || take_buffer(reader, err, err_bytes) ||
        cold_open_naming(s, &reader->naming, err, err_bytes) ||
        open_desk(reader, &reader->finder, FINDER_LANES, err, err_bytes) ||
        open_desk(reader, &reader->loader, s->config.cold_connections, err, err_bytes)) {
        free_reader(reader);
        return 1;
    }
    s->cold_reader = reader;
    return 0;
}

/* A job that is done or is not begun is its operation's. */
void cold_reader_close(struct service *s) {
    struct cold_reader *reader = s->cold_reader;
    if (!reader) return;
    free_reader(reader);
    s->cold_reader = NULL;
    for (size_t i = 0; i < (size_t)s->config.sessions * PENDING_SLOTS; i++)
        if (s->ops[i].used && s->ops[i].kind == PENDING_COLD) free(s->ops[i].cold);
}
