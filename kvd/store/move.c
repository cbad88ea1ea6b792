/* SPDX-License-Identifier: Apache-2.0
 *
 * Moves of continuations between the tiers: demote, backup, prefetch, drop (PAGE-7).
 */
#include "store_internal.h"

/* ---- begin ---- */

static int find_movable(struct store *store, store_cont handle, struct cont **ret_cont, struct store_refusal *refusal) {
    struct cont *cont = cont_find(store, handle);
    if (!cont) return store_refuse(refusal, STORE_E_STALE, STORE_S_CONTINUATION, KVD_NONE, handle.bits, 0, 0);
    if (!store->arena) return store_refuse(refusal, STORE_E_TIER, STORE_S_ARENA, KVD_NONE, 0, 0, 0);
    int rc = cont_check_live(store, cont, refusal);
    if (rc) return rc;
    if (!cont->published || cont->claimed)
        return store_refuse(refusal, STORE_E_BUSY, STORE_S_CONTINUATION, KVD_NONE, 0, cont->pins, 0);
    if (cont->image_pins || cont->moves)
        return store_refuse(refusal, STORE_E_BUSY, STORE_S_MOVE, KVD_NONE, 0, cont->image_pins, 0);
    for (uint32_t p = 0; p < store->n_pools; p++)
        if (tier_any(store, p, &cont->space[p], cont->space[p].count, PAGE_LOST))
            return store_refuse(refusal, STORE_E_DAMAGED, STORE_S_CONTINUATION, p, handle.bits, 0, 0);
    if (store->move_free == KVD_NONE || !store_try(store))
        return store_refuse(refusal, STORE_E_SHORT, STORE_S_MOVE, KVD_NONE, 1, MOVE_LIMIT - store->moves_used,
                            MOVE_LIMIT);
    *ret_cont = cont;
    return STORE_OK;
}

uint32_t tier_lacks(const struct store *store, uint32_t p, const struct space *space, bool coming_counts) {
    uint32_t missing = 0, n;
    for (uint32_t i = space->base; i < space->count; i += n) {
        const uint32_t *run = space_run(store, space, i, &n);
        for (uint32_t k = 0; k < n; k++) {
            const struct page *page = &store->pool[p].pages[run[k]];
            missing += !page_is_current(page) && !(coming_counts && (page->flags & PAGE_BACKING));
        }
    }
    return missing;
}

/* Extents for what the host lacks, and the list of copies. */
static int begin_out(struct store *store, struct cont *cont, struct move *move, struct store_refusal *refusal) {
    struct extent_page_want wants[KVD_MAX_POOLS + 1];
    uint32_t n = 0, placed[KVD_MAX_POOLS + 1];
    uint64_t pages = 0, needed = 0, fits = 0;
    for (uint32_t p = 0; p < store->n_pools; p++) {
        uint32_t lacks = tier_lacks(store, p, &cont->space[p], true);
        if (lacks) wants[n++] = (struct extent_page_want){ store->config.host_stride[p], lacks, p };
    }
    if (store->config.has_state && !cont->image.bits)
        wants[n++] = (struct extent_page_want){ store->config.host_state_stride, 1, KVD_MAX_POOLS };
    for (uint32_t i = 0; i < n; i++) {
        pages += wants[i].pages;
        needed += wants[i].pages * wants[i].stride;
    }
    bool ok = pages <= store->max_extents &&
              (n == 0 || extent_pages_fit(store->arena, NULL, 0, wants, n, store->fit_scratch, placed));
    for (uint32_t i = 0; i < n && !ok && pages <= store->max_extents; i++) fits += placed[i] * wants[i].stride;
    if (!ok || (n && !store_try(store)))
        return store_refuse(refusal, STORE_E_SHORT, STORE_S_ARENA, KVD_NONE, needed, fits, store->config.host_bytes);
    const extent_id *ids = tier_take(store, wants, n);
    for (uint32_t i = 0; i < n; ids += wants[i++].pages) {
        uint32_t p = wants[i].tag;
        if (p < KVD_MAX_POOLS) job_copy_out(store, &move->job, p, &cont->space[p], ids);
        else image_copy_out(store, cont, *ids);
        move->image |= p == KVD_MAX_POOLS;
    }
    return STORE_OK;
}

