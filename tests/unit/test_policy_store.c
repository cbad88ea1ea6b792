/* SPDX-License-Identifier: Apache-2.0
 *
 * The policy alone against a store on paper: traces that are made to hurt, against the least recently used pages; the
 * decisions that users complained about; never a refusal of what fits (FIT-1, Q-2, SHORT-1).
 */
#include <stdlib.h>
#include <string.h>

#include "kvd_policy.h"
#include "kvt.h"
#include "paper_store.h"

#define SECOND UINT64_C(1000000000)
enum { LONGEST = 64 };

struct desk {
    struct paper_store *store;
    kvd_policy *policy;
    uint64_t now, found, choices, domain; /* domain: of the prompts that come */
    struct kvd_victim room[PAPER_MOST];
};

static void open_desk(struct desk *d, uint64_t pool, uint64_t arena, uint32_t most) {
    *d = (struct desk){ .store = paper_new(pool, arena, most) };
    const struct kvd_policy_options options = { .demotes = arena > 0, .pinned_pages = 60 };
    KVT_EQ(kvd_policy_new(&options, &d->policy), KVD_OK);
}

static void close_desk(struct desk *d) {
    kvd_policy_free(d->policy);
    paper_free(d->store);
}

struct request {
    uint64_t use;
    kvd_chain *chain;
    uint32_t sequence, pages;
    struct kvd_activation want;
};

/* A prompt of n pages and some tokens, and an answer of a page. */
static enum kvd_status begin_request(struct desk *d, const uint64_t *pages, uint32_t n, struct request *ret) {
    struct request r = { .chain = paper_chain(d->domain, pages, n), .pages = n + 1 };
    r.want = (struct kvd_activation){ .prompt_tokens = n * 64 + 1, .max_output_tokens = 60, .ensure[0] = r.pages * 64 };
    r.use = kvd_policy_prompt(d->policy, r.chain, r.want.prompt_tokens, d->now);
    paper_find(d->store, r.chain, &r.want);
    enum kvd_status status =
        kvd_policy_choose(d->policy, (kvd_client *)d->store, &r.want, d->room, PAPER_MOST, d->now, NULL);
    d->choices++;
    if (status != KVD_OK) {
        kvd_chain_free(r.chain);
        return status;
    }
    d->found += r.want.frontier / 64;
    r.sequence = paper_start(d->store, r.chain, &r.want);
    if (r.want.from.bits && !r.want.keep) kvd_policy_gone(d->policy, r.want.from);
    *ret = r;
    return KVD_OK;
}

static kvd_continuation end_request(struct desk *d, const struct request *r) {
    kvd_continuation kept = paper_end(d->store, r->sequence);
    kvd_policy_kept(d->policy, r->use, kept, r->pages * 64);
    kvd_chain_free(r->chain);
    return kept;
}

static kvd_continuation serve_pages(struct desk *d, const uint64_t *pages, uint32_t n) {
    struct request r;
    if (!KVT_EQ(begin_request(d, pages, n, &r), KVD_OK)) return (kvd_continuation){ 0 };
    return end_request(d, &r);
}

/* A text of n pages, of which the first are everybody's. */
static kvd_continuation serve_text(struct desk *d, uint64_t text, uint32_t common, uint32_t n) {
    uint64_t pages[LONGEST];
    for (uint32_t i = 0; i < n; i++) pages[i] = i < common ? i : 1000 * text + i;
    return serve_pages(d, pages, n);
}

/* ---- traces that are made to hurt ---- */

struct prompt {
    uint64_t text;
    uint32_t pages;
};
enum { PROMPTS = 2500, POOL = 400, COMMON = 2 };

/* The least recently used page goes, the answer's as any other; the head of a prompt is used after its tail. */
struct least_recent {
    uint64_t page[POOL];
    uint32_t n;
};

static bool use_page(struct least_recent *l, uint64_t page) {
    uint32_t at = 0;
    while (at < l->n && l->page[at] != page) at++;
    bool there = at < l->n;
    if (!there && l->n < POOL) l->n++;
    else if (!there) at = POOL - 1;
    memmove(&l->page[1], &l->page[0], at * sizeof l->page[0]);
    l->page[0] = page;
    return there;
}

