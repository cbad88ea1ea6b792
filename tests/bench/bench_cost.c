/* SPDX-License-Identifier: Apache-2.0
 *
 * What long requests cost, and what they cost others: a real kvd full of continuations, of which groups share a prefix.
 * One session sends Rounds without a pause, first alone, then beside loops of Choose, of Audit, of scrapes (/metrics)
 * and of the page for people (/ui/state.json); kvd makes either ten times a second at most.
 *
 *     bench_cost [CONTINUATIONS]
 *
 * BENCH cost.choose.p50 us: kvd_choose_victims for 2,000 tokens where nothing is free; choose_many: for 65,536 tokens.
 * cost.choose.messages: the most that one took. cost.round.*: Rounds of 8 sequences that commit a token each.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "http_client.h"
#include "scene.h"

#define SHARED 8u /* pages that a group shares */
#define OWN 4u
#define GROUPS 200u
#define SEQUENCES 8u
#define CONTEXT 65536u
#define SAMPLES 20000u

static struct e2e_daemon daemon_;
static uint32_t wanted = 20000;
static kvd_continuation group[GROUPS];

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void report(const char *name, double *samples, uint32_t n) {
    qsort(samples, n, sizeof *samples, by_value);
    printf("BENCH cost.%s.p50 %.1f us\n", name, samples[n / 2] * 1e6);
    printf("BENCH cost.%s.p99 %.1f us\n", name, samples[(uint64_t)n * 99 / 100] * 1e6);
    printf("BENCH cost.%s.max %.1f us\n", name, samples[n - 1] * 1e6);
}

/* ---- the store is full ------------------------------------------------------------------------------ */

static kvd_continuation keep_one(kvd_client *client, kvd_continuation from, uint64_t seed, uint32_t pages) {
    struct kvd_activation want = scene_want(kvd_client_session(client), pages * 64 - 1, 1);
    struct kvd_round_result r;
    want.from = from;
    want.keep = true;
    want.frontier = from.bits ? SHARED * 64 : 0;
    struct kvd_activated a = scene_activate(client, &want);
    struct kvd_round_item item = scene_item(a.sequence);
    item.pool[0].commit = pages * 64;
    ROUND_ASK(&item);
    KVT_EQ(kvd_round(client, &item, 1, &r, NULL), KVD_OK);
    scene_name(client, a.sequence, seed, pages * 64);
    return scene_retain(client, a.sequence, seed, pages * 64);
}

static void fill(kvd_client *client) {
    for (uint32_t i = 0; i < wanted; i++) {
        uint32_t g = i % GROUPS;
        uint64_t prefix = e2e_stream(g + 1, SHARED * 64, 0);
        if (i < GROUPS) group[i] = keep_one(client, (kvd_continuation){ 0 }, prefix, SHARED);
        else keep_one(client, group[g], e2e_stream(g + 1, SHARED * 64, (uint16_t)(1 + i / GROUPS)), SHARED + OWN);
    }
}

/* ---- Rounds in a session of their own ----------------------------------------------------------------- */

static atomic_bool measuring, ending;
static double rounds[SAMPLES];
static atomic_uint n_rounds;

static struct kvd_round_item items[SEQUENCES];

/* They take what the continuations leave. */
static void start_sequences(kvd_client *client) {
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        struct kvd_activation want = scene_want(kvd_client_session(client), 64, CONTEXT - 64);
        want.ensure[0] = CONTEXT;
        items[i] = scene_item(scene_activate(client, &want).sequence);
    }
}

static void *send_rounds(void *argument) {
    kvd_client *client = argument;
    struct kvd_round_result results[SEQUENCES];
    uint32_t frontier = 0;
    while (!ending) {
        frontier = frontier < CONTEXT ? frontier + 1 : CONTEXT;
        for (uint32_t i = 0; i < SEQUENCES; i++) {
            items[i].pool[0].commit = frontier;
            ROUND_ASK(&items[i]);
        }
        double begin = e2e_now();
        if (kvd_round(client, items, SEQUENCES, results, NULL) || results[0].status) break;
        double took = e2e_now() - begin;
        if (measuring && n_rounds < SAMPLES) rounds[n_rounds++] = took;
    }
    return NULL;
}

/* ---- loops ---------------------------------------------------------------------------------------------- */

static void rest(kvd_client *client) {
    (void)client;
    sched_yield();
}

static uint32_t choices, most_messages;
static double chosen[SAMPLES];
static uint32_t prompt = 2000;

