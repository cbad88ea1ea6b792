/* SPDX-License-Identifier: Apache-2.0
 *
 * Two tiers, small: what a prefetch and its end do to rest, what counts as restored, what scrub may and may not
 * disturb, and which continuations damage has taken. PAGE-3, PAGE-7, CONT-1, HOST-2.
 */
#include "store_fixture.h"

static struct fix f;
static struct store_refusal refusal;

static struct store_config tiers(bool state) {
    struct store_config c = fix_config(GEOM_OFF);
    c.host_bytes = 64 * 4096;
    c.host_stride[0] = 4096;
    c.has_state = state;
    c.state_slots = state ? 4 : 0;
    c.host_state_stride = state ? 8192 : 0;
    return c;
}

/* All copies of the current stage are made; checksums are the offsets. */
static void copies(struct store_transition of) {
    struct store_copy copy;
    uint64_t cursor = 0;
    while (store_next_copies(f.store, of, &cursor, &copy, 1))
        if (copy.kind == STORE_COPY_PAGE_OUT || copy.kind == STORE_COPY_STATE_OUT)
            store_copied_out(f.store, copy.replica, copy.host + 1);
}

static int move(store_cont cont, enum store_place place) {
    store_move m;
    int code = store_move_begin(f.store, cont, place, &m, &refusal);
    if (code) return code;
    do copies((struct store_transition){ true, m.bits });
    while ((code = store_move_commit(f.store, m, &refusal)) == STORE_MORE);
    return code;
}

static struct kvd_stats stats(void) {
    struct kvd_stats s;
    store_get_stats(f.store, &s);
    return s;
}

/* What a prefetch brings stays; the continuation is demoted again where the prefetch is given up. */
static void prefetch_of_what_rests(void) {
    struct store_config c = tiers(false);
    fix_open(&f, &c);
    store_cont cont = fix_cont(&f, 300, 1);
    KVT_EQ(move(cont, STORE_PLACE_HOST), STORE_OK);
    KVT_TRUE(fix_info(&f, cont).demoted);
    KVT_EQ(fix_pool(&f, 0).allocated, 0);
    store_move m;
    KVT_EQ(store_move_begin(f.store, cont, STORE_PLACE_DEVICE, &m, &refusal), STORE_OK);
    fix_audit(&f);
    KVT_EQ(store_move_abort(f.store, m, &refusal), STORE_OK);
    KVT_TRUE(fix_info(&f, cont).demoted);
    KVT_EQ(fix_pool(&f, 0).allocated, 0);
    fix_audit(&f);
    KVT_EQ(move(cont, STORE_PLACE_DEVICE), STORE_OK);
    KVT_FALSE(fix_info(&f, cont).demoted);
    KVT_EQ(fix_info(&f, cont).device_pages[0], 5);
    KVT_EQ(fix_info(&f, cont).host_pages[0], 5);
    fix_close(&f);
}

/* PAGE-6: what a move in flight copies stays mapped when its sequence is cut, and goes when the move has
 * ended. */
static void copied_pages_stay_mapped(void) {
    struct store_config c = tiers(false);
    struct store_round_result r;
    store_move m;
    fix_open(&f, &c);
    store_cont cont = fix_cont(&f, 128, 1);
    KVT_EQ(store_move_begin(f.store, cont, STORE_PLACE_HOST, &m, &refusal), STORE_OK);
    store_seq seq = fix_activate(&f, fix_from(cont, false, 128, 128, 1), NULL);
    KVT_OK(fix_round(&f, seq, KVD_NONE, 0, 0, KVD_NONE, &r));
    KVT_EQ(r.pool[0].membership, 2);
    fix_audit(&f);
    KVT_EQ(store_move_abort(f.store, m, &refusal), STORE_OK);
    KVT_OK(fix_round(&f, seq, KVD_NONE, KVD_NONE, 0, KVD_NONE, &r));
    KVT_EQ(r.pool[0].membership, 0);
    fix_close(&f);
}

