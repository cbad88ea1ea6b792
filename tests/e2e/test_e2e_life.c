/* SPDX-License-Identifier: Apache-2.0
 * Lives that go as they should, over separate processes: hits, forks, moves, checkpoints, groups, restarts of
 * everything but the daemon. */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "scene.h"

static struct e2e_daemon daemon_;
static kvd_client *scheduler;
static struct puppet worker;
static kvd_session_id worker_session;

static bool open_stage(const struct e2e_setup *setup) {
    if (!e2e_daemon_start(&daemon_, setup)) return false;
    scheduler = e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "scheduler");
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

/* ACT-4, CONT-2, CONT-4, GRAN-2, GRAN-3: F = 1000 shares 15 pages and copies 40 columns; the source stays
 * bit-identical; a fork in the middle of a page works. */
static void act_4_fork_over_processes(void) {
    if (!open_stage(NULL)) return;
    uint64_t base = e2e_stream(1, 5000, 0), branch = e2e_stream(1, 1000, 7);
    struct kvd_activated a = scene_run(scheduler, &worker, worker_session, base, 1000, 100);
    kvd_continuation source = scene_retain(scheduler, a.sequence, base, 1000);

    struct kvd_hit hit = scene_find(scheduler, branch, 1200);
    KVT_EQ(hit.continuation.bits, source.bits);
    KVT_EQ(hit.usable, 1000);
    struct kvd_activation want = scene_want(worker_session, 1200, 50);
    want.from = source, want.keep = true, want.frontier = 1000;
    struct kvd_plan plan;
    KVT_EQ(kvd_plan_activation(scheduler, &want, &plan, NULL), KVD_OK);
    KVT_EQ(plan.shared_pages[0], 15);
    KVT_EQ(plan.copied_columns[0], 40);
    struct kvd_activated b = scene_activate(scheduler, &want);
    scene_check(&worker, b.pool[0].row, base, 0, 1000); /* the row is in device memory when the reply is here (ROW-4) */
    scene_write(&worker, b.pool[0].row, branch, 1000, 1200);
    KVT_EQ(scene_round(&worker, b.sequence, 1200, KVD_UNCHANGED).status, KVD_OK);
    scene_check(&worker, b.pool[0].row, branch, 0, 1200);

    want = scene_want(worker_session, 1001, 50); /* a second fork sees the source as it was */
    want.from = source, want.keep = true, want.frontier = 1000;
    struct kvd_activated c = scene_activate(scheduler, &want);
    scene_check(&worker, c.pool[0].row, base, 0, 1000);
    want = scene_want(worker_session, 900, 50);
    want.from = source, want.keep = true, want.frontier = 777;
    struct kvd_activated d = scene_activate(scheduler, &want);
    KVT_EQ(d.pool[0].committed, 777);
    scene_check(&worker, d.pool[0].row, base, 0, 777);
    scene_audit(scheduler);
    close_stage();
}

/* ACT-3, FIN-1, CKPT-1: a conversation: turn, retain, move, turn; a checkpoint of the running sequence serves another
 * at once. */
static void act_3_move_and_ckpt_1(void) {
    if (!open_stage(NULL)) return;
    uint64_t talk = e2e_stream(2, 9000, 0);
    struct kvd_activated a = scene_run(scheduler, &worker, worker_session, talk, 300, 200);
    struct kvd_checkpoint what = { .sequence = a.sequence };
    struct kvd_checkpointed point = { .frontier = 0 };
    e2e_tail(talk, 300, &what.tail);
    KVT_EQ(kvd_checkpoint(scheduler, &what, &point, NULL), KVD_OK);
    KVT_EQ(point.frontier, 300);
    KVT_EQ(point.shared_pages[0], 4);
    KVT_EQ(scene_round(&worker, a.sequence, KVD_UNCHANGED, 400).status, KVD_OK);
    scene_write(&worker, a.pool[0].row, talk, 300, 400); /* goes on in its own tail */
    KVT_EQ(scene_round(&worker, a.sequence, 400, KVD_UNCHANGED).status, KVD_OK);
    struct kvd_activation want = scene_want(worker_session, 310, 10);
    want.from = point.continuation, want.keep = true, want.frontier = 300;
    struct kvd_activated other = scene_activate(scheduler, &want);
    scene_check(&worker, other.pool[0].row, talk, 0, 300);
    scene_check(&worker, a.pool[0].row, talk, 0, 400);

    scene_name(scheduler, a.sequence, talk, 400);
    kvd_continuation turn = scene_retain(scheduler, a.sequence, talk, 400);
    want = scene_want(worker_session, 500, 10);
    want.from = turn, want.frontier = 400;
    struct kvd_plan plan;
    KVT_EQ(kvd_plan_activation(scheduler, &want, &plan, NULL), KVD_OK);
    KVT_EQ(plan.copied_columns[0], 0);
    struct kvd_activated moved = scene_activate(scheduler, &want);
    scene_check(&worker, moved.pool[0].row, talk, 0, 400);
    struct kvd_error error;
    KVT_EQ(kvd_release(scheduler, turn, &error), KVD_NOT_FOUND); /* consumed */
    scene_audit(scheduler);
    close_stage();
}

