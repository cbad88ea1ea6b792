/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies between devices and the arena for the store's transitions (PAGE-7, HOST-2).
 *
 * A job is one stage of one transition. Its copies are pulled from the store in chunks, each of pages of one pool and
 * one direction, and handed to every rank's device: rank r's packed part stands at host + r * (packed bytes of a
 * rank). Both directions run at once, each with a bounded number of bytes under way; jobs take turns chunk by chunk,
 * and where both directions wait, what goes to the device is fed first. Every packed page is read for its checksum in
 * the pool of checksum threads: after the copy out, and beside the copy in. A page whose bytes do not match is told
 * to the store (store_damaged) before its job is collected. Copies from device to device that stand in the same list
 * are transfer's business.
 *
 * Where there is no arena there is no mover: cancel, run, collect, event_fd and kick then take NULL and do nothing.
 *
 * All functions are called under the core mutex and do bounded work: no allocation, no wait for a device or a thread.
 * What is done is found by mover_run, to be called when a device's event fd or mover_event_fd is readable.
 */
#ifndef KVD_MOVER_H
#define KVD_MOVER_H

#include "pools.h"
#include "store.h"
#include "transfer.h"

struct mover;

struct mover_config {
    const struct pools *pools;
    struct store *store;
    struct transfer *transfer; /* a lost device is told there */
    uint8_t *arena;
    uint64_t arena_bytes;
    uint32_t jobs;    /* at once */
    uint32_t threads; /* 0: as many as suit the machine */
    /* Bytes in the arena did not match; the store has been told, and released `lost` continuations. */
    void (*damaged)(uint32_t lost);
};

/* By direction: enum device_direction. */
struct mover_moved {
    uint32_t pages[2][KVD_MAX_POOLS];
    uint64_t bytes[2]; /* state images too */
};
struct mover_stats {
    uint64_t pages[2], bytes[2];
    uint64_t busy_ns[2]; /* time in which some were under way */
    uint32_t pages_left; /* of the jobs there are, state images too */
    uint32_t jobs[2];    /* that have copies in this direction */
};

enum mover_result {
    MOVER_DONE = 0,
    MOVER_CANCELLED, /* not all of it was copied */
    MOVER_LOST       /* a device is lost */
};

/* 0, or 1: no memory or no threads. */
int mover_new(const struct mover_config *config, struct mover **ret_mover);
/* What the devices have begun goes on without it: unpin the arena, which waits for that, before it goes. NULL is fine;
 * returns NULL. */
struct mover *mover_free(struct mover *mover);

/* Begins the stage that the store lists now; work: as it says. False: there are as many jobs as there may be. */
bool mover_start(struct mover *mover, struct store_transition of, const struct store_work *work, uint32_t tag);
/* Starts no more copies of this job; it is collected when those under way have ended. */
void mover_cancel(struct mover *mover, uint32_t tag);
/* Takes what has ended and starts what comes next. */
void mover_run(struct mover *mover);
/* A job that has ended. False: none has. */
bool mover_collect(struct mover *mover, uint32_t *ret_tag, enum mover_result *ret_result,
                   struct mover_moved *ret_moved);

int mover_event_fd(const struct mover *mover); /* -1: there is no mover */
/* Makes the event fd readable: somebody is to come round. */
void mover_kick(struct mover *mover);
void mover_get_stats(const struct mover *mover, struct mover_stats *ret_stats);

#endif
