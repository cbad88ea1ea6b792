/* SPDX-License-Identifier: Apache-2.0
 *
 * A request's way: decode without a lock, take the core mutex, admit (epoch, session, sequence number, deadline, role),
 * apply, unlock, encode, record the answer, send. What a request needs in memory is reserved before the lock.
 *
 * Sequence numbers (SRV-1): a session's numbered requests are executed in order, once. Every executed one is recorded
 * with its answer, refusals too, so that a client that asks again gets the first answer. What is refused before its
 * number is looked at (no session, wrong epoch, malformed) is not executed and takes no number.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

static void (*const serve_functions[FRAME_TYPE_END])(struct call *) = {
#define SERVE(constant, number, name, function, ...) [number] = serve_##function,
    FRAME_LIST(SERVE)
#undef SERVE
};

/* ---- refusals ------------------------------------------------------------------------------ */

void call_refuse(struct call *call, enum kvd_status status, const char *format, ...) {
    va_list arguments;
    memset(&call->reply.u, 0, sizeof call->reply.u);
    call->reply.status = (uint32_t)status;
    call->short_of = METRICS_SHORT_LIMIT;
    va_start(arguments, format);
    vsnprintf(call->reply.message, sizeof call->reply.message, format, arguments);
    va_end(arguments);
}

enum kvd_status status_of_store(enum store_code code) {
    switch (code) {
    case STORE_OK: return KVD_OK;
    case STORE_E_STALE: return KVD_NOT_FOUND;
    case STORE_E_LEASE: return KVD_PERMISSION_DENIED;
    case STORE_E_STATE:
    case STORE_E_INCOMPLETE:
    case STORE_E_TIER:
    case STORE_E_PROTECTED: return KVD_FAILED_PRECONDITION;
    case STORE_E_RANGE: return KVD_OUT_OF_RANGE;
    case STORE_E_NEVER:
    case STORE_E_NAME:
    case STORE_E_ARGUMENT: return KVD_INVALID_ARGUMENT;
    case STORE_E_SHORT:
    case STORE_E_ENTITLEMENT: return KVD_RESOURCE_EXHAUSTED;
    case STORE_E_REVISION: return KVD_ABORTED;
    case STORE_E_DAMAGED: return KVD_DATA_LOSS;
    case STORE_MORE:
    case STORE_WAIT: break; /* of commits, which handle them */
    }
    return KVD_INTERNAL;
}

enum metrics_short short_of_store(const struct store_refusal *refusal) {
    static const enum metrics_short shorts[] = { [STORE_W_ROW] = METRICS_SHORT_ROWS,
                                                 [STORE_W_SEQUENCE] = METRICS_SHORT_SEQUENCES,
                                                 [STORE_W_CONTINUATION] = METRICS_SHORT_CONTINUATIONS,
                                                 [STORE_W_PAGE_DESCRIPTOR] = METRICS_SHORT_MEMBERSHIP,
                                                 [STORE_W_MEMBERSHIP] = METRICS_SHORT_MEMBERSHIP,
                                                 [STORE_W_STATE_SLOT] = METRICS_SHORT_STATE_SLOTS,
                                                 [STORE_W_ARENA] = METRICS_SHORT_ARENA };
    uint32_t pool = refusal->pool < KVD_MAX_POOLS ? refusal->pool : 0;
    if (refusal->code == STORE_E_ENTITLEMENT) return METRICS_SHORT_ENTITLEMENT;
    if (refusal->what == STORE_W_PAGES) return METRICS_SHORT_PAGES + pool;
    return (size_t)refusal->what < sizeof shorts / sizeof *shorts ? shorts[refusal->what] : METRICS_SHORT_LIMIT;
}

void call_refuse_store(struct call *call, const struct store_refusal *refusal) {
    char text[KVD_MESSAGE_BYTES];
    call_refuse(call, status_of_store(refusal->code), "%s", store_refusal_text(refusal, text, sizeof text));
    call->short_of = short_of_store(refusal);
}

/* ---- admission ------------------------------------------------------------------------------ */

enum admitted { REFUSED, APPLY, REPLAY /* the recorded body is in the frame */, WAIT /* answered later */ };

static struct session *admit_session(struct call *call) {
    struct service *s = call->service;
    const struct msg_header *h = &call->request.header;
    struct session *session = session_find(s, call->link->session);
    if (h->epoch && h->epoch != s->epoch) {
        call_refuse(call, KVD_ABORTED,
                    "the request is for instance %016" PRIx64 ", this is %016" PRIx64
                    ": kvd was restarted; connect anew",
                    h->epoch, s->epoch);
        return NULL;
    }
    if (!session) {
        struct session *other = session_find(s, h->session);
        if (other)
            call_refuse(call, KVD_ABORTED,
                        "the session is in use on another connection; go on there, or say Hello with resume here");
        else call_refuse(call, KVD_UNAUTHENTICATED, "this connection has no session, or it has ended; say Hello first");
        return NULL;
    }
    if (h->session.bits != call->link->session.bits) {
        call_refuse(call, KVD_UNAUTHENTICATED,
                    "session %016" PRIx64 " is not the one of this connection; use the session that Hello returned",
                    h->session.bits);
        return NULL;
    }
    if (session->fenced) {
        call_refuse(call, KVD_ABORTED, "the session was fenced; its sequences end with its process; connect anew");
        return NULL;
    }
    return session;
}

