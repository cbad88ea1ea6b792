/* SPDX-License-Identifier: Apache-2.0
 *
 * A gate before a redis-server: a socket whose connections are forwarded to it by a thread, until a GET is to be held
 * back. Whoever asked then has had the answers to all that it asked before, and waits for this one.
 */
#ifndef KVD_E2E_GATE_H
#define KVD_E2E_GATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "redis.h"

#define GATE_CONNECTIONS 64u

struct gate_connection {
    int client, server; /* -1: none */
    uint32_t matched;   /* bytes of a GET that the last bytes were */
    bool held;          /* nothing more is read from the client */
    size_t n_waiting;   /* what was read of it and is not forwarded */
    uint8_t waiting[16384];
};
struct gate {
    const struct redis *redis;
    char socket[104];
    int listener, wake;
    pthread_t thread;
    atomic_int let_through; /* GETs that still pass; below 0: all of them */
    atomic_uint held;       /* connections */
    atomic_bool stop;
    struct gate_connection connection[GATE_CONNECTIONS];
};

/* The redis-server must run, and stays the caller's. False: a failed check. gate_close in any case. */
bool gate_open(struct gate *gate, const struct redis *redis);
/* So many GETs pass from now on; each connection that sends one more is held. */
void gate_shut_after(struct gate *gate, uint32_t gets);
/* Forwards what was held before it returns, and all that comes. */
void gate_release(struct gate *gate);
/* Whether a GET is held. */
bool gate_holds(void *gate);
/* Nothing where it was not opened. */
void gate_close(struct gate *gate);

#endif
