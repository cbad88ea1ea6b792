/* SPDX-License-Identifier: Apache-2.0 */
#include "device_strip.h"

#include <string.h>

void move_walk_begin(struct move_walk *walk, const struct geom_pool_spec *spec, uint32_t n_pages, uint32_t rank,
                     const struct device_move *moves, uint32_t n) {
    *walk = (struct move_walk){ .spec = spec,
                                .moves = moves,
                                .n = n,
                                .n_pages = n_pages,
                                .rank = rank,
                                .n_groups = geom_group_count(spec),
                                .packed = geom_packed_bytes(spec) };
}

/* Addresses are compared as numbers: two packed forms need not lie in one object. */
static bool follows(const struct move_walk *walk, const struct device_move *a, const struct device_move *b) {
    return b->page == a->page + 1 && (uintptr_t)b->host == (uintptr_t)a->host + walk->packed;
}

static void begin_run(struct move_walk *walk, uint32_t at) {
    uint32_t run = 1;
    while (at + run < walk->n && follows(walk, &walk->moves[at + run - 1], &walk->moves[at + run])) run++;
    walk->at = at;
    walk->run = run;
}

static void begin_group(struct move_walk *walk, uint32_t group) {
    struct geom_group_shape shape;
    geom_group_shape(walk->spec, group, &shape);
    walk->group = group;
    walk->first_piece = shape.piece;
    walk->pieces = shape.pieces;
    walk->layers = shape.layers;
    walk->heads = shape.order == GEOM_HEAD_MAJOR ? shape.heads : 1;
    uint32_t by_layers = walk->pieces / walk->layers, by_heads = walk->pieces / walk->heads; /* of one page */
    uint32_t run = walk->run;
    walk->strip = 0;
    walk->along = by_heads < by_layers ? STRIP_HEADS : STRIP_LAYERS;
    walk->per_page = by_heads < by_layers ? by_heads : by_layers;
    walk->n_strips = (uint64_t)walk->per_page * run;
    if (walk->pieces < walk->n_strips) {
        walk->along = STRIP_PAGES;
        walk->n_strips = walk->pieces;
    }
}

/* A strip's first piece, the piece of its second row, and how many rows. Pages are counted from the run's first. */
struct rows {
    uint32_t page, piece, next_page, next_piece, count;
};

static struct rows rows_of(const struct move_walk *walk) {
    uint32_t page = (uint32_t)(walk->strip / walk->per_page), i = (uint32_t)(walk->strip % walk->per_page);
    if (walk->along == STRIP_PAGES)
        return (struct rows){ 0, (uint32_t)walk->strip, 1, (uint32_t)walk->strip, walk->run };
    if (walk->along == STRIP_HEADS)
        return (struct rows){ page, i * walk->heads, page, i * walk->heads + 1, walk->heads };
    return (struct rows){ page, i, page, i + walk->pieces / walk->layers, walk->layers };
}

bool move_walk_next(struct move_walk *walk, struct move_strip *ret_strip) {
    if (walk->strip == walk->n_strips) {
        bool first = walk->run == 0 || walk->group + 1 == walk->n_groups; /* of the next run */
        if (first && walk->at + walk->run >= walk->n) return false;
        if (first) begin_run(walk, walk->at + walk->run);
        begin_group(walk, first ? 0 : walk->group + 1);
    }
    struct rows rows = rows_of(walk);
    const struct device_move *move = &walk->moves[walk->at + rows.page];
    struct geom_piece first, second;
    geom_piece(walk->spec, walk->n_pages, walk->rank, move->page, walk->first_piece + rows.piece, &first);
    second = first;
    if (rows.count > 1) {
        uint32_t page = walk->moves[walk->at + rows.next_page].page;
        geom_piece(walk->spec, walk->n_pages, walk->rank, page, walk->first_piece + rows.next_piece, &second);
        if (rows.next_page != rows.page) second.packed_offset += walk->packed;
    }
    *ret_strip = (struct move_strip){ .region_offset = first.region_offset,
                                      .region_pitch = second.region_offset - first.region_offset,
                                      .host = move->host + first.packed_offset,
                                      .host_pitch = second.packed_offset - first.packed_offset,
                                      .width = first.bytes,
                                      .rows = rows.count };
    walk->strip++;
    return true;
}

/* Pieces come in the order of their packed offsets. Where a plane lies does not matter: any page of a pool will do. */
void move_clear_padding(const struct geom_pool_spec *spec, uint8_t *host) {
    uint64_t packed = geom_packed_bytes(spec), at = 0;
    if (geom_rank_page_bytes(spec) == packed) return;
    uint32_t pieces = geom_piece_count(spec);
    for (uint32_t i = 0; i < pieces; i++) {
        struct geom_piece piece;
        geom_piece(spec, 1, 0, 0, i, &piece);
        memset(host + at, 0, piece.packed_offset - at);
        at = piece.packed_offset + piece.bytes;
    }
    memset(host + at, 0, packed - at);
}
