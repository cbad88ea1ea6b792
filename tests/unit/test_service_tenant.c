/* SPDX-License-Identifier: Apache-2.0
 *
 * tenants = uid: what one user's processes keep is not there for another's (CONT-2, SRV-3). Two users with equal
 * tokens.
 */
#include <stdlib.h>

#include "service_fixture.h"

static struct fx fx;
static struct msg_reply r;

#define REQUEST(t, ...)                                                                                                \
    &(struct msg_request) { .type = (t), __VA_ARGS__ }
#define ANN 4711u
#define BOB 4712u

static const kvd_digest page0 = { { 1, 2, 3 } };

static uint32_t ask(struct fx_peer *p, struct msg_request *q) { return fx_call(p, q, &r) ? r.status : UINT32_MAX; }

static bool start(const char *more) {
    char text[512];
    snprintf(text, sizeof text, "[access]\nworker = *\nscheduler = *\nadmin = uid:4713\n%s\n", more);
    return fx_start(&fx, &(struct fx_setup){ .more = text });
}

static struct fx_peer *user(uint64_t uid, uint32_t role) {
    struct fx_peer *p = fx_peer_new(&fx);
    p->link.peer.uid = uid;
    KVT_EQ(fx_hello(p, role, 0), KVD_OK);
    return p;
}

/* A running sequence of n tokens, committed, and named where it has a full page. */
static kvd_sequence running(struct fx_peer *s, struct fx_peer *worker, uint32_t n) {
    struct kvd_activated a = { 0 };
    KVT_EQ(fx_activate(s, worker->session, n, 100, &a), KVD_OK);
    KVT_EQ(fx_round(s, a.sequence, n, KVD_UNCHANGED, NULL), KVD_OK);
    if (n >= 64) KVT_EQ(ask(worker, REQUEST(FRAME_NAME_PAGES, .u.names = { a.sequence, 0, 1, &page0 })), KVD_OK);
    return a.sequence;
}

/* A continuation of n < 128 tokens. */
static kvd_continuation kept(struct fx_peer *s, uint32_t n) {
    kvd_sequence sequence = running(s, s, n);
    KVT_EQ(ask(s,
               REQUEST(FRAME_FINISH,
                       .u.finish = { .sequence = sequence, .retain = true, .tail = { .n = n % 64, .tokens = { n } } })),
           KVD_OK);
    return r.u.finished.continuation;
}

/* Finds the page, or with pages = 0 what is shorter than one; how many, and whether all are of this one. */
static uint32_t find(struct fx_peer *s, uint32_t pages, kvd_continuation expected, bool *ret_expected) {
    KVT_EQ(ask(s, REQUEST(FRAME_FIND, .u.find = { .n = pages,
                                                  .max = 16,
                                                  .digests = &page0,
                                                  .token_page = pages,
                                                  .prompt_tokens = pages * 64 + 50,
                                                  .tokens = { 40, { pages ? 100 : 30 } } })),
           KVD_OK);
    *ret_expected = false;
    for (uint32_t i = 0; i < r.u.hits.n; i++) *ret_expected |= r.u.hits.items[i].continuation.bits == expected.bits;
    return r.u.hits.n;
}

static uint32_t listed(struct fx_peer *p, uint16_t type) {
    uint32_t n = 0, cursor = 0;
    while (cursor != KVD_UNCHANGED) {
        KVT_EQ(ask(p, REQUEST(type, .u.list = { .cursor = cursor, .max = 3 })), KVD_OK);
        n += type == FRAME_LIST_SESSIONS        ? r.u.sessions.n
             : type == FRAME_LIST_CONTINUATIONS ? r.u.continuations.n
                                                : r.u.sequences.n;
        cursor = type == FRAME_LIST_SESSIONS        ? r.u.sessions.next_cursor
                 : type == FRAME_LIST_CONTINUATIONS ? r.u.continuations.next_cursor
                                                    : r.u.sequences.next_cursor;
    }
    return n;
}

