/* SPDX-License-Identifier: Apache-2.0
 *
 * What reaches device memory, and when: rows before answers, copies before activations, requests parked while a device
 * works. ROW-1, ROW-4, ROW-6, ACT-4, ACT-5, CKPT-1, SRV-1, SRV-7.
 *
 * A host device does copies of more than 256 KiB on a thread of its own: pages here are 2 MiB, so that every copied
 * tail parks its request until service_run is called, which only the test does.
 */
#include <poll.h>
#include <stdlib.h>

#include "core.h" /* to break a device */
#include "pending.h"
#include "service_fixture.h"
#include "transfer.h"

static struct fx fx;
static struct msg_reply r;

#define REQUEST(t, ...)                                                                                                \
    &(struct msg_request) { .type = (t), __VA_ARGS__ }
#define L 64u

static const struct fx_setup large = { .layers = 16, .head_dim = 256, .capacity_tokens = 6144 };

static uint32_t ask(struct fx_peer *p, struct msg_request *q) { return fx_call(p, q, &r) ? r.status : UINT32_MAX; }

static const int32_t *row(uint32_t pool, uint32_t rank, uint32_t index) {
    return (const int32_t *)(uintptr_t)service_info(fx.service)->pool[pool].table[rank].local_address +
           (size_t)index * L;
}

/* The first n entries are pages, no page twice; the rest is -1. */
static bool row_has(uint32_t rank, uint32_t index, uint32_t n) {
    const int32_t *entries = row(0, rank, index);
    for (uint32_t i = 0; i < L; i++) {
        if (!KVT_TRUE(i < n ? entries[i] >= 0 && entries[i] < 256 : entries[i] == -1)) return false;
        for (uint32_t k = 0; k < i && i < n; k++)
            if (!KVT_TRUE(entries[k] != entries[i])) return false;
    }
    return true;
}

static void rows_are_in_memory_when_the_answer_is(void) {
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .ranks = 2 }));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct kvd_activated a;
    for (uint32_t i = 0; i < 8; i++)
        for (uint32_t rank = 0; rank < 2; rank++) row_has(rank, i, 0); /* ROW-6: all -1 from the start */
    KVT_EQ(fx_activate(s, s->session, 130, 500, &a), KVD_OK);
    for (uint32_t rank = 0; rank < 2; rank++) row_has(rank, a.pool[0].row, 3);
    KVT_EQ(a.pool[0].slice_begin, 0);
    KVT_EQ(a.pool[0].slice_count, 3);
    struct kvd_round_result result;
    KVT_EQ(fx_round(s, a.sequence, 130, 320, &result), KVD_OK);
    KVT_EQ(result.pool[0].slice_begin, 3);
    KVT_EQ(result.pool[0].slice_count, 2);
    for (uint32_t rank = 0; rank < 2; rank++) row_has(rank, a.pool[0].row, 5);
    KVT_EQ_MEM(row(0, 0, a.pool[0].row), row(0, 1, a.pool[0].row), L * 4); /* POOL-2: one namespace for all ranks */
    KVT_EQ(fx_finish(s, a.sequence), KVD_OK);
    for (uint32_t rank = 0; rank < 2; rank++) row_has(rank, a.pool[0].row, 0);
    struct fx_peer *w = fx_session(&fx, KVD_ROLE_WORKER, 0);
    KVT_EQ(fx_activate(s, w->session, 130, 500, &a), KVD_OK);
    fx_kill(w);
    for (uint32_t rank = 0; rank < 2; rank++) row_has(rank, a.pool[0].row, 0); /* the dead leave no ids behind */
    fx_peer_free(w);
    fx_peer_free(s);
    fx_stop(&fx);
}

