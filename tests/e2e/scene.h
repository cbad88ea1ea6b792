/* SPDX-License-Identifier: Apache-2.0
 *
 * The steps that most scenes share, told from a scheduler (the test itself) and a worker (a puppet). Each records a
 * failed check itself and returns what the scene goes on with. */
#ifndef KVD_E2E_SCENE_H
#define KVD_E2E_SCENE_H

#include "e2e.h"
#include "round_ask.h"

#define SCENE_POOLS 1

/* Activation of `prompt` tokens plus `output`, from root or from a hit, leased to `worker`, whole prompt mapped. */
static inline struct kvd_activation scene_want(kvd_session_id worker, uint32_t prompt, uint32_t output) {
    struct kvd_activation want = {
        .root = e2e_root(), .worker = worker, .prompt_tokens = prompt, .max_output_tokens = output
    };
    want.ensure[0] = prompt;
    return want;
}

static inline struct kvd_activated scene_activate(kvd_client *scheduler, const struct kvd_activation *want) {
    struct kvd_activated activated = { 0 };
    struct kvd_error error = { 0 };
    if (!KVT_EQ(kvd_activate(scheduler, want, &activated, &error), KVD_OK)) printf("    %s\n", error.message);
    return activated;
}

/* The worker writes columns [from, to) of the stream in its row. */
static inline void scene_write(struct puppet *worker, uint32_t row, uint64_t seed, uint32_t from, uint32_t to) {
    struct puppet_call call = { .op = PUPPET_WRITE, .row = row, .seed = seed, .from = from, .to = to };
    struct puppet_answer answer;
    KVT_TRUE(puppet_do(worker, &call, &answer));
    KVT_EQ(answer.status, KVD_OK);
}

static inline void scene_check(struct puppet *worker, uint32_t row, uint64_t seed, uint32_t from, uint32_t to) {
    struct puppet_call call = { .op = PUPPET_CHECK, .row = row, .seed = seed, .from = from, .to = to };
    struct puppet_answer answer;
    KVT_TRUE(puppet_do(worker, &call, &answer));
    if (!KVT_EQ(answer.status, KVD_OK)) printf("    %s\n", answer.message);
}

/* What is then set is asked for: by puppets as it is, before kvd_round by ROUND_ASK. */
static inline struct kvd_round_item scene_item(kvd_sequence sequence) {
    struct kvd_round_item item = { .sequence = sequence, .state_frontier = KVD_NONE };
    for (int i = 0; i < KVD_MAX_POOLS; i++) item.pool[i] = round_pool(KVD_NONE, KVD_NONE, KVD_NONE, KVD_NONE);
    return item;
}

/* The worker commits `commit` and maps `ensure` (KVD_UNCHANGED = not asked); the item's status. */
static inline struct kvd_round_result scene_round(struct puppet *worker, kvd_sequence sequence, uint32_t commit,
                                                  uint32_t ensure) {
    struct puppet_call call = { .op = PUPPET_ROUND, .n = 1 };
    struct puppet_answer answer;
    call.items[0] = scene_item(sequence);
    call.items[0].pool[0].commit = commit;
    call.items[0].pool[0].ensure = ensure;
    KVT_TRUE(puppet_do(worker, &call, &answer));
    if (answer.status != KVD_OK) {
        answer.results[0].status = answer.status;
        snprintf(answer.results[0].message, sizeof answer.results[0].message, "%s", answer.message);
    }
    return answer.results[0];
}

static inline void scene_name(kvd_client *scheduler, kvd_sequence sequence, uint64_t seed, uint32_t tokens) {
    struct kvd_error error = { 0 };
    kvd_chain *chain = e2e_chain(seed, tokens);
    if (kvd_chain_pages(chain) &&
        !KVT_EQ(kvd_name_pages(scheduler, sequence, chain, 0, (uint32_t)kvd_chain_pages(chain), &error), KVD_OK))
        printf("    %s\n", error.message);
    kvd_chain_free(chain);
}

static inline kvd_continuation scene_retain(kvd_client *scheduler, kvd_sequence sequence, uint64_t seed,
                                            uint32_t tokens) {
    struct kvd_finish how = { .sequence = sequence, .retain = true };
    struct kvd_finished finished = { .revision = 0 };
    struct kvd_error error = { 0 };
    e2e_tail(seed, tokens, &how.tail);
    if (!KVT_EQ(kvd_finish(scheduler, &how, &finished, &error), KVD_OK)) printf("    %s\n", error.message);
    return finished.continuation;
}

/* The best hit for a prompt of `tokens` tokens of the stream; usable 0 = none. */
static inline struct kvd_hit scene_find(kvd_client *scheduler, uint64_t seed, uint32_t tokens) {
    static uint32_t prompt[1 << 17];
    struct kvd_hit hits[8] = { 0 };
    struct kvd_error error = { 0 };
    uint32_t n = 0;
    kvd_chain *chain = e2e_chain(seed, tokens);
    e2e_tokens(seed, tokens, prompt);
    if (!KVT_EQ(kvd_find(scheduler, chain, prompt, tokens, hits, 8, &n, &error), KVD_OK))
        printf("    %s\n", error.message);
    kvd_chain_free(chain);
    if (!n) memset(hits, 0, sizeof hits);
    return hits[0];
}

static inline struct kvd_stats scene_stats(kvd_client *client) {
    struct kvd_stats stats = { 0 };
    KVT_EQ(kvd_stats(client, &stats, NULL), KVD_OK);
    return stats;
}

/* INV-1..17 hold. */
static inline void scene_audit(kvd_client *client) {
    static struct kvd_audit audit;
    KVT_EQ(kvd_audit(client, &audit, NULL), KVD_OK);
    if (!KVT_EQ(audit.violations, 0)) printf("    %s\n", audit.text);
}

/* Root activation of the stream's first n tokens by the worker: written, committed, named, still running. */
static inline struct kvd_activated scene_run(kvd_client *scheduler, struct puppet *worker, kvd_session_id session,
                                             uint64_t seed, uint32_t n, uint32_t output) {
    struct kvd_activation want = scene_want(session, n, output);
    struct kvd_activated a = scene_activate(scheduler, &want);
    scene_write(worker, a.pool[0].row, seed, 0, n);
    KVT_EQ(scene_round(worker, a.sequence, n, KVD_UNCHANGED).status, KVD_OK);
    scene_name(scheduler, a.sequence, seed, n);
    return a;
}

#endif
