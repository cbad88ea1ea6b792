/* SPDX-License-Identifier: Apache-2.0
 *
 * Sessions: Hello, and resuming after a lost connection.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client.h"
#include "fds.h"

/* ---- a request of the library's own ------------------------------------------------------------------ */

/* While nobody else sends: one request and its answer, without retry. The lock is not held. */
static enum kvd_status exchange_alone(struct kvd_client *c, struct msg_request *request, uint64_t deadline_ns,
                                      struct msg_reply *ret_reply, struct kvd_error *error) {
    size_t sent;
    pthread_mutex_lock(&c->lock);
    struct pending_call *call = call_new(c);
    if (call) {
        call->resumed = true;
        if (request->type != FRAME_HELLO)
            call->header = (struct msg_header){ .session = c->session, .deadline_ns = deadline_ns, .epoch = c->epoch };
        call_insert(c, call);
    }
    pthread_mutex_unlock(&c->lock);
    if (!call) return client_fail(error, KVD_RESOURCE_EXHAUSTED, "out of memory for a request");
    enum kvd_status status = call_encode(call, request, error);
    if (status == KVD_OK && call_transmit(c, call, deadline_ns, true, &sent) != 0)
        status = client_fail(error, KVD_UNAVAILABLE, "the connection to kvd at %s broke at once", c->path);
    if (status == KVD_OK) {
        pthread_mutex_lock(&c->lock);
        status = call_await(c, call, deadline_ns, error);
        status = call_conclude(c, call, status, ret_reply, error);
        if (status != KVD_OK) return status;
    }
    call_done(c, call); /* Hello's and Subscribe's answers hold no pointers */
    return status;
}

static enum kvd_status say_hello(struct kvd_client *c, uint64_t deadline_ns, struct kvd_hello_reply *ret_hello,
                                 struct kvd_error *error) {
    struct msg_request request = { .type = FRAME_HELLO, .u.hello = c->hello };
    struct msg_reply reply;
    enum kvd_status status = exchange_alone(c, &request, deadline_ns, &reply, error);
    if (status == KVD_OK) *ret_hello = reply.u.hello;
    return status;
}

/* ---- the ring --------------------------------------------------------------------------------------------- */

#define RING_PATIENCE_NS UINT64_C(2000000000)

/* Those who are in a hurry get the connection's shared segment. Whatever fails, the socket serves as well. The lock is
 * not held, and nobody sends or reads. */
static void open_ring(struct kvd_client *c, const struct kvd_hello_reply *hello, uint64_t deadline_ns) {
    struct msg_request request = { .type = FRAME_OPEN_RING };
    struct msg_reply reply;
    const struct kvd_ring_info *info = &reply.u.ring;
    int segment = -1, doorbell = -1;
    if (!hello->ring || (c->hello.role != KVD_ROLE_WORKER && c->hello.role != KVD_ROLE_SCHEDULER)) return;
    uint64_t most = clock_ns() + RING_PATIENCE_NS;
    if (deadline_ns > most) deadline_ns = most;
    if (exchange_alone(c, &request, deadline_ns, &reply, NULL) != KVD_OK) return;
    struct fds fds = { -1, info->fd_token };
    enum kvd_status status = fds_fetch(&fds, info->fd_socket, info->segment_index, deadline_ns, &segment, NULL);
    fds.token = info->fd_token; /* of a ring every request carries it */
    if (status == KVD_OK) status = fds_fetch(&fds, info->fd_socket, info->doorbell_index, deadline_ns, &doorbell, NULL);
    fds_close(&fds);
    if (status == KVD_OK) transport_use_ring(c->link->transport, segment, doorbell, c->epoch);
    else if (segment >= 0) close(segment);
}

/* ---- connecting ----------------------------------------------------------------------------------------- */

static const char *socket_path(const struct kvd_connect_options *o) {
    if (o->socket) return o->socket;
    const char *path = secure_getenv("KVD_SOCKET");
    return path && *path ? path : "/run/kvd/kvd.sock";
}

