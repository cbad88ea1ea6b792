/* SPDX-License-Identifier: Apache-2.0
 *
 * What the demo's scheduler and workers say to each other, beside kvd: messages on a SOCK_SEQPACKET Unix socket of the
 * scheduler's.
 *
 *     worker -> scheduler: HELLO;  TOKENS, COMMITTED, DONE or FAILED of a request
 *     scheduler -> worker: WELCOME;  START, CONTINUE, FINISHED of a request
 *
 * A worker sends TOKENS before it commits them in kvd, so the scheduler always knows the tokens of every committed
 * column, whenever the worker dies. The end of either side is the end of the connection.
 */
#ifndef KVD_DEMO_WIRE_H
#define KVD_DEMO_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_MAX_TOKENS 16384

enum wire_type {
    WIRE_HELLO = 1,     /* session, epoch: of the worker in kvd; pid */
    WIRE_WELCOME = 2,   /* session: of the scheduler in kvd */
    WIRE_START = 3,     /* everything: a sequence that is active on rows of this worker */
    WIRE_CONTINUE = 4,  /* go on after hold_at */
    WIRE_TOKENS = 5,    /* first, tokens: produced, not yet committed */
    WIRE_COMMITTED = 6, /* frontier: in all pools; held: stands at hold_at until CONTINUE */
    WIRE_DONE = 7,      /* frontier; bounded; drafted, accepted. The worker has stopped touching the sequence */
    WIRE_FAILED = 8,    /* tokens: a sentence. The same */
    WIRE_FINISHED = 9   /* the sequence is over in kvd: forget it */
};

struct wire_message {
    uint32_t type;
    uint32_t id; /* of the request, the scheduler's */
    uint64_t session, sequence, epoch;
    uint32_t pid;
    uint32_t n_pools;
    uint32_t row[2], mapped[2], entitled[2]; /* a pool: row of the table, tokens that are and that may be mapped */
    uint32_t frontier;                       /* START: columns that the pages hold already */
    uint32_t budget;                         /* START: tokens to produce */
    uint32_t hold_at;                        /* START: commit exactly here and wait; 0 = nowhere */
    uint32_t speculate;                      /* START */
    uint32_t held, bounded;
    uint32_t drafted, accepted;
    uint32_t first; /* ordinal of tokens[0] */
    uint32_t n_tokens;
    uint8_t tokens[WIRE_MAX_TOKENS];
};

int wire_listen(const char *path);  /* a listening socket, or -errno */
int wire_connect(const char *path); /* -ECONNREFUSED or -ENOENT: nobody listens */

/* 0, or -errno: -EPIPE when the other side is gone. */
int wire_send(int fd, const struct wire_message *message);

/* 1 a message, 0 the end of the connection, -EAGAIN nothing now (wait == false), -EPROTO a malformed message. */
int wire_receive(int fd, bool wait, struct wire_message *ret_message);

#endif
