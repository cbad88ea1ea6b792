/* SPDX-License-Identifier: Apache-2.0
 * Death and standstill of real processes: SIGKILL at any moment, SIGSTOP of clients and of the daemon, forks, 200
 * attach/kill cycles. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "scene.h"

static struct e2e_daemon daemon_;
static kvd_client *scheduler;
static const struct e2e_setup steady = { .max_context = 4096, .capacity_tokens = 16384, .map_ahead = 4 };

static bool open_stage(const struct e2e_setup *setup) {
    if (!e2e_daemon_start(&daemon_, setup)) return false;
    scheduler = e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "scheduler");
    return scheduler != NULL;
}

static void close_stage(void) {
    kvd_disconnect(scheduler);
    scheduler = NULL;
    e2e_daemon_free(&daemon_);
}

static bool start_worker(struct puppet *worker, kvd_session_id *session) {
    if (!puppet_start(worker)) return false;
    *session = puppet_connect(worker, &daemon_, KVD_ROLE_WORKER, 0);
    return puppet_attach(worker, 0);
}

static bool no_sequences(void *unused) {
    (void)unused;
    return scene_stats(scheduler).sequences == 0;
}

static bool one_sequence(void *unused) {
    (void)unused;
    return scene_stats(scheduler).sequences == 1;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* SRV-5, CONT-3: a killed worker's rights are back within 100 ms of its exit; the committed prefix is hit by the next
 * worker at once. */
static void srv_5_rights_return(void) {
    if (!open_stage(NULL)) return;
    double ms[21];
    for (unsigned i = 0; i < 21; i++) {
        struct puppet worker;
        kvd_session_id session;
        uint64_t text = e2e_stream(100 + i, 9000, 0);
        KVT_NEED(start_worker(&worker, &session));
        struct kvd_activated a = scene_run(scheduler, &worker, session, text, 320, 10);
        KVT_EQ(scene_stats(scheduler).sequences, 1);
        puppet_kill(&worker); /* reaped: the exit is a fact now */
        KVT_TRUE(e2e_until(no_sequences, NULL, 60, &ms[i]));
        struct kvd_error error;
        struct kvd_finish how = { .sequence = a.sequence };
        struct kvd_finished finished;
        KVT_EQ(kvd_finish(scheduler, &how, &finished, &error), KVD_NOT_FOUND);
        KVT_NEED(start_worker(&worker, &session));
        struct kvd_hit hit = scene_find(scheduler, text, 400);
        KVT_EQ(hit.usable, 320);
        struct kvd_activation want = scene_want(session, 400, 10);
        want.from = hit.continuation, want.frontier = hit.usable;
        struct kvd_activated b = scene_activate(scheduler, &want);
        scene_check(&worker, b.pool[0].row, text, 0, 320);
        puppet_kill(&worker);
        KVT_TRUE(e2e_until(no_sequences, NULL, 60, NULL));
    }
    qsort(ms, 21, sizeof ms[0], by_value);
    printf("  rights back after exit: median %.2f ms, worst %.2f ms\n", ms[10], ms[20]);
    KVT_TRUE(ms[10] < 100 * E2E_SLOW);
    scene_audit(scheduler);
    close_stage();
}

/* SRV-5: SIGKILL at random moments inside Round and Finish and Checkpoint traffic: nothing leaks, the audit holds after
 * each. */
static void srv_5_killed_at_any_moment(void) {
    uint64_t seed = kvt_seed();
    if (!open_stage(NULL)) return;
    struct kvd_stats before = scene_stats(scheduler);
    for (unsigned i = 0; i < 60 / E2E_SLOW + 4; i++) {
        struct puppet worker;
        kvd_session_id session;
        KVT_NEED(puppet_start(&worker));
        session =
            puppet_connect(&worker, &daemon_, KVD_ROLE_SCHEDULER, 0); /* an engine in one process: leases to itself */
        struct puppet_call call = { .op = PUPPET_ACTIVATE, .activation = scene_want(session, 130, 500) };
        struct puppet_answer answer;
        unsigned steps = kvt_below(&seed, 4);
        double end = e2e_now() + kvt_below(&seed, 400) * 1e-6;
        if (steps == 0) puppet_send(&worker, &call);
        else {
            KVT_NEED(puppet_do(&worker, &call, &answer));
            KVT_EQ(answer.status, KVD_OK);
            kvd_sequence sequence = answer.activated.sequence;
            call = (struct puppet_call){ .op = PUPPET_ROUND, .n = 1 };
            call.items[0] = scene_item(sequence);
            call.items[0].pool[0].commit = 100;
            call.items[0].pool[0].ensure = 400;
            if (steps == 3) {
                KVT_NEED(puppet_do(&worker, &call, &answer));
                call = (struct puppet_call){ .op = PUPPET_FINISH, .finish = { .sequence = sequence } };
            }
            puppet_send(&worker, &call);
        }
        while (e2e_now() < end) continue; /* a moment chosen by the seed */
        puppet_kill(&worker);
        KVT_TRUE(e2e_until(no_sequences, NULL, 60, NULL));
        scene_audit(scheduler);
        uint32_t cursor = 0, n = 0;
        struct kvd_continuation_info left[KVD_MAX_LIST];
        KVT_EQ(kvd_list_continuations(scheduler, NULL, &cursor, left, KVD_MAX_LIST, &n, NULL), KVD_OK);
        for (uint32_t k = 0; k < n; k++) KVT_EQ(kvd_release(scheduler, left[k].continuation, NULL), KVD_OK);
        struct kvd_stats now = scene_stats(scheduler);
        KVT_TRUE(e2e_same_resources(&before, &now));
    }
    close_stage();
}

