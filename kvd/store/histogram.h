/* SPDX-License-Identifier: Apache-2.0
 *
 * A histogram of times: one count for each power of two, so that adding is a shift and an addition. Whoever shows it
 * chooses the edges. The caller serialises.
 */
#ifndef KVD_STORE_HISTOGRAM_H
#define KVD_STORE_HISTOGRAM_H

#include <stdint.h>

/* Bucket i takes times of at most 2^(HISTOGRAM_FIRST_BIT + i) ns: 1.024 us to 19.5 hours. The last one takes all that
 * are longer. */
#define HISTOGRAM_FIRST_BIT 10u
#define HISTOGRAM_LAST_BIT 46u
#define HISTOGRAM_BUCKETS (HISTOGRAM_LAST_BIT - HISTOGRAM_FIRST_BIT + 2)

struct histogram {
    uint64_t sum_ns, bucket[HISTOGRAM_BUCKETS]; /* not cumulative */
};

static inline void histogram_add(struct histogram *histogram, uint64_t ns) {
    uint32_t bits = ns > 1 ? 64 - (uint32_t)__builtin_clzll(ns - 1) : 0; /* 2^bits is the least that is not less */
    uint32_t bucket = bits <= HISTOGRAM_FIRST_BIT ? 0 : bits - HISTOGRAM_FIRST_BIT;
    histogram->sum_ns += ns;
    histogram->bucket[bucket < HISTOGRAM_BUCKETS ? bucket : HISTOGRAM_BUCKETS - 1]++;
}

#endif
