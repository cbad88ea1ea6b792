/* SPDX-License-Identifier: Apache-2.0
 *
 * Decode without a call: the board of a session, as its worker writes it, well or ill. STEP-1 to STEP-5, SPACE-3,
 * SPACE-6, GRP-2, FIT-4, ROW-4, SRV-1, SRV-5, SRV-6.
 */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "board.h"
#include "boards.h"
#include "core.h"
#include "device_backend.h"
#include "service_fixture.h"
#include "session.h"

#define REQUEST(t, ...)                                                                                                \
    &(struct msg_request) { .type = (t), __VA_ARGS__ }
#define L 64u
#define WINDOW_POOL "[pool.near]\ngroups = near\nwindow = 256\nlead = 32\n[group.near]\nlayers = 3\n"

static struct fx fx;
static struct msg_reply r;

static uint32_t ask(struct fx_peer *p, struct msg_request *q) { return fx_call(p, q, &r) ? r.status : UINT32_MAX; }

/* ---- a worker with its board ------------------------------------------------------------------------------ */

struct hand {
    struct fx_peer *peer;
    struct board_segment *board;
    size_t bytes;
    int bell;
};

static uint32_t grant(struct fx_peer *p, uint64_t token, uint32_t index, kvd_session_id session, int *ret_fd) {
    char why[KVD_MESSAGE_BYTES] = "";
    struct service_grant g = {
        .token = token, .session = session, .pid = (uint64_t)p->pid, .uid = getuid(), .fd_index = index, .fd = -1
    };
    uint32_t status = service_grant_fd(fx.service, &g, why, sizeof why);
    *ret_fd = g.fd;
    return status;
}

static bool take_board(struct hand *h, struct fx_peer *peer) {
    int segment = -1;
    *h = (struct hand){ .peer = peer, .bell = -1 };
    if (!KVT_EQ(ask(peer, REQUEST(FRAME_DESCRIBE_STORE)), KVD_OK)) return false;
    uint32_t board_index = r.u.store->board_index, bell_index = r.u.store->bell_index;
    h->bytes = board_bytes(r.u.store->max_concurrency);
    if (!KVT_TRUE(board_index && bell_index) ||
        !KVT_EQ(grant(peer, r.u.store->fd_token, board_index, (kvd_session_id){ 0 }, &segment), KVD_OK) ||
        !KVT_EQ(grant(peer, 0, bell_index, peer->session, &h->bell), KVD_OK))
        return false;
    h->board = mmap(NULL, h->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, segment, 0);
    KVT_TRUE(fcntl(segment, F_GET_SEALS) & F_SEAL_SHRINK);
    close(segment);
    return KVT_TRUE(h->board != MAP_FAILED) && KVT_EQ(h->board->magic, BOARD_MAGIC) &&
           KVT_EQ(h->board->epoch, fx.epoch) && KVT_EQ(h->board->slot_bytes, sizeof(struct board_slot));
}

static void drop_board(struct hand *h) {
    munmap(h->board, h->bytes);
    close(h->bell);
    fx_peer_free(h->peer);
}

static void ring(const struct hand *h) {
    uint64_t one = 1;
    KVT_EQ_I(write(h->bell, &one, sizeof one), sizeof one);
    fx_settle(&fx, NULL);
}

/* One sequence of the worker, in all pools alike. */
struct step {
    struct hand *hand;
    kvd_sequence sequence;
    uint32_t row, n_pools, mapped[KVD_MAX_POOLS];
    uint64_t turn;
};

static struct board_slot *slot_of(const struct step *s) { return &s->hand->board->slot[s->row]; }

static enum board_standing look(struct step *s) {
    return board_look(slot_of(s), s->sequence.bits, &s->turn, s->mapped);
}

static void wish(const struct step *s, uint32_t commit, uint32_t ensure) {
    struct board_wish wishes[KVD_MAX_POOLS] = { 0 };
    for (uint32_t p = 0; p < s->n_pools; p++) wishes[p] = (struct board_wish){ commit, ensure };
    board_write_wishes(slot_of(s), s->turn, wishes);
}

