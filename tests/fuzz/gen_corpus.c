/* SPDX-License-Identifier: Apache-2.0
 *
 * Seeds for the fuzz targets that read frames: a small valid frame of every kind, and a few that break one rule each.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec_fill.h"
#include "frame.h"

static struct fill fill = { .state = 20240229, .how = FILL_SMALL };
static uint8_t frame[FRAME_LIMIT];
static char err[KVD_MESSAGE_BYTES];
static struct codec_arena *arena;
static const char *folder;

static void fail(const char *what, const char *why) {
    fprintf(stderr, "gen_corpus: %s: %s\n", what, why);
    exit(1);
}

static void save(const char *name, const uint8_t *bytes, size_t n) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, n, file) != n || fclose(file) != 0) fail(path, strerror(errno));
}

static void save_frame(const char *kind, uint16_t type, uint16_t flags, size_t body) {
    char name[128];
    snprintf(name, sizeof name, "%s-%02u-%s", kind, type, frame_type_name(type));
    frame_head_write(frame, type, flags, flags & FRAME_F_EVENT ? 0 : 7, body);
    save(name, frame, FRAME_HEADER + body);
}

static size_t request_body(uint16_t type) {
    struct msg_request q;
    size_t n;
    codec_arena_reset(arena);
    fill_request(&fill, type, &q);
    if (codec_encode_request(&q, arena, frame + FRAME_HEADER, sizeof frame - FRAME_HEADER, &n, err, sizeof err))
        fail("request", err);
    return n;
}

static size_t reply_body(uint16_t type, void (*how)(struct fill *, uint16_t, struct msg_reply *)) {
    struct msg_reply y;
    size_t n;
    codec_arena_reset(arena);
    how(&fill, type, &y);
    if (codec_encode_reply(&y, arena, frame + FRAME_HEADER, sizeof frame - FRAME_HEADER, &n, err, sizeof err))
        fail("reply", err);
    return n;
}

static void save_event(void) {
    struct kvd_event event;
    size_t n;
    fill_event(&fill, &event);
    if (codec_encode_event(&event, frame + FRAME_HEADER, sizeof frame - FRAME_HEADER, &n, err, sizeof err))
        fail("event", err);
    save_frame("event", FRAME_EVENT, FRAME_F_EVENT, n);
}

/* Two requests in one write, as a client that pipelines sends them. */
static void save_pipelined(void) {
    uint8_t both[2048];
    size_t used = 0;
    static const uint16_t types[] = { FRAME_ROUND, FRAME_STATS };
    for (size_t i = 0; i < 2; i++) {
        size_t n = request_body(types[i]);
        frame_head_write(frame, types[i], 0, i + 1, n);
        if (used + FRAME_HEADER + n > sizeof both) fail("pipelined", "too long");
        memcpy(both + used, frame, FRAME_HEADER + n);
        used += FRAME_HEADER + n;
    }
    save("stream-pipelined", both, used);
}

static void save_broken(void) {
    size_t n = request_body(FRAME_HELLO);
    frame_head_write(frame, FRAME_HELLO, 0, 1, n);
    save("broken-cut", frame, FRAME_HEADER + n / 2);
    memset(frame, 0xff, FRAME_HEADER);
    save("broken-length-huge", frame, FRAME_HEADER);
    memset(frame, 0, FRAME_HEADER);
    save("broken-length-zero", frame, FRAME_HEADER);
    for (size_t i = 0; i < 300; i++) frame[FRAME_HEADER + 2 * i] = 0x1a, frame[FRAME_HEADER + 2 * i + 1] = 0;
    save_frame("broken-items", FRAME_LIST_SESSIONS, FRAME_F_REPLY, 600);
    memcpy(frame + FRAME_HEADER, "\xa2\x06\x03new\xa8\x06\x07", 9); /* fields 100 and 101 */
    save_frame("newer", FRAME_DRAIN, 0, 9);
    memcpy(frame + FRAME_HEADER,
           "\x18\x02\x22\x03"
           "a\0b",
           7);
    save_frame("broken-name", FRAME_HELLO, 0, 7);
    frame_head_write(frame, 99, 0, 1, 0);
    save("broken-type", frame, FRAME_HEADER);
}

int main(int argc, char **argv) {
    arena = codec_arena_new();
    if (argc != 2 || !arena) {
        fprintf(stderr, "usage: gen_corpus DIRECTORY\n");
        return 2;
    }
    folder = argv[1];
    for (uint16_t type = FRAME_HELLO; type < FRAME_TYPE_END; type++) {
        save_frame("request", type, 0, request_body(type));
        save_frame("reply", type, FRAME_F_REPLY, reply_body(type, fill_reply));
    }
    save_frame("refusal", FRAME_ACTIVATE, FRAME_F_REPLY, reply_body(FRAME_ACTIVATE, fill_refusal));
    save_event();
    save_pipelined();
    save_broken();
    arena = codec_arena_free(arena);
    return 0;
}
