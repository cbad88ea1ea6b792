/* SPDX-License-Identifier: Apache-2.0
 *
 * demo_scheduler: runs the conversations of a prompt list on demo_workers. Progress goes to standard output, a line
 * an event:
 *
 *     worker PID                                  joined
 *     lost PID                                    gone
 *     activate NAME TURN PROMPT FRONTIER HOW PID RESTORED
 *                                                 a sequence of PROMPT tokens, FRONTIER from kvd, of these RESTORED out
 *                                                 of the host arena; root, fork or move
 *     tokens NAME TURN PID INDEX HEX              produced
 *     checkpoint NAME FRONTIER                    of the shared prefix
 *     adopt NAME TURN FRONTIER                    what kvd kept when the worker died (0: found by name)
 *     end NAME TURN OUTPUT DRAFTED ACCEPTED
 *     pause TURNS                                 all have had so many turns; goes on with SIGUSR1 (--step)
 *     instance EPOCH                              kvd was restarted; connected anew
 *
 * Exit codes: 0 all conversations are over, 1 usage, 2 failed, 3 kvd is gone.
 */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "again.h"
#include "scheduler.h"

#define ORPHAN_MS 3000 /* kvd says within 100 ms of a death what is left; after this, look by name */
#define RETRY_MS 100   /* nothing runs here and kvd is short: others' sequences have to end */
#define COLD_MS 10000  /* a kvd that has just started may not have met the engine of its cold tier */
#define LISTEN_FDS_START 3

static void hear_join(struct scheduler *s, int listener) {
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    for (uint32_t i = 0; fd >= 0 && i < SCHEDULER_WORKERS; i++)
        if (s->peer[i].fd < 0) {
            s->peer[i] = (struct worker_peer){ .fd = fd };
            return;
        }
    if (fd >= 0) close(fd);
}

static void lose_worker(struct scheduler *s, struct worker_peer *worker) {
    printf("lost %u\n", worker->pid);
    for (uint32_t i = 0; i < s->prompts.n_conversations; i++)
        if (s->request[i].worker == worker) request_orphan(s, &s->request[i]);
    close(worker->fd);
    *worker = (struct worker_peer){ .fd = -1 };
}

static void welcome_worker(struct scheduler *s, const struct worker_peer *worker) {
    s->message.type = WIRE_WELCOME;
    s->message.session = kvd_client_session(s->client).bits;
    s->message.n_tokens = 0;
    (void)wire_send(worker->fd, &s->message);
}

/* It is there, and in the same instance of kvd as the scheduler. */
static bool has_joined(const struct scheduler *s, const struct worker_peer *worker) {
    return worker->fd >= 0 && worker->session.bits != 0 && worker->epoch == kvd_client_epoch(s->client);
}

static int hear_worker(struct scheduler *s, struct worker_peer *worker) {
    static struct wire_message m;
    int r;
    while ((r = wire_receive(worker->fd, false, &m)) > 0) {
        if (m.type == WIRE_HELLO) {
            worker->session.bits = m.session;
            worker->epoch = m.epoch;
            worker->pid = m.pid;
            printf("worker %u\n", m.pid);
            welcome_worker(s, worker);
            continue;
        }
        struct demo_request *request = m.id < s->prompts.n_conversations ? &s->request[m.id] : NULL;
        if (request && request->worker == worker && request_hear(s, request, &m) != 0) return -1;
    }
    if (r != -EAGAIN) lose_worker(s, worker);
    return 0;
}

