/* SPDX-License-Identifier: Apache-2.0
 * Descriptors that outlive the daemon: what a holder hands over, what is sent to it, and which sets of regions are
 * taken over. CONT-3. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <errno.h>
#include <poll.h>
#include <sys/resource.h>

#include "clock.h"
#include "fdpass.h"
#include "service_fixture.h"
#include "systemd.h"

static bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

static int memory(void) { return memfd_create("kept", MFD_CLOEXEC); }

/* As systemd does before exec: in a child, so that descriptors 3.. can be what they must be. Exit status: bits of what
 * was right. */
static int in_child(const char *pid, const char *count, const char *names, uint32_t expect) {
    pid_t child = fork();
    if (child == 0) {
        static struct fdstore_set set;
        char own[24];
        snprintf(own, sizeof own, "%d", (int)getpid());
        for (int fd = 3; fd < 300; fd++) close(fd);
        for (int i = 0; i < 6 || (i < 200 && atoi(count) > 6); i++) dup2(0, 3 + i);
        setenv("LISTEN_PID", pid ? pid : own, 1);
        setenv("LISTEN_FDS", count, 1);
        if (names) setenv("LISTEN_FDNAMES", names, 1);
        else unsetenv("LISTEN_FDNAMES");
        fdstore_take(&set);
        uint32_t n = set.n;
        const struct fdstore_item *items = set.items;
        bool ok = n == expect && !getenv("LISTEN_FDS") && !getenv("LISTEN_PID") && !getenv("LISTEN_FDNAMES");
        for (uint32_t i = 0; i < n; i++) ok = ok && is_open(items[i].fd) && (fcntl(items[i].fd, F_GETFD) & FD_CLOEXEC);
        ok = ok && (n < 1 || strcmp(items[0].name, "a") == 0);
        _exit(ok ? 0 : 1);
    }
    return kvt_wait(child);
}

static void cont_3_what_is_handed_over(void) {
    char many[512] = "a", longer[200] = "";
    for (int i = 0; i < 200; i++) strcat(many, ":b");
    memset(longer, 'x', 150);
    KVT_EQ_I(in_child(NULL, "2", "a:b", 2), 0);
    KVT_EQ_I(in_child("1", "2", "a:b", 0), 0); /* another process's */
    KVT_EQ_I(in_child(NULL, "2", "a", 1), 0);  /* no name: let go */
    KVT_EQ_I(in_child(NULL, "2", NULL, 0), 0);
    KVT_EQ_I(in_child(NULL, "200", many, FDSTORE_MAX), 0); /* more than there is room for */
    KVT_EQ_I(in_child(NULL, "1", longer, 0), 0);           /* a name that does not fit */
    KVT_EQ_I(in_child(NULL, "-1", "a", 0), 0);
    KVT_EQ_I(in_child(NULL, "4294967295", "a", 0), 0);
    KVT_EQ_I(in_child(NULL, "x", "a", 0), 0);
    KVT_EQ_I(in_child("", "1", "a", 0), 0);
}

/* A manager's socket, and NOTIFY_SOCKET. */
static int manager(void) {
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    snprintf(at.sun_path, sizeof at.sun_path, "/tmp/kvd-fdstore-%d", (int)getpid());
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at)) return -1;
    setenv("NOTIFY_SOCKET", at.sun_path, 1);
    return fd;
}

static void manager_free(int fd) {
    unlink(getenv("NOTIFY_SOCKET"));
    unsetenv("NOTIFY_SOCKET");
    close(fd);
}

/* The next datagram; "" when there is none. */
static const char *told(int fd) {
    static char text[256];
    ssize_t n = recv(fd, text, sizeof text - 1, MSG_DONTWAIT);
    text[n > 0 ? n : 0] = 0;
    return text;
}

/* SRV-7: one that does not read: nobody waits for it longer than a moment. */
static void srv_7_a_manager_that_does_not_read(void) {
    int fd = manager(), fill = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    KVT_NEED(fd >= 0 && fill >= 0);
    memcpy(at.sun_path, getenv("NOTIFY_SOCKET"), strlen(getenv("NOTIFY_SOCKET")));
    while (sendto(fill, "x", 1, 0, (struct sockaddr *)&at, sizeof at) == 1) continue;
    KVT_EQ_I(errno, EAGAIN);
    KVT_FALSE(notify_send("WATCHDOG=1"));
    while (*told(fd)) continue;
    KVT_TRUE(notify_send("WATCHDOG=1"));
    KVT_EQ_STR(told(fd), "WATCHDOG=1");
    close(fill);
    manager_free(fd);
}

