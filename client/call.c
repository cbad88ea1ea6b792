/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls: numbers, sending, adoption, and resuming the session for an answer (client.h has the rules).
 */
#include <string.h>

#include "client.h"

/* A second execution would answer or do something else than the first. */
static bool may_adopt(uint16_t type) {
    const struct frame_info *info = frame_info(type);
    return info && info->numbering == FRAME_REPEAT;
}

/* ---- sending --------------------------------------------------------------------------------------------- */

/* Which sequences a request is about, and which continuation it moves. */
static void note_touched(struct pending_call *call, const struct msg_request *request) {
    call->n_touched = 0;
    if (request->type == FRAME_DEMOTE) call->moved = request->u.demote.continuation;
    if (request->type == FRAME_PREFETCH) call->moved = request->u.prefetch;
    if (request->type == FRAME_DROP) call->moved = request->u.drop.continuation;
    if (request->type == FRAME_ROUND) {
        for (uint32_t i = 0; i < request->u.round.n && i < KVD_MAX_ROUND; i++)
            call->touched[call->n_touched++] = request->u.round.items[i].sequence;
    } else if (request->type == FRAME_CHECKPOINT) {
        call->touched[call->n_touched++] = request->u.checkpoint.sequence;
    } else if (request->type == FRAME_FINISH) {
        call->touched[call->n_touched++] = request->u.finish.sequence;
    } else if (request->type == FRAME_NAME_PAGES) {
        call->touched[call->n_touched++] = request->u.names.sequence;
    }
}

static bool share_sequence(const struct pending_call *a, const struct pending_call *b) {
    for (uint32_t i = 0; i < a->n_touched; i++)
        for (uint32_t k = 0; k < b->n_touched; k++)
            if (a->touched[i].bits == b->touched[k].bits) return true;
    return false;
}

/* What was moved may be elsewhere after another move of it, or an activation: those restore and demote. */
static bool moves_again(const struct pending_call *left, const struct pending_call *call, uint16_t type) {
    return left->moved.bits && (type == FRAME_ACTIVATE || left->moved.bits == call->moved.bits);
}

static bool refused_unrun(struct pending_call *left, struct pending_call *scratch) {
    struct msg_reply reply;
    codec_arena_reset(scratch->arena);
    return codec_decode_reply(left->body_type, left->body, left->body_bytes, scratch->arena, &reply, NULL, 0) == 0 &&
           reply.status == KVD_DEADLINE_EXCEEDED;
}

/* Encoded under its header the request gives the call's bytes. scratch: a call that was not sent. */
static bool is_request_of(struct pending_call *scratch, struct msg_request *request, const struct pending_call *call) {
    scratch->header = call->header;
    return call->type == request->type && call_encode(scratch, request, NULL) == KVD_OK &&
           scratch->frame_bytes == call->frame_bytes &&
           memcmp(scratch->frame + FRAME_HEADER, call->frame + FRAME_HEADER, call->frame_bytes - FRAME_HEADER) == 0;
}

/* A LEFT call that is this very request: encoded under its header the request gives its bytes. call is scratch. What
 * the request is about is changed by it, so that LEFT calls about the same sequences go stale. */
static struct pending_call *find_left(struct kvd_client *c, struct pending_call *call, struct msg_request *request) {
    struct pending_call *found = NULL;
    for (uint32_t i = 0; i < CLIENT_BUCKETS; i++) {
        for (struct pending_call *left = c->pending[i]; left; left = left->next) {
            if (left->keeper != CALL_LEFT || left->stale) continue;
            if (!found && may_adopt(request->type) && is_request_of(call, request, left)) found = left;
            else if (share_sequence(left, call) || moves_again(left, call, request->type)) left->stale = true;
        }
    }
    if (found && found->state == CALL_ANSWERED && refused_unrun(found, call)) {
        call_free(c, found);
        return NULL;
    }
    return found;
}

/* Nobody reads a stream without calls, and a call that finds it lost resumes the session. The stream of a ring is read
 * always, and its loss is known before the next call, which is to find the same. */
static bool lost_between_calls(const struct client_link *link) {
    return link->lost && link->open && !link->watched && transport_has_ring(link->transport);
}

