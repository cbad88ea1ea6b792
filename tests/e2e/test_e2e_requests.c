/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests of all types with drawn contents, by peers of all roles, over the socket of a kvd: none is answered INTERNAL
 * or not at all, the audit finds nothing at any moment, and afterwards everything is available again.
 *
 *     test_e2e_requests [-s SEED]       KVD_FUZZED_REQUESTS: how many (20000)
 *
 * The peers are processes, each with four connections, that end after a while: what they fenced goes with them.
 */
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "draw.h"
#include "raw.h"
#include "scene.h"

#define A_PROCESS 4000u /* requests */
#define REQUESTS 20000u
#define ROLES 4

struct tally {
    uint64_t sent[FRAME_TYPE_END], taken[FRAME_TYPE_END], raw, audits;
    char fault[sizeof(struct kvd_audit) + 128];
};

struct speaker {
    int fd;
    kvd_session_id session;
    uint64_t next, id;
};

static struct e2e_daemon daemon_;
static struct tally *tally;
static struct speaker speakers[ROLES];
static struct draw draw;
static uint64_t random_;

static bool fault_is(const char *what, uint16_t type, const char *why) {
    if (!tally->fault[0])
        snprintf(tally->fault, sizeof tally->fault, "%s: request of type %u: %s", what, (unsigned)type, why);
    return false;
}

/* ---- one peer --------------------------------------------------------------------------------------- */

/* False where kvd takes no more of them: what is fenced stays as long as this process. */
static bool say_hello(struct speaker *s, uint32_t role) {
    struct msg_request hello = { .type = FRAME_HELLO,
                                 .u.hello = { .protocol = KVD_PROTOCOL_VERSION, .role = role, .name = "speaker" } };
    struct msg_reply reply;
    if (s->fd > 0) close(s->fd);
    *s = (struct speaker){ .fd = raw_connect(daemon_.socket) };
    if (!raw_request(s->fd, &hello, ++s->id) || raw_reply(s->fd, &reply) != KVD_OK) return false;
    s->session = reply.u.hello.session;
    s->next = 1;
    draw_remember(&draw, DRAW_SESSION, s->session.bits);
    return true;
}

/* Types that exist or not, and bytes that are mostly no message. */
static bool send_bytes(struct speaker *s, uint16_t *ret_type) {
    uint8_t frame[FRAME_HEADER + 64];
    size_t n = draw_u8(&draw) % 65;
    for (size_t i = 0; i < n; i++) frame[FRAME_HEADER + i] = draw_u8(&draw);
    *ret_type = draw_u8(&draw) % (FRAME_TYPE_END + 2);
    frame_head_write(frame, *ret_type, 0, ++s->id, n);
    tally->raw++;
    return raw_send(s->fd, frame, FRAME_HEADER + n);
}

/* False: its contents are none that a message can have. */
static bool send_request(struct speaker *s, struct msg_request *q) {
    uint8_t how = draw_u8(&draw);
    q->header.session = s->session;
    draw_request(&draw, q);
    if (q->type == FRAME_DRAIN) q->u.drain = how < 32;
    if (draw_changes(q->type)) q->header.sequence = how < 248 ? s->next : how;
    if (!raw_request(s->fd, q, ++s->id)) return false;
    tally->sent[q->type]++;
    return true;
}

/* False: a fault. */
static bool judge_answer(struct speaker *s, uint16_t type, enum kvd_status status, const struct msg_reply *r) {
    if (status == KVD_INTERNAL || status == KVD_UNKNOWN)
        return fault_is(kvd_status_name(status), type, status == KVD_UNKNOWN ? "no answer" : r->message);
    if (r->next_sequence) s->next = r->next_sequence;
    if (status != KVD_OK || type >= FRAME_TYPE_END) return true;
    tally->taken[type]++;
    draw_learn(&draw, r);
    if (type != FRAME_AUDIT) return true;
    tally->audits++;
    return r->u.audit->violations == 0 || fault_is("audit", type, r->u.audit->text);
}

