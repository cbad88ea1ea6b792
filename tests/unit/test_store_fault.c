/* SPDX-License-Identifier: Apache-2.0
 *
 * Shortage at each acquisition of Activate, Checkpoint, Finish and Round: the n-th is refused for every n until none is
 * left, and after each refusal the store is exactly as before (ACT-5, ACT-8, SRV-2). And the audit: each kind of damage
 * is seen (INV-*).
 */
#include "store_fixture.h"

enum source { ROOT, MOVE, FORK };

static struct store_activation prepare(struct fix *fix, enum source source, bool recipe, store_cont *victim) {
    struct store_config config = fix_config(GEOM_MTP);
    config.pool_pages[0] = config.pool_pages[1] = 16;
    config.has_state = true;
    config.state_slots = 5;
    fix_open(fix, &config);
    store_cont cont = fix_cont(fix, 150, 1);
    *victim = fix_cont(fix, 200, 2);
    store_cont mate = fix_cont(fix, 150, 1);
    fix_activate(fix, fix_from(mate, true, 150, 150, 1), NULL); /* something shared beside it */
    struct store_activation want = source == ROOT ? fix_root(200, 1, 100) : fix_from(cont, source == FORK, 150, 200, 1);
    want.ensure[0] = want.ensure[1] = 200;
    fix_recipe(&want, victim, recipe, 0);
    return want;
}

/* Refuses acquisition after acquisition; returns how many there were. */
static uint32_t sweep_activation(enum source source, bool recipe) {
    struct fix fix;
    store_cont victim;
    struct store_activation want = prepare(&fix, source, recipe, &victim);
    struct store_activated got;
    for (uint32_t n = 1;; n++) {
        char *before = fix_dump(&fix);
        store_fail_acquisition(fix.store, n);
        int rc = store_activate_begin(fix.store, &want, &got, &fix.refusal);
        uint32_t acquired = store_fail_acquisition(fix.store, 0);
        char *after = fix_dump(&fix);
        if (rc) {
            KVT_EQ(rc, STORE_E_SHORT);
            KVT_EQ(acquired, n);
            KVT_EQ_STR(before, after);
        }
        free(before);
        free(after);
        fix_audit(&fix);
        if (rc == 0 || n > 50) {
            KVT_OK(fix_commit(&fix, got.seq));
            fix_close(&fix);
            return n - 1;
        }
    }
}

static void act_5_each_acquisition(void) {
    KVT_EQ(sweep_activation(ROOT, false),
           2 + 2 * 2 + 1 + 1 +
               2); /* sequence and its descriptor; reserve and map a pool; slot; membership; a row a pool */
    KVT_EQ(sweep_activation(ROOT, true), 10);
    KVT_EQ(sweep_activation(MOVE, false), 1 + 2 * 2 + 1 + 2); /* keeps its slot and descriptor */
    KVT_EQ(sweep_activation(MOVE, true), 8);
    KVT_EQ(sweep_activation(FORK, false), 2 + 2 * 3 + 1 + 1 + 2); /* a tail page a pool more */
    KVT_EQ(sweep_activation(FORK, true), 12);
}

static void ckpt_1_each_acquisition(void) {
    struct fix fix;
    store_cont victim;
    struct store_checkpointed got;
    prepare(&fix, ROOT, false, &victim);
    KVT_OK(store_release(fix.store, victim, NULL));
    store_seq seq = fix_activate(&fix, fix_root(100, 1, 100), NULL);
    fix_fill(&fix, seq, 100, 7);
    uint32_t n = 1;
    for (int rc = 1; rc; n++) {
        char *before = fix_dump(&fix);
        store_fail_acquisition(fix.store, n);
        rc = store_checkpoint_begin(fix.store, seq, FIX_LEASE, FIX_KEEP(fix_tail(100), 0), &got, &fix.refusal);
        store_fail_acquisition(fix.store, 0);
        char *after = fix_dump(&fix);
        if (rc) KVT_EQ_STR(before, after);
        free(before);
        free(after);
        fix_audit(&fix);
        if (n > 50) break;
    }
    KVT_EQ(n - 2, 1 + 2 + 1 + 1); /* descriptor, a tail a pool, slot, membership */
    KVT_OK(store_checkpoint_commit(fix.store, got.cont, NULL, NULL));
    fix_close(&fix);
}

/* FIT-2: a finish acquires nothing, so that nothing can be short. */
static void fit_2_finish_acquires_nothing(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    store_cont cont;
    fix_open(&fix, &config);
    store_seq seq = fix_activate(&fix, fix_root(100, 1, 100), NULL);
    fix_fill(&fix, seq, 100, 7);
    store_fail_acquisition(fix.store, 1);
    KVT_OK(store_finish(fix.store, seq, FIX_LEASE, STORE_FINISH_RETAIN, fix_tail(100), 0, &cont, rows, NULL));
    KVT_EQ(store_fail_acquisition(fix.store, 0), 0);
    fix_close(&fix);
}

