/* SPDX-License-Identifier: Apache-2.0
 * The test's side of a puppet: start, call, kill. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "e2e.h"

bool puppet_start(struct puppet *p) {
    int pair[2];
    p->pid = 0;
    p->fd = -1;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) return KVT_TRUE(false);
    p->pid = fork();
    if (p->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(pair[1], 3);
        for (int fd = 4; fd < 256; fd++) close(fd);
        execl(getenv("KVD_PUPPET") ? getenv("KVD_PUPPET") : PUPPET_BINARY, "e2e_puppet", (char *)NULL);
        _exit(127);
    }
    close(pair[1]);
    p->fd = pair[0];
    return KVT_TRUE(p->pid > 0);
}

static bool write_all(int fd, const void *bytes, size_t n) {
    const char *at = bytes;
    while (n) {
        ssize_t put = send(fd, at, n, MSG_NOSIGNAL);
        if (put <= 0) return false;
        at += put;
        n -= (size_t)put;
    }
    return true;
}

bool puppet_send(struct puppet *p, const struct puppet_call *call) { return write_all(p->fd, call, sizeof *call); }

bool puppet_receive(struct puppet *p, struct puppet_answer *ret_answer, double seconds) {
    char *at = (char *)ret_answer;
    size_t left = sizeof *ret_answer;
    double end = e2e_now() + seconds * E2E_SLOW;
    while (left) {
        struct pollfd wait = { .fd = p->fd, .events = POLLIN };
        int ms = (int)((end - e2e_now()) * 1e3);
        if (ms < 0 || poll(&wait, 1, ms) <= 0) return false;
        ssize_t got = read(p->fd, at, left);
        if (got <= 0) return false;
        at += got;
        left -= (size_t)got;
    }
    return true;
}

bool puppet_do(struct puppet *p, const struct puppet_call *call, struct puppet_answer *ret_answer) {
    memset(ret_answer, 0, sizeof *ret_answer);
    return puppet_send(p, call) && puppet_receive(p, ret_answer, 60);
}

void puppet_kill(struct puppet *p) {
    if (p->pid > 0) {
        kill(p->pid, SIGKILL);
        waitpid(p->pid, NULL, 0);
    }
    if (p->fd >= 0) close(p->fd);
    p->pid = 0;
    p->fd = -1;
}

kvd_session_id puppet_connect(struct puppet *p, const struct e2e_daemon *d, enum kvd_role role, uint32_t rank) {
    struct puppet_call call = { .op = PUPPET_CONNECT, .role = role, .rank = rank, .timeout_ms = 60000 * E2E_SLOW };
    struct puppet_answer answer;
    snprintf(call.socket, sizeof call.socket, "%s", d->socket);
    snprintf(call.name, sizeof call.name, "puppet-%d", (int)p->pid);
    if (!KVT_TRUE(puppet_do(p, &call, &answer)) || !KVT_EQ(answer.status, KVD_OK)) printf("    %s\n", answer.message);
    return answer.session;
}

bool puppet_attach(struct puppet *p, uint32_t rank) {
    struct puppet_call call = { .op = PUPPET_ATTACH, .rank = rank };
    struct puppet_answer answer;
    bool ok = KVT_TRUE(puppet_do(p, &call, &answer)) && KVT_EQ(answer.status, KVD_OK);
    if (!ok) printf("    %s\n", answer.message);
    return ok;
}
