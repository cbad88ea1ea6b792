/* SPDX-License-Identifier: Apache-2.0
 *
 * Pools: accounting, choice of pages, generations, configuration (POOL-*).
 */
#include "store_fixture.h"

#include <stdlib.h>

static struct pool *pool_of(struct fix *fix) { return &fix->store->pool[0]; }

/* Takes k pages by the rule of choice and writes the ids as text. */
static const char *take(struct fix *fix, uint32_t k, uint32_t predecessor) {
    static char text[256];
    struct pool_choice choice = { k, predecessor, false };
    size_t used = 0;
    text[0] = '\0';
    while (choice.need) {
        uint32_t start, n = pool_choose(pool_of(fix), &choice, &start);
        pool_take(pool_of(fix), start, n);
        for (uint32_t i = 0; i < n; i++) {
            page_open(fix->store, 0, start + i, i, false);
            used += (size_t)snprintf(text + used, sizeof text - used, used ? " %u" : "%u", start + i);
        }
    }
    return text;
}

static void put(struct fix *fix, uint32_t page) {
    struct pool_batch batch = { pool_of(fix), 0, 0 };
    page_unref(fix->store, &batch, pool_of(fix)->leases[page].owner, false);
    pool_flush(&batch);
}

/* The order of choice: directly behind the predecessor, else the first run that is long enough, else the lowest runs.
 */
static void page_choice_order(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    fix_open(&fix, &config);
    KVT_EQ_STR(take(&fix, 8, KVD_NONE), "0 1 2 3 4 5 6 7");
    for (uint32_t page = 0; page < 8; page++)
        if (page < 3 || page > 5) put(&fix, page);
    KVT_EQ_STR(take(&fix, 5, KVD_NONE), "0 1 2 6 7"); /* rule 3: lowest runs upward */
    for (uint32_t page = 0; page < 8; page++) put(&fix, page);
    KVT_EQ_STR(take(&fix, 2, KVD_NONE), "0 1");
    KVT_EQ_STR(take(&fix, 1, 4), "5");     /* rule 1: directly after the predecessor, though 2 is lower */
    KVT_EQ_STR(take(&fix, 3, 4), "2 3 4"); /* 5 is taken: rule 2, the first run that is long enough */
    KVT_EQ_STR(take(&fix, 1, 7), "6");     /* past the end */
    for (uint32_t page = 0; page < 7; page++) put(&fix, page);
    KVT_EQ(pool_of(&fix)->allocated, 0);
    fix_close(&fix);
}

/* The tree's answer against a scan of the bitmap, over several blocks and words. */
static uint32_t scan_first(const struct pool *pool, uint32_t k) {
    for (uint32_t i = 0, run = 0; i < pool->capacity; i++) {
        run = pool_is_free(pool, i) ? run + 1 : 0;
        if (run == k) {
            while (i + 1 - run > 0 && pool_is_free(pool, i - run)) run++;
            return i + 1 - run;
        }
    }
    return KVD_NONE;
}

static void page_choice_against_scan(void) {
    struct fix fix;
    uint64_t random = kvt_seed();
    struct store_config config = fix_config(GEOM_OFF);
    config.pool_pages[0] = 3 * BLOCK_PAGES + 77;
    fix_open(&fix, &config);
    struct pool *pool = pool_of(&fix);
    for (int step = 0; step < 4000; step++) {
        uint32_t start = 0, k = 1 + kvt_below(&random, kvt_below(&random, 8) ? 9 : 600), run = pool->tree[1].best;
        uint32_t predecessor = kvt_below(&random, pool->capacity), want = scan_first(pool, k);
        KVT_EQ(want != KVD_NONE, run >= k);
        if (kvt_below(&random, 2) && pool->capacity - pool->allocated >= k) {
            struct pool_choice choice = { k, predecessor, false };
            uint32_t next = predecessor + 1, fits = 0;
            while (fits < k && next + fits < pool->capacity && pool_is_free(pool, next + fits)) fits++;
            uint32_t n = pool_choose(pool, &choice, &start);
            KVT_EQ(start, fits == k ? next : want != KVD_NONE ? want : scan_first(pool, 1));
            KVT_EQ(choice.need, k - n);
            KVT_TRUE(n == k || want == KVD_NONE);
            pool_take(pool, start, n);
            for (uint32_t i = 0; i < n; i++) page_open(fix.store, 0, start + i, i, false);
        } else {
            uint32_t from = kvt_below(&random, pool->capacity), n = kvt_below(&random, 300);
            struct pool_batch batch = { pool, 0, 0 };
            for (uint32_t i = from; i < from + n && i < pool->capacity; i++)
                if (!pool_is_free(pool, i)) page_unref(fix.store, &batch, pool->leases[i].owner, false);
            pool_flush(&batch);
        }
    }
    struct pool_batch batch = { pool, 0, 0 };
    for (uint32_t i = 0; i < pool->capacity; i++)
        if (!pool_is_free(pool, i)) page_unref(fix.store, &batch, pool->leases[i].owner, false);
    pool_flush(&batch);
    KVT_EQ(pool->tree[1].best, pool->capacity);
    fix_close(&fix);
}