/* Activated, its prompt committed, and on the board. */
static bool begin_step(struct step *s, struct hand *h, struct fx_peer *scheduler, uint32_t prompt, uint32_t output) {
    struct kvd_activated a = { 0 };
    *s = (struct step){ .hand = h };
    if (!KVT_EQ(fx_activate(scheduler, h->peer->session, prompt, output, &a), KVD_OK)) return false;
    s->sequence = a.sequence;
    s->row = a.pool[0].row;
    s->n_pools = a.n_pools;
    KVT_TRUE(look(s) != BOARD_ON); /* not before its session maps */
    KVT_EQ(fx_round(h->peer, s->sequence, prompt, prompt + 1, NULL), KVD_OK);
    return KVT_EQ(look(s), BOARD_ON) && KVT_TRUE(s->turn != 0);
}

/* The committed frontier that kvd knows, by a request that changes nothing. */
static uint32_t committed(struct fx_peer *p, kvd_sequence sequence) {
    if (!KVT_EQ(ask(p, REQUEST(FRAME_LIST_SEQUENCES, .u.list = { .max = 16 })), KVD_OK)) return UINT32_MAX;
    for (uint32_t i = 0; i < r.u.sequences.n; i++)
        if (r.u.sequences.items[i].sequence.bits == sequence.bits) return r.u.sequences.items[i].pool[0].committed;
    return UINT32_MAX;
}

static uint64_t boundaries(void) { return fx.service->metrics.board_boundaries; }
static uint64_t refusals(void) { return fx.service->metrics.board_refusals; }

static const int32_t *row_of(const struct step *s, uint32_t pool) {
    return (const int32_t *)(uintptr_t)service_info(fx.service)->pool[pool].table[0].local_address + (size_t)s->row * L;
}

/* ROW-4: what the board calls mapped is in the row in device memory, from the first page that is read. */
static bool row_is_mapped(const struct step *s) {
    bool ok = true;
    for (uint32_t p = 0; p < s->n_pools; p++) {
        uint32_t window = service_info(fx.service)->pool[p].window, pages = s->mapped[p] / KVD_PAGE_TOKENS;
        for (uint32_t i = window && pages > 3 ? pages - 3 : 0; i < pages; i++) ok = ok && row_of(s, p)[i] >= 0;
        if (pages < L) ok = ok && row_of(s, p)[pages] == -1;
    }
    return KVT_TRUE(ok);
}

/* ---- good workers ------------------------------------------------------------------------------------------ */

/* Decodes to `end` as libkvd does. Returns how often it rang. */
static uint32_t decode(struct step *s, uint32_t from, uint32_t end) {
    uint32_t rings = 0;
    for (uint32_t f = from; f < end; f++) {
        if (!KVT_EQ(look(s), BOARD_ON)) return rings;
        bool last = false;
        for (uint32_t p = 0; p < s->n_pools; p++) {
            if (!KVT_TRUE(f + 1 <= s->mapped[p])) return rings; /* nobody waits for a page */
            last = last || f + 1 + KVD_PAGE_TOKENS > s->mapped[p];
        }
        wish(s, f, f + 1);
        if (!last) continue;
        rings++;
        ring(s->hand);
        look(s);
        if (!row_is_mapped(s)) return rings;
    }
    return rings;
}

static void decode_of(const struct fx_setup *setup) {
    struct hand h;
    struct step s;
    KVT_NEED(fx_start(&fx, setup));
    struct fx_peer *scheduler = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    KVT_NEED(take_board(&h, fx_session(&fx, KVD_ROLE_WORKER, 0)));
    KVT_NEED(begin_step(&s, &h, scheduler, 100, 2000));
    uint64_t requests = fx.service->requests;
    uint32_t rings = decode(&s, 100, 1400);
    KVT_EQ(fx.service->requests, requests); /* STEP-2: not one message */
    KVT_TRUE(rings >= 3 && rings <= 8);
    KVT_EQ(boundaries(), rings);
    KVT_EQ(refusals(), 0);
    KVT_TRUE(committed(scheduler, s.sequence) > 1000); /* STEP-4: as far as kvd has looked */
    KVT_EQ(fx_round(h.peer, s.sequence, 1400, 1401, NULL), KVD_OK);
    KVT_EQ(committed(scheduler, s.sequence), 1400);
    KVT_EQ(fx_audit(&fx), 0);
    KVT_EQ(fx_finish(h.peer, s.sequence), KVD_OK);
    KVT_TRUE(look(&s) != BOARD_ON);
    drop_board(&h);
    fx_peer_free(scheduler);
    fx_stop(&fx);
}

