/* SPDX-License-Identifier: Apache-2.0
 *
 * Ends what waited: nobody blocks for devices. The batch carries the number of the pending operation, and when a
 * device's event fd says that batches are done, the operation is finished here as the request itself would have been.
 */
#include "complete.h"

#include <stdlib.h>
#include <string.h>

#include "boards.h"
#include "clock.h"
#include "cold_reader.h"
#include "cold_tier.h"
#include "core.h"
#include "events.h"
#include "request.h"
#include "session.h"
#include "stage.h"
#include "stop.h"

static void refuse_reply(struct msg_reply *reply, enum kvd_status status, const char *why) {
    memset(&reply->u, 0, sizeof reply->u);
    reply->status = (uint32_t)status;
    snprintf(reply->message, sizeof reply->message, "%s", why);
}

enum kvd_status checkpoint_finish(struct service *s, const struct pending *op, enum transfer_result result,
                                  struct kvd_checkpointed *made, char *why, size_t why_bytes) {
    struct store_refusal refusal = { 0 };
    store_cont cont = { made->continuation.bits };
    if (result != TRANSFER_DONE) {
        (void)store_checkpoint_abort(s->store, cont, &refusal);
        int n = snprintf(why, why_bytes, "the device is lost, nothing was kept: %.250s", transfer_error(s->transfer));
        if (op->n_gone)
            snprintf(why + n, why_bytes - (size_t)n, "; %u continuations of its recipe had given way for it",
                     op->n_gone);
        return KVD_UNAVAILABLE;
    }
    if (store_checkpoint_commit(s->store, cont, &cont, &refusal)) {
        store_refusal_text(&refusal, why, why_bytes);
        return KVD_INTERNAL;
    }
    made->continuation.bits = cont.bits;
    made->revision = store_revision(s->store);
    return KVD_OK;
}

/* What it was about, into the reply. False: parked again. */
static bool advance_pending(struct service *s, struct pending *op, struct msg_reply *reply, char *why,
                            size_t why_bytes) {
    enum kvd_status status = KVD_OK;
    enum transfer_result result = op->lost ? TRANSFER_LOST : TRANSFER_DONE;
    bool ended = true;
    switch (op->kind) {
    case PENDING_NEW:
    case PENDING_SWEEP: break;
    case PENDING_ACTIVATE:
        ended = activation_advance(s, op, &status, why, why_bytes);
        reply->u.activated = op->u.activated;
        break;
    case PENDING_CHECKPOINT:
        status = checkpoint_finish(s, op, result, &op->u.checkpointed, why, why_bytes);
        reply->u.checkpointed = op->u.checkpointed;
        break;
    case PENDING_MOVE:
        ended = move_advance(s, op, &status, why, why_bytes);
        reply->u.moved = op->u.moved;
        break;
    case PENDING_COLD:
        status = op->cold->status;
        reply->u.cold = op->cold->found;
        op->short_of = op->cold->short_of;
        snprintf(why, why_bytes, "%s", op->cold->why);
        free(op->cold);
        break;
    case PENDING_DEMOTE:
        ended = demote_begin_late(s, op, &status, why, why_bytes);
        reply->u.moved = op->u.moved;
        break;
    case PENDING_PUBLISH:
        store_rolling_copied(s->store, pending_tag(s, op), result == TRANSFER_DONE);
        if (op->boards) boards_published(s, pending_tag(s, op), result == TRANSFER_DONE);
        if (result == TRANSFER_DONE) break;
        snprintf(why, why_bytes, "it was done in the store, but the device is lost: %.300s",
                 transfer_error(s->transfer));
        status = KVD_UNAVAILABLE;
        break;
    }
    if (ended && status != KVD_OK) refuse_reply(reply, status, why);
    return ended;
}

/* An operation whose parts are all done, or whose turn it is to try again. NULL: *ret_some tells whether anything
 * happened. */
static struct pending *next_done(struct service *s, bool *ret_some) {
    enum transfer_result result;
    enum mover_result moved;
    struct mover_moved figures;
    struct pending *op = NULL;
    uint32_t tag = 0;
    *ret_some = true;
    mover_run(s->mover);
    if (transfer_collect(s->transfer, &tag, &result)) {
        if (!tag) return NULL;
        op = &s->ops[tag - 1];
        op->lost |= result == TRANSFER_LOST;
    } else if (mover_collect(s->mover, &tag, &moved, &figures)) {
        op = &s->ops[tag - 1];
        op->lost |= moved != MOVER_DONE; /* what was not copied whole is never published */
        for (int d = 0; d < 2; d++) {
            op->moved.bytes[d] += figures.bytes[d];
            for (uint32_t p = 0; p < KVD_MAX_POOLS; p++) op->moved.pages[d][p] += figures.pages[d][p];
        }
    } else if (s->ready) {
        op = s->ready;
        s->ready = op->next;
        op->waits = false;
        return op;
    } else {
        *ret_some = false;
        return NULL;
    }
    return --op->parts ? NULL : op;
}

