/* SPDX-License-Identifier: Apache-2.0
 *
 * The transport seam: one byte stream to kvd that carries frames (frame.h). nng is behind it and nowhere else in
 * libkvd.
 *
 * Who reads: a thread that waits for an answer reads for itself (transport_begin_read), so that its bytes wake no other
 * thread first; or, after transport_watch, threads of the transport, whether anybody waits or not.
 *
 * Threads: transport_send is called by one thread at a time (the caller holds a turn), and one at most reads; the sink
 * is called by whoever reads, one call at a time, or, where there is a ring, by the reader of the ring and that of the
 * stream beside each other: frames of the ring may then come after the loss was told. transport_close waits for a
 * running sink call and for a reader, and must not be called from one. After fork() nothing here may be called in the
 * child but transport_forked and transport_forget: nng ends a child that touches it.
 */
#ifndef KVD_CLIENT_TRANSPORT_H
#define KVD_CLIENT_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "clock.h"
#include "frame.h"

struct transport;

struct transport_sink {
    void *user;
    void (*frame)(void *user, const struct frame_head *head, const uint8_t *body); /* body is valid during the call */
    void (*lost)(void *user, const char *why);                                     /* at most once, and the last call */
};

enum transport_error {
    TRANSPORT_E_PATH = 1,     /* not a socket path */
    TRANSPORT_E_ABSENT = 2,   /* nobody listens there */
    TRANSPORT_E_DENIED = 3,   /* permissions */
    TRANSPORT_E_TIMEOUT = 4,  /* the deadline passed */
    TRANSPORT_E_LOST = 5,     /* the connection is gone */
    TRANSPORT_E_RESOURCE = 6, /* memory, descriptors, threads */
    TRANSPORT_E_FORKED = 7    /* this process is a fork of one that used the transport */
};

#define TRANSPORT_NEVER UINT64_MAX /* a deadline that does not come */

/* True in a child of a process that had opened a transport. */
bool transport_forked(void);

/* Connects. Threads that the transport starts have every signal blocked. 0 or a transport_error with a sentence in err.
 */
int transport_open(const char *path, const struct transport_sink *sink, uint64_t deadline_ns,
                   struct transport **ret_transport, char *err, size_t err_bytes);

/* Hands all bytes to the kernel. ret_sent is written in every case: where it is 0 the peer has seen nothing of this
 * frame; where it is neither 0 nor n the stream is unusable. TRANSPORT_NEVER is cheaper than a deadline: for frames
 * that the socket's buffer surely takes. */
int transport_send(struct transport *transport, const uint8_t *bytes, size_t n, uint64_t deadline_ns, size_t *ret_sent);

/* begin posts a receive and does not wait; after true the same thread calls end, which waits for bytes and gives the
 * whole frames in them to the sink. False: the connection was given up. The transport lives until end returns. end: 0,
 * TRANSPORT_E_TIMEOUT, or TRANSPORT_E_LOST, of which the sink was told unless the connection was given up. */
bool transport_begin_read(struct transport *transport, uint64_t deadline_ns);
int transport_end_read(struct transport *transport);

/* Gives the connection up for readers: one that waits returns. Does not wait. */
void transport_interrupt(struct transport *transport);

/* From now on threads of the transport read, to the connection's end. Once, while nobody reads; does not wait. False:
 * no thread is to be had, and readers read on for themselves. */
bool transport_watch(struct transport *transport);

/* From now on frames go and come through kvd's shared segment (shared_ring.h), and threads of the transport read the
 * stream, for the rest and for the end of kvd. Once, while nobody sends or reads. Takes both descriptors over. False:
 * it is no such segment; the stream is used as before. */
bool transport_use_ring(struct transport *transport, int segment_fd, int doorbell_fd, uint64_t epoch);
bool transport_has_ring(struct transport *transport);

/* Closes and frees; no sink call after it. NULL is fine. */
void transport_close(struct transport *transport);

/* In a forked child: frees this process's memory, touches neither nng nor the connection. */
void transport_forget(struct transport *transport);

#endif
