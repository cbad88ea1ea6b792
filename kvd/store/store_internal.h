/* SPDX-License-Identifier: Apache-2.0
 *
 * The store's inside: records, and the seams between its files. Nobody outside kvd/store and its unit tests includes
 * this.
 *
 * Two habits carry the all-or-nothing rule (SRV-2, ACT-5): every operation first checks and counts everything that it
 * will acquire (store_try marks each acquisition) and only then changes state, by steps that cannot fail; and what a
 * transition in flight holds is held by ordinary references and pins, so that abort is the plain release of them.
 */
#ifndef KVD_STORE_INTERNAL_H
#define KVD_STORE_INTERNAL_H

#include "directory.h"
#include "extent.h"
#include "mutant.h"
#include "store.h"

#include <string.h>

#define CHUNK 64 /* membership entries in a chunk */
/* Membership entry of an ACTIVATING sequence: the physical id of a page that a victim holds until commit. */
#define PROMISED 0x80000000u
#define BLOCK_PAGES 512 /* pages under one leaf of the free-run tree: a cache line of the bitmap */
#define BLOCK_WORDS (BLOCK_PAGES / 64)

#define STAYS 0x80000000u /* in a page's mark: it stays, however many let go of it */
#define AHEAD 32          /* page records that a walk asks for ahead of its need */

/* ---- pages (PAGE-1) ---- */

enum page_flag {
    PAGE_OCCUPIED = 1,
    PAGE_WRITER = 2,
    PAGE_NAMED = 4,
    PAGE_LISTED = 8,     /* free, on the spare list */
    PAGE_BACKING = 16,   /* its host replica is being written: invisible */
    PAGE_RESTORING = 32, /* its device replica is being written: invisible */
    PAGE_LOST = 64,      /* its only replica was damaged */
    PAGE_LEAVING =
        128 /* its device replica goes when an activation in flight commits, though a demoted continuation holds it */
};

struct page {
    uint64_t epoch;      /* of its content; never repeats in a store */
    uint64_t host_epoch; /* of the host replica */
    extent_id host;      /* 0 = no host replica */
    uint32_t generation;
    uint32_t references, active_references;
    uint32_t pins;        /* copies in flight from or into it */
    uint32_t device;      /* physical page group, NONE = not resident */
    uint32_t lease;       /* generation of that lease (POOL-8) */
    uint32_t stamp, mark; /* scratch of counting walks; `mark` links the spare list of free descriptors */
    uint8_t committed, protected, host_columns, flags;
    uint8_t pinned;  /* columns that checkpoints in flight are being copied from */
    uint8_t touched; /* it changed since the audit in work began its pass (audit.h); or none is in work */
    uint8_t lent;    /* one of its active references is that of a sequence that lends (lent.c) */
};
_Static_assert(sizeof(struct page) == 64, "one cache line a page");

/* What the host tier adds to a page; only stores that have one (or a directory) carry it. */
struct page_tier {
    uint64_t checksum;    /* of the packed bytes of the host replica */
    uint32_t link;        /* next page of the same job */
    uint32_t demoted;     /* references of demoted continuations */
    uint32_t demoting;    /* references of victims that will rest when their activation commits */
    uint32_t leaving_for; /* PAGE_LEAVING: the activation that counts on it */
    uint32_t gone;        /* scratch of counting walks, beside `mark`: references that are released */
    uint32_t block;       /* its ordinal, the same in every space that holds it */
};
_Static_assert(sizeof(struct page_tier) == 32, "two in a cache line");

/* What an audit counts again of a page. */
struct page_recount {
    uint32_t references, active, demoted, pins, jobs, block; /* block + 1 */
    uint8_t covered, linked, kinds, due, lent;
};

/* What changed in a pass of an audit, each once; n > TOUCHED_LIMIT: there were more. */
#define TOUCHED_LIMIT 8192u
struct touched {
    uint32_t n, item[TOUCHED_LIMIT];
};
static inline void touched_add(struct touched *touched, uint32_t item) {
    if (touched->n < TOUCHED_LIMIT) touched->item[touched->n] = item;
    touched->n += touched->n <= TOUCHED_LIMIT;
}

struct page_lease {
    uint32_t generation, owner;
}; /* owner: page descriptor, NONE = free */
struct free_run {
    uint32_t prefix, suffix, best;
}; /* of the free pages under a node of the tree */

struct table_row {
    uint32_t generation, owner;
}; /* owner: sequence slot, NONE = free */

struct pool {
    uint32_t capacity, allocated, reserved; /* pages; available is the rest (POOL-6) */
    uint32_t shared;                        /* pages with several references */
    uint32_t lent;                          /* pages that sequences lend */
    uint32_t descriptors, occupied, spare;  /* spare: head of the list of free descriptors that are nobody's home */
    uint32_t host_pages;                    /* extents of this pool's pages, those being written too */
    uint32_t absent;                        /* pages without a device replica that can be read: host-only, restoring */
    struct page *pages;
    struct page_tier *tier; /* NULL without a host tier and directory */
    struct page_lease *leases;
    struct page_recount *recount;
    struct touched *touched;
    uint64_t *bitmap;      /* 1 = free */
    struct free_run *tree; /* heap order, leaves at [n_leaves, 2 n_leaves) */
    uint32_t n_leaves;     /* a power of two */
    int32_t *table;        /* C rows of L entries */
    struct table_row *rows;
    uint32_t rows_used;
};

/* ---- spaces (SPACE-1) ---- */

/* Membership is a radix tree of chunks whose height follows from the count, so that memory follows use and any entry is
 * reached in O(height). An active space has reserved chunks up to its entitlement: growth inside it cannot be short. */
struct space {
    uint32_t root, count;       /* chunk, blocks */
    uint32_t base;              /* the first block that is mapped; entries before are KVD_NONE (window.c) */
    uint32_t committed;         /* tokens */
    uint32_t reserved, pending; /* pages not mapped yet: reserved, and still to be freed by victims */
    uint32_t shared;            /* last known number of leading pages with several references: a hint */
};

struct chunks {
    uint32_t *entries; /* capacity * CHUNK */
    uint32_t capacity, used, reserved;
    uint32_t head, fresh; /* freed ones are linked by entry 0; fresh: never used so far */
};

/* ---- jobs: pages that a transition copies between device and arena ---- */

