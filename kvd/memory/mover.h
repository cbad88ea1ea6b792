/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies between devices and the arena for the store's transitions (PAGE-7, HOST-2).
 *
 * A job is one stage of one transition. The mover takes its copies from the store in chunks. A chunk has pages of one
 * pool and one direction, and goes to every rank's device: rank r's packed part is at host + r * (packed bytes of a
 * rank). Both directions run at once, each with a bounded number of bytes in flight. Jobs alternate chunk by chunk.
 * When both directions wait, copies to the device go first. Checksum threads read every packed page: after a copy out,
 * and beside a copy in. The mover reports a page whose bytes do not match to the store (store_damaged) before the job
 * is collected. Copies from device to device stand in the same list; transfer.h does those.
 *
 * Without an arena there is no mover: cancel, run, collect, event_fd and kick accept NULL and do nothing.
 *
 * Threads: every function runs under the core mutex and does bounded work: it does not allocate and does not wait for a
 * device or a thread. Call mover_run when a device's event fd or mover_event_fd is readable: it finds what is done.
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
    struct transfer *transfer; /* is told of a lost device */
    uint8_t *arena;
    uint64_t arena_bytes;
    uint32_t jobs;    /* at once */
    uint32_t threads; /* 0: chosen from the number of CPUs and ranks */
    /* Called when bytes in the arena did not match. The store knows already, and has released `lost` continuations. */
    void (*damaged)(uint32_t lost);
};

/* By direction: enum device_direction. */
struct mover_moved {
    uint32_t pages[2][KVD_MAX_POOLS];
    uint64_t bytes[2]; /* state images too */
};
struct mover_stats {
    uint64_t pages[2], bytes[2];
    uint64_t busy_ns[2];      /* time with at least one copy in flight */
    uint32_t pages_left;      /* pages and state images that the current jobs still have to copy */
    uint32_t jobs[2];         /* current jobs with copies in this direction */
    struct histogram took[2]; /* from begin to end of the jobs with copies in this direction that have ended */
};

enum mover_result {
    MOVER_DONE = 0,
    MOVER_CANCELLED, /* not everything was copied */
    MOVER_LOST       /* a device is lost */
};

/* Returns 0, or 1 when memory or threads are short. */
int mover_new(const struct mover_config *config, struct mover **ret_mover);
/* Copies that the devices have begun go on. Unpin the arena, which waits for them, before you unmap it. Accepts NULL;
 * returns NULL. */
struct mover *mover_free(struct mover *mover);

/* Begins the stage that the store lists now. work: the store's count of its copies. Returns false when config.jobs jobs
 * run already. */
bool mover_start(struct mover *mover, struct store_transition of, const struct store_work *work, uint32_t tag);
/* Starts no more copies of this job. It can be collected when its copies in flight have ended. */
void mover_cancel(struct mover *mover, uint32_t tag);
/* Takes in the copies that have ended and starts the next ones. */
void mover_run(struct mover *mover);
/* Returns a job that has ended. False: none has. */
bool mover_collect(struct mover *mover, uint32_t *ret_tag, enum mover_result *ret_result,
                   struct mover_moved *ret_moved);

int mover_event_fd(const struct mover *mover); /* -1: there is no mover */
/* Makes the event fd readable, so that mover_run is called. */
void mover_kick(struct mover *mover);
void mover_get_stats(const struct mover *mover, struct mover_stats *ret_stats);

#endif
