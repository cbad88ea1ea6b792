/* SPDX-License-Identifier: Apache-2.0 */
#include "fds.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define TIMEOUT_S 5

struct request {
    uint64_t token;
    uint32_t fd_index, zero;
};
struct answer {
    uint32_t status, fd_index;
    char message[KVD_MESSAGE_BYTES];
};

static enum kvd_status fail(const struct kvd_store_info *info, struct kvd_error *error) {
    return client_fail(error, errno == EACCES || errno == EPERM ? KVD_PERMISSION_DENIED : KVD_UNAVAILABLE,
                       "the socket of descriptors %s cannot be used: %s", info->fd_socket, strerror(errno));
}

static enum kvd_status open_socket(struct fds *fds, const struct kvd_store_info *info, struct kvd_error *error) {
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    const struct timeval limit = { .tv_sec = TIMEOUT_S };
    if (!info->fd_socket[0] || strlen(info->fd_socket) >= sizeof to.sun_path)
        return client_fail(error, KVD_PERMISSION_DENIED, "kvd shows this session no descriptors: attach as a worker");
    memcpy(to.sun_path, info->fd_socket, strlen(info->fd_socket));
    fds->token = info->fd_token;
    fds->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fds->socket < 0 || setsockopt(fds->socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) ||
        connect(fds->socket, (const struct sockaddr *)&to, sizeof to)) {
        enum kvd_status status = fail(info, error);
        fds_close(fds);
        return status;
    }
    return KVD_OK;
}

static int received_fd(struct msghdr *message) {
    int fd = -1;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(message); h; h = CMSG_NXTHDR(message, h))
        if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS && h->cmsg_len == CMSG_LEN(sizeof fd))
            memcpy(&fd, CMSG_DATA(h), sizeof fd);
    return fd;
}

enum kvd_status fds_fetch(struct fds *fds, const struct kvd_store_info *info, uint32_t fd_index, int *ret_fd, struct kvd_error *error) {
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = { 0 };
    struct answer answer = { 0 };
    struct iovec part = { .iov_base = &answer, .iov_len = sizeof answer - 1 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room };
    enum kvd_status status = fds->socket < 0 ? open_socket(fds, info, error) : KVD_OK;
    if (status != KVD_OK) return status;
    struct request request = { .token = fds->token, .fd_index = fd_index };
    if (send(fds->socket, &request, sizeof request, MSG_NOSIGNAL) < 0) return fail(info, error);
    fds->token = 0; /* it has been used */
    ssize_t n = recvmsg(fds->socket, &message, MSG_CMSG_CLOEXEC);
    if (n < 0) return fail(info, error);
    int fd = received_fd(&message);
    if (n < 8 || answer.fd_index != fd_index || (answer.status == KVD_OK) != (fd >= 0)) {
        if (fd >= 0) close(fd);
        return client_fail(error, KVD_UNAVAILABLE, "the socket of descriptors %s answers out of turn: is it kvd's?", info->fd_socket);
    }
    if (answer.status != KVD_OK) return client_fail(error, (enum kvd_status)answer.status, "%s", answer.message);
    *ret_fd = fd;
    return KVD_OK;
}

void fds_close(struct fds *fds) {
    if (fds->socket >= 0) close(fds->socket);
    fds->socket = -1;
}
