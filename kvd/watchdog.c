/* SPDX-License-Identifier: Apache-2.0 */
#include "watchdog.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static uint64_t number_in(const char *variable) {
    const char *text = getenv(variable);
    char *end;
    if (!text || *text < '0' || *text > '9') return 0;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    return errno || *end ? 0 : number;
}

void watchdog_init(struct watchdog *w, const char *socket) {
    uint64_t usec = number_in("WATCHDOG_USEC");
    if (usec > UINT64_MAX / 1000) usec = 0; /* "infinity" */
    if (getenv("WATCHDOG_PID") && number_in("WATCHDOG_PID") != (uint64_t)getpid()) usec = 0;
    *w = (struct watchdog){ .socket = socket, .period_ns = usec * 1000 / 4, .fd = -1 };
}

void watchdog_close(struct watchdog *w) {
    if (w->fd >= 0) close(w->fd);
    w->fd = -1;
}

/* The daemon has closed its end. */
static bool answered(struct watchdog *w) {
    char byte;
    ssize_t n = recv(w->fd, &byte, 1, MSG_DONTWAIT);
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return false;
    watchdog_close(w);
    return true;
}

/* True: there is proof without an answer. */
static bool ask(struct watchdog *w, bool moved) {
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    size_t length = strlen(w->socket);
    if (length >= sizeof to.sun_path) return false;
    memcpy(to.sun_path, w->socket, length);
    w->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (w->fd < 0) return true; /* out of files or memory: nothing hangs, and a restart would lose the cache */
    if (!connect(w->fd, (const struct sockaddr *)&to, sizeof to)) {
        shutdown(w->fd, SHUT_WR);
        return false;
    }
    bool full = errno == EAGAIN; /* the backlog */
    watchdog_close(w);
    return full && moved;
}

bool watchdog_tick(struct watchdog *w, uint64_t now_ns, uint64_t accepted) {
    if (!w->period_ns) return false;
    bool proof = w->fd >= 0 && answered(w);
    if (w->fd >= 0 || now_ns < w->next_ns) return proof;
    proof |= ask(w, accepted != w->accepted);
    w->accepted = accepted;
    w->next_ns = now_ns + w->period_ns;
    return proof;
}
