/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the service: its state, shared by the files of this folder that serve requests. Everything in struct service
 * that is not marked otherwise belongs to the core mutex (service.h has the lock order).
 *
 * Words: a session is a process that said Hello. A bundle is an active sequence with its owner (the session that
 * activated it) and its drivers (the session, or the group's sessions, that it is leased to). A bundle whose owner or a
 * driver is gone is `ending`: nobody may drive it, and it ends when each driver has yielded or is proven gone.
 */
#ifndef KVD_CORE_H
#define KVD_CORE_H

#include <assert.h>
#include <pthread.h>

#include "clock.h"
#include "codec.h"
#include "drivers.h"
#include "host.h"
#include "link.h"
#include "metrics.h"
#include "mover.h"
#include "pools.h"
#include "service.h"
#include "store.h"
#include "transfer.h"

/* Answers kept a session, and their bytes: as many as ANSWER_BYTES while those of all sessions are fewer than
 * ANSWER_TOTAL, else ANSWER_LEAST, in which the newest one always fits. So all of them together are at most
 * ANSWER_TOTAL + sessions * ANSWER_LEAST. */
#define ANSWER_WINDOW 64u
#define ANSWER_BYTES (256u << 10)
#define ANSWER_LEAST ((uint32_t)FRAME_LIMIT)
#define ANSWER_TOTAL (8u << 20)
#define ANSWER_WAITERS 2u
/* Requests of a session that may wait for devices. Every session has its own places, so that nobody can take those of
 * others, and as many as the window has, where each of them has a place too. */
#define OPS_PER_SESSION ANSWER_WINDOW
/* Those of them that wait for copies between device and host have places of their own, and so have their answers: what
 * needs no copy never waits behind them, neither for a place nor for the window. */
#define SLOW_PER_SESSION 16u
#define OP_PLACES (OPS_PER_SESSION + SLOW_PER_SESSION)
/* Moves of continuations at once, of all sessions; and those that an orderly stop makes. */
#define MOVES_AT_ONCE 64u
#define STOP_MOVES 8u

/* ---- sessions ------------------------------------------------------------------------------ */

struct waiter {
    struct link *link;
    uint64_t frame_id;
};

/* The answer to one numbered request (SRV-1). PENDING: executed, not answered yet: who asks again waits too. */
struct answer {
    uint64_t sequence;
    uint16_t type;
    enum { ANSWER_NONE = 0, ANSWER_PENDING, ANSWER_DONE } state;
    bool held; /* a device must finish first */
    uint32_t bytes, n_waiters;
    uint8_t *body;
    struct waiter waiter[ANSWER_WAITERS];
};

struct session {
    bool used, fenced;
    uint32_t generation; /* of the slot; 0 is never used, a slot is retired at UINT32_MAX */
    uint32_t role, rank;
    struct peer peer;
    uint64_t secret;
    char name[KVD_NAME_BYTES];
    struct link *link; /* NULL: connection lost */
    uint64_t last_sequence, requests;
    uint64_t driver_start; /* it got at memory that outlives this kvd: its start time; 0: it did not */
    uint64_t fd_token;     /* for the socket of descriptors; 0: none, or used */
    uint32_t n_owned;      /* bundles */
    uint32_t lookup_pages; /* metrics_lookup's memory */
    size_t answer_bytes;
    struct answer answer[ANSWER_WINDOW];
    struct answer slow[2 * SLOW_PER_SESSION]; /* of requests that waited for copies; the oldest makes room */
};

struct group {
    bool used, broken /* a member is gone or fenced */, orphan /* its owner is gone */;
    uint32_t generation;
    kvd_session_id owner;
    uint32_t n_members, n_bundles;
    kvd_session_id member[KVD_MAX_RANKS];
};

struct bundle {
    bool used, ending, quarantined, activating, doomed /* to be aborted when its device work is done */, bounded;
    store_seq seq;
    uint64_t lease;               /* as told to the store */
    kvd_session_id owner, worker; /* worker none: leased to the group */
    kvd_group_id group;
    uint32_t cleared; /* drivers, by place, that have yielded */
    uint64_t tenant;  /* the owner's uid */
    enum metrics_source source;
    uint32_t reused_tokens, prompt_tokens;
    uint32_t tag; /* of the op that activates it */
};

/* A request that waits: for devices, for copies between device and host, or for those of another transition. */
struct op {
    bool used, slow;
    enum { OP_NEW = 0 /* nothing is under way yet */, OP_ACTIVATE, OP_CHECKPOINT, OP_PUBLISH, OP_MOVE } kind;
    kvd_session_id session; /* none: the daemon's own */
    uint64_t sequence;
    uint16_t type;
    uint64_t arrived_ns;
    uint32_t parts;              /* batches of devices and jobs of the mover under way */
    bool lost;                   /* a device, in one of them */
    bool given_way;              /* ACTIVATE: its victims are past recall */
    bool waits;                  /* for another transition's end */
    enum metrics_short short_of; /* where it ends with RESOURCE_EXHAUSTED */
    struct op *next;             /* of those that wait */
    uint32_t bundle;             /* ACTIVATE */
    store_move move;             /* MOVE */
    struct mover_moved moved;
    union {
        struct kvd_activated activated;
        struct kvd_checkpointed checkpointed;
        struct kvd_moved moved;
    } u;
};

/* Memory of one request in work; kept on a list, as many as there are threads. */
struct scratch {
    struct scratch *next;
    struct codec_arena *arena;
    uint8_t frame[FRAME_LIMIT];
};

struct service {
    pthread_mutex_t lock;
    struct config config;
    struct plan plan;   /* constant */
    struct pools pools; /* constant */
    struct store *store;
    void *store_memory;
    size_t store_bytes;
    struct transfer *transfer;
    struct drivers *drivers;    /* of the instance before; NULL: nobody is waited for */
    struct host *host;          /* the host tier; NULL: there is none. constant */
    struct stop *stop;          /* stop.c: an orderly stop is under way */
    uint64_t epoch, started_ns; /* constant */
    bool draining, stopping;

    struct session *sessions; /* [config.sessions] */
    struct group *groups;     /* [config.sessions] */
    struct bundle *bundles;   /* [max_concurrency] */
    uint32_t *bundle_index;   /* open addressing by sequence handle: bundle + 1, 0 = empty */
    uint32_t bundle_index_mask, n_bundles;
    struct op *ops;             /* [config.sessions][OP_PLACES], then [STOP_MOVES] */
    struct op *waiting, *ready; /* for another transition's end: not yet, and to be tried again */
    uint32_t n_sessions, n_groups, n_moves;
    struct tenancy *tenancy; /* [config.continuations], tenant.c; NULL: tenants = shared */
    size_t answer_bytes;     /* of all sessions */

    struct link *subscribers, *dirty;
    bool pressed[STORE_MAX_POOLS];
    uint64_t pressure_revision;

    uint64_t requests, refusals, frames_bad, events_dropped;
    uint32_t connections;
    struct metrics metrics;

    int epoll_fd;

    pthread_mutex_t scratch_lock; /* leaf */
    struct scratch *scratch;
};

/* ---- one request ------------------------------------------------------------------------------ */

struct call {
    struct service *service;
    struct link *link;
    uint64_t frame_id, now_ns /* when the frame came */;
    struct session *session;
    bool parked;                 /* no answer now: an op will give it */
    bool held;                   /* answer now, send it when the devices are done */
    bool slow;                   /* parked behind copies between device and host */
    bool numbered;               /* to be recorded in the session's window */
    enum metrics_short short_of; /* where the status is RESOURCE_EXHAUSTED */
    struct scratch *scratch;
    void *room, *room2; /* reserved from the arena before the lock */
    uint64_t rss_bytes, random;
    struct event_ring *ring;
    const struct groups *groups; /* of the peer, where a Hello depends on them */
    struct msg_request request;
    struct msg_reply reply;
};

void call_refuse(struct call *call, enum kvd_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void call_refuse_store(struct call *call, const struct store_refusal *refusal);
enum kvd_status status_of_store(enum store_code code);
enum metrics_short short_of_store(const struct store_refusal *refusal);
/* Under the lock: a request's outcome stands; counts it, and where it is RESOURCE_EXHAUSTED what was short. */
void count_outcome(struct service *s, uint16_t type, uint32_t status, enum metrics_short short_of, uint64_t arrived_ns);

/* Reserves what a request needs beyond its struct. Without the lock. False: refused. */
bool call_make_room(struct call *call);

/* The sequence that the call may act on; NULL: refused. */
struct bundle *call_bundle(struct call *call, kvd_sequence sequence);
/* The session may be leased sequences of the caller's; false: refused. */
bool check_tenant(struct call *call, const struct session *worker);
struct kvd_pool_place place_of(const struct store_pool_view *view);
/* Submits the transfer's batch; the answer is held until the devices are done. */
void publish(struct call *call, struct op *op);
bool round_room(struct call *call);

/* serve_*.c: one function a request, under the lock. */
#define SERVE_FUNCTION(constant, number, name, function, ...) void serve_##function(struct call *call);
FRAME_LIST(SERVE_FUNCTION)
#undef SERVE_FUNCTION

/* ---- access.c -------------------------------------------------------------------------------- */

/* Root, or the daemon's own user. */
bool access_is_own(const struct peer *peer);
/* Looks at the peer's groups, if a Hello depends on them. Without the lock. */
void access_look(struct call *call);
/* Under the lock: the peer may take this role; false: refused. */
bool access_allows(struct call *call, uint32_t role);

/* ---- tenant.c: under the lock, where it does not say otherwise ------------------------------------ */

int tenants_open(struct service *s); /* 1: no memory */
void tenants_close(struct service *s);
#define TENANT_UNKNOWN 0u /* of a continuation that nobody has noted: root's */
/* Whoever makes a continuation, or finds one, notes whose it is: the tenant of the sequence that it is of. */
void tenant_note(struct service *s, store_cont cont, uint64_t uid);
uint64_t tenant_of(const struct service *s, store_cont cont);
/* The session is of this tenant: it may read what is the tenant's. True for all with tenants = shared. */
bool tenant_is(const struct service *s, const struct session *session, uint64_t uid);
/* It is, or it is an operator's (root, the daemon's own user, an admin), who list and release what they cannot use. */
bool tenant_sees(const struct service *s, const struct session *session, uint64_t uid);
/* A continuation that a request names, to be read (use) or to be released or kept (change): itself, or a handle that
 * names nothing, which the store refuses. call_refuse_cont tells it with the handle that was named. */
store_cont tenant_use(const struct call *call, kvd_continuation cont);
store_cont tenant_change(const struct call *call, kvd_continuation cont);
void call_refuse_cont(struct call *call, struct store_refusal *refusal, kvd_continuation cont);
/* The session's digests as the store has them. Without the lock. False: no memory. */
bool tenant_salt(struct call *call, const kvd_digest **digests, uint32_t n);

/* ---- session.c: under the lock ------------------------------------------------------------------ */

kvd_session_id session_id(const struct service *s, const struct session *session);
struct session *session_find(struct service *s, kvd_session_id id); /* NULL: no such, or an older generation */
/* NULL: there are as many as there may be, or, with *ret_errno, its process cannot be watched. */
struct session *session_new(struct service *s, const struct call *call, int *ret_errno);
/* The process said goodbye or is proven gone: its rights return now. */
void session_end(struct service *s, struct session *session);
void session_fence(struct service *s, struct session *session);
void session_disconnected(struct service *s, struct session *session);
void session_connected(struct service *s, struct session *session, struct link *link);
/* The window of answers. begin records that a request was executed; store gives it its body (taken over) and forgets
 * the oldest ones that no longer fit. slow: it has left the window, or begins outside of it. */
struct answer *answer_find(struct session *session, uint64_t sequence);
struct answer *answer_begin(struct service *s, struct session *session, uint64_t sequence, uint16_t type, bool slow);
bool answer_has_slow_place(const struct session *session);
void answer_make_slow(struct service *s, struct session *session, uint64_t sequence);
void answer_store(struct service *s, struct session *session, struct answer *answer, uint8_t *body, uint32_t bytes);
void answer_unstore(struct service *s, struct session *session,
                    struct answer *answer); /* drops the body; another will come. NULLs are fine */
void answers_free(struct service *s, struct session *session);

/* ---- bundle.c: under the lock --------------------------------------------------------------------- */

struct group *group_find(struct service *s, kvd_group_id id);
kvd_group_id group_id(const struct service *s, const struct group *group);
struct group *group_new(struct service *s, kvd_session_id owner, const struct kvd_group *members);
void group_drop(struct service *s, struct group *group);
/* A member left or was fenced; gone: it no longer exists. */
void groups_lose(struct service *s, kvd_session_id session, bool gone);

struct bundle *bundle_find(struct service *s, store_seq seq);
struct bundle *bundle_new(struct service *s, store_seq seq, uint64_t lease, kvd_session_id owner, kvd_session_id worker,
                          kvd_group_id group);
void bundle_free(struct service *s, struct bundle *bundle);
/* Place of a session among the drivers, or -1. */
int bundle_driver(struct service *s, const struct bundle *bundle, kvd_session_id session);
/* The session may act on it: owner, worker, leader. */
bool bundle_allows(struct service *s, const struct bundle *bundle, kvd_session_id session);
/* An event about it, to its owner, its drivers, observers and admins. */
void bundle_tell(struct service *s, const struct bundle *bundle, const struct kvd_event *event);
/* Brings quarantine up to date and ends an ending bundle whose drivers are all clear. May free it. */
void bundle_settle(struct service *s, struct bundle *bundle);
/* A session is gone or fenced: its bundles become ending. */
void bundles_lose(struct service *s, kvd_session_id session);
void bundles_settle_all(struct service *s);

/* ---- events.c ---------------------------------------------------------------------------------------- */

/* Under the lock: to every subscriber of the kind whom it concerns. concerned may be NULL (everybody). */
void events_add(struct service *s, const struct kvd_event *event,
                bool (*concerned)(struct service *, struct session *, const void *), const void *with);
void events_lost(struct service *s);     /* of continuations that the store has lost since */
void events_pressure(struct service *s); /* looks at the pools if the store's revision moved */
/* Without the lock: posts what is queued. */
void events_flush(struct service *s, struct scratch *scratch);

/* ---- op.c: under the lock --------------------------------------------------------------------------- */

/* stop.c: one of its moves has ended. */
void stop_moved(struct service *s, bool done);
void stop_free(struct service *s);

struct op *op_new(struct call *call); /* NULL: too many, refused */
void op_free(struct service *s, struct op *op);
uint32_t op_tag(const struct service *s, const struct op *op); /* place + 1 */
/* It is to wait behind copies: it takes one of its session's places for that. NULL: there is none, it is as it was. */
struct op *op_make_slow(struct service *s, struct op *op);
enum kvd_status checkpoint_finish(struct service *s, enum transfer_result result, struct kvd_checkpointed *made,
                                  char *why, size_t why_bytes);
/* Without the lock: finishes what devices have done. */
void ops_run(struct service *s);

/* ---- stage.c: under the lock --------------------------------------------------------------------------- */

/* Submits what the store lists now for a transition: its copies, and with rows those slices. */
void stage_submit(struct service *s, struct op *op, struct store_transition of, const struct store_copy *copies,
                  uint32_t n_copies, const struct kvd_activated *rows);
/* All parts of a stage are done: on to the next. False: it is parked again. True: it has ended with *ret_status; why is
 * filled unless OK, and an undone bundle is freed. */
bool activation_advance(struct service *s, struct op *op, enum kvd_status *ret_status, char *why, size_t why_bytes);
bool move_advance(struct service *s, struct op *op, enum kvd_status *ret_status, char *why, size_t why_bytes);
/* Its owner or a driver is gone while it is being activated. */
void activation_doom(struct service *s, struct bundle *bundle);
/* Undone before anything was submitted. */
void activation_undo(struct service *s, struct bundle *bundle, const struct kvd_activated *activated);
void transition_ended(struct service *s); /* who waits for one may try again */
/* The arena's bytes did not match; the store has released `lost` continuations for it so far. */
void damage_found(uint32_t lost);

/* dispatch.c: encodes the reply, records it, and posts it to whoever waits. Without the lock. */
void answer_call(struct service *s, struct scratch *scratch, struct msg_reply *reply, kvd_session_id session,
                 uint64_t sequence, struct link *link, uint64_t frame_id);

struct scratch *scratch_take(struct service *s);
void scratch_give(struct service *s, struct scratch *scratch);

#endif