/* A tail that is read from the host counts as every other page, in plan, lookup and answer. */
static void restored_counts_the_tail(void) {
    struct store_config c = tiers(false);
    struct store_activation want;
    struct store_activated made;
    struct kvd_plan plan;
    fix_open(&f, &c);
    store_cont cont = fix_cont(&f, 300, 1);
    KVT_EQ(move(cont, STORE_PLACE_HOST), STORE_OK);
    want = fix_from(cont, true, 300, 320, 1);
    KVT_EQ(store_plan_activation(f.store, &want, &plan, &refusal), STORE_OK);
    KVT_EQ(plan.restore_pages[0], 5);
    KVT_EQ(store_activate_begin(f.store, &want, &made, &refusal), STORE_OK);
    KVT_EQ(made.restored[0], 5);
    struct store_work work;
    KVT_EQ(store_get_work(f.store, (struct store_transition){ .bits = made.seq.bits }, &work), STORE_OK);
    KVT_EQ(work.copies_in, 5);
    KVT_EQ(fix_commit(&f, made.seq), STORE_OK);
    fix_close(&f);
}

/* Every replica comes once in a round, pages and images; rounds follow each other. */
static void scrub_sees_all(void) {
    struct store_config c = tiers(true);
    struct store_copy copy;
    uint32_t released = 0, pages = 0, images = 0;
    fix_open(&f, &c);
    store_seq seq = fix_activate(&f, fix_root(256, 10, 0), NULL);
    KVT_TRUE(fix_fill(&f, seq, 256, 3));
    struct store_round_item item = fix_item(seq);
    struct store_round_result result;
    item.state_frontier = 256;
    store_round(f.store, &item, 1, &result);
    store_cont cont = fix_retain(&f, seq, 256);
    KVT_FALSE(store_scrub_begin(f.store, &copy));
    KVT_EQ(move(cont, STORE_PLACE_HOST), STORE_OK);
    for (int round = 0; round < 2; round++)
        while (store_scrub_begin(f.store, &copy)) {
            if (!copy.bytes) continue;
            KVT_EQ(copy.checksum, copy.host + 1);
            pages += copy.bytes == 4096;
            images += copy.bytes == 8192;
            fix_audit(&f);
            KVT_FALSE(store_scrub_end(f.store, true, &released));
        }
    KVT_EQ(pages, 2 * 4);
    KVT_EQ(images, 2);
    /* What is released under the reader is no damage, and its place is given back afterwards. */
    for (int replica = 0; replica < 5; replica++)
        KVT_TRUE(store_scrub_begin(f.store, &copy) && !store_scrub_end(f.store, true, &released));
    KVT_FALSE(store_scrub_begin(f.store, &copy));
    while (store_scrub_begin(f.store, &copy) && copy.bytes != 8192) store_scrub_end(f.store, true, &released);
    KVT_EQ(copy.bytes, 8192);
    KVT_EQ(store_release(f.store, cont, &refusal), STORE_OK);
    fix_audit(&f);
    KVT_EQ(stats().host_images, 0);
    KVT_EQ(stats().host_occupied, 8192);
    KVT_FALSE(store_scrub_end(f.store, false, &released));
    KVT_EQ(stats().host_occupied, 0);
    KVT_EQ(stats().damaged_replicas, 0);
    fix_close(&f);
}

/* A page under the reader keeps its bytes, and that is all: it goes, and so does its continuation. */
static void scrub_keeps_nobody(void) {
    struct store_config c = tiers(false);
    struct store_copy copy;
    uint32_t released = 0, dropped[KVD_MAX_POOLS];
    fix_open(&f, &c);
    store_cont cont = fix_cont(&f, 320, 1), other = fix_cont(&f, 128, 2);
    KVT_EQ(move(cont, STORE_PLACE_BOTH), STORE_OK);
    KVT_TRUE(store_scrub_begin(f.store, &copy));
    KVT_EQ(store_drop_replica(f.store, cont, KVD_TIER_HOST, dropped, &refusal), STORE_OK);
    KVT_EQ(dropped[0], 5);
    fix_audit(&f);
    KVT_EQ(stats().host_occupied, 4096);
    KVT_FALSE(store_scrub_end(f.store, false, &released)); /* gone, so this is no damage */
    KVT_EQ(stats().host_occupied, 0);
    KVT_EQ(move(other, STORE_PLACE_HOST), STORE_OK);
    KVT_TRUE(store_scrub_begin(f.store, &copy));
    KVT_EQ(store_release(f.store, other, &refusal), STORE_OK);
    fix_audit(&f);
    KVT_EQ(stats().host_occupied, 4096);
    (void)store_scrub_end(f.store, true, &released);
    KVT_EQ(stats().host_occupied, 0);
    fix_close(&f);
}

