/* SPDX-License-Identifier: Apache-2.0 */
#include "simulate.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Blocks by a number of their own, and for each the key by which it goes: the smallest key first. The heap holds stale
 * entries, too: one counts only while its key is its block's. */
struct cache {
    uint64_t n_ids, *ids;    /* sorted */
    uint64_t *key;           /* [n_ids]; 0: not in the cache */
    uint64_t n_uses, *next;  /* [n_uses]: when the block of a use is used again */
    uint32_t *block;         /* [n_uses] */
    uint64_t used, capacity; /* blocks */
    struct entry {
        uint64_t key;
        uint32_t block;
    } * heap; /* [n_uses] */
    uint64_t n_heap;
    uint32_t answer; /* the number of the next block of an answer; they come after those of prompts */
};

static int compare_ids(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static uint32_t number_of(const struct cache *c, uint64_t id) {
    const uint64_t *at = bsearch(&id, c->ids, c->n_ids, sizeof id, compare_ids);
    return (uint32_t)(at - c->ids);
}

static void number_blocks(struct cache *c, const struct trace *t) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        memcpy(c->ids + n, t->requests[i].blocks, t->requests[i].n_blocks * sizeof *c->ids);
        n += t->requests[i].n_blocks;
    }
    qsort(c->ids, n, sizeof *c->ids, compare_ids);
    for (uint64_t i = 0; i < n; i++)
        if (i == 0 || c->ids[i] != c->ids[c->n_ids - 1]) c->ids[c->n_ids++] = c->ids[i];
    n = 0;
    for (uint32_t i = 0; i < t->n; i++)
        for (uint32_t b = 0; b < t->requests[i].n_blocks; b++) c->block[n++] = number_of(c, t->requests[i].blocks[b]);
}

/* What does not fit is not served: it is no use of its blocks either. */
static bool is_served(const struct trace_request *r, uint64_t pool_tokens) {
    return (uint64_t)r->prompt_tokens + r->output_tokens + 64 <= pool_tokens;
}

/* The request in which each use's block is used next; UINT32_MAX: never. */
static void find_next(struct cache *c, const struct trace *t, uint64_t pool_tokens) {
    for (uint64_t i = 0; i < c->n_ids; i++) c->key[i] = UINT32_MAX;
    uint64_t at = c->n_uses;
    for (uint32_t i = t->n; i-- > 0;)
        for (uint32_t b = t->requests[i].n_blocks; b-- > 0;) {
            at--;
            c->next[at] = c->key[c->block[at]];
            if (is_served(&t->requests[i], pool_tokens)) c->key[c->block[at]] = i;
        }
    memset(c->key, 0, c->n_ids * sizeof *c->key);
}

static void push_entry(struct cache *c, struct entry e) {
    uint64_t at = c->n_heap++;
    for (; at && c->heap[(at - 1) / 2].key > e.key; at = (at - 1) / 2) c->heap[at] = c->heap[(at - 1) / 2];
    c->heap[at] = e;
}

static struct entry pop_entry(struct cache *c) {
    struct entry top = c->heap[0], last = c->heap[--c->n_heap];
    uint64_t at = 0;
    for (uint64_t down; (down = 2 * at + 1) < c->n_heap; at = down) {
        if (down + 1 < c->n_heap && c->heap[down + 1].key < c->heap[down].key) down++;
        if (c->heap[down].key >= last.key) break;
        c->heap[at] = c->heap[down];
    }
    c->heap[at] = last;
    return top;
}

static void make_room(struct cache *c) {
    while (c->used > c->capacity && c->n_heap) {
        struct entry e = pop_entry(c);
        if (c->key[e.block] != e.key) continue;
        c->key[e.block] = 0;
        c->used--;
    }
}

/* The head of a prompt goes after its tail: keys rise towards it. */
static void serve_request(struct cache *c, const struct trace_request *r, uint32_t i, uint64_t first_use,
                          uint32_t block_tokens, enum simulate_order order) {
    for (uint32_t b = r->n_blocks; b-- > 0;) {
        uint64_t depth = b < 0xffffff ? 0xffffff - b : 0;
        uint64_t when =
            order != SIMULATE_NEXT_USE ? i + UINT64_C(1) : UINT32_MAX - c->next[first_use + b] + UINT64_C(1);
        struct entry e = { when << 24 | depth, c->block[first_use + b] };
        c->used += c->key[e.block] == 0;
        c->key[e.block] = e.key;
        push_entry(c, e);
    }
    for (uint32_t n = order == SIMULATE_LRU_ANSWERS ? r->output_tokens / block_tokens + 1 : 0; n > 0; n--) {
        struct entry e = { (i + UINT64_C(1)) << 24, c->answer++ };
        c->used++;
        c->key[e.block] = e.key;
        push_entry(c, e);
    }
    make_room(c);
}

static uint64_t hit_tokens(const struct cache *c, const struct trace *t, const struct trace_request *r,
                           uint64_t first_use) {
    uint64_t tokens = 0;
    for (uint32_t b = 0; b < r->n_blocks && c->key[c->block[first_use + b]]; b++) {
        if ((uint64_t)(b + 1) * t->block_tokens > r->prompt_tokens - 1) break;
        tokens += t->block_tokens;
    }
    return tokens;
}

int simulate_blocks(const struct trace *t, uint64_t pool_tokens, uint64_t cache_tokens, enum simulate_order order,
                    struct simulated *ret) {
    struct cache c = { .capacity = cache_tokens / t->block_tokens };
    uint64_t answers = 0;
    ret->hit_tokens = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        c.n_uses += t->requests[i].n_blocks;
        answers += t->requests[i].output_tokens / t->block_tokens + 1;
    }
    c.ids = malloc((c.n_uses + 1) * sizeof *c.ids);
    c.key = calloc(c.n_uses + answers + 1, sizeof *c.key);
    c.next = malloc((c.n_uses + 1) * sizeof *c.next);
    c.block = malloc((c.n_uses + 1) * sizeof *c.block);
    c.heap = malloc((c.n_uses + answers + 1) * sizeof *c.heap);
    bool fine = c.ids && c.key && c.next && c.block && c.heap;
    if (fine) {
        number_blocks(&c, t);
        find_next(&c, t, pool_tokens);
        c.answer = (uint32_t)c.n_ids;
    }
    uint64_t use = 0;
    for (uint32_t i = 0; fine && i < t->n; use += t->requests[i++].n_blocks) {
        const struct trace_request *r = &t->requests[i];
        if (!is_served(r, pool_tokens)) continue;
        ret->hit_tokens += hit_tokens(&c, t, r, use);
        serve_request(&c, r, i, use, t->block_tokens, order);
    }
    free(c.ids);
    free(c.key);
    free(c.next);
    free(c.block);
    free(c.heap);
    return !fine;
}
