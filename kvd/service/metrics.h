/* SPDX-License-Identifier: Apache-2.0
 *
 * Figures for monitoring, and their page in the Prometheus text format 0.0.4
 * (prometheus.io/docs/instrumenting/exposition_formats).
 *
 * Counting is a few additions to plain integers under the core mutex, which each request holds anyway; rendering copies
 * them under it and writes text without it. Every series is there from the first page, zeros too. Their number depends
 * on the configuration (pools), and not on clients but for kvd_domain_*: METRICS_DOMAINS domains at most.
 *
 * What adds up, on every page: lookups = hits + misses; the counts of an answer's time over all request types <=
 * requests; capacity = allocated + reserved + available of a pool (POOL-6); refusals with RESOURCE_EXHAUSTED, of
 * requests and of a round's items, = shortages; of each type answers = refusals + replays + what was done, so that
 * activations by source are the Activate requests that were done; tokens by tier = prompt tokens, and those of device
 * and host are the reused ones; activations and tokens by domain are the same activations and tokens; matched tokens <=
 * looked up tokens, reused <= those that an endless cache had <= prompt tokens; continuations made and found = those
 * that live and those that ended.
 */
#ifndef KVD_METRICS_H
#define KVD_METRICS_H

#include <stddef.h>
#include <stdint.h>

#include "frame.h"
#include "geometry.h"
#include "histogram.h"
#include "kvd_types.h"

struct service;

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
    METRICS_SHORTS
};
enum metrics_end { METRICS_KEPT = 0, METRICS_RELEASED, METRICS_ENDS };

/* Where the tokens of an activated prompt come from. */
enum metrics_tier { METRICS_DEVICE = 0, METRICS_HOST, METRICS_COMPUTED, METRICS_TIERS };

/* Domains are told apart by their labels, which clients choose: the first ones that come have figures of their own as
 * long as the daemon runs, and all others those of slot 0. Slot 1 has those without a label. */
#define METRICS_DOMAINS 32u
struct metrics_domain {
    char label[KVD_LABEL_BYTES];
    uint64_t activations[2]; /* without reused tokens, with some */
    uint64_t prompt_tokens, reused_tokens;
};

/* A session's lookups. A client that waits with a request looks it up again: that is the same lookup. */
#define METRICS_LOOKUPS 16u
struct metrics_lookups {
    uint32_t tokens; /* of the best hit so far, of the one under way */
    bool repeated;   /* which was counted before; otherwise it is asked[at] */
    uint32_t at, next;
    struct {
        uint64_t name; /* 0: none */
        uint32_t prompt_tokens;
        uint32_t pages;       /* whose names its messages had */
    } asked[METRICS_LOOKUPS]; /* that no activation has followed */
};
/* One message of a lookup. */
struct metrics_find {
    bool begins;            /* the first one of its lookup */
    bool counts;            /* decides about hit and miss */
    uint32_t usable;        /* tokens of the best hit, 0 without one */
    uint32_t prompt_tokens; /* of the whole prompt */
    uint32_t pages;         /* as far as this message has their names */
    uint64_t name;          /* of the prompt, not 0 */
};

/* Under the core mutex. The slots of request type 0 are of types that do not exist. */
struct metrics {
    uint64_t requests[FRAME_TYPE_END];
    uint64_t refusals[FRAME_TYPE_END][METRICS_STATUSES]; /* [type][status]; OK stays 0 */
    uint64_t replays[FRAME_TYPE_END];
    uint64_t shortages[METRICS_SHORTS];
    uint64_t items[METRICS_STATUSES]; /* of rounds */
    struct histogram time[FRAME_TYPE_END];
    uint64_t lookups, lookup_hits, lookup_misses, lookup_tokens, looked_up_tokens;
    uint64_t endless_tokens; /* the reused ones; named_before.h has the others */
    struct metrics_domain domain[METRICS_DOMAINS];
    uint32_t n_domains;
    uint64_t activations[METRICS_SOURCES], reused_tokens, prompt_tokens, tokens[METRICS_TIERS];
    uint64_t bounded, ended[METRICS_ENDS];
    uint64_t board_boundaries, board_refusals; /* of sequences on boards */
    uint64_t sessions[METRICS_ROLES];          /* now */
    uint64_t audits, audit_violations /* of the last one */;
};

/* Of zeros: before everything else. */
void metrics_begin(struct metrics *metrics);
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
/* A Find was answered. False: it belongs to a lookup that was counted before. */
bool metrics_lookup(struct metrics *metrics, const struct metrics_find *find, struct metrics_lookups *lookups);
/* A prompt of so many tokens was activated: the next lookup of one is another request's. Returns of how many pages the
 * lookup had the names. */
uint32_t metrics_lookup_served(struct metrics_lookups *lookups, uint32_t prompt_tokens);
/* The slot of a domain; told: its label may be shown. */
uint32_t metrics_domain_slot(struct metrics *metrics, const char *label, bool told);

/* Resident memory of this process, in bytes; 0: unknown. Reads a file. */
uint64_t metrics_resident_bytes(void);

#endif
