/* SPDX-License-Identifier: Apache-2.0
 *
 * Round trips through libkvd against a kvd that the bench starts, beside a bare nng byte-stream echo (nng at both ends)
 * and a raw socket ping-pong of the same sizes, in one run and interleaved, so that one machine's mood meets all of
 * them alike.
 *
 *     bench_rpc KVD [SAMPLES]
 *
 * BENCH rpc.round64.kvd.p50 us: a Round of 64 sequences that each commit one token. roundmap: each commits 256 tokens
 * and maps as many more (what an engine sends about once in 256 tokens). pair: Activate of a root and its Finish. find:
 * a lookup of FIND_PAGES pages that nobody has. The client is a scheduler, whose requests go by the ring of shared
 * memory; rpc.socket.*: the same with a kvd that gives no rings. ratio lines: kvd over the echo of the same sizes.
 * steady64: 64 sequences that decode by kvd_advance. fair: a Round of 16 sequences alone (quiet) and beside six clients
 * that flood kvd with queries.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench_echo.h"
#include "bench_flood.h"
#include "codec.h"
#include "kvd.h"
#include "round_ask.h"

#define SEQUENCES 64u
#define CONTEXT 65536u
#define FIND_PAGES 8u
#define BLOCK 50u /* samples of one kind before the next kind's turn */

struct bench {
    char dir[64];
    bool ring;
    const char *prefix; /* of the names of figures */
    pid_t kvd, raw_server, nng_server;
    kvd_client *client;
    struct echo_raw raw;
    struct echo_nng *nng;
    uint32_t samples;
    kvd_sequence sequence[SEQUENCES];
    uint32_t frontier;
    struct kvd_round_item items[SEQUENCES];
    struct kvd_round_result results[SEQUENCES];
};

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void must(enum kvd_status status, const struct kvd_error *error, const char *what) {
    if (status == KVD_OK) return;
    fprintf(stderr, "bench_rpc: %s: %s: %s\n", what, kvd_status_name(status), error->message);
    exit(1);
}

/* ---- processes -------------------------------------------------------------------------------------- */

static void write_config(const struct bench *b, char *ret_path, size_t bytes) {
    snprintf(ret_path, bytes, "%s/kvd.conf", b->dir);
    FILE *file = fopen(ret_path, "w");
    if (!file) bench_die("cannot write a configuration");
    fprintf(file,
            "[kvd]\nsocket = %s/kvd.sock\nring = %s\nlog_level = warning\n[devices]\ndevice.0 = host:0\nmemory = 1GiB\n"
            "[model]\nlayers = 1\nkv_heads = 1\nhead_dim = 16\nprofile = bf16\nmax_context = %u\nmax_concurrency = %u\n"
            "[capacity]\ntokens = %u\n",
            b->dir, b->ring ? "yes" : "no", CONTEXT, SEQUENCES + 1, CONTEXT * SEQUENCES + 65536);
    fclose(file);
}

