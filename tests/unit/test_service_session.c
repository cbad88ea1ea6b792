/* SPDX-License-Identifier: Apache-2.0
 *
 * Dispatch through bytes: sessions, roles, numbers, deadlines, epochs, handles, limits. SRV-1, SRV-2, SRV-3, SRV-6.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "device.h"
#include "service_fixture.h"

static struct fx fx;
static struct msg_reply r;

#define REQUEST(t, ...)                                                                                                \
    &(struct msg_request) { .type = (t), __VA_ARGS__ }

static void hello_and_stats(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *p = fx_session(&fx, KVD_ROLE_OBSERVER, 0);
    struct kvd_stats stats = fx_stats(p);
    KVT_EQ(stats.sessions, 1);
    KVT_EQ(stats.pool[0].capacity, 256);
    KVT_EQ(stats.pool[0].available, 256);
    KVT_EQ(stats.epoch, fx.epoch);
    KVT_TRUE(stats.rss_bytes > 0 && stats.metadata_bytes > 0);
    KVT_EQ(fx_hello(p, KVD_ROLE_OBSERVER, 0), KVD_FAILED_PRECONDITION); /* one session a connection */
    fx_peer_free(p);
    fx_stop(&fx);
}

static uint32_t hello_with(struct fx_peer *p, uint32_t protocol, uint32_t role, uint32_t rank) {
    struct msg_request q = { .type = FRAME_HELLO,
                             .u.hello = { .protocol = protocol, .role = role, .rank = rank, .name = "x" } };
    return fx_call_as_is(p, &q, &r) ? r.status : UINT32_MAX;
}

/* SRV-4: refused with the reason. */
static void hello_refusals(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *p = fx_peer_new(&fx);
    KVT_EQ(hello_with(p, 99, KVD_ROLE_WORKER, 0), KVD_FAILED_PRECONDITION);
    KVT_HAS(r.message, "protocol 99");
    KVT_EQ(hello_with(p, KVD_PROTOCOL_VERSION, KVD_ROLE_WORKER, 1), KVD_OUT_OF_RANGE);
    KVT_HAS(r.message, "rank 1");
    uint64_t pid = p->link.peer.pid;
    p->link.peer.pid = 0; /* what the kernel says of a peer in a PID namespace that it cannot see */
    KVT_EQ(fx_hello(p, KVD_ROLE_WORKER, 0), KVD_FAILED_PRECONDITION);
    p->link.peer.pid = pid;
    KVT_EQ(fx_hello(p, KVD_ROLE_WORKER, 0), KVD_OK); /* a refused Hello may be followed by a better one */
    fx_peer_free(p);
    fx_stop(&fx);
}

/* SRV-3: the configuration says who may take which role, by what the kernel reports. */
static void roles_need_access(void) {
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .more = "[access]\nworker = uid:4711\nscheduler = gid:4712\n" }));
    static const struct {
        uint64_t uid, gid;
        uint32_t role, status;
    } tries[] = {
        { 4711, 9, KVD_ROLE_WORKER, KVD_OK },
        { 4711, 9, KVD_ROLE_SCHEDULER, KVD_PERMISSION_DENIED },
        { 4710, 9, KVD_ROLE_WORKER, KVD_PERMISSION_DENIED },
        { 4710, 4712, KVD_ROLE_SCHEDULER, KVD_OK },
        { 4710, 9, KVD_ROLE_OBSERVER, KVD_OK },
        { 4711, 4712, KVD_ROLE_ADMIN, KVD_PERMISSION_DENIED },
        { 0, 0, KVD_ROLE_ADMIN, KVD_OK },
    };
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        struct fx_peer *p = fx_peer_new(&fx);
        p->link.peer.uid = tries[i].uid;
        p->link.peer.gid = tries[i].gid;
        KVT_EQ(fx_hello(p, tries[i].role, 0), tries[i].status);
        fx_peer_free(p);
    }
    fx_stop(&fx);
}

/* SRV-3: root and kvd's own user may do everything, also where kvd is not root's. */
static void srv_3_root_and_the_daemons_own_user(void) {
    static const struct {
        uint64_t uid;
        uint32_t status;
    } tries[] = { { 0, KVD_OK }, { 4713, KVD_OK }, { 4714, KVD_PERMISSION_DENIED } };
    struct fx_peer *p[3];
    bool root = geteuid() == 0;
    KVT_NEED(fx_start(&fx, NULL));
    for (int i = 0; i < 3; i++) {
        p[i] = fx_peer_new(&fx);
        p[i]->link.peer.uid = tries[i].uid == 4713 && !root ? geteuid() : tries[i].uid;
    }
    if (root) KVT_OK(seteuid(4713)); /* else it is no root's already */
    for (int i = 0; i < 3; i++) KVT_EQ(fx_hello(p[i], KVD_ROLE_ADMIN, 0), tries[i].status);
    if (root) KVT_OK(seteuid(0));
    prctl(PR_SET_DUMPABLE, 1); /* as before: who looks for leaks attaches to this process */
    for (int i = 0; i < 3; i++) fx_peer_free(p[i]);
    fx_stop(&fx);
}

/* SRV-3: supplementary groups count like the primary one; they are looked for only where the answer depends on them. */
static void groups_give_access(void) {
    KVT_NEED(
        fx_start(&fx, &(struct fx_setup){ .more = "[access]\nworker = uid:4711 gid:4712\nscheduler = uid:4711\n" }));
    struct groups *three = malloc(sizeof *three + 3 * sizeof *three->gid);
    *three = (struct groups){ .n = 3 };
    memcpy(three->gid, (uint32_t[]){ 7, 4713, 4712 }, 12);
    static const struct {
        uint64_t uid, gid;
        uint32_t n /* of the groups */, role, status, asked;
    } tries[] = {
        { 4710, 9, 3, KVD_ROLE_WORKER, KVD_OK, 1 },
        { 4710, 9, 2, KVD_ROLE_WORKER, KVD_PERMISSION_DENIED, 1 },
        { 4710, 9, 3, KVD_ROLE_SCHEDULER, KVD_PERMISSION_DENIED, 0 },
        { 4711, 9, 2, KVD_ROLE_WORKER, KVD_OK, 0 },
        { 4710, 4712, 2, KVD_ROLE_WORKER, KVD_OK, 0 },
        { 0, 0, 3, KVD_ROLE_WORKER, KVD_OK, 0 },
        { 4710, 9, 3, KVD_ROLE_OBSERVER, KVD_OK, 0 },
    };
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        struct fx_peer *p = fx_peer_new(&fx);
        three->n = tries[i].n;
        p->groups = three;
        p->link.peer.uid = tries[i].uid;
        p->link.peer.gid = tries[i].gid;
        KVT_EQ(fx_hello(p, tries[i].role, 0), tries[i].status);
        KVT_EQ(p->asked_groups, tries[i].asked);
        fx_peer_free(p);
    }
    free(three);
    fx_stop(&fx);
}

