/* SPDX-License-Identifier: Apache-2.0
 *
 * The shared segment of one connection (PROTOCOL.md): a ring of requests and a ring of answers, each of the bytes of
 * whole frames (frame.h), one after the other. It is memory of two processes that do not trust each other: whoever
 * reads copies once and judges the copy, and nobody believes a counter of the other side beyond its own.
 *
 * Counters count bytes since the beginning and never wrap. The byte with number k stands at k % RING_BYTES. A writer
 * stores its tail (release) after the bytes of a whole frame; a reader stores its head (release) after its copy. A tail
 * inside of a frame, or more than RING_BYTES beyond the head, is a broken ring.
 *
 * Sleep. kvd sets kvd_sleeps before it looks a last time and sleeps; a client that finds it set after a frame takes it
 * back (exchange) and writes to the doorbell, an eventfd. A client sets client_waits before it looks a last time and
 * waits on bell (futex, shared); kvd, where it finds that set after it moved a counter, takes it back, counts bell up
 * and wakes. A client that can only wait for descriptors sets it to RING_WAITS_STREAM instead and takes it back itself:
 * meanwhile its answers come on the stream. Between its store and its look each side needs a full barrier; here both
 * are sequentially consistent.
 *
 * Threads: a reader, and a writer, belongs to one thread at a time.
 */
#ifndef KVD_PROTO_RING_H
#define KVD_PROTO_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "frame.h"

#define RING_MAGIC UINT32_C(0x5264766b) /* "kvdR" */
#define RING_VERSION 1u
#define RING_BYTES 131072u /* of each ring; holds the largest frame twice */
#define RING_WAITS_BELL 1u
#define RING_WAITS_STREAM 2u

struct ring_segment {
    /* constant; kvd writes them before anybody else has the segment */
    uint32_t magic, version;
    uint64_t epoch;      /* of the instance */
    uint32_t ring_bytes; /* RING_BYTES */
    uint32_t zero;
    /* kvd writes */
    _Alignas(64) _Atomic uint64_t request_head;
    _Atomic uint64_t answer_tail;
    _Atomic uint32_t bell;
    /* both write */
    _Alignas(64) _Atomic uint32_t kvd_sleeps; /* 0, 1 */
    /* the client writes */
    _Alignas(64) _Atomic uint64_t request_tail;
    _Atomic uint64_t answer_head;
    /* both write */
    _Alignas(64) _Atomic uint32_t client_waits; /* 0, RING_WAITS_BELL, RING_WAITS_STREAM */
    _Alignas(4096) uint8_t requests[RING_BYTES];
    uint8_t answers[RING_BYTES];
};

/* One end of one ring. `at` is the own counter: what stands in the segment is a copy for the other side. */
struct ring_end {
    uint8_t *bytes;
    _Atomic uint64_t *own, *other;
    uint64_t at;
};

struct ring_end ring_request_reader(struct ring_segment *segment); /* kvd's */
struct ring_end ring_request_writer(struct ring_segment *segment); /* the client's */
struct ring_end ring_answer_reader(struct ring_segment *segment);  /* the client's */
struct ring_end ring_answer_writer(struct ring_segment *segment);  /* kvd's */

enum ring_error { RING_E_EMPTY = 1, RING_E_BROKEN = 2 /* the writer breaks the rules: end the connection */ };

/* Bytes that the writer says are there, whatever that is. Reader's end. */
uint64_t ring_unread(const struct ring_end *reader);
/* Copies the next frame, whose length was checked, to `frame` of FRAME_LIMIT bytes. 0, or a ring_error. */
int ring_read(struct ring_end *reader, uint8_t *frame, size_t *ret_bytes);
/* Puts a whole frame in (n <= FRAME_LIMIT). False: there is no room now, or the reader's head is none that can be. */
bool ring_write(struct ring_end *writer, const uint8_t *frame, size_t n);

/* kvd: about to sleep. After it, look into the ring once more. */
void ring_arm(struct ring_segment *segment);
/* The client, after a frame: true: write to the doorbell. */
bool ring_must_call(struct ring_segment *segment);
/* kvd, after it moved a counter: wakes the client's waiters, if there are any. */
void ring_wake(struct ring_segment *segment);
/* kvd, before an answer and after it: true: the client waits for the stream, and may not look into the ring again. */
bool ring_waits_at_stream(struct ring_segment *segment);
/* The client: the value of bell to wait on. After it, look once more, then ring_wait. */
uint32_t ring_announce(struct ring_segment *segment);
/* Waits until bell is another one, at most to the deadline (CLOCK_MONOTONIC; UINT64_MAX: for ever). May return early.
 * False: the deadline has passed. */
bool ring_wait(struct ring_segment *segment, uint32_t bell, uint64_t deadline_ns);
/* The client's own threads: as if kvd had called. */
void ring_wake_own(struct ring_segment *segment);

/* How long to look before sleeping: RING_SPIN_NS where what was waited for came within it, less and less where it did
 * not, with a long look now and then, since two sides that both sleep would never learn that looking pays. Not at all
 * on one CPU. */
#define RING_SPIN_NS 40000u
struct ring_spin {
    uint32_t ns, misses;
};
struct ring_spin ring_spin_new(void);
/* What was waited for came after so long. */
void ring_spin_learn(struct ring_spin *spin, uint64_t waited_ns);
/* Between two looks. It keeps the CPU: where others want it, who gives it away gets it back after their whole time
 * slices, who sleeps when what was waited for comes. */
static inline void ring_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

#endif
