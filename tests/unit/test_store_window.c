/* SPDX-License-Identifier: Apache-2.0
 *
 * Pools with a window: what a sequence maps, what it is entitled to, and from where a continuation can be gone on with
 * (GRP-2, GRP-3, GRP-4, GRP-6). The window has 128 tokens and the step 64, so that 4 pages suffice however long it
 * runs.
 */
#include "directory.h"
#include "store_fixture.h"

#define STRIDE 1024u
#define ENOUGH 4u

static struct store_config window_config(uint32_t tokens, uint32_t lead, uint32_t pages) {
    struct store_config config = fix_config(GEOM_OFF);
    config.draft_window = 0;
    config.more_pools = 1;
    config.pool_pages[0] = 64;
    config.pool_pages[1] = pages;
    config.max_context = 2048;
    config.prefill_chunk = 64;
    config.window[1] = (struct store_window){ .tokens = tokens, .lead = lead };
    return config;
}

/* Step by step, named by chain `salt`. */
static void run_to(struct fix *fix, store_seq seq, uint32_t tokens, uint32_t salt) {
    for (uint32_t at = fix_seq(fix, seq).pool[0].committed; at < tokens;) {
        at = min_u32(tokens, (at / KVD_PAGE_TOKENS + 1) * KVD_PAGE_TOKENS);
        if (!fix_fill(fix, seq, at, salt)) return;
    }
}

static store_cont cont_at(struct fix *fix, uint32_t tokens, uint32_t salt) {
    store_seq seq = fix_activate(fix, fix_root(1, 2000, 0), NULL);
    run_to(fix, seq, tokens, salt);
    return fix_retain(fix, seq, tokens);
}

/* GRP-2: the commit that passes a page gives it back, and its entry says so in the slice that is published. */
static void grp_2_pages_behind_go_at_the_commit(void) {
    struct fix fix;
    struct store_config config = window_config(128, 0, 12);
    struct store_round_result result;
    fix_open(&fix, &config);
    store_seq seq = fix_activate(&fix, fix_root(100, 1900, 0), NULL);
    const int32_t *row = store_table_row(fix.store, 1, fix_seq(&fix, seq).pool[1].row);
    run_to(&fix, seq, 190, 1);
    KVT_TRUE(row[0] != -1 && row[2] != -1);
    KVT_OK(fix_round(&fix, seq, 191, KVD_NONE, KVD_NONE, KVD_NONE, &result)); /* 191 reads from 64 on */
    KVT_EQ_I(row[0], -1);
    KVT_EQ(result.pool[1].slice_begin, 0);
    KVT_EQ(result.pool[1].slice_count, 3);
    KVT_EQ(result.pool[1].membership, 3);
    KVT_EQ(result.pool[0].slice_count, 0);
    KVT_EQ(fix_pool(&fix, 1).allocated, 2);
    for (uint32_t at = 191; at < 1990; at += 11) {
        run_to(&fix, seq, at, 1);
        for (uint32_t i = 0; i < (at - 127) / KVD_PAGE_TOKENS; i++) KVT_EQ_I(row[i], -1);
        KVT_TRUE(row[(at - 127) / KVD_PAGE_TOKENS] != -1);
        KVT_EQ(fix_pool(&fix, 1).allocated + fix_pool(&fix, 1).reserved, ENOUGH);
    }
    KVT_EQ(fix_pool(&fix, 0).allocated, 31);
    KVT_TRUE(fix_audit(&fix));
    store_cont cont = fix_retain(&fix, seq, fix_seq(&fix, seq).pool[0].committed);
    KVT_EQ(fix_pool(&fix, 1).reserved, 0);
    KVT_EQ(fix_info(&fix, cont).pages[1], fix_pool(&fix, 1).allocated);
    KVT_OK(store_release(fix.store, cont, NULL));
    KVT_EQ(fix_pool(&fix, 1).allocated, 0);
    fix_close(&fix);
}

