/* SPDX-License-Identifier: Apache-2.0
 *
 * Death, fencing, groups, yield: who may drive a sequence, when its pages return, and who is told. SRV-3, SRV-5, SRV-6,
 * ROW-5, CONT-3.
 */
#include <stdlib.h>

#include "service_fixture.h"

static struct fx fx;
static struct msg_reply r;

#define REQUEST(t, ...)                                                                                                \
    &(struct msg_request) { .type = (t), __VA_ARGS__ }

static uint32_t ask(struct fx_peer *p, struct msg_request *q) { return fx_call(p, q, &r) ? r.status : UINT32_MAX; }
static uint32_t subscribe(struct fx_peer *p, uint32_t mask) {
    return ask(p, REQUEST(FRAME_SUBSCRIBE, .u.event_mask = mask));
}
static uint32_t yielded(struct fx_peer *p) { return ask(p, REQUEST(FRAME_YIELD)) == KVD_OK ? r.u.yielded : UINT32_MAX; }

/* Commits n tokens, whole pages, and names them, so that what is left behind can be found. */
static void commit_named(struct fx_peer *p, kvd_sequence seq, uint32_t tokens) {
    kvd_digest digests[8];
    memset(digests, 7, sizeof digests);
    for (uint32_t i = 0; i < tokens / 64; i++) digests[i].bytes[0] = (uint8_t)i;
    KVT_EQ(fx_round(p, seq, tokens, KVD_UNCHANGED, NULL), KVD_OK);
    KVT_EQ(ask(p, REQUEST(FRAME_NAME_PAGES, .u.names = { seq, 0, tokens / 64, digests })), KVD_OK);
}

/* SRV-5: a lost connection proves nothing; the exit does. */
static void eof_quarantines_exit_ends(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *w = fx_session(&fx, KVD_ROLE_WORKER, 0);
    struct kvd_activated a;
    struct kvd_event e;
    uint32_t mask = KVD_EVENT_MASK(KVD_EVENT_SESSION_LOST) | KVD_EVENT_MASK(KVD_EVENT_SEQUENCE_ENDED);
    KVT_EQ(subscribe(s, mask), KVD_OK);
    KVT_EQ(fx_activate(s, w->session, 130, 64, &a), KVD_OK);
    commit_named(w, a.sequence, 128);
    fx_cut(w);
    struct kvd_stats stats = fx_stats(s);
    KVT_EQ(stats.sequences, 1);
    KVT_EQ(stats.pool[0].quarantined, 3);
    KVT_EQ(stats.sessions, 2);
    KVT_EQ(fx_round(s, a.sequence, KVD_UNCHANGED, 140, NULL), KVD_FAILED_PRECONDITION); /* nobody may drive it */
    KVT_EQ(fx_finish(s, a.sequence), KVD_FAILED_PRECONDITION);
    KVT_FALSE(fx_event(s, &e));
    fx_kill(w);
    KVT_NEED(fx_event(s, &e));
    KVT_EQ(e.kind, KVD_EVENT_SESSION_LOST);
    KVT_EQ(e.session.bits, w->session.bits);
    KVT_NEED(fx_event(s, &e));
    KVT_EQ(e.kind, KVD_EVENT_SEQUENCE_ENDED);
    KVT_EQ(e.sequence.bits, a.sequence.bits);
    KVT_TRUE(e.continuation.bits != 0); /* complete: kept at its committed frontier */
    stats = fx_stats(s);
    KVT_EQ(stats.sequences, 0);
    KVT_EQ(stats.continuations, 1);
    KVT_EQ(stats.pool[0].quarantined, 0);
    KVT_EQ(stats.pool[0].allocated, 2);
    KVT_EQ(stats.pool[0].available, 254);
    KVT_EQ(stats.sessions, 1);
    KVT_EQ(fx_finish(s, a.sequence), KVD_NOT_FOUND);
    KVT_NEED(fx_call(s, REQUEST(FRAME_LIST_CONTINUATIONS, .u.list = { .max = 8 }), &r));
    KVT_EQ(r.u.continuations.items[0].frontier, 128);
    fx_peer_free(w);
    fx_peer_free(s);
    fx_stop(&fx);
}

