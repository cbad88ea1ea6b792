/* SPDX-License-Identifier: Apache-2.0
 *
 * libkvd against a scripted kvd: deadlines, lost connections, repeats, epochs, tickets, events, forks.
 */
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "client.h"
#include "kvt.h"
#include "scripted.h"

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* A script that acts once in a given way, at the n-th numbered request, and answers plainly otherwise. Activate gives a
 * new sequence each time it runs. */
struct once {
    enum script_act act;
    atomic_uint at, seen, queries_too;
    atomic_uint runs;
    uint32_t status;
};

static enum script_act once_fn(void *user, const struct msg_request *request, struct msg_reply *reply) {
    struct once *how = user;
    unsigned n = request->header.sequence || how->queries_too ? atomic_fetch_add(&how->seen, 1) + 1 : 0;
    enum script_act act = n && n == how->at ? how->act : SCRIPT_ANSWER;
    if (act == SCRIPT_DROP_UNRUN || act == SCRIPT_LOSE) return act;
    if (how->status && n == how->at) reply->status = how->status;
    if (request->type == FRAME_ACTIVATE) {
        reply->u.activated.sequence.bits = 0x500000000u + atomic_fetch_add(&how->runs, 1) + 1;
        reply->u.activated.n_pools = 1;
    } else if (request->type == FRAME_DEMOTE || request->type == FRAME_PREFETCH || request->type == FRAME_DROP) {
        reply->u.moved = (struct kvd_moved){ request->header.sequence, { 3, 1 }, 4 * 16384 };
    } else if (request->type == FRAME_YIELD) {
        reply->u.yielded = (uint32_t)request->header.sequence;
    }
    return act;
}

/* ---- the scene: one script, one client, and what the last call said ----------------------------------- */

static struct script *s;
static kvd_client *c;
static struct once once;
static const struct kvd_activation want = { .prompt_tokens = 100, .max_output_tokens = 10 };
static struct kvd_activated got;
static struct kvd_moved moved;
static struct kvd_stats stats;
static struct kvd_event event;
static struct kvd_error error;

/* A scheduler connects to a script. */
/* timeout_ms: of the calls; connecting has a minute. */
static bool begin_scene(script_fn *fn, void *user, uint32_t timeout_ms) {
    s = script_start(fn, user);
    struct kvd_connect_options o = { .struct_size = sizeof o,
                                     .socket = script_path(s),
                                     .role = KVD_ROLE_SCHEDULER,
                                     .name = "test",
                                     .timeout_ms = 60000 };
    error = (struct kvd_error){ 0 };
    got = (struct kvd_activated){ 0 };
    moved = (struct kvd_moved){ 0 };
    c = NULL;
    if (kvd_connect(&o, &c, &error) != KVD_OK) printf("connect: %s\n", error.message);
    if (c) kvd_client_set_timeout(c, timeout_ms);
    return c != NULL;
}

/* The script acts once; further arguments are members of struct once. */
#define BEGIN_AS(fn, timeout_ms, ...) (once = (struct once){ __VA_ARGS__ }, begin_scene(fn, &once, timeout_ms))
#define BEGIN_ONCE(timeout_ms, ...) BEGIN_AS(once_fn, timeout_ms, __VA_ARGS__)

/* SRV-1: whatever happened, no number was skipped or given to two requests. */
static void end_scene(void) {
    kvd_disconnect(c);
    KVT_EQ(script_bad_numbers(s), 0);
    script_stop(s);
}

static enum kvd_status activate(void) { return kvd_activate(c, &want, &got, &error); }
static enum kvd_status ask_stats(void) { return kvd_stats(c, &stats, &error); }
static enum kvd_status reconnect(void) { return kvd_client_reconnect(c, &error); }
static enum kvd_status next_event(uint32_t timeout_ms) { return kvd_next_event(c, timeout_ms, &event, &error); }
static enum kvd_status demote(uint64_t bits) {
    return kvd_demote(c, (kvd_continuation){ bits }, false, &moved, &error);
}

static bool readable(int timeout_ms) {
    struct pollfd p = { .fd = kvd_client_fd(c), .events = POLLIN };
    return poll(&p, 1, timeout_ms) == 1;
}

static void hello_gives_session_and_epoch(void) {
    KVT_NEED(begin_scene(NULL, NULL, 2000));
    KVT_EQ(kvd_client_session(c).bits, 0x100000001u);
    KVT_EQ(kvd_client_epoch(c), 4711);
    KVT_EQ_STR(kvd_version(), "0.1.0");
    kvd_disconnect(c);
    KVT_EQ(script_requests(s), 1); /* Goodbye */
    script_stop(s);
}

static void connect_refusals_say_why(void) {
    struct kvd_connect_options o = {
        .struct_size = sizeof o, .socket = "/nonexistent/kvd.sock", .role = KVD_ROLE_OBSERVER, .timeout_ms = 500
    };
    c = NULL;
    KVT_EQ(kvd_connect(&o, &c, &error), KVD_UNAVAILABLE);
    KVT_HAS(error.message, "/nonexistent/kvd.sock");
    KVT_HAS(error.message, "no such socket");
    o.struct_size = 8;
    KVT_EQ(kvd_connect(&o, &c, &error), KVD_INVALID_ARGUMENT);
    KVT_HAS(error.message, "struct_size");
    o.struct_size = sizeof o;
    o.role = (enum kvd_role)9;
    KVT_EQ(kvd_connect(&o, &c, &error), KVD_INVALID_ARGUMENT);
    KVT_TRUE(c == NULL);

    s = script_start(NULL, NULL);
    script_refuse_hello(s, KVD_PERMISSION_DENIED);
    o = (struct kvd_connect_options){ .struct_size = sizeof o, .socket = script_path(s), .role = KVD_ROLE_ADMIN };
    KVT_EQ(kvd_connect(&o, &c, &error), KVD_PERMISSION_DENIED);
    KVT_HAS(error.message, "scripted refusal");
    script_stop(s);
}

static void query_deadline_is_kept(void) {
    KVT_NEED(BEGIN_ONCE(100, .act = SCRIPT_HOLD, .at = 1, .queries_too = 1));
    double from = now_ms();
    KVT_EQ(ask_stats(), KVD_DEADLINE_EXCEEDED);
    double took = now_ms() - from;
    KVT_TRUE(took >= 99 && took < 20000);
    kvd_client_set_timeout(c, 60000);
    script_let_go(s); /* the late answer belongs to nobody */
    KVT_EQ(ask_stats(), KVD_OK);
    end_scene();
}

/* SRV-1: executed, the answer lost with the connection: the library asks again under the same number. */
static void srv_1_lost_answer_is_fetched_once(void) {
    KVT_NEED(BEGIN_ONCE(5000, .act = SCRIPT_DROP, .at = 1));
    KVT_EQ(activate(), KVD_OK);
    KVT_EQ_STR(error.message, "");
    KVT_EQ(got.sequence.bits, 0x500000001u);
    KVT_EQ(once.runs, 1);
    KVT_EQ(script_executed(s), 1);
    KVT_EQ(script_repeats(s), 1);
    KVT_EQ(script_hellos(s), 2);
    KVT_EQ(activate(), KVD_OK); /* a new one: the first was settled */
    KVT_EQ(got.sequence.bits, 0x500000002u);
    end_scene();
}

