/* SPDX-License-Identifier: Apache-2.0
 *
 * The reference: what CONTRACT.md says about a store, as plainly as it can be computed. Spaces are arrays of page ids
 * with the token content that a reader must find behind them; references, accounting and sharing are recounted from the
 * memberships whenever they are asked for. No index, no counters, no incremental state beyond the objects themselves.
 *
 * The model never looks at the store. Where the contract leaves a choice to the store (which free page, row or slot, in
 * which order arguments are checked) the driver hands the choice over and the model says whether it was a legal one:
 *   - a refusal is right iff it is one of all the reasons that the model finds; success is right iff the model finds
 * none;
 *   - a new page, row or slot is right iff it was free.
 */
#ifndef KVD_TESTS_MODEL_MODEL_H
#define KVD_TESTS_MODEL_MODEL_H

#include "round_ask.h"
#include "store.h"

#define MODEL_BLOCKS 256 /* largest L */
#define MODEL_PAGES 1024 /* largest pool */
#define MODEL_SEQS 16    /* largest C */
#define MODEL_CONTS 96   /* largest max_continuations */
#define MODEL_HITS (MODEL_CONTS + MODEL_SEQS)
#define MODEL_SLOTS 128
#define MODEL_REASONS 96
#define POOLS KVD_MAX_POOLS

struct space {
    uint32_t n[POOLS];                                     /* membership, blocks */
    uint32_t base[POOLS];                                  /* of a window: those before map nothing, and are KVD_NONE */
    uint32_t page[POOLS][MODEL_BLOCKS];                    /* physical ids in logical order */
    uint32_t committed[POOLS];                             /* tokens */
    uint32_t token[POOLS][MODEL_BLOCKS * KVD_PAGE_TOKENS]; /* content that must be read back below committed */
    uint8_t chain[MODEL_BLOCKS][32];                       /* digest that page i has or will be given */
    uint64_t image;                                        /* state image that belongs to the frontier */
};

struct model_seq {
    bool used, own; /* own: has the descriptor that keeps it (FIT-2) */
    bool hidden;    /* ACTIVATING: its rows show nothing, tails are being copied */
    store_seq handle;
    uint64_t lease;
    uint8_t domain; /* first byte of its root; the others are 0 */
    enum store_seq_state state;
    uint32_t prompt, ceiling;
    uint32_t entitlement[POOLS];
    uint32_t hold[POOLS];           /* of a window: pages of its reservation that are not mapped */
    uint32_t owed[POOLS];           /* ACTIVATING: pages of the entitlement that only commit will free */
    uint32_t borrowed[POOLS];       /* ACTIVATING: mapped pages that victims hold until commit ... */
    bool lent[POOLS][MODEL_BLOCKS]; /* ... and at which blocks */
    uint32_t row[POOLS];
    uint32_t slot, source_slot; /* KVD_NONE: none */
    uint32_t state_frontier;    /* of the image in slot; KVD_NONE: no image yet */
    uint64_t wanted_image;      /* fork: the image that source_slot holds for us */
    /* GRP-5: where checkpoints were asked for; all pools are committed up to `passed`. */
    uint32_t every, passed;
    bool at_prompt;
    struct space sp;
    int from;        /* ACTIVATING: index of the source continuation, -1 */
    int from_seq;    /* ACTIVATING: index of the running sequence that it is a fork of, -1 (LIVE-1) */
    store_cont live; /* not ACTIVATING: handle of what is found of it */
    bool keep;
    int victims[MODEL_CONTS];
    uint32_t cut[MODEL_CONTS]; /* what each victim is shortened to; 0: it goes */
    uint32_t n_victims;
    uint32_t copied[POOLS]; /* columns of the tail copied at activation */
};

struct model_cont {
    bool used, published;
    bool going; /* of a sequence that was released: it is there for the forks in flight, and nobody finds it */
    store_cont handle;
    uint8_t domain;
    uint32_t frontier, retention, slot;
    struct kvd_tail tail;
    bool tail_named;
    uint64_t born;
    int claimed_by;                      /* activation that consumes or releases it, -1 */
    uint32_t pins;                       /* forks in flight from it */
    uint32_t pinned[POOLS], pinned_slot; /* unpublished: what its copies are made from; KVD_NONE: nothing */
    int rolls;                           /* sequence + 1 whose rolling checkpoint it is, 0: of none (GRP-5) */
    bool asked; /* it may stand for an equal one, and be nobody's own any more: the store says */
    struct space sp;
};

struct model {
    struct store_config config;
    uint32_t n_pools, blocks; /* L */
    struct model_seq seq[MODEL_SEQS];
    struct model_cont cont[MODEL_CONTS];
    bool named[MODEL_PAGES]; /* Main pages only */
    uint8_t digest[MODEL_PAGES][32];
    uint32_t refs[POOLS][MODEL_PAGES]; /* as of the last model_count() */
    uint32_t pins[POOLS][MODEL_PAGES]; /* the same; a pinned page is allocated, but not a reference */
    uint64_t births;
    uint64_t taken;           /* rolling checkpoints */
    uint32_t replaced[POOLS]; /* by model_keep_reasons: window pages that the checkpoint reserves for its sequence */
    char wrong[512];          /* first illegal choice; empty: none */
};