/* A page with PAGE_BACKING or PAGE_RESTORING is in one job's list and pinned by it; or its link is ORPHAN: an aborted
 * job left it, and another transition that waits for it takes it over. */
#define ORPHAN (KVD_NONE - 1)
struct tier_job {
    uint32_t head[KVD_MAX_POOLS]; /* linked by page_tier.link */
    uint32_t out[KVD_MAX_POOLS], in[KVD_MAX_POOLS];
};

struct move {
    uint32_t generation, next_free;
    bool occupied;
    enum store_place place;
    store_cont cont; /* may be gone */
    struct tier_job job;
    bool image;       /* the continuation's state image is copied too, and pinned for it */
    bool was_demoted; /* the continuation did, before it was to be brought to the device */
};
#define MOVE_LIMIT 64

/* ---- reads of the arena beside all else (read.c) ---- */

enum { READ_SCRUB = 0, READ_COLD, READS };
struct arena_read {
    extent_id extent; /* given back only afterwards; 0 = nothing is read */
    uint64_t replica;
    bool gone; /* whose it was has let go of it */
};

#define LATELY_LIMIT 1024u
struct demoted_lately {
    store_cont cont;
    uint64_t at_ns;
};
#define LOSS_LIMIT 64u

/* ---- sequences and continuations ---- */

struct seq {
    uint32_t generation, next_free;
    bool occupied, keep;
    enum store_seq_state state;
    uint64_t lease;
    uint32_t prompt, ceiling, named;
    uint32_t domain;
    uint32_t row[KVD_MAX_POOLS];
    struct space space[KVD_MAX_POOLS];
    uint32_t state_slot, state_frontier;
    uint32_t source_slot; /* pinned until the first commit */
    uint32_t own; /* the descriptor that keeps it at its end. KVD_NONE: ACTIVATING, and what it releases leaves one */
    /* ACTIVATING only */
    uint32_t from, frontier;
    uint32_t taken[KVD_MAX_POOLS];                            /* leading pages taken over from the source */
    uint32_t tail_source[KVD_MAX_POOLS], tail[KVD_MAX_POOLS]; /* pinned descriptors of a tail copy */
    bool tail_in[KVD_MAX_POOLS];                              /* that is made from the host replica of the source */
    bool damaged;                                             /* and that did not match its checksum */
    uint32_t victims, n_victims, victims_lost, chunks_pending;
    uint64_t tag;
    /* Rolling checkpoints (roll.c): where, the next boundary (KVD_NONE: none), and its own, the oldest first. */
    uint32_t roll_every, roll_prompt, roll_next, n_rolled;
    store_cont rolled[STORE_MAX_ROLLING];
    bool recorded; /* has a record in the directory */
    bool lends;    /* its pages are an engine's, which hands them out itself (lent.c) */
    struct tier_job job;
    uint32_t restored[KVD_MAX_POOLS];
    bool shown; /* its rows name what it maps; not before the copies into that have ended */
    /* Waiting for victims to give way (staged): nothing is mapped yet. */
    bool staged, was_demoted /* a moved source */, holds_source /* what a fork takes over is pinned */,
        image_in /* the image comes from the host */;
    uint32_t chunks_held;
    struct store_activation want;
};

struct cont {
    uint32_t generation, next_free;
    bool occupied, published, claimed, tail_named;
    bool owned;           /* a sequence's: no continuation yet, and live where it is published (live.c) */
    bool going;           /* its sequence was released: it goes with the last fork in flight, and nobody finds it */
    uint64_t ticket;      /* of the Round whose copies its image is one of */
    uint32_t rolls_for;   /* number of the sequence (from 1) whose rolling checkpoint it is; 0: of none (roll.c) */
    uint32_t pins;        /* forks in flight from it */
    uint32_t next_victim; /* in a recipe; or the next checkpoint in flight */
    uint32_t frontier, named, retention, slot;
    uint64_t created, used;
    uint64_t made_ns, used_ns; /* the same in time; of those found in the directory, of this instance */
    struct space space[KVD_MAX_POOLS];
    struct kvd_tail tail;
    uint32_t domain;
    uint32_t node, end_up, end_left, end_right; /* in the index, and among the ends of that node (ends.c) */
    uint32_t stamp;                             /* duplicate check */
    /* checkpoint in flight only */
    uint32_t tail_source[KVD_MAX_POOLS], tail_copy[KVD_MAX_POOLS], source_slot;
    uint64_t tag;
    bool demoted, demoting /* claimed: will rest at commit */;
    bool demotes_again; /* it was demoted until damage took a page of it: what is left will be */
    uint32_t cut_to;    /* claimed: at commit it is shortened to this frontier; 0: it is not */
    uint32_t moves;     /* moves in flight of it */
    /* State image in the arena. */
    extent_id image; /* 0 = none */
    uint64_t image_checksum;
    uint32_t image_pins; /* copies from or to it */
    bool image_backing;
    bool image_lost;   /* damaged, and gone when no copy uses it; where the slot has none, with its continuation */
    bool image_coming; /* a move brings it into `slot` */
    /* Place in the order of going, while it is published. */
    bool ordered;
    uint32_t order_up, order_left, order_right;
    uint64_t order_rank;
    uint64_t change; /* number of its last one, plus 1; 0: it was in no list yet */
    bool touched;    /* as of a page */
};

/* What an audit has counted of a continuation. */
struct audit;
struct cont_recount {
    uint32_t entries, chunks, slot, source_slot;
    uint8_t kinds;
};
struct slot_recount {
    uint32_t owners, pins;
};

struct slot {
    uint32_t pins;
    bool used;
};

/* ---- index ---- */

/* A domain that somebody is of: the root digest with which all its names begin, and a label for people. */
struct domain {
    struct kvd_root root;
    uint32_t references; /* sequences and continuations */
    uint32_t next;       /* of the same hash, or of the free ones */
};

struct domains {
    struct domain *list;
    uint32_t capacity, used, head, fresh;
    uint32_t *hash; /* by digest */
    uint32_t hash_mask;
    uint32_t audited, recounted; /* buckets, and domains in them: a change there changes both counts */
    uint64_t recounted_holders;
};

/* A name is a path of digests: step 0 is the root of its domain, step i + 1 the digest of page i. A node is the steps
 * [begin, end) of paths; it reads their digests through some continuation at or below it. */
struct node {
    uint32_t parent, first_child, next, prev; /* siblings; `next` links free nodes */
    uint32_t begin, end;
    uint32_t some; /* continuation */
    uint32_t ends; /* root of the tree of continuations whose names end here */
    uint32_t next_hash;
};

