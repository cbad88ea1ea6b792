/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests through the whole service: sessions, numbers, store, device tables. The input is a program: each step picks
 * a connection and a request and fills it from the bytes that follow, with handles that earlier answers gave (or
 * nearly), sends raw bytes as a frame, or writes anything on the board of its session and rings (STEP-3).
 *
 * Must hold: every frame has one answer that decodes; the audit finds nothing after every program; and when all
 * sessions have said goodbye or died and all continuations are released, everything is available again. So one service
 * serves all programs: each finds it as the first one did.
 *
 * A peer's pidfd is the end of a pipe here, which becomes readable like one when the fuzzer closes the other end: that
 * is how the process dies.
 *
 * With FUZZ_HOST (fuzz_dispatch_host): a host arena that is much smaller than the pools, tenants = uid with two users,
 * victims that are demoted, and steps that hold the copies between device and arena, so that requests come while
 * transitions are in flight and processes leave in the middle of them. FUZZ_HOST 2 (fuzz_dispatch_state): with state
 * images and two devices.
 */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "boards.h"
#include "codec.h"
#include "device_host_hook.h"
#include "draw.h"
#include "fuzz.h"
#include "service.h"

#ifndef FUZZ_HOST
#define FUZZ_HOST 0
#endif
#define ARENA (96 << 10)
#define LINKS 4
#define LIVES 16
#define ROWS 4

struct fuzz_link {
    struct link link; /* first */
    kvd_session_id session;
    uint64_t sequence;
    uint64_t asked, answered; /* numbers of frames */
    int *life;                /* of its process */
    bool closed;
};

static struct service *service;
static struct codec_arena *arena;
static struct fuzz_link *links[LINKS];
static const struct fuzz_link *asking; /* whose answer is waited for */
static uint8_t answer[4 * FRAME_LIMIT];
static size_t answer_bytes;
static int lives[LIVES]; /* + 1; 0: none. The writing end of what stands for a process's pidfd */
static struct draw draw;

static void must(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "fuzz_dispatch: %s\n", what);
    abort();
}

static uint8_t u8(void) { return draw_u8(&draw); }

/* ---- copies between device and arena ------------------------------------------------------------- */

static pthread_mutex_t gate_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate_changed = PTHREAD_COND_INITIALIZER;
static bool held;

/* In the devices' threads. */
static int at_gate(void *context, enum device_direction direction, uint64_t ticket, enum device_host_step at) {
    (void)context, (void)direction, (void)ticket, (void)at;
    pthread_mutex_lock(&gate_lock);
    while (held) pthread_cond_wait(&gate_changed, &gate_lock);
    pthread_mutex_unlock(&gate_lock);
    return 0;
}
static const struct device_host_hook gate = { .step = at_gate };

static void hold(bool on) {
    pthread_mutex_lock(&gate_lock);
    held = on;
    pthread_cond_broadcast(&gate_changed);
    pthread_mutex_unlock(&gate_lock);
}

/* ---- links ------------------------------------------------------------------------------------- */

static bool post(struct link *link, const uint8_t *frame, size_t bytes, bool event) {
    struct fuzz_link *l = (struct fuzz_link *)link;
    if (event) return true;
    struct frame_head head;
    must(!frame_head_read(frame, bytes, &head), "an answer is a frame");
    l->answered++;
    if (l != asking || head.id != l->asked) return true; /* of an earlier request, which waited */
    must(answer_bytes + bytes <= sizeof answer, "answers stay bounded");
    memcpy(answer + answer_bytes, frame, bytes);
    answer_bytes += bytes;
    return true;
}
static void close_link(struct link *link) { ((struct fuzz_link *)link)->closed = true; }
static void release(struct link *link) {
    service_link_fini(link);
    free(link);
}
static const struct link_ops ops = { .post = post, .close = close_link, .release = release };

static void end_life(int *life) {
    if (*life) close(*life - 1);
    *life = 0;
}

/* A process, instead of the one whose life it is given, and its connection. other: another user's, where users are told
 * apart. */
static struct fuzz_link *link_new(bool other, int *life) {
    struct fuzz_link *l = calloc(1, sizeof *l);
    int ends[2];
    must(l && !pipe2(ends, O_CLOEXEC), "a link can be made");
    struct peer peer = {
        .uid = getuid() + (FUZZ_HOST && other), .gid = getgid(), .pid = (uint64_t)getpid(), .pidfd = ends[0]
    };
    service_link_init(&l->link, &ops, &peer);
    end_life(life);
    l->life = life;
    *life = ends[1] + 1;
    return l;
}