/* Names travel in [A-Za-z0-9._:/-]; anything else in a program's name becomes '-'. */
static void default_name(char *ret_name) {
    const char *name =
        program_invocation_short_name && *program_invocation_short_name ? program_invocation_short_name : "client";
    snprintf(ret_name, KVD_NAME_BYTES, "%s", name);
    for (char *p = ret_name; *p; p++)
        if (!strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:/-", *p)) *p = '-';
}

static enum kvd_status check_options(const struct kvd_connect_options *o, kvd_client **ret_client,
                                     struct kvd_error *error) {
    if (!o || !ret_client)
        return client_fail(error, KVD_INVALID_ARGUMENT, "kvd_connect needs options and a place for the client");
    if (o->struct_size < sizeof *o) {
        return client_fail(error, KVD_INVALID_ARGUMENT,
                           "kvd_connect_options.struct_size is %zu, this library's struct has %zu bytes: set it to "
                           "sizeof(struct kvd_connect_options)",
                           o->struct_size, sizeof *o);
    }
    if (o->role < KVD_ROLE_OBSERVER || o->role > KVD_ROLE_ADMIN)
        return client_fail(error, KVD_INVALID_ARGUMENT, "role %d is none of observer 1, worker 2, scheduler 3, admin 4",
                           (int)o->role);
    if (o->name && strlen(o->name) >= KVD_NAME_BYTES)
        return client_fail(error, KVD_INVALID_ARGUMENT, "the name has %zu bytes; at most %d", strlen(o->name),
                           KVD_NAME_BYTES - 1);
    if (o->rank >= KVD_MAX_RANKS)
        return client_fail(error, KVD_INVALID_ARGUMENT, "rank %u; ranks are 0 to %d", o->rank, KVD_MAX_RANKS - 1);
    if (strlen(socket_path(o)) >= sizeof((kvd_client *)0)->path)
        return client_fail(error, KVD_INVALID_ARGUMENT, "the socket path %s is longer than a socket path can be",
                           socket_path(o));
    return KVD_OK;
}

enum kvd_status kvd_connect(const struct kvd_connect_options *o, kvd_client **ret_client, struct kvd_error *error) {
    enum kvd_status status = check_options(o, ret_client, error);
    if (status != KVD_OK) return status;
    struct kvd_client *c = client_new(socket_path(o));
    if (c) c->link = client_link_new(c);
    if (!c || !c->link) {
        if (c) client_free(c);
        return client_fail(error, KVD_RESOURCE_EXHAUSTED, "no memory or no file descriptor for a client");
    }
    kvd_client_set_timeout(c, o->timeout_ms);
    c->hello = (struct kvd_hello){ .protocol = KVD_PROTOCOL_VERSION, .role = (uint32_t)o->role, .rank = o->rank };
    snprintf(c->hello.library, sizeof c->hello.library, "libkvd-%s", kvd_version());
    if (o->name) snprintf(c->hello.name, sizeof c->hello.name, "%s", o->name);
    else default_name(c->hello.name);

    uint64_t deadline_ns = client_deadline(c);
    struct kvd_hello_reply hello;
    status = client_link_open(c, c->link, deadline_ns, error);
    if (status == KVD_OK) status = say_hello(c, deadline_ns, &hello, error);
    if (status == KVD_OK && hello.protocol != KVD_PROTOCOL_VERSION) {
        status = client_fail(error, KVD_FAILED_PRECONDITION,
                             "kvd at %s speaks protocol %u, this library %u: install matching versions", c->path,
                             hello.protocol, KVD_PROTOCOL_VERSION);
    }
    if (status != KVD_OK) {
        client_free(c);
        return status;
    }
    c->session = hello.session;
    c->secret = hello.secret;
    c->epoch = hello.epoch;
    c->next_sequence = hello.last_sequence + 1;
    open_ring(c, &hello, deadline_ns);
    *ret_client = c;
    return KVD_OK;
}

/* ---- resuming --------------------------------------------------------------------------------------------- */

/* The session cannot be had again. */
static enum kvd_status end_session(struct kvd_client *c, struct kvd_error *error, const char *why) {
    c->dead = true;
    snprintf(c->why_dead, sizeof c->why_dead, "%s", why);
    return client_fail(error, KVD_ABORTED, "%s", why);
}

static bool final_refusal(enum kvd_status status) {
    return status == KVD_NOT_FOUND || status == KVD_ABORTED || status == KVD_UNAUTHENTICATED ||
           status == KVD_PERMISSION_DENIED || status == KVD_FAILED_PRECONDITION || status == KVD_INVALID_ARGUMENT;
}

/* Under the lock: judges the answer to a resuming Hello. */
static enum kvd_status judge_hello(struct kvd_client *c, enum kvd_status status, const struct kvd_hello_reply *hello,
                                   const struct kvd_error *refusal, struct kvd_error *error) {
    char why[KVD_MESSAGE_BYTES];
    if (status == KVD_OK && hello->epoch == c->epoch && hello->session.bits == c->session.bits) return KVD_OK;
    if (status == KVD_OK && hello->epoch != c->epoch) {
        snprintf(why, sizeof why,
                 "kvd at %s is another instance than this session's (epoch %016llx, was %016llx): sequences are gone, "
                 "mapped memory is stale; connect and attach anew",
                 c->path, (unsigned long long)hello->epoch, (unsigned long long)c->epoch);
        return end_session(c, error, why);
    }
    if (status == KVD_OK) return end_session(c, error, "kvd gave another session instead of this one: connect anew");
    if (!final_refusal(status)) return client_fail(error, status, "%s", refusal->message);
    snprintf(why, sizeof why, "kvd does not resume the session: %.300s: connect anew", refusal->message);
    return end_session(c, error, why);
}

static int by_id(const void *a, const void *b) {
    const struct pending_call *x = *(struct pending_call *const *)a, *y = *(struct pending_call *const *)b;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Another number for a request that never ran. */
static bool renumber_call(struct pending_call *call, uint64_t sequence) {
    struct msg_request request;
    size_t bytes;
    codec_arena_reset(call->arena);
    if (codec_decode_request(call->type, call->frame + FRAME_HEADER, call->frame_bytes - FRAME_HEADER, call->arena,
                             &request, NULL, 0) != 0)
        return false;
    request.header.sequence = call->header.sequence = sequence;
    if (codec_encode_request(&request, call->arena, call->frame + FRAME_HEADER, FRAME_LIMIT - FRAME_HEADER, &bytes,
                             NULL, 0) != 0)
        return false;
    frame_head_write(call->frame, call->type, 0, call->id, bytes);
    call->frame_bytes = FRAME_HEADER + bytes;
    return true;
}

/* Under the lock: what is to be sent again, in the order of sending (ids grow with it). Numbers past `last` never ran:
 * LEFT ones go, the others close up. */
static bool prepare_resend(struct kvd_client *c, uint64_t last, struct pending_call **ret_calls, uint32_t *ret_n) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < CLIENT_BUCKETS; i++) {
        struct pending_call *next;
        for (struct pending_call *call = c->pending[i]; call; call = next) {
            next = call->next;
            if (call->state != CALL_BROKEN) continue;
            if (call->keeper == CALL_LEFT && call->header.sequence > last) call_free(c, call);
            else ret_calls[n++] = call;
        }
    }
    if (n) qsort(ret_calls, n, sizeof *ret_calls, by_id);
    c->next_sequence = last + 1;
    for (uint32_t i = 0; i < n; i++) {
        struct pending_call *call = ret_calls[i];
        if (call->header.sequence <= last) continue;
        if (call->header.sequence != c->next_sequence && !renumber_call(call, c->next_sequence)) return false;
        c->next_sequence++;
    }
    *ret_n = n;
    return true;
}