static void srv_1_lost_request_runs_once(void) {
    KVT_NEED(BEGIN_ONCE(5000, .act = SCRIPT_DROP_UNRUN, .at = 2));
    KVT_EQ(activate(), KVD_OK);
    KVT_EQ(activate(), KVD_OK);
    KVT_EQ(got.sequence.bits, 0x500000002u);
    KVT_EQ(script_executed(s), 2);
    KVT_EQ(script_repeats(s), 0);
    end_scene();
}

/* Every answer is refused by hanging up. */
static enum script_act always_drop(void *user, const struct msg_request *request, struct msg_reply *reply) {
    (void)reply;
    if (!request->header.sequence || atomic_load(&once.at) == 0) return once_fn(user, request, reply);
    return SCRIPT_DROP_UNRUN;
}

static void one_retry_only_then_unavailable(void) {
    KVT_NEED(BEGIN_AS(always_drop, 5000, .act = SCRIPT_ANSWER, .at = 1));
    KVT_EQ(activate(), KVD_UNAVAILABLE);
    KVT_EQ(script_hellos(s), 2);
    KVT_EQ(ask_stats(), KVD_UNAVAILABLE);
    KVT_HAS(error.message, "kvd_client_reconnect");
    KVT_TRUE(readable(0));
    atomic_store(&once.at, 0);
    KVT_EQ(reconnect(), KVD_OK);
    KVT_FALSE(readable(0));
    KVT_EQ(script_executed(s), 0); /* nobody waited for it and it never ran: it was dropped, its number is free */
    KVT_EQ(activate(), KVD_OK);
    KVT_EQ(script_executed(s), 1);
    end_scene();
}

static enum script_act hold_fn(void *user, const struct msg_request *request, struct msg_reply *reply) {
    atomic_int *holds = user;
    (void)request, (void)reply;
    return atomic_load(holds) ? SCRIPT_HOLD : SCRIPT_ANSWER;
}

/* An answer that nobody waits for any longer still says that its request has left the connection: what comes after it
 * is sent without a deadline's cost as before. */
static void late_answers_make_room(void) {
    atomic_int holds = 1;
    KVT_NEED(begin_scene(hold_fn, &holds, 30));
    for (uint32_t i = 0; i < 3; i++) KVT_EQ(ask_stats(), KVD_DEADLINE_EXCEEDED);
    KVT_TRUE(script_wait_requests(s, 3));
    atomic_store(&holds, 0);
    kvd_client_set_timeout(c, 5000);
    script_let_go(s);
    KVT_EQ(ask_stats(), KVD_OK); /* its answer comes behind the late ones */
    pthread_mutex_lock(&c->lock);
    KVT_EQ(c->stray_frames, 3);
    KVT_EQ(c->room_frames, 0);
    KVT_EQ(c->room_bytes, 0);
    pthread_mutex_unlock(&c->lock);
    end_scene();
}

/* The same call after a deadline is the same request: one execution, its first answer. */
static void srv_1_repeat_after_deadline_gets_first_answer(void) {
    struct kvd_activation other = want;
    KVT_NEED(BEGIN_ONCE(100, .act = SCRIPT_HOLD, .at = 1));
    KVT_EQ(activate(), KVD_DEADLINE_EXCEEDED);
    KVT_HAS(error.message, "repeat the same call");
    kvd_client_set_timeout(c, 5000);
    other.prompt_tokens = 101;
    KVT_EQ(kvd_activate(c, &other, &got, &error), KVD_OK);
    KVT_EQ(got.sequence.bits, 0x500000002u);
    script_let_go(s);
    KVT_EQ(activate(), KVD_OK);
    KVT_EQ(got.sequence.bits, 0x500000001u);
    KVT_EQ(script_executed(s), 2);
    KVT_EQ(activate(), KVD_OK);
    KVT_EQ(got.sequence.bits, 0x500000003u);
    end_scene();
}

static struct msg_request asked;
static enum script_act cancel_fn(void *user, const struct msg_request *request, struct msg_reply *reply) {
    if (request->type == FRAME_CANCEL) asked = *request;
    return once_fn(user, request, reply);
}

/* ACT-9: what a deadline left goes on, until it is cancelled by its number; then the same call is a new request. */
static void act_9_cancel_of_what_a_deadline_left(void) {
    struct kvd_activation other = want;
    other.prompt_tokens = 101;
    KVT_NEED(BEGIN_AS(cancel_fn, 100, .act = SCRIPT_HOLD, .at = 1));
    KVT_EQ(kvd_cancel(c, &want, &error), KVD_NOT_FOUND);
    KVT_EQ(activate(), KVD_DEADLINE_EXCEEDED);
    kvd_client_set_timeout(c, 5000);
    KVT_EQ(kvd_cancel(c, &other, &error), KVD_NOT_FOUND);
    KVT_EQ(kvd_cancel(c, &want, &error), KVD_OK);
    KVT_EQ(asked.u.cancel.activate, 1);
    KVT_EQ(kvd_cancel(c, &want, &error), KVD_NOT_FOUND); /* once */
    script_let_go(s);
    KVT_EQ(activate(), KVD_OK);
    KVT_EQ(got.sequence.bits, 0x500000002u);
    KVT_EQ(script_executed(s), 3);
    end_scene();
}

/* The same over a reconnect by hand: kvd's kept answer comes. */
static void srv_1_repeat_after_reconnect_gets_first_answer(void) {
    KVT_NEED(BEGIN_ONCE(100, .act = SCRIPT_HOLD, .at = 1));
    KVT_EQ(activate(), KVD_DEADLINE_EXCEEDED);
    kvd_client_set_timeout(c, 5000);
    script_disconnect(s);
    KVT_TRUE(readable(5000));
    KVT_EQ(reconnect(), KVD_OK);
    KVT_EQ(activate(), KVD_OK);
    KVT_EQ(got.sequence.bits, 0x500000001u);
    KVT_EQ(once.runs, 1);
    KVT_EQ(script_repeats(s), 1);
    end_scene();
}

/* kvd's own "too late" proves that nothing ran: the repeat is a new request. */
static void repeat_after_kvd_refused_by_deadline_runs(void) {
    KVT_NEED(BEGIN_ONCE(100, .act = SCRIPT_HOLD, .at = 1, .status = KVD_DEADLINE_EXCEEDED));
    KVT_EQ(activate(), KVD_DEADLINE_EXCEEDED);
    kvd_client_set_timeout(c, 5000);
    script_let_go(s);
    KVT_EQ(ask_stats(), KVD_OK); /* its answer comes behind the late one */
    KVT_EQ(activate(), KVD_OK);
    KVT_EQ(script_executed(s), 2);
    KVT_EQ(script_repeats(s), 0);
    end_scene();
}