static void step_2_the_next_window_comes_without_a_message(void) { decode_of(&(struct fx_setup){ .map_ahead = 4 }); }
static void step_2_in_two_pools(void) { decode_of(&(struct fx_setup){ .map_ahead = 4, .backend = "mtp" }); }
static void step_2_space_3_leases_grow(void) { decode_of(&(struct fx_setup){ .map_ahead = 4, .growth = true }); }
static void step_2_grp_2_windows_move_on(void) { decode_of(&(struct fx_setup){ .map_ahead = 4, .more = WINDOW_POOL }); }

/* SRV-1: to ring twice is to ring once. */
static void step_2_twice_is_once(void) {
    struct hand h;
    struct step s;
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .map_ahead = 4 }));
    struct fx_peer *scheduler = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    KVT_NEED(take_board(&h, fx_session(&fx, KVD_ROLE_WORKER, 0)));
    KVT_NEED(begin_step(&s, &h, scheduler, 100, 2000));
    wish(&s, s.mapped[0] - 10, s.mapped[0] - 9);
    ring(&h);
    KVT_EQ(look(&s), BOARD_ON);
    struct step once = s;
    struct kvd_stats stats = fx_stats(scheduler);
    ring(&h);
    ring(&h);
    KVT_EQ(look(&s), BOARD_ON);
    KVT_EQ_MEM(&once, &s, sizeof s);
    KVT_EQ(fx_stats(scheduler).pool[0].allocated, stats.pool[0].allocated);
    drop_board(&h);
    fx_peer_free(scheduler);
    fx_stop(&fx);
}

/* ---- a device that is late ---------------------------------------------------------------------------------- */

static struct device_backend late;
static bool held;

static int late_submit(struct device *device, const struct device_batch *batch, uint64_t *ret_ticket,
                       bool *ret_inline_done, char *err, size_t err_bytes) {
    int status = device_host_backend.submit(device, batch, ret_ticket, ret_inline_done, err, err_bytes);
    *ret_inline_done = *ret_inline_done && !held;
    return status;
}

static int late_poll(struct device *device, uint64_t *ret_done, char *err, size_t err_bytes) {
    static uint64_t said;
    int status = held ? 0 : device_host_backend.poll(device, &said, err, err_bytes);
    *ret_done = said;
    return status;
}

static void let_go(void) {
    held = false;
    service_run(fx.service);
    fx_settle(&fx, NULL);
}

/* ROW-4, STEP-2: what is mapped is told when it is in device memory. A boundary, a death and the next session of the
 * same place come in between. */
static void step_2_row_4_told_when_it_is_there(void) {
    struct hand h;
    struct step s;
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .map_ahead = 4 }));
    late = device_host_backend;
    late.submit = late_submit;
    late.poll = late_poll;
    fx.service->pools.device[0]->backend = &late;
    struct fx_peer *scheduler = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    KVT_NEED(take_board(&h, fx_session(&fx, KVD_ROLE_WORKER, 0)));
    KVT_NEED(begin_step(&s, &h, scheduler, 100, 2000));
    uint32_t before = s.mapped[0];
    held = true;
    wish(&s, before - 10, before - 9);
    ring(&h);
    ring(&h); /* twice is once */
    KVT_EQ(look(&s), BOARD_ON);
    KVT_EQ(s.mapped[0], before);
    KVT_EQ(boundaries(), 1);
    let_go();
    KVT_EQ(look(&s), BOARD_ON);
    KVT_TRUE(s.mapped[0] > before && row_is_mapped(&s));
    KVT_EQ(boundaries(), 1);

    uint64_t turn = s.turn;
    before = s.mapped[0];
    held = true;
    wish(&s, before - 10, before - 9);
    ring(&h);
    struct kvd_round_item item = { .sequence = s.sequence,
                                   .pool = { round_pool(before - 9, KVD_NONE, KVD_NONE, before - 8) } };
    fx_send(h.peer, REQUEST(FRAME_ROUND, .header.session = h.peer->session, .header.sequence = ++h.peer->sequence,
                            .u.round = { 1, &item }));
    KVT_EQ(look(&s), BOARD_OFF);
    let_go();
    KVT_TRUE(fx_reply(h.peer, FRAME_ROUND, &r) && r.u.round.items[0].status == KVD_OK);
    KVT_EQ(look(&s), BOARD_ON);
    KVT_TRUE(s.turn != turn && s.mapped[0] > before && row_is_mapped(&s));
    KVT_EQ(committed(scheduler, s.sequence), before - 9);

    struct hand next;
    held = true;
    wish(&s, s.mapped[0] - 10, s.mapped[0] - 9);
    ring(&h);
    KVT_EQ(boundaries(), 3);
    fx_kill(h.peer);
    KVT_EQ(look(&s), BOARD_OFF);
    KVT_NEED(take_board(&next, fx_session(&fx, KVD_ROLE_WORKER, 0)));
    KVT_EQ((uint32_t)next.peer->session.bits, (uint32_t)h.peer->session.bits); /* the same place */
    ring(&next);
    let_go();
    KVT_EQ(fx_audit(&fx), 0);
    KVT_NEED(begin_step(&s, &next, scheduler, 100, 2000));
    KVT_EQ(decode(&s, 100, 400), 1);
    drop_board(&h);
    drop_board(&next);
    fx_peer_free(scheduler);
    fx_stop(&fx);
}

