/* SPDX-License-Identifier: Apache-2.0
 *
 * What a request costs where many ask: 1 to 64 clients on their rings, each a process with a sequence of its own,
 * against one kvd. Each client sends Rounds that commit a token: with a rest of 2 ms after each, as an engine computes
 * between two, or without any. A crowd's first Rounds are not counted: not all are there yet.
 *
 *     bench_crowd [ROUNDS]
 *
 * BENCH crowd.resting.8.p50 us: of all Rounds of the eight. crowd.resting.8.over_one.p99 ratio. crowd.busy.8.rate:
 * Rounds a second of all together.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "scene.h"

#define MOST_CLIENTS 64u
#define MOST_ROUNDS 20000u
#define REST_NS 2000000
#define CONTEXT 65536u

static struct e2e_daemon daemon_;
static uint32_t wanted = 2000;
static double *took; /* [MOST_CLIENTS][MOST_ROUNDS], of all processes: seconds */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static bool send_round(kvd_client *client, kvd_sequence sequence, uint32_t frontier) {
    struct kvd_round_item item = scene_item(sequence);
    struct kvd_round_result result;
    item.pool[0].commit = frontier;
    ROUND_ASK(&item);
    return kvd_round(client, &item, 1, &result, NULL) == KVD_OK && result.status == KVD_OK;
}

/* In a process of its own. ready: it tells that it is there; go: it is told that all are. */
static int run_client(uint32_t which, bool rests, uint32_t rounds, int ready, int go) {
    const struct timespec rest = { 0, REST_NS };
    char byte = 0;
    kvd_client *client = e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "crowd");
    if (!client) return 1;
    struct kvd_activation want = scene_want(kvd_client_session(client), 64, CONTEXT - 64);
    want.ensure[0] = 2 * wanted;
    struct kvd_activated a = scene_activate(client, &want);
    if (write(ready, &byte, 1) != 1 || read(go, &byte, 1) != 0) return 1; /* closed: go */
    for (uint32_t i = 0; i < rounds + rounds / 10; i++) {
        double begin = e2e_now();
        if (!send_round(client, a.sequence, i + 1)) return 1;
        if (i >= rounds / 10) took[which * MOST_ROUNDS + i - rounds / 10] = e2e_now() - begin;
        if (rests) nanosleep(&rest, NULL);
    }
    kvd_disconnect(client);
    return 0;
}

static pid_t start_client(bool rests, uint32_t which, uint32_t rounds, const int *ready, const int *go) {
    pid_t pid = fork();
    if (pid) return pid;
    close(ready[0]);
    close(go[1]);
    _exit(run_client(which, rests, rounds, ready[1], go[0]));
}

/* Returns the seconds from the first Round to the end of the last client. */
static double run_crowd(bool rests, uint32_t clients, uint32_t rounds) {
    pid_t pids[MOST_CLIENTS];
    int ready[2], go[2], status;
    char byte;
    if (!KVT_TRUE(pipe2(ready, O_CLOEXEC) == 0 && pipe2(go, O_CLOEXEC) == 0)) return 0;
    fflush(NULL);
    for (uint32_t i = 0; i < clients; i++) pids[i] = start_client(rests, i, rounds, ready, go);
    close(ready[1]);
    for (uint32_t i = 0; i < clients; i++) KVT_TRUE(read(ready[0], &byte, 1) == 1);
    double begin = e2e_now();
    close(go[0]);
    close(go[1]);
    for (uint32_t i = 0; i < clients; i++) KVT_TRUE(waitpid(pids[i], &status, 0) == pids[i] && status == 0);
    close(ready[0]);
    return e2e_now() - begin;
}

static void measure_crowd(bool rests, uint32_t clients, double *one_p99) {
    uint32_t rounds = wanted / (clients > 8 ? clients / 8 : 1), n = 0;
    double seconds = run_crowd(rests, clients, rounds);
    double *all = calloc((size_t)clients * rounds, sizeof *all);
    const char *name = rests ? "resting" : "busy";
    if (!KVT_TRUE(all != NULL)) return;
    for (uint32_t i = 0; i < clients; i++)
        for (uint32_t k = 0; k < rounds; k++) all[n++] = took[i * MOST_ROUNDS + k] * 1e6;
    qsort(all, n, sizeof *all, by_value);
    double p99 = all[n - 1 - n / 100];
    if (clients == 1) *one_p99 = p99;
    printf("BENCH crowd.%s.%u.p50 %.1f us\n", name, clients, all[n / 2]);
    printf("BENCH crowd.%s.%u.p99 %.1f us\n", name, clients, p99);
    printf("BENCH crowd.%s.%u.over_one.p99 %.2f ratio\n", name, clients, p99 / *one_p99);
    printf("BENCH crowd.%s.%u.rate %.0f rounds/s\n", name, clients, n * 1.1 / seconds);
    fflush(stdout);
    free(all);
}

static void measure_crowds(void) {
    struct e2e_setup setup = { .layers = 1,
                               .kv_heads = 1,
                               .head_dim = 16,
                               .max_context = CONTEXT,
                               .max_concurrency = MOST_CLIENTS + 1,
                               .capacity_tokens = CONTEXT * (MOST_CLIENTS + 1) };
    double one_p99 = 0;
    size_t bytes = sizeof *took * MOST_CLIENTS * MOST_ROUNDS;
    took = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    KVT_NEED(took != MAP_FAILED);
    KVT_NEED(e2e_daemon_start(&daemon_, &setup));
    puts("");
    for (int rests = 1; rests >= 0; rests--)
        for (uint32_t clients = 1; clients <= MOST_CLIENTS; clients *= 2) measure_crowd(rests, clients, &one_p99);
    e2e_daemon_free(&daemon_);
    munmap(took, bytes);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(measure_crowds), { 0 } };
    if (argc > 1) wanted = (uint32_t)strtoul(argv[1], NULL, 0);
    if (wanted < 100 || wanted > MOST_ROUNDS) wanted = MOST_ROUNDS;
    return kvt_main("bench crowd", cases, 1, argv);
}
