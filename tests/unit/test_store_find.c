/* SPDX-License-Identifier: Apache-2.0
 *
 * Names and lookup (CONT-2): against a plain scan of all continuations, and the cases that matter one by one.
 */
#include "store_fixture.h"

#define DOMAINS 3

static struct kvd_root domain(uint32_t d) {
    struct kvd_root root = { .digest = { { (uint8_t)d } }, .label = "" };
    snprintf(root.label, sizeof root.label, "domain-%u", d);
    return root;
}

static uint32_t find(struct fix *fix, uint32_t salt, uint32_t turn, uint32_t salt2, uint32_t n, struct kvd_hit *ret,
                     uint32_t max) {
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

/* Root of a domain: pages of chain `salt`, then this tail; retained. */
static store_cont kept(struct fix *fix, uint32_t d, uint32_t salt, uint32_t pages, const struct kvd_tail *tail) {
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    uint32_t tokens = pages * 64 + tail->n;
    struct store_activation want = fix_root(tokens, 1, 0);
    store_cont cont = { 0 };
    want.root = domain(d);
    store_seq seq = fix_activate(fix, want, NULL);
    if (!KVT_TRUE(seq.bits != 0) || !fix_fill(fix, seq, tokens, salt)) return cont;
    KVT_OK(store_finish(fix->store, seq, FIX_LEASE, STORE_FINISH_RETAIN, tail, 1, &cont, rows, &fix->refusal));
    return cont;
}

/* The question about `pages` pages of chain `salt`, and then these tokens. */
static struct store_found ask(struct fix *fix, uint32_t d, uint32_t salt, uint32_t pages, const struct kvd_tail *tokens,
                              struct kvd_hit *ret, uint32_t max) {
    uint8_t chain[64][32];
    struct store_found found = { 0 };
    fix_chain(salt, 64, 0, pages, chain);
    const struct store_query query = { .root = domain(d).digest,
                                       .digests = (const uint8_t(*)[32])chain,
                                       .n = pages,
                                       .max = max,
                                       .prompt_tokens = pages * 64 + tokens->n + 1,
                                       .token_page = pages,
                                       .tokens = tokens };
    KVT_OK(store_find(fix->store, &query, ret, &found, NULL));
    return found;
}

/* CONT-2: what shares most comes first, and of those that share the same the one that ends sooner. */
static void cont_2_deepest_first(void) {
    struct fix fix;
    struct store_config config = roomy();
    struct kvd_hit got[8];
    fix_open(&fix, &config);
    store_cont a = fix_cont(&fix, 64 * 4, 1), b = fix_cont(&fix, 64 * 6 + 10, 1);
    fix_cont(&fix, 30, 9);
    KVT_EQ(find(&fix, 1, 99, 0, 5, got, 8), 2);
    KVT_EQ(got[0].continuation.bits, b.bits);
    KVT_EQ(got[0].usable, 320);
    KVT_EQ(got[0].frontier, 394);
    KVT_EQ(got[1].continuation.bits, a.bits);
    KVT_EQ(got[1].usable, 256);
    KVT_EQ(find(&fix, 1, 3, 2, 8, got, 8), 2); /* the prompt turns off after three pages */
    KVT_EQ(got[0].usable, 192);
    KVT_EQ(got[0].continuation.bits, a.bits); /* holds less that is of no use here */
    KVT_EQ(got[1].usable, 192);
    KVT_EQ(find(&fix, 2, 99, 0, 4, got, 8), 0); /* another salt: no page in common */
    KVT_EQ(find(&fix, 1, 99, 0, 6, got, 0), 0);
    fix_close(&fix);
}

/* CONT-2, NAME-1: digests are compared whole: one that differs in any one byte names other tokens, as a page's, as the
 * name of a page that has one, and as a root. */
static void cont_2_every_byte_of_a_digest_counts(void) {
    struct fix fix;
    struct store_config config = roomy();
    struct kvd_hit got[2];
    fix_open(&fix, &config);
    (void)fix_cont(&fix, 128, 1);
    store_seq seq = fix_activate(&fix, fix_root(200, 1, 0), NULL);
    fix_fill(&fix, seq, 128, 1);
    for (uint32_t byte = 0; byte < KVD_DIGEST_BYTES; byte++) {
        uint8_t chain[2][32];
        fix_chain(1, 2, 0, 2, chain);
        KVT_EQ(fix_find(fix.store, (const uint8_t(*)[32])chain, 2, got, 2), 2); /* one of them runs */
        KVT_EQ(got[0].usable, 128);
        chain[1][byte] ^= 1;
        KVT_EQ(fix_find(fix.store, (const uint8_t(*)[32])chain, 2, got, 2), 2); /* one of them runs */
        KVT_EQ(got[0].usable, 64);
        KVT_EQ(store_name_pages(fix.store, seq, FIX_LEASE, 1, 1, (const uint8_t(*)[32])chain[1], &fix.refusal),
               STORE_E_NAME);
        chain[0][byte] ^= 1; /* a digest commits to all before it: both are others then */
        KVT_EQ(fix_find(fix.store, (const uint8_t(*)[32])chain, 2, got, 2), 0);
        fix_chain(1, 2, 0, 2, chain);
        struct store_query query = {
            .digests = (const uint8_t(*)[32])chain, .n = 2, .max = 2, .prompt_tokens = 192, .token_page = 2
        };
        struct store_found found = { 0 };
        query.root.bytes[byte] ^= 1;
        KVT_OK(store_find(fix.store, &query, got, &found, NULL));
        KVT_EQ(found.n, 0);
    }
    fix_close(&fix);
}

/* CONT-2: equal hits are in the order of what bringing them back costs. */
static void cont_2_cheapest_of_equals(void) {
    struct fix fix;
    struct store_config config = roomy();
    struct kvd_hit got[8];
    store_move move;
    config.host_bytes = 64 * 256;
    config.host_stride[0] = 256;
    fix_open(&fix, &config);
    store_cont cold = fix_cont(&fix, 64 * 3, 1), warm = fix_cont(&fix, 64 * 3 + 20, 1);
    KVT_OK(store_move_begin(fix.store, cold, STORE_PLACE_HOST, &move, &fix.refusal));
    struct store_copy copies[8];
    uint64_t cursor = 0;
    uint32_t n = store_next_copies(fix.store, (struct store_transition){ true, move.bits }, &cursor, copies, 8);
    for (uint32_t i = 0; i < n; i++) store_copied_out(fix.store, copies[i].replica, 77);
    KVT_OK(store_move_commit(fix.store, move, &fix.refusal));
    KVT_EQ(find(&fix, 1, 99, 0, 3, got, 8), 2);
    KVT_EQ(got[0].continuation.bits, warm.bits);
    KVT_EQ(got[0].restore_pages, 0);
    KVT_EQ(got[1].continuation.bits, cold.bits);
    KVT_EQ(got[1].restore_pages, 3);
    fix_close(&fix);
}

/* NAME-1: equal tokens of another domain are no hit, at any length; and a source of another domain is refused. */
static void name_1_domains_are_apart(void) {
    static const uint32_t lengths[][2] = { { 0, 1 }, { 0, 40 }, { 0, 63 }, { 1, 0 }, { 1, 5 }, { 3, 0 }, { 3, 63 } };
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int state = 0; state < 2; state++) {
            struct fix fix;
            struct store_config config = roomy();
            struct kvd_hit got[4];
            uint32_t pages = lengths[i][0], n = lengths[i][1];
            const struct kvd_tail *tail = fix_tail(n);
            config.has_state = state;
            config.state_slots = 20;
            fix_open(&fix, &config);
            store_cont of_1 = kept(&fix, 1, 7, pages, tail);
            KVT_EQ(ask(&fix, 2, 7, pages, tail, got, 4).n, 0);
            KVT_EQ(ask(&fix, 1, 7, pages, tail, got, 4).n, 1);
            KVT_EQ(got[0].usable, pages * 64 + n);
            store_cont of_2 = kept(&fix, 2, 7, pages, tail);
            KVT_EQ(ask(&fix, 1, 7, pages, tail, got, 4).n, 1);
            KVT_EQ(got[0].continuation.bits, of_1.bits);
            KVT_EQ(ask(&fix, 2, 7, pages, tail, got, 4).n, 1);
            KVT_EQ(got[0].continuation.bits, of_2.bits);
            struct store_activation want = fix_from(of_1, true, pages * 64 + n, pages * 64 + n, 9);
            struct store_activated made;
            want.root = domain(2);
            KVT_EQ(store_activate_begin(fix.store, &want, &made, &fix.refusal), STORE_E_ARGUMENT);
            KVT_HAS(store_refusal_text(&fix.refusal, (char[256]){ 0 }, 256), "not of the domain");
            want.root = domain(3); /* one that nobody is of */
            KVT_EQ(store_activate_begin(fix.store, &want, &made, &fix.refusal), STORE_E_ARGUMENT);
            KVT_TRUE(fix_audit(&fix));
            want.root = domain(1);
            KVT_OK(store_activate_begin(fix.store, &want, &made, &fix.refusal));
            KVT_OK(fix_commit(&fix, made.seq));
            fix_close(&fix);
        }
}

