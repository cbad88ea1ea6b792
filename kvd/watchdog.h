/* SPDX-License-Identifier: Apache-2.0
 *
 * What the service manager's watchdog is fed with: proof that clients are still served, not that a timer still runs.
 *
 * At each tick the daemon connects to its own socket and says at once that it will send nothing. Its end reads as
 * closed only after the listener has accepted, nng's poller has reported and a thread of those that serve requests has
 * run the connection's callback. The tick itself comes from the main loop, after that has taken the core mutex. So a
 * main loop that hangs, a core mutex that is never given back, threads that are all stuck and a listener that no longer
 * accepts each leave the watchdog hungry. No frame is sent: nothing is counted as a request or refused as one.
 *
 * Clients cannot starve it: a connection beyond the limit is closed, which proves as much; and while the backlog is
 * full, the count of accepted connections must move instead.
 *
 * One thread. Nothing blocks.
 */
#ifndef KVD_WATCHDOG_H
#define KVD_WATCHDOG_H

#include <stdbool.h>
#include <stdint.h>

struct watchdog {
    const char *socket;
    uint64_t period_ns; /* between two proofs, a quarter of the manager's patience; 0: there is no watchdog */
    uint64_t next_ns;
    uint64_t accepted;
    int fd; /* the connection that is to be closed; -1: none */
};

/* WATCHDOG_USEC and WATCHDOG_PID as in sd_watchdog_enabled(3). socket: its path, must outlive the watchdog. */
void watchdog_init(struct watchdog *watchdog, const char *socket);
/* accepted: connections that the listener has accepted so far. True: there is new proof, so feed the manager's
 * watchdog. To be called at least once in each period_ns. */
bool watchdog_tick(struct watchdog *watchdog, uint64_t now_ns, uint64_t accepted);
void watchdog_close(struct watchdog *watchdog);

#endif
