/* SPDX-License-Identifier: Apache-2.0 */
#include "connection.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "clock.h"
#include "log.h"
#include "unix_socket.h"

#include "nng_start.h"

#define DELAY_NS UINT64_C(1000000)
#define BACK_OFF_NS UINT64_C(100000000)
#define FILES_SPARE 64 /* of listener_files: for files opened between two checks */
#define CROWDED_MOST_MS 100u
#define OVER_LIMIT                                                                                                     \
    32u /* connections beyond the limit that may wait to be freed: a storm gets as many as listener_run frees */

/* Under the lock: once it is given up, listener_close may free the listener. */
static void wake_at(struct listener *l, uint64_t ns) {
    if (l->wake_ns && l->wake_ns <= ns) return;
    l->wake_ns = ns;
    struct itimerspec at = { .it_value = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) } };
    timerfd_settime(l->wake_fd, TFD_TIMER_ABSTIME, &at, NULL);
}

/* ---- accepting -------------------------------------------------------------------------------- */

static void accept_later(struct listener *l, uint64_t delay_ns) {
    pthread_mutex_lock(&l->lock);
    l->accept_ns = clock_ns() + delay_ns;
    wake_at(l, l->accept_ns);
    pthread_mutex_unlock(&l->lock);
}

/* nng closes the socket of a freed stream later, in its reaper, and a flood is faster. A new file gets the lowest free
 * number. A connection takes two, so all numbers but one below the second lowest are open. */
static bool is_crowded(struct listener *l) {
    int lowest = fcntl(l->wake_fd, F_DUPFD_CLOEXEC, 0), second = fcntl(l->wake_fd, F_DUPFD_CLOEXEC, 0);
    if (lowest >= 0) close(lowest);
    if (second >= 0) close(second);
    return second < 0 || second > (int)listener_files(atomic_load(&l->limit), atomic_load(&l->n_rings)) - FILES_SPARE;
}

/* While files are short, peers wait in the backlog. The wait is bounded, because other files may be what fills the
 * table. */
static void accept_next(struct listener *l) {
    bool wait = l->crowded_ms < CROWDED_MOST_MS && is_crowded(l);
    l->crowded_ms = wait ? l->crowded_ms + 1 : 0;
    if (wait) accept_later(l, DELAY_NS);
    else nng_stream_listener_accept(l->nng, l->accepting);
}

static void on_accepted(void *argument) {
    struct listener *l = argument;
    int error = nng_aio_result(l->accepting);
    if (!error) atomic_fetch_add(&l->accepted, 1);
    if (error == NNG_ECLOSED || error == NNG_ECANCELED || atomic_load(&l->closing)) {
        if (!error) connection_new(l, nng_aio_get_output(l->accepting, 0)); /* closes it at once */
        return;
    }
    if (error) { /* out of files or memory: the peer waits in the backlog */
        LOG(LOG_WARNING, "a connection cannot be accepted: %s; trying again", nng_strerror(error));
        accept_later(l, BACK_OFF_NS);
        return;
    }
    connection_new(l, nng_aio_get_output(l->accepting, 0));
    pthread_mutex_lock(&l->lock);
    l->full = l->count >= atomic_load(&l->limit) + OVER_LIMIT;
    bool full = l->full;
    pthread_mutex_unlock(&l->lock);
    if (!full) accept_next(l);
}

/* ---- the socket ------------------------------------------------------------------------------- */

static int complain_socket(char *err, size_t err_bytes, const char *socket, const char *what, const char *why) {
    snprintf(err, err_bytes, "socket %s: %s: %s", socket, what, why);
    return 1;
}

static int publish_socket(struct listener *l, const struct config *c, char *err, size_t err_bytes) {
    char private[UNIX_SOCKET_PATH], url[sizeof private + 16], why[320];
    if (unix_socket_prepare(c->socket, private, why, sizeof why))
        return complain_socket(err, err_bytes, c->socket, "open", why);
    snprintf(url, sizeof url, "ipc://%s", private);
    int error = nng_stream_listener_alloc(&l->nng, url);
    if (!error) error = nng_stream_listener_set_int(l->nng, NNG_OPT_IPC_PERMISSIONS, (int)c->socket_mode);
    if (!error) error = nng_stream_listener_listen(l->nng);
    if (error)
        return complain_socket(err, err_bytes, c->socket,
                               "cannot listen (does its directory exist, and may the daemon write there?)",
                               nng_strerror(error));
    if (unix_socket_publish(c, private, c->socket, &l->name, why, sizeof why))
        return complain_socket(err, err_bytes, c->socket, "open", why);
    return 0;
}

/* After nng's threads, which hang where one of them is missing. */
static int start_rings(struct listener *l, const struct config *c, char *err, size_t err_bytes) {
    if (!c->ring || (l->rings = rings_new())) return 0;
    return complain_socket(err, err_bytes, c->socket, "shared segments",
                           "no thread or no file is left to serve them; raise RLIMIT_NPROC (TasksMax=) and "
                           "RLIMIT_NOFILE (LimitNOFILE=), or say ring = no in section [kvd]");
}

