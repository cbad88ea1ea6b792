/* SPDX-License-Identifier: Apache-2.0
 *
 * The audit of the host tier: places of pages, jobs, demoted continuations, the arena (PAGE-3, PAGE-6, PAGE-7, HOST-*,
 * INV-9).
 */
#include "audit.h"

/* ---- jobs ---- */

void audit_count_job(struct audit *a, uint32_t p, const struct tier_job *job) {
    const struct pool *pool = &a->store->pool[p];
    uint32_t out = 0, in = 0;
    for (uint32_t d = job->head[p]; d != KVD_NONE && out + in <= pool->descriptors; d = pool->tier[d].link) {
        uint8_t flags = pool->pages[d].flags;
        EXPECT((flags & PAGE_OCCUPIED) && !(flags & PAGE_BACKING) != !(flags & PAGE_RESTORING),
               "pool %u: PAGE-7: page %u is copied without a destination (flags %u)", p, d, flags);
        out += (flags & PAGE_BACKING) != 0;
        in += (flags & PAGE_RESTORING) != 0;
        pool->recount[d].pins++;
        pool->recount[d].jobs++;
    }
    EXPECT(out == job->out[p] && in == job->in[p], "pool %u: a job copies %u pages out and %u in, counts %u and %u", p,
           out, in, job->out[p], job->in[p]);
    (void)audit_spend(a, out + in);
}

uint32_t audit_move_jobs(struct audit *a, uint32_t i) {
    const struct move *move = &a->store->moves[i];
    if (!a->store->pool[a->pool].tier) return 1;
    if (move->occupied) audit_count_job(a, a->pool, &move->job);
    if (i == 0) audit_count_job(a, a->pool, &a->store->fetch_job);
    return 1;
}

/* A page that is being brought or backed is so by one job, or waits for one. */
static void check_jobs(struct audit *a, uint32_t p, uint32_t d) {
    const struct pool *pool = &a->store->pool[p];
    const struct page *page = &pool->pages[d];
    bool orphan = (page->flags & PAGE_RESTORING) && pool->tier[d].link == ORPHAN;
    uint32_t want = page->flags & (PAGE_BACKING | PAGE_RESTORING) ? 1 : 0;
    EXPECT(pool->recount[d].jobs + orphan == want, "pool %u: page %u is in %u jobs, its flags are %u", p, d,
           pool->recount[d].jobs, page->flags);
    EXPECT(pool->recount[d].demoted == pool->tier[d].demoted, "pool %u: page %u has %u demoted references, counts %u",
           p, d, pool->recount[d].demoted, pool->tier[d].demoted);
}

/* ---- places ---- */

static void check_replica(struct audit *a, uint32_t p, uint32_t d) {
    const struct store *store = a->store;
    const struct page *page = &store->pool[p].pages[d];
    struct extent_info extent;
    if (!page->host.bits) {
        EXPECT(!(page->flags & PAGE_BACKING), "pool %u: page %u is being backed nowhere", p, d);
        return;
    }
    bool there = store->arena && extent_look(store->arena, page->host, &extent) == 0;
    EXPECT(there && extent.stride == store->config.host_stride[p] && extent.tag == p,
           "pool %u: page %u has no extent of its own", p, d);
    EXPECT(page->host_columns <= KVD_PAGE_TOKENS, "pool %u: the replica of page %u has %u columns", p, d,
           page->host_columns);
    EXPECT(!(page->flags & PAGE_LOST) || !page_in_host(page, 1), "pool %u: the damaged replica of page %u can be read",
           p, d);
    if (page->flags & (PAGE_BACKING | PAGE_LOST)) return;
    EXPECT(page->host_epoch == page->epoch && page->host_columns <= page->committed && store->pool[p].tier[d].checksum,
           "pool %u: INV-9: page %u publishes a replica of epoch %llu with %u columns; its own is %llu with %u", p, d,
           (unsigned long long)page->host_epoch, page->host_columns, (unsigned long long)page->epoch, page->committed);
}

