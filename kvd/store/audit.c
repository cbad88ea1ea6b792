/* SPDX-License-Identifier: Apache-2.0
 *
 * The audit: recomputes from the memberships what the store keeps incrementally, and compares (contract section 14), in
 * steps (audit.h says what that means). What it counts again of a page stands beside the page record.
 */
#include "audit.h"

#include <string.h>

/* ---- pools ---- */

static uint32_t check_leaf(struct audit *a, uint32_t i) {
    const struct pool *pool = &a->store->pool[a->pool];
    struct free_run run = pool_block_run(pool, i);
    EXPECT(memcmp(&run, &pool->tree[pool->n_leaves + i], sizeof run) == 0, "pool %u: free runs of block %u are wrong",
           a->pool, i);
    return BLOCK_WORDS * 4;
}

static bool audit_leaves(struct audit *a) { return audit_each(a, a->store->pool[a->pool].n_leaves, check_leaf); }

static uint32_t check_inner(struct audit *a, uint32_t i) {
    const struct pool *pool = &a->store->pool[a->pool];
    if (i == 0) return 1;
    uint32_t half = BLOCK_PAGES;
    for (uint32_t level = pool->n_leaves / 2; level > i; level /= 2) half *= 2;
    struct free_run run = pool_join(pool->tree[2 * i], pool->tree[2 * i + 1], half);
    EXPECT(memcmp(&run, &pool->tree[i], sizeof run) == 0, "pool %u: free runs of node %u are wrong", a->pool, i);
    return 2;
}

static bool audit_inner(struct audit *a) { return audit_each(a, a->store->pool[a->pool].n_leaves, check_inner); }

/* POOL-6, INV-4, INV-10. All at once: a bit a page, and a number a sequence. */
static bool audit_numbers(struct audit *a) {
    const struct store *store = a->store;
    const struct pool *pool = &store->pool[a->pool];
    uint32_t free = 0, rows = 0;
    uint64_t reserved = 0;
    for (uint32_t i = 0; i < pool->n_leaves * BLOCK_WORDS; i++) free += (uint32_t)__builtin_popcountll(pool->bitmap[i]);
    EXPECT(free == pool->capacity - pool->allocated, "pool %u: POOL-6: %u free bits, %u of %u allocated", a->pool, free,
           pool->allocated, pool->capacity);
    for (uint32_t i = 0; i < store->config.max_concurrency; i++) {
        if (store->seqs[i].occupied) reserved += store->seqs[i].space[a->pool].reserved;
        rows += pool->rows[i].owner != KVD_NONE;
    }
    EXPECT(reserved == pool->reserved, "pool %u: sequences hold %llu reserved pages, the pool counts %u", a->pool,
           (unsigned long long)reserved, pool->reserved);
    EXPECT((uint64_t)pool->allocated + pool->reserved <= pool->capacity,
           "pool %u: POOL-6: %u allocated, %u reserved of %u", a->pool, pool->allocated, pool->reserved,
           pool->capacity);
    EXPECT(rows == pool->rows_used && rows == store->seqs_used, "pool %u: %u rows leased, %u counted, %u sequences",
           a->pool, rows, pool->rows_used, store->seqs_used);
    (void)audit_spend(a, pool->n_leaves + store->config.max_concurrency);
    return true;
}

static uint32_t check_lease(struct audit *a, uint32_t g) { /* INV-1 */
    const struct pool *pool = &a->store->pool[a->pool];
    const struct page_lease *lease = &pool->leases[g];
    bool is_free = pool_is_free(pool, g);
    EXPECT(is_free == (lease->owner == KVD_NONE), "pool %u: page group %u is %s and leased to %u", a->pool, g,
           is_free ? "free" : "taken", lease->owner);
    if (lease->owner == KVD_NONE) return 1;
    const struct page *page = lease->owner < pool->descriptors ? &pool->pages[lease->owner] : NULL;
    EXPECT(page && (page->flags & PAGE_OCCUPIED) && page->device == g && page->lease == lease->generation,
           "pool %u: lease of page group %u and its page %u disagree", a->pool, g, lease->owner);
    return 2;
}

