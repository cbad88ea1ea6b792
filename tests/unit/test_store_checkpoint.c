/* SPDX-License-Identifier: Apache-2.0
 *
 * Checkpoints, ends and continuations (CKPT-1, FIN-*, SRV-5, CONT-1, CONT-2).
 */
#include "store_fixture.h"

static store_seq running(struct fix *fix, uint32_t tokens, uint32_t output) {
    store_seq seq = fix_activate(fix, fix_root(tokens, output, 0), NULL);
    fix_fill(fix, seq, tokens, 1);
    return seq;
}

static uint32_t listed(struct fix *fix) {
    uint32_t cursor = 0, n = 0;
    struct kvd_continuation_info info;
    while (store_next_cont(fix->store, &cursor, &info)) n += !info.live;
    return n;
}

static void same(struct fix *fix, char *before) {
    char *after = fix_dump(fix);
    KVT_EQ_STR(before, after);
    free(before);
    free(after);
}

/* CKPT-1: full pages shared and frozen, tail copied, row and sequence untouched. */
static void ckpt_1_of_a_running_sequence(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_MTP);
    struct store_checkpointed got;
    fix_open(&fix, &config);
    store_seq seq = running(&fix, 150, 60);
    struct kvd_sequence_info before = fix_seq(&fix, seq);
    char ids[64];
    snprintf(ids, sizeof ids, "%s", fix_ids(&fix, seq, 0));
    KVT_OK(store_checkpoint_begin(fix.store, seq, FIX_LEASE, FIX_KEEP(fix_tail(150), 3), &got, NULL));
    KVT_EQ(got.frontier, 150);
    KVT_EQ(got.n_copies, 2);
    KVT_EQ(got.shared_pages[0], 2);
    KVT_EQ(got.copies[1].columns, 22);
    KVT_EQ(got.copies[1].pool, 1);
    KVT_EQ(got.copies[0].src, 2);
    KVT_EQ(got.copies[0].dst, 3);
    KVT_EQ(listed(&fix), 0); /* CONT-1: invisible until commit */
    KVT_EQ(store_release(fix.store, got.cont, NULL), STORE_E_BUSY);
    KVT_EQ(fix_info(&fix, got.cont).frontier, 0);
    KVT_EQ(fix_seq(&fix, seq).pool[0].protected_frontier, 150);            /* while it is being read */
    KVT_OK(fix_round(&fix, seq, 160, KVD_NONE, KVD_NONE, KVD_NONE, NULL)); /* it goes on */
    KVT_EQ(fix_round(&fix, seq, KVD_NONE, 149, KVD_NONE, KVD_NONE, NULL), STORE_E_PROTECTED);
    KVT_TRUE(fix_audit(&fix));
    KVT_OK(store_checkpoint_commit(fix.store, got.cont, NULL, NULL));
    KVT_EQ(store_checkpoint_commit(fix.store, got.cont, NULL, NULL), STORE_E_STATE);
    KVT_EQ(store_checkpoint_abort(fix.store, got.cont, NULL), STORE_E_STATE);
    KVT_EQ(listed(&fix), 1);
    struct kvd_continuation_info info = fix_info(&fix, got.cont);
    KVT_EQ(info.frontier, 150);
    KVT_EQ(info.retention, 3);
    KVT_EQ(info.named_pages, 2);
    KVT_TRUE(info.tail_named);
    KVT_EQ(info.exclusive_pages[0], 1);
    KVT_EQ(fix_seq(&fix, seq).pool[0].protected_frontier, 128);
    KVT_EQ(fix_seq(&fix, seq).pool[0].row, before.pool[0].row);
    KVT_EQ(fix_seq(&fix, seq).pool[0].entitlement, before.pool[0].entitlement);
    KVT_EQ_STR(fix_ids(&fix, seq, 0), ids);
    KVT_TRUE(fix_page(&fix, 0, 2)->flags & PAGE_WRITER);
    KVT_FALSE(fix_page(&fix, 0, 0)->flags & PAGE_WRITER);
    KVT_OK(fix_round(&fix, seq, KVD_NONE, 149, KVD_NONE, KVD_NONE, NULL));
    KVT_EQ(fix_page(&fix, 0, 3)->committed, 22);
    fix_close(&fix);
}

