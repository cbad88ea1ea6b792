/* SPDX-License-Identifier: Apache-2.0
 * Extents of the host arena: HOST-2, HOST-3, HOST-4, HOST-6, HOST-7, against worked examples and a byte-map model. */
#include "extent.h"

#include <stdlib.h>

#include "kvt.h"

static struct extent_arena *arena_new(uint64_t capacity, uint32_t max_extents) {
    struct extent_arena *arena = NULL;
    size_t bytes = extent_bytes(max_extents);
    KVT_OK(extent_init(malloc(bytes), bytes, capacity, max_extents, &arena));
    return arena;
}

static struct extent_info take(struct extent_arena *arena, uint64_t stride) {
    struct extent_info info = { { 0 }, 0, 0, 0 };
    extent_id id = { 0 };
    KVT_OK(extent_take_pages(arena, stride, 1, 7, &id));
    KVT_OK(extent_look(arena, id, &info));
    return info;
}

/* HOST-7: capacity 0 is legal and refuses everything. */
static void host_7_no_tier(void) {
    struct extent_arena *a = arena_new(0, 4);
    struct extent_info info;
    struct extent_stats stats;
    KVT_EQ(extent_allocate_at(a, 0, 256, 0, &info), EXTENT_E_SPACE);
    extent_get_stats(a, &stats);
    KVT_EQ(stats.largest_free, 0);
    KVT_EQ(extent_audit(a), 0);
    free(a);
}

/* HOST-3: extents pay for their pages only; strides differ; first fit by offset; neighbours join. */
static void host_3_first_fit(void) {
    struct extent_arena *a = arena_new(256 * 100, 16);
    struct extent_info x = take(a, 2560), y = take(a, 5120), z = take(a, 5120);
    KVT_EQ(x.offset, 0);
    KVT_EQ(y.offset, 2560);
    KVT_EQ(z.offset, 2560 + 5120);
    KVT_OK(extent_release(a, x.id));
    KVT_EQ(extent_release(a, x.id), EXTENT_E_STALE);
    KVT_OK(extent_release(a, y.id));
    struct extent_info w = take(a, 7680); /* only the joined hole is long enough before z */
    KVT_EQ(w.offset, 0);
    struct extent_info bad;
    extent_id id;
    KVT_EQ(extent_allocate_at(a, 15360, 100, 0, &bad), EXTENT_E_ARGUMENT); /* HOST-2: 256-byte strides and offsets */
    KVT_EQ(extent_allocate_at(a, 15400, 256, 0, &bad), EXTENT_E_ARGUMENT);
    KVT_EQ(extent_allocate_at(a, w.offset, 256, 0, &bad), EXTENT_E_SPACE);
    KVT_EQ(extent_take_pages(a, UINT64_C(1) << 40, UINT32_MAX, 0, &id), EXTENT_E_ARGUMENT);
    KVT_OK(extent_allocate_at(a, 15360, 256, 5, &bad));
    KVT_TRUE(bad.offset == 15360 && bad.stride == 256 && bad.tag == 5);
    KVT_EQ(extent_audit(a), 0);
    free(a);
}

/* HOST-2, CONT-3: recovery takes exactly the bytes that a record names: all of them free, inside, at a multiple of 256,
 * or nothing. */