static bool audit_leases(struct audit *a) { return audit_each(a, a->store->pool[a->pool].capacity, check_lease); }

/* ---- a pass over pages: forget, count again, compare ---- */

static uint32_t forget_page(struct audit *a, uint32_t d) {
    struct pool *pool = &a->store->pool[a->pool];
    if (d == 0) {
        pool->touched->n = 0;
        a->changed = 0;
        memset(a->sums, 0, sizeof a->sums);
    }
    bool due = a->pass == 0 || pool->recount[d].due;
    pool->pages[d].touched = false;
    pool->recount[d] = (struct page_recount){ .due = due };
    return 2;
}

static bool forget_pages(struct audit *a) { return audit_each(a, a->store->pool[a->pool].descriptors, forget_page); }
static bool count_seqs(struct audit *a) { return audit_each(a, a->store->config.max_concurrency, audit_seq_space); }
static bool count_conts(struct audit *a) { return audit_each(a, a->store->config.max_continuations, audit_cont_space); }
static bool count_jobs(struct audit *a) { return audit_each(a, MOVE_LIMIT, audit_move_jobs); }

/* Spare descriptors are a list; its end is far away where the arena is large and empty. */
static bool follow_spare(struct audit *a) {
    const struct pool *pool = &a->store->pool[a->pool];
    uint32_t linked = 0, d = pool->spare;
    uint32_t most = a->whole ? pool->descriptors : min_u32(pool->descriptors, AUDIT_LINKS);
    for (; d != KVD_NONE && linked < most; d = pool->pages[d].mark, linked++) {
        EXPECT(pool->pages[d].flags & PAGE_LISTED, "pool %u: spare descriptors: %u is in the list, and not marked",
               a->pool, d);
        pool->recount[d].linked = true;
    }
    a->linked_all = d == KVD_NONE;
    (void)audit_spend(a, linked);
    return true;
}

static uint8_t kinds_of(const struct pool *pool, uint32_t d) {
    const struct page *page = &pool->pages[d];
    unsigned kinds = (page->flags & PAGE_LISTED ? 1u : 0u) << KIND_LISTED;
    if (page->flags & PAGE_OCCUPIED)
        kinds |= 1u << KIND_OCCUPIED | (page->device != KVD_NONE ? 1u : 0u) << KIND_RESIDENT |
                 (page->references > 1 ? 1u : 0u) << KIND_SHARED | (page_on_device(page) ? 0u : 1u) << KIND_ABSENT |
                 (page->host.bits ? 1u : 0u) << KIND_HOST;
    return (uint8_t)kinds;
}

static void sum_page(struct audit *a, uint32_t d, uint32_t by) {
    uint8_t kinds = a->store->pool[a->pool].recount[d].kinds;
    for (uint32_t k = 0; k < KIND_N; k++)
        if (kinds >> k & 1) a->sums[k] += by;
}

/* What the page record alone must say. */
static void check_page(struct audit *a, uint32_t d) {
    const struct pool *pool = &a->store->pool[a->pool];
    const struct page *page = &pool->pages[d];
    bool writer = page->active_references == 1 && page->references == 1;
    EXPECT(page->device == KVD_NONE || (page->device < pool->capacity && pool->leases[page->device].owner == d),
           "pool %u: page %u has no lease", a->pool, d);
    EXPECT(page->epoch && page->epoch <= a->store->epoch, "pool %u: page %u has epoch %llu", a->pool, d,
           (unsigned long long)page->epoch);
    EXPECT(page->references || page->pins, "pool %u: PAGE-6: page %u lives without reference or pin", a->pool, d);
    EXPECT(page->references - page->lent <= 1 || page->committed == KVD_PAGE_TOKENS ||
               MUTANT(audit_passes_shared_tails), /* ENG-1: who lends it writes behind what the other one holds */
           "pool %u: INV-8: shared page %u has %u columns", a->pool, d, page->committed);
    EXPECT(!(page->flags & PAGE_NAMED) || (a->pool == 0 && page->committed == KVD_PAGE_TOKENS),
           "pool %u: page %u is named but not full", a->pool, d);
    EXPECT(writer == ((page->flags & PAGE_WRITER) != 0), "pool %u: page %u %s a writer", a->pool, d,
           writer ? "lost" : "has");
    EXPECT(page->protected <= page->committed, "pool %u: page %u protects %u columns of %u", a->pool, d,
           page->protected, page->committed);
    if (pool->tier) audit_tier_page(a, a->pool, d);
}

