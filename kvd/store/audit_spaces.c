/* SPDX-License-Identifier: Apache-2.0
 *
 * The audit of memberships and rows: what each holder has, counted again page by page.
 */
#include "audit.h"

/* A moving sequence's kept entries are an alias of the claimed source until commit. */
static bool is_alias(const struct audit_holder *h, uint32_t block) {
    const struct seq *seq = h->seq;
    return seq && seq->state == STORE_SEQ_ACTIVATING && seq->from != KVD_NONE && !seq->keep &&
           block < seq->taken[h->pool];
}

/* Every address that holds a page holds it at the same block, so none holds it twice. */
static void check_block(struct audit *a, const struct audit_holder *h, uint32_t block, uint32_t entry) {
    const struct pool *pool = &a->store->pool[h->pool];
    struct page_recount *r = &pool->recount[entry];
    EXPECT(r->block == 0 || r->block == block + 1 || pool->pages[entry].touched,
           "pool %u: page %u is block %u here and block %u there", h->pool, entry, block, r->block - 1);
    r->block = block + 1;
    if (pool->tier)
        EXPECT(pool->tier[entry].block == block, "pool %u: page %u is block %u, and says %u", h->pool, entry, block,
               pool->tier[entry].block);
}

/* SPACE-2, INV-6: what a page has committed is what the frontier says; a tail about to be moved in place still has the
 * source's. */
static void check_committed(struct audit *a, const struct audit_holder *h, uint32_t block, uint32_t entry) {
    const struct page *page = &a->store->pool[h->pool].pages[entry];
    uint32_t columns = columns_of(h->space->committed, block);
    bool moving = h->seq && h->seq->state == STORE_SEQ_ACTIVATING && h->seq->from != KVD_NONE && !h->seq->keep;
    EXPECT(moving || page->committed == columns,
           "pool %u: page %u has %u columns committed, the frontier of its %s %u gives %u", h->pool, entry,
           page->committed, h->seq ? "sequence" : "continuation", h->index, columns);
}

/* ENG-1: blank, and then nobody else's; complete; or one continuation's at most, written up to where that ends. Its
 * block is that of the continuations that hold it. */
static void check_lent(struct audit *a, const struct audit_holder *h, uint32_t entry) {
    const struct page *page = &a->store->pool[h->pool].pages[entry];
    EXPECT(page->flags & PAGE_NAMED ? page->committed == KVD_PAGE_TOKENS
                                    : page->committed < KVD_PAGE_TOKENS && page->references <= 1 + !!page->committed,
           "pool %u: ENG-1: lent page %u has %u columns, %u references and %s name", h->pool, entry, page->committed,
           page->references, page->flags & PAGE_NAMED ? "a" : "no");
    EXPECT(page_on_device(page), "pool %u: ENG-1: lent page %u is not on the device", h->pool, entry);
}

static void count_page(struct audit *a, const struct audit_holder *h, uint32_t block, uint32_t entry) {
    const struct pool *pool = &a->store->pool[h->pool];
    struct page_recount *r = &pool->recount[entry];
    r->references++;
    r->active += h->seq != NULL;
    if (h->seq && h->seq->lends) {
        r->lent++;
        check_lent(a, h, entry);
        return;
    }
    check_block(a, h, block, entry);
    check_committed(a, h, block, entry);
    if (!h->cont) return;
    uint32_t covered = columns_of(h->cont->frontier, block);
    r->covered = (uint8_t)max_u32(r->covered, covered);
    if (!h->cont->demoted) return;
    r->demoted++;
    EXPECT(page_is_current(&pool->pages[entry]),
           "pool %u: continuation %u is demoted, and its page %u has no current host replica", h->pool, h->index,
           entry);
}

