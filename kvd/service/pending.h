/* SPDX-License-Identifier: Apache-2.0
 *
 * A pending operation is a request that waits: for devices, for copies between device and host, or for those of another
 * transition. Its tag travels with the copies and comes back with them.
 *
 * All functions are called under the core mutex.
 */
#ifndef KVD_PENDING_H
#define KVD_PENDING_H

#include "answers.h"
#include "metrics.h"
#include "mover.h"

struct call;
struct service;

/* Every session has its own, so that nobody can take those of others, as many as the window has, where each of them has
 * an answer too. */
#define PENDING_PER_SESSION ANSWER_WINDOW
/* And one more, for what its board asks. */
#define PENDING_SLOTS (PENDING_PER_SESSION + SLOW_PER_SESSION + 1u)
/* Moves of continuations at once, of all sessions; those that an orderly stop makes; and the cold tier's. */
#define MOVES_AT_ONCE 64u
#define STOP_MOVES 8u
#define COLD_MOVES 1u

struct pending {
    bool used, slow;
    bool cold_copy; /* that the cold tier writes from */
    enum {
        PENDING_NEW = 0 /* nothing is under way yet */,
        PENDING_ACTIVATE,
        PENDING_CHECKPOINT,
        PENDING_PUBLISH,
        PENDING_MOVE,
        PENDING_COLD,
        PENDING_SWEEP /* of a board: nobody waits for it */,
        PENDING_DEMOTE /* waits for the copy that the cold tier makes of the same continuation */
    } kind;
    kvd_session_id session; /* none: the daemon's own */
    uint64_t sequence;      /* number of the request */
    uint16_t type;
    uint64_t arrived_ns;
    uint32_t parts;              /* batches of devices and jobs of the mover under way */
    bool lost;                   /* a device, in one of them */
    bool staged;                 /* ACTIVATE: its victims are being demoted before anything is mapped */
    bool given_way;              /* ACTIVATE: its victims are past recall */
    bool waits;                  /* for another transition's end */
    bool boards;                 /* PUBLISH: sequences are put on boards when it is done */
    enum metrics_short short_of; /* where it ends with RESOURCE_EXHAUSTED */
    struct pending *next;        /* of those that wait */
    uint32_t bundle;             /* ACTIVATE */
    uint32_t n_gone;             /* CHECKPOINT: victims that have given way */
    store_move move;             /* MOVE */
    struct cold_job *cold;       /* COLD */
    struct {
        store_cont cont;
        enum store_place to;
    } demote; /* DEMOTE */
    struct mover_moved moved;
    union {
        struct kvd_activated activated;
        struct kvd_checkpointed checkpointed;
        struct kvd_moved moved;
    } u;
};

struct pending *pending_new(struct call *call); /* NULL: too many, refused */
void pending_free(struct service *s, struct pending *op);
/* The one for the session's board; NULL: it is in use. */
struct pending *pending_for_board(struct service *s, kvd_session_id session);
uint32_t pending_tag(const struct service *s, const struct pending *op); /* index + 1 */
/* It is to wait behind copies: it takes one of its session's operations for that. NULL: none is free, it is as it
 * was. */
struct pending *pending_make_slow(struct service *s, struct pending *op);
/* A request of the caller may wait behind copies between device and host; false: too many do, refused. */
bool pending_check_slow(struct call *call);
/* It is tried again, by pending_run, when a transition has ended; the first that waits is the first that is tried. */
void pending_wait(struct service *s, struct pending *op);
/* What it waited for is done: pending_run ends it. */
void pending_ready(struct service *s, struct pending *op);
void transition_ended(struct service *s); /* who waits for one may try again */

#endif
