/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

#include "kvd.h"
#include "kvd_policy.h"
#include "worker.h"

#define TOKEN_NS UINT64_C(60000000) /* of an answer, where several run at once */

struct running {
    uint64_t end_ns, use;
    uint32_t request, tokens, from; /* tokens: of prompt and answer; the answer's last is not computed */
    kvd_sequence sequence;
    kvd_chain *chain;
};

struct replay_scheduler {
    struct replay *replay;
    struct replay_shared *shared;
    kvd_client *client;
    kvd_session_id worker_session;
    int to_worker, to_parent;
    kvd_policy *policy; /* NULL: kvd_choose_victims */
    uint32_t *tokens;
    uint64_t begin_ns; /* of this process, by its clock; the trace's time then is */
    uint64_t from_ns;
    struct running running[REPLAY_MOST_ACTIVE];
    uint32_t n_running;
    struct kvd_victim victims[KVD_MAX_VICTIMS];
    struct kvd_error error;
};

static uint64_t clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static bool say_word(const struct replay_scheduler *s, enum scheduler_word word) {
    char byte = (char)word;
    return send(s->to_parent, &byte, 1, MSG_NOSIGNAL) == 1;
}

static bool succeeds(struct replay_scheduler *s, uint32_t request, const char *what, enum kvd_status status) {
    return status == KVD_OK || replay_failed(s->replay, request, what, status, s->error.message);
}

/* ---- a request --------------------------------------------------------------------------------------------- */

/* The best prefix: moved where little else than it would be left of its continuation, since a later turn takes its
 * place; forked otherwise. */
static bool find_source(struct replay_scheduler *s, uint32_t i, const kvd_chain *chain, struct kvd_activation *want) {
    struct kvd_hit hit;
    uint32_t found = 0, n = s->replay->trace.requests[i].prompt_tokens;
    if (!succeeds(s, i, "find", kvd_find(s->client, chain, s->tokens, n, &hit, 1, &found, &s->error))) return false;
    if (!found) return true;
    want->from = hit.continuation;
    want->frontier = hit.usable;
    want->keep = hit.live || hit.usable < hit.frontier - hit.frontier / 4;
    return true;
}

static enum kvd_status choose_victims(struct replay_scheduler *s, uint32_t i, struct kvd_activation *want) {
    uint64_t begin = clock_ns(), now = s->shared->now_ns;
    enum kvd_status status =
        s->policy ? kvd_policy_choose(s->policy, s->client, want, s->victims, KVD_MAX_VICTIMS, now, &s->error)
                  : kvd_choose_victims(s->client, want, s->victims, KVD_MAX_VICTIMS, &s->error);
    s->shared->served[i].choose_us = (double)(clock_ns() - begin) / 1e3;
    return status;
}

/* Computed up to a number of tokens, and named. */
static bool compute_tokens(struct replay_scheduler *s, const struct running *run, uint32_t from, uint32_t to) {
    uint32_t first = from / KVD_PAGE_TOKENS, full = to / KVD_PAGE_TOKENS;
    struct worker_answer answer;
    if (!worker_commit(s->to_worker, run->sequence, to, &answer))
        return replay_failed(s->replay, run->request, "commit", KVD_UNAVAILABLE, "the worker has died");
    if (answer.status != KVD_OK) return replay_failed(s->replay, run->request, "commit", answer.status, answer.message);
    if (full > first && !succeeds(s, run->request, "name",
                                  kvd_name_pages(s->client, run->sequence, run->chain, first, full - first, &s->error)))
        return false;
    ledger_set(&s->shared->ledger, run->request, 0, full * KVD_PAGE_TOKENS);
    return true;
}

static uint32_t first_to_end(const struct replay_scheduler *s) {
    uint32_t first = 0;
    for (uint32_t i = 1; i < s->n_running; i++)
        if (s->running[i].end_ns < s->running[first].end_ns) first = i;
    return first;
}

/* Its pages are on the device again: the arena may have the room. Others may use it already, which keeps both. */
static bool drop_host_copies(struct replay_scheduler *s, uint32_t i, kvd_continuation continuation) {
    struct kvd_moved moved;
    if (!s->replay->options.one_copy || !s->shared->served[i].from_host) return true;
    enum kvd_status status = kvd_drop_replica(s->client, continuation, KVD_TIER_HOST, &moved, &s->error);
    return status == KVD_ABORTED || status == KVD_FAILED_PRECONDITION || succeeds(s, i, "drop", status);
}

