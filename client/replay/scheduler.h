/* SPDX-License-Identifier: Apache-2.0
 *
 * The scheduler's process: serves the requests of the trace from replay->shared->next on.
 */
#ifndef KVD_REPLAY_SCHEDULER_H
#define KVD_REPLAY_SCHEDULER_H

#include "replay.h"

/* What it says to its parent, a byte each. It waits for no answer. */
enum scheduler_word {
    SCHEDULER_KILL_KVD = 'K', /* the time has come for it */
    SCHEDULER_KILL_SCHEDULER = 'S',
    SCHEDULER_KILL_WORKER = 'W',
    SCHEDULER_DONE = 'D' /* with the whole trace */
};

/* to_worker: worker.h. to_parent: a socket of packets. Returns the exit status of the process: 0, or 1 where something
 * failed, which replay->shared->message says. */
int scheduler_run(struct replay *replay, int to_worker, int to_parent);

#endif
