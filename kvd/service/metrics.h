/* SPDX-License-Identifier: Apache-2.0
 *
 * Figures for monitoring, and their page in the Prometheus text format 0.0.4
 * (prometheus.io/docs/instrumenting/exposition_formats).
 *
 * Counting is a few additions to plain integers under the core mutex, which each request holds anyway; rendering copies
 * them under it and writes text without it. Every series is there from the first page, zeros too; their number depends
 * on the configuration (pools), never on clients.
 *
 * What adds up, on every page: lookups = hits + misses; the counts of an answer's time over all request types <=
 * requests; capacity = allocated + reserved + available of a pool (POOL-6); refusals with RESOURCE_EXHAUSTED, of
 * requests and of a round's items, = shortages; of each type answers = refusals + replays + what was done, so that
 * activations by source are the Activate requests that were done; tokens by tier = prompt tokens, and those of device
 * and host are the reused ones.
 */
#ifndef KVD_METRICS_H
#define KVD_METRICS_H

#include <stddef.h>
#include <stdint.h>

#include "frame.h"
#include "geometry.h"
#include "kvd_types.h"

struct service;

/* Times are counted in buckets of powers of two, in nanoseconds: bucket i takes those of at most 2^(METRICS_FIRST_BIT +
 * i), the last one all that are longer. 1.024 us to 2.147483648 s. */
#define METRICS_FIRST_BIT 10u
#define METRICS_BUCKETS 23u
#define METRICS_ROLES 4u
#define METRICS_STATUSES 17u

enum metrics_source { METRICS_ROOT = 0, METRICS_MOVE, METRICS_FORK, METRICS_SOURCES };
/* What a request was refused with RESOURCE_EXHAUSTED for. The pages of pool p are METRICS_SHORT_PAGES + p. */
enum metrics_short {
    METRICS_SHORT_LIMIT = 0, /* of section [limits], or memory of the daemon */
    METRICS_SHORT_PAGES,
    METRICS_SHORT_ROWS = METRICS_SHORT_PAGES + KVD_MAX_POOLS,
    METRICS_SHORT_SEQUENCES,
    METRICS_SHORT_CONTINUATIONS,
    METRICS_SHORT_MEMBERSHIP, /* and page descriptors */
    METRICS_SHORT_STATE_SLOTS,
    METRICS_SHORT_ARENA,
    METRICS_SHORT_ENTITLEMENT,
    METRICS_SHORTS
};
enum metrics_end { METRICS_KEPT = 0, METRICS_RELEASED, METRICS_ENDS };

/* Where the tokens of an activated prompt come from. */
enum metrics_tier { METRICS_DEVICE = 0, METRICS_HOST, METRICS_COMPUTED, METRICS_TIERS };

struct metrics_time {
    uint64_t sum_ns, bucket[METRICS_BUCKETS]; /* not cumulative */
};

/* Under the core mutex. The slots of request type 0 are of types that do not exist. */
struct metrics {
    uint64_t requests[FRAME_TYPE_END];
    uint64_t refusals[FRAME_TYPE_END][METRICS_STATUSES]; /* [type][status]; OK stays 0 */
    uint64_t replays[FRAME_TYPE_END];
    uint64_t shortages[METRICS_SHORTS];
    uint64_t items[METRICS_STATUSES]; /* of rounds */
    struct metrics_time time[FRAME_TYPE_END];
    uint64_t lookups, lookup_hits, lookup_misses, lookup_tokens;
    uint64_t activations[METRICS_SOURCES], reused_tokens, prompt_tokens, tokens[METRICS_TIERS];
    uint64_t bounded, ended[METRICS_ENDS];
    uint64_t sessions[METRICS_ROLES]; /* now */
    uint64_t audits, audit_violations /* of the last one */;
};

/* A request came. type: of the frame, whatever it is. */
void metrics_request(struct metrics *metrics, uint16_t type);
/* Its outcome stands, took_ns after its frame had come. status: of the answer. */
void metrics_answer(struct metrics *metrics, uint16_t type, uint32_t status, uint64_t took_ns);
/* It was a repeated one, and has got its first answer from memory; beside metrics_answer with OK. */
void metrics_replay(struct metrics *metrics, uint16_t type);
/* A request or an item of a round was refused with RESOURCE_EXHAUSTED; once beside each such answer. */
void metrics_shortage(struct metrics *metrics, enum metrics_short what);
/* One sequence of a round. */
void metrics_item(struct metrics *metrics, uint32_t status);
/* A Find was answered. begins: it is the first message of its lookup, which may take several; counts: it decides about
 * hit and miss; usable: tokens of the best hit, 0 without one. *before is the caller's memory of how far the session's
 * lookup had come. */
void metrics_lookup(struct metrics *metrics, bool begins, bool counts, uint32_t usable, uint32_t *before);

/* Resident memory of this process, in bytes; 0: unknown. Reads a file. */
uint64_t metrics_resident_bytes(void);

#endif