static void reconnect_lifts_the_quarantine(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *w = fx_session(&fx, KVD_ROLE_WORKER, 0),
                   *again = fx_peer_again(w);
    struct kvd_activated a;
    KVT_EQ(fx_activate(s, w->session, 64, 64, &a), KVD_OK);
    fx_cut(w);
    KVT_TRUE(fx_stats(s).pool[0].quarantined > 0);
    KVT_EQ(ask(again, REQUEST(FRAME_HELLO, .u.hello = { .protocol = KVD_PROTOCOL_VERSION,
                                                        .role = KVD_ROLE_WORKER,
                                                        .name = "fx",
                                                        .resume = w->session,
                                                        .resume_secret = w->secret })),
           KVD_OK);
    again->session = w->session;
    KVT_EQ(fx_stats(s).pool[0].quarantined, 0);
    KVT_EQ(fx_round(again, a.sequence, 64, KVD_UNCHANGED, NULL), KVD_OK);
    KVT_EQ(fx_finish(again, a.sequence), KVD_OK);
    fx_peer_free(again);
    fx_peer_free(w);
    fx_peer_free(s);
    fx_stop(&fx);
}

/* Exit without EOF: a forked child may hold the connection. */
static void exit_without_eof(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *w = fx_session(&fx, KVD_ROLE_WORKER, 0);
    struct kvd_activated a;
    KVT_EQ(fx_activate(s, w->session, 64, 64, &a), KVD_OK);
    fx_kill(w);
    KVT_TRUE(w->closed);
    KVT_EQ(fx_stats(s).sequences, 0);
    w->closed = false; /* what the child still sends is refused */
    KVT_EQ(fx_round(w, a.sequence, 64, KVD_UNCHANGED, NULL), KVD_UNAUTHENTICATED);
    fx_peer_free(w);
    fx_peer_free(s);
    fx_stop(&fx);
}

static void goodbye_ends_at_once(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *w = fx_session(&fx, KVD_ROLE_WORKER, 0);
    struct kvd_activated a;
    KVT_EQ(fx_activate(s, w->session, 64, 64, &a), KVD_OK);
    KVT_EQ(ask(w, REQUEST(FRAME_GOODBYE)), KVD_OK);
    struct kvd_stats stats = fx_stats(s);
    KVT_EQ(stats.sequences, 0);
    KVT_EQ(stats.sessions, 1);
    KVT_EQ(stats.pool[0].available, 256);
    fx_peer_free(w);
    fx_peer_free(s);
    fx_stop(&fx);
}

/* A dead scheduler's sequence may still be under a kernel of its worker: it waits for the yield (ROW-5). */
static void dead_scheduler_waits_for_the_worker(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *w = fx_session(&fx, KVD_ROLE_WORKER, 0),
                   *x = fx_session(&fx, KVD_ROLE_WORKER, 0), *o = fx_session(&fx, KVD_ROLE_OBSERVER, 0);
    struct kvd_activated a;
    struct kvd_event e;
    KVT_EQ(subscribe(w, KVD_EVENT_MASK(KVD_EVENT_SESSION_LOST)), KVD_OK);
    KVT_EQ(subscribe(x, KVD_EVENT_MASK(KVD_EVENT_SESSION_LOST)), KVD_OK);
    KVT_EQ(fx_activate(s, w->session, 64, 64, &a), KVD_OK);
    fx_kill(s);
    KVT_NEED(fx_event(w, &e));
    KVT_EQ(e.session.bits, s->session.bits);
    KVT_FALSE(fx_event(x, &e)); /* not concerned */
    KVT_EQ(fx_stats(o).sequences, 1);
    KVT_TRUE(fx_stats(o).pool[0].quarantined > 0);
    KVT_NEED(fx_call(o, REQUEST(FRAME_LIST_SEQUENCES), &r));
    KVT_EQ(r.u.sequences.n, 1);
    KVT_TRUE(r.u.sequences.items[0].ending);
    KVT_EQ(fx_round(w, a.sequence, 64, KVD_UNCHANGED, NULL), KVD_FAILED_PRECONDITION);
    KVT_EQ(yielded(x), 0); /* not theirs to give back */
    KVT_EQ(fx_stats(o).sequences, 1);
    KVT_EQ(yielded(w), 1);
    KVT_EQ(fx_stats(o).sequences, 0);
    KVT_EQ(yielded(w), 0);
    fx_peer_free(s);
    fx_peer_free(w);
    fx_peer_free(x);
    fx_peer_free(o);
    fx_stop(&fx);
}

