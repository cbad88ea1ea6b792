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
static uint32_t list_index(const struct catalog_entry *e) {
    return (((uint32_t)e->class * 2 + e->demoted) * REUSE_PARTS + e->part) * REUSE_RATES + e->rate;
}

/* The first list at or behind index that is not empty; CATALOG_LISTS: none. */
static uint32_t next_list(const struct catalog_share *share, uint32_t index) {
    for (uint32_t word = index / 64; word <= CATALOG_LISTS / 64; word++) {
        uint64_t bits = share->some[word];
        if (word == index / 64) bits &= UINT64_MAX << index % 64;
        if (bits) return word * 64 + (uint32_t)__builtin_ctzll(bits);
    }
    return CATALOG_LISTS;
}

static uint64_t age_of(const struct catalog *c, const struct catalog_entry *e) {
    return c->now_ns > e->at_ns ? c->now_ns - e->at_ns : 0;
}

static bool is_younger(const struct catalog *c, uint32_t index, uint32_t band) {
    return band == REUSE_BANDS - 1 || age_of(c, &c->entries[index]) < c->model->edge[band + 1];
}

/* by: 1, or -1. */
static void count_pages(struct catalog *c, const struct catalog_entry *e, int by) {
    struct catalog_share *share = &c->share[e->share];
    uint64_t pages = by > 0 ? e->pages : -(uint64_t)e->pages;
    share->alive += (uint32_t)by;
    share->kept[CATALOG_ALL] += pages;
    if (!e->demoted) share->kept[CATALOG_DEVICE] += pages;
    if (e->class == CATALOG_PINNED) c->pinned_pages += pages;
}

/* Requests end in another order than they begin: the place of a new one is near the young end, not at it. */
static void link_entry(struct catalog *c, uint32_t index) {
    struct catalog_entry *e = &c->entries[index];
    e->part = (uint8_t)reuse_first_part(e->prompt_pages, e->pages);
    count_pages(c, e, 1);
    if (e->class == CATALOG_PINNED) return;
    struct catalog_share *share = &c->share[e->share];
    struct catalog_list *l = &share->list[list_index(e)];
    uint32_t older = l->youngest;
    while (older != CATALOG_NONE && c->entries[older].at_ns > e->at_ns) older = c->entries[older].older;
    e->older = older;
    e->younger = older == CATALOG_NONE ? l->oldest : c->entries[older].younger;
    *(older == CATALOG_NONE ? &l->oldest : &c->entries[older].younger) = index;
    *(e->younger == CATALOG_NONE ? &l->youngest : &c->entries[e->younger].older) = index;
    for (uint32_t b = 0; b < REUSE_BANDS; b++)
        if (l->front[b] == e->younger && is_younger(c, index, b)) l->front[b] = index;
    share->some[list_index(e) / 64] |= UINT64_C(1) << list_index(e) % 64;
}

static void unlink_entry(struct catalog *c, uint32_t index) {
    struct catalog_entry *e = &c->entries[index];
    count_pages(c, e, -1);
    if (e->class == CATALOG_PINNED) return;
    struct catalog_share *share = &c->share[e->share];
    struct catalog_list *l = &share->list[list_index(e)];
    for (uint32_t b = 0; b < REUSE_BANDS; b++)
        if (l->front[b] == index) l->front[b] = e->younger;
    *(e->older == CATALOG_NONE ? &l->oldest : &c->entries[e->older].younger) = e->younger;
    *(e->younger == CATALOG_NONE ? &l->youngest : &c->entries[e->younger].older) = e->older;
    if (l->oldest == CATALOG_NONE) share->some[list_index(e) / 64] &= ~(UINT64_C(1) << list_index(e) % 64);
}

/* ---- shares ---- */

static uint8_t share_of(const struct catalog *c, uint64_t domain) {
    for (uint32_t i = 1; domain && i < c->n_shares; i++)
        if (c->share[i].domain == domain) return (uint8_t)i;
    return 0;
}

static bool open_share(struct catalog_share *share, uint64_t domain) {
    *share = (struct catalog_share){ .domain = domain, .list = malloc(CATALOG_LISTS * sizeof *share->list) };
    if (share->list) memset(share->list, 0xff, CATALOG_LISTS * sizeof *share->list); /* CATALOG_NONE everywhere */
    return share->list;
}

static void move_entries(struct catalog *c, uint64_t domain, uint32_t share) {
    for (uint32_t i = 0; i < c->most; i++) {
        struct catalog_entry *e = &c->entries[i];
        if (!e->bits || e->domain != domain) continue;
        unlink_entry(c, i);
        e->share = (uint8_t)share;
        link_entry(c, i);
    }
}

