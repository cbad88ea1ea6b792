/* SPDX-License-Identifier: Apache-2.0
 *
 * The program of client/ENGINE-GUIDE.md, as it stands there, against a real kvd: this file is the engine around it.
 * The scheduler is this process, workers are processes of their own (the same binary, told what to do over a socket).
 * The model writes bytes that depend on all tokens before them, and checks what is there before it goes on. ACT-4,
 * CONT-2, CONT-3, SPEC-2, SPEC-3, SRV-1, SRV-5, SRV-8.
 */
#include "engine_guide.inc" /* the blocks of the guide */

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "e2e.h"

/* ---- the model ----------------------------------------------------------------------------------------- */

static uint64_t wrong;
static uint32_t barriers;

uint32_t model_run(struct worker *w, const struct work *s, uint32_t from, uint32_t to) {
    for (uint32_t p = 0; p < w->info->n_pools; p++) {
        if (to > s->mapped[p]) wrong++;
        if (to - from > 1 || from % 40 == 0) wrong += e2e_check_columns(w->store, p, s->row[p], s->id, 0, from);
        e2e_write_columns(w->store, p, s->row[p], s->id, from, to);
    }
    return e2e_token(s->id, to);
}

void all_ranks_done(struct worker *w) {
    (void)w;
    barriers++; /* ranks above 0 were told to finish before rank 0 was */
}

/* What is rejected is written, too, as another text. */
uint32_t model_speculate(struct worker *w, const struct work *s, uint32_t e) {
    uint32_t accepted = e2e_token(s->id ^ 1, s->done) % (e + 1), f = s->done;
    uint32_t ends[] = { f + e + 1, smaller(w->info->max_context, f + e + w->info->draft_window) };
    for (uint32_t p = 0; p < 2; p++) {
        if (ends[p] > s->mapped[p]) wrong++;
        e2e_write_columns(w->store, p, s->row[p], s->id, f, f + accepted + 1);
        e2e_write_columns(w->store, p, s->row[p], ~s->id, f + accepted + 1, ends[p]);
    }
    return accepted;
}

/* ---- worker processes ------------------------------------------------------------------------------------ */

enum op { OPEN = 1, GENERATE, STEPS, SPECULATE, CHECK, STATE_TAKE, STATE_STEP, EVENTS, AGAIN };
struct order {
    enum op op;
    uint32_t n, rank, count;
    struct work work[4];
};
struct answer {
    int result;
    uint64_t wrong, epoch;
    uint32_t barriers;
    kvd_session_id session;
    struct work work[4];
};

static uint64_t wrong_columns(const struct worker *w, const struct work *s) {
    uint64_t sum = 0;
    for (uint32_t p = 0; p < w->info->n_pools; p++) sum += e2e_check_columns(w->store, p, s->row[p], s->id, 0, s->done);
    return sum;
}

/* Prefill, and the image at its end. An image that stands there is withdrawn first. */
static int state_step(struct worker *w, struct work *s, uint32_t rank) {
    if (s->done && s->source_state_slot == KVD_NONE && state_boundary(w, s, 0) != 0) return -1;
    step(w, s);
    if (e2e_write_state(w->store, rank, s->state_slot, s->id, s->done, NULL) != KVD_OK) return -1;
    return state_boundary(w, s, s->done);
}

static int state_take(struct worker *w, const struct work *s, uint32_t rank) {
    uint64_t bad = 0;
    int result = state_begin(w, s);
    if (result == 0 && s->done) e2e_check_state(w->store, rank, s->state_slot, s->id, s->done, &bad, NULL);
    wrong += bad;
    return result;
}

static int obey(struct worker *w, const char *socket, struct order *o) {
    switch (o->op) {
    case OPEN: return worker_open(w, socket, o->rank, NULL);
    case GENERATE: return worker_generate(w, o->work, o->n);
    case STEPS:
        for (uint32_t i = 0; i < o->count; i++) step(w, &o->work[0]);
        return 0;
    case SPECULATE: return worker_speculate(w, &o->work[0]);
    case CHECK: return 0;
    case STATE_TAKE: return state_take(w, &o->work[0], o->rank);
    case STATE_STEP: return state_step(w, &o->work[0], o->rank);
    case EVENTS: return worker_events(w, o->count);
    case AGAIN: return worker_again(w, socket, o->rank, NULL);
    }
    return -1;
}

