/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "worker.h"

#define MAP_AHEAD 256 /* tokens mapped beyond the frontier */
#define MAP_LOW 64    /* asked for when fewer are left */

static uint32_t lane_committed(const struct worker *worker, const struct engine_lane *lane) {
    uint32_t committed = lane->committed[ENGINE_MAIN];
    return worker->engine.n_pools > 1 ? engine_least(committed, lane->committed[1]) : committed;
}

static uint32_t lane_mapped(const struct worker *worker, const struct engine_lane *lane) {
    return worker->engine.n_pools > 1 ? engine_least(lane->mapped[ENGINE_MAIN], lane->mapped[1])
                                      : lane->mapped[ENGINE_MAIN];
}

static bool lane_verifies(const struct engine_lane *lane) {
    return lane->speculate && lane->known - lane->computed[ENGINE_MAIN] == 1;
}

static bool lane_wants_pages(const struct worker *worker, const struct engine_lane *lane) {
    uint32_t mapped = lane_mapped(worker, lane), frontier = lane->computed[ENGINE_MAIN];
    if (lane->over || mapped >= lane->end - 1) return false;
    return lane_verifies(lane) ? mapped < frontier + engine_drafts(&worker->engine, lane) + 1
                               : mapped - frontier < MAP_LOW;
}

static bool lane_due(const struct worker *worker, const struct engine_lane *lane) {
    if (!lane->used) return false;
    uint32_t fresh = lane->computed[ENGINE_MAIN] - lane_committed(worker, lane);
    if (lane_wants_pages(worker, lane)) return true;
    if (lane->over && lane->announced) return true;
    if (lane->over || lane_verifies(lane) || lane->computed[ENGINE_MAIN] == lane->hold_at) return fresh > 0;
    return fresh >= worker->round_tokens;
}

static struct kvd_round_item lane_item(const struct worker *worker, const struct engine_lane *lane) {
    const struct engine *engine = &worker->engine;
    struct kvd_round_item item = { .sequence = { lane->sequence } };
    uint32_t frontier = lane->computed[ENGINE_MAIN];
    for (uint32_t p = 0; p < KVD_MAX_POOLS; p++) {
        struct kvd_round_pool *pool = &item.pool[p];
        if (p >= engine->n_pools) continue;
        *pool = (struct kvd_round_pool){ .ask = KVD_ROUND_COMMIT, .commit = frontier, .keep = frontier };
        if (lane_verifies(lane)) /* rejected pages go back before the next verify's are mapped */
            pool->ask |= KVD_ROUND_KEEP;
        if (lane->over) continue; /* without ensure: no unit runs on it any more */
        pool->ask |= KVD_ROUND_ENSURE;
        if (!lane_verifies(lane) && !lane_wants_pages(worker, lane)) {
            pool->ensure = lane->mapped[p];
        } else if (lane_verifies(lane)) {
            uint32_t drafts = engine_drafts(engine, lane);
            pool->ensure = p == ENGINE_MAIN ? frontier + drafts + 1
                                            : engine_least(engine->max_context, frontier + drafts + engine->window);
        } else {
            pool->ensure = engine_least(lane->end - 1, frontier + MAP_LOW + MAP_AHEAD);
        }
        /* Of a window no more than now: the answer says how much farther its commit lets it go. */
        if (p == ENGINE_NEAR && !engine_has_drafts(engine))
            pool->ensure = engine_least(pool->ensure, lane->entitled[p]);
    }
    return item;
}

static void take_bound(struct engine_lane *lane, uint32_t frontier) {
    uint32_t end = frontier + 1 > lane->known ? frontier + 1 : lane->known;
    lane->bounded = true;
    lane->end = engine_least(lane->end, end);
    lane->over = lane->known >= lane->end;
}

