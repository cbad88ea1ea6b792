/* SPDX-License-Identifier: Apache-2.0
 *
 * The transport on nng byte streams (nng_stream_dialer over ipc://).
 *
 * Receiving: one aio is always posted; its callback cuts the bytes into frames and posts it again. Sending: an aio
 * without a callback, so that a write that the socket takes at once completes in the calling thread, with no other
 * thread woken.
 *
 * A finite timeout puts an aio on nng's expiry list, which wakes a thread for most calls. Therefore the caller says
 * TRANSPORT_NEVER where it knows that the socket's buffer has room.
 */
#include "transport.h"

#include <errno.h>
#include <nng/nng.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define INBOX (2 * FRAME_LIMIT)

struct transport {
    nng_stream_dialer *dialer;
    nng_stream *stream;
    nng_aio *send_aio, *recv_aio;
    struct transport_sink sink;
    size_t filled; /* bytes in inbox; receive callback only */
    uint8_t inbox[INBOX];
};

static _Atomic pid_t user_pid; /* the process that started nng's threads; 0 = none yet */

uint64_t transport_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

bool transport_forked(void) {
    pid_t pid = atomic_load_explicit(&user_pid, memory_order_relaxed);
    return pid && pid != getpid();
}

static nng_duration remaining(uint64_t deadline_ns) {
    if (deadline_ns == TRANSPORT_NEVER) return NNG_DURATION_INFINITE;
    uint64_t now = transport_now();
    if (deadline_ns <= now) return 0;
    uint64_t ms = (deadline_ns - now + 999999u) / 1000000u;
    return ms > INT32_MAX ? INT32_MAX : (nng_duration)ms;
}

/* ---- receiving --------------------------------------------------------------------------------- */

static void post_receive(struct transport *t) {
    nng_iov iov = { .iov_buf = t->inbox + t->filled, .iov_len = INBOX - t->filled };
    nng_aio_set_iov(t->recv_aio, 1, &iov);
    nng_stream_recv(t->stream, t->recv_aio);
}

/* Delivers the whole frames in the inbox and moves the rest to its start. False: the bytes are no frames. */
static bool cut_frames(struct transport *t) {
    size_t at = 0;
    struct frame_head head;
    for (;;) {
        int rc = frame_head_read(t->inbox + at, t->filled - at, &head);
        if (rc == FRAME_E_SHORT) break;
        if (rc != 0) return false;
        size_t whole = (size_t)head.length + 4;
        if (whole > t->filled - at) break;
        t->sink.frame(t->sink.user, &head, t->inbox + at + FRAME_HEADER);
        at += whole;
    }
    if (at) memmove(t->inbox, t->inbox + at, t->filled - at);
    t->filled -= at;
    return true;
}

static void received(void *arg) {
    struct transport *t = arg;
    int rc = nng_aio_result(t->recv_aio);
    if (rc != 0) {
        t->sink.lost(t->sink.user, rc == NNG_ECONNSHUT ? "kvd closed the connection" : nng_strerror(rc));
        return;
    }
    t->filled += nng_aio_count(t->recv_aio);
    if (!cut_frames(t)) { /* not closed here: nng never ends a send that is posted on a closed stream, and one may be
                             about to be */
        t->sink.lost(t->sink.user, "the peer sent bytes that are no frames of the kvd protocol");
        return;
    }
    post_receive(t);
}

/* ---- opening --------------------------------------------------------------------------------------- */

static int refuse(int code, char *err, size_t err_bytes, const char *path, const char *text) {
    if (err) snprintf(err, err_bytes, "cannot connect to kvd at %s: %s", path, text);
    return code;
}

static int refuse_nng(int rc, char *err, size_t err_bytes, const char *path) {
    switch (rc) {
    case NNG_ENOENT:
        return refuse(TRANSPORT_E_ABSENT, err, err_bytes, path,
                      "there is no such socket; is the daemon running, and is this the path "
                      "in its configuration?");
    case NNG_ECONNREFUSED:
        /* nng reports a missing file in this way too. */
        if (access(path, F_OK) != 0 && errno == ENOENT) return refuse_nng(NNG_ENOENT, err, err_bytes, path);
        return refuse(TRANSPORT_E_ABSENT, err, err_bytes, path,
                      "the socket is there but nobody listens; the daemon has died or is "
                      "starting");
    case NNG_EPERM:
        return refuse(TRANSPORT_E_DENIED, err, err_bytes, path,
                      "permission denied; join the group that owns the socket, or ask its "
                      "administrator");
    case NNG_ETIMEDOUT:
        return refuse(TRANSPORT_E_TIMEOUT, err, err_bytes, path, "no connection within the timeout");
    case NNG_ENOMEM:
    case NNG_ENOFILES:
        return refuse(TRANSPORT_E_RESOURCE, err, err_bytes, path, nng_strerror(rc));
    default:
        return refuse(TRANSPORT_E_LOST, err, err_bytes, path, nng_strerror(rc));
    }
}

