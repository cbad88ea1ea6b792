/* SPDX-License-Identifier: Apache-2.0
 * Schedulers that follow the guide in a pool that is too small for them: whatever another one does at the same moment
 * is a status that passes, so that no request fails outright. SRV-2, ACT-5, ACT-8, Q-2. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "scene.h"

enum { CROWD = 3, TEXTS = 12, LONGEST = 900, OUTPUT = 16 };

static struct e2e_daemon daemon_;
static uint32_t requests; /* of each */

struct member {
    pthread_t thread;
    kvd_client *client;
    uint64_t random;
    uint32_t done, waited, hits;
    struct kvd_victim victims[64];
    char failed[KVD_MESSAGE_BYTES + 64]; /* the first request that failed outright */
};

static bool fails(struct member *m, const char *what, enum kvd_status status, const struct kvd_error *error) {
    if (!m->failed[0])
        snprintf(m->failed, sizeof m->failed, "%.40s: %.30s: %.350s", what, kvd_status_name(status), error->message);
    return false;
}

/* The best prefix that is there now. */
static bool look(struct member *m, kvd_chain *chain, uint64_t text, uint32_t n, struct kvd_activation *ret_want) {
    uint32_t tokens[LONGEST], found = 0;
    struct kvd_hit hits[4];
    struct kvd_error error;
    *ret_want = scene_want(kvd_client_session(m->client), n, OUTPUT);
    ret_want->ensure[0] = n + OUTPUT - 1;
    e2e_tokens(text, n, tokens);
    enum kvd_status status = kvd_find(m->client, chain, tokens, n, hits, 4, &found, &error);
    if (status != KVD_OK) return fails(m, "find", status, &error);
    if (!found) return true;
    ret_want->from = hits[0].continuation;
    ret_want->frontier = hits[0].usable;
    ret_want->keep = kvt_below(&m->random, 3) > 0;
    return true;
}

/* As in the guide: 0 runs, 1 later, -1 fails. */
static int activate(struct member *m, struct kvd_activation *want, struct kvd_activated *ret_is) {
    struct kvd_error error;
    enum kvd_status status = KVD_OK;
    for (int attempt = 0; attempt < 4; attempt++) {
        status = kvd_activate(m->client, want, ret_is, &error);
        if (status == KVD_OK) return 0;
        if (status == KVD_NOT_FOUND && want->from.bits) {
            status = KVD_ABORTED;
            want->from.bits = 0;
            want->frontier = 0;
            want->keep = false;
        } else if (status != KVD_RESOURCE_EXHAUSTED && status != KVD_ABORTED) {
            break;
        } else {
            enum kvd_status chosen = kvd_choose_victims(m->client, want, m->victims, 64, &error);
            if (chosen != KVD_OK) {
                status = chosen;
                break;
            }
        }
    }
    if (kvd_status_retryable(status) || (status == KVD_NOT_FOUND && want->from.bits)) return 1;
    fails(m, "activate", status, &error);
    return -1;
}

static bool run(struct member *m, kvd_chain *chain, uint64_t text, uint32_t n, const struct kvd_activated *is,
                uint32_t from) {
    struct kvd_round_item item = { .sequence = is->sequence, .pool[0] = { .ask = KVD_ROUND_COMMIT, .commit = n } };
    struct kvd_finish end = { .sequence = is->sequence, .retain = true };
    struct kvd_round_result result;
    struct kvd_finished finished;
    struct kvd_error error;
    enum kvd_status status = kvd_round(m->client, &item, 1, &result, &error);
    if (status != KVD_OK) return fails(m, "round", status, &error);
    if (result.status != KVD_OK) return fails(m, result.message, (enum kvd_status)result.status, &error);
    uint32_t first = from / KVD_PAGE_TOKENS, full = n / KVD_PAGE_TOKENS;
    if (full > first &&
        (status = kvd_name_pages(m->client, is->sequence, chain, first, full - first, &error)) != KVD_OK)
        return fails(m, "name", status, &error);
    e2e_tail(text, n, &end.tail);
    status = kvd_finish(m->client, &end, &finished, &error);
    return status == KVD_OK || fails(m, "finish", status, &error);
}

/* A request waits as often as it has to; a minute of that is a failure. */
static bool serve(struct member *m, uint64_t text, uint32_t n) {
    struct kvd_activation want;
    struct kvd_activated is;
    kvd_chain *chain = e2e_chain(text, n);
    double begin = e2e_now();
    int state = 1;
    bool right = true;
    while (right && state == 1) {
        right = look(m, chain, text, n, &want);
        if (!right || (state = activate(m, &want, &is)) != 1) break;
        m->waited++;
        if (e2e_now() - begin > 60 * E2E_SLOW) {
            right = false;
            snprintf(m->failed, sizeof m->failed, "a request of %u tokens waited for a minute", n);
        }
        sched_yield();
    }
    m->hits += want.from.bits != 0;
    right = right && state == 0 && run(m, chain, text, n, &is, want.frontier);
    kvd_chain_free(chain);
    return right;
}

static void *serve_all(void *argument) {
    struct member *m = argument;
    for (; m->done < requests && !m->failed[0]; m->done++) {
        /* Two families of texts share their first pages. */
        uint64_t text = e2e_stream(1 + kvt_below(&m->random, 2), 256, (uint16_t)(1 + kvt_below(&m->random, TEXTS)));
        if (!serve(m, text, 65 + kvt_below(&m->random, LONGEST - 65))) break;
    }
    return NULL;
}

static void crowd(const char *more) {
    struct member member[CROWD] = { 0 };
    struct e2e_setup setup = { .max_context = 1024, .max_concurrency = 2, .capacity_tokens = 1536, .more = more };
    uint32_t waited = 0, hits = 0;
    if (!e2e_daemon_start(&daemon_, &setup)) return;
    requests = 1000 / E2E_SLOW;
    for (uint32_t i = 0; i < CROWD; i++) {
        member[i].random = i + 1;
        KVT_NEED((member[i].client = e2e_connect(&daemon_, KVD_ROLE_ADMIN, "crowd")));
        kvd_client_set_timeout(member[i].client, 60000 * E2E_SLOW);
    }
    for (uint32_t i = 0; i < CROWD; i++) KVT_OK(pthread_create(&member[i].thread, NULL, serve_all, &member[i]));
    for (uint32_t i = 0; i < CROWD; i++) {
        pthread_join(member[i].thread, NULL);
        KVT_EQ_STR(member[i].failed, "");
        KVT_EQ(member[i].done, requests);
        waited += member[i].waited;
        hits += member[i].hits;
    }
    printf("  %u requests, %u began from a prefix, %u times later\n", CROWD * requests, hits, waited);
    KVT_TRUE(hits > 0);
    KVT_EQ(scene_stats(member[0].client).sequences, 0);
    scene_audit(member[0].client);
    for (uint32_t i = 0; i < CROWD; i++) kvd_disconnect(member[i].client);
    e2e_daemon_free(&daemon_);
}

static void nobody_fails_where_victims_are_released(void) { crowd(NULL); }
static void nobody_fails_where_victims_are_demoted(void) { crowd("[host]\narena = 8MiB\nscrub = 0\n"); }

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(nobody_fails_where_victims_are_released),
                                             KVT_CASE(nobody_fails_where_victims_are_demoted),
                                             { 0 } };
    return kvt_main("e2e crowd", cases, argc, argv);
}
