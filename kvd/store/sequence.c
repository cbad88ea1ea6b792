/* SPDX-License-Identifier: Apache-2.0
 *
 * Running sequences: quarantine, names of their pages, and their ends.
 */
#include "store_internal.h"

#include <string.h>

int store_quarantine(struct store *store, store_seq handle, bool on, struct store_refusal *refusal) {
    struct seq *seq = seq_find(store, handle);
    if (!seq) return store_refuse(refusal, STORE_E_STALE, STORE_S_SEQUENCE, KVD_NONE, handle.bits, 0, 0);
    if (seq->state == STORE_SEQ_ACTIVATING)
        return store_refuse(refusal, STORE_E_STATE, STORE_S_SEQUENCE, KVD_NONE, (uint64_t)STORE_SEQ_ACTIVE,
                            (uint64_t)seq->state, 0);
    seq->state = on ? STORE_SEQ_QUARANTINED : STORE_SEQ_ACTIVE;
    store_changed(store, false);
    return STORE_OK;
}

/* ---- names ---- */

static int check_names(const struct store *store, const struct seq *seq, uint32_t first, uint32_t n,
                       const uint8_t (*digests)[32], struct store_refusal *refusal) {
    uint32_t full = seq->space[0].committed / KVD_PAGE_TOKENS;
    if (first > full || n > full - first)
        return store_refuse(refusal, STORE_E_RANGE, STORE_S_DIGEST, 0, (uint64_t)first + n, seq->named, full);
    if (n && first > seq->named)
        return store_refuse(refusal, STORE_E_UNNAMED, STORE_S_DIGEST, 0, first, seq->named, full);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t d = space_entry(store, &seq->space[0], first + i);
        if ((store->pool[0].pages[d].flags & PAGE_NAMED) && !digests_equal(store->digests[d], digests[i]))
            return store_refuse(refusal, STORE_E_NAME, STORE_S_DIGEST, 0, (uint64_t)first + i, seq->named, full);
    }
    return STORE_OK;
}

/* Pages behind the new names may have names already, given by a sharer. */
static uint32_t named_until(const struct store *store, const struct space *space, uint32_t named, uint32_t full) {
    while (named < full && (store->pool[0].pages[space_entry(store, space, named)].flags & PAGE_NAMED)) named++;
    return named;
}

/* Pages that others share got their names: those reach further now. Rare: only pages of a continuation left by a death
 * are shared without a name. Then one pass for all that were named together. */
static void extend_names(struct store *store) {
    for (uint32_t i = 0; i < store->config.max_continuations; i++) {
        struct cont *cont = &store->conts[i];
        uint32_t full = cont->frontier / KVD_PAGE_TOKENS;
        if (!cont->occupied || !cont->published || cont->named >= full) continue;
        uint32_t named = named_until(store, &cont->space[0], cont->named, full);
        if (named == cont->named) continue;
        index_drop(store, cont);
        cont->named = named;
        index_insert(store, cont);
        record_cont(store, cont);
    }
    for (uint32_t i = 0; i < store->config.max_concurrency; i++) {
        struct seq *seq = &store->seqs[i];
        if (!seq->occupied) continue;
        seq->named = named_until(store, &seq->space[0], seq->named, seq->space[0].committed / KVD_PAGE_TOKENS);
        live_update(store, seq);
        (void)roll_named(store, seq);
    }
}

int store_name_pages(struct store *store, store_seq handle, uint64_t lease, uint32_t first, uint32_t n,
                     const uint8_t (*digests)[32], struct store_refusal *refusal) {
    struct seq *seq = NULL;
    int rc = seq_drive(store, handle, lease, &seq, refusal);
    if (rc == STORE_OK) rc = check_names(store, seq, first, n, digests, refusal);
    if (rc) return rc;
    bool shared = false;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t d = space_entry(store, &seq->space[0], first + i);
        struct page *page = &store->pool[0].pages[d];
        if (page->flags & PAGE_NAMED) continue;
        page->flags |= PAGE_NAMED;
        memcpy(store->digests[d], digests[i], 32);
        record_page_name(store, d);
        shared |= page->references > 1 && page->references > 1 + roll_unnamed(store, seq, first + i);
    }
    if (shared) extend_names(store);
    if (n)
        seq->named = named_until(store, &seq->space[0], max_u32(seq->named, first + n),
                                 seq->space[0].committed / KVD_PAGE_TOKENS);
    live_update(store, seq);
    if (n) record_seq(store, seq);
    store_changed(store, roll_named(store, seq));
    return STORE_OK;
}

/* ---- ends (FIN-1, SRV-5): released, retained as a continuation, or ended by the proven death of its worker ---- */

static void release_reservation(struct store *store, uint32_t p, struct seq *seq) {
    struct space *space = &seq->space[p];
    store->chunks.reserved -= chunks_for(seq_reach(store, seq, p)) - chunks_for(space->count);
    store->pool[p].reserved -= space->reserved;
    space->reserved = 0;
}

static void release_all(struct store *store, struct seq *seq) {
    live_set(store, seq, 0, NULL);
    record_seq_drop(store, seq);
    if (seq->lends) space_end_lending(store, 0, &seq->space[0]);
    for (uint32_t p = 0; p < store->n_pools; p++) {
        release_reservation(store, p, seq);
        space_drop(store, p, &seq->space[p], 0, true, false, NULL);
    }
    slot_release(store, seq->state_slot);
}

/* Pages past the frontier, and what going on from it does not read, go to available; the rest loses its writer and its
 * active references. */
