/* SPDX-License-Identifier: Apache-2.0
 *
 * ENG-1 to ENG-4: pages that an engine hands out itself. What it may overwrite, what stays when it dies, what the next
 * engine adopts, and what a kvd that starts again finds; by hand, and against a model that knows pages by their
 * content.
 */
#include "directory.h"
#include "store_fixture.h"

#define STRIDE 4096u
#define PAGES 32u
#define CHAIN 16u /* pages that a chain has at most */

static struct fix f;
static void *tables, *handle;
static struct directory *directory;

static void open_store(uint32_t arena_pages) {
    struct store_config c = fix_config(GEOM_OFF);
    struct directory_limits limits;
    c.pool_pages[0] = PAGES;
    c.max_context = PAGES * KVD_PAGE_TOKENS;
    c.max_concurrency = 4;
    c.max_continuations = 24;
    c.spare_pages = 4;
    c.host_bytes = (uint64_t)arena_pages * STRIDE;
    c.host_stride[0] = STRIDE;
    c.recorded = true;
    fix_open(&f, &c);
    if (tables) { /* a later life */
        return;
    }
    store_directory_limits(f.store, &limits);
    tables = aligned_alloc(4096, (directory_bytes(&limits) + 4095) / 4096 * 4096);
    handle = malloc(directory_handle_bytes());
    directory_format(tables, &limits, 1);
    KVT_OK(directory_open(handle, tables, &limits, 1, &directory));
    store_set_directory(f.store, directory);
}

static void close_store(void) {
    fix_close(&f);
    free(tables);
    free(handle);
    tables = handle = NULL;
}

/* kvd is gone, and the next one has what the directory says. */
static void restart(uint32_t arena_pages, bool device_lives) {
    struct store_recovered recovered;
    fix_close(&f);
    open_store(arena_pages);
    store_recover(f.store, directory, device_lives, &recovered);
    KVT_EQ(recovered.damaged, 0);
    KVT_TRUE(fix_audit(&f));
}

static store_seq lend(uint32_t pages, bool adopt, uint32_t *ret_adopted) {
    struct store_lent lent = { 0 };
    struct store_activation want = fix_root(pages * KVD_PAGE_TOKENS, 1, 0);
    want.tag = 9; /* one owner: equal ones are one (FIT-5) */
    store_seq seq = fix_activate(&f, want, NULL);
    if (!KVT_TRUE(seq.bits != 0)) return seq;
    KVT_OK(store_lend(f.store, seq, FIX_LEASE, adopt, &lent, &f.refusal));
    KVT_EQ(lent.pool[0].membership, pages + lent.adopted);
    if (ret_adopted) *ret_adopted = lent.adopted;
    KVT_TRUE(fix_audit(&f));
    return seq;
}

static int name_tail(store_seq seq, store_cont from, uint32_t first, const uint32_t *which, uint32_t n, uint32_t salt,
                     const struct kvd_tail *tail, bool replace, struct store_lent_named *ret) {
    struct kvd_lent_page pages[CHAIN];
    for (uint32_t i = 0; i < n && i < CHAIN; i++) {
        pages[i].page = which[i];
        fix_digest(salt, first + i, pages[i].digest.bytes);
    }
    const struct store_lent_name want = {
        .from = from, .first = first, .n = n, .pages = pages, .tail = tail, .retention = 1, .replace = replace
    };
    return store_name_lent(f.store, seq, FIX_LEASE, &want, ret, &f.refusal);
}

static int name(store_seq seq, store_cont from, uint32_t first, const uint32_t *which, uint32_t n, uint32_t salt,
                bool replace, struct store_lent_named *ret) {
    return name_tail(seq, from, first, which, n, salt, NULL, replace, ret);
}

static int give(store_seq seq, const uint32_t *which, uint32_t n, bool again) {
    struct kvd_pool_view view;
    struct kvd_lent_page pages[CHAIN] = { 0 };
    for (uint32_t i = 0; i < n && i < CHAIN; i++) pages[i].page = which[i];
    return store_return_lent(f.store, seq, FIX_LEASE, pages, n, again, &view, &f.refusal);
}

static int move(store_cont cont, enum store_place place) {
    struct store_copy copy;
    store_move m;
    int code = store_move_begin(f.store, cont, place, &m, &f.refusal);
    if (code) return code;
    do {
        uint64_t cursor = 0;
        while (store_next_copies(f.store, (struct store_transition){ true, m.bits }, &cursor, &copy, 1))
            if (copy.kind == STORE_COPY_PAGE_OUT) store_copied_out(f.store, copy.replica, copy.host + 1);
    } while ((code = store_move_commit(f.store, m, &f.refusal)) == STORE_MORE);
    return code;
}

static void end(store_seq seq) {
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    store_cont cont = { 0 };
    KVT_OK(store_end(f.store, seq, &cont, rows, &f.refusal));
    KVT_EQ(cont.bits, 0);
}

/* Tokens that a prompt of the chain's pages and one more can use. */
static uint32_t usable(uint32_t salt, uint32_t n) {
    uint8_t chain[CHAIN][32];
    struct kvd_hit hits[4];
    fix_chain(salt, n, salt, n, chain);
    return fix_find(f.store, (const uint8_t(*)[32])chain, n, hits, 4) ? hits[0].usable : 0;
}