/* A continuation of 100 tokens whose bytes are known: page 0 full of 0x11, the tail of 0x22. */
static kvd_continuation retained(struct fx_peer *s) {
    struct kvd_activated a = { 0 };
    kvd_digest digest = { { 1 } };
    KVT_EQ(fx_activate(s, s->session, 100, 100, &a), KVD_OK);
    const int32_t *ids = row(0, 0, a.pool[0].row);
    uint8_t *base = (uint8_t *)(uintptr_t)service_info(fx.service)->pool[0].planes[0].local_address;
    struct geom_plane plane;
    const struct geom_pool_spec *spec = &fx.service->plan.spec.main;
    for (uint32_t layer = 0; layer < spec->n_layers; layer++)
        for (uint32_t slot = 0; slot < 2; slot++) {
            KVT_OK(geom_plane(spec, 96, 0, layer, (enum geom_slot)slot, &plane, NULL, 0));
            memset(base + plane.offset + (size_t)ids[0] * plane.nb3, 0x11, plane.page_bytes);
            memset(base + plane.offset + (size_t)ids[1] * plane.nb3, 0x22, plane.page_bytes);
        }
    KVT_EQ(fx_round(s, a.sequence, 100, KVD_UNCHANGED, NULL), KVD_OK);
    KVT_EQ(ask(s, REQUEST(FRAME_NAME_PAGES, .u.names = { a.sequence, 0, 1, &digest })), KVD_OK);
    KVT_EQ(ask(s, REQUEST(FRAME_FINISH, .u.finish = { .sequence = a.sequence, .retain = true, .tail = { .n = 36 } })),
           KVD_OK);
    return r.u.finished.continuation;
}

static struct msg_request fork_of(struct fx_peer *s, kvd_session_id worker, kvd_continuation from) {
    return (struct msg_request){ .type = FRAME_ACTIVATE,
                                 .header = { .session = s->session, .sequence = ++s->sequence },
                                 .u.activation = { .worker = worker,
                                                   .from = from,
                                                   .keep = true,
                                                   .frontier = 100,
                                                   .prompt_tokens = 120,
                                                   .max_output_tokens = 64,
                                                   .ensure = { 120, 120 } } };
}

static bool tail_is(int32_t page, uint8_t byte, uint32_t columns) {
    uint8_t *base = (uint8_t *)(uintptr_t)service_info(fx.service)->pool[0].planes[0].local_address;
    const struct geom_pool_spec *spec = &fx.service->plan.spec.main;
    struct geom_plane p;
    for (uint32_t layer = 0; layer < spec->n_layers; layer++)
        for (uint32_t slot = 0; slot < 2; slot++) {
            geom_plane(spec, 96, 0, layer, (enum geom_slot)slot, &p, NULL, 0);
            for (uint32_t h = 0; h < p.n_heads; h++)
                for (size_t i = 0; i < columns * p.nb1; i++)
                    if (base[p.offset + (size_t)page * p.nb3 + h * p.nb2 + i] != byte) return false;
        }
    return true;
}

/* ACT-4, SRV-7: the copy is under way, everybody else is served, the answer comes when the device is done. */
static void fork_is_parked_until_its_tail_is_copied(void) {
    KVT_NEED(fx_start(&fx, &large));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *o = fx_session(&fx, KVD_ROLE_OBSERVER, 0);
    kvd_continuation from = retained(s);
    struct msg_request q = fork_of(s, s->session, from);
    fx_send(s, &q);
    KVT_EQ(s->n, 0);
    KVT_EQ(fx_stats(o).sequences, 1);
    KVT_NEED(fx_call(o, REQUEST(FRAME_LIST_SEQUENCES), &r));
    KVT_EQ(r.u.sequences.items[0].state, 0); /* activating */
    fx_settle(&fx, s);
    KVT_NEED(fx_reply(s, FRAME_ACTIVATE, &r));
    KVT_EQ(r.status, KVD_OK);
    struct kvd_activated a = r.u.activated;
    KVT_TRUE(row_has(0, a.pool[0].row, 2));
    const int32_t *ids = row(0, 0, a.pool[0].row);
    KVT_TRUE(tail_is(ids[0], 0x11, 64));
    KVT_TRUE(tail_is(ids[1], 0x22, 36));
    KVT_EQ(a.pool[0].protected_frontier, 64);
    KVT_EQ(fx_round(s, a.sequence, 110, KVD_UNCHANGED, NULL), KVD_OK);
    KVT_EQ(fx_stats(o).pool[0].shared, 1);
    fx_peer_free(s);
    fx_peer_free(o);
    fx_stop(&fx);
}

