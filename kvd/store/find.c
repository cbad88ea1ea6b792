/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookup (CONT-2): which continuations begin like this prompt. Walks the tree of names down to where the prompt leaves
 * it, then collects from there upwards: what lies below the deepest match first. A long prompt is looked up in parts,
 * each from the node where the part before it ended, so that a part costs its branches and not the depth at which it
 * begins.
 */
#include "store_internal.h"

#include <string.h>

struct found {
    const struct store *store;
    struct kvd_candidate *list;
    uint32_t n, max, level; /* list[level..n) have the same depth of match and are kept in order */
};

/* The prompt's chain as far as it was sent: pages [first, end). */
struct path {
    const uint8_t (*digests)[32];
    uint32_t first, end;
};

static bool page_matches(const struct store *store, const struct cont *cont, const struct path *path, uint32_t page) {
    return memcmp(index_digest(store, cont, page), path->digests[page - path->first], 32) == 0;
}

/* Pages below `low`, which is inside the run, match. A chain digest commits to all before it: the last equal one in the
 * run decides, so bisect. */
static uint32_t match_run(const struct store *store, const struct node *node, const struct path *path, uint32_t low) {
    const struct cont *cont = &store->conts[node->best];
    uint32_t high = min_u32(node->end, path->end);
    if (page_matches(store, cont, path, high - 1)) return high;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (page_matches(store, cont, path, mid)) low = mid + 1;
        else high = mid;
    }
    return low;
}

static const struct cont *cont_at(const struct found *found, uint32_t i) {
    return cont_find(found->store, store_cont_of(found->list[i].continuation));
}

static void offer_candidate(struct found *found, const struct cont *cont, uint32_t matched) {
    uint32_t i = found->n;
    if (found->n == found->max) {
        if (found->level == found->max || !cont_is_better(cont, cont_at(found, found->max - 1))) return;
        i--;
    } else {
        found->n++;
    }
    for (; i > found->level && cont_is_better(cont, cont_at(found, i - 1)); i--) found->list[i] = found->list[i - 1];
    memset(&found->list[i], 0, sizeof found->list[i]);
    found->list[i].continuation.bits = cont_handle(found->store, cont).bits;
    found->list[i].matched_pages = matched;
}

static void offer_ends(struct found *found, uint32_t n, uint32_t matched, bool exact) {
    const struct store *store = found->store;
    for (uint32_t c = store->index.nodes[n].ends; c != KVD_NONE; c = store->conts[c].next_end) {
        const struct cont *cont = &store->conts[c];
        if (cont->claimed) continue;
        if (exact && (cont->frontier / KVD_PAGE_TOKENS != matched || !cont->tail_named)) continue;
        offer_candidate(found, cont, matched);
    }
}

/* Nothing below this node can improve a full list. */
static bool cannot_improve(const struct found *found, uint32_t n) {
    const struct store *store = found->store;
    if (found->n < found->max) return false;
    return found->level == found->max ||
           !cont_is_better(&store->conts[store->index.nodes[n].best], cont_at(found, found->max - 1));
}

/* Everything at and below `top`, except below `skip`. */
static void offer_subtree(struct found *found, uint32_t top, uint32_t skip, uint32_t matched) {
    const struct node *nodes = found->store->index.nodes;
    uint32_t n = top;
    for (;;) {
        bool enter = n != skip && !cannot_improve(found, n);
        if (enter) offer_ends(found, n, matched, false);
        if (enter && nodes[n].first_child != KVD_NONE) {
            n = nodes[n].first_child;
            continue;
        }
        while (n != top && nodes[n].next == KVD_NONE) n = nodes[n].parent;
        if (n == top) return;
        n = nodes[n].next;
    }
}

