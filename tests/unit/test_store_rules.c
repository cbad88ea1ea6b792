/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules that are about the store as a whole rather than one operation of it: what it decides and what not (Q), what
 * never changes (POOL-1), identities (PAGE, INV-5), and what stays true between the steps of others (INV-10, INV-11,
 * INV-16, INV-17).
 */
#include "store_fixture.h"

static struct kvd_pool_view view(struct fix *fix, store_seq seq, uint32_t pool) { return fix_seq(fix, seq).pool[pool]; }

/* the store answers whether a chosen target can be honoured; it never picks a source or a victim, however
 * near they lie. */
static void q_1_q_2_never_chooses(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct kvd_plan plan;
    fix_open(&fix, &config);
    store_cont cold = fix_cont(&fix, 256, 1), warm = fix_cont(&fix, 256, 2); /* the pool is full of what could go */
    struct store_activation want = fix_root(64, 1, 0);
    char *before = fix_dump(&fix);
    KVT_EQ(fix_activate(&fix, want, NULL).bits, 0);
    KVT_EQ(fix.refusal.code, STORE_E_SHORT);
    KVT_OK(store_plan_activation(fix.store, &want, &plan, &fix.refusal));
    KVT_EQ(plan.feasibility, KVD_BLOCKED);
    KVT_EQ(plan.pages[0].short_by, 1);
    char *after = fix_dump(&fix);
    KVT_EQ_STR(before, after);
    fix_recipe(&want, &cold, 1, 0);
    KVT_TRUE(fix_activate(&fix, want, NULL).bits != 0);
    KVT_EQ(fix_info(&fix, warm).frontier, 256); /* the other was not touched */
    free(before);
    free(after);
    fix_close(&fix);
}

/* POOL-1: whatever happens, no pool grows, shrinks, or lends to the other. */
static void pool_1_fixed_at_start(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_MTP);
    fix_open(&fix, &config);
    uint64_t seed = kvt_seed();
    store_cont kept[4] = { { 0 } };
    for (unsigned i = 0; i < 200; i++) {
        unsigned k = kvt_below(&seed, 4);
        if (kept[k].bits) {
            KVT_OK(store_release(fix.store, kept[k], &fix.refusal));
            kept[k].bits = 0;
        } else {
            store_seq seq = fix_activate(&fix, fix_root(64 + kvt_below(&seed, 64), 1, 64), NULL);
            if (seq.bits && fix_fill(&fix, seq, 64, i)) kept[k] = fix_retain(&fix, seq, 64);
        }
        for (uint32_t p = 0; p < 2; p++) {
            struct kvd_pool_stats s = fix_pool(&fix, p);
            KVT_EQ(s.capacity, config.pool_pages[p]);
            KVT_EQ(s.allocated + s.reserved + s.available, s.capacity); /* POOL-6 */
        }
    }
    fix_close(&fix);
}

/* ACT-2, ACT-5, PAGE-7: the order of an activation as others see it: until commit the sequence cannot be driven, the
 * source is claimed but whole; rows are ready when the copies have ended, and not before; after commit all at once. */
static void act_2_order(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_MTP);
    struct store_activated a;
    fix_open(&fix, &config);
    store_cont source = fix_cont(&fix, 100, 1);
    const char *ids = fix_cont_ids(&fix, source, 0);
    char *pages = strdup(ids);
    struct store_activation want = fix_from(source, true, 100, 120, 8);
    KVT_OK(store_activate_begin(fix.store, &want, &a, &fix.refusal));
    KVT_EQ(a.n_copies, 2); /* a tail a pool, all pools together */
    KVT_EQ(fix_seq(&fix, a.seq).state, STORE_SEQ_ACTIVATING);
    KVT_EQ(fix_round(&fix, a.seq, KVD_NONE, KVD_NONE, KVD_NONE, 110, NULL), STORE_E_STATE);
    KVT_EQ(store_release(fix.store, source, &fix.refusal), STORE_E_BUSY); /* the copies still read it */
    for (uint32_t shown = 0; shown < 2; shown++) {
        struct store_activated now;
        KVT_OK(store_activate_look(fix.store, a.seq, &now, &fix.refusal));
        for (uint32_t p = 0; p < 2; p++) {
            const int32_t *row = store_table_row(fix.store, p, a.pool[p].row);
            int32_t copied = (int32_t)a.copies[a.copies[0].pool == p ? 0 : 1].dst;
            KVT_EQ(now.pool[p].slice_count, shown ? 2 : 0);
            KVT_EQ_I(row[1], shown ? copied : -1); /* in no row before the copy has ended */
        }
        KVT_TRUE(fix_audit(&fix));
        KVT_EQ(store_activate_commit(fix.store, a.seq, &fix.refusal), shown ? STORE_OK : STORE_MORE);
    }
    KVT_EQ_STR(fix_cont_ids(&fix, source, 0), pages);
    KVT_EQ(fix_seq(&fix, a.seq).state, STORE_SEQ_ACTIVE);
    KVT_OK(fix_round(&fix, a.seq, KVD_NONE, KVD_NONE, KVD_NONE, 110, NULL));
    KVT_OK(store_release(fix.store, source, &fix.refusal));
    free(pages);
    fix_close(&fix);
}