/* Each request of a role that may not: PERMISSION_DENIED, and the store is as it was. */
static void roles_bound_requests(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *observer = fx_session(&fx, KVD_ROLE_OBSERVER, 0), *worker = fx_session(&fx, KVD_ROLE_WORKER, 0),
                   *scheduler = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    static const uint16_t engines[] = { FRAME_ROUND,       FRAME_NAME_PAGES, FRAME_CHECKPOINT, FRAME_FINISH,
                                        FRAME_YIELD,       FRAME_FIND,       FRAME_LEND_PAGES, FRAME_NAME_LENT,
                                        FRAME_RETURN_LENT, FRAME_READ_CHAIN };
    static const uint16_t schedulers[] = { FRAME_ACTIVATE, FRAME_RELEASE, FRAME_SET_RETENTION, FRAME_CLOSE_GROUP,
                                           FRAME_FENCE,    FRAME_AUDIT,   FRAME_SHORTEN };
    for (size_t i = 0; i < sizeof engines / sizeof *engines; i++) {
        struct msg_request q = { .type = engines[i] };
        KVT_NEED(fx_call(observer, &q, &r));
        KVT_EQ(r.status, KVD_PERMISSION_DENIED);
        KVT_HAS(r.message, frame_type_name(engines[i]));
    }
    for (size_t i = 0; i < sizeof schedulers / sizeof *schedulers; i++) {
        struct msg_request q = { .type = schedulers[i],
                                 .u.activation = { .prompt_tokens = 1, .max_output_tokens = 1 } };
        if (schedulers[i] != FRAME_ACTIVATE) memset(&q.u, 0, sizeof q.u);
        KVT_NEED(fx_call(worker, &q, &r));
        KVT_EQ(r.status, KVD_PERMISSION_DENIED);
    }
    KVT_NEED(fx_call(scheduler, REQUEST(FRAME_DRAIN, .u.drain = true), &r));
    KVT_EQ(r.status, KVD_PERMISSION_DENIED);
    KVT_NEED(fx_call(scheduler, REQUEST(FRAME_CHECK_COLD_TIER), &r));
    KVT_EQ(r.status, KVD_PERMISSION_DENIED);
    KVT_FALSE(fx_stats(observer).draining);
    fx_peer_free(observer);
    fx_peer_free(worker);
    fx_peer_free(scheduler);
    fx_stop(&fx);
}

/* A bearer token goes to those only who may map; an observer sees the shape of the store. */
static void observers_get_no_handles(void) {
    static const struct fx_setup setup = { .ranks = 2, .more = "[capacity]\nstate_bytes = 1000\nstate_slots = 9" };
    KVT_NEED(fx_start(&fx, &setup));
    struct fx_peer *observer = fx_session(&fx, KVD_ROLE_OBSERVER, 0), *worker = fx_session(&fx, KVD_ROLE_WORKER, 0);
    KVT_NEED(fx_call(worker, REQUEST(FRAME_DESCRIBE_STORE), &r));
    KVT_EQ(r.status, KVD_OK);
    struct kvd_store_info full = *r.u.store;
    KVT_EQ(full.pool[0].planes[0].kind, DEVICE_EXPORT_FD);
    KVT_TRUE(full.fd_token && full.fd_socket[0] == '/');
    KVT_EQ(full.state_bytes, 1000);
    KVT_EQ(full.state_slots, 9);
    KVT_EQ(full.state_stride, 1024);
    for (uint32_t rank = 0; rank < 2; rank++) {
        KVT_EQ(full.state[rank].kind, DEVICE_EXPORT_FD);
        KVT_TRUE(full.state[rank].bytes >= 9 * 1024);
    }
    KVT_EQ(full.state[2].bytes, 0);
    KVT_NEED(fx_call(observer, REQUEST(FRAME_DESCRIBE_STORE), &r));
    KVT_TRUE(!r.u.store->fd_token && !r.u.store->fd_socket[0]);
    KVT_EQ(r.u.store->pool[0].planes[0].local_address, 0);
    for (uint32_t rank = 0; rank < 2; rank++) {
        KVT_EQ(r.u.store->state[rank].local_address, 0);
        KVT_EQ(r.u.store->state[rank].bytes, full.state[rank].bytes);
    }
    KVT_EQ(r.u.store->state_slots, 9);
    KVT_EQ(r.u.store->pool[0].pages, full.pool[0].pages);
    KVT_EQ_MEM(&r.u.store->geometry, &full.geometry, sizeof full.geometry);
    fx_peer_free(observer);
    fx_peer_free(worker);
    fx_stop(&fx);
}

static void no_session_no_service(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *p = fx_peer_new(&fx);
    KVT_NEED(fx_call(p, REQUEST(FRAME_STATS), &r));
    KVT_EQ(r.status, KVD_UNAUTHENTICATED);
    KVT_EQ(fx_hello(p, KVD_ROLE_SCHEDULER, 0), KVD_OK);
    struct msg_request q = { .type = FRAME_STATS, .header.session.bits = p->session.bits + 1 };
    KVT_NEED(fx_call(p, &q, &r));
    KVT_EQ(r.status, KVD_UNAUTHENTICATED); /* somebody else's session is not mine */
    fx_peer_free(p);
    fx_stop(&fx);
}

/* SRV-8: another instance's epoch is refused, and takes no number. */
static void wrong_epoch(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *p = fx_session(&fx, KVD_ROLE_ADMIN, 0);
    struct msg_request q = { .type = FRAME_DRAIN,
                             .header = { .session = p->session, .sequence = 1, .epoch = fx.epoch ^ 1 },
                             .u.drain = true };
    KVT_NEED(fx_call_as_is(p, &q, &r));
    KVT_EQ(r.status, KVD_ABORTED);
    KVT_EQ(r.epoch, fx.epoch);
    KVT_FALSE(fx_stats(p).draining);
    q.header.epoch = fx.epoch;
    KVT_NEED(fx_call_as_is(p, &q, &r));
    KVT_EQ(r.status, KVD_OK);
    KVT_TRUE(fx_stats(p).draining);
    fx_peer_free(p);
    fx_stop(&fx);
}

