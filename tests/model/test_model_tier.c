/* SPDX-License-Identifier: Apache-2.0
 *
 * Model-based test of the store's two tiers, its directory and recovery: PAGE-3, PAGE-6, PAGE-7, PAGE-8, HOST-4,
 * HOST-7, CAP-7, ACT-5, ACT-7, ACT-8, CONT-1, CONT-3, INV-9, SRV-2, by random operations in small stores; each run has
 * its own configuration. Usage: test_model_tier [-n OPERATIONS of one run] [-s SEED] [-c SCENARIO]...
 */
#include <getopt.h>
#include <stdlib.h>
#include <unistd.h>

#include "kvt.h"
#include "tier.h"

#ifndef MODEL_DIVISOR
#define MODEL_DIVISOR 1
#endif

static const struct tier_scenario scenarios[] = {
    { .name = "tier", .runs = 200, .operations = 1200, .host = true },
    { .name = "tier_starved", .runs = 200, .operations = 1200, .host = true, .starved = true },
    { .name = "tier_state", .runs = 200, .operations = 1200, .host = true, .state = true },
    { .name = "tier_state_starved", .runs = 200, .operations = 1200, .host = true, .state = true, .starved = true },
    { .name = "tier_long", .runs = 30, .operations = 600, .host = true, .long_context = true },
    { .name = "tier_long_state", .runs = 30, .operations = 600, .host = true, .state = true, .long_context = true },
    { .name = "tier_tight", .runs = 100, .operations = 1200, .host = true, .tight = true },
    { .name = "tier_tight_state", .runs = 100, .operations = 1200, .host = true, .state = true, .tight = true },
    { .name = "tier_window", .runs = 150, .operations = 1200, .host = true, .windows = true },
    { .name = "tier_window_starved", .runs = 100, .operations = 1200, .host = true, .starved = true, .windows = true },
    { .name = "tier_window_state", .runs = 80, .operations = 1200, .host = true, .state = true, .windows = true },
    { .name = "tier_window_tight", .runs = 80, .operations = 1200, .host = true, .tight = true, .windows = true },
    { .name = "tier_off", .runs = 40, .operations = 1000 },
    { .name = "tier_off_state", .runs = 40, .operations = 1000, .state = true },
};
#define N_SCENARIOS (sizeof scenarios / sizeof *scenarios)

static uint32_t pick(uint64_t *random, uint32_t low, uint32_t high) { return low + kvt_below(random, high - low + 1); }

/* One or two more pools, mostly with windows; the draft pool may have one, too. */
static void draw_windows(uint64_t *random, struct store_config *c, uint32_t most) {
    uint32_t own = c->pool_pages[1] ? 2 : 1;
    if (own == 1) c->backend = GEOM_OFF;
    c->more_pools = pick(random, 1, 2);
    c->prefill_chunk = 192;
    for (uint32_t p = 1; p < own + c->more_pools; p++) {
        if (p == 1 && own == 2 && pick(random, 0, 2)) continue;
        c->window[p] = (struct store_window){ .tokens = pick(random, 0, 7) ? pick(random, 1, 250) : 0,
                                              .lead = pick(random, 0, 1) ? 0 : pick(random, 1, 60),
                                              .aligned = pick(random, 0, 2) == 0 };
        if (p >= own)
            c->pool_pages[p] = pick(random, pages_of(c->max_context), max_u32(pages_of(c->max_context), most));
    }
}

/* starved: an arena of a few pages, pools of hardly more than a sequence. tight: such pools, and an arena that takes
 * all that must give way. */
void tier_draw(const struct tier_scenario *scenario, uint64_t seed, struct store_config *ret_config) {
    uint64_t random = seed;
    struct store_config c = { .widest_verify = 4, .lease_window = 128, .prefill_chunk = 64 };
    uint32_t most = scenario->long_context ? 110 : scenario->starved ? 10 : 26, pages;
    c.backend = (enum geom_backend)pick(&random, GEOM_OFF, GEOM_DFLASH);
    c.max_context = (scenario->long_context ? pick(&random, 64, BLOCKS) : pick(&random, 2, SHORT)) * 64 -
                    (pick(&random, 0, 2) ? 0 : pick(&random, 0, 63));
    c.max_concurrency = pick(&random, 1, scenario->starved || scenario->tight ? 3 : SEQS);
    pages = pages_of(c.max_context);
    if (scenario->tight) most = pages + 3;
    c.pool_pages[0] = pick(&random, pages, max_u32(pages, most));
    if (c.backend == GEOM_MTP || (c.backend == GEOM_DFLASH && pick(&random, 0, 3)))
        c.pool_pages[1] = pick(&random, pages, max_u32(pages, most));
    if (c.backend != GEOM_OFF) c.draft_window = pick(&random, 1, 15);
    c.lease_growth = pick(&random, 0, 3) == 0 || scenario->tight;
    c.map_ahead = pick(&random, 0, 1) ? 0 : pick(&random, 1, 4);
    c.max_continuations = pick(&random, 2, 14);
    c.spare_pages = pick(&random, 0, 3);
    c.has_state = scenario->state;
    if (c.has_state) c.state_slots = c.max_concurrency + pick(&random, 0, 6);
    c.recorded = true;
    if (scenario->host) {
        c.host_stride[0] = UNIT * pick(&random, 1, 2);
        c.host_stride[1] = UNIT * pick(&random, 1, 3);
        c.host_stride[2] = c.host_stride[3] = UNIT;
        c.host_state_stride = UNIT * pick(&random, 1, 2);
        c.host_bytes = UNIT * (uint64_t)pick(&random, scenario->tight ? 60 : 1,
                                             scenario->long_context ? 500
                                             : scenario->starved    ? 24
                                                                    : 120) +
                       (pick(&random, 0, 3) ? 0 : pick(&random, 1, UNIT - 1));
    }
    if (scenario->windows) draw_windows(&random, &c, most);
    c.max_rolling = pick(&random, 0, 3);
    *ret_config = c;
}

