/* SPDX-License-Identifier: Apache-2.0
 *
 * Stands in for kvd in an instance of its unit (check.sh), to see what systemd keeps: a memfd with a count is given to
 * systemd at the first start; each later start counts on in the one that it gets back. STATUS= tells the count.
 */
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define FIRST_FD 3 /* sd_listen_fds(3) */

/* fd is sent along unless it is -1. */
static void tell(const char *state, int fd) {
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    if (!path || strlen(path) >= sizeof to.sun_path) exit(2);
    memcpy(to.sun_path, path, strlen(path));
    if (*path == '@') to.sun_path[0] = 0; /* abstract */

    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof fd)];
    } control = { .header = { .cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS } };
    memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    struct iovec text = { .iov_base = (void *)(size_t)state, .iov_len = strlen(state) };
    struct msghdr message = { .msg_name = &to,
                              .msg_namelen = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path)),
                              .msg_iov = &text,
                              .msg_iovlen = 1 };
    if (fd >= 0) message.msg_control = &control, message.msg_controllen = sizeof control;
    int out = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (out < 0 || sendmsg(out, &message, MSG_NOSIGNAL) < 0) {
        perror("keeper: sendmsg");
        exit(2);
    }
    close(out);
}

int main(void) {
    const char *n = getenv("LISTEN_FDS"), *names = getenv("LISTEN_FDNAMES");
    unsigned count = 0;
    int fd = FIRST_FD;
    if (n && strcmp(n, "0") != 0) {
        if (strcmp(n, "1") != 0 || !names || strcmp(names, "count") != 0) {
            fprintf(stderr, "keeper: got %s file descriptors: %s\n", n, names ? names : "");
            return 2;
        }
        if (pread(fd, &count, sizeof count, 0) != sizeof count) return 2;
    } else {
        fd = memfd_create("count", MFD_CLOEXEC);
        if (fd < 0) return 2;
        tell("FDSTORE=1\nFDPOLL=0\nFDNAME=count", fd);
    }
    count++;
    if (pwrite(fd, &count, sizeof count, 0) != sizeof count) return 2;

    sigset_t end; /* blocked before READY=1: none is lost */
    sigemptyset(&end);
    sigaddset(&end, SIGTERM);
    sigprocmask(SIG_BLOCK, &end, NULL);
    char state[64];
    snprintf(state, sizeof state, "READY=1\nSTATUS=count %u", count);
    tell(state, -1);
    int got;
    sigwait(&end, &got);
    return 0;
}
