/* SPDX-License-Identifier: Apache-2.0
 *
 * Spaces, frontiers, pages and rows (GRAN-*, PAGE-*, SPACE-*, ROW-*, SPEC-*).
 */
#include "store_fixture.h"

static struct kvd_pool_view view(struct fix *fix, store_seq seq) { return fix_seq(fix, seq).pool[0]; }

/* Pages are mapped, committed and trimmed one after another: a pool of 8 pages, an entitlement of 3. */
static void space_5_mapping_walk(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct store_round_result r;
    fix_open(&fix, &config);
    store_seq seq = fix_activate(&fix, fix_root(129, 1, 0), NULL);
    KVT_EQ(view(&fix, seq).entitlement, 3);
    KVT_OK(fix_round(&fix, seq, KVD_NONE, KVD_NONE, KVD_NONE, 65, &r));
    KVT_EQ_STR(fix_ids(&fix, seq, 0), "0 1");
    KVT_EQ(r.pool[0].committed, 0); /* mapped is not committed */
    KVT_EQ(r.pool[0].slice_begin, 0);
    KVT_EQ(r.pool[0].slice_count, 2);
    KVT_OK(fix_round(&fix, seq, 65, KVD_NONE, KVD_NONE, 129, &r));
    KVT_EQ_STR(fix_ids(&fix, seq, 0), "0 1 2");
    KVT_EQ(r.pool[0].slice_begin, 2); /* ROW-3: one slice, only what is new */
    KVT_EQ(r.pool[0].slice_count, 1);
    KVT_OK(fix_round(&fix, seq, KVD_NONE, 65, 65, KVD_NONE, &r));
    KVT_EQ(r.pool[0].membership, 2);
    KVT_EQ(r.pool[0].entitlement, 3);
    KVT_EQ(r.pool[0].slice_begin, 2);
    KVT_EQ(r.pool[0].slice_count, 1);
    KVT_EQ_I(store_table_row(fix.store, 0, r.pool[0].row)[2], -1); /* ROW-6 */
    fix_close(&fix);
}

/* SPACE-5, SPACE-6, SPACE-7: what is not asked for is not looked at, so a zeroed item changes nothing. */
static void space_6_a_zeroed_item_asks_for_nothing(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct store_round_result r;
    fix_open(&fix, &config);
    store_seq seq = fix_activate(&fix, fix_root(129, 1, 0), NULL);
    KVT_OK(fix_round(&fix, seq, KVD_NONE, KVD_NONE, KVD_NONE, 129, NULL));
    KVT_OK(fix_round(&fix, seq, 129, KVD_NONE, KVD_NONE, KVD_NONE, NULL));
    char *before = fix_dump(&fix);
    struct store_round_item item = { .seq = seq, .lease = FIX_LEASE };
    store_round(fix.store, &item, 1, &r);
    KVT_OK(r.refusal.code);
    KVT_EQ(r.pool[0].committed, 129);
    KVT_EQ(r.pool[0].membership, 3);
    KVT_EQ(r.pool[0].slice_count, 0);
    memset(item.pool, 0xEE, sizeof item.pool); /* nor is any other value */
    for (int p = 0; p < KVD_MAX_POOLS; p++) item.pool[p].ask = 0;
    store_round(fix.store, &item, 1, &r);
    KVT_OK(r.refusal.code);
    char *after = fix_dump(&fix);
    KVT_EQ_STR(before, after);
    free(before);
    free(after);
    fix_close(&fix);
}