static bool fds_back_to(void *wanted) { return e2e_fd_count(daemon_.pid) <= *(unsigned *)wanted; }

/* 200 kill/attach cycles leave fds, bytes, rows and RSS where they were. SRV-5, POOL-6. */
static void srv_5_two_hundred_cycles(void) {
    if (!open_stage(NULL)) return;
    struct kvd_stats before = { 0 };
    unsigned fds = 0;
    uint64_t rss = 0;
    for (unsigned i = 0; i < 20 + 200 / E2E_SLOW; i++) {
        struct puppet worker;
        kvd_session_id session;
        if (i == 20) { /* warm: pools of blocks and threads exist */
            before = scene_stats(scheduler);
            fds = e2e_fd_count(daemon_.pid);
            rss = e2e_rss_bytes(daemon_.pid);
        }
        KVT_NEED(start_worker(&worker, &session));
        struct kvd_activation want = scene_want(session, 200, 10);
        scene_activate(scheduler, &want); /* nothing committed: nothing is kept */
        puppet_kill(&worker);
        KVT_TRUE(e2e_until(no_sequences, NULL, 60, NULL));
    }
    struct kvd_stats after = scene_stats(scheduler);
    KVT_TRUE(e2e_same_resources(&before, &after));
    KVT_EQ(after.sessions, before.sessions);
    KVT_EQ(e2e_shm_count(&daemon_), 0);
    KVT_TRUE(e2e_until(fds_back_to, &fds, 60, NULL));
    uint64_t now = e2e_rss_bytes(daemon_.pid);
    printf("  rss %.1f MiB, then %.1f MiB\n", (double)rss / 1048576, (double)now / 1048576);
    KVT_TRUE(E2E_SLOW > 1 || now < rss + (1 << 20));
    scene_audit(scheduler);
    close_stage();
}

/* SRV-6: a stopped client is fenced; others are served meanwhile; woken, it is refused by generation; its pages stay
 * quarantined until it is gone. */
static void srv_6_stopped_client_is_fenced(void) {
    if (!open_stage(NULL)) return;
    struct puppet worker, other;
    kvd_session_id session, second;
    uint64_t text = e2e_stream(200, 9000, 0);
    KVT_NEED(start_worker(&worker, &session) && start_worker(&other, &second));
    struct kvd_activated a = scene_run(scheduler, &worker, session, text, 256, 100);
    kill(worker.pid, SIGSTOP);
    struct kvd_activated b = scene_run(scheduler, &other, second, e2e_stream(201, 9000, 0), 100, 10); /* served */
    KVT_EQ(kvd_fence(scheduler, session, NULL), KVD_OK);
    KVT_EQ(scene_stats(scheduler).pool[0].quarantined, a.pool[0].membership);
    KVT_EQ(scene_stats(scheduler).sequences, 2);
    struct kvd_finish how = { .sequence = a.sequence };
    struct kvd_finished finished;
    KVT_FALSE(kvd_finish(scheduler, &how, &finished, NULL) ==
              KVD_OK); /* not even its scheduler: the pages may still be written */
    kill(worker.pid, SIGCONT);
    struct kvd_round_result r = scene_round(&worker, a.sequence, KVD_UNCHANGED, 300);
    KVT_EQ(r.status, KVD_ABORTED);
    KVT_HAS(r.message, "fence");
    KVT_EQ(scene_stats(scheduler).sequences, 2);
    puppet_kill(&worker);
    KVT_TRUE(e2e_until(one_sequence, NULL, 60, NULL));
    KVT_EQ(scene_find(scheduler, text, 300).usable, 256);
    KVT_EQ(scene_round(&other, b.sequence, KVD_UNCHANGED, 110).status, KVD_OK);
    puppet_kill(&other);
    scene_audit(scheduler);
    close_stage();
}

