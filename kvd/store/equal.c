/* SPDX-License-Identifier: Apache-2.0
 *
 * Equal continuations are one (FIT-5): what is kept twice costs pages and a descriptor, and serves nobody more. The
 * handle that was there first stays. It gets the pages of the newcomer where its own are not all on the device.
 */
#include "store_internal.h"

#include <string.h>

/* The node at which the names of a continuation end, whether it is in the tree or not. */
static uint32_t node_of(const struct store *store, const struct cont *cont) {
    const struct node *nodes = store->index.nodes;
    uint32_t n = 0, at = 0, steps = cont->named + 1;
    while (at < steps) {
        uint32_t child = index_child(store, n, index_digest(store, cont, at));
        if (child == KVD_NONE || nodes[child].end > steps) return KVD_NONE;
        const struct cont *some = &store->conts[nodes[child].some];
        for (at++; at < nodes[child].end; at++)
            if (!digests_equal(index_digest(store, cont, at), index_digest(store, some, at))) return KVD_NONE;
        n = child;
    }
    return n;
}

static bool lies_on_device(const struct store *store, const struct cont *cont) {
    if (cont->demoted || (store->config.has_state && !image_in_slot(cont))) return false;
    for (uint32_t p = 0; p < store->n_pools; p++)
        if (tier_missing(store, p, &cont->space[p], cont->space[p].count)) return false;
    return true;
}

/* No transition counts on where its pages are, and none of them is lost. */
static bool may_change_pages(const struct store *store, const struct cont *cont) {
    if (cont->pins || cont->moves || cont->image_pins || cont->image_lost) return false;
    for (uint32_t p = 0; p < store->n_pools && store->pool[p].tier; p++)
        if (tier_any(store, p, &cont->space[p], cont->space[p].count, PAGE_LOST)) return false;
    return true;
}

static bool is_equal(const struct cont *a, const struct cont *b) {
    return a->frontier == b->frontier && a->tail_named && b->tail_named &&
           (a->tag == b->tag || MUTANT(equal_of_any_owner)) && a->tail.n == b->tail.n &&
           memcmp(a->tail.tokens, b->tail.tokens, a->tail.n * sizeof a->tail.tokens[0]) == 0;
}

struct cont *cont_find_equal(const struct store *store, const struct cont *like) {
    if (MUTANT(equal_ones_stay) || like->named < like->frontier / KVD_PAGE_TOKENS) return NULL;
    uint32_t n = node_of(store, like);
    uint32_t c = n == KVD_NONE ? n : end_seek(store, n, like->tail.tokens, like->tail.n, NULL);
    for (; c != KVD_NONE && end_common(&store->conts[c], like->tail.tokens, like->tail.n) == like->tail.n;
         c = end_next(store, c)) {
        struct cont *cont = &store->conts[c];
        if (!cont->claimed && !cont->owned && is_equal(cont, like) &&
            (lies_on_device(store, cont) || may_change_pages(store, cont)))
            return cont;
    }
    return NULL;
}

/* What it has to go by is as it would be of the newcomer, too. */
static void refresh(struct store *store, struct cont *cont, uint32_t retention) {
    cont_disown(store, cont);
    order_drop(store, cont);
    cont->used = store->operations;
    cont->used_ns = store->now_ns;
    cont->retention = max_u32(cont->retention, retention);
    order_insert(store, cont);
    note_change(store, cont);
    record_cont(store, cont);
}

bool cont_stands_for(struct store *store, struct cont *cont, uint32_t retention) {
    if (!lies_on_device(store, cont)) return false;
    refresh(store, cont, retention);
    return true;
}

/* The record names the new pages and image before the old ones go. */
void cont_take_pages(struct store *store, struct cont *cont, struct cont *from) {
    struct space old[KVD_MAX_POOLS];
    extent_id image = cont->image;
    uint32_t slot = cont->slot;
    cont_undemote(store, cont);
    for (uint32_t p = 0; p < store->n_pools; p++) space_touch(store, p, &from->space[p]);
    cont_touch(store, cont);
    cont_touch(store, from);
    memcpy(old, cont->space, sizeof old);
    memcpy(cont->space, from->space, sizeof old);
    memset(from->space, 0, sizeof from->space);
    cont->slot = from->slot;
    cont->image = (extent_id){ 0 };
    from->slot = KVD_NONE;
    refresh(store, cont, from->retention);
    for (uint32_t p = 0; p < store->n_pools; p++) space_drop(store, p, &old[p], 0, false, false, NULL);
    slot_release(store, slot);
    if (!image.bits) return;
    tier_give_back(store, image);
    store->host_images--;
}
