/* SPDX-License-Identifier: Apache-2.0
 *
 * The transport on nng byte streams (nng_stream_dialer over ipc://).
 *
 * Receiving: nng's poller reads and then wakes either the thread that waits for an aio without a callback, or a task
 * thread that runs the callback of one that has it. transport_end_read does the first; transport_watch begins the
 * second, in which the callback cuts the bytes into frames and posts the aio again. Sending: an aio without a callback,
 * so that a write that the socket takes at once completes in the calling thread, with no other thread woken.
 *
 * A finite timeout puts an aio on nng's expiry list, which wakes a thread for most calls. Therefore the caller of
 * transport_send says TRANSPORT_NEVER where it knows that the socket's buffer has room, and the deadlines of
 * readers are kept by a guard: a timer that stays set when the call is over, and looks again when it fires. In a
 * row of calls of one timeout it is set once a timeout.
 *
 * nng never ends an operation that is posted on a closed stream: receives are posted under the lock that says whether
 * it is open.
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
#include <unistd.h>

#include "nng_start.h"
#include "shared_ring.h"

#define INBOX (2 * FRAME_LIMIT)

struct transport {
    nng_stream_dialer *dialer;
    nng_stream *stream;
    nng_aio *send_aio, *read_aio, *recv_aio, *guard; /* read_aio: of transport_begin_read; recv_aio: of the watch */
    struct transport_sink sink;

    pthread_mutex_t lock; /* never held over a sink call */
    pthread_cond_t left;  /* the reader has gone */
    bool closed, interrupted, reading;
    uint64_t deadline_ns; /* while reading */
    bool guarded;         /* the guard is set, to: */
    uint64_t guarded_ns;

    bool watched, threaded;
    struct shared_ring *ring; /* NULL: frames go over the stream */
    pthread_t ring_reader;    /* where threaded */

    size_t filled; /* bytes in inbox; of the one who reads */
    uint8_t inbox[INBOX];
};

static _Atomic pid_t user_pid; /* the process that started nng's threads; 0 = none yet */

bool transport_forked(void) {
    pid_t pid = atomic_load_explicit(&user_pid, memory_order_relaxed);
    return pid && pid != getpid();
}

static nng_duration remaining_ms(uint64_t deadline_ns) {
    if (deadline_ns == TRANSPORT_NEVER) return NNG_DURATION_INFINITE;
    uint64_t now = clock_ns();
    if (deadline_ns <= now) return 0;
    uint64_t ms = (deadline_ns - now + 999999u) / 1000000u;
    return ms > INT32_MAX ? INT32_MAX : (nng_duration)ms;
}

/* ---- receiving --------------------------------------------------------------------------------- */

