/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages of the cold tier into the arena. The store takes extents for all that the engine is said to have; values come
 * into a buffer, batch by batch in the order of the prompt, and each is compared with what was asked for before it is
 * copied to its place; what has come without a gap is then published as one (COLD-3).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checksum.h"
#include "clock.h"
#include "cold_desk.h"
#include "core.h"
#include "crash.h"
#include "log.h"
#include "request.h"
#include "session.h"
#include "tenant.h"

/* A batch of pieces, whose objects are in the desk's operations one after the other. */
struct load_batch {
    struct store_piece piece[DESK_OPS];
    struct cold_name name[DESK_OPS]; /* of the first object of each piece */
    uint64_t checksum[DESK_OPS];
    uint32_t n, n_ops;
    uint64_t used; /* bytes of the buffer */
};

uint64_t cold_batch_bytes(void) { return sizeof(struct load_batch); }

struct load_batch *cold_batch_new(void) {
    return calloc(1, sizeof(struct load_batch));
}

/* ---- values ---- */

static void add_piece(struct cold_desk *desk, struct load_batch *batch, const struct store_piece *piece) {
    struct cold_reader *reader = desk->reader;
    struct cold_name *name = &batch->name[batch->n];
    uint64_t bytes;
    cold_name_piece(&reader->naming.layout, piece, name);
    uint32_t n = cold_objects_of(reader->service, name, &bytes);
    bytes += COLD_HEADER_BYTES;
    batch->piece[batch->n++] = *piece;
    for (uint32_t i = 0; i < n; i++, batch->used += bytes) {
        struct cold_op *op = &desk->ops[batch->n_ops++];
        struct cold_name object = *name;
        object.shard = i;
        *op = (struct cold_op){ .into = reader->buffer + batch->used, .into_bytes = bytes };
        cold_key_of(&object, op->key);
    }
}

/* Under the lock. */
static void take_pieces(struct cold_desk *desk, struct load_batch *batch, store_cont cont, uint64_t *cursor) {
    const struct cold_reader *reader = desk->reader;
    struct store_piece piece;
    batch->n = batch->n_ops = 0;
    batch->used = 0;
    while (batch->n_ops + reader->most.objects <= DESK_OPS && batch->used + reader->most.bytes <= reader->room &&
           store_fetch_next(reader->service->store, cont, cursor, &piece))
        add_piece(desk, batch, &piece);
}

static void note_wrong(struct cold_desk *desk, const struct cold_op *op, enum cold_fault fault) {
    struct cold_op gone = { .verb = COLD_DELETE };
    memcpy(gone.key, op->key, sizeof gone.key);
    pthread_mutex_lock(&desk->reader->lock);
    desk->reader->reads.wrong[fault]++;
    pthread_mutex_unlock(&desk->reader->lock);
    LOG(LOG_WARNING, "an object of the cold tier is not what was asked for (%s): it is deleted there: %s",
        cold_fault_name(fault), op->key);
    gone.deadline_ns = clock_ns() + desk->reader->service->config.cold_timeout;
    cold_engine_run(desk->engine, &gone, 1);
}

/* True: it is what was asked for. */
static bool check_object(struct cold_desk *desk, const struct cold_name *name, const struct cold_op *op,
                         uint64_t bytes) {
    bool too_long = op->outcome == COLD_REFUSED && op->got > op->into_bytes;
    if (op->outcome != COLD_DONE && !too_long) return false;
    enum cold_fault fault =
        too_long ? COLD_FAULT_LENGTH : cold_value_check(name, bytes, desk->reader->naming.secret, op->into, op->got);
    if (fault) note_wrong(desk, op, fault);
    return !fault;
}

static void place_object(const struct cold_reader *reader, const struct cold_name *name, const uint8_t *payload,
                         uint64_t bytes, uint8_t *to) {
    if (name->kind == COLD_IMAGE) memcpy(to + name->shard * bytes, payload, bytes);
    else geom_shard_scatter(cold_spec_of(reader->service, name->pool), name->shard, payload, to);
}

/* The objects of one piece to its place. Padding is zeros: nothing that was there before is published. False: one of
 * them is missing or wrong. */
static bool place_piece(struct cold_desk *desk, const struct store_piece *piece, struct cold_name name,
                        const struct cold_op *ops, uint64_t *ret_checksum) {
    uint8_t *to = desk->reader->arena + piece->copy.host;
    uint64_t bytes;
    bool right = true;
    uint32_t n = cold_objects_of(desk->reader->service, &name, &bytes);
    for (name.shard = 0; name.shard < n; name.shard++) right &= check_object(desk, &name, &ops[name.shard], bytes);
    if (!right) return false;
    memset(to, 0, piece->copy.bytes);
    for (name.shard = 0; name.shard < n; name.shard++)
        place_object(desk->reader, &name, ops[name.shard].into + COLD_HEADER_BYTES, bytes, to);
    *ret_checksum = checksum_of(to, piece->copy.bytes);
    return true;
}

