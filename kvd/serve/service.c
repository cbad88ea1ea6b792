/* SPDX-License-Identifier: Apache-2.0
 *
 * The service's life, its links, and what wakes it: exits of peers and devices that finished work.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "boards.h"
#include "bundle.h"
#include "clock.h"
#include "cold_reader.h"
#include "complete.h"
#include "core.h"
#include "device.h"
#include "events.h"
#include "former_processes.h"
#include "host_tier.h"
#include "log.h"
#include "mover.h"
#include "named_before.h"
#include "pending.h"
#include "remainder.h"
#include "request.h"
#include "reuse_curve.h"
#include "session.h"
#include "stop.h"
#include "sweep.h"
#include "systemd.h"
#include "tenant.h"
#include "transfer.h"

/* Tags in epoll: a session's handle is never below 2^32, below are the devices by rank, and the host tier. */
#define TAG_HOST KVD_MAX_RANKS

/* ---- life ---------------------------------------------------------------------------------- */

static int refuse_open(char *err, size_t err_bytes, const char *why) {
    snprintf(err, err_bytes, "%s", why);
    return 1;
}

static int make_store(struct service *s, char *err, size_t err_bytes) {
    struct store_config c;
    plan_store_config(&s->config, &s->plan, &c);
    if (store_check_config(&c, err, err_bytes)) return 1;
    s->store_bytes = store_bytes(&c);
    /* Populated now: a request never waits for the kernel to find a page, and shortage shows at the start. */
    s->store_memory =
        mmap(NULL, s->store_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (s->store_memory == MAP_FAILED) {
        s->store_memory = NULL;
        snprintf(err, err_bytes, "no memory for %zu bytes of store metadata; lower the capacity or limits",
                 s->store_bytes);
        return 1;
    }
    return store_init(s->store_memory, s->store_bytes, &c, &s->store, err, err_bytes) != STORE_OK;
}

/* Of pool 0, on both tiers. */
static uint64_t count_pages(const struct service *s) {
    const struct kvd_pool_info *pool = &s->pools.info.pool[0];
    return pool->pages + s->plan.arena_bytes / (pool->page_bytes ? pool->page_bytes : 1);
}

static int make_tables(struct service *s, char *err, size_t err_bytes) {
    uint32_t entries = 16;
    while (entries < 2 * s->config.max_concurrency) entries *= 2;
    s->bundle_index_mask = entries - 1;
    s->sessions = calloc(s->config.sessions, sizeof *s->sessions);
    s->groups = calloc(s->config.sessions, sizeof *s->groups);
    s->bundles = calloc(s->config.max_concurrency, sizeof *s->bundles);
    s->bundle_index = calloc(entries, sizeof *s->bundle_index);
    s->ops = calloc((size_t)s->config.sessions * PENDING_SLOTS + STOP_MOVES + COLD_MOVES, sizeof *s->ops);
    for (uint32_t i = 0; s->sessions && s->groups && i < s->config.sessions; i++)
        s->sessions[i].generation = s->groups[i].generation = s->config.first_generation;
    s->named_before = named_before_new();
    s->reuse_curve = reuse_curve_new(count_pages(s));
    metrics_begin(&s->metrics);
    if (!s->sessions || !s->groups || !s->bundles || !s->bundle_index || !s->ops || !s->named_before ||
        !s->reuse_curve || tenants_open(s) || remainders_open(s))
        return refuse_open(err, err_bytes, "no memory for the tables of sessions");
    return 0;
}

static int watch_fd(struct service *s, int fd, uint64_t tag) {
    struct epoll_event e = { .events = EPOLLIN, .data.u64 = tag };
    return epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &e);
}

static int make_watch(struct service *s, char *err, size_t err_bytes) {
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    int bad = s->epoll_fd < 0;
    for (uint32_t r = 0; r < s->pools.n_ranks && !bad; r++) {
        int fd = device_event_fd(s->pools.device[r]);
        bad = fd >= 0 && watch_fd(s, fd, r);
    }
    int host = mover_event_fd(s->mover);
    bad = bad || (host >= 0 && watch_fd(s, host, TAG_HOST));
    if (bad) snprintf(err, err_bytes, "epoll: %s", strerror(errno));
    return bad;
}