struct reason {
    enum store_code code;
    enum store_subject subject;
    uint32_t pool;
    bool numbers; /* asked and had are exact */
    bool maybe;   /* the contract leaves it open: a refusal for this is right, success too */
    uint64_t asked, had;
};
struct reasons {
    uint32_t n;
    struct reason list[MODEL_REASONS];
};

uint32_t model_pages(uint64_t tokens);
void model_init(struct model *model, const struct store_config *config);
void model_wrong(struct model *model, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool model_expects(const struct reasons *reasons, const struct store_refusal *refusal);

/* ---- windows (GRP-2 to GRP-4) ---- */
bool model_has_window(const struct model *model, uint32_t pool);
/* The first block that the token to come reads, and that a running sequence keeps. */
uint32_t model_first(const struct model *model, uint32_t pool, uint32_t frontier);
uint32_t model_stays(const struct model *model, uint32_t pool, uint32_t frontier);
/* Blocks that are mapped at once, at most. */
uint32_t model_bound(const struct model *model, uint32_t pool);
/* Pages that must be reserved so that it can go on up to `reach`, whatever it passes; blocks [begin, end) are shared.
 */
uint32_t model_needs(const struct model *model, const struct space *space, uint32_t pool, uint32_t count,
                     uint32_t reach, uint32_t begin, uint32_t end);
/* All that going on from there reads is held. */
bool model_holds(const struct model *model, const struct space *space, uint32_t frontier);

/* ---- looking ---- */
int model_find_seq(const struct model *model, store_seq handle);
int model_find_cont(const struct model *model, store_cont handle);
/* LIVE-1: pages that others find of a sequence; the sequence whose they are; and the forks in flight from it. */
uint32_t model_live(const struct model *model, int seq);
int model_find_live(const struct model *model, store_cont handle);
uint32_t model_forks(const struct model *model, int seq, uint32_t *ret_frontier);
struct kvd_root model_root(uint8_t domain);
void model_count(struct model *model); /* refs from scratch */
struct kvd_pool_stats model_stats(struct model *model, uint32_t pool);
uint32_t model_seqs_used(const struct model *model);
uint32_t model_conts_used(const struct model *model); /* without those that sequences own */
uint32_t model_descriptors_used(const struct model *model);
uint32_t model_slots_used(const struct model *model);
uint64_t model_membership(const struct model *model);
uint32_t model_named(const struct model *model, const struct space *space, uint32_t full_pages);
uint32_t model_protected(struct model *model, const struct model_seq *seq, uint32_t pool);
/* Pages that go when exactly these continuations go (indices), or are shortened to cut[i] where that is not 0. */
uint32_t model_joint(struct model *model, const int *conts, const uint32_t *cut, uint32_t n, uint32_t pool);
uint32_t model_sharers(struct model *model, const struct model_cont *cont);
/* Tokens of the query's prompt that an activation may start from with this continuation; 0: it is no hit (NAME-1,
 * NAME-2). Of tails the query knows those at token_page. *ret_pages: how many pages match. */
uint32_t model_usable(const struct model *model, const struct model_cont *cont, const struct store_query *query,
                      uint32_t *ret_pages);
/* The same of what a running sequence shows. */
uint32_t model_live_usable(const struct model *model, int seq, const struct store_query *query, uint32_t *ret_pages);
/* How many hits there are past page `floor`, and the usable tokens of each, the most first. */
uint32_t model_hits(const struct model *model, const struct store_query *query, uint32_t floor,
                    uint32_t ret_usable[MODEL_HITS]);

/* ---- activation ---- */
struct model_plan {
    struct reasons hard;           /* argument and state errors: plan and activate both refuse */
    struct reasons never, lacking; /* plan answers INFEASIBLE, BLOCKED; activate refuses */
    int from, from_seq, victims[MODEL_CONTS];
    uint32_t cut[MODEL_CONTS], n_victims;
    uint32_t base[POOLS];
    uint32_t ceiling, entitlement[POOLS], shared[POOLS], copied[POOLS], freed[POOLS];
    uint32_t needed[POOLS], available[POOLS]; /* available counts freed */
    uint32_t map[POOLS];                      /* membership after the activation */
    uint32_t slots_needed, slots_available, conts_needed, conts_available;
    bool takes_victims_now[POOLS]; /* no free page for the tail copy: victims go at begin */
};
void model_plan_activation(struct model *model, const struct store_activation *want, uint64_t revision,
                           struct model_plan *ret);
/* The store said yes: takes over its choices. pages[p]: the n ids of the new sequence. Returns the index. */
int model_begin(struct model *model, const struct store_activation *want, const struct model_plan *plan,
                const struct store_activated *got, bool victims_gone, uint32_t *const pages[POOLS],
                const uint32_t n[POOLS]);
void model_activate_commit(struct model *model, int seq);
void model_activate_abort(struct model *model, int seq);
void model_claim_reasons(const struct model *model, int seq, struct reasons *reasons); /* of commit and abort */

/* ---- rolling checkpoints (GRP-5) ---- */
struct model_rolling {
    const struct store_rolling *got; /* the sequence's own after the Round: their handles, */
    uint32_t n;
    bool unsure;    /* and, where a shortage was injected, what was taken */
    uint32_t image; /* frontier of the image that the Round told */
    uint32_t slot;  /* and where its copy went */
};
uint32_t model_rolled(const struct model *model, int seq, int ret[MODEL_CONTS]);
bool model_may_supersede(const struct model *model, int cont);
/* Boundaries that are passed with these frontiers. */
uint32_t model_due(const struct model *model, int seq, const uint32_t committed[POOLS], uint32_t ret[MODEL_BLOCKS]);
void model_roll_pass(struct model *model, int seq, const struct model_rolling *how);
void model_roll_cut(struct model *model, int seq, uint32_t frontier);
void model_roll_named(struct model *model);
/* It has no copy in flight (any more), and no names yet. */
bool model_roll_waits(const struct model *model, int cont);
void model_roll_landed(struct model *model, int cont);
void model_roll_end(struct model *model, int seq);

/* ---- round ---- */
struct model_growth {
    uint32_t n, target[3];
}; /* rungs in order; n == 0: not thin */
struct model_round {
    struct reasons reasons;
    int seq;
    uint32_t committed[POOLS], kept[POOLS], map[POOLS], entitlement[POOLS], base[POOLS];
    struct model_growth growth[POOLS];
    bool bounded;
    uint32_t bounded_pool, bounded_frontier;
    /* FIT-4: who goes for it, in the order of the item's list. */
    int gone[MODEL_CONTS];
    uint32_t cut[MODEL_CONTS], n_gone;
};
void model_round(struct model *model, const struct store_round_item *item, struct model_round *ret);
/* What follows from ret->entitlement, which model_round() chose and a shortage that was injected into a rung may have
 * lowered. */
void model_round_settle(struct model *model, const struct store_round_item *item, struct model_round *ret);
void model_round_apply(struct model *model, const struct store_round_item *item, const struct model_round *round,
                       const struct model_rolling *rolling, uint32_t *const pages[POOLS], const uint32_t n[POOLS]);

/* ---- the rest: reasons first, then apply ---- */
void model_drive_reasons(const struct model *model, int seq, uint64_t lease, struct reasons *reasons);
void model_name_reasons(struct model *model, int seq, uint64_t lease, uint32_t first, uint32_t n,
                        const uint8_t (*digests)[32], struct reasons *reasons);
void model_name(struct model *model, int seq, uint32_t first, uint32_t n, const uint8_t (*digests)[32]);
/* retain: Finish with RETAIN, else a checkpoint, with this recipe (NULL: none). */
void model_keep_reasons(struct model *model, int seq, uint64_t lease, const struct kvd_tail *tail, bool retain,
                        const struct model_plan *recipe, struct reasons *reasons);
/* The victims of a checkpoint into ret->victims, and why they are none into ret->hard. */
void model_recipe(struct model *model, const struct kvd_victim *victims, uint32_t n, uint64_t revision, uint64_t now,
                  struct model_plan *ret);
/* It goes, or is shortened. */
void model_give_way(struct model *model, int cont, uint32_t cut);
int model_checkpoint(struct model *model, int seq, const struct kvd_tail *tail, uint32_t retention,
                     const struct store_checkpointed *got, uint32_t *const pages[POOLS], const uint32_t n[POOLS]);
void model_checkpoint_publish(struct model *model, int cont);
/* FIT-5: a continuation that is equal to what a sequence of the domain is at this frontier: the one with this handle,
 * or (none) any. -1: there is none. */
int model_equal(const struct model *model, uint8_t domain, const struct space *space, uint32_t frontier,
                const struct kvd_tail *tail, store_cont handle);
/* It stands for one more. */
void model_merge(struct model *model, int cont, uint32_t retention);

void model_checkpoint_reasons(const struct model *model, store_cont handle, struct reasons *reasons);
int model_finish(struct model *model, int seq, bool retain, const struct kvd_tail *tail, uint32_t retention,
                 store_cont handle);
/* Whether death leaves a continuation. */
uint32_t model_end_frontier(const struct model *model, int seq);
bool model_end_retains(const struct model *model, int seq);
int model_end(struct model *model, int seq, store_cont handle);
/* Of release and set_retention. Returns the index, -1: it is no continuation that is kept. */
int model_cont_reasons(const struct model *model, store_cont handle, struct reasons *reasons);
/* SHORT-1: besides those of release. */
void model_shorten_reasons(struct model *model, int cont, uint32_t frontier, struct reasons *reasons);
void model_shorten(struct model *model, int cont, uint32_t frontier);
void model_release(struct model *model, int cont);
void model_quarantine_reasons(const struct model *model, int seq, bool on, struct reasons *reasons);
/* Where the configuration is tight in membership room (given out in chunks, which the model does not count). */
void model_maybe_membership(struct reasons *reasons);
bool model_slot_taken(const struct model *model, uint32_t slot);

#endif
