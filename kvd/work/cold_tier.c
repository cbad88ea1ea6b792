/* SPDX-License-Identifier: Apache-2.0 */
#include "cold_tier.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "checksum.h"
#include "clock.h"
#include "cold_copy.h"
#include "cold_pieces.h"
#include "core.h"
#include "crash.h"
#include "events.h"
#include "scrub.h"

#define SECOND UINT64_C(1000000000)
#define LOOK_EVERY (SECOND / 10) /* for what was demoted */
#define COPY_LOOK (SECOND / 500) /* for the end of a copy */
#define MET_FOR (60 * SECOND)    /* what the engine has is not asked for again; nor is a flush of it noticed */
#define MET_SLOTS 65536u
#define OPS 1024u /* of a batch */

/* A page, a tail or an image in the batch. */
struct cold_item {
    uint64_t mark; /* of its name */
    uint32_t slot;
};

struct cold_tier {
    struct service *service;
    const uint8_t *arena;
    struct cold_engine *engine;
    struct cold_naming naming;
    struct cold_copy copy; /* under the core mutex, as is what the writer has in work: */
    store_cont writing;
    /* The writer's. */
    uint8_t *buffer;
    uint64_t used, room;          /* bytes of the buffer */
    struct cold_most most;        /* of one item: at most 840 objects, of the ranks that divide the heads */
    struct cold_op *ops;          /* [OPS] */
    struct cold_written *written; /* [OPS]: what they write */
    struct cold_item *items;
    uint32_t n_ops, n_items;
    struct cold_check check;
    uint64_t *met; /* [MET_SLOTS]: marks */
    uint64_t met_since, met_trips;
    pthread_mutex_t lock; /* a leaf: of what follows */
    pthread_cond_t changed;
    bool stop, check_asked;
    uint32_t check_objects;
    struct cold_stats stats;
    pthread_t thread;
};

#define TABLES                                                                                                         \
    (sizeof(struct cold_tier) +                                                                                        \
     OPS * (sizeof(struct cold_op) + sizeof(struct cold_written) + sizeof(struct cold_item)) +                         \
     COLD_CHECK_LIMIT * sizeof(struct cold_written) + MET_SLOTS * sizeof(uint64_t))

/* ---- pauses -------------------------------------------------------------------------------------- */

/* False: stop. */
static bool pause_writer(struct cold_tier *t, uint64_t ns) {
    uint64_t until = clock_ns() + ns;
    struct timespec at = { .tv_sec = (time_t)(until / SECOND), .tv_nsec = (long)(until % SECOND) };
    int r = 0;
    pthread_mutex_lock(&t->lock);
    while (!t->stop && !r) r = pthread_cond_timedwait(&t->changed, &t->lock, &at);
    bool stop = t->stop;
    pthread_mutex_unlock(&t->lock);
    return !stop;
}

static void count_up(struct cold_tier *t, uint64_t *counter, uint64_t n) {
    pthread_mutex_lock(&t->lock);
    *counter += n;
    pthread_mutex_unlock(&t->lock);
}

/* ---- what the engine has ------------------------------------------------------------------------- */

/* Two words of a digest: one chooses the slot, the other is compared. A wrong match leaves an object unwritten. */
static uint64_t mark_of(const struct cold_name *name, uint32_t *ret_slot) {
    uint64_t word[2];
    memcpy(word, name->digest, sizeof word);
    *ret_slot = (uint32_t)(word[0] % MET_SLOTS);
    return word[1] ^ (uint64_t)(name->kind * 2 + name->pool + 1) * UINT64_C(0x9E3779B97F4A7C15);
}

/* An engine that was away may have lost what it had. */
static void forget_met(struct cold_tier *t, const struct cold_engine_state *state) {
    uint64_t now = clock_ns();
    if (now - t->met_since < MET_FOR && state->trips == t->met_trips) return;
    memset(t->met, 0, MET_SLOTS * sizeof *t->met);
    t->met_since = now;
    t->met_trips = state->trips;
}

/* ---- a batch ------------------------------------------------------------------------------------- */

static void run_batch(struct cold_tier *t, enum cold_verb verb, uint32_t n) {
    const struct config *c = &t->service->config;
    uint64_t deadline = clock_ns() + c->cold_timeout;
    for (uint32_t i = 0; i < n; i++) {
        t->ops[i].verb = verb;
        t->ops[i].deadline_ns = deadline;
        t->ops[i].ttl_ms = c->cold_ttl / 1000000;
    }
    cold_engine_run(t->engine, t->ops, n);
}