/* GRP-2: as far back as the lead; behind it the pages have gone. */
static void grp_2_a_truncation_stays_in_the_lead(void) {
    struct fix fix;
    struct store_config config = window_config(128, 20, 12);
    fix_open(&fix, &config);
    store_seq seq = fix_activate(&fix, fix_root(100, 1900, 0), NULL);
    run_to(&fix, seq, 404, 1); /* keeps what 384 reads: from block 4 on */
    KVT_EQ(fix_round(&fix, seq, KVD_NONE, 382, KVD_NONE, KVD_NONE, NULL), STORE_E_RANGE);
    KVT_EQ(fix.refusal.pool, 1);
    KVT_EQ(fix.refusal.subject, STORE_S_TRUNCATE);
    KVT_EQ(fix.refusal.had, 383);
    KVT_OK(fix_round(&fix, seq, KVD_NONE, 384, KVD_NONE, KVD_NONE, NULL));
    run_to(&fix, seq, 600, 1);
    fix_close(&fix);
}

/* GRP-2: what others share of Main bounds a truncation, also in a pool in which they have gone on. */
static void grp_2_a_truncation_stays_behind_what_is_shared(void) {
    struct fix fix;
    struct store_config config = window_config(128, 60, 16);
    fix_open(&fix, &config);
    store_cont source = cont_at(&fix, 320, 1);
    store_seq a = fix_activate(&fix, fix_from(source, true, 320, 320, 1000), NULL),
              b = fix_activate(&fix, fix_from(source, true, 320, 320, 1000), NULL);
    KVT_OK(store_release(fix.store, source, NULL));
    run_to(&fix, a, 330, 2);
    run_to(&fix, b, 700, 3);
    struct store_round_item item = fix_item(a);
    struct store_round_result result;
    item.pool[1].truncate = 319;
    fix_apply(&fix, &item, &result);
    KVT_EQ(result.refusal.code, STORE_E_PROTECTED);
    KVT_EQ(result.refusal.had, 320);
    fix_close(&fix);
}

static struct kvd_plan plan_of(struct fix *fix, struct store_activation want) {
    struct kvd_plan plan = { 0 };
    KVT_OK(store_plan_activation(fix->store, &want, &plan, &fix->refusal));
    return plan;
}

/* GRP-3: it follows from the window, not from the request; and what is mapped at once is bounded by it. */
static void grp_3_the_entitlement_is_bounded(void) {
    struct fix fix;
    struct store_config config = window_config(128, 0, ENOUGH);
    fix_open(&fix, &config);
    KVT_EQ(plan_of(&fix, fix_root(100, 1900, 0)).pages[1].needed, ENOUGH);
    KVT_EQ(plan_of(&fix, fix_root(1900, 100, 0)).pages[1].needed, ENOUGH);
    KVT_EQ(plan_of(&fix, fix_root(64, 1, 0)).pages[1].needed, 1);
    KVT_EQ(plan_of(&fix, fix_root(100, 1900, 0)).pages[0].needed, 32);
    struct store_activation want = fix_root(1000, 1, 0);
    struct store_activated got;
    want.ensure[1] = ENOUGH * KVD_PAGE_TOKENS + 1;
    KVT_EQ(store_activate_begin(fix.store, &want, &got, &fix.refusal), STORE_E_RANGE);
    KVT_EQ(fix.refusal.subject, STORE_S_ENSURE);
    want.ensure[1]--;
    store_seq seq = fix_activate(&fix, want, NULL);
    KVT_EQ(fix_seq(&fix, seq).pool[1].entitlement, ENOUGH);
    struct store_round_item item = fix_item(seq);
    struct store_round_result result;
    item.pool[1].ensure = ENOUGH * KVD_PAGE_TOKENS + 1;
    fix_apply(&fix, &item, &result);
    KVT_EQ(result.refusal.code, STORE_E_ENTITLEMENT);
    run_to(&fix, seq, 1000, 1);
    KVT_OK(store_end(fix.store, seq, &(store_cont){ 0 }, (struct kvd_pool_view[KVD_MAX_POOLS]){ { 0 } }, NULL));
    fix_close(&fix);
    config.pool_pages[1] = ENOUGH - 1;
    fix_open(&fix, &config);
    KVT_EQ(plan_of(&fix, fix_root(100, 1900, 0)).feasibility, KVD_INFEASIBLE);
    fix_close(&fix);
}