/* Lets the held answer go when the main thread has taken the call up again. */
static void *let_go_when_adopted(void *arg) {
    (void)arg;
    for (bool left = true; left; sched_yield()) {
        pthread_mutex_lock(&c->lock);
        left = c->n_left > 0;
        pthread_mutex_unlock(&c->lock);
    }
    script_let_go(s);
    return NULL;
}

/* SRV-1: the same where the repeat waits already when kvd says so: "if it never ran, it runs now". */
static void srv_1_repeat_that_waits_for_a_refusal_by_deadline_runs(void) {
    pthread_t thread;
    KVT_NEED(BEGIN_ONCE(100, .act = SCRIPT_HOLD, .at = 1, .status = KVD_DEADLINE_EXCEEDED));
    KVT_EQ(activate(), KVD_DEADLINE_EXCEEDED);
    kvd_client_set_timeout(c, 20000);
    KVT_OK(pthread_create(&thread, NULL, let_go_when_adopted, NULL));
    KVT_EQ(activate(), KVD_OK);
    KVT_OK(pthread_join(thread, NULL));
    KVT_EQ(got.sequence.bits, 0x500000002u);
    KVT_EQ(script_executed(s), 2);
    end_scene();
}

/* The three of them say what they should, and what came of it. */
struct moves {
    struct msg_request seen[3];
    unsigned n;
};
static enum script_act moves_fn(void *user, const struct msg_request *request, struct msg_reply *reply) {
    struct moves *m = user;
    if (request->header.sequence && m->n < 3) m->seen[m->n++] = *request;
    reply->u.moved = (struct kvd_moved){ 70 + m->n, { m->n, 5 }, 1000 };
    return SCRIPT_ANSWER;
}

static void moves_are_asked_and_answered(void) {
    struct moves m = { .n = 0 };
    KVT_NEED(begin_scene(moves_fn, &m, 5000));
    KVT_EQ(kvd_demote(c, (kvd_continuation){ 41 }, true, &moved, NULL), KVD_OK);
    KVT_EQ(moved.revision, 71);
    KVT_EQ(moved.pages[0], 1);
    KVT_EQ(moved.pages[1], 5);
    KVT_EQ(moved.bytes, 1000);
    KVT_EQ(kvd_prefetch(c, (kvd_continuation){ 42 }, NULL, NULL), KVD_OK);
    KVT_EQ(kvd_drop_replica(c, (kvd_continuation){ 43 }, KVD_TIER_HOST, &moved, NULL), KVD_OK);
    KVT_EQ(moved.revision, 73);
    KVT_EQ(m.seen[0].type, FRAME_DEMOTE);
    KVT_EQ(m.seen[0].u.demote.continuation.bits, 41);
    KVT_TRUE(m.seen[0].u.demote.keep_device);
    KVT_EQ(m.seen[1].type, FRAME_PREFETCH);
    KVT_EQ(m.seen[1].u.prefetch.bits, 42);
    KVT_EQ(m.seen[2].type, FRAME_DROP);
    KVT_EQ(m.seen[2].u.drop.continuation.bits, 43);
    KVT_EQ(m.seen[2].u.drop.tier, KVD_TIER_HOST);
    KVT_EQ(kvd_drop_replica(c, (kvd_continuation){ 43 }, (enum kvd_tier)2, NULL, NULL), KVD_INVALID_ARGUMENT);
    end_scene();
}

/* SRV-1: a demotion that outlasted its caller goes on; the same call waits for it and tells what it copied. */
static void srv_1_repeat_of_a_move_gets_first_answer(void) {
    KVT_NEED(BEGIN_ONCE(100, .act = SCRIPT_HOLD, .at = 1));
    KVT_EQ(demote(7), KVD_DEADLINE_EXCEEDED);
    kvd_client_set_timeout(c, 5000);
    KVT_EQ(demote(8), KVD_OK); /* another one */
    KVT_EQ(moved.revision, 2);
    script_let_go(s);
    KVT_EQ(demote(7), KVD_OK);
    KVT_EQ(moved.revision, 1);
    KVT_EQ(moved.pages[0], 3);
    KVT_EQ(script_executed(s), 2);
    end_scene();
}

/* Moved back, or restored by an activation meanwhile, it must be moved again: the old answer tells of what was. */
static void left_move_goes_stale(void) {
    for (int by_activation = 0; by_activation < 2; by_activation++) {
        KVT_NEED(BEGIN_ONCE(100, .act = SCRIPT_HOLD, .at = 1));
        KVT_EQ(demote(7), KVD_DEADLINE_EXCEEDED);
        kvd_client_set_timeout(c, 5000);
        script_let_go(s);
        KVT_EQ(by_activation ? activate() : kvd_prefetch(c, (kvd_continuation){ 7 }, &moved, NULL), KVD_OK);
        KVT_EQ(demote(7), KVD_OK);
        KVT_EQ(moved.revision, 3);
        KVT_EQ(script_executed(s), 3);
        end_scene();
    }
}

/* A repeat of set_retention or drain is executed: in between another value may have been set. */
static void repeat_of_a_setting_is_executed(void) {
    KVT_NEED(BEGIN_ONCE(100, .act = SCRIPT_HOLD, .at = 1));
    KVT_EQ(kvd_drain(c, true, NULL), KVD_DEADLINE_EXCEEDED);
    kvd_client_set_timeout(c, 5000);
    KVT_EQ(kvd_drain(c, false, NULL), KVD_OK);
    KVT_EQ(kvd_drain(c, true, NULL), KVD_OK);
    KVT_EQ(script_executed(s), 3);
    end_scene();
}

/* A Round left without its answer is not taken for a later Round of the same sequence. */
static void left_round_goes_stale(void) {
    KVT_NEED(BEGIN_ONCE(5000, .act = SCRIPT_LOSE, .at = 0));
    struct kvd_round_item a = { .sequence = { 7 } }, b = a;
    a.pool[0] = (struct kvd_round_pool){ .ask = KVD_ROUND_COMMIT, .commit = 10 };
    b.pool[0] = (struct kvd_round_pool){ .ask = KVD_ROUND_COMMIT, .commit = 20 };
    struct kvd_round_result result;
    once.act = SCRIPT_HOLD;
    once.at = 1;
    kvd_client_set_timeout(c, 100);
    /* The scripted Round has no results: the client says so, once it gets an answer. */
    KVT_EQ(kvd_round(c, &a, 1, &result, NULL), KVD_DEADLINE_EXCEEDED);
    kvd_client_set_timeout(c, 5000);
    KVT_EQ(kvd_round(c, &b, 1, &result, NULL), KVD_INTERNAL);
    KVT_EQ(kvd_round(c, &a, 1, &result, NULL), KVD_INTERNAL);
    KVT_EQ(script_executed(s), 3);
    end_scene();
}

