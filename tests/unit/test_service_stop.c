/* SPDX-License-Identifier: Apache-2.0
 *
 * An orderly stop beside moves that clients have asked for (CONT-3), and the order in which sums are computed. SRV-1,
 * SRV-2, SRV-7.
 */
#include <pthread.h>
#include <stdlib.h>

#include "checksum.h"
#include "device_host_hook.h"
#include "service_fixture.h"

#define REQUEST(t, ...)                                                                                                \
    &(struct msg_request) { .type = (t), __VA_ARGS__ }
#define CLIENTS 4u
#define EACH 16u

static struct fx fx;
static struct msg_reply r;

/* ---- the gate ------------------------------------------------------------------------------------ */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool closed;

static int wait_at_gate(void *context, enum device_direction direction, uint64_t ticket, enum device_host_step at) {
    (void)context, (void)direction, (void)ticket, (void)at;
    pthread_mutex_lock(&lock);
    while (closed) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return 0;
}

static void close_gate(bool on) {
    pthread_mutex_lock(&lock);
    closed = on;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void start(void) {
    static const struct device_host_hook hook = { wait_at_gate, NULL };
    device_host_set_hook(&hook);
    KVT_TRUE(fx_start(&fx, &(struct fx_setup){ .more = "[host]\narena = 8MiB\nscrub = 0\nstop_time = 1000s\n" }));
}

static uint32_t ask(struct fx_peer *p, struct msg_request *q) { return fx_call(p, q, &r) ? r.status : UINT32_MAX; }

static kvd_continuation retained(struct fx_peer *s, uint8_t name) {
    struct kvd_activated a = { 0 };
    kvd_digest digest = { { name, 1 } };
    KVT_EQ(fx_activate(s, s->session, 64, 1, &a), KVD_OK);
    KVT_EQ(fx_round(s, a.sequence, 64, KVD_UNCHANGED, NULL), KVD_OK);
    KVT_EQ(ask(s, REQUEST(FRAME_NAME_PAGES, .u.names = { a.sequence, 0, 1, &digest })), KVD_OK);
    KVT_EQ(ask(s, REQUEST(FRAME_FINISH, .u.finish = { .sequence = a.sequence, .retain = true })), KVD_OK);
    return r.u.finished.continuation;
}

static void send_demote(struct fx_peer *p, kvd_continuation c) {
    fx_send(p, REQUEST(FRAME_DEMOTE, .header = { .session = p->session, .sequence = ++p->sequence },
                       .u.demote = { c, false }));
}

static struct service_stop stopped(void) {
    struct service_stop stop = { .over = false };
    while (!stop.over) {
        fx_settle(&fx, NULL);
        service_stop_step(fx.service, &stop);
    }
    return stop;
}

/* As many moves as there may be are under way for clients; one continuation more is to be demoted. */
static void the_stop_waits_for_moves_of_clients(void) {
    struct fx_peer *client[CLIENTS];
    kvd_continuation c[CLIENTS * EACH + 1];
    struct service_stop stop;
    start();
    for (uint32_t i = 0; i < CLIENTS; i++) client[i] = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    for (uint32_t i = 0; i <= CLIENTS * EACH; i++) c[i] = retained(client[0], (uint8_t)i);
    close_gate(true);
    for (uint32_t i = 0; i < CLIENTS * EACH; i++) send_demote(client[i / EACH], c[i]);
    service_stop_begin(fx.service);
    for (int i = 0; i < 10; i++) {
        service_stop_step(fx.service, &stop);
        KVT_FALSE(stop.over);
    }
    KVT_EQ(stop.not_fitting, 0);
    close_gate(false);
    stop = stopped();
    KVT_EQ(stop.left, 0);
    KVT_EQ(stop.not_fitting, 0);
    for (uint32_t i = 0; i < CLIENTS; i++) fx_peer_free(client[i]);
    struct fx_peer *look = fx_session(&fx, KVD_ROLE_OBSERVER, 0);
    struct kvd_stats stats = fx_stats(look);
    KVT_EQ(stats.demoted_continuations, CLIENTS * EACH + 1);
    KVT_EQ(stats.moves, 0);
    fx_peer_free(look);
    fx_stop(&fx);
    device_host_set_hook(NULL);
}

/* A move that a client began last is waited for, too, where the stop itself has nothing to do. */
static void the_stop_waits_for_the_last_move(void) {
    struct service_stop stop;
    start();
    struct fx_peer *client = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    kvd_continuation c = retained(client, 1);
    close_gate(true);
    send_demote(client, c);
    service_stop_begin(fx.service);
    for (int i = 0; i < 10; i++) {
        service_stop_step(fx.service, &stop);
        KVT_FALSE(stop.over);
    }
    close_gate(false);
    stop = stopped();
    KVT_EQ(stop.left, 0);
    KVT_TRUE(fx_reply(client, FRAME_DEMOTE, &r));
    KVT_EQ(r.status, KVD_OK);
    fx_peer_free(client);
    fx_stop(&fx);
    device_host_set_hook(NULL);
}

/* KEEP-2: an orderly stop into an arena of three pages keeps the three that are worth most, by retention, then by last
 * use; what lies in the arena already is no better for that. */
static void keep_2_the_most_valuable_survive(void) {
    static const uint32_t retention[5] = { 0, 5, 0, 9, 0 };
    static const bool survives[5] = { false, true, false, true, true };
    kvd_continuation c[5];
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .more = "[host]\narena = 192KiB\nscrub = 0\nstop_time = 1000s\n" }));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    for (uint8_t i = 0; i < 5; i++) c[i] = retained(s, i);
    for (uint32_t i = 0; i < 5; i++) {
        KVT_EQ(ask(s, REQUEST(FRAME_SET_RETENTION, .u.continuation = { c[i], retention[i] })), KVD_OK);
        if (i > 2) continue;
        send_demote(s, c[i]);
        fx_settle(&fx, s);
        KVT_TRUE(fx_reply(s, FRAME_DEMOTE, &r) && KVT_EQ(r.status, KVD_OK));
    }
    KVT_EQ(fx_stats(s).demoted_continuations, 3);
    service_stop_begin(fx.service);
    struct service_stop stop = stopped();
    KVT_EQ(stop.released, 2);
    KVT_EQ(stop.demoted, 2);
    for (uint32_t i = 0; i < 5; i++) /* it is there, or it is not */
        KVT_EQ(ask(s, REQUEST(FRAME_SET_RETENTION, .u.continuation = { c[i], retention[i] })),
               survives[i] ? KVD_OK : KVD_NOT_FOUND);
    KVT_EQ(fx_stats(s).demoted_continuations, 3);
    fx_peer_free(s);
    fx_stop(&fx);
}

