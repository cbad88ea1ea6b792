/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes to frames and back. A receive is posted for as much as fits the buffer. The callback that brings bytes serves a
 * few of the whole frames among them, and their answers leave in one send. Where more are left, the connection takes
 * its turn behind the others, or a pause where it has had far more than its share: a client that sends many requests at
 * once does not make others wait for all of them. While a client does not read its answers, kvd does not read from it.
 * Past four times the limit, or past the time-out, kvd closes the connection.
 */
#include "connection.h"
#include "clock.h"
#include "peer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct connection *connection_of(struct link *link) { return (struct connection *)link; }

/* ---- sending --------------------------------------------------------------------------------- */

static bool append_bytes(struct buffer *b, const uint8_t *bytes, size_t n) {
    if (b->n + n > b->capacity) {
        size_t capacity = b->capacity ? b->capacity : 4096;
        while (capacity < b->n + n) capacity *= 2;
        uint8_t *grown = realloc(b->bytes, capacity);
        if (!grown) return false;
        b->bytes = grown;
        b->capacity = capacity;
    }
    memcpy(b->bytes + b->n, bytes, n);
    b->n += n;
    return true;
}

static size_t unsent_bytes(const struct connection *c) { return c->pending.n + c->flight.n - c->sent; }

/* Frees a buffer that one long answer made large. */
static void shrink_buffer(struct buffer *b) {
    if (b->capacity <= 65536) return;
    free(b->bytes);
    *b = (struct buffer){ 0 };
}

/* nng 1.5.2 never ends a send or a receive that is posted on a stream after its close. So both are posted under the
 * lock, and only while the connection is not closing: connection_close marks it under the same lock before it closes
 * the stream. Their callbacks run in other threads. */
static void send_rest(struct connection *c) {
    nng_iov iov = { .iov_buf = c->flight.bytes + c->sent, .iov_len = c->flight.n - c->sent };
    link_ref(&c->link);
    nng_aio_set_iov(c->sending, 1, &iov);
    nng_stream_send(c->stream, c->sending);
}

/* Most sends end in the call that posts them. This aio has no callback, so that no thread is woken. A send that would
 * have to wait is cancelled, and send_rest sends the rest with a callback. True: all of it is sent. */
static bool send_at_once(struct connection *c) {
    nng_iov iov = { .iov_buf = c->flight.bytes, .iov_len = c->flight.n };
    nng_aio_set_iov(c->at_once, 1, &iov);
    nng_stream_send(c->stream, c->at_once);
    nng_aio_cancel(c->at_once); /* does nothing if it has ended */
    nng_aio_wait(c->at_once);   /* it has */
    if (!nng_aio_result(c->at_once)) c->sent = nng_aio_count(c->at_once);
    return c->sent == c->flight.n;
}

/* Under the lock: since when answers wait that the peer does not read. Where so many wait that nothing is read from it
 * any more, a byte now and then does not help. */
static void note_stall(struct connection *c, bool progress) {
    bool waits = c->busy && (c->flight.answers || c->pending.answers);
    if (!waits) atomic_store(&c->stalled_since, 0);
    else if (!atomic_load(&c->stalled_since) || (progress && !c->paused)) atomic_store(&c->stalled_since, clock_ns());
}

/* Under the lock: sends what is pending, if nothing is in flight. */
static void take_off_socket(struct connection *c) {
    if (c->busy || c->corked || c->closing || !c->pending.n) return;
    struct buffer empty = c->flight;
    c->flight = c->pending;
    c->pending = empty;
    c->pending.n = 0;
    c->pending.answers = false;
    c->sent = 0;
    if (send_at_once(c)) {
        c->sent = c->flight.n = 0;
        shrink_buffer(&c->flight);
        return;
    }
    c->busy = true;
    send_rest(c);
}

/* Under the lock. False: the connection is closing, and its chain of receives ends here. */
static bool arm_receive(struct connection *c) {
    if (c->closing) return false;
    nng_iov iov = { .iov_buf = c->in.bytes + c->in.n, .iov_len = c->in.capacity - c->in.n };
    nng_aio_set_iov(c->receiving, 1, &iov);
    nng_stream_recv(c->stream, c->receiving);
    return true;
}

/* Under the lock: what comes next, the frames that are left in the buffer or more bytes. A turn stands in nng's queue
 * of callbacks behind those that are there. False as with arm_receive. */