struct index {
    struct node *nodes;
    uint32_t capacity, used, head, fresh;
    uint32_t *hash; /* by parent and first digest */
    uint32_t hash_mask;
    uint32_t audited, recounted; /* nodes, and used ones among them: a change there changes both counts */
};

struct store {
    struct store_config config;
    uint32_t n_pools, row_entries;
    uint32_t window_pages[KVD_MAX_POOLS]; /* mapped at once, at most; 0: no window */
    bool has_windows;
    uint64_t revision, operations, epoch;
    uint64_t now_ns; /* as the caller told */
    struct store_lives lives;
    struct pool pool[KVD_MAX_POOLS];
    struct chunks chunks;
    uint64_t entries;       /* of all memberships */
    uint8_t (*digests)[32]; /* by Main descriptor */
    struct seq *seqs;
    struct cont *conts;
    uint32_t seq_free, seqs_used, cont_free, conts_used, conts_owned; /* used: owned ones too */
    uint32_t in_flight;                                               /* head of the checkpoints in flight */
    struct slot *slots;
    uint32_t slots_used, slot_hint;
    struct domains domains;
    struct index index;
    uint32_t order[2]; /* roots: of those that are not demoted, and of the demoted ones */
    uint64_t order_ranks;
    uint32_t *stamp;        /* behind a pointer: looking functions count too */
    struct victim *victims; /* scratch [KVD_MAX_VICTIMS] of the activation that is looked at */
    uint32_t *steps;        /* scratch [KVD_MAX_VICTIMS] of a choice */
    struct audit *audit;
    struct cont_recount *recount;
    struct slot_recount *slot_recount;
    struct touched *touched; /* continuations */
    uint32_t fail_in, acquisitions;
    /* host tier */
    struct extent_arena *arena; /* NULL: off */
    void *arena_memory;
    uint32_t max_extents;
    extent_id *ids;        /* scratch [max_extents]: extents taken or to be dropped */
    uint64_t *fit_scratch; /* scratch [max_extents] of extent_pages_fit */
    struct move *moves;
    uint32_t move_free, moves_used, host_images, demoted;
    uint64_t damaged, lost;
    struct store_loss loss_ring[LOSS_LIMIT]; /* number i is at i % LOSS_LIMIT */
    uint64_t losses, losses_taken;
    uint32_t last_holder;            /* continuation in which damage was found last */
    uint32_t scrub_pool, scrub_next; /* scrub_pool n_pools: state images */
    struct arena_read reads[READS];
    store_cont *changes; /* number i is at i % change_limit */
    uint64_t n_changes;
    uint32_t change_limit;
    struct demoted_lately lately[LATELY_LIMIT]; /* number i is at i % LATELY_LIMIT */
    uint64_t lately_first, lately_end, lately_forgotten;
    uint32_t fetching; /* the continuation that comes from the cold tier; KVD_NONE: none does */
    struct tier_job fetch_job;
    struct directory *directory;
};

/* ---- small common things ---- */

static inline uint32_t pages_of(uint64_t tokens) { return (uint32_t)((tokens + KVD_PAGE_MASK) >> KVD_PAGE_SHIFT); }
static inline uint32_t min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }
static inline uint32_t max_u32(uint32_t a, uint32_t b) { return a > b ? a : b; }
static inline uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }
/* Columns of page `index` below a frontier. */
static inline uint32_t columns_of(uint32_t frontier, uint32_t index) {
    uint64_t first = (uint64_t)index * KVD_PAGE_TOKENS;
    return frontier <= first ? 0 : (uint32_t)min_u64(frontier - first, KVD_PAGE_TOKENS);
}

/* Fills a refusal (may be NULL) and returns its code. */
int store_refuse(struct store_refusal *refusal, enum store_code code, enum store_subject subject, uint32_t pool,
                 uint64_t asked, uint64_t had, uint64_t limit);
/* One acquisition: false when fault injection refuses it. */
bool store_try(struct store *store);
uint32_t store_next_stamp(const struct store *store);
void note_change(struct store *store, struct cont *cont); /* of what a list shows: changes.c */
void store_changed(struct store *store, bool ownership);  /* one operation more; ownership: a new revision too */

/* All of it: two digests that differ in one byte name different tokens (CONT-2). */
static inline bool digests_equal(const uint8_t *a, const uint8_t *b) {
    return memcmp(a, b, MUTANT(digests_in_part) ? 16 : KVD_DIGEST_BYTES) == 0;
}

/* ---- what a page has where ---- */

static inline bool page_on_device(const struct page *page) { /* readable there */
    return page->device != KVD_NONE && (!(page->flags & PAGE_RESTORING) || MUTANT(hidden_destination_is_readable));
}
/* A host replica that is valid for n columns (PAGE-3). */
static inline bool page_in_host(const struct page *page, uint32_t n) {
    return page->host.bits && !(page->flags & PAGE_BACKING) && page->host_epoch == page->epoch &&
           page->host_columns >= n;
}
static inline bool page_is_current(const struct page *page) { return page_in_host(page, page->committed); }

/* LIVE-1: an alias of what a running sequence has named. It holds no reference, chunk or domain, and goes only by its
 * sequence. */
static inline bool cont_is_live(const struct cont *cont) { return cont->owned && cont->published; }

static inline bool image_in_slot(const struct cont *cont) { return cont->slot != KVD_NONE && !cont->image_coming; }
static inline bool image_in_host(const struct cont *cont) {
    return cont->image.bits && !cont->image_backing && !cont->image_lost;
}

/* ---- pool.c ---- */

static inline uint32_t pool_available(const struct pool *pool) {
    return pool->capacity - pool->allocated - pool->reserved;
}
void pool_init(struct pool *pool);
/* Pages in the order of choice: directly after predecessor (NONE: no preference) if all of `need` fit there, else the
 * first run that is long enough, else the lowest runs. need is not more than the free pages. */
struct pool_choice {
    uint32_t need, predecessor;
    bool scattered;
};
/* Returns the run's length. */
uint32_t pool_choose(const struct pool *pool, struct pool_choice *choice, uint32_t *ret_start);
void pool_take(struct pool *pool, uint32_t start, uint32_t n); /* free -> allocated; the caller adjusts reservations */
bool pool_is_free(const struct pool *pool, uint32_t page);
struct free_run pool_block_run(const struct pool *pool, uint32_t block); /* recomputed from the bitmap */
struct free_run pool_join(struct free_run left, struct free_run right, uint32_t half);
/* Gives a page back. A stale lease (another generation, or given back already) is refused with false, and nothing has
 * changed (POOL-8). Pages are collected into runs: flush at the end. */