/* SRV-5: what a worker and its scheduler leave without a name could be found by nobody: it is released. With a name,
 * or with a scheduler that is told of it, it stays. */
static void nobody_leaves_what_nobody_can_find(void) {
    for (uint32_t named = 0; named < 2; named++)
        for (uint32_t alive = 0; alive < 2; alive++) {
            kvd_digest digest = { { 1 } };
            struct kvd_activated a;
            KVT_NEED(fx_start(&fx, NULL));
            struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *w = fx_session(&fx, KVD_ROLE_WORKER, 0),
                           *o = fx_session(&fx, KVD_ROLE_OBSERVER, 0);
            KVT_EQ(fx_activate(s, w->session, 100, 64, &a), KVD_OK);
            KVT_EQ(fx_round(w, a.sequence, KVD_UNCHANGED, 100, NULL), KVD_OK);
            KVT_EQ(fx_round(w, a.sequence, 100, KVD_UNCHANGED, NULL), KVD_OK);
            if (named) KVT_EQ(ask(w, REQUEST(FRAME_NAME_PAGES, .u.names = { a.sequence, 0, 1, &digest })), KVD_OK);
            if (!alive) fx_kill(s);
            fx_kill(w);
            KVT_EQ(fx_stats(o).sequences, 0);
            KVT_EQ(fx_stats(o).continuations, named || alive ? 1 : 0);
            KVT_EQ(fx_stats(o).pool[0].allocated, named || alive ? 2 : 0);
            fx_peer_free(s);
            fx_peer_free(w);
            fx_peer_free(o);
            fx_stop(&fx);
        }
}

/* SRV-5: and when the scheduler that was told of it goes later, it goes, too: at once, or with the activation in flight
 * that uses it. Unless it got a name. */
static void nothing_is_left_behind_a_scheduler(void) {
    for (int how = 0; how < 3; how++) { /* 0: nobody used it; 1: it has a name by now; 2: another one has moved it */
        kvd_digest digest = { { 1 } };
        struct kvd_activated a;
        struct kvd_event e;
        KVT_NEED(fx_start(&fx, NULL));
        struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *w = fx_session(&fx, KVD_ROLE_WORKER, 0),
                       *o = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
        KVT_EQ(subscribe(s, KVD_EVENT_MASK(KVD_EVENT_SEQUENCE_ENDED)), KVD_OK);
        KVT_EQ(fx_activate(s, w->session, 100, 64, &a), KVD_OK);
        KVT_EQ(fx_round(w, a.sequence, KVD_UNCHANGED, 100, NULL), KVD_OK);
        KVT_EQ(fx_round(w, a.sequence, 100, KVD_UNCHANGED, NULL), KVD_OK);
        fx_kill(w);
        KVT_NEED(fx_event(s, &e));
        KVT_TRUE(e.continuation.bits != 0);
        KVT_EQ(fx_stats(o).continuations, 1);
        struct kvd_activation want = { .worker = o->session,
                                       .from = e.continuation,
                                       .keep = how == 1,
                                       .frontier = 100,
                                       .prompt_tokens = 100,
                                       .max_output_tokens = 10 };
        if (how) KVT_EQ(ask(o, REQUEST(FRAME_ACTIVATE, .u.activation = want)), KVD_OK);
        kvd_sequence next = r.u.activated.sequence;
        if (how == 1) KVT_EQ(ask(o, REQUEST(FRAME_NAME_PAGES, .u.names = { next, 0, 1, &digest })), KVD_OK);
        fx_kill(s);
        KVT_EQ(fx_stats(o).continuations, how == 1);
        KVT_EQ(fx_stats(o).pool[0].allocated, how ? how == 1 ? 3 : 2 : 0);
        fx_peer_free(s);
        fx_peer_free(w);
        fx_peer_free(o);
        fx_stop(&fx);
    }
}

