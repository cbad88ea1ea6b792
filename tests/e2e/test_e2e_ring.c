/* SPDX-License-Identifier: Apache-2.0
 *
 * The shared segment of a connection, against a real kvd: frames by the ring, the first frame decides, whose tokens
 * open what, broken counters, programs that scribble over all of their segment or die at any moment, answers that
 * nobody reads, files that run out, the end of kvd. After each: others are served, and kvd holds what it held before
 * (SRV-1, SRV-2, SRV-5, SRV-8).
 */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "fd_message.h"
#include "raw.h"
#include "ring.h"
#include "scene.h"

#define PATIENCE_NS (UINT64_C(10000000000) * E2E_SLOW)

static struct e2e_daemon daemon_;
static kvd_client *witness; /* a client in good order that must be served throughout */

static bool open_stage(const struct e2e_setup *setup) {
    if (!e2e_daemon_start(&daemon_, setup)) return false;
    witness = e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "witness");
    return KVT_TRUE(witness != NULL);
}

static void served(void) {
    struct kvd_stats stats;
    struct kvd_error error = { 0 };
    if (!KVT_EQ(kvd_stats(witness, &stats, &error), KVD_OK)) printf("    %s\n", error.message);
}

static void close_stage(void) {
    struct kvd_audit audit;
    struct kvd_error error = { 0 };
    if (KVT_EQ(kvd_audit(witness, &audit, &error), KVD_OK)) KVT_EQ(audit.violations, 0);
    kvd_disconnect(witness);
    e2e_daemon_free(&daemon_);
}

/* ---- a client of the ring in plain C ------------------------------------------------------------- */

struct ringer {
    int stream, doorbell;
    struct msg_reply hello;
    struct kvd_ring_info info;
    struct ring_segment *segment;
    struct ring_end requests, answers;
};

static struct codec_arena *fresh_arena(void) {
    static struct codec_arena *arena;
    if (!arena) arena = codec_arena_new();
    codec_arena_reset(arena);
    return arena;
}

static struct msg_request request_of(const struct ringer *r, uint16_t type, uint64_t sequence) {
    return (struct msg_request){ .type = type,
                                 .header = { .session = r->hello.u.hello.session, .sequence = sequence } };
}

/* At the socket of descriptors; -1 with the status. */
static int fetch_fd(const char *path, uint64_t token, uint32_t index, uint32_t *ret_status) {
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    struct fd_request request = { .token = token, .fd_index = index };
    struct fd_answer answer = { .status = KVD_UNKNOWN };
    union fd_control control = { 0 };
    struct iovec part = { &answer, sizeof answer };
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes
    };
    snprintf(to.sun_path, sizeof to.sun_path, "%.100s", path);
    int fd = -1, s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    struct timeval patience = { .tv_sec = 10 * E2E_SLOW };
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (!connect(s, (struct sockaddr *)&to, sizeof to) && send(s, &request, sizeof request, MSG_NOSIGNAL) > 0 &&
        recvmsg(s, &message, MSG_CMSG_CLOEXEC) > 0 && CMSG_FIRSTHDR(&message))
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    close(s);
    *ret_status = answer.status;
    return fd;
}