/* CONT-2: a hit never crosses domains, and the user is one. */
static void equal_tokens_are_not_found(void) {
    KVT_NEED(start("tenants = uid"));
    struct fx_peer *ann = user(ANN, KVD_ROLE_SCHEDULER), *bob = user(BOB, KVD_ROLE_SCHEDULER),
                   *root = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    bool is;
    kvd_continuation of_ann = kept(ann, 100);
    KVT_EQ(find(bob, 1, of_ann, &is), 0);
    KVT_EQ(find(root, 1, of_ann, &is), 0); /* not even an operator, by name */
    kvd_continuation of_bob = kept(bob, 100);
    KVT_EQ(find(ann, 1, of_ann, &is), 1);
    KVT_TRUE(is);
    KVT_EQ(r.u.hits.items[0].usable, 100); /* the page and its tail */
    KVT_EQ(find(bob, 1, of_bob, &is), 1);
    KVT_TRUE(is);
    kvd_continuation small = kept(ann, 30); /* without a full page it has no name: the table keeps it apart */
    KVT_EQ(find(ann, 0, small, &is), 1);
    KVT_TRUE(is);
    KVT_EQ(find(bob, 0, small, &is), 0);
    fx_peer_free(ann);
    fx_peer_free(bob);
    fx_peer_free(root);
    fx_stop(&fx);
}

/* The default: what is kept is there for all who may. */
static void shared_is_shared(void) {
    KVT_NEED(start(""));
    struct fx_peer *ann = user(ANN, KVD_ROLE_SCHEDULER), *bob = user(BOB, KVD_ROLE_SCHEDULER);
    bool is;
    kvd_continuation of_ann = kept(ann, 100), small = kept(ann, 30);
    KVT_EQ(find(bob, 1, of_ann, &is), 1);
    KVT_TRUE(is);
    KVT_EQ(find(bob, 0, small, &is), 1);
    KVT_EQ(listed(bob, FRAME_LIST_CONTINUATIONS), 2);
    KVT_EQ(listed(bob, FRAME_LIST_SESSIONS), 2);
    KVT_EQ(ask(bob, REQUEST(FRAME_RELEASE, .u.continuation.continuation = of_ann)), KVD_OK);
    fx_peer_free(ann);
    fx_peer_free(bob);
    fx_stop(&fx);
}

/* The answer about a handle of another tenant is the answer about one that nobody has, to the letter. */
static void same_as_none(struct fx_peer *p, struct msg_request *q, kvd_continuation *where, kvd_continuation theirs) {
    char hex[2][24], expected[KVD_MESSAGE_BYTES] = "";
    kvd_continuation none = { theirs.bits + (UINT64_C(1) << 40) };
    snprintf(hex[0], sizeof hex[0], "0x%" PRIx64, none.bits);
    snprintf(hex[1], sizeof hex[1], "0x%" PRIx64, theirs.bits);
    q->header = (struct msg_header){ 0 };
    *where = none;
    uint32_t status = ask(p, q);
    KVT_TRUE(status != KVD_OK);
    char *at = strstr(r.message, hex[0]);
    if (at)
        snprintf(expected, sizeof expected, "%.*s%s%.300s", (int)(at - r.message), r.message, hex[1],
                 at + strlen(hex[0]));
    else snprintf(expected, sizeof expected, "%s", r.message);
    q->header = (struct msg_header){ 0 };
    *where = theirs;
    KVT_EQ(ask(p, q), status);
    KVT_EQ_STR(r.message, expected);
}

