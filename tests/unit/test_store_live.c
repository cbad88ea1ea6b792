/* SPDX-License-Identifier: Apache-2.0
 *
 * LIVE-1: what a running sequence has named is found and forked while it runs, and nothing else can be done to it.
 */
#include "store_fixture.h"

static struct fix f;

static struct store_config config_of(enum geom_backend backend) {
    struct store_config config = fix_config(backend);
    config.pool_pages[0] = config.pool_pages[1] = 40;
    config.max_context = 1280;
    config.max_concurrency = 4;
    return config;
}

static store_seq running(uint32_t prompt, uint32_t tokens, uint32_t salt) {
    store_seq seq = fix_activate(&f, fix_root(prompt, 64, 0), NULL);
    KVT_TRUE(seq.bits != 0);
    if (tokens) KVT_TRUE(fix_fill(&f, seq, tokens, salt));
    return seq;
}

/* The best hit of a prompt of n pages of the chain and a token. */
static struct kvd_hit best(uint32_t salt, uint32_t n) {
    uint8_t chain[20][32];
    struct kvd_hit hits[8] = { 0 };
    fix_chain(salt, n, salt, n, chain);
    if (!fix_find(f.store, (const uint8_t(*)[32])chain, n, hits, 8)) hits[0].continuation.bits = 0;
    return hits[0];
}

static store_cont live_of(store_seq seq) { return store_live(f.store, seq); }

static store_seq fork_at(store_cont from, uint32_t frontier, uint32_t prompt) {
    return fix_activate(&f, fix_from(from, true, frontier, prompt, 64), NULL);
}

static store_cont end(store_seq seq, enum store_finish how, const struct kvd_tail *tail) {
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    store_cont cont = { 0 };
    KVT_OK(store_finish(f.store, seq, FIX_LEASE, how, tail, 3, &cont, rows, &f.refusal));
    return cont;
}

static uint32_t listed(bool live) {
    struct kvd_continuation_info info;
    uint32_t cursor = 0, n = 0;
    while (store_next_cont(f.store, &cursor, &info)) n += info.live == live;
    return n;
}

/* It is found as far as pages are named, wherever other names go on or branch off; its handle stays. */
static void live_1_grows_with_the_names(void) {
    struct store_config config = config_of(GEOM_OFF);
    fix_open(&f, &config);
    store_seq seq = running(1000, 0, 0);
    KVT_OK(fix_round(&f, seq, KVD_NONE, KVD_NONE, KVD_NONE, 1000, NULL));
    KVT_OK(fix_round(&f, seq, 64, KVD_NONE, KVD_NONE, KVD_NONE, NULL));
    KVT_EQ(best(1, 4).usable, 0); /* committed, and nameless */
    for (uint32_t pages = 1; pages <= 15; pages++) {
        KVT_TRUE(fix_fill(&f, seq, pages * 64 + (pages % 3), 1));
        struct kvd_hit hit = best(1, 16);
        KVT_EQ(fix_info(&f, live_of(seq)).frontier, pages * 64);
        KVT_EQ(hit.usable, pages > 4 && pages < 7 ? 448 : pages * 64); /* then one that is kept goes further */
        KVT_EQ(hit.live, pages < 5 || pages > 7);
        if (hit.live) KVT_EQ(hit.continuation.bits, live_of(seq).bits);
        if (pages == 4) { /* two who branch off, and one who ends here */
            store_seq other = running(400, 0, 0);
            uint8_t chain[6][32];
            fix_chain(1, 3, 2, 6, chain);
            KVT_OK(fix_round(&f, other, KVD_NONE, KVD_NONE, KVD_NONE, 400, NULL));
            KVT_OK(fix_round(&f, other, 384, KVD_NONE, KVD_NONE, KVD_NONE, NULL));
            KVT_OK(store_name_pages(f.store, other, FIX_LEASE, 0, 6, (const uint8_t(*)[32])chain, &f.refusal));
            end(other, STORE_FINISH_RETAIN, fix_tail(384));
            fix_cont(&f, 256, 1);
            fix_cont(&f, 448, 1);
        }
        KVT_TRUE(fix_audit(&f));
    }
    KVT_EQ(listed(true), 1);
    KVT_EQ(fix_info(&f, live_of(seq)).frontier, 960);
    KVT_EQ(fix_info(&f, live_of(seq)).exclusive_pages[0], 0);
    end(seq, STORE_FINISH_RELEASE, NULL);
    KVT_EQ(best(1, 16).usable, 448);
    fix_close(&f);
}

