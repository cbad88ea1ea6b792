/* SPDX-License-Identifier: Apache-2.0
 *
 * Events and the window of answers: bounded, counted, in order.
 */
#include <stdlib.h>

#include "core.h" /* to look at what is kept */
#include "pending.h"
#include "service_fixture.h"

static struct fx fx;
static struct msg_reply r;

#define REQUEST(t, ...)                                                                                                \
    &(struct msg_request) { .type = (t), __VA_ARGS__ }
#define MASK(kind) KVD_EVENT_MASK(KVD_EVENT_##kind)

static uint32_t ask(struct fx_peer *p, struct msg_request *q) { return fx_call(p, q, &r) ? r.status : UINT32_MAX; }
static uint32_t subscribe(struct fx_peer *p, uint32_t mask) {
    return ask(p, REQUEST(FRAME_SUBSCRIBE, .u.event_mask = mask));
}

static void only_what_was_asked_for(void) {
    struct kvd_event e;
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *a = fx_session(&fx, KVD_ROLE_OBSERVER, 0), *b = fx_session(&fx, KVD_ROLE_OBSERVER, 0),
                   *admin = fx_session(&fx, KVD_ROLE_ADMIN, 0);
    KVT_EQ(subscribe(a, 1u << 30), KVD_INVALID_ARGUMENT);
    KVT_EQ(subscribe(a, MASK(PRESSURE)), KVD_OK);
    KVT_EQ(subscribe(a, MASK(DRAINING)), KVD_OK); /* replaces */
    KVT_EQ(subscribe(b, MASK(PRESSURE)), KVD_OK);
    KVT_EQ(ask(admin, REQUEST(FRAME_DRAIN, .u.drain = true)), KVD_OK);
    KVT_EQ(ask(admin, REQUEST(FRAME_DRAIN, .u.drain = true)), KVD_OK); /* no news */
    KVT_NEED(fx_event(a, &e));
    KVT_EQ(e.kind, KVD_EVENT_DRAINING);
    KVT_EQ(e.epoch, fx.epoch);
    KVT_FALSE(fx_event(a, &e));
    KVT_FALSE(fx_event(b, &e));
    struct kvd_activated made;
    KVT_EQ(fx_activate(admin, admin->session, 64, 64, &made), KVD_UNAVAILABLE);
    KVT_EQ(ask(admin, REQUEST(FRAME_DRAIN, .u.drain = false)), KVD_OK);
    KVT_EQ(fx_activate(admin, admin->session, 64, 64, &made), KVD_OK);
    KVT_EQ(subscribe(a, 0), KVD_OK);
    KVT_EQ(ask(admin, REQUEST(FRAME_DRAIN, .u.drain = true)), KVD_OK);
    KVT_FALSE(fx_event(a, &e));
    fx_peer_free(a);
    fx_peer_free(b);
    fx_peer_free(admin);
    fx_stop(&fx);
}

/* Told once on the way down and once on the way up; between the marks nothing is said. */
static void pressure_has_hysteresis(void) {
    struct kvd_event e;
    struct kvd_activated a[4];
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .more = "[limits]\nlow_water = 25\nhigh_water = 50\n" }));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *o = fx_session(&fx, KVD_ROLE_OBSERVER, 0);
    KVT_EQ(subscribe(o, MASK(PRESSURE)), KVD_OK);
    for (int i = 0; i < 3; i++)
        KVT_EQ(fx_activate(s, s->session, 2048, 2049, &a[i]), KVD_OK); /* 64 pages each, of 256 */
    KVT_FALSE(fx_event(o, &e));                                        /* 25 % is not below 25 % */
    KVT_EQ(fx_activate(s, s->session, 10, 10, &a[3]), KVD_OK);
    KVT_NEED(fx_event(o, &e));
    KVT_EQ(e.kind, KVD_EVENT_PRESSURE);
    KVT_EQ(e.pool, 0);
    KVT_EQ(e.available, 63);
    KVT_EQ(fx_finish(s, a[3].sequence), KVD_OK);
    KVT_EQ(fx_activate(s, s->session, 10, 10, &a[3]), KVD_OK);
    KVT_EQ(fx_finish(s, a[0].sequence), KVD_OK); /* 127 available: 49.6 % */
    KVT_FALSE(fx_event(o, &e));
    KVT_EQ(fx_finish(s, a[1].sequence), KVD_OK);
    KVT_NEED(fx_event(o, &e));
    KVT_EQ(e.available, 191);
    KVT_FALSE(fx_event(o, &e));
    fx_peer_free(s);
    fx_peer_free(o);
    fx_stop(&fx);
}