/* CONT-3: everything but the daemon goes; the next engine hits at once, in another process, in every profile. */
static void cont_3_outlives_engines(void) {
    static const char *const profiles[] = { "bf16", "int8", "fp8", "nvfp4", "k8v4", "fp8-tensor" };
    for (unsigned i = 0; i < sizeof profiles / sizeof *profiles; i++) {
        struct e2e_setup setup = { .profile = profiles[i], .head_dim = 256 };
        uint64_t text = e2e_stream(3 + i, 9000, 0);
        if (!open_stage(&setup)) return;
        struct kvd_activated a = scene_run(scheduler, &worker, worker_session, text, 333, 10);
        scene_retain(scheduler, a.sequence, text, 333);
        puppet_kill(&worker);
        kvd_disconnect(scheduler);
        scheduler = e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "scheduler-2");
        KVT_NEED(scheduler && puppet_start(&worker));
        worker_session = puppet_connect(&worker, &daemon_, KVD_ROLE_WORKER, 0);
        puppet_attach(&worker, 0);
        struct kvd_hit hit = scene_find(scheduler, text, 400);
        KVT_EQ(hit.usable, 333);
        struct kvd_activation want = scene_want(worker_session, 400, 10);
        want.from = hit.continuation, want.frontier = hit.usable;
        struct kvd_activated b = scene_activate(scheduler, &want);
        scene_check(&worker, b.pool[0].row, text, 0, 333);
        close_stage();
    }
}

/* CONT-2: another domain never hits; the digests differ from the root on. */
static void cont_2_domains(void) {
    if (!open_stage(NULL)) return;
    uint64_t text = e2e_stream(11, 9000, 0);
    uint32_t tokens[256];
    struct kvd_activated a = scene_run(scheduler, &worker, worker_session, text, 256, 10);
    scene_retain(scheduler, a.sequence, text, 256);
    static const struct kvd_domain domains[] = { { .model = "e2e", .adapter = "lora" },
                                                 { .model = "e2e2" },
                                                 { .model = "e2e", .tenant = "x" },
                                                 { .adapter = "e2e" } };
    e2e_tokens(text, 256, tokens);
    for (unsigned i = 0; i < 4; i++) {
        kvd_chain *chain = NULL;
        struct kvd_hit hits[4];
        uint32_t n = 99;
        KVT_EQ(kvd_chain_new(&domains[i], &chain), KVD_OK);
        KVT_EQ(kvd_chain_push(chain, tokens, 256), KVD_OK);
        KVT_EQ(kvd_find(scheduler, chain, tokens, 256, hits, 4, &n, NULL), KVD_OK);
        KVT_EQ(n, 0);
        kvd_chain_free(chain);
    }
    KVT_EQ(scene_find(scheduler, text, 256).usable, 255); /* one token must be computed */
    close_stage();
}

/* CONT-2: a continuation longer than the names of one message is found to its end, and one that leaves it late, where
 * it leaves. */
