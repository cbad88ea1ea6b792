/* SPDX-License-Identifier: Apache-2.0
 * Requests that cannot be served: the status, the sentence, and that nothing changed. */
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

static void refused(const struct kvd_activation *want, enum kvd_status status, const char *part) {
    struct kvd_stats before = scene_stats(scheduler), after;
    struct kvd_activated a;
    struct kvd_error error = { 0 };
    KVT_EQ(kvd_activate(scheduler, want, &a, &error), status); /* queued, it would end with the call's deadline */
    KVT_HAS(error.message, part);
    printf("    %s: %s\n", kvd_status_name(error.status), error.message);
    after = scene_stats(scheduler);
    KVT_TRUE(e2e_same_resources(&before, &after));
}

/* SRV-2: larger than the pool (for ever), larger than what is free (for now), nonsense. */
static void srv_2_activation(void) {
    struct e2e_setup setup = { .capacity_tokens = 8192, .max_context = 8192, .max_concurrency = 2 };
    if (!open_stage(&setup)) return;
    struct kvd_activation want = scene_want(worker_session, 9000, 10);
    refused(&want, KVD_OUT_OF_RANGE,
            "8192"); /* no pool is smaller than one sequence: larger than the pool is larger than the context */
    want = scene_want(worker_session, 100, 0);
    refused(&want, KVD_OUT_OF_RANGE, "output");
    want = scene_want(worker_session, 0, 1);
    refused(&want, KVD_OUT_OF_RANGE, "prompt");
    want = scene_want((kvd_session_id){ 0 }, 100, 10);
    refused(&want, KVD_INVALID_ARGUMENT, "worker");
    want = scene_want((kvd_session_id){ 0x500000003 }, 100, 10);
    refused(&want, KVD_NOT_FOUND, "session");
    want = scene_want(worker_session, 100, 10);
    want.from = (kvd_continuation){ 0x700000001 };
    want.frontier = 50;
    refused(&want, KVD_NOT_FOUND, "continuation");
    want = scene_want(worker_session, 6000, 10);
    struct kvd_activated a = scene_activate(scheduler, &want);
    refused(&want, KVD_RESOURCE_EXHAUSTED, "pages");
    want = scene_want(worker_session, 64, 10);
    scene_activate(scheduler, &want);
    refused(&want, KVD_RESOURCE_EXHAUSTED, "of 2");
    want.n_victims = 1; /* a sequence is no continuation: the handle is foreign */
    want.victims = &(struct kvd_victim){ { a.sequence.bits }, false, 0 };
    refused(&want, KVD_NOT_FOUND, "recipe");
    scene_audit(scheduler);
    close_stage();
}

/* ACT-1, POOL-3: two admissions fit only without their backend pages: one is granted whole, the other refused whole. */
static void act_1_bundle_or_nothing(void) {
    struct e2e_setup setup = {
        .backend = "mtp", .draft_window = 8, .capacity_tokens = 4096, .max_context = 4096, .max_concurrency = 3
    };
    if (!open_stage(&setup)) return;
    struct kvd_stats empty = scene_stats(scheduler);
    KVT_EQ(empty.n_pools, 2);
    KVT_EQ(empty.pool[0].capacity, 64);
    KVT_EQ(empty.pool[1].capacity, 67);
    /* 33 main + 33 draft pages each (2048 + 64 tokens; the draft leads by 7): 66 > 64 in main. The first has
     * everything, the second nothing. */
    struct kvd_activation want = scene_want(worker_session, 2048, 65);
    want.ensure[1] = 2048;
    struct kvd_activated a = scene_activate(scheduler, &want);
    KVT_EQ(a.n_pools, 2);
    KVT_TRUE(a.pool[0].entitlement == 33 && a.pool[1].entitlement >= 33);
    refused(&want, KVD_RESOURCE_EXHAUSTED, "pages");
    struct kvd_finish how = { .sequence = a.sequence };
    struct kvd_finished finished;
    KVT_EQ(kvd_finish(scheduler, &how, &finished, NULL), KVD_OK);
    struct kvd_stats after = scene_stats(scheduler);
    KVT_TRUE(e2e_same_resources(&empty, &after));
    /* The other way round: main has room for both (2 x 32 pages), the draft's lead is what does not fit three times
     * over. */
    want = scene_want(worker_session, 1984, 64); /* 2047 tokens: 32 pages, with the lead 2054: 33 */
    a = scene_activate(scheduler, &want);
    KVT_EQ(a.pool[0].entitlement, 32);
    KVT_EQ(a.pool[1].entitlement, 33);
    struct kvd_activated b = scene_activate(scheduler, &want);
    KVT_EQ(b.pool[1].entitlement, 33);
    struct kvd_activation third = scene_want(worker_session, 58, 7); /* 64 tokens: 1 main page, none left */
    refused(&third, KVD_RESOURCE_EXHAUSTED, "pages");
    scene_audit(scheduler);
    close_stage();
}