/* Where the path begins: at the root, or at the anchor's node of page `first`, from the end of its names upwards. */
static int find_start(const struct store *store, const struct path *path, store_cont anchor, uint32_t *ret_node,
                      uint32_t *ret_matched, struct store_refusal *refusal) {
    const struct node *nodes = store->index.nodes;
    const struct cont *cont = cont_find(store, anchor);
    uint32_t n = 0;
    if (path->first > 0) {
        if (!cont || !cont->published || path->first >= cont->named)
            return store_refuse(refusal, STORE_E_STALE, STORE_S_CONTINUATION, KVD_NONE, anchor.bits, 0, 0);
        if (!page_matches(store, cont, path, path->first))
            return store_refuse(refusal, STORE_E_NAME, STORE_S_DIGEST, 0, path->first, cont->named,
                                cont->frontier / KVD_PAGE_TOKENS);
        for (n = cont->node; nodes[n].begin > path->first;) n = nodes[n].parent;
    }
    *ret_node = n;
    *ret_matched = path->first > 0 ? match_run(store, &nodes[n], path, path->first + 1) : 0;
    return STORE_OK;
}

/* From a node on the prompt's path, of which *matched pages match, to the deepest one; there *matched is less than the
 * node's end where the prompt leaves inside. */
static uint32_t walk_down(const struct store *store, const struct path *path, uint32_t n, uint32_t *matched) {
    const struct node *nodes = store->index.nodes;
    while (*matched < path->end && *matched == nodes[n].end) {
        uint32_t child = index_child(store, n, path->digests[*matched - path->first]);
        if (child == KVD_NONE) break;
        n = child;
        *matched = match_run(store, &nodes[n], path, nodes[n].begin + 1); /* the child was found by its first page */
    }
    return n;
}

static void fill_candidate(const struct store *store, struct kvd_candidate *candidate) {
    const struct cont *cont = cont_find(store, store_cont_of(candidate->continuation));
    candidate->frontier = cont->frontier;
    candidate->retention = cont->retention;
    for (uint32_t p = 0; p < store->n_pools; p++)
        candidate->restore_pages += tier_missing(store, p, &cont->space[p], cont->space[p].count);
    candidate->exact_pages = cont->tail_named && cont->frontier / KVD_PAGE_TOKENS == candidate->matched_pages;
    if (candidate->exact_pages) candidate->tail = cont->tail;
}

/* From the deepest node up, as long as more than `floor` pages match. */
static void collect_matches(struct found *found, uint32_t node, uint32_t matched, uint32_t floor) {
    const struct store *store = found->store;
    const struct node *nodes = store->index.nodes;
    for (uint32_t below = KVD_NONE; nodes[node].parent != KVD_NONE && found->n < found->max;
         node = nodes[node].parent) {
        matched = min_u32(matched, nodes[node].end);
        if (matched <= floor) return;
        found->level = found->n;
        if (!store->config.has_state) offer_subtree(found, node, below, matched);
        else if (matched == nodes[node].end) offer_ends(found, node, matched, true);
        below = node;
    }
}

int store_find(const struct store *store, const struct store_query *query, struct kvd_candidate *ret_candidates,
               struct store_found *ret_found, struct store_refusal *refusal) {
    if (query->n > UINT32_MAX - query->first || (query->first > 0 && query->n == 0))
        return store_refuse(refusal, STORE_E_ARGUMENT, STORE_S_DIGEST, KVD_NONE, query->n, query->first, UINT32_MAX);
    const struct path path = { query->digests, query->first, query->first + query->n };
    struct found found = { store, ret_candidates, 0, query->max, 0 };
    uint32_t node, matched;
    int rc = find_start(store, &path, query->anchor, &node, &matched, refusal);
    if (rc) return rc;
    node = walk_down(store, &path, node, &matched);
    if (query->n == 0) offer_ends(&found, 0, 0, true);
    collect_matches(&found, node, matched, query->first > 0 ? query->first + 1 : 0);
    for (uint32_t i = 0; i < found.n; i++) fill_candidate(store, &ret_candidates[i]);
    const struct node *last = &store->index.nodes[node];
    bool goes_on = query->n > 0 && matched == path.end && (matched < last->end || last->first_child != KVD_NONE);
    ret_found->anchor = goes_on ? cont_handle(store, &store->conts[last->best]) : (store_cont){ 0 };
    ret_found->n = found.n;
    return STORE_OK;
}
