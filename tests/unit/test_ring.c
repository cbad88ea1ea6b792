/* SPDX-License-Identifier: Apache-2.0
 *
 * Rings of the shared segment: frames come out as they went in, a full ring refuses whole frames, counters that cannot
 * be are refused and change nothing, and nobody sleeps through a frame (SRV-2).
 */
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "clock.h"
#include "kvt.h"
#include "ring.h"

#if defined(KVD_SANITIZE_ADDRESS) || defined(KVD_SANITIZE_THREAD)
#define FRAMES 2000u
#else
#define FRAMES 20000u
#endif

static struct ring_segment *segment_new(void) {
    struct ring_segment *s = aligned_alloc(4096, sizeof *s);
    if (s) memset(s, 0, sizeof *s);
    return s;
}

/* A frame of n bytes whose body follows from its id. */
static void make_frame(uint8_t *frame, uint64_t id, size_t n) {
    uint64_t state = id;
    frame_head_write(frame, FRAME_ROUND, 0, id, n - FRAME_HEADER);
    for (size_t i = FRAME_HEADER; i < n; i++) frame[i] = (uint8_t)kvt_random(&state);
}

/* Few are large, and some are the largest and the smallest. */
static size_t draw_bytes(uint64_t *seed) {
    switch (kvt_below(seed, 16)) {
    case 0: return FRAME_HEADER;
    case 1: return FRAME_LIMIT;
    case 2: return FRAME_HEADER + kvt_below(seed, FRAME_LIMIT - FRAME_HEADER + 1);
    default: return FRAME_HEADER + kvt_below(seed, 600);
    }
}

/* The numbers of PROTOCOL.md, for clients in other languages. */
static void layout(void) {
    KVT_EQ(offsetof(struct ring_segment, magic), 0);
    KVT_EQ(offsetof(struct ring_segment, version), 4);
    KVT_EQ(offsetof(struct ring_segment, epoch), 8);
    KVT_EQ(offsetof(struct ring_segment, ring_bytes), 16);
    KVT_EQ(offsetof(struct ring_segment, request_head), 64);
    KVT_EQ(offsetof(struct ring_segment, answer_tail), 72);
    KVT_EQ(offsetof(struct ring_segment, bell), 80);
    KVT_EQ(offsetof(struct ring_segment, kvd_sleeps), 128);
    KVT_EQ(offsetof(struct ring_segment, request_tail), 192);
    KVT_EQ(offsetof(struct ring_segment, answer_head), 200);
    KVT_EQ(offsetof(struct ring_segment, client_waits), 256);
    KVT_EQ(offsetof(struct ring_segment, requests), 4096);
    KVT_EQ(offsetof(struct ring_segment, answers), 135168);
    KVT_EQ(sizeof(struct ring_segment), 266240);
}

static uint8_t frame[FRAME_LIMIT], copy[FRAME_LIMIT];

static void read_one(struct ring_end *reader, uint64_t id, size_t n) {
    size_t got = 0;
    KVT_EQ_I(ring_read(reader, copy, &got), 0);
    make_frame(frame, id, n);
    KVT_EQ(got, n);
    KVT_EQ_MEM(copy, frame, n);
}

/* Through every place of the ring, the end among them. */
static void frames_come_out_as_they_went_in(void) {
    uint64_t seed = kvt_seed(), written = 0, taken = 0;
    struct ring_segment *s = segment_new();
    struct ring_end w = ring_request_writer(s), r = ring_request_reader(s);
    static size_t bytes[FRAMES];
    while (taken < FRAMES) {
        if (written < FRAMES && kvt_below(&seed, 2)) {
            bytes[written] = draw_bytes(&seed);
            make_frame(frame, written, bytes[written]);
            if (ring_write(&w, frame, bytes[written])) written++;
        } else if (taken < written) {
            read_one(&r, taken, bytes[taken]);
            taken++;
        } else {
            size_t n;
            KVT_TRUE(ring_unread(&r) == 0);
            KVT_EQ_I(ring_read(&r, copy, &n), RING_E_EMPTY);
        }
    }
    KVT_EQ(atomic_load(&s->request_head), atomic_load(&s->request_tail));
    KVT_TRUE(w.at > 10 * (uint64_t)RING_BYTES);
    free(s);
}

