/* SPDX-License-Identifier: Apache-2.0
 *
 * A check of the cold tier's engine: a question, and some of what was written lately, read back and compared (COLD-3).
 * It belongs to the writer's thread.
 */
#ifndef KVD_COLD_CHECK_H
#define KVD_COLD_CHECK_H

#include "cold_engine.h"

#define COLD_CHECK_LIMIT 1024u /* objects that are remembered, and that one check reads */

struct cold_written {
    struct cold_name name;
    uint64_t bytes; /* of its payload */
};
struct cold_check {
    struct cold_written *ring; /* [COLD_CHECK_LIMIT], the caller's */
    uint64_t n;                /* noted so far */
};
void cold_check_note(struct cold_check *check, const struct cold_name *name, uint64_t bytes);

enum cold_check_outcome { COLD_CHECK_RIGHT = 0, COLD_CHECK_ABSENT, COLD_CHECK_WRONG, COLD_CHECK_UNANSWERED };
#define COLD_CHECK_OUTCOMES 4u
struct cold_checked {
    uint64_t ping_ns; /* of a question and its answer; 0: there was none */
    uint32_t objects[COLD_CHECK_OUTCOMES];
    enum cold_fault fault; /* of the first wrong one */
};

/* What a check may use while it lasts. */
struct cold_check_means {
    struct cold_engine *engine;
    const uint8_t *secret; /* or NULL */
    uint64_t timeout_ns;   /* of the answers to a pipeline */
    uint8_t *buffer;       /* for at least one object with its header */
    uint64_t buffer_bytes;
    struct cold_op *ops; /* [n_ops] */
    uint32_t n_ops;
};
/* objects: at most COLD_CHECK_LIMIT, the newest and others evenly back from it; fewer where fewer were written. Those
 * that are wrong are deleted there. */
void cold_check_run(const struct cold_check *check, const struct cold_check_means *means, uint32_t objects,
                    struct cold_checked *ret_checked);

#endif
