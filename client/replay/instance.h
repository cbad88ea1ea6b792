/* SPDX-License-Identifier: Apache-2.0
 *
 * A kvd of its own, in a directory of its own below /tmp. Functions that return false have said why on stderr.
 */
#ifndef KVD_REPLAY_INSTANCE_H
#define KVD_REPLAY_INSTANCE_H

#include <stdbool.h>
#include <sys/types.h>

struct replay_instance {
    pid_t pid;           /* 0: it does not run */
    const char *program; /* NULL: kvd of $PATH, or of a folder for system programs */
    char dir[32], socket[64], config[64], log[64];
};

/* Makes the directory and writes the configuration: [kvd], then `more`. */
bool instance_prepare(struct replay_instance *instance, const char *program, const char *more);
/* Starts it and waits until it serves. */
bool instance_start(struct replay_instance *instance);
/* SIGKILL, and waits. */
void instance_kill(struct replay_instance *instance);
/* Ends it in order, removes the directory and its arena. False: it did not end well. */
bool instance_end(struct replay_instance *instance);

#endif
