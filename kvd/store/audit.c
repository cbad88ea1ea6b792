/* SPDX-License-Identifier: Apache-2.0
 *
 * The audit: recomputes from the memberships what the store keeps incrementally, and compares (contract section 14).
 * Page by page scratch is the stamp and mark of the page records, so no memory is needed.
 */
#include "audit.h"

#include <string.h>

/* ---- what a walk looks at ---- */

static void visit_count(struct audit *a, const struct audit_holder *h, uint32_t block, uint32_t entry, uint32_t stamp) {
    (void)block;
    if (entry >= a->store->pool[h->pool].descriptors)
        audit_report(a, "pool %u: membership names descriptor %u", h->pool, entry);
    else ++*audit_mark(a, h->pool, entry, stamp);
}

/* Every address that holds a page holds it at the same block, so none holds it twice. */
static void visit_block(struct audit *a, const struct audit_holder *h, uint32_t block, uint32_t entry, uint32_t stamp) {
    uint32_t *mark = audit_mark(a, h->pool, entry, stamp);
    EXPECT(*mark == 0 || *mark == block + 1, "pool %u: page %u is block %u here and block %u there", h->pool, entry,
           block, *mark - 1);
    *mark = block + 1;
    if (a->store->pool[h->pool].tier)
        EXPECT(a->store->pool[h->pool].tier[entry].block == block, "pool %u: page %u is block %u, and says %u", h->pool,
               entry, block, a->store->pool[h->pool].tier[entry].block);
}

static void visit_coverage(struct audit *a, const struct audit_holder *h, uint32_t block, uint32_t entry,
                           uint32_t stamp) {
    uint32_t *mark = audit_mark(a, h->pool, entry, stamp);
    *mark = max_u32(*mark, columns_of(h->cont->frontier, block));
}

/* SPACE-2, INV-6: what a page has committed is what the frontier says; a tail about to be moved in place still has the
 * source's. */
static void visit_committed(struct audit *a, const struct audit_holder *h, uint32_t block, uint32_t entry,
                            uint32_t stamp) {
    const struct page *page = &a->store->pool[h->pool].pages[entry];
    uint32_t columns = columns_of(h->space->committed, block);
    (void)stamp;
    EXPECT(page->committed == columns, "pool %u: page %u has %u columns committed, the frontier of its %s %u gives %u",
           h->pool, entry, page->committed, h->seq ? "sequence" : "continuation", h->index, columns);
}

/* ---- pools ---- */

static void audit_tree(struct audit *a, uint32_t p) {
    const struct pool *pool = &a->store->pool[p];
    uint32_t half = BLOCK_PAGES, free = 0;
    for (uint32_t i = 0; i < pool->n_leaves; i++) {
        struct free_run run = pool_block_run(pool, i);
        EXPECT(memcmp(&run, &pool->tree[pool->n_leaves + i], sizeof run) == 0,
               "pool %u: free runs of block %u are wrong", p, i);
    }
    for (uint32_t level = pool->n_leaves / 2; level > 0; level /= 2, half *= 2)
        for (uint32_t i = level; i < 2 * level; i++) {
            struct free_run run = pool_join(pool->tree[2 * i], pool->tree[2 * i + 1], half);
            EXPECT(memcmp(&run, &pool->tree[i], sizeof run) == 0, "pool %u: free runs of node %u are wrong", p, i);
        }
    for (uint32_t i = 0; i < pool->n_leaves * BLOCK_WORDS; i++) free += (uint32_t)__builtin_popcountll(pool->bitmap[i]);
    EXPECT(free == pool->capacity - pool->allocated, "pool %u: POOL-6: %u free bits, %u of %u allocated", p, free,
           pool->allocated, pool->capacity);
}

