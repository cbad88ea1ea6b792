/* SPDX-License-Identifier: Apache-2.0
 * Two hosts (a kvd, a socket and an arena each) on one real redis-server, or one real cluster: the second serves byte
 * for byte what the first computed, and both go on whatever becomes of the engine. COLD-2, COLD-3, COLD-5, COLD-6. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gate.h"
#include "redis_cluster.h"
#include "scene.h"

struct host {
    struct e2e_daemon daemon;
    kvd_client *scheduler;
    struct puppet worker;
    kvd_session_id worker_session;
};
static struct host a, b;
static struct redis server;
static struct redis_cluster cluster;
static struct gate gate; /* before it, for b */

static bool connect_host(struct host *h) {
    h->scheduler = e2e_connect(&h->daemon, KVD_ROLE_ADMIN, "scheduler");
    if (!h->scheduler || !puppet_start(&h->worker)) return false;
    kvd_client_set_timeout(h->scheduler, 60000 * E2E_SLOW);
    h->worker_session = puppet_connect(&h->worker, &h->daemon, KVD_ROLE_WORKER, 0);
    return puppet_attach(&h->worker, 0);
}

static void disconnect_host(struct host *h) {
    puppet_kill(&h->worker);
    kvd_disconnect(h->scheduler);
    h->scheduler = NULL;
}

static bool open_host(struct host *h, struct e2e_setup setup, const char *address, const char *lines) {
    char more[512];
    snprintf(more, sizeof more, "[host]\narena = 64MiB\nscrub = 0\n[cold]\naddress = %s\n%s", address, lines);
    setup.more = more;
    return e2e_daemon_start(&h->daemon, &setup) && connect_host(h);
}

static bool open_host_at(struct host *h, struct e2e_setup setup, const char *socket, const char *lines) {
    char address[128];
    snprintf(address, sizeof address, "unix:%s", socket);
    return open_host(h, setup, address, lines);
}

static bool open_hosts_with(struct e2e_setup setup, const char *lines) {
    server = (struct redis){ 0 };
    return redis_start(&server) && open_host_at(&a, setup, server.socket, lines) &&
           open_host_at(&b, setup, server.socket, lines);
}

/* What an engine that runs takes in time, however slowly: what it did not take would never be there. */
#define PATIENT "timeout = 60s\nfind_time = 60s\n"
#define HANGS "timeout = 10s\nfind_time = 2s\n" /* where one that does not run is asked, too */

static bool open_hosts(struct e2e_setup setup) { return open_hosts_with(setup, PATIENT); }

static void close_hosts(void) {
    disconnect_host(&a);
    disconnect_host(&b);
    e2e_daemon_free(&a.daemon);
    e2e_daemon_free(&b.daemon);
    gate_close(&gate);
    redis_free(&server);
    redis_cluster_free(&cluster);
}

/* ---- steps ---- */

/* It is computed, kept and demoted there. */
static void compute(struct host *h, uint64_t seed, uint32_t n) {
    struct kvd_activated made = scene_run(h->scheduler, &h->worker, h->worker_session, seed, n, 16);
    kvd_continuation c = scene_retain(h->scheduler, made.sequence, seed, n);
    struct kvd_moved moved;
    KVT_EQ(kvd_demote(h->scheduler, c, false, &moved, NULL), KVD_OK);
}

/* A question about the first n tokens of a stream. */
struct question {
    const struct host *host;
    uint64_t seed;
    uint32_t n, frontier; /* frontier: of the answer */
    uint32_t first;       /* page */
    kvd_continuation continuation;
    bool load, prefetch;
};

