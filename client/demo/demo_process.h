/* SPDX-License-Identifier: Apache-2.0
 *
 * Child processes of demo_run and of benches: they die with it, and each has a pidfd.
 */
#ifndef KVD_DEMO_PROCESS_H
#define KVD_DEMO_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct process {
    pid_t pid; /* 0 = none */
    int pidfd;
    char name[32]; /* for people */
    char log[256]; /* file that its stderr (and stdout without a pipe) goes to */
};

struct process_spec {
    const char *name, *log;
    const char *const *argv; /* argv[0] is the path; NULL ends */
    const char *notify;      /* NOTIFY_SOCKET, or NULL */
    int listener;            /* passed as descriptor 3 with LISTEN_FDS=1, or -1 */
    int *ret_stdout;         /* reading end of a pipe from its stdout, or NULL */
};

/* 0 or -errno (printed). */
int process_start(const struct process_spec *spec, struct process *ret_process);
/* Starts a kvd and waits until it says READY=1; its log and its notify socket are in dir. 0 or -errno (printed); in the
 * latter case the process may be there. */
int process_start_kvd(const char *program, const char *config, const char *dir, struct process *ret_process);
/* The file of this kvd's arena, so that it can be removed in the end: kvd leaves it for the next. Without one nothing
 * is written. */
void process_arena(const struct process *kvd, char *ret_path, size_t bytes);
/* Sends a signal. */
void process_signal(const struct process *process, int signal);
/* Waits for the end; the exit code, or 128 + signal; -ETIMEDOUT: still there after timeout_ms. */
int process_wait(struct process *process, int timeout_ms);
/* SIGKILL, if it is there, and wait. */
void process_kill(struct process *process);
bool process_ended(const struct process *process);

#endif
