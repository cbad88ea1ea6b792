/* SPDX-License-Identifier: Apache-2.0
 * What hostile or broken programs do to the socket: junk, truncated and oversized frames, unknown fields and versions,
 * floods of connections, slow readers, a second daemon, late duplicates. After each: the daemon serves others, and
 * holds what it held before (SRV-2). */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "raw.h"
#include "scene.h"

static struct e2e_daemon daemon_;
static kvd_client *witness; /* a client in good order that must be served throughout */
static struct codec_arena *arena;

static bool open_stage(const struct e2e_setup *setup) {
    if (!e2e_daemon_start(&daemon_, setup)) return false;
    arena = codec_arena_new();
    witness = e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "witness");
    return witness != NULL && arena != NULL;
}

static void close_stage(void) {
    kvd_disconnect(witness);
    arena = codec_arena_free(arena);
    e2e_daemon_free(&daemon_);
}

static void served(void) {
    struct kvd_stats stats;
    struct kvd_error error = { 0 };
    if (!KVT_EQ(kvd_stats(witness, &stats, &error), KVD_OK)) printf("    %s\n", error.message);
}

/* SRV-2: random bytes of every length; frames that lie about their length; a valid head with a junk body. */
static void srv_2_junk_bytes(void) {
    uint64_t seed = kvt_seed();
    if (!open_stage(NULL)) return;
    uint8_t bytes[4096];
    for (unsigned i = 0; i < 300; i++) {
        int fd = raw_connect(daemon_.socket);
        size_t n = 1 + kvt_below(&seed, sizeof bytes);
        for (size_t k = 0; k < n; k++) bytes[k] = (uint8_t)kvt_random(&seed);
        if (i % 3 == 0)
            frame_head_write(bytes, (uint16_t)kvt_below(&seed, 70), (uint16_t)kvt_below(&seed, 3), 1,
                             n > 16 ? n - 16 : 0);
        raw_send(fd, bytes, n);
        close(fd);
        if (i % 50 == 0) served();
    }
    served();
    static const uint32_t lengths[] = { 0, 1, 11, 65533, 65536, 0x7FFFFFFF, 0xFFFFFFFF };
    for (unsigned i = 0; i < 7; i++) {
        int fd = raw_connect(daemon_.socket);
        uint8_t head[FRAME_HEADER];
        frame_head_write(head, FRAME_STATS, 0, 1, 0);
        for (int k = 0; k < 4; k++) head[k] = (uint8_t)(lengths[i] >> (8 * k));
        KVT_TRUE(raw_send(fd, head, sizeof head));
        KVT_TRUE(raw_closed(fd)); /* cannot be resynchronised */
        close(fd);
    }
    served();
    close_stage();
}

/* SRV-2, SRV-4: wrong protocol version, unknown type, junk body in a session, requests before Hello: words, not
 * silence. */
static void srv_4_versions_and_order(void) {
    if (!open_stage(NULL)) return;
    struct msg_reply reply;
    struct msg_request hello = { .type = FRAME_HELLO,
                                 .u.hello = { .protocol = 99, .role = KVD_ROLE_WORKER, .name = "new" } };
    int fd = raw_connect(daemon_.socket);
    KVT_TRUE(raw_request(fd, &hello, 1));
    KVT_EQ(raw_reply(fd, &reply), KVD_FAILED_PRECONDITION);
    KVT_HAS(reply.message, "99");
    printf("    %s\n", reply.message);
    close(fd);
    fd = raw_connect(daemon_.socket);
    struct msg_request stats = { .type = FRAME_STATS };
    KVT_TRUE(raw_request(fd, &stats, 1));
    KVT_EQ(raw_reply(fd, &reply), KVD_UNAUTHENTICATED);
    close(fd);
    fd = raw_hello(daemon_.socket, KVD_ROLE_WORKER, &reply);
    uint8_t junk[64];
    frame_head_write(junk, FRAME_ROUND, 0, 7, 48);
    memset(junk + 16, 0xFF, 48);
    KVT_TRUE(raw_send(fd, junk, 64));
    KVT_EQ(raw_reply(fd, &reply), KVD_INVALID_ARGUMENT);
    frame_head_write(junk, 55, 0, 8, 0);
    KVT_TRUE(raw_send(fd, junk, 16));
    KVT_EQ(raw_reply(fd, &reply), KVD_UNIMPLEMENTED);
    close(fd);
    served();
    close_stage();
}

