/* SPDX-License-Identifier: Apache-2.0
 *
 * Ends of a sequence (FIN-1, SRV-5): released, retained as a continuation, or ended by the proven death of its worker.
 */
#include "store_internal.h"

static void release_reservation(struct store *store, uint32_t p, struct space *space) {
    store->chunks.reserved -= chunks_for(space_entitlement(space)) - chunks_for(space->count);
    store->pool[p].reserved -= space->reserved;
    space->reserved = 0;
}

static void release_all(struct store *store, struct seq *seq) {
    mirror_seq_drop(store, seq);
    for (uint32_t p = 0; p < store->n_pools; p++) {
        release_reservation(store, p, &seq->space[p]);
        space_drop(store, p, &seq->space[p], 0, true, false, NULL);
    }
    slot_release(store, seq->state_slot);
}

/* Pages past the frontier go to available; the rest loses its writer and its active references. */
static void deactivate(struct store *store, uint32_t p, struct space *space, uint32_t frontier) {
    uint32_t n;
    release_reservation(store, p, space);
    if (frontier < space->committed) space_commit(store, p, space, frontier);
    space_drop(store, p, space, pages_of(frontier), true, false, NULL);
    for (uint32_t i = 0; i < space->count; i += n) {
        const uint32_t *run = space_run(store, space, i, &n);
        for (uint32_t k = 0; k < n; k++) {
            struct page *page = &store->pool[p].pages[run[k]];
            page->active_references--;
            page_settle(page);
        }
    }
}

static struct cont *retain(struct store *store, struct seq *seq, uint32_t frontier, const struct store_tail *tail,
                           uint32_t retention) {
    struct cont *cont = cont_take(store);
    mirror_seq_at(store, seq, (uint32_t[STORE_MAX_POOLS]){ frontier, frontier }); /* before what is past it goes */
    for (uint32_t p = 0; p < store->n_pools; p++) {
        deactivate(store, p, &seq->space[p], frontier);
        cont->space[p] = seq->space[p];
    }
    cont->frontier = frontier;
    cont->named = min_u32(seq->named, frontier / KVD_PAGE_TOKENS);
    cont->retention = retention;
    cont->slot = seq->state_slot;
    cont->tail_named = tail || frontier % KVD_PAGE_TOKENS == 0;
    if (tail && tail->n) cont->tail = *tail;
    cont->published = true;
    cont->created = cont->used = store->operations;
    cont->tag = seq->tag;
    index_insert(store, cont);
    mirror_cont(store, cont);
    mirror_seq_drop(store, seq); /* its pages are the continuation's */
    return cont;
}

int store_finish(struct store *store, store_seq handle, uint64_t lease, enum store_finish how,
                 const struct store_tail *tail, uint32_t retention, store_cont *ret_cont,
                 struct store_pool_view ret_rows[STORE_MAX_POOLS], struct store_refusal *refusal) {
    struct seq *seq = NULL;
    uint32_t limit = store->config.max_continuations;
    store_cont kept = { 0 };
    int rc = seq_drive(store, handle, lease, &seq, refusal);
    if (rc) return rc;
    if (how != STORE_FINISH_RELEASE && how != STORE_FINISH_RETAIN)
        return refuse(refusal, STORE_E_ARGUMENT, STORE_W_NONE, NONE, (uint64_t)how, 0, (uint64_t)STORE_FINISH_RETAIN);
    if (how == STORE_FINISH_RETAIN) {
        rc = seq_complete(store, seq, tail, refusal);
        if (rc) return rc;
        if (store->cont_free == NONE || !store_try(store))
            return refuse(refusal, STORE_E_SHORT, STORE_W_CONTINUATION, NONE, 1, limit - store->conts_used, limit);
    }
    store_changed(store, true);
    seq_unpin_source(store, seq);
    seq_release_rows(store, seq, ret_rows);
    if (how == STORE_FINISH_RETAIN)
        kept = cont_handle(store, retain(store, seq, seq->space[0].committed, tail, retention));
    else release_all(store, seq);
    seq_free(store, seq);
    *ret_cont = kept;
    return STORE_OK;
}

/* The frontier that survives a death, 0 = none. */
static uint32_t surviving(const struct store *store, const struct seq *seq) {
    uint32_t frontier = seq->space[0].committed;
    for (uint32_t p = 1; p < store->n_pools; p++) frontier = min_u32(frontier, seq->space[p].committed);
    if (store->config.has_state && seq->state_frontier != frontier) return 0;
    return store->cont_free == NONE ? 0 : frontier;
}

int store_end(struct store *store, store_seq handle, store_cont *ret_cont,
              struct store_pool_view ret_rows[STORE_MAX_POOLS], struct store_refusal *refusal) {
    struct seq *seq = seq_find(store, handle);
    store_cont kept = { 0 };
    if (!seq) return refuse(refusal, STORE_E_STALE, STORE_W_SEQUENCE, NONE, handle.bits, 0, 0);
    store_changed(store, true);
    seq_release_rows(store, seq, ret_rows);
    if (seq->state == STORE_SEQ_ACTIVATING) {
        seq_abort(store, seq);
    } else {
        uint32_t frontier = surviving(store, seq);
        seq_unpin_source(store, seq);
        if (frontier) kept = cont_handle(store, retain(store, seq, frontier, NULL, 0));
        else release_all(store, seq);
        seq_free(store, seq);
    }
    *ret_cont = kept;
    return STORE_OK;
}
