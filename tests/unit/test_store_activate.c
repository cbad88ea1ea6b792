/* SPDX-License-Identifier: Apache-2.0
 *
 * Activation: move, fork, recipes, plans, abort (ACT-*, POOL-6 in flight, CONT-4).
 */
#include "store_fixture.h"

static int begin(struct fix *fix, const struct store_activation *want, struct store_activated *got) {
    memset(got, 0, sizeof *got);
    return store_activate_begin(fix->store, want, got, &fix->refusal);
}

static void refused(struct fix *fix, struct store_activation want, enum store_code code, enum store_subject subject) {
    struct store_activated got;
    char *before = fix_dump(fix);
    KVT_EQ(begin(fix, &want, &got), code);
    KVT_EQ(fix->refusal.subject, subject);
    KVT_EQ(got.seq.bits, 0); /* outputs are written on success only */
    char *after = fix_dump(fix);
    KVT_EQ_STR(before, after);
    free(before);
    free(after);
}

/* ACT-4: F = 1000 shares 15 pages and copies 40 columns; the source stays. */
static void act_4_fork_1000(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_MTP);
    struct store_activated got;
    config.max_context = 2048;
    config.pool_pages[0] = config.pool_pages[1] = 40;
    fix_open(&fix, &config);
    store_cont cont = fix_cont(&fix, 1024, 1);
    char ids[256];
    snprintf(ids, sizeof ids, "%s", fix_cont_ids(&fix, cont, 0));
    store_seq seq = fix_activate(&fix, fix_from(cont, true, 1000, 1010, 20), &got);
    KVT_EQ(got.n_copies, 2);
    for (uint32_t p = 0; p < 2; p++) {
        KVT_EQ(got.copies[p].pool, p);
        KVT_EQ(got.copies[p].columns, 40);
        KVT_EQ(got.copies[p].src, 15);
        KVT_EQ(got.copies[p].kind, STORE_COPY_PAGE);
        KVT_EQ(got.pool[p].membership, 16);
        KVT_EQ(got.pool[p].committed, 1000);
        KVT_EQ(fix_seq(&fix, seq).pool[p].protected_frontier, 960);
        KVT_EQ(fix_pool(&fix, p).shared, 15);
        KVT_EQ(fix_pool(&fix, p).allocated, 17); /* INV-4: aliases cost nothing */
        const struct page *tail = fix_page(&fix, p, got.copies[p].dst);
        KVT_EQ(tail->committed, 40);
        KVT_EQ(tail->references, 1);
        KVT_TRUE(tail->flags & PAGE_WRITER);
        KVT_FALSE(fix_page(&fix, p, 0)->flags & PAGE_WRITER); /* PAGE-5 */
    }
    KVT_EQ_STR(fix_cont_ids(&fix, cont, 0), ids);
    KVT_EQ(fix_info(&fix, cont).frontier, 1024);
    KVT_EQ(fix_page(&fix, 0, 15)->committed, 64);
    KVT_OK(fix_round(&fix, seq, KVD_NONE, KVD_NONE, KVD_NONE, 1025, NULL));
    KVT_OK(fix_round(&fix, seq, 1025, KVD_NONE, KVD_NONE, KVD_NONE, NULL));
    KVT_EQ(fix_page(&fix, 0, 15)->committed, 64); /* private growth does not reach the source */
    KVT_EQ_STR(fix_cont_ids(&fix, cont, 0), ids);
    fix_close(&fix);
}

/* An aligned fork copies nothing and takes no tail page. */
static void act_4_aligned_fork(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct store_activated got;
    fix_open(&fix, &config);
    store_cont cont = fix_cont(&fix, 150, 1);
    fix_activate(&fix, fix_from(cont, true, 128, 129, 1), &got);
    KVT_EQ(got.n_copies, 0);
    KVT_EQ(got.pool[0].membership, 2);
    KVT_EQ(fix_pool(&fix, 0).reserved, 1);
    fix_close(&fix);
}

/* ACT-3: the same pages, no copy, the writer goes on; nothing is counted twice on the way. */
static void act_3_move(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_MTP);
    struct store_activated got;
    fix_open(&fix, &config);
    store_cont cont = fix_cont(&fix, 150, 1);
    char ids[64];
    snprintf(ids, sizeof ids, "%s", fix_cont_ids(&fix, cont, 0));
    uint64_t epoch = fix_page(&fix, 0, 2)->epoch;
    struct store_activation want = fix_from(cont, false, 150, 200, 1);
    KVT_OK(begin(&fix, &want, &got));
    KVT_EQ(got.n_copies, 0);
    KVT_EQ(fix_pool(&fix, 0).allocated, 3);
    KVT_EQ(fix_pool(&fix, 0).shared, 0);
    KVT_EQ(fix_page(&fix, 0, 2)->protected, 22); /* still the continuation's */
    KVT_FALSE(fix_page(&fix, 0, 2)->flags & PAGE_WRITER);
    KVT_TRUE(fix_info(&fix, cont).claimed);
    KVT_TRUE(fix_audit(&fix));
    KVT_OK(fix_commit(&fix, got.seq));
    KVT_EQ_STR(fix_ids(&fix, got.seq, 0), ids);
    KVT_EQ(fix_page(&fix, 0, 2)->epoch, epoch);
    KVT_EQ(fix_page(&fix, 0, 2)->protected, 0);
    KVT_TRUE(fix_page(&fix, 0, 2)->flags & PAGE_WRITER);
    KVT_EQ(fix_seq(&fix, got.seq).named_pages, 2);
    KVT_EQ(store_release(fix.store, cont, &fix.refusal), STORE_E_STALE); /* it is the sequence now */
    KVT_OK(fix_round(&fix, got.seq, 160, KVD_NONE, KVD_NONE, KVD_NONE, NULL));
    fix_close(&fix);
}