/* PAGE-7: a state image whose host copy was found wrong while somebody was reading it has none: the slot is not given
 * up for it. */
static void wrong_image_is_no_replica(void) {
    for (uint32_t abort = 0; abort < 2; abort++) {
        struct store_config c = tiers(true);
        struct store_activated made;
        struct store_work work;
        store_move m;
        fix_open(&f, &c);
        store_cont cont = fix_cont(&f, 128, 1);
        KVT_EQ(move(cont, STORE_PLACE_HOST), STORE_OK);
        KVT_EQ(store_move_begin(f.store, cont, STORE_PLACE_DEVICE, &m, &refusal), STORE_OK);
        struct store_activation want = fix_from(cont, true, 128, 128, 1);
        KVT_EQ(store_activate_begin(f.store, &want, &made, &refusal),
               STORE_OK); /* the image is still on its way: read from the host */
        copies((struct store_transition){ true, m.bits });
        KVT_EQ(store_move_commit(f.store, m, &refusal), STORE_OK);
        KVT_TRUE(fix_info(&f, cont).image_on_device && fix_info(&f, cont).image_in_host);
        struct store_copy copy;
        uint64_t cursor = 0, replica = 0;
        while (store_next_copies(f.store, (struct store_transition){ .bits = made.seq.bits }, &cursor, &copy, 1))
            if (copy.kind == STORE_COPY_STATE_IN) replica = copy.replica;
        KVT_EQ(store_damaged(f.store, replica), 0);
        KVT_EQ(store_damaged(f.store, replica), 0);
        fix_audit(&f);
        KVT_FALSE(fix_info(&f, cont).image_in_host);
        int rc = abort ? STORE_E_DAMAGED : store_activate_commit(f.store, made.seq, &refusal);
        KVT_EQ(rc, STORE_E_DAMAGED);
        KVT_EQ(store_activate_abort(f.store, made.seq, NULL, &refusal), STORE_OK);
        fix_audit(&f);
        KVT_EQ(stats().host_images, 0);
        KVT_EQ(store_move_begin(f.store, cont, STORE_PLACE_HOST, &m, &refusal), STORE_OK);
        KVT_EQ(store_get_work(f.store, (struct store_transition){ true, m.bits }, &work), STORE_OK);
        KVT_EQ(work.bytes_out, 8192);
        copies((struct store_transition){ true, m.bits });
        KVT_EQ(store_move_commit(f.store, m, &refusal), STORE_OK);
        KVT_TRUE(fix_info(&f, cont).demoted);
        fix_close(&f);
    }
}

/* Each continuation that damage took is named once, oldest first; of too many the oldest are forgotten. */
static void lost_ones_are_named(void) {
    struct store_config c = tiers(false);
    struct store_copy copy;
    store_cont conts[70];
    struct store_loss lost;
    uint32_t released = 0;
    c.max_continuations = 80;
    fix_open(&f, &c);
    KVT_FALSE(store_take_loss(f.store, &lost));
    for (uint32_t i = 0; i < 70; i++) {
        conts[i] = fix_cont(&f, 64, 100 + i);
        KVT_EQ(move(conts[i], STORE_PLACE_HOST), STORE_OK);
        while (!store_scrub_begin(f.store, &copy) || !copy.bytes) continue;
        KVT_TRUE(store_scrub_end(f.store, false, &released));
        KVT_EQ(released, 1);
        if (i) continue;
        KVT_TRUE(store_take_loss(f.store, &lost));
        KVT_EQ(lost.cont.bits, conts[0].bits);
        KVT_EQ(lost.frontier, 0);
        KVT_FALSE(store_take_loss(f.store, &lost));
    }
    KVT_EQ(stats().lost_continuations, 70);
    for (uint32_t i = 6; i < 70; i++) {
        KVT_TRUE(store_take_loss(f.store, &lost));
        KVT_EQ(lost.cont.bits, conts[i].bits);
    }
    KVT_FALSE(store_take_loss(f.store, &lost));
    fix_close(&f);
}