/* Under the lock, let go for each frame. */
static void send_again(struct kvd_client *c, struct pending_call **calls, uint32_t n, uint64_t deadline_ns) {
    if (n > 1) client_watch(c, false); /* kvd reads on only while its answers are read, and no caller waits yet */
    for (uint32_t i = 0; i < n; i++) calls[i]->pinned = true;
    for (uint32_t i = 0; i < n; i++) {
        struct pending_call *call = calls[i];
        if (!c->link->lost && !(call->keeper == CALL_LEFT && !call->header.sequence)) {
            size_t sent;
            call->state = CALL_SENT;
            call->resumed = true;
            c->room_frames++;
            c->room_bytes += call->frame_bytes;
            pthread_mutex_unlock(&c->lock);
            int rc = call_transmit(c, call, deadline_ns, false, &sent);
            pthread_mutex_lock(&c->lock);
            if (rc != 0) client_lost(c, "the connection broke while sending again");
        }
        call->pinned = false;
        if (call->keeper == CALL_LEFT && !call->header.sequence) call_free(c, call);
    }
}

static void subscribe_again(struct kvd_client *c, uint64_t deadline_ns) {
    struct msg_request request = { .type = FRAME_SUBSCRIBE, .u.event_mask = c->event_mask };
    struct msg_reply reply;
    if (!c->event_mask || c->link->lost) return;
    pthread_mutex_unlock(&c->lock);
    exchange_alone(c, &request, deadline_ns, &reply, NULL); /* a lost connection shows itself */
    pthread_mutex_lock(&c->lock);
}

