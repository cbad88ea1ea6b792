/* SPDX-License-Identifier: Apache-2.0
 *
 * The order in which published continuations go: the lowest retention first, of one retention the least recently used.
 * Two search trees, of those that ask for a place on the device and of the demoted ones, with random ranks as heaps
 * (treaps): every step takes O(log n), whatever clients do, and a walk from the front O(1) a continuation.
 */
#include "store_internal.h"

int store_compare_value(uint32_t retention, uint64_t used, uint32_t than_retention, uint64_t than_used) {
    if (retention != than_retention && !MUTANT(retention_is_ignored)) return retention < than_retention ? -1 : 1;
    if (used == than_used) return 0;
    return (used < than_used) != MUTANT(newest_goes_first) ? -1 : 1;
}

static bool goes_before(const struct store *store, uint32_t a, uint32_t b) {
    const struct cont *x = &store->conts[a], *y = &store->conts[b];
    int value = store_compare_value(x->retention, x->used, y->retention, y->used);
    return value ? value < 0 : a < b;
}

static uint32_t *root_of(struct store *store, const struct cont *cont) { return &store->order[cont->demoted]; }

/* Where the tree points to it. */
static uint32_t *link_to(struct store *store, uint32_t at) {
    const struct cont *cont = &store->conts[at];
    if (cont->order_up == KVD_NONE) return root_of(store, cont);
    struct cont *up = &store->conts[cont->order_up];
    return up->order_left == at ? &up->order_left : &up->order_right;
}

/* It goes up in its parent's place. */
static void rotate_up(struct store *store, uint32_t at) {
    struct cont *cont = &store->conts[at];
    uint32_t up = cont->order_up;
    struct cont *parent = &store->conts[up];
    bool left = parent->order_left == at;
    uint32_t *link = link_to(store, up), moved = left ? cont->order_right : cont->order_left;
    *link = at;
    cont->order_up = parent->order_up;
    *(left ? &parent->order_left : &parent->order_right) = moved;
    *(left ? &cont->order_right : &cont->order_left) = up;
    if (moved != KVD_NONE) store->conts[moved].order_up = up;
    parent->order_up = at;
}

/* Another number at every insertion, so that nobody can shape the tree by a choice of slots. */
static uint64_t next_rank(struct store *store) {
    uint64_t z = store->order_ranks += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

void order_insert(struct store *store, struct cont *cont) {
    uint32_t at = (uint32_t)(cont - store->conts), *link = root_of(store, cont);
    cont_touch(store, cont);
    cont->order_up = cont->order_left = cont->order_right = KVD_NONE;
    cont->order_rank = next_rank(store);
    cont->ordered = true;
    while (*link != KVD_NONE) {
        cont->order_up = *link;
        struct cont *up = &store->conts[*link];
        link = goes_before(store, at, *link) ? &up->order_left : &up->order_right;
    }
    *link = at;
    while (cont->order_up != KVD_NONE && store->conts[cont->order_up].order_rank < cont->order_rank)
        rotate_up(store, at);
}

void order_drop(struct store *store, struct cont *cont) {
    uint32_t at = (uint32_t)(cont - store->conts);
    if (!cont->ordered) return;
    cont_touch(store, cont);
    while (cont->order_left != KVD_NONE && cont->order_right != KVD_NONE) {
        bool left = store->conts[cont->order_left].order_rank > store->conts[cont->order_right].order_rank;
        rotate_up(store, left ? cont->order_left : cont->order_right);
    }
    uint32_t below = cont->order_left != KVD_NONE ? cont->order_left : cont->order_right;
    *link_to(store, at) = below;
    if (below != KVD_NONE) store->conts[below].order_up = cont->order_up;
    cont->ordered = false;
}

static uint32_t leftmost(const struct store *store, uint32_t at) {
    while (at != KVD_NONE && store->conts[at].order_left != KVD_NONE) at = store->conts[at].order_left;
    return at;
}

uint32_t order_first(const struct store *store, bool demoted) { return leftmost(store, store->order[demoted]); }

uint32_t order_next(const struct store *store, uint32_t at) {
    if (store->conts[at].order_right != KVD_NONE) return leftmost(store, store->conts[at].order_right);
    uint32_t up = store->conts[at].order_up;
    while (up != KVD_NONE && store->conts[up].order_right == at) {
        at = up;
        up = store->conts[at].order_up;
    }
    return up;
}

bool order_is_found(const struct store *store, uint32_t at) {
    uint32_t n = store->order[store->conts[at].demoted], steps = 0;
    while (n != KVD_NONE && n != at && steps++ < store->config.max_continuations)
        n = goes_before(store, at, n) ? store->conts[n].order_left : store->conts[n].order_right;
    return n == at;
}

/* Of two walks, the place of the one that goes first, at the front: KVD_NONE is last. */
bool order_is_first(const struct store *store, uint32_t a, uint32_t b) {
    return b == KVD_NONE || (a != KVD_NONE && goes_before(store, a, b));
}