struct pool_batch {
    struct pool *pool;
    uint32_t start, n;
};
bool pool_put(struct pool_batch *batch, uint32_t page, uint32_t generation);
void pool_flush(struct pool_batch *batch);

/* ---- page.c ---- */

/* A page on an extent just taken, which covers `columns`, all that it has; no reference yet. There is a spare
 * descriptor.
 */
uint32_t page_open_in_host(struct store *store, uint32_t pool, extent_id id, uint32_t block, uint32_t columns);
/* A growth page on a physical page just taken, at this block of its space: one reference (active or not), nothing
 * committed, a new epoch. */
uint32_t page_open(struct store *store, uint32_t pool, uint32_t device, uint32_t block, bool active);
/* Before or after a change of what an audit counts again: references, pins, places, demoted references, the spare list.
 * A page that is not touched is what it was when the audit's pass began. */
static inline void page_touch(struct pool *pool, uint32_t d) {
    struct page *page = &pool->pages[d];
    if (page->touched || MUTANT(changes_pass_unseen)) return;
    page->touched = true;
    touched_add(pool->touched, d);
}
static inline void cont_touch(struct store *store, struct cont *cont) {
    if (cont->touched) return;
    cont->touched = true;
    touched_add(store->touched, (uint32_t)(cont - store->conts));
}

/* GRP-5: it is no sequence's own rolling checkpoint any more. */
static inline void cont_disown(struct store *store, struct cont *cont) {
    if (!cont->rolls_for || MUTANT(rolling_one_stays_its_own)) return;
    cont_touch(store, cont);
    cont->rolls_for = 0;
}

/* Writer and protection follow from references (PAGE-5, SPACE-8). */
static inline void page_update(struct pool *pool, uint32_t d) {
    struct page *page = &pool->pages[d];
    page_touch(pool, d);
    bool writer = page->references == 1 && page->active_references == 1;
    uint8_t covered = page->references > page->active_references ? page->committed : 0;
    page->flags = (uint8_t)(writer ? page->flags | PAGE_WRITER : page->flags & ~PAGE_WRITER);
    page->protected = covered > page->pinned ? covered : page->pinned;
}

static inline void page_ref(struct pool *pool, uint32_t d, bool active) {
    struct page *page = &pool->pages[d];
    if (++page->references == 2) pool->shared++;
    page->active_references += active;
    page_update(pool, d);
}

static inline void page_lend(struct pool *pool, uint32_t d, bool lent) {
    page_touch(pool, d);
    pool->lent += lent ? 1 : UINT32_MAX;
    pool->pages[d].lent = lent;
}

void page_unref(struct store *store, struct pool_batch *batch, uint32_t descriptor, bool active);
/* columns: protected until page_protect lowers it */
void page_pin(struct pool *pool, uint32_t descriptor, uint32_t columns);
void page_protect(struct pool *pool, uint32_t descriptor, uint32_t columns);
void page_unpin(struct store *store, struct pool_batch *batch, uint32_t descriptor);
/* Lets go of the device replica when nothing but demoted continuations holds the page. */
void page_leave_if_unused(struct store *store, struct pool_batch *batch, uint32_t descriptor);
/* A descriptor without a device replica gets the page just taken; its bytes are still to come (PAGE_RESTORING). */
void page_bring(struct store *store, uint32_t pool, uint32_t descriptor, uint32_t device);
/* The device replica goes to available. */
void page_leave_device(struct store *store, struct pool_batch *batch, uint32_t descriptor);
/* The host replica goes, if there is one; the directory first. */
void page_leave_host(struct store *store, uint32_t pool, uint32_t descriptor);
/* Its only replica is damaged. The extent stays the page's until that is recycled: with a place for every page there is
 * a descriptor for every page. */
void page_lose(struct store *store, uint32_t pool, uint32_t descriptor);
/* Sets committed columns; fewer than before = a new epoch, and the name goes (PAGE-8). */
void page_commit(struct store *store, uint32_t pool, uint32_t descriptor, uint32_t columns);
/* Somebody writes behind its columns from now on: no record may name a replica that covers more. */
void page_write_on(struct store *store, uint32_t pool, uint32_t descriptor);

/* ---- space.c ---- */

/* Pages that it maps. */
static inline uint32_t space_held(const struct space *space) { return space->count - space->base; }
static inline uint32_t space_entitlement(const struct space *space) {
    return space->count + space->reserved + space->pending;
}
uint32_t chunks_for(uint32_t count); /* chunks of a membership of this many pages */
static inline uint32_t chunks_available(const struct chunks *c) { return c->capacity - c->used - c->reserved; }
/* Refuses for want of membership: needed and had in chunks. */
int chunks_refuse(const struct store *store, enum store_code code, uint64_t needed, uint64_t had,
                  struct store_refusal *refusal);
/* Entries [index, index + *ret_n) are contiguous in memory: walk with it. */
uint32_t *space_run(const struct store *store, const struct space *space, uint32_t index, uint32_t *ret_n);
uint32_t space_entry(const struct store *store, const struct space *space, uint32_t index);
/* The first `count` entries (not 0) as a space that is read only. It holds while those entries are there, whatever
 * comes and goes behind them. */
struct space space_prefix(const struct store *store, const struct space *space, uint32_t count);
void space_append(struct store *store, struct space *space, const uint32_t *entries, uint32_t n);
/* Forgets entries from count on; chunks become free. Pages are not touched. */
void space_cut(struct store *store, struct space *space, uint32_t count);
/* Maps n pages of the space's reservation at its end, and into the row (NULL: into none yet). */
void space_map(struct store *store, uint32_t pool, struct space *space, uint32_t n, int32_t *row);
/* Drops pages from count on: to the reservation (keep_reserved) or to available. row may be NULL. */
void space_drop(struct store *store, uint32_t pool, struct space *space, uint32_t count, bool active,
                bool keep_reserved, int32_t *row);
/* GRP-2: a running sequence gives back its pages before `base`: what it alone holds to its reservation. row may be
 * NULL. True: others hold some of them. */