static void audit_leases(struct audit *a, uint32_t p) { /* INV-1 */
    const struct pool *pool = &a->store->pool[p];
    for (uint32_t g = 0; g < pool->capacity; g++) {
        const struct page_lease *lease = &pool->leases[g];
        bool is_free = pool_is_free(pool, g);
        EXPECT(is_free == (lease->owner == KVD_NONE), "pool %u: page group %u is %s and leased to %u", p, g,
               is_free ? "free" : "taken", lease->owner);
        if (lease->owner == KVD_NONE) continue;
        const struct page *page = &pool->pages[lease->owner];
        EXPECT(lease->owner < pool->descriptors && (page->flags & PAGE_OCCUPIED) && page->device == g &&
                   page->lease == lease->generation,
               "pool %u: lease of page group %u and its page %u disagree", p, g, lease->owner);
    }
}

static uint32_t descriptors_without_home(const struct pool *pool) {
    uint32_t n = 0;
    for (uint32_t d = 0; d < pool->descriptors; d++)
        n += !(pool->pages[d].flags & PAGE_OCCUPIED) && (d >= pool->capacity || !pool_is_free(pool, d));
    return n;
}

static void audit_descriptors(struct audit *a, uint32_t p) {
    const struct pool *pool = &a->store->pool[p];
    uint32_t occupied = 0, resident = 0, listed = 0, linked = 0;
    for (uint32_t d = 0; d < pool->descriptors; d++) {
        const struct page *page = &pool->pages[d];
        occupied += (page->flags & PAGE_OCCUPIED) != 0;
        listed += (page->flags & PAGE_LISTED) != 0;
        if (!(page->flags & PAGE_OCCUPIED)) continue;
        resident += page->device != KVD_NONE;
        EXPECT(page->device == KVD_NONE || (page->device < pool->capacity && pool->leases[page->device].owner == d),
               "pool %u: page %u has no lease", p, d);
        EXPECT(page->epoch && page->epoch <= a->store->epoch, "pool %u: page %u has epoch %llu", p, d,
               (unsigned long long)page->epoch);
    }
    EXPECT(occupied == pool->occupied && resident == pool->allocated,
           "pool %u: %u pages live, %u counted; %u on the device, %u allocated", p, occupied, pool->occupied, resident,
           pool->allocated);
    for (uint32_t d = pool->spare; d != KVD_NONE && linked <= pool->descriptors; d = pool->pages[d].mark) linked++;
    EXPECT(linked == listed && listed >= descriptors_without_home(pool),
           "pool %u: %u spare descriptors in the list, %u marked", p, linked, listed);
}

static void audit_reservations(struct audit *a, uint32_t p) { /* POOL-6, INV-4, INV-10 */
    const struct store *store = a->store;
    const struct pool *pool = &store->pool[p];
    uint64_t reserved = 0;
    for (uint32_t i = 0; i < store->config.max_concurrency; i++)
        if (store->seqs[i].occupied) reserved += store->seqs[i].space[p].reserved;
    EXPECT(reserved == pool->reserved, "pool %u: sequences hold %llu reserved pages, the pool counts %u", p,
           (unsigned long long)reserved, pool->reserved);
    EXPECT((uint64_t)pool->allocated + pool->reserved <= pool->capacity,
           "pool %u: POOL-6: %u allocated, %u reserved of %u", p, pool->allocated, pool->reserved, pool->capacity);
}

/* ---- pages ---- */

static void audit_references(struct audit *a, uint32_t p) {
    const struct store *store = a->store;
    const struct pool *pool = &store->pool[p];
    uint32_t shared = 0;
    audit_walk_all(a, p, visit_count, true, true);
    for (uint32_t d = 0; d < pool->descriptors; d++) {
        const struct page *page = &pool->pages[d];
        uint32_t references = audit_marked(store, page);
        if (!(page->flags & PAGE_OCCUPIED)) {
            EXPECT(references == 0, "pool %u: free page %u is a member of %u spaces", p, d, references);
            continue;
        }
        shared += references > 1;
        EXPECT(references == page->references, "pool %u: page %u has %u references, counts %u", p, d, references,
               page->references);
        EXPECT(references || page->pins, "pool %u: PAGE-6: page %u lives without reference or pin", p, d);
        EXPECT(references <= 1 || page->committed == KVD_PAGE_TOKENS || MUTANT(audit_passes_shared_tails),
               "pool %u: INV-8: shared page %u has %u columns", p, d, page->committed);
        EXPECT(!(page->flags & PAGE_NAMED) || (p == 0 && page->committed == KVD_PAGE_TOKENS),
               "pool %u: page %u is named but not full", p, d);
    }
    EXPECT(shared == pool->shared, "pool %u: %u shared pages, counts %u", p, shared, pool->shared);
}

