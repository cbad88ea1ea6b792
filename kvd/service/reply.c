/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "core.h"
#include "log.h"
#include "request.h"
#include "session.h"

static void encode_reply(struct scratch *scratch, struct msg_reply *reply, size_t *ret_bytes) {
    uint8_t *body = scratch->frame + FRAME_HEADER;
    size_t space = FRAME_LIMIT - FRAME_HEADER;
    char why[256];
    int r = codec_encode_reply(reply, scratch->arena, body, space, ret_bytes, why, sizeof why);
    if (r == CODEC_E_SPACE && reply->type == FRAME_ROUND && reply->status == KVD_OK) {
        /* 256 long sentences do not fit: the statuses matter more. */
        for (uint32_t i = 1; i < reply->u.round.n; i++) reply->u.round.items[i].message[0] = 0;
        r = codec_encode_reply(reply, scratch->arena, body, space, ret_bytes, why, sizeof why);
    }
    if (!r) return;
    LOG(LOG_ERROR, "the answer to %s cannot be encoded: %s", frame_type_name(reply->type), why);
    struct msg_reply plain = { .type = reply->type, .status = KVD_INTERNAL, .epoch = reply->epoch };
    snprintf(plain.message, sizeof plain.message, "the answer cannot be encoded: %s", why);
    codec_arena_reset(scratch->arena);
    if (codec_encode_reply(&plain, scratch->arena, body, space, ret_bytes, why, sizeof why)) *ret_bytes = 0;
}

static void post_reply(struct scratch *scratch, uint16_t type, size_t bytes, struct link *link, uint64_t frame_id) {
    frame_head_write(scratch->frame, type, FRAME_F_REPLY, frame_id, bytes);
    link->ops->post(link, scratch->frame, FRAME_HEADER + bytes, false);
}

/* Stores the body and takes who waits for it, unless a device must finish first. */
static uint32_t store_answer(struct service *s, kvd_session_id id, uint64_t sequence, uint8_t *body, size_t bytes,
                             struct waiter ret_waiters[ANSWER_WAITERS], bool *ret_held) {
    uint32_t n = 0;
    *ret_held = false;
    pthread_mutex_lock(&s->lock);
    struct session *session = session_find(s, id);
    struct answer *a = session ? answer_find(session, sequence) : NULL;
    if (a && a->state == ANSWER_PENDING) {
        answer_store(s, session, a, body, (uint32_t)bytes);
        body = NULL;
        *ret_held = a->held;
        if (!a->held) {
            a->state = ANSWER_DONE;
            n = a->n_waiters;
            memcpy(ret_waiters, a->waiter, sizeof a->waiter);
            a->n_waiters = 0;
        }
    }
    pthread_mutex_unlock(&s->lock);
    free(body);
    return n;
}

void answer_call(struct service *s, struct scratch *scratch, struct msg_reply *reply, kvd_session_id session,
                 uint64_t sequence, struct link *link, uint64_t frame_id) {
    struct waiter waiters[ANSWER_WAITERS];
    uint32_t n = 0;
    size_t bytes = 0;
    bool held = false;
    reply->epoch = s->epoch;
    encode_reply(scratch, reply, &bytes);
    if (sequence) {
        uint8_t *body = malloc(bytes ? bytes : 1);
        if (body) memcpy(body, scratch->frame + FRAME_HEADER, bytes);
        n = store_answer(s, session, sequence, body, body ? bytes : 0, waiters, &held);
    }
    if (link && !held) post_reply(scratch, reply->type, bytes, link, frame_id);
    for (uint32_t i = 0; i < n; i++) {
        post_reply(scratch, reply->type, bytes, waiters[i].link, waiters[i].frame_id);
        link_unref(waiters[i].link);
    }
}

void count_outcome(struct service *s, uint16_t type, uint32_t status, enum metrics_short short_of,
                   uint64_t arrived_ns) {
    s->refusals += status != KVD_OK;
    if (status == KVD_RESOURCE_EXHAUSTED) metrics_shortage(&s->metrics, short_of);
    metrics_answer(&s->metrics, type, status, clock_ns() - arrived_ns);
}