static int hear_kvd(struct scheduler *s) {
    struct kvd_event event;
    struct kvd_error error;
    enum kvd_status status;
    while ((status = kvd_next_event(s->client, 0, &event, &error)) == KVD_OK)
        for (uint32_t i = 0; event.kind == KVD_EVENT_SEQUENCE_ENDED && i < s->prompts.n_conversations; i++) {
            struct demo_request *request = &s->request[i];
            if (request->sequence.bits != event.sequence.bits) continue;
            if (request->state == REQUEST_RUNNING) /* kvd was quicker than the socket: hear its last words first */
                if (hear_worker(s, request->worker) != 0) return -1;
            if (request->state == REQUEST_RUNNING) request_orphan(s, request);
            if (request->state == REQUEST_ORPHANED) request_adopt(s, request, event.continuation);
        }
    if (status == KVD_DEADLINE_EXCEEDED) return 0;
    fprintf(stderr, "demo_scheduler: kvd is gone: %s\n", error.message);
    return -3;
}

/* The worker with the least to do. */
static struct worker_peer *choose_worker(struct scheduler *s) {
    struct worker_peer *best = NULL;
    for (uint32_t i = 0; i < SCHEDULER_WORKERS; i++)
        if (has_joined(s, &s->peer[i]) && (!best || s->peer[i].load < best->load)) best = &s->peer[i];
    return best;
}

static int start_waiting(struct scheduler *s) {
    for (uint32_t i = 0; i < s->prompts.n_conversations; i++) {
        struct worker_peer *worker = choose_worker(s);
        if (s->request[i].state != REQUEST_WAITING || s->request[i].turn >= s->turns || !worker) continue;
        if (request_start(s, &s->request[i], worker) != 0) return -1;
    }
    return 0;
}

static uint32_t count_requests(const struct scheduler *s, enum request_state state) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->prompts.n_conversations; i++) n += s->request[i].state == state;
    return n;
}

static uint32_t joined(const struct scheduler *s) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < SCHEDULER_WORKERS; i++) n += has_joined(s, &s->peer[i]);
    return n;
}

static int patience(const struct scheduler *s) {
    if (count_requests(s, REQUEST_ORPHANED) > 0) return ORPHAN_MS;
    bool idle = count_requests(s, REQUEST_WAITING) > 0 && count_requests(s, REQUEST_RUNNING) == 0;
    return idle && joined(s) > 0 && !s->paused ? RETRY_MS : -1;
}

/* SIGUSR1 opens the next turn. True: another signal, the end. */
static bool hear_signal(struct scheduler *s, int signals) {
    struct signalfd_siginfo info;
    if (read(signals, &info, sizeof info) != sizeof info || info.ssi_signo != SIGUSR1) return true;
    s->turns++;
    s->paused = false;
    return false;
}

static void pause_between_turns(struct scheduler *s) {
    for (uint32_t i = 0; i < s->prompts.n_conversations; i++)
        if (s->request[i].state != REQUEST_OVER &&
            (s->request[i].state != REQUEST_WAITING || s->request[i].turn < s->turns))
            return;
    if (!s->paused) printf("pause %u\n", s->turns);
    s->paused = true;
}

/* Waits for workers, kvd or a signal, and hears them. 0; 1 end in order; negative: failed. */
static int hear(struct scheduler *s, int listener, int signals) {
    struct pollfd fds[3 + SCHEDULER_WORKERS] = { { .fd = listener, .events = POLLIN },
                                                 { .fd = signals, .events = POLLIN },
                                                 { .fd = kvd_client_fd(s->client), .events = POLLIN } };
    for (uint32_t i = 0; i < SCHEDULER_WORKERS; i++)
        fds[3 + i] = (struct pollfd){ .fd = s->peer[i].fd, .events = POLLIN };
    int n;
    while ((n = poll(fds, 3 + SCHEDULER_WORKERS, patience(s))) < 0 && errno == EINTR)
        ;
    if (fds[1].revents != 0 && hear_signal(s, signals)) return 1;
    for (uint32_t i = 0; i < SCHEDULER_WORKERS; i++)
        if (fds[3 + i].revents != 0 && s->peer[i].fd == fds[3 + i].fd && hear_worker(s, &s->peer[i]) != 0) return -2;
    int r = hear_kvd(s);
    if (r != 0) return r;
    for (uint32_t i = 0; n == 0 && i < s->prompts.n_conversations; i++)
        if (s->request[i].state == REQUEST_ORPHANED) request_adopt(s, &s->request[i], (kvd_continuation){ 0 });
    if (fds[0].revents != 0) hear_join(s, listener);
    return 0;
}