/* Rewind by a move: trailing pages go at commit, the cut page gets a new epoch (PAGE-8) and loses its name. */
static void act_3_move_below_the_frontier(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct store_activated got;
    fix_open(&fix, &config);
    store_cont cont = fix_cont(&fix, 300, 1);
    uint64_t epoch = fix_page(&fix, 0, 1)->epoch;
    struct store_activation want = fix_from(cont, false, 100, 100, 1);
    KVT_OK(begin(&fix, &want, &got));
    KVT_EQ(got.n_copies, 0);
    KVT_EQ(fix_pool(&fix, 0).allocated, 5); /* ACT-5: intact until commit */
    KVT_EQ(fix_page(&fix, 0, 1)->committed, 64);
    KVT_OK(fix_commit(&fix, got.seq));
    KVT_EQ(fix_pool(&fix, 0).allocated, 2);
    KVT_EQ(fix_page(&fix, 0, 1)->committed, 36);
    KVT_TRUE(fix_page(&fix, 0, 1)->epoch > epoch);
    KVT_EQ(fix_seq(&fix, got.seq).named_pages, 1);
    fix_close(&fix);
}

/* ACT-3: a full page that somebody else reads is copied before the cut is written. */
static void act_3_move_copies_a_shared_cut(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct store_activated got;
    fix_open(&fix, &config);
    store_cont cont = fix_cont(&fix, 192, 1);
    store_seq reader = fix_activate(&fix, fix_from(cont, true, 128, 128, 1), NULL);
    fix_activate(&fix, fix_from(cont, false, 100, 100, 1), &got);
    KVT_EQ(got.n_copies, 1);
    KVT_EQ(got.copies[0].src, 1);
    KVT_EQ(got.copies[0].columns, 36);
    KVT_EQ(fix_page(&fix, 0, 1)->committed, 64);
    KVT_EQ_STR(fix_ids(&fix, reader, 0), "0 1");
    fix_close(&fix);
}

/* A reference that goes with the recipe does not survive: the cut is no copy, and needs no free page. */
static void act_3_move_with_a_victim_that_shares(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct store_activated got;
    fix_open(&fix, &config);
    store_cont cont = fix_cont(&fix, 192, 1);
    store_cont sharer = fix_retain(&fix, fix_activate(&fix, fix_from(cont, true, 128, 128, 1), NULL), 128);
    store_cont filler = fix_cont(&fix, 320, 2); /* the pool is full */
    struct store_activation want = fix_from(cont, false, 100, 100, 1);
    fix_recipe(&want, &sharer, 1, 0);
    KVT_OK(begin(&fix, &want, &got));
    KVT_EQ(got.n_copies, 0);
    KVT_EQ(fix_info(&fix, sharer).frontier, 128); /* intact */
    KVT_TRUE(fix_audit(&fix));
    KVT_OK(fix_commit(&fix, got.seq));
    KVT_EQ_STR(fix_ids(&fix, got.seq, 0), "0 1");
    KVT_EQ(fix_page(&fix, 0, 1)->committed, 36);
    KVT_TRUE(fix_page(&fix, 0, 1)->flags & PAGE_WRITER);
    KVT_EQ(fix_info(&fix, filler).frontier, 320);
    KVT_EQ(fix_pool(&fix, 0).available, 1);
    fix_close(&fix);
}