static void ckpt_1_aligned_needs_no_copy(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct store_checkpointed got;
    fix_open(&fix, &config);
    store_seq seq = running(&fix, 128, 100);
    KVT_OK(store_checkpoint_begin(fix.store, seq, FIX_LEASE, FIX_KEEP(NULL, 0), &got, NULL));
    KVT_EQ(got.n_copies, 0);
    KVT_OK(store_checkpoint_commit(fix.store, got.cont, NULL, NULL));
    KVT_EQ(fix_pool(&fix, 0).allocated, 2);
    KVT_OK(fix_round(&fix, seq, KVD_NONE, KVD_NONE, KVD_NONE, 129,
                     NULL)); /* a new page for the continuation of the sequence */
    KVT_EQ_STR(fix_ids(&fix, seq, 0), "0 1 2");
    fix_close(&fix);
}

static void ckpt_1_abort_restores(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_MTP);
    struct store_checkpointed got, second;
    config.has_state = true;
    config.state_slots = 6;
    fix_open(&fix, &config);
    store_seq seq = running(&fix, 100, 30);
    char *before = fix_dump(&fix);
    KVT_OK(store_checkpoint_begin(fix.store, seq, FIX_LEASE, FIX_KEEP(fix_tail(100), 0), &got, NULL));
    KVT_EQ(got.n_copies, 3);
    KVT_EQ(got.copies[2].kind, STORE_COPY_STATE);
    KVT_EQ(got.copies[2].src, 0);
    KVT_EQ(got.copies[2].dst, 1);
    char *in_flight = fix_dump(&fix);
    KVT_OK(store_checkpoint_begin(fix.store, seq, FIX_LEASE, FIX_KEEP(fix_tail(100), 0), &second,
                                  NULL)); /* several may be in flight */
    KVT_TRUE(fix_audit(&fix));
    KVT_OK(store_checkpoint_abort(fix.store, second.cont, NULL));
    same(&fix, in_flight);
    KVT_OK(store_checkpoint_abort(fix.store, got.cont, NULL));
    same(&fix, before);
    KVT_EQ(store_checkpoint_abort(fix.store, got.cont, NULL), STORE_E_STALE);
    fix_close(&fix);
}

/* The sequence may end while its tail and image are being copied: both stay until the copy is done. */
static void ckpt_1_survives_the_end_of_its_sequence(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    struct store_checkpointed got;
    struct kvd_stats stats;
    store_cont none;
    config.has_state = true;
    config.state_slots = 3;
    fix_open(&fix, &config);
    store_seq seq = running(&fix, 100, 30);
    KVT_OK(store_checkpoint_begin(fix.store, seq, FIX_LEASE, FIX_KEEP(fix_tail(100), 0), &got, NULL));
    KVT_OK(store_finish(fix.store, seq, FIX_LEASE, STORE_FINISH_RELEASE, NULL, 0, &none, rows, NULL));
    KVT_EQ(fix_pool(&fix, 0).allocated, 3); /* shared page, copy, and the page that is read */
    store_get_stats(fix.store, &stats);
    KVT_EQ(stats.state_slots_used, 2);
    KVT_TRUE(fix_audit(&fix));
    KVT_OK(store_checkpoint_commit(fix.store, got.cont, NULL, NULL));
    KVT_EQ(fix_pool(&fix, 0).allocated, 2);
    store_get_stats(fix.store, &stats);
    KVT_EQ(stats.state_slots_used, 1);
    KVT_OK(store_release(fix.store, got.cont, NULL));
    KVT_EQ(fix_pool(&fix, 0).available, 8);
    fix_close(&fix);
}

