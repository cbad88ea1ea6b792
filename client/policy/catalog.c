/* SPDX-License-Identifier: Apache-2.0 */
#include "catalog.h"

#include <stdlib.h>
#include <string.h>

#define SECOND_NS UINT64_C(1000000000)

/* ---- handles ---- */

static uint32_t hash_handle(uint64_t bits) { return (uint32_t)(bits * UINT64_C(0x9E3779B97F4A7C15) >> 32); }

/* Where the handle is, or would be. */
static uint32_t *slot_of(const struct catalog *c, uint64_t bits) {
    uint32_t at = hash_handle(bits) & (c->n_slots - 1);
    while (c->slots[at] && c->entries[c->slots[at] - 1].bits != bits) at = (at + 1) & (c->n_slots - 1);
    return &c->slots[at];
}

/* Also moves what stood behind it because it was there. */
static void free_slot(struct catalog *c, uint32_t *slot) {
    uint32_t mask = c->n_slots - 1, hole = (uint32_t)(slot - c->slots);
    for (uint32_t at = (hole + 1) & mask; c->slots[at]; at = (at + 1) & mask) {
        uint32_t home = hash_handle(c->entries[c->slots[at] - 1].bits) & mask;
        if (((at - home) & mask) < ((at - hole) & mask)) continue;
        c->slots[hole] = c->slots[at];
        hole = at;
    }
    c->slots[hole] = 0;
}

struct catalog_entry *catalog_find(const struct catalog *c, uint64_t bits) {
    uint32_t index = bits ? *slot_of(c, bits) : 0;
    return index ? &c->entries[index - 1] : NULL;
}

/* ---- lists ---- */

/* Not of a pinned one. */
static struct catalog_list *list_of(const struct catalog *c, const struct catalog_entry *e) {
    return &c->list[(((uint32_t)e->class * 2 + e->demoted) * REUSE_PARTS + e->part) * REUSE_RATES + e->rate];
}

static uint64_t age_of(const struct catalog *c, const struct catalog_entry *e) {
    return c->now_ns > e->at_ns ? c->now_ns - e->at_ns : 0;
}

static bool is_younger(const struct catalog *c, uint32_t index, uint32_t band) {
    return band == REUSE_BANDS - 1 || age_of(c, &c->entries[index]) < c->model->edge[band + 1];
}

/* Requests end in another order than they begin: the place of a new one is near the young end, not at it. */
static void link_entry(struct catalog *c, uint32_t index) {
    struct catalog_entry *e = &c->entries[index];
    e->part = (uint8_t)reuse_first_part(e->prompt_pages, e->pages);
    if (e->class == CATALOG_PINNED) {
        c->pinned_pages += e->pages;
        return;
    }
    struct catalog_list *l = list_of(c, e);
    uint32_t older = l->youngest;
    while (older != CATALOG_NONE && c->entries[older].at_ns > e->at_ns) older = c->entries[older].older;
    e->older = older;
    e->younger = older == CATALOG_NONE ? l->oldest : c->entries[older].younger;
    *(older == CATALOG_NONE ? &l->oldest : &c->entries[older].younger) = index;
    *(e->younger == CATALOG_NONE ? &l->youngest : &c->entries[e->younger].older) = index;
    for (uint32_t b = 0; b < REUSE_BANDS; b++)
        if (l->front[b] == e->younger && is_younger(c, index, b)) l->front[b] = index;
}

static void unlink_entry(struct catalog *c, uint32_t index) {
    struct catalog_entry *e = &c->entries[index];
    if (e->class == CATALOG_PINNED) {
        c->pinned_pages -= e->pages;
        return;
    }
    struct catalog_list *l = list_of(c, e);
    for (uint32_t b = 0; b < REUSE_BANDS; b++)
        if (l->front[b] == index) l->front[b] = e->younger;
    *(e->older == CATALOG_NONE ? &l->oldest : &c->entries[e->older].younger) = e->younger;
    *(e->younger == CATALOG_NONE ? &l->youngest : &c->entries[e->younger].older) = e->older;
}

/* ---- life ---- */