static uint64_t operations_given;
static struct world totals;

static void add_up(const struct world *w) {
    totals.kills += w->kills, totals.recoveries += w->recoveries, totals.restarts += w->restarts,
        totals.refused += w->refused, totals.applied += w->applied;
    totals.injected += w->injected, totals.waits += w->waits, totals.staged += w->staged, totals.lost += w->lost,
        totals.damages += w->damages;
    totals.shortened += w->shortened, totals.atomic_checks += w->atomic_checks;
    totals.merged += w->merged, totals.rolled += w->rolled;
}

void tier_report(void) {
    printf("\n    applied %" PRIu64 ", refused %" PRIu64 ", injected shortages %" PRIu64 ", staged %" PRIu64
           ", waits %" PRIu64 ", plans held to the page %" PRIu64 ", damages %" PRIu64 ", lost continuations %" PRIu64
           ", kill points %" PRIu64 ", recoveries %" PRIu64 " (shortened %" PRIu64 "), restarts %" PRIu64
           ", merged %" PRIu64 ", rolling checkpoints %" PRIu64 "\n    ",
           totals.applied, totals.refused, totals.injected, totals.staged, totals.waits, totals.atomic_checks,
           totals.damages, totals.lost, totals.kills, totals.recoveries, totals.shortened, totals.restarts,
           totals.merged, totals.rolled);
    totals = (struct world){ 0 };
}

bool tier_run(const struct tier_scenario *scenario, uint64_t seed, uint64_t operations) {
    struct world *w = calloc(1, sizeof *w);
    w->name = scenario->name;
    w->seed = seed;
    w->random = seed ^ UINT64_C(0x9E3779B97F4A7C15);
    tier_draw(scenario, seed, &w->config);
    w->rots = chance(w, 40);
    w->tight = scenario->tight;
    bool ok = world_open(w);
    if (ok) look(w);
    for (; ok && w->step < operations && !w->failed; w->step++) {
        if (w->step % 64 == 0) alarm(60); /* one that hangs */
        tier_step(w);
    }
    alarm(0);
    if (ok && !w->failed) {
        w->history[w->step % HISTORY][0] = 0;
        note(w, "drain");
        for (int i = 0; i < CONTS; i++) w->cont[i].leaves = false;
        drain(w);
        if (!w->failed) look(w);
    }
    ok = ok && !w->failed;
    add_up(w);
    world_close(w);
    free(w);
    return ok;
}

static void run_index(uint32_t i) {
    const struct tier_scenario *s = &scenarios[i];
    uint64_t seed = kvt_seed();
    if (operations_given) {
        KVT_TRUE(tier_run(s, seed, operations_given)); /* the replay of one run */
    } else {
        uint32_t runs = s->runs / MODEL_DIVISOR ? s->runs / MODEL_DIVISOR : 1;
        for (uint32_t run = 0; run < runs && KVT_TRUE(tier_run(s, seed, s->operations)); run++)
            seed = kvt_random(&seed);
    }
    tier_report();
}

#define RUN(i)                                                                                                         \
    static void run_##i(void) { run_index(i); }
RUN(0)
RUN(1)
RUN(2)
RUN(3)
RUN(4)
RUN(5)
RUN(6)
RUN(7)
RUN(8)
RUN(9)
RUN(10)
RUN(11)
RUN(12)
RUN(13)
static void (*const runs[])(void) = { run_0, run_1, run_2, run_3,  run_4,  run_5,  run_6,
                                      run_7, run_8, run_9, run_10, run_11, run_12, run_13 };
_Static_assert(sizeof runs / sizeof *runs == N_SCENARIOS, "a runner for each scenario");

int main(int argc, char **argv) {
    struct kvt_case cases[N_SCENARIOS + 1] = { { 0 } };
    char list[] = "-l", *args[N_SCENARIOS + 8];
    int n_args = 1, opt;
    args[0] = argv[0];
    for (uint32_t i = 0; i < N_SCENARIOS; i++) cases[i] = (struct kvt_case){ scenarios[i].name, runs[i] };
    while ((opt = getopt(argc, argv, "n:s:c:l")) != -1) {
        if (opt == 'n') operations_given = strtoull(optarg, NULL, 0);
        else if (opt == 's') setenv("KVT_SEED", optarg, 1);
        else if (opt == 'c' && n_args < (int)N_SCENARIOS + 1) args[n_args++] = optarg;
        else if (opt == 'l') args[n_args++] = list;
        else return 2;
    }
    args[n_args] = NULL;
    optind = 1;
    return kvt_main("model of two tiers", cases, n_args, args);
}
