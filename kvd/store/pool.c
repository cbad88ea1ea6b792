/* SPDX-License-Identifier: Apache-2.0
 *
 * Free pages of a pool: which page is handed out, in time that does not follow the pool's size.
 *
 * A bitmap says which pages are free. Over blocks of 512 pages stands a binary tree whose nodes hold the free run at
 * their left end, at their right end, and the longest anywhere; a search for the first run of k pages walks one path
 * down, a change walks one path up and stops where nothing changed. Order of choice: directly
 * behind the page before, else the first run that is long enough, else the lowest runs upwards.
 */
#include "store_internal.h"

/* Longest run of ones: x keeps a bit where `n` ones follow each other; doubling, then halving steps. */
static uint32_t longest_in_word(uint64_t w) {
    uint64_t level[6];
    uint32_t top = 0, n;
    if (!w) return 0;
    level[0] = w;
    while (top < 5 && (level[top] & level[top] >> (1u << top))) {
        level[top + 1] = level[top] & level[top] >> (1u << top);
        top++;
    }
    n = 1u << top;
    for (uint64_t x = level[top]; top-- > 0;) {
        uint64_t longer = x & level[top] >> n; /* n ones, and 2^top more behind them */
        if (!longer) continue;
        x = longer;
        n += 1u << top;
    }
    return n;
}

struct free_run pool_block_run(const struct pool *pool, uint32_t block) {
    const uint64_t *words = pool->bitmap + (size_t)block * BLOCK_WORDS;
    struct free_run run = { 0, 0, 0 };
    uint32_t open = 0; /* free pages up to here */
    bool whole = true;
    for (uint32_t i = 0; i < BLOCK_WORDS; i++) {
        uint64_t w = words[i];
        if (w == UINT64_MAX) {
            open += 64;
            continue;
        }
        open += (uint32_t)__builtin_ctzll(~w);
        if (whole) run.prefix = open;
        whole = false;
        if (open > run.best) run.best = open;
        open = (uint32_t)__builtin_clzll(~w);
        if (w && run.best < 62) run.best = max_u32(run.best, longest_in_word(w));
    }
    if (whole) run.prefix = open;
    run.suffix = open;
    run.best = max_u32(run.best, open);
    return run;
}

struct free_run pool_join(struct free_run left, struct free_run right, uint32_t half) {
    struct free_run run = { left.prefix, right.suffix, max_u32(left.best, right.best) };
    if (left.prefix == half) run.prefix += right.prefix;
    if (right.suffix == half) run.suffix += left.suffix;
    run.best = max_u32(run.best, left.suffix + right.prefix);
    return run;
}

static bool same_run(struct free_run a, struct free_run b) {
    return a.prefix == b.prefix && a.suffix == b.suffix && a.best == b.best;
}

static void update_block(struct pool *pool, uint32_t block) {
    uint32_t node = pool->n_leaves + block, half = BLOCK_PAGES;
    struct free_run run = pool_block_run(pool, block);
    while (!same_run(pool->tree[node], run)) {
        pool->tree[node] = run;
        if (node == 1) break;
        node >>= 1;
        run = pool_join(pool->tree[2 * node], pool->tree[2 * node + 1], half);
        half *= 2;
    }
}

static void set_bits(struct pool *pool, uint32_t start, uint32_t n, bool free) {
    uint32_t at = start, end = start + n;
    while (at < end) {
        uint32_t in_word = min_u32(64 - at % 64, end - at);
        uint64_t mask = (in_word == 64 ? UINT64_MAX : (UINT64_C(1) << in_word) - 1) << at % 64;
        if (free) pool->bitmap[at / 64] |= mask;
        else pool->bitmap[at / 64] &= ~mask;
        at += in_word;
    }
    for (uint32_t block = start / BLOCK_PAGES; block <= (end - 1) / BLOCK_PAGES; block++) update_block(pool, block);
}

