/* SPDX-License-Identifier: Apache-2.0
 * The host tier over separate processes: continuations go to the arena and come back with the same bytes, over
 * restarts and SIGKILL of the daemon, and damage is said, never served. CONT-3, HOST-2, HOST-7, PAGE-3, PAGE-7,
 * ACT-7, ACT-8, SRV-1. */
#include <cjson/cJSON.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "scene.h"

static struct e2e_daemon daemon_;
static kvd_client *scheduler;
static struct puppet worker;
static kvd_session_id worker_session;

#define ARENA "[host]\narena = 16MiB\nscrub = 0\n"
#define PAGE 65536u /* bytes of a packed page of the default geometry */

static bool connect_all(void) {
    scheduler = e2e_connect(&daemon_, KVD_ROLE_ADMIN, "scheduler");
    if (!scheduler || !puppet_start(&worker)) return false;
    worker_session = puppet_connect(&worker, &daemon_, KVD_ROLE_WORKER, 0);
    return puppet_attach(&worker, 0);
}

static void disconnect_all(void) {
    puppet_kill(&worker);
    kvd_disconnect(scheduler);
    scheduler = NULL;
}

static bool open_stage(const struct e2e_setup *setup) { return e2e_daemon_start(&daemon_, setup) && connect_all(); }

static void close_stage(void) {
    disconnect_all();
    e2e_daemon_free(&daemon_);
}

/* The daemon ends and another one begins on the same arena. */
static bool restart(int signal) {
    disconnect_all();
    KVT_EQ_I(e2e_daemon_stop(&daemon_, signal), signal == SIGKILL ? -SIGKILL : 0);
    return e2e_daemon_restart(&daemon_) && connect_all();
}

/* ---- steps ------------------------------------------------------------------------------------- */

static kvd_continuation retained(uint64_t seed, uint32_t n) {
    struct kvd_activated a = scene_run(scheduler, &worker, worker_session, seed, n, 16);
    return scene_retain(scheduler, a.sequence, seed, n);
}

static struct kvd_moved demote(kvd_continuation c, bool keep_device) {
    struct kvd_moved moved = { 0 };
    struct kvd_error error = { 0 };
    if (!KVT_EQ(kvd_demote(scheduler, c, keep_device, &moved, &error), KVD_OK)) printf("    %s\n", error.message);
    return moved;
}

static struct kvd_continuation_info info_of(kvd_continuation c) {
    struct kvd_continuation_info infos[KVD_MAX_LIST], none = { 0 };
    uint32_t cursor = 0, n = 0;
    while (cursor != KVD_UNCHANGED &&
           kvd_list_continuations(scheduler, NULL, &cursor, infos, KVD_MAX_LIST, &n, NULL) == KVD_OK)
        for (uint32_t i = 0; i < n; i++)
            if (infos[i].continuation.bits == c.bits) return infos[i];
    return none;
}

static struct kvd_activation fork_of(kvd_continuation from, uint32_t frontier, uint32_t prompt) {
    struct kvd_activation want = scene_want(worker_session, prompt, 16);
    want.from = from;
    want.frontier = frontier;
    want.keep = true;
    return want;
}

static void release_sequence(kvd_sequence sequence) {
    struct kvd_finish how = { .sequence = sequence };
    struct kvd_finished finished;
    KVT_EQ(kvd_finish(scheduler, &how, &finished, NULL), KVD_OK);
}

/* It is found by its tokens, activated, and every byte is as it was written. Returns the pages that came from the
 * host. */
static uint32_t reproduce(uint64_t seed, uint32_t n) {
    struct kvd_hit hit = scene_find(scheduler, seed, n + 1);
    if (!KVT_EQ(hit.usable, n)) return 0;
    struct kvd_activation want = fork_of(hit.continuation, n, n + 1);
    struct kvd_activated a = scene_activate(scheduler, &want);
    KVT_EQ(a.restored[0], hit.restore_pages);
    scene_check(&worker, a.pool[0].row, seed, 0, n);
    release_sequence(a.sequence);
    return a.restored[0];
}

/* ---- there and back ------------------------------------------------------------------------------ */

static void page_7_demoted_and_brought_back(void) {
    if (!open_stage(&(struct e2e_setup){ .more = ARENA })) return;
    uint64_t text = e2e_stream(1, 5000, 0);
    kvd_continuation c = retained(text, 700);
    struct kvd_moved moved = demote(c, false);
    KVT_EQ(moved.pages[0], 11);
    KVT_EQ(moved.bytes, 11 * PAGE);
    struct kvd_continuation_info info = info_of(c);
    KVT_TRUE(info.demoted);
    KVT_EQ(info.device_pages[0], 0);
    KVT_EQ(info.host_pages[0], 11);
    struct kvd_stats stats = scene_stats(scheduler);
    KVT_EQ(stats.pool[0].allocated, 0);
    KVT_EQ(stats.host_pages[0], 11);
    KVT_EQ(stats.host_occupied, 11 * PAGE);
    KVT_EQ(stats.demoted_pages, 11);
    KVT_EQ(stats.demoted_continuations, 1);
    KVT_EQ(demote(c, false).pages[0], 0); /* again: there is nothing to do */
    KVT_EQ(reproduce(text, 700), 11);
    stats = scene_stats(scheduler);
    KVT_EQ(stats.restored_pages, 11);
    KVT_EQ(stats.restored_bytes, 11 * PAGE);
    KVT_TRUE(stats.restored_ns > 0);
    KVT_EQ(stats.pool[0].allocated, 0); /* it still rests: what the fork had brought has gone with it */
    KVT_EQ(stats.moves, 0);
    KVT_EQ(stats.move_pages_left, 0);
    scene_audit(scheduler);
    close_stage();
}

static void page_7_both_tiers_and_back(void) {
    if (!open_stage(&(struct e2e_setup){ .more = ARENA })) return;
    uint64_t text = e2e_stream(2, 5000, 0);
    struct kvd_moved moved;
    kvd_continuation c = retained(text, 640);
    KVT_EQ(demote(c, true).pages[0], 10);
    struct kvd_continuation_info info = info_of(c);
    KVT_FALSE(info.demoted);
    KVT_EQ(info.device_pages[0], 10);
    KVT_EQ(info.host_pages[0], 10);
    KVT_EQ(reproduce(text, 640), 0);
    KVT_EQ(kvd_drop_replica(scheduler, c, KVD_TIER_DEVICE, &moved, NULL), KVD_OK);
    KVT_EQ(moved.pages[0], 10);
    KVT_EQ(scene_stats(scheduler).pool[0].allocated, 0);
    KVT_EQ(kvd_drop_replica(scheduler, c, KVD_TIER_HOST, &moved, NULL), KVD_FAILED_PRECONDITION); /* the only ones */
    KVT_EQ(kvd_prefetch(scheduler, c, &moved, NULL), KVD_OK);
    KVT_EQ(moved.pages[0], 10);
    KVT_EQ(reproduce(text, 640), 0);
    KVT_EQ(kvd_drop_replica(scheduler, c, KVD_TIER_HOST, &moved, NULL), KVD_OK);
    KVT_EQ(scene_stats(scheduler).host_occupied, 0);
    KVT_EQ(kvd_drop_replica(scheduler, c, KVD_TIER_DEVICE, &moved, NULL), KVD_FAILED_PRECONDITION);
    KVT_EQ(reproduce(text, 640), 0);
    scene_audit(scheduler);
    close_stage();
}

