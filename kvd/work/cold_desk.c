/* SPDX-License-Identifier: Apache-2.0 */
#include "cold_desk.h"

#include "core.h"
#include "pending.h"

void cold_run_ops(struct cold_desk *desk, enum cold_verb verb, uint32_t n, uint64_t deadline) {
    for (uint32_t i = 0; i < n; i++) {
        desk->ops[i].verb = verb;
        desk->ops[i].deadline_ns = deadline;
        desk->ops[i].ttl_ms = 0;
    }
    cold_engine_run(desk->engine, desk->ops, n);
}

void cold_end_job(struct service *s, struct cold_job *job) {
    struct pending *op = &s->ops[job->tag - 1]; /* which has the job */
    if (job->then) job->then(s, job, op);
    else pending_ready(s, op);
}
