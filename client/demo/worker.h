/* SPDX-License-Identifier: Apache-2.0
 *
 * A worker of the demo: an engine (engine.h) on the pages of a kvd store, driven by the demo's scheduler.
 *
 * Rounds: plain lanes commit and map ahead in one message for all of them, which is sent before the need and answered
 * while the engine computes on. A speculating lane has one boundary a verify: commit, give back the pages of what was
 * rejected, map the next verify.
 */
#ifndef KVD_DEMO_WORKER_H
#define KVD_DEMO_WORKER_H

#include "engine.h"
#include "kvd.h"
#include "wire.h"

struct worker {
    kvd_client *client;
    kvd_store *store;
    struct engine engine;
    int scheduler; /* socket */
    kvd_session_id scheduler_session;
    bool scheduler_lost;   /* kvd says so */
    uint32_t round_tokens; /* columns between two commits of a lane */
    bool in_flight;        /* one Round at most */
    kvd_ticket ticket;
    uint32_t n_flight;
    uint32_t flight[ENGINE_LANES];          /* lanes of the items */
    uint64_t flight_sequence[ENGINE_LANES]; /* a lane may be another's by the time of the answer */
    uint64_t rounds;
    struct wire_message message; /* scratch */
};

/* worker_say.c. Sends a message about a lane to the scheduler; a scheduler that is gone shows on its socket, not here.
 */
void worker_say(struct worker *worker, uint32_t type, const struct engine_lane *lane);
void worker_say_failed(struct worker *worker, const struct engine_lane *lane, const char *why);
void worker_say_tokens(struct worker *worker); /* those of every lane that it has not been told yet */

/* worker_round.c. The boundary after a step: starts a Round where one is due, takes the answer of the one in flight if
 * it is there (wait: waits for it). 0, or -EIO when kvd is gone (printed). */
int worker_rounds(struct worker *worker, bool wait);
/* Waits for the Round in flight and forgets its answer. */
void worker_rounds_drop(struct worker *worker);

#endif
