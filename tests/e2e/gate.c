/* SPDX-License-Identifier: Apache-2.0 */
#include "gate.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "kvt.h"

static const char get[] = "$3\r\nGET\r\n"; /* of its bytes only the first is a $ */

static struct sockaddr_un address_of(const char *path) {
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    return at;
}

static bool send_all(int fd, const uint8_t *bytes, size_t n) {
    for (ssize_t sent; n; bytes += sent, n -= (size_t)sent)
        if ((sent = send(fd, bytes, n, MSG_NOSIGNAL)) <= 0) return false;
    return true;
}

static void end_connection(struct gate *gate, struct gate_connection *c) {
    if (c->held) atomic_fetch_sub(&gate->held, 1);
    close(c->client);
    close(c->server);
    *c = (struct gate_connection){ .client = -1, .server = -1 };
}

static void take_connection(struct gate *gate) {
    struct sockaddr_un at = address_of(gate->redis->socket);
    int client = accept4(gate->listener, NULL, NULL, SOCK_CLOEXEC), server;
    if (client < 0) return;
    server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    for (uint32_t i = 0; i < GATE_CONNECTIONS; i++) {
        struct gate_connection *c = &gate->connection[i];
        if (c->client >= 0) continue;
        if (connect(server, (struct sockaddr *)&at, sizeof at)) break;
        c->client = client;
        c->server = server;
        return;
    }
    close(client);
    close(server);
}

/* How many of the bytes go on: up to a GET that is held. */
static size_t look_for_get(struct gate *gate, struct gate_connection *c, const uint8_t *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        c->matched = bytes[i] == (uint8_t)get[c->matched] ? c->matched + 1 : bytes[i] == '$';
        if (c->matched < sizeof get - 1) continue;
        c->matched = 0;
        int left = atomic_load(&gate->let_through);
        if (left > 0) (void)atomic_compare_exchange_strong(&gate->let_through, &left, left - 1);
        if (left) continue;
        c->held = true;
        return i + 1;
    }
    return n;
}

static bool take_from_client(struct gate *gate, struct gate_connection *c) {
    uint8_t bytes[sizeof c->waiting];
    ssize_t n = recv(c->client, bytes, sizeof bytes, 0);
    if (n <= 0) return false;
    size_t go_on = look_for_get(gate, c, bytes, (size_t)n);
    if (!send_all(c->server, bytes, go_on)) return false;
    c->n_waiting = (size_t)n - go_on;
    memcpy(c->waiting, bytes + go_on, c->n_waiting);
    if (c->held) atomic_fetch_add(&gate->held, 1);
    return true;
}

static bool take_from_server(const struct gate_connection *c) {
    uint8_t bytes[65536];
    ssize_t n = recv(c->server, bytes, sizeof bytes, 0);
    return n > 0 && send_all(c->client, bytes, (size_t)n);
}

static bool forward_waiting(struct gate *gate, struct gate_connection *c) {
    c->held = false;
    atomic_fetch_sub(&gate->held, 1);
    return send_all(c->server, c->waiting, c->n_waiting);
}

/* Connections of both sides, the listener, what wakes. A held client is not looked at. */
static void list_descriptors(const struct gate *gate, struct pollfd *fds) {
    for (uint32_t i = 0; i < GATE_CONNECTIONS; i++) {
        const struct gate_connection *c = &gate->connection[i];
        fds[2 * i] = (struct pollfd){ .fd = c->held ? -1 : c->client, .events = POLLIN };
        fds[2 * i + 1] = (struct pollfd){ .fd = c->server, .events = POLLIN };
    }
    fds[2 * GATE_CONNECTIONS] = (struct pollfd){ .fd = gate->listener, .events = POLLIN };
    fds[2 * GATE_CONNECTIONS + 1] = (struct pollfd){ .fd = gate->wake, .events = POLLIN };
}

static void serve_connection(struct gate *gate, struct gate_connection *c, bool from_client, bool from_server) {
    bool lives = true;
    if (c->client < 0) return;
    if (c->held && atomic_load(&gate->let_through) < 0) lives = forward_waiting(gate, c);
    if (lives && from_client) lives = take_from_client(gate, c);
    if (lives && from_server) lives = take_from_server(c);
    if (!lives) end_connection(gate, c);
}

static void *run_gate(void *argument) {
    struct gate *gate = argument;
    struct pollfd fds[2 * GATE_CONNECTIONS + 2];
    uint64_t woken;
    while (!atomic_load(&gate->stop)) {
        list_descriptors(gate, fds);
        if (poll(fds, sizeof fds / sizeof *fds, -1) < 0) continue;
        if (fds[2 * GATE_CONNECTIONS + 1].revents && read(gate->wake, &woken, sizeof woken) < 0) break;
        for (uint32_t i = 0; i < GATE_CONNECTIONS; i++)
            serve_connection(gate, &gate->connection[i], fds[2 * i].revents != 0, fds[2 * i + 1].revents != 0);
        if (fds[2 * GATE_CONNECTIONS].revents) take_connection(gate);
    }
    return NULL;
}

static void wake_gate(struct gate *gate) {
    uint64_t one = 1;
    KVT_EQ(write(gate->wake, &one, sizeof one), sizeof one);
}

bool gate_open(struct gate *gate, const struct redis *redis) {
    memset(gate, 0, sizeof *gate);
    gate->redis = redis;
    snprintf(gate->socket, sizeof gate->socket, "%s.gate", redis->socket);
    for (uint32_t i = 0; i < GATE_CONNECTIONS; i++) gate->connection[i].client = gate->connection[i].server = -1;
    atomic_store(&gate->let_through, -1);
    struct sockaddr_un at = address_of(gate->socket);
    gate->wake = eventfd(0, EFD_CLOEXEC);
    gate->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return KVT_EQ_I(bind(gate->listener, (struct sockaddr *)&at, sizeof at), 0) &&
           KVT_EQ_I(listen(gate->listener, 64), 0) && KVT_EQ_I(pthread_create(&gate->thread, NULL, run_gate, gate), 0);
}

void gate_shut_after(struct gate *gate, uint32_t gets) { atomic_store(&gate->let_through, (int)gets); }

bool gate_holds(void *gate) { return atomic_load(&((struct gate *)gate)->held) > 0; }

static bool holds_none(void *gate) { return !gate_holds(gate); }

void gate_release(struct gate *gate) {
    atomic_store(&gate->let_through, -1);
    wake_gate(gate);
    KVT_TRUE(redis_until(holds_none, gate));
}

void gate_close(struct gate *gate) {
    if (!gate->redis) return;
    atomic_store(&gate->stop, true);
    wake_gate(gate);
    if (gate->thread) pthread_join(gate->thread, NULL);
    for (uint32_t i = 0; i < GATE_CONNECTIONS; i++)
        if (gate->connection[i].client >= 0) end_connection(gate, &gate->connection[i]);
    close(gate->listener);
    close(gate->wake);
    unlink(gate->socket);
    gate->redis = NULL;
}
