/* SPDX-License-Identifier: Apache-2.0
 *
 * One connection of the listener. Private to listener.c and connection.c.
 *
 * Life: a connection is open while its receive chain runs. Whoever ends the chain tells the service and drops the open
 * reference. Sends in flight and the service hold references of their own. The last reference puts the connection on
 * the listener's list of dead ones. Where there is a ring, the thread of the rings does the telling, when it has let go
 * of the ring.
 */
#ifndef KVD_CONNECTION_H
#define KVD_CONNECTION_H

#include <nng/nng.h>
#include <pthread.h>

#include "frame.h"
#include "listener.h"
#include "rings.h"
#include "unix_socket.h"

struct buffer {
    uint8_t *bytes;
    size_t n, capacity;
    bool answers; /* holds at least one answer, not only events */
};

/* Requests come on the stream, or all in the ring: the first frame decides. So one thread at a time serves a link. */
enum ring_use {
    RING_ABSENT,
    RING_OFFERED, /* nothing has come yet, on the stream or in the ring */
    RING_USED,    /* the stream has answers that the ring has no room for, and events */
    RING_GIVEN_UP /* the client goes on on the stream */
};

struct connection {
    struct link link; /* first */
    struct listener *listener;
    nng_stream *stream;
    nng_aio *receiving, *turning, *sending, *at_once;
    uint64_t opened_ns;
    _Atomic uint64_t partial_since;     /* 0: no half frame */
    _Atomic uint64_t stalled_since;     /* 0: no answer waits for the peer to read */
    struct connection *next, *previous; /* listener's mutex */
    struct connection *next_dead, *next_delayed;
    uint64_t delayed_until; /* ns */
    bool reaped;            /* listener_close has seen it */
    bool pushed_out;        /* closed to make room for a newer connection */
    bool ended;             /* the service has been told */

    pthread_mutex_t lock;
    bool more /* whole frames are left in `in` */, greedy /* and they wait */, closing, paused, corked,
        busy /* a send is in flight */, refused /* an event */;
    struct buffer pending, flight;
    size_t sent;
    enum ring_use ring_use;
    bool handed; /* a request of the ring is with a thread of nng's */
    bool leaving /* the rings have let go of it */;
    struct link_ring *ring; /* written by the receive chain, under the lock; NULL: none */
    nng_aio *handing;

    /* whoever serves: the receive chain, or the rings where the ring is used */
    uint64_t spent_ns, charged_ns, turn; /* see charge_turn */
    struct groups *groups;               /* of the peer; read when somebody first asks */
    bool asked_groups;
    struct buffer in; /* n: bytes received; grows up to FRAME_LIMIT for a frame that needs it */

    uint8_t *ring_frame; /* FRAME_LIMIT bytes, of whoever serves the ring; NULL: no ring */
    size_t ring_bytes;
};

struct listener {
    struct service *service;
    nng_stream_listener *nng;
    nng_aio *accepting;
    struct rings *rings; /* NULL: off */
    struct unix_socket name;
    int wake_fd;                /* a timer; nng's own keep a CPU busy for the last millisecond of a sleep */
    _Atomic size_t queue_limit; /* [limits] message_queue */
    _Atomic uint64_t handshake_timeout, stall_timeout;
    _Atomic uint32_t limit, n_rings;
    _Atomic uint64_t accepted, turns;

    pthread_mutex_t lock; /* leaf: the three lists, count, the times */
    struct connection *all, *dead;
    struct connection *delayed, **last_delayed; /* in order of their ends */
    uint64_t wake_ns;                           /* wake_fd is set to it; 0: to nothing */
    uint32_t count;
    uint64_t accept_ns;  /* when the next accept is posted; 0: one is, or none is to be */
    uint32_t crowded_ms; /* chain of accepts only */
    bool full;           /* no accept is posted; listener_run posts one when connections have gone */
    uint32_t n_refused, n_pushed_out, n_junk; /* since listener_tick last logged them */
    uint64_t junk_from;                       /* pid */
    atomic_bool closing;
};

/* Call when the connections exceed the limit. Returns the one that has waited longest without a Hello, which the caller
 * closes, and whose reference the caller drops. NULL: there is none; refuse the new connection. */
struct connection *listener_push_out(struct listener *listener, const struct connection *newcomer);
/* Takes ownership of the stream and starts to read. */
void connection_new(struct listener *listener, nng_stream *stream);
/* Asynchronous: the receive chain ends later, in a callback or in listener_run. */
void connection_close(struct connection *connection);
/* Tells the service that no more frames come, and drops the open reference. Call it once, not under the core mutex. */
void connection_end(struct connection *connection);
/* Frees a connection without references. */
void connection_free(struct connection *connection);

/* Counts a connection that sent something that is no frame. listener_tick logs the count. */
void listener_note_junk(struct listener *listener, const struct connection *connection);
/* The receive chain goes on in a thread of nng. Called once after each listener_delay, without its lock. */
void connection_resume(struct connection *connection);
/* In listener.c: has connection_resume called in DELAY_NS. The caller's receive chain goes on there. */
void listener_delay(struct listener *listener, struct connection *connection);
/* In listener.c: puts the connection on the list of dead ones, which listener_run ends and frees. */
void listener_retire(struct listener *listener, struct connection *connection);

#endif