/* CONT-1, CONT-2: what is incomplete or unnamed is not published, by checkpoint or finish. */
static void incomplete(struct fix *fix, store_seq seq, const struct kvd_tail *tail, enum store_code code,
                       enum store_subject subject) {
    struct store_checkpointed got;
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    store_cont cont = { 99 };
    char *before = fix_dump(fix);
    KVT_EQ(store_checkpoint_begin(fix->store, seq, FIX_LEASE, FIX_KEEP(tail, 0), &got, &fix->refusal), code);
    KVT_EQ(fix->refusal.subject, subject);
    KVT_EQ(store_finish(fix->store, seq, FIX_LEASE, STORE_FINISH_RETAIN, tail, 0, &cont, rows, &fix->refusal), code);
    KVT_EQ(fix->refusal.subject, subject);
    KVT_EQ(cont.bits, 99);
    same(fix, before);
}

static void cont_1_only_complete(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_MTP);
    struct store_round_result r;
    config.has_state = true;
    config.state_slots = 3;
    fix_open(&fix, &config);
    store_seq seq = fix_activate(&fix, fix_root(150, 1, 150), NULL);
    incomplete(&fix, seq, NULL, STORE_E_INCOMPLETE, STORE_S_FRONTIER); /* nothing committed */
    struct store_round_item item = fix_item(seq);
    item.pool[0].commit = 100;
    fix_apply(&fix, &item, &r);
    incomplete(&fix, seq, fix_tail(100), STORE_E_INCOMPLETE, STORE_S_FRONTIER); /* the pools differ */
    KVT_OK(fix_round(&fix, seq, 100, KVD_NONE, KVD_NONE, KVD_NONE, NULL));
    incomplete(&fix, seq, fix_tail(100), STORE_E_INCOMPLETE, STORE_S_STATE_FRONTIER);
    item = fix_item(seq);
    item.state_frontier = 100;
    fix_apply(&fix, &item, &r);
    incomplete(&fix, seq, fix_tail(100), STORE_E_UNNAMED, STORE_S_DIGEST);
    uint8_t digest[1][32];
    fix_digest(1, 0, digest[0]);
    KVT_OK(store_name_pages(fix.store, seq, FIX_LEASE, 0, 1, (const uint8_t(*)[32])digest, NULL));
    incomplete(&fix, seq, NULL, STORE_E_NAME, STORE_S_TAIL);
    incomplete(&fix, seq, fix_tail(99), STORE_E_NAME, STORE_S_TAIL);
    KVT_OK(fix_round(&fix, seq, 101, KVD_NONE, KVD_NONE, KVD_NONE, NULL)); /* the image is behind now */
    incomplete(&fix, seq, fix_tail(101), STORE_E_INCOMPLETE, STORE_S_STATE_FRONTIER);
    item.state_frontier = 500; /* more than is mapped */
    fix_apply(&fix, &item, &r);
    KVT_EQ(r.refusal.code, STORE_E_RANGE);
    item.state_frontier = 101;
    fix_apply(&fix, &item, &r);
    KVT_TRUE(fix_retain(&fix, seq, 101).bits != 0);
    fix_close(&fix);
}

/* CONT-1: truncation outdates the image; the same frontier reached again with other tokens is not its frontier. */
static void cont_1_truncation_outdates_the_image(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct store_round_result r;
    config.has_state = true;
    config.state_slots = 3;
    fix_open(&fix, &config);
    store_seq seq = running(&fix, 60, 1);
    KVT_OK(fix_round(&fix, seq, KVD_NONE, 50, KVD_NONE, KVD_NONE, NULL));
    KVT_OK(fix_round(&fix, seq, 60, KVD_NONE, KVD_NONE, KVD_NONE, NULL));
    incomplete(&fix, seq, fix_tail(60), STORE_E_INCOMPLETE, STORE_S_STATE_FRONTIER);
    struct store_round_item item = fix_item(seq);
    item.pool[0].truncate = 55;
    item.state_frontier = 55; /* a new image comes along with the cut */
    fix_apply(&fix, &item, &r);
    KVT_TRUE(fix_retain(&fix, seq, 55).bits != 0);
    fix_close(&fix);
}

