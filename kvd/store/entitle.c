/* SPDX-License-Identifier: Apache-2.0
 *
 * Entitlement of a sequence in pages (SPACE-3; reference-facts 6.5, 6.6; the formulas stand in store.h).
 */
#include "store_internal.h"

/* An MTP pool runs draft_window - 1 tokens ahead of the target (CAP-5); a Draft Full pool does not. */
static uint64_t lead(const struct store *store, uint32_t pool) {
    return pool == 1 && store->config.backend == GEOM_MTP ? store->config.draft_window - 1u : 0;
}

uint32_t entitle_ceiling(const struct store *store, uint32_t pool, uint32_t ceiling_tokens) {
    return pages_of(min_u64(store->config.max_context, ceiling_tokens + lead(store, pool)));
}

uint32_t entitle_cushion(const struct store *store) {
    return pages_of((uint64_t)store->config.widest_verify + store->config.draft_window + 2) + 1;
}

uint32_t entitle_rung(const struct store *store, uint32_t i) {
    if (i == 0) return max_u32(store->config.lease_window, store->config.prefill_chunk);
    return i == 1 ? 128 : 64;
}

uint32_t entitle_at_start(const struct store *store, uint32_t pool, uint32_t prompt, uint32_t ceiling_tokens) {
    uint32_t ceiling = entitle_ceiling(store, pool, ceiling_tokens);
    if (!store->config.lease_growth) return ceiling;
    uint64_t tokens = (uint64_t)prompt + entitle_rung(store, 0) + lead(store, pool);
    return (uint32_t)min_u64(ceiling,
                             (uint64_t)pages_of(min_u64(store->config.max_context, tokens)) + entitle_cushion(store));
}