/* The same of a prompt that goes on with these tokens behind the pages. */
static uint32_t usable_tail(uint32_t salt, uint32_t n, const struct kvd_tail *tail) {
    uint8_t chain[CHAIN][32];
    struct kvd_hit hits[4];
    struct store_found found = { 0 };
    fix_chain(salt, n, salt, n, chain);
    const struct store_query query = { .digests = (const uint8_t(*)[32])chain,
                                       .n = n,
                                       .max = 4,
                                       .prompt_tokens = (n + 1) * KVD_PAGE_TOKENS,
                                       .token_page = n,
                                       .tokens = tail };
    KVT_OK(store_find(f.store, &query, hits, &found, &f.refusal));
    return found.n ? hits[0].usable : 0;
}

static const uint32_t ids[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 };
static const store_cont none;

/* What has a name stays and is found, what has none returns, and the next engine adopts it in chain order. */
static void eng_1_2_3_named_pages_outlive_the_engine(void) {
    struct store_lent_named made, more;
    uint32_t adopted = 0, n = 0;
    struct kvd_lent_page pages[CHAIN];
    uint8_t want[32];
    open_store(0);
    store_seq seq = lend(6, false, NULL);
    KVT_EQ_STR(fix_ids(&f, seq, 0), "0 1 2 3 4 5");
    KVT_OK(name(seq, none, 0, ids, 2, 1, false, &made));
    KVT_OK(name(seq, made.cont, 2, ids + 4, 1, 1, true, &more)); /* goes on, in the place of what it continues */
    KVT_EQ(store_cont_look(f.store, made.cont, &(struct kvd_continuation_info){ 0 }, NULL), STORE_E_STALE);
    KVT_EQ(usable(1, 3), 192);
    KVT_TRUE(fix_audit(&f));
    end(seq);
    KVT_TRUE(fix_audit(&f));
    KVT_EQ(fix_pool(&f, 0).allocated, 3);
    KVT_EQ(fix_pool(&f, 0).available, PAGES - 3);
    KVT_EQ(usable(1, 3), 192);
    seq = lend(4, true, &adopted);
    KVT_EQ(adopted, 3);
    KVT_OK(store_read_chain(f.store, more.cont, 0, CHAIN, pages, &n, &f.refusal));
    KVT_EQ(n, 3);
    KVT_TRUE(pages[0].page == 0 && pages[1].page == 1 && pages[2].page == 4);
    for (uint32_t i = 0; i < 3; i++) {
        fix_digest(1, i, want);
        KVT_EQ_MEM(pages[i].digest.bytes, want, 32);
        KVT_EQ(((const int32_t *)store_table_row(f.store, 0, fix_seq(&f, seq).pool[0].row))[4 + i], pages[i].page);
    }
    KVT_OK(store_read_chain(f.store, more.cont, 2, 1, pages, &n, &f.refusal));
    KVT_TRUE(n == 1 && pages[0].page == 4);
    KVT_OK(store_read_chain(f.store, more.cont, 3, 1, pages, &n, &f.refusal));
    KVT_EQ(n, 0);
    KVT_OK(give(seq, (uint32_t[]){ 4 }, 1, false)); /* "gives back": it stays found, and is lent no more */
    KVT_EQ(fix_seq(&f, seq).pool[0].membership, 6);
    KVT_EQ(usable(1, 3), 192);
    KVT_EQ(give(seq, (uint32_t[]){ 4 }, 1, true), STORE_E_ARGUMENT);
    close_store();
}

/* A complete page is overwritten only when nobody needs it on the device: by the engine's word. */
static void eng_4_nothing_that_is_needed_is_overwritten(void) {
    struct store_lent_named made;
    open_store(16);
    store_seq seq = lend(6, false, NULL);
    KVT_OK(name(seq, none, 0, ids, 3, 1, false, &made));
    char *before = fix_dump(&f), *after;
    KVT_EQ(give(seq, ids, 3, true), STORE_E_STATE);
    KVT_EQ(f.refusal.subject, STORE_S_REPLICA);
    KVT_EQ(name(seq, none, 0, ids, 1, 2, false, &made), STORE_E_NAME); /* complete already */
    after = fix_dump(&f);
    KVT_EQ_STR(before, after);
    free(before);
    free(after);
    KVT_OK(move(made.cont, STORE_PLACE_HOST)); /* demoted: the pages stay, as they are lent */
    KVT_EQ_STR(fix_cont_ids(&f, made.cont, 0), "0 1 2");
    KVT_OK(give(seq, ids + 1, 2, true));
    KVT_TRUE(fix_audit(&f));
    KVT_EQ_STR(fix_ids(&f, seq, 0), "0 1 2 3 4 5");
    KVT_EQ(fix_info(&f, made.cont).device_pages[0], 1);
    KVT_EQ(fix_info(&f, made.cont).host_pages[0], 3);
    KVT_EQ(usable(1, 3), 192);
    KVT_EQ(name(seq, none, 0, ids + 1, 2, 2, false, &made), STORE_OK); /* other bytes are in them now */
    KVT_EQ(usable(2, 2), 128);
    KVT_OK(store_release(f.store, made.cont, &f.refusal));
    KVT_OK(give(seq, ids + 1, 2, true)); /* nobody holds them */
    KVT_TRUE(fix_audit(&f));
    end(seq);
    KVT_EQ(fix_pool(&f, 0).allocated, 0);
    close_store();
}

/* A fork reads lent pages: they are not overwritten under it, and it does not write in them, whatever becomes of the
 * continuation and of the pages around. */
