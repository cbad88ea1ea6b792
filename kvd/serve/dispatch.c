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
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "bundle.h"
#include "clock.h"
#include "core.h"
#include "events.h"
#include "log.h"
#include "requests.h"
#include "session.h"
#include "tenant.h"

static void (*const serve_functions[FRAME_TYPE_END])(struct call *) = {
#define SERVE(constant, number, name, function, ...) [number] = serve_##function,
    FRAME_LIST(SERVE)
#undef SERVE
};

/* ---- memory -------------------------------------------------------------------------------- */

static struct event_ring *new_ring(struct call *call) {
    pthread_mutex_lock(&call->service->lock);
    uint32_t limit = call->service->config.event_queue;
    pthread_mutex_unlock(&call->service->lock);
    struct event_ring *ring = calloc(1, sizeof *ring + limit * sizeof ring->items[0]);
    if (ring) ring->limit = limit;
    return ring;
}

static bool take_memory(struct call *call, size_t bytes) {
    call->memory = codec_arena_alloc(call->scratch->arena, bytes);
    return call->memory != NULL;
}

static bool draw_random(struct call *call) {
    return getrandom(&call->random, sizeof call->random, 0) == sizeof call->random;
}

/* Reserves what a request needs beyond its struct. Without the lock. False: refused. */
static bool call_reserve(struct call *call) {
    bool ok = true;
    switch (call->request.type) {
    case FRAME_HELLO:
        access_look(call);
        ok = draw_random(call);
        break;
    case FRAME_OPEN_RING: ok = draw_random(call); break;
    case FRAME_ROUND: ok = round_reserve(call); break;
    case FRAME_DESCRIBE_STORE: ok = draw_random(call) && take_memory(call, sizeof(struct kvd_store_info)); break;
    case FRAME_DESCRIBE_PLANES: ok = take_memory(call, KVD_MAX_LIST * sizeof(struct kvd_plane_info)); break;
    case FRAME_FIND: {
        struct kvd_find *f = &call->request.u.find;
        ok = take_memory(call, KVD_MAX_HITS * sizeof(struct kvd_hit)) && tenant_salt(call, &f->digests, f->n);
        tenant_salt_root(call, &f->root);
        break;
    }
    case FRAME_FIND_COLD:
    case FRAME_LOAD_COLD: ok = cold_reserve(call); break;
    case FRAME_CHECKPOINT: ok = victims_reserve(call); break;
    case FRAME_SET_GROWTH_VICTIMS:
        ok = !call->request.u.growth.n_victims || (call->growth = malloc(sizeof *call->growth));
        break;
    case FRAME_ACTIVATE: ok = activation_reserve(call); break;
    case FRAME_PLAN:
        ok = victims_reserve(call);
        tenant_salt_root(call, &call->request.u.activation.root.digest);
        break;
    case FRAME_CHOOSE:
        ok = victims_reserve(call);
        tenant_salt_root(call, &call->request.u.choose.activation.root.digest);
        break;
    case FRAME_LIST_CHANGES:
    case FRAME_LIST_CONTINUATIONS: ok = take_memory(call, LIST_AT_ONCE * sizeof(struct kvd_continuation_info)); break;
    case FRAME_LIST_SEQUENCES: ok = take_memory(call, LIST_AT_ONCE * sizeof(struct kvd_sequence_info)); break;
    case FRAME_LIST_SESSIONS: ok = take_memory(call, LIST_AT_ONCE * sizeof(struct kvd_session_info)); break;
    case FRAME_LIST_SETTINGS: ok = take_memory(call, LIST_AT_ONCE * sizeof(struct kvd_setting)); break;
    case FRAME_DESCRIBE_REUSE: ok = take_memory(call, sizeof(struct kvd_reuse)); break;
    case FRAME_READ_CHAIN: ok = chain_reserve(call); break;
    case FRAME_AUDIT: ok = take_memory(call, sizeof(struct kvd_audit)); break;
    case FRAME_SUBSCRIBE: ok = (call->ring = new_ring(call)) != NULL; break;
    case FRAME_STATS: call->rss_bytes = metrics_resident_bytes(); break;
    case FRAME_NAME_PAGES: ok = tenant_salt(call, &call->request.u.names.digests, call->request.u.names.n); break;
    default: break; /* its struct is all that it needs */
    }
    if (!ok)
        call_refuse(call, KVD_RESOURCE_EXHAUSTED, "no memory to serve %s now; try again",
                    frame_type_name(call->request.type));
    return ok;
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
    if (session->answers.window[n % ANSWER_WINDOW].state != ANSWER_PENDING) return true;
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

static void record_answer(struct call *call) {
    if (!call->numbered || !call->session) return;
    struct answer *a =
        answer_begin(call->service, call->session, call->request.header.sequence, call->request.type, call->slow);
    a->held = call->held || call->parked;
    if (!a->held) return;
    a->n_waiters = 1;
    a->waiter[0] = (struct waiter){ link_ref(call->link), call->frame_id };
}

/* Under the lock. */
static enum admitted apply_request(struct call *call, bool reserved) {
    const struct frame_info *info = frame_info(call->request.type);
    struct service *s = call->service;
    s->requests++;
    store_set_time(s->store, call->now_ns);
    metrics_request(&s->metrics, call->request.type);
    if (call->request.type != FRAME_HELLO) {
        struct session *session = admit_session(call);
        if (!session) return REFUSED;
        session->requests++;
        enum admitted admitted = admit_number(call, session, info->numbering);
        if (admitted != APPLY) return admitted;
        call->session = session;
    }
    if (reserved && (!call->session || may_run(call, info))) serve_functions[call->request.type](call);
    record_answer(call);
    if (call->numbered) events_pressure(s);
    return APPLY;
}

/* ---- one frame ------------------------------------------------------------------------------- */

/* So that a client knows of every answer whether its request has taken its number. */
static void note_next_number(struct call *call) {
    const struct session *session = session_find(call->service, call->link->session);
    call->reply.next_sequence = session ? session->last_sequence + 1 : 0;
}

static void refuse_malformed(struct call *call, int error, const char *why) {
    static const enum kvd_status statuses[] = { [CODEC_E_MALFORMED] = KVD_INVALID_ARGUMENT,
                                                [CODEC_E_LIMIT] = KVD_INVALID_ARGUMENT,
                                                [CODEC_E_VALUE] = KVD_INVALID_ARGUMENT,
                                                [CODEC_E_TYPE] = KVD_UNIMPLEMENTED,
                                                [CODEC_E_SPACE] = KVD_INVALID_ARGUMENT };
    pthread_mutex_lock(&call->service->lock);
    note_next_number(call);
    call->service->frames_bad++;
    call->service->requests++;
    metrics_request(&call->service->metrics, call->reply.type);
    pthread_mutex_unlock(&call->service->lock);
    bool known = error > 0 && (size_t)error < sizeof statuses / sizeof *statuses;
    call_refuse(call, known ? statuses[error] : KVD_INTERNAL, "%s", why);
}

static void serve_call(struct call *call, const uint8_t *body, size_t bytes, uint16_t type) {
    struct service *s = call->service;
    char why[256];
    enum admitted admitted = REFUSED;
    call->reply.type = type;
    int error = codec_decode_request(type, body, bytes, call->scratch->arena, &call->request, why, sizeof why);
    if (error || !frame_info(type)) {
        refuse_malformed(call, error ? error : CODEC_E_TYPE, error ? why : "there is no such request");
    } else {
        call->request.type = type;
        bool reserved = call_reserve(call);
        pthread_mutex_lock(&s->lock);
        admitted = apply_request(call, reserved);
        note_next_number(call);
        /* What waits for a device, or for an earlier try of itself, is counted when that ends. */
        if (!call->parked && !call->held && !call->auditing && admitted != WAIT)
            count_outcome(s, type, call->reply.status, call->short_of, call->now_ns);
        if (admitted == REPLAY) metrics_replay(&s->metrics, type);
        pthread_mutex_unlock(&s->lock);
        free(call->ring);
        free(call->growth);
        free(call->cold);
        audit_go_on(call);
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
    if (call->named.n) named_before_note(s->named_before, &call->named);
    if (call->used.n) reuse_curve_note(s->reuse_curve, &call->used);
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
    serve_call(&call, frame + FRAME_HEADER, bytes - FRAME_HEADER, head.type);
    events_flush(s, scratch);
    scratch_give(s, scratch);
    return true;
}