/* Two continuations share their first eight pages, which stay while one of them does not rest. */
static void page_7_shared_prefix_in_both_tiers(void) {
    if (!open_stage(&(struct e2e_setup){ .more = ARENA })) return;
    uint64_t a = e2e_stream(3, 512, 1), b = e2e_stream(3, 512, 2);
    kvd_continuation ca = retained(a, 700);
    struct kvd_activation want = fork_of(ca, 512, 800);
    struct kvd_activated fork = scene_activate(scheduler, &want);
    scene_write(&worker, fork.pool[0].row, b, 512, 800);
    KVT_EQ(scene_round(&worker, fork.sequence, 800, KVD_UNCHANGED).status, KVD_OK);
    scene_name(scheduler, fork.sequence, b, 800);
    kvd_continuation cb = scene_retain(scheduler, fork.sequence, b, 800);
    KVT_EQ(demote(ca, false).pages[0], 11);
    KVT_EQ(info_of(ca).device_pages[0], 8);
    KVT_EQ(scene_stats(scheduler).pool[0].allocated, 13);
    KVT_EQ(demote(cb, false).pages[0], 5); /* the first eight are there already */
    KVT_EQ(scene_stats(scheduler).pool[0].allocated, 0);
    KVT_EQ(scene_stats(scheduler).host_pages[0], 16);
    KVT_EQ(reproduce(a, 700), 11);
    struct kvd_moved moved;
    KVT_EQ(kvd_prefetch(scheduler, ca, &moved, NULL), KVD_OK);
    KVT_EQ(reproduce(b, 800), 5);
    KVT_EQ(reproduce(a, 700), 0);
    scene_audit(scheduler);
    close_stage();
}

/* ACT-8: a recipe that demotes; the pool is full of others' pages. */
static void act_8_victims_are_demoted(void) {
    struct e2e_setup setup = { .max_context = 1024, .max_concurrency = 2, .capacity_tokens = 2048, .more = ARENA };
    if (!open_stage(&setup)) return;
    uint64_t text[4];
    kvd_continuation c[4];
    for (uint32_t i = 0; i < 4; i++) c[i] = retained(text[i] = e2e_stream(10 + i, 5000, 0), 490);
    struct kvd_activation want = scene_want(worker_session, 1000, 16);
    struct kvd_activated a;
    struct kvd_plan plan;
    KVT_EQ(kvd_activate(scheduler, &want, &a, NULL), KVD_RESOURCE_EXHAUSTED);
    want.n_victims = 2;
    want.victims = (struct kvd_victim[2]){ { c[0], true, 0 }, { c[1], true, 0 } };
    KVT_EQ(kvd_plan_activation(scheduler, &want, &plan, NULL), KVD_OK);
    KVT_EQ(plan.feasibility, KVD_READY);
    KVT_EQ(plan.demote_pages[0], 16);
    KVT_EQ(plan.arena.needed, 16 * PAGE);
    uint64_t own = e2e_stream(20, 5000, 0);
    a = scene_activate(scheduler, &want);
    KVT_EQ(a.pool[0].membership, 16);
    scene_write(&worker, a.pool[0].row, own, 0, 1000);
    KVT_EQ(scene_round(&worker, a.sequence, 1000, KVD_UNCHANGED).status, KVD_OK);
    for (uint32_t i = 0; i < 2; i++) KVT_TRUE(info_of(c[i]).demoted);
    scene_check(&worker, a.pool[0].row, own, 0, 1000);
    scene_audit(scheduler);
    /* One of them comes back in the place of the other two: demotion and restore in one activation. */
    want = fork_of(c[0], 490, 491);
    want.n_victims = 2;
    want.victims = (struct kvd_victim[2]){ { c[2], true, 0 }, { c[3], true, 0 } };
    struct kvd_activated b = scene_activate(scheduler, &want);
    KVT_EQ(b.restored[0], 8);
    scene_check(&worker, b.pool[0].row, text[0], 0, 490);
    scene_check(&worker, a.pool[0].row, own, 0, 1000);
    release_sequence(b.sequence);
    release_sequence(a.sequence);
    for (uint32_t i = 0; i < 4; i++) KVT_EQ(reproduce(text[i], 490), 8);
    scene_audit(scheduler);
    close_stage();
}

/* ---- refusals --------------------------------------------------------------------------------------- */

static void host_7_no_arena(void) {
    if (!open_stage(NULL)) return;
    struct kvd_error error;
    struct kvd_moved moved;
    kvd_continuation c = retained(e2e_stream(30, 5000, 0), 100);
    KVT_EQ(kvd_demote(scheduler, c, false, &moved, &error), KVD_FAILED_PRECONDITION);
    KVT_HAS(error.message, "arena = in section [host]");
    KVT_EQ(kvd_prefetch(scheduler, c, &moved, NULL), KVD_FAILED_PRECONDITION);
    KVT_EQ(kvd_drop_replica(scheduler, c, KVD_TIER_HOST, &moved, NULL), KVD_FAILED_PRECONDITION);
    KVT_EQ(scene_stats(scheduler).host_capacity, 0);
    close_stage();
}

/* HOST-1: what cannot be had is refused at the start, within a second, with what is needed and what to change. */
static void host_1_start_refuses(void) {
    char text[4096];
    const struct e2e_setup setups[] = { /* more pages than there are numbers; more bytes than there is memory */
                                        { .more = "[host]\narena = 512TiB\n" },
                                        { .layers = 64,
                                          .head_dim = 256,
                                          .max_context = 256,
                                          .max_concurrency = 1,
                                          .capacity_tokens = 256,
                                          .more = "[host]\narena = 4TiB\n" }
    };
    for (int i = 0; i < 2; i++) {
        KVT_NEED(e2e_daemon_prepare(&daemon_, &setups[i]));
        double begin = e2e_now();
        KVT_EQ_I(e2e_daemon_try(&daemon_, text, sizeof text), 2);
        KVT_TRUE(e2e_now() - begin < 10 * E2E_SLOW); /* touching what is refused would take far longer */
        printf("    %s", text);
        KVT_HAS(text, "[host]");
        KVT_HAS(text, i ? "bytes of /dev/shm" : "562949953421312 bytes");
        e2e_daemon_free(&daemon_);
    }
}

