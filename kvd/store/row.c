/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of the block-table mirror (ROW-*): leased by active spaces, -1 outside the membership. A row owns nothing.
 */
#include "store_internal.h"

uint32_t row_take(struct store *store, uint32_t pool_index, uint32_t owner) {
    struct pool *pool = &store->pool[pool_index];
    uint32_t row = 0;
    while (pool->rows[row].owner != NONE) row++;
    pool->rows[row].owner = owner;
    pool->rows_used++;
    return row;
}

void row_release(struct store *store, uint32_t pool_index, uint32_t row, uint32_t used) {
    struct pool *pool = &store->pool[pool_index];
    int32_t *entries = row_entries(store, pool_index, row);
    for (uint32_t i = 0; i < used; i++) entries[i] = -1;
    pool->rows[row].owner = NONE;
    if (++pool->rows[row].generation == 0) pool->rows[row].generation = 1;
    pool->rows_used--;
}
