/* SPDX-License-Identifier: Apache-2.0
 *
 * The host tier in the service: what waits for copies between device and host, and what must not. A gate in the host
 * device's moves holds them until the test lets them go. PAGE-7, ACT-5, ACT-7, ACT-8, SRV-1, SRV-2, SRV-5, SRV-7,
 * HOST-7.
 */
#include <pthread.h>
#include <stdlib.h>

#include "core.h"
#include "device_host_hook.h"
#include "metrics.h"
#include "metrics_page.h"
#include "plan.h"
#include "segment.h"
#include "service_fixture.h"
#include "ui.h"

static struct fx fx;
static struct msg_reply r;

#define REQUEST(t, ...)                                                                                                \
    &(struct msg_request) { .type = (t), __VA_ARGS__ }
#define PAGES 96u
#define PAGE_BYTES 65536u

/* Pages of 64 KiB. */
static const struct fx_setup host = { .capacity_tokens = PAGES * 64, .more = "[host]\narena = 8MiB\nscrub = 0\n" };

static uint32_t ask(struct fx_peer *p, struct msg_request *q) { return fx_call(p, q, &r) ? r.status : UINT32_MAX; }

/* ---- the gate ------------------------------------------------------------------------------------ */

static struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool closed[2]; /* by direction */
    uint64_t last;  /* ticket that is let through; 0: any */
    bool lose;
    unsigned waiting;
} gate = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static int step(void *context, enum device_direction direction, uint64_t ticket, enum device_host_step at) {
    struct gate *g = context;
    (void)at;
    pthread_mutex_lock(&g->lock);
    g->waiting++;
    pthread_cond_broadcast(&g->changed);
    while (g->closed[direction] || (g->last && ticket > g->last)) pthread_cond_wait(&g->changed, &g->lock);
    g->waiting--;
    int lose = g->lose ? -1 : 0;
    pthread_mutex_unlock(&g->lock);
    return lose;
}

static void set_gate(enum device_direction direction, bool closed) {
    pthread_mutex_lock(&gate.lock);
    gate.closed[direction] = closed;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
}

/* A move stands before the gate. */
static void await_gate(void) {
    struct timespec end;
    int late = 0;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 60;
    pthread_mutex_lock(&gate.lock);
    while (!gate.waiting && !late) late = pthread_cond_timedwait(&gate.changed, &gate.lock, &end);
    KVT_TRUE(gate.waiting);
    pthread_mutex_unlock(&gate.lock);
}

static bool start(const struct fx_setup *setup) {
    static const struct device_host_hook hook = { step, &gate };
    gate.lose = false;
    gate.last = 0;
    set_gate(DEVICE_TO_HOST, false);
    set_gate(HOST_TO_DEVICE, false);
    device_host_set_hook(&hook);
    return fx_start(&fx, setup);
}

static void stop(void) {
    fx_stop(&fx);
    device_host_set_hook(NULL);
}

/* ---- content --------------------------------------------------------------------------------------- */

/* All of a page holds one byte. */
static bool page(uint32_t id, uint8_t byte, bool write) {
    uint8_t *base = (uint8_t *)(uintptr_t)service_info(fx.service)->pool[0].planes[0].local_address;
    const struct geom_pool_spec *spec = &fx.service->plan.spec.main;
    struct geom_piece piece;
    for (uint32_t i = 0; i < geom_piece_count(spec); i++) {
        geom_piece(spec, service_info(fx.service)->pool[0].pages, 0, id, i, &piece);
        if (write) memset(base + piece.region_offset, byte, piece.bytes);
        for (uint64_t k = 0; k < piece.bytes; k++)
            if (base[piece.region_offset + k] != byte) return false;
    }
    return true;
}

static const int32_t *row(uint32_t index) {
    return (const int32_t *)(uintptr_t)service_info(fx.service)->pool[0].table[0].local_address + (size_t)index * 64;
}

static bool row_holds(const struct kvd_activated *a, uint32_t n, uint8_t first) {
    for (uint32_t i = 0; i < n; i++)
        if (!KVT_TRUE(page((uint32_t)row(a->pool[0].row)[i], (uint8_t)(first + i), false))) return false;
    return true;
}

/* n full pages; page i holds first + i. */
static kvd_continuation retained(struct fx_peer *s, uint32_t n, uint8_t first) {
    struct kvd_activated a = { 0 };
    kvd_digest digests[PAGES];
    memset(digests, 0, sizeof digests);
    KVT_EQ(fx_activate(s, s->session, n * 64, 1, &a), KVD_OK);
    for (uint32_t i = 0; i < n; i++) {
        page((uint32_t)row(a.pool[0].row)[i], (uint8_t)(first + i), true);
        digests[i].bytes[0] = first;
        digests[i].bytes[1] = (uint8_t)i;
        digests[i].bytes[2] = 1;
    }
    KVT_EQ(fx_round(s, a.sequence, n * 64, KVD_UNCHANGED, NULL), KVD_OK);
    KVT_EQ(ask(s, REQUEST(FRAME_NAME_PAGES, .u.names = { a.sequence, 0, n, digests })), KVD_OK);
    KVT_EQ(ask(s, REQUEST(FRAME_FINISH, .u.finish = { .sequence = a.sequence, .retain = true })), KVD_OK);
    return r.u.finished.continuation;
}

static struct msg_request numbered(struct fx_peer *s, uint16_t type) {
    return (struct msg_request){ .type = type, .header = { .session = s->session, .sequence = ++s->sequence } };
}

static struct msg_request demote_of(struct fx_peer *s, kvd_continuation c) {
    struct msg_request q = numbered(s, FRAME_DEMOTE);
    q.u.demote.continuation = c;
    return q;
}

static struct msg_request fork_of(struct fx_peer *s, kvd_session_id worker, kvd_continuation from, uint32_t pages) {
    struct msg_request q = numbered(s, FRAME_ACTIVATE);
    q.u.activation = (struct kvd_activation){ .worker = worker,
                                              .from = from,
                                              .keep = true,
                                              .frontier = pages * 64,
                                              .prompt_tokens = pages * 64 + 1,
                                              .max_output_tokens = 1,
                                              .ensure = { pages * 64 + 1 } };
    return q;
}