/* Starts kvd and waits for its READY=1. */
static void start_kvd(struct bench *b, const char *kvd) {
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    char config[96], text[256] = "";
    write_config(b, config, sizeof config);
    snprintf(address.sun_path, sizeof address.sun_path, "%s/notify", b->dir);
    int notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct timeval limit = { .tv_sec = 30 };
    setsockopt(notify, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (bind(notify, (struct sockaddr *)&address, sizeof address) != 0) bench_die("cannot bind a notify socket");
    b->kvd = fork();
    if (b->kvd == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        setenv("NOTIFY_SOCKET", address.sun_path, 1);
        execl(kvd, kvd, "--config", config, (char *)NULL);
        fprintf(stderr, "bench_rpc: %s: %s\n", kvd, strerror(errno));
        _exit(127);
    }
    while (!strstr(text, "READY=1")) {
        ssize_t n = recv(notify, text, sizeof text - 1, 0);
        if (n < 0) bench_die("kvd did not get ready in 30 s");
        text[n] = 0;
    }
    close(notify);
}

static void clean_up(struct bench *b) {
    char path[128];
    static const char *const names[] = { "kvd.conf", "notify", "raw", "nng", "kvd.sock", "kvd.sock.lock" };
    kvd_disconnect(b->client);
    kill(b->kvd, SIGTERM);
    kill(b->raw_server, SIGKILL);
    kill(b->nng_server, SIGKILL);
    waitpid(b->kvd, NULL, 0);
    waitpid(b->raw_server, NULL, 0);
    waitpid(b->nng_server, NULL, 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", b->dir, names[i]);
        unlink(path);
    }
    rmdir(b->dir);
}

/* ---- kvd's requests ------------------------------------------------------------------------------------- */

static kvd_sequence activate(struct bench *b, uint32_t prompt, uint32_t output, uint32_t ensure) {
    struct kvd_activation want = { .root.digest = { { 1 } },
                                   .worker = kvd_client_session(b->client),
                                   .prompt_tokens = prompt,
                                   .max_output_tokens = output,
                                   .ensure = { ensure } };
    struct kvd_activated got;
    struct kvd_error error;
    must(kvd_activate(b->client, &want, &got, &error), &error, "Activate");
    return got.sequence;
}

static void finish(struct bench *b, kvd_sequence sequence) {
    struct kvd_finish how = { .sequence = sequence };
    struct kvd_finished finished;
    struct kvd_error error;
    must(kvd_finish(b->client, &how, &finished, &error), &error, "Finish");
}

static void begin_all(struct bench *b) {
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        b->sequence[i] = activate(b, 64, CONTEXT - 64, 1);
        b->items[i] = (struct kvd_round_item){ .sequence = b->sequence[i] };
    }
    b->frontier = 0;
}

static void end_all(struct bench *b) {
    for (uint32_t i = 0; i < SEQUENCES; i++) finish(b, b->sequence[i]);
}

/* Commits what the last one mapped, maps step tokens more. All sequences go in step, so that any batch size may follow
 * any other. */
static void fill_round(struct bench *b, uint32_t n, uint32_t step) {
    for (uint32_t i = 0; i < n; i++) {
        b->items[i].pool[0] = round_pool(b->frontier ? b->frontier : KVD_NONE, KVD_NONE, KVD_NONE, b->frontier + step);
    }
    b->frontier += step;
}

static void round_of(struct bench *b, uint32_t n) {
    struct kvd_error error;
    must(kvd_round(b->client, b->items, n, b->results, &error), &error, "Round");
    for (uint32_t i = 0; i < n; i++) {
        if (b->results[i].status == KVD_OK) continue;
        fprintf(stderr, "bench_rpc: sequence %u: %s\n", i, b->results[i].message);
        exit(1);
    }
}

static void find(struct bench *b) {
    static uint32_t tokens[64 * FIND_PAGES + 1];
    static kvd_chain *chain;
    struct kvd_hit hits[4];
    struct kvd_error error;
    uint32_t n = 0;
    if (!chain &&
        (kvd_chain_new(NULL, &chain) != KVD_OK || kvd_chain_push(chain, tokens, 64 * FIND_PAGES + 1) != KVD_OK))
        bench_die("cannot make a chain");
    must(kvd_find(b->client, chain, tokens, 64 * FIND_PAGES + 1, hits, 4, &n, &error), &error, "Find");
}

/* ---- sizes ------------------------------------------------------------------------------------------------ */

