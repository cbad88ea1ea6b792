/* SPDX-License-Identifier: Apache-2.0
 *
 * Address spaces: ordered membership, frontier and reservation of one pool (SPACE-*).
 */
#include "store_internal.h"

#include <string.h>

#define CHUNK_SHIFT 6

/* ---- chunks ---- */

uint32_t chunks_for(uint32_t count) {
    uint32_t total = 0;
    while (count > 1 || (count == 1 && total == 0)) {
        count = (count + CHUNK - 1) / CHUNK;
        total += count;
    }
    return total;
}

static uint32_t height_of(uint32_t count) { /* levels of the tree: capacity is 64^height */
    uint32_t height = 0;
    for (uint64_t room = 1; room < count || (count && height == 0); room *= CHUNK) height++;
    return height;
}

static uint32_t chunk_take(struct chunks *c) {
    uint32_t chunk = c->head;
    if (chunk == NONE) chunk = c->fresh++;
    else c->head = c->entries[(size_t)chunk * CHUNK];
    c->used++;
    return chunk;
}

static void chunk_put(struct chunks *c, uint32_t chunk) {
    c->entries[(size_t)chunk * CHUNK] = c->head;
    c->head = chunk;
    c->used--;
}

static uint32_t *chunk_entries(const struct store *store, uint32_t chunk) {
    return store->chunks.entries + (size_t)chunk * CHUNK;
}

/* The leaf of an index below count. */
static uint32_t *leaf_of(const struct store *store, const struct space *space, uint32_t index) {
    uint32_t chunk = space->root;
    for (uint32_t level = height_of(space->count); level > 1; level--)
        chunk = chunk_entries(store, chunk)[index >> (level - 1) * CHUNK_SHIFT & (CHUNK - 1)];
    return chunk_entries(store, chunk);
}

uint32_t *space_run(const struct store *store, const struct space *space, uint32_t index, uint32_t *ret_n) {
    *ret_n = min_u32(CHUNK - index % CHUNK, space->count - index);
    return leaf_of(store, space, index) + index % CHUNK;
}

uint32_t space_entry(const struct store *store, const struct space *space, uint32_t index) {
    return leaf_of(store, space, index)[index % CHUNK];
}

/* A new last leaf, for index = count, and whatever stands above it. */
static void add_leaf(struct store *store, struct space *space) {
    uint32_t index = space->count, height = height_of(index + 1);
    if (index == 0) {
        space->root = chunk_take(&store->chunks);
        return;
    }
    if (height_of(index) < height) {
        uint32_t root = chunk_take(&store->chunks);
        chunk_entries(store, root)[0] = space->root;
        space->root = root;
    }
    uint32_t chunk = space->root;
    for (uint32_t level = height; level > 1; level--) {
        uint32_t *slot = &chunk_entries(store, chunk)[index >> (level - 1) * CHUNK_SHIFT & (CHUNK - 1)];
        if ((index & ((1u << (level - 1) * CHUNK_SHIFT) - 1)) == 0) *slot = chunk_take(&store->chunks);
        chunk = *slot;
    }
}

void space_append(struct store *store, struct space *space, const uint32_t *entries, uint32_t n) {
    store->entries += n;
    while (n) {
        uint32_t index = space->count, part = min_u32(n, CHUNK - index % CHUNK);
        if (index % CHUNK == 0) add_leaf(store, space);
        space->count += part;
        memcpy(leaf_of(store, space, index) + index % CHUNK, entries, part * sizeof *entries);
        entries += part;
        n -= part;
    }
}

/* Frees the leaf that begins at `start` (the last one) and the inner chunks that held nothing else. */
static void drop_leaf(struct store *store, struct space *space, uint32_t start) {
    uint32_t path[8], height = height_of(space->count), chunk = space->root;
    for (uint32_t level = height; level > 0; level--) {
        path[level - 1] = chunk;
        if (level > 1) chunk = chunk_entries(store, chunk)[start >> (level - 1) * CHUNK_SHIFT & (CHUNK - 1)];
    }
    chunk_put(&store->chunks, path[0]);
    for (uint32_t level = 1; level < height && (start & ((1u << (level + 1) * CHUNK_SHIFT) - 1)) == 0; level++)
        chunk_put(&store->chunks, path[level]);
}

void space_cut(struct store *store, struct space *space, uint32_t count) {
    store->entries -= space->count - count;
    while (space->count > count) {
        uint32_t start = (space->count - 1) / CHUNK * CHUNK, height = height_of(space->count);
        if (count > start) {
            space->count = count;
            break;
        }
        drop_leaf(store, space, start);
        space->count = start;
        if (start && height_of(start) < height) { /* the root holds one child only */
            uint32_t root = space->root;
            space->root = chunk_entries(store, root)[0];
            chunk_put(&store->chunks, root);
        }
    }
}

