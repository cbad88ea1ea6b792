/* SPDX-License-Identifier: Apache-2.0
 *
 * The worker's process: it has a session of kvd, and commits what the scheduler says over a socket pair.
 */
#ifndef KVD_REPLAY_WORKER_H
#define KVD_REPLAY_WORKER_H

#include <stdbool.h>

#include "kvd_types.h"

struct worker_answer {
    enum kvd_status status;
    kvd_session_id session; /* of the worker */
    char message[KVD_MESSAGE_BYTES];
};

/* Connects, and serves fd until its other end is closed. Does not return. */
_Noreturn void worker_run(const char *socket, int fd);
/* The first answer, which the worker gives unasked: its session. False: it has died. */
bool worker_wait(int fd, struct worker_answer *ret_answer);
/* The sequence has computed so many tokens. False: the worker has died. */
bool worker_commit(int fd, kvd_sequence sequence, uint32_t tokens, struct worker_answer *ret_answer);

#endif