static void host_4_arena_full(void) {
    if (!open_stage(&(struct e2e_setup){ .more = "[host]\narena = 640KiB\nscrub = 0\n" })) return;
    struct kvd_error error;
    struct kvd_moved moved;
    uint64_t a = e2e_stream(31, 5000, 0), b = e2e_stream(32, 5000, 0);
    kvd_continuation ca = retained(a, 300), cb = retained(b, 400);
    KVT_EQ(demote(ca, false).pages[0], 5);
    struct kvd_stats before = scene_stats(scheduler);
    KVT_EQ(kvd_demote(scheduler, cb, false, &moved, &error), KVD_RESOURCE_EXHAUSTED);
    printf("    %s\n", error.message);
    struct kvd_stats after = scene_stats(scheduler);
    KVT_TRUE(e2e_same_resources(&before, &after));
    KVT_EQ(before.host_occupied, after.host_occupied);
    KVT_EQ(kvd_release(scheduler, ca, NULL), KVD_OK);
    KVT_EQ(demote(cb, false).pages[0], 7);
    KVT_EQ(reproduce(b, 400), 7);
    scene_audit(scheduler);
    close_stage();
}

/* Between lookup and activation another scheduler takes it away, or demotes it. */
static void evicted_between_lookup_and_activation(void) {
    if (!open_stage(&(struct e2e_setup){ .more = ARENA })) return;
    uint64_t text = e2e_stream(33, 5000, 0);
    kvd_continuation c = retained(text, 200);
    struct kvd_hit hit = scene_find(scheduler, text, 201);
    kvd_client *other = e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "other");
    struct kvd_moved moved;
    KVT_EQ(kvd_demote(other, c, false, &moved, NULL), KVD_OK);
    struct kvd_activation want = fork_of(hit.continuation, 200, 201);
    struct kvd_activated a = scene_activate(scheduler, &want);
    KVT_EQ(a.restored[0], 4);
    scene_check(&worker, a.pool[0].row, text, 0, 200);
    release_sequence(a.sequence);
    KVT_EQ(kvd_release(other, c, NULL), KVD_OK);
    KVT_EQ(kvd_activate(scheduler, &want, &a, NULL), KVD_NOT_FOUND);
    KVT_EQ(kvd_demote(other, c, false, &moved, NULL), KVD_NOT_FOUND);
    KVT_EQ(scene_stats(scheduler).host_occupied, 0);
    kvd_disconnect(other);
    close_stage();
}

/* ---- damage ------------------------------------------------------------------------------------------- */

/* frontier: that damage cut it to; 0: it is gone. */
static bool loss_event(kvd_continuation c, uint32_t frontier) {
    struct kvd_event event = { 0 };
    while (kvd_next_event(scheduler, 5000 * E2E_SLOW, &event, NULL) == KVD_OK)
        if (event.kind == (frontier ? KVD_EVENT_SHORTENED : KVD_EVENT_LOST))
            return KVT_EQ(event.continuation.bits, c.bits) && KVT_EQ(event.frontier, frontier);
    return KVT_TRUE(false);
}

/* PAGE-3, KEEP-2: a byte that changed in the arena is DATA_LOSS, never a wrong token; the pages before it stay. */
static void damage_is_told_never_served(void) {
    if (!open_stage(&(struct e2e_setup){ .more = ARENA })) return;
    uint64_t text = e2e_stream(40, 5000, 0), whole = e2e_stream(41, 5000, 0);
    struct kvd_error error;
    kvd_continuation c = retained(text, 700);
    KVT_EQ(kvd_subscribe(scheduler, KVD_EVENT_MASK(KVD_EVENT_LOST) | KVD_EVENT_MASK(KVD_EVENT_SHORTENED), NULL),
           KVD_OK);
    demote(c, false);
    demote(retained(whole, 300), false);
    KVT_NEED(e2e_arena_flip(&daemon_, scene_stats(scheduler).host_capacity, 5 * PAGE + 1234));
    struct kvd_activation want = fork_of(c, 700, 701);
    struct kvd_activated a;
    KVT_EQ(kvd_activate(scheduler, &want, &a, &error), KVD_DATA_LOSS);
    printf("    %s\n", error.message);
    KVT_TRUE(loss_event(c, 5 * 64));
    KVT_EQ(scene_find(scheduler, text, 701).usable, 5 * 64);
    struct kvd_stats stats = scene_stats(scheduler);
    KVT_EQ(stats.damaged_replicas, 1);
    KVT_EQ(stats.lost_continuations, 0);
    KVT_EQ(stats.sequences, 0);
    KVT_EQ(stats.pool[0].allocated, 0);
    KVT_EQ(stats.host_occupied, 10 * PAGE); /* and the neighbour's */
    KVT_EQ(reproduce(text, 320), 5);
    KVT_EQ(reproduce(whole, 300), 5);
    scene_audit(scheduler);
    close_stage();
}

/* A damaged copy of what the device has, too, is dropped, and nothing is lost. */
static void damage_beside_a_device_copy(void) {
    if (!open_stage(&(struct e2e_setup){ .more = "[host]\narena = 16MiB\nscrub = 1GiB\n" })) return;
    uint64_t text = e2e_stream(42, 5000, 0);
    kvd_continuation c = retained(text, 640);
    demote(c, true);
    KVT_NEED(e2e_arena_flip(&daemon_, scene_stats(scheduler).host_capacity, 3 * PAGE + 99));
    while (scene_stats(scheduler).damaged_replicas == 0 &&
           KVT_EQ(kvd_stats(scheduler, &(struct kvd_stats){ 0 }, NULL), KVD_OK))
        continue;
    KVT_EQ(info_of(c).host_pages[0], 9);
    KVT_EQ(scene_stats(scheduler).lost_continuations, 0);
    KVT_EQ(reproduce(text, 640), 0);
    KVT_EQ(demote(c, false).pages[0], 1);
    KVT_EQ(reproduce(text, 640), 10);
    scene_audit(scheduler);
    close_stage();
}

