/* SPDX-License-Identifier: Apache-2.0
 *
 * Many connections at once, as nng's threads serve them: each thread is an engine with a session of its own, one thread
 * runs the service, sequences fork (so that requests park), sessions come and go, everybody listens to events. The
 * thread sanitizer watches; the audit has the last word, and does not keep others from theirs.
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core.h"
#include "service_fixture.h"

#define THREADS 4
#if defined(KVD_SANITIZE_ADDRESS) || defined(KVD_SANITIZE_THREAD)
#define TURNS 60
#else
#define TURNS 600
#endif

struct engine {
    struct link link;     /* first */
    pthread_mutex_t lock; /* what came back */
    pthread_cond_t came;
    uint8_t *reply;
    size_t bytes;
    uint32_t events;
    atomic_bool released;
    /* its own thread only */
    struct codec_arena *arena;
    uint8_t frame[FRAME_LIMIT];
    kvd_session_id session;
    uint64_t sequence, number, seed;
    uint32_t failures;
};

static struct service *service;
static atomic_bool stop;

static bool post(struct link *link, const uint8_t *frame, size_t bytes, bool event) {
    struct engine *e = (struct engine *)link;
    pthread_mutex_lock(&e->lock);
    if (event) {
        e->events++;
    } else {
        memcpy(e->reply, frame, bytes);
        e->bytes = bytes;
        pthread_cond_signal(&e->came);
    }
    pthread_mutex_unlock(&e->lock);
    return true;
}
static void close_link(struct link *link) { (void)link; }
static void release(struct link *link) { ((struct engine *)link)->released = true; }
static const struct link_ops ops = { .post = post, .close = close_link, .release = release };

/* Status of the answer; UINT32_MAX where there is none in ten seconds. */
static uint32_t ask(struct engine *e, struct msg_request *q, struct msg_reply *r) {
    char err[256];
    size_t bytes;
    struct timespec end;
    q->header.session = e->session;
    codec_arena_reset(e->arena);
    if (codec_encode_request(q, e->arena, e->frame + FRAME_HEADER, sizeof e->frame - FRAME_HEADER, &bytes, err,
                             sizeof err))
        return UINT32_MAX;
    frame_head_write(e->frame, q->type, 0, ++e->number, bytes);
    e->bytes = 0;
    if (!service_serve(service, &e->link, e->frame, FRAME_HEADER + bytes)) return UINT32_MAX;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 10;
    pthread_mutex_lock(&e->lock);
    while (!e->bytes && !pthread_cond_timedwait(&e->came, &e->lock, &end)) continue;
    bytes = e->bytes;
    pthread_mutex_unlock(&e->lock);
    codec_arena_reset(e->arena);
    if (!bytes ||
        codec_decode_reply(q->type, e->reply + FRAME_HEADER, bytes - FRAME_HEADER, e->arena, r, err, sizeof err))
        return UINT32_MAX;
    return r->status;
}

static void expect(struct engine *e, bool ok, const char *what, const struct msg_reply *r) {
    if (ok) return;
    if (!e->failures++) printf("    %s: %u %s\n", what, r->status, r->message);
}

static void engine_open(struct engine *e, struct msg_reply *r) {
    struct peer peer = {
        .uid = getuid(), .gid = getgid(), .pid = (uint64_t)getpid(), .pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0)
    };
    service_link_init(&e->link, &ops, &peer);
    e->session.bits = 0;
    e->sequence = 0;
    struct msg_request hello = {
        .type = FRAME_HELLO, .u.hello = { .protocol = KVD_PROTOCOL_VERSION, .role = KVD_ROLE_ADMIN, .name = "engine" }
    };
    expect(e, ask(e, &hello, r) == KVD_OK, "hello", r);
    e->session = r->u.hello.session;
    struct msg_request subscribe = { .type = FRAME_SUBSCRIBE, .u.event_mask = 62 };
    expect(e, ask(e, &subscribe, r) == KVD_OK, "subscribe", r);
}