static void audit_writers(struct audit *a, uint32_t p) { /* PAGE-5, INV-7 */
    const struct pool *pool = &a->store->pool[p];
    audit_walk_all(a, p, visit_count, true, false);
    for (uint32_t d = 0; d < pool->descriptors; d++) {
        const struct page *page = &pool->pages[d];
        if (!(page->flags & PAGE_OCCUPIED)) continue;
        uint32_t active = audit_marked(a->store, page);
        bool writer = active == 1 && page->references == 1;
        EXPECT(active == page->active_references, "pool %u: page %u has %u active references, counts %u", p, d, active,
               page->active_references);
        EXPECT(writer == ((page->flags & PAGE_WRITER) != 0), "pool %u: page %u %s a writer", p, d,
               writer ? "lost" : "has");
    }
}

static void audit_protection(struct audit *a, uint32_t p) { /* SPACE-8 */
    const struct pool *pool = &a->store->pool[p];
    audit_walk_all(a, p, visit_coverage, false, true);
    for (uint32_t i = a->store->in_flight; i != KVD_NONE; i = a->store->conts[i].next_victim) {
        const struct cont *cont = &a->store->conts[i];
        EXPECT(cont->occupied && !cont->published, "continuation %u is not in flight", i);
        if (cont->tail_source[p] == KVD_NONE) continue;
        uint32_t *mark = audit_mark(a, p, cont->tail_source[p], *a->store->stamp);
        *mark = max_u32(*mark, cont->frontier % KVD_PAGE_TOKENS);
    }
    for (uint32_t d = 0; d < pool->descriptors; d++) {
        const struct page *page = &pool->pages[d];
        if (!(page->flags & PAGE_OCCUPIED)) continue;
        uint32_t covered = audit_marked(a->store, page);
        EXPECT(page->protected == covered && covered <= page->committed,
               "pool %u: page %u protects %u columns, continuations read %u", p, d, page->protected, covered);
    }
}

static void audit_pins(struct audit *a, uint32_t p) {
    const struct store *store = a->store;
    uint32_t stamp = store_next_stamp(store);
    for (uint32_t i = 0; i < store->config.max_concurrency; i++) {
        const struct seq *seq = &store->seqs[i];
        if (!seq->occupied || seq->tail[p] == KVD_NONE) continue;
        ++*audit_mark(a, p, seq->tail[p], stamp);
        ++*audit_mark(a, p, seq->tail_source[p], stamp);
    }
    for (uint32_t i = 0; i < store->config.max_continuations; i++) {
        const struct cont *cont = &store->conts[i];
        if (!cont->occupied || cont->tail_copy[p] == KVD_NONE) continue;
        EXPECT(!cont->published, "continuation %u is published and still pins its tail", i);
        ++*audit_mark(a, p, cont->tail_copy[p], stamp);
        ++*audit_mark(a, p, cont->tail_source[p], stamp);
    }
    audit_tier_pins(a, p, stamp);
    for (uint32_t d = 0; d < store->pool[p].descriptors; d++) {
        const struct page *page = &store->pool[p].pages[d];
        if (page->flags & PAGE_OCCUPIED)
            EXPECT(audit_marked(store, page) == page->pins, "pool %u: page %u has %u pins, transitions hold %u", p, d,
                   page->pins, audit_marked(store, page));
    }
}