static bool map_ring(struct ringer *r) {
    uint32_t status;
    int fd = fetch_fd(r->info.fd_socket, r->info.fd_token, r->info.segment_index, &status);
    r->doorbell = fetch_fd(r->info.fd_socket, r->info.fd_token, r->info.doorbell_index, &status);
    if (fd < 0 || r->doorbell < 0) return false;
    r->segment = mmap(NULL, sizeof *r->segment, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (r->segment == MAP_FAILED) return false;
    r->requests = ring_request_writer(r->segment);
    r->answers = ring_answer_reader(r->segment);
    return true;
}

static bool offer_ring(struct ringer *r, enum kvd_role role) {
    struct msg_reply reply;
    *r = (struct ringer){ .doorbell = -1 };
    r->stream = raw_hello(daemon_.socket, role, &r->hello);
    struct msg_request open = request_of(r, FRAME_OPEN_RING, 0);
    if (!raw_request(r->stream, &open, 2) || raw_reply(r->stream, &reply) != KVD_OK) return false;
    r->info = reply.u.ring;
    return r->hello.u.hello.ring;
}

static bool open_ringer(struct ringer *r, enum kvd_role role) {
    bool open = offer_ring(r, role) && map_ring(r);
    return KVT_TRUE(open);
}

static void close_ringer(struct ringer *r) {
    if (r->segment) munmap(r->segment, sizeof *r->segment);
    if (r->doorbell >= 0) close(r->doorbell);
    close(r->stream);
}

static void call_kvd(struct ringer *r) {
    uint64_t one = 1;
    if (ring_must_call(r->segment)) KVT_EQ(write(r->doorbell, &one, sizeof one), sizeof one);
}

/* False: the ring is full. */
static bool ring_request(struct ringer *r, const struct msg_request *request, uint64_t id) {
    uint8_t frame[FRAME_LIMIT];
    size_t n;
    if (codec_encode_request(request, fresh_arena(), frame + FRAME_HEADER, sizeof frame - FRAME_HEADER, &n, NULL, 0))
        return false;
    frame_head_write(frame, request->type, 0, id, n);
    if (!ring_write(&r->requests, frame, FRAME_HEADER + n)) return false;
    call_kvd(r);
    return true;
}

/* The next frame of the ring of answers. False: none came. */
static bool ring_frame(struct ringer *r, uint8_t *frame, size_t *ret_bytes) {
    uint64_t until = clock_ns() + PATIENCE_NS;
    for (bool in_time = true; in_time && !ring_unread(&r->answers);) {
        uint32_t bell = ring_announce(r->segment);
        if (!ring_unread(&r->answers)) in_time = ring_wait(r->segment, bell, until);
    }
    return !ring_read(&r->answers, frame, ret_bytes);
}

static enum kvd_status ring_reply(struct ringer *r, struct msg_reply *reply) {
    uint8_t frame[FRAME_LIMIT];
    struct frame_head head;
    size_t n;
    if (!ring_frame(r, frame, &n) || frame_head_read(frame, n, &head)) return KVD_UNKNOWN;
    uint16_t type = head.type < FRAME_TYPE_END ? head.type : FRAME_GOODBYE;
    if (codec_decode_reply(type, frame + FRAME_HEADER, n - FRAME_HEADER, fresh_arena(), reply, NULL, 0))
        return KVD_UNKNOWN;
    return (enum kvd_status)reply->status;
}

static enum kvd_status ring_ask(struct ringer *r, uint16_t type, uint64_t sequence, uint64_t id) {
    struct msg_request request = request_of(r, type, sequence);
    struct msg_reply reply;
    return KVT_TRUE(ring_request(r, &request, id)) ? ring_reply(r, &reply) : KVD_UNKNOWN;
}

/* ---- resources come back -------------------------------------------------------------------------- */

static struct kvd_stats before;
static unsigned files_before;

static void note_resources(void) {
    struct kvd_error error;
    KVT_EQ(kvd_stats(witness, &before, &error), KVD_OK);
    files_before = e2e_fd_count(daemon_.pid);
}

static bool are_back(void *nothing) {
    struct kvd_stats now;
    struct kvd_error error;
    (void)nothing;
    return kvd_stats(witness, &now, &error) == KVD_OK && e2e_same_resources(&before, &now) &&
           e2e_fd_count(daemon_.pid) <= files_before;
}

static void resources_are_back(void) {
    if (!KVT_TRUE(e2e_until(are_back, NULL, 60, NULL)))
        printf("    %u files, %u before\n", e2e_fd_count(daemon_.pid), files_before);
}

/* ---- frames --------------------------------------------------------------------------------------- */

/* Any request travels; refusals have words. SRV-1: a number that comes twice gets its first answer, byte for byte. */
static void srv_1_frames_travel_by_the_ring(void) {
    static uint8_t first[FRAME_LIMIT], second[FRAME_LIMIT];
    struct ringer r;
    size_t a = 0, b = 0;
    if (!open_stage(NULL)) return;
    if (open_ringer(&r, KVD_ROLE_ADMIN)) {
        KVT_EQ(r.segment->magic, RING_MAGIC);
        KVT_EQ(r.segment->epoch, r.hello.u.hello.epoch);
        KVT_EQ(ring_ask(&r, FRAME_STATS, 0, 3), KVD_OK);
        KVT_EQ(ring_ask(&r, FRAME_AUDIT, 0, 4), KVD_OK);
        KVT_EQ(ring_ask(&r, FRAME_DESCRIBE_STORE, 0, 5), KVD_OK);
        KVT_EQ(ring_ask(&r, FRAME_OPEN_RING, 0, 6), KVD_FAILED_PRECONDITION);
        KVT_EQ(ring_ask(&r, FRAME_YIELD, 7, 7), KVD_OUT_OF_RANGE); /* a gap */
        struct msg_request yield = request_of(&r, FRAME_YIELD, 1);
        KVT_TRUE(ring_request(&r, &yield, 8) && ring_frame(&r, first, &a));
        KVT_TRUE(ring_request(&r, &yield, 8) && ring_frame(&r, second, &b));
        KVT_EQ(a, b);
        KVT_EQ_MEM(first, second, a);
        uint8_t junk[64];
        frame_head_write(junk, FRAME_ROUND, 0, 9, 48);
        memset(junk + FRAME_HEADER, 0xFF, 48);
        KVT_TRUE(ring_write(&r.requests, junk, sizeof junk));
        call_kvd(&r);
        struct msg_reply reply;
        KVT_EQ(ring_reply(&r, &reply), KVD_INVALID_ARGUMENT);
        frame_head_write(junk, 999, 0, 10, 0);
        KVT_TRUE(ring_write(&r.requests, junk, FRAME_HEADER));
        call_kvd(&r);
        KVT_EQ(ring_reply(&r, &reply), KVD_UNIMPLEMENTED);
        KVT_EQ(ring_ask(&r, FRAME_GOODBYE, 0, 11), KVD_OK);
        close_ringer(&r);
    }
    close_stage();
}

/* An audit of one goes on between the requests of another, whose ring waits for none of it. */
static void an_audit_holds_no_other_up(void) {
    struct ringer a, b;
    struct msg_reply reply;
    if (!open_stage(&(struct e2e_setup){ .capacity_tokens = 1u << 19 })) return;
    if (open_ringer(&a, KVD_ROLE_ADMIN) && open_ringer(&b, KVD_ROLE_ADMIN)) {
        struct msg_request audit = request_of(&a, FRAME_AUDIT, 0);
        for (uint64_t i = 0; i < 50; i++) {
            KVT_TRUE(ring_request(&a, &audit, 10 + i));
            KVT_EQ(ring_ask(&b, FRAME_STATS, 0, 10 + i), KVD_OK);
            KVT_EQ(ring_reply(&a, &reply), KVD_OK);
        }
        close_ringer(&a);
        close_ringer(&b);
    }
    close_stage();
}

/* The stream before the ring: the ring is dead. The ring before the stream: a byte there ends the connection. */
static void the_first_frame_decides(void) {
    struct ringer r;
    struct msg_reply reply;
    if (!open_stage(NULL)) return;
    if (open_ringer(&r, KVD_ROLE_WORKER)) {
        struct msg_request stats = request_of(&r, FRAME_STATS, 0);
        KVT_TRUE(raw_request(r.stream, &stats, 3));
        KVT_EQ(raw_reply(r.stream, &reply), KVD_OK);
        KVT_TRUE(ring_request(&r, &stats, 4));
        for (uint64_t i = 5; i < 50; i++) {
            KVT_TRUE(raw_request(r.stream, &stats, i));
            KVT_EQ(raw_reply(r.stream, &reply), KVD_OK);
        }
        KVT_FALSE(ring_unread(&r.answers));
        close_ringer(&r);
    }
    if (open_ringer(&r, KVD_ROLE_WORKER)) {
        KVT_EQ(ring_ask(&r, FRAME_STATS, 0, 3), KVD_OK);
        KVT_TRUE(raw_send(r.stream, "x", 1));
        KVT_TRUE(raw_closed(r.stream));
        close_ringer(&r);
    }
    served();
    close_stage();
}

/* Of the stream: its header and the id in it. False: none came. */
static bool stream_frame(struct ringer *r, struct frame_head *ret_head) {
    static uint8_t frame[FRAME_LIMIT];
    struct pollfd p = { .fd = r->stream, .events = POLLIN };
    if (poll(&p, 1, 10000 * (int)E2E_SLOW) != 1 || recv(r->stream, frame, FRAME_HEADER, MSG_WAITALL) != FRAME_HEADER ||
        frame_head_read(frame, FRAME_HEADER, ret_head))
        return false;
    size_t n = ret_head->length + 4u - FRAME_HEADER;
    return !n || recv(r->stream, frame, n, MSG_WAITALL) == (ssize_t)n;
}

/* As clients do that wait with poll. The answer's way: 'r' ring, 's' stream, 0 none. */
static char wait_at_stream(struct ringer *r, uint64_t id) {
    static uint8_t frame[FRAME_LIMIT];
    struct frame_head head;
    size_t n;
    for (;;) {
        atomic_store(&r->segment->client_waits, RING_WAITS_STREAM);
        bool in_ring = ring_unread(&r->answers), there = in_ring || stream_frame(r, &head);
        atomic_store(&r->segment->client_waits, 0);
        if (!there) return 0;
        if (in_ring)
            return !ring_read(&r->answers, frame, &n) && !frame_head_read(frame, n, &head) && head.id == id ? 'r' : 0;
        if (!(head.flags & FRAME_F_EVENT)) return head.id == id ? 's' : 0;
        KVT_EQ(head.length, FRAME_HEADER - 4); /* an empty event: look into the ring */
    }
}

/* Who waits for the stream has its answers there; who turns to it at any moment misses none. */
static void answers_come_where_the_client_waits(void) {
    struct ringer r;
    struct msg_reply reply;
    uint64_t seed = kvt_seed();
    uint32_t pause = 0; /* goes to where the answer and the turn meet */
    if (!open_stage(NULL)) return;
    if (open_ringer(&r, KVD_ROLE_WORKER)) {
        struct msg_request stats = request_of(&r, FRAME_STATS, 0);
        atomic_store(&r.segment->client_waits, RING_WAITS_STREAM);
        for (uint64_t id = 3; id < 20; id++) {
            KVT_TRUE(ring_request(&r, &stats, id));
            KVT_EQ(raw_reply(r.stream, &reply), KVD_OK);
        }
        KVT_FALSE(ring_unread(&r.answers));
        KVT_EQ(atomic_load(&r.segment->client_waits), RING_WAITS_STREAM); /* the client's to take back */
        atomic_store(&r.segment->client_waits, 0);
        KVT_EQ(ring_ask(&r, FRAME_STATS, 0, 20), KVD_OK);
        for (uint64_t id = 21; id < (E2E_SLOW > 1 ? 5000 : 20000); id++) {
            KVT_TRUE(ring_request(&r, &stats, id));
            for (uint32_t n = pause + kvt_below(&seed, 8); n && !ring_unread(&r.answers); n--) ring_relax();
            char way = wait_at_stream(&r, id);
            if (!KVT_TRUE(way != 0)) break;
            pause = way == 's' ? pause + 4 : pause > 4 ? pause - 4 : 0;
        }
        close_ringer(&r);
    }
    served();
    close_stage();
}

/* SRV-5: a token opens its own ring for its own process, and nothing else. */
static void srv_5_tokens(void) {
    struct ringer r, o;
    struct msg_reply reply;
    uint32_t status;
    if (!open_stage(NULL)) return;
    if (KVT_TRUE(offer_ring(&r, KVD_ROLE_WORKER)) && KVT_TRUE(offer_ring(&o, KVD_ROLE_OBSERVER))) {
        const char *path = r.info.fd_socket;
        KVT_TRUE(r.info.fd_token != o.info.fd_token);
        KVT_EQ_I(fetch_fd(path, r.info.fd_token ^ 1, r.info.segment_index, &status), -1);
        KVT_EQ(status, KVD_PERMISSION_DENIED);
        KVT_EQ_I(fetch_fd(path, 0, r.info.segment_index, &status), -1);
        KVT_EQ(status, KVD_PERMISSION_DENIED);
        KVT_EQ_I(fetch_fd(path, o.info.fd_token, 0, &status), -1); /* a region */
        KVT_EQ(status, KVD_PERMISSION_DENIED);
        struct msg_request describe = request_of(&r, FRAME_DESCRIBE_STORE, 0);
        KVT_TRUE(raw_request(r.stream, &describe, 3));
        KVT_EQ(raw_reply(r.stream, &reply), KVD_OK);
        KVT_EQ_I(fetch_fd(path, reply.u.store->fd_token, r.info.segment_index, &status), -1);
        KVT_EQ(status, KVD_PERMISSION_DENIED);
        pid_t child = fork();
        if (!child) _exit(fetch_fd(path, r.info.fd_token, r.info.segment_index, &status) == -1 ? (int)status : 99);
        KVT_EQ_I(kvt_wait(child), KVD_PERMISSION_DENIED);
        close(r.stream);
        close(o.stream);
    }
    close_stage();
}

/* Where it is off nobody gets one, and libkvd goes on without. */
static void off_is_off(void) {
    struct msg_reply reply;
    if (!open_stage(&(struct e2e_setup){ .more = "[kvd]\nring = no\n" })) return;
    struct ringer r = { .stream = raw_hello(daemon_.socket, KVD_ROLE_SCHEDULER, &r.hello) };
    KVT_FALSE(r.hello.u.hello.ring);
    struct msg_request open = request_of(&r, FRAME_OPEN_RING, 0);
    KVT_TRUE(raw_request(r.stream, &open, 2));
    KVT_EQ(raw_reply(r.stream, &reply), KVD_FAILED_PRECONDITION);
    KVT_HAS(reply.message, "ring");
    close(r.stream);
    served();
    close_stage();
}

/* ---- hostile writers ------------------------------------------------------------------------------- */

/* SRV-2: counters that cannot be end the connection. */
static void srv_2_broken_counters(void) {
    static const int64_t steps[] = { -1, 1, 15, RING_BYTES + 1, INT64_MAX, INT64_MIN, 16 };
    if (!open_stage(NULL)) return;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        struct ringer r;
        if (!open_ringer(&r, KVD_ROLE_WORKER)) break;
        KVT_EQ(ring_ask(&r, FRAME_STATS, 0, 3), KVD_OK);
        /* The last: a head that says more than there is. */
        frame_head_write(r.segment->requests + r.requests.at, FRAME_STATS, 0, 4, i == 6 ? 100 : 0);
        atomic_store(&r.segment->request_tail, r.requests.at + (uint64_t)steps[i]);
        call_kvd(&r);
        KVT_TRUE(raw_closed(r.stream));
        close_ringer(&r);
        served();
    }
    /* heads of the answers cost only their owner */
    struct ringer r;
    if (open_ringer(&r, KVD_ROLE_WORKER)) {
        struct msg_request stats = request_of(&r, FRAME_STATS, 0);
        struct msg_reply reply;
        atomic_store(&r.segment->answer_head, 1234567);
        KVT_TRUE(ring_request(&r, &stats, 3));
        KVT_EQ(raw_reply(r.stream, &reply), KVD_OK); /* it comes on the stream then */
        close_ringer(&r);
    }
    close_stage();
}

