/* SPDX-License-Identifier: Apache-2.0
 *
 * Continuations: release, retention, joint release (CONT-*).
 */
#include "store_internal.h"

void cont_release(struct store *store, struct cont *cont) {
    mirror_cont_drop(store, cont); /* deletions go first */
    if (cont->published) index_remove(store, cont);
    cont->published = false;
    cont_unrest(store, cont);
    cont_drop_image(store, cont);
    for (uint32_t p = 0; p < store->n_pools; p++) space_drop(store, p, &cont->space[p], 0, false, false, NULL);
    slot_release(store, cont->slot);
    cont_free(store, cont);
}

/* One that exists, is published and that no activation holds. */
static int find_free(const struct store *store, store_cont handle, struct cont **ret_cont,
                     struct store_refusal *refusal) {
    struct cont *cont = cont_find(store, handle);
    if (!cont) return refuse(refusal, STORE_E_STALE, STORE_W_CONTINUATION, NONE, handle.bits, 0, 0);
    if (!cont->published || cont->claimed || cont->pins)
        return refuse(refusal, STORE_E_STATE, STORE_W_CONTINUATION, NONE, 0, cont->pins, 0);
    if (cont->image_pins) return refuse(refusal, STORE_E_STATE, STORE_W_MOVE, NONE, 0, cont->image_pins, 0);
    *ret_cont = cont;
    return STORE_OK;
}

bool cont_bury(struct store *store, struct cont *cont) {
    bool lost = cont->image_lost && cont->slot == NONE;
    if (cont->claimed || cont->pins || cont->image_pins) return false;
    for (uint32_t p = 0; p < store->n_pools && !lost && store->pool[p].tier; p++)
        lost = tier_any(store, p, &cont->space[p], cont->space[p].count, PAGE_LOST);
    if (!lost) return false;
    store->lost_ring[store->lost++ % LOST_KEPT] = cont_handle(store, cont);
    cont_release(store, cont);
    return true;
}

bool store_take_lost(struct store *store, store_cont *ret_cont) {
    if (store->lost - store->lost_taken > LOST_KEPT) store->lost_taken = store->lost - LOST_KEPT;
    if (store->lost_taken == store->lost) return false;
    *ret_cont = store->lost_ring[store->lost_taken++ % LOST_KEPT];
    return true;
}

int store_release(struct store *store, store_cont handle, struct store_refusal *refusal) {
    struct cont *cont = NULL;
    int rc = find_free(store, handle, &cont, refusal);
    if (rc) return rc;
    cont_release(store, cont);
    store_changed(store, true);
    return STORE_OK;
}

int store_set_retention(struct store *store, store_cont handle, uint32_t retention, struct store_refusal *refusal) {
    struct cont *cont = cont_find(store, handle);
    if (!cont) return refuse(refusal, STORE_E_STALE, STORE_W_CONTINUATION, NONE, handle.bits, 0, 0);
    if (!cont->published || cont->claimed)
        return refuse(refusal, STORE_E_STATE, STORE_W_CONTINUATION, NONE, 0, cont->pins, 0);
    cont->retention = retention;
    mirror_cont(store, cont);
    store_changed(store, false);
    return STORE_OK;
}

int store_joint_release(struct store *store, const store_cont *conts, uint32_t n, uint32_t ret_pages[STORE_MAX_POOLS],
                        struct store_refusal *refusal) {
    uint32_t stamp = store_next_stamp(store), freed[STORE_MAX_POOLS] = { 0 };
    for (uint32_t i = 0; i < n; i++) {
        struct cont *cont = cont_find(store, conts[i]);
        if (!cont) return refuse(refusal, STORE_E_STALE, STORE_W_CONTINUATION, NONE, conts[i].bits, 0, 0);
        if (cont->stamp == stamp) return refuse(refusal, STORE_E_ARGUMENT, STORE_W_RECIPE, NONE, i, i, n);
        if (!cont->published) return refuse(refusal, STORE_E_STATE, STORE_W_CONTINUATION, NONE, 0, 0, 0);
        cont->stamp = stamp;
        for (uint32_t p = 0; p < store->n_pools; p++)
            freed[p] += joint_mark(store, &cont->space[p], &(struct joint){ p, 0, stamp, true, cont->resting });
    }
    for (uint32_t p = 0; p < STORE_MAX_POOLS; p++) ret_pages[p] = freed[p];
    return STORE_OK;
}