/* ---- spaces and rows ---- */

static void audit_space(struct audit *a, const struct audit_holder *h) {
    const struct store *store = a->store;
    const struct space *space = h->space;
    const char *kind = h->seq ? "sequence" : "continuation";
    uint32_t last = UINT32_MAX;
    EXPECT(space->count >= pages_of(space->committed) && space_entitlement(space) <= store->row_entries,
           "%s %u pool %u: SPACE-2: entitlement %u, membership %u, committed %u", kind, h->index, h->pool,
           space_entitlement(space), space->count, space->committed);
    bool moving = h->seq && h->seq->state == STORE_SEQ_ACTIVATING && h->seq->from != KVD_NONE && !h->seq->keep;
    for (uint32_t i = 0; i < space->count; i++) {
        uint32_t entry = space_entry(store, space, i);
        uint32_t references = entry & PROMISED ? 1 : store->pool[h->pool].pages[entry].references;
        EXPECT(references <= last, "%s %u pool %u: references rise to %u at block %u", kind, h->index, h->pool,
               references, i);
        last = references;
        if (entry & PROMISED)
            EXPECT(h->seq && h->seq->state == STORE_SEQ_ACTIVATING &&
                       !pool_is_free(&store->pool[h->pool], entry & ~PROMISED),
                   "%s %u pool %u: block %u is promised", kind, h->index, h->pool, i);
    }
    if (!moving) audit_walk_space(a, h, visit_committed, 0);
    if (h->cont)
        EXPECT(space->reserved == 0 && space->pending == 0 && space->committed == h->cont->frontier &&
                   space->count == pages_of(h->cont->frontier),
               "continuation %u pool %u: %u pages at frontier %u", h->index, h->pool, space->count, h->cont->frontier);
}

static void audit_spaces(struct audit *a, uint32_t p) {
    const struct store *store = a->store;
    for (uint32_t i = 0; i < store->config.max_concurrency; i++) {
        struct audit_holder h = { &store->seqs[i].space[p], &store->seqs[i], NULL, p, i };
        if (store->seqs[i].occupied) audit_space(a, &h);
    }
    for (uint32_t i = 0; i < store->config.max_continuations; i++) {
        struct audit_holder h = { &store->conts[i].space[p], NULL, &store->conts[i], p, i };
        if (store->conts[i].occupied) audit_space(a, &h);
    }
    audit_walk_all(a, p, visit_block, true, true);
}

/* A copy into the page has not ended. */
static bool is_arriving(const struct store *store, const struct seq *seq, uint32_t p, uint32_t entry) {
    return entry == seq->tail[p] || (!(entry & PROMISED) && (store->pool[p].pages[entry].flags & PAGE_RESTORING));
}

static void audit_rows(struct audit *a, uint32_t p) { /* ROW-2, ROW-6, INV-12 */
    const struct store *store = a->store;
    const struct pool *pool = &store->pool[p];
    uint32_t used = 0;
    for (uint32_t r = 0; r < store->config.max_concurrency; r++) {
        const int32_t *row = row_entries(store, p, r);
        uint32_t owner = pool->rows[r].owner, count = 0;
        const struct seq *seq = owner == KVD_NONE ? NULL : &store->seqs[owner];
        used += seq != NULL;
        if (seq) {
            EXPECT(owner < store->config.max_concurrency && seq->occupied && seq->row[p] == r,
                   "pool %u: row %u has a stale owner", p, r);
            count = seq->shown ? seq->space[p].count : 0;
            EXPECT(seq->shown || seq->state == STORE_SEQ_ACTIVATING, "pool %u: row %u does not show its sequence", p,
                   r);
        }
        for (uint32_t i = 0; i < store->row_entries; i++) {
            uint32_t entry = i < count ? space_entry(store, &seq->space[p], i) : KVD_NONE;
            int32_t want = i < count ? (int32_t)space_device(store, p, entry) : -1;
            EXPECT(row[i] == want, "pool %u: row %u entry %u is %d, the membership says %d", p, r, i, row[i], want);
            EXPECT(i >= count || !is_arriving(store, seq, p, entry),
                   "pool %u: PAGE-7: row %u names block %u, whose copy has not ended", p, r, i);
        }
    }
    EXPECT(used == pool->rows_used && used == store->seqs_used, "pool %u: %u rows leased, %u counted, %u sequences", p,
           used, pool->rows_used, store->seqs_used);
}

