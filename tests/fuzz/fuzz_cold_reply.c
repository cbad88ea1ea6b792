/* SPDX-License-Identifier: Apache-2.0
 *
 * Replies as an engine of the cold tier, or something in its place, may send them: to AUTH, CLUSTER SLOTS and PING, and
 * to a pipeline of every command, over as many connections as the client opens (COLD-3, COLD-5). The first byte says
 * how it is asked. The rest is what each connection gets, up to a byte 0xff, before the peer hangs up: no reply is ever
 * waited for, and nobody is connected to, whatever address a reply names.
 *
 * Every operation gets an outcome, nothing is written beyond its place, and a value that came was in the reply.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "cold_lane.h"
#include "fuzz.h"

#define OPS 12u
#define PLACE 32u
#define PEERS 128u

static struct cold_engine_config config = { .lanes = 1, .connect_ns = UINT64_C(3600000000000) };
static struct cold_lane lane;
static const uint8_t *script; /* of the connections to come */
static size_t left;
static int peers[PEERS], stop_fd = -1;
static uint32_t n_peers;

int __wrap_cold_wire_open(struct cold_wire *wire, const struct config_listen *address, uint64_t deadline);
int __wrap_cold_wire_open(struct cold_wire *wire, const struct config_listen *address, uint64_t deadline) {
    const uint8_t *end = left ? memchr(script, 0xff, left) : NULL;
    size_t n = end ? (size_t)(end - script) : left;
    int ends[2];
    (void)address;
    (void)deadline;
    cold_wire_close(wire);
    snprintf(wire->why, sizeof wire->why, "nobody is there");
    if (!left || n_peers == PEERS || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends)) return 1;
    if (send(ends[1], script, n, MSG_NOSIGNAL) != (ssize_t)n) abort(); /* it takes some 200 KB */
    shutdown(ends[1], SHUT_WR);
    peers[n_peers++] = ends[1];
    script += n + (end != NULL);
    left -= n + (end != NULL);
    return cold_wire_adopt(wire, ends[0]);
}

static void must(bool so, const char *what) {
    if (so) return;
    fprintf(stderr, "fuzz_cold_reply: %s\n", what);
    abort();
}

static void remove_password(void) { (void)unlink(config.password_file); }

static void open_once(void) {
    static char path[64] = "/tmp/kvd-fuzz-XXXXXX"; /* its mode is 0600 */
    if (stop_fd >= 0) return;
    stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int fd = mkstemp(path);
    must(stop_fd >= 0 && fd >= 0 && write(fd, "secret\n", 7) == 7, "no file for the password");
    close(fd);
    config.address.kind = LISTEN_UNIX;
    snprintf(config.address.path, sizeof config.address.path, "/nowhere");
    snprintf(config.user, sizeof config.user, "kvd");
    snprintf(config.password_file, sizeof config.password_file, "%s", path);
    atexit(remove_password);
}

static void make_ops(struct cold_op *ops, struct cold_op **list, uint8_t (*place)[PLACE]) {
    for (uint32_t i = 0; i < OPS; i++) {
        ops[i] = (struct cold_op){ .verb = (enum cold_verb)(i % COLD_VERBS),
                                   .head = (const uint8_t *)"head",
                                   .value = (const uint8_t *)"value",
                                   .head_bytes = 4,
                                   .value_bytes = 5,
                                   .into = place[i],
                                   .into_bytes = PLACE / 2,
                                   .ttl_ms = i / COLD_VERBS % 2 * 1000,
                                   .deadline_ns = clock_ns() + config.connect_ns,
                                   .outcome = COLD_OUTCOMES };
        snprintf(ops[i].key, sizeof ops[i].key, "kvd1:l:{%u}:0", i);
        memset(place[i], 0xee, PLACE);
        list[i] = &ops[i];
    }
}

static void check_op(const struct cold_op *op, const uint8_t *data, size_t size) {
    must(op->outcome < COLD_OUTCOMES && op->outcome != COLD_DROPPED, "an operation without an outcome");
    for (uint32_t i = PLACE / 2; i < PLACE; i++) must(op->into[i] == 0xee, "a value beyond its place");
    if (op->verb != COLD_GET || op->outcome != COLD_DONE) return;
    must(op->got <= op->into_bytes, "a value longer than its place");
    must(!op->got || memmem(data, size, op->into, op->got), "a value that did not come");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct cold_op ops[OPS], *list[OPS];
    uint8_t place[OPS][PLACE];
    if (size < 2 || size > 16384) return 0;
    open_once();
    struct cold_engine_config how = config;
    if (!(data[0] & 2)) how.password_file[0] = '\0';
    if (!(data[0] & 4)) how.user[0] = '\0';
    script = data + 1;
    left = size - 1;
    make_ops(ops, list, place);
    cold_lane_init(&lane, &how, stop_fd);
    if (data[0] & 1) (void)cold_lane_try(&lane, clock_ns() + config.connect_ns);
    cold_lane_serve(&lane, list, OPS);
    for (uint32_t i = 0; i < OPS; i++) check_op(&ops[i], data, size);
    must(lane.n_nodes >= 1 && lane.n_nodes <= COLD_NODES, "more nodes than there is room for");
    for (uint32_t i = 0; i < COLD_SLOTS; i++) must(lane.slot[i] < lane.n_nodes, "a slot of no node");
    cold_lane_close(&lane);
    memset(lane.node, 0, lane.n_nodes * sizeof lane.node[0]); /* of its megabyte, what was touched */
    memset(&lane.n_nodes, 0, sizeof lane - offsetof(struct cold_lane, n_nodes));
    while (n_peers) close(peers[--n_peers]);
    return 0;
}