/* A process of its own that writes over all of its segment and rings, until its connection is closed. */
static void scribble_once(uint64_t seed) {
    struct ringer r;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!offer_ring(&r, KVD_ROLE_SCHEDULER) || !map_ring(&r)) _exit(1);
    struct pollfd end = { .fd = r.stream, .events = POLLIN };
    volatile uint8_t *bytes = (volatile uint8_t *)r.segment;
    for (uint32_t i = 0; i < 400 && (i % 20 || poll(&end, 1, 0) == 0); i++) {
        struct msg_request stats = request_of(&r, FRAME_STATS, 0);
        uint64_t one = 1;
        if (kvt_below(&seed, 3)) ring_request(&r, &stats, i);
        uint32_t at = kvt_below(&seed, 4) ? kvt_below(&seed, 8192) : kvt_below(&seed, sizeof *r.segment - 64);
        for (uint32_t k = 0; k < 64; k++) bytes[at + k] = (uint8_t)kvt_random(&seed);
        if (kvt_below(&seed, 2)) atomic_store(&r.segment->client_waits, 1);
        ssize_t n = write(r.doorbell, &one, sizeof one);
        (void)n;
    }
    _exit(0);
}

/* One after the other, as sessions end with their processes. The exit status: whether each had a ring. */
static void scribble(uint64_t seed, uint64_t until_ns) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (clock_ns() < until_ns) {
        pid_t child = fork();
        if (!child) scribble_once(kvt_random(&seed));
        (void)kvt_random(&seed);
        if (kvt_wait(child)) _exit(1);
    }
    _exit(0);
}