static void foreign_handles_are_none(void) {
    KVT_NEED(start("tenants = uid"));
    struct fx_peer *ann = user(ANN, KVD_ROLE_SCHEDULER), *bob = user(BOB, KVD_ROLE_SCHEDULER);
    kvd_continuation of_ann = kept(ann, 100), of_bob = kept(bob, 100);
    struct msg_request q = { .type = FRAME_ACTIVATE,
                             .u.activation = { .worker = bob->session,
                                               .keep = true,
                                               .frontier = 100,
                                               .prompt_tokens = 120,
                                               .max_output_tokens = 10,
                                               .ensure = { 120 } } };
    for (int plan = 0; plan < 2; plan++)
        for (int keep = 0; keep < 2; keep++)
            for (uint32_t prompt = 0; prompt < 200; prompt += 60) { /* some are wrong themselves */
                q.type = plan ? FRAME_PLAN : FRAME_ACTIVATE;
                q.u.activation.keep = keep;
                q.u.activation.prompt_tokens = prompt;
                same_as_none(bob, &q, &q.u.activation.from, of_ann);
            }
    struct kvd_victim victims[2] = { { of_bob, false, 0 }, { of_ann, false, 0 } };
    q.u.activation = (struct kvd_activation){
        .worker = bob->session, .prompt_tokens = 120, .max_output_tokens = 10, .n_victims = 2, .victims = victims
    };
    q.type = FRAME_ACTIVATE;
    same_as_none(bob, &q, &victims[1].continuation, of_ann);
    q.type = FRAME_PLAN;
    same_as_none(bob, &q, &victims[0].continuation, of_ann);
    q = (struct msg_request){ .type = FRAME_RELEASE };
    same_as_none(bob, &q, &q.u.continuation.continuation, of_ann);
    q = (struct msg_request){ .type = FRAME_SET_RETENTION, .u.continuation.retention = 3 };
    same_as_none(bob, &q, &q.u.continuation.continuation, of_ann);
    q = (struct msg_request){ .type = FRAME_SHORTEN, .u.shorten.frontier = 64 };
    same_as_none(bob, &q, &q.u.shorten.continuation, of_ann);
    q = (struct msg_request){ .type = FRAME_FIND, .u.find = { .n = 1, .max = 4, .digests = &page0, .first = 1 } };
    same_as_none(bob, &q, &q.u.find.anchor, of_ann);
    KVT_EQ(ask(ann, REQUEST(FRAME_SET_RETENTION, .u.continuation = { of_ann, 3 })), KVD_OK);
    struct msg_request choose = { .type = FRAME_CHOOSE, .u.choose.order = KVD_ORDER_RETENTION_USED };
    choose.u.choose.activation = (struct kvd_activation){
        .root.digest = fx_domain, .from = of_ann, .frontier = 100, .prompt_tokens = 120, .max_output_tokens = 10
    };
    KVT_EQ(ask(ann, &choose), KVD_OK); /* the root is that of its own user, as with Activate */
    KVT_EQ(ask(ann, REQUEST(FRAME_ACTIVATE, .u.activation = { .worker = ann->session,
                                                              .from = of_ann,
                                                              .frontier = 100,
                                                              .prompt_tokens = 120,
                                                              .max_output_tokens = 10 })),
           KVD_OK); /* it was untouched, and its own user has it */
    fx_peer_free(ann);
    fx_peer_free(bob);
    fx_stop(&fx);
}

/* However a continuation comes to be, it is of the tenant of its sequence; a slot that is used again, of the new one.
 */
static void every_origin_is_noted(void) {
    KVT_NEED(start("tenants = uid"));
    struct fx_peer *ann = user(ANN, KVD_ROLE_SCHEDULER), *bob = user(BOB, KVD_ROLE_SCHEDULER),
                   *worker = user(ANN, KVD_ROLE_WORKER);
    bool is;
    kvd_sequence sequence = running(ann, worker, 100);
    struct msg_request checkpoint = { .type = FRAME_CHECKPOINT,
                                      .u.checkpoint = { .sequence = sequence, .tail = { .n = 36 } } };
    KVT_EQ(ask(worker, &checkpoint), KVD_OK);
    kvd_continuation made = r.u.checkpointed.continuation;
    KVT_EQ(find(ann, 1, made, &is), 2); /* and what the sequence shows while it runs (LIVE-1) */
    KVT_TRUE(is);
    KVT_EQ(find(bob, 1, made, &is), 0);
    fx_kill(worker);
    KVT_EQ(listed(ann, FRAME_LIST_CONTINUATIONS), 2); /* the checkpoint, and what the dead one left */
    KVT_EQ(listed(bob, FRAME_LIST_CONTINUATIONS), 0);
    KVT_EQ(find(bob, 1, made, &is), 0);
    KVT_EQ(ask(ann, REQUEST(FRAME_RELEASE, .u.continuation.continuation = made)), KVD_OK);
    kvd_continuation reused = kept(bob, 100);
    KVT_EQ(reused.bits & UINT32_MAX, made.bits & UINT32_MAX);
    KVT_EQ(ask(ann, REQUEST(FRAME_RELEASE, .u.continuation.continuation = made)), KVD_NOT_FOUND);
    KVT_EQ(ask(ann, REQUEST(FRAME_RELEASE, .u.continuation.continuation = reused)), KVD_NOT_FOUND);
    KVT_EQ(ask(bob, REQUEST(FRAME_RELEASE, .u.continuation.continuation = reused)), KVD_OK);
    fx_peer_free(worker);
    fx_peer_free(ann);
    fx_peer_free(bob);
    fx_stop(&fx);
}