/* CONT-2: names in order, of full pages, and never another than a page has. */
static void cont_2_names(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    uint8_t chain[4][32];
    const uint8_t(*names)[32] = (const uint8_t(*)[32])chain;
    fix_chain(1, 4, 0, 4, chain);
    fix_open(&fix, &config);
    store_seq seq = fix_activate(&fix, fix_root(250, 1, 250), NULL);
    KVT_OK(fix_round(&fix, seq, 250, KVD_NONE, KVD_NONE, KVD_NONE, NULL));
    KVT_EQ(store_name_pages(fix.store, seq, FIX_LEASE, 0, 4, names, &fix.refusal),
           STORE_E_RANGE); /* the fourth is not full */
    KVT_EQ(fix.refusal.limit, 3);
    KVT_EQ(store_name_pages(fix.store, seq, FIX_LEASE, UINT32_MAX, 2, names, NULL), STORE_E_RANGE);
    KVT_EQ(store_name_pages(fix.store, seq, FIX_LEASE, 1, 1, names + 1, NULL), STORE_E_UNNAMED); /* a gap */
    KVT_EQ(store_name_pages(fix.store, seq, 8, 0, 1, names, NULL), STORE_E_LEASE);
    KVT_OK(store_name_pages(fix.store, seq, FIX_LEASE, 0, 2, names, NULL));
    KVT_OK(store_name_pages(fix.store, seq, FIX_LEASE, 1, 2, names + 1, NULL)); /* the same again is fine */
    KVT_EQ(fix_seq(&fix, seq).named_pages, 3);
    chain[1][31] ^= 1;
    KVT_EQ(store_name_pages(fix.store, seq, FIX_LEASE, 0, 2, names, NULL), STORE_E_NAME);
    KVT_EQ(memcmp(fix.store->digests[fix.store->pool[0].leases[1].owner], chain[1], 31), 0);
    fix_close(&fix);
}

/* FIN-1: row, writers, active references and unused entitlement go; pages past the frontier go too. */
static void fin_1_retain(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_MTP);
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    store_cont cont;
    fix_open(&fix, &config);
    store_seq seq = running(&fix, 100, 200);
    KVT_OK(fix_round(&fix, seq, KVD_NONE, KVD_NONE, KVD_NONE, 200, NULL));
    KVT_EQ(fix_pool(&fix, 0).allocated, 4);
    KVT_OK(store_finish(fix.store, seq, FIX_LEASE, STORE_FINISH_RETAIN, fix_tail(100), 5, &cont, rows, NULL));
    for (uint32_t p = 0; p < 2; p++) {
        KVT_EQ(fix_pool(&fix, p).allocated, 2);
        KVT_EQ(fix_pool(&fix, p).reserved, 0);
        KVT_EQ(fix_pool(&fix, p).available, 6);
        KVT_EQ(fix_pool(&fix, p).rows_used, 0);
        KVT_EQ(fix_page(&fix, p, 0)->active_references, 0);
        KVT_FALSE(fix_page(&fix, p, 1)->flags & PAGE_WRITER);
        KVT_EQ(fix_page(&fix, p, 1)->protected, 36);
        KVT_EQ(rows[p].slice_count, 4);
    }
    KVT_EQ(fix_info(&fix, cont).retention, 5);
    KVT_EQ(store_finish(fix.store, seq, FIX_LEASE, STORE_FINISH_RELEASE, NULL, 0, &cont, rows, NULL), STORE_E_STALE);
    fix_close(&fix);
}