static int be_worker(const char *socket, int fd) {
    static struct worker w;
    struct order o;
    while (read(fd, &o, sizeof o) == sizeof o) {
        struct answer a = { .result = obey(&w, socket, &o) };
        for (uint32_t i = 0; w.store && o.op != OPEN && o.op != AGAIN && o.op != EVENTS && i < o.n; i++)
            wrong += wrong_columns(&w, &o.work[i]);
        a.wrong = wrong;
        a.barriers = barriers;
        if (w.client) a.session = kvd_client_session(w.client), a.epoch = kvd_client_epoch(w.client);
        memcpy(a.work, o.work, sizeof a.work);
        if (write(fd, &a, sizeof a) != sizeof a) break;
    }
    worker_close(&w);
    return 0;
}

struct process {
    pid_t pid;
    int fd;
    kvd_session_id session;
    uint32_t rank;
};

static struct e2e_daemon daemon_;

/* The orders are small enough for a socket to take them whole. The last answer; result -2: the process is gone. */
static struct answer tell(const struct process *p, struct order o) {
    struct answer a = { .result = -2 };
    o.rank = p->rank;
    struct pollfd answer = { .fd = p->fd, .events = POLLIN };
    if (!KVT_EQ(write(p->fd, &o, sizeof o), sizeof o) || !KVT_EQ_I(poll(&answer, 1, 60000 * E2E_SLOW), 1) ||
        !KVT_EQ(read(p->fd, &a, sizeof a), sizeof a))
        a.result = -2;
    KVT_EQ(a.wrong, 0);
    return a;
}

static bool start_worker(struct process *p, uint32_t rank) {
    int pair[2];
    char number[16];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) return KVT_TRUE(false);
    *p = (struct process){ .pid = fork(), .fd = pair[0], .rank = rank };
    if (p->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        snprintf(number, sizeof number, "%d", dup(pair[1]));
        execl("/proc/self/exe", "worker", "--worker", daemon_.socket, number, (char *)NULL);
        _exit(127);
    }
    close(pair[1]);
    struct answer a = tell(p, (struct order){ .op = OPEN });
    p->session = a.session;
    return KVT_EQ_I(a.result, 0);
}

static void end_worker(struct process *p, int how) {
    if (how) kill(p->pid, how);
    close(p->fd);
    kvt_wait(p->pid);
}

/* ---- requests --------------------------------------------------------------------------------------------- */

static const struct kvd_domain domain = { .model = "guide", .tenant = "test" };
static struct kvd_store_info info;
static kvd_client *scheduler;

struct job {
    struct request request;
    uint64_t text;
    uint32_t tokens[2048];
};

static void begin(struct job *j, uint64_t text, uint32_t prompt, uint32_t output) {
    memset(j, 0, sizeof *j);
    j->text = text;
    e2e_tokens(text, 2048, j->tokens);
    j->request = (struct request){ .tokens = j->tokens, .n_prompt = prompt, .max_output = output };
    KVT_EQ_I(request_find(scheduler, &j->request, &domain), 0);
}

static struct work work_of(const struct job *j) {
    const struct request *r = &j->request;
    struct work s = { .id = j->text,
                      .sequence = r->is.sequence,
                      .known = r->n_prompt,
                      .done = r->want.frontier,
                      .committed = r->want.frontier,
                      .end = r->n_prompt + r->max_output,
                      .state_slot = r->is.state_slot,
                      .source_state_slot = r->is.source_state_slot };
    for (uint32_t p = 0; p < r->is.n_pools; p++) {
        s.row[p] = r->is.pool[p].row;
        s.mapped[p] = r->is.pool[p].membership * KVD_PAGE_TOKENS;
    }
    return s;
}

static bool activate_on(struct job *j, const struct process *p) {
    j->request.want.worker = p->session;
    return KVT_EQ_I(request_activate(scheduler, &j->request, &info), 0);
}

static bool open_all(const struct e2e_setup *setup) {
    if (!KVT_TRUE(e2e_daemon_start(&daemon_, setup))) return false;
    scheduler = scheduler_open(daemon_.socket, &info);
    return KVT_TRUE(scheduler != NULL);
}

static void close_all(void) {
    struct kvd_audit *audit = calloc(1, sizeof *audit);
    kvd_client *admin = e2e_connect(&daemon_, KVD_ROLE_ADMIN, "admin");
    KVT_EQ_I(kvd_audit(admin, audit, NULL), KVD_OK);
    if (!KVT_EQ(audit->violations, 0)) printf("    %s\n", audit->text);
    free(audit);
    kvd_disconnect(admin);
    kvd_disconnect(scheduler);
    e2e_daemon_free(&daemon_);
}