/* SRV-2: others are served meanwhile, and afterwards everything is as before. */
static void srv_2_scribblers(void) {
    uint64_t seed = kvt_seed();
    pid_t pids[3];
    uint32_t n = 0;
    if (!open_stage(NULL)) return;
    note_resources();
    uint64_t until = clock_ns() + UINT64_C(3000000000);
    for (int i = 0; i < 3; i++) {
        pids[i] = fork();
        if (!pids[i]) scribble(seed + (uint64_t)i, until);
    }
    for (; clock_ns() < until; n++) served();
    KVT_TRUE(n > 20);
    for (int i = 0; i < 3; i++) KVT_EQ_I(kvt_wait(pids[i]), 0);
    resources_are_back();
    close_stage();
}

/* ---- death ------------------------------------------------------------------------------------------- */

/* A process of its own that sends what it can by its ring, sequences among it, until somebody kills it. */
static void work_on(uint32_t number) {
    struct ringer r;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!offer_ring(&r, KVD_ROLE_SCHEDULER) || !map_ring(&r)) _exit(1);
    for (uint64_t i = 1;; i++) {
        struct msg_request q = request_of(&r, i % 2 ? FRAME_ACTIVATE : FRAME_STATS, i % 2 ? (i + 1) / 2 : 0);
        if (i % 2) q.u.activation = scene_want(r.hello.u.hello.session, 64 + number, 64);
        struct msg_reply reply;
        if (ring_request(&r, &q, i)) (void)ring_reply(&r, &reply);
    }
}