/* SRV-2, SRV-1: the daemon stands still: calls end by their deadline with a typed error; woken, it does not execute
 * what expired; a repeat gets one answer. */
static void srv_1_stopped_daemon(void) {
    if (!open_stage(NULL)) return;
    struct kvd_activation want = scene_want(kvd_client_session(scheduler), 100, 10);
    struct kvd_activated a;
    struct kvd_error error;
    KVT_EQ(kvd_activate(scheduler, &want, &a, &error), KVD_OK);
    kill(daemon_.pid, SIGSTOP);
    KVT_EQ(waitpid(daemon_.pid, NULL, WUNTRACED), daemon_.pid); /* its last thread has stopped */
    kvd_client_set_timeout(scheduler, 200);
    double begin = e2e_now();
    struct kvd_stats stats;
    KVT_EQ(kvd_stats(scheduler, &stats, &error), KVD_DEADLINE_EXCEEDED);
    KVT_EQ(kvd_activate(scheduler, &want, &a, &error), KVD_DEADLINE_EXCEEDED);
    KVT_TRUE(e2e_now() - begin < 30 * E2E_SLOW); /* the client's own timeout was a minute */
    printf("  %s\n", error.message);
    kill(daemon_.pid, SIGCONT);
    kvd_client_set_timeout(scheduler, 60000 * E2E_SLOW);
    KVT_EQ(kvd_stats(scheduler, &stats, &error), KVD_OK);
    KVT_EQ(stats.sequences, 1); /* the expired Activate was not executed */
    KVT_EQ(kvd_activate(scheduler, &want, &a, &error), KVD_OK);
    scene_audit(scheduler);
    close_stage();
}

/* SRV-6: a forked child cannot use the parent's session; the parent goes on. */
static void srv_6_forked_child(void) {
    if (!open_stage(NULL)) return;
    struct puppet worker;
    kvd_session_id session;
    KVT_NEED(start_worker(&worker, &session));
    struct kvd_activated a = scene_run(scheduler, &worker, session, e2e_stream(300, 9000, 0), 100, 100);
    struct puppet_call call = { .op = PUPPET_FORK };
    struct puppet_answer answer;
    KVT_TRUE(puppet_do(&worker, &call, &answer));
    KVT_EQ(answer.status, KVD_FAILED_PRECONDITION);
    printf("  %s\n", answer.message);
    KVT_EQ(scene_round(&worker, a.sequence, KVD_UNCHANGED, 150).status, KVD_OK);
    puppet_kill(&worker);
    close_stage();
}

/* The scheduler dies: its sequences wait for the worker's word that no unit runs, then become inactive at their
 * frontier. */
static void srv_5_scheduler_dies(void) {
    if (!open_stage(NULL)) return;
    struct puppet worker, chief;
    kvd_session_id session;
    uint64_t text = e2e_stream(400, 9000, 0);
    KVT_NEED(start_worker(&worker, &session) && puppet_start(&chief));
    puppet_connect(&chief, &daemon_, KVD_ROLE_SCHEDULER, 0);
    struct puppet_call call = { .op = PUPPET_ACTIVATE, .activation = scene_want(session, 256, 50) };
    struct puppet_answer answer;
    KVT_NEED(puppet_do(&chief, &call, &answer));
    KVT_EQ(answer.status, KVD_OK);
    struct kvd_activated a = answer.activated;
    scene_write(&worker, a.pool[0].row, text, 0, 256);
    KVT_EQ(scene_round(&worker, a.sequence, 256, KVD_UNCHANGED).status, KVD_OK);
    call = (struct puppet_call){ .op = PUPPET_NAME, .sequence = a.sequence, .seed = text, .n = 256 };
    KVT_NEED(puppet_do(&chief, &call, &answer));
    KVT_EQ(answer.status, KVD_OK);
    puppet_kill(&chief);
    call = (struct puppet_call){ .op = PUPPET_YIELD };
    double end = e2e_now() + 5 * E2E_SLOW;
    do KVT_NEED(puppet_do(&worker, &call, &answer)); /* 0 until the death is proven */
    while (answer.status == KVD_OK && answer.n == 0 && e2e_now() < end);
    KVT_EQ(answer.n, 1);
    KVT_TRUE(e2e_until(no_sequences, NULL, 60, NULL));
    KVT_EQ(scene_find(scheduler, text, 300).usable, 256);
    puppet_kill(&worker);
    close_stage();
}

