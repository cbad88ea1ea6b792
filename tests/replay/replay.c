/* SPDX-License-Identifier: Apache-2.0
 *
 * kvd-replay: drives a real kvd with the prompts of a trace, without computing attention: a scheduler (this process)
 * and a worker (another one), one request after the other, on the time of the trace. Says what share of the prompt
 * tokens was found, and beside it, of the same trace and pool, what simulated caches of blocks find: the least recently
 * used order, the next-use order (Belady's, which knows the future), and a cache without an end.
 *
 * Usage: kvd-replay [--trace FILE] [--seed N] [--requests N] [--pool PERCENT] [--arena PERCENT] [--policy lru|reuse]
 * [--check]
 *   --trace    a trace (trace.h); by default one that is made from --seed
 *   --arena    host arena, in the same percentage; default 0: none
 *   --pool     pool as a percentage of the tokens of all distinct blocks; default 3
 *   --check    ends with 1 where the policy or the next-use order is below the least recently used order, or the audit
 *              finds anything
 * Prints lines `BENCH replay.NAME VALUE UNIT`.
 */
#include <signal.h>
#include <stdlib.h>

#include "kvd_policy.h"
#include "scene.h"
#include "simulate.h"
#include "trace.h"

static struct options {
    const char *path;
    bool check, reuse;
    double percent, arena;
    uint32_t seed, requests;
} options = { .reuse = true, .percent = 3, .seed = 1 };

static struct replay {
    struct trace trace;
    struct e2e_daemon daemon;
    struct puppet worker;
    kvd_client *client;
    kvd_session_id session;
    kvd_policy *policy; /* NULL: kvd_choose_victims */
    uint32_t *tokens;
    uint64_t hit_tokens, choose_ns;
    uint32_t skipped, chosen;
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
    want->keep = hit.usable < hit.frontier - hit.frontier / 4;
    return true;
}

static bool choose(struct replay *r, uint32_t i, struct kvd_activation *want) {
    double begin = e2e_now();
    enum kvd_status status = r->policy ? kvd_policy_choose(r->policy, r->client, want, r->victims, KVD_MAX_VICTIMS,
                                                           r->trace.requests[i].at_ns, &r->error)
                                       : kvd_choose_victims(r->client, want, r->victims, KVD_MAX_VICTIMS, &r->error);
    r->choose_ns += (uint64_t)((e2e_now() - begin) * 1e9);
    r->chosen++;
    return status == KVD_OK || fails(r, i, "choose", status);
}

static bool run(struct replay *r, uint32_t i, uint64_t use, kvd_chain *chain, const struct kvd_activated *is,
                uint32_t from) {
    uint32_t n = (uint32_t)kvd_chain_tokens(chain), first = from / KVD_PAGE_TOKENS, full = n / KVD_PAGE_TOKENS;
    struct kvd_finish end = { .sequence = is->sequence, .retain = true };
    struct kvd_finished finished = { .revision = 0 };
    struct kvd_round_result result = scene_round(&r->worker, is->sequence, n, KVD_UNCHANGED);
    if (result.status != KVD_OK) return fails(r, i, result.message, (enum kvd_status)result.status);
    enum kvd_status status =
        full > first ? kvd_name_pages(r->client, is->sequence, chain, first, full - first, &r->error) : KVD_OK;
    if (status != KVD_OK) return fails(r, i, "name", status);
    kvd_chain_tail(chain, &end.tail);
    if ((status = kvd_finish(r->client, &end, &finished, &r->error)) != KVD_OK) return fails(r, i, "finish", status);
    if (r->policy) kvd_policy_kept(r->policy, use, finished.continuation, n);
    return true;
}