static void scrub_finds_damage(void) {
    if (!open_stage(&(struct e2e_setup){ .more = "[host]\narena = 16MiB\nscrub = 1GiB\n" })) return;
    uint64_t text = e2e_stream(43, 5000, 0);
    kvd_continuation c = retained(text, 640);
    KVT_EQ(kvd_subscribe(scheduler, KVD_EVENT_MASK(KVD_EVENT_LOST) | KVD_EVENT_MASK(KVD_EVENT_SHORTENED), NULL),
           KVD_OK);
    demote(c, false);
    KVT_NEED(e2e_arena_flip(&daemon_, scene_stats(scheduler).host_capacity, 7 * PAGE));
    KVT_TRUE(loss_event(c, 7 * 64));
    struct kvd_stats stats = scene_stats(scheduler);
    KVT_TRUE(stats.scrubbed_pages > 0);
    KVT_EQ(stats.damaged_replicas, 1);
    KVT_EQ(stats.lost_continuations, 0);
    KVT_EQ(stats.host_occupied, 7 * PAGE);
    scene_audit(scheduler);
    close_stage();
}

/* ---- restarts ------------------------------------------------------------------------------------------- */

/* CONT-3: stopped in order, what the device held is demoted first. */
static void cont_3_orderly_stop(void) {
    if (!open_stage(&(struct e2e_setup){ .more = ARENA })) return;
    uint64_t a = e2e_stream(50, 512, 1), b = e2e_stream(51, 5000, 0), c = e2e_stream(52, 5000, 0);
    retained(a, 700);
    demote(retained(b, 333), false);
    struct kvd_activated running = scene_run(scheduler, &worker, worker_session, c, 256, 64); /* and one that runs */
    (void)running;
    KVT_NEED(restart(SIGTERM));
    struct kvd_stats stats = scene_stats(scheduler);
    KVT_EQ(stats.continuations, 3);
    KVT_EQ(stats.recovered_continuations, 3);
    KVT_EQ(stats.recovered_dropped, 0);
    KVT_EQ(stats.recovered_damaged, 0);
    KVT_EQ(stats.host_pages[0], 11 + 6 + 4);
    KVT_EQ(stats.pool[0].allocated, 0);
    scene_audit(scheduler);
    KVT_EQ(reproduce(a, 700), 11);
    KVT_EQ(reproduce(b, 333), 6);
    KVT_EQ(reproduce(c, 256), 4);
    KVT_NEED(restart(SIGTERM)); /* nothing is left to copy */
    KVT_EQ(reproduce(a, 700), 11);
    scene_audit(scheduler);
    close_stage();
}

/* CONT-3: killed, the covered part stays: wholly demoted ones, and the leading pages of others. */
static void cont_3_killed(void) {
    if (!open_stage(&(struct e2e_setup){ .more = ARENA })) return;
    uint64_t a = e2e_stream(60, 5000, 0), b = e2e_stream(61, 512, 2), d = e2e_stream(62, 5000, 0);
    kvd_continuation first = retained(a, 700);
    demote(first, false);
    retained(b, 300); /* only on the device */
    demote(retained(d, 130), true);
    KVT_NEED(restart(SIGKILL));
    KVT_EQ(kvd_release(scheduler, first, NULL),
           KVD_NOT_FOUND); /* a handle of the instance before names nothing, least of all another prefix */
    struct kvd_stats stats = scene_stats(scheduler);
    KVT_EQ(stats.recovered_continuations, 2);
    KVT_EQ(stats.recovered_dropped, 1);
    KVT_EQ(stats.recovered_damaged, 0);
    scene_audit(scheduler);
    KVT_EQ(reproduce(a, 700), 11);
    KVT_EQ(reproduce(d, 130), 3);
    KVT_EQ(scene_find(scheduler, b, 301).usable, 0);
    for (int i = 0; i < 3; i++) KVT_NEED(restart(SIGKILL)); /* again and again: nothing wears off */
    KVT_EQ(reproduce(a, 700), 11);
    scene_audit(scheduler);
    close_stage();
}

/* The arena is too small for all: the most valuable stay. */
static void orderly_stop_keeps_the_valuable(void) {
    if (!open_stage(&(struct e2e_setup){ .more = "[host]\narena = 704KiB\nscrub = 0\n" })) return;
    uint64_t text[4];
    kvd_continuation c[4];
    for (uint32_t i = 0; i < 4; i++) c[i] = retained(text[i] = e2e_stream(70 + i, 5000, 0), 300);
    KVT_EQ(kvd_set_retention(scheduler, c[1], 9, NULL), KVD_OK);
    reproduce(text[2], 300); /* used last */
    KVT_NEED(restart(SIGTERM));
    KVT_EQ(scene_stats(scheduler).recovered_continuations, 2);
    KVT_EQ(scene_stats(scheduler).recovered_dropped, 2);
    KVT_EQ(reproduce(text[1], 300), 5);
    KVT_EQ(reproduce(text[2], 300), 5);
    scene_audit(scheduler);
    close_stage();
}

/* KEEP-2: what lies in the arena already is no better for that: the cold give way for the hot, and no more of them than
 * is needed. */
static void keep_2_orderly_stop_into_a_full_arena(void) {
    if (!open_stage(&(struct e2e_setup){ .more = "[host]\narena = 704KiB\nscrub = 0\n" })) return;
    uint64_t text[5];
    kvd_continuation c[5];
    for (uint32_t i = 0; i < 5; i++) c[i] = retained(text[i] = e2e_stream(90 + i, 5000, 0), i < 4 ? 300 : 60);
    demote(c[0], false); /* two of five pages fill it but for a page */
    demote(c[1], false);
    KVT_EQ(kvd_set_retention(scheduler, c[1], 5, NULL), KVD_OK);
    KVT_EQ(kvd_set_retention(scheduler, c[2], 9, NULL), KVD_OK);
    KVT_NEED(restart(SIGTERM));
    KVT_EQ(scene_find(scheduler, text[0], 301).usable, 0);
    KVT_EQ(reproduce(text[1], 300), 5);
    KVT_EQ(reproduce(text[2], 300), 5);
    KVT_EQ(scene_find(scheduler, text[3], 301).usable, 0);
    scene_audit(scheduler);
    close_stage();
}

static bool restart_as(const struct e2e_setup *setup) {
    disconnect_all();
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGTERM), 0);
    return e2e_daemon_configure(&daemon_, setup) && e2e_daemon_restart(&daemon_) && connect_all();
}

/* KEEP-1: limits and sizes are no part of a packed page's identity. All is kept where it fits; what does not goes by
 * value, is cut where that helps, and is counted. */
