/* SPDX-License-Identifier: Apache-2.0
 *
 * Random steps on small stores, audited after each one. A refused step, an injected shortage and an aborted transition
 * must leave the state exactly as it was (SRV-2, ACT-5); at the end everything is released and every pool must be whole
 * again (POOL-6).
 */
#include "store_fixture.h"

#include <stdlib.h>

#define MAX_CONTS 64

struct world {
    struct fix fix;
    uint64_t random;
    store_seq seqs[8], activating[8];
    store_cont conts[MAX_CONTS], checkpoints[8];
    uint32_t n_seqs, n_activating, n_conts, n_checkpoints;
    char *before[8]; /* dump before each activation in flight */
    uint32_t done[12];
};

static uint32_t below(struct world *w, uint32_t n) { return n ? kvt_below(&w->random, n) : 0; }

static void drop_seq(struct world *w, uint32_t i) { w->seqs[i] = w->seqs[--w->n_seqs]; }
static void drop_cont(struct world *w, store_cont cont) {
    for (uint32_t i = 0; i < w->n_conts; i++)
        if (w->conts[i].bits == cont.bits) w->conts[i--] = w->conts[--w->n_conts];
}
static void keep_cont(struct world *w, store_cont cont) {
    for (uint32_t i = 0; i < w->n_conts; i++)
        if (w->conts[i].bits == cont.bits) return; /* equal to what is kept already (FIT-5) */
    if (cont.bits) w->conts[w->n_conts++] = cont;
}

static void same_after(struct world *w, char *before, const char *what) {
    char *after = fix_dump(&w->fix);
    if (!KVT_TRUE(strcmp(before, after) == 0)) printf("%s changed the store from\n%s\nto\n%s\n", what, before, after);
    free(before);
    free(after);
}

static void activate(struct world *w) {
    struct store_activated got;
    struct kvd_plan plan;
    store_cont victims[4];
    uint32_t s = w->fix.store->config.max_context;
    struct store_activation want = fix_root(1 + below(w, s), 1 + below(w, 200), 0);
    if (w->n_conts && below(w, 3)) {
        want.from = w->conts[below(w, w->n_conts)];
        uint32_t frontier = fix_info(&w->fix, want.from).frontier;
        want.frontier = below(w, 2) ? frontier : 1 + below(w, frontier);
        want.keep = below(w, 2);
        want.prompt_tokens = want.frontier + below(w, s - want.frontier + 1);
    }
    for (uint32_t p = 0; p < KVD_MAX_POOLS; p++)
        if (below(w, 2)) want.ensure[p] = below(w, want.prompt_tokens + 65);
    uint32_t n = 0;
    for (; n < 4 && w->n_conts && below(w, 3); n++) victims[n] = w->conts[below(w, w->n_conts)];
    fix_recipe(&want, victims, n, 0);
    char *before = fix_dump(&w->fix);
    bool injected = below(w, 4) == 0;
    int planned = store_plan_activation(w->fix.store, &want, &plan, NULL);
    if (injected) store_fail_acquisition(w->fix.store, 1 + below(w, 8));
    int rc = store_activate_begin(w->fix.store, &want, &got, &w->fix.refusal);
    store_fail_acquisition(w->fix.store, 0);
    if (!injected) {
        KVT_EQ_I(planned, rc == STORE_E_SHORT || rc == STORE_E_NEVER ? 0 : rc);
        if (planned == 0)
            KVT_EQ(plan.feasibility, rc == 0 ? KVD_READY : rc == STORE_E_NEVER ? KVD_INFEASIBLE : KVD_BLOCKED);
    }
    if (rc) {
        same_after(w, before, "a refused activation");
        return;
    }
    w->done[0]++;
    if (below(w, 2) || w->fix.store->seqs[(uint32_t)got.seq.bits].victims_lost) {
        free(before);
        for (uint32_t i = 0; i < want.n_victims; i++) drop_cont(w, victims[i]);
        if (below(w, 4) == 0) {
            uint32_t lost = 0;
            KVT_OK(store_activate_abort(w->fix.store, got.seq, &lost, NULL));
            for (uint32_t i = 0; i < want.n_victims && lost == 0; i++) keep_cont(w, victims[i]);
            if (!want.keep && want.from.bits) drop_cont(w, want.from), keep_cont(w, want.from);
            return;
        }
        KVT_OK(fix_commit(&w->fix, got.seq));
        if (!want.keep) drop_cont(w, want.from);
        w->seqs[w->n_seqs++] = got.seq;
    } else {
        fix_audit(&w->fix);
        KVT_OK(store_activate_abort(w->fix.store, got.seq, NULL, NULL));
        same_after(w, before, "an aborted activation");
    }
}