/* Two branches of one source, three references; each tail private; the last release frees. */
static void act_4_two_branches(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    store_cont none;
    fix_open(&fix, &config);
    store_cont cont = fix_cont(&fix, 150, 1);
    store_seq a = fix_activate(&fix, fix_from(cont, true, 150, 150, 1), NULL),
              b = fix_activate(&fix, fix_from(cont, true, 150, 150, 1), NULL);
    KVT_EQ(fix_page(&fix, 0, 0)->references, 3);
    KVT_EQ(fix_page(&fix, 0, 0)->active_references, 2);
    KVT_EQ(fix_info(&fix, cont).sharers, 2);
    KVT_EQ(fix_info(&fix, cont).exclusive_pages[0], 1);
    KVT_EQ_STR(fix_ids(&fix, a, 0), "0 1 3");
    KVT_EQ_STR(fix_ids(&fix, b, 0), "0 1 4");
    KVT_OK(store_release(fix.store, cont, NULL));
    KVT_OK(store_finish(fix.store, a, FIX_LEASE, STORE_FINISH_RELEASE, NULL, 0, &none, rows, NULL));
    KVT_EQ(fix_pool(&fix, 0).allocated, 3);
    KVT_OK(store_finish(fix.store, b, FIX_LEASE, STORE_FINISH_RELEASE, NULL, 0, &none, rows, NULL));
    KVT_EQ(fix_pool(&fix, 0).available, 8);
    fix_close(&fix);
}

/* ACT-5: abort of a root, a move and a fork, with and without victims, restores everything; twice is refused. */
static void act_5_abort_restores(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_MTP);
    struct store_activated got;
    config.has_state = true;
    config.state_slots = 6;
    config.pool_pages[0] = config.pool_pages[1] = 9;
    fix_open(&fix, &config);
    store_cont cont = fix_cont(&fix, 150, 1), victim = fix_cont(&fix, 100, 2);
    fix_activate(&fix, fix_from(cont, true, 150, 150, 1), NULL);
    struct store_activation wants[] = { fix_root(200, 1, 65), fix_from(cont, false, 150, 160, 2),
                                        fix_from(cont, true, 150, 160, 2) };
    KVT_OK(store_finish(fix.store, seq_handle(fix.store, &fix.store->seqs[0]), FIX_LEASE, STORE_FINISH_RELEASE, NULL, 0,
                        &(store_cont){ 0 }, (struct kvd_pool_view[KVD_MAX_POOLS]){ { 0 } },
                        NULL)); /* the slot's pin goes */
    for (uint32_t i = 0; i < 6; i++) {
        struct store_activation want = wants[i % 3];
        uint32_t lost = 9;
        fix_recipe(&want, &victim, i / 3, 0);
        char *before = fix_dump(&fix);
        KVT_OK(begin(&fix, &want, &got));
        KVT_EQ(fix_seq(&fix, got.seq).state, STORE_SEQ_ACTIVATING);
        KVT_TRUE(fix_audit(&fix));
        KVT_OK(store_activate_abort(fix.store, got.seq, &lost, NULL));
        KVT_EQ(lost, 0);
        char *after = fix_dump(&fix);
        KVT_EQ_STR(before, after);
        KVT_EQ(store_activate_abort(fix.store, got.seq, NULL, NULL), STORE_E_STALE);
        KVT_EQ(store_activate_commit(fix.store, got.seq, NULL), STORE_E_STALE);
        free(before);
        free(after);
    }
    fix_close(&fix);
}

/* ACT-5: in flight, what is claimed refuses everything else. */
static void act_5_claims(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct store_activated move, fork, other;
    struct store_round_result r;
    fix_open(&fix, &config);
    store_cont cont = fix_cont(&fix, 100, 1), victim = fix_cont(&fix, 64, 2);
    struct store_activation want = fix_from(cont, false, 100, 100, 1), again = want, recipe = fix_root(64, 1, 0);
    fix_recipe(&want, &victim, 1, 0);
    fix_recipe(&recipe, &victim, 1, 0);
    again.keep = true;
    KVT_OK(begin(&fix, &want, &move));
    KVT_EQ(begin(&fix, &again, &other), STORE_E_BUSY);
    KVT_EQ(begin(&fix, &recipe, &other), STORE_E_REVISION);
    KVT_EQ(store_release(fix.store, cont, NULL), STORE_E_BUSY);
    KVT_EQ(store_release(fix.store, victim, NULL), STORE_E_BUSY);
    KVT_EQ(store_set_retention(fix.store, victim, 2, NULL), STORE_E_BUSY);
    struct kvd_hit found[4];
    uint8_t chain[1][32];
    fix_digest(1, 0, chain[0]);
    KVT_EQ(fix_find(fix.store, (const uint8_t(*)[32])chain, 1, found, 4), 0);
    KVT_EQ(fix_round(&fix, move.seq, KVD_NONE, KVD_NONE, KVD_NONE, 64, &r), STORE_E_STATE);
    KVT_EQ(store_quarantine(fix.store, move.seq, true, NULL), STORE_E_STATE);
    KVT_OK(store_activate_abort(fix.store, move.seq, NULL, NULL));
    KVT_EQ(fix_find(fix.store, (const uint8_t(*)[32])chain, 1, found, 4), 1);
    again.ensure[0] = 0;
    KVT_OK(begin(&fix, &again, &fork));
    KVT_OK(begin(&fix, &again, &other));             /* several forks of one source may be in flight */
    KVT_EQ(begin(&fix, &want, &move), STORE_E_BUSY); /* a move needs it alone */
    KVT_EQ(store_release(fix.store, cont, NULL), STORE_E_BUSY);
    KVT_EQ(fix_find(fix.store, (const uint8_t(*)[32])chain, 1, found, 4), 1); /* but it can be found */
    KVT_OK(fix_commit(&fix, fork.seq));
    KVT_EQ(store_activate_commit(fix.store, fork.seq, NULL), STORE_E_STATE);
    KVT_OK(store_activate_abort(fix.store, other.seq, NULL, NULL));
    want.n_victims = 0;
    KVT_OK(begin(&fix, &want, &move));
    KVT_OK(fix_commit(&fix, move.seq));
    fix_close(&fix);
}

