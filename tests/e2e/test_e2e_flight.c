/* SPDX-License-Identifier: Apache-2.0
 * Activations of several stages over separate processes: victims are demoted first, then come tails, restores, rows and
 * state slots. ACT-1, ACT-4, ACT-8, CONT-1, PAGE-7. */
#include <stdlib.h>

#include "scene.h"

static struct e2e_daemon daemon_;
static kvd_client *scheduler;
static struct puppet worker;
static kvd_session_id worker_session;

/* A pool of 32 pages that four continuations of 490 tokens fill. */
static bool open_stage(const char *more) {
    struct e2e_setup setup = { .max_context = 1024, .max_concurrency = 2, .capacity_tokens = 2048, .more = more };
    if (!e2e_daemon_start(&daemon_, &setup)) return false;
    scheduler = e2e_connect(&daemon_, KVD_ROLE_ADMIN, "scheduler");
    if (!scheduler || !puppet_start(&worker)) return false;
    worker_session = puppet_connect(&worker, &daemon_, KVD_ROLE_WORKER, 0);
    return puppet_attach(&worker, 0);
}

static void close_stage(void) {
    puppet_kill(&worker);
    kvd_disconnect(scheduler);
    scheduler = NULL;
    e2e_daemon_free(&daemon_);
}

#define TOKENS 490u

static enum kvd_status state_do(enum puppet_op op, uint32_t slot, uint32_t to, uint64_t seed) {
    struct puppet_call call = { .op = op, .row = slot, .from = slot, .to = to, .seed = seed, .n = TOKENS };
    struct puppet_answer answer;
    return KVT_TRUE(puppet_do(&worker, &call, &answer)) ? answer.status : KVD_UNKNOWN;
}

static uint32_t state_commit(kvd_sequence sequence) {
    struct puppet_call call = { .op = PUPPET_ROUND, .n = 1 };
    struct puppet_answer answer;
    call.items[0] = scene_item(sequence);
    call.items[0].state_frontier = TOKENS;
    return KVT_TRUE(puppet_do(&worker, &call, &answer)) ? answer.results[0].status : (uint32_t)KVD_UNKNOWN;
}

static kvd_continuation retained(uint64_t seed, bool state) {
    struct kvd_activated a = scene_run(scheduler, &worker, worker_session, seed, TOKENS, 16);
    if (state) {
        KVT_EQ(state_do(PUPPET_STATE_WRITE, a.state_slot, 0, seed), KVD_OK);
        KVT_EQ(state_commit(a.sequence), KVD_OK);
    }
    return scene_retain(scheduler, a.sequence, seed, TOKENS);
}

/* Four fill the pool; the first is forked in the place of the second, or in that of the others. */
static struct kvd_activation fork_in_place(bool state, uint64_t text[4], kvd_continuation c[4]) {
    for (uint32_t i = 0; i < 4; i++) c[i] = retained(text[i] = e2e_stream(10 + i, 5000, 0), state);
    KVT_EQ(scene_stats(scheduler).pool[0].available, 0);
    struct kvd_activation want = scene_want(worker_session, TOKENS + 1, 16);
    want.from = c[0];
    want.frontier = TOKENS;
    want.keep = true;
    static struct kvd_victim victim;
    victim = (struct kvd_victim){ c[1], true, 0 };
    want.n_victims = 1;
    want.victims = &victim;
    return want;
}

/* The tail is copied from page to page on the device, to where the victim was: not before that has been copied out. */
static void act_4_tail_behind_a_demotion(void) {
    if (!open_stage("[host]\narena = 16MiB\nscrub = 0\n")) return;
    uint64_t text[4];
    kvd_continuation c[4];
    struct kvd_activation want = fork_in_place(false, text, c);
    struct kvd_activated a = scene_activate(scheduler, &want);
    KVT_EQ(a.restored[0], 0);
    scene_check(&worker, a.pool[0].row, text[0], 0, TOKENS);
    scene_audit(scheduler);
    KVT_EQ(kvd_release(scheduler, c[2], NULL), KVD_OK); /* room to bring the victim back: it has its own bytes */
    want = scene_want(worker_session, TOKENS + 1, 16);
    want.from = c[1];
    want.frontier = TOKENS;
    struct kvd_activated b = scene_activate(scheduler, &want);
    scene_check(&worker, b.pool[0].row, text[1], 0, TOKENS);
    scene_check(&worker, a.pool[0].row, text[0], 0, TOKENS);
    scene_audit(scheduler);
    close_stage();
}

