/* SPDX-License-Identifier: Apache-2.0 */
#include "scripted.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "kvt.h"

#define ANSWERS 4096u

struct stored_regions { /* one numbered request */
    uint8_t *answer;    /* a whole frame */
    size_t bytes;
    uint64_t check; /* of the request's body behind its header */
    bool held;
};

struct script {
    char dir[32], path[64];
    int listener, connection, wake[2];
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t came;
    script_fn *fn;
    void *user;
    struct codec_arena *arena, *scratch;
    uint64_t epoch, last_sequence;
    uint32_t hello_status, event_mask;
    unsigned requests, served, executed, repeats, hellos, bad_numbers;
    struct stored_regions kept[ANSWERS];
    struct stored_regions held_query[64];
    unsigned n_held_queries;
    size_t filled;
    uint8_t inbox[2 * FRAME_LIMIT], outbox[FRAME_LIMIT];
};

static void send_bytes(struct script *s, const uint8_t *bytes, size_t n) {
    while (n && s->connection >= 0) {
        ssize_t sent = send(s->connection, bytes, n, MSG_NOSIGNAL);
        if (sent <= 0) return;
        bytes += sent;
        n -= (size_t)sent;
    }
}

static void hang_up(struct script *s) {
    if (s->connection >= 0) close(s->connection);
    s->connection = -1;
    s->filled = 0;
}

/* The frame of a reply in outbox. */
static size_t make_frame(struct script *s, uint64_t id, const struct msg_reply *reply) {
    char why[256] = "";
    size_t bytes = 0;
    codec_arena_reset(s->scratch);
    int rc = codec_encode_reply(reply, s->scratch, s->outbox + FRAME_HEADER, FRAME_LIMIT - FRAME_HEADER, &bytes, why,
                                sizeof why);
    if (rc != 0) printf("scripted kvd: %s\n", why);
    KVT_OK(rc);
    frame_head_write(s->outbox, reply->type, FRAME_F_REPLY, id, bytes);
    return FRAME_HEADER + bytes;
}

static void answer_hello(struct script *s, uint64_t id, const struct msg_request *request) {
    struct msg_reply reply = { .type = FRAME_HELLO, .epoch = s->epoch, .status = s->hello_status };
    s->hellos++;
    reply.u.hello = (struct kvd_hello_reply){ .session = { request->u.hello.resume.bits ? request->u.hello.resume.bits
                                                                                        : 0x100000001u },
                                              .secret = 77,
                                              .epoch = s->epoch,
                                              .last_sequence = s->last_sequence,
                                              .protocol = KVD_PROTOCOL_VERSION,
                                              .store = "scripted",
                                              .server = "0" };
    if (request->u.hello.resume.bits && request->u.hello.resume_secret != 77) s->bad_numbers++;
    if (reply.status) snprintf(reply.message, sizeof reply.message, "scripted refusal");
    send_bytes(s, s->outbox, make_frame(s, id, &reply));
}

static void act(struct script *s, enum script_act what, const struct frame_head *head, size_t bytes,
                struct stored_regions *kept) {
    static const uint8_t impossible[FRAME_HEADER] = { 0xff, 0xff, 0xff, 0x7f };
    uint8_t junk[FRAME_HEADER + 3] = { 0 };
    switch (what) {
    case SCRIPT_ANSWER: send_bytes(s, s->outbox, bytes); break;
    case SCRIPT_HOLD:
        if (kept) kept->held = true;
        break;
    case SCRIPT_DROP:
    case SCRIPT_DROP_UNRUN: hang_up(s); break;
    case SCRIPT_LOSE: break;
    case SCRIPT_JUNK_LENGTH: send_bytes(s, impossible, sizeof impossible); break;
    case SCRIPT_JUNK_BODY:
        frame_head_write(junk, head->type, FRAME_F_REPLY, head->id, 3);
        memset(junk + FRAME_HEADER, 0xff, 3);
        send_bytes(s, junk, sizeof junk);
        break;
    case SCRIPT_JUNK_TYPE:
        frame_head_write(junk, FRAME_STATS, FRAME_F_REPLY, head->id, 0);
        send_bytes(s, junk, FRAME_HEADER);
        break;
    default: break;
    }
}

/* A sum over what a request is, without its header's number and deadline: a repeat must have the same. */
static uint64_t check_of(struct script *s, struct msg_request request) {
    size_t bytes = 0;
    uint64_t sum = request.type;
    memset(&request.header, 0, sizeof request.header);
    codec_arena_reset(s->scratch);
    codec_encode_request(&request, s->scratch, s->outbox, sizeof s->outbox, &bytes, NULL, 0);
    for (size_t i = 0; i < bytes; i++) sum = sum * 1099511628211u + s->outbox[i];
    return sum;
}

