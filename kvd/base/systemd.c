/* SPDX-License-Identifier: Apache-2.0 */
#include "systemd.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "log.h"

/* A decimal number in an environment variable. False: it is not set, or is no number. */
static bool number_in(const char *variable, uint64_t *ret_number) {
    const char *text = getenv(variable);
    char *end = NULL;
    if (!text || *text < '0' || *text > '9') return false;
    errno = 0;
    *ret_number = strtoull(text, &end, 10);
    return !errno && !*end;
}

/* ---- notifications ------------------------------------------------------------------------- */

static void attach_fd(struct msghdr *message, int fd) {
    struct cmsghdr *head = CMSG_FIRSTHDR(message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
}

bool notify_send_fd(const char *state, int fd_to_send) {
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    if (!path || (*path != '/' && *path != '@') || strlen(path) >= sizeof to.sun_path) return false;
    memcpy(to.sun_path, path, strlen(path));
    if (*path == '@') to.sun_path[0] = 0; /* abstract */
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = { 0 };
    struct iovec text = { .iov_base = (void *)(uintptr_t)state, .iov_len = strlen(state) };
    struct msghdr message = { .msg_name = &to,
                              .msg_namelen = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path)),
                              .msg_iov = &text,
                              .msg_iovlen = 1 };
    if (fd_to_send >= 0) {
        message.msg_control = control.room;
        message.msg_controllen = sizeof control.room;
        attach_fd(&message, fd_to_send);
    }
    /* A manager that does not read must not hold up the thread that comes round for everybody. */
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &(struct timeval){ .tv_sec = 1 }, sizeof(struct timeval));
    bool sent = sendmsg(fd, &message, MSG_NOSIGNAL) >= 0;
    close(fd);
    return sent;
}

bool notify_send(const char *state) { return notify_send_fd(state, -1); }

/* ---- the descriptor store ---------------------------------------------------------------------- */

#define FIRST_FD 3

/* The n-th of the names, which stand with colons between them. False: there is none, or it is too long. */
static bool fd_name_at(const char *names, uint32_t n, char *ret_name) {
    for (; names && n; n--) names = (names = strchr(names, ':')) ? names + 1 : NULL;
    size_t length = names ? strcspn(names, ":") : 0;
    if (length == 0 || length >= FDSTORE_NAME) return false;
    memcpy(ret_name, names, length);
    ret_name[length] = 0;
    return true;
}

void fdstore_take(struct fdstore_set *ret_set) {
    const char *names = getenv("LISTEN_FDNAMES");
    uint64_t pid, count;
    struct fdstore_item *items = ret_set->items;
    uint32_t n = 0;
    bool ours =
        number_in("LISTEN_PID", &pid) && pid == (uint64_t)getpid() && number_in("LISTEN_FDS", &count) && count < 4096;
    for (uint32_t i = 0; ours && i < count; i++) {
        int fd = FIRST_FD + (int)i;
        if (fcntl(fd, F_SETFD, FD_CLOEXEC)) continue;
        if (n < FDSTORE_MAX && fd_name_at(names, i, items[n].name)) items[n++].fd = fd;
        else close(fd);
    }
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    ret_set->n = n;
}

bool fdstore_put(const char *name, int fd) {
    char text[FDSTORE_NAME + 64];
    snprintf(text, sizeof text, "FDSTORE=1\nFDPOLL=0\nFDNAME=%s", name); /* not polled: a HUP would drop it */
    return notify_send_fd(text, fd);
}

void fdstore_remove(const char *name) {
    char text[FDSTORE_NAME + 64];
    snprintf(text, sizeof text, "FDSTOREREMOVE=1\nFDNAME=%s", name);
    notify_send(text);
}

bool fdstore_wait(unsigned timeout_ms) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC)) return false;
    bool sent = notify_send_fd("BARRIER=1", ends[1]); /* the holder closes it when it comes to it */
    close(ends[1]);
    struct pollfd wait = { .fd = ends[0] };
    bool settled = sent && poll(&wait, 1, (int)timeout_ms) == 1;
    close(ends[0]);
    return settled;
}

/* ---- device regions there ---------------------------------------------------------------------- */

static const char *const region_names[STORED_KINDS] = { "main", "draft", "pool2", "pool3", "state" };

const char *stored_kind_name(uint32_t kind) { return region_names[kind]; }

void stored_name(uint64_t id, uint32_t rank, uint32_t what, uint32_t pages, uint64_t bytes, char *name, size_t size) {
    snprintf(name, size, "kvd.%016" PRIx64 ".r%u.%s.%u.%" PRIu64, id, rank, region_names[what], pages, bytes);
}

static bool parse_region_name(const char *name, uint64_t *ret_id, uint32_t *ret_rank, uint32_t *ret_what,
                              uint32_t *ret_pages, uint64_t *ret_bytes) {
    char what[8], again[FDSTORE_NAME];
    if (sscanf(name, "kvd.%16" SCNx64 ".r%u.%7[a-z0-9].%u.%" SCNu64, ret_id, ret_rank, what, ret_pages, ret_bytes) != 5)
        return false;
    for (*ret_what = 0; *ret_what < STORED_KINDS && strcmp(what, region_names[*ret_what]);) ++*ret_what;
    if (*ret_what == STORED_KINDS || *ret_rank >= KVD_MAX_RANKS || !*ret_id || !*ret_bytes) return false;
    stored_name(*ret_id, *ret_rank, *ret_what, *ret_pages, *ret_bytes, again, sizeof again);
    return strcmp(name, again) == 0;
}

