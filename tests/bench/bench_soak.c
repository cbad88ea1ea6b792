/* SPDX-License-Identifier: Apache-2.0
 *
 * A million requests through libkvd at a real daemon (Activate, Round, NamePages, Finish with retain, Find, Release,
 * Stats): private memory beside the pools before and after, descriptors, and what is left over. Usage: bench_soak
 * [REQUESTS]
 */
#include <stdlib.h>

#include "scene.h"

static struct e2e_daemon daemon_;
static uint64_t requests;

/* One life: root, two rounds, named, retained, found, released. Eight requests. */
static bool life(kvd_client *client, uint32_t i) {
    uint64_t text = e2e_stream(i % 1000 + 1, 9000, 0);
    struct kvd_activation want = scene_want(kvd_client_session(client), 130, 20);
    struct kvd_activated a;
    struct kvd_round_result r;
    if (kvd_activate(client, &want, &a, NULL)) return false;
    struct kvd_round_item item = scene_item(a.sequence);
    item.pool[0].commit = 130;
    ROUND_ASK(&item);
    if (kvd_round(client, &item, 1, &r, NULL) || r.status) return false;
    item.pool[0].commit = KVD_NONE;
    item.pool[0].ensure = 149;
    ROUND_ASK(&item);
    if (kvd_round(client, &item, 1, &r, NULL) || r.status) return false;
    scene_name(client, a.sequence, text, 130);
    kvd_continuation kept = scene_retain(client, a.sequence, text, 130);
    bool fine = scene_find(client, text, 140).usable == 130 && kvd_release(client, kept, NULL) == KVD_OK;
    scene_stats(client);
    requests += 8;
    return fine;
}

static uint64_t wanted = 1000000;

static void soak(void) {
    if (!e2e_daemon_start(&daemon_, NULL)) return;
    kvd_client *client = e2e_connect(&daemon_, KVD_ROLE_ADMIN, "soak");
    KVT_NEED(client);
    for (uint32_t i = 0; i < 2000; i++) KVT_NEED(life(client, i));
    struct kvd_stats before = scene_stats(client);
    uint64_t rss = e2e_rss_bytes(daemon_.pid);
    unsigned fds = e2e_fd_count(daemon_.pid);
    double begin = e2e_now();
    requests = 0;
    for (uint32_t i = 0; requests < wanted; i++) KVT_NEED(life(client, i));
    double seconds = e2e_now() - begin;
    struct kvd_stats after = scene_stats(client);
    KVT_TRUE(e2e_same_resources(&before, &after));
    scene_audit(client);
    double metadata = (double)after.metadata_bytes / 1048576, now = (double)e2e_rss_bytes(daemon_.pid) / 1048576;
    printf("\nBENCH soak_requests %llu requests\n", (unsigned long long)requests);
    printf("BENCH soak_request_us %.2f us\n", seconds * 1e6 / (double)requests);
    printf("BENCH soak_private_memory_before %.2f MiB\n", (double)rss / 1048576);
    printf("BENCH soak_private_memory_after %.2f MiB\n", now);
    printf("BENCH soak_metadata %.2f MiB\n", metadata);
    printf("BENCH soak_descriptors_grown %d descriptors\n", (int)e2e_fd_count(daemon_.pid) - (int)fds);
    kvd_disconnect(client);
    e2e_daemon_free(&daemon_);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(soak), { 0 } };
    if (argc > 1) wanted = strtoull(argv[1], NULL, 0);
    return kvt_main("bench soak", cases, 1, argv);
}
