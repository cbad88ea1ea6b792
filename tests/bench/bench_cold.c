/* SPDX-License-Identifier: Apache-2.0
 *
 * The cold tier beside a bare hiredis program, on one redis-server on a Unix socket:
 *   cold.find, cold.exists ms: FindCold of 2,048 pages; one pipeline of 2,048 EXISTS on one connection
 *   cold.load, cold.get MB/s: LoadCold of 60 pages of 512 KiB, checked and in the arena; GET of the same values, 4
 *     threads with a connection each, values thrown away
 *   cold.write, cold.set MB/s: what was demoted, written; SET of as many bytes, 4 threads
 *   cold.*.ratio: how many times the bare program's speed
 * The best of several runs of each, by turns. The threads of kvd, of the program and of redis-server share the
 * processors.
 */
#include <hiredis/hiredis.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "cold_reader.h"
#include "cold_tier.h"
#include "core.h"
#include "redis.h"
#include "service_fixture.h"

#define FIND 2048u
#define PAGES 60u
#define HEADS 2u
#define RUNS 9
#define THREADS 4u

static struct fx fx;
static struct fx_peer *s;
static struct redis server;
static struct msg_reply r;
static kvd_digest digests[FIND];
static char keys[PAGES * HEADS][COLD_KEY_BYTES];

static uint32_t ask(struct msg_request *q) {
    q->header.session = s->session;
    if (frame_info(q->type)->numbering >= FRAME_CHANGE) q->header.sequence = ++s->sequence;
    fx_send(s, q);
    while (!s->n) fx_settle(&fx, s);
    return fx_reply(s, q->type, &r) ? r.status : UINT32_MAX;
}

static double least(const double *values, int n) {
    double least = values[0];
    for (int i = 1; i < n; i++) least = values[i] < least ? values[i] : least;
    return least;
}

static double seconds_since(uint64_t begin) { return (double)(clock_ns() - begin) / 1e9; }

static struct cold_layout layout;

static void key_of(uint32_t page, uint32_t shard, char key[COLD_KEY_BYTES]) {
    struct cold_name name = { .kind = COLD_PAGE, .shard = shard, .columns = 64 };
    memcpy(name.layout, layout.pages, sizeof name.layout);
    memcpy(name.digest, digests[page].bytes, sizeof name.digest);
    cold_key_of(&name, key);
}

/* ---- find ---- */

static double find_all(void) {
    uint64_t begin = clock_ns();
    for (uint32_t first = 0; first < FIND; first += KVD_MAX_DIGESTS) {
        struct msg_request q = {
            .type = FRAME_FIND_COLD,
            .u.cold = { .root.digest = fx_domain, .first = first, .n = KVD_MAX_DIGESTS, .digests = digests + first }
        };
        if (ask(&q) != KVD_OK || r.u.cold.frontier != (first + KVD_MAX_DIGESTS) * 64) exit(1);
    }
    return seconds_since(begin);
}

static double exists_all(redisContext *c) {
    char key[COLD_KEY_BYTES];
    void *reply;
    uint64_t begin = clock_ns();
    for (uint32_t i = 0; i < FIND; i++) {
        key_of(i, 0, key);
        redisAppendCommand(c, "EXISTS %s", key);
    }
    for (uint32_t i = 0; i < FIND; i++) {
        if (redisGetReply(c, &reply) != REDIS_OK || ((redisReply *)reply)->integer != 1) exit(1);
        freeReplyObject(reply);
    }
    return seconds_since(begin);
}

static void bench_find(void) {
    double find[RUNS], exists[RUNS];
    char key[COLD_KEY_BYTES];
    redisContext *c = redisConnectUnix(server.socket);
    for (uint32_t i = 0; i < FIND; i++) {
        key_of(i, 0, key);
        redisReply *reply = redis_ask(&server, "SET %s x", key);
        freeReplyObject(reply);
    }
    (void)find_all();
    for (int i = 0; i < RUNS; i++) {
        find[i] = find_all();
        exists[i] = exists_all(c);
    }
    printf("BENCH cold.find %.3f ms\nBENCH cold.exists %.3f ms\n", least(find, RUNS) * 1e3, least(exists, RUNS) * 1e3);
    printf("BENCH cold.find.ratio %.2f times\n", least(find, RUNS) / least(exists, RUNS));
    redisFree(c);
    freeReplyObject(redis_ask(&server, "FLUSHALL"));
}

/* ---- bytes ---- */

struct part {
    redisContext *c;
    uint32_t index;
    const char *value; /* SET; NULL: GET */
    size_t bytes;
};

/* A share of the keys over a connection, all of it pipelined. */
static void *run_part(void *argument) {
    struct part *part = argument;
    redisContext *c = part->c;
    void *reply;
    for (uint32_t i = part->index; i < PAGES * HEADS; i += THREADS)
        if (part->value) redisAppendCommand(c, "SET %s:bare %b", keys[i], part->value, part->bytes);
        else redisAppendCommand(c, "GET %s", keys[i]);
    for (uint32_t i = part->index; i < PAGES * HEADS; i += THREADS) {
        if (redisGetReply(c, &reply) != REDIS_OK || ((redisReply *)reply)->type == REDIS_REPLY_NIL) exit(1);
        freeReplyObject(reply);
    }
    return NULL;
}