static enum kvd_status ask_kvd(struct question *q, struct kvd_error *error) {
    uint32_t *tokens = malloc(q->n * sizeof *tokens);
    kvd_chain *chain = e2e_chain(q->seed, q->n);
    struct kvd_cold_found found = { 0 };
    e2e_tokens(q->seed, q->n, tokens);
    struct kvd_cold_prompt prompt = { .chain = chain, .prompt = tokens, .until = q->n, .first = q->first };
    enum kvd_status status = q->prefetch ? kvd_prefetch_cold(q->host->scheduler, &prompt, &found, error)
                             : q->load   ? kvd_load_cold(q->host->scheduler, &prompt, &found, error)
                                         : kvd_find_cold(q->host->scheduler, &prompt, &found, error);
    q->frontier = found.frontier;
    q->continuation = found.continuation;
    kvd_chain_free(chain);
    free(tokens);
    return status;
}

static bool ask(struct question *q) {
    struct kvd_error error = { 0 };
    bool answered = KVT_EQ(ask_kvd(q, &error), KVD_OK);
    if (!answered) printf("    %s\n", error.message);
    return answered;
}

static bool has_all(void *question) {
    struct question *q = question;
    return !ask(q) || q->frontier == q->n;
}

/* Looks until it is there, and only then loads: what came of a part would stay in the arena. */
static bool await_all(struct host *h, uint64_t seed, uint32_t n, bool load) {
    struct question q = { .host = h, .seed = seed, .n = n };
    bool found = KVT_TRUE(e2e_until(has_all, &q, 60, NULL));
    q.load = load;
    return found && (!load || KVT_TRUE(e2e_until(has_all, &q, 60, NULL))) && KVT_EQ(q.frontier, n) &&
           KVT_EQ(q.continuation.bits != 0, load);
}

/* It is found by its tokens, activated, and every byte is as it was written on the other host. */
static void reproduce(struct host *h, uint64_t seed, uint32_t n) {
    struct kvd_hit hit = scene_find(h->scheduler, seed, n + 1);
    if (!KVT_EQ(hit.usable, n)) return;
    struct kvd_activation want = scene_want(h->worker_session, n + 1, 16);
    want.from = hit.continuation;
    want.frontier = n;
    want.keep = true;
    struct kvd_activated made = scene_activate(h->scheduler, &want);
    KVT_EQ(made.restored[0], hit.restore_pages);
    scene_check(&h->worker, made.pool[0].row, seed, 0, n);
    struct kvd_finish how = { .sequence = made.sequence };
    struct kvd_finished finished;
    KVT_EQ(kvd_finish(h->scheduler, &how, &finished, NULL), KVD_OK);
}

/* kvd_activate alone, which loads first. Returns the tokens that it started with, byte for byte right. */
static uint32_t activate_cold(struct host *h, uint64_t seed, uint32_t n) {
    uint32_t *tokens = malloc((n + 1) * sizeof *tokens);
    kvd_chain *chain = e2e_chain(seed, n + 1);
    struct kvd_activation want = scene_want(h->worker_session, n + 1, 16);
    struct kvd_hit hit = scene_find(h->scheduler, seed, n + 1);
    e2e_tokens(seed, n + 1, tokens);
    want.from = hit.continuation;
    want.frontier = hit.usable;
    want.keep = true;
    KVT_EQ(kvd_set_cold(&want, chain, tokens, NULL), KVD_OK);
    struct kvd_activated made = scene_activate(h->scheduler, &want);
    scene_check(&h->worker, made.pool[0].row, seed, 0, made.pool[0].committed);
    struct kvd_finish how = { .sequence = made.sequence };
    struct kvd_finished finished;
    KVT_EQ(kvd_finish(h->scheduler, &how, &finished, NULL), KVD_OK);
    kvd_chain_free(chain);
    free(tokens);
    return made.pool[0].committed;
}

/* An engine that answers late, as on a busy machine, shortens it. */
static bool starts_from_all(void *question) {
    const struct question *q = question;
    return activate_cold((struct host *)q->host, q->seed, q->n) == q->n;
}

static bool await_start(struct host *h, uint64_t seed, uint32_t n) {
    struct question q = { .host = h, .seed = seed, .n = n };
    if (!await_all(h, seed, n, false)) return false;
    bool all = e2e_until(starts_from_all, &q, 60, NULL);
    if (!all) printf("    %s: it starts from %u of %u tokens\n", h->daemon.log, activate_cold(h, seed, n), n);
    return KVT_TRUE(all);
}