static void demoted(struct fx_peer *s, kvd_continuation c) {
    struct msg_request q = demote_of(s, c);
    KVT_EQ(fx_call_as_is(s, &q, &r) ? r.status : UINT32_MAX, KVD_OK);
}

static struct kvd_continuation_info info_of(struct fx_peer *s, kvd_continuation c) {
    struct kvd_continuation_info none = { 0 };
    if (ask(s, REQUEST(FRAME_LIST_CONTINUATIONS)) != KVD_OK) return none;
    for (uint32_t i = 0; i < r.u.continuations.n; i++)
        if (r.u.continuations.items[i].continuation.bits == c.bits) return r.u.continuations.items[i];
    return none;
}

/* A frame has come for the peer: the service runs until then. */
static uint32_t await(struct fx_peer *p, uint16_t type) {
    if (!p->n) fx_settle(&fx, p);
    return KVT_TRUE(fx_reply(p, type, &r)) ? r.status : UINT32_MAX;
}

/* The life of a request that needs no copy. */
static void live(struct fx_peer *s) {
    struct kvd_activated a;
    KVT_EQ(fx_activate(s, s->session, 64, 64, &a), KVD_OK);
    KVT_EQ(fx_round(s, a.sequence, 64, 100, NULL), KVD_OK);
    KVT_EQ(fx_finish(s, a.sequence), KVD_OK);
}

/* ---- nobody waits behind copies ----------------------------------------------------------------------- */

/* Of the same session and of others; for more requests than the window has answers. The repeated one gets the one
 * answer. */
static void what_needs_no_copy_does_not_wait(void) {
    KVT_NEED(start(&host));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *other = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    kvd_continuation c = retained(s, 20, 1);
    set_gate(DEVICE_TO_HOST, true);
    struct msg_request q = demote_of(s, c);
    fx_send(s, &q);
    await_gate();
    for (int i = 0; i < 30; i++) live(s);
    live(other);
    struct kvd_stats stats = fx_stats(other);
    KVT_EQ(stats.moves, 1);
    KVT_EQ(stats.move_pages_left, 20);
    KVT_EQ(stats.demoted_continuations, 0);
    KVT_TRUE(info_of(s, c).moving);
    /* It is usable meanwhile. */
    struct msg_request fork = fork_of(s, s->session, c, 20);
    KVT_EQ(fx_call_as_is(s, &fork, &r) ? r.status : UINT32_MAX, KVD_OK);
    struct kvd_activated a = r.u.activated;
    row_holds(&a, 20, 1);
    KVT_EQ(fx_finish(s, a.sequence), KVD_OK);
    fx_send(s, &q); /* again: waits for the same answer */
    KVT_EQ(s->n, 0);
    set_gate(DEVICE_TO_HOST, false);
    uint8_t *frames[2];
    size_t bytes[2];
    fx_settle(&fx, s);
    for (int i = 0; i < 2; i++) KVT_NEED((frames[i] = fx_frame(s, &bytes[i])));
    KVT_EQ(bytes[0], bytes[1]);
    KVT_EQ_MEM(frames[0] + FRAME_HEADER, frames[1] + FRAME_HEADER, bytes[0] - FRAME_HEADER);
    for (int i = 0; i < 2; i++) free(frames[i]);
    for (int i = 0; i < 30; i++) live(s);
    KVT_NEED(fx_call_as_is(s, &q, &r)); /* and long afterwards, from memory */
    KVT_EQ(r.status, KVD_OK);
    KVT_EQ(r.u.moved.pages[0], 20);
    KVT_EQ(r.u.moved.bytes, 20 * 65536);
    stats = fx_stats(s);
    KVT_EQ(stats.demoted_pages, 20);
    KVT_EQ(stats.demoted_continuations, 1);
    fx_peer_free(s);
    fx_peer_free(other);
    stop();
}

/* Turns are taken chunk by chunk: the small one of two is done while the large one has most of its way before it. */
static void the_small_one_does_not_wait_for_the_large_one(void) {
    static const struct fx_setup large = { .layers = 16,
                                           .head_dim = 256,
                                           .capacity_tokens = PAGES * 64, /* 2 MiB a page */
                                           .more = "[host]\narena = 200MiB\nscrub = 0\n" };
    KVT_NEED(start(&large));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *other = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    kvd_continuation a = retained(s, 60, 1), b = retained(s, 4, 101);
    gate.last = 12; /* the large one has 15 chunks of 8 MiB, and as many at the device as that takes at once */
    set_gate(DEVICE_TO_HOST, true);
    struct msg_request first = demote_of(s, a), second = demote_of(other, b);
    fx_send(s, &first);
    fx_send(other, &second);
    await_gate();
    KVT_EQ(fx_stats(s).move_pages_left, 64);
    set_gate(DEVICE_TO_HOST, false);
    KVT_EQ(await(other, FRAME_DEMOTE), KVD_OK);
    KVT_EQ(s->n, 0);
    pthread_mutex_lock(&gate.lock);
    gate.last = 0;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
    KVT_EQ(await(s, FRAME_DEMOTE), KVD_OK);
    struct msg_request fork = fork_of(s, s->session, a, 60);
    KVT_EQ(fx_call_as_is(s, &fork, &r) ? r.status : UINT32_MAX, KVD_OK);
    struct kvd_activated made = r.u.activated;
    row_holds(&made, 60, 1);
    fx_peer_free(other);
    fx_peer_free(s);
    stop();
}

/* A session's places for what copies: a refusal in words, and what copies nothing goes on. */
static void places_of_a_session(void) {
    KVT_NEED(start(&host));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    kvd_continuation c[17];
    for (uint32_t i = 0; i < 17; i++) c[i] = retained(s, 2, (uint8_t)(1 + 2 * i));
    set_gate(DEVICE_TO_HOST, true);
    for (uint32_t i = 0; i < 16; i++) {
        struct msg_request q = demote_of(s, c[i]);
        fx_send(s, &q);
        KVT_EQ(s->n, 0);
    }
    struct msg_request q = demote_of(s, c[16]);
    KVT_EQ(fx_call_as_is(s, &q, &r) ? r.status : UINT32_MAX, KVD_RESOURCE_EXHAUSTED);
    KVT_HAS(r.message, "16 requests of this session wait for copies between device and host");
    live(s);
    struct fx_peer *other = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    set_gate(DEVICE_TO_HOST, false);
    demoted(other, c[16]); /* others have their own */
    for (uint32_t i = 0; i < 16; i++) KVT_EQ(await(s, FRAME_DEMOTE), KVD_OK);
    KVT_EQ(fx_stats(s).demoted_continuations, 17);
    fx_peer_free(other);
    fx_peer_free(s);
    stop();
}

