/* SPDX-License-Identifier: Apache-2.0
 *
 * Life of a store: configuration, the layout of its one block of memory, and the counters that everything shares.
 */
#include "audit.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- configuration ---- */

static int wrong_config(char *err, size_t bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));
static int wrong_config(char *err, size_t bytes, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (err && bytes) vsnprintf(err, bytes, format, args);
    va_end(args);
    return STORE_E_RANGE;
}

/* With more than KVD_MAX_POOLS the configuration is wrong. */
static uint64_t pools_of(const struct store_config *c) {
    bool draft = c->backend == GEOM_MTP || (c->backend == GEOM_DFLASH && c->pool_pages[1] > 0);
    return 1 + draft + (uint64_t)c->more_pools;
}

static int check_windows(const struct store_config *c, char *err, size_t n) {
    if (c->window[0].tokens)
        return wrong_config(err, n, "pool 0 has a window of %u tokens: its pages carry the names, so it has none",
                            c->window[0].tokens);
    for (uint32_t p = 1; p < pools_of(c); p++)
        if (c->window[p].tokens > UINT32_MAX / 4 || c->window[p].lead > UINT32_MAX / 4)
            return wrong_config(err, n, "the window of pool %u has %u tokens and a lead of %u: up to %u are possible",
                                p, c->window[p].tokens, c->window[p].lead, UINT32_MAX / 4);
    return STORE_OK;
}

static int check_pool_config(const struct store_config *c, char *err, size_t n) {
    if (c->backend != GEOM_OFF && c->backend != GEOM_MTP && c->backend != GEOM_DFLASH)
        return wrong_config(err, n, "backend %d is none of off, mtp, dflash", (int)c->backend);
    if (pools_of(c) > KVD_MAX_POOLS)
        return wrong_config(err, n, "%llu pools are configured: 1 to %d are possible", (unsigned long long)pools_of(c),
                            KVD_MAX_POOLS);
    for (uint32_t p = 0; p < pools_of(c); p++)
        if (c->pool_pages[p] == 0 || c->pool_pages[p] > INT32_MAX - c->spare_pages || c->spare_pages > INT32_MAX)
            return wrong_config(err, n, "pool %u has %u pages and %u spare descriptors: 1 to %d together are possible",
                                p, c->pool_pages[p], c->spare_pages, INT32_MAX);
    if (c->backend == GEOM_MTP && (c->draft_window < 1 || c->draft_window > 15))
        return wrong_config(err, n, "draft_window is %u: with mtp 1 to 15 are possible", c->draft_window);
    return check_windows(c, err, n);
}

static int check_host(const struct store_config *c, char *err, size_t n) {
    if (c->host_bytes == 0) return STORE_OK;
    for (uint32_t p = 0; p < pools_of(c); p++)
        if (c->host_stride[p] == 0 || c->host_stride[p] % EXTENT_ALIGN)
            return wrong_config(err, n, "host_stride of pool %u is %llu bytes: a multiple of %u is needed", p,
                                (unsigned long long)c->host_stride[p], EXTENT_ALIGN);
    if (c->has_state && (c->host_state_stride == 0 || c->host_state_stride % EXTENT_ALIGN))
        return wrong_config(err, n, "host_state_stride is %llu bytes: a multiple of %u is needed",
                            (unsigned long long)c->host_state_stride, EXTENT_ALIGN);
    for (uint32_t p = 0; p < pools_of(c); p++)
        if (c->host_bytes / c->host_stride[p] > (uint64_t)INT32_MAX - c->pool_pages[p] - c->spare_pages)
            return wrong_config(
                err, n,
                "a host arena of %llu bytes holds more pages of pool %u than can be numbered; lower arena = "
                "in section [host]",
                (unsigned long long)c->host_bytes, p);
    return STORE_OK;
}