/* NAME-1: a sequence keeps its domain through checkpoint, move, finish and death, and the lists show it. */
static void name_1_every_origin_carries_it(void) {
    struct fix fix;
    struct store_config config = roomy();
    struct kvd_hit got[4];
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    struct store_checkpointed point;
    store_cont died;
    fix_open(&fix, &config);
    struct store_activation want = fix_root(64 + 10, 100, 0);
    want.root = domain(2);
    store_seq seq = fix_activate(&fix, want, NULL);
    KVT_TRUE(fix_fill(&fix, seq, 74, 7));
    KVT_EQ_STR(fix_seq(&fix, seq).root.label, "domain-2");
    KVT_OK(store_checkpoint_begin(fix.store, seq, FIX_LEASE, FIX_KEEP(fix_tail(74), 0), &point, NULL));
    KVT_OK(store_checkpoint_commit(fix.store, point.cont, NULL, NULL));
    KVT_OK(store_end(fix.store, seq, &died, rows, NULL));
    KVT_EQ(ask(&fix, 1, 7, 1, fix_tail(10), got, 4).n, 0);
    KVT_EQ(ask(&fix, 2, 7, 1, fix_tail(10), got, 4).n, 2);
    KVT_EQ(got[0].continuation.bits, point.cont.bits); /* its tail is known */
    KVT_EQ(got[0].usable, 74);
    KVT_EQ(got[1].usable, 64);
    KVT_EQ_STR(fix_info(&fix, died).root.label, "domain-2");
    want = fix_from(died, false, 74, 74, 9); /* a move; no root given takes the source's */
    seq = fix_activate(&fix, want, NULL);
    KVT_EQ_STR(fix_seq(&fix, seq).root.label, "domain-2");
    KVT_OK(store_release(fix.store, point.cont, NULL));
    store_cont last = fix_retain(&fix, seq, 74);
    KVT_EQ(fix.store->domains.used, 1);
    struct kvd_continuation_info info = fix_info(&fix, last);
    struct kvd_root expected = domain(2);
    KVT_EQ_MEM(&info.root, &expected, sizeof expected);
    KVT_OK(store_release(fix.store, last, NULL));
    KVT_EQ(fix.store->domains.used, 0); /* nobody is of it any more */
    fix_close(&fix);
}

/* NAME-2: 17 chats over one system prompt, and many more, are each found to the token, whatever max is, and those that
 * are of no use take nobody's place. */
static void name_2_siblings_take_no_places(void) {
    for (int state = 0; state < 2; state++) {
        struct fix fix;
        struct store_config config = roomy();
        struct kvd_hit got[16];
        store_cont conts[50];
        config.has_state = state;
        config.state_slots = 60;
        fix_open(&fix, &config);
        struct kvd_tail tail = { .n = 40 };
        for (uint32_t i = 0; i < 50; i++) {
            tail.tokens[7] = i;
            conts[i] = kept(&fix, 1, 7, 2, &tail);
        }
        for (uint32_t i = 0; i < 50; i++)
            for (uint32_t max = 1; max <= 16; max += 15) {
                tail.tokens[7] = i;
                struct store_found found = ask(&fix, 1, 7, 2, &tail, got, max);
                KVT_EQ(found.want_page, KVD_NONE);
                KVT_EQ(found.n, state ? 1 : max);
                KVT_EQ(got[0].continuation.bits, conts[i].bits);
                KVT_EQ(got[0].usable, 168);
                if (found.n > 1) KVT_EQ(got[1].usable, 135); /* up to where the others differ */
            }
        tail.tokens[7] = 99;
        KVT_EQ(ask(&fix, 1, 7, 2, &tail, got, 16).n, state ? 0 : 16);
        if (!state) KVT_EQ(got[0].usable, 135);
        fix_close(&fix);
    }
}

/* The tokens of another page than the last are asked for where tails end there, and only there. */
static void name_2_wants_the_page_where_tails_end(void) {
    struct fix fix;
    struct store_config config = roomy();
    struct kvd_hit got[8];
    struct store_found found;
    uint8_t chain[8][32];
    fix_open(&fix, &config);
    store_cont deep = kept(&fix, 1, 7, 3, fix_tail(20));
    kept(&fix, 1, 7, 1, fix_tail(5));
    fix_chain(7, 3, 8, 8, chain);
    struct store_query query = { .root = domain(1).digest,
                                 .digests = (const uint8_t(*)[32])chain,
                                 .n = 8,
                                 .max = 8,
                                 .prompt_tokens = 8 * 64 + 9,
                                 .token_page = 8,
                                 .tokens = fix_tail(9) };
    KVT_OK(store_find(fix.store, &query, got, &found, NULL));
    KVT_EQ(found.want_page, 3);
    KVT_EQ(found.n, 2);
    KVT_EQ(got[0].usable, 192); /* true already, and not all */
    query.token_page = 3;
    struct kvd_tail tokens = *fix_tail(63);
    query.tokens = &tokens;
    KVT_OK(store_find(fix.store, &query, got, &found, NULL));
    KVT_EQ(found.want_page, KVD_NONE);
    KVT_EQ(got[0].continuation.bits, deep.bits);
    KVT_EQ(got[0].usable, 212);
    KVT_OK(store_release(fix.store, deep, NULL));
    query.token_page = 8;
    query.tokens = NULL;
    KVT_OK(store_find(fix.store, &query, got, &found, NULL));
    KVT_EQ(found.want_page, 1);
    fix_close(&fix);
}

/* The same tokens computed twice: two pages, one name; both are found, and each is found when the other has gone. */
static void cont_2_same_name_twice(void) {
    struct fix fix;
    struct store_config config = roomy();
    struct kvd_hit got[8];
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
    struct kvd_hit got[8];
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
    KVT_EQ(find(&fix, 1, 99, 0, 6, got, 8), 4); /* those that run, too (LIVE-1) */
    KVT_EQ(got[0].continuation.bits, died.bits);
    KVT_EQ(got[0].usable, 384);
    KVT_EQ(got[1].continuation.bits, store_live(fix.store, first).bits);
    KVT_EQ(got[1].usable, 384);
    KVT_EQ(got[2].continuation.bits, shorter.bits);
    KVT_EQ(got[2].usable, 256);
    KVT_EQ(got[3].continuation.bits, store_live(fix.store, second).bits);
    KVT_EQ(got[3].usable, 192);
    fix_close(&fix);
}

/* With state only whole continuations are hits (CONT-4). */
static void cont_4_find_with_state(void) {
    struct fix fix;
    struct store_config config = roomy();
    struct kvd_hit got[8];
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    store_cont died;
    config.has_state = true;
    config.state_slots = 20;
    fix_open(&fix, &config);
    kept(&fix, 1, 1, 4, fix_tail(0));
    store_cont two = kept(&fix, 1, 1, 2, fix_tail(5));
    KVT_EQ(ask(&fix, 1, 1, 2, fix_tail(9), got, 8).n, 1);
    KVT_EQ(got[0].continuation.bits, two.bits);
    KVT_EQ(got[0].usable, 133);
    KVT_EQ(ask(&fix, 1, 1, 2, fix_tail(4), got, 8).n, 0);
    struct store_found found = ask(&fix, 1, 1, 9, fix_tail(0), got, 8);
    KVT_EQ(found.n, 1);
    KVT_EQ(got[0].usable, 256);
    KVT_EQ(found.want_page, 2); /* that tail is not known to match */
    store_seq seq = fix_activate(&fix, fix_root(70, 1, 0), NULL);
    fix_fill(&fix, seq, 70, 5);
    KVT_OK(store_end(fix.store, seq, &died, rows, NULL));
    KVT_TRUE(died.bits != 0);
    KVT_EQ(find(&fix, 5, 99, 0, 1, got, 8), 0); /* six tokens of it are not known */
    fix_close(&fix);
}

