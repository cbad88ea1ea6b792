/* SPDX-License-Identifier: Apache-2.0 */
#include "former_processes.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "boards.h"
#include "core.h"
#include "log.h"
#include "mutant.h"
#include "request.h"
#include "segment.h"
#include "session.h"

struct former {
    struct segment_driver driver;
    int pidfd; /* -1: no more waited for */
};

struct former_processes {
    uint32_t n, waited;
    struct former former[];
};

uint64_t process_start_time(uint64_t pid) {
    char path[64], text[1024] = "";
    uint64_t start = 0;
    snprintf(path, sizeof path, "/proc/%" PRIu64 "/stat", pid);
    FILE *f = fopen(path, "re");
    if (!f) return pid && (!kill((pid_t)pid, 0) || errno == EPERM) ? PROCESS_HIDDEN : 0;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    const char *at = strrchr(text, ')'); /* the name may hold anything */
    for (uint32_t field = 2; at && field < 22; field++) at = (at = strchr(at, ' ')) ? at + 1 : NULL;
    if (at) start = strtoull(at, NULL, 10);
    return start;
}

/* ---- of the instance before -------------------------------------------------------------------- */

/* Whether a process that lives can be the recorded one. What /proc hides is taken for it: waiting in vain is the lesser
 * evil. */
static bool may_be(uint64_t start_time, uint64_t recorded) {
    if (MUTANT(start_time_is_ignored)) return start_time != 0;
    return start_time && (start_time == recorded || start_time == PROCESS_HIDDEN || recorded == PROCESS_HIDDEN);
}

/* The descriptor first, then the start time: so it is of that very process. -1: it is gone; -2: nobody can tell
 * (errno). */
static int watch_process(struct service *s, const struct segment_driver *driver, uint64_t tag) {
    int fd = (int)syscall(SYS_pidfd_open, (pid_t)driver->pid, 0);
    struct epoll_event e = { .events = EPOLLIN, .data.u64 = tag };
    /* EINVAL and (since Linux 6.16) ENOENT: no number of a process, or of one of its threads by now. */
    if (fd < 0) return errno == ESRCH || errno == EINVAL || errno == ENOENT ? -1 : -2;
    if (!may_be(process_start_time(driver->pid), driver->start_time)) {
        close(fd);
        return -1;
    }
    if (!epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &e)) return fd;
    close(fd);
    return -2;
}

static int find_former(struct service *s, struct segment *segment, const struct segment_driver *found, uint32_t n,
                       char *err, size_t err_bytes) {
    for (uint32_t i = 0; i < n; i++) {
        struct former *f = &s->former->former[s->former->n];
        int fd = s->pools.adopted ? watch_process(s, &found[i], FORMER_TAG + s->former->n) : -1;
        if (fd == -2) {
            snprintf(err, err_bytes,
                     "process %" PRIu64
                     " may still use the device memory, and cannot be watched: %s; raise LimitNOFILE, or "
                     "end it",
                     found[i].pid, strerror(errno));
            return 1;
        }
        if (fd < 0) { /* gone, or of memory that nobody uses any more */
            segment_driver_remove(segment, &found[i]);
            continue;
        }
        *f = (struct former){ .driver = found[i], .pidfd = fd };
        s->former->n++;
        s->former->waited++;
        LOG(LOG_NOTICE,
            "process %" PRIu64 " used the device memory under the kvd before this one: activations wait until it has "
            "attached anew or is gone",
            found[i].pid);
    }
    return 0;
}

int former_open(struct service *s, char *err, size_t err_bytes) {
    struct segment *segment = s->segment;
    if (!segment) return 0;
    struct segment_driver *found = calloc(SEGMENT_DRIVERS, sizeof *found);
    uint32_t n = found ? segment_drivers(segment, found, SEGMENT_DRIVERS) : 0;
    s->former = n ? calloc(1, sizeof *s->former + n * sizeof s->former->former[0]) : NULL;
    int bad = !found || (n && !s->former);
    if (bad) snprintf(err, err_bytes, "no memory to look for processes of an earlier instance");
    else bad = n && find_former(s, segment, found, n, err, err_bytes);
    free(found);
    return bad;
}

