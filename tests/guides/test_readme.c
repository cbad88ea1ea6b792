/* SPDX-License-Identifier: Apache-2.0
 *
 * The program in README.md, as it stands there, twice against a real kvd: the second time it goes on from what the
 * first left. ACT-1, ACT-4, CONT-2.
 */
#include <kvd/kvd.h>
#include <signal.h>
#include <stdlib.h>

#include "e2e.h"

enum { PROMPT = 300, FURTHER = 15, TEXT = 7 };

static struct e2e_daemon daemon_;
static kvd_store *store;
static uint64_t wrong;

/* Checks what was there before, writes the rest of the prompt and some more. */
static uint32_t model_run(const PagedKVBatchLayerView *view, uint32_t row, uint32_t from) {
    KVT_TRUE(view->block_tables != NULL);
    wrong += e2e_check_columns(store, 0, row, TEXT, 0, from);
    e2e_write_columns(store, 0, row, TEXT, from, PROMPT + FURTHER);
    return PROMPT + FURTHER;
}

/* One request; how much of its prompt was there. */
static uint32_t request(kvd_client *w) {
    const struct kvd_domain domain = { .model = "m" };
    const kvd_session_id worker = kvd_client_session(w);
    const uint32_t n_prompt = PROMPT, layer = 0;
    uint32_t tokens[PROMPT + FURTHER], n = 0, done;
    struct kvd_error error;
    kvd_client *c = NULL;
    kvd_chain *chain = NULL;
    struct kvd_hit hits[8];
    struct kvd_activated is = { 0 };
    PagedKVBatchLayerView view;
    struct kvd_round_result result = { .status = KVD_UNKNOWN };
    struct kvd_finished finished = { 0 };
    e2e_tokens(TEXT, PROMPT + FURTHER, tokens);
#include "readme.inc" /* the block of the README */
    KVT_EQ_I(result.status, KVD_OK);
    KVT_TRUE(finished.continuation.bits != 0);
    kvd_detach(store);
    kvd_chain_free(chain);
    kvd_disconnect(c);
    return want.frontier;
}

static void a_request_and_the_next_one(void) {
    struct e2e_setup setup = { .max_context = 2048, .capacity_tokens = 4096 };
    KVT_NEED(e2e_daemon_start(&daemon_, &setup));
    setenv("KVD_SOCKET", daemon_.socket, 1);
    kvd_client *w = e2e_connect(&daemon_, KVD_ROLE_WORKER, "worker");
    KVT_EQ(request(w), 0);
    KVT_EQ(request(w), PROMPT - 1);
    KVT_EQ(wrong, 0);
    kvd_disconnect(w);
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGTERM), 0);
    e2e_daemon_free(&daemon_);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(a_request_and_the_next_one), { 0 } };
    return kvt_main("readme", cases, argc, argv);
}