static uint64_t least_recent_finds(const struct prompt *prompts) {
    static struct least_recent l;
    uint64_t found = 0;
    l.n = 0;
    for (uint32_t i = 0; i < PROMPTS; i++) {
        uint32_t prefix = 0;
        use_page(&l, UINT64_C(1) << 60 | i); /* its answer */
        for (uint32_t p = prompts[i].pages; p-- > 0;)
            prefix = use_page(&l, p < COMMON ? p : 1000 * prompts[i].text + p) ? prefix + 1 : 0;
        found += prefix;
    }
    return found;
}

static void is_not_below_lru(const char *what, const struct prompt *prompts) {
    struct desk d;
    open_desk(&d, POOL, 0, PAPER_MOST);
    for (uint32_t i = 0; i < PROMPTS; i++, d.now += 2 * SECOND)
        serve_text(&d, prompts[i].text, COMMON, prompts[i].pages);
    uint64_t lru = least_recent_finds(prompts);
    printf("  %s: least recently used %u, reuse %u\n", what, (unsigned)lru, (unsigned)d.found);
    KVT_TRUE(d.found >= lru);
    KVT_EQ(paper_figures(d.store).fallbacks, 0);
    close_desk(&d);
}

/* The same prompts each time: this cannot fail by chance. */
static void no_trace_makes_it_worse_than_lru(void) {
    static struct prompt t[PROMPTS];
    uint64_t random = 7;
    for (uint32_t i = 0; i < PROMPTS; i++) t[i] = (struct prompt){ 1 + i % 45, 12 };
    is_not_below_lru("a loop that is longer than the pool", t);
    for (uint32_t i = 0; i < PROMPTS; i++)
        t[i] = (struct prompt){ i % 2 ? 1000 + i : 1 + kvt_below(&random, 20), i % 2 ? 30 : 14 };
    is_not_below_lru("a scan beside conversations", t);
    for (uint32_t i = 0; i < PROMPTS; i++) t[i] = (struct prompt){ 1 + 100 * (i / 500) + kvt_below(&random, 40), 12 };
    is_not_below_lru("all texts change, again and again", t);
    for (uint32_t i = 0; i < PROMPTS; i++)
        t[i] = (struct prompt){ i / 600 % 2 ? 1 + i % 45 : 100 + kvt_below(&random, 25), 12 };
    is_not_below_lru("from a loop to conversations and back", t);
    for (uint32_t i = 0; i < PROMPTS; i++) t[i] = (struct prompt){ 5000 + i, 10 };
    is_not_below_lru("nothing returns", t);
}

/* ---- decisions that users complained about ---- */

/* A large conversation, and requests of a few pages beside it that never return: it stays. */
static void small_requests_leave_the_large_one(void) {
    struct desk d;
    open_desk(&d, 100, 0, PAPER_MOST);
    kvd_continuation large = { 0 };
    for (uint64_t i = 0; i < 400; i++, d.now += 3 * SECOND) {
        if (i % 20 == 0) large = serve_text(&d, 1, 0, 60);
        else serve_text(&d, 100 + i, 0, 3);
        if (i > 100) KVT_TRUE(paper_pages(d.store, large) >= 60);
    }
    close_desk(&d);
}

/* While the arena holds what gives way nothing is lost, and demoted ones come back. */
static void nothing_is_released_while_the_arena_has_room(void) {
    struct desk d;
    open_desk(&d, 100, 1000, PAPER_MOST);
    for (uint64_t i = 0; i < 30; i++, d.now += SECOND) serve_text(&d, 1 + i, 0, 20);
    KVT_EQ(paper_figures(d.store).released, 0);
    d.found = 0;
    for (uint64_t i = 0; i < 30; i++, d.now += SECOND) serve_text(&d, 1 + i, 0, 20);
    KVT_EQ(d.found, 30 * 20);
    KVT_EQ(paper_figures(d.store).released, 0);
    close_desk(&d);
}