/* ---- what is shared by the pools ---- */

static void audit_chunks(struct audit *a) {
    const struct store *store = a->store;
    const struct chunks *c = &store->chunks;
    uint64_t used = 0, reserved = 0, entries = 0, freed = 0;
    for (uint32_t p = 0; p < store->n_pools; p++) {
        for (uint32_t i = 0; i < store->config.max_concurrency; i++) {
            const struct space *space = &store->seqs[i].space[p];
            if (!store->seqs[i].occupied) continue;
            used += chunks_for(space->count);
            entries += space->count;
            if (!store->seqs[i].staged) reserved += chunks_for(space_entitlement(space)) - chunks_for(space->count);
            if (p == 0) reserved += store->seqs[i].chunks_held;
            if (p == 0) reserved -= store->seqs[i].chunks_pending;
        }
        for (uint32_t i = 0; i < store->config.max_continuations; i++) {
            if (!store->conts[i].occupied) continue;
            used += chunks_for(store->conts[i].space[p].count);
            entries += store->conts[i].space[p].count;
        }
    }
    for (uint32_t chunk = c->head; chunk != KVD_NONE && freed <= c->capacity; chunk = c->entries[(size_t)chunk * CHUNK])
        freed++;
    EXPECT(used == c->used && used + freed == c->fresh,
           "membership: %llu chunks used, %u counted, %llu freed of %u ever used", (unsigned long long)used, c->used,
           (unsigned long long)freed, c->fresh);
    EXPECT(reserved == c->reserved && used + reserved <= c->capacity,
           "membership: %llu chunks reserved, %u counted, capacity %u", (unsigned long long)reserved, c->reserved,
           c->capacity);
    EXPECT(entries == store->entries, "membership: %llu entries, %llu counted", (unsigned long long)entries,
           (unsigned long long)store->entries);
}

static uint32_t slot_owners(const struct store *store, uint32_t slot, uint32_t *ret_pins) {
    uint32_t owners = 0, pins = 0;
    for (uint32_t i = 0; i < store->config.max_concurrency; i++) {
        const struct seq *seq = &store->seqs[i];
        if (!seq->occupied) continue;
        owners += seq->state == STORE_SEQ_ACTIVATING ? 0 : seq->state_slot == slot;
        pins += seq->source_slot == slot;
    }
    for (uint32_t i = 0; i < store->config.max_continuations; i++) {
        owners += store->conts[i].occupied && store->conts[i].slot == slot;
        pins += store->conts[i].occupied && store->conts[i].source_slot == slot;
        pins += store->conts[i].occupied && store->conts[i].image_backing && store->conts[i].slot == slot;
    }
    for (uint32_t i = 0; i < store->config.max_concurrency;
         i++) /* in flight: fresh, or still a victim's or the source's */
        if (owners == 0 && store->seqs[i].occupied && store->seqs[i].state == STORE_SEQ_ACTIVATING)
            owners += store->seqs[i].state_slot == slot;
    *ret_pins = pins;
    return owners;
}

static void audit_slots(struct audit *a) {
    const struct store *store = a->store;
    uint32_t used = 0, pins;
    for (uint32_t s = 0; store->config.has_state && s < store->config.state_slots; s++) {
        uint32_t owners = slot_owners(store, s, &pins);
        const struct slot *slot = &store->slots[s];
        EXPECT(owners <= 1 && (owners == 1) == slot->used, "state slot %u has %u owners and is %s", s, owners,
               slot->used ? "used" : "free");
        EXPECT(pins == slot->pins, "state slot %u has %u pins, transitions hold %u", s, slot->pins, pins);
        used += owners || pins;
        EXPECT(owners || pins || s >= store->slot_hint, "state slot %u is free below the hint %u", s, store->slot_hint);
    }
    EXPECT(used == store->slots_used, "%u state slots used, %u counted", used, store->slots_used);
}

