/* SPDX-License-Identifier: Apache-2.0 */
#include "ring.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static_assert(offsetof(struct ring_segment, request_head) == 64 && offsetof(struct ring_segment, bell) == 80 &&
                  offsetof(struct ring_segment, kvd_sleeps) == 128 &&
                  offsetof(struct ring_segment, request_tail) == 192 &&
                  offsetof(struct ring_segment, client_waits) == 256 &&
                  offsetof(struct ring_segment, requests) == 4096 &&
                  offsetof(struct ring_segment, answers) == 4096 + RING_BYTES &&
                  sizeof(struct ring_segment) == 4096 + 2 * RING_BYTES,
              "PROTOCOL.md has these offsets");
static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2, "counters are shared with other processes");

/* ---- ends ---------------------------------------------------------------------------------------- */

struct ring_end ring_request_reader(struct ring_segment *s) {
    return (struct ring_end){ s->requests, &s->request_head, &s->request_tail, 0 };
}
struct ring_end ring_request_writer(struct ring_segment *s) {
    return (struct ring_end){ s->requests, &s->request_tail, &s->request_head, 0 };
}
struct ring_end ring_answer_reader(struct ring_segment *s) {
    return (struct ring_end){ s->answers, &s->answer_head, &s->answer_tail, 0 };
}
struct ring_end ring_answer_writer(struct ring_segment *s) {
    return (struct ring_end){ s->answers, &s->answer_tail, &s->answer_head, 0 };
}

/* ---- bytes ----------------------------------------------------------------------------------------- */

static void copy_out(const struct ring_end *e, uint64_t from, uint8_t *to, size_t n) {
    size_t at = from % RING_BYTES, first = n < RING_BYTES - at ? n : RING_BYTES - at;
    memcpy(to, e->bytes + at, first);
    memcpy(to + first, e->bytes, n - first);
    /* What is judged next is the copy: the compiler must not look at the original again. */
    atomic_signal_fence(memory_order_seq_cst);
}

static void copy_in(const struct ring_end *e, const uint8_t *from, size_t n) {
    size_t at = e->at % RING_BYTES, first = n < RING_BYTES - at ? n : RING_BYTES - at;
    memcpy(e->bytes + at, from, first);
    memcpy(e->bytes, from + first, n - first);
}

uint64_t ring_unread(const struct ring_end *r) { return atomic_load(r->other) - r->at; }

int ring_read(struct ring_end *r, uint8_t *frame, size_t *ret_bytes) {
    struct frame_head head;
    uint64_t there = atomic_load(r->other) - r->at;
    if (!there) return RING_E_EMPTY;
    if (there > RING_BYTES || there < FRAME_HEADER) return RING_E_BROKEN;
    copy_out(r, r->at, frame, FRAME_HEADER);
    if (frame_head_read(frame, FRAME_HEADER, &head)) return RING_E_BROKEN;
    size_t bytes = (size_t)head.length + 4;
    if (bytes > there) return RING_E_BROKEN;
    copy_out(r, r->at + FRAME_HEADER, frame + FRAME_HEADER, bytes - FRAME_HEADER);
    r->at += bytes;
    atomic_store(r->own, r->at);
    *ret_bytes = bytes;
    return 0;
}

bool ring_write(struct ring_end *w, const uint8_t *frame, size_t n) {
    uint64_t unread = w->at - atomic_load(w->other);
    if (unread > RING_BYTES || n > RING_BYTES - unread) return false;
    copy_in(w, frame, n);
    w->at += n;
    atomic_store(w->own, w->at);
    return true;
}

/* ---- sleep -------------------------------------------------------------------------------------------
 *
 * Whoever sleeps stores its flag and then loads the counter, whoever wakes stores the counter and then loads the flag,
 * all sequentially consistent: one of the two sees the other's. */

void ring_arm(struct ring_segment *s) { atomic_store(&s->kvd_sleeps, 1); }

bool ring_must_call(struct ring_segment *s) {
    return atomic_load(&s->kvd_sleeps) && atomic_exchange(&s->kvd_sleeps, 0);
}

void ring_wake_own(struct ring_segment *s) {
    atomic_fetch_add(&s->bell, 1);
    syscall(SYS_futex, &s->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void ring_wake(struct ring_segment *s) {
    uint32_t waits = RING_WAITS_BELL;
    if (atomic_load(&s->client_waits) == waits && atomic_compare_exchange_strong(&s->client_waits, &waits, 0))
        ring_wake_own(s);
}

bool ring_waits_at_stream(struct ring_segment *s) { return atomic_load(&s->client_waits) == RING_WAITS_STREAM; }

uint32_t ring_announce(struct ring_segment *s) {
    uint32_t bell = atomic_load(&s->bell);
    atomic_store(&s->client_waits, RING_WAITS_BELL);
    return bell;
}

bool ring_wait(struct ring_segment *s, uint32_t bell, uint64_t deadline_ns) {
    struct timespec until = { .tv_sec = (time_t)(deadline_ns / 1000000000u),
                              .tv_nsec = (long)(deadline_ns % 1000000000u) };
    /* FUTEX_WAIT_BITSET takes a point in time, of CLOCK_MONOTONIC. */
    long rc = syscall(SYS_futex, &s->bell, FUTEX_WAIT_BITSET, bell, deadline_ns == UINT64_MAX ? NULL : &until, NULL,
                      FUTEX_BITSET_MATCH_ANY);
    return rc == 0 || errno != ETIMEDOUT;
}

/* ---- looking ------------------------------------------------------------------------------------------- */

#define SPIN_TRIES 16u

struct ring_spin ring_spin_new(void) {
    return (struct ring_spin){ .ns = sysconf(_SC_NPROCESSORS_ONLN) > 1 ? RING_SPIN_NS : 0 };
}

void ring_spin_learn(struct ring_spin *spin, uint64_t waited_ns) {
    if (!spin->ns) return;
    if (waited_ns <= RING_SPIN_NS || ++spin->misses % SPIN_TRIES == 0) spin->ns = RING_SPIN_NS;
    else if (spin->ns > RING_SPIN_NS / 32) spin->ns /= 2;
}