static void eng_4_forks_and_engines_spare_each_other(void) {
    struct store_lent_named made, more;
    open_store(16);
    store_seq seq = lend(6, false, NULL);
    KVT_OK(name(seq, none, 0, ids, 2, 1, false, &made));
    KVT_OK(name(seq, made.cont, 2, ids + 2, 4, 1, true, &more));
    store_seq fork = fix_activate(&f, fix_from(more.cont, true, 384, 400, 10), NULL);
    KVT_TRUE(fork.bits != 0);
    KVT_OK(move(more.cont, STORE_PLACE_HOST));
    KVT_EQ(give(seq, ids + 3, 1, true), STORE_E_BUSY);
    KVT_OK(store_release(f.store, more.cont, &f.refusal));
    KVT_EQ(give(seq, ids + 3, 1, true), STORE_E_BUSY);
    KVT_OK(give(seq, ids + 5, 1, false));
    KVT_OK(fix_round(&f, fork, KVD_NONE, 384, KVD_NONE, KVD_NONE, NULL));
    KVT_OK(give(seq, (uint32_t[]){ 0, 1, 3, 4 }, 4, false)); /* page 2 alone is lent now */
    KVT_TRUE(fix_audit(&f));
    KVT_EQ(fix_round(&f, fork, KVD_NONE, 150, KVD_NONE, KVD_NONE, NULL), STORE_E_PROTECTED);
    KVT_OK(fix_round(&f, fork, KVD_NONE, 200, KVD_NONE, KVD_NONE, NULL));
    KVT_TRUE(fix_audit(&f));
    close_store();
}

/* FIT-5: what an equal continuation stands for gets no name, and may be used again. */
static void eng_1_an_equal_chain_stands(void) {
    struct store_lent_named made, again;
    open_store(8);
    store_seq seq = lend(6, false, NULL);
    KVT_OK(name(seq, none, 0, ids, 2, 1, false, &made));
    KVT_FALSE(made.stood);
    KVT_OK(name(seq, none, 0, ids + 2, 2, 1, false, &again));
    KVT_TRUE(again.stood && again.cont.bits == made.cont.bits);
    KVT_TRUE(fix_audit(&f));
    KVT_OK(name(seq, none, 0, ids + 2, 2, 2, false, &again));
    KVT_OK(move(made.cont, STORE_PLACE_HOST));
    KVT_OK(give(seq, ids, 2, true));
    KVT_OK(name(seq, none, 0, ids, 2, 1, false, &again)); /* the equal one lies in the host: it gets these pages */
    KVT_FALSE(again.stood);
    KVT_EQ(again.cont.bits, made.cont.bits);
    KVT_FALSE(fix_info(&f, made.cont).demoted);
    KVT_EQ(give(seq, ids, 1, true), STORE_E_STATE);
    KVT_TRUE(fix_audit(&f));
    close_store();
}

static void refused(int code, int want, const char *word, char *before) {
    char text[512], *after = fix_dump(&f);
    KVT_EQ_I(code, want);
    KVT_HAS(store_refusal_text(&f.refusal, text, sizeof text), word);
    KVT_EQ_STR(before, after);
    free(after);
}

/* SRV-2: each refusal says why, and has changed nothing. */
static void eng_1_refusals(void) {
    struct store_lent_named made;
    struct store_lent lent;
    open_store(8);
    store_seq other = fix_activate(&f, fix_root(64, 1, 64), NULL), seq = lend(6, false, NULL);
    KVT_OK(name(seq, none, 0, ids + 1, 2, 1, false, &made));
    KVT_OK(fix_round(&f, other, 10, KVD_NONE, KVD_NONE, KVD_NONE, NULL));
    char *before = fix_dump(&f);
    refused(store_lend(f.store, seq, FIX_LEASE, true, &lent, &f.refusal), STORE_E_STATE, "once", before);
    refused(store_lend(f.store, other, FIX_LEASE, true, &lent, &f.refusal), STORE_E_STATE, "committed nothing", before);
    refused(store_lend(f.store, seq, 1, true, &lent, &f.refusal), STORE_E_LEASE, "lease", before);
    refused(name(other, none, 0, ids + 3, 1, 2, false, &made), STORE_E_STATE, "LendPages", before);
    refused(name(seq, none, 0, ids, 1, 2, false, &made), STORE_E_ARGUMENT, "not lent by this", before); /* other's */
    refused(name(seq, none, 0, (uint32_t[]){ 3, 3 }, 2, 2, false, &made), STORE_E_ARGUMENT, "twice", before);
    refused(name(seq, none, 0, (uint32_t[]){ 99 }, 1, 2, false, &made), STORE_E_ARGUMENT, "page 99", before);
    refused(name(seq, none, 0, ids + 1, 1, 2, false, &made), STORE_E_NAME, "complete", before);
    refused(name(seq, none, 1, ids + 3, 1, 2, false, &made), STORE_E_RANGE, "limit", before);
    refused(name(seq, none, 0, ids, 0, 2, false, &made), STORE_E_RANGE, "limit", before);
    refused(name(seq, (store_cont){ 77 }, 1, ids + 3, 1, 2, false, &made), STORE_E_STALE, "look it up", before);
    refused(give(seq, (uint32_t[]){ 0 }, 1, false), STORE_E_ARGUMENT, "not lent by this", before);
    refused(fix_round(&f, seq, KVD_NONE, KVD_NONE, KVD_NONE, 64, NULL), STORE_E_STATE, "nothing else", before);
    refused(store_checkpoint_begin(f.store, seq, FIX_LEASE, FIX_KEEP(fix_tail(0), 1), &(struct store_checkpointed){ 0 },
                                   &f.refusal),
            STORE_E_INCOMPLETE, "token", before);
    free(before);
    KVT_TRUE(fix_audit(&f));
    close_store();
}

