/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames and bodies as they come from a socket. What decodes must encode; what was encoded must decode and encode to
 * the same bytes again. Flags of the header choose request, reply or event, as on the wire. Several frames may follow
 * each other.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec.h"
#include "frame.h"
#include "fuzz.h"

#define SPACE (FRAME_LIMIT - FRAME_HEADER)

static uint8_t once[SPACE], twice[SPACE];
static char err[KVD_MESSAGE_BYTES];
static struct codec_arena *arena;

static void must(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "fuzz_codec: %s: %s\n", what, err);
    abort();
}

static void must_refuse_well(int r) {
    must(r >= CODEC_E_MALFORMED && r <= CODEC_E_TYPE, "a refusal has a code of codec_error");
    must(err[0] && strlen(err) < sizeof err, "a refusal has a sentence");
}

static void same_bytes(size_t a, size_t b) { must(a == b && memcmp(once, twice, a) == 0, "two encodings agree"); }

static void fuzz_request(uint16_t type, const uint8_t *body, size_t bytes) {
    struct msg_request q;
    size_t a = 0, b = 0;
    int r = codec_decode_request(type, body, bytes, arena, &q, err, sizeof err);
    if (r) {
        must_refuse_well(r);
        return;
    }
    must(codec_encode_request(&q, arena, once, SPACE, &a, err, sizeof err) == 0, "what decodes encodes");
    codec_arena_reset(arena);
    must(codec_decode_request(type, once, a, arena, &q, err, sizeof err) == 0, "what was encoded decodes");
    must(codec_encode_request(&q, arena, twice, SPACE, &b, err, sizeof err) == 0, "what decodes encodes again");
    same_bytes(a, b);
}

static void fuzz_reply(uint16_t type, const uint8_t *body, size_t bytes) {
    struct msg_reply y;
    size_t a = 0, b = 0;
    int r = codec_decode_reply(type, body, bytes, arena, &y, err, sizeof err);
    if (r) {
        must_refuse_well(r);
        return;
    }
    must(codec_encode_reply(&y, arena, once, SPACE, &a, err, sizeof err) == 0, "what decodes encodes");
    codec_arena_reset(arena);
    must(codec_decode_reply(type, once, a, arena, &y, err, sizeof err) == 0, "what was encoded decodes");
    must(codec_encode_reply(&y, arena, twice, SPACE, &b, err, sizeof err) == 0, "what decodes encodes again");
    same_bytes(a, b);
}

static void fuzz_event(const uint8_t *body, size_t bytes) {
    struct kvd_event event, back;
    size_t a = 0;
    int r = codec_decode_event(body, bytes, &event, err, sizeof err);
    if (r) {
        must_refuse_well(r);
        return;
    }
    must(codec_encode_event(&event, once, SPACE, &a, err, sizeof err) == 0, "what decodes encodes");
    must(codec_decode_event(once, a, &back, err, sizeof err) == 0, "what was encoded decodes");
    must(memcmp(&event, &back, sizeof event) == 0, "events agree");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct frame_head head;
    if (!arena) arena = codec_arena_new();
    must(arena != NULL, "memory");
    while (frame_head_read(data, size, &head) == 0) {
        data += FRAME_HEADER;
        size -= FRAME_HEADER;
        size_t body = head.length - (FRAME_HEADER - 4);
        if (body > size) body = size; /* a cut body is worth decoding too */
        codec_arena_reset(arena);
        if (head.flags & FRAME_F_EVENT) fuzz_event(data, body);
        else if (head.flags & FRAME_F_REPLY) fuzz_reply(head.type, data, body);
        else fuzz_request(head.type, data, body);
        data += body;
        size -= body;
    }
    return 0;
}