static struct echo_sizes round_sizes(struct bench *b, uint32_t n) {
    static uint8_t body[FRAME_LIMIT];
    struct codec_arena *arena = codec_arena_new();
    struct msg_request request = { .type = FRAME_ROUND, .u.round = { n, b->items } };
    struct msg_reply reply = { .type = FRAME_ROUND,
                               .epoch = kvd_client_epoch(b->client),
                               .u.round = { n, b->results } };
    size_t ask = 0, answer = 0;
    request.header = (struct msg_header){ kvd_client_session(b->client), 1000, now_ns(), kvd_client_epoch(b->client) };
    if (!arena || codec_encode_request(&request, arena, body, sizeof body, &ask, NULL, 0) != 0)
        bench_die("cannot encode a Round");
    codec_arena_reset(arena);
    if (codec_encode_reply(&reply, arena, body, sizeof body, &answer, NULL, 0) != 0)
        bench_die("cannot encode a Round's answer");
    codec_arena_free(arena);
    return (struct echo_sizes){ FRAME_HEADER + ask, FRAME_HEADER + answer };
}

/* ---- measuring ----------------------------------------------------------------------------------------------- */

enum kind { KVD, NNG, RAW, N_KINDS };
static const char *const kind_names[N_KINDS] = { "kvd", "nng", "raw" };

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static double quantile_us(const uint64_t *sorted, uint32_t n, double q) {
    return (double)sorted[(uint32_t)(q * (n - 1))] / 1e3;
}

static void report(const struct bench *b, const char *name, uint64_t *samples[N_KINDS], uint32_t n) {
    static const struct {
        const char *name;
        double q;
    } quantiles[] = { { "p50", 0.50 }, { "p99", 0.99 } };
    for (int k = 0; k < N_KINDS; k++) qsort(samples[k], n, sizeof **samples, by_value);
    for (int q = 0; q < 2; q++) {
        double us[N_KINDS];
        for (int k = 0; k < N_KINDS; k++) {
            us[k] = quantile_us(samples[k], n, quantiles[q].q);
            printf("BENCH %s.%s.%s.%s %.1f us\n", b->prefix, name, kind_names[k], quantiles[q].name, us[k]);
        }
        printf("BENCH %s.%s.kvd_over_nng.%s %.2f ratio\n", b->prefix, name, quantiles[q].name, us[KVD] / us[NNG]);
        printf("BENCH %s.%s.kvd_over_raw.%s %.2f ratio\n", b->prefix, name, quantiles[q].name, us[KVD] / us[RAW]);
    }
    fflush(stdout);
}

struct job {
    const char *name;
    uint32_t n, step; /* step 0: Activate + Finish, or, with n, Find */
    struct echo_sizes sizes;
};

static void one(struct bench *b, const struct job *job, enum kind kind) {
    if (kind == NNG) echo_nng_ping(b->nng, job->sizes);
    else if (kind == RAW) echo_raw_ping(&b->raw, job->sizes);
    else if (job->step) round_of(b, job->n);
    else if (job->n) find(b);
    else finish(b, activate(b, 64, 64, 1));
    if (kind != KVD && !job->step && !job->n) { /* the pair is two round trips */
        if (kind == NNG) echo_nng_ping(b->nng, job->sizes);
        else echo_raw_ping(&b->raw, job->sizes);
    }
}

static void measure(struct bench *b, struct job *job) {
    uint64_t *samples[N_KINDS];
    uint32_t n = b->samples;
    if (job->step) begin_all(b);
    if (job->step > 1 && n > CONTEXT / job->step - 2) n = CONTEXT / job->step - 2;
    for (int k = 0; k < N_KINDS; k++)
        if (!(samples[k] = calloc(n, sizeof **samples))) bench_die("out of memory");
    if (job->step) { /* one to learn the sizes from */
        fill_round(b, job->n, job->step);
        round_of(b, job->n);
        job->sizes = round_sizes(b, job->n);
        printf("BENCH %s.%s.request %zu bytes\n", b->prefix, job->name, job->sizes.ask);
        printf("BENCH %s.%s.answer %zu bytes\n", b->prefix, job->name, job->sizes.answer);
    }
    for (uint32_t done = 0; done < n; done += BLOCK) {
        for (int k = 0; k < N_KINDS; k++) {
            for (uint32_t i = done; i < n && i < done + BLOCK; i++) {
                if (k == KVD && job->step) fill_round(b, job->n, job->step);
                uint64_t from = now_ns();
                one(b, job, (enum kind)k);
                samples[k][i] = now_ns() - from;
            }
        }
    }
    report(b, job->name, samples, n);
    for (int k = 0; k < N_KINDS; k++) free(samples[k]);
    if (job->step) end_all(b);
}

