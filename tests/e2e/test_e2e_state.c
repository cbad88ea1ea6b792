/* SPDX-License-Identifier: Apache-2.0
 * State images over separate processes: who writes a slot, how an image comes to checkpoints, forks and moves, what a
 * death leaves of it. CONT-1, CONT-4, CKPT-1, FIN-1, ACT-3, ACT-8, SRV-5. */
#include <stdlib.h>

#include "scene.h"

static struct e2e_daemon daemon_;
static kvd_client *scheduler;
static struct puppet worker;
static kvd_session_id worker_session;

static bool start_worker(void) {
    if (!puppet_start(&worker)) return false;
    worker_session = puppet_connect(&worker, &daemon_, KVD_ROLE_WORKER, 0);
    return puppet_attach(&worker, 0);
}

static bool open_stage(const struct e2e_setup *setup) {
    if (!e2e_daemon_start(&daemon_, setup)) return false;
    scheduler = e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "scheduler");
    return scheduler && start_worker();
}

static void close_stage(void) {
    puppet_kill(&worker);
    kvd_disconnect(scheduler);
    scheduler = NULL;
    e2e_daemon_free(&daemon_);
}

static bool no_sequences(void *unused) {
    (void)unused;
    return scene_stats(scheduler).sequences == 0;
}

/* ---- steps ------------------------------------------------------------------------------------- */

static enum kvd_status state_do(struct puppet *who, struct puppet_call call) {
    struct puppet_answer answer;
    if (!KVT_TRUE(puppet_do(who, &call, &answer))) return KVD_UNKNOWN;
    if (answer.status == KVD_DATA_LOSS) printf("    %s\n", answer.message);
    return answer.status;
}

static enum kvd_status state_write(uint32_t slot, uint64_t seed, uint32_t frontier) {
    struct puppet_call call = { .op = PUPPET_STATE_WRITE, .row = slot, .seed = seed, .n = frontier };
    return state_do(&worker, call);
}

static enum kvd_status state_check(uint32_t slot, uint64_t seed, uint32_t frontier) {
    struct puppet_call call = { .op = PUPPET_STATE_CHECK, .row = slot, .seed = seed, .n = frontier };
    return state_do(&worker, call);
}

static enum kvd_status state_copy(uint32_t from, uint32_t to) {
    return state_do(&worker, (struct puppet_call){ .op = PUPPET_STATE_COPY, .from = from, .to = to });
}

static uint32_t state_round(kvd_sequence sequence, uint32_t commit, uint32_t ensure, uint32_t state_frontier) {
    struct puppet_call call = { .op = PUPPET_ROUND, .n = 1 };
    struct puppet_answer answer;
    call.items[0] = scene_item(sequence);
    call.items[0].pool[0].commit = commit;
    call.items[0].pool[0].ensure = ensure;
    call.items[0].state_frontier = state_frontier;
    if (!KVT_TRUE(puppet_do(&worker, &call, &answer)) || !KVT_EQ(answer.status, KVD_OK)) return KVD_UNKNOWN;
    return answer.results[0].status;
}

/* A running sequence of n tokens, written, committed and named, its image in its slot and reported. */
static struct kvd_activated run(uint64_t seed, uint32_t n, uint32_t output) {
    struct kvd_activated a = scene_run(scheduler, &worker, worker_session, seed, n, output);
    KVT_EQ(a.source_state_slot, KVD_NONE);
    KVT_EQ(state_write(a.state_slot, seed, n), KVD_OK);
    KVT_EQ(state_round(a.sequence, KVD_UNCHANGED, KVD_UNCHANGED, n), KVD_OK);
    return a;
}

static enum kvd_status checkpoint(kvd_sequence sequence, uint64_t seed, uint32_t n, kvd_continuation *ret_made,
                                  struct kvd_error *error) {
    struct kvd_checkpoint what = { .sequence = sequence };
    struct kvd_checkpointed made = { .frontier = 0 };
    e2e_tail(seed, n, &what.tail);
    enum kvd_status status = kvd_checkpoint(scheduler, &what, &made, error);
    if (status == KVD_OK) *ret_made = made.continuation;
    return status;
}

static struct kvd_activation fork_of(kvd_continuation from, uint32_t frontier, uint32_t prompt) {
    struct kvd_activation want = scene_want(worker_session, prompt, 50);
    want.from = from, want.frontier = frontier, want.keep = true;
    return want;
}

