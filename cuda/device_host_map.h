/* SPDX-License-Identifier: Apache-2.0
 *
 * Mappings of shared-memory objects in this process, shared by everyone who needs the same object and counted. An
 * owner's region is such a mapping too, so that an import in the owning process has the owner's address and outlives
 * the owner's free. Threads: any.
 */
#ifndef KVD_CUDA_DEVICE_HOST_MAP_H
#define KVD_CUDA_DEVICE_HOST_MAP_H

#include "device.h"

struct host_map;

/* Maps the object behind fd, or shares the mapping that is there: a read-only user may share a writable one, not the
 * other way round. 0 or negative errno; -EMSGSIZE: the object is shorter than bytes, and touching it would fault. */
int host_map_add(int fd, uint64_t bytes, bool read_only, struct host_map **ret_map);
void *host_map_address(const struct host_map *map);
void host_map_drop(struct host_map *map);

/* Whether fd is memory that a host device exports: it can neither shrink nor grow, so no access can fault later. */
bool device_host_is_memory(int fd);

/* The consumer side of device.h. */
int host_import(const struct device_export *exported, const uint8_t *expect_uuid, bool read_only,
                struct device_import **ret_import, char *err, size_t err_bytes);
void *host_import_address(const struct device_import *import);
void host_unimport(struct device_import *import);

#endif