static void pool_6_capacity_is_the_sum(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_MTP);
    fix_open(&fix, &config);
    store_seq seq = fix_activate(&fix, fix_root(100, 30, 65), NULL); /* 129 tokens: 3 pages; MTP 132: 3 */
    for (uint32_t p = 0; p < 2; p++) {
        struct kvd_pool_stats s = fix_pool(&fix, p);
        KVT_EQ(s.allocated, 2);
        KVT_EQ(s.reserved, 1);
        KVT_EQ(s.available, 5);
        KVT_EQ(s.capacity, s.allocated + s.reserved + s.available);
    }
    KVT_OK(fix_round(&fix, seq, KVD_NONE, KVD_NONE, KVD_NONE, 129, NULL));
    KVT_EQ(fix_pool(&fix, 0).reserved, 0);
    KVT_EQ(fix_pool(&fix, 0).available, 5);
    fix_close(&fix);
}

/* POOL-7. Materialize takes from the reservation, trim gives back to the same one; available stands still (and so does
 * the revision). */
static void pool_7_materialize_leaves_available(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    fix_open(&fix, &config);
    store_seq a = fix_activate(&fix, fix_root(100, 200, 0), NULL), b = fix_activate(&fix, fix_root(64, 1, 64), NULL);
    KVT_EQ(fix_seq(&fix, a).pool[0].entitlement, 5);
    uint32_t available = fix_pool(&fix, 0).available;
    uint64_t revision = store_revision(fix.store);
    for (uint32_t tokens = 0; tokens <= 299; tokens += 60) {
        KVT_OK(fix_round(&fix, a, KVD_NONE, KVD_NONE, KVD_NONE, tokens, NULL));
        KVT_EQ(fix_pool(&fix, 0).available, available);
    }
    KVT_OK(fix_round(&fix, a, KVD_NONE, KVD_NONE, 10, KVD_NONE, NULL));
    KVT_EQ(fix_pool(&fix, 0).available, available);
    KVT_EQ(fix_pool(&fix, 0).reserved, 4);
    KVT_EQ(fix_seq(&fix, a).pool[0].entitlement, 5);
    KVT_EQ(fix_seq(&fix, b).pool[0].entitlement, 1);
    KVT_EQ(store_revision(fix.store), revision);
    fix_close(&fix);
}

/* POOL-8: a lease is given back once. With an older generation, or when it is nobody's, it is refused and nothing
 * changes: the page's new owner keeps it. */
static void pool_8_stale_lease_is_refused(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    fix_open(&fix, &config);
    struct pool *pool = pool_of(&fix);
    struct pool_batch batch = { pool, 0, 0 };
    take(&fix, 1, KVD_NONE);
    uint32_t generation = pool->leases[0].generation, page = fix_page(&fix, 0, 0)->generation;
    put(&fix, 0);
    KVT_FALSE(pool_put(&batch, 0, generation));
    KVT_FALSE(pool_put(&batch, 0, generation + 1)); /* the next one, which nobody has yet */
    take(&fix, 1, KVD_NONE);
    KVT_EQ(pool->leases[0].generation, generation + 1);
    KVT_FALSE(pool_put(&batch, 0, generation));
    pool_flush(&batch);
    KVT_EQ(pool->allocated, 1);
    KVT_EQ(pool->leases[0].owner, 0);
    KVT_FALSE(pool_is_free(pool, 0));
    KVT_EQ(fix_page(&fix, 0, 0)->generation, page + 1); /* PAGE-6: the descriptor too */
    put(&fix, 0);
    KVT_EQ(pool->allocated, 0);
    fix_close(&fix);
}

/* A generation that would wrap retires the slot: the handle of an old object never names a new one. */
static void pool_8_handles_retire_on_wrap(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    store_cont none;
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    fix_open(&fix, &config);
    fix.store->seqs[0].generation = UINT32_MAX;
    store_seq last = fix_activate(&fix, fix_root(64, 1, 0), NULL);
    KVT_EQ(last.bits, (uint64_t)UINT32_MAX << 32);
    KVT_OK(store_finish(fix.store, last, FIX_LEASE, STORE_FINISH_RELEASE, NULL, 0, &none, rows, NULL));
    store_seq next = fix_activate(&fix, fix_root(64, 1, 0), NULL);
    KVT_EQ((uint32_t)next.bits, 1);
    KVT_EQ(store_finish(fix.store, last, FIX_LEASE, STORE_FINISH_RELEASE, NULL, 0, &none, rows, NULL), STORE_E_STALE);
    fix_activate(&fix, fix_root(64, 1, 0), NULL);
    struct store_activation third = fix_root(64, 1, 0); /* of three slots one is retired */
    struct store_activated got;
    KVT_EQ(store_activate_begin(fix.store, &third, &got, &fix.refusal), STORE_E_SHORT);
    KVT_EQ(fix.refusal.subject, STORE_S_SEQUENCE);
    fix_close(&fix);
}

