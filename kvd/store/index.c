/* SPDX-License-Identifier: Apache-2.0
 *
 * The index of names: a path-compressed radix tree over digests. A path begins with the root of its domain, so that a
 * name of any length, also one of less than a page, lies below its domain and is found only there (NAME-1).
 *
 * A node is a run of steps; no digest is stored twice: a node reads its run through some continuation at or below it,
 * whose domain and pages carry the digests. Children are found by a hash of (parent, first digest). Pages computed
 * twice carry equal digests and share a path; their continuations end on the same node. There are at most two nodes a
 * continuation, so a node is never short.
 */
#include "store_internal.h"

#include <string.h>

#define ROOT 0

void index_init(struct index *index) {
    memset(index->hash, 0xff, ((size_t)index->hash_mask + 1) * sizeof *index->hash);
    index->nodes[ROOT] = (struct node){ .parent = KVD_NONE,
                                        .first_child = KVD_NONE,
                                        .next = KVD_NONE,
                                        .prev = KVD_NONE,
                                        .some = KVD_NONE,
                                        .ends = KVD_NONE,
                                        .next_hash = KVD_NONE };
    index->head = KVD_NONE;
    index->fresh = index->used = 1;
}

const uint8_t *index_digest(const struct store *store, const struct cont *cont, uint32_t step) {
    if (step == 0) return store->domains.list[cont->domain].root.digest.bytes;
    return store->digests[space_entry(store, &cont->space[0], step - 1)];
}

static const uint8_t *node_digest(const struct store *store, const struct node *node, uint32_t step) {
    return index_digest(store, &store->conts[node->some], step);
}

/* ---- children by hash ---- */

static uint32_t index_bucket(const struct index *index, uint32_t parent, const uint8_t *digest) {
    uint64_t word[4], h = parent;
    memcpy(word, digest, sizeof word);
    for (int i = 0; i < 4; i++) {
        h = (h ^ word[i]) * UINT64_C(0x9E3779B97F4A7C15);
        h ^= h >> 32;
    }
    return (uint32_t)h & index->hash_mask;
}

uint32_t index_child(const struct store *store, uint32_t parent, const uint8_t *digest) {
    const struct index *index = &store->index;
    uint32_t n = index->hash[index_bucket(index, parent, digest)];
    while (n != KVD_NONE && (index->nodes[n].parent != parent ||
                             !digests_equal(node_digest(store, &index->nodes[n], index->nodes[n].begin), digest)))
        n = index->nodes[n].next_hash;
    return n;
}

/* Hangs a node under its parent: sibling list and hash. Its run and representative are set. */
static void link_node(struct store *store, uint32_t n) {
    struct index *index = &store->index;
    struct node *node = &index->nodes[n], *parent = &index->nodes[node->parent];
    uint32_t *bucket = &index->hash[index_bucket(index, node->parent, node_digest(store, node, node->begin))];
    node->next_hash = *bucket;
    *bucket = n;
    node->prev = KVD_NONE;
    node->next = parent->first_child;
    if (node->next != KVD_NONE) index->nodes[node->next].prev = n;
    parent->first_child = n;
}

static void unlink_node(struct store *store, uint32_t n) {
    struct index *index = &store->index;
    struct node *node = &index->nodes[n];
    uint32_t *link = &index->hash[index_bucket(index, node->parent, node_digest(store, node, node->begin))];
    while (*link != n) link = &index->nodes[*link].next_hash;
    *link = node->next_hash;
    if (node->prev != KVD_NONE) index->nodes[node->prev].next = node->next;
    else index->nodes[node->parent].first_child = node->next;
    if (node->next != KVD_NONE) index->nodes[node->next].prev = node->prev;
}

static uint32_t new_node(struct store *store, uint32_t parent, uint32_t begin, uint32_t end, uint32_t some) {
    struct index *index = &store->index;
    uint32_t n = index->head;
    if (n == KVD_NONE) n = index->fresh++;
    else index->head = index->nodes[n].next;
    index->used++;
    index->recounted += n < index->audited;
    index->nodes[n] = (struct node){ .parent = parent,
                                     .first_child = KVD_NONE,
                                     .next = KVD_NONE,
                                     .prev = KVD_NONE,
                                     .begin = begin,
                                     .end = end,
                                     .some = some,
                                     .ends = KVD_NONE,
                                     .next_hash = KVD_NONE };
    link_node(store, n);
    return n;
}

static void free_node(struct index *index, uint32_t n) {
    index->nodes[n].parent = KVD_NONE;
    index->nodes[n].next = index->head;
    index->head = n;
    index->used--;
    index->recounted -= n < index->audited;
}

/* ---- insert ---- */

/* Puts a node [begin, at) above the rest of this one. */
static uint32_t split_node(struct store *store, uint32_t n, uint32_t at) {
    struct node *node = &store->index.nodes[n];
    unlink_node(store, n);
    uint32_t upper = new_node(store, node->parent, node->begin, at, node->some);
    node->parent = upper;
    node->begin = at;
    link_node(store, n);
    return upper;
}