/* The last step of a sequence maps more than it commits; a lower bound trims nothing, a higher one is refused. */
static void space_5_terminal_walk(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    struct store_round_result r;
    store_cont none;
    fix_open(&fix, &config);
    store_seq seq = fix_activate(&fix, fix_root(129, 1, 0), NULL);
    KVT_OK(fix_round(&fix, seq, KVD_NONE, KVD_NONE, KVD_NONE, 63, NULL));
    KVT_OK(fix_round(&fix, seq, 63, KVD_NONE, KVD_NONE, 71, &r));
    KVT_EQ(r.pool[0].membership, 2);
    KVT_EQ(fix_pool(&fix, 0).reserved, 1);
    KVT_EQ(fix_pool(&fix, 0).available, 5);
    KVT_OK(fix_round(&fix, seq, KVD_NONE, KVD_NONE, KVD_NONE, 71, NULL));
    KVT_OK(fix_round(&fix, seq, KVD_NONE, KVD_NONE, KVD_NONE, 64, &r)); /* a lower bound: no trim */
    KVT_EQ(r.pool[0].membership, 2);
    KVT_EQ(r.pool[0].slice_count, 0);
    char *before = fix_dump(&fix);
    KVT_EQ(fix_round(&fix, seq, KVD_NONE, KVD_NONE, KVD_NONE, 193, NULL), STORE_E_ENTITLEMENT);
    KVT_EQ(fix.refusal.subject, STORE_S_ENSURE);
    KVT_EQ(fix.refusal.asked, 4);
    KVT_EQ(fix.refusal.had, 2);
    KVT_EQ(fix.refusal.limit, 3);
    char *after = fix_dump(&fix);
    KVT_EQ_STR(before, after);
    KVT_OK(fix_round(&fix, seq, 64, KVD_NONE, 64, KVD_NONE, &r));
    KVT_EQ(r.pool[0].membership, 1);
    KVT_EQ(fix_pool(&fix, 0).reserved, 2);
    KVT_EQ(fix_pool(&fix, 0).available, 5);
    KVT_OK(store_finish(fix.store, seq, FIX_LEASE, STORE_FINISH_RELEASE, NULL, 0, &none, rows, NULL));
    KVT_EQ(fix_pool(&fix, 0).available, 8);
    free(before);
    free(after);
    fix_close(&fix);
}

/* The worked numbers of 6.5: prompt + output - 1; MTP draft_window - 1 ahead, Draft Full not.
 */
static void space_3_entitlement_default(void) {
    struct fix fix;
    struct kvd_plan plan;
    static const struct {
        enum geom_backend backend;
        uint32_t prompt, output, main, draft;
    } t[] = { { GEOM_OFF, 64, 1, 1, 0 }, { GEOM_OFF, 64, 2, 2, 0 },  { GEOM_OFF, 1, 64, 1, 0 },
              { GEOM_OFF, 1, 65, 2, 0 }, { GEOM_OFF, 512, 1, 8, 0 }, { GEOM_OFF, 100, 413, 8, 0 },
              { GEOM_MTP, 60, 2, 1, 1 }, { GEOM_MTP, 60, 3, 1, 2 },  { GEOM_MTP, 61, 1, 1, 1 },
              { GEOM_MTP, 62, 1, 1, 2 }, { GEOM_MTP, 512, 1, 8, 8 }, { GEOM_DFLASH, 62, 1, 1, 1 } };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct store_config config = fix_config(t[i].backend);
        struct store_activation want = fix_root(t[i].prompt, t[i].output, 0);
        fix_open(&fix, &config);
        KVT_OK(store_plan_activation(fix.store, &want, &plan, NULL));
        KVT_EQ(plan.entitlement[0], t[i].main);
        KVT_EQ(plan.entitlement[1], t[i].draft);
        KVT_EQ(plan.pages[0].needed, t[i].main);
        store_seq seq = fix_activate(&fix, want, NULL);
        KVT_EQ(fix_seq(&fix, seq).pool[0].entitlement, t[i].main);
        fix_close(&fix);
    }
}

static struct store_config growing(void) {
    struct store_config config = fix_config(GEOM_OFF); /* cushion: ceil((4 + 4 + 2)/64) + 1 = 2 pages */
    config.max_context = 64 * 64;
    config.pool_pages[0] = 21;
    config.lease_growth = true;
    config.lease_window = 256;
    config.prefill_chunk = 64;
    return config;
}