/* ACT-6: with a backend every bundle has it: rows, entitlement, continuations; what fits without it is refused. */
static void act_6_backend_is_never_off(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_MTP);
    fix_open(&fix, &config);
    store_seq seq =
        fix_activate(&fix, fix_root(190, 1, 0), NULL); /* 3 main pages; with the lead of 3 tokens 4 draft pages */
    KVT_EQ(view(&fix, seq, 0).entitlement, 3);
    KVT_EQ(view(&fix, seq, 1).entitlement, 4);
    store_seq second = fix_activate(&fix, fix_root(190, 1, 0), NULL);
    KVT_TRUE(second.bits != 0);
    KVT_EQ(fix_activate(&fix, fix_root(64, 1, 0), NULL).bits, 0); /* main has 2 free pages, draft none */
    KVT_EQ(fix.refusal.pool, 1);
    KVT_EQ(fix_pool(&fix, 0).available, 2);
    KVT_EQ(fix_pool(&fix, 1).available, 0);
    KVT_EQ(fix_pool(&fix, 0).rows_used, 2);
    fix_close(&fix);
}

/* SPACE-1, SPACE-2: entitlement >= membership >= pages(committed) at every step of a sequence's life, in each pool on
 * its own. */
static void space_1_space_2_order_of_extents(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_MTP);
    fix_open(&fix, &config);
    uint64_t seed = kvt_seed();
    store_seq seq = fix_activate(&fix, fix_root(100, 400, 0), NULL);
    for (unsigned i = 0; i < 500; i++) {
        struct store_round_item item = fix_item(seq);
        struct store_round_result r;
        for (uint32_t p = 0; p < 2; p++) {
            uint32_t *field[] = { &item.pool[p].commit, &item.pool[p].truncate, &item.pool[p].keep,
                                  &item.pool[p].ensure };
            *field[kvt_below(&seed, 4)] = kvt_below(&seed, 600);
        }
        fix_apply(&fix, &item, &r);
        for (uint32_t p = 0; p < 2; p++) {
            struct kvd_pool_view v = view(&fix, seq, p);
            KVT_TRUE(v.entitlement >= v.membership && v.membership >= geom_pages(v.committed));
            const int32_t *row = store_table_row(fix.store, p, v.row);
            for (uint32_t b = 0; b < store_row_entries(fix.store); b++)
                KVT_TRUE((row[b] >= 0) == (b < v.membership)); /* ROW-6, GEOM-7: entry b is ordinal block b */
        }
    }
    fix_close(&fix);
}

/* PAGE-1, PAGE-2, INV-6: content is epoch + committed columns; mapped or written bytes past the frontier belong to
 * nobody. */
static void page_1_page_2_content(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    fix_open(&fix, &config);
    store_seq seq = fix_activate(&fix, fix_root(200, 1, 200), NULL); /* 4 pages mapped */
    KVT_OK(fix_round(&fix, seq, 70, KVD_NONE, KVD_NONE, KVD_NONE, NULL));
    static const uint32_t columns[] = { 64, 6, 0, 0 };
    for (uint32_t b = 0; b < 4; b++) {
        const struct page *page = fix_page(&fix, 0, (uint32_t)store_table_row(fix.store, 0, 0)[b]);
        KVT_EQ(page->committed, columns[b]);
        KVT_EQ(page->references, 1);
        KVT_EQ(page->active_references, 1);
        KVT_TRUE(page->generation != 0 && page->epoch != 0);
    }
    KVT_TRUE(fix_fill(&fix, seq, 70, 1));
    store_cont cont = fix_retain(&fix, seq, 70);
    KVT_EQ(fix_info(&fix, cont).frontier, 70);
    KVT_EQ(fix_info(&fix, cont).pages[0], 2); /* the two pages past the frontier went */
    KVT_EQ(fix_pool(&fix, 0).available, 6);
    fix_close(&fix);
}