/* SRV-2: fields of a newer protocol are ignored. */
static void srv_2_unknown_fields(void) {
    if (!open_stage(NULL)) return;
    struct msg_reply reply;
    uint8_t frame[FRAME_LIMIT];
    size_t n;
    struct msg_request hello = {
        .type = FRAME_HELLO, .u.hello = { .protocol = KVD_PROTOCOL_VERSION, .role = KVD_ROLE_WORKER, .name = "x" }
    };
    codec_arena_reset(arena);
    KVT_OK(codec_encode_request(&hello, arena, frame + FRAME_HEADER, 1000, &n, NULL, 0));
    static const uint8_t extra[] = { 0xFA, 0x3F, 3, 'a', 'b', 'c' }; /* field 1023, length-delimited */
    memcpy(frame + FRAME_HEADER + n, extra, sizeof extra);
    frame_head_write(frame, FRAME_HELLO, 0, 5, n + sizeof extra);
    int fd = raw_connect(daemon_.socket);
    KVT_TRUE(raw_send(fd, frame, FRAME_HEADER + n + sizeof extra));
    KVT_EQ(raw_reply(fd, &reply), KVD_OK);
    close(fd);
    close_stage();
}

/* SRV-1: the same sequence number again, also on a resumed connection: one effect, the same answer; a gap is refused.
 */
static void srv_1_late_duplicates(void) {
    if (!open_stage(NULL)) return;
    struct msg_reply hello, first, second;
    int fd = raw_hello(daemon_.socket, KVD_ROLE_SCHEDULER, &hello);
    struct msg_request activate = { .type = FRAME_ACTIVATE,
                                    .header = { .session = hello.u.hello.session, .sequence = 1 },
                                    .u.activation = scene_want(hello.u.hello.session, 100, 10) };
    KVT_TRUE(raw_request(fd, &activate, 10));
    KVT_EQ(raw_reply(fd, &first), KVD_OK);
    KVT_TRUE(raw_request(fd, &activate, 11));
    KVT_EQ(raw_reply(fd, &second), KVD_OK);
    KVT_EQ(first.u.activated.sequence.bits, second.u.activated.sequence.bits);
    close(fd); /* the reply was lost with the connection */
    struct msg_request again = { .type = FRAME_HELLO,
                                 .u.hello = { .protocol = KVD_PROTOCOL_VERSION,
                                              .role = KVD_ROLE_SCHEDULER,
                                              .name = "raw",
                                              .resume = hello.u.hello.session,
                                              .resume_secret = hello.u.hello.secret } };
    fd = raw_connect(daemon_.socket);
    KVT_TRUE(raw_request(fd, &again, 1));
    KVT_EQ(raw_reply(fd, &second), KVD_OK);
    KVT_EQ(second.u.hello.session.bits, hello.u.hello.session.bits);
    KVT_EQ(second.u.hello.last_sequence, 1);
    KVT_TRUE(raw_request(fd, &activate, 12));
    KVT_EQ(raw_reply(fd, &second), KVD_OK);
    KVT_EQ(first.u.activated.sequence.bits, second.u.activated.sequence.bits);
    struct kvd_stats stats = scene_stats(witness);
    KVT_EQ(stats.sequences, 1);
    activate.header.sequence = 5; /* 2 is next */
    KVT_TRUE(raw_request(fd, &activate, 13));
    KVT_FALSE(raw_reply(fd, &second) == KVD_OK);
    KVT_HAS(second.message, "2");
    activate.header.sequence = 2;
    activate.header.epoch = 12345; /* another instance */
    KVT_TRUE(raw_request(fd, &activate, 14));
    KVT_EQ(raw_reply(fd, &second), KVD_ABORTED);
    again.u.hello.resume_secret ^= 1;
    int thief = raw_connect(daemon_.socket);
    KVT_TRUE(raw_request(thief, &again, 1));
    KVT_FALSE(raw_reply(thief, &second) == KVD_OK);
    close(thief);
    close(fd);
    close_stage();
}

/* What a process that shares its connection tells about itself; the connection is the child's, too. */
struct shared {
    pid_t parent;
    kvd_session_id session;
    kvd_sequence sequence;
};