/* ---- cases -------------------------------------------------------------------------------------------------- */

static void the_life_of_a_request(void) {
    static struct job a, b, c;
    struct process w;
    struct kvd_checkpointed made;
    KVT_NEED(open_all(&(struct e2e_setup){ .map_ahead = 2 }) && start_worker(&w, 0));
    uint64_t text = e2e_stream(1, 0, 0);
    begin(&a, text, 300, 600);
    KVT_EQ(a.request.want.frontier, 0);
    KVT_NEED(activate_on(&a, &w));
    struct answer done = tell(&w, (struct order){ .op = GENERATE, .n = 1, .work = { work_of(&a) } });
    KVT_EQ_I(done.result, 0);
    KVT_EQ(done.work[0].known, 900);
    KVT_EQ(done.work[0].committed, 899);
    KVT_TRUE(done.barriers >= 2 && done.barriers < 8); /* boundaries are few: 600 steps */
    KVT_EQ_I(request_name(scheduler, &a.request, 899), 0);
    KVT_EQ_I(request_checkpoint(scheduler, &a.request, 5, &made), 0);
    KVT_EQ(made.frontier, 899);
    KVT_EQ_I(request_finish(scheduler, &a.request, 899, false), 0);

    /* One text that leaves the first at token 200, one that goes on where it ended; together. */
    begin(&b, e2e_stream(1, 200, 7), 260, 100);
    begin(&c, text, 920, 50);
    KVT_EQ(b.request.want.frontier, 192);
    KVT_EQ(c.request.want.frontier, 899);
    KVT_NEED(activate_on(&b, &w) && activate_on(&c, &w));
    done = tell(&w, (struct order){ .op = GENERATE, .n = 2, .work = { work_of(&b), work_of(&c) } });
    KVT_EQ_I(done.result, 0);
    KVT_EQ(done.work[0].committed, 359);
    KVT_EQ(done.work[1].committed, 969);
    KVT_EQ_I(request_finish(scheduler, &b.request, 359, true), 0);
    KVT_EQ_I(request_finish(scheduler, &c.request, 969, true), 0);
    begin(&a, text, 1000, 1);
    KVT_EQ(a.request.want.frontier, 969);
    kvd_chain_free(a.request.chain);
    end_worker(&w, 0);
    close_all();
}

/* 32 pages: what is cached goes when it must; what runs, stays. */
static void when_it_is_short(void) {
    static struct job j[8];
    struct process w;
    struct kvd_stats stats;
    KVT_NEED(open_all(&(struct e2e_setup){ .max_context = 1024, .max_concurrency = 8, .capacity_tokens = 2048 }));
    KVT_NEED(start_worker(&w, 0));
    for (uint32_t i = 0; i < 6; i++) {
        begin(&j[i], e2e_stream(10 + i, 0, 1), 500, 10); /* 8 pages */
        KVT_NEED(activate_on(&j[i], &w));
        KVT_EQ(j[i].request.want.n_victims > 0, i >= 4);
        struct answer done = tell(&w, (struct order){ .op = GENERATE, .n = 1, .work = { work_of(&j[i]) } });
        KVT_EQ_I(done.result, 0);
        KVT_EQ_I(request_finish(scheduler, &j[i].request, 509, true), 0);
    }
    for (uint32_t i = 0; i < 5; i++) {
        begin(&j[i], e2e_stream(30 + i, 0, 1), 500, 10);
        j[i].request.want.worker = w.session;
        KVT_EQ_I(request_activate(scheduler, &j[i].request, &info), i < 4 ? 0 : 1);
    }
    KVT_EQ_I(kvd_stats(scheduler, &stats, NULL), KVD_OK);
    KVT_EQ(stats.sequences, 4);
    KVT_EQ(stats.continuations, 0);
    for (uint32_t i = 0; i < 4; i++) KVT_EQ_I(request_finish(scheduler, &j[i].request, 0, false), 0);
    kvd_chain_free(j[4].request.chain);
    begin(&j[5], e2e_stream(40, 0, 1), 2000, 10); /* never fits */
    j[5].request.want.worker = w.session;
    KVT_EQ_I(request_activate(scheduler, &j[5].request, &info), -1);
    kvd_chain_free(j[5].request.chain);
    end_worker(&w, 0);
    close_all();
}