static void cont_3_what_is_sent(void) {
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    char text[256];
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec part = { .iov_base = text, .iov_len = sizeof text - 1 };
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room
    };
    snprintf(at.sun_path, sizeof at.sun_path, "/tmp/kvd-fdstore-%d", (int)getpid());
    int fd = memory(), socket_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    unsetenv("NOTIFY_SOCKET");
    KVT_FALSE(fdstore_put("one", fd)); /* nobody is there */
    KVT_FALSE(fdstore_wait(10));
    KVT_NEED(bind(socket_fd, (struct sockaddr *)&at, sizeof at) == 0);
    setenv("NOTIFY_SOCKET", at.sun_path, 1);
    KVT_TRUE(fdstore_put("one", fd));
    ssize_t n = recvmsg(socket_fd, &message, MSG_CMSG_CLOEXEC);
    KVT_NEED(n > 0);
    text[n] = 0;
    KVT_EQ_STR(text, "FDSTORE=1\nFDPOLL=0\nFDNAME=one");
    struct cmsghdr *h = CMSG_FIRSTHDR(&message);
    KVT_NEED(h && h->cmsg_type == SCM_RIGHTS);
    int got;
    memcpy(&got, CMSG_DATA(h), sizeof got);
    KVT_TRUE(is_open(got));
    close(got);
    fdstore_remove("one");
    n = recv(socket_fd, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = 0;
    KVT_EQ_STR(text, "FDSTOREREMOVE=1\nFDNAME=one");
    KVT_FALSE(fdstore_wait(10)); /* it was sent, and nobody comes to it */
    unsetenv("NOTIFY_SOCKET");
    unlink(at.sun_path);
    close(socket_fd);
    close(fd);
}

static struct fdstore_item item(uint64_t id, uint32_t rank, enum stored_kind what, uint32_t pages, uint64_t bytes) {
    struct fdstore_item made = { .fd = memory() };
    stored_name(id, rank, what, pages, bytes, made.name, sizeof made.name);
    return made;
}

static void cont_3_a_set_is_taken_as_a_whole(void) {
    struct geom_layout layout = { .n_pools = 2, .pages = { 100, 7 }, .pool_bytes = { 4096, 512 }, .state_bytes = 64 };
    struct fdstore_item items[8] = { item(5, 0, STORED_POOLS, 100, 4096),    item(5, 0, STORED_POOLS + 1, 100, 512),
                                     item(5, 0, STORED_STATE, 100, 64),      item(5, 1, STORED_POOLS, 100, 4096),
                                     item(5, 1, STORED_POOLS + 1, 100, 512), item(5, 1, STORED_STATE, 100, 64) };
    struct stored_regions kept;
    stored_load(&kept, items, 6);
    KVT_EQ(kept.id, 5);
    KVT_EQ(kept.bytes[1], 4672);
    KVT_TRUE(stored_matches(&kept, &layout, 2));
    KVT_FALSE(stored_matches(&kept, &layout, 1)); /* a rank too many */
    KVT_FALSE(stored_matches(&kept, &layout, 3));
    layout.pages[0] = 101;
    KVT_FALSE(stored_matches(&kept, &layout, 2));
    layout.pages[0] = 100;
    layout.state_bytes = 0;
    KVT_FALSE(stored_matches(&kept, &layout, 2));
    layout.state_bytes = 64;
    layout.n_pools = 1;
    KVT_FALSE(stored_matches(&kept, &layout, 2));
    stored_drop(&kept);
    for (int i = 0; i < 6; i++) KVT_FALSE(is_open(items[i].fd));
    KVT_EQ(kept.id, 0);
}

/* A set that was taken over in part is forgotten as a whole: what stayed with the holder would be memory that nobody
 * ever frees, and, standing first at the next start, would cost the set that is good. */
static void cont_3_what_was_taken_over_is_forgotten_too(void) {
    struct fdstore_item items[2] = { item(5, 0, STORED_POOLS, 100, 4096), item(5, 1, STORED_POOLS, 100, 4096) };
    struct stored_regions kept;
    int fd = manager();
    KVT_NEED(fd >= 0);
    stored_load(&kept, items, 2);
    kept.region[0][STORED_POOLS].fd = -1; /* the device's from here on */
    stored_drop(&kept);
    KVT_EQ_STR(told(fd), "FDSTOREREMOVE=1\nFDNAME=kvd.0000000000000005.r0.main.100.4096");
    KVT_EQ_STR(told(fd), "FDSTOREREMOVE=1\nFDNAME=kvd.0000000000000005.r1.main.100.4096");
    KVT_EQ_STR(told(fd), "");
    KVT_TRUE(is_open(items[0].fd));
    KVT_FALSE(is_open(items[1].fd));
    close(items[0].fd);
    manager_free(fd);
}

/* The holder forgets by name: of one that it handed over twice it must keep the first. */
static void cont_3_one_that_is_there_twice(void) {
    struct fdstore_item items[3] = { item(5, 0, STORED_POOLS, 100, 4096), item(5, 0, STORED_POOLS, 100, 4096),
                                     item(6, 0, STORED_POOLS, 100, 4096) };
    struct stored_regions kept;
    int fd = manager();
    KVT_NEED(fd >= 0);
    stored_load(&kept, items, 3);
    KVT_TRUE(is_open(items[0].fd));
    KVT_FALSE(is_open(items[1].fd));
    KVT_EQ_STR(told(fd), "FDSTOREREMOVE=1\nFDNAME=kvd.0000000000000006.r0.main.100.4096");
    KVT_EQ_STR(told(fd), "");
    stored_drop(&kept);
    manager_free(fd);
}