/* SRV-5: wherever death strikes, what they held comes back. */
static void srv_5_killed_at_any_moment(void) {
    uint64_t seed = kvt_seed();
    if (!open_stage(&(struct e2e_setup){ .max_concurrency = 16 })) return;
    note_resources();
    for (int round = 0; round < 30 / (E2E_SLOW > 1 ? 3 : 1); round++) {
        pid_t pids[2];
        for (uint32_t i = 0; i < 2; i++) {
            pids[i] = fork();
            if (!pids[i]) work_on(i);
        }
        uint64_t until = clock_ns() + kvt_below(&seed, 20000000); /* the moment of death, not a wait for anything */
        while (clock_ns() < until) served();
        for (uint32_t i = 0; i < 2; i++) {
            kill(pids[i], SIGKILL);
            KVT_EQ_I(kvt_wait(pids[i]), -SIGKILL);
        }
    }
    resources_are_back();
    close_stage();
}

/* Answers that nobody reads: the ring fills, then the stream, then kvd reads no more. Every request that it took is
 * answered once, when they are read. */
static void unread_answers_come_once(void) {
    static uint8_t seen[100000], frame[FRAME_LIMIT];
    struct ringer r;
    uint64_t sent = 0, got = 0;
    if (!open_stage(&(struct e2e_setup){ .more = "[limits]\nmessage_queue = 64KiB\n" })) return;
    if (open_ringer(&r, KVD_ROLE_ADMIN)) {
        struct msg_request q = request_of(&r, FRAME_DESCRIBE_STORE, 0);
        uint64_t full_since = 0, until = clock_ns() + PATIENCE_NS;
        while (sent < sizeof seen && clock_ns() < until) { /* full for 100 ms: kvd has stopped reading */
            if (ring_request(&r, &q, sent)) sent++, full_since = 0;
            else if (!full_since) full_since = clock_ns();
            else if (clock_ns() > full_since + 100000000) break;
        }
        KVT_TRUE(full_since && sent < sizeof seen);
        served();
        struct frame_head head;
        size_t n;
        until = clock_ns() + PATIENCE_NS;
        while (got < sent && clock_ns() < until) {
            struct pollfd p = { .fd = r.stream, .events = POLLIN };
            if (!ring_read(&r.answers, frame, &n)) ring_wake(r.segment);
            else if (poll(&p, 1, 1) != 1 || recv(r.stream, frame, FRAME_HEADER, MSG_WAITALL) != FRAME_HEADER) continue;
            else {
                KVT_EQ_I(frame_head_read(frame, FRAME_HEADER, &head), 0);
                n = head.length + 4u;
                KVT_EQ_I(recv(r.stream, frame + FRAME_HEADER, n - FRAME_HEADER, MSG_WAITALL), n - FRAME_HEADER);
            }
            KVT_EQ_I(frame_head_read(frame, FRAME_HEADER, &head), 0);
            if (head.id < sizeof seen && !seen[head.id]++) got++;
            else KVT_TRUE(false);
        }
        KVT_EQ(got, sent);
        close_ringer(&r);
    }
    close_stage();
}