/* ACT-5: where a resource is missing in the middle, nothing is done. */
static void eng_1_nothing_is_done_by_half(void) {
    struct store_lent_named made;
    struct store_lent lent;
    open_store(8);
    store_seq seq = lend(6, false, NULL);
    KVT_OK(name(seq, none, 0, ids, 1, 1, false, &made));
    store_fail_acquisition(f.store, 0);
    for (uint32_t nth = 1; nth <= 2; nth++) {
        char *before = fix_dump(&f);
        store_fail_acquisition(f.store, nth);
        int code = name(seq, none, 0, ids + 1, 1, 2, false, &made);
        store_fail_acquisition(f.store, 0);
        refused(code, STORE_E_SHORT, "had", before);
        free(before);
    }
    store_fail_acquisition(f.store, 0);
    KVT_OK(name(seq, none, 0, ids + 1, 1, 2, false, &made));
    KVT_EQ(store_fail_acquisition(f.store, 0), 2); /* there is no third */
    end(seq);
    store_seq next = fix_activate(&f, fix_root(64, 1, 0), NULL);
    char *before = fix_dump(&f);
    store_fail_acquisition(f.store, 1);
    int code = store_lend(f.store, next, FIX_LEASE, true, &lent, &f.refusal);
    store_fail_acquisition(f.store, 0);
    refused(code, STORE_E_SHORT, "had", before);
    free(before);
    KVT_OK(store_lend(f.store, next, FIX_LEASE, true, &lent, &f.refusal));
    KVT_EQ(lent.adopted, 2);
    close_store();
}

/* ENG-2, CONT-3: what a kvd that starts again finds: all of it where the device lives, else what the arena has. */
static void eng_2_a_restart_finds_what_was_named(void) {
    struct store_lent_named a, b;
    for (int lives = 0; lives < 2; lives++) {
        open_store(16);
        store_seq seq = lend(8, false, NULL);
        KVT_OK(name(seq, none, 0, ids, 3, 1, false, &a));
        KVT_OK(name(seq, a.cont, 2, ids + 3, 2, 2, false, &b)); /* branches off behind page 1 */
        KVT_OK(move(a.cont, STORE_PLACE_BOTH));
        restart(16, lives);
        KVT_EQ(usable(1, 3), 192);
        uint8_t chain[4][32];
        struct kvd_hit hits[4];
        fix_chain(1, 2, 2, 4, chain);
        KVT_TRUE(fix_find(f.store, (const uint8_t(*)[32])chain, 4, hits, 4) > 0);
        KVT_EQ(hits[0].usable, lives ? 256 : 128);
        uint32_t adopted;
        lend(4, true, &adopted);
        KVT_EQ(adopted, lives ? 5 : 0);
        close_store();
    }
}

/* ---- written up to a column (ENG-1) ---- */

static struct kvd_tail tokens_of(uint32_t n, uint32_t other) { /* 1, 2, ...; from `other` on another text */
    struct kvd_tail tail = { .n = n };
    for (uint32_t i = 0; i < n; i++) tail.tokens[i] = i + 1 + (i >= other ? 1000 : 0);
    return tail;
}

static uint32_t written(uint32_t id) { return f.store->pool[0].pages[f.store->pool[0].leases[id].owner].committed; }

/* What is written of a page is found and read so far, and no further; it goes on in place, until it is complete. */
static void eng_1_a_page_is_written_up_to_a_column(void) {
    struct store_lent_named a, b, c;
    struct store_activated out;
    const struct kvd_tail ten = tokens_of(10, 64), twenty = tokens_of(20, 64), most = tokens_of(63, 64);
    open_store(16);
    store_seq seq = lend(6, false, NULL);
    KVT_OK(name_tail(seq, none, 0, ids, 3, 1, &ten, false, &a));
    KVT_FALSE(a.stood);
    KVT_TRUE(fix_audit(&f));
    KVT_EQ(written(1), 64);
    KVT_EQ(written(2), 10);
    KVT_EQ(fix_info(&f, a.cont).frontier, 138);
    KVT_EQ(usable_tail(1, 2, &most), 138);
    store_seq fork = fix_activate(&f, fix_from(a.cont, true, 135, 200, 10), &out);
    KVT_TRUE(out.n_copies == 1 && out.copies[0].src == 2 &&
             out.copies[0].columns == 7);                                 /* the page itself is no fork's */
    KVT_OK(name_tail(seq, a.cont, 2, ids + 2, 1, 1, &twenty, false, &b)); /* without `replace`, too: one has the page */
    KVT_EQ(store_cont_look(f.store, a.cont, &(struct kvd_continuation_info){ 0 }, NULL), STORE_E_STALE);
    KVT_EQ(written(2), 20);
    KVT_EQ(usable_tail(1, 2, &most), 148);
    KVT_TRUE(fix_audit(&f));
    KVT_OK(fix_round(&f, fork, KVD_NONE, 135, KVD_NONE, KVD_NONE, NULL));
    KVT_OK(store_finish(f.store, fork, FIX_LEASE, STORE_FINISH_RELEASE, NULL, 0, &a.cont,
                        (struct kvd_pool_view[KVD_MAX_POOLS]){ { 0 } }, &f.refusal));
    KVT_OK(name(seq, b.cont, 2, ids + 2, 2, 1, true, &c)); /* complete, and the next one with it */
    KVT_EQ(written(2), 64);
    KVT_EQ(usable(1, 4), 256);
    KVT_TRUE(fix_audit(&f));
    KVT_OK(name_tail(seq, c.cont, 4, ids + 4, 1, 1, &ten, true, &a));
    end(seq);
    KVT_EQ(fix_pool(&f, 0).allocated, 5);
    KVT_EQ(usable_tail(1, 4, &most), 266);
    uint32_t adopted;
    lend(2, true, &adopted);
    KVT_EQ(adopted, 4); /* a page that has columns left is copied by who goes on from it */
    close_store();
}

