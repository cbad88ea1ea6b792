/* SPDX-License-Identifier: Apache-2.0
 *
 * Round (the boundary of a whole batch) and NamePages.
 */
#include <inttypes.h>
#include <string.h>

#include "core.h"

/* What a Round needs, reserved before the lock: one item, result and bundle for each item that the store is asked
 * about. */
struct round_room {
    struct store_round_item *items;
    struct store_round_result *results;
    struct bundle **bundles;
    uint32_t *places; /* in the request */
};

bool round_room(struct call *call) {
    uint32_t n = call->request.u.round.n;
    struct codec_arena *arena = call->scratch->arena;
    struct round_room *room = codec_arena_alloc(arena, sizeof *room);
    call->room = room;
    call->room2 = codec_arena_results(arena, n);
    if (!room || !call->room2) return false;
    room->items = codec_arena_take(arena, n * sizeof *room->items);
    room->results = codec_arena_take(arena, n * sizeof *room->results);
    room->bundles = codec_arena_take(arena, n * sizeof(struct bundle *));
    room->places = codec_arena_take(arena, n * sizeof *room->places);
    return room->items && room->results && room->bundles && room->places;
}

/* NULL: the result says why. */
static struct bundle *item_bundle(struct call *call, const struct kvd_round_item *item,
                                  struct kvd_round_result *result) {
    struct service *s = call->service;
    struct bundle *b = bundle_find(s, (store_seq){ item->sequence.bits });
    if (!b || b->activating) {
        result->status = KVD_NOT_FOUND;
        snprintf(result->message, sizeof result->message, "sequence %016" PRIx64 " does not exist, or not any more",
                 item->sequence.bits);
    } else if (!bundle_allows(s, b, session_id(s, call->session))) {
        result->status = KVD_PERMISSION_DENIED;
        snprintf(result->message, sizeof result->message,
                 "sequence %016" PRIx64 " is neither owned by this session nor leased to it (of a group, rank 0 acts)",
                 item->sequence.bits);
    } else if (b->ending) {
        result->status = KVD_FAILED_PRECONDITION;
        snprintf(result->message, sizeof result->message,
                 "sequence %016" PRIx64
                 " is ending: its scheduler or a worker was lost, or kvd stops; workers: finish your unit and yield",
                 item->sequence.bits);
    } else {
        return b;
    }
    return NULL;
}

static uint32_t ask(struct call *call, struct round_room *room, struct kvd_round_result *results) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < call->request.u.round.n; i++) {
        const struct kvd_round_item *item = &call->request.u.round.items[i];
        struct bundle *b = item_bundle(call, item, &results[i]);
        if (!b) continue;
        struct store_round_item *to = &room->items[n];
        *to = (struct store_round_item){ .seq = b->seq, .lease = b->lease, .state_frontier = item->state_frontier };
        for (uint32_t p = 0; p < STORE_MAX_POOLS; p++)
            to->pool[p] = (struct store_round_pool){ item->pool[p].commit, item->pool[p].truncate, item->pool[p].keep,
                                                     item->pool[p].ensure };
        room->bundles[n] = b;
        room->places[n++] = i;
    }
    return n;
}
static_assert(KVD_UNCHANGED == STORE_NONE, "token fields are passed on as they are");

static void tell_bounded(struct service *s, struct bundle *b, const struct store_round_result *from) {
    if (from->bounded && !b->bounded) {
        s->metrics.bounded++;
        bundle_tell(s, b,
                    &(struct kvd_event){ .kind = KVD_EVENT_BOUNDED,
                                         .sequence.bits = b->seq.bits,
                                         .pool = from->bounded_pool,
                                         .frontier = from->bounded_frontier,
                                         .session = b->worker,
                                         .group = b->group });
    }
    b->bounded = from->bounded;
}

static void answer(struct service *s, const struct store_round_result *from, struct kvd_round_result *to) {
    if (from->refusal.code != STORE_OK) {
        to->status = (uint32_t)status_of_store(from->refusal.code);
        store_refusal_text(&from->refusal, to->message, sizeof to->message);
        return;
    }
    to->bounded = from->bounded;
    to->bounded_pool = from->bounded_pool;
    to->bounded_frontier = from->bounded_frontier;
    to->n_pools = s->pools.n_pools;
    for (uint32_t p = 0; p < to->n_pools; p++) {
        const struct store_pool_view *v = &from->pool[p];
        to->pool[p] =
            (struct kvd_pool_place){ v->row,         v->membership, v->entitlement, v->committed, v->protected_frontier,
                                     v->slice.begin, v->slice.count };
        transfer_slice(s->transfer, p, v->row, &v->slice);
    }
}

/* Each item of the answer, and what the store was short of. */
static void count(struct service *s, const struct round_room *room, uint32_t n_asked,
                  const struct kvd_round_result *results, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) metrics_item(&s->metrics, results[i].status);
    for (uint32_t i = 0; i < n_asked; i++) {
        const struct store_refusal *refusal = &room->results[i].refusal;
        if (status_of_store(refusal->code) == KVD_RESOURCE_EXHAUSTED)
            metrics_shortage(&s->metrics, short_of_store(refusal));
    }
}

void serve_round(struct call *call) {
    struct service *s = call->service;
    struct round_room *room = call->room;
    struct kvd_round_result *results = call->room2;
    struct op *op = op_new(call);
    if (!op) return;
    call->reply.u.round.n = call->request.u.round.n;
    call->reply.u.round.items = results;
    uint32_t n = ask(call, room, results);
    store_round(s->store, room->items, n, room->results);
    transfer_begin(s->transfer);
    for (uint32_t i = 0; i < n; i++) {
        answer(s, &room->results[i], &results[room->places[i]]);
        if (room->results[i].refusal.code == STORE_OK) tell_bounded(s, room->bundles[i], &room->results[i]);
    }
    count(s, room, n, results, call->request.u.round.n);
    publish(call, op);
}

static_assert(sizeof(kvd_digest) == 32, "digests are passed on as they are");

void serve_name_pages(struct call *call) {
    struct service *s = call->service;
    const struct kvd_names *names = &call->request.u.names;
    struct store_refusal refusal = { 0 };
    const struct bundle *b = call_bundle(call, names->sequence);
    if (!b) return;
    const uint8_t(*digests)[32] = (const uint8_t(*)[32])(const void *)names->digests;
    if (store_name_pages(s->store, b->seq, b->lease, names->first, names->n, digests, &refusal))
        call_refuse_store(call, &refusal);
}