/* The first call into nng starts its threads; they inherit the signal mask of the moment. */
static int alloc_dialer(const char *url, nng_stream_dialer **ret_dialer) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    atomic_store(&user_pid, getpid());
    int rc = nng_stream_dialer_alloc(ret_dialer, url);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

static int dial(struct transport *t, uint64_t deadline_ns) {
    nng_aio_set_timeout(t->send_aio, remaining(deadline_ns));
    nng_stream_dialer_dial(t->dialer, t->send_aio);
    nng_aio_wait(t->send_aio);
    int rc = nng_aio_result(t->send_aio);
    if (rc == 0) t->stream = nng_aio_get_output(t->send_aio, 0);
    return rc;
}

int transport_open(const char *path, const struct transport_sink *sink, uint64_t deadline_ns,
                   struct transport **ret_transport, char *err, size_t err_bytes) {
    char url[sizeof ((struct sockaddr_un *)0)->sun_path + 8];
    if (transport_forked())
        return refuse(TRANSPORT_E_FORKED, err, err_bytes, path,
                      "this process is a fork of one that used libkvd; connect before "
                      "forking in neither or exec in the child");
    if (!path[0] || strlen(path) >= sizeof ((struct sockaddr_un *)0)->sun_path)
        return refuse(TRANSPORT_E_PATH, err, err_bytes, path, "a socket path has 1 to 107 bytes; use a shorter one");
    snprintf(url, sizeof url, "ipc://%s", path);

    struct transport *t = calloc(1, sizeof *t);
    if (!t) return refuse(TRANSPORT_E_RESOURCE, err, err_bytes, path, "out of memory");
    t->sink = *sink;
    int rc = alloc_dialer(url, &t->dialer);
    if (rc == 0) rc = nng_aio_alloc(&t->send_aio, NULL, NULL);
    if (rc == 0) rc = nng_aio_alloc(&t->recv_aio, received, t);
    if (rc == 0) rc = dial(t, deadline_ns);
    if (rc != 0) {
        transport_close(t);
        return refuse_nng(rc, err, err_bytes, path);
    }
    nng_aio_set_timeout(t->recv_aio, NNG_DURATION_INFINITE);
    *ret_transport = t;
    post_receive(t);
    return 0;
}

/* ---- sending ------------------------------------------------------------------------------------------- */

int transport_send(struct transport *t, const uint8_t *bytes, size_t n, uint64_t deadline_ns, size_t *ret_sent) {
    size_t sent = 0;
    int rc = 0;
    while (rc == 0 && sent < n) {
        nng_iov iov = { .iov_buf = (void *)(uintptr_t)(bytes + sent), .iov_len = n - sent };
        nng_aio_set_iov(t->send_aio, 1, &iov);
        nng_aio_set_timeout(t->send_aio, remaining(deadline_ns));
        nng_stream_send(t->stream, t->send_aio);
        nng_aio_wait(t->send_aio);
        rc = nng_aio_result(t->send_aio);
        if (rc == 0) sent += nng_aio_count(t->send_aio);
    }
    *ret_sent = sent;
    if (rc == 0) return 0;
    return rc == NNG_ETIMEDOUT ? TRANSPORT_E_TIMEOUT : TRANSPORT_E_LOST;
}

/* ---- closing -------------------------------------------------------------------------------------------- */

void transport_close(struct transport *t) {
    if (!t) return;
    if (t->stream) nng_stream_close(t->stream);
    if (t->dialer) nng_stream_dialer_close(t->dialer);
    if (t->recv_aio) nng_aio_stop(t->recv_aio);
    if (t->send_aio) nng_aio_stop(t->send_aio);
    if (t->stream) nng_stream_free(t->stream);
    if (t->dialer) nng_stream_dialer_free(t->dialer);
    if (t->recv_aio) nng_aio_free(t->recv_aio);
    if (t->send_aio) nng_aio_free(t->send_aio);
    free(t);
}

void transport_forget(struct transport *t) { free(t); }
