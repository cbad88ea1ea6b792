/* SPDX-License-Identifier: Apache-2.0
 *
 * Sessions: slots with generations, their windows of answers, and what happens when one is lost. A connection's end
 * proves nothing (a process may reconnect): it quarantines. Exit proven by the pidfd, or a goodbye, ends.
 *
 * The pidfd is opened when the connection is accepted, before a byte is read from it. If the peer had died by then and
 * its pid had been given away, the pidfd names a stranger: its exit still comes after the peer's, so that it never
 * proves a death that did not happen.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "core.h"

kvd_session_id session_id(const struct service *s, const struct session *session) {
    return (kvd_session_id){ (uint64_t)session->generation << 32 | (uint64_t)(session - s->sessions) };
}

struct session *session_find(struct service *s, kvd_session_id id) {
    uint32_t index = (uint32_t)id.bits;
    if (!id.bits || index >= s->config.sessions) return NULL;
    struct session *session = &s->sessions[index];
    return session->used && session->generation == id.bits >> 32 ? session : NULL;
}

/* ---- answers ------------------------------------------------------------------------------- */

#define N_SLOW (sizeof((struct session *)0)->slow / sizeof *((struct session *)0)->slow)

struct answer *answer_find(struct session *session, uint64_t sequence) {
    struct answer *a = &session->answer[sequence % ANSWER_WINDOW];
    if (a->state != ANSWER_NONE && a->sequence == sequence) return a;
    for (size_t i = 0; i < N_SLOW; i++) {
        a = &session->slow[i];
        if (a->state != ANSWER_NONE && a->sequence == sequence) return a;
    }
    return NULL;
}

/* Free, or the oldest that is done; NULL: all are in work. */
static struct answer *slow_place(const struct session *session) {
    const struct answer *best = NULL;
    for (size_t i = 0; i < N_SLOW; i++) {
        const struct answer *a = &session->slow[i];
        if (a->state == ANSWER_NONE) return (struct answer *)a;
        if (a->state == ANSWER_DONE && (!best || a->sequence < best->sequence)) best = a;
    }
    return (struct answer *)best;
}

bool answer_has_slow_place(const struct session *session) { return slow_place(session); }

static void drop_body(struct service *s, struct session *session, struct answer *a) {
    session->answer_bytes -= a->bytes;
    s->answer_bytes -= a->bytes;
    free(a->body);
    a->body = NULL;
    a->bytes = 0;
}

static void answer_clear(struct service *s, struct session *session, struct answer *a) {
    drop_body(s, session, a);
    for (uint32_t i = 0; i < a->n_waiters; i++) link_unref(a->waiter[i].link);
    memset(a, 0, sizeof *a);
}

void answer_make_slow(struct service *s, struct session *session, uint64_t sequence) {
    struct answer *a = &session->answer[sequence % ANSWER_WINDOW], *slow = slow_place(session);
    if (a->state == ANSWER_NONE || a->sequence != sequence || !slow) return;
    answer_clear(s, session, slow);
    *slow = *a;
    memset(a, 0, sizeof *a);
}

struct answer *answer_begin(struct service *s, struct session *session, uint64_t sequence, uint16_t type, bool slow) {
    struct answer *a = slow ? slow_place(session) : NULL; /* who made it slow has seen that there is one */
    if (!a) a = &session->answer[sequence % ANSWER_WINDOW];
    answer_clear(s, session, a);
    a->sequence = sequence;
    a->type = type;
    a->state = ANSWER_PENDING;
    session->last_sequence = sequence;
    return a;
}

void answer_store(struct service *s, struct session *session, struct answer *answer, uint8_t *body, uint32_t bytes) {
    answer->body = body;
    answer->bytes = bytes;
    session->answer_bytes += bytes;
    s->answer_bytes += bytes;
    uint32_t limit = s->answer_bytes > ANSWER_TOTAL ? ANSWER_LEAST : ANSWER_BYTES;
    uint64_t oldest = session->last_sequence >= ANSWER_WINDOW ? session->last_sequence - ANSWER_WINDOW + 1 : 1;
    for (; session->answer_bytes > limit && oldest < session->last_sequence; oldest++) {
        struct answer *old = answer_find(session, oldest);
        if (old && old != answer && old->state == ANSWER_DONE) answer_clear(s, session, old);
    }
}

void answer_unstore(struct service *s, struct session *session, struct answer *answer) {
    if (session && answer) drop_body(s, session, answer);
}

void answers_free(struct service *s, struct session *session) {
    for (uint32_t i = 0; i < ANSWER_WINDOW; i++) answer_clear(s, session, &session->answer[i]);
    for (size_t i = 0; i < N_SLOW; i++) answer_clear(s, session, &session->slow[i]);
}

