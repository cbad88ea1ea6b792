/* SPDX-License-Identifier: Apache-2.0
 *
 * The boundary of one sequence, whoever asked for it: an item of a Round, or its worker on a board. Under the lock.
 */
#ifndef KVD_BOUNDARY_H
#define KVD_BOUNDARY_H

#include "bundle.h"

/* Asks the store, with the list that stands for the sequence's growth now, and tells who went and where it is bounded.
 * gone: room for KVD_MAX_GROWTH. */
void boundary_ask(struct service *s, struct bundle *b, struct store_round_item *item, struct kvd_victim *gone,
                  struct store_round_result *ret_result);

#endif
