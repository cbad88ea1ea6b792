/* SPDX-License-Identifier: Apache-2.0 */
#include "fdpass.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "fd_message.h"
#include "log.h"
#include "unix_socket.h"

#define CONNECTIONS 64
#define IDLE_NS UINT64_C(5000000000)
#define LISTENER CONNECTIONS /* its tag in epoll; the others are places */

struct fd_connection {
    int fd; /* -1: free */
    struct ucred peer;
    kvd_session_id session; /* none until a token was good */
    uint64_t used_ns;
};

struct fdpass {
    struct service *service;
    struct unix_socket name;
    int listener, epoll;
    bool paused; /* there was no file for a newcomer: until the next tick */
    struct fd_connection connection[CONNECTIONS];
};

/* ---- life ---------------------------------------------------------------------------------- */

int fdpass_open(struct service *service, const struct config *config, struct fdpass **ret_fdpass, char *err,
                size_t err_bytes) {
    struct fdpass *f = calloc(1, sizeof *f);
    char path[UNIX_SOCKET_PATH];
    if (!f) {
        snprintf(err, err_bytes, "no memory for the socket of descriptors");
        return 1;
    }
    f->service = service;
    for (uint32_t i = 0; i < CONNECTIONS; i++) f->connection[i].fd = -1;
    snprintf(path, sizeof path, "%s" FDPASS_SUFFIX, config->socket);
    f->listener = -1;
    f->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (unix_socket_listen(config, path, SOCK_SEQPACKET, CONNECTIONS, &f->listener, &f->name, err, err_bytes)) {
        fdpass_close(f);
        return 1;
    }
    struct epoll_event e = { .events = EPOLLIN, .data.u32 = LISTENER };
    if (f->epoll < 0 || epoll_ctl(f->epoll, EPOLL_CTL_ADD, f->listener, &e)) {
        snprintf(err, err_bytes, "the socket of descriptors: %s", strerror(errno));
        fdpass_close(f);
        return 1;
    }
    *ret_fdpass = f;
    return 0;
}

struct fdpass *fdpass_close(struct fdpass *f) {
    if (!f) return NULL;
    unix_socket_remove(&f->name);
    for (uint32_t i = 0; i < CONNECTIONS; i++)
        if (f->connection[i].fd >= 0) close(f->connection[i].fd);
    if (f->listener >= 0) close(f->listener);
    if (f->epoll >= 0) close(f->epoll);
    free(f);
    return NULL;
}

int fdpass_fd(const struct fdpass *f) { return f->epoll; }

/* ---- connections ----------------------------------------------------------------------------- */

static void drop_connection(struct fd_connection *c) {
    close(c->fd); /* leaves epoll with it */
    c->fd = -1;
}

static struct fd_connection *free_place(struct fdpass *f) {
    struct fd_connection *oldest = &f->connection[0];
    for (uint32_t i = 0; i < CONNECTIONS; i++) {
        if (f->connection[i].fd < 0) return &f->connection[i];
        if (f->connection[i].used_ns < oldest->used_ns) oldest = &f->connection[i];
    }
    drop_connection(oldest);
    return oldest;
}

static void pause_accepts(struct fdpass *f, bool on) {
    struct epoll_event e = { .events = on ? 0 : EPOLLIN, .data.u32 = LISTENER };
    if (!epoll_ctl(f->epoll, EPOLL_CTL_MOD, f->listener, &e)) f->paused = on;
}

static void take_connection(struct fdpass *f) {
    int fd = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
        LOG(LOG_WARNING, "a connection for descriptors cannot be accepted: %m; it waits");
        pause_accepts(f, true); /* it stays readable: the main loop would turn for nothing */
    }
    if (fd < 0) return;
    struct fd_connection *c = free_place(f);
    *c = (struct fd_connection){ .fd = fd, .used_ns = clock_ns() };
    socklen_t length = sizeof c->peer;
    struct epoll_event e = { .events = EPOLLIN, .data.u32 = (uint32_t)(c - f->connection) };
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &c->peer, &length) || epoll_ctl(f->epoll, EPOLL_CTL_ADD, fd, &e))
        drop_connection(c);
}

/* The peer reads it or loses the connection: its buffer holds an answer. */
static void send_answer(struct fd_connection *c, const struct fd_answer *answer, int fd) {
    union fd_control control = { 0 };
    size_t head = offsetof(struct fd_answer, message);
    struct iovec part = { .iov_base = (void *)(uintptr_t)answer,
                          .iov_len = fd >= 0 ? head : head + strlen(answer->message) };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
    if (fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *h = CMSG_FIRSTHDR(&message);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(h), &fd, sizeof fd);
    }
    if (sendmsg(c->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) drop_connection(c);
}

/* n: bytes of it; 0 or less: closed. */
static void refuse_junk(struct fd_connection *c, ssize_t n) {
    struct fd_answer answer = { .status = KVD_INVALID_ARGUMENT };
    snprintf(answer.message, sizeof answer.message,
             "a request of %zd bytes: one has 16, a token, a number of a region, and four zeros", n);
    if (n > 0) send_answer(c, &answer, -1);
    if (c->fd >= 0) drop_connection(c);
}

static void serve_descriptor(struct fdpass *f, struct fd_connection *c) {
    struct fd_request request;
    struct fd_answer answer = { 0 };
    ssize_t n = recv(c->fd, &request, sizeof request, MSG_TRUNC | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n != (ssize_t)sizeof request || request.zero) {
        refuse_junk(c, n);
        return;
    }
    c->used_ns = clock_ns();
    answer.fd_index = request.fd_index;
    struct service_grant grant = { .token = request.token,
                                   .session = c->session,
                                   .pid = (uint64_t)c->peer.pid,
                                   .uid = c->peer.uid,
                                   .fd_index = request.fd_index };
    answer.status = service_grant_fd(f->service, &grant, answer.message, sizeof answer.message);
    c->session = grant.session;
    send_answer(c, &answer, answer.status == KVD_OK ? grant.fd : -1);
    if (grant.owned) close(grant.fd);
}

void fdpass_run(struct fdpass *f) {
    struct epoll_event events[16];
    int n = epoll_wait(f->epoll, events, 16, 0);
    for (int i = 0; i < n; i++) {
        uint32_t at = events[i].data.u32;
        if (at == LISTENER) take_connection(f);
        else if (at < CONNECTIONS && f->connection[at].fd >= 0) serve_descriptor(f, &f->connection[at]);
    }
}

void fdpass_tick(struct fdpass *f, uint64_t now_ns) {
    for (uint32_t i = 0; f && i < CONNECTIONS; i++)
        if (f->connection[i].fd >= 0 && now_ns > f->connection[i].used_ns + IDLE_NS) drop_connection(&f->connection[i]);
    if (f && f->paused) pause_accepts(f, false);
}