/* SRV-1: the connection breaks before the answer; the next one gets it. */
static void the_answer_survives_its_connection(void) {
    KVT_NEED(start(&host));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *again = fx_peer_again(s);
    struct msg_request q = demote_of(s, retained(s, 4, 1));
    q.header.sequence = s->sequence;
    set_gate(DEVICE_TO_HOST, true);
    fx_send(s, &q);
    fx_cut(s);
    KVT_EQ(ask(again, REQUEST(FRAME_HELLO, .u.hello = { .protocol = KVD_PROTOCOL_VERSION,
                                                        .role = KVD_ROLE_SCHEDULER,
                                                        .name = "fx",
                                                        .resume = s->session,
                                                        .resume_secret = s->secret })),
           KVD_OK);
    fx_send(again, &q);
    KVT_EQ(again->n, 0);
    set_gate(DEVICE_TO_HOST, false);
    KVT_EQ(await(again, FRAME_DEMOTE), KVD_OK);
    KVT_EQ(r.u.moved.pages[0], 4);
    fx_peer_free(again);
    fx_peer_free(s);
    stop();
}

/* ---- transitions that meet ------------------------------------------------------------------------------- */

/* Two forks of what rests: the pages are brought once, the second one waits for the first, whether that succeeds or its
 * worker dies. */
static void pages_are_brought_once(void) {
    for (int dies = 0; dies < 2; dies++) {
        KVT_NEED(start(&host));
        struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *w = fx_session(&fx, KVD_ROLE_WORKER, 0);
        kvd_continuation c = retained(s, 12, 1);
        demoted(s, c);
        set_gate(HOST_TO_DEVICE, true);
        struct msg_request a = fork_of(s, w->session, c, 12), b = fork_of(s, s->session, c, 12);
        fx_send(s, &a);
        await_gate();
        fx_send(s, &b);
        fx_settle(&fx, NULL);
        KVT_EQ(s->n, 0);
        live(s);
        KVT_EQ(fx_stats(s).pool[0].allocated, 12 + 2); /* and the page beyond the frontier of each */
        if (dies) fx_kill(w);
        set_gate(HOST_TO_DEVICE, false);
        struct kvd_activated made = { 0 };
        for (int i = 0; i < 2; i++) {
            uint32_t status = await(s, FRAME_ACTIVATE);
            if (status == KVD_OK) made = r.u.activated;
            KVT_TRUE(status == KVD_OK || (dies && status == KVD_ABORTED));
        }
        KVT_EQ(fx_stats(s).sequences, dies ? 1 : 2);
        row_holds(&made, 12, 1);
        KVT_EQ(fx_finish(s, made.sequence), KVD_OK);
        fx_settle(&fx, NULL);
        fx_peer_free(w);
        fx_peer_free(s);
        stop();
    }
}

/* Forks that wait for the pages that another one brings get them in the order in which they came. */
static void who_waits_first_is_served_first(void) {
    KVT_NEED(start(&host));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    kvd_continuation c = retained(s, 12, 1);
    demoted(s, c);
    set_gate(HOST_TO_DEVICE, true);
    for (uint32_t pages = 12; pages > 4; pages--) {
        struct msg_request fork = fork_of(s, s->session, c, pages);
        fx_send(s, &fork);
        if (pages == 12) await_gate();
    }
    fx_settle(&fx, NULL);
    KVT_EQ(s->n, 0);
    set_gate(HOST_TO_DEVICE, false);
    for (uint32_t pages = 12; pages > 4; pages--) {
        KVT_EQ(await(s, FRAME_ACTIVATE), KVD_OK);
        KVT_EQ(r.u.activated.pool[0].membership, pages + 1);
    }
    fx_peer_free(s);
    stop();
}

/* Crosswise: each brings pages that the other needs, too. */
static void two_that_need_each_other(void) {
    KVT_NEED(start(&host));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    kvd_continuation trunk = retained(s, 8, 1);
    struct msg_request fork = fork_of(s, s->session, trunk, 4);
    fork.u.activation.prompt_tokens = 512;
    fork.u.activation.ensure[0] = 512;
    KVT_EQ(fx_call_as_is(s, &fork, &r) ? r.status : UINT32_MAX, KVD_OK);
    struct kvd_activated a = r.u.activated;
    kvd_digest digests[8] = { { { 0 } } };
    for (uint32_t i = 0; i < 8; i++) {
        digests[i].bytes[0] = i < 4 ? 1 : 77;
        digests[i].bytes[1] = (uint8_t)i;
        digests[i].bytes[2] = 1;
        if (i >= 4) page((uint32_t)row(a.pool[0].row)[i], (uint8_t)(101 + i), true);
    }
    KVT_EQ(fx_round(s, a.sequence, 512, KVD_UNCHANGED, NULL), KVD_OK);
    KVT_EQ(ask(s, REQUEST(FRAME_NAME_PAGES, .u.names = { a.sequence, 0, 8, digests })), KVD_OK);
    KVT_EQ(ask(s, REQUEST(FRAME_FINISH, .u.finish = { .sequence = a.sequence, .retain = true })), KVD_OK);
    kvd_continuation branch = r.u.finished.continuation;
    demoted(s, trunk);
    demoted(s, branch);
    KVT_EQ(fx_stats(s).pool[0].allocated, 0);
    set_gate(HOST_TO_DEVICE, true);
    struct msg_request first = fork_of(s, s->session, trunk, 8), second = fork_of(s, s->session, branch, 8);
    fx_send(s, &first);
    fx_send(s, &second);
    struct msg_request prefetch = numbered(s, FRAME_PREFETCH);
    prefetch.u.prefetch = branch;
    fx_send(s, &prefetch);
    await_gate();
    KVT_EQ(s->n, 0);
    set_gate(HOST_TO_DEVICE, false);
    uint32_t ok = 0;
    for (int i = 0; i < 3; i++) {
        if (!s->n) fx_settle(&fx, s);
        struct frame_head head;
        KVT_NEED(!frame_head_read(s->bytes, s->n, &head));
        KVT_NEED(fx_reply(s, head.type, &r));
        ok += r.status == KVD_OK;
        if (head.type == FRAME_ACTIVATE) {
            bool of_trunk = page((uint32_t)row(r.u.activated.pool[0].row)[7], 8, false);
            for (uint32_t p = 0; p < 8; p++)
                KVT_TRUE(page((uint32_t)row(r.u.activated.pool[0].row)[p],
                              (uint8_t)(of_trunk || p < 4 ? 1 + p : 101 + p), false));
        }
    }
    KVT_EQ(ok, 3);
    struct kvd_stats stats = fx_stats(s);
    KVT_EQ(stats.restored_pages, 12); /* each once */
    fx_peer_free(s);
    stop();
}

