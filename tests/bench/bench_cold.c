/* SPDX-License-Identifier: Apache-2.0
 *
 * The cold tier beside a bare hiredis program, on one redis-server on a Unix socket:
 *   cold.find, cold.exists ms: FindCold of 2,048 pages; one pipeline of 2,048 EXISTS on one connection
 *   cold.load, cold.get MB/s: LoadCold of 60 pages of 512 KiB, checked and in the arena; GET of the same values, 4
 *     threads with a connection each, values thrown away
 *   cold.write, cold.set MB/s: what was demoted, written; SET of as many bytes, 4 threads
 *   cold.*.ratio: how many times the bare program's speed
 *   cold.activate.p50, .p99 us: an activation of 1,000 tokens that finds nothing cold; .ratio: over a kvd without
 * [cold] cold.memory MB: private memory that [cold] takes, after writes and loads; .ratio: over twice [cold] buffer
 *   cold.load_10k.PROFILE ms: LoadCold of 157 pages (10,048 tokens) of 16 layers, 4 KV heads, head_dim 256
 * The best of several runs of each, by turns. The threads of kvd, of the program and of redis-server share the
 * processors.
 */
#include <hiredis/hiredis.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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
#define LONG_PAGES 157u
#define LONG_HEADS 4u
#define ACTIVATIONS 5000        /* of a run */
#define BUFFER (16.0 * 1048576) /* that of COLD */

static struct fx fx;
static struct fx_peer *s;
static struct redis server;
static struct msg_reply r;
static kvd_digest digests[FIND];
static char keys[PAGES * HEADS][COLD_KEY_BYTES];

static struct cold_layout layout;

static struct cold_stats cold(void) {
    struct cold_stats stats;
    pthread_mutex_lock(&fx.service->lock);
    cold_tier_stats(fx.service, &stats);
    pthread_mutex_unlock(&fx.service->lock);
    return stats;
}

#define COLD "[cold]\naddress = unix:%s\nbuffer = 16MiB\ntimeout = 20s\nfind_time = 20s\nrate = 0\n"

/* A kvd with [cold], whose threads have their connections. */
static void start_cold(const char *host, struct fx_setup setup) {
    char text[512];
    snprintf(text, sizeof text, "%s" COLD, host, server.socket);
    setup.more = text;
    if (!fx_start(&fx, &setup)) exit(1);
    s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct cold_reads reads = { 0 };
    while (reads.finder.breaker != COLD_CLOSED || reads.loader.breaker != COLD_CLOSED ||
           cold().engine.breaker != COLD_CLOSED) {
        poll(NULL, 0, 1);
        cold_reader_stats(fx.service, &reads);
    }
    cold_layout_of(&fx.service->plan.spec, 1, NULL, &layout);
}

static void stop_cold(void) {
    fx_peer_free(s);
    fx_stop(&fx);
}

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

/* ---- activations ---- */

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double time_activation(struct fx_peer *peer) {
    struct kvd_activated a = { 0 };
    uint64_t begin = clock_ns();
    if (fx_activate(peer, peer->session, 1000, 24, &a) != KVD_OK) exit(1);
    double took = seconds_since(begin);
    if (fx_finish(peer, a.sequence) != KVD_OK) exit(1);
    return took;
}

struct percentiles {
    double values[ACTIVATIONS], p50[RUNS], p99[RUNS]; /* of a run; of each of them */
};

static void take_percentiles(struct percentiles *p, int run) {
    qsort(p->values, ACTIVATIONS, sizeof *p->values, compare_doubles);
    p->p50[run] = p->values[ACTIVATIONS / 2];
    p->p99[run] = p->values[ACTIVATIONS / 100 * 99];
}

/* Two kvd by turns, of which one has [cold]. */
static void bench_activations(const char *host, struct fx_setup setup) {
    static struct percentiles with, without;
    struct fx plain;
    setup.more = host;
    setup.beside = true;
    if (!fx_start(&plain, &setup)) exit(1);
    struct fx_peer *peer = fx_session(&plain, KVD_ROLE_SCHEDULER, 0);
    for (int i = 0; i < RUNS * ACTIVATIONS; i++) {
        int at = i % ACTIVATIONS;
        if (i % 2) with.values[at] = time_activation(s);
        without.values[at] = time_activation(peer);
        if (i % 2 == 0) with.values[at] = time_activation(s);
        if (at < ACTIVATIONS - 1) continue;
        take_percentiles(&with, i / ACTIVATIONS);
        take_percentiles(&without, i / ACTIVATIONS);
    }
    double p50 = least(with.p50, RUNS), p99 = least(with.p99, RUNS);
    printf("BENCH cold.activate.p50 %.2f us\nBENCH cold.activate.p99 %.2f us\n", p50 * 1e6, p99 * 1e6);
    printf("BENCH cold.activate.p50.ratio %.3f times\nBENCH cold.activate.p99.ratio %.3f times\n",
           p50 / least(without.p50, RUNS), p99 / least(without.p99, RUNS));
    fx_peer_free(peer);
    fx_stop(&plain);
}

/* ---- memory ---- */

/* Bytes of this process that no other shares: without pools and arena. */
static double private_bytes(void) {
    char line[256];
    unsigned long kib = 0;
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "Anonymous: %lu", &kib) == 1) break;
    if (f) fclose(f);
    return (double)kib * 1024;
}