/* ---- scenes ---- */

/* COLD-6: one call brings it to the device. */
static void check_prefetch(uint64_t seed, uint32_t n) {
    struct question q = { .host = &b, .seed = seed, .n = n, .prefetch = true };
    compute(&a, seed, n);
    if (!await_all(&b, seed, n, false) || !KVT_TRUE(e2e_until(has_all, &q, 60 * E2E_SLOW, NULL))) return;
    KVT_EQ(scene_find(b.scheduler, seed, n + 1).restore_pages, 0);
    reproduce(&b, seed, n);
}

/* COLD-6, COLD-2: one call of a scheduler starts from what another host computed, from a part of it behind what is
 * here, and from what is here where the engine hangs or has gone. */
static void cold_6_an_activation_loads_first(void) {
    if (!KVT_TRUE(open_hosts_with((struct e2e_setup){ 0 }, HANGS))) return;
    uint64_t text = e2e_stream(40, 5000, 0); /* whole pages: it does not ask again for a tail that came late */
    compute(&a, text, 320);
    KVT_TRUE(await_start(&b, text, 320));
    compute(&a, text, 896);
    KVT_TRUE(await_start(&b, text, 896));
    check_prefetch(e2e_stream(42, 5000, 0), 500);
    redis_stop(&server);
    KVT_EQ(activate_cold(&b, text, 950), 896);
    kill(server.pid, SIGCONT);
    redis_kill(&server);
    KVT_EQ(activate_cold(&b, text, 950), 896);
    KVT_EQ(activate_cold(&b, e2e_stream(41, 5000, 0), 200), 0);
    KVT_EQ(activate_cold(&a, text, 950), 896);
    scene_audit(a.scheduler);
    scene_audit(b.scheduler);
    close_hosts();
}

/* COLD-6: token for token and byte for byte, tails too, and in both directions. */
static void cold_6_two_hosts(void) {
    if (!KVT_TRUE(open_hosts((struct e2e_setup){ 0 }))) return;
    uint64_t first = e2e_stream(1, 5000, 0), second = e2e_stream(2, 5000, 0);
    compute(&a, first, 700);
    compute(&b, second, 300);
    if (await_all(&b, first, 700, false) && await_all(&b, first, 700, true)) reproduce(&b, first, 700);
    if (await_all(&a, second, 300, true)) reproduce(&a, second, 300);
    struct question none = { .host = &b, .seed = e2e_stream(3, 5000, 0), .n = 200 };
    KVT_TRUE(ask(&none));
    KVT_EQ(none.frontier, 0);
    struct question tail = { .host = &a, .seed = first, .n = 700, .first = 10 };
    KVT_TRUE(ask(&tail));
    KVT_EQ(tail.frontier, 700);
    scene_audit(a.scheduler);
    scene_audit(b.scheduler);
    close_hosts();
}

static bool has_turn(void *question) {
    struct question *q = question;
    return !ask(q) || q->frontier == 700;
}

/* COLD-6: the next turn of a conversation starts where the one before it ended, within a page. */
static void cold_6_the_next_turn(void) {
    if (!KVT_TRUE(open_hosts((struct e2e_setup){ 0 }))) return;
    uint64_t text = e2e_stream(50, 5000, 0);
    struct question q = { .host = &b, .seed = text, .n = 1000 };
    compute(&a, text, 700);
    KVT_TRUE(e2e_until(has_turn, &q, 60 * E2E_SLOW, NULL));
    q.load = true;
    KVT_TRUE(e2e_until(has_turn, &q, 60 * E2E_SLOW, NULL));
    KVT_EQ(q.frontier, 700);
    KVT_EQ(scene_stats(b.scheduler).continuations, 1);
    reproduce(&b, text, 700);
    scene_audit(b.scheduler);
    close_hosts();
}