/* Pages go with the last reference alone. */
static void fin_1_last_reference_frees(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    store_cont none;
    fix_open(&fix, &config);
    store_seq seq = running(&fix, 128, 1);
    store_cont kept = fix_checkpoint(&fix, seq, 128);
    KVT_OK(store_finish(fix.store, seq, FIX_LEASE, STORE_FINISH_RELEASE, NULL, 0, &none, rows, NULL));
    KVT_EQ(none.bits, 0);
    KVT_EQ(fix_pool(&fix, 0).allocated, 2);
    KVT_OK(store_release(fix.store, kept, NULL));
    KVT_EQ(fix_pool(&fix, 0).allocated, 0);
    fix_close(&fix);
}

/* FIT-2: with a full table of descriptors a running sequence is retained, and kept at its worker's death; a checkpoint
 * is refused. A third one is refused until a victim leaves it a descriptor; a move needs none. */
static void fit_2_a_sequence_owns_its_descriptor(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    struct store_activation want = fix_root(64, 1, 64);
    struct store_checkpointed got;
    struct kvd_plan plan;
    store_cont cont = { 0 };
    config.max_continuations = 3;
    fix_open(&fix, &config);
    store_cont first = fix_cont(&fix, 64, 1);
    store_seq finishes = running(&fix, 64, 2), dies = running(&fix, 64, 3);
    KVT_OK(store_plan_activation(fix.store, &want, &plan, NULL));
    KVT_EQ(plan.feasibility, KVD_BLOCKED);
    KVT_EQ(plan.continuations.needed, 1);
    KVT_EQ(plan.continuations.short_by, 1);
    char *before = fix_dump(&fix);
    KVT_EQ(fix_activate(&fix, want, NULL).bits, 0);
    KVT_EQ(fix.refusal.code, STORE_E_SHORT);
    KVT_EQ(fix.refusal.subject, STORE_S_CONTINUATION);
    KVT_EQ(store_checkpoint_begin(fix.store, finishes, FIX_LEASE, FIX_KEEP(NULL, 0), &got, NULL), STORE_E_SHORT);
    same(&fix, before);
    fix_recipe(&want, &first, 1, 0);
    store_seq third = fix_activate(&fix, want, NULL);
    KVT_TRUE(third.bits != 0);
    KVT_OK(store_finish(fix.store, finishes, FIX_LEASE, STORE_FINISH_RETAIN, NULL, 0, &cont, rows, NULL));
    KVT_EQ(fix_info(&fix, cont).frontier, 64);
    KVT_OK(store_end(fix.store, dies, &cont, rows, NULL));
    KVT_EQ(fix_info(&fix, cont).frontier, 64);
    store_seq moved = fix_activate(&fix, fix_from(cont, false, 64, 64, 64), NULL);
    KVT_TRUE(moved.bits != 0);
    KVT_EQ(store_release(fix.store, cont, NULL), STORE_E_STALE);
    KVT_OK(store_end(fix.store, moved, &cont, rows, NULL));
    KVT_TRUE(cont.bits != 0);
    fix_close(&fix);
}

/* FIT-2: the last descriptor is refused where it is not there, and an aborted activation gives it back. */
static void fit_2_abort_gives_the_descriptor_back(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct store_activation want = fix_root(64, 1, 64);
    struct store_activated made;
    config.max_continuations = 1;
    fix_open(&fix, &config);
    for (uint32_t i = 0; i < 3; i++) {
        KVT_OK(store_activate_begin(fix.store, &want, &made, NULL));
        KVT_EQ(fix_activate(&fix, want, NULL).bits, 0);
        KVT_OK(store_activate_abort(fix.store, made.seq, NULL, NULL));
    }
    fix_cont(&fix, 64, 1);
    fix_close(&fix);
}