/* Those that the engine lacks, first in the list. */
static uint32_t keep_absent(struct cold_tier *t, bool *ret_all) {
    uint32_t absent = 0, there = 0;
    for (uint32_t i = 0; i < t->n_ops; i++) {
        there += t->ops[i].outcome == COLD_DONE;
        *ret_all &= t->ops[i].outcome == COLD_DONE || t->ops[i].outcome == COLD_ABSENT;
        if (t->ops[i].outcome != COLD_ABSENT) continue;
        t->written[absent] = t->written[i];
        t->ops[absent++] = t->ops[i];
    }
    count_up(t, &t->stats.met_objects, there);
    return absent;
}

static uint64_t note_written(struct cold_tier *t, uint32_t n, uint32_t *ret_done) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (t->ops[i].outcome != COLD_DONE) continue;
        cold_check_note(&t->check, &t->written[i].name, t->written[i].bytes);
        bytes += t->ops[i].head_bytes + t->ops[i].value_bytes;
        ++*ret_done;
    }
    return bytes;
}

static void write_absent(struct cold_tier *t, uint32_t absent) {
    uint64_t begin = clock_ns();
    run_batch(t, COLD_SET, absent);
    CRASH_POINT("cold.write.sent");
    count_up(t, &t->stats.written_ns, clock_ns() - begin);
}

/* First it asks what is there, which lets that live on; then it writes the rest. True: the engine has all of it. */
static bool flush_batch(struct cold_tier *t) {
    uint64_t begin = clock_ns(), rate = t->service->config.cold_rate;
    uint32_t done = 0;
    bool all = true;
    if (!t->n_ops) return true;
    run_batch(t, COLD_TOUCH, t->n_ops);
    CRASH_POINT("cold.write.asked");
    uint32_t absent = keep_absent(t, &all);
    if (all && absent) write_absent(t, absent);
    uint64_t bytes = all ? note_written(t, absent, &done) : 0;
    all = all && done == absent;
    for (uint32_t i = 0; all && i < t->n_items; i++) t->met[t->items[i].slot] = t->items[i].mark;
    count_up(t, &t->stats.written_objects, done);
    count_up(t, &t->stats.written_bytes, bytes);
    t->n_ops = t->n_items = 0;
    t->used = 0;
    uint64_t took = clock_ns() - begin, due = rate ? (uint64_t)((double)bytes / (double)rate * (double)SECOND) : 0;
    return (due <= took || pause_writer(t, due - took)) && all;
}

/* ---- reading ------------------------------------------------------------------------------------- */

static void add_object(struct cold_tier *t, const struct store_piece *piece, struct cold_name *name, uint64_t bytes) {
    struct cold_op *op = &t->ops[t->n_ops];
    uint8_t *head = t->buffer + t->used, *payload = head + COLD_HEADER_BYTES;
    const uint8_t *from = t->arena + piece->copy.host;
    if (name->kind == COLD_IMAGE) memcpy(payload, from + name->shard * bytes, bytes);
    else geom_shard_gather(cold_spec_of(t->service, name->pool), name->shard, name->columns, from, payload);
    cold_value_seal(name, payload, bytes, t->naming.secret, head);
    *op = (struct cold_op){ .head = head, .head_bytes = COLD_HEADER_BYTES, .value = payload, .value_bytes = bytes };
    cold_key_of(name, op->key);
    t->written[t->n_ops++] = (struct cold_written){ *name, bytes };
    t->used += COLD_HEADER_BYTES + bytes;
}

/* Copies a piece into the batch, unless the engine is known to have it. False: its bytes do not match. */
static bool take_piece(struct cold_tier *t, const struct store_piece *piece) {
    struct cold_name name;
    uint32_t slot;
    uint64_t bytes;
    cold_name_piece(&t->naming.layout, piece, &name);
    uint64_t mark = mark_of(&name, &slot);
    if (t->met[slot] == mark) return true;
    if (checksum_of(t->arena + piece->copy.host, piece->copy.bytes) != piece->copy.checksum) return false;
    uint32_t n = cold_objects_of(t->service, &name, &bytes);
    t->items[t->n_items++] = (struct cold_item){ mark, slot };
    for (name.shard = 0; name.shard < n; name.shard++) add_object(t, piece, &name, bytes);
    return true;
}

/* The next piece of a continuation into the batch. False: there is none. */
static bool read_piece(struct cold_tier *t, store_cont cont, uint64_t *cursor) {
    struct service *s = t->service;
    struct store_piece piece;
    uint32_t lost = 0;
    pthread_mutex_lock(&s->lock);
    bool some = store_read_begin(s->store, cont, cursor, &piece);
    pthread_mutex_unlock(&s->lock);
    if (!some) return false;
    CRASH_POINT("cold.write.read");
    bool right = take_piece(t, &piece);
    pthread_mutex_lock(&s->lock);
    if (store_read_end(s->store, right, &lost)) damage_found(lost);
    events_lost(s);
    pthread_mutex_unlock(&s->lock);
    if (!right) events_flush(s, NULL);
    return true;
}