static void audit_claims(struct audit *a) {
    const struct store *store = a->store;
    for (uint32_t i = 0; i < store->config.max_continuations; i++) {
        const struct cont *cont = &store->conts[i];
        uint32_t claims = 0, pins = 0;
        if (!cont->occupied) continue;
        for (uint32_t k = 0; k < store->config.max_concurrency; k++) {
            const struct seq *seq = &store->seqs[k];
            if (!seq->occupied || seq->state != STORE_SEQ_ACTIVATING) continue;
            claims += seq->from == i && !seq->keep;
            pins += seq->from == i && seq->keep;
            for (uint32_t v = seq->victims; v != KVD_NONE; v = store->conts[v].next_victim) claims += v == i;
        }
        EXPECT(claims <= 1 && (claims == 1) == cont->claimed, "continuation %u: %u claims, %s", i, claims,
               cont->claimed ? "claimed" : "free");
        EXPECT(cont->cut_to == 0 || (cont->claimed && cont->cut_to < cont->frontier && !cont->demoting),
               "continuation %u of %u tokens is to be cut to %u", i, cont->frontier, cont->cut_to);
        EXPECT(pins == cont->pins, "continuation %u: %u forks in flight, %u pins", i, pins, cont->pins);
    }
}

static void audit_objects(struct audit *a) {
    const struct store *store = a->store;
    uint32_t seqs = 0, conts = 0, free_seqs = 0, free_conts = 0;
    for (uint32_t i = 0; i < store->config.max_concurrency; i++) seqs += store->seqs[i].occupied;
    for (uint32_t i = 0; i < store->config.max_continuations; i++) conts += store->conts[i].occupied;
    for (uint32_t i = store->seq_free; i != KVD_NONE && free_seqs <= store->config.max_concurrency;
         i = store->seqs[i].next_free)
        free_seqs++;
    for (uint32_t i = store->cont_free; i != KVD_NONE && free_conts <= store->config.max_continuations;
         i = store->conts[i].next_free)
        free_conts++;
    EXPECT(seqs == store->seqs_used && seqs + free_seqs <= store->config.max_concurrency,
           "%u sequences, %u counted, %u free", seqs, store->seqs_used, free_seqs);
    EXPECT(conts == store->conts_used && conts + free_conts <= store->config.max_continuations,
           "%u continuations, %u counted, %u free", conts, store->conts_used, free_conts);
}

/* FIT-2: every active sequence owns one descriptor, and every owned descriptor is one sequence's. */
static void audit_owned(struct audit *a) {
    const struct store *store = a->store;
    uint32_t owned = 0, owners = 0;
    for (uint32_t i = 0; i < store->config.max_continuations; i++)
        owned += store->conts[i].occupied && store->conts[i].owned;
    for (uint32_t i = 0; i < store->config.max_concurrency; i++) {
        const struct seq *seq = &store->seqs[i];
        if (!seq->occupied) continue;
        EXPECT(seq->own != KVD_NONE || seq->state == STORE_SEQ_ACTIVATING, "FIT-2: sequence %u owns no descriptor", i);
        if (seq->own == KVD_NONE) continue;
        owners++;
        EXPECT(store->conts[seq->own].occupied && store->conts[seq->own].owned,
               "FIT-2: sequence %u owns descriptor %u, which is no sequence's", i, seq->own);
    }
    EXPECT(owned == owners && owned == store->conts_owned, "FIT-2: %u descriptors are owned by %u sequences, counts %u",
           owned, owners, store->conts_owned);
}