/* SRV-5: quarantined pages stay, nobody drives; back again all is as before. */
static void srv_5_quarantine(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    store_cont none;
    fix_open(&fix, &config);
    store_seq seq = running(&fix, 150, 1);
    fix_checkpoint(&fix, seq, 150);
    KVT_OK(store_quarantine(fix.store, seq, true, NULL));
    KVT_EQ(fix_pool(&fix, 0).quarantined, 1); /* the shared two cannot be written */
    KVT_EQ(fix_seq(&fix, seq).state, STORE_SEQ_QUARANTINED);
    KVT_EQ(fix_round(&fix, seq, 150, KVD_NONE, KVD_NONE, KVD_NONE, NULL), STORE_E_STATE);
    KVT_EQ(store_finish(fix.store, seq, FIX_LEASE, STORE_FINISH_RELEASE, NULL, 0, &none, rows, NULL), STORE_E_STATE);
    KVT_OK(store_quarantine(fix.store, seq, false, NULL));
    KVT_OK(fix_round(&fix, seq, 150, KVD_NONE, KVD_NONE, KVD_NONE, NULL));
    KVT_EQ(fix_pool(&fix, 0).quarantined, 0);
    fix_close(&fix);
}

/* SRV-5: a dead worker's sequence lives on at the smallest committed frontier, named as far as it is. */
static void srv_5_end_keeps_the_common_frontier(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_MTP);
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    struct store_round_result r;
    store_cont cont;
    fix_open(&fix, &config);
    store_seq seq = fix_activate(&fix, fix_root(300, 1, 300), NULL);
    fix_fill(&fix, seq, 70, 1);
    struct store_round_item item = fix_item(seq);
    item.pool[0].commit = 200;
    item.pool[1].commit = 150;
    fix_apply(&fix, &item, &r);
    uint64_t epoch = fix_page(&fix, 0, 2)->epoch;
    KVT_OK(store_quarantine(fix.store, seq, true, NULL));
    KVT_OK(store_end(fix.store, seq, &cont, rows, NULL));
    KVT_EQ(rows[0].slice_count, 5);
    struct kvd_continuation_info info = fix_info(&fix, cont);
    KVT_EQ(info.frontier, 150);
    KVT_EQ(info.pages[0], 3);
    KVT_EQ(info.named_pages, 1);
    KVT_FALSE(info.tail_named);
    KVT_EQ(fix_page(&fix, 0, 2)->committed, 22);
    KVT_TRUE(fix_page(&fix, 0, 2)->epoch > epoch); /* shortened from 64 */
    KVT_EQ(fix_pool(&fix, 0).available, 5);
    struct kvd_hit found[2];
    uint8_t chain[2][32];
    fix_chain(1, 2, 0, 2, chain);
    KVT_EQ(fix_find(fix.store, (const uint8_t(*)[32])chain, 2, found, 2), 1); /* matched up to its names */
    KVT_EQ(found[0].usable, 64);
    store_seq again = fix_activate(&fix, fix_from(cont, true, 150, 150, 1), NULL);
    KVT_OK(store_name_pages(fix.store, again, FIX_LEASE, 1, 1, (const uint8_t(*)[32])chain + 1,
                            NULL)); /* its successor names on */
    KVT_EQ(fix_info(&fix, cont).named_pages, 2);
    KVT_EQ(fix_find(fix.store, (const uint8_t(*)[32])chain, 2, found, 2), 2);
    KVT_EQ(found[0].continuation.bits, cont.bits);
    KVT_EQ(found[0].usable, 128); /* its tail is not known */
    KVT_TRUE(found[1].live);      /* LIVE-1 */
    fix_close(&fix);
}

static void srv_5_end_releases_the_incomplete(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    struct store_activated got;
    store_cont cont;
    config.has_state = true;
    config.state_slots = 3;
    fix_open(&fix, &config);
    store_seq seq = running(&fix, 100, 1);
    KVT_OK(fix_round(&fix, seq, KVD_NONE, 90, KVD_NONE, KVD_NONE, NULL)); /* the image is of 100 */
    KVT_OK(store_end(fix.store, seq, &cont, rows, NULL));
    KVT_EQ(cont.bits, 0);
    seq = fix_activate(&fix, fix_root(100, 1, 100), NULL);
    KVT_OK(store_end(fix.store, seq, &cont, rows, NULL)); /* nothing committed */
    KVT_EQ(cont.bits, 0);
    store_cont kept = fix_cont(&fix, 100, 1);
    store_seq fork = fix_activate(&fix, fix_from(kept, true, 100, 100, 1), NULL);
    KVT_OK(store_end(fix.store, fork, &cont, rows, NULL)); /* its image was perhaps never copied */
    KVT_EQ(cont.bits, 0);
    char *before = fix_dump(&fix);
    struct store_activation want = fix_from(kept, false, 100, 100, 1);
    KVT_OK(store_activate_begin(fix.store, &want, &got, NULL));
    KVT_OK(store_end(fix.store, got.seq, &cont, rows, NULL)); /* ACTIVATING: aborted */
    KVT_EQ(rows[0].slice_count, 2);
    same(&fix, before);
    KVT_EQ(store_end(fix.store, got.seq, &cont, rows, NULL), STORE_E_STALE);
    fix_close(&fix);
}