/* LIVE-1: three equal cold prompts share one prefill as far as it has come. */
static void live_1_three_share_one_prefill(void) {
    struct store_config config = config_of(GEOM_MTP);
    fix_open(&f, &config);
    store_seq a = running(960, 320, 1);
    store_seq b = fork_at(live_of(a), best(1, 15).usable, 960);
    KVT_EQ(fix_seq(&f, b).pool[0].committed, 320);
    KVT_EQ(fix_seq(&f, b).named_pages, 5);
    KVT_EQ(fix_pool(&f, 0).allocated, 5);
    KVT_EQ(fix_pool(&f, 1).shared, 5);
    KVT_TRUE(fix_fill(&f, a, 704, 1)); /* the first goes on */
    store_seq c = fork_at(live_of(a), best(1, 15).usable, 960);
    KVT_EQ(fix_seq(&f, c).pool[0].committed, 704);
    KVT_EQ(fix_pool(&f, 0).allocated, 11);
    KVT_EQ(fix_info(&f, live_of(a)).sharers, 2);
    end(a, STORE_FINISH_RELEASE, NULL); /* what they share stays, and c is found */
    KVT_EQ(best(1, 15).usable, 704);
    KVT_EQ(best(1, 15).continuation.bits, live_of(c).bits);
    KVT_EQ(fix_pool(&f, 0).allocated, 11);
    end(c, STORE_FINISH_RELEASE, NULL);
    KVT_EQ(best(1, 15).usable, 320);
    end(b, STORE_FINISH_RELEASE, NULL);
    KVT_EQ(best(1, 15).usable, 0);
    KVT_EQ(fix_pool(&f, 0).allocated, 0);
    fix_close(&f);
}

/* Move, release, shortening, retention, demotion, replicas, recipe: not while it runs; and the sentence says so. */
static void live_1_is_forked_and_nothing_else(void) {
    struct store_config config = config_of(GEOM_OFF);
    struct store_activated made;
    struct store_choice how = { .max = 8 };
    struct store_chosen chosen;
    struct kvd_victim victims[8];
    uint32_t dropped[KVD_MAX_POOLS];
    store_move move;
    char text[400];
    config.host_bytes = 65536;
    config.host_stride[0] = 1024;
    fix_open(&f, &config);
    store_seq seq = running(960, 320, 1);
    store_cont live = live_of(seq);
    struct store_activation moves = fix_from(live, false, 320, 960, 1), inside = fix_from(live, true, 300, 960, 1),
                            past = fix_from(live, true, 384, 960, 1), recipe = fix_root(64, 1, 0);
    fix_recipe(&recipe, &live, 1, 0);
    char *before = fix_dump(&f);
    KVT_EQ(store_activate_begin(f.store, &moves, &made, &f.refusal), STORE_E_BUSY);
    KVT_HAS(store_refusal_text(&f.refusal, text, sizeof text), "running sequence");
    KVT_HAS(text, "fork it");
    KVT_EQ(store_activate_begin(f.store, &inside, &made, &f.refusal), STORE_E_RANGE);
    KVT_EQ(f.refusal.had, 256);
    KVT_EQ(store_activate_begin(f.store, &past, &made, &f.refusal), STORE_E_STALE); /* look it up again */
    KVT_EQ(store_activate_begin(f.store, &recipe, &made, &f.refusal), STORE_E_BUSY);
    KVT_EQ(f.refusal.subject, STORE_S_SEQUENCE);
    KVT_EQ(store_release(f.store, live, &f.refusal), STORE_E_BUSY);
    KVT_EQ(f.refusal.subject, STORE_S_SEQUENCE);
    KVT_EQ(store_shorten(f.store, live, 64, &f.refusal), STORE_E_BUSY);
    KVT_EQ(store_set_retention(f.store, live, 5, &f.refusal), STORE_E_BUSY);
    for (int place = STORE_PLACE_HOST; place <= STORE_PLACE_DEVICE; place++)
        KVT_EQ(store_move_begin(f.store, live, (enum store_place)place, &move, &f.refusal), STORE_E_BUSY);
    KVT_EQ(store_drop_replica(f.store, live, KVD_TIER_DEVICE, dropped, &f.refusal), STORE_E_BUSY);
    how.want = fix_root(1280, 1, 0);
    KVT_OK(store_choose_victims(f.store, &how, victims, &chosen, &f.refusal));
    for (store_seq more = running(1200, 0, 0); more.bits; more.bits = 0) { /* nothing idle: no victims */
        KVT_OK(store_choose_victims(f.store, &how, victims, &chosen, &f.refusal));
        KVT_EQ(chosen.n, 0);
        KVT_EQ(chosen.plan.feasibility, KVD_BLOCKED);
        end(more, STORE_FINISH_RELEASE, NULL);
    }
    char *after = fix_dump(&f);
    KVT_TRUE(fix_audit(&f));
    KVT_EQ_STR(after, before);
    free(before);
    free(after);
    fix_close(&f);
}