/* ---- checks -------------------------------------------------------------------------------------- */

bool cold_tier_check(struct service *s, uint32_t objects) {
    struct cold_tier *t = s->cold;
    if (!t) return false;
    pthread_mutex_lock(&t->lock);
    t->check_asked = true;
    if (objects > t->check_objects) t->check_objects = objects;
    pthread_mutex_unlock(&t->lock);
    return true;
}

static bool take_check(struct cold_tier *t, uint32_t *ret_objects) {
    pthread_mutex_lock(&t->lock);
    bool asked = t->check_asked;
    *ret_objects = t->check_objects;
    t->check_asked = false;
    t->check_objects = 0;
    pthread_mutex_unlock(&t->lock);
    return asked;
}

/* Between batches, whose buffer it uses. */
static void run_check(struct cold_tier *t) {
    const struct config *c = &t->service->config;
    const struct cold_check_means means = { t->engine, t->naming.secret, c->cold_timeout, t->buffer, t->room, t->ops,
                                            OPS };
    struct cold_checked checked;
    uint32_t objects;
    if (!take_check(t, &objects)) return;
    cold_check_run(&t->check, &means, objects, &checked);
    /* What it has lost is written again when it is demoted again. */
    if (checked.objects[COLD_CHECK_ABSENT] + checked.objects[COLD_CHECK_WRONG])
        memset(t->met, 0, MET_SLOTS * sizeof *t->met);
    pthread_mutex_lock(&t->lock);
    t->stats.checked = checked;
    t->stats.checks++;
    for (uint32_t i = 0; i < COLD_CHECK_OUTCOMES; i++) t->stats.checked_objects[i] += checked.objects[i];
    pthread_mutex_unlock(&t->lock);
}

/* ---- the writer ---------------------------------------------------------------------------------- */

static bool is_full(const struct cold_tier *t) {
    return t->room - t->used < t->most.bytes || OPS - t->n_ops < t->most.objects;
}

static bool is_stopping(struct cold_tier *t) {
    pthread_mutex_lock(&t->lock);
    bool stop = t->stop;
    pthread_mutex_unlock(&t->lock);
    return stop;
}

static void write_continuation(struct cold_tier *t, store_cont cont) {
    uint64_t cursor = 0;
    bool all = true, some = false;
    t->n_ops = t->n_items = 0;
    t->used = 0;
    for (; all && !is_stopping(t) && read_piece(t, cont, &cursor); some = true) {
        if (!is_full(t)) continue;
        all = flush_batch(t);
        run_check(t);
    }
    all = all && flush_batch(t);
    if (some) count_up(t, all ? &t->stats.continuations : &t->stats.dropped[COLD_DROP_ENGINE], 1);
}

/* ---- what is retained ---------------------------------------------------------------------------- */

#define COPY_LOOKS 100u /* while somebody uses it */

void cold_tier_retained(struct service *s, store_cont cont) {
    if (s->cold && s->config.cold_write == COLD_WRITE_RETAINED) store_note_retained(s->store, cont, true);
}

static bool is_engine_used(const struct cold_tier *t) {
    struct cold_engine_state state;
    cold_engine_get_state(t->engine, &state);
    return state.breaker == COLD_CLOSED;
}

bool cold_tier_offer(struct service *s, store_cont cont) {
    if (!s->cold || !is_engine_used(s->cold)) return false;
    store_note_retained(s->store, cont, false);
    return true;
}

bool cold_tier_is_writing(const struct service *s, store_cont cont) {
    const struct cold_tier *t = s->cold;
    return t && is_engine_used(t) && (t->writing.bits == cont.bits || store_is_noted(s->store, cont));
}

void cold_tier_keep_copy(struct service *s) {
    if (s->cold) s->cold->copy.kept = true;
}

void cold_tier_copied(struct service *s, bool done) {
    s->cold_copying = (store_cont){ 0 };
    if (s->cold) cold_copy_ended(&s->cold->copy, done);
}

static bool is_copying(struct cold_tier *t) { return cold_copy_state_of(t->service, &t->copy) == COLD_COPY_RUNNING; }

/* What is on the device alone is written from a copy in the arena. */
static void write_from_copy(struct cold_tier *t, store_cont cont) {
    enum cold_copy_state state = cold_copy_begin(t->service, &t->copy, cont);
    while (state == COLD_COPY_RUNNING && is_copying(t) && pause_writer(t, COPY_LOOK)) continue;
    if (state == COLD_COPY_RUNNING) state = cold_copy_state_of(t->service, &t->copy);
    if (state == COLD_COPY_REFUSED) count_up(t, &t->stats.dropped[COLD_DROP_ARENA], 1);
    else if (state != COLD_COPY_RUNNING) write_continuation(t, cont);
    if (state != COLD_COPY_THERE) return;
    CRASH_POINT("cold.write.copied");
    for (uint32_t i = 0; i < COPY_LOOKS && !cold_copy_give_back(t->service, &t->copy); i++)
        if (!pause_writer(t, LOOK_EVERY)) return;
}

