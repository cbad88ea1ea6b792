/* SPDX-License-Identifier: Apache-2.0
 *
 * Connections: what the transport tells of them, and the client object that owns one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "client.h"

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
    struct client_link *link = user;
    struct kvd_client *c = link->client;
    struct pending_call *call = NULL;
    pthread_mutex_lock(&c->lock);
    if (head->flags & FRAME_F_EVENT) queue_event(c, head, body);
    else if (head->flags & FRAME_F_REPLY) call = call_arrived(c, head, body);
    else c->stray_frames++;
    pthread_mutex_unlock(&c->lock);
    if (call) pthread_cond_signal(&call->changed);
}

static void sink_lost(void *user, const char *why) {
    struct client_link *link = user;
    struct kvd_client *c = link->client;
    pthread_mutex_lock(&c->lock);
    if (link == c->link) client_lost(c, why);
    pthread_mutex_unlock(&c->lock);
}

struct client_link *client_link_new(struct kvd_client *c) {
    struct client_link *link = calloc(1, sizeof *link);
    if (link) link->client = c;
    if (link) link->number = ++c->n_links;
    return link;
}

/* ---- life ------------------------------------------------------------------------------------------- */

struct kvd_client *client_new(const char *path) {
    struct kvd_client *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->pid = getpid();
    c->next_id = c->next_sequence = 1;
    snprintf(c->path, sizeof c->path, "%s", path);
    c->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->event_fd >= 0 && pthread_mutex_init(&c->lock, NULL) == 0 && client_init_cond(&c->turn) &&
        client_init_cond(&c->event_came))
        return c;
    if (c->event_fd >= 0) close(c->event_fd);
    free(c);
    return NULL;
}

static void free_calls(struct kvd_client *c) {
    for (uint32_t i = 0; i <= CLIENT_BUCKETS; i++) {
        struct pending_call *call = i < CLIENT_BUCKETS ? c->pending[i] : c->free_calls;
        while (call) {
            struct pending_call *next = call->next;
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
enum kvd_status client_link_open(struct kvd_client *c, struct client_link *link, uint64_t deadline_ns,
                                 struct kvd_error *error) {
    struct transport_sink sink = { .user = link, .frame = sink_frame, .lost = sink_lost };
    char why[KVD_MESSAGE_BYTES];
    int rc = transport_open(c->path, &sink, deadline_ns, &link->transport, why, sizeof why);
    switch (rc) {
    case 0:
        pthread_mutex_lock(&c->lock);
        link->open = true;
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
