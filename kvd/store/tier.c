/* SPDX-License-Identifier: Apache-2.0
 *
 * Two tiers: jobs (the pages that one transition copies between device and arena) and demoted continuations.
 *
 * The order of PAGE-7 for a page: its destination is taken and hidden (job_copy_out, job_copy_in), both ends are pinned
 * by the job; when the bytes are there epoch and coverage are looked at again and it is published (job_finish); only
 * then may the source go (cont_demote).
 */
#include "store_internal.h"

bool job_is_empty(const struct store *store, const struct tier_job *job) {
    for (uint32_t p = 0; p < store->n_pools; p++)
        if (job->head[p] != KVD_NONE) return false;
    return true;
}

static void job_add(struct store *store, struct tier_job *job, uint32_t p, uint32_t d) {
    store->pool[p].tier[d].link = job->head[p];
    job->head[p] = d;
    page_pin(&store->pool[p], d, 0);
}

void job_write(struct store *store, struct tier_job *job, uint32_t p, uint32_t d) {
    store->pool[p].pages[d].flags |= PAGE_BACKING;
    job_add(store, job, p, d);
    job->out[p]++;
}

static bool is_missing(const struct page *page) { return page->device == KVD_NONE && !(page->flags & PAGE_LOST); }

uint32_t tier_missing(const struct store *store, uint32_t p, const struct space *space, uint32_t count) {
    uint32_t missing = 0, n;
    if (store->pool[p].absent == 0) return 0;
    for (uint32_t i = space->base; i < count; i += n) {
        const uint32_t *run = space_run(store, space, i, &n);
        n = min_u32(n, count - i);
        for (uint32_t k = 0; k < n; k++) missing += is_missing(&store->pool[p].pages[run[k]]);
    }
    return missing;
}

bool tier_any(const struct store *store, uint32_t p, const struct space *space, uint32_t count, uint8_t flags) {
    uint32_t n;
    for (uint32_t i = space->base; i < count; i += n) {
        const uint32_t *run = space_run(store, space, i, &n);
        n = min_u32(n, count - i);
        for (uint32_t k = 0; k < n; k++)
            if (!(run[k] & PROMISED) && (store->pool[p].pages[run[k]].flags & flags)) return true;
    }
    return false;
}

void job_copy_in(struct store *store, struct tier_job *job, uint32_t p, const struct space *space, uint32_t count) {
    struct pool *pool = &store->pool[p];
    struct pool_choice choice = { tier_missing(store, p, space, count), KVD_NONE, false };
    uint32_t n, next = 0, left = 0;
    for (uint32_t i = space->base; i < count && (choice.need || left); i += n) { /* choose counts need down */
        const uint32_t *run = space_run(store, space, i, &n);
        n = min_u32(n, count - i);
        for (uint32_t k = 0; k < n; k++) {
            if (!is_missing(&pool->pages[run[k]])) continue;
            if (left == 0) {
                left = pool_choose(pool, &choice, &next);
                pool_take(pool, next, left);
            }
            page_bring(store, p, run[k], next++);
            left--;
            job_add(store, job, p, run[k]);
            job->in[p]++;
        }
    }
}

const extent_id *tier_take(struct store *store, const struct extent_page_want *wants, uint32_t n) {
    uint32_t taken = 0;
    for (uint32_t i = 0; i < n; taken += wants[i++].pages)
        (void)extent_take_pages(store->arena, wants[i].stride, wants[i].pages, wants[i].tag, store->ids + taken);
    return store->ids;
}

