/* SPDX-License-Identifier: Apache-2.0
 *
 * demo_run: one row of the demo's tables. Starts a kvd, two workers and a scheduler; lets them generate once
 * undisturbed and without any reuse; then again, with SIGKILL in the middle of decode: of a worker, of the scheduler,
 * of the scheduler and all workers together. kvd goes on. Then, if there is a second configuration, with a kvd that has
 * too few pages and a host arena, and is itself ended between turns: by SIGTERM, then by SIGKILL. The engine's
 * processes go on. Then, if there is a third one, another kvd starts beside it, with another engine, and goes on with
 * what the first has written into the cold tier. Compares every token.
 *
 * Exit codes: 0 exact, with tokens reused, also out of the arena and the cold tier, and nothing of the shared prefix
 * computed twice; 1 usage; 2 could not run; 4 not so.
 */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "clock.h"
#include "demo_process.h"
#include "demo_report.h"
#include "kvd.h"
#include "wire.h"

#define WORKERS 2
#define SILENCE_MS 60000 /* no line for so long: something hangs */
#define STOP_MS 10000

/* Where the killing happens: (turn, token of the answer) of whichever conversation gets there first. */
enum act { ACT_WORKER, ACT_SCHEDULER, ACT_EVERYTHING, ACT_REST, ACT_UNDISTURBED, ACT_ARENA, ACT_COLD };
static const struct { uint32_t turn, index; } act_point[] = { { 0, 40 }, { 1, 24 }, { 0, 56 } };

/* How kvd ends after the n-th turn of the act with an arena, and what came back with the next instance. */
#define ENDS 2
static const int end_signal[ENDS] = { SIGTERM, SIGKILL };

struct run {
    const char *kvd, *config, *arena_config, *cold_config, *cold_socket, *socket, *prompts_path, *dir, *label, *results;
    char bin[256]; /* folder of demo_worker and demo_scheduler */
    bool speculate;
    int signals, listener, lines; /* lines: of the scheduler, -1 = none */
    struct process daemon, scheduler, worker[WORKERS];
    struct prompts prompts;
    struct report report;
    struct report killed; /* counts of the acts with kills */
    struct report few;    /* of the one with an arena */
    bool killed_exact, few_exact;
    enum act act;
    uint32_t ends, recovered[ENDS]; /* of kvd, in the act with an arena */
    uint64_t cold_tokens;           /* of first prompts, that another kvd had computed */
    struct process first;           /* that kvd */
    char first_arena[96];
    uint64_t demoted_pages, restored_pages; /* by all its instances */
    char arena[96];                         /* file of the arena, which outlives them; "" = none */
    char buffer[32768];
    size_t n_buffer;
    uint64_t began_ms;
};

__attribute__((format(printf, 2, 3))) static void tell_user(const struct run *run, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    printf("  %-14s %5.1f s  %s\n", run->label, (double)(clock_ms() - run->began_ms) / 1000.0, text);
    fflush(stdout);
}

/* ---- processes ------------------------------------------------------------------------------------------ */

static int start_program(struct run *run, const char *name, const char *const *argv, const char *notify, int listener,
                         int *ret_stdout, struct process *ret_process) {
    char log[256];
    snprintf(log, sizeof log, "%s/%s.log", run->dir, name);
    const struct process_spec spec = {
        .name = name, .log = log, .argv = argv, .notify = notify, .listener = listener, .ret_stdout = ret_stdout
    };
    return process_start(&spec, ret_process) == 0 ? 0 : 2;
}

static int start_daemon(struct run *run) {
    int r = process_start_kvd(run->kvd, run->config, run->dir, &run->daemon) == 0 ? 0 : 2;
    if (r == 0) process_arena(&run->daemon, run->arena, sizeof run->arena);
    return r;
}

static int start_worker(struct run *run, uint32_t i) {
    char path[320], scheduler[300], name[32];
    snprintf(path, sizeof path, "%s/demo_worker", run->bin);
    snprintf(scheduler, sizeof scheduler, "%s/scheduler.sock", run->dir);
    snprintf(name, sizeof name, "worker-%u", i);
    const char *const argv[] = { path, "--kvd", run->socket, "--scheduler", scheduler, "--name", name, NULL };
    return start_program(run, name, argv, NULL, -1, NULL, &run->worker[i]);
}

