/* SPDX-License-Identifier: Apache-2.0
 *
 * What feeds the watchdog: the daemon's own socket, or one that a test owns and leaves hanging. SRV-2.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "core.h" /* the core mutex, to hold it */
#include "listener.h"
#include "service_fixture.h"
#include "systemd.h"

#define SECOND UINT64_C(1000000000)

static char dir[64], path[96];

static void make_dir(void) {
    snprintf(dir, sizeof dir, "/tmp/kvd-watchdog-XXXXXX");
    KVT_TRUE(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/kvd.sock", dir);
}

static void remove_dir(void) {
    unlink(path);
    KVT_EQ_I(rmdir(dir), 0);
}

static struct watchdog watchdog_of(const char *usec) {
    struct watchdog w;
    if (usec) setenv("WATCHDOG_USEC", usec, 1);
    else unsetenv("WATCHDOG_USEC");
    watchdog_init(&w, path);
    unsetenv("WATCHDOG_USEC");
    return w;
}

static int listening(int backlog) {
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    snprintf(a.sun_path, sizeof a.sun_path, "%.100s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    KVT_EQ_I(bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, backlog), 0);
    return fd;
}

static int dial(void) {
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    snprintf(a.sun_path, sizeof a.sun_path, "%.100s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (!connect(fd, (struct sockaddr *)&a, sizeof a)) return fd;
    close(fd);
    return -1;
}

/* Waits until the other end of the watchdog's connection is closed, as the daemon's main loop waits for its timer. */
static bool comes(struct watchdog *w, int ms) {
    struct pollfd p = { .fd = w->fd, .events = POLLIN };
    return w->fd >= 0 && poll(&p, 1, ms) == 1;
}

/* sd_watchdog_enabled(3): microseconds, and only for the process that is meant. */
static void environment_is_read(void) {
    char pid[24];
    KVT_EQ(watchdog_of(NULL).period_ns, 0);
    KVT_EQ(watchdog_of("").period_ns, 0);
    KVT_EQ(watchdog_of("-5").period_ns, 0);
    KVT_EQ(watchdog_of("12x").period_ns, 0);
    KVT_EQ(watchdog_of("18446744073709551615").period_ns, 0);
    KVT_EQ(watchdog_of("99999999999999999999999").period_ns, 0);
    KVT_EQ(watchdog_of("2000000").period_ns, SECOND / 2);
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    setenv("WATCHDOG_PID", pid, 1);
    KVT_EQ(watchdog_of("2000000").period_ns, SECOND / 2);
    setenv("WATCHDOG_PID", "1", 1);
    KVT_EQ(watchdog_of("2000000").period_ns, 0);
    unsetenv("WATCHDOG_PID");
    struct watchdog off = watchdog_of(NULL);
    KVT_TRUE(!watchdog_tick(&off, SECOND, 1) && off.fd < 0);
}

/* Nobody accepts, then somebody accepts and does nothing, then closes. */
static void hungry_until_served(void) {
    make_dir();
    struct watchdog w = watchdog_of("4000000");
    int listener = listening(4);
    for (uint64_t t = 1; t < 20; t++) KVT_TRUE(!watchdog_tick(&w, t * SECOND, t));
    int served = accept(listener, NULL, NULL);
    KVT_TRUE(!watchdog_tick(&w, 20 * SECOND, 20));
    close(served);
    KVT_TRUE(comes(&w, 5000));
    KVT_TRUE(watchdog_tick(&w, 21 * SECOND, 20));
    KVT_TRUE(!watchdog_tick(&w, 21 * SECOND + 1, 21)); /* one proof, one meal; the next question is open */
    KVT_TRUE(w.fd >= 0);
    watchdog_close(&w);
    close(listener);
    remove_dir();
}

/* It asks no more often than it must. */
static void asks_in_its_period(void) {
    make_dir();
    struct watchdog w = watchdog_of("4000000");
    int listener = listening(4);
    KVT_TRUE(!watchdog_tick(&w, SECOND, 0));
    close(accept(listener, NULL, NULL));
    KVT_TRUE(comes(&w, 5000));
    KVT_TRUE(watchdog_tick(&w, SECOND + 1, 0));
    KVT_TRUE(w.fd < 0 && !watchdog_tick(&w, 2 * SECOND - 1, 0) && w.fd < 0);
    KVT_TRUE(!watchdog_tick(&w, 2 * SECOND, 0) && w.fd >= 0);
    watchdog_close(&w);
    close(listener);
    remove_dir();
}

/* SRV-2: others keep the backlog full. Accepting goes on: fed. It does not: hungry. The socket is gone: hungry. */
static void full_backlog_is_judged_by_what_is_accepted(void) {
    make_dir();
    struct watchdog w = watchdog_of("4000000");
    int listener = listening(1), client[8], n = 0;
    while (n < 8 && (client[n] = dial()) >= 0) n++;
    KVT_TRUE(n > 0 && n < 8);
    KVT_TRUE(watchdog_tick(&w, SECOND, 1) && w.fd < 0);
    KVT_TRUE(!watchdog_tick(&w, 2 * SECOND, 1) && w.fd < 0);
    KVT_TRUE(watchdog_tick(&w, 3 * SECOND, 2));
    while (n) close(client[--n]);
    close(listener);
    KVT_TRUE(!watchdog_tick(&w, 4 * SECOND, 3) && w.fd < 0);
    remove_dir();
    KVT_TRUE(!watchdog_tick(&w, 5 * SECOND, 4) && w.fd < 0);
}

/* The real listener answers. While the core mutex is held and every thread that serves waits for it, nothing is proven;
 * when it is given back, it is again. */
static void stuck_threads_starve_it(void) {
    enum { CLIENTS = 256 }; /* more than nng has threads */
    int client[CLIENTS];
    struct fx fx;
    struct listener *l;
    char err[512];
    make_dir();
    KVT_NEED(fx_start(&fx, NULL));
    struct config c = service_config(fx.service);
    snprintf(c.socket, sizeof c.socket, "%s", path);
    KVT_NEED(!listener_open(fx.service, &c, &l, err, sizeof err));
    struct watchdog w = watchdog_of("4000000");
    KVT_TRUE(!watchdog_tick(&w, SECOND, listener_accepted(l)));
    KVT_TRUE(comes(&w, 20000));
    KVT_TRUE(watchdog_tick(&w, 2 * SECOND, listener_accepted(l))); /* and asks again */
    KVT_TRUE(comes(&w, 20000));
    listener_run(l);

    pthread_mutex_lock(&fx.service->lock);
    int open = 0;
    while (open < CLIENTS && (client[open] = dial()) >= 0)
        shutdown(client[open++], SHUT_WR); /* whose callback takes the mutex */
    struct pollfd p = { .fd = open ? client[open - 1] : -1, .events = POLLIN };
    KVT_EQ_I(poll(&p, 1, 1000), 0); /* the last one is not served any more */
    KVT_TRUE(watchdog_tick(&w, 3 * SECOND, listener_accepted(l)));
    KVT_TRUE(!comes(&w, 1000));
    uint64_t accepted = listener_accepted(l);
    for (uint64_t t = 4; t < 10; t++) KVT_TRUE(!watchdog_tick(&w, t * SECOND, accepted));
    pthread_mutex_unlock(&fx.service->lock);

    bool fed = false; /* as the main loop does: it wakes for connections to free, and for its timer */
    for (uint64_t t = 10; t < 200 && !fed; t++) {
        struct pollfd both[] = { { .fd = listener_fd(l), .events = POLLIN }, { .fd = w.fd, .events = POLLIN } };
        poll(both, 2, 100);
        listener_run(l);
        fed = watchdog_tick(&w, t * SECOND, listener_accepted(l));
    }
    KVT_TRUE(fed);
    while (open) close(client[--open]);
    watchdog_close(&w);
    listener_close(l);
    fx_stop(&fx);
    remove_dir();
}

/* ---- the daemon -------------------------------------------------------------------------------------------------- */

static int notify_socket(char *ret_path, size_t bytes) {
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    snprintf(ret_path, bytes, "%s/notify", dir);
    snprintf(a.sun_path, sizeof a.sun_path, "%.100s", ret_path);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    KVT_EQ_I(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static pid_t spawn(const char *config, const char *notify) {
    pid_t pid = fork();
    if (pid) return pid;
    setenv("NOTIFY_SOCKET", notify, 1);
    setenv("WATCHDOG_USEC", "400000", 1);
    execl(KVD_BINARY, "kvd", "--config", config, (char *)NULL);
    _exit(127);
}

/* The next notification that begins like that, others are passed over. False: none came in time. */
static bool hears(int fd, const char *start, char *ret_text, size_t bytes, int ms) {
    struct pollfd p = { .fd = fd, .events = POLLIN };
    while (poll(&p, 1, ms) == 1) {
        ssize_t n = recv(fd, ret_text, bytes - 1, 0);
        ret_text[n > 0 ? n : 0] = 0;
        if (strncmp(ret_text, start, strlen(start)) == 0) return true;
    }
    return false;
}

/* Fed while the socket serves, told about a reload, and no more when nobody can reach the socket. */
static void daemon_feeds_it_while_it_serves(void) {
    char config[96], notify[96], text[512];
    make_dir();
    snprintf(config, sizeof config, "%s/kvd.conf", dir);
    FILE *f = fopen(config, "w");
    KVT_NEED(f);
    fprintf(f, "[kvd]\nsocket = %s\nlog_level = error\n[devices]\nmemory = 64MiB\n[model]\nlayers = 2\n", path);
    fprintf(f, "head_dim = 64\nmax_context = 4096\n[capacity]\ntokens = 16384\n");
    fclose(f);
    int fd = notify_socket(notify, sizeof notify);
    pid_t pid = spawn(config, notify);
    if (KVT_TRUE(hears(fd, "READY=1\nSTATUS=serving 16384 tokens", text, sizeof text, 60000))) {
        for (int i = 0; i < 5; i++) KVT_TRUE(hears(fd, "WATCHDOG=1", text, sizeof text, 20000));
        kill(pid, SIGHUP);
        KVT_TRUE(hears(fd, "RELOADING=1\nMONOTONIC_USEC=", text, sizeof text, 20000));
        KVT_TRUE(hears(fd, "READY=1\nSTATUS=serving 16384 tokens", text, sizeof text, 20000));
        KVT_TRUE(hears(fd, "WATCHDOG=1", text, sizeof text, 20000));
        unlink(path);
        while (hears(fd, "WATCHDOG=1", text, sizeof text, 0)) continue; /* that have waited here */
        int late = 0;                                                   /* what had been asked before */
        while (late < 3 && hears(fd, "WATCHDOG=1", text, sizeof text, 1000)) late++;
        KVT_TRUE(late < 3);
    }
    kill(pid, SIGTERM);
    KVT_EQ_I(kvt_wait(pid), 0);
    close(fd);
    unlink(notify);
    unlink(config);
    snprintf(text, sizeof text, "%s.lock", path);
    unlink(text);
    remove_dir();
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(environment_is_read),
                                             KVT_CASE(hungry_until_served),
                                             KVT_CASE(asks_in_its_period),
                                             KVT_CASE(full_backlog_is_judged_by_what_is_accepted),
                                             KVT_CASE(stuck_threads_starve_it),
                                             KVT_CASE(daemon_feeds_it_while_it_serves),
                                             { 0 } };
    return kvt_main("service_watchdog", cases, argc, argv);
}