/* SPACE-3 with lease growth: prompt + window + cushion at first; each rung of the ladder; SPACE-4: bounded, never an
 * error. */
static void space_3_space_4_lease_growth(void) {
    struct fix fix;
    struct store_config config = growing();
    struct store_round_result r;
    fix_open(&fix, &config);
    store_seq seq = fix_activate(&fix, fix_root(100, config.max_context - 99, 0), NULL);
    KVT_EQ(view(&fix, seq).entitlement, 6 + 2); /* pages(100 + 256) + cushion */
    uint64_t revision = store_revision(fix.store);
    KVT_OK(fix_round(&fix, seq, KVD_NONE, KVD_NONE, KVD_NONE, 384, NULL));
    KVT_OK(fix_round(&fix, seq, 384, KVD_NONE, KVD_NONE, KVD_NONE, &r)); /* 6 + 2 pages are entitled: not thin */
    KVT_EQ(r.pool[0].entitlement, 8);
    KVT_EQ(store_revision(fix.store), revision);
    KVT_OK(fix_round(&fix, seq, KVD_NONE, KVD_NONE, KVD_NONE, 385, NULL));
    KVT_OK(fix_round(&fix, seq, 385, KVD_NONE, KVD_NONE, KVD_NONE, &r)); /* thin: window */
    KVT_EQ(r.pool[0].entitlement, 11 + 2);                               /* pages(385 + 256) + 2 */
    KVT_TRUE(store_revision(fix.store) > revision);
    KVT_FALSE(r.bounded);
    store_seq other = fix_activate(&fix, fix_root(64 * 2, 1, 0), NULL); /* 6 of 21 left */
    KVT_EQ(fix_pool(&fix, 0).available, 6);
    KVT_OK(fix_round(&fix, seq, KVD_NONE, KVD_NONE, KVD_NONE, 720, NULL));
    KVT_OK(fix_round(&fix, seq, 720, KVD_NONE, KVD_NONE, KVD_NONE, &r)); /* window: 16 + 2 pages */
    KVT_EQ(r.pool[0].entitlement, 18);
    KVT_EQ(fix_pool(&fix, 0).available, 1);
    KVT_OK(fix_round(&fix, seq, KVD_NONE, KVD_NONE, KVD_NONE, 1100, NULL));
    KVT_OK(
        fix_round(&fix, seq, 1100, KVD_NONE, KVD_NONE, 1300, &r)); /* no rung fits: bounded, mapped as far as it goes */
    KVT_TRUE(r.bounded);
    KVT_EQ(r.bounded_pool, 0);
    KVT_EQ(r.bounded_frontier, 18 * 64);
    KVT_EQ(r.pool[0].committed, 1100);
    KVT_EQ(r.pool[0].membership, 18);
    store_cont none;
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    KVT_OK(store_finish(fix.store, other, FIX_LEASE, STORE_FINISH_RELEASE, NULL, 0, &none, rows, NULL));
    KVT_OK(fix_round(&fix, seq, KVD_NONE, KVD_NONE, KVD_NONE, 1160,
                     &r)); /* 3 free: the rungs of 256 and 128 do not fit, 64 does */
    KVT_FALSE(r.bounded);
    KVT_EQ(r.pool[0].entitlement, 19 + 2);
    KVT_EQ(r.pool[0].membership, 19);
    KVT_EQ(fix_round(&fix, seq, KVD_NONE, KVD_NONE, KVD_NONE, 4097, NULL),
           STORE_E_ENTITLEMENT); /* past the request's own ceiling */
    fix_close(&fix);
}