static int start_scheduler(struct run *run) {
    char path[320], workers[8];
    snprintf(path, sizeof path, "%s/demo_scheduler", run->bin);
    snprintf(workers, sizeof workers, "%d", WORKERS);
    const char *argv[12] = { path, "--kvd", run->socket, "--prompts", run->prompts_path, "--workers", workers };
    uint32_t n = 7;
    if (run->report.reference) argv[n++] = "--no-reuse";
    else if (run->speculate) argv[n++] = "--speculate";
    if (run->act == ACT_ARENA) argv[n++] = "--step";
    if (run->act == ACT_COLD) argv[n++] = "--cold";
    run->n_buffer = 0;
    return start_program(run, "scheduler", argv, NULL, run->listener, &run->lines, &run->scheduler);
}

static int take_line(struct run *run, struct report_line *ret_line) {
    char line[sizeof run->buffer];
    const char *newline = memchr(run->buffer, '\n', run->n_buffer);
    if (!newline) return 0;
    size_t n = (size_t)(newline - run->buffer);
    memcpy(line, run->buffer, n);
    line[n] = '\0';
    run->n_buffer -= n + 1;
    memmove(run->buffer, newline + 1, run->n_buffer);
    if (report_line(&run->report, line, ret_line) == 0) return 1;
    fprintf(stderr, "demo_run: the scheduler said what it never should: %.80s\n", line);
    return -1;
}

static ssize_t read_lines(struct run *run) {
    ssize_t got;
    while ((got = read(run->lines, run->buffer + run->n_buffer, sizeof run->buffer - run->n_buffer)) < 0 &&
           errno == EINTR)
        ;
    run->n_buffer += got > 0 ? (size_t)got : 0;
    return got;
}

/* The listening socket stays: workers that lost their scheduler stand in line there for the next one. What the dead one
 * had still said counts. */
static int stop_scheduler(struct run *run) {
    struct report_line line;
    process_kill(&run->scheduler);
    do
        while (take_line(run, &line) > 0)
            ;
    while (read_lines(run) > 0);
    close(run->lines);
    run->lines = -1;
    report_restart(&run->report);
    return start_scheduler(run);
}

static void stop_daemon(struct process *daemon) {
    process_signal(daemon, SIGTERM);
    if (process_wait(daemon, STOP_MS) == -ETIMEDOUT) process_kill(daemon);
}

static void kill_all(struct run *run) {
    process_kill(&run->scheduler);
    for (uint32_t i = 0; i < WORKERS; i++) process_kill(&run->worker[i]);
    stop_daemon(&run->daemon);
    stop_daemon(&run->first);
}

/* ---- acts ------------------------------------------------------------------------------------------------- */

static int kill_worker(struct run *run, const struct report_line *line) {
    for (uint32_t i = 0; i < WORKERS; i++)
        if ((uint32_t)run->worker[i].pid == line->pid) {
            process_kill(&run->worker[i]);
            tell_user(run, "SIGKILL of worker %u, which was at token %u of its answer to '%s'; a new one starts",
                      line->pid, line->index + line->n, run->prompts.conversation[line->conversation].name);
            return start_worker(run, i);
        }
    return 0;
}

static int kill_everything(struct run *run) {
    process_signal(&run->scheduler, SIGKILL);
    for (uint32_t i = 0; i < WORKERS; i++) process_kill(&run->worker[i]);
    tell_user(run, "SIGKILL of the scheduler and of all workers; only kvd goes on");
    for (uint32_t i = 0; i < WORKERS; i++)
        if (start_worker(run, i) != 0) return 2;
    return stop_scheduler(run);
}

