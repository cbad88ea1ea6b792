/* SPDX-License-Identifier: Apache-2.0
 *
 * kvd-replay: drives a real kvd with the prompts of a trace, without computing attention: a scheduler (this process)
 * and a worker (another one), on the time of the trace. Says what share of the prompt tokens was found, and beside it,
 * of the same trace and pool, what simulated caches of blocks find: the least recently used order, the next-use order
 * (Belady's, which knows the future), and a cache without an end. Those serve one request after the other.
 *
 * Usage: kvd-replay [--trace FILE] [--seed N] [--requests N] [--pool PERCENT] [--arena PERCENT] [--policy lru|reuse]
 * [--active N] [--speed X] [--check]
 *   --trace    a trace (trace.h); by default one that is made from --seed
 *   --arena    host arena, in the same percentage; default 0: none
 *   --pool     pool as a percentage of the tokens of all distinct blocks; default 3
 *   --active   so many sequences run at once, of which each takes 60 ms of the trace's time a token of its answer; a
 *              request waits while as many run, or while what runs leaves no room. Default: one after the other
 *   --speed    X times as fast as the trace; default: as fast as it goes. What is found is the same
 *   --check    ends with 1 where the policy or the next-use order is below the least recently used order, or the audit
 *              finds anything; with --active the policy is not compared: what runs holds pages
 * Prints lines `BENCH replay.NAME VALUE UNIT`.
 */
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "kvd_policy.h"
#include "scene.h"
#include "simulate.h"
#include "trace.h"

#define TOKEN_NS UINT64_C(60000000)
enum { MOST_ACTIVE = 1024 };

static struct options {
    const char *path;
    bool check, reuse;
    double percent, arena, speed;
    uint32_t seed, requests, active;
} options = { .reuse = true, .percent = 3, .seed = 1, .active = 1 };

struct running {
    uint64_t end_ns, use;
    uint32_t request, tokens, from; /* tokens: of prompt and answer */
    kvd_sequence sequence;
    kvd_chain *chain;
};

static struct replay {
    struct trace trace;
    struct e2e_daemon daemon;
    struct puppet worker;
    kvd_client *client;
    kvd_session_id session;
    kvd_policy *policy; /* NULL: kvd_choose_victims */
    uint32_t *tokens;
    uint64_t now_ns; /* of the trace; what waits lets it go on */
    struct running running[MOST_ACTIVE];
    uint32_t n_running;
    uint64_t hit_tokens, host_tokens, waited_ns;
    uint32_t skipped, chosen, waited;
    double *choose_us; /* of each choice */
    struct kvd_victim victims[KVD_MAX_VICTIMS];
    struct kvd_error error;
} replay;

static bool fails(struct replay *r, uint32_t i, const char *what, enum kvd_status status) {
    printf("request %u: %s: %s: %s\n", i, what, kvd_status_name(status), r->error.message);
    return KVT_TRUE(false);
}

/* The best prefix: moved where little else than it would be left of its continuation, since a later turn takes its
 * place; forked otherwise. */
static bool find_source(struct replay *r, uint32_t i, const kvd_chain *chain, struct kvd_activation *want) {
    struct kvd_hit hit;
    uint32_t found = 0;
    enum kvd_status status =
        kvd_find(r->client, chain, r->tokens, r->trace.requests[i].prompt_tokens, &hit, 1, &found, &r->error);
    if (status != KVD_OK) return fails(r, i, "find", status);
    if (!found) return true;
    want->from = hit.continuation;
    want->frontier = hit.usable;
    want->keep = hit.live || hit.usable < hit.frontier - hit.frontier / 4;
    return true;
}

static enum kvd_status choose(struct replay *r, struct kvd_activation *want) {
    double begin = e2e_now();
    enum kvd_status status =
        r->policy ? kvd_policy_choose(r->policy, r->client, want, r->victims, KVD_MAX_VICTIMS, r->now_ns, &r->error)
                  : kvd_choose_victims(r->client, want, r->victims, KVD_MAX_VICTIMS, &r->error);
    if (r->chosen < 2 * r->trace.n) r->choose_us[r->chosen++] = (e2e_now() - begin) * 1e6;
    return status;
}

/* Computed up to a number of tokens, and named. */
static bool compute(struct replay *r, const struct running *run, uint32_t from, uint32_t to) {
    uint32_t first = from / KVD_PAGE_TOKENS, full = to / KVD_PAGE_TOKENS;
    struct kvd_round_result result = scene_round(&r->worker, run->sequence, to, KVD_UNCHANGED);
    if (result.status != KVD_OK) return fails(r, run->request, result.message, (enum kvd_status)result.status);
    if (full <= first) return true;
    enum kvd_status status = kvd_name_pages(r->client, run->sequence, run->chain, first, full - first, &r->error);
    return status == KVD_OK || fails(r, run->request, "name", status);
}

