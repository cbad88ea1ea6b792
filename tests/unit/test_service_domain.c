/* SPDX-License-Identifier: Apache-2.0
 *
 * Domains at the service (NAME-1): who names none is refused, lists show and filter them, and one can be forgotten.
 * What the lists show is followed by its changes (FEED-1).
 */
#include "service_fixture.h"

static struct fx fx;
static struct msg_reply r;

#define REQUEST(t, ...)                                                                                                \
    &(struct msg_request) { .type = (t), __VA_ARGS__ }

static uint32_t ask(struct fx_peer *p, struct msg_request *q) { return fx_call(p, q, &r) ? r.status : UINT32_MAX; }

static struct kvd_root domain(uint8_t d, const char *label) {
    struct kvd_root root = { .digest = { { d } } };
    snprintf(root.label, sizeof root.label, "%s", label);
    return root;
}

/* A running sequence of 30 tokens: less than a page. */
static kvd_sequence running(struct fx_peer *s, const struct kvd_root *root) {
    struct msg_request q = { .type = FRAME_ACTIVATE,
                             .u.activation = { .root = *root,
                                               .worker = s->session,
                                               .prompt_tokens = 30,
                                               .max_output_tokens = 9,
                                               .ensure = { 30 } } };
    KVT_EQ(ask(s, &q), KVD_OK);
    kvd_sequence sequence = r.u.activated.sequence;
    KVT_EQ(fx_round(s, sequence, 30, KVD_UNCHANGED, NULL), KVD_OK);
    return sequence;
}

/* Each of another text, or equal ones would be one; the first is thirty zeros. */
static uint32_t texts;
static kvd_continuation kept(struct fx_peer *s, const struct kvd_root *root) {
    KVT_EQ(ask(s, REQUEST(FRAME_FINISH, .u.finish = { running(s, root), .retain = true,
                                                      .tail = { .n = 30, .tokens = { texts++ } } })),
           KVD_OK);
    return r.u.finished.continuation;
}

/* Whole list of a domain; NULL: of all. */
static uint32_t listed(struct fx_peer *p, uint16_t type, const struct kvd_root *root) {
    uint32_t n = 0, cursor = 0;
    while (cursor != KVD_UNCHANGED) {
        struct msg_request q = { .type = type, .u.list = { .cursor = cursor } };
        if (root) q.u.list.root = *root;
        KVT_EQ(ask(p, &q), KVD_OK);
        bool conts = type == FRAME_LIST_CONTINUATIONS;
        n += conts ? r.u.continuations.n : r.u.sequences.n;
        cursor = conts ? r.u.continuations.next_cursor : r.u.sequences.next_cursor;
    }
    return n;
}

/* NAME-1: without a root nothing is activated and nothing is found; a source of another domain is none. */
static void name_1_roots_are_needed_and_compared(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct kvd_root one = domain(1, "one"), two = domain(2, "two");
    texts = 0;
    kvd_continuation cont = kept(s, &one);
    s->rootless = true;
    struct kvd_activation want = { .worker = s->session, .prompt_tokens = 40, .max_output_tokens = 9 };
    KVT_EQ(ask(s, REQUEST(FRAME_ACTIVATE, .u.activation = want)), KVD_INVALID_ARGUMENT);
    KVT_HAS(r.message, "kvd_chain_root");
    KVT_EQ(ask(s, REQUEST(FRAME_FIND, .u.find = { .max = 4, .prompt_tokens = 40, .tokens.n = 40 })),
           KVD_INVALID_ARGUMENT);
    KVT_HAS(r.message, "kvd_chain_root");
    struct kvd_find find = { .root = two.digest, .max = 4, .prompt_tokens = 40, .tokens.n = 40 };
    KVT_EQ(ask(s, REQUEST(FRAME_FIND, .u.find = find)), KVD_OK);
    KVT_EQ(r.u.hits.n, 0); /* the same thirty tokens */
    find.root = one.digest;
    KVT_EQ(ask(s, REQUEST(FRAME_FIND, .u.find = find)), KVD_OK);
    KVT_EQ(r.u.hits.n, 1);
    KVT_EQ(r.u.hits.items[0].usable, 30);
    want.from = cont;
    want.keep = true;
    want.frontier = 30;
    struct msg_request choose = { .type = FRAME_CHOOSE,
                                  .u.choose = { .activation = want, .order = KVD_ORDER_RETENTION_USED } };
    KVT_EQ(ask(s, REQUEST(FRAME_PLAN, .u.activation = want)), KVD_OK); /* who plans or chooses need not say it */
    KVT_EQ(ask(s, &choose), KVD_OK);
    want.root = choose.u.choose.activation.root = two;
    KVT_EQ(ask(s, REQUEST(FRAME_PLAN, .u.activation = want)), KVD_INVALID_ARGUMENT);
    choose.header = (struct msg_header){ 0 };
    KVT_EQ(ask(s, &choose), KVD_INVALID_ARGUMENT);
    KVT_HAS(r.message, "not of the domain");
    KVT_EQ(ask(s, REQUEST(FRAME_ACTIVATE, .u.activation = want)), KVD_INVALID_ARGUMENT);
    KVT_HAS(r.message, "not of the domain");
    want.root = one;
    KVT_EQ(ask(s, REQUEST(FRAME_ACTIVATE, .u.activation = want)), KVD_OK);
    fx_peer_free(s);
    fx_stop(&fx);
}

