/* SPDX-License-Identifier: Apache-2.0
 *
 * The HTTP side by itself: what may be listened on, what readiness says from start to loss, who is closed in time.
 * SRV-2, SRV-7.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "clock.h"
#include "core.h" /* to break a device */
#include "http.h"
#include "http_client.h"
#include "service_fixture.h"
#include "transfer.h"

static struct fx fx;
static char place[64], says[1024];

static bool configure(const char *listen, struct config *ret_config) {
    char text[256];
    snprintf(text, sizeof text, "[http]\nlisten = %s\n", listen);
    return config_parse("k.conf", text, ret_config, says, sizeof says) == 0;
}

static struct http *open_at(const char *listen) {
    struct config config;
    struct http *http = NULL;
    if (!KVT_TRUE(configure(listen, &config))) return NULL;
    return http_open(&config, &http, says, sizeof says) ? NULL : http;
}

static struct http *open_place(void) {
    char listen[96];
    snprintf(listen, sizeof listen, "unix:%s", place);
    return open_at(listen);
}

/* Answers are at most a moment old: asks until it says so. */
static bool comes(const char *target, int status, const char *word) {
    for (uint64_t end = clock_ns() + UINT64_C(10000000000); clock_ns() < end; sched_yield()) {
        bool has = false;
        if (http_status(place, target, word, &has) == status && has) return true;
    }
    return false;
}

static bool is(const char *target, int status, const char *word) {
    bool has = false;
    return KVT_EQ_I(http_status(place, target, word, &has), status) && KVT_TRUE(has);
}

static void loopback_or_unix_only(void) {
    static const struct {
        const char *listen, *says;
    } bad[] = {
        { "0.0.0.0:9464", "k.conf:2: listen: \"0.0.0.0:9464\" is not a loopback address" },
        { "192.168.1.1:9464", "write 127.0.0.1:9464 or [::1]:9464" },
        { "128.0.0.1:1", "is not a loopback address" },
        { "[::]:9464", "is not a loopback address" },
        { "[::2]:9464", "is not a loopback address" },
        { "localhost:9464", "is not a loopback address" },
        { "127.1:9464", "is not a loopback address" },
        { "127.0.0.1", "write for example 127.0.0.1:9464" },
        { "127.0.0.1:", "is neither none nor an address with a port" },
        { "127.0.0.1:0", "is neither none nor an address with a port" },
        { "127.0.0.1:65536", "is neither none nor an address with a port" },
        { "127.0.0.1:-1", "is neither none nor an address with a port" },
        { ":9464", "is neither none nor an address with a port" },
        { "yes", "is neither none nor an address with a port" },
        { "unix:run/http.sock", "has a path that is not absolute" },
        { "unix:", "has a path that is not absolute" },
        { "unix:/run/kvd/kvd.sock", "is the socket of the clients; choose another path" },
        { "unix:/01234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890",
          "at most 95 fit" },
    };
    struct config c;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (KVT_FALSE(configure(bad[i].listen, &c))) KVT_HAS(says, bad[i].says);
    KVT_TRUE(configure("none", &c) && c.http_listen.kind == LISTEN_NONE);
    KVT_TRUE(configure("127.0.0.1:9464", &c) && c.http_listen.kind == LISTEN_TCP4 && c.http_listen.port == 9464);
    KVT_TRUE(configure("127.9.8.7:1", &c) && c.http_listen.kind == LISTEN_TCP4);
    KVT_TRUE(configure("[::1]:65535", &c) && c.http_listen.kind == LISTEN_TCP6 && c.http_listen.port == 65535);
    KVT_TRUE(configure("unix:/run/kvd/http.sock", &c) && c.http_listen.kind == LISTEN_UNIX);
    KVT_EQ_STR(c.http_listen.path, "/run/kvd/http.sock");
    config_defaults(&c);
    KVT_EQ(c.http_listen.kind, LISTEN_NONE);
    struct http *none = (struct http *)&c;
    KVT_OK(http_open(&c, &none, says, sizeof says));
    KVT_TRUE(none == NULL);
}

/* From the start to the loss of a device. */
static void drain(bool on) {
    pthread_mutex_lock(&fx.service->lock);
    fx.service->draining = on;
    pthread_mutex_unlock(&fx.service->lock);
}

static void readiness(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct http *http = open_place();
    struct stat st;
    KVT_NEED(http);
    KVT_OK(stat(place, &st));
    KVT_EQ(st.st_mode & 0777, 0660);
    is("/readyz", 503, "starting");
    is("/metrics", 503, "starting");
    is("/healthz", 200, "starting");
    is("/else", 404, "/metrics, /healthz and /readyz");
    http_serve(http, fx.service);
    is("/readyz", 200, "ready\n");
    is("/healthz", 200, "ok\n");
    is("/metrics", 200, "\nkvd_draining 0\n");
    drain(true);
    KVT_TRUE(comes("/readyz", 503, "draining\n"));
    KVT_TRUE(comes("/metrics", 200, "\nkvd_draining 1\n"));
    is("/healthz", 200, "ok\n");
    drain(false);
    KVT_TRUE(comes("/readyz", 200, "ready\n"));
    transfer_lose(fx.service->transfer, 0, "unplugged");
    KVT_TRUE(comes("/readyz", 503, "device lost\n"));
    KVT_TRUE(comes("/metrics", 200, "\nkvd_device_lost 1\n"));
    KVT_TRUE(http_close(http) == NULL);
    KVT_TRUE(access(place, F_OK) != 0);
    KVT_EQ_I(http_dial(place), -1);
    http_serve(NULL, fx.service); /* where nothing is configured */
    http_tick(NULL, 0);
    http_close(NULL);
    fx_stop(&fx);
}