/* A prompt of more pages than a message names comes in parts, of which one continuation is left. */
static void cold_6_in_parts(void) {
    struct e2e_setup tiny = { .layers = 1, .kv_heads = 1, .head_dim = 16, .max_context = 70656 };
    tiny.capacity_tokens = 2 * tiny.max_context;
    tiny.max_concurrency = 2;
    if (!KVT_TRUE(open_hosts(tiny))) return;
    uint64_t text = e2e_stream(4, 100000, 0);
    uint32_t n = 1100 * 64 + 36;
    compute(&a, text, n);
    if (await_all(&b, text, n, false) && await_all(&b, text, n, true)) reproduce(&b, text, n);
    struct kvd_stats stats = scene_stats(b.scheduler);
    KVT_EQ(stats.host_pages[0], 1101);
    KVT_EQ(stats.continuations, 1);
    scene_audit(b.scheduler);
    close_hosts();
}

/* Both work as ever, and learn nothing from the engine. */
static void go_on_without(uint64_t seed) {
    struct question q = { .host = &b, .seed = e2e_stream(5, 5000, 0), .n = 400, .load = true };
    for (struct host *h = &a; h; h = h == &a ? &b : NULL) {
        compute(h, seed, 200);
        reproduce(h, seed, 200);
    }
    KVT_TRUE(ask(&q)); /* it answers, whatever it is */
    q.load = false;
    KVT_TRUE(ask(&q));
    scene_audit(a.scheduler);
    scene_audit(b.scheduler);
}

/* COLD-5: the engine hangs, is flushed, is killed, and comes back. */
static void cold_5_whatever_becomes_of_the_engine(void) {
    if (!KVT_TRUE(open_hosts_with((struct e2e_setup){ 0 }, HANGS))) return;
    uint64_t text = e2e_stream(5, 5000, 0);
    compute(&a, text, 400);
    KVT_TRUE(await_all(&b, text, 400, false));
    redis_stop(&server);
    go_on_without(e2e_stream(6, 5000, 0));
    kill(server.pid, SIGCONT);
    redis_must(redis_ask(&server, "FLUSHALL"));
    go_on_without(e2e_stream(7, 5000, 0));
    redis_kill(&server);
    go_on_without(e2e_stream(8, 5000, 0));
    if (!KVT_TRUE(redis_start(&server))) return;
    compute(&a, e2e_stream(9, 5000, 0), 500);
    if (await_all(&b, e2e_stream(9, 5000, 0), 500, true)) reproduce(&b, e2e_stream(9, 5000, 0), 500);
    close_hosts();
}

/* A client of its own, which did not use the library before; it loads 3,000 tokens of a text on b. */
static pid_t start_loader(uint32_t text) {
    char number[16];
    snprintf(number, sizeof number, "%u", text);
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "test_e2e_cold", "--load", b.daemon.socket, number, (char *)NULL);
        _exit(127);
    }
    KVT_TRUE(child > 0);
    return child;
}

static void kill_loader(pid_t child) {
    int status;
    kill(child, SIGKILL);
    KVT_EQ_I(waitpid(child, &status, 0), child);
}

static uint64_t loaded_text(uint32_t text) { return e2e_stream(10 + text, 5000, 0); }

/* COLD-3: kvd is killed while a load is under way: nothing of it is in the arena afterwards. */
static void cold_3_killed_in_a_load(void) {
    if (!KVT_TRUE(open_hosts((struct e2e_setup){ 0 }))) return;
    uint64_t text = loaded_text(0);
    compute(&a, text, 3000);
    compute(&b, e2e_stream(30, 5000, 0), 100);
    KVT_TRUE(await_all(&b, text, 3000, false));
    for (int i = 0; i < 3; i++) {
        if (i) redis_stop(&server); /* once wherever it is, then before the first answer */
        pid_t child = start_loader(0);
        struct kvd_stats stats = scene_stats(b.scheduler);
        disconnect_host(&b);
        KVT_EQ_I(e2e_daemon_stop(&b.daemon, SIGKILL), -SIGKILL);
        kill(server.pid, SIGCONT);
        kill_loader(child);
        if (!KVT_TRUE(e2e_daemon_restart(&b.daemon) && connect_host(&b))) return;
        scene_audit(b.scheduler);
        struct kvd_stats after = scene_stats(b.scheduler);
        if (i) KVT_EQ(after.host_pages[0], stats.host_pages[0]); /* nothing can have come */
        else KVT_TRUE(after.host_pages[0] <= 2 + 47);
    }
    if (await_all(&b, text, 3000, true)) reproduce(&b, text, 3000);
    close_hosts();
}

