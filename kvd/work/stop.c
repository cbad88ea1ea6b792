/* SPDX-License-Identifier: Apache-2.0
 *
 * Orderly stop (CONT-3): what the devices hold goes with the daemon unless it is demoted before. Sequences become
 * inactive at their committed frontiers as their drivers yield or are gone; those whose drivers stay are left after a
 * quarter of the time. Then continuations are demoted, a few at a time, the most valuable first. Where the arena has no
 * place for one, those of less value that lie there are released, the least valuable first (KEEP-2), and written to the
 * cold tier before, where there is one. The directory
 * holds at every moment, so that a kill loses nothing but what was still to be copied.
 */
#include "stop.h"

#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "cold_tier.h"
#include "core.h"
#include "events.h"
#include "host_tier.h"
#include "mutant.h"
#include "stage.h"
#include "transfer.h"

#define TRIES 256u /* continuations looked at in one step */

struct candidate {
    store_cont cont;
    uint32_t retention;
    uint64_t used;
    bool exposed;        /* something of it is on the device alone */
    bool offered;        /* to the cold tier */
    uint64_t host_bytes; /* of its replicas in the arena */
};

struct stop {
    enum { ENDING, LISTING, DEMOTING, OVER } phase;
    uint64_t begun_ns;
    struct candidate *list; /* the most valuable first */
    uint32_t n, at, end;    /* those from `at` on are to be demoted; those before `end` may give way */
    uint64_t host_bytes;    /* of [at, end) */
    uint32_t exposed;       /* of [at, n) */
    uint32_t moving, demoted, failed, not_fitting, released;
};

void stop_free(struct service *s) {
    if (s->stop) free(s->stop->list);
    free(s->stop);
    s->stop = NULL;
}

void stop_moved(struct service *s, bool done) {
    if (!s->stop) return;
    s->stop->moving--;
    s->stop->demoted += done;
    s->stop->failed += !done;
}

void service_stop_begin(struct service *s) {
    struct stop *stop = calloc(1, sizeof *stop);
    pthread_mutex_lock(&s->lock);
    bool told = s->stopping;
    s->stopping = true;
    s->stop = stop;
    /* In memory that outlives this process sequences go on until the next one takes over: nobody is waited for. */
    bool end = s->config.arena_bytes && !s->pools.id;
    if (stop) {
        stop->phase = end ? ENDING : LISTING;
        stop->begun_ns = clock_ns();
    }
    for (uint32_t i = 0; end && i < s->config.max_concurrency; i++)
        if (s->bundles[i].used) bundle_end(s, &s->bundles[i]);
    if (end) bundles_update_all(s);
    /* Marked first, then told, also after a Drain: who yields at once yields what it drives, and nobody is told twice.
     */
    if (!told) events_add(s, &(struct kvd_event){ .kind = KVD_EVENT_DRAINING }, NULL, NULL);
    pthread_mutex_unlock(&s->lock);
    events_flush(s, NULL);
}

/* ---- what to demote ------------------------------------------------------------------------- */

static bool is_exposed(const struct service *s, const struct kvd_continuation_info *info) {
    for (uint32_t p = 0; p < s->pools.n_pools; p++)
        if (info->host_pages[p] < info->pages[p]) return true;
    return info->image_on_device && !info->image_in_host;
}

static uint64_t host_bytes_of(const struct service *s, const struct kvd_continuation_info *info) {
    const struct store_config *config = store_get_config(s->store);
    uint64_t bytes = info->image_in_host ? config->host_state_stride : 0;
    for (uint32_t p = 0; p < s->pools.n_pools; p++) bytes += info->host_pages[p] * config->host_stride[p];
    return bytes;
}

static void add_candidate(const struct service *s, struct stop *stop, const struct kvd_continuation_info *info) {
    const struct candidate one = { .cont = store_cont_of(info->continuation),
                                   .retention = info->retention,
                                   .used = info->used,
                                   .exposed = is_exposed(s, info),
                                   .host_bytes = host_bytes_of(s, info) };
    stop->exposed += one.exposed;
    stop->host_bytes += one.host_bytes;
    stop->list[stop->n++] = one;
}

static int by_value(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    return store_compare_value(y->retention, y->used, x->retention, x->used);
}

/* Without the lock, which it takes for some at a time. Activations are refused, so that few can change. */
static void make_list(struct service *s, struct stop *stop) {
    struct kvd_continuation_info info;
    uint32_t cursor = 0, room = store_get_config(s->store)->max_continuations;
    bool more = true;
    stop->list = calloc(room, sizeof *stop->list);
    while (stop->list && more) {
        pthread_mutex_lock(&s->lock);
        for (uint32_t i = 0; i < 64 && (more = stop->n < room && store_next_cont(s->store, &cursor, &info)); i++)
            if (!info.live) add_candidate(s, stop, &info);
        pthread_mutex_unlock(&s->lock);
    }
    if (stop->n) qsort(stop->list, stop->n, sizeof *stop->list, by_value);
    stop->end = stop->n;
}

/* ---- demoting ---------------------------------------------------------------------------------- */

static struct pending *free_stop_op(struct service *s) {
    struct pending *ops = s->ops + (size_t)s->config.sessions * PENDING_SLOTS;
    for (uint32_t i = 0; i < STOP_MOVES; i++)
        if (!ops[i].used) return &ops[i];
    return NULL;
}