/* ---- death --------------------------------------------------------------------------------------------------- */

/* The requester's death does not stop the copies. */
static void a_move_goes_on_without_who_asked(void) {
    KVT_NEED(start(&host));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *o = fx_session(&fx, KVD_ROLE_OBSERVER, 0);
    kvd_continuation c = retained(s, 10, 1);
    set_gate(DEVICE_TO_HOST, true);
    struct msg_request q = demote_of(s, c);
    fx_send(s, &q);
    await_gate();
    fx_kill(s);
    KVT_EQ(fx_stats(o).moves, 1);
    set_gate(DEVICE_TO_HOST, false);
    while (fx_stats(o).moves) fx_settle(&fx, NULL);
    KVT_EQ(fx_stats(o).demoted_continuations, 1);
    KVT_EQ(fx_stats(o).pool[0].allocated, 0);
    fx_peer_free(s);
    fx_peer_free(o);
    stop();
}

/* ACT-5, ACT-9: its session ends before its victims gave way: it is undone, and its source is as it was. */
static void death_during_a_restore(void) {
    KVT_NEED(start(&host));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *o = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    kvd_continuation c = retained(s, 10, 1);
    demoted(s, c);
    struct kvd_stats before = fx_stats(o);
    set_gate(HOST_TO_DEVICE, true);
    struct msg_request q = fork_of(s, s->session, c, 10);
    fx_send(s, &q);
    await_gate();
    KVT_EQ(fx_stats(o).sequences, 1);
    fx_kill(s);
    set_gate(HOST_TO_DEVICE, false);
    while (fx_stats(o).sequences) fx_settle(&fx, NULL);
    struct kvd_stats after = fx_stats(o);
    KVT_EQ_MEM(&before.pool[0], &after.pool[0], sizeof before.pool[0]);
    KVT_EQ(after.demoted_continuations, 1);
    struct msg_request again = fork_of(o, o->session, c, 10);
    KVT_EQ(fx_call_as_is(o, &again, &r) ? r.status : UINT32_MAX, KVD_OK);
    struct kvd_activated a = r.u.activated;
    row_holds(&a, 10, 1);
    fx_peer_free(s);
    fx_peer_free(o);
    stop();
}

/* ---- cancel ---- */

/* A fork of the demoted `from`, whose pages find room only when the victims have gone: they go at begin. */
static struct msg_request in_place_of(struct fx_peer *s, kvd_session_id worker, kvd_continuation from,
                                      kvd_continuation victim) {
    static struct kvd_victim recipe;
    struct msg_request q = fork_of(s, worker, from, 20);
    recipe = (struct kvd_victim){ victim, false, 0 };
    q.u.activation.n_victims = 1;
    q.u.activation.victims = &recipe;
    return q;
}

static uint32_t cancelled(struct fx_peer *p, uint64_t number, kvd_sequence sequence) {
    return ask(p, REQUEST(FRAME_CANCEL, .u.cancel = { number, sequence }));
}

/* ACT-9, SRV-1: nobody waits for what an activation restores. A Cancel by its number, or by its sequence, ends it: what
 * it held is back, its source is as it was, and it is activated again. The message twice answers the same. */
static void act_9_a_cancel_ends_the_copies(void) {
    for (int by_sequence = 0; by_sequence < 2; by_sequence++) {
        KVT_NEED(start(&host));
        struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *o = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
        kvd_continuation c = retained(s, 48, 1);
        demoted(s, c);
        struct kvd_stats before = fx_stats(o);
        struct msg_request q = fork_of(s, s->session, c, 48);
        set_gate(HOST_TO_DEVICE, true);
        fx_send(s, &q);
        await_gate();
        KVT_EQ(ask(o, REQUEST(FRAME_LIST_SEQUENCES, .u.list.max = 4)), KVD_OK);
        kvd_sequence sequence = r.u.sequences.items[0].sequence;
        KVT_EQ(cancelled(o, 0, sequence), KVD_PERMISSION_DENIED); /* another session's */
        KVT_EQ(cancelled(o, q.header.sequence, (kvd_sequence){ 0 }), KVD_NOT_FOUND);
        struct msg_request cancel = numbered(s, FRAME_CANCEL);
        if (by_sequence) cancel.u.cancel.sequence = sequence;
        else cancel.u.cancel.activate = q.header.sequence;
        KVT_EQ(fx_call_as_is(s, &cancel, &r) ? r.status : UINT32_MAX, KVD_OK);
        KVT_EQ(fx_call_as_is(s, &cancel, &r) ? r.status : UINT32_MAX, KVD_OK);
        set_gate(HOST_TO_DEVICE, false);
        KVT_EQ(await(s, FRAME_ACTIVATE), KVD_CANCELLED);
        KVT_HAS(r.message, "Cancel");
        struct kvd_stats after = fx_stats(o);
        KVT_EQ_MEM(&before.pool[0], &after.pool[0], sizeof before.pool[0]);
        KVT_EQ(after.sequences + after.moves, 0);
        KVT_EQ(after.demoted_continuations, 1);
        KVT_EQ(fx_audit(&fx), 0);
        KVT_EQ(cancelled(s, q.header.sequence, (kvd_sequence){ 0 }), KVD_FAILED_PRECONDITION); /* it has ended */
        KVT_EQ(cancelled(s, 9999, (kvd_sequence){ 0 }), KVD_NOT_FOUND);
        KVT_EQ(cancelled(s, 1, sequence), KVD_INVALID_ARGUMENT);
        KVT_EQ(cancelled(s, 0, sequence), KVD_NOT_FOUND);
        struct msg_request again = fork_of(s, s->session, c, 48);
        KVT_EQ(fx_call_as_is(s, &again, &r) ? r.status : UINT32_MAX, KVD_OK);
        struct kvd_activated a = r.u.activated;
        row_holds(&a, 48, 1);
        KVT_EQ(cancelled(s, 0, a.sequence), KVD_FAILED_PRECONDITION);
        fx_peer_free(s);
        fx_peer_free(o);
        stop();
    }
}