/* ---- what does not count ------------------------------------------------------------------------------------- */

/* STEP-1: what was written before a boundary is of the turn before. */
static void step_1_a_boundary_begins_a_turn(void) {
    struct hand h;
    struct step s;
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .map_ahead = 4 }));
    struct fx_peer *scheduler = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    KVT_NEED(take_board(&h, fx_session(&fx, KVD_ROLE_WORKER, 0)));
    KVT_NEED(begin_step(&s, &h, scheduler, 100, 2000));
    uint64_t first = s.turn;
    wish(&s, s.mapped[0] - 10, s.mapped[0] - 9); /* and does not ring */
    struct kvd_round_item item = { .sequence = s.sequence, .pool = { round_pool(200, 150, KVD_NONE, 151) } };
    KVT_EQ(ask(h.peer, REQUEST(FRAME_ROUND, .u.round = { 1, &item })), KVD_OK);
    KVT_EQ(r.u.round.items[0].status, KVD_OK);
    ring(&h);
    KVT_EQ(boundaries(), 0);
    KVT_EQ(committed(scheduler, s.sequence), 150);
    KVT_EQ(look(&s), BOARD_ON);
    KVT_TRUE(s.turn != first);
    wish(&s, s.mapped[0] - 10, s.mapped[0] - 9);
    ring(&h);
    KVT_EQ(boundaries(), 1);
    KVT_EQ(fx_round(h.peer, s.sequence, KVD_UNCHANGED, KVD_UNCHANGED, NULL), KVD_OK); /* no unit runs any more */
    KVT_EQ(look(&s), BOARD_OFF);
    drop_board(&h);
    fx_peer_free(scheduler);
    fx_stop(&fx);
}

/* STEP-3: a frontier that cannot be changes nothing and is counted; so is one for which something lacks. */
static void step_3_what_cannot_be_is_refused(void) {
    struct hand h;
    struct step s;
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .map_ahead = 4 }));
    struct fx_peer *scheduler = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    KVT_NEED(take_board(&h, fx_session(&fx, KVD_ROLE_WORKER, 0)));
    KVT_NEED(begin_step(&s, &h, scheduler, 100, 2000));
    const struct board_wish wrong[] = { { 99, s.mapped[0] },              /* it only advances */
                                        { s.mapped[0] + 1, s.mapped[0] }, /* past what is mapped */
                                        { UINT32_MAX, UINT32_MAX },
                                        { 100, UINT32_MAX },
                                        { 100, 2164 } }; /* past prompt and output */
    struct kvd_stats before = fx_stats(scheduler);
    uint32_t n = sizeof wrong / sizeof *wrong;
    for (uint32_t i = 0; i < n; i++) {
        wish(&s, wrong[i].commit, wrong[i].ensure);
        ring(&h);
        KVT_EQ(refusals(), i + 1);
    }
    wish(&s, 200, s.mapped[0]); /* the store is short in the middle */
    store_fail_acquisition(fx.service->store, 1);
    ring(&h);
    store_fail_acquisition(fx.service->store, 0);
    KVT_EQ(refusals(), n + 1);
    KVT_EQ(boundaries(), 0);
    KVT_EQ(committed(scheduler, s.sequence), 100);
    KVT_EQ(fx_stats(scheduler).pool[0].allocated, before.pool[0].allocated);
    KVT_EQ(fx_audit(&fx), 0);
    ring(&h); /* nothing lacks any more */
    KVT_EQ(committed(scheduler, s.sequence), 200);
    drop_board(&h);
    fx_peer_free(scheduler);
    fx_stop(&fx);
}

