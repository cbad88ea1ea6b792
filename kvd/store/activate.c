/* SPDX-License-Identifier: Apache-2.0
 *
 * Activation: begin, commit, abort (ACT-*). begin first counts and checks everything (activation.c); what follows
 * cannot fail.
 *
 * In flight, a fork holds ordinary references on the pages that it shares. A move holds none: its membership is an
 * alias of the source's (which is claimed) and takes the references over at commit. Pages that victims or a moved
 * source still hold are "owed": their number is reserved, and entries mapped onto them are filled, when those go at
 * commit.
 */
#include "store_internal.h"

#include <string.h>

/* ---- begin ---- */

static void keep_pages(struct store *store, uint32_t p, struct seq *seq, const struct cont *source, bool move,
                       int32_t *row) {
    struct pool *pool = &store->pool[p];
    uint32_t n;
    for (uint32_t i = 0; i < seq->kept[p]; i += n) {
        const uint32_t *run = space_run(store, &source->space[p], i, &n);
        n = min_u32(n, seq->kept[p] - i);
        for (uint32_t k = 0; k < n; k++) {
            const struct page *page = &pool->pages[run[k]];
            __builtin_prefetch(page + AHEAD, 1); /* neighbours in a space are mostly neighbours here */
            row[i + k] = (int32_t)page->device;
            if (!move) page_ref(pool, run[k], true);
        }
        space_append(store, &seq->space[p], run, n);
    }
}

static void copy_tail(struct store *store, uint32_t p, struct seq *seq, const struct cont *source, uint32_t columns,
                      int32_t *row, struct store_activated *out) {
    struct pool *pool = &store->pool[p];
    uint32_t from = space_entry(store, &source->space[p], seq->kept[p]);
    space_map(store, p, &seq->space[p], 1, row);
    uint32_t to = space_entry(store, &seq->space[p], seq->kept[p]);
    page_commit(store, p, to, columns);
    page_pin(pool, from, 0); /* its continuation protects it */
    page_pin(pool, to, 0);
    seq->tail_source[p] = from;
    seq->tail[p] = to;
    out->copies[out->n_copies++] =
        (struct store_copy){false, p, pool->pages[from].device, pool->pages[to].device, columns};
}

/* Maps n entries onto pages that will be freed at commit: those that the last count left wholly marked. */
static uint32_t promise_from(struct store *store, uint32_t p, struct seq *seq, const struct space *space,
                             uint32_t first, uint32_t stamp, uint32_t n, int32_t *row) {
    struct page *pages = store->pool[p].pages;
    uint32_t run_n, left = n;
    for (uint32_t i = first; i < space->count && left; i += run_n) {
        const uint32_t *run = space_run(store, space, i, &run_n);
        for (uint32_t k = 0; k < run_n && left; k++) {
            struct page *page = &pages[run[k]];
            if (page->stamp != stamp || page->mark != page->references || page->pins) continue;
            page->mark = 0; /* once */
            row[seq->space[p].count] = (int32_t)page->device;
            uint32_t entry = page->device | PROMISED;
            space_append(store, &seq->space[p], &entry, 1);
            left--;
        }
    }
    return n - left;
}

static void promise_pages(struct store *store, uint32_t p, struct seq *seq, const struct activation *act, uint32_t n,
                          int32_t *row) {
    for (uint32_t i = 0; i < act->n_victims && n; i++)
        n -= promise_from(store, p, seq, &act->victims[i]->space[p], 0, act->stamp, n, row);
    if (n && act->move) promise_from(store, p, seq, &act->source->space[p], seq->kept[p], act->stamp, n, row);
}

static void begin_pool(struct store *store, uint32_t p, struct seq *seq, const struct activation *act,
                       struct store_activated *out) {
    const struct activation_pool *ap = &act->pool[p];
    struct space *space = &seq->space[p];
    struct pool *pool = &store->pool[p];
    uint32_t now = min_u32(ap->fresh, pool_available(pool));
    seq->row[p] = row_take(store, p, (uint32_t)(seq - store->seqs));
    int32_t *row = row_entries(store, p, seq->row[p]);
    seq->kept[p] = ap->kept;
    pool->reserved += now;
    space->reserved = now;
    space->owed = ap->fresh - now;
    if (act->source) keep_pages(store, p, seq, act->source, act->move, row);
    store->chunks.reserved += chunks_for(ap->mapped) - chunks_for(space->count);
    if (ap->tail_columns) copy_tail(store, p, seq, act->source, ap->tail_columns, row, out);
    uint32_t real = min_u32(ap->mapped - space->count, space->reserved);
    if (real) space_map(store, p, space, real, row);
    uint32_t promised = ap->mapped - space->count;
    if (promised) {
        uint32_t before = chunks_for(space->count);
        promise_pages(store, p, seq, act, promised, row);
        space->owed -= promised;
        store->chunks.reserved -= chunks_for(space->count) - before;
    }
    space->committed = act->want->frontier;
    space->shared = act->move ? 0 : ap->kept;
    seq_view(store, seq, p, (struct store_slice){0, space->count}, &out->pool[p]);
}