/* The state slots are known when the victims have given way. */
static void cont_1_state_behind_a_demotion(void) {
    if (!open_stage("[host]\narena = 16MiB\nscrub = 0\n[capacity]\nstate_bytes = 70000\n")) return;
    uint64_t text[4];
    kvd_continuation c[4];
    struct kvd_activation want = fork_in_place(true, text, c);
    struct kvd_activated a = scene_activate(scheduler, &want);
    KVT_TRUE(a.state_slot != KVD_NONE && a.source_state_slot != KVD_UNCHANGED && a.state_slot != a.source_state_slot);
    KVT_EQ(state_do(PUPPET_STATE_CHECK, a.source_state_slot, 0, text[0]), KVD_OK);
    KVT_EQ(state_do(PUPPET_STATE_COPY, a.source_state_slot, a.state_slot, 0), KVD_OK);
    KVT_EQ(state_do(PUPPET_STATE_CHECK, a.state_slot, 0, text[0]), KVD_OK);
    scene_check(&worker, a.pool[0].row, text[0], 0, TOKENS);
    scene_audit(scheduler);
    close_stage();
}

/* ---- prefixes of what runs (LIVE-1) ---- */

struct engine {
    struct puppet worker;
    kvd_session_id session;
    struct kvd_activated is;
    uint32_t from; /* the first token that it computes itself */
};

static bool engine_open(struct engine *e) {
    if (!puppet_start(&e->worker)) return false;
    e->session = puppet_connect(&e->worker, &daemon_, KVD_ROLE_WORKER, 0);
    return puppet_attach(&e->worker, 0);
}

/* The prompt's best hit, forked as a scheduler does; then the shared columns are read by this engine. */
static void engine_start(struct engine *e, uint64_t text, uint32_t prompt) {
    struct kvd_hit hit = scene_find(scheduler, text, prompt);
    struct kvd_activation want = scene_want(e->session, prompt, 16);
    want.from = hit.continuation;
    want.frontier = hit.usable;
    want.keep = true;
    e->is = scene_activate(scheduler, &want);
    e->from = hit.usable;
    if (hit.usable) KVT_TRUE(hit.live);
    scene_check(&e->worker, e->is.pool[0].row, text, 0, hit.usable);
}

static void engine_compute(struct engine *e, uint64_t text, uint32_t from, uint32_t to) {
    scene_write(&e->worker, e->is.pool[0].row, text, from, to);
    KVT_EQ(scene_round(&e->worker, e->is.sequence, to, KVD_UNCHANGED).status, KVD_OK);
    scene_name(scheduler, e->is.sequence, text, to);
}

static bool one_live(void *unused) {
    struct kvd_continuation_info infos[KVD_MAX_LIST];
    uint32_t cursor = 0, n = 0, live = 0;
    (void)unused;
    KVT_EQ(kvd_list_continuations(scheduler, NULL, &cursor, infos, KVD_MAX_LIST, &n, NULL), KVD_OK);
    for (uint32_t i = 0; i < n; i++) live += infos[i].live;
    return live == 1;
}

/* LIVE-1: three equal cold prompts in three processes share one prefill as far as it has come; the first dies, and what
 * the others took stays. */
static void live_1_three_cold_prompts_share_one_prefill(void) {
    struct e2e_setup setup = { .max_context = 1024, .max_concurrency = 4, .capacity_tokens = 4096 };
    struct engine e[3];
    const uint32_t prompt = 700;
    uint64_t text = e2e_stream(70, 5000, 0);
    if (!e2e_daemon_start(&daemon_, &setup)) return;
    scheduler = e2e_connect(&daemon_, KVD_ROLE_ADMIN, "scheduler");
    for (int i = 0; i < 3; i++) KVT_NEED(engine_open(&e[i]));
    engine_start(&e[0], text, prompt);
    KVT_EQ(e[0].from, 0);
    engine_compute(&e[0], text, 0, 330);
    engine_start(&e[1], text, prompt);
    KVT_EQ(e[1].from, 320);
    engine_compute(&e[0], text, 330, 600);
    engine_start(&e[2], text, prompt);
    KVT_EQ(e[2].from, 576);
    engine_compute(&e[1], text, 320, prompt);
    kvd_continuation first = scene_find(scheduler, text, 400).continuation;
    KVT_EQ(kvd_release(scheduler, first, NULL), KVD_ABORTED); /* it runs */
    puppet_kill(&e[0].worker);
    KVT_EQ(scene_retain(scheduler, e[1].is.sequence, text, prompt).bits != 0, true);
    KVT_TRUE(e2e_until(one_live, NULL, 60, NULL));
    engine_compute(&e[2], text, 576, prompt);
    for (int i = 1; i < 3; i++) scene_check(&e[i].worker, e[i].is.pool[0].row, text, 0, i == 1 ? 0 : prompt);
    KVT_EQ(scene_find(scheduler, text, prompt + 1).usable, prompt);
    scene_audit(scheduler);
    for (int i = 1; i < 3; i++) puppet_kill(&e[i].worker);
    kvd_disconnect(scheduler);
    scheduler = NULL;
    e2e_daemon_free(&daemon_);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(act_4_tail_behind_a_demotion),
                                             KVT_CASE(cont_1_state_behind_a_demotion),
                                             KVT_CASE(live_1_three_cold_prompts_share_one_prefill),
                                             { 0 } };
    return kvt_main("e2e flight", cases, argc, argv);
}