/* To the end of its window. False: there is no other one. */
static bool comes_on(struct step *s) {
    uint32_t before = s->mapped[0];
    wish(s, before - 10, before - 9);
    ring(s->hand);
    return KVT_EQ(look(s), BOARD_ON) && s->mapped[0] > before;
}

/* FIT-4: a window takes what lacks from the list that stands for growth, and from nobody where there is none. */
static void step_2_fit_4_growth_asks_the_list(void) {
    struct hand h;
    struct step s;
    kvd_digest digests[40];
    struct kvd_activated a;
    for (uint32_t i = 0; i < 40; i++) memset(digests[i].bytes, (int)i + 1, KVD_DIGEST_BYTES);
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .map_ahead = 4,
                                               .growth = true,
                                               .capacity_tokens = 6144,
                                               .more = "window = 256\nprefill_chunk = 64\n",
                                               .concurrency = 2 }));
    struct fx_peer *scheduler = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    KVT_NEED(take_board(&h, fx_session(&fx, KVD_ROLE_WORKER, 0)));
    KVT_EQ(fx_activate(scheduler, scheduler->session, 2624, 1, &a), KVD_OK);
    KVT_EQ(fx_round(scheduler, a.sequence, 2560, KVD_UNCHANGED, NULL), KVD_OK);
    KVT_EQ(ask(scheduler, REQUEST(FRAME_NAME_PAGES, .u.names = { a.sequence, 0, 40, digests })), KVD_OK);
    KVT_EQ(ask(scheduler, REQUEST(FRAME_FINISH, .u.finish = { .sequence = a.sequence, .retain = true })), KVD_OK);
    struct kvd_victim victim = { .continuation = r.u.finished.continuation };
    KVT_NEED(begin_step(&s, &h, scheduler, 100, 3900));
    while (comes_on(&s)) continue;
    KVT_TRUE(s.mapped[0] >= 2048 && s.mapped[0] <= 56 * KVD_PAGE_TOKENS); /* of 96 pages 40 are kept */
    KVT_EQ(fx_stats(scheduler).continuations, 1);                         /* nobody went without a list */
    struct kvd_growth_victims list = { .n_victims = 1, .victims = &victim };
    KVT_EQ(ask(scheduler, REQUEST(FRAME_SET_GROWTH_VICTIMS, .u.growth = list)), KVD_OK);
    while (s.mapped[0] < 62 * KVD_PAGE_TOKENS && KVT_TRUE(comes_on(&s))) continue;
    KVT_EQ(fx_stats(scheduler).continuations, 0);
    drop_board(&h);
    fx_peer_free(scheduler);
    fx_stop(&fx);
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

/* STEP-4: what kvd has not looked at was never committed. */
static void step_4_srv_5_a_death_in_the_middle(void) {
    struct hand h;
    struct step s;
    kvd_digest digests[6];
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .map_ahead = 4 }));
    struct fx_peer *scheduler = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    KVT_NEED(take_board(&h, fx_session(&fx, KVD_ROLE_WORKER, 0)));
    KVT_NEED(begin_step(&s, &h, scheduler, 130, 2000));
    for (uint32_t i = 0; i < 6; i++) memset(digests[i].bytes, (int)i + 1, KVD_DIGEST_BYTES);
    KVT_EQ(ask(h.peer, REQUEST(FRAME_NAME_PAGES, .u.names = { s.sequence, 0, 2, digests })), KVD_OK);
    wish(&s, s.mapped[0] - 60, s.mapped[0] - 59);
    ring(&h);
    uint32_t taken = committed(scheduler, s.sequence), pages = taken / KVD_PAGE_TOKENS;
    KVT_TRUE(taken >= 320 && pages <= 6);
    KVT_EQ(ask(h.peer, REQUEST(FRAME_NAME_PAGES, .u.names = { s.sequence, 2, pages - 2, digests + 2 })), KVD_OK);
    KVT_EQ(look(&s), BOARD_ON);
    wish(&s, taken + 64, taken + 65); /* its word, which nobody has heard */
    fx_kill(h.peer);
    fx_settle(&fx, NULL);
    KVT_EQ(ask(scheduler, REQUEST(FRAME_LIST_CONTINUATIONS, .u.list = { .max = 8 })), KVD_OK);
    KVT_EQ(r.u.continuations.n, 1);
    KVT_EQ(r.u.continuations.items[0].frontier, taken);
    KVT_TRUE(look(&s) != BOARD_ON);
    wish(&s, taken + 64, s.mapped[0]); /* somebody else has the files, and goes on */
    ring(&h);
    KVT_EQ(fx_stats(scheduler).sequences, 0);
    KVT_EQ(fx_audit(&fx), 0);
    drop_board(&h);
    fx_peer_free(scheduler);
    fx_stop(&fx);
}