/* SRV-3, SRV-6: a worker touches only what is leased to it; an observer changes nothing; stale and foreign handles. */
static void srv_3_foreign_sequences(void) {
    struct puppet other;
    if (!open_stage(NULL) || !puppet_start(&other)) return;
    puppet_connect(&other, &daemon_, KVD_ROLE_WORKER, 0);
    puppet_attach(&other, 0);
    struct kvd_activated a = scene_run(scheduler, &worker, worker_session, e2e_stream(1, 9000, 0), 100, 100);
    struct kvd_round_result r = scene_round(&other, a.sequence, 100, 150);
    KVT_EQ(r.status, KVD_PERMISSION_DENIED);
    printf("    %s\n", r.message);
    struct puppet_call call = { .op = PUPPET_FINISH, .finish = { .sequence = a.sequence } };
    struct puppet_answer answer;
    KVT_TRUE(puppet_do(&other, &call, &answer));
    KVT_EQ(answer.status, KVD_PERMISSION_DENIED);
    call = (struct puppet_call){ .op = PUPPET_ACTIVATE, .activation = scene_want(worker_session, 10, 10) };
    KVT_TRUE(puppet_do(&other, &call, &answer));
    KVT_EQ(answer.status, KVD_PERMISSION_DENIED); /* a worker does not admit */
    printf("    %s\n", answer.message);
    kvd_client *second = e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "second"),
               *observer = e2e_connect(&daemon_, KVD_ROLE_OBSERVER, "observer");
    KVT_NEED(second && observer);
    struct kvd_finish how = { .sequence = a.sequence };
    struct kvd_finished finished;
    struct kvd_error error;
    KVT_EQ(kvd_finish(second, &how, &finished, &error), KVD_PERMISSION_DENIED);
    KVT_EQ(kvd_drain(observer, true, &error), KVD_PERMISSION_DENIED);
    KVT_EQ(kvd_fence(observer, worker_session, &error), KVD_PERMISSION_DENIED);
    kvd_sequence stale = a.sequence;
    KVT_EQ(kvd_finish(scheduler, &how, &finished, &error), KVD_OK);
    KVT_EQ(scene_round(&worker, stale, KVD_UNCHANGED, 120).status, KVD_NOT_FOUND);
    struct kvd_activation want = scene_want(worker_session, 100, 100);
    struct kvd_activated b =
        scene_activate(scheduler, &want); /* the slot again: the old handle still does not reach it */
    KVT_EQ(b.sequence.bits & 0xFFFFFFFF, stale.bits & 0xFFFFFFFF);
    KVT_EQ(scene_round(&worker, stale, KVD_UNCHANGED, 120).status, KVD_NOT_FOUND);
    kvd_disconnect(second);
    kvd_disconnect(observer);
    puppet_kill(&other);
    scene_audit(scheduler);
    close_stage();
}

/* SPACE-5, SPACE-6, TRUE-1: bad items of a round are refused alone; neighbours are served. */
static void space_5_round_neighbours(void) {
    if (!open_stage(NULL)) return;
    struct kvd_activation want = scene_want(worker_session, 100, 28); /* 127 tokens: 2 pages */
    struct kvd_activated a = scene_activate(scheduler, &want), b = scene_activate(scheduler, &want);
    struct puppet_call call = { .op = PUPPET_ROUND, .n = 3 };
    struct puppet_answer answer;
    call.items[0] = scene_item(a.sequence);
    call.items[0].pool[0].commit = 100;
    call.items[0].pool[0].ensure = 1000; /* over the entitlement: the whole item is refused, the commit too */
    call.items[1] = scene_item(b.sequence);
    call.items[1].pool[0].commit = 90;
    call.items[2] = scene_item((kvd_sequence){ 0x900000000 });
    KVT_TRUE(puppet_do(&worker, &call, &answer));
    KVT_EQ(answer.status, KVD_OK);
    KVT_EQ(answer.results[0].status, KVD_OUT_OF_RANGE); /* no waiting mends it */
    KVT_HAS(answer.results[0].message, "entitle");
    KVT_EQ(answer.results[1].status, KVD_OK);
    KVT_EQ(answer.results[1].pool[0].committed, 90);
    KVT_EQ(answer.results[2].status, KVD_NOT_FOUND);
    KVT_EQ(scene_round(&worker, b.sequence, 80, KVD_UNCHANGED).status, KVD_OUT_OF_RANGE);  /* backwards */
    KVT_EQ(scene_round(&worker, b.sequence, 129, KVD_UNCHANGED).status, KVD_OUT_OF_RANGE); /* past the mapping */
    struct kvd_round_result r = scene_round(&worker, a.sequence, KVD_UNCHANGED, KVD_UNCHANGED);
    KVT_EQ(r.pool[0].committed, 0);
    scene_audit(scheduler);
    close_stage();
}

