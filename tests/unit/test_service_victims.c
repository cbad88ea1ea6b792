/* SPDX-License-Identifier: Apache-2.0
 *
 * Who gives way at the service: the list that stands for growth (FIT-4), the recipe of a checkpoint (FIT-1), and a
 * victim that is shortened (SHORT-1): whose list it is, how long it stands, who may name whom, and what is told.
 */
#include <string.h>

#include "service_fixture.h"

static struct fx fx;
static struct msg_reply r;

#define REQUEST(t, ...)                                                                                                \
    &(struct msg_request) { .type = (t), __VA_ARGS__ }
#define ALL 64u /* pages */

static const struct fx_setup small = { .capacity_tokens = 64 * ALL,
                                       .growth = true,
                                       .more = "window = 256\nprefill_chunk = 256\n" };

static uint32_t ask(struct fx_peer *p, struct msg_request *q) { return fx_call(p, q, &r) ? r.status : UINT32_MAX; }

static uint32_t round_to(struct fx_peer *p, kvd_sequence seq, uint32_t commit, uint32_t ensure,
                         struct kvd_round_result *ret) {
    return fx_round(p, seq, commit, ensure, ret);
}

static void name_all(struct fx_peer *p, kvd_sequence seq, uint32_t pages, uint8_t salt) {
    kvd_digest digests[ALL];
    for (uint32_t i = 0; i < pages; i++) digests[i] = (kvd_digest){ { salt, (uint8_t)(i + 1) } };
    KVT_EQ(ask(p, REQUEST(FRAME_NAME_PAGES, .u.names = { seq, 0, pages, digests })), KVD_OK);
}

/* An idle continuation of so many named pages. */
static kvd_continuation idle(struct fx_peer *s, uint32_t pages, uint8_t salt) {
    struct kvd_activated a;
    KVT_EQ(fx_activate(s, s->session, pages * 64, 1, &a), KVD_OK);
    KVT_EQ(round_to(s, a.sequence, KVD_UNCHANGED, pages * 64, NULL), KVD_OK);
    KVT_EQ(round_to(s, a.sequence, pages * 64, KVD_UNCHANGED, NULL), KVD_OK);
    name_all(s, a.sequence, pages, salt);
    KVT_EQ(ask(s, REQUEST(FRAME_FINISH, .u.finish = { .sequence = a.sequence, .retain = true })), KVD_OK);
    return r.u.finished.continuation;
}

static uint32_t set_list(struct fx_peer *s, kvd_sequence seq, const struct kvd_victim *victims, uint32_t n) {
    return ask(s, REQUEST(FRAME_SET_GROWTH_VICTIMS, .u.growth = { seq, n, victims }));
}

/* The answer goes on, page by page, to the end or to where it is bounded. Returns the frontier. */
static uint32_t answer(struct fx_peer *p, kvd_sequence seq, uint32_t at, uint32_t end) {
    struct kvd_round_result result;
    while (at < end) {
        uint32_t next = at + 64 < end ? at + 64 : end;
        KVT_EQ(round_to(p, seq, KVD_UNCHANGED, next, &result), KVD_OK);
        if (result.bounded) return result.bounded_frontier;
        KVT_EQ(round_to(p, seq, next, KVD_UNCHANGED, &result), KVD_OK);
        at = next;
    }
    return at;
}

static uint32_t events_of(struct fx_peer *p, uint32_t kind, struct kvd_event *ret_last) {
    struct kvd_event event;
    uint32_t n = 0;
    while (fx_event(p, &event)) {
        if (event.kind != kind) continue;
        *ret_last = event;
        n++;
    }
    return n;
}

/* FIT-4: 50 of 64 pages are idle. Without a list the answer is cut; with one all of it is there, and each that went is
 * told. The list of a session serves its sequences. */