static void engine_close(struct engine *e, struct msg_reply *r) {
    struct msg_request bye = { .type = FRAME_GOODBYE };
    expect(e, ask(e, &bye, r) == KVD_OK, "goodbye", r);
    service_link_closed(service, &e->link);
    link_unref(&e->link);
    for (int i = 0; i < 100000 && !e->released; i++) sched_yield(); /* an event may be on its way */
    expect(e, e->released, "released", r);
    e->released = false;
    service_link_fini(&e->link);
}

static bool activate(struct engine *e, struct kvd_activation *want, struct msg_reply *r) {
    want->root.digest.bytes[0] = 1;
    want->worker = e->session;
    want->prompt_tokens = 100;
    want->max_output_tokens = 100;
    struct msg_request q = { .type = FRAME_ACTIVATE, .header.sequence = ++e->sequence, .u.activation = *want };
    uint32_t status = ask(e, &q, r);
    expect(e, status == KVD_OK || status == KVD_RESOURCE_EXHAUSTED, "activate", r);
    return status == KVD_OK;
}

/* A root, kept; a fork of it, with a copied tail; both go. */
static void turn(struct engine *e, struct msg_reply *r) {
    struct kvd_activation root = { .ensure = { 100 } }, fork = { .keep = true, .frontier = 100, .ensure = { 100 } };
    kvd_digest digest = { { 1 } };
    if (!activate(e, &root, r)) return;
    kvd_sequence s = r->u.activated.sequence;
    struct kvd_round_item item = { .sequence = s, .pool[0] = round_pool(100, KVD_NONE, KVD_NONE, 150) };
    struct msg_request round = { .type = FRAME_ROUND, .header.sequence = ++e->sequence, .u.round = { 1, &item } };
    expect(e, ask(e, &round, r) == KVD_OK && r->u.round.items[0].status == KVD_OK, "round", r);
    struct msg_request names = { .type = FRAME_NAME_PAGES,
                                 .header.sequence = ++e->sequence,
                                 .u.names = { s, 0, 1, &digest } };
    expect(e, ask(e, &names, r) == KVD_OK, "names", r);
    struct msg_request finish = {
        .type = FRAME_FINISH,
        .header.sequence = ++e->sequence,
        .u.finish = { .sequence = s,
                      .retain = true,
                      .tail = { .n = 36, .tokens = { (uint32_t)e->session.bits, (uint32_t)(e->session.bits >> 32) } } }
    }; /* nobody else's: equal ones are one */
    expect(e, ask(e, &finish, r) == KVD_OK, "finish", r);
    kvd_continuation c = r->u.finished.continuation;
    fork.from = c;
    if (activate(e, &fork, r) && kvt_below(&e->seed, 2)) {
        struct msg_request end = { .type = FRAME_FINISH,
                                   .header.sequence = ++e->sequence,
                                   .u.finish.sequence = r->u.activated.sequence };
        expect(e, ask(e, &end, r) == KVD_OK, "finish of a fork", r);
    } /* else Goodbye ends it */
    struct msg_request drop = { .type = FRAME_RELEASE,
                                .header.sequence = ++e->sequence,
                                .u.continuation.continuation = c };
    expect(e, ask(e, &drop, r) == KVD_OK, "release", r);
    struct msg_request stats = { .type = FRAME_STATS };
    expect(e, ask(e, &stats, r) == KVD_OK, "stats", r);
}

static void *live(void *argument) {
    struct engine *e = argument;
    struct msg_reply *r = calloc(1, sizeof *r);
    for (int i = 0; i < TURNS; i++) {
        if (i % 5 == 0) engine_open(e, r);
        turn(e, r);
        if (i % 5 == 4) engine_close(e, r);
    }
    free(r);
    return NULL;
}

static void *run_service(void *argument) {
    (void)argument;
    while (!atomic_load(&stop)) {
        service_run(service);
        sched_yield();
    }
    return NULL;
}