static void host_2_exactly_those_bytes(void) {
    struct extent_arena *a = arena_new(256 * 16, 16);
    struct extent_info info;
    struct extent_stats stats;
    KVT_OK(extent_allocate_at(a, 3072, 512, 1, &info));
    KVT_EQ(extent_allocate_at(a, 2816, 512, 1, &info), EXTENT_E_SPACE);  /* its end is taken */
    KVT_EQ(extent_allocate_at(a, 3328, 512, 1, &info), EXTENT_E_SPACE);  /* its begin is */
    KVT_EQ(extent_allocate_at(a, 2816, 1024, 1, &info), EXTENT_E_SPACE); /* what is taken lies in it */
    KVT_EQ(extent_allocate_at(a, 3840, 512, 1, &info), EXTENT_E_SPACE);  /* its end is outside */
    KVT_EQ(extent_allocate_at(a, 4096, 256, 1, &info), EXTENT_E_SPACE);
    KVT_EQ(extent_allocate_at(a, UINT64_MAX - 255, 256, 1, &info), EXTENT_E_SPACE); /* its end is 0 */
    KVT_EQ(extent_allocate_at(a, 256, UINT64_MAX - 255, 1, &info), EXTENT_E_SPACE);
    KVT_EQ(extent_allocate_at(a, 3584, UINT64_MAX - 255, 1, &info), EXTENT_E_SPACE);
    KVT_EQ(extent_allocate_at(a, 100, 256, 1, &info), EXTENT_E_ARGUMENT);
    KVT_EQ(extent_allocate_at(a, 256, 100, 1, &info), EXTENT_E_ARGUMENT);
    extent_get_stats(a, &stats);
    KVT_EQ(stats.extents, 1);
    KVT_EQ(stats.free_bytes, 4096 - 512);
    KVT_EQ(extent_audit(a), 0);
    free(a);
}

/* HOST-4: free bytes prove nothing: half the arena is free, in holes of one page. What would fit after a release is
 * played on the geometry, and playing changes nothing. */