/* ---- the socket of descriptors ------------------------------------------------------------------ */

static bool readable(const struct fdpass *f) {
    struct pollfd p = { .fd = fdpass_fd(f), .events = POLLIN };
    return poll(&p, 1, 0) == 1;
}

static uint32_t ask(int fd, const void *request, size_t bytes, struct fdpass *f, char *ret_text) {
    struct {
        uint32_t status, index;
        char text[400];
    } answer = { 99, 0, "" };
    KVT_EQ_I(send(fd, request, bytes, MSG_NOSIGNAL), (ssize_t)bytes);
    while (readable(f)) fdpass_run(f);
    KVT_TRUE(recv(fd, &answer, sizeof answer, MSG_DONTWAIT) >= 8);
    memcpy(ret_text, answer.text, sizeof answer.text);
    return answer.status;
}

/* SRV-2: without files for a newcomer the main loop is not kept turning; what is no request is told so. */
static void srv_2_a_newcomer_without_a_file(void) {
    static struct fx fx;
    struct fdpass *f = NULL;
    struct rlimit limit, none;
    char err[512], text[400];
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .more = "[devices]\nexport = vmm\n" }));
    struct config config = service_config(fx.service);
    snprintf(config.socket, sizeof config.socket, "/tmp/kvd-fdpass-%d", (int)getpid());
    KVT_NEED(fdpass_open(fx.service, &config, &f, err, sizeof err) == 0);
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    snprintf(to.sun_path, sizeof to.sun_path, "%s" FDPASS_SUFFIX, config.socket);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    KVT_NEED(connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    KVT_OK(getrlimit(RLIMIT_NOFILE, &limit));
    none = limit;
    none.rlim_cur = (rlim_t)fd; /* all below are open */
    KVT_OK(setrlimit(RLIMIT_NOFILE, &none));
    fdpass_run(f);
    KVT_FALSE(readable(f));
    KVT_OK(setrlimit(RLIMIT_NOFILE, &limit));
    fdpass_tick(f, clock_ns());
    KVT_TRUE(readable(f));
    KVT_EQ(ask(fd, (uint64_t[2]){ 1, 0 }, 16, f, text), KVD_PERMISSION_DENIED);
    KVT_EQ(ask(fd, "junk", 4, f, text), KVD_INVALID_ARGUMENT);
    KVT_HAS(text, "a request of 4 bytes: one has 16");
    KVT_EQ_I(recv(fd, text, sizeof text, 0), 0); /* and closed */
    close(fd);
    fdpass_close(f);
    fx_stop(&fx);
}

static void cont_3_foreign_names_are_let_go(void) {
    const char *const names[] = { "kvd",
                                  "kvd.0000000000000005.r0.main.100",
                                  "kvd.5.r0.main.100.4096",
                                  "kvd.0000000000000005.r9.main.100.4096",
                                  "kvd.0000000000000005.r0.other.100.4096",
                                  "kvd.0000000000000000.r0.main.100.4096",
                                  "kvd.0000000000000005.r0.main.100.4096x",
                                  "kvd.0000000000000005.r0.main.100.0",
                                  "kvd.0000000000000005.r0.main.-1.4096" };
    struct stored_regions kept;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct fdstore_item one = { .fd = memory() };
        snprintf(one.name, sizeof one.name, "%s", names[i]);
        stored_load(&kept, &one, 1);
        if (!KVT_EQ(kept.id, 0) || !KVT_FALSE(is_open(one.fd))) printf("    %s\n", names[i]);
    }
    struct fdstore_item two[3] = { item(5, 0, STORED_POOLS, 100, 4096), item(6, 0, STORED_POOLS, 100, 4096),
                                   item(5, 0, STORED_POOLS, 100, 4096) };
    stored_load(&kept, two, 3); /* of two sets the first; nothing twice */
    KVT_EQ(kept.id, 5);
    KVT_TRUE(is_open(two[0].fd));
    KVT_FALSE(is_open(two[1].fd));
    KVT_FALSE(is_open(two[2].fd));
    stored_drop(&kept);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(cont_3_what_is_handed_over),
                                             KVT_CASE(cont_3_what_is_sent),
                                             KVT_CASE(cont_3_a_set_is_taken_as_a_whole),
                                             KVT_CASE(cont_3_foreign_names_are_let_go),
                                             KVT_CASE(cont_3_what_was_taken_over_is_forgotten_too),
                                             KVT_CASE(cont_3_one_that_is_there_twice),
                                             KVT_CASE(srv_7_a_manager_that_does_not_read),
                                             KVT_CASE(srv_2_a_newcomer_without_a_file),
                                             { 0 } };
    return kvt_main("service fdstore", cases, argc, argv);
}
