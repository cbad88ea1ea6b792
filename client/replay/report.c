/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <stdlib.h>

#include "simulate.h"

struct replay_sums {
    uint64_t found, from_host, waited_ns;
    uint32_t served, waited, chosen;
};

static void say_figure(const char *name, double value, const char *unit) {
    printf("%-32s %14.2f %s\n", name, value, unit);
}

static int compare_times(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static struct replay_sums sum_up(const struct replay *r) {
    struct replay_sums sums = { 0 };
    for (uint32_t i = 0; i < r->trace.n; i++) {
        const struct replay_served *s = &r->shared->served[i];
        sums.found += s->found;
        sums.from_host += s->from_host;
        sums.waited_ns += s->waited_ns;
        sums.waited += s->waited_ns > 0;
        sums.served += s->is_served;
    }
    return sums;
}

static void report_choices(const struct replay *r) {
    uint32_t n = 0;
    double *us = malloc((r->trace.n + 1) * sizeof *us);
    if (!us) return;
    for (uint32_t i = 0; i < r->trace.n; i++)
        if (r->shared->served[i].is_served) us[n++] = r->shared->served[i].choose_us;
    qsort(us, n, sizeof *us, compare_times);
    if (n) say_figure("choose.p50", us[n / 2], "us");
    if (n) say_figure("choose.p99", us[n - 1 - n / 100], "us");
    free(us);
}

/* Of kvd since its start, so of the whole trace where it was not killed. */
static void report_store(const struct replay *r) {
    const struct replay_figures *f = &r->shared->figures;
    double n = r->trace.n, all = (double)r->trace.prompt_tokens / 100;
    say_figure("calls", (double)f->requests / n, "messages/request");
    say_figure("demoted", (double)f->demoted_bytes / REPLAY_TOKEN_BYTES / n, "tokens/request");
    say_figure("restored", (double)f->restored_bytes / REPLAY_TOKEN_BYTES / n, "tokens/request");
    say_figure("advise.smaller.hit", (double)f->advise_smaller / all, "percent");
    say_figure("advise.infinite.hit", (double)f->advise_infinite / all, "percent");
}

static void report_kills(const struct replay *r, const struct replay_kills *kills) {
    say_figure("kills.kvd", kills->kvd, "kills");
    say_figure("kills.scheduler", kills->scheduler, "kills");
    say_figure("kills.worker", kills->worker, "kills");
    say_figure("prefixes.checked", (double)r->shared->checked, "prefixes");
    say_figure("prefixes.checked_in_host", (double)r->shared->checked_in_host, "prefixes");
    say_figure("prefixes.lost", (double)r->shared->lost, "prefixes");
}

struct replay_simulated {
    struct simulated lru, answers, best, infinite;
};

/* With an arena they are as large as both together, and serve what the pool alone can serve. */
static bool simulate_all(const struct replay *r, struct replay_simulated *ret) {
    uint64_t pool = r->pool_tokens, both = (uint64_t)((double)pool * (1 + r->options.arena / r->options.pool));
    return !simulate_blocks(&r->trace, pool, both, SIMULATE_LRU, &ret->lru) &&
           !simulate_blocks(&r->trace, pool, both, SIMULATE_LRU_ANSWERS, &ret->answers) &&
           !simulate_blocks(&r->trace, pool, both, SIMULATE_NEXT_USE, &ret->best) &&
           !simulate_blocks(&r->trace, pool, UINT64_MAX, SIMULATE_LRU, &ret->infinite);
}

static void report_hits(const struct replay *r, const struct replay_sums *sums, const struct replay_simulated *s) {
    double all = (double)r->trace.prompt_tokens / 100;
    if (!r->options.trace) say_figure("seed", r->options.seed, "seed");
    say_figure("pool", r->options.pool, "percent");
    say_figure("arena", r->options.arena, "percent");
    say_figure(r->options.reuse ? "reuse.hit" : "lru.hit", (double)sums->found / all, "percent");
    say_figure("from_host", (double)sums->from_host / all, "percent");
    say_figure("blocks.lru.hit", (double)s->lru.hit_tokens / all, "percent");
    say_figure("blocks.lru_with_answers.hit", (double)s->answers.hit_tokens / all, "percent");
    say_figure("blocks.next_use.hit", (double)s->best.hit_tokens / all, "percent");
    say_figure("blocks.infinite.hit", (double)s->infinite.hit_tokens / all, "percent");
}

/* Where nothing was looked for nothing is proven. */
static bool is_proven(const struct replay *r, const struct replay_kills *kills) {
    bool engine = r->options.kill_engine > 0;
    bool dies = !engine || (kills->scheduler && kills->worker);
    bool looked = !engine || r->shared->checked > r->shared->checked_in_host;
    bool in_host = r->shared->checked_in_host || !kills->kvd || !(r->options.arena > 0);
    return kills->kvd == r->options.kill_kvd && dies && looked && in_host;
}

static bool is_as_it_must_be(const struct replay *r, const struct replay_sums *sums, const struct replay_simulated *s,
                             const struct replay_kills *kills) {
    bool below = r->options.check && r->options.active == 1 && sums->found < s->lru.hit_tokens;
    bool wrong =
        r->options.check && (s->best.hit_tokens < s->lru.hit_tokens || s->lru.hit_tokens < s->answers.hit_tokens);
    if (r->shared->damaged || r->shared->lost) fprintf(stderr, "kvd-replay: %s\n", r->shared->finding);
    if (below) fprintf(stderr, "kvd-replay: the policy finds less than the least recently used blocks\n");
    if (wrong) fprintf(stderr, "kvd-replay: a simulated cache finds less than one that knows less\n");
    bool unproven = r->options.check && !is_proven(r, kills);
    if (unproven) fprintf(stderr, "kvd-replay: not all was killed, or nothing was there to be looked for\n");
    return !below && !wrong && !unproven && !r->shared->damaged && !r->shared->lost;
}

bool report_replay(const struct replay *r, const struct replay_kills *kills, double seconds) {
    struct replay_sums sums = sum_up(r);
    struct replay_simulated simulated;
    if (!simulate_all(r, &simulated)) {
        fprintf(stderr, "kvd-replay: no memory for the simulated caches\n");
        return false;
    }
    report_hits(r, &sums, &simulated);
    say_figure("requests", sums.served, "requests");
    say_figure("skipped", r->trace.n - sums.served, "requests");
    say_figure("time", seconds * 1e6 / r->trace.n, "us/request");
    say_figure("active", r->options.active, "sequences");
    say_figure("waited", sums.waited, "requests");
    say_figure("wait", (double)sums.waited_ns / 1e6 / r->trace.n, "ms/request");
    report_choices(r);
    if (kills->kvd || kills->scheduler || kills->worker) report_kills(r, kills);
    if (!kills->kvd) report_store(r);
    say_figure("audits", (double)r->shared->audits, "audits");
    say_figure("audits.violations", (double)r->shared->damaged, "violations");
    return is_as_it_must_be(r, &sums, &simulated, kills);
}
