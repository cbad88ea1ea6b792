/* SPDX-License-Identifier: Apache-2.0 */
#include "instance.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#define SECONDS_TO_START 120
#define SYSTEM_FOLDERS "/usr/sbin:/usr/local/sbin"

static bool fail_with(const char *what) {
    fprintf(stderr, "kvd-replay: %s: %s\n", what, strerror(errno));
    return false;
}

bool instance_prepare(struct replay_instance *k, const char *program, const char *more) {
    *k = (struct replay_instance){ .program = program, .dir = "/tmp/kvd-replay-XXXXXX" };
    if (!mkdtemp(k->dir)) return fail_with(k->dir);
    snprintf(k->socket, sizeof k->socket, "%s/kvd.sock", k->dir);
    snprintf(k->config, sizeof k->config, "%s/kvd.conf", k->dir);
    snprintf(k->log, sizeof k->log, "%s/log", k->dir);
    FILE *f = fopen(k->config, "we");
    if (!f) return fail_with(k->config);
    fprintf(f, "[kvd]\nsocket = %s\nstore = replay\nlog_level = warning\n%s", k->socket, more);
    return fclose(f) == 0 || fail_with(k->config);
}

static _Noreturn void become_kvd(const struct replay_instance *k, const char *notify, int log) {
    char *arguments[] = { (char[]){ "kvd" }, (char[]){ "--config" }, (char *)(uintptr_t)k->config, NULL };
    char path[4096];
    const char *before = getenv("PATH");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    snprintf(path, sizeof path, "%s%s" SYSTEM_FOLDERS, before ? before : "", before ? ":" : "");
    setenv("PATH", path, 1);
    setenv("NOTIFY_SOCKET", notify, 1);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execvp(k->program ? k->program : "kvd", arguments);
    fprintf(stderr, "kvd-replay: %s cannot be run: %s; --kvd says where it is\n", k->program ? k->program : "kvd",
            strerror(errno));
    _exit(127);
}

static int open_notify(const char *path) {
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

/* For READY=1, or its end. */
static bool wait_ready(struct replay_instance *k, int notify) {
    time_t end = time(NULL) + SECONDS_TO_START;
    char text[512];
    while (time(NULL) < end) {
        struct pollfd p = { .fd = notify, .events = POLLIN };
        ssize_t n = poll(&p, 1, 50) == 1 ? recv(notify, text, sizeof text - 1, 0) : 0;
        text[n > 0 ? n : 0] = 0;
        if (strstr(text, "READY=1")) return true;
        if (waitpid(k->pid, NULL, WNOHANG) != k->pid) continue;
        k->pid = 0;
        return false;
    }
    return false;
}

static void show_log(const struct replay_instance *k) {
    char line[512];
    FILE *f = fopen(k->log, "re");
    while (f && fgets(line, sizeof line, f)) fprintf(stderr, "    %s", line);
    if (f) fclose(f);
}

bool instance_start(struct replay_instance *k) {
    char path[64];
    snprintf(path, sizeof path, "%s/notify", k->dir);
    int notify = open_notify(path), log = open(k->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    bool fine = notify >= 0 && log >= 0;
    if (fine) {
        fflush(NULL);
        k->pid = fork();
        if (k->pid == 0) become_kvd(k, path, log);
        fine = k->pid > 0 && wait_ready(k, notify);
    }
    if (notify >= 0) close(notify);
    if (log >= 0) close(log);
    unlink(path);
    if (fine) return true;
    fprintf(stderr, "kvd-replay: kvd has not started; its log:\n");
    show_log(k);
    return false;
}

void instance_kill(struct replay_instance *k) {
    if (k->pid <= 0) return;
    kill(k->pid, SIGKILL);
    waitpid(k->pid, NULL, 0);
    k->pid = 0;
}

bool instance_end(struct replay_instance *k) {
    static const char *const names[] = { "kvd.conf", "log", "notify", "kvd.sock", "kvd.sock.lock" };
    char path[96];
    int status = 0;
    if (k->pid > 0) {
        kill(k->pid, SIGTERM);
        waitpid(k->pid, &status, 0);
    }
    if (status) {
        fprintf(stderr, "kvd-replay: kvd ended with status %#x; its log:\n", (unsigned)status);
        show_log(k);
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", k->dir, names[i]);
        unlink(path);
    }
    snprintf(path, sizeof path, "/dev/shm/kvd-arena-%016" PRIx64, (uint64_t)XXH3_64bits(k->socket, strlen(k->socket)));
    unlink(path);
    rmdir(k->dir);
    return status == 0;
}