/* ---- pages ---- */

uint32_t space_device(const struct store *store, uint32_t pool, uint32_t entry) {
    return entry & PROMISED ? entry & ~PROMISED : store->pool[pool].pages[entry].device;
}

uint32_t space_copy_ids(const struct store *store, uint32_t pool, const struct space *space, uint32_t *ret_ids,
                        uint32_t max) {
    uint32_t n, total = min_u32(max, space->count);
    for (uint32_t i = 0; i < total; i += n) {
        const uint32_t *run = space_run(store, space, i, &n);
        n = min_u32(n, total - i);
        for (uint32_t k = 0; k < n; k++) ret_ids[i + k] = space_device(store, pool, run[k]);
    }
    return total;
}

void space_map(struct store *store, uint32_t pool_index, struct space *space, uint32_t n, int32_t *row) {
    struct pool *pool = &store->pool[pool_index];
    struct pool_choice choice = { n, NONE, false };
    uint32_t before = chunks_for(space->count), start;
    if (space->count) choice.predecessor = space_device(store, pool_index, space_entry(store, space, space->count - 1));
    store->chunks.reserved -= chunks_for(space->count + n) - before;
    pool->reserved -= n;
    space->reserved -= n;
    while (choice.need) {
        uint32_t got = pool_choose(pool, &choice, &start), pages[CHUNK];
        pool_take(pool, start, got);
        for (uint32_t i = 0, part; i < got; i += part) {
            part = min_u32(CHUNK, got - i);
            for (uint32_t k = 0; k < part; k++) {
                row[space->count + k] = (int32_t)(start + i + k);
                pages[k] = page_open(store, pool_index, start + i + k, space->count + k, true);
            }
            space_append(store, space, pages, part);
        }
    }
}

void space_drop(struct store *store, uint32_t pool_index, struct space *space, uint32_t count, bool active,
                bool keep_reserved, int32_t *row) {
    struct pool *pool = &store->pool[pool_index];
    struct pool_batch batch = { pool, 0, 0 };
    uint32_t dropped = space->count - count, n, freed = chunks_for(space->count) - chunks_for(count);
    for (uint32_t i = count; i < space->count; i += n) {
        const uint32_t *run = space_run(store, space, i, &n);
        for (uint32_t k = 0; k < n; k++) {
            if (row) row[i + k] = -1;
            if (!(run[k] & PROMISED)) page_unref(store, &batch, run[k], active);
        }
    }
    pool_flush(&batch);
    space_cut(store, space, count);
    if (!keep_reserved) return;
    pool->reserved += dropped;
    space->reserved += dropped;
    store->chunks.reserved += freed;
}

void space_commit(struct store *store, uint32_t pool, struct space *space, uint32_t frontier) {
    uint32_t first = min_u32(space->committed, frontier) / KVD_PAGE_TOKENS, n;
    uint32_t end = pages_of(max_u32(space->committed, frontier));
    for (uint32_t i = first; i < end; i += n) {
        const uint32_t *run = space_run(store, space, i, &n);
        n = min_u32(n, end - i);
        for (uint32_t k = 0; k < n; k++)
            if (store->pool[pool].pages[run[k]].committed != columns_of(frontier, i + k))
                page_commit(store, pool, run[k], columns_of(frontier, i + k));
    }
    space->committed = frontier;
}

static bool is_shared(const struct store *store, uint32_t pool, const struct space *space, uint32_t index) {
    uint32_t entry = space_entry(store, space, index);
    return !(entry & PROMISED) && store->pool[pool].pages[entry].references > 1;
}

/* References never rise along a space: whoever holds page i holds all before it (sharing is always of a prefix, and a
 * page that is replaced takes all behind it along). So the boundary is found by its old place or by bisection. */
uint32_t space_shared(const struct store *store, uint32_t pool, const struct space *space) {
    uint32_t low = 0, high = space->count, hint = space->shared;
    if (hint <= high && (hint == 0 || is_shared(store, pool, space, hint - 1)) &&
        (hint == high || !is_shared(store, pool, space, hint)))
        return hint;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (is_shared(store, pool, space, mid)) low = mid + 1;
        else high = mid;
    }
    return low;
}

uint32_t space_protected(const struct store *store, uint32_t pool, const struct space *space) {
    uint32_t shared = space_shared(store, pool, space), tokens = shared * KVD_PAGE_TOKENS;
    if (shared == space->count) return tokens;
    uint32_t entry = space_entry(store, space, shared);
    const struct page *page = entry & PROMISED ? NULL : &store->pool[pool].pages[entry];
    return page ? tokens + page->pinned : tokens; /* the tail that a checkpoint is being copied from */
}
