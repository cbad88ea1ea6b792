/* SPDX-License-Identifier: Apache-2.0 */
#include "wire.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define WIRE_HEAD offsetof(struct wire_message, tokens)

static int wire_address(const char *path, struct sockaddr_un *ret_address) {
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    if (strlen(path) >= sizeof address.sun_path) return -ENAMETOOLONG;
    memcpy(address.sun_path, path, strlen(path) + 1);
    *ret_address = address;
    return 0;
}

int wire_listen(const char *path) {
    struct sockaddr_un address;
    int r = wire_address(path, &address);
    if (r != 0) return r;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0) return -errno;
    (void)unlink(path);
    if (bind(fd, (const struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 16) != 0) {
        r = -errno;
        close(fd);
        return r;
    }
    return fd;
}

int wire_connect(const char *path) {
    struct sockaddr_un address;
    int r = wire_address(path, &address);
    if (r != 0) return r;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0) return -errno;
    if (connect(fd, (const struct sockaddr *)&address, sizeof address) != 0) {
        r = -errno;
        close(fd);
        return r;
    }
    return fd;
}

int wire_send(int fd, const struct wire_message *message) {
    if (message->n_tokens > WIRE_MAX_TOKENS) return -EMSGSIZE;
    ssize_t n;
    do n = send(fd, message, WIRE_HEAD + message->n_tokens, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n >= 0) return 0;
    return errno == ECONNRESET ? -EPIPE : -errno;
}

int wire_receive(int fd, bool wait, struct wire_message *ret_message) {
    struct wire_message message;
    ssize_t n;
    do /* a peer that died with unread messages gives ECONNRESET once; what it had sent comes after that */
        n = recv(fd, &message, sizeof message, wait ? 0 : MSG_DONTWAIT);
    while (n < 0 && (errno == EINTR || errno == ECONNRESET));
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? -EAGAIN : -errno;
    if (n == 0) return 0;
    if ((size_t)n < WIRE_HEAD || message.n_tokens > WIRE_MAX_TOKENS || (size_t)n != WIRE_HEAD + message.n_tokens)
        return -EPROTO;
    memcpy(ret_message, &message, (size_t)n);
    return 1;
}
