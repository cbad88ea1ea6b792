/* SPDX-License-Identifier: Apache-2.0
 *
 * Where continuations are: Demote, Prefetch, Drop. The first two copy between device and host, and are answered when
 * the copies are done; whoever asks again meanwhile waits for the same answer, and the copies go on without who
 * asked.
 */
#include <string.h>

#include "bundle.h"
#include "cold_tier.h"
#include "core.h"
#include "former_processes.h"
#include "requests.h"
#include "session.h"
#include "stage.h"
#include "tenant.h"
#include "transfer.h"

/* An orderly stop has chosen by value what goes to the arena: a client's choice beside it would take places and time
 * from that, and what it drops in the host is lost with the device. (Draining alone forbids nothing here: what an
 * operator demotes then is kept.) */
static bool check_stop(struct call *call) {
    if (!call->service->stopping) return true;
    call_refuse(
        call, KVD_UNAVAILABLE,
        "kvd stops, and demotes by itself what the arena has room for, the most valuable first: no %s now; ask the "
        "next instance",
        frame_type_name(call->request.type));
    return false;
}

static bool check_move(struct call *call) {
    struct service *s = call->service;
    if (!s->segment)
        call_refuse(call, KVD_FAILED_PRECONDITION,
                    "%s moves pages between device and host, and there is no host arena; set arena = in section [host]",
                    frame_type_name(call->request.type));
    else if (!check_stop(call)) return false;
    else if (transfer_lost(s->transfer))
        call_refuse(call, KVD_UNAVAILABLE, "%.300s; kvd stops", transfer_error(s->transfer));
    else if (s->n_moves >= MOVES_AT_ONCE)
        call_refuse(call, KVD_RESOURCE_EXHAUSTED,
                    "%u moves of continuations are under way, which is the limit; try again when one has ended",
                    MOVES_AT_ONCE);
    else return former_clear(call);
    return false;
}

static void begin_client_move(struct call *call, kvd_continuation continuation, enum store_place place) {
    struct service *s = call->service;
    struct store_refusal refusal = { 0 };
    enum kvd_status status;
    char why[KVD_MESSAGE_BYTES];
    store_move begun;
    if (!check_move(call) || !pending_check_slow(call)) return;
    struct pending *quick = pending_new(call), *op = quick ? pending_make_slow(s, quick) : NULL;
    if (!op) return;
    cold_tier_keep_copy(s);
    store_cont cont = tenant_change(call, continuation);
    int code = store_move_begin(s->store, cont, place, &begun, &refusal);
    if (code == STORE_E_BUSY && s->cold_copying.bits == cont.bits) {
        op->kind = PENDING_DEMOTE;
        op->demote.cont = cont;
        op->demote.to = place;
        pending_wait(s, op);
        call->parked = call->slow = true;
        return;
    }
    if (code) {
        pending_free(s, op);
        call_refuse_cont(call, &refusal, continuation);
        return;
    }
    op->kind = PENDING_MOVE;
    op->move = begun;
    s->n_moves++;
    stage_submit(s, op, (struct store_transition){ true, begun.bits }, NULL, 0, NULL);
    if (!move_advance(s, op, &status, why, sizeof why)) {
        call->parked = call->slow = true;
        return;
    }
    call->reply.u.moved = op->u.moved;
    pending_free(s, op);
    if (status == KVD_OK) return;
    call_refuse(call, status, "%s", why);
    call->short_of = op->short_of;
}

void serve_demote(struct call *call) {
    const struct kvd_demote *d = &call->request.u.demote;
    begin_client_move(call, d->continuation, d->keep_device ? STORE_PLACE_BOTH : STORE_PLACE_HOST);
}

void serve_prefetch(struct call *call) { begin_client_move(call, call->request.u.prefetch, STORE_PLACE_DEVICE); }

/* Payload of so many pages of each pool, packed. */
static uint64_t bytes_of(const struct service *s, const uint32_t *pages) {
    uint64_t bytes = 0;
    for (uint32_t p = 0; p < s->pools.n_pools; p++) bytes += pages[p] * store_get_config(s->store)->host_stride[p];
    return bytes;
}