/* One part of a long lookup: pages [first, first + n) of the chain, which goes on. */
static int part(struct fix *fix, uint32_t turn, uint32_t salt2, store_cont anchor, uint32_t first, uint32_t n,
                struct kvd_hit *ret, uint32_t max, uint32_t *ret_n, store_cont *ret_anchor) {
    uint8_t chain[64][32];
    fix_chain(1, turn, salt2, 64, chain);
    const struct store_query query = { .digests = (const uint8_t(*)[32])chain + first,
                                       .first = first,
                                       .n = n,
                                       .max = max,
                                       .anchor = anchor,
                                       .prompt_tokens = 65 * 64,
                                       .token_page = 64 };
    struct store_found found;
    int rc = store_find(fix->store, &query, ret, &found, &fix->refusal);
    if (rc) return rc;
    *ret_n = found.n;
    *ret_anchor = found.anchor;
    return STORE_OK;
}

/* A chain in parts: each goes on from the anchor of the one before, and tells only what matches further. */
static void cont_2_long_chains_in_parts(void) {
    struct fix fix;
    struct store_config config = roomy();
    struct kvd_hit got[8];
    store_cont none = { 0 }, anchor, next;
    uint32_t n;
    fix_open(&fix, &config);
    store_cont deep = fix_cont(&fix, 64 * 14 + 9, 1), four = fix_cont(&fix, 64 * 4, 1),
               nine = fix_cont(&fix, 64 * 9 + 1, 1);
    KVT_OK(part(&fix, 99, 0, none, 0, 4, got, 8, &n, &anchor));
    KVT_EQ(n, 3);
    KVT_EQ(got[0].continuation.bits, four.bits);
    KVT_TRUE(anchor.bits != 0);
    KVT_OK(part(&fix, 99, 0, anchor, 3, 5, got, 8, &n, &next)); /* pages 3 to 7: ends inside a run */
    KVT_EQ(n, 2);
    KVT_EQ(got[0].continuation.bits, nine.bits);
    KVT_EQ(got[0].usable, 8 * 64);
    KVT_EQ(got[1].continuation.bits, deep.bits);
    KVT_OK(part(&fix, 99, 0, next, 7, 20, got, 8, &n, &anchor)); /* more than there is */
    KVT_EQ(n, 2);
    KVT_EQ(got[0].continuation.bits, deep.bits);
    KVT_EQ(got[0].usable, 14 * 64);
    KVT_EQ(got[1].usable, 9 * 64);
    KVT_EQ(anchor.bits, 0);                                      /* nothing goes on */
    KVT_OK(part(&fix, 11, 5, next, 7, 20, got, 1, &n, &anchor)); /* the prompt leaves at page 11 */
    KVT_EQ(n, 1);
    KVT_EQ(got[0].continuation.bits, deep.bits);
    KVT_EQ(got[0].usable, 11 * 64);
    KVT_EQ(anchor.bits, 0);
    KVT_OK(
        part(&fix, 8, 5, next, 7, 20, got, 8, &n, &anchor)); /* it leaves where this part begins: all known already */
    KVT_EQ(n, 0);
    KVT_OK(part(&fix, 99, 0, next, 7, 1, got, 8, &n, &anchor)); /* only the page that was known */
    KVT_EQ(n, 0);
    KVT_TRUE(anchor.bits != 0);
    fix_close(&fix);
}