/* A number that was executed before: its answer, or a place in the queue for it. */
static enum admitted admit_again(struct call *call, struct session *session) {
    uint64_t n = call->request.header.sequence;
    struct answer *a = answer_find(session, n);
    if (!a || (a->state == ANSWER_DONE && !a->body)) {
        call_refuse(call, KVD_OUT_OF_RANGE,
                    "the answer to request %" PRIu64 " is no longer kept; expected is %" PRIu64
                    ", and the last %u are kept",
                    n, session->last_sequence + 1, ANSWER_WINDOW);
        return REFUSED;
    }
    if (a->type != call->request.type) {
        call_refuse(call, KVD_INVALID_ARGUMENT,
                    "request %" PRIu64 " was %s, not %s; number requests anew, next is %" PRIu64, n,
                    frame_type_name(a->type), frame_type_name(call->request.type), session->last_sequence + 1);
        return REFUSED;
    }
    if (a->state == ANSWER_PENDING) {
        if (a->n_waiters == ANSWER_WAITERS) {
            call_refuse(call, KVD_UNAVAILABLE,
                        "request %" PRIu64 " is still in work, and %u callers wait for it; ask again later", n,
                        ANSWER_WAITERS);
            return REFUSED;
        }
        a->waiter[a->n_waiters++] = (struct waiter){ link_ref(call->link), call->frame_id };
        return WAIT;
    }
    memcpy(call->scratch->frame + FRAME_HEADER, a->body, a->bytes);
    frame_head_write(call->scratch->frame, a->type, FRAME_F_REPLY, call->frame_id, a->bytes);
    return REPLAY;
}

/* The number has a place in the window, unless the one before there is still in work. Takes no number. */
static bool has_place(struct call *call, struct session *session, uint64_t n) {
    if (session->answer[n % ANSWER_WINDOW].state != ANSWER_PENDING) return true;
    call_refuse(call, KVD_UNAVAILABLE,
                "request %" PRIu64 " is still in work, and the answers of %u requests are kept; wait for it, then send "
                "this one again with the same number",
                n - ANSWER_WINDOW, ANSWER_WINDOW);
    return false;
}

static enum admitted admit_number(struct call *call, struct session *session, enum frame_numbering numbering) {
    uint64_t n = call->request.header.sequence, expected = session->last_sequence + 1;
    if (numbering == FRAME_QUERY || (numbering == FRAME_EITHER && n == 0)) return APPLY;
    if (n == 0) {
        call_refuse(call, KVD_INVALID_ARGUMENT, "%s changes things and needs a sequence number; expected is %" PRIu64,
                    frame_type_name(call->request.type), expected);
        return REFUSED;
    }
    if (n < expected) return admit_again(call, session);
    if (n > expected) {
        call_refuse(call, KVD_OUT_OF_RANGE, "sequence number %" PRIu64 " leaves a gap; expected is %" PRIu64, n,
                    expected);
        return REFUSED;
    }
    if (!has_place(call, session, n)) return REFUSED;
    call->numbered = true;
    return APPLY;
}

/* What a numbered request may be refused for, and be recorded. */
static bool may_run(struct call *call, const struct frame_info *info) {
    const struct msg_header *h = &call->request.header;
    if (!(info->roles & 1u << call->session->role)) {
        call_refuse(call, KVD_PERMISSION_DENIED, "%s is not for the role of this session; say Hello with another role",
                    frame_type_name(call->request.type));
        return false;
    }
    if (h->deadline_ns && call->now_ns > h->deadline_ns) {
        call_refuse(call, KVD_DEADLINE_EXCEEDED,
                    "the deadline had passed by %" PRIu64 " us before %s began; nothing was changed",
                    (call->now_ns - h->deadline_ns) / 1000, frame_type_name(call->request.type));
        return false;
    }
    return true;
}

static void record(struct call *call) {
    if (!call->numbered || !call->session) return;
    struct answer *a =
        answer_begin(call->service, call->session, call->request.header.sequence, call->request.type, call->slow);
    a->held = call->held || call->parked;
    if (!a->held) return;
    a->n_waiters = 1;
    a->waiter[0] = (struct waiter){ link_ref(call->link), call->frame_id };
}

/* Under the lock. */
static enum admitted apply(struct call *call, bool room) {
    const struct frame_info *info = frame_info(call->request.type);
    struct service *s = call->service;
    s->requests++;
    metrics_request(&s->metrics, call->request.type);
    if (call->request.type != FRAME_HELLO) {
        struct session *session = admit_session(call);
        if (!session) return REFUSED;
        session->requests++;
        enum admitted admitted = admit_number(call, session, info->numbering);
        if (admitted != APPLY) return admitted;
        call->session = session;
    }
    if (room && (!call->session || may_run(call, info))) serve_functions[call->request.type](call);
    record(call);
    if (call->numbered) events_pressure(s);
    return APPLY;
}