/* Nothing but the source can give way: it is moved; and where it would not do either, it goes. */
static void the_source_goes_last(void) {
    struct desk d;
    struct request r;
    uint64_t pages[LONGEST], other[LONGEST];
    for (uint32_t i = 0; i < LONGEST; i++) pages[i] = i, other[i] = i < 20 ? i : 500 + i;
    open_desk(&d, 64, 0, PAPER_MOST);
    serve_pages(&d, pages, 50);
    KVT_EQ(begin_request(&d, other, 40, &r), KVD_OK); /* 20 pages are its; 21 more, and 13 are free */
    KVT_TRUE(r.want.from.bits && !r.want.keep && r.want.frontier == 20 * 64);
    end_request(&d, &r);
    KVT_EQ(begin_request(&d, pages, 63, &r), KVD_OK);
    KVT_EQ(paper_figures(d.store).pages, 64);
    KVT_EQ(begin_request(&d, pages, 1, &(struct request){ 0 }), KVD_RESOURCE_EXHAUSTED); /* all of it runs */
    end_request(&d, &r);
    close_desk(&d);
}

/* No descriptor is left: one continuation goes, whole, and nothing else; also where there is an arena. */
static void a_full_table_of_descriptors(void) {
    for (uint32_t arena = 0; arena < 2; arena++) {
        struct desk d;
        open_desk(&d, 1000, 1000 * arena, 16);
        for (uint64_t i = 0; i < 40; i++, d.now += SECOND) {
            uint64_t before = paper_figures(d.store).plans;
            serve_text(&d, 1 + i, 0, 10);
            KVT_TRUE(paper_figures(d.store).plans - before <= 2);
        }
        struct paper_figures f = paper_figures(d.store);
        KVT_EQ(f.continuations, 16);
        KVT_EQ(f.released, 40 - 16);
        KVT_EQ(f.demoted + f.fallbacks, 0);
        KVT_EQ(f.used, 16 * 11);
        close_desk(&d);
    }
}

/* Two equal prompts run at once and leave one continuation. */
static void equal_prompts_at_once(void) {
    struct desk d;
    struct request r[2];
    uint64_t pages[10] = { 3 };
    kvd_continuation ranked[4];
    open_desk(&d, 100, 0, PAPER_MOST);
    for (int k = 0; k < 2; k++) {
        KVT_EQ(begin_request(&d, pages, 10, &r[k]), KVD_OK);
        r[k].pages = 10; /* no answer */
    }
    kvd_continuation first = end_request(&d, &r[0]), second = end_request(&d, &r[1]);
    KVT_EQ(paper_figures(d.store).used, 10 + 2); /* each has its page for an answer */
    KVT_EQ(kvd_policy_rank(d.policy, d.now, ranked, 4), first.bits == second.bits ? 1 : 2);
    d.now += SECOND;
    serve_text(&d, 9, 0, 60);
    serve_text(&d, 8, 0, 60);
    KVT_EQ(paper_figures(d.store).fallbacks, 0);
    close_desk(&d);
}

/* Much that was used once against one that returns every minute: the one is kept, however large. */
static void many_small_against_one_large(void) {
    struct desk d;
    open_desk(&d, 300, 0, PAPER_MOST);
    uint64_t late = 0;
    for (uint64_t i = 0; i < 900; i++, d.now += SECOND) {
        if (i % 60 == 0) {
            d.found = 0;
            serve_text(&d, 1, 0, 62);
            late += i >= 300 ? d.found : 0;
        } else {
            serve_text(&d, 100 + i, 0, 12);
        }
    }
    KVT_TRUE(late >= 9 * 62);
    close_desk(&d);
}

/* ---- quotas of domains ---- */

static void set_quota(struct desk *d, uint64_t domain, uint64_t pages, uint64_t device_pages) {
    kvd_chain *chain = paper_chain(domain, NULL, 0);
    const struct kvd_policy_share share = { pages, device_pages };
    KVT_EQ(kvd_policy_quota(d->policy, &kvd_chain_root(chain)->digest, &share), KVD_OK);
    kvd_chain_free(chain);
}

/* Of those that are still there; one whose handle was given to `made` is not. */
static uint32_t pages_of(const struct desk *d, kvd_continuation *kept, uint32_t n, kvd_continuation made) {
    uint32_t pages = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (kept[i].bits == made.bits) kept[i].bits = 0;
        if (kept[i].bits) pages += paper_pages(d->store, kept[i]);
    }
    return pages;
}

