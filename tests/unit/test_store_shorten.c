/* SPDX-License-Identifier: Apache-2.0
 *
 * Continuations that become shorter: on request (SHORT-1), and where damage took what lies behind (KEEP-2).
 */
#include "store_fixture.h"

#include <string.h>

static struct fix f;
static struct store_refusal refusal;

static void open_store(bool state, bool host) {
    struct store_config c = fix_config(GEOM_OFF);
    c.has_state = state;
    c.state_slots = state ? 4 : 0;
    c.host_bytes = host ? 64 * 4096 : 0;
    c.host_stride[0] = host ? 4096 : 0;
    c.host_state_stride = state && host ? 8192 : 0;
    fix_open(&f, &c);
}

static void make_copies(struct store_transition of) {
    struct store_copy copy;
    uint64_t cursor = 0;
    while (store_next_copies(f.store, of, &cursor, &copy, 1))
        if (copy.kind == STORE_COPY_PAGE_OUT || copy.kind == STORE_COPY_STATE_OUT)
            store_copied_out(f.store, copy.replica, copy.host + 1);
}

/* Returns how many copies to the host it took. */
static uint32_t demote(store_cont cont) {
    store_move move;
    struct store_work work = { 0 };
    KVT_OK(store_move_begin(f.store, cont, STORE_PLACE_HOST, &move, &refusal));
    KVT_OK(store_get_work(f.store, (struct store_transition){ true, move.bits }, &work));
    make_copies((struct store_transition){ true, move.bits });
    KVT_OK(store_move_commit(f.store, move, &refusal));
    return work.copies_out;
}

/* The frontier that a prompt of chain 1 finds, and how many of its pages match. */
static uint32_t found_frontier(uint32_t *ret_matched) {
    uint8_t chain[8][32];
    struct kvd_hit got = { 0 };
    fix_chain(1, 8, 1, 8, chain);
    *ret_matched = fix_find(f.store, (const uint8_t(*)[32])chain, 8, &got, 1) ? got.usable / 64 : 0;
    return got.frontier;
}

/* SHORT-1: the handle, retention and time of use stay, the pages behind go, and it is found as far as it reaches. */
static void short_1_at_a_page_boundary(void) {
    uint32_t matched;
    open_store(false, false);
    store_cont cont = fix_cont(&f, 300, 1);
    KVT_OK(store_set_retention(f.store, cont, 3, &refusal));
    struct kvd_continuation_info before = fix_info(&f, cont);
    uint64_t revision = store_revision(f.store);
    store_fail_acquisition(f.store, 1); /* it takes nothing, so nothing can be short */
    KVT_OK(store_shorten(f.store, cont, 128, &refusal));
    KVT_EQ(store_fail_acquisition(f.store, 0), 0);
    KVT_TRUE(store_revision(f.store) > revision);
    struct kvd_continuation_info after = fix_info(&f, cont);
    KVT_EQ(after.frontier, 128);
    KVT_EQ(after.pages[0], 2);
    KVT_EQ(after.retention, before.retention);
    KVT_EQ(after.used, before.used);
    KVT_EQ(fix_pool(&f, 0).allocated, 2);
    KVT_EQ(found_frontier(&matched), 128);
    KVT_EQ(matched, 2);
    fix_audit(&f);
    revision = store_revision(f.store);
    KVT_OK(store_shorten(f.store, cont, 128, &refusal)); /* the same request twice */
    KVT_EQ(store_revision(f.store), revision);
    store_seq seq = fix_activate(&f, fix_from(cont, false, 128, 200, 1), NULL);
    KVT_TRUE(seq.bits != 0);
    fix_close(&f);
}

/* SHORT-1: inside the tail its tokens are the name. What is only in the host stays there, and serves as far as it goes:
 * what is written behind the cut is not taken for it. */
static void short_1_inside_the_tail(void) {
    uint32_t matched;
    struct kvd_tail tail;
    for (int host = 0; host < 2; host++) {
        open_store(false, host);
        store_cont cont = fix_cont(&f, 300, 1), other;
        if (host) KVT_EQ(demote(cont), 5);
        KVT_OK(store_shorten(f.store, cont, 280, &refusal));
        fix_audit(&f);
        KVT_EQ(fix_info(&f, cont).frontier, 280);
        KVT_EQ(fix_info(&f, cont).demoted, host);
        KVT_EQ(fix_pool(&f, 0).allocated, host ? 0 : 5);
        uint8_t chain[4][32];
        struct kvd_hit got = { 0 };
        struct store_found found = { 0 };
        fix_chain(1, 4, 1, 4, chain);
        tail = *fix_tail(300);
        const struct store_query query = { .digests = (const uint8_t(*)[32])chain,
                                           .n = 4,
                                           .max = 1,
                                           .prompt_tokens = 301,
                                           .token_page = 4,
                                           .tokens = &tail };
        KVT_OK(store_find(f.store, &query, &got, &found, NULL));
        KVT_EQ(got.usable, 280); /* its tail is the first 24 tokens */
        struct store_activation want = fix_from(cont, false, 280, 320, 1);
        struct store_activated made;
        KVT_OK(store_activate_begin(f.store, &want, &made, &refusal));
        KVT_OK(fix_commit(&f, made.seq));
        KVT_TRUE(fix_fill(&f, made.seq, 300, 1));
        other = fix_retain(&f, made.seq, 300);
        if (host) KVT_EQ(demote(other), 1); /* the tail's bytes are others now */
        KVT_EQ(found_frontier(&matched), 300);
        fix_close(&f);
    }
}