static bool serve(struct replay *r, uint32_t i) {
    const struct trace_request *q = &r->trace.requests[i];
    uint32_t n = q->prompt_tokens + q->output_tokens - 1; /* the last token's KV is not computed */
    struct kvd_activation want = {
        .worker = r->session, .prompt_tokens = q->prompt_tokens, .max_output_tokens = q->output_tokens, .ensure[0] = n
    };
    struct kvd_activated is;
    kvd_chain *chain = NULL;
    static const struct kvd_domain domain = { .model = "replay", .label = "replay" };
    trace_tokens(&r->trace, i, r->tokens);
    if (kvd_chain_new(&domain, &chain) || kvd_chain_push(chain, r->tokens, q->prompt_tokens)) return false;
    want.root = *kvd_chain_root(chain);
    uint64_t use = r->policy ? kvd_policy_prompt(r->policy, chain, q->prompt_tokens, q->at_ns) : 0;
    bool fine = find_source(r, i, chain, &want) && choose(r, i, &want);
    if (fine) {
        enum kvd_status status = kvd_activate(r->client, &want, &is, &r->error);
        fine = status == KVD_OK || fails(r, i, "activate", status);
    }
    if (fine && r->policy && want.from.bits && !want.keep) kvd_policy_gone(r->policy, want.from);
    r->hit_tokens += fine && want.from.bits ? want.frontier : 0;
    fine = fine && !kvd_chain_push(chain, r->tokens + q->prompt_tokens, q->output_tokens - 1);
    fine = fine && run(r, i, use, chain, &is, want.from.bits ? want.frontier : 0);
    kvd_chain_free(chain);
    return fine;
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
                               .max_concurrency = 2,
                               .capacity_tokens = (uint32_t)pool_tokens,
                               .more = more };
    if (!e2e_daemon_start(&r->daemon, &setup) || !puppet_start(&r->worker)) return false;
    r->client = e2e_connect(&r->daemon, KVD_ROLE_SCHEDULER, "replay");
    r->session = puppet_connect(&r->worker, &r->daemon, KVD_ROLE_WORKER, 0);
    return r->client && r->session.bits && (!options.reuse || kvd_policy_new(&with, &r->policy) == KVD_OK);
}

static bool replay_all(struct replay *r, uint64_t pool_tokens) {
    for (uint32_t i = 0; i < r->trace.n; i++) {
        const struct trace_request *q = &r->trace.requests[i];
        if ((uint64_t)q->prompt_tokens + q->output_tokens + KVD_PAGE_TOKENS > pool_tokens) r->skipped++;
        else if (!serve(r, i)) return false;
    }
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
}

/* What was found, and what simulated caches find. */
static void report(const struct replay *r, uint64_t pool_tokens, double seconds) {
    double all = (double)r->trace.prompt_tokens / 100;
    struct simulated lru, best, all_kept;
    uint64_t both = (uint64_t)((double)pool_tokens * (1 + options.arena / options.percent));
    KVT_OK(simulate_blocks(&r->trace, both, SIMULATE_LRU, &lru));
    KVT_OK(simulate_blocks(&r->trace, both, SIMULATE_NEXT_USE, &best));
    KVT_OK(simulate_blocks(&r->trace, UINT64_MAX, SIMULATE_LRU, &all_kept));
    if (!options.path) say("seed", options.seed, "seed");
    say("pool", options.percent, "percent");
    say("arena", options.arena, "percent");
    say(options.reuse ? "reuse.hit" : "lru.hit", (double)r->hit_tokens / all, "percent");
    say("blocks.lru.hit", (double)lru.hit_tokens / all, "percent");
    say("blocks.next_use.hit", (double)best.hit_tokens / all, "percent");
    say("blocks.infinite.hit", (double)all_kept.hit_tokens / all, "percent");
    say("requests", r->trace.n - r->skipped, "requests");
    say("skipped", r->skipped, "requests");
    say("time", seconds * 1e6 / r->trace.n, "us/request");
    say("choose", r->chosen ? (double)r->choose_ns / 1e3 / r->chosen : 0, "us");
    if (options.check) KVT_TRUE(r->hit_tokens >= lru.hit_tokens && best.hit_tokens >= lru.hit_tokens);
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
    KVT_NEED(start(r, pool_tokens, context));
    double begin = e2e_now();
    KVT_NEED(replay_all(r, pool_tokens));
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
    else if (!strcmp(name, "--arena")) options.arena = strtod(value, NULL);
    else if (!strcmp(name, "--policy") && (!strcmp(value, "lru") || !strcmp(value, "reuse")))
        options.reuse = *value == 'r';
    else return false;
    return true;
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