/* SPACE-4: membership is short as pages are: growth ends where the entries do, and says so. */
static void space_4_growth_stops_at_the_membership(void) {
    struct fix fix;
    struct store_config config = growing();
    struct store_round_result r = { .bounded = false };
    uint32_t at = 64;
    config.max_context = 64 * 200;
    config.pool_pages[0] = 200;
    config.membership_entries = 128;
    config.lease_window = 64;
    fix_open(&fix, &config);
    store_seq seq = fix_activate(&fix, fix_root(64, config.max_context - 63, 64), NULL);
    for (; at < 64 * 200 && !r.bounded; at += 64) {
        KVT_OK(fix_round(&fix, seq, at, KVD_UNCHANGED, KVD_UNCHANGED, at + 64, &r));
        if (!fix_audit(&fix)) break;
    }
    KVT_TRUE(r.bounded);
    KVT_EQ(r.bounded_frontier, r.pool[0].entitlement * 64);
    KVT_TRUE(r.pool[0].entitlement <= 128 && fix_pool(&fix, 0).available > 64);
    fix_close(&fix);
}

/* Growth stops at the request's own ceiling, and a pool that lacks nothing does not grow. */
static void space_3_growth_stops_at_ceiling(void) {
    struct fix fix;
    struct store_config config = growing();
    struct store_round_result r;
    fix_open(&fix, &config);
    store_seq seq = fix_activate(&fix, fix_root(64, 400, 0), NULL); /* ceiling 463: 8 pages */
    KVT_EQ(view(&fix, seq).entitlement, 5 + 2);
    KVT_OK(fix_round(&fix, seq, KVD_NONE, KVD_NONE, KVD_NONE, 448, NULL));
    KVT_OK(fix_round(&fix, seq, 448, KVD_NONE, KVD_NONE, KVD_NONE, &r));
    KVT_EQ(r.pool[0].entitlement, 8);
    KVT_FALSE(r.bounded);
    fix_close(&fix);
}

static void space_3_window_is_at_least_a_prefill_chunk(void) {
    struct fix fix;
    struct store_config config = growing();
    config.prefill_chunk = 640;
    fix_open(&fix, &config);
    store_seq seq = fix_activate(&fix, fix_root(64, config.max_context - 63, 0), NULL);
    KVT_EQ(view(&fix, seq).entitlement, 11 + 2);
    fix_close(&fix);
}

/* GRAN-1, GRAN-2, SPACE-6: any token is a frontier; commits are monotone and inside what is mapped. */
static void gran_1_space_6_commit(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct store_round_result r;
    config.max_context = 500;
    fix_open(&fix, &config);
    store_seq seq = fix_activate(&fix, fix_root(500, 1, 500), NULL);
    for (uint32_t f = 1; f <= 130; f++) {
        KVT_OK(fix_round(&fix, seq, f, KVD_NONE, KVD_NONE, KVD_NONE, &r));
        KVT_EQ(r.pool[0].committed, f);
        KVT_EQ(fix_page(&fix, 0, 0)->committed, f < 64 ? f : 64);
        KVT_EQ(fix_page(&fix, 0, 1)->committed, f < 64 ? 0 : f < 128 ? f - 64 : 64);
    }
    char *before = fix_dump(&fix);
    KVT_EQ(fix_round(&fix, seq, 129, KVD_NONE, KVD_NONE, KVD_NONE, NULL), STORE_E_RANGE);
    KVT_EQ(fix.refusal.subject, STORE_S_COMMIT);
    KVT_EQ(fix_round(&fix, seq, 501, KVD_NONE, KVD_NONE, KVD_NONE, NULL),
           STORE_E_RANGE); /* mapped to 512, but S is 500 */
    KVT_EQ(fix.refusal.limit, 500);
    char *after = fix_dump(&fix);
    KVT_EQ_STR(before, after);
    free(before);
    free(after);
    fix_close(&fix);
}

