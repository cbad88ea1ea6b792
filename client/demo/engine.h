/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine of a worker: lanes (sequences that it runs) and steps (one forward pass over all lanes that can go on). It
 * knows rows, mapped tokens and tokens; it does not know kvd: who maps and commits sets `mapped` and reads `computed`.
 *
 * Continuous batching: every step takes prefill chunks and decodes together. With speculation a lane drafts up to
 * window - 1 tokens with the draft head, verifies them in one pass of the main model, and keeps the prefix that the
 * main model would have said itself: the text is that of plain decoding.
 */
#ifndef KVD_DEMO_ENGINE_H
#define KVD_DEMO_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model.h"

#define ENGINE_LANES 8
#define ENGINE_CHUNK 128 /* prefill columns of a step, over all lanes */
#define ENGINE_WINDOW 16 /* widest draft window */
#define ENGINE_CONTEXT 16384

enum { ENGINE_MAIN = 0, ENGINE_MTP = 1, ENGINE_NEAR = 1, ENGINE_POOLS = 2 };

struct engine_lane {
    bool used;
    bool over;         /* nothing more to compute, ever */
    uint32_t id;       /* the user's name for it */
    uint64_t sequence; /* the same */
    uint32_t row[ENGINE_POOLS];
    uint32_t mapped[ENGINE_POOLS];    /* tokens that may be written */
    uint32_t entitled[ENGINE_POOLS];  /* for the user: tokens up to which may be mapped now */
    uint32_t computed[ENGINE_POOLS];  /* columns whose KV is in pages and canonical */
    uint32_t committed[ENGINE_POOLS]; /* for the user: the engine does not read it */
    uint32_t known;                   /* tokens in history */
    uint32_t end;                     /* known at which the lane is over; the last token is never computed */
    uint32_t hold_at;                 /* no column from here on; 0 = none */
    bool speculate;
    bool bounded;      /* for the user */
    bool announced;    /* for the user: its last boundary said that it goes on */
    uint32_t reported; /* for the user: tokens of history that were passed on */
    uint32_t drafted, accepted;
    uint8_t history[ENGINE_CONTEXT + ENGINE_WINDOW];
};

struct engine {
    struct model *model;
    uint32_t n_pools;
    /* K of the MTP pool, 1..ENGINE_WINDOW: up to K - 1 drafts. 0: a second pool is of layers with a window, which are
     * all but the last. */
    uint32_t window;
    uint32_t max_context;
    PagedKVBatchLayerView main[MODEL_LAYERS], mtp[MODEL_DRAFT_LAYERS];
    struct engine_lane lane[ENGINE_LANES];
};

static inline uint32_t engine_least(uint32_t a, uint32_t b) { return a < b ? a : b; }
static inline bool engine_has_drafts(const struct engine *engine) { return engine->n_pools > 1 && engine->window > 0; }

/* Columns that the lane may compute now: 0 when it is over, held, or at the end of its mapping. */
uint32_t engine_room(const struct engine *engine, const struct engine_lane *lane);
/* Drafts that the next step of a speculating lane would make if all of them were mapped; 0 while it is not decoding. */
uint32_t engine_drafts(const struct engine *engine, const struct engine_lane *lane);

/* One step. *ret_columns: columns of the main model, 0 = no lane can go on. 0 or -EINVAL with a sentence. */
int engine_step(struct engine *engine, uint32_t *ret_columns, char *err, size_t err_bytes);

#endif