static void cont_release_errors(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    fix_open(&fix, &config);
    store_cont cont = fix_cont(&fix, 64, 1);
    KVT_OK(store_release(fix.store, cont, NULL));
    KVT_EQ(store_release(fix.store, cont, NULL), STORE_E_STALE);
    KVT_EQ(store_set_retention(fix.store, cont, 1, NULL), STORE_E_STALE);
    store_cont next = fix_cont(&fix, 64, 2); /* the same slot, another generation */
    KVT_EQ((uint32_t)next.bits, (uint32_t)cont.bits);
    KVT_EQ(store_release(fix.store, cont, NULL), STORE_E_STALE);
    KVT_EQ(fix_info(&fix, next).frontier, 64);
    KVT_EQ(store_release(fix.store, (store_cont){ 0 }, NULL), STORE_E_STALE);
    KVT_EQ(store_release(fix.store, (store_cont){ UINT64_MAX }, NULL), STORE_E_STALE);
    fix_close(&fix);
}

/* Each code's sentence carries what was asked, what there was and what to change. */
static void srv_2_sentences(void) {
    char text[256];
    struct store_refusal r = { STORE_E_SHORT, STORE_S_PAGES, 1, 7, 5, 9 };
    KVT_HAS(store_refusal_text(&r, text, sizeof text),
            "pages of pool 1: asked for 7, had 5 of 9: release continuations");
    for (int code = STORE_E_STALE; code <= STORE_E_ARGUMENT; code++) {
        r = (struct store_refusal){ (enum store_code)code, STORE_S_COMMIT, KVD_NONE, 4711, 5, 9 };
        store_refusal_text(&r, text, sizeof text);
        KVT_HAS(text, "commit: ");
        KVT_TRUE(strlen(text) > 40);
        KVT_TRUE(strstr(text, "4711") || strstr(text, "1267") || code == STORE_E_LEASE);
        KVT_TRUE(store_refusal_text(&r, text, 9) == text);
        KVT_EQ(strlen(text), 8);
    }
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(ckpt_1_of_a_running_sequence),
                                             KVT_CASE(ckpt_1_aligned_needs_no_copy),
                                             KVT_CASE(ckpt_1_abort_restores),
                                             KVT_CASE(ckpt_1_survives_the_end_of_its_sequence),
                                             KVT_CASE(cont_1_only_complete),
                                             KVT_CASE(cont_1_truncation_outdates_the_image),
                                             KVT_CASE(cont_2_names),
                                             KVT_CASE(fin_1_retain),
                                             KVT_CASE(fin_1_last_reference_frees),
                                             KVT_CASE(fit_2_a_sequence_owns_its_descriptor),
                                             KVT_CASE(fit_2_abort_gives_the_descriptor_back),
                                             KVT_CASE(srv_5_quarantine),
                                             KVT_CASE(srv_5_end_keeps_the_common_frontier),
                                             KVT_CASE(srv_5_end_releases_the_incomplete),
                                             KVT_CASE(cont_release_errors),
                                             KVT_CASE(srv_2_sentences),
                                             { 0 } };
    return kvt_main("store checkpoint", cases, argc, argv);
}
