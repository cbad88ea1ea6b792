/* SPDX-License-Identifier: Apache-2.0
 * Pools of layers with a window, and of aligned chunks, over separate processes: rows follow the commits, what is kept
 * is the window, and every byte of it comes back after forks, moves, demotion, kills of workers and of kvd. GRP-2,
 * GRP-3, GRP-4, GRP-6, LIVE-1, SPACE-3, KEEP-1. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "scene.h"

static struct e2e_daemon daemon_;
static kvd_client *scheduler, *looker;
static kvd_store *tables; /* of the test itself, to look at */
static struct puppet worker;
static kvd_session_id worker_session;
static struct kvd_store_info store;

#define POOLS 3u
#define CHUNK 128u
#define WINDOW 100u
#define ALIGNED 256u
#define MODEL                                                                                                          \
    "[devices]\ndevice.0 = host:0\n[model]\nkv_heads = 2\nhead_dim = 64\nmax_context = 4096\n"                         \
    "[pool.main]\ngroups = full\n[pool.near]\ngroups = near\nwindow = 100\nlead = 20\nshare = 200\n"                   \
    "[pool.chunks]\ngroups = chunk\nwindow = 256\naligned = yes\nshare = 300\n"                                        \
    "[group.full]\nlayers = 1\n[group.near]\nlayers = 3\n[group.chunk]\nlayers = 2\n[lease]\nprefill_chunk = 128\n"
#define ARENA "[host]\narena = 16MiB\nscrub = 0\n"

static bool connect_all(void) {
    scheduler = e2e_connect(&daemon_, KVD_ROLE_ADMIN, "scheduler");
    looker = e2e_connect(&daemon_, KVD_ROLE_WORKER, "looker");
    if (!scheduler || !looker || !KVT_EQ(kvd_attach(looker, 0, NULL, &tables, NULL), KVD_OK)) return false;
    store = *kvd_store_describe(tables);
    if (!puppet_start(&worker)) return false;
    worker_session = puppet_connect(&worker, &daemon_, KVD_ROLE_WORKER, 0);
    return puppet_attach(&worker, 0);
}

static void disconnect_all(void) {
    puppet_kill(&worker);
    kvd_detach(tables);
    kvd_disconnect(looker);
    kvd_disconnect(scheduler);
}

static bool open_stage(bool growth) {
    struct e2e_setup setup = { .model = MODEL,
                               .capacity_tokens = 16384,
                               .max_concurrency = 4,
                               .lease_growth = growth,
                               .lease_window = 256,
                               .more = ARENA };
    return KVT_TRUE(e2e_daemon_start(&daemon_, &setup) && connect_all());
}

static void close_stage(void) {
    scene_audit(scheduler);
    disconnect_all();
    e2e_daemon_free(&daemon_);
}

static bool restart(int signal) {
    disconnect_all();
    KVT_EQ_I(e2e_daemon_stop(&daemon_, signal), signal == SIGKILL ? -SIGKILL : 0);
    return KVT_TRUE(e2e_daemon_restart(&daemon_) && connect_all());
}

/* ---- what a pool has at a frontier, by the rule alone --------------------------------------------------- */

static uint32_t first_read(uint32_t pool, uint32_t frontier) {
    if (pool == 1) return frontier + 1 > WINDOW ? frontier + 1 - WINDOW : 0;
    return pool == 2 ? frontier / ALIGNED * ALIGNED : 0;
}

static uint32_t first_mapped(uint32_t pool, uint32_t frontier) {
    uint32_t lead = pool == 1 ? 20 : 0;
    return first_read(pool, frontier < lead ? 0 : frontier - lead) / 64;
}

static uint32_t pages_kept(uint32_t pool, uint32_t frontier) {
    return (frontier + 63) / 64 - first_read(pool, frontier) / 64;
}

/* ---- steps ------------------------------------------------------------------------------------------- */

struct run {
    kvd_sequence sequence;
    uint64_t seed;
    uint32_t row[POOLS], committed;
};