/* PAGE-4, INV-1: one logical page a lease; aliases cost nothing twice. */
static void page_4_aliases_are_free(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    fix_open(&fix, &config);
    store_cont source = fix_cont(&fix, 256, 1);
    for (unsigned i = 0; i < 3; i++) {
        KVT_TRUE(fix_activate(&fix, fix_from(source, true, 256, 257, 1), NULL).bits != 0);
        KVT_EQ(fix_pool(&fix, 0).allocated, 4);    /* still the four pages */
        KVT_EQ(fix_pool(&fix, 0).reserved, i + 1); /* and each fork's own growth */
        KVT_EQ(fix_page(&fix, 0, 0)->references, i + 2);
    }
    fix_close(&fix);
}

/* INV-5: identity, epoch and place are three things: a new row changes none, truncation the epoch alone, a copy has its
 * own of each. */
static void inv_5_identity_epoch_place(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct store_activated a;
    fix_open(&fix, &config);
    store_seq other = fix_activate(&fix, fix_root(1, 1, 1), NULL); /* holds row 0 and page 0 */
    store_seq seq = fix_activate(&fix, fix_root(100, 20, 0), NULL);
    KVT_TRUE(fix_fill(&fix, seq, 100, 1));
    KVT_EQ(view(&fix, seq, 0).row, 1);
    uint32_t place = (uint32_t)store_table_row(fix.store, 0, 1)[1];
    struct page was = *fix_page(&fix, 0, place);
    store_cont cont = fix_retain(&fix, seq, 100);
    store_cont none;
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    KVT_OK(store_finish(fix.store, other, FIX_LEASE, STORE_FINISH_RELEASE, NULL, 0, &none, rows, &fix.refusal));
    seq = fix_activate(&fix, fix_from(cont, false, 100, 110, 10), &a);
    KVT_EQ(view(&fix, seq, 0).row, 0); /* another row */
    KVT_EQ_I(store_table_row(fix.store, 0, 0)[1], place);
    const struct page *now = fix_page(&fix, 0, place);
    KVT_TRUE(now->epoch == was.epoch && now->generation == was.generation);
    KVT_OK(fix_round(&fix, seq, KVD_NONE, 90, KVD_NONE, KVD_NONE, NULL));
    KVT_EQ_I(store_table_row(fix.store, 0, 0)[1], place);
    KVT_TRUE(now->epoch != was.epoch && now->generation == was.generation);
    store_cont point = fix_checkpoint(&fix, seq, 90);
    uint32_t ids[8];
    KVT_EQ(store_cont_pages(fix.store, point, 0, ids, 8), 2);
    KVT_TRUE(ids[1] != place && fix_page(&fix, 0, ids[1])->epoch != now->epoch);
    fix_close(&fix);
}

/* INV-10: what a running sequence was promised is nobody else's until it ends, mapped or not, trimmed or not. */
static void inv_10_entitlement_is_kept(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    fix_open(&fix, &config);
    store_seq seq = fix_activate(&fix, fix_root(64, 320, 0), NULL); /* 6 of 8 pages */
    for (uint32_t mapped = 0; mapped <= 384; mapped += 64) {
        KVT_OK(fix_round(&fix, seq, KVD_NONE, KVD_NONE, 0, mapped, NULL));
        KVT_EQ(fix_pool(&fix, 0).available, 2);
        KVT_EQ(fix_activate(&fix, fix_root(129, 1, 0), NULL).bits, 0);
    }
    KVT_OK(fix_round(&fix, seq, KVD_NONE, KVD_NONE, 0, KVD_NONE, NULL)); /* trimmed: back to its own reservation */
    KVT_EQ(view(&fix, seq, 0).membership, 0);
    KVT_EQ(fix_pool(&fix, 0).available, 2);
    KVT_OK(fix_round(&fix, seq, KVD_NONE, KVD_NONE, KVD_NONE, 383, NULL));
    KVT_EQ(view(&fix, seq, 0).membership, 6);
    fix_close(&fix);
}

