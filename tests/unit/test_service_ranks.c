/* SPDX-License-Identifier: Apache-2.0
 *
 * Two devices, of which the second says late that its copies are done: whatever is published waits for every rank, not
 * for the first one. POOL-2, PAGE-7, ROW-4.
 */
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include "clock.h"
#include "core.h"
#include "device_backend.h"
#include "device_host_hook.h"
#include "service_fixture.h"

static struct fx fx;
static struct msg_reply r;
static struct fx_peer *s;

#define REQUEST(t, ...)                                                                                                \
    &(struct msg_request) { .type = (t), __VA_ARGS__ }
#define L 64u

static uint32_t ask(struct fx_peer *p, struct msg_request *q) { return fx_call(p, q, &r) ? r.status : UINT32_MAX; }

/* ---- the late device ------------------------------------------------------------------------------- */

enum { BATCHES = 2 /* after the directions of moves */, QUEUES };

static struct device_backend late;
static bool held[QUEUES];
static uint64_t said[QUEUES];

static uint64_t done_on(uint32_t rank, int queue) {
    uint64_t done = 0;
    struct device *device = fx.service->pools.device[rank];
    if (queue == BATCHES) KVT_OK(device_host_backend.poll(device, &done, NULL, 0));
    else KVT_OK(device_host_backend.poll_moves(device, (enum device_direction)queue, &done, NULL, 0));
    return done;
}

static int say(int queue, uint64_t *ret_done) {
    if (!held[queue]) said[queue] = done_on(1, queue);
    *ret_done = said[queue];
    return 0;
}

static int late_poll(struct device *device, uint64_t *ret_done, char *err, size_t err_bytes) {
    (void)device, (void)err, (void)err_bytes;
    return say(BATCHES, ret_done);
}

static int late_poll_moves(struct device *device, enum device_direction direction, uint64_t *ret_done, char *err,
                           size_t err_bytes) {
    (void)device, (void)err, (void)err_bytes;
    return say((int)direction, ret_done);
}

/* So that nothing is done inline. */
static int step(void *context, enum device_direction direction, uint64_t ticket, enum device_host_step at) {
    (void)context, (void)direction, (void)ticket, (void)at;
    return 0;
}

static bool start(const struct fx_setup *setup) {
    static const struct device_host_hook hook = { step, NULL };
    device_host_set_hook(&hook);
    memset(held, 0, sizeof held);
    if (!fx_start(&fx, setup)) return false;
    late = device_host_backend;
    late.poll = late_poll;
    late.poll_moves = late_poll_moves;
    fx.service->pools.device[1]->backend = &late;
    s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    return true;
}

static void stop(void) {
    fx_peer_free(s);
    fx_stop(&fx);
    device_host_set_hook(NULL);
}

static void hold(int queue, uint64_t before[2]) {
    held[queue] = true;
    for (uint32_t rank = 0; rank < 2; rank++) before[rank] = done_on(rank, queue);
    said[queue] = before[1];
}

/* Both devices have done what they were given since; the service has seen all there is to see, and answers nothing. */
static void nothing_comes(int queue, const uint64_t before[2]) {
    struct pollfd f = { .fd = service_fd(fx.service), .events = POLLIN };
    uint64_t deadline = clock_ns() + UINT64_C(20000000000);
    for (uint32_t rank = 0; rank < 2; rank++)
        while (KVT_TRUE(clock_ns() < deadline) && done_on(rank, queue) == before[rank]) sched_yield();
    while (!s->n && poll(&f, 1, 100) == 1) service_run(fx.service);
    KVT_EQ(s->n, 0);
}

static uint32_t let_go(int queue, uint16_t type) {
    held[queue] = false;
    int fd = device_event_fd(fx.service->pools.device[1]);
    KVT_TRUE(write(fd, &(uint64_t){ 1 }, sizeof(uint64_t)) == sizeof(uint64_t));
    if (!s->n) fx_settle(&fx, s);
    return KVT_TRUE(fx_reply(s, type, &r)) ? r.status : UINT32_MAX;
}

/* ---- what is asked ------------------------------------------------------------------------------------ */

static const int32_t *row(uint32_t rank, uint32_t index) {
    return (const int32_t *)(uintptr_t)service_info(fx.service)->pool[0].table[rank].local_address + (size_t)index * L;
}