/* ---- answers ------------------------------------------------------------------------------- */

static void encode(struct scratch *scratch, struct msg_reply *reply, size_t *ret_bytes) {
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

static void post_to(struct scratch *scratch, uint16_t type, size_t bytes, struct link *link, uint64_t frame_id) {
    frame_head_write(scratch->frame, type, FRAME_F_REPLY, frame_id, bytes);
    link->ops->post(link, scratch->frame, FRAME_HEADER + bytes, false);
}

/* Stores the body and takes who waits for it, unless a device must finish first. */
static uint32_t settle_answer(struct service *s, kvd_session_id id, uint64_t sequence, uint8_t *body, size_t bytes,
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
    encode(scratch, reply, &bytes);
    if (sequence) {
        uint8_t *body = malloc(bytes ? bytes : 1);
        if (body) memcpy(body, scratch->frame + FRAME_HEADER, bytes);
        n = settle_answer(s, session, sequence, body, body ? bytes : 0, waiters, &held);
    }
    if (link && !held) post_to(scratch, reply->type, bytes, link, frame_id);
    for (uint32_t i = 0; i < n; i++) {
        post_to(scratch, reply->type, bytes, waiters[i].link, waiters[i].frame_id);
        link_unref(waiters[i].link);
    }
}

/* ---- one frame ------------------------------------------------------------------------------- */

void count_outcome(struct service *s, uint16_t type, uint32_t status, enum metrics_short short_of,
                   uint64_t arrived_ns) {
    s->refusals += status != KVD_OK;
    if (status == KVD_RESOURCE_EXHAUSTED) metrics_shortage(&s->metrics, short_of);
    metrics_answer(&s->metrics, type, status, clock_ns() - arrived_ns);
}

static void refuse_malformed(struct call *call, int error, const char *why) {
    static const enum kvd_status statuses[] = { [CODEC_E_MALFORMED] = KVD_INVALID_ARGUMENT,
                                                [CODEC_E_LIMIT] = KVD_INVALID_ARGUMENT,
                                                [CODEC_E_VALUE] = KVD_INVALID_ARGUMENT,
                                                [CODEC_E_TYPE] = KVD_UNIMPLEMENTED,
                                                [CODEC_E_SPACE] = KVD_INVALID_ARGUMENT };
    pthread_mutex_lock(&call->service->lock);
    call->service->frames_bad++;
    call->service->requests++;
    metrics_request(&call->service->metrics, call->reply.type);
    pthread_mutex_unlock(&call->service->lock);
    bool known = error > 0 && (size_t)error < sizeof statuses / sizeof *statuses;
    call_refuse(call, known ? statuses[error] : KVD_INTERNAL, "%s", why);
}

static void serve(struct call *call, const uint8_t *body, size_t bytes, uint16_t type) {
    struct service *s = call->service;
    char why[256];
    enum admitted admitted = REFUSED;
    call->reply.type = type;
    int error = codec_decode_request(type, body, bytes, call->scratch->arena, &call->request, why, sizeof why);
    if (error || !frame_info(type)) {
        refuse_malformed(call, error ? error : CODEC_E_TYPE, error ? why : "there is no such request");
    } else {
        call->request.type = type;
        bool room = call_make_room(call);
        pthread_mutex_lock(&s->lock);
        admitted = apply(call, room);
        /* What waits for a device, or for an earlier try of itself, is counted when that ends. */
        if (!call->parked && !call->held && admitted != WAIT)
            count_outcome(s, type, call->reply.status, call->short_of, call->now_ns);
        if (admitted == REPLAY) metrics_replay(&s->metrics, type);
        pthread_mutex_unlock(&s->lock);
        free(call->ring);
    }
    if (admitted == WAIT || call->parked) return;
    if (admitted == REPLAY) {
        struct frame_head head;
        (void)frame_head_read(call->scratch->frame, FRAME_HEADER, &head);
        call->link->ops->post(call->link, call->scratch->frame, head.length + 4, false);
        return;
    }
    bool numbered = call->numbered && call->session;
    /* Held: the link stands among the waiters. */
    answer_call(s, call->scratch, &call->reply, call->request.header.session,
                numbered ? call->request.header.sequence : 0, numbered && call->held ? NULL : call->link,
                call->frame_id);
}

/* The type is known before the body is: an unknown one is refused with the client's own number of it. */
bool service_serve(struct service *s, struct link *link, const uint8_t *frame, size_t bytes) {
    struct frame_head head;
    if (frame_head_read(frame, bytes, &head) || (size_t)head.length + 4 != bytes) return false;
    struct scratch *scratch = scratch_take(s);
    if (!scratch) {
        LOG(LOG_ERROR, "no memory to serve a request; its connection is closed");
        return false;
    }
    struct call call = { .service = s, .link = link, .frame_id = head.id, .now_ns = clock_ns(), .scratch = scratch };
    serve(&call, frame + FRAME_HEADER, bytes - FRAME_HEADER, head.type);
    events_flush(s, scratch);
    scratch_give(s, scratch);
    return true;
}