static void fit_4_an_answer_is_not_cut(void) {
    for (int listed = 0; listed < 2; listed++) {
        KVT_NEED(fx_start(&fx, &small));
        struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *w = fx_session(&fx, KVD_ROLE_WORKER, 0);
        struct kvd_victim victims[5] = { 0 };
        struct kvd_activated a;
        struct kvd_event event = { 0 };
        for (uint8_t i = 0; i < 5; i++) victims[i].continuation = idle(s, 10, (uint8_t)(i + 1));
        KVT_EQ(ask(s, REQUEST(FRAME_SUBSCRIBE, .u.event_mask = KVD_EVENT_MASK(KVD_EVENT_GAVE_WAY))), KVD_OK);
        if (listed) {
            struct msg_request q = { .type = FRAME_SET_GROWTH_VICTIMS, .u.growth = { { 0 }, 5, victims } };
            KVT_EQ(ask(s, &q), KVD_OK);
            KVT_TRUE(fx_call_as_is(s, &q, &r)); /* the message twice: the same list */
            KVT_EQ(r.status, KVD_OK);
        }
        KVT_EQ(fx_activate(s, w->session, 100, 2000, &a), KVD_OK);
        uint32_t end = answer(w, a.sequence, 0, 2099);
        if (!listed) {
            KVT_TRUE(end < 1024);
            KVT_EQ(events_of(s, KVD_EVENT_GAVE_WAY, &event), 0);
        } else {
            KVT_EQ(end, 2099);
            KVT_EQ(events_of(s, KVD_EVENT_GAVE_WAY, &event), 2); /* of 33 pages 14 were free */
            KVT_EQ(event.continuation.bits, victims[1].continuation.bits);
            KVT_EQ(event.sequence.bits, a.sequence.bits);
            KVT_EQ(event.frontier, 0);
            KVT_EQ(fx_stats(s).continuations, 3);
        }
        KVT_EQ(fx_audit(&fx), 0);
        fx_peer_free(w);
        fx_peer_free(s);
        fx_stop(&fx);
    }
}

/* FIT-4: a sequence's own list comes before its session's, ends with the sequence, and an empty one takes it away; the
 * list of a session that dies is nobody's. */
static void fit_4_whose_list_and_how_long(void) {
    KVT_NEED(fx_start(&fx, &small));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *o = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct kvd_victim a = { .continuation = idle(s, 18, 1) }, b = { .continuation = idle(s, 18, 2) },
                      tail = { .continuation = idle(s, 18, 3), .frontier = 64 * 2 };
    struct kvd_activated first, second;
    struct kvd_round_result result;
    KVT_EQ(fx_activate(s, s->session, 100, 2000, &first), KVD_OK); /* 10 pages are left of 64 */
    KVT_EQ(set_list(s, (kvd_sequence){ 0 }, &a, 1), KVD_OK);
    KVT_EQ(set_list(s, first.sequence, &tail, 1), KVD_OK);
    KVT_EQ(set_list(o, first.sequence, &b, 1), KVD_PERMISSION_DENIED);
    KVT_EQ(set_list(s, (kvd_sequence){ 77 }, &b, 1), KVD_NOT_FOUND);
    KVT_EQ(round_to(s, first.sequence, KVD_UNCHANGED, 64 * 12, &result), KVD_OK);
    KVT_FALSE(result.bounded);
    struct msg_request list = { .type = FRAME_LIST_CONTINUATIONS, .u.list.max = 8 };
    KVT_EQ(ask(s, &list), KVD_OK);
    KVT_EQ(r.u.continuations.n, 3);
    for (uint32_t i = 0; i < 3; i++)
        KVT_EQ(r.u.continuations.items[i].frontier,
               r.u.continuations.items[i].continuation.bits == tail.continuation.bits ? 128u : 64u * 18);
    KVT_EQ(set_list(s, first.sequence, NULL, 0), KVD_OK); /* the session's again */
    KVT_EQ(round_to(s, first.sequence, KVD_UNCHANGED, 64 * 30, &result), KVD_OK);
    KVT_FALSE(result.bounded);
    KVT_EQ(fx_stats(s).continuations, 2); /* a went */
    KVT_EQ(fx_finish(s, first.sequence), KVD_OK);
    KVT_EQ(set_list(s, (kvd_sequence){ 0 }, &b, 1), KVD_OK);
    fx_kill(s); /* and its list with it */
    struct fx_peer *again = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    KVT_EQ(fx_activate(again, again->session, 100, 3000, &second), KVD_OK);
    KVT_EQ(answer(again, second.sequence, 0, 3099) < 3099, 1);
    KVT_EQ(fx_stats(o).continuations, 2);
    KVT_EQ(fx_audit(&fx), 0);
    fx_peer_free(again);
    fx_peer_free(s);
    fx_peer_free(o);
    fx_stop(&fx);
}