/* Device pages for what is host-only, a slot for the image. */
static int begin_in(struct store *store, struct cont *cont, struct move *move, struct store_refusal *refusal) {
    uint32_t missing[KVD_MAX_POOLS];
    bool image = store->config.has_state && cont->slot == KVD_NONE;
    for (uint32_t p = 0; p < store->n_pools; p++) {
        const struct pool *pool = &store->pool[p];
        if (tier_any(store, p, &cont->space[p], cont->space[p].count,
                     MUTANT(leaving_page_is_prefetched) ? 0 : PAGE_LEAVING))
            return store_refuse(refusal, STORE_E_REVISION, STORE_S_REPLICA, p, 0, store->revision, 0);
        missing[p] = tier_missing(store, p, &cont->space[p], cont->space[p].count);
        if (missing[p] && (missing[p] > pool_available(pool) || !store_try(store)))
            return store_refuse(refusal, STORE_E_SHORT, STORE_S_PAGES, p, missing[p], pool_available(pool),
                                pool->capacity);
    }
    if (image && (slots_free(store) < 1 || !store_try(store)))
        return store_refuse(refusal, STORE_E_SHORT, STORE_S_STATE_SLOT, KVD_NONE, 1, slots_free(store),
                            store->config.state_slots);
    /* What a demoted continuation holds leaves the device again as soon as its copy has ended. */
    move->was_demoted = cont->demoted;
    cont_undemote(store, cont);
    for (uint32_t p = 0; p < store->n_pools; p++)
        job_copy_in(store, &move->job, p, &cont->space[p], cont->space[p].count);
    if (!image) return STORE_OK;
    cont_touch(store, cont);
    cont->slot = slot_take(store);
    cont->image_coming = true;
    cont->image_pins++;
    move->image = true;
    return STORE_OK;
}

int store_move_begin(struct store *store, store_cont handle, enum store_place place, store_move *ret_move,
                     struct store_refusal *refusal) {
    struct cont *cont = NULL;
    if ((uint32_t)place > STORE_PLACE_DEVICE)
        return store_refuse(refusal, STORE_E_ARGUMENT, STORE_S_NONE, KVD_NONE, (uint64_t)place, 0, STORE_PLACE_DEVICE);
    int rc = find_movable(store, handle, &cont, refusal);
    if (rc) return rc;
    struct move *move = &store->moves[store->move_free], made = *move;
    made.occupied = true;
    made.place = place;
    made.cont = handle;
    made.image = made.was_demoted = false;
    made.job = (struct tier_job){ .head = { KVD_NONE, KVD_NONE, KVD_NONE, KVD_NONE } };
    rc = place == STORE_PLACE_DEVICE ? begin_in(store, cont, &made, refusal) : begin_out(store, cont, &made, refusal);
    if (rc) return rc;
    store->move_free = move->next_free;
    store->moves_used++;
    *move = made;
    cont->moves++;
    store_changed(store, true);
    ret_move->bits = (uint64_t)move->generation << 32 | (uint64_t)(move - store->moves);
    return STORE_OK;
}

/* ---- end ---- */

static struct move *find_move(const struct store *store, store_move handle) {
    uint32_t i = (uint32_t)handle.bits;
    if (i >= MOVE_LIMIT || !store->moves[i].occupied || store->moves[i].generation != handle.bits >> 32) return NULL;
    return &store->moves[i];
}

static void move_end(struct store *store, struct move *move, struct cont *cont, bool done) {
    if (cont) {
        cont->moves--;
        if (!done && move->was_demoted && !cont->claimed && !cont->pins && tier_all_current(store, cont))
            cont_demote(store, cont);
        cont_give_up_lost(store, cont);
    }
    move->occupied = false;
    store->moves_used--;
    if (++move->generation == 0) move->generation = 1;
    move->next_free = store->move_free;
    store->move_free = (uint32_t)(move - store->moves);
    store_changed(store, true);
}

static void finish_image(struct store *store, struct move *move, struct cont *cont, bool ok) {
    if (!move->image || !cont) return; /* a continuation whose image is being copied cannot go */
    move->image = false;
    if (cont->image_backing) {
        image_finish(store, cont, ok);
        return;
    }
    cont->image_pins--;
    cont->image_coming = false;
    if (ok && !cont->image_lost) {
        record_cont(store, cont);
        return;
    }
    cont_touch(store, cont);
    slot_release(store, cont->slot);
    cont->slot = KVD_NONE;
}

