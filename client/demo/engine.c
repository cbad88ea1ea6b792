/* SPDX-License-Identifier: Apache-2.0 */
#include "engine.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Ordinal that no column of the lane may reach in any pool. */
static uint32_t lane_limit(const struct engine *engine, const struct engine_lane *lane) {
    uint32_t limit = lane->mapped[ENGINE_MAIN];
    if (engine->n_pools > 1) limit = engine_least(limit, lane->mapped[1]);
    return lane->hold_at != 0 ? engine_least(limit, lane->hold_at) : limit;
}

uint32_t engine_room(const struct engine *engine, const struct engine_lane *lane) {
    if (!lane->used || lane->over || lane->known >= lane->end) return 0;
    uint32_t limit = engine_least(lane_limit(engine, lane), lane->known);
    return limit > lane->computed[ENGINE_MAIN] ? limit - lane->computed[ENGINE_MAIN] : 0;
}

uint32_t engine_drafts(const struct engine *engine, const struct engine_lane *lane) {
    if (!lane->used || lane->over || !lane->speculate || !engine_has_drafts(engine) || lane->known >= lane->end ||
        lane->known - lane->computed[ENGINE_MAIN] != 1)
        return 0;
    uint32_t frontier = lane->computed[ENGINE_MAIN]; /* e = min(window - 1, budget - 1, S - f - 1) */
    uint32_t drafts = engine_least(engine->window - 1, lane->end - lane->known - 1);
    return engine_least(drafts, engine->max_context - frontier - 1);
}

/* One pass over the lanes: how many columns of each. */
struct step_plan {
    uint32_t n[ENGINE_LANES]; /* main columns */
    uint32_t drafts[ENGINE_LANES];
    uint8_t next[ENGINE_LANES][ENGINE_WINDOW];
    uint32_t columns;
};

static void plan_step(const struct engine *engine, struct step_plan *plan) {
    uint32_t chunk = ENGINE_CHUNK;
    memset(plan, 0, sizeof *plan);
    for (uint32_t i = 0; i < ENGINE_LANES; i++) {
        const struct engine_lane *lane = &engine->lane[i];
        uint32_t room = engine_room(engine, lane);
        if (room == 0) continue;
        uint32_t behind = lane->known - lane->computed[ENGINE_MAIN];
        if (behind == 1) {
            uint32_t mapped = lane_limit(engine, lane) - lane->computed[ENGINE_MAIN] - 1;
            plan->drafts[i] = engine_least(engine_drafts(engine, lane), mapped);
            plan->n[i] = 1 + plan->drafts[i];
        } else {
            plan->n[i] = engine_least(room, chunk);
            chunk -= plan->n[i];
        }
        plan->columns += plan->n[i];
    }
}

static struct model_segment lane_segment(struct engine_lane *lane, uint32_t pool, uint32_t first, uint32_t n,
                                         uint32_t want, uint8_t *next) {
    return (struct model_segment){ .row = lane->row[pool],
                                   .window_row = lane->row[ENGINE_NEAR],
                                   .first = first,
                                   .n = n,
                                   .want = want,
                                   .history = lane->history,
                                   .next = next };
}

/* Draft tokens go to the history past `known`: provisional until verified. */
static int draft_tokens(struct engine *engine, const struct step_plan *plan, char *err, size_t err_bytes) {
    for (uint32_t j = 0;; j++) {
        struct model_segment segments[ENGINE_LANES];
        uint32_t n = 0;
        for (uint32_t i = 0; i < ENGINE_LANES; i++) {
            struct engine_lane *lane = &engine->lane[i];
            if (plan->drafts[i] <= j) continue;
            uint32_t first = lane->computed[ENGINE_MTP], last = lane->known + j;
            segments[n++] = lane_segment(lane, ENGINE_MTP, first, last - first, 1, &lane->history[last]);
            lane->computed[ENGINE_MTP] = last;
        }
        if (n == 0) return 0;
        int r = model_step(engine->model, MODEL_DRAFT, engine->mtp, segments, n, err, err_bytes);
        if (r != 0) return r;
    }
}

/* Short segments first, so that they share one batched attention. */
static int verify_drafts(struct engine *engine, struct step_plan *plan, char *err, size_t err_bytes) {
    struct model_segment segments[ENGINE_LANES];
    uint32_t n = 0;
    for (uint32_t pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < ENGINE_LANES; i++) {
            struct engine_lane *lane = &engine->lane[i];
            uint32_t first = lane->computed[ENGINE_MAIN];
            if (plan->n[i] == 0 || (plan->n[i] > MODEL_SHORT) != (pass == 1)) continue;
            uint32_t want = first + plan->n[i] >= lane->known ? plan->drafts[i] + 1 : 0;
            segments[n++] = lane_segment(lane, ENGINE_MAIN, first, plan->n[i], want, plan->next[i]);
        }
    return model_step(engine->model, MODEL_MAIN, engine->main, segments, n, err, err_bytes);
}

/* Drafts that the main model says too are kept, and one token more that it says itself. */
static void accept_drafts(struct engine *engine, const struct step_plan *plan) {
    for (uint32_t i = 0; i < ENGINE_LANES; i++) {
        struct engine_lane *lane = &engine->lane[i];
        if (plan->n[i] == 0) continue;
        if (lane->computed[ENGINE_MAIN] + plan->n[i] < lane->known) {
            lane->computed[ENGINE_MAIN] += plan->n[i];
            continue;
        }
        uint32_t same = 0;
        while (same < plan->drafts[i] && plan->next[i][same] == lane->history[lane->known + same]) same++;
        lane->history[lane->known + same] = plan->next[i][same];
        lane->computed[ENGINE_MAIN] = lane->known + same;
        lane->known += same + 1;
        lane->computed[ENGINE_MTP] = engine_least(lane->computed[ENGINE_MTP], lane->computed[ENGINE_MAIN]);
        lane->drafted += plan->drafts[i];
        lane->accepted += same;
        lane->over = lane->known >= lane->end;
    }
}

/* The draft pool follows the main one, so that both can be committed at one frontier. */
static int follow_main(struct engine *engine, char *err, size_t err_bytes) {
    struct model_segment segments[ENGINE_LANES];
    uint32_t n = 0;
    for (uint32_t pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < ENGINE_LANES; i++) {
            struct engine_lane *lane = &engine->lane[i];
            uint32_t first = lane->computed[ENGINE_MTP], last = lane->computed[ENGINE_MAIN];
            if (!lane->used || first >= last || (last - first > MODEL_SHORT) != (pass == 1)) continue;
            segments[n++] = lane_segment(lane, ENGINE_MTP, first, last - first, 0, NULL);
        }
    if (n == 0) return 0;
    int r = model_step(engine->model, MODEL_DRAFT, engine->mtp, segments, n, err, err_bytes);
    for (uint32_t i = 0; r == 0 && i < ENGINE_LANES; i++)
        engine->lane[i].computed[ENGINE_MTP] = engine->lane[i].computed[ENGINE_MAIN];
    return r;
}

int engine_step(struct engine *engine, uint32_t *ret_columns, char *err, size_t err_bytes) {
    struct step_plan plan;
    plan_step(engine, &plan);
    if (plan.columns == 0) {
        *ret_columns = 0;
        return 0;
    }
    int r = draft_tokens(engine, &plan, err, err_bytes);
    if (r == 0) r = verify_drafts(engine, &plan, err, err_bytes);
    if (r != 0) return r;
    accept_drafts(engine, &plan);
    if (engine_has_drafts(engine)) r = follow_main(engine, err, err_bytes);
    if (r == 0) *ret_columns = plan.columns;
    return r;
}
