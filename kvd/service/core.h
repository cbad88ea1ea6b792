/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of the service. Everything in it that is not marked otherwise belongs to the core mutex (service.h has the
 * lock order). Each object that it holds has its own header: session.h, bundle.h, pending.h, tenant.h, events.h,
 * metrics.h, former_processes.h; the memory and its copies have pools.h, transfer.h and mover.h.
 */
#ifndef KVD_CORE_H
#define KVD_CORE_H

#include <assert.h>
#include <pthread.h>

#include "config.h"
#include "history.h"
#include "metrics.h"
#include "plan.h"
#include "pools.h"
#include "service.h"
#include "store.h"

struct service {
    pthread_mutex_t lock;
    struct config config; /* in effect */
    struct config wanted; /* of the file when it was read last */
    struct plan plan;     /* constant */
    struct pools pools;   /* constant */
    struct store *store;
    void *store_memory; /* of store_bytes */
    size_t store_bytes;
    uint64_t epoch, started_ns; /* constant */
    const char *build_labels;   /* service_note_build; NULL: none */
    bool draining /* by a request */, stopping /* for good */, auditing /* a thread is at it, step by step */;
    int epoll_fd;

    struct transfer *transfer;        /* copies on the devices */
    struct segment *segment;          /* the arena and its directory; NULL: there is none. Constant */
    struct mover *mover;              /* copies between devices and arena; NULL: the arena has no bytes. Constant */
    struct scrub *scrub;              /* NULL: the arena is not read again. Constant */
    struct cold_tier *cold;           /* NULL: nothing is written to one. Constant */
    store_cont cold_copying;          /* of which the cold tier's copy is on its way to the arena; or none */
    struct cold_reader *cold_reader;  /* NULL: there is no cold tier. Constant */
    struct store_recovered recovered; /* from the arena at the start. Constant */
    struct former_processes *former;  /* of the instance before; NULL: nobody is waited for */
    struct stop *stop;                /* an orderly stop is under way */

    struct session *sessions; /* [config.sessions] */
    struct group *groups;     /* [config.sessions] */
    struct bundle *bundles;   /* [max_concurrency] */
    uint32_t *bundle_index;   /* open addressing by sequence handle: bundle + 1, 0 = empty */
    uint32_t bundle_index_mask;
    struct pending *ops;                     /* [config.sessions][PENDING_SLOTS], then [STOP_MOVES], [COLD_MOVES] */
    struct pending *waiting, **last_waiting; /* for another transition's end, in the order of arrival */
    struct pending *ready;                   /* those of them that are to be tried again */
    uint32_t n_sessions, n_groups, n_bundles, n_moves; /* in use */
    struct remainder *remainders;                      /* [continuations of the store] */
    uint32_t n_remainders;                             /* entries of it */
    bool remainders_wait;                              /* some are nobody's, and in use */
    struct tenancy *tenancy;                           /* [continuations of the store]; NULL: tenants = shared */
    size_t answer_bytes;                               /* of all sessions */
    struct board *due_boards;                          /* to be looked at */
    uint32_t deaf_boards;                              /* that rang too often */
    uint64_t board_turn;                               /* the last one given */

    struct link *subscribers, *dirty; /* events.c */
    bool pressed[KVD_MAX_POOLS];
    uint64_t pressure_revision;

    struct named_before *named_before;
    struct reuse_curve *reuse_curve;
    struct history history;
    uint64_t reloaded_s /* since 1970 */, reload_failed; /* of the configuration: read last, and whether that failed */
    uint64_t requests, refusals, frames_bad, events_dropped;
    uint32_t connections;
    struct metrics metrics;

    pthread_mutex_t scratch_lock; /* leaf: the list */
    struct scratch *scratch;
};

#endif
