/* SPDX-License-Identifier: Apache-2.0
 *
 * What the cold tier reads of the store: which continuations were demoted, their pieces with names, and the bytes that
 * stay while they are read. COLD-1, COLD-4.
 */
#include "store_fixture.h"

static struct fix f;
static struct store_refusal refusal;

static struct store_config tiers(bool state) {
    struct store_config c = fix_config(state ? GEOM_OFF : GEOM_MTP);
    c.host_bytes = 64 * 4096;
    c.host_stride[0] = c.host_stride[1] = 4096;
    c.has_state = state;
    c.state_slots = state ? 4 : 0;
    c.host_state_stride = state ? 8192 : 0;
    return c;
}

static void copy_all(struct store_transition of) {
    struct store_copy copy;
    uint64_t cursor = 0;
    while (store_next_copies(f.store, of, &cursor, &copy, 1))
        if (copy.kind == STORE_COPY_PAGE_OUT || copy.kind == STORE_COPY_STATE_OUT)
            store_copied_out(f.store, copy.replica, copy.host + 1);
}

static void move(store_cont cont, enum store_place place) {
    store_move m;
    KVT_EQ(store_move_begin(f.store, cont, place, &m, &refusal), STORE_OK);
    copy_all((struct store_transition){ true, m.bits });
    KVT_EQ(store_move_commit(f.store, m, &refusal), STORE_OK);
}

static uint64_t occupied(void) {
    struct kvd_stats s;
    store_get_stats(f.store, &s);
    return s.host_occupied;
}

/* 300 tokens of chain 3: four pages and a tail of 44. */
static store_cont demoted_one(bool state) {
    store_seq seq = fix_activate(&f, fix_root(300, 10, 0), NULL);
    KVT_TRUE(fix_fill(&f, seq, 300, 3));
    if (state) {
        struct store_round_item item = fix_item(seq);
        struct store_round_result result;
        item.state_frontier = 300;
        store_round(f.store, &item, 1, &result);
    }
    store_cont cont = fix_retain(&f, seq, 300);
    move(cont, STORE_PLACE_HOST);
    return cont;
}

/* Newest first, each once, with the time; what is more than 1,024 is forgotten, the oldest first. */
static void cold_4_demoted_lately(void) {
    struct store_config c = tiers(false);
    store_cont taken;
    uint64_t at, forgotten;
    fix_open(&f, &c);
    KVT_FALSE(store_take_demoted(f.store, &taken, &at));
    store_set_time(f.store, 100);
    store_cont a = demoted_one(false);
    store_set_time(f.store, 200);
    store_cont b = fix_cont(&f, 64, 4);
    move(b, STORE_PLACE_HOST);
    KVT_EQ(store_demoted_waiting(f.store, &forgotten), 2);
    KVT_TRUE(store_take_demoted(f.store, &taken, &at) && taken.bits == b.bits && at == 200);
    KVT_TRUE(store_take_demoted(f.store, &taken, &at) && taken.bits == a.bits && at == 100);
    KVT_FALSE(store_take_demoted(f.store, &taken, &at));
    for (uint32_t i = 0; i < LATELY_LIMIT + 3; i++) {
        move(b, STORE_PLACE_DEVICE);
        store_set_time(f.store, 1000 + i);
        move(b, STORE_PLACE_HOST);
    }
    KVT_EQ(store_demoted_waiting(f.store, &forgotten), LATELY_LIMIT);
    KVT_EQ(forgotten, 3);
    for (uint32_t i = LATELY_LIMIT + 3; i-- > 3;) KVT_TRUE(store_take_demoted(f.store, &taken, &at) && at == 1000 + i);
    KVT_FALSE(store_take_demoted(f.store, &taken, &at));
    fix_close(&f);
}

static void check_digest(const struct store_piece *piece, uint32_t page) {
    uint8_t digest[32];
    fix_digest(3, page, digest);
    KVT_EQ_MEM(piece->digest.bytes, digest, 32);
}