/* ---- names and index ---- */

static bool is_below(const struct store *store, uint32_t node, uint32_t n) {
    while (n != KVD_NONE && n != node) n = store->index.nodes[n].parent;
    return n == node;
}

static void audit_path(struct audit *a, uint32_t i) {
    const struct store *store = a->store;
    const struct node *nodes = store->index.nodes;
    const struct cont *cont = &store->conts[i];
    uint32_t end = cont->named + 1;
    EXPECT(cont->named <= cont->frontier / KVD_PAGE_TOKENS && nodes[cont->node].end == end,
           "continuation %u ends at step %u, named %u", i, nodes[cont->node].end, cont->named);
    for (uint32_t n = cont->node; n != KVD_NONE; n = nodes[n].parent) {
        EXPECT(nodes[n].end == end, "node %u ends at %u, its child begins at %u", n, nodes[n].end, end);
        end = nodes[n].begin;
        for (uint32_t step = nodes[n].begin; step < nodes[n].end; step++)
            EXPECT(memcmp(index_digest(store, cont, step), index_digest(store, &store->conts[nodes[n].some], step),
                          32) == 0,
                   "continuation %u step %u: the index has another digest", i, step);
        if (n)
            EXPECT(index_child(store, nodes[n].parent, index_digest(store, cont, nodes[n].begin)) == n,
                   "node %u is not found", n);
    }
    EXPECT(end == 0, "continuation %u: its path begins at %u", i, end);
    for (uint32_t page = 0; page < cont->named; page++)
        EXPECT(store->pool[0].pages[space_entry(store, &cont->space[0], page)].flags & PAGE_NAMED,
               "continuation %u page %u has no name", i, page);
}

/* The tree of the ends of a node: in order of their tails, each found by its own tokens. */
static void audit_ends(struct audit *a, uint32_t n, uint32_t *ends) {
    const struct store *store = a->store;
    uint32_t last = KVD_NONE;
    for (uint32_t c = end_seek(store, n, NULL, 0, NULL); c != KVD_NONE && *ends <= store->config.max_continuations;
         last = c, c = end_next(store, c)) {
        const struct cont *cont = &store->conts[c];
        ++*ends;
        EXPECT(cont->occupied && cont->published && cont->node == n, "node %u ends stale continuation %u", n, c);
        EXPECT(end_previous(store, c) == last, "node %u: %u is not behind %u", n, c, last);
        uint32_t tokens = end_tokens(cont), found = end_seek(store, n, cont->tail.tokens, tokens, NULL);
        while (found != c && found != KVD_NONE && end_tokens(&store->conts[found]) == tokens &&
               end_common(&store->conts[found], cont->tail.tokens, tokens) == tokens)
            found = end_next(store, found);
        EXPECT(found == c, "node %u: continuation %u is not found by its tail", n, c);
    }
}

static void audit_index_node(struct audit *a, uint32_t n, uint32_t *ends) {
    const struct store *store = a->store;
    const struct node *node = &store->index.nodes[n];
    uint32_t children = 0;
    audit_ends(a, n, ends);
    for (uint32_t c = node->first_child; c != KVD_NONE; c = store->index.nodes[c].next) {
        EXPECT(store->index.nodes[c].parent == n, "node %u is not the parent of %u", n, c);
        children++;
    }
    if (n) EXPECT(node->begin < node->end && (node->ends != KVD_NONE || children > 1), "node %u is of no use", n);
    if (n)
        EXPECT(store->conts[node->some].published && is_below(store, n, store->conts[node->some].node),
               "node %u reads continuation %u, which is elsewhere", n, node->some);
}

