/* SPDX-License-Identifier: Apache-2.0
 *
 * What is run: every pool set, lease growth and state on and off, shortage as the normal case and room enough,
 * map_ahead 0 and 4. Real layouts write every code and scale, and cost a hundred times as much a step as flat memory: a
 * wrong stride shows within hundreds of steps, so they take few.
 */
#include "driver.h"
#include "kvt.h"

#define BASE .prefill_chunk = 64, .widest_verify = 4, .lease_window = 192
#define FLAT(title, count, ...)                                                                                        \
    { .name = title, .config = { BASE, __VA_ARGS__ }, .operations = count }
#define REAL(title, profile, arranged, ...)                                                                            \
    {                                                                                                                  \
        .name = title, .config = { BASE, __VA_ARGS__ }, .operations = 2500, .geometry = true, .storage = profile,      \
        .arrangement = arranged                                                                                        \
    }

const struct scenario scenarios[] = {
    FLAT("off_tiny", 360000, .backend = GEOM_OFF, .pool_pages = { 5 }, .max_context = 256, .max_concurrency = 2,
         .max_continuations = 6),
    FLAT("off_small", 360000, .backend = GEOM_OFF, .pool_pages = { 20 }, .max_context = 640, .max_concurrency = 4,
         .max_continuations = 12, .map_ahead = 4),
    FLAT("off_odd_context", 180000, .backend = GEOM_OFF, .pool_pages = { 11 }, .max_context = 333, .max_concurrency = 3,
         .max_continuations = 8),
    FLAT("off_state", 270000, .backend = GEOM_OFF, .pool_pages = { 14 }, .max_context = 512, .max_concurrency = 3,
         .max_continuations = 8, .has_state = true, .state_slots = 6, .max_rolling = 2),
    FLAT("off_growth", 270000, .backend = GEOM_OFF, .pool_pages = { 16 }, .max_context = 1024, .max_concurrency = 4,
         .max_continuations = 8, .lease_growth = true),
    FLAT("mtp_tiny", 270000, .backend = GEOM_MTP, .pool_pages = { 6, 8 }, .max_context = 256, .max_concurrency = 2,
         .draft_window = 4, .max_continuations = 6),
    FLAT("mtp_small", 270000, .backend = GEOM_MTP, .pool_pages = { 18, 22 }, .max_context = 700, .max_concurrency = 4,
         .draft_window = 15, .max_continuations = 10, .map_ahead = 4),
    FLAT("mtp_state_growth", 270000, .backend = GEOM_MTP, .pool_pages = { 20, 24 }, .max_context = 1024,
         .max_concurrency = 4, .draft_window = 5, .max_rolling = 1, .max_continuations = 10, .has_state = true,
         .state_slots = 8, .lease_growth = true, .map_ahead = 4),
    FLAT("dflash_full", 270000, .backend = GEOM_DFLASH, .pool_pages = { 9, 9 }, .max_context = 384,
         .max_concurrency = 3, .draft_window = 7, .max_continuations = 8),
    FLAT("dflash_full_growth", 270000, .backend = GEOM_DFLASH, .pool_pages = { 16, 13 }, .max_context = 900,
         .max_concurrency = 4, .draft_window = 7, .max_continuations = 8, .lease_growth = true),
    FLAT("dflash_bare", 180000, .backend = GEOM_DFLASH, .pool_pages = { 9, 0 }, .max_context = 384,
         .max_concurrency = 3, .draft_window = 7, .max_continuations = 8, .map_ahead = 4),
    FLAT("few_descriptors", 180000, .backend = GEOM_OFF, .pool_pages = { 16 }, .max_context = 384, .max_concurrency = 4,
         .max_continuations = 3, .spare_pages = 4),
    FLAT("few_entries", 180000, .backend = GEOM_MTP, .pool_pages = { 20, 24 }, .max_context = 512, .max_concurrency = 4,
         .draft_window = 3, .max_continuations = 12, .membership_entries = 640),
    FLAT("roomy", 90000, .backend = GEOM_MTP, .pool_pages = { 160, 176 }, .max_context = 2048, .max_concurrency = 8,
         .draft_window = 4, .max_continuations = 40, .map_ahead = 4),
    FLAT("roomy_state", 60000, .backend = GEOM_DFLASH, .pool_pages = { 160, 160 }, .max_context = 2048,
         .max_concurrency = 8, .draft_window = 4, .max_continuations = 40, .has_state = true, .state_slots = 40,
         .lease_growth = true),
    FLAT("long", 30000, .backend = GEOM_OFF, .pool_pages = { 420 }, .max_context = 12800, .max_concurrency = 4,
         .max_continuations = 12, .map_ahead = 4),
    FLAT("long_few_entries", 30000, .backend = GEOM_MTP, .pool_pages = { 300, 310 }, .max_context = 9000,
         .max_concurrency = 3, .draft_window = 4, .max_continuations = 12, .membership_entries = 1600,
         .lease_growth = true),
    FLAT("window", 180000, .backend = GEOM_OFF, .more_pools = 1, .pool_pages = { 40, 24 }, .max_context = 1024,
         .max_concurrency = 4, .max_rolling = 3, .max_continuations = 10, .window[1] = { .tokens = 128 }),
    FLAT("window_growth", 180000, .backend = GEOM_OFF, .more_pools = 1, .pool_pages = { 30, 20 }, .max_context = 1024,
         .max_concurrency = 4, .max_rolling = 1, .max_continuations = 8, .lease_growth = true,
         .window[1] = { .tokens = 100, .lead = 20 }),
    FLAT("window_chunked", 120000, .backend = GEOM_OFF, .more_pools = 1, .pool_pages = { 30, 20 }, .max_context = 900,
         .max_concurrency = 3, .max_rolling = 2, .max_continuations = 8, .map_ahead = 2,
         .window[1] = { .tokens = 192, .aligned = true, .lead = 10 }),
    FLAT("window_state", 120000, .backend = GEOM_OFF, .more_pools = 1, .pool_pages = { 30, 20 }, .max_context = 700,
         .max_concurrency = 3, .max_rolling = 2, .max_continuations = 8, .has_state = true, .state_slots = 6,
         .window[1] = { .tokens = 64 }),
    FLAT("window_four", 120000, .backend = GEOM_MTP, .draft_window = 4, .more_pools = 2,
         .pool_pages = { 40, 44, 30, 26 }, .max_context = 1024, .max_concurrency = 4, .max_rolling = 4,
         .max_continuations = 10,
         .window = { [2] = { .tokens = 300, .lead = 5 }, [3] = { .tokens = 128, .aligned = true } }),
    { .name = "drawn", .operations = 1600000, .drawn = true },
    REAL("real_bf16", KVD_STORAGE_BF16, GEOM_DENSE, .backend = GEOM_MTP, .pool_pages = { 8, 10 }, .max_context = 320,
         .max_concurrency = 2, .draft_window = 4, .max_continuations = 6),
    REAL("real_int8", KVD_STORAGE_INT8, GEOM_RECORD, .backend = GEOM_OFF, .pool_pages = { 8 }, .max_context = 320,
         .max_concurrency = 2, .max_continuations = 6),
    REAL("real_fp8", KVD_STORAGE_FP8, GEOM_DENSE, .backend = GEOM_DFLASH, .pool_pages = { 8, 8 }, .max_context = 320,
         .max_concurrency = 2, .draft_window = 4, .max_continuations = 6, .map_ahead = 4),
    REAL("real_nvfp4", KVD_STORAGE_NVFP4, GEOM_RECORD, .backend = GEOM_MTP, .pool_pages = { 8, 10 }, .max_context = 320,
         .max_concurrency = 2, .draft_window = 4, .max_continuations = 6, .lease_growth = true),
    REAL("real_k8v4", KVD_STORAGE_K8V4, GEOM_RECORD, .backend = GEOM_DFLASH, .pool_pages = { 8, 8 }, .max_context = 320,
         .max_concurrency = 2, .draft_window = 4, .max_continuations = 6, .has_state = true, .state_slots = 5),
};