/* SRV-8: another instance is seen by the first call, and by all that follow. */
static void srv_8_epoch_change_aborts(void) {
    KVT_NEED(BEGIN_ONCE(5000, .act = SCRIPT_DROP, .at = 1));
    script_set_epoch(s, 9999);
    KVT_EQ(activate(), KVD_ABORTED);
    KVT_HAS(error.message, "connect and attach anew");
    KVT_EQ(ask_stats(), KVD_ABORTED);
    KVT_EQ(reconnect(), KVD_ABORTED);
    KVT_EQ(next_event(0), KVD_ABORTED);
    KVT_EQ(kvd_client_epoch(c), 4711);
    kvd_disconnect(c); /* not end_scene: the first request was for the old instance, as the script saw */
    script_stop(s);
}

/* SRV-6 from the client's side: a session that kvd no longer gives back is over. */
static void srv_6_refused_resume_aborts(void) {
    KVT_NEED(BEGIN_ONCE(5000, .act = SCRIPT_DROP, .at = 1));
    script_refuse_hello(s, KVD_ABORTED);
    KVT_EQ(activate(), KVD_ABORTED);
    KVT_HAS(error.message, "scripted refusal");
    script_refuse_hello(s, KVD_OK);
    KVT_EQ(activate(), KVD_ABORTED);
    end_scene();
}

static void junk_answers_are_refused(void) {
    struct kvd_audit audit;
    KVT_NEED(BEGIN_ONCE(5000, .act = SCRIPT_JUNK_BODY, .at = 1, .queries_too = 1));
    KVT_EQ(ask_stats(), KVD_INTERNAL);
    KVT_HAS(error.message, "cannot be read");
    once.act = SCRIPT_JUNK_TYPE;
    atomic_store(&once.seen, 0);
    KVT_EQ(kvd_audit(c, &audit, &error), KVD_INTERNAL);
    KVT_HAS(error.message, "another type");
    once.act = SCRIPT_JUNK_LENGTH; /* no way to the next frame: the connection ends, the query is asked again */
    atomic_store(&once.seen, 0);
    KVT_EQ(ask_stats(), KVD_OK);
    KVT_EQ(script_hellos(s), 2);
    end_scene();
}

/* A kvd that does not read: no call outlives its deadline, however full the socket is. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t opened;
    bool open;
};
static enum script_act gated(void *user, const struct msg_request *request, struct msg_reply *reply) {
    struct gate *gate = user;
    (void)request;
    (void)reply;
    pthread_mutex_lock(&gate->lock);
    while (!gate->open) pthread_cond_wait(&gate->opened, &gate->lock);
    pthread_mutex_unlock(&gate->lock);
    return SCRIPT_ANSWER;
}

static void slow_server_holds_nobody_longer(void) {
    struct gate gate = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false };
    kvd_digest *digests = calloc(KVD_MAX_DIGESTS, sizeof *digests);
    uint32_t *tokens = calloc(KVD_MAX_DIGESTS, 64 * sizeof *tokens);
    kvd_chain *chain = NULL;
    KVT_NEED(begin_scene(gated, &gate, 50) && digests && tokens);
    KVT_EQ(kvd_chain_new(NULL, &chain), KVD_OK);
    KVT_EQ(kvd_chain_push(chain, tokens, KVD_MAX_DIGESTS * 64), KVD_OK);
    unsigned unsent = 0;
    for (int i = 0; i < 30; i++) { /* 33 KB each: the socket's buffer fills */
        double from = now_ms();
        enum kvd_status status = kvd_name_pages(c, (kvd_sequence){ 5 }, chain, 0, KVD_MAX_DIGESTS, &error);
        KVT_TRUE(status == KVD_DEADLINE_EXCEEDED || status == KVD_UNAVAILABLE);
        KVT_TRUE(now_ms() - from < 10000); /* the gate is shut for ever */
        unsent += strstr(error.message, "not sent") || strstr(error.message, "nothing was sent") ||
                  strstr(error.message, "stopped reading");
    }
    KVT_TRUE(unsent > 0);
    pthread_mutex_lock(&gate.lock);
    gate.open = true;
    pthread_cond_broadcast(&gate.opened);
    pthread_mutex_unlock(&gate.lock);
    kvd_client_set_timeout(c, 10000);
    KVT_EQ(reconnect(), KVD_OK);
    KVT_EQ(kvd_name_pages(c, (kvd_sequence){ 5 }, chain, 0, 3, &error), KVD_OK);
    kvd_chain_free(chain);
    end_scene();
    free(digests);
    free(tokens);
}

/* ---- rounds off the critical path ------------------------------------------------------------------- */

static enum script_act round_fn(void *user, const struct msg_request *request, struct msg_reply *reply) {
    static struct kvd_round_result results[KVD_MAX_ROUND];
    if (request->type != FRAME_ROUND) return once_fn(user, request, reply);
    for (uint32_t i = 0; i < request->u.round.n; i++) {
        memset(&results[i], 0, sizeof results[i]);
        results[i].n_pools = 1;
        results[i].pool[0].committed = request->u.round.items[i].pool[0].commit;
    }
    reply->u.round.n = request->u.round.n;
    reply->u.round.items = results;
    return atomic_fetch_add(&once.seen, 1) + 1 == once.at ? once.act : SCRIPT_ANSWER;
}

static struct kvd_round_item items[4];
static struct kvd_round_result results[4];
static kvd_ticket ticket;
static uint32_t n_results;

static void fill_items(uint32_t n, uint32_t commit) {
    for (uint32_t i = 0; i < n; i++) {
        items[i] = (struct kvd_round_item){ .sequence = { 100 + i },
                                            .pool[0] = { .ask = KVD_ROUND_COMMIT, .commit = commit + i } };
    }
}

static enum kvd_status start_round(uint32_t n) { return kvd_round_start(c, items, n, &ticket, &error); }
static enum kvd_status poll_round(void) { return kvd_round_poll(c, ticket, results, 4, &n_results, &error); }
static enum kvd_status wait_round(void) { return kvd_round_wait(c, ticket, results, 4, &n_results, &error); }