/* ---- libkvd ------------------------------------------------------------------------------------------- */

static bool has_ring_mapped(pid_t pid) {
    char line[512], path[64];
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *maps = fopen(path, "r");
    while (maps && fgets(line, sizeof line, maps)) found |= strstr(line, "memfd:kvd-ring") != NULL;
    if (maps) fclose(maps);
    return found;
}

/* Whose calls are worth it has one; nothing is left of it afterwards. */
static void libkvd_uses_it(void) {
    if (!open_stage(NULL)) return;
    KVT_TRUE(has_ring_mapped(getpid()));
    kvd_disconnect(witness);
    KVT_FALSE(has_ring_mapped(getpid()));
    witness = e2e_connect(&daemon_, KVD_ROLE_OBSERVER, "looker");
    KVT_FALSE(has_ring_mapped(getpid()));
    served();
    kvd_disconnect(witness);
    witness = e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "witness");
    KVT_TRUE(has_ring_mapped(getpid()));
    close_stage();
}

/* All threads of kvd: none answers any more. */
static bool has_stopped(void *nothing) {
    siginfo_t info = { .si_pid = 0 };
    (void)nothing;
    return !waitid(P_PID, (id_t)daemon_.pid, &info, WSTOPPED | WNOHANG | WNOWAIT) && info.si_pid == daemon_.pid;
}

