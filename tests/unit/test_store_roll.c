/* SPDX-License-Identifier: Apache-2.0
 *
 * Rolling checkpoints (GRP-5): where they are taken, when they are found, which go, and that no Round fails for them.
 * The window has 128 tokens, so that at a page boundary two pages of it belong to a checkpoint.
 */
#include "store_fixture.h"

static struct store_config roll_config(uint32_t max_rolling) {
    struct store_config config = fix_config(GEOM_OFF);
    config.draft_window = 0;
    config.more_pools = 1;
    config.pool_pages[0] = 64;
    config.pool_pages[1] = 40;
    config.max_context = 2048;
    config.max_continuations = 12;
    config.max_rolling = max_rolling;
    config.window[1] = (struct store_window){ .tokens = 128, .lead = 64 };
    return config;
}

static struct store_config state_config(void) {
    struct store_config config = fix_config(GEOM_OFF);
    config.draft_window = 0;
    config.max_rolling = 3;
    config.max_continuations = 12;
    config.has_state = true;
    config.state_slots = 8;
    return config;
}

static store_seq begin(struct fix *fix, uint32_t prompt, uint32_t every, bool at_prompt) {
    struct store_activation want = fix_root(prompt, fix->store->config.max_context - prompt, 0);
    want.checkpoint_every = every;
    want.checkpoint_prompt = at_prompt;
    return fix_activate(fix, want, NULL);
}

/* Committed in one step, no names. */
static int commit_to(struct fix *fix, store_seq seq, uint32_t tokens) {
    int rc = fix_round(fix, seq, KVD_NONE, KVD_NONE, KVD_NONE, tokens, NULL);
    return rc ? rc : fix_round(fix, seq, tokens, KVD_NONE, KVD_NONE, KVD_NONE, NULL);
}

static void run_to(struct fix *fix, store_seq seq, uint32_t tokens, uint32_t salt) {
    for (uint32_t at = fix_seq(fix, seq).pool[0].committed; at < tokens;) {
        at = min_u32(tokens, (at / KVD_PAGE_TOKENS + 1) * KVD_PAGE_TOKENS);
        if (!fix_fill(fix, seq, at, salt)) return;
    }
}

/* "128+ 192-": its own, + found, - waiting for names. What is found says whose it is. */
static const char *rolled(struct fix *fix, store_seq seq) {
    static char text[STORE_MAX_ROLLING * 12];
    struct store_rolling own[STORE_MAX_ROLLING];
    uint32_t n = store_get_rolling(fix->store, seq, own), used = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < n; i++) {
        used += (uint32_t)snprintf(text + used, sizeof text - used, "%s%u%c", i ? " " : "", own[i].frontier,
                                   own[i].found ? '+' : '-');
        if (own[i].found) KVT_TRUE(fix_info(fix, own[i].cont).rolling);
    }
    return text;
}

static store_cont rolling_at(struct fix *fix, store_seq seq, uint32_t frontier) {
    struct store_rolling own[STORE_MAX_ROLLING];
    uint32_t n = store_get_rolling(fix->store, seq, own);
    for (uint32_t i = 0; i < n; i++)
        if (own[i].frontier == frontier) return own[i].cont;
    return (store_cont){ 0 };
}

static uint32_t usable_of(struct fix *fix, uint32_t pages, uint32_t salt) {
    uint8_t chain[32][32];
    struct kvd_hit hit[4];
    fix_chain(salt, pages, 0, pages, chain);
    return fix_find(fix->store, (const uint8_t(*)[32])chain, pages, hit, 4) ? hit[0].usable : 0;
}

static void end(struct fix *fix, store_seq seq) {
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    store_cont cont;
    KVT_OK(store_finish(fix->store, seq, FIX_LEASE, STORE_FINISH_RELEASE, NULL, 0, &cont, rows, &fix->refusal));
}

/* GRP-5: taken by the commit that passes the boundary, found by the name of its last page, and forked from there long
 * after the window has gone on. LIVE-1: nothing else is found of a sequence with windows. */
