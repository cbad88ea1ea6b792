/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookup (CONT-2): which continuations begin like this prompt. Walks the tree of names down to where the prompt leaves it, then
 * collects from there upwards: what lies below the deepest match first.
 */
#include "store_internal.h"

#include <string.h>

struct found {
    const struct store *store;
    struct store_candidate *list;
    uint32_t n, max, level; /* list[level..n) have the same depth of match and are kept in order */
};

/* A chain digest commits to all before it: the last equal one in the run decides, so bisect. The first of the run is equal. */
static uint32_t match_run(const struct store *store, const struct node *node, const uint8_t (*digests)[32], uint32_t n) {
    const struct cont *cont = &store->conts[node->best];
    uint32_t low = node->begin + 1, high = min_u32(node->end, n); /* pages below low match */
    if (memcmp(index_digest(store, cont, high - 1), digests[high - 1], 32) == 0) return high;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (memcmp(index_digest(store, cont, mid), digests[mid], 32) == 0) low = mid + 1;
        else high = mid;
    }
    return low;
}

static const struct cont *cont_at(const struct found *found, uint32_t i) { return cont_find(found->store, found->list[i].cont); }

static void offer(struct found *found, const struct cont *cont, uint32_t matched) {
    uint32_t i = found->n;
    if (found->n == found->max) {
        if (found->level == found->max || !cont_is_better(cont, cont_at(found, found->max - 1))) return;
        i--;
    } else {
        found->n++;
    }
    for (; i > found->level && cont_is_better(cont, cont_at(found, i - 1)); i--) found->list[i] = found->list[i - 1];
    memset(&found->list[i], 0, sizeof found->list[i]);
    found->list[i].cont = cont_handle(found->store, cont);
    found->list[i].matched_pages = matched;
}

static void offer_ends(struct found *found, uint32_t n, uint32_t matched, bool exact) {
    const struct store *store = found->store;
    for (uint32_t c = store->index.nodes[n].ends; c != NONE; c = store->conts[c].next_end) {
        const struct cont *cont = &store->conts[c];
        if (cont->claimed) continue;
        if (exact && (cont->frontier / KVD_PAGE_TOKENS != matched || !cont->tail_named)) continue;
        offer(found, cont, matched);
    }
}

/* Nothing below this node can improve a full list. */
static bool hopeless(const struct found *found, uint32_t n) {
    const struct store *store = found->store;
    if (found->n < found->max) return false;
    return found->level == found->max || !cont_is_better(&store->conts[store->index.nodes[n].best], cont_at(found, found->max - 1));
}

/* Everything at and below `top`, except below `skip`. */
static void offer_subtree(struct found *found, uint32_t top, uint32_t skip, uint32_t matched) {
    const struct node *nodes = found->store->index.nodes;
    uint32_t n = top;
    for (;;) {
        bool enter = n != skip && !hopeless(found, n);
        if (enter) offer_ends(found, n, matched, false);
        if (enter && nodes[n].first_child != NONE) {
            n = nodes[n].first_child;
            continue;
        }
        while (n != top && nodes[n].next == NONE) n = nodes[n].parent;
        if (n == top) return;
        n = nodes[n].next;
    }
}

/* The deepest node on the prompt's path; *ret_matched pages of it match (fewer than its end where the prompt leaves inside). */
static uint32_t walk_down(const struct store *store, const uint8_t (*digests)[32], uint32_t n_digests, uint32_t *ret_matched) {
    uint32_t n = 0, at = 0;
    while (at < n_digests && at == store->index.nodes[n].end) {
        uint32_t child = index_child(store, n, digests[at]);
        if (child == NONE) break;
        n = child;
        at = match_run(store, &store->index.nodes[n], digests, n_digests);
    }
    *ret_matched = at;
    return n;
}

static void fill(const struct store *store, struct store_candidate *candidate) {
    const struct cont *cont = cont_find(store, candidate->cont);
    candidate->frontier = cont->frontier;
    candidate->retention = cont->retention;
    candidate->exact_pages = cont->tail_named && cont->frontier / KVD_PAGE_TOKENS == candidate->matched_pages;
    if (candidate->exact_pages) candidate->tail = cont->tail;
}

uint32_t store_find(const struct store *store, const uint8_t (*digests)[32], uint32_t n, struct store_candidate *ret_candidates,
                    uint32_t max) {
    const struct node *nodes = store->index.nodes;
    struct found found = {store, ret_candidates, 0, max, 0};
    uint32_t matched, node = walk_down(store, digests, n, &matched), below = NONE;
    if (n == 0) offer_ends(&found, 0, 0, true);
    for (; nodes[node].parent != NONE && found.n < max; node = nodes[node].parent) {
        matched = min_u32(matched, nodes[node].end);
        found.level = found.n;
        if (!store->config.has_state) offer_subtree(&found, node, below, matched);
        else if (matched == nodes[node].end) offer_ends(&found, node, matched, true);
        below = node;
    }
    for (uint32_t i = 0; i < found.n; i++) fill(store, &ret_candidates[i]);
    return found.n;
}