/* SPACE-7, PAGE-8: the partial page stays; shortened pages get new epochs, untouched ones keep theirs. */
static void page_8_space_7_truncate(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct store_round_result r;
    fix_open(&fix, &config);
    store_seq seq = fix_activate(&fix, fix_root(256, 1, 256), NULL);
    fix_fill(&fix, seq, 200, 1);
    uint64_t epoch[4];
    for (uint32_t i = 0; i < 4; i++) epoch[i] = fix_page(&fix, 0, i)->epoch;
    KVT_OK(fix_round(&fix, seq, KVD_NONE, 100, KVD_NONE, KVD_NONE, &r));
    KVT_EQ(r.pool[0].committed, 100);
    KVT_EQ(r.pool[0].membership, 4); /* truncation alone trims nothing */
    KVT_EQ(fix_page(&fix, 0, 0)->epoch, epoch[0]);
    KVT_TRUE(fix_page(&fix, 0, 1)->epoch > epoch[3]);
    KVT_TRUE(fix_page(&fix, 0, 2)->epoch > epoch[3]);
    KVT_TRUE(fix_page(&fix, 0, 3)->epoch > epoch[3]);
    KVT_EQ(fix_page(&fix, 0, 1)->committed, 36);
    KVT_EQ(fix_page(&fix, 0, 2)->committed, 0);
    KVT_EQ(fix_seq(&fix, seq).named_pages, 1); /* the second page is no longer full: its name is gone */
    uint64_t kept = fix_page(&fix, 0, 1)->epoch;
    KVT_OK(fix_round(&fix, seq, KVD_NONE, 100, 130, KVD_NONE,
                     &r)); /* the same frontier again; provisional 130 keeps 3 pages */
    KVT_EQ(fix_page(&fix, 0, 1)->epoch, kept);
    KVT_EQ(r.pool[0].membership, 3);
    KVT_EQ(r.pool[0].slice_begin, 3);
    KVT_EQ(r.pool[0].slice_count, 1);
    KVT_OK(fix_round(&fix, seq, KVD_NONE, KVD_NONE, 0, KVD_NONE, &r)); /* committed 100 keeps its partial page */
    KVT_EQ(r.pool[0].membership, 2);
    KVT_EQ(fix_round(&fix, seq, KVD_NONE, 101, KVD_NONE, KVD_NONE, NULL), STORE_E_RANGE);
    KVT_EQ(fix.refusal.subject, STORE_S_TRUNCATE);
    KVT_OK(fix_round(&fix, seq, KVD_NONE, 0, 0, KVD_NONE, &r));
    KVT_EQ(r.pool[0].membership, 0);
    KVT_EQ(r.pool[0].entitlement, 4);
    fix_close(&fix);
}

/* PAGE-6: epochs never repeat, though pages and descriptors do. */
static void page_6_epochs_never_repeat(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    uint64_t last = 0;
    fix_open(&fix, &config);
    for (int i = 0; i < 20; i++) {
        store_cont cont = fix_cont(&fix, 64, 1);
        KVT_EQ_STR(fix_cont_ids(&fix, cont, 0), "0");
        KVT_TRUE(fix_page(&fix, 0, 0)->epoch > last);
        last = fix_page(&fix, 0, 0)->epoch;
        KVT_OK(store_release(fix.store, cont, NULL));
    }
    fix_close(&fix);
}

/* SPACE-8: protection is the most that a surviving checkpoint reads, and falls when it goes. */
static void space_8_protection_rises_and_falls(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct store_round_result r;
    fix_open(&fix, &config);
    store_seq seq = fix_activate(&fix, fix_root(256, 1, 256), NULL);
    fix_fill(&fix, seq, 65, 1);
    store_cont first = fix_checkpoint(&fix, seq, 65);
    KVT_EQ(view(&fix, seq).protected_frontier, 64); /* one full page shared; the tail was copied */
    KVT_EQ(fix_page(&fix, 0, 0)->protected, 64);
    KVT_EQ(fix_page(&fix, 0, 1)->protected, 0);
    fix_fill(&fix, seq, 192, 1);
    store_cont second = fix_checkpoint(&fix, seq, 192);
    KVT_EQ(view(&fix, seq).protected_frontier, 192);
    KVT_EQ(fix_round(&fix, seq, KVD_NONE, 191, KVD_NONE, KVD_NONE, NULL), STORE_E_PROTECTED);
    KVT_EQ(fix.refusal.had, 192);
    KVT_OK(store_release(fix.store, second, NULL));
    KVT_EQ(view(&fix, seq).protected_frontier, 64);
    KVT_EQ(fix_page(&fix, 0, 1)->protected, 0);
    KVT_TRUE(fix_page(&fix, 0, 1)->flags & PAGE_WRITER); /* alone again: it may be written */
    KVT_EQ(fix_round(&fix, seq, KVD_NONE, 63, KVD_NONE, KVD_NONE, NULL), STORE_E_PROTECTED);
    KVT_OK(fix_round(&fix, seq, KVD_NONE, 64, KVD_NONE, KVD_NONE, NULL));
    KVT_OK(store_release(fix.store, first, NULL));
    KVT_OK(fix_round(&fix, seq, KVD_NONE, 32, KVD_NONE, KVD_NONE, &r));
    KVT_EQ(r.pool[0].protected_frontier, 0);
    fix_close(&fix);
}

