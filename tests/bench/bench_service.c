/* SPDX-License-Identifier: Apache-2.0
 *
 * What a request costs inside the service, without a socket: decode, admit, apply, publish, encode, record, post.
 *
 *     bench_service [SAMPLES]
 *
 * BENCH service.roundN.p50 us: a Round of N sequences that each commit one token; roundmapN: each also maps 4 pages;
 * stats, pair (Activate of a root and its Finish): as named; page: the text of all metrics, which no request waits for.
 */
#include <stdlib.h>
#include <time.h>

#include "metrics.h"
#include "metrics_page.h"
#include "service_fixture.h"

static struct fx fx;
static struct fx_peer *peer;
static struct msg_reply reply;
static uint64_t *samples;
static uint32_t n_samples = 20000;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void report(const char *name, uint32_t n) {
    qsort(samples, n, sizeof *samples, by_value);
    printf("BENCH service.%s.p50 %.2f us\n", name, (double)samples[n / 2] / 1000);
    printf("BENCH service.%s.p99 %.2f us\n", name, (double)samples[n * 99 / 100] / 1000);
}

/* Only the service's part of the call: the request is encoded before the clock starts. */
static uint64_t timed(struct msg_request *q) {
    static uint8_t frame[FRAME_LIMIT];
    char err[256];
    size_t bytes;
    q->header.session = peer->session;
    codec_arena_reset(peer->arena);
    if (codec_encode_request(q, peer->arena, frame + FRAME_HEADER, sizeof frame - FRAME_HEADER, &bytes, err,
                             sizeof err))
        exit(2);
    frame_head_write(frame, q->type, 0, ++peer->frame_id, bytes);
    uint64_t begin = now();
    service_serve(fx.service, &peer->link, frame, FRAME_HEADER + bytes);
    uint64_t end = now();
    if (!fx_reply(peer, q->type, &reply) || reply.status != KVD_OK) {
        fprintf(stderr, "bench_service: %s: %s\n", frame_type_name(q->type), reply.message);
        exit(1);
    }
    return end - begin;
}

static void rounds(const char *name, uint32_t n, uint32_t step, bool map) {
    struct kvd_round_item items[64];
    struct kvd_activated a;
    uint32_t turns = step > 1 ? 200 : 3000, done = 0;
    uint32_t frontier = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (fx_activate(peer, peer->session, 1, 60000, &a) != KVD_OK) exit(1);
        items[i] = (struct kvd_round_item){ .sequence = a.sequence };
    }
    for (uint32_t turn = 0; turn < turns; turn++) {
        frontier += step;
        for (uint32_t i = 0; i < n; i++) {
            items[i].pool[0] = round_pool(frontier, KVD_NONE, KVD_NONE, map ? frontier + step : KVD_NONE);
            if (turn == 0) items[i].pool[0] = round_pool(KVD_NONE, KVD_NONE, KVD_NONE, map ? 2 * step : 4000);
        }
        struct msg_request q = { .type = FRAME_ROUND, .header.sequence = ++peer->sequence, .u.round = { n, items } };
        uint64_t took = timed(&q);
        if (reply.u.round.items[0].status != KVD_OK) {
            fprintf(stderr, "bench_service: %s\n", reply.u.round.items[0].message);
            exit(1);
        }
        if (turn) samples[done++] = took;
    }
    report(name, done);
    for (uint32_t i = 0; i < n; i++)
        if (fx_finish(peer, items[i].sequence) != KVD_OK) exit(1);
}

static void pairs(void) {
    for (uint32_t i = 0; i < n_samples; i++) {
        struct msg_request q = { .type = FRAME_ACTIVATE,
                                 .header.sequence = ++peer->sequence,
                                 .u.activation = { .worker = peer->session,
                                                   .prompt_tokens = 1000,
                                                   .max_output_tokens = 1000,
                                                   .ensure = { 1000 } } };
        uint64_t took = timed(&q);
        struct msg_request f = { .type = FRAME_FINISH,
                                 .header.sequence = ++peer->sequence,
                                 .u.finish.sequence = reply.u.activated.sequence };
        samples[i] = took + timed(&f);
    }
    report("pair", n_samples);
}

static void pages(void) {
    for (uint32_t i = 0; i < 2000; i++) {
        size_t bytes;
        uint64_t begin = now();
        char *text = metrics_page(fx.service, &bytes);
        samples[i] = now() - begin;
        if (!text) exit(1);
        free(text);
    }
    report("page", 2000);
}

static void run(void) {
    samples = calloc(n_samples, sizeof *samples);
    KVT_NEED(samples && fx_start_large(&fx, 65536, 64));
    peer = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    puts("");
    rounds("round1", 1, 1, false);
    rounds("round16", 16, 1, false);
    rounds("round64", 64, 1, false);
    rounds("roundmap1", 1, 256, true);
    rounds("roundmap64", 64, 256, true);
    pairs();
    for (uint32_t i = 0; i < n_samples; i++) {
        struct msg_request q = { .type = FRAME_STATS };
        samples[i] = timed(&q);
    }
    report("stats", n_samples);
    pages();
    fx_peer_free(peer);
    fx.service = service_free(fx.service);
    free(samples);
}

/* The fixture's checks need a test around them. */
int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(run), { 0 } };
    if (argc > 1) n_samples = (uint32_t)strtoul(argv[1], NULL, 10);
    if (n_samples < 3000) n_samples = 3000;
    return kvt_main("bench_service", cases, 1, argv);
}
