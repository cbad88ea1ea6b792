/* SPDX-License-Identifier: Apache-2.0
 *
 * A ring is awake or asleep. Those awake are looked at in turns. One where nothing came for its time of looking is
 * armed and put to sleep: its client finds kvd_sleeps set and writes to the doorbell, which epoll tells (edge by edge,
 * so that nobody reads it). While any is awake, epoll is asked now and then without waiting, so that a busy ring keeps
 * no other from waking.
 */
#include "rings.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.h"

#define LOOKS 16u /* at those awake, for one at the doorbells */
#define REST_NS UINT64_C(1000000)

struct rings {
    int epoll, poke; /* poke: an eventfd, for what follows under the lock */
    pthread_t thread;
    struct link_ring *awake;
    pthread_mutex_t lock;
    struct link_ring *leaving;
    bool stop;
};

/* ---- a ring ------------------------------------------------------------------------------------------ */

static struct ring_segment *map_segment(int fd) {
    if (fd < 0 || ftruncate(fd, sizeof(struct ring_segment)) ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        return NULL;
    void *at = mmap(NULL, sizeof(struct ring_segment), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

struct link_ring *ring_new(uint64_t epoch) {
    struct link_ring *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->segment_fd = memfd_create("kvd-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    r->doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r->segment = map_segment(r->segment_fd);
    if (!r->segment || r->doorbell < 0) return ring_free(r);
    r->segment->magic = RING_MAGIC;
    r->segment->version = RING_VERSION;
    r->segment->epoch = epoch;
    r->segment->ring_bytes = RING_BYTES;
    r->requests = ring_request_reader(r->segment);
    r->answers = ring_answer_writer(r->segment);
    r->spin = ring_spin_new();
    return r;
}

struct link_ring *ring_free(struct link_ring *r) {
    if (!r) return NULL;
    if (r->segment) munmap(r->segment, sizeof *r->segment);
    if (r->segment_fd >= 0) close(r->segment_fd);
    if (r->doorbell >= 0) close(r->doorbell);
    free(r);
    return NULL;
}

bool ring_answer(struct link_ring *r, const uint8_t *frame, size_t bytes) {
    if (!ring_write(&r->answers, frame, bytes)) return false;
    ring_wake(r->segment);
    return true;
}

/* ---- the serving thread -------------------------------------------------------------------------------- */

static void wake_up(struct rings *rs, struct link_ring *r, uint64_t now) {
    if (r->awake) return;
    r->awake = true;
    r->rests = false;
    r->until_ns = now + r->spin.ns;
    r->next_awake = rs->awake;
    rs->awake = r;
}

/* True: it sleeps. */
static bool put_to_sleep(struct link_ring *r) {
    ring_arm(r->segment);
    r->awake = ring_unread(&r->requests) != 0;
    return !r->awake;
}

static void note_served(struct link_ring *r, uint64_t begin) {
    ring_spin_learn(&r->spin, begin - r->seen_ns);
    r->seen_ns = clock_ns();
    r->until_ns = r->seen_ns + r->spin.ns;
}

/* Looks at one that is awake. True: it sleeps now. */
static bool look_at(struct link_ring *r, uint64_t now) {
    if (r->rests && now < r->until_ns) return false;
    switch (r->owner.turn(r->owner.user)) {
    case RING_SERVED:
        r->rests = false;
        note_served(r, now);
        return false;
    case RING_LATER:
        r->rests = true;
        r->until_ns = now + REST_NS;
        return false;
    case RING_NOTHING:
        if (r->rests) r->until_ns = now + r->spin.ns;
        r->rests = false;
        break;
    }
    return now >= r->until_ns && put_to_sleep(r);
}

/* Looks at all that are awake. True: one of them does not rest. */
static bool look_around(struct rings *rs) {
    uint64_t now = clock_ns();
    bool busy = false;
    for (struct link_ring **at = &rs->awake; *at;) {
        struct link_ring *r = *at;
        if (look_at(r, now)) {
            *at = r->next_awake;
            continue;
        }
        busy |= !r->rests;
        at = &r->next_awake;
    }
    return busy;
}

static void drop_ring(struct rings *rs, struct link_ring *r) {
    epoll_ctl(rs->epoll, EPOLL_CTL_DEL, r->doorbell, NULL); /* closing does not: the client has the file, too */
    for (struct link_ring **at = &rs->awake; r->awake && *at; at = &(*at)->next_awake)
        if (*at == r) {
            *at = r->next_awake;
            break;
        }
    r->owner.gone(r->owner.user); /* r may be freed now */
}

/* What was asked under the lock. False: stop. */
static bool take_orders(struct rings *rs) {
    uint64_t count;
    ssize_t n = read(rs->poke, &count, sizeof count);
    (void)n;
    pthread_mutex_lock(&rs->lock);
    struct link_ring *leaving = rs->leaving;
    rs->leaving = NULL;
    bool stop = rs->stop;
    pthread_mutex_unlock(&rs->lock);
    for (struct link_ring *next; leaving; leaving = next) {
        next = leaving->next_leaving;
        drop_ring(rs, leaving);
    }
    return !stop;
}

static void *run_rings(void *argument) {
    struct rings *rs = argument;
    struct epoll_event events[32];
    bool busy = false;
    for (;;) {
        int n = epoll_wait(rs->epoll, events, 32, busy ? 0 : rs->awake ? (int)(REST_NS / 1000000u) : -1);
        uint64_t now = clock_ns();
        bool poked = false;
        for (int i = 0; i < n; i++) {
            if (events[i].data.ptr) wake_up(rs, events[i].data.ptr, now);
            else poked = true;
        }
        if (poked && !take_orders(rs)) return NULL;
        busy = look_around(rs);
        for (uint32_t i = 1; busy && i < LOOKS; i++) {
            ring_relax();
            busy = look_around(rs);
        }
    }
}

/* ---- the rings ------------------------------------------------------------------------------------------ */

static void poke_rings(struct rings *rs) {
    uint64_t one = 1;
    ssize_t n = write(rs->poke, &one, sizeof one);
    (void)n;
}

struct rings *rings_new(void) {
    struct rings *rs = calloc(1, sizeof *rs);
    if (!rs) return NULL;
    pthread_mutex_init(&rs->lock, NULL);
    rs->epoll = epoll_create1(EPOLL_CLOEXEC);
    rs->poke = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event e = { .events = EPOLLIN, .data.ptr = NULL };
    if (rs->epoll >= 0 && rs->poke >= 0 && !epoll_ctl(rs->epoll, EPOLL_CTL_ADD, rs->poke, &e) &&
        !pthread_create(&rs->thread, NULL, run_rings, rs))
        return rs;
    if (rs->epoll >= 0) close(rs->epoll);
    if (rs->poke >= 0) close(rs->poke);
    pthread_mutex_destroy(&rs->lock);
    free(rs);
    return NULL;
}

struct rings *rings_free(struct rings *rs) {
    if (!rs) return NULL;
    pthread_mutex_lock(&rs->lock);
    rs->stop = true;
    pthread_mutex_unlock(&rs->lock);
    poke_rings(rs);
    pthread_join(rs->thread, NULL);
    close(rs->epoll);
    close(rs->poke);
    pthread_mutex_destroy(&rs->lock);
    free(rs);
    return NULL;
}

bool rings_add(struct rings *rs, struct link_ring *r, const struct ring_owner *owner) {
    r->owner = *owner;
    ring_arm(r->segment); /* it sleeps; nobody has written to it */
    struct epoll_event e = { .events = EPOLLIN | EPOLLET, .data.ptr = r };
    return !epoll_ctl(rs->epoll, EPOLL_CTL_ADD, r->doorbell, &e);
}

void rings_remove(struct rings *rs, struct link_ring *r) {
    pthread_mutex_lock(&rs->lock);
    r->next_leaving = rs->leaving;
    rs->leaving = r;
    pthread_mutex_unlock(&rs->lock);
    poke_rings(rs);
}
