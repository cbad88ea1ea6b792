/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_flood.h"

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench_echo.h"
#include "codec.h"
#include "kvd.h"

#define IN_FLIGHT 32

struct flooder {
    int fd;
    struct codec_arena *arena;
    size_t n_out, n_in;
    uint8_t out[IN_FLIGHT * 512], in[4 * FRAME_LIMIT];
};

static void append_request(struct flooder *f, const struct msg_request *request) {
    uint8_t *frame = f->out + f->n_out;
    size_t n;
    codec_arena_reset(f->arena);
    if (codec_encode_request(request, f->arena, frame + FRAME_HEADER, 512 - FRAME_HEADER, &n, NULL, 0)) _exit(1);
    frame_head_write(frame, request->type, 0, 1, n);
    f->n_out += FRAME_HEADER + n;
}

static void send_batch(const struct flooder *f) {
    if (send(f->fd, f->out, f->n_out, MSG_NOSIGNAL) != (ssize_t)f->n_out) _exit(1);
}

/* The first of n answers stays at the beginning of the buffer. */
static void await_answers(struct flooder *f, uint32_t n) {
    struct frame_head head;
    size_t at = 0;
    for (f->n_in = 0; n;) {
        if (!frame_head_read(f->in + at, f->n_in - at, &head) && head.length + 4u <= f->n_in - at) {
            at += head.length + 4u;
            n--;
            continue;
        }
        if (at > sizeof f->in / 2) {
            memmove(f->in, f->in + at, f->n_in -= at);
            at = 0;
        }
        ssize_t got = recv(f->fd, f->in + f->n_in, sizeof f->in - f->n_in, 0);
        if (got <= 0) _exit(1);
        f->n_in += (size_t)got;
    }
}

static kvd_session_id greet(struct flooder *f) {
    struct msg_request hello = { .type = FRAME_HELLO,
                                 .u.hello = {
                                     .protocol = KVD_PROTOCOL_VERSION, .role = KVD_ROLE_SCHEDULER, .name = "flood" } };
    struct msg_reply reply;
    append_request(f, &hello);
    send_batch(f);
    await_answers(f, 1);
    f->n_out = 0;
    codec_arena_reset(f->arena);
    if (codec_decode_reply(FRAME_HELLO, f->in + FRAME_HEADER, f->n_in - FRAME_HEADER, f->arena, &reply, NULL, 0) ||
        reply.status != KVD_OK)
        _exit(1);
    return reply.u.hello.session;
}

static void flood_socket(const char *path, int ready) {
    static struct flooder f;
    static const uint16_t types[] = { FRAME_STATS, FRAME_PLAN, FRAME_LIST_SESSIONS, FRAME_LIST_SEQUENCES };
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    f.fd = socket(AF_UNIX, SOCK_STREAM, 0);
    f.arena = codec_arena_new();
    if (!f.arena || connect(f.fd, (struct sockaddr *)&address, sizeof address) != 0) _exit(1);
    struct msg_request request = { .header.session = greet(&f) };
    for (uint32_t i = 0; i < IN_FLIGHT; i++) {
        struct msg_request q = { .type = types[i % 4], .header = request.header };
        if (q.type == FRAME_PLAN)
            q.u.activation = (struct kvd_activation){
                .root.digest = { { 1 } }, .worker = request.header.session, .prompt_tokens = 64, .max_output_tokens = 64
            };
        append_request(&f, &q);
    }
    for (;; await_answers(&f, IN_FLIGHT)) {
        send_batch(&f);
        if (ready < 0) continue;
        if (write(ready, "r", 1) != 1) _exit(1);
        close(ready);
        ready = -1;
    }
}

void flood_start(struct flood *flood, const char *path) {
    int ready[2];
    char byte;
    if (pipe(ready) != 0) bench_die("pipe");
    for (int i = 0; i < FLOOD_CLIENTS; i++) {
        flood->pid[i] = fork();
        if (flood->pid[i] != 0) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ready[0]);
        flood_socket(path, ready[1]);
    }
    close(ready[1]);
    for (int i = 0; i < FLOOD_CLIENTS; i++)
        if (read(ready[0], &byte, 1) != 1) bench_die("a flooding client ended");
    close(ready[0]);
}

void flood_stop(struct flood *flood) {
    int status;
    for (int i = 0; i < FLOOD_CLIENTS; i++) {
        kill(flood->pid[i], SIGKILL);
        if (waitpid(flood->pid[i], &status, 0) != flood->pid[i] || !WIFSIGNALED(status))
            bench_die("a flooding client ended before its time");
    }
}