/* STEP-5: whoever may not drive any more is off the board at once. */
static void step_5_srv_6_an_end_takes_off(void) {
    struct hand h;
    struct step s;
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .map_ahead = 4 }));
    struct fx_peer *owner = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *other = fx_session(&fx, KVD_ROLE_ADMIN, 0);
    KVT_NEED(take_board(&h, fx_session(&fx, KVD_ROLE_WORKER, 0)));
    KVT_NEED(begin_step(&s, &h, owner, 100, 2000));
    fx_kill(owner); /* its sequence is ending */
    KVT_EQ(look(&s), BOARD_OFF);
    wish(&s, s.mapped[0] - 10, s.mapped[0] - 9);
    ring(&h);
    KVT_EQ(boundaries() + refusals(), 0);
    KVT_EQ(ask(h.peer, REQUEST(FRAME_YIELD)), KVD_OK);
    fx_peer_free(owner);

    owner = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    KVT_NEED(begin_step(&s, &h, owner, 100, 2000));
    fx_cut(h.peer); /* quarantined: on the board, and nobody looks */
    KVT_EQ(look(&s), BOARD_ON);
    wish(&s, s.mapped[0] - 10, s.mapped[0] - 9);
    ring(&h);
    KVT_EQ(boundaries() + refusals(), 0);
    KVT_EQ(ask(other, REQUEST(FRAME_FENCE, .u.session = h.peer->session)), KVD_OK);
    KVT_EQ(look(&s), BOARD_OFF);
    drop_board(&h);
    KVT_NEED(take_board(&h, fx_session(&fx, KVD_ROLE_WORKER, 0)));
    KVT_NEED(begin_step(&s, &h, owner, 100, 2000));
    drop_board(&h);
    fx_peer_free(other);
    fx_peer_free(owner);
    fx_stop(&fx);
}

/* Descriptors go to the session itself, and to stores that have boards. */
static void step_3_whose_board_it_is(void) {
    int fd;
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *w = fx_session(&fx, KVD_ROLE_WORKER, 0), *x = fx_session(&fx, KVD_ROLE_WORKER, 0),
                   *o = fx_session(&fx, KVD_ROLE_OBSERVER, 0);
    KVT_EQ(ask(o, REQUEST(FRAME_DESCRIBE_STORE)), KVD_OK);
    KVT_EQ(r.u.store->board_index, 0);
    KVT_EQ(ask(w, REQUEST(FRAME_DESCRIBE_STORE)), KVD_OK);
    uint32_t board = r.u.store->board_index, bell = r.u.store->bell_index;
    uint64_t token = r.u.store->fd_token;
    KVT_EQ(grant(x, token, board, (kvd_session_id){ 0 }, &fd), KVD_PERMISSION_DENIED);
    KVT_EQ(grant(w, token ^ 1, board, (kvd_session_id){ 0 }, &fd), KVD_PERMISSION_DENIED);
    KVT_EQ(grant(w, token, bell, (kvd_session_id){ 0 }, &fd), KVD_RESOURCE_EXHAUSTED); /* the board comes first */
    struct rlimit before, none;
    KVT_OK(getrlimit(RLIMIT_NOFILE, &before));
    none = (struct rlimit){ 0, before.rlim_max };
    KVT_OK(setrlimit(RLIMIT_NOFILE, &none)); /* no file is free */
    KVT_EQ(grant(w, 0, board, w->session, &fd), KVD_RESOURCE_EXHAUSTED);
    KVT_OK(setrlimit(RLIMIT_NOFILE, &before));
    KVT_EQ(grant(w, 0, board, w->session, &fd), KVD_OK);
    close(fd);
    KVT_EQ(grant(w, 0, board, w->session, &fd), KVD_OK); /* once more: the same */
    close(fd);
    fx_peer_free(w);
    fx_peer_free(x);
    fx_peer_free(o);
    fx_stop(&fx);
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .more = "[capacity]\nstate_bytes = 1000\nstate_slots = 9" }));
    w = fx_session(&fx, KVD_ROLE_WORKER, 0);
    KVT_EQ(ask(w, REQUEST(FRAME_DESCRIBE_STORE)), KVD_OK);
    KVT_EQ(r.u.store->board_index, 0);
    KVT_EQ(grant(w, r.u.store->fd_token, board, (kvd_session_id){ 0 }, &fd), KVD_OUT_OF_RANGE);
    fx_peer_free(w);
    fx_stop(&fx);
}

