/* SPDX-License-Identifier: Apache-2.0
 *
 * Lookup (CONT-2, NAME-1, NAME-2): which continuations a prompt may start from, and at which token. Walks the tree of
 * names from the domain down to where the prompt leaves it, then collects from there upwards: what matches furthest
 * first. A long prompt is looked up in parts, each from the node where the part before it ended, so that a part costs
 * its branches and not the depth at which it begins.
 *
 * Between page boundaries tokens decide: those of the tails against those of one page of the prompt. Another page's
 * tails are told to the caller, who asks again with its tokens.
 */
#include "store_internal.h"

#include <string.h>

/* The prompt as far as it was sent: step 0 is its root, step i + 1 its page i, of which [first, end) are known. */
struct path {
    const struct store_query *query;
    uint32_t first, end;
};

struct found {
    const struct store *store;
    const struct store_query *query;
    struct kvd_hit *list;
    uint32_t n, limit; /* limit: tokens that can be of use */
    uint32_t want_page;
};

static const uint8_t *path_digest(const struct path *path, uint32_t step) {
    return step == 0 ? path->query->root.bytes : path->query->digests[step - path->first];
}

static bool step_matches(const struct store *store, const struct cont *cont, const struct path *path, uint32_t step) {
    return digests_equal(index_digest(store, cont, step), path_digest(path, step));
}

/* Steps below `low`, which is inside the run, match. A chain digest commits to all before it: the last equal one in the
 * run decides, so bisect. */
static uint32_t match_run(const struct store *store, const struct node *node, const struct path *path, uint32_t low) {
    const struct cont *cont = &store->conts[node->some];
    uint32_t high = min_u32(node->end, path->end);
    if (step_matches(store, cont, path, high - 1)) return high;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (step_matches(store, cont, path, mid)) low = mid + 1;
        else high = mid;
    }
    return low;
}

/* ---- hits ---- */

static bool is_full(const struct found *found) { return found->n == found->query->max; }

/* usable: tokens that it has in common with the prompt. */
static void offer_hit(struct found *found, const struct cont *cont, uint64_t usable) {
    usable = min_u64(usable, found->limit);
    if (cont_is_live(cont) && !MUTANT(live_one_is_cut)) usable -= usable % KVD_PAGE_TOKENS;
    if (is_full(found) || cont->claimed || usable == 0) return;
    if (found->store->config.has_state && usable != cont->frontier) return; /* CONT-4 */
    if (!windows_hold(found->store, cont->space, (uint32_t)usable) && !MUTANT(offered_behind_a_window))
        return; /* GRP-4 */
    struct kvd_hit *hit = &found->list[found->n++];
    *hit = (struct kvd_hit){ .continuation.bits = cont_handle(found->store, cont).bits,
                             .usable = (uint32_t)usable,
                             .frontier = cont->frontier,
                             .retention = cont->retention,
                             .live = cont_is_live(cont) };
    for (uint32_t p = 0; p < found->store->n_pools; p++)
        hit->restore_pages += tier_missing(found->store, p, &cont->space[p], pages_of(usable));
}

static bool hit_is_better(const struct kvd_hit *a, const struct kvd_hit *b) {
    if (a->usable != b->usable) return a->usable > b->usable;
    if (a->restore_pages != b->restore_pages && !MUTANT(equal_hits_by_frontier))
        return a->restore_pages < b->restore_pages;
    if (a->live != b->live) return b->live;
    return a->frontier < b->frontier; /* the one that ends sooner holds less that is of no use here */
}

static void sort_hits(struct kvd_hit *list, uint32_t n) {
    for (uint32_t i = 1; i < n; i++) {
        struct kvd_hit hit = list[i];
        uint32_t at = i;
        for (; at > 0 && hit_is_better(&hit, &list[at - 1]); at--) list[at] = list[at - 1];
        list[at] = hit;
    }
}

/* ---- the ends of one node, whose pages all match ---- */

struct tail_query {
    uint32_t node, page;    /* page: number of pages that match */
    const uint32_t *tokens; /* the prompt's after them, as far as they are known */
    uint32_t n;
};

/* Those whose tail is exactly the first n tokens. Returns how many tokens the next shorter one shares with these;
 * KVD_NONE: there is none. */