/* The lease grows a page at a time, until there are none: a bounded completion. */
static void a_bounded_completion(void) {
    static struct job a, b;
    struct process w;
    KVT_NEED(open_all(&(struct e2e_setup){ .max_context = 1024,
                                           .max_concurrency = 2,
                                           .capacity_tokens = 1024,
                                           .lease_growth = true,
                                           .lease_window = 64,
                                           .more = "prefill_chunk = 64\n" }));
    KVT_NEED(start_worker(&w, 0));
    begin(&a, e2e_stream(50, 0, 1), 100, 900);
    begin(&b, e2e_stream(51, 0, 1), 300, 10);
    a.request.want.worker = w.session;
    a.request.want.ensure[0] = 100;
    KVT_EQ_I(kvd_activate(scheduler, &a.request.want, &a.request.is, NULL), KVD_OK);
    KVT_NEED(activate_on(&b, &w));
    struct answer done = tell(&w, (struct order){ .op = GENERATE, .n = 2, .work = { work_of(&a), work_of(&b) } });
    KVT_EQ_I(done.result, 0);
    KVT_TRUE(done.work[0].bounded && !done.work[1].bounded);
    KVT_TRUE(done.work[0].known < 1000 && done.work[0].known > 500);
    KVT_EQ(done.work[0].committed, done.work[0].known - 1);
    KVT_EQ_I(request_finish(scheduler, &a.request, done.work[0].committed, true), 0);
    KVT_EQ_I(request_finish(scheduler, &b.request, done.work[1].committed, true), 0);
    end_worker(&w, 0);
    close_all();
}

/* SRV-5: a rank dies; the other one yields, and what was committed is kept. */
static void ranks(void) {
    static struct job a;
    struct process w[2];
    kvd_group_id group;
    kvd_continuation left = { 0 };
    KVT_NEED(open_all(&(struct e2e_setup){ .ranks = 2 }));
    KVT_NEED(start_worker(&w[0], 0) && start_worker(&w[1], 1));
    kvd_session_id sessions[] = { w[0].session, w[1].session };
    KVT_EQ_I(lease_to_ranks(scheduler, sessions, 2, &group), 0);
    begin(&a, e2e_stream(60, 0, 1), 200, 100);
    a.request.want.group = group;
    KVT_NEED(request_activate(scheduler, &a.request, &info) == 0);
    struct work s = work_of(&a);
    struct answer done = tell(&w[1], (struct order){ .op = STEPS, .n = 1, .count = 100, .work = { s } });
    KVT_EQ(done.work[0].done, 299);
    done = tell(&w[0], (struct order){ .op = GENERATE, .n = 1, .work = { s } });
    KVT_EQ_I(done.result, 0);
    KVT_EQ(done.work[0].committed, 299);
    KVT_EQ_I(request_name(scheduler, &a.request, 299), 0);
    end_worker(&w[1], SIGKILL);
    KVT_EQ_I(tell(&w[0], (struct order){ .op = EVENTS, .count = 10000 }).result, 1);
    KVT_EQ_I(request_ended(scheduler, &a.request, &left), 0);
    KVT_TRUE(left.bits != 0);
    kvd_chain_free(a.request.chain);
    end_worker(&w[0], 0);
    close_all();
}

/* Two pools at one frontier, whatever was rejected; what both hold is found and used again. */
static void speculation(void) {
    static struct job a, b;
    struct process w;
    KVT_NEED(open_all(
        &(struct e2e_setup){ .backend = "mtp", .draft_window = 5, .max_context = 1024, .capacity_tokens = 4096 }));
    KVT_NEED(start_worker(&w, 0));
    uint64_t text = e2e_stream(70, 0, 1);
    begin(&a, text, 150, 400);
    KVT_NEED(activate_on(&a, &w));
    struct answer done = tell(&w, (struct order){ .op = SPECULATE, .n = 1, .work = { work_of(&a) } });
    KVT_EQ_I(done.result, 0);
    KVT_EQ(done.work[0].known, 550);
    KVT_EQ(done.work[0].committed, 549);
    KVT_EQ_I(request_finish(scheduler, &a.request, 549, true), 0);
    begin(&b, text, 600, 424); /* to the end of the context */
    KVT_EQ(b.request.want.frontier, 549);
    KVT_NEED(activate_on(&b, &w));
    done = tell(&w, (struct order){ .op = SPECULATE, .n = 1, .work = { work_of(&b) } });
    KVT_EQ_I(done.result, 0);
    KVT_EQ(done.work[0].committed, 1023);
    KVT_EQ_I(request_finish(scheduler, &b.request, 1023, true), 0);
    end_worker(&w, 0);
    close_all();
}

