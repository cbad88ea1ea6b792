/* SPDX-License-Identifier: Apache-2.0
 *
 * Names and lookup (CONT-2): against a plain scan of all continuations, and the cases that matter one by one.
 */
#include "store_fixture.h"

static uint32_t find(struct fix *fix, uint32_t salt, uint32_t turn, uint32_t salt2, uint32_t n,
                     struct kvd_candidate *ret, uint32_t max) {
    uint8_t chain[64][32];
    fix_chain(salt, turn, salt2, n, chain);
    return fix_find(fix->store, (const uint8_t(*)[32])chain, n, ret, max);
}

static struct store_config roomy(void) {
    struct store_config config = fix_config(GEOM_OFF);
    config.pool_pages[0] = 600;
    config.max_context = 64 * 16;
    config.max_continuations = 60;
    return config;
}

static void cont_2_deepest_longest_newest(void) {
    struct fix fix;
    struct store_config config = roomy();
    struct kvd_candidate got[8];
    fix_open(&fix, &config);
    store_cont a = fix_cont(&fix, 64 * 4, 1), b = fix_cont(&fix, 64 * 6 + 10, 1), c = fix_cont(&fix, 64 * 6 + 10, 1);
    store_cont tail_only = fix_cont(&fix, 30, 9);
    KVT_EQ(find(&fix, 1, 99, 0, 5, got, 8), 3);
    KVT_EQ(got[0].continuation.bits, c.bits); /* matches 5 pages, as long as b, newer */
    KVT_EQ(got[1].continuation.bits, b.bits);
    KVT_EQ(got[2].continuation.bits, a.bits);
    KVT_EQ(got[0].matched_pages, 5);
    KVT_EQ(got[2].matched_pages, 4);
    KVT_FALSE(got[0].exact_pages);
    KVT_EQ(got[0].tail.n, 0);
    KVT_TRUE(got[2].exact_pages);
    KVT_EQ(find(&fix, 1, 99, 0, 6, got, 2), 2);
    KVT_TRUE(got[0].exact_pages);
    KVT_EQ(got[0].tail.n, 10);
    KVT_EQ(got[0].tail.tokens[9], 10);
    KVT_EQ(find(&fix, 1, 3, 2, 8, got, 8), 3); /* the prompt turns off after three pages */
    KVT_EQ(got[0].matched_pages, 3);
    KVT_EQ(got[2].continuation.bits, a.bits);
    KVT_EQ(got[2].matched_pages, 3);
    KVT_FALSE(got[2].exact_pages);
    KVT_EQ(find(&fix, 2, 99, 0, 4, got, 8), 0); /* another domain or salt: no page in common */
    KVT_EQ(find(&fix, 0, 0, 0, 0, got, 8), 1);
    KVT_EQ(got[0].continuation.bits, tail_only.bits);
    KVT_EQ(got[0].tail.n, 30);
    KVT_EQ(find(&fix, 1, 99, 0, 6, got, 0), 0);
    fix_close(&fix);
}

/* The same tokens computed twice: two pages, one name; both are found, and each is found when the other has gone. */
static void cont_2_same_name_twice(void) {
    struct fix fix;
    struct store_config config = roomy();
    struct kvd_candidate got[8];
    fix_open(&fix, &config);
    store_cont a = fix_cont(&fix, 64 * 3, 1), b = fix_cont(&fix, 64 * 3, 1);
    KVT_EQ(find(&fix, 1, 99, 0, 3, got, 8), 2);
    KVT_EQ(fix.store->index.used, 2);
    KVT_OK(store_release(fix.store, b, NULL));
    KVT_TRUE(fix_audit(&fix));
    KVT_EQ(find(&fix, 1, 99, 0, 3, got, 8), 1);
    KVT_EQ(got[0].continuation.bits, a.bits);
    fix_close(&fix);
}

/* CONT-2: pages that a death left without names get them from a sequence that shares them, many at a time: whoever
 * holds them is found by them, as far as he holds them. */