/* SPACE-4: the round that cannot grow its lease says so in its result, and those concerned are told once. */
static void bounded_is_told(void) {
    struct kvd_event e;
    struct kvd_activated a, big;
    struct kvd_round_result result;
    KVT_NEED(fx_start(&fx, &(struct fx_setup){
                               .growth = true, .capacity_tokens = 8192, .more = "window = 64\nprefill_chunk = 64\n" }));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *w = fx_session(&fx, KVD_ROLE_WORKER, 0);
    KVT_EQ(subscribe(s, MASK(BOUNDED)), KVD_OK);
    KVT_EQ(subscribe(w, MASK(BOUNDED)), KVD_OK);
    KVT_EQ(fx_activate(s, w->session, 64, 4000, &a), KVD_OK);
    uint32_t entitled = a.pool[0].entitlement;
    KVT_TRUE(entitled < 10);
    while (fx_activate(s, s->session, 1000, 1, &big) == KVD_OK) continue; /* takes the rest */
    while (fx_activate(s, s->session, 1, 1, &big) == KVD_OK) continue;
    KVT_EQ(fx_round(w, a.sequence, 64, entitled * 64, &result), KVD_OK);
    uint32_t tokens = entitled * 64;
    KVT_EQ(fx_round(w, a.sequence, tokens, tokens + 200, &result), KVD_OK);
    if (!result.bounded) { /* there was still a little */
        tokens = result.pool[0].entitlement * 64;
        KVT_EQ(fx_round(w, a.sequence, KVD_UNCHANGED, tokens + 64, &result), KVD_OK);
    }
    while (!result.bounded) {
        tokens = result.pool[0].entitlement * 64;
        KVT_NEED(fx_round(w, a.sequence, KVD_UNCHANGED, tokens + 64, &result) == KVD_OK);
    }
    KVT_EQ(result.bounded_frontier, result.pool[0].entitlement * 64);
    KVT_NEED(fx_event(s, &e));
    KVT_EQ(e.kind, KVD_EVENT_BOUNDED);
    KVT_EQ(e.sequence.bits, a.sequence.bits);
    KVT_EQ(e.frontier, result.bounded_frontier);
    KVT_NEED(fx_event(w, &e));
    KVT_EQ(fx_round(w, a.sequence, KVD_UNCHANGED, tokens + 64, &result), KVD_OK);
    KVT_TRUE(result.bounded);
    KVT_FALSE(fx_event(s, &e)); /* said once */
    fx_peer_free(s);
    fx_peer_free(w);
    fx_stop(&fx);
}

/* A reader that does not read loses the oldest, is told how many, and stops nobody. */
static void slow_readers_lose_counted_events(void) {
    struct kvd_event e;
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .more = "[limits]\nevent_queue = 8\n" }));
    struct fx_peer *slow = fx_session(&fx, KVD_ROLE_OBSERVER, 0), *fine = fx_session(&fx, KVD_ROLE_OBSERVER, 0), *w[20];
    KVT_EQ(subscribe(slow, MASK(SESSION_LOST)), KVD_OK);
    KVT_EQ(subscribe(fine, MASK(SESSION_LOST)), KVD_OK);
    slow->slow = true;
    for (int i = 0; i < 20; i++) {
        w[i] = fx_session(&fx, KVD_ROLE_WORKER, 0);
        fx_kill(w[i]);
    }
    for (int i = 0; i < 20; i++) {
        KVT_NEED(fx_event(fine, &e));
        KVT_EQ(e.session.bits, w[i]->session.bits); /* in order */
        KVT_EQ(e.dropped, 0);
    }
    KVT_FALSE(fx_event(slow, &e));
    slow->slow = false;
    service_link_drained(fx.service, &slow->link);
    for (int i = 12; i < 20; i++) {
        KVT_NEED(fx_event(slow, &e));
        KVT_EQ(e.session.bits, w[i]->session.bits);
        KVT_EQ(e.dropped, i == 12 ? 12 : 0);
    }
    KVT_FALSE(fx_event(slow, &e));
    KVT_EQ(fx_stats(fine).events_dropped, 12);
    for (int i = 0; i < 20; i++) fx_peer_free(w[i]);
    fx_peer_free(slow);
    fx_peer_free(fine);
    fx_stop(&fx);
}

/* SRV-5: who leaves in order is not lost; only those who share its work are told, as they have to yield. */
static void an_orderly_end_is_no_loss(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *look = fx_session(&fx, KVD_ROLE_OBSERVER, 0), *idle = fx_session(&fx, KVD_ROLE_WORKER, 0),
                   *worker = fx_session(&fx, KVD_ROLE_WORKER, 0), *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct kvd_activated a;
    struct kvd_event e;
    KVT_EQ(subscribe(look, MASK(SESSION_LOST)), KVD_OK);
    KVT_EQ(subscribe(worker, MASK(SESSION_LOST)), KVD_OK);
    KVT_EQ(ask(idle, REQUEST(FRAME_GOODBYE)), KVD_OK);
    KVT_EQ(fx_activate(s, worker->session, 64, 64, &a), KVD_OK);
    KVT_EQ(ask(s, REQUEST(FRAME_GOODBYE)), KVD_OK);
    KVT_NEED(fx_event(worker, &e));
    KVT_EQ(e.session.bits, s->session.bits);
    KVT_FALSE(fx_event(worker, &e));
    KVT_FALSE(fx_event(look, &e));
    fx_peer_free(idle);
    fx_peer_free(s);
    fx_peer_free(worker);
    fx_peer_free(look);
    fx_stop(&fx);
}