/* A repeated number: the first answer, byte for byte but for the id, which the client repeats. */
static void repeat(struct script *s, const struct frame_head *head, uint64_t sequence, uint64_t check) {
    struct stored_regions *kept = &s->kept[sequence % ANSWERS];
    s->repeats++;
    if (kept->check != check) s->bad_numbers++;
    memcpy(s->outbox, kept->answer, kept->bytes);
    frame_head_write(s->outbox, head->type, FRAME_F_REPLY, head->id, kept->bytes - FRAME_HEADER);
    kept->held = false;
    send_bytes(s, s->outbox, kept->bytes);
}

static void serve(struct script *s, const struct frame_head *head, const uint8_t *body) {
    struct msg_request request;
    struct msg_reply reply = { .type = head->type, .epoch = s->epoch };
    char why[256] = "";
    codec_arena_reset(s->arena);
    int rc =
        codec_decode_request(head->type, body, head->length + 4 - FRAME_HEADER, s->arena, &request, why, sizeof why);
    KVT_OK(rc);
    if (rc != 0) {
        printf("scripted kvd: %s\n", why);
        return;
    }
    if (head->type == FRAME_HELLO) {
        answer_hello(s, head->id, &request);
        return;
    }
    uint64_t sequence = request.header.sequence, check = sequence ? check_of(s, request) : 0;
    s->requests++;
    if (sequence && sequence <= s->last_sequence) {
        repeat(s, head, sequence, check);
        return;
    }
    if (sequence > s->last_sequence + 1 || request.header.epoch != s->epoch ||
        request.header.session.bits != 0x100000001u)
        s->bad_numbers++;
    if (head->type == FRAME_SUBSCRIBE) s->event_mask = request.u.event_mask;
    pthread_mutex_unlock(&s->lock);
    enum script_act what = s->fn && head->type != FRAME_GOODBYE && head->type != FRAME_SUBSCRIBE
                               ? s->fn(s->user, &request, &reply)
                               : SCRIPT_ANSWER;
    pthread_mutex_lock(&s->lock);

    size_t bytes = make_frame(s, head->id, &reply);
    struct stored_regions *kept = NULL;
    if (sequence && what != SCRIPT_DROP_UNRUN && what != SCRIPT_LOSE) {
        kept = &s->kept[sequence % ANSWERS];
        s->last_sequence = sequence;
        s->executed++;
    } else if (!sequence && what == SCRIPT_HOLD && s->n_held_queries < 64) {
        kept = &s->held_query[s->n_held_queries++];
    }
    if (kept) {
        free(kept->answer);
        *kept = (struct stored_regions){ .answer = malloc(bytes), .bytes = bytes, .check = check };
        memcpy(kept->answer, s->outbox, bytes);
    }
    act(s, what, head, bytes, kept);
}

/* serve lets the lock go for the script's function; who waits for a request wants all of it done. */
static void serve_and_tell(struct script *s, const struct frame_head *head, const uint8_t *body) {
    serve(s, head, body);
    s->served += head->type != FRAME_HELLO;
    pthread_cond_broadcast(&s->came);
}

static void read_some(struct script *s) {
    ssize_t n = recv(s->connection, s->inbox + s->filled, sizeof s->inbox - s->filled, 0);
    if (n <= 0) {
        hang_up(s);
        return;
    }
    s->filled += (size_t)n;
    size_t at = 0;
    struct frame_head head;
    while (s->connection >= 0 && frame_head_read(s->inbox + at, s->filled - at, &head) == 0 &&
           head.length + 4 <= s->filled - at) {
        serve_and_tell(s, &head, s->inbox + at + FRAME_HEADER);
        at += (size_t)head.length + 4;
    }
    if (s->connection < 0) return;
    memmove(s->inbox, s->inbox + at, s->filled - at);
    s->filled -= at;
}

static void *run(void *arg) {
    struct script *s = arg;
    for (;;) {
        pthread_mutex_lock(&s->lock);
        struct pollfd fds[3] = { { s->listener, POLLIN, 0 }, { s->wake[0], POLLIN, 0 }, { s->connection, POLLIN, 0 } };
        pthread_mutex_unlock(&s->lock);
        if (poll(fds, 3, -1) < 0 && errno != EINTR) return NULL;
        if (fds[1].revents) {
            char byte;
            if (read(s->wake[0], &byte, 1) == 1 && byte == 'q') return NULL;
            continue;
        }
        pthread_mutex_lock(&s->lock);
        if (fds[2].fd >= 0 && fds[2].fd == s->connection && fds[2].revents) read_some(s);
        if (fds[0].revents & POLLIN) {
            hang_up(s);
            s->connection = accept(s->listener, NULL, NULL);
        }
        pthread_mutex_unlock(&s->lock);
    }
}

