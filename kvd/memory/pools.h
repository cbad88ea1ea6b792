/* SPDX-License-Identifier: Apache-2.0
 *
 * The device memory of a store: for each (pool, rank) one region of planes and one block-table matrix, for each rank
 * one region of state images; and the description of them for clients.
 *
 * Nothing changes between pools_open and pools_close, so reading needs no lock.
 */
#ifndef KVD_POOLS_H
#define KVD_POOLS_H

#include "plan.h"
#include "systemd.h"

struct pools {
    uint64_t id;  /* identity of memory that can outlive this process (export = vmm); 0: it cannot */
    bool adopted; /* the memory is an earlier instance's, with its bytes */
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
    bool has_descriptors;              /* some regions go to clients over the socket of descriptors */
    struct kvd_store_info info;        /* for sessions that may map */
    struct kvd_store_info public_info; /* the same without handles and addresses */
};

/* Takes ownership of the plan's open devices; a failure closes them. stored: regions of an earlier instance (export =
 * vmm). Regions that match the plan are adopted, the others freed; stored is empty afterwards. Returns 0, or 1 with a
 * sentence in err. */
int pools_open(const struct config *config, const struct plan *plan, struct device *const *devices,
               struct stored_regions *stored, struct pools *ret_pools, char *err, size_t err_bytes);
/* pools_fd_index: number of a region on the socket of descriptors (fd_index). pools_fd: the descriptor of that region,
 * which stays the pools' own, or -1. */
uint32_t pools_fd_index(uint32_t rank, uint32_t what);
enum {
    POOLS_FD_PLANES = 0,             /* + pool */
    POOLS_FD_TABLE = GEOM_MAX_POOLS, /* + pool */
    POOLS_FD_STATE = 2 * GEOM_MAX_POOLS,
    POOLS_FDS
};
int pools_fd(const struct pools *pools, uint32_t fd_index);
/* Frees the regions and closes the devices. */
void pools_close(struct pools *pools);

#endif