/* What is sent when a pending operation has ended. */
struct outcome {
    struct msg_reply reply; /* to be encoded and sent, unless has_body */
    bool has_body;          /* the recorded body is in the scratch frame for the waiters, or its encoder sends it */
    size_t bytes;
    uint32_t n;
    struct waiter waiters[ANSWER_WAITERS];
};

/* Under the lock. False: it goes on. */
static bool finish_pending(struct service *s, struct pending *op, struct scratch *scratch, struct outcome *ret) {
    char why[KVD_MESSAGE_BYTES] = "";
    struct msg_reply *reply = &ret->reply;
    *reply = (struct msg_reply){ .type = op->type };
    if (!advance_pending(s, op, reply, why, sizeof why)) return false;
    struct session *session = session_find(s, op->session);
    if (session) reply->next_sequence = session->last_sequence + 1;
    struct answer *a = session ? answer_find(session, op->sequence) : NULL;
    if (a) a->held = false;
    ret->has_body = op->kind == PENDING_PUBLISH && reply->status == KVD_OK;
    if (op->kind == PENDING_PUBLISH && reply->status != KVD_OK) answer_unstore(s, session, a);
    if (!ret->has_body || !a || !a->body) return true; /* no body yet: its thread is still encoding, and sends */
    a->state = ANSWER_DONE;
    memcpy(scratch->frame + FRAME_HEADER, a->body, a->bytes);
    ret->bytes = a->bytes;
    ret->n = a->n_waiters;
    memcpy(ret->waiters, a->waiter, sizeof a->waiter);
    a->n_waiters = 0;
    return true;
}

/* Nobody waits for it: the board tells. The session may be gone, and another one in its place. */
static void finish_sweep(struct service *s, struct pending *op) {
    struct session *session = &s->sessions[(uint32_t)op->session.bits];
    store_rolling_copied(s->store, pending_tag(s, op), !op->lost);
    boards_published(s, pending_tag(s, op), !op->lost);
    pending_free(s, op);
    if (!session->used || !session->board) return;
    session->board->busy = false;
    board_go_on(s, session->board);
}

/* One thing that was done. */
static bool complete_one(struct service *s, struct scratch *scratch) {
    struct outcome out;
    struct pending done = { 0 };
    bool some;
    out.has_body = false;
    out.n = 0;
    pthread_mutex_lock(&s->lock);
    store_set_time(s->store, clock_ns());
    struct pending *op = next_done(s, &some);
    if (op && op->kind == PENDING_SWEEP) {
        finish_sweep(s, op);
    } else if (op && finish_pending(s, op, scratch, &out)) {
        done = *op;
        pending_free(s, op);
        if (done.cold_copy) cold_tier_copied(s, out.reply.status == KVD_OK);
        else if (!done.session.bits) stop_moved(s, out.reply.status == KVD_OK);
        else count_outcome(s, done.type, out.reply.status, done.short_of, done.arrived_ns);
        events_pressure(s);
    }
    events_lost(s);
    pthread_mutex_unlock(&s->lock);
    codec_arena_reset(scratch->arena);
    if (done.session.bits && !out.has_body) answer_call(s, scratch, &out.reply, done.session, done.sequence, NULL, 0);
    for (uint32_t i = 0; i < out.n; i++) {
        frame_head_write(scratch->frame, done.type, FRAME_F_REPLY, out.waiters[i].frame_id, out.bytes);
        out.waiters[i].link->ops->post(out.waiters[i].link, scratch->frame, FRAME_HEADER + out.bytes, false);
        link_unref(out.waiters[i].link);
    }
    return some;
}

void pending_run(struct service *s) {
    struct scratch *scratch = scratch_take(s);
    if (!scratch) return; /* no memory: until the next wake-up, or the next tick */
    while (complete_one(s, scratch)) continue;
    events_flush(s, scratch);
    scratch_give(s, scratch);
}
