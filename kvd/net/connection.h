/* SPDX-License-Identifier: Apache-2.0
 *
 * One connection of the listener. Private to listener.c and connection.c.
 *
 * Life: open while its receive chain runs. Whoever ends the chain tells the service and drops the open reference; sends
 * in flight and the service hold references of their own. The last one puts the connection on the listener's list of
 * dead ones.
 */
#ifndef KVD_CONNECTION_H
#define KVD_CONNECTION_H

#include <nng/nng.h>
#include <pthread.h>

#include "frame.h"
#include "listener.h"
#include "unix_socket.h"

struct buffer {
    uint8_t *bytes;
    size_t n, room;
    bool answers; /* not only events */
};

struct connection {
    struct link link; /* first */
    struct listener *listener;
    nng_stream *stream;
    nng_aio *receiving, *sending, *at_once;
    uint64_t opened_ns;
    _Atomic uint64_t partial_since;     /* 0: no half frame */
    _Atomic uint64_t stalled_since;     /* 0: no answer waits for the peer to read */
    struct connection *next, *previous; /* listener's mutex */
    struct connection *next_dead;
    bool reaped;     /* listener_close has seen it */
    bool pushed_out; /* closed for a new one */
    bool ended;      /* the service has been told */

    pthread_mutex_t lock;
    bool closing, paused, corked, busy /* a send is in flight */, refused /* an event */;
    struct buffer pending, flight;
    size_t sent;

    /* receive chain only */
    struct groups *groups; /* of the peer, once somebody has asked */
    bool asked_groups;
    struct buffer in; /* n: bytes that are there; grows to FRAME_LIMIT for a frame that needs it */
};

struct listener {
    struct service *service;
    nng_stream_listener *nng;
    nng_aio *accepting, *sleeping;
    struct unix_socket name;
    int event_fd;
    _Atomic size_t queue_limit; /* [limits] message_queue */
    _Atomic uint64_t handshake_timeout, stall_timeout;
    _Atomic uint32_t limit;
    _Atomic uint64_t accepted;

    pthread_mutex_t lock; /* leaf: the two lists and count */
    struct connection *all, *dead;
    uint32_t count;
    uint32_t crowded_ms; /* chain of accepts only */
    bool full;           /* no accept is posted: listener_run posts it when connections have gone */
    uint32_t n_refused, n_pushed_out, n_junk; /* since listener_tick told the log */
    uint64_t junk_from;                       /* pid */
    atomic_bool closing;
};

/* There are more connections than the limit: the one that has waited longest without a Hello, to be closed for the new
 * one; its reference is to be dropped. NULL: there is none, the new one is refused. */
struct connection *listener_push_out(struct listener *listener, const struct connection *newcomer);
/* Takes over the stream. Starts to read. */
void connection_new(struct listener *listener, nng_stream *stream);
/* Asynchronous. The chain's end follows in a callback, or in listener_run. */
void connection_close(struct connection *connection);
/* Tells the service that nothing comes any more, and drops the open reference. Not under the core mutex. Once. */
void connection_end(struct connection *connection);
/* Nothing refers to it. */
void connection_free(struct connection *connection);

/* It sent what is no frame: counted, and told to the log with others. */
void listener_note_junk(struct listener *listener, const struct connection *connection);
/* listener.c: puts it on the list of dead ones (to be freed), or of those to be ended by listener_run. */
void listener_retire(struct listener *listener, struct connection *connection);

#endif
