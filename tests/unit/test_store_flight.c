/* SPDX-License-Identifier: Apache-2.0
 *
 * What happens beside an activation in flight, while pages are promised to it that others hold until its commit: scrub,
 * drops, prefetches, damage (ACT-1, ACT-5, INV-1, PAGE-7).
 */
#include "store_fixture.h"

static void open_host(struct fix *fix) {
    struct store_config config = fix_config(GEOM_OFF);
    config.host_bytes = 64 * 4096;
    config.host_stride[0] = 4096;
    fix_open(fix, &config);
}

/* All copies of a stage are made: what goes out has checksum 5. */
static void copy_all(struct fix *fix, struct store_transition of) {
    struct store_copy copy;
    uint64_t cursor = 0;
    while (store_next_copies(fix->store, of, &cursor, &copy, 1))
        if (copy.kind == STORE_COPY_PAGE_OUT) store_copied_out(fix->store, copy.replica, 5);
}

static void move(struct fix *fix, store_cont cont, enum store_place place) {
    store_move begun;
    if (!KVT_OK(store_move_begin(fix->store, cont, place, &begun, &fix->refusal))) return;
    copy_all(fix, (struct store_transition){ true, begun.bits });
    KVT_OK(store_move_commit(fix->store, begun, &fix->refusal));
}

/* Eight pages are wanted, and the victims hold some. */
static store_seq begin_over(struct fix *fix, const store_cont *victims, uint32_t n) {
    struct store_activation want = fix_root(512, 1, 512);
    struct store_activated got = { .staged = false };
    fix_recipe(&want, victims, n, 0);
    KVT_OK(store_activate_begin(fix->store, &want, &got, &fix->refusal));
    fix_audit(fix);
    return got.seq;
}

/* A page that is read for its checksum is given back when its victim goes. */
static void scrub_beside_a_promise(void) {
    for (uint32_t skip = 0; skip < 4; skip++) {
        struct fix fix;
        struct store_copy copy;
        uint32_t released = 0;
        open_host(&fix);
        store_cont victim = fix_cont(&fix, 256, 1);
        move(&fix, victim, STORE_PLACE_BOTH);
        store_seq seq = begin_over(&fix, &victim, 1);
        for (uint32_t i = 0; i <= skip; i++) {
            if (i) KVT_FALSE(store_scrub_end(fix.store, true, &released));
            KVT_TRUE(store_scrub_begin(fix.store, &copy));
        }
        fix_audit(&fix);
        KVT_OK(fix_commit(&fix, seq));
        fix_audit(&fix);
        KVT_FALSE(store_scrub_end(fix.store, false, &released)); /* gone meanwhile: no damage */
        fix_audit(&fix);
        KVT_EQ(fix_pool(&fix, 0).allocated, 8);
        fix_close(&fix);
    }
}

/* Of a demoted continuation, pages are on the device for the sake of one that is not demoted, which has the same ones
 * and more. rester: the first four of the victim's six pages. */
static void beside(struct fix *fix, store_cont *ret_rester, store_cont *ret_victim) {
    open_host(fix);
    store_seq seq = fix_activate(fix, fix_root(384, 1, 0), NULL);
    fix_fill(fix, seq, 256, 1);
    *ret_rester = fix_checkpoint(fix, seq, 256);
    fix_fill(fix, seq, 384, 1);
    *ret_victim = fix_retain(fix, seq, 384);
    move(fix, *ret_rester, STORE_PLACE_HOST);
    KVT_TRUE(fix_info(fix, *ret_rester).demoted);
    KVT_EQ(fix_info(fix, *ret_rester).device_pages[0], 4);
}

static void drop_beside_a_promise(void) {
    struct fix fix;
    store_cont rester, victim;
    uint32_t dropped[KVD_MAX_POOLS];
    beside(&fix, &rester, &victim);
    store_seq seq = begin_over(&fix, &victim, 1);
    int rc = store_drop_replica(fix.store, rester, KVD_TIER_HOST, dropped, &fix.refusal);
    KVT_EQ(rc, STORE_E_REVISION);
    fix_audit(&fix);
    KVT_OK(fix_commit(&fix, seq));
    fix_close(&fix);
}

