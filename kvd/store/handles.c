/* SPDX-License-Identifier: Apache-2.0
 *
 * Slots behind handles: sequences, continuations, device state slots. A handle is index + generation; a slot whose
 * generation would wrap is never used again, so an old handle can never meet a new object.
 */
#include "store_internal.h"

#include <string.h>

struct seq *seq_find(const struct store *store, store_seq handle) {
    uint32_t index = (uint32_t)handle.bits, generation = (uint32_t)(handle.bits >> 32);
    if (generation == 0 || index >= store->config.max_concurrency) return NULL;
    struct seq *seq = &store->seqs[index];
    return seq->occupied && seq->generation == generation ? seq : NULL;
}

struct cont *cont_find(const struct store *store, store_cont handle) {
    uint32_t index = (uint32_t)handle.bits, generation = (uint32_t)(handle.bits >> 32);
    if (generation == 0 || index >= store->config.max_continuations) return NULL;
    struct cont *cont = &store->conts[index];
    bool exists = cont->occupied && !cont->going && (!cont->owned || cont->published);
    return exists && cont->generation == generation ? cont : NULL;
}

store_seq seq_handle(const struct store *store, const struct seq *seq) {
    return (store_seq){ (uint64_t)seq->generation << 32 | (uint64_t)(seq - store->seqs) };
}

store_cont cont_handle(const struct store *store, const struct cont *cont) {
    return (store_cont){ (uint64_t)cont->generation << 32 | (uint64_t)(cont - store->conts) };
}

struct seq *seq_take(struct store *store) {
    struct seq *seq = &store->seqs[store->seq_free];
    uint32_t generation = seq->generation;
    store->seq_free = seq->next_free;
    store->seqs_used++;
    *seq = (struct seq){ .generation = generation,
                         .occupied = true,
                         .state = STORE_SEQ_ACTIVATING,
                         .state_slot = KVD_NONE,
                         .state_frontier = KVD_NONE,
                         .source_slot = KVD_NONE,
                         .own = KVD_NONE,
                         .from = KVD_NONE,
                         .victims = KVD_NONE,
                         .domain = KVD_NONE,
                         .next_free = KVD_NONE };
    for (uint32_t p = 0; p < KVD_MAX_POOLS; p++)
        seq->tail_source[p] = seq->tail[p] = seq->row[p] = seq->job.head[p] = KVD_NONE;
    return seq;
}

void seq_free(struct store *store, struct seq *seq) {
    if (seq->own != KVD_NONE) cont_free(store, seq_leave_descriptor(store, seq));
    domain_drop(store, seq->domain);
    seq->occupied = false;
    store->seqs_used--;
    if (++seq->generation == 0) return;
    seq->next_free = store->seq_free;
    store->seq_free = (uint32_t)(seq - store->seqs);
}

struct cont *cont_take(struct store *store) {
    struct cont *cont = &store->conts[store->cont_free];
    uint32_t generation = cont->generation;
    store->cont_free = cont->next_free;
    store->conts_used++;
    cont_touch(store, cont);
    *cont = (struct cont){ .generation = generation,
                           .occupied = true,
                           .touched = true,
                           .slot = KVD_NONE,
                           .source_slot = KVD_NONE,
                           .domain = KVD_NONE,
                           .node = KVD_NONE,
                           .next_victim = KVD_NONE,
                           .next_free = KVD_NONE };
    for (uint32_t p = 0; p < KVD_MAX_POOLS; p++) cont->tail_source[p] = cont->tail_copy[p] = KVD_NONE;
    return cont;
}

void cont_free(struct store *store, struct cont *cont) {
    domain_drop(store, cont->domain);
    cont_touch(store, cont);
    cont->occupied = cont->published = cont->claimed = false;
    store->conts_used--;
    if (++cont->generation == 0) return;
    cont->next_free = store->cont_free;
    store->cont_free = (uint32_t)(cont - store->conts);
}

uint32_t conts_free(const struct store *store) {
    return store->cont_free == KVD_NONE ? 0 : store->config.max_continuations - store->conts_used;
}

void seq_own_descriptor(struct store *store, struct seq *seq) {
    bool moves = seq->from != KVD_NONE && !seq->keep;
    if (seq->own != KVD_NONE || store->cont_free == KVD_NONE) return;
    if (moves && cont_leaves_descriptor(&store->conts[seq->from])) return;
    struct cont *cont = cont_take(store);
    cont->owned = true;
    store->conts_owned++;
    seq->own = (uint32_t)(cont - store->conts);
}

struct cont *seq_leave_descriptor(struct store *store, struct seq *seq) {
    struct cont *cont = &store->conts[seq->own];
    cont_touch(store, cont);
    cont->owned = false;
    store->conts_owned--;
    seq->own = KVD_NONE;
    return cont;
}

int seq_drive(const struct store *store, store_seq handle, uint64_t lease, struct seq **ret_seq,
              struct store_refusal *refusal) {
    struct seq *seq = seq_find(store, handle);
    if (!seq) return store_refuse(refusal, STORE_E_STALE, STORE_S_SEQUENCE, KVD_NONE, handle.bits, 0, 0);
    if (seq->lease != lease) return store_refuse(refusal, STORE_E_LEASE, STORE_S_SEQUENCE, KVD_NONE, lease, 0, 0);
    if (seq->state != STORE_SEQ_ACTIVE)
        return store_refuse(refusal, STORE_E_STATE, STORE_S_SEQUENCE, KVD_NONE, (uint64_t)STORE_SEQ_ACTIVE,
                            (uint64_t)seq->state, 0);
    *ret_seq = seq;
    return STORE_OK;
}

/* ---- device state slots: free when neither owned nor pinned ---- */

uint32_t slots_free(const struct store *store) {
    return store->config.has_state ? store->config.state_slots - store->slots_used : 0;
}

uint32_t slot_take(struct store *store) {
    uint32_t slot = store->slot_hint; /* no free slot is below it */
    while (store->slots[slot].used || store->slots[slot].pins) slot++;
    store->slots[slot].used = true;
    store->slots_used++;
    store->slot_hint = slot + 1;
    return slot;
}

static void slot_update(struct store *store, uint32_t slot) {
    if (store->slots[slot].used || store->slots[slot].pins) return;
    store->slots_used--;
    store->slot_hint = min_u32(store->slot_hint, slot);
}

void slot_release(struct store *store, uint32_t slot) {
    if (slot == KVD_NONE) return;
    store->slots[slot].used = false;
    slot_update(store, slot);
}

void slot_pin(struct store *store, uint32_t slot) { store->slots[slot].pins++; }

void slot_unpin(struct store *store, uint32_t slot) {
    if (slot == KVD_NONE) return;
    store->slots[slot].pins--;
    slot_update(store, slot);
}

/* ---- what a sequence gives back ---- */

void seq_release_rows(struct store *store, struct seq *seq, struct kvd_pool_view ret_rows[KVD_MAX_POOLS]) {
    memset(ret_rows, 0, KVD_MAX_POOLS * sizeof *ret_rows);
    for (uint32_t p = 0; p < store->n_pools; p++) {
        ret_rows[p].row = seq->row[p];
        ret_rows[p].slice_count = seq->space[p].count;
        row_release(store, p, seq->row[p], seq->space[p].count);
    }
}

void seq_unpin_source(struct store *store, struct seq *seq) {
    slot_unpin(store, seq->source_slot);
    seq->source_slot = KVD_NONE;
}
