/* SPDX-License-Identifier: Apache-2.0
 *
 * Round (the boundary of a whole batch) and NamePages.
 */
#include <inttypes.h>
#include <string.h>

#include "boards.h"
#include "boundary.h"
#include "bundle.h"
#include "cold_tier.h"
#include "complete.h"
#include "core.h"
#include "requests.h"
#include "session.h"
#include "tenant.h"
#include "transfer.h"

/* What a Round needs, reserved before the lock: one item, result and bundle for each item that the store is asked
 * about. */
struct round_memory {
    struct store_round_item *items;
    struct store_round_result *results;
    struct bundle **bundles;
    uint32_t *index;         /* in the request */
    struct kvd_victim *gone; /* of the item under way */
};

bool round_reserve(struct call *call) {
    uint32_t n = call->request.u.round.n;
    struct codec_arena *arena = call->scratch->arena;
    struct round_memory *memory = codec_arena_alloc(arena, sizeof *memory);
    call->memory = memory;
    call->results = codec_arena_results(arena, n);
    if (!memory || !call->results) return false;
    memory->items = codec_arena_take(arena, n * sizeof *memory->items);
    memory->results = codec_arena_take(arena, n * sizeof *memory->results);
    memory->bundles = codec_arena_take(arena, n * sizeof(struct bundle *));
    memory->index = codec_arena_take(arena, n * sizeof *memory->index);
    memory->gone = codec_arena_take(arena, KVD_MAX_GROWTH * sizeof *memory->gone);
    return memory->items && memory->results && memory->bundles && memory->index && memory->gone;
}

struct bundle *call_bundle(struct call *call, kvd_sequence sequence) {
    enum kvd_status status;
    char why[KVD_MESSAGE_BYTES];
    struct bundle *b =
        bundle_to_act(call->service, session_id(call->service, call->session), sequence, &status, why, sizeof why);
    if (!b) call_refuse(call, status, "%s", why);
    return b;
}

static uint32_t collect_items(struct call *call, struct round_memory *memory, struct kvd_round_result *results) {
    struct service *s = call->service;
    kvd_session_id me = session_id(s, call->session);
    uint32_t n = 0;
    for (uint32_t i = 0; i < call->request.u.round.n; i++) {
        const struct kvd_round_item *item = &call->request.u.round.items[i];
        enum kvd_status status;
        struct bundle *b = bundle_to_act(s, me, item->sequence, &status, results[i].message, sizeof results[i].message);
        if (b && bundle_is_frozen(b, me, results[i].message, sizeof results[i].message)) {
            status = KVD_FAILED_PRECONDITION;
            b = NULL;
        }
        if (!b) {
            results[i].status = status;
            continue;
        }
        struct store_round_item *to = &memory->items[n];
        *to = (struct store_round_item){
            .seq = b->seq, .lease = b->lease, .ask = item->ask, .state_frontier = item->state_frontier
        };
        memcpy(to->pool, item->pool, sizeof to->pool);
        memory->bundles[n] = b;
        memory->index[n++] = i;
    }
    return n;
}

/* A boundary that asks to map announces a unit of the session; one that does not says that none runs. */
static void note_launcher(struct service *s, struct bundle *b, const struct store_round_item *item, kvd_session_id me) {
    board_remove(s, b); /* what the worker wrote there was before this boundary */
    b->launcher.bits = 0;
    for (uint32_t p = 0; p < KVD_MAX_POOLS; p++)
        if (item->pool[p].ask & KVD_ROUND_ENSURE) b->launcher = me;
}

/* One after the other, each with the list that stands for it then. */
static void ask_store(struct service *s, struct round_memory *memory, uint32_t n, uint64_t ticket) {
    for (uint32_t i = 0; i < n; i++) {
        memory->items[i].ticket = ticket;
        boundary_ask(s, memory->bundles[i], &memory->items[i], memory->gone, &memory->results[i]);
    }
}

static void answer_item(struct service *s, const struct store_round_result *from, struct kvd_round_result *to) {
    if (from->refusal.code != STORE_OK) {
        to->status = (uint32_t)status_of_store(from->refusal.code);
        store_refusal_text(&from->refusal, to->message, sizeof to->message);
        return;
    }
    to->bounded = from->bounded;
    to->bounded_pool = from->bounded_pool;
    to->bounded_frontier = from->bounded_frontier;
    to->n_pools = s->pools.n_pools;
    memcpy(to->pool, from->pool, to->n_pools * sizeof to->pool[0]);
    transfer_rows(s->transfer, from->pool);
    if (from->rolled.bits) transfer_copy(s->transfer, &from->image);
}