/* A domain keeps 93 pages within its quota. Whatever another one floods the store with, said to come back or not, with
 * a quota of its own or without: nothing of them is lost, and with an arena nothing of them is demoted. */
static void quota_a_flood_leaves_it_alone(void) {
    for (uint32_t variant = 0; variant < 8; variant++) {
        struct desk d;
        kvd_continuation kept[3];
        uint64_t arena = variant & 1 ? 150 : 0;
        open_desk(&d, 200, arena, PAPER_MOST);
        set_quota(&d, 1, 100, 0);
        if (variant & 2) set_quota(&d, 2, 40, 0);
        d.domain = 1;
        for (uint64_t i = 0; i < 3; i++, d.now += SECOND) kept[i] = serve_text(&d, 1 + i, 0, 30);
        d.domain = 2;
        for (uint32_t i = 0; i < 400; i++, d.now += SECOND) {
            kvd_continuation flood = serve_text(&d, 10 + i, 2, 5 + i % 40);
            if (variant & 4) kvd_policy_set(d.policy, flood, &(struct kvd_policy_terms){ .back = true });
        }
        for (uint64_t i = 0; i < 3; i++) KVT_EQ(paper_pages(d.store, kept[i]), 31);
        d.domain = 1;
        d.found = 0;
        uint64_t before = paper_figures(d.store).demoted;
        for (uint64_t i = 0; i < 3; i++) serve_text(&d, 1 + i, 0, 30);
        KVT_EQ(d.found, 3 * 30);
        if (!arena) KVT_EQ(paper_figures(d.store).demoted, before);
        KVT_EQ(paper_figures(d.store).fallbacks, 0);
        close_desk(&d);
    }
}

/* What nobody needs is kept beyond a quota; what others need then goes first, and no more than lies beyond. */
static void quota_is_a_share_and_no_limit(void) {
    struct desk d;
    kvd_continuation kept[6], plain[2];
    open_desk(&d, 200, 0, PAPER_MOST);
    set_quota(&d, 1, 100, 0);
    for (uint64_t i = 0; i < 2; i++, d.now += SECOND) plain[i] = serve_text(&d, 1 + i, 0, 19); /* older, 40 pages */
    d.domain = 1;
    for (uint64_t i = 0; i < 6; i++, d.now += SECOND) kept[i] = serve_text(&d, 11 + i, 0, 24); /* 150 pages */
    KVT_EQ(pages_of(&d, kept, 6, (kvd_continuation){ 0 }), 150);
    d.domain = 2;
    kvd_continuation made = serve_text(&d, 31, 0, 59); /* 60 pages: ten are free, and 50 lie beyond the quota */
    KVT_EQ(pages_of(&d, kept, 6, made), 100);
    for (uint64_t i = 0; i < 2; i++) KVT_EQ(paper_pages(d.store, plain[i]), 20);
    made = serve_text(&d, 32, 0, 9); /* now the plain ones give */
    KVT_EQ(pages_of(&d, kept, 6, made), 100);
    KVT_EQ(paper_pages(d.store, plain[0]), 10);
    close_desk(&d);
}

/* On the device a domain has 30 pages, and 90 in both: more of it is demoted first, and released first. */
static void quota_of_the_device_and_of_both(void) {
    struct desk d;
    kvd_continuation kept[3];
    open_desk(&d, 120, 100, PAPER_MOST);
    set_quota(&d, 1, 90, 30);
    for (uint64_t i = 0; i < 2; i++, d.now += SECOND) serve_text(&d, 1 + i, 0, 14);
    d.domain = 1;
    for (uint64_t i = 0; i < 3; i++, d.now += SECOND) kept[i] = serve_text(&d, 11 + i, 0, 29);
    KVT_EQ(paper_figures(d.store).demoted, 0); /* 120 pages */
    d.domain = 0;
    for (uint64_t i = 2; i < 4; i++, d.now += SECOND) serve_text(&d, 1 + i, 0, 29);
    KVT_EQ(paper_figures(d.store).demoted, 2); /* of the domain: the older ones of the others stay */
    KVT_EQ(paper_figures(d.store).host_used, 60);
    for (uint64_t i = 0; i < 4; i++, d.now += SECOND) serve_text(&d, 41 + i, 0, 29);
    for (uint64_t i = 0; i < 3; i++) KVT_EQ(paper_pages(d.store, kept[i]), 30); /* 90 are within */
    KVT_EQ(paper_figures(d.store).fallbacks, 0);
    close_desk(&d);
}