int store_check_config(const struct store_config *c, char *err, size_t n) {
    int rc = check_pool_config(c, err, n);
    if (rc) return rc;
    if (c->max_context == 0 || c->max_context > UINT32_MAX / 2)
        return wrong_config(err, n, "max_context is %u tokens: 1 to %u are possible", c->max_context, UINT32_MAX / 2);
    if (c->max_concurrency == 0 || c->max_concurrency > UINT16_MAX)
        return wrong_config(err, n, "max_concurrency is %u: 1 to %u are possible", c->max_concurrency, UINT16_MAX);
    if (c->max_continuations == 0 || c->max_continuations > INT32_MAX / 2)
        return wrong_config(err, n, "max_continuations is %u: 1 to %d are possible", c->max_continuations,
                            INT32_MAX / 2);
    if (c->widest_verify > INT32_MAX || c->draft_window > INT32_MAX)
        return wrong_config(err, n, "widest_verify is %u and draft_window %u tokens: up to %d are possible",
                            c->widest_verify, c->draft_window, INT32_MAX);
    if (c->lease_growth && c->lease_window == 0 && c->prefill_chunk == 0)
        return wrong_config(err, n, "lease_window is 0: lease growth needs a window, normally of 4096 tokens");
    if (c->has_state && c->state_slots < c->max_concurrency)
        return wrong_config(err, n, "state_slots is %u: every one of %u concurrent sequences needs one", c->state_slots,
                            c->max_concurrency);
    if (c->max_rolling > STORE_MAX_ROLLING)
        return wrong_config(err, n, "max_rolling is %u: up to %d rolling checkpoints of a sequence are possible",
                            c->max_rolling, STORE_MAX_ROLLING);
    if (c->membership_entries > (uint64_t)INT32_MAX * CHUNK)
        return wrong_config(err, n, "membership_entries is %llu: up to %llu are possible",
                            (unsigned long long)c->membership_entries, (unsigned long long)INT32_MAX * CHUNK);
    return check_host(c, err, n);
}

/* Default: C sequences of full length in every pool, beside continuations that hold each physical page twice and a
 * part-filled chunk each. Entries before a window count: those of its pool are as many as Main's. */
static uint64_t chunk_capacity(const struct store_config *c) {
    if (c->membership_entries) return (c->membership_entries + CHUNK - 1) / CHUNK;
    uint64_t total = 0;
    for (uint32_t p = 0; p < pools_of(c); p++) {
        uint32_t like = c->window[p].tokens ? 0 : p;
        total += (uint64_t)c->max_concurrency * chunks_for(pages_of(c->max_context)) +
                 c->pool_pages[like] / (CHUNK / 2) +
                 (c->host_bytes ? c->host_bytes / c->host_stride[like] / (CHUNK / 2) : 0) + 1 + c->max_continuations;
    }
    return min_u64(total, INT32_MAX);
}

/* ---- layout ---- */

struct carve {
    unsigned char *base;
    size_t used;
    bool overflow;
};

static void *carve_take(struct carve *carve, uint64_t count, size_t size) {
    size_t bytes = 0, end = 0;
    carve->overflow |= __builtin_mul_overflow(count, size, &bytes) ||
                       __builtin_add_overflow(carve->used, bytes, &end) || end > SIZE_MAX - 64;
    if (carve->overflow) return NULL;
    void *at = carve->base ? carve->base + carve->used : NULL;
    carve->used = (end + 63) & ~(size_t)63;
    return at;
}

static uint32_t power_of_two(uint64_t at_least) {
    uint32_t n = 1;
    while (n < at_least) n *= 2;
    return n;
}

static void carve_pool(struct carve *carve, struct store *s, uint32_t p) {
    const struct store_config *c = &s->config;
    struct pool *pool = &s->pool[p];
    uint32_t blocks = (c->pool_pages[p] + BLOCK_PAGES - 1) / BLOCK_PAGES;
    pool->capacity = c->pool_pages[p];
    pool->descriptors = c->pool_pages[p] + c->spare_pages;
    if (c->host_bytes) pool->descriptors += (uint32_t)(c->host_bytes / c->host_stride[p]);
    pool->n_leaves = power_of_two(blocks);
    pool->pages = carve_take(carve, pool->descriptors, sizeof *pool->pages);
    pool->tier = c->host_bytes || c->recorded ? carve_take(carve, pool->descriptors, sizeof *pool->tier) : NULL;
    pool->leases = carve_take(carve, pool->capacity, sizeof *pool->leases);
    pool->recount = carve_take(carve, pool->descriptors, sizeof *pool->recount);
    pool->touched = carve_take(carve, 1, sizeof *pool->touched);
    pool->bitmap = carve_take(carve, pool->n_leaves, BLOCK_PAGES / 8);
    pool->tree = carve_take(carve, 2 * (uint64_t)pool->n_leaves, sizeof *pool->tree);
    pool->table = carve_take(carve, (uint64_t)c->max_concurrency * s->row_entries, sizeof *pool->table);
    pool->rows = carve_take(carve, c->max_concurrency, sizeof *pool->rows);
}