/* ACT-9: an activation that waits for pages that another brings holds nothing as soon as it is cancelled; the other one
 * goes on. */
static void act_9_a_cancel_of_what_waits(void) {
    KVT_NEED(start(&host));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    kvd_continuation c = retained(s, 20, 1);
    demoted(s, c);
    set_gate(HOST_TO_DEVICE, true);
    struct msg_request prefetch = numbered(s, FRAME_PREFETCH), q;
    prefetch.u.prefetch = c;
    fx_send(s, &prefetch);
    await_gate();
    q = fork_of(s, s->session, c, 20);
    fx_send(s, &q);
    KVT_EQ(fx_stats(s).sequences, 1);
    KVT_EQ(cancelled(s, q.header.sequence, (kvd_sequence){ 0 }), KVD_OK);
    KVT_EQ(await(s, FRAME_ACTIVATE), KVD_CANCELLED); /* before the gate opens */
    KVT_EQ(fx_stats(s).sequences, 0);
    set_gate(HOST_TO_DEVICE, false);
    KVT_EQ(await(s, FRAME_PREFETCH), KVD_OK);
    KVT_EQ(r.u.moved.pages[0], 20);
    KVT_EQ(fx_audit(&fx), 0);
    fx_peer_free(s);
    stop();
}

/* ACT-9, TRUE-1: where victims went at begin the sentence says so; and whose session says goodbye, its activations are
 * cancelled. */
static void act_9_victims_and_goodbyes(void) {
    KVT_NEED(start(&host));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *o = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    kvd_continuation from = retained(s, 20, 1), victim;
    demoted(s, from);
    victim = retained(s, 60, 101);
    retained(s, 30, 201);
    set_gate(HOST_TO_DEVICE, true);
    struct msg_request q = in_place_of(s, s->session, from, victim);
    fx_send(s, &q);
    await_gate();
    KVT_EQ(cancelled(s, q.header.sequence, (kvd_sequence){ 0 }), KVD_OK);
    set_gate(HOST_TO_DEVICE, false);
    KVT_EQ(await(s, FRAME_ACTIVATE), KVD_CANCELLED);
    KVT_HAS(r.message, "; 1 continuation of its recipe had been released or shortened for it already");
    KVT_EQ(fx_stats(o).pool[0].available, PAGES - 30);
    set_gate(HOST_TO_DEVICE, true);
    q = fork_of(s, s->session, from, 20);
    fx_send(s, &q);
    await_gate();
    KVT_EQ(ask(s, REQUEST(FRAME_GOODBYE)), KVD_OK);
    set_gate(HOST_TO_DEVICE, false);
    while (fx_stats(o).sequences) fx_settle(&fx, NULL);
    KVT_EQ(fx_stats(o).pool[0].available, PAGES - 30);
    KVT_EQ(info_of(o, from).frontier, 20 * 64);
    KVT_EQ(fx_audit(&fx), 0);
    fx_peer_free(s);
    fx_peer_free(o);
    stop();
}

/* PAGE-7, INV-9: the end of one request's copies is not that of another's: the worker of an activation dies while a
 * prefetch is under way, which goes on, and what it answers for is there. */
static void death_of_one_cuts_nothing_of_another(void) {
    static const struct fx_setup large = { .layers = 16,
                                           .head_dim = 256,
                                           .capacity_tokens = PAGES * 64, /* 2 MiB a page */
                                           .more = "[host]\narena = 200MiB\nscrub = 0\n" };
    KVT_NEED(start(&large));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *w = fx_session(&fx, KVD_ROLE_WORKER, 0);
    kvd_continuation c = retained(s, 4, 1), d = retained(s, 48, 101); /* more than a direction takes at once */
    demoted(s, c);
    demoted(s, d);
    for (uint32_t id = 0; id < PAGES; id++) page(id, 0xee, true);
    set_gate(HOST_TO_DEVICE, true);
    struct msg_request fork = fork_of(s, w->session, c, 4), prefetch = numbered(s, FRAME_PREFETCH);
    prefetch.u.prefetch = d;
    fx_send(s, &fork);
    fx_send(s, &prefetch);
    await_gate();
    fx_kill(w);
    set_gate(HOST_TO_DEVICE, false);
    uint32_t ended = 0;
    for (int i = 0; i < 2; i++) {
        struct frame_head head;
        if (!s->n) fx_settle(&fx, s);
        KVT_NEED(!frame_head_read(s->bytes, s->n, &head));
        KVT_NEED(fx_reply(s, head.type, &r));
        KVT_EQ(r.status, head.type == FRAME_ACTIVATE ? KVD_ABORTED : KVD_OK);
        if (head.type == FRAME_PREFETCH) KVT_EQ(r.u.moved.pages[0], 48);
        ended += head.type;
    }
    KVT_EQ(ended, FRAME_ACTIVATE + FRAME_PREFETCH);
    struct msg_request again = fork_of(s, s->session, d, 48);
    KVT_EQ(fx_call_as_is(s, &again, &r) ? r.status : UINT32_MAX, KVD_OK);
    struct kvd_activated a = r.u.activated;
    row_holds(&a, 48, 101);
    fx_peer_free(w);
    fx_peer_free(s);
    stop();
}

