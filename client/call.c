/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls: the pending table, numbers, sending, waiting, adoption (client.h has the rules).
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client.h"

bool call_mutates(uint16_t type) {
    const struct frame_info *info = frame_info(type);
    return info && info->numbering >= FRAME_CHANGE;
}

/* A second execution would answer or do something else than the first. */
static bool adoptable(uint16_t type) {
    const struct frame_info *info = frame_info(type);
    return info && info->numbering == FRAME_REPEAT;
}

/* ---- objects ---------------------------------------------------------------------------------------- */

void call_destroy(struct call *call) {
    if (!call) return;
    codec_arena_free(call->arena);
    free(call->frame);
    free(call->body);
    free(call);
}

static struct call *call_make(void) {
    struct call *call = calloc(1, sizeof *call);
    if (!call) return NULL;
    pthread_condattr_t attr;
    call->arena = codec_arena_new();
    call->frame = malloc(FRAME_LIMIT);
    call->body = malloc(FRAME_LIMIT);
    bool ok = call->arena && call->frame && call->body && pthread_condattr_init(&attr) == 0;
    if (ok) {
        pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
        ok = pthread_cond_init(&call->changed, &attr) == 0;
        pthread_condattr_destroy(&attr);
    }
    if (ok) return call;
    call_destroy(call);
    return NULL;
}

struct call *call_new(struct kvd_client *c) {
    struct call *call = c->free_calls;
    if (call) c->free_calls = call->next;
    else call = call_make();
    if (!call) return NULL;
    call->next = NULL;
    call->id = c->next_id++;
    call->state = CALL_SENT;
    call->keeper = CALL_WAITED;
    call->resumed = call->waiting = call->pinned = call->stale = call->adopted = false;
    call->n_touched = 0;
    call->moved.bits = 0;
    call->frame_bytes = call->body_bytes = 0;
    memset(&call->header, 0, sizeof call->header);
    return call;
}

void call_insert(struct kvd_client *c, struct call *call) {
    struct call **bucket = &c->pending[call->id % CLIENT_BUCKETS];
    call->next = *bucket;
    *bucket = call;
    c->n_pending++;
}

struct call *call_lookup(struct kvd_client *c, uint64_t id) {
    struct call *call = c->pending[id % CLIENT_BUCKETS];
    while (call && call->id != id) call = call->next;
    return call;
}

void call_free(struct kvd_client *c, struct call *call) {
    struct call **at = &c->pending[call->id % CLIENT_BUCKETS];
    while (*at && *at != call) at = &(*at)->next;
    if (*at) {
        *at = call->next;
        c->n_pending--;
        if (call->keeper == CALL_LEFT) c->n_left--;
        if (call->keeper == CALL_TICKET && call->state == CALL_ANSWERED) c->n_tickets_answered--;
        client_update_fd(c);
        pthread_cond_broadcast(&c->turn);
    }
    call->next = c->free_calls;
    c->free_calls = call;
}

void call_done(struct kvd_client *c, struct call *call) {
    pthread_mutex_lock(&c->lock);
    call_free(c, call);
    pthread_mutex_unlock(&c->lock);
}

/* Nobody waits for it any longer. A mutating call may have run: it is kept for a repeat; a query is of no more use. */
static void call_leave(struct kvd_client *c, struct call *call) {
    if (!call_mutates(call->type) && !call->pinned) {
        call_free(c, call);
        return;
    }
    if (call->keeper == CALL_TICKET && call->state == CALL_ANSWERED) c->n_tickets_answered--;
    call->keeper = CALL_LEFT;
    c->n_left++;
    client_watch(c, false); /* its answer may still come */
}

/* A frame of so many bytes has left the connection; 0: its caller has gone, and nobody knows how many. */
static void give_room(struct kvd_client *c, size_t bytes) {
    c->room_frames -= c->room_frames > 0;
    c->room_bytes -= bytes < c->room_bytes ? bytes : c->room_bytes;
    if (!c->room_frames) c->room_bytes = 0;
}

struct call *call_arrived(struct kvd_client *c, const struct frame_head *head, const uint8_t *body) {
    struct call *call = call_lookup(c, head->id);
    if (!call || call->state == CALL_ANSWERED) {
        c->stray_frames++;
        if (!call) give_room(c, 0);
        return NULL;
    }
    call->body_type = head->type;
    call->body_bytes = head->length + 4 - FRAME_HEADER;
    memcpy(call->body, body, call->body_bytes);
    call->state = CALL_ANSWERED;
    give_room(c, call->frame_bytes);
    if (call->keeper == CALL_TICKET) {
        c->n_tickets_answered++;
        client_update_fd(c);
    }
    return call;
}

/* ---- sending --------------------------------------------------------------------------------------------- */

