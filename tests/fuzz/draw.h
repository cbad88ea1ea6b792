/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests of every type out of bytes: with handles that earlier answers gave (or nearly), and numbers that are mostly
 * small and sometimes at the edges. For the fuzzer of the service, and for the test that sends them to a kvd.
 */
#ifndef DRAW_H
#define DRAW_H

#include "codec.h"

#define DRAW_HANDLES 8 /* of a kind: the last ones */

enum draw_kind { DRAW_SESSION, DRAW_SEQUENCE, DRAW_CONTINUATION, DRAW_GROUP, DRAW_KINDS };

/* Zeros, but for the bytes. What a request points to is here, until the next one is drawn. */
struct draw {
    const uint8_t *input;
    size_t left;
    uint64_t handles[DRAW_KINDS][DRAW_HANDLES];
    uint32_t n_handles[DRAW_KINDS];
    kvd_digest digests[8];
    struct kvd_victim victims[4];
    struct kvd_round_item items[8];
};

uint8_t draw_u8(struct draw *draw); /* 0 where nothing is left */
/* Keeps a handle for later requests; 0 is none. */
void draw_remember(struct draw *draw, enum draw_kind kind, uint64_t handle);
void draw_digests(struct draw *draw, uint32_t n); /* at most 8 */
/* The fields of a request whose type is set; its header is the caller's. */
void draw_request(struct draw *draw, struct msg_request *request);
/* Keeps the handle of what a request made, which is the first field of its answer. */
void draw_learn(struct draw *draw, const struct msg_reply *reply);
/* Whether requests of the type are numbered. */
bool draw_changes(uint16_t type);

#endif