/* Written, committed and named, and on the board of its worker. */
static struct puppet_call on_board(struct puppet *worker, kvd_session_id session, uint64_t text) {
    struct kvd_activated a = scene_run(scheduler, worker, session, text, 320, 2000);
    struct kvd_round_result result = scene_round(worker, a.sequence, KVD_UNCHANGED, 321);
    struct puppet_call call = { .op = PUPPET_DECODE, .seed = text };
    KVT_EQ(result.status, KVD_OK);
    call.frontier = (struct kvd_frontier){
        .sequence = a.sequence, .row = a.pool[0].row, .commit = { 320 }, .mapped = { result.pool[0].membership * 64 }
    };
    return call;
}

/* STEP-2: a worker decodes 1180 tokens without a message: beside those of this test none comes. */
static void step_2_decode_without_a_message(void) {
    struct puppet worker;
    struct puppet_answer answer;
    kvd_session_id session;
    uint64_t text = e2e_stream(900, 9000, 0);
    if (!open_stage(&steady)) return;
    KVT_NEED(start_worker(&worker, &session));
    struct puppet_call call = on_board(&worker, session, text);
    uint64_t before = scene_stats(scheduler).requests;
    call.to = 1500;
    KVT_NEED(puppet_do(&worker, &call, &answer));
    if (!KVT_EQ(answer.status, KVD_OK)) printf("    %s\n", answer.message);
    KVT_EQ(scene_stats(scheduler).requests, before + 1);
    KVT_TRUE(answer.frontier.mapped[0] >= 1500);
    KVT_EQ(scene_round(&worker, call.frontier.sequence, 1500, KVD_UNCHANGED).status, KVD_OK);
    scene_check(&worker, call.frontier.row, text, 0, 1500);
    scene_name(scheduler, call.frontier.sequence, text, 1500);
    scene_retain(scheduler, call.frontier.sequence, text, 1500);
    KVT_EQ(scene_find(scheduler, text, 1600).usable, 1500);
    scene_audit(scheduler);
    puppet_kill(&worker);
    close_stage();
}

/* STEP-4, SRV-5: SIGKILL at any moment of it. What was named is found, nothing leaks. */
static void step_4_killed_while_it_decodes(void) {
    uint64_t seed = kvt_seed();
    if (!open_stage(&steady)) return;
    for (unsigned i = 0; i < 20 / E2E_SLOW + 4; i++) {
        struct puppet worker, next;
        kvd_session_id session;
        uint64_t text = e2e_stream(1000 + i, 9000, 0);
        KVT_NEED(start_worker(&worker, &session));
        struct puppet_call call = on_board(&worker, session, text);
        call.to = 2000;
        puppet_send(&worker, &call);
        double end = e2e_now() + kvt_below(&seed, 4000) * 1e-6;
        while (e2e_now() < end) continue; /* a moment chosen by the seed */
        puppet_kill(&worker);
        KVT_TRUE(e2e_until(no_sequences, NULL, 60, NULL));
        scene_audit(scheduler);
        struct kvd_hit hit = scene_find(scheduler, text, 330);
        KVT_EQ(hit.usable, 320);
        KVT_NEED(start_worker(&next, &session));
        struct kvd_activation want = scene_want(session, 330, 10);
        want.from = hit.continuation, want.frontier = hit.usable;
        struct kvd_activated b = scene_activate(scheduler, &want);
        scene_check(&next, b.pool[0].row, text, 0, 320);
        puppet_kill(&next);
        KVT_TRUE(e2e_until(no_sequences, NULL, 60, NULL));
    }
    scene_audit(scheduler);
    close_stage();
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(srv_5_rights_return),
                                             KVT_CASE(srv_5_killed_at_any_moment),
                                             KVT_CASE(srv_5_two_hundred_cycles),
                                             KVT_CASE(srv_6_stopped_client_is_fenced),
                                             KVT_CASE(srv_1_stopped_daemon),
                                             KVT_CASE(srv_6_forked_child),
                                             KVT_CASE(srv_5_scheduler_dies),
                                             KVT_CASE(step_2_decode_without_a_message),
                                             KVT_CASE(step_4_killed_while_it_decodes),
                                             { 0 } };
    return kvt_main("e2e death", cases, argc, argv);
}
