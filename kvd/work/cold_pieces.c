/* SPDX-License-Identifier: Apache-2.0 */
#include "cold_pieces.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cold_secret.h"
#include "core.h"

#define SECOND UINT64_C(1000000000)
#define LANE_BYTES (UINT64_C(128) << 10) /* stack, and what is put together for its node */

int cold_open_naming(const struct service *s, struct cold_naming *ret_naming, char *err, size_t err_bytes) {
    const char *path = s->config.cold_secret_file;
    char why[256];
    ret_naming->secret = NULL;
    if (*path) {
        if (cold_read_secret(path, ret_naming->key, why, sizeof why)) {
            snprintf(err, err_bytes, "[cold] secret_file: %s", why);
            return 1;
        }
        ret_naming->secret = ret_naming->key;
    }
    cold_layout_of(&s->plan.spec, s->pools.n_pools, ret_naming->secret, &ret_naming->layout);
    return 0;
}

struct cold_engine_config cold_engine_config_of(const struct config *c) {
    struct cold_engine_config config = { .address = c->cold_address,
                                         .lanes = c->cold_connections,
                                         .connect_ns = c->cold_timeout,
                                         .retry_ns = SECOND / 4,
                                         .retry_most_ns = 10 * SECOND };
    snprintf(config.user, sizeof config.user, "%s", c->cold_user);
    snprintf(config.password_file, sizeof config.password_file, "%s", c->cold_password_file);
    return config;
}

const struct geom_pool_spec *cold_spec_of(const struct service *s, uint32_t pool) {
    return geom_pool_at(&s->plan.spec, pool);
}

void cold_name_piece(const struct cold_layout *layout, const struct store_piece *piece, struct cold_name *ret_name) {
    bool image = piece->kind == STORE_PIECE_IMAGE;
    *ret_name = (struct cold_name){ .kind = image                             ? COLD_IMAGE
                                            : piece->kind == STORE_PIECE_TAIL ? COLD_TAIL
                                                                              : COLD_PAGE,
                                    .pool = image ? 0 : piece->copy.pool,
                                    .columns = image ? 0 : piece->copy.columns };
    memcpy(ret_name->layout, image ? layout->images : layout->pages, sizeof ret_name->layout);
    if (piece->tail.n) cold_tail_digest(piece->digest.bytes, piece->tail.tokens, piece->tail.n, ret_name->digest);
    else memcpy(ret_name->digest, piece->digest.bytes, sizeof ret_name->digest);
}

uint32_t cold_objects_of(const struct service *s, const struct cold_name *name, uint64_t *ret_bytes) {
    if (name->kind == COLD_IMAGE) {
        *ret_bytes = store_get_config(s->store)->host_state_stride / s->pools.n_ranks;
        return s->pools.n_ranks;
    }
    *ret_bytes = geom_shard_bytes(cold_spec_of(s, name->pool));
    return geom_shard_count(cold_spec_of(s, name->pool));
}

int cold_measure_pieces(const struct service *s, struct cold_most *ret_most, char *err, size_t err_bytes) {
    struct cold_most most = { 0 };
    uint64_t limit = s->config.cold_buffer;
    for (uint32_t p = 0; p <= s->pools.n_pools; p++) {
        struct cold_name name = { .kind = p == s->pools.n_pools ? COLD_IMAGE : COLD_PAGE, .pool = p };
        uint64_t bytes;
        if (name.kind == COLD_IMAGE) name.pool = 0;
        uint32_t n = cold_objects_of(s, &name, &bytes);
        bytes += COLD_HEADER_BYTES;
        if (n > most.objects) most.objects = n;
        if (bytes > most.object) most.object = bytes;
        if (n * bytes > most.bytes) most.bytes = n * bytes;
    }
    *ret_most = most;
    if (most.bytes <= limit) return 0;
    snprintf(err, err_bytes,
             "[cold] buffer: a page or state image of this model has %" PRIu64 " bytes with its headers, more than "
             "buffer = %" PRIu64 "; raise it",
             most.bytes, limit);
    return 1;
}

uint64_t cold_room_for_values(const struct service *s, const struct cold_most *most, uint64_t tables,
                              uint32_t objects) {
    uint64_t buffer = s->config.cold_buffer, lane = LANE_BYTES + objects * most->object;
    uint64_t beside = tables + s->config.cold_connections * lane;
    uint64_t room = beside < buffer / 2 ? buffer - beside : buffer / 2;
    return room > most->bytes ? room : most->bytes;
}