/* INV-11, ROW-5: between two boundaries of a sequence nothing that others do changes its row, its pages' places, or its
 * frontier. */
static void inv_11_frozen_between_boundaries(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    fix_open(&fix, &config);
    store_cont shared = fix_cont(&fix, 128, 1);
    store_seq seq = fix_activate(&fix, fix_from(shared, true, 128, 140, 20), NULL);
    KVT_OK(fix_round(&fix, seq, KVD_NONE, KVD_NONE, KVD_NONE, 140, NULL));
    struct kvd_pool_view was = view(&fix, seq, 0);
    int32_t row[8];
    memcpy(row, store_table_row(fix.store, 0, was.row), sizeof row);
    store_cont point = fix_checkpoint(&fix, seq, 128);
    store_seq neighbour = fix_activate(&fix, fix_from(point, false, 128, 150, 10), NULL);
    KVT_OK(fix_round(&fix, neighbour, KVD_NONE, KVD_NONE, KVD_NONE, 150, NULL));
    KVT_OK(store_release(fix.store, shared, &fix.refusal));
    store_cont kept;
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    KVT_OK(store_end(fix.store, neighbour, &kept, rows, &fix.refusal));
    if (kept.bits) KVT_OK(store_release(fix.store, kept, &fix.refusal));
    KVT_TRUE(fix_activate(&fix, fix_root(200, 1, 200), NULL).bits != 0); /* takes every free page */
    struct kvd_pool_view now = view(&fix, seq, 0);
    KVT_EQ_MEM(row, store_table_row(fix.store, 0, now.row), sizeof row);
    KVT_TRUE(now.row == was.row && now.committed == was.committed && now.membership == was.membership);
    fix_close(&fix);
}

/* INV-16, CONT-1: pages that nobody has named are no hit, and a checkpoint is none while its copy is in flight: what is
 * found then is what the running sequence has named (LIVE-1). */
static void inv_16_a_page_is_no_hit(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct kvd_hit hit[2];
    struct store_checkpointed point;
    uint8_t chain[2][32];
    fix_open(&fix, &config);
    fix_chain(1, 2, 1, 2, chain);
    store_seq seq = fix_activate(&fix, fix_root(140, 20, 140), NULL);
    KVT_OK(fix_round(&fix, seq, 140, KVD_NONE, KVD_NONE, KVD_NONE, NULL));
    KVT_EQ(fix_find(fix.store, (const uint8_t(*)[32])chain, 2, hit, 2), 0);
    KVT_TRUE(fix_fill(&fix, seq, 140, 1));
    KVT_OK(store_checkpoint_begin(fix.store, seq, FIX_LEASE, FIX_KEEP(fix_tail(140), 0), &point, &fix.refusal));
    KVT_EQ(point.n_copies, 1);
    KVT_EQ(fix_find(fix.store, (const uint8_t(*)[32])chain, 2, hit, 2), 1);
    KVT_TRUE(hit[0].live);
    KVT_OK(store_checkpoint_commit(fix.store, point.cont, NULL, &fix.refusal));
    KVT_EQ(fix_find(fix.store, (const uint8_t(*)[32])chain, 2, hit, 2), 2);
    KVT_EQ(hit[0].continuation.bits, point.cont.bits);
    fix_close(&fix);
}

/* INV-17, SPACE-4: with lease growth every launch that a boundary allowed is covered: either mapped as asked, or told
 * where to end. */
