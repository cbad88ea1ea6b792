/* SPDX-License-Identifier: Apache-2.0
 *
 * One lane of the engine's client: connections to the nodes that it has met, the map of slots, and a pipeline of
 * operations over them. It belongs to one thread.
 */
#ifndef KVD_COLD_LANE_H
#define KVD_COLD_LANE_H

#include "cold_engine.h"
#include "cold_slots.h"
#include "cold_wire.h"

#define COLD_NODES 64u

struct cold_node {
    struct config_listen address;
    struct cold_wire wire;
    bool broken; /* in the pipeline in work: it is not opened again before the next */
};

struct cold_lane {
    const struct cold_engine_config *config;
    int stop_fd;
    struct cold_node node[COLD_NODES]; /* 0: the configured one */
    uint32_t n_nodes;
    uint8_t slot[COLD_SLOTS];
    bool mapped, clustered;
    /* What went wrong in the last call. */
    uint32_t faults;
    bool grave;
    char why[COLD_WORDS];
    uint64_t connections;
};

/* Zeros before, of which it touches what it needs: most of it is for nodes of a cluster. */
void cold_lane_init(struct cold_lane *lane, const struct cold_engine_config *config, int stop_fd);
/* Nodes of the same engine, which are asked for the map as the lane's own are. It is asked for before the next use. */
void cold_lane_learn(struct cold_lane *lane, const struct config_listen *known, uint32_t n);
void cold_lane_close(struct cold_lane *lane);
/* Whether the engine answers. */
bool cold_lane_try(struct cold_lane *lane, uint64_t deadline);
/* Each gets its outcome. */
void cold_lane_serve(struct cold_lane *lane, struct cold_op *const *ops, uint32_t n);

#endif