/* COLD-1: pages of all pools by the digest of the Main page, the tail by what is before it and its tokens. */
static void cold_1_pieces_have_names(void) {
    struct store_config c = tiers(false);
    struct store_piece piece;
    uint64_t cursor = 0;
    uint32_t released = 0;
    fix_open(&f, &c);
    store_cont cont = demoted_one(false);
    for (uint32_t i = 0; i < 10; i++) {
        KVT_NEED(store_read_begin(f.store, cont, &cursor, &piece));
        KVT_EQ(piece.copy.pool, i % 2);
        KVT_EQ(piece.copy.checksum, piece.copy.host + 1);
        KVT_EQ(piece.kind, i < 8 ? STORE_PIECE_PAGE : STORE_PIECE_TAIL);
        KVT_EQ(piece.copy.columns, i < 8 ? 64 : 44);
        KVT_EQ(piece.tail.n, i < 8 ? 0 : 44);
        check_digest(&piece, i < 8 ? i / 2 : 3);
        fix_audit(&f);
        KVT_FALSE(store_read_begin(f.store, cont, &(uint64_t){ 0 }, &piece)); /* one at a time */
        KVT_FALSE(store_read_end(f.store, true, &released));
    }
    KVT_FALSE(store_read_begin(f.store, cont, &cursor, &piece));
    KVT_FALSE(store_read_begin(f.store, cont, &cursor, &piece));
    KVT_FALSE(store_read_end(f.store, true, &released));
    KVT_EQ(store_release(f.store, cont, &refusal), STORE_OK);
    KVT_FALSE(store_read_begin(f.store, cont, &(uint64_t){ 0 }, &piece));
    fix_close(&f);
}

/* A state image comes last, with the name of what it ends; what is on the device alone does not come. */
static void cold_1_images_have_names(void) {
    struct store_config c = tiers(true);
    struct store_piece piece;
    uint64_t cursor = 0;
    uint32_t released = 0, n = 0;
    fix_open(&f, &c);
    store_cont alone = fix_cont(&f, 64, 5);
    KVT_FALSE(store_read_begin(f.store, alone, &cursor, &piece));
    store_cont cont = demoted_one(true);
    for (cursor = 0; store_read_begin(f.store, cont, &cursor, &piece); n++) store_read_end(f.store, true, &released);
    KVT_EQ(n, 6);
    KVT_EQ(piece.kind, STORE_PIECE_IMAGE);
    KVT_EQ(piece.copy.bytes, 8192);
    KVT_EQ(piece.tail.n, 44);
    check_digest(&piece, 3);
    fix_close(&f);
}

/* COLD-4: what two read is given back by the last of them, and never before; nothing else waits for either. */
static void cold_4_bytes_stay_while_they_are_read(void) {
    struct store_config c = tiers(false);
    for (int first = 0; first < 2; first++) {
        struct store_piece piece;
        struct store_copy copy;
        uint64_t cursor = 0;
        uint32_t released = 0;
        fix_open(&f, &c);
        store_cont cont = demoted_one(false);
        KVT_TRUE(store_read_begin(f.store, cont, &cursor, &piece));
        while (store_scrub_begin(f.store, &copy) && copy.host != piece.copy.host)
            store_scrub_end(f.store, true, &released);
        KVT_EQ(copy.host, piece.copy.host);
        KVT_EQ(store_release(f.store, cont, &refusal), STORE_OK);
        KVT_EQ(occupied(), 4096);
        fix_audit(&f);
        KVT_FALSE(first ? store_scrub_end(f.store, false, &released) : store_read_end(f.store, false, &released));
        KVT_EQ(occupied(), 4096);
        fix_audit(&f);
        KVT_FALSE(first ? store_read_end(f.store, false, &released) : store_scrub_end(f.store, false, &released));
        KVT_EQ(occupied(), 0);
        fix_close(&f);
    }
}

/* COLD-3: bytes that do not match their checksum are damage here as for the scrub. */
static void cold_3_damage_is_found(void) {
    struct store_config c = tiers(false);
    struct store_piece piece;
    uint64_t cursor = 4;
    uint32_t released = 0;
    fix_open(&f, &c);
    store_cont cont = demoted_one(false);
    KVT_TRUE(store_read_begin(f.store, cont, &cursor, &piece));
    KVT_TRUE(store_read_end(f.store, false, &released));
    KVT_EQ(fix_info(&f, cont).frontier, 128);
    cursor = 8;
    KVT_FALSE(store_read_begin(f.store, cont, &cursor, &piece));
    fix_close(&f);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = {
        KVT_CASE(cold_4_demoted_lately),    KVT_CASE(cold_1_pieces_have_names),
        KVT_CASE(cold_1_images_have_names), KVT_CASE(cold_4_bytes_stay_while_they_are_read),
        KVT_CASE(cold_3_damage_is_found),   { 0 }
    };
    return kvt_main("store_read", cases, argc, argv);
}