/* With the lock held, open. */
static void post_receive(struct transport *t, nng_aio *aio) {
    nng_iov iov = { .iov_buf = t->inbox + t->filled, .iov_len = INBOX - t->filled };
    nng_aio_set_iov(aio, 1, &iov);
    nng_stream_recv(t->stream, aio);
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

/* What became of a receive: frames or the end. False: the end, of which the sink was told. */
static bool deliver_received(struct transport *t, nng_aio *aio) {
    int rc = nng_aio_result(aio);
    if (rc != 0) {
        t->sink.lost(t->sink.user, rc == NNG_ECONNSHUT ? "kvd closed the connection" : nng_strerror(rc));
        return false;
    }
    t->filled += nng_aio_count(aio);
    if (cut_frames(t)) return true;
    /* not closed here: nng never ends a send that is posted on a closed stream, and one may be about to be */
    t->sink.lost(t->sink.user, "the peer sent bytes that are no frames of the kvd protocol");
    return false;
}

static void receive_done(void *arg) {
    struct transport *t = arg;
    if (!deliver_received(t, t->recv_aio)) return;
    pthread_mutex_lock(&t->lock);
    if (!t->closed) post_receive(t, t->recv_aio);
    pthread_mutex_unlock(&t->lock);
}

/* ---- the ring ----------------------------------------------------------------------------------- */

static void *read_ring(void *argument) {
    struct transport *t = argument;
    while (!shared_ring_read(t->ring, &t->sink, TRANSPORT_NEVER)) continue;
    return NULL;
}

/* With the lock held: a thread that takes no signals. */
static bool start_ring_reader(struct transport *t) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    t->threaded = !pthread_create(&t->ring_reader, NULL, read_ring, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return t->threaded;
}

bool transport_use_ring(struct transport *t, int segment_fd, int doorbell_fd, uint64_t epoch) {
    struct shared_ring *ring = shared_ring_open(segment_fd, doorbell_fd, epoch);
    if (!ring) return false;
    pthread_mutex_lock(&t->lock);
    t->ring = ring;
    bool used = !t->closed && (!t->watched || start_ring_reader(t));
    if (used && !t->watched) post_receive(t, t->recv_aio);
    if (!used) t->ring = NULL;
    pthread_mutex_unlock(&t->lock);
    if (!used) shared_ring_close(ring);
    return used;
}

bool transport_has_ring(struct transport *t) {
    pthread_mutex_lock(&t->lock);
    bool has = t->ring != NULL;
    pthread_mutex_unlock(&t->lock);
    return has;
}

/* ---- watching ----------------------------------------------------------------------------------- */

bool transport_watch(struct transport *t) {
    pthread_mutex_lock(&t->lock);
    bool watched = true;
    if (!t->closed && t->ring) watched = start_ring_reader(t);
    else if (!t->closed) post_receive(t, t->recv_aio);
    t->watched = watched;
    pthread_mutex_unlock(&t->lock);
    return watched;
}

/* ---- reading for oneself --------------------------------------------------------------------------- */

/* With the lock held. */
static void set_guard(struct transport *t) {
    t->guarded = true;
    t->guarded_ns = t->deadline_ns;
    nng_sleep_aio(remaining_ms(t->deadline_ns), t->guard);
}

/* The guard fired, or was set too late and cancelled. */
static void guard_fired(void *arg) {
    struct transport *t = arg;
    pthread_mutex_lock(&t->lock);
    t->guarded = false;
    if (t->reading && !t->closed) {
        if (t->deadline_ns <= clock_ns()) nng_aio_cancel(t->read_aio);
        else set_guard(t);
    }
    pthread_mutex_unlock(&t->lock);
}

bool transport_begin_read(struct transport *t, uint64_t deadline_ns) {
    pthread_mutex_lock(&t->lock);
    bool go = !t->closed && !t->interrupted;
    if (go) {
        t->reading = true;
        t->deadline_ns = deadline_ns;
    }
    if (go && !t->ring) {
        post_receive(t, t->read_aio);
        if (!t->guarded) set_guard(t);
        else if (deadline_ns < t->guarded_ns) nng_aio_cancel(t->guard);
    }
    pthread_mutex_unlock(&t->lock);
    return go;
}

static int read_stream(struct transport *t) {
    nng_aio_wait(t->read_aio);
    if (nng_aio_result(t->read_aio) == NNG_ECANCELED) return TRANSPORT_E_TIMEOUT;
    return deliver_received(t, t->read_aio) ? 0 : TRANSPORT_E_LOST;
}

int transport_end_read(struct transport *t) {
    int rc = t->ring ? shared_ring_read(t->ring, &t->sink, t->deadline_ns) : read_stream(t);
    pthread_mutex_lock(&t->lock);
    if (rc == TRANSPORT_E_TIMEOUT && (t->interrupted || t->closed)) rc = TRANSPORT_E_LOST;
    t->reading = false;
    if (t->closed) pthread_cond_signal(&t->left); /* t goes when the lock is let go */
    pthread_mutex_unlock(&t->lock);
    return rc;
}

void transport_interrupt(struct transport *t) {
    pthread_mutex_lock(&t->lock);
    t->interrupted = true;
    if (t->ring) shared_ring_interrupt(t->ring);
    else if (t->reading) nng_aio_cancel(t->read_aio);
    pthread_mutex_unlock(&t->lock);
}

/* ---- opening --------------------------------------------------------------------------------------- */

static int refuse_path(int code, char *err, size_t err_bytes, const char *path, const char *text) {
    if (err) snprintf(err, err_bytes, "cannot connect to kvd at %s: %s", path, text);
    return code;
}

static int refuse_nng(int rc, char *err, size_t err_bytes, const char *path) {
    switch (rc) {
    case NNG_ENOENT:
        return refuse_path(TRANSPORT_E_ABSENT, err, err_bytes, path,
                           "there is no such socket; is the daemon running, and is this the path "
                           "in its configuration?");
    case NNG_ECONNREFUSED:
        /* nng reports a missing file in this way too. */
        if (access(path, F_OK) != 0 && errno == ENOENT) return refuse_nng(NNG_ENOENT, err, err_bytes, path);
        return refuse_path(TRANSPORT_E_ABSENT, err, err_bytes, path,
                           "the socket is there but nobody listens; the daemon has died or is "
                           "starting");
    case NNG_EPERM:
        return refuse_path(TRANSPORT_E_DENIED, err, err_bytes, path,
                           "permission denied; join the group that owns the socket, or ask its "
                           "administrator");
    case NNG_ETIMEDOUT:
        return refuse_path(TRANSPORT_E_TIMEOUT, err, err_bytes, path, "no connection within the timeout");
    case NNG_ENOMEM:
    case NNG_ENOFILES: return refuse_path(TRANSPORT_E_RESOURCE, err, err_bytes, path, nng_strerror(rc));
    default: return refuse_path(TRANSPORT_E_LOST, err, err_bytes, path, nng_strerror(rc));
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

#define BACKLOG_MS 2

/* A full backlog refuses at once, and the kernel has nothing to wait on: asked again until there is room. */
static int dial_kvd(struct transport *t, uint64_t deadline_ns) {
    int rc;
    for (;;) {
        nng_aio_set_timeout(t->send_aio, remaining_ms(deadline_ns));
        nng_stream_dialer_dial(t->dialer, t->send_aio);
        nng_aio_wait(t->send_aio);
        rc = nng_aio_result(t->send_aio);
        if (rc != NNG_EAGAIN) break;
        if (remaining_ms(deadline_ns) <= BACKLOG_MS) return NNG_ETIMEDOUT;
        nng_sleep_aio(BACKLOG_MS, t->send_aio);
        nng_aio_wait(t->send_aio);
    }
    if (rc == 0) t->stream = nng_aio_get_output(t->send_aio, 0);
    return rc;
}

int transport_open(const char *path, const struct transport_sink *sink, uint64_t deadline_ns,
                   struct transport **ret_transport, char *err, size_t err_bytes) {
    char url[sizeof((struct sockaddr_un *)0)->sun_path + 8], why[320];
    if (transport_forked())
        return refuse_path(TRANSPORT_E_FORKED, err, err_bytes, path,
                           "this process is a fork of one that used libkvd; connect before "
                           "forking in neither or exec in the child");
    if (!path[0] || strlen(path) >= sizeof((struct sockaddr_un *)0)->sun_path)
        return refuse_path(TRANSPORT_E_PATH, err, err_bytes, path,
                           "a socket path has 1 to 107 bytes; use a shorter one");
    snprintf(url, sizeof url, "ipc://%s", path);
    if (nng_start_check(why, sizeof why)) return refuse_path(TRANSPORT_E_RESOURCE, err, err_bytes, path, why);

    struct transport *t = calloc(1, sizeof *t);
    if (!t) return refuse_path(TRANSPORT_E_RESOURCE, err, err_bytes, path, "out of memory");
    t->sink = *sink;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->left, NULL);
    int rc = alloc_dialer(url, &t->dialer);
    if (rc == 0) rc = nng_aio_alloc(&t->send_aio, NULL, NULL);
    if (rc == 0) rc = nng_aio_alloc(&t->read_aio, NULL, NULL);
    if (rc == 0) rc = nng_aio_alloc(&t->recv_aio, receive_done, t);
    if (rc == 0) rc = nng_aio_alloc(&t->guard, guard_fired, t);
    if (rc == 0) rc = dial_kvd(t, deadline_ns);
    if (rc != 0) {
        transport_close(t);
        return refuse_nng(rc, err, err_bytes, path);
    }
    nng_aio_set_timeout(t->read_aio, NNG_DURATION_INFINITE);
    nng_aio_set_timeout(t->recv_aio, NNG_DURATION_INFINITE);
    nng_aio_set_timeout(t->guard, NNG_DURATION_INFINITE);
    *ret_transport = t;
    return 0;
}

/* ---- sending ------------------------------------------------------------------------------------------- */

int transport_send(struct transport *t, const uint8_t *bytes, size_t n, uint64_t deadline_ns, size_t *ret_sent) {
    size_t sent = 0;
    int rc = 0;
    if (t->ring) {
        rc = shared_ring_send(t->ring, bytes, n, deadline_ns);
        *ret_sent = rc ? 0 : n;
        return rc;
    }
    while (rc == 0 && sent < n) {
        nng_iov iov = { .iov_buf = (void *)(uintptr_t)(bytes + sent), .iov_len = n - sent };
        nng_aio_set_iov(t->send_aio, 1, &iov);
        nng_aio_set_timeout(t->send_aio, remaining_ms(deadline_ns));
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
    pthread_mutex_lock(&t->lock);
    t->closed = true;
    if (t->stream) nng_stream_close(t->stream); /* ends what is posted */
    if (t->ring) shared_ring_interrupt(t->ring);
    while (t->reading) pthread_cond_wait(&t->left, &t->lock);
    pthread_mutex_unlock(&t->lock);
    if (t->threaded) pthread_join(t->ring_reader, NULL);
    if (t->dialer) nng_stream_dialer_close(t->dialer);
    nng_aio *const aios[] = { t->read_aio, t->recv_aio, t->guard, t->send_aio };
    for (size_t i = 0; i < sizeof aios / sizeof *aios; i++)
        if (aios[i]) nng_aio_stop(aios[i]);
    if (t->stream) nng_stream_free(t->stream);
    if (t->dialer) nng_stream_dialer_free(t->dialer);
    for (size_t i = 0; i < sizeof aios / sizeof *aios; i++)
        if (aios[i]) nng_aio_free(aios[i]);
    shared_ring_close(t->ring);
    pthread_cond_destroy(&t->left);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

void transport_forget(struct transport *t) {
    if (t) shared_ring_close(t->ring);
    free(t);
}