/* Nobody reads on this link any more: it is not kept for what comes. Who asks again on another one waits there. */
static void answers_leave(struct session *session, const struct link *link) {
    for (size_t i = 0; i < ANSWER_WINDOW + N_SLOW; i++) {
        struct answer *a = i < ANSWER_WINDOW ? &session->answer[i] : &session->slow[i - ANSWER_WINDOW];
        uint32_t n = 0;
        for (uint32_t k = 0; k < a->n_waiters; k++) {
            if (a->waiter[k].link == link) link_unref(a->waiter[k].link);
            else a->waiter[n++] = a->waiter[k];
        }
        a->n_waiters = n;
    }
}

/* ---- life ---------------------------------------------------------------------------------- */

struct session *session_new(struct service *s, const struct call *call, int *ret_errno) {
    const struct kvd_hello *hello = &call->request.u.hello;
    struct session *session = NULL;
    *ret_errno = 0;
    for (uint32_t i = 0; i < s->config.sessions && !session; i++)
        if (!s->sessions[i].used && s->sessions[i].generation < UINT32_MAX) session = &s->sessions[i];
    if (!session) return NULL;
    session->generation++;
    struct epoll_event e = { .events = EPOLLIN, .data.u64 = session_id(s, session).bits };
    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, call->link->peer.pidfd, &e)) {
        *ret_errno = errno;
        return NULL;
    }
    session->used = true;
    session->fenced = false;
    session->role = hello->role;
    session->rank = hello->rank;
    session->peer = call->link->peer;
    call->link->peer.pidfd = -1;
    call->link->spent = true;
    session->secret = call->random;
    memcpy(session->name, hello->name, sizeof session->name);
    session->last_sequence = session->requests = 0;
    session->n_owned = session->lookup_pages = 0;
    session->driver_start = session->fd_token = 0;
    s->n_sessions++;
    s->metrics.sessions[session->role - KVD_ROLE_OBSERVER]++;
    session_connected(s, session, call->link);
    return session;
}

static void detach(struct session *session) {
    struct link *link = session->link;
    if (!link) return;
    session->link = NULL;
    link->session.bits = 0;
    answers_leave(session, link);
    link_unref(link);
}

void session_connected(struct service *s, struct session *session, struct link *link) {
    detach(session);
    session->link = link_ref(link);
    link->session = session_id(s, session);
    atomic_store(&link->greeted, true);
    bundles_settle_all(s);
}

void session_disconnected(struct service *s, struct session *session) {
    detach(session);
    LOG(LOG_INFO,
        "session %s (pid %llu) lost its connection: its sequences are quarantined until it returns "
        "or its exit is proven",
        session->name, (unsigned long long)session->peer.pid);
    bundles_settle_all(s);
}

struct lost {
    kvd_session_id id;
    uint64_t uid;
};

static bool shares(struct service *s, struct session *with, const void *argument) {
    kvd_session_id lost = ((const struct lost *)argument)->id, me = session_id(s, with);
    if (!tenant_sees(s, with, ((const struct lost *)argument)->uid)) return false;
    if (with->role == KVD_ROLE_OBSERVER || with->role == KVD_ROLE_ADMIN) return true;
    for (uint32_t i = 0; i < s->config.max_concurrency; i++) {
        const struct bundle *b = &s->bundles[i];
        if (b->used && (b->owner.bits == lost.bits || bundle_driver(s, b, lost) >= 0) &&
            (b->owner.bits == me.bits || bundle_driver(s, b, me) >= 0))
            return true;
    }
    for (uint32_t i = 0; i < s->config.sessions; i++) {
        const struct group *g = &s->groups[i];
        bool has_lost = g->owner.bits == lost.bits, has_me = g->owner.bits == me.bits;
        for (uint32_t m = 0; g->used && m < g->n_members; m++) {
            has_lost |= g->member[m].bits == lost.bits;
            has_me |= g->member[m].bits == me.bits;
        }
        if (g->used && has_lost && has_me) return true;
    }
    return false;
}

static void tell_lost(struct service *s, const struct session *session) {
    kvd_session_id id = session_id(s, session);
    struct lost lost = { id, session->peer.uid };
    events_add(s, &(struct kvd_event){ .kind = KVD_EVENT_SESSION_LOST, .session = id }, shares, &lost);
}

void session_fence(struct service *s, struct session *session) {
    kvd_session_id id = session_id(s, session);
    tell_lost(s, session);
    session->fenced = true;
    groups_lose(s, id, false);
    bundles_lose(s, id);
    bundles_settle_all(s);
}

void session_end(struct service *s, struct session *session) {
    kvd_session_id id = session_id(s, session);
    if (!session->fenced) tell_lost(s, session);
    detach(session);
    drivers_drop(s, session);
    answers_free(s, session);
    if (session->peer.pidfd >= 0) {
        epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, session->peer.pidfd,
                  NULL); /* closing does not, while a duplicate exists */
        close(session->peer.pidfd);
    }
    session->peer.pidfd = -1;
    session->used = false; /* from here on session_find says that it is gone */
    s->n_sessions--;
    s->metrics.sessions[session->role - KVD_ROLE_OBSERVER]--;
    groups_lose(s, id, true);
    bundles_lose(s, id);
    bundles_settle_all(s);
}
