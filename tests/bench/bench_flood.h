/* SPDX-License-Identifier: Apache-2.0
 *
 * Clients that flood a kvd, for bench_rpc: each a process that keeps 32 requests in flight (Stats, Plan and lists), as
 * fast as it gets answers.
 */
#ifndef BENCH_FLOOD_H
#define BENCH_FLOOD_H

#include <sys/types.h>

#define FLOOD_CLIENTS 6

struct flood {
    pid_t pid[FLOOD_CLIENTS];
};

/* Returns when each has its first answers; aborts the bench with a sentence on errors. */
void flood_start(struct flood *ret_flood, const char *socket);
void flood_stop(struct flood *flood);

#endif
