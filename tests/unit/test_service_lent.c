/* SPDX-License-Identifier: Apache-2.0
 *
 * ENG-1 to ENG-3 in the service: a message that comes twice, who may ask, a death in the middle, tenants.
 */
#include "service_fixture.h"

#define REQUEST(type_, ...)                                                                                            \
    &(struct msg_request) { .type = (type_), __VA_ARGS__ }

static struct fx fx;
static struct msg_reply r;
static const struct kvd_lent_page three[] = { { 0, { { 1 } } }, { 1, { { 2 } } }, { 2, { { 3 } } } };

static uint32_t ask(struct fx_peer *p, struct msg_request *q) { return fx_call(p, q, &r) ? r.status : UINT32_MAX; }

static kvd_sequence lend(struct fx_peer *p, uint32_t pages) {
    struct kvd_activated a = { 0 };
    KVT_EQ(fx_activate(p, p->session, pages * 64, 1, &a), KVD_OK);
    KVT_EQ(ask(p, REQUEST(FRAME_LEND_PAGES, .u.lend = { a.sequence, true })), KVD_OK);
    return a.sequence;
}

static struct msg_request name_of(kvd_sequence sequence, uint32_t n) {
    return (struct msg_request){ .type = FRAME_NAME_LENT,
                                 .u.lent_names = {
                                     .sequence = sequence, .root.digest = fx_domain, .n = n, .pages = three } };
}

/* SRV-1: each gets its first answer, and is done once. */
static void srv_1_eng_1_a_message_that_comes_twice(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *p = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct kvd_activated a = { 0 };
    KVT_EQ(fx_activate(p, p->session, 8 * 64, 1, &a), KVD_OK);
    struct msg_request lend_it = { .type = FRAME_LEND_PAGES, .u.lend = { a.sequence, true } };
    KVT_EQ(ask(p, &lend_it), KVD_OK);
    KVT_EQ(r.u.lent.pool[0].membership, 8);
    KVT_NEED(fx_call_as_is(p, &lend_it, &r));
    KVT_TRUE(r.status == KVD_OK && r.u.lent.pool[0].membership == 8);
    struct msg_request names = name_of(a.sequence, 2);
    KVT_EQ(ask(p, &names), KVD_OK);
    kvd_continuation made = r.u.lent_named.continuation;
    KVT_NEED(fx_call_as_is(p, &names, &r));
    KVT_TRUE(r.status == KVD_OK && r.u.lent_named.continuation.bits == made.bits);
    struct msg_request tail = { .type = FRAME_NAME_LENT,
                                .u.lent_names = { .sequence = a.sequence,
                                                  .from = made,
                                                  .first = 2,
                                                  .n = 1,
                                                  .pages = three + 2,
                                                  .tail = { .n = 2, .tokens = { 8, 9 } } } };
    KVT_EQ(ask(p, &tail), KVD_OK); /* written up to a column, once */
    kvd_continuation written = r.u.lent_named.continuation;
    KVT_NEED(fx_call_as_is(p, &tail, &r));
    KVT_TRUE(r.status == KVD_OK && r.u.lent_named.continuation.bits == written.bits);
    struct msg_request back = { .type = FRAME_RETURN_LENT, .u.lent_return = { a.sequence, false, 1, three } };
    KVT_EQ(ask(p, &back), KVD_OK);
    KVT_NEED(fx_call_as_is(p, &back, &r));
    KVT_EQ(r.status, KVD_OK);
    KVT_EQ(fx_stats(p).pool[0].lent, 7);
    KVT_EQ(ask(p, REQUEST(FRAME_READ_CHAIN, .u.read_chain = { made, 0 })), KVD_OK);
    KVT_TRUE(r.u.chain.n == 2 && r.u.chain.pages[1].page == 1 && r.u.chain.pages[1].digest.bytes[0] == 2);
    KVT_EQ(fx_audit(&fx), 0);
    fx_peer_free(p);
    fx_stop(&fx);
}