/* ---- numbers: SRV-1 ------------------------------------------------------------------------------- */

static void first_answer_byte_for_byte(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *w = fx_session(&fx, KVD_ROLE_WORKER, 0);
    struct msg_request q = {
        .type = FRAME_ACTIVATE,
        .header = { .session = s->session, .sequence = 1 },
        .u.activation = { .worker = w->session, .prompt_tokens = 100, .max_output_tokens = 100, .ensure = { 100 } }
    };
    uint8_t *frames[3];
    size_t bytes[3];
    for (int i = 0; i < 3; i++) {
        fx_send(s, &q);
        frames[i] = fx_frame(s, &bytes[i]);
        KVT_NEED(frames[i]);
    }
    for (int i = 1; i < 3; i++) {
        KVT_EQ(bytes[i], bytes[0]);
        KVT_EQ_MEM(frames[i] + FRAME_HEADER, frames[0] + FRAME_HEADER, bytes[0] - FRAME_HEADER);
        KVT_TRUE(memcmp(frames[i] + 8, frames[0] + 8, 8) != 0); /* its own request id */
    }
    for (int i = 0; i < 3; i++) free(frames[i]);
    KVT_EQ(fx_stats(s).sequences, 1); /* executed once */
    fx_peer_free(s);
    fx_peer_free(w);
    fx_stop(&fx);
}

static void refusals_are_kept_too(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct msg_request q = { .type = FRAME_RELEASE,
                             .header = { .session = s->session, .sequence = 1 },
                             .u.continuation.continuation.bits = 77 };
    KVT_NEED(fx_call_as_is(s, &q, &r));
    KVT_EQ(r.status, KVD_NOT_FOUND);
    char message[KVD_MESSAGE_BYTES];
    memcpy(message, r.message, sizeof message);
    KVT_NEED(fx_call_as_is(s, &q, &r));
    KVT_EQ_STR(r.message, message);
    q.type = FRAME_SET_RETENTION; /* a number names one request */
    KVT_NEED(fx_call_as_is(s, &q, &r));
    KVT_EQ(r.status, KVD_INVALID_ARGUMENT);
    fx_peer_free(s);
    fx_stop(&fx);
}

static uint32_t ask(struct fx_peer *p, struct msg_request *q) { return fx_call(p, q, &r) ? r.status : UINT32_MAX; }

/* SRV-3: members are one a rank, and a group is broken by whichever member goes, not by its leader alone. */
static void a_group_has_every_rank_once_and_any_member_breaks_it(void) {
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .ranks = 2 }));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *lead = fx_session(&fx, KVD_ROLE_WORKER, 0),
                   *twin = fx_session(&fx, KVD_ROLE_WORKER, 0), *second = fx_session(&fx, KVD_ROLE_WORKER, 1);
    struct kvd_group twins = { .n = 2, .members = { lead->session, twin->session } };
    struct kvd_group whole = { .n = 2, .members = { lead->session, second->session } };
    KVT_EQ(ask(s, REQUEST(FRAME_OPEN_GROUP, .u.group = twins)), KVD_INVALID_ARGUMENT);
    KVT_HAS(r.message, "said Hello as rank 0");
    KVT_EQ(ask(s, REQUEST(FRAME_OPEN_GROUP, .u.group = whole)), KVD_OK);
    struct kvd_activation want = { .group = r.u.group, .prompt_tokens = 64, .max_output_tokens = 1 };
    KVT_EQ(ask(s, REQUEST(FRAME_ACTIVATE, .u.activation = want)), KVD_OK);
    kvd_sequence sequence = r.u.activated.sequence;
    KVT_EQ(ask(second, REQUEST(FRAME_GOODBYE)), KVD_OK); /* rank 1 */
    KVT_EQ(ask(s, REQUEST(FRAME_ACTIVATE, .u.activation = want)), KVD_FAILED_PRECONDITION);
    KVT_HAS(r.message, "lost a member");
    KVT_EQ(fx_round(lead, sequence, KVD_NONE, 64, NULL), KVD_FAILED_PRECONDITION);
    fx_peer_free(lead);
    fx_peer_free(twin);
    fx_peer_free(second);
    fx_peer_free(s);
    fx_stop(&fx);
}

/* FAILED_PRECONDITION: after what the sentence says, and not before. */
static void precondition_is_met_by_what_the_sentence_says(struct fx_peer *a, kvd_sequence sequence) {
    kvd_digest digest = { { 1 } };
    struct msg_request finish = { .type = FRAME_FINISH, .u.finish = { .sequence = sequence, .retain = true } };
    for (int i = 0; i < 2; i++) {
        struct msg_request q = finish;
        KVT_EQ(ask(a, &q), KVD_FAILED_PRECONDITION);
        KVT_HAS(r.message, "name every full page");
    }
    KVT_EQ(ask(a, REQUEST(FRAME_NAME_PAGES, .u.names = { sequence, 0, 1, &digest })), KVD_OK);
    KVT_EQ(ask(a, &finish), KVD_OK);
}