int catalog_init(struct catalog *c, const struct reuse_model *model, uint32_t most) {
    *c = (struct catalog){ .model = model, .most = most, .n_slots = 16, .expire_ns = UINT64_MAX };
    while (c->n_slots < 2 * most) c->n_slots *= 2;
    c->entries = calloc(most, sizeof *c->entries);
    c->slots = calloc(c->n_slots, sizeof *c->slots);
    for (int k = 0; k < 2; k++) c->heap[k] = calloc(2 * (size_t)most, sizeof *c->heap[k]);
    c->list = malloc(CATALOG_LISTS * sizeof *c->list);
    for (uint32_t i = 0; c->entries && i < most; i++) c->entries[i].younger = i + 1 < most ? i + 1 : CATALOG_NONE;
    if (c->list) memset(c->list, 0xff, CATALOG_LISTS * sizeof *c->list); /* CATALOG_NONE everywhere */
    if (c->entries && c->slots && c->heap[0] && c->heap[1] && c->list) return 0;
    catalog_free(c);
    return 1;
}

void catalog_free(struct catalog *c) {
    free(c->entries);
    free(c->slots);
    free(c->heap[0]);
    free(c->heap[1]);
    free(c->list);
}

void catalog_remove(struct catalog *c, uint64_t bits) {
    struct catalog_entry *e = catalog_find(c, bits);
    if (!e) return;
    unlink_entry(c, (uint32_t)(e - c->entries));
    free_slot(c, slot_of(c, bits));
    e->bits = 0;
    e->younger = c->free;
    c->free = (uint32_t)(e - c->entries);
    c->alive--;
}

static void forget_oldest(struct catalog *c) {
    const struct catalog_entry *oldest = NULL;
    for (uint32_t r = 0; r < CATALOG_LISTS; r++) {
        if (c->list[r].oldest == CATALOG_NONE) continue;
        const struct catalog_entry *e = &c->entries[c->list[r].oldest];
        if (!oldest || e->at_ns < oldest->at_ns) oldest = e;
    }
    if (oldest) catalog_remove(c, oldest->bits);
}

void catalog_put(struct catalog *c, const struct catalog_entry *entry) {
    const struct catalog_entry *before = catalog_find(c, entry->bits);
    struct catalog_entry now = *entry;
    now.class = before ? before->class : CATALOG_PLAIN;
    now.until_ns = before ? before->until_ns : 0;
    catalog_remove(c, entry->bits);
    if (c->alive == c->most) forget_oldest(c);
    uint32_t index = c->free;
    if (index == CATALOG_NONE) return; /* all are pinned */
    c->free = c->entries[index].younger;
    c->entries[index] = now;
    *slot_of(c, entry->bits) = index + 1;
    link_entry(c, index);
    c->alive++;
}

void catalog_change(struct catalog *c, struct catalog_entry *e, uint32_t pages, bool demoted) {
    unlink_entry(c, (uint32_t)(e - c->entries));
    e->pages = pages;
    e->demoted = demoted;
    link_entry(c, (uint32_t)(e - c->entries));
}

void catalog_set(struct catalog *c, struct catalog_entry *e, enum catalog_class class, uint64_t until_ns) {
    unlink_entry(c, (uint32_t)(e - c->entries));
    e->class = class;
    e->until_ns = until_ns;
    if (until_ns && until_ns < c->expire_ns) c->expire_ns = until_ns;
    link_entry(c, (uint32_t)(e - c->entries));
}

/* Looks at all, at most once a second. */
static void expire_entries(struct catalog *c) {
    if (c->now_ns < c->expire_ns) return;
    uint64_t next_ns = UINT64_MAX;
    for (uint32_t i = 0; i < c->most; i++) {
        struct catalog_entry *e = &c->entries[i];
        if (!e->bits || !e->until_ns) continue;
        if (e->until_ns <= c->now_ns) catalog_set(c, e, CATALOG_OVER, 0);
        else if (e->until_ns < next_ns) next_ns = e->until_ns;
    }
    c->expire_ns = next_ns > c->now_ns + SECOND_NS ? next_ns : c->now_ns + SECOND_NS;
}

void catalog_advance(struct catalog *c, uint64_t now_ns) {
    c->now_ns = now_ns;
    expire_entries(c);
    for (uint32_t i = 0; i < CATALOG_LISTS; i++) {
        struct catalog_list *l = &c->list[i];
        for (uint32_t b = 0; l->oldest != CATALOG_NONE && b < REUSE_BANDS; b++)
            while (l->front[b] != CATALOG_NONE && !is_younger(c, l->front[b], b))
                l->front[b] = c->entries[l->front[b]].younger;
    }
}