static void damage_beside_a_promise(void) {
    struct fix fix;
    store_cont rester, victim;
    struct store_copy copy;
    uint32_t released = 0;
    for (uint32_t abort = 0; abort < 2; abort++) {
        beside(&fix, &rester, &victim);
        store_seq seq = begin_over(&fix, &victim, 1);
        KVT_TRUE(store_scrub_begin(fix.store, &copy));
        KVT_TRUE(store_scrub_end(fix.store, false, &released));
        fix_audit(&fix);
        int rc = abort ? STORE_E_DAMAGED : store_activate_commit(fix.store, seq, &fix.refusal);
        KVT_TRUE(rc == STORE_OK || rc == STORE_E_DAMAGED || rc == STORE_E_REVISION);
        fix_audit(&fix);
        if (rc) KVT_OK(store_activate_abort(fix.store, seq, NULL, &fix.refusal));
        fix_close(&fix);
    }
}

/* The damaged page stays on the device for a third one's sake, which shares two pages with them: the other two are
 * promised. */
static void damage_beside_a_promise_elsewhere(void) {
    struct fix fix;
    struct store_copy copy;
    uint32_t released = 0;
    open_host(&fix);
    store_seq seq = fix_activate(&fix, fix_root(256, 1, 0), NULL);
    fix_fill(&fix, seq, 128, 1);
    store_cont third = fix_checkpoint(&fix, seq, 128);
    fix_fill(&fix, seq, 256, 1);
    store_cont rester = fix_checkpoint(&fix, seq, 256);
    store_cont victim = fix_retain(&fix, seq, 256);
    move(&fix, rester, STORE_PLACE_HOST);
    struct store_activation want = fix_root(384, 1, 384);
    struct store_activated got = { .staged = false };
    fix_recipe(&want, &victim, 1, 0);
    KVT_OK(store_activate_begin(fix.store, &want, &got, &fix.refusal));
    fix_audit(&fix);
    KVT_TRUE(store_scrub_begin(fix.store, &copy));
    KVT_TRUE(store_scrub_end(fix.store, false, &released)); /* of the first page, which the third has, too */
    fix_audit(&fix);
    KVT_EQ(fix_info(&fix, third).pages[0], 2);
    int rc = store_activate_commit(fix.store, got.seq, &fix.refusal);
    KVT_TRUE(rc == STORE_OK || rc == STORE_E_DAMAGED || rc == STORE_E_REVISION);
    fix_audit(&fix);
    if (rc) KVT_OK(store_activate_abort(fix.store, got.seq, NULL, &fix.refusal));
    fix_close(&fix);
}

/* A fork, or a move, of the first pages of a continuation whose other pages are promised. */
static void source_beside_a_promise(bool keep) {
    struct fix fix;
    store_cont rester, victim;
    struct store_config config = fix_config(GEOM_OFF);
    config.host_bytes = 64 * 4096;
    config.host_stride[0] = 4096;
    config.pool_pages[0] = 10;
    fix_open(&fix, &config);
    store_seq seq = fix_activate(&fix, fix_root(384, 1, 0), NULL);
    fix_fill(&fix, seq, 64, 1);
    store_cont third = fix_checkpoint(&fix, seq, 64); /* the first page is promised to nobody */
    fix_fill(&fix, seq, 256, 1);
    rester = fix_checkpoint(&fix, seq, 256);
    fix_fill(&fix, seq, 384, 1);
    victim = fix_retain(&fix, seq, 384);
    KVT_EQ(fix_info(&fix, third).pages[0], 1);
    move(&fix, rester, STORE_PLACE_HOST);
    store_cont other = fix_cont(&fix, 64, 2);
    struct store_activation want = fix_root(512, 1, 512);
    struct store_activated got = { .staged = false }, mine = got;
    fix_recipe(&want, &victim, 1, 0);
    KVT_OK(store_activate_begin(fix.store, &want, &got, &fix.refusal));
    fix_audit(&fix);
    struct store_activation from = fix_from(rester, keep, 40, 60, 1);
    fix_recipe(&from, &other, 1, 1);
    int rc = store_activate_begin(fix.store, &from, &mine, &fix.refusal);
    fix_audit(&fix);
    KVT_OK(fix_commit(&fix, got.seq));
    fix_audit(&fix);
    KVT_EQ(rc, keep ? STORE_OK : STORE_E_REVISION); /* a fork leaves what it does not share where it is going */
    for (int code = STORE_MORE; rc == STORE_OK && code == STORE_MORE; fix_audit(&fix)) {
        copy_all(&fix, (struct store_transition){ .bits = mine.seq.bits });
        code = store_activate_commit(fix.store, mine.seq, &fix.refusal);
        KVT_TRUE(code == STORE_OK || code == STORE_MORE);
    }
    fix_close(&fix);
}
static void fork_beside_a_promise(void) { source_beside_a_promise(true); }
static void move_beside_a_promise(void) { source_beside_a_promise(false); }