static bool open_hosts_with_gate(void) {
    struct e2e_setup setup = { 0 };
    server = (struct redis){ 0 };
    return redis_start(&server) && gate_open(&gate, &server) && open_host_at(&a, setup, server.socket, PATIENT) &&
           open_host_at(&b, setup, gate.socket, PATIENT "buffer = 256KiB\nwrite = off\n");
}

/* A load of which so many values have passed. It has places in the arena and is not committed. */
static pid_t begin_load(uint32_t text, uint32_t gets, const struct kvd_stats *before) {
    KVT_TRUE(await_all(&b, loaded_text(text), 3000, false));
    gate_shut_after(&gate, gets);
    pid_t child = start_loader(text);
    KVT_TRUE(e2e_until(gate_holds, &gate, 60, NULL));
    struct kvd_stats now = scene_stats(b.scheduler);
    KVT_TRUE(now.host_occupied >= before->host_occupied + UINT64_C(47) * 65536);
    KVT_EQ(now.sessions, before->sessions + 1);
    return child;
}

static void check_nothing_came(const struct kvd_stats *before) {
    struct kvd_stats now = scene_stats(b.scheduler);
    scene_audit(b.scheduler);
    KVT_EQ(now.host_occupied, before->host_occupied);
    KVT_EQ(now.host_pages[0], before->host_pages[0]);
    KVT_EQ(now.continuations, before->continuations);
    KVT_EQ(now.recovered_damaged, 0);
}

static void load_again(uint32_t text) {
    if (await_all(&b, loaded_text(text), 3000, true)) reproduce(&b, loaded_text(text), 3000);
    scene_audit(b.scheduler);
}

/* COLD-3: kvd is killed between what the lookup found and the first value, and between values: the next one has
 * nothing of it, and the same load works. */
static void cold_3_killed_before_a_value(void) {
    if (!KVT_TRUE(open_hosts_with_gate())) return;
    compute(&b, e2e_stream(30, 5000, 0), 100);
    for (uint32_t text = 0; text < 2; text++) {
        compute(&a, loaded_text(text), 3000);
        struct kvd_stats before = scene_stats(b.scheduler);
        pid_t child = begin_load(text, text * 40, &before);
        disconnect_host(&b);
        KVT_EQ_I(e2e_daemon_stop(&b.daemon, SIGKILL), -SIGKILL);
        kill_loader(child);
        gate_release(&gate);
        if (!KVT_TRUE(e2e_daemon_restart(&b.daemon) && connect_host(&b))) return;
        check_nothing_came(&before);
        load_again(text);
    }
    close_hosts();
}

static bool is_alone(void *sessions) { return scene_stats(b.scheduler).sessions == *(uint32_t *)sessions; }

static bool is_as_before(void *bytes) { return scene_stats(b.scheduler).host_occupied == *(uint64_t *)bytes; }

/* COLD-3: so with who asked. kvd gives back what it had taken, and loads it for the next one. */
static void cold_3_a_client_dies_before_a_value(void) {
    if (!KVT_TRUE(open_hosts_with_gate())) return;
    compute(&b, e2e_stream(30, 5000, 0), 100);
    for (uint32_t text = 0; text < 2; text++) {
        compute(&a, loaded_text(text), 3000);
        struct kvd_stats before = scene_stats(b.scheduler);
        kill_loader(begin_load(text, text * 40, &before));
        KVT_TRUE(e2e_until(is_alone, &before.sessions, 60, NULL));
        gate_release(&gate);
        KVT_TRUE(e2e_until(is_as_before, &before.host_occupied, 60, NULL));
        check_nothing_came(&before);
        load_again(text);
    }
    close_hosts();
}