/* Waits until a request may be sent. last: of this session. */
static enum kvd_status take_turn(struct kvd_client *c, bool last, uint64_t deadline_ns, struct kvd_error *error) {
    for (;;) {
        if (c->dead) return client_fail(error, KVD_ABORTED, "%s", c->why_dead);
        if (!c->sending && !c->resuming) {
            if (last || !lost_between_calls(c->link)) break;
            enum kvd_status status = client_resume(c, deadline_ns, error);
            if (status != KVD_OK) return status;
            continue;
        }
        if (!client_wait(c, &c->turn, deadline_ns))
            return client_fail(error, KVD_DEADLINE_EXCEEDED,
                               "other requests filled the connection to kvd at %s; nothing was sent", c->path);
    }
    if (c->link->lost) {
        return client_fail(error, KVD_UNAVAILABLE,
                           "the connection to kvd at %s is lost (%s); nothing was sent: call kvd_client_reconnect",
                           c->path, c->link->why);
    }
    return KVD_OK;
}

/* The changing call with the lowest number, of those without an answer or of those LEFT with one. */
static struct pending_call *oldest_change(struct kvd_client *c, bool answered) {
    struct pending_call *low = NULL;
    for (uint32_t i = 0; i < CLIENT_BUCKETS; i++) {
        for (struct pending_call *call = c->pending[i]; call; call = call->next) {
            if (!call->header.sequence || (call->state == CALL_ANSWERED) != answered ||
                (answered && call->keeper != CALL_LEFT))
                continue;
            if (!low || call->header.sequence < low->header.sequence) low = call;
        }
    }
    return low;
}

/* kvd can repeat its last CLIENT_WINDOW answers, so no more numbers than that may be open. Of the answers that came too
 * late as many are kept. Positive: the turn was let go. */
static int wait_for_window(struct kvd_client *c, uint64_t deadline_ns) {
    if (c->n_pending < CLIENT_WINDOW && !c->n_left) return 0;
    if (c->n_left > CLIENT_WINDOW) {
        struct pending_call *late = oldest_change(c, true);
        if (late && !late->pinned) call_free(c, late);
    }
    struct pending_call *low = oldest_change(c, false);
    if (!low || c->next_sequence - low->header.sequence < CLIENT_WINDOW) return 0;
    if (low->keeper == CALL_LEFT && !low->pinned) {
        call_free(c, low);
        return 1;
    }
    return client_wait(c, &c->turn, deadline_ns) ? 1 : -1;
}

/* With the turn: number, bytes, table, socket. */
static enum kvd_status send_new(struct kvd_client *c, struct pending_call *call, struct msg_request *request,
                                uint64_t deadline_ns, struct kvd_error *error) {
    bool mutates = call_mutates(request->type);
    call->header = (struct msg_header){
        .session = c->session, .sequence = mutates ? c->next_sequence : 0, .deadline_ns = deadline_ns, .epoch = c->epoch
    };
    pthread_mutex_unlock(&c->lock);
    enum kvd_status status = call_encode(call, request, error);
    pthread_mutex_lock(&c->lock);
    if (status != KVD_OK) return status;

    call_insert(c, call);
    call->resumed = request->type == FRAME_GOODBYE; /* the end of the connection is the answer, too */
    if (mutates) c->next_sequence++;
    bool room = c->room_frames < CLIENT_ROOM_FRAMES && c->room_bytes + call->frame_bytes <= CLIENT_ROOM_BYTES;
    c->room_frames++;
    c->room_bytes += call->frame_bytes;
    call->pinned = true;
    pthread_mutex_unlock(&c->lock);
    size_t sent;
    int rc = call_transmit(c, call, deadline_ns, room, &sent);
    pthread_mutex_lock(&c->lock);
    call->pinned = false;

    if (rc == TRANSPORT_E_TIMEOUT && sent == 0) {
        if (mutates) c->next_sequence--;
        call_give_room(c, call);
        return client_fail(error, KVD_DEADLINE_EXCEEDED, "kvd at %s took no more bytes in time; %s was not sent",
                           c->path, frame_type_name(request->type));
    }
    if (rc != 0)
        client_lost(c, rc == TRANSPORT_E_TIMEOUT ? "kvd stopped reading within a frame"
                                                 : "the connection broke while sending");
    else if (c->link->lost && call->state == CALL_SENT) call->state = CALL_BROKEN;
    return KVD_OK;
}