/* In turns, so that one machine's mood meets both alike. */
static void measure_fairness(struct bench *b, const char *socket) {
    enum { QUIET, FLOODED, TURNS = 2 };
    uint32_t n = b->samples / TURNS;
    uint64_t *samples[2] = { calloc(b->samples, sizeof(uint64_t)), calloc(b->samples, sizeof(uint64_t)) };
    double p99[2];
    struct flood flood;
    if (!samples[0] || !samples[1]) bench_die("out of memory");
    begin_all(b);
    for (uint32_t turn = 0; turn < 2 * TURNS; turn++) {
        uint64_t *to = samples[turn % 2] + turn / 2 * n;
        if (turn % 2 == FLOODED) flood_start(&flood, socket);
        for (uint32_t i = 0; i < n; i++) {
            fill_round(b, 16, 1);
            uint64_t from = now_ns();
            round_of(b, 16);
            to[i] = now_ns() - from;
        }
        if (turn % 2 == FLOODED) flood_stop(&flood);
    }
    end_all(b);
    for (int k = QUIET; k <= FLOODED; k++) {
        qsort(samples[k], n * TURNS, sizeof **samples, by_value);
        p99[k] = quantile_us(samples[k], n * TURNS, 0.99);
        printf("BENCH %s.fair.%s.p50 %.1f us\n", b->prefix, k ? "flooded" : "quiet",
               quantile_us(samples[k], n * TURNS, 0.5));
        printf("BENCH %s.fair.%s.p99 %.1f us\n", b->prefix, k ? "flooded" : "quiet", p99[k]);
        free(samples[k]);
    }
    printf("BENCH %s.fair.flooded_over_quiet.p99 %.2f ratio\n", b->prefix, p99[FLOODED] / p99[QUIET]);
}

#define STEPS 2048u
#define REST 5u /* seconds */

static double kvd_cpu_us(const struct bench *b) {
    struct timespec spent = { 0 };
    clockid_t clock;
    if (clock_getcpuclockid(b->kvd, &clock) || clock_gettime(clock, &spent)) bench_die("kvd has no CPU clock");
    return (double)spent.tv_sec * 1e6 + (double)spent.tv_nsec * 1e-3;
}

/* Sequence i is 4 i tokens ahead of the first, so that their windows do not end together. */
static void begin_steps(struct bench *b, struct kvd_frontier *items) {
    begin_all(b);
    for (uint32_t i = 0; i < SEQUENCES; i++) b->items[i].pool[0] = round_pool(KVD_NONE, KVD_NONE, KVD_NONE, 1 + 4 * i);
    round_of(b, SEQUENCES);
    for (uint32_t i = 0; i < SEQUENCES; i++)
        items[i] = (struct kvd_frontier){ .sequence = b->sequence[i],
                                          .row = b->results[i].pool[0].row,
                                          .commit = { 4 * i },
                                          .mapped = { b->results[i].pool[0].membership * 64 } };
}

/* Decode by kvd_advance, a step a millisecond: what the client spends on a step, the Rounds that it had to send, and
 * the CPU time of kvd for it and for boards on which nothing happens. */