static void host_4_geometry_decides(void) {
    struct extent_arena *a = arena_new(256 * 16, 32);
    extent_id ids[16], more;
    struct extent_stats stats;
    struct extent_page_want want = { 768, 1, 0 };
    uint64_t scratch[4];
    uint32_t placed;
    KVT_OK(extent_take_pages(a, 256, 16, 7, ids));
    for (int i = 0; i < 16; i += 2) KVT_OK(extent_release(a, ids[i]));
    extent_get_stats(a, &stats);
    KVT_EQ(stats.free_bytes, 256 * 8);
    KVT_EQ(stats.largest_free, 256);
    KVT_EQ(extent_take_pages(a, 512, 1, 0, &more), EXTENT_E_SPACE);
    KVT_TRUE(extent_pages_fit(a, &ids[1], 1, &want, 1, scratch, &placed));
    want.stride = 1024;
    KVT_FALSE(extent_pages_fit(a, &ids[1], 1, &want, 1, scratch, &placed));
    extent_get_stats(a, &stats);
    KVT_EQ(stats.free_bytes, 256 * 8);
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

static void check_map(struct extent_arena *a) {
    uint32_t cursor = 0, used = 0;
    struct extent_info info;
    while (extent_next(a, &cursor, &info)) {
        uint64_t first = info.offset / 256, n = info.stride / 256;
        for (uint64_t i = first; i < first + n; i++) used += map[i] != 0;
    }
    uint32_t filled = 0;
    for (int i = 0; i < MAP; i++) filled += map[i] != 0;
    KVT_EQ(used, filled);
    KVT_EQ(extent_audit(a), 0);
}

/* HOST-3, HOST-4: random extents of one to sixteen units, taken and released, lie where a map of units says. */
static void host_4_random_against_a_map(void) {
    uint64_t seed = kvt_seed();
    struct extent_arena *a = arena_new(256 * MAP, 48);
    memset(map, 0, sizeof map);
    for (unsigned step = 0; step < 60000; step++) {
        struct extent_info info, pick = { { 0 }, 0, 0, 0 };
        uint32_t cursor = 0, n = 0, units = 1 + kvt_below(&seed, 16);
        extent_id id;
        while (extent_next(a, &cursor, &info))
            if (kvt_below(&seed, ++n) == 0) pick = info;
        if (kvt_below(&seed, 5) < 3) {
            int at = model_fit(map, units), rc = extent_take_pages(a, 256 * units, 1, 0, &id);
            if (rc == EXTENT_E_DESCRIPTOR) continue;
            KVT_EQ(rc, at < 0 ? EXTENT_E_SPACE : 0);
            if (rc == 0) {
                KVT_EQ(extent_offset(a, id), (uint64_t)at * 256);
                for (uint32_t i = 0; i < units; i++) map[at + (int)i] = 1;
            }
        } else if (n) {
            KVT_OK(extent_release(a, pick.id));
            memset(map + pick.offset / 256, 0, pick.stride / 256 * sizeof map[0]);
        }
        if (step % 16 == 0) check_map(a);
    }
    free(a);
}

/* ---- pages that are extents of their own --------------------------------------------------- */

/* HOST-3, HOST-6: adjacent and in order where one run holds them all, though a lower run holds some; else scattered
 * from the lowest run on; each goes back alone. */
static void host_6_pages_adjacent_or_scattered(void) {
    struct extent_arena *a = arena_new(256 * 16, 17);
    struct extent_info info;
    extent_id ids[16], more[4];
    KVT_OK(extent_take_pages(a, 256, 16, 3, ids));
    for (unsigned i = 0; i < 16; i++) KVT_EQ(extent_offset(a, ids[i]), 256 * i);
    KVT_EQ(extent_take_pages(a, 256, 1, 3, more), EXTENT_E_SPACE);
    static const int freed[] = { 1, 2, 5, 8, 9, 10, 11, 14 }; /* runs of 2, 1, 4, 1 */
    for (unsigned i = 0; i < 8; i++) KVT_OK(extent_release(a, ids[freed[i]]));
    KVT_OK(extent_take_pages(a, 256, 4, 3, more));
    for (unsigned i = 0; i < 4; i++) KVT_EQ(extent_offset(a, more[i]), 256 * (8 + i));
    KVT_OK(extent_look(a, more[1], &info));
    KVT_TRUE(info.stride == 256 && info.tag == 3);
    KVT_OK(extent_release(a, more[1]));
    KVT_EQ(extent_offset(a, more[1]), UINT64_MAX);
    KVT_OK(extent_take_pages(a, 256, 4, 3, ids)); /* runs of 2, 1, 1, 1 now */
    KVT_EQ(extent_offset(a, ids[0]), 256 * 1);
    KVT_EQ(extent_offset(a, ids[1]), 256 * 2);
    KVT_EQ(extent_offset(a, ids[2]), 256 * 5);
    KVT_EQ(extent_offset(a, ids[3]), 256 * 9);
    KVT_EQ(extent_take_pages(a, 256, 2, 3, more), EXTENT_E_SPACE); /* all or nothing */
    KVT_EQ(extent_take_pages(a, 512, 1, 3, more), EXTENT_E_SPACE);
    KVT_EQ(extent_take_pages(a, 256, 0, 3, more), EXTENT_E_ARGUMENT);
    KVT_EQ(extent_take_pages(a, 100, 1, 3, more), EXTENT_E_ARGUMENT);
    KVT_OK(extent_take_pages(a, 256, 1, 3, more));
    KVT_EQ(extent_audit(a), 0);
    free(a);
}

/* HOST-7: no tier, no page. */
static void host_7_no_pages(void) {
    struct extent_arena *a = arena_new(0, 4);
    struct extent_page_want want = { 256, 1, 0 };
    extent_id id;
    uint64_t scratch;
    uint32_t placed = 9;
    KVT_EQ(extent_take_pages(a, 256, 1, 0, &id), EXTENT_E_SPACE);
    KVT_FALSE(extent_pages_fit(a, NULL, 0, &want, 1, &scratch, &placed));
    KVT_EQ(placed, 0);
    KVT_TRUE(extent_pages_fit(a, NULL, 0, NULL, 0, NULL, NULL));
    free(a);
}

/* HOST-4: a stale drop or a bad stride fits nothing; descriptors are counted; a drop named twice is one. */
static void host_4_pages_fit_arguments(void) {
    struct extent_arena *a = arena_new(256 * 8, 3);
    struct extent_info x = take(a, 512), y = take(a, 512);
    uint64_t scratch[16];
    uint32_t placed[2];
    extent_id ids[2];
    struct extent_page_want wants[2] = { { 256, 2, 0 }, { 512, 1, 0 } };
    KVT_EQ(extent_take_pages(a, 256, 2, 0, ids), EXTENT_E_DESCRIPTOR);
    KVT_FALSE(extent_pages_fit(a, NULL, 0, wants, 2, scratch, placed)); /* one descriptor is free */
    KVT_EQ(placed[0], 1);
    KVT_EQ(placed[1], 0);
    KVT_TRUE(extent_pages_fit(a, &(extent_id[]){ x.id, y.id }[0], 2, wants, 2, scratch, placed));
    KVT_FALSE(extent_pages_fit(a, &(extent_id[]){ x.id, x.id, x.id }[0], 3, wants, 2, scratch, placed));
    KVT_EQ(placed[0] + placed[1], 2);
    KVT_EQ(extent_audit(a), 0);
    wants[1].stride = 100;
    KVT_FALSE(extent_pages_fit(a, &x.id, 1, wants, 2, scratch, placed));
    KVT_EQ(placed[0], 0);
    wants[1].stride = 512;
    KVT_OK(extent_release(a, x.id));
    KVT_FALSE(extent_pages_fit(a, &x.id, 1, wants, 1, scratch, placed));
    KVT_EQ(placed[0], 0);
    KVT_EQ(extent_audit(a), 0);
    free(a);
}

/* Takes n pages of `units` map cells by the rule, as far as they go; returns how many. */
static uint32_t model_pages(uint16_t *m, uint32_t units, uint32_t n) {
    int at = n ? model_fit(m, n * units) : -1;
    if (at >= 0) {
        for (uint32_t i = 0; i < n * units; i++) m[at + (int)i] = 1;
        return n;
    }
    uint32_t left = n;
    for (uint32_t i = 0, run; i < MAP && left; i += run + 1) {
        for (run = 0; i + run < MAP && !m[i + run]; run++) {
        }
        uint32_t pages = run / units < left ? run / units : left;
        for (uint32_t k = 0; k < pages * units; k++) m[i + k] = 1;
        left -= pages;
    }
    return n - left;
}

struct twins {
    struct extent_arena *asked, *blind;
}; /* the same history, one without the questions */

static uint32_t pick_drops(struct extent_arena *a, uint64_t *seed, extent_id *ids, uint16_t *after) {
    struct extent_info info;
    uint32_t cursor = 0, n = 0;
    while (extent_next(a, &cursor, &info)) {
        if (kvt_below(seed, 8)) continue;
        ids[n++] = info.id;
        memset(after + info.offset / 256, 0, info.stride / 256 * sizeof *after);
    }
    return n;
}

static bool really(struct twins *t, const extent_id *drops, uint32_t n_drops, const struct extent_page_want *wants,
                   uint32_t n_wants) {
    extent_id ids[MAP], others[MAP];
    for (uint32_t i = 0; i < n_drops; i++)
        KVT_OK(extent_release(t->asked, drops[i]) | extent_release(t->blind, drops[i]));
    for (uint32_t i = 0; i < n_wants; i++) {
        if (!wants[i].pages) continue;
        int r = extent_take_pages(t->asked, wants[i].stride, wants[i].pages, i, ids);
        KVT_EQ(extent_take_pages(t->blind, wants[i].stride, wants[i].pages, i, others), r);
        if (r) return false;
        KVT_EQ_MEM(ids, others, wants[i].pages * sizeof ids[0]);
    }
    return true;
}

/* HOST-4: extent_pages_fit is right exactly when doing it succeeds, counts what a page map counts, and leaves the arena
 * as it was, down to the handles that come next. */
static void host_4_pages_fit_is_exact(void) {
    uint64_t seed = kvt_seed();
    struct twins t = { arena_new(256 * MAP, 64), arena_new(256 * MAP, 64) };
    uint32_t fits = 0, short_of = 0;
    memset(map, 0, sizeof map);
    for (unsigned step = 0; step < 20000; step++) {
        extent_id drops[64];
        uint16_t after[MAP];
        uint64_t scratch[3 * 20];
        uint32_t placed[3], n_wants = kvt_below(&seed, 4), asked = 0, found = 0;
        struct extent_page_want wants[3];
        struct extent_stats before, now;
        memcpy(after, map, sizeof map);
        uint32_t n_drops = pick_drops(t.asked, &seed, drops, after);
        for (uint32_t i = 0; i < n_wants; i++)
            wants[i] = (struct extent_page_want){ 256 * (1 + kvt_below(&seed, 3)), kvt_below(&seed, 20), i };
        extent_get_stats(t.asked, &before);
        bool fit = extent_pages_fit(t.asked, drops, n_drops, wants, n_wants, scratch, placed);
        extent_get_stats(t.asked, &now);
        KVT_EQ_MEM(&now, &before, offsetof(struct extent_stats, max_extents) + sizeof now.max_extents);
        KVT_EQ(extent_audit(t.asked), 0);
        for (uint32_t i = 0; i < n_wants; i++) asked += wants[i].pages;
        if (asked <= 64 - before.extents) { /* descriptors do not decide */
            for (uint32_t i = 0; i < n_wants; i++) {
                uint32_t n = model_pages(after, (uint32_t)(wants[i].stride / 256), wants[i].pages);
                KVT_EQ(placed[i], n);
                found += n;
            }
            KVT_EQ(fit, found == asked);
        }
        fits += fit, short_of += !fit;
        KVT_EQ(really(&t, drops, n_drops, wants, n_wants), fit);
        struct extent_info info;
        uint32_t cursor = 0;
        memset(map, 0, sizeof map);
        while (extent_next(t.asked, &cursor, &info))
            for (uint64_t i = 0; i < info.stride / 256; i++) KVT_EQ(map[info.offset / 256 + i]++, 0);
        check_map(t.asked);
    }
    KVT_TRUE(fits > 2000 && short_of > 2000);
    free(t.asked), free(t.blind);
}

/* 10^5 pages into 10^5 holes of one page each, asked and done. */
static void many_scattered_pages(void) {
    const uint32_t n = 100000;
    struct extent_arena *a = arena_new(256 * UINT64_C(2) * n, 2 * n);
    extent_id *ids = malloc(2 * n * sizeof *ids);
    uint64_t *scratch = malloc(n * sizeof *scratch);
    struct extent_page_want want = { 256, n, 0 };
    uint32_t placed;
    KVT_OK(extent_take_pages(a, 256, 2 * n, 0, ids));
    for (uint32_t i = 0; i < n; i++) KVT_OK(extent_release(a, ids[2 * i]));
    KVT_TRUE(extent_pages_fit(a, NULL, 0, &want, 1, scratch, &placed));
    KVT_EQ(placed, n);
    want.pages = n - 1, want.stride = 512;
    KVT_FALSE(extent_pages_fit(a, NULL, 0, &want, 1, scratch, &placed));
    KVT_EQ(placed, 0);
    KVT_OK(extent_take_pages(a, 256, n, 0, ids));
    for (uint32_t i = 0; i < n; i++) KVT_EQ(extent_offset(a, ids[i]), UINT64_C(512) * i);
    free(a), free(ids), free(scratch);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(host_7_no_tier),
                                             KVT_CASE(host_3_first_fit),
                                             KVT_CASE(host_2_exactly_those_bytes),
                                             KVT_CASE(host_4_geometry_decides),
                                             KVT_CASE(host_4_random_against_a_map),
                                             KVT_CASE(host_6_pages_adjacent_or_scattered),
                                             KVT_CASE(host_7_no_pages),
                                             KVT_CASE(host_4_pages_fit_arguments),
                                             KVT_CASE(host_4_pages_fit_is_exact),
                                             KVT_CASE(many_scattered_pages),
                                             { 0 } };
    return kvt_main("extent", cases, argc, argv);
}