/* The scheduler's own sequence of 200 tokens: it leases it to itself, and rounds over it. */
static void run_rounds(kvd_client *c) {
    struct kvd_activation want = scene_want(kvd_client_session(c), 200, 16);
    struct kvd_activated made = scene_activate(c, &want);
    for (uint32_t commit = 50; commit <= 200; commit += 50) {
        struct kvd_round_item item = { .sequence = made.sequence,
                                       .pool[0] = { .ask = KVD_ROUND_COMMIT, .commit = commit } };
        struct kvd_round_result result = { 0 };
        KVT_EQ(kvd_round(c, &item, 1, &result, NULL), KVD_OK);
        KVT_EQ(result.pool[0].committed, commit);
    }
    struct kvd_finish how = { .sequence = made.sequence };
    struct kvd_finished finished;
    KVT_EQ(kvd_finish(c, &how, &finished, NULL), KVD_OK);
}

static bool is_answered(void *client) {
    struct pollfd p = { .fd = kvd_client_fd(client), .events = POLLIN };
    return poll(&p, 1, 0) == 1;
}

/* COLD-2: a scheduler activates and rounds while its load waits for an engine that is stopped, and comes back for it.
 */
static void cold_2_a_scheduler_runs_on(void) {
    if (!KVT_TRUE(open_hosts_with_gate())) return;
    uint64_t text = e2e_stream(1, 5000, 0);
    uint32_t tokens[700];
    struct kvd_cold_found found = { 0 };
    kvd_chain *chain = e2e_chain(text, 700);
    struct kvd_cold_prompt prompt = { .chain = chain, .prompt = tokens, .until = 700 };
    kvd_ticket find, load;
    e2e_tokens(text, 700, tokens);
    compute(&a, text, 700);
    KVT_TRUE(await_all(&b, text, 700, false));
    KVT_EQ(kvd_find_cold_start(b.scheduler, &prompt, &find, NULL), KVD_OK);
    KVT_EQ(kvd_cold_wait(b.scheduler, find, &found, NULL), KVD_OK);
    KVT_EQ(found.frontier, 700);
    redis_stop(&server);
    KVT_EQ(kvd_load_cold_start(b.scheduler, &prompt, &load, NULL), KVD_OK);
    run_rounds(b.scheduler);
    KVT_EQ(kvd_cold_poll(b.scheduler, load, &found, NULL), KVD_UNAVAILABLE);
    kill(server.pid, SIGCONT);
    KVT_TRUE(e2e_until(is_answered, b.scheduler, 60, NULL));
    KVT_EQ(kvd_cold_poll(b.scheduler, load, &found, NULL), KVD_OK);
    KVT_EQ(found.frontier, 700);
    KVT_TRUE(found.continuation.bits != 0);
    reproduce(&b, text, 700);
    scene_audit(b.scheduler);
    kvd_chain_free(chain);
    close_hosts();
}

static bool has_some(void *before) { return redis_number(&server, "DBSIZE") > *(long long *)before; }

static struct kvd_cold_tier cold_of(const struct host *h) {
    struct kvd_cold_tier cold = { 0 };
    KVT_EQ(kvd_describe_cold_tier(h->scheduler, &cold, NULL), KVD_OK);
    return cold;
}

static bool has_checked(void *host) { return cold_of(host).checks > 0; }

static void check_cold(struct host *h) {
    KVT_EQ(kvd_check_cold_tier(h->scheduler, KVD_MAX_COLD_CHECK, NULL), KVD_OK);
    KVT_TRUE(e2e_until(has_checked, h, 60, NULL));
    KVT_EQ(cold_of(h).wrong_objects, 0);
}