/* The program's link `at`. Of too many processes the oldest dies. */
static void link_begin(int at) {
    static uint32_t begun;
    links[at] = link_new(at == LINKS - 1, &lives[begun++ % LIVES]);
}

static void link_drop(struct fuzz_link *l) {
    service_link_closed(service, &l->link);
    link_unref(&l->link);
}

/* Until the devices or the host tier say something; what they are held from saying is not waited for. */
static void wait_a_while(void) {
    struct pollfd told = { .fd = service_fd(service), .events = POLLIN };
    (void)poll(&told, 1, held ? 0 : 1);
    service_run(service);
}

/* One frame in, its answer out; parked ones are waited for, unless the copies are held. */
static void exchange(struct fuzz_link *l, const uint8_t *frame, size_t bytes, struct msg_reply *ret_reply) {
    struct frame_head head;
    char err[KVD_MESSAGE_BYTES];
    asking = l;
    answer_bytes = 0;
    ret_reply->status = UINT32_MAX;
    if (!service_serve(service, &l->link, frame, bytes)) {
        l->closed = true;
        return;
    }
    for (int i = 0; !answer_bytes && !l->closed && (!held || i < 4); i++) wait_a_while();
    if (!answer_bytes && held) return;
    must(!frame_head_read(answer, answer_bytes, &head) && (size_t)head.length + 4 == answer_bytes &&
             head.flags == FRAME_F_REPLY,
         "one frame has one answer");
    codec_arena_reset(arena);
    must(!codec_decode_reply(head.type, answer + FRAME_HEADER, answer_bytes - FRAME_HEADER, arena, ret_reply, err,
                             sizeof err) ||
             head.type == 0 || head.type >= FRAME_TYPE_END,
         "an answer decodes");
}

static void call(struct fuzz_link *l, struct msg_request *q, struct msg_reply *ret_reply) {
    static uint8_t frame[FRAME_LIMIT];
    char err[KVD_MESSAGE_BYTES];
    size_t bytes;
    codec_arena_reset(arena);
    ret_reply->status = UINT32_MAX;
    if (codec_encode_request(q, arena, frame + FRAME_HEADER, sizeof frame - FRAME_HEADER, &bytes, err, sizeof err))
        return;
    frame_head_write(frame, q->type, 0, ++l->asked, bytes);
    exchange(l, frame, FRAME_HEADER + bytes, ret_reply);
}

static void hello(struct fuzz_link *l, uint32_t role) {
    struct msg_request q = { .type = FRAME_HELLO,
                             .u.hello = { .protocol = KVD_PROTOCOL_VERSION, .role = role, .name = "fuzz" } };
    struct msg_reply r;
    call(l, &q, &r);
    if (r.status != KVD_OK) return;
    l->session = r.u.hello.session;
    l->sequence = 0;
    draw_remember(&draw, DRAW_SESSION, l->session.bits);
}

/* ---- continuations that come and go between the tiers: what bytes alone seldom get to ---------------- */

static uint64_t conts[8], running[4];
static uint32_t frontiers[8];
static uint32_t n_conts, n_running;

static bool scheduler_calls(struct msg_request *q, struct msg_reply *r) {
    *r = (struct msg_reply){ .status = UINT32_MAX };
    if (links[0]->closed || !links[0]->session.bits) return false;
    q->header = (struct msg_header){ .session = links[0]->session, .sequence = ++links[0]->sequence };
    call(links[0], q, r);
    return r->status == KVD_OK;
}

static kvd_continuation some_cont(void) { return (kvd_continuation){ conts[u8() % 8] }; }

static bool commit(kvd_sequence sequence, uint32_t tokens) {
    struct msg_request q = { .type = FRAME_ROUND, .u.round = { 1, draw.items } };
    struct msg_reply r;
    draw.items[0] = (struct kvd_round_item){ .sequence = sequence,
                                             .ask = FUZZ_HOST == 2 ? KVD_ROUND_STATE : 0,
                                             .state_frontier = tokens };
    for (int p = 0; p < KVD_MAX_POOLS; p++)
        draw.items[0].pool[p] = (struct kvd_round_pool){ .ask = KVD_ROUND_COMMIT, .commit = tokens };
    if (!scheduler_calls(&q, &r)) return false;
    draw_digests(&draw, tokens / KVD_PAGE_TOKENS > 8 ? 8 : tokens / KVD_PAGE_TOKENS);
    q = (struct msg_request){ .type = FRAME_NAME_PAGES,
                              .u.names = { sequence, 0, tokens / KVD_PAGE_TOKENS, draw.digests } };
    return tokens / KVD_PAGE_TOKENS == 0 || scheduler_calls(&q, &r);
}