static void cont_2_deeper_than_a_message(void) {
    struct e2e_setup setup = { .layers = 1,
                               .kv_heads = 1,
                               .head_dim = 64,
                               .max_context = 200000,
                               .max_concurrency = 2,
                               .capacity_tokens = 400000 };
    if (!open_stage(&setup)) return;
    uint64_t base = e2e_stream(12, 200000, 0), late = e2e_stream(12, 1100 * 64 + 7, 3);
    struct kvd_activated a = scene_run(scheduler, &worker, worker_session, base, 70020, 10);
    kvd_continuation middle = scene_retain(scheduler, a.sequence, base, 70020);
    struct kvd_hit hit = scene_find(scheduler, base, 100000);
    KVT_EQ(hit.continuation.bits, middle.bits);
    KVT_EQ(hit.usable, 70020); /* its full frontier, in the second message */
    struct kvd_activation want =
        scene_want(worker_session, 131000, 10); /* and one past the second message grows out of it */
    want.from = middle, want.frontier = 70020, want.keep = true;
    a = scene_activate(scheduler, &want);
    scene_check(&worker, a.pool[0].row, base, 69000, 70020);
    scene_write(&worker, a.pool[0].row, base, 70020, 131000);
    KVT_EQ(scene_round(&worker, a.sequence, 131000, KVD_UNCHANGED).status, KVD_OK);
    scene_name(scheduler, a.sequence, base, 131000);
    kvd_continuation deep = scene_retain(scheduler, a.sequence, base, 131000);

    hit = scene_find(scheduler, base, 131072);
    KVT_EQ(hit.continuation.bits, deep.bits);
    KVT_EQ(hit.usable, 131000);
    hit = scene_find(scheduler, late, 120000);
    KVT_EQ(hit.continuation.bits, deep.bits);
    KVT_EQ(hit.usable, 1100 * 64);
    KVT_EQ(kvd_release(scheduler, deep, NULL), KVD_OK);
    hit = scene_find(scheduler, late, 120000);
    KVT_EQ(hit.continuation.bits, middle.bits);
    KVT_EQ(hit.usable, 70020); /* all of it: the prompt turns off later */
    scene_audit(scheduler);
    close_stage();
}

/* SPACE-3, SPACE-4: lease growth: extended at round boundaries, then a bounded completion that names pool and frontier;
 * the event says so too. */
static void space_4_bounded_completion(void) {
    struct e2e_setup setup = { .capacity_tokens = 4096,
                               .max_context = 4096,
                               .max_concurrency = 4,
                               .lease_growth = true,
                               .lease_window = 256,
                               .more = "prefill_chunk = 128" };
    if (!open_stage(&setup)) return;
    uint64_t one = e2e_stream(21, 9000, 0);
    struct kvd_activation want = scene_want(worker_session, 64, 4000);
    struct kvd_activated a = scene_activate(scheduler, &want);
    KVT_TRUE(a.pool[0].entitlement < 64);
    struct kvd_activation big = scene_want(worker_session, 2048, 16); /* takes most of the rest */
    scene_activate(scheduler, &big);
    KVT_EQ(kvd_subscribe(scheduler, KVD_EVENT_MASK(KVD_EVENT_BOUNDED), NULL), KVD_OK);
    uint32_t at = 64;
    struct kvd_round_result r = { 0 };
    while (at < 4000) {
        r = scene_round(&worker, a.sequence, at, at + 32);
        if (!KVT_EQ(r.status, KVD_OK) || r.bounded) break;
        scene_write(&worker, a.pool[0].row, one, at, at + 32);
        at += 32;
    }
    KVT_TRUE(r.bounded);
    KVT_EQ(r.bounded_pool, 0);
    KVT_EQ(r.bounded_frontier, r.pool[0].entitlement * 64);
    KVT_TRUE(r.bounded_frontier >= at);
    struct kvd_event event;
    KVT_EQ(kvd_next_event(scheduler, 60000 * E2E_SLOW, &event, NULL), KVD_OK);
    KVT_EQ(event.kind, KVD_EVENT_BOUNDED);
    KVT_EQ(event.sequence.bits, a.sequence.bits);
    KVT_EQ(event.frontier, r.bounded_frontier);
    scene_audit(scheduler);
    close_stage();
}

/* POOL-2, SRV-3: a group of two ranks, two processes, planes on two host devices; one row serves both; the group's
 * lease ends with one of them. */