enum kvd_status call_encode(struct call *call, struct msg_request *request, struct kvd_error *error) {
    char why[KVD_MESSAGE_BYTES] = "";
    size_t bytes;
    request->header = call->header;
    call->type = request->type;
    codec_arena_reset(call->arena);
    int rc = codec_encode_request(request, call->arena, call->frame + FRAME_HEADER, FRAME_LIMIT - FRAME_HEADER, &bytes,
                                  why, sizeof why);
    if (rc != 0) {
        return client_fail(error, rc < 0 ? KVD_INTERNAL : KVD_INVALID_ARGUMENT, "%s cannot be put into a message: %s",
                           frame_type_name(request->type), why);
    }
    frame_head_write(call->frame, request->type, 0, call->id, bytes);
    call->frame_bytes = FRAME_HEADER + bytes;
    return KVD_OK;
}

int call_transmit(struct kvd_client *c, struct call *call, uint64_t deadline_ns, bool room, size_t *ret_sent) {
    return transport_send(c->link->transport, call->frame, call->frame_bytes, room ? TRANSPORT_NEVER : deadline_ns,
                          ret_sent);
}

/* Which sequences a request is about, and which continuation it moves. */
static void note_touched(struct call *call, const struct msg_request *request) {
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

static bool share_sequence(const struct call *a, const struct call *b) {
    for (uint32_t i = 0; i < a->n_touched; i++)
        for (uint32_t k = 0; k < b->n_touched; k++)
            if (a->touched[i].bits == b->touched[k].bits) return true;
    return false;
}

/* What was moved may be elsewhere after another move of it, or an activation: those restore and demote. */
static bool moves_again(const struct call *left, const struct call *call, uint16_t type) {
    return left->moved.bits && (type == FRAME_ACTIVATE || left->moved.bits == call->moved.bits);
}

static bool refused_unrun(struct call *left, struct call *scratch) {
    struct msg_reply reply;
    codec_arena_reset(scratch->arena);
    return codec_decode_reply(left->body_type, left->body, left->body_bytes, scratch->arena, &reply, NULL, 0) == 0 &&
           reply.status == KVD_DEADLINE_EXCEEDED;
}

/* A LEFT call that is this very request: encoded under its header the request gives its bytes. call is scratch. What
 * the request is about is changed by it, so that LEFT calls about the same sequences go stale. */
static struct call *find_left(struct kvd_client *c, struct call *call, struct msg_request *request) {
    struct call *found = NULL;
    for (uint32_t i = 0; i < CLIENT_BUCKETS; i++) {
        for (struct call *left = c->pending[i]; left; left = left->next) {
            if (left->keeper != CALL_LEFT || left->stale) continue;
            call->header = left->header;
            if (!found && left->type == request->type && adoptable(request->type) &&
                call_encode(call, request, NULL) == KVD_OK && call->frame_bytes == left->frame_bytes &&
                memcmp(call->frame + FRAME_HEADER, left->frame + FRAME_HEADER, left->frame_bytes - FRAME_HEADER) == 0)
                found = left;
            else if (share_sequence(left, call) || moves_again(left, call, request->type)) left->stale = true;
        }
    }
    if (found && found->state == CALL_ANSWERED && refused_unrun(found, call)) {
        call_free(c, found);
        return NULL;
    }
    return found;
}

/* Waits until a request may be sent. */
static enum kvd_status take_turn(struct kvd_client *c, uint64_t deadline_ns, struct kvd_error *error) {
    for (;;) {
        if (c->dead) return client_fail(error, KVD_ABORTED, "%s", c->why_dead);
        if (!c->sending && !c->resuming) break;
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
static struct call *oldest(struct kvd_client *c, bool answered) {
    struct call *low = NULL;
    for (uint32_t i = 0; i < CLIENT_BUCKETS; i++) {
        for (struct call *call = c->pending[i]; call; call = call->next) {
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
static int make_room(struct kvd_client *c, uint64_t deadline_ns) {
    if (c->n_pending < CLIENT_WINDOW && !c->n_left) return 0;
    if (c->n_left > CLIENT_WINDOW) {
        struct call *late = oldest(c, true);
        if (late && !late->pinned) call_free(c, late);
    }
    struct call *low = oldest(c, false);
    if (!low || c->next_sequence - low->header.sequence < CLIENT_WINDOW) return 0;
    if (low->keeper == CALL_LEFT && !low->pinned) {
        call_free(c, low);
        return 1;
    }
    return client_wait(c, &c->turn, deadline_ns) ? 1 : -1;
}

/* With the turn: number, bytes, table, socket. */
static enum kvd_status send_new(struct kvd_client *c, struct call *call, struct msg_request *request,
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
        give_room(c, call->frame_bytes);
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
                                    uint64_t deadline_ns, struct call **ret_call, struct kvd_error *error) {
    enum kvd_status status;
    int room;
    do {
        if ((status = take_turn(c, deadline_ns, error)) != KVD_OK) return status;
        room = call_mutates(request->type) ? make_room(c, deadline_ns) : 0;
    } while (room > 0);
    if (keeper == CALL_TICKET) client_watch(c, true);
    if (room < 0) {
        return client_fail(error, KVD_RESOURCE_EXHAUSTED,
                           "%u changing requests are open already; nothing was sent: collect the answers of "
                           "some first",
                           CLIENT_WINDOW);
    }
    struct call *call = call_new(c);
    if (!call) return client_fail(error, KVD_RESOURCE_EXHAUSTED, "out of memory for a request; nothing was sent");
    note_touched(call, request);
    struct call *left = c->n_left && call_mutates(request->type) ? find_left(c, call, request) : NULL;
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
                           uint64_t deadline_ns, struct call **ret_call, struct kvd_error *error) {
    pthread_mutex_lock(&c->lock);
    enum kvd_status status = start_locked(c, request, keeper, deadline_ns, ret_call, error);
    pthread_mutex_unlock(&c->lock);
    return status;
}

/* ---- waiting ------------------------------------------------------------------------------------------------ */

static enum kvd_status no_answer(struct kvd_client *c, const struct call *call, struct kvd_error *error) {
    return client_fail(error, KVD_DEADLINE_EXCEEDED, "kvd at %s did not answer %s in time; %s", c->path,
                       frame_type_name(call->type),
                       call_mutates(call->type)
                           ? "it may have run: repeat the same call to learn its outcome, it will not run twice"
                           : "ask again");
}

/* With the lock held, let go meanwhile: reads the connection once. False: the deadline has passed. */
static bool read_once(struct kvd_client *c, uint64_t deadline_ns) {
    struct link *link = c->link;
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
static bool wait_for(struct kvd_client *c, struct call *call, uint64_t deadline_ns) {
    struct link *link = c->link;
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
        for (struct call *call = c->pending[i]; call; call = call->next) {
            if (!call->waiting || call->state != CALL_SENT) continue;
            pthread_cond_signal(&call->changed);
            return;
        }
    }
}

static enum kvd_status wait_answer(struct kvd_client *c, struct call *call, uint64_t deadline_ns,
                                   struct kvd_error *error) {
    while (call->state != CALL_ANSWERED) {
        if (call->state == CALL_BROKEN) {
            if (c->dead) return client_fail(error, KVD_ABORTED, "%s", c->why_dead);
            if (transport_now() >= deadline_ns) return no_answer(c, call, error);
            if (call->resumed) {
                return client_fail(error, KVD_UNAVAILABLE,
                                   "the connection to kvd at %s broke again (%s) before %s was answered: call "
                                   "kvd_client_reconnect and repeat the same call",
                                   c->path, c->link->why, frame_type_name(call->type));
            }
            enum kvd_status status = client_resume(c, deadline_ns, error);
            if (status != KVD_OK) return status;
        } else if (!wait_for(c, call, deadline_ns) && call->state == CALL_SENT) {
            return no_answer(c, call, error);
        }
    }
    return KVD_OK;
}

/* The answer is there and is the caller's alone. */
static enum kvd_status read_answer(struct kvd_client *c, struct call *call, struct msg_reply *ret_reply,
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

enum kvd_status call_finish(struct kvd_client *c, struct call *call, uint64_t deadline_ns, struct msg_reply *ret_reply,
                            struct kvd_error *error) {
    pthread_mutex_lock(&c->lock);
    enum kvd_status status = wait_answer(c, call, deadline_ns, error);
    if (status != KVD_OK) call_leave(c, call);
    pass_reading_on(c);
    pthread_mutex_unlock(&c->lock);
    if (status != KVD_OK) return status;
    status = read_answer(c, call, ret_reply, error);
    if (status != KVD_OK) call_done(c, call);
    return status;
}

enum kvd_status call_run(struct kvd_client *c, struct msg_request *request, struct call **ret_call,
                         struct msg_reply *ret_reply, struct kvd_error *error) {
    enum kvd_status status = client_guard(c, error);
    if (status != KVD_OK) return status;
    uint64_t deadline_ns = client_deadline(c);
    struct call *call;
    bool adopted;
    do {
        status = call_start(c, request, CALL_WAITED, deadline_ns, &call, error);
        if (status != KVD_OK) return status;
        adopted = call->adopted;
        status = call_finish(c, call, deadline_ns, ret_reply, error);
        /* kvd got to the first one after its deadline and refused it: it never ran, so this one does. */
    } while (adopted && status == KVD_DEADLINE_EXCEEDED && transport_now() < deadline_ns);
    if (status == KVD_OK) *ret_call = call;
    return status;
}
