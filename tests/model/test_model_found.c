/* SPDX-License-Identifier: Apache-2.0
 *
 * Shortest forms of what the model-based test found in the store: each case failed once.
 */
#include <stdlib.h>

#include "kvt.h"
#include "round_ask.h"
#include "store.h"

struct one { /* a store with two slots and three continuations */
    void *block;
    struct store *store;
    struct store_refusal refusal;
};

static bool open_one(struct one *o, uint32_t pages, bool has_state) {
    struct store_config c = { .backend = GEOM_OFF,
                              .pool_pages = { pages },
                              .max_context = 256,
                              .max_concurrency = 2,
                              .lease_window = 64,
                              .prefill_chunk = 64,
                              .max_continuations = 3,
                              .has_state = has_state,
                              .state_slots = has_state ? 4 : 0 };
    o->block = aligned_alloc(64, (store_bytes(&c) + 63) / 64 * 64);
    return KVT_OK(store_init(o->block, store_bytes(&c), &c, &o->store, NULL, 0));
}

static store_seq start(struct one *o, store_cont from, uint32_t frontier, uint32_t prompt, uint32_t output) {
    struct store_activation want = { .from = from,
                                     .keep = from.bits != 0,
                                     .frontier = frontier,
                                     .lease = 1,
                                     .prompt_tokens = prompt,
                                     .max_output_tokens = output,
                                     .ensure = { prompt } };
    struct store_activated got = { 0 };
    KVT_OK(store_activate_begin(o->store, &want, &got, &o->refusal));
    int rc = store_activate_commit(o->store, got.seq, &o->refusal);
    if (rc == STORE_MORE) rc = store_activate_commit(o->store, got.seq, &o->refusal); /* rows follow a tail's copy */
    KVT_OK(rc);
    return got.seq;
}

static enum store_code step(struct one *o, store_seq seq, uint32_t commit, uint32_t truncate, uint32_t state_frontier) {
    struct store_round_item it = { .seq = seq,
                                   .lease = 1,
                                   .state_frontier = state_frontier,
                                   .pool = { round_pool(commit, truncate, KVD_NONE, KVD_NONE),
                                             round_pool(KVD_NONE, KVD_NONE, KVD_NONE, KVD_NONE) } };
    ROUND_ASK(&it);
    struct store_round_result result;
    store_round(o->store, &it, 1, &result);
    return result.refusal.code;
}

static store_cont die(struct one *o, store_seq seq) {
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    store_cont cont = { 0 };
    KVT_OK(store_end(o->store, seq, &cont, rows, &o->refusal));
    return cont;
}

/* ACT-3, ACT-8: the only other holder of the tail page is a victim, so after the commit nobody else reads it: no copy
 * is made, and none is needed to fit into a full pool. */
static void act_3_tail_shared_with_a_victim_moves_in_place(void) {
    struct one o = { 0 };
    struct store_activated got = { 0 };
    uint32_t lost = 0;
    if (!open_one(&o, 4, false)) return;
    store_seq first = start(&o, (store_cont){ 0 }, 0, 128, 1);
    KVT_EQ(step(&o, first, 128, KVD_NONE, KVD_NONE), STORE_OK);
    store_cont source = die(&o, first); /* pages 0, 1 */
    store_seq second = start(&o, source, 128, 129, 1);
    KVT_EQ(step(&o, second, 129, KVD_NONE, KVD_NONE), STORE_OK);
    store_cont victim = die(&o, second);    /* shares both, and has a third */
    start(&o, (store_cont){ 0 }, 0, 64, 1); /* the fourth: nothing is available */
    struct store_activation want = { .from = source,
                                     .frontier = 100,
                                     .lease = 1,
                                     .prompt_tokens = 100,
                                     .max_output_tokens = 1,
                                     .victims = &(struct kvd_victim){ .continuation.bits = victim.bits },
                                     .n_victims = 1 };
    struct kvd_plan plan;
    KVT_OK(store_plan_activation(o.store, &want, &plan, &o.refusal));
    KVT_EQ(plan.copied_columns[0], 0);
    KVT_EQ(plan.shared_pages[0], 2);
    KVT_EQ(plan.pages[0].needed, 0);
    KVT_OK(store_activate_begin(o.store, &want, &got, &o.refusal));
    KVT_EQ(got.n_copies, 0);
    KVT_OK(store_activate_abort(o.store, got.seq, &lost, &o.refusal)); /* so the victim need not go before the commit */
    KVT_EQ(lost, 0);
    KVT_OK(store_activate_begin(o.store, &want, &got, &o.refusal));
    KVT_OK(store_activate_commit(o.store, got.seq, &o.refusal));
    KVT_EQ(store_audit(o.store, NULL, 0), 0);
    free(o.block);
}

/* CONT-1, PAGE-8: a state image of columns that were cut away is no image of the columns that took their place. */
static void cont_1_truncation_outdates_the_state_image(void) {
    struct one o = { 0 };
    struct kvd_tail tail = { .n = 60 };
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    store_cont cont = { 0 };
    if (!open_one(&o, 4, true)) return;
    store_seq seq = start(&o, (store_cont){ 0 }, 0, 64, 10);
    KVT_EQ(step(&o, seq, 60, KVD_NONE, 60), STORE_OK);
    KVT_EQ(step(&o, seq, KVD_NONE, 50, KVD_NONE), STORE_OK); /* ten columns are rejected ... */
    KVT_EQ(step(&o, seq, 60, KVD_NONE, KVD_NONE), STORE_OK); /* ... and ten others committed */
    KVT_EQ(store_finish(o.store, seq, 1, STORE_FINISH_RETAIN, &tail, 0, &cont, rows, &o.refusal), STORE_E_INCOMPLETE);
    KVT_EQ(step(&o, seq, KVD_NONE, KVD_NONE, 60), STORE_OK);
    KVT_OK(store_finish(o.store, seq, 1, STORE_FINISH_RETAIN, &tail, 0, &cont, rows, &o.refusal));
    free(o.block);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(act_3_tail_shared_with_a_victim_moves_in_place),
                                             KVT_CASE(cont_1_truncation_outdates_the_state_image),
                                             { 0 } };
    return kvt_main("found by the model", cases, argc, argv);
}
