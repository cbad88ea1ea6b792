/* SPDX-License-Identifier: Apache-2.0
 *
 * A connection as the service sees it: who is at the other end, and a way to send frames there. The transport
 * (connection.c over nng; a test's array of bytes) embeds struct link and implements struct link_ops.
 *
 * Counted: the transport holds one reference while the connection is open, the service holds others. ops->release is
 * called when the last one goes, in whichever thread that is, possibly under the core mutex: it must not call the
 * service, only note that the link may be freed.
 */
#ifndef KVD_LINK_H
#define KVD_LINK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvd_types.h"

struct link;
/* Numbers at the socket of descriptors, far from those of regions. */
enum link_ring_fd { LINK_RING_SEGMENT = 1u << 16, LINK_RING_DOORBELL };
struct link_ops {
    /* Queues a whole frame (copied). A reply is always taken, or the connection is closed; an event is refused (false)
     * while the reader is slow: service_link_drained then tells that it may be tried again. Called without the core
     * mutex. */
    bool (*post)(struct link *link, const uint8_t *frame, size_t bytes, bool event);
    void (*close)(struct link *link); /* asynchronous; any thread */
    void (*release)(struct link *link);
    /* The peer's supplementary groups, kept by the link; NULL: unknown. While a frame of the link is served, without
     * the core mutex. May be NULL where there are none. */
    const struct groups *(*groups)(struct link *link);
    /* A duplicate of a descriptor of the link's ring, the caller's; -1: there is none, or no file is free. Any thread,
     * possibly under the core mutex. NULL: links of this kind have no rings. */
    int (*ring_fd)(struct link *link, enum link_ring_fd which);
};

/* As the kernel says. pidfd -1: no proof of death is to be had; such a peer gets no session. */
struct peer {
    uint64_t uid, gid, pid;
    int pidfd;
};

/* Supplementary groups of a peer, as it held them when it connected. */
struct groups {
    uint32_t n;
    uint32_t gid[];
};
/* NULL has none. */
static inline bool groups_have(const struct groups *groups, uint32_t gid) {
    for (uint32_t i = 0; groups && i < groups->n; i++)
        if (groups->gid[i] == gid) return true;
    return false;
}

struct event_ring {
    uint32_t first, n, limit;
    uint64_t dropped;
    struct kvd_event items[];
};

struct link {
    const struct link_ops *ops;
    atomic_uint refs;
    atomic_bool greeted; /* has a session: no handshake timeout */
    struct peer peer;    /* pidfd goes over to the session */
    /* under the core mutex */
    kvd_session_id session;
    uint64_t ring_token, ring_epoch; /* for the socket of descriptors; token 0: no ring is wanted. Set once, while a
                                        frame of the link is served: the transport then makes the ring. */
    uint32_t event_mask;
    struct event_ring *events; /* NULL before Subscribe */
    struct link *next_subscriber, *next_dirty;
    bool subscribed;
    bool spent;   /* its pidfd went over to a session, and with that */
    bool dirty;   /* on the list of links to post to, or being posted to */
    bool drained; /* while dirty: room came up */
};

static inline struct link *link_ref(struct link *link) {
    atomic_fetch_add_explicit(&link->refs, 1, memory_order_relaxed);
    return link;
}
static inline void link_unref(struct link *link) {
    if (link && atomic_fetch_sub_explicit(&link->refs, 1, memory_order_acq_rel) == 1) link->ops->release(link);
}

#endif