static void act_8_recipe_errors(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    fix_open(&fix, &config);
    store_cont a = fix_cont(&fix, 100, 1), b = fix_cont(&fix, 64, 2);
    store_cont twice[2] = { b, b }, source[1] = { a }, stale[1] = { { a.bits + (UINT64_C(1) << 32) } };
    struct store_activation want = fix_root(64, 1, 0), fork = fix_from(a, true, 100, 100, 1);
    fix_recipe(&want, twice, 2, 0);
    refused(&fix, want, STORE_E_ARGUMENT, STORE_S_RECIPE);
    want.n_victims = KVD_MAX_VICTIMS + 1;
    refused(&fix, want, STORE_E_RANGE, STORE_S_RECIPE);
    fix_recipe(&want, stale, 1, 0);
    refused(&fix, want, STORE_E_STALE, STORE_S_RECIPE);
    fix_recipe(&fork, source, 1, 0);
    refused(&fix, fork, STORE_E_ARGUMENT, STORE_S_RECIPE);
    fork.keep = false; /* consumed anyhow */
    KVT_TRUE(fix_activate(&fix, fork, NULL).bits != 0);
    want = fix_root(64, 1, 0);
    want.revision = store_revision(fix.store) - 1;
    refused(&fix, want, STORE_E_REVISION, STORE_S_RECIPE);
    want.revision++;
    KVT_TRUE(fix_activate(&fix, want, NULL).bits != 0);
    fix_close(&fix);
}

static void act_1_argument_errors(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct store_activation want;
    config.pool_pages[0] = 7;
    fix_open(&fix, &config);
    store_cont cont = fix_cont(&fix, 100, 1), stale = { cont.bits ^ UINT64_C(1) << 33 };
#define REFUSED(base, change, code, subject)                                                                           \
    want = base;                                                                                                       \
    change;                                                                                                            \
    refused(&fix, want, code, subject)
    REFUSED(fix_root(64, 1, 0), want.lease = 0, STORE_E_ARGUMENT, STORE_S_SEQUENCE);
    REFUSED(fix_root(64, 1, 0), want.frontier = 1, STORE_E_RANGE, STORE_S_FRONTIER);
    REFUSED(fix_root(0, 1, 0), (void)0, STORE_E_RANGE, STORE_S_PROMPT);
    REFUSED(fix_root(513, 1, 0), (void)0, STORE_E_RANGE, STORE_S_PROMPT);
    REFUSED(fix_root(64, 0, 0), (void)0, STORE_E_RANGE, STORE_S_OUTPUT);
    /* SPACE-3: an output that never fits is refused at once, and never cut. */
    REFUSED(fix_root(64, 450, 0), (void)0, STORE_E_RANGE, STORE_S_OUTPUT);
    REFUSED(fix_root(512, 2, 0), (void)0, STORE_E_RANGE, STORE_S_OUTPUT);
    REFUSED(fix_root(64, 1, 65), (void)0, STORE_E_RANGE, STORE_S_ENSURE);
    REFUSED(fix_root(512, 1, 0), (void)0, STORE_E_NEVER, STORE_S_PAGES);
    REFUSED(fix_root(448, 1, 0), (void)0, STORE_E_SHORT, STORE_S_PAGES);
    KVT_EQ(fix.refusal.asked, 7);
    KVT_EQ(fix.refusal.had, 5);
    KVT_EQ(fix.refusal.limit, 7);
    REFUSED(fix_from(stale, true, 1, 64, 1), (void)0, STORE_E_STALE, STORE_S_CONTINUATION);
    REFUSED(fix_from(cont, true, 0, 100, 1), (void)0, STORE_E_RANGE, STORE_S_FRONTIER);
    REFUSED(fix_from(cont, true, 101, 101, 1), (void)0, STORE_E_STALE, STORE_S_FRONTIER);
    REFUSED(fix_from(cont, true, 100, 99, 1), (void)0, STORE_E_RANGE, STORE_S_PROMPT);
    fix_close(&fix);
}

/* ACT-8: the plan's answer is the activation's; the joint post-state counts pages that only both victims together free.
 */