/* What moves such a continuation gets a copy: the page is the engine's. Then it is blank by the engine's word. */
static void eng_1_4_the_written_page_stays_the_engines(void) {
    struct store_lent_named a;
    struct store_activated out;
    const struct kvd_tail ten = tokens_of(10, 64), nine = tokens_of(9, 64);
    open_store(16);
    store_seq seq = lend(6, false, NULL);
    KVT_OK(name_tail(seq, none, 0, ids, 2, 1, &ten, false, &a));
    KVT_EQ(give(seq, ids + 1, 1, true), STORE_E_STATE);
    KVT_OK(store_shorten(f.store, a.cont, 73, &f.refusal));
    KVT_EQ(written(1), 9);
    KVT_TRUE(fix_audit(&f));
    KVT_EQ(usable_tail(1, 1, &ten), 73);
    store_seq moved = fix_activate(&f, fix_from(a.cont, false, 73, 100, 10), &out);
    KVT_TRUE(moved.bits && out.n_copies == 1 && out.copies[0].src == 1 && out.copies[0].dst != 1);
    KVT_TRUE(fix_audit(&f));
    KVT_EQ(name_tail(seq, none, 0, ids + 1, 1, 2, &ten, false, &a), STORE_E_NAME);
    KVT_OK(give(seq, ids + 1, 1, true));
    KVT_EQ(written(1), 0);
    KVT_OK(name_tail(seq, none, 0, ids + 1, 1, 2, &nine, false, &a)); /* less than a page */
    KVT_EQ(usable_tail(2, 0, &ten), 9);
    KVT_OK(move(a.cont, STORE_PLACE_HOST)); /* demoted, and it goes on all the same */
    KVT_OK(name_tail(seq, a.cont, 0, ids + 1, 1, 2, &ten, false, &a));
    KVT_FALSE(fix_info(&f, a.cont).demoted);
    KVT_EQ(usable_tail(2, 0, &ten), 10);
    KVT_TRUE(fix_audit(&f));
    close_store();
}

/* FIT-5: an equal one that stands takes the page's name, and what it was written on from goes. */
static void eng_1_written_pages_of_an_equal_chain(void) {
    struct store_lent_named a, b, made;
    const struct kvd_tail ten = tokens_of(10, 64), twenty = tokens_of(20, 64);
    open_store(0);
    store_seq seq = lend(6, false, NULL);
    KVT_OK(name_tail(seq, none, 0, ids, 2, 1, &twenty, false, &a));
    KVT_OK(name_tail(seq, none, 0, ids + 2, 2, 1, &twenty, false, &made));
    KVT_TRUE(made.stood && made.cont.bits == a.cont.bits);
    KVT_EQ(written(2) + written(3), 0);
    KVT_OK(name_tail(seq, none, 0, ids + 2, 2, 1, &ten, false, &b));
    KVT_FALSE(b.stood);
    KVT_OK(name_tail(seq, b.cont, 1, ids + 3, 1, 1, &twenty, false, &made));
    KVT_TRUE(made.stood && made.cont.bits == a.cont.bits);
    KVT_EQ(written(3), 0);
    KVT_EQ(store_cont_look(f.store, b.cont, &(struct kvd_continuation_info){ 0 }, NULL), STORE_E_STALE);
    KVT_TRUE(fix_audit(&f));
    close_store();
}

/* What a demoted and shortened continuation has in the arena covers columns that are another text's now: after a kill
 * they are nobody's. */
static void eng_2_a_restart_finds_what_was_written(void) {
    struct store_lent_named a, b;
    const struct kvd_tail ten = tokens_of(10, 64), other = tokens_of(12, 5), five = tokens_of(5, 64);
    for (int lives = 0; lives < 2; lives++)
        for (int grown = 0; grown < 3; grown++) { /* as it was copied; longer; cut, and longer by other tokens */
            open_store(16);
            store_seq seq = lend(8, false, NULL);
            KVT_OK(name_tail(seq, none, 0, ids, 3, 1, grown == 1 ? &five : &ten, false, &a));
            KVT_OK(move(a.cont, STORE_PLACE_BOTH));
            if (grown == 2) KVT_OK(store_shorten(f.store, a.cont, 133, &f.refusal));
            if (grown) KVT_OK(name_tail(seq, a.cont, 2, ids + 2, 1, 1, grown == 1 ? &ten : &other, false, &b));
            KVT_TRUE(fix_audit(&f));
            restart(16, lives);
            KVT_EQ(usable_tail(1, 2, grown == 2 ? &other : &ten), grown && !lives ? 128 : grown == 2 ? 140 : 138);
            KVT_TRUE(fix_audit(&f));
            close_store();
        }
}