/* What kvd says about itself, and its events from now on. */
static enum kvd_status look_around(struct scheduler *s, struct kvd_error *error) {
    struct kvd_stats stats;
    enum kvd_status status = kvd_describe(s->client, &s->info, error);
    if (status == KVD_OK) status = kvd_stats(s->client, &stats, error);
    if (status == KVD_OK) status = kvd_subscribe(s->client, KVD_EVENT_MASK(KVD_EVENT_SEQUENCE_ENDED), error);
    if (status == KVD_OK) s->arena = stats.host_capacity > 0;
    return status;
}

/* Whether what failed did so because kvd is gone. */
static bool kvd_is_gone(struct scheduler *s) {
    struct kvd_error error;
    return kvd_status_retryable(look_around(s, &error));
}

/* 0 goes on, 1 end in order, -3. */
static int meet_other_kvd(struct scheduler *s, const struct kvd_connect_options *options, int signals) {
    struct kvd_error error;
    enum again again;
    while ((again = kvd_again(&s->client, options, signals)) == AGAIN_STOP && !hear_signal(s, signals))
        ;
    if (again == AGAIN_SAME) return 0;
    if (again != AGAIN_OTHER) return again == AGAIN_STOP ? 1 : -3;
    for (uint32_t i = 0; i < s->prompts.n_conversations; i++) request_forget(&s->request[i]);
    s->holder = NULL;
    for (uint32_t i = 0; i < SCHEDULER_WORKERS; i++) {
        s->peer[i].load = 0;
        if (has_joined(s, &s->peer[i])) /* before the scheduler itself */
            welcome_worker(s, &s->peer[i]);
    }
    printf("instance %016llx\n", (unsigned long long)kvd_client_epoch(s->client));
    enum kvd_status status = look_around(s, &error);
    if (status == KVD_OK || kvd_status_retryable(status)) /* gone once more: met by the next call */
        return 0;
    fprintf(stderr, "demo_scheduler: %s\n", error.message);
    return -2;
}

static int serve_conversations(struct scheduler *s, const struct kvd_connect_options *options, int listener,
                               int signals, uint32_t n_workers) {
    bool enough = false;
    while (count_requests(s, REQUEST_OVER) < s->prompts.n_conversations) {
        enough = enough || joined(s) >= n_workers;
        int r = enough ? start_waiting(s) : 0;
        pause_between_turns(s);
        fflush(stdout);
        if (r == 0) r = hear(s, listener, signals);
        if (r < 0 && (r == -3 || kvd_is_gone(s))) r = meet_other_kvd(s, options, signals);
        if (r != 0) return r > 0 ? 0 : r == -3 ? 3 : 2;
    }
    return 0;
}

static int check_context(const struct scheduler *s) {
    for (uint32_t i = 0; i < s->prompts.n_conversations; i++)
        if (prompts_length(&s->prompts, i) > s->info.max_context ||
            prompts_length(&s->prompts, i) > SCHEDULER_CONTEXT) {
            fprintf(stderr,
                    "demo_scheduler: the conversation %s has %u tokens, the store %s takes %u: raise max_context\n",
                    s->prompts.conversation[i].name, prompts_length(&s->prompts, i), s->info.name, s->info.max_context);
            return -1;
        }
    return 0;
}

