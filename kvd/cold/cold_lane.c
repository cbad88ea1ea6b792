/* SPDX-License-Identifier: Apache-2.0 */
#include "cold_lane.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "cold_secret.h"

#define HOPS 5u /* of an operation, from node to node */
#define PASSWORD_BYTES 512u

static uint64_t sooner(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* ---- faults -------------------------------------------------------------------------------------- */

static void note_fault(struct cold_lane *lane, bool grave, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void note_fault(struct cold_lane *lane, bool grave, const char *format, ...) {
    va_list arguments;
    lane->faults++;
    if (lane->grave) return; /* the gravest one is told */
    lane->grave = grave;
    va_start(arguments, format);
    vsnprintf(lane->why, sizeof lane->why, format, arguments);
    va_end(arguments);
}

static void forget_faults(struct cold_lane *lane) {
    lane->faults = 0;
    lane->grave = false;
    lane->why[0] = '\0';
}

static void name_node(const struct cold_node *node, char *text, size_t bytes) {
    if (node->address.kind == LISTEN_UNIX) snprintf(text, bytes, "unix:%s", node->address.path);
    else snprintf(text, bytes, "%s port %u", node->address.path, node->address.port);
}

/* Once a pipeline for each node, however many operations go with it. */
static void break_node(struct cold_lane *lane, struct cold_node *node) {
    char name[128];
    cold_wire_close(&node->wire);
    lane->mapped = lane->mapped && !lane->clustered; /* it may have failed over */
    if (node->broken) return;
    node->broken = true;
    name_node(node, name, sizeof name);
    note_fault(lane, false, "%s: %s", name, node->wire.why);
}

/* ---- handshake ----------------------------------------------------------------------------------- */

static int check_ok(struct cold_lane *lane, struct cold_node *node, redisReply *reply, const char *doing) {
    bool ok = reply && reply->type == REDIS_REPLY_STATUS;
    if (reply && !ok) {
        note_fault(lane, true, "%s: %.150s", doing,
                   reply->type == REDIS_REPLY_ERROR ? reply->str : "an answer of another type");
        node->broken = true;
    }
    if (reply) freeReplyObject(reply);
    if (!ok) break_node(lane, node);
    return !ok;
}

static int authenticate(struct cold_lane *lane, struct cold_node *node, uint64_t deadline) {
    char password[PASSWORD_BYTES], why[128];
    const char *user = lane->config->user;
    if (!*lane->config->password_file) return 0;
    if (cold_read_private(lane->config->password_file, "the password file", password, sizeof password, why,
                          sizeof why)) {
        note_fault(lane, true, "%s", why);
        node->broken = true;
        break_node(lane, node);
        return 1;
    }
    redisReply *reply = *user ? cold_wire_ask(&node->wire, deadline, (const char *[]){ "AUTH", user, password, NULL })
                              : cold_wire_ask(&node->wire, deadline, (const char *[]){ "AUTH", password, NULL });
    sodium_memzero(password, sizeof password);
    sodium_memzero(node->wire.out, sizeof node->wire.out);
    return check_ok(lane, node, reply, "the password is refused");
}

/* Its connection, opened where it is not. NULL: it has none in this pipeline. */
static struct cold_wire *open_node(struct cold_lane *lane, struct cold_node *node, uint64_t deadline) {
    if (node->broken) return NULL;
    if (node->wire.fd >= 0) return &node->wire;
    deadline = sooner(deadline, clock_ns() + lane->config->connect_ns);
    if (cold_wire_open(&node->wire, &node->address, deadline)) {
        break_node(lane, node);
        return NULL;
    }
    if (authenticate(lane, node, deadline)) return NULL;
    lane->connections++;
    return &node->wire;
}

/* ---- the map ------------------------------------------------------------------------------------- */

/* COLD_NODES: there are too many. */
static uint32_t find_node(struct cold_lane *lane, const struct config_listen *address) {
    uint32_t i = 0;
    while (i < lane->n_nodes && !cold_is_same_address(&lane->node[i].address, address)) i++;
    if (i == COLD_NODES) return i;
    if (i == lane->n_nodes) {
        lane->n_nodes++;
        lane->node[i].address = *address;
        lane->node[i].broken = false;
        cold_wire_init(&lane->node[i].wire, lane->stop_fd);
    }
    return i;
}

static uint32_t node_of_reply(struct cold_lane *lane, const struct config_listen *asked, const redisReply *r) {
    struct config_listen address;
    if (r->type != REDIS_REPLY_ARRAY || r->elements < 2 || r->element[1]->type != REDIS_REPLY_INTEGER)
        return COLD_NODES;
    const redisReply *host = r->element[0];
    uint64_t port = (uint64_t)r->element[1]->integer;
    if (host->type == REDIS_REPLY_STRING && host->len) {
        if (!cold_address_of(host->str, host->len, port, &address)) return COLD_NODES;
    } else { /* it does not know by which name it was asked */
        address = *asked;
        if (address.kind != LISTEN_UNIX) address.port = (uint16_t)port;
    }
    return find_node(lane, &address);
}

static void read_slots(struct cold_lane *lane, const struct config_listen *asked, const redisReply *range) {
    if (range->type != REDIS_REPLY_ARRAY || range->elements < 3) return;
    const redisReply *begin = range->element[0], *end = range->element[1];
    if (begin->type != REDIS_REPLY_INTEGER || end->type != REDIS_REPLY_INTEGER) return;
    uint32_t node = node_of_reply(lane, asked, range->element[2]);
    if (node == COLD_NODES || begin->integer < 0 || end->integer >= COLD_SLOTS) return;
    for (long long i = begin->integer; i <= end->integer; i++) lane->slot[i] = (uint8_t)node;
}

static void forget_nodes(struct cold_lane *lane) {
    for (uint32_t i = 1; i < lane->n_nodes; i++) cold_wire_close(&lane->node[i].wire);
    lane->n_nodes = 1;
    memset(lane->slot, 0, sizeof lane->slot);
}

/* First in a call. Asks the nodes that are known, the configured one first. One that is no cluster refuses, and has all
 * slots. Returns the node that answered; COLD_NODES: none. */
static uint32_t map_slots(struct cold_lane *lane, uint64_t deadline) {
    redisReply *reply = NULL;
    uint32_t i = 0;
    for (; i < lane->n_nodes && !reply; i++) {
        uint64_t until = sooner(deadline, clock_ns() + lane->config->connect_ns);
        struct cold_wire *wire = open_node(lane, &lane->node[i], until);
        if (!wire) continue;
        reply = cold_wire_ask(wire, until, (const char *[]){ "CLUSTER", "SLOTS", NULL });
        if (!reply) break_node(lane, &lane->node[i]);
    }
    if (!reply) return COLD_NODES;
    forget_faults(lane); /* of nodes that are gone: the engine is there */
    struct config_listen asked = lane->node[i - 1].address;
    lane->clustered = reply->type == REDIS_REPLY_ARRAY;
    lane->mapped = true;
    if (lane->n_nodes > COLD_NODES / 2) forget_nodes(lane);
    for (size_t k = 0; lane->clustered && k < reply->elements; k++) read_slots(lane, &asked, reply->element[k]);
    freeReplyObject(reply);
    return find_node(lane, &asked);
}

/* ---- commands ------------------------------------------------------------------------------------ */

static int put_set(struct cold_wire *wire, const struct cold_op *op) {
    char ttl[24];
    uint64_t deadline = op->deadline_ns;
    snprintf(ttl, sizeof ttl, "%" PRIu64, op->ttl_ms);
    return cold_wire_begin(wire, op->ttl_ms ? 6 : 4, 0, deadline) || cold_wire_text(wire, "SET", deadline) ||
           cold_wire_text(wire, op->key, deadline) ||
           cold_wire_bytes(wire, op->head, op->head_bytes, op->value, op->value_bytes, deadline) ||
           cold_wire_text(wire, "NX", deadline) ||
           (op->ttl_ms && (cold_wire_text(wire, "PX", deadline) || cold_wire_text(wire, ttl, deadline)));
}

static int put_op(struct cold_wire *wire, const struct cold_op *op) {
    static const char *const names[] = { [COLD_GET] = "GET", [COLD_TOUCH] = "EXISTS", [COLD_DELETE] = "UNLINK" };
    char ttl[24];
    uint64_t deadline = op->deadline_ns;
    if (op->ask && (cold_wire_begin(wire, 1, 0, deadline) || cold_wire_text(wire, "ASKING", deadline))) return 1;
    if (op->verb == COLD_SET) return put_set(wire, op);
    bool expire = op->verb == COLD_TOUCH && op->ttl_ms;
    if (expire) snprintf(ttl, sizeof ttl, "%" PRIu64, op->ttl_ms);
    return cold_wire_begin(wire, expire ? 3 : 2, op->verb == COLD_GET ? op->into_bytes : 0, deadline) ||
           cold_wire_text(wire, expire ? "PEXPIRE" : names[op->verb], deadline) ||
           cold_wire_text(wire, op->key, deadline) || (expire && cold_wire_text(wire, ttl, deadline));
}

/* ---- answers ------------------------------------------------------------------------------------- */

/* The engine says itself that it is of no use now. */
static bool is_grave(const char *error) {
    static const char *const words[] = { "OOM ",    "LOADING ",   "READONLY ", "MASTERDOWN ", "CLUSTERDOWN ",
                                         "NOAUTH ", "WRONGPASS ", "NOPERM ",   "MISCONF ",    "NOREPLICAS " };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strncmp(error, words[i], strlen(words[i])) == 0) return true;
    return false;
}

/* True: it goes on to another node. */
static bool take_error(struct cold_lane *lane, struct cold_op *op, const redisReply *reply) {
    struct cold_redirect to;
    if (cold_read_redirect(reply->str, reply->len, &to)) {
        if (to.to.kind == LISTEN_NONE) {
            uint16_t port = to.to.port;
            to.to = lane->node[op->node].address;
            to.to.port = port;
        }
        uint32_t node = find_node(lane, &to.to);
        op->outcome = COLD_FAILED;
        if (node == COLD_NODES) return false;
        op->node = node;
        op->ask = to.ask;
        if (!to.ask) lane->slot[to.slot] = (uint8_t)node;
        lane->clustered = true;
        return true;
    }
    op->outcome = COLD_REFUSED;
    if (is_grave(reply->str)) note_fault(lane, true, "it refuses: %.200s", reply->str);
    return false;
}

/* 0, or 1: an answer of a type that this command does not have. */
static int take_answer(struct cold_op *op, const redisReply *reply) {
    bool nil = reply->type == REDIS_REPLY_NIL, text = reply->type == REDIS_REPLY_STRING;
    if (op->verb == COLD_SET) {
        op->outcome = COLD_DONE;
        return !nil && reply->type != REDIS_REPLY_STATUS;
    }
    if (op->verb != COLD_GET) {
        op->outcome = reply->integer ? COLD_DONE : COLD_ABSENT;
        return reply->type != REDIS_REPLY_INTEGER;
    }
    op->outcome = nil ? COLD_ABSENT : text && reply->len <= op->into_bytes ? COLD_DONE : COLD_REFUSED;
    if (text) op->got = reply->len;
    if (op->outcome != COLD_DONE) return !nil && !text;
    memcpy(op->into, reply->str, reply->len);
    return 0;
}

static redisReply *read_reply(const struct cold_op *op, struct cold_wire *wire) {
    redisReply *reply = cold_wire_reply(wire, op->deadline_ns);
    if (!reply || !op->ask) return reply;
    freeReplyObject(reply); /* of ASKING; what it says the next one says, too */
    return cold_wire_reply(wire, op->deadline_ns);
}

/* True: it goes on to another node. */
static bool receive_op(struct cold_lane *lane, struct cold_op *op) {
    struct cold_node *node = &lane->node[op->node];
    bool again = false;
    op->outcome = COLD_FAILED;
    if (!op->sent) return false;
    redisReply *reply = read_reply(op, &node->wire);
    if (!reply) {
        break_node(lane, node);
        return false;
    }
    if (reply->type == REDIS_REPLY_ERROR) again = take_error(lane, op, reply);
    else if (take_answer(op, reply)) {
        op->outcome = COLD_FAILED;
        snprintf(node->wire.why, sizeof node->wire.why, "reading: an answer of another type");
        break_node(lane, node);
    }
    freeReplyObject(reply);
    return again;
}

/* ---- the pipeline -------------------------------------------------------------------------------- */

/* One hop of each. Returns how many go on, the first of ops. */
static uint32_t serve_hop(struct cold_lane *lane, struct cold_op **ops, uint32_t n) {
    uint32_t left = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct cold_node *node = &lane->node[ops[i]->node];
        struct cold_wire *wire = open_node(lane, node, ops[i]->deadline_ns);
        ops[i]->sent = wire && !put_op(wire, ops[i]);
        if (wire && !ops[i]->sent) break_node(lane, node);
    }
    for (uint32_t i = 0; i < n; i++) {
        struct cold_node *node = &lane->node[ops[i]->node];
        if (ops[i]->sent && !node->broken && cold_wire_flush(&node->wire, ops[i]->deadline_ns)) break_node(lane, node);
    }
    for (uint32_t i = 0; i < n; i++)
        if (receive_op(lane, ops[i])) ops[left++] = ops[i];
    return left;
}

