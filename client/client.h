/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside libkvd: the client object, its table of pending calls, and how a call runs.
 *
 * Numbers. A mutating request takes the next sequence number of its session in the order of sending: a thread takes the
 * turn, the number, encodes, sends, and gives the turn back. kvd answers a repeated number with the first answer, and
 * refuses gaps. So a number that was sent, or may have been, is never given to another request; one of which not a byte
 * was sent goes back.
 *
 * The life of a call:
 *
 *     WAITED or TICKET --answer--> done
 *         | deadline                      an answer may still come: the call becomes LEFT
 *         v
 *       LEFT --equal call by the caller--> WAITED again, same number
 *         | CLIENT_WINDOW newer numbers, no answer
 *         v
 *       forgotten
 *
 * Only calls whose second execution would do or answer something else (FRAME_REPEAT) are adopted. A LEFT call about
 * sequences is no longer adopted once another call about one of them was sent. A LEFT Demote, Prefetch or DropReplica
 * is no longer adopted once another of them about the same continuation, or an Activate, was sent.
 *
 * When the connection breaks, a thread that waits resumes the session (one does, the others wait for it) and every
 * pending call is sent again in the order of its numbers, with the same numbers. kvd says the highest number that it
 * executed: calls beyond it never ran; of those, the LEFT ones are dropped and the waited ones close up to the gapless
 * order. A call's own thread does this once; if the connection breaks again, it answers KVD_UNAVAILABLE.
 *
 * Reading. Of the threads that wait for answers one reads the connection (client->reader), gives the others theirs, and
 * passes the reading on when it has its own. So an answer wakes its caller directly, and an idle client does not read.
 * Where frames may come that no caller waits for, threads of the transport read instead (watching), for the rest of
 * that connection: for a client that uses its descriptor, events or tickets, and after an answer that came too late.
 * Where there is a ring, threads of the transport read the stream in any case, and all this is about the ring.
 *
 * Lock order: client->lock, then the transport's. client->lock is never held over a transport call that waits, since
 * that may wait for the sink, which takes it.
 */
#ifndef KVD_CLIENT_CLIENT_H
#define KVD_CLIENT_CLIENT_H

#include <pthread.h>
#include <sys/types.h>

#include "codec.h"
#include "kvd.h"
#include "transport.h"

#define CLIENT_TIMEOUT_MS 5000u
#define CLIENT_GOODBYE_MS 1000u
#define CLIENT_EVENTS 256u /* queue; the newest are dropped and counted when it is full */
#define CLIENT_WINDOW 64u  /* answers that kvd keeps a session: numbers older than that cannot be asked for */
#define CLIENT_BUCKETS 64u
#define CLIENT_ROOM_FRAMES 32u        /* unanswered frames, and */
#define CLIENT_ROOM_BYTES FRAME_LIMIT /* their bytes, that the socket's buffer surely takes */

enum call_keeper { CALL_WAITED, CALL_TICKET, CALL_LEFT };
enum call_state { CALL_SENT, CALL_BROKEN /* its connection went before the answer */, CALL_ANSWERED };

struct pending_call {
    struct pending_call *next; /* bucket or free list */
    uint64_t id;
    struct msg_header header; /* as sent */
    uint16_t type;
    enum call_keeper keeper;
    enum call_state state;
    bool resumed;       /* its thread has had its one retry */
    bool waiting;       /* a thread waits for it and does not read */
    bool pinned;        /* its frame is being sent by another thread */
    bool stale;         /* LEFT, and a later call changed what it was about: not to be adopted */
    bool adopted;       /* by a repeat: the deadline in its frame is that of the first */
    uint64_t until_ns;  /* deadline of a ticket, from its last start */
    uint32_t n_touched; /* sequences that it is about; of a round: one an item */
    kvd_sequence touched[KVD_MAX_ROUND];
    kvd_continuation moved; /* by Demote, Prefetch, DropReplica */
    pthread_cond_t changed;
    struct codec_arena *arena;
    uint8_t *frame; /* FRAME_LIMIT bytes: what was sent */
    size_t frame_bytes;
    uint8_t *body; /* FRAME_LIMIT bytes: the answer */
    size_t body_bytes;
    uint16_t body_type;
};

