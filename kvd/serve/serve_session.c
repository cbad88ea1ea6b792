/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests about sessions: Hello, OpenRing, Goodbye, Subscribe, groups, Fence, Yield, Drain.
 */
#include <inttypes.h>
#include <string.h>

#include "bundle.h"
#include "core.h"
#include "events.h"
#include "former_processes.h"
#include "log.h"
#include "mutant.h"
#include "requests.h"
#include "session.h"
#include "tenant.h"

#ifndef KVD_VERSION
#error "KVD_VERSION is set by the build"
#endif

static bool check_hello(struct call *call) {
    const struct kvd_hello *hello = &call->request.u.hello;
    const struct service *s = call->service;
    if (hello->protocol != KVD_PROTOCOL_VERSION)
        call_refuse(call, KVD_FAILED_PRECONDITION,
                    "the client speaks protocol %u, this kvd speaks %u; use the libkvd of this version (" KVD_VERSION
                    ")",
                    hello->protocol, KVD_PROTOCOL_VERSION);
    else if (hello->role < KVD_ROLE_OBSERVER || hello->role > KVD_ROLE_ADMIN)
        call_refuse(call, KVD_INVALID_ARGUMENT,
                    "role %u does not exist; there are 1 observer, 2 worker, 3 scheduler, 4 admin", hello->role);
    else if (!access_allows(call, hello->role)) return false;
    else if (hello->role == KVD_ROLE_WORKER && hello->rank >= s->pools.n_ranks)
        call_refuse(call, KVD_OUT_OF_RANGE, "rank %u does not exist: the store has %u device%s, ranks begin with 0",
                    hello->rank, s->pools.n_ranks, s->pools.n_ranks > 1 ? "s" : "");
    else return true;
    return false;
}

static void welcome_session(struct call *call, struct session *session) {
    struct kvd_hello_reply *r = &call->reply.u.hello;
    struct service *s = call->service;
    r->session = session_id(s, session);
    r->secret = session->secret;
    r->epoch = s->epoch;
    r->last_sequence = session->last_sequence;
    r->protocol = KVD_PROTOCOL_VERSION;
    memcpy(r->store, s->config.store, sizeof r->store);
    snprintf(r->server, sizeof r->server, "%s", KVD_VERSION);
    r->ring = s->config.ring && call->link->ops->ring_fd;
}

/* The same process on a new connection. A child that was forked has another pid. */
static void resume_session(struct call *call) {
    const struct kvd_hello *hello = &call->request.u.hello;
    struct session *session = session_find(call->service, hello->resume);
    if (!session)
        call_refuse(call, KVD_ABORTED, "session %016" PRIx64 " no longer exists; say Hello anew", hello->resume.bits);
    else if (session->secret != hello->resume_secret)
        call_refuse(call, KVD_PERMISSION_DENIED, "the secret is not that of session %016" PRIx64, hello->resume.bits);
    else if (session->peer.pid != call->link->peer.pid || session->peer.uid != call->link->peer.uid)
        call_refuse(call, KVD_PERMISSION_DENIED,
                    "session %016" PRIx64 " belongs to process %" PRIu64 ", not to %" PRIu64 "; say Hello anew",
                    hello->resume.bits, session->peer.pid, call->link->peer.pid);
    else if (session->fenced)
        call_refuse(call, KVD_ABORTED, "session %016" PRIx64 " was fenced; say Hello anew", hello->resume.bits);
    else if (session->role != hello->role || session->rank != hello->rank)
        call_refuse(call, KVD_INVALID_ARGUMENT,
                    "session %016" PRIx64 " is %s of rank %u; resume with the same role and rank", hello->resume.bits,
                    access_role_name(session->role), session->rank);
    else {
        struct link *old = session->link;
        if (old && old != call->link) old->ops->close(old);
        session_connected(call->service, session, call->link);
        welcome_session(call, session);
    }
}

/* The last sessions are for those who can mend what took the others. */
static uint32_t sessions_kept(const struct service *s) {
    return s->config.sessions > 1 ? (s->config.sessions + 15) / 16 : 0;
}

static bool check_share(struct call *call) {
    const struct service *s = call->service;
    const struct peer *peer = &call->link->peer;
    uint32_t n = 0, limit = s->config.sessions_per_uid;
    if (limit == CONFIG_AUTO32) limit = (s->config.sessions + 1) / 2;
    if (access_is_own(peer) || call->request.u.hello.role == KVD_ROLE_ADMIN) return true;
    for (uint32_t i = 0; i < s->config.sessions; i++) n += s->sessions[i].used && s->sessions[i].peer.uid == peer->uid;
    if (n >= limit)
        call_refuse(call, KVD_RESOURCE_EXHAUSTED,
                    "uid %" PRIu64 " has %u sessions, which is its limit; end some, or raise sessions_per_uid = in "
                    "section [limits]",
                    peer->uid, n);
    else if (s->n_sessions + sessions_kept(s) >= s->config.sessions)
        call_refuse(call, KVD_RESOURCE_EXHAUSTED,
                    "there are %u sessions of %u, and the last %u are kept for root, kvd's own user and admins; end "
                    "some, or raise sessions = in section [limits]",
                    s->n_sessions, s->config.sessions, sessions_kept(s));
    else return true;
    return false;
}

