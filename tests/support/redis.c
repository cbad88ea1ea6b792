/* SPDX-License-Identifier: Apache-2.0 */
#include "redis.h"

#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kvt.h"

#if defined(KVD_SANITIZE_ADDRESS) || defined(KVD_SANITIZE_THREAD)
#define PATIENCE 200.0
#else
#define PATIENCE 60.0
#endif

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

bool redis_until(bool (*is_so)(void *), void *context) {
    for (double end = seconds() + PATIENCE; seconds() < end; poll(NULL, 0, 5))
        if (is_so(context)) return true;
    return false;
}

/* Ports that nobody listens on now: another process may take one before the server does, which then ends. */
static uint16_t free_port(void) {
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t n = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 && !bind(fd, (struct sockaddr *)&at, n) && !getsockname(fd, (struct sockaddr *)&at, &n);
    if (fd >= 0) close(fd);
    return ok ? ntohs(at.sin_port) : 0;
}

static void run_server(const struct redis *r, uint16_t port, uint16_t bus) {
    char port_text[8], bus_text[8];
    const char *words[64] = { "redis-server", "--unixsocket", r->socket,   "--save", "",
                              "--appendonly", "no",           "--dir",     r->dir,   "--logfile",
                              "log",          "--bind",       "127.0.0.1", "--port", port_text };
    uint32_t n = 0;
    snprintf(port_text, sizeof port_text, "%u", port);
    snprintf(bus_text, sizeof bus_text, "%u", bus);
    while (words[n]) n++;
    if (port) {
        words[n++] = "--cluster-enabled";
        words[n++] = "yes";
        words[n++] = "--cluster-port";
        words[n++] = bus_text;
    }
    for (uint32_t i = 0; r->options && r->options[i] && n < 62; i++) words[n++] = r->options[i];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execvp(words[0], (char *const *)(uintptr_t)words);
    _exit(127);
}

static redisReply *ask_args(const struct redis *r, const char *format, va_list arguments) {
    struct timeval limit = { 20, 0 };
    redisContext *c = redisConnectUnixWithTimeout(r->socket, limit);
    redisReply *reply = NULL;
    if (c && !c->err && !redisSetTimeout(c, limit)) reply = redisvCommand(c, format, arguments);
    if (c) redisFree(c);
    return reply;
}

redisReply *redis_ask(const struct redis *r, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    redisReply *reply = ask_args(r, format, arguments);
    va_end(arguments);
    return reply;
}

long long redis_number(const struct redis *r, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    redisReply *reply = ask_args(r, format, arguments);
    va_end(arguments);
    long long number = reply && reply->type == REDIS_REPLY_INTEGER ? reply->integer : -1;
    if (reply) freeReplyObject(reply);
    return number;
}

void redis_must(redisReply *reply) {
    if (!KVT_TRUE(reply && reply->type == REDIS_REPLY_STATUS)) printf("    %s\n", reply ? reply->str : "no answer");
    if (reply) freeReplyObject(reply);
}

/* Any answer: one with a password refuses. Its end is one, too. */
static bool answers_or_ended(void *context) {
    struct redis *r = context;
    if (waitpid(r->pid, NULL, WNOHANG) == r->pid) r->pid = 0;
    redisReply *reply = r->pid ? redis_ask(r, "PING") : NULL;
    bool answered = reply != NULL;
    if (reply) freeReplyObject(reply);
    return answered || !r->pid;
}

bool redis_start(struct redis *r) {
    bool cluster = r->port != 0;
    if (!*r->dir) {
        snprintf(r->dir, sizeof r->dir, "/tmp/kvd-redis-XXXXXX");
        if (!KVT_TRUE(mkdtemp(r->dir) != NULL)) return false;
        snprintf(r->socket, sizeof r->socket, "%s/s", r->dir);
    }
    for (int tries = 0; tries < 5; tries++) {
        uint16_t bus = cluster ? free_port() : 0;
        if (cluster) r->port = free_port();
        r->pid = fork();
        if (r->pid == 0) run_server(r, r->port, bus);
        if (r->pid > 0 && redis_until(answers_or_ended, r) && r->pid) return true;
        redis_kill(r);
    }
    return kvt_check(false, __FILE__, __LINE__, "redis-server answers (Debian's package redis-server)");
}

void redis_stop(const struct redis *r) {
    kill(r->pid, SIGSTOP);
    waitpid(r->pid, NULL, WUNTRACED);
}

void redis_kill(struct redis *r) {
    if (r->pid > 0) {
        kill(r->pid, SIGKILL);
        waitpid(r->pid, NULL, 0);
    }
    r->pid = 0;
}

void redis_free(struct redis *r) {
    char command[128];
    redis_kill(r);
    if (!*r->dir) return;
    snprintf(command, sizeof command, "rm -rf %s", r->dir);
    if (system(command)) perror(command);
    r->dir[0] = '\0';
}
