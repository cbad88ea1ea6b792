/* SPDX-License-Identifier: Apache-2.0 */
#include "fds.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "fd_message.h"

static enum kvd_status fail_socket(const char *path, struct kvd_error *error) {
    if (errno == EAGAIN)
        return client_fail(error, KVD_DEADLINE_EXCEEDED, "kvd did not answer at the socket of descriptors %s in time",
                           path);
    return client_fail(error, errno == EACCES || errno == EPERM ? KVD_PERMISSION_DENIED : KVD_UNAVAILABLE,
                       "the socket of descriptors %s cannot be used: %s", path, strerror(errno));
}

/* ---- until the deadline, whatever signals come: false, with errno EAGAIN once it has passed ------------------- */

static bool limit_wait(int socket, uint64_t deadline_ns) {
    uint64_t now = clock_ns(), us = deadline_ns > now ? (deadline_ns - now + 999) / 1000 : 0;
    struct timeval left = { .tv_sec = (time_t)(us / 1000000), .tv_usec = (suseconds_t)(us % 1000000) };
    errno = EAGAIN;
    return us && !setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &left, sizeof left) &&
           !setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &left, sizeof left); /* of connecting, too */
}

static bool connect_to(int socket, const struct sockaddr_un *to, uint64_t deadline_ns) {
    while (limit_wait(socket, deadline_ns)) {
        if (!connect(socket, (const struct sockaddr *)to, sizeof *to)) return true;
        if (errno != EINTR) break;
    }
    return false;
}

static bool send_request(int socket, const struct fd_request *request, uint64_t deadline_ns) {
    while (limit_wait(socket, deadline_ns)) {
        if (send(socket, request, sizeof *request, MSG_NOSIGNAL) >= 0) return true;
        if (errno != EINTR) break;
    }
    return false;
}

static bool receive_answer(int socket, struct msghdr *message, size_t *ret_bytes, uint64_t deadline_ns) {
    while (limit_wait(socket, deadline_ns)) {
        ssize_t n = recvmsg(socket, message, MSG_CMSG_CLOEXEC);
        *ret_bytes = n > 0 ? (size_t)n : 0;
        if (n >= 0) return true;
        if (errno != EINTR) break;
    }
    return false;
}

/* ---- the exchange --------------------------------------------------------------------------------------------- */

static enum kvd_status open_socket(struct fds *fds, const char *path, uint64_t deadline_ns, struct kvd_error *error) {
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    if (!path[0] || strlen(path) >= sizeof to.sun_path)
        return client_fail(error, KVD_PERMISSION_DENIED, "kvd shows this session no descriptors: attach as a worker");
    memcpy(to.sun_path, path, strlen(path));
    fds->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fds->socket >= 0 && connect_to(fds->socket, &to, deadline_ns)) return KVD_OK;
    enum kvd_status status = fail_socket(path, error);
    fds_close(fds);
    return status;
}

static int received_fd(struct msghdr *message) {
    int fd = -1;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(message); h; h = CMSG_NXTHDR(message, h))
        if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS && h->cmsg_len == CMSG_LEN(sizeof fd))
            memcpy(&fd, CMSG_DATA(h), sizeof fd);
    return fd;
}

enum kvd_status fds_fetch(struct fds *fds, const char *path, uint32_t fd_index, uint64_t deadline_ns, int *ret_fd,
                          struct kvd_error *error) {
    union fd_control control = { 0 };
    struct fd_answer answer = { 0 };
    struct iovec part = { .iov_base = &answer, .iov_len = sizeof answer - 1 };
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes
    };
    size_t n;
    enum kvd_status status = fds->socket < 0 ? open_socket(fds, path, deadline_ns, error) : KVD_OK;
    if (status != KVD_OK) return status;
    struct fd_request request = { .token = fds->token, .fd_index = fd_index };
    if (!send_request(fds->socket, &request, deadline_ns)) return fail_socket(path, error);
    fds->token = 0; /* it has been used */
    if (!receive_answer(fds->socket, &message, &n, deadline_ns)) return fail_socket(path, error);
    if (!n)
        return client_fail(error, KVD_UNAVAILABLE,
                           "kvd closed its socket of descriptors %s before the answer: attach again", path);
    int fd = received_fd(&message);
    if (fd < 0 && (message.msg_flags & MSG_CTRUNC))
        return client_fail(error, KVD_RESOURCE_EXHAUSTED,
                           "kvd's memory comes as descriptors, and this process can open no more (RLIMIT_NOFILE)");
    if (n < offsetof(struct fd_answer, message) || answer.fd_index != fd_index ||
        (answer.status == KVD_OK) != (fd >= 0)) {
        if (fd >= 0) close(fd);
        return client_fail(error, KVD_UNAVAILABLE, "the socket of descriptors %s answers out of turn: is it kvd's?",
                           path);
    }
    if (answer.status != KVD_OK) return client_fail(error, (enum kvd_status)answer.status, "%s", answer.message);
    *ret_fd = fd;
    return KVD_OK;
}

void fds_close(struct fds *fds) {
    if (fds->socket >= 0) close(fds->socket);
    fds->socket = -1;
}