static void release_everything(void) {
    uint32_t cursor = 0, n = 0;
    struct kvd_continuation_info left[KVD_MAX_LIST];
    KVT_EQ(kvd_list_continuations(scheduler, NULL, &cursor, left, KVD_MAX_LIST, &n, NULL), KVD_OK);
    for (uint32_t i = 0; i < n; i++) KVT_EQ(kvd_release(scheduler, left[i].continuation, NULL), KVD_OK);
}

static void finish(kvd_sequence sequence) {
    struct kvd_finish how = { .sequence = sequence };
    struct kvd_finished finished;
    KVT_EQ(kvd_finish(scheduler, &how, &finished, NULL), KVD_OK);
}

/* ---- scenes -------------------------------------------------------------------------------------- */

/* CKPT-1, CONT-1, CONT-4: the image that a checkpoint kept is bit for bit the one that was reported, though the
 * sequence goes on and writes over its slot at once; a fork of it starts from that image, and goes its own way. No slot
 * bleeds into its neighbour, whatever the image's size. The last size is copied by a thread of the device: the
 * checkpoint is answered when the copy is there. */
static void ckpt_1_image_of_a_checkpoint(void) {
    static const char *const sizes[] = { "200", "1000", "99999", "600001" };
    for (unsigned i = 0; i < 4; i++) {
        char more[64];
        struct e2e_setup setup = { .more = more };
        snprintf(more, sizeof more, "[capacity]\nstate_bytes = %s", sizes[i]);
        if (!open_stage(&setup)) return;
        struct kvd_stats before = scene_stats(scheduler);
        uint64_t text = e2e_stream(10 + i, 5000, 0), branch = e2e_stream(10 + i, 300, 3);
        uint64_t other = e2e_stream(90, 5000, 0);
        struct kvd_error error = { .message = "" };
        kvd_continuation point = { 0 };
        struct kvd_activated n = run(other, 70, 50), a = run(text, 300, 200);
        KVT_EQ(scene_stats(scheduler).state_slots_used, 2);
        if (!KVT_EQ(checkpoint(a.sequence, text, 300, &point, &error), KVD_OK)) printf("    %s\n", error.message);
        KVT_EQ(scene_stats(scheduler).state_slots_used, 3);
        KVT_EQ(state_round(a.sequence, KVD_UNCHANGED, 400, 0), KVD_OK); /* about to write over it */
        KVT_EQ(state_write(a.state_slot, text, 400), KVD_OK);
        scene_write(&worker, a.pool[0].row, text, 300, 400);
        KVT_EQ(state_round(a.sequence, 400, KVD_UNCHANGED, 400), KVD_OK);

        struct kvd_hit hit = scene_find(scheduler, branch, 350);
        KVT_EQ(hit.continuation.bits, point.bits);
        KVT_EQ(hit.usable, 300);
        struct kvd_activation want = fork_of(point, 300, 350);
        struct kvd_activated b = scene_activate(scheduler, &want);
        KVT_FALSE(b.source_state_slot == a.state_slot || b.source_state_slot == b.state_slot);
        KVT_FALSE(b.state_slot == a.state_slot || b.state_slot == n.state_slot);
        KVT_EQ(state_check(b.source_state_slot, text, 300), KVD_OK);
        KVT_EQ(state_copy(b.source_state_slot, b.state_slot), KVD_OK);
        KVT_EQ(state_check(b.state_slot, text, 300), KVD_OK);
        KVT_EQ(state_write(b.state_slot, branch, 350), KVD_OK);
        scene_write(&worker, b.pool[0].row, branch, 300, 350);
        KVT_EQ(state_round(b.sequence, 350, KVD_UNCHANGED, 350), KVD_OK);

        KVT_EQ(state_check(b.source_state_slot, text, 300), KVD_OK); /* others fork from it yet */
        KVT_EQ(state_check(a.state_slot, text, 400), KVD_OK);
        KVT_EQ(state_check(n.state_slot, other, 70), KVD_OK);
        KVT_EQ(state_check(b.state_slot, branch, 350), KVD_OK);
        scene_check(&worker, b.pool[0].row, branch, 0, 350);
        scene_audit(scheduler);
        finish(a.sequence), finish(b.sequence), finish(n.sequence);
        release_everything();
        struct kvd_stats after = scene_stats(scheduler);
        KVT_EQ(after.state_slots_used, 0);
        KVT_TRUE(e2e_same_resources(&before, &after));
        close_stage();
    }
}