static struct kvd_activation want_of(uint32_t prompt, uint32_t output, uint32_t from) {
    struct kvd_activation want = scene_want(worker_session, prompt, output);
    for (uint32_t p = 0; p < POOLS; p++) want.ensure[p] = prompt < from + CHUNK ? prompt : from + CHUNK;
    return want;
}

static struct kvd_round_result round_of(struct run *run, uint32_t commit, uint32_t ensure) {
    struct puppet_call call = { .op = PUPPET_ROUND, .n = 1 };
    struct puppet_answer answer;
    call.items[0] = scene_item(run->sequence);
    for (uint32_t p = 0; p < POOLS; p++) {
        call.items[0].pool[p].commit = commit;
        call.items[0].pool[p].ensure = ensure;
    }
    KVT_TRUE(puppet_do(&worker, &call, &answer));
    KVT_EQ(answer.status, KVD_OK);
    return answer.results[0];
}

static void columns(const struct run *run, bool write, uint32_t p, uint32_t from, uint32_t to) {
    struct puppet_call call = { .op = write ? PUPPET_WRITE : PUPPET_CHECK,
                                .pool = p,
                                .row = run->row[p],
                                .seed = run->seed,
                                .from = from,
                                .to = to };
    struct puppet_answer answer;
    KVT_TRUE(puppet_do(&worker, &call, &answer));
    if (!KVT_EQ(answer.status, KVD_OK)) printf("    pool %u, tokens %u to %u: %s\n", p, from, to, answer.message);
}

/* Every byte that going on reads is what was written. */
static void check_all(const struct run *run, uint32_t frontier) {
    for (uint32_t p = 0; p < POOLS; p++) columns(run, false, p, first_read(p, frontier), frontier);
}

/* GRP-2: the row shows what the answer says: pages from `first` on, nothing before. */
static void check_row(const struct run *run, const struct kvd_pool_view *view, uint32_t p) {
    PagedKVLayerView layer = { .n_logical = 0 };
    KVT_EQ(view->first, first_mapped(p, run->committed));
    KVT_EQ(kvd_store_layer_view(tables, p, 0, run->row[p], &layer, NULL), KVD_OK);
    KVT_EQ(layer.window, store.pool[p].window);
    KVT_EQ(layer.window_aligned, store.pool[p].window_aligned);
    for (uint32_t b = 0; b < layer.n_logical; b++)
        KVT_EQ(layer.block_table[b] >= 0, b >= view->first && b < view->membership);
}

/* Writes and commits up to `to` in chunks. */
static void advance(struct run *run, uint32_t to) {
    while (run->committed < to) {
        uint32_t next = to < run->committed + CHUNK ? to : run->committed + CHUNK;
        struct kvd_round_result mapped = round_of(run, KVD_UNCHANGED, next);
        if (!KVT_EQ(mapped.status, KVD_OK)) printf("    %s\n", mapped.message);
        for (uint32_t p = 0; p < POOLS; p++) columns(run, true, p, run->committed, next);
        struct kvd_round_result result = round_of(run, next, KVD_UNCHANGED);
        if (!KVT_EQ(result.status, KVD_OK)) printf("    %s\n", result.message);
        run->committed = next;
        for (uint32_t p = 0; p < POOLS; p++) check_row(run, &result.pool[p], p);
    }
}

static struct run start(uint64_t seed, const struct kvd_activation *want) {
    struct kvd_activated a = scene_activate(scheduler, want);
    struct run run = { .sequence = a.sequence, .seed = seed, .committed = want->frontier };
    for (uint32_t p = 0; p < POOLS; p++) run.row[p] = a.pool[p].row;
    return run;
}

/* A prompt from nothing, named. */
static struct run run_prompt(uint64_t seed, uint32_t n, uint32_t output) {
    struct kvd_activation want = want_of(n, output, 0);
    struct run run = start(seed, &want);
    advance(&run, n);
    scene_name(scheduler, run.sequence, seed, n);
    return run;
}