/* ACT-8: a recipe is executed wholly or not at all: the owner dies after its victims gave way, and before. */
static void death_in_a_recipe(void) {
    for (int late = 0; late < 2; late++) {
        KVT_NEED(start(&(struct fx_setup){ .capacity_tokens = 4096, .concurrency = 1, .more = host.more }));
        struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *o = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
        kvd_continuation c = retained(s, 30, 1), victim = retained(s, 34, 101);
        demoted(s, c); /* 30 of 64 pages are free */
        struct msg_request q = fork_of(s, s->session, c, 30);
        q.u.activation.prompt_tokens = 40 * 64;
        q.u.activation.ensure[0] = 40 * 64;
        q.u.activation.n_victims = 1;
        q.u.activation.victims = &(struct kvd_victim){ victim, true, 0 };
        set_gate(late ? HOST_TO_DEVICE : DEVICE_TO_HOST, true);
        fx_send(s, &q);
        while (late && !info_of(o, victim).demoted && fx_stats(o).host_pages[0] < 64) fx_settle(&fx, NULL);
        await_gate();
        if (late) fx_settle(&fx, NULL);
        fx_kill(s);
        set_gate(HOST_TO_DEVICE, false);
        set_gate(DEVICE_TO_HOST, false);
        while (fx_stats(o).sequences) fx_settle(&fx, NULL);
        bool went = info_of(o, victim).demoted;
        if (!late) KVT_FALSE(went);
        KVT_EQ(fx_stats(o).pool[0].allocated, went ? 0 : 34);
        KVT_EQ(fx_stats(o).moves, 0);
        struct msg_request again = fork_of(o, o->session, victim, 34);
        again.u.activation.keep = false;
        KVT_EQ(fx_call_as_is(o, &again, &r) ? r.status : UINT32_MAX, KVD_OK);
        struct kvd_activated a = r.u.activated;
        row_holds(&a, 34, 101);
        fx_peer_free(s);
        fx_peer_free(o);
        stop();
    }
}

/* ACT-5, SRV-2: all places are taken before anything begins, so that a refusal for want of one leaves the victims. */
static void refused_for_want_of_a_place(void) {
    KVT_NEED(start(&host));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *o = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    kvd_continuation c[16], from = retained(s, 20, 1), victim;
    demoted(s, from);
    victim = retained(s, 50, 101);
    for (uint32_t i = 0; i < 16; i++) c[i] = retained(s, 2, (uint8_t)(201 + 2 * i));
    set_gate(DEVICE_TO_HOST, true);
    for (uint32_t i = 0; i < 16; i++) {
        struct msg_request q = demote_of(s, c[i]);
        fx_send(s, &q);
    }
    struct kvd_stats before = fx_stats(o);
    struct msg_request q = in_place_of(s, s->session, from, victim);
    KVT_EQ(fx_call_as_is(s, &q, &r) ? r.status : UINT32_MAX, KVD_RESOURCE_EXHAUSTED);
    KVT_HAS(r.message, "16 requests of this session wait for copies between device and host");
    struct kvd_stats after = fx_stats(o);
    KVT_EQ_MEM(&before.pool[0], &after.pool[0], sizeof before.pool[0]);
    KVT_EQ(after.continuations, before.continuations);
    KVT_EQ(after.revision, before.revision);
    KVT_EQ(info_of(s, victim).frontier, 50 * 64);
    set_gate(DEVICE_TO_HOST, false);
    for (uint32_t i = 0; i < 16; i++) KVT_EQ(await(s, FRAME_DEMOTE), KVD_OK);
    struct msg_request again = in_place_of(s, s->session, from, victim); /* and now it succeeds */
    KVT_EQ(fx_call_as_is(s, &again, &r) ? r.status : UINT32_MAX, KVD_OK);
    struct kvd_activated a = r.u.activated;
    row_holds(&a, 20, 1);
    fx_peer_free(s);
    fx_peer_free(o);
    stop();
}

/* ACT-8: where victims had to go at begin the recipe is executed wholly, whoever dies meanwhile. */
static void death_after_victims_went_at_begin(void) {
    KVT_NEED(start(&host));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *w = fx_session(&fx, KVD_ROLE_WORKER, 0);
    kvd_continuation from = retained(s, 20, 1), victim;
    demoted(s, from);
    victim = retained(s, 60, 101);
    kvd_continuation other = retained(s, 30, 201);
    set_gate(HOST_TO_DEVICE, true);
    struct msg_request q = in_place_of(s, w->session, from, victim);
    fx_send(s, &q);
    await_gate();
    KVT_EQ(fx_stats(s).continuations, 2);
    fx_kill(w);
    set_gate(HOST_TO_DEVICE, false);
    KVT_EQ(await(s, FRAME_ACTIVATE), KVD_OK);
    KVT_EQ(r.u.activated.restored[0], 20);
    KVT_EQ(fx_stats(s).sequences, 0); /* it ended with its worker, and what it had is equal to its source */
    KVT_EQ(fx_stats(s).continuations, 2);
    KVT_EQ(info_of(s, victim).frontier, 0);
    KVT_EQ(info_of(s, other).frontier, 30 * 64);
    fx_peer_free(w);
    fx_peer_free(s);
    stop();
}

/* SRV-2: damage shows after the victims went; then the refusal says what went. */
static void damage_after_victims_went_at_begin(void) {
    KVT_NEED(start(&host));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    kvd_continuation from = retained(s, 20, 1);
    demoted(s, from);
    kvd_continuation victim = retained(s, 60, 101);
    retained(s, 30, 201);
    segment_arena(fx.service->segment)[PAGE_BYTES / 2] ^= 1; /* of one of the only pages there */
    struct msg_request q = in_place_of(s, s->session, from, victim);
    KVT_EQ(fx_call_as_is(s, &q, &r) ? r.status : UINT32_MAX, KVD_DATA_LOSS);
    KVT_HAS(r.message, "; 1 continuation of its recipe had been released or shortened for it already");
    KVT_EQ(fx_stats(s).continuations, 1);
    KVT_EQ(fx_stats(s).pool[0].available, PAGES - 30);
    fx_peer_free(s);
    stop();
}