/* A truncation below takes the names along; not below what a fork has. */
static void live_1_shrinks_with_a_truncation(void) {
    struct store_config config = config_of(GEOM_OFF);
    fix_open(&f, &config);
    store_seq seq = running(960, 640, 1);
    store_cont live = live_of(seq), kept = fix_cont(&f, 448, 1);
    KVT_OK(fix_round(&f, seq, KVD_NONE, 400, KVD_NONE, KVD_NONE, NULL));
    KVT_EQ(fix_info(&f, live).frontier, 384);
    KVT_EQ(best(1, 10).continuation.bits, kept.bits);
    KVT_TRUE(fix_fill(&f, seq, 640, 2)); /* other tokens follow */
    KVT_EQ(fix_info(&f, live).frontier, 640);
    KVT_EQ(best(2, 10).usable, 0);
    KVT_EQ(best(1, 6).usable, 384);
    KVT_TRUE(fix_audit(&f));
    KVT_OK(fix_round(&f, seq, KVD_NONE, 63, KVD_NONE, KVD_NONE, NULL));
    KVT_EQ(store_release(f.store, live, &f.refusal), STORE_E_STALE);
    KVT_EQ(listed(true), 0);
    KVT_TRUE(fix_fill(&f, seq, 640, 1));
    KVT_EQ(live_of(seq).bits, live.bits);
    KVT_EQ(best(1, 10).continuation.bits, live.bits);
    store_seq fork = fork_at(live, 320, 960);
    KVT_EQ(fix_round(&f, seq, KVD_NONE, 319, KVD_NONE, KVD_NONE, NULL), STORE_E_PROTECTED);
    KVT_OK(fix_round(&f, seq, KVD_NONE, 320, KVD_NONE, KVD_NONE, NULL));
    KVT_EQ(fix_info(&f, live).frontier, 320);
    end(fork, STORE_FINISH_RELEASE, NULL);
    fix_close(&f);
}

/* Its handle is that of what is kept, unless an equal one was there. */
static void live_1_becomes_what_is_kept(void) {
    struct store_config config = config_of(GEOM_OFF);
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    store_cont left = { 0 };
    fix_open(&f, &config);
    store_seq seq = running(960, 333, 1);
    store_cont live = live_of(seq);
    KVT_EQ(end(seq, STORE_FINISH_RETAIN, fix_tail(333)).bits, live.bits);
    KVT_EQ(listed(true), 0);
    KVT_EQ(fix_info(&f, live).frontier, 333);
    KVT_EQ(fix_info(&f, live).retention, 3);
    seq = running(960, 150, 2);
    live = live_of(seq);
    KVT_OK(store_end(f.store, seq, &left, rows, &f.refusal));
    KVT_EQ(left.bits, live.bits);
    KVT_EQ(fix_info(&f, live).named_pages, 2);
    struct store_activation want = fix_root(960, 1, 0);
    want.tag = 5;
    store_seq one = fix_activate(&f, want, NULL), two = fix_activate(&f, want, NULL);
    KVT_TRUE(fix_fill(&f, one, 100, 3) && fix_fill(&f, two, 100, 3));
    store_cont first = end(one, STORE_FINISH_RETAIN, fix_tail(100));
    live = live_of(two);
    KVT_EQ(end(two, STORE_FINISH_RETAIN, fix_tail(100)).bits, first.bits); /* FIT-5 */
    KVT_EQ(store_release(f.store, live, &f.refusal), STORE_E_STALE);
    seq = running(960, 128, 4);
    live = live_of(seq);
    end(seq, STORE_FINISH_RELEASE, NULL);
    KVT_EQ(store_release(f.store, live, &f.refusal), STORE_E_STALE);
    fix_close(&f);
}

/* FIT-5: it is equal to nothing: a checkpoint is one of its own, and stays when the sequence is released. */
static void live_1_stands_for_nothing_kept(void) {
    struct store_config config = config_of(GEOM_OFF);
    fix_open(&f, &config);
    store_seq seq = running(960, 320, 1);
    store_cont kept = fix_checkpoint(&f, seq, 320);
    KVT_TRUE(kept.bits != live_of(seq).bits);
    KVT_EQ(best(1, 8).continuation.bits, kept.bits); /* the one that can be moved, too, comes first */
    KVT_FALSE(best(1, 8).live);
    struct kvd_stats stats;
    store_get_stats(f.store, &stats);
    KVT_EQ(stats.continuations, 1);
    end(seq, STORE_FINISH_RELEASE, NULL);
    KVT_EQ(best(1, 8).continuation.bits, kept.bits);
    fix_close(&f);
}