/* Asks kvd as an admin. NULL: it does not answer (printed). */
static kvd_client *ask_daemon(const struct run *run, struct kvd_stats *ret_stats) {
    const struct kvd_connect_options options = {
        .struct_size = sizeof options, .socket = run->socket, .role = KVD_ROLE_ADMIN, .name = "demo-run"
    };
    struct kvd_error error;
    kvd_client *client = NULL;
    if (kvd_connect(&options, &client, &error) == KVD_OK && kvd_stats(client, ret_stats, &error) == KVD_OK)
        return client;
    fprintf(stderr, "demo_run: kvd does not answer: %s\n", error.message);
    kvd_disconnect(client);
    return NULL;
}

static int add_moves(struct run *run) {
    struct kvd_stats stats;
    kvd_client *client = ask_daemon(run, &stats);
    if (!client) return 2;
    kvd_disconnect(client);
    run->demoted_pages += stats.demoted_pages;
    run->restored_pages += stats.restored_pages;
    return 0;
}

/* Ends kvd and starts it again; workers and a scheduler that are there go on with the new instance. */
static int restart_daemon(struct run *run, int signal, uint32_t *ret_recovered) {
    struct kvd_stats stats;
    process_signal(&run->daemon, signal);
    int code = process_wait(&run->daemon, STOP_MS);
    if (code != (signal == SIGKILL ? 128 + SIGKILL : 0)) {
        fprintf(stderr, "demo_run: kvd does not stop in order (%d); its words are in %s\n", code, run->daemon.log);
        return 2;
    }
    if (start_daemon(run) != 0) return 2;
    kvd_client *client = ask_daemon(run, &stats);
    if (!client) return 2;
    kvd_disconnect(client);
    *ret_recovered = stats.recovered_continuations;
    return 0;
}

/* All conversations have had a turn: kvd ends, and they go on. */
static int end_daemon(struct run *run) {
    if (run->ends == ENDS) return fprintf(stderr, "demo_run: the prompt list has more than %d turns\n", ENDS + 1), 2;
    int signal = end_signal[run->ends], r = add_moves(run);
    if (r == 0) r = restart_daemon(run, signal, &run->recovered[run->ends]);
    if (r != 0) return r;
    tell_user(run, "SIG%s to kvd after turn %u; %u continuations are back with the next one", sigabbrev_np(signal),
              run->ends + 1, run->recovered[run->ends]);
    run->ends++;
    process_signal(&run->scheduler, SIGUSR1);
    return 0;
}

static int act_on(struct run *run, const struct report_line *line) {
    if (line->kind == REPORT_PAUSE) return end_daemon(run);
    if (line->kind == REPORT_ACTIVATE && line->restored > 0)
        tell_user(run, "'%s' goes on from token %u; %u of its tokens come out of the %s",
                  run->prompts.conversation[line->conversation].name, line->frontier, line->restored,
                  run->act == ACT_COLD && line->turn == 0 ? "cold tier" : "arena");
    if (line->kind == REPORT_ACTIVATE && run->act == ACT_COLD && line->turn == 0) run->cold_tokens += line->restored;
    if (line->kind == REPORT_INSTANCE) tell_user(run, "the scheduler has found the new kvd");
    if (line->kind == REPORT_ADOPT)
        tell_user(run, "kvd kept '%s' up to token %u: it goes on from there",
                  run->prompts.conversation[line->conversation].name, line->frontier);
    if (line->kind == REPORT_CHECKPOINT)
        tell_user(run, "the system prefix of %u tokens is a checkpoint now", line->frontier);
    if (run->act >= ACT_REST || line->kind != REPORT_TOKENS || line->turn != act_point[run->act].turn ||
        line->index < act_point[run->act].index)
        return 0;
    switch (run->act++) {
    case ACT_WORKER: return kill_worker(run, line);
    case ACT_SCHEDULER:
        tell_user(run, "SIGKILL of the scheduler at token %u of an answer in turn 2; a new one knows the prompts only",
                  line->index + line->n);
        return stop_scheduler(run);
    case ACT_EVERYTHING: return kill_everything(run);
    case ACT_REST:
    case ACT_UNDISTURBED:
    case ACT_ARENA:
    case ACT_COLD: break;
    }
    return 0;
}

