/* SPDX-License-Identifier: Apache-2.0
 *
 * What is read from the cold tier: which pages of a prompt its engine has, and those pages into the arena, as a
 * continuation there. Section [cold] of the configuration; address = none means that there is none.
 *
 * A request hands over a job and waits as a pending operation (PENDING_COLD). Finding and loading have a desk each: a
 * thread, a queue, and an engine client of its own, so that neither waits for the other nor for what is written. No
 * request that does not ask for cold pages comes here (COLD-2).
 */
#ifndef KVD_COLD_READER_H
#define KVD_COLD_READER_H

#include "cold_engine.h"
#include "metrics.h"
#include "store.h"

struct service;
struct pending;

struct cold_job {
    struct cold_job *next;
    bool load, cancelled;
    /* Of a load: what comes behind it instead of its answer, under the same hold of the core mutex as its end, so that
     * nobody comes between. It takes over the job and the operation. NULL: nothing does. */
    void (*then)(struct service *service, struct cold_job *job, struct pending *op);
    void *more;   /* memory for that, which goes with the job */
    uint32_t tag; /* of its pending operation */
    uint64_t arrived_ns, uid;
    kvd_session_id session; /* when it has gone, nobody wants what is loaded */
    store_cont from;        /* load */
    struct kvd_cold_want want;
    /* Answers. */
    enum kvd_status status;
    enum metrics_short short_of;
    char why[KVD_MESSAGE_BYTES];
    struct kvd_cold_found found;
    kvd_digest digests[]; /* want's */
};
/* A copy of what is wanted, and so many bytes of `more`. NULL: no memory. free. Any thread. */
struct cold_job *cold_job_new(const struct kvd_cold_want *want, bool load, size_t more);

/* After the arena is open. 0, or 1 with a sentence. */
int cold_reader_open(struct service *service, uint8_t *arena, char *err, size_t err_bytes);
/* Not under the core mutex; before the arena is closed. It waits for no engine. Jobs that are not done are freed. */
void cold_reader_close(struct service *service);
/* Under the core mutex. Takes over the job, until the pending operation is ready and frees it. */
void cold_reader_ask(struct service *service, struct cold_job *job, struct pending *op);

struct cold_reads {
    uint64_t finds, found, loads, loaded;           /* jobs, and those that found or loaded something */
    uint64_t found_tokens, loaded_tokens;           /* behind what was there */
    uint64_t loaded_objects, loaded_bytes, load_ns; /* of values */
    uint64_t remembered;                            /* finds that were answered without the engine */
    uint64_t wrong[COLD_FAULTS];                    /* objects that were not what was asked for, and were deleted */
    struct cold_engine_state finder, loader;
};
/* Any thread, also under the core mutex. Zeros where there is no cold tier. */
void cold_reader_stats(const struct service *service, struct cold_reads *ret_reads);

#endif