/* FIT-1: a checkpoint in a pool full of idle cache names who goes; a worker may not, and a refusal changes nothing. */
static void fit_1_a_checkpoint_with_victims(void) {
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .capacity_tokens = 64 * ALL }));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *w = fx_session(&fx, KVD_ROLE_WORKER, 0);
    struct kvd_victim one = { .continuation = idle(s, 30, 1) }, tail = { .continuation = idle(s, 24, 2) };
    struct kvd_activated a;
    KVT_EQ(fx_activate(s, w->session, 600, 41, &a), KVD_OK); /* 10 pages: all are taken */
    KVT_EQ(round_to(w, a.sequence, KVD_UNCHANGED, 600, NULL), KVD_OK);
    KVT_EQ(round_to(w, a.sequence, 600, KVD_UNCHANGED, NULL), KVD_OK);
    name_all(w, a.sequence, 9, 9);
    struct kvd_checkpoint want = { .sequence = a.sequence, .tail.n = 24 };
    KVT_EQ(ask(s, REQUEST(FRAME_CHECKPOINT, .u.checkpoint = want)), KVD_RESOURCE_EXHAUSTED);
    tail.frontier = 64 * 23;
    want.n_victims = 1;
    want.victims = &tail;
    KVT_EQ(ask(w, REQUEST(FRAME_CHECKPOINT, .u.checkpoint = want)), KVD_PERMISSION_DENIED);
    struct kvd_victim gone = { .continuation.bits = one.continuation.bits + (UINT64_C(7) << 40) };
    want.victims = &gone;
    KVT_EQ(ask(s, REQUEST(FRAME_CHECKPOINT, .u.checkpoint = want)), KVD_NOT_FOUND);
    want.victims = &tail;
    want.revision = 1;
    KVT_EQ(ask(s, REQUEST(FRAME_CHECKPOINT, .u.checkpoint = want)), KVD_ABORTED);
    KVT_EQ(fx_stats(s).pool[0].available, 0);
    want.revision = fx_stats(s).revision;
    struct msg_request q = { .type = FRAME_CHECKPOINT, .u.checkpoint = want };
    KVT_EQ(ask(s, &q), KVD_OK);
    KVT_EQ(r.u.checkpointed.frontier, 600);
    kvd_continuation made = r.u.checkpointed.continuation;
    KVT_TRUE(fx_call_as_is(s, &q, &r)); /* the message twice */
    KVT_EQ(r.u.checkpointed.continuation.bits, made.bits);
    KVT_EQ(fx_stats(s).continuations, 3);
    KVT_EQ(fx_audit(&fx), 0);
    fx_peer_free(w);
    fx_peer_free(s);
    fx_stop(&fx);
}

/* SHORT-1, ACT-8: plan says what the tail gives, and the activation takes it. */
static void short_1_a_recipe_that_shortens(void) {
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .capacity_tokens = 64 * ALL }));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct kvd_victim victim = { .continuation = idle(s, 60, 1), .frontier = 64 * 50 };
    struct kvd_activation want = { .worker = s->session,
                                   .root.digest = fx_domain,
                                   .prompt_tokens = 64 * 14,
                                   .max_output_tokens = 1,
                                   .n_victims = 1,
                                   .victims = &victim };
    KVT_EQ(ask(s, REQUEST(FRAME_PLAN, .u.activation = want)), KVD_OK);
    KVT_EQ(r.u.plan.feasibility, KVD_READY);
    KVT_EQ(r.u.plan.freed_pages[0], 10);
    struct kvd_activation bare = want;
    bare.n_victims = 0;
    KVT_EQ(ask(s, REQUEST(FRAME_CHOOSE, .u.choose = { .activation = bare, .order = KVD_ORDER_RETENTION_USED })),
           KVD_OK);
    KVT_EQ(r.u.choice.n, 1);
    KVT_EQ(r.u.choice.victims[0].frontier, 64 * 50);
    KVT_EQ(ask(s, REQUEST(FRAME_ACTIVATE, .u.activation = want)), KVD_OK);
    KVT_EQ(fx_stats(s).pool[0].available, 0);
    KVT_EQ(fx_stats(s).continuations, 1);
    KVT_EQ(fx_audit(&fx), 0);
    fx_peer_free(s);
    fx_stop(&fx);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(fit_4_an_answer_is_not_cut),
                                             KVT_CASE(fit_4_whose_list_and_how_long),
                                             KVT_CASE(fit_1_a_checkpoint_with_victims),
                                             KVT_CASE(short_1_a_recipe_that_shortens),
                                             { 0 } };
    return kvt_main("service_victims", cases, argc, argv);
}
