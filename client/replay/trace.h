/* SPDX-License-Identifier: Apache-2.0
 *
 * Request traces, a JSON object a line, in the order of their times:
 *
 *     Mooncake   {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [block, ...]}
 *                a block is 512 tokens; equal ids are equal tokens after equal blocks; the last block may be shorter
 *     agent      {"session": n, "t": s, "in": tokens, "out": tokens, "ids": [[first, count], ...]}
 *                a block is 64 tokens; ids count within a session; each pair is a run of consecutive ids
 *
 * Tokens are made from the blocks: no trace holds any.
 */
#ifndef KVD_REPLAY_TRACE_H
#define KVD_REPLAY_TRACE_H

#include <stdint.h>
#include <stdio.h>

struct trace_request {
    uint64_t at_ns;
    uint32_t prompt_tokens, output_tokens; /* at least 1 each */
    uint32_t n_blocks;
    uint64_t *blocks;
};
struct trace {
    uint32_t n, block_tokens;
    uint64_t distinct_blocks, prompt_tokens; /* of all requests */
    struct trace_request *requests;
};

/* Reads at most `most` requests (0: all). 0, or 1 with a sentence. The caller ends with trace_free. */
int trace_read(const char *path, uint32_t most, struct trace *ret_trace, char *err, size_t err_bytes);
void trace_free(struct trace *trace);
/* A small trace of its own: conversations that come back after a pause or never, long documents that come once, and a
 * system prompt that all share. The same seed makes the same trace. */
int trace_generate(uint64_t seed, uint32_t requests, struct trace *ret_trace);
/* Tokens [0, prompt + output) of request i; the output's tokens occur nowhere else. */
void trace_tokens(const struct trace *trace, uint32_t i, uint32_t *ret_tokens);

#endif
