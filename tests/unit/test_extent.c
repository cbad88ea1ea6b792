/* SPDX-License-Identifier: Apache-2.0
 * Extents of the host arena: HOST-2, HOST-3, HOST-4, HOST-5, HOST-7, against worked examples and a byte-map model. */
#include "extent.h"

#include <stdlib.h>

#include "kvt.h"

static struct extent_arena *arena_new(uint64_t capacity, uint32_t max_extents) {
    struct extent_arena *arena = NULL;
    size_t bytes = extent_bytes(max_extents);
    KVT_OK(extent_init(malloc(bytes), bytes, capacity, max_extents, &arena));
    return arena;
}

static struct extent_info take(struct extent_arena *arena, uint64_t stride, uint32_t pages) {
    struct extent_info info = { { 0 }, 0, 0, 0, 0 };
    KVT_OK(extent_allocate(arena, stride, pages, 7, &info));
    return info;
}

/* HOST-7: capacity 0 is legal and refuses everything. */
static void host_7_no_tier(void) {
    struct extent_arena *a = arena_new(0, 4);
    struct extent_info info;
    struct extent_stats stats;
    KVT_EQ(extent_allocate(a, 256, 1, 0, &info), EXTENT_E_SPACE);
    extent_get_stats(a, &stats);
    KVT_EQ(stats.largest_free, 0);
    KVT_EQ(extent_audit(a), 0);
    free(a);
}

/* HOST-3: extents pay for their pages only; strides differ; first fit by offset; neighbours join. */
static void host_3_first_fit(void) {
    struct extent_arena *a = arena_new(256 * 100, 16);
    struct extent_info x = take(a, 256, 10), y = take(a, 512, 10), z = take(a, 256, 20);
    KVT_EQ(x.offset, 0);
    KVT_EQ(y.offset, 2560);
    KVT_EQ(z.offset, 2560 + 5120);
    KVT_OK(extent_release(a, x.id));
    KVT_EQ(extent_release(a, x.id), EXTENT_E_STALE);
    KVT_OK(extent_release(a, y.id));
    struct extent_info w = take(a, 256, 30); /* only the joined hole is long enough before z */
    KVT_EQ(w.offset, 0);
    struct extent_info bad;
    KVT_EQ(extent_allocate(a, 100, 1, 0, &bad), EXTENT_E_ARGUMENT); /* HOST-2: 256-byte strides */
    KVT_EQ(extent_allocate(a, 256, 0, 0, &bad), EXTENT_E_ARGUMENT);
    KVT_EQ(extent_allocate(a, UINT64_C(1) << 40, UINT32_MAX, 0, &bad), EXTENT_E_ARGUMENT);
    KVT_EQ(extent_audit(a), 0);
    free(a);
}

/* HOST-4: free bytes prove nothing: half the arena is free, in holes of one page. */
static void host_4_geometry_decides(void) {
    struct extent_arena *a = arena_new(256 * 16, 32);
    struct extent_id_list { extent_id id; } ids[16];
    struct extent_info info;
    struct extent_stats stats;
    for (int i = 0; i < 16; i++) ids[i].id = take(a, 256, 1).id;
    for (int i = 0; i < 16; i += 2) KVT_OK(extent_release(a, ids[i].id));
    extent_get_stats(a, &stats);
    KVT_EQ(stats.free_bytes, 256 * 8);
    KVT_EQ(stats.largest_free, 256);
    KVT_EQ(extent_allocate(a, 256, 2, 0, &info), EXTENT_E_SPACE);
    struct extent_recipe r = { .n_drops = 1, .n_wants = 1, .drops = { { ids[1].id, 0, 0 } }, .wants = { { 256, 3, 0 } } };
    uint64_t revision = stats.revision;
    KVT_OK(extent_plan(a, &r));
    KVT_EQ(r.offsets[0], 0);
    extent_get_stats(a, &stats);
    KVT_EQ(stats.revision, revision); /* a plan changes nothing */
    KVT_EQ(extent_audit(a), 0);
    r.wants[0].pages = 4;
    KVT_EQ(extent_plan(a, &r), EXTENT_E_SPACE);
    KVT_EQ(extent_audit(a), 0);
    free(a);
}