uint32_t job_copy_out(struct store *store, struct tier_job *job, uint32_t p, const struct space *space,
                      const extent_id *ids) {
    struct pool *pool = &store->pool[p];
    uint32_t used = 0, n;
    for (uint32_t i = space->base; i < space->count; i += n) {
        const uint32_t *run = space_run(store, space, i, &n);
        for (uint32_t k = 0; k < n; k++) {
            struct page *page = &pool->pages[run[k]];
            if (page_is_current(page) || (page->flags & PAGE_BACKING)) continue;
            page_leave_host(store, p, run[k]); /* an older one that covers less */
            page->host = ids[used++];
            page->host_epoch = page->epoch;
            page->host_columns = page->committed;
            page->flags |= PAGE_BACKING;
            pool->tier[run[k]].checksum = 0;
            pool->host_pages++;
            job_add(store, job, p, run[k]);
            job->out[p]++;
        }
    }
    return used;
}

bool job_adopt(struct store *store, struct tier_job *job, uint32_t p, const struct space *space, uint32_t count) {
    uint32_t n, adopted = 0;
    if (store->pool[p].absent == 0) return false;
    for (uint32_t i = space->base; i < count; i += n) {
        const uint32_t *run = space_run(store, space, i, &n);
        n = min_u32(n, count - i);
        for (uint32_t k = 0; k < n; k++) {
            if (run[k] & PROMISED || !(store->pool[p].pages[run[k]].flags & PAGE_RESTORING)) continue;
            if (store->pool[p].tier[run[k]].link != ORPHAN) continue;
            job_add(store, job, p, run[k]);
            job->in[p]++;
            adopted++;
        }
    }
    return adopted > 0;
}

static void finish_out(struct store *store, uint32_t p, uint32_t d, bool ok) {
    struct page *page = &store->pool[p].pages[d];
    bool told = store->pool[p].tier[d].checksum != 0;
    bool covered = page->host_columns <= page->committed || MUTANT(publish_columns_that_are_not_there);
    if (((!ok || !told) && !MUTANT(publish_before_copied)) || page->references == 0 || !covered ||
        (page->host_epoch != page->epoch && !MUTANT(publish_other_epoch))) {
        page_leave_host(store, p, d);
        return;
    }
    page->flags = (uint8_t)(page->flags & ~PAGE_BACKING);
    record_page_host(store, p, d);
}

static void finish_in(struct store *store, struct pool_batch *batch, uint32_t d, bool ok) {
    struct page *page = &batch->pool->pages[d];
    if (ok && !page_is_current(page) && !(page->flags & PAGE_LOST) && !MUTANT(publish_uncovered))
        page_lose(store, (uint32_t)(batch->pool - store->pool), d); /* what was copied is not what is committed */
    if (page->flags & PAGE_LOST) {
        page_leave_device(store, batch, d);
        return;
    }
    if (!ok) { /* another transition may wait for it: it copies it again (job_adopt) */
        batch->pool->tier[d].link = ORPHAN;
        return;
    }
    page->flags = (uint8_t)(page->flags & ~PAGE_RESTORING);
    batch->pool->absent--;
    record_page_device(store, (uint32_t)(batch->pool - store->pool), d);
}

void job_finish(struct store *store, struct tier_job *job, bool ok) {
    for (uint32_t p = 0; p < store->n_pools; p++) {
        struct pool_batch batch = { &store->pool[p], 0, 0 };
        while (job->head[p] != KVD_NONE) {
            uint32_t d = job->head[p];
            job->head[p] = batch.pool->tier[d].link;
            if (batch.pool->pages[d].flags & PAGE_BACKING) finish_out(store, p, d, ok);
            else finish_in(store, &batch, d, ok);
            page_unpin(store, &batch, d);
        }
        pool_flush(&batch);
        job->out[p] = job->in[p] = 0;
    }
}

void tier_pin_pages(struct store *store, uint32_t p, const struct space *space, uint32_t count, bool on) {
    struct pool_batch batch = { &store->pool[p], 0, 0 };
    uint32_t n;
    for (uint32_t i = space->base; i < count; i += n) {
        const uint32_t *run = space_run(store, space, i, &n);
        n = min_u32(n, count - i);
        for (uint32_t k = 0; k < n; k++) {
            if (on) page_pin(batch.pool, run[k], 0);
            else page_unpin(store, &batch, run[k]);
        }
    }
    pool_flush(&batch);
}