/* INV-8: two live forks protect each other's shared pages though no continuation is left. */
static void inv_8_sharers_protect_each_other(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    store_cont none;
    fix_open(&fix, &config);
    store_cont cont = fix_cont(&fix, 130, 1);
    store_seq a = fix_activate(&fix, fix_from(cont, true, 130, 130, 1), NULL),
              b = fix_activate(&fix, fix_from(cont, false, 130, 130, 1), NULL);
    KVT_EQ(fix_page(&fix, 0, 0)->references, 2);
    KVT_EQ(fix_page(&fix, 0, 0)->active_references, 2);
    KVT_FALSE(fix_page(&fix, 0, 0)->flags & PAGE_WRITER);
    KVT_EQ(view(&fix, a).protected_frontier, 128);
    KVT_EQ(fix_round(&fix, b, KVD_NONE, 127, KVD_NONE, KVD_NONE, NULL), STORE_E_PROTECTED);
    KVT_OK(store_finish(fix.store, a, FIX_LEASE, STORE_FINISH_RELEASE, NULL, 0, &none, rows, NULL));
    KVT_OK(fix_round(&fix, b, KVD_NONE, 127, KVD_NONE, KVD_NONE, NULL));
    fix_close(&fix);
}

/* ROW-1..3, ROW-6, INV-12: rows are leased by active spaces alone, hold the membership and -1 behind it. */
static void row_lease_and_mirror(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_MTP);
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    struct store_activated got;
    store_cont none;
    fix_open(&fix, &config);
    store_cont cont = fix_cont(&fix, 130, 1);
    KVT_EQ(fix_pool(&fix, 0).rows_used, 0); /* ROW-2: inactive has none */
    store_seq other = fix_activate(&fix, fix_root(64, 1, 64), NULL);
    store_seq seq = fix_activate(&fix, fix_from(cont, false, 130, 200, 1), &got);
    KVT_EQ(got.pool[0].row, 1);
    KVT_EQ(got.pool[0].slice_begin, 0); /* ROW-3: activation publishes the whole membership */
    KVT_EQ(got.pool[0].slice_count, 3);
    for (uint32_t p = 0; p < 2; p++) {
        const int32_t *row = store_table_row(fix.store, p, got.pool[p].row);
        uint32_t ids[8];
        KVT_EQ(store_seq_pages(fix.store, seq, p, ids, 8), 3);
        for (uint32_t i = 0; i < 8; i++) KVT_EQ_I(row[i], i < 3 ? (int32_t)ids[i] : -1);
    }
    const int32_t *row = store_table_row(fix.store, 0, 1);
    uint32_t generation = fix.store->pool[0].rows[1].generation;
    KVT_OK(store_finish(fix.store, seq, FIX_LEASE, STORE_FINISH_RELEASE, NULL, 0, &none, rows, NULL));
    KVT_EQ(rows[0].row, 1);
    KVT_EQ(rows[0].slice_begin, 0);
    KVT_EQ(rows[0].slice_count, 3);
    for (uint32_t i = 0; i < 8; i++) KVT_EQ_I(row[i], -1);
    KVT_EQ(fix.store->pool[0].rows[1].generation, generation + 1);
    KVT_TRUE(store_table_row(fix.store, 0, 1) == row); /* a stable address */
    KVT_EQ(fix_seq(&fix, other).pool[0].row, 0);
    fix_close(&fix);
}

