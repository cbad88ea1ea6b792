/* SPDX-License-Identifier: Apache-2.0
 *
 * Child processes of demo_run: they die with it, and each has a pidfd.
 */
#ifndef KVD_DEMO_PROCESS_H
#define KVD_DEMO_PROCESS_H

#include <stdbool.h>
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
/* Sends a signal. */
void process_signal(const struct process *process, int signal);
/* Waits for the end; the exit code, or 128 + signal; -ETIMEDOUT: still there after timeout_ms. */
int process_wait(struct process *process, int timeout_ms);
/* SIGKILL, if it is there, and wait. */
void process_kill(struct process *process);
bool process_ended(const struct process *process);

#endif