/* What others bring or copy is not there yet; what an aborted neighbour left is taken over. */
static int commit_in(struct store *store, struct move *move, struct cont *cont, struct store_refusal *refusal) {
    bool more = false, waits = false;
    if (cont->demoted) /* an activation has demoted it since: what was brought has left again */
        return store_refuse(refusal, STORE_E_BUSY, STORE_S_MOVE, KVD_NONE, 0, 0, 0);
    if (cont->image_lost && !image_in_slot(cont))
        return store_refuse(refusal, STORE_E_DAMAGED, STORE_S_STATE_SLOT, KVD_NONE, move->cont.bits, 0, 0);
    for (uint32_t p = 0; p < store->n_pools; p++) {
        const struct space *space = &cont->space[p];
        if (tier_any(store, p, space, space->count, PAGE_LOST))
            return store_refuse(refusal, STORE_E_DAMAGED, STORE_S_CONTINUATION, p, move->cont.bits, 0, 0);
        more |= job_adopt(store, &move->job, p, space, space->count);
        uint32_t missing = tier_missing(store, p, space, space->count); /* left the device again meanwhile */
        if (missing > pool_available(&store->pool[p]))
            return store_refuse(refusal, STORE_E_SHORT, STORE_S_PAGES, p, missing, pool_available(&store->pool[p]),
                                store->pool[p].capacity);
        if (missing) job_copy_in(store, &move->job, p, space, space->count);
        more |= missing > 0;
        waits |= tier_any(store, p, space, space->count, PAGE_RESTORING);
    }
    return more ? STORE_MORE : waits ? STORE_WAIT : STORE_OK;
}

static int commit_out(struct store *store, const struct move *move, struct cont *cont, struct store_refusal *refusal) {
    uint32_t lacks = 0;
    bool waits = false;
    for (uint32_t p = 0; p < store->n_pools; p++) {
        lacks += tier_lacks(store, p, &cont->space[p], false);
        waits |= tier_any(store, p, &cont->space[p], cont->space[p].count, PAGE_BACKING);
    }
    if (waits || (move->place == STORE_PLACE_HOST && cont->pins)) return STORE_WAIT;
    if (lacks && !MUTANT(demoted_uncopied))
        return store_refuse(refusal, STORE_E_STATE, STORE_S_REPLICA, KVD_NONE, 0, lacks, 0);
    if (move->place == STORE_PLACE_HOST && (tier_all_current(store, cont) || MUTANT(demoted_uncopied)))
        cont_demote(store, cont);
    return STORE_OK;
}

int store_move_commit(struct store *store, store_move handle, struct store_refusal *refusal) {
    struct move *move = find_move(store, handle);
    int rc = STORE_OK;
    if (!move) return store_refuse(refusal, STORE_E_STALE, STORE_S_MOVE, KVD_NONE, handle.bits, 0, 0);
    struct cont *cont = cont_find(store, move->cont);
    job_finish(store, &move->job, true);
    finish_image(store, move, cont, true);
    if (cont && !cont->claimed)
        rc = move->place == STORE_PLACE_DEVICE ? commit_in(store, move, cont, refusal)
                                               : commit_out(store, move, cont, refusal);
    if (rc == STORE_WAIT) return rc;
    if (rc == STORE_MORE) store_changed(store, true);
    else {
        job_finish(store, &move->job, false); /* what was brought of one pool, before another's could not be */
        move_end(store, move, cont, rc == STORE_OK);
    }
    return rc;
}

int store_move_abort(struct store *store, store_move handle, struct store_refusal *refusal) {
    struct move *move = find_move(store, handle);
    if (!move) return store_refuse(refusal, STORE_E_STALE, STORE_S_MOVE, KVD_NONE, handle.bits, 0, 0);
    struct cont *cont = cont_find(store, move->cont);
    job_finish(store, &move->job, false);
    finish_image(store, move, cont, false);
    move_end(store, move, cont, false);
    return STORE_OK;
}

/* ---- drop ---- */