static uint32_t first_to_end(const struct replay *r) {
    uint32_t first = 0;
    for (uint32_t i = 1; i < r->n_running; i++)
        if (r->running[i].end_ns < r->running[first].end_ns) first = i;
    return first;
}

/* The answer of the sequence that ends first. */
static bool end_first(struct replay *r) {
    uint32_t at = first_to_end(r);
    struct running run = r->running[at];
    const struct trace_request *q = &r->trace.requests[run.request];
    struct kvd_finish end = { .sequence = run.sequence, .retain = true };
    struct kvd_finished finished = { .revision = 0 };
    r->running[at] = r->running[--r->n_running];
    if (run.end_ns > r->now_ns) r->now_ns = run.end_ns;
    trace_tokens(&r->trace, run.request, r->tokens);
    bool fine = !kvd_chain_push(run.chain, r->tokens + q->prompt_tokens, q->output_tokens - 1) &&
                compute(r, &run, q->prompt_tokens, run.tokens);
    kvd_chain_tail(run.chain, &end.tail);
    enum kvd_status status = fine ? kvd_finish(r->client, &end, &finished, &r->error) : KVD_OK;
    if (status != KVD_OK) fine = fails(r, run.request, "finish", status);
    if (fine && r->policy) kvd_policy_kept(r->policy, run.use, finished.continuation, run.tokens);
    kvd_chain_free(run.chain);
    return fine;
}

/* Finds and activates; what runs gives room only when it ends. */
static bool activate(struct replay *r, uint32_t i, struct running *run, struct kvd_activation *want) {
    struct kvd_activated is;
    enum kvd_status status;
    for (;;) {
        want->from.bits = 0;
        want->frontier = want->n_victims = 0;
        want->keep = false;
        if (!find_source(r, i, run->chain, want)) return false;
        if ((status = choose(r, want)) != KVD_RESOURCE_EXHAUSTED || !r->n_running) break;
        if (!end_first(r)) return false;
        trace_tokens(&r->trace, i, r->tokens);
    }
    if (status != KVD_OK) return fails(r, i, "choose", status);
    if ((status = kvd_activate(r->client, want, &is, &r->error)) != KVD_OK) return fails(r, i, "activate", status);
    uint32_t restored = is.restored[0] * KVD_PAGE_TOKENS;
    run->sequence = is.sequence;
    run->from = want->from.bits ? want->frontier : 0;
    r->hit_tokens += run->from;
    r->host_tokens += restored < run->from ? restored : run->from;
    if (r->policy && want->from.bits && !want->keep) kvd_policy_gone(r->policy, want->from);
    return true;
}

static void keep_pace(const struct trace_request *q, double begin) {
    double left = options.speed > 0 ? begin + (double)q->at_ns / 1e9 / options.speed - e2e_now() : 0;
    struct timespec pause = { (time_t)left, (long)((left - (double)(time_t)left) * 1e9) };
    if (left > 0) nanosleep(&pause, NULL);
}

/* Time goes on to the request, and to a free place: what ends until then ends. */
static bool wait_for(struct replay *r, const struct trace_request *q) {
    if (q->at_ns > r->now_ns) {
        while (r->n_running && r->running[first_to_end(r)].end_ns <= q->at_ns)
            if (!end_first(r)) return false;
        r->now_ns = q->at_ns;
    }
    return r->n_running < options.active || end_first(r);
}

static bool serve(struct replay *r, uint32_t i) {
    const struct trace_request *q = &r->trace.requests[i];
    struct running run = { .request = i,
                           .tokens = q->prompt_tokens + q->output_tokens - 1 }; /* the last is not computed */
    struct kvd_activation want = { .worker = r->session,
                                   .prompt_tokens = q->prompt_tokens,
                                   .max_output_tokens = q->output_tokens,
                                   .ensure[0] = run.tokens };
    static const struct kvd_domain domain = { .model = "replay", .label = "replay" };
    if (!wait_for(r, q)) return false;
    trace_tokens(&r->trace, i, r->tokens);
    if (kvd_chain_new(&domain, &run.chain) || kvd_chain_push(run.chain, r->tokens, q->prompt_tokens)) return false;
    want.root = *kvd_chain_root(run.chain);
    run.use = r->policy ? kvd_policy_prompt(r->policy, run.chain, q->prompt_tokens, r->now_ns) : 0;
    if (!activate(r, i, &run, &want) || !compute(r, &run, run.from, q->prompt_tokens)) {
        kvd_chain_free(run.chain);
        return false;
    }
    r->waited += r->now_ns > q->at_ns;
    r->waited_ns += r->now_ns - q->at_ns;
    run.end_ns = r->now_ns + (options.active > 1 ? q->output_tokens * TOKEN_NS : 0);
    r->running[r->n_running++] = run;
    return true;
}