/* A moved source drops pages that a demoted continuation has, too: nobody may count on those. */
static void prefetch_beside_a_dropped_tail(void) {
    struct fix fix;
    store_cont rester, source;
    store_move begun;
    beside(&fix, &rester, &source);
    struct store_activation want = fix_from(source, false, 128, 512, 1);
    struct store_activated got = { .staged = false };
    want.ensure[0] = 512;
    KVT_OK(store_activate_begin(fix.store, &want, &got, &fix.refusal));
    fix_audit(&fix);
    int rc = store_move_begin(fix.store, rester, STORE_PLACE_DEVICE, &begun, &fix.refusal);
    fix_audit(&fix);
    if (rc == STORE_OK) KVT_OK(store_move_commit(fix.store, begun, &fix.refusal));
    int code = store_activate_commit(fix.store, got.seq, &fix.refusal);
    fix_audit(&fix);
    KVT_TRUE(code == STORE_OK || code == STORE_E_REVISION);
    if (code) KVT_OK(store_activate_abort(fix.store, got.seq, NULL, &fix.refusal));
    fix_close(&fix);
}

/* A promise that damage has broken, and that nobody came to need, is none any more when its activation has committed:
 * the page is its holders' again. */
static void promise_ends_with_its_activation(void) {
    for (uint32_t abort = 0; abort < 2; abort++) {
        struct fix fix;
        store_cont rester, victim;
        struct store_activated got;
        struct store_activation want = fix_root(64, 1, 64);
        beside(&fix, &rester, &victim);
        fix_recipe(&want, &victim, 1, 0);
        KVT_OK(store_activate_begin(fix.store, &want, &got, &fix.refusal));
        KVT_EQ(store_damaged(fix.store, space_entry(fix.store, &cont_find(fix.store, rester)->space[0], 0)), 0);
        if (abort) KVT_OK(store_activate_abort(fix.store, got.seq, NULL, &fix.refusal));
        else KVT_OK(fix_commit(&fix, got.seq));
        fix_audit(&fix);
        KVT_TRUE(fix_activate(&fix, fix_from(rester, true, 64, 64, 1), NULL).bits != 0);
        fix_close(&fix);
    }
}

/* ACT-1: a fork waits for its victims to give way; meanwhile another activation is promised the page of its tail, since
 * its source is demoted. The fork is not refused for that: it comes after the other, and reads the tail from the
 * host. */
static void tail_promised_to_another(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    struct store_activated mine, other;
    store_cont none;
    config.host_bytes = 64 * 4096;
    config.host_stride[0] = 4096;
    config.pool_pages[0] = 8;
    fix_open(&fix, &config);
    store_seq seq =
        fix_activate(&fix, fix_root(128, 1, 0), NULL); /* two pages; the rester has the first, the victim both */
    fix_fill(&fix, seq, 64, 1);
    store_cont rester = fix_checkpoint(&fix, seq, 64);
    fix_fill(&fix, seq, 128, 1);
    store_cont victim = fix_retain(&fix, seq, 128);
    move(&fix, rester, STORE_PLACE_HOST);
    KVT_EQ(fix_info(&fix, rester).device_pages[0], 1);
    store_cont demoted = fix_cont(&fix, 384, 2);
    KVT_EQ(fix_pool(&fix, 0).available, 0);
    struct store_activation want = fix_from(rester, true, 40, 64, 1);
    fix_recipe(&want, &demoted, 1, 1);
    KVT_OK(store_activate_begin(fix.store, &want, &mine, &fix.refusal));
    KVT_TRUE(mine.staged);
    want = fix_root(128, 1, 128);
    fix_recipe(&want, &victim, 1, 0);
    KVT_OK(store_activate_begin(fix.store, &want, &other, &fix.refusal));
    copy_all(&fix, (struct store_transition){ .bits = mine.seq.bits });
    fix_audit(&fix);
    KVT_EQ(store_activate_commit(fix.store, mine.seq, &fix.refusal), STORE_WAIT);
    fix_audit(&fix);
    KVT_OK(fix_commit(&fix, other.seq));
    KVT_EQ(store_activate_commit(fix.store, mine.seq, &fix.refusal), STORE_MORE);
    fix_audit(&fix);
    copy_all(&fix, (struct store_transition){ .bits = mine.seq.bits });
    KVT_OK(fix_commit(&fix, mine.seq));
    KVT_OK(store_finish(fix.store, mine.seq, FIX_LEASE, STORE_FINISH_RELEASE, NULL, 0, &none, rows, &fix.refusal));
    fix_close(&fix);
}