void serve_drop(struct call *call) {
    struct service *s = call->service;
    const struct kvd_drop *d = &call->request.u.drop;
    struct store_refusal refusal = { 0 };
    struct kvd_moved *r = &call->reply.u.moved;
    if (!s->segment) {
        call_refuse(call, KVD_FAILED_PRECONDITION,
                    "DropReplica gives up one of two places of pages, and there is no host arena; set arena = in "
                    "section [host]");
        return;
    }
    if (!check_stop(call)) return;
    if (d->tier != KVD_TIER_DEVICE && d->tier != KVD_TIER_HOST) {
        call_refuse(call, KVD_INVALID_ARGUMENT, "tier %u does not exist; there are 0 device and 1 host", d->tier);
        return;
    }
    cold_tier_keep_copy(s);
    if (store_drop_replica(s->store, tenant_change(call, d->continuation), (enum kvd_tier)d->tier, r->pages,
                           &refusal)) {
        call_refuse_cont(call, &refusal, d->continuation);
        return;
    }
    r->revision = store_revision(s->store);
    r->bytes = bytes_of(s, r->pages);
}

void serve_release(struct call *call) {
    struct store_refusal refusal = { 0 };
    kvd_continuation named = call->request.u.continuation.continuation;
    if (store_release(call->service->store, tenant_change(call, named), &refusal))
        call_refuse_cont(call, &refusal, named);
    else call->reply.u.revision = store_revision(call->service->store);
}

static uint32_t count_running(const struct call *call, const struct kvd_root *meant) {
    struct service *s = call->service;
    struct kvd_sequence_info info;
    uint32_t cursor = 0, n = 0;
    while (store_next_seq(s->store, &cursor, &info)) {
        const struct bundle *b = bundle_find(s, (store_seq){ info.sequence.bits });
        n += store_root_is(&info.root, meant) && tenant_sees(s, call->session, b ? b->tenant : TENANT_UNKNOWN);
    }
    return n;
}

/* A step looks at as many continuations as a list does, so that nobody waits long for the lock. */
void serve_release_domain(struct call *call) {
    struct service *s = call->service;
    const struct kvd_domain_release *want = &call->request.u.release_domain;
    struct kvd_domain_released *r = &call->reply.u.domain_released;
    struct kvd_continuation_info info;
    struct store_refusal refusal;
    uint32_t cursor = want->cursor;
    bool more = true;
    if (store_root_is_none(&want->root.digest) && !want->root.label[0]) {
        call_refuse(call, KVD_INVALID_ARGUMENT,
                    "ReleaseDomain without a digest and a label would release everything; name the domain by either, "
                    "as ListContinuations shows it");
        return;
    }
    for (uint32_t looked = 0; looked < LIST_AT_ONCE && (more = store_next_cont(s->store, &cursor, &info)); looked++) {
        store_cont cont = store_cont_of(info.continuation);
        if (info.live || !store_root_is(&info.root, &want->root) || !tenant_sees(s, call->session, tenant_of(s, cont)))
            continue;
        bool in_use = store_release(s->store, cont, &refusal) != STORE_OK;
        r->in_use += in_use;
        r->released += !in_use;
    }
    r->next_cursor = more ? cursor : KVD_UNCHANGED;
    if (!more) r->sequences = count_running(call, &want->root);
    r->revision = store_revision(s->store);
}

void serve_shorten(struct call *call) {
    struct store_refusal refusal = { 0 };
    kvd_continuation named = call->request.u.shorten.continuation;
    if (store_shorten(call->service->store, tenant_change(call, named), call->request.u.shorten.frontier, &refusal))
        call_refuse_cont(call, &refusal, named);
    else call->reply.u.revision = store_revision(call->service->store);
}

void serve_set_retention(struct call *call) {
    struct store_refusal refusal = { 0 };
    kvd_continuation named = call->request.u.continuation.continuation;
    if (store_set_retention(call->service->store, tenant_change(call, named), call->request.u.continuation.retention,
                            &refusal))
        call_refuse_cont(call, &refusal, named);
    else call->reply.u.revision = store_revision(call->service->store);
}