/* Each item of the answer, and what the store was short of. */
static void count_items(struct service *s, const struct round_memory *memory, uint32_t n_asked,
                        const struct kvd_round_result *results, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) metrics_item(&s->metrics, results[i].status);
    for (uint32_t i = 0; i < n_asked; i++) {
        const struct store_refusal *refusal = &memory->results[i].refusal;
        if (status_of_store(refusal->code) == KVD_RESOURCE_EXHAUSTED)
            metrics_shortage(&s->metrics, short_of_store(refusal));
    }
}

void publish_rows(struct call *call, struct pending *op) {
    struct service *s = call->service;
    enum transfer_result result = transfer_submit(s->transfer, pending_tag(s, op));
    if (result != TRANSFER_PENDING) {
        store_rolling_copied(s->store, pending_tag(s, op), result == TRANSFER_DONE);
        if (op->boards) boards_published(s, pending_tag(s, op), result == TRANSFER_DONE);
    }
    switch (result) {
    case TRANSFER_DONE: pending_free(s, op); break;
    case TRANSFER_PENDING:
        op->kind = PENDING_PUBLISH;
        op->parts = 1;
        call->held = true;
        break;
    case TRANSFER_LOST:
        pending_free(s, op);
        call_refuse(call, KVD_UNAVAILABLE, "it was done in the store, but the device is lost: %.300s",
                    transfer_error(s->transfer));
        break;
    }
}

void serve_round(struct call *call) {
    struct service *s = call->service;
    struct round_memory *memory = call->memory;
    struct kvd_round_result *results = call->results;
    struct pending *op = pending_new(call);
    if (!op) return;
    call->reply.u.round.n = call->request.u.round.n;
    call->reply.u.round.items = results;
    uint32_t n = collect_items(call, memory, results);
    ask_store(s, memory, n, pending_tag(s, op));
    transfer_begin(s->transfer);
    for (uint32_t i = 0; i < n; i++) {
        answer_item(s, &memory->results[i], &results[memory->index[i]]);
        if (memory->results[i].refusal.code != STORE_OK) continue;
        board_follow(s, memory->bundles[i]);
        note_launcher(s, memory->bundles[i], &memory->items[i], session_id(s, call->session));
        op->boards |= board_expect(s, memory->bundles[i], memory->results[i].pool, pending_tag(s, op));
    }
    count_items(s, memory, n, results, call->request.u.round.n);
    publish_rows(call, op);
}

static_assert(sizeof(kvd_digest) == 32, "digests are passed on as they are");

/* For the reuse curve: what neither the lookup nor an earlier message had. */
static void note_uses(struct call *call, const struct bundle *b, const struct kvd_names *names) {
    uint32_t end = names->first + names->n, prompt = b->prompt_tokens / KVD_PAGE_TOKENS;
    uint32_t from = b->asked_pages > b->noted_pages ? b->asked_pages : b->noted_pages;
    if (from < names->first) from = names->first;
    if (from >= end) return;
    if (prompt > end) prompt = end;
    call->used = (struct curve_pages){ .names = names->digests + (from - names->first),
                                       .n = end - from,
                                       .counted = prompt > from ? prompt - from : 0 };
}

/* They are looked at when the answer is on its way. */
static void note_names(struct call *call, struct bundle *b, const struct kvd_names *names) {
    call->named = (struct named_pages){ .names = names->digests,
                                        .first = names->first,
                                        .n = names->n,
                                        .noted = b->noted_pages,
                                        .prompt_tokens = b->prompt_tokens,
                                        .reused_tokens = b->reused_tokens };
    note_uses(call, b, names);
    if (b->noted_pages < names->first + names->n) b->noted_pages = names->first + names->n;
}

void serve_name_pages(struct call *call) {
    struct service *s = call->service;
    const struct kvd_names *names = &call->request.u.names;
    struct store_refusal refusal = { 0 };
    struct bundle *b = call_bundle(call, names->sequence);
    if (!b) return;
    const uint8_t(*digests)[32] = (const uint8_t(*)[32])(const void *)names->digests;
    if (store_name_pages(s->store, b->seq, b->lease, names->first, names->n, digests, &refusal))
        call_refuse_store(call, &refusal);
    else note_names(call, b, names);
}

