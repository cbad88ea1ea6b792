/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests that wait for devices. Nobody blocks for them: the batch carries the operation's tag, and when a
 * device's event fd says that batches are done, the operation is finished here as the request itself would have been.
 */
#include <string.h>

#include "bundle.h"
#include "core.h"
#include "mover.h"
#include "pending.h"
#include "remainder.h"
#include "request.h"
#include "session.h"

static struct pending *slots_of(struct service *s, kvd_session_id session) {
    return s->ops + (size_t)(uint32_t)session.bits * PENDING_SLOTS;
}

static struct pending *take_slot(struct pending *slots, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (!slots[i].used) return &slots[i];
    return NULL;
}

struct pending *pending_new(struct call *call) {
    struct pending *op = take_slot(slots_of(call->service, call->request.header.session), PENDING_PER_SESSION);
    if (op) {
        *op = (struct pending){ .used = true,
                                .session = call->request.header.session,
                                .sequence = call->request.header.sequence,
                                .type = call->request.type,
                                .arrived_ns = call->now_ns };
        return op;
    }
    call_refuse(call, KVD_UNAVAILABLE,
                "%u requests of this session wait for the device, which is the limit; take their answers, then try "
                "again",
                PENDING_PER_SESSION);
    return NULL;
}

struct pending *pending_for_board(struct service *s, kvd_session_id session) {
    struct pending *op = slots_of(s, session) + PENDING_SLOTS - 1;
    if (op->used) return NULL;
    *op = (struct pending){ .used = true, .kind = PENDING_SWEEP, .session = session, .parts = 1 };
    return op;
}

void pending_free(struct service *s, struct pending *op) {
    s->n_moves -= op->kind == PENDING_MOVE;
    op->used = false;
}

uint32_t pending_tag(const struct service *s, const struct pending *op) { return (uint32_t)(op - s->ops) + 1; }

bool pending_check_slow(struct call *call) {
    struct pending *slots = slots_of(call->service, call->request.header.session);
    if (take_slot(slots + PENDING_PER_SESSION, SLOW_PER_SESSION) && answer_has_slow_place(call->session)) return true;
    call_refuse(call, KVD_RESOURCE_EXHAUSTED,
                "%u requests of this session wait for copies between device and host, which is the limit, and this one "
                "may need some; take their answers, then try again",
                SLOW_PER_SESSION);
    return false;
}

struct pending *pending_make_slow(struct service *s, struct pending *op) {
    struct session *session = session_find(s, op->session);
    struct pending *slots = slots_of(s, op->session);
    if (op->slow) return op;
    struct pending *slow = take_slot(slots + PENDING_PER_SESSION, SLOW_PER_SESSION);
    if (!slow || (session && !answer_has_slow_place(session))) return NULL;
    *slow = *op;
    slow->slow = true;
    op->used = false;
    if (slow->kind == PENDING_ACTIVATE) s->bundles[slow->bundle].tag = pending_tag(s, slow);
    if (session) answer_make_slow(s, session, slow->sequence);
    return slow;
}

void pending_wait(struct service *s, struct pending *op) {
    op->waits = true;
    op->next = NULL;
    *s->last_waiting = op;
    s->last_waiting = &op->next;
}

void pending_ready(struct service *s, struct pending *op) {
    struct pending **last = &s->ready;
    while (*last) last = &(*last)->next;
    op->next = NULL;
    *last = op;
    mover_kick(s->mover);
}

void transition_ended(struct service *s) {
    if (s->remainders_wait) remainders_release(s);
    if (!s->waiting) return;
    struct pending **last = &s->ready;
    while (*last) last = &(*last)->next;
    *last = s->waiting;
    s->waiting = NULL;
    s->last_waiting = &s->waiting;
    mover_kick(s->mover);
}
