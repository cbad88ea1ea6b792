/* SPDX-License-Identifier: Apache-2.0
 *
 * What kvd says to systemd and gets from it, without libsystemd: notifications, the store of file descriptors, the
 * device regions in that store, the watchdog. Without a service manager nothing happens, and nothing fails.
 */
#ifndef KVD_SYSTEMD_H
#define KVD_SYSTEMD_H

#include <stdbool.h>
#include <stdint.h>

#include "geometry.h"
#include "kvd_types.h"

/* ---- notifications ----
 *
 * sd_notify(3) without libsystemd: a datagram to the socket that NOTIFY_SOCKET names. Nothing happens where there is
 * none. Waits a second at most for a manager whose queue is full.
 */

bool notify_send(const char *state);            /* "READY=1\nSTATUS=..."; whether it was sent */
bool notify_send_fd(const char *state, int fd); /* with a descriptor; -1: none */

/* ---- the descriptor store ----
 *
 * File descriptors that outlive the daemon: systemd's store of them (sd_notify(3) FDSTORE=1, FileDescriptorStoreMax= of
 * the unit), or any holder that speaks the same protocol: a datagram with the descriptor to $NOTIFY_SOCKET, and at the
 * next start $LISTEN_PID, $LISTEN_FDS, $LISTEN_FDNAMES with descriptors from 3 on. Without one nothing is stored, and
 * nothing fails.
 *
 * systemd keeps them over restart, SIGKILL and daemon-reexec, and drops them at stop.
 */

#define FDSTORE_NAME 96
#define FDSTORE_MAX 128

struct fdstore_item {
    char name[FDSTORE_NAME];
    int fd;
};

struct fdstore_set {
    uint32_t n;
    struct fdstore_item items[FDSTORE_MAX];
};

/* What a holder hands over to this process. Once, before any thread exists, since it unsets the variables, and before
 * any other file is opened, whose number might be counted among them. Descriptors are the caller's. Those with a name
 * that does not fit are closed. */
void fdstore_take(struct fdstore_set *ret_set);
/* Gives the holder a copy. False: there is no holder, or the message could not be sent. */
bool fdstore_put(const char *name, int fd);
/* Tells the holder to close all descriptors of this name. */
void fdstore_remove(const char *name);
/* Waits until the holder has processed everything sent before (BARRIER=1). False: it did not answer in time. */
bool fdstore_wait(unsigned timeout_ms);

/* ---- device regions there ----
 *
 * Device regions that an earlier instance gave to the descriptor store (export = vmm). A region's name there says all
 * that is needed to take it over or to let it go:
 *
 *     kvd.<id>.r<rank>.<main|draft|pool2|pool3|state>.<pages of the Main pool>.<bytes>
 *
 * The id has 16 hex digits and is that of the pools. A set is taken over as a whole, when it has every region of the
 * plan with its size; else all of it is let go before anything new is allocated. Block tables are never kept: a new
 * instance begins with empty ones.
 */

/* By the number of the pool, whatever the configuration calls it. */
enum stored_kind { STORED_POOLS = 0, STORED_STATE = GEOM_MAX_POOLS, STORED_KINDS };
const char *stored_kind_name(uint32_t kind);

struct stored_regions {
    uint64_t id;                   /* 0: nothing is kept */
    uint32_t pages;                /* of the Main pool then */
    uint64_t bytes[KVD_MAX_RANKS]; /* that stand in device memory already, by rank */
    struct stored_region {
        int fd;         /* -1: not there, or taken over */
        uint64_t bytes; /* 0: the holder has none */
    } region[KVD_MAX_RANKS][STORED_KINDS];
};

/* From what the holder handed over; foreign names are let go, and of several sets all but the first. */
void stored_load(struct stored_regions *stored, const struct fdstore_item *items, uint32_t n);
/* Exactly the regions of this layout? */
bool stored_matches(const struct stored_regions *stored, const struct geom_layout *layout, uint32_t n_ranks);
/* Has the holder forget all of it, also what was taken over, and closes what was not; stored is empty then. */
void stored_drop(struct stored_regions *stored);
void stored_name(uint64_t id, uint32_t rank, uint32_t what, uint32_t pages, uint64_t bytes, char *name, size_t size);

/* ---- the watchdog ----
 *
 * What the service manager's watchdog is fed with: proof that clients are still served, not that a timer still runs.
 *
 * At each tick the daemon connects to its own socket and says at once that it will send nothing. Its end reads as
 * closed only after the listener has accepted, nng's poller has reported and a thread of those that serve requests has
 * run the connection's callback. The tick itself comes from the main loop, after that has taken the core mutex. So a
 * main loop that hangs, a core mutex that is never given back, threads that are all stuck and a listener that no longer
 * accepts each leave the watchdog hungry. No frame is sent: nothing is counted as a request or refused as one.
 *
 * Clients cannot starve it: a connection beyond the limit is closed, which proves as much; and while the backlog is
 * full, the count of accepted connections must move instead.
 *
 * One thread. Nothing blocks.
 */

struct watchdog {
    const char *socket;
    uint64_t period_ns; /* between two proofs, a quarter of the manager's patience; 0: there is no watchdog */
    uint64_t next_ns;
    uint64_t accepted;
    int fd; /* the connection that is to be closed; -1: none */
};

/* WATCHDOG_USEC and WATCHDOG_PID as in sd_watchdog_enabled(3). socket: its path, must outlive the watchdog. */
void watchdog_init(struct watchdog *watchdog, const char *socket);
/* accepted: connections that the listener has accepted so far. True: there is new proof, so feed the manager's
 * watchdog. To be called at least once in each period_ns. */
bool watchdog_tick(struct watchdog *watchdog, uint64_t now_ns, uint64_t accepted);
void watchdog_close(struct watchdog *watchdog);

#endif