/* A sequence goes to workers of its own user: else they would name its pages as theirs. */
static void leases_stay_with_the_user(void) {
    KVT_NEED(start("tenants = uid"));
    struct fx_peer *ann = user(ANN, KVD_ROLE_SCHEDULER), *bob = user(BOB, KVD_ROLE_WORKER),
                   *own = user(ANN, KVD_ROLE_WORKER), *admin = user(4713, KVD_ROLE_ADMIN);
    struct kvd_activated a;
    KVT_EQ(fx_activate(ann, bob->session, 100, 10, &a), KVD_PERMISSION_DENIED);
    KVT_EQ(ask(ann, REQUEST(FRAME_OPEN_GROUP, .u.group = { .n = 1, .members = { bob->session } })),
           KVD_PERMISSION_DENIED);
    KVT_EQ(ask(ann, REQUEST(FRAME_OPEN_GROUP, .u.group = { .n = 1, .members = { own->session } })), KVD_OK);
    kvd_group_id group = r.u.group;
    KVT_EQ(ask(admin, REQUEST(FRAME_ACTIVATE,
                              .u.activation = { .group = group, .prompt_tokens = 10, .max_output_tokens = 9 })),
           KVD_PERMISSION_DENIED); /* it may lease to any group, but not across users */
    KVT_EQ(ask(ann, REQUEST(FRAME_ACTIVATE,
                            .u.activation = { .group = group, .prompt_tokens = 10, .max_output_tokens = 9 })),
           KVD_OK);
    KVT_EQ(fx_activate(ann, own->session, 100, 10, &a), KVD_OK);
    fx_peer_free(ann);
    fx_peer_free(bob);
    fx_peer_free(own);
    fx_peer_free(admin);
    fx_stop(&fx);
}

/* FEED-1: one is told of one's own, and of what is gone. */
static void feed_1_changes_of_ones_own(void) {
    KVT_NEED(start("tenants = uid"));
    struct fx_peer *ann = user(ANN, KVD_ROLE_SCHEDULER), *bob = user(BOB, KVD_ROLE_SCHEDULER),
                   *root = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    KVT_EQ(ask(ann, REQUEST(FRAME_LIST_CHANGES, .u.changes = { 0, 0 })), KVD_OK);
    uint64_t cursor = r.u.changes.cursor;
    kvd_continuation own = kept(ann, 40), other = kept(bob, 50);
    struct fx_peer *peers[] = { ann, bob, root };
    for (int i = 0; i < 3; i++) {
        bool knows_own = false, knows_other = false;
        KVT_EQ(ask(peers[i], REQUEST(FRAME_LIST_CHANGES, .u.changes = { cursor, 0 })), KVD_OK);
        KVT_FALSE(r.u.changes.more);
        for (uint32_t k = 0; k < r.u.changes.n; k++) {
            knows_own |= r.u.changes.items[k].continuation.bits == own.bits;
            knows_other |= r.u.changes.items[k].continuation.bits == other.bits;
        }
        KVT_EQ(knows_own, i != 1);
        KVT_EQ(knows_other, i != 0);
    }
    for (int i = 0; i < 3; i++) fx_peer_free(peers[i]);
    fx_stop(&fx);
}