/* ---- walks ---- */

#define IS_LIST (UINT32_C(1) << 31)

static void push_item(struct catalog_walk *w, uint64_t item) {
    uint32_t at = w->n_heap++;
    for (; at && w->heap[(at - 1) / 2] > item; at = (at - 1) / 2) w->heap[at] = w->heap[(at - 1) / 2];
    w->heap[at] = item;
}

static uint64_t pop_item(struct catalog_walk *w) {
    uint64_t top = w->heap[0], last = w->heap[--w->n_heap];
    uint32_t at = 0;
    for (uint32_t down; (down = 2 * at + 1) < w->n_heap; at = down) {
        if (down + 1 < w->n_heap && w->heap[down + 1] < w->heap[down]) down++;
        if (w->heap[down] >= last) break;
        w->heap[at] = w->heap[down];
    }
    w->heap[at] = last;
    return top;
}

/* The places of one class come before those of the next. */
static uint64_t place_of(const struct catalog *c, uint32_t class, uint32_t rate, uint32_t band, uint32_t part) {
    return class * REUSE_ORDER + c->model->place[(rate * REUSE_BANDS + band) * REUSE_PARTS + part];
}

static uint32_t part_at(const struct catalog_walk *w) {
    return w->catalog->model->order[w->place % REUSE_ORDER] % REUSE_PARTS;
}

static uint32_t band_at(const struct catalog_walk *w) {
    return w->catalog->model->order[w->place % REUSE_ORDER] / REUSE_PARTS % REUSE_BANDS;
}

/* The end of the band, which is where the next younger one begins. */
static uint32_t end_of_band(const struct catalog_list *l, uint32_t band) {
    return band ? l->front[band - 1] : CATALOG_NONE;
}

void catalog_begin(struct catalog *c, bool whole, struct catalog_walk *ret_walk) {
    *ret_walk = (struct catalog_walk){ .catalog = c, .heap = c->heap[whole], .entry = CATALOG_NONE };
    for (uint32_t i = 0; i < CATALOG_LISTS; i++) {
        const struct catalog_list *l = &c->list[i];
        uint32_t rate = i % REUSE_RATES, tier = i / REUSE_RATES / REUSE_PARTS % 2,
                 class = i / (CATALOG_LISTS / CATALOG_PINNED);
        uint32_t part = whole ? REUSE_PARTS - 1 : i / REUSE_RATES % REUSE_PARTS;
        if (l->oldest == CATALOG_NONE || (whole && tier)) continue;
        for (uint32_t b = 0; b < REUSE_BANDS; b++)
            if (l->front[b] != end_of_band(l, b))
                push_item(ret_walk, place_of(c, class, rate, b, part) << 32 | IS_LIST | i);
    }
}

struct catalog_entry *catalog_step(struct catalog_walk *w, uint32_t *ret_part) {
    struct catalog *c = w->catalog;
    bool again = w->n_heap && !(w->heap[0] & IS_LIST) && w->heap[0] >> 32 == w->place; /* before the others there */
    if (w->entry == CATALOG_NONE || again) {
        if (!w->n_heap) return NULL;
        uint64_t item = pop_item(w);
        w->place = (uint32_t)(item >> 32);
        *ret_part = part_at(w);
        if (!(item & IS_LIST)) return &c->entries[(uint32_t)item];
        w->list = (uint32_t)item & ~IS_LIST;
        w->entry = c->list[w->list].front[band_at(w)];
    }
    struct catalog_entry *e = &c->entries[w->entry];
    w->entry = e->younger == end_of_band(&c->list[w->list], band_at(w)) ? CATALOG_NONE : e->younger;
    *ret_part = part_at(w);
    return e;
}

void catalog_again(struct catalog_walk *w, const struct catalog_entry *e, uint32_t part) {
    uint32_t band = reuse_band(w->catalog->model, age_of(w->catalog, e));
    push_item(w, place_of(w->catalog, e->class, e->rate, band, part) << 32 | (uint32_t)(e - w->catalog->entries));
}