void serve_set_growth_victims(struct call *call) {
    const struct kvd_growth_victims *g = &call->request.u.growth;
    struct growth_list *list = call->growth, **stands = &call->session->growth;
    if (g->sequence.bits) {
        struct bundle *b = call_bundle(call, g->sequence);
        if (!b) return;
        stands = &b->growth;
    }
    if (list) {
        list->n = g->n_victims;
        victims_show(call, g->victims, g->n_victims, list->victims);
    }
    call->growth = *stands;
    *stands = list;
}

/* who is in the way of a checkpoint is the scheduler's choice, and what drains or is lost releases nobody. */
static bool check_recipe(struct call *call) {
    if (call->request.u.checkpoint.n_victims == 0) return true;
    if (call->session->role == KVD_ROLE_WORKER)
        call_refuse(call, KVD_PERMISSION_DENIED,
                    "a worker's Checkpoint names no victims: let the scheduler send it, or release before");
    else if (transfer_lost(call->service->transfer))
        call_refuse(call, KVD_UNAVAILABLE, "%.300s; kvd stops", transfer_error(call->service->transfer));
    else return true;
    return false;
}

void serve_checkpoint(struct call *call) {
    struct service *s = call->service;
    const struct kvd_checkpoint *c = &call->request.u.checkpoint;
    struct kvd_checkpointed *r = &call->reply.u.checkpointed;
    const struct store_checkpoint want = { .tail = &c->tail,
                                           .retention = c->retention,
                                           .victims = call->memory,
                                           .n_victims = c->n_victims,
                                           .revision = c->revision };
    struct store_checkpointed made;
    struct store_refusal refusal = { 0 };
    char why[KVD_MESSAGE_BYTES];
    const struct bundle *b = call_bundle(call, c->sequence);
    if (!b || !check_recipe(call)) return;
    struct pending *op = pending_new(call);
    if (!op) return;
    victims_show(call, c->victims, c->n_victims, call->memory);
    if (store_checkpoint_begin(s->store, b->seq, b->lease, &want, &made, &refusal)) {
        pending_free(s, op);
        victims_refuse(call, (kvd_continuation){ 0 }, c->victims, c->n_victims, &refusal);
        return;
    }
    op->n_gone = made.n_gone;
    tenant_note(s, made.cont, b->tenant);
    *r = (struct kvd_checkpointed){ .continuation.bits = made.cont.bits, .frontier = made.frontier };
    memcpy(r->shared_pages, made.shared_pages, sizeof r->shared_pages);
    if (made.is_published) { /* an equal one stands for it */
        pending_free(s, op);
        r->revision = store_revision(s->store);
        return;
    }
    transfer_begin(s->transfer);
    for (uint32_t i = 0; i < made.n_copies; i++) transfer_copy(s->transfer, &made.copies[i]);
    enum transfer_result result = transfer_submit(s->transfer, pending_tag(s, op));
    if (result == TRANSFER_PENDING) {
        op->kind = PENDING_CHECKPOINT;
        op->parts = 1;
        op->u.checkpointed = *r;
        call->parked = true;
        return;
    }
    enum kvd_status status = checkpoint_finish(s, op, result, r, why, sizeof why);
    pending_free(s, op);
    if (status != KVD_OK) call_refuse(call, status, "%s", why);
}

void serve_finish(struct call *call) {
    struct service *s = call->service;
    const struct kvd_finish *f = &call->request.u.finish;
    struct kvd_pool_view rows[KVD_MAX_POOLS] = { 0 };
    struct store_refusal refusal = { 0 };
    store_cont cont = { 0 };
    char why[KVD_MESSAGE_BYTES];
    struct bundle *b = call_bundle(call, f->sequence);
    if (!b) return;
    if (bundle_is_frozen(b, session_id(s, call->session), why, sizeof why)) {
        call_refuse(call, KVD_FAILED_PRECONDITION, "%s", why);
        return;
    }
    struct pending *op = pending_new(call);
    if (!op) return;
    if (store_finish(s->store, b->seq, b->lease, f->retain ? STORE_FINISH_RETAIN : STORE_FINISH_RELEASE, &f->tail,
                     f->retention, &cont, rows, &refusal)) {
        pending_free(s, op);
        call_refuse_store(call, &refusal);
        return;
    }
    tenant_note(s, cont, b->tenant);
    if (f->retain) cold_tier_retained(s, cont);
    bundle_free(s, b);
    call->reply.u.finished =
        (struct kvd_finished){ .continuation.bits = cont.bits, .revision = store_revision(s->store) };
    transfer_begin(s->transfer);
    transfer_rows(s->transfer, rows);
    publish_rows(call, op);
}