/* SRV-2: retaining what is not complete or not named is refused with what lacks; drain refuses admissions with a word
 * to come back. */
static void cont_1_incomplete_and_drain(void) {
    if (!open_stage(NULL)) return;
    struct kvd_activation want = scene_want(worker_session, 100, 28);
    struct kvd_activated a = scene_activate(scheduler, &want);
    KVT_EQ(scene_round(&worker, a.sequence, 100, KVD_UNCHANGED).status, KVD_OK);
    struct kvd_finish how = { .sequence = a.sequence, .retain = true };
    struct kvd_finished finished;
    struct kvd_error error = { 0 };
    KVT_FALSE(kvd_finish(scheduler, &how, &finished, &error) == KVD_OK);
    printf("    %s: %s\n", kvd_status_name(error.status), error.message);
    scene_name(scheduler, a.sequence, 5, 100);
    KVT_FALSE(kvd_finish(scheduler, &how, &finished, &error) == KVD_OK); /* 36 tail tokens missing */
    KVT_HAS(error.message, "36");
    kvd_client *admin = e2e_connect(&daemon_, KVD_ROLE_ADMIN, "admin");
    KVT_NEED(admin);
    KVT_EQ(kvd_drain(admin, true, &error), KVD_OK);
    refused(&want, KVD_UNAVAILABLE, "drain");
    scene_retain(scheduler, a.sequence, 5, 100); /* running sequences end in order */
    KVT_EQ(kvd_drain(admin, false, &error), KVD_OK);
    scene_activate(scheduler, &want);
    kvd_disconnect(admin);
    close_stage();
}

/* ACT-8: a recipe is executed with the activation or not at all; the policy finds one; a stale revision changes
 * nothing. */
static void act_8_recipes(void) {
    struct e2e_setup setup = { .capacity_tokens = 4096, .max_context = 4096, .max_concurrency = 4 };
    if (!open_stage(&setup)) return;
    for (unsigned i = 0; i < 3; i++) {
        struct kvd_activated a = scene_run(scheduler, &worker, worker_session, e2e_stream(50 + i, 9000, 0), 1280, 1);
        scene_retain(scheduler, a.sequence, e2e_stream(50 + i, 9000, 0), 1280);
    }
    struct kvd_activation want = scene_want(worker_session, 1600, 10); /* 26 pages; 4 are free */
    refused(&want, KVD_RESOURCE_EXHAUSTED, "pages");
    want.n_victims = 1;
    want.victims = &(struct kvd_victim){ scene_find(scheduler, e2e_stream(50, 9000, 0), 1281).continuation, false, 0 };
    refused(&want, KVD_RESOURCE_EXHAUSTED, "pages"); /* 24: the victim stays */
    KVT_EQ(scene_find(scheduler, e2e_stream(50, 9000, 0), 1281).usable, 1280);
    want.n_victims = 0;
    struct kvd_error error = { 0 };
    static struct kvd_victim room[8];
    KVT_EQ(kvd_choose_victims(scheduler, &want, room, 8, &error), KVD_OK);
    KVT_EQ(want.n_victims, 2);
    uint64_t revision = want.revision;
    want.revision = revision + 17;
    refused(&want, KVD_ABORTED, "revision");
    want.revision = revision;
    scene_activate(scheduler, &want);
    KVT_EQ(scene_find(scheduler, e2e_stream(50, 9000, 0), 1281).usable, 0);
    KVT_TRUE(room[1].frontier > 0 && room[1].frontier < 1280); /* SHORT-1: of the last one only the tail goes */
    KVT_EQ(scene_find(scheduler, e2e_stream(51, 9000, 0), 1281).usable, room[1].frontier);
    KVT_EQ(scene_find(scheduler, e2e_stream(52, 9000, 0), 1281).usable, 1280);
    scene_audit(scheduler);
    close_stage();
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(srv_2_activation),
                                             KVT_CASE(act_1_bundle_or_nothing),
                                             KVT_CASE(srv_3_foreign_sequences),
                                             KVT_CASE(space_5_round_neighbours),
                                             KVT_CASE(cont_1_incomplete_and_drain),
                                             KVT_CASE(act_8_recipes),
                                             { 0 } };
    return kvt_main("e2e refusal", cases, argc, argv);
}