/* References never rise along a space; what is promised is a victim's. */
static void visit_entry(struct audit *a, const struct audit_holder *h, uint32_t block, uint32_t entry, uint32_t *last) {
    const struct pool *pool = &a->store->pool[h->pool];
    const char *kind = h->seq ? "sequence" : "continuation";
    uint32_t references = 1;
    if (entry & PROMISED)
        EXPECT(h->seq && h->seq->state == STORE_SEQ_ACTIVATING && !pool_is_free(pool, entry & ~PROMISED),
               "%s %u pool %u: block %u is promised", kind, h->index, h->pool, block);
    else if (entry >= pool->descriptors) audit_report(a, "pool %u: membership names descriptor %u", h->pool, entry);
    else {
        references = pool->pages[entry].references - pool->pages[entry].lent;
        if (!is_alias(h, block)) count_page(a, h, block, entry);
    }
    if (h->seq && h->seq->lends) return;
    EXPECT(references <= *last || a->store->window_pages[h->pool], "%s %u pool %u: references rise to %u at block %u",
           kind, h->index, h->pool, references, block);
    *last = references;
}

/* GRP-2 to GRP-4: nothing is mapped before the base, which is where the frontier says, and what is reserved suffices.
 */
static void audit_window(struct audit *a, const struct audit_holder *h) {
    const struct store *store = a->store;
    const struct space *space = h->space;
    const char *kind = h->seq ? "sequence" : "continuation";
    uint32_t n, first = window_first(store, h->pool, space->committed);
    bool none = true, staged = h->seq && h->seq->staged;
    for (uint32_t i = 0; i < space->base; i += n) {
        const uint32_t *run = space_run(store, space, i, &n);
        n = min_u32(n, space->base - i);
        for (uint32_t k = 0; k < n; k++) none &= run[k] == KVD_NONE;
    }
    EXPECT(none && space->base <= space->count, "%s %u pool %u: GRP-2: pages before block %u", kind, h->index, h->pool,
           space->base);
    EXPECT(staged || (h->cont ? space->base == first : space->base <= first),
           "%s %u pool %u: GRP-4: its window begins at block %u, frontier %u reads from %u on", kind, h->index, h->pool,
           space->base, space->committed, first);
    if (!store->window_pages[h->pool] || !h->seq || h->seq->state == STORE_SEQ_ACTIVATING) return;
    uint32_t reach = seq_reach(store, h->seq, h->pool),
             needs = window_needs(store, h->pool, space, space->count, reach, (struct blocks){ 0, 0 }, NULL);
    EXPECT(space->count <= window_end(store, h->pool, space->base, reach) && space->reserved >= needs,
           "%s %u pool %u: GRP-3: blocks %u to %u are mapped, %u are reserved and %u needed", kind, h->index, h->pool,
           space->base, space->count, space->reserved, needs);
    EXPECT(space->base >= window_kept(store, h->pool, space->committed),
           "%s %u pool %u: GRP-2: block %u has left the window", kind, h->index, h->pool, space->base);
}

static void audit_space(struct audit *a, const struct audit_holder *h) {
    const struct store *store = a->store;
    const struct space *space = h->space;
    const char *kind = h->seq ? "sequence" : "continuation";
    uint32_t last = UINT32_MAX, n;
    uint32_t end = store->window_pages[h->pool] ? space->count : space_entitlement(space);
    EXPECT(space->count >= pages_of(space->committed) && end <= store->row_entries,
           "%s %u pool %u: SPACE-2: entitlement %u, membership %u, committed %u", kind, h->index, h->pool,
           space_entitlement(space), space->count, space->committed);
    audit_window(a, h);
    for (uint32_t i = space->base; i < space->count; i += n) {
        const uint32_t *run = space_run(store, space, i, &n);
        for (uint32_t k = 0; k < n; k++) visit_entry(a, h, i + k, run[k], &last);
    }
    if (h->cont)
        EXPECT(space->reserved == 0 && space->pending == 0 && space->committed == h->cont->frontier &&
                   space->count == pages_of(h->cont->frontier),
               "continuation %u pool %u: %u pages at frontier %u", h->index, h->pool, space->count, h->cont->frontier);
}

/* ---- what copies in flight hold ---- */

static void count_pin(struct audit *a, uint32_t pool, uint32_t d) {
    if (d != KVD_NONE) a->store->pool[pool].recount[d].pins++;
}

static void count_held_source(struct audit *a, uint32_t p, const struct seq *seq) {
    const struct space *space = &a->store->conts[seq->from].space[p];
    for (uint32_t b = space->base; b < seq->frontier / KVD_PAGE_TOKENS; b++)
        count_pin(a, p, space_entry(a->store, space, b));
}

