/* SPDX-License-Identifier: Apache-2.0
 *
 * What a policy remembers of the prompts of the last day, also of those whose KV is gone: a ring of uses, and a
 * table that leads from a page's digest to the last use of the prefix that ends there. Of a long prompt only each
 * eighth page is in the table, so a prompt of 400,000 tokens costs 800 entries; what shares more than that many tokens
 * and less than a page more is taken for equal. The table is set-associative: where a set is full, the oldest use goes.
 * So memory is bounded, and a flood of prompts costs what is old.
 */
#ifndef KVD_POLICY_MEMORY_H
#define KVD_POLICY_MEMORY_H

#include "kvd_types.h"
#include "reuse.h"

typedef uint64_t use_id; /* 1, 2, 3, ...; 0 = none */

struct use {
    uint64_t at_ns, gap_ns; /* gap: the geometric mean of this gap and the earlier ones; 0: the first of its kind */
    uint64_t domain;        /* of the prompt */
    uint32_t uses, pages;   /* pages: full ones of the prompt */
    uint32_t tokens;        /* prompt, and the answer once it is known */
    bool returned;
    struct reuse_class class;
};

struct policy_memory {
    struct reuse_model model;
    struct use *uses; /* [n_uses], a ring */
    uint64_t n_uses, next;
    uint64_t passed[REUSE_BANDS]; /* the first use that has not reached the end of the band */
    struct memory_entry {
        uint64_t digest;
        use_id use;
    } * table; /* [n_sets][MEMORY_WAYS] */
    uint64_t n_sets;
};
#define MEMORY_WAYS 8u

/* 0, or 1: no memory. uses: how many are remembered at most. */
int memory_init(struct policy_memory *memory, uint32_t uses);
void memory_free(struct policy_memory *memory);
/* A prompt comes: its full pages' digests in order. Learns from it and remembers it. now_ns never goes back (an earlier
 * one counts as the last). */
use_id memory_note(struct policy_memory *memory, const kvd_digest *digests, uint32_t pages, uint32_t prompt_tokens,
                   uint64_t now_ns);
/* NULL: forgotten. */
struct use *memory_use(struct policy_memory *memory, use_id use);

#endif