static bool rows_are_empty(void) {
    for (uint32_t rank = 0; rank < 2; rank++)
        for (uint32_t i = 0; i < 8 * L; i++)
            if (row(rank, 0)[i] != -1) return false;
    return true;
}

static struct msg_request numbered(uint16_t type) {
    return (struct msg_request){ .type = type, .header = { .session = s->session, .sequence = ++s->sequence } };
}

static kvd_continuation retained(uint32_t tokens) {
    struct kvd_activated a = { 0 };
    kvd_digest digests[8] = { { { 1 } }, { { 2 } }, { { 3 } }, { { 4 } } };
    KVT_EQ(fx_activate(s, s->session, tokens, 1, &a), KVD_OK);
    KVT_EQ(fx_round(s, a.sequence, tokens, KVD_UNCHANGED, NULL), KVD_OK);
    KVT_EQ(ask(s, REQUEST(FRAME_NAME_PAGES, .u.names = { a.sequence, 0, tokens / 64, digests })), KVD_OK);
    struct msg_request q = { .type = FRAME_FINISH,
                             .u.finish = { .sequence = a.sequence, .retain = true, .tail = { .n = tokens % 64 } } };
    KVT_EQ(ask(s, &q), KVD_OK);
    return r.u.finished.continuation;
}

static void send_fork(kvd_continuation from, uint32_t frontier) {
    struct msg_request q = numbered(FRAME_ACTIVATE);
    q.u.activation = (struct kvd_activation){ .worker = s->session,
                                              .from = from,
                                              .keep = true,
                                              .frontier = frontier,
                                              .prompt_tokens = frontier + 1,
                                              .max_output_tokens = 1 };
    fx_send(s, &q);
    KVT_EQ(s->n, 0);
}

static void rows_are_there(uint32_t n) {
    for (uint32_t rank = 0; rank < 2; rank++)
        for (uint32_t i = 0; i < L; i++) KVT_EQ_I(row(rank, r.u.activated.pool[0].row)[i] != -1, i < n);
    KVT_EQ(r.u.activated.pool[0].slice_count, n);
}

/* ---- cases --------------------------------------------------------------------------------------------- */

/* ACT-4: a tail that rank 0 has copied is not there while rank 1 has not; nor is there a row on either. */
static void pool_2_a_tail_is_copied_on_every_rank(void) {
    uint64_t before[2];
    KVT_NEED(start(
        &(struct fx_setup){ .ranks = 2, .layers = 16, .head_dim = 256, .capacity_tokens = 6144 })); /* 1 MiB a page */
    kvd_continuation from = retained(100);
    hold(BATCHES, before);
    send_fork(from, 100);
    nothing_comes(BATCHES, before);
    KVT_TRUE(rows_are_empty());
    KVT_EQ(let_go(BATCHES, FRAME_ACTIVATE), KVD_OK);
    rows_are_there(2);
    stop();
}

/* PAGE-7: the same of pages on their way between devices and arena. */
static void page_7_pages_move_on_every_rank(void) {
    uint64_t before[2];
    KVT_NEED(
        start(&(struct fx_setup){ .ranks = 2, .capacity_tokens = 6144, .more = "[host]\narena = 8MiB\nscrub = 0\n" }));
    kvd_continuation from = retained(256);
    hold(DEVICE_TO_HOST, before);
    struct msg_request q = numbered(FRAME_DEMOTE);
    q.u.demote.continuation = from;
    fx_send(s, &q);
    nothing_comes(DEVICE_TO_HOST, before);
    KVT_EQ(fx_stats(s).host_pages[0], 4); /* on their way: */
    KVT_EQ(fx_stats(s).demoted_continuations, 0);
    KVT_EQ(let_go(DEVICE_TO_HOST, FRAME_DEMOTE), KVD_OK);
    KVT_EQ(fx_stats(s).demoted_continuations, 1);
    hold(HOST_TO_DEVICE, before);
    send_fork(from, 256);
    nothing_comes(HOST_TO_DEVICE, before);
    KVT_TRUE(rows_are_empty());
    KVT_EQ(let_go(HOST_TO_DEVICE, FRAME_ACTIVATE), KVD_OK);
    rows_are_there(4);
    stop();
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(pool_2_a_tail_is_copied_on_every_rank),
                                             KVT_CASE(page_7_pages_move_on_every_rank),
                                             { 0 } };
    return kvt_main("service ranks", cases, argc, argv);
}