/* GRP-3: a checkpoint takes pages of the window for good, so it brings others; then the sequence lacks none to its end.
 */
static void grp_3_a_checkpoint_replaces_what_it_keeps(void) {
    struct fix fix;
    struct store_checkpointed got;
    for (uint32_t pages = ENOUGH; pages <= ENOUGH + 2; pages++) {
        struct store_config config = window_config(128, 0, pages);
        fix_open(&fix, &config);
        store_seq seq = fix_activate(&fix, fix_root(100, 1900, 0), NULL);
        run_to(&fix, seq, 256, 1);
        int rc = store_checkpoint_begin(fix.store, seq, FIX_LEASE, FIX_KEEP(NULL, 3), &got, &fix.refusal);
        if (pages < ENOUGH + 2) {
            KVT_EQ(rc, STORE_E_SHORT);
            KVT_TRUE(fix.refusal.subject == STORE_S_PAGES && fix.refusal.pool == 1);
            KVT_EQ(fix.refusal.asked, 2);
            KVT_EQ(fix.refusal.had, pages - ENOUGH);
        } else {
            KVT_OK(rc);
            KVT_EQ(got.shared_pages[1], 2);
            KVT_EQ(got.shared_pages[0], 4);
            KVT_OK(store_checkpoint_commit(fix.store, got.cont, NULL, NULL));
            KVT_EQ(fix_pool(&fix, 1).available, 0);
        }
        run_to(&fix, seq, 1990, 1);
        KVT_EQ(fix_info(&fix, got.cont).pages[1], rc ? 0 : 2);
        fix_close(&fix);
    }
}

/* GRP-3, ACT-8: what of a moved source's window only victims hold beside it comes back when it is passed, so the plan
 * asks for none in its stead; what others hold, too, does not. */
static void grp_3_victims_leave_the_window_to_a_move(void) {
    struct fix fix;
    struct store_config config = window_config(128, 0, ENOUGH);
    for (uint32_t others = 0; others < 2; others++) {
        fix_open(&fix, &config);
        store_cont source = cont_at(&fix, 256, 1), fork[2] = { { 0 } }; /* blocks 2 and 3 */
        for (uint32_t i = 0; i <= others; i++) {
            store_seq seq = fix_activate(&fix, fix_from(source, true, 256, 256, 1), NULL);
            fork[i] = fix_retain(&fix, seq, 256);
        }
        struct store_activation want = fix_from(source, false, 256, 300, 1600);
        want.ensure[1] = 384;
        fix_recipe(&want, fork, 1, 0);
        struct kvd_plan plan = plan_of(&fix, want);
        KVT_EQ(plan.pages[1].needed, others ? ENOUGH : ENOUGH - 2);
        KVT_EQ(plan.pages[1].available, 2);
        KVT_EQ(plan.feasibility, others ? KVD_BLOCKED : KVD_READY);
        want.n_victims = 0; /* it stays */
        KVT_EQ(plan_of(&fix, want).pages[1].needed, ENOUGH);
        want.n_victims = 1;
        store_seq seq = others ? (store_seq){ 0 } : fix_activate(&fix, want, NULL);
        if (seq.bits) run_to(&fix, seq, 1890, 1);
        KVT_EQ(fix_pool(&fix, 1).available, others ? 2 : 0);
        fix_close(&fix);
    }
}

static uint32_t usable_of(struct fix *fix, uint32_t pages, uint32_t turn) {
    uint8_t chain[8][32];
    struct kvd_hit hit[4];
    fix_chain(1, turn, 9, pages, chain);
    return fix_find(fix->store, (const uint8_t(*)[32])chain, pages, hit, 4) ? hit[0].usable : 0;
}

