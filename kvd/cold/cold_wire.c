/* SPDX-License-Identifier: Apache-2.0 */
#include "cold_wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "clock.h"

#define MS UINT64_C(1000000)
#define READ_BYTES 65536u

static int fail_wire(struct cold_wire *wire, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int fail_wire(struct cold_wire *wire, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(wire->why, sizeof wire->why, format, arguments);
    va_end(arguments);
    cold_wire_close(wire);
    return 1;
}

/* What a reply may nest is bounded by its bytes, but room for an array is taken before its elements come. */
static void *create_bounded(const redisReadTask *task, int elements) {
    const struct cold_wire *wire = task->privdata;
    return elements > COLD_WIRE_ELEMENTS ? NULL : wire->create_array(task, elements);
}

void cold_wire_init(struct cold_wire *wire, int stop_fd) {
    memset(wire, 0, sizeof *wire);
    wire->fd = -1;
    wire->stop_fd = stop_fd;
}

void cold_wire_close(struct cold_wire *wire) {
    if (wire->fd >= 0) close(wire->fd);
    if (wire->reader) redisReaderFree(wire->reader);
    wire->fd = -1;
    wire->reader = NULL;
    wire->n_out = 0;
    wire->budget = 0;
}

/* ---- waits --------------------------------------------------------------------------------------- */

static int wait_for(struct cold_wire *wire, short events, uint64_t deadline, const char *doing) {
    for (;;) {
        struct pollfd fds[] = { { wire->fd, events, 0 }, { wire->stop_fd, POLLIN, 0 } };
        uint64_t now = clock_ns();
        if (now >= deadline) return fail_wire(wire, "%s: it did not answer in time", doing);
        uint64_t ms = (deadline - now + MS - 1) / MS;
        int r = poll(fds, 2, ms > 60000 ? 60000 : (int)ms);
        if (r < 0 && errno != EINTR) return fail_wire(wire, "%s: %s", doing, strerror(errno));
        if (r > 0 && fds[1].revents) return fail_wire(wire, "%s: kvd stops", doing);
        if (r > 0 && fds[0].revents) return 0;
    }
}

/* ---- life ---------------------------------------------------------------------------------------- */

static socklen_t fill_address(const struct config_listen *address, struct sockaddr_storage *ret_storage) {
    struct sockaddr_in *four = (struct sockaddr_in *)ret_storage;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)ret_storage;
    struct sockaddr_un *local = (struct sockaddr_un *)ret_storage;
    memset(ret_storage, 0, sizeof *ret_storage);
    if (address->kind == LISTEN_UNIX) {
        local->sun_family = AF_UNIX;
        snprintf(local->sun_path, sizeof local->sun_path, "%s", address->path);
        return sizeof *local;
    }
    if (address->kind == LISTEN_TCP4) {
        four->sin_family = AF_INET;
        four->sin_port = htons(address->port);
        return inet_pton(AF_INET, address->path, &four->sin_addr) == 1 ? sizeof *four : 0;
    }
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(address->port);
    return inet_pton(AF_INET6, address->path, &six->sin6_addr) == 1 ? sizeof *six : 0;
}

static int connect_wire(struct cold_wire *wire, const struct sockaddr_storage *to, socklen_t bytes, uint64_t deadline) {
    int error = 0;
    socklen_t n = sizeof error;
    if (!connect(wire->fd, (const struct sockaddr *)to, bytes)) return 0;
    if (errno != EINPROGRESS) return fail_wire(wire, "connecting: %s", strerror(errno));
    if (wait_for(wire, POLLOUT, deadline, "connecting")) return 1;
    if (getsockopt(wire->fd, SOL_SOCKET, SO_ERROR, &error, &n)) error = errno;
    return error ? fail_wire(wire, "connecting: %s", strerror(error)) : 0;
}

int cold_wire_open(struct cold_wire *wire, const struct config_listen *address, uint64_t deadline) {
    struct sockaddr_storage to;
    socklen_t bytes = fill_address(address, &to);
    cold_wire_close(wire);
    if (!bytes) return fail_wire(wire, "%s is no numeric address", address->path);
    wire->fd = socket(to.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (wire->fd < 0) return fail_wire(wire, "a socket: %s", strerror(errno));
    if (to.ss_family != AF_UNIX) (void)setsockopt(wire->fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int));
    return connect_wire(wire, &to, bytes, deadline) || cold_wire_adopt(wire, wire->fd);
}

int cold_wire_adopt(struct cold_wire *wire, int fd) {
    wire->fd = fd;
    wire->reader = redisReaderCreate();
    if (!wire->reader) return fail_wire(wire, "no memory for replies");
    wire->create_array = wire->reader->fn->createArray;
    wire->functions = *wire->reader->fn;
    wire->functions.createArray = create_bounded;
    wire->reader->fn = &wire->functions;
    wire->reader->privdata = wire;
    return 0;
}