static struct run go_on(uint64_t seed, uint32_t frontier, uint32_t prompt, bool keep) {
    struct kvd_hit hit = scene_find(scheduler, seed, prompt);
    struct kvd_activation want = want_of(prompt, 256, frontier);
    KVT_EQ(hit.usable, frontier);
    want.from = hit.continuation;
    want.frontier = frontier;
    want.keep = keep;
    struct run run = start(seed, &want);
    check_all(&run, frontier);
    return run;
}

static void release_run(const struct run *run) {
    struct kvd_finish how = { .sequence = run->sequence };
    struct kvd_finished finished;
    KVT_EQ(kvd_finish(scheduler, &how, &finished, NULL), KVD_OK);
}

/* ---- cases ------------------------------------------------------------------------------------------- */

static void grp_2_rows_follow_the_commits(void) {
    if (!open_stage(false)) return;
    KVT_EQ(store.n_pools, POOLS);
    KVT_EQ_STR(store.pool[1].name, "near");
    KVT_EQ(store.pool[1].window, WINDOW);
    KVT_EQ(store.pool[1].window_lead, 20);
    KVT_TRUE(store.pool[2].window_aligned);
    struct run run = run_prompt(e2e_stream(1, 9000, 0), 1000, 3000);
    check_all(&run, 1000);
    advance(&run, 3500); /* GRP-3: far more tokens than the pool of windows has pages */
    KVT_TRUE(store.pool[1].pages * 64 < 3500);
    check_all(&run, 3500);
    struct kvd_round_result result = round_of(&run, KVD_UNCHANGED, 3500 + 4 * CHUNK);
    KVT_EQ(result.status, KVD_OUT_OF_RANGE); /* a step is a chunk */
    KVT_HAS(result.message, "pool 1");
    struct puppet_call call = { .op = PUPPET_ROUND, .n = 1 };
    struct puppet_answer answer;
    call.items[0] = scene_item(run.sequence);
    for (uint32_t p = 0; p < POOLS; p++) call.items[0].pool[p].truncate = 3300; /* behind the window and its lead */
    KVT_TRUE(puppet_do(&worker, &call, &answer));
    KVT_EQ(answer.results[0].status, KVD_OUT_OF_RANGE);
    release_run(&run);
    for (uint32_t p = 0; p < POOLS; p++) KVT_EQ(scene_stats(scheduler).pool[p].available, store.pool[p].pages);
    close_stage();
}

static void grp_4_forked_and_moved(void) {
    if (!open_stage(false)) return;
    uint64_t base = e2e_stream(2, 9000, 0), branch = e2e_stream(2, 700, 1);
    struct run run = run_prompt(base, 700, 256);
    KVT_EQ(scene_find(scheduler, base, 701).usable, 0); /* LIVE-1: nothing is live where there are windows */
    kvd_continuation c = scene_retain(scheduler, run.sequence, base, 700);
    KVT_EQ(scene_find(scheduler, base, 600).usable, 0); /* GRP-4: from there its windows do not suffice */
    struct kvd_activation low = want_of(601, 16, 600);
    struct kvd_error error = { 0 };
    struct kvd_activated none;
    low.from = c;
    low.keep = true;
    low.frontier = 600;
    KVT_EQ(kvd_activate(scheduler, &low, &none, &error), KVD_OUT_OF_RANGE);
    KVT_HAS(error.message, "700");
    struct run fork = go_on(branch, 700, 900, true), other = go_on(base, 700, 1100, true);
    advance(&fork, 900);
    advance(&other, 1100);
    check_all(&fork, 900);
    check_all(&other, 1100);
    scene_name(scheduler, fork.sequence, branch, 900);
    (void)scene_retain(scheduler, fork.sequence, branch, 900);
    release_run(&other);
    struct run moved = go_on(base, 700, 800, false); /* ACT-3 */
    advance(&moved, 800);
    check_all(&moved, 800);
    release_run(&moved);
    fork = go_on(branch, 900, 901, true);
    release_run(&fork);
    close_stage();
}

