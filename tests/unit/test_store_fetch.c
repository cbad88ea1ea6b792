/* SPDX-License-Identifier: Apache-2.0
 *
 * What comes from the cold tier: a continuation that nobody sees before its bytes are there, and that is as long as
 * they are. COLD-3, FIT-5, CONT-4, GRP-4, SRV-2.
 */
#include "store_fixture.h"

#define STRIDE 4096u

static struct fix f;
static struct store_refusal refusal;
static uint8_t chain[8][32];
static const struct kvd_root root = { .digest = { .bytes = { 5 } }, .label = "told" };

static struct store_config tiers(bool state) {
    struct store_config c = fix_config(state ? GEOM_OFF : GEOM_MTP);
    c.host_bytes = 16 * STRIDE;
    c.host_stride[0] = c.host_stride[1] = STRIDE;
    c.has_state = state;
    c.state_slots = state ? 4 : 0;
    c.host_state_stride = state ? 2 * STRIDE : 0;
    return c;
}

static void open_store(bool state) {
    struct store_config c = tiers(state);
    fix_open(&f, &c);
    fix_chain(3, 8, 3, 8, chain);
}

static struct store_fetch want_pages(store_cont from, uint32_t first, uint32_t n, const struct kvd_tail *tail) {
    return (struct store_fetch){ .root = root,
                                 .from = from,
                                 .first = first,
                                 .n = n,
                                 .digests = (const uint8_t(*)[32])chain + first,
                                 .tail = tail,
                                 .retention = 2,
                                 .tag = 9 };
}

/* The first `n` pieces get their bytes. Returns how many pieces there were. */
static uint32_t write_pieces(store_cont cont, uint32_t n) {
    struct store_piece piece;
    uint64_t cursor = 0;
    uint32_t seen = 0;
    while (store_fetch_next(f.store, cont, &cursor, &piece))
        if (seen++ < n) store_copied_out(f.store, piece.copy.replica, piece.copy.host + 7);
    return seen;
}

static store_cont fetch(struct store_fetch want, uint32_t n, uint32_t *ret_frontier) {
    struct store_fetched got = { { 0 }, 0 };
    store_cont cont = { 0 };
    KVT_EQ(store_fetch_begin(f.store, &want, &cont, &refusal), STORE_OK);
    KVT_TRUE(fix_audit(&f));
    write_pieces(cont, n);
    KVT_EQ(store_fetch_commit(f.store, cont, &got, &refusal), STORE_OK);
    KVT_TRUE(fix_audit(&f));
    if (ret_frontier) *ret_frontier = got.frontier;
    return got.cont;
}

static struct kvd_stats stats(void) {
    struct kvd_stats s;
    store_get_stats(f.store, &s);
    return s;
}

static uint32_t hits(uint32_t pages) {
    struct kvd_hit hit[4];
    const struct store_query query = { .root = root.digest,
                                       .digests = (const uint8_t(*)[32])chain,
                                       .n = pages,
                                       .max = 4,
                                       .prompt_tokens = (pages + 1) * 64,
                                       .token_page = pages };
    struct store_found found = { 0 };
    KVT_EQ(store_find(f.store, &query, hit, &found, &refusal), STORE_OK);
    return found.n ? hit[0].usable : 0;
}

/* COLD-3: hidden until it is whole; then it is found, is demoted, and an activation brings it to the device. */
static void cold_3_hidden_until_it_is_whole(void) {
    struct store_piece piece;
    struct store_fetched got;
    store_cont cont;
    uint64_t cursor = 0;
    uint32_t n = 0;
    open_store(false);
    struct store_fetch want = want_pages((store_cont){ 0 }, 0, 3, fix_tail(3 * 64 + 20));
    KVT_EQ(store_fetch_begin(f.store, &want, &cont, &refusal), STORE_OK);
    while (store_fetch_next(f.store, cont, &cursor, &piece)) {
        uint32_t block = n / 2;
        KVT_EQ(piece.copy.pool, n % 2);
        KVT_EQ(piece.copy.bytes, STRIDE);
        KVT_EQ(piece.kind, block == 3 ? STORE_PIECE_TAIL : STORE_PIECE_PAGE);
        KVT_EQ(piece.copy.columns, block == 3 ? 20 : 64);
        KVT_EQ(piece.tail.n, block == 3 ? 20 : 0);
        KVT_EQ(memcmp(piece.digest.bytes, chain[block < 3 ? block : 2], 32), 0);
        n++;
    }
    KVT_EQ(n, 8);
    KVT_EQ(hits(3), 0);
    KVT_EQ(stats().host_occupied, 8 * STRIDE);
    KVT_EQ(store_release(f.store, cont, &refusal), STORE_E_BUSY);
    KVT_TRUE(fix_audit(&f));
    KVT_EQ(write_pieces(cont, 8), 8);
    KVT_EQ(store_fetch_commit(f.store, cont, &got, &refusal), STORE_OK);
    KVT_EQ(store_fetch_commit(f.store, cont, &got, &refusal), STORE_E_STALE);
    KVT_EQ(got.frontier, 212);
    KVT_EQ(hits(3), 192);
    struct kvd_continuation_info info = fix_info(&f, got.cont);
    KVT_TRUE(info.demoted && info.tail_named && info.retention == 2);
    KVT_EQ_STR(info.root.label, "told");
    KVT_EQ(store_tag(f.store, got.cont), 9);
    struct store_activation a = fix_from(got.cont, true, 192, 200, 10);
    a.root = root;
    struct store_activated made;
    KVT_EQ(store_activate_begin(f.store, &a, &made, &refusal), STORE_OK);
    KVT_EQ(made.restored[0], 3);
    KVT_EQ(fix_commit(&f, made.seq), STORE_OK);
    fix_close(&f);
}