/* HOST-5: a recipe of another revision, or with a stale or doubled release, changes nothing; a good one lands where it was planned. */
static void host_5_stale_recipe(void) {
    struct extent_arena *a = arena_new(256 * 8, 8);
    struct extent_info x = take(a, 256, 4), out[EXTENT_RECIPE_MAX], y;
    struct extent_recipe r = { .n_drops = 1, .n_wants = 2, .drops = { { x.id, 0, 0 } }, .wants = { { 256, 3, 1 }, { 512, 2, 2 } } };
    KVT_OK(extent_plan(a, &r));
    KVT_EQ(r.offsets[0], 0);
    KVT_EQ(r.offsets[1], 768);
    y = take(a, 256, 1);
    KVT_EQ(extent_apply(a, &r, out), EXTENT_E_REVISION);
    KVT_OK(extent_look(a, x.id, out));
    KVT_OK(extent_release(a, y.id));
    KVT_OK(extent_plan(a, &r));
    KVT_OK(extent_apply(a, &r, out));
    KVT_EQ(out[0].offset, 0);
    KVT_EQ(out[1].offset, 768);
    KVT_EQ(out[1].tag, 2);
    KVT_EQ(extent_look(a, x.id, out), EXTENT_E_STALE);
    struct extent_recipe twice = { .n_drops = 2, .drops = { { out[1].id, 0, 0 }, { out[1].id, 1, 1 } } };
    KVT_EQ(extent_plan(a, &twice), EXTENT_E_ARGUMENT); /* the second drop overlaps the first */
    free(a);
}

/* The worked examples of the reference: releasing {0, 2} of 4 leaves two one-page extents; a partial release admits exactly two pages, not three. */
static void host_4_partial_releases(void) {
    struct extent_arena *a = arena_new(256 * 6, 6);
    struct extent_info x = take(a, 256, 4), rest = take(a, 256, 2), info, out[4];
    struct extent_recipe r = { .n_drops = 2, .n_wants = 1, .drops = { { x.id, 1, 1 }, { x.id, 2, 1 } }, .wants = { { 256, 3, 0 } } };
    KVT_EQ(extent_plan(a, &r), EXTENT_E_SPACE);
    r.wants[0].pages = 2;
    KVT_OK(extent_plan(a, &r));
    r.drops[1].first = 1; /* overlaps the other */
    KVT_EQ(extent_plan(a, &r), EXTENT_E_ARGUMENT);
    r = (struct extent_recipe){ .n_drops = 2, .drops = { { x.id, 2, 1 }, { x.id, 0, 1 } } };
    KVT_OK(extent_plan(a, &r));
    KVT_OK(extent_apply(a, &r, out));
    struct extent_stats stats;
    extent_get_stats(a, &stats);
    KVT_EQ(stats.occupied, 256 * 4); /* two survivors of x, and rest */
    KVT_EQ(stats.extents, 3);
    uint32_t cursor = 0, ones = 0;
    while (extent_next(a, &cursor, &info)) ones += info.pages == 1;
    KVT_EQ(ones, 2);
    extent_id parts[2];
    KVT_EQ(extent_split(a, rest.id, 2, parts), EXTENT_E_ARGUMENT);
    KVT_OK(extent_split(a, rest.id, 1, parts));
    KVT_EQ(extent_look(a, rest.id, &info), EXTENT_E_STALE);
    KVT_OK(extent_look(a, parts[1], &info));
    KVT_EQ(info.offset, 256 * 5);
    KVT_EQ(extent_audit(a), 0);
    free(a);
}

/* A middle release needs a descriptor more; without one it is refused and nothing has changed. */
static void host_4_descriptor_budget(void) {
    struct extent_arena *a = arena_new(256 * 8, 1);
    struct extent_info x = take(a, 256, 8), info;
    extent_id parts[2];
    KVT_EQ(extent_release_range(a, x.id, 3, 2, parts), EXTENT_E_DESCRIPTOR);
    KVT_EQ(extent_split(a, x.id, 3, parts), EXTENT_E_DESCRIPTOR);
    KVT_OK(extent_look(a, x.id, &info));
    KVT_OK(extent_release_range(a, x.id, 0, 3, parts));
    KVT_EQ(parts[0].bits, 0);
    KVT_OK(extent_look(a, parts[1], &info));
    KVT_EQ(info.offset, 768);
    KVT_EQ(info.pages, 5);
    KVT_EQ(extent_audit(a), 0);
    free(a);
}

/* ---- against a map of pages ------------------------------------------------------------- */

#define MAP 96
static uint16_t map[MAP]; /* 0 free, else number of the extent */