static void act_8_plan_counts_the_joint_state(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_MTP);
    struct kvd_plan plan;
    fix_open(&fix, &config);
    store_cont cont = fix_cont(&fix, 256, 1);
    store_cont branch =
        fix_retain(&fix, fix_activate(&fix, fix_from(cont, true, 130, 130, 1), NULL), 130); /* shares 2, copies 1 */
    store_cont both[2] = { cont, branch };
    struct store_activation want = fix_root(300, 1, 0); /* 5 pages; 3 are free */
    uint64_t revision = store_revision(fix.store);
    char *before = fix_dump(&fix);
    KVT_OK(store_plan_activation(fix.store, &want, &plan, NULL));
    KVT_EQ(plan.feasibility, KVD_BLOCKED);
    KVT_EQ(plan.pages[0].needed, 5);
    KVT_EQ(plan.pages[0].available, 3);
    KVT_EQ(plan.pages[0].short_by, 2);
    fix_recipe(&want, both + 1, 1, 0);
    KVT_OK(store_plan_activation(fix.store, &want, &plan, NULL));
    KVT_EQ(plan.freed_pages[0], 1); /* the shared two stay */
    KVT_EQ(plan.pages[0].short_by, 1);
    fix_recipe(&want, both, 1, 0);
    KVT_OK(store_plan_activation(fix.store, &want, &plan, NULL));
    KVT_EQ(plan.feasibility, KVD_READY);
    KVT_EQ(plan.freed_pages[0], 2);
    fix_recipe(&want, both, 2, 0);
    KVT_OK(store_plan_activation(fix.store, &want, &plan, NULL));
    KVT_EQ(plan.freed_pages[0], 5);
    KVT_EQ(plan.pages[1].available, 8);
    KVT_EQ(plan.revision, revision);
    KVT_EQ(plan.rows.needed, 1);
    KVT_EQ(plan.rows.available, 3);
    KVT_EQ(plan.membership.needed, 128);
    char *after = fix_dump(&fix);
    KVT_EQ_STR(before, after);
    KVT_EQ(store_revision(fix.store), revision);
    want = fix_from(cont, true, 200, 256, 1);
    KVT_OK(store_plan_activation(fix.store, &want, &plan, NULL));
    KVT_EQ(plan.shared_pages[0], 3);
    KVT_EQ(plan.copied_columns[0], 8);
    KVT_EQ(plan.pages[0].needed, 1);
    want = fix_root(512, 1, 0);
    KVT_OK(store_plan_activation(fix.store, &want, &plan, NULL));
    KVT_EQ(plan.feasibility, KVD_BLOCKED);
    free(before);
    free(after);
    fix_close(&fix);
}

/* Owed pages: the victims stay intact until commit, though their pages are promised and mapped. */
static void act_8_victims_intact_until_commit(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct store_activated got;
    fix_open(&fix, &config);
    store_cont victim = fix_cont(&fix, 384, 1);           /* 6 of 8 */
    struct store_activation want = fix_root(400, 1, 300); /* 7 pages, 5 mapped at once: 2 are free */
    fix_recipe(&want, &victim, 1, 0);
    char *before = fix_dump(&fix);
    KVT_OK(begin(&fix, &want, &got));
    KVT_EQ(got.pool[0].membership, 5);
    KVT_EQ(got.pool[0].entitlement, 7);
    KVT_EQ_STR(fix_ids(&fix, got.seq, 0), "6 7 0 1 2");
    KVT_EQ_STR(fix_cont_ids(&fix, victim, 0), "0 1 2 3 4 5");
    KVT_EQ(fix_pool(&fix, 0).allocated, 8); /* POOL-6 at every instant */
    KVT_EQ(fix_pool(&fix, 0).reserved, 0);
    KVT_EQ(fix_page(&fix, 0, 0)->committed, 64);
    KVT_TRUE(fix_audit(&fix));
    KVT_OK(store_activate_abort(fix.store, got.seq, NULL, NULL));
    char *after = fix_dump(&fix);
    KVT_EQ_STR(before, after);
    KVT_OK(begin(&fix, &want, &got));
    KVT_OK(fix_commit(&fix, got.seq));
    KVT_EQ_STR(fix_ids(&fix, got.seq, 0), "6 7 0 1 2"); /* as it was published */
    KVT_EQ(fix_page(&fix, 0, 0)->committed, 0);
    KVT_EQ(fix_pool(&fix, 0).allocated, 5);
    KVT_EQ(fix_pool(&fix, 0).reserved, 2);
    KVT_EQ(fix_info(&fix, victim).continuation.bits, 0);
    free(before);
    free(after);
    fix_close(&fix);
}