static uint32_t offer_exact(struct found *found, const struct tail_query *tail, uint32_t n) {
    const struct store *store = found->store;
    uint32_t before, c = end_seek(store, tail->node, tail->tokens, n, &before);
    for (; c != KVD_NONE && !is_full(found) && end_tokens(&store->conts[c]) == n &&
           end_common(&store->conts[c], tail->tokens, n) == n;
         c = end_next(store, c))
        if (cont_is_whole(&store->conts[c]) || !store->config.has_state)
            offer_hit(found, &store->conts[c], (uint64_t)tail->page * KVD_PAGE_TOKENS + n);
    return before == KVD_NONE ? KVD_NONE : end_common(&store->conts[before], tail->tokens, n);
}

/* With state: each of a length that the tails have, the longest first. At most as many as a page has tokens. */
static void offer_whole(struct found *found, const struct tail_query *tail) {
    uint32_t n = tail->n;
    while (n != KVD_NONE && !is_full(found)) n = offer_exact(found, tail, n);
}

/* Outwards from the place of the prompt's tokens: what has most in common first, and of those first what ends there. */
static void offer_nearest(struct found *found, const struct tail_query *tail) {
    const struct store *store = found->store;
    uint32_t left, right = end_seek(store, tail->node, tail->tokens, tail->n, &left), level = KVD_NONE;
    while ((left != KVD_NONE || right != KVD_NONE) && !is_full(found)) {
        uint32_t a = left == KVD_NONE ? 0 : end_common(&store->conts[left], tail->tokens, tail->n);
        uint32_t b = right == KVD_NONE ? 0 : end_common(&store->conts[right], tail->tokens, tail->n);
        bool go_left = right == KVD_NONE || (left != KVD_NONE && a >= b);
        uint32_t c = go_left ? left : right, common = go_left ? a : b;
        if (common == 0 && tail->page == 0) return;
        if (common != level) (void)offer_exact(found, tail, level = common);
        if (end_tokens(&store->conts[c]) != common)
            offer_hit(found, &store->conts[c], (uint64_t)tail->page * KVD_PAGE_TOKENS + common);
        if (go_left) left = end_previous(store, left);
        else right = end_next(store, right);
    }
}

/* Tails of a page whose tokens were not sent: asked for, if those of the pages behind it were looked at before. */
static void offer_ends(struct found *found, uint32_t node, uint32_t page, bool ask) {
    const struct store_query *query = found->query;
    struct tail_query tail = { node, page, NULL, 0 };
    if (query->token_page == page && query->tokens) {
        tail.tokens = query->tokens->tokens;
        tail.n = min_u32(query->tokens->n, KVD_TAIL_TOKENS);
    } else if (ask && page < query->token_page && found->want_page == KVD_NONE && end_has_tail(found->store, node)) {
        found->want_page = page;
    }
    if (found->store->config.has_state) offer_whole(found, &tail);
    else offer_nearest(found, &tail);
}

/* ---- the tree ---- */

/* GRP-4: a continuation of `longer` pages or more may hold what is read from the end of `page` pages on. */
static bool may_hold(const struct store *store, uint32_t longer, uint32_t page) {
    for (uint32_t p = 0; p < store->n_pools && store->has_windows && !MUTANT(offered_behind_a_window); p++)
        if (window_first(store, p, longer * KVD_PAGE_TOKENS) > window_first(store, p, page * KVD_PAGE_TOKENS))
            return false;
    return true;
}

/* Everything at and below `top`: the pages that match are of use, whatever follows, but for windows that begin later.
 */
static void offer_subtree(struct found *found, uint32_t top, uint32_t page) {
    const struct store *store = found->store;
    const struct node *nodes = store->index.nodes;
    for (uint32_t n = top; !is_full(found) && page > 0;) {
        bool near = may_hold(store, nodes[n].end - 1, page);
        uint32_t c = near ? end_seek(store, n, NULL, 0, NULL) : KVD_NONE;
        for (; c != KVD_NONE && !is_full(found); c = end_next(store, c))
            offer_hit(found, &store->conts[c], (uint64_t)page * KVD_PAGE_TOKENS);
        if (near && nodes[n].first_child != KVD_NONE) {
            n = nodes[n].first_child;
            continue;
        }
        while (n != top && nodes[n].next == KVD_NONE) n = nodes[n].parent;
        if (n == top) return;
        n = nodes[n].next;
    }
}

/* Children of a node whose pages all match, but for the one that the prompt goes on with. */
static void offer_children(struct found *found, uint32_t n, uint32_t skip, uint32_t page) {
    const struct node *nodes = found->store->index.nodes;
    for (uint32_t c = nodes[n].first_child; c != KVD_NONE && !is_full(found) && page > 0; c = nodes[c].next)
        if (c != skip) offer_subtree(found, c, page);
}