static int run_scheduler(struct scheduler *s, const char *socket, int listener, int signals, uint32_t n_workers) {
    const struct kvd_connect_options options = {
        .struct_size = sizeof options, .socket = socket, .role = KVD_ROLE_SCHEDULER, .name = "demo-scheduler"
    };
    struct kvd_error error;
    if (kvd_connect(&options, &s->client, &error) != KVD_OK || look_around(s, &error) != KVD_OK) {
        fprintf(stderr, "demo_scheduler: %s\n", error.message);
        kvd_disconnect(s->client);
        return 2;
    }
    int r = check_context(s) == 0 ? 0 : 2;
    for (uint32_t i = 0; i < s->prompts.n_conversations; i++) request_init(s, &s->request[i], i);
    if (r == 0 && s->cold) request_await_cold(s, &s->request[0], COLD_MS);
    if (r == 0) r = serve_conversations(s, &options, listener, signals, n_workers);
    fflush(stdout);
    kvd_disconnect(s->client);
    return r;
}

static const char usage[] =
    "Usage: demo_scheduler --prompts FILE --listen PATH [--kvd SOCKET] [--workers N] [--no-reuse] [--speculate] "
    "[--step] [--cold]\n"
    "Runs the conversations of a prompt list on the demo_workers that connect to PATH.\n"
    "With LISTEN_FDS=1 in the environment, descriptor 3 is the listening socket (SOCK_SEQPACKET) instead of PATH.\n"
    "  --workers N   begin when N workers have joined (default 1)\n"
    "  --no-reuse    compute every prompt from its first token and keep nothing: the reference\n"
    "  --speculate   drafts with the MTP pool, verified by the model\n"
    "  --step        all conversations have a turn, then SIGUSR1 lets them have the next\n"
    "  --cold        load what the cold tier has of a prompt before it is computed\n";

static int signals_fd(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC);
}

int main(int argc, char **argv) {
    static const struct option options[] = {
        { "kvd", required_argument, NULL, 'k' },    { "prompts", required_argument, NULL, 'p' },
        { "listen", required_argument, NULL, 'l' }, { "workers", required_argument, NULL, 'w' },
        { "no-reuse", no_argument, NULL, 'n' },     { "speculate", no_argument, NULL, 's' },
        { "step", no_argument, NULL, 't' },         { "cold", no_argument, NULL, 'c' },
        { "help", no_argument, NULL, 'h' },         { NULL, 0, NULL, 0 }
    };
    static struct scheduler s = { .reuse = true, .turns = PROMPTS_TURNS };
    const char *socket = NULL, *prompts = NULL, *path = NULL, *inherited = getenv("LISTEN_FDS");
    unsigned long workers = 1;
    char err[512];
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (o == 'k') socket = optarg;
        else if (o == 'p') prompts = optarg;
        else if (o == 'l') path = optarg;
        else if (o == 'w') workers = strtoul(optarg, NULL, 10);
        else if (o == 'n') s.reuse = false;
        else if (o == 's') s.speculate = true;
        else if (o == 't') s.turns = 1;
        else if (o == 'c') s.cold = true;
        else return fputs(usage, o == 'h' ? stdout : stderr), o == 'h' ? 0 : 1;
    }
    bool passed = inherited && strcmp(inherited, "1") == 0;
    if (!prompts || (!path && !passed) || optind != argc || workers < 1 || workers > SCHEDULER_WORKERS)
        return fputs(usage, stderr), 1;
    int signals = signals_fd(), listener = passed ? LISTEN_FDS_START : wire_listen(path);
    if (listener < 0 || signals < 0)
        return fprintf(stderr, "demo_scheduler: cannot listen at %s: %s\n", path, strerror(-listener)), 2;
    if (prompts_load(prompts, &s.prompts, err, sizeof err) != 0) return fprintf(stderr, "demo_scheduler: %s\n", err), 2;
    for (uint32_t i = 0; i < SCHEDULER_WORKERS; i++) s.peer[i].fd = -1;
    int r = run_scheduler(&s, socket, listener, signals, (uint32_t)workers);
    prompts_free(&s.prompts);
    return r;
}
