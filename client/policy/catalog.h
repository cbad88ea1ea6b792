/* SPDX-License-Identifier: Apache-2.0
 *
 * The continuations that a policy knows, in the order in which they go.
 *
 * A continuation goes in parts, its tail first (reuse_part). It stands in the list of its tier, its rate, and the part
 * that goes next, oldest use first. Fronts divide a list into the bands of ages of the model, and move as time passes.
 * So a walk over the order costs what it looks at, however many continuations there are.
 */
#ifndef KVD_POLICY_CATALOG_H
#define KVD_POLICY_CATALOG_H

#include "kvd_types.h"
#include "reuse.h"

#define CATALOG_NONE UINT32_MAX
/* First of all orders: those of one class go before those of the next. Pinned ones stand in no list. */
enum catalog_class { CATALOG_OVER, CATALOG_PLAIN, CATALOG_BACK, CATALOG_PINNED };
#define CATALOG_LISTS (CATALOG_PINNED * 2 * REUSE_PARTS * REUSE_RATES)

struct catalog_entry {
    uint64_t bits;                /* of the handle; 0: free */
    uint64_t at_ns;               /* of the last use */
    uint32_t pages, prompt_pages; /* of pool 0: all, and the full ones of its prompt */
    uint32_t older, younger;      /* in its list; younger: the next free one, too */
    uint32_t choice, victim;      /* its index among the victims of this choice (recipe.c) */
    uint8_t rate, part;           /* part: the one that goes next */
    bool demoted;
    enum catalog_class class;
    uint64_t until_ns; /* then its class is over; 0: never */
};

struct catalog_list {
    uint32_t oldest, youngest;
    uint32_t front[REUSE_BANDS]; /* the oldest one that is younger than the end of the band */
};

struct catalog {
    const struct reuse_model *model;
    struct catalog_entry *entries; /* [most] */
    uint32_t *slots;               /* [n_slots]: index + 1 of a handle in entries; open addressing */
    uint32_t most, n_slots, alive, free;
    uint64_t now_ns;    /* of the fronts */
    uint64_t expire_ns; /* nothing expires before */
    uint64_t pinned_pages;
    struct catalog_list *list; /* [CATALOG_LISTS]: class, tier, part, rate */
    uint64_t *heap[2];         /* [2 * most] each: of walks */
};

/* 0, or 1: no memory. most: entries; of more the least recently used are forgotten. */
int catalog_init(struct catalog *catalog, const struct reuse_model *model, uint32_t most);
void catalog_free(struct catalog *catalog);
/* NULL: unknown. */
struct catalog_entry *catalog_find(const struct catalog *catalog, uint64_t bits);
/* Links, part and choice of the entry do not count. An equal handle is replaced, and keeps its class. */
void catalog_put(struct catalog *catalog, const struct catalog_entry *entry);
void catalog_remove(struct catalog *catalog, uint64_t bits);
/* It has so many pages now, and is in the host only, or not. */
void catalog_change(struct catalog *catalog, struct catalog_entry *entry, uint32_t pages, bool demoted);
void catalog_set(struct catalog *catalog, struct catalog_entry *entry, enum catalog_class class, uint64_t until_ns);
/* Time goes on: before walks. It does not go back. */
void catalog_advance(struct catalog *catalog, uint64_t now_ns);

/* A walk in the model's order. The catalogue must not change meanwhile. */
struct catalog_walk {
    struct catalog *catalog;
    uint64_t *heap; /* what comes next: its place in the order << 32, and a list or an entry */
    uint32_t n_heap, list, entry;
    uint32_t place;
};
/* whole: those on the device, by the value of their rest; otherwise the parts of all. One walk of each kind at a time.
 */
void catalog_begin(struct catalog *catalog, bool whole, struct catalog_walk *ret_walk);
/* NULL: the end. *ret_part: which of its parts. */
struct catalog_entry *catalog_step(struct catalog_walk *walk, uint32_t *ret_part);
/* Of an entry that the walk has met: its turn comes again with that part, which is this or a later one. */
void catalog_again(struct catalog_walk *walk, const struct catalog_entry *entry, uint32_t part);

#endif
