/* SPDX-License-Identifier: Apache-2.0
 *
 * What caches of other sizes would have found: how many other pages were used between two uses of a page.
 *
 * A cache that gives up the least recently used page has a page again if no more distinct pages were used since than it
 * holds (Mattson 1970). A sample of the pages, by a hash of their names, gives these distances in bounded memory
 * (Waldspurger 2015): the last CURVE_SAMPLES that came, each for 1 / rate pages. The rate is such that they reach back
 * over CURVE_REACH times the pages that the store holds, on both tiers.
 *
 * A page of a prompt is used when the prompt is looked up, or, as far as no message of the lookup had its name, when it
 * is named. Pages of answers, and those that no prompt has, fill caches only.
 *
 * It has a lock of its own, a leaf, so that nobody waits for it under the core mutex. A name that is no sample costs
 * its hash.
 */
#ifndef KVD_REUSE_CURVE_H
#define KVD_REUSE_CURVE_H

#include "kvd_types.h"

#define CURVE_SAMPLES 32768u
#define CURVE_REACH 16u

struct reuse_curve;

/* store_pages: those of all tiers. NULL: no memory. */
struct reuse_curve *reuse_curve_new(uint64_t store_pages);
void reuse_curve_free(struct reuse_curve *curve); /* NULL is fine */
struct curve_pages {
    const kvd_digest *names;
    uint32_t n, counted;    /* the first ones of them are uses by a prompt */
    uint32_t prompt_tokens; /* of the prompt that is looked up; 0: it was counted before */
};
/* Any thread. */
void reuse_curve_note(struct reuse_curve *curve, const struct curve_pages *pages);
/* Sizes and figures of *ret_reuse. Any thread. */
void reuse_curve_read(struct reuse_curve *curve, struct kvd_reuse *ret_reuse);

#endif