static void round_tickets(void) {
    KVT_NEED(BEGIN_AS(round_fn, 5000, .act = SCRIPT_HOLD, .at = 1));
    fill_items(4, 10);
    n_results = 99;
    KVT_EQ(start_round(4), KVD_OK);
    KVT_TRUE(script_wait_requests(s, 1));
    KVT_EQ(poll_round(), KVD_UNAVAILABLE);
    KVT_EQ(n_results, 99);
    KVT_FALSE(readable(0));
    script_let_go(s);
    KVT_TRUE(readable(5000));
    KVT_EQ(kvd_round_poll(c, ticket, results, 3, &n_results, &error), KVD_INVALID_ARGUMENT); /* the ticket lives on */
    KVT_EQ(poll_round(), KVD_OK);
    KVT_EQ(n_results, 4);
    KVT_EQ(results[3].pool[0].committed, 13);
    KVT_FALSE(readable(0));
    KVT_EQ(poll_round(), KVD_NOT_FOUND);

    KVT_EQ(start_round(2), KVD_OK);
    kvd_ticket first = ticket;
    KVT_EQ(start_round(3), KVD_OK);
    KVT_EQ(wait_round(), KVD_OK);
    KVT_EQ(n_results, 3);
    ticket = first;
    KVT_EQ(wait_round(), KVD_OK);
    KVT_EQ(n_results, 2);
    KVT_EQ(kvd_round(c, items, 0, results, &error), KVD_INVALID_ARGUMENT);

    /* SRV-2: a bit in the mask of another struct, and what is no number of tokens, are refused here. */
    struct kvd_round_item wrong[] = { { .sequence = { 7 }, .ask = KVD_ROUND_COMMIT },
                                      { .sequence = { 7 }, .pool[1] = { .ask = KVD_ROUND_STATE } },
                                      { .sequence = { 7 }, .pool[0] = { .ask = 64 } },
                                      { .sequence = { 7 }, .pool[0] = { .ask = KVD_ROUND_KEEP, .keep = UINT32_MAX } } };
    static const char *const why[] = { "asks for 0x1 ", "asks for 0x10 ", "asks for 0x40 ", "keep of item 0" };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        KVT_EQ(kvd_round(c, &wrong[i], 1, results, &error), KVD_INVALID_ARGUMENT);
        KVT_HAS(error.message, why[i]);
    }
    end_scene();
}

/* A ticket's deadline counts from its start, also where the start took an older round up again. */
static void repeated_ticket_has_a_time_of_its_own(void) {
    KVT_NEED(BEGIN_AS(round_fn, 100, .act = SCRIPT_HOLD, .at = 1));
    fill_items(2, 10);
    KVT_EQ(start_round(2), KVD_OK);
    enum kvd_status status;
    while ((status = poll_round()) == KVD_UNAVAILABLE) sched_yield();
    KVT_EQ(status, KVD_DEADLINE_EXCEEDED);
    kvd_client_set_timeout(c, 20000);
    KVT_EQ(start_round(2), KVD_OK);
    KVT_EQ(poll_round(), KVD_UNAVAILABLE);
    script_let_go(s);
    KVT_EQ(wait_round(), KVD_OK);
    KVT_EQ(results[1].pool[0].committed, 11);
    KVT_EQ(script_executed(s), 1);
    end_scene();
}

static void ticket_survives_a_lost_connection(void) {
    KVT_NEED(BEGIN_AS(round_fn, 5000, .act = SCRIPT_DROP, .at = 1));
    fill_items(2, 50);
    KVT_EQ(start_round(2), KVD_OK);
    KVT_TRUE(readable(5000));
    KVT_EQ(poll_round(), KVD_UNAVAILABLE);
    KVT_HAS(error.message, "lost");
    KVT_EQ(reconnect(), KVD_OK);
    KVT_EQ(wait_round(), KVD_OK);
    KVT_EQ(results[1].pool[0].committed, 51);
    KVT_EQ(script_executed(s), 1);
    KVT_EQ(script_repeats(s), 1);
    end_scene();
}

static enum script_act cold_fn(void *user, const struct msg_request *request, struct msg_reply *reply) {
    if (request->type == FRAME_FIND_COLD || request->type == FRAME_LOAD_COLD)
        reply->u.cold = (struct kvd_cold_found){ .continuation.bits = request->type == FRAME_LOAD_COLD ? 9 : 0,
                                                 .frontier = (request->u.cold.first + request->u.cold.n) * 64 +
                                                             request->u.cold.tail.n,
                                                 .bytes = 77 };
    return once_fn(user, request, reply);
}

/* A lookup and a load run beside other requests; their answers come once, and are no Round's. */
static void cold_tickets(void) {
    static uint32_t tokens[200];
    struct kvd_cold_prompt prompt = { .prompt = tokens, .until = 150 };
    struct kvd_cold_found found = { .frontier = 99 };
    kvd_chain *chain;
    kvd_ticket load;
    KVT_NEED(BEGIN_AS(cold_fn, 60000, .act = SCRIPT_HOLD, .at = 1));
    KVT_EQ(kvd_chain_new(NULL, &chain), KVD_OK);
    KVT_EQ(kvd_chain_push(chain, tokens, 200), KVD_OK);
    prompt.chain = chain;
    KVT_EQ(kvd_load_cold_start(c, &prompt, &load, &error), KVD_OK);
    KVT_TRUE(script_wait_requests(s, 1));
    KVT_EQ(kvd_cold_poll(c, load, &found, &error), KVD_UNAVAILABLE);
    KVT_EQ(found.frontier, 99);
    KVT_EQ(ask_stats(), KVD_OK);
    KVT_FALSE(readable(0));
    script_let_go(s);
    KVT_TRUE(readable(60000));
    KVT_EQ(kvd_round_poll(c, load, results, 4, &n_results, &error), KVD_NOT_FOUND);
    KVT_EQ(kvd_cold_poll(c, load, &found, &error), KVD_OK);
    KVT_TRUE(found.frontier == 150 && found.continuation.bits == 9 && found.bytes == 77);
    KVT_EQ(kvd_cold_poll(c, load, &found, &error), KVD_NOT_FOUND);

    prompt.first = 2;
    prompt.until = 128;
    KVT_EQ(kvd_find_cold_start(c, &prompt, &ticket, &error), KVD_OUT_OF_RANGE);
    prompt.until = 192;
    KVT_EQ(kvd_find_cold_start(c, &prompt, &ticket, &error), KVD_OK);
    fill_items(1, 1);
    KVT_EQ(start_round(1), KVD_OK);
    KVT_EQ(kvd_cold_wait(c, ticket, &found, &error), KVD_NOT_FOUND);
    KVT_EQ(kvd_cold_wait(c, (kvd_ticket){ ticket.id - 1 }, &found, &error), KVD_OK);
    KVT_EQ(found.frontier, 192);
    KVT_EQ(kvd_cold_wait(c, load, NULL, &error), KVD_INVALID_ARGUMENT);
    kvd_chain_free(chain);
    end_scene();
}

/* What an activation names: behind the full pages of its source, and nothing where no name is behind them. */
static void cold_of_an_activation(void) {
    static uint32_t tokens[200];
    struct kvd_activation activation = { .prompt_tokens = 202, .cold.retention = 3 };
    kvd_chain *chain;
    KVT_EQ(kvd_chain_new(NULL, &chain), KVD_OK);
    KVT_EQ(kvd_chain_push(chain, tokens, 200), KVD_OK);
    KVT_EQ(kvd_set_cold(&activation, chain, tokens, &error), KVD_OUT_OF_RANGE);
    KVT_EQ(kvd_set_cold(&activation, NULL, tokens, &error), KVD_INVALID_ARGUMENT);
    activation.prompt_tokens = 151;
    activation.frontier = 70;
    KVT_EQ(kvd_set_cold(&activation, chain, tokens, &error), KVD_OK);
    KVT_TRUE(activation.cold.first == 1 && activation.cold.n == 1 && activation.cold.tail.n == 22 &&
             activation.cold.retention == 3);
    KVT_TRUE(activation.cold.digests == kvd_chain_digests(chain) + 1);
    activation.frontier = 140;
    KVT_EQ(kvd_set_cold(&activation, chain, tokens, &error), KVD_OK);
    KVT_TRUE(activation.cold.n == 0 && activation.cold.tail.n == 0);
    kvd_chain_free(chain);
}

