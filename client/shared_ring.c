/* SPDX-License-Identifier: Apache-2.0
 *
 * Who waits looks for a while first (ring_spin), since kvd answers most requests within microseconds, then sleeps on
 * the segment's bell. The end of kvd is told by the socket, whose reader interrupts.
 */
#include "shared_ring.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct shared_ring {
    struct ring_segment *segment;
    struct ring_end requests, answers;
    int doorbell;
    atomic_bool interrupted;
    struct ring_spin spin;      /* of the reader */
    uint8_t frame[FRAME_LIMIT]; /* of the reader */
};

/* ---- life ---------------------------------------------------------------------------------------------- */

static struct ring_segment *map_segment(int fd, uint64_t epoch) {
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS), must = F_SEAL_SHRINK | F_SEAL_GROW;
    if (seals < 0 || (seals & must) != must || fstat(fd, &st) || st.st_size != sizeof(struct ring_segment)) return NULL;
    struct ring_segment *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (s == MAP_FAILED) return NULL;
    if (!madvise(s, sizeof *s, MADV_DONTFORK) && s->magic == RING_MAGIC && s->version == RING_VERSION &&
        s->epoch == epoch && s->ring_bytes == RING_BYTES)
        return s;
    munmap(s, sizeof *s);
    return NULL;
}

struct shared_ring *shared_ring_open(int segment_fd, int doorbell_fd, uint64_t epoch) {
    struct shared_ring *r = calloc(1, sizeof *r);
    if (r) r->segment = map_segment(segment_fd, epoch);
    close(segment_fd);
    if (!r || !r->segment) {
        close(doorbell_fd);
        free(r);
        return NULL;
    }
    r->doorbell = doorbell_fd;
    r->requests = ring_request_writer(r->segment);
    r->answers = ring_answer_reader(r->segment);
    r->spin = ring_spin_new();
    return r;
}

void shared_ring_close(struct shared_ring *r) {
    if (!r) return;
    munmap(r->segment, sizeof *r->segment);
    close(r->doorbell);
    free(r);
}

void shared_ring_interrupt(struct shared_ring *r) {
    atomic_store(&r->interrupted, true);
    ring_wake_own(r->segment);
}

/* ---- sending --------------------------------------------------------------------------------------------- */

static void call_kvd(struct shared_ring *r) {
    uint64_t one = 1;
    if (!ring_must_call(r->segment)) return;
    ssize_t n = write(r->doorbell, &one, sizeof one); /* full: kvd has a call to hear already */
    (void)n;
}

int shared_ring_send(struct shared_ring *r, const uint8_t *frame, size_t n, uint64_t deadline_ns) {
    while (!ring_write(&r->requests, frame, n)) {
        uint32_t bell = ring_announce(r->segment);
        if (ring_write(&r->requests, frame, n)) break;
        if (atomic_load(&r->interrupted)) return TRANSPORT_E_LOST;
        if (!ring_wait(r->segment, bell, deadline_ns)) return TRANSPORT_E_TIMEOUT;
    }
    call_kvd(r);
    return 0;
}

/* ---- reading --------------------------------------------------------------------------------------------- */

/* Looks, then sleeps, until there are bytes. */
static int wait_for_bytes(struct shared_ring *r, uint64_t deadline_ns) {
    uint64_t begin = clock_ns(), until = begin + r->spin.ns;
    while (!ring_unread(&r->answers)) {
        if (atomic_load_explicit(&r->interrupted, memory_order_relaxed)) return TRANSPORT_E_LOST;
        if (clock_ns() < until) {
            ring_relax();
            continue;
        }
        uint32_t bell = ring_announce(r->segment);
        if (ring_unread(&r->answers)) break;
        if (atomic_load(&r->interrupted)) return TRANSPORT_E_LOST;
        if (!ring_wait(r->segment, bell, deadline_ns)) return TRANSPORT_E_TIMEOUT;
    }
    ring_spin_learn(&r->spin, clock_ns() - begin);
    return 0;
}

int shared_ring_read(struct shared_ring *r, const struct transport_sink *sink, uint64_t deadline_ns) {
    struct frame_head head;
    size_t n;
    int error = wait_for_bytes(r, deadline_ns);
    if (error) return error;
    while (!(error = ring_read(&r->answers, r->frame, &n))) {
        (void)frame_head_read(r->frame, FRAME_HEADER, &head);
        sink->frame(sink->user, &head, r->frame + FRAME_HEADER);
    }
    if (error == RING_E_EMPTY) return 0;
    sink->lost(sink->user, "the shared segment holds bytes that are no frames of the kvd protocol");
    return TRANSPORT_E_LOST;
}