static uint32_t pick(uint64_t *random, uint32_t low, uint32_t high) { return low + kvt_below(random, high - low + 1); }

/* Up to two more pools, mostly with windows; a draft pool may have one, too. */
static void draw_windows(uint64_t *random, struct store_config *c) {
    bool draft = c->pool_pages[1] > 0;
    if (c->backend == GEOM_DFLASH && !draft) return; /* its second pool would be the draft's */
    c->more_pools = pick(random, 0, 2);
    for (uint32_t p = 1; p < 1 + draft + c->more_pools; p++) {
        if (p > draft) c->pool_pages[p] = pick(random, 6, 26);
        if (pick(random, 0, 3) == 0) continue;
        c->window[p] = (struct store_window){ .tokens = pick(random, 1, 400),
                                              .lead = pick(random, 0, 1) ? 0 : pick(random, 1, 90),
                                              .aligned = pick(random, 0, 2) == 0 };
    }
}

void scenario_draw(uint64_t seed, struct store_config *ret_config) {
    struct store_config c = { BASE };
    uint64_t random = seed;
    c.backend = (enum geom_backend)pick(&random, GEOM_OFF, GEOM_DFLASH);
    c.max_concurrency = pick(&random, 1, 6);
    c.max_context = pick(&random, 1, 10) * 64 - (pick(&random, 0, 2) ? 0 : pick(&random, 0, 63));
    c.pool_pages[0] = pick(&random, model_pages(c.max_context), 26);
    if (c.backend == GEOM_MTP || (c.backend == GEOM_DFLASH && pick(&random, 0, 3)))
        c.pool_pages[1] = pick(&random, model_pages(c.max_context), 26);
    if (c.backend != GEOM_OFF) c.draft_window = pick(&random, 1, 15);
    c.widest_verify = pick(&random, 1, 70);
    c.lease_growth = pick(&random, 0, 1);
    c.lease_window = pick(&random, 1, 256);
    c.prefill_chunk = pick(&random, 1, 200);
    c.map_ahead = pick(&random, 0, 1) ? 0 : pick(&random, 1, 6);
    c.max_continuations = pick(&random, 1, 16);
    c.spare_pages = pick(&random, 0, 3);
    c.max_rolling = pick(&random, 0, 4);
    c.has_state = pick(&random, 0, 2) == 0;
    if (c.has_state) c.state_slots = c.max_concurrency + pick(&random, 0, 8);
    if (pick(&random, 0, 2) == 0) draw_windows(&random, &c);
    *ret_config = c;
}

const uint32_t n_scenarios = sizeof scenarios / sizeof *scenarios;