/* Acts on the whole lines in the buffer; a scheduler that was killed has no more to say. */
static int take_lines(struct run *run) {
    pid_t speaker = run->scheduler.pid;
    struct report_line line;
    int r;
    while ((r = take_line(run, &line)) > 0) {
        r = act_on(run, &line);
        if (r != 0 || run->scheduler.pid != speaker) return r;
    }
    return r == 0 ? 0 : 2;
}

/* A worker or kvd that ends by itself is a failure: says which. */
static bool lost_one(const struct run *run) {
    const struct process *all[WORKERS + 1] = { &run->daemon };
    for (uint32_t i = 0; i < WORKERS; i++) all[1 + i] = &run->worker[i];
    for (uint32_t i = 0; i < WORKERS + 1; i++)
        if (process_ended(all[i])) {
            fprintf(stderr, "demo_run: %s ended by itself; its words are in %s\n", all[i]->name, all[i]->log);
            return true;
        }
    return false;
}

/* Until the scheduler of this run ends in order. */
static int follow_report(struct run *run) {
    for (;;) {
        struct pollfd fds[3 + WORKERS] = { { .fd = run->lines, .events = POLLIN },
                                           { .fd = run->signals, .events = POLLIN },
                                           { .fd = run->daemon.pidfd, .events = POLLIN } };
        for (uint32_t i = 0; i < WORKERS; i++)
            fds[3 + i] = (struct pollfd){ .fd = run->worker[i].pidfd, .events = POLLIN };
        int n = poll(fds, 3 + WORKERS, SILENCE_MS);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) fprintf(stderr, "demo_run: no token for %d seconds; logs are in %s\n", SILENCE_MS / 1000, run->dir);
        if (n <= 0 || fds[1].revents != 0 || lost_one(run)) return 2;
        if (fds[0].revents == 0) continue;
        if (read_lines(run) > 0) {
            int r = take_lines(run);
            if (r != 0) return r;
            continue;
        }
        close(run->lines);
        run->lines = -1;
        int code = process_wait(&run->scheduler, STOP_MS);
        if (code != 0)
            fprintf(stderr, "demo_run: the scheduler ended with code %d; its words are in %s\n", code,
                    run->scheduler.log);
        return code == 0 ? 0 : 2;
    }
}

/* ---- the row ------------------------------------------------------------------------------------------------ */

static void show_answers(const struct run *run) {
    const struct report_turn *turn = run->report.turn;
    char text[100];
    uint32_t n = 0;
    for (; n < turn->n_reference && n < sizeof text - 1; n++)
        text[n] = turn->reference[n] == '\n' ? ' ' : (char)turn->reference[n];
    text[n] = '\0';
    tell_user(run, "it says: \"%s\"", text);
}

static int check_daemon(const struct run *run) {
    static struct kvd_audit audit;
    struct kvd_stats stats;
    struct kvd_error error;
    kvd_client *client = ask_daemon(run, &stats);
    if (!client) return 2;
    int r = 2;
    if (kvd_audit(client, &audit, &error) != KVD_OK) fprintf(stderr, "demo_run: no audit: %s\n", error.message);
    else if (audit.violations != 0)
        fprintf(stderr, "demo_run: the audit found %u violations:\n%s\n", audit.violations, audit.text);
    else if (stats.sequences != 0) fprintf(stderr, "demo_run: %u sequences are left\n", stats.sequences);
    else r = 0;
    kvd_disconnect(client);
    return r;
}

static const char *yes_no(bool yes) { return yes ? "yes" : "NO"; }