/* Each published continuation once, in order. */
static void audit_order(struct audit *a) {
    const struct store *store = a->store;
    uint32_t found = 0, published = 0;
    for (uint32_t i = 0; i < store->config.max_continuations; i++)
        published += store->conts[i].occupied && store->conts[i].published;
    for (int demoted = 0; demoted < 2; demoted++) {
        uint32_t last = KVD_NONE;
        for (uint32_t i = order_first(store, demoted); i != KVD_NONE && found <= published; i = order_next(store, i)) {
            const struct cont *cont = &store->conts[i];
            EXPECT(cont->published && cont->ordered && cont->demoted == demoted,
                   "continuation %u is not where it stands in the order", i);
            EXPECT(last == KVD_NONE || order_is_first(store, last, i), "continuation %u goes before %u", i, last);
            last = i;
            found++;
        }
    }
    EXPECT(found == published, "%u continuations in the order, %u published", found, published);
    EXPECT(lives_balance(store) == published, "%llu continuations live, %u published",
           (unsigned long long)lives_balance(store), published);
}

static void audit_index(struct audit *a) {
    const struct store *store = a->store;
    const struct index *index = &store->index;
    uint32_t published = 0, ends = 0, used = 0;
    for (uint32_t i = 0; i < store->config.max_continuations; i++) {
        if (!store->conts[i].occupied || !store->conts[i].published) continue;
        published++;
        audit_path(a, i);
    }
    for (uint32_t n = 0; n < index->fresh; n++) {
        if (n && index->nodes[n].parent == KVD_NONE) continue;
        used++;
        audit_index_node(a, n, &ends);
    }
    EXPECT(ends == published, "index: %u ends, %u published continuations", ends, published);
    EXPECT(used == index->used, "index: %u nodes, %u counted", used, index->used);
}

/* NAME-1: each holder is of a domain that is found by its digest, and those are all. */
static void audit_domains(struct audit *a) {
    const struct store *store = a->store;
    const struct domains *domains = &store->domains;
    uint64_t references = 0, holders = 0;
    uint32_t used = 0;
    for (uint32_t i = 0; i < store->config.max_concurrency + store->config.max_continuations; i++) {
        bool is_seq = i < store->config.max_concurrency;
        uint32_t k = is_seq ? i : i - store->config.max_concurrency;
        bool holds = is_seq ? store->seqs[k].occupied : store->conts[k].occupied && !store->conts[k].owned;
        if (!holds) continue;
        uint32_t d = is_seq ? store->seqs[k].domain : store->conts[k].domain;
        holders++;
        EXPECT(d < domains->fresh && domains->list[d].references &&
                   domain_find(store, &domains->list[d].root.digest) == d,
               "%s %u: NAME-1: its domain %u is not found", is_seq ? "sequence" : "continuation", k, d);
    }
    for (uint32_t i = 0; i <= domains->hash_mask; i++)
        for (uint32_t d = domains->hash[i]; d != KVD_NONE && used <= domains->capacity; d = domains->list[d].next) {
            references += domains->list[d].references;
            used++;
        }
    EXPECT(used == domains->used && references == holders,
           "domains: %u found, %u counted; %llu references, %llu holders", used, domains->used,
           (unsigned long long)references, (unsigned long long)holders);
}

uint32_t store_audit(const struct store *store, char *text, size_t bytes) {
    struct audit audit = { store, 0, bytes ? text : NULL, bytes, 0 };
    if (audit.text) audit.text[0] = '\0';
    for (uint32_t p = 0; p < store->n_pools; p++) {
        audit_tree(&audit, p);
        audit_leases(&audit, p);
        audit_descriptors(&audit, p);
        audit_reservations(&audit, p);
        audit_references(&audit, p);
        audit_writers(&audit, p);
        audit_protection(&audit, p);
        audit_pins(&audit, p);
        audit_spaces(&audit, p);
        audit_rows(&audit, p);
        if (store->pool[p].tier) audit_tier(&audit, p);
    }
    audit_host(&audit);
    audit_chunks(&audit);
    audit_slots(&audit);
    audit_claims(&audit);
    audit_objects(&audit);
    audit_owned(&audit);
    audit_domains(&audit);
    audit_index(&audit);
    audit_order(&audit);
    return audit.violations;
}