/* CONT-1: complete in all pools. */
static void live_1_reaches_as_far_as_every_pool(void) {
    struct store_config config = config_of(GEOM_MTP);
    struct store_round_result got;
    uint8_t chain[5][32];
    fix_open(&f, &config);
    store_seq seq = running(960, 0, 1);
    struct store_round_item item = fix_item(seq);
    KVT_OK(fix_round(&f, seq, KVD_NONE, KVD_NONE, KVD_NONE, 320, NULL));
    item.pool[0].commit = 320;
    item.pool[1].commit = 150;
    fix_apply(&f, &item, &got);
    fix_chain(1, 5, 1, 5, chain);
    KVT_OK(store_name_pages(f.store, seq, FIX_LEASE, 0, 5, (const uint8_t(*)[32])chain, &f.refusal));
    KVT_EQ(best(1, 5).usable, 128);
    item.pool[0].commit = KVD_NONE;
    item.pool[1].commit = 192;
    fix_apply(&f, &item, &got);
    KVT_EQ(best(1, 5).usable, 192);
    item.pool[1] = round_pool(KVD_NONE, 100, KVD_NONE, KVD_NONE);
    fix_apply(&f, &item, &got);
    KVT_OK(got.refusal.code);
    KVT_EQ(best(1, 5).usable, 64);
    fix_close(&f);
}

/* CONT-4: a boundary without an image is no place to start from. */
static void live_1_not_where_there_are_images(void) {
    struct store_config config = config_of(GEOM_OFF);
    config.has_state = true;
    config.state_slots = 8;
    fix_open(&f, &config);
    store_seq seq = running(960, 320, 1);
    KVT_EQ(best(1, 5).usable, 0);
    KVT_EQ(listed(true), 0);
    end(seq, STORE_FINISH_RELEASE, NULL);
    fix_close(&f);
}

/* The last token of a prompt is computed: then the page before counts. */
static void live_1_is_usable_at_page_boundaries(void) {
    struct store_config config = config_of(GEOM_OFF);
    uint8_t chain[6][32];
    struct kvd_hit hits[4];
    struct store_found found;
    fix_open(&f, &config);
    running(960, 384, 1);
    fix_chain(1, 6, 1, 6, chain);
    struct store_query query = {
        .digests = (const uint8_t(*)[32])chain, .n = 6, .max = 4, .prompt_tokens = 384, .token_page = 6
    };
    KVT_OK(store_find(f.store, &query, hits, &found, NULL));
    KVT_EQ(found.n, 1);
    KVT_EQ(hits[0].usable, 320);
    query.n = 1;
    query.prompt_tokens = 64;
    query.token_page = 1;
    KVT_OK(store_find(f.store, &query, hits, &found, NULL));
    KVT_EQ(found.n, 0);
    fix_close(&f);
}

/* ---- forks in flight ---- */

static void copy_all(store_seq seq) {
    struct store_copy copy;
    uint64_t cursor = 0;
    while (store_next_copies(f.store, (struct store_transition){ .bits = seq.bits }, &cursor, &copy, 1))
        if (copy.kind == STORE_COPY_PAGE_OUT) store_copied_out(f.store, copy.replica, 1 + copy.replica);
}

/* A fork that waits for one victim's membership until the other one is demoted has mapped nothing: what it will share
 * stays, whatever becomes of the sequence. how: 0 it runs on, 1 released, 2 retained, 3 its worker died. */