static int bind_place(bool on) {
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    snprintf(a.sun_path, sizeof a.sun_path, "%s", place);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    KVT_OK(bind(fd, (struct sockaddr *)&a, sizeof a));
    if (on) KVT_OK(listen(fd, 1));
    return fd;
}

/* What is in the way is left alone, unless it is what a killed instance left. */
static void places_that_are_taken(void) {
    int fd = open(place, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    KVT_EQ_I(write(fd, "mine", 4), 4);
    close(fd);
    KVT_TRUE(open_place() == NULL);
    KVT_HAS(says, "there is something that is no socket; remove it or choose another path");
    struct stat st;
    KVT_OK(stat(place, &st));
    KVT_EQ(st.st_size, 4);
    unlink(place);
    fd = bind_place(true); /* served */
    KVT_TRUE(open_place() == NULL);
    KVT_HAS(says, "another program listens there");
    close(fd); /* stale */
    struct http *http = open_place();
    KVT_NEED(http);
    is("/readyz", 503, "starting");
    struct http *second = open_place();
    KVT_TRUE(second == NULL);
    KVT_HAS(says, "another program listens there; choose another path");
    is("/readyz", 503, "starting"); /* the first one goes on */
    http_close(http);
    KVT_TRUE(open_at("unix:/nonexistent/http.sock") == NULL);
    KVT_HAS(says, "does its directory exist");
}

static void port_that_is_taken(void) {
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t bytes = sizeof a;
    char at[32];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    KVT_OK(bind(fd, (struct sockaddr *)&a, sizeof a));
    KVT_OK(listen(fd, 1));
    KVT_OK(getsockname(fd, (struct sockaddr *)&a, &bytes));
    snprintf(at, sizeof at, "127.0.0.1:%u", (unsigned)ntohs(a.sin_port));
    KVT_TRUE(open_at(at) == NULL);
    KVT_HAS(says, "another program listens there; choose another port");
    close(fd);
    struct http *http = open_at(at);
    KVT_NEED(http);
    KVT_EQ_I(http_status(at, "/readyz", "starting", NULL), 503);
    http_close(http);
}

/* A byte now and then keeps libmicrohttpd's own time-out, which is of silence, from helping. */
static bool closes_on_a_trickle(int fd) {
    for (uint64_t end = clock_ns() + 2 * HTTP_LIFE_NS; clock_ns() < end;) {
        struct pollfd p = { .fd = fd, .events = POLLIN };
        char byte;
        if (poll(&p, 1, 200) == 1) return recv(fd, &byte, 1, 0) <= 0;
        (void)send(fd, "l", 1, MSG_NOSIGNAL);
    }
    return false;
}

/* Who keeps a connection without a request is closed when its time is over, though bytes come; others are not. */
static void connections_have_their_time(void) {
    struct http *http = open_place();
    KVT_NEED(http);
    int fds[3];
    struct http_answer a;
    for (int i = 0; i < 3; i++) {
        fds[i] = http_dial(place);
        KVT_EQ_I(send(fds[i], "GET /hea", 8, MSG_NOSIGNAL), 8);
    }
    is("/healthz", 200, "starting"); /* accepted after them: they are known */
    http_tick(http, clock_ns());
    KVT_EQ_I(send(fds[2], "lthz HTTP/1.1\r\nHost: k\r\n\r\n", 27, MSG_NOSIGNAL), 27);
    KVT_TRUE(http_read(fds[2], &a));
    KVT_EQ_I(a.status, 200);
    http_done(&a);
    http_tick(http, clock_ns() + HTTP_LIFE_NS + 1000000000u);
    for (int i = 0; i < 2; i++) KVT_TRUE(closes_on_a_trickle(fds[i]));
    for (int i = 0; i < 3; i++) close(fds[i]);
    is("/healthz", 200, "starting");
    http_close(http);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(loopback_or_unix_only),       KVT_CASE(readiness),
                                             KVT_CASE(places_that_are_taken),       KVT_CASE(port_that_is_taken),
                                             KVT_CASE(connections_have_their_time), { 0 } };
    snprintf(place, sizeof place, "/tmp/kvd-http-%d.sock", (int)getpid());
    log_init(LOG_ERROR);
    int status = kvt_main("service_http", cases, argc, argv);
    unlink(place);
    return status;
}