/* POOL-9 */
static void pool_9_pools_are_apart(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_DFLASH);
    struct store_activated got;
    config.pool_pages[1] = 3; /* the draft pool is short; 8 free Main pages do not help */
    fix_open(&fix, &config);
    fix_activate(&fix, fix_root(64, 1, 64), NULL);
    struct store_activation want = fix_root(129, 1, 0);
    KVT_EQ(store_activate_begin(fix.store, &want, &got, &fix.refusal), STORE_E_SHORT);
    KVT_EQ(fix.refusal.subject, STORE_S_PAGES);
    KVT_EQ(fix.refusal.pool, 1);
    KVT_EQ(fix.refusal.asked, 3);
    KVT_EQ(fix.refusal.had, 2);
    KVT_EQ(fix_pool(&fix, 0).reserved, 0); /* nothing was taken from the other */
    fix_close(&fix);
}

static void pool_3_pool_sets(void) {
    struct fix fix;
    for (int backend = GEOM_OFF; backend <= GEOM_DFLASH; backend++) {
        struct store_config config = fix_config((enum geom_backend)backend);
        fix_open(&fix, &config);
        KVT_EQ(store_n_pools(fix.store), backend == GEOM_OFF ? 1 : 2);
        fix_close(&fix);
    }
    struct store_config config = fix_config(GEOM_DFLASH);
    config.pool_pages[1] = 0; /* no full-attention draft layers */
    fix_open(&fix, &config);
    KVT_EQ(store_n_pools(fix.store), 1);
    KVT_EQ(store_row_entries(fix.store), 8);
    KVT_TRUE(store_table_row(fix.store, 0, 2) != NULL);
    KVT_TRUE(store_table_row(fix.store, 1, 0) == NULL);
    KVT_TRUE(store_table_row(fix.store, 0, 3) == NULL);
    fix_close(&fix);
}

static void config_is_checked(void) {
    struct store_config ok = fix_config(GEOM_MTP), bad;
    char err[256];
    struct store *store = NULL;
    KVT_OK(store_check_config(&ok, err, sizeof err));
#define BAD(change, part)                                                                                              \
    bad = ok;                                                                                                          \
    change;                                                                                                            \
    KVT_EQ(store_check_config(&bad, err, sizeof err), STORE_E_RANGE);                                                  \
    KVT_HAS(err, part);                                                                                                \
    KVT_EQ(store_bytes(&bad), 0);                                                                                      \
    KVT_EQ(store_init(err, 1, &bad, &store, NULL, 0), STORE_E_RANGE)
    BAD(bad.pool_pages[1] = 0, "pool 1 has 0 pages");
    BAD(bad.pool_pages[0] = UINT32_MAX, "pool 0");
    BAD(bad.backend = (enum geom_backend)9, "backend 9");
    BAD(bad.draft_window = 16, "draft_window is 16");
    BAD(bad.max_context = 0, "max_context");
    BAD(bad.max_concurrency = 0, "max_concurrency");
    BAD(bad.max_continuations = 0, "max_continuations");
    BAD(bad.lease_growth = true; bad.lease_window = bad.prefill_chunk = 0, "lease_window");
    BAD(bad.has_state = true; bad.state_slots = 2, "state_slots is 2");
    BAD(bad.widest_verify = UINT32_MAX, "widest_verify");
    BAD(bad.membership_entries = UINT64_MAX, "membership_entries");
    KVT_EQ(store_init(err, 0, &ok, &store, err, sizeof err), STORE_E_RANGE); /* no room */
    KVT_HAS(err, "the store needs");
    KVT_TRUE(store == NULL);
}

/* <= 160 bytes of metadata a page group at 10^6 pages, everything counted. */
static void metadata_stays_small(void) {
    struct store_config config = { .backend = GEOM_OFF,
                                   .pool_pages = { 1000000 },
                                   .max_context = 131072,
                                   .max_concurrency = 64,
                                   .max_continuations = 10000 };
    double bytes = (double)store_bytes(&config) / 1e6;
    KVT_TRUE(bytes > 96);
    KVT_TRUE(bytes <= 160);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(page_choice_order),
                                             KVT_CASE(page_choice_against_scan),
                                             KVT_CASE(pool_6_capacity_is_the_sum),
                                             KVT_CASE(pool_7_materialize_leaves_available),
                                             KVT_CASE(pool_8_stale_lease_is_refused),
                                             KVT_CASE(pool_8_handles_retire_on_wrap),
                                             KVT_CASE(pool_9_pools_are_apart),
                                             KVT_CASE(pool_3_pool_sets),
                                             KVT_CASE(config_is_checked),
                                             KVT_CASE(metadata_stays_small),
                                             { 0 } };
    return kvt_main("store pool", cases, argc, argv);
}
