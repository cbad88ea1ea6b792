/* SPDX-License-Identifier: Apache-2.0 */
#include "engine.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "look.h"
#include "scheduler.h"
#include "worker.h"

#define SECONDS_TO_NOTICE 180 /* that its other half, or kvd, is dead */

struct replay_engine {
    struct replay *replay;
    struct replay_instance *kvd;
    struct replay_kills *kills;
    pid_t scheduler, worker;
    int fd; /* from the scheduler */
    bool killed, kvd_died, done;
};

static volatile sig_atomic_t interrupted;

static void note_signal(int signal) {
    (void)signal;
    interrupted = 1;
}

void engine_catch_signals(void) {
    struct sigaction action = { .sa_handler = note_signal, .sa_flags = SA_RESTART }; /* poll is never restarted */
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
}

/* ---- processes ------------------------------------------------------------------------------------------------ */

static pid_t fork_child(void) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    return pid;
}

bool engine_look(struct replay *r, int (*look)(struct replay *)) {
    int status = 1;
    pid_t pid = fork_child();
    if (pid == 0) _exit(look(r));
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

static void run_scheduler(struct replay_engine *e, const int *words, const int *orders) {
    close(words[0]);
    close(orders[1]);
    _exit(scheduler_run(e->replay, orders[0], words[1]));
}

static void run_worker(struct replay_engine *e, const int *words, const int *orders) {
    close(words[0]);
    close(words[1]);
    close(orders[0]);
    worker_run(e->replay->socket, orders[1]);
}

static bool start_engine(struct replay_engine *e) {
    int words[2], orders[2];
    e->killed = e->kvd_died = false;
    e->replay->shared->message[0] = 0;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, words)) return false;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, orders)) return false;
    if ((e->worker = fork_child()) == 0) run_worker(e, words, orders);
    if ((e->scheduler = fork_child()) == 0) run_scheduler(e, words, orders);
    close(words[1]);
    close(orders[0]);
    close(orders[1]);
    e->fd = words[0];
    return e->worker > 0 && e->scheduler > 0;
}

/* Both are dead, or about to be. */
static bool reap_engine(struct replay_engine *e) {
    int status = 0;
    close(e->fd);
    kill(e->worker, SIGKILL); /* it may wait for an answer of kvd */
    waitpid(e->worker, NULL, 0);
    waitpid(e->scheduler, &status, 0);
    return status == 0;
}

/* ---- kills ------------------------------------------------------------------------------------------------------- */

static void stop_process(pid_t pid) {
    siginfo_t info;
    kill(pid, SIGSTOP);
    waitid(P_PID, (id_t)pid, &info, WSTOPPED | WEXITED | WNOWAIT);
}

/* The engine stands still, wherever it is, while somebody looks at what the host has; then it finds kvd dead. */
static bool kill_kvd(struct replay_engine *e) {
    stop_process(e->scheduler);
    stop_process(e->worker);
    bool fine = engine_look(e->replay, look_at_host);
    instance_kill(e->kvd);
    kill(e->scheduler, SIGCONT);
    kill(e->worker, SIGCONT);
    e->kills->kvd++;
    e->killed = e->kvd_died = true;
    return fine && instance_start(e->kvd);
}

static bool obey_word(struct replay_engine *e, char word) {
    if (word == SCHEDULER_KILL_KVD) return kill_kvd(e);
    if (word == SCHEDULER_DONE) {
        e->done = true;
        return true;
    }
    kill(word == SCHEDULER_KILL_SCHEDULER ? e->scheduler : e->worker, SIGKILL);
    ++*(word == SCHEDULER_KILL_SCHEDULER ? &e->kills->scheduler : &e->kills->worker);
    e->killed = true;
    return true;
}

static bool stop_watching(struct replay_engine *e) {
    if (interrupted) fprintf(stderr, "kvd-replay: interrupted\n");
    else fprintf(stderr, "kvd-replay: a scheduler has not noticed a death in %d s\n", SECONDS_TO_NOTICE);
    kill(e->scheduler, SIGKILL);
    return false;
}

/* Until the scheduler has ended. */
static bool watch_engine(struct replay_engine *e) {
    char word;
    for (;;) {
        struct pollfd p = { .fd = e->fd, .events = POLLIN };
        int ready = poll(&p, 1, e->killed ? SECONDS_TO_NOTICE * 1000 : -1);
        if (ready == 0 || interrupted) return stop_watching(e);
        if (ready < 0) continue;
        ssize_t n = recv(e->fd, &word, 1, 0);
        if (n <= 0) return true;
        if (!obey_word(e, word)) {
            kill(e->scheduler, SIGKILL);
            return false;
        }
    }
}

static int look_after_kvd(struct replay *r) { return look_at_ledger(r, true); }
static int look_after_engine(struct replay *r) { return look_at_ledger(r, false); }

bool engine_serve(struct replay *r, struct replay_instance *kvd, struct replay_kills *ret_kills) {
    struct replay_engine e = { .replay = r, .kvd = kvd, .kills = ret_kills };
    bool fine = true;
    while (fine && !e.done) {
        if (!start_engine(&e)) {
            fprintf(stderr, "kvd-replay: no process, or no socket, is to be had\n");
            return false;
        }
        fine = watch_engine(&e);
        bool ended_well = reap_engine(&e);
        if (fine && e.killed) fine = engine_look(r, e.kvd_died ? look_after_kvd : look_after_engine);
        else if (!ended_well) fine = false;
    }
    return fine;
}