/* SRV-2, ACT-5: refused, or short of something in the middle: nothing has changed. */
static void eng_1_written_pages_are_refused_in_words(void) {
    struct store_lent_named a, made;
    struct store_activated out;
    store_move m;
    const struct kvd_tail ten = tokens_of(10, 64), twenty = tokens_of(20, 64), other = tokens_of(20, 5);
    open_store(16);
    store_seq seq = lend(6, false, NULL);
    KVT_OK(name_tail(seq, none, 0, ids, 2, 1, &ten, false, &a));
    char *before = fix_dump(&f);
    refused(name_tail(seq, a.cont, 1, ids + 1, 1, 1, &ten, true, &made), STORE_E_NAME, "column 10", before);
    refused(name_tail(seq, a.cont, 1, ids + 1, 1, 1, &other, true, &made), STORE_E_NAME, "behind the same", before);
    refused(name_tail(seq, none, 0, ids + 1, 1, 1, &twenty, true, &made), STORE_E_NAME, "ends in it", before);
    refused(name_tail(seq, a.cont, 0, ids + 1, 1, 1, &twenty, true, &made), STORE_E_NAME, "ends in it", before);
    refused(name_tail(seq, a.cont, 1, (uint32_t[]){ 2, 1 }, 2, 1, &twenty, true, &made), STORE_E_NAME, "ends", before);
    for (uint32_t nth = 1; nth <= 2; nth++) {
        store_fail_acquisition(f.store, nth);
        int code = name_tail(seq, a.cont, 1, ids + 1, 1, 1, &twenty, true, &made);
        store_fail_acquisition(f.store, 0);
        refused(code, STORE_E_SHORT, "had", before);
    }
    free(before);
    const struct store_activation want = fix_from(a.cont, true, 70, 80, 1);
    KVT_OK(store_activate_begin(f.store, &want, &out, &f.refusal));
    before = fix_dump(&f);
    refused(name_tail(seq, a.cont, 1, ids + 1, 1, 1, &twenty, true, &made), STORE_E_BUSY, "copy", before);
    free(before);
    KVT_OK(fix_commit(&f, out.seq));
    KVT_OK(store_move_begin(f.store, a.cont, STORE_PLACE_BOTH, &m, &f.refusal));
    before = fix_dump(&f);
    refused(name_tail(seq, a.cont, 1, ids + 1, 1, 1, &twenty, true, &made), STORE_E_BUSY, "copy", before);
    free(before);
    KVT_OK(store_move_abort(f.store, m, &f.refusal));
    KVT_OK(name_tail(seq, a.cont, 1, ids + 1, 1, 1, &twenty, true, &made));
    KVT_TRUE(fix_audit(&f));
    close_store();
}

/* ---- against a model: pages by their content ---- */

struct chain {
    store_cont cont;
    uint32_t n, columns, content[CHAIN]; /* columns: of the last page */
    bool demoted;
};
struct world {
    uint64_t random;
    struct chain chain[24];
    uint32_t n_chains, contents;
    store_seq seq[2];
    bool lent[2][PAGES];
    uint32_t content[PAGES]; /* of a lent page; 0: blank */
    uint32_t named, freed, adopted, grown;
};

static uint32_t full(const struct chain *c) { return c->n - (c->columns < KVD_PAGE_TOKENS); }
static uint32_t frontier_of(const struct chain *c) { return c->n ? (c->n - 1) * KVD_PAGE_TOKENS + c->columns : 0; }

/* A text of its own for each page; none where it is complete. */
static struct kvd_tail tail_of(const struct chain *c) {
    struct kvd_tail tail = { .n = c->columns % KVD_PAGE_TOKENS };
    for (uint32_t i = 0; i < tail.n; i++) tail.tokens[i] = c->content[c->n - 1] * KVD_PAGE_TOKENS + i;
    return tail;
}

static uint32_t find_chain(const struct chain *c) {
    uint8_t digests[CHAIN][32];
    struct kvd_hit hits[4] = { 0 };
    struct store_found found = { 0 };
    const struct kvd_tail tail = tail_of(c);
    for (uint32_t k = 0; k < c->n; k++) fix_digest(c->content[k], 0, digests[k]);
    const struct store_query query = { .digests = (const uint8_t(*)[32])digests,
                                       .n = full(c),
                                       .max = 4,
                                       .prompt_tokens = (full(c) + 1) * KVD_PAGE_TOKENS,
                                       .token_page = full(c),
                                       .tokens = &tail };
    KVT_OK(store_find(f.store, &query, hits, &found, &f.refusal));
    return found.n ? hits[0].usable : 0;
}

static uint32_t below(struct world *w, uint32_t n) { return kvt_below(&w->random, n); }

static bool holds(const struct chain *c, uint32_t content) {
    for (uint32_t i = 0; i < c->n; i++)
        if (c->content[i] == content) return true;
    return false;
}

/* Somebody who is not demoted has it. */
static bool is_needed(const struct world *w, uint32_t content) {
    for (uint32_t i = 0; content && i < w->n_chains; i++)
        if (!w->chain[i].demoted && holds(&w->chain[i], content)) return true;
    return false;
}

static void drop_chain(struct world *w, uint32_t i) { w->chain[i] = w->chain[--w->n_chains]; }

static void places_of(const struct chain *c, uint32_t ret_ids[CHAIN]) {
    struct kvd_lent_page pages[CHAIN];
    uint8_t want[32];
    uint32_t n = 0;
    KVT_OK(store_read_chain(f.store, c->cont, 0, CHAIN, pages, &n, &f.refusal));
    KVT_EQ(n, full(c));
    KVT_EQ(store_cont_pages(f.store, c->cont, 0, ret_ids, CHAIN), c->n);
    for (uint32_t i = 0; i < n; i++) {
        KVT_EQ(ret_ids[i], pages[i].page);
        fix_digest(c->content[i], 0, want);
        KVT_EQ_MEM(pages[i].digest.bytes, want, 32);
    }
}

