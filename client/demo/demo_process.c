/* SPDX-License-Identifier: Apache-2.0 */
#include "demo_process.h"
#include "clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define START_MS 20000 /* of a kvd */

/* In the child, between fork and exec. */
static void become(const struct process_spec *spec, pid_t parent, int out, int log) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    unsetenv("NOTIFY_SOCKET");
    unsetenv("LISTEN_FDS");
    if (spec->notify) setenv("NOTIFY_SOCKET", spec->notify, 1);
    dup2(out >= 0 ? out : log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    if (spec->listener >= 0) {
        setenv("LISTEN_FDS", "1", 1);
        if (spec->listener == 3) fcntl(3, F_SETFD, 0);
        else dup2(spec->listener, 3);
    }
    execv(spec->argv[0], (char *const *)(uintptr_t)spec->argv);
    dprintf(STDERR_FILENO, "cannot run %s: %s\n", spec->argv[0], strerror(errno));
    _exit(127);
}

int process_start(const struct process_spec *spec, struct process *ret_process) {
    struct process process = { 0 };
    int pipe_fds[2] = { -1, -1 };
    int log = open(spec->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (log < 0 || (spec->ret_stdout && pipe2(pipe_fds, O_CLOEXEC) != 0)) {
        int e = errno;
        fprintf(stderr, "%s: cannot start %s: %s\n", program_invocation_short_name, spec->name, strerror(e));
        if (log >= 0) close(log);
        return -e;
    }
    fflush(NULL);
    pid_t parent = getpid();
    process.pid = fork();
    if (process.pid == 0) become(spec, parent, pipe_fds[1], log);
    close(log);
    if (spec->ret_stdout) close(pipe_fds[1]);
    process.pidfd = process.pid > 0 ? (int)syscall(SYS_pidfd_open, process.pid, 0) : -1;
    if (process.pidfd < 0) {
        int e = errno;
        fprintf(stderr, "%s: cannot start %s: %s\n", program_invocation_short_name, spec->name, strerror(e));
        if (process.pid > 0) kill(process.pid, SIGKILL);
        if (spec->ret_stdout) close(pipe_fds[0]);
        return -e;
    }
    snprintf(process.name, sizeof process.name, "%s", spec->name);
    snprintf(process.log, sizeof process.log, "%s", spec->log);
    if (spec->ret_stdout) *spec->ret_stdout = pipe_fds[0];
    *ret_process = process;
    return 0;
}

/* READY=1 on the notify socket. 0, -ETIMEDOUT, or -ECHILD: it has ended. */
static int wait_ready(const struct process *kvd, int notify) {
    struct pollfd fds[2] = { { .fd = notify, .events = POLLIN }, { .fd = kvd->pidfd, .events = POLLIN } };
    char text[256] = "";
    const int64_t end = (int64_t)clock_ms() + START_MS;
    while (!strstr(text, "READY=1")) {
        int64_t left = end - (int64_t)clock_ms();
        int n = left > 0 ? poll(fds, 2, (int)left) : 0;
        if (n < 0 && errno == EINTR) continue;
        ssize_t got = n > 0 && fds[0].revents != 0 ? recv(notify, text, sizeof text - 1, 0) : -1;
        if (got < 0) return n > 0 ? -ECHILD : -ETIMEDOUT;
        text[got] = '\0';
    }
    return 0;
}

int process_start_kvd(const char *program, const char *config, const char *dir, struct process *ret_process) {
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    char log[256];
    snprintf(log, sizeof log, "%s/kvd.log", dir);
    snprintf(address.sun_path, sizeof address.sun_path, "%s/notify", dir);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), r = 0;
    (void)unlink(address.sun_path);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&address, sizeof address) != 0) {
        r = -errno;
        fprintf(stderr, "%s: no notify socket %s: %s\n", program_invocation_short_name, address.sun_path, strerror(-r));
    }
    const char *const argv[] = { program, "--config", config, NULL };
    const struct process_spec spec = {
        .name = "kvd", .log = log, .argv = argv, .notify = address.sun_path, .listener = -1
    };
    if (r == 0) r = process_start(&spec, ret_process);
    if (r == 0 && (r = wait_ready(ret_process, fd)) != 0)
        fprintf(stderr, "%s: kvd does not start; its words are in %s\n", program_invocation_short_name, log);
    if (fd >= 0) close(fd);
    return r;
}

void process_arena(const struct process *kvd, char *ret_path, size_t bytes) {
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/%d/maps", (int)kvd->pid);
    FILE *maps = fopen(path, "re");
    while (maps && fgets(line, sizeof line, maps)) {
        const char *name = strstr(line, "/dev/shm/kvd-arena-");
        if (name) snprintf(ret_path, bytes, "%.*s", (int)strcspn(name, " \n"), name);
    }
    if (maps) fclose(maps);
}

void process_signal(const struct process *process, int signal) {
    if (process->pid > 0) kill(process->pid, signal);
}

bool process_ended(const struct process *process) {
    struct pollfd fd = { .fd = process->pidfd, .events = POLLIN };
    return process->pid > 0 && poll(&fd, 1, 0) == 1;
}

int process_wait(struct process *process, int timeout_ms) {
    struct pollfd fd = { .fd = process->pidfd, .events = POLLIN };
    int status = 0, n;
    if (process->pid <= 0) return 0;
    while ((n = poll(&fd, 1, timeout_ms)) < 0 && errno == EINTR)
        ;
    if (n == 0) return -ETIMEDOUT;
    while (waitpid(process->pid, &status, 0) < 0 && errno == EINTR)
        ;
    close(process->pidfd);
    process->pid = 0;
    process->pidfd = -1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void process_kill(struct process *process) {
    process_signal(process, SIGKILL);
    (void)process_wait(process, -1);
}