/* Without an arena a stop counts what goes with the process. */
static void the_stop_counts_what_it_loses(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *client = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct kvd_activated running;
    retained(client, 1);
    retained(client, 2);
    KVT_EQ(fx_activate(client, client->session, 64, 64, &running), KVD_OK);
    service_stop_begin(fx.service);
    struct service_stop stop = stopped();
    KVT_EQ(stop.left, 2);
    KVT_EQ(stop.sequences, 1);
    KVT_EQ(stop.demoted, 0);
    fx_peer_free(client);
    fx_stop(&fx);
}

/* A stop in the middle of the sums: who computes them has ended before the arena goes. */
static void a_stop_in_the_middle_of_sums(void) {
    for (uint32_t i = 0; i < 20; i++) {
        KVT_TRUE(fx_start(&fx, &(struct fx_setup){ .layers = 8,
                                                   .head_dim = 256,
                                                   .capacity_tokens = 4096,
                                                   .concurrency = 1,
                                                   .more = "[host]\narena = 64MiB\nscrub = 0\nthreads = 1\n" }));
        struct fx_peer *client = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
        struct kvd_activated a = { 0 };
        kvd_digest digests[60] = { { { 1 } } };
        KVT_EQ(fx_activate(client, client->session, 60 * 64, 1, &a), KVD_OK);
        KVT_EQ(fx_round(client, a.sequence, 60 * 64, KVD_UNCHANGED, NULL), KVD_OK);
        for (uint32_t k = 0; k < 60; k++) digests[k] = (kvd_digest){ { (uint8_t)k, 2 } };
        KVT_EQ(ask(client, REQUEST(FRAME_NAME_PAGES, .u.names = { a.sequence, 0, 60, digests })), KVD_OK);
        KVT_EQ(ask(client, REQUEST(FRAME_FINISH, .u.finish = { .sequence = a.sequence, .retain = true })), KVD_OK);
        send_demote(client, r.u.finished.continuation);
        for (uint32_t k = 0; k < i; k++) service_run(fx.service);
        fx_peer_free(client);
        fx.service = service_free(fx.service); /* at once: the audit would wait */
        fx_stop(&fx);
    }
}