/* COLD-2: it ends before the first piece that did not come, of whichever pool; with none of use it is gone. */
static void cold_2_a_gap_shortens(void) {
    for (uint32_t came = 0; came < 8; came++) {
        uint32_t frontier;
        open_store(false);
        store_cont c = fetch(want_pages((store_cont){ 0 }, 0, 4, NULL), came, &frontier);
        KVT_EQ(frontier, came / 2 * 64);
        KVT_EQ(c.bits != 0, frontier > 0);
        KVT_EQ(hits(4), frontier);
        KVT_EQ(stats().host_occupied, came / 2 * 2 * STRIDE);
        if (c.bits) KVT_EQ(store_release(f.store, c, &refusal), STORE_OK);
        KVT_EQ(stats().host_occupied, 0);
        fix_close(&f);
    }
}

/* CONT-4: a state image goes with its frontier, or all is lost. */
static void cont_4_images(void) {
    for (uint32_t came = 2; came <= 4; came++) {
        uint32_t frontier;
        open_store(true);
        store_cont c = fetch(want_pages((store_cont){ 0 }, 0, 2, fix_tail(130)), came, &frontier);
        KVT_EQ(frontier, came == 4 ? 130 : 0);
        KVT_EQ(c.bits != 0, came == 4);
        KVT_EQ(stats().host_images, came == 4);
        KVT_EQ(stats().host_occupied, came == 4 ? 5 * STRIDE : 0);
        fix_close(&f);
    }
}

/* What is there already is shared, wherever it is; what it is of need not be. */
static void what_is_there_is_shared(void) {
    uint32_t frontier;
    open_store(false);
    store_cont a = fetch(want_pages((store_cont){ 0 }, 0, 2, NULL), 4, NULL);
    store_cont b = fetch(want_pages(a, 2, 2, NULL), 4, &frontier);
    KVT_EQ(frontier, 256);
    KVT_EQ(stats().host_occupied, 8 * STRIDE);
    KVT_TRUE(fix_info(&f, b).demoted);
    KVT_EQ(store_release(f.store, a, &refusal), STORE_OK);
    KVT_EQ(hits(4), 256);
    /* On the device alone: it stays there. */
    struct store_activation root_one = fix_root(128, 10, 0);
    root_one.root = root;
    store_seq seq = fix_activate(&f, root_one, NULL);
    KVT_TRUE(fix_fill(&f, seq, 128, 4));
    store_cont c = fix_retain(&f, seq, 128);
    fix_chain(4, 8, 4, 8, chain);
    store_cont d = fetch(want_pages(c, 2, 1, NULL), 2, &frontier);
    KVT_EQ(frontier, 192);
    KVT_FALSE(fix_info(&f, d).demoted);
    KVT_EQ(store_release(f.store, c, &refusal), STORE_OK);
    KVT_EQ(hits(3), 192);
    KVT_EQ(fix_info(&f, d).device_pages[0], 2);
    struct store_fetch other = want_pages(d, 3, 1, NULL);
    other.root.digest.bytes[0] = 6;
    KVT_EQ(store_fetch_begin(f.store, &other, &c, &refusal), STORE_E_NAME);
    other = want_pages(d, 4, 1, NULL);
    KVT_EQ(store_fetch_begin(f.store, &other, &c, &refusal), STORE_E_RANGE);
    fix_close(&f);
}

/* COLD-3: what was shared and is found damaged meanwhile ends it. */
static void cold_3_damage_beside_it(void) {
    struct store_piece piece;
    struct store_fetched got;
    store_cont cont;
    uint64_t cursor = 2 * 1;
    uint32_t released;
    open_store(false);
    store_cont a = fetch(want_pages((store_cont){ 0 }, 0, 2, NULL), 4, NULL);
    struct store_fetch want = want_pages(a, 2, 2, NULL);
    KVT_EQ(store_fetch_begin(f.store, &want, &cont, &refusal), STORE_OK);
    KVT_TRUE(store_read_begin(f.store, a, &cursor, &piece)); /* block 1 of Main */
    KVT_TRUE(store_read_end(f.store, false, &released));
    KVT_TRUE(fix_audit(&f));
    write_pieces(cont, 4);
    KVT_EQ(store_fetch_commit(f.store, cont, &got, &refusal), STORE_OK);
    KVT_EQ(got.frontier, 64);
    KVT_EQ(hits(4), 64);
    fix_close(&f);
}