/* What does not fit leaves no trace, and fits once enough was read. */
static void full_ring_refuses_whole_frames(void) {
    struct ring_segment *s = segment_new();
    struct ring_end w = ring_answer_writer(s), r = ring_answer_reader(s);
    make_frame(frame, 1, FRAME_LIMIT);
    KVT_TRUE(ring_write(&w, frame, FRAME_LIMIT));
    KVT_TRUE(ring_write(&w, frame, FRAME_LIMIT));
    KVT_FALSE(ring_write(&w, frame, FRAME_HEADER));
    KVT_EQ(atomic_load(&s->answer_tail), RING_BYTES);
    read_one(&r, 1, FRAME_LIMIT);
    make_frame(frame, 2, FRAME_LIMIT);
    KVT_TRUE(ring_write(&w, frame, FRAME_LIMIT));
    KVT_FALSE(ring_write(&w, frame, FRAME_HEADER));
    read_one(&r, 1, FRAME_LIMIT);
    read_one(&r, 2, FRAME_LIMIT);
    free(s);
}

static void expect_broken(struct ring_segment *s, struct ring_end *r, uint64_t tail) {
    size_t n = 77;
    uint64_t at = r->at;
    atomic_store(&s->request_tail, tail);
    KVT_TRUE(ring_unread(r) > 0);
    KVT_EQ_I(ring_read(r, copy, &n), RING_E_BROKEN);
    KVT_EQ(r->at, at);
    KVT_EQ(atomic_load(&s->request_head), at);
    KVT_EQ(n, 77);
}

/* SRV-2: tails before the head, too far, inside of a frame; lengths that cannot be. */
static void srv_2_hostile_tails(void) {
    struct ring_segment *s = segment_new();
    struct ring_end w = ring_request_writer(s), r = ring_request_reader(s);
    for (uint64_t id = 0; id < 3; id++) { /* so that the next one lies over the end of the ring */
        make_frame(frame, id, 43000);
        KVT_TRUE(ring_write(&w, frame, 43000));
        read_one(&r, id, 43000);
    }
    make_frame(frame, 9, 5000);
    KVT_TRUE(ring_write(&w, frame, 5000));
    uint64_t at = r.at;
    const uint64_t tails[] = { at - 1, 0, at + RING_BYTES + 1, UINT64_MAX, UINT64_MAX / 2, at + (UINT64_C(1) << 32) };
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) expect_broken(s, &r, tails[i]);
    for (uint64_t n = 1; n < 5000; n += n < 40 ? 1 : 31) expect_broken(s, &r, at + n);
    static const uint32_t lengths[] = { 0, 11, 65533, 0x7FFFFFFF, UINT32_MAX };
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        for (unsigned k = 0; k < 4; k++) s->requests[(at + k) % RING_BYTES] = (uint8_t)(lengths[i] >> 8 * k);
        expect_broken(s, &r, at + 5000);
    }
    free(s);
}

/* SRV-2: a head that cannot be costs its owner the answers, and kvd nothing. */
static void srv_2_hostile_heads(void) {
    struct ring_segment *s = segment_new();
    struct ring_end w = ring_answer_writer(s);
    make_frame(frame, 1, 1000);
    for (int i = 0; i < 100; i++) {
        atomic_store(&s->answer_head, w.at);
        KVT_TRUE(ring_write(&w, frame, 1000));
        uint64_t at = w.at;
        const uint64_t heads[] = { at + 1, at + RING_BYTES, at - RING_BYTES - 1, at + (UINT64_C(1) << 63) };
        for (size_t k = 0; k < sizeof heads / sizeof *heads; k++) {
            atomic_store(&s->answer_head, heads[k]);
            KVT_FALSE(ring_write(&w, frame, 1000));
            KVT_EQ(atomic_load(&s->answer_tail), at);
        }
    }
    for (size_t i = 0; i < RING_BYTES; i++) KVT_NEED(s->requests[i] == 0); /* all stayed in its own ring */
    free(s);
}

/* ---- sleep ------------------------------------------------------------------------------------------ */

#define TRIPS (FRAMES / 5)

struct pair {
    struct ring_segment *segment;
    int doorbell;
    atomic_uint late; /* deadlines that passed */
};

static void loiter(uint64_t *seed) {
    for (uint32_t n = kvt_below(seed, 3) ? kvt_below(seed, 300) : 20000; n; n--)
        atomic_signal_fence(memory_order_seq_cst);
}

