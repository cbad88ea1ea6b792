/* SPDX-License-Identifier: Apache-2.0
 *
 * Caches of blocks, simulated: what a pool of the same size finds where each block goes by itself. A hit is a prefix of
 * whole blocks, all there, without the prompt's last token. Requests run one after the other, as in the replay.
 */
#ifndef KVD_REPLAY_SIMULATE_H
#define KVD_REPLAY_SIMULATE_H

#include "trace.h"

enum simulate_order {
    SIMULATE_LRU,         /* the least recently used goes */
    SIMULATE_LRU_ANSWERS, /* the same, and it holds answers, too, which are used once, as kvd does */
    SIMULATE_NEXT_USE     /* what is used last from now on goes (Belady 1966) */
};
struct simulated {
    uint64_t hit_tokens;
};

/* A cache of cache_tokens. Requests that do not fit a pool of pool_tokens are left out, as the replay leaves them out.
 * 0, or 1: no memory (hit_tokens 0). */
int simulate_blocks(const struct trace *trace, uint64_t pool_tokens, uint64_t cache_tokens, enum simulate_order order,
                    struct simulated *ret_simulated);

#endif