/* SRV-1: asking again while it is in work waits for the same answer. */
static void repeats_wait_for_the_same_answer(void) {
    KVT_NEED(fx_start(&fx, &large));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct msg_request q = fork_of(s, s->session, retained(s));
    q.header.sequence = s->sequence;
    uint8_t *frames[2];
    size_t bytes[2];
    fx_send(s, &q);
    fx_send(s, &q);
    fx_send(s, &q); /* one too many: refused at once, and told so */
    KVT_NEED(fx_reply(s, FRAME_ACTIVATE, &r));
    KVT_EQ(r.status, KVD_UNAVAILABLE);
    KVT_EQ(s->n, 0);
    fx_settle(&fx, s);
    for (int i = 0; i < 2; i++) KVT_NEED((frames[i] = fx_frame(s, &bytes[i])));
    KVT_EQ(bytes[0], bytes[1]);
    KVT_EQ_MEM(frames[0] + FRAME_HEADER, frames[1] + FRAME_HEADER, bytes[0] - FRAME_HEADER);
    free(frames[0]);
    free(frames[1]);
    KVT_EQ(fx_stats(s).sequences, 1);
    KVT_NEED(fx_call_as_is(s, &q, &r)); /* and afterwards, from memory */
    KVT_EQ(r.status, KVD_OK);
    fx_peer_free(s);
    fx_stop(&fx);
}

static void the_answer_survives_its_connection(void) {
    KVT_NEED(fx_start(&fx, &large));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *again = fx_peer_again(s);
    struct msg_request q = fork_of(s, s->session, retained(s));
    q.header.sequence = s->sequence;
    fx_send(s, &q);
    fx_cut(s);
    KVT_EQ(ask(again, REQUEST(FRAME_HELLO, .u.hello = { .protocol = KVD_PROTOCOL_VERSION,
                                                        .role = KVD_ROLE_SCHEDULER,
                                                        .name = "fx",
                                                        .resume = s->session,
                                                        .resume_secret = s->secret })),
           KVD_OK);
    KVT_EQ(r.u.hello.last_sequence, q.header.sequence);
    fx_send(again, &q);
    if (!again->n) fx_settle(&fx, again);
    KVT_NEED(fx_reply(again, FRAME_ACTIVATE, &r));
    KVT_EQ(r.status, KVD_OK);
    again->session = s->session;
    KVT_EQ(fx_stats(again).sequences, 1);
    KVT_EQ(fx_stats(again).pool[0].quarantined, 0);
    fx_peer_free(again);
    fx_peer_free(s);
    fx_stop(&fx);
}

/* ACT-5, SRV-5: death while the copy runs; the destination is not given to anybody before the copy has ended. */
static void death_while_the_copy_runs(void) {
    for (int who = 0; who < 2; who++) {
        KVT_NEED(fx_start(&fx, &large));
        struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *w = fx_session(&fx, KVD_ROLE_WORKER, 0),
                       *o = fx_session(&fx, KVD_ROLE_OBSERVER, 0);
        kvd_continuation from = retained(s);
        struct kvd_stats before = fx_stats(o);
        struct msg_request q = fork_of(s, w->session, from);
        fx_send(s, &q);
        KVT_EQ(s->n, 0);
        fx_kill(who ? s : w); /* runs the service too: the copy may be done by then, or not */
        fx_settle(&fx, NULL);
        if (!who) {
            if (!s->n) fx_settle(&fx, s);
            KVT_NEED(fx_reply(s, FRAME_ACTIVATE, &r));
            KVT_TRUE(r.status == KVD_ABORTED || r.status == KVD_OK); /* done just before the death: ended after it */
        } else {
            while (fx_stats(o).sequences) {
                fx_settle(&fx, NULL);
                struct msg_request yield = { .type = FRAME_YIELD };
                KVT_EQ(ask(w, &yield), KVD_OK);
            }
        }
        struct kvd_stats after = fx_stats(o);
        KVT_EQ(after.sequences, 0);
        KVT_EQ(after.continuations, before.continuations);
        KVT_EQ_MEM(after.pool, before.pool, sizeof after.pool);
        for (uint32_t i = 0; i < 8; i++) row_has(0, i, 0);
        fx_peer_free(s);
        fx_peer_free(w);
        fx_peer_free(o);
        fx_stop(&fx);
    }
}