static uint32_t maybe(struct world *w, uint32_t limit) { return below(w, 3) ? KVD_NONE : below(w, limit); }

static void name_all(struct world *w, store_seq seq) {
    struct kvd_sequence_info info = fix_seq(&w->fix, seq);
    uint8_t digest[1][32];
    for (uint32_t i = info.named_pages; i < info.pool[0].committed / 64; i++) {
        const struct seq *s = &w->fix.store->seqs[(uint32_t)seq.bits];
        uint32_t d = space_entry(w->fix.store, &s->space[0], i);
        fix_digest(below(w, 3), i, digest[0]);
        if (w->fix.store->pool[0].pages[d].flags & PAGE_NAMED) memcpy(digest[0], w->fix.store->digests[d], 32);
        KVT_OK(store_name_pages(w->fix.store, seq, FIX_LEASE, i, 1, (const uint8_t(*)[32])digest, NULL));
        if (below(w, 5) == 0) return;
    }
}

static void round_one(struct world *w) {
    struct store_round_result result;
    if (!w->n_seqs) return;
    store_seq seq = w->seqs[below(w, w->n_seqs)];
    struct store_round_item item = fix_item(seq);
    struct kvd_sequence_info info = fix_seq(&w->fix, seq);
    uint32_t s = w->fix.store->config.max_context, both = below(w, 2);
    for (uint32_t p = 0; p < KVD_MAX_POOLS; p++) {
        uint32_t committed = info.pool[p].committed, mapped = info.pool[p].membership * 64;
        item.pool[p] = round_pool(maybe(w, mapped + 2), maybe(w, committed + 2), maybe(w, s), maybe(w, s + 2));
        if (item.pool[p].commit != KVD_NONE && below(w, 8))
            item.pool[p].commit = committed + below(w, mapped - committed + 1);
        if (both && p) item.pool[p] = item.pool[0];
    }
    if (w->fix.store->config.has_state && below(w, 2)) item.state_frontier = item.pool[0].commit;
    char *before = fix_dump(&w->fix);
    if (below(w, 4) == 0) store_fail_acquisition(w->fix.store, 1 + below(w, 5));
    fix_apply(&w->fix, &item, &result);
    store_fail_acquisition(w->fix.store, 0);
    if (result.refusal.code) {
        same_after(w, before, "a refused round");
    } else {
        w->done[1]++;
        free(before);
        if (below(w, 2)) name_all(w, seq);
    }
}

/* Brings all pools and the image to one frontier, so that something can be kept. */
static bool align(struct world *w, store_seq seq) {
    struct kvd_sequence_info info = fix_seq(&w->fix, seq);
    uint32_t frontier = info.pool[0].committed;
    struct store_round_result result;
    struct store_round_item item = fix_item(seq);
    if (w->fix.store->n_pools > 1) frontier = max_u32(frontier, info.pool[1].committed);
    for (uint32_t p = 0; p < KVD_MAX_POOLS; p++) item.pool[p].ensure = frontier;
    fix_apply(&w->fix, &item, &result);
    item = fix_item(seq);
    for (uint32_t p = 0; p < KVD_MAX_POOLS; p++) item.pool[p].commit = frontier;
    if (w->fix.store->config.has_state) item.state_frontier = frontier;
    fix_apply(&w->fix, &item, &result);
    if (below(w, 4)) name_all(w, seq);
    return result.refusal.code == 0 && frontier;
}

