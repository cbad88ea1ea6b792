/* SPDX-License-Identifier: Apache-2.0
 *
 * kvd-replay: drives a real kvd with the prompts of a trace, without computing attention. Its processes:
 *
 *     this one     starts the others, kills them where that is asked for, and reports. It never speaks to kvd, so that
 *                  it may fork at any time
 *     kvd          a program of its own, on a socket of its own
 *     scheduler    serves one request after the other (scheduler.c)
 *     worker       commits what the scheduler says (worker.c). One of the two does not outlive the other
 *     looks        short-lived: they audit, and compare what kvd has with the ledger (look.c)
 *
 * What they find stands in memory that all share. The scheduler writes it; others read and write it while the scheduler
 * is dead or stopped.
 */
#ifndef KVD_REPLAY_H
#define KVD_REPLAY_H

#include "kvd_types.h"
#include "ledger.h"
#include "replay_options.h"
#include "trace.h"

#define REPLAY_TIMEOUT_MS 60000u /* of every call */
#define REPLAY_TOKEN_BYTES 32u   /* of the small model whose KV is moved between the tiers */

struct replay_served {         /* a request; all zero: it was left out, or its turn has not come */
    uint32_t found, from_host; /* tokens */
    uint64_t waited_ns;        /* of the trace's time */
    double choose_us;          /* of its last choice; 0: none was needed */
    bool is_served;
};

struct replay_figures { /* of kvd, since its last start */
    uint64_t requests, demoted_bytes, restored_bytes;
    uint64_t advise_smaller, advise_infinite; /* tokens that caches of kvd's own record find */
};

struct replay_shared {
    uint64_t now_ns;                   /* of the trace; what waits lets it go on */
    uint32_t next;                     /* the request whose turn it is */
    uint32_t kvd_asked, engine_asked;  /* kills */
    uint64_t checked, checked_in_host; /* prefixes that were looked for; those of them that a dead kvd's arena had */
    uint64_t lost, damaged;            /* prefixes that were not there, violations */
    uint64_t audits;
    char message[KVD_MESSAGE_BYTES + 200]; /* what went wrong with the engine that runs, or with a look */
    char finding[KVD_MESSAGE_BYTES + 200]; /* the first prefix that was lost, or violations */
    struct replay_figures figures;
    struct replay_served *served; /* [trace.n] */
    struct ledger ledger;
};

struct replay {
    struct replay_options options;
    struct trace trace;
    uint64_t pool_tokens;
    uint32_t longest; /* tokens of a request */
    char socket[108];
    struct replay_shared *shared;
};

/* Says what went wrong where this process's parent reads it. Returns false. */
bool replay_failed(struct replay *replay, uint32_t request, const char *what, enum kvd_status status,
                   const char *message);
/* The caller frees it with free. NULL: no memory. Room for the tokens of each request. */
uint32_t *replay_tokens(const struct replay *replay);

#endif