/* Lists show the domain, and only that of whoever asks for one: by digest, by label, by both. */
static void name_1_lists_by_domain(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct kvd_root one = domain(1, "lora-1"), two = domain(2, "lora-2"), renamed = domain(1, "other");
    kept(s, &one);
    kept(s, &renamed); /* the first label stays */
    kept(s, &two);
    running(s, &two);
    KVT_EQ(listed(s, FRAME_LIST_CONTINUATIONS, NULL), 3);
    KVT_EQ_STR(r.u.continuations.items[1].root.label, "lora-1");
    KVT_EQ_MEM(&r.u.continuations.items[2].root, &two, sizeof two);
    KVT_EQ(listed(s, FRAME_LIST_CONTINUATIONS, &one), 2);
    KVT_EQ(listed(s, FRAME_LIST_CONTINUATIONS, &(struct kvd_root){ .label = "lora-2" }), 1);
    KVT_EQ(listed(s, FRAME_LIST_CONTINUATIONS, &(struct kvd_root){ .digest = one.digest }), 2);
    KVT_EQ(listed(s, FRAME_LIST_CONTINUATIONS, &renamed), 0);
    KVT_EQ(listed(s, FRAME_LIST_SEQUENCES, &one), 0);
    KVT_EQ(listed(s, FRAME_LIST_SEQUENCES, &two), 1);
    KVT_EQ_MEM(&r.u.sequences.items[0].root, &two, sizeof two);
    fx_peer_free(s);
    fx_stop(&fx);
}

/* A domain is forgotten step by step, and nothing else: whoever releases may die in the middle, and a repeated step is
 * not done twice. */
static void name_1_a_domain_is_released(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *dies = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct kvd_root one = domain(1, "lora-1"), two = domain(2, "lora-2");
    for (int i = 0; i < 160; i++) kept(s, i % 4 ? &one : &two);
    running(s, &one);
    KVT_EQ(ask(s, REQUEST(FRAME_RELEASE_DOMAIN, .u.release_domain.cursor = 0)), KVD_INVALID_ARGUMENT);
    KVT_EQ(listed(s, FRAME_LIST_CONTINUATIONS, NULL), 160);
    KVT_EQ(ask(dies, REQUEST(FRAME_RELEASE_DOMAIN, .u.release_domain.root = one)), KVD_OK);
    uint32_t first = r.u.domain_released.released;
    KVT_TRUE(first > 0 && first < 120);
    KVT_TRUE(r.u.domain_released.next_cursor != KVD_UNCHANGED);
    fx_kill(dies);
    uint32_t released = 0, steps = 0;
    for (uint32_t cursor = 0; cursor != KVD_UNCHANGED; steps++) {
        struct msg_request q = { .type = FRAME_RELEASE_DOMAIN,
                                 .u.release_domain = { .root.label = "lora-1", .cursor = cursor } };
        KVT_EQ(ask(s, &q), KVD_OK);
        uint32_t done = r.u.domain_released.released;
        KVT_EQ(fx_call_as_is(s, &q, &r), true); /* the same number again: the first answer */
        KVT_EQ(r.u.domain_released.released, done);
        KVT_EQ(r.u.domain_released.in_use, 0);
        released += done;
        cursor = r.u.domain_released.next_cursor;
    }
    KVT_TRUE(steps > 1);
    KVT_EQ(released, 120 - first);
    KVT_EQ(r.u.domain_released.sequences, 1);
    KVT_EQ(listed(s, FRAME_LIST_CONTINUATIONS, NULL), 40);
    KVT_EQ(listed(s, FRAME_LIST_CONTINUATIONS, &two), 40);
    KVT_EQ(fx_audit(&fx), 0);
    fx_peer_free(dies);
    fx_peer_free(s);
    fx_stop(&fx);
}

/* ---- changes ---- */

/* Reads on in steps of three; what is told last of the continuation. */
static struct kvd_continuation_info told(struct fx_peer *p, uint64_t *cursor, kvd_continuation continuation) {
    struct kvd_continuation_info last = { .continuation = { 0 } };
    bool more = true;
    while (more && KVT_EQ(ask(p, REQUEST(FRAME_LIST_CHANGES, .u.changes = { *cursor, 3 })), KVD_OK)) {
        KVT_TRUE(r.u.changes.n <= 3);
        for (uint32_t i = 0; i < r.u.changes.n; i++)
            if (r.u.changes.items[i].continuation.bits == continuation.bits) last = r.u.changes.items[i];
        *cursor = r.u.changes.cursor;
        more = r.u.changes.more;
    }
    return last;
}