/* ROW-4 behind a copy: a Round and a Finish whose rows queue up behind it are answered after it, and in the end the
 * table is right. */
static void rounds_queue_up_behind_copies(void) {
    KVT_NEED(fx_start(&fx, &large));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *t = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    kvd_continuation from = retained(s);
    struct kvd_activated b;
    KVT_EQ(fx_activate(t, t->session, 10, 500, &b), KVD_OK);
    for (int turn = 0; turn < 20; turn++) {
        struct msg_request q = fork_of(s, s->session, from);
        struct kvd_round_item item = {
            .sequence = b.sequence,
            .pool[0] = { .ask = turn % 2 ? KVD_ROUND_KEEP : KVD_ROUND_ENSURE, .keep = 10, .ensure = 300 }
        };
        struct msg_request round = { .type = FRAME_ROUND,
                                     .header = { .session = t->session, .sequence = ++t->sequence },
                                     .u.round = { 1, &item } };
        fx_send(s, &q);
        fx_send(t, &round);
        while (!s->n || !t->n) fx_settle(&fx, s->n ? t : s);
        KVT_NEED(fx_reply(t, FRAME_ROUND, &r));
        KVT_EQ(r.u.round.items[0].status, KVD_OK);
        row_has(0, b.pool[0].row, turn % 2 ? 1 : 5);
        KVT_NEED(fx_reply(s, FRAME_ACTIVATE, &r));
        KVT_EQ(r.status, KVD_OK);
        struct kvd_activated a = r.u.activated;
        row_has(0, a.pool[0].row, 2);
        KVT_EQ(fx_finish(s, a.sequence), KVD_OK);
        row_has(0, a.pool[0].row, 0);
    }
    fx_peer_free(s);
    fx_peer_free(t);
    fx_stop(&fx);
}

/* CKPT-1: the sequence goes on, and may even end, while its tail is copied; the copy is what was committed. */
static void checkpoint_is_parked_and_the_sequence_goes_on(void) {
    KVT_NEED(fx_start(&fx, &large));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct msg_request q = fork_of(s, s->session, retained(s));
    q.header.sequence = s->sequence;
    KVT_NEED(fx_call_as_is(s, &q, &r));
    KVT_EQ(r.status, KVD_OK);
    struct kvd_activated a = r.u.activated;
    struct msg_request c = { .type = FRAME_CHECKPOINT,
                             .header = { .session = s->session, .sequence = ++s->sequence },
                             .u.checkpoint = { .sequence = a.sequence, .tail = { .n = 36, .tokens = { 7 } } } };
    fx_send(s, &c);
    KVT_EQ(s->n, 0);
    struct msg_request finish = { .type = FRAME_FINISH,
                                  .header = { .session = s->session, .sequence = ++s->sequence },
                                  .u.finish = { .sequence = a.sequence } };
    fx_send(s, &finish); /* its row is freed behind the copy */
    while (s->n == 0) fx_settle(&fx, s);
    bool checkpoint = false, finished = false;
    kvd_continuation made = { 0 };
    while (!checkpoint || !finished) {
        struct frame_head head;
        if (frame_head_read(s->bytes, s->n, &head)) {
            fx_settle(&fx, s);
            continue;
        }
        KVT_NEED(fx_reply(s, head.type, &r));
        KVT_EQ(r.status, KVD_OK);
        checkpoint |= head.type == FRAME_CHECKPOINT;
        finished |= head.type == FRAME_FINISH;
        if (head.type == FRAME_CHECKPOINT) made = r.u.checkpointed.continuation;
    }
    KVT_EQ(fx_stats(s).sequences, 0);
    KVT_EQ(fx_stats(s).continuations, 2);
    q = fork_of(s, s->session, made); /* what was kept is what was committed */
    KVT_NEED(fx_call_as_is(s, &q, &r));
    KVT_EQ(r.status, KVD_OK);
    const int32_t *ids = row(0, 0, r.u.activated.pool[0].row);
    KVT_TRUE(tail_is(ids[1], 0x22, 36));
    fx_peer_free(s);
    fx_stop(&fx);
}

static uint8_t *image(uint32_t rank, uint32_t slot) {
    const struct kvd_store_info *info = service_info(fx.service);
    return (uint8_t *)(uintptr_t)info->state[rank].local_address + slot * info->state_stride;
}