/* A round without growth is refused whole; with growth a refused rung leads to the next, and at last to a bounded
 * result. */
static void space_4_each_acquisition_of_a_round(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_MTP);
    struct store_round_result r;
    fix_open(&fix, &config);
    store_seq seq = fix_activate(&fix, fix_root(300, 1, 100), NULL);
    for (uint32_t n = 1; n <= 3; n++) {
        char *before = fix_dump(&fix);
        store_fail_acquisition(fix.store, n);
        int rc = fix_round(&fix, seq, 90 + n, 80, 100, 300, NULL);
        store_fail_acquisition(fix.store, 0);
        char *after = fix_dump(&fix);
        KVT_EQ(rc, n <= 2 ? STORE_E_SHORT : STORE_OK);
        if (rc) KVT_EQ_STR(before, after);
        free(before);
        free(after);
    }
    fix_close(&fix);
    config = fix_config(GEOM_OFF);
    config.max_context = 64 * 64;
    config.pool_pages[0] = 60;
    config.lease_growth = true;
    config.lease_window = config.prefill_chunk = 256;
    for (uint32_t n = 1; n <= 4; n++) {
        fix_open(&fix, &config);
        seq = fix_activate(&fix, fix_root(64, config.max_context - 63, 448), NULL);
        KVT_EQ(fix_seq(&fix, seq).pool[0].entitlement, 7);
        store_fail_acquisition(fix.store, n);
        KVT_OK(fix_round(&fix, seq, 448, KVD_NONE, KVD_NONE, KVD_NONE, &r));
        KVT_EQ(r.pool[0].entitlement, n == 1 ? 9 + 2 : 11 + 2); /* the first rung refused: 128 tokens */
        store_fail_acquisition(fix.store, 0);
        fix_close(&fix);
    }
}

/* ---- the audit sees damage ---- */

/* Whole, and in the smallest steps: the same lines. */
static uint32_t violations(struct fix *fix, const char *part) {
    char text[4096], again[4096];
    struct store_audited audited;
    uint32_t n = store_audit(fix->store, text, sizeof text);
    KVT_TRUE(n > 0);
    KVT_HAS(text, part);
    store_audit_begin(fix->store, again, sizeof again);
    while (store_audit_step(fix->store, 1, &audited)) continue;
    KVT_EQ_STR(again, text);
    KVT_EQ(audited.violations, n);
    KVT_EQ(audited.left_out, 0);
    return n;
}

/* Damages one value, expects the audit to name it, and puts it back. */
#define DAMAGE(place, value, part)                                                                                     \
    do {                                                                                                               \
        __typeof__(place) was = (place);                                                                               \
        (place) = (__typeof__(place))(value);                                                                          \
        violations(&fix, part);                                                                                        \
        (place) = was;                                                                                                 \
        KVT_TRUE(fix_audit(&fix));                                                                                     \
    } while (0)