/* What was counted again of a page that nobody touched (PAGE-5, INV-7, SPACE-8). */
static void compare_page(struct audit *a, uint32_t d) {
    const struct pool *pool = &a->store->pool[a->pool];
    const struct page *page = &pool->pages[d];
    const struct page_recount *r = &pool->recount[d];
    EXPECT(r->references == page->references, "pool %u: page %u has %u references, counts %u", a->pool, d,
           r->references, page->references);
    EXPECT(r->active == page->active_references, "pool %u: page %u has %u active references, counts %u", a->pool, d,
           r->active, page->active_references);
    EXPECT(r->covered == page->protected, "pool %u: page %u protects %u columns, continuations read %u", a->pool, d,
           page->protected, r->covered);
    EXPECT(r->lent == page->lent, "pool %u: page %u is lent by %u sequences, counts %u", a->pool, d, r->lent,
           page->lent);
    EXPECT(r->pins == page->pins, "pool %u: page %u has %u pins, transitions hold %u", a->pool, d, page->pins, r->pins);
}

static uint32_t look_at_page(struct audit *a, uint32_t d) {
    const struct pool *pool = &a->store->pool[a->pool];
    const struct page *page = &pool->pages[d];
    struct page_recount *r = &pool->recount[d];
    bool occupied = page->flags & PAGE_OCCUPIED, listed = page->flags & PAGE_LISTED;
    r->kinds = kinds_of(pool, d);
    sum_page(a, d, 1);
    EXPECT(occupied || listed || (d < pool->capacity && pool_is_free(pool, d)),
           "pool %u: spare descriptors: %u is neither listed nor the home of a free page", a->pool, d);
    if (occupied && a->pass == 0) check_page(a, d);
    if (page->touched) {
        a->changed += occupied && r->due;
        return 3;
    }
    if (!r->due) return 3;
    r->due = false;
    if (occupied) compare_page(a, d);
    else EXPECT(r->references == 0, "pool %u: free page %u is a member of %u spaces", a->pool, d, r->references);
    EXPECT(r->linked == listed || !a->linked_all, "pool %u: spare descriptors: %u is %s", a->pool, d,
           listed ? "marked, and not in the list" : "in the list, and not marked");
    return 3;
}

static bool look_at_pages(struct audit *a) { return audit_each(a, a->store->pool[a->pool].descriptors, look_at_page); }

/* Mended by what was touched since it was summed, and compared: all at once. */
static void compare_sums(struct audit *a) {
    const struct pool *pool = &a->store->pool[a->pool];
    for (uint32_t i = 0; i < pool->touched->n; i++) {
        uint32_t d = pool->touched->item[i];
        sum_page(a, d, UINT32_MAX);
        pool->recount[d].kinds = kinds_of(pool, d);
        sum_page(a, d, 1);
    }
    EXPECT(a->sums[KIND_OCCUPIED] == pool->occupied && a->sums[KIND_RESIDENT] == pool->allocated,
           "pool %u: %u pages live, %u counted; %u on the device, %u allocated", a->pool, a->sums[KIND_OCCUPIED],
           pool->occupied, a->sums[KIND_RESIDENT], pool->allocated);
    EXPECT(a->sums[KIND_SHARED] == pool->shared, "pool %u: %u shared pages, counts %u", a->pool, a->sums[KIND_SHARED],
           pool->shared);
    EXPECT(a->sums[KIND_ABSENT] == pool->absent, "pool %u: %u pages are not on the device, counts %u", a->pool,
           a->sums[KIND_ABSENT], pool->absent);
    EXPECT(a->sums[KIND_HOST] == pool->host_pages, "pool %u: %u pages are in the host, counts %u", a->pool,
           a->sums[KIND_HOST], pool->host_pages);
    a->summed = true;
    (void)audit_spend(a, pool->touched->n);
}

