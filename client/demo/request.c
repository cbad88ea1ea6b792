/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"
#include "scheduler.h"

#define MAP_AHEAD 256
#define KEEP_TURN 1 /* retention classes: what is released last has the largest */
#define KEEP_SYSTEM 100
#define MAX_FAILURES 50 /* refusals in a row before the scheduler gives up: some seconds */

static uint32_t least_tokens(uint32_t a, uint32_t b) { return a < b ? a : b; }

static const char *conversation_name(const struct scheduler *s, const struct demo_request *request) {
    return s->prompts.conversation[request->id].name;
}

static int refused(const struct scheduler *s, const struct demo_request *request, const char *what,
                   const struct kvd_error *error) {
    fprintf(stderr, "demo_scheduler: %s turn %u: %s: %s: %s\n", conversation_name(s, request), request->turn + 1, what,
            kvd_status_name(error->status), error->message);
    return -1;
}

/* The chain of history[0..n). NULL: out of memory. */
static kvd_chain *chain_of(const struct demo_request *request, uint32_t n) {
    static const struct kvd_domain domain = { .model = MODEL_NAME, .tenant = "demo", .label = "demo" };
    uint32_t tokens[KVD_PAGE_TOKENS];
    kvd_chain *chain = NULL;
    if (kvd_chain_new(&domain, &chain) != KVD_OK) return NULL;
    for (uint32_t i = 0; i < n; i += KVD_PAGE_TOKENS) {
        uint32_t count = least_tokens(KVD_PAGE_TOKENS, n - i);
        for (uint32_t j = 0; j < count; j++) tokens[j] = request->history[i + j];
        if (kvd_chain_push(chain, tokens, count) != KVD_OK) {
            kvd_chain_free(chain);
            return NULL;
        }
    }
    return chain;
}

/* Of all requests here. Zeros: out of memory, and kvd refuses. */
static struct kvd_root root_of(const struct demo_request *request) {
    kvd_chain *chain = chain_of(request, 0);
    struct kvd_root root = chain ? *kvd_chain_root(chain) : (struct kvd_root){ .label = "" };
    kvd_chain_free(chain);
    return root;
}

static void say_text(struct demo_request *request, const uint8_t *text, uint32_t n) {
    memcpy(request->history + request->known, text, n);
    request->known += n;
}

static void begin_turn(const struct scheduler *s, struct demo_request *request) {
    const struct prompts_turn *turn = &s->prompts.conversation[request->id].turn[request->turn];
    say_text(request, turn->text, turn->n);
    request->prompt = request->known;
    request->target = request->known + turn->output;
    request->state = REQUEST_WAITING;
}

void request_init(struct scheduler *s, struct demo_request *request, uint32_t id) {
    memset(request, 0, sizeof *request);
    request->id = id;
    say_text(request, s->prompts.system, s->prompts.n_system);
    begin_turn(s, request);
}

/* ---- activation -------------------------------------------------------------------------------------- */

/* Behind the best of n hits, into the arena, where kvd_find finds it. True: something has come. */
static bool load_cold(struct scheduler *s, const kvd_chain *chain, const uint32_t *tokens, uint32_t known,
                      const struct kvd_hit *hits, uint32_t n) {
    struct kvd_cold_prompt prompt = { .chain = chain, .prompt = tokens, .until = known - 1 };
    struct kvd_cold_found found = { 0 };
    struct kvd_error error;
    if (n > 0 && !hits[0].live && hits[0].usable >= KVD_PAGE_TOKENS) {
        prompt.first = hits[0].usable / KVD_PAGE_TOKENS;
        prompt.from = hits[0].continuation;
    }
    if (prompt.first * KVD_PAGE_TOKENS >= prompt.until) return false;
    if (kvd_load_cold(s->client, &prompt, &found, &error) != KVD_OK) { /* it is computed */
        fprintf(stderr, "demo_scheduler: nothing loaded from the cold tier: %s\n", error.message);
        return false;
    }
    return found.continuation.bits != 0;
}

void request_await_cold(struct scheduler *s, const struct demo_request *request, int patience_ms) {
    uint32_t tokens[SCHEDULER_CONTEXT], n = s->prompts.n_system;
    kvd_chain *chain = chain_of(request, n);
    struct kvd_cold_prompt prompt = { .chain = chain, .prompt = tokens, .until = n };
    struct kvd_cold_found found = { 0 };
    struct kvd_error error;
    for (uint32_t i = 0; i < n; i++) tokens[i] = request->history[i];
    for (; chain && n > 0 && patience_ms > 0 && found.continuation.bits == 0; patience_ms -= 20) {
        if (kvd_load_cold(s->client, &prompt, &found, &error) != KVD_OK) break; /* said when it is needed */
        if (found.continuation.bits == 0) poll(NULL, 0, 20);
    }
    kvd_chain_free(chain);
}