/* As many extents as the arena holds of the smallest kind. */
static void carve_host(struct carve *carve, struct store *s) {
    const struct store_config *c = &s->config;
    uint64_t smallest = c->has_state && c->host_state_stride ? c->host_state_stride : UINT64_MAX;
    s->moves = carve_take(carve, MOVE_LIMIT, sizeof *s->moves);
    if (c->host_bytes == 0) return;
    for (uint32_t p = 0; p < s->n_pools; p++) smallest = min_u64(smallest, c->host_stride[p]);
    s->max_extents = (uint32_t)min_u64(c->host_bytes / smallest + 1, INT32_MAX);
    s->ids = carve_take(carve, s->max_extents, sizeof *s->ids);
    s->fit_scratch = carve_take(carve, s->max_extents, sizeof *s->fit_scratch);
    size_t bytes = extent_bytes(s->max_extents);
    carve->overflow |= bytes == 0;
    s->arena_memory = carve_take(carve, bytes, 1);
}

/* Places everything behind the store itself; with a base of NULL it only counts. */
static size_t carve_store(struct store *s, unsigned char *base) {
    const struct store_config *c = &s->config;
    struct carve carve = { base, 0, false };
    carve_take(&carve, 1, sizeof *s);
    s->n_pools = (uint32_t)pools_of(c);
    s->row_entries = pages_of(c->max_context);
    for (uint32_t p = 0; p < s->n_pools; p++) {
        carve_pool(&carve, s, p);
        s->window_pages[p] = c->window[p].tokens ? store_window_pages(c, p) : 0;
        s->has_windows |= c->window[p].tokens > 0;
    }
    s->digests = carve_take(&carve, s->pool[0].descriptors, sizeof *s->digests);
    s->chunks.capacity = (uint32_t)chunk_capacity(c);
    s->chunks.entries = carve_take(&carve, s->chunks.capacity, CHUNK * sizeof(uint32_t));
    s->seqs = carve_take(&carve, c->max_concurrency, sizeof *s->seqs);
    s->conts = carve_take(&carve, c->max_continuations, sizeof *s->conts);
    s->change_limit = max_u32(1024, 2 * c->max_continuations);
    s->changes = carve_take(&carve, s->change_limit, sizeof *s->changes);
    s->slots = carve_take(&carve, c->has_state ? c->state_slots : 0, sizeof *s->slots);
    s->slot_recount = carve_take(&carve, c->has_state ? c->state_slots : 0, sizeof *s->slot_recount);
    s->recount = carve_take(&carve, c->max_continuations, sizeof *s->recount);
    s->touched = carve_take(&carve, 1, sizeof *s->touched);
    s->audit = carve_take(&carve, 1, sizeof *s->audit);
    s->stamp = carve_take(&carve, 1, sizeof *s->stamp);
    s->victims = carve_take(&carve, KVD_MAX_VICTIMS, sizeof *s->victims);
    s->steps = carve_take(&carve, KVD_MAX_VICTIMS, sizeof *s->steps);
    s->domains.capacity = c->max_continuations + c->max_concurrency;
    s->domains.list = carve_take(&carve, s->domains.capacity, sizeof *s->domains.list);
    s->domains.hash_mask = power_of_two(s->domains.capacity) - 1;
    s->domains.hash = carve_take(&carve, (uint64_t)s->domains.hash_mask + 1, sizeof *s->domains.hash);
    s->index.capacity = 2 * c->max_continuations + 1; /* a leaf and a branching each, and the root */
    s->index.nodes = carve_take(&carve, s->index.capacity, sizeof *s->index.nodes);
    s->index.hash_mask = power_of_two(s->index.capacity) - 1;
    s->index.hash = carve_take(&carve, (uint64_t)s->index.hash_mask + 1, sizeof *s->index.hash);
    carve_host(&carve, s);
    return carve.overflow ? 0 : carve.used;
}

size_t store_bytes(const struct store_config *config) {
    struct store plan = { .config = *config };
    return store_check_config(config, NULL, 0) ? 0 : carve_store(&plan, NULL);
}