/* SRV-2: the same request succeeds later, without a change to it, exactly where its status says so. */
static void the_status_says_whether_the_same_request_succeeds_later(void) {
    static const struct {
        enum kvd_status status;
        bool again;
    } listed[] = {
#define LISTED(name, code, again, ...) { KVD_##name, again },
        KVD_STATUS_LIST(LISTED)
#undef LISTED
    };
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .capacity_tokens = 8192, .concurrency = 2 }));
    struct fx_peer *a = fx_session(&fx, KVD_ROLE_ADMIN, 0), *o = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct kvd_activated running[2];
    struct kvd_activation root = { .worker = o->session, .prompt_tokens = 64, .max_output_tokens = 1 };
    struct kvd_activation past = root, mapped = root;
    past.max_output_tokens = 4096;
    mapped.ensure[0] = 129;
    KVT_EQ(fx_activate(a, a->session, 64, 64, &running[0]), KVD_OK);
    KVT_EQ(fx_activate(a, a->session, 64, 64, &running[1]), KVD_OK);
    KVT_EQ(fx_round(a, running[0].sequence, 64, KVD_NONE, NULL), KVD_OK);
    KVT_EQ(ask(a, REQUEST(FRAME_DRAIN, .u.drain = true)), KVD_OK);
    struct {
        struct msg_request q;
        enum kvd_status first, drained, room; /* while kvd drains; while rows are short; when a sequence has ended */
    } t[] = {
        { { .type = FRAME_PLAN, .u.activation = root }, KVD_UNAVAILABLE, KVD_OK, KVD_OK },
        { { .type = FRAME_ACTIVATE, .u.activation = past }, KVD_UNAVAILABLE, KVD_OUT_OF_RANGE, KVD_OUT_OF_RANGE },
        { { .type = FRAME_ACTIVATE, .u.activation = mapped }, KVD_UNAVAILABLE, KVD_OUT_OF_RANGE, KVD_OUT_OF_RANGE },
        { { .type = FRAME_ACTIVATE, .u.activation = root }, KVD_UNAVAILABLE, KVD_RESOURCE_EXHAUSTED, KVD_OK },
        { { .type = FRAME_RELEASE, .u.continuation.continuation.bits = 77 },
          KVD_NOT_FOUND,
          KVD_NOT_FOUND,
          KVD_NOT_FOUND },
        { { .type = FRAME_DRAIN, .u.drain = true },
          KVD_PERMISSION_DENIED,
          KVD_PERMISSION_DENIED,
          KVD_PERMISSION_DENIED },
    };
    for (int step = 0; step < 3; step++) {
        for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
            enum kvd_status wanted[] = { t[i].first, t[i].drained, t[i].room };
            struct msg_request q = t[i].q;
            KVT_EQ(ask(o, &q), wanted[step]);
            if (step < 2 && wanted[step] != KVD_OK && t[i].room == KVD_OK) KVT_TRUE(listed[wanted[step]].again);
            if (!listed[wanted[step]].again && wanted[step] != KVD_OK) KVT_EQ(t[i].room, wanted[step]);
        }
        if (step == 0) KVT_EQ(ask(a, REQUEST(FRAME_DRAIN, .u.drain = false)), KVD_OK);
        if (step == 1) KVT_EQ(fx_finish(a, running[1].sequence), KVD_OK);
    }
    precondition_is_met_by_what_the_sentence_says(a, running[0].sequence);
    fx_peer_free(a);
    fx_peer_free(o);
    fx_stop(&fx);
}

/* SRV-1: whatever the answer is, it says which number comes next, and so whether the request has taken its own. */
static void every_answer_says_the_next_number(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *w = fx_session(&fx, KVD_ROLE_WORKER, 0);
    const struct {
        struct fx_peer *by;
        struct msg_request q;
        enum kvd_status status;
        uint64_t next; /* where this one was the next, 0 where there is no session */
    } t[] = {
        { s, { .type = FRAME_STATS }, KVD_OK, 1 },
        { s, { .type = FRAME_YIELD, .header.sequence = 1 }, KVD_OK, 2 },
        { s, { .type = FRAME_RELEASE, .header.sequence = 2 }, KVD_NOT_FOUND, 3 },
        { s, { .type = FRAME_DRAIN, .header.sequence = 3 }, KVD_PERMISSION_DENIED, 4 },
        { s, { .type = FRAME_YIELD, .header = { .sequence = 4, .deadline_ns = 1 } }, KVD_DEADLINE_EXCEEDED, 5 },
        { s, { .type = FRAME_YIELD, .header.sequence = 6 }, KVD_OUT_OF_RANGE, 5 },
        { s, { .type = FRAME_YIELD }, KVD_INVALID_ARGUMENT, 5 },
        { s, { .type = FRAME_YIELD, .header = { .sequence = 5, .epoch = 1 } }, KVD_ABORTED, 5 },
        { s, { .type = FRAME_YIELD, .header = { .sequence = 5, .session.bits = 7 } }, KVD_UNAUTHENTICATED, 5 },
        { s, { .type = FRAME_YIELD, .header.sequence = 5 }, KVD_OK, 6 },
        { s, { .type = FRAME_YIELD, .header.sequence = 5 }, KVD_OK, 6 }, /* again */
        { w, { .type = FRAME_FENCE, .header.sequence = 1 }, KVD_PERMISSION_DENIED, 2 },
        { w, { .type = FRAME_GOODBYE, .header.sequence = 2 }, KVD_OK, 0 },
        { w, { .type = FRAME_YIELD, .header.sequence = 3 }, KVD_UNAUTHENTICATED, 0 },
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct msg_request q = t[i].q;
        if (!q.header.session.bits) q.header.session = t[i].by->session;
        KVT_NEED(fx_call_as_is(t[i].by, &q, &r));
        KVT_EQ(r.status, t[i].status);
        KVT_EQ(r.next_sequence, t[i].next);
    }
    uint8_t bad[FRAME_HEADER + 3] = { 0 }; /* a body that does not decode */
    memset(bad + FRAME_HEADER, 0xff, 3);
    frame_head_write(bad, FRAME_YIELD, 0, 9, 3);
    KVT_TRUE(service_serve(fx.service, &s->link, bad, sizeof bad));
    KVT_NEED(fx_reply(s, FRAME_YIELD, &r));
    KVT_EQ(r.status, KVD_INVALID_ARGUMENT);
    KVT_EQ(r.next_sequence, 6);
    fx_peer_free(s);
    fx_peer_free(w);
    fx_stop(&fx);
}

static void gaps_and_forgotten_numbers(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct msg_request q = { .type = FRAME_RELEASE,
                             .header.session = s->session,
                             .u.continuation.continuation.bits = 77 };
    KVT_NEED(fx_call_as_is(s, &q, &r)); /* 0 */
    KVT_EQ(r.status, KVD_INVALID_ARGUMENT);
    KVT_HAS(r.message, "expected is 1");
    q.header.sequence = 2;
    KVT_NEED(fx_call_as_is(s, &q, &r));
    KVT_EQ(r.status, KVD_OUT_OF_RANGE);
    KVT_HAS(r.message, "expected is 1");
    for (q.header.sequence = 1; q.header.sequence <= 70; q.header.sequence++) {
        KVT_NEED(fx_call_as_is(s, &q, &r));
        KVT_EQ(r.status, KVD_NOT_FOUND);
    }
    q.header.sequence = 7; /* 70 - 64 + 1: the oldest kept */
    KVT_NEED(fx_call_as_is(s, &q, &r));
    KVT_EQ(r.status, KVD_NOT_FOUND);
    q.header.sequence = 6;
    KVT_NEED(fx_call_as_is(s, &q, &r));
    KVT_EQ(r.status, KVD_OUT_OF_RANGE);
    KVT_HAS(r.message, "expected is 71");
    q.header.sequence = UINT64_MAX;
    KVT_NEED(fx_call_as_is(s, &q, &r));
    KVT_EQ(r.status, KVD_OUT_OF_RANGE);
    fx_peer_free(s);
    fx_stop(&fx);
}

