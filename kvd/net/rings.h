/* SPDX-License-Identifier: Apache-2.0
 *
 * Rings (ring.h) and the one thread that serves them. It looks at the rings in use, in turns, and sleeps on the
 * doorbells of all when none has been in use for some microseconds.
 *
 * What becomes of a frame is the owner's business, through two functions that this thread calls, one at a time. So for
 * one ring nothing of them runs twice at once.
 */
#ifndef KVD_RINGS_H
#define KVD_RINGS_H

#include "ring.h"

enum ring_turn {
    RING_NOTHING, /* no frame was there */
    RING_SERVED,  /* some were; look again at once */
    RING_LATER    /* look again in a millisecond */
};

struct ring_owner {
    enum ring_turn (*turn)(void *user); /* serve a few frames */
    void (*gone)(void *user);           /* after rings_remove: turn is not called again */
    void *user;
};

/* One ring in shared memory. */
struct link_ring {
    struct ring_segment *segment;
    struct ring_end requests, answers;
    int segment_fd, doorbell; /* of the ring */
    /* the serving thread's */
    struct ring_owner owner;
    struct ring_spin spin;
    uint64_t seen_ns;  /* a frame, last */
    uint64_t until_ns; /* of looking, or of a rest */
    bool awake, rests;
    struct link_ring *next_awake, *next_leaving;
};

/* NULL: no memory or no file. The segment is sealed: nobody can shrink or grow it. */
struct link_ring *ring_new(uint64_t epoch);
/* Not while it is among the rings that are served. NULL is fine; returns NULL. */
struct link_ring *ring_free(struct link_ring *ring);
/* Copies an answer into the ring and wakes who waits for it. False: there is no room. One thread at a time. */
bool ring_answer(struct link_ring *ring, const uint8_t *frame, size_t bytes);

struct rings;
struct rings *rings_new(void); /* starts the thread; NULL: no memory, file or thread */
/* All rings must be gone. NULL is fine; returns NULL. */
struct rings *rings_free(struct rings *rings);
/* False: the doorbell cannot be watched. Any thread. */
bool rings_add(struct rings *rings, struct link_ring *ring, const struct ring_owner *owner);
/* Any thread, once: owner.gone is called later. */
void rings_remove(struct rings *rings, struct link_ring *ring);

#endif
