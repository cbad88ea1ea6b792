/* SPDX-License-Identifier: Apache-2.0
 *
 * Lives of continuations as figures: made, used and ended at times that the test tells. The audit of fix_close compares
 * what lives with what was made and went.
 */
#include "store_fixture.h"

#define MS UINT64_C(1000000)

static struct fix f;

static uint64_t count_of(const struct histogram *h) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++) n += h->bucket[i];
    return n;
}

static void is_once(const struct histogram *h, uint64_t ns) {
    KVT_EQ(count_of(h), 1);
    KVT_EQ(h->sum_ns, ns);
}

static const struct store_lives *lives(void) { return store_get_lives(f.store); }

static void open_store(void) {
    struct store_config config = fix_config(GEOM_OFF);
    config.pool_pages[0] = 40;
    fix_open(&f, &config);
}

/* Powers of two, and what is longer than all of them. */
static void edges_of_a_histogram(void) {
    static const struct {
        uint64_t ns;
        uint32_t bucket;
    } edges[] = { { 0, 0 },
                  { 1024, 0 },
                  { 1025, 1 },
                  { 2048, 1 },
                  { 2049, 2 },
                  { UINT64_C(1) << HISTOGRAM_LAST_BIT, HISTOGRAM_BUCKETS - 2 },
                  { (UINT64_C(1) << HISTOGRAM_LAST_BIT) + 1, HISTOGRAM_BUCKETS - 1 },
                  { UINT64_C(1) << 62, HISTOGRAM_BUCKETS - 1 } };
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
        struct histogram h = { 0 };
        histogram_add(&h, edges[i].ns);
        KVT_EQ(h.bucket[edges[i].bucket], 1);
        is_once(&h, edges[i].ns);
    }
}

static void released_after_a_use(void) {
    open_store();
    store_set_time(f.store, 1000 * MS);
    store_cont cont = fix_cont(&f, 128, 1);
    store_set_time(f.store, 3000 * MS);
    KVT_EQ(fix_info(&f, cont).age_ns, 2000 * MS);
    KVT_EQ(fix_info(&f, cont).idle_ns, 2000 * MS);
    fix_activate(&f, fix_from(cont, true, 128, 200, 1), NULL); /* a fork uses it */
    store_set_time(f.store, 2500 * MS);                        /* time does not go back */
    KVT_EQ(fix_info(&f, cont).idle_ns, 0);
    store_set_time(f.store, 7000 * MS);
    KVT_EQ(fix_info(&f, cont).age_ns, 6000 * MS);
    KVT_EQ(fix_info(&f, cont).idle_ns, 4000 * MS);
    KVT_OK(store_release(f.store, cont, &f.refusal));
    KVT_EQ(lives()->made, 1);
    KVT_EQ(lives()->ended[STORE_RELEASED], 1);
    is_once(&lives()->reuse_gap, 2000 * MS);
    is_once(&lives()->lifetime[STORE_RELEASED], 6000 * MS);
    is_once(&lives()->idle[STORE_RELEASED], 4000 * MS);
    fix_close(&f);
}

static void moved_and_evicted(void) {
    open_store();
    store_set_time(f.store, 1000 * MS);
    store_cont moved = fix_cont(&f, 128, 1), victim = fix_cont(&f, 128, 2);
    store_set_time(f.store, 1500 * MS);
    fix_activate(&f, fix_from(moved, false, 128, 200, 1), NULL);
    is_once(&lives()->reuse_gap, 500 * MS);
    is_once(&lives()->lifetime[STORE_MOVED], 500 * MS);
    is_once(&lives()->idle[STORE_MOVED], 0);
    store_set_time(f.store, 2000 * MS);
    struct store_activation want = fix_root(100, 1, 0);
    fix_recipe(&want, &victim, 1, 0);
    fix_activate(&f, want, NULL);
    is_once(&lives()->lifetime[STORE_EVICTED], 1000 * MS);
    is_once(&lives()->idle[STORE_EVICTED], 1000 * MS);
    KVT_EQ(lives()->made, 2);
    KVT_EQ(lives()->ended[STORE_MOVED], 1);
    KVT_EQ(lives()->ended[STORE_EVICTED], 1);
    KVT_EQ(lives()->ended[STORE_RELEASED], 0);
    fix_close(&f);
}