/* Host replicas that nothing but this continuation's device replicas back up. */
static uint32_t drop_host_replicas(struct store *store, uint32_t p, const struct space *space) {
    uint32_t dropped = 0, n;
    for (uint32_t i = space->base; i < space->count; i += n) {
        const uint32_t *run = space_run(store, space, i, &n);
        for (uint32_t k = 0; k < n; k++) {
            const struct page *page = &store->pool[p].pages[run[k]];
            if (!page->host.bits || page->pins) continue;
            if (!page_on_device(page) && !MUTANT(only_source_is_dropped)) continue;
            if (store->pool[p].tier[run[k]].demoted && !MUTANT(demoted_source_is_dropped)) continue;
            if (store->pool[p].tier[run[k]].demoting && !MUTANT(demoting_source_is_dropped)) continue;
            page_leave_host(store, p, run[k]);
            dropped++;
        }
    }
    return dropped;
}

static uint32_t count_on_device(const struct store *store, uint32_t p, const struct space *space) {
    uint32_t there = 0, n;
    for (uint32_t i = space->base; i < space->count; i += n) {
        const uint32_t *run = space_run(store, space, i, &n);
        for (uint32_t k = 0; k < n; k++) there += page_on_device(&store->pool[p].pages[run[k]]);
    }
    return there;
}

static int drop_from_host(struct store *store, struct cont *cont, uint32_t dropped[KVD_MAX_POOLS],
                          struct store_refusal *refusal) {
    uint32_t absent = 0;
    for (uint32_t p = 0; p < store->n_pools; p++)
        absent += space_held(&cont->space[p]) - count_on_device(store, p, &cont->space[p]);
    if (store->config.has_state && cont->slot == KVD_NONE) absent++;
    if (absent && !MUTANT(only_source_is_dropped))
        return store_refuse(refusal, STORE_E_STATE, STORE_S_REPLICA, KVD_NONE, 0, absent, 0);
    for (uint32_t p = 0; p < store->n_pools && cont->demoted; p++)
        if (tier_any(store, p, &cont->space[p], cont->space[p].count,
                     MUTANT(leaving_page_is_prefetched) ? 0 : PAGE_LEAVING)) /* about to leave the device */
            return store_refuse(refusal, STORE_E_REVISION, STORE_S_REPLICA, p, 0, store->revision, 0);
    cont_undemote(store, cont);
    for (uint32_t p = 0; p < store->n_pools; p++) dropped[p] = drop_host_replicas(store, p, &cont->space[p]);
    cont_drop_image(store, cont);
    return STORE_OK;
}

static int drop_from_device(struct store *store, struct cont *cont, uint32_t dropped[KVD_MAX_POOLS],
                            struct store_refusal *refusal) {
    uint32_t lacks = 0;
    for (uint32_t p = 0; p < store->n_pools; p++) lacks += tier_lacks(store, p, &cont->space[p], false);
    if (lacks || !tier_all_current(store, cont))
        return store_refuse(refusal, STORE_E_STATE, STORE_S_REPLICA, KVD_NONE, 0, max_u32(lacks, 1), 0);
    for (uint32_t p = 0; p < store->n_pools; p++) dropped[p] = store->pool[p].allocated;
    cont_demote(store, cont);
    for (uint32_t p = 0; p < store->n_pools; p++) dropped[p] -= store->pool[p].allocated;
    return STORE_OK;
}

int store_drop_replica(struct store *store, store_cont handle, enum kvd_tier tier, uint32_t ret_dropped[KVD_MAX_POOLS],
                       struct store_refusal *refusal) {
    struct cont *cont = NULL;
    uint32_t dropped[KVD_MAX_POOLS] = { 0 };
    if (tier != KVD_TIER_DEVICE && tier != KVD_TIER_HOST)
        return store_refuse(refusal, STORE_E_ARGUMENT, STORE_S_NONE, KVD_NONE, (uint64_t)tier, 0, KVD_TIER_HOST);
    int rc = find_movable(store, handle, &cont, refusal);
    if (rc) return rc;
    if (cont->pins && !MUTANT(drop_under_a_fork))
        return store_refuse(refusal, STORE_E_BUSY, STORE_S_CONTINUATION, KVD_NONE, 0, cont->pins, 0);
    rc = tier == KVD_TIER_HOST ? drop_from_host(store, cont, dropped, refusal)
                               : drop_from_device(store, cont, dropped, refusal);
    if (rc) return rc;
    store_changed(store, true);
    for (uint32_t p = 0; p < KVD_MAX_POOLS; p++) ret_dropped[p] = dropped[p];
    return STORE_OK;
}