static int make_service(struct service *s, const char *prefix, const struct fdstore_set *handed, char *err,
                        size_t err_bytes) {
    struct device *devices[KVD_MAX_RANKS];
    struct stored_regions stored;
    char arena[96];
    plan_arena_name(prefix, arena, sizeof arena);
    stored_load(&stored, handed ? handed->items : NULL, handed ? handed->n : 0);
    if (plan_open_devices(&s->config, devices, err, err_bytes)) return 1;
    if (plan_make(&s->config, devices, &stored, arena, &s->plan, err, err_bytes)) {
        for (uint32_t i = 0; i < s->config.n_devices; i++) device_close(devices[i]);
        return 1;
    }
    if (pools_open(&s->config, &s->plan, devices, &stored, &s->pools, err, err_bytes) ||
        make_store(s, err, err_bytes) || make_tables(s, err, err_bytes))
        return 1;
    if (transfer_new(&s->pools, s->store, &s->transfer))
        return refuse_open(err, err_bytes, "no memory for device work");
    if (host_tier_open(s, prefix, err, err_bytes) || make_watch(s, err, err_bytes)) return 1;
    if (former_open(s, err, err_bytes)) return 1;
    while (!s->epoch)
        if (getrandom(&s->epoch, sizeof s->epoch, 0) != sizeof s->epoch)
            return refuse_open(err, err_bytes, "getrandom gives no instance epoch");
    return 0;
}

int service_new(const struct config *config, const char *prefix, const struct fdstore_set *handed,
                struct service **ret_service, char *err, size_t err_bytes) {
    struct service *s = calloc(1, sizeof *s);
    pthread_mutexattr_t kind;
    if (!s) return refuse_open(err, err_bytes, "no memory");
    s->config = s->wanted = *config;
    s->epoll_fd = -1;
    s->last_waiting = &s->waiting;
    s->started_ns = clock_ns();
    s->reloaded_s = (uint64_t)time(NULL);
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ADAPTIVE_NP); /* held for microseconds: spin before sleeping */
    pthread_mutex_init(&s->lock, &kind);
    pthread_mutexattr_destroy(&kind);
    pthread_mutex_init(&s->scratch_lock, NULL);
    if (make_service(s, prefix, handed, err, err_bytes)) {
        service_free(s);
        return 1;
    }
    *ret_service = s;
    return 0;
}

static void free_sessions(struct service *s) {
    for (uint32_t i = 0; s->sessions && i < s->config.sessions; i++) {
        struct session *session = &s->sessions[i];
        if (!session->used) continue;
        answers_free(s, session);
        free(session->growth);
        session->board = board_free(session->board);
        link_unref(session->link);
        if (session->peer.pidfd >= 0) close(session->peer.pidfd);
    }
    free(s->sessions);
}

struct service *service_free(struct service *s) {
    if (!s) return NULL;
    cold_reader_close(s); /* its threads look at sessions */
    free_sessions(s);
    for (struct link *link = s->dirty, *next; link; link = next) {
        next = link->next_dirty;
        link_unref(link);
    }
    stop_free(s);
    former_close(s);
    host_tier_close(s);
    pools_close(&s->pools); /* waits for what the devices still do, and frees */
    transfer_free(s->transfer);
    free(s->groups);
    free(s->bundles);
    free(s->bundle_index);
    free(s->ops);
    named_before_free(s->named_before);
    reuse_curve_free(s->reuse_curve);
    tenants_close(s);
    remainders_close(s);
    if (s->store_memory) munmap(s->store_memory, s->store_bytes);
    scratch_free_all(s);
    if (s->epoll_fd >= 0) close(s->epoll_fd);
    pthread_mutex_destroy(&s->scratch_lock);
    pthread_mutex_destroy(&s->lock);
    free(s);
    return NULL;
}

/* ---- waking -------------------------------------------------------------------------------------- */

int service_fd(const struct service *s) { return s->epoll_fd; }

