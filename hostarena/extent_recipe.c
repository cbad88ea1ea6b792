/* SPDX-License-Identifier: Apache-2.0
 * Recipes: releases and allocations judged and executed as one, on the exact geometry (HOST-4, HOST-5). */
#include <string.h>

#include "extent_internal.h"

/* The drops of one extent, as sorted ranges. */
struct cut {
    struct slot *slot;
    uint32_t n;
    struct extent_range ranges[EXTENT_RECIPE_MAX];
};

static void insert_sorted(struct cut *cut, struct extent_range range) {
    uint32_t at = cut->n++;
    for (; at && cut->ranges[at - 1].first > range.first; at--) cut->ranges[at] = cut->ranges[at - 1];
    cut->ranges[at] = range;
}

static int gather(const struct extent_arena *a, const struct extent_recipe *r, extent_id id, struct cut *ret_cut) {
    struct cut cut = { .slot = extent_find(a, id) };
    if (!cut.slot) return EXTENT_E_STALE;
    for (uint32_t i = 0; i < r->n_drops; i++) {
        if (r->drops[i].id.bits != id.bits) continue;
        bool whole = r->drops[i].pages == 0;
        struct extent_range range = { whole ? 0 : r->drops[i].first, whole ? cut.slot->pages : r->drops[i].pages };
        if (range.first >= cut.slot->pages || range.pages > cut.slot->pages - range.first) return EXTENT_E_ARGUMENT;
        insert_sorted(&cut, range);
    }
    for (uint32_t i = 1; i < cut.n; i++)
        if (cut.ranges[i].first < cut.ranges[i - 1].first + cut.ranges[i - 1].pages) return EXTENT_E_ARGUMENT;
    *ret_cut = cut;
    return 0;
}

/* Is drop i the first that names its extent? Each extent is handled once. */
static bool first_of_its_extent(const struct extent_recipe *r, uint32_t i) {
    for (uint32_t k = 0; k < i; k++)
        if (r->drops[k].id.bits == r->drops[i].id.bits) return false;
    return true;
}

static void give_or_take(struct extent_arena *a, const struct cut *cut, bool give) {
    for (uint32_t i = 0; i < cut->n; i++) {
        uint64_t offset = cut->slot->offset + cut->slot->stride * cut->ranges[i].first;
        uint64_t bytes = cut->slot->stride * cut->ranges[i].pages;
        if (give) runs_give(&a->runs, offset, bytes);
        else runs_take(&a->runs, offset, bytes);
    }
}

/* Checks all drops; descriptors that they give back less those that survivors need, retired slots not counted. */
static int check_drops(const struct extent_arena *a, const struct extent_recipe *r, uint32_t *ret_slots_needed) {
    struct cut cut;
    int64_t need = r->n_wants;
    for (uint32_t i = 0; i < r->n_drops; i++) {
        if (!first_of_its_extent(r, i)) continue;
        int rc = gather(a, r, r->drops[i].id, &cut);
        if (rc) return rc;
        need += (int64_t)extent_survivors(cut.slot, cut.ranges, cut.n) - (cut.slot->generation != UINT32_MAX);
    }
    *ret_slots_needed = need > 0 ? (uint32_t)need : 0;
    return 0;
}

static void all_drops(struct extent_arena *a, const struct extent_recipe *r, bool give) {
    struct cut cut;
    for (uint32_t i = 0; i < r->n_drops; i++)
        if (first_of_its_extent(r, i) && gather(a, r, r->drops[i].id, &cut) == 0) give_or_take(a, &cut, give);
}

static int check_wants(const struct extent_recipe *r) {
    for (uint32_t i = 0; i < r->n_wants; i++) {
        const struct extent_want *w = &r->wants[i];
        if (!w->stride || w->stride % EXTENT_ALIGN || !w->pages || w->stride > UINT64_MAX / w->pages)
            return EXTENT_E_ARGUMENT;
    }
    return 0;
}

/* The plan is played on the free runs themselves and taken back: exact by construction. */
int extent_plan(struct extent_arena *a, struct extent_recipe *r) {
    uint32_t slots, placed = 0;
    uint64_t offsets[EXTENT_RECIPE_MAX];
    if (r->n_drops > EXTENT_RECIPE_MAX || r->n_wants > EXTENT_RECIPE_MAX) return EXTENT_E_ARGUMENT;
    int rc = check_wants(r);
    if (rc == 0) rc = check_drops(a, r, &slots);
    if (rc) return rc;
    if (!extent_slots_free(a, slots)) return EXTENT_E_DESCRIPTOR;
    all_drops(a, r, true);
    for (; placed < r->n_wants; placed++) {
        uint64_t bytes = r->wants[placed].stride * r->wants[placed].pages;
        if (!runs_first_fit(&a->runs, bytes, &offsets[placed])) break;
        runs_take(&a->runs, offsets[placed], bytes);
    }
    bool fits = placed == r->n_wants;
    while (placed--) runs_give(&a->runs, offsets[placed], r->wants[placed].stride * r->wants[placed].pages);
    all_drops(a, r, false);
    if (!fits) return EXTENT_E_SPACE;
    memcpy(r->offsets, offsets, r->n_wants * sizeof offsets[0]);
    r->revision = a->revision;
    return 0;
}

int extent_apply(struct extent_arena *a, const struct extent_recipe *recipe, struct extent_info *ret_extents) {
    if (recipe->revision != a->revision) return EXTENT_E_REVISION;
    struct extent_recipe again = *recipe;
    struct cut cut;
    int rc = extent_plan(a, &again); /* the caller may have touched drops or wants since */
    if (rc == 0 && memcmp(again.offsets, recipe->offsets, recipe->n_wants * sizeof again.offsets[0]))
        rc = EXTENT_E_REVISION;
    if (rc) return rc;
    for (uint32_t i = 0; i < recipe->n_drops; i++)
        if (first_of_its_extent(recipe, i) && gather(a, recipe, recipe->drops[i].id, &cut) == 0)
            extent_cut(a, cut.slot, cut.ranges, cut.n, NULL);
    for (uint32_t i = 0; i < recipe->n_wants; i++) {
        const struct extent_want *w = &recipe->wants[i];
        extent_allocate_at(a, recipe->offsets[i], w->stride, w->pages, w->tag, &ret_extents[i]);
    }
    a->revision = again.revision + 1;
    return 0;
}

/* Live extents must be disjoint, inside, and together with the free runs fill the arena. */
uint32_t extent_audit(const struct extent_arena *a) {
    uint32_t bad = runs_audit(&a->runs), live = 0, cursor = 0;
    uint64_t sum = 0, at = 0, offset, bytes;
    struct extent_info info;
    while (extent_next(a, &cursor, &info)) {
        uint64_t size = info.stride * info.pages, next = info.offset;
        live++;
        sum += size;
        bad += info.offset % EXTENT_ALIGN != 0 || size > a->capacity || info.offset > a->capacity - size;
        if (runs_next(&a->runs, &next, &offset, &bytes)) bad += offset < info.offset + size;
    }
    while (runs_next(&a->runs, &at, &offset, &bytes)) bad += bytes > a->capacity || offset > a->capacity - bytes;
    return bad + (sum + a->runs.free_bytes != a->capacity) + (live != a->live);
}