/* SRV-6: a fenced session is refused by generation; its pages stay quarantined until its process is gone. */
static void fence_refuses_and_waits_for_the_exit(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *w = fx_session(&fx, KVD_ROLE_WORKER, 0),
                   *again = fx_peer_again(w);
    struct kvd_activated a;
    KVT_EQ(fx_activate(s, w->session, 64, 64, &a), KVD_OK);
    KVT_EQ(ask(s, REQUEST(FRAME_FENCE, .u.session = s->session)), KVD_INVALID_ARGUMENT);
    KVT_EQ(ask(s, REQUEST(FRAME_FENCE, .u.session.bits = w->session.bits + 1)), KVD_NOT_FOUND);
    KVT_EQ(ask(s, REQUEST(FRAME_FENCE, .u.session = w->session)), KVD_OK);
    KVT_EQ(ask(s, REQUEST(FRAME_FENCE, .u.session = w->session)), KVD_OK); /* again is fine */
    KVT_EQ(fx_round(w, a.sequence, 64, KVD_UNCHANGED, NULL), KVD_ABORTED);
    KVT_EQ(ask(w, REQUEST(FRAME_YIELD)), KVD_ABORTED);
    KVT_EQ(fx_round(s, a.sequence, 64, KVD_UNCHANGED, NULL), KVD_FAILED_PRECONDITION);
    KVT_EQ(ask(again, REQUEST(FRAME_HELLO, .u.hello = { .protocol = KVD_PROTOCOL_VERSION,
                                                        .role = KVD_ROLE_WORKER,
                                                        .name = "fx",
                                                        .resume = w->session,
                                                        .resume_secret = w->secret })),
           KVD_ABORTED);
    KVT_EQ(fx_activate(s, w->session, 64, 64, &a), KVD_FAILED_PRECONDITION);
    fx_cut(w);
    KVT_EQ(fx_stats(s).sequences, 1);
    KVT_TRUE(fx_stats(s).pool[0].quarantined > 0);
    KVT_EQ(fx_hello(again, KVD_ROLE_WORKER, 0), KVD_OK); /* the process may begin anew */
    fx_kill(w);
    KVT_EQ(fx_stats(s).sequences, 0);
    KVT_EQ(fx_stats(s).pool[0].available, 256);
    fx_peer_free(again);
    fx_peer_free(w);
    fx_peer_free(s);
    fx_stop(&fx);
}

static void only_the_same_user_or_an_admin_fences(void) {
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .more = "[access]\nworker = *\nscheduler = *\n" }));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *w = fx_peer_new(&fx),
                   *admin = fx_session(&fx, KVD_ROLE_ADMIN, 0);
    w->link.peer.uid = 4711;
    KVT_EQ(fx_hello(w, KVD_ROLE_WORKER, 0), KVD_OK);
    KVT_EQ(ask(s, REQUEST(FRAME_FENCE, .u.session = w->session)), KVD_PERMISSION_DENIED);
    KVT_EQ(ask(s, REQUEST(FRAME_FENCE, .u.session = admin->session)), KVD_PERMISSION_DENIED);
    KVT_EQ(ask(admin, REQUEST(FRAME_FENCE, .u.session = w->session)), KVD_OK);
    KVT_EQ(ask(w, REQUEST(FRAME_STATS)), KVD_ABORTED);
    fx_peer_free(s);
    fx_peer_free(w);
    fx_peer_free(admin);
    fx_stop(&fx);
}

/* ---- groups ------------------------------------------------------------------------------------------- */

struct team {
    struct fx_peer *s, *w[2];
    kvd_group_id group;
};

static bool team_start(struct team *t) {
    if (!fx_start(&fx, &(struct fx_setup){ .ranks = 2 })) return false;
    t->s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    for (uint32_t i = 0; i < 2; i++) t->w[i] = fx_session(&fx, KVD_ROLE_WORKER, i);
    struct msg_request q = { .type = FRAME_OPEN_GROUP, .u.group = { 2, { t->w[0]->session, t->w[1]->session } } };
    if (!KVT_EQ(ask(t->s, &q), KVD_OK)) return false;
    t->group = r.u.group;
    return true;
}

static uint32_t team_activate(struct team *t, struct kvd_activated *ret_activated) {
    struct msg_request q = {
        .type = FRAME_ACTIVATE,
        .u.activation = { .group = t->group, .prompt_tokens = 64, .max_output_tokens = 64, .ensure = { 64, 64 } }
    };
    if (ask(t->s, &q) == KVD_OK) *ret_activated = r.u.activated;
    return r.status;
}