/* A victim that loses its end lives on. */
static void shortened_victims_are_no_end(void) {
    open_store();
    store_cont victim = fix_cont(&f, 128, 1);
    struct kvd_victim recipe = { .continuation = { victim.bits }, .frontier = 64 };
    struct store_activation want = fix_root(100, 1, 0);
    want.victims = &recipe;
    want.n_victims = 1;
    fix_activate(&f, want, NULL);
    KVT_EQ(fix_info(&f, victim).frontier, 64);
    KVT_EQ(lives()->victims_shortened, 1);
    KVT_EQ(lives()->victims_demoted, 0);
    KVT_EQ(lives()->ended[STORE_EVICTED], 0);
    fix_close(&f);
}

/* FIT-5: the newcomer is none, and no end of one; the one that stands for it was used now. */
static void merged_ones_are_not_made(void) {
    open_store();
    for (uint64_t i = 0; i < 3; i++) {
        struct store_activation want = fix_root(128, 1, 0);
        want.tag = 5;
        store_set_time(f.store, i * 100 * MS);
        store_seq seq = fix_activate(&f, want, NULL);
        fix_fill(&f, seq, 128, 1);
        store_cont cont = fix_retain(&f, seq, 128);
        KVT_EQ(fix_info(&f, cont).idle_ns, 0);
        KVT_EQ(fix_info(&f, cont).age_ns, i * 100 * MS);
    }
    KVT_EQ(lives()->made, 1);
    KVT_EQ(lives()->merged, 2);
    KVT_EQ(lives()->ended[STORE_RELEASED], 0);
    KVT_EQ(count_of(&lives()->reuse_gap), 0);
    fix_close(&f);
}

/* An unfinished checkpoint that is given up was no continuation. */
static void what_was_never_published_has_no_life(void) {
    struct store_checkpointed made;
    open_store();
    store_seq seq = fix_activate(&f, fix_root(128, 64, 0), NULL);
    fix_fill(&f, seq, 100, 1);
    KVT_OK(store_checkpoint_begin(f.store, seq, FIX_LEASE, FIX_KEEP(fix_tail(100), 0), &made, &f.refusal));
    KVT_OK(store_checkpoint_abort(f.store, made.cont, &f.refusal));
    KVT_EQ(lives()->made, 0);
    KVT_EQ(lives()->ended[STORE_RELEASED], 0);
    fix_close(&f);
}

static void tokens_are_counted_as_they_are_committed(void) {
    struct kvd_stats stats;
    open_store();
    store_seq seq = fix_activate(&f, fix_root(100, 200, 0), NULL);
    KVT_OK(fix_round(&f, seq, KVD_NONE, KVD_NONE, KVD_NONE, 200, NULL));
    KVT_OK(fix_round(&f, seq, 100, KVD_NONE, KVD_NONE, KVD_NONE, NULL));
    KVT_OK(fix_round(&f, seq, 130, KVD_NONE, KVD_NONE, KVD_NONE, NULL));
    KVT_OK(fix_round(&f, seq, KVD_NONE, 120, KVD_NONE, KVD_NONE, NULL)); /* ten are cut off */
    KVT_OK(fix_round(&f, seq, 125, KVD_NONE, KVD_NONE, KVD_NONE, NULL));
    store_get_stats(f.store, &stats);
    KVT_EQ(stats.committed_tokens, 135);
    fix_close(&f);
}