/* POOL-2 for images: each rank has its own in the slot of one number, and a checkpoint copies all. */
static void ckpt_1_every_rank_has_its_image(void) {
    struct e2e_setup setup = { .ranks = 2, .more = "[capacity]\nstate_bytes = 5000" };
    struct puppet rank1;
    if (!open_stage(&setup) || !puppet_start(&rank1)) return;
    kvd_session_id second = puppet_connect(&rank1, &daemon_, KVD_ROLE_WORKER, 1);
    KVT_NEED(puppet_attach(&rank1, 1));
    struct kvd_group group = { .n = 2, .members = { worker_session, second } };
    kvd_group_id id;
    KVT_EQ(kvd_open_group(scheduler, &group, &id, NULL), KVD_OK);
    uint64_t text = e2e_stream(20, 5000, 0);
    struct kvd_activation want = {
        .root = e2e_root(), .group = id, .prompt_tokens = 128, .max_output_tokens = 10, .ensure = { 128 }
    };
    struct kvd_activated a = scene_activate(scheduler, &want);
    struct puppet_call other = { .op = PUPPET_STATE_WRITE, .rank = 1, .row = a.state_slot, .seed = text, .n = 128 };
    KVT_EQ(state_write(a.state_slot, text, 128), KVD_OK);
    KVT_EQ(state_do(&rank1, other), KVD_OK);
    KVT_EQ(state_round(a.sequence, 128, KVD_UNCHANGED, 128), KVD_OK);
    scene_name(scheduler, a.sequence, text, 128);
    kvd_continuation point = { 0 };
    KVT_EQ(checkpoint(a.sequence, text, 128, &point, NULL), KVD_OK);
    want.from = point, want.frontier = 128, want.keep = true;
    struct kvd_activated b = scene_activate(scheduler, &want);
    other.op = PUPPET_STATE_CHECK, other.row = b.source_state_slot;
    KVT_EQ(state_check(b.source_state_slot, text, 128), KVD_OK);
    KVT_EQ(state_do(&rank1, other), KVD_OK);
    other.rank = 0; /* the images do differ */
    KVT_EQ(state_do(&rank1, other), KVD_DATA_LOSS);
    puppet_kill(&rank1);
    close_stage();
}

/* FIN-1, ACT-3: finish hands the slot to the continuation, a move hands it to the next turn: no copy, no second slot.
 */
static void fin_1_and_act_3_hand_the_slot_over(void) {
    struct e2e_setup setup = { .more = "[capacity]\nstate_bytes = 3000" };
    if (!open_stage(&setup)) return;
    uint64_t talk = e2e_stream(30, 5000, 0);
    struct kvd_activated a = run(talk, 200, 10);
    KVT_EQ(scene_stats(scheduler).state_slots_used, 1);
    kvd_continuation turn = scene_retain(scheduler, a.sequence, talk, 200);
    KVT_EQ(scene_stats(scheduler).state_slots_used, 1);
    struct kvd_activated other = run(e2e_stream(31, 5000, 0), 64, 10); /* takes another one */
    KVT_FALSE(other.state_slot == a.state_slot);

    struct kvd_activation want = scene_want(worker_session, 300, 10);
    want.from = turn, want.frontier = 200;
    struct kvd_plan plan;
    KVT_EQ(kvd_plan_activation(scheduler, &want, &plan, NULL), KVD_OK);
    KVT_EQ(plan.state_slots.needed, 0);
    struct kvd_activated b = scene_activate(scheduler, &want);
    KVT_EQ(b.state_slot, a.state_slot);
    KVT_EQ(b.source_state_slot, KVD_NONE);
    KVT_EQ(state_check(b.state_slot, talk, 200), KVD_OK);
    KVT_EQ(scene_stats(scheduler).state_slots_used, 2);
    kvd_continuation point = { 0 }; /* complete as it stands: the image came with it */
    KVT_EQ(checkpoint(b.sequence, talk, 200, &point, NULL), KVD_OK);
    KVT_EQ(state_round(b.sequence, KVD_UNCHANGED, KVD_UNCHANGED, 0), KVD_OK);
    KVT_EQ(state_write(b.state_slot, talk, 300), KVD_OK);
    scene_write(&worker, b.pool[0].row, talk, 200, 300);
    KVT_EQ(state_round(b.sequence, 300, KVD_UNCHANGED, 300), KVD_OK);
    scene_name(scheduler, b.sequence, talk, 300);
    turn = scene_retain(scheduler, b.sequence, talk, 300);
    want = fork_of(turn, 300, 310);
    struct kvd_activated c = scene_activate(scheduler, &want);
    KVT_EQ(c.source_state_slot, a.state_slot);
    KVT_EQ(state_check(c.source_state_slot, talk, 300), KVD_OK);
    want = fork_of(point, 200, 310);
    struct kvd_activated d = scene_activate(scheduler, &want);
    KVT_EQ(state_check(d.source_state_slot, talk, 200), KVD_OK);
    finish(c.sequence), finish(d.sequence), finish(other.sequence);
    release_everything();
    KVT_EQ(scene_stats(scheduler).state_slots_used, 0);
    scene_audit(scheduler);
    close_stage();
}

