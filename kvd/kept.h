/* SPDX-License-Identifier: Apache-2.0
 *
 * Device regions that an earlier instance gave to the descriptor store (export = vmm). A region's name there says all
 * that is needed to take it over or to let it go:
 *
 *     kvd.<id>.r<rank>.<main|draft|state>.<pages of the Main pool>.<bytes>      id: 16 hex digits, of the pools
 *
 * A set is taken over as a whole, when it has every region of the plan with its size; else all of it is let go before
 * anything new is allocated. Block tables are never kept: a new instance begins with empty ones.
 */
#ifndef KVD_KEPT_H
#define KVD_KEPT_H

#include "fdstore.h"
#include "geometry.h"
#include "kvd_types.h"

enum kept_what { KEPT_MAIN = 0, KEPT_DRAFT = 1, KEPT_STATE = 2, KEPT_KINDS };

struct kept {
    uint64_t id;                   /* 0: nothing is kept */
    uint32_t pages;                /* of the Main pool then */
    uint64_t bytes[KVD_MAX_RANKS]; /* that stand in device memory already, by rank */
    struct kept_region {
        int fd;         /* -1: not there, or taken over */
        uint64_t bytes; /* 0: the holder has none */
    } region[KVD_MAX_RANKS][KEPT_KINDS];
};

/* From what the holder handed over; foreign names are let go, and of several sets all but the first. */
void kept_load(struct kept *kept, const struct fdstore_item *items, uint32_t n);
/* Exactly the regions of this layout? */
bool kept_matches(const struct kept *kept, const struct geom_layout *layout, uint32_t n_ranks);
/* Has the holder forget all of it, also what was taken over, and closes what was not; kept is empty then. */
void kept_drop(struct kept *kept);
void kept_name(uint64_t id, uint32_t rank, enum kept_what what, uint32_t pages, uint64_t bytes, char *name,
               size_t size);

#endif