bool window_pass(struct store *store, uint32_t pool, struct space *space, uint32_t base, int32_t *row);
void space_commit(struct store *store, uint32_t pool, struct space *space, uint32_t frontier);
/* Its pages are lent no more. */
void space_end_lending(struct store *store, uint32_t pool, const struct space *space);
/* Its membership becomes another object's. */
void space_touch(struct store *store, uint32_t pool, const struct space *space);
/* Leading pages with several references. */
uint32_t space_shared(const struct store *store, uint32_t pool, const struct space *space);
uint32_t space_protected(const struct store *store, uint32_t pool, const struct space *space); /* tokens */
uint32_t space_device(const struct store *store, uint32_t pool, uint32_t entry); /* physical id of an entry */
uint32_t space_copy_ids(const struct store *store, uint32_t pool, const struct space *space, uint32_t *ret_ids,
                        uint32_t max);

/* Appends n entries that map nothing, to a space that is empty. */
void space_skip(struct store *store, struct space *space, uint32_t n);

/* ---- window.c: GRP-2 to GRP-4. Without a window everything begins at block 0. ---- */

/* The first block that going on from a frontier reads; and that a running sequence keeps. */
uint32_t window_first(const struct store *store, uint32_t pool, uint32_t frontier);
uint32_t window_kept(const struct store *store, uint32_t pool, uint32_t frontier);
/* The lowest frontier from which blocks from base on suffice to go on. */
uint32_t window_lowest(const struct store *store, uint32_t pool, uint32_t base);
/* GRP-4: all that going on from the frontier reads is in these spaces. */
bool windows_hold(const struct store *store, const struct space spaces[KVD_MAX_POOLS], uint32_t frontier);
/* Where mapping ends with this base; reach: where the request does. */
uint32_t window_end(const struct store *store, uint32_t pool, uint32_t base, uint32_t reach);
/* A page that comes back when the sequence that holds it passes it. */
static inline bool page_is_own(const struct page *page) { return page->references == 1 && page->pins == 0; }
/* Pages that must be reserved for a space of `count` blocks, so that it can go on up to `reach`; others: blocks that
 * are not its own, whatever they are now; act: whose victims hold no page any more by then, or NULL. */
struct blocks {
    uint32_t begin, end;
};
struct activation;
uint32_t window_needs(const struct store *store, uint32_t pool, const struct space *space, uint32_t count,
                      uint32_t reach, struct blocks others, const struct activation *act);

/* ---- row.c ---- */

uint32_t row_take(struct store *store, uint32_t pool, uint32_t owner);
void row_release(struct store *store, uint32_t pool, uint32_t row, uint32_t used); /* entries [0, used) become -1 */
static inline int32_t *row_entries(const struct store *store, uint32_t pool, uint32_t row) {
    return store->pool[pool].table + (size_t)row * store->row_entries;
}

/* ---- handles.c ---- */

struct seq *seq_find(const struct store *store, store_seq handle);
struct cont *cont_find(const struct store *store, store_cont handle);
store_seq seq_handle(const struct store *store, const struct seq *seq);
store_cont cont_handle(const struct store *store, const struct cont *cont);
struct seq *seq_take(struct store *store);
void seq_free(struct store *store, struct seq *seq);
struct cont *cont_take(struct store *store);
void cont_free(struct store *store, struct cont *cont);
uint32_t conts_free(const struct store *store);
/* Releasing it leaves a descriptor: one whose generation would wrap is retired. */
static inline bool cont_leaves_descriptor(const struct cont *cont) { return cont->generation != UINT32_MAX; }
/* FIT-2: the descriptor that keeps the sequence at its end. Takes one, if it needs one and one is free. */
void seq_own_descriptor(struct store *store, struct seq *seq);
/* The sequence's descriptor, which is no longer its own. */
struct cont *seq_leave_descriptor(struct store *store, struct seq *seq);
/* Of a driver: right handle, right lease, ACTIVE. */
int seq_drive(const struct store *store, store_seq handle, uint64_t lease, struct seq **ret_seq,
              struct store_refusal *refusal);
uint32_t slots_free(const struct store *store);
uint32_t slot_take(struct store *store);
void slot_release(struct store *store, uint32_t slot);
void slot_pin(struct store *store, uint32_t slot);
void slot_unpin(struct store *store, uint32_t slot);

/* ---- activation: what a request comes to (activation.c), before anything changes ---- */

struct activation_pool {
    uint32_t restore;      /* of the kept pages: to be brought from the host */
    uint32_t demote;       /* pages of demoted victims that must be copied out */
    uint32_t entitlement;  /* the block up to which it may map now */
    uint32_t base, reach;  /* of a window: its first block, and where the request ends; else 0 and entitlement */
    uint32_t taken;        /* leading blocks taken over from the source; a moved source drops the rest */
    uint32_t tail_columns; /* of a tail copy, 0 = none */
    uint32_t mapped;       /* membership after begin */
    bool tail_in;          /* the tail's columns come from the host copy of the source's */
    uint32_t fresh;        /* pages needed: entitlement - kept + restore */
    uint32_t freed_victims, freed; /* pages that go with the victims, and with the dropped part of a moved source too */
};

struct victim {
    struct cont *cont;
    bool demote;
    uint32_t frontier; /* that it is shortened to; 0: it goes whole */
};
/* The first block of it that goes. */
static inline uint32_t victim_first(const struct victim *victim) { return pages_of(victim->frontier); }
/* Chunks of its membership in a pool that go, where it is not demoted. */
static inline uint32_t victim_chunks(const struct victim *victim, uint32_t p) {
    return chunks_for(victim->cont->space[p].count) - chunks_for(victim_first(victim));
}
/* It leaves a descriptor. */
static inline bool victim_leaves_descriptor(const struct victim *victim) {
    return !victim->demote && !victim->frontier && cont_leaves_descriptor(victim->cont);
}
/* What a caller names to give way. */
struct recipe {
    const struct kvd_victim *victims;
    uint32_t n;
    uint64_t revision;         /* 0: any */
    const struct cont *source; /* of the activation, or NULL: no victim, unless it is moved and goes anyhow */
    bool move;
};
/* STORE_OK: each of them can give way now; without the source. */
int recipe_resolve(const struct store *store, const struct recipe *recipe, struct victim *ret_victims, uint32_t *ret_n,
                   struct store_refusal *refusal);