/* kvd's part: answers each frame with itself. */
static void *serve_pair(void *argument) {
    struct pair *p = argument;
    struct ring_end r = ring_request_reader(p->segment), w = ring_answer_writer(p->segment);
    static uint8_t bytes[FRAME_LIMIT];
    uint64_t seed = 5, count;
    size_t n;
    for (uint32_t i = 0; i < TRIPS;) {
        int error = ring_read(&r, bytes, &n);
        if (!error) {
            ring_wake(p->segment);
            if (!ring_write(&w, bytes, n)) atomic_fetch_add(&p->late, 1);
            ring_wake(p->segment);
            i++;
            loiter(&seed);
            continue;
        }
        ring_arm(p->segment);
        struct pollfd wait = { .fd = p->doorbell, .events = POLLIN };
        if (ring_unread(&r)) continue;
        if (poll(&wait, 1, 20000) != 1) {
            atomic_fetch_add(&p->late, 1);
            break;
        }
        if (read(p->doorbell, &count, sizeof count) != sizeof count) break;
    }
    return NULL;
}

/* Both sides fall asleep at every point again and again; a lost wake would cost the deadline. */
static void nobody_sleeps_through_a_frame(void) {
    struct pair p = { .segment = segment_new(), .doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) };
    struct ring_end w = ring_request_writer(p.segment), r = ring_answer_reader(p.segment);
    uint64_t seed = kvt_seed(), one = 1;
    pthread_t kvd;
    size_t n;
    KVT_NEED(!pthread_create(&kvd, NULL, serve_pair, &p));
    for (uint32_t i = 0; i < TRIPS; i++) {
        make_frame(frame, i, FRAME_HEADER + i % 100);
        KVT_TRUE(ring_write(&w, frame, FRAME_HEADER + i % 100));
        if (ring_must_call(p.segment)) KVT_EQ(write(p.doorbell, &one, sizeof one), sizeof one);
        loiter(&seed);
        bool in_time = true;
        while (in_time && !ring_unread(&r)) {
            uint32_t bell = ring_announce(p.segment);
            if (!ring_unread(&r)) in_time = ring_wait(p.segment, bell, clock_ns() + UINT64_C(20000000000));
        }
        if (!KVT_TRUE(in_time)) break;
        KVT_EQ_I(ring_read(&r, copy, &n), 0);
        KVT_EQ_MEM(copy, frame, n);
    }
    pthread_join(kvd, NULL);
    KVT_EQ(atomic_load(&p.late), 0);
    close(p.doorbell);
    free(p.segment);
}

static void waits_end_at_their_deadline(void) {
    struct ring_segment *s = segment_new();
    uint64_t begin = clock_ns();
    bool in_time = true;
    while (in_time && clock_ns() < begin + UINT64_C(20000000000))
        in_time = ring_wait(s, ring_announce(s), begin + 1000000);
    KVT_FALSE(in_time);
    KVT_TRUE(clock_ns() >= begin + 1000000);
    KVT_TRUE(ring_wait(s, atomic_load(&s->bell) + 1, UINT64_MAX)); /* it has rung meanwhile */
    free(s);
}

/* Looking that does not pay becomes short, and is tried at length again. */
static void looking_is_learnt(void) {
    struct ring_spin spin = { .ns = RING_SPIN_NS };
    uint32_t longest = 0, n_long = 0;
    ring_spin_learn(&spin, RING_SPIN_NS);
    KVT_EQ(spin.ns, RING_SPIN_NS);
    for (int i = 0; i < 160; i++) {
        ring_spin_learn(&spin, RING_SPIN_NS + 1);
        n_long += spin.ns == RING_SPIN_NS;
        if (i % 16 == 10 && spin.ns > longest) longest = spin.ns;
    }
    KVT_EQ(n_long, 10);
    KVT_TRUE(longest <= RING_SPIN_NS / 16);
    ring_spin_learn(&spin, 1);
    KVT_EQ(spin.ns, RING_SPIN_NS);
    struct ring_spin never = { .ns = 0 };
    ring_spin_learn(&never, 1);
    KVT_EQ(never.ns, 0); /* one CPU */
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(layout),
                                             KVT_CASE(frames_come_out_as_they_went_in),
                                             KVT_CASE(full_ring_refuses_whole_frames),
                                             KVT_CASE(srv_2_hostile_tails),
                                             KVT_CASE(srv_2_hostile_heads),
                                             KVT_CASE(nobody_sleeps_through_a_frame),
                                             KVT_CASE(waits_end_at_their_deadline),
                                             KVT_CASE(looking_is_learnt),
                                             { 0 } };
    return kvt_main("ring", cases, argc, argv);
}