/* SRV-8: a client whose kvd is killed learns it at once, in the middle of its ring, and the next kvd has another
 * segment. */
static void srv_8_the_end_of_kvd(void) {
    if (!open_stage(NULL)) return;
    struct kvd_stats stats;
    struct kvd_error error = { 0 };
    uint64_t epoch = kvd_client_epoch(witness);
    for (int i = 0; i < 3; i++) {
        kill(daemon_.pid, SIGSTOP);
        KVT_TRUE(e2e_until(has_stopped, NULL, 60, NULL));
        pid_t killer = fork();
        if (!killer) _exit(kill(daemon_.pid, SIGKILL)); /* the client waits by then, or is about to */
        double begin = e2e_now();
        enum kvd_status status = kvd_stats(witness, &stats, &error);
        if (!KVT_TRUE(status == KVD_UNAVAILABLE || status == KVD_ABORTED))
            printf("    %s: %s\n", kvd_status_name(status), error.message);
        KVT_TRUE(e2e_now() - begin < 30 * E2E_SLOW); /* the call's own deadline is a minute */
        KVT_EQ_I(kvt_wait(killer), 0);
        KVT_EQ_I(e2e_daemon_wait(&daemon_), -SIGKILL);
        KVT_NEED(e2e_daemon_restart(&daemon_));
        KVT_EQ(kvd_client_reconnect(witness, &error), KVD_ABORTED);
        kvd_disconnect(witness);
        witness = e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "witness");
        KVT_NEED(witness != NULL);
        KVT_TRUE(kvd_client_epoch(witness) != epoch);
        epoch = kvd_client_epoch(witness);
        KVT_TRUE(has_ring_mapped(getpid()));
        served();
    }
    close_stage();
}

#if defined(KVD_SANITIZE_ADDRESS) || defined(KVD_SANITIZE_THREAD)
#define FEW_FILES false /* a sanitizer opens files of its own, and without them cannot tell what is suppressed */
#else
#define FEW_FILES true
#endif

static void limit_files(pid_t pid, unsigned n) {
    struct rlimit limit;
    KVT_EQ_I(prlimit(pid, RLIMIT_NOFILE, NULL, &limit), 0);
    limit.rlim_cur = n;
    KVT_EQ_I(prlimit(pid, RLIMIT_NOFILE, &limit, NULL), 0);
}