static int write_row(const struct run *run) {
    const struct report *r = &run->killed, *a = &run->few, *c = &run->report;
    FILE *file = run->results ? fopen(run->results, "ae") : NULL;
    if (!file) return run->results ? 2 : 0;
    fprintf(file, "%s|%u|%llu|%llu|%llu|%llu|%llu|%s", run->label, r->prompts_sent,
            (unsigned long long)r->prompt_tokens, (unsigned long long)r->reused, (unsigned long long)r->recomputed,
            (unsigned long long)r->prefix_again, (unsigned long long)r->said_again, yes_no(run->killed_exact));
    if (run->arena_config)
        fprintf(file, "|%u|%llu|%llu|%llu|%llu|%llu|%llu|%u|%u|%s", a->prompts_sent,
                (unsigned long long)a->prompt_tokens, (unsigned long long)a->reused, (unsigned long long)a->restored,
                (unsigned long long)a->recomputed, (unsigned long long)run->demoted_pages,
                (unsigned long long)run->restored_pages, run->recovered[0], run->recovered[1], yes_no(run->few_exact));
    if (run->cold_config)
        fprintf(file, "|%u|%llu|%llu|%llu|%s", c->prompts_sent, (unsigned long long)c->prompt_tokens,
                (unsigned long long)c->reused, (unsigned long long)run->cold_tokens, yes_no(report_exact(c)));
    fputc('\n', file);
    return fclose(file) == 0 ? 0 : 2;
}

static int run_reference(struct run *run) {
    run->report.reference = true;
    run->act = ACT_UNDISTURBED;
    int r = start_scheduler(run);
    if (r == 0) r = follow_report(run);
    if (r == 0)
        tell_user(run, "reference: %u prompts from their first token, %llu tokens said", run->report.prompts_sent,
                  (unsigned long long)run->report.produced);
    if (r == 0) show_answers(run);
    return r;
}

static int run_acts(struct run *run) {
    report_begin(&run->report);
    run->act = ACT_WORKER;
    int r = start_scheduler(run);
    if (r == 0) r = follow_report(run);
    if (r == 0 && run->act != ACT_REST) {
        fprintf(stderr, "demo_run: the run ended before all kills were made: the answers are too short\n");
        r = 2;
    }
    return r == 0 ? check_daemon(run) : r;
}

static void tell_wrong(const struct run *run) {
    const struct report *r = &run->report;
    if (r->wrong > 0)
        tell_user(run, "%llu tokens are wrong; the first is token %u of the answer to '%s' in turn %u",
                  (unsigned long long)r->wrong, r->wrong_token, run->prompts.conversation[r->wrong_conversation].name,
                  r->wrong_turn + 1);
}

/* Says how it went. True: as it should be. */
static bool judge_acts(const struct run *run) {
    const struct report *report = &run->report;
    bool exact = report_exact(report);
    tell_wrong(run);
    if (report->drafted > 0)
        tell_user(run, "%llu of %llu drafts accepted", (unsigned long long)report->accepted,
                  (unsigned long long)report->drafted);
    tell_user(run, "%llu of %llu prompt tokens reused; %s", (unsigned long long)report->reused,
              (unsigned long long)report->prompt_tokens,
              exact ? "every token is that of the reference" : "NOT the tokens of the reference");
    return exact && report->reused > 0 && report->prefix_again == 0 && (!run->speculate || report->accepted > 0);
}

static int run_arena(struct run *run) {
    uint32_t recovered;
    run->config = run->arena_config;
    run->act = ACT_ARENA;
    report_begin(&run->report);
    int r = restart_daemon(run, SIGTERM, &recovered);
    if (r == 0)
        tell_user(run, "another kvd: few pages, and an arena in host memory; the workers attach to it by themselves");
    if (r == 0) r = start_scheduler(run);
    if (r == 0) r = follow_report(run);
    if (r == 0) r = add_moves(run);
    if (r == 0 && run->ends != ENDS) {
        fprintf(stderr, "demo_run: kvd was ended %u times: the prompt list needs %d turns\n", run->ends, ENDS + 1);
        r = 2;
    }
    return r == 0 ? check_daemon(run) : r;
}

static bool judge_arena(const struct run *run) {
    const struct report *report = &run->report;
    bool exact = report_exact(report);
    tell_wrong(run);
    tell_user(run, "%llu pages went to the arena, %llu came back; %llu of %llu reused tokens are out of it; %s",
              (unsigned long long)run->demoted_pages, (unsigned long long)run->restored_pages,
              (unsigned long long)report->restored, (unsigned long long)report->reused,
              exact ? "every token is that of the reference" : "NOT the tokens of the reference");
    return exact && report->restored > 0 && report->prefix_again == 0 && run->demoted_pages > 0 &&
           run->restored_pages > 0 && run->recovered[0] > 0 && run->recovered[1] > 0;
}

