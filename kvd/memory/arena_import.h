/* SPDX-License-Identifier: Apache-2.0
 *
 * An arena of other limits or sizes (KEEP-1): what of it the next kvd keeps, and, before there is one, what a
 * configuration would cost.
 */
#ifndef KVD_ARENA_IMPORT_H
#define KVD_ARENA_IMPORT_H

#include "plan.h"
#include "segment.h"

/* Takes over what the former segment's directory names and still fits, the most valuable first. copy, context: as in
 * struct store_import. 0, or 1: no memory, and nothing was taken over. */
int arena_import(struct store *store, struct segment *former,
                 void (*copy)(void *context, uint64_t from, uint64_t to, uint64_t bytes), void *context,
                 struct store_recovered *ret_recovered);

/* Tries it with the store of this plan and no bytes: what a start would keep of the arena of that name. 0, or 1 with a
 * sentence. A kvd may run on it meanwhile: then it is what it was at some moment or another. */
int arena_cost_of(const struct config *config, const struct plan *plan, const char *name, struct arena_cost *ret_cost,
                  char *err, size_t err_bytes);

#endif