static void name_some(struct world *w, uint32_t who) {
    uint32_t n = 0, want = 1 + below(w, 3), at = below(w, PAGES), from = below(w, 24), first = 0;
    struct kvd_lent_page blank[4];
    struct store_lent_named made;
    if (w->n_chains == 20) return; /* each engine needs a descriptor, too (FIT-2) */
    for (uint32_t i = 0; i < PAGES && n < want; i++) {
        uint32_t id = (at + i) % PAGES;
        if (w->lent[who][id] && !w->content[id]) blank[n++].page = id;
    }
    struct chain made_of = { .n = 0 }, *source = from < w->n_chains ? &w->chain[from] : NULL;
    if (source) first = below(w, 2) ? full(source) : below(w, full(source) + 1);
    if (n == 0 || first + n > CHAIN) return;
    if (source) memcpy(made_of.content, source->content, first * sizeof made_of.content[0]);
    for (uint32_t i = 0; i < n; i++) {
        made_of.content[first + i] = ++w->contents;
        fix_digest(w->contents, 0, blank[i].digest.bytes);
    }
    made_of.n = first + n;
    made_of.columns = below(w, 2) ? KVD_PAGE_TOKENS : 1 + below(w, KVD_PAGE_TOKENS - 1);
    const struct kvd_tail tail = tail_of(&made_of);
    const struct store_lent_name ask = { .from = source ? source->cont : none,
                                         .first = first,
                                         .n = n,
                                         .pages = blank,
                                         .tail = &tail,
                                         .replace = below(w, 2) };
    int code = store_name_lent(f.store, w->seq[who], FIX_LEASE, &ask, &made, &f.refusal);
    if (!KVT_OK(code)) return;
    for (uint32_t i = 0; i < n; i++) w->content[blank[i].page] = made_of.content[first + i];
    if (ask.replace && source && first * KVD_PAGE_TOKENS == frontier_of(source)) drop_chain(w, from);
    made_of.cont = made.cont;
    w->chain[w->n_chains++] = made_of;
    w->named++;
}

/* More columns of a page, or all: the chain that ends there goes on under another handle. */
static void grow_one(struct world *w, uint32_t who) {
    if (!w->n_chains || w->n_chains == 20) return;
    struct chain *c = &w->chain[below(w, w->n_chains)];
    struct kvd_lent_page page = { KVD_NONE, { { 0 } } };
    for (uint32_t id = 0; id < PAGES; id++)
        if (w->lent[who][id] && w->content[id] == c->content[c->n - 1]) page.page = id;
    if (page.page == KVD_NONE || c->columns == KVD_PAGE_TOKENS) return;
    c->columns += 1 + below(w, KVD_PAGE_TOKENS - c->columns);
    fix_digest(c->content[c->n - 1], 0, page.digest.bytes);
    const struct kvd_tail tail = tail_of(c);
    const struct store_lent_name ask = { .from = c->cont, .first = c->n - 1, .n = 1, .pages = &page, .tail = &tail };
    struct store_lent_named made;
    if (!KVT_OK(store_name_lent(f.store, w->seq[who], FIX_LEASE, &ask, &made, &f.refusal))) return;
    KVT_EQ(store_cont_look(f.store, c->cont, &(struct kvd_continuation_info){ 0 }, NULL), STORE_E_STALE);
    c->cont = made.cont;
    c->demoted = false;
    w->grown++;
}

/* At a page boundary, or in what is written of the last page. What goes is still lent, and complete. */
static void shorten_one(struct world *w) {
    if (!w->n_chains) return;
    struct chain *c = &w->chain[below(w, w->n_chains)];
    uint32_t n = 1 + below(w, c->n), columns = n == c->n ? c->columns : KVD_PAGE_TOKENS;
    if (columns < KVD_PAGE_TOKENS) columns = 1 + below(w, columns);
    KVT_OK(store_shorten(f.store, c->cont, (n - 1) * KVD_PAGE_TOKENS + columns, &f.refusal));
    c->n = n;
    c->columns = columns;
}

static void free_one(struct world *w, uint32_t who) {
    uint32_t id = below(w, PAGES);
    for (uint32_t i = 0; i < PAGES && !w->lent[who][id]; i++) id = (id + 1) % PAGES;
    bool needed = is_needed(w, w->content[id]), mine = w->lent[who][id];
    KVT_EQ_I(give(w->seq[who], &id, 1, true), !mine ? STORE_E_ARGUMENT : needed ? STORE_E_STATE : STORE_OK);
    if (!mine || needed) return;
    w->freed += w->content[id] > 0;
    w->content[id] = 0;
}

static void return_one(struct world *w, uint32_t who) {
    uint32_t id = below(w, PAGES);
    KVT_EQ_I(give(w->seq[who], &id, 1, false), w->lent[who][id] ? STORE_OK : STORE_E_ARGUMENT);
    w->lent[who][id] = false;
}

static void move_one(struct world *w, enum store_place place) {
    if (!w->n_chains) return;
    struct chain *c = &w->chain[below(w, w->n_chains)];
    int code = move(c->cont, place);
    if (code == STORE_OK) c->demoted = place == STORE_PLACE_HOST;
    else KVT_EQ_I(code, STORE_E_SHORT);
}

static void release_one(struct world *w) {
    if (!w->n_chains) return;
    uint32_t i = below(w, w->n_chains);
    KVT_OK(store_release(f.store, w->chain[i].cont, &f.refusal));
    drop_chain(w, i);
}

/* By brute force: from the beginning of each chain as far as pages are on the device and nobody's. */
static uint32_t adoptable(const struct world *w, bool taken[PAGES]) {
    uint32_t n = 0, places[CHAIN];
    for (uint32_t i = 0; i < w->n_chains; i++) {
        places_of(&w->chain[i], places);
        for (uint32_t k = 0; k < full(&w->chain[i]) && places[k] != KVD_NONE; k++) {
            if (w->lent[0][places[k]] || w->lent[1][places[k]]) break;
            n += !taken[places[k]];
            taken[places[k]] = true;
        }
    }
    return n;
}