/* SRV-2, SRV-1: an expired request changes nothing, and its number's answer stays DEADLINE_EXCEEDED. */
static void deadlines(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_ADMIN, 0);
    struct msg_request q = { .type = FRAME_DRAIN,
                             .header = { .session = s->session, .sequence = 1, .deadline_ns = 1 },
                             .u.drain = true };
    KVT_NEED(fx_call_as_is(s, &q, &r));
    KVT_EQ(r.status, KVD_DEADLINE_EXCEEDED);
    KVT_FALSE(fx_stats(s).draining);
    q.header.deadline_ns = UINT64_MAX;
    KVT_NEED(fx_call_as_is(s, &q, &r));
    KVT_EQ(r.status, KVD_DEADLINE_EXCEEDED);
    q.header.sequence = 2;
    KVT_NEED(fx_call_as_is(s, &q, &r));
    KVT_EQ(r.status, KVD_OK);
    KVT_TRUE(fx_stats(s).draining);
    fx_peer_free(s);
    fx_stop(&fx);
}

/* ---- resume: SRV-3, SRV-6 --------------------------------------------------------------------------- */

static uint32_t resume(struct fx_peer *p, kvd_session_id session, uint64_t secret, uint32_t role) {
    struct msg_request q = { .type = FRAME_HELLO,
                             .u.hello = { .protocol = KVD_PROTOCOL_VERSION,
                                          .role = role,
                                          .name = "fx",
                                          .resume = session,
                                          .resume_secret = secret } };
    return fx_call_as_is(p, &q, &r) ? r.status : UINT32_MAX;
}

static void resume_by_the_same_process_only(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *a = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *child = fx_peer_new(&fx), *again = fx_peer_again(a);
    struct msg_request q = { .type = FRAME_RELEASE, .u.continuation.continuation.bits = 77 };
    KVT_NEED(fx_call(a, &q, &r));
    KVT_EQ(resume(child, a->session, a->secret, KVD_ROLE_SCHEDULER), KVD_PERMISSION_DENIED);
    KVT_EQ(resume(again, a->session, a->secret + 1, KVD_ROLE_SCHEDULER), KVD_PERMISSION_DENIED);
    KVT_EQ(resume(again, (kvd_session_id){ a->session.bits + (UINT64_C(1) << 32) }, a->secret, KVD_ROLE_SCHEDULER),
           KVD_ABORTED);
    KVT_EQ(resume(again, a->session, a->secret, KVD_ROLE_ADMIN), KVD_INVALID_ARGUMENT);
    KVT_FALSE(a->closed);
    KVT_EQ(resume(again, a->session, a->secret, KVD_ROLE_SCHEDULER), KVD_OK);
    KVT_EQ(r.u.hello.session.bits, a->session.bits);
    KVT_EQ(r.u.hello.last_sequence, 1);
    KVT_TRUE(a->closed); /* the older connection ends */
    again->session = a->session;
    KVT_NEED(fx_call_as_is(again, &q, &r)); /* the old number's answer is there on the new connection */
    KVT_EQ(r.status, KVD_NOT_FOUND);
    KVT_EQ(fx_stats(again).sessions, 1);
    a->closed = false;
    KVT_NEED(fx_call(a, REQUEST(FRAME_STATS), &r)); /* a frame that was still in its buffer */
    KVT_EQ(r.status, KVD_ABORTED);
    a->closed = true;
    fx_peer_free(child);
    fx_peer_free(again);
    fx_peer_free(a);
    fx_stop(&fx);
}

/* ---- handles ------------------------------------------------------------------------------------------- */

static void stale_and_foreign_handles(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *w = fx_session(&fx, KVD_ROLE_WORKER, 0),
                   *x = fx_session(&fx, KVD_ROLE_WORKER, 0), *t = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct kvd_activated a = { 0 };
    struct kvd_round_result result;
    KVT_EQ(fx_activate(s, w->session, 64, 64, &a), KVD_OK);
    KVT_EQ(fx_round(w, a.sequence, 64, KVD_UNCHANGED, &result), KVD_OK); /* the worker */
    KVT_EQ(result.pool[0].committed, 64);
    KVT_EQ(fx_round(s, a.sequence, KVD_UNCHANGED, 100, &result), KVD_OK);                /* the owner */
    KVT_EQ(fx_round(x, a.sequence, KVD_UNCHANGED, 100, &result), KVD_PERMISSION_DENIED); /* another worker */
    KVT_HAS(result.message, "neither owned");
    KVT_EQ(fx_round(t, a.sequence, KVD_UNCHANGED, 100, &result), KVD_PERMISSION_DENIED); /* another scheduler */
    KVT_EQ(fx_finish(x, a.sequence), KVD_PERMISSION_DENIED);
    KVT_EQ(fx_round(w, (kvd_sequence){ a.sequence.bits + (UINT64_C(1) << 32) }, 64, KVD_UNCHANGED, &result),
           KVD_NOT_FOUND);
    KVT_EQ(fx_round(w, (kvd_sequence){ 0 }, 64, KVD_UNCHANGED, &result), KVD_NOT_FOUND);
    KVT_EQ(fx_finish(s, a.sequence), KVD_OK);
    KVT_EQ(fx_finish(s, a.sequence), KVD_NOT_FOUND);
    KVT_EQ(fx_stats(s).pool[0].available, 256);
    fx_peer_free(s);
    fx_peer_free(w);
    fx_peer_free(x);
    fx_peer_free(t);
    fx_stop(&fx);
}

static void activation_needs_a_living_worker(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *w = fx_session(&fx, KVD_ROLE_WORKER, 0),
                   *t = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct kvd_activated a = { 0 };
    KVT_EQ(fx_activate(s, (kvd_session_id){ 0 }, 64, 64, &a), KVD_INVALID_ARGUMENT);
    KVT_EQ(fx_activate(s, (kvd_session_id){ w->session.bits + (UINT64_C(1) << 32) }, 64, 64, &a), KVD_NOT_FOUND);
    KVT_EQ(fx_activate(s, t->session, 64, 64, &a), KVD_INVALID_ARGUMENT); /* another scheduler */
    KVT_EQ(fx_activate(s, s->session, 64, 64, &a), KVD_OK);               /* itself */
    KVT_EQ(fx_finish(s, a.sequence), KVD_OK);
    fx_cut(w);
    KVT_EQ(fx_activate(s, w->session, 64, 64, &a), KVD_FAILED_PRECONDITION);
    KVT_EQ(fx_stats(s).sequences, 0);
    fx_peer_free(s);
    fx_peer_free(w);
    fx_peer_free(t);
    fx_stop(&fx);
}