static void inv_17_every_launch_is_covered(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    config.lease_growth = true;
    config.lease_window = 64;
    config.prefill_chunk = 64;
    fix_open(&fix, &config);
    store_seq seq = fix_activate(&fix, fix_root(10, 500, 0), NULL);
    store_cont taken = fix_cont(&fix, 128, 1);
    uint32_t at = 10;
    for (;;) {
        struct store_round_result r;
        KVT_OK(fix_round(&fix, seq, KVD_NONE, KVD_NONE, KVD_NONE, at + 4, &r)); /* never an error */
        uint32_t covered = r.bounded && r.bounded_frontier < at + 4 ? r.bounded_frontier : at + 4;
        KVT_TRUE(geom_pages(covered) <= r.pool[0].membership);
        if (r.bounded) {
            KVT_EQ(r.bounded_frontier, r.pool[0].entitlement * 64);
            break;
        }
        KVT_NEED(at < 600);
        KVT_OK(fix_round(&fix, seq, at + 4, KVD_NONE, KVD_NONE, KVD_NONE, NULL));
        at += 4;
    }
    KVT_EQ(fix_pool(&fix, 0).available, 0); /* it ended because the pool did */
    KVT_EQ(fix_info(&fix, taken).frontier, 128);
    fix_close(&fix);
}

/* INV-2, POOL-2, SPEC-1: pools of a bundle share nothing: the same block has its own page, frontier and fate in each.
 */
static void inv_2_pools_are_grouped_apart(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_MTP);
    struct store_round_result r;
    fix_open(&fix, &config);
    store_seq first = fix_activate(&fix, fix_root(64, 60, 0), NULL);
    struct store_round_item item = fix_item(first);
    item.pool[1].ensure = 120; /* the draft leads */
    fix_apply(&fix, &item, &r);
    KVT_EQ(r.refusal.code, STORE_OK);
    KVT_EQ(r.pool[0].membership, 0);
    KVT_EQ(r.pool[1].membership, 2);
    store_seq second = fix_activate(&fix, fix_root(64, 1, 64), NULL);
    KVT_EQ_I(store_table_row(fix.store, 0, view(&fix, second, 0).row)[0], 0); /* main's first page is free still */
    KVT_EQ_I(store_table_row(fix.store, 1, view(&fix, second, 1).row)[0], 2);
    fix_close(&fix);
}

/* SPEC-4: fixed state is no growing KV: a slot costs no page, and pages no slot. */
static void spec_4_state_is_apart(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct kvd_stats stats;
    config.has_state = true;
    config.state_slots = 4;
    fix_open(&fix, &config);
    store_seq seq = fix_activate(&fix, fix_root(64, 1, 64), NULL);
    store_get_stats(fix.store, &stats);
    KVT_EQ(stats.state_slots_used, 1);
    KVT_EQ(stats.pool[0].allocated, 1);
    KVT_OK(fix_round(&fix, seq, 64, KVD_NONE, KVD_NONE, KVD_NONE, NULL));
    store_get_stats(fix.store, &stats);
    KVT_EQ(stats.state_slots_used, 1);
    fix_close(&fix);
}

/* INV-8: a page that two hold and that is not full is a violation by itself, whatever the frontiers say. */
static void inv_8_audit_sees_a_shared_tail(void) {
    char text[2048];
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    fix_open(&fix, &config);
    store_cont cont = fix_cont(&fix, 128, 1);
    fix_activate(&fix, fix_from(cont, true, 128, 129, 1), NULL);
    struct page *page = &fix.store->pool[0].pages[space_entry(fix.store, &fix.store->conts[0].space[0], 1)];
    KVT_EQ(page->references, 2);
    page->committed = 60;
    KVT_TRUE(store_audit(fix.store, text, sizeof text) > 0);
    KVT_HAS(text, "INV-8");
    page->committed = 64;
    fix_close(&fix);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(q_1_q_2_never_chooses),
                                             KVT_CASE(pool_1_fixed_at_start),
                                             KVT_CASE(act_2_order),
                                             KVT_CASE(act_6_backend_is_never_off),
                                             KVT_CASE(space_1_space_2_order_of_extents),
                                             KVT_CASE(page_1_page_2_content),
                                             KVT_CASE(page_4_aliases_are_free),
                                             KVT_CASE(inv_5_identity_epoch_place),
                                             KVT_CASE(inv_8_audit_sees_a_shared_tail),
                                             KVT_CASE(inv_10_entitlement_is_kept),
                                             KVT_CASE(inv_11_frozen_between_boundaries),
                                             KVT_CASE(inv_16_a_page_is_no_hit),
                                             KVT_CASE(inv_17_every_launch_is_covered),
                                             KVT_CASE(inv_2_pools_are_grouped_apart),
                                             KVT_CASE(spec_4_state_is_apart),
                                             { 0 } };
    return kvt_main("store rules", cases, argc, argv);
}