/* Released or shortened, now. */
void victim_release(struct store *store, const struct victim *victim);
/* The same, or demoted where the host has all of it. */
void victim_give_way(struct store *store, const struct victim *victim);
/* No transition holds it. */
bool cont_may_go(const struct cont *cont);
/* As growth and checkpoints take it, who cannot wait for copies: *ret_victim is demoted only where the host has all of
 * it. False: it is gone, held by a transition, demoted already, or cannot be shortened to this. */
bool victim_for_growth(const struct store *store, const struct kvd_victim *want, struct victim *ret_victim);

/* ---- checkpoint.c ---- */

/* What a continuation needs (CONT-1, CONT-2): one frontier of at least a token in all pools and the state image, every
 * full page named, the tail's tokens. */
int seq_complete(const struct store *store, const struct seq *seq, const struct kvd_tail *tail,
                 struct store_refusal *refusal);
/* What there will be for a checkpoint when the victims have given way. */
struct post_state {
    struct victim *victims; /* the store's scratch */
    uint32_t n, conts, slots, pages[KVD_MAX_POOLS];
    uint32_t reserve[KVD_MAX_POOLS]; /* for the sequence, in the stead of window pages that it shares from now on */
    uint64_t chunks;
};
void post_look(const struct store *store, struct post_state *post); /* of its victims */
/* STORE_OK or STORE_E_SHORT. Acquisitions in order: descriptor, pages (tail, and for windows), state slot, membership.
 */
int checkpoint_check(struct store *store, const struct seq *seq, uint32_t frontier, struct post_state *post,
                     struct store_refusal *refusal);
/* All but the tail, the image and the names; unpublished. Cannot fail after the check. */
struct cont *checkpoint_take(struct store *store, struct seq *seq, uint32_t frontier, const struct post_state *post);
/* The sequence's image is to be copied into a slot of its own. */
struct store_copy checkpoint_image(struct store *store, const struct seq *seq, struct cont *cont);
void checkpoint_fly(struct store *store, struct cont *cont);  /* it has copies in flight, */
void checkpoint_land(struct store *store, struct cont *cont); /* or has none any more */
/* A rolling one has its names: its last page has. It is found from now on, or an equal one is, which is returned. */
bool checkpoint_is_named(const struct store *store, const struct cont *cont);
struct cont *checkpoint_show(struct store *store, struct cont *cont);

/* ---- roll.c: rolling checkpoints (GRP-5) ---- */

void roll_begin(const struct store *store, struct seq *seq, const struct store_activation *want);
uint32_t roll_after(const struct seq *seq, uint32_t tokens); /* the next boundary; KVD_NONE: there is none */
/* Its pools are committed past roll_next, what lies behind the windows is still there. True: one was taken. */
bool roll_pass(struct store *store, struct seq *seq, uint32_t committed, const struct store_round_item *item,
               struct store_round_result *result);
/* Its own ones behind the frontier go. True: there were such. */
bool roll_cut(struct store *store, struct seq *seq, uint32_t frontier);
/* What others protect of a sequence that has such, as space_protected. */
uint32_t roll_protected(const struct store *store, const struct seq *seq, uint32_t pool);
/* Its pages got names: those that have all are found. True: there are such. */
bool roll_named(struct store *store, struct seq *seq);
/* How many that wait for names hold this block of Main. */
uint32_t roll_unnamed(const struct store *store, const struct seq *seq, uint32_t block);
void roll_end(struct store *store, struct seq *seq); /* the sequence ends */

struct activation {
    const struct store_activation *want;
    struct cont *source; /* NULL = root */
    bool move;
    struct victim *victims; /* the store's scratch; without the source */
    uint32_t n_victims, ceiling;
    uint32_t images; /* state images of demoted victims that must be copied out */
    uint64_t arena_needed,
        arena_placed; /* bytes: for those pages and images; of them what finds a place after the releases */
    bool arena_now;   /* all find a place before any release */
    struct activation_pool pool[KVD_MAX_POOLS];
    uint32_t slots_needed, slots_freed;
    bool image_in; /* the source's state image comes from the host */
    uint32_t chunks_needed, chunks_now, chunks_freed_victims, chunks_freed;
    uint32_t conts_needed, conts_freed; /* descriptors: a moved source leaves its own to the sequence */
    uint32_t stamp;                     /* of the marks that the last count left */
};

/* Pages that must be there before the copies. */
static inline uint32_t activation_now(const struct activation_pool *ap) { return ap->restore + (ap->tail_columns > 0); }
/* References of page d, block `block` of a pool, that are left when the victims that are released or shortened have
 * gone; act: NULL for none. A page has one place in all spaces. */
static inline uint32_t victims_leave(const struct store *store, const struct activation *act, uint32_t p,
                                     uint32_t block, uint32_t d) {
    uint32_t left = store->pool[p].pages[d].references;
    for (uint32_t i = 0; act && i < act->n_victims && left > 1; i++) {
        const struct victim *victim = &act->victims[i];
        const struct space *space = &victim->cont->space[p];
        left -= !victim->demote && block >= victim_first(victim) && block < space->count &&
                space_entry(store, space, block) == d;
    }
    return left;
}

/* Arguments, handles, states. STORE_OK, or why the request cannot be planned at all. */
int activation_resolve(const struct store *store, const struct store_activation *want, struct activation *ret_act,
                       struct store_refusal *refusal);
/* Needs of every pool on the joint post-state. STORE_E_ENTITLEMENT if more is to be mapped at once than is granted. */
int activation_measure(const struct store *store, struct activation *act, struct store_refusal *refusal);
/* STORE_OK, STORE_E_NEVER or STORE_E_SHORT; counts each need as an acquisition in the order of ACT-2. The arena is
 * looked at last: if it is said to be short, nothing else is. */
int activation_check(struct store *store, const struct activation *act, struct store_refusal *refusal);
/* The numbers of a plan, all but the feasibility. */
void activation_plan(const struct store *store, const struct activation *act, struct kvd_plan *ret_plan);
/* What is to be taken from the arena, in this order. Returns how many wants. */
uint32_t activation_extents(const struct store *store, const struct activation *act,
                            struct extent_page_want wants[KVD_MAX_POOLS + 1]);
/* Whether there is too little room now for what must be there before the copies: pages for tails and restores, chunks
 * for the membership. */
bool activation_is_short_now(const struct store *store, const struct activation *act);

/* ---- order.c: in which continuations go. index_insert and index_drop keep it; who changes retention, use or `demoted`
 * drops and inserts around that. ---- */

