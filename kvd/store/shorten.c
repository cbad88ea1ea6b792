/* SPDX-License-Identifier: Apache-2.0
 *
 * Shortening a continuation to a frontier (SHORT-1), as a request and where damage took what lies behind (KEEP-2). The
 * record of the shorter one is written first, so that a kill in between finds either; then its pages go.
 *
 * Columns before the frontier stay what they were, in both tiers: a host replica of the new last page serves as many as
 * it did, in the page's new epoch. Its record in the directory still names the columns behind, since it could not be
 * written anew without a moment in which it names none; so the replica goes when the page gets a writer (take_over).
 */
#include "store_internal.h"

/* The last page of the shorter one, which it alone holds: columns go behind the frontier. */
static void cut_page(struct store *store, uint32_t p, uint32_t d, uint32_t columns) {
    struct page *page = &store->pool[p].pages[d];
    bool replica = page->host.bits && page->host_epoch == page->epoch;
    page->epoch = ++store->epoch;
    page->committed = (uint8_t)columns;
    page_update(&store->pool[p], d);
    if (!replica) return;
    page->host_epoch = page->epoch;
    if (!MUTANT(cut_replica_covers_all)) page->host_columns = (uint8_t)min_u32(page->host_columns, columns);
}

static void cut_space(struct store *store, const struct cont *cont, uint32_t p, struct space *space,
                      uint32_t frontier) {
    uint32_t count = pages_of(frontier), n;
    for (uint32_t i = count; cont->demoted && i < space->count; i += n) {
        const uint32_t *run = space_run(store, space, i, &n);
        for (uint32_t k = 0; k < n; k++) {
            page_touch(&store->pool[p], run[k]);
            store->pool[p].tier[run[k]].demoted--;
        }
    }
    space_drop(store, p, space, count, false, false, NULL);
    space->committed = frontier;
    if (frontier % KVD_PAGE_TOKENS)
        cut_page(store, p, space_entry(store, space, count - 1), frontier % KVD_PAGE_TOKENS);
}

void cont_shorten(struct store *store, struct cont *cont, uint32_t frontier) {
    cont_disown(store, cont);
    index_drop(store, cont);
    cont->frontier = frontier;
    cont->named = min_u32(cont->named, frontier / KVD_PAGE_TOKENS);
    if (!MUTANT(shortened_name_stays)) cont->tail.n = frontier % KVD_PAGE_TOKENS;
    cont->tail_named = true;
    record_cont(store, cont);
    for (uint32_t p = 0; p < store->n_pools; p++) cut_space(store, cont, p, &cont->space[p], frontier);
    index_insert(store, cont);
}

/* A page boundary, or a place in the tail: the tokens there are known, so that the shorter one has a name. */
static int check_frontier(const struct store *store, const struct cont *cont, uint32_t frontier,
                          struct store_refusal *refusal) {
    uint32_t boundary = cont->frontier / KVD_PAGE_TOKENS * KVD_PAGE_TOKENS;
    if (frontier == 0 || frontier > cont->frontier)
        return store_refuse(refusal, STORE_E_RANGE, STORE_S_FRONTIER, KVD_NONE, frontier, cont->frontier,
                            cont->frontier);
    if (frontier == cont->frontier) return STORE_OK;
    if (store->config.has_state) /* CONT-4 */
        return store_refuse(refusal, STORE_E_RANGE, STORE_S_STATE_FRONTIER, KVD_NONE, frontier, cont->frontier,
                            cont->frontier);
    for (uint32_t p = 0; p < store->n_pools; p++) /* GRP-4 */
        if (window_first(store, p, frontier) < cont->space[p].base)
            return store_refuse(refusal, STORE_E_RANGE, STORE_S_FRONTIER, p, frontier,
                                window_lowest(store, p, cont->space[p].base), cont->frontier);
    if (frontier % KVD_PAGE_TOKENS && (frontier < boundary || !cont->tail_named))
        return store_refuse(refusal, STORE_E_NAME, STORE_S_FRONTIER, KVD_NONE, frontier,
                            frontier / KVD_PAGE_TOKENS * KVD_PAGE_TOKENS, boundary);
    return STORE_OK;
}

