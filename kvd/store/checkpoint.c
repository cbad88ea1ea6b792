/* SPDX-License-Identifier: Apache-2.0
 *
 * Checkpoints of running sequences (CKPT-1): full pages shared, tail and state image copied, the sequence goes on.
 */
#include "store_internal.h"

#include <string.h>

int seq_complete(const struct store *store, const struct seq *seq, const struct store_tail *tail,
                 struct store_refusal *refusal) {
    uint32_t frontier = seq->space[0].committed, full = frontier / KVD_PAGE_TOKENS,
             columns = frontier % KVD_PAGE_TOKENS;
    if (frontier == 0) return refuse(refusal, STORE_E_INCOMPLETE, STORE_W_FRONTIER, 0, 1, 0, 0);
    for (uint32_t p = 1; p < store->n_pools; p++)
        if (seq->space[p].committed != frontier)
            return refuse(refusal, STORE_E_INCOMPLETE, STORE_W_FRONTIER, p, frontier, seq->space[p].committed, 0);
    if (store->config.has_state && seq->state_frontier != frontier)
        return refuse(refusal, STORE_E_INCOMPLETE, STORE_W_STATE_FRONTIER, NONE, frontier,
                      seq->state_frontier == NONE ? 0 : seq->state_frontier, 0);
    if (seq->named < full) return refuse(refusal, STORE_E_NAME, STORE_W_DIGEST, 0, full, seq->named, full);
    if ((tail ? tail->n : 0) != columns)
        return refuse(refusal, STORE_E_NAME, STORE_W_TAIL, 0, tail ? tail->n : 0, columns, KVD_PAGE_TOKENS - 1);
    return STORE_OK;
}

/* Acquisitions in order: descriptor, tail pages, state slot, membership. */
static int check_room(struct store *store, uint32_t frontier, struct store_refusal *refusal) {
    uint32_t limit = store->config.max_continuations, chunks = store->n_pools * chunks_for(pages_of(frontier));
    if (store->cont_free == NONE || !store_try(store))
        return refuse(refusal, STORE_E_SHORT, STORE_W_CONTINUATION, NONE, 1, limit - store->conts_used, limit);
    for (uint32_t p = 0; p < store->n_pools && frontier % KVD_PAGE_TOKENS; p++)
        if (pool_available(&store->pool[p]) < 1 || !store_try(store))
            return refuse(refusal, STORE_E_SHORT, STORE_W_PAGES, p, 1, pool_available(&store->pool[p]),
                          store->pool[p].capacity);
    if (store->config.has_state && (slots_free(store) < 1 || !store_try(store)))
        return refuse(refusal, STORE_E_SHORT, STORE_W_STATE_SLOT, NONE, 1, slots_free(store),
                      store->config.state_slots);
    if (chunks_available(&store->chunks) < chunks || !store_try(store))
        return refuse(refusal, STORE_E_SHORT, STORE_W_MEMBERSHIP, NONE, (uint64_t)chunks * CHUNK,
                      (uint64_t)chunks_available(&store->chunks) * CHUNK, (uint64_t)store->chunks.capacity * CHUNK);
    return STORE_OK;
}

static void share_full_pages(struct store *store, uint32_t p, const struct space *from, struct space *to,
                             uint32_t full) {
    uint32_t n;
    for (uint32_t i = 0; i < full; i += n) {
        const uint32_t *run = space_run(store, from, i, &n);
        n = min_u32(n, full - i);
        for (uint32_t k = 0; k < n; k++) page_ref(&store->pool[p], run[k], false);
        space_append(store, to, run, n);
    }
}

static void copy_tail(struct store *store, uint32_t p, const struct seq *seq, struct cont *cont, uint32_t columns,
                      struct store_checkpointed *out) {
    struct pool *pool = &store->pool[p];
    uint32_t start, from = space_entry(store, &seq->space[p], cont->space[p].count);
    struct pool_choice choice = { 1, pool->pages[from].device, false };
    pool_choose(pool, &choice, &start);
    pool_take(pool, start, 1);
    uint32_t to = page_open(store, p, start, cont->space[p].count, false);
    page_commit(store, p, to, columns);
    page_pin(pool, from, columns);
    page_pin(pool, to, 0);
    space_append(store, &cont->space[p], &to, 1);
    cont->tail_source[p] = from;
    cont->tail_copy[p] = to;
    out->copies[out->n_copies++] = (struct store_copy){
        .kind = STORE_COPY_PAGE, .pool = p, .src = pool->pages[from].device, .dst = start, .columns = columns
    };
}