static void choose(kvd_client *client) {
    static struct kvd_victim room[KVD_MAX_VICTIMS];
    struct kvd_activation want = scene_want(kvd_client_session(client), prompt - 1, 1);
    struct kvd_error error;
    double begin = e2e_now();
    if (!KVT_EQ(kvd_choose_victims(client, &want, room, KVD_MAX_VICTIMS, &error), KVD_OK)) puts(error.message);
    if (choices < SAMPLES) chosen[choices++] = e2e_now() - begin;
    KVT_TRUE(want.n_victims > 0);
}

static void audit(kvd_client *client) {
    double begin = e2e_now();
    scene_audit(client);
    if (choices < SAMPLES) chosen[choices++] = e2e_now() - begin;
}

static char monitor[64]; /* socket of HTTP */

static void get(const char *target) {
    struct http_answer answer;
    double begin = e2e_now();
    if (KVT_TRUE(http_ask(monitor, "GET", target, &answer) && answer.status == 200) && choices < SAMPLES)
        chosen[choices++] = e2e_now() - begin;
    http_done(&answer);
}

static void scrape(kvd_client *client) {
    (void)client;
    get("/metrics");
}

static void look_at_page(kvd_client *client) {
    (void)client;
    get("/ui/state.json");
}

/* Rounds beside a loop of something: as many as there is room for, or those of ten seconds. */
static void beside(kvd_client *client, const char *name, void (*act)(kvd_client *)) {
    double end = e2e_now() + 10;
    choices = 0;
    n_rounds = 0;
    measuring = true;
    while (n_rounds < SAMPLES && e2e_now() < end) act(client);
    measuring = false;
    report(name, rounds, n_rounds);
}

static void count_messages(kvd_client *client) {
    uint64_t before = scene_stats(client).requests;
    choices = 0;
    choose(client);
    most_messages = (uint32_t)(scene_stats(client).requests - before - 1);
    printf("BENCH cost.choose.messages %u messages\n", most_messages);
}

static void run(void) {
    char more[256];
    uint32_t pages = wanted * OWN + GROUPS * (SHARED - OWN) + SEQUENCES * CONTEXT / 64;
    snprintf(monitor, sizeof monitor, "/tmp/kvd-bench-cost-%d.sock", (int)getpid());
    snprintf(more, sizeof more, "[limits]\ncontinuations = %u\n[host]\narena = 16MiB\n[http]\nlisten = unix:%s\n",
             wanted + 256, monitor);
    struct e2e_setup setup = { .layers = 1,
                               .kv_heads = 1,
                               .head_dim = 16,
                               .max_context = CONTEXT,
                               .max_concurrency = 16,
                               .capacity_tokens = pages * 64,
                               .more = more };
    pthread_t thread;
    if (!e2e_daemon_start(&daemon_, &setup)) return;
    kvd_client *client = e2e_connect(&daemon_, KVD_ROLE_ADMIN, "loops");
    kvd_client *worker = e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "rounds");
    KVT_NEED(client && worker);
    fill(client);
    KVT_NEED(scene_stats(client).continuations >= wanted - wanted / 100);
    start_sequences(worker);
    puts("");
    count_messages(client);
    for (uint32_t i = choices = 0; i < 2000; i++) choose(client);
    report("choose", chosen, choices);
    prompt = CONTEXT;
    for (uint32_t i = choices = 0; i < 200; i++) choose(client);
    report("choose_many", chosen, choices);
    prompt = 2000;
    for (uint32_t i = choices = 0; i < 20; i++) audit(client);
    report("audit", chosen, choices);
    KVT_NEED(pthread_create(&thread, NULL, send_rounds, worker) == 0);
    beside(client, "round.alone", rest);
    beside(client, "round.beside_choose", choose);
    prompt = CONTEXT;
    beside(client, "round.beside_choose_many", choose);
    beside(client, "round.beside_audit", audit);
    beside(client, "round.beside_scrape", scrape);
    report("scrape", chosen, choices);
    beside(client, "round.beside_page", look_at_page);
    report("page", chosen, choices);
    ending = true;
    pthread_join(thread, NULL);
    kvd_disconnect(worker);
    kvd_disconnect(client);
    e2e_daemon_free(&daemon_);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(run), { 0 } };
    if (argc > 1) wanted = (uint32_t)strtoul(argv[1], NULL, 0);
    return kvt_main("bench cost", cases, 1, argv);
}
