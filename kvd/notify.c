/* SPDX-License-Identifier: Apache-2.0 */
#include "notify.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

static void attach(struct msghdr *message, int fd) {
    struct cmsghdr *head = CMSG_FIRSTHDR(message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
}

bool notify_send_fd(const char *state, int fd_to_send) {
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    if (!path || (*path != '/' && *path != '@') || strlen(path) >= sizeof to.sun_path) return false;
    memcpy(to.sun_path, path, strlen(path));
    if (*path == '@') to.sun_path[0] = 0; /* abstract */
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = { 0 };
    struct iovec text = { .iov_base = (void *)(uintptr_t)state, .iov_len = strlen(state) };
    struct msghdr message = { .msg_name = &to,
                              .msg_namelen = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path)),
                              .msg_iov = &text,
                              .msg_iovlen = 1 };
    if (fd_to_send >= 0) {
        message.msg_control = control.room;
        message.msg_controllen = sizeof control.room;
        attach(&message, fd_to_send);
    }
    /* A manager that does not read must not hold up the thread that comes round for everybody. */
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &(struct timeval){ .tv_sec = 1 }, sizeof(struct timeval));
    bool sent = sendmsg(fd, &message, MSG_NOSIGNAL) >= 0;
    close(fd);
    return sent;
}

bool notify_send(const char *state) { return notify_send_fd(state, -1); }