/* Reads on: what is told last of the continuation; continuation 0: nothing is. */
static struct kvd_continuation_info told(uint64_t *number, store_cont cont) {
    struct kvd_continuation_info info, last = { .continuation = { 0 } };
    while (store_next_change(f.store, number, store_changes_end(f.store), &info))
        if (info.continuation.bits == cont.bits) last = info;
    KVT_EQ(*number, store_changes_end(f.store));
    return last;
}

static void feed_1_each_change_is_told(void) {
    open_store();
    uint64_t number = store_changes_end(f.store);
    store_cont cont = fix_cont(&f, 128, 1);
    KVT_EQ(told(&number, cont).frontier, 128);
    KVT_EQ(told(&number, cont).continuation.bits, 0); /* once */
    KVT_OK(store_set_retention(f.store, cont, 7, &f.refusal));
    KVT_EQ(told(&number, cont).retention, 7);
    uint64_t before = number, used = fix_info(&f, cont).used;
    fix_activate(&f, fix_from(cont, true, 128, 200, 1), NULL);
    struct kvd_continuation_info info = told(&number, cont);
    KVT_TRUE(info.used > used && info.frontier == 128);
    number = before; /* again, as after an answer that was lost */
    KVT_EQ(told(&number, cont).used, info.used);
    KVT_OK(store_shorten(f.store, cont, 64, &f.refusal));
    KVT_EQ(told(&number, cont).frontier, 64);
    KVT_OK(store_release(f.store, cont, &f.refusal));
    info = told(&number, cont);
    KVT_TRUE(info.continuation.bits == cont.bits && info.frontier == 0);
    fix_close(&f);
}

/* What it is by then, once, however often it changed; also in the place of one that has gone. */
static void feed_1_several_changes_are_one(void) {
    struct kvd_continuation_info info;
    open_store();
    store_cont gone = fix_cont(&f, 128, 1);
    uint64_t number = store_changes_end(f.store);
    for (uint32_t i = 0; i < 9; i++) KVT_OK(store_set_retention(f.store, gone, i, &f.refusal));
    KVT_TRUE(store_next_change(f.store, &number, store_changes_end(f.store), &info));
    KVT_EQ(info.retention, 8);
    KVT_FALSE(store_next_change(f.store, &number, store_changes_end(f.store), &info));
    KVT_OK(store_release(f.store, gone, &f.refusal));
    store_cont cont = fix_cont(&f, 64, 2);
    uint64_t again = number;
    KVT_EQ(told(&number, gone).frontier, 0);
    KVT_EQ(told(&again, cont).frontier, 64);
    fix_close(&f);
}

/* The ring keeps the last ones, and says which. */
static void feed_1_old_changes_are_not_kept(void) {
    open_store();
    store_cont first = fix_cont(&f, 128, 1), cont = fix_cont(&f, 128, 2);
    KVT_EQ(store_changes_begin(f.store), 0);
    for (uint32_t i = 0; i < 5000; i++) KVT_OK(store_set_retention(f.store, cont, i, &f.refusal));
    uint64_t number = store_changes_begin(f.store), end = store_changes_end(f.store);
    KVT_TRUE(number > 0 && end - number >= 2 * store_get_config(f.store)->max_continuations);
    uint64_t again = number;
    KVT_EQ(told(&number, cont).retention, 4999);
    KVT_EQ(told(&again, first).continuation.bits, 0);
    fix_close(&f);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(edges_of_a_histogram),
                                             KVT_CASE(released_after_a_use),
                                             KVT_CASE(moved_and_evicted),
                                             KVT_CASE(shortened_victims_are_no_end),
                                             KVT_CASE(merged_ones_are_not_made),
                                             KVT_CASE(what_was_never_published_has_no_life),
                                             KVT_CASE(tokens_are_counted_as_they_are_committed),
                                             KVT_CASE(feed_1_each_change_is_told),
                                             KVT_CASE(feed_1_several_changes_are_one),
                                             KVT_CASE(feed_1_old_changes_are_not_kept),
                                             { 0 } };
    return kvt_main("store_lives", cases, argc, argv);
}