/* Half of them are what sequences live by; few end sessions, by which sequences end. */
static uint16_t draw_type(void) {
    static const uint16_t life[] = { FRAME_ACTIVATE,   FRAME_ROUND,  FRAME_ROUND,
                                     FRAME_NAME_PAGES, FRAME_FINISH, FRAME_CHECKPOINT };
    uint16_t type = (uint16_t)(2 + kvt_below(&random_, FRAME_TYPE_END - 2));
    bool ends = type == FRAME_GOODBYE || type == FRAME_FENCE;
    return kvt_below(&random_, 2) || (ends && kvt_below(&random_, 8)) ? life[kvt_below(&random_, 6)] : type;
}

/* False: no more from this process. */
static bool speak(void) {
    uint8_t bytes[600];
    struct msg_request q = { .type = draw_type() };
    struct msg_reply r = { 0 };
    uint32_t role =
        draw_changes(q.type) && kvt_below(&random_, 8) ? 2 + kvt_below(&random_, 2) : kvt_below(&random_, ROLES);
    struct speaker *s = &speakers[role];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)kvt_random(&random_);
    draw.input = bytes;
    draw.left = sizeof bytes;
    if (!s->session.bits && !say_hello(s, KVD_ROLE_OBSERVER + role)) return false;
    bool sent = kvt_below(&random_, 32) ? send_request(s, &q) : send_bytes(s, &q.type);
    if (!sent) return true;
    enum kvd_status status = raw_reply(s->fd, &r);
    if (!judge_answer(s, q.type, status, &r)) return false;
    if (status == KVD_UNAUTHENTICATED || status == KVD_ABORTED || (q.type == FRAME_GOODBYE && status == KVD_OK))
        s->session.bits = 0; /* over, or fenced; where it is not, another connection has it better */
    return true;
}

/* Whatever it is answered: the handles are what counts. */
static void ask_in_order(struct speaker *s, struct msg_request *q, struct msg_reply *ret_reply) {
    q->header = (struct msg_header){ .session = s->session, .sequence = s->next };
    if (raw_request(s->fd, q, ++s->id)) (void)judge_answer(s, q->type, raw_reply(s->fd, ret_reply), ret_reply);
}

/* What drawn contents seldom come to: a sequence with a committed and named page; retained, where it shall be one. */
static void make_sequence(struct speaker *s, bool retained) {
    kvd_digest name = { { 1, (uint8_t)kvt_below(&random_, 4) } };
    struct kvd_round_item item = { .pool = { round_pool(64, KVD_NONE, KVD_NONE, KVD_NONE),
                                             round_pool(64, KVD_NONE, KVD_NONE, KVD_NONE) } };
    struct msg_request q = { .type = FRAME_ACTIVATE,
                             .u.activation = { .root.digest = { { 1 } },
                                               .worker = s->session,
                                               .prompt_tokens = 64,
                                               .max_output_tokens = 64,
                                               .ensure = { 64, 64 } } };
    struct msg_reply r = { .status = UINT32_MAX };
    ask_in_order(s, &q, &r);
    if (r.status != KVD_OK) return;
    item.sequence = r.u.activated.sequence;
    q = (struct msg_request){ .type = FRAME_ROUND, .u.round = { 1, &item } };
    ask_in_order(s, &q, &r);
    q = (struct msg_request){ .type = FRAME_NAME_PAGES, .u.names = { item.sequence, 0, 1, &name } };
    ask_in_order(s, &q, &r);
    q = (struct msg_request){ .type = FRAME_FINISH, .u.finish = { .sequence = item.sequence, .retain = true } };
    if (retained) ask_in_order(s, &q, &r);
}

static void speak_often(uint32_t n) {
    struct speaker *chief = &speakers[KVD_ROLE_SCHEDULER - KVD_ROLE_OBSERVER];
    for (uint32_t i = 0; i < n && speak(); i++) {
        if (!chief->session.bits || i % 200 >= 4) continue;
        make_sequence(chief, i % 2);
    }
}