/* Returns how many pieces have come, up to the first that has not. */
static uint32_t fill_batch(struct cold_desk *desk, struct load_batch *batch) {
    struct cold_reader *reader = desk->reader;
    uint64_t bytes, begin = clock_ns();
    uint32_t done = 0, at = 0;
    cold_run_ops(desk, COLD_GET, batch->n_ops, begin + reader->service->config.cold_timeout);
    CRASH_POINT("cold.load.got");
    for (; done < batch->n; done++) {
        if (!place_piece(desk, &batch->piece[done], batch->name[done], &desk->ops[at], &batch->checksum[done])) break;
        at += cold_objects_of(reader->service, &batch->name[done], &bytes);
        CRASH_POINT("cold.load.placed");
    }
    pthread_mutex_lock(&reader->lock);
    reader->reads.loaded_objects += at;
    for (uint32_t i = 0; i < at; i++) reader->reads.loaded_bytes += desk->ops[i].got;
    reader->reads.load_ns += clock_ns() - begin;
    pthread_mutex_unlock(&reader->lock);
    return done;
}

/* ---- the transaction ---- */

static void refuse_job(struct cold_job *job, const struct store_refusal *refusal) {
    job->status = status_of_store(refusal->code);
    job->short_of = short_of_store(refusal);
    store_refusal_text(refusal, job->why, sizeof job->why);
}

/* Under the lock. False: refused. */
static bool begin_load(struct cold_desk *desk, struct cold_job *job, uint32_t frontier, store_cont *ret_cont) {
    struct service *s = desk->reader->service;
    struct store_refusal refusal = { 0 };
    uint32_t pages = frontier / KVD_PAGE_TOKENS;
    const struct store_fetch want = { .root = job->want.root,
                                      .from = job->from,
                                      .first = job->want.first,
                                      .n = pages - job->want.first,
                                      .digests = (const uint8_t(*)[32])(const void *)job->digests,
                                      .tail = frontier % KVD_PAGE_TOKENS ? &job->want.tail : NULL,
                                      .retention = job->want.retention,
                                      .tag = job->uid };
    if (!store_fetch_begin(s->store, &want, ret_cont, &refusal)) return true;
    refuse_job(job, &refusal);
    return false;
}

static bool is_wanted(struct service *s, const struct cold_job *job) {
    return session_find(s, job->session) && !s->stopping && !job->cancelled;
}

/* Under the lock. True: the next batch is taken. */
static bool next_batch(struct cold_desk *desk, struct load_batch *batch, const struct cold_job *job, store_cont cont,
                       uint64_t *cursor) {
    if (!is_wanted(desk->reader->service, job)) return false;
    take_pieces(desk, batch, cont, cursor);
    return batch->n > 0;
}

static void load_pieces(struct cold_desk *desk, struct load_batch *batch, const struct cold_job *job, store_cont cont) {
    struct service *s = desk->reader->service;
    uint64_t cursor = 0;
    uint32_t done = 0;
    pthread_mutex_lock(&s->lock);
    while (next_batch(desk, batch, job, cont, &cursor)) {
        pthread_mutex_unlock(&s->lock);
        done = fill_batch(desk, batch);
        pthread_mutex_lock(&s->lock);
        for (uint32_t i = 0; i < done; i++)
            store_copied_out(s->store, batch->piece[i].copy.replica, batch->checksum[i]);
        if (done < batch->n) break;
    }
    pthread_mutex_unlock(&s->lock);
}

/* Under the lock. */
static void end_load(struct cold_desk *desk, struct cold_job *job, uint32_t frontier, store_cont cont) {
    struct service *s = desk->reader->service;
    struct store_fetched got = { { 0 }, 0 };
    struct store_refusal refusal = { 0 };
    store_set_time(s->store, clock_ns());
    if (!is_wanted(s, job)) {
        (void)store_fetch_abort(s->store, cont, &refusal);
        job->status = KVD_CANCELLED;
        snprintf(job->why, sizeof job->why,
                 "nobody waits for what was loaded any more, or kvd stops; nothing was kept");
    } else if (store_fetch_commit(s->store, cont, &got, &refusal)) {
        refuse_job(job, &refusal);
    }
    /* What did not come is not there. */
    if (got.frontier < frontier) job->found.pages = got.cont.bits ? got.frontier / KVD_PAGE_TOKENS : job->want.first;
    if (!got.cont.bits) return;
    tenant_note(s, got.cont, job->uid);
    job->found.continuation.bits = got.cont.bits;
    job->found.frontier = got.frontier;
    job->found.bytes = cold_cost_of(desk->reader, job, got.frontier);
}

static void count_load(struct cold_reader *reader, const struct cold_job *job) {
    uint32_t before = job->want.first * KVD_PAGE_TOKENS;
    pthread_mutex_lock(&reader->lock);
    reader->reads.loads++;
    reader->reads.loaded += job->found.frontier > before;
    reader->reads.loaded_tokens += job->found.frontier > before ? job->found.frontier - before : 0;
    pthread_mutex_unlock(&reader->lock);
}

void cold_load(struct cold_desk *desk, struct cold_job *job) {
    struct service *s = desk->reader->service;
    store_cont cont;
    uint32_t frontier = cold_look_up(desk, job, clock_ns() + s->config.cold_timeout);
    pthread_mutex_lock(&s->lock);
    if (frontier > job->want.first * KVD_PAGE_TOKENS && begin_load(desk, job, frontier, &cont)) {
        pthread_mutex_unlock(&s->lock);
        CRASH_POINT("cold.load.begun");
        load_pieces(desk, desk->reader->batch, job, cont);
        CRASH_POINT("cold.load.filled");
        pthread_mutex_lock(&s->lock);
        end_load(desk, job, frontier, cont);
    }
    count_load(desk->reader, job);
    cold_end_job(s, job);
    pthread_mutex_unlock(&s->lock);
}
