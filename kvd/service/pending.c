/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests that wait for devices. Nobody blocks for them: the batch carries the op's number, and when a device's event
 * fd says that batches are done, the op is finished here as the request itself would have been.
 */
#include <string.h>

#include "bundle.h"
#include "core.h"
#include "mover.h"
#include "pending.h"
#include "request.h"
#include "session.h"

static struct op *places_of(struct service *s, kvd_session_id session) {
    return s->ops + (size_t)(uint32_t)session.bits * OP_PLACES;
}

static struct op *take_place(struct op *places, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (!places[i].used) return &places[i];
    return NULL;
}

struct op *op_new(struct call *call) {
    struct op *op = take_place(places_of(call->service, call->request.header.session), OPS_PER_SESSION);
    if (op) {
        *op = (struct op){ .used = true,
                           .session = call->request.header.session,
                           .sequence = call->request.header.sequence,
                           .type = call->request.type,
                           .arrived_ns = call->now_ns };
        return op;
    }
    call_refuse(call, KVD_UNAVAILABLE,
                "%u requests of this session wait for the device, which is the limit; take their answers, then try "
                "again",
                OPS_PER_SESSION);
    return NULL;
}

void op_free(struct service *s, struct op *op) {
    s->n_moves -= op->kind == OP_MOVE;
    op->used = false;
}

uint32_t op_tag(const struct service *s, const struct op *op) { return (uint32_t)(op - s->ops) + 1; }

bool op_has_slow_place(struct service *s, const struct session *session) {
    struct op *places = places_of(s, session_id(s, session));
    return take_place(places + OPS_PER_SESSION, SLOW_PER_SESSION) && answer_has_slow_place(session);
}

struct op *op_make_slow(struct service *s, struct op *op) {
    struct session *session = session_find(s, op->session);
    struct op *places = places_of(s, op->session);
    if (op->slow) return op;
    struct op *slow = take_place(places + OPS_PER_SESSION, SLOW_PER_SESSION);
    if (!slow || (session && !answer_has_slow_place(session))) return NULL;
    *slow = *op;
    slow->slow = true;
    op->used = false;
    if (slow->kind == OP_ACTIVATE) s->bundles[slow->bundle].tag = op_tag(s, slow);
    if (session) answer_make_slow(s, session, slow->sequence);
    return slow;
}

void op_wait(struct service *s, struct op *op) {
    op->waits = true;
    op->next = NULL;
    *s->last_waiting = op;
    s->last_waiting = &op->next;
}

void transition_ended(struct service *s) {
    if (!s->waiting) return;
    struct op **last = &s->ready;
    while (*last) last = &(*last)->next;
    *last = s->waiting;
    s->waiting = NULL;
    s->last_waiting = &s->waiting;
    mover_kick(s->mover);
}
