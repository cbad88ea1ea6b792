/* SPDX-License-Identifier: Apache-2.0
 *
 * The service: one store, its devices, the sessions and what they hold. Bytes in, bytes out; no sockets. The daemon
 * puts nng around it, tests and fuzzers call it directly.
 *
 * Threads: service_serve and service_link_* may be called from any thread, one call a link at a time; service_run from
 * one thread. No call waits for a device or for a peer.
 *
 * Locks, in the order in which they may be taken:
 *   1. the core mutex (struct service): store, sessions, groups, bundles, events. Held for bounded work without I/O.
 *   2. a connection's mutex (connection.c): its send queue. Never held while calling into the service.
 *   Leaves, taken with nothing else inside: the scratch list's mutex (service.c), the names that came before
 *   (named_before.c), the reuse curve (reuse_curve.c), the listener's mutex (listener.c), the rings' (rings.c), the
 * queue of checksums (checksum.c), the cold tier's figures (cold_tier.c) and its engine's queue (cold_engine.c), the
 * log's (log.c), under any other.
 */
#ifndef KVD_SERVICE_H
#define KVD_SERVICE_H

#include "config.h"
#include "link.h"
#include "systemd.h"

struct service;

/* Opens devices and pools and an empty store. prefix: the arena is named after it. handed: descriptors of an earlier
 * instance (fdstore_take), taken over; NULL: none. 0, or 1 with a sentence. */
int service_new(const struct config *config, const char *prefix, const struct fdstore_set *handed,
                struct service **ret_service, char *err, size_t err_bytes);
/* No call may be running; links must be closed. NULL is fine; returns NULL. */
struct service *service_free(struct service *service);

/* Serves one whole frame that came over a link. Returns false when the link must be closed (the bytes are no frame). */
bool service_serve(struct service *service, struct link *link, const uint8_t *frame, size_t bytes);

/* The link's life: init fills the service's part (refs 1, peer taken over). closed: no frame comes any more. The
 * caller's reference is its own business. */
void service_link_init(struct link *link, const struct link_ops *ops, const struct peer *peer);
void service_link_closed(struct service *service, struct link *link);
/* Events may be posted again. */
void service_link_drained(struct service *service, struct link *link);
/* What the last reference's holder calls before it frees the link. */
void service_link_fini(struct link *link);

/* Readable when service_run has something to do: exits of peers, devices that finished work. */
int service_fd(const struct service *service);
void service_run(struct service *service);

/* Orderly stop: activations are refused and, unless device memory outlives this process, sequences end; where there is
 * a host tier, what only the devices hold is then demoted, most valuable first (retention, then last use), until all
 * is, the arena is full or [host] stop_time is over. begin, then step after every service_run and a few times a second,
 * until it is over. */
struct service_stop {
    bool over;
    uint32_t sequences; /* that have not ended; waited for in the first quarter of the time */
    /* Continuations. Without a host tier all that only the devices hold are left. */
    uint32_t demoted, left, not_fitting;
    uint32_t released;   /* that lay in the arena, for others of more value */
    uint32_t pages_left; /* of the moves under way */
};
void service_stop_begin(struct service *service);
void service_stop_step(struct service *service, struct service_stop *ret_stop);
/* A device is lost: the daemon must stop. ret_why may be NULL. */
bool service_lost(struct service *service, char *why, size_t bytes);
/* READY: activations are taken. DRAINING: by a Drain request or an orderly stop. */
enum service_state { SERVICE_READY = 0, SERVICE_DRAINING, SERVICE_LOST };
enum service_state service_state(struct service *service);

/* Whether it has regions or rings that are handed over the socket of descriptors, which then stands beside the control
 * socket. */
bool service_has_descriptors(const struct service *service);
#define FDPASS_SUFFIX ".fd"
/* For that socket: what a peer asks for with a token, or on a connection whose token was good. */
struct service_grant {
    uint64_t token;         /* 0: not with this request */
    kvd_session_id session; /* of the connection; set once a token was good */
    uint64_t pid, uid;      /* of the peer */
    uint32_t fd_index;
    int fd;     /* set: the service's own, or */
    bool owned; /* set: a duplicate, the caller's */
};
/* enum kvd_status; why unless OK. */
uint32_t service_grant_fd(struct service *service, struct service_grant *grant, char *why, size_t bytes);

const struct kvd_store_info *service_info(const struct service *service);
/* Log level, access, timeouts, water marks: what a reload may change. Names in the log the changed keys that it left as
 * they were. */
void service_reload(struct service *service, const struct config *config);
/* The file could not be read, or is wrong: for monitoring. */
void service_note_reload_failed(struct service *service);
struct config service_config(struct service *service); /* a copy */
/* More labels of kvd_build_info: a="b",c="d". They stay valid. Before the first request. */
void service_note_build(struct service *service, const char *labels);
/* For Stats; the listener tells. */
void service_note_connections(struct service *service, uint32_t connections);
/* Counts bytes that are no frame and that service_serve has not seen. */
void service_note_bad_frame(struct service *service);

#endif