int catalog_set_share(struct catalog *c, uint64_t domain, const uint64_t *most) {
    uint32_t at = share_of(c, domain);
    if (!at) {
        for (at = 1; at < CATALOG_SHARES && c->share[at].list; at++) continue;
        if (at == CATALOG_SHARES || !open_share(&c->share[at], domain)) return 1;
        if (at >= c->n_shares) c->n_shares = at + 1;
        move_entries(c, domain, at);
    }
    memcpy(c->share[at].most, most, sizeof c->share[at].most);
    return 0;
}

void catalog_drop_share(struct catalog *c, uint64_t domain) {
    uint32_t at = share_of(c, domain);
    if (!at) return;
    move_entries(c, domain, 0);
    free(c->share[at].list);
    c->share[at] = (struct catalog_share){ .domain = 0 };
}

/* ---- life ---- */

int catalog_init(struct catalog *c, const struct reuse_model *model, uint32_t most) {
    *c = (struct catalog){ .model = model, .most = most, .n_slots = 16, .n_shares = 1, .expire_ns = UINT64_MAX };
    while (c->n_slots < 2 * most) c->n_slots *= 2;
    c->entries = calloc(most, sizeof *c->entries);
    c->slots = calloc(c->n_slots, sizeof *c->slots);
    for (int k = 0; k < 2; k++) c->heap[k] = calloc(2 * (size_t)most, sizeof *c->heap[k]);
    for (uint32_t i = 0; c->entries && i < most; i++) c->entries[i].younger = i + 1 < most ? i + 1 : CATALOG_NONE;
    if (open_share(&c->share[0], 0) && c->entries && c->slots && c->heap[0] && c->heap[1]) return 0;
    catalog_free(c);
    return 1;
}

void catalog_free(struct catalog *c) {
    free(c->entries);
    free(c->slots);
    free(c->heap[0]);
    free(c->heap[1]);
    for (uint32_t i = 0; i < CATALOG_SHARES; i++) free(c->share[i].list);
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
    for (uint32_t k = 0; k < c->n_shares; k++) {
        const struct catalog_share *share = &c->share[k];
        for (uint32_t i = 0; share->list && (i = next_list(share, i)) < CATALOG_LISTS; i++) {
            const struct catalog_entry *e = &c->entries[share->list[i].oldest];
            if (!oldest || e->at_ns < oldest->at_ns) oldest = e;
        }
    }
    if (oldest) catalog_remove(c, oldest->bits);
}

