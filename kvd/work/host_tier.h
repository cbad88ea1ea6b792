/* SPDX-License-Identifier: Apache-2.0
 *
 * The host tier of the service: the arena's segment, what was found in it, the mover between it and the devices, and
 * the scrub. Section [host] of the configuration; arena = 0 means that there is none, and every function here is then
 * a no-op.
 *
 * Under the core mutex, except open and close.
 */
#ifndef KVD_HOST_TIER_H
#define KVD_HOST_TIER_H

#include "mover.h"

struct service;

/* After the store was made, before any request: opens or adopts the arena, and brings back what the directory has. The
 * arena is named after the prefix of shared memory, but outside of it: it is not swept. With export = vmm there is a
 * segment for the directory also where the arena has no bytes. 0, or 1 with a sentence. */
int host_tier_open(struct service *service, const char *prefix, char *err, size_t err_bytes);
/* Before the devices are closed: unpins the arena, which waits for their moves. It stays where it is. */
void host_tier_close(struct service *service);

enum host_outcome { HOST_KEPT = 0, HOST_SHORTENED, HOST_DROPPED, HOST_DAMAGED, HOST_OUTCOMES };
struct host_stats {
    struct mover_stats mover;
    uint64_t scrubbed_pages, scrubbed_bytes;
    uint32_t recovered[HOST_OUTCOMES]; /* continuations at the start; DAMAGED: records and parts */
};
void host_tier_stats(const struct service *service, struct host_stats *ret_stats);

#endif