/* A moved source's dropped pages count too, and a victim that shares with it only frees jointly. */
static void act_8_move_uses_what_it_drops(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct store_activated got;
    struct kvd_plan plan;
    fix_open(&fix, &config);
    store_cont cont = fix_cont(&fix, 512, 1); /* the whole pool */
    struct store_activation want = fix_from(cont, false, 64, 500, 1);
    want.ensure[0] = 200;
    KVT_OK(store_plan_activation(fix.store, &want, &plan, NULL));
    KVT_EQ(plan.feasibility, KVD_READY);
    KVT_EQ(plan.pages[0].needed, 7);
    KVT_EQ(plan.pages[0].available, 7);
    KVT_OK(begin(&fix, &want, &got));
    KVT_TRUE(fix_audit(&fix));
    KVT_OK(fix_commit(&fix, got.seq));
    KVT_EQ(fix_seq(&fix, got.seq).pool[0].membership, 4);
    KVT_EQ(fix_pool(&fix, 0).reserved, 4);
    fix_close(&fix);
}

/* The documented exception: not one free page for the tail copy. */
static void act_8_exception_when_no_page_is_free(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct store_activated got;
    uint32_t lost = 0;
    fix_open(&fix, &config);
    store_cont cont = fix_cont(&fix, 100, 1), victim = fix_cont(&fix, 384, 2);
    struct store_activation want = fix_from(cont, true, 100, 100, 1);
    KVT_EQ(begin(&fix, &want, &got), STORE_E_SHORT);
    KVT_EQ(fix.refusal.asked, 1);
    KVT_EQ(fix.refusal.had, 0);
    fix_recipe(&want, &victim, 1, 0);
    KVT_OK(begin(&fix, &want, &got));
    KVT_EQ(got.copies[0].dst, 2);
    KVT_EQ(fix_info(&fix, victim).continuation.bits, 0);
    KVT_OK(store_activate_abort(fix.store, got.seq, &lost, NULL));
    KVT_EQ(lost, 1);
    KVT_EQ(fix_pool(&fix, 0).available, 6);
    KVT_EQ(fix_info(&fix, cont).frontier, 100);
    fix_close(&fix);
}

/* Membership entries that only the victims free are pending like pages; those for what is mapped at once cannot be. */
static void act_8_pending_membership(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct store_activated got;
    uint32_t lost = 0;
    config.max_context = 64 * 200;
    config.pool_pages[0] = 300;
    config.membership_entries = 6 * CHUNK;
    fix_open(&fix, &config);
    store_cont victim = fix_cont(&fix, 64 * 130, 1);         /* 4 chunks of 6 */
    struct store_activation want = fix_root(64 * 100, 1, 0); /* 3 chunks */
    refused(&fix, want, STORE_E_SHORT, STORE_S_MEMBERSHIP);
    KVT_EQ(fix.refusal.asked, 3 * CHUNK);
    KVT_EQ(fix.refusal.had, 2 * CHUNK);
    fix_recipe(&want, &victim, 1, 0);
    char *before = fix_dump(&fix);
    KVT_OK(begin(&fix, &want, &got));
    KVT_EQ(fix.store->chunks.reserved, 2);
    KVT_TRUE(fix_audit(&fix));
    KVT_OK(store_activate_abort(fix.store, got.seq, &lost, NULL));
    KVT_EQ(lost, 0);
    char *after = fix_dump(&fix);
    KVT_EQ_STR(before, after);
    KVT_OK(begin(&fix, &want, &got));
    KVT_OK(fix_commit(&fix, got.seq));
    KVT_EQ(fix.store->chunks.reserved, 3);
    KVT_OK(fix_round(&fix, got.seq, KVD_NONE, KVD_NONE, KVD_NONE, 64 * 100, NULL));
    KVT_OK(fix_round(&fix, got.seq, 64 * 100, KVD_NONE, KVD_NONE, KVD_NONE, NULL));
    free(before);
    free(after);
    fix_close(&fix);
    fix_open(&fix, &config);
    victim = fix_cont(&fix, 64 * 130, 1);
    fix_recipe(&want, &victim, 1, 0);
    want.ensure[0] = 64 * 100; /* 3 chunks at once: the victim goes at begin */
    KVT_OK(begin(&fix, &want, &got));
    KVT_OK(store_activate_abort(fix.store, got.seq, &lost, NULL));
    KVT_EQ(lost, 1);
    KVT_EQ(fix.store->chunks.used + fix.store->chunks.reserved, 0);
    fix_close(&fix);
}

/* ACT-1, ACT-8: rows and sequences are one a sequence. */
static void act_1_concurrency_is_bounded(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    fix_open(&fix, &config);
    for (int i = 0; i < 3; i++) KVT_TRUE(fix_activate(&fix, fix_root(1, 1, 0), NULL).bits != 0);
    refused(&fix, fix_root(1, 1, 0), STORE_E_SHORT, STORE_S_SEQUENCE);
    KVT_EQ(fix.refusal.limit, 3);
    fix_close(&fix);
}