void pool_init(struct pool *pool) {
    uint32_t full = pool->capacity / 64, half = BLOCK_PAGES;
    for (uint32_t i = 0; i < full; i++) pool->bitmap[i] = UINT64_MAX;
    if (pool->capacity % 64) pool->bitmap[full] = (UINT64_C(1) << pool->capacity % 64) - 1;
    for (uint32_t i = 0; i < pool->capacity; i++) pool->leases[i] = (struct page_lease){ 1, KVD_NONE };
    for (uint32_t i = 0; i < pool->n_leaves; i++) pool->tree[pool->n_leaves + i] = pool_block_run(pool, i);
    for (uint32_t level = pool->n_leaves / 2; level > 0; level /= 2, half *= 2)
        for (uint32_t i = level; i < 2 * level; i++)
            pool->tree[i] = pool_join(pool->tree[2 * i], pool->tree[2 * i + 1], half);
    for (uint32_t i = 0; i < pool->descriptors; i++) {
        pool->pages[i] = (struct page){ .generation = 1, .device = KVD_NONE };
        if (i >= pool->capacity) {
            pool->pages[i].flags = PAGE_LISTED;
            pool->pages[i].mark = i + 1 < pool->descriptors ? i + 1 : KVD_NONE;
        }
    }
    pool->spare = pool->descriptors > pool->capacity ? pool->capacity : KVD_NONE;
}

bool pool_is_free(const struct pool *pool, uint32_t page) { return pool->bitmap[page / 64] >> page % 64 & 1; }

/* Length of the free run that starts exactly at `start`, counted up to `limit`. */
static uint32_t run_at(const struct pool *pool, uint32_t start, uint32_t limit) {
    uint32_t n = 0;
    while (n < limit && start + n < pool->capacity) {
        uint32_t at = start + n;
        uint64_t taken = ~pool->bitmap[at / 64] >> at % 64;
        if (taken) {
            n += (uint32_t)__builtin_ctzll(taken);
            break;
        }
        n += 64 - at % 64;
    }
    return min_u32(n, limit);
}

/* Start of the first run of at least k inside one block, which has one. */
static uint32_t first_in_block(const struct pool *pool, uint32_t block, uint32_t k) {
    uint32_t at = block * BLOCK_PAGES, end = at + BLOCK_PAGES;
    while (at < end) {
        uint64_t w = pool->bitmap[at / 64] >> at % 64;
        if (!w) {
            at = (at / 64 + 1) * 64;
            continue;
        }
        at += (uint32_t)__builtin_ctzll(w);
        uint32_t n = run_at(pool, at, k);
        if (n >= k) break;
        at += n;
    }
    return at;
}

/* Start of the first run of at least k pages; the root has one. */
static uint32_t first_run(const struct pool *pool, uint32_t k) {
    uint32_t node = 1, half = pool->n_leaves / 2 * BLOCK_PAGES, base = 0;
    while (node < pool->n_leaves) {
        const struct free_run *left = &pool->tree[2 * node], *right = left + 1;
        if (left->best >= k) {
            node = 2 * node;
        } else if (left->suffix + right->prefix >= k) {
            return base + half - left->suffix;
        } else {
            node = 2 * node + 1;
            base += half;
        }
        half /= 2;
    }
    return first_in_block(pool, node - pool->n_leaves, k);
}

uint32_t pool_choose(const struct pool *pool, struct pool_choice *choice, uint32_t *ret_start) {
    uint32_t need = choice->need, n = need;
    if (!choice->scattered) {
        uint32_t next = choice->predecessor + 1;
        if (choice->predecessor != KVD_NONE && next < pool->capacity && run_at(pool, next, need) == need) {
            *ret_start = next;
            choice->need = 0;
            return need;
        }
        choice->scattered = pool->tree[1].best < need;
    }
    if (choice->scattered) {
        *ret_start = first_run(pool, 1);
        n = run_at(pool, *ret_start, need);
    } else {
        *ret_start = first_run(pool, need);
    }
    choice->need -= n;
    return n;
}

void pool_take(struct pool *pool, uint32_t start, uint32_t n) {
    set_bits(pool, start, n, false);
    pool->allocated += n;
}

void pool_flush(struct pool_batch *batch) {
    if (batch->n == 0) return;
    set_bits(batch->pool, batch->start, batch->n, true);
    batch->pool->allocated -= batch->n;
    batch->n = 0;
}

bool pool_put(struct pool_batch *batch, uint32_t page, uint32_t generation) {
    struct page_lease *lease = &batch->pool->leases[page];
    if (lease->owner == KVD_NONE || lease->generation != generation) return false;
    lease->owner = KVD_NONE;
    if (++lease->generation == 0) lease->generation = 1;
    if (batch->n && page == batch->start + batch->n) {
        batch->n++;
    } else {
        pool_flush(batch);
        batch->start = page;
        batch->n = 1;
    }
    return true;
}
