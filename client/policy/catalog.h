/* SPDX-License-Identifier: Apache-2.0
 *
 * The continuations that a policy knows, in the order in which they go.
 *
 * A continuation goes in parts, its tail first (reuse_part). It stands in the list of its tier, its rate, and the part
 * that goes next, oldest use first. Fronts divide a list into the bands of ages of the model, and move as time passes.
 * So a walk over the order costs what it looks at, however many continuations there are.
 *
 * A domain may have a share: pages that it keeps beside others' needs. Each share has lists of its own, and a walk goes
 * over all of them at once. What is over goes first; then what domains keep beyond their shares; then what belongs to
 * no share; and what is within a share last. A walk counts what it takes, so a domain that is a little beyond its share
 * gives that little.
 */
#ifndef KVD_POLICY_CATALOG_H
#define KVD_POLICY_CATALOG_H

#include "kvd_policy.h"
#include "reuse.h"

#define CATALOG_NONE UINT32_MAX
/* First of all orders: those of one class go before those of the next. Pinned ones stand in no list. */
enum catalog_class { CATALOG_OVER, CATALOG_PLAIN, CATALOG_BACK, CATALOG_PINNED };
#define CATALOG_LISTS (CATALOG_PINNED * 2 * REUSE_PARTS * REUSE_RATES)
#define CATALOG_SHARES (KVD_POLICY_QUOTAS + 1u) /* 0: of all domains that have none */
/* What a share counts: pages on both tiers, and those on the device. */
enum catalog_count { CATALOG_ALL, CATALOG_DEVICE, CATALOG_COUNTS };

struct catalog_entry {
    uint64_t bits;                /* of the handle; 0: free */
    uint64_t at_ns;               /* of the last use */
    uint64_t domain;              /* 0: unknown */
    uint32_t pages, prompt_pages; /* of pool 0: all, and the full ones of its prompt */
    uint32_t older, younger;      /* in its list; younger: the next free one, too */
    uint32_t choice, victim;      /* its index among the victims of this choice (recipe.c) */
    uint8_t rate, part;           /* part: the one that goes next */
    uint8_t share;                /* index in catalog->share */
    bool demoted;
    enum catalog_class class;
    uint64_t until_ns; /* then its class is over; 0: never */
};

struct catalog_list {
    uint32_t oldest, youngest;
    uint32_t front[REUSE_BANDS]; /* the oldest one that is younger than the end of the band */
};

struct catalog_share {
    uint64_t domain;                                     /* 0: free; of share 0 always */
    uint64_t most[CATALOG_COUNTS];                       /* pages that are protected */
    uint64_t kept[CATALOG_COUNTS], left[CATALOG_COUNTS]; /* left: of kept, after what the walks under way have taken */
    uint32_t alive;                                      /* entries */
    struct catalog_list *list;                           /* [CATALOG_LISTS]: class, tier, part, rate. NULL: free */
    uint64_t some[CATALOG_LISTS / 64 + 1];               /* a bit a list: it is not empty */
};

struct catalog {
    const struct reuse_model *model;
    struct catalog_entry *entries; /* [most] */
    uint32_t *slots;               /* [n_slots]: index + 1 of a handle in entries; open addressing */
    uint32_t most, n_slots, alive, free;
    uint64_t now_ns;    /* of the fronts */
    uint64_t expire_ns; /* nothing expires before */
    uint64_t pinned_pages;
    uint32_t n_shares; /* all behind are free */
    struct catalog_share share[CATALOG_SHARES];
    uint64_t *heap[2]; /* [2 * most] each: of walks */
};

/* 0, or 1: no memory. most: entries; of more the least recently used are forgotten. */
int catalog_init(struct catalog *catalog, const struct reuse_model *model, uint32_t most);
void catalog_free(struct catalog *catalog);
/* NULL: unknown. */
struct catalog_entry *catalog_find(const struct catalog *catalog, uint64_t bits);
/* Links, part, share and choice of the entry do not count. An equal handle is replaced, and keeps its class. */
void catalog_put(struct catalog *catalog, const struct catalog_entry *entry);
void catalog_remove(struct catalog *catalog, uint64_t bits);
/* It has so many pages now, and is in the host only, or not. */
void catalog_change(struct catalog *catalog, struct catalog_entry *entry, uint32_t pages, bool demoted);
void catalog_set(struct catalog *catalog, struct catalog_entry *entry, enum catalog_class class, uint64_t until_ns);
/* The domain has that share from now on. 0, or 1: no memory, or CATALOG_SHARES - 1 domains have one. */
int catalog_set_share(struct catalog *catalog, uint64_t domain, const uint64_t *most);
void catalog_drop_share(struct catalog *catalog, uint64_t domain);
/* Time goes on: before walks. It does not go back. */
void catalog_advance(struct catalog *catalog, uint64_t now_ns);

/* A walk in the model's order. The catalogue must not change meanwhile. */
struct catalog_walk {
    struct catalog *catalog;
    bool whole;
    struct catalog_turn { /* the walk over one share */
        uint64_t *heap;   /* what comes next: its place in the order << 32, and a list or an entry */
        uint32_t n_heap, list, entry;
        uint32_t place;
    } turn[CATALOG_SHARES];
};
/* whole: those on the device, by the value of their rest, and shares count the pages there; otherwise the parts of all,
 * and shares count all pages. One walk of each kind at a time; both begin before one of them steps. */
void catalog_begin(struct catalog *catalog, bool whole, struct catalog_walk *ret_walk);
/* NULL: the end. *ret_part: which of its parts. */
struct catalog_entry *catalog_step(struct catalog_walk *walk, uint32_t *ret_part);
/* Of an entry that the walk has met: its turn comes again with that part, which is this or a later one. */
void catalog_again(struct catalog_walk *walk, const struct catalog_entry *entry, uint32_t part);
/* The walks take so many of its pages, of all and of those on the device; less than 0: they give them back. */
void catalog_take(struct catalog *catalog, const struct catalog_entry *entry, int64_t all, int64_t device);
/* Pages that the entry's domain keeps beyond its share, of which the entry may give so many before others give;
 * UINT64_MAX: there is no such end. */
uint64_t catalog_beyond(const struct catalog_walk *walk, const struct catalog_entry *entry);

#endif