void serve_hello(struct call *call) {
    struct service *s = call->service;
    if (!check_hello(call)) return;
    if (call->link->session.bits) {
        call_refuse(call, KVD_FAILED_PRECONDITION,
                    "this connection already has a session; open another connection for another one");
        return;
    }
    if (call->request.u.hello.resume.bits) {
        resume_session(call);
        return;
    }
    if (call->link->peer.pid == 0) { /* the kernel translates pids into the reader's namespace: 0 = there is none */
        call_refuse(call, KVD_FAILED_PRECONDITION,
                    "the client runs in another PID namespace, where its exit cannot be watched; "
                    "run it in the daemon's (--pid=host)");
        return;
    }
    if (call->link->spent) {
        call_refuse(call, KVD_FAILED_PRECONDITION,
                    "the session of this connection has ended; open another connection for another one");
        return;
    }
    if (call->link->peer.pidfd < 0) {
        call_refuse(call, KVD_UNAVAILABLE,
                    "process %" PRIu64
                    " cannot be watched (pidfd_open), so it gets no session; raise LimitNOFILE of kvd",
                    call->link->peer.pid);
        return;
    }
    if (!check_share(call)) return;
    int error;
    struct session *session = session_new(s, call, &error);
    if (!session && error) {
        call_refuse(call, KVD_UNAVAILABLE,
                    "process %" PRIu64 " cannot be watched (epoll: %s), so it gets no session; raise the limit "
                    "fs.epoll.max_user_watches",
                    call->link->peer.pid, strerror(error));
        return;
    }
    if (!session) {
        call_refuse(call, KVD_RESOURCE_EXHAUSTED,
                    "there are %u sessions, which is the limit; end some, or raise sessions = in section [limits]",
                    s->n_sessions);
        return;
    }
    welcome_session(call, session);
    LOG(session_log_level(session), "session %s: %s, pid %" PRIu64 ", uid %" PRIu64, session->name,
        access_role_name(session->role), session->peer.pid, session->peer.uid);
}

void serve_goodbye(struct call *call) {
    LOG(session_log_level(call->session), "session %s said goodbye", call->session->name);
    session_end(call->service, call->session, true);
    atomic_store(&call->link->greeted, false);
    call->session = NULL; /* no window to record it in */
}

/* The ring itself is made once the core mutex is free, by the transport, before this answer leaves. */
void serve_open_ring(struct call *call) {
    struct link *link = call->link;
    if (!call->service->config.ring || !link->ops->ring_fd) {
        call_refuse(call, KVD_FAILED_PRECONDITION,
                    "this kvd gives no shared segments (ring = in section [kvd]): go on over the socket");
        return;
    }
    if (link->ring_token) {
        call_refuse(call, KVD_FAILED_PRECONDITION,
                    "this connection has asked for its ring already: a connection has one ring; go on over the socket, "
                    "or connect anew");
        return;
    }
    link->ring_token = call->random | 1;
    link->ring_epoch = call->service->epoch;
    call->reply.u.ring = (struct kvd_ring_info){ .fd_token = link->ring_token,
                                                 .segment_index = LINK_RING_SEGMENT,
                                                 .doorbell_index = LINK_RING_DOORBELL };
    snprintf(call->reply.u.ring.fd_socket, sizeof call->reply.u.ring.fd_socket, "%s" FDPASS_SUFFIX,
             call->service->config.socket);
}

void serve_subscribe(struct call *call) {
    struct link *link = call->link;
    uint32_t known = KVD_EVENT_MASK(KVD_EVENT_PRESSURE) | KVD_EVENT_MASK(KVD_EVENT_BOUNDED) |
                     KVD_EVENT_MASK(KVD_EVENT_SESSION_LOST) | KVD_EVENT_MASK(KVD_EVENT_SEQUENCE_ENDED) |
                     KVD_EVENT_MASK(KVD_EVENT_DRAINING) | KVD_EVENT_MASK(KVD_EVENT_LOST) |
                     KVD_EVENT_MASK(KVD_EVENT_SHORTENED) | KVD_EVENT_MASK(KVD_EVENT_GAVE_WAY);
    if (call->request.u.event_mask & ~known) {
        call_refuse(call, KVD_INVALID_ARGUMENT, "event mask 0x%x has unknown kinds; known are 0x%x",
                    call->request.u.event_mask, known);
        return;
    }
    link->event_mask = call->request.u.event_mask;
    if (!link->events) {
        link->events = call->ring;
        call->ring = NULL;
    }
    if (link->subscribed) return;
    link->subscribed = true;
    link->next_subscriber = call->service->subscribers;
    call->service->subscribers = link;
}