/* FEED-1: from where the changes stand, each one, and again after an answer that was lost. Who asks is an observer. */
static void feed_1_a_reader_follows(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *eye = fx_session(&fx, KVD_ROLE_OBSERVER, 0);
    struct kvd_root one = domain(1, "one");
    texts = 0;
    kvd_continuation before = kept(s, &one);
    KVT_EQ(ask(eye, REQUEST(FRAME_LIST_CHANGES, .u.changes = { 0, 0 })), KVD_OK);
    uint64_t cursor = r.u.changes.cursor, lost = cursor;
    KVT_TRUE(cursor != 0 && r.u.changes.n == 0 && !r.u.changes.more);
    kvd_continuation made[5];
    for (int i = 0; i < 5; i++) made[i] = kept(s, &one);
    struct kvd_continuation_info info = told(eye, &cursor, made[4]);
    KVT_EQ(info.frontier, 30);
    KVT_EQ_STR(info.root.label, "one");
    KVT_EQ(told(eye, &lost, made[0]).frontier, 30); /* the same again */
    KVT_EQ(lost, cursor);
    KVT_EQ(ask(s, REQUEST(FRAME_RELEASE, .u.continuation.continuation = before)), KVD_OK);
    KVT_EQ(ask(s, REQUEST(FRAME_SET_RETENTION, .u.continuation = { made[1], 9 })), KVD_OK);
    KVT_EQ(told(eye, &cursor, made[1]).retention, 9);
    info = told(eye, &lost, before);
    KVT_TRUE(info.continuation.bits == before.bits && info.frontier == 0);
    fx_peer_free(eye);
    fx_peer_free(s);
    fx_stop(&fx);
}

static void is_refused(struct fx_peer *p, uint64_t cursor) {
    KVT_EQ(ask(p, REQUEST(FRAME_LIST_CHANGES, .u.changes = { cursor, 0 })), KVD_OUT_OF_RANGE);
    KVT_HAS(r.message, "begin with cursor 0");
}

/* FEED-1: who is too late, ahead, or comes from another instance, is told so, and begins anew. */
static void feed_1_a_late_reader_is_refused(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct kvd_root one = domain(1, "one");
    texts = 0;
    KVT_EQ(ask(s, REQUEST(FRAME_LIST_CHANGES, .u.changes = { 0, 0 })), KVD_OK);
    uint64_t cursor = r.u.changes.cursor;
    is_refused(s, cursor + 1);
    is_refused(s, cursor ^ UINT64_C(1) << 50);
    is_refused(s, 1);
    kvd_continuation cont = kept(s, &one);
    uint32_t most = fx_stats(s).continuation_limit;
    for (uint32_t i = 0; i < 2 * most + 1100; i++)
        KVT_EQ(ask(s, REQUEST(FRAME_SET_RETENTION, .u.continuation = { cont, i })), KVD_OK);
    is_refused(s, cursor);
    KVT_EQ(ask(s, REQUEST(FRAME_LIST_CHANGES, .u.changes = { 0, 0 })), KVD_OK);
    cursor = r.u.changes.cursor;
    KVT_EQ(told(s, &cursor, cont).continuation.bits, 0);
    KVT_EQ(listed(s, FRAME_LIST_CONTINUATIONS, NULL), 1);
    fx_peer_free(s);
    fx_stop(&fx);
    KVT_NEED(fx_start(&fx, NULL)); /* another instance */
    s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    is_refused(s, cursor);
    fx_peer_free(s);
    fx_stop(&fx);
}

/* FEED-1: an answer passes so many changes, however few of them it tells. Who reads meanwhile waits for no more. */
static void feed_1_answers_are_short(void) {
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .more = "[limits]\ncontinuations = 4096\n" }));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct kvd_root one = domain(1, "one");
    texts = 0;
    kvd_continuation cont = kept(s, &one);
    KVT_EQ(ask(s, REQUEST(FRAME_LIST_CHANGES, .u.changes = { 0, 0 })), KVD_OK);
    uint64_t cursor = r.u.changes.cursor;
    for (uint32_t i = 0; i < 5000; i++)
        KVT_EQ(ask(s, REQUEST(FRAME_SET_RETENTION, .u.continuation = { cont, i })), KVD_OK);
    KVT_EQ(ask(s, REQUEST(FRAME_LIST_CHANGES, .u.changes = { cursor, 0 })), KVD_OK);
    KVT_TRUE(r.u.changes.n == 0 && r.u.changes.more && r.u.changes.cursor > cursor);
    KVT_EQ(told(s, &cursor, cont).retention, 4999);
    fx_peer_free(s);
    fx_stop(&fx);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(name_1_roots_are_needed_and_compared),
                                             KVT_CASE(name_1_lists_by_domain),
                                             KVT_CASE(name_1_a_domain_is_released),
                                             KVT_CASE(feed_1_a_reader_follows),
                                             KVT_CASE(feed_1_a_late_reader_is_refused),
                                             KVT_CASE(feed_1_answers_are_short),
                                             { 0 } };
    return kvt_main("service domain", cases, argc, argv);
}
