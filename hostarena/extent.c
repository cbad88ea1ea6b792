/* SPDX-License-Identifier: Apache-2.0 */
#include "extent.h"

#include <string.h>

#include "extent_internal.h"

/* There is at most one free run more than there are extents. */
static uint32_t run_limit(uint32_t max_extents) { return max_extents + 2; }

size_t extent_bytes(uint32_t max_extents) {
    if (!max_extents || max_extents > UINT32_MAX / 2) return 0;
    return sizeof(struct extent_arena) + (size_t)max_extents * sizeof(struct extent_slot) +
           (size_t)run_limit(max_extents) * sizeof(struct run_node);
}

int extent_init(void *memory, size_t bytes, uint64_t capacity, uint32_t max_extents, struct extent_arena **ret_arena) {
    if (!extent_bytes(max_extents) || bytes < extent_bytes(max_extents)) return EXTENT_E_ARGUMENT;
    struct extent_arena *a = memory;
    memset(a, 0, sizeof *a);
    a->capacity = capacity - capacity % EXTENT_ALIGN;
    a->max_extents = max_extents;
    a->slots = (struct extent_slot *)(a + 1);
    for (uint32_t i = 0; i < max_extents; i++) a->slots[i] = (struct extent_slot){ .generation = 1, .next = i + 1 };
    runs_init(&a->runs, (struct run_node *)(a->slots + max_extents), run_limit(max_extents));
    if (a->capacity) runs_give(&a->runs, 0, a->capacity);
    *ret_arena = a;
    return 0;
}

bool extent_good_shape(uint64_t stride, uint32_t pages) {
    return stride && stride % EXTENT_ALIGN == 0 && pages && stride <= UINT64_MAX / pages;
}

struct extent_slot *extent_find(const struct extent_arena *a, extent_id id) {
    uint32_t index = (uint32_t)id.bits, generation = (uint32_t)(id.bits >> 32);
    if (index >= a->max_extents || !generation) return NULL;
    struct extent_slot *slot = &a->slots[index];
    return slot->stride && slot->generation == generation ? slot : NULL;
}

extent_id extent_id_of(const struct extent_arena *a, const struct extent_slot *slot) {
    return (extent_id){ (uint64_t)slot->generation << 32 | (uint64_t)(slot - a->slots) };
}

struct extent_slot *extent_occupy(struct extent_arena *a, uint64_t offset, uint64_t stride, uint32_t tag) {
    struct extent_slot *slot = &a->slots[a->unused];
    a->unused = slot->next;
    slot->offset = offset, slot->stride = stride, slot->tag = tag;
    a->live++;
    if (slot < a->slots + a->audited) a->recount_live++, a->recount_bytes += stride;
    return slot;
}

static struct extent_info describe_slot(const struct extent_arena *a, const struct extent_slot *slot) {
    return (struct extent_info){ extent_id_of(a, slot), slot->offset, slot->stride, slot->tag };
}

uint32_t extent_slots_left(const struct extent_arena *a, uint64_t most) {
    uint32_t n = 0;
    for (uint32_t at = a->unused; n < most && at < a->max_extents; at = a->slots[at].next) n++;
    return n;
}

int extent_allocate_at(struct extent_arena *a, uint64_t offset, uint64_t stride, uint32_t tag,
                       struct extent_info *ret_extent) {
    if (!extent_good_shape(stride, 1) || offset % EXTENT_ALIGN) return EXTENT_E_ARGUMENT;
    if (!extent_slots_left(a, 1)) return EXTENT_E_DESCRIPTOR;
    if (!runs_take(&a->runs, offset, stride)) return EXTENT_E_SPACE;
    *ret_extent = describe_slot(a, extent_occupy(a, offset, stride, tag));
    return 0;
}

int extent_release(struct extent_arena *a, extent_id id) {
    struct extent_slot *slot = extent_find(a, id);
    if (!slot) return EXTENT_E_STALE;
    runs_give(&a->runs, slot->offset, slot->stride);
    if (slot < a->slots + a->audited) a->recount_live--, a->recount_bytes -= slot->stride;
    slot->stride = 0;
    a->live--;
    if (++slot->generation == 0) return 0; /* retired */
    slot->next = a->unused;
    a->unused = (uint32_t)(slot - a->slots);
    return 0;
}

uint64_t extent_offset(const struct extent_arena *a, extent_id id) {
    const struct extent_slot *slot = extent_find(a, id);
    return slot ? slot->offset : UINT64_MAX;
}

int extent_look(const struct extent_arena *a, extent_id id, struct extent_info *ret_extent) {
    const struct extent_slot *slot = extent_find(a, id);
    if (!slot) return EXTENT_E_STALE;
    *ret_extent = describe_slot(a, slot);
    return 0;
}

bool extent_next(const struct extent_arena *a, uint32_t *cursor, struct extent_info *ret_extent) {
    while (*cursor < a->max_extents) {
        const struct extent_slot *slot = &a->slots[(*cursor)++];
        if (!slot->stride) continue;
        *ret_extent = describe_slot(a, slot);
        return true;
    }
    return false;
}

void extent_get_stats(const struct extent_arena *a, struct extent_stats *ret) {
    *ret = (struct extent_stats){ .capacity = a->capacity,
                                  .occupied = a->capacity - a->runs.free_bytes,
                                  .free_bytes = a->runs.free_bytes,
                                  .largest_free = runs_longest(&a->runs),
                                  .extents = a->live,
                                  .free_runs = a->runs.used,
                                  .max_extents = a->max_extents };
}

void extent_audit_begin(struct extent_arena *a) {
    a->audited = a->recount_live = 0;
    a->recount_bytes = 0;
}

bool extent_audit_some(struct extent_arena *a, uint32_t n, uint32_t *bad) {
    for (; n && a->audited < a->max_extents; n--) {
        const struct extent_slot *slot = &a->slots[a->audited++];
        uint64_t next = slot->offset, offset, bytes;
        if (!slot->stride) continue;
        a->recount_live++;
        a->recount_bytes += slot->stride;
        *bad +=
            slot->offset % EXTENT_ALIGN != 0 || slot->stride > a->capacity || slot->offset > a->capacity - slot->stride;
        if (runs_next(&a->runs, &next, &offset, &bytes)) *bad += offset < slot->offset + slot->stride;
    }
    return a->audited < a->max_extents;
}

uint32_t extent_audit_counts(const struct extent_arena *a) {
    uint32_t bad = a->recount_bytes + a->runs.free_bytes != a->capacity;
    return bad + (a->recount_live != a->live);
}

uint32_t extent_audit_runs(const struct extent_arena *a) {
    uint32_t bad = runs_audit(&a->runs);
    uint64_t at = 0, offset, bytes;
    while (runs_next(&a->runs, &at, &offset, &bytes)) bad += bytes > a->capacity || offset > a->capacity - bytes;
    return bad;
}

uint32_t extent_audit(struct extent_arena *a) {
    uint32_t bad = 0;
    extent_audit_begin(a);
    while (extent_audit_some(a, UINT32_MAX, &bad)) continue;
    return bad + extent_audit_counts(a) + extent_audit_runs(a);
}
