/* SPDX-License-Identifier: Apache-2.0 */
#include "extent.h"

#include <string.h>

#include "extent_internal.h"

/* Free runs are at most one more than the pieces in use; a plan may cut each of its drops out of the middle of an
 * extent. */
static uint32_t run_limit(uint32_t max_extents) { return max_extents + EXTENT_RECIPE_MAX + 2; }

size_t extent_bytes(uint32_t max_extents) {
    if (!max_extents || max_extents > UINT32_MAX / 2) return 0;
    return sizeof(struct extent_arena) + (size_t)max_extents * sizeof(struct slot) +
           (size_t)run_limit(max_extents) * sizeof(struct run_node);
}

int extent_init(void *memory, size_t bytes, uint64_t capacity, uint32_t max_extents, struct extent_arena **ret_arena) {
    if (!extent_bytes(max_extents) || bytes < extent_bytes(max_extents)) return EXTENT_E_ARGUMENT;
    struct extent_arena *a = memory;
    memset(a, 0, sizeof *a);
    a->capacity = capacity - capacity % EXTENT_ALIGN;
    a->max_extents = max_extents;
    a->slots = (struct slot *)(a + 1);
    memset(a->slots, 0, max_extents * sizeof *a->slots);
    for (uint32_t i = 0; i < max_extents; i++) a->slots[i] = (struct slot){ .generation = 1, .next = i + 1 };
    runs_init(&a->runs, (struct run_node *)(a->slots + max_extents), run_limit(max_extents));
    if (a->capacity) runs_give(&a->runs, 0, a->capacity);
    *ret_arena = a;
    return 0;
}

static uint64_t size_of(const struct slot *slot) { return slot->stride * slot->pages; }

bool extent_good_shape(uint64_t stride, uint32_t pages) {
    return stride && stride % EXTENT_ALIGN == 0 && pages && stride <= UINT64_MAX / pages;
}

struct slot *extent_find(const struct extent_arena *a, extent_id id) {
    uint32_t index = (uint32_t)id.bits, generation = (uint32_t)(id.bits >> 32);
    if (index >= a->max_extents || !generation) return NULL;
    struct slot *slot = &a->slots[index];
    return slot->pages && slot->generation == generation ? slot : NULL;
}

extent_id extent_id_of(const struct extent_arena *a, const struct slot *slot) {
    return (extent_id){ (uint64_t)slot->generation << 32 | (uint64_t)(slot - a->slots) };
}

struct slot *extent_occupy(struct extent_arena *a, uint64_t offset, uint64_t stride, uint32_t pages, uint32_t tag) {
    struct slot *slot = &a->slots[a->unused];
    a->unused = slot->next;
    slot->offset = offset, slot->stride = stride, slot->pages = pages, slot->tag = tag;
    a->live++;
    return slot;
}

static void vacate(struct extent_arena *a, struct slot *slot) {
    slot->pages = 0;
    a->live--;
    if (++slot->generation == 0) return; /* retired: a wrapped generation could revive an old handle */
    slot->next = a->unused;
    a->unused = (uint32_t)(slot - a->slots);
}

struct extent_info extent_describe(const struct extent_arena *a, const struct slot *slot) {
    return (struct extent_info){ extent_id_of(a, slot), slot->offset, slot->stride, slot->pages, slot->tag };
}

/* Slots on the free list: retired ones are neither live nor free. */
bool extent_slots_free(const struct extent_arena *a, uint32_t n) {
    uint32_t at = a->unused;
    for (; n && at < a->max_extents; n--) at = a->slots[at].next;
    return n == 0;
}

int extent_allocate(struct extent_arena *a, uint64_t stride, uint32_t pages, uint32_t tag,
                    struct extent_info *ret_extent) {
    uint64_t offset;
    if (!extent_good_shape(stride, pages)) return EXTENT_E_ARGUMENT;
    if (!runs_first_fit(&a->runs, stride * pages, &offset)) return EXTENT_E_SPACE;
    return extent_allocate_at(a, offset, stride, pages, tag, ret_extent);
}

int extent_allocate_at(struct extent_arena *a, uint64_t offset, uint64_t stride, uint32_t pages, uint32_t tag,
                       struct extent_info *ret_extent) {
    if (!extent_good_shape(stride, pages) || offset % EXTENT_ALIGN) return EXTENT_E_ARGUMENT;
    if (!extent_slots_free(a, 1)) return EXTENT_E_DESCRIPTOR;
    if (!runs_take(&a->runs, offset, stride * pages)) return EXTENT_E_SPACE;
    a->revision++;
    *ret_extent = extent_describe(a, extent_occupy(a, offset, stride, pages, tag));
    return 0;
}

