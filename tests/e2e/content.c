/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "e2e.h"

static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* seed = base (24 bits) | fork position (24 bits) | branch (16 bits) */
uint64_t e2e_stream(uint32_t base, uint32_t fork, uint16_t branch) {
    return ((uint64_t)(base & 0xFFFFFF) << 40) | ((uint64_t)(fork & 0xFFFFFF) << 16) | branch;
}

uint32_t e2e_token(uint64_t seed, uint32_t i) {
    uint64_t base = seed >> 40, fork = (seed >> 16) & 0xFFFFFF;
    uint64_t key = i < fork ? base << 40 : seed;
    return (uint32_t)(mix(key * UINT64_C(0x9E3779B97F4A7C15) + i + 1) % 50000);
}

void e2e_tokens(uint64_t seed, uint32_t n, uint32_t *ret_tokens) {
    for (uint32_t i = 0; i < n; i++) ret_tokens[i] = e2e_token(seed, i);
}

struct kvd_root e2e_root(void) {
    kvd_chain *chain = e2e_chain(0, 0);
    struct kvd_root root = chain ? *kvd_chain_root(chain) : (struct kvd_root){ .label = "" };
    kvd_chain_free(chain);
    return root;
}

kvd_chain *e2e_chain(uint64_t seed, uint32_t n) {
    static const struct kvd_domain domain = { .model = "e2e", .label = "e2e" };
    kvd_chain *chain = NULL;
    if (kvd_chain_new(&domain, &chain) != KVD_OK) return NULL;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t token = e2e_token(seed, i);
        kvd_chain_push(chain, &token, 1);
    }
    return chain;
}

void e2e_tail(uint64_t seed, uint32_t n, struct kvd_tail *ret_tail) {
    ret_tail->n = n % KVD_PAGE_TOKENS;
    for (uint32_t i = 0; i < ret_tail->n; i++) ret_tail->tokens[i] = e2e_token(seed, n - ret_tail->n + i);
}

/* What a position's bytes are derived from: a running hash of all tokens up to it. */
static uint64_t state_at(uint64_t seed, uint32_t position) {
    uint64_t h = 0;
    for (uint32_t i = 0; i <= position; i++) h = mix(h ^ e2e_token(seed, i)) + 1;
    return h;
}

struct walk {
    bool write;
    uint64_t wrong;
};

static void plane_column(const kvd_plane_view *plane, uint32_t n_heads, int32_t page, uint32_t offset, uint64_t key,
                         struct walk *walk) {
    if (plane->dtype == KVD_DTYPE_NONE) return;
    uint64_t row_bytes = plane->extent * plane->stride_elem;
    for (uint32_t h = 0; h < n_heads; h++) {
        uint8_t *row = (uint8_t *)plane->base + (uint64_t)page * plane->stride_page + h * plane->stride_head +
                       offset * plane->stride_token;
        for (uint64_t i = 0; i < row_bytes; i++) {
            uint8_t byte = (uint8_t)(mix(key + h * 977 + (i >> 3)) >> (8 * (i & 7)));
            if (walk->write) row[i] = byte;
            else walk->wrong += row[i] != byte;
        }
    }
}

static void layer_column(const PagedKVLayerView *view, uint32_t layer, uint32_t position, uint64_t state,
                         struct walk *walk) {
    int32_t page = view->block_table[position >> KVD_PAGE_SHIFT];
    if (page < 0 || (uint32_t)page >= view->n_pages) {
        walk->wrong++; /* an unmapped position is never right */
        return;
    }
    uint32_t offset = position & KVD_PAGE_MASK;
    uint64_t key = mix(state + layer * 131);
    plane_column(&view->k, view->n_kv_heads, page, offset, key + 1, walk);
    plane_column(&view->v, view->n_kv_heads, page, offset, key + 2, walk);
    plane_column(&view->k_scale, view->n_kv_heads, page, offset, key + 3, walk);
    plane_column(&view->v_scale, view->n_kv_heads, page, offset, key + 4, walk);
}

static uint64_t walk_columns(const kvd_store *store, uint32_t pool, uint32_t row, uint64_t seed, uint32_t from,
                             uint32_t to, bool write) {
    const struct kvd_store_info *info = kvd_store_describe(store);
    struct walk walk = { .write = write };
    if (from >= to) return 0;
    uint64_t state = from ? state_at(seed, from - 1) : 0;
    for (uint32_t p = from; p < to; p++) {
        state = mix(state ^ e2e_token(seed, p)) + 1;
        for (uint32_t layer = 0; layer < info->pool[pool].n_layers; layer++) {
            PagedKVLayerView view;
            if (kvd_store_layer_view(store, pool, layer, row, &view, NULL) != KVD_OK) return UINT64_MAX;
            layer_column(&view, layer, p, state, &walk);
        }
    }
    return walk.wrong;
}

void e2e_write_columns(const kvd_store *store, uint32_t pool, uint32_t row, uint64_t seed, uint32_t from, uint32_t to) {
    walk_columns(store, pool, row, seed, from, to, true);
}

uint64_t e2e_check_columns(const kvd_store *store, uint32_t pool, uint32_t row, uint64_t seed, uint32_t from,
                           uint32_t to) {
    return walk_columns(store, pool, row, seed, from, to, false);
}

/* Byte i of an image. */
static uint8_t state_byte(uint64_t key, uint64_t i) { return (uint8_t)(mix(key + (i >> 3)) >> (8 * (i & 7))); }

static uint64_t state_key(uint64_t seed, uint32_t rank, uint32_t frontier) {
    return mix((frontier ? state_at(seed, frontier - 1) : 0) + rank * 1009 + 5);
}

enum kvd_status e2e_write_state(const kvd_store *store, uint32_t rank, uint32_t slot, uint64_t seed, uint32_t frontier,
                                struct kvd_error *error) {
    uint64_t bytes, key = state_key(seed, rank, frontier);
    void *at;
    enum kvd_status status = kvd_store_state(store, slot, &at, &bytes, error);
    for (uint64_t i = 0; status == KVD_OK && i < bytes; i++) ((uint8_t *)at)[i] = state_byte(key, i);
    return status;
}

enum kvd_status e2e_check_state(const kvd_store *store, uint32_t rank, uint32_t slot, uint64_t seed, uint32_t frontier,
                                uint64_t *ret_wrong, struct kvd_error *error) {
    uint64_t bytes, wrong = 0, key = state_key(seed, rank, frontier);
    void *at;
    enum kvd_status status = kvd_store_state(store, slot, &at, &bytes, error);
    if (status != KVD_OK) return status;
    for (uint64_t i = 0; i < bytes; i++) wrong += ((const uint8_t *)at)[i] != state_byte(key, i);
    *ret_wrong = wrong;
    return KVD_OK;
}