/* LIVE-1: what is found of it are its own pages. */
static void check_alias(struct audit *a, uint32_t i) {
    const struct store *store = a->store;
    const struct seq *seq = &store->seqs[i];
    if (seq->own == KVD_NONE || !store->conts[seq->own].published) return;
    const struct space *alias = &store->conts[seq->own].space[a->pool], *space = &seq->space[a->pool];
    bool same = alias->count <= space->count && alias->count == store->conts[seq->own].named;
    for (uint32_t b = 0; same && b < alias->count; b++)
        same = space_entry(store, alias, b) == space_entry(store, space, b);
    EXPECT(same, "LIVE-1: what is found of sequence %u has other pages in pool %u", i, a->pool);
}

uint32_t audit_seq_space(struct audit *a, uint32_t i) {
    uint32_t p = a->pool;
    const struct seq *seq = &a->store->seqs[i];
    if (!seq->occupied) return 1;
    audit_space(a, &(struct audit_holder){ &seq->space[p], seq, NULL, p, i });
    check_alias(a, i);
    if (seq->tail[p] != KVD_NONE) {
        count_pin(a, p, seq->tail[p]);
        count_pin(a, p, seq->tail_source[p]);
    }
    if (!a->store->pool[p].tier) return 2 * seq->space[p].count + 1;
    audit_count_job(a, p, &seq->job);
    if (seq->holds_source) count_held_source(a, p, seq);
    return 3 * seq->space[p].count + 1;
}

uint32_t audit_cont_space(struct audit *a, uint32_t i) {
    uint32_t p = a->pool;
    const struct cont *cont = &a->store->conts[i];
    if (!cont->occupied || cont->owned) return 1;
    audit_space(a, &(struct audit_holder){ &cont->space[p], NULL, cont, p, i });
    if (cont->tail_copy[p] == KVD_NONE) return cont->space[p].count + 2;
    EXPECT(!cont->published, "continuation %u is published and still pins its tail", i);
    count_pin(a, p, cont->tail_copy[p]);
    count_pin(a, p, cont->tail_source[p]);
    struct page_recount *source = &a->store->pool[p].recount[cont->tail_source[p]];
    source->covered = (uint8_t)max_u32(source->covered, cont->frontier % KVD_PAGE_TOKENS);
    return cont->space[p].count + 4;
}

/* ---- rows: ROW-2, ROW-6, INV-12 ---- */

/* A copy into the page has not ended. */
static bool is_arriving(const struct store *store, const struct seq *seq, uint32_t p, uint32_t entry) {
    if (entry == KVD_NONE) return false; /* behind a window */
    return entry == seq->tail[p] || (!(entry & PROMISED) && (store->pool[p].pages[entry].flags & PAGE_RESTORING));
}

uint32_t audit_row(struct audit *a, uint32_t r) {
    const struct store *store = a->store;
    uint32_t p = a->pool, count = 0;
    const int32_t *row = row_entries(store, p, r);
    uint32_t owner = store->pool[p].rows[r].owner;
    const struct seq *seq = owner < store->config.max_concurrency ? &store->seqs[owner] : NULL;
    if (owner != KVD_NONE) EXPECT(seq && seq->occupied && seq->row[p] == r, "pool %u: row %u has a stale owner", p, r);
    if (seq) {
        count = seq->shown ? seq->space[p].count : 0;
        EXPECT(seq->shown || seq->state == STORE_SEQ_ACTIVATING, "pool %u: row %u does not show its sequence", p, r);
    }
    for (uint32_t i = 0; i < store->row_entries; i++) {
        uint32_t entry = i < count ? space_entry(store, &seq->space[p], i) : KVD_NONE;
        int32_t want = i < count ? (int32_t)space_device(store, p, entry) : -1;
        EXPECT(row[i] == want, "pool %u: row %u entry %u is %d, the membership says %d", p, r, i, row[i], want);
        EXPECT(i >= count || !is_arriving(store, seq, p, entry),
               "pool %u: PAGE-7: row %u names block %u, whose copy has not ended", p, r, i);
    }
    return store->row_entries / 16 + count + 1;
}