/* Where the path begins: at the root, or at the anchor's node of page `first`, from the end of its names upwards. */
static int find_start(const struct store *store, const struct path *path, uint32_t *ret_node, uint32_t *ret_matched,
                      struct store_refusal *refusal) {
    const struct node *nodes = store->index.nodes;
    store_cont anchor = path->query->anchor;
    const struct cont *cont = cont_find(store, anchor);
    uint32_t n = 0;
    *ret_node = *ret_matched = 0;
    if (path->query->first == 0) return STORE_OK;
    if (!cont || !cont->published || path->query->first >= cont->named)
        return store_refuse(refusal, STORE_E_STALE, STORE_S_CONTINUATION, KVD_NONE, anchor.bits, 0, 0);
    if (!step_matches(store, cont, path, 0) || !step_matches(store, cont, path, path->first))
        return store_refuse(refusal, STORE_E_NAME, STORE_S_DIGEST, 0, path->query->first, cont->named,
                            cont->frontier / KVD_PAGE_TOKENS);
    for (n = cont->node; nodes[n].begin > path->first;) n = nodes[n].parent;
    *ret_node = n;
    *ret_matched = match_run(store, &nodes[n], path, path->first + 1);
    return STORE_OK;
}

/* From a node on the prompt's path, of which *matched steps match, to the deepest one; there *matched is less than the
 * node's end where the prompt leaves inside. */
static uint32_t walk_down(const struct store *store, const struct path *path, uint32_t n, uint32_t *matched) {
    const struct node *nodes = store->index.nodes;
    while (*matched < path->end && *matched == nodes[n].end) {
        uint32_t child = index_child(store, n, path_digest(path, *matched));
        if (n == 0 && MUTANT(any_domain_is_found)) child = nodes[n].first_child;
        if (child == KVD_NONE) break;
        n = child;
        *matched = match_run(store, &nodes[n], path, nodes[n].begin + 1); /* the child was found by its first step */
    }
    return n;
}

/* From the deepest node up, as long as more than `floor` steps match. */
static void collect_matches(struct found *found, uint32_t node, uint32_t matched, uint32_t floor) {
    const struct store *store = found->store;
    const struct node *nodes = store->index.nodes;
    for (uint32_t below = KVD_NONE; nodes[node].parent != KVD_NONE && !is_full(found); node = nodes[node].parent) {
        matched = min_u32(matched, nodes[node].end);
        if (matched <= floor) return;
        /* Where any frontier may be started from, a shallower tail is worth less than the pages that match already. */
        bool ask = below == KVD_NONE || store->config.has_state ||
                   (store->has_windows && !MUTANT(shallower_tail_is_not_asked_for));
        bool whole = matched == nodes[node].end;
        if (whole) offer_ends(found, node, matched - 1, ask);
        if (whole && !store->config.has_state) offer_children(found, node, below, matched - 1);
        if (!whole && !store->config.has_state) offer_subtree(found, node, matched - 1);
        below = node;
    }
}

int store_find(const struct store *store, const struct store_query *query, struct kvd_hit *ret_hits,
               struct store_found *ret_found, struct store_refusal *refusal) {
    if ((uint64_t)query->first + query->n >= UINT32_MAX - 1 || (query->first > 0 && query->n == 0))
        return store_refuse(refusal, STORE_E_ARGUMENT, STORE_S_DIGEST, KVD_NONE, query->n, query->first, UINT32_MAX);
    const struct path path = { query, query->first + 1, query->first + query->n + 1 };
    uint32_t limit = query->prompt_tokens ? query->prompt_tokens - 1 : 0; /* one query must be computed */
    struct found found = { store, query, ret_hits, 0, limit, KVD_NONE };
    uint32_t node, matched;
    int rc = find_start(store, &path, &node, &matched, refusal);
    if (rc) return rc;
    node = walk_down(store, &path, node, &matched);
    collect_matches(&found, node, matched, query->first > 0 ? query->first + 2 : 0);
    sort_hits(ret_hits, found.n);
    const struct node *last = &store->index.nodes[node];
    bool goes_on = query->n > 0 && matched == path.end && (matched < last->end || last->first_child != KVD_NONE);
    *ret_found = (struct store_found){ .n = found.n, .want_page = found.want_page };
    if (goes_on) ret_found->anchor = cont_handle(store, &store->conts[last->some]);
    return STORE_OK;
}