static void checkpoint(struct world *w) {
    struct store_checkpointed got;
    if (!w->n_seqs) return;
    store_seq seq = w->seqs[below(w, w->n_seqs)];
    align(w, seq);
    char *before = fix_dump(&w->fix);
    if (below(w, 4) == 0) store_fail_acquisition(w->fix.store, 1 + below(w, 5));
    int rc = store_checkpoint_begin(w->fix.store, seq, FIX_LEASE,
                                    FIX_KEEP(fix_tail(fix_seq(&w->fix, seq).pool[0].committed), 0), &got, NULL);
    store_fail_acquisition(w->fix.store, 0);
    if (rc) {
        same_after(w, before, "a refused checkpoint");
    } else if (got.is_published) { /* it is there already (FIT-5) */
        free(before);
        keep_cont(w, got.cont);
    } else if (below(w, 3) == 0) {
        KVT_OK(store_checkpoint_abort(w->fix.store, got.cont, NULL));
        same_after(w, before, "an aborted checkpoint");
    } else {
        w->done[2]++;
        free(before);
        if (w->n_checkpoints < 8) {
            w->checkpoints[w->n_checkpoints++] = got.cont;
        } else {
            KVT_OK(store_checkpoint_commit(w->fix.store, got.cont, &got.cont, NULL));
            keep_cont(w, got.cont);
        }
    }
}

static void checkpoint_ends(struct world *w) {
    if (!w->n_checkpoints) return;
    uint32_t i = below(w, w->n_checkpoints);
    store_cont cont = w->checkpoints[i];
    w->checkpoints[i] = w->checkpoints[--w->n_checkpoints];
    if (below(w, 3)) {
        KVT_OK(store_checkpoint_commit(w->fix.store, cont, &cont, NULL));
        keep_cont(w, cont);
        w->done[3]++;
    } else {
        KVT_OK(store_checkpoint_abort(w->fix.store, cont, NULL));
    }
}

static void finish(struct world *w) {
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    store_cont cont = { 0 };
    if (!w->n_seqs) return;
    uint32_t i = below(w, w->n_seqs);
    store_seq seq = w->seqs[i];
    if (below(w, 3)) align(w, seq);
    char *before = fix_dump(&w->fix);
    int rc;
    if (below(w, 4) == 0) {
        KVT_OK(store_quarantine(w->fix.store, seq, true, NULL));
        rc = store_end(w->fix.store, seq, &cont, rows, NULL);
        KVT_OK(rc);
    } else {
        rc = store_finish(w->fix.store, seq, FIX_LEASE, below(w, 4) ? STORE_FINISH_RETAIN : STORE_FINISH_RELEASE,
                          fix_tail(fix_seq(&w->fix, seq).pool[0].committed), 0, &cont, rows, NULL);
    }
    if (rc) {
        same_after(w, before, "a refused finish");
        return;
    }
    free(before);
    w->done[4]++;
    keep_cont(w, cont);
    drop_seq(w, i);
}

static void release(struct world *w) {
    if (!w->n_conts) return;
    store_cont cont = w->conts[below(w, w->n_conts)];
    uint32_t before[KVD_MAX_POOLS];
    for (uint32_t p = 0; p < w->fix.store->n_pools; p++) before[p] = pool_available(&w->fix.store->pool[p]);
    struct kvd_continuation_info info = fix_info(&w->fix, cont);
    KVT_OK(store_release(w->fix.store, cont, NULL));
    for (uint32_t p = 0; p < w->fix.store->n_pools; p++)
        KVT_EQ(pool_available(&w->fix.store->pool[p]) - before[p], info.exclusive_pages[p]);
    drop_cont(w, cont);
    w->done[5]++;
}

