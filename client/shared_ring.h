/* SPDX-License-Identifier: Apache-2.0
 *
 * The client's side of the shared segment (ring.h): frames in, frames out, without the socket.
 *
 * Threads: one sends at a time, one reads at a time, beside each other. interrupt: any thread.
 */
#ifndef KVD_CLIENT_SHARED_RING_H
#define KVD_CLIENT_SHARED_RING_H

#include "ring.h"
#include "transport.h"

struct shared_ring;

/* Maps a segment that must be this instance's. Takes both descriptors over, in every case. NULL: it is no such segment,
 * or no memory. A child of fork() does not have it. */
struct shared_ring *shared_ring_open(int segment_fd, int doorbell_fd, uint64_t epoch);
/* Nobody sends or reads. Also in a fork's child. NULL is fine. */
void shared_ring_close(struct shared_ring *ring);

/* All of the frame, or nothing of it. 0, TRANSPORT_E_TIMEOUT, or TRANSPORT_E_LOST after an interrupt. */
int shared_ring_send(struct shared_ring *ring, const uint8_t *frame, size_t n, uint64_t deadline_ns);
/* Waits for frames and gives those that are there to the sink. 0, TRANSPORT_E_TIMEOUT, or TRANSPORT_E_LOST after an
 * interrupt or where the bytes are no frames, of which the sink was told. */
int shared_ring_read(struct shared_ring *ring, const struct transport_sink *sink, uint64_t deadline_ns);
/* For good: who waits returns. */
void shared_ring_interrupt(struct shared_ring *ring);

#endif
