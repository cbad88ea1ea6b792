/* SPDX-License-Identifier: Apache-2.0
 *
 * The geometry digest: BLAKE2b-256 over a canonical serialisation, every number 64-bit little-endian. In a file of its
 * own, so that an engine that needs only the schema does not link libsodium.
 */
#include <sodium.h>
#include <string.h>

#include "geometry.h"
#include "geometry_internal.h"

/* Raise it when the meaning of any stored byte changes while no number below does. */
#define GEOM_SCHEMA_VERSION 1

static void put_number(crypto_generichash_state *hash, uint64_t value) {
    unsigned char bytes[8];
    for (unsigned i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(value >> (8 * i));
    crypto_generichash_update(hash, bytes, sizeof bytes);
}

static void put_schema(crypto_generichash_state *hash, const struct geom_schema *schema) {
    for (unsigned s = 0; s < GEOM_SLOTS; s++) {
        put_number(hash, schema->dtype[s]);
        put_number(hash, schema->extent[s]);
        put_number(hash, schema->element[s]);
    }
}

/* A number that no profile has: what follows are groups. */
#define GROUPS_FOLLOW UINT64_MAX

/* placed: orders and arrangement, too. The expanded schema goes in beside the group: it is what it means in this build.
 */
static void put_groups(crypto_generichash_state *hash, const struct geom_pool_spec *pool, uint32_t ranks, bool placed) {
    put_number(hash, GROUPS_FOLLOW);
    if (placed) put_number(hash, pool->arrangement);
    put_number(hash, ranks);
    put_number(hash, pool->n_groups);
    for (uint32_t i = 0; i < pool->n_groups; i++) {
        const struct geom_group *group = &pool->group[i];
        struct geom_schema schema = { 0 };
        (void)geom_group_schema(group, &schema, NULL, 0);
        put_number(hash, group->format);
        put_number(hash, group->storage);
        if (placed) put_number(hash, group->order);
        put_number(hash, group->n_layers);
        put_number(hash, group->n_kv_heads);
        put_schema(hash, &schema);
    }
}

static void put_shape(crypto_generichash_state *hash, const struct geom_pool_spec *pool, uint32_t ranks, bool placed) {
    put_number(hash, pool->storage);
    if (placed) put_number(hash, pool->order);
    if (placed) put_number(hash, pool->arrangement);
    put_number(hash, pool->n_layers);
    put_number(hash, pool->n_kv_heads);
    put_number(hash, pool->head_dim);
    put_number(hash, ranks);
}

static void put_pool(crypto_generichash_state *hash, const struct geom_pool_spec *pool, uint32_t pages) {
    struct geom_schema schema = { 0 };
    if (pool->n_groups) put_groups(hash, pool, pool->n_ranks, true);
    else put_shape(hash, pool, pool->n_ranks, true);
    put_number(hash, pages);
    if (!pool->n_groups) {
        (void)geom_schema(pool->storage, pool->head_dim, &schema, NULL, 0);
        put_schema(hash, &schema);
    }
    put_number(hash, geom_region_bytes(pool, pages));
    put_number(hash, geom_packed_bytes(pool));
}

/* ranks: how a page is divided, by ranks or by shards. */
static void put_content(crypto_generichash_state *hash, const struct geom_pool_spec *pool, uint32_t ranks) {
    struct geom_schema schema = { 0 };
    if (pool->n_groups) {
        put_groups(hash, pool, ranks, false);
    } else {
        put_shape(hash, pool, ranks, false);
        (void)geom_schema(pool->storage, pool->head_dim, &schema, NULL, 0);
        put_schema(hash, &schema);
    }
}

/* Numbers that no pool begins with: what follows is a window. Of pools without one nothing is said, as ever. */
#define WINDOW_FOLLOWS (UINT64_MAX - 1)

static void put_window(crypto_generichash_state *hash, const struct geom_pool_spec *pool) {
    if (!pool->window.tokens) return;
    put_number(hash, WINDOW_FOLLOWS);
    put_number(hash, pool->window.tokens);
    put_number(hash, pool->window.aligned);
}

/* Which pages a continuation has follows from the window. */
static void put_packed_pool(crypto_generichash_state *hash, const struct geom_pool_spec *pool) {
    put_content(hash, pool, pool->n_ranks);
    put_number(hash, geom_packed_bytes(pool));
    put_window(hash, pool);
}

static void put_sharded_pool(crypto_generichash_state *hash, const struct geom_pool_spec *pool) {
    put_content(hash, pool, pool->n_groups ? geom_shard_count(pool) : geom_shard_heads(pool));
    put_number(hash, geom_shard_bytes(pool));
}

/* domain: what is digested, with the zero byte at its end. */
static void begin_digest(crypto_generichash_state *hash, const char *domain) {
    crypto_generichash_init(hash, NULL, 0, 32);
    crypto_generichash_update(hash, (const unsigned char *)domain, strlen(domain) + 1);
    put_number(hash, GEOM_SCHEMA_VERSION);
    put_number(hash, KVD_PAGE_TOKENS);
}

void geom_shard_digest(const struct geom_store_spec *spec, uint32_t n_pools, uint8_t ret_digest[32]) {
    crypto_generichash_state hash;
    begin_digest(&hash, "kvd shards");
    put_number(&hash, n_pools);
    for (uint32_t p = 0; p < n_pools; p++) put_sharded_pool(&hash, geom_pool_at(spec, p));
    crypto_generichash_final(&hash, ret_digest, 32);
}

void geom_packed_digest(const struct geom_store_spec *spec, uint32_t n_pools, uint8_t ret_digest[32]) {
    crypto_generichash_state hash;
    begin_digest(&hash, "kvd packed pages");
    put_number(&hash, GEOM_ALIGN);
    put_number(&hash, spec->state_bytes);
    put_number(&hash, n_pools);
    for (uint32_t p = 0; p < n_pools; p++) put_packed_pool(&hash, geom_pool_at(spec, p));
    crypto_generichash_final(&hash, ret_digest, 32);
}

void geom_digest(const struct geom_store_spec *spec, const struct geom_layout *layout, uint8_t ret_digest[32]) {
    crypto_generichash_state hash;
    begin_digest(&hash, "kvd geometry");
    put_number(&hash, GEOM_ALIGN);
    put_number(&hash, spec->backend);
    put_number(&hash, spec->max_context);
    put_number(&hash, spec->max_concurrency);
    put_number(&hash, spec->backend == GEOM_MTP ? spec->draft_window : 0);
    put_number(&hash, spec->state_bytes);
    put_number(&hash, layout->n_pools);
    for (uint32_t p = 0; p < layout->n_pools; p++) {
        put_pool(&hash, geom_pool_at(spec, p), layout->pages[p]);
        put_window(&hash, geom_pool_at(spec, p));
        if (geom_pool_at(spec, p)->window.tokens) put_number(&hash, geom_pool_at(spec, p)->window.lead);
    }
    crypto_generichash_final(&hash, ret_digest, 32);
}