/* The node at which the steps [at, steps) of its path end, below a node that ends at `at`. */
static uint32_t make_path(struct store *store, const struct cont *cont, uint32_t n, uint32_t at, uint32_t steps) {
    struct node *nodes = store->index.nodes;
    uint32_t c = (uint32_t)(cont - store->conts);
    while (at < steps) {
        uint32_t child = index_child(store, n, index_digest(store, cont, at));
        if (child == KVD_NONE) return new_node(store, n, at, steps, c);
        uint32_t end = min_u32(nodes[child].end, steps);
        for (at++; at < end; at++) /* step by step: what stands in the tree was compared, whatever a digest claims */
            if (!digests_equal(index_digest(store, cont, at), node_digest(store, &nodes[child], at))) break;
        n = at < nodes[child].end ? split_node(store, child, at) : child;
    }
    return n;
}

/* Of the path that ends at n, the node at which so many steps (not 0) end. */
static uint32_t cut_path(struct store *store, uint32_t n, uint32_t steps) {
    const struct node *nodes = store->index.nodes;
    while (nodes[n].begin >= steps) n = nodes[n].parent;
    return nodes[n].end > steps ? split_node(store, n, steps) : n;
}

/* What is live is no victim of anybody: it has no turn. */
static void insert_end(struct store *store, struct cont *cont, uint32_t n) {
    end_insert(store, n, (uint32_t)(cont - store->conts));
    note_change(store, cont);
    if (!cont_is_live(cont)) order_insert(store, cont);
}

void index_insert(struct store *store, struct cont *cont) {
    insert_end(store, cont, make_path(store, cont, ROOT, 0, cont->named + 1));
}

void index_insert_near(struct store *store, struct cont *cont, const struct cont *near) {
    insert_end(store, cont, cut_path(store, near->node, cont->named + 1));
}

/* ---- remove ---- */

/* A node without ends and with one child is one run with it. */
static void merge_with_child(struct store *store, uint32_t n) {
    struct node *nodes = store->index.nodes;
    uint32_t child = nodes[n].first_child;
    unlink_node(store, child);
    unlink_node(store, n);
    nodes[child].parent = nodes[n].parent;
    nodes[child].begin = nodes[n].begin;
    free_node(&store->index, n);
    link_node(store, child);
}

/* Removes what nobody needs at n; returns the lowest node that stayed above. */
static uint32_t prune_node(struct store *store, uint32_t n) {
    struct node *nodes = store->index.nodes;
    if (n != ROOT && nodes[n].ends == KVD_NONE && nodes[n].first_child == KVD_NONE) {
        uint32_t parent = nodes[n].parent;
        unlink_node(store, n);
        free_node(&store->index, n);
        n = parent;
    }
    if (n == ROOT || nodes[n].ends != KVD_NONE || nodes[n].first_child == KVD_NONE ||
        nodes[nodes[n].first_child].next != KVD_NONE)
        return n;
    uint32_t parent = nodes[n].parent;
    merge_with_child(store, n);
    return parent;
}

/* c does not end at n or below it any more. */
static void leave_node(struct store *store, uint32_t n, uint32_t c) {
    struct node *nodes = store->index.nodes;
    for (n = prune_node(store, n); n != ROOT && nodes[n].some == c; n = nodes[n].parent)
        nodes[n].some = nodes[n].ends != KVD_NONE ? nodes[n].ends : nodes[nodes[n].first_child].some;
}

void index_drop(struct store *store, struct cont *cont) {
    uint32_t c = (uint32_t)(cont - store->conts), n = cont->node;
    if (!MUTANT(going_is_not_told)) note_change(store, cont);
    order_drop(store, cont);
    end_remove(store, c);
    leave_node(store, n, c);
}

/* ---- a name that changes its length ---- */

void index_grow(struct store *store, struct cont *cont, uint32_t named) {
    struct node *nodes = store->index.nodes;
    uint32_t c = (uint32_t)(cont - store->conts), n = cont->node;
    bool alone = nodes[n].ends == c && cont->end_left == KVD_NONE && cont->end_right == KVD_NONE;
    note_change(store, cont);
    if (alone && nodes[n].first_child == KVD_NONE) {
        cont->named = named;
        nodes[n].end = named + 1;
        return;
    }
    end_remove(store, c);
    uint32_t to = make_path(store, cont, n, nodes[n].end, named + 1);
    cont->named = named;
    end_insert(store, to, c);
    leave_node(store, n, c); /* what reads its digests through c must have c at the end of such nodes */
}

void index_shrink(struct store *store, struct cont *cont, uint32_t named) {
    uint32_t c = (uint32_t)(cont - store->conts), n = cont->node;
    note_change(store, cont);
    end_remove(store, c);
    uint32_t to = cut_path(store, n, named + 1);
    cont->named = named;
    end_insert(store, to, c);
    leave_node(store, n, c);
}