static bool finish_run(struct replay_scheduler *s, const struct running *run) {
    struct kvd_finish end = { .sequence = run->sequence, .retain = true };
    struct kvd_finished finished = { .revision = 0 };
    kvd_chain_tail(run->chain, &end.tail);
    if (!succeeds(s, run->request, "finish", kvd_finish(s->client, &end, &finished, &s->error))) return false;
    ledger_set(&s->shared->ledger, run->request, finished.continuation.bits, run->tokens);
    if (s->policy) kvd_policy_kept(s->policy, run->use, finished.continuation, run->tokens);
    return drop_host_copies(s, run->request, finished.continuation);
}

/* The answer of the sequence that ends first. */
static bool end_first(struct replay_scheduler *s) {
    uint32_t at = first_to_end(s);
    struct running run = s->running[at];
    const struct trace_request *q = &s->replay->trace.requests[run.request];
    s->running[at] = s->running[--s->n_running];
    if (run.end_ns > s->shared->now_ns) s->shared->now_ns = run.end_ns;
    trace_tokens(&s->replay->trace, run.request, s->tokens);
    bool fine = !kvd_chain_push(run.chain, s->tokens + q->prompt_tokens, q->output_tokens - 1) &&
                compute_tokens(s, &run, q->prompt_tokens, run.tokens) && finish_run(s, &run);
    kvd_chain_free(run.chain);
    return fine;
}

/* Finds, and chooses who gives way; what runs gives room only when it ends. */
static bool prepare_activation(struct replay_scheduler *s, uint32_t i, const struct running *run,
                               struct kvd_activation *want) {
    enum kvd_status status;
    for (;;) {
        want->from.bits = 0;
        want->frontier = want->n_victims = 0;
        want->keep = false;
        if (!find_source(s, i, run->chain, want)) return false;
        status = choose_victims(s, i, want);
        if (status != KVD_RESOURCE_EXHAUSTED || !s->n_running) break;
        if (!end_first(s)) return false;
        trace_tokens(&s->replay->trace, i, s->tokens);
    }
    return succeeds(s, i, "choose", status);
}

static bool activate_run(struct replay_scheduler *s, uint32_t i, struct running *run, struct kvd_activation *want) {
    struct kvd_activated is;
    if (!prepare_activation(s, i, run, want)) return false;
    ledger_give_up(&s->shared->ledger, want);
    if (!succeeds(s, i, "activate", kvd_activate(s->client, want, &is, &s->error))) return false;
    uint32_t restored = is.restored[0] * KVD_PAGE_TOKENS;
    run->sequence = is.sequence;
    run->from = want->from.bits ? want->frontier : 0;
    s->shared->served[i].found = run->from;
    s->shared->served[i].from_host = restored < run->from ? restored : run->from;
    ledger_set(&s->shared->ledger, i, 0, run->from / KVD_PAGE_TOKENS * KVD_PAGE_TOKENS);
    if (s->policy && want->from.bits && !want->keep) kvd_policy_gone(s->policy, want->from);
    return true;
}

static bool start_run(struct replay_scheduler *s, uint32_t i, struct running *run) {
    static const struct kvd_domain domain = { .model = "replay", .label = "replay" };
    const struct trace_request *q = &s->replay->trace.requests[i];
    struct kvd_activation want = { .worker = s->worker_session,
                                   .prompt_tokens = q->prompt_tokens,
                                   .max_output_tokens = q->output_tokens,
                                   .ensure[0] = run->tokens };
    trace_tokens(&s->replay->trace, i, s->tokens);
    if (kvd_chain_new(&domain, &run->chain) || kvd_chain_push(run->chain, s->tokens, q->prompt_tokens))
        return replay_failed(s->replay, i, "chain", KVD_RESOURCE_EXHAUSTED, "no memory");
    want.root = *kvd_chain_root(run->chain);
    run->use = s->policy ? kvd_policy_prompt(s->policy, run->chain, q->prompt_tokens, s->shared->now_ns) : 0;
    return activate_run(s, i, run, &want) && compute_tokens(s, run, run->from, q->prompt_tokens);
}

static bool serve_request(struct replay_scheduler *s, uint32_t i) {
    const struct trace_request *q = &s->replay->trace.requests[i];
    struct running run = { .request = i, .tokens = q->prompt_tokens + q->output_tokens - 1 };
    if (!start_run(s, i, &run)) {
        kvd_chain_free(run.chain);
        return false;
    }
    uint64_t now = s->shared->now_ns;
    s->shared->served[i].waited_ns = now - q->at_ns;
    s->shared->served[i].is_served = true;
    run.end_ns = now + (s->replay->options.active > 1 ? q->output_tokens * TOKEN_NS : 0);
    s->running[s->n_running++] = run;
    return true;
}