static bool speak_in_a_process(uint32_t n) {
    uint64_t seed = kvt_random(&random_);
    pid_t pid = fork();
    int status = -1;
    if (pid == 0) {
        random_ = seed;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(60 * E2E_SLOW);
        speak_often(n);
        _exit(tally->fault[0] ? 1 : 0);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

/* ---- all of them ------------------------------------------------------------------------------------ */

static uint64_t count_sent(void) {
    uint64_t n = tally->raw;
    for (uint32_t i = 0; i < FRAME_TYPE_END; i++) n += tally->sent[i];
    return n;
}

static bool nobody_is_left(void *client) {
    struct kvd_stats s = scene_stats(client);
    return s.sessions == 1 && s.sequences == 0 && s.groups == 0 && s.moves == 0;
}

static bool all_is_available(void *client) {
    struct kvd_stats s = scene_stats(client);
    bool all = s.membership_used == 0 && s.host_occupied == 0 && s.state_slots_used == 0;
    for (uint32_t p = 0; p < s.n_pools; p++)
        all = all && s.pool[p].available == s.pool[p].capacity && !s.pool[p].rows_used && !s.pool[p].quarantined;
    return all;
}

static void check_afterwards(void) {
    kvd_client *admin = e2e_connect(&daemon_, KVD_ROLE_ADMIN, "admin");
    struct kvd_continuation_info left[KVD_MAX_LIST];
    KVT_NEED(admin && e2e_until(nobody_is_left, admin, 60, NULL));
    scene_audit(admin);
    for (uint32_t n = 1; n;) {
        uint32_t cursor = 0;
        KVT_NEED(kvd_list_continuations(admin, NULL, &cursor, left, KVD_MAX_LIST, &n, NULL) == KVD_OK);
        for (uint32_t i = 0; i < n; i++) KVT_NEED(kvd_release(admin, left[i].continuation, NULL) == KVD_OK);
    }
    KVT_TRUE(e2e_until(all_is_available, admin, 60, NULL));
    scene_audit(admin);
    kvd_disconnect(admin);
}

/* Few requests may miss a rare type: a hundredth of them are goodbyes and fences. */
static void report_tally(uint64_t n) {
    printf("  %" PRIu64 " requests, %" PRIu64 " audits\n ", count_sent(), tally->audits);
    for (uint16_t i = 2; i < FRAME_TYPE_END; i++) {
        printf(" %s %" PRIu64 "/%" PRIu64, frame_type_name(i), tally->taken[i], tally->sent[i]);
        KVT_TRUE(tally->sent[i] > 0 || n < REQUESTS);
    }
    printf("\n");
}

/* SRV-1, SRV-2, SRV-3, INV-1 to INV-17, POOL-6. */
static void srv_2_requests_of_all_types(void) {
    const char *given = getenv("KVD_FUZZED_REQUESTS");
    uint64_t n = given ? strtoull(given, NULL, 10) : REQUESTS / E2E_SLOW;
    struct e2e_setup setup = { .layers = 1,
                               .kv_heads = 1,
                               .head_dim = 16,
                               .max_context = 1024,
                               .max_concurrency = 8,
                               .capacity_tokens = 4096,
                               .backend = "mtp",
                               .draft_window = 4,
                               .lease_growth = true,
                               .more = "[limits]\ncontinuations = 32\nsessions_per_uid = 4096\nsessions = 4096\n"
                                       "[host]\narena = 256KiB\n" };
    tally = mmap(NULL, sizeof *tally, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    KVT_NEED(tally != MAP_FAILED && e2e_daemon_start(&daemon_, &setup));
    random_ = kvt_seed();
    for (uint64_t i = 0; count_sent() < n && i < n; i++) {
        if (!KVT_TRUE(speak_in_a_process((uint32_t)(n - count_sent() < A_PROCESS ? n - count_sent() : A_PROCESS))))
            break;
    }
    KVT_EQ_STR(tally->fault, "");
    if (!tally->fault[0]) check_afterwards();
    report_tally(n);
    e2e_daemon_free(&daemon_);
    munmap(tally, sizeof *tally);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(srv_2_requests_of_all_types), { 0 } };
    signal(SIGPIPE, SIG_IGN);
    return kvt_main("e2e requests", cases, argc, argv);
}