/* A device that is lost in the middle: everybody is told, nothing is published. */
static void a_lost_device(void) {
    for (int in = 0; in < 2; in++) {
        KVT_NEED(start(&host));
        struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
        kvd_continuation c = retained(s, 10, 1);
        if (in) demoted(s, c);
        set_gate(in ? HOST_TO_DEVICE : DEVICE_TO_HOST, true);
        struct msg_request q = in ? fork_of(s, s->session, c, 10) : demote_of(s, c);
        fx_send(s, &q);
        await_gate();
        gate.lose = true;
        set_gate(in ? HOST_TO_DEVICE : DEVICE_TO_HOST, false);
        KVT_EQ(await(s, q.type), KVD_UNAVAILABLE);
        KVT_HAS(r.message, "device");
        KVT_TRUE(service_lost(fx.service, NULL, 0));
        KVT_EQ(fx_stats(s).moves, 0);
        KVT_EQ(fx_stats(s).demoted_continuations, in);
        struct msg_request more = demote_of(s, c);
        KVT_EQ(fx_call_as_is(s, &more, &r) ? r.status : UINT32_MAX, KVD_UNAVAILABLE);
        fx_peer_free(s);
        stop();
    }
}

/* ---- refusals --------------------------------------------------------------------------------------------------- */

static void refusals_in_words(void) {
    KVT_NEED(start(&host));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *w = fx_session(&fx, KVD_ROLE_WORKER, 0),
                   *o = fx_session(&fx, KVD_ROLE_OBSERVER, 0);
    kvd_continuation c = retained(s, 3, 1), none = { UINT64_C(7) << 32 };
    KVT_EQ(ask(w, REQUEST(FRAME_DEMOTE, .u.demote = { .continuation = c })), KVD_PERMISSION_DENIED);
    KVT_EQ(ask(o, REQUEST(FRAME_PREFETCH, .u.prefetch = c)), KVD_PERMISSION_DENIED);
    KVT_EQ(ask(w, REQUEST(FRAME_DROP, .u.drop = { c, KVD_TIER_HOST })), KVD_PERMISSION_DENIED);
    KVT_EQ(ask(s, REQUEST(FRAME_DEMOTE, .u.demote = { .continuation = none })), KVD_NOT_FOUND);
    KVT_EQ(ask(s, REQUEST(FRAME_PREFETCH, .u.prefetch = none)), KVD_NOT_FOUND);
    KVT_EQ(ask(s, REQUEST(FRAME_DROP, .u.drop = { none, KVD_TIER_HOST })), KVD_NOT_FOUND);
    KVT_EQ(ask(s, REQUEST(FRAME_DROP, .u.drop = { c, KVD_TIER_DEVICE })), KVD_FAILED_PRECONDITION);
    KVT_HAS(r.message, "3 have none: copy them first");
    struct msg_request q = numbered(s, FRAME_DEMOTE);
    q.header.sequence = 0, s->sequence--;
    KVT_EQ(fx_call_as_is(s, &q, &r) ? r.status : UINT32_MAX, KVD_INVALID_ARGUMENT); /* it changes things */
    struct kvd_stats stats = fx_stats(s);
    KVT_EQ(stats.host_occupied, 0);
    KVT_EQ(stats.pool[0].allocated, 3);
    /* Claimed by an activation in flight. */
    demoted(s, c);
    set_gate(HOST_TO_DEVICE, true);
    struct msg_request move = fork_of(s, s->session, c, 3);
    move.u.activation.keep = false;
    fx_send(s, &move);
    await_gate();
    struct fx_peer *other = fx_session(&fx, KVD_ROLE_ADMIN, 0);
    KVT_EQ(ask(other, REQUEST(FRAME_DEMOTE, .u.demote = { .continuation = c })), KVD_ABORTED);
    KVT_EQ(ask(other, REQUEST(FRAME_RELEASE, .u.continuation.continuation = c)), KVD_ABORTED);
    set_gate(HOST_TO_DEVICE, false);
    KVT_EQ(await(s, FRAME_ACTIVATE), KVD_OK);
    fx_peer_free(other);
    fx_peer_free(o);
    fx_peer_free(w);
    fx_peer_free(s);
    stop();
    KVT_NEED(start(NULL)); /* HOST-7 */
    s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    KVT_EQ(ask(s, REQUEST(FRAME_DEMOTE, .u.demote = { .continuation = none })), KVD_FAILED_PRECONDITION);
    KVT_HAS(r.message, "there is no host arena; set arena = in section [host]");
    KVT_EQ(ask(s, REQUEST(FRAME_PREFETCH, .u.prefetch = none)), KVD_FAILED_PRECONDITION);
    KVT_EQ(ask(s, REQUEST(FRAME_DROP, .u.drop = { none, KVD_TIER_HOST })), KVD_FAILED_PRECONDITION);
    fx_peer_free(s);
    stop();
}

/* ---- orderly stop
 * --------------------------------------------------------------------------------------------------- */

/* What is on the device alone goes, told step by step; what comes too late is left, and the sum is right. */
static void orderly_stop(void) {
    for (int late = 0; late < 2; late++) {
        KVT_NEED(start(&(struct fx_setup){ .capacity_tokens = PAGES * 64,
                                           .more = late ? "[host]\narena = 8MiB\nscrub = 0\nstop_time = 0ms\n"
                                                        : "[host]\narena = 8MiB\nscrub = 0\nstop_time = 1000s\n" }));
        struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
        struct service_stop told = { 0 };
        struct kvd_activated a;
        for (uint32_t i = 0; i < 12; i++) retained(s, 4, (uint8_t)(1 + 4 * i));
        KVT_EQ(fx_activate(s, s->session, 64, 64, &a), KVD_OK);
        set_gate(DEVICE_TO_HOST, true);
        service_stop_begin(fx.service);
        service_stop_step(fx.service, &told);
        if (!late) {
            KVT_EQ(told.sequences, 1); /* it is waited for */
            KVT_EQ(told.left, 0);
            KVT_EQ(ask(s, REQUEST(FRAME_YIELD)), KVD_OK);
            service_stop_step(fx.service, &told);
            KVT_EQ(told.sequences, 0);
            KVT_FALSE(told.over);
            KVT_EQ(told.left, 12);
            KVT_EQ(told.pages_left, 8 * 4); /* so many at once */
        }
        set_gate(DEVICE_TO_HOST, false);
        while (!told.over) {
            fx_settle(&fx, NULL);
            service_stop_step(fx.service, &told);
        }
        KVT_EQ(told.demoted, late ? 0 : 12);
        KVT_EQ(told.demoted + told.left, 12);
        KVT_EQ(told.not_fitting, 0);
        if (late) KVT_EQ(ask(s, REQUEST(FRAME_YIELD)), KVD_OK);
        fx_settle(&fx, NULL);
        fx_peer_free(s);
        stop();
    }
}

