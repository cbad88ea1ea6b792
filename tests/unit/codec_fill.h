/* SPDX-License-Identifier: Apache-2.0
 *
 * Contents for protocol messages: random, typical or as large as the limits allow. They come from the codec's maps, so
 * that a new message needs nothing here; that the maps forget no field and use none twice is a test of its own
 * (test_codec_inside.c). Used by unit tests, the bench and the corpus generator.
 */
#ifndef CODEC_FILL_H
#define CODEC_FILL_H

#include "codec.h"

enum fill_how {
    FILL_RANDOM, /* counts and values anywhere in their range, edges often */
    FILL_SMALL,  /* like random, but few entries */
    FILL_FULL    /* every count and value at its limit: the longest body */
};

struct fill {       /* what pointers of a filled struct point to; one message at a time */
    uint64_t state; /* of the generator */
    enum fill_how how;
    size_t used; /* bytes of memory */
    uint64_t memory[1 << 15];
    kvd_digest digests[KVD_MAX_DIGESTS];
    struct kvd_round_item items[KVD_MAX_ROUND];
    struct kvd_round_result results[KVD_MAX_ROUND];
    struct kvd_audit audit;
};

void fill_request(struct fill *fill, uint16_t type, struct msg_request *ret_request);
void fill_reply(struct fill *fill, uint16_t type, struct msg_reply *ret_reply); /* status OK */
void fill_refusal(struct fill *fill, uint16_t type, struct msg_reply *ret_reply);
void fill_event(struct fill *fill, struct kvd_event *ret_event);
/* A batch in steady decode: one pool, commit and ensure, a slice now and then. */
void fill_decode_round(struct fill *fill, uint32_t n, struct msg_request *ret_request, struct msg_reply *ret_reply);

bool same_request(const struct msg_request *a, const struct msg_request *b);
bool same_reply(const struct msg_reply *a, const struct msg_reply *b);

#endif
