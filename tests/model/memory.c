/* SPDX-License-Identifier: Apache-2.0 */
#include "memory.h"

#include "kvd_types.h"

#include <stdlib.h>
#include <string.h>

#define COLUMNS KVD_PAGE_TOKENS

struct memory {
    uint32_t n_pools;
    uint32_t pages[KVD_MAX_POOLS];
    uint32_t *flat[KVD_MAX_POOLS];
    bool planes; /* the geometry form */
    struct geom_pool_spec spec[KVD_MAX_POOLS];
    uint32_t n_planes[KVD_MAX_POOLS]; /* over all ranks */
    struct geom_plane *plane[KVD_MAX_POOLS];
    uint8_t *region[KVD_MAX_POOLS][GEOM_MAX_RANKS];
    uint64_t *state;
};

static void *must(void *p) {
    if (!p) abort();
    return p;
}

struct memory *memory_flat(uint32_t n_pools, const uint32_t *pages, uint32_t state_slots) {
    struct memory *m = must(calloc(1, sizeof *m));
    m->n_pools = n_pools;
    for (uint32_t p = 0; p < n_pools; p++) {
        m->pages[p] = pages[p];
        m->flat[p] = must(calloc((size_t)pages[p] * COLUMNS, sizeof **m->flat));
    }
    m->state = must(calloc((size_t)state_slots + 1, sizeof *m->state));
    return m;
}

static void place_planes(struct memory *m, uint32_t p) {
    const struct geom_pool_spec *s = &m->spec[p];
    uint32_t per_rank = geom_plane_count(s);
    m->plane[p] = must(calloc((size_t)per_rank * s->n_ranks, sizeof **m->plane));
    for (uint32_t rank = 0; rank < s->n_ranks; rank++) {
        m->region[p][rank] = must(calloc(1, geom_region_bytes(s, m->pages[p])));
        for (uint32_t i = 0; i < per_rank; i++) geom_plane_at(s, m->pages[p], rank, i, &m->plane[p][m->n_planes[p]++]);
    }
}

struct memory *memory_geometry(uint32_t n_pools, const uint32_t *pages, uint32_t state_slots,
                               const struct geom_pool_spec *specs) {
    struct memory *m = memory_flat(n_pools, pages, state_slots);
    m->planes = true;
    for (uint32_t p = 0; p < n_pools; p++) {
        m->spec[p] = specs[p];
        if (geom_pool_check(&specs[p], NULL, 0)) {
            memory_free(m);
            return NULL;
        }
        place_planes(m, p);
    }
    return m;
}

void memory_free(struct memory *m) {
    for (uint32_t p = 0; m && p < m->n_pools; p++) {
        free(m->flat[p]);
        free(m->plane[p]);
        for (uint32_t r = 0; r < GEOM_MAX_RANKS; r++) free(m->region[p][r]);
    }
    if (m) free(m->state);
    free(m);
}

/* ---- geometry form: every byte of a (plane, head, column) row follows from the value ---- */

static uint8_t byte_of(uint32_t value, uint32_t plane, uint32_t head, uint64_t i) {
    uint32_t x = (value ^ (plane * 0x9E3779B1u) ^ (head * 0x85EBCA77u)) + (uint32_t)i * 0xC2B2AE3Du;
    x ^= x >> 15;
    x *= 0x2C1B3C6Du;
    return (uint8_t)(x >> 24);
}

/* Page and head strides by what they mean, not by their number (GEOM-4, GEOM-5). */
static uint8_t *row_of(const struct memory *m, uint32_t p, const struct geom_plane *g, uint32_t page, uint32_t head,
                       uint32_t column) {
    bool page_major = g->order == GEOM_PAGE_MAJOR;
    uint64_t by_head = page_major ? g->nb2 : g->nb3, by_page = page_major ? g->nb3 : g->nb2;
    return m->region[p][g->rank] + g->offset + page * by_page + head * by_head + column * g->nb1;
}

static void planes_write(struct memory *m, uint32_t p, uint32_t page, uint32_t column, uint32_t value) {
    for (uint32_t k = 0; k < m->n_planes[p]; k++) {
        const struct geom_plane *g = &m->plane[p][k];
        for (uint32_t head = 0; head < g->n_heads; head++) {
            uint8_t *row = row_of(m, p, g, page, head, column);
            for (uint64_t i = 0; i < g->nb1; i++) row[i] = byte_of(value, k, head, i);
        }
    }
}

static bool planes_hold(const struct memory *m, uint32_t p, uint32_t page, uint32_t column, uint32_t value) {
    for (uint32_t k = 0; k < m->n_planes[p]; k++) {
        const struct geom_plane *g = &m->plane[p][k];
        for (uint32_t head = 0; head < g->n_heads; head++) {
            const uint8_t *row = row_of(m, p, g, page, head, column);
            for (uint64_t i = 0; i < g->nb1; i++)
                if (row[i] != byte_of(value, k, head, i)) return false;
        }
    }
    return true;
}

/* As the transfer engine does it: piece by piece, whole page. */
static void planes_copy(struct memory *m, uint32_t p, uint32_t src, uint32_t dst) {
    const struct geom_pool_spec *s = &m->spec[p];
    for (uint32_t rank = 0; rank < s->n_ranks; rank++)
        for (uint32_t i = 0, n = geom_piece_count(s); i < n; i++) {
            struct geom_piece from, to;
            geom_piece(s, m->pages[p], rank, src, i, &from);
            geom_piece(s, m->pages[p], rank, dst, i, &to);
            memcpy(m->region[p][rank] + to.region_offset, m->region[p][rank] + from.region_offset, to.bytes);
        }
}

/* ---- both forms ---- */

void memory_write(struct memory *m, uint32_t p, uint32_t page, uint32_t first, uint32_t n, const uint32_t *values) {
    memcpy(m->flat[p] + (size_t)page * COLUMNS + first, values, n * sizeof *values);
    for (uint32_t i = 0; m->planes && i < n; i++) planes_write(m, p, page, first + i, values[i]);
}

void memory_copy(struct memory *m, uint32_t p, uint32_t src, uint32_t dst, uint32_t columns) {
    memcpy(m->flat[p] + (size_t)dst * COLUMNS, m->flat[p] + (size_t)src * COLUMNS, columns * sizeof **m->flat);
    if (m->planes) planes_copy(m, p, src, dst);
}

bool memory_holds(const struct memory *m, uint32_t p, uint32_t page, uint32_t n, const uint32_t *values) {
    if (memcmp(m->flat[p] + (size_t)page * COLUMNS, values, n * sizeof *values) != 0) return false;
    for (uint32_t i = 0; m->planes && i < n; i++)
        if (!planes_hold(m, p, page, i, values[i])) return false;
    return true;
}

void memory_poison(struct memory *m, uint32_t p, uint32_t page, uint32_t value) {
    for (uint32_t i = 0; i < COLUMNS; i++) {
        m->flat[p][(size_t)page * COLUMNS + i] = value + i;
        if (m->planes) planes_write(m, p, page, i, value + i);
    }
}

void memory_state_write(struct memory *m, uint32_t slot, uint64_t image) { m->state[slot] = image; }
void memory_state_copy(struct memory *m, uint32_t src, uint32_t dst) { m->state[dst] = m->state[src]; }
uint64_t memory_state_read(const struct memory *m, uint32_t slot) { return m->state[slot]; }