/* One connection; a new one for every resume. */
struct client_link {
    struct kvd_client *client;
    struct transport *transport;
    uint64_t number;          /* of this client's connections */
    bool open, watched, lost; /* watched: threads of the transport read it */
    char why[160];
};

struct kvd_client {
    pid_t pid;
    pthread_mutex_t lock;
    pthread_cond_t turn; /* sending or resuming ended, a pending call went */
    bool sending, resuming;
    struct client_link *link; /* NULL only before the first connection */
    uint64_t n_links, reader; /* reader: number of the connection that a caller reads; 0 = none */
    uint32_t n_waiting;       /* calls with .waiting */
    bool watching;            /* every connection is watched, */
    bool watching_events;     /* every one without a ring is */
    bool dead;                /* the session is gone for good */
    char why_dead[KVD_MESSAGE_BYTES];

    char path[128];
    struct kvd_hello hello;
    kvd_session_id session;
    uint64_t secret, epoch;
    uint32_t timeout_ms;

    uint64_t next_id, next_sequence;
    struct pending_call *pending[CLIENT_BUCKETS];
    struct pending_call *free_calls;
    uint32_t n_pending, n_left, n_tickets_answered;
    uint32_t room_frames; /* sent and not answered, on this connection */
    size_t room_bytes;
    uint64_t stray_frames;

    int event_fd;
    bool event_fd_set;
    pthread_cond_t event_came;
    uint32_t event_mask, event_first, event_count;
    uint64_t events_dropped;
    struct kvd_event events[CLIENT_EVENTS];
};