/* CONT-4 and the slots: a fork takes a fresh one and pins the source's until its first commit; a move keeps it. */
static void cont_4_state_slots(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct store_activated got;
    struct kvd_stats stats;
    config.has_state = true;
    config.state_slots = 3;
    fix_open(&fix, &config);
    store_cont cont = fix_cont(&fix, 100, 1);
    KVT_EQ(fix_info(&fix, cont).state_slot, 0);
    refused(&fix, fix_from(cont, true, 64, 100, 1), STORE_E_RANGE, STORE_S_STATE_FRONTIER);
    store_seq fork = fix_activate(&fix, fix_from(cont, true, 100, 120, 1), &got);
    KVT_EQ(got.state_slot, 1);
    KVT_EQ(got.source_state_slot, 0);
    refused(&fix, fix_from(cont, false, 100, 120, 1), STORE_E_BUSY, STORE_S_STATE_SLOT); /* still read by the fork */
    KVT_OK(store_release(fix.store, cont, NULL));                                        /* the slot outlives it */
    store_get_stats(fix.store, &stats);
    KVT_EQ(stats.state_slots_used, 2);
    KVT_TRUE(fix_audit(&fix));
    KVT_OK(fix_round(&fix, fork, KVD_NONE, KVD_NONE, KVD_NONE, 120, NULL));
    store_get_stats(fix.store, &stats);
    KVT_EQ(stats.state_slots_used, 2);
    KVT_OK(fix_round(&fix, fork, 110, KVD_NONE, KVD_NONE, KVD_NONE, NULL));
    store_get_stats(fix.store, &stats);
    KVT_EQ(stats.state_slots_used, 1);
    struct store_round_item item = fix_item(fork);
    struct store_round_result r;
    item.state_frontier = 110;
    fix_apply(&fix, &item, &r);
    store_cont kept = fix_retain(&fix, fork, 110);
    KVT_EQ(fix_info(&fix, kept).state_slot, 1);
    fix_activate(&fix, fix_from(kept, false, 110, 110, 1), &got);
    KVT_EQ(got.state_slot, 1);
    KVT_EQ(got.source_state_slot, KVD_NONE);
    fix_close(&fix);
}

/* A victim's slot is handed over when none is free. */
static void act_8_state_slot_of_a_victim(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct store_activated got;
    struct kvd_plan plan;
    config.has_state = true;
    config.state_slots = 3;
    fix_open(&fix, &config);
    store_cont conts[3];
    for (uint32_t i = 0; i < 3; i++) conts[i] = fix_cont(&fix, 64, i);
    struct store_activation want = fix_from(conts[0], true, 64, 64, 1);
    refused(&fix, want, STORE_E_SHORT, STORE_S_STATE_SLOT);
    KVT_OK(store_plan_activation(fix.store, &want, &plan, NULL));
    KVT_EQ(plan.state_slots.short_by, 1);
    fix_recipe(&want, conts + 1, 1, 0);
    char *before = fix_dump(&fix);
    KVT_OK(begin(&fix, &want, &got));
    KVT_EQ(got.state_slot, 1);
    KVT_TRUE(fix_audit(&fix));
    KVT_OK(store_activate_abort(fix.store, got.seq, NULL, NULL));
    char *after = fix_dump(&fix);
    KVT_EQ_STR(before, after);
    KVT_OK(begin(&fix, &want, &got));
    KVT_OK(fix_commit(&fix, got.seq));
    KVT_EQ(fix_seq(&fix, got.seq).state_slot, 1);
    free(before);
    free(after);
    fix_close(&fix);
}

/* Revision: ownership and free numbers move it, mapping and commits do not. */
static void act_8_revision(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    fix_open(&fix, &config);
    uint64_t r = store_revision(fix.store);
#define MOVED(yes)                                                                                                     \
    KVT_EQ(store_revision(fix.store) > r, yes);                                                                        \
    r = store_revision(fix.store)
    store_seq seq = fix_activate(&fix, fix_root(200, 1, 0), NULL);
    MOVED(true);
    fix_fill(&fix, seq, 150, 1);
    MOVED(false);
    store_cont checkpoint = fix_checkpoint(&fix, seq, 150);
    MOVED(true);
    KVT_OK(store_set_retention(fix.store, checkpoint, 9, NULL));
    MOVED(false);
    KVT_OK(fix_round(&fix, seq, 151, KVD_NONE, KVD_NONE, KVD_NONE, NULL));
    store_cont cont = fix_retain(&fix, seq, 151);
    MOVED(true);
    KVT_OK(store_release(fix.store, cont, NULL));
    MOVED(true);
    KVT_EQ(fix_info(&fix, checkpoint).retention, 9);
    fix_close(&fix);
}

/* ---- with a host tier ---- */

static void copies_are_done(struct fix *fix, struct store_transition of) {
    struct store_copy copies[16];
    uint64_t cursor = 0;
    uint32_t n;
    while ((n = store_next_copies(fix->store, of, &cursor, copies, 16)) > 0)
        for (uint32_t i = 0; i < n; i++)
            if (copies[i].kind == STORE_COPY_PAGE_OUT) store_copied_out(fix->store, copies[i].replica, 1);
}