static void cont_2_late_names(void) {
    struct fix fix;
    struct store_config config = roomy();
    struct kvd_candidate got[8];
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    uint8_t chain[6][32];
    store_cont died, shorter;
    fix_chain(1, 99, 0, 6, chain);
    fix_open(&fix, &config);
    store_seq seq = fix_activate(&fix, fix_root(384, 1, 384), NULL);
    KVT_OK(fix_round(&fix, seq, 384, KVD_NONE, KVD_NONE, KVD_NONE, NULL));
    KVT_OK(store_end(fix.store, seq, &died, rows, NULL));
    seq = fix_activate(&fix, fix_from(died, true, 256, 256, 1), NULL);
    KVT_OK(store_end(fix.store, seq, &shorter, rows, NULL));
    store_seq first = fix_activate(&fix, fix_from(died, true, 384, 384, 1), NULL),
              second = fix_activate(&fix, fix_from(shorter, true, 192, 192, 1), NULL);
    KVT_OK(store_name_pages(fix.store, first, FIX_LEASE, 0, 2, (const uint8_t(*)[32])chain, NULL));
    KVT_TRUE(fix_audit(&fix));
    KVT_EQ(fix_info(&fix, died).named_pages, 2);
    KVT_EQ(fix_info(&fix, shorter).named_pages, 2);
    KVT_EQ(fix_seq(&fix, second).named_pages, 2);
    KVT_OK(store_name_pages(fix.store, first, FIX_LEASE, 2, 4, (const uint8_t(*)[32])chain + 2, NULL));
    KVT_TRUE(fix_audit(&fix));
    KVT_EQ(fix_info(&fix, died).named_pages, 6);
    KVT_EQ(fix_info(&fix, shorter).named_pages, 4);
    KVT_EQ(fix_seq(&fix, first).named_pages, 6);
    KVT_EQ(fix_seq(&fix, second).named_pages, 3);
    KVT_EQ(find(&fix, 1, 99, 0, 6, got, 8), 2);
    KVT_EQ(got[0].continuation.bits, died.bits);
    KVT_EQ(got[0].matched_pages, 6);
    KVT_EQ(got[1].continuation.bits, shorter.bits);
    KVT_EQ(got[1].matched_pages, 4);
    fix_close(&fix);
}

/* With state only whole matches with a known tail are candidates (CONT-4). */
static void cont_4_find_with_state(void) {
    struct fix fix;
    struct store_config config = roomy();
    struct kvd_candidate got[8];
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    store_cont died;
    config.has_state = true;
    config.state_slots = 20;
    fix_open(&fix, &config);
    fix_cont(&fix, 64 * 4, 1);
    store_cont two = fix_cont(&fix, 64 * 2 + 5, 1);
    KVT_EQ(find(&fix, 1, 99, 0, 3, got, 8), 1);
    KVT_EQ(got[0].continuation.bits, two.bits);
    KVT_EQ(find(&fix, 1, 99, 0, 9, got, 8), 2);
    KVT_EQ(got[0].matched_pages, 4);
    store_seq seq = fix_activate(&fix, fix_root(70, 1, 0), NULL);
    fix_fill(&fix, seq, 70, 5);
    KVT_OK(store_end(fix.store, seq, &died, rows, NULL));
    KVT_TRUE(died.bits != 0);
    KVT_EQ(find(&fix, 5, 99, 0, 1, got, 8), 0); /* six tokens of it are not known */
    fix_close(&fix);
}

/* One part of a long lookup: pages [first, first + n) of the chain. */
static int part(struct fix *fix, uint32_t turn, uint32_t salt2, store_cont anchor, uint32_t first, uint32_t n,
                struct kvd_candidate *ret, uint32_t max, uint32_t *ret_n, store_cont *ret_anchor) {
    uint8_t chain[64][32];
    fix_chain(1, turn, salt2, 64, chain);
    const struct store_query query = {
        .digests = (const uint8_t(*)[32])chain + first, .first = first, .n = n, .max = max, .anchor = anchor
    };
    struct store_found found = { 0 };
    int rc = store_find(fix->store, &query, ret, &found, &fix->refusal);
    *ret_n = found.n;
    *ret_anchor = found.anchor;
    return rc;
}

/* A chain in parts: each goes on from the anchor of the one before, and tells only what matches further. */
static void cont_2_long_chains_in_parts(void) {
    struct fix fix;
    struct store_config config = roomy();
    struct kvd_candidate got[8];
    store_cont none = { 0 }, anchor, next;
    uint32_t n;
    fix_open(&fix, &config);
    store_cont deep = fix_cont(&fix, 64 * 14 + 9, 1), four = fix_cont(&fix, 64 * 4, 1),
               nine = fix_cont(&fix, 64 * 9 + 1, 1);
    KVT_OK(part(&fix, 99, 0, none, 0, 4, got, 8, &n, &anchor));
    KVT_EQ(n, 3);
    KVT_EQ(got[2].continuation.bits, four.bits);
    KVT_EQ(anchor.bits, deep.bits);
    KVT_OK(part(&fix, 99, 0, anchor, 3, 5, got, 8, &n, &next)); /* pages 3 to 7: ends inside a run */
    KVT_EQ(n, 2);
    KVT_EQ(got[0].continuation.bits, deep.bits);
    KVT_EQ(got[0].matched_pages, 8);
    KVT_EQ(got[1].continuation.bits, nine.bits);
    KVT_OK(part(&fix, 99, 0, next, 7, 20, got, 8, &n, &anchor)); /* more than there is */
    KVT_EQ(n, 2);
    KVT_EQ(got[0].matched_pages, 14);
    KVT_TRUE(got[0].exact_pages);
    KVT_EQ(got[0].tail.n, 9);
    KVT_EQ(got[1].matched_pages, 9);
    KVT_TRUE(got[1].exact_pages);
    KVT_EQ(anchor.bits, 0);                                      /* nothing goes on */
    KVT_OK(part(&fix, 11, 5, next, 7, 20, got, 1, &n, &anchor)); /* the prompt leaves at page 11 */
    KVT_EQ(n, 1);
    KVT_EQ(got[0].continuation.bits, deep.bits);
    KVT_EQ(got[0].matched_pages, 11);
    KVT_EQ(anchor.bits, 0);
    KVT_OK(
        part(&fix, 8, 5, next, 7, 20, got, 8, &n, &anchor)); /* it leaves where this part begins: all known already */
    KVT_EQ(n, 0);
    KVT_OK(part(&fix, 99, 0, next, 7, 1, got, 8, &n, &anchor)); /* only the page that was known */
    KVT_EQ(n, 0);
    KVT_EQ(anchor.bits, deep.bits);
    fix_close(&fix);
}