static void team_stop(struct team *t) {
    fx_peer_free(t->s);
    for (int i = 0; i < 2; i++) fx_peer_free(t->w[i]);
    fx_stop(&fx);
}

/* SRV-3: the leader drives, the others read. */
static void group_leader_drives(void) {
    struct team t;
    struct kvd_activated a;
    KVT_NEED(team_start(&t));
    KVT_EQ(team_activate(&t, &a), KVD_OK);
    KVT_EQ(fx_round(t.w[0], a.sequence, 64, KVD_UNCHANGED, NULL), KVD_OK);
    KVT_EQ(fx_round(t.w[1], a.sequence, KVD_UNCHANGED, 100, NULL), KVD_PERMISSION_DENIED);
    KVT_EQ(ask(t.s, REQUEST(FRAME_CLOSE_GROUP, .u.group_id = t.group)), KVD_FAILED_PRECONDITION);
    KVT_EQ(fx_finish(t.w[0], a.sequence), KVD_OK);
    KVT_EQ(ask(t.s, REQUEST(FRAME_CLOSE_GROUP, .u.group_id = t.group)), KVD_OK);
    KVT_EQ(ask(t.s, REQUEST(FRAME_CLOSE_GROUP, .u.group_id = t.group)), KVD_NOT_FOUND);
    KVT_EQ(team_activate(&t, &a), KVD_NOT_FOUND);
    team_stop(&t);
}

/* ROW-5, FIN-2: after a boundary that asks to map, a unit may run: nobody else ends the sequence or changes its rows,
 * and nothing has changed after the refusal. A boundary that asks for no ensure says that the unit is over. */
static void row_5_nobody_finishes_under_a_running_unit(void) {
    struct team t;
    struct kvd_activated a;
    struct kvd_round_result round;
    KVT_NEED(team_start(&t));
    for (int by_worker = 0; by_worker < 2; by_worker++) {
        KVT_EQ(team_activate(&t, &a), KVD_OK);
        struct fx_peer *runs = by_worker ? t.w[0] : t.s, *other = by_worker ? t.s : t.w[0];
        KVT_EQ(fx_round(runs, a.sequence, 64, 100, &round), KVD_OK);
        KVT_EQ(round.pool[0].membership, 2);
        struct kvd_stats before = fx_stats(t.s);
        for (int twice = 0; twice < 2; twice++) {
            KVT_EQ(ask(other, REQUEST(FRAME_FINISH, .u.finish.sequence = a.sequence)), KVD_FAILED_PRECONDITION);
            KVT_HAS(r.message, "may run on sequence");
            KVT_EQ(fx_round(other, a.sequence, KVD_UNCHANGED, KVD_UNCHANGED, &round), KVD_FAILED_PRECONDITION);
            KVT_HAS(round.message, "may run on sequence");
        }
        KVT_EQ_MEM(fx_stats(t.s).pool, before.pool, sizeof before.pool);
        kvd_digest digest = { { 1 } }; /* changes neither rows nor pages */
        KVT_EQ(ask(t.s, REQUEST(FRAME_NAME_PAGES, .u.names = { a.sequence, 0, 1, &digest })), KVD_OK);
        KVT_EQ(ask(t.s, REQUEST(FRAME_CHECKPOINT, .u.checkpoint = { .sequence = a.sequence })), KVD_OK);
        KVT_EQ(fx_round(runs, a.sequence, 90, KVD_UNCHANGED, NULL), KVD_OK);
        KVT_EQ(fx_finish(other, a.sequence), KVD_OK);
    }
    KVT_EQ(team_activate(&t, &a), KVD_OK);
    KVT_EQ(fx_round(t.w[0], a.sequence, 64, 100, NULL), KVD_OK);
    KVT_EQ(fx_finish(t.w[0], a.sequence), KVD_OK); /* its own word */
    team_stop(&t);
}