static void take_result(struct worker *worker, struct engine_lane *lane, const struct kvd_round_result *result) {
    if (result->status != KVD_OK) {
        worker_say_failed(worker, lane, result->message);
        lane->over = true;
        memcpy(lane->computed, lane->committed, sizeof lane->computed);
        return;
    }
    uint32_t before = lane_committed(worker, lane);
    for (uint32_t p = 0; p < worker->engine.n_pools; p++) {
        lane->committed[p] = result->pool[p].committed;
        lane->entitled[p] = result->pool[p].entitlement * KVD_PAGE_TOKENS;
        lane->mapped[p] = engine_least(result->pool[p].membership * KVD_PAGE_TOKENS, worker->engine.max_context);
    }
    if (result->bounded) take_bound(lane, result->bounded_frontier);
    uint32_t committed = lane_committed(worker, lane);
    bool done = lane->over && !lane->announced && committed == lane->computed[ENGINE_MAIN];
    if (done) worker_say(worker, WIRE_DONE, lane);
    else if (committed > before) worker_say(worker, WIRE_COMMITTED, lane);
}

static int round_start(struct worker *worker) {
    struct kvd_round_item items[ENGINE_LANES];
    struct kvd_error error;
    uint32_t n = 0;
    bool due = false;
    for (uint32_t i = 0; i < ENGINE_LANES; i++) {
        const struct engine_lane *lane = &worker->engine.lane[i];
        bool current = lane->computed[ENGINE_MAIN] == lane_committed(worker, lane);
        if (!lane->used || (current && !lane_wants_pages(worker, lane) && !(lane->over && lane->announced))) continue;
        due |= lane_due(worker, lane);
        worker->flight[n] = i;
        worker->flight_sequence[n] = lane->sequence;
        items[n++] = lane_item(worker, lane);
    }
    if (!due) return 0;
    for (uint32_t i = 0; i < n; i++)
        worker->engine.lane[worker->flight[i]].announced = !worker->engine.lane[worker->flight[i]].over;
    if (kvd_round_start(worker->client, items, n, &worker->ticket, &error) != KVD_OK) {
        fprintf(stderr, "demo_worker: kvd does not take a Round: %s\n", error.message);
        return -EIO;
    }
    worker->n_flight = n;
    worker->in_flight = true;
    worker->rounds++;
    return 0;
}

static int round_take(struct worker *worker, bool wait) {
    struct kvd_round_result results[ENGINE_LANES];
    struct kvd_error error = { .status = KVD_OK };
    uint32_t n = 0;
    enum kvd_status status = wait ? kvd_round_wait(worker->client, worker->ticket, results, ENGINE_LANES, &n, &error)
                                  : kvd_round_poll(worker->client, worker->ticket, results, ENGINE_LANES, &n, &error);
    if (status == KVD_UNAVAILABLE && !wait) return 0;
    worker->in_flight = false;
    if (status != KVD_OK || n != worker->n_flight) {
        fprintf(stderr, "demo_worker: no answer to a Round: %s\n", status != KVD_OK ? error.message : "wrong length");
        return -EIO;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct engine_lane *lane = &worker->engine.lane[worker->flight[i]];
        if (lane->used && lane->sequence == worker->flight_sequence[i]) take_result(worker, lane, &results[i]);
    }
    return 0;
}

int worker_rounds(struct worker *worker, bool wait) {
    if (worker->in_flight) {
        int r = round_take(worker, wait);
        if (r != 0 || worker->in_flight) return r;
    }
    int r = round_start(worker);
    if (r != 0 || !worker->in_flight) return r;
    for (uint32_t i = 0; i < ENGINE_LANES; i++) { /* the next verify stands on this boundary */
        const struct engine_lane *lane = &worker->engine.lane[i];
        if (lane->used && !lane->over && lane_verifies(lane)) return round_take(worker, true);
    }
    return 0;
}

void worker_rounds_drop(struct worker *worker) {
    struct kvd_round_result results[ENGINE_LANES];
    struct kvd_error error;
    uint32_t n = 0;
    if (worker->in_flight) (void)kvd_round_wait(worker->client, worker->ticket, results, ENGINE_LANES, &n, &error);
    worker->in_flight = false;
}