static void deactivate_space(struct store *store, uint32_t p, struct seq *seq, uint32_t frontier) {
    struct space *space = &seq->space[p];
    uint32_t n, last = pages_of(frontier) - 1;
    if (store->window_pages[p]) (void)window_pass(store, p, space, window_first(store, p, frontier), NULL);
    release_reservation(store, p, seq);
    space_drop(store, p, space, last + 1, true, false, NULL);
    if (space->committed > frontier && frontier % KVD_PAGE_TOKENS)
        page_commit(store, p, space_entry(store, space, last), columns_of(frontier, last));
    space->committed = frontier;
    for (uint32_t i = space->base; i < space->count; i += n) {
        const uint32_t *run = space_run(store, space, i, &n);
        for (uint32_t k = 0; k < n; k++) {
            struct page *page = &store->pool[p].pages[run[k]];
            page->active_references--;
            page_update(&store->pool[p], run[k]);
        }
    }
}

/* Its own descriptor has what it has up to a frontier, and is nobody's yet. */
static struct cont *deactivate(struct store *store, struct seq *seq, uint32_t frontier) {
    live_set(store, seq, 0, NULL);
    struct cont *cont = seq_leave_descriptor(store, seq);
    for (uint32_t p = 0; p < store->n_pools; p++) {
        deactivate_space(store, p, seq, frontier);
        cont->space[p] = seq->space[p];
    }
    cont->frontier = frontier;
    cont->named = min_u32(seq->named, frontier / KVD_PAGE_TOKENS);
    cont->slot = seq->state_slot;
    cont->tag = seq->tag;
    cont->domain = domain_hold(store, seq->domain);
    return cont;
}

/* What forks in flight have yet to take goes with the last of them (LIVE-1); all else now. */
static void release_sequence(struct store *store, struct seq *seq) {
    uint32_t forked = MUTANT(forks_in_flight_are_cut) ? 0 : live_forked(store, seq);
    if (!forked) {
        release_all(store, seq);
        return;
    }
    record_seq_drop(store, seq);
    deactivate(store, seq, forked)->going = true;
}

static struct cont *retain_as_continuation(struct store *store, struct seq *seq, uint32_t frontier,
                                           const struct kvd_tail *tail, uint32_t retention) {
    record_seq_whole(store, seq, frontier); /* before what is past it goes */
    struct cont *cont = deactivate(store, seq, frontier);
    cont->retention = retention;
    cont->tail_named = tail || frontier % KVD_PAGE_TOKENS == 0;
    if (tail && tail->n) cont->tail = *tail;
    cont = cont_publish_or_merge(store, cont);
    record_seq_drop(store, seq); /* its pages are the continuation's */
    return cont;
}

int store_finish(struct store *store, store_seq handle, uint64_t lease, enum store_finish how,
                 const struct kvd_tail *tail, uint32_t retention, store_cont *ret_cont,
                 struct kvd_pool_view ret_rows[KVD_MAX_POOLS], struct store_refusal *refusal) {
    struct seq *seq = NULL;
    store_cont retained = { 0 };
    int rc = seq_drive(store, handle, lease, &seq, refusal);
    if (rc) return rc;
    if (how != STORE_FINISH_RELEASE && how != STORE_FINISH_RETAIN)
        return store_refuse(refusal, STORE_E_ARGUMENT, STORE_S_NONE, KVD_NONE, (uint64_t)how, 0,
                            (uint64_t)STORE_FINISH_RETAIN);
    if (how == STORE_FINISH_RETAIN) {
        rc = seq_complete(store, seq, tail, refusal);
        if (rc) return rc;
    }
    store_changed(store, true);
    seq_unpin_source(store, seq);
    seq_release_rows(store, seq, ret_rows);
    if (how == STORE_FINISH_RETAIN)
        retained = cont_handle(store, retain_as_continuation(store, seq, seq->space[0].committed, tail, retention));
    else release_sequence(store, seq);
    roll_end(store, seq);
    seq_free(store, seq);
    *ret_cont = retained;
    return STORE_OK;
}

/* The frontier that survives a death, 0 = none. */
static uint32_t surviving_frontier(const struct store *store, const struct seq *seq) {
    uint32_t frontier = seq->space[0].committed;
    for (uint32_t p = 1; p < store->n_pools; p++) frontier = min_u32(frontier, seq->space[p].committed);
    if (store->config.has_state && seq->state_frontier != frontier) return 0;
    return windows_hold(store, seq->space, frontier) ? frontier : 0;
}

int store_end(struct store *store, store_seq handle, store_cont *ret_cont, struct kvd_pool_view ret_rows[KVD_MAX_POOLS],
              struct store_refusal *refusal) {
    struct seq *seq = seq_find(store, handle);
    store_cont retained = { 0 };
    if (!seq) return store_refuse(refusal, STORE_E_STALE, STORE_S_SEQUENCE, KVD_NONE, handle.bits, 0, 0);
    store_changed(store, true);
    seq_release_rows(store, seq, ret_rows);
    if (seq->state == STORE_SEQ_ACTIVATING) {
        seq_abort(store, seq);
    } else {
        uint32_t frontier = surviving_frontier(store, seq);
        seq_unpin_source(store, seq);
        if (frontier) retained = cont_handle(store, retain_as_continuation(store, seq, frontier, NULL, 0));
        else release_all(store, seq);
        roll_end(store, seq);
        seq_free(store, seq);
    }
    *ret_cont = retained;
    return STORE_OK;
}