/* SRV-7: a connection that has closed is let go of at once, whatever stands still behind its requests: a stop closes
 * all of them, and would wait for a device that does not answer. SRV-1: who asks again is answered. */
static void no_connection_is_kept_for_a_copy(void) {
    start();
    struct fx_peer *client = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *peer[2];
    kvd_continuation c = retained(client, 1);
    struct msg_request q = { .type = FRAME_DEMOTE,
                             .header = { .session = client->session, .sequence = client->sequence + 1 },
                             .u.demote.continuation = c };
    close_gate(true);
    fx_send(client, &q);
    fx_cut(client);
    KVT_EQ(atomic_load(&client->link.refs), 1); /* the transport's own */
    for (int i = 0; i < 2; i++) {               /* the second one takes the session over from the first */
        peer[i] = fx_peer_again(client);
        KVT_EQ(ask(peer[i], REQUEST(FRAME_HELLO, .u.hello = { .protocol = KVD_PROTOCOL_VERSION,
                                                              .role = KVD_ROLE_SCHEDULER,
                                                              .name = "fx",
                                                              .resume = client->session,
                                                              .resume_secret = client->secret })),
               KVD_OK);
        fx_send(peer[i], &q);
        KVT_EQ(peer[i]->n, 0); /* it waits */
    }
    KVT_TRUE(peer[0]->closed);
    KVT_EQ(atomic_load(&peer[0]->link.refs), 1);
    close_gate(false);
    fx_settle(&fx, peer[1]);
    KVT_TRUE(fx_reply(peer[1], FRAME_DEMOTE, &r));
    KVT_EQ(r.status, KVD_OK);
    KVT_EQ(r.u.moved.pages[0], 1);
    for (int i = 0; i < 2; i++) fx_peer_free(peer[i]);
    fx_peer_free(client);
    fx_stop(&fx);
    device_host_set_hook(NULL);
}

/* SRV-2, CONT-3: what drains still moves what it is told to; what stops has its own order, and a client neither takes
 * room and time from it nor drops what it has brought to safety. */
static void places_while_it_drains_and_while_it_stops(void) {
    start();
    struct fx_peer *admin = fx_session(&fx, KVD_ROLE_ADMIN, 0);
    kvd_continuation c[2] = { retained(admin, 1), retained(admin, 2) };
    KVT_EQ(ask(admin, REQUEST(FRAME_DRAIN, .u.drain = true)), KVD_OK);
    KVT_EQ(ask(admin, REQUEST(FRAME_DEMOTE, .u.demote = { c[0], false })), KVD_OK);
    KVT_EQ(ask(admin, REQUEST(FRAME_PREFETCH, .u.prefetch = c[0])), KVD_OK);
    KVT_EQ(ask(admin, REQUEST(FRAME_DROP, .u.drop = { c[0], KVD_TIER_HOST })), KVD_OK);
    KVT_EQ(ask(admin, REQUEST(FRAME_DEMOTE, .u.demote = { c[0], true })), KVD_OK);
    KVT_EQ(ask(admin, REQUEST(FRAME_DRAIN, .u.drain = false)), KVD_OK);
    KVT_FALSE(fx_stats(admin).draining);
    service_stop_begin(fx.service);
    KVT_TRUE(fx_stats(admin).draining);
    struct msg_request tries[] = { { .type = FRAME_DEMOTE, .u.demote = { c[1], false } },
                                   { .type = FRAME_PREFETCH, .u.prefetch = c[0] },
                                   { .type = FRAME_DROP, .u.drop = { c[0], KVD_TIER_HOST } } };
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        KVT_EQ(ask(admin, &tries[i]), KVD_UNAVAILABLE);
        KVT_HAS(r.message, "kvd stops, and demotes by itself");
    }
    KVT_EQ(stopped().left, 0);
    KVT_EQ(fx_stats(admin).host_pages[0], 2);
    fx_peer_free(admin);
    fx_stop(&fx);
    device_host_set_hook(NULL);
}