static void state_images(void) {
    static struct job a, b;
    struct process w;
    KVT_NEED(open_all(&(struct e2e_setup){ .more = "[capacity]\nstate_bytes = 3000\n" }));
    KVT_NEED(start_worker(&w, 0));
    uint64_t text = e2e_stream(80, 0, 1);
    begin(&a, text, 300, 10);
    KVT_NEED(activate_on(&a, &w));
    struct order o = { .op = STATE_TAKE, .n = 1, .work = { work_of(&a) } };
    KVT_EQ_I(tell(&w, o).result, 0);
    o.op = STATE_STEP;
    KVT_EQ_I(tell(&w, o).result, 0);
    KVT_EQ_I(request_finish(scheduler, &a.request, 300, true), 0);
    for (int move = 0; move < 2; move++) { /* a fork of it, then itself */
        begin(&b, text, 400, 10);
        KVT_EQ(b.request.want.frontier, 300);
        b.request.want.keep = !move;
        KVT_NEED(activate_on(&b, &w));
        o = (struct order){ .op = STATE_TAKE, .n = 1, .work = { work_of(&b) } };
        KVT_EQ(o.work[0].source_state_slot == KVD_NONE, move);
        KVT_EQ_I(tell(&w, o).result, 0);
        o.op = STATE_STEP;
        KVT_EQ_I(tell(&w, o).result, 0);
        KVT_EQ_I(request_finish(scheduler, &b.request, 400, move), 0);
    }
    end_worker(&w, 0);
    close_all();
}

/* SRV-1: kvd stops in the middle of a call. The call ran once, however often it is made. */
static void an_answer_that_does_not_come(void) {
    static struct job a;
    struct process w;
    struct kvd_error error;
    struct kvd_stats stats;
    KVT_NEED(open_all(NULL) && start_worker(&w, 0));
    begin(&a, e2e_stream(90, 0, 1), 100, 10);
    a.request.want.worker = w.session;
    KVT_OK(kill(daemon_.pid, SIGSTOP));
    KVT_EQ(waitpid(daemon_.pid, NULL, WUNTRACED), daemon_.pid); /* it stands */
    kvd_client_set_timeout(scheduler, 50);
    KVT_EQ_I(kvd_activate(scheduler, &a.request.want, &a.request.is, &error), KVD_DEADLINE_EXCEEDED);
    KVT_OK(kill(daemon_.pid, SIGCONT));
    kvd_client_set_timeout(scheduler, 5000 * E2E_SLOW);
    KVT_EQ_I(activate_surely(scheduler, &a.request.want, &a.request.is, &error), KVD_OK);
    KVT_EQ_I(kvd_stats(scheduler, &stats, NULL), KVD_OK);
    KVT_EQ(stats.sequences, 1);
    KVT_EQ_I(request_finish(scheduler, &a.request, 0, false), 0);
    end_worker(&w, 0);
    close_all();
}

/* SRV-5, CONT-3: the rest is computed by another worker. */
static void a_worker_dies(void) {
    static struct job a;
    struct process w[2];
    kvd_continuation left = { 0 };
    KVT_NEED(open_all(NULL) && start_worker(&w[0], 0) && start_worker(&w[1], 0));
    begin(&a, e2e_stream(100, 0, 1), 300, 200);
    KVT_NEED(activate_on(&a, &w[0]));
    struct order o = { .op = GENERATE, .n = 1, .work = { work_of(&a) } };
    o.work[0].end = 350;
    KVT_EQ(tell(&w[0], o).work[0].committed, 349);
    KVT_EQ_I(request_name(scheduler, &a.request, 349), 0);
    end_worker(&w[0], SIGKILL);
    KVT_EQ_I(request_ended(scheduler, &a.request, &left), 0);
    kvd_chain_free(a.request.chain);
    begin(&a, a.text, 350, 150); /* prompt and what was generated */
    KVT_EQ(a.request.want.from.bits, left.bits);
    KVT_EQ(a.request.want.frontier, 320);
    KVT_NEED(activate_on(&a, &w[1]));
    struct answer done = tell(&w[1], (struct order){ .op = GENERATE, .n = 1, .work = { work_of(&a) } });
    KVT_EQ(done.work[0].committed, 499);
    KVT_EQ_I(request_finish(scheduler, &a.request, 499, true), 0);
    end_worker(&w[1], 0);
    close_all();
}