/* ---- the trace ----------------------------------------------------------------------------------------------- */

static void keep_pace(const struct replay_scheduler *s, const struct trace_request *q) {
    double speed = s->replay->options.speed;
    if (!(speed > 0) || q->at_ns < s->from_ns) return;
    uint64_t due = s->begin_ns + (uint64_t)((double)(q->at_ns - s->from_ns) / speed);
    struct timespec until = { (time_t)(due / 1000000000u), (long)(due % 1000000000u) };
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

/* Time goes on to the request, and to a free place: what ends until then ends. */
static bool wait_for_turn(struct replay_scheduler *s, const struct trace_request *q) {
    if (q->at_ns > s->shared->now_ns) {
        while (s->n_running && s->running[first_to_end(s)].end_ns <= q->at_ns)
            if (!end_first(s)) return false;
        s->shared->now_ns = q->at_ns;
    }
    return s->n_running < s->replay->options.active || end_first(s);
}

/* kvd at equal parts of the trace; scheduler and worker by turns, each once in so many seconds. */
static bool ask_for_kills(struct replay_scheduler *s, uint32_t i) {
    const struct replay_options *o = &s->replay->options;
    uint64_t n = s->replay->trace.n, at_ns = s->replay->trace.requests[i].at_ns;
    if (s->shared->kvd_asked < o->kill_kvd &&
        i * (uint64_t)(o->kill_kvd + 1) >= n * (uint64_t)(s->shared->kvd_asked + 1)) {
        s->shared->kvd_asked++;
        return say_word(s, SCHEDULER_KILL_KVD);
    }
    if (o->kill_engine > 0 && (double)at_ns >= (s->shared->engine_asked + 1) * o->kill_engine * 1e9 / 2)
        return say_word(s, s->shared->engine_asked++ % 2 ? SCHEDULER_KILL_WORKER : SCHEDULER_KILL_SCHEDULER);
    return true;
}

static bool serve_trace(struct replay_scheduler *s) {
    const struct trace *trace = &s->replay->trace;
    while (s->shared->next < trace->n) {
        uint32_t i = s->shared->next;
        const struct trace_request *q = &trace->requests[i];
        keep_pace(s, q);
        if (!ask_for_kills(s, i)) return false;
        bool fits = (uint64_t)q->prompt_tokens + q->output_tokens + KVD_PAGE_TOKENS <= s->replay->pool_tokens;
        if (fits && (!wait_for_turn(s, q) || !serve_request(s, i))) return false;
        s->shared->next = i + 1;
    }
    while (s->n_running)
        if (!end_first(s)) return false;
    return true;
}

static bool open_scheduler(struct replay_scheduler *s) {
    struct kvd_connect_options options = { .struct_size = sizeof options,
                                           .socket = s->replay->socket,
                                           .role = KVD_ROLE_SCHEDULER,
                                           .name = "replay-scheduler",
                                           .timeout_ms = REPLAY_TIMEOUT_MS };
    struct kvd_policy_options with = { .demotes = s->replay->options.arena > 0 };
    struct worker_answer worker;
    uint32_t next = s->shared->next;
    if (!succeeds(s, next, "connect", kvd_connect(&options, &s->client, &s->error))) return false;
    if (!worker_wait(s->to_worker, &worker))
        return replay_failed(s->replay, next, "connect", KVD_UNAVAILABLE, "the worker has died");
    if (worker.status != KVD_OK) return replay_failed(s->replay, next, "connect", worker.status, worker.message);
    s->worker_session = worker.session;
    if ((s->tokens = replay_tokens(s->replay)) &&
        (!s->replay->options.reuse || kvd_policy_new(&with, &s->policy) == KVD_OK))
        return true;
    return replay_failed(s->replay, next, "start", KVD_RESOURCE_EXHAUSTED, "no memory");
}

int scheduler_run(struct replay *replay, int to_worker, int to_parent) {
    static struct replay_scheduler scheduler;
    struct replay_scheduler *s = &scheduler;
    s->replay = replay;
    s->shared = replay->shared;
    s->to_worker = to_worker;
    s->to_parent = to_parent;
    s->begin_ns = clock_ns();
    s->from_ns = s->shared->now_ns;
    bool fine = open_scheduler(s) && serve_trace(s) && say_word(s, SCHEDULER_DONE);
    kvd_disconnect(s->client);
    kvd_policy_free(s->policy);
    free(s->tokens);
    return !fine;
}