static void init_objects(struct store *s) {
    const struct store_config *c = &s->config;
    uint32_t first = c->generation ? c->generation : 1;
    s->touched->n = 0;
    *s->audit = (struct audit){ .store = s, .is_over = true };
    for (uint32_t i = 0; i < c->max_concurrency; i++)
        s->seqs[i] = (struct seq){ .generation = first, .next_free = i + 1 < c->max_concurrency ? i + 1 : KVD_NONE };
    for (uint32_t i = 0; i < c->max_continuations; i++)
        s->conts[i] =
            (struct cont){ .generation = first, .next_free = i + 1 < c->max_continuations ? i + 1 : KVD_NONE };
    for (uint32_t p = 0; p < s->n_pools; p++) {
        struct pool *pool = &s->pool[p];
        pool->touched->n = 0;
        memset(pool->bitmap, 0, (size_t)pool->n_leaves * BLOCK_PAGES / 8);
        pool_init(pool);
        for (uint32_t i = 0; i < c->max_concurrency; i++) pool->rows[i] = (struct table_row){ 1, KVD_NONE };
        memset(pool->table, 0xff, (size_t)c->max_concurrency * s->row_entries * sizeof *pool->table);
    }
    if (c->has_state) memset(s->slots, 0, c->state_slots * sizeof *s->slots);
    s->chunks.head = KVD_NONE;
    s->revision = 1;
    s->in_flight = s->fetching = KVD_NONE;
    s->fetch_job = (struct tier_job){ .head = { KVD_NONE, KVD_NONE, KVD_NONE, KVD_NONE } };
    *s->stamp = 0;
    domain_init(&s->domains);
    index_init(&s->index);
    s->order[0] = s->order[1] = KVD_NONE;
    for (uint32_t i = 0; i < MOVE_LIMIT; i++)
        s->moves[i] = (struct move){ .generation = 1, .next_free = i + 1 < MOVE_LIMIT ? i + 1 : KVD_NONE };
    if (c->host_bytes)
        (void)extent_init(s->arena_memory, extent_bytes(s->max_extents), c->host_bytes, s->max_extents, &s->arena);
}

int store_init(void *memory, size_t bytes, const struct store_config *config, struct store **ret_store, char *err,
               size_t n) {
    struct store plan = { .config = *config }, *store = memory;
    int rc = store_check_config(config, err, n);
    if (rc) return rc;
    size_t needed = carve_store(&plan, NULL);
    if (needed == 0) return wrong_config(err, n, "this configuration needs more memory than can be addressed");
    if (!memory || bytes < needed || (uintptr_t)memory % 64)
        return wrong_config(err, n, "the store needs %zu bytes at a multiple of 64, had %zu at %p", needed, bytes,
                            memory);
    *store = (struct store){ .config = *config };
    carve_store(store, memory);
    init_objects(store);
    *ret_store = store;
    return STORE_OK;
}

/* ---- counters ---- */

const struct store_config *store_get_config(const struct store *store) { return &store->config; }
uint32_t store_n_pools(const struct store *store) { return store->n_pools; }
uint32_t store_row_entries(const struct store *store) { return store->row_entries; }
uint64_t store_revision(const struct store *store) { return store->revision; }

const int32_t *store_table_row(const struct store *store, uint32_t pool, uint32_t row) {
    return pool < store->n_pools && row < store->config.max_concurrency ? row_entries(store, pool, row) : NULL;
}

void store_changed(struct store *store, bool ownership) {
    store->operations++;
    store->revision += ownership;
}

bool store_try(struct store *store) {
    store->acquisitions++;
    return store->fail_in == 0 || --store->fail_in > 0;
}

uint32_t store_fail_acquisition(struct store *store, uint32_t nth) {
    uint32_t n = store->acquisitions;
    store->acquisitions = 0;
    store->fail_in = nth;
    return n;
}

/* A fresh mark for a counting walk; on wrap old marks are wiped. */
uint32_t store_next_stamp(const struct store *store) {
    if (++*store->stamp != 0) return *store->stamp;
    for (uint32_t p = 0; p < store->n_pools; p++)
        for (uint32_t i = 0; i < store->pool[p].descriptors; i++) store->pool[p].pages[i].stamp = 0;
    for (uint32_t i = 0; i < store->config.max_continuations; i++) store->conts[i].stamp = 0;
    return *store->stamp = 1;
}