enum { TOKEN_BYTES = 32 }; /* of the small model below */

static bool start(struct replay *r, uint64_t pool_tokens, uint32_t context) {
    char more[200];
    int at = snprintf(more, sizeof more, "[limits]\ncontinuations = %u\n", r->trace.n + 64);
    double arena = options.arena / options.percent * (double)pool_tokens * TOKEN_BYTES;
    if (arena > 0) snprintf(more + at, sizeof more - (size_t)at, "[host]\narena = %.0fKiB\nscrub = 0\n", arena / 1024);
    struct kvd_policy_options with = { .demotes = arena > 0 };
    struct e2e_setup setup = { .layers = 1,
                               .kv_heads = 1,
                               .head_dim = 8,
                               .max_context = context,
                               .max_concurrency = options.active + 1,
                               .capacity_tokens = (uint32_t)pool_tokens,
                               .more = more };
    if (!e2e_daemon_start(&r->daemon, &setup) || !puppet_start(&r->worker)) return false;
    r->client = e2e_connect(&r->daemon, KVD_ROLE_SCHEDULER, "replay");
    r->session = puppet_connect(&r->worker, &r->daemon, KVD_ROLE_WORKER, 0);
    return r->client && r->session.bits && (!options.reuse || kvd_policy_new(&with, &r->policy) == KVD_OK);
}

static bool replay_all(struct replay *r, uint64_t pool_tokens, double begin) {
    for (uint32_t i = 0; i < r->trace.n; i++) {
        const struct trace_request *q = &r->trace.requests[i];
        keep_pace(q, begin);
        if ((uint64_t)q->prompt_tokens + q->output_tokens + KVD_PAGE_TOKENS > pool_tokens) r->skipped++;
        else if (!serve(r, i)) return false;
    }
    while (r->n_running)
        if (!end_first(r)) return false;
    return true;
}

static void say(const char *name, double value, const char *unit) {
    printf("BENCH replay.%s %.2f %s\n", name, value, unit);
}

static void stop(struct replay *r) {
    kvd_policy_free(r->policy);
    kvd_disconnect(r->client);
    puppet_kill(&r->worker);
    e2e_daemon_stop(&r->daemon, SIGTERM);
    e2e_daemon_free(&r->daemon);
    trace_free(&r->trace);
    free(r->tokens);
    free(r->choose_us);
}