int listener_open(struct service *service, const struct config *config, struct listener **ret_listener, char *err,
                  size_t err_bytes) {
    char why[320];
    if (nng_start_check(why, sizeof why)) return complain_socket(err, err_bytes, config->socket, "open", why);
    struct listener *l = calloc(1, sizeof *l);
    if (!l) return complain_socket(err, err_bytes, config->socket, "open", "no memory");
    l->service = service;
    pthread_mutex_init(&l->lock, NULL);
    l->last_delayed = &l->delayed;
    l->wake_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    listener_configure(l, config);
    int bad = l->wake_fd < 0 || nng_aio_alloc(&l->accepting, on_accepted, l);
    if (bad) complain_socket(err, err_bytes, config->socket, "open", "no memory or no files");
    if (bad || publish_socket(l, config, err, err_bytes) || start_rings(l, config, err, err_bytes)) {
        listener_close(l);
        return 1;
    }
    nng_stream_listener_accept(l->nng, l->accepting);
    *ret_listener = l;
    return 0;
}

void listener_configure(struct listener *l, const struct config *c) {
    atomic_store(&l->queue_limit, (size_t)c->message_queue);
    atomic_store(&l->handshake_timeout, c->handshake_timeout);
    atomic_store(&l->stall_timeout, c->stall_timeout);
    atomic_store(&l->limit, c->connections);
}

/* ---- the delayed and the dead ------------------------------------------------------------------- */

void listener_delay(struct listener *l, struct connection *c) {
    pthread_mutex_lock(&l->lock);
    c->delayed_until = clock_ns() + DELAY_NS;
    c->next_delayed = NULL;
    *l->last_delayed = c;
    l->last_delayed = &c->next_delayed;
    wake_at(l, l->delayed->delayed_until);
    pthread_mutex_unlock(&l->lock);
}

/* Under the lock. NULL: nobody's pause has ended. */
static struct connection *take_due(struct listener *l) {
    struct connection *c = l->delayed;
    if (!c || (c->delayed_until > clock_ns() && !atomic_load(&l->closing))) return NULL;
    l->delayed = c->next_delayed;
    if (!l->delayed) l->last_delayed = &l->delayed;
    return c;
}

void listener_retire(struct listener *l, struct connection *c) {
    pthread_mutex_lock(&l->lock);
    c->next_dead = l->dead;
    l->dead = c;
    wake_at(l, 1);
    pthread_mutex_unlock(&l->lock);
}

int listener_fd(const struct listener *l) { return l->wake_fd; }

static void forget_connection(struct listener *l, struct connection *c) {
    pthread_mutex_lock(&l->lock);
    if (c->previous) c->previous->next = c->next;
    else l->all = c->next;
    if (c->next) c->next->previous = c->previous;
    l->count--;
    pthread_mutex_unlock(&l->lock);
}

void listener_run(struct listener *l) {
    uint64_t count;
    struct connection *c;
    pthread_mutex_lock(&l->lock);
    ssize_t n = read(l->wake_fd, &count, sizeof count);
    (void)n;
    l->wake_ns = 0;
    while ((c = take_due(l))) {
        pthread_mutex_unlock(&l->lock);
        connection_resume(c);
        pthread_mutex_lock(&l->lock);
    }
    if (l->delayed) wake_at(l, l->delayed->delayed_until);
    bool accept = l->accept_ns && l->accept_ns <= clock_ns();
    if (accept) l->accept_ns = 0;
    if (l->accept_ns) wake_at(l, l->accept_ns);
    c = l->dead;
    l->dead = NULL;
    pthread_mutex_unlock(&l->lock);
    for (struct connection *next; c; c = next) {
        next = c->next_dead;
        if (atomic_load(&c->link.refs)) { /* closed while paused: end it here; the last reference retires it again */
            connection_end(c);
            continue;
        }
        forget_connection(l, c);
        connection_free(c);
    }
    pthread_mutex_lock(&l->lock);
    bool again = l->full && l->count < atomic_load(&l->limit) + OVER_LIMIT;
    if (again) l->full = false;
    pthread_mutex_unlock(&l->lock);
    if ((accept || again) && !atomic_load(&l->closing)) accept_next(l);
}

/* ---- time ---------------------------------------------------------------------------------------- */

static bool ref_if_alive(struct connection *c) {
    unsigned refs = atomic_load(&c->link.refs);
    while (refs)
        if (atomic_compare_exchange_weak(&c->link.refs, &refs, refs + 1)) return true;
    return false;
}

