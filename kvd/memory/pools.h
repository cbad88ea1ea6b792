/* SPDX-License-Identifier: Apache-2.0
 *
 * What stands in device memory: one region a (pool, rank), one block-table matrix a (pool, rank), one region of state
 * images a rank; and the description of all that for clients.
 *
 * Fixed from pools_open to pools_close; reading it needs no lock.
 */
#ifndef KVD_POOLS_H
#define KVD_POOLS_H

#include "plan.h"
#include "systemd.h"

struct pools {
    uint64_t id;  /* of the memory, where it can outlive this process (export = vmm); 0: it cannot */
    bool adopted; /* it is an earlier instance's, with its bytes */
    uint32_t n_pools, n_ranks;
    uint32_t row_entries; /* L */
    struct geom_pool_spec spec[GEOM_MAX_POOLS];
    uint32_t pages[GEOM_MAX_POOLS];
    struct geom_pool_spec state_spec; /* a state image is copied as a page of this pool (geom_state) */
    uint64_t state_stride;
    uint32_t state_slots; /* 0: no state */
    struct device *device[KVD_MAX_RANKS];
    struct device_region *planes[GEOM_MAX_POOLS][KVD_MAX_RANKS];
    struct device_region *table[GEOM_MAX_POOLS][KVD_MAX_RANKS];
    struct device_region *state[KVD_MAX_RANKS];
    bool has_descriptors;              /* regions that are handed over the socket of descriptors */
    struct kvd_store_info info;        /* for sessions that may map */
    struct kvd_store_info public_info; /* the same without handles and addresses */
};

/* Takes over the opened devices of the plan; on failure they are closed too. stored: regions of an earlier instance,
 * taken over where they are just what the plan needs (export = vmm), else let go; empty afterwards. 0, or 1 with a
 * sentence. */
int pools_open(const struct config *config, const struct plan *plan, struct device *const *devices,
               struct stored_regions *stored, struct pools *ret_pools, char *err, size_t err_bytes);
/* Number of a region on the socket of descriptors (fd_index), and the way back: a descriptor of the region, the pools'
 * own, or -1. */
uint32_t pools_fd_index(uint32_t rank, uint32_t what);
enum { POOLS_FD_PLANES = 0 /* + pool */, POOLS_FD_TABLE = 2 /* + pool */, POOLS_FD_STATE = 4, POOLS_FDS = 5 };
int pools_fd(const struct pools *pools, uint32_t fd_index);
/* Frees the regions and closes the devices. */
void pools_close(struct pools *pools);

#endif