/* The source: the own continuation as far as it goes, else the longest token-exact prefix that kvd knows. *ret_cheap: a
 * turn of some conversation, which may be used up where pages are short. */
static int choose_source(struct scheduler *s, const struct demo_request *request, struct kvd_activation *want,
                         bool *ret_cheap) {
    struct kvd_hit hits[KVD_MAX_HITS];
    struct kvd_error error;
    uint32_t tokens[SCHEDULER_CONTEXT], n = 0;
    if (!s->reuse) return 0;
    if (request->own.bits != 0 && request->own_frontier > 0) {
        want->from = request->own;
        want->frontier = least_tokens(request->own_frontier, request->known - 1);
        return 0;
    }
    kvd_chain *chain = chain_of(request, request->known);
    if (!chain) return -1;
    for (uint32_t i = 0; i < request->known; i++) tokens[i] = request->history[i];
    enum kvd_status status = kvd_find(s->client, chain, tokens, request->known, hits, KVD_MAX_HITS, &n, &error);
    if (status == KVD_OK && s->cold && load_cold(s, chain, tokens, request->known, hits, n))
        status = kvd_find(s->client, chain, tokens, request->known, hits, KVD_MAX_HITS, &n, &error);
    kvd_chain_free(chain);
    if (status != KVD_OK) return refused(s, request, "find", &error);
    if (n == 0 || hits[0].usable == 0) return 0;
    want->from = hits[0].continuation;
    want->frontier = hits[0].usable;
    /* A prefix of others is forked, the own one moved on. */
    want->keep = hits[0].continuation.bits != request->own.bits;
    *ret_cheap = !hits[0].live && hits[0].retention < KEEP_SYSTEM;
    return 0;
}

/* Activates, where kvd is short at the cost of a cheap source, and then of victims. error: KVD_OK, or why not now. */
static void activate(struct scheduler *s, struct kvd_activation *want, bool cheap, struct kvd_activated *ret_activated,
                     struct kvd_error *error) {
    static struct kvd_victim victims[KVD_MAX_VICTIMS];
    for (int attempt = 0; attempt < 4; attempt++) {
        error->status = kvd_activate(s->client, want, ret_activated, error);
        if (error->status != KVD_RESOURCE_EXHAUSTED && error->status != KVD_ABORTED) return;
        if (cheap && want->keep && !s->arena) { /* with an arena nothing has to be used up */
            want->keep = false;
            continue;
        }
        struct kvd_error why;
        if (kvd_choose_victims(s->client, want, victims, KVD_MAX_VICTIMS, &why) !=
            KVD_OK) /* keep the first sentence: it names the shortage */
            return;
    }
}

/* A copy in the arena: it costs nothing when pages get short, and outlives kvd. Full or gone: it is a copy less. */
static void keep_copy(struct scheduler *s, kvd_continuation continuation) {
    struct kvd_error error;
    if (s->arena && kvd_demote(s->client, continuation, true, NULL, &error) != KVD_OK)
        fprintf(stderr, "demo_scheduler: no copy in the arena: %s\n", error.message);
}

static int send_start(struct scheduler *s, struct demo_request *request, const struct kvd_activation *want,
                      const struct kvd_activated *activated) {
    struct wire_message *m = &s->message;
    m->type = WIRE_START;
    m->id = request->id;
    m->sequence = activated->sequence.bits;
    m->n_pools = activated->n_pools;
    for (uint32_t p = 0; p < activated->n_pools && p < 2; p++) {
        m->row[p] = activated->pool[p].row;
        m->mapped[p] = activated->pool[p].membership * KVD_PAGE_TOKENS;
        m->entitled[p] = activated->pool[p].entitlement * KVD_PAGE_TOKENS;
    }
    m->frontier = want->frontier;
    m->budget = request->target - request->known;
    m->hold_at = request->hold_at;
    m->speculate = s->speculate;
    m->first = 0;
    m->n_tokens = request->known;
    memcpy(m->tokens, request->history, request->known);
    return wire_send(request->worker->fd, m);
}

static int not_now(struct scheduler *s, struct demo_request *request, const struct kvd_error *error) {
    uint32_t running = 0;
    for (uint32_t i = 0; i < s->prompts.n_conversations; i++) running += s->request[i].state == REQUEST_RUNNING;
    if (error->status == KVD_RESOURCE_EXHAUSTED && running > 0) {
        request->short_at = s->ends + 1;
        return 0; /* one of them will end */
    }
    request->own.bits = 0;
    request->own_frontier = 0;
    if (++request->failures < MAX_FAILURES && kvd_status_retryable(error->status)) return 0;
    if (error->status == KVD_NOT_FOUND && request->failures < MAX_FAILURES)
        return 0; /* the source or the worker went away meanwhile: its end will be heard */
    return refused(s, request, "activate", error);
}

