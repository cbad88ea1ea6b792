/* SPDX-License-Identifier: Apache-2.0
 *
 * The breaker before the engine (COLD-5): a state machine of numbers. No clock, no lock.
 */
#ifndef KVD_COLD_BREAKER_H
#define KVD_COLD_BREAKER_H

#include <stdbool.h>
#include <stdint.h>

#define COLD_BREAKER_FAULTS 3u /* in a row that open it */

struct cold_breaker_state {
    uint64_t first_ns, most_ns; /* waits */
    bool open;
    uint32_t faults;     /* in a row */
    uint64_t wait_ns;    /* of the last time that it was opened */
    uint64_t until_ns;   /* open: a try is due */
    uint64_t changed_ns; /* opened or closed */
};

/* Open, and a try is due at once. */
void breaker_init(struct cold_breaker_state *breaker, uint64_t first_ns, uint64_t most_ns, uint64_t now_ns);
/* A fault: grave ones open it at once. True: it was closed and is open now. */
bool breaker_fault(struct cold_breaker_state *breaker, bool grave, uint64_t now_ns);
/* An operation was done while it is closed. */
void breaker_good(struct cold_breaker_state *breaker);
/* A try succeeded, or failed: then the next one comes later. */
void breaker_tried(struct cold_breaker_state *breaker, bool good, uint64_t now_ns);

#endif