/* ---- bad workers ------------------------------------------------------------------------------------------------- */

static void step_3_who_rings_for_ever_is_not_heard(void) {
    struct hand h;
    struct step s;
    uint64_t one = 1;
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .map_ahead = 4 }));
    struct fx_peer *scheduler = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    KVT_NEED(take_board(&h, fx_session(&fx, KVD_ROLE_WORKER, 0)));
    KVT_NEED(begin_step(&s, &h, scheduler, 100, 2000));
    struct board *board = session_find(fx.service, h.peer->session)->board;
    for (uint32_t i = 0; i < 200000 && !board->deaf; i++) {
        board->second_ns = UINT64_MAX; /* this second does not end, however slow the machine is */
        KVT_EQ_I(write(h.bell, &one, sizeof one), sizeof one);
        service_run(fx.service);
    }
    KVT_TRUE(board->deaf);
    wish(&s, s.mapped[0] - 10, s.mapped[0] - 9);
    KVT_EQ_I(write(h.bell, &one, sizeof one), sizeof one);
    struct pollfd f = { .fd = service_fd(fx.service), .events = POLLIN };
    KVT_EQ(poll(&f, 1, 0), 0); /* it wakes nobody */
    KVT_EQ(boundaries(), 0);
    KVT_EQ(fx_round(h.peer, s.sequence, 120, 121, NULL), KVD_OK); /* a Round serves as well */
    KVT_EQ(look(&s), BOARD_ON);
    wish(&s, s.mapped[0] - 10, s.mapped[0] - 9);
    board->second_ns = 0; /* it is over */
    service_run(fx.service);
    fx_settle(&fx, NULL);
    KVT_FALSE(board->deaf);
    KVT_EQ(boundaries(), 1);
    drop_board(&h);
    fx_peer_free(scheduler);
    fx_stop(&fx);
}

/* A word of the board: anything, or something that nearly fits. */
static void scribble(struct hand *h, uint64_t *random) {
    struct board_slot *slot = &h->board->slot[kvt_random(random) % 8];
    uint64_t kind = kvt_random(random) % 6, turn = atomic_load(&slot->turn);
    uint32_t near = atomic_load(&slot->mapped[0]);
    struct board_wish wishes[KVD_MAX_POOLS];
    for (uint32_t p = 0; p < KVD_MAX_POOLS; p++) {
        wishes[p].commit = kind == 0 ? (uint32_t)kvt_random(random) : near - (uint32_t)(kvt_random(random) % 200);
        wishes[p].ensure = kind == 1 ? (uint32_t)kvt_random(random) : near - 32 + (uint32_t)(kvt_random(random) % 200);
    }
    if (kind == 2) atomic_store(&slot->worker_turn, kvt_random(random));
    else if (kind == 3) atomic_store(&slot->wish[kvt_random(random) % KVD_MAX_POOLS], kvt_random(random));
    else board_write_wishes(slot, turn, wishes);
    if (kind != 4) return;
    /* what is kvd's to write */
    atomic_store(&slot->mapped[kvt_random(random) % KVD_MAX_POOLS], (uint32_t)kvt_random(random));
    if (kvt_random(random) % 8 == 0) atomic_store(&slot->turn, kvt_random(random));
    if (kvt_random(random) % 8 == 0) atomic_store(&slot->sequence, kvt_random(random));
}

