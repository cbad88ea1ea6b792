/* SPDX-License-Identifier: Apache-2.0
 *
 * One connection to an engine of the cold tier: commands out, replies in. Every wait has a deadline (clock_ns) and ends
 * when the stop descriptor is readable. What a peer may make us keep is bounded: bytes by what was asked of it, arrays
 * by COLD_WIRE_ELEMENTS.
 *
 * A function that fails has closed the connection and written a sentence into `why`. One thread at a time.
 */
#ifndef KVD_COLD_WIRE_H
#define KVD_COLD_WIRE_H

#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config.h"

#define COLD_WIRE_ELEMENTS 4096
#define COLD_WIRE_SMALL 65536u /* bytes that a reply without a value may have */

struct cold_wire {
    int fd;      /* -1: closed */
    int stop_fd; /* an eventfd */
    redisReader *reader;
    redisReplyObjectFunctions functions;
    void *(*create_array)(const redisReadTask *, int);
    uint64_t budget; /* bytes that may still come */
    char why[192];
    size_t n_out;
    uint8_t out[16384];
};

void cold_wire_init(struct cold_wire *wire, int stop_fd);
/* 0, or 1. */
int cold_wire_open(struct cold_wire *wire, const struct config_listen *address, uint64_t deadline);
/* The second half of it: takes over a socket that is connected and does not block. 0, or 1. */
int cold_wire_adopt(struct cold_wire *wire, int fd);
void cold_wire_close(struct cold_wire *wire);
/* Between commands: closes it where the peer has hung up, as engines do with idle ones, or sent what nobody asked for.
 */
void cold_wire_renew(struct cold_wire *wire);

/* A part of a command, after cold_wire_begin with the number of parts. Bytes are sent before it returns, or kept until
 * the next flush. */
int cold_wire_begin(struct cold_wire *wire, unsigned parts, uint64_t reply_bytes, uint64_t deadline);
int cold_wire_text(struct cold_wire *wire, const char *text, uint64_t deadline);
/* Two pieces of one part: head may be empty. */
int cold_wire_bytes(struct cold_wire *wire, const void *head, size_t head_bytes, const void *bytes, size_t n,
                    uint64_t deadline);
int cold_wire_flush(struct cold_wire *wire, uint64_t deadline);
/* The next reply; freeReplyObject. NULL: failed. */
redisReply *cold_wire_reply(struct cold_wire *wire, uint64_t deadline);
/* All of a command of texts, up to NULL, and its reply. */
redisReply *cold_wire_ask(struct cold_wire *wire, uint64_t deadline, const char *const *texts);

#endif