static bool image_is(uint32_t rank, uint32_t slot, uint8_t value) {
    for (uint64_t i = 0; i < service_info(fx.service)->state_bytes; i++)
        if (image(rank, slot)[i] != value) return false;
    return true;
}

static struct msg_request checkpoint_of(struct fx_peer *s, kvd_sequence sequence) {
    return (struct msg_request){ .type = FRAME_CHECKPOINT,
                                 .header = { .session = s->session, .sequence = ++s->sequence },
                                 .u.checkpoint = { .sequence = sequence, .tail = { .n = 36 } } };
}

/* A running sequence of 100 tokens, committed and named. */
static kvd_sequence running(struct fx_peer *s) {
    struct kvd_activated a = { 0 };
    kvd_digest digest = { { 7 } };
    KVT_EQ(fx_activate(s, s->session, 100, 100, &a), KVD_OK);
    KVT_EQ(fx_round(s, a.sequence, 100, KVD_UNCHANGED, NULL), KVD_OK);
    KVT_EQ(ask(s, REQUEST(FRAME_NAME_PAGES, .u.names = { a.sequence, 0, 1, &digest })), KVD_OK);
    return a.sequence;
}

/* SRV-2: a session that has many requests at the devices is told when these are enough; others still have their own. */
static void one_session_does_not_take_the_devices(void) {
    KVT_NEED(fx_start(&fx, &large));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *t = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    kvd_continuation from = retained(s);
    kvd_sequence sequence = running(s);
    struct msg_request mine, other = fork_of(t, t->session, from);
    for (uint32_t i = 0; i < PENDING_PER_SESSION; i++) {
        mine = checkpoint_of(s, sequence);
        fx_send(s, &mine);
        KVT_EQ(s->n, 0);
    }
    mine = checkpoint_of(s, sequence);
    fx_send(s, &mine);
    KVT_NEED(fx_reply(s, FRAME_CHECKPOINT, &r));
    KVT_EQ(r.status, KVD_UNAVAILABLE);
    KVT_HAS(r.message, "is still in work");
    fx_send(t, &other);
    KVT_EQ(t->n, 0); /* taken: its tail is being copied */
    fx_settle(&fx, t);
    KVT_NEED(fx_reply(t, FRAME_ACTIVATE, &r));
    KVT_EQ(r.status, KVD_OK);
    for (uint32_t i = 0; i < PENDING_PER_SESSION; i++) {
        KVT_NEED(fx_reply(s, FRAME_CHECKPOINT, &r));
        KVT_EQ(r.status, KVD_OK);
    }
    KVT_NEED(fx_call_as_is(s, &mine, &r)); /* now there is a place */
    KVT_EQ(r.status, KVD_OK);
    fx_peer_free(s);
    fx_peer_free(t);
    fx_stop(&fx);
}

/* SRV-1: what waits for a device keeps its place in the window, however many numbers come after it. */
static void what_waits_keeps_its_place(void) {
    KVT_NEED(fx_start(&fx, &large));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    kvd_sequence sequence = running(s);
    struct msg_request waits = checkpoint_of(s, sequence);
    fx_send(s, &waits);
    KVT_EQ(s->n, 0);
    struct msg_request q = { .type = FRAME_RELEASE, .u.continuation.continuation.bits = 77 };
    for (uint32_t i = 1; i < ANSWER_WINDOW; i++) {
        q.header = (struct msg_header){ 0 };
        KVT_EQ(ask(s, &q), KVD_NOT_FOUND);
    }
    q.header = (struct msg_header){ .session = s->session, .sequence = s->sequence + 1 };
    for (int i = 0; i < 2; i++) {
        KVT_NEED(fx_call_as_is(s, &q, &r));
        KVT_EQ(r.status, KVD_UNAVAILABLE);
        KVT_HAS(r.message, "still in work");
    }
    fx_settle(&fx, s);
    KVT_NEED(fx_reply(s, FRAME_CHECKPOINT, &r));
    KVT_EQ(r.status, KVD_OK);
    KVT_NEED(fx_call_as_is(s, &q, &r)); /* the same number, now executed */
    KVT_EQ(r.status, KVD_NOT_FOUND);
    fx_peer_free(s);
    fx_stop(&fx);
}