/* Is another pass worth its while? It begins at section `from`. What is left out at last is counted. */
static bool pass_again(struct audit *a, uint32_t from, uint32_t left_out) {
    if (left_out && ++a->pass < AUDIT_PASSES) a->section = from - 1;
    else a->left_out += left_out;
    return true;
}

/* ---- steps ---- */

typedef bool audit_section(struct audit *a); /* true: it is done */
enum { FORGET_PAGES = 6, FORGET_CONTS = 1 };

static bool begin_passes(struct audit *a) {
    a->pass = 0;
    a->summed = false;
    return true;
}

static bool audit_rows(struct audit *a) { return audit_each(a, a->store->config.max_concurrency, audit_row); }

static bool end_pass(struct audit *a) {
    if (!a->summed && a->store->pool[a->pool].touched->n <= TOUCHED_LIMIT) compare_sums(a);
    return pass_again(a, FORGET_PAGES, a->changed + !a->summed);
}

static audit_section *const of_a_pool[] = { begin_passes, audit_leaves,  audit_inner, audit_numbers, audit_leases,
                                            audit_rows,   forget_pages,  count_seqs,  count_conts,   count_jobs,
                                            follow_spare, look_at_pages, end_pass };

static bool forget_conts(struct audit *a) {
    return audit_each(a, a->store->config.max_continuations, audit_forget_cont);
}
static bool audit_conts(struct audit *a) { return audit_each(a, a->store->config.max_continuations, audit_cont); }
static bool audit_nodes(struct audit *a) {
    if (!audit_each(a, a->store->index.fresh, audit_node)) return false;
    a->store->index.audited = UINT32_MAX; /* those that are made from now on, too */
    return true;
}
static bool audit_buckets(struct audit *a) { return audit_each(a, a->store->domains.hash_mask + 1, audit_bucket); }
static bool end_conts(struct audit *a) {
    audit_objects(a);
    return pass_again(a, FORGET_CONTS, !a->summed);
}
static bool audit_arena(struct audit *a) {
    audit_host(a);
    return true;
}

static audit_section *const of_all[] = { begin_passes, forget_conts, audit_buckets, audit_nodes,
                                         audit_conts,  end_conts,    audit_extents, audit_arena };

static void run_section(struct audit *a) {
    bool pool = a->pool < a->store->n_pools;
    if (!(pool ? of_a_pool : of_all)[a->section](a)) return;
    if (++a->section < (pool ? sizeof of_a_pool : sizeof of_all) / sizeof(audit_section *)) return;
    a->section = 0;
    if (pool) a->pool++;
    else a->is_over = true;
}

void store_audit_begin(struct store *store, char *text, size_t bytes) {
    *store->audit = (struct audit){ .store = store, .text = bytes ? text : NULL, .bytes = bytes };
    store->index.audited = store->domains.audited = 0;
    if (store->audit->text) store->audit->text[0] = '\0';
}

bool store_audit_step(struct store *store, uint64_t work, struct store_audited *ret_audited) {
    struct audit *a = store->audit;
    a->whole = work == UINT64_MAX;
    a->left = work;
    while (!a->is_over && a->left) run_section(a);
    *ret_audited = (struct store_audited){ a->violations, a->left_out };
    return !a->is_over;
}

uint32_t store_audit(struct store *store, char *text, size_t bytes) {
    struct store_audited audited;
    store_audit_begin(store, text, bytes);
    while (store_audit_step(store, UINT64_MAX, &audited)) continue;
    return audited.violations;
}
