/* SPDX-License-Identifier: Apache-2.0
 *
 * Equal continuations are one (FIT-5): finished, checkpointed, in flight together, and where the first lies in the
 * host.
 */
#include "store_fixture.h"

static struct fix f;

static uint32_t listed(void) {
    uint32_t cursor = 0, n = 0;
    struct kvd_continuation_info info;
    while (store_next_cont(f.store, &cursor, &info)) n += !info.live;
    return n;
}

static store_seq filled(uint64_t tag, uint32_t tokens, uint32_t salt) {
    struct store_activation want = fix_root(tokens, 1, 0);
    want.tag = tag;
    store_seq seq = fix_activate(&f, want, NULL);
    fix_fill(&f, seq, tokens, salt);
    return seq;
}

static store_cont finish(store_seq seq, const struct kvd_tail *tail, uint32_t retention) {
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    store_cont cont = { 0 };
    KVT_OK(store_finish(f.store, seq, FIX_LEASE, STORE_FINISH_RETAIN, tail, retention, &cont, rows, &f.refusal));
    return cont;
}

static void fit_5_equal_prompts_leave_one(void) {
    struct store_config config = fix_config(GEOM_MTP);
    fix_open(&f, &config);
    store_cont first = finish(filled(5, 150, 1), fix_tail(150), 3);
    uint64_t used = fix_info(&f, first).used;
    for (uint32_t i = 0; i < 49; i++)
        KVT_EQ(finish(filled(5, 150, 1), fix_tail(150), i == 20 ? 7 : 1).bits, first.bits);
    KVT_EQ(listed(), 1);
    KVT_EQ(fix_pool(&f, 0).allocated, 3);
    KVT_EQ(fix_pool(&f, 1).allocated, 3);
    KVT_EQ(fix_info(&f, first).retention, 7);
    KVT_TRUE(fix_info(&f, first).used > used);
    fix_close(&f);
}

/* What differs in owner, name, tail or frontier, and what an activation holds, stays apart. */
static void fit_5_what_differs_stays(void) {
    struct store_config config = fix_config(GEOM_OFF);
    struct store_activated made;
    struct kvd_tail other = *fix_tail(100);
    config.pool_pages[0] = 40;
    fix_open(&f, &config);
    other.tokens[35] = 99;
    store_cont first = finish(filled(5, 100, 1), fix_tail(100), 0);
    KVT_TRUE(finish(filled(6, 100, 1), fix_tail(100), 0).bits != first.bits);
    KVT_TRUE(finish(filled(5, 100, 2), fix_tail(100), 0).bits != first.bits);
    KVT_TRUE(finish(filled(5, 100, 1), &other, 0).bits != first.bits);
    KVT_TRUE(finish(filled(5, 101, 1), fix_tail(101), 0).bits != first.bits);
    KVT_EQ(listed(), 5);
    struct store_activation moves = fix_from(first, false, 100, 128, 1);
    KVT_OK(store_activate_begin(f.store, &moves, &made, &f.refusal));
    KVT_TRUE(finish(filled(5, 100, 1), fix_tail(100), 0).bits != first.bits);
    KVT_OK(fix_commit(&f, made.seq));
    fix_close(&f);
}

/* A checkpoint of what is there takes nothing, so that a full pool and a full table do not refuse it. */
static void fit_5_checkpoint_where_all_is_full(void) {
    struct store_config config = fix_config(GEOM_OFF);
    struct store_checkpointed got;
    config.pool_pages[0] = 3;
    config.max_continuations = 2;
    config.max_context = 192;
    fix_open(&f, &config);
    store_seq seq = filled(5, 100, 1);
    store_cont first = fix_checkpoint(&f, seq, 100);
    store_cont rest = { 0 };
    KVT_EQ(fix_pool(&f, 0).available, 0);
    KVT_OK(store_checkpoint_begin(f.store, seq, FIX_LEASE, FIX_KEEP(fix_tail(100), 4), &got, &f.refusal));
    KVT_TRUE(got.is_published);
    KVT_EQ(got.n_copies, 0);
    KVT_EQ(got.cont.bits, first.bits);
    KVT_EQ(fix_info(&f, first).retention, 4);
    KVT_EQ(store_checkpoint_commit(f.store, got.cont, &rest, NULL), STORE_E_STATE);
    KVT_EQ(finish(seq, fix_tail(100), 0).bits, first.bits);
    KVT_EQ(fix_pool(&f, 0).allocated, 2);
    fix_close(&f);
}

/* Two in flight at once: the second to be committed is the first; its pages and descriptor go. */
static void fit_5_checkpoints_in_flight(void) {
    struct store_config config = fix_config(GEOM_OFF);
    struct store_checkpointed one, two;
    store_cont a = { 0 }, b = { 0 };
    fix_open(&f, &config);
    store_seq seq = filled(5, 100, 1);
    KVT_OK(store_checkpoint_begin(f.store, seq, FIX_LEASE, FIX_KEEP(fix_tail(100), 2), &one, &f.refusal));
    KVT_OK(store_checkpoint_begin(f.store, seq, FIX_LEASE, FIX_KEEP(fix_tail(100), 6), &two, &f.refusal));
    KVT_OK(store_checkpoint_commit(f.store, one.cont, &a, NULL));
    KVT_OK(store_checkpoint_commit(f.store, two.cont, &b, NULL));
    KVT_EQ(a.bits, one.cont.bits);
    KVT_EQ(b.bits, a.bits);
    KVT_EQ(listed(), 1);
    KVT_EQ(fix_info(&f, a).retention, 6);
    KVT_EQ(fix_pool(&f, 0).allocated, 3);
    fix_close(&f);
}

/* The first was demoted: it gets the newcomer's pages on the device, and its handle stays. */
static void fit_5_demoted_one_gets_the_pages(void) {
    struct store_config config = fix_config(GEOM_OFF);
    struct store_copy copy;
    struct store_refusal refusal;
    store_move move;
    uint64_t cursor = 0;
    config.host_bytes = 65536;
    config.host_stride[0] = 4096;
    fix_open(&f, &config);
    store_cont first = finish(filled(5, 100, 1), fix_tail(100), 3);
    KVT_OK(store_move_begin(f.store, first, STORE_PLACE_HOST, &move, &refusal));
    while (store_next_copies(f.store, (struct store_transition){ true, move.bits }, &cursor, &copy, 1))
        store_copied_out(f.store, copy.replica, 1 + copy.replica);
    KVT_OK(store_move_commit(f.store, move, &refusal));
    KVT_TRUE(fix_info(&f, first).demoted);
    KVT_EQ(finish(filled(5, 100, 1), fix_tail(100), 0).bits, first.bits);
    struct kvd_continuation_info info = fix_info(&f, first);
    KVT_FALSE(info.demoted);
    KVT_EQ(info.device_pages[0], 2);
    KVT_EQ(info.retention, 3);
    KVT_EQ(listed(), 1);
    KVT_EQ(fix_pool(&f, 0).allocated, 2);
    KVT_OK(store_release(f.store, first, &refusal));
    KVT_EQ(fix_pool(&f, 0).allocated, 0);
    fix_close(&f);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = {
        KVT_CASE(fit_5_equal_prompts_leave_one),      KVT_CASE(fit_5_what_differs_stays),
        KVT_CASE(fit_5_checkpoint_where_all_is_full), KVT_CASE(fit_5_checkpoints_in_flight),
        KVT_CASE(fit_5_demoted_one_gets_the_pages),   { 0 }
    };
    return kvt_main("store equal", cases, argc, argv);
}