int extent_release(struct extent_arena *a, extent_id id) {
    struct slot *slot = extent_find(a, id);
    if (!slot) return EXTENT_E_STALE;
    runs_give(&a->runs, slot->offset, size_of(slot));
    vacate(a, slot);
    a->revision++;
    return 0;
}

int extent_split(struct extent_arena *a, extent_id id, uint32_t at, extent_id ret_parts[2]) {
    struct slot *slot = extent_find(a, id);
    if (!slot) return EXTENT_E_STALE;
    if (at == 0 || at >= slot->pages) return EXTENT_E_ARGUMENT;
    uint32_t reuse = slot->generation != UINT32_MAX; /* a spent slot retires and serves nobody */
    if (!extent_slots_free(a, 2 - reuse)) return EXTENT_E_DESCRIPTOR;
    struct slot old = *slot;
    vacate(a, slot);
    ret_parts[0] = extent_id_of(a, extent_occupy(a, old.offset, old.stride, at, old.tag));
    ret_parts[1] = extent_id_of(a, extent_occupy(a, old.offset + old.stride * at, old.stride, old.pages - at, old.tag));
    a->revision++;
    return 0;
}

uint32_t extent_survivors(const struct slot *slot, const struct extent_range *ranges, uint32_t n) {
    uint32_t at = 0, survivors = 0;
    for (uint32_t i = 0; i < n; i++) {
        survivors += ranges[i].first > at;
        at = ranges[i].first + ranges[i].pages;
    }
    return survivors + (at < slot->pages);
}

void extent_cut(struct extent_arena *a, struct slot *slot, const struct extent_range *ranges, uint32_t n,
                extent_id ret_ends[2]) {
    struct slot old = *slot;
    extent_id ends[2] = { { 0 }, { 0 } };
    uint32_t at = 0;
    vacate(a, slot);
    for (uint32_t i = 0; i <= n; i++) {
        uint32_t end = i < n ? ranges[i].first : old.pages;
        if (end > at) {
            extent_id part =
                extent_id_of(a, extent_occupy(a, old.offset + old.stride * at, old.stride, end - at, old.tag));
            if (i == 0) ends[0] = part;
            if (i == n) ends[1] = part;
        }
        if (i == n) break;
        runs_give(&a->runs, old.offset + old.stride * ranges[i].first, old.stride * ranges[i].pages);
        at = ranges[i].first + ranges[i].pages;
    }
    if (ret_ends) memcpy(ret_ends, ends, sizeof ends);
}

int extent_release_range(struct extent_arena *a, extent_id id, uint32_t first, uint32_t n, extent_id ret_parts[2]) {
    struct slot *slot = extent_find(a, id);
    struct extent_range range = { first, n };
    if (!slot) return EXTENT_E_STALE;
    if (!n || first >= slot->pages || n > slot->pages - first) return EXTENT_E_ARGUMENT;
    /* The old slot serves one survivor unless its generation is spent. */
    uint32_t need = extent_survivors(slot, &range, 1), reuse = slot->generation != UINT32_MAX;
    if (need > reuse && !extent_slots_free(a, need - reuse)) return EXTENT_E_DESCRIPTOR;
    extent_cut(a, slot, &range, 1, ret_parts);
    a->revision++;
    return 0;
}

int extent_look(const struct extent_arena *a, extent_id id, struct extent_info *ret_extent) {
    const struct slot *slot = extent_find(a, id);
    if (!slot) return EXTENT_E_STALE;
    *ret_extent = extent_describe(a, slot);
    return 0;
}

bool extent_next(const struct extent_arena *a, uint32_t *cursor, struct extent_info *ret_extent) {
    while (*cursor < a->max_extents) {
        const struct slot *slot = &a->slots[(*cursor)++];
        if (!slot->pages) continue;
        *ret_extent = extent_describe(a, slot);
        return true;
    }
    return false;
}

void extent_get_stats(const struct extent_arena *a, struct extent_stats *ret) {
    *ret = (struct extent_stats){ .capacity = a->capacity,
                                  .occupied = a->capacity - a->runs.free_bytes,
                                  .free_bytes = a->runs.free_bytes,
                                  .largest_free = runs_longest(&a->runs),
                                  .revision = a->revision,
                                  .extents = a->live,
                                  .free_runs = a->runs.used,
                                  .max_extents = a->max_extents };
}