void former_close(struct service *s) {
    for (uint32_t i = 0; s->former && i < s->former->n; i++)
        if (s->former->former[i].pidfd >= 0) close(s->former->former[i].pidfd);
    free(s->former);
    s->former = NULL;
}

static void stop_waiting_for(struct service *s, struct former *f, const char *why) {
    if (f->pidfd < 0) return;
    epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, f->pidfd, NULL);
    close(f->pidfd);
    f->pidfd = -1;
    s->former->waited--;
    segment_driver_remove(s->segment, &f->driver);
    LOG(LOG_NOTICE, "process %" PRIu64 " %s; %u more are waited for", f->driver.pid, why, s->former->waited);
}

void former_exited(struct service *s, uint64_t tag) {
    pthread_mutex_lock(&s->lock);
    uint64_t i = tag - FORMER_TAG;
    if (s->former && i < s->former->n) stop_waiting_for(s, &s->former->former[i], "has exited");
    pthread_mutex_unlock(&s->lock);
}

/* Before it gets a descriptor of this instance, which records it anew. */
void former_yield(struct service *s, const struct session *session) {
    for (uint32_t i = 0; s->former && i < s->former->n; i++)
        if (s->former->former[i].driver.pid == session->peer.pid)
            stop_waiting_for(s, &s->former->former[i], "has let go of the instance before");
}

uint32_t former_waited(const struct service *s) { return s->former ? s->former->waited : 0; }

bool former_clear(struct call *call) {
    const struct former_processes *d = call->service->former;
    uint64_t pid = 0;
    if (!former_waited(call->service)) return true;
    for (uint32_t i = 0; i < d->n && !pid; i++)
        if (d->former[i].pidfd >= 0) pid = d->former[i].driver.pid;
    call_refuse(call, KVD_UNAVAILABLE,
                "kvd was replaced, and %u processes of before may still run on its pages (process %" PRIu64
                " is one): until each has attached anew, yielded or exited no page is given out; try again",
                d->waited, pid);
    return false;
}

/* ---- of this instance ------------------------------------------------------------------------------ */

bool process_record(struct service *s, struct session *session, uint64_t start_time) {
    struct segment *segment = s->segment;
    if (!segment || !s->pools.id || session->process_start) return true; /* what goes with kvd is nobody's afterwards */
    if (segment_driver_add(segment, &(struct segment_driver){ session->peer.pid, start_time })) return false;
    session->process_start = start_time;
    return true;
}

void process_forget(struct service *s, struct session *session) {
    struct segment *segment = s->segment;
    uint64_t start = session->process_start;
    session->process_start = 0;
    if (!segment || !start || MUTANT(goodbye_leaves_its_record)) return;
    for (uint32_t i = 0; i < s->config.sessions; i++) /* another session of the same process */
        if (s->sessions[i].used && s->sessions[i].process_start == start &&
            s->sessions[i].peer.pid == session->peer.pid)
            return;
    segment_driver_remove(segment, &(struct segment_driver){ session->peer.pid, start });
}

/* ---- descriptors ------------------------------------------------------------------------------------- */

static enum kvd_status deny_descriptor(char *why, size_t bytes, enum kvd_status status, const char *sentence) {
    snprintf(why, bytes, "%s", sentence);
    return status;
}

static struct session *token_holder(struct service *s, uint64_t token) {
    for (uint32_t i = 0; token && i < s->config.sessions; i++)
        if (s->sessions[i].used && s->sessions[i].fd_token == token) return &s->sessions[i];
    return NULL;
}

static struct session *ring_holder(struct service *s, uint64_t token) {
    for (uint32_t i = 0; token && i < s->config.sessions; i++) {
        struct session *session = &s->sessions[i];
        if (session->used && session->link && session->link->ring_token == token) return session;
    }
    return NULL;
}

/* A ring is memory of one connection, which nobody has to wait for: its process is not written down. Its token opens
 * nothing else, and is good as long as the connection. */
