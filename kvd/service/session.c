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

#include "boards.h"
#include "bundle.h"
#include "core.h"
#include "events.h"
#include "former_processes.h"
#include "log.h"
#include "remainder.h"
#include "request.h"
#include "session.h"
#include "tenant.h"

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
    session->begun_ns = call->now_ns;
    session->n_owned = 0;
    session->lookups = (struct metrics_lookups){ 0 };
    session->process_start = session->fd_token = 0;
    s->n_sessions++;
    s->metrics.sessions[session->role - KVD_ROLE_OBSERVER]++;
    session_connected(s, session, call->link);
    return session;
}

static void detach_link(struct session *session) {
    struct link *link = session->link;
    if (!link) return;
    session->link = NULL;
    link->session.bits = 0;
    answers_leave(session, link);
    link_unref(link);
}

void session_connected(struct service *s, struct session *session, struct link *link) {
    detach_link(session);
    session->link = link_ref(link);
    link->session = session_id(s, session);
    atomic_store(&link->greeted, true);
    bundles_update_all(s);
}

void session_disconnected(struct service *s, struct session *session) {
    detach_link(session);
    LOG(session_log_level(session),
        "session %s (pid %llu) lost its connection: its sequences are quarantined until it returns "
        "or its exit is proven",
        session->name, (unsigned long long)session->peer.pid);
    bundles_update_all(s);
}

enum log_level session_log_level(const struct session *session) {
    return session->role == KVD_ROLE_OBSERVER || session->role == KVD_ROLE_ADMIN ? LOG_DEBUG : LOG_INFO;
}

struct lost {
    kvd_session_id id;
    uint64_t uid;
    bool in_order;
};

static bool shares_work(struct service *s, struct session *with, const void *argument) {
    const struct lost *which = argument;
    kvd_session_id lost = which->id, me = session_id(s, with);
    if (!tenant_sees(s, with, which->uid)) return false;
    if (!which->in_order && (with->role == KVD_ROLE_OBSERVER || with->role == KVD_ROLE_ADMIN)) return true;
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

static void tell_lost(struct service *s, const struct session *session, bool in_order) {
    kvd_session_id id = session_id(s, session);
    struct lost lost = { id, session->peer.uid, in_order };
    events_add(s, &(struct kvd_event){ .kind = KVD_EVENT_SESSION_LOST, .session = id }, shares_work, &lost);
}

void session_fence(struct service *s, struct session *session) {
    kvd_session_id id = session_id(s, session);
    tell_lost(s, session, false);
    session->fenced = true;
    groups_lose(s, id, false);
    bundles_lose(s, id);
    bundles_update_all(s);
}

void session_end(struct service *s, struct session *session, bool in_order) {
    kvd_session_id id = session_id(s, session);
    if (!session->fenced) tell_lost(s, session, in_order);
    detach_link(session);
    process_forget(s, session);
    answers_free(s, session);
    free(session->growth);
    session->growth = NULL;
    board_take_back(s, session);
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
    bundles_update_all(s);
    remainders_release(s);
}