/* All pages computed, and loaded twice; with [cold] also written. */
static void use_pages(bool with_cold) {
    struct cold_stats before = cold();
    kvd_continuation c = keep_pages();
    struct msg_request q = { .type = FRAME_DEMOTE, .u.demote = { .continuation = c } };
    if (ask(&q) != KVD_OK) exit(1);
    while (with_cold && cold().continuations == before.continuations) poll(NULL, 0, 1);
    release(c);
    for (int i = 0; with_cold && i < 2; i++) {
        struct msg_request load = { .type = FRAME_LOAD_COLD,
                                    .u.cold = { .root.digest = fx_domain, .n = PAGES, .digests = digests } };
        if (ask(&load) != KVD_OK || r.u.cold.frontier != PAGES * 64) exit(1);
        release(r.u.cold.continuation);
    }
}

/* What a kvd takes for all that, in a process that ran none before. */
static double measure_private(bool with_cold, const char *host, struct fx_setup setup) {
    int ends[2];
    double bytes = 0;
    if (pipe(ends)) exit(1);
    pid_t child = fork();
    if (child == 0) {
        bytes = -private_bytes();
        setup.more = host;
        if (with_cold) start_cold(host, setup);
        else if (!fx_start(&fx, &setup) || !(s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0))) exit(1);
        use_pages(with_cold);
        bytes += private_bytes();
        stop_cold();
        _exit(write(ends[1], &bytes, sizeof bytes) != sizeof bytes);
    }
    close(ends[1]);
    if (read(ends[0], &bytes, sizeof bytes) != sizeof bytes) exit(1);
    close(ends[0]);
    waitpid(child, NULL, 0);
    return bytes;
}

static void bench_memory(const char *host, struct fx_setup setup) {
    double extra = measure_private(true, host, setup) - measure_private(false, host, setup);
    printf("BENCH cold.memory %.1f MB\nBENCH cold.memory.ratio %.2f times\n", extra / 1e6, extra / (2 * BUFFER));
    freeReplyObject(redis_ask(&server, "FLUSHALL"));
}

/* ---- a long prompt ---- */

/* Its values as another kvd would have written them. */
static void put_values(redisContext *c) {
    uint64_t bytes = geom_shard_bytes(&fx.service->plan.spec.main);
    uint8_t *value = calloc(1, COLD_HEADER_BYTES + bytes);
    char key[COLD_KEY_BYTES];
    for (uint32_t i = 0; i < LONG_PAGES * LONG_HEADS; i++) {
        struct cold_name name = { .kind = COLD_PAGE, .shard = i % LONG_HEADS, .columns = 64 };
        memcpy(name.layout, layout.pages, sizeof name.layout);
        memcpy(name.digest, digests[i / LONG_HEADS].bytes, sizeof name.digest);
        cold_key_of(&name, key);
        cold_value_seal(&name, value + COLD_HEADER_BYTES, bytes, NULL, value);
        redisReply *reply = redisCommand(c, "SET %s %b", key, value, (size_t)(COLD_HEADER_BYTES + bytes));
        if (!reply || reply->type != REDIS_REPLY_STATUS) exit(1);
        freeReplyObject(reply);
    }
    free(value);
}

static void bench_long(const char *profile) {
    double load[5];
    start_cold("[host]\narena = 1GiB\nscrub = 0\n", (struct fx_setup){ .layers = 16,
                                                                       .kv_heads = LONG_HEADS,
                                                                       .head_dim = 256,
                                                                       .profile = profile,
                                                                       .context = 16384,
                                                                       .capacity_tokens = 16384,
                                                                       .memory_mib = 2048 });
    redisContext *c = redisConnectUnix(server.socket);
    put_values(c);
    for (int i = 0; i < 5; i++) {
        struct msg_request q = { .type = FRAME_LOAD_COLD,
                                 .u.cold = { .root.digest = fx_domain, .n = LONG_PAGES, .digests = digests } };
        uint64_t begin = clock_ns();
        if (ask(&q) != KVD_OK || r.u.cold.frontier != LONG_PAGES * 64) exit(1);
        load[i] = seconds_since(begin);
        release(r.u.cold.continuation);
    }
    printf("BENCH cold.load_10k.%s %.0f ms\n", profile, least(load, 5) * 1e3);
    redisFree(c);
    stop_cold();
    freeReplyObject(redis_ask(&server, "FLUSHALL"));
}

static void bench(void) {
    static const char host[] = "[host]\narena = 128MiB\nscrub = 0\n";
    const struct fx_setup setup = { .layers = 8, .head_dim = 128, .capacity_tokens = 64 * 64 };
    KVT_NEED(redis_start(&server));
    puts(""); /* a line of its own for each figure */
    for (uint32_t i = 0; i < FIND; i++) memcpy(digests[i].bytes, &(uint32_t){ i + 1 }, 4);
    bench_memory(host, setup);
    start_cold(host, setup);
    size_t object = COLD_HEADER_BYTES + (size_t)geom_shard_bytes(&fx.service->plan.spec.main);
    bench_activations(host, setup);
    bench_find();
    for (uint32_t i = 0; i < FIND; i++) digests[i].bytes[9] = 1;
    bench_write(object);
    bench_load(object);
    stop_cold();
    freeReplyObject(redis_ask(&server, "FLUSHALL"));
    bench_long("bf16");
    bench_long("nvfp4");
    redis_free(&server);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(bench), { 0 } };
    return sodium_init() < 0 ? 2 : kvt_main("bench_cold", cases, argc, argv);
}
