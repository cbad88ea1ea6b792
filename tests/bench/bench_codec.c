/* SPDX-License-Identifier: Apache-2.0
 *
 * What the codec costs on the request path: BENCH lines, median and 99th percentile of batches. Usage: bench_codec
 * [repetitions]
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "codec_fill.h"

#define SPACE (FRAME_LIMIT - FRAME_HEADER)
#define BATCH 50 /* calls a sample, so that the clock does not count */

static struct fill fill = { .state = 1 };
static uint8_t request_body[SPACE], reply_body[SPACE], out[SPACE];
static char err[KVD_MESSAGE_BYTES];
static struct codec_arena *arena;

struct work {
    struct msg_request request;
    struct msg_reply reply;
    size_t request_bytes, reply_bytes;
};

static void need(int r, const char *what) {
    if (r == 0) return;
    fprintf(stderr, "bench_codec: %s: %s\n", what, err);
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- the four steps, and the server's two together ----------------------------------------------------- */

static void encode_request(struct work *w) {
    size_t n;
    codec_arena_reset(arena);
    need(codec_encode_request(&w->request, arena, out, SPACE, &n, err, sizeof err), "encode request");
}
static void decode_request(struct work *w) {
    struct msg_request q;
    codec_arena_reset(arena);
    need(codec_decode_request(w->request.type, request_body, w->request_bytes, arena, &q, err, sizeof err),
         "decode request");
}
static void encode_reply(struct work *w) {
    size_t n;
    codec_arena_reset(arena);
    need(codec_encode_reply(&w->reply, arena, out, SPACE, &n, err, sizeof err), "encode reply");
}
static void decode_reply(struct work *w) {
    struct msg_reply y;
    codec_arena_reset(arena);
    need(codec_decode_reply(w->reply.type, reply_body, w->reply_bytes, arena, &y, err, sizeof err), "decode reply");
}
static void server(struct work *w) {
    struct msg_request q;
    size_t n;
    codec_arena_reset(arena);
    need(codec_decode_request(w->request.type, request_body, w->request_bytes, arena, &q, err, sizeof err),
         "decode request");
    need(codec_encode_reply(&w->reply, arena, out, SPACE, &n, err, sizeof err), "encode reply");
}

static void measure(const char *name, const char *step, void (*call)(struct work *), struct work *w, size_t samples) {
    double *us = malloc(samples * sizeof *us);
    if (!us) exit(1);
    for (size_t i = 0; i < samples; i++) {
        uint64_t begin = now_ns();
        for (int k = 0; k < BATCH; k++) call(w);
        us[i] = (double)(now_ns() - begin) / BATCH / 1000.0;
    }
    qsort(us, samples, sizeof *us, by_value);
    printf("BENCH codec_%s_%s_p50 %.3f us\n", name, step, us[samples / 2]);
    printf("BENCH codec_%s_%s_p99 %.3f us\n", name, step, us[samples * 99 / 100]);
    free(us);
}

static void bench(const char *name, struct work *w, size_t samples) {
    codec_arena_reset(arena);
    need(codec_encode_request(&w->request, arena, request_body, SPACE, &w->request_bytes, err, sizeof err), name);
    need(codec_encode_reply(&w->reply, arena, reply_body, SPACE, &w->reply_bytes, err, sizeof err), name);
    printf("BENCH codec_%s_request_bytes %zu B\n", name, w->request_bytes + FRAME_HEADER);
    printf("BENCH codec_%s_reply_bytes %zu B\n", name, w->reply_bytes + FRAME_HEADER);
    measure(name, "encode_request", encode_request, w, samples);
    measure(name, "decode_request", decode_request, w, samples);
    measure(name, "encode_reply", encode_reply, w, samples);
    measure(name, "decode_reply", decode_reply, w, samples);
    measure(name, "server", server, w, samples);
}

int main(int argc, char **argv) {
    static struct work w;
    size_t samples = argc > 1 ? strtoul(argv[1], NULL, 10) : 2000;
    arena = codec_arena_new();
    if (!arena || samples < 100) return 2;
    static const uint32_t batches[] = { 1, 64, 256 };
    for (size_t i = 0; i < sizeof batches / sizeof batches[0]; i++) {
        char name[32];
        snprintf(name, sizeof name, "round%u", batches[i]);
        fill_decode_round(&fill, batches[i], &w.request, &w.reply);
        bench(name, &w, samples);
    }
    fill.how = FILL_FULL;
    fill_request(&fill, FRAME_ACTIVATE, &w.request);
    fill_reply(&fill, FRAME_ACTIVATE, &w.reply);
    bench("activate", &w, samples);
    fill_request(&fill, FRAME_FIND, &w.request);
    fill_reply(&fill, FRAME_FIND, &w.reply);
    bench("find1024", &w, samples);
    fill_request(&fill, FRAME_LIST_SEQUENCES, &w.request);
    fill_reply(&fill, FRAME_LIST_SEQUENCES, &w.reply);
    bench("list256", &w, samples);
    arena = codec_arena_free(arena);
    return 0;
}