/* ---- the writer's thread ------------------------------------------------------------------------- */

/* What was demoted last. False: nothing waits. */
static bool take_newest(struct cold_tier *t, store_cont *ret_cont, uint64_t *ret_at) {
    struct service *s = t->service;
    pthread_mutex_lock(&s->lock);
    bool some = store_take_demoted(s->store, ret_cont, ret_at);
    t->writing = some ? *ret_cont : (store_cont){ 0 };
    pthread_mutex_unlock(&s->lock);
    return some;
}

static void *write_demoted(void *argument) {
    struct cold_tier *t = argument;
    uint64_t age = t->service->config.cold_age, at;
    store_cont cont;
    while (!is_stopping(t)) {
        struct cold_engine_state state;
        cold_engine_get_state(t->engine, &state);
        forget_met(t, &state);
        run_check(t);
        if (state.breaker != COLD_CLOSED || !take_newest(t, &cont, &at)) (void)pause_writer(t, LOOK_EVERY);
        else if (at && clock_ns() > at + age) count_up(t, &t->stats.dropped[COLD_DROP_AGE], 1);
        else write_from_copy(t, cont); /* at 0: found in the arena at the start, or offered */
    }
    return NULL;
}

/* ---- life ---------------------------------------------------------------------------------------- */

static int start_writer(struct cold_tier *t) {
    pthread_condattr_t clock;
    sigset_t all, before;
    t->room = cold_room_for_values(t->service, &t->most, TABLES, 0);
    t->buffer = malloc(t->room);
    t->ops = calloc(OPS, sizeof *t->ops);
    t->written = calloc(OPS, sizeof *t->written);
    t->check.ring = calloc(COLD_CHECK_LIMIT, sizeof *t->check.ring);
    t->items = calloc(OPS, sizeof *t->items);
    t->met = calloc(MET_SLOTS, sizeof *t->met);
    pthread_mutex_init(&t->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&t->changed, &clock);
    pthread_condattr_destroy(&clock);
    if (!t->buffer || !t->ops || !t->written || !t->check.ring || !t->items || !t->met) return 1;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = pthread_create(&t->thread, NULL, write_demoted, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return r;
}

static void free_tier(struct cold_tier *t) {
    cold_engine_free(t->engine);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    free(t->met);
    free(t->items);
    free(t->check.ring);
    free(t->written);
    free(t->ops);
    free(t->buffer);
    sodium_memzero(&t->naming, sizeof t->naming);
    free(t);
}

int cold_tier_open(struct service *s, const uint8_t *arena, char *err, size_t err_bytes) {
    const struct config *c = &s->config;
    if (c->cold_address.kind == LISTEN_NONE || c->cold_write == COLD_WRITE_OFF) return 0;
    struct cold_tier *t = calloc(1, sizeof *t);
    if (!t) {
        snprintf(err, err_bytes, "no memory for the cold tier");
        return 1;
    }
    t->service = s;
    t->arena = arena;
    struct cold_engine_config config = cold_engine_config_of(c);
    if (cold_measure_pieces(s, &t->most, err, err_bytes) || cold_open_naming(s, &t->naming, err, err_bytes) ||
        cold_engine_new(&config, &t->engine, err, err_bytes)) {
        free(t);
        return 1;
    }
    if (start_writer(t)) {
        snprintf(err, err_bytes, "no memory or thread for the writer of the cold tier; lower [cold] buffer");
        free_tier(t);
        return 1;
    }
    s->cold = t;
    return 0;
}

void cold_tier_close(struct service *s) {
    struct cold_tier *t = s->cold;
    if (!t) return;
    cold_engine_stop(t->engine);
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->thread, NULL);
    s->cold = NULL;
    free_tier(t);
}

void cold_tier_stats(const struct service *s, struct cold_stats *ret_stats) {
    struct cold_tier *t = s->cold;
    *ret_stats = (struct cold_stats){ .on = false };
    if (!t) return;
    pthread_mutex_lock(&t->lock);
    *ret_stats = t->stats;
    pthread_mutex_unlock(&t->lock);
    ret_stats->on = true;
    cold_engine_get_state(t->engine, &ret_stats->engine);
    ret_stats->waiting = store_demoted_waiting(s->store, &ret_stats->dropped[COLD_DROP_QUEUE]);
}