static int model_fit(const uint16_t *m, uint32_t n) {
    for (uint32_t at = 0, run = 0; at < MAP; at++) {
        run = m[at] ? 0 : run + 1;
        if (run == n) return (int)(at + 1 - n);
    }
    return -1;
}

static void check_map(const struct extent_arena *a) {
    uint32_t cursor = 0, used = 0;
    struct extent_info info;
    while (extent_next(a, &cursor, &info)) {
        uint64_t first = info.offset / 256, n = info.stride / 256 * info.pages;
        for (uint64_t i = first; i < first + n; i++) used += map[i] != 0;
    }
    uint32_t filled = 0;
    for (int i = 0; i < MAP; i++) filled += map[i] != 0;
    KVT_EQ(used, filled);
    KVT_EQ(extent_audit(a), 0);
}

/* HOST-3, HOST-4, HOST-5: random allocations, releases, range releases, splits and recipes give the offsets that a page map gives. */
static void host_4_random_against_a_map(void) {
    uint64_t seed = kvt_seed();
    struct extent_arena *a = arena_new(256 * MAP, 48);
    memset(map, 0, sizeof map);
    for (unsigned step = 0; step < 60000; step++) {
        struct extent_info info, pick = { { 0 }, 0, 0, 0, 0 };
        uint32_t cursor = 0, n = 0;
        while (extent_next(a, &cursor, &info))
            if (kvt_below(&seed, ++n) == 0) pick = info;
        uint32_t what = kvt_below(&seed, 5), pages = 1 + kvt_below(&seed, 8), units = 1 + kvt_below(&seed, 2);
        uint64_t first = pick.offset / 256, wide = pick.stride / 256;
        if (what < 2) {
            int at = model_fit(map, pages * units), rc = extent_allocate(a, 256 * units, pages, 0, &info);
            if (rc == EXTENT_E_DESCRIPTOR) continue;
            KVT_EQ(rc, at < 0 ? EXTENT_E_SPACE : 0);
            if (rc == 0) {
                KVT_EQ(info.offset, (uint64_t)at * 256);
                for (uint32_t i = 0; i < pages * units; i++) map[at + (int)i] = 1;
            }
        } else if (n && what == 2) {
            KVT_OK(extent_release(a, pick.id));
            memset(map + first, 0, pick.pages * wide * sizeof map[0]);
        } else if (n && what == 3) {
            extent_id parts[2];
            uint32_t from = kvt_below(&seed, pick.pages), count = 1 + kvt_below(&seed, pick.pages - from);
            if (extent_release_range(a, pick.id, from, count, parts) == 0)
                memset(map + first + from * wide, 0, count * wide * sizeof map[0]);
        } else if (n) {
            struct extent_recipe r = { .n_drops = 1, .n_wants = 2, .drops = { { pick.id, 0, 1 } },
                                       .wants = { { 256 * units, pages, 0 }, { 256, 1 + kvt_below(&seed, 4), 0 } } };
            struct extent_info out[2];
            uint16_t after[MAP];
            memcpy(after, map, sizeof map);
            memset(after + first, 0, wide * sizeof map[0]);
            int x = model_fit(after, pages * units), y = -1;
            if (x >= 0) for (uint32_t i = 0; i < pages * units; i++) after[x + (int)i] = 1;
            if (x >= 0) y = model_fit(after, r.wants[1].pages);
            int rc = extent_plan(a, &r);
            if (rc == EXTENT_E_DESCRIPTOR) continue;
            KVT_EQ(rc, x < 0 || y < 0 ? EXTENT_E_SPACE : 0);
            if (rc) continue;
            KVT_OK(extent_apply(a, &r, out));
            KVT_EQ(out[0].offset, (uint64_t)x * 256);
            KVT_EQ(out[1].offset, (uint64_t)y * 256);
            for (uint32_t i = 0; i < r.wants[1].pages; i++) after[y + (int)i] = 1;
            memcpy(map, after, sizeof map);
        }
        if (step % 16 == 0) check_map(a);
    }
    free(a);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = {
        KVT_CASE(host_7_no_tier), KVT_CASE(host_3_first_fit), KVT_CASE(host_4_geometry_decides), KVT_CASE(host_5_stale_recipe),
        KVT_CASE(host_4_partial_releases), KVT_CASE(host_4_descriptor_budget), KVT_CASE(host_4_random_against_a_map), { 0 }
    };
    return kvt_main("extent", cases, argc, argv);
}
