/* SPDX-License-Identifier: Apache-2.0
 *
 * What writers and readers of the cold tier share: which objects a piece of a continuation has, under which names, and
 * how their engine is reached. Of what is constant in a service: any thread, no lock.
 */
#ifndef KVD_COLD_PIECES_H
#define KVD_COLD_PIECES_H

#include "cold_engine.h"
#include "store.h"

struct service;

struct cold_naming {
    struct cold_layout layout;
    uint8_t key[COLD_SECRET_BYTES];
    const uint8_t *secret; /* key, or NULL: objects have no MAC */
};
/* The secret decides what the objects are called. 0, or 1 with a sentence. The caller wipes it. */
int cold_open_naming(const struct service *service, struct cold_naming *ret_naming, char *err, size_t err_bytes);
struct cold_engine_config cold_engine_config_of(const struct config *config);

const struct geom_pool_spec *cold_spec_of(const struct service *service, uint32_t pool);
/* Of its first object: shard 0. */
void cold_name_piece(const struct cold_layout *layout, const struct store_piece *piece, struct cold_name *ret_name);
/* Objects of what has this name; bytes of each, without the header. */
uint32_t cold_objects_of(const struct service *service, const struct cold_name *name, uint64_t *ret_bytes);
/* The most that a piece has, of whatever kind. */
struct cold_most {
    uint32_t objects;
    uint64_t bytes, object; /* of all its objects, of one of them; with headers */
};
/* 1 with a sentence: they are more than a buffer holds. */
int cold_measure_pieces(const struct service *service, struct cold_most *ret_most, char *err, size_t err_bytes);
/* Bytes of values for which there is room at once, where [cold] buffer is to hold also tables of so many bytes, and for
 * each lane what it keeps and so many objects. At least half of the buffer, and always a piece. */
uint64_t cold_room_for_values(const struct service *service, const struct cold_most *most, uint64_t tables,
                              uint32_t objects);

#endif