static void move_to(struct fix *fix, store_cont cont, enum store_place place) {
    store_move move;
    KVT_OK(store_move_begin(fix->store, cont, place, &move, &fix->refusal));
    copies_are_done(fix, (struct store_transition){ true, move.bits });
    KVT_OK(store_move_commit(fix->store, move, &fix->refusal));
}

/* Main pool of 8: a continuation of 3 pages, another that is demoted and shares 2 of them, and a sequence of one page.
 */
static void open_shared(struct fix *fix, store_cont *ret_device, store_cont *ret_source) {
    struct store_config config = fix_config(GEOM_OFF);
    config.host_bytes = 64 * 256;
    config.host_stride[0] = 256;
    fix_open(fix, &config);
    *ret_device = fix_cont(fix, 192, 1);
    store_seq seq = fix_activate(fix, fix_from(*ret_device, true, 128, 192, 1), NULL);
    KVT_TRUE(fix_fill(fix, seq, 192, 2));
    *ret_source = fix_retain(fix, seq, 192);
    move_to(fix, *ret_source, STORE_PLACE_HOST);
    KVT_TRUE(fix_activate(fix, fix_root(64, 1, 64), NULL).bits != 0);
    KVT_EQ(fix_pool(fix, 0).available, 4);
}

static int activate_staged(struct fix *fix, struct store_activation want, struct store_activated *got) {
    int rc = store_activate_begin(fix->store, &want, got, &fix->refusal);
    if (rc) return rc;
    do {
        copies_are_done(fix, (struct store_transition){ false, got->seq.bits });
        rc = store_activate_commit(fix->store, got->seq, &fix->refusal);
    } while (rc == STORE_MORE);
    return rc;
}

/* ACT-7, ACT-8: what a demoted source shares with a victim stays on the device for the sequence: the victim frees its
 * one page, not the shared two. The same whether the victim must be copied first or is in the host already, is demoted
 * or released, the source forked or moved. */
static void act_8_a_demoted_source_keeps_what_victims_share(void) {
    for (uint32_t kind = 0; kind < 8; kind++) {
        bool copied = kind & 1, demoted = kind & 2, keep = kind & 4;
        struct fix fix;
        store_cont device, source;
        struct store_activated got;
        struct kvd_plan plan;
        open_shared(&fix, &device, &source);
        if (copied) move_to(&fix, device, STORE_PLACE_BOTH);
        struct store_activation want = fix_from(source, keep, 192, 512, 1); /* 8 pages: 5 more, and 1 restored */
        fix_recipe(&want, &device, 1, demoted);
        KVT_OK(store_plan_activation(fix.store, &want, &plan, &fix.refusal));
        KVT_EQ(plan.feasibility, KVD_BLOCKED);
        KVT_EQ(plan.freed_pages[0], 1);
        KVT_EQ(plan.restore_pages[0], 1);
        KVT_EQ(plan.pages[0].short_by, 1);
        refused(&fix, want, STORE_E_SHORT, STORE_S_PAGES);
        want.prompt_tokens = 448; /* 7 pages */
        want.ensure[0] = 448;
        KVT_OK(store_plan_activation(fix.store, &want, &plan, &fix.refusal));
        KVT_EQ(plan.feasibility, KVD_READY);
        KVT_OK(activate_staged(&fix, want, &got));
        fix_audit(&fix);
        KVT_EQ(fix_seq(&fix, got.seq).pool[0].membership, 7);
        KVT_EQ(fix_pool(&fix, 0).allocated, 8);
        KVT_EQ(fix_pool(&fix, 0).available, 0);
        fix_close(&fix);
    }
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(act_4_fork_1000),
                                             KVT_CASE(act_4_aligned_fork),
                                             KVT_CASE(act_3_move),
                                             KVT_CASE(act_3_move_below_the_frontier),
                                             KVT_CASE(act_3_move_copies_a_shared_cut),
                                             KVT_CASE(act_3_move_with_a_victim_that_shares),
                                             KVT_CASE(act_4_two_branches),
                                             KVT_CASE(act_5_abort_restores),
                                             KVT_CASE(act_5_claims),
                                             KVT_CASE(act_8_recipe_errors),
                                             KVT_CASE(act_1_argument_errors),
                                             KVT_CASE(act_8_plan_counts_the_joint_state),
                                             KVT_CASE(act_8_victims_intact_until_commit),
                                             KVT_CASE(act_8_move_uses_what_it_drops),
                                             KVT_CASE(act_8_exception_when_no_page_is_free),
                                             KVT_CASE(act_8_pending_membership),
                                             KVT_CASE(act_1_concurrency_is_bounded),
                                             KVT_CASE(cont_4_state_slots),
                                             KVT_CASE(act_8_state_slot_of_a_victim),
                                             KVT_CASE(act_8_revision),
                                             KVT_CASE(act_8_a_demoted_source_keeps_what_victims_share),
                                             { 0 } };
    return kvt_main("store activate", cases, argc, argv);
}