static void map_ahead_is_capped(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct store_round_result r;
    config.map_ahead = 2;
    fix_open(&fix, &config);
    store_seq seq = fix_activate(&fix, fix_root(320, 1, 0), NULL);
    KVT_EQ(view(&fix, seq).membership, 0);
    KVT_OK(fix_round(&fix, seq, KVD_NONE, KVD_NONE, KVD_NONE, 1, &r));
    KVT_EQ(r.pool[0].membership, 3);
    KVT_OK(fix_round(&fix, seq, KVD_NONE, KVD_NONE, KVD_NONE, 192, &r)); /* has not to map: stays */
    KVT_EQ(r.pool[0].membership, 3);
    KVT_OK(fix_round(&fix, seq, KVD_NONE, KVD_NONE, KVD_NONE, 256, &r)); /* 4 + 2, entitlement 5 */
    KVT_EQ(r.pool[0].membership, 5);
    fix_close(&fix);
}

/* STEP-2: the next window is mapped before the one before is at its end, within the entitlement. */
static void step_2_map_ahead_of_what_is_mapped(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct store_round_result r;
    config.map_ahead = 2;
    fix_open(&fix, &config);
    store_seq seq = fix_activate(&fix, fix_root(320, 1, 0), NULL);
    KVT_OK(fix_round(&fix, seq, KVD_NONE, KVD_NONE, KVD_NONE, 1, &r));
    struct store_round_item item = fix_item(seq);
    item.ahead = true;
    fix_apply(&fix, &item, &r); /* asks for nothing */
    KVT_EQ(r.pool[0].membership, 3);
    const uint32_t ensure[] = { 64, 128, 64, 192, 320 }, membership[] = { 3, 4, 4, 5, 5 };
    for (uint32_t i = 0; i < 5; i++) {
        item.pool[0].ensure = ensure[i];
        fix_apply(&fix, &item, &r);
        KVT_OK(r.refusal.code);
        KVT_EQ(r.pool[0].membership, membership[i]); /* never fewer than before */
    }
    fix_close(&fix);
}

/* SPEC-1, SPEC-2, INV-13: pools map, commit and trim apart; a provisional lead is no coverage. */
static void spec_1_pools_go_apart(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_MTP);
    struct store_round_result r;
    fix_open(&fix, &config);
    store_seq seq = fix_activate(&fix, fix_root(60, 100, 0), NULL);
    struct store_round_item item = fix_item(seq);
    item.pool[0].ensure = 60 + 3 + 1; /* f + e + 1 */
    item.pool[1].ensure = 60 + 3 + 4; /* f + e + W */
    fix_apply(&fix, &item, &r);
    KVT_EQ(r.pool[0].membership, 1);
    KVT_EQ(r.pool[1].membership, 2);
    item = fix_item(seq);
    item.pool[0].commit = 62;
    fix_apply(&fix, &item, &r);
    KVT_EQ(r.pool[0].committed, 62);
    KVT_EQ(r.pool[1].committed, 0);
    item = fix_item(seq);
    item.pool[1].commit = 62;
    item.pool[1].keep = 62;
    fix_apply(&fix, &item, &r);
    KVT_EQ(r.pool[1].committed, 62);
    KVT_EQ(r.pool[1].membership, 1);
    KVT_EQ(r.pool[0].membership, 1);
    fix_close(&fix);
}