/* What the first kvd has of the conversations is in the cold tier. */
static int await_written(const struct run *run) {
    struct kvd_cold_tier cold = { 0 };
    struct kvd_stats stats;
    struct kvd_error error = { .message = "it was not written in time" };
    kvd_client *client = ask_daemon(run, &stats);
    if (!client) return 2;
    uint64_t end = clock_ms() + SILENCE_MS;
    while (kvd_describe_cold_tier(client, &cold, &error) == KVD_OK && clock_ms() < end &&
           (cold.waiting > 0 || cold.continuations == 0))
        poll(NULL, 0, 20);
    bool written = cold.waiting == 0 && cold.continuations > 0;
    if (!written) fprintf(stderr, "demo_run: the cold tier does not have the conversations: %s\n", error.message);
    kvd_disconnect(client);
    return written ? 0 : 2;
}

/* Another host: a kvd, an arena and an engine of its own. The first kvd goes on beside it. */
static int start_other_host(struct run *run) {
    for (uint32_t i = 0; i < WORKERS; i++) process_kill(&run->worker[i]);
    run->first = run->daemon;
    memcpy(run->first_arena, run->arena, sizeof run->arena);
    run->daemon = (struct process){ .pid = 0 };
    run->config = run->cold_config;
    run->socket = run->cold_socket;
    int r = start_daemon(run);
    for (uint32_t i = 0; r == 0 && i < WORKERS; i++) r = start_worker(run, i);
    return r;
}

static int run_cold(struct run *run) {
    run->act = ACT_COLD;
    report_begin(&run->report);
    int r = await_written(run);
    if (r == 0) r = start_other_host(run);
    if (r == 0)
        tell_user(run, "a second kvd with an engine of its own, which knows what the first wrote into redis-server");
    if (r == 0) r = start_scheduler(run);
    if (r == 0) r = follow_report(run);
    return r == 0 ? check_daemon(run) : r;
}

static bool judge_cold(const struct run *run) {
    bool exact = report_exact(&run->report);
    tell_wrong(run);
    tell_user(run, "%llu tokens of first prompts came out of the cold tier; %s", (unsigned long long)run->cold_tokens,
              exact ? "every token is that of the reference" : "NOT the tokens of the reference");
    return exact && run->cold_tokens > 0;
}

static int run_row(struct run *run) {
    bool good = true;
    int r = start_daemon(run);
    for (uint32_t i = 0; r == 0 && i < WORKERS; i++) r = start_worker(run, i);
    if (r == 0) r = run_reference(run);
    if (r == 0 && (r = run_acts(run)) == 0) {
        good = judge_acts(run);
        run->killed_exact = report_exact(&run->report);
        run->killed = run->report;
    }
    if (r == 0 && run->arena_config && (r = run_arena(run)) == 0) {
        good = judge_arena(run) && good;
        run->few_exact = report_exact(&run->report);
        run->few = run->report;
    }
    if (r == 0 && run->cold_config && (r = run_cold(run)) == 0) good = judge_cold(run) && good;
    if (r == 0) r = write_row(run);
    return r == 0 && !good ? 4 : r;
}

static int run_all(struct run *run) {
    char err[512], path[300];
    if (prompts_load(run->prompts_path, &run->prompts, err, sizeof err) != 0)
        return fprintf(stderr, "demo_run: %s\n", err), 2;
    snprintf(path, sizeof path, "%s/scheduler.sock", run->dir);
    run->listener = wire_listen(path);
    if (run->listener < 0 || report_init(&run->report, &run->prompts) != 0)
        return fprintf(stderr, "demo_run: cannot listen at %s: %s\n", path, strerror(-run->listener)), 2;
    run->began_ms = clock_ms();
    run->lines = -1;
    int r = run_row(run);
    for (uint32_t i = 0; i < WORKERS; i++) process_signal(&run->worker[i], SIGTERM);
    for (uint32_t i = 0; r == 0 && i < WORKERS; i++) r = process_wait(&run->worker[i], STOP_MS) == 0 ? 0 : 2;
    process_signal(&run->daemon, SIGTERM);
    if (r == 0 && process_wait(&run->daemon, STOP_MS) != 0) {
        fprintf(stderr, "demo_run: kvd does not stop in order; its words are in %s\n", run->daemon.log);
        r = 2;
    }
    kill_all(run);
    if (run->arena[0]) (void)unlink(run->arena);
    if (run->first_arena[0]) (void)unlink(run->first_arena);
    report_fini(&run->report);
    prompts_free(&run->prompts);
    return r;
}