struct script *script_start(script_fn *fn, void *user) {
    struct script *s = calloc(1, sizeof *s);
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    snprintf(s->dir, sizeof s->dir, "/tmp/kvd-script-XXXXXX");
    if (!mkdtemp(s->dir)) abort();
    snprintf(s->path, sizeof s->path, "%s/s", s->dir);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", s->path);
    s->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    s->connection = -1;
    s->fn = fn;
    s->user = user;
    s->epoch = 4711;
    s->arena = codec_arena_new();
    s->scratch = codec_arena_new();
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->came, NULL);
    if (bind(s->listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(s->listener, 16) != 0 ||
        pipe(s->wake) != 0 || pthread_create(&s->thread, NULL, run, s) != 0)
        abort();
    return s;
}

static void wake(struct script *s, char byte) {
    if (write(s->wake[1], &byte, 1) != 1) abort();
}

void script_stop(struct script *s) {
    wake(s, 'q');
    pthread_join(s->thread, NULL);
    hang_up(s);
    close(s->listener);
    close(s->wake[0]);
    close(s->wake[1]);
    unlink(s->path);
    rmdir(s->dir);
    for (unsigned i = 0; i < ANSWERS; i++) free(s->kept[i].answer);
    for (unsigned i = 0; i < 64; i++) free(s->held_query[i].answer);
    codec_arena_free(s->arena);
    codec_arena_free(s->scratch);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->came);
    free(s);
}

const char *script_path(const struct script *s) { return s->path; }

void script_set_epoch(struct script *s, uint64_t epoch) {
    pthread_mutex_lock(&s->lock);
    s->epoch = epoch;
    pthread_mutex_unlock(&s->lock);
}

void script_refuse_hello(struct script *s, uint32_t status) {
    pthread_mutex_lock(&s->lock);
    s->hello_status = status;
    pthread_mutex_unlock(&s->lock);
}

void script_let_go(struct script *s) {
    pthread_mutex_lock(&s->lock);
    for (uint64_t i = 1; i <= s->last_sequence; i++) {
        struct stored_regions *kept = &s->kept[i % ANSWERS];
        if (kept->held) send_bytes(s, kept->answer, kept->bytes);
        kept->held = false;
    }
    for (unsigned i = 0; i < s->n_held_queries; i++) send_bytes(s, s->held_query[i].answer, s->held_query[i].bytes);
    s->n_held_queries = 0;
    pthread_mutex_unlock(&s->lock);
}

void script_disconnect(struct script *s) {
    pthread_mutex_lock(&s->lock);
    hang_up(s);
    pthread_mutex_unlock(&s->lock);
    wake(s, 'w');
}

void script_event(struct script *s, const struct kvd_event *event) {
    size_t bytes = 0;
    pthread_mutex_lock(&s->lock);
    KVT_OK(codec_encode_event(event, s->outbox + FRAME_HEADER, FRAME_LIMIT - FRAME_HEADER, &bytes, NULL, 0));
    frame_head_write(s->outbox, FRAME_EVENT, FRAME_F_EVENT, 0, bytes);
    send_bytes(s, s->outbox, FRAME_HEADER + bytes);
    pthread_mutex_unlock(&s->lock);
}

bool script_wait_requests(struct script *s, unsigned n) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 10;
    pthread_mutex_lock(&s->lock);
    while (s->served < n && pthread_cond_timedwait(&s->came, &s->lock, &until) == 0) {
    }
    bool ok = s->served >= n;
    pthread_mutex_unlock(&s->lock);
    return ok;
}

#define COUNT(function, field)                                                                                         \
    unsigned function(struct script *s) {                                                                              \
        pthread_mutex_lock(&s->lock);                                                                                  \
        unsigned n = s->field;                                                                                         \
        pthread_mutex_unlock(&s->lock);                                                                                \
        return n;                                                                                                      \
    }
COUNT(script_requests, requests)
COUNT(script_executed, executed)
COUNT(script_repeats, repeats)
COUNT(script_hellos, hellos)
COUNT(script_bad_numbers, bad_numbers)
COUNT(script_event_mask, event_mask)