/* ROW-5, SRV-5: the proof of exit ends a unit, too. */
static void row_5_a_unit_ends_with_its_process(void) {
    struct kvd_activated a;
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *w = fx_session(&fx, KVD_ROLE_WORKER, 0);
    KVT_EQ(fx_activate(s, w->session, 64, 64, &a), KVD_OK);
    commit_named(w, a.sequence, 64);
    KVT_EQ(fx_round(w, a.sequence, KVD_UNCHANGED, 100, NULL), KVD_OK);
    KVT_EQ(fx_finish(s, a.sequence), KVD_FAILED_PRECONDITION);
    fx_kill(w);
    KVT_EQ(fx_stats(s).sequences, 0);
    KVT_EQ(fx_stats(s).continuations, 1);
    fx_peer_free(w);
    fx_peer_free(s);
    fx_stop(&fx);
}

static void group_members_are_checked(void) {
    struct team t;
    KVT_NEED(team_start(&t));
    kvd_session_id w0 = t.w[0]->session, w1 = t.w[1]->session;
    static const uint32_t expected[] = { KVD_INVALID_ARGUMENT, KVD_INVALID_ARGUMENT, KVD_INVALID_ARGUMENT,
                                         KVD_INVALID_ARGUMENT, KVD_NOT_FOUND };
    struct kvd_group groups[] = { { 1, { w0 } },
                                  { 2, { w1, w0 } },
                                  { 2, { w0, w0 } },
                                  { 2, { w0, t.s->session } },
                                  { 2, { w0, { w1.bits + (UINT64_C(1) << 32) } } } };
    for (size_t i = 0; i < 5; i++) KVT_EQ(ask(t.s, REQUEST(FRAME_OPEN_GROUP, .u.group = groups[i])), expected[i]);
    fx_cut(t.w[1]);
    KVT_EQ(ask(t.s, REQUEST(FRAME_OPEN_GROUP, .u.group = { 2, { w0, w1 } })), KVD_FAILED_PRECONDITION);
    KVT_EQ(fx_stats(t.s).groups, 1);
    team_stop(&t);
}

/* The end of any member ends the lease; the pages wait for the living ones to yield. */
static void group_ends_with_any_member(void) {
    for (int dead = 0; dead < 2; dead++) {
        struct team t;
        struct kvd_activated a, b;
        struct kvd_event e;
        KVT_NEED(team_start(&t));
        struct fx_peer *living = t.w[1 - dead];
        KVT_EQ(subscribe(living, KVD_EVENT_MASK(KVD_EVENT_SESSION_LOST) | KVD_EVENT_MASK(KVD_EVENT_SEQUENCE_ENDED)),
               KVD_OK);
        KVT_EQ(team_activate(&t, &a), KVD_OK);
        KVT_EQ(team_activate(&t, &b), KVD_OK);
        fx_kill(t.w[dead]);
        KVT_NEED(fx_event(living, &e));
        KVT_EQ(e.kind, KVD_EVENT_SESSION_LOST);
        KVT_EQ(fx_stats(t.s).sequences, 2);
        KVT_EQ(fx_round(t.s, a.sequence, 64, KVD_UNCHANGED, NULL), KVD_FAILED_PRECONDITION);
        KVT_EQ(team_activate(&t, &a), KVD_FAILED_PRECONDITION); /* the group is broken */
        KVT_EQ(yielded(living), 2);
        KVT_EQ(fx_stats(t.s).sequences, 0);
        KVT_NEED(fx_event(living, &e));
        KVT_EQ(e.kind, KVD_EVENT_SEQUENCE_ENDED);
        KVT_EQ(fx_stats(t.s).pool[0].available, 256);
        KVT_EQ(ask(t.s, REQUEST(FRAME_CLOSE_GROUP, .u.group_id = t.group)), KVD_OK);
        team_stop(&t);
    }
}

static void group_dead_scheduler_needs_every_yield(void) {
    struct team t;
    struct kvd_activated a;
    KVT_NEED(team_start(&t));
    KVT_EQ(team_activate(&t, &a), KVD_OK);
    fx_kill(t.s);
    KVT_EQ(yielded(t.w[0]), 1);
    KVT_EQ(fx_stats(t.w[0]).sequences, 1);
    KVT_EQ(fx_stats(t.w[0]).groups, 1);
    fx_kill(t.w[1]); /* gone is as good as yielded */
    KVT_EQ(fx_stats(t.w[0]).sequences, 0);
    KVT_EQ(fx_stats(t.w[0]).groups, 0); /* nobody is left to close it */
    team_stop(&t);
}