static void begin_move(struct service *s, struct pending *op, store_move move) {
    enum kvd_status status;
    char why[KVD_MESSAGE_BYTES];
    *op = (struct pending){ .used = true, .slow = true, .kind = PENDING_MOVE, .move = move, .arrived_ns = clock_ns() };
    s->n_moves++;
    s->stop->moving++;
    stage_submit(s, op, (struct store_transition){ true, move.bits }, NULL, 0, NULL);
    if (!move_advance(s, op, &status, why, sizeof why)) return;
    pending_free(s, op);
    stop_moved(s, status == KVD_OK);
}

static bool time_is_over(const struct service *s, const struct stop *stop, uint64_t part) {
    return clock_ns() - stop->begun_ns >= s->config.stop_time / part;
}

/* What the arena cannot keep is written to the cold tier first, as long as there is an engine that takes it, in half of
 * the time. */
static bool waits_for_cold(struct service *s, const struct stop *stop, struct candidate *c) {
    if (time_is_over(s, stop, 2)) return false;
    if (!c->offered) c->offered = cold_tier_offer(s, c->cont);
    return c->offered && cold_tier_is_writing(s, c->cont);
}

enum given { GIVEN_NOTHING, GIVEN_LATER, GIVEN_SOME };

/* Releases the least valuable one in the arena, where that and what lies between may give `lacking` bytes. (What shares
 * pages counts more than once: then one may go in vain.) Device memory that outlives this process needs no place. */
static enum given release_last(struct service *s, struct stop *stop, uint64_t lacking) {
    if (MUTANT(arena_keeps_the_coldest)) return GIVEN_NOTHING;
    if (s->pools.id || lacking > stop->host_bytes - stop->list[stop->at].host_bytes) return GIVEN_NOTHING;
    while (stop->end > stop->at + 1) {
        if (waits_for_cold(s, stop, &stop->list[stop->end - 1])) return GIVEN_LATER;
        struct candidate *last = &stop->list[--stop->end];
        stop->host_bytes -= last->host_bytes;
        if (!last->host_bytes || store_release(s->store, last->cont, NULL)) continue;
        stop->released++;
        return GIVEN_SOME;
    }
    return GIVEN_NOTHING;
}

static void pass_candidate(struct stop *stop) {
    const struct candidate *passed = &stop->list[stop->at++];
    stop->exposed -= passed->exposed;
    if (stop->at <= stop->end) stop->host_bytes -= passed->host_bytes;
}

/* Under the lock. False: not now. */
static bool demote_next(struct service *s, struct stop *stop) {
    struct store_refusal refusal = { 0 };
    struct pending *op = free_stop_op(s);
    store_move move;
    while (stop->at < stop->n && !stop->list[stop->at].exposed) pass_candidate(stop);
    if (!op || stop->at == stop->n) return false;
    /* Memory that outlives this process keeps its pages: the arena has copies of them for the case that it does not. */
    enum store_place to = s->pools.id ? STORE_PLACE_BOTH : STORE_PLACE_HOST;
    int code = store_move_begin(s->store, stop->list[stop->at].cont, to, &move, &refusal);
    /* There are as many moves as there may be, or it is under way for a client: until one of those has ended. */
    if ((code == STORE_E_SHORT || code == STORE_E_BUSY) && refusal.subject == STORE_S_MOVE && s->n_moves) return false;
    if (code == STORE_E_SHORT && refusal.subject == STORE_S_ARENA) {
        enum given given = release_last(s, stop, refusal.asked - refusal.had);
        if (given != GIVEN_NOTHING) return given == GIVEN_SOME;
    }
    pass_candidate(stop);
    if (!code) begin_move(s, op, move);
    else if (code == STORE_E_SHORT) stop->not_fitting++; /* a smaller one may still find a place */
    else if (code != STORE_E_STALE) stop->failed++;
    return true;
}

static void tell_progress(const struct service *s, const struct stop *stop, struct service_stop *ret_stop) {
    struct host_stats host;
    host_tier_stats(s, &host);
    *ret_stop = (struct service_stop){ .over = stop->phase == OVER,
                                       .sequences = s->n_bundles,
                                       .demoted = stop->demoted,
                                       .left = stop->exposed + stop->moving + stop->failed,
                                       .not_fitting = stop->not_fitting,
                                       .released = stop->released,
                                       .pages_left = host.mover.pages_left };
}

void service_stop_step(struct service *s, struct service_stop *ret_stop) {
    struct stop *stop = s->stop; /* set and freed by this thread */
    if (!stop) {
        *ret_stop = (struct service_stop){ .over = true };
        return;
    }
    if (stop->phase == ENDING) {
        pthread_mutex_lock(&s->lock);
        bool ended = !s->n_bundles || time_is_over(s, stop, 4);
        pthread_mutex_unlock(&s->lock);
        if (ended) stop->phase = LISTING;
    }
    if (stop->phase == LISTING) {
        make_list(s, stop);
        stop->phase = s->config.arena_bytes ? DEMOTING : OVER; /* without an arena they are counted only */
    }
    pthread_mutex_lock(&s->lock);
    if (stop->phase == DEMOTING) {
        for (uint32_t i = 0; i < TRIES && demote_next(s, stop); i++) continue;
        if ((stop->at == stop->n && !s->n_moves) || time_is_over(s, stop, 1) || transfer_lost(s->transfer))
            stop->phase = OVER;
    }
    tell_progress(s, stop, ret_stop);
    pthread_mutex_unlock(&s->lock);
}