/* Lists and events show one's own; root, the daemon's user and admins see all, and release what nobody else would. */
static void operators_see_all(void) {
    KVT_NEED(start("tenants = uid"));
    struct fx_peer *ann = user(ANN, KVD_ROLE_SCHEDULER), *bob = user(BOB, KVD_ROLE_SCHEDULER),
                   *eye = user(BOB, KVD_ROLE_OBSERVER), *own = user(ANN, KVD_ROLE_OBSERVER),
                   *root = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *admin = user(4713, KVD_ROLE_ADMIN);
    uint32_t mask = KVD_EVENT_MASK(KVD_EVENT_SEQUENCE_ENDED) | KVD_EVENT_MASK(KVD_EVENT_SESSION_LOST);
    struct fx_peer *told[] = { own, root, admin }, *all[] = { eye, own, root, admin };
    for (int i = 0; i < 4; i++) KVT_EQ(ask(all[i], REQUEST(FRAME_SUBSCRIBE, .u.event_mask = mask)), KVD_OK);
    kvd_continuation of[6];
    for (int i = 0; i < 6; i++) of[i] = kept(i < 4 ? ann : bob, 100 + (uint32_t)i);
    running(ann, ann, 100);
    KVT_EQ(listed(eye, FRAME_LIST_CONTINUATIONS), 2);
    KVT_EQ(listed(own, FRAME_LIST_CONTINUATIONS), 5); /* one is live */
    KVT_EQ(listed(root, FRAME_LIST_CONTINUATIONS), 7);
    KVT_EQ(listed(admin, FRAME_LIST_CONTINUATIONS), 7);
    KVT_EQ(listed(eye, FRAME_LIST_SEQUENCES), 0);
    KVT_EQ(listed(ann, FRAME_LIST_SEQUENCES), 1);
    KVT_EQ(listed(admin, FRAME_LIST_SEQUENCES), 1);
    KVT_EQ(listed(eye, FRAME_LIST_SESSIONS), 2);
    KVT_EQ(listed(root, FRAME_LIST_SESSIONS), 6);
    KVT_EQ(ask(root, REQUEST(FRAME_RELEASE, .u.continuation.continuation = of[0])), KVD_OK);
    KVT_EQ(ask(admin, REQUEST(FRAME_SET_RETENTION, .u.continuation = { of[1], 9 })), KVD_OK);
    KVT_EQ(ask(admin, REQUEST(FRAME_ACTIVATE, .u.activation = { .worker = admin->session,
                                                                .prompt_tokens = 9,
                                                                .max_output_tokens = 9,
                                                                .n_victims = 1,
                                                                .victims = &(struct kvd_victim){ of[1], false, 0 } })),
           KVD_OK);
    KVT_EQ(ask(root, REQUEST(FRAME_PLAN, .u.activation = { .worker = root->session,
                                                           .from = of[2],
                                                           .keep = true,
                                                           .frontier = 100,
                                                           .prompt_tokens = 120,
                                                           .max_output_tokens = 9 })),
           KVD_NOT_FOUND); /* what they see they still do not use */
    fx_kill(ann);
    struct kvd_event e;
    for (int i = 0; i < 3; i++) {
        uint32_t kinds = 0;
        while (told[i]->n && fx_event(told[i], &e)) kinds |= KVD_EVENT_MASK(e.kind);
        if (told[i] != root) KVT_EQ(kinds, mask); /* a scheduler is told of its own workers and sequences */
        else KVT_EQ(kinds, 0);
    }
    KVT_EQ(eye->n, 0);
    fx_peer_free(ann);
    fx_peer_free(bob);
    for (int i = 0; i < 4; i++) fx_peer_free(all[i]);
    fx_stop(&fx);
}

/* ---- at random ---------------------------------------------------------------------------------- */

#define USERS 3
#define KEPT 40u
#define RUNNING 6u

static struct {
    uint32_t user, frontier;
    kvd_continuation cont; /* 0: none */
} model_kept[KEPT];
static struct {
    uint32_t user, tokens;
    kvd_sequence sequence;
} model_runs[RUNNING];
static struct fx_peer *users[USERS];
static uint64_t seed;

static void model_keep(uint32_t user, kvd_continuation cont, uint32_t frontier) {
    uint32_t i = 0;
    while (i < KEPT && model_kept[i].cont.bits != cont.bits) i++; /* FIT-5: an equal one stands for it */
    if (i == KEPT)
        for (i = 0; model_kept[i].cont.bits;) i++;
    model_kept[i].user = user;
    model_kept[i].frontier = frontier;
    model_kept[i].cont = cont;
}

static uint32_t kept_of(uint32_t user) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < KEPT; i++) n += model_kept[i].cont.bits && model_kept[i].user == user;
    return n;
}

/* LIVE-1: those that run and have named a page; *ret_most: of the longest of them. */
static uint32_t live_of(uint32_t user, uint32_t *ret_most) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < RUNNING; i++) {
        if (!model_runs[i].sequence.bits || model_runs[i].user != user || model_runs[i].tokens < 64) continue;
        if (model_runs[i].tokens / 64 > *ret_most) *ret_most = model_runs[i].tokens / 64;
        n++;
    }
    return n;
}

static bool is_kept_by(uint32_t user, kvd_continuation cont) {
    for (uint32_t i = 0; i < KEPT; i++)
        if (model_kept[i].cont.bits == cont.bits) return model_kept[i].user == user;
    return false;
}