/* The growth part of the membership is reserved; what only victims or the moved source free is owed. */
static void begin_chunks(struct store *store, struct seq *seq, const struct activation *act) {
    uint32_t rest = act->chunks_needed - act->chunks_now, now = min_u32(rest, chunks_available(&store->chunks));
    store->chunks.reserved += now;
    seq->chunks_owed = rest - now;
}

static void begin_state(struct store *store, struct seq *seq, const struct activation *act,
                        struct store_activated *out) {
    out->state_slot = out->source_state_slot = NONE;
    if (!store->config.has_state) return;
    if (act->move) {
        seq->state_slot = act->source->slot;
        seq->state_frontier = act->want->frontier;
    } else if (slots_free(store)) {
        seq->state_slot = slot_take(store);
    } else { /* a victim's: handed over at commit */
        uint32_t i = 0;
        while (act->victims[i]->slot == NONE || store->slots[act->victims[i]->slot].pins) i++;
        seq->state_slot = act->victims[i]->slot;
    }
    if (act->source && !act->move) {
        seq->source_slot = act->source->slot;
        slot_pin(store, seq->source_slot);
        out->source_state_slot = seq->source_slot;
    }
    out->state_slot = seq->state_slot;
}

static void begin_claims(struct store *store, struct seq *seq, const struct activation *act) {
    if (act->source) {
        seq->from = (uint32_t)(act->source - store->conts);
        seq->named = min_u32(act->source->named, act->want->frontier / KVD_PAGE_TOKENS);
        if (act->move) act->source->claimed = true;
        else act->source->pins++;
    }
    for (uint32_t i = 0; i < act->n_victims; i++) {
        act->victims[i]->claimed = true;
        act->victims[i]->next_victim = seq->victims;
        seq->victims = (uint32_t)(act->victims[i] - store->conts);
    }
    seq->n_victims = act->n_victims;
}

static void begin_run(struct store *store, struct activation *act, struct store_activated *ret_activated) {
    struct store_activated out;
    memset(&out, 0, sizeof out);
    uint32_t lost = 0;
    if (activation_needs_victims_now(store, act)) {
        for (uint32_t i = 0; i < act->n_victims; i++) cont_release(store, act->victims[i]);
        lost = act->n_victims;
        act->n_victims = 0;
        activation_measure(store, act, NULL);
    }
    struct seq *seq = seq_take(store);
    seq->lease = act->want->lease;
    seq->prompt = act->want->prompt_tokens;
    seq->ceiling = act->ceiling;
    seq->keep = act->want->keep;
    seq->frontier = act->want->frontier;
    seq->victims_lost = lost;
    for (uint32_t p = 0; p < store->n_pools; p++) begin_pool(store, p, seq, act, &out);
    begin_chunks(store, seq, act);
    begin_state(store, seq, act, &out);
    begin_claims(store, seq, act);
    out.seq = seq_handle(store, seq);
    store_changed(store, true);
    *ret_activated = out;
}

int store_activate_begin(struct store *store, const struct store_activation *want,
                         struct store_activated *ret_activated, struct store_refusal *refusal) {
    struct activation act;
    int rc = activation_resolve(store, want, &act, refusal);
    if (rc == STORE_OK) rc = activation_measure(store, &act, refusal);
    if (rc == STORE_OK) rc = activation_check(store, &act, refusal);
    if (rc == STORE_OK) begin_run(store, &act, ret_activated);
    return rc;
}

/* ---- both ends ---- */

static int find_activating(const struct store *store, store_seq handle, struct seq **ret_seq,
                           struct store_refusal *refusal) {
    struct seq *seq = seq_find(store, handle);
    if (!seq) return refuse(refusal, STORE_E_STALE, STORE_W_SEQUENCE, NONE, handle.bits, 0, 0);
    if (seq->state != STORE_SEQ_ACTIVATING)
        return refuse(refusal, STORE_E_STATE, STORE_W_SEQUENCE, NONE, (uint64_t)STORE_SEQ_ACTIVATING,
                      (uint64_t)seq->state, 0);
    *ret_seq = seq;
    return STORE_OK;
}

static void unpin_tails(struct store *store, struct seq *seq) {
    for (uint32_t p = 0; p < store->n_pools; p++) {
        struct pool_batch batch = {&store->pool[p], 0, 0};
        if (seq->tail[p] == NONE) continue;
        page_unpin(&batch, seq->tail_source[p]);
        page_unpin(&batch, seq->tail[p]);
        pool_flush(&batch);
        seq->tail_source[p] = seq->tail[p] = NONE;
    }
}

/* ---- commit ---- */

