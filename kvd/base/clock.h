/* SPDX-License-Identifier: Apache-2.0
 *
 * The one clock of the daemon's time-outs, deadlines and figures.
 */
#ifndef KVD_CLOCK_H
#define KVD_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Nanoseconds of CLOCK_MONOTONIC, the clock of msg_header.deadline_ns. Any thread. */
static inline uint64_t clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif
