/* SPDX-License-Identifier: Apache-2.0
 *
 * What the store's operations cost at 10^4 to 10^7 pages. Objects are taken in turn from as many as fit into the pool,
 * so that at the larger sizes their records come from memory, not from a cache. Prints lines "BENCH name value unit".
 *
 * Then two tiers: moves of 2,048 pages, the record of a page in the directory, recovery of 10,000 continuations of 100
 * pages.
 *
 * Usage: bench_store [largest power of ten]
 */
#include "round_ask.h"
#include "store_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LEASE 1
#define CHAIN 2048u /* pages of the long continuations */

struct bench {
    struct store *store;
    void *memory;
    uint32_t pages, n_conts;
    store_cont *conts;
    uint8_t (*chain)[32];
    uint64_t random;
    char size[8];
    struct directory *directory; /* of two tiers */
    void *tables, *handle;
};

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* the store never waits: time spent elsewhere is not its own */
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t next_random(uint64_t *state) {
    uint64_t z = (*state += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static void die(const char *what, const struct store_refusal *refusal) {
    char text[256] = "";
    fprintf(stderr, "bench_store: %s: %s\n", what, refusal ? store_refusal_text(refusal, text, sizeof text) : "");
    exit(1);
}

static void result(const struct bench *b, const char *name, double value, const char *unit) {
    printf("BENCH store_%s_%s %.2f %s\n", name, b->size, value, unit);
}

static void commit(struct bench *b, store_seq seq) {
    struct store_refusal refusal;
    int rc;
    do rc = store_activate_commit(b->store, seq, &refusal);
    while (rc == STORE_MORE); /* rows follow the copies */
    if (rc) die("commit", &refusal);
}

static store_seq activate(struct bench *b, struct store_activation want) {
    struct store_activated got;
    struct store_refusal refusal;
    if (store_activate_begin(b->store, &want, &got, &refusal)) die("begin", &refusal);
    commit(b, got.seq);
    return got.seq;
}

static store_seq root(struct bench *b, uint32_t pages, uint32_t ensure) {
    return activate(b, (struct store_activation){ .lease = LEASE,
                                                  .prompt_tokens = pages * 64,
                                                  .max_output_tokens = 1,
                                                  .ensure = { ensure * 64 } });
}

static void round_one(struct bench *b, store_seq seq, uint32_t commit, uint32_t truncate, uint32_t keep,
                      uint32_t ensure) {
    struct store_round_result r;
    struct store_round_item item = { .seq = seq,
                                     .lease = LEASE,
                                     .pool[0] = round_pool(commit, truncate, keep, ensure) };
    store_round(b->store, &item, 1, &r);
    if (r.refusal.code) die("round", &r.refusal);
}

static void finish(struct bench *b, store_seq seq, store_cont *ret_kept) {
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    struct store_refusal refusal;
    store_cont none;
    if (store_finish(b->store, seq, LEASE, ret_kept ? STORE_FINISH_RETAIN : STORE_FINISH_RELEASE, NULL, 0,
                     ret_kept ? ret_kept : &none, rows, &refusal))
        die("finish", &refusal);
}

/* A continuation of n pages: the first `common` from the common chain, the rest from a chain of its own. */
static store_cont build(struct bench *b, uint32_t n, uint32_t common) {
    struct store_refusal refusal;
    store_cont cont;
    store_seq seq = root(b, n, n);
    round_one(b, seq, n * 64, KVD_NONE, KVD_NONE, KVD_NONE);
    for (uint32_t i = 0; i < n; i++) {
        uint8_t own[1][32] = { { 0 } };
        for (size_t k = 0; k < 4 && i >= common; k++) {
            uint64_t word = next_random(&b->random);
            memcpy(own[0] + 8 * k, &word, 8);
        }
        if (store_name_pages(b->store, seq, LEASE, i, 1, (const uint8_t(*)[32])(i < common ? b->chain + i : own),
                             &refusal))
            die("name", &refusal);
    }
    finish(b, seq, &cont);
    return cont;
}

static void open_store(struct bench *b, uint32_t pages) {
    struct store_config config = { .backend = GEOM_OFF,
                                   .pool_pages = { pages },
                                   .max_context = 64 * 2 * CHAIN,
                                   .max_concurrency = 64,
                                   .max_continuations = 10000 };
    char err[256];
    size_t bytes = store_bytes(&config);
    uint64_t start = now_ns();
    *b = (struct bench){ .pages = pages, .random = pages };
    snprintf(b->size, sizeof b->size, "1e%d", pages >= 10000000 ? 7 : pages >= 1000000 ? 6 : pages >= 100000 ? 5 : 4);
    b->memory = aligned_alloc(64, bytes);
    if (!b->memory || store_init(b->memory, bytes, &config, &b->store, err, sizeof err)) die("init", NULL);
    result(b, "init", (double)(now_ns() - start) / 1e6, "ms");
    result(b, "metadata", (double)bytes / pages, "B/page");
}

/* Long continuations in half of the pool, up to a limit that bounds the time of the bench; they leave the common chain
 * here and there. */
static void fill(struct bench *b) {
    b->n_conts = pages_of((uint64_t)b->pages * 64) / (2 * CHAIN);
    if (b->n_conts > 400) b->n_conts = 400;
    if (b->n_conts < 1) b->n_conts = 1;
    b->conts = calloc(b->n_conts, sizeof *b->conts);
    b->chain = calloc(CHAIN, 32);
    if (!b->conts || !b->chain) die("memory", NULL);
    for (uint32_t i = 0; i < CHAIN; i++)
        for (uint32_t k = 0; k < 4; k++) {
            uint64_t word = next_random(&b->random);
            memcpy(b->chain[i] + 8 * k, &word, 8);
        }
    for (uint32_t i = 0; i < b->n_conts; i++)
        b->conts[i] = build(b, CHAIN, i == 0 ? CHAIN : (uint32_t)(next_random(&b->random) % CHAIN));
}

/* The lookup from the root in one part: nothing can be refused. */
static uint32_t find_from_root(const struct store *store, const uint8_t (*digests)[32], uint32_t n,
                               struct kvd_hit *ret_hits, uint32_t max) {
    const struct store_query query = {
        .digests = digests, .n = n, .max = max, .prompt_tokens = (n + 1) * KVD_PAGE_TOKENS, .token_page = n
    };
    struct store_found found = { 0 };
    (void)store_find(store, &query, ret_hits, &found, NULL);
    return found.n;
}

/* ---- measurements ---- */

static void bench_materialize(struct bench *b, const char *name) {
    store_seq seq = root(b, CHAIN, 0);
    struct seq *s = seq_find(b->store, seq);
    int32_t *row = row_entries(b->store, 0, s->row[0]);
    uint64_t spent = 0, n = 0;
    for (int turn = 0; turn < 20; turn++) {
        uint64_t start = now_ns();
        for (uint32_t i = 0; i < CHAIN; i++) space_map(b->store, 0, &s->space[0], 1, row);
        spent += now_ns() - start;
        n += CHAIN;
        space_drop(b->store, 0, &s->space[0], 0, true, true, row);
    }
    result(b, name, (double)spent / (double)n, "ns");
    finish(b, seq, NULL);
}

static void bench_round(struct bench *b) {
    store_seq seq = root(b, CHAIN, 0);
    uint64_t start = now_ns();
    for (uint32_t i = 1; i <= CHAIN; i++) round_one(b, seq, KVD_NONE, KVD_NONE, KVD_NONE, i * 64);
    result(b, "round_map_page", (double)(now_ns() - start) / CHAIN, "ns");
    start = now_ns();
    for (uint32_t i = 1; i <= CHAIN * 64; i += 8) round_one(b, seq, i, KVD_NONE, KVD_NONE, KVD_NONE);
    result(b, "round_commit_8", (double)(now_ns() - start) / (CHAIN * 8), "ns");
    start = now_ns();
    for (uint32_t i = CHAIN - 1; i > 0; i--) round_one(b, seq, KVD_NONE, i * 64 + 5, 0, KVD_NONE);
    result(b, "round_truncate_page", (double)(now_ns() - start) / (CHAIN - 1), "ns");
    finish(b, seq, NULL);
    seq = root(b, CHAIN, CHAIN);
    start = now_ns();
    round_one(b, seq, CHAIN * 64, KVD_NONE, KVD_NONE, KVD_NONE);
    result(b, "commit_2048", (double)(now_ns() - start) / 1e3, "us");
    start = now_ns();
    round_one(b, seq, KVD_NONE, 0, 0, KVD_NONE);
    result(b, "truncate_2048", (double)(now_ns() - start) / 1e3, "us");
    finish(b, seq, NULL);
}

/* A decode step of 64 sequences in one call. */
static void bench_batch(struct bench *b) {
    static struct store_round_item items[60];
    static struct store_round_result results[60];
    store_seq seqs[60];
    uint32_t n = b->pages / (4 * 32) < 60 ? b->pages / (4 * 32) : 60, steps = 1000;
    for (uint32_t i = 0; i < n; i++) seqs[i] = root(b, 32, 32);
    uint64_t start = now_ns();
    for (uint32_t step = 1; step <= steps; step++) {
        for (uint32_t i = 0; i < n; i++)
            items[i] = (struct store_round_item){ .seq = seqs[i],
                                                  .lease = LEASE,
                                                  .pool[0] = round_pool(step, KVD_NONE, KVD_NONE, step + 1) };
        store_round(b->store, items, n, results);
        if (results[n - 1].refusal.code) die("batch", &results[n - 1].refusal);
    }
    result(b, "round_decode_step", (double)(now_ns() - start) / (double)steps / n, "ns/sequence");
    for (uint32_t i = 0; i < n; i++) finish(b, seqs[i], NULL);
}

static void bench_fork(struct bench *b) {
    uint64_t fork = 0, end = 0, move = 0, retain = 0, n = b->n_conts * 4 < 200 ? 200 : b->n_conts;
    for (uint64_t i = 0; i < n; i++) {
        struct store_activation want = { .from = b->conts[i % b->n_conts],
                                         .keep = true,
                                         .frontier = CHAIN * 64,
                                         .lease = LEASE,
                                         .prompt_tokens = CHAIN * 64,
                                         .max_output_tokens = 100 };
        uint64_t start = now_ns();
        store_seq seq = activate(b, want);
        uint64_t mid = now_ns();
        finish(b, seq, NULL);
        fork += mid - start;
        end += now_ns() - mid;
    }
    result(b, "fork_2048", (double)fork / (double)n / 1e3, "us");
    result(b, "release_fork_2048", (double)end / (double)n / 1e3, "us");
    for (uint64_t i = 0; i < n; i++) {
        struct store_activation want = { .from = b->conts[i % b->n_conts],
                                         .frontier = CHAIN * 64,
                                         .lease = LEASE,
                                         .prompt_tokens = CHAIN * 64,
                                         .max_output_tokens = 100 };
        uint64_t start = now_ns();
        store_seq seq = activate(b, want);
        uint64_t mid = now_ns();
        finish(b, seq, &b->conts[i % b->n_conts]);
        move += mid - start;
        retain += now_ns() - mid;
    }
    result(b, "move_2048", (double)move / (double)n / 1e3, "us");
    result(b, "retain_2048", (double)retain / (double)n / 1e3, "us");
}

static void bench_find(struct bench *b) {
    struct kvd_hit found[16];
    uint32_t turns = 2000, got = 0;
    uint64_t start = now_ns();
    for (uint32_t i = 0; i < turns; i++)
        got = find_from_root(b->store, (const uint8_t(*)[32])b->chain, CHAIN - i % 64, found, 16);
    result(b, "find_2048", (double)(now_ns() - start) / turns / 1e3, "us");
    if (got == 0 || found[0].usable != (CHAIN - (turns - 1) % 64) * KVD_PAGE_TOKENS) die("find", NULL);
    start = now_ns();
    for (uint32_t i = 0; i < turns; i++)
        got = find_from_root(b->store, (const uint8_t(*)[32])b->chain, CHAIN - i % 64, found, 1);
    result(b, "find_2048_best", (double)(now_ns() - start) / turns / 1e3, "us");
}

/* As the service does it: how long a step holds others up, and the whole. */
static void bench_audit(struct bench *b) {
    struct store_audited audited;
    uint64_t longest = 0, start = now_ns(), begin = start;
    bool more = true;
    store_audit_begin(b->store, NULL, 0);
    while (more) {
        more = store_audit_step(b->store, 2048, &audited);
        uint64_t end = now_ns();
        if (end - start > longest) longest = end - start;
        start = end;
    }
    if (audited.violations) die("audit", NULL);
    result(b, "audit_step_longest", (double)longest / 1e3, "us");
    result(b, "audit", (double)(start - begin) / 1e6, "ms");
}

static void bench_release(struct bench *b) {
    struct store_refusal refusal;
    uint64_t start = now_ns();
    for (uint32_t i = 0; i < b->n_conts; i++)
        if (store_release(b->store, b->conts[i], &refusal)) die("release", &refusal);
    result(b, "release_2048", (double)(now_ns() - start) / b->n_conts / 1e3, "us");
}

/* Every second page, at random, is taken: single free pages all over the pool. */
static void scatter(struct bench *b) {
    struct pool *pool = &b->store->pool[0];
    struct pool_batch batch = { pool, 0, 0 };
    pool_take(pool, 0, pool->capacity);
    for (uint32_t i = 0; i < pool->capacity; i++) page_open(b->store, 0, i, i, false);
    for (uint32_t i = 0; i < pool->capacity; i++)
        if (next_random(&b->random) & 1) page_unref(b->store, &batch, pool->leases[i].owner, false);
    pool_flush(&batch);
}

/* ---- two tiers ---- */

#define RESTING 10000u /* continuations in the arena, of REST_PAGES each */
#define REST_PAGES 100u
#define DIRECTORY_ID 7

static void *must(void *p) {
    if (!p) die("memory", NULL);
    return p;
}

/* A pool for the long continuations, an arena for all that rest; the bytes of the arena are nobody's business here. */
static void open_tiers(struct bench *b, bool recorded) {
    struct store_config config = { .backend = GEOM_OFF,
                                   .pool_pages = { 8 * CHAIN },
                                   .max_context = 64 * 2 * CHAIN,
                                   .max_concurrency = 64,
                                   .max_continuations = RESTING + 8,
                                   .host_bytes = 256ull * (RESTING * REST_PAGES + 4 * CHAIN),
                                   .host_stride = { 256 },
                                   .recorded = true };
    size_t bytes = store_bytes(&config);
    struct directory_limits limits;
    *b = (struct bench){ .pages = 8 * CHAIN, .random = 5 };
    snprintf(b->size, sizeof b->size, "tiers");
    b->memory = must(aligned_alloc(64, bytes));
    if (store_init(b->memory, bytes, &config, &b->store, NULL, 0)) die("init", NULL);
    b->chain = must(calloc(CHAIN, 32));
    if (!recorded) return;
    store_directory_limits(b->store, &limits);
    b->tables = must(aligned_alloc(4096, directory_bytes(&limits)));
    b->handle = must(malloc(directory_handle_bytes()));
    directory_format(b->tables, &limits, DIRECTORY_ID);
    if (directory_open(b->handle, b->tables, &limits, DIRECTORY_ID, &b->directory)) die("directory", NULL);
    store_set_directory(b->store, b->directory);
}

static void close_tiers(struct bench *b) {
    free(b->memory);
    free(b->chain);
    free(b->tables);
    free(b->handle);
}

/* Lists the copies of a stage and tells their ends, as the transfer engine does. */
static uint32_t fly(struct bench *b, struct store_transition of) {
    struct store_copy copies[64];
    uint64_t cursor = 0;
    uint32_t n, total = 0;
    while ((n = store_next_copies(b->store, of, &cursor, copies, 64)) > 0) {
        for (uint32_t i = 0; i < n; i++)
            if (copies[i].kind == STORE_COPY_PAGE_OUT)
                store_copied_out(b->store, copies[i].replica, copies[i].host + 1);
        total += n;
    }
    return total;
}

static void move_to(struct bench *b, store_cont cont, enum store_place place, uint32_t pages) {
    struct store_refusal refusal;
    store_move move;
    if (store_move_begin(b->store, cont, place, &move, &refusal)) die("move", &refusal);
    if (fly(b, (struct store_transition){ true, move.bits }) != pages) die("another number of copies", NULL);
    if (store_move_commit(b->store, move, &refusal)) die("move commit", &refusal);
}

static void bench_moves(struct bench *b) {
    store_cont cont = build(b, CHAIN, 0);
    uint64_t out = 0, in = 0, back = 0, turns = 50;
    struct store_refusal refusal;
    uint32_t dropped[KVD_MAX_POOLS];
    for (uint64_t i = 0; i < turns; i++) {
        uint64_t start = now_ns();
        move_to(b, cont, STORE_PLACE_HOST, CHAIN);
        uint64_t mid = now_ns();
        move_to(b, cont, STORE_PLACE_DEVICE, CHAIN);
        in += now_ns() - mid;
        out += mid - start;
        if (store_drop_replica(b->store, cont, KVD_TIER_HOST, dropped, &refusal)) die("drop", &refusal);
    }
    result(b, "demote_2048", (double)out / (double)turns / 1e3, "us");
    result(b, "prefetch_2048", (double)in / (double)turns / 1e3, "us");
    move_to(b, cont, STORE_PLACE_HOST, CHAIN);
    for (uint64_t i = 0; i < turns;
         i++) { /* a fork that restores all, and is released again: the pages leave with it */
        struct store_activation want = { .from = cont,
                                         .keep = true,
                                         .frontier = CHAIN * 64,
                                         .lease = LEASE,
                                         .prompt_tokens = CHAIN * 64,
                                         .max_output_tokens = 1 };
        struct store_activated got;
        uint64_t start = now_ns();
        if (store_activate_begin(b->store, &want, &got, &refusal)) die("restore", &refusal);
        if (fly(b, (struct store_transition){ false, got.seq.bits }) != CHAIN) die("another number of restores", NULL);
        commit(b, got.seq);
        back += now_ns() - start;
        finish(b, got.seq, NULL);
    }
    result(b, "activate_restore_2048", (double)back / (double)turns / 1e3, "us");
    if (store_release(b->store, cont, &refusal)) die("release", &refusal);
}

/* A page's record at its first commit: base and device. */
static double commit_cost(struct bench *b) {
    uint64_t spent = 0;
    for (int i = 0; i < 50; i++) {
        store_seq seq = root(b, CHAIN, CHAIN);
        uint64_t start = now_ns();
        round_one(b, seq, CHAIN * 64, KVD_NONE, KVD_NONE, KVD_NONE);
        spent += now_ns() - start;
        finish(b, seq, NULL);
    }
    return (double)spent / 50 / CHAIN;
}

/* Pages are found damaged beside 10,000 continuations: all of one that a fork in flight holds, then one each of others,
 * which go. */
static void bench_damage(struct bench *b) {
    struct store_activation want = {
        .keep = true, .frontier = 64, .lease = LEASE, .prompt_tokens = 64, .max_output_tokens = 1
    };
    struct kvd_continuation_info info;
    struct store_activated got;
    struct store_refusal refusal;
    uint32_t cursor = RESTING / 2;
    if (!store_next_cont(b->store, &cursor, &info)) die("list", NULL);
    want.from = store_cont_of(info.continuation);
    const struct space *space = &cont_find(b->store, store_cont_of(info.continuation))->space[0];
    if (store_activate_begin(b->store, &want, &got, &refusal)) die("restore", &refusal);
    uint64_t start = now_ns();
    for (uint32_t i = 0; i < REST_PAGES; i++)
        if (store_damaged(b->store, space_entry(b->store, space, i))) die("a source in flight went", NULL);
    result(b, "damage_held", (double)(now_ns() - start) / REST_PAGES / 1e3, "us");
    if (store_activate_abort(b->store, got.seq, NULL, &refusal)) die("abort", &refusal);
    uint64_t spent = 0, most = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        cursor = (uint32_t)(next_random(&b->random) % RESTING);
        if (!store_next_cont(b->store, &cursor, &info)) continue;
        /* Of the first page, which all of it lies behind. */
        uint32_t d = space_entry(b->store, &cont_find(b->store, store_cont_of(info.continuation))->space[0], 0);
        start = now_ns();
        if (store_damaged(b->store, d) != 1) die("nobody was lost", NULL);
        uint64_t took = now_ns() - start;
        spent += took;
        if (took > most) most = took;
    }
    result(b, "damage_release_100", (double)spent / 1000 / 1e3, "us");
    result(b, "damage_release_100_most", (double)most / 1e3, "us");
}

/* All 10,000 begin with the same page: a prompt that shares that one with them. */
static void bench_fan(struct bench *b) {
    struct kvd_hit found[16];
    uint32_t turns = 1000, n = 0;
    uint64_t start = now_ns();
    for (uint32_t i = 0; i < turns; i++) n = find_from_root(b->store, (const uint8_t(*)[32])b->chain, 1, found, 16);
    if (n != 16 || found[0].usable != KVD_PAGE_TOKENS) die("find", NULL);
    result(b, "find_among_10000", (double)(now_ns() - start) / turns / 1e3, "us");
}

/* Lookup of one chat among n that end at one page and differ in their tails, to the token: microseconds. */
static const uint8_t system_page[1][32] = { { 1 } };

static void keep_sibling(struct bench *b, const struct kvd_tail *tail, bool state) {
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    struct store_refusal refusal;
    struct store_round_result r;
    store_cont cont;
    uint32_t n = KVD_PAGE_TOKENS + tail->n;
    store_seq seq = root(b, 2, 2);
    struct store_round_item item = { .seq = seq,
                                     .lease = LEASE,
                                     .ask = state ? KVD_ROUND_STATE : 0,
                                     .state_frontier = n,
                                     .pool[0] = { .ask = KVD_ROUND_COMMIT, .commit = n } };
    store_round(b->store, &item, 1, &r);
    if (r.refusal.code) die("round", &r.refusal);
    if (store_name_pages(b->store, seq, LEASE, 0, 1, system_page, &refusal)) die("name", &refusal);
    if (store_finish(b->store, seq, LEASE, STORE_FINISH_RETAIN, tail, 0, &cont, rows, &refusal))
        die("finish", &refusal);
}

static double find_sibling(uint32_t n, bool state) {
    struct bench b = { .random = 1 };
    const struct store_config config = { .backend = GEOM_OFF,
                                         .pool_pages = { 2 * n + 64 },
                                         .max_context = 4096,
                                         .max_concurrency = 2,
                                         .max_continuations = n,
                                         .has_state = state,
                                         .state_slots = n + 2 };
    struct kvd_hit hits[KVD_MAX_HITS];
    struct kvd_tail tail = { .n = 40 };
    struct store_found found = { 0 };
    struct store_query query = {
        .digests = system_page, .n = 1, .max = KVD_MAX_HITS, .prompt_tokens = 64 + 50, .token_page = 1, .tokens = &tail
    };
    char err[256];
    uint32_t turns = 20000;
    size_t bytes = store_bytes(&config);
    b.memory = aligned_alloc(64, bytes);
    if (!b.memory || store_init(b.memory, bytes, &config, &b.store, err, sizeof err)) die("init", NULL);
    for (uint32_t i = 0; i < n; i++) {
        tail.tokens[3] = i * 2654435761u;
        keep_sibling(&b, &tail, state);
    }
    uint64_t start = now_ns();
    for (uint32_t i = 0; i < turns; i++) {
        tail.tokens[3] = i % n * 2654435761u;
        (void)store_find(b.store, &query, hits, &found, NULL);
        if (found.n != (state ? 1u : KVD_MAX_HITS) || hits[0].usable != 104) die("sibling", NULL);
    }
    double us = (double)(now_ns() - start) / turns / 1e3;
    free(b.memory);
    return us;
}

/* NAME-2: the cost of a lookup stays flat, however many chats follow one system prompt. */
static void bench_siblings(void) {
    struct bench named = { .size = "tails" }, *b = &named;
    for (int state = 0; state < 2; state++) {
        double few = find_sibling(200, state), many = find_sibling(20000, state);
        result(b, state ? "find_sibling_200_state" : "find_sibling_200", few, "us");
        result(b, state ? "find_sibling_20000_state" : "find_sibling_20000", many, "us");
        result(b, state ? "find_sibling_state_ratio" : "find_sibling_ratio", many / few, "x");
    }
}

static void bench_recover(struct bench *b) {
    struct store_recovered out;
    struct bench next;
    for (uint32_t i = 0; i < RESTING; i++) move_to(b, build(b, REST_PAGES, 1), STORE_PLACE_HOST, REST_PAGES);
    open_tiers(&next, false);
    uint64_t start = now_ns();
    store_recover(next.store, b->directory, false, &out);
    result(b, "recover_10000", (double)(now_ns() - start) / 1e6, "ms");
    if (out.continuations != RESTING || out.pages[0] != RESTING * REST_PAGES || out.damaged || out.dropped)
        die("recovery lost something", NULL);
    bench_fan(&next);
    bench_damage(&next);
    close_tiers(&next);
}

static void bench_tiers(void) {
    struct bench plain, b;
    open_tiers(&plain, false);
    double without = commit_cost(&plain);
    bench_moves(&plain);
    close_tiers(&plain);
    open_tiers(&b, true);
    snprintf(b.size, sizeof b.size, "mirror");
    result(&b, "record", commit_cost(&b) - without, "ns/page");
    bench_moves(&b);
    bench_recover(&b);
    close_tiers(&b);
}

int main(int argc, char **argv) {
    int largest = argc > 1 ? atoi(argv[1]) : 7;
    uint32_t pages = 10000;
    for (int power = 4; power <= largest && power <= 7; power++, pages *= 10) {
        struct bench b;
        open_store(&b, pages);
        fill(&b);
        bench_materialize(&b, "materialize_page");
        bench_round(&b);
        bench_batch(&b);
        bench_fork(&b);
        bench_find(&b);
        bench_audit(&b);
        bench_release(&b);
        scatter(&b);
        bench_materialize(&b, "materialize_page_scattered");
        free(b.conts);
        free(b.chain);
        free(b.memory);
    }
    bench_siblings();
    bench_tiers();
    return 0;
}
