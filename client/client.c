/* SPDX-License-Identifier: Apache-2.0
 *
 * The client object: locks, times, its descriptor, and what the transport tells it.
 */
#include "client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
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
    return transport_now() + (uint64_t)__atomic_load_n(&c->timeout_ms, __ATOMIC_RELAXED) * 1000000u;
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

/* ---- the transport's sink ------------------------------------------------------------------------- */

static void queue_event(struct kvd_client *c, const struct frame_head *head, const uint8_t *body) {
    struct kvd_event event;
    if (codec_decode_event(body, head->length + 4 - FRAME_HEADER, &event, NULL, 0) != 0) {
        c->stray_frames++;
        return;
    }
    if (c->event_count == CLIENT_EVENTS) {
        c->events_dropped += 1 + event.dropped;
        return;
    }
    event.dropped += c->events_dropped;
    c->events_dropped = 0;
    c->events[(c->event_first + c->event_count++) % CLIENT_EVENTS] = event;
    pthread_cond_broadcast(&c->event_came);
    client_update_fd(c);
}

static void sink_frame(void *user, const struct frame_head *head, const uint8_t *body) {
    struct link *link = user;
    struct kvd_client *c = link->client;
    struct call *call = NULL;
    pthread_mutex_lock(&c->lock);
    if (head->flags & FRAME_F_EVENT) queue_event(c, head, body);
    else if (head->flags & FRAME_F_REPLY) call = call_arrived(c, head, body);
    else c->stray_frames++;
    pthread_mutex_unlock(&c->lock);
    if (call) pthread_cond_signal(&call->changed);
}

static void sink_lost(void *user, const char *why) {
    struct link *link = user;
    struct kvd_client *c = link->client;
    pthread_mutex_lock(&c->lock);
    if (link == c->link) client_lost(c, why);
    pthread_mutex_unlock(&c->lock);
}

struct link *client_link_new(struct kvd_client *c) {
    struct link *link = calloc(1, sizeof *link);
    if (link) link->client = c;
    if (link) link->number = ++c->n_links;
    return link;
}

void client_watch(struct kvd_client *c, bool always) {
    struct link *link = c->link;
    c->watching = c->watching || always;
    if (!link || !link->open || link->lost || link->watched || c->reader == link->number) return;
    link->watched = true;
    transport_watch(link->transport);
}

/* ---- life ------------------------------------------------------------------------------------------- */

static bool init_waits(struct kvd_client *c) {
    pthread_condattr_t attr;
    if (pthread_condattr_init(&attr) != 0) return false;
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    bool ok = pthread_mutex_init(&c->lock, NULL) == 0 && pthread_cond_init(&c->turn, &attr) == 0 &&
              pthread_cond_init(&c->event_came, &attr) == 0;
    pthread_condattr_destroy(&attr);
    return ok;
}

struct kvd_client *client_new(const char *path) {
    struct kvd_client *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->pid = getpid();
    c->next_id = c->next_sequence = 1;
    snprintf(c->path, sizeof c->path, "%s", path);
    c->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->event_fd >= 0 && init_waits(c)) return c;
    if (c->event_fd >= 0) close(c->event_fd);
    free(c);
    return NULL;
}

static void free_calls(struct kvd_client *c) {
    for (uint32_t i = 0; i <= CLIENT_BUCKETS; i++) {
        struct call *call = i < CLIENT_BUCKETS ? c->pending[i] : c->free_calls;
        while (call) {
            struct call *next = call->next;
            call_destroy(call);
            call = next;
        }
    }
}

/* In a fork's child the locks may be held by threads that are not there: nothing is locked, nothing of the transport is
 * touched. */
void client_free(struct kvd_client *c) {
    bool own = c->pid == getpid();
    if (c->link) {
        if (own) transport_close(c->link->transport);
        else transport_forget(c->link->transport);
        free(c->link);
    }
    free_calls(c);
    close(c->event_fd);
    if (own) {
        pthread_cond_destroy(&c->turn);
        pthread_cond_destroy(&c->event_came);
        pthread_mutex_destroy(&c->lock);
    }
    free(c);
}

/* Opens a connection; the lock is not held. The link becomes the client's before the first byte can come. */
enum kvd_status client_link_open(struct kvd_client *c, struct link *link, uint64_t deadline_ns,
                                 struct kvd_error *error) {
    struct transport_sink sink = { .user = link, .frame = sink_frame, .lost = sink_lost };
    char why[KVD_MESSAGE_BYTES];
    int rc = transport_open(c->path, &sink, deadline_ns, &link->transport, why, sizeof why);
    switch (rc) {
    case 0:
        pthread_mutex_lock(&c->lock);
        link->open = true;
        if (c->watching) client_watch(c, true);
        pthread_mutex_unlock(&c->lock);
        return KVD_OK;
    case TRANSPORT_E_PATH: return client_fail(error, KVD_INVALID_ARGUMENT, "%s", why);
    case TRANSPORT_E_DENIED: return client_fail(error, KVD_PERMISSION_DENIED, "%s", why);
    case TRANSPORT_E_TIMEOUT: return client_fail(error, KVD_DEADLINE_EXCEEDED, "%s", why);
    case TRANSPORT_E_RESOURCE: return client_fail(error, KVD_RESOURCE_EXHAUSTED, "%s", why);
    case TRANSPORT_E_FORKED: return client_fail(error, KVD_FAILED_PRECONDITION, "%s", why);
    default: return client_fail(error, KVD_UNAVAILABLE, "%s", why);
    }
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