static void keep_1_other_limits_and_sizes(void) {
    static const struct e2e_setup other[] = {
        { .more = "[host]\narena = 16MiB\nscrub = 0\n[limits]\ncontinuations = 5000\n" },
        { .more = "[host]\narena = 16MiB\nscrub = 0\n[limits]\nsessions = 300\nconnections = 700\n" },
        { .more = "[host]\narena = 24MiB\nscrub = 0\n" },
        { .more = "[host]\narena = 8MiB\nscrub = 0\n", .max_context = 4096, .max_concurrency = 6 },
        { .more = "[host]\narena = 8MiB\nscrub = 0\n", .capacity_tokens = 16384, .max_context = 4096 },
    };
    if (!open_stage(&(struct e2e_setup){ .more = "[host]\narena = 16MiB\nscrub = 0\n" })) return;
    uint64_t trunk = e2e_stream(110, 5000, 0), single = e2e_stream(111, 5000, 0);
    retained(trunk, 700);
    kvd_continuation valuable = retained(single, 333);
    KVT_EQ(kvd_set_retention(scheduler, valuable, 3, NULL), KVD_OK);
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        KVT_NEED(restart_as(&other[i]));
        struct kvd_stats stats = scene_stats(scheduler);
        KVT_EQ(stats.recovered_continuations, 2);
        KVT_EQ(stats.recovered_shortened + stats.recovered_dropped + stats.recovered_damaged, 0);
        KVT_EQ(stats.host_pages[0], 11 + 6);
        KVT_EQ(reproduce(trunk, 700), 11);
        KVT_EQ(reproduce(single, 333), 6);
        scene_audit(scheduler);
    }
    KVT_NEED(restart(SIGKILL));
    KVT_EQ(reproduce(single, 333), 6);
    KVT_NEED(restart_as(&(struct e2e_setup){ .more = "[host]\narena = 704KiB\nscrub = 0\n" }));
    struct kvd_stats stats = scene_stats(scheduler);
    KVT_EQ(stats.recovered_continuations, 2);
    KVT_EQ(stats.recovered_shortened, 1);
    KVT_EQ(reproduce(single, 333), 6);
    struct kvd_hit hit = scene_find(scheduler, trunk, 701);
    KVT_TRUE(hit.usable > 0 && hit.usable < 700 && hit.usable % 64 == 0);
    KVT_NEED(restart_as(&(struct e2e_setup){ .more = "[host]\narena = 384KiB\nscrub = 0\n" }));
    KVT_EQ(scene_stats(scheduler).recovered_continuations, 1);
    KVT_EQ(scene_stats(scheduler).recovered_dropped, 1);
    KVT_EQ(reproduce(single, 333), 6);
    scene_audit(scheduler);
    close_stage();
}

static bool draining(void) {
    struct kvd_event event = { 0 };
    while (kvd_next_event(scheduler, 10000 * E2E_SLOW, &event, NULL) == KVD_OK)
        if (event.kind == KVD_EVENT_DRAINING) return true;
    return KVT_TRUE(false);
}

/* A worker that does not let go is waited for in the first quarter of stop_time; what it runs stays where it is, the
 * rest is demoted, and requests are answered meanwhile. A second SIGTERM ends it at once. */
static void orderly_stop_does_not_wait_for_ever(void) {
    struct kvd_error error;
    char line[256];
    if (!open_stage(&(struct e2e_setup){ .more = "[host]\narena = 16MiB\nscrub = 0\nstop_time = 1s\n" })) return;
    uint64_t text = e2e_stream(75, 5000, 0), runs = e2e_stream(76, 5000, 0);
    retained(text, 640);
    scene_run(scheduler, &worker, worker_session, runs, 128, 64);
    double begin = e2e_now();
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGTERM), 0);
    KVT_TRUE(e2e_now() - begin > 0.2 && e2e_now() - begin < 30 * E2E_SLOW);
    disconnect_all();
    KVT_NEED(e2e_daemon_restart(&daemon_) && connect_all());
    KVT_EQ(scene_stats(scheduler).recovered_continuations, 1);
    KVT_EQ(reproduce(text, 640), 10);
    close_stage();

    if (!open_stage(&(struct e2e_setup){ .more = "[host]\narena = 16MiB\nscrub = 0\nstop_time = 3600s\n" })) return;
    KVT_EQ(kvd_subscribe(scheduler, KVD_EVENT_MASK(KVD_EVENT_DRAINING), NULL), KVD_OK);
    retained(text, 640);
    struct kvd_activated a = scene_run(scheduler, &worker, worker_session, runs, 128, 64), other;
    kill(daemon_.pid, SIGTERM);
    KVT_TRUE(draining());
    struct kvd_activation want = scene_want(worker_session, 10, 10);
    KVT_EQ(kvd_activate(scheduler, &want, &other, &error), KVD_UNAVAILABLE); /* still served, in words */
    KVT_HAS(error.message, "draining");
    KVT_EQ(scene_round(&worker, a.sequence, KVD_UNCHANGED, KVD_UNCHANGED).status, KVD_FAILED_PRECONDITION);
    struct puppet_call yield = { .op = PUPPET_YIELD };
    struct puppet_answer answer;
    KVT_TRUE(puppet_do(&worker, &yield, &answer)); /* now it lets go: what it ran is kept, and all is demoted */
    KVT_EQ(answer.n, 1);
    KVT_EQ_I(e2e_daemon_wait(&daemon_), 0);
    disconnect_all();
    KVT_NEED(e2e_daemon_restart(&daemon_) && connect_all());
    KVT_EQ(reproduce(text, 640), 10);
    KVT_EQ(reproduce(runs, 128), 2);

    KVT_EQ(kvd_subscribe(scheduler, KVD_EVENT_MASK(KVD_EVENT_DRAINING), NULL), KVD_OK);
    scene_run(scheduler, &worker, worker_session, e2e_stream(77, 5000, 0), 128, 64);
    kill(daemon_.pid, SIGTERM);
    KVT_TRUE(draining());
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGTERM), 0); /* the second one; what it costs is said */
    snprintf(line, sizeof line, "grep -q 'warning: stop: a second signal ends it at once: .* is lost' %s", daemon_.log);
    KVT_EQ_I(system(line), 0);
    disconnect_all();
    e2e_daemon_free(&daemon_);
}