/* GRP-4: at its own frontier, and where the same blocks are read; nowhere else. */
static void grp_4_a_hit_has_its_window(void) {
    struct fix fix;
    struct store_config config = window_config(128, 0, 12);
    struct store_activated got;
    fix_open(&fix, &config);
    store_cont cont = cont_at(&fix, 350, 1); /* reads from 223 on: blocks 3 to 5 */
    KVT_EQ(fix_info(&fix, cont).pages[1], 3);
    KVT_EQ(fix_info(&fix, cont).pages[0], 6);
    KVT_EQ_STR(fix_cont_ids(&fix, cont, 1), "4294967295 4294967295 4294967295 3 4 5");
    KVT_EQ(usable_of(&fix, 6, 5), 320);
    KVT_EQ(usable_of(&fix, 6, 4), 0); /* 256 reads from block 2 on */
    struct store_activation want = fix_from(cont, true, 318, 400, 1);
    KVT_EQ(store_activate_begin(fix.store, &want, &got, &fix.refusal), STORE_E_RANGE);
    KVT_TRUE(fix.refusal.subject == STORE_S_FRONTIER && fix.refusal.pool == 1);
    KVT_EQ(fix.refusal.had, 319);
    store_seq seq = fix_activate(&fix, fix_from(cont, true, 319, 400, 1), NULL);
    KVT_TRUE(seq.bits != 0);
    KVT_EQ(store_shorten(fix.store, cont, 256, &fix.refusal), STORE_E_RANGE);
    KVT_OK(store_shorten(fix.store, cont, 320, &fix.refusal));
    KVT_EQ(usable_of(&fix, 6, 6), 320);
    fix_close(&fix);
}

/* GRP-4, NAME-2: what matches further has no window there, so the tail before it is asked for. */
static void grp_4_a_tail_before_what_matches_further(void) {
    struct fix fix;
    struct store_config config = window_config(128, 0, 12);
    struct kvd_hit hit[4];
    struct store_found found;
    uint8_t chain[8][32];
    fix_open(&fix, &config);
    store_seq seq = fix_activate(&fix, fix_root(100, 1900, 0), NULL);
    run_to(&fix, seq, 150, 1);
    (void)fix_checkpoint(&fix, seq, 150);
    run_to(&fix, seq, 640, 1);
    KVT_OK(store_end(fix.store, seq, &(store_cont){ 0 }, (struct kvd_pool_view[KVD_MAX_POOLS]){ { 0 } }, NULL));
    fix_chain(1, 6, 9, 6, chain);
    const struct store_query query = {
        .digests = (const uint8_t(*)[32])chain, .n = 6, .max = 4, .prompt_tokens = 400, .token_page = 6
    };
    KVT_OK(store_find(fix.store, &query, hit, &found, &fix.refusal));
    KVT_EQ(found.n, 1);
    KVT_EQ(hit[0].usable, 128); /* the pages of the checkpoint, without its tail */
    KVT_EQ(found.want_page, 2);
    fix_close(&fix);
}

/* GRP-4: chunked attention begins anew at a multiple of the chunk: there nothing is read. */
static void grp_4_a_chunk_begins_with_nothing(void) {
    struct fix fix;
    struct store_config config = window_config(128, 0, 12);
    config.window[1].aligned = true;
    fix_open(&fix, &config);
    store_cont at = cont_at(&fix, 256, 1), past = cont_at(&fix, 300, 2);
    KVT_EQ(fix_info(&fix, at).pages[1], 0);
    KVT_EQ(fix_info(&fix, past).pages[1], 1);
    store_seq seq = fix_activate(&fix, fix_from(at, false, 256, 400, 300), NULL);
    run_to(&fix, seq, 500, 1);
    KVT_OK(store_end(fix.store, seq, &at, (struct kvd_pool_view[KVD_MAX_POOLS]){ { 0 } }, NULL));
    KVT_EQ(fix_info(&fix, at).pages[1], 2); /* from 384 on */
    KVT_EQ(fix_info(&fix, at).frontier, 500);
    fix_close(&fix);
}