static void state_round(struct fx_peer *s, const struct kvd_activated *a, uint32_t commit, uint32_t state_frontier) {
    struct kvd_round_item item = { .sequence = a->sequence, .ask = KVD_ROUND_STATE, .state_frontier = state_frontier };
    for (uint32_t i = 0; i < KVD_MAX_POOLS; i++)
        item.pool[i] = (struct kvd_round_pool){ .ask = KVD_ROUND_COMMIT, .commit = commit };
    KVT_NEED(fx_call(s, REQUEST(FRAME_ROUND, .u.round = { 1, &item }), &r));
    KVT_EQ(r.status, KVD_OK);
    KVT_EQ(r.u.round.items[0].status, KVD_OK);
}

/* CKPT-1, PAGE-7 for images: every byte of the image, on every rank, whatever its size; parked until it
 * is there. */
static void checkpoint_copies_the_image(void) {
    static const char *const sizes[] = { "state_bytes = 200", "state_bytes = 1000", "state_bytes = 1000001",
                                         "state_bytes = 17000003" }; /* the last ones: by the device's thread */
    for (uint32_t k = 0; k < 4; k++) {
        char more[64];
        snprintf(more, sizeof more, "[capacity]\n%s\nstate_slots = 3", sizes[k]);
        struct fx_setup setup = { .ranks = 2, .concurrency = 3, .capacity_tokens = 4096, .more = more };
        KVT_NEED(fx_start(&fx, &setup));
        struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
        struct kvd_activated a = { 0 }, b = { 0 };
        kvd_digest digest = { { 7 } };
        KVT_EQ(fx_activate(s, s->session, 64, 10, &b), KVD_OK);
        KVT_EQ(fx_activate(s, s->session, 64, 10, &a), KVD_OK);
        for (uint32_t rank = 0; rank < 2; rank++)
            for (uint32_t slot = 0; slot < 3; slot++)
                memset(image(rank, slot), (int)(0x10 * (rank + 1) + slot), service_info(fx.service)->state_bytes);
        state_round(s, &a, 64, 64);
        KVT_NEED(fx_call(s, REQUEST(FRAME_NAME_PAGES, .u.names = { a.sequence, 0, 1, &digest }), &r));
        struct msg_request c = { .type = FRAME_CHECKPOINT,
                                 .header = { .session = s->session, .sequence = ++s->sequence },
                                 .u.checkpoint = { .sequence = a.sequence } };
        fx_send(s, &c);
        KVT_EQ(s->n == 0, k >= 2); /* parked */
        if (!s->n) fx_settle(&fx, s);
        KVT_NEED(fx_reply(s, FRAME_CHECKPOINT, &r));
        KVT_EQ(r.status, KVD_OK);
        kvd_continuation made = r.u.checkpointed.continuation;
        uint32_t third = 3 - a.state_slot - b.state_slot;
        for (uint32_t rank = 0; rank < 2; rank++) {
            uint8_t base = (uint8_t)(0x10 * (rank + 1));
            KVT_TRUE(image_is(rank, a.state_slot, (uint8_t)(base + a.state_slot)));
            KVT_TRUE(image_is(rank, b.state_slot, (uint8_t)(base + b.state_slot)));
            KVT_TRUE(image_is(rank, third, (uint8_t)(base + a.state_slot)));
        }
        KVT_EQ(fx_finish(s, a.sequence), KVD_OK);
        KVT_EQ(fx_stats(s).state_slots_used, 2);
        /* CONT-4, and a fork is told where its image is */
        struct msg_request q = { .type = FRAME_ACTIVATE,
                                 .u.activation = { .worker = s->session,
                                                   .from = made,
                                                   .keep = true,
                                                   .frontier = 60,
                                                   .prompt_tokens = 100,
                                                   .max_output_tokens = 5 } };
        KVT_EQ(ask(s, &q), KVD_OUT_OF_RANGE);
        q.u.activation.frontier = 64;
        q.header.sequence = 0;
        KVT_EQ(ask(s, &q), KVD_OK);
        KVT_EQ(r.u.activated.source_state_slot, third);
        KVT_EQ(r.u.activated.state_slot, a.state_slot);
        fx_peer_free(s);
        fx_stop(&fx);
    }
}