/* A quota that is taken back protects nothing, and one that comes later counts what is there already. */
static void quota_comes_and_goes(void) {
    struct desk d;
    open_desk(&d, 100, 0, PAPER_MOST);
    d.domain = 1;
    kvd_continuation kept = serve_text(&d, 1, 0, 39);
    set_quota(&d, 1, 40, 0);
    d.domain = 2;
    for (uint64_t i = 0; i < 30; i++, d.now += SECOND) serve_text(&d, 10 + i, 0, 29);
    KVT_EQ(paper_pages(d.store, kept), 40);
    kvd_chain *chain = paper_chain(1, NULL, 0);
    KVT_EQ(kvd_policy_quota(d.policy, &kvd_chain_root(chain)->digest, NULL), KVD_OK);
    KVT_EQ(kvd_policy_quota(d.policy, &kvd_chain_root(chain)->digest, NULL), KVD_OK);
    kvd_chain_free(chain);
    for (uint64_t i = 0; i < 30; i++, d.now += SECOND) serve_text(&d, 50 + i, 0, 29);
    KVT_TRUE(paper_pages(d.store, kept) < 40);
    for (uint64_t i = 0; i < KVD_POLICY_QUOTAS; i++) set_quota(&d, 100 + i, 1, 0);
    chain = paper_chain(99, NULL, 0);
    const struct kvd_policy_share share = { 1, 0 };
    KVT_EQ(kvd_policy_quota(d.policy, &kvd_chain_root(chain)->digest, &share), KVD_RESOURCE_EXHAUSTED);
    KVT_EQ(kvd_policy_quota(d.policy, NULL, &share), KVD_INVALID_ARGUMENT);
    kvd_chain_free(chain);
    close_desk(&d);
}

/* ---- properties ---- */

static bool fits(struct desk *d, uint64_t pool, uint32_t pages) {
    return paper_figures(d->store).pages + pages <= pool;
}

/* Whatever runs: what fits beside it is served, with and without an arena; and the same calls make the same choices. */
static uint64_t run_at_random(uint64_t seed, uint64_t arena, bool quotas) {
    enum { RUNNING = 6 };
    struct desk d;
    struct request running[RUNNING];
    uint32_t n = 0;
    uint64_t random = seed, sum = 0;
    open_desk(&d, 200, arena, 64);
    for (uint64_t domain = 1; quotas && domain < 4; domain++) set_quota(&d, domain, 30 * domain, 20 * domain);
    for (uint32_t step = 0; step < 1500; step++, d.now += SECOND / 2) {
        if (n == RUNNING || (n && kvt_below(&random, 2))) {
            uint32_t at = kvt_below(&random, n);
            sum = sum * 31 + end_request(&d, &running[at]).bits;
            running[at] = running[--n];
            continue;
        }
        uint64_t pages[LONGEST], text = 1 + kvt_below(&random, 60);
        uint32_t length = 1 + kvt_below(&random, LONGEST - 1);
        for (uint32_t i = 0; i < length; i++) pages[i] = i < 3 ? i : 1000 * text + i;
        bool must = fits(&d, 200, length + 1);
        d.domain = quotas ? text % 4 : 0;
        enum kvd_status status = begin_request(&d, pages, length, &running[n]);
        if (must) KVT_EQ(status, KVD_OK);
        n += status == KVD_OK;
        sum = sum * 31 + paper_figures(d.store).used;
    }
    while (n) end_request(&d, &running[--n]);
    sum = sum * 31 + d.found;
    close_desk(&d);
    return sum;
}

static void fit_1_what_fits_is_served(void) {
    uint64_t seed = kvt_seed();
    for (uint64_t arena = 0; arena <= 300; arena += 150) {
        for (int quotas = 0; quotas < 2; quotas++) {
            uint64_t sum = run_at_random(seed, arena, quotas);
            KVT_EQ(run_at_random(seed, arena, quotas), sum);
        }
    }
}

