/* SPDX-License-Identifier: Apache-2.0
 *
 * What every part of the library stands on: the guard against forks, times, the descriptor, who reads.
 */
#include "client.h"

#include <time.h>
#include <unistd.h>

enum kvd_status client_guard(const struct kvd_client *c, struct kvd_error *error) {
    if (!c) return client_fail(error, KVD_INVALID_ARGUMENT, "no client was given");
    if (c->pid == getpid()) return KVD_OK;
    return client_fail(error, KVD_FAILED_PRECONDITION,
                       "this client belongs to process %d, of which this one is a fork: exec, or connect in a "
                       "process that did not use libkvd before it forked",
                       (int)c->pid);
}

uint64_t client_deadline(const struct kvd_client *c) {
    return clock_ns() + (uint64_t)__atomic_load_n(&c->timeout_ms, __ATOMIC_RELAXED) * 1000000u;
}

bool client_init_cond(pthread_cond_t *cond) {
    pthread_condattr_t attr;
    if (pthread_condattr_init(&attr) != 0) return false;
    bool ok = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0 && pthread_cond_init(cond, &attr) == 0;
    pthread_condattr_destroy(&attr);
    return ok;
}

bool client_wait(struct kvd_client *c, pthread_cond_t *cond, uint64_t deadline_ns) {
    struct timespec until = { .tv_sec = (time_t)(deadline_ns / 1000000000u),
                              .tv_nsec = (long)(deadline_ns % 1000000000u) };
    return pthread_cond_timedwait(cond, &c->lock, &until) == 0;
}

void client_update_fd(struct kvd_client *c) {
    bool want = c->event_count > 0 || c->n_tickets_answered > 0 || c->dead || !c->link || c->link->lost;
    if (want == c->event_fd_set) return;
    uint64_t value = 1;
    ssize_t done = want ? write(c->event_fd, &value, sizeof value) : read(c->event_fd, &value, sizeof value);
    if (done == (ssize_t)sizeof value) c->event_fd_set = want;
}

void client_watch(struct kvd_client *c, bool always) {
    struct client_link *link = c->link;
    c->watching = c->watching || always;
    if (!link || !link->open || link->lost || link->watched || c->reader == link->number) return;
    link->watched = transport_watch(link->transport);
}

void client_watch_events(struct kvd_client *c) {
    struct client_link *link = c->link;
    c->watching_events = true;
    if (!link || !link->open || !transport_has_ring(link->transport)) client_watch(c, false);
}

/* ---- small public ones ---------------------------------------------------------------------------------- */

void kvd_client_set_timeout(kvd_client *c, uint32_t timeout_ms) {
    if (c) __atomic_store_n(&c->timeout_ms, timeout_ms ? timeout_ms : CLIENT_TIMEOUT_MS, __ATOMIC_RELAXED);
}

kvd_session_id kvd_client_session(const kvd_client *c) { return c ? c->session : (kvd_session_id){ 0 }; }

uint64_t kvd_client_epoch(const kvd_client *c) { return c ? c->epoch : 0; }

int kvd_client_fd(const kvd_client *client) {
    kvd_client *c = (kvd_client *)(uintptr_t)client; /* const says that nothing changes for the caller */
    if (!c) return -1;
    if (c->pid != getpid()) return c->event_fd;
    pthread_mutex_lock(&c->lock);
    client_watch(c, true);
    pthread_mutex_unlock(&c->lock);
    return c->event_fd;
}
