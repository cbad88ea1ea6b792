/* SPDX-License-Identifier: Apache-2.0 */
#include "demo_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* In the child, between fork and exec. */
static void become(const struct process_spec *spec, pid_t parent, int out, int log)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127);
    unsetenv("NOTIFY_SOCKET");
    unsetenv("LISTEN_FDS");
    if (spec->notify)
        setenv("NOTIFY_SOCKET", spec->notify, 1);
    dup2(out >= 0 ? out : log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    if (spec->listener >= 0) {
        setenv("LISTEN_FDS", "1", 1);
        if (spec->listener == 3)
            fcntl(3, F_SETFD, 0);
        else
            dup2(spec->listener, 3);
    }
    execv(spec->argv[0], (char *const *)(uintptr_t)spec->argv);
    dprintf(STDERR_FILENO, "cannot run %s: %s\n", spec->argv[0], strerror(errno));
    _exit(127);
}

int process_start(const struct process_spec *spec, struct process *ret_process)
{
    struct process process = { 0 };
    int pipe_fds[2] = { -1, -1 };
    int log = open(spec->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (log < 0 || (spec->ret_stdout && pipe2(pipe_fds, O_CLOEXEC) != 0)) {
        int e = errno;
        fprintf(stderr, "demo_run: cannot start %s: %s\n", spec->name, strerror(e));
        if (log >= 0)
            close(log);
        return -e;
    }
    fflush(NULL);
    pid_t parent = getpid();
    process.pid = fork();
    if (process.pid == 0)
        become(spec, parent, pipe_fds[1], log);
    close(log);
    if (spec->ret_stdout)
        close(pipe_fds[1]);
    process.pidfd = process.pid > 0 ? (int)syscall(SYS_pidfd_open, process.pid, 0) : -1;
    if (process.pidfd < 0) {
        int e = errno;
        fprintf(stderr, "demo_run: cannot start %s: %s\n", spec->name, strerror(e));
        if (process.pid > 0)
            kill(process.pid, SIGKILL);
        if (spec->ret_stdout)
            close(pipe_fds[0]);
        return -e;
    }
    snprintf(process.name, sizeof process.name, "%s", spec->name);
    snprintf(process.log, sizeof process.log, "%s", spec->log);
    if (spec->ret_stdout)
        *spec->ret_stdout = pipe_fds[0];
    *ret_process = process;
    return 0;
}

void process_signal(const struct process *process, int signal)
{
    if (process->pid > 0)
        kill(process->pid, signal);
}

bool process_ended(const struct process *process)
{
    struct pollfd fd = { .fd = process->pidfd, .events = POLLIN };
    return process->pid > 0 && poll(&fd, 1, 0) == 1;
}

int process_wait(struct process *process, int timeout_ms)
{
    struct pollfd fd = { .fd = process->pidfd, .events = POLLIN };
    int status = 0, n;
    if (process->pid <= 0)
        return 0;
    while ((n = poll(&fd, 1, timeout_ms)) < 0 && errno == EINTR)
        ;
    if (n == 0)
        return -ETIMEDOUT;
    while (waitpid(process->pid, &status, 0) < 0 && errno == EINTR)
        ;
    close(process->pidfd);
    process->pid = 0;
    process->pidfd = -1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void process_kill(struct process *process)
{
    process_signal(process, SIGKILL);
    (void)process_wait(process, -1);
}
