/* SPDX-License-Identifier: Apache-2.0
 *
 * One request in work: what came, what it needs, what it answers; and how an answer is refused, encoded, kept and sent.
 */
#ifndef KVD_REQUEST_H
#define KVD_REQUEST_H

#include "codec.h"
#include "link.h"
#include "metrics.h"
#include "named_before.h"
#include "reuse_curve.h"
#include "store.h"

struct service;
struct session;

/* Memory of one request in work; kept on a list, as many as there are threads. */
struct scratch {
    struct scratch *next;
    struct codec_arena *arena;
    uint8_t frame[FRAME_LIMIT];
};

struct call {
    struct service *service;
    struct link *link;
    uint64_t frame_id, now_ns /* when the frame came */;
    struct session *session;
    bool parked;                 /* no answer now: a pending operation will give it */
    bool held;                   /* answer now, send it when the devices are done */
    bool slow;                   /* parked behind copies between device and host */
    bool auditing;               /* to be gone on with without the lock */
    bool numbered;               /* to be recorded in the session's window */
    enum metrics_short short_of; /* where the status is RESOURCE_EXHAUSTED */
    struct scratch *scratch;
    void *memory, *results; /* reserved from the arena before the lock */
    uint64_t rss_bytes, random;
    struct event_ring *ring;
    struct growth_list *growth;  /* what is not taken over is freed */
    struct cold_job *cold;       /* the same */
    const struct groups *groups; /* of the peer, where a Hello depends on them */
    struct named_pages named;    /* by this request, in the memory of the request */
    struct curve_pages used;     /* the same */
    struct msg_request request;
    struct msg_reply reply;
};

/* ---- refuse.c: any thread ---- */

void call_refuse(struct call *call, enum kvd_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void call_refuse_store(struct call *call, const struct store_refusal *refusal);
enum kvd_status status_of_store(enum store_code code);
enum metrics_short short_of_store(const struct store_refusal *refusal);

/* ---- reply.c ---- */

/* Under the lock: a request's outcome stands; counts it, and where it is RESOURCE_EXHAUSTED what was short. */
void count_outcome(struct service *s, uint16_t type, uint32_t status, enum metrics_short short_of, uint64_t arrived_ns);
/* Encodes the reply, records it, and posts it to whoever waits. Without the lock. */
void answer_call(struct service *s, struct scratch *scratch, struct msg_reply *reply, kvd_session_id session,
                 uint64_t sequence, struct link *link, uint64_t frame_id);

/* ---- scratch.c: without the lock ---- */

struct scratch *scratch_take(struct service *s); /* NULL: no memory */
void scratch_give(struct service *s, struct scratch *scratch);
void scratch_free_all(struct service *s);

#endif
