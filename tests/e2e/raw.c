/* SPDX-License-Identifier: Apache-2.0 */
#include "raw.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* One for the process: what was read lives until the next call. */
static struct codec_arena *fresh_arena(void) {
    static struct codec_arena *arena;
    if (!arena) arena = codec_arena_new();
    codec_arena_reset(arena);
    return arena;
}

int raw_connect(const char *socket_path) {
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    memcpy(address.sun_path, socket_path, strnlen(socket_path, sizeof address.sun_path - 1));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval patience = { .tv_sec = 10 * E2E_SLOW };
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    while (connect(fd, (struct sockaddr *)&address, sizeof address)) {
        if (errno != EAGAIN && errno != EINTR) {
            close(fd);
            return -1;
        }
        struct pollfd nothing = { .fd = -1 };
        poll(&nothing, 0, 1); /* the backlog is full: the kernel has nothing to wait on */
    }
    return fd;
}

bool raw_send(int fd, const void *bytes, size_t n) { return send(fd, bytes, n, MSG_NOSIGNAL) == (ssize_t)n; }

bool raw_closed(int fd) {
    char byte;
    ssize_t got = recv(fd, &byte, 1, 0);
    return got == 0 || (got < 0 && errno == ECONNRESET);
}

bool raw_request(int fd, const struct msg_request *request, uint64_t id) {
    uint8_t frame[FRAME_LIMIT];
    size_t n;
    if (codec_encode_request(request, fresh_arena(), frame + FRAME_HEADER, sizeof frame - FRAME_HEADER, &n, NULL, 0))
        return false;
    frame_head_write(frame, request->type, 0, id, n);
    return raw_send(fd, frame, FRAME_HEADER + n);
}

static size_t read_frame(int fd, uint8_t frame[FRAME_LIMIT], struct frame_head *head) {
    size_t got = 0, want = FRAME_HEADER;
    while (got < want) {
        ssize_t n = recv(fd, frame + got, want - got, 0);
        if (n <= 0) return 0;
        got += (size_t)n;
        if (got == FRAME_HEADER && frame_head_read(frame, got, head) == 0) want = head->length + 4u;
        if (want > FRAME_LIMIT) return 0;
    }
    return got;
}

enum kvd_status raw_reply(int fd, struct msg_reply *reply) {
    uint8_t frame[FRAME_LIMIT];
    struct frame_head head = { 0 };
    size_t n;
    do n = read_frame(fd, frame, &head);
    while (n && head.flags & FRAME_F_EVENT); /* nobody here waits for one */
    if (!head.type || head.type >= FRAME_TYPE_END)
        head.type = FRAME_GOODBYE; /* a refusal of an unknown type: a header alone */
    if (!n || codec_decode_reply(head.type, frame + FRAME_HEADER, n - FRAME_HEADER, fresh_arena(), reply, NULL, 0))
        return KVD_UNKNOWN;
    return (enum kvd_status)reply->status;
}

int raw_hello(const char *socket_path, enum kvd_role role, struct msg_reply *reply) {
    struct msg_request hello = { .type = FRAME_HELLO,
                                 .u.hello = { .protocol = KVD_PROTOCOL_VERSION, .role = role, .name = "raw" } };
    int fd = raw_connect(socket_path);
    KVT_TRUE(raw_request(fd, &hello, 1));
    KVT_EQ(raw_reply(fd, reply), KVD_OK);
    return fd;
}