/* ---- damage beside a transition ---- */

static uint64_t what_of(struct fix *fix, store_cont cont, uint32_t block) {
    return space_entry(fix->store, &cont_find(fix->store, cont)->space[0], block);
}

/* PAGE-6: lost pages whose continuation a fork in flight still reads have no place, but a record; whatever else the two
 * tiers can hold beside them has one, too. */
static void lost_pages_beside_a_full_store(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct store_activated got;
    config.host_bytes = 4 * 4096;
    config.host_stride[0] = 4096;
    config.spare_pages = 0;
    fix_open(&fix, &config);
    store_cont source = fix_cont(&fix, 192, 1), other[3];
    move(&fix, source, STORE_PLACE_HOST);
    for (uint32_t i = 0; i < 3; i++) other[i] = fix_cont(&fix, 64, 2 + i);
    KVT_OK(store_activate_begin(fix.store,
                                &(struct store_activation){ .from = source,
                                                            .keep = true,
                                                            .frontier = 64,
                                                            .lease = FIX_LEASE,
                                                            .prompt_tokens = 64,
                                                            .max_output_tokens = 1 },
                                &got, &fix.refusal));
    for (uint32_t block = 1; block < 3; block++) KVT_EQ(store_damaged(fix.store, what_of(&fix, source, block)), 0);
    fix_audit(&fix);
    for (uint32_t i = 0; i < 3; i++) {
        store_move begun;
        int rc = store_move_begin(fix.store, other[i], STORE_PLACE_HOST, &begun, &fix.refusal);
        KVT_TRUE(rc == STORE_OK || rc == STORE_E_SHORT);
        if (rc) continue;
        copy_all(&fix, (struct store_transition){ true, begun.bits });
        KVT_OK(store_move_commit(fix.store, begun, &fix.refusal));
    }
    uint32_t available = fix_pool(&fix, 0).available * KVD_PAGE_TOKENS;
    KVT_TRUE(available > 0);
    store_seq seq = fix_activate(&fix, fix_root(available, 1, available), NULL);
    KVT_TRUE(seq.bits != 0);
    KVT_EQ(fix_pool(&fix, 0).available, 0);
    fix_audit(&fix);
    copy_all(&fix, (struct store_transition){ .bits = got.seq.bits });
    KVT_OK(fix_commit(&fix, got.seq)); /* of the page that is whole */
    KVT_EQ(fix_info(&fix, source).frontier, 64);
    fix_close(&fix);
}

static bool page_is_lost(struct fix *fix, store_cont cont, uint32_t block) {
    return fix->store->pool[0].pages[what_of(fix, cont, block)].flags & PAGE_LOST;
}

/* PAGE-3, PAGE-7: bytes that were found wrong once are found so again by whoever was reading them: it is one damage,
 * and no replica comes of it. */
static void damage_is_found_twice(void) {
    struct fix fix;
    struct store_copy copy;
    struct store_activated got;
    uint32_t released = 0;
    open_host(&fix);
    store_cont source = fix_cont(&fix, 192, 1);
    move(&fix, source, STORE_PLACE_HOST);
    KVT_OK(store_activate_begin(fix.store,
                                &(struct store_activation){ .from = source,
                                                            .keep = true,
                                                            .frontier = 64,
                                                            .lease = FIX_LEASE,
                                                            .prompt_tokens = 64,
                                                            .max_output_tokens = 1 },
                                &got, &fix.refusal));
    uint64_t replica = what_of(&fix, source, 1);
    for (uint32_t turn = 0; turn < 2; turn++) {
        KVT_EQ(store_damaged(fix.store, replica), 0);
        KVT_TRUE(page_is_lost(&fix, source, 1));
        struct kvd_stats stats;
        store_get_stats(fix.store, &stats);
        KVT_EQ(stats.damaged_replicas, 1);
        KVT_EQ(fix_info(&fix, source).host_pages[0], 2);
        fix_audit(&fix);
    }
    while (store_scrub_begin(fix.store, &copy)) {
        if (!copy.bytes) continue;
        KVT_TRUE(copy.replica != replica);
        KVT_FALSE(store_scrub_end(fix.store, true, &released));
    }
    KVT_OK(store_activate_abort(fix.store, got.seq, NULL, &fix.refusal));
    KVT_EQ(fix_info(&fix, source).frontier, 64);
    fix_close(&fix);
}

