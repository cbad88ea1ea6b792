/* SPDX-License-Identifier: Apache-2.0
 *
 * The client of the engine behind the cold tier: Redis or Valkey, one server or a cluster. A few threads of its own
 * (lanes), each with a connection to every node that it needs, and commands pipelined on them.
 *
 * Nothing here is ever waited for under the core mutex. A breaker stands before the engine (COLD-5): when it is slow,
 * full, gone, failing over, or refuses the password, operations are dropped at once, a lane tries again after a while,
 * and the state says why in words. An operation that was dropped or lost only shortens a hit (COLD-2): all are such
 * that once, twice or never does no harm.
 *
 * Threads: any. cold_engine_run blocks its caller until all its operations have an outcome: no longer than the latest
 * deadline of the operations that are in the engine.
 */
#ifndef KVD_COLD_ENGINE_H
#define KVD_COLD_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cold_value.h"
#include "config.h"

struct cold_engine;
struct cold_run;

#define COLD_LANES 16u
#define COLD_PIPELINE 1024u /* operations that a lane has under way */
#define COLD_WORDS 256u

struct cold_engine_config {
    struct config_listen address; /* of the engine, or of any node of its cluster; not LISTEN_NONE */
    char user[64];                /* "": none */
    char password_file[256];      /* "": no password. Read again at each connection; nobody else may read it */
    uint32_t lanes;               /* 1 to COLD_LANES */
    uint64_t connect_ns;          /* for a connection with its handshake */
    uint64_t retry_ns;            /* the breaker's first wait, at most doubled up to retry_most_ns */
    uint64_t retry_most_ns;
};

enum cold_verb {
    COLD_GET = 0, /* the value into `into` */
    COLD_SET,     /* head and value, where the key has none (NX) */
    COLD_TOUCH,   /* whether there is one; with a ttl it lives on for that long */
    COLD_DELETE,
    COLD_VERBS
};
enum cold_outcome {
    COLD_DONE = 0, /* SET: also where there was one */
    COLD_ABSENT,   /* GET, TOUCH, DELETE: no such key */
    COLD_REFUSED,  /* by the engine; or a value that does not fit `into` */
    COLD_FAILED,   /* no answer: connection lost, deadline over */
    COLD_DROPPED,  /* not tried: the breaker is open, or kvd stops */
    COLD_OUTCOMES
};

/* The caller's, with all that it points to, until cold_engine_run returns. */
struct cold_op {
    enum cold_verb verb;
    char key[COLD_KEY_BYTES];
    const uint8_t *head, *value; /* SET */
    uint64_t head_bytes, value_bytes;
    uint8_t *into; /* GET */
    uint64_t into_bytes;
    uint64_t ttl_ms;      /* SET, TOUCH; 0: for good */
    uint64_t deadline_ns; /* of clock_ns */
    /* Answers. */
    enum cold_outcome outcome;
    uint64_t got; /* GET: bytes of the value, also where it does not fit */
    /* The engine's. */
    struct cold_op *next;
    struct cold_run *run;
    uint32_t node;
    bool ask, sent;
};

/* 0, or 1 with a sentence: no memory, no thread. The engine need not be there. */
int cold_engine_new(const struct cold_engine_config *config, struct cold_engine **ret_engine, char *err,
                    size_t err_bytes);
/* From now on every operation is dropped, also those under way. */
void cold_engine_stop(struct cold_engine *engine);
/* No run may be in it. NULL is fine; returns NULL. */
struct cold_engine *cold_engine_free(struct cold_engine *engine);

/* Does all of them, in any order. */
void cold_engine_run(struct cold_engine *engine, struct cold_op *ops, uint32_t n);

enum cold_breaker { COLD_CONNECTING = 0 /* nothing is known yet */, COLD_CLOSED /* as it should be */, COLD_OPEN };
struct cold_engine_state {
    enum cold_breaker breaker;
    bool clustered;
    char why[COLD_WORDS];                    /* it was opened last; "": never */
    uint64_t retry_ns;                       /* where open: until it is tried again */
    uint64_t trips;                          /* how often */
    uint64_t connections;                    /* made, in all */
    uint64_t ops[COLD_VERBS][COLD_OUTCOMES]; /* since the start */
    uint64_t bytes_out, bytes_in;            /* of values */
};
void cold_engine_get_state(struct cold_engine *engine, struct cold_engine_state *ret_state);

#endif