/* SRV-3: pages of others are nobody's but theirs; a continuation needs a domain. */
static void srv_3_eng_1_who_may(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *p = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *other = fx_session(&fx, KVD_ROLE_WORKER, 0),
                   *observer = fx_session(&fx, KVD_ROLE_OBSERVER, 0);
    kvd_sequence sequence = lend(p, 4);
    struct msg_request names = name_of(sequence, 1);
    KVT_EQ(ask(other, &names), KVD_PERMISSION_DENIED);
    KVT_EQ(ask(observer, REQUEST(FRAME_READ_CHAIN, .u.read_chain = { { 1 }, 0 })), KVD_PERMISSION_DENIED);
    KVT_EQ(ask(other, REQUEST(FRAME_RETURN_LENT, .u.lent_return = { sequence, true, 1, three })),
           KVD_PERMISSION_DENIED);
    KVT_EQ(ask(p, REQUEST(FRAME_NAME_LENT, .u.lent_names = { .sequence = sequence, .n = 1, .pages = three })),
           KVD_INVALID_ARGUMENT);
    KVT_HAS(r.message, "domain");
    KVT_EQ(ask(p, REQUEST(FRAME_RETURN_LENT, .u.lent_return = { sequence, true, 1, three })), KVD_OK);
    KVT_EQ(fx_stats(p).continuations, 0);
    KVT_EQ(fx_audit(&fx), 0);
    fx_peer_free(p);
    fx_peer_free(other);
    fx_peer_free(observer);
    fx_stop(&fx);
}

/* SRV-5: while the exit is not proven, all pages stay; then what has a name does, and nothing else. */
static void srv_5_eng_2_the_engine_dies(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *p = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *next = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct msg_request names = name_of(lend(p, 6), 3);
    KVT_EQ(ask(p, &names), KVD_OK);
    kvd_continuation made = r.u.lent_named.continuation;
    static const struct kvd_lent_page last = { 3, { { 0 } } };
    KVT_EQ(ask(p, REQUEST(FRAME_NAME_LENT, .u.lent_names = { .sequence = names.u.lent_names.sequence,
                                                             .from = made,
                                                             .first = 3,
                                                             .n = 1,
                                                             .pages = &last,
                                                             .tail = { .n = 1, .tokens = { 8 } } })),
           KVD_OK);
    kvd_continuation written = r.u.lent_named.continuation;
    fx_cut(p);
    fx_settle(&fx, NULL);
    KVT_EQ(fx_stats(next).pool[0].lent, 6);
    KVT_EQ(fx_stats(next).pool[0].allocated, 6);
    fx_kill(p);
    KVT_EQ(fx_stats(next).pool[0].lent, 0);
    KVT_EQ(fx_stats(next).pool[0].allocated, 4);
    KVT_EQ(fx_stats(next).continuations, 2);
    lend(next, 2);
    KVT_EQ(r.u.lent.adopted, 3);
    KVT_EQ(ask(next, REQUEST(FRAME_RELEASE, .u.continuation = { .continuation = written })), KVD_OK);
    KVT_EQ(ask(next, REQUEST(FRAME_RELEASE, .u.continuation = { .continuation = made })), KVD_OK);
    KVT_EQ(fx_stats(next).pool[0].allocated, 5); /* they are lent, and stay */
    KVT_EQ(fx_audit(&fx), 0);
    fx_peer_free(p);
    fx_peer_free(next);
    fx_stop(&fx);
}

/* The engine could not know its names again. */
static void eng_3_not_where_names_are_salted(void) {
    struct fx_setup setup = { .more = "[access]\ntenants = uid\n" };
    struct kvd_activated a = { 0 };
    KVT_NEED(fx_start(&fx, &setup));
    struct fx_peer *p = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    KVT_EQ(fx_activate(p, p->session, 64, 1, &a), KVD_OK);
    KVT_EQ(ask(p, REQUEST(FRAME_LEND_PAGES, .u.lend = { a.sequence, true })), KVD_FAILED_PRECONDITION);
    KVT_HAS(r.message, "tenants = shared");
    KVT_EQ(ask(p, REQUEST(FRAME_READ_CHAIN, .u.read_chain = { { 1 }, 0 })), KVD_FAILED_PRECONDITION);
    KVT_EQ(fx_finish(p, a.sequence), KVD_OK);
    fx_peer_free(p);
    fx_stop(&fx);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(srv_1_eng_1_a_message_that_comes_twice),
                                             KVT_CASE(srv_3_eng_1_who_may),
                                             KVT_CASE(srv_5_eng_2_the_engine_dies),
                                             KVT_CASE(eng_3_not_where_names_are_salted),
                                             { 0 } };
    return kvt_main("service lent", cases, argc, argv);
}