static void grp_6_windows_alone_are_moved(void) {
    if (!open_stage(false)) return;
    uint64_t seed = e2e_stream(3, 9000, 0);
    struct kvd_moved moved;
    struct run run = run_prompt(seed, 1000, 64);
    kvd_continuation c = scene_retain(scheduler, run.sequence, seed, 1000);
    KVT_EQ(kvd_demote(scheduler, c, false, &moved, NULL), KVD_OK);
    for (uint32_t p = 0; p < POOLS; p++) KVT_EQ(moved.pages[p], pages_kept(p, 1000));
    struct kvd_stats stats = scene_stats(scheduler);
    for (uint32_t p = 0; p < POOLS; p++) KVT_EQ(stats.host_pages[p], pages_kept(p, 1000));
    for (uint32_t p = 0; p < POOLS; p++) KVT_EQ(stats.pool[p].allocated, 0);
    run = go_on(seed, 1000, 1001, true);
    release_run(&run);
    for (int i = 0; i < 2; i++) { /* KEEP-1 */
        if (!restart(i ? SIGTERM : SIGKILL)) return;
        run = go_on(seed, 1000, 1200, true);
        advance(&run, 1200);
        check_all(&run, 1200);
        release_run(&run);
    }
    KVT_EQ(scene_stats(scheduler).continuations, 1);
    close_stage();
}

/* GRP-4: a checkpoint where a prefix ends, inside a page, is found also when its sequence has gone on and is kept. */
static void grp_4_a_shared_prefix_is_branched_from(void) {
    if (!open_stage(false)) return;
    uint64_t base = e2e_stream(6, 9000, 0), branch = e2e_stream(6, 500, 1);
    struct kvd_checkpointed done;
    struct run run = run_prompt(base, 300, 600);
    struct kvd_checkpoint what = { .sequence = run.sequence };
    e2e_tail(base, 300, &what.tail);
    KVT_EQ(kvd_checkpoint(scheduler, &what, &done, NULL), KVD_OK);
    advance(&run, 800);
    scene_name(scheduler, run.sequence, base, 800);
    (void)scene_retain(scheduler, run.sequence, base, 800);
    run = go_on(branch, 300, 600, true);
    advance(&run, 600);
    check_all(&run, 600);
    release_run(&run);
    close_stage();
}

static bool is_over(void *sequences) {
    (void)sequences;
    return scene_stats(scheduler).sequences == 0;
}

/* A worker dies: what it committed is kept where its windows reach, and goes on with another. */
static void grp_4_a_worker_dies(void) {
    if (!open_stage(false)) return;
    uint64_t seed = e2e_stream(4, 9000, 0);
    (void)run_prompt(seed, 960, 64);
    puppet_kill(&worker);
    KVT_TRUE(e2e_until(is_over, NULL, 60, NULL));
    KVT_NEED(puppet_start(&worker));
    worker_session = puppet_connect(&worker, &daemon_, KVD_ROLE_WORKER, 0);
    KVT_NEED(puppet_attach(&worker, 0));
    struct run run = go_on(seed, 960, 1000, true);
    advance(&run, 1000);
    check_all(&run, 1000);
    release_run(&run);
    close_stage();
}

/* SPACE-3: a growing lease grows in the pools that have one; a window needs none. */
static void space_3_leases_grow_beside_windows(void) {
    if (!open_stage(true)) return;
    KVT_TRUE(store.lease_growth);
    uint64_t seed = e2e_stream(5, 9000, 0);
    struct run run = run_prompt(seed, 300, 3000);
    advance(&run, 2500);
    check_all(&run, 2500);
    scene_name(scheduler, run.sequence, seed, 2500);
    (void)scene_retain(scheduler, run.sequence, seed, 2500);
    run = go_on(seed, 2500, 2501, false);
    release_run(&run);
    close_stage();
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(grp_2_rows_follow_the_commits),
                                             KVT_CASE(grp_4_forked_and_moved),
                                             KVT_CASE(grp_4_a_shared_prefix_is_branched_from),
                                             KVT_CASE(grp_6_windows_alone_are_moved),
                                             KVT_CASE(grp_4_a_worker_dies),
                                             KVT_CASE(space_3_leases_grow_beside_windows),
                                             { 0 } };
    return kvt_main("e2e window", cases, argc, argv);
}