static void retain(kvd_sequence sequence, uint32_t tokens) {
    struct msg_request q = { .type = FRAME_FINISH,
                             .u.finish = { .sequence = sequence, .retain = true, .tail.n = tokens % KVD_PAGE_TOKENS } };
    struct msg_reply r;
    if (!scheduler_calls(&q, &r)) return;
    frontiers[n_conts % 8] = tokens;
    conts[n_conts++ % 8] = r.u.finished.continuation.bits;
}

static void make_cont(void) {
    uint32_t tokens = 1 + u8() * 2u % 511u;
    struct msg_request q = { .type = FRAME_ACTIVATE,
                             .u.activation = { .root.digest = { { 1 } },
                                               .worker = links[0]->session,
                                               .prompt_tokens = tokens,
                                               .max_output_tokens = 1,
                                               .ensure = { tokens, tokens } } };
    struct msg_reply r;
    if (!scheduler_calls(&q, &r)) return;
    kvd_sequence sequence = r.u.activated.sequence;
    running[n_running++ % 4] = sequence.bits;
    if (commit(sequence, tokens)) retain(sequence, tokens);
}

static void go_on(void) {
    struct msg_request q = { .type = FRAME_ACTIVATE };
    struct kvd_activation *a = &q.u.activation;
    struct msg_reply r;
    a->root.digest.bytes[0] = u8() % 8 ? 1 : 2;
    a->worker = links[u8() % 2]->session;
    if (u8() % 4) a->from = some_cont();
    a->keep = u8() % 2;
    a->frontier = a->from.bits ? 1 + u8() * 2u : 0;
    for (int i = 0; FUZZ_HOST == 2 && a->from.bits && i < 8; i++) /* with state it has one frontier alone */
        if (conts[i] == a->from.bits) a->frontier = frontiers[i];
    a->prompt_tokens = a->frontier + 1 + u8();
    a->max_output_tokens = 1 + u8();
    a->ensure[0] = a->ensure[1] = a->prompt_tokens;
    a->n_victims = u8() % 4;
    a->victims = draw.victims;
    for (uint32_t i = 0; i < a->n_victims; i++)
        draw.victims[i] = (struct kvd_victim){ some_cont(), u8() % 2, u8() % 4 ? 0 : u8() };
    if (scheduler_calls(&q, &r)) running[n_running++ % 4] = r.u.activated.sequence.bits;
}

/* A bit of the arena changes. */
static void rot(uint64_t at) {
    static int fd = -1;
    char path[64];
    struct stat s;
    uint8_t byte;
    snprintf(path, sizeof path, "/dev/shm/kvd-arena-fuzz-%d", (int)getpid());
    if (fd < 0) fd = open(path, O_RDWR | O_CLOEXEC);
    must(fd >= 0 && !fstat(fd, &s), "the arena is there");
    off_t place = s.st_size - ARENA + (off_t)(at % ARENA);
    must(pread(fd, &byte, 1, place) == 1, "the arena can be read");
    byte ^= 1;
    must(pwrite(fd, &byte, 1, place) == 1, "the arena can be written");
}

static void tier_step(void) {
    struct msg_request q = { .type = 0 };
    struct msg_reply r;
    uint8_t what = u8();
    switch (what % 12) {
    case 0:
    case 1: make_cont(); return;
    case 2:
    case 3: go_on(); return;
    case 4: hold(u8() % 2); return;
    case 5: rot(u8() * 400u); return;
    case 6: q = (struct msg_request){ .type = FRAME_RELEASE, .u.continuation.continuation = some_cont() }; break;
    case 7: q = (struct msg_request){ .type = FRAME_FINISH, .u.finish.sequence.bits = running[u8() % 4] }; break;
    case 8: q = (struct msg_request){ .type = FRAME_PREFETCH, .u.prefetch = some_cont() }; break;
    case 9: q = (struct msg_request){ .type = FRAME_DROP, .u.drop = { some_cont(), u8() % 2 } }; break;
    case 10: {
        uint32_t tokens = 1 + u8() * 2u;
        kvd_sequence sequence = { running[u8() % 4] };
        if (commit(sequence, tokens)) retain(sequence, tokens);
        return;
    }
    default: q = (struct msg_request){ .type = FRAME_DEMOTE, .u.demote = { some_cont(), u8() % 4 == 0 } }; break;
    }
    (void)scheduler_calls(&q, &r);
}