static bool replace_in_config(const char *from, const char *to) {
    char text[4096];
    FILE *f = fopen(daemon_.config, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    char *at = strstr(text, from);
    f = at ? fopen(daemon_.config, "w") : NULL;
    if (!f) return KVT_TRUE(false);
    fprintf(f, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    fclose(f);
    return true;
}

/* SRV-4 over time: pages of another geometry mean nothing here. */
static void foreign_geometry_is_emptied(void) {
    if (!open_stage(&(struct e2e_setup){ .more = ARENA })) return;
    uint64_t text = e2e_stream(80, 5000, 0);
    demote(retained(text, 300), false);
    KVT_NEED(replace_in_config("layers = 2", "layers = 3") && restart(SIGTERM));
    KVT_EQ(scene_stats(scheduler).continuations, 0);
    KVT_EQ(scene_stats(scheduler).host_occupied, 0);
    KVT_EQ(scene_find(scheduler, text, 301).usable, 0);
    demote(retained(text, 300), false);
    KVT_EQ(reproduce(text, 300), 5);
    scene_audit(scheduler);
    close_stage();
}

/* ---- every kind of bytes ------------------------------------------------------------------------------------ */

#define TOKENS 300u
#define RANKS 4

/* What is stored is packed by each rank and pool by itself; all of it goes, comes back, and comes back to another
 * daemon. */
static struct ranks {
    uint32_t n, pools;
    bool state;
    struct kvd_store_info store; /* says the windows */
    struct puppet puppet[RANKS];
    kvd_session_id session[RANKS];
    kvd_group_id group;
} ranks;

static bool connect_ranks(void) {
    scheduler = e2e_connect(&daemon_, KVD_ROLE_ADMIN, "scheduler");
    struct kvd_group members = { .n = ranks.n };
    for (uint32_t i = 0; i < ranks.n; i++) {
        if (!puppet_start(&ranks.puppet[i])) return false;
        members.members[i] = ranks.session[i] = puppet_connect(&ranks.puppet[i], &daemon_, KVD_ROLE_WORKER, i);
        if (!puppet_attach(&ranks.puppet[i], i)) return false;
    }
    KVT_EQ(kvd_describe(scheduler, &ranks.store, NULL), KVD_OK);
    KVT_EQ(ranks.store.n_pools, ranks.pools);
    return KVT_EQ(kvd_open_group(scheduler, &members, &ranks.group, NULL), KVD_OK);
}

/* GRP-2: the first token that going on from TOKENS reads of a pool, and the pages that hold those. */
static uint32_t first_read(uint32_t pool) {
    const struct kvd_pool_info *of = &ranks.store.pool[pool];
    if (!of->window) return 0;
    if (of->window_aligned) return TOKENS / of->window * of->window;
    return TOKENS + 1 > of->window ? TOKENS + 1 - of->window : 0;
}

static uint32_t pages_read(uint32_t pool) { return (TOKENS + 63) / 64 - first_read(pool) / 64; }

static void disconnect_ranks(void) {
    for (uint32_t i = 0; i < ranks.n; i++) puppet_kill(&ranks.puppet[i]);
    kvd_disconnect(scheduler);
}

/* On every rank: the bytes of both pools, and of the state image. */
static void on_ranks(const struct kvd_activated *a, uint64_t seed, bool write) {
    for (uint32_t i = 0; i < ranks.n; i++) {
        struct puppet_answer answer;
        for (uint32_t p = 0; p < ranks.pools; p++) {
            struct puppet_call call = { .op = write ? PUPPET_WRITE : PUPPET_CHECK,
                                        .pool = p,
                                        .row = a->pool[p].row,
                                        .seed = seed + ((uint64_t)i << 40),
                                        .from = write ? 0 : first_read(p),
                                        .to = TOKENS };
            if (!KVT_TRUE(puppet_do(&ranks.puppet[i], &call, &answer)) || !KVT_EQ(answer.status, KVD_OK))
                printf("    rank %u pool %u: %s\n", i, p, answer.message);
        }
        struct puppet_call call = { .op = write ? PUPPET_STATE_WRITE : PUPPET_STATE_CHECK,
                                    .rank = i,
                                    .row = a->state_slot,
                                    .seed = seed,
                                    .n = TOKENS };
        if (!ranks.state) continue;
        if (!KVT_TRUE(puppet_do(&ranks.puppet[i], &call, &answer)) || !KVT_EQ(answer.status, KVD_OK))
            printf("    rank %u: %s\n", i, answer.message);
    }
}

static struct kvd_activation group_want(uint32_t prompt) {
    struct kvd_activation want = {
        .root = e2e_root(), .group = ranks.group, .prompt_tokens = prompt, .max_output_tokens = 16
    };
    for (uint32_t p = 0; p < ranks.pools; p++) want.ensure[p] = prompt;
    return want;
}

static void bring_back(uint64_t seed) {
    struct kvd_hit hit = scene_find(scheduler, seed, TOKENS + 1);
    KVT_EQ(hit.usable, TOKENS);
    struct kvd_activation want = group_want(TOKENS + 1);
    want.from = hit.continuation;
    want.frontier = TOKENS;
    want.keep = true;
    struct kvd_activated a = scene_activate(scheduler, &want);
    for (uint32_t p = 0; p < ranks.pools; p++) KVT_EQ(a.restored[p], pages_read(p));
    KVT_EQ(a.source_state_slot, KVD_NONE); /* the image is in the sequence's slot already */
    on_ranks(&a, seed, false);
    release_sequence(a.sequence);
}

static void round_trip(const struct e2e_setup *setup, uint32_t pools, bool state) {
    ranks = (struct ranks){ .n = setup->ranks, .pools = pools, .state = state };
    KVT_NEED(e2e_daemon_start(&daemon_, setup) && connect_ranks());
    uint64_t seed = e2e_stream(90, 5000, 0);
    struct kvd_activation want = group_want(TOKENS);
    struct kvd_activated a = scene_activate(scheduler, &want);
    on_ranks(&a, seed, true);
    struct puppet_call call = { .op = PUPPET_ROUND, .n = 1 };
    struct puppet_answer answer;
    call.items[0] = scene_item(a.sequence);
    for (uint32_t p = 0; p < pools; p++) call.items[0].pool[p].commit = TOKENS;
    if (state) call.items[0].state_frontier = TOKENS;
    KVT_TRUE(puppet_do(&ranks.puppet[0], &call, &answer));
    KVT_EQ(answer.results[0].status, KVD_OK);
    scene_name(scheduler, a.sequence, seed, TOKENS);
    kvd_continuation c = scene_retain(scheduler, a.sequence, seed, TOKENS);
    struct kvd_moved moved = demote(c, false);
    for (uint32_t p = 0; p < pools; p++) KVT_EQ(moved.pages[p], pages_read(p)); /* GRP-6 */
    struct kvd_stats stats = scene_stats(scheduler);
    for (uint32_t p = 0; p < pools; p++) KVT_EQ(stats.pool[p].allocated, 0);
    KVT_EQ(stats.host_images, state);
    KVT_EQ(stats.state_slots_used, 0);
    KVT_EQ(stats.host_occupied, moved.bytes);
    bring_back(seed);
    KVT_EQ(kvd_prefetch(scheduler, c, &moved, NULL), KVD_OK);
    KVT_EQ(scene_stats(scheduler).state_slots_used, state);
    demote(c, false);
    KVT_EQ(scene_stats(scheduler).state_slots_used, 0);
    disconnect_ranks();
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGKILL), -SIGKILL);
    KVT_NEED(e2e_daemon_restart(&daemon_) && connect_ranks());
    bring_back(seed);
    scene_audit(scheduler);
    disconnect_ranks();
    e2e_daemon_free(&daemon_);
}