/* A sequence that leaves a checkpoint at each page, and the Round that brings it to the first. */
static struct msg_request rolling_round(struct fx_peer *s, struct kvd_round_item *item, struct kvd_activated *ret_a) {
    struct msg_request q = { .type = FRAME_ACTIVATE,
                             .u.activation = { .worker = s->session,
                                               .prompt_tokens = 100,
                                               .max_output_tokens = 10,
                                               .ensure = { 100, 100 },
                                               .checkpoint_every = 64 } };
    KVT_EQ(ask(s, &q), KVD_OK);
    *ret_a = r.u.activated;
    *item = (struct kvd_round_item){ .sequence = ret_a->sequence, .ask = KVD_ROUND_STATE, .state_frontier = 64 };
    for (uint32_t i = 0; i < KVD_MAX_POOLS; i++)
        item->pool[i] = (struct kvd_round_pool){ .ask = KVD_ROUND_COMMIT, .commit = 64 };
    return (struct msg_request){ .type = FRAME_ROUND,
                                 .header = { .session = s->session, .sequence = ++s->sequence },
                                 .u.round = { 1, item } };
}

static uint32_t hits_of(struct fx_peer *s, const kvd_digest *digest) {
    KVT_EQ(ask(s, REQUEST(FRAME_FIND, .u.find = { .n = 1, .digests = digest, .max = 4 })), KVD_OK);
    return r.u.hits.n;
}

/* GRP-5: the Round's answer comes when the image is copied, on every rank; the Round twice makes one checkpoint; it is
 * found by the name of its last page. */
static void grp_5_a_round_leaves_a_checkpoint_with_its_image(void) {
    static const char *const sizes[] = { "state_bytes = 1000", "state_bytes = 17000003" }; /* by the device's thread */
    for (uint32_t k = 0; k < 2; k++) {
        char more[64];
        snprintf(more, sizeof more, "[capacity]\n%s\nstate_slots = 3", sizes[k]);
        struct fx_setup setup = { .ranks = 2, .concurrency = 2, .capacity_tokens = 8192, .more = more };
        KVT_NEED(fx_start(&fx, &setup));
        struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
        struct kvd_activated a = { 0 };
        struct kvd_round_item item;
        kvd_digest digest = { { 7 } };
        struct msg_request q = rolling_round(s, &item, &a);
        for (uint32_t rank = 0; rank < 2; rank++)
            for (uint32_t slot = 0; slot < 3; slot++)
                memset(image(rank, slot), (int)(0x10 * (rank + 1) + slot), service_info(fx.service)->state_bytes);
        fx_send(s, &q);
        KVT_EQ(s->n == 0, k == 1); /* held */
        if (!s->n) fx_settle(&fx, s);
        KVT_NEED(fx_reply(s, FRAME_ROUND, &r));
        KVT_EQ(r.u.round.items[0].status, KVD_OK);
        for (uint32_t rank = 0, copies = 0; rank < 2; rank++, copies = 0) {
            for (uint32_t slot = 0; slot < 3; slot++)
                copies += image_is(rank, slot, (uint8_t)(0x10 * (rank + 1) + a.state_slot));
            KVT_EQ(copies, 2);
        }
        KVT_NEED(fx_call_as_is(s, &q, &r)); /* SRV-1 */
        KVT_EQ(r.u.round.items[0].status, KVD_OK);
        KVT_EQ(fx_stats(s).state_slots_used, 2);
        KVT_EQ(hits_of(s, &digest), 0);
        KVT_NEED(fx_call(s, REQUEST(FRAME_NAME_PAGES, .u.names = { a.sequence, 0, 1, &digest }), &r));
        KVT_EQ(r.status, KVD_OK);
        KVT_EQ(hits_of(s, &digest), 1);
        KVT_EQ(r.u.hits.items[0].usable, 64);
        KVT_EQ(fx_finish(s, a.sequence), KVD_OK);
        KVT_EQ(hits_of(s, &digest), 1);
        KVT_EQ(fx_stats(s).state_slots_used, 1);
        KVT_EQ(fx_audit(&fx), 0);
        fx_peer_free(s);
        fx_stop(&fx);
    }
}