static void engines_side_by_side(void) {
    struct fx fx;
    pthread_t threads[THREADS], runner;
    struct engine *engines = calloc(THREADS, sizeof *engines);
    uint64_t seed = kvt_seed();
    KVT_NEED(engines && fx_start(&fx, &(struct fx_setup){ .layers = 16, .head_dim = 256, .capacity_tokens = 6144 }));
    service = fx.service;
    for (int i = 0; i < THREADS; i++) {
        struct engine *e = &engines[i];
        pthread_mutex_init(&e->lock, NULL);
        pthread_cond_init(&e->came, NULL);
        e->arena = codec_arena_new();
        e->reply = malloc(FRAME_LIMIT);
        e->seed = kvt_random(&seed);
    }
    pthread_create(&runner, NULL, run_service, NULL);
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, live, &engines[i]);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    atomic_store(&stop, true);
    pthread_join(runner, NULL);
    uint64_t events = 0; /* who gets one depends on who is there when another one's sequence ends */
    for (int i = 0; i < THREADS; i++) {
        KVT_EQ(engines[i].failures, 0);
        events += engines[i].events;
        codec_arena_free(engines[i].arena);
        free(engines[i].reply);
    }
    KVT_TRUE(events > 0);
    free(engines);
    struct fx_peer *p = fx_session(&fx, KVD_ROLE_OBSERVER, 0);
    struct kvd_stats stats = fx_stats(p);
    KVT_EQ(stats.sessions, 1);
    KVT_EQ(stats.sequences, 0);
    KVT_EQ(stats.pool[0].rows_used, 0);
    KVT_EQ(stats.pool[0].quarantined, 0);
    fx_peer_free(p);
    fx_stop(&fx); /* audits */
}

/* ---- an audit in work ---- */

static struct msg_reply audited;
static atomic_bool audit_is_over;

static void *audit(void *peer) {
    KVT_TRUE(fx_call(peer, &(struct msg_request){ .type = FRAME_AUDIT }, &audited));
    atomic_store(&audit_is_over, true);
    return NULL;
}

static bool is_auditing(struct service *s) {
    pthread_mutex_lock(&s->lock);
    bool yes = s->auditing;
    pthread_mutex_unlock(&s->lock);
    return yes;
}

/* While an audit is in work a Round is served, and what that changes is no violation. A second audit is told to come
 * again. Seen when one is in work before and after: if the audit was over too soon, again. */
static void inv_audit_lets_others_on(void) {
    struct fx fx;
    struct kvd_activated a;
    struct kvd_round_result result;
    struct msg_reply r;
    bool seen = false;
    time_t end = time(NULL) + 60;
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .layers = 1, .head_dim = 16, .capacity_tokens = 1 << 20 }));
    struct fx_peer *admin = fx_session(&fx, KVD_ROLE_ADMIN, 0), *s = fx_session(&fx, KVD_ROLE_ADMIN, 0);
    KVT_EQ(fx_activate(s, s->session, 64, 4000, &a), KVD_OK);
    for (uint32_t frontier = 1; !seen && time(NULL) < end; frontier = frontier % 4000 + 1) {
        pthread_t thread;
        atomic_store(&audit_is_over, false);
        KVT_NEED(pthread_create(&thread, NULL, audit, admin) == 0);
        while (!is_auditing(fx.service) && !atomic_load(&audit_is_over)) sched_yield();
        KVT_TRUE(fx_call(s, &(struct msg_request){ .type = FRAME_AUDIT }, &r));
        KVT_EQ(fx_round(s, a.sequence, frontier, frontier + 64, &result), KVD_OK);
        seen = r.status == KVD_UNAVAILABLE && is_auditing(fx.service);
        if (r.status == KVD_UNAVAILABLE) KVT_HAS(r.message, "another audit is in work");
        pthread_join(thread, NULL);
        KVT_EQ(audited.status, KVD_OK);
        if (audited.status == KVD_OK) KVT_EQ(audited.u.audit->violations, 0);
    }
    KVT_TRUE(seen);
    fx_peer_free(s);
    fx_peer_free(admin);
    fx_stop(&fx);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(engines_side_by_side),
                                             KVT_CASE(inv_audit_lets_others_on),
                                             { 0 } };
    return kvt_main("service_threads", cases, argc, argv);
}