void stored_load(struct stored_regions *stored, const struct fdstore_item *items, uint32_t n) {
    *stored = (struct stored_regions){ 0 };
    for (uint32_t r = 0; r < KVD_MAX_RANKS; r++)
        for (uint32_t k = 0; k < STORED_KINDS; k++) stored->region[r][k].fd = -1;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t id, bytes;
        uint32_t rank, what, pages;
        bool ours = parse_region_name(items[i].name, &id, &rank, &what, &pages, &bytes);
        if (!ours || (stored->id && (id != stored->id || pages != stored->pages)) || stored->region[rank][what].bytes) {
            LOG(LOG_WARNING, "descriptor %.90s of the store is of no use here: let go", items[i].name);
            bool twice =
                ours && id == stored->id && pages == stored->pages && bytes == stored->region[rank][what].bytes;
            if (!twice) fdstore_remove(items[i].name); /* by name: the first of two would go with the second */
            close(items[i].fd);
            continue;
        }
        stored->id = id;
        stored->pages = pages;
        stored->bytes[rank] += bytes;
        stored->region[rank][what] = (struct stored_region){ items[i].fd, bytes };
    }
}

static bool region_has_size(const struct stored_region *region, uint64_t bytes) {
    return bytes ? region->fd >= 0 && region->bytes == bytes : region->fd < 0;
}

bool stored_matches(const struct stored_regions *stored, const struct geom_layout *layout, uint32_t n_ranks) {
    if (!stored->id || stored->pages != layout->pages[0]) return false;
    for (uint32_t r = 0; r < KVD_MAX_RANKS; r++) {
        const struct stored_region *region = stored->region[r];
        bool there = r < n_ranks;
        bool same = region_has_size(&region[STORED_STATE], there ? layout->state_bytes : 0);
        for (uint32_t p = 0; p < GEOM_MAX_POOLS; p++)
            same = same &&
                   region_has_size(&region[STORED_POOLS + p], there && p < layout->n_pools ? layout->pool_bytes[p] : 0);
        if (!same) return false;
    }
    return true;
}

void stored_drop(struct stored_regions *stored) {
    char name[FDSTORE_NAME];
    for (uint32_t r = 0; r < KVD_MAX_RANKS; r++)
        for (uint32_t k = 0; k < STORED_KINDS; k++) {
            struct stored_region *region = &stored->region[r][k];
            if (!region->bytes) continue;
            stored_name(stored->id, r, k, stored->pages, region->bytes, name, sizeof name);
            fdstore_remove(name);
            if (region->fd >= 0) close(region->fd);
            *region = (struct stored_region){ .fd = -1 };
        }
    stored->id = 0;
    memset(stored->bytes, 0, sizeof stored->bytes);
}

/* ---- the watchdog --------------------------------------------------------------------------------- */

void watchdog_init(struct watchdog *w, const char *socket) {
    uint64_t usec, pid;
    if (!number_in("WATCHDOG_USEC", &usec) || usec > UINT64_MAX / 1000) usec = 0; /* "infinity" */
    if (getenv("WATCHDOG_PID") && (!number_in("WATCHDOG_PID", &pid) || pid != (uint64_t)getpid())) usec = 0;
    *w = (struct watchdog){ .socket = socket, .period_ns = usec * 1000 / 4, .fd = -1 };
}

void watchdog_close(struct watchdog *w) {
    if (w->fd >= 0) close(w->fd);
    w->fd = -1;
}

/* The daemon has closed its end. */
static bool watchdog_answered(struct watchdog *w) {
    char byte;
    ssize_t n = recv(w->fd, &byte, 1, MSG_DONTWAIT);
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return false;
    watchdog_close(w);
    return true;
}

/* True: there is proof without an answer. */
static bool watchdog_ask(struct watchdog *w, bool moved) {
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    size_t length = strlen(w->socket);
    if (length >= sizeof to.sun_path) return false;
    memcpy(to.sun_path, w->socket, length);
    w->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (w->fd < 0) return true; /* out of files or memory: nothing hangs, and a restart would lose the cache */
    if (!connect(w->fd, (const struct sockaddr *)&to, sizeof to)) {
        shutdown(w->fd, SHUT_WR);
        return false;
    }
    bool full = errno == EAGAIN; /* the backlog */
    watchdog_close(w);
    return full && moved;
}

bool watchdog_tick(struct watchdog *w, uint64_t now_ns, uint64_t accepted) {
    if (!w->period_ns) return false;
    bool proof = w->fd >= 0 && watchdog_answered(w);
    if (w->fd >= 0 || now_ns < w->next_ns) return proof;
    proof |= watchdog_ask(w, accepted != w->accepted);
    w->accepted = accepted;
    w->next_ns = now_ns + w->period_ns;
    return proof;
}