/* Connects, activates and leaves its connection to a child, which waits for a byte, finishes the parent's sequence, and
 * says how that was answered; then whether the connection was closed to it. */
static void share_connection(int pipe_to, int pipe_from) {
    struct msg_reply reply = { 0 };
    char byte;
    int fd = raw_hello(daemon_.socket, KVD_ROLE_SCHEDULER, &reply);
    struct shared shared = { .parent = getpid(), .session = reply.u.hello.session };
    struct msg_request q = { .type = FRAME_ACTIVATE,
                             .header = { .session = shared.session, .sequence = 1 },
                             .u.activation = scene_want(shared.session, 100, 10) };
    if (!raw_request(fd, &q, 2) || raw_reply(fd, &reply) != KVD_OK) _exit(1);
    shared.sequence = reply.u.activated.sequence;
    if (fork() > 0)
        for (;;) pause();
    prctl(PR_SET_PDEATHSIG, 0); /* it outlives its parent */
    alarm(60 * E2E_SLOW);
    if (write(pipe_to, &shared, sizeof shared) != sizeof shared || read(pipe_from, &byte, 1) != 1) _exit(1);
    q = (struct msg_request){ .type = FRAME_FINISH,
                              .header = { .session = shared.session, .sequence = 2 },
                              .u.finish = { .sequence = shared.sequence } };
    uint32_t status = raw_request(fd, &q, 3) ? raw_reply(fd, &reply) : KVD_UNKNOWN;
    if (write(pipe_to, &status, sizeof status) != sizeof status) _exit(1);
    status = raw_closed(fd);
    if (write(pipe_to, &status, sizeof status) != sizeof status) _exit(1);
    _exit(0);
}

static bool hear_within(int fd, void *to, size_t bytes) {
    struct pollfd p = { .fd = fd, .events = POLLIN };
    return KVT_EQ_I(poll(&p, 1, 30000 * E2E_SLOW), 1) && KVT_EQ_I(read(fd, to, bytes), (ssize_t)bytes);
}

static bool witness_alone(void *unused) {
    (void)unused;
    return scene_stats(witness).sessions == 1;
}

/* SRV-6, SRV-5, as PROTOCOL.md has it: on an inherited connection a child is its parent; with the parent's exit the
 * session ends and the connection is closed, although the child holds it. */
static void srv_6_child_on_an_inherited_connection(void) {
    int up[2], down[2];
    uint32_t answer = KVD_UNKNOWN, closed = 0;
    struct shared shared = { .parent = 0 };
    KVT_NEED(open_stage(NULL));
    KVT_OK(pipe2(up, O_CLOEXEC) | pipe2(down, O_CLOEXEC));
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        share_connection(up[1], down[0]);
    }
    close(up[1]);
    if (hear_within(up[0], &shared, sizeof shared)) {
        KVT_EQ(scene_stats(witness).sequences, 1);
        KVT_EQ_I(write(down[1], "f", 1), 1);
        if (hear_within(up[0], &answer, sizeof answer)) KVT_EQ(answer, KVD_OK);
        KVT_EQ(scene_stats(witness).sequences, 0);
        KVT_EQ(scene_stats(witness).sessions, 2);
    }
    kill(pid, SIGKILL);
    KVT_EQ_I(kvt_wait(pid), -SIGKILL);
    KVT_TRUE(e2e_until(witness_alone, NULL, 60, NULL));
    if (hear_within(up[0], &closed, sizeof closed)) KVT_EQ(closed, true);
    close(up[0]);
    close(down[0]);
    close(down[1]);
    close_stage();
}

static bool back_to(void *wanted) { return e2e_fd_count(daemon_.pid) <= *(unsigned *)wanted; }

