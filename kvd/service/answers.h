/* SPDX-License-Identifier: Apache-2.0
 *
 * A session's window of answers (SRV-1): the answer to each of its last ANSWER_WINDOW numbered requests, for a client
 * that asks again. Requests that wait for copies between device and host leave the window for places of their own.
 *
 * All functions are called under the core mutex.
 */
#ifndef KVD_ANSWERS_H
#define KVD_ANSWERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "frame.h"

struct link;
struct service;
struct session;

#define ANSWER_WINDOW 64u
/* Bytes of answers that a session keeps: ANSWER_BYTES while all sessions together have fewer than ANSWER_TOTAL, else
 * ANSWER_LEAST, in which the newest answer always fits. So all of them are at most ANSWER_TOTAL + sessions *
 * ANSWER_LEAST. */
#define ANSWER_BYTES (256u << 10)
#define ANSWER_LEAST ((uint32_t)FRAME_LIMIT)
#define ANSWER_TOTAL (8u << 20)
#define ANSWER_WAITERS 2u
/* Requests of a session that may wait for copies between device and host. What needs no copy never waits behind them,
 * neither for a pending operation nor for the window. */
#define SLOW_PER_SESSION 16u

struct waiter {
    struct link *link; /* a reference */
    uint64_t frame_id;
};

/* PENDING: executed, not answered yet; who asks again waits too. */
struct answer {
    uint64_t sequence;
    uint16_t type;
    enum { ANSWER_NONE = 0, ANSWER_PENDING, ANSWER_DONE } state;
    bool held; /* a device must finish first */
    uint32_t bytes, n_waiters;
    uint8_t *body; /* owned */
    struct waiter waiter[ANSWER_WAITERS];
};

struct answers {
    size_t bytes;
    struct answer window[ANSWER_WINDOW];
    struct answer slow[2 * SLOW_PER_SESSION]; /* of requests that waited for copies; the oldest makes room */
};

/* NULL: there is none of this number. */
struct answer *answer_find(struct session *session, uint64_t sequence);
/* Records that a request was executed. slow: outside of the window. */
struct answer *answer_begin(struct service *s, struct session *session, uint64_t sequence, uint16_t type, bool slow);
bool answer_has_slow_place(const struct session *session);
/* The request waits for copies from now on: its answer leaves the window. */
void answer_make_slow(struct service *s, struct session *session, uint64_t sequence);
/* Takes over the body (malloc), and forgets the oldest ones that no longer fit. */
void answer_store(struct service *s, struct session *session, struct answer *answer, uint8_t *body, uint32_t bytes);
/* Drops the body; another one will come. NULLs are fine. */
void answer_unstore(struct service *s, struct session *session, struct answer *answer);
void answers_free(struct service *s, struct session *session);
/* Nobody reads on this link any more: it no longer waits for an answer. Who asks again on another one waits there. */
void answers_leave(struct session *session, const struct link *link);

#endif