/* CONT-4, CONT-1: a frontier without an image is no start; a sequence without an image at its frontier is not
 * published. Nothing changes. */
static void cont_4_only_where_an_image_is(void) {
    struct e2e_setup setup = { .more = "[capacity]\nstate_bytes = 1000" };
    if (!open_stage(&setup)) return;
    uint64_t text = e2e_stream(40, 5000, 0);
    struct kvd_error error = { .message = "" };
    struct kvd_activated a = scene_run(scheduler, &worker, worker_session, text, 300, 100);
    struct kvd_stats before = scene_stats(scheduler), after;
    struct kvd_finish how = { .sequence = a.sequence, .retain = true };
    struct kvd_finished finished;
    kvd_continuation point = { 0 };
    e2e_tail(text, 300, &how.tail);
    KVT_EQ(checkpoint(a.sequence, text, 300, &point, &error), KVD_FAILED_PRECONDITION); /* no image yet */
    KVT_HAS(error.message, "state image");
    KVT_EQ(kvd_finish(scheduler, &how, &finished, &error), KVD_FAILED_PRECONDITION);
    KVT_EQ(state_write(a.state_slot, text, 256), KVD_OK);
    KVT_EQ(state_round(a.sequence, KVD_UNCHANGED, KVD_UNCHANGED, 256), KVD_OK); /* an image, but of another frontier */
    KVT_EQ(checkpoint(a.sequence, text, 300, &point, &error), KVD_FAILED_PRECONDITION);
    KVT_EQ(kvd_finish(scheduler, &how, &finished, &error), KVD_FAILED_PRECONDITION);
    KVT_EQ(state_round(a.sequence, KVD_UNCHANGED, KVD_UNCHANGED, 3000), KVD_OUT_OF_RANGE); /* past what is mapped */
    after = scene_stats(scheduler);
    KVT_TRUE(e2e_same_resources(&before, &after));

    KVT_EQ(state_write(a.state_slot, text, 300), KVD_OK);
    KVT_EQ(state_round(a.sequence, KVD_UNCHANGED, KVD_UNCHANGED, 300), KVD_OK);
    KVT_EQ(kvd_finish(scheduler, &how, &finished, &error), KVD_OK);
    before = scene_stats(scheduler);
    static const uint32_t frontiers[] = { 1, 64, 256, 299 };
    for (unsigned i = 0; i < 4; i++) {
        struct kvd_activation want = fork_of(finished.continuation, frontiers[i], 350);
        struct kvd_activated b;
        struct kvd_plan plan;
        KVT_EQ(kvd_activate(scheduler, &want, &b, &error), KVD_OUT_OF_RANGE);
        KVT_HAS(error.message, "state frontier");
        KVT_EQ(kvd_plan_activation(scheduler, &want, &plan, NULL), KVD_OUT_OF_RANGE);
        want.keep = false; /* nor a move */
        KVT_EQ(kvd_activate(scheduler, &want, &b, &error), KVD_OUT_OF_RANGE);
    }
    /* Shares 280 tokens: pages, but no hit (INV-16). */
    KVT_EQ(scene_find(scheduler, e2e_stream(40, 280, 1), 350).usable, 0);
    KVT_EQ(scene_find(scheduler, text, 280).usable, 0);
    KVT_EQ(scene_find(scheduler, text, 301).usable, 300);
    after = scene_stats(scheduler);
    KVT_TRUE(e2e_same_resources(&before, &after));
    scene_audit(scheduler);
    close_stage();
}

