/* SPDX-License-Identifier: Apache-2.0
 *
 * kvd's ends of a shared segment whose other side writes anything anywhere. The input is a row of steps: bytes to an
 * offset, a tail or a head at a distance from kvd's own, a frame as it should be, a read, a write. Whatever was
 * written, a read gives a frame of a length that can be, or refuses and moves nothing, and a write stays in its ring.
 */
#include "ring.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

static struct ring_segment segment;
static uint8_t frame[FRAME_LIMIT];

struct input {
    const uint8_t *data;
    size_t left;
};

static void must(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "fuzz_ring: %s\n", what);
    abort();
}

static uint32_t take(struct input *in, unsigned bytes) {
    uint32_t value = 0;
    for (unsigned i = 0; i < bytes && in->left; i++, in->left--) value |= (uint32_t)*in->data++ << 8 * i;
    return value;
}

static void scribble(struct input *in) {
    size_t at = take(in, 3) % sizeof segment, n = take(in, 1);
    if (n > in->left) n = in->left;
    if (n > sizeof segment - at) n = sizeof segment - at;
    memcpy((uint8_t *)&segment + at, in->data, n);
    in->data += n;
    in->left -= n;
}

/* A head alone: its body is whatever stands there. */
static void put_frame(struct input *in, const struct ring_end *reader) {
    uint8_t head[FRAME_HEADER];
    uint32_t body = take(in, 2) % (FRAME_LIMIT - FRAME_HEADER + 1);
    frame_head_write(head, FRAME_ROUND, 0, 1, body);
    for (unsigned i = 0; i < FRAME_HEADER; i++) segment.requests[(reader->at + i) % RING_BYTES] = head[i];
    atomic_store(&segment.request_tail, reader->at + FRAME_HEADER + body);
}

static void read_frame(struct ring_end *reader) {
    struct frame_head head;
    size_t n = 0;
    uint64_t at = reader->at;
    int error = ring_read(reader, frame, &n);
    must(error == 0 || error == RING_E_EMPTY || error == RING_E_BROKEN, "a read has a code of ring_error");
    if (error) {
        must(reader->at == at && n == 0, "a refused read moves nothing");
        return;
    }
    must(n >= FRAME_HEADER && n <= FRAME_LIMIT && reader->at == at + n, "a frame has a length that can be");
    must(!frame_head_read(frame, n, &head) && head.length + 4 == n, "the copy is what was judged");
    must(atomic_load(&segment.request_head) == reader->at, "the head is told");
}

static void write_frame(struct ring_end *writer, uint32_t bytes) {
    uint64_t at = writer->at, head = atomic_load(&segment.answer_head);
    uint32_t before = segment.magic;
    uint8_t last = segment.requests[RING_BYTES - 1];
    bool taken = ring_write(writer, frame, bytes);
    must(segment.magic == before && segment.requests[RING_BYTES - 1] == last, "a write stays in its ring");
    must(!taken || writer->at - head <= RING_BYTES, "nothing unread is written over");
    must(writer->at == (taken ? at + bytes : at), "a refused write moves nothing");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input in = { data, size };
    memset(&segment, 0, sizeof segment);
    struct ring_end reader = ring_request_reader(&segment), writer = ring_answer_writer(&segment);
    while (in.left) {
        switch (take(&in, 1) % 6) {
        case 0: scribble(&in); break;
        case 1: atomic_store(&segment.request_tail, reader.at + (uint64_t)(int32_t)take(&in, 4)); break;
        case 2: atomic_store(&segment.answer_head, writer.at - (uint64_t)(int32_t)take(&in, 4)); break;
        case 3: put_frame(&in, &reader); break;
        case 4: read_frame(&reader); break;
        default: write_frame(&writer, FRAME_HEADER + take(&in, 2) % (FRAME_LIMIT - FRAME_HEADER + 1)); break;
        }
    }
    return 0;
}