static void grp_5_found_at_once(void) {
    struct fix fix;
    struct store_config config = roll_config(4);
    fix_open(&fix, &config);
    store_seq seq = begin(&fix, 100, 256, false);
    run_to(&fix, seq, 192, 1);
    KVT_OK(commit_to(&fix, seq, 300));
    KVT_EQ_STR(rolled(&fix, seq), "256-");
    KVT_EQ(usable_of(&fix, 5, 1), 0);
    run_to(&fix, seq, 310, 1); /* names it */
    KVT_EQ_STR(rolled(&fix, seq), "256+");
    KVT_EQ(usable_of(&fix, 5, 1), 256);
    run_to(&fix, seq, 1000, 1);
    KVT_EQ_STR(rolled(&fix, seq), "256+ 512+ 768+");
    KVT_EQ(usable_of(&fix, 8, 1), 512);
    KVT_EQ(usable_of(&fix, 7, 1), 256);
    store_cont at = rolling_at(&fix, seq, 512);
    KVT_EQ(fix_info(&fix, at).pages[0], 8);
    KVT_EQ(fix_info(&fix, at).pages[1], 2);
    KVT_EQ(fix_info(&fix, at).retention, 0);
    store_seq fork = fix_activate(&fix, fix_from(at, true, 512, 600, 100), NULL);
    run_to(&fix, fork, 690, 2);
    KVT_EQ_STR(rolled(&fix, fork), "");
    KVT_EQ(store_get_lives(fix.store)->rolling[STORE_ROLLING_FOUND], 3);
    KVT_EQ(store_live(fix.store, seq).bits != 0 && fix_info(&fix, store_live(fix.store, seq)).live, false);
    fix_close(&fix);
}

/* GRP-5: at the last page boundary before the prompt's last token, which the same prompt can use. */
static void grp_5_at_the_end_of_the_prompt(void) {
    struct fix fix;
    struct store_config config = roll_config(4);
    const struct {
        uint32_t prompt, boundary;
    } cases[] = { { 300, 256 }, { 257, 256 }, { 256, 192 }, { 64, 0 }, { 65, 64 } };
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fix_open(&fix, &config);
        store_seq seq = begin(&fix, cases[i].prompt, 0, true);
        run_to(&fix, seq, 900, 1);
        KVT_EQ(store_get_lives(fix.store)->rolling[STORE_ROLLING_FOUND], cases[i].boundary > 0);
        KVT_EQ(usable_of(&fix, 10, 1), cases[i].boundary);
        fix_close(&fix);
    }
}

/* GRP-5: no more than the configuration says; the oldest goes first, unless a transition uses it; of boundaries that
 * one commit passes, the last ones count. */
static void grp_5_the_oldest_goes(void) {
    struct fix fix;
    struct store_config config = roll_config(2);
    struct store_activated got;
    fix_open(&fix, &config);
    store_seq seq = begin(&fix, 100, 64, false);
    KVT_OK(commit_to(&fix, seq, 256));
    KVT_EQ_STR(rolled(&fix, seq), "192- 256-");
    KVT_EQ(store_get_lives(fix.store)->rolling[STORE_ROLLING_SKIPPED], 0);
    run_to(&fix, seq, 330, 1);
    KVT_EQ_STR(rolled(&fix, seq), "256+ 320+");
    KVT_EQ(store_get_lives(fix.store)->rolling[STORE_ROLLING_SUPERSEDED], 1);
    struct store_activation want = fix_from(rolling_at(&fix, seq, 256), true, 256, 300, 100);
    KVT_OK(store_activate_begin(fix.store, &want, &got, &fix.refusal));
    run_to(&fix, seq, 390, 1);
    KVT_EQ_STR(rolled(&fix, seq), "256+ 384+");
    KVT_OK(store_activate_abort(fix.store, got.seq, &(uint32_t){ 0 }, NULL));
    run_to(&fix, seq, 450, 1);
    KVT_EQ_STR(rolled(&fix, seq), "384+ 448+");
    KVT_EQ(usable_of(&fix, 6, 1), 384);
    KVT_EQ(usable_of(&fix, 4, 1), 0);
    fix_close(&fix);
}