static void host_2_every_profile(void) {
    static const char *const profiles[] = { "bf16", "int8", "fp8", "nvfp4", "k8v4", "fp8-tensor" };
    for (unsigned i = 0; i < sizeof profiles / sizeof *profiles; i++)
        for (uint32_t n = 1; n <= 2; n++)
            round_trip(&(struct e2e_setup){ .profile = profiles[i], .head_dim = 256, .ranks = n, .more = ARENA }, 1,
                       false);
}

static void host_3_two_pools(void) {
    round_trip(&(struct e2e_setup){ .backend = "mtp", .draft_window = 4, .ranks = 2, .more = ARENA }, 2, false);
}

static void cont_1_state_images(void) {
    for (uint32_t n = 1; n <= 2; n++)
        round_trip(&(struct e2e_setup){ .ranks = n, .more = ARENA "[capacity]\nstate_bytes = 20000\n" }, 1, true);
}

/* A damaged image is no image, whoever finds it. */
static void damaged_image(bool scrubbed) {
    struct e2e_setup setup = { .more = ARENA "[capacity]\nstate_bytes = 20000\n" };
    if (scrubbed) setup.more = "[host]\narena = 16MiB\nscrub = 1GiB\n[capacity]\nstate_bytes = 20000\n";
    if (!open_stage(&setup)) return;
    KVT_EQ(kvd_subscribe(scheduler, KVD_EVENT_MASK(KVD_EVENT_LOST) | KVD_EVENT_MASK(KVD_EVENT_SHORTENED), NULL),
           KVD_OK);
    uint64_t text = e2e_stream(91, 5000, 0);
    struct kvd_activated a = scene_run(scheduler, &worker, worker_session, text, TOKENS, 16);
    struct puppet_call call = { .op = PUPPET_ROUND, .n = 1 };
    struct puppet_answer answer;
    call.items[0] = scene_item(a.sequence);
    call.items[0].state_frontier = TOKENS;
    KVT_TRUE(puppet_do(&worker, &call, &answer));
    kvd_continuation c = scene_retain(scheduler, a.sequence, text, TOKENS);
    demote(c, false);
    KVT_NEED(e2e_arena_flip(&daemon_, scene_stats(scheduler).host_capacity, 5 * PAGE + 7));
    struct kvd_activation want = fork_of(c, TOKENS, TOKENS + 1);
    if (!scrubbed) KVT_EQ(kvd_activate(scheduler, &want, &a, NULL), KVD_DATA_LOSS);
    KVT_TRUE(loss_event(c, 0));
    KVT_EQ(scene_find(scheduler, text, TOKENS + 1).usable, 0);
    KVT_EQ(scene_stats(scheduler).lost_continuations, 1);
    KVT_EQ(scene_stats(scheduler).host_occupied, 0);
    KVT_EQ(scene_stats(scheduler).state_slots_used, 0);
    scene_audit(scheduler);
    close_stage();
}

static void damaged_state_image(void) {
    damaged_image(false);
    damaged_image(true);
}

/* ---- death ------------------------------------------------------------------------------------------------ */

static bool settled(void *unused) {
    (void)unused;
    struct kvd_stats s = scene_stats(scheduler);
    return s.moves == 0 && s.sequences == 0;
}

/* SRV-5: who asked dies in the middle, again and again at other moments; the copies end in order, nothing is left
 * behind. */
static void srv_5_death_in_the_middle(void) {
    struct e2e_setup setup = { .capacity_tokens = 32768,
                               .max_context = 8192,
                               .more = "[host]\narena = 64MiB\nscrub = 0\n" };
    if (!open_stage(&setup)) return;
    uint64_t text = e2e_stream(95, 9000, 0);
    kvd_continuation c = retained(text, 8000);
    struct kvd_stats before = scene_stats(scheduler);
    for (uint32_t i = 0; i < 12; i++) {
        struct puppet client;
        KVT_NEED(puppet_start(&client));
        kvd_session_id session = puppet_connect(&client, &daemon_, KVD_ROLE_SCHEDULER, 0);
        struct puppet_call call = { .op = i % 3 == 0   ? PUPPET_DEMOTE
                                          : i % 3 == 1 ? PUPPET_ACTIVATE
                                                       : PUPPET_PREFETCH,
                                    .continuation = c,
                                    .activation = fork_of(c, 8000, 8001) };
        call.activation.worker = session;
        KVT_TRUE(puppet_send(&client, &call));
        if (i >= 6) (void)e2e_until(settled, NULL, 0.0005 * (i - 5), NULL); /* a while */
        puppet_kill(&client);
        KVT_TRUE(e2e_until(settled, NULL, 60, NULL));
        scene_audit(scheduler);
    }
    /* An activation that was published before the death has left what it had: the same tokens once more. */
    KVT_TRUE(scene_stats(scheduler).continuations >= before.continuations);
    reproduce(text, 8000);
    KVT_EQ(info_of(c).continuation.bits, c.bits);
    close_stage();
}

/* CONT-3: the stop demotes, and the device is lost there: the exit status says so. */
static void device_lost_during_the_stop(void) {
    struct e2e_setup setup = { .more = ARENA };
    if (!KVT_TRUE(e2e_daemon_prepare(&daemon_, &setup))) return;
    daemon_.binary = KVD_LOSING_DEVICE;
    if (!KVT_TRUE(e2e_daemon_restart(&daemon_) && connect_all())) return;
    (void)retained(1, 64);
    disconnect_all();
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGTERM), 3);
    e2e_daemon_free(&daemon_);
}

/* Of the model, so many layers, and a short context. The path is `to`. */
static bool write_reduced(const char *model, int layers, const char *to) {
    char path[512], text[8192] = "";
    snprintf(path, sizeof path, "%s/%s.json", KVD_MODELS, model);
    FILE *in = fopen(path, "r"), *out = fopen(to, "w");
    if (in) text[fread(text, 1, sizeof text - 1, in)] = 0;
    cJSON *all = cJSON_Parse(text), *inner = cJSON_GetObjectItem(all, "text_config"), *json = inner ? inner : all;
    cJSON_DeleteItemFromObject(json, "layer_types");
    cJSON_DeleteItemFromObject(json, "num_hidden_layers");
    cJSON_DeleteItemFromObject(json, "max_position_embeddings");
    cJSON_AddNumberToObject(json, "num_hidden_layers", layers);
    cJSON_AddNumberToObject(json, "max_position_embeddings", 512);
    char *reduced = cJSON_Print(all);
    bool ok = in && out && all && fputs(reduced, out) >= 0;
    if (in) fclose(in);
    if (out) ok = fclose(out) == 0 && ok;
    cJSON_free(reduced);
    cJSON_Delete(all);
    return KVT_TRUE(ok);
}