int cont_check_cut(const struct store *store, const struct cont *cont, uint32_t frontier,
                   struct store_refusal *refusal) {
    int rc = check_frontier(store, cont, frontier, refusal);
    if (rc || frontier == cont->frontier) return rc;
    if (cont->moves) return store_refuse(refusal, STORE_E_BUSY, STORE_S_MOVE, KVD_NONE, 0, cont->moves, 0);
    for (uint32_t p = 0; p < store->n_pools && frontier % KVD_PAGE_TOKENS; p++) {
        const struct page *page = &store->pool[p].pages[space_entry(store, &cont->space[p], pages_of(frontier) - 1)];
        if (page->pins) /* a checkpoint is being copied from it */
            return store_refuse(refusal, STORE_E_BUSY, STORE_S_CONTINUATION, p, 0, page->pins, 0);
    }
    return STORE_OK;
}

int store_shorten(struct store *store, store_cont handle, uint32_t frontier, struct store_refusal *refusal) {
    struct cont *cont = NULL;
    int rc = cont_find_unclaimed(store, handle, &cont, refusal);
    if (rc == STORE_OK) rc = cont_check_cut(store, cont, frontier, refusal);
    if (rc || frontier == cont->frontier) return rc;
    cont_shorten(store, cont, frontier);
    store_changed(store, true);
    return STORE_OK;
}

/* ---- damage ---- */

/* Tokens before the first lost page of any pool. */
static uint32_t good_frontier(const struct store *store, const struct cont *cont) {
    uint32_t good = cont->frontier;
    for (uint32_t p = 0; p < store->n_pools && store->pool[p].tier; p++) {
        uint32_t n, end = pages_of(good);
        for (uint32_t i = cont->space[p].base; i < end; i += n) {
            const uint32_t *run = space_run(store, &cont->space[p], i, &n);
            n = min_u32(n, end - i);
            for (uint32_t k = 0; k < n; k++)
                if (store->pool[p].pages[run[k]].flags & PAGE_LOST) {
                    good = (i + k) * KVD_PAGE_TOKENS;
                    end = 0;
                    break;
                }
        }
    }
    return windows_hold(store, cont->space, good) ? good : 0;
}

static void tell_loss(struct store *store, const struct cont *cont, uint32_t frontier) {
    store->loss_ring[store->losses++ % LOSS_LIMIT] = (struct store_loss){ cont_handle(store, cont), frontier };
}

bool cont_give_up_lost(struct store *store, struct cont *cont) {
    if (cont->claimed || cont->pins || cont->image_pins || cont->owned) return false; /* what runs is on the device */
    bool image = cont->image_lost && cont->slot == KVD_NONE;
    uint32_t good = good_frontier(store, cont);
    if (good == cont->frontier && !image) return false;
    if (good == 0 || store->config.has_state || MUTANT(damage_takes_all)) {
        tell_loss(store, cont, 0);
        store->lost++;
        cont_release(store, cont, STORE_LOST);
        return true;
    }
    tell_loss(store, cont, good);
    cont_shorten(store, cont, good);
    if (cont->demotes_again && !cont->moves && tier_all_current(store, cont)) cont_demote(store, cont);
    cont->demotes_again = false;
    return false;
}

bool store_take_loss(struct store *store, struct store_loss *ret_loss) {
    if (store->losses - store->losses_taken > LOSS_LIMIT) store->losses_taken = store->losses - LOSS_LIMIT;
    if (store->losses_taken == store->losses) return false;
    *ret_loss = store->loss_ring[store->losses_taken++ % LOSS_LIMIT];
    return true;
}