/* Commits and names up to n tokens; the same tokens whoever runs. */
static void random_grow(uint32_t at, uint32_t n) {
    kvd_digest chain[16];
    struct fx_peer *p = users[model_runs[at].user];
    for (uint32_t i = 0; i < n / 64; i++) chain[i] = (kvd_digest){ { (uint8_t)(i + 1) } };
    KVT_EQ(fx_round(p, model_runs[at].sequence, n, KVD_UNCHANGED, NULL), KVD_OK);
    if (n >= 64)
        KVT_EQ(ask(p, REQUEST(FRAME_NAME_PAGES, .u.names = { model_runs[at].sequence, 0, n / 64, chain })), KVD_OK);
    model_runs[at].tokens = n;
}

static void random_start(uint32_t user, uint32_t at, uint32_t from) {
    uint32_t n = 20 + kvt_below(&seed, 200), f = model_kept[from].frontier;
    struct kvd_activation want = { .worker = users[user]->session, .prompt_tokens = n, .max_output_tokens = 64 };
    if (model_kept[from].cont.bits && f < 900 && kvt_below(&seed, 4)) { /* it fits chain[16] of random_grow */
        want.from = model_kept[from].cont;
        want.keep = kvt_below(&seed, 2);
        want.frontier = f;
        want.prompt_tokens = n = f + 20;
    }
    want.ensure[0] = n;
    bool foreign = want.from.bits && model_kept[from].user != user;
    KVT_EQ(ask(users[user], REQUEST(FRAME_ACTIVATE, .u.activation = want)), foreign ? KVD_NOT_FOUND : KVD_OK);
    if (r.status != KVD_OK) return;
    if (want.from.bits && !want.keep) model_kept[from].cont.bits = 0;
    model_runs[at].user = user;
    model_runs[at].sequence = r.u.activated.sequence;
    random_grow(at, n);
}

static void random_keep(uint32_t at, bool checkpoint) {
    struct fx_peer *p = users[model_runs[at].user];
    struct kvd_tail tail = { .n = model_runs[at].tokens % 64 };
    struct msg_request q = { .type = checkpoint ? FRAME_CHECKPOINT : FRAME_FINISH };
    if (checkpoint) q.u.checkpoint = (struct kvd_checkpoint){ .sequence = model_runs[at].sequence, .tail = tail };
    else q.u.finish = (struct kvd_finish){ .sequence = model_runs[at].sequence, .retain = true, .tail = tail };
    KVT_EQ(ask(p, &q), KVD_OK);
    model_keep(model_runs[at].user, checkpoint ? r.u.checkpointed.continuation : r.u.finished.continuation,
               model_runs[at].tokens);
    if (!checkpoint) model_runs[at].sequence.bits = 0;
}

static void random_release(uint32_t user, uint32_t which) {
    if (!model_kept[which].cont.bits) return;
    bool own = model_kept[which].user == user;
    KVT_EQ(ask(users[user], REQUEST(FRAME_RELEASE, .u.continuation.continuation = model_kept[which].cont)),
           own ? KVD_OK : KVD_NOT_FOUND);
    if (own) model_kept[which].cont.bits = 0;
}

static void random_find(uint32_t user, uint32_t pages) {
    kvd_digest chain[4];
    uint32_t most = 0;
    for (uint32_t i = 0; i < pages; i++) chain[i] = (kvd_digest){ { (uint8_t)(i + 1) } };
    KVT_EQ(ask(users[user], REQUEST(FRAME_FIND, .u.find = { .n = pages, .max = 16, .digests = chain })), KVD_OK);
    uint32_t live = live_of(user, &most), found = 0;
    for (uint32_t i = 0; i < r.u.hits.n; i++) {
        found += r.u.hits.items[i].live;
        if (!r.u.hits.items[i].live) KVT_TRUE(is_kept_by(user, r.u.hits.items[i].continuation));
    }
    KVT_TRUE(found <= live);
    for (uint32_t i = 0; i < KEPT; i++)
        if (model_kept[i].cont.bits && model_kept[i].user == user && model_kept[i].frontier / 64 > most)
            most = model_kept[i].frontier / 64;
    if (pages) KVT_EQ(r.u.hits.n ? r.u.hits.items[0].usable / 64 : 0, most < pages ? most : pages);
}