/* ---- figures
 * ------------------------------------------------------------------------------------------------------ */

static double figure(const char *series) {
    size_t bytes, n = strlen(series);
    char *text = metrics_page(fx.service, &bytes);
    const char *at = text;
    while (at && (at = strstr(at, series)) && (at[-1] != '\n' || at[n] != ' ')) at++;
    double value = KVT_TRUE(at != NULL) ? strtod(at + n, NULL) : -1;
    free(text);
    return value;
}

#define FIGURE(series, wanted) KVT_NEAR(figure(series), wanted, 0)

/* Prompt tokens by where they came from add up exactly; so does what was moved. */
static void figures_add_up(void) {
    KVT_NEED(start(&host));
    FIGURE("kvd_activated_tokens_total{tier=\"host\"}", 0); /* every series from the first page */
    FIGURE("kvd_recovered_continuations{outcome=\"kept\"}", 0);
    FIGURE("kvd_lost_continuations_total", 0);
    FIGURE("kvd_arena_bytes", 8 << 20);
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    kvd_continuation c = retained(s, 10, 1);
    struct msg_request device = fork_of(s, s->session, c, 10);
    KVT_EQ(fx_call_as_is(s, &device, &r) ? r.status : UINT32_MAX, KVD_OK);
    KVT_EQ(fx_finish(s, r.u.activated.sequence), KVD_OK);
    demoted(s, c);
    set_gate(HOST_TO_DEVICE, true);
    struct msg_request part = fork_of(s, s->session, c, 10);
    part.u.activation.frontier = 600; /* nine pages and 24 tokens of the tenth */
    part.u.activation.prompt_tokens = 620;
    part.u.activation.ensure[0] = 620;
    fx_send(s, &part);
    await_gate();
    FIGURE("kvd_moving{direction=\"restored\"}", 1);
    FIGURE("kvd_moves", 1);
    FIGURE("kvd_move_pages_left", 10);
    FIGURE("kvd_arena_pages{pool=\"main\"}", 10);
    FIGURE("kvd_demoted_continuations", 1);
    set_gate(HOST_TO_DEVICE, false);
    KVT_EQ(await(s, FRAME_ACTIVATE), KVD_OK);
    KVT_EQ(r.u.activated.restored[0], 10);
    FIGURE("kvd_activated_prompt_tokens_total", 640 + 641 + 620);
    FIGURE("kvd_activated_reused_tokens_total", 640 + 600);
    FIGURE("kvd_activated_tokens_total{tier=\"device\"}", 640);
    FIGURE("kvd_activated_tokens_total{tier=\"host\"}", 600);
    FIGURE("kvd_activated_tokens_total{tier=\"computed\"}", 640 + 1 + 20);
    FIGURE("kvd_moved_pages_total{direction=\"demoted\"}", 10);
    FIGURE("kvd_moved_pages_total{direction=\"restored\"}", 10);
    FIGURE("kvd_moved_bytes_total{direction=\"demoted\"}", 10 * 65536);
    FIGURE("kvd_arena_occupied_bytes", 10 * 65536);
    FIGURE("kvd_arena_largest_free_bytes", (8 << 20) - 10 * 65536);
    KVT_TRUE(figure("kvd_moved_seconds_total{direction=\"demoted\"}") > 0);
    size_t bytes;
    char *page_of_metrics = metrics_page(fx.service, &bytes),
         *state = ui_state(fx.service, page_of_metrics, "", &bytes);
    KVT_HAS(state, "\"arena\":{\"capacity\":8388608,\"occupied\":655360,");
    free(state);
    free(page_of_metrics);
    fx_peer_free(s);
    stop();
}

/* What kvd --plan says of the arena. */
static void plan_of_the_arena(void) {
    char *text = NULL;
    size_t bytes;
    KVT_NEED(start(&(struct fx_setup){
        .ranks = 2, .capacity_tokens = PAGES * 64, .backend = "mtp", .more = "[host]\narena = 8MiB\nscrub = 0\n" }));
    struct config config = service_config(fx.service);
    FILE *out = open_memstream(&text, &bytes);
    plan_print(out, &config, &fx.service->plan, NULL, false);
    fclose(out);
    KVT_HAS(text, "Host arena: 8.0 MiB for 5440 tokens");
    KVT_HAS(text, "main pool: a page takes 64.0 KiB; 128 fit of these alone");
    KVT_HAS(text, "draft pool: a page takes 32.0 KiB; 256 fit of these alone");
    free(text);
    stop();
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(what_needs_no_copy_does_not_wait),
                                             KVT_CASE(the_small_one_does_not_wait_for_the_large_one),
                                             KVT_CASE(places_of_a_session),
                                             KVT_CASE(the_answer_survives_its_connection),
                                             KVT_CASE(pages_are_brought_once),
                                             KVT_CASE(who_waits_first_is_served_first),
                                             KVT_CASE(two_that_need_each_other),
                                             KVT_CASE(a_move_goes_on_without_who_asked),
                                             KVT_CASE(death_during_a_restore),
                                             KVT_CASE(death_of_one_cuts_nothing_of_another),
                                             KVT_CASE(death_in_a_recipe),
                                             KVT_CASE(act_9_a_cancel_ends_the_copies),
                                             KVT_CASE(act_9_a_cancel_of_what_waits),
                                             KVT_CASE(act_9_victims_and_goodbyes),
                                             KVT_CASE(refused_for_want_of_a_place),
                                             KVT_CASE(death_after_victims_went_at_begin),
                                             KVT_CASE(damage_after_victims_went_at_begin),
                                             KVT_CASE(a_lost_device),
                                             KVT_CASE(refusals_in_words),
                                             KVT_CASE(orderly_stop),
                                             KVT_CASE(figures_add_up),
                                             KVT_CASE(plan_of_the_arena),
                                             { 0 } };
    return kvt_main("service_host", cases, argc, argv);
}