/* GRP-5: who dies between Rounds and their names leaves what was found before, as long as no newer one is found. */
static void grp_5_the_last_found_one_outlasts_the_nameless(void) {
    struct fix fix;
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    store_cont cont;
    for (uint32_t most = 1; most <= 2; most++) {
        struct store_config config = roll_config(most);
        fix_open(&fix, &config);
        store_seq seq = begin(&fix, 100, 64, false);
        run_to(&fix, seq, 130, 1);
        KVT_EQ_STR(rolled(&fix, seq), most == 1 ? "128+" : "64+ 128+");
        KVT_OK(commit_to(&fix, seq, 192));
        KVT_EQ_STR(rolled(&fix, seq), most == 1 ? "192-" : "128+ 192-");
        KVT_OK(commit_to(&fix, seq, 384)); /* passes more than there may be */
        KVT_EQ_STR(rolled(&fix, seq), most == 1 ? "384-" : "128+ 384-");
        KVT_EQ(usable_of(&fix, 6, 1), most == 1 ? 0 : 128);
        if (most == 2) { /* named, they go in their order again */
            run_to(&fix, seq, 390, 1);
            KVT_EQ_STR(rolled(&fix, seq), "128+ 384+");
            run_to(&fix, seq, 450, 1);
            KVT_EQ_STR(rolled(&fix, seq), "384+ 448+");
            KVT_OK(commit_to(&fix, seq, 640));
            KVT_EQ_STR(rolled(&fix, seq), "448+ 640-");
        }
        KVT_OK(store_end(fix.store, seq, &cont, rows, &fix.refusal));
        KVT_EQ(usable_of(&fix, 10, 1), most == 1 ? 0 : 448);
        fix_close(&fix);
    }
}

/* GRP-5: whose retention somebody has set, and one that stands for another's (FIT-5), is not superseded. */
static void grp_5_kept_by_word(void) {
    struct fix fix;
    struct store_config config = roll_config(1);
    fix_open(&fix, &config);
    store_seq seq = begin(&fix, 100, 256, false);
    run_to(&fix, seq, 256, 1);
    store_cont first = rolling_at(&fix, seq, 256);
    KVT_OK(store_set_retention(fix.store, first, 3, NULL));
    KVT_FALSE(fix_info(&fix, first).rolling);
    KVT_EQ_STR(rolled(&fix, seq), "");
    run_to(&fix, seq, 512, 1);
    store_cont second = rolling_at(&fix, seq, 512);
    struct store_activation want = fix_root(100, 1900, 0);
    want.checkpoint_every = 512;
    want.tag = fix.store->seqs[0].tag;
    store_seq twin = fix_activate(&fix, want, NULL);
    run_to(&fix, twin, 520, 1);
    KVT_EQ_STR(rolled(&fix, seq), "");
    KVT_EQ_STR(rolled(&fix, twin), "");
    run_to(&fix, seq, 1100, 1);
    KVT_EQ(fix_info(&fix, first).frontier, 256);
    KVT_EQ(fix_info(&fix, second).frontier, 512);
    KVT_EQ_STR(rolled(&fix, seq), "1024+");
    fix_close(&fix);
}

/* GRP-5, SPACE-8: its own checkpoints stop no truncation; what others have made of one does. */
static void grp_5_a_truncation_takes_them_along(void) {
    struct fix fix;
    struct store_config config = roll_config(4);
    fix_open(&fix, &config);
    store_seq seq = begin(&fix, 100, 256, false);
    run_to(&fix, seq, 260, 1);
    KVT_EQ(fix_seq(&fix, seq).pool[0].protected_frontier, 0);
    KVT_EQ(fix_seq(&fix, seq).pool[1].protected_frontier, 0);
    KVT_OK(fix_round(&fix, seq, KVD_NONE, 250, KVD_NONE, KVD_NONE, NULL));
    KVT_EQ_STR(rolled(&fix, seq), "");
    KVT_EQ(usable_of(&fix, 4, 1), 0);
    KVT_TRUE(fix_audit(&fix));
    run_to(&fix, seq, 270, 1);
    KVT_EQ_STR(rolled(&fix, seq), "256+");
    store_seq fork = fix_activate(&fix, fix_from(rolling_at(&fix, seq, 256), true, 256, 300, 100), NULL);
    KVT_EQ(fix_round(&fix, seq, KVD_NONE, 250, KVD_NONE, KVD_NONE, NULL), STORE_E_PROTECTED);
    KVT_EQ_STR(rolled(&fix, seq), "256+");
    end(&fix, fork);
    KVT_OK(fix_round(&fix, seq, KVD_NONE, 250, KVD_NONE, KVD_NONE, NULL));
    KVT_OK(commit_to(&fix, seq, 270));
    KVT_EQ_STR(rolled(&fix, seq), "256-"); /* one without names goes likewise */
    KVT_OK(fix_round(&fix, seq, KVD_NONE, 255, KVD_NONE, KVD_NONE, NULL));
    KVT_EQ_STR(rolled(&fix, seq), "");
    fix_close(&fix);
}