/* An anchor must be there and have the digest; a refused lookup says which. */
static void cont_2_anchor_is_checked(void) {
    struct fix fix;
    struct store_config config = roomy();
    struct kvd_hit got[8];
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
    KVT_OK(store_checkpoint_begin(fix.store, seq, FIX_LEASE, FIX_KEEP(fix_tail(128), 1), &taken, NULL));
    KVT_EQ(part(&fix, 99, 0, taken.cont, 1, 2, got, 8, &n, &anchor),
           STORE_E_STALE); /* not published: it is in no path */
    KVT_OK(store_checkpoint_commit(fix.store, taken.cont, NULL, NULL));
    KVT_OK(part(&fix, 99, 0, taken.cont, 1, 5, got, 8, &n,
                &anchor)); /* it ends there, the path goes on: still a place in it */
    KVT_EQ(n, 1);
    KVT_EQ(got[0].continuation.bits, deep.bits);
    KVT_EQ(got[0].usable, 384);
    KVT_OK(store_release(fix.store, deep, NULL));
    KVT_EQ(part(&fix, 99, 0, deep, 3, 2, got, 8, &n, &anchor), STORE_E_STALE);
    KVT_HAS(store_refusal_text(&fix.refusal, (char[256]){ 0 }, 256), "continuation");
    fix_close(&fix);
}

/* NAME-1: an anchor of another domain is none. */
static void name_1_anchor_of_another_domain(void) {
    struct fix fix;
    struct store_config config = roomy();
    struct kvd_hit got[8];
    store_cont anchor = { 0 };
    uint32_t n;
    fix_open(&fix, &config);
    store_cont other = kept(&fix, 1, 1, 6, fix_tail(0));
    KVT_EQ(part(&fix, 99, 0, other, 3, 2, got, 8, &n, &anchor), STORE_E_NAME);
    fix_close(&fix);
}

/* With state the first parts may have no hit, and yet lead to one. */
static void cont_4_parts_with_state(void) {
    struct fix fix;
    struct store_config config = roomy();
    struct kvd_hit got[8];
    store_cont none = { 0 }, anchor;
    uint32_t n = 9;
    config.has_state = true;
    config.state_slots = 20;
    fix_open(&fix, &config);
    fix_cont(&fix, 64 * 6, 1);
    KVT_OK(part(&fix, 99, 0, none, 0, 4, got, 8, &n, &anchor));
    KVT_EQ(n, 0);
    KVT_TRUE(anchor.bits != 0);
    KVT_OK(part(&fix, 99, 0, anchor, 3, 6, got, 8, &n, &anchor));
    KVT_EQ(n, 1);
    KVT_EQ(got[0].usable, 384);
    fix_close(&fix);
}

/* ---- against a plain scan ---- */

struct known {
    store_cont cont;
    uint32_t domain, turn, salt2, frontier;
    struct kvd_tail tail;
};
struct prompt {
    uint32_t domain, turn, salt2, pages, tokens;
    uint8_t chain[16][32];
    struct kvd_tail page[16]; /* the first tokens of page i, as far as the prompt goes */
};

/* Tokens of two kinds, so that tails have much and little in common. */
static struct kvd_tail few_tokens(uint64_t *random, uint32_t n) {
    struct kvd_tail tail = { .n = n };
    for (uint32_t i = 0; i < n; i++) tail.tokens[i] = kvt_below(random, i < 3 ? 2 : 40) == 0;
    return tail;
}

static uint32_t lcp(const struct kvd_tail *a, const struct kvd_tail *b) {
    uint32_t i = 0;
    while (i < a->n && i < b->n && a->tokens[i] == b->tokens[i]) i++;
    return i;
}

/* What it is good for, where the tokens of page `known` are known (KVD_NONE: of every page). */
static uint32_t usable(const struct fix *fix, const struct known *k, const struct prompt *p, uint32_t known,
                       uint32_t *ret_match) {
    uint32_t match = 0, full = k->frontier / 64, n = 0;
    if (k->domain != p->domain) return 0;
    while (match < p->pages && match < full && (match < k->turn ? 1 : k->salt2) == (match < p->turn ? 1 : p->salt2))
        match++;
    if (match == full && (known == KVD_NONE || known == match)) n = lcp(&k->tail, &p->page[match]);
    *ret_match = match;
    n += match * 64;
    if (n > p->tokens - 1) n = p->tokens - 1;
    return fix->store->config.has_state && n != k->frontier ? 0 : n;
}

