/* SPDX-License-Identifier: Apache-2.0
 *
 * Store tests: a store in a few lines, the usual steps of a sequence, and a dump of everything observable.
 */
#ifndef STORE_FIXTURE_H
#define STORE_FIXTURE_H

#include "kvt.h"
#include "round_ask.h"
#include "store_internal.h"

#include <stdlib.h>

struct fix {
    struct store *store;
    void *memory;
    struct store_refusal refusal; /* of the last call through the fixture */
};

/* 8 pages a pool, L = 8, C = 3, 8 continuations, no lease growth, no state, nothing mapped ahead. */
struct store_config fix_config(enum geom_backend backend);
void fix_open(struct fix *fix, const struct store_config *config);
void fix_close(struct fix *fix); /* checks the audit first */
bool fix_audit(struct fix *fix); /* no violation; prints them */

/* Root, or from `from` at a frontier. ensure: tokens in every pool. Each has a tag of its own, so that what is equal
 * stays apart (FIT-5). */
struct store_activation fix_root(uint32_t prompt, uint32_t output, uint32_t ensure);
struct store_activation fix_from(store_cont from, bool keep, uint32_t frontier, uint32_t prompt, uint32_t output);
/* Makes n continuations the recipe; bit i of demote: demoted, else released. Valid until the eighth call after. */
void fix_recipe(struct store_activation *want, const store_cont *victims, uint32_t n, uint64_t demote);
/* The end of a stage, and of the one after it where that is rows alone. */
int fix_commit(struct fix *fix, store_seq seq);
/* begin and commit; none if refused */
store_seq fix_activate(struct fix *fix, struct store_activation want, struct store_activated *ret);
#define FIX_LEASE 7
/* What a checkpoint asks for, without victims. */
#define FIX_KEEP(tail_, retention_)                                                                                    \
    &(struct store_checkpoint) { .tail = (tail_), .retention = (retention_) }

struct store_round_item fix_item(store_seq seq); /* nothing asked */
/* Asks for what is not KVD_NONE in the item. */
void fix_apply(struct fix *fix, struct store_round_item *item, struct store_round_result *ret);
/* One item in all pools; KVD_NONE = not asked. Returns the code. */
int fix_round(struct fix *fix, store_seq seq, uint32_t commit, uint32_t truncate, uint32_t keep, uint32_t ensure,
              struct store_round_result *ret);
/* Maps and commits up to `tokens` in all pools and names all full pages by chain `salt`. */
bool fix_fill(struct fix *fix, store_seq seq, uint32_t tokens, uint32_t salt);
void fix_digest(uint32_t salt, uint32_t page, uint8_t ret[32]);
/* Digest chain of n pages; pages from `turn` on belong to another chain `salt2`. */
void fix_chain(uint32_t salt, uint32_t turn, uint32_t salt2, uint32_t n, uint8_t (*ret)[32]);
const struct kvd_tail *fix_tail(uint32_t frontier); /* tokens 1, 2, ... */
store_cont fix_retain(struct fix *fix, store_seq seq, uint32_t frontier);
/* Root filled to `tokens` with chain `salt`, retained. */
store_cont fix_cont(struct fix *fix, uint32_t tokens, uint32_t salt);
store_cont fix_checkpoint(struct fix *fix, store_seq seq, uint32_t frontier);

struct kvd_sequence_info fix_seq(struct fix *fix, store_seq seq);
struct kvd_continuation_info fix_info(struct fix *fix, store_cont cont);
struct kvd_pool_stats fix_pool(struct fix *fix, uint32_t pool);
/* Page ids as text: "0 1 4". */
const char *fix_ids(struct fix *fix, store_seq seq, uint32_t pool);
const char *fix_cont_ids(struct fix *fix, store_cont cont, uint32_t pool);
const struct page *fix_page(struct fix *fix, uint32_t pool, uint32_t device);

/* Everything that a caller can see and what decides about it, as text; counters of time and free pages' generations
 * left out. */
char *fix_dump(struct fix *fix); /* free it */

/* The lookup from the root in one part, of a prompt that goes on for a page of which no token is known: nothing can be
 * refused. */
static inline uint32_t fix_find(const struct store *store, const uint8_t (*digests)[32], uint32_t n,
                                struct kvd_hit *ret_hits, uint32_t max) {
    const struct store_query query = {
        .digests = digests, .n = n, .max = max, .prompt_tokens = (n + 1) * KVD_PAGE_TOKENS, .token_page = n
    };
    struct store_found found = { 0 };
    (void)store_find(store, &query, ret_hits, &found, NULL);
    return found.n;
}

#endif