/* SRV-5: what a killed worker leaves: with the image at the committed frontier a continuation; without, nothing; and
 * nothing where it had said that it writes over the image. */
static void srv_5_death_and_the_image(void) {
    struct e2e_setup setup = { .more = "[capacity]\nstate_bytes = 100000" };
    if (!open_stage(&setup)) return;
    for (uint32_t how = 0; how < 4; how++) {
        uint64_t text = e2e_stream(50 + how, 5000, 0);
        struct kvd_activated a = { 0 };
        if (how == 0) a = scene_run(scheduler, &worker, worker_session, text, 320, 100); /* no image at all */
        else a = run(text, 320, 100);
        if (how == 2) { /* outdated: committed beyond the image */
            KVT_EQ(state_round(a.sequence, KVD_UNCHANGED, 330, KVD_UNCHANGED), KVD_OK);
            KVT_EQ(state_round(a.sequence, 330, KVD_UNCHANGED, KVD_UNCHANGED), KVD_OK);
        }
        if (how == 3) { /* half an image */
            KVT_EQ(state_round(a.sequence, KVD_UNCHANGED, 330, 0), KVD_OK);
            KVT_EQ(state_write(a.state_slot, text, 330), KVD_OK);
        }
        KVT_EQ(scene_stats(scheduler).state_slots_used, 1);
        puppet_kill(&worker);
        KVT_TRUE(e2e_until(no_sequences, NULL, 60, NULL));
        KVT_EQ(scene_stats(scheduler).state_slots_used, how == 1);
        KVT_EQ(scene_stats(scheduler).continuations, how == 1);
        KVT_NEED(start_worker());
        struct kvd_hit hit = scene_find(scheduler, text, 400);
        KVT_EQ(hit.usable, how == 1 ? 320 : 0);
        if (hit.usable) {
            struct kvd_activation want = fork_of(hit.continuation, 320, 400);
            struct kvd_activated b = scene_activate(scheduler, &want);
            KVT_EQ(b.source_state_slot, a.state_slot);
            KVT_EQ(state_check(b.source_state_slot, text, 320), KVD_OK);
            scene_check(&worker, b.pool[0].row, text, 0, 320);
            finish(b.sequence);
        }
        scene_audit(scheduler);
        release_everything();
        KVT_EQ(scene_stats(scheduler).state_slots_used, 0);
    }
    close_stage();
}

/* ACT-2, ACT-5: a fork's worker that dies before its first commit has kept nobody's slot; the source is as it was, and
 * can be moved again. */
static void srv_5_death_of_a_fork(void) {
    struct e2e_setup setup = { .more = "[capacity]\nstate_bytes = 1000" };
    if (!open_stage(&setup)) return;
    uint64_t text = e2e_stream(60, 5000, 0);
    kvd_continuation source = scene_retain(scheduler, run(text, 130, 10).sequence, text, 130);
    struct kvd_stats before = scene_stats(scheduler);
    struct kvd_activation want = fork_of(source, 130, 200);
    struct kvd_activated b = scene_activate(scheduler, &want), c;
    struct kvd_error error;
    KVT_EQ(state_copy(b.source_state_slot, b.state_slot), KVD_OK);
    KVT_EQ(state_write(b.state_slot, e2e_stream(60, 130, 2), 150), KVD_OK);
    want.keep = false;
    /* The fork may still be reading the slot. */
    KVT_EQ(kvd_activate(scheduler, &want, &c, &error), KVD_ABORTED);
    puppet_kill(&worker);
    KVT_TRUE(e2e_until(no_sequences, NULL, 60, NULL));
    struct kvd_stats after = scene_stats(scheduler);
    KVT_TRUE(e2e_same_resources(&before, &after));
    KVT_NEED(start_worker());
    want.worker = worker_session;
    c = scene_activate(scheduler, &want);
    KVT_EQ(state_check(c.state_slot, text, 130), KVD_OK);
    finish(c.sequence);
    KVT_EQ(scene_stats(scheduler).state_slots_used, 0);
    scene_audit(scheduler);
    close_stage();
}

/* ACT-8: slots run out exactly: a source that went stays readable for its fork until the first commit, and its slot is
 * nobody else's; a victim's slot changes hands with the activation. */