/* GRP-5, SRV-5: its client dies, or the device is lost, while the image is copied: nothing stays. */
static void grp_5_nothing_stays_of_a_copy_that_is_for_nobody(void) {
    static const struct fx_setup setup = { .concurrency = 2,
                                           .capacity_tokens = 8192,
                                           .more = "[capacity]\nstate_bytes = 17000003\nstate_slots = 3" };
    for (uint32_t lost = 0; lost < 2; lost++) {
        KVT_NEED(fx_start(&fx, &setup));
        struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *t = fx_session(&fx, KVD_ROLE_ADMIN, 0);
        struct kvd_activated a = { 0 };
        struct kvd_round_item item;
        struct msg_request q = rolling_round(s, &item, &a);
        fx_send(s, &q);
        KVT_EQ(s->n, 0);
        if (lost) transfer_lose(fx.service->transfer, 0, "broken by a test");
        else fx_kill(s);
        fx_settle(&fx, NULL);
        for (uint32_t i = 0; i < 1000 && fx_stats(t).state_slots_used > lost; i++) {
            struct pollfd f = { .fd = service_fd(fx.service), .events = POLLIN };
            (void)poll(&f, 1, 20);
            service_run(fx.service);
        }
        KVT_EQ(fx_stats(t).state_slots_used, lost); /* the sequence's own */
        KVT_EQ(fx_stats(t).continuations, 0);
        KVT_EQ(fx_audit(&fx), 0);
        fx_peer_free(s);
        fx_peer_free(t);
        fx_stop(&fx);
    }
}

/* ACT-5, SRV-7: a lost device undoes what was under way, refuses what needs it, and everything else still answers. */
static void lost_device(void) {
    KVT_NEED(fx_start(&fx, &large));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    kvd_continuation from = retained(s);
    struct kvd_stats before = fx_stats(s), after;
    struct msg_request q = fork_of(s, s->session, from);
    char why[256];
    KVT_FALSE(service_lost(fx.service, why, sizeof why));
    fx_send(s, &q);
    KVT_EQ(s->n, 0);
    transfer_lose(fx.service->transfer, 0, "broken by a test");
    service_run(fx.service);
    KVT_NEED(fx_reply(s, FRAME_ACTIVATE, &r));
    KVT_EQ(r.status, KVD_UNAVAILABLE);
    KVT_HAS(r.message, "broken by a test");
    KVT_NEED(fx_call_as_is(s, &q, &r)); /* the first answer, again */
    KVT_EQ(r.status, KVD_UNAVAILABLE);
    after = fx_stats(s);
    KVT_EQ(after.sequences, 0);
    KVT_EQ(after.continuations, 1);
    KVT_EQ_MEM(after.pool, before.pool, sizeof after.pool);
    struct kvd_activated a;
    KVT_EQ(fx_activate(s, s->session, 10, 10, &a), KVD_UNAVAILABLE);
    KVT_TRUE(service_lost(fx.service, why, sizeof why));
    KVT_HAS(why, "device.0");
    KVT_NEED(fx_call(s, REQUEST(FRAME_DESCRIBE_STORE), &r));
    KVT_EQ(r.status, KVD_OK);
    fx_peer_free(s);
    fx_stop(&fx);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(rows_are_in_memory_when_the_answer_is),
                                             KVT_CASE(fork_is_parked_until_its_tail_is_copied),
                                             KVT_CASE(repeats_wait_for_the_same_answer),
                                             KVT_CASE(the_answer_survives_its_connection),
                                             KVT_CASE(death_while_the_copy_runs),
                                             KVT_CASE(rounds_queue_up_behind_copies),
                                             KVT_CASE(checkpoint_is_parked_and_the_sequence_goes_on),
                                             KVT_CASE(one_session_does_not_take_the_devices),
                                             KVT_CASE(what_waits_keeps_its_place),
                                             KVT_CASE(checkpoint_copies_the_image),
                                             KVT_CASE(grp_5_a_round_leaves_a_checkpoint_with_its_image),
                                             KVT_CASE(grp_5_nothing_stays_of_a_copy_that_is_for_nobody),
                                             KVT_CASE(lost_device),
                                             { 0 } };
    return kvt_main("service_device", cases, argc, argv);
}