/* COLD-1, COLD-3: kvd is killed when it has begun to write, in the middle, and while the engine hangs. What is there is
 * right, the next kvd writes the rest from the arena, and the other host has all of it. */
static void cold_1_killed_in_a_write(void) {
    if (!KVT_TRUE(open_hosts_with((struct e2e_setup){ 0 }, PATIENT "buffer = 256KiB\nrate = 16MiB\n"))) return;
    for (uint32_t i = 0; i < 3; i++) {
        uint64_t text = e2e_stream(20 + i, 5000, 0);
        long long before = redis_number(&server, "DBSIZE");
        if (i == 2) redis_stop(&server);
        compute(&a, text, 2000);
        if (i == 1) KVT_TRUE(e2e_until(has_some, &before, 60, NULL));
        disconnect_host(&a);
        KVT_EQ_I(e2e_daemon_stop(&a.daemon, SIGKILL), -SIGKILL);
        if (i == 2) kill(server.pid, SIGCONT);
        if (!KVT_TRUE(e2e_daemon_restart(&a.daemon) && connect_host(&a))) return;
        if (await_all(&b, text, 2000, true)) reproduce(&b, text, 2000);
    }
    check_cold(&a);
    struct kvd_cold_tier cold = cold_of(&a);
    KVT_EQ(cold.right_objects, cold.read_objects);
    scene_audit(a.scheduler);
    scene_audit(b.scheduler);
    close_hosts();
}

/* ---- a cluster that fails over ---- */

/* Whole pages, and half of it, too: an activation does not ask again for a tail alone. */
#define TEXT 1920u

/* Each has a master for its address, of which the test takes both away. */
static bool open_hosts_on_cluster(void) {
    char address[2][32];
    if (!redis_cluster_start(&cluster)) return false;
    for (int i = 0; i < 2; i++) snprintf(address[i], sizeof address[i], "127.0.0.1:%u", cluster.node[i].port);
    return open_host(&a, (struct e2e_setup){ 0 }, address[0], HANGS) &&
           open_host(&b, (struct e2e_setup){ 0 }, address[1], HANGS);
}

struct passage {
    struct host *from, *to;
    uint32_t n; /* texts so far */
};

static bool has_written(void *host) { return !cold_of(host).waiting; }

/* A write that the engine does not take is not repeated (COLD-2): then it is another text's turn. */
static bool passes(void *passage) {
    struct passage *p = passage;
    if (cold_of(&a).breaker != KVD_COLD_CLOSED || cold_of(&b).breaker != KVD_COLD_CLOSED) return false;
    uint64_t text = e2e_stream(70 + p->n++, 5000, 0);
    struct question q = { .host = p->to, .seed = text, .n = TEXT / 2 };
    compute(p->from, text, TEXT / 2);
    if (!KVT_TRUE(e2e_until(has_written, p->from, 60, NULL))) return true;
    return !ask(&q) || (q.frontier == TEXT / 2 && KVT_TRUE(await_start(p->to, text, TEXT / 2)));
}

/* What they write now is on all masters, and the other one has it. */
static void pass_both_ways(uint32_t *n) {
    for (struct passage p = { &a, &b, *n }; p.from; p.from = p.from == &a ? &b : NULL, p.to = &a, *n = p.n)
        KVT_TRUE(e2e_until(passes, &p, 60, NULL));
}

/* The text is in the cluster, on the replicas too, and on no device or arena of the other host. */
static void prepare_failover(struct host *from, struct host *to, uint64_t text) {
    compute(from, text, TEXT);
    KVT_TRUE(await_all(to, text, TEXT, false));
    KVT_TRUE(redis_until(redis_cluster_is_replicated, &cluster));
}

/* Of what was written while a master went some may be there: no byte of it is wrong. */
static void check_under_way(struct host *h, uint64_t text) { KVT_TRUE(activate_cold(h, text, TEXT) <= TEXT); }