/* GRP-5: what lacks is skipped and counted, whatever it is, and the Round is done. */
static void grp_5_a_round_never_fails_for_it(void) {
    struct fix fix;
    struct store_config config = roll_config(4);
    for (uint32_t nth = 1; nth <= 4; nth++) {
        fix_open(&fix, &config);
        store_seq seq = begin(&fix, 100, 256, false);
        run_to(&fix, seq, 255, 1);
        KVT_OK(fix_round(&fix, seq, KVD_NONE, KVD_NONE, KVD_NONE, 300, NULL));
        store_fail_acquisition(fix.store, nth);
        KVT_OK(fix_round(&fix, seq, 300, KVD_NONE, KVD_NONE, KVD_NONE, NULL));
        uint32_t made = store_fail_acquisition(fix.store, 0);
        KVT_EQ(made, min_u32(nth, 3)); /* a descriptor, pages of the window, membership */
        KVT_EQ_STR(rolled(&fix, seq), nth < 4 ? "" : "256-");
        KVT_EQ(store_get_lives(fix.store)->rolling[STORE_ROLLING_SKIPPED], nth < 4);
        run_to(&fix, seq, 520, 1);
        KVT_EQ_STR(rolled(&fix, seq), nth < 4 ? "512+" : "256+ 512+");
        fix_close(&fix);
    }
    config.max_continuations = 2;
    config.pool_pages[1] = 12;
    fix_open(&fix, &config);
    store_seq seq = begin(&fix, 100, 256, false);
    run_to(&fix, seq, 1990, 1);
    KVT_EQ(store_get_lives(fix.store)->rolling[STORE_ROLLING_FOUND], 1);
    KVT_EQ(store_get_lives(fix.store)->rolling[STORE_ROLLING_SKIPPED], 6);
    KVT_EQ_STR(rolled(&fix, seq), "256+");
    fix_close(&fix);
}

/* GRP-5: at its sequence's end what is found stays, and what waits for a name goes: by a release and by a death. */
static void grp_5_the_end_of_its_sequence(void) {
    struct fix fix;
    struct store_config config = roll_config(4);
    for (uint32_t dies = 0; dies < 2; dies++) {
        struct kvd_pool_view rows[KVD_MAX_POOLS];
        store_cont cont = { 0 };
        fix_open(&fix, &config);
        store_seq seq = begin(&fix, 100, 256, false);
        run_to(&fix, seq, 448, 1);
        store_cont first = rolling_at(&fix, seq, 256);
        KVT_OK(commit_to(&fix, seq, 512));
        KVT_EQ_STR(rolled(&fix, seq), "256+ 512-");
        if (dies) KVT_OK(store_end(fix.store, seq, &cont, rows, NULL));
        else end(&fix, seq);
        KVT_EQ(usable_of(&fix, 10, 1), 256);
        KVT_EQ(cont.bits != 0, dies);
        if (dies) KVT_OK(store_release(fix.store, cont, NULL));
        KVT_EQ(fix_pool(&fix, 0).allocated, 4);
        KVT_EQ(fix_pool(&fix, 1).allocated, 2);
        KVT_FALSE(fix_info(&fix, first).rolling);
        KVT_TRUE(fix_audit(&fix));
        KVT_OK(store_release(fix.store, first, NULL));
        KVT_EQ(fix_pool(&fix, 0).allocated + fix_pool(&fix, 1).allocated, 0);
        fix_close(&fix);
    }
}