/* The source's references become the sequence's; what it does not keep goes. */
static void take_over(struct store *store, struct seq *seq, struct cont *source) {
    index_remove(store, source);
    for (uint32_t p = 0; p < store->n_pools; p++) {
        struct pool *pool = &store->pool[p];
        uint32_t n, kept = seq->kept[p];
        space_drop(store, p, &source->space[p], kept, false, false, NULL);
        space_cut(store, &source->space[p], 0);
        for (uint32_t i = 0; i < kept; i += n) {
            const uint32_t *run = space_run(store, &seq->space[p], i, &n);
            n = min_u32(n, kept - i);
            for (uint32_t k = 0; k < n; k++) {
                pool->pages[run[k]].active_references++;
                page_settle(&pool->pages[run[k]]);
            }
        }
        uint32_t tail = seq->frontier / KVD_PAGE_TOKENS, columns = seq->frontier % KVD_PAGE_TOKENS;
        if (kept > tail && pool->pages[space_entry(store, &seq->space[p], tail)].committed != columns)
            page_commit(store, p, space_entry(store, &seq->space[p], tail), columns);
    }
    cont_free(store, source);
}

static void settle_owed(struct store *store, struct seq *seq) {
    for (uint32_t p = 0; p < store->n_pools; p++) {
        struct space *space = &seq->space[p];
        struct pool *pool = &store->pool[p];
        for (uint32_t i = space->count; i-- > 0;) { /* promised entries are the last ones */
            uint32_t n, *entry = space_run(store, space, i, &n);
            if (!(*entry & PROMISED)) break;
            uint32_t device = *entry & ~PROMISED;
            pool_take(pool, device, 1);
            *entry = page_open(store, p, device, true);
        }
        pool->reserved += space->owed;
        space->reserved += space->owed;
        space->owed = 0;
    }
    store->chunks.reserved += seq->chunks_owed;
    seq->chunks_owed = 0;
}

static void release_victims(struct store *store, struct seq *seq) {
    while (seq->victims != NONE) {
        struct cont *victim = &store->conts[seq->victims];
        seq->victims = victim->next_victim;
        if (victim->slot != NONE && victim->slot == seq->state_slot) victim->slot = NONE; /* handed over */
        cont_release(store, victim);
    }
    seq->n_victims = 0;
}

int store_activate_commit(struct store *store, store_seq handle, struct store_refusal *refusal) {
    struct seq *seq = NULL;
    int rc = find_activating(store, handle, &seq, refusal);
    if (rc) return rc;
    store_changed(store, true);
    unpin_tails(store, seq);
    release_victims(store, seq); /* before the move: a tail that victims shared goes on in place */
    if (seq->from != NONE) {
        struct cont *source = &store->conts[seq->from];
        if (seq->keep) {
            source->pins--;
            source->used = store->operations;
        } else {
            take_over(store, seq, source);
        }
    }
    settle_owed(store, seq);
    seq->from = NONE;
    seq->state = STORE_SEQ_ACTIVE;
    return STORE_OK;
}

/* ---- abort ---- */

void seq_abort(struct store *store, struct seq *seq) {
    struct cont *source = seq->from == NONE ? NULL : &store->conts[seq->from];
    bool slot_is_ours = seq->state_slot != NONE && !(source && !seq->keep);
    unpin_tails(store, seq);
    seq_unpin_source(store, seq);
    store->chunks.reserved += seq->chunks_owed; /* was never taken */
    for (uint32_t i = seq->victims; i != NONE; i = store->conts[i].next_victim) {
        store->conts[i].claimed = false;
        if (seq->state_slot != NONE && store->conts[i].slot == seq->state_slot) slot_is_ours = false;
    }
    if (slot_is_ours) slot_release(store, seq->state_slot);
    for (uint32_t p = 0; p < store->n_pools; p++) {
        struct space *space = &seq->space[p];
        store->chunks.reserved -= chunks_for(space_entitlement(space)) - chunks_for(space->count);
        store->pool[p].reserved -= space->reserved;
        space_drop(store, p, space, seq->kept[p], true, false, NULL);
        if (source && seq->keep) space_drop(store, p, space, 0, true, false, NULL);
        else space_cut(store, space, 0);
    }
    if (source && seq->keep) source->pins--;
    else if (source) source->claimed = false;
    seq_free(store, seq);
}

int store_activate_abort(struct store *store, store_seq handle, uint32_t *ret_victims_lost,
                         struct store_refusal *refusal) {
    struct store_pool_view rows[STORE_MAX_POOLS];
    struct seq *seq = NULL;
    int rc = find_activating(store, handle, &seq, refusal);
    if (rc) return rc;
    if (ret_victims_lost) *ret_victims_lost = seq->victims_lost;
    seq_release_rows(store, seq, rows);
    seq_abort(store, seq);
    store_changed(store, true);
    return STORE_OK;
}
