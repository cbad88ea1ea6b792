/* SPDX-License-Identifier: Apache-2.0
 *
 * The audit of the host tier: places of pages, jobs, demoted continuations, the arena (PAGE-3, PAGE-6, PAGE-7, HOST-*,
 * INV-9).
 */
#include "audit.h"

/* ---- jobs ---- */

static void mark_job(struct audit *a, const struct tier_job *job, uint32_t p, uint32_t stamp) {
    const struct pool *pool = &a->store->pool[p];
    uint32_t out = 0, in = 0;
    for (uint32_t d = job->head[p]; d != KVD_NONE && out + in <= pool->descriptors; d = pool->tier[d].link) {
        uint8_t flags = pool->pages[d].flags;
        EXPECT((flags & PAGE_OCCUPIED) && !(flags & PAGE_BACKING) != !(flags & PAGE_RESTORING),
               "pool %u: PAGE-7: page %u is copied without a destination (flags %u)", p, d, flags);
        out += (flags & PAGE_BACKING) != 0;
        in += (flags & PAGE_RESTORING) != 0;
        ++*audit_mark(a, p, d, stamp);
    }
    EXPECT(out == job->out[p] && in == job->in[p], "pool %u: a job copies %u pages out and %u in, counts %u and %u", p,
           out, in, job->out[p], job->in[p]);
}

static void mark_jobs(struct audit *a, uint32_t p, uint32_t stamp) {
    const struct store *store = a->store;
    for (uint32_t i = 0; i < store->config.max_concurrency; i++)
        if (store->seqs[i].occupied) mark_job(a, &store->seqs[i].job, p, stamp);
    for (uint32_t i = 0; i < MOVE_LIMIT; i++)
        if (store->moves[i].occupied) mark_job(a, &store->moves[i].job, p, stamp);
}

static void mark_held_sources(struct audit *a, uint32_t p, uint32_t stamp) {
    const struct store *store = a->store;
    for (uint32_t i = 0; i < store->config.max_concurrency; i++) {
        const struct seq *seq = &store->seqs[i];
        const struct space *space = seq->occupied && seq->holds_source ? &store->conts[seq->from].space[p] : NULL;
        for (uint32_t b = 0; space && b < seq->frontier / KVD_PAGE_TOKENS; b++)
            ++*audit_mark(a, p, space_entry(store, space, b), stamp);
    }
}

void audit_tier_pins(struct audit *a, uint32_t p, uint32_t stamp) {
    const struct store *store = a->store;
    if (!store->pool[p].tier) return;
    mark_jobs(a, p, stamp);
    mark_held_sources(a, p, stamp);
}

/* A page that is being brought or backed is so by one job, or waits for one. */
static void audit_jobs(struct audit *a, uint32_t p) {
    const struct store *store = a->store;
    const struct pool *pool = &store->pool[p];
    uint32_t stamp = store_next_stamp(store);
    mark_jobs(a, p, stamp);
    for (uint32_t d = 0; d < pool->descriptors; d++) {
        const struct page *page = &pool->pages[d];
        if (!(page->flags & PAGE_OCCUPIED)) continue;
        bool orphan = (page->flags & PAGE_RESTORING) && pool->tier[d].link == ORPHAN;
        uint32_t jobs = audit_marked(store, page), want = page->flags & (PAGE_BACKING | PAGE_RESTORING) ? 1 : 0;
        EXPECT(jobs + orphan == want, "pool %u: page %u is in %u jobs, its flags are %u", p, d, jobs, page->flags);
    }
}

/* ---- places ---- */

