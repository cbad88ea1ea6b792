/* SPDX-License-Identifier: Apache-2.0
 *
 * What tests ask of a round, by values alone: a value that is KVD_NONE is not asked for.
 */
#ifndef KVD_ROUND_ASK_H
#define KVD_ROUND_ASK_H

#include "kvd_types.h"

static inline struct kvd_round_pool round_pool(uint32_t commit, uint32_t truncate, uint32_t keep, uint32_t ensure) {
    uint32_t ask = (commit != KVD_NONE ? KVD_ROUND_COMMIT : 0u) | (truncate != KVD_NONE ? KVD_ROUND_TRUNCATE : 0u) |
                   (keep != KVD_NONE ? KVD_ROUND_KEEP : 0u) | (ensure != KVD_NONE ? KVD_ROUND_ENSURE : 0u);
    return (struct kvd_round_pool){ ask, commit, truncate, keep, ensure };
}

/* For a struct kvd_round_item or store_round_item, whose fields KVD_NONE are not asked for. */
#define ROUND_ASK(item)                                                                                                \
    do {                                                                                                               \
        (item)->ask = (item)->state_frontier != KVD_NONE ? KVD_ROUND_STATE : 0;                                        \
        for (int p_ = 0; p_ < KVD_MAX_POOLS; p_++)                                                                     \
            (item)->pool[p_] = round_pool((item)->pool[p_].commit, (item)->pool[p_].truncate, (item)->pool[p_].keep,   \
                                          (item)->pool[p_].ensure);                                                    \
    } while (0)

#endif