static void find(struct world *w) {
    struct kvd_hit found[6];
    uint8_t chain[8][32];
    uint32_t n = below(w, 9);
    fix_chain(below(w, 3), below(w, 9), below(w, 3), n, chain);
    const struct store_query query = { .digests = (const uint8_t(*)[32])chain,
                                       .n = n,
                                       .max = 6,
                                       .prompt_tokens = (n + 1) * KVD_PAGE_TOKENS,
                                       .token_page = n,
                                       .tokens = fix_tail(KVD_TAIL_TOKENS) };
    struct store_found answer = { 0 };
    KVT_OK(store_find(w->fix.store, &query, found, &answer, NULL));
    uint32_t got = answer.n;
    for (uint32_t i = 0; i < got; i++) {
        const struct cont *c = cont_find(w->fix.store, store_cont_of(found[i].continuation));
        KVT_TRUE(c && c->published && !c->claimed);
        if (i) KVT_TRUE(found[i - 1].usable >= found[i].usable);
    }
    w->done[6] += got > 0;
}

static void close_world(struct world *w) {
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    store_cont none;
    while (w->n_checkpoints) KVT_OK(store_checkpoint_abort(w->fix.store, w->checkpoints[--w->n_checkpoints], NULL));
    while (w->n_seqs)
        KVT_OK(store_finish(w->fix.store, w->seqs[--w->n_seqs], FIX_LEASE, STORE_FINISH_RELEASE, NULL, 0, &none, rows,
                            NULL));
    while (w->n_conts) KVT_OK(store_release(w->fix.store, w->conts[--w->n_conts], NULL));
    for (uint32_t p = 0; p < w->fix.store->n_pools; p++)
        KVT_EQ(pool_available(&w->fix.store->pool[p]), w->fix.store->pool[p].capacity);
    KVT_EQ(w->fix.store->chunks.used, 0);
    KVT_EQ(w->fix.store->chunks.reserved, 0);
    KVT_EQ(w->fix.store->slots_used, 0);
    KVT_EQ(w->fix.store->index.used, 1);
    fix_close(&w->fix);
}

static void run(struct store_config config, uint32_t steps) {
    struct world w = { .random = kvt_seed() };
    void (*const step[])(struct world *) = { activate,   activate,        round_one, round_one, round_one, round_one,
                                             checkpoint, checkpoint_ends, finish,    finish,    release,   find };
    fix_open(&w.fix, &config);
    for (uint32_t i = 0; i < steps; i++) {
        step[below(&w, sizeof step / sizeof *step)](&w);
        if (w.n_conts > MAX_CONTS - 4) release(&w);
        if (!fix_audit(&w.fix)) {
            printf("at step %u\n", i);
            break;
        }
    }
    for (int i = 0; i < 7; i++) KVT_TRUE(w.done[i] > 0);
    close_world(&w);
}

static struct store_config small(enum geom_backend backend) {
    struct store_config config = fix_config(backend);
    config.pool_pages[0] = 14;
    config.pool_pages[1] = 12;
    config.max_continuations = 12;
    config.map_ahead = 1;
    return config;
}

static void srv_2_act_5_pool_6_off(void) { run(small(GEOM_OFF), 20000); }

static void srv_2_act_5_pool_6_mtp(void) { run(small(GEOM_MTP), 20000); }

static void srv_2_act_5_pool_6_growth(void) {
    struct store_config config = small(GEOM_DFLASH);
    config.lease_growth = true;
    config.lease_window = config.prefill_chunk = 128;
    run(config, 20000);
}

static void srv_2_act_5_pool_6_state(void) {
    struct store_config config = small(GEOM_MTP);
    config.has_state = true;
    config.state_slots = 5;
    run(config, 20000);
}

static void srv_2_act_5_pool_6_membership(void) { /* chunks are short, not pages */
    struct store_config config = small(GEOM_MTP);
    config.pool_pages[0] = config.pool_pages[1] = 60;
    config.membership_entries = 10 * CHUNK;
    config.spare_pages = 5;
    run(config, 20000);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = {
        KVT_CASE(srv_2_act_5_pool_6_off),        KVT_CASE(srv_2_act_5_pool_6_mtp),
        KVT_CASE(srv_2_act_5_pool_6_growth),     KVT_CASE(srv_2_act_5_pool_6_state),
        KVT_CASE(srv_2_act_5_pool_6_membership), { 0 }
    };
    return kvt_main("store random", cases, argc, argv);
}