static void audit_replica(struct audit *a, uint32_t p, uint32_t d) {
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

static void count_demoted(struct audit *a, uint32_t p, uint32_t stamp) {
    const struct store *store = a->store;
    uint32_t n;
    for (uint32_t c = 0; c < store->config.max_continuations; c++) {
        const struct cont *cont = &store->conts[c];
        if (!cont->occupied || !cont->demoted) continue;
        for (uint32_t i = 0; i < cont->space[p].count; i += n) {
            const uint32_t *run = space_run(store, &cont->space[p], i, &n);
            for (uint32_t k = 0; k < n; k++) {
                ++*audit_mark(a, p, run[k], stamp);
                EXPECT(page_is_current(&store->pool[p].pages[run[k]]),
                       "pool %u: continuation %u is demoted, and its page %u has no current host replica", p, c,
                       run[k]);
            }
        }
    }
}

void audit_tier(struct audit *a, uint32_t p) {
    const struct store *store = a->store;
    const struct pool *pool = &store->pool[p];
    uint32_t absent = 0, host = 0, stamp;
    audit_jobs(a, p);
    stamp = store_next_stamp(store);
    count_demoted(a, p, stamp);
    for (uint32_t d = 0; d < pool->descriptors; d++) {
        const struct page *page = &pool->pages[d];
        if (!(page->flags & PAGE_OCCUPIED)) continue;
        EXPECT(pool->tier[d].demoting <= page->references,
               "pool %u: page %u is demoted by %u victims, and has %u references", p, d, pool->tier[d].demoting,
               page->references);
        audit_replica(a, p, d);
        absent += !page_on_device(page);
        host += page->host.bits != 0;
        uint32_t demoted = audit_marked(store, page);
        EXPECT(demoted == pool->tier[d].demoted, "pool %u: page %u has %u demoted references, counts %u", p, d, demoted,
               pool->tier[d].demoted);
        EXPECT(page_on_device(page) || page_is_current(page) || (page->flags & PAGE_LOST),
               "pool %u: PAGE-7: page %u has no valid replica", p, d);
        EXPECT(page->device != KVD_NONE || page->host.bits, "pool %u: page %u has no place", p, d);
        EXPECT(page->device == KVD_NONE || page->pins || page->active_references || demoted < page->references ||
                   !page->references,
               "pool %u: page %u stays on the device for nobody", p, d);
    }
    EXPECT(absent == pool->absent, "pool %u: %u pages are not on the device, counts %u", p, absent, pool->absent);
    EXPECT(host == pool->host_pages, "pool %u: %u pages are in the host, counts %u", p, host, pool->host_pages);
}

/* ---- what is shared by the pools ---- */

static void audit_images(struct audit *a) {
    const struct store *store = a->store;
    uint32_t images = 0, demoted = 0;
    for (uint32_t i = 0; i < store->config.max_continuations; i++) {
        const struct cont *cont = &store->conts[i];
        uint32_t pins = 0, moves = 0;
        if (!cont->occupied) continue;
        images += cont->image.bits != 0;
        demoted += cont->demoted;
        for (uint32_t k = 0; k < store->config.max_concurrency; k++)
            pins += store->seqs[k].occupied && store->seqs[k].image_in && store->seqs[k].from == i;
        for (uint32_t k = 0; k < MOVE_LIMIT; k++) {
            if (!store->moves[k].occupied || cont_find(store, store->moves[k].cont) != cont) continue;
            moves++;
            pins += store->moves[k].image && !cont->image_backing;
        }
        pins += cont->image_backing;
        EXPECT(!cont->image_lost || !image_in_slot(cont) || pins,
               "continuation %u keeps a damaged image that no copy uses", i);
        EXPECT(pins == cont->image_pins && moves == cont->moves,
               "continuation %u: %u image copies and %u moves, counts %u and %u", i, pins, moves, cont->image_pins,
               cont->moves);
        EXPECT(!store->config.has_state || !cont->published || cont->slot != KVD_NONE ||
                   (cont->image.bits && !cont->image_backing),
               "continuation %u: CONT-1: it has no state image", i);
    }
    EXPECT(images == store->host_images && demoted == store->demoted, "%u images and %u demoted, counts %u and %u",
           images, demoted, store->host_images, store->demoted);
}

void audit_host(struct audit *a) {
    const struct store *store = a->store;
    struct extent_stats arena = { 0 };
    uint32_t extents = store->host_images + store->scrub_gone, moves = 0;
    audit_images(a);
    for (uint32_t i = 0; i < MOVE_LIMIT; i++) moves += store->moves[i].occupied;
    EXPECT(moves == store->moves_used, "%u moves, counts %u", moves, store->moves_used);
    if (!store->arena) return;
    for (uint32_t p = 0; p < store->n_pools; p++) extents += store->pool[p].host_pages;
    extent_get_stats(store->arena, &arena);
    EXPECT(extents == arena.extents, "the arena has %u extents, pages and images own %u", arena.extents, extents);
    EXPECT(extent_audit(store->arena) == 0, "the arena contradicts itself");
}