void cold_wire_renew(struct cold_wire *wire) {
    struct pollfd fd = { wire->fd, POLLIN, 0 };
    wire->budget = 0;
    if (wire->fd >= 0 && (poll(&fd, 1, 0) != 0 || wire->reader->len > wire->reader->pos)) cold_wire_close(wire);
}

/* ---- out ----------------------------------------------------------------------------------------- */

/* Changes iov. */
static int send_parts(struct cold_wire *wire, struct iovec *iov, size_t n, uint64_t deadline) {
    while (n) {
        struct msghdr message = { .msg_iov = iov, .msg_iovlen = n };
        ssize_t sent = sendmsg(wire->fd, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) {
            if (wait_for(wire, POLLOUT, deadline, "sending")) return 1;
            continue;
        }
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return fail_wire(wire, "sending: %s", strerror(errno));
        size_t left = (size_t)sent;
        for (; n && left >= iov->iov_len; iov++, n--) left -= iov->iov_len;
        if (!n) break;
        iov->iov_base = (uint8_t *)iov->iov_base + left;
        iov->iov_len -= left;
    }
    return 0;
}

int cold_wire_flush(struct cold_wire *wire, uint64_t deadline) {
    struct iovec all = { wire->out, wire->n_out };
    if (wire->fd < 0) return 1;
    if (!wire->n_out) return 0;
    wire->n_out = 0;
    return send_parts(wire, &all, 1, deadline);
}

static int put_out(struct cold_wire *wire, const void *bytes, size_t n, uint64_t deadline) {
    if (wire->fd < 0) return 1;
    if (n > sizeof wire->out - wire->n_out && cold_wire_flush(wire, deadline)) return 1;
    memcpy(wire->out + wire->n_out, bytes, n);
    wire->n_out += n;
    return 0;
}

int cold_wire_begin(struct cold_wire *wire, unsigned parts, uint64_t reply_bytes, uint64_t deadline) {
    char text[24];
    int n = snprintf(text, sizeof text, "*%u\r\n", parts);
    wire->budget += reply_bytes + COLD_WIRE_SMALL;
    return put_out(wire, text, (size_t)n, deadline);
}

int cold_wire_bytes(struct cold_wire *wire, const void *head, size_t head_bytes, const void *bytes, size_t n,
                    uint64_t deadline) {
    char text[32];
    int digits = snprintf(text, sizeof text, "$%zu\r\n", head_bytes + n);
    if (put_out(wire, text, (size_t)digits, deadline)) return 1;
    if (head_bytes && put_out(wire, head, head_bytes, deadline)) return 1;
    if (n <= sizeof wire->out / 4) return put_out(wire, bytes, n, deadline) || put_out(wire, "\r\n", 2, deadline);
    struct iovec parts[] = { { wire->out, wire->n_out }, { (void *)(uintptr_t)bytes, n } };
    wire->n_out = 0;
    return send_parts(wire, parts, 2, deadline) || put_out(wire, "\r\n", 2, deadline);
}

int cold_wire_text(struct cold_wire *wire, const char *text, uint64_t deadline) {
    return cold_wire_bytes(wire, NULL, 0, text, strlen(text), deadline);
}

/* ---- in ------------------------------------------------------------------------------------------ */

static int read_some(struct cold_wire *wire, uint64_t deadline) {
    char bytes[READ_BYTES];
    ssize_t n = recv(wire->fd, bytes, sizeof bytes, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return wait_for(wire, POLLIN, deadline, "reading");
    if (n < 0) return fail_wire(wire, "reading: %s", strerror(errno));
    if (n == 0) return fail_wire(wire, "reading: it has hung up");
    if ((uint64_t)n > wire->budget) return fail_wire(wire, "reading: it sends more than was asked for");
    wire->budget -= (uint64_t)n;
    if (redisReaderFeed(wire->reader, bytes, (size_t)n) != REDIS_OK)
        return fail_wire(wire, "reading: %s", wire->reader->errstr);
    return 0;
}

redisReply *cold_wire_reply(struct cold_wire *wire, uint64_t deadline) {
    void *reply = NULL;
    while (wire->fd >= 0) {
        if (redisReaderGetReply(wire->reader, &reply) != REDIS_OK) {
            fail_wire(wire, "reading: %s", wire->reader->errstr);
            return NULL;
        }
        if (reply) return reply;
        if (clock_ns() >= deadline) fail_wire(wire, "reading: it did not answer in time");
        else if (read_some(wire, deadline)) break;
    }
    return NULL;
}

redisReply *cold_wire_ask(struct cold_wire *wire, uint64_t deadline, const char *const *texts) {
    unsigned n = 0;
    while (texts[n]) n++;
    if (cold_wire_begin(wire, n, (uint64_t)COLD_WIRE_SMALL * 16, deadline)) return NULL;
    for (unsigned i = 0; i < n; i++)
        if (cold_wire_text(wire, texts[i], deadline)) return NULL;
    return cold_wire_flush(wire, deadline) ? NULL : cold_wire_reply(wire, deadline);
}
