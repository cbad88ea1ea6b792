/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "engine.h"
#include "kvd.h"
#include "look.h"
#include "replay.h"
#include "report.h"

enum { EXIT_DONE, EXIT_USAGE, EXIT_FAILED, EXIT_LOST = 4 };

/* ---- what is needed ------------------------------------------------------------------------------------------- */

static bool load_trace(struct replay *r) {
    const struct replay_options *o = &r->options;
    char err[300] = "no memory";
    if (o->trace ? trace_read(o->trace, o->requests, &r->trace, err, sizeof err)
                 : trace_generate(o->seed, o->requests ? o->requests : 2000, &r->trace)) {
        fprintf(stderr, "kvd-replay: %s\n", err);
        return false;
    }
    for (uint32_t i = 0; i < r->trace.n; i++) {
        uint32_t n = r->trace.requests[i].prompt_tokens + r->trace.requests[i].output_tokens;
        if (n > r->longest) r->longest = n;
    }
    r->pool_tokens = (uint64_t)((double)r->trace.distinct_blocks * r->trace.block_tokens * o->pool / 100);
    if (r->pool_tokens >= 2 * KVD_PAGE_TOKENS && r->pool_tokens < UINT32_MAX - KVD_PAGE_TOKENS) return true;
    fprintf(stderr,
            "kvd-replay: %g %% of the trace's %llu tokens are a pool of %llu: from 128 to 2^32 may be asked for\n",
            o->pool, (unsigned long long)(r->trace.distinct_blocks * r->trace.block_tokens),
            (unsigned long long)r->pool_tokens);
    return false;
}

/* Memory that children share, and that ends with the process. */
static void *map_shared(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static bool share_memory(struct replay *r) {
    uint32_t n = r->trace.n;
    r->shared = map_shared(sizeof *r->shared);
    if (r->shared) r->shared->served = map_shared(n * sizeof *r->shared->served);
    if (r->shared) r->shared->ledger = (struct ledger){ n, map_shared(n * sizeof *r->shared->ledger.entries) };
    if (r->shared && r->shared->served && r->shared->ledger.entries) return true;
    fprintf(stderr, "kvd-replay: no memory for %u requests\n", n);
    return false;
}

/* A model of REPLAY_TOKEN_BYTES a token. Pages of what runs and tails come on top of the pool. */
static bool prepare_instance(struct replay *r, struct replay_instance *ret_instance) {
    char text[700];
    const struct replay_options *o = &r->options;
    uint64_t context = r->longest + KVD_PAGE_TOKENS < r->pool_tokens ? r->longest + KVD_PAGE_TOKENS : r->pool_tokens;
    uint64_t arena = (uint64_t)(o->arena / o->pool * (double)r->pool_tokens * REPLAY_TOKEN_BYTES / 1024);
    int at =
        snprintf(text, sizeof text,
                 "[devices]\ndevice.0 = host:0\nmemory = %lluKiB\n[model]\nlayers = 1\nkv_heads = 1\nhead_dim = 8\n"
                 "profile = bf16\nmax_context = %llu\nmax_concurrency = %u\n[backend]\nkind = off\n"
                 "[capacity]\ntokens = %llu\n[limits]\ncontinuations = %u\n",
                 (unsigned long long)(r->pool_tokens * REPLAY_TOKEN_BYTES / 1024 * 2 + (1 << 20)),
                 (unsigned long long)context, o->active + 1, (unsigned long long)r->pool_tokens, r->trace.n + 64);
    if (arena)
        snprintf(text + at, sizeof text - (size_t)at, "[host]\narena = %lluKiB\nscrub = 0\n",
                 (unsigned long long)arena);
    if (!instance_prepare(ret_instance, o->kvd, text)) return false;
    snprintf(r->socket, sizeof r->socket, "%s", ret_instance->socket);
    return true;
}

/* ---- the replay ------------------------------------------------------------------------------------------------- */

static double clock_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int run_replay(struct replay *r, struct replay_instance *kvd) {
    struct replay_kills kills = { 0 };
    double begin = clock_seconds();
    if (!instance_start(kvd)) return EXIT_FAILED;
    bool fine = engine_serve(r, kvd, &kills);
    double seconds = clock_seconds() - begin;
    if (!fine || !engine_look(r, look_at_figures)) {
        if (r->shared->message[0]) fprintf(stderr, "kvd-replay: %s\n", r->shared->message);
        return EXIT_FAILED;
    }
    return report_replay(r, &kills, seconds) ? EXIT_DONE : EXIT_LOST;
}

int main(int argc, char **argv) {
    static struct replay replay;
    struct replay_instance kvd;
    int code = EXIT_FAILED;
    if (!replay_parse_options(argc, argv, &replay.options)) return EXIT_USAGE;
    if (replay.options.help) replay_print_help();
    if (replay.options.version) printf("kvd-replay %s\n", kvd_version());
    if (replay.options.help || replay.options.version) return EXIT_DONE;
    if (!load_trace(&replay)) return EXIT_USAGE;
    engine_catch_signals();
    if (share_memory(&replay) && prepare_instance(&replay, &kvd)) {
        code = run_replay(&replay, &kvd);
        if (!instance_end(&kvd) && code == EXIT_DONE) code = EXIT_FAILED;
    }
    trace_free(&replay.trace);
    return code;
}
