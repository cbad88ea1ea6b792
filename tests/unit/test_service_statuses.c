/* SPDX-License-Identifier: Apache-2.0
 *
 * TRUE-1: a status says whether the same request can succeed later. Every request of the list is sent by every role,
 * with fields of zero and with handles that nobody has, to a quiet store, to a quiet store again after others have used
 * it, and to one that drains. A new request is in the list, and so in here.
 */
#include "service_fixture.h"

static const struct {
    enum kvd_status status;
    bool again;
} listed[] = {
#define LISTED(name, code, again, ...) { KVD_##name, again },
    KVD_STATUS_LIST(LISTED)
#undef LISTED
};

static const uint16_t types[] = {
#define TYPE(constant, ...) FRAME_##constant,
    FRAME_LIST(TYPE)
#undef TYPE
};

static struct fx fx;
static struct msg_reply r;
static struct fx_peer *admin;

static uint32_t ask(struct fx_peer *p, const struct msg_request *what) {
    struct msg_request q = *what;
    return fx_call(p, &q, &r) ? r.status : UINT32_MAX;
}

/* Handles that nobody has: of an object, or of nothing at all. */
static struct msg_request shape_of(uint16_t type, bool handles) {
    struct msg_request q = { .type = type };
    const kvd_continuation continuation = { 77 };
    const kvd_sequence sequence = { 77 };
    if (!handles) return q;
    switch (type) {
    case FRAME_PLAN:
    case FRAME_ACTIVATE:
        q.u.activation = (struct kvd_activation){
            .worker.bits = 77, .from = continuation, .frontier = 1, .prompt_tokens = 2, .max_output_tokens = 1
        };
        break;
    case FRAME_CHOOSE:
        q.u.choose.order = KVD_ORDER_RETENTION_USED;
        q.u.choose.activation =
            (struct kvd_activation){ .from = continuation, .frontier = 1, .prompt_tokens = 2, .max_output_tokens = 1 };
        break;
    case FRAME_NAME_PAGES: q.u.names.sequence = sequence; break;
    case FRAME_CHECKPOINT: q.u.checkpoint.sequence = sequence; break;
    case FRAME_FINISH: q.u.finish.sequence = sequence; break;
    case FRAME_RELEASE:
    case FRAME_SET_RETENTION: q.u.continuation.continuation = continuation; break;
    case FRAME_DEMOTE: q.u.demote.continuation = continuation; break;
    case FRAME_PREFETCH: q.u.prefetch = continuation; break;
    case FRAME_DROP: q.u.drop.continuation = continuation; break;
    case FRAME_SHORTEN: q.u.shorten.continuation = continuation; break;
    case FRAME_LEND_PAGES: q.u.lend.sequence = sequence; break;
    case FRAME_NAME_LENT: q.u.lent_names.sequence = sequence; break;
    case FRAME_RETURN_LENT: q.u.lent_return.sequence = sequence; break;
    case FRAME_READ_CHAIN: q.u.read_chain.continuation = continuation; break;
    case FRAME_CLOSE_GROUP: q.u.group_id.bits = 77; break;
    case FRAME_FENCE: q.u.session.bits = 77; break;
    default: break;
    }
    return q;
}

static struct kvd_stats look(void) {
    struct kvd_stats stats = fx_stats(admin);
    stats.requests = stats.refusals = stats.uptime_ns = stats.rss_bytes = 0;
    return stats;
}

/* Others come and go; it is as quiet as before. */
static void use_store(void) {
    struct kvd_activated a;
    KVT_EQ(fx_activate(admin, admin->session, 64, 64, &a), KVD_OK);
    KVT_EQ(fx_finish(admin, a.sequence), KVD_OK);
}

static void drain(bool on) { KVT_EQ(ask(admin, &(struct msg_request){ .type = FRAME_DRAIN, .u.drain = on }), KVD_OK); }

/* Asked once: its status is one of the table that kvd answers, and after a refusal nothing has changed. */
static uint32_t ask_once(struct fx_peer *peer, const struct msg_request *q) {
    struct kvd_stats before = look();
    uint32_t status = ask(peer, q);
    KVT_TRUE(status < sizeof listed / sizeof *listed && listed[status].status == status);
    KVT_TRUE(status != KVD_INTERNAL && status != KVD_UNKNOWN && status != KVD_CANCELLED &&
             status != KVD_ALREADY_EXISTS);
    if (status == KVD_OK) return status;
    KVT_TRUE(r.message[0] != 0);
    struct kvd_stats after = look();
    KVT_TRUE(memcmp(&before, &after, sizeof after) == 0);
    return status;
}

static bool activates(uint16_t type) { return type == FRAME_PLAN || type == FRAME_ACTIVATE || type == FRAME_CHOOSE; }

static void try_request(struct fx_peer *peer, uint32_t role, const struct msg_request *q) {
    const char *name = frame_type_name(q->type);
    bool may = frame_info(q->type)->roles >> role & 1;
    uint32_t first = ask_once(peer, q), again;
    if (!may) KVT_EQ(first, KVD_PERMISSION_DENIED);
    if (first >= sizeof listed / sizeof *listed) return;
    /* Nothing is short, in flight or in use: nobody is told to wait, and waiting changes nothing. */
    if (!KVT_FALSE(listed[first].again)) printf("    %s of role %u: %s\n", name, role, r.message);
    use_store();
    again = ask_once(peer, q);
    if (!KVT_EQ(again, first)) printf("    %s of role %u: %s\n", name, role, r.message);
    if (q->type == FRAME_DRAIN) return;
    drain(true);
    uint32_t drained = ask_once(peer, q);
    bool never = first == KVD_INVALID_ARGUMENT && drained == first;
    if (may && activates(q->type)) KVT_TRUE(drained == KVD_UNAVAILABLE || never);
    else if (!KVT_EQ(drained, first)) printf("    %s of role %u drains: %s\n", name, role, r.message);
    drain(false);
}

static void true_1_every_request_by_every_role(void) {
    KVT_NEED(fx_start(&fx, NULL));
    admin = fx_session(&fx, KVD_ROLE_ADMIN, 0);
    for (uint32_t role = KVD_ROLE_OBSERVER; role <= KVD_ROLE_ADMIN; role++) {
        struct fx_peer *peer = fx_session(&fx, role, 0);
        for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
            if (types[i] == FRAME_HELLO || types[i] == FRAME_GOODBYE) continue; /* of sessions: test_service_session */
            for (int handles = 0; handles < 2; handles++) {
                struct msg_request q = shape_of(types[i], handles);
                try_request(peer, role, &q);
            }
        }
        fx_peer_free(peer);
    }
    fx_peer_free(admin);
    fx_stop(&fx);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(true_1_every_request_by_every_role), { 0 } };
    return kvt_main("service statuses", cases, argc, argv);
}