static void begin_call(struct cold_lane *lane) {
    forget_faults(lane);
    for (uint32_t i = 0; i < lane->n_nodes; i++) {
        struct cold_node *node = &lane->node[i];
        node->broken = false;
        cold_wire_renew(&node->wire);
    }
}

void cold_lane_serve(struct cold_lane *lane, struct cold_op *const *ops, uint32_t n) {
    struct cold_op *left[COLD_PIPELINE];
    begin_call(lane);
    if (!lane->mapped) map_slots(lane, ops[0]->deadline_ns);
    for (uint32_t i = 0; i < n; i++) {
        left[i] = ops[i];
        left[i]->ask = false;
        left[i]->node = lane->clustered ? lane->slot[cold_slot_of(ops[i]->key, strlen(ops[i]->key))] : 0;
    }
    for (uint32_t hop = 0; hop < HOPS && n; hop++) n = serve_hop(lane, left, n);
    if (n) note_fault(lane, false, "it sends a key from node to node more than %u times", HOPS);
}

bool cold_lane_try(struct cold_lane *lane, uint64_t deadline) {
    begin_call(lane);
    uint32_t i = map_slots(lane, deadline);
    if (i == COLD_NODES) return false;
    struct cold_node *node = &lane->node[i];
    struct cold_wire *wire = open_node(lane, node, deadline);
    if (!wire) return false;
    redisReply *reply = cold_wire_ask(wire, deadline, (const char *[]){ "PING", NULL });
    return !check_ok(lane, node, reply, "it does not serve");
}

void cold_lane_init(struct cold_lane *lane, const struct cold_engine_config *config, int stop_fd) {
    lane->config = config;
    lane->stop_fd = stop_fd;
    (void)find_node(lane, &config->address);
}

void cold_lane_learn(struct cold_lane *lane, const struct config_listen *known, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) (void)find_node(lane, &known[i]);
    lane->mapped = false;
}

void cold_lane_close(struct cold_lane *lane) {
    for (uint32_t i = 0; i < lane->n_nodes; i++) cold_wire_close(&lane->node[i].wire);
}
