/* SPDX-License-Identifier: Apache-2.0
 *
 * The one clock of time-outs, deadlines and figures, in the service and in its clients.
 */
#ifndef KVD_PROTO_CLOCK_H
#define KVD_PROTO_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Nanoseconds of CLOCK_MONOTONIC, the clock of msg_header.deadline_ns. Any thread. */
static inline uint64_t clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* 0 where another thread has read then_ns a moment after now_ns. */
static inline uint64_t clock_since(uint64_t then_ns, uint64_t now_ns) {
    return now_ns > then_ns ? now_ns - then_ns : 0;
}

static inline uint64_t clock_ms(void) { return clock_ns() / 1000000u; }

#endif
