/* SPDX-License-Identifier: Apache-2.0 */
#include "unit_limit.h"

#include <ctype.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"

#define WAIT_NS UINT64_C(3000000000)

/* Until the end of the file or of the time. */
static void read_within(int fd, char *text, size_t bytes) {
    uint64_t end_ns = clock_ns() + WAIT_NS, now;
    size_t n = 0;
    ssize_t got = 1;
    while (n + 1 < bytes && got > 0 && (now = clock_ns()) < end_ns) {
        struct pollfd p = { .fd = fd, .events = POLLIN };
        if (poll(&p, 1, (int)((end_ns - now) / 1000000) + 1) != 1) break;
        got = read(fd, text + n, bytes - 1 - n);
        if (got > 0) n += (size_t)got;
    }
    text[n] = 0;
}

static bool ask_systemctl(const char *unit, char *text, size_t bytes) {
    const char *const arguments[] = { "systemctl",       "show", "--no-pager", "-p", "LoadState", "-p",
                                      "TimeoutStopUSec", "-p",   "ExecStart",  unit, NULL };
    posix_spawn_file_actions_t actions;
    int pipes[2];
    pid_t pid;
    if (pipe2(pipes, O_CLOEXEC)) return false;
    bool started = !posix_spawn_file_actions_init(&actions);
    if (started) {
        posix_spawn_file_actions_adddup2(&actions, pipes[1], STDOUT_FILENO);
        posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
        started = !posix_spawnp(&pid, arguments[0], &actions, NULL, (char *const *)(uintptr_t)arguments, environ);
        posix_spawn_file_actions_destroy(&actions);
    }
    close(pipes[1]);
    if (started) {
        read_within(pipes[0], text, bytes);
        kill(pid, SIGKILL); /* one that is silent; one that has ended does not notice */
        waitpid(pid, NULL, 0);
    }
    close(pipes[0]);
    return started;
}

/* "1min 30s" to ns. False: it is infinity, or nothing that is known. */
static bool read_span(const char *text, uint64_t *ret_ns) {
    static const struct {
        const char *name;
        uint64_t us;
    } units[] = { { "us", 1 },
                  { "ms", 1000 },
                  { "s", 1000000 },
                  { "min", 60000000 },
                  { "h", 3600000000 },
                  { "d", 86400000000 },
                  { "w", 604800000000 },
                  { "month", 2629800000000 },
                  { "y", 31557600000000 } };
    uint64_t sum_us = 0;
    char unit[8];
    int n = 0, parts = 0;
    for (unsigned number; sscanf(text, " %9u%7[a-z]%n", &number, unit, &n) == 2; text += n, parts++) {
        size_t i = 0;
        while (i < sizeof units / sizeof *units && strcmp(unit, units[i].name) != 0) i++;
        if (i == sizeof units / sizeof *units) return false;
        sum_us += number * units[i].us;
    }
    *ret_ns = sum_us * 1000;
    return parts && !*text;
}

/* The value of NAME= in lines of systemctl, up to its line's end. */
static bool property_of(const char *text, const char *name, char *value, size_t bytes) {
    size_t length = strlen(name);
    for (const char *line = text; line; line = (line = strchr(line, '\n')) ? line + 1 : NULL) {
        if (strncmp(line, name, length) != 0 || line[length] != '=') continue;
        snprintf(value, bytes, "%.*s", (int)strcspn(line + length + 1, "\n"), line + length + 1);
        return true;
    }
    return false;
}

/* NAME of /etc/kvd/NAME.conf, where systemd need not escape it. */
static bool name_of(const char *path, char *name, size_t bytes) {
    const char *base = strrchr(path, '/') + 1, *end = strrchr(base, '.');
    if (!end || end == base || strcmp(end, ".conf") != 0 || (size_t)(end - base) >= bytes) return false;
    for (const char *c = base; c < end; c++)
        if (!isalnum((unsigned char)*c) && !strchr("_.:-", *c)) return false;
    snprintf(name, bytes, "%.*s", (int)(end - base), base);
    return true;
}

bool unit_limit_of(const char *config_path, struct unit_limit *ret_limit) {
    char path[PATH_MAX], name[128], text[8192], value[4096], wanted[PATH_MAX + 16];
    if (!realpath(config_path, path) || !name_of(path, name, sizeof name)) return false;
    snprintf(ret_limit->unit, sizeof ret_limit->unit, "kvd@%s.service", name);
    snprintf(wanted, sizeof wanted, "--config %s ", path);
    return ask_systemctl(ret_limit->unit, text, sizeof text) && property_of(text, "LoadState", value, sizeof value) &&
           strcmp(value, "loaded") == 0 && property_of(text, "ExecStart", value, sizeof value) &&
           strstr(value, wanted) && property_of(text, "TimeoutStopUSec", ret_limit->text, sizeof ret_limit->text) &&
           read_span(ret_limit->text, &ret_limit->limit_ns);
}
