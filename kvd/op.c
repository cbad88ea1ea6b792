/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests that wait for devices. Nobody blocks for them: the batch carries the op's number, and when a device's event
 * fd says that batches are done, the op is finished here as the request itself would have been.
 */
#include <string.h>

#include "core.h"

struct op *op_new(struct call *call, uint32_t *ret_tag) {
    struct service *s = call->service;
    uint32_t first = (uint32_t)(call->session - s->sessions) * OPS_PER_SESSION;
    for (uint32_t i = first; i < first + OPS_PER_SESSION; i++) {
        struct op *op = &s->ops[i];
        if (op->used) continue;
        *op = (struct op){ .used = true,
                           .session = call->request.header.session,
                           .sequence = call->request.header.sequence,
                           .type = call->request.type,
                           .arrived_ns = call->now_ns };
        *ret_tag = i + 1;
        return op;
    }
    call_refuse(call, KVD_UNAVAILABLE,
                "%u requests of this session wait for the device, which is the limit; take their answers, then try again",
                OPS_PER_SESSION);
    return NULL;
}

void republish(struct service *s, const struct kvd_activated *activated) {
    transfer_begin(s->transfer);
    for (uint32_t p = 0; p < s->pools.n_pools; p++)
        transfer_slice(s->transfer, p, activated->pool[p].row,
                       &(struct store_slice){ activated->pool[p].slice_begin, activated->pool[p].slice_count });
    (void)transfer_submit(s->transfer, 0);
}

static void refuse(struct msg_reply *reply, enum kvd_status status, const char *why) {
    memset(&reply->u, 0, sizeof reply->u);
    reply->status = (uint32_t)status;
    snprintf(reply->message, sizeof reply->message, "%s", why);
}

enum kvd_status activation_finish(struct service *s, struct bundle *b, enum transfer_result result,
                                  struct kvd_activated *activated, char *why, size_t why_bytes) {
    struct store_refusal refusal = { 0 };
    uint32_t lost = 0;
    enum kvd_status status = KVD_OK;
    if (result != TRANSFER_DONE) {
        snprintf(why, why_bytes, "the device is lost, nothing was activated: %.300s", transfer_error(s->transfer));
        status = KVD_UNAVAILABLE;
    } else if (b->doomed) {
        snprintf(why, why_bytes, "the scheduler or the worker was lost meanwhile, nothing was activated");
        status = KVD_ABORTED;
    } else if (store_activate_commit(s->store, b->seq, &refusal)) {
        status = KVD_INTERNAL;
        store_refusal_text(&refusal, why, why_bytes);
    }
    if (status == KVD_OK) {
        b->activating = false;
        s->metrics.activations[b->source]++;
        s->metrics.reused_tokens += b->reused_tokens;
        s->metrics.prompt_tokens += b->prompt_tokens;
        activated->revision = store_revision(s->store);
        bundle_settle(s, b);
        return KVD_OK;
    }
    if (store_activate_abort(s->store, b->seq, &lost, &refusal))
        LOG(LOG_ERROR, "an activation could not be undone: store code %d", (int)refusal.code);
    bundle_free(s, b);
    republish(s, activated);
    return status;
}

enum kvd_status checkpoint_finish(struct service *s, enum transfer_result result, struct kvd_checkpointed *made,
                                  char *why, size_t why_bytes) {
    struct store_refusal refusal = { 0 };
    store_cont cont = { made->continuation.bits };
    if (result != TRANSFER_DONE) {
        (void)store_checkpoint_abort(s->store, cont, &refusal);
        snprintf(why, why_bytes, "the device is lost, nothing was kept: %.300s", transfer_error(s->transfer));
        return KVD_UNAVAILABLE;
    }
    if (store_checkpoint_commit(s->store, cont, &refusal)) {
        store_refusal_text(&refusal, why, why_bytes);
        return KVD_INTERNAL;
    }
    made->revision = store_revision(s->store);
    return KVD_OK;
}

/* Under the lock. True: reply is to be encoded and sent; false: the recorded body is in the scratch frame, or is not
 * there yet. */
static bool finish(struct service *s, struct op *op, enum transfer_result result, struct msg_reply *reply,
                   struct scratch *scratch, struct waiter *waiters, uint32_t *ret_n, size_t *ret_bytes) {
    struct session *session = session_find(s, op->session);
    struct answer *a = session ? answer_find(session, op->sequence) : NULL;
    char why[KVD_MESSAGE_BYTES] = "";
    enum kvd_status status = KVD_OK;
    if (a) a->held = false;
    *ret_n = 0;
    *reply = (struct msg_reply){ .type = op->type };
    if (op->kind == OP_ACTIVATE) {
        status = activation_finish(s, &s->bundles[op->bundle], result, &op->u.activated, why, sizeof why);
        reply->u.activated = op->u.activated;
    } else if (op->kind == OP_CHECKPOINT) {
        status = checkpoint_finish(s, result, &op->u.checkpointed, why, sizeof why);
        reply->u.checkpointed = op->u.checkpointed;
    } else if (result == TRANSFER_DONE) {
        if (!a || !a->body) return false; /* its thread is still encoding: it sends */
        a->state = ANSWER_DONE;
        memcpy(scratch->frame + FRAME_HEADER, a->body, a->bytes);
        *ret_bytes = a->bytes;
        *ret_n = a->n_waiters;
        memcpy(waiters, a->waiter, sizeof a->waiter);
        a->n_waiters = 0;
        return false;
    } else {
        snprintf(why, sizeof why, "it was done in the store, but the device is lost: %.300s",
                 transfer_error(s->transfer));
        status = KVD_UNAVAILABLE;
        answer_unstore(s, session, a);
    }
    if (status != KVD_OK) refuse(reply, status, why);
    return true;
}

/* One finished batch. */
static bool run_one(struct service *s, struct scratch *scratch) {
    struct waiter waiters[ANSWER_WAITERS];
    struct msg_reply reply;
    struct op op;
    enum transfer_result result;
    uint32_t tag, n = 0;
    size_t bytes = 0;
    bool encode = false;
    pthread_mutex_lock(&s->lock);
    bool some = transfer_collect(s->transfer, &tag, &result);
    if (some && tag) {
        op = s->ops[tag - 1];
        s->ops[tag - 1].used = false;
        encode = finish(s, &op, result, &reply, scratch, waiters, &n, &bytes);
        count_outcome(s, op.type, reply.status, op.arrived_ns);
        events_pressure(s);
    }
    pthread_mutex_unlock(&s->lock);
    codec_arena_reset(scratch->arena);
    if (encode) answer_call(s, scratch, &reply, op.session, op.sequence, NULL, 0);
    for (uint32_t i = 0; i < n; i++) {
        frame_head_write(scratch->frame, op.type, FRAME_F_REPLY, waiters[i].frame_id, bytes);
        waiters[i].link->ops->post(waiters[i].link, scratch->frame, FRAME_HEADER + bytes, false);
        link_unref(waiters[i].link);
    }
    return some;
}

void ops_run(struct service *s) {
    struct scratch *scratch = scratch_take(s);
    if (!scratch) return; /* the device's event is still there next time */
    while (run_one(s, scratch)) continue;
    events_flush(s, scratch);
    scratch_give(s, scratch);
}