static void act_8_slots_run_out(void) {
    struct e2e_setup setup = { .max_concurrency = 2,
                               .capacity_tokens = 8192,
                               .more = "[capacity]\nstate_bytes = 1000\nstate_slots = 2" };
    if (!open_stage(&setup)) return;
    uint64_t text = e2e_stream(70, 5000, 0), next = e2e_stream(71, 5000, 0);
    struct kvd_error error = { .message = "" };
    kvd_continuation source = scene_retain(scheduler, run(text, 130, 10).sequence, text, 130), point = { 0 },
                     again = { 0 };
    struct kvd_activation want = fork_of(source, 130, 140), root = scene_want(worker_session, 64, 10);
    struct kvd_activated b = scene_activate(scheduler, &want), c = { 0 };
    struct kvd_plan plan;
    KVT_EQ(kvd_release(scheduler, source, NULL), KVD_OK);
    KVT_EQ(scene_stats(scheduler).continuations, 0);
    KVT_EQ(scene_stats(scheduler).state_slots_used, 2); /* b still has to read the other */
    KVT_EQ(kvd_plan_activation(scheduler, &root, &plan, NULL), KVD_OK);
    KVT_EQ(plan.feasibility, KVD_BLOCKED);
    KVT_EQ(plan.state_slots.short_by, 1);
    KVT_EQ(kvd_activate(scheduler, &root, &c, &error), KVD_RESOURCE_EXHAUSTED);
    KVT_HAS(error.message, "state slot");
    KVT_EQ(state_check(b.source_state_slot, text, 130), KVD_OK);
    KVT_EQ(state_copy(b.source_state_slot, b.state_slot), KVD_OK);
    /* The image is its own now, at the frontier where it began. */
    KVT_EQ(state_round(b.sequence, 130, KVD_UNCHANGED, 130), KVD_OK);
    KVT_EQ(scene_stats(scheduler).state_slots_used, 1);
    KVT_EQ(checkpoint(b.sequence, text, 130, &point, &error), KVD_OK);
    KVT_EQ(checkpoint(b.sequence, text, 130, &again, &error), KVD_OK); /* FIT-5: it is there already */
    KVT_EQ(again.bits, point.bits);
    KVT_EQ(kvd_activate(scheduler, &root, &c, NULL), KVD_RESOURCE_EXHAUSTED);
    root.n_victims = 1, root.victims = &(struct kvd_victim){ point, false, 0 };
    KVT_EQ(kvd_activate(scheduler, &root, &c, &error), KVD_OK);
    KVT_FALSE(c.state_slot == b.state_slot);
    KVT_EQ(c.source_state_slot, KVD_NONE);
    KVT_EQ(state_write(c.state_slot, next, 64), KVD_OK);
    KVT_EQ(state_check(b.state_slot, text, 130), KVD_OK);
    KVT_EQ(state_check(c.state_slot, next, 64), KVD_OK);
    KVT_EQ(state_check(2, text, 130), KVD_OUT_OF_RANGE); /* there are two */
    scene_audit(scheduler);
    finish(b.sequence), finish(c.sequence);
    KVT_EQ(scene_stats(scheduler).state_slots_used, 0);
    close_stage();
}

/* Without state_bytes nothing of all this is there, and a state frontier is refused. */
static void stores_without_state(void) {
    if (!open_stage(NULL)) return;
    struct kvd_activated a = scene_run(scheduler, &worker, worker_session, e2e_stream(80, 5000, 0), 100, 10);
    KVT_EQ(a.state_slot, KVD_NONE);
    KVT_EQ(a.source_state_slot, KVD_NONE);
    KVT_EQ(state_write(0, 1, 1), KVD_FAILED_PRECONDITION);
    KVT_EQ(state_round(a.sequence, KVD_UNCHANGED, KVD_UNCHANGED, 100), KVD_INVALID_ARGUMENT);
    close_stage();
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(ckpt_1_image_of_a_checkpoint),
                                             KVT_CASE(ckpt_1_every_rank_has_its_image),
                                             KVT_CASE(fin_1_and_act_3_hand_the_slot_over),
                                             KVT_CASE(cont_4_only_where_an_image_is),
                                             KVT_CASE(srv_5_death_and_the_image),
                                             KVT_CASE(srv_5_death_of_a_fork),
                                             KVT_CASE(act_8_slots_run_out),
                                             KVT_CASE(stores_without_state),
                                             { 0 } };
    return kvt_main("e2e state", cases, argc, argv);
}