/* SHORT-1: pages that a running sequence shares stay its own; what the continuation read is protected no longer. */
static void short_1_of_what_is_shared(void) {
    struct store_round_result r;
    open_store(false, false);
    store_cont cont = fix_cont(&f, 256, 1);
    store_seq seq = fix_activate(&f, fix_from(cont, true, 256, 300, 1), NULL);
    KVT_EQ(fix_round(&f, seq, KVD_UNCHANGED, 200, KVD_UNCHANGED, KVD_UNCHANGED, &r), STORE_E_PROTECTED);
    KVT_OK(store_shorten(f.store, cont, 64, &refusal));
    fix_audit(&f);
    KVT_OK(fix_round(&f, seq, KVD_UNCHANGED, 200, KVD_UNCHANGED, KVD_UNCHANGED, &r));
    KVT_EQ(r.pool[0].protected_frontier, 64);
    KVT_EQ(r.pool[0].membership, 4);
    fix_close(&f);
}

static void refused(store_cont cont, uint32_t frontier, enum store_code code, const char *words) {
    char text[400], *before = fix_dump(&f), *after;
    KVT_EQ(store_shorten(f.store, cont, frontier, &refusal), code);
    KVT_HAS(store_refusal_text(&refusal, text, sizeof text), words);
    after = fix_dump(&f);
    KVT_EQ_STR(after, before);
    free(before);
    free(after);
}

/* SHORT-1, SRV-2, CONT-4: what has no name, what is read, moved or gone, and where an image belongs to the frontier. */
static void short_1_refusals(void) {
    struct store_activated made;
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    store_move move;
    open_store(false, true);
    store_cont cont = fix_cont(&f, 170, 1), unnamed;
    refused(cont, 0, STORE_E_RANGE, "limit is 170");
    refused(cont, 171, STORE_E_RANGE, "limit is 170");
    refused(cont, 100, STORE_E_NAME, "64 is the one below");
    refused((store_cont){ cont.bits + 1 }, 64, STORE_E_STALE, "look it up again");
    struct store_activation want = fix_from(cont, true, 170, 180, 1);
    KVT_OK(store_activate_begin(f.store, &want, &made, &refusal));
    refused(cont, 64, STORE_E_BUSY, "another request uses it");
    KVT_OK(store_activate_abort(f.store, made.seq, NULL, &refusal));
    KVT_OK(store_move_begin(f.store, cont, STORE_PLACE_HOST, &move, &refusal));
    refused(cont, 64, STORE_E_BUSY, "another request uses it");
    KVT_OK(store_move_abort(f.store, move, &refusal));
    store_seq seq = fix_activate(&f, fix_root(100, 10, 100), NULL);
    KVT_TRUE(fix_fill(&f, seq, 100, 2));
    KVT_OK(store_end(f.store, seq, &unnamed, rows, &refusal));
    refused(unnamed, 90, STORE_E_NAME, "page boundary");
    KVT_OK(store_shorten(f.store, unnamed, 64, &refusal));
    fix_close(&f);

    open_store(true, false);
    seq = fix_activate(&f, fix_root(128, 10, 0), NULL);
    KVT_TRUE(fix_fill(&f, seq, 128, 3));
    struct store_round_item item = fix_item(seq);
    struct store_round_result result;
    item.state_frontier = 128;
    store_round(f.store, &item, 1, &result);
    cont = fix_retain(&f, seq, 128);
    refused(cont, 64, STORE_E_RANGE, "state frontier");
    KVT_OK(store_shorten(f.store, cont, 128, &refusal));
    fix_close(&f);
}