static bool read_on(struct connection *c) {
    if (!c->more) return arm_receive(c);
    if (c->closing) return false;
    if (c->greedy) {
        listener_delay(c->listener, c);
        return true;
    }
    if (!nng_aio_begin(c->turning)) return false;
    nng_aio_finish(c->turning, 0);
    return true;
}

void connection_resume(struct connection *c) {
    if (nng_aio_begin(c->turning)) nng_aio_finish(c->turning, 0);
}

/* Continues after a send. True: an event was refused meanwhile, and would fit now. */
static bool account_queue(struct connection *c, int error) {
    size_t limit = atomic_load(&c->listener->queue_limit);
    bool drained = false;
    pthread_mutex_lock(&c->lock);
    c->sent += error ? 0 : nng_aio_count(c->sending);
    if (!error && !c->closing && c->sent < c->flight.n) {
        send_rest(c);
    } else {
        c->busy = false;
        c->sent = c->flight.n = 0;
        shrink_buffer(&c->flight);
        if (!error) take_off_socket(c);
    }
    if (!error && !c->closing && unsent_bytes(c) <= limit / 2) {
        if (c->paused) {
            c->paused = false;
            read_on(c);
        }
        drained = c->refused;
        c->refused = false;
    }
    note_stall(c, true);
    pthread_mutex_unlock(&c->lock);
    return drained;
}

static void on_sent(void *argument) {
    struct connection *c = argument;
    int error = nng_aio_result(c->sending);
    bool drained = account_queue(c, error);
    if (error) connection_close(c);
    if (drained) service_link_drained(c->listener->service, &c->link);
    link_unref(&c->link);
}

/* Under the lock. False: the answer goes over the stream. */
static bool answer_by_ring(struct connection *c, const uint8_t *frame, size_t bytes) {
    return c->ring_use == RING_USED && !c->closing && !ring_waits_at_stream(c->ring->segment) &&
           ring_answer(c->ring, frame, bytes);
}

/* Under the lock: an answer is in the ring, and the client may have turned to the stream meanwhile. Where bytes are on
 * the way to it there anyway, they wake it as well. False: no memory. */
static bool tell_at_stream(struct connection *c) {
    uint8_t empty_event[FRAME_HEADER];
    if (!ring_waits_at_stream(c->ring->segment) || unsent_bytes(c)) return true;
    frame_head_write(empty_event, FRAME_EVENT, FRAME_F_EVENT, 0, 0);
    if (!append_bytes(&c->pending, empty_event, sizeof empty_event)) return false;
    take_off_socket(c);
    return true;
}

static bool connection_post(struct link *link, const uint8_t *frame, size_t bytes, bool event) {
    struct connection *c = connection_of(link);
    size_t limit = atomic_load(&c->listener->queue_limit);
    bool close = false, taken = false;
    pthread_mutex_lock(&c->lock);
    if (event && unsent_bytes(c) + bytes > limit) {
        c->refused = true; /* the end of the send in flight tells when to try again */
    } else if (!event && answer_by_ring(c, frame, bytes)) {
        taken = true;
        close = !tell_at_stream(c);
    } else if (!c->closing) {
        taken = unsent_bytes(c) + bytes <= 4 * limit && append_bytes(&c->pending, frame, bytes);
        close = !taken && !event;
        if (taken) {
            c->pending.answers |= !event;
            take_off_socket(c);
        }
        note_stall(c, false);
    }
    pthread_mutex_unlock(&c->lock);
    if (close) {
        LOG(LOG_WARNING, "a client (pid %llu) does not read its answers: closed", (unsigned long long)link->peer.pid);
        connection_close(c);
    }
    return taken || !event;
}

/* ---- receiving --------------------------------------------------------------------------------- */

#define RECEIVE_BYTES 8192u /* most requests are far smaller, and an idle connection costs no more */

/* Grows the buffer where the frame at its start needs that. */
static bool fit_frame(struct connection *c) {
    struct frame_head head;
    if (frame_head_read(c->in.bytes, c->in.n, &head) || (size_t)head.length + 4 <= c->in.capacity) return true;
    uint8_t *grown = realloc(c->in.bytes, FRAME_LIMIT);
    if (!grown) return false;
    c->in.bytes = grown;
    c->in.capacity = FRAME_LIMIT;
    return true;
}

#define TURN_FRAMES 4u

#define SHARE 16u                  /* of one CPU, while others ask, too */
#define BURST_NS UINT64_C(2000000) /* at once */

