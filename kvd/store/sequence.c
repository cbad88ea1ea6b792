/* SPDX-License-Identifier: Apache-2.0
 *
 * Sequences: views, naming of their pages (CONT-2), quarantine (SRV-5).
 */
#include "store_internal.h"

#include <string.h>

void seq_view(const struct store *store, const struct seq *seq, uint32_t p, struct store_slice slice,
              struct store_pool_view *ret_view) {
    const struct space *space = &seq->space[p];
    ret_view->row = seq->row[p];
    ret_view->membership = space->count;
    ret_view->entitlement = space_entitlement(space);
    ret_view->committed = space->committed;
    ret_view->protected_frontier = space_protected(store, p, space);
    ret_view->slice = slice;
}

void seq_release_rows(struct store *store, struct seq *seq, struct store_pool_view ret_rows[STORE_MAX_POOLS]) {
    memset(ret_rows, 0, STORE_MAX_POOLS * sizeof *ret_rows);
    for (uint32_t p = 0; p < store->n_pools; p++) {
        ret_rows[p].row = seq->row[p];
        ret_rows[p].slice.count = seq->space[p].count;
        row_release(store, p, seq->row[p], seq->space[p].count);
    }
}

void seq_unpin_source(struct store *store, struct seq *seq) {
    slot_unpin(store, seq->source_slot);
    seq->source_slot = NONE;
}

int store_quarantine(struct store *store, store_seq handle, bool on, struct store_refusal *refusal) {
    struct seq *seq = seq_find(store, handle);
    if (!seq) return refuse(refusal, STORE_E_STALE, STORE_W_SEQUENCE, NONE, handle.bits, 0, 0);
    if (seq->state == STORE_SEQ_ACTIVATING)
        return refuse(refusal, STORE_E_STATE, STORE_W_SEQUENCE, NONE, (uint64_t)STORE_SEQ_ACTIVE, (uint64_t)seq->state,
                      0);
    seq->state = on ? STORE_SEQ_QUARANTINED : STORE_SEQ_ACTIVE;
    store_changed(store, false);
    return STORE_OK;
}

/* ---- names ---- */

static int check_names(const struct store *store, const struct seq *seq, uint32_t first, uint32_t n,
                       const uint8_t (*digests)[32], struct store_refusal *refusal) {
    uint32_t full = seq->space[0].committed / KVD_PAGE_TOKENS;
    if (first > full || n > full - first)
        return refuse(refusal, STORE_E_RANGE, STORE_W_DIGEST, 0, (uint64_t)first + n, seq->named, full);
    if (n && first > seq->named) return refuse(refusal, STORE_E_NAME, STORE_W_DIGEST, 0, first, seq->named, full);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t d = space_entry(store, &seq->space[0], first + i);
        if ((store->pool[0].pages[d].flags & PAGE_NAMED) && memcmp(store->digests[d], digests[i], 32) != 0)
            return refuse(refusal, STORE_E_NAME, STORE_W_DIGEST, 0, (uint64_t)first + i, seq->named, full);
    }
    return STORE_OK;
}

/* Pages behind the new names may have names already, given by a sharer. */
static uint32_t named_from(const struct store *store, const struct seq *seq, uint32_t named) {
    uint32_t full = seq->space[0].committed / KVD_PAGE_TOKENS;
    while (named < full && (store->pool[0].pages[space_entry(store, &seq->space[0], named)].flags & PAGE_NAMED))
        named++;
    return named;
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
        mirror_page_name(store, d);
        shared |= page->references > 1;
    }
    if (shared) index_extend(store);
    if (n) seq->named = named_from(store, seq, max_u32(seq->named, first + n));
    if (n) mirror_seq(store, seq);
    store_changed(store, false);
    return STORE_OK;
}
