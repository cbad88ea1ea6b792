/* SPDX-License-Identifier: Apache-2.0
 *
 * Continuations: release, retention, joint release (CONT-*).
 */
#include "store_internal.h"

/* ---- state images ---- */

void cont_drop_image(struct store *store, struct cont *cont) {
    extent_id id = cont->image;
    if (!id.bits) return;
    cont_touch(store, cont);
    cont->image = (extent_id){ 0 };
    cont->image_backing = cont->image_lost = false;
    if (cont->published) record_cont(store, cont);
    tier_give_back(store, id);
    store->host_images--;
}

void image_copy_out(struct store *store, struct cont *cont, extent_id id) {
    cont_touch(store, cont);
    cont->image = id;
    cont->image_backing = true;
    cont->image_checksum = 0;
    cont->image_pins++;
    slot_pin(store, cont->slot);
    store->host_images++;
}

void image_unpin(struct store *store, struct cont *cont) {
    if (--cont->image_pins == 0 && cont->image_lost && image_in_slot(cont)) cont_drop_image(store, cont);
}

void image_finish(struct store *store, struct cont *cont, bool ok) {
    cont_touch(store, cont);
    cont->image_pins--;
    slot_unpin(store, cont->slot);
    if (!ok || (cont->image_checksum == 0 && !MUTANT(image_without_checksum))) {
        cont_drop_image(store, cont);
        return;
    }
    cont->image_backing = false;
    record_cont(store, cont);
}

/* ---- demoted ---- */

bool tier_all_current(const struct store *store, const struct cont *cont) {
    uint32_t n;
    for (uint32_t p = 0; p < store->n_pools; p++)
        for (uint32_t i = cont->space[p].base; i < cont->space[p].count; i += n) {
            const uint32_t *run = space_run(store, &cont->space[p], i, &n);
            for (uint32_t k = 0; k < n; k++)
                if (!page_is_current(&store->pool[p].pages[run[k]])) return false;
        }
    return !store->config.has_state || image_in_host(cont);
}

static void set_demoted(struct store *store, struct cont *cont, bool demoted) {
    bool ordered = cont->ordered;
    cont_touch(store, cont);
    order_drop(store, cont);
    cont->demoted = demoted;
    store->demoted += demoted ? 1 : UINT32_MAX;
    if (cont->published && !MUTANT(demotion_is_not_told)) note_change(store, cont);
    if (ordered) order_insert(store, cont);
}

void cont_demote(struct store *store, struct cont *cont) {
    uint32_t n;
    if (cont->demoted) return;
    set_demoted(store, cont, true);
    note_demoted(store, cont);
    for (uint32_t p = 0; p < store->n_pools; p++) {
        struct pool_batch batch = { &store->pool[p], 0, 0 };
        for (uint32_t i = cont->space[p].base; i < cont->space[p].count; i += n) {
            const uint32_t *run = space_run(store, &cont->space[p], i, &n);
            for (uint32_t k = 0; k < n; k++) {
                page_touch(batch.pool, run[k]);
                batch.pool->tier[run[k]].demoted++;
                page_leave_if_unused(store, &batch, run[k]);
            }
        }
        pool_flush(&batch);
    }
    if (cont->slot == KVD_NONE) return;
    slot_release(store, cont->slot);
    cont->slot = KVD_NONE;
    record_cont(store, cont);
}

void cont_undemote(struct store *store, struct cont *cont) {
    uint32_t n;
    if (!cont->demoted) return;
    set_demoted(store, cont, false);
    for (uint32_t p = 0; p < store->n_pools; p++)
        for (uint32_t i = cont->space[p].base; i < cont->space[p].count; i += n) {
            const uint32_t *run = space_run(store, &cont->space[p], i, &n);
            for (uint32_t k = 0; k < n; k++) {
                page_touch(&store->pool[p], run[k]);
                store->pool[p].tier[run[k]].demoted--;
            }
        }
}

/* ---- release ---- */

void cont_release(struct store *store, struct cont *cont, enum store_fate fate) {
    life_end(store, cont, fate);
    if (!MUTANT(directory_keeps_continuation)) record_cont_drop(store, cont); /* deletions go first */
    if (cont->published) index_drop(store, cont);
    cont->published = false;
    cont_undemote(store, cont);
    cont_drop_image(store, cont);
    for (uint32_t p = 0; p < store->n_pools; p++) space_drop(store, p, &cont->space[p], 0, false, false, NULL);
    slot_release(store, cont->slot);
    cont_free(store, cont);
}

int cont_check_live(const struct store *store, const struct cont *cont, struct store_refusal *refusal) {
    if (!cont_is_live(cont) || MUTANT(live_one_is_taken)) return STORE_OK;
    return store_refuse(refusal, STORE_E_BUSY, STORE_S_SEQUENCE, KVD_NONE, cont_handle(store, cont).bits,
                        cont->frontier, 0);
}

int cont_find_unclaimed(const struct store *store, store_cont handle, struct cont **ret_cont,
                        struct store_refusal *refusal) {
    struct cont *cont = cont_find(store, handle);
    if (!cont) return store_refuse(refusal, STORE_E_STALE, STORE_S_CONTINUATION, KVD_NONE, handle.bits, 0, 0);
    int rc = cont_check_live(store, cont, refusal);
    if (rc) return rc;
    if (!cont->published || cont->claimed || cont->pins)
        return store_refuse(refusal, STORE_E_BUSY, STORE_S_CONTINUATION, KVD_NONE, 0, cont->pins, 0);
    if (cont->image_pins) return store_refuse(refusal, STORE_E_BUSY, STORE_S_MOVE, KVD_NONE, 0, cont->image_pins, 0);
    *ret_cont = cont;
    return STORE_OK;
}

int store_release(struct store *store, store_cont handle, struct store_refusal *refusal) {
    struct cont *cont = NULL;
    int rc = cont_find_unclaimed(store, handle, &cont, refusal);
    if (rc) return rc;
    cont_release(store, cont, STORE_RELEASED);
    store_changed(store, true);
    return STORE_OK;
}

int store_set_retention(struct store *store, store_cont handle, uint32_t retention, struct store_refusal *refusal) {
    struct cont *cont = cont_find(store, handle);
    if (!cont) return store_refuse(refusal, STORE_E_STALE, STORE_S_CONTINUATION, KVD_NONE, handle.bits, 0, 0);
    int rc = cont_check_live(store, cont, refusal);
    if (rc) return rc;
    if (!cont->published || cont->claimed)
        return store_refuse(refusal, STORE_E_BUSY, STORE_S_CONTINUATION, KVD_NONE, 0, cont->pins, 0);
    cont_disown(store, cont);
    order_drop(store, cont);
    cont->retention = retention;
    order_insert(store, cont);
    note_change(store, cont);
    record_cont(store, cont);
    store_changed(store, false);
    return STORE_OK;
}
