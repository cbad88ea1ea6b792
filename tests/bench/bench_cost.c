/* SPDX-License-Identifier: Apache-2.0
 *
 * What long requests cost, and what they cost others: a real kvd full of continuations, of which groups share a prefix.
 * One session sends Rounds without a pause, first alone, then beside loops of Choose, of Audit, of scrapes (/metrics)
 * and of the page for people (/ui/state.json); kvd makes either ten times a second at most.
 *
 *     bench_cost [CONTINUATIONS]
 *
 * BENCH cost.choose.p50 us: kvd_choose_victims for 2,000 tokens where nothing is free; choose_many: for 65,536 tokens.
 * policy.small, policy.large: kvd_policy_choose for 4 pages behind a shared prefix, and for 2,000 tokens, each followed
 * by the request that it was made for; a policy that knows all continuations.
 * cost.choose.messages: the most that one took. cost.round.*: Rounds of 8 sequences that commit a token each.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "http_client.h"
#include "kvd_policy.h"
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

static kvd_continuation write_and_keep(kvd_client *client, const struct kvd_activation *want, uint64_t seed,
                                       uint32_t pages) {
    struct kvd_round_result r;
    struct kvd_activated a = scene_activate(client, want);
    struct kvd_round_item item = scene_item(a.sequence);
    item.pool[0].commit = pages * 64;
    ROUND_ASK(&item);
    KVT_EQ(kvd_round(client, &item, 1, &r, NULL), KVD_OK);
    scene_name(client, a.sequence, seed, pages * 64);
    return scene_retain(client, a.sequence, seed, pages * 64);
}

static kvd_continuation keep_one(kvd_client *client, kvd_continuation from, uint64_t seed, uint32_t pages) {
    struct kvd_activation want = scene_want(kvd_client_session(client), pages * 64 - 1, 1);
    want.from = from;
    want.keep = true;
    want.frontier = from.bits ? SHARED * 64 : 0;
    return write_and_keep(client, &want, seed, pages);
}

/* ---- a policy that knows them all ------------------------------------------------------------------------ */

#define LATER UINT64_C(180000000) /* ns from one request to the next: 20,000 come in an hour */

static kvd_policy *policy;
static uint64_t policy_now;

static uint64_t policy_note(uint64_t seed, uint32_t pages) {
    kvd_chain *chain = e2e_chain(seed, pages * 64);
    uint64_t use = kvd_policy_prompt(policy, chain, pages * 64, policy_now += LATER);
    kvd_chain_free(chain);
    return use;
}

/* Some come back, after pauses of all lengths. */
static void policy_learn(kvd_continuation kept, uint64_t seed, uint32_t pages) {
    static uint64_t random = 3;
    uint64_t use = policy_note(seed, pages);
    if (kvt_below(&random, 4) == 0) {
        policy_now += LATER * kvt_below(&random, 100);
        use = policy_note(seed, pages);
    }
    kvd_policy_kept(policy, use, kept, pages * 64);
}

static void fill(kvd_client *client) {
    for (uint32_t i = 0; i < wanted; i++) {
        uint32_t g = i % GROUPS, pages = i < GROUPS ? SHARED : SHARED + OWN;
        uint64_t seed = e2e_stream(g + 1, SHARED * 64, (uint16_t)(i < GROUPS ? 0 : 1 + i / GROUPS));
        kvd_continuation kept = keep_one(client, i < GROUPS ? (kvd_continuation){ 0 } : group[g], seed, pages);
        if (i < GROUPS) group[i] = kept; /* the engine's own, which no policy gives up */
        else policy_learn(kept, seed, pages);
    }
}

static uint32_t most_victims;

/* A request as an engine serves it: returns the seconds that its choice took. */
static double serve_with_policy(kvd_client *client, kvd_continuation from, uint64_t seed, uint32_t pages) {
    static struct kvd_victim room[KVD_MAX_VICTIMS];
    struct kvd_activation want = scene_want(kvd_client_session(client), pages * 64 - 1, 1);
    struct kvd_error error = { .message = "" };
    want.from = from;
    want.keep = true;
    want.frontier = from.bits ? SHARED * 64 : 0;
    uint64_t use = policy_note(seed, pages);
    double begin = e2e_now();
    enum kvd_status status = kvd_policy_choose(policy, client, &want, room, KVD_MAX_VICTIMS, policy_now, &error);
    double took = e2e_now() - begin;
    if (!KVT_EQ(status, KVD_OK)) puts(error.message);
    if (want.n_victims > most_victims) most_victims = want.n_victims;
    kvd_policy_kept(policy, use, write_and_keep(client, &want, seed, pages), pages * 64);
    return took;
}

static void measure_policy(kvd_client *client, const char *name, bool shares, uint32_t pages, uint32_t n) {
    double *took = calloc(n, sizeof *took);
    uint64_t before = scene_stats(client).requests;
    static uint16_t branch = 20000;
    for (uint32_t i = 0; took && i < n; i++) {
        uint32_t g = i % GROUPS;
        kvd_continuation none = { 0 };
        took[i] = serve_with_policy(client, shares ? group[g] : none,
                                    e2e_stream(g + 1, shares ? SHARED * 64 : 0, ++branch), pages);
    }
    double messages = (double)(scene_stats(client).requests - before - 1) / n - 4;
    if (took) report(name, took, n);
    printf("BENCH cost.%s.messages %.2f messages\n", name, messages);
    printf("BENCH cost.%s.victims %u victims\n", name, most_victims);
    printf("BENCH cost.%s.continuations %u continuations\n", name, scene_stats(client).continuations);
    free(took);
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
    kvd_client *engine = e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "policy"); /* by a ring, as engines have it */
    KVT_NEED(client && worker && engine);
    KVT_NEED(kvd_policy_new(NULL, &policy) == KVD_OK);
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
    measure_policy(engine, "policy.small", true, SHARED + OWN, 4000);
    measure_policy(engine, "policy.large", false, 2000 / 64 + 1, 400);
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
    kvd_policy_free(policy);
    kvd_disconnect(engine);
    kvd_disconnect(worker);
    kvd_disconnect(client);
    e2e_daemon_free(&daemon_);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(run), { 0 } };
    if (argc > 1) wanted = (uint32_t)strtoul(argv[1], NULL, 0);
    return kvt_main("bench cost", cases, 1, argv);
}