static int compare_times(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* What kvd itself says: its messages, what moved between the tiers, and what its own record makes of this pool, which
 * `kvdctl advise` shows. */
static void report_store(const struct replay *r, uint64_t pool_pages) {
    struct kvd_stats stats;
    static struct kvd_reuse reuse;
    uint64_t found = 0;
    KVT_EQ(kvd_stats(r->client, &stats, NULL), KVD_OK);
    KVT_EQ(kvd_describe_reuse(r->client, &reuse, NULL), KVD_OK);
    for (uint32_t i = 0; i < reuse.n_sizes && reuse.sizes[i].pages <= pool_pages; i++)
        found = reuse.sizes[i].found_tokens;
    say("calls", (double)stats.requests / r->trace.n, "messages/request");
    say("demoted", (double)stats.demoted_bytes / TOKEN_BYTES / r->trace.n, "tokens/request");
    say("restored", (double)stats.restored_bytes / TOKEN_BYTES / r->trace.n, "tokens/request");
    say("advise.smaller.hit", 100 * (double)found / (double)r->trace.prompt_tokens, "percent");
    say("advise.infinite.hit",
        100 * (double)reuse.sizes[reuse.n_sizes - 1].found_tokens / (double)r->trace.prompt_tokens, "percent");
}

/* What was found, and what simulated caches find. */
static void report(struct replay *r, uint64_t pool_tokens, double seconds) {
    qsort(r->choose_us, r->chosen, sizeof *r->choose_us, compare_times);
    double all = (double)r->trace.prompt_tokens / 100;
    struct simulated lru, answers, best, all_kept;
    uint64_t both = (uint64_t)((double)pool_tokens * (1 + options.arena / options.percent));
    KVT_OK(simulate_blocks(&r->trace, both, SIMULATE_LRU, &lru));
    KVT_OK(simulate_blocks(&r->trace, both, SIMULATE_LRU_ANSWERS, &answers));
    KVT_OK(simulate_blocks(&r->trace, both, SIMULATE_NEXT_USE, &best));
    KVT_OK(simulate_blocks(&r->trace, UINT64_MAX, SIMULATE_LRU, &all_kept));
    if (!options.path) say("seed", options.seed, "seed");
    say("pool", options.percent, "percent");
    say("arena", options.arena, "percent");
    say(options.reuse ? "reuse.hit" : "lru.hit", (double)r->hit_tokens / all, "percent");
    say("from_host", (double)r->host_tokens / all, "percent");
    say("blocks.lru.hit", (double)lru.hit_tokens / all, "percent");
    say("blocks.lru_with_answers.hit", (double)answers.hit_tokens / all, "percent");
    say("blocks.next_use.hit", (double)best.hit_tokens / all, "percent");
    say("blocks.infinite.hit", (double)all_kept.hit_tokens / all, "percent");
    say("requests", r->trace.n - r->skipped, "requests");
    say("skipped", r->skipped, "requests");
    say("time", seconds * 1e6 / r->trace.n, "us/request");
    say("active", options.active, "sequences");
    say("waited", r->waited, "requests");
    say("wait", (double)r->waited_ns / 1e6 / r->trace.n, "ms/request");
    if (r->chosen) say("choose.p50", r->choose_us[r->chosen / 2], "us");
    if (r->chosen) say("choose.p99", r->choose_us[r->chosen - 1 - r->chosen / 100], "us");
    report_store(r, pool_tokens / KVD_PAGE_TOKENS);
    if (options.check) KVT_TRUE(best.hit_tokens >= lru.hit_tokens && lru.hit_tokens >= answers.hit_tokens);
    if (options.check && options.active == 1) KVT_TRUE(r->hit_tokens >= lru.hit_tokens);
}

static void replay_trace(void) {
    struct replay *r = &replay;
    char err[300] = "no memory";
    uint32_t longest = 0, most = options.requests;
    if (!KVT_OK(options.path ? trace_read(options.path, most, &r->trace, err, sizeof err)
                             : trace_generate(options.seed, most ? most : 2000, &r->trace))) {
        printf("    %s\n", err);
        return;
    }
    for (uint32_t i = 0; i < r->trace.n; i++) {
        uint32_t n = r->trace.requests[i].prompt_tokens + r->trace.requests[i].output_tokens;
        if (n > longest) longest = n;
    }
    uint64_t pool_tokens = (uint64_t)((double)r->trace.distinct_blocks * r->trace.block_tokens * options.percent / 100);
    uint32_t context = longest + KVD_PAGE_TOKENS < pool_tokens ? longest + KVD_PAGE_TOKENS : (uint32_t)pool_tokens;
    KVT_NEED((r->tokens = malloc((longest + 1) * sizeof *r->tokens)));
    KVT_NEED((r->choose_us = malloc((2 * (size_t)r->trace.n + 1) * sizeof *r->choose_us)));
    KVT_NEED(start(r, pool_tokens, context));
    double begin = e2e_now();
    KVT_NEED(replay_all(r, pool_tokens, begin));
    double seconds = e2e_now() - begin;
    scene_audit(r->client);
    report(r, pool_tokens, seconds);
    stop(r);
}

static bool read_option(const char *name, const char *value) {
    if (!value) return false;
    if (!strcmp(name, "--trace")) options.path = value;
    else if (!strcmp(name, "--seed")) options.seed = (uint32_t)strtoul(value, NULL, 10);
    else if (!strcmp(name, "--requests")) options.requests = (uint32_t)strtoul(value, NULL, 10);
    else if (!strcmp(name, "--pool")) options.percent = strtod(value, NULL);
    else if (!strcmp(name, "--speed")) options.speed = strtod(value, NULL);
    else if (!strcmp(name, "--active")) options.active = (uint32_t)strtoul(value, NULL, 10);
    else if (!strcmp(name, "--arena")) options.arena = strtod(value, NULL);
    else if (!strcmp(name, "--policy") && (!strcmp(value, "lru") || !strcmp(value, "reuse")))
        options.reuse = *value == 'r';
    else return false;
    return options.active >= 1 && options.active <= MOST_ACTIVE;
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(replay_trace), { 0 } };
    for (int k = 1; k < argc; k++) {
        if (!strcmp(argv[k], "--check")) options.check = true;
        else if (read_option(argv[k], argv[k + 1])) k++;
        else {
            fprintf(stderr, "kvd-replay: unknown option or value: %s; the head of replay.c lists them\n", argv[k]);
            return 2;
        }
    }
    return kvt_main("replay", cases, 1, argv);
}
