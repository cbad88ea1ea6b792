/* SPDX-License-Identifier: Apache-2.0
 *
 * A cluster of three masters, each with a replica, in folders of their own, which ends with the test.
 */
#ifndef TEST_REDIS_CLUSTER_H
#define TEST_REDIS_CLUSTER_H

#include "redis.h"

#define REDIS_MASTERS 3u
#define REDIS_NODES (2 * REDIS_MASTERS)

struct redis_cluster {
    struct redis node[REDIS_NODES]; /* master i has slots 5000 i and on, and the replica i + REDIS_MASTERS */
    char id[REDIS_NODES][64];
};

/* All slots are served and every replica knows its master. False: not, which fails the test. */
bool redis_cluster_start(struct redis_cluster *cluster);
/* After how many milliseconds nodes take one for dead that does not answer; 15,000 at the start. */
void redis_cluster_set_patience(const struct redis_cluster *cluster, int ms);
/* For redis_until, of a struct redis_cluster: of the first masters each that the test has not killed has a replica with
 * as many keys. */
bool redis_cluster_is_replicated(void *cluster);
/* For redis_until, of a struct redis: it is a master. */
bool redis_is_master(void *node);
void redis_cluster_free(struct redis_cluster *cluster);

#endif