static void inv_audit_sees_damage(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_MTP);
    config.has_state = true;
    config.state_slots = 5;
    config.spare_pages = 2;
    config.pool_pages[0] = config.pool_pages[1] = 12;
    fix_open(&fix, &config);
    store_cont cont = fix_cont(&fix, 150, 1);
    store_seq seq = fix_activate(&fix, fix_from(cont, true, 150, 200, 1), NULL);
    struct store *s = fix.store;
    struct pool *pool = &s->pool[0];
    struct page *shared = &pool->pages[0];
    struct cont *c = cont_find(s, cont);
    struct seq *q = seq_find(s, seq);
    KVT_NEED(c && q);
    DAMAGE(pool->allocated, pool->allocated + 1, "POOL-6");
    DAMAGE(pool->reserved, pool->reserved + 1, "reserved pages");
    DAMAGE(pool->bitmap[0], pool->bitmap[0] | 1, "free");
    DAMAGE(pool->tree[1].best, 5, "free runs");
    DAMAGE(pool->leases[0].owner, 3, "lease");
    DAMAGE(pool->leases[1].generation, 99, "lease");
    DAMAGE(pool->shared, 0, "shared pages");
    DAMAGE(pool->spare, KVD_NONE, "spare descriptors");
    DAMAGE(shared->references, 1, "references");
    DAMAGE(shared->active_references, 0, "active references");
    DAMAGE(shared->flags, shared->flags | PAGE_WRITER, "has a writer");
    DAMAGE(shared->protected, 63, "protects");
    DAMAGE(shared->committed, 63, "columns");
    DAMAGE(shared->pins, 1, "pins");
    DAMAGE(shared->epoch, s->epoch + 1, "epoch");
    DAMAGE(shared->flags, shared->flags & ~PAGE_NAMED, "has no name");
    DAMAGE(pool->table[0], 7, "the membership says");
    DAMAGE(pool->table[7], 0, "the membership says -1");
    DAMAGE(pool->table[9], 0, "row 1 entry 1");
    DAMAGE(pool->rows[0].owner, KVD_NONE, "row");
    DAMAGE(pool->rows_used, 0, "rows leased");
    DAMAGE(q->space[0].committed, 140, "the frontier of its sequence");
    DAMAGE(q->space[1].reserved, 5, "reserved");
    DAMAGE(*space_run(s, &c->space[0], 1, &(uint32_t){ 0 }), 0, "block");
    DAMAGE(c->frontier, 149, "continuation");
    DAMAGE(c->pins, 1, "forks in flight");
    DAMAGE(c->claimed, true, "claims");
    DAMAGE(c->named, 1, "continuation 0 ends at step 3");
    DAMAGE(s->index.nodes[c->node].some, 3, "node");
    DAMAGE(s->domains.list[c->domain].references, 9, "holders");
    DAMAGE(s->domains.list[c->domain].root.digest.bytes[0], 9, "NAME-1");
    DAMAGE(s->index.used, 1, "nodes");
    DAMAGE(s->chunks.used, 1, "chunks used");
    DAMAGE(s->chunks.reserved, 9, "chunks reserved");
    DAMAGE(s->entries, 1, "entries");
    DAMAGE(s->slots[q->state_slot].used, false, "state slot");
    DAMAGE(s->slots[c->slot].pins, 0, "state slot");
    DAMAGE(s->slots_used, 1, "state slots used");
    DAMAGE(s->seqs_used, 2, "sequences");
    DAMAGE(s->conts_used, 9, "continuations");
    DAMAGE(s->conts_owned, 0, "FIT-2");
    DAMAGE(q->own, KVD_NONE, "owns no descriptor");
    DAMAGE(s->conts[q->own].owned, false, "which is no sequence's");
    char tiny[8];
    s->entries++;
    KVT_EQ(store_audit(s, tiny, sizeof tiny), 1); /* a line that does not fit is left out, never cut or overrun */
    KVT_EQ_STR(tiny, "");
    KVT_EQ(store_audit(s, NULL, 0), 1);
    s->entries--;
    fix_close(&fix);
}

/* What changes while an audit in steps is in work is left out, and said; what stood before is found all the same. */
static void inv_audit_in_steps(void) {
    struct fix fix;
    struct store_config config = fix_config(GEOM_OFF);
    struct store_audited audited;
    char text[1024];
    fix_open(&fix, &config);
    store_cont cont = fix_cont(&fix, 3 * 64, 1), other = fix_cont(&fix, 2 * 64, 2);
    struct pool *pool = &fix.store->pool[0];
    struct cont *c = cont_find(fix.store, other);
    KVT_NEED(c);
    uint32_t steps = 0, hurt = space_entry(fix.store, &c->space[0], 1);
    for (int damaged = 0; damaged < 2; damaged++) {
        pool->pages[hurt].references += (uint32_t)damaged;
        store_audit_begin(fix.store, text, sizeof text);
        while (store_audit_step(fix.store, 8, &audited)) { /* what the first one holds changes in every pass */
            store_seq seq = fix_activate(&fix, fix_from(cont, true, 2 * 64, 200, 1), NULL);
            struct kvd_pool_view rows[KVD_MAX_POOLS];
            store_cont none;
            KVT_OK(store_finish(fix.store, seq, FIX_LEASE, STORE_FINISH_RELEASE, NULL, 0, &none, rows, NULL));
            steps++;
        }
        KVT_EQ(audited.violations > 0, damaged);
        if (damaged) KVT_HAS(text, "references");
        KVT_EQ(audited.left_out, 2);
        pool->pages[hurt].references -= (uint32_t)damaged;
    }
    KVT_TRUE(steps > 50);
    fix_close(&fix);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(act_5_each_acquisition),
                                             KVT_CASE(ckpt_1_each_acquisition),
                                             KVT_CASE(fit_2_finish_acquires_nothing),
                                             KVT_CASE(space_4_each_acquisition_of_a_round),
                                             KVT_CASE(inv_audit_sees_damage),
                                             KVT_CASE(inv_audit_in_steps),
                                             { 0 } };
    return kvt_main("store fault", cases, argc, argv);
}