static void measure_steady(struct bench *b) {
    static struct kvd_frontier items[SEQUENCES];
    static uint64_t samples[STEPS];
    struct kvd_error error;
    kvd_store *store;
    uint32_t rounds = 0, due;
    must(kvd_attach(b->client, 0, NULL, &store, &error), &error, "attach");
    begin_steps(b, items);
    double idle = kvd_cpu_us(b);
    sleep(REST);
    double begun = kvd_cpu_us(b);
    for (uint32_t step = 0; step < STEPS; step++) {
        for (uint32_t i = 0; i < SEQUENCES; i++) items[i].ensure[0] = ++items[i].commit[0] + 1;
        uint64_t from = now_ns();
        must(kvd_advance(store, items, SEQUENCES, &due, &error), &error, "advance");
        samples[step] = now_ns() - from;
        for (uint32_t i = 0; i < SEQUENCES && due; i++)
            b->items[i].pool[0] = round_pool(items[i].commit[0], KVD_NONE, KVD_NONE, items[i].ensure[0]);
        if (due) round_of(b, SEQUENCES);
        rounds += due > 0;
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    double spent = kvd_cpu_us(b) - begun;
    end_all(b);
    kvd_detach(store);
    qsort(samples, STEPS, sizeof *samples, by_value);
    printf("BENCH %s.steady64.advance.p50 %.2f us\n", b->prefix, quantile_us(samples, STEPS, 0.5));
    printf("BENCH %s.steady64.advance.p99 %.2f us\n", b->prefix, quantile_us(samples, STEPS, 0.99));
    printf("BENCH %s.steady64.kvd.step %.2f us\n", b->prefix, spent / STEPS);
    printf("BENCH %s.steady64.kvd.idle %.2f us/s\n", b->prefix, (begun - idle) / REST);
    printf("BENCH %s.steady64.steps %u count\n", b->prefix, STEPS);
    printf("BENCH %s.steady64.rounds %u count\n", b->prefix, rounds);
    fflush(stdout);
}

static void measure_way(const char *kvd, uint32_t samples, bool ring) {
    struct bench b = { .samples = samples, .ring = ring, .prefix = ring ? "rpc" : "rpc.socket" };
    char path[128];
    struct job jobs[] = { { "round1", 1, 1, { 0, 0 } },        { "round16", 16, 1, { 0, 0 } },
                          { "round64", 64, 1, { 0, 0 } },      { "roundmap1", 1, 256, { 0, 0 } },
                          { "roundmap64", 64, 256, { 0, 0 } }, { "pair", 0, 0, { 110, 130 } },
                          { "find", 1, 0, { 360, 44 } } };
    snprintf(b.dir, sizeof b.dir, "/tmp/kvd-bench-XXXXXX");
    if (!mkdtemp(b.dir)) bench_die("cannot make a directory in /tmp");
    snprintf(path, sizeof path, "%s/raw", b.dir);
    b.raw_server = echo_raw_start(path);
    echo_raw_connect(&b.raw, path);
    snprintf(path, sizeof path, "%s/nng", b.dir);
    b.nng_server = echo_nng_start(path);
    start_kvd(&b, kvd);
    b.nng = echo_nng_connect(path);
    snprintf(path, sizeof path, "%s/kvd.sock", b.dir);
    struct kvd_connect_options o = {
        .struct_size = sizeof o, .socket = path, .role = KVD_ROLE_SCHEDULER, .name = "bench"
    };
    struct kvd_error error;
    must(kvd_connect(&o, &b.client, &error), &error, "connect");
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) measure(&b, &jobs[i]);
    measure_fairness(&b, path);
    if (ring) measure_steady(&b);
    clean_up(&b);
}

/* In a process of its own: the servers are forked, which nng allows before its first use alone. */
static int measure_apart(const char *kvd, uint32_t samples, bool ring) {
    int status = 1;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        measure_way(kvd, samples, ring);
        exit(0);
    }
    return child < 0 || waitpid(child, &status, 0) != child || status;
}

int main(int argc, char **argv) {
    uint32_t samples = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 4000;
    if (argc < 2) bench_die("usage: bench_rpc KVD [SAMPLES]");
    if (samples < 2 || samples > CONTEXT / 2) bench_die("SAMPLES is 2 to 32768");
    return measure_apart(argv[1], samples, true) | measure_apart(argv[1], samples, false);
}