/* CONT-2: whatever three users do with equal tokens and each other's handles, each has its own and nothing else. */
static void users_do_not_meet(void) {
    seed = kvt_seed();
    KVT_NEED(start("tenants = uid"));
    memset(model_kept, 0, sizeof model_kept);
    memset(model_runs, 0, sizeof model_runs);
    for (uint32_t u = 0; u < USERS; u++) users[u] = user(5000 + u, KVD_ROLE_SCHEDULER);
    for (int step = 0; step < 4000; step++) {
        uint32_t u = kvt_below(&seed, USERS), at = kvt_below(&seed, RUNNING), which = kvt_below(&seed, KEPT), all = 0,
                 most = 0;
        for (uint32_t i = 0; i < USERS; i++) all += kept_of(i);
        if (all > KEPT - RUNNING - 2) random_release(kvt_below(&seed, USERS), which);
        else if (!model_runs[at].sequence.bits) random_start(u, at, which);
        else if (kvt_below(&seed, 3)) random_keep(at, kvt_below(&seed, 3) == 0);
        random_find(u, kvt_below(&seed, 5));
        if (step % 16 == 0) KVT_EQ(listed(users[u], FRAME_LIST_CONTINUATIONS), kept_of(u) + live_of(u, &most));
    }
    for (uint32_t u = 0; u < USERS; u++) fx_peer_free(users[u]);
    fx_stop(&fx);
}

/* GRP-5, CONT-2: what Rounds leave behind a window is its sequence's user's, from when it is found. */
static void grp_5_rolling_checkpoints_have_their_user(void) {
    KVT_NEED(start("tenants = uid\n[pool.near]\ngroups = near\nwindow = 100\n[group.near]\nlayers = 1\nkv_heads = 2\n"
                   "head_dim = 64"));
    struct fx_peer *ann = user(ANN, KVD_ROLE_SCHEDULER), *bob = user(BOB, KVD_ROLE_SCHEDULER);
    struct kvd_activation want = { .worker = ann->session,
                                   .prompt_tokens = 100,
                                   .max_output_tokens = 900,
                                   .ensure = { 256, 256 },
                                   .checkpoint_prompt = true };
    bool none;
    KVT_EQ(ask(ann, REQUEST(FRAME_ACTIVATE, .u.activation = want)), KVD_OK);
    kvd_sequence sequence = r.u.activated.sequence;
    KVT_EQ(fx_round(ann, sequence, 250, KVD_UNCHANGED, NULL), KVD_OK);
    KVT_EQ(find(ann, 1, (kvd_continuation){ 0 }, &none), 0);
    KVT_EQ(listed(ann, FRAME_LIST_CONTINUATIONS), 0);
    KVT_EQ(ask(ann, REQUEST(FRAME_NAME_PAGES, .u.names = { sequence, 0, 1, &page0 })), KVD_OK);
    KVT_EQ(find(ann, 1, (kvd_continuation){ 0 }, &none), 1);
    KVT_EQ(r.u.hits.items[0].usable, 64);
    KVT_EQ(listed(ann, FRAME_LIST_CONTINUATIONS), 1);
    KVT_EQ(find(bob, 1, (kvd_continuation){ 0 }, &none), 0);
    KVT_EQ(listed(bob, FRAME_LIST_CONTINUATIONS), 0);
    want.checkpoint_every = 100;
    KVT_EQ(ask(ann, REQUEST(FRAME_ACTIVATE, .u.activation = want)), KVD_INVALID_ARGUMENT);
    KVT_HAS(r.message, "every 100 tokens is no page boundary");
    KVT_EQ(fx_finish(ann, sequence), KVD_OK);
    KVT_EQ(find(ann, 1, (kvd_continuation){ 0 }, &none), 1);
    KVT_EQ(fx_audit(&fx), 0);
    fx_peer_free(ann);
    fx_peer_free(bob);
    fx_stop(&fx);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(equal_tokens_are_not_found),
                                             KVT_CASE(shared_is_shared),
                                             KVT_CASE(foreign_handles_are_none),
                                             KVT_CASE(every_origin_is_noted),
                                             KVT_CASE(leases_stay_with_the_user),
                                             KVT_CASE(operators_see_all),
                                             KVT_CASE(feed_1_changes_of_ones_own),
                                             KVT_CASE(users_do_not_meet),
                                             KVT_CASE(grp_5_rolling_checkpoints_have_their_user),
                                             { 0 } };
    return kvt_main("service_tenant", cases, argc, argv);
}