static double run_bare(const char *value, size_t bytes) {
    pthread_t thread[THREADS];
    struct part part[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) part[i] = (struct part){ redisConnectUnix(server.socket), i, value, bytes };
    uint64_t begin = clock_ns();
    for (uint32_t i = 0; i < THREADS; i++) {
        pthread_create(&thread[i], NULL, run_part, &part[i]);
    }
    for (uint32_t i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    double took = seconds_since(begin);
    for (uint32_t i = 0; i < THREADS; i++) redisFree(part[i].c);
    return took;
}

static struct cold_stats cold(void) {
    struct cold_stats stats;
    pthread_mutex_lock(&fx.service->lock);
    cold_tier_stats(fx.service, &stats);
    pthread_mutex_unlock(&fx.service->lock);
    return stats;
}

static kvd_continuation keep_pages(void) {
    struct kvd_activated a = { 0 };
    if (fx_activate(s, s->session, PAGES * 64, 1, &a) != KVD_OK) exit(1);
    fx_round(s, a.sequence, KVD_UNCHANGED, PAGES * 64, NULL);
    fx_round(s, a.sequence, PAGES * 64, KVD_UNCHANGED, NULL);
    struct msg_request name = { .type = FRAME_NAME_PAGES, .u.names = { a.sequence, 0, PAGES, digests } };
    struct msg_request finish = { .type = FRAME_FINISH, .u.finish = { .sequence = a.sequence, .retain = true } };
    if (ask(&name) != KVD_OK || ask(&finish) != KVD_OK) exit(1);
    return r.u.finished.continuation;
}

static void release(kvd_continuation c) {
    struct msg_request q = { .type = FRAME_RELEASE, .u.continuation = { .continuation = c } };
    if (ask(&q) != KVD_OK) exit(1);
}

static void bench_write(size_t object) {
    double write[5], set[5], bytes = (double)object * PAGES * HEADS;
    char *value = calloc(1, object);
    for (int i = 0; i < 5; i++) {
        for (uint32_t k = 0; k < PAGES; k++) digests[k].bytes[8] = (uint8_t)(i + 1); /* never written before */
        struct cold_stats before = cold();
        kvd_continuation c = keep_pages();
        struct msg_request q = { .type = FRAME_DEMOTE, .u.demote = { .continuation = c } };
        if (ask(&q) != KVD_OK) exit(1);
        while (cold().continuations == before.continuations) poll(NULL, 0, 1);
        write[i] = (double)(cold().written_ns - before.written_ns) / 1e9;
        release(c);
        for (uint32_t k = 0; k < PAGES * HEADS; k++) key_of(k / HEADS, k % HEADS, keys[k]);
        set[i] = run_bare(value, object);
        if (i < 4) freeReplyObject(redis_ask(&server, "FLUSHALL"));
    }
    printf("BENCH cold.write %.0f MB/s\nBENCH cold.set %.0f MB/s\n", bytes / 1e6 / least(write, 5),
           bytes / 1e6 / least(set, 5));
    printf("BENCH cold.write.ratio %.2f times\n", least(set, 5) / least(write, 5));
    free(value);
}

static void bench_load(size_t object) {
    double load[RUNS], get[RUNS], bytes = (double)object * PAGES * HEADS;
    for (int i = 0; i < RUNS; i++) {
        struct msg_request q = { .type = FRAME_LOAD_COLD,
                                 .u.cold = { .root.digest = fx_domain, .n = PAGES, .digests = digests } };
        uint64_t begin = clock_ns();
        if (ask(&q) != KVD_OK || r.u.cold.frontier != PAGES * 64) exit(1);
        load[i] = seconds_since(begin);
        release(r.u.cold.continuation);
        get[i] = run_bare(NULL, 0);
    }
    printf("BENCH cold.load %.0f MB/s\nBENCH cold.get %.0f MB/s\n", bytes / 1e6 / least(load, RUNS),
           bytes / 1e6 / least(get, RUNS));
    printf("BENCH cold.load.ratio %.2f times\n", least(get, RUNS) / least(load, RUNS));
}

static void bench(void) {
    char text[512];
    KVT_NEED(redis_start(&server));
    snprintf(text, sizeof text,
             "[host]\narena = 128MiB\nscrub = 0\n[cold]\naddress = unix:%s\ntimeout = 20s\nfind_time = 20s\nrate = 0\n",
             server.socket);
    KVT_NEED(
        fx_start(&fx, &(struct fx_setup){ .more = text, .layers = 8, .head_dim = 128, .capacity_tokens = 64 * 64 }));
    s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    for (struct cold_reads reads = { 0 }; reads.finder.breaker != COLD_CLOSED || reads.loader.breaker != COLD_CLOSED ||
                                          cold().engine.breaker != COLD_CLOSED;
         cold_reader_stats(fx.service, &reads))
        poll(NULL, 0, 1);
    for (uint32_t i = 0; i < FIND; i++) memcpy(digests[i].bytes, &(uint32_t){ i + 1 }, 4);
    cold_layout_of(&fx.service->plan.spec, 1, NULL, &layout);
    size_t object = COLD_HEADER_BYTES + (size_t)geom_shard_bytes(&fx.service->plan.spec.main);
    bench_find();
    for (uint32_t i = 0; i < FIND; i++) digests[i].bytes[9] = 1;
    bench_write(object);
    bench_load(object);
    fx_peer_free(s);
    fx_stop(&fx);
    redis_free(&server);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(bench), { 0 } };
    return sodium_init() < 0 ? 2 : kvt_main("bench_cold", cases, argc, argv);
}
