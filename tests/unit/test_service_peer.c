/* SPDX-License-Identifier: Apache-2.0
 *
 * The groups of a peer come from its connection and from nowhere else (SRV-3). Needs root, to be somebody else.
 */
#include "peer.h"

#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kvt.h"

static int listener, changed[2]; /* a byte comes up the pipe when a child has taken on its other groups */
static struct sockaddr_un address = { .sun_family = AF_UNIX };

static bool open_listener(void) {
    if (geteuid() != 0) {
        printf("    skipped: only root can take on other groups\n");
        return false;
    }
    snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "kvd-test-peer-%d", (int)getpid()); /* abstract */
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval patience = { .tv_sec = 10 }; /* a child that fails does not connect */
    return KVT_OK(setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience)) &&
           KVT_OK(bind(listener, (struct sockaddr *)&address, sizeof address)) && KVT_OK(listen(listener, 8)) &&
           KVT_OK(pipe2(changed, O_CLOEXEC));
}

static void close_listener(void) {
    close(listener);
    close(changed[0]);
    close(changed[1]);
}

/* Accepts a child's connection when it has changed. */
static int accept_changed(void) {
    char byte;
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    KVT_EQ_I(read(changed[0], &byte, 1), 1);
    return fd;
}

static void connect_with(const gid_t *groups, size_t n) {
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (setgroups(n, groups) || connect(fd, (struct sockaddr *)&address, sizeof address)) _exit(1);
}

/* A child that connects with these groups, then takes on the others, connects again if told to, and waits. */
static pid_t child(const gid_t *first, size_t n_first, const gid_t *then, size_t n_then, bool again) {
    pid_t pid = fork();
    if (pid) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    connect_with(first, n_first);
    if (setgroups(n_then, then)) _exit(1);
    if (again) connect_with(then, n_then);
    if (write(changed[1], "", 1) != 1) _exit(1);
    for (;;) pause();
}

static void end(pid_t pid) {
    int status;
    kill(pid, SIGKILL);
    KVT_TRUE(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
}

static struct peer peer_of(int fd) {
    struct ucred c = { 0 };
    socklen_t bytes = sizeof c;
    KVT_OK(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &c, &bytes));
    return (struct peer){ .uid = c.uid, .gid = c.gid, .pid = (uint64_t)c.pid, .pidfd = -1 };
}

static bool exactly(const struct groups *g, const uint32_t *gid, uint32_t n) {
    if (!KVT_TRUE(g != NULL) || !KVT_EQ(g->n, n)) return false;
    for (uint32_t i = 0; i < n; i++)
        if (!KVT_TRUE(groups_have(g, gid[i]))) return false;
    return KVT_FALSE(groups_have(g, 999999));
}

static void as_they_were_when_it_connected(void) {
    if (!open_listener()) return;
    pid_t pid = child((gid_t[]){ 4712, 4713 }, 2, (gid_t[]){ 4714 }, 1, false);
    int fd = accept_changed();
    struct peer peer = peer_of(fd);
    struct groups *g = peer_groups(&peer);
    exactly(g, (uint32_t[]){ 4712, 4713 }, 2);
    free(g);
    end(pid);
    g = peer_groups(&peer); /* it has gone, its connection tells still */
    exactly(g, (uint32_t[]){ 4712, 4713 }, 2);
    free(g);
    close(fd);
    KVT_TRUE(peer_groups(&peer) == NULL); /* nothing is known of who has no connection */
    close_listener();
}

/* Two connections of one process with different groups: what both have, whichever is asked about. */
static void never_more_than_it_had(void) {
    if (!open_listener()) return;
    pid_t pid = child((gid_t[]){ 4712, 4713 }, 2, (gid_t[]){ 4713, 4714 }, 2, true);
    int a = accept4(listener, NULL, NULL, SOCK_CLOEXEC), b = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    struct peer peer = peer_of(a);
    struct groups *g = peer_groups(&peer);
    exactly(g, (uint32_t[]){ 4713 }, 1);
    free(g);
    close(a);
    g = peer_groups(&peer);
    exactly(g, (uint32_t[]){ 4713, 4714 }, 2);
    free(g);
    close(b);
    end(pid);
    close_listener();
}

static void of_nobody_else(void) {
    if (!open_listener()) return;
    pid_t first = child((gid_t[]){ 4712 }, 1, NULL, 0, false);
    int a = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    pid_t second = child(NULL, 0, (gid_t[]){ 4712 }, 1, false);
    int b = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    struct peer peer = peer_of(b);
    struct groups *g = peer_groups(&peer);
    exactly(g, NULL, 0);
    free(g);
    peer.gid = 1; /* who says that it is another one */
    KVT_TRUE(peer_groups(&peer) == NULL);
    close(a);
    close(b);
    end(first);
    end(second);
    close_listener();
}

/* As many as the kernel allows. */
static void many_groups(void) {
    if (!open_listener()) return;
    long most = sysconf(_SC_NGROUPS_MAX);
    gid_t *groups = calloc((size_t)most, sizeof *groups);
    for (long i = 0; i < most; i++) groups[i] = (gid_t)(100000 + i);
    pid_t pid = child(groups, (size_t)most, NULL, 0, false);
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    struct peer peer = peer_of(fd);
    struct groups *g = peer_groups(&peer);
    KVT_TRUE(g && g->n == (uint32_t)most && groups_have(g, groups[most - 1]));
    free(g);
    free(groups);
    close(fd);
    end(pid);
    close_listener();
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(as_they_were_when_it_connected),
                                             KVT_CASE(never_more_than_it_had),
                                             KVT_CASE(of_nobody_else),
                                             KVT_CASE(many_groups),
                                             { 0 } };
    return kvt_main("service_peer", cases, argc, argv);
}