/* resuming is set and nobody sends. The lock is held and let go meanwhile. */
static enum kvd_status resume_now(struct kvd_client *c, struct client_link *link, uint64_t deadline_ns,
                                  struct kvd_error *error) {
    struct kvd_hello_reply hello = { 0 };
    struct kvd_error refusal = { .message = "" };
    struct client_link *old = c->link;
    c->link = link;
    c->room_frames = 0;
    c->room_bytes = 0;
    c->hello.resume = c->session;
    c->hello.resume_secret = c->secret;
    pthread_mutex_unlock(&c->lock);
    transport_close(old->transport);
    free(old);
    enum kvd_status status = client_link_open(c, link, deadline_ns, &refusal);
    bool open = status == KVD_OK;
    if (open) status = say_hello(c, deadline_ns, &hello, &refusal);
    if (open && status == KVD_OK && hello.epoch == c->epoch) open_ring(c, &hello, deadline_ns);
    pthread_mutex_lock(&c->lock);
    if (open && c->watching) client_watch(c, true);
    if (open && c->watching_events) client_watch_events(c);
    status = open ? judge_hello(c, status, &hello, &refusal, error) : client_fail(error, status, "%s", refusal.message);

    struct pending_call **calls = NULL;
    uint32_t n = 0;
    if (status == KVD_OK && c->n_pending && !(calls = calloc(c->n_pending, sizeof *calls)))
        status = client_fail(error, KVD_RESOURCE_EXHAUSTED, "out of memory while resuming the session");
    if (status == KVD_OK && !prepare_resend(c, hello.last_sequence, calls, &n))
        status = end_session(c, error, "a pending request could not be numbered anew: connect anew");
    if (status == KVD_OK) {
        send_again(c, calls, n, deadline_ns);
        subscribe_again(c, deadline_ns);
    } else {
        client_lost(c, "the session was not resumed");
    }
    free(calls);
    return status;
}

/* How things stand after another thread's attempt. */
static enum kvd_status session_standing(struct kvd_client *c, struct kvd_error *error) {
    if (c->dead) return client_fail(error, KVD_ABORTED, "%s", c->why_dead);
    if (!c->link->lost) return KVD_OK;
    return client_fail(error, KVD_UNAVAILABLE, "the connection to kvd at %s is lost (%s): call kvd_client_reconnect",
                       c->path, c->link->why);
}

enum kvd_status client_resume(struct kvd_client *c, uint64_t deadline_ns, struct kvd_error *error) {
    bool other = false;
    while (c->sending || c->resuming) {
        other = other || c->resuming;
        if (!client_wait(c, &c->turn, deadline_ns) && (c->sending || c->resuming))
            return client_fail(error, KVD_DEADLINE_EXCEEDED, "the session with kvd at %s was not resumed in time",
                               c->path);
    }
    if (other || c->dead || !c->link->lost) return session_standing(c, error);
    struct client_link *link = client_link_new(c);
    if (!link) return client_fail(error, KVD_RESOURCE_EXHAUSTED, "out of memory for a connection");
    c->resuming = true;
    enum kvd_status status = resume_now(c, link, deadline_ns, error);
    c->resuming = false;
    pthread_cond_broadcast(&c->turn);
    client_update_fd(c);
    return status;
}

enum kvd_status kvd_client_reconnect(kvd_client *c, struct kvd_error *error) {
    enum kvd_status status = client_guard(c, error);
    if (status != KVD_OK) return status;
    pthread_mutex_lock(&c->lock);
    status = client_resume(c, client_deadline(c), error);
    pthread_mutex_unlock(&c->lock);
    return status;
}