static void draw_prompt(uint64_t *random, struct prompt *p) {
    p->domain = kvt_below(random, DOMAINS);
    p->turn = kvt_below(random, 10);
    p->salt2 = 2 + kvt_below(random, 3) + 100 * p->turn;
    p->pages = kvt_below(random, 14);
    p->tokens = p->pages * 64 + kvt_below(random, 64);
    if (p->tokens == 0) p->tokens = 1;
    fix_chain(1, p->turn, p->salt2, 16, p->chain);
    for (uint32_t i = 0; i <= p->pages; i++)
        p->page[i] = few_tokens(random, i < p->pages || p->tokens % 64 == 63 ? 63 : p->tokens % 64);
}

/* One message against the scan: as many hits as there are, the best of them, each with what it is good for. */
static struct store_found check_message(struct fix *fix, const struct known *known, uint32_t n, const struct prompt *p,
                                        uint32_t page, uint32_t max, struct kvd_hit *got) {
    uint32_t want[64] = { 0 }, all = 0, match;
    struct store_query query = { .root = domain(p->domain).digest,
                                 .digests = (const uint8_t(*)[32])p->chain,
                                 .n = p->pages,
                                 .max = max,
                                 .prompt_tokens = p->tokens,
                                 .token_page = page,
                                 .tokens = &p->page[page] };
    struct store_found found = { 0 };
    KVT_OK(store_find(fix->store, &query, got, &found, NULL));
    for (uint32_t i = 0; i < n; i++) {
        uint32_t good = usable(fix, &known[i], p, page, &match), at = all;
        if (!good) continue;
        for (; at > 0 && good > want[at - 1]; at--) want[at] = want[at - 1];
        want[at] = good;
        all++;
    }
    KVT_EQ(found.n, all < max ? all : max);
    for (uint32_t i = 0; i < found.n; i++) {
        const struct known *k = known;
        while (k < known + n && k->cont.bits != got[i].continuation.bits) k++;
        if (!KVT_TRUE(k < known + n)) break;
        KVT_EQ(got[i].usable, usable(fix, k, p, page, &match));
        KVT_EQ(got[i].usable, want[i]);
        KVT_EQ(got[i].frontier, k->frontier);
    }
    return found;
}

/* All messages that a prompt takes: after them the best hit is the best there is. */
static void check_lookup(struct fix *fix, const struct known *known, uint32_t n, const struct prompt *p, uint32_t max) {
    struct kvd_hit got[64];
    uint32_t best = 0, truth = 0, match, page = p->pages, messages = 0;
    do {
        struct store_found found = check_message(fix, known, n, p, page, max, got);
        if (found.n && got[0].usable > best) best = got[0].usable;
        KVT_TRUE(found.want_page == KVD_NONE || found.want_page < page);
        page = found.want_page;
        messages++;
    } while (page != KVD_NONE && best / 64 <= page);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t good = usable(fix, &known[i], p, KVD_NONE, &match);
        if (good > truth) truth = good;
    }
    KVT_EQ(best, truth);
    if (!fix->store->config.has_state) KVT_TRUE(messages <= 2);
}

/* The second of two parts has what matches past the cut. */
static void check_parts(struct fix *fix, const struct known *known, uint32_t n, const struct prompt *p, uint32_t cut) {
    struct kvd_hit got[64];
    uint32_t deeper = 0, match;
    struct store_query query = { .root = domain(p->domain).digest,
                                 .digests = (const uint8_t(*)[32])p->chain,
                                 .n = cut,
                                 .max = 64,
                                 .prompt_tokens = p->tokens,
                                 .token_page = p->pages,
                                 .tokens = &p->page[p->pages] };
    struct store_found found;
    KVT_OK(store_find(fix->store, &query, got, &found, NULL));
    for (uint32_t i = 0; i < n; i++) deeper += usable(fix, &known[i], p, p->pages, &match) > 0 && match > cut;
    if (deeper) KVT_TRUE(found.anchor.bits != 0);
    query.anchor = found.anchor;
    query.first = cut - 1;
    query.digests = (const uint8_t(*)[32])p->chain + cut - 1;
    query.n = p->pages - cut + 1;
    found.n = 0;
    if (query.anchor.bits) KVT_OK(store_find(fix->store, &query, got, &found, NULL));
    KVT_EQ(found.n, deeper);
}

