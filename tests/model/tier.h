/* SPDX-License-Identifier: Apache-2.0
 *
 * The two tiers under random operations: a store with a host arena and a directory, the bytes of both tiers, and what
 * every bundle must read back. The driver plays the workers, the transfer engine (which makes the copies of a stage
 * late, in any order, among those of other transitions), bit rot, and the next kvd that finds the directory.
 *
 * What must hold is computed from three things only: the tokens that were written, the memberships, and which replicas
 * are there (read in the store's inside, never its counters). Free device pages and free arena bytes are scribbled over
 * after every step.
 */
#ifndef KVD_TESTS_MODEL_TIER_H
#define KVD_TESTS_MODEL_TIER_H

#include "directory.h"
#include "round_ask.h"
#include "store_internal.h"

#define POOLS KVD_MAX_POOLS
#define VICTIMS 8 /* of one activation */
#define BLOCKS 70 /* a membership of two chunks, in the long scenarios; SHORT in all others */
#define SHORT 9
#define TOKENS (BLOCKS * KVD_PAGE_TOKENS)
#define SEQS 6
#define CONTS 20
#define FLIGHTS 12
#define COPIES 512 /* of one stage */
#define UNIT 256   /* bytes of the arena that are handed out together */
#define UNITS 512
#define HISTORY 32

/* What is read back. */
struct content {
    uint32_t token[POOLS][TOKENS];
    uint8_t chain[BLOCKS][32]; /* names that its full Main pages have or will get */
    uint64_t image;
    uint8_t domain; /* first byte of its root */
};

struct tier_seq {
    bool used, active;
    store_seq handle;
    uint64_t tag;
    uint32_t committed[POOLS], written[POOLS];
    uint32_t state_frontier; /* KVD_NONE: no image */
    uint32_t source_slot;    /* to fetch the image from before the first commit */
    struct content c;
};

struct tier_cont {
    bool used, published;
    store_cont handle;
    uint64_t tag;
    uint32_t frontier, retention;
    bool tail_named;
    struct kvd_tail tail;
    bool doomed;     /* a page or the image of it is lost: cut to `good` when no transition holds it */
    uint32_t good;   /* tokens before what is lost; 0: it goes */
    bool publishing; /* the step under way publishes it */
    bool leaves;     /* the step under way releases or consumes it */
    bool rolls;      /* a rolling checkpoint, of the sequence with its tag (GRP-5) */
    struct content c;
};

/* A transition in flight, and the copies of its stage. */
enum flight_kind { FLIGHT_ACTIVATION, FLIGHT_MOVE, FLIGHT_CHECKPOINT };
struct flight {
    bool used;
    enum flight_kind kind;
    store_seq seq;
    store_cont cont; /* of a move or checkpoint; source of an activation */
    store_move move;
    enum store_place place;
    bool keep, staged, lost_at_begin;
    uint32_t frontier, ensure[POOLS];
    struct kvd_victim victims[VICTIMS];
    uint32_t n_victims;
    uint32_t stages, waits;
    uint32_t n, left;
    struct store_copy copies[COPIES];
    bool done[COPIES];
};

/* One kvd: the store, its memory, its directory. */
struct kvd {
    void *block;
    struct store *store;
    void *tables, *handle;
    struct directory *directory;
    uint64_t id;
};

struct world {
    const char *name;
    struct store_config config;
    uint64_t seed, random, step;
    char audit_text[1024];
    uint32_t n_pools, blocks;
    size_t store_size, tables_size;
    struct directory_limits limits;
    struct kvd kvd, next;                   /* the one that runs, and room for the one that recovers */
    struct kvd_continuation_info known[64]; /* what the changes told, by the index of the handle */
    uint64_t known_until, known_restarts;   /* up to which change, and of which instance: restarts + 1 */
    uint32_t *device[POOLS];
    uint64_t *slots;
    uint8_t *arena;
    bool held[POOLS][256]; /* device pages that were taken after the last step */
    uint8_t held_units[UNITS];
    bool rotten[UNITS]; /* bytes there were changed behind the store's back */
    struct tier_seq seq[SEQS];
    struct tier_cont cont[CONTS];
    struct flight flight[FLIGHTS];
    uint64_t tags;
    uint64_t newer_image; /* that the step under way may put into a continuation (FIT-5); 0: none */
    bool rots;            /* bytes in the arena rot in this run */
    bool tight;           /* most activations have victims that are to be demoted */
    bool scrubbing;
    struct store_copy scrub;
    bool reading;
    struct store_piece read;
    bool fetching; /* continuation `fetched` comes from a third tier; the cursor of its pieces, and of those written */
    int fetched;
    uint64_t fetch_cursor, fetch_written, fetches;
    /* inside a step: what the directory would give back at each of its writes */
    bool killing, killing_device, dying;
    uint32_t least[CONTS];    /* frontier that came back at the worst moment */
    uint32_t expected[CONTS]; /* before the step */
    uint64_t watched[CONTS];  /* whose */
    uint32_t least_seq[SEQS], expected_seq[SEQS];
    uint64_t watched_seq[SEQS];
    uint64_t kills, recoveries, restarts, refused, applied, injected, waits, staged, lost, damages, shortened,
        atomic_checks, merged, rolled;
    char history[HISTORY][200];
    bool failed;
};