/* ---- many threads, a connection that breaks all the time --------------------------------------------------- */

struct storm {
    struct once once;
    uint64_t random;
    uint32_t drop_one_in;
    bool holds;
    atomic_uint ran[8];    /* by thread */
    atomic_uint turned[4]; /* by thread: calls that it is done with */
};

/* The handle carries the thread and its counter: each must run exactly once, in order. */
static enum script_act storm_fn(void *user, const struct msg_request *request, struct msg_reply *reply) {
    struct storm *storm = user;
    uint32_t roll = storm->drop_one_in ? kvt_below(&storm->random, storm->drop_one_in) : 9;
    if (request->type != FRAME_RELEASE) return once_fn(&storm->once, request, reply);
    if (roll == 0) return SCRIPT_DROP_UNRUN;
    uint64_t bits = request->u.continuation.continuation.bits;
    unsigned before = atomic_fetch_add(&storm->ran[bits >> 32], 1);
    KVT_EQ((uint32_t)bits, before + 1);
    return roll == 1 ? SCRIPT_DROP : roll == 2 && storm->holds ? SCRIPT_HOLD : SCRIPT_ANSWER;
}

struct storm_thread {
    struct storm *storm;
    uint32_t me, n;
    unsigned failed, repeated;
};

/* What the header tells a caller to do: after a lost connection or a deadline, the same call again. */
static enum kvd_status release_stubbornly(struct storm_thread *t, uint32_t i, struct kvd_error *ret_error) {
    for (int attempt = 0; attempt < 50; attempt++) {
        enum kvd_status status = kvd_release(c, (kvd_continuation){ (uint64_t)t->me << 32 | i }, ret_error);
        if (status != KVD_UNAVAILABLE && status != KVD_DEADLINE_EXCEEDED) return status;
        t->repeated++;
        if (status == KVD_UNAVAILABLE) kvd_client_reconnect(c, ret_error);
        else script_let_go(s);
    }
    return KVD_UNKNOWN;
}

/* A caller may repeat a call as long as no 64 others came after it: each thread stays within 6 calls of the slowest, so
 * that three make 36 at most while the fourth is at one. */
static void keep_in_sight(const struct storm_thread *t, uint32_t i) {
    for (uint32_t k = 0; k < 4; k++)
        while (atomic_load(&t->storm->turned[k]) + 6 < i) sched_yield();
}

static void *storm_run(void *arg) {
    struct storm_thread *t = arg;
    struct kvd_error refusal;
    for (uint32_t i = 1; i <= t->n && !t->failed; i++) {
        atomic_store(&t->storm->turned[t->me], i - 1);
        keep_in_sight(t, i);
        enum kvd_status status = release_stubbornly(t, i, &refusal);
        if (status == KVD_OK) continue;
        t->failed++;
        printf("thread %u, call %u: %s: %s\n", t->me, i, kvd_status_name(status), refusal.message);
    }
    atomic_store(&t->storm->turned[t->me], UINT32_MAX - 6);
    return NULL;
}

static void storm(uint32_t drop_one_in, uint32_t calls, bool holds, uint32_t timeout_ms) {
    static struct storm state;
    memset(&state, 0, sizeof state);
    state.random = kvt_seed();
    state.drop_one_in = drop_one_in;
    state.holds = holds;
    KVT_NEED(begin_scene(storm_fn, &state, 20000));
    kvd_client_set_timeout(c, timeout_ms);
    struct storm_thread threads[4];
    pthread_t ids[4];
    for (uint32_t i = 0; i < 4; i++) {
        threads[i] = (struct storm_thread){ &state, i, calls, 0, 0 };
        pthread_create(&ids[i], NULL, storm_run, &threads[i]);
    }
    unsigned repeated = 0;
    for (uint32_t i = 0; i < 4; i++) {
        pthread_join(ids[i], NULL);
        KVT_EQ(threads[i].failed, 0);
        KVT_EQ(state.ran[i], calls);
        repeated += threads[i].repeated;
    }
    if (drop_one_in)
        printf("[%u hellos, %u repeats on the wire, %u by callers] ", script_hellos(s), script_repeats(s), repeated);
    KVT_EQ(script_executed(s), 4 * calls);
    end_scene();
}

static void srv_1_threads_share_a_connection(void) { storm(0, 500, false, 20000); }
static void srv_1_threads_on_a_breaking_connection(void) { storm(12, 500, false, 20000); }
static void srv_1_threads_with_lost_answers_and_deadlines(void) { storm(30, 150, true, 40); }

/* ---- events ---------------------------------------------------------------------------------------------------- */

static void events_come_in_order_and_drops_are_counted(void) {
    KVT_NEED(begin_scene(NULL, NULL, 5000));
    KVT_EQ(kvd_subscribe(c, KVD_EVENT_MASK(KVD_EVENT_PRESSURE), &error), KVD_OK);
    KVT_EQ(script_event_mask(s), 2);
    KVT_EQ(next_event(0), KVD_DEADLINE_EXCEEDED);
    for (uint32_t i = 1; i <= 300; i++)
        script_event(s, &(struct kvd_event){ .kind = KVD_EVENT_PRESSURE, .available = i, .epoch = 4711 });
    KVT_EQ(ask_stats(), KVD_OK); /* behind all of them */
    KVT_TRUE(readable(0));
    for (uint32_t i = 1; i <= 256; i++) {
        KVT_EQ(next_event(0), KVD_OK);
        KVT_EQ(event.available, i);
        KVT_EQ(event.dropped, 0);
    }
    KVT_FALSE(readable(0));
    KVT_EQ(next_event(10), KVD_DEADLINE_EXCEEDED);
    script_event(s, &(struct kvd_event){ .kind = KVD_EVENT_PRESSURE, .available = 1, .dropped = 5, .epoch = 4711 });
    KVT_EQ(next_event(5000), KVD_OK);
    KVT_EQ(event.dropped, 44 + 5);
    script_disconnect(s);
    KVT_EQ(next_event(5000), KVD_UNAVAILABLE);
    KVT_EQ(reconnect(), KVD_OK);
    KVT_EQ(script_event_mask(s), 2);
    KVT_EQ(script_requests(s), 3); /* Subscribe, Stats, Subscribe again */
    end_scene();
}

/* ---- processes ----------------------------------------------------------------------------------------------------
 */

