/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvt.h"

static bool knows_all(void *context) {
    struct redis_cluster *c = context;
    uint32_t ok = 0;
    for (uint32_t i = 0; i < REDIS_NODES; i++) {
        redisReply *r = redis_ask(&c->node[i], "CLUSTER INFO");
        ok += r && r->type == REDIS_REPLY_STRING && strstr(r->str, "cluster_state:ok") &&
              strstr(r->str, "cluster_known_nodes:6") && strstr(r->str, "cluster_slots_ok:16384");
        if (r) freeReplyObject(r);
    }
    return ok == REDIS_NODES;
}

/* A replica takes over however long ago its master died: on a slow machine that is long. */
static bool start_node(struct redis_cluster *c, uint32_t i) {
    static const uint32_t from[] = { 0, 5000, 10000, 16384 };
    static const char *const options[] = { "--repl-diskless-sync-delay", "0", "--cluster-replica-validity-factor", "0",
                                           NULL };
    c->node[i] = (struct redis){ .port = 1, .options = options };
    if (!redis_start(&c->node[i])) return false;
    redisReply *r = redis_ask(&c->node[i], "CLUSTER MYID");
    if (r) snprintf(c->id[i], sizeof c->id[i], "%s", r->str);
    if (r) freeReplyObject(r);
    if (i < REDIS_MASTERS)
        redis_must(redis_ask(&c->node[i], "CLUSTER ADDSLOTSRANGE %d %d", (int)from[i], (int)from[i + 1] - 1));
    redis_must(redis_ask(&c->node[i], "CLUSTER SET-CONFIG-EPOCH %d", (int)i + 1));
    return true;
}

struct pair {
    const struct redis_cluster *cluster;
    uint32_t replica;
};

static bool knows_master(void *context) {
    const struct pair *p = context;
    const struct redis_cluster *c = p->cluster;
    redisReply *r = redis_ask(&c->node[p->replica], "CLUSTER REPLICATE %s", c->id[p->replica - REDIS_MASTERS]);
    bool ok = r && r->type == REDIS_REPLY_STATUS;
    if (r) freeReplyObject(r);
    return ok;
}

bool redis_cluster_start(struct redis_cluster *c) {
    for (uint32_t i = 0; i < REDIS_NODES; i++)
        if (!start_node(c, i)) return false;
    redisReply *bus = redis_ask(&c->node[0], "CONFIG GET cluster-port");
    int port = bus && bus->elements == 2 ? atoi(bus->element[1]->str) : 0;
    if (bus) freeReplyObject(bus);
    for (uint32_t i = 1; i < REDIS_NODES; i++)
        redis_must(redis_ask(&c->node[i], "CLUSTER MEET 127.0.0.1 %d %d", (int)c->node[0].port, port));
    if (!KVT_TRUE(redis_until(knows_all, c))) return false;
    for (struct pair p = { c, REDIS_MASTERS }; p.replica < REDIS_NODES; p.replica++)
        if (!KVT_TRUE(redis_until(knows_master, &p))) return false;
    return true;
}

void redis_cluster_set_patience(const struct redis_cluster *c, int ms) {
    for (uint32_t i = 0; i < REDIS_NODES; i++)
        if (c->node[i].pid) redis_must(redis_ask(&c->node[i], "CONFIG SET cluster-node-timeout %d", ms));
}

bool redis_cluster_is_replicated(void *cluster) {
    const struct redis_cluster *c = cluster;
    for (uint32_t i = 0; i < REDIS_MASTERS; i++) {
        long long n = c->node[i].pid ? redis_number(&c->node[i], "DBSIZE") : 0;
        if (n < 0 || (c->node[i].pid && redis_number(&c->node[i + REDIS_MASTERS], "DBSIZE") != n)) return false;
    }
    return true;
}

bool redis_is_master(void *node) {
    redisReply *r = redis_ask(node, "ROLE");
    bool is = r && r->type == REDIS_REPLY_ARRAY && r->elements && strcmp(r->element[0]->str, "master") == 0;
    if (r) freeReplyObject(r);
    return is;
}

void redis_cluster_free(struct redis_cluster *c) {
    for (uint32_t i = 0; i < REDIS_NODES; i++) redis_free(&c->node[i]);
}
