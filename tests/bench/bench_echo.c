/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_echo.h"

#include <nng/nng.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void bench_die(const char *what) {
    fprintf(stderr, "bench_rpc: %s\n", what);
    exit(1);
}

static void check(int nng_rc, const char *what) {
    if (nng_rc == 0) return;
    fprintf(stderr, "bench_rpc: %s: %s\n", what, nng_strerror(nng_rc));
    exit(1);
}

static struct sockaddr_un address_of(const char *path) {
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    return address;
}

static struct echo_sizes sizes_in(const uint8_t *bytes) {
    uint32_t two[2];
    memcpy(two, bytes, sizeof two);
    return (struct echo_sizes){ two[0], two[1] };
}

static void sizes_out(uint8_t *bytes, struct echo_sizes sizes) {
    uint32_t two[2] = { (uint32_t)sizes.ask, (uint32_t)sizes.answer };
    memcpy(bytes, two, sizeof two);
}

/* A child that says on a pipe when it listens, and goes with its parent. */
static pid_t start(const char *path, void (*serve)(const char *, int)) {
    int ready[2];
    char byte;
    if (pipe(ready) != 0) bench_die("pipe");
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ready[0]);
        serve(path, ready[1]);
        _exit(0);
    }
    close(ready[1]);
    if (pid < 0 || read(ready[0], &byte, 1) != 1) bench_die("an echo server did not start");
    close(ready[0]);
    return pid;
}

/* ---- raw ---------------------------------------------------------------------------------------- */

static bool read_full(int fd, uint8_t *to, size_t n) {
    while (n) {
        ssize_t got = read(fd, to, n);
        if (got <= 0) return false;
        to += got;
        n -= (size_t)got;
    }
    return true;
}

static bool write_full(int fd, const uint8_t *from, size_t n) {
    while (n) {
        ssize_t put = write(fd, from, n);
        if (put <= 0) return false;
        from += put;
        n -= (size_t)put;
    }
    return true;
}

static void serve_raw(const char *path, int ready) {
    static uint8_t buffer[ECHO_LIMIT];
    struct sockaddr_un address = address_of(path);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 1) != 0) _exit(1);
    if (write(ready, "r", 1) != 1) _exit(1);
    int fd = accept(listener, NULL, NULL);
    for (;;) { /* the whole message comes in one read where it fits the socket */
        ssize_t got = read(fd, buffer, sizeof buffer);
        if (got < 8) return;
        struct echo_sizes sizes = sizes_in(buffer);
        if (sizes.ask > (size_t)got && !read_full(fd, buffer + got, sizes.ask - (size_t)got)) return;
        if (!write_full(fd, buffer, sizes.answer)) return;
    }
}

pid_t echo_raw_start(const char *path) { return start(path, serve_raw); }

void echo_raw_connect(struct echo_raw *e, const char *path) {
    struct sockaddr_un address = address_of(path);
    e->fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(e->fd, (struct sockaddr *)&address, sizeof address) != 0) bench_die("connect to the raw echo");
}

void echo_raw_ping(struct echo_raw *e, struct echo_sizes sizes) {
    static uint8_t buffer[ECHO_LIMIT];
    sizes_out(buffer, sizes);
    if (!write_full(e->fd, buffer, sizes.ask) || !read_full(e->fd, buffer, sizes.answer))
        bench_die("the raw echo broke");
}

/* ---- nng byte streams ------------------------------------------------------------------------------ */

struct echo_server {
    nng_stream *stream;
    nng_aio *recv, *send;
    size_t filled;
    uint8_t in[ECHO_LIMIT], out[ECHO_LIMIT];
};

static void post(nng_stream *stream, nng_aio *aio, void *buffer, size_t n, void (*go)(nng_stream *, nng_aio *)) {
    nng_iov iov = { buffer, n };
    nng_aio_set_iov(aio, 1, &iov);
    go(stream, aio);
}

static void send_all(nng_stream *stream, nng_aio *aio, uint8_t *bytes, size_t n) {
    while (n) {
        post(stream, aio, bytes, n, nng_stream_send);
        nng_aio_wait(aio);
        if (nng_aio_result(aio) != 0) return;
        bytes += nng_aio_count(aio);
        n -= nng_aio_count(aio);
    }
}

static void server_received(void *arg) {
    struct echo_server *s = arg;
    if (nng_aio_result(s->recv) != 0) _exit(0);
    s->filled += nng_aio_count(s->recv);
    if (s->filled >= 8) {
        struct echo_sizes sizes = sizes_in(s->in);
        if (s->filled >= sizes.ask) {
            s->filled = 0; /* one message at a time */
            send_all(s->stream, s->send, s->out, sizes.answer);
        }
    }
    post(s->stream, s->recv, s->in + s->filled, sizeof s->in - s->filled, nng_stream_recv);
}

static void serve_nng(const char *path, int ready) {
    static struct echo_server s;
    char url[160];
    nng_stream_listener *listener;
    nng_aio *accepted;
    snprintf(url, sizeof url, "ipc://%s", path);
    check(nng_stream_listener_alloc(&listener, url), "listener");
    check(nng_stream_listener_listen(listener), "listen");
    check(nng_aio_alloc(&accepted, NULL, NULL), "aio");
    check(nng_aio_alloc(&s.send, NULL, NULL), "aio");
    check(nng_aio_alloc(&s.recv, server_received, &s), "aio");
    if (write(ready, "r", 1) != 1) _exit(1);
    nng_stream_listener_accept(listener, accepted);
    nng_aio_wait(accepted);
    check(nng_aio_result(accepted), "accept");
    s.stream = nng_aio_get_output(accepted, 0);
    post(s.stream, s.recv, s.in, sizeof s.in, nng_stream_recv);
    for (;;) pause();
}

pid_t echo_nng_start(const char *path) { return start(path, serve_nng); }

struct echo_nng {
    nng_stream *stream;
    nng_aio *aio, *recv;
    uint8_t buffer[ECHO_LIMIT];
};

struct echo_nng *echo_nng_connect(const char *path) {
    struct echo_nng *e = calloc(1, sizeof *e);
    nng_stream_dialer *dialer;
    char url[160];
    if (!e) bench_die("out of memory");
    snprintf(url, sizeof url, "ipc://%s", path);
    check(nng_stream_dialer_alloc(&dialer, url), "dialer");
    check(nng_aio_alloc(&e->aio, NULL, NULL), "aio");
    check(nng_aio_alloc(&e->recv, NULL, NULL), "aio");
    nng_stream_dialer_dial(dialer, e->aio);
    nng_aio_wait(e->aio);
    check(nng_aio_result(e->aio), "dial");
    e->stream = nng_aio_get_output(e->aio, 0);
    return e;
}

void echo_nng_ping(struct echo_nng *e, struct echo_sizes sizes) {
    sizes_out(e->buffer, sizes);
    send_all(e->stream, e->aio, e->buffer, sizes.ask);
    for (size_t got = 0; got < sizes.answer; got += nng_aio_count(e->recv)) {
        post(e->stream, e->recv, e->buffer, sizes.answer - got, nng_stream_recv);
        nng_aio_wait(e->recv);
        check(nng_aio_result(e->recv), "echo");
    }
}