/* SHORT-1: the copy of a checkpoint in flight reads the tail of what its sequence has become meanwhile. */
static void short_1_waits_for_a_checkpoint(void) {
    struct store_checkpointed made;
    open_store(false, false);
    store_seq seq = fix_activate(&f, fix_root(100, 30, 100), NULL);
    KVT_TRUE(fix_fill(&f, seq, 100, 1));
    KVT_OK(store_checkpoint_begin(f.store, seq, FIX_LEASE, FIX_KEEP(fix_tail(100), 1), &made, &refusal));
    store_cont cont = fix_retain(&f, seq, 100);
    refused(cont, 90, STORE_E_BUSY, "another request uses it");
    KVT_OK(store_shorten(f.store, cont, 64, &refusal)); /* the page goes when it has been copied */
    fix_audit(&f);
    KVT_EQ(fix_pool(&f, 0).allocated, 3);
    KVT_OK(store_checkpoint_commit(f.store, made.cont, NULL, &refusal));
    KVT_EQ(fix_pool(&f, 0).allocated, 2);
    fix_close(&f);
}

/* ---- damage ---- */

/* Replica of block `block` of a continuation, as a restoring activation is told it. */
static uint64_t replica_of(store_cont cont, uint32_t block) {
    return space_entry(f.store, &cont_find(f.store, cont)->space[0], block);
}

/* KEEP-2: of seven pages the fifth is damaged: the four before it stay what they were, demoted, and are found. */
static void keep_2_damage_costs_what_lies_behind(void) {
    struct store_loss loss;
    uint32_t matched;
    open_store(false, true);
    store_cont cont = fix_cont(&f, 430, 1);
    KVT_EQ(demote(cont), 7);
    KVT_EQ(store_damaged(f.store, replica_of(cont, 4)), 0);
    fix_audit(&f);
    KVT_EQ(fix_info(&f, cont).frontier, 256);
    KVT_TRUE(fix_info(&f, cont).demoted);
    KVT_EQ(found_frontier(&matched), 256);
    KVT_EQ(fix_info(&f, cont).host_pages[0], 4);
    KVT_TRUE(store_take_loss(f.store, &loss));
    KVT_EQ(loss.cont.bits, cont.bits);
    KVT_EQ(loss.frontier, 256);
    KVT_FALSE(store_take_loss(f.store, &loss));
    KVT_EQ(store_damaged(f.store, replica_of(cont, 0)), 1); /* nothing lies before it */
    KVT_TRUE(store_take_loss(f.store, &loss));
    KVT_EQ(loss.frontier, 0);
    fix_audit(&f);
    fix_close(&f);
}

/* KEEP-2: who shares the damaged page is shortened too, who ends before it is not; and one that a fork reads waits for
 * the fork's end. */
static void keep_2_damage_among_sharers(void) {
    struct store_activated made;
    struct store_loss loss;
    open_store(false, true);
    store_cont shallow = fix_cont(&f, 256, 1);
    store_seq seq = fix_activate(&f, fix_from(shallow, true, 256, 330, 1), NULL);
    KVT_TRUE(fix_fill(&f, seq, 330, 1));
    store_cont deep = fix_retain(&f, seq, 330);
    KVT_OK(store_shorten(f.store, shallow, 128, &refusal));
    demote(shallow);
    demote(deep);
    struct store_activation want = fix_from(deep, true, 330, 340, 1);
    KVT_OK(store_activate_begin(f.store, &want, &made, &refusal));
    KVT_EQ(store_damaged(f.store, replica_of(deep, 2)), 0);
    KVT_EQ(fix_info(&f, deep).frontier, 330);
    KVT_EQ(fix_info(&f, shallow).frontier, 128);
    make_copies((struct store_transition){ .bits = made.seq.bits });
    KVT_EQ(store_activate_commit(f.store, made.seq, &refusal), STORE_E_DAMAGED);
    KVT_OK(store_activate_abort(f.store, made.seq, NULL, &refusal));
    fix_audit(&f);
    KVT_EQ(fix_info(&f, deep).frontier, 128);
    KVT_TRUE(store_take_loss(f.store, &loss));
    KVT_EQ(loss.cont.bits, deep.bits);
    KVT_FALSE(store_take_loss(f.store, &loss));
    KVT_TRUE(fix_info(&f, deep).demoted); /* again: what the fork brought has left */
    KVT_EQ(fix_pool(&f, 0).allocated, 0);
    KVT_EQ(store_damaged(f.store, replica_of(deep, 1)), 0);
    KVT_EQ(fix_info(&f, deep).frontier, 64);
    KVT_EQ(fix_info(&f, shallow).frontier, 64);
    fix_close(&f);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = {
        KVT_CASE(short_1_at_a_page_boundary),     KVT_CASE(short_1_inside_the_tail),
        KVT_CASE(short_1_of_what_is_shared),      KVT_CASE(short_1_refusals),
        KVT_CASE(short_1_waits_for_a_checkpoint), KVT_CASE(keep_2_damage_costs_what_lies_behind),
        KVT_CASE(keep_2_damage_among_sharers),    { 0 }
    };
    return kvt_main("store_shorten", cases, argc, argv);
}