/* GRP-4, SRV-5: what the common frontier reads has gone, so the sequence leaves nothing. */
static void grp_4_a_torn_sequence_is_released(void) {
    struct fix fix;
    struct store_config config = window_config(128, 0, 12);
    for (uint32_t ahead = 0; ahead < 2; ahead++) {
        fix_open(&fix, &config);
        store_seq seq = fix_activate(&fix, fix_root(100, 1900, 0), NULL);
        struct store_round_result result;
        store_cont cont = { 0 };
        run_to(&fix, seq, 250, 1);
        struct store_round_item item = fix_item(seq);
        item.pool[1].commit = 254;
        fix_apply(&fix, &item, &result);
        KVT_OK(result.refusal.code);
        for (uint32_t at = 320; ahead && at <= 384; at += 64) {
            item = fix_item(seq);
            item.pool[1].ensure = at;
            fix_apply(&fix, &item, &result);
            item = fix_item(seq);
            item.pool[1].commit = at;
            fix_apply(&fix, &item, &result);
            KVT_OK(result.refusal.code);
        }
        KVT_OK(store_end(fix.store, seq, &cont, (struct kvd_pool_view[KVD_MAX_POOLS]){ { 0 } }, NULL));
        KVT_EQ(cont.bits != 0, !ahead);
        KVT_EQ(fix_pool(&fix, 0).allocated, ahead ? 0 : 4);
        fix_close(&fix);
    }
}

/* GRP-4, CONT-3: nor does the next kvd bring it back, from pages that another has written in since. */
static void grp_4_a_torn_sequence_is_not_recovered(void) {
    struct fix fix;
    struct store_config config = window_config(128, 0, 12);
    struct directory_limits limits;
    struct directory *directory;
    struct store_recovered recovered;
    struct store_round_result result;
    config.recorded = true;
    fix_open(&fix, &config);
    store_directory_limits(fix.store, &limits);
    void *tables = aligned_alloc(4096, (directory_bytes(&limits) + 4095) / 4096 * 4096);
    void *handle = malloc(directory_handle_bytes());
    directory_format(tables, &limits, 1);
    KVT_OK(directory_open(handle, tables, &limits, 1, &directory));
    store_set_directory(fix.store, directory);
    store_seq seq = fix_activate(&fix, fix_root(100, 1900, 0), NULL);
    run_to(&fix, seq, 128, 1);
    store_cont cont = fix_checkpoint(&fix, seq, 128);
    for (uint32_t at = 192; at <= 256; at += 64) { /* the window's pool alone */
        struct store_round_item item = fix_item(seq);
        item.pool[1].ensure = at;
        fix_apply(&fix, &item, &result);
        item = fix_item(seq);
        item.pool[1].commit = at;
        fix_apply(&fix, &item, &result);
        KVT_OK(result.refusal.code);
    }
    store_seq other = fix_activate(&fix, fix_from(cont, false, 100, 200, 100), NULL);
    KVT_EQ_STR(fix_ids(&fix, other, 1), "0 1"); /* its tail goes on in the same page */
    KVT_TRUE(fix_fill(&fix, other, 128, 2));
    fix_close(&fix);
    fix_open(&fix, &config);
    store_recover(fix.store, directory, true, &recovered);
    KVT_EQ(recovered.damaged, 0);
    KVT_EQ(recovered.continuations, 1);
    KVT_TRUE(fix_audit(&fix));
    fix_close(&fix);
    free(handle);
    free(tables);
}

/* GRP-6: what moves for a host hit is the window. */
static void grp_6_a_host_hit_moves_the_window(void) {
    struct fix fix;
    struct store_config config = window_config(128, 0, 12);
    struct store_copy copies[32];
    store_move move;
    uint64_t cursor = 0;
    config.host_bytes = 64 * STRIDE;
    config.host_stride[0] = config.host_stride[1] = STRIDE;
    fix_open(&fix, &config);
    store_cont cont = cont_at(&fix, 640, 1);
    KVT_OK(store_move_begin(fix.store, cont, STORE_PLACE_HOST, &move, &fix.refusal));
    struct store_transition of = { true, move.bits };
    uint32_t n = store_next_copies(fix.store, of, &cursor, copies, 32);
    KVT_EQ(n, 12);
    for (uint32_t i = 0; i < n; i++) store_copied_out(fix.store, copies[i].replica, 7);
    KVT_OK(store_move_commit(fix.store, move, &fix.refusal));
    KVT_EQ(fix_info(&fix, cont).host_pages[1], 2);
    KVT_EQ(fix_pool(&fix, 1).allocated, 0);
    struct kvd_plan plan = plan_of(&fix, fix_from(cont, true, 640, 700, 1000));
    KVT_EQ(plan.restore_pages[0], 10);
    KVT_EQ(plan.restore_pages[1], 2);
    KVT_EQ(plan.pages[1].needed, ENOUGH + 2);
    fix_close(&fix);
}