/* Tokens of a frontier that stand in its last `pages` pages: what came back, for what others share is first. */
static uint32_t tokens_restored(uint32_t frontier, uint32_t pages) {
    uint32_t all = (frontier + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS;
    return pages == 0 ? 0 : pages >= all ? frontier : frontier - (all - pages) * KVD_PAGE_TOKENS;
}

static const char *how_of(const struct kvd_activation *want) {
    if (want->from.bits == 0) return "root";
    return want->keep ? "fork" : "move";
}

int request_start(struct scheduler *s, struct demo_request *request, struct worker_peer *worker) {
    struct kvd_activation want = { .root = root_of(request),
                                   .worker = worker->session,
                                   .prompt_tokens = request->known,
                                   .max_output_tokens = request->target - request->known };
    struct kvd_activated activated;
    struct kvd_error error = { .status = KVD_OK };
    if (request->short_at == s->ends + 1) return 0;
    bool cheap = false;
    if (choose_source(s, request, &want, &cheap) != 0) return -1;
    bool computes_prefix = s->reuse && want.frontier < s->prompts.n_system;
    if (computes_prefix && s->holder) return 0;
    for (uint32_t p = 0; p < s->info.n_pools; p++) /* how much of a window may be mapped the answer says */
        want.ensure[p] =
            s->info.pool[p].window ? 0 : request->known + least_tokens(MAP_AHEAD, want.max_output_tokens) - 1;
    activate(s, &want, cheap, &activated, &error);
    if (error.status != KVD_OK) return not_now(s, request, &error);
    request->failures = request->short_at = 0;
    request->sequence = activated.sequence;
    request->worker = worker;
    request->state = REQUEST_RUNNING;
    request->named = want.from.bits == request->own.bits ? 0 : want.frontier / KVD_PAGE_TOKENS;
    request->own.bits = 0;
    request->own_frontier = 0;
    request->hold_at = computes_prefix ? s->prompts.n_system : 0;
    if (computes_prefix) s->holder = request;
    worker->load++;
    printf("activate %s %u %u %u %s %u %u\n", conversation_name(s, request), request->turn, request->known,
           want.frontier, how_of(&want), worker->pid, tokens_restored(want.frontier, activated.restored[0]));
    (void)send_start(s, request, &want, &activated); /* a worker that is gone is heard on its socket */
    return 0;
}

/* ---- progress ------------------------------------------------------------------------------------------ */

static int name_pages(struct scheduler *s, struct demo_request *request, uint32_t frontier) {
    struct kvd_error error;
    uint32_t pages = frontier / KVD_PAGE_TOKENS;
    if (!s->reuse || pages <= request->named) return 0;
    kvd_chain *chain = chain_of(request, pages * KVD_PAGE_TOKENS);
    if (!chain) return -1;
    enum kvd_status status =
        kvd_name_pages(s->client, request->sequence, chain, request->named, pages - request->named, &error);
    kvd_chain_free(chain);
    if (status != KVD_OK) return refused(s, request, "name pages", &error);
    request->named = pages;
    return 0;
}

static int tail_of(const struct demo_request *request, uint32_t frontier, struct kvd_tail *ret_tail) {
    kvd_chain *chain = chain_of(request, frontier);
    if (!chain) return -1;
    kvd_chain_tail(chain, ret_tail);
    kvd_chain_free(chain);
    return 0;
}

/* The shared prefix stands complete: a checkpoint of it outlives this sequence, and the others may fork it. */
static int checkpoint(struct scheduler *s, struct demo_request *request, uint32_t frontier) {
    struct kvd_checkpoint what = { .sequence = request->sequence, .retention = KEEP_SYSTEM };
    struct kvd_checkpointed done;
    struct kvd_error error;
    if (tail_of(request, frontier, &what.tail) != 0) return -1;
    enum kvd_status status = kvd_checkpoint(s->client, &what, &done, &error);
    if (status == KVD_OK) {
        printf("checkpoint %s %u\n", conversation_name(s, request), done.frontier);
        keep_copy(s, done.continuation);
    } else if (status != KVD_RESOURCE_EXHAUSTED) { /* no room for its tail: it goes on without */
        return refused(s, request, "checkpoint", &error);
    }
    s->holder = NULL;
    request->hold_at = 0;
    s->message.type = WIRE_CONTINUE;
    s->message.id = request->id;
    s->message.n_tokens = 0;
    (void)wire_send(request->worker->fd, &s->message);
    return 0;
}

static void leave_worker(struct scheduler *s, struct demo_request *request) {
    if (s->holder == request) s->holder = NULL;
    request->worker->load--;
    request->worker = NULL;
    request->sequence.bits = 0;
    s->ends++;
}

static int finish_turn(struct scheduler *s, struct demo_request *request, const struct wire_message *m) {
    struct kvd_finish how = { .sequence = request->sequence, .retain = s->reuse, .retention = KEEP_TURN };
    struct kvd_finished finished;
    struct kvd_error error;
    if (tail_of(request, m->frontier, &how.tail) != 0) return -1;
    if (kvd_finish(s->client, &how, &finished, &error) != KVD_OK) return refused(s, request, "finish", &error);
    s->message.type = WIRE_FINISHED;
    s->message.id = request->id;
    s->message.n_tokens = 0;
    (void)wire_send(request->worker->fd, &s->message);
    leave_worker(s, request);
    printf("end %s %u %u %u %u\n", conversation_name(s, request), request->turn, request->known - request->prompt,
           m->drafted, m->accepted);
    if (s->reuse) keep_copy(s, finished.continuation);
    request->own = finished.continuation;
    request->own_frontier = 0; /* found by its name like any other */
    request->turn++;
    if (m->bounded)
        fprintf(stderr, "demo_scheduler: %s: kvd bounded the answer at %u tokens\n", conversation_name(s, request),
                m->frontier);
    if (request->turn < s->prompts.conversation[request->id].n_turns) begin_turn(s, request);
    else request->state = REQUEST_OVER;
    return 0;
}

static int hear_tokens(struct scheduler *s, struct demo_request *request, const struct wire_message *m) {
    if (m->first != request->known || m->n_tokens > request->target - request->known) {
        fprintf(stderr, "demo_scheduler: %s: tokens %u..%u do not follow token %u\n", conversation_name(s, request),
                m->first, m->first + m->n_tokens, request->known);
        return -1;
    }
    say_text(request, m->tokens, m->n_tokens);
    printf("tokens %s %u %u %u ", conversation_name(s, request), request->turn, m->pid, m->first - request->prompt);
    for (uint32_t i = 0; i < m->n_tokens; i++) printf("%02x", m->tokens[i]);
    putchar('\n');
    return 0;
}

int request_hear(struct scheduler *s, struct demo_request *request, const struct wire_message *m) {
    int r = 0;
    switch (m->type) {
    case WIRE_TOKENS: return hear_tokens(s, request, m);
    case WIRE_COMMITTED:
        r = name_pages(s, request, m->frontier);
        if (r == 0 && m->held && request->hold_at != 0) r = checkpoint(s, request, m->frontier);
        return r;
    case WIRE_DONE: r = name_pages(s, request, m->frontier); return r == 0 ? finish_turn(s, request, m) : r;
    case WIRE_FAILED:
        fprintf(stderr, "demo_scheduler: %s: the worker failed: %.*s\n", conversation_name(s, request),
                (int)m->n_tokens, (const char *)m->tokens);
        return -1;
    default: fprintf(stderr, "demo_scheduler: a worker sent message %u, which it never should\n", m->type); return -1;
    }
}

/* ---- death of a worker ----------------------------------------------------------------------------------- */

void request_orphan(struct scheduler *s, struct demo_request *request) {
    kvd_sequence sequence = request->sequence;
    leave_worker(s, request);
    request->sequence = sequence;
    request->state = REQUEST_ORPHANED;
}

void request_forget(struct demo_request *request) {
    if (request->state == REQUEST_RUNNING || request->state == REQUEST_ORPHANED) request->state = REQUEST_WAITING;
    request->worker = NULL;
    request->sequence.bits = request->own.bits = 0;
    request->own_frontier = request->hold_at = request->short_at = request->failures = 0;
}

static uint32_t frontier_of(struct scheduler *s, kvd_continuation continuation) {
    static struct kvd_continuation_info infos[KVD_MAX_LIST];
    struct kvd_error error;
    uint32_t cursor = 0, n = 0;
    while (cursor != KVD_UNCHANGED &&
           kvd_list_continuations(s->client, NULL, &cursor, infos, KVD_MAX_LIST, &n, &error) == KVD_OK)
        for (uint32_t i = 0; i < n; i++)
            if (infos[i].continuation.bits == continuation.bits) return infos[i].frontier;
    return 0;
}

void request_adopt(struct scheduler *s, struct demo_request *request, kvd_continuation left) {
    s->ends++;
    request->sequence.bits = 0;
    request->own = left;
    request->own_frontier = left.bits != 0 ? frontier_of(s, left) : 0;
    request->state = REQUEST_WAITING;
    printf("adopt %s %u %u\n", conversation_name(s, request), request->turn, request->own_frontier);
}