struct connection *listener_push_out(struct listener *l, const struct connection *newcomer) {
    struct connection *quiet = NULL;
    pthread_mutex_lock(&l->lock);
    for (struct connection *c = l->all; c; c = c->next) /* the newest first */
        if (c != newcomer && !c->pushed_out && !atomic_load(&c->link.greeted) && atomic_load(&c->link.refs)) quiet = c;
    if (quiet && !ref_if_alive(quiet)) quiet = NULL;
    if (quiet) quiet->pushed_out = true;
    if (quiet) l->n_pushed_out++;
    else l->n_refused++;
    pthread_mutex_unlock(&l->lock);
    return quiet;
}

void listener_note_junk(struct listener *l, const struct connection *c) {
    service_note_bad_frame(l->service);
    pthread_mutex_lock(&l->lock);
    l->n_junk++;
    l->junk_from = c->link.peer.pid;
    pthread_mutex_unlock(&l->lock);
}

/* One line for all connections since the last one: a flood must not fill the log. */
static void tell_floods(struct listener *l) {
    pthread_mutex_lock(&l->lock);
    uint32_t refused = l->n_refused, pushed_out = l->n_pushed_out, junk = l->n_junk;
    uint64_t from = l->junk_from;
    l->n_refused = l->n_pushed_out = l->n_junk = 0;
    pthread_mutex_unlock(&l->lock);
    if (junk)
        LOG(LOG_WARNING, "%u connections were closed that had sent what is no frame, the last by pid %llu", junk,
            (unsigned long long)from);
    if (refused || pushed_out)
        LOG(LOG_WARNING,
            "more than %u connections: %u new ones were closed, and for others %u that had said no Hello; raise "
            "connections = in section [limits]",
            atomic_load(&l->limit), refused, pushed_out);
}

static const char *why_overdue(const struct listener *l, const struct connection *c, uint64_t now) {
    uint64_t handshake = atomic_load(&l->handshake_timeout), stall = atomic_load(&l->stall_timeout);
    uint64_t partial = atomic_load(&c->partial_since), stalled = atomic_load(&c->stalled_since);
    if (!atomic_load(&c->link.greeted) && now > c->opened_ns + handshake) return "said no Hello";
    if (partial && now > partial + handshake) return "left a frame unfinished";
    if (stalled && now > stalled + stall) return "did not read its answers";
    return NULL;
}

#define CLOSE_AT_ONCE 128

void listener_tick(struct listener *l, uint64_t now) {
    struct connection *late[CLOSE_AT_ONCE];
    uint32_t n = 0;
    tell_floods(l);
    pthread_mutex_lock(&l->lock);
    for (struct connection *c = l->all; c && n < CLOSE_AT_ONCE; c = c->next)
        if (why_overdue(l, c, now) && ref_if_alive(c)) late[n++] = c;
    pthread_mutex_unlock(&l->lock);
    for (uint32_t i = 0; i < n; i++) {
        const char *why = why_overdue(l, late[i], now);
        if (why) {
            LOG(LOG_INFO, "a client (pid %llu) %s in time: closed", (unsigned long long)late[i]->link.peer.pid, why);
            connection_close(late[i]);
        }
        link_unref(&late[i]->link);
    }
}

uint32_t listener_connections(struct listener *l) {
    pthread_mutex_lock(&l->lock);
    uint32_t count = l->count;
    pthread_mutex_unlock(&l->lock);
    return count;
}

uint64_t listener_accepted(const struct listener *l) { return atomic_load(&l->accepted); }

/* ---- closing --------------------------------------------------------------------------------------- */

static void close_all(struct listener *l) {
    struct connection *some[CLOSE_AT_ONCE];
    for (bool left = true; left;) {
        uint32_t n = 0;
        pthread_mutex_lock(&l->lock);
        left = false;
        for (struct connection *c = l->all; c && n < CLOSE_AT_ONCE; c = c->next) {
            if (c->reaped) continue;
            if (ref_if_alive(c)) some[n++] = c;
            c->reaped = true;
        }
        left = n == CLOSE_AT_ONCE;
        pthread_mutex_unlock(&l->lock);
        for (uint32_t i = 0; i < n; i++) {
            connection_close(some[i]);
            link_unref(&some[i]->link);
        }
    }
}

struct listener *listener_close(struct listener *l) {
    if (!l) return NULL;
    atomic_store(&l->closing, true);
    unix_socket_remove(&l->name);
    if (l->nng) nng_stream_listener_close(l->nng);
    if (l->accepting) nng_aio_stop(l->accepting);
    close_all(l);
    while (listener_connections(l)) { /* the streams are closed, so every callback ends and wakes this loop */
        struct pollfd p = { .fd = l->wake_fd, .events = POLLIN };
        poll(&p, 1, 100);
        listener_run(l);
        service_run(l->service);
    }
    rings_free(l->rings);
    nng_aio_free(l->accepting);
    if (l->nng) nng_stream_listener_free(l->nng);
    if (l->wake_fd >= 0) close(l->wake_fd);
    pthread_mutex_destroy(&l->lock);
    free(l);
    return NULL;
}