void order_insert(struct store *store, struct cont *cont);
void order_drop(struct store *store, struct cont *cont);       /* nothing, if it is not in */
uint32_t order_first(const struct store *store, bool demoted); /* index of a continuation, KVD_NONE: there is none */
uint32_t order_next(const struct store *store, uint32_t at);
bool order_is_found(const struct store *store, uint32_t at);            /* from the root, by what it is */
bool order_is_first(const struct store *store, uint32_t a, uint32_t b); /* a goes before b; KVD_NONE after all */

/* ---- lives.c: called where a continuation is published, serves, and goes ---- */

void life_begin(struct store *store, struct cont *cont, bool found /* in the directory */);
void life_use(struct store *store, struct cont *cont);
void life_end(struct store *store, const struct cont *cont, enum store_fate fate);
uint64_t lives_balance(const struct store *store); /* how many must be published */

/* ---- the rest ---- */

/* Blocks for which it has membership reserved. */
uint32_t seq_reach(const struct store *store, const struct seq *seq, uint32_t pool);
/* entitle.c */
uint32_t entitle_ceiling(const struct store *store, uint32_t pool, uint32_t ceiling_tokens); /* pages */
uint32_t entitle_at_start(const struct store *store, uint32_t pool, uint32_t prompt, uint32_t ceiling_tokens);
uint32_t entitle_cushion(const struct store *store);
uint32_t entitle_rung(const struct store *store, uint32_t i); /* tokens; i = 0..2 */

/* changed: the first so many entries of the row are to be published. */
void seq_view(const struct store *store, const struct seq *seq, uint32_t pool, uint32_t changed,
              struct kvd_pool_view *ret_view);
void seq_release_rows(struct store *store, struct seq *seq, struct kvd_pool_view ret_rows[KVD_MAX_POOLS]);
void seq_unpin_source(struct store *store, struct seq *seq);
void seq_abort(struct store *store, struct seq *seq); /* ACTIVATING; its rows are released already */
/* A complete one, with its names: published, unless an equal one stands for it. Returns the one that counts. */
struct cont *cont_publish_or_merge(struct store *store, struct cont *cont);
/* live.c, LIVE-1. Pages that others may find of a sequence with these frontiers. */
uint32_t live_reach(const struct store *store, const struct seq *seq, const uint32_t committed[KVD_MAX_POOLS]);
uint32_t live_now(const struct store *store, const struct seq *seq); /* pages that are found */
/* So many can be found from now on; those that no longer can are still there. near (may be NULL): a published
 * continuation whose names begin with the same. */
void live_set(struct store *store, struct seq *seq, uint32_t pages, const struct cont *near);
/* As its frontiers and names are now; update: not while it is ACTIVATING. */
void live_show(struct store *store, struct seq *seq, const struct cont *near);
void live_update(struct store *store, struct seq *seq);
/* Tokens that forks in flight read of its live continuation. */
uint32_t live_forked(const struct store *store, const struct seq *seq);
/* Truncation stops there (SPACE-8). */
uint32_t seq_protected(const struct store *store, const struct seq *seq, uint32_t pool);
/* STORE_OK, or that a running sequence goes on with it. */
int cont_check_live(const struct store *store, const struct cont *cont, struct store_refusal *refusal);
/* One that exists, is published and that no activation holds. */
int cont_find_unclaimed(const struct store *store, store_cont handle, struct cont **ret_cont,
                        struct store_refusal *refusal);
/* Whether it can be shortened to this frontier now (SHORT-1). */
int cont_check_cut(const struct store *store, const struct cont *cont, uint32_t frontier,
                   struct store_refusal *refusal);
void cont_shorten(struct store *store, struct cont *cont, uint32_t frontier);
/* equal.c, FIT-5: a published one with the same names, tail and tag, in no activation; of `like` frontier, names, tail,
 * tag and the Main space are read. NULL: there is none. */
struct cont *cont_find_equal(const struct store *store, const struct cont *like);
/* All of it is on the device: it is as good as an equal one made now, and counts as used. */
bool cont_stands_for(struct store *store, struct cont *cont, uint32_t retention);
/* An equal one's pages and image become those of cont. */
void cont_take_pages(struct store *store, struct cont *cont, struct cont *from);
/* Releases a continuation, published or not, and its descriptor. */
void cont_release(struct store *store, struct cont *cont, enum store_fate fate);
/* Joint release and demotion (recipes): marks the pages of a space from block `first` on and counts those whose device
 * replica goes now that they are marked. */
struct joint {
    uint32_t pool, first, stamp;
    bool released;
    bool demoted; /* the holder already was */
};
uint32_t joint_mark(const struct store *store, const struct space *space, const struct joint *how);
/* With these marks: will its place on the device be given back? One that an aborted job left half brought has a place
 * too. */
static inline bool joint_frees(const struct store *store, uint32_t pool, uint32_t d) {
    const struct page *page = &store->pool[pool].pages[d];
    uint32_t demoted = store->pool[pool].tier ? store->pool[pool].tier[d].demoted : 0;
    return page->mark && page->mark + demoted == page->references && page->pins == 0 && page->device != KVD_NONE;
}

/* ---- tier.c: jobs, demoted ---- */

bool job_is_empty(const struct store *store, const struct tier_job *job);
/* Pages of the first n blocks that are not on the device nor coming: brought onto pages just taken (there are enough).
 */
void job_copy_in(struct store *store, struct tier_job *job, uint32_t pool, const struct space *space, uint32_t n);
uint32_t tier_missing(const struct store *store, uint32_t pool, const struct space *space,
                      uint32_t n); /* how many those are */
/* The extents of wants that were found to fit (extent_pages_fit), one after the other. All of them, before job_copy_out
 * gives an older replica's bytes back: on other free runs than were played the last want may find no place. */
const extent_id *tier_take(struct store *store, const struct extent_page_want *wants, uint32_t n);
/* Pages of the space without a current host replica, and not getting one: ids[0..) are theirs, in order. Returns how
 * many. */
uint32_t job_copy_out(struct store *store, struct tier_job *job, uint32_t pool, const struct space *space,
                      const extent_id *ids);