static int in_child(void) {
    struct kvd_connect_options o = { .struct_size = sizeof o, .socket = script_path(s), .role = KVD_ROLE_OBSERVER };
    kvd_client *other = NULL;
    int bad = 0;
    bad |= (ask_stats() != KVD_FAILED_PRECONDITION) << 0;
    bad |= (strstr(error.message, "fork") == NULL) << 1;
    bad |= (activate() != KVD_FAILED_PRECONDITION) << 2;
    bad |= (kvd_next_event(c, 0, &event, NULL) != KVD_FAILED_PRECONDITION) << 3;
    bad |= (kvd_client_reconnect(c, NULL) != KVD_FAILED_PRECONDITION) << 4;
    bad |= (kvd_connect(&o, &other, &error) != KVD_FAILED_PRECONDITION) << 5;
    kvd_disconnect(c);
    return bad;
}

/* SRV-6: a fork's child is refused before it touches the transport; the parent's session is not harmed. */
static void srv_6_fork_is_refused(void) {
    KVT_NEED(begin_scene(NULL, NULL, 5000));
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) _exit(in_child());
    KVT_EQ_I(kvt_wait(pid), 0);
    KVT_EQ(ask_stats(), KVD_OK);
    KVT_EQ(script_hellos(s), 1);
    end_scene();
}

/* ---- who reads ---------------------------------------------------------------------------------------------- */

/* The first query is lost; later ones are answered when the gate is open. */
struct first_lost {
    atomic_uint queries;
    atomic_bool open;
};
static enum script_act first_lost_fn(void *user, const struct msg_request *request, struct msg_reply *reply) {
    struct first_lost *gate = user;
    (void)reply;
    if (request->type != FRAME_STATS) return SCRIPT_ANSWER;
    if (atomic_fetch_add(&gate->queries, 1) == 0) return SCRIPT_LOSE;
    while (!atomic_load(&gate->open)) sched_yield();
    return SCRIPT_ANSWER;
}

struct asking {
    pthread_t thread;
    enum kvd_status status;
};
static void *ask_in_thread(void *arg) {
    struct asking *asking = arg;
    struct kvd_stats answer;
    asking->status = kvd_stats(c, &answer, NULL);
    return NULL;
}

/* The caller that reads gives up; one that waits beside it reads on, and gets its answer. */
static void reading_is_passed_on(void) {
    struct first_lost gate = { 0 };
    struct asking reader, other;
    KVT_NEED(begin_scene(first_lost_fn, &gate, 150));
    KVT_OK(pthread_create(&reader.thread, NULL, ask_in_thread, &reader));
    while (atomic_load(&gate.queries) < 1) sched_yield();
    kvd_client_set_timeout(c, 20000);
    KVT_OK(pthread_create(&other.thread, NULL, ask_in_thread, &other));
    pthread_join(reader.thread, NULL);
    KVT_EQ(reader.status, KVD_DEADLINE_EXCEEDED);
    atomic_store(&gate.open, true);
    pthread_join(other.thread, NULL);
    KVT_EQ(other.status, KVD_OK);
    end_scene();
}

/* The descriptor is asked for while a caller reads: events are told by the caller, and by the transport when it has
 * left. */
static void the_descriptor_works_beside_a_reader(void) {
    struct first_lost gate = { 0 };
    struct asking reader;
    const struct kvd_event pressure = { .kind = KVD_EVENT_PRESSURE };
    KVT_NEED(begin_scene(first_lost_fn, &gate, 300));
    KVT_OK(pthread_create(&reader.thread, NULL, ask_in_thread, &reader));
    while (atomic_load(&gate.queries) < 1) sched_yield();
    KVT_FALSE(readable(0));
    script_event(s, &pressure);
    KVT_TRUE(readable(5000));
    KVT_EQ(next_event(5000), KVD_OK);
    pthread_join(reader.thread, NULL);
    KVT_EQ(reader.status, KVD_DEADLINE_EXCEEDED);
    KVT_FALSE(readable(0));
    script_event(s, &pressure);
    KVT_TRUE(readable(5000));
    KVT_EQ(next_event(0), KVD_OK);
    end_scene();
}

/* A connection that breaks while nobody calls: the next call resumes; with the descriptor in use it is known at once.
 */
static void an_idle_connection_breaks(void) {
    KVT_NEED(begin_scene(NULL, NULL, 5000));
    script_disconnect(s);
    KVT_EQ(ask_stats(), KVD_OK);
    KVT_EQ(script_hellos(s), 2);
    KVT_FALSE(readable(0));
    script_disconnect(s);
    KVT_TRUE(readable(5000));
    KVT_EQ(ask_stats(), KVD_UNAVAILABLE);
    KVT_HAS(error.message, "kvd_client_reconnect");
    KVT_EQ(reconnect(), KVD_OK);
    KVT_FALSE(readable(0));
    script_disconnect(s); /* the new connection is watched, too */
    KVT_TRUE(readable(5000));
    KVT_EQ(script_hellos(s), 3);
    end_scene();
}

#define ALL_SIGNALS 0xfffffffe7ffbfeffull /* but SIGKILL, SIGSTOP, and the two that glibc keeps to itself */

/* Threads of the library block every signal, so that each comes to a thread of the engine's. ENGINE-GUIDE.md says so.
 */
static void transport_threads_block_signals(void) {
    DIR *dir = opendir("/proc/self/task");
    unsigned threads = 0, blocked = 0;
    KVT_NEED(begin_scene(NULL, NULL, 5000) && dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[300], line[128];
        unsigned long long mask;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "r");
        threads += file != NULL;
        while (file && fgets(line, sizeof line, file))
            if (sscanf(line, "SigBlk: %llx", &mask) == 1) blocked += (mask & ALL_SIGNALS) == ALL_SIGNALS;
        if (file) fclose(file);
    }
    closedir(dir);
    KVT_TRUE(blocked >= 5);
    unsigned open_threads = threads - blocked, of_sanitizer = 0;
#if defined(KVD_SANITIZE_THREAD)
    of_sanitizer = open_threads > 2; /* its own thread blocks them, or does not */
#endif
    KVT_EQ(open_threads - of_sanitizer, 2); /* this one and the scripted kvd's */
    sigset_t mine;
    pthread_sigmask(SIG_BLOCK, NULL, &mine);
    KVT_FALSE(sigismember(&mine, SIGTERM)); /* the caller's mask came back */
    end_scene();
}

/* ---- the transport alone -------------------------------------------------------------------------------------------
 */

static atomic_int transport_lost;
static void ignore_frame(void *user, const struct frame_head *head, const uint8_t *body) {
    (void)user, (void)head, (void)body;
}
static void note_lost(void *user, const char *why) {
    (void)user, (void)why;
    atomic_fetch_add(&transport_lost, 1);
}