struct tier_scenario {
    const char *name;
    uint32_t runs, operations; /* of a run; each run draws its configuration */
    bool state, host, starved, tight, long_context, windows;
};
void tier_draw(const struct tier_scenario *scenario, uint64_t seed, struct store_config *ret_config);
bool tier_run(const struct tier_scenario *scenario, uint64_t seed, uint64_t operations);
void tier_report(void);

/* tier_world.c */
void fail(struct world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
void note(struct world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint32_t below(struct world *w, uint32_t n);
bool chance(struct world *w, uint32_t percent);
uint32_t between(struct world *w, uint32_t low, uint32_t high);
bool world_open(struct world *w);
void world_close(struct world *w);
bool kvd_start(struct world *w, struct kvd *kvd);
void kvd_free(struct kvd *kvd);
int find_cont(const struct world *w, store_cont handle);
int find_seq(const struct world *w, store_seq handle);
int any_cont(struct world *w, bool published);
int any_seq(struct world *w, bool active);
int find_live(const struct world *w, store_cont handle); /* the sequence that shows it (LIVE-1), -1 */
int free_cont(const struct world *w);
void chain_fill(struct world *w, struct content *c, uint32_t from);
uint32_t *device_page(struct world *w, uint32_t pool, uint32_t page);
uint64_t checksum_of(const struct world *w, uint64_t offset, uint64_t bytes);
uint64_t fingerprint(const struct world *w); /* of everything that a refusal must leave alone */

/* tier_look.c */
void look(struct world *w); /* audit, contents, names; and the scribbling */
/* Whether the bytes behind a bundle's pages are these tokens, wherever a replica is valid. why: who asks, for the
 * failure; NULL: it is none. */
bool reads(struct world *w, const struct store *store, const struct space *spaces, uint32_t frontier,
           const struct content *c, const char *why);
/* What the model knows of a continuation that was cut. */
void shortened_to(struct tier_cont *m, uint32_t frontier);
uint32_t lost_pages(const struct world *w, const struct store *store, const struct cont *cont);

/* tier_plan.c */
struct want {
    struct store_activation a;
    struct kvd_victim victims[VICTIMS];
};
/* The plan, recounted from memberships and replicas. */
void plan_check(struct world *w, const struct want *want, const struct kvd_plan *plan);
/* Bytes of host replicas that cover less than is committed and that the demotions replace. */
uint64_t plan_replaced(const struct world *w, const struct want *want);

/* tier_ops.c */
void tier_step(struct world *w);
void flight_end(struct world *w, struct flight *f); /* forget it */
struct flight *flight_new(struct world *w);
void flight_fetch(struct world *w, struct flight *f);
bool flight_copy(struct world *w, struct flight *f, uint32_t i); /* makes one copy */
int flight_commit(struct world *w, struct flight *f);
void flight_abort(struct world *w, struct flight *f);
/* Of a content, behind its last full page. */
struct kvd_tail tail_of(const struct world *w, const struct content *c, uint32_t frontier);
void drain(struct world *w); /* all transitions come to an end */
typedef int (*attempt_fn)(struct world *w, void *context, struct store_refusal *refusal);
int sweep(struct world *w, attempt_fn attempt, void *context, struct store_refusal *refusal);

/* tier_places.c: moves, drops, damage, scrub, reads */
void op_move(struct world *w);
void op_drop(struct world *w);
void op_shorten(struct world *w);
void op_damage(struct world *w);
void op_scrub(struct world *w);
void op_read(struct world *w);
void damaged(struct world *w, uint64_t replica); /* tells the store, and what must follow */

/* tier_fetch.c */
void op_fetch(struct world *w);

/* tier_recover.c */
void op_recover(struct world *w);
void kill_begin(struct world *w); /* from now on every write of the directory is a place to die */
void kill_end(struct world *w);
/* A call of a step that makes several has ended: each is judged by itself. What a Round commits without a name may be
 * nobody's until the next call names it, and a window has left what the names before read (GRP-2, SRV-5). */
void kill_between(struct world *w);
uint32_t expected_frontier(const struct world *w, const struct store *store, const struct cont *cont,
                           bool device_lives);

#endif
