/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine: a scheduler and a worker, replaced when one of them has died, and the kills that the replay asks for.
 */
#ifndef KVD_REPLAY_ENGINE_H
#define KVD_REPLAY_ENGINE_H

#include "instance.h"
#include "replay.h"

struct replay_kills {
    uint32_t kvd, scheduler, worker; /* how often each was killed */
};

/* SIGINT, SIGTERM and SIGHUP end engine_serve from now on. */
void engine_catch_signals(void);
/* Serves the whole trace. kvd runs, and another one may run afterwards. False: something failed, which
 * replay->shared->message or stderr says. */
bool engine_serve(struct replay *replay, struct replay_instance *kvd, struct replay_kills *ret_kills);
/* Runs a look in a process of its own. False: it failed. */
bool engine_look(struct replay *replay, int (*look)(struct replay *));

#endif