/* An anchor must be there and have the digest; a refused lookup says which. */
static void cont_2_anchor_is_checked(void) {
    struct fix fix;
    struct store_config config = roomy();
    struct kvd_candidate got[8];
    store_cont none = { 0 }, anchor;
    uint32_t n;
    fix_open(&fix, &config);
    store_cont deep = fix_cont(&fix, 64 * 6, 1);
    KVT_EQ(part(&fix, 99, 0, none, 3, 2, got, 8, &n, &anchor), STORE_E_STALE);
    KVT_EQ(part(&fix, 99, 0, deep, 6, 2, got, 8, &n, &anchor), STORE_E_STALE); /* has no page 6 (any more) */
    KVT_EQ(part(&fix, 3, 5, deep, 3, 2, got, 8, &n, &anchor), STORE_E_NAME);   /* has another page 3 */
    KVT_EQ(part(&fix, 99, 0, deep, 3, 0, got, 8, &n, &anchor), STORE_E_ARGUMENT);
    KVT_EQ(part(&fix, 99, 0, deep, 3, UINT32_MAX - 2, got, 8, &n, &anchor), STORE_E_ARGUMENT);
    store_seq seq = fix_activate(&fix, fix_root(128, 20, 0), NULL);
    fix_fill(&fix, seq, 128, 1);
    struct store_checkpointed taken;
    KVT_OK(store_checkpoint_begin(fix.store, seq, FIX_LEASE, fix_tail(128), 1, &taken, NULL));
    KVT_EQ(part(&fix, 99, 0, taken.cont, 1, 2, got, 8, &n, &anchor),
           STORE_E_STALE); /* not published: it is in no path */
    KVT_OK(store_checkpoint_commit(fix.store, taken.cont, NULL, NULL));
    KVT_OK(part(&fix, 99, 0, taken.cont, 1, 5, got, 8, &n,
                &anchor)); /* it ends there, the path goes on: still a place in it */
    KVT_EQ(n, 1);
    KVT_EQ(got[0].continuation.bits, deep.bits);
    KVT_EQ(got[0].matched_pages, 6);
    KVT_OK(store_release(fix.store, deep, NULL));
    KVT_EQ(part(&fix, 99, 0, deep, 3, 2, got, 8, &n, &anchor), STORE_E_STALE);
    KVT_HAS(store_refusal_text(&fix.refusal, (char[256]){ 0 }, 256), "continuation");
    fix_close(&fix);
}

/* With state the first parts may have no candidate, and yet lead to one. */
static void cont_4_parts_with_state(void) {
    struct fix fix;
    struct store_config config = roomy();
    struct kvd_candidate got[8];
    store_cont none = { 0 }, anchor;
    uint32_t n = 9;
    config.has_state = true;
    config.state_slots = 20;
    fix_open(&fix, &config);
    store_cont deep = fix_cont(&fix, 64 * 6 + 3, 1);
    KVT_OK(part(&fix, 99, 0, none, 0, 4, got, 8, &n, &anchor));
    KVT_EQ(n, 0);
    KVT_EQ(anchor.bits, deep.bits);
    KVT_OK(part(&fix, 99, 0, anchor, 3, 6, got, 8, &n, &anchor));
    KVT_EQ(n, 1);
    KVT_EQ(got[0].matched_pages, 6);
    KVT_EQ(got[0].tail.n, 3);
    fix_close(&fix);
}

struct known {
    store_cont cont;
    uint32_t salt, turn, salt2, frontier;
};