void catalog_put(struct catalog *c, const struct catalog_entry *entry) {
    const struct catalog_entry *before = catalog_find(c, entry->bits);
    struct catalog_entry now = *entry;
    now.class = before ? before->class : CATALOG_PLAIN;
    now.until_ns = before ? before->until_ns : 0;
    now.share = share_of(c, now.domain);
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

static void move_fronts(struct catalog *c, struct catalog_list *l) {
    for (uint32_t b = 0; b < REUSE_BANDS; b++)
        while (l->front[b] != CATALOG_NONE && !is_younger(c, l->front[b], b))
            l->front[b] = c->entries[l->front[b]].younger;
}

void catalog_advance(struct catalog *c, uint64_t now_ns) {
    c->now_ns = now_ns;
    expire_entries(c);
    for (uint32_t k = 0; k < c->n_shares; k++) {
        struct catalog_share *share = &c->share[k];
        for (uint32_t i = 0; share->alive && (i = next_list(share, i)) < CATALOG_LISTS; i++)
            move_fronts(c, &share->list[i]);
    }
}

/* ---- walks ---- */

#define IS_LIST (UINT32_C(1) << 31)

static void push_item(struct catalog_turn *w, uint64_t item) {
    uint32_t at = w->n_heap++;
    for (; at && w->heap[(at - 1) / 2] > item; at = (at - 1) / 2) w->heap[at] = w->heap[(at - 1) / 2];
    w->heap[at] = item;
}

static uint64_t pop_item(struct catalog_turn *w) {
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

static uint32_t part_at(const struct catalog *c, const struct catalog_turn *t) {
    return c->model->order[t->place % REUSE_ORDER] % REUSE_PARTS;
}

static uint32_t band_at(const struct catalog *c, const struct catalog_turn *t) {
    return c->model->order[t->place % REUSE_ORDER] / REUSE_PARTS % REUSE_BANDS;
}

/* The end of the band, which is where the next younger one begins. */
static uint32_t end_of_band(const struct catalog_list *l, uint32_t band) {
    return band ? l->front[band - 1] : CATALOG_NONE;
}

static void push_bands(const struct catalog *c, uint32_t share, uint32_t i, bool whole, struct catalog_turn *t) {
    const struct catalog_list *l = &c->share[share].list[i];
    uint32_t rate = i % REUSE_RATES, class = i / (CATALOG_LISTS / CATALOG_PINNED);
    uint32_t part = whole ? REUSE_PARTS - 1 : i / REUSE_RATES % REUSE_PARTS;
    for (uint32_t b = 0; b < REUSE_BANDS; b++)
        if (l->front[b] != end_of_band(l, b)) push_item(t, place_of(c, class, rate, b, part) << 32 | IS_LIST | i);
}

void catalog_begin(struct catalog *c, bool whole, struct catalog_walk *ret_walk) {
    uint64_t *heap = c->heap[whole];
    ret_walk->catalog = c;
    ret_walk->whole = whole;
    for (uint32_t k = 0; k < c->n_shares; k++) {
        struct catalog_share *share = &c->share[k];
        struct catalog_turn *t = &ret_walk->turn[k];
        *t = (struct catalog_turn){ .heap = heap, .entry = CATALOG_NONE };
        heap += 2 * (size_t)share->alive;
        memcpy(share->left, share->kept, sizeof share->left);
        for (uint32_t i = 0; share->alive && (i = next_list(share, i)) < CATALOG_LISTS; i++)
            if (!whole || i / REUSE_RATES / REUSE_PARTS % 2 == 0) push_bands(c, k, i, whole, t);
    }
}

static bool is_beyond(const struct catalog_walk *w, const struct catalog_share *share) {
    enum catalog_count what = w->whole ? CATALOG_DEVICE : CATALOG_ALL;
    return share->left[what] > share->most[what];
}

/* Who goes before whom, and then the place in the model's order; UINT64_MAX: this turn is at its end. */
static uint64_t turn_order(const struct catalog_walk *w, uint32_t share) {
    const struct catalog_turn *t = &w->turn[share];
    if (t->entry == CATALOG_NONE && !t->n_heap) return UINT64_MAX;
    uint32_t place = t->entry != CATALOG_NONE ? t->place : (uint32_t)(t->heap[0] >> 32);
    uint32_t class = place / REUSE_ORDER;
    uint64_t group = !share ? 1 : is_beyond(w, &w->catalog->share[share]) ? 0 : 2;
    return (class == CATALOG_OVER ? 0 : CATALOG_BACK * group + class) << 32 | place;
}

static struct catalog_turn *next_turn(struct catalog_walk *w, uint32_t *ret_share) {
    uint64_t first = UINT64_MAX;
    for (uint32_t k = 0; k < w->catalog->n_shares; k++) {
        if (!w->catalog->share[k].alive) continue;
        uint64_t order = turn_order(w, k);
        if (order < first) first = order, *ret_share = k;
    }
    return first == UINT64_MAX ? NULL : &w->turn[*ret_share];
}

struct catalog_entry *catalog_step(struct catalog_walk *w, uint32_t *ret_part) {
    struct catalog *c = w->catalog;
    uint32_t share = 0;
    struct catalog_turn *t = next_turn(w, &share);
    if (!t) return NULL;
    bool again = t->n_heap && !(t->heap[0] & IS_LIST) && t->heap[0] >> 32 == t->place; /* before the others there */
    if (t->entry == CATALOG_NONE || again) {
        uint64_t item = pop_item(t);
        t->place = (uint32_t)(item >> 32);
        *ret_part = part_at(c, t);
        if (!(item & IS_LIST)) return &c->entries[(uint32_t)item];
        t->list = (uint32_t)item & ~IS_LIST;
        t->entry = c->share[share].list[t->list].front[band_at(c, t)];
    }
    struct catalog_entry *e = &c->entries[t->entry];
    t->entry = e->younger == end_of_band(&c->share[share].list[t->list], band_at(c, t)) ? CATALOG_NONE : e->younger;
    *ret_part = part_at(c, t);
    return e;
}

void catalog_again(struct catalog_walk *w, const struct catalog_entry *e, uint32_t part) {
    const struct catalog *c = w->catalog;
    uint32_t band = reuse_band(c->model, age_of(c, e));
    push_item(&w->turn[e->share], place_of(c, e->class, e->rate, band, part) << 32 | (uint32_t)(e - c->entries));
}

void catalog_take(struct catalog *c, const struct catalog_entry *e, int64_t all, int64_t device) {
    struct catalog_share *share = &c->share[e->share];
    share->left[CATALOG_ALL] -= (uint64_t)all;
    share->left[CATALOG_DEVICE] -= (uint64_t)device;
}

uint64_t catalog_beyond(const struct catalog_walk *w, const struct catalog_entry *e) {
    const struct catalog_share *share = &w->catalog->share[e->share];
    enum catalog_count what = w->whole ? CATALOG_DEVICE : CATALOG_ALL;
    if (!e->share || e->class == CATALOG_OVER || !is_beyond(w, share)) return UINT64_MAX;
    return share->left[what] - share->most[what];
}