struct scribbler {
    struct hand *hand;
    uint64_t random;
    atomic_bool over;
};

/* It rings 2000 times: a service that answers slower than it rings would never settle. */
static void *scribble_on(void *argument) {
    struct scribbler *s = argument;
    uint64_t one = 1;
    for (uint32_t rings = 0; !atomic_load(&s->over);) {
        scribble(s->hand, &s->random);
        if (rings == 2000 || kvt_random(&s->random) % 16) continue;
        rings += write(s->hand->bell, &one, sizeof one) > 0;
    }
    return NULL;
}

/* STEP-3: a hostile worker writes anywhere on its board while another one decodes. threaded: at any moment. */
static void hostile(uint64_t way, bool threaded) {
    struct hand good, bad;
    struct step s, own[3];
    uint64_t random = kvt_seed() + way;
    struct scribbler scribbler = { .hand = &bad, .random = random };
    pthread_t thread;
    KVT_NEED(
        fx_start(&fx, &(struct fx_setup){ .map_ahead = 4, .growth = way % 2, .more = way % 3 ? "" : WINDOW_POOL }));
    struct fx_peer *scheduler = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    KVT_NEED(take_board(&good, fx_session(&fx, KVD_ROLE_WORKER, 0)));
    KVT_NEED(take_board(&bad, fx_session(&fx, KVD_ROLE_WORKER, 0)));
    KVT_NEED(begin_step(&s, &good, scheduler, 100, 2000));
    for (uint32_t i = 0; i < 3; i++) KVT_NEED(begin_step(&own[i], &bad, scheduler, 100, 1000));
    if (threaded) KVT_NEED(!pthread_create(&thread, NULL, scribble_on, &scribbler));
    for (uint32_t f = 100, end = 0; f < 1400; f = end) {
        end = f + 1 + (uint32_t)(kvt_random(&random) % 60);
        decode(&s, f, end);
        if (!threaded)
            for (uint32_t i = 0; i < 20; i++) scribble(&bad, &random);
        if (!threaded && kvt_random(&random) % 2) ring(&bad);
        uint32_t i = (uint32_t)(kvt_random(&random) % 3);
        if (kvt_random(&random) % 4 == 0) /* back on the board, if it is to be had */
            (void)fx_round(bad.peer, own[i].sequence, KVD_UNCHANGED, 101, NULL);
    }
    atomic_store(&scribbler.over, true);
    if (threaded) pthread_join(thread, NULL);
    fx_settle(&fx, NULL);
    KVT_EQ(fx_audit(&fx), 0);
    KVT_EQ(look(&s), BOARD_ON);
    row_is_mapped(&s);
    KVT_EQ(fx_finish(good.peer, s.sequence), KVD_OK);
    drop_board(&bad);
    drop_board(&good);
    fx_peer_free(scheduler);
    fx_stop(&fx);
}

static void step_3_a_hostile_writer_harms_itself(void) {
    for (uint64_t way = 0; way < 12; way++) hostile(way, false);
}

static void step_3_a_hostile_writer_at_any_moment(void) { hostile(1, true); }

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(step_2_the_next_window_comes_without_a_message),
                                             KVT_CASE(step_2_in_two_pools),
                                             KVT_CASE(step_2_space_3_leases_grow),
                                             KVT_CASE(step_2_grp_2_windows_move_on),
                                             KVT_CASE(step_2_twice_is_once),
                                             KVT_CASE(step_2_fit_4_growth_asks_the_list),
                                             KVT_CASE(step_2_row_4_told_when_it_is_there),
                                             KVT_CASE(step_1_a_boundary_begins_a_turn),
                                             KVT_CASE(step_3_what_cannot_be_is_refused),
                                             KVT_CASE(step_3_whose_board_it_is),
                                             KVT_CASE(step_3_who_rings_for_ever_is_not_heard),
                                             KVT_CASE(step_3_a_hostile_writer_harms_itself),
                                             KVT_CASE(step_3_a_hostile_writer_at_any_moment),
                                             KVT_CASE(step_4_srv_5_a_death_in_the_middle),
                                             KVT_CASE(step_5_srv_6_an_end_takes_off),
                                             { 0 } };
    return kvt_main("service_boards", cases, argc, argv);
}