/* PAGE-7: a tail is read from the host replica of a page, and that replica turns out to be damaged. A move has brought
 * the page to the device meanwhile, so that nothing is lost; what was made of the bytes is refused all the same. */
static void page_7_damaged_tail_is_no_source(void) {
    struct store_config c = tiers(false);
    struct store_activated made;
    struct store_copy copy;
    uint64_t cursor = 0, replica = 0;
    store_move m;
    fix_open(&f, &c);
    store_cont cont = fix_cont(&f, 100, 1);
    KVT_EQ(move(cont, STORE_PLACE_HOST), STORE_OK);
    KVT_EQ(store_move_begin(f.store, cont, STORE_PLACE_DEVICE, &m, &refusal), STORE_OK);
    struct store_activation want = fix_from(cont, true, 90, 128, 1);
    KVT_EQ(store_activate_begin(f.store, &want, &made, &refusal), STORE_OK);
    while (store_next_copies(f.store, (struct store_transition){ .bits = made.seq.bits }, &cursor, &copy, 1))
        if (copy.kind == STORE_COPY_PAGE_IN && copy.columns == 90 - 64) replica = copy.replica;
    KVT_TRUE(replica != 0);
    copies((struct store_transition){ true, m.bits });
    KVT_EQ(store_move_commit(f.store, m, &refusal), STORE_OK);
    KVT_EQ(store_damaged(f.store, replica), 0);
    KVT_EQ(store_activate_commit(f.store, made.seq, &refusal), STORE_E_DAMAGED);
    KVT_EQ(store_activate_abort(f.store, made.seq, NULL, &refusal), STORE_OK);
    KVT_EQ(fix_info(&f, cont).device_pages[0], 2);
    fix_close(&f);
}

/* ACT-5: a demoted source that an activation was to take over is demoted again when that is given up. */
static void act_5_source_of_a_move_is_demoted_again(void) {
    struct store_config c = tiers(false);
    struct store_activated made;
    fix_open(&f, &c);
    store_cont cont = fix_cont(&f, 100, 1);
    KVT_EQ(move(cont, STORE_PLACE_HOST), STORE_OK);
    struct store_activation want = fix_from(cont, false, 100, 128, 1);
    KVT_EQ(store_activate_begin(f.store, &want, &made, &refusal), STORE_OK);
    KVT_FALSE(fix_info(&f, cont).demoted);
    KVT_EQ(store_activate_abort(f.store, made.seq, NULL, &refusal), STORE_OK);
    KVT_TRUE(fix_info(&f, cont).demoted);
    KVT_EQ(fix_pool(&f, 0).allocated, 0);
    fix_close(&f);
}

static void see_row(const struct store_activated *a, bool shown) {
    struct store_activated now;
    KVT_OK(store_activate_look(f.store, a->seq, &now, &refusal));
    KVT_EQ(now.pool[0].slice_count, shown ? now.pool[0].membership : 0);
    for (uint32_t b = 0; b < now.pool[0].membership; b++)
        KVT_EQ(store_table_row(f.store, 0, a->pool[0].row)[b] != -1, shown);
    fix_audit(&f);
}

/* PAGE-7, ROW-3: what is being brought is in no row; an activation that only waits for what a neighbour brings shows
 * none of it either. Where nothing is to come the row is there at once. An abort leaves the row empty. */
