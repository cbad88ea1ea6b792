/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated device: what the worker's kernels write and the transfer engine copies, addressed by (pool, physical
 * page, column). One column holds one 32-bit token value; the flat form stores just that, the geometry form spreads it
 * over every byte of every plane of the real layout (GEOM-4..6), so that a wrong id, plane or stride shows as wrong
 * content.
 */
#ifndef KVD_TESTS_MODEL_MEMORY_H
#define KVD_TESTS_MODEL_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "geometry.h"

struct memory;

/* Flat: 64 values a page. state_slots may be 0. */
struct memory *memory_flat(uint32_t n_pools, const uint32_t *pages, uint32_t state_slots);
/* Geometry: one region a (pool, rank), laid out by cuda/geometry. specs: one a pool. NULL if a spec is refused. */
struct memory *memory_geometry(uint32_t n_pools, const uint32_t *pages, uint32_t state_slots,
                               const struct geom_pool_spec *specs);
void memory_free(struct memory *memory);

void memory_write(struct memory *memory, uint32_t pool, uint32_t page, uint32_t first, uint32_t n,
                  const uint32_t *values);
/* Copies a page. columns < 64: only those columns matter; the flat form then copies no more, the geometry form copies
 * pieces. */
void memory_copy(struct memory *memory, uint32_t pool, uint32_t src, uint32_t dst, uint32_t columns);
/* Whether the first n columns of the page hold these values. */
bool memory_holds(const struct memory *memory, uint32_t pool, uint32_t page, uint32_t n, const uint32_t *values);
/* A freed page: whoever still reads it must notice. */
void memory_poison(struct memory *memory, uint32_t pool, uint32_t page, uint32_t value);

void memory_state_write(struct memory *memory, uint32_t slot, uint64_t image);
void memory_state_copy(struct memory *memory, uint32_t src, uint32_t dst);
uint64_t memory_state_read(const struct memory *memory, uint32_t slot);

#endif