static void peer_exited(struct service *s, uint64_t tag) {
    pthread_mutex_lock(&s->lock);
    struct session *session = session_find(s, (kvd_session_id){ tag });
    store_set_time(s->store, clock_ns());
    if (session) {
        LOG(session_log_level(session), "session %s: process %llu has exited", session->name,
            (unsigned long long)session->peer.pid);
        struct link *link = session->link ? link_ref(session->link) : NULL;
        session_end(s, session, false);
        events_pressure(s);
        pthread_mutex_unlock(&s->lock);
        if (link) link->ops->close(link); /* a forked child may hold the connection open */
        link_unref(link);
        return;
    }
    pthread_mutex_unlock(&s->lock);
}

static void drain_fd(struct service *s, uint64_t tag) {
    uint64_t count;
    int fd = tag == TAG_HOST ? mover_event_fd(s->mover) : device_event_fd(s->pools.device[tag]);
    ssize_t n = read(fd, &count, sizeof count);
    (void)n;
}

void service_run(struct service *s) {
    struct epoll_event events[32];
    int n = epoll_wait(s->epoll_fd, events, 32, 0);
    for (int i = 0; i < n; i++) {
        uint64_t tag = events[i].data.u64;
        if (tag >> 32) peer_exited(s, tag);
        else if (tag >= BOARD_TAG) board_rung(s, tag);
        else if (tag >= FORMER_TAG) former_exited(s, tag);
        else drain_fd(s, tag);
    }
    uint64_t now = clock_ns();
    if (history_is_due(&s->history, now)) {
        pthread_mutex_lock(&s->lock);
        history_note(s, now);
        pthread_mutex_unlock(&s->lock);
    }
    pending_run(s); /* flushes events too */
    sweep_boards(s);
}

/* ---- for the daemon ---------------------------------------------------------------------------------- */

bool service_lost(struct service *s, char *why, size_t bytes) {
    pthread_mutex_lock(&s->lock);
    bool lost = transfer_lost(s->transfer);
    if (lost && why) snprintf(why, bytes, "%s", transfer_error(s->transfer));
    pthread_mutex_unlock(&s->lock);
    return lost;
}

bool service_has_descriptors(const struct service *s) { return s->pools.has_descriptors || s->config.ring; }

enum service_state service_state(struct service *s) {
    pthread_mutex_lock(&s->lock);
    enum service_state state = transfer_lost(s->transfer)   ? SERVICE_LOST
                               : s->draining || s->stopping ? SERVICE_DRAINING
                                                            : SERVICE_READY;
    pthread_mutex_unlock(&s->lock);
    return state;
}

const struct kvd_store_info *service_info(const struct service *s) { return &s->pools.info; }

struct config service_config(struct service *s) {
    pthread_mutex_lock(&s->lock);
    struct config c = s->config;
    pthread_mutex_unlock(&s->lock);
    return c;
}

void service_note_build(struct service *s, const char *labels) {
    pthread_mutex_lock(&s->lock);
    s->build_labels = labels;
    pthread_mutex_unlock(&s->lock);
}

void service_note_connections(struct service *s, uint32_t connections) {
    pthread_mutex_lock(&s->lock);
    s->connections = connections;
    pthread_mutex_unlock(&s->lock);
}

void service_note_bad_frame(struct service *s) {
    pthread_mutex_lock(&s->lock);
    s->frames_bad++;
    pthread_mutex_unlock(&s->lock);
}

void service_note_reload_failed(struct service *s) {
    pthread_mutex_lock(&s->lock);
    s->reload_failed = 1;
    pthread_mutex_unlock(&s->lock);
}

void service_reload(struct service *s, const struct config *config) {
    char rest[512];
    pthread_mutex_lock(&s->lock);
    s->reloaded_s = (uint64_t)time(NULL);
    s->reload_failed = 0;
    config_reload(&s->config, config, rest, sizeof rest);
    s->wanted = *config;
    pthread_mutex_unlock(&s->lock);
    log_set_level((enum log_level)config->log_level);
    LOG(LOG_NOTICE, "configuration reloaded%s%s", *rest ? "; what changed here needs a restart: " : "", rest);
}
