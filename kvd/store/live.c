/* SPDX-License-Identifier: Apache-2.0
 *
 * Live continuations (LIVE-1): what a running sequence has named is found, and can be forked, while it runs. The
 * descriptor that the sequence owns (FIT-2) stands in the index as an alias of the first pages of its membership: no
 * reference, no chunk, no domain of its own, so that it costs nothing and can lack nothing. It follows the names and
 * the frontiers, and naming a page moves it by that page only.
 *
 * A fork in flight from it has its own references as soon as it maps its pages; what it will map once its victims have
 * given way, the sequence may not cut, and a sequence that is released leaves its pages to those forks.
 */
#include "store_internal.h"

uint32_t live_reach(const struct store *store, const struct seq *seq, const uint32_t committed[KVD_MAX_POOLS]) {
    uint32_t pages = min_u32(seq->named, committed[0] / KVD_PAGE_TOKENS);
    for (uint32_t p = 1; p < store->n_pools && !MUTANT(live_one_is_of_main); p++)
        pages = min_u32(pages, committed[p] / KVD_PAGE_TOKENS);
    return store->config.has_state || store->has_windows || MUTANT(nothing_is_live) ? 0 : pages;
}

static void take_prefix(const struct store *store, const struct seq *seq, struct cont *cont, uint32_t pages) {
    cont->frontier = pages * KVD_PAGE_TOKENS;
    for (uint32_t p = 0; p < store->n_pools; p++) cont->space[p] = space_prefix(store, &seq->space[p], pages);
}

static void show_live(struct store *store, const struct seq *seq, struct cont *cont, uint32_t pages,
                      const struct cont *near) {
    take_prefix(store, seq, cont, pages);
    cont->named = pages;
    cont->tail_named = true;
    cont->tag = seq->tag;
    cont->domain = seq->domain;
    cont->created = cont->used = store->operations;
    cont->made_ns = cont->used_ns = store->now_ns;
    cont->published = true;
    if (near) index_insert_near(store, cont, near);
    else index_insert(store, cont);
}

static void hide_live(struct store *store, struct cont *cont) {
    index_drop(store, cont);
    cont->published = false;
    cont->frontier = cont->named = 0;
    cont->domain = KVD_NONE;
    for (uint32_t p = 0; p < store->n_pools; p++) cont->space[p] = (struct space){ .count = 0 };
}

uint32_t live_now(const struct store *store, const struct seq *seq) {
    return seq->own != KVD_NONE && store->conts[seq->own].published ? store->conts[seq->own].named : 0;
}

void live_set(struct store *store, struct seq *seq, uint32_t pages, const struct cont *near) {
    struct cont *cont = seq->own == KVD_NONE ? NULL : &store->conts[seq->own];
    uint32_t now = live_now(store, seq);
    if (!cont || pages == now || (pages < now && MUTANT(live_one_outlasts_its_names))) return;
    if (now == 0) {
        show_live(store, seq, cont, pages, near);
    } else if (pages == 0) {
        hide_live(store, cont);
    } else if (pages > now) { /* the digests of the new pages are read through the new prefix, */
        take_prefix(store, seq, cont, pages);
        index_grow(store, cont, pages);
    } else { /* and those of the old ones through the old */
        index_shrink(store, cont, pages);
        take_prefix(store, seq, cont, pages);
    }
}

void live_show(struct store *store, struct seq *seq, const struct cont *near) {
    uint32_t committed[KVD_MAX_POOLS] = { 0 };
    for (uint32_t p = 0; p < store->n_pools; p++) committed[p] = seq->space[p].committed;
    live_set(store, seq, live_reach(store, seq, committed), near);
}

void live_update(struct store *store, struct seq *seq) {
    if (seq->state != STORE_SEQ_ACTIVATING) live_show(store, seq, NULL);
}

uint32_t live_forked(const struct store *store, const struct seq *seq) {
    uint32_t tokens = 0;
    if (seq->own == KVD_NONE || store->conts[seq->own].pins == 0) return 0;
    for (uint32_t i = 0; i < store->config.max_concurrency; i++) {
        const struct seq *fork = &store->seqs[i];
        if (fork->occupied && fork->state == STORE_SEQ_ACTIVATING && fork->from == seq->own)
            tokens = max_u32(tokens, fork->frontier);
    }
    return tokens;
}

uint32_t seq_protected(const struct store *store, const struct seq *seq, uint32_t p) {
    bool rolls = seq->n_rolled > 0 && !MUTANT(rolling_one_protects);
    uint32_t shared = rolls ? roll_protected(store, seq, p) : space_protected(store, p, &seq->space[p]);
    if (store->window_pages[p]) /* others may have gone on, and hold only its pages of Main: no pool ends before it */
        shared = max_u32(shared, rolls ? roll_protected(store, seq, 0) : space_protected(store, 0, &seq->space[0]));
    return MUTANT(forks_in_flight_are_cut) ? shared : max_u32(shared, live_forked(store, seq));
}

void seq_view(const struct store *store, const struct seq *seq, uint32_t p, uint32_t changed,
              struct kvd_pool_view *ret_view) {
    const struct space *space = &seq->space[p];
    ret_view->row = seq->row[p];
    ret_view->membership = space->count;
    ret_view->first = space->base;
    ret_view->entitlement =
        store->window_pages[p] ? window_end(store, p, space->base, seq_reach(store, seq, p)) : space_entitlement(space);
    ret_view->committed = space->committed;
    ret_view->protected_frontier = seq_protected(store, seq, p);
    ret_view->slice_begin = 0;
    ret_view->slice_count = changed;
}
