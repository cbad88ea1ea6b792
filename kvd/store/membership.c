/* SPDX-License-Identifier: Apache-2.0
 *
 * Membership: the ordered entries of a space, in a radix tree of chunks (SPACE-1).
 */
#include "store_internal.h"

#include <string.h>

#define CHUNK_SHIFT 6

uint32_t chunks_for(uint32_t count) {
    uint32_t total = 0;
    while (count > 1 || (count == 1 && total == 0)) {
        count = (count + CHUNK - 1) / CHUNK;
        total += count;
    }
    return total;
}

int chunks_refuse(const struct store *store, enum store_code code, uint64_t needed, uint64_t had,
                  struct store_refusal *refusal) {
    return store_refuse(refusal, code, STORE_S_MEMBERSHIP, KVD_NONE, needed * CHUNK, had * CHUNK,
                        (uint64_t)store->chunks.capacity * CHUNK);
}

static uint32_t height_of(uint32_t count) { /* levels of the tree: capacity is 64^height */
    uint32_t height = 0;
    for (uint64_t room = 1; room < count || (count && height == 0); room *= CHUNK) height++;
    return height;
}

static uint32_t chunk_take(struct chunks *c) {
    uint32_t chunk = c->head;
    if (chunk == KVD_NONE) chunk = c->fresh++;
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

struct space space_prefix(const struct store *store, const struct space *space, uint32_t count) {
    struct space prefix = { .root = space->root, .count = count, .committed = count * KVD_PAGE_TOKENS };
    for (uint32_t level = height_of(space->count); level > height_of(count); level--)
        prefix.root = chunk_entries(store, prefix.root)[0];
    return prefix;
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

void space_skip(struct store *store, struct space *space, uint32_t n) {
    uint32_t none[CHUNK];
    memset(none, 0xff, sizeof none); /* KVD_NONE */
    for (uint32_t i = 0, part; i < n; i += part) {
        part = min_u32(CHUNK, n - i);
        space_append(store, space, none, part);
    }
    space->base = n;
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
    space->base = min_u32(space->base, count);
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