/* FIT-5: the same that comes twice is there once. */
static void fit_5_twice_is_once(void) {
    uint32_t frontier;
    open_store(false);
    store_cont a = fetch(want_pages((store_cont){ 0 }, 0, 2, fix_tail(140)), 6, NULL);
    store_cont b = fetch(want_pages((store_cont){ 0 }, 0, 2, fix_tail(140)), 6, &frontier);
    KVT_EQ(a.bits, b.bits);
    KVT_EQ(frontier, 140);
    KVT_EQ(stats().host_occupied, 6 * STRIDE);
    fix_close(&f);
}

/* GRP-4: of a window pool the window comes, and a shorter one that lacks its own is of no use. */
static void grp_4_windows(void) {
    for (uint32_t came = 4; came <= 6; came++) {
        struct store_config c = tiers(false);
        uint32_t frontier;
        c.backend = GEOM_OFF;
        c.more_pools = 1;
        c.pool_pages[1] = 8;
        c.host_stride[1] = STRIDE;
        c.window[1] = (struct store_window){ .tokens = 65 };
        fix_open(&f, &c);
        fix_chain(3, 8, 3, 8, chain);
        store_cont cont = fetch(want_pages((store_cont){ 0 }, 0, 4, NULL), came, &frontier);
        /* Blocks 0 to 3 of Main and 3 of the window: five pieces. */
        KVT_EQ(frontier, came >= 5 ? 256 : 0);
        if (cont.bits) KVT_EQ(fix_info(&f, cont).pages[1], 1);
        fix_close(&f);
    }
}

/* SRV-2: whatever is short at whichever step, nothing has changed; and an abort leaves nothing. */
static void srv_2_all_or_nothing(void) {
    store_cont cont;
    uint32_t steps = 0;
    open_store(false);
    struct store_fetch want = want_pages((store_cont){ 0 }, 0, 3, fix_tail(200));
    char *before = fix_dump(&f);
    for (uint32_t n = 1;; n++, steps++) {
        store_fail_acquisition(f.store, n);
        int rc = store_fetch_begin(f.store, &want, &cont, &refusal);
        if (rc == STORE_OK) break;
        KVT_EQ(rc, STORE_E_SHORT);
        char *now = fix_dump(&f);
        KVT_EQ_STR(now, before);
        free(now);
        KVT_TRUE(fix_audit(&f));
    }
    store_fail_acquisition(f.store, 0);
    KVT_EQ(steps, 6);
    store_cont second;
    KVT_EQ(store_fetch_begin(f.store, &want, &second, &refusal), STORE_E_SHORT);
    KVT_EQ(refusal.subject, STORE_S_MOVE);
    write_pieces(cont, 3);
    KVT_EQ(store_fetch_abort(f.store, cont, &refusal), STORE_OK);
    KVT_EQ(store_fetch_abort(f.store, cont, &refusal), STORE_E_STALE);
    KVT_EQ(stats().host_occupied, 0);
    KVT_EQ(stats().continuations, 0);
    free(before);
    /* More than the arena holds. */
    want = want_pages((store_cont){ 0 }, 0, 7, NULL);
    (void)fetch(want_pages((store_cont){ 0 }, 0, 2, NULL), 4, NULL);
    KVT_EQ(store_fetch_begin(f.store, &want, &cont, &refusal), STORE_E_SHORT);
    KVT_EQ(refusal.subject, STORE_S_ARENA);
    KVT_EQ(refusal.asked, 14 * STRIDE);
    KVT_EQ(refusal.had, 12 * STRIDE);
    want = want_pages((store_cont){ 0 }, 0, 8, fix_tail(513));
    KVT_EQ(store_fetch_begin(f.store, &want, &cont, &refusal), STORE_E_RANGE);
    fix_close(&f);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(cold_3_hidden_until_it_is_whole),
                                             KVT_CASE(cold_2_a_gap_shortens),
                                             KVT_CASE(cont_4_images),
                                             KVT_CASE(what_is_there_is_shared),
                                             KVT_CASE(cold_3_damage_beside_it),
                                             KVT_CASE(fit_5_twice_is_once),
                                             KVT_CASE(grp_4_windows),
                                             KVT_CASE(srv_2_all_or_nothing),
                                             { 0 } };
    return kvt_main("store_fetch", cases, argc, argv);
}