/* Random forests of chains in several domains, inserted and removed, against the plain definition. Chains that turn at
 * page t into another salt make branches at every depth. A chain that turned never comes back, as with real digests. */
static void scan(bool state) {
    struct fix fix;
    struct store_config config = roomy();
    uint64_t random = kvt_seed();
    static struct known known[40];
    uint32_t n = 0;
    config.has_state = state;
    config.state_slots = 60;
    fix_open(&fix, &config);
    for (int step = 0; step < 3000; step++) {
        if (n < 40 && kvt_below(&random, 2)) {
            struct known k = { .domain = kvt_below(&random, DOMAINS),
                               .turn = kvt_below(&random, 10),
                               .salt2 = 2 + kvt_below(&random, 3),
                               .frontier = 1 + kvt_below(&random, 64 * (kvt_below(&random, 3) ? 12 : 1)) };
            struct kvd_pool_view rows[KVD_MAX_POOLS];
            struct store_activation want = fix_root(k.frontier, 1, k.frontier);
            uint8_t chain[16][32];
            want.root = domain(k.domain);
            want.tag = (uint64_t)step + 1; /* equal ones of one owner would be one */
            store_seq seq = fix_activate(&fix, want, NULL);
            if (seq.bits == 0) continue;
            k.salt2 += 100 * k.turn;
            k.tail = few_tokens(&random, k.frontier % 64);
            fix_chain(1, k.turn, k.salt2, k.frontier / 64, chain);
            struct store_round_item item = fix_item(seq);
            struct store_round_result result;
            item.pool[0].ask = KVD_ROUND_COMMIT;
            item.pool[0].commit = k.frontier;
            item.ask = state ? KVD_ROUND_STATE : 0;
            item.state_frontier = k.frontier;
            store_round(fix.store, &item, 1, &result);
            KVT_OK(result.refusal.code);
            KVT_OK(store_name_pages(fix.store, seq, FIX_LEASE, 0, k.frontier / 64, (const uint8_t(*)[32])chain, NULL));
            KVT_OK(store_finish(fix.store, seq, FIX_LEASE, STORE_FINISH_RETAIN, &k.tail, 1, &k.cont, rows, NULL));
            known[n++] = k;
        } else if (n) {
            uint32_t i = kvt_below(&random, n);
            KVT_OK(store_release(fix.store, known[i].cont, NULL));
            known[i] = known[--n];
        }
        struct prompt prompt;
        draw_prompt(&random, &prompt);
        check_lookup(&fix, known, n, &prompt, kvt_below(&random, 4) ? 64 : 1 + kvt_below(&random, 5));
        if (prompt.pages >= 3) check_parts(&fix, known, n, &prompt, 2 + kvt_below(&random, prompt.pages - 2));
        if (step % 50 == 0 && !fix_audit(&fix)) break;
    }
    fix_close(&fix);
}

static void name_2_against_scan(void) { scan(false); }
static void name_2_against_scan_with_state(void) { scan(true); }

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(cont_2_deepest_first),
                                             KVT_CASE(cont_2_cheapest_of_equals),
                                             KVT_CASE(cont_2_every_byte_of_a_digest_counts),
                                             KVT_CASE(name_1_domains_are_apart),
                                             KVT_CASE(name_1_every_origin_carries_it),
                                             KVT_CASE(name_1_anchor_of_another_domain),
                                             KVT_CASE(name_2_siblings_take_no_places),
                                             KVT_CASE(name_2_wants_the_page_where_tails_end),
                                             KVT_CASE(cont_2_same_name_twice),
                                             KVT_CASE(cont_2_late_names),
                                             KVT_CASE(cont_4_find_with_state),
                                             KVT_CASE(cont_2_long_chains_in_parts),
                                             KVT_CASE(cont_2_anchor_is_checked),
                                             KVT_CASE(cont_4_parts_with_state),
                                             KVT_CASE(name_2_against_scan),
                                             KVT_CASE(name_2_against_scan_with_state),
                                             { 0 } };
    return kvt_main("store find", cases, argc, argv);
}