/* True: the connection has spent its share, and others were served since its turn before. */
static bool charge_turn(struct connection *c, uint64_t begin_ns) {
    uint64_t regained = (begin_ns - c->charged_ns) / SHARE, turn = atomic_fetch_add(&c->listener->turns, 1);
    bool alone = turn == c->turn + 1;
    c->spent_ns = (c->spent_ns > regained ? c->spent_ns - regained : 0) + clock_ns() - begin_ns;
    c->charged_ns = begin_ns;
    c->turn = turn;
    return c->spent_ns > BURST_NS && !alone;
}

/* ---- the ring ----------------------------------------------------------------------------------- */

static void tell_end(struct connection *c) {
    service_link_closed(c->listener->service, &c->link);
    link_unref(&c->link);
}

static void ring_gone(void *user) {
    struct connection *c = user;
    pthread_mutex_lock(&c->lock);
    bool handed = c->handed;
    c->leaving = true;
    pthread_mutex_unlock(&c->lock);
    if (!handed) tell_end(c);
}

/* In a thread of nng's. */
static void on_handed(void *argument) {
    struct connection *c = argument;
    if (!service_serve(c->listener->service, &c->link, c->ring_frame, c->ring_bytes)) connection_close(c);
    pthread_mutex_lock(&c->lock);
    c->handed = false;
    bool leaving = c->leaving;
    pthread_mutex_unlock(&c->lock);
    if (leaving) tell_end(c);
}

/* An audit goes on for long between its steps, and the other rings would wait. False: nng is ending. */
static bool hand_on(struct connection *c) {
    pthread_mutex_lock(&c->lock);
    c->handed = true;
    pthread_mutex_unlock(&c->lock);
    if (nng_aio_begin(c->handing)) {
        nng_aio_finish(c->handing, 0);
        return true;
    }
    pthread_mutex_lock(&c->lock);
    c->handed = false;
    pthread_mutex_unlock(&c->lock);
    return false;
}

/* Serves frames of the ring. False: close the connection. */
static bool serve_ring(struct connection *c, bool *ret_handed) {
    struct frame_head head;
    int error = 0;
    for (uint32_t n = 0; n < (c->greedy ? 1 : TURN_FRAMES); n++) {
        if ((error = ring_read(&c->ring->requests, c->ring_frame, &c->ring_bytes))) break;
        ring_wake(c->ring->segment); /* a sender may wait for the room */
        (void)frame_head_read(c->ring_frame, FRAME_HEADER, &head);
        if (head.type == FRAME_AUDIT) return *ret_handed = hand_on(c);
        if (!service_serve(c->listener->service, &c->link, c->ring_frame, c->ring_bytes)) return false;
    }
    if (error == RING_E_BROKEN) listener_note_junk(c->listener, c);
    return error != RING_E_BROKEN;
}

/* In the thread of the rings. While the client reads its answers neither in the ring nor on the stream, nothing is read
 * from it. */
static enum ring_turn ring_turn(void *user) {
    struct connection *c = user;
    const struct ring_end *requests = &c->ring->requests;
    uint64_t unread = ring_unread(requests), asked = requests->at + unread, begin_ns = clock_ns();
    if (!unread) return RING_NOTHING;
    bool handed = false;
    pthread_mutex_lock(&c->lock);
    bool ready = c->ring_use != RING_GIVEN_UP && !c->closing && !c->handed &&
                 unsent_bytes(c) <= atomic_load(&c->listener->queue_limit);
    if (ready) c->ring_use = RING_USED;
    pthread_mutex_unlock(&c->lock);
    if (!ready) return RING_LATER;
    bool fine = serve_ring(c, &handed), greedy = charge_turn(c, begin_ns);
    pthread_mutex_lock(&c->lock);
    c->greedy = greedy;
    pthread_mutex_unlock(&c->lock);
    if (!fine) connection_close(c);
    bool more = requests->at < asked; /* who sends one at a time never rests, as on the stream */
    return (greedy && more) || handed || !fine ? RING_LATER : RING_SERVED;
}

/* After a frame of the stream: the service may have promised a ring. Where it cannot be made the socket of descriptors
 * says so. */