static enum kvd_status start_locked(struct kvd_client *c, struct msg_request *request, enum call_keeper keeper,
                                    uint64_t deadline_ns, struct pending_call **ret_call, struct kvd_error *error) {
    enum kvd_status status;
    int room;
    do {
        if ((status = take_turn(c, request->type == FRAME_GOODBYE, deadline_ns, error)) != KVD_OK) return status;
        room = call_mutates(request->type) ? wait_for_window(c, deadline_ns) : 0;
    } while (room > 0);
    if (keeper == CALL_TICKET) client_watch(c, true);
    if (room < 0) {
        return client_fail(error, KVD_RESOURCE_EXHAUSTED,
                           "%u changing requests are open already; nothing was sent: collect the answers of "
                           "some first",
                           CLIENT_WINDOW);
    }
    struct pending_call *call = call_new(c);
    if (!call) return client_fail(error, KVD_RESOURCE_EXHAUSTED, "out of memory for a request; nothing was sent");
    note_touched(call, request);
    struct pending_call *left = c->n_left && call_mutates(request->type) ? find_left(c, call, request) : NULL;
    if (left) {
        call_free(c, call);
        left->keeper = keeper;
        left->adopted = true;
        left->until_ns = deadline_ns;
        c->n_left--;
        left->resumed = false;
        if (keeper == CALL_TICKET && left->state == CALL_ANSWERED) c->n_tickets_answered++;
        client_update_fd(c);
        *ret_call = left;
        return KVD_OK;
    }
    call->keeper = keeper;
    call->until_ns = deadline_ns;
    c->sending = true;
    status = send_new(c, call, request, deadline_ns, error);
    c->sending = false;
    pthread_cond_broadcast(&c->turn);
    if (status == KVD_OK) *ret_call = call;
    else call_free(c, call);
    return status;
}

enum kvd_status call_start(struct kvd_client *c, struct msg_request *request, enum call_keeper keeper,
                           uint64_t deadline_ns, struct pending_call **ret_call, struct kvd_error *error) {
    pthread_mutex_lock(&c->lock);
    enum kvd_status status = start_locked(c, request, keeper, deadline_ns, ret_call, error);
    pthread_mutex_unlock(&c->lock);
    return status;
}

/* ---- giving up ------------------------------------------------------------------------------------------------ */

uint64_t call_open_number(struct kvd_client *c, struct msg_request *request) {
    uint64_t number = 0;
    pthread_mutex_lock(&c->lock);
    struct pending_call *scratch = call_new(c);
    for (uint32_t i = 0; scratch && !number && i < CLIENT_BUCKETS; i++)
        for (struct pending_call *call = c->pending[i]; call && !number; call = call->next)
            if (call->header.sequence && !call->stale && is_request_of(scratch, request, call))
                number = call->header.sequence;
    if (scratch) call_free(c, scratch);
    pthread_mutex_unlock(&c->lock);
    return number;
}

void call_give_up(struct kvd_client *c, uint64_t number) {
    pthread_mutex_lock(&c->lock);
    for (uint32_t i = 0; i < CLIENT_BUCKETS; i++)
        for (struct pending_call *call = c->pending[i]; call; call = call->next)
            if (call->header.sequence == number) call->stale = true;
    pthread_mutex_unlock(&c->lock);
}

/* ---- answers ------------------------------------------------------------------------------------------------ */

enum kvd_status call_finish(struct kvd_client *c, struct pending_call *call, uint64_t deadline_ns,
                            struct msg_reply *ret_reply, struct kvd_error *error) {
    pthread_mutex_lock(&c->lock);
    enum kvd_status status = call_await(c, call, deadline_ns, error);
    while (status == KVD_OK && call->state == CALL_BROKEN) {
        status = client_resume(c, deadline_ns, error);
        if (status == KVD_OK) status = call_await(c, call, deadline_ns, error);
    }
    return call_conclude(c, call, status, ret_reply, error);
}

enum kvd_status call_run(struct kvd_client *c, struct msg_request *request, struct pending_call **ret_call,
                         struct msg_reply *ret_reply, struct kvd_error *error) {
    enum kvd_status status = client_guard(c, error);
    if (status != KVD_OK) return status;
    uint64_t deadline_ns = client_deadline(c);
    struct pending_call *call;
    bool adopted;
    do {
        status = call_start(c, request, CALL_WAITED, deadline_ns, &call, error);
        if (status != KVD_OK) return status;
        adopted = call->adopted;
        status = call_finish(c, call, deadline_ns, ret_reply, error);
        /* kvd got to the first one after its deadline and refused it: it never ran, so this one does. */
    } while (adopted && status == KVD_DEADLINE_EXCEEDED && clock_ns() < deadline_ns);
    if (status == KVD_OK) *ret_call = call;
    return status;
}