static void fork_while(int how, bool commit) {
    struct store_config config = config_of(GEOM_OFF);
    struct store_activated made;
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    store_cont left = { 0 };
    config.host_bytes = 65536;
    config.host_stride[0] = 1024;
    config.membership_entries = 3 * CHUNK;
    fix_open(&f, &config);
    store_cont victims[] = { fix_cont(&f, 640, 9), fix_cont(&f, 64, 8) };
    store_seq seq = running(448, 384, 1);
    store_cont live = live_of(seq);
    struct store_activation want = fix_from(live, true, 320, 832, 1);
    fix_recipe(&want, victims, 2, 1);
    KVT_OK(store_activate_begin(f.store, &want, &made, &f.refusal));
    KVT_TRUE(made.staged);
    KVT_EQ(fix_round(&f, seq, KVD_NONE, 319, KVD_NONE, KVD_NONE, NULL), STORE_E_PROTECTED);
    KVT_EQ(fix_seq(&f, seq).pool[0].protected_frontier, 320);
    KVT_TRUE(fix_audit(&f));
    if (how == 1) end(seq, STORE_FINISH_RELEASE, NULL);
    if (how == 2) KVT_EQ(end(seq, STORE_FINISH_RETAIN, fix_tail(384)).bits, live.bits);
    if (how == 3) KVT_OK(store_end(f.store, seq, &left, rows, &f.refusal));
    KVT_EQ(fix_info(&f, live).frontier, how == 1 ? 0 : 384);
    KVT_EQ(best(1, 6).usable, how == 1 ? 0 : 384);
    KVT_TRUE(fix_audit(&f));
    if (commit) {
        copy_all(made.seq);
        KVT_EQ(store_activate_commit(f.store, made.seq, &f.refusal), STORE_MORE);
        KVT_TRUE(fix_audit(&f));
        KVT_OK(store_activate_commit(f.store, made.seq, &f.refusal));
        KVT_EQ(fix_seq(&f, made.seq).named_pages, 5);
        KVT_EQ(best(1, 5).usable, 320);
        KVT_TRUE(fix_audit(&f));
        end(made.seq, STORE_FINISH_RELEASE, NULL);
    } else {
        uint32_t lost;
        KVT_OK(store_activate_abort(f.store, made.seq, &lost, &f.refusal));
        KVT_OK(store_release(f.store, victims[1], &f.refusal));
    }
    if (how == 0) end(seq, STORE_FINISH_RELEASE, NULL);
    if (how > 1) KVT_OK(store_release(f.store, live, &f.refusal));
    KVT_OK(store_release(f.store, victims[0], &f.refusal));
    KVT_EQ(fix_pool(&f, 0).allocated, 0);
    KVT_EQ(f.store->conts_used, 0);
    fix_close(&f);
}

static void live_1_forks_in_flight_keep_what_they_take(void) {
    for (int how = 0; how < 4; how++) {
        fork_while(how, true);
        fork_while(how, false);
    }
}

/* Each shortage refuses it, and nothing has changed. */
static void live_1_fork_lacks_something(void) {
    struct store_config config = config_of(GEOM_MTP);
    struct store_activated made;
    fix_open(&f, &config);
    store_seq seq = running(960, 320, 1);
    struct store_activation want = fix_from(live_of(seq), true, 320, 960, 1);
    int code = STORE_E_SHORT;
    char *before = fix_dump(&f);
    for (uint32_t nth = 1; code; nth++) {
        store_fail_acquisition(f.store, nth);
        code = store_activate_begin(f.store, &want, &made, &f.refusal);
        store_fail_acquisition(f.store, 0);
        char *after = fix_dump(&f);
        if (code) KVT_EQ(code, STORE_E_SHORT);
        if (code) KVT_EQ_STR(after, before);
        free(after);
    }
    KVT_OK(store_activate_commit(f.store, made.seq, &f.refusal));
    free(before);
    fix_close(&f);
}

/* A moved continuation goes on as what is found of the sequence. */
static void live_1_after_a_move(void) {
    struct store_config config = config_of(GEOM_OFF);
    fix_open(&f, &config);
    store_cont kept = fix_cont(&f, 420, 1);
    store_seq seq = fix_activate(&f, fix_from(kept, false, 420, 960, 1), NULL);
    KVT_EQ(best(1, 8).usable, 384);
    KVT_EQ(best(1, 8).continuation.bits, live_of(seq).bits);
    KVT_TRUE(live_of(seq).bits != kept.bits);
    KVT_EQ(store_release(f.store, kept, &f.refusal), STORE_E_STALE);
    KVT_TRUE(fix_fill(&f, seq, 512, 1));
    KVT_EQ(best(1, 8).usable, 512);
    fix_close(&f);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(live_1_grows_with_the_names),
                                             KVT_CASE(live_1_three_share_one_prefill),
                                             KVT_CASE(live_1_is_forked_and_nothing_else),
                                             KVT_CASE(live_1_shrinks_with_a_truncation),
                                             KVT_CASE(live_1_becomes_what_is_kept),
                                             KVT_CASE(live_1_stands_for_nothing_kept),
                                             KVT_CASE(live_1_reaches_as_far_as_every_pool),
                                             KVT_CASE(live_1_not_where_there_are_images),
                                             KVT_CASE(live_1_is_usable_at_page_boundaries),
                                             KVT_CASE(live_1_forks_in_flight_keep_what_they_take),
                                             KVT_CASE(live_1_fork_lacks_something),
                                             KVT_CASE(live_1_after_a_move),
                                             { 0 } };
    return kvt_main("store live", cases, argc, argv);
}