/* ACT-8: the shortfall is named, and nothing has changed. */
static void shortage_is_exact(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct kvd_activated a;
    for (int i = 0; i < 4; i++) KVT_EQ(fx_activate(s, s->session, 2048, 1536, &a), KVD_OK); /* 56 pages each */
    struct msg_request q = {
        .type = FRAME_PLAN, .u.activation = { .worker = s->session, .prompt_tokens = 2048, .max_output_tokens = 1536 }
    };
    KVT_NEED(fx_call(s, &q, &r));
    KVT_EQ(r.status, KVD_OK);
    KVT_EQ(r.u.plan.feasibility, KVD_BLOCKED);
    KVT_EQ(r.u.plan.pages[0].needed, 56);
    KVT_EQ(r.u.plan.pages[0].available, 32);
    KVT_EQ(r.u.plan.pages[0].short_by, 24);
    struct kvd_stats before = fx_stats(s), after;
    KVT_EQ(fx_activate(s, s->session, 2048, 1536, &a), KVD_RESOURCE_EXHAUSTED);
    after = fx_stats(s);
    KVT_EQ(after.revision, before.revision);
    KVT_EQ_MEM(after.pool, before.pool, sizeof after.pool);
    fx_peer_free(s);
    fx_stop(&fx);
}

static void limits(void) {
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .more = "[limits]\nsessions = 3\nsequences_per_session = 2\n" }));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *b = fx_session(&fx, KVD_ROLE_WORKER, 0);
    struct kvd_activated a;
    KVT_EQ(fx_activate(s, b->session, 64, 64, &a), KVD_OK);
    KVT_EQ(fx_activate(s, b->session, 64, 64, &a), KVD_OK);
    KVT_EQ(fx_activate(s, b->session, 64, 64, &a), KVD_RESOURCE_EXHAUSTED);
    KVT_EQ(fx_finish(s, a.sequence), KVD_OK);
    KVT_EQ(fx_activate(s, b->session, 64, 64, &a), KVD_OK);
    struct fx_peer *c = fx_session(&fx, KVD_ROLE_OBSERVER, 0), *d = fx_peer_new(&fx);
    KVT_EQ(fx_hello(d, KVD_ROLE_OBSERVER, 0), KVD_RESOURCE_EXHAUSTED);
    struct msg_request bye = { .type = FRAME_GOODBYE };
    KVT_NEED(fx_call(c, &bye, &r));
    KVT_EQ(r.status, KVD_OK);
    KVT_EQ(fx_hello(d, KVD_ROLE_OBSERVER, 0), KVD_OK);
    KVT_TRUE(d->session.bits != c->session.bits); /* same slot, another generation */
    fx_peer_free(c);
    fx_peer_free(d);
    fx_peer_free(s);
    fx_peer_free(b);
    fx_stop(&fx);
}

/* One user does not take all sessions. */
static void sessions_of_a_user(void) {
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .more = "[limits]\nsessions = 4\nsessions_per_uid = 2\n" }));
    struct fx_peer *p[4];
    for (int i = 0; i < 4; i++) {
        p[i] = fx_peer_new(&fx);
        p[i]->link.peer.uid = i < 3 ? 4711 : 4712;
    }
    KVT_EQ(fx_hello(p[0], KVD_ROLE_OBSERVER, 0), KVD_OK);
    KVT_EQ(fx_hello(p[1], KVD_ROLE_OBSERVER, 0), KVD_OK);
    struct msg_request q = {
        .type = FRAME_HELLO, .u.hello = { .protocol = KVD_PROTOCOL_VERSION, .role = KVD_ROLE_OBSERVER, .name = "third" }
    };
    KVT_NEED(fx_call_as_is(p[2], &q, &r));
    KVT_EQ(r.status, KVD_RESOURCE_EXHAUSTED);
    KVT_HAS(r.message, "uid 4711 has 2 sessions");
    KVT_HAS(r.message, "sessions_per_uid");
    KVT_EQ(fx_hello(p[3], KVD_ROLE_OBSERVER, 0), KVD_OK); /* another user is served */
    fx_kill(p[0]);
    KVT_EQ(fx_hello(p[2], KVD_ROLE_OBSERVER, 0), KVD_OK); /* and the first, when one of its processes has gone */
    for (int i = 0; i < 4; i++) fx_peer_free(p[i]);
    fx_stop(&fx);
}

static enum kvd_status hello_of(struct fx_peer *p, uint64_t uid, enum kvd_role role) {
    struct msg_request q = { .type = FRAME_HELLO,
                             .u.hello = { .protocol = KVD_PROTOCOL_VERSION, .role = role, .name = "many" } };
    p->link.peer.uid = uid;
    return fx_call_as_is(p, &q, &r) ? r.status : KVD_INTERNAL;
}

/* SRV-2, SRV-3: with the defaults one user gets half of the sessions, all users together get all but those that are
 * kept; root, kvd's own user and admins find a session however many others ask. */
static void srv_3_sessions_are_kept(void) {
    enum { SESSIONS = 32, KEPT = 2, PEERS = SESSIONS + 8 };
    struct fx_peer *p[PEERS];
    uint32_t granted[3] = { 0 };
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .more = "[limits]\nsessions = 32\n[access]\nadmin = uid:4711\n" }));
    for (int i = 0; i < PEERS; i++) p[i] = fx_peer_new(&fx);
    uint32_t n = 0;
    for (uint32_t user = 0; user < 2; user++)
        for (uint32_t i = 0; i < SESSIONS / 2 + 1 && hello_of(p[n], 5000 + user, KVD_ROLE_OBSERVER) == KVD_OK; i++, n++)
            granted[user]++;
    KVT_EQ(granted[0], SESSIONS / 2);
    KVT_EQ(granted[1], SESSIONS / 2 - KEPT);
    KVT_EQ(r.status, KVD_RESOURCE_EXHAUSTED);
    KVT_HAS(r.message, "there are 30 sessions of 32, and the last 2 are kept for root");
    KVT_EQ(hello_of(p[n], 5000, KVD_ROLE_OBSERVER), KVD_RESOURCE_EXHAUSTED);
    KVT_HAS(r.message, "uid 5000 has 16 sessions");
    KVT_EQ(hello_of(p[n], 4711, KVD_ROLE_OBSERVER), KVD_RESOURCE_EXHAUSTED); /* it may be admin, and is not here */
    KVT_EQ(hello_of(p[n], 4711, KVD_ROLE_ADMIN), KVD_OK);
    KVT_EQ(hello_of(p[n + 1], geteuid(), KVD_ROLE_OBSERVER), KVD_OK);
    KVT_EQ(hello_of(p[n + 2], 0, KVD_ROLE_OBSERVER), KVD_RESOURCE_EXHAUSTED);
    KVT_HAS(r.message, "which is the limit");
    for (int i = 0; i < PEERS; i++) fx_peer_free(p[i]);
    fx_stop(&fx);
}

