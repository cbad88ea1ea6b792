/* SPDX-License-Identifier: Apache-2.0
 *
 * Waiting for an answer and reading it (client.h says who reads the connection).
 */

#include "client.h"

/* ---- waiting ------------------------------------------------------------------------------------------------ */

static enum kvd_status no_answer(struct kvd_client *c, const struct pending_call *call, struct kvd_error *error) {
    return client_fail(error, KVD_DEADLINE_EXCEEDED, "kvd at %s did not answer %s in time; %s", c->path,
                       frame_type_name(call->type),
                       call_mutates(call->type)
                           ? "it may have run: repeat the same call to learn its outcome, it will not run twice"
                           : "ask again");
}

/* With the lock held, let go meanwhile: reads the connection once. False: the deadline has passed. */
static bool read_once(struct kvd_client *c, uint64_t deadline_ns) {
    struct client_link *link = c->link;
    uint64_t number = link->number;
    struct transport *transport = link->transport;
    if (!transport_begin_read(transport, deadline_ns)) return true;
    c->reader = number;
    pthread_mutex_unlock(&c->lock);
    int rc = transport_end_read(transport);
    pthread_mutex_lock(&c->lock); /* the link may be gone now */
    if (c->reader == number) c->reader = 0;
    return rc != TRANSPORT_E_TIMEOUT;
}

/* Waits for a change, by reading if nobody else does. False: the deadline has passed. */
static bool wait_for(struct kvd_client *c, struct pending_call *call, uint64_t deadline_ns) {
    struct client_link *link = c->link;
    if (link->open && !link->watched && !link->lost && c->reader != link->number) return read_once(c, deadline_ns);
    call->waiting = true;
    c->n_waiting++;
    bool in_time = client_wait(c, &call->changed, deadline_ns);
    call->waiting = false;
    c->n_waiting--;
    return in_time;
}

/* A thread that may have been the reader leaves. */
static void pass_reading_on(struct kvd_client *c) {
    if (c->link->watched || c->reader == c->link->number) return;
    if (c->watching || c->n_left) {
        client_watch(c, false);
        return;
    }
    for (uint32_t i = 0; c->n_waiting && i < CLIENT_BUCKETS; i++) {
        for (struct pending_call *call = c->pending[i]; call; call = call->next) {
            if (!call->waiting || call->state != CALL_SENT) continue;
            pthread_cond_signal(&call->changed);
            return;
        }
    }
}

enum kvd_status call_await(struct kvd_client *c, struct pending_call *call, uint64_t deadline_ns,
                           struct kvd_error *error) {
    while (call->state == CALL_SENT)
        if (!wait_for(c, call, deadline_ns) && call->state == CALL_SENT) return no_answer(c, call, error);
    if (call->state == CALL_ANSWERED) return KVD_OK;
    if (c->dead) return client_fail(error, KVD_ABORTED, "%s", c->why_dead);
    if (clock_ns() >= deadline_ns) return no_answer(c, call, error);
    if (!call->resumed) return KVD_OK;
    return client_fail(error, KVD_UNAVAILABLE,
                       "the connection to kvd at %s broke again (%s) before %s was answered: call "
                       "kvd_client_reconnect and repeat the same call",
                       c->path, c->link->why, frame_type_name(call->type));
}

/* The answer is there and is the caller's alone. */
static enum kvd_status read_answer(struct kvd_client *c, struct pending_call *call, struct msg_reply *ret_reply,
                                   struct kvd_error *error) {
    char why[KVD_MESSAGE_BYTES] = "";
    codec_arena_reset(call->arena);
    int rc = call->body_type == call->type ? codec_decode_reply(call->body_type, call->body, call->body_bytes,
                                                                call->arena, ret_reply, why, sizeof why)
                                           : CODEC_E_TYPE;
    if (rc != 0) {
        return client_fail(error, KVD_INTERNAL, "kvd's answer to %s cannot be read: %s", frame_type_name(call->type),
                           rc == CODEC_E_TYPE ? "it is of another type" : why);
    }
    if (ret_reply->epoch && c->epoch && ret_reply->epoch != c->epoch && call->type != FRAME_HELLO)
        return client_fail(error, KVD_ABORTED, "kvd at %s is another instance than this client's: connect anew",
                           c->path);
    if (ret_reply->status == KVD_OK) return KVD_OK;
    const char *text = ret_reply->message[0] ? ret_reply->message : kvd_status_name((enum kvd_status)ret_reply->status);
    return client_fail(error, (enum kvd_status)ret_reply->status, "%s", text);
}

enum kvd_status call_conclude(struct kvd_client *c, struct pending_call *call, enum kvd_status status,
                              struct msg_reply *ret_reply, struct kvd_error *error) {
    if (status != KVD_OK) call_leave(c, call);
    pass_reading_on(c);
    pthread_mutex_unlock(&c->lock);
    if (status != KVD_OK) return status;
    status = read_answer(c, call, ret_reply, error);
    if (status != KVD_OK) call_done(c, call);
    return status;
}