/* A worker that yields inside the delivery of the event: nothing can come between. */
static bool (*post_of_the_fixture)(struct link *, const uint8_t *, size_t, bool);
static struct fx_peer *yielding;
static uint32_t yielded;

static bool yield_at_once(struct link *link, const uint8_t *frame, size_t bytes, bool event) {
    bool taken = post_of_the_fixture(link, frame, bytes, event);
    struct kvd_event e;
    if (!event || link != &yielding->link) return taken;
    KVT_TRUE(fx_event(yielding, &e));
    KVT_EQ(e.kind, KVD_EVENT_DRAINING);
    KVT_EQ(ask(yielding, &(struct msg_request){ .type = FRAME_YIELD }), KVD_OK);
    yielded += r.u.yielded;
    return taken;
}

/* CONT-3: a stop marks what ends before it tells anybody, and it tells also where a Drain was told before; so a worker
 * that yields at once yields all that it drives, and the stop does not wait for a quarter of its time. */
static void who_yields_at_once_yields_all(void) {
    for (int drained = 0; drained < 2; drained++) {
        struct kvd_activated a;
        struct service_stop stop;
        start();
        struct fx_peer *admin = fx_session(&fx, KVD_ROLE_ADMIN, 0), *worker = fx_session(&fx, KVD_ROLE_WORKER, 0);
        struct link_ops ops = *worker->link.ops;
        post_of_the_fixture = ops.post;
        ops.post = yield_at_once;
        for (uint32_t i = 0; i < 3; i++) KVT_EQ(fx_activate(admin, worker->session, 64, 1, &a), KVD_OK);
        if (drained) KVT_EQ(ask(admin, REQUEST(FRAME_DRAIN, .u.drain = true)), KVD_OK);
        KVT_EQ(ask(worker, REQUEST(FRAME_SUBSCRIBE, .u.event_mask = KVD_EVENT_MASK(KVD_EVENT_DRAINING))), KVD_OK);
        worker->link.ops = &ops;
        yielding = worker;
        yielded = 0;
        service_stop_begin(fx.service);
        KVT_EQ(yielded, 3);
        service_stop_step(fx.service, &stop);
        KVT_EQ(stop.sequences, 0);
        KVT_TRUE(stop.over);
        fx_peer_free(worker);
        fx_peer_free(admin);
        fx_stop(&fx);
        device_host_set_hook(NULL);
    }
}

/* ---- sums ----------------------------------------------------------------------------------------- */

/* Pages on their way to the device come first, but those on their way out have a turn beside them: a stream of restores
 * never stops a demotion. */
static void sums_of_both_directions(void) {
    static uint8_t bytes[1 << 20];
    static struct checksum_batch urgent[64], normal;
    struct checksum_batch *batch = NULL;
    struct checksum *c;
    uint32_t before = 0;
    if (!KVT_OK(checksum_new(1, &c))) return;
    normal.n = 1;
    normal.page[0].at = bytes;
    normal.page[0].bytes = sizeof bytes;
    for (uint32_t i = 0; i < 64; i++) {
        urgent[i] = normal;
        checksum_submit(c, &urgent[i], true);
    }
    checksum_submit(c, &normal, false);
    for (; batch != &normal; before += batch && batch != &normal) batch = checksum_collect(c);
    KVT_TRUE(before < 64);
    checksum_free(c);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(the_stop_waits_for_moves_of_clients),
                                             KVT_CASE(the_stop_waits_for_the_last_move),
                                             KVT_CASE(keep_2_the_most_valuable_survive),
                                             KVT_CASE(the_stop_counts_what_it_loses),
                                             KVT_CASE(a_stop_in_the_middle_of_sums),
                                             KVT_CASE(no_connection_is_kept_for_a_copy),
                                             KVT_CASE(places_while_it_drains_and_while_it_stops),
                                             KVT_CASE(who_yields_at_once_yields_all),
                                             KVT_CASE(sums_of_both_directions),
                                             { 0 } };
    return kvt_main("service stop", cases, argc, argv);
}