static void page_7_rows_follow_the_copies(void) {
    for (uint32_t abort = 0; abort < 2; abort++) {
        struct store_config c = tiers(false);
        struct store_activated made, other;
        fix_open(&f, &c);
        store_cont cont = fix_cont(&f, 128, 1);
        struct store_activation want = fix_from(cont, true, 128, 130, 1);
        KVT_OK(store_activate_begin(f.store, &want, &made, &refusal));
        see_row(&made, true);
        KVT_OK(store_activate_abort(f.store, made.seq, NULL, &refusal));
        KVT_EQ(move(cont, STORE_PLACE_HOST), STORE_OK);
        KVT_OK(store_activate_begin(f.store, &want, &made, &refusal));
        KVT_OK(store_activate_begin(f.store, &want, &other, &refusal));
        see_row(&made, false);
        see_row(&other, false);
        KVT_EQ(store_activate_commit(f.store, other.seq, &refusal), STORE_WAIT);
        copies((struct store_transition){ .bits = made.seq.bits });
        KVT_EQ(store_activate_commit(f.store, made.seq, &refusal), STORE_MORE);
        see_row(&made, true);
        see_row(&other, false);
        KVT_OK(abort ? store_activate_abort(f.store, made.seq, NULL, &refusal)
                     : store_activate_commit(f.store, made.seq, &refusal));
        KVT_EQ_I(store_table_row(f.store, 0, made.pool[0].row)[0] == -1, abort);
        KVT_OK(fix_commit(&f, other.seq));
        fix_close(&f);
    }
}

static struct page *page_of(store_cont cont, uint32_t block) {
    return &f.store->pool[0].pages[space_entry(f.store, &cont_find(f.store, cont)->space[0], block)];
}

/* PAGE-7, INV-9: coverage is verified before a replica is published: bytes that do not cover what the page has
 * committed come to the device in vain, and the continuation keeps what lies before them. */
static void page_7_coverage_is_verified_on_the_way_in(void) {
    struct store_config c = tiers(false);
    store_move m;
    fix_open(&f, &c);
    store_cont cont = fix_cont(&f, 100, 1);
    KVT_EQ(move(cont, STORE_PLACE_HOST), STORE_OK);
    KVT_EQ(store_move_begin(f.store, cont, STORE_PLACE_DEVICE, &m, &refusal), STORE_OK);
    copies((struct store_transition){ true, m.bits });
    page_of(cont, 1)->host_columns--;
    KVT_EQ(store_move_commit(f.store, m, &refusal), STORE_E_DAMAGED);
    KVT_EQ(fix_info(&f, cont).frontier, 64);
    KVT_EQ(fix_pool(&f, 0).allocated, 1);
    fix_close(&f);
}

/* The same on the way out: a replica that claims columns which the page has not committed is dropped, and nothing
 * rests on it. */
static void page_7_coverage_is_verified_on_the_way_out(void) {
    struct store_config c = tiers(false);
    store_move m;
    fix_open(&f, &c);
    store_cont cont = fix_cont(&f, 100, 1);
    KVT_EQ(store_move_begin(f.store, cont, STORE_PLACE_HOST, &m, &refusal), STORE_OK);
    copies((struct store_transition){ true, m.bits });
    page_of(cont, 1)->host_columns++;
    KVT_EQ(store_move_commit(f.store, m, &refusal), STORE_E_STATE);
    KVT_FALSE(fix_info(&f, cont).demoted);
    KVT_EQ(fix_info(&f, cont).host_pages[0], 1);
    KVT_EQ(fix_info(&f, cont).device_pages[0], 2);
    fix_close(&f);
}

/* PAGE-7, CONT-1: a state image whose checksum nobody told is not published: the slot is not given up for it. */
static void page_7_image_without_a_checksum_is_no_replica(void) {
    struct store_config c = tiers(true);
    struct store_copy copy;
    uint64_t cursor = 0;
    store_move m;
    fix_open(&f, &c);
    store_cont cont = fix_cont(&f, 128, 1);
    KVT_EQ(store_move_begin(f.store, cont, STORE_PLACE_HOST, &m, &refusal), STORE_OK);
    while (store_next_copies(f.store, (struct store_transition){ true, m.bits }, &cursor, &copy, 1))
        if (copy.kind == STORE_COPY_PAGE_OUT) store_copied_out(f.store, copy.replica, 5);
    (void)store_move_commit(f.store, m, &refusal);
    KVT_FALSE(fix_info(&f, cont).image_in_host);
    KVT_TRUE(fix_info(&f, cont).image_on_device);
    KVT_FALSE(fix_info(&f, cont).demoted);
    KVT_EQ(stats().host_images, 0);
    fix_close(&f);
}