/* SRV-2: whatever comes, the next request is served. */
static void malformed_frames(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *p = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    uint64_t seed = kvt_seed();
    uint8_t frame[512];
    for (int i = 0; i < 20000; i++) {
        size_t body = kvt_below(&seed, sizeof frame - FRAME_HEADER);
        for (size_t n = 0; n < body; n++) frame[FRAME_HEADER + n] = (uint8_t)kvt_random(&seed);
        frame_head_write(frame, (uint16_t)kvt_below(&seed, 70), 0, 1, body);
        KVT_TRUE(service_serve(fx.service, &p->link, frame, FRAME_HEADER + body));
        p->n = 0;
    }
    struct kvd_stats stats = fx_stats(p);
    KVT_TRUE(stats.frames_bad > 0);
    KVT_EQ(stats.sequences, 0);
    KVT_FALSE(service_serve(fx.service, &p->link, frame, 7)); /* no frame at all */
    fx_peer_free(p);
    fx_stop(&fx);
}

/* A forest of requests must not leave anything behind. */
static void a_million_small_things(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct kvd_activated a = { 0 };
    uint64_t first = 0;
#if defined(KVD_SANITIZE_ADDRESS) || defined(KVD_SANITIZE_THREAD)
    int turns = 2000;
    bool counts = false; /* sanitizers keep what is freed */
#else
    int turns = 60000;
    bool counts = true;
#endif
    for (int i = 0; i < turns; i++) {
        KVT_NEED(fx_activate(s, s->session, 130, 64, &a) == KVD_OK);
        KVT_NEED(fx_round(s, a.sequence, 130, 190, NULL) == KVD_OK);
        KVT_NEED(fx_finish(s, a.sequence) == KVD_OK);
        if (i == turns / 2) first = fx_stats(s).rss_bytes;
    }
    struct kvd_stats stats = fx_stats(s);
    KVT_TRUE(!counts || stats.rss_bytes <= first + (256u << 10));
    KVT_EQ(stats.pool[0].available, 256);
    KVT_EQ(stats.membership_used, 0);
    fx_peer_free(s);
    fx_stop(&fx);
}

static void lists_and_planes(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct kvd_activated a;
    for (int i = 0; i < 5; i++) KVT_EQ(fx_activate(s, s->session, 10, 10, &a), KVD_OK);
    uint32_t cursor = 0, n = 0;
    do {
        KVT_NEED(fx_call(s, REQUEST(FRAME_LIST_SEQUENCES, .u.list = { .cursor = cursor, .max = 2 }), &r));
        KVT_EQ(r.status, KVD_OK);
        n += r.u.sequences.n;
        if (r.u.sequences.n) KVT_EQ(r.u.sequences.items[0].owner.bits, s->session.bits);
        cursor = r.u.sequences.next_cursor;
    } while (cursor != KVD_UNCHANGED);
    KVT_EQ(n, 5);
    KVT_NEED(fx_call(s, REQUEST(FRAME_LIST_SESSIONS, .u.list = { .max = 10 }), &r));
    KVT_EQ(r.u.sessions.n, 1);
    KVT_EQ(r.u.sessions.items[0].sequences, 5);
    KVT_EQ(r.u.sessions.items[0].pid, (uint64_t)s->pid);
    KVT_NEED(fx_call(s, REQUEST(FRAME_DESCRIBE_PLANES, .u.planes = { 0, 0, 1 }), &r));
    KVT_EQ(r.u.planes.total, 4);
    KVT_EQ(r.u.planes.n, 3);
    KVT_EQ(r.u.planes.items[0].ordinal, 1);
    KVT_NEED(fx_call(s, REQUEST(FRAME_DESCRIBE_PLANES, .u.planes = { 1, 0, 0 }), &r));
    KVT_EQ(r.status, KVD_OUT_OF_RANGE);
    fx_peer_free(s);
    fx_stop(&fx);
}

/* Of what began later the age is smaller, and nothing is older than the daemon. */
static void ages_of_sessions_and_sequences(void) {
    uint64_t begin_ns = clock_ns(), ages[6];
    struct kvd_activated a;
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *again = fx_session(&fx, KVD_ROLE_OBSERVER, 0);
    for (int i = 0; i < 3; i++) KVT_EQ(fx_activate(s, s->session, 10, 10, &a), KVD_OK);
    KVT_NEED(fx_call(s, REQUEST(FRAME_LIST_SESSIONS), &r));
    KVT_EQ(r.u.sessions.n, 2);
    for (uint32_t i = 0; i < 2; i++) ages[i] = r.u.sessions.items[i].age_ns;
    uint64_t before = ages[1];
    KVT_NEED(fx_call(s, REQUEST(FRAME_LIST_SEQUENCES), &r));
    KVT_EQ(r.u.sequences.n, 3);
    for (uint32_t i = 0; i < 3; i++) ages[2 + i] = r.u.sequences.items[i].age_ns;
    ages[5] = 0;
    KVT_TRUE(ages[0] > ages[1] && ages[0] < clock_ns() - begin_ns);
    for (uint32_t i = 2; i < 5; i++) KVT_TRUE(ages[i] > ages[i + 1]);
    KVT_NEED(fx_call(s, REQUEST(FRAME_LIST_SESSIONS), &r));
    KVT_TRUE(r.u.sessions.items[1].age_ns > before);  /* they grow */
    KVT_TRUE(r.u.sessions.items[1].age_ns > ages[2]); /* the session came before */
    fx_peer_free(again);
    fx_peer_free(s);
    fx_stop(&fx);
}