static bool page_equal(const struct known *k, uint32_t salt, uint32_t turn, uint32_t salt2, uint32_t page) {
    return (page < k->turn ? k->salt : k->salt2) == (page < turn ? salt : salt2);
}

/* Random forests of chains, inserted and removed, against the plain definition. Chains that turn at page t into another
 * salt make branches at every depth. A chain that turned never comes back, as with real digests. */
static void cont_2_against_scan(void) {
    struct fix fix;
    struct store_config config = roomy();
    uint64_t random = kvt_seed();
    struct known known[40];
    uint32_t n = 0;
    fix_open(&fix, &config);
    for (int step = 0; step < 3000; step++) {
        if (n < 40 && kvt_below(&random, 2)) {
            struct known k = {
                { 0 }, 1, kvt_below(&random, 10), 2 + kvt_below(&random, 3), 1 + kvt_below(&random, 64 * 12)
            };
            store_seq seq = fix_activate(&fix, fix_root(k.frontier, 1, k.frontier), NULL);
            if (seq.bits == 0) continue;
            uint8_t chain[16][32];
            fix_chain(k.salt, k.turn, k.salt2 + 100 * k.turn, k.frontier / 64, chain);
            KVT_OK(fix_round(&fix, seq, k.frontier, KVD_NONE, KVD_NONE, KVD_NONE, NULL));
            KVT_OK(store_name_pages(fix.store, seq, FIX_LEASE, 0, k.frontier / 64, (const uint8_t(*)[32])chain, NULL));
            k.salt2 += 100 * k.turn;
            k.cont = fix_retain(&fix, seq, k.frontier);
            known[n++] = k;
        } else if (n) {
            uint32_t i = kvt_below(&random, n);
            KVT_OK(store_release(fix.store, known[i].cont, NULL));
            memmove(known + i, known + i + 1, (--n - i) * sizeof *known); /* known stays in order of age */
        }
        struct kvd_candidate got[40], best[40];
        uint32_t turn = kvt_below(&random, 10), salt2 = 2 + kvt_below(&random, 3) + 100 * turn,
                 pages = kvt_below(&random, 14), want = 0;
        uint32_t max = kvt_below(&random, 4) ? 40 : 1 + kvt_below(&random, 5);
        for (uint32_t i = n; i-- > 0;) { /* newest first, then insertion by depth and length keeps the age order */
            uint32_t match = 0, at = want;
            while (match < pages && match < known[i].frontier / 64 && page_equal(&known[i], 1, turn, salt2, match))
                match++;
            if (pages ? match == 0 : known[i].frontier >= 64) continue;
            for (; at > 0 && (match > best[at - 1].matched_pages ||
                              (match == best[at - 1].matched_pages && known[i].frontier > best[at - 1].frontier));
                 at--)
                best[at] = best[at - 1];
            best[at] = (struct kvd_candidate){ .continuation.bits = known[i].cont.bits,
                                               .matched_pages = match,
                                               .frontier = known[i].frontier };
            want++;
        }
        uint32_t have = find(&fix, 1, turn, salt2, pages, got, max);
        KVT_EQ(have, want < max ? want : max);
        for (uint32_t i = 0; i < have; i++) {
            KVT_EQ(got[i].continuation.bits, best[i].continuation.bits);
            KVT_EQ(got[i].matched_pages, best[i].matched_pages);
        }
        if (pages >= 3) { /* the same in two parts: the second has what matches past the cut */
            uint32_t cut = 2 + kvt_below(&random, pages - 2), deeper = 0;
            store_cont anchor;
            KVT_OK(part(&fix, turn, salt2, (store_cont){ 0 }, 0, cut, got, max, &have, &anchor));
            while (deeper < want && best[deeper].matched_pages > cut) deeper++;
            if (deeper) KVT_TRUE(anchor.bits != 0);
            have = 0;
            if (anchor.bits)
                KVT_OK(part(&fix, turn, salt2, anchor, cut - 1, pages - cut + 1, got, max, &have, &anchor));
            KVT_EQ(have, deeper < max ? deeper : max);
            for (uint32_t i = 0; i < have; i++) KVT_EQ(got[i].continuation.bits, best[i].continuation.bits);
        }
        if (step % 50 == 0 && !fix_audit(&fix)) break;
    }
    fix_close(&fix);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(cont_2_deepest_longest_newest),
                                             KVT_CASE(cont_2_same_name_twice),
                                             KVT_CASE(cont_2_late_names),
                                             KVT_CASE(cont_4_find_with_state),
                                             KVT_CASE(cont_2_long_chains_in_parts),
                                             KVT_CASE(cont_2_anchor_is_checked),
                                             KVT_CASE(cont_4_parts_with_state),
                                             KVT_CASE(cont_2_against_scan),
                                             { 0 } };
    return kvt_main("store find", cases, argc, argv);
}