static void fail_over_the_dead(uint64_t text, uint64_t under_way) {
    prepare_failover(&a, &b, text);
    KVT_TRUE(redis_number(&cluster.node[1], "DBSIZE") > 0);
    compute(&a, under_way, TEXT);
    redis_kill(&cluster.node[1]);
    go_on_without(e2e_stream(6, 5000, 0));
    check_under_way(&b, under_way);
    redis_cluster_set_patience(&cluster, 2000);
    go_on_without(e2e_stream(7, 5000, 0));
    KVT_TRUE(redis_until(redis_is_master, &cluster.node[1 + REDIS_MASTERS]));
    redis_cluster_set_patience(&cluster, 15000);
    KVT_TRUE(await_start(&b, text, TEXT));
    check_under_way(&b, under_way);
}

/* Its master has 5 s for it; on a slow machine it is asked again. */
static bool has_taken_over(void *calls) {
    struct redis *replica = &cluster.node[REDIS_MASTERS];
    if (redis_is_master(replica)) return true;
    if ((*(uint32_t *)calls)++ % 2000 == 0) redis_must(redis_ask(replica, "CLUSTER FAILOVER"));
    return false;
}

static void fail_over_in_order(uint64_t text, uint64_t under_way) {
    uint32_t calls = 0;
    prepare_failover(&b, &a, text);
    compute(&b, under_way, TEXT);
    KVT_TRUE(!has_taken_over(&calls));
    go_on_without(e2e_stream(8, 5000, 0));
    check_under_way(&a, under_way);
    KVT_TRUE(redis_until(has_taken_over, &calls));
    KVT_TRUE(await_start(&a, text, TEXT));
    check_under_way(&a, under_way);
}

/* COLD-5, COLD-2, COLD-6: the master dies that is the address of b, then that of a hands over to its replica. Both go
 * on meanwhile; afterwards what a replica had is found, and they read from each other what they write. */
static void cold_5_a_cluster_fails_over(void) {
    uint32_t n = 0;
    if (!KVT_TRUE(open_hosts_on_cluster())) return;
    fail_over_the_dead(e2e_stream(5, 5000, 0), e2e_stream(60, 5000, 0));
    pass_both_ways(&n);
    fail_over_in_order(e2e_stream(61, 5000, 0), e2e_stream(62, 5000, 0));
    pass_both_ways(&n);
    KVT_TRUE(cold_of(&a).clustered && cold_of(&b).clustered);
    check_cold(&a);
    check_cold(&b);
    scene_audit(a.scheduler);
    scene_audit(b.scheduler);
    close_hosts();
}

static int load_alone(const char *socket, const char *text) {
    const struct kvd_connect_options options = {
        .struct_size = sizeof options, .socket = socket, .role = KVD_ROLE_ADMIN, .name = "loader"
    };
    struct question q = { .host = &b, .seed = loaded_text((uint32_t)strtoul(text, NULL, 10)), .n = 3000, .load = true };
    return kvd_connect(&options, &b.scheduler, NULL) != KVD_OK || ask_kvd(&q, NULL) != KVD_OK;
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(cold_6_two_hosts),
                                             KVT_CASE(cold_6_in_parts),
                                             KVT_CASE(cold_6_the_next_turn),
                                             KVT_CASE(cold_6_an_activation_loads_first),
                                             KVT_CASE(cold_2_a_scheduler_runs_on),
                                             KVT_CASE(cold_5_whatever_becomes_of_the_engine),
                                             KVT_CASE(cold_5_a_cluster_fails_over),
                                             KVT_CASE(cold_3_killed_in_a_load),
                                             KVT_CASE(cold_3_killed_before_a_value),
                                             KVT_CASE(cold_3_a_client_dies_before_a_value),
                                             KVT_CASE(cold_1_killed_in_a_write),
                                             { 0 } };
    if (argc == 4 && strcmp(argv[1], "--load") == 0) return load_alone(argv[2], argv[3]);
    return kvt_main("e2e_cold", cases, argc, argv);
}