/* SRV-5: whose exit could not be seen gets no session, and says why; the place is free for others. */
static void who_cannot_be_watched_gets_no_session(void) {
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .more = "[limits]\nsessions = 2\n" }));
    for (int i = 0; i < 3; i++) {
        struct fx_peer *p = fx_peer_new(&fx);
        int file = memfd_create("no process", MFD_CLOEXEC);
        dup3(file, p->link.peer.pidfd, O_CLOEXEC); /* epoll takes no such thing */
        close(file);
        KVT_NEED(
            fx_call(p,
                    REQUEST(FRAME_HELLO,
                            .u.hello = { .protocol = KVD_PROTOCOL_VERSION, .role = KVD_ROLE_OBSERVER, .name = "p" }),
                    &r));
        KVT_EQ(r.status, KVD_UNAVAILABLE);
        KVT_HAS(r.message, "cannot be watched (epoll: Operation not permitted)");
        fx_peer_free(p);
    }
    struct fx_peer *p = fx_session(&fx, KVD_ROLE_OBSERVER, 0);
    KVT_EQ(fx_stats(p).sessions, 1);
    fx_peer_free(p);
    fx_stop(&fx);
}

/* SRV-2: what is wrong with another Hello on a connection whose session has ended is said. */
static void one_session_a_connection(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *p = fx_session(&fx, KVD_ROLE_OBSERVER, 0);
    KVT_EQ(fx_hello(p, KVD_ROLE_OBSERVER, 0), KVD_FAILED_PRECONDITION);
    KVT_NEED(fx_call(p, REQUEST(FRAME_GOODBYE), &r));
    KVT_NEED(fx_call(p,
                     REQUEST(FRAME_HELLO,
                             .u.hello = { .protocol = KVD_PROTOCOL_VERSION, .role = KVD_ROLE_OBSERVER, .name = "p" }),
                     &r));
    KVT_EQ(r.status, KVD_FAILED_PRECONDITION);
    KVT_HAS(r.message, "has ended; open another connection");
    fx_peer_free(p);
    fx_stop(&fx);
}

/* SRV-6, SRV-8: a group of an earlier instance is none of this one. */
static void handles_of_every_kind_begin_elsewhere(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct config config = service_config(fx.service);
    config.first_generation = 77000;
    fx_stop(&fx);
    char err[512];
    KVT_NEED(service_new(&config, "/kvd-test-other-", NULL, &fx.service, err, sizeof err) == 0);
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *w = fx_session(&fx, KVD_ROLE_WORKER, 0);
    KVT_NEED(fx_call(s, REQUEST(FRAME_OPEN_GROUP, .u.group = { .n = 1, .members = { w->session } }), &r));
    KVT_EQ(r.status, KVD_OK);
    KVT_EQ(r.u.group.bits >> 32, 77001);
    KVT_EQ(s->session.bits >> 32, 77001);
    KVT_NEED(fx_call(s, REQUEST(FRAME_CLOSE_GROUP, .u.group_id = { UINT64_C(1) << 32 }), &r));
    KVT_EQ(r.status, KVD_NOT_FOUND);
    fx_peer_free(w);
    fx_peer_free(s);
    fx_stop(&fx);
}

/* CONT-2: a lookup in parts: what belongs together, and an anchor that is not there. */
static void find_in_parts_is_checked(void) {
    static const kvd_digest digests[4];
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *p = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    const struct {
        struct kvd_find find;
        uint32_t status;
        const char *says;
    } tries[] = {
        { { .n = 4, .max = 1, .digests = digests, .first = 0, .anchor = { 0 } }, KVD_OK, "" },
        { { .n = 4, .max = 1, .digests = digests, .first = 3, .anchor = { 0 } }, KVD_INVALID_ARGUMENT, "no anchor" },
        { { .n = 4, .max = 1, .digests = digests, .first = 0, .anchor = { 1 } },
          KVD_INVALID_ARGUMENT,
          "begins at page 0 without one" },
        { { .n = 0, .max = 1, .digests = NULL, .first = 3, .anchor = { UINT64_C(1) << 32 } },
          KVD_INVALID_ARGUMENT,
          "with 0 digests" },
        { { .n = 4, .max = 1, .digests = digests, .first = UINT32_MAX - 1, .anchor = { UINT64_C(1) << 32 } },
          KVD_INVALID_ARGUMENT,
          "" },
        { { .n = 4, .max = 1, .digests = digests, .first = 3, .anchor = { UINT64_C(1) << 32 } },
          KVD_NOT_FOUND,
          "continuation" },
    };
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        struct msg_request q = { .type = FRAME_FIND, .u.find = tries[i].find };
        KVT_NEED(fx_call(p, &q, &r));
        KVT_EQ(r.status, tries[i].status);
        KVT_HAS(r.message, tries[i].says);
        if (r.status == KVD_OK) KVT_EQ(r.u.hits.anchor.bits, 0);
    }
    fx_peer_free(p);
    fx_stop(&fx);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(hello_and_stats),
                                             KVT_CASE(hello_refusals),
                                             KVT_CASE(roles_need_access),
                                             KVT_CASE(groups_give_access),
                                             KVT_CASE(roles_bound_requests),
                                             KVT_CASE(observers_get_no_handles),
                                             KVT_CASE(no_session_no_service),
                                             KVT_CASE(wrong_epoch),
                                             KVT_CASE(first_answer_byte_for_byte),
                                             KVT_CASE(refusals_are_kept_too),
                                             KVT_CASE(gaps_and_forgotten_numbers),
                                             KVT_CASE(every_answer_says_the_next_number),
                                             KVT_CASE(the_status_says_whether_the_same_request_succeeds_later),
                                             KVT_CASE(a_group_has_every_rank_once_and_any_member_breaks_it),
                                             KVT_CASE(srv_3_root_and_the_daemons_own_user),
                                             KVT_CASE(deadlines),
                                             KVT_CASE(resume_by_the_same_process_only),
                                             KVT_CASE(stale_and_foreign_handles),
                                             KVT_CASE(activation_needs_a_living_worker),
                                             KVT_CASE(shortage_is_exact),
                                             KVT_CASE(limits),
                                             KVT_CASE(sessions_of_a_user),
                                             KVT_CASE(srv_3_sessions_are_kept),
                                             KVT_CASE(malformed_frames),
                                             KVT_CASE(a_million_small_things),
                                             KVT_CASE(lists_and_planes),
                                             KVT_CASE(ages_of_sessions_and_sequences),
                                             KVT_CASE(find_in_parts_is_checked),
                                             KVT_CASE(who_cannot_be_watched_gets_no_session),
                                             KVT_CASE(one_session_a_connection),
                                             KVT_CASE(handles_of_every_kind_begin_elsewhere),
                                             { 0 } };
    return kvt_main("service_session", cases, argc, argv);
}