/* GRP-2, GRP-3: as many tokens as one sequence makes in a day, with checkpoints that supersede each other: in the end
 * no page is missing. */
static void grp_3_a_day_leaves_no_page(void) {
    struct fix fix;
    struct store_config config = window_config(128, 0, ENOUGH + 6);
    fix_open(&fix, &config);
    for (uint32_t turn = 0; turn < 2000; turn++) {
        store_seq seq = fix_activate(&fix, fix_root(1 + turn % 300, 1600, 0), NULL);
        store_cont last = { 0 };
        for (uint32_t at = 512; at <= 1536; at += 512) {
            run_to(&fix, seq, at, turn);
            store_cont next = fix_checkpoint(&fix, seq, at);
            if (last.bits) KVT_OK(store_release(fix.store, last, NULL));
            last = next;
        }
        KVT_OK(store_release(fix.store, last, NULL));
        KVT_OK(store_finish(fix.store, seq, FIX_LEASE, STORE_FINISH_RELEASE, NULL, 0, &(store_cont){ 0 },
                            (struct kvd_pool_view[KVD_MAX_POOLS]){ { 0 } }, NULL));
        if (!KVT_EQ(fix_pool(&fix, 0).available + fix_pool(&fix, 1).available, 64 + ENOUGH + 6)) break;
    }
    fix_close(&fix);
}

/* Bad geometry is refused. */
static void wrong_windows(void) {
    struct store_config config = window_config(128, 0, 12);
    char err[256] = "";
    KVT_EQ(store_check_config(&config, err, sizeof err), STORE_OK);
    config.window[0].tokens = 64;
    KVT_EQ(store_check_config(&config, err, sizeof err), STORE_E_RANGE);
    KVT_HAS(err, "pool 0 has a window of 64 tokens");
    config.window[0].tokens = 0;
    config.more_pools = 4;
    KVT_EQ(store_check_config(&config, err, sizeof err), STORE_E_RANGE);
    KVT_HAS(err, "5 pools are configured: 1 to 4 are possible");
    config.more_pools = 3;
    KVT_EQ(store_check_config(&config, err, sizeof err), STORE_E_RANGE); /* without pages */
    KVT_HAS(err, "pool 2 has 0 pages");
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(grp_2_pages_behind_go_at_the_commit),
                                             KVT_CASE(grp_2_a_truncation_stays_in_the_lead),
                                             KVT_CASE(grp_2_a_truncation_stays_behind_what_is_shared),
                                             KVT_CASE(grp_3_the_entitlement_is_bounded),
                                             KVT_CASE(grp_3_a_checkpoint_replaces_what_it_keeps),
                                             KVT_CASE(grp_3_victims_leave_the_window_to_a_move),
                                             KVT_CASE(grp_4_a_hit_has_its_window),
                                             KVT_CASE(grp_4_a_tail_before_what_matches_further),
                                             KVT_CASE(grp_4_a_chunk_begins_with_nothing),
                                             KVT_CASE(grp_4_a_torn_sequence_is_released),
                                             KVT_CASE(grp_4_a_torn_sequence_is_not_recovered),
                                             KVT_CASE(grp_6_a_host_hit_moves_the_window),
                                             KVT_CASE(grp_3_a_day_leaves_no_page),
                                             KVT_CASE(wrong_windows),
                                             { 0 } };
    return kvt_main("windows", cases, argc, argv);
}