/* SRV-2: 10,000 connect-and-close in a row, and as many half frames, leave it serving, with the descriptors it had. */
static void srv_2_ten_thousand_connections(void) {
    unsigned n = 10000 / E2E_SLOW;
    if (!open_stage(NULL)) return;
    for (unsigned i = 0; i < 100; i++) close(raw_connect(daemon_.socket));
    served();
    unsigned fds = e2e_fd_count(daemon_.pid);
    uint64_t rss = e2e_rss_bytes(daemon_.pid);
    for (unsigned i = 0; i < n; i++) {
        int fd = raw_connect(daemon_.socket);
        if (!KVT_TRUE(fd >= 0)) break;
        close(fd);
        if (i % 1000 == 0) served();
    }
    served();
    uint8_t half[FRAME_HEADER + 10] = { 0 };
    frame_head_write(half, FRAME_ACTIVATE, 0, 1, 500);
    for (unsigned i = 0; i < n; i++) {
        int fd = raw_connect(daemon_.socket);
        if (!KVT_TRUE(fd >= 0)) break;
        raw_send(fd, half, 1 + i % sizeof half);
        close(fd);
        if (i % 1000 == 0) served();
    }
    served();
    KVT_TRUE(e2e_until(back_to, &fds, 60, NULL));
    printf("  rss %.1f MiB, then %.1f MiB\n", (double)rss / 1048576, (double)e2e_rss_bytes(daemon_.pid) / 1048576);
    KVT_TRUE(E2E_SLOW > 1 || e2e_rss_bytes(daemon_.pid) < 20 << 20);
    close_stage();
}

/* SRV-2: many connections that say nothing, and one that asks and never reads: bounded, others served. */
static void srv_2_idle_and_slow_readers(void) {
    if (!open_stage(NULL)) return;
    int idle[200];
    for (unsigned i = 0; i < 200; i++) idle[i] = raw_connect(daemon_.socket);
    served();
    struct msg_reply hello;
    int slow = raw_hello(daemon_.socket, KVD_ROLE_OBSERVER, &hello);
    fcntl(slow, F_SETFL, O_NONBLOCK);
    struct msg_request list = { .type = FRAME_DESCRIBE_STORE, .header = { .session = hello.u.hello.session } };
    uint8_t frame[1024];
    size_t n;
    codec_arena_reset(arena);
    KVT_OK(codec_encode_request(&list, arena, frame + FRAME_HEADER, sizeof frame - FRAME_HEADER, &n, NULL, 0));
    frame_head_write(frame, FRAME_DESCRIBE_STORE, 0, 9, n);
    uint64_t rss = e2e_rss_bytes(daemon_.pid);
    unsigned sent = 0;
    for (unsigned i = 0; i < 100000; i++) {
        ssize_t put = send(slow, frame, FRAME_HEADER + n, MSG_NOSIGNAL);
        if (put != (ssize_t)(FRAME_HEADER + n)) break;
        sent++;
    }
    KVT_TRUE(sent < 100000); /* the daemon stopped reading */
    served();
    KVT_TRUE(E2E_SLOW > 1 || e2e_rss_bytes(daemon_.pid) < rss + (8 << 20));
    close(slow);
    for (unsigned i = 0; i < 200; i++) close(idle[i]);
    served();
    close_stage();
}

/* A second daemon on the same socket fails with a word and leaves the first untouched. */
static void srv_2_second_daemon(void) {
    if (!open_stage(NULL)) return;
    char text[4096];
    struct kvd_activation want = scene_want(kvd_client_session(witness), 100, 10);
    struct kvd_activated a = scene_activate(witness, &want);
    KVT_EQ(e2e_shm_count(&daemon_), 0); /* pools have no names */
    KVT_EQ_I(e2e_daemon_try(&daemon_, text, sizeof text), 2);
    printf("    %s", text);
    KVT_HAS(text, daemon_.socket);
    KVT_EQ(e2e_shm_count(&daemon_), 0);
    struct kvd_finish how = { .sequence = a.sequence };
    struct kvd_finished finished;
    KVT_EQ(kvd_finish(witness, &how, &finished, NULL), KVD_OK);
    kvd_client *fresh = e2e_connect(&daemon_, KVD_ROLE_OBSERVER, "fresh");
    KVT_TRUE(fresh != NULL);
    kvd_disconnect(fresh);
    close_stage();
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(srv_2_junk_bytes),
                                             KVT_CASE(srv_4_versions_and_order),
                                             KVT_CASE(srv_2_unknown_fields),
                                             KVT_CASE(srv_1_late_duplicates),
                                             KVT_CASE(srv_6_child_on_an_inherited_connection),
                                             KVT_CASE(srv_2_ten_thousand_connections),
                                             KVT_CASE(srv_2_idle_and_slow_readers),
                                             KVT_CASE(srv_2_second_daemon),
                                             { 0 } };
    signal(SIGPIPE, SIG_IGN);
    return kvt_main("e2e abuse", cases, argc, argv);
}