/* What a domain keeps. Running ones are none of it. */
struct keep {
    kvd_continuation continuation;
    uint64_t domain;
    bool pinned;
};
enum { KEPT = 512 };

static uint32_t kept_pages(const struct desk *d, const struct keep *kept, uint64_t domain, bool loose) {
    uint32_t pages = 0;
    for (uint32_t i = 0; i < KEPT; i++)
        if (kept[i].continuation.bits && kept[i].domain == domain && !(loose && kept[i].pinned))
            pages += paper_pages(d->store, kept[i].continuation);
    return pages;
}

static void forget_kept(struct keep *kept, kvd_continuation continuation) {
    for (uint32_t i = 0; i < KEPT; i++)
        if (kept[i].continuation.bits == continuation.bits) kept[i].continuation.bits = 0;
}

static void note_kept(struct desk *d, struct keep *kept, kvd_continuation continuation, bool pin) {
    uint32_t free = 0;
    while (kept[free].continuation.bits && paper_pages(d->store, kept[free].continuation)) free++;
    const struct kvd_policy_terms terms = { .pinned = pin };
    bool pinned = kvd_policy_set(d->policy, continuation, &terms) == KVD_OK && pin;
    kept[free] = (struct keep){ continuation, d->domain, pinned };
}

/* One request after the other: no pinned one ever gives, and of a domain within its quota nothing goes while another
 * domain keeps a loose page beyond its own or without one. */
static void quota_protects_whatever_comes(void) {
    static struct keep kept[KEPT];
    struct desk d;
    uint64_t random = kvt_seed() + 1, protected = 0;
    const uint64_t quota[4] = { 0, 30, 50, 70 };
    memset(kept, 0, sizeof kept);
    open_desk(&d, 200, 0, PAPER_MOST);
    for (uint64_t domain = 1; domain < 4; domain++) set_quota(&d, domain, quota[domain], 0);
    for (uint32_t step = 0; step < 3000; step++, d.now += SECOND / 2) {
        uint32_t before[4], pinned[4];
        d.domain = kvt_below(&random, 4);
        for (uint64_t k = 0; k < 4; k++) {
            before[k] = kept_pages(&d, kept, k, false);
            pinned[k] = before[k] - kept_pages(&d, kept, k, true);
        }
        kvd_continuation made = serve_text(&d, 1 + step, 0, 1 + kvt_below(&random, 24)); /* never the same again */
        forget_kept(kept, made); /* one that had this handle is gone */
        for (uint64_t k = 0; k < 4; k++) {
            uint32_t now = kept_pages(&d, kept, k, false);
            KVT_EQ(now - kept_pages(&d, kept, k, true), pinned[k]);
            if (k && before[k] <= quota[k]) protected++;
            if (!k || now == before[k] || now >= quota[k]) continue;
            for (uint64_t other = 0; other < 4; other++) /* it gave of its quota: nothing else was left */
                KVT_TRUE(other == k || kept_pages(&d, kept, other, true) == 0 ||
                         kept_pages(&d, kept, other, false) <= quota[other]);
        }
        note_kept(&d, kept, made, kvt_below(&random, 8) == 0);
    }
    KVT_EQ(paper_figures(d.store).fallbacks, 0);
    KVT_TRUE(protected > 0);
    close_desk(&d);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(no_trace_makes_it_worse_than_lru),
                                             KVT_CASE(small_requests_leave_the_large_one),
                                             KVT_CASE(nothing_is_released_while_the_arena_has_room),
                                             KVT_CASE(the_source_goes_last),
                                             KVT_CASE(a_full_table_of_descriptors),
                                             KVT_CASE(equal_prompts_at_once),
                                             KVT_CASE(many_small_against_one_large),
                                             KVT_CASE(quota_a_flood_leaves_it_alone),
                                             KVT_CASE(quota_is_a_share_and_no_limit),
                                             KVT_CASE(quota_of_the_device_and_of_both),
                                             KVT_CASE(quota_comes_and_goes),
                                             KVT_CASE(quota_protects_whatever_comes),
                                             KVT_CASE(fit_1_what_fits_is_served),
                                             { 0 } };
    return kvt_main("policy on paper", cases, argc, argv);
}