/* All pools by one page, which gets its name. */
static bool page_more(struct fix *fix, store_seq seq, uint32_t page, uint32_t salt) {
    struct store_round_result result;
    struct store_round_item item = fix_item(seq);
    uint8_t digest[1][32];
    for (uint32_t commits = 0; commits < 2; commits++) {
        uint32_t to = (page + 1) * KVD_PAGE_TOKENS;
        for (uint32_t p = 0; p < KVD_MAX_POOLS; p++)
            item.pool[p] = round_pool(commits ? to : KVD_NONE, KVD_NONE, KVD_NONE, commits ? KVD_NONE : to);
        fix_apply(fix, &item, &result);
        if (!KVT_OK(result.refusal.code)) return false;
    }
    fix_digest(salt, page, digest[0]);
    return KVT_OK(store_name_pages(fix->store, seq, FIX_LEASE, page, 1, (const uint8_t(*)[32])digest, &fix->refusal));
}

/* GRP-3, GRP-5: as many tokens as a sequence makes in six hours, in four pools of which three have windows, with
 * checkpoints that supersede each other, and with every end that there is: in the end no page is missing. */
static void grp_5_long_turnover_leaves_no_page(void) {
    struct fix fix;
    struct store_config config = roll_config(3);
    config.more_pools = 3;
    config.pool_pages[2] = config.pool_pages[3] = 60;
    config.window[2] = (struct store_window){ .tokens = 512, .aligned = true };
    config.window[3] = (struct store_window){ .tokens = 300, .lead = 7 };
    fix_open(&fix, &config);
    for (uint32_t turn = 0; turn < 400; turn++) {
        struct kvd_pool_view rows[KVD_MAX_POOLS];
        struct kvd_continuation_info info;
        uint32_t cursor = 0, free = 0;
        struct store_rolling own[STORE_MAX_ROLLING];
        store_cont cont;
        store_seq seq = begin(&fix, 1 + turn % 900, 64 * (1 + turn % 5), turn & 1);
        for (uint32_t page = 0; page < 31; page++)
            if (!page_more(&fix, seq, page, turn)) break;
        KVT_EQ(store_get_rolling(fix.store, seq, own), 3);
        if (turn % 3 == 0) KVT_OK(store_end(fix.store, seq, &cont, rows, NULL));
        else
            KVT_OK(store_finish(fix.store, seq, FIX_LEASE, turn % 3 == 1 ? STORE_FINISH_RELEASE : STORE_FINISH_RETAIN,
                                NULL, 0, &cont, rows, &fix.refusal));
        while (store_next_cont(fix.store, &cursor, &info))
            KVT_OK(store_release(fix.store, store_cont_of(info.continuation), NULL));
        for (uint32_t p = 0; p < 4; p++) free += fix_pool(&fix, p).available;
        if (!KVT_EQ(free, 64 + 40 + 60 + 60)) break;
    }
    KVT_EQ(store_get_lives(fix.store)->rolling[STORE_ROLLING_SKIPPED], 0);
    fix_close(&fix);
}

/* Where LIVE-1 shows all of it, none is made; a boundary is one of pages. */
static void grp_5_only_where_something_would_be_gone(void) {
    struct fix fix;
    struct store_config config = roll_config(4);
    struct store_activated got;
    char err[200];
    config.window[1].tokens = 0;
    config.pool_pages[1] = 64;
    fix_open(&fix, &config);
    store_seq seq = begin(&fix, 100, 64, true);
    run_to(&fix, seq, 300, 1);
    KVT_EQ_STR(rolled(&fix, seq), "");
    KVT_EQ(usable_of(&fix, 4, 1), 256);
    struct store_activation want = fix_root(100, 100, 0);
    want.checkpoint_every = 100;
    KVT_EQ(store_activate_begin(fix.store, &want, &got, &fix.refusal), STORE_E_ARGUMENT);
    KVT_HAS(store_refusal_text(&fix.refusal, err, sizeof err), "every 100 tokens is no page boundary");
    fix_close(&fix);
    config.max_rolling = STORE_MAX_ROLLING + 1;
    KVT_EQ(store_check_config(&config, err, sizeof err), STORE_E_RANGE);
    KVT_HAS(err, "max_rolling is 17");
}

/* ---- state images ---- */

static struct store_round_result with_image(struct fix *fix, store_seq seq, uint32_t tokens, uint32_t image) {
    struct store_round_result result;
    struct store_round_item item = fix_item(seq);
    KVT_OK(fix_round(fix, seq, KVD_NONE, KVD_NONE, KVD_NONE, tokens, NULL));
    item.pool[0].commit = tokens;
    item.state_frontier = image;
    fix_apply(fix, &item, &result);
    KVT_OK(result.refusal.code);
    return result;
}

