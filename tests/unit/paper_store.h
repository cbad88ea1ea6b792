/* SPDX-License-Identifier: Apache-2.0
 *
 * A store on paper, for a policy alone: pages by name, continuations that share them, sequences that run, two tiers. It
 * answers kvd_plan_activation and kvd_choose_victims exactly, without a daemon: the policy is linked against it instead
 * of libkvd. The client that the policy is given is the store. Out of memory ends the test.
 */
#ifndef PAPER_STORE_H
#define PAPER_STORE_H

#include "kvd.h"

#define PAPER_MOST 4096u /* continuations and sequences, over all time one slot each at a time */

struct paper_store;
struct paper_figures {
    uint64_t plans, fallbacks;     /* messages */
    uint64_t demoted, released;    /* victims; shortened ones count in neither */
    uint64_t used, host_used;      /* pages */
    uint32_t continuations, pages; /* alive; pages that running sequences hold, each once */
};

struct paper_store *paper_new(uint64_t pool_pages, uint64_t arena_pages, uint32_t most_continuations);
void paper_free(struct paper_store *store);
struct paper_figures paper_figures(const struct paper_store *store);
/* A prompt of n full pages; equal numbers after equal ones of a domain are equal pages. Free it with kvd_chain_free. */
kvd_chain *paper_chain(uint64_t domain, const uint64_t *pages, uint32_t n);
/* Sets source, frontier and keep for the longest prefix that is there: moved where most of it is used. */
void paper_find(const struct paper_store *store, const kvd_chain *chain, struct kvd_activation *want);
/* The activation happens: returns the sequence. Pages beyond the chain are its own. */
uint32_t paper_start(struct paper_store *store, const kvd_chain *chain, const struct kvd_activation *want);
/* It ends and becomes a continuation: the one that is there already, where that has the same pages. */
kvd_continuation paper_end(struct paper_store *store, uint32_t sequence);
/* Pages of it that are left; 0: it is gone. */
uint32_t paper_pages(const struct paper_store *store, kvd_continuation continuation);

#endif
