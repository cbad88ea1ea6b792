/* SPDX-License-Identifier: Apache-2.0
 *
 * The continuations that end at one node of the index, ordered by the tokens of their tails: a treap in their records.
 * What shares most with a prompt stands beside the place that the prompt's own tokens would have, so that a lookup
 * costs O(log n) however many chats follow one system prompt (NAME-2).
 */
#include "store_internal.h"

#include <string.h>

bool cont_is_whole(const struct cont *cont) {
    return cont->tail_named && cont->named == cont->frontier / KVD_PAGE_TOKENS;
}

uint32_t end_tokens(const struct cont *cont) { return cont_is_whole(cont) ? cont->tail.n : 0; }

uint32_t end_common(const struct cont *cont, const uint32_t *tokens, uint32_t n) {
    uint32_t i = 0;
    for (n = min_u32(n, end_tokens(cont)); i < n && cont->tail.tokens[i] == tokens[i];) i++;
    return i;
}

/* < 0: the end comes before these tokens. */
static int compare_end(const struct cont *cont, const uint32_t *tokens, uint32_t n) {
    uint32_t own = end_tokens(cont), i = end_common(cont, tokens, n);
    if (i < own && i < n && !MUTANT(tail_ends_are_unordered)) return cont->tail.tokens[i] < tokens[i] ? -1 : 1;
    return own < n ? -1 : own > n;
}

/* Mixed, so that no order of arrival makes a deep tree. */
static uint32_t end_priority(uint32_t c) {
    c = (c ^ c >> 16) * 0x85EBCA6Bu;
    c = (c ^ c >> 13) * 0xC2B2AE35u;
    return c ^ c >> 16;
}

/* Of the same tokens. What is live comes last: the others can do more. */
static bool is_first(const struct cont *conts, uint32_t a, uint32_t b) {
    return cont_is_live(&conts[a]) != cont_is_live(&conts[b]) ? cont_is_live(&conts[b]) : a < b;
}

/* What points at c: its parent, or the node. */
static uint32_t *end_link(struct store *store, uint32_t c) {
    struct cont *conts = store->conts;
    uint32_t up = conts[c].end_up;
    if (up == KVD_NONE) return &store->index.nodes[conts[c].node].ends;
    return conts[up].end_left == c ? &conts[up].end_left : &conts[up].end_right;
}

/* c goes above its parent. */
static void rotate_up(struct store *store, uint32_t c) {
    struct cont *conts = store->conts;
    uint32_t up = conts[c].end_up;
    bool left = conts[up].end_left == c;
    uint32_t *inner = left ? &conts[c].end_right : &conts[c].end_left;
    *end_link(store, up) = c;
    conts[c].end_up = conts[up].end_up;
    *(left ? &conts[up].end_left : &conts[up].end_right) = *inner;
    if (*inner != KVD_NONE) conts[*inner].end_up = up;
    *inner = up;
    conts[up].end_up = c;
}

void end_insert(struct store *store, uint32_t node, uint32_t c) {
    struct cont *conts = store->conts, *cont = &conts[c];
    uint32_t *link = &store->index.nodes[node].ends, up = KVD_NONE;
    while (*link != KVD_NONE) {
        int order = compare_end(&conts[*link], cont->tail.tokens, end_tokens(cont));
        up = *link;
        link = order > 0 || (order == 0 && is_first(conts, c, up)) ? &conts[up].end_left : &conts[up].end_right;
    }
    *link = c;
    cont->node = node;
    cont->end_up = up;
    cont->end_left = cont->end_right = KVD_NONE;
    while (cont->end_up != KVD_NONE && end_priority(cont->end_up) < end_priority(c)) rotate_up(store, c);
}

void end_remove(struct store *store, uint32_t c) {
    struct cont *conts = store->conts, *cont = &conts[c];
    while (cont->end_left != KVD_NONE && cont->end_right != KVD_NONE) {
        bool left = end_priority(cont->end_left) > end_priority(cont->end_right);
        rotate_up(store, left ? cont->end_left : cont->end_right);
    }
    uint32_t child = cont->end_left != KVD_NONE ? cont->end_left : cont->end_right;
    *end_link(store, c) = child;
    if (child != KVD_NONE) conts[child].end_up = cont->end_up;
    cont->node = cont->end_up = cont->end_left = cont->end_right = KVD_NONE;
}

/* The next one to a side: the nearest in the subtree there, else the first ancestor on whose other side c lies. */
static uint32_t neighbour(const struct store *store, uint32_t c, bool right) {
    const struct cont *conts = store->conts;
    uint32_t n = right ? conts[c].end_right : conts[c].end_left, next;
    if (n == KVD_NONE) {
        for (n = c; (next = conts[n].end_up) != KVD_NONE; n = next)
            if ((right ? conts[next].end_left : conts[next].end_right) == n) return next;
        return KVD_NONE;
    }
    while ((next = right ? conts[n].end_left : conts[n].end_right) != KVD_NONE) n = next;
    return n;
}

uint32_t end_next(const struct store *store, uint32_t c) { return neighbour(store, c, true); }
uint32_t end_previous(const struct store *store, uint32_t c) { return neighbour(store, c, false); }

uint32_t end_seek(const struct store *store, uint32_t node, const uint32_t *tokens, uint32_t n, uint32_t *ret_before) {
    const struct cont *conts = store->conts;
    uint32_t c = store->index.nodes[node].ends, found = KVD_NONE, before = KVD_NONE;
    while (c != KVD_NONE) {
        bool is_before = compare_end(&conts[c], tokens, n) < 0;
        *(is_before ? &before : &found) = c;
        c = is_before ? conts[c].end_right : conts[c].end_left;
    }
    if (ret_before) *ret_before = before;
    return found;
}

bool end_is_found(const struct store *store, uint32_t c) {
    const struct cont *conts = store->conts;
    uint32_t n = store->index.nodes[conts[c].node].ends, steps = 0;
    while (n != KVD_NONE && n != c && steps++ < store->config.max_continuations) {
        int order = compare_end(&conts[n], conts[c].tail.tokens, end_tokens(&conts[c]));
        n = order > 0 || (order == 0 && is_first(conts, c, n)) ? conts[n].end_left : conts[n].end_right;
    }
    return n == c;
}

bool end_has_tail(const struct store *store, uint32_t node) {
    uint32_t c = store->index.nodes[node].ends, next;
    while (c != KVD_NONE && (next = store->conts[c].end_right) != KVD_NONE) c = next;
    return c != KVD_NONE && end_tokens(&store->conts[c]) > 0; /* the last in order has the first token, if any has */
}