/* ---- groups -------------------------------------------------------------------------------- */

static bool check_member(struct call *call, const struct kvd_group *g, uint32_t rank) {
    struct session *m = session_find(call->service, g->members[rank]);
    for (uint32_t i = 0; i < rank; i++)
        if (g->members[i].bits == g->members[rank].bits) {
            call_refuse(call, KVD_INVALID_ARGUMENT,
                        "ranks %u and %u are the same session; a group has one process a device", i, rank);
            return false;
        }
    if (!m)
        call_refuse(call, KVD_NOT_FOUND, "the session of rank %u does not exist; open the group with living sessions",
                    rank);
    else if (m->role != KVD_ROLE_WORKER)
        call_refuse(call, KVD_INVALID_ARGUMENT, "the session of rank %u is a %s; members are workers", rank,
                    access_role_name(m->role));
    else if (m->rank != rank && !MUTANT(rank_twice_in_a_group))
        call_refuse(call, KVD_INVALID_ARGUMENT, "member %u said Hello as rank %u; list members by rank", rank, m->rank);
    else if (m->fenced || !m->link)
        call_refuse(call, KVD_FAILED_PRECONDITION, "the session of rank %u is %s", rank,
                    m->fenced ? "fenced" : "not connected");
    else return tenant_may_lease(call, m);
    return false;
}

void serve_open_group(struct call *call) {
    const struct kvd_group *g = &call->request.u.group;
    struct service *s = call->service;
    if (g->n != s->pools.n_ranks) {
        call_refuse(call, KVD_INVALID_ARGUMENT, "a group has one session a device: %u, not %u", s->pools.n_ranks, g->n);
        return;
    }
    for (uint32_t rank = 0; rank < g->n; rank++)
        if (!check_member(call, g, rank)) return;
    struct group *group = group_new(s, session_id(s, call->session), g);
    if (group) call->reply.u.group = group_id(s, group);
    else call_refuse(call, KVD_RESOURCE_EXHAUSTED, "there are %u groups, which is the limit; close some", s->n_groups);
}

void serve_close_group(struct call *call) {
    struct service *s = call->service;
    struct group *group = group_find(s, call->request.u.group_id);
    if (!group)
        call_refuse(call, KVD_NOT_FOUND, "group %016" PRIx64 " does not exist, or not any more",
                    call->request.u.group_id.bits);
    else if (group->owner.bits != session_id(s, call->session).bits && call->session->role != KVD_ROLE_ADMIN)
        call_refuse(call, KVD_PERMISSION_DENIED, "the group was opened by another session, which may close it");
    else if (group->n_bundles)
        call_refuse(call, KVD_FAILED_PRECONDITION, "%u sequences are leased to the group; finish them first",
                    group->n_bundles);
    else group_drop(s, group);
}

void serve_fence(struct call *call) {
    struct service *s = call->service;
    struct session *target = session_find(s, call->request.u.session);
    if (!target)
        call_refuse(call, KVD_NOT_FOUND, "session %016" PRIx64 " does not exist, or not any more",
                    call->request.u.session.bits);
    else if (target == call->session)
        call_refuse(call, KVD_INVALID_ARGUMENT, "a session cannot fence itself; say Goodbye");
    else if (call->session->role != KVD_ROLE_ADMIN &&
             (target->peer.uid != call->session->peer.uid || target->role == KVD_ROLE_ADMIN))
        call_refuse(
            call, KVD_PERMISSION_DENIED,
            "a scheduler may fence sessions of its own user that are not admins; this one belongs to uid %" PRIu64,
            target->peer.uid);
    else if (!target->fenced) {
        LOG(LOG_NOTICE, "session %s (pid %" PRIu64 ") was fenced by %s", target->name, target->peer.pid,
            call->session->name);
        session_fence(s, target);
    }
}

void serve_yield(struct call *call) {
    struct service *s = call->service;
    kvd_session_id me = session_id(s, call->session);
    uint32_t n = 0;
    for (uint32_t i = 0; s->n_bundles && i < s->config.max_concurrency; i++) {
        struct bundle *b = &s->bundles[i];
        int place = b->used && b->ending ? bundle_driver(s, b, me) : -1;
        if (place < 0 || b->cleared >> place & 1) continue;
        b->cleared |= 1u << place;
        n++;
        bundle_update(s, b);
    }
    former_yield(s, call->session);
    call->reply.u.yielded = n;
}

void serve_drain(struct call *call) {
    struct service *s = call->service;
    bool on = call->request.u.drain;
    if (on && !s->draining) events_add(s, &(struct kvd_event){ .kind = KVD_EVENT_DRAINING }, NULL, NULL);
    if (on != s->draining)
        LOG(LOG_NOTICE, "draining is %s, by %s", on ? "on: activations are refused" : "off", call->session->name);
    s->draining = on;
}
