/* SPDX-License-Identifier: Apache-2.0 */
#include "cold_breaker.h"

static void open_for(struct cold_breaker_state *b, uint64_t wait, uint64_t now) {
    b->open = true;
    b->wait_ns = wait > b->most_ns ? b->most_ns : wait;
    b->until_ns = now + b->wait_ns;
    b->changed_ns = now;
    b->faults = 0;
}

void breaker_init(struct cold_breaker_state *b, uint64_t first, uint64_t most, uint64_t now) {
    *b = (struct cold_breaker_state){ .first_ns = first, .most_ns = most, .wait_ns = first, .open = true };
    b->until_ns = b->changed_ns = now;
}

bool breaker_fault(struct cold_breaker_state *b, bool grave, uint64_t now) {
    if (b->open || (!grave && ++b->faults < COLD_BREAKER_FAULTS)) return false;
    /* An engine that answers a try and fails the work again is left alone for longer each time. */
    bool again = now - b->changed_ns < 4 * b->wait_ns;
    open_for(b, again ? 2 * b->wait_ns : b->first_ns, now);
    return true;
}

void breaker_good(struct cold_breaker_state *b) { b->faults = 0; }

void breaker_tried(struct cold_breaker_state *b, bool good, uint64_t now) {
    if (!good) {
        open_for(b, 2 * b->wait_ns, now);
        return;
    }
    b->open = false;
    b->changed_ns = now;
    b->faults = 0;
}