/* The sections that kvd makes of a file, on host devices. */
static bool read_sections(const char *path, uint32_t n, const char *profile, char *text, size_t bytes) {
    char command[1024], *at;
    snprintf(command, sizeof command, "%s --from-hf %s --tp %u --profile %s", KVD_PROGRAM, path, n, profile);
    FILE *in = popen(command, "r");
    text[in ? fread(text, 1, bytes - 1, in) : 0] = 0;
    bool ok = in && KVT_EQ_I(pclose(in), 0);
    while ((at = strstr(text, "cuda:"))) memcpy(at, "host:", 5);
    return ok;
}

/* GRP-1, GRP-2, GRP-6, GRP-7: each model that people serve, with fewer layers, out of its own file: started, written,
 * demoted, killed and read back, on several devices where it is served so. */
static void grp_1_every_model(void) {
    static const struct {
        const char *name, *profile;
        int layers; /* each kind of layer is among them */
        uint32_t ranks, pools;
        bool state;
    } models[] = {
        { "llama-3.1-8b", "bf16", 2, 1, 1, false },      { "llama-3.1-70b", "bf16", 2, 2, 1, false },
        { "qwen3-32b", "bf16", 2, 1, 1, false },         { "gemma-3-27b", "bf16", 6, 1, 2, false },
        { "gpt-oss-120b", "bf16", 4, 1, 2, false },      { "llama-4-scout", "bf16", 4, 2, 2, false },
        { "deepseek-v3", "bf16", 3, 2, 1, false },       { "deepseek-v3", "fp8", 3, 1, 1, false },
        { "deepseek-v3.2", "fp8", 3, 1, 1, false },      { "qwen3-next-80b-a3b", "bf16", 4, 1, 1, true },
        { "qwen3-next-80b-a3b", "int8", 4, 4, 1, true }, /* two KV heads on four devices */
    };
    char path[64], text[8192];
    snprintf(path, sizeof path, "/tmp/kvd-e2e-model-%d.json", (int)getpid());
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        if (!write_reduced(models[i].name, models[i].layers, path) ||
            !read_sections(path, models[i].ranks, models[i].profile, text, sizeof text))
            break;
        printf("    %s %s\n", models[i].name, models[i].profile); /* of what fails next */
        round_trip(&(struct e2e_setup){ .model = text,
                                        .ranks = models[i].ranks,
                                        .capacity_tokens = 1024,
                                        .more = "[host]\narena = 64MiB\nscrub = 0\n" },
                   models[i].pools, models[i].state);
    }
    unlink(path);
}

/* GRP-1, HOST-2: layers of every format, one group head-major, on two ranks that share one KV head of a group (GRP-7):
 * written, demoted, and read back after a kill, byte for byte. An arena of other groups is emptied. */
static void grp_1_groups_of_every_format(void) {
#define GROUPS(bytes)                                                                                                  \
    "[pool.main]\ngroups = full one latent packed\n[group.full]\nlayers = 2\nv_head_dim = 32\n"                        \
    "[group.one]\nlayers = 1\nkv_heads = 1\norder = head-major\n"                                                      \
    "[group.latent]\nlayers = 3\nformat = latent\nbytes = " bytes "\n"                                                 \
    "[group.packed]\nlayers = 1\nformat = packed\nbytes = 48\norder = head-major\n"
    struct e2e_setup setup = { .groups = true, .ranks = 2, .more = GROUPS("132") ARENA };
    if (!open_stage(&setup)) return;
    uint64_t text = e2e_stream(71, 5000, 0), other = e2e_stream(72, 5000, 0);
    kvd_continuation c = retained(text, 700);
    KVT_EQ(demote(c, false).pages[0], 11);
    KVT_EQ(reproduce(text, 700), 11);
    (void)retained(other, 130); /* forked, its tail copied column by column */
    KVT_EQ(reproduce(other, 100 + 30), 0);
    KVT_NEED(restart(SIGKILL));
    KVT_EQ(reproduce(text, 700), 11);
    KVT_NEED(restart(SIGTERM));
    KVT_EQ(reproduce(text, 700), 11);
    scene_audit(scheduler);
    disconnect_all();
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGTERM), 0);
    setup.more = GROUPS("136") ARENA;
    KVT_NEED(e2e_daemon_configure(&daemon_, &setup) && e2e_daemon_restart(&daemon_) && connect_all());
    KVT_EQ(scene_stats(scheduler).continuations, 0); /* KEEP-1 */
    close_stage();
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(page_7_demoted_and_brought_back),
                                             KVT_CASE(page_7_both_tiers_and_back),
                                             KVT_CASE(page_7_shared_prefix_in_both_tiers),
                                             KVT_CASE(act_8_victims_are_demoted),
                                             KVT_CASE(host_7_no_arena),
                                             KVT_CASE(host_1_start_refuses),
                                             KVT_CASE(host_4_arena_full),
                                             KVT_CASE(evicted_between_lookup_and_activation),
                                             KVT_CASE(damage_is_told_never_served),
                                             KVT_CASE(damage_beside_a_device_copy),
                                             KVT_CASE(scrub_finds_damage),
                                             KVT_CASE(cont_3_orderly_stop),
                                             KVT_CASE(cont_3_killed),
                                             KVT_CASE(orderly_stop_keeps_the_valuable),
                                             KVT_CASE(keep_2_orderly_stop_into_a_full_arena),
                                             KVT_CASE(keep_1_other_limits_and_sizes),
                                             KVT_CASE(orderly_stop_does_not_wait_for_ever),
                                             KVT_CASE(device_lost_during_the_stop),
                                             KVT_CASE(foreign_geometry_is_emptied),
                                             KVT_CASE(host_2_every_profile),
                                             KVT_CASE(host_3_two_pools),
                                             KVT_CASE(grp_1_groups_of_every_format),
                                             KVT_CASE(grp_1_every_model),
                                             KVT_CASE(cont_1_state_images),
                                             KVT_CASE(damaged_state_image),
                                             KVT_CASE(srv_5_death_in_the_middle),
                                             { 0 } };
    return kvt_main("e2e host", cases, argc, argv);
}