/* ---- status.c ------------------------------------------------------------------------------------------ */
enum kvd_status client_fail(struct kvd_error *error, enum kvd_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Statics apart, a file calls only what stands above it here. */

/* ---- client.c ------------------------------------------------------------------------------------------ */
/* First thing in every call: refuses a fork's child. */
enum kvd_status client_guard(const struct kvd_client *c, struct kvd_error *error);
uint64_t client_deadline(const struct kvd_client *c); /* now + timeout */
bool client_init_cond(pthread_cond_t *cond);          /* on CLOCK_MONOTONIC; false: no memory */
/* With the lock held: waits on cond until the deadline. False when it has passed. */
bool client_wait(struct kvd_client *c, pthread_cond_t *cond, uint64_t deadline_ns);
/* With the lock held: makes the descriptor readable or not, as things stand. */
void client_update_fd(struct kvd_client *c);
/* With the lock held: the connection is watched from now on, or when its reader leaves. always: later ones, too. */
void client_watch(struct kvd_client *c, bool always);
/* The same for events, of all connections: where there is a ring the stream, which has them, is read already. */
void client_watch_events(struct kvd_client *c);

/* ---- pending.c ----------------------------------------------------------------------------------------- */
bool call_mutates(uint16_t type);
struct pending_call *call_new(struct kvd_client *c); /* with the lock held; NULL: no memory */
void call_free(struct kvd_client *c,
               struct pending_call *call); /* with the lock held: out of the table, to the free list */
void call_done(struct kvd_client *c, struct pending_call *call); /* call_free, without the lock held */
void call_destroy(struct pending_call *call);
/* The other functions of the table are called with the lock held. */
void call_insert(struct kvd_client *c, struct pending_call *call);
struct pending_call *call_lookup(struct kvd_client *c, uint64_t id);
/* Nobody waits for it any longer. A mutating call may have run: it is kept for a repeat. A query is of no more use. */
void call_leave(struct kvd_client *c, struct pending_call *call);
/* Returns the call to signal once the lock is free: whoever waits for it need not wait for the lock then. NULL:
 * nobody's answer. Calls live as long as the client, so that a late signal finds a condition variable, if of another
 * call by now. */
struct pending_call *call_arrived(struct kvd_client *c, const struct frame_head *head, const uint8_t *body);
/* The call's frame has left the connection: the socket's buffer has room for another. */
void call_give_room(struct kvd_client *c, const struct pending_call *call);
void client_lost(struct kvd_client *c, const char *why);
/* Encodes request under call->header into call->frame. */
enum kvd_status call_encode(struct pending_call *call, struct msg_request *request, struct kvd_error *error);
/* Sends call->frame on the current link; the lock is not held. */
int call_transmit(struct kvd_client *c, struct pending_call *call, uint64_t deadline_ns, bool room, size_t *ret_sent);

/* ---- link.c -------------------------------------------------------------------------------------------- */
struct kvd_client *client_new(const char *path);
void client_free(struct kvd_client *c); /* also in a fork's child */
struct client_link *client_link_new(struct kvd_client *c);
/* Connects the link, which must be c->link already; the lock is not held. */
enum kvd_status client_link_open(struct kvd_client *c, struct client_link *link, uint64_t deadline_ns,
                                 struct kvd_error *error);

/* ---- answer.c ------------------------------------------------------------------------------------------ */
/* With the lock held, let go meanwhile: waits until the call is ANSWERED, or BROKEN and not yet resumed. Any status but
 * KVD_OK: neither will be. */
enum kvd_status call_await(struct kvd_client *c, struct pending_call *call, uint64_t deadline_ns,
                           struct kvd_error *error);
/* The end of a wait that gave `status`: decodes the answer. Takes the lock held and lets it go. */
enum kvd_status call_conclude(struct kvd_client *c, struct pending_call *call, enum kvd_status status,
                              struct msg_reply *ret_reply, struct kvd_error *error);

/* ---- session.c ----------------------------------------------------------------------------------------- */
/* With the lock held (let go meanwhile): a new connection with the same session, all pending calls sent again. */
enum kvd_status client_resume(struct kvd_client *c, uint64_t deadline_ns, struct kvd_error *error);

/* ---- call.c -------------------------------------------------------------------------------------------- */
/* Sends a request. KVD_OK: *ret_call is pending and belongs to the caller. */
enum kvd_status call_start(struct kvd_client *c, struct msg_request *request, enum call_keeper keeper,
                           uint64_t deadline_ns, struct pending_call **ret_call, struct kvd_error *error);
/* Number of the call that is this very request and is not given up, answered or not; 0: there is none. */
uint64_t call_open_number(struct kvd_client *c, struct msg_request *request);
/* The call of this number is not taken up again. */
void call_give_up(struct kvd_client *c, uint64_t number);
/* Waits for the answer and decodes it into ret_reply, whose pointers live until call_done. Any status but KVD_OK has
 * ended the call. */
enum kvd_status call_finish(struct kvd_client *c, struct pending_call *call, uint64_t deadline_ns,
                            struct msg_reply *ret_reply, struct kvd_error *error);
/* Both. On KVD_OK the caller ends with call_done. */
enum kvd_status call_run(struct kvd_client *c, struct msg_request *request, struct pending_call **ret_call,
                         struct msg_reply *ret_reply, struct kvd_error *error);

/* ---- ticket.c ------------------------------------------------------------------------------------------ */
enum kvd_status ticket_start(struct kvd_client *c, struct msg_request *request, kvd_ticket *ret_ticket,
                             struct kvd_error *error);
#define TICKET_OF(type) (UINT64_C(1) << (type))
/* The answer to a started request of one of these types (TICKET_OF); max: sequences of a Round that there is room for.
 * Without wait it does not block: KVD_UNAVAILABLE while there is none. KVD_OK: the caller ends with call_done. */
enum kvd_status ticket_finish(struct kvd_client *c, kvd_ticket ticket, uint64_t types, uint32_t max, bool wait,
                              struct pending_call **ret_call, struct msg_reply *ret_reply, struct kvd_error *error);

#endif
