/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver: random operations on a store and on the model side by side. It plays everybody around the store:
 * schedulers that activate and release, workers that write the columns they are entitled to, the transfer engine that
 * makes the copies, and the publisher that writes returned slices into the device's table matrix. After every step it
 * compares all that can be seen.
 */
#ifndef KVD_TESTS_MODEL_DRIVER_H
#define KVD_TESTS_MODEL_DRIVER_H

#include "memory.h"
#include "model.h"

#define HISTORY 20
#define DEAD 32

struct scenario {
    const char *name;
    struct store_config config;
    uint32_t operations;      /* of one run when -n does not say */
    bool geometry;            /* the simulated device has the real layout */
    enum kvd_storage storage; /* of Main and MTP, where geometry */
    enum geom_arrangement arrangement;
    bool drawn; /* another random configuration for every 10000 operations */
};
/* A small configuration that follows from the seed. */
void scenario_draw(uint64_t seed, struct store_config *ret_config);
extern const struct scenario scenarios[];
extern const uint32_t n_scenarios;

/* What the driver knows about a sequence beyond the model: the worker's side. */
struct worker {
    uint32_t written[POOLS]; /* columns below are written, committed or not */
    uint32_t before_cut;     /* frontier before the last truncation: often gone to again, with other tokens */
    uint32_t n_copies;
    struct store_copy copies[STORE_MAX_COPIES];
    struct kvd_pool_view slice[POOLS]; /* of begin, published at commit */
    uint32_t victims_lost;             /* released at begin already */
};

struct run {
    const struct scenario *scenario;
    uint64_t seed, random;
    uint32_t stride; /* tokens that operations move by, in units: long contexts take long steps */
    struct store *store;
    void *block;
    struct model model;
    struct memory *memory;
    struct worker worker[MODEL_SEQS];   /* by model index */
    struct worker snapper[MODEL_CONTS]; /* copies of checkpoints in flight */
    int32_t *matrix[POOLS];             /* the device's table */
    uint64_t dead_seq[DEAD], dead_cont[DEAD];
    uint32_t n_dead_seq, n_dead_cont;

    uint64_t *words, *before; /* the observable state, now and after the last step */
    uint32_t n_words, n_before;
    uint64_t revision;
    bool occupied[POOLS][MODEL_PAGES]; /* after the last step: pages that fell free are poisoned */

    bool moved;    /* the step changed something in the model */
    bool own_only; /* it only mapped or committed inside a reservation: the revision stays */
    bool unsure;   /* a shortage was injected: what lacked is the store's to say */
    bool reowned;  /* it changed who owns what, or free or reserved numbers: the revision increases */
    uint64_t step;
    char audit_text[1024];
    char history[HISTORY][256];
    bool failed;
    uint64_t done[32], refused[32]; /* by operation */
    uint64_t faults;                /* injected shortages that were refused */
    uint64_t copies, moved_tails, bounded, lost_victims, owed, borrowed, grown /* victims of growth */;
};

bool run_scenario(const struct scenario *scenario, uint64_t seed, uint64_t operations);

/* driver_look.c */
void look(struct run *run);      /* observe, compare with the model, audit, contents */
void observe(struct run *run);   /* fills words only */
bool unchanged(struct run *run); /* observes; whether all words are as after the last step */

/* driver_ops.c and driver_boundary.c: one operation each */
void op_begin(struct run *run);
void op_plan(struct run *run);
void op_resolve(struct run *run);
void op_round(struct run *run);
void op_name(struct run *run);
void op_checkpoint(struct run *run);
void op_finish(struct run *run);
void op_end(struct run *run);
void op_quarantine(struct run *run);
void op_release(struct run *run);
void op_retention(struct run *run);
void op_shorten(struct run *run);
void op_find(struct run *run);

/* Calls `attempt` with the n-th acquisition refused, for n = 1, 2, ... until it succeeds untouched (or, where
 * `lenient`, in spite of the shortage). Each refusal must leave everything as it was. Returns what the last attempt
 * returned. */
typedef int (*attempt_fn)(struct run *run, void *context, struct store_refusal *refusal);
int sweep(struct run *run, attempt_fn attempt, void *context, bool lenient, bool *ret_fired);

/* driver_ops.c: mostly nothing, else it is to be shortened. */
void draw_cut(struct run *run, struct kvd_victim *victim);

/* driver.c: helpers */
void fail(struct run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
void note(struct run *run, const char *format, ...) __attribute__((format(printf, 2, 3))); /* what this step does */
uint32_t below(struct run *run, uint32_t n);                                               /* 0 where n == 0 */
bool chance(struct run *run, uint32_t percent);
uint32_t between(struct run *run, uint32_t low, uint32_t high);
/* Checks a refusal or success against the model's reasons; true when the operation was applied. */
bool agreed(struct run *run, const char *what, int code, const struct store_refusal *refusal,
            const struct reasons *reasons);
/* A live index or -1; and a handle that is mostly a live one, else dead, foreign or none. */
int any_seq(struct run *run, int state); /* state -1: any */
int any_cont(struct run *run, bool published);
int any_live(struct run *run); /* a sequence of which something is found (LIVE-1) */
/* A continuation that something is to be done to, or what a running sequence shows: nothing can be done to that. */
store_cont some_target(struct run *run);
store_seq some_seq(struct run *run, int live);
store_cont some_cont(struct run *run, int live);
void bury_seq(struct run *run, store_seq handle);
void bury_cont(struct run *run, store_cont handle);
void chain_fill(struct run *run, struct space *space, uint32_t from);
void publish(struct run *run, uint32_t pool, const struct kvd_pool_view *view);
void read_pages(struct run *run, store_seq seq, store_cont cont, uint32_t n[POOLS]); /* into run_ids */
extern uint32_t *const run_ids[POOLS];

#endif