static const char usage[] =
    "Usage: demo_run --kvd PROGRAM --config FILE --socket PATH --prompts FILE --dir DIR\n"
    "                [--arena-config FILE [--cold-config FILE --cold-socket PATH]] [--label NAME] [--results FILE]\n"
    "                [--speculate]\n"
    "Runs the demo once with the kvd that FILE configures (its socket is PATH); sockets and logs go to DIR.\n"
    "  --arena-config FILE  then again with the kvd of this file, which has the same socket and model, few pages and "
    "an\n"
    "                       arena; it is restarted twice. The prompt list must have three turns\n"
    "  --cold-config FILE   then the kvd of this file with an engine of its own, whose socket is --cold-socket; both "
    "files\n"
    "                       name the same cold tier\n"
    "  --results FILE       append the row: label, prompts, their tokens, reused, recomputed, shared prefix again,\n"
    "                       answers said again, exact; of the arena: prompts, their tokens, reused, of these out of\n"
    "                       the arena, recomputed, pages copied to it and from it, continuations back after SIGTERM\n"
    "                       and after SIGKILL, exact; of the cold tier: prompts, their tokens, reused, of first "
    "prompts\n"
    "                       out of the cold tier, exact\n"
    "  --speculate          with drafts in the MTP pool; the reference is without\n"
    "Exit: 0 exact, 1 usage, 2 could not run, 4 not exact or nothing reused\n";

static void own_folder(char *ret_folder, size_t bytes) {
    ssize_t n = readlink("/proc/self/exe", ret_folder, bytes - 1);
    ret_folder[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(ret_folder, '/');
    if (slash) *slash = '\0';
}

int main(int argc, char **argv) {
    static const struct option options[] = { { "kvd", required_argument, NULL, 'k' },
                                             { "config", required_argument, NULL, 'c' },
                                             { "socket", required_argument, NULL, 's' },
                                             { "prompts", required_argument, NULL, 'p' },
                                             { "dir", required_argument, NULL, 'd' },
                                             { "label", required_argument, NULL, 'l' },
                                             { "results", required_argument, NULL, 'r' },
                                             { "arena-config", required_argument, NULL, 'a' },
                                             { "cold-config", required_argument, NULL, 'C' },
                                             { "cold-socket", required_argument, NULL, 'o' },
                                             { "speculate", no_argument, NULL, 'S' },
                                             { "help", no_argument, NULL, 'h' },
                                             { NULL, 0, NULL, 0 } };
    static struct run run = { .label = "demo" };
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (o) {
        case 'k': run.kvd = optarg; break;
        case 'c': run.config = optarg; break;
        case 's': run.socket = optarg; break;
        case 'p': run.prompts_path = optarg; break;
        case 'd': run.dir = optarg; break;
        case 'l': run.label = optarg; break;
        case 'r': run.results = optarg; break;
        case 'a': run.arena_config = optarg; break;
        case 'C': run.cold_config = optarg; break;
        case 'o': run.cold_socket = optarg; break;
        case 'S': run.speculate = true; break;
        default: return fputs(usage, o == 'h' ? stdout : stderr), o == 'h' ? 0 : 1;
        }
    }
    if (!run.kvd || !run.config || !run.socket || !run.prompts_path || !run.dir || optind != argc ||
        (run.cold_config && !(run.arena_config && run.cold_socket)))
        return fputs(usage, stderr), 1;
    own_folder(run.bin, sizeof run.bin);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    run.signals = signalfd(-1, &set, SFD_CLOEXEC);
    return run_all(&run);
}