static void note_contents(struct world *w) {
    uint32_t places[CHAIN];
    for (uint32_t i = 0; i < w->n_chains; i++) {
        places_of(&w->chain[i], places);
        for (uint32_t k = 0; k < w->chain[i].n; k++)
            if (places[k] != KVD_NONE) w->content[places[k]] = w->chain[i].content[k];
    }
}

static void next_engine(struct world *w, uint32_t who, bool adopt) {
    bool taken[PAGES] = { false };
    uint32_t free = store_available(f.store, 0), pages = 1 + below(w, 12), adopted, row[PAGES];
    memset(w->lent[who], 0, sizeof w->lent[who]);
    if (w->seq[who].bits) end(w->seq[who]);
    w->seq[who].bits = 0;
    free = store_available(f.store, 0);
    if (free == 0) { /* without pages no engine comes, and nobody else gives any back */
        release_one(w);
        return;
    }
    uint32_t want = adopt ? adoptable(w, taken) : 0;
    w->seq[who] = lend(pages < free ? pages : free, adopt, &adopted);
    KVT_EQ(adopted, want);
    uint32_t n = store_seq_pages(f.store, w->seq[who], 0, row, PAGES);
    for (uint32_t i = 0; i < n; i++) {
        w->lent[who][row[i]] = true;
        w->content[row[i]] = 0;
        want -= taken[row[i]];
    }
    KVT_EQ(want, 0);
    note_contents(w);
    w->adopted += adopted;
}

/* What is lent has the content that the engine knows of, and every chain is found to its last token. */
static void look(const struct world *w) {
    uint32_t places[CHAIN];
    for (uint32_t i = 0; i < w->n_chains; i++) {
        const struct chain *c = &w->chain[i];
        places_of(c, places);
        for (uint32_t k = 0; k < c->n; k++)
            if (places[k] != KVD_NONE && (w->lent[0][places[k]] || w->lent[1][places[k]]))
                KVT_EQ(w->content[places[k]], c->content[k]);
        KVT_EQ(find_chain(c), frontier_of(c));
        KVT_EQ(fix_info(&f, c->cont).demoted, c->demoted);
    }
}

static void step(struct world *w) {
    uint32_t who = below(w, 2), what = below(w, 24);
    if (!w->seq[who].bits || what == 0) next_engine(w, who, below(w, 4) > 0);
    else if (what < 8) name_some(w, who);
    else if (what < 13) free_one(w, who);
    else if (what < 14) return_one(w, who);
    else if (what < 17) move_one(w, STORE_PLACE_HOST);
    else if (what < 18) move_one(w, STORE_PLACE_DEVICE);
    else if (what < 21) grow_one(w, who);
    else if (what < 22) shorten_one(w);
    else release_one(w);
}

/* After the restart every chain is as long as what was recorded of it: all of it, or up to the first page that the
 * arena has not. */
static void restart_and_look(struct world *w, uint32_t arena, bool lives) {
    uint32_t kept[24];
    for (uint32_t i = 0; i < w->n_chains; i++) {
        const struct cont *cont = cont_find(f.store, w->chain[i].cont);
        for (kept[i] = 0; kept[i] < w->chain[i].n; kept[i]++) {
            const struct page *page = &f.store->pool[0].pages[space_entry(f.store, &cont->space[0], kept[i])];
            if (!lives && !page_is_current(page)) break;
        }
    }
    restart(arena, lives);
    for (uint32_t i = 0; i < w->n_chains; i++) {
        const struct chain *c = &w->chain[i];
        KVT_EQ(find_chain(c), kept[i] == c->n ? frontier_of(c) : kept[i] * KVD_PAGE_TOKENS);
    }
}

static bool has_seen_all(const struct world *w) { return w->named > 10 && w->freed && w->adopted && w->grown; }

static void run_model(uint32_t arena, bool lives) {
    struct world w = { .random = kvt_seed() + arena };
    open_store(arena);
    for (uint32_t i = 0; i < 1000 || (!has_seen_all(&w) && i < 100000); i++) {
        step(&w);
        if (!KVT_TRUE(fix_audit(&f))) break;
        look(&w);
    }
    KVT_TRUE(has_seen_all(&w));
    restart_and_look(&w, arena, lives);
    close_store();
}

static void eng_1_2_3_4_model(void) { run_model(64, true); }
static void eng_1_2_3_4_model_of_a_small_arena(void) { run_model(8, false); }

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(eng_1_2_3_named_pages_outlive_the_engine),
                                             KVT_CASE(eng_4_nothing_that_is_needed_is_overwritten),
                                             KVT_CASE(eng_4_forks_and_engines_spare_each_other),
                                             KVT_CASE(eng_1_an_equal_chain_stands),
                                             KVT_CASE(eng_1_refusals),
                                             KVT_CASE(eng_1_nothing_is_done_by_half),
                                             KVT_CASE(eng_2_a_restart_finds_what_was_named),
                                             KVT_CASE(eng_1_a_page_is_written_up_to_a_column),
                                             KVT_CASE(eng_1_4_the_written_page_stays_the_engines),
                                             KVT_CASE(eng_1_written_pages_of_an_equal_chain),
                                             KVT_CASE(eng_2_a_restart_finds_what_was_written),
                                             KVT_CASE(eng_1_written_pages_are_refused_in_words),
                                             KVT_CASE(eng_1_2_3_4_model),
                                             KVT_CASE(eng_1_2_3_4_model_of_a_small_arena),
                                             { 0 } };
    return kvt_main("store lent", cases, argc, argv);
}
