/* SPDX-License-Identifier: Apache-2.0
 *
 * The demo's scheduler: knows prompts and tokens, no KV. It asks kvd which prefix of a prompt is there, activates a
 * sequence on a worker from it, names pages as they fill, checkpoints the shared system prefix, and retains a
 * conversation at the end of a turn; where there is a host arena, with a copy there. When a worker dies it goes on from
 * the continuation that survives; when kvd is restarted, from what the new instance knows by name. It keeps no
 * transcript: a new scheduler process has the prompt list only.
 */
#ifndef KVD_DEMO_SCHEDULER_H
#define KVD_DEMO_SCHEDULER_H

#include "kvd.h"
#include "prompts.h"
#include "wire.h"

#define SCHEDULER_WORKERS 8
#define SCHEDULER_CONTEXT WIRE_MAX_TOKENS

struct worker_peer { /* a worker */
    int fd;          /* -1 = free */
    uint32_t pid, load;
    kvd_session_id session; /* 0 before its HELLO */
    uint64_t epoch;         /* the kvd instance of that */
};

enum request_state {
    REQUEST_WAITING = 0, /* for a worker, the shared prefix, or pages */
    REQUEST_RUNNING = 1,
    REQUEST_ORPHANED = 2, /* its worker is gone; kvd will say what is left */
    REQUEST_OVER = 3
};

struct demo_request { /* a conversation */
    uint32_t id, turn;
    enum request_state state;
    uint32_t known, prompt, target; /* tokens: in history, before the answer of this turn, after it */
    uint32_t named;                 /* leading pages that are named */
    uint32_t hold_at;
    uint32_t failures;
    uint32_t short_at; /* kvd was short after so many ends, plus 1: worth a try after the next one; 0 = not short */
    kvd_sequence sequence;
    struct worker_peer *worker;
    kvd_continuation own;  /* nobody else's: may be moved */
    uint32_t own_frontier; /* 0 = as kvd_find says */
    uint8_t history[SCHEDULER_CONTEXT];
};

struct scheduler {
    kvd_client *client;
    struct kvd_store_info info;
    struct prompts prompts;
    bool reuse, speculate;
    bool arena;                  /* kvd has one */
    bool cold;                   /* ask for what other instances wrote into the cold tier */
    uint32_t turns;              /* that may begin */
    bool paused;                 /* said so: all wait for more turns */
    struct demo_request *holder; /* the request that computes the system prefix, which the others then fork */
    uint32_t ends;               /* sequences that have ended */
    struct worker_peer peer[SCHEDULER_WORKERS];
    struct demo_request request[PROMPTS_CONVERSATIONS];
    struct wire_message message; /* scratch */
};

/* Puts the first turn of a conversation in line. */
void request_init(struct scheduler *s, struct demo_request *request, uint32_t id);
/* Loads the shared prefix from the cold tier, whose engine kvd may not have met yet. It need not be there. */
void request_await_cold(struct scheduler *s, const struct demo_request *request, int patience_ms);
/* Activates a waiting request on a worker if that can be done now. 0, or -1 when it can never be done (printed). */
int request_start(struct scheduler *s, struct demo_request *request, struct worker_peer *worker);
/* What the worker said about a running request. 0, or -1 (printed). */
int request_hear(struct scheduler *s, struct demo_request *request, const struct wire_message *m);
/* The worker is gone. */
void request_orphan(struct scheduler *s, struct demo_request *request);
/* kvd is another instance: what it had of this request is void, but for what it finds by name. */
void request_forget(struct demo_request *request);
/* kvd: the sequence ended; what is left of it (may be none). */
void request_adopt(struct scheduler *s, struct demo_request *request, kvd_continuation left);

#endif