static void copy_state(struct store *store, const struct seq *seq, struct cont *cont, struct store_checkpointed *out) {
    cont->slot = slot_take(store);
    cont->source_slot = seq->state_slot;
    slot_pin(store, cont->source_slot);
    out->copies[out->n_copies++] =
        (struct store_copy){ .kind = STORE_COPY_STATE, .src = cont->source_slot, .dst = cont->slot };
}

int store_checkpoint_begin(struct store *store, store_seq handle, uint64_t lease, const struct store_tail *tail,
                           uint32_t retention, struct store_checkpointed *ret_checkpointed,
                           struct store_refusal *refusal) {
    struct seq *seq = NULL;
    struct store_checkpointed out;
    int rc = seq_drive(store, handle, lease, &seq, refusal);
    if (rc == STORE_OK) rc = seq_complete(store, seq, tail, refusal);
    if (rc == STORE_OK) rc = check_room(store, seq->space[0].committed, refusal);
    if (rc) return rc;
    memset(&out, 0, sizeof out);
    struct cont *cont = cont_take(store);
    uint32_t frontier = seq->space[0].committed, full = frontier / KVD_PAGE_TOKENS,
             columns = frontier % KVD_PAGE_TOKENS;
    cont->next_victim = store->in_flight;
    store->in_flight = (uint32_t)(cont - store->conts);
    cont->frontier = frontier;
    cont->named = full;
    cont->retention = retention;
    cont->tail_named = true;
    cont->tag = seq->tag;
    if (columns) cont->tail = *tail;
    for (uint32_t p = 0; p < store->n_pools; p++) {
        share_full_pages(store, p, &seq->space[p], &cont->space[p], full);
        cont->space[p].committed = frontier;
        if (columns) copy_tail(store, p, seq, cont, columns, &out);
        out.shared_pages[p] = full;
    }
    if (store->config.has_state) copy_state(store, seq, cont, &out);
    out.cont = cont_handle(store, cont);
    out.frontier = frontier;
    store_changed(store, true);
    *ret_checkpointed = out;
    return STORE_OK;
}

static int find_in_flight(const struct store *store, store_cont handle, struct cont **ret_cont,
                          struct store_refusal *refusal) {
    struct cont *cont = cont_find(store, handle);
    if (!cont) return refuse(refusal, STORE_E_STALE, STORE_W_CONTINUATION, NONE, handle.bits, 0, 0);
    if (cont->published) return refuse(refusal, STORE_E_STATE, STORE_W_CONTINUATION, NONE, 0, 1, 0);
    *ret_cont = cont;
    return STORE_OK;
}

/* Columns of a page that the checkpoints still in flight read. */
static uint32_t read_columns(const struct store *store, uint32_t p, uint32_t page) {
    uint32_t columns = 0;
    for (uint32_t i = store->in_flight; i != NONE; i = store->conts[i].next_victim)
        if (store->conts[i].tail_source[p] == page)
            columns = max_u32(columns, store->conts[i].frontier % KVD_PAGE_TOKENS);
    return columns;
}

static void unpin(struct store *store, struct cont *cont) {
    uint32_t *link = &store->in_flight;
    while (*link != (uint32_t)(cont - store->conts)) link = &store->conts[*link].next_victim;
    *link = cont->next_victim;
    cont->next_victim = NONE;
    for (uint32_t p = 0; p < store->n_pools; p++) {
        struct pool_batch batch = { &store->pool[p], 0, 0 };
        if (cont->tail_copy[p] == NONE) continue;
        page_protect(&store->pool[p], cont->tail_source[p], read_columns(store, p, cont->tail_source[p]));
        page_unpin(store, &batch, cont->tail_source[p]);
        page_unpin(store, &batch, cont->tail_copy[p]);
        pool_flush(&batch);
        cont->tail_source[p] = cont->tail_copy[p] = NONE;
    }
    slot_unpin(store, cont->source_slot);
    cont->source_slot = NONE;
}

int store_checkpoint_commit(struct store *store, store_cont handle, struct store_refusal *refusal) {
    struct cont *cont = NULL;
    int rc = find_in_flight(store, handle, &cont, refusal);
    if (rc) return rc;
    store_changed(store, true);
    unpin(store, cont);
    cont->published = true;
    cont->created = cont->used = store->operations;
    index_insert(store, cont);
    mirror_cont(store, cont);
    return STORE_OK;
}

int store_checkpoint_abort(struct store *store, store_cont handle, struct store_refusal *refusal) {
    struct cont *cont = NULL;
    int rc = find_in_flight(store, handle, &cont, refusal);
    if (rc) return rc;
    store_changed(store, true);
    unpin(store, cont);
    cont_release(store, cont);
    return STORE_OK;
}