static enum kvd_status grant_ring(struct session *session, struct service_grant *g, char *why, size_t bytes) {
    if (!session || session->fenced || session->peer.pid != g->pid || session->peer.uid != g->uid)
        return deny_descriptor(why, bytes, KVD_PERMISSION_DENIED,
                               "the token is not that of a ring of this process: ask by OpenRing");
    g->fd = session->link->ops->ring_fd(session->link, (enum link_ring_fd)g->fd_index);
    g->owned = g->fd >= 0;
    if (g->owned) return KVD_OK;
    return deny_descriptor(why, bytes, KVD_RESOURCE_EXHAUSTED,
                           "no memory or no file is free for a ring: go on over the socket, or raise LimitNOFILE");
}

static bool is_of_board(const struct service_grant *g) {
    return g->fd_index == BOARD_SEGMENT_FD || g->fd_index == BOARD_BELL_FD;
}

/* A board is memory of one session. fresh: one that nobody has; taken over and NULL where it is given. */
static enum kvd_status grant_board(struct service *s, struct session *session, struct service_grant *g,
                                   struct board **fresh, char *why, size_t bytes) {
    if (!boards_are_given(s))
        return deny_descriptor(why, bytes, KVD_OUT_OF_RANGE,
                               "the store gives no boards: see board_index in its description");
    if (!session->board && *fresh && board_hand_over(s, session, *fresh)) *fresh = NULL;
    const struct board *board = session->board;
    int fd = !board ? -1 : g->fd_index == BOARD_BELL_FD ? board->bell_fd : board->segment_fd;
    g->fd = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0); /* the session may end before it is sent */
    g->owned = g->fd >= 0;
    if (g->owned) return KVD_OK;
    return deny_descriptor(why, bytes, KVD_RESOURCE_EXHAUSTED,
                           "no memory or no file is free for a board: go on with Rounds, or raise LimitNOFILE");
}

/* fresh: as of grant_board. */
static enum kvd_status grant_descriptor(struct service *s, struct service_grant *g, uint64_t start_time,
                                        struct board **fresh, char *why, size_t bytes) {
    struct session *session = g->token ? token_holder(s, g->token) : session_find(s, g->session);
    if (!session || session->fenced)
        return deny_descriptor(why, bytes, KVD_PERMISSION_DENIED,
                               "the token is not good, or has been used: ask for the store's description anew");
    if (session->peer.pid != g->pid || session->peer.uid != g->uid || !start_time)
        return deny_descriptor(why, bytes, KVD_PERMISSION_DENIED,
                               "the token was given to another process: it must ask itself");
    session->fd_token = 0;
    g->session = session_id(s, session);
    if (is_of_board(g)) return grant_board(s, session, g, fresh, why, bytes);
    g->fd = pools_fd(&s->pools, g->fd_index);
    if (g->fd < 0)
        return deny_descriptor(why, bytes, KVD_OUT_OF_RANGE,
                               "the store has no region of this number: see fd_index in its description");
    former_yield(s, session); /* whoever attaches anew runs nothing on what an earlier instance gave it */
    if (process_record(s, session, start_time)) return KVD_OK;
    return deny_descriptor(why, bytes, KVD_RESOURCE_EXHAUSTED, "too many processes have the store mapped: end some");
}

uint32_t service_grant_fd(struct service *s, struct service_grant *g, char *why, size_t bytes) {
    uint64_t start_time = process_start_time(g->pid);
    bool ring = g->fd_index == LINK_RING_SEGMENT || g->fd_index == LINK_RING_DOORBELL;
    struct board *fresh = g->fd_index == BOARD_SEGMENT_FD ? board_new(s->epoch, s->config.max_concurrency) : NULL;
    pthread_mutex_lock(&s->lock);
    enum kvd_status status = ring ? grant_ring(ring_holder(s, g->token), g, why, bytes)
                                  : grant_descriptor(s, g, start_time, &fresh, why, bytes);
    pthread_mutex_unlock(&s->lock);
    board_free(fresh);
    return (uint32_t)status;
}