static void name_to(struct fix *fix, store_seq seq, uint32_t pages) {
    uint8_t chain[8][32];
    fix_chain(1, pages, 0, pages, chain);
    KVT_OK(store_name_pages(fix->store, seq, FIX_LEASE, 0, pages, (const uint8_t(*)[32])chain, &fix->refusal));
}

/* GRP-5, CONT-4: with state images where the commit ends at the boundary and its image is there. It is found when the
 * copy has ended and all names are there, whichever comes last. */
static void grp_5_with_its_state_image(void) {
    struct fix fix;
    struct store_config config = state_config();
    for (uint32_t names_last = 0; names_last < 2; names_last++) {
        store_cont made = { 77 };
        fix_open(&fix, &config);
        store_seq seq = begin(&fix, 100, 64, false);
        KVT_EQ(with_image(&fix, seq, 63, 63).rolled.bits, 0);
        KVT_EQ(with_image(&fix, seq, 70, 70).rolled.bits, 0); /* passed without an image of it */
        KVT_EQ(store_get_lives(fix.store)->rolling[STORE_ROLLING_SKIPPED], 1);
        struct store_round_result result = with_image(&fix, seq, 128, 128);
        KVT_TRUE(result.rolled.bits != 0);
        KVT_EQ(result.image.kind, STORE_COPY_STATE);
        KVT_EQ(result.image.src, fix_seq(&fix, seq).state_slot);
        KVT_TRUE(result.image.dst != result.image.src);
        if (!names_last) name_to(&fix, seq, 2);
        KVT_EQ(usable_of(&fix, 3, 1), 0);
        KVT_OK(store_checkpoint_commit(fix.store, result.rolled, &made, &fix.refusal));
        KVT_EQ(made.bits, names_last ? 0 : result.rolled.bits);
        if (names_last) name_to(&fix, seq, 2);
        KVT_EQ(usable_of(&fix, 3, 1), 128);
        KVT_EQ(fix_info(&fix, result.rolled).state_slot, result.image.dst);
        KVT_EQ(store_checkpoint_commit(fix.store, result.rolled, &made, &fix.refusal), STORE_E_STATE);
        fix_close(&fix);
    }
}

/* GRP-5: the copy ends after the sequence has, or never ends; slots and pages come back. */
static void grp_5_a_copy_outlasts_its_sequence(void) {
    struct fix fix;
    struct store_config config = state_config();
    for (uint32_t turn = 0; turn < 4; turn++) {
        bool named = turn & 1, lost = turn & 2;
        store_cont made = { 77 };
        fix_open(&fix, &config);
        store_seq seq = begin(&fix, 100, 64, false);
        struct store_round_result result = with_image(&fix, seq, 64, 64);
        if (named) name_to(&fix, seq, 1);
        end(&fix, seq);
        KVT_TRUE(fix_audit(&fix));
        KVT_OK(lost ? store_checkpoint_abort(fix.store, result.rolled, NULL)
                    : store_checkpoint_commit(fix.store, result.rolled, &made, NULL));
        KVT_EQ(usable_of(&fix, 2, 1), named && !lost ? 64 : 0);
        KVT_EQ(slots_free(fix.store), named && !lost ? 7 : 8);
        fix_close(&fix);
    }
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(grp_5_found_at_once),
                                             KVT_CASE(grp_5_at_the_end_of_the_prompt),
                                             KVT_CASE(grp_5_the_oldest_goes),
                                             KVT_CASE(grp_5_the_last_found_one_outlasts_the_nameless),
                                             KVT_CASE(grp_5_kept_by_word),
                                             KVT_CASE(grp_5_a_truncation_takes_them_along),
                                             KVT_CASE(grp_5_a_round_never_fails_for_it),
                                             KVT_CASE(grp_5_the_end_of_its_sequence),
                                             KVT_CASE(grp_5_long_turnover_leaves_no_page),
                                             KVT_CASE(grp_5_only_where_something_would_be_gone),
                                             KVT_CASE(grp_5_with_its_state_image),
                                             KVT_CASE(grp_5_a_copy_outlasts_its_sequence),
                                             { 0 } };
    return kvt_main("rolling", cases, argc, argv);
}