/* A client with few files left, from too few for a connection to enough for all: where it connects it is served. */
static void a_client_without_files_goes_on(void) {
    struct puppet puppet;
    struct puppet_answer answer;
    struct puppet_call leave = { .op = PUPPET_DISCONNECT }, stats = { .op = PUPPET_STATS };
    struct puppet_call connect = { .op = PUPPET_CONNECT, .role = KVD_ROLE_WORKER, .name = "tight", .timeout_ms = 5000 };
    uint32_t without = 0, with = 0;
    if (!FEW_FILES || !open_stage(NULL)) return;
    if (!KVT_TRUE(puppet_start(&puppet))) return;
    snprintf(connect.socket, sizeof connect.socket, "%s", daemon_.socket);
    puppet_connect(&puppet, &daemon_, KVD_ROLE_WORKER, 0); /* nng opens files of its own once */
    KVT_TRUE(has_ring_mapped(puppet.pid));
    KVT_TRUE(puppet_do(&puppet, &leave, &answer));
    unsigned open_now = e2e_fd_count(puppet.pid);
    for (unsigned more = 0; more < 16; more++) {
        limit_files(puppet.pid, open_now + more);
        if (!KVT_TRUE(puppet_do(&puppet, &connect, &answer))) break;
        if (answer.status != KVD_OK) continue;
        if (has_ring_mapped(puppet.pid)) with++;
        else without++;
        KVT_TRUE(puppet_do(&puppet, &stats, &answer));
        KVT_EQ(answer.status, KVD_OK);
        KVT_TRUE(puppet_do(&puppet, &leave, &answer));
    }
    KVT_TRUE(without > 0 && with > 0);
    puppet_kill(&puppet);
    close_stage();
}

/* The same of kvd. */
static void a_kvd_without_files_goes_on(void) {
    struct rlimit before_;
    if (!FEW_FILES || !open_stage(NULL)) return;
    KVT_EQ_I(prlimit(daemon_.pid, RLIMIT_NOFILE, NULL, &before_), 0);
    kvd_client *others[5] = { NULL };
    for (unsigned more = 3; more < 8; more++) {
        struct kvd_stats stats;
        struct kvd_error error = { 0 };
        limit_files(daemon_.pid, e2e_fd_count(daemon_.pid) + more);
        kvd_client *late = others[more - 3] = e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "late");
        if (!KVT_TRUE(late != NULL)) break;
        KVT_EQ(kvd_stats(late, &stats, &error), KVD_OK);
        served();
    }
    KVT_EQ_I(prlimit(daemon_.pid, RLIMIT_NOFILE, &before_, NULL), 0);
    for (int i = 0; i < 5; i++) kvd_disconnect(others[i]);
    close_stage();
}

static uint64_t cpu_ticks(pid_t pid) {
    char path[64], text[1024] = "";
    unsigned long user = 0, system_ = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    if (f && fgets(text, sizeof text, f) && strrchr(text, ')'))
        sscanf(strrchr(text, ')'), ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system_);
    if (f) fclose(f);
    return user + system_;
}

/* Rings that nobody uses cost nothing: a second of 16 of them takes less than a tenth of a CPU. */
static void idle_rings_sleep(void) {
    static struct ringer r[16];
    uint32_t n = 0;
    if (!open_stage(NULL)) return;
    while (n < 16 && open_ringer(&r[n], KVD_ROLE_WORKER)) KVT_EQ(ring_ask(&r[n++], FRAME_STATS, 0, 3), KVD_OK);
    uint64_t ticks = cpu_ticks(daemon_.pid);
    struct pollfd nothing = { .fd = -1 };
    poll(&nothing, 0, 1000); /* the time that is measured */
    KVT_TRUE(cpu_ticks(daemon_.pid) - ticks < (uint64_t)sysconf(_SC_CLK_TCK) / 10);
    while (n) close_ringer(&r[--n]);
    close_stage();
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(srv_1_frames_travel_by_the_ring),
                                             KVT_CASE(an_audit_holds_no_other_up),
                                             KVT_CASE(the_first_frame_decides),
                                             KVT_CASE(answers_come_where_the_client_waits),
                                             KVT_CASE(srv_5_tokens),
                                             KVT_CASE(off_is_off),
                                             KVT_CASE(srv_2_broken_counters),
                                             KVT_CASE(srv_2_scribblers),
                                             KVT_CASE(srv_5_killed_at_any_moment),
                                             KVT_CASE(unread_answers_come_once),
                                             KVT_CASE(libkvd_uses_it),
                                             KVT_CASE(srv_8_the_end_of_kvd),
                                             KVT_CASE(a_client_without_files_goes_on),
                                             KVT_CASE(a_kvd_without_files_goes_on),
                                             KVT_CASE(idle_rings_sleep),
                                             { 0 } };
    return kvt_main("e2e_ring", cases, argc, argv);
}