/* SRV-8: another instance is seen, and joined. A fork is refused. */
static void another_instance_and_a_fork(void) {
    struct process w;
    struct kvd_stats stats;
    struct kvd_error error;
    KVT_NEED(open_all(NULL) && start_worker(&w, 0));
    uint64_t epoch = kvd_client_epoch(scheduler);
    KVT_EQ_I(tell(&w, (struct order){ .op = AGAIN }).result, 0);
    pid_t child = fork();
    if (child == 0) {
        struct kvd_connect_options options = { .struct_size = sizeof options,
                                               .socket = daemon_.socket,
                                               .role = KVD_ROLE_OBSERVER };
        kvd_client *own = NULL;
        bool refused_both = kvd_stats(scheduler, &stats, NULL) == KVD_FAILED_PRECONDITION &&
                            kvd_connect(&options, &own, NULL) == KVD_FAILED_PRECONDITION && !own;
        _exit(refused_both ? 7 : 1);
    }
    KVT_EQ_I(kvt_wait(child), 7);
    KVT_EQ_I(kvd_stats(scheduler, &stats, NULL), KVD_OK);
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGKILL), -SIGKILL);
    KVT_EQ_I(tell(&w, (struct order){ .op = EVENTS, .count = 10000 }).result, -1); /* the connection is lost */
    KVT_EQ_I(tell(&w, (struct order){ .op = AGAIN }).result, -1);                  /* and nobody is there yet */
    KVT_NEED(e2e_daemon_restart(&daemon_));
    struct answer a = tell(&w, (struct order){ .op = AGAIN });
    KVT_EQ_I(a.result, 0);
    KVT_TRUE(a.epoch != epoch && a.epoch != 0);
    KVT_EQ_I(kvd_client_reconnect(scheduler, &error), KVD_ABORTED);
    kvd_disconnect(scheduler);
    scheduler = scheduler_open(daemon_.socket, &info);
    KVT_TRUE(scheduler && kvd_client_epoch(scheduler) == a.epoch);
    end_worker(&w, 0);
    close_all();
}

/* VIEW-1: two tokens of one layer. The first attends itself alone; equal keys give the mean of the values. */
static void append_and_attention(void) {
    static _Alignas(16) uint16_t planes[2][2 * KVD_PAGE_TOKENS * 64];
    static const int32_t table[] = { -1, 1 };
    uint16_t k[64], v[2][64], out[64];
    kvd_plane_view plane = { planes[0], KVD_DTYPE_BF16, 64, 2, 128, KVD_PAGE_TOKENS * 128, KVD_PAGE_TOKENS * 128 };
    PagedKVBatchLayerView view = { .k = plane, .v = plane, .block_tables = table, .n_logical = 1, .n_rows = 2 };
    view.v.base = planes[1];
    view.n_pages = 2, view.head_dim = 64, view.n_kv_heads = 1, view.storage = KVD_STORAGE_BF16;
    for (int i = 0; i < 64; i++) k[i] = v[0][i] = 0x3F80, v[1][i] = 0x4040; /* 1, and 3 */
    KVT_EQ_I(attend_token(&view, 1, 0, k, v[0], k, 1, out), 0);
    KVT_EQ_MEM(out, v[0], sizeof out);
    KVT_EQ_I(attend_token(&view, 1, 1, k, v[1], k, 1, out), 0);
    for (int i = 0; i < 64; i++) KVT_EQ(out[i], 0x4000);
    KVT_EQ_I(attend_token(&view, 0, 0, k, v[1], k, 1, out), -1); /* not mapped */
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(the_life_of_a_request),
                                             KVT_CASE(when_it_is_short),
                                             KVT_CASE(a_bounded_completion),
                                             KVT_CASE(ranks),
                                             KVT_CASE(speculation),
                                             KVT_CASE(state_images),
                                             KVT_CASE(an_answer_that_does_not_come),
                                             KVT_CASE(a_worker_dies),
                                             KVT_CASE(another_instance_and_a_fork),
                                             KVT_CASE(append_and_attention),
                                             { 0 } };
    signal(SIGPIPE, SIG_IGN);
    if (argc == 4 && strcmp(argv[1], "--worker") == 0) return be_worker(argv[2], atoi(argv[3]));
    return kvt_main("engine_guide", cases, argc, argv);
}