/* ACT-5: nothing is dropped from a tier under a fork in flight: it reads its tail, and its image, there. */
static void act_5_no_drop_under_a_fork(void) {
    for (uint32_t tier = 0; tier < 2; tier++) {
        struct store_config c = tiers(true);
        struct store_activated made;
        uint32_t dropped[KVD_MAX_POOLS];
        enum kvd_tier from = tier ? KVD_TIER_HOST : KVD_TIER_DEVICE;
        fix_open(&f, &c);
        store_cont cont = fix_cont(&f, 100, 1);
        KVT_EQ(move(cont, STORE_PLACE_BOTH), STORE_OK);
        struct store_activation want = fix_from(cont, true, 100, 128, 1);
        KVT_OK(store_activate_begin(f.store, &want, &made, &refusal));
        KVT_EQ(store_drop_replica(f.store, cont, from, dropped, &refusal), STORE_E_BUSY);
        KVT_EQ(fix_info(&f, cont).device_pages[0], 2);
        KVT_EQ(fix_info(&f, cont).host_pages[0], 2);
        KVT_OK(fix_commit(&f, made.seq));
        KVT_EQ(store_drop_replica(f.store, cont, from, dropped, &refusal), STORE_OK); /* it has ended */
        fix_close(&f);
    }
}

/* HOST-4: what a moved source drops goes at the commit: until then its extents are no place for a demoted victim, also
 * where a released victim shares them and goes at once. */
static void host_4_extents_of_a_moved_source_stay_until_the_commit(void) {
    struct store_config c = tiers(false);
    struct store_activated made;
    c.host_bytes = 4 * 4096;
    fix_open(&f, &c);
    store_seq seq = fix_activate(&f, fix_root(320, 1, 0), NULL);
    fix_fill(&f, seq, 256, 1);
    store_cont shares = fix_checkpoint(&f, seq, 256);
    fix_fill(&f, seq, 320, 1);
    store_cont source = fix_retain(&f, seq, 320), victim = fix_cont(&f, 64, 2);
    KVT_EQ(move(shares, STORE_PLACE_BOTH), STORE_OK); /* the arena is full */
    struct store_activation want = fix_from(source, false, 64, 64, 1);
    fix_recipe(&want, (store_cont[]){ shares, victim }, 2, 2);
    KVT_EQ(store_activate_begin(f.store, &want, &made, &refusal), STORE_E_SHORT);
    KVT_EQ(refusal.subject, STORE_S_ARENA);
    KVT_EQ(refusal.had, 0);
    KVT_EQ(fix_info(&f, shares).frontier, 256);
    fix_close(&f);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(prefetch_of_what_rests),
                                             KVT_CASE(copied_pages_stay_mapped),
                                             KVT_CASE(restored_counts_the_tail),
                                             KVT_CASE(scrub_sees_all),
                                             KVT_CASE(scrub_keeps_nobody),
                                             KVT_CASE(wrong_image_is_no_replica),
                                             KVT_CASE(lost_ones_are_named),
                                             KVT_CASE(page_7_damaged_tail_is_no_source),
                                             KVT_CASE(act_5_source_of_a_move_is_demoted_again),
                                             KVT_CASE(page_7_rows_follow_the_copies),
                                             KVT_CASE(page_7_image_without_a_checksum_is_no_replica),
                                             KVT_CASE(act_5_no_drop_under_a_fork),
                                             KVT_CASE(host_4_extents_of_a_moved_source_stay_until_the_commit),
                                             KVT_CASE(page_7_coverage_is_verified_on_the_way_in),
                                             KVT_CASE(page_7_coverage_is_verified_on_the_way_out),
                                             { 0 } };
    return kvt_main("store_tier", cases, argc, argv);
}