/* All pools or none: the second pool's refusal leaves the first as it was; neighbours in the batch are applied. */
static void round_is_all_or_nothing(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_MTP);
    struct store_round_result r[3];
    fix_open(&fix, &config);
    store_seq a = fix_activate(&fix, fix_root(100, 1, 100), NULL), b = fix_activate(&fix, fix_root(100, 1, 100), NULL);
    struct store_round_item item[3] = { fix_item(a), fix_item(b), fix_item(a) };
    item[0].pool[0].commit = item[0].pool[1].commit = 90;
    item[1].pool[0].commit = 90;
    item[1].pool[1].commit = 129;
    item[2].lease = 8;
    for (int i = 0; i < 3; i++) ROUND_ASK(&item[i]);
    store_round(fix.store, item, 3, r);
    KVT_OK(r[0].refusal.code);
    KVT_EQ(r[1].refusal.code, STORE_E_RANGE);
    KVT_EQ(r[1].refusal.pool, 1);
    KVT_EQ(r[2].refusal.code, STORE_E_LEASE);
    KVT_EQ(view(&fix, a).committed, 90);
    KVT_EQ(view(&fix, b).committed, 0);
    item[0].seq.bits += UINT64_C(1) << 32;
    store_round(fix.store, item, 1, r);
    KVT_EQ(r[0].refusal.code, STORE_E_STALE);
    fix_close(&fix);
}

/* Membership over several levels of chunks: 64, 65, 4096, 4097 pages and back. */
static void membership_grows_and_shrinks(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct store_round_result r;
    config.max_context = 64 * 5000;
    config.pool_pages[0] = 5000;
    fix_open(&fix, &config);
    store_seq seq = fix_activate(&fix, fix_root(64 * 5000, 1, 0), NULL);
    static const uint32_t pages[] = { 1,    63,   64,   65,   66,  128, 129, 4095, 4096, 4097, 4160, 4161, 5000, 4161,
                                      4160, 4097, 4096, 4095, 129, 128, 66,  65,   64,   63,   1,    0,    4999, 2 };
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        KVT_OK(fix_round(&fix, seq, KVD_NONE, KVD_NONE, pages[i] * 64, pages[i] * 64, &r));
        KVT_EQ(r.pool[0].membership, pages[i]);
        KVT_EQ(fix.store->chunks.used, chunks_for(pages[i]));
        for (uint32_t k = 0; k < pages[i]; k++)
            if (space_entry(fix.store, &fix.store->seqs[0].space[0], k) !=
                (uint32_t)store_table_row(fix.store, 0, 0)[k])
                KVT_EQ(k, KVD_NONE);
        KVT_TRUE(fix_audit(&fix));
    }
    KVT_EQ(chunks_for(0), 0);
    KVT_EQ(chunks_for(64), 1);
    KVT_EQ(chunks_for(65), 3);
    KVT_EQ(chunks_for(4096), 65);
    KVT_EQ(chunks_for(4097), 68);
    fix_close(&fix);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(space_5_mapping_walk),
                                             KVT_CASE(space_6_a_zeroed_item_asks_for_nothing),
                                             KVT_CASE(space_5_terminal_walk),
                                             KVT_CASE(space_3_entitlement_default),
                                             KVT_CASE(space_3_space_4_lease_growth),
                                             KVT_CASE(space_3_growth_stops_at_ceiling),
                                             KVT_CASE(space_4_growth_stops_at_the_membership),
                                             KVT_CASE(space_3_window_is_at_least_a_prefill_chunk),
                                             KVT_CASE(gran_1_space_6_commit),
                                             KVT_CASE(page_8_space_7_truncate),
                                             KVT_CASE(page_6_epochs_never_repeat),
                                             KVT_CASE(space_8_protection_rises_and_falls),
                                             KVT_CASE(inv_8_sharers_protect_each_other),
                                             KVT_CASE(row_lease_and_mirror),
                                             KVT_CASE(map_ahead_is_capped),
                                             KVT_CASE(step_2_map_ahead_of_what_is_mapped),
                                             KVT_CASE(spec_1_pools_go_apart),
                                             KVT_CASE(round_is_all_or_nothing),
                                             KVT_CASE(membership_grows_and_shrinks),
                                             { 0 } };
    return kvt_main("store space", cases, argc, argv);
}