/* SHORT-1: every holder of a lost page is shortened to the pages before it, or goes where there are none; those that
 * only share the pages before it stay whole. Where the device has the page still, its holders are demoted no more. */
static void damage_finds_all_holders(void) {
    for (uint32_t block = 0; block < 4; block++)
        for (uint32_t lost = 0; lost < 2; lost++) {
            struct fix fix;
            struct kvd_pool_view rows[KVD_MAX_POOLS];
            store_cont conts[4], none;
            open_host(&fix);
            store_seq seq = fix_activate(&fix, fix_root(256, 1, 0), NULL);
            for (uint32_t i = 0; i < 4; i++) { /* of 1, 2, 3, 4 pages */
                fix_fill(&fix, seq, 64 * (i + 1), 1);
                conts[i] = fix_checkpoint(&fix, seq, 64 * (i + 1));
            }
            for (uint32_t i = 0; i < 4; i++) move(&fix, conts[i], STORE_PLACE_HOST);
            if (lost)
                KVT_OK(
                    store_finish(fix.store, seq, FIX_LEASE, STORE_FINISH_RELEASE, NULL, 0, &none, rows, &fix.refusal));
            KVT_EQ(store_damaged(fix.store, what_of(&fix, conts[3], block)), lost && block == 0 ? 4 : 0);
            for (uint32_t i = 0; i < 4; i++) {
                bool holds = i >= block, there = cont_find(fix.store, conts[i]) != NULL;
                KVT_EQ(there, !(lost && block == 0));
                if (!there) continue;
                KVT_EQ(fix_info(&fix, conts[i]).frontier, 64 * (holds && lost ? block : i + 1));
                KVT_EQ(fix_info(&fix, conts[i]).demoted, lost || !holds);
            }
            fix_close(&fix);
        }
}

/* ACT-5: a fork waits for pages that a prefetch brings. The prefetch is given up, so the fork brings them itself. */
static void act_5_orphans_of_an_aborted_neighbour_are_brought(void) {
    struct fix fix;
    struct store_activated got = { .staged = false };
    store_move prefetch;
    open_host(&fix);
    store_cont cont = fix_cont(&fix, 256, 1);
    move(&fix, cont, STORE_PLACE_HOST);
    KVT_OK(store_move_begin(fix.store, cont, STORE_PLACE_DEVICE, &prefetch, &fix.refusal));
    struct store_activation want = fix_from(cont, true, 256, 300, 1);
    KVT_OK(store_activate_begin(fix.store, &want, &got, &fix.refusal));
    KVT_EQ(store_activate_commit(fix.store, got.seq, &fix.refusal), STORE_WAIT);
    KVT_OK(store_move_abort(fix.store, prefetch, &fix.refusal));
    fix_audit(&fix);
    KVT_EQ(store_activate_commit(fix.store, got.seq, &fix.refusal), STORE_MORE);
    copy_all(&fix, (struct store_transition){ .bits = got.seq.bits });
    KVT_OK(fix_commit(&fix, got.seq));
    KVT_EQ(fix_info(&fix, cont).device_pages[0], 4);
    fix_close(&fix);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(scrub_beside_a_promise),
                                             KVT_CASE(drop_beside_a_promise),
                                             KVT_CASE(damage_beside_a_promise),
                                             KVT_CASE(damage_beside_a_promise_elsewhere),
                                             KVT_CASE(fork_beside_a_promise),
                                             KVT_CASE(move_beside_a_promise),
                                             KVT_CASE(prefetch_beside_a_dropped_tail),
                                             KVT_CASE(promise_ends_with_its_activation),
                                             KVT_CASE(tail_promised_to_another),
                                             KVT_CASE(lost_pages_beside_a_full_store),
                                             KVT_CASE(damage_is_found_twice),
                                             KVT_CASE(damage_finds_all_holders),
                                             KVT_CASE(act_5_orphans_of_an_aborted_neighbour_are_brought),
                                             { 0 } };
    return kvt_main("store flight", cases, argc, argv);
}
