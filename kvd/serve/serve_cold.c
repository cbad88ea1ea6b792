/* SPDX-License-Identifier: Apache-2.0
 *
 * The cold tier for operators: DescribeColdTier, CheckColdTier.
 */
#include <stdio.h>

#include "cold_tier.h"
#include "core.h"
#include "requests.h"

static void copy_engine(const struct cold_engine_state *engine, struct kvd_cold_tier *r) {
    static const uint32_t breakers[] = {
        [COLD_CONNECTING] = KVD_COLD_CONNECTING, [COLD_CLOSED] = KVD_COLD_CLOSED, [COLD_OPEN] = KVD_COLD_OPEN
    };
    r->breaker = breakers[engine->breaker];
    r->clustered = engine->clustered;
    snprintf(r->why, sizeof r->why, "%s", engine->why);
    r->retry_ns = engine->retry_ns;
    r->trips = engine->trips;
    r->connections = engine->connections;
}

static void copy_check(const struct cold_stats *stats, struct kvd_cold_tier *r) {
    const struct cold_checked *last = &stats->checked;
    r->checks = stats->checks;
    r->ping_ns = last->ping_ns;
    r->right_objects = last->objects[COLD_CHECK_RIGHT];
    r->absent_objects = last->objects[COLD_CHECK_ABSENT];
    r->wrong_objects = last->objects[COLD_CHECK_WRONG];
    r->unanswered_objects = last->objects[COLD_CHECK_UNANSWERED];
    r->read_objects = r->right_objects + r->absent_objects + r->wrong_objects + r->unanswered_objects;
    if (r->wrong_objects) snprintf(r->wrong_field, sizeof r->wrong_field, "%s", cold_fault_name(last->fault));
}

void serve_describe_cold_tier(struct call *call) {
    struct kvd_cold_tier *r = &call->reply.u.cold_tier;
    struct cold_stats stats;
    cold_tier_stats(call->service, &stats);
    *r = (struct kvd_cold_tier){ .configured = stats.on,
                                 .waiting = stats.waiting,
                                 .continuations = stats.continuations,
                                 .dropped_age = stats.dropped[COLD_DROP_AGE],
                                 .dropped_queue = stats.dropped[COLD_DROP_QUEUE],
                                 .dropped_engine = stats.dropped[COLD_DROP_ENGINE],
                                 .dropped_arena = stats.dropped[COLD_DROP_ARENA],
                                 .written_objects = stats.written_objects,
                                 .written_bytes = stats.written_bytes,
                                 .written_ns = stats.written_ns,
                                 .met_objects = stats.met_objects };
    copy_engine(&stats.engine, r);
    copy_check(&stats, r);
}

void serve_check_cold_tier(struct call *call) {
    if (!cold_tier_check(call->service, call->request.u.check_cold))
        call_refuse(call, KVD_FAILED_PRECONDITION,
                    "a check of the cold tier, and there is none; set address = in section [cold]");
}