static void group_fenced_member_must_be_gone(void) {
    struct team t;
    struct kvd_activated a;
    KVT_NEED(team_start(&t));
    KVT_EQ(team_activate(&t, &a), KVD_OK);
    KVT_EQ(ask(t.s, REQUEST(FRAME_FENCE, .u.session = t.w[1]->session)), KVD_OK);
    KVT_EQ(yielded(t.w[0]), 1);
    KVT_EQ(fx_stats(t.s).sequences, 1);
    fx_kill(t.w[1]);
    KVT_EQ(fx_stats(t.s).sequences, 0);
    team_stop(&t);
}

/* ---- many at random: everything returns ------------------------------------------------------------------ */

static void random_lives(void) {
    uint64_t seed = kvt_seed();
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *admin = fx_session(&fx, KVD_ROLE_ADMIN, 0),
                   *w[3] = { 0 };
    for (int step = 0; step < 400; step++) {
        uint32_t i = kvt_below(&seed, 3);
        struct kvd_activated a;
        if (!w[i]) w[i] = fx_session(&fx, KVD_ROLE_WORKER, 0);
        uint32_t status = fx_activate(s, w[i]->session, 1 + kvt_below(&seed, 300), 1 + kvt_below(&seed, 300), &a);
        KVT_TRUE(status == KVD_OK || status == KVD_RESOURCE_EXHAUSTED || status == KVD_FAILED_PRECONDITION);
        if (status == KVD_OK && kvt_below(&seed, 2)) KVT_EQ(fx_round(w[i], a.sequence, 1, KVD_UNCHANGED, NULL), KVD_OK);
        switch (kvt_below(&seed, 6)) {
        case 0:
            if (status == KVD_OK) KVT_EQ(fx_finish(s, a.sequence), KVD_OK);
            break;
        case 1:
            fx_kill(w[i]);
            fx_peer_free(w[i]);
            w[i] = NULL;
            break;
        case 2:
            KVT_EQ(ask(w[i], REQUEST(FRAME_GOODBYE)), KVD_OK);
            fx_peer_free(w[i]);
            w[i] = NULL;
            break;
        case 3:
            KVT_EQ(ask(admin, REQUEST(FRAME_FENCE, .u.session = w[i]->session)), KVD_OK);
            fx_kill(w[i]);
            fx_peer_free(w[i]);
            w[i] = NULL;
            break;
        case 4:
            fx_kill(s);
            fx_peer_free(s);
            s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
            for (int k = 0; k < 3; k++)
                if (w[k]) yielded(w[k]);
            break;
        default: break;
        }
        KVT_EQ(ask(admin, REQUEST(FRAME_AUDIT)), KVD_OK);
        KVT_NEED(KVT_EQ(r.u.audit->violations, 0));
    }
    for (int i = 0; i < 3; i++) fx_peer_free(w[i]);
    fx_peer_free(s);
    KVT_EQ(fx_stats(admin).sequences, 0);
    KVT_EQ(fx_stats(admin).sessions, 1);
    fx_peer_free(admin);
    fx_stop(&fx);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(eof_quarantines_exit_ends),
                                             KVT_CASE(reconnect_lifts_the_quarantine),
                                             KVT_CASE(exit_without_eof),
                                             KVT_CASE(goodbye_ends_at_once),
                                             KVT_CASE(dead_scheduler_waits_for_the_worker),
                                             KVT_CASE(nobody_leaves_what_nobody_can_find),
                                             KVT_CASE(nothing_is_left_behind_a_scheduler),
                                             KVT_CASE(fence_refuses_and_waits_for_the_exit),
                                             KVT_CASE(only_the_same_user_or_an_admin_fences),
                                             KVT_CASE(group_leader_drives),
                                             KVT_CASE(row_5_nobody_finishes_under_a_running_unit),
                                             KVT_CASE(row_5_a_unit_ends_with_its_process),
                                             KVT_CASE(group_members_are_checked),
                                             KVT_CASE(group_ends_with_any_member),
                                             KVT_CASE(group_dead_scheduler_needs_every_yield),
                                             KVT_CASE(group_fenced_member_must_be_gone),
                                             KVT_CASE(random_lives),
                                             { 0 } };
    return kvt_main("service_death", cases, argc, argv);
}