static void make_ring(struct connection *c) {
    if (!c->link.ring_token || c->ring_frame) return;
    struct link_ring *ring = ring_new(c->link.ring_epoch);
    c->ring_frame = malloc(FRAME_LIMIT);
    if (!ring || !c->ring_frame || nng_aio_alloc(&c->handing, on_handed, c)) {
        ring_free(ring);
        return;
    }
    pthread_mutex_lock(&c->lock);
    c->ring = ring;
    c->ring_use = RING_OFFERED;
    pthread_mutex_unlock(&c->lock);
    atomic_fetch_add(&c->listener->n_rings, 1);
    if (rings_add(c->listener->rings, ring, &(struct ring_owner){ ring_turn, ring_gone, c })) return;
    atomic_fetch_sub(&c->listener->n_rings, 1);
    pthread_mutex_lock(&c->lock);
    c->ring = NULL;
    c->ring_use = RING_ABSENT;
    pthread_mutex_unlock(&c->lock);
    ring_free(ring);
}

/* ---- the stream --------------------------------------------------------------------------------- */

/* Serves whole frames of the buffer and keeps the rest. *ret_more, false before: a whole one is left. False: close the
 * connection. */
static bool serve_frames(struct connection *c, bool *ret_more) {
    struct frame_head head;
    size_t at = 0;
    int error = 0;
    for (uint32_t n = 0; !(error = frame_head_read(c->in.bytes + at, c->in.n - at, &head)); n++) {
        size_t bytes = (size_t)head.length + 4;
        if (bytes > c->in.n - at || (*ret_more = n == (c->greedy ? 1 : TURN_FRAMES))) break;
        if (!service_serve(c->listener->service, &c->link, c->in.bytes + at, bytes)) return false;
        make_ring(c);
        at += bytes;
    }
    if (error == FRAME_E_LENGTH) {
        listener_note_junk(c->listener, c);
        return false;
    }
    if (at) memmove(c->in.bytes, c->in.bytes + at, c->in.n - at);
    c->in.n -= at;
    uint64_t since = atomic_load(&c->partial_since);
    if (!c->in.n || *ret_more) atomic_store(&c->partial_since, 0);
    else if (at || !since) atomic_store(&c->partial_since, clock_ns());
    return fit_frame(c);
}

static void serve_turn(struct connection *c) {
    uint64_t begin_ns = clock_ns();
    bool more = false;
    pthread_mutex_lock(&c->lock);
    bool in_ring = c->ring_use == RING_USED;
    if (c->ring_use == RING_OFFERED) c->ring_use = RING_GIVEN_UP;
    c->corked = !in_ring; /* all answers to these frames leave in one send */
    pthread_mutex_unlock(&c->lock);
    if (in_ring) {
        listener_note_junk(c->listener, c);
        connection_close(c);
        connection_end(c);
        return;
    }
    bool fine = serve_frames(c, &more);
    pthread_mutex_lock(&c->lock);
    c->corked = false;
    c->more = more;
    take_off_socket(c);
    c->greedy = charge_turn(c, begin_ns);
    size_t limit = atomic_load(&c->listener->queue_limit);
    bool slow = fine && !c->closing && unsent_bytes(c) > limit;
    if (slow) c->paused = true;
    note_stall(c, false);
    bool drained = fine && !c->busy && c->refused && unsent_bytes(c) <= limit / 2; /* no send will end and tell */
    if (drained) {
        c->refused = false;
        link_ref(&c->link);
    }
    bool goes_on = slow || (fine && read_on(c));
    pthread_mutex_unlock(&c->lock);
    if (drained) {
        service_link_drained(c->listener->service, &c->link);
        link_unref(&c->link); /* not the last one: the open reference is still held */
    }
    if (goes_on) return;
    connection_close(c);
    connection_end(c);
}

static void on_received(void *argument) {
    struct connection *c = argument;
    if (nng_aio_result(c->receiving)) {
        connection_close(c);
        connection_end(c);
        return;
    }
    c->in.n += nng_aio_count(c->receiving);
    serve_turn(c);
}

static void on_turn(void *argument) { serve_turn(argument); }

static int connection_ring_fd(struct link *link, enum link_ring_fd which) {
    struct connection *c = connection_of(link);
    pthread_mutex_lock(&c->lock);
    int fd = !c->ring ? -1 : which == LINK_RING_SEGMENT ? c->ring->segment_fd : c->ring->doorbell;
    int copy = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    pthread_mutex_unlock(&c->lock);
    return copy;
}

/* ---- life -------------------------------------------------------------------------------------- */

static void close_link(struct link *link) { connection_close(connection_of(link)); }
static void connection_release(struct link *link) {
    listener_retire(connection_of(link)->listener, connection_of(link));
}