/* Its host replica is written by others than copies, and hidden until the job ends. */
void job_write(struct store *store, struct tier_job *job, uint32_t pool, uint32_t descriptor);
/* Its copies are done (ok) or will not be: publishes or takes back, unpins, empties the list. */
void job_finish(struct store *store, struct tier_job *job, bool ok);
/* Takes over pages of the first n blocks that an aborted job left half brought. */
bool job_adopt(struct store *store, struct tier_job *job, uint32_t pool, const struct space *space, uint32_t n);
bool tier_any(const struct store *store, uint32_t pool, const struct space *space, uint32_t n,
              uint8_t flags);                                              /* of the first n pages */
bool tier_all_current(const struct store *store, const struct cont *cont); /* pages and image */
/* Pages of the space that are not current in the host; coming_counts: nor on their way there (move.c). */
uint32_t tier_lacks(const struct store *store, uint32_t p, const struct space *space, bool coming_counts);
/* Pins the first n blocks, or unpins them. */
void tier_pin_pages(struct store *store, uint32_t pool, const struct space *space, uint32_t n, bool on);
void cont_demote(
    struct store *store,
    struct cont *cont); /* all is current in the host: device replicas and slot go where nothing else needs them */
void cont_undemote(struct store *store, struct cont *cont);
void cont_drop_image(struct store *store, struct cont *cont);
void tier_give_back(struct store *store, extent_id id);                    /* bytes of a replica that has gone */
void image_copy_out(struct store *store, struct cont *cont, extent_id id); /* its slot is to be copied there */
void image_finish(struct store *store, struct cont *cont, bool ok);
void image_unpin(struct store *store, struct cont *cont);
/* A continuation that holds a lost page or image, and that no transition holds, is shortened to what lies before it, or
 * released. True: it was released. */
bool cont_give_up_lost(struct store *store, struct cont *cont);

/* Tails that an activation in flight copies on the device. Returns how many. */
uint32_t tail_copies(const struct store *store, const struct seq *seq, struct store_copy ret_copies[KVD_MAX_POOLS]);
uint32_t moves_in_flight(const struct store *store); /* transitions with copies between tiers */

/* ---- read.c, lately.c ---- */

static inline bool arena_is_read(const struct store *store, extent_id id) {
    for (uint32_t i = 0; i < READS; i++)
        if (id.bits == store->reads[i].extent.bits) return true;
    return false;
}
uint32_t arena_reads_gone(const struct store *store); /* extents that nobody owns any more and somebody reads */
/* It was demoted just now. */
void note_demoted(struct store *store, const struct cont *cont);
struct store_copy page_copy(const struct store *store, uint32_t p, uint32_t d);
struct store_copy image_copy(const struct store *store, const struct cont *cont, bool out, uint32_t slot);

/* ---- record.c: into the directory, where there is one ---- */

void record_page_device(struct store *store, uint32_t pool, uint32_t descriptor);
void record_page_host(struct store *store, uint32_t pool, uint32_t descriptor);
/* Its record names more columns in the host than there are: it was cut. */
bool record_covers_more(const struct store *store, uint32_t pool, uint32_t descriptor);
void record_page_name(struct store *store, uint32_t descriptor);
void record_page_close(struct store *store, uint32_t pool, uint32_t descriptor);
void record_cont(struct store *store, const struct cont *cont);
void record_cont_drop(struct store *store, const struct cont *cont);
/* With these frontiers, which are not past the committed ones. */
void record_seq_at(struct store *store, struct seq *seq, const uint32_t frontier[KVD_MAX_POOLS]);
/* With one frontier in all pools. */
void record_seq_whole(struct store *store, struct seq *seq, uint32_t frontier);
void record_seq(struct store *store, struct seq *seq);
void record_seq_drop(struct store *store, struct seq *seq);

/* SRV-5: of a frontier with so many leading pages that have names, the tokens that a lookup can lead to. */
uint32_t recover_reach(const struct store *store, const struct directory_bundle *from, uint32_t frontier,
                       uint32_t named);
uint32_t named_pages(const struct store *store, const struct space *space, uint32_t frontier); /* leading ones */
/* What a bundle's record says of a continuation whose pages are there. */
void recover_cont(struct store *store, struct cont *cont, const struct directory_bundle *from, uint32_t frontier);

/* ---- domain.c ---- */

void domain_init(struct domains *domains);
uint32_t domain_find(const struct store *store, const kvd_digest *digest); /* KVD_NONE: nobody is of it */
/* Each adds a reference, and so never fails: there is a record for every holder. */
uint32_t domain_take(struct store *store, const struct kvd_root *root);
uint32_t domain_hold(struct store *store, uint32_t domain);
void domain_drop(struct store *store, uint32_t domain); /* KVD_NONE: nothing */

/* ---- index.c, ends.c ---- */

void index_init(struct index *index);
void index_insert(struct store *store, struct cont *cont);
/* The same below a continuation of which the names begin with all of its own: without a walk from the root. */
void index_insert_near(struct store *store, struct cont *cont, const struct cont *near);
/* Its name goes on for some pages, or ends earlier. The space has the pages of both. Costs what is between. */
void index_grow(struct store *store, struct cont *cont, uint32_t named);
void index_shrink(struct store *store, struct cont *cont, uint32_t named);
void index_drop(struct store *store, struct cont *cont);
/* Digest of a step of its path. */
const uint8_t *index_digest(const struct store *store, const struct cont *cont, uint32_t step);
uint32_t index_child(const struct store *store, uint32_t parent, const uint8_t *digest);
/* Its name is known to the last token. */
bool cont_is_whole(const struct cont *cont);
/* Tokens that order it among the ends of its node: those of its tail, none where it is not whole. */
uint32_t end_tokens(const struct cont *cont);
/* How many of those are the first of `tokens`. */
uint32_t end_common(const struct cont *cont, const uint32_t *tokens, uint32_t n);
void end_insert(struct store *store, uint32_t node, uint32_t cont);
void end_remove(struct store *store, uint32_t cont);
uint32_t end_next(const struct store *store, uint32_t cont);     /* KVD_NONE: it is the last */
uint32_t end_previous(const struct store *store, uint32_t cont); /* KVD_NONE: it is the first */
/* The first end of the node that does not come before these tokens, and (may be NULL) the one before it. */
uint32_t end_seek(const struct store *store, uint32_t node, const uint32_t *tokens, uint32_t n, uint32_t *ret_before);
bool end_is_found(const struct store *store, uint32_t cont); /* from its node, by its own tail */
bool end_has_tail(const struct store *store, uint32_t node); /* one of its ends has */

#endif