void audit_tier_page(struct audit *a, uint32_t p, uint32_t d) {
    const struct pool *pool = &a->store->pool[p];
    const struct page *page = &pool->pages[d];
    uint32_t demoted = pool->tier[d].demoted;
    EXPECT(pool->tier[d].demoting <= page->references,
           "pool %u: page %u is demoted by %u victims, and has %u references", p, d, pool->tier[d].demoting,
           page->references);
    check_replica(a, p, d);
    bool comes = a->store->fetching != KVD_NONE && page->device == KVD_NONE && page->flags & PAGE_BACKING;
    EXPECT(comes || page_on_device(page) || page_is_current(page) || (page->flags & PAGE_LOST),
           "pool %u: PAGE-7: page %u has no valid replica", p, d);
    EXPECT(page->device != KVD_NONE || page->host.bits, "pool %u: page %u has no place", p, d);
    EXPECT(page->device == KVD_NONE || page->pins || page->active_references || demoted < page->references ||
               !page->references,
           "pool %u: page %u stays on the device for nobody", p, d);
    if (!page->touched) check_jobs(a, p, d);
}

/* ---- what is shared by the pools ---- */

void audit_image(struct audit *a, uint32_t i) {
    const struct store *store = a->store;
    const struct cont *cont = &store->conts[i];
    uint32_t pins = cont->image_backing, moves = 0;
    for (uint32_t k = 0; k < store->config.max_concurrency; k++)
        pins += store->seqs[k].occupied && store->seqs[k].image_in && store->seqs[k].from == i;
    for (uint32_t k = 0; k < MOVE_LIMIT; k++) {
        if (!store->moves[k].occupied || cont_find(store, store->moves[k].cont) != cont) continue;
        moves++;
        pins += store->moves[k].image && !cont->image_backing;
    }
    EXPECT(!cont->image_lost || !image_in_slot(cont) || pins, "continuation %u keeps a damaged image that no copy uses",
           i);
    EXPECT(pins == cont->image_pins && moves == cont->moves,
           "continuation %u: %u image copies and %u moves, counts %u and %u", i, pins, moves, cont->image_pins,
           cont->moves);
    EXPECT(!store->config.has_state || !cont->published || cont->slot != KVD_NONE ||
               (cont->image.bits && !cont->image_backing),
           "continuation %u: CONT-1: it has no state image", i);
}

void audit_host(struct audit *a) {
    const struct store *store = a->store;
    struct extent_stats arena = { 0 };
    uint32_t extents = store->host_images + arena_reads_gone(store), moves = 0;
    for (uint32_t i = 0; i < MOVE_LIMIT; i++) moves += store->moves[i].occupied;
    EXPECT(moves == store->moves_used, "%u moves, counts %u", moves, store->moves_used);
    if (!store->arena) return;
    for (uint32_t p = 0; p < store->n_pools; p++) extents += store->pool[p].host_pages;
    extent_get_stats(store->arena, &arena);
    EXPECT(extents == arena.extents, "the arena has %u extents, pages and images own %u", arena.extents, extents);
}

/* Free runs are a tree that is looked at all at once: one with too many is left out in a step. */
bool audit_extents(struct audit *a) {
    struct extent_arena *arena = a->store->arena;
    struct extent_stats stats;
    uint32_t bad = 0;
    if (!arena) return true;
    if (a->at == 0) extent_audit_begin(arena);
    bool more = extent_audit_some(arena, (uint32_t)min_u64(a->left, UINT32_MAX), &bad);
    (void)audit_spend(a, min_u64(a->left, a->store->max_extents));
    a->at = more;
    if (!more) {
        extent_get_stats(arena, &stats);
        bad += extent_audit_counts(arena);
        if (stats.free_runs <= AUDIT_LINKS || a->whole) bad += extent_audit_runs(arena);
        else a->left_out++;
    }
    EXPECT(bad == 0, "the arena contradicts itself");
    return !more;
}