/* Groups of a process cannot change while it is connected: read once. The pidfd lives until connection_free. */
static const struct groups *connection_groups(struct link *link) {
    struct connection *c = connection_of(link);
    if (!c->asked_groups) c->groups = peer_groups(&link->peer);
    c->asked_groups = true;
    return c->groups;
}

static const struct link_ops ops = { .post = connection_post,
                                     .close = close_link,
                                     .release = connection_release,
                                     .groups = connection_groups,
                                     .ring_fd = connection_ring_fd };

void connection_close(struct connection *c) {
    pthread_mutex_lock(&c->lock);
    bool first = !c->closing, paused = c->paused;
    c->closing = true;
    c->paused = false;
    pthread_mutex_unlock(&c->lock);
    if (!first) return;
    nng_stream_close(c->stream);
    if (paused) listener_retire(c->listener, c); /* no receive is posted whose end would end the chain */
}

void connection_end(struct connection *c) {
    if (c->ended) return;
    c->ended = true;
    if (c->ring) rings_remove(c->listener->rings, c->ring);
    else tell_end(c);
}

static bool identify_peer(nng_stream *stream, struct peer *ret_peer) {
    struct peer peer = { .pidfd = -1 };
    if (nng_stream_get_uint64(stream, NNG_OPT_IPC_PEER_UID, &peer.uid) ||
        nng_stream_get_uint64(stream, NNG_OPT_IPC_PEER_GID, &peer.gid) ||
        nng_stream_get_uint64(stream, NNG_OPT_IPC_PEER_PID, &peer.pid))
        return false;
    peer.pidfd = (int)syscall(SYS_pidfd_open, (pid_t)peer.pid, 0); /* close-on-exec by itself */
    *ret_peer = peer;
    return peer.pidfd >= 0 || errno != ESRCH; /* gone already; otherwise Hello tells why there is no session */
}

void connection_new(struct listener *l, nng_stream *stream) {
    struct connection *c = calloc(1, sizeof *c);
    struct peer peer = { .pidfd = -1 };
    if (c && !(c->in.bytes = malloc(RECEIVE_BYTES))) {
        free(c);
        c = NULL;
    }
    if (!c) { /* rare enough to free here: no aio was ever started on it */
        nng_stream_free(stream);
        return;
    }
    c->in.capacity = RECEIVE_BYTES;
    bool known = identify_peer(stream, &peer);
    service_link_init(&c->link, &ops, &peer);
    c->listener = l;
    c->stream = stream;
    c->opened_ns = clock_ns();
    pthread_mutex_init(&c->lock, NULL);
    bool ready = !nng_aio_alloc(&c->receiving, on_received, c) && !nng_aio_alloc(&c->turning, on_turn, c) &&
                 !nng_aio_alloc(&c->sending, on_sent, c) && !nng_aio_alloc(&c->at_once, NULL, NULL);
    pthread_mutex_lock(&l->lock);
    c->next = l->all;
    if (l->all) l->all->previous = c;
    l->all = c;
    uint32_t count = ++l->count;
    pthread_mutex_unlock(&l->lock);
    bool room = known && ready && !atomic_load(&l->closing);
    if (room && count > atomic_load(&l->limit)) {
        struct connection *quiet = listener_push_out(l, c);
        if (quiet) {
            connection_close(quiet);
            link_unref(&quiet->link);
        }
        room = quiet != NULL;
    }
    if (room) {
        pthread_mutex_lock(&c->lock);
        bool armed = arm_receive(c);
        pthread_mutex_unlock(&c->lock);
        if (armed) return;
    }
    connection_close(c);
    connection_end(c);
}

void connection_free(struct connection *c) {
    if (c->receiving) nng_aio_stop(c->receiving);
    if (c->turning) nng_aio_stop(c->turning);
    if (c->sending) nng_aio_stop(c->sending);
    if (c->at_once) nng_aio_stop(c->at_once);
    if (c->handing) nng_aio_stop(c->handing);
    nng_stream_free(c->stream);
    nng_aio_free(c->receiving);
    nng_aio_free(c->turning);
    nng_aio_free(c->sending);
    nng_aio_free(c->at_once);
    nng_aio_free(c->handing);
    if (c->ring) atomic_fetch_sub(&c->listener->n_rings, 1);
    ring_free(c->ring);
    free(c->ring_frame);
    service_link_fini(&c->link);
    pthread_mutex_destroy(&c->lock);
    free(c->groups);
    free(c->in.bytes);
    free(c->pending.bytes);
    free(c->flight.bytes);
    free(c);
}