static void a_subscriber_may_vanish(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *a = fx_session(&fx, KVD_ROLE_OBSERVER, 0), *b = fx_session(&fx, KVD_ROLE_OBSERVER, 0),
                   *c = fx_session(&fx, KVD_ROLE_WORKER, 0);
    struct kvd_event e;
    KVT_EQ(subscribe(a, MASK(SESSION_LOST)), KVD_OK);
    KVT_EQ(subscribe(b, MASK(SESSION_LOST)), KVD_OK);
    a->slow = true;
    fx_kill(c); /* a is left with a queued event */
    KVT_TRUE(fx_event(b, &e));
    fx_kill(a);
    KVT_TRUE(fx_event(b, &e));
    KVT_EQ(e.session.bits, a->session.bits);
    fx_peer_free(a);
    fx_peer_free(c);
    KVT_EQ(fx_stats(b).sessions, 1);
    fx_peer_free(b);
    fx_stop(&fx);
}

/* SRV-1, bounded: 64 answers or 256 KiB a session, and the newest is always there. */
static void large_answers_push_out_old_ones(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct kvd_round_item items[256];
    for (int i = 0; i < 256; i++) items[i] = (struct kvd_round_item){ .sequence.bits = (uint64_t)i + 1 };
    struct msg_request q = { .type = FRAME_ROUND, .header.session = s->session, .u.round = { 256, items } };
    for (q.header.sequence = 1; q.header.sequence <= 40; q.header.sequence++) {
        KVT_NEED(fx_call_as_is(s, &q, &r));
        KVT_EQ(r.status, KVD_OK);
        KVT_EQ(r.u.round.n, 256);
        KVT_EQ(r.u.round.items[255].status, KVD_NOT_FOUND);
        KVT_HAS(r.u.round.items[0].message, "does not exist");
    }
    q.header.sequence = 1;
    KVT_NEED(fx_call_as_is(s, &q, &r));
    KVT_EQ(r.status, KVD_OUT_OF_RANGE);
    for (q.header.sequence = 36; q.header.sequence <= 40; q.header.sequence++) {
        KVT_NEED(fx_call_as_is(s, &q, &r));
        KVT_EQ(r.status, KVD_OK);
    }
    fx_peer_free(s);
    fx_stop(&fx);
}

/* Bounded in total: when many sessions have large answers each keeps fewer, but always its newest. */
static void all_answers_together_are_bounded(void) {
    enum { SESSIONS = 160 };
    static struct fx_peer *p[SESSIONS];
    KVT_NEED(fx_start(&fx, NULL));
    struct kvd_round_item items[256];
    for (int i = 0; i < 256; i++) items[i] = (struct kvd_round_item){ .sequence.bits = (uint64_t)i + 1 };
    p[0] = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    for (int i = 1; i < SESSIONS; i++) {
        p[i] = fx_peer_again(p[0]);
        KVT_EQ(fx_hello(p[i], KVD_ROLE_SCHEDULER, 0), KVD_OK);
    }
    struct msg_request q = { .type = FRAME_ROUND, .u.round = { 256, items } };
    size_t most = 0;
    for (int i = 0; i < SESSIONS; i++)
        for (int turn = 0; turn < 24; turn++) {
            q.header = (struct msg_header){ 0 };
            KVT_NEED(fx_call(p[i], &q, &r));
            if (fx.service->answer_bytes > most) most = fx.service->answer_bytes;
        }
    printf("    %zu bytes at most\n", most);
    KVT_TRUE(most > ANSWER_TOTAL); /* the limit was reached */
    KVT_TRUE(most <= ANSWER_TOTAL + SESSIONS * (size_t)ANSWER_LEAST);
    for (int i = 0; i < SESSIONS; i++) {
        q.header = (struct msg_header){ .session = p[i]->session, .sequence = p[i]->sequence };
        KVT_NEED(fx_call_as_is(p[i], &q, &r));
        KVT_EQ(r.status, KVD_OK);
    }
    struct msg_request bye = { .type = FRAME_GOODBYE };
    for (int i = 0; i < SESSIONS; i++) {
        bye.header = (struct msg_header){ 0 };
        KVT_NEED(fx_call(p[i], &bye, &r));
    }
    KVT_EQ(fx.service->answer_bytes, 0);
    for (int i = SESSIONS; i-- > 0;) fx_peer_free(p[i]);
    fx_stop(&fx);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(only_what_was_asked_for),
                                             KVT_CASE(pressure_has_hysteresis),
                                             KVT_CASE(bounded_is_told),
                                             KVT_CASE(slow_readers_lose_counted_events),
                                             KVT_CASE(an_orderly_end_is_no_loss),
                                             KVT_CASE(a_subscriber_may_vanish),
                                             KVT_CASE(large_answers_push_out_old_ones),
                                             KVT_CASE(all_answers_together_are_bounded),
                                             { 0 } };
    return kvt_main("service_events", cases, argc, argv);
}