/* A send on a connection that the peer closed ends at once, also without a deadline; loss is told once. */
static void transport_send_after_the_end(void) {
    struct transport_sink sink = { NULL, ignore_frame, note_lost };
    uint8_t frame[FRAME_HEADER];
    char err[256] = "";
    size_t sent = 99;
    frame_head_write(frame, FRAME_STATS, 0, 1, 0);
    for (int i = 0; i < 200; i++) {
        s = script_start(NULL, NULL);
        struct transport *t = NULL;
        atomic_store(&transport_lost, 0);
        KVT_OK(transport_open(script_path(s), &sink, clock_ns() + 5000000000u, &t, err, sizeof err));
        KVT_NEED(t);
        transport_watch(t);
        script_stop(s);
        int rc = 0; /* the first ones may still go into the socket */
        for (int n = 0; n < 1000000 && rc == 0; n++)
            rc = transport_send(t, frame, sizeof frame, TRANSPORT_NEVER, &sent);
        KVT_EQ_I(rc, TRANSPORT_E_LOST);
        KVT_EQ(sent, 0);
        while (!atomic_load(&transport_lost)) sched_yield();
        KVT_EQ_I(transport_send(t, frame, sizeof frame, TRANSPORT_NEVER, &sent), TRANSPORT_E_LOST);
        transport_close(t);
        KVT_EQ_I(atomic_load(&transport_lost), 1);
    }
}

/* Reading for oneself: frames, the deadline, an earlier deadline after a later one, an interruption, the end; each
 * once. */
static atomic_int transport_frames;
static void count_frame(void *user, const struct frame_head *head, const uint8_t *body) {
    (void)user, (void)head, (void)body;
    atomic_fetch_add(&transport_frames, 1);
}
static void *interrupt_it(void *t) {
    transport_interrupt(t);
    return NULL;
}

static int read_until(struct transport *t, uint64_t from_now_ns) {
    return transport_begin_read(t, clock_ns() + from_now_ns) ? transport_end_read(t) : -1;
}

static void transport_reads_for_itself(void) {
    struct transport_sink sink = { NULL, count_frame, note_lost };
    struct msg_request hello = { .type = FRAME_HELLO,
                                 .u.hello = { .protocol = KVD_PROTOCOL_VERSION, .role = 3, .name = "reader" } };
    uint8_t frame[256];
    char err[256] = "";
    size_t bytes, sent = 0;
    struct codec_arena *arena = codec_arena_new();
    KVT_NEED(arena);
    KVT_OK(codec_encode_request(&hello, arena, frame + FRAME_HEADER, sizeof frame - FRAME_HEADER, &bytes, NULL, 0));
    frame_head_write(frame, FRAME_HELLO, 0, 1, bytes);
    for (int i = 0; i < 50; i++) {
        s = script_start(NULL, NULL);
        struct transport *t = NULL;
        pthread_t thread;
        atomic_store(&transport_lost, 0);
        atomic_store(&transport_frames, 0);
        KVT_OK(transport_open(script_path(s), &sink, clock_ns() + 5000000000u, &t, err, sizeof err));
        KVT_NEED(t);
        KVT_OK(transport_send(t, frame, FRAME_HEADER + bytes, TRANSPORT_NEVER, &sent));
        KVT_EQ_I(read_until(t, 5000000000u), 0);
        KVT_EQ_I(atomic_load(&transport_frames), 1);
        uint64_t begin = clock_ns();
        KVT_EQ_I(read_until(t, 3000000u), TRANSPORT_E_TIMEOUT); /* earlier than what the guard was set to */
        KVT_TRUE(clock_ns() - begin >= 3000000u);
        if (i % 2) { /* the peer goes */
            script_stop(s);
            KVT_EQ_I(read_until(t, 60000000000u), TRANSPORT_E_LOST);
            KVT_EQ_I(atomic_load(&transport_lost), 1);
        } else {
            KVT_TRUE(transport_begin_read(t, clock_ns() + 60000000000u));
            KVT_OK(pthread_create(&thread, NULL, interrupt_it, t));
            KVT_EQ_I(transport_end_read(t), TRANSPORT_E_LOST);
            pthread_join(thread, NULL);
            KVT_EQ_I(read_until(t, 60000000000u), -1); /* given up for good */
            KVT_EQ_I(atomic_load(&transport_lost), 0); /* who gave it up knows */
            script_stop(s);
        }
        transport_close(t);
    }
    codec_arena_free(arena);
}

static void status_names(void) {
    KVT_EQ_STR(kvd_status_name(KVD_RESOURCE_EXHAUSTED), "RESOURCE_EXHAUSTED");
    KVT_EQ_STR(kvd_status_name((enum kvd_status)99), "?");
    KVT_TRUE(kvd_status_retryable(KVD_ABORTED));
    KVT_FALSE(kvd_status_retryable(KVD_INVALID_ARGUMENT));
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = {
        KVT_CASE(transport_threads_block_signals),
        KVT_CASE(hello_gives_session_and_epoch),
        KVT_CASE(connect_refusals_say_why),
        KVT_CASE(query_deadline_is_kept),
        KVT_CASE(srv_1_lost_answer_is_fetched_once),
        KVT_CASE(srv_1_lost_request_runs_once),
        KVT_CASE(one_retry_only_then_unavailable),
        KVT_CASE(late_answers_make_room),
        KVT_CASE(srv_1_repeat_after_deadline_gets_first_answer),
        KVT_CASE(srv_1_repeat_after_reconnect_gets_first_answer),
        KVT_CASE(repeat_after_kvd_refused_by_deadline_runs),
        KVT_CASE(srv_1_repeat_that_waits_for_a_refusal_by_deadline_runs),
        KVT_CASE(repeat_of_a_setting_is_executed),
        KVT_CASE(act_9_cancel_of_what_a_deadline_left),
        KVT_CASE(left_round_goes_stale),
        KVT_CASE(moves_are_asked_and_answered),
        KVT_CASE(srv_1_repeat_of_a_move_gets_first_answer),
        KVT_CASE(left_move_goes_stale),
        KVT_CASE(srv_8_epoch_change_aborts),
        KVT_CASE(srv_6_refused_resume_aborts),
        KVT_CASE(junk_answers_are_refused),
        KVT_CASE(slow_server_holds_nobody_longer),
        KVT_CASE(round_tickets),
        KVT_CASE(repeated_ticket_has_a_time_of_its_own),
        KVT_CASE(ticket_survives_a_lost_connection),
        KVT_CASE(cold_tickets),
        KVT_CASE(cold_of_an_activation),
        KVT_CASE(srv_1_threads_share_a_connection),
        KVT_CASE(srv_1_threads_on_a_breaking_connection),
        KVT_CASE(srv_1_threads_with_lost_answers_and_deadlines),
        KVT_CASE(events_come_in_order_and_drops_are_counted),
        KVT_CASE(reading_is_passed_on),
        KVT_CASE(the_descriptor_works_beside_a_reader),
        KVT_CASE(an_idle_connection_breaks),
        KVT_CASE(srv_6_fork_is_refused),
        KVT_CASE(transport_send_after_the_end),
        KVT_CASE(transport_reads_for_itself),
        KVT_CASE(status_names),
        { 0 },
    };
    return kvt_main("client session", cases, argc, argv);
}