static void srv_3_group_of_two_ranks(void) {
    struct e2e_setup setup = { .ranks = 2 };
    struct puppet rank1;
    if (!open_stage(&setup) || !puppet_start(&rank1)) return;
    kvd_session_id second = puppet_connect(&rank1, &daemon_, KVD_ROLE_WORKER, 1);
    KVT_NEED(puppet_attach(&rank1, 1));
    struct kvd_group group = { .n = 2, .members = { worker_session, second } };
    kvd_group_id id;
    struct kvd_error error;
    KVT_EQ(kvd_open_group(scheduler, &group, &id, &error), KVD_OK);
    uint64_t text = e2e_stream(31, 9000, 0);
    struct kvd_activation want = {
        .root = e2e_root(), .group = id, .prompt_tokens = 200, .max_output_tokens = 10, .ensure = { 200 }
    };
    struct kvd_activated a = scene_activate(scheduler, &want);
    scene_write(&worker, a.pool[0].row, text, 0, 200);
    scene_write(&rank1, a.pool[0].row, text, 0, 200);
    KVT_EQ(scene_round(&rank1, a.sequence, 200, KVD_UNCHANGED).status, KVD_PERMISSION_DENIED); /* the leader drives */
    KVT_EQ(scene_round(&worker, a.sequence, 200, KVD_UNCHANGED).status, KVD_OK);
    scene_name(scheduler, a.sequence, text, 200);

    struct puppet_call watch = { .op = PUPPET_SUBSCRIBE, .mask = KVD_EVENT_MASK(KVD_EVENT_SESSION_LOST) };
    struct puppet_answer answer;
    KVT_TRUE(puppet_do(&worker, &watch, &answer));
    puppet_kill(&rank1);
    watch = (struct puppet_call){ .op = PUPPET_EVENT, .timeout_ms = 60000 * E2E_SLOW };
    KVT_TRUE(puppet_do(&worker, &watch, &answer));
    KVT_EQ(answer.event.kind, KVD_EVENT_SESSION_LOST);
    KVT_EQ(answer.event.session.bits, second.bits);
    KVT_FALSE(scene_round(&worker, a.sequence, KVD_UNCHANGED, 210).status == KVD_OK); /* the lease is over */
    KVT_EQ(scene_stats(scheduler).sequences, 1); /* but the survivor may still be running a unit: nothing is reused */
    struct puppet_call yield = { .op = PUPPET_YIELD };
    KVT_TRUE(puppet_do(&worker, &yield, &answer));
    KVT_EQ(answer.n, 1);
    KVT_EQ(scene_stats(scheduler).sequences, 0);
    KVT_EQ(scene_find(scheduler, text, 201).usable,
           192); /* named up to its last full page; the tail's tokens were never told */
    scene_audit(scheduler);
    close_stage();
}

/* SRV-8: orderly stop and violent end: the new instance has another epoch, old mappings never fault, nothing is left in
 * shared memory. */
static void srv_8_restart_is_visible(void) {
    if (!open_stage(NULL)) return;
    uint64_t text = e2e_stream(41, 9000, 0), epoch = kvd_client_epoch(scheduler);
    struct kvd_activated a = scene_run(scheduler, &worker, worker_session, text, 128, 10);
    KVT_EQ(e2e_shm_count(&daemon_), 0); /* pools have no names */
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGKILL), -SIGKILL);
    scene_check(&worker, a.pool[0].row, text, 0, 128); /* still mapped, still readable */
    if (!e2e_daemon_restart(&daemon_)) return;
    KVT_EQ(e2e_shm_count(&daemon_), 0);
    struct kvd_error error;
    struct kvd_stats stats;
    KVT_FALSE(kvd_stats(scheduler, &stats, &error) == KVD_OK);
    KVT_EQ(kvd_client_reconnect(scheduler, &error), KVD_ABORTED);
    KVT_FALSE(scene_round(&worker, a.sequence, KVD_UNCHANGED, 140).status == KVD_OK);
    scene_check(&worker, a.pool[0].row, text, 0, 128);
    kvd_client *fresh = e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "fresh");
    KVT_NEED(fresh);
    KVT_FALSE(kvd_client_epoch(fresh) == epoch);
    kvd_disconnect(fresh);
    close_stage();
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(act_4_fork_over_processes),
                                             KVT_CASE(act_3_move_and_ckpt_1),
                                             KVT_CASE(cont_3_outlives_engines),
                                             KVT_CASE(cont_2_domains),
                                             KVT_CASE(cont_2_deeper_than_a_message),
                                             KVT_CASE(space_4_bounded_completion),
                                             KVT_CASE(srv_3_group_of_two_ranks),
                                             KVT_CASE(srv_8_restart_is_visible),
                                             { 0 } };
    return kvt_main("e2e life", cases, argc, argv);
}