/* ---- boards ---------------------------------------------------------------------------------------- */

static struct hand {
    struct board_segment *segment; /* NULL: none */
    int bell;
    kvd_session_id session;
} hands[LINKS];

static int granted(const struct fuzz_link *l, uint32_t index) {
    char why[KVD_MESSAGE_BYTES];
    struct service_grant g = { .session = l->session,
                               .pid = (uint64_t)getpid(),
                               .uid = getuid() + (FUZZ_HOST && l == links[LINKS - 1]),
                               .fd_index = index,
                               .fd = -1 };
    return service_grant_fd(service, &g, why, sizeof why) == KVD_OK ? g.fd : -1;
}

static void drop_board(struct hand *h) {
    if (!h->segment) return;
    munmap(h->segment, board_bytes(ROWS));
    close(h->bell);
    h->segment = NULL;
}

/* That of the link's session, which may be another one than last time. */
static bool take_board(struct hand *h, const struct fuzz_link *l) {
    if (h->segment && h->session.bits == l->session.bits) return true;
    drop_board(h);
    int fd = granted(l, BOARD_SEGMENT_FD);
    if (fd < 0) return false;
    void *at = mmap(NULL, board_bytes(ROWS), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    must(at != MAP_FAILED, "a board can be mapped");
    *h = (struct hand){ .segment = at, .bell = granted(l, BOARD_BELL_FD), .session = l->session };
    must(h->bell >= 0, "who has a board has its bell");
    return true;
}

/* Wishes near what is mapped, or a word anywhere. */
static void scribble(struct board_segment *segment) {
    struct board_slot *slot = &segment->slot[u8() % ROWS];
    struct board_wish wishes[KVD_MAX_POOLS];
    uint8_t what = u8();
    if (what < 64) {
        uint64_t word = u8() * UINT64_C(0x0101010101010101);
        memcpy((uint8_t *)segment + u8() * 8u % board_bytes(ROWS), &word, sizeof word);
        return;
    }
    for (uint32_t p = 0; p < KVD_MAX_POOLS; p++) {
        uint32_t end = slot->mapped[p] + 64;
        wishes[p] = (struct board_wish){ what & 1 ? end - u8() : 0, what & 2 ? end - u8() : 0 };
    }
    board_write_wishes(slot, slot->turn, wishes);
}

/* A sequence of the scheduler's own on its board, which bytes alone hardly ever put there. */
static void begin_steps(void) {
    struct msg_request q = { .type = FRAME_ACTIVATE,
                             .u.activation = { .root.digest = { { 1 } },
                                               .worker = links[0]->session,
                                               .prompt_tokens = 1 + u8(),
                                               .max_output_tokens = 1 + u8() * 2u } };
    struct msg_reply r;
    if (!scheduler_calls(&q, &r)) return;
    running[n_running++ % 4] = r.u.activated.sequence.bits;
    q = (struct msg_request){ .type = FRAME_ROUND, .u.round = { 1, draw.items } };
    draw.items[0] = (struct kvd_round_item){ .sequence = r.u.activated.sequence };
    for (int p = 0; p < KVD_MAX_POOLS; p++)
        draw.items[0].pool[p] = (struct kvd_round_pool){ .ask = KVD_ROUND_ENSURE, .ensure = 1 + u8() };
    (void)scheduler_calls(&q, &r);
}

static void board_step(struct hand *h, const struct fuzz_link *l) {
    if (!take_board(h, l)) return;
    if (l == links[0] && u8() % 2) begin_steps();
    for (uint8_t n = u8() % 4; n; n--) scribble(h->segment);
    must(write(h->bell, &(uint64_t){ 1 }, sizeof(uint64_t)) == sizeof(uint64_t), "a bell can be rung");
    service_run(service);
}

static void step(void) {
    struct msg_reply r = { 0 };
    uint8_t which = u8(), type = u8();
    struct fuzz_link *l = links[which % LINKS];
    if (FUZZ_HOST && type < 160) {
        tier_step();
        return;
    }
    if (type >= 253) { /* its process dies, whatever it does */
        end_life(l->life);
        service_run(service);
    }
    if (type >= 250 || l->closed) { /* another connection */
        link_drop(l);
        link_begin(which % LINKS);
        l = links[which % LINKS];
    }
    if (FUZZ_HOST && type >= 240) hold(type >= 245);
    if (!l->session.bits) hello(l, KVD_ROLE_OBSERVER + type % 4);
    if (type >= 234 && type < 240) {
        board_step(&hands[which % LINKS], l);
        return;
    }
    if (type >= 230) { /* raw */
        uint8_t frame[FRAME_HEADER + 64];
        size_t n = u8() % 65;
        for (size_t i = 0; i < n; i++) frame[FRAME_HEADER + i] = u8();
        frame_head_write(frame, u8(), 0, ++l->asked, n);
        exchange(l, frame, FRAME_HEADER + n, &r);
        return;
    }
    struct msg_request q = { .type = (uint16_t)(2 + type % (FRAME_TYPE_END - 2)), .header.session = l->session };
    if (q.type == FRAME_DRAIN) q.type = FRAME_ROUND;
    draw_request(&draw, &q);
    if (draw_changes(q.type)) q.header.sequence = which >= 240 ? u8() : ++l->sequence;
    call(l, &q, &r);
    if (q.type == FRAME_GOODBYE && r.status == KVD_OK) {
        l->session.bits = 0;
        l->answered = l->asked; /* what still waited is answered no more */
    }
    draw_learn(&draw, &r);
}

/* ---- the end of a program -------------------------------------------------------------------------- */

/* What waited for copies has its answer, or nobody who could take it. */
static void let_all_end(void) {
    hold(false);
    for (int i = 0; i < LINKS; i++)
        while (links[i]->answered < links[i]->asked && !links[i]->closed) wait_a_while();
}

static void ask_stats(struct fuzz_link *admin, struct msg_reply *ret_reply) {
    struct msg_request stats = { .type = FRAME_STATS, .header.session = admin->session };
    call(admin, &stats, ret_reply);
    must(ret_reply->status == KVD_OK, "figures are told");
}

/* Every process of the program dies. The admin stays from program to program, unless it was fenced. */
static struct fuzz_link *end_sessions(void) {
    static struct fuzz_link *admin;
    static int life;
    struct msg_request stats = { .type = FRAME_STATS };
    struct msg_reply r = { .status = UINT32_MAX };
    for (int i = 0; i < LIVES; i++) end_life(&lives[i]);
    service_run(service);
    if (admin) stats.header.session = admin->session;
    if (admin && !admin->closed) call(admin, &stats, &r);
    if (r.status == KVD_OK) return admin;
    if (admin) link_drop(admin);
    admin = link_new(false, &life);
    service_run(service);
    hello(admin, KVD_ROLE_ADMIN);
    must(admin->session.bits != 0, "an admin is always let in");
    return admin;
}

/* Transitions that were left by whoever asked for them, and activations that end behind those. Ten seconds at least:
 * what is there then stays. */
static void wait_for_transitions(struct fuzz_link *admin) {
    struct msg_reply r = { 0 };
    const struct kvd_stats *s = &r.u.stats;
    ask_stats(admin, &r);
    for (int i = 0; i < 10000 && (s->moves || s->move_pages_left || s->sequences || s->groups || s->sessions > 1);
         i++) {
        wait_a_while();
        ask_stats(admin, &r);
    }
}

static void check_audit(struct fuzz_link *admin) {
    struct msg_reply r;
    struct msg_request audit = { .type = FRAME_AUDIT, .header.session = admin->session };
    call(admin, &audit, &r);
    must(r.status == KVD_OK, "the audit runs");
    if (r.u.audit->violations) fprintf(stderr, "%s\n", r.u.audit->text);
    must(r.u.audit->violations == 0, "the audit finds nothing");
}

static void release_all(struct fuzz_link *admin) {
    struct msg_request list = { .type = FRAME_LIST_CONTINUATIONS, .header.session = admin->session };
    struct msg_reply r;
    for (call(admin, &list, &r); r.u.continuations.n; call(admin, &list, &r)) {
        struct msg_request drop = { .type = FRAME_RELEASE,
                                    .header = { .session = admin->session, .sequence = ++admin->sequence },
                                    .u.continuation.continuation = r.u.continuations.items[0].continuation };
        call(admin, &drop, &r);
        must(r.status == KVD_OK || (FUZZ_HOST && r.status == KVD_NOT_FOUND),
             "an idle continuation can be released"); /* or is lost by now */
    }
}

/* The scrub gives back what it reads a little later. */
static void check_empty(struct fuzz_link *admin) {
    struct msg_reply r;
    const struct kvd_stats *s = &r.u.stats;
    ask_stats(admin, &r);
    for (int i = 0; i < 10000 && s->host_occupied; i++) {
        wait_a_while();
        ask_stats(admin, &r);
    }
    for (uint32_t p = 0; p < s->n_pools; p++)
        must(s->pool[p].available == s->pool[p].capacity && !s->pool[p].rows_used && !s->pool[p].quarantined,
             "everything is available again");
    char left[160];
    snprintf(left, sizeof left,
             "nothing is left over: %u sessions but one, %u sequences, %u groups, %llu entries, %u moves, %u demoted",
             s->sessions - 1, s->sequences, s->groups, (unsigned long long)s->membership_used, s->moves,
             s->demoted_continuations);
    must(s->sessions == 1 && s->sequences == 0 && s->groups == 0 && s->membership_used == 0 && s->moves == 0 &&
             s->demoted_continuations == 0,
         left);
    must(s->host_occupied == 0, "the arena is empty again");
    must(FUZZ_HOST || s->damaged_replicas == 0, "what comes back from the host is what went there");
}

/* Everything goes; what is left over is a leak. */
static void settle(void) {
    let_all_end();
    struct fuzz_link *admin = end_sessions();
    wait_for_transitions(admin);
    check_audit(admin);
    release_all(admin);
    check_empty(admin);
}

/* Its shared memory goes with it, the arena too. */
static void end(void) {
    char name[40];
    service = service_free(service);
    arena = codec_arena_free(arena);
    snprintf(name, sizeof name, "/kvd-arena-fuzz-%d", (int)getpid());
    shm_unlink(name);
}

static void begin(void) {
    static const char text[] =
        "[kvd]\nlog_level = error\n[devices]\nmemory = 64MiB\n"
        "[model]\nlayers = 1\nhead_dim = 16\nmax_context = 1024\n"
        "max_concurrency = 4\n[backend]\nkind = mtp\ndraft_window = 4\n[capacity]\ntokens = 2048\n"
        "[lease]\ngrowth = yes\nwindow = 128\n"
        "prefill_chunk = 64\nmap_ahead = 1\n[limits]\nsessions = 12\ncontinuations = 8\n"
        "[host]\narena = 96KiB\nthreads = 1\n";
    static const char plain[] = "scrub = 0\n[model]\nkv_heads = 1\n";
    static const char host[] = "scrub = 1GiB\n[access]\ntenants = uid\n[model]\nkv_heads = 1\n";
    static const char state[] = "scrub = 1GiB\n[devices]\ndevice.0 = host:0\ndevice.1 = host:1\n"
                                "[model]\nkv_heads = 2\n[capacity]\nstate_bytes = 3000\nstate_slots = 7\n";
    const char *const mores[] = { plain, host, state };
    char all[sizeof text + 256];
    struct config config;
    char err[1024], prefix[40];
    if (service) return;
    arena = codec_arena_new();
    atexit(end);
    log_init(LOG_ERROR);
    snprintf(prefix, sizeof prefix, "/kvd-fuzz-%d-", (int)getpid());
    snprintf(all, sizeof all, "%s%s", text, mores[FUZZ_HOST]);
    if (FUZZ_HOST) device_host_set_hook(&gate);
    bool ok = !config_parse("fuzz", all, &config, err, sizeof err) &&
              !service_new(&config, prefix, NULL, &service, err, sizeof err);
    must(ok, err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    begin();
    draw = (struct draw){ .input = data, .left = size };
    memset(conts, 0, sizeof conts);
    memset(running, 0, sizeof running);
    n_conts = n_running = 0;
    for (int i = 0; i < LINKS; i++) link_begin(i);
    hello(links[0], KVD_ROLE_SCHEDULER);
    hello(links[1], KVD_ROLE_WORKER);
    hello(links[2], KVD_ROLE_ADMIN);
    while (draw.left) step();
    settle();
    for (int i = 0; i < LINKS; i++) {
        link_drop(links[i]);
        drop_board(&hands[i]);
    }
    return 0;
}
