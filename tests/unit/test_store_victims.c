/* SPDX-License-Identifier: Apache-2.0
 *
 * Who gives way beside activations that release or demote: a victim that is only shortened (SHORT-1, ACT-8), the
 * standing list for lease growth (FIT-4), and the recipe of a checkpoint (FIT-1).
 */
#include "store_fixture.h"

#include <string.h>

#define STRIDE 4096u

static struct fix f;

static struct store_config config_of(uint32_t pages, bool growth, bool host) {
    struct store_config c = fix_config(GEOM_OFF);
    c.pool_pages[0] = pages;
    c.max_context = 64 * 40;
    c.max_continuations = 16;
    c.lease_growth = growth;
    c.lease_window = c.prefill_chunk = 128;
    c.host_bytes = host ? 64 * STRIDE : 0;
    c.host_stride[0] = host ? STRIDE : 0;
    return c;
}

static void open_store(uint32_t pages, bool growth, bool host) {
    struct store_config c = config_of(pages, growth, host);
    fix_open(&f, &c);
}

static void copy_all(struct store_transition of) {
    struct store_copy copy;
    uint64_t cursor = 0;
    while (store_next_copies(f.store, of, &cursor, &copy, 1))
        if (copy.kind == STORE_COPY_PAGE_OUT || copy.kind == STORE_COPY_STATE_OUT)
            store_copied_out(f.store, copy.replica, copy.host + 1);
}

static void move_to(store_cont cont, enum store_place place) {
    store_move move;
    KVT_OK(store_move_begin(f.store, cont, place, &move, &f.refusal));
    copy_all((struct store_transition){ true, move.bits });
    KVT_OK(store_move_commit(f.store, move, &f.refusal));
}

static struct kvd_victim released(store_cont cont) { return (struct kvd_victim){ .continuation.bits = cont.bits }; }
static struct kvd_victim demoted(store_cont cont) {
    return (struct kvd_victim){ .continuation.bits = cont.bits, .demote = true };
}
static struct kvd_victim shortened(store_cont cont, uint32_t frontier) {
    return (struct kvd_victim){ .continuation.bits = cont.bits, .frontier = frontier };
}

static bool is_there(store_cont cont) { return cont_find(f.store, cont) != NULL; }

static bool is_found(uint32_t salt, uint32_t pages) {
    uint8_t chain[40][32];
    struct kvd_hit hit = { 0 };
    fix_chain(salt, 40, salt, 40, chain);
    return fix_find(f.store, (const uint8_t(*)[32])chain, 39, &hit, 1) == 1 && hit.usable == pages * 64;
}

/* ---- shortened victims of an activation ---- */

static int activated(struct store_activation want, store_seq *ret_seq) {
    struct store_activated made;
    int rc = store_activate_begin(f.store, &want, &made, &f.refusal);
    if (rc) return rc;
    do copy_all((struct store_transition){ .bits = made.seq.bits });
    while ((rc = store_activate_commit(f.store, made.seq, &f.refusal)) == STORE_MORE);
    if (ret_seq) *ret_seq = made.seq;
    return rc;
}

/* SHORT-1, ACT-8: of 100 pages the last ten go; plan says so, and the rest is found under its handle. */
static void short_1_a_victim_gives_its_tail(void) {
    struct kvd_plan plan;
    struct store_config c = config_of(104, false, false);
    c.max_context = 64 * 104;
    fix_open(&f, &c);
    store_cont cont = fix_cont(&f, 6400, 1);
    KVT_OK(store_set_retention(f.store, cont, 5, &f.refusal));
    const struct kvd_victim recipe = shortened(cont, 90 * 64);
    struct store_activation want = fix_root(14 * 64, 1, 14 * 64);
    want.victims = &recipe;
    want.n_victims = 1;
    KVT_OK(store_plan_activation(f.store, &want, &plan, &f.refusal));
    KVT_EQ(plan.feasibility, KVD_READY);
    KVT_EQ(plan.freed_pages[0], 10);
    KVT_EQ(plan.continuations.available, 16 - 1); /* it leaves no descriptor */
    store_seq seq;
    KVT_OK(activated(want, &seq));
    fix_audit(&f);
    struct kvd_continuation_info info = fix_info(&f, cont);
    KVT_EQ(info.frontier, 5760);
    KVT_EQ(info.retention, 5);
    KVT_FALSE(info.claimed);
    KVT_EQ(fix_pool(&f, 0).available, 0);
    fix_close(&f);
}

/* ACT-5: an abort leaves it whole; and so does a begin that is refused, at every acquisition. */
static void act_5_a_shortened_victim_is_whole_again(void) {
    struct store_activated made;
    open_store(16, false, true);
    store_cont cont = fix_cont(&f, 640, 1), other = fix_cont(&f, 256, 2);
    const struct kvd_victim recipe[] = { shortened(cont, 320), demoted(other) };
    struct store_activation want = fix_root(640, 1, 640);
    want.victims = recipe;
    want.n_victims = 2;
    char *before = fix_dump(&f);
    for (uint32_t nth = 1, rc = 1; rc && nth < 20; nth++) {
        store_fail_acquisition(f.store, nth);
        rc = (uint32_t)store_activate_begin(f.store, &want, &made, &f.refusal);
        store_fail_acquisition(f.store, 0);
        if (!rc) KVT_OK(store_activate_abort(f.store, made.seq, NULL, &f.refusal));
        char *after = fix_dump(&f);
        KVT_EQ_STR(after, before);
        free(after);
        fix_audit(&f);
    }
    free(before);
    KVT_OK(activated(want, NULL));
    KVT_EQ(fix_info(&f, cont).frontier, 320);
    KVT_TRUE(fix_info(&f, other).demoted);
    fix_close(&f);
}

/* SHORT-1, ACT-3: the tail of a moved source that the victim held too goes on in place once it is cut off; and the
 * fork's tail copy that needs a page at once gets it from the cut. */
static void short_1_shares_with_the_source(void) {
    open_store(10, false, false);
    store_cont base = fix_cont(&f, 320, 1);
    store_seq seq = fix_activate(&f, fix_from(base, true, 320, 640, 1), NULL);
    KVT_TRUE(fix_fill(&f, seq, 640, 1));
    store_cont deep = fix_retain(&f, seq, 640);
    KVT_EQ(fix_pool(&f, 0).available, 0);
    struct kvd_victim recipe = shortened(deep, 256);
    struct store_activation want = fix_from(base, true, 300, 310, 1); /* shares 4 pages, copies 44 columns */
    want.victims = &recipe;
    want.n_victims = 1;
    KVT_OK(activated(want, &seq));
    fix_audit(&f);
    KVT_EQ(fix_info(&f, deep).frontier, 256);
    KVT_EQ(fix_info(&f, base).frontier, 320);
    KVT_EQ(fix_pool(&f, 0).allocated, 6);
    fix_close(&f);
}

/* SHORT-1: a victim in the host gives its extents: what is to be demoted finds a place there. */
static void short_1_in_the_arena(void) {
    struct store_config c = config_of(16, false, true);
    c.host_bytes = 10 * STRIDE;
    fix_open(&f, &c);
    store_cont rests = fix_cont(&f, 640, 1);
    move_to(rests, STORE_PLACE_HOST);
    store_cont victim = fix_cont(&f, 320, 2);
    const struct kvd_victim recipe[] = { shortened(rests, 320), demoted(victim) };
    struct store_activation want = fix_root(64 * 14, 1, 64);
    want.victims = recipe;
    want.n_victims = 2;
    KVT_OK(activated(want, NULL));
    fix_audit(&f);
    KVT_TRUE(fix_info(&f, victim).demoted && fix_info(&f, rests).demoted);
    KVT_EQ(fix_info(&f, rests).host_pages[0], 5);
    fix_close(&f);
}

static void refused(struct kvd_victim victim, enum store_code code) {
    struct store_activation want = fix_root(64, 1, 0);
    struct store_activated made;
    want.victims = &victim;
    want.n_victims = 1;
    char *before = fix_dump(&f), *after;
    KVT_EQ(store_activate_begin(f.store, &want, &made, &f.refusal), code);
    after = fix_dump(&f);
    KVT_EQ_STR(after, before);
    free(before);
    free(after);
}

/* SRV-2: where it cannot be cut it is no victim. */
static void short_1_what_is_no_cut(void) {
    open_store(16, false, true);
    store_cont cont = fix_cont(&f, 300, 1);
    refused(shortened(cont, 300), STORE_E_RANGE); /* its own: nothing would go */
    refused(shortened(cont, 301), STORE_E_RANGE);
    refused(shortened(cont, 100), STORE_E_NAME);
    struct kvd_victim both = { .continuation.bits = cont.bits, .demote = true, .frontier = 64 };
    refused(both, STORE_E_ARGUMENT);
    store_move move;
    KVT_OK(store_move_begin(f.store, cont, STORE_PLACE_HOST, &move, &f.refusal));
    refused(shortened(cont, 64), STORE_E_BUSY);
    KVT_OK(store_move_abort(f.store, move, &f.refusal));
    KVT_OK(store_shorten(f.store, cont, 290, &f.refusal));
    fix_close(&f);
}

/* FIT-1, SHORT-1: the choice gives up the tail first: 10 pages are short, 10 of 100 go. */
static void fit_1_the_choice_spares_the_prefix(void) {
    static struct kvd_victim victims[16];
    struct store_chosen chosen;
    struct store_config c = config_of(104, false, false);
    c.max_context = 64 * 104;
    fix_open(&f, &c);
    store_cont cont = fix_cont(&f, 6400, 1);
    const struct store_choice how = { .want = fix_root(14 * 64, 1, 0), .max = 16 };
    KVT_OK(store_choose_victims(f.store, &how, victims, &chosen, &f.refusal));
    KVT_EQ(chosen.n, 1);
    KVT_EQ(victims[0].frontier, 90 * 64);
    KVT_EQ(chosen.plan.freed_pages[0], 10);
    KVT_EQ(chosen.plan.feasibility, KVD_READY);
    struct store_activation want = how.want;
    want.victims = victims;
    want.n_victims = 1;
    want.revision = chosen.plan.revision;
    KVT_OK(activated(want, NULL));
    KVT_TRUE(is_found(1, 39));
    KVT_EQ(fix_info(&f, cont).frontier, 5760);
    fix_close(&f);
}

/* ---- the standing list ---- */

static struct kvd_victim list[8], gone[8];

/* One boundary of a sequence that leaves a list. Returns how many went. */
static uint32_t grown(store_seq seq, uint32_t ensure, uint32_t n, struct store_round_result *ret) {
    struct store_round_item item = fix_item(seq);
    item.pool[0] = round_pool(KVD_NONE, KVD_NONE, KVD_NONE, ensure);
    item.growth = list;
    item.n_growth = n;
    item.gone = gone;
    memset(gone, 0, sizeof gone);
    fix_apply(&f, &item, ret);
    KVT_OK(ret->refusal.code);
    fix_audit(&f);
    return ret->n_gone;
}

/* A pool of 24 pages: a sequence that may grow to 30 pages and has 6 (2 of the prompt, window and cushion), and idle
 * ones. */
static store_seq running(void) {
    store_seq seq = fix_activate(&f, fix_root(64, 64 * 20, 64), NULL);
    KVT_EQ(fix_seq(&f, seq).pool[0].entitlement, 5);
    return seq;
}

/* FIT-4: the list in its order, as few as suffice, and nobody else; nobody while there is room. */
static void fit_4_growth_takes_the_list(void) {
    struct store_round_result r;
    open_store(24, true, false);
    store_cont kept = fix_cont(&f, 64 * 6, 9), a = fix_cont(&f, 64 * 5, 1), b = fix_cont(&f, 64 * 5, 2);
    store_seq seq = running();
    KVT_EQ(fix_pool(&f, 0).available, 3);
    list[0] = released(b);
    list[1] = released(a);
    KVT_EQ(grown(seq, 64 * 8, 2, &r), 0); /* 3 more are there */
    KVT_FALSE(r.bounded);
    KVT_EQ(grown(seq, 64 * 9, 2, &r), 1);
    KVT_FALSE(r.bounded);
    KVT_EQ(gone[0].continuation.bits, b.bits);
    KVT_EQ(gone[0].frontier, 0);
    KVT_TRUE(is_there(a) && is_there(kept) && !is_there(b));
    KVT_EQ(grown(seq, 64 * 16, 2, &r), 1); /* b is passed over */
    KVT_EQ(gone[0].continuation.bits, a.bits);
    KVT_FALSE(r.bounded);
    KVT_EQ(grown(seq, 64 * 19, 2, &r), 0); /* nobody but the list */
    KVT_TRUE(r.bounded);
    KVT_EQ(r.bounded_frontier, 64 * 16);
    KVT_TRUE(is_there(kept));
    list[0] = released(kept);
    KVT_EQ(grown(seq, 64 * 19, 1, &r), 1);
    KVT_FALSE(r.bounded);
    fix_close(&f);
}

/* FIT-4: where all of the list does not suffice, nothing of it goes. */
static void fit_4_in_vain_nobody_goes(void) {
    struct store_round_result r;
    open_store(16, true, false);
    store_cont kept = fix_cont(&f, 64 * 7, 9), a = fix_cont(&f, 64 * 2, 1), b = fix_cont(&f, 64 * 2, 2);
    store_seq seq = running();
    list[0] = released(a);
    list[1] = released(b);
    KVT_EQ(grown(seq, 64 * 10, 2, &r), 0);
    KVT_TRUE(r.bounded);
    KVT_TRUE(is_there(a) && is_there(b) && is_there(kept));
    fix_close(&f);
}

/* FIT-4: what shares its pages gives nothing alone, both give them; and what gives nothing stays. */
static void fit_4_joint_and_useless_ones(void) {
    struct store_round_result r;
    open_store(16, true, false);
    store_cont base = fix_cont(&f, 64 * 4, 1);
    store_seq run = fix_activate(&f, fix_from(base, true, 256, 64 * 5, 1), NULL);
    KVT_TRUE(fix_fill(&f, run, 320, 1));
    store_cont deep = fix_retain(&f, run, 320), lone = fix_cont(&f, 64 * 6, 2);
    store_seq seq = running();
    KVT_EQ(fix_pool(&f, 0).available, 0);
    store_seq reader = fix_activate(&f, fix_from(lone, true, 64 * 6, 64 * 6, 1), NULL); /* lone gives nothing now */
    list[0] = released(base);
    list[1] = released(lone);
    list[2] = released(deep);
    list[3] = released(deep); /* twice is once */
    KVT_EQ(grown(seq, 64 * 9, 4, &r), 2);
    KVT_EQ(gone[0].continuation.bits, base.bits);
    KVT_EQ(gone[1].continuation.bits, deep.bits);
    KVT_TRUE(is_there(lone));
    KVT_FALSE(r.bounded);
    KVT_EQ(fix_seq(&f, reader).pool[0].membership, 6);
    fix_close(&f);
}

/* FIT-4, SHORT-1: a tail goes; a continuation that the host has rests, one that it has not goes. */
static void fit_4_shortened_and_demoted(void) {
    struct store_round_result r;
    open_store(20, true, true);
    store_cont tail = fix_cont(&f, 64 * 5, 1), rests = fix_cont(&f, 64 * 5, 2), goes = fix_cont(&f, 64 * 5, 3);
    move_to(rests, STORE_PLACE_BOTH);
    store_seq seq = running();
    KVT_EQ(fix_pool(&f, 0).available, 0);
    list[0] = shortened(tail, 128);
    list[1] = demoted(rests);
    list[2] = demoted(goes);
    KVT_EQ(grown(seq, 64 * 8, 3, &r), 1);
    KVT_EQ(fix_info(&f, tail).frontier, 128);
    KVT_TRUE(gone[0].frontier == 128 && !gone[0].demote);
    KVT_EQ(grown(seq, 64 * 9, 3, &r), 1);
    KVT_TRUE(gone[0].continuation.bits == rests.bits && gone[0].demote && gone[0].frontier == 320);
    KVT_TRUE(fix_info(&f, rests).demoted && is_found(2, 5));
    KVT_EQ(grown(seq, 64 * 15, 3, &r), 1); /* the tail is as short as it may be, the second rests */
    KVT_TRUE(gone[0].continuation.bits == goes.bits && !gone[0].demote && gone[0].frontier == 0);
    KVT_FALSE(r.bounded);
    fix_close(&f);
}

/* FIT-4, SRV-2: what a transition holds is passed over; a shortage in the middle bounds, and nobody has gone. */
static void fit_4_held_ones_and_shortages(void) {
    struct store_round_result r;
    struct store_activated made;
    open_store(16, true, false);
    store_cont a = fix_cont(&f, 64 * 5, 1), b = fix_cont(&f, 64 * 6, 2);
    store_seq seq = running();
    struct store_activation other = fix_root(64 * 5, 1, 0); /* a is its victim */
    fix_recipe(&other, &a, 1, 0);
    KVT_OK(store_activate_begin(f.store, &other, &made, &f.refusal));
    list[0] = released(a);
    list[1] = (struct kvd_victim){ .continuation.bits = a.bits + 77 }; /* nobody */
    list[2] = released(b);
    store_fail_acquisition(f.store, 1); /* the growth */
    KVT_EQ(grown(seq, 64 * 8, 3, &r), 0);
    store_fail_acquisition(f.store, 0);
    KVT_TRUE(r.bounded && is_there(a) && is_there(b));
    KVT_EQ(grown(seq, 64 * 8, 3, &r), 1);
    KVT_EQ(gone[0].continuation.bits, b.bits);
    KVT_TRUE(is_there(a));
    KVT_OK(store_activate_commit(f.store, made.seq, &f.refusal));
    KVT_FALSE(is_there(a));
    fix_close(&f);
}

/* FIT-4: each pool grows on its own; who goes for one pool gives to the other, too. */
static void fit_4_in_two_pools(void) {
    struct store_config c = config_of(24, true, false);
    struct store_round_result r;
    c.backend = GEOM_MTP;
    c.pool_pages[1] = 20;
    fix_open(&f, &c);
    store_cont a = fix_cont(&f, 64 * 7, 1), b = fix_cont(&f, 64 * 7, 2);
    store_seq seq = fix_activate(&f, fix_root(64, 64 * 20, 64), NULL);
    KVT_EQ(fix_pool(&f, 1).available, 0);
    KVT_EQ(fix_pool(&f, 0).available, 5);
    list[0] = released(a);
    list[1] = released(b);
    struct store_round_item item = fix_item(seq);
    item.pool[0] = item.pool[1] = round_pool(KVD_NONE, KVD_NONE, KVD_NONE, 64 * 8);
    item.growth = list;
    item.n_growth = 2;
    item.gone = gone;
    fix_apply(&f, &item, &r);
    KVT_OK(r.refusal.code);
    KVT_FALSE(r.bounded);
    KVT_EQ(r.n_gone, 1);
    KVT_TRUE(!is_there(a) && is_there(b));
    fix_close(&f);
}

/* ---- the recipe of a checkpoint ---- */

static int checkpointed(store_seq seq, uint32_t frontier, const struct kvd_victim *victims, uint32_t n,
                        struct store_checkpointed *ret_made) {
    const struct store_checkpoint want = {
        .tail = fix_tail(frontier), .retention = 2, .victims = victims, .n_victims = n
    };
    return store_checkpoint_begin(f.store, seq, FIX_LEASE, &want, ret_made, &f.refusal);
}

/* FIT-1: a full pool; the page of the tail's copy comes from the victim, and a shortage in the middle changes nothing.
 */
static void fit_1_a_checkpoint_in_a_full_pool(void) {
    struct store_checkpointed made;
    open_store(8, false, false);
    store_seq seq = fix_activate(&f, fix_root(150, 40, 150), NULL);
    KVT_TRUE(fix_fill(&f, seq, 150, 1));
    store_cont idle = fix_cont(&f, 64 * 5, 2);
    KVT_EQ(checkpointed(seq, 150, NULL, 0, &made), STORE_E_SHORT);
    const struct kvd_victim victim = shortened(idle, 64 * 4);
    char *before = fix_dump(&f);
    for (uint32_t nth = 1, rc = 1; rc && nth < 10; nth++) {
        store_fail_acquisition(f.store, nth);
        rc = (uint32_t)checkpointed(seq, 150, &victim, 1, &made);
        store_fail_acquisition(f.store, 0);
        char *after = fix_dump(&f);
        if (rc) KVT_EQ_STR(after, before);
        free(after);
    }
    free(before);
    KVT_EQ(made.n_gone, 1);
    fix_audit(&f);
    KVT_EQ(fix_info(&f, idle).frontier, 256);
    KVT_OK(store_checkpoint_commit(f.store, made.cont, NULL, &f.refusal));
    KVT_TRUE(is_found(1, 2));
    fix_close(&f);
}

/* FIT-1, FIT-2: a full table of descriptors, and idle images in all slots. */
static void fit_1_a_checkpoint_without_descriptor_or_slot(void) {
    struct store_checkpointed made;
    struct store_config c = config_of(16, false, true);
    c.max_continuations = 3;
    c.has_state = true;
    c.state_slots = 3;
    c.host_state_stride = 8192;
    fix_open(&f, &c);
    store_cont a = fix_cont(&f, 128, 1), b = fix_cont(&f, 128, 2);
    store_seq seq = fix_activate(&f, fix_root(150, 40, 150), NULL);
    KVT_TRUE(fix_fill(&f, seq, 150, 3));
    KVT_EQ(checkpointed(seq, 150, NULL, 0, &made), STORE_E_SHORT);
    KVT_EQ(f.refusal.subject, STORE_S_CONTINUATION);
    struct kvd_victim victims[] = { released(a), demoted(b) };
    KVT_EQ(checkpointed(seq, 150, victims, 2, &made), STORE_E_STATE); /* b is not in the host */
    KVT_EQ(f.refusal.subject, STORE_S_REPLICA);
    KVT_EQ(f.refusal.had, 3); /* two pages and the image */
    KVT_TRUE(is_there(a));
    KVT_OK(checkpointed(seq, 150, victims, 1, &made));
    KVT_OK(store_checkpoint_commit(f.store, made.cont, NULL, &f.refusal));
    KVT_FALSE(is_there(a));
    fix_audit(&f);
    KVT_OK(store_release(f.store, made.cont, &f.refusal));
    move_to(b, STORE_PLACE_BOTH); /* a slot and a descriptor are free: now b rests at no cost */
    KVT_OK(checkpointed(seq, 150, &victims[1], 1, &made));
    KVT_OK(store_checkpoint_commit(f.store, made.cont, NULL, &f.refusal));
    KVT_TRUE(fix_info(&f, b).demoted && fix_info(&f, b).image_in_host);
    fix_close(&f);
}

/* FIT-5: where an equal one stands for it nobody goes, also not that one; HOST-5: a recipe of another revision. */
static void fit_5_a_checkpoint_that_is_there(void) {
    struct store_checkpointed made;
    open_store(16, false, false);
    store_seq seq = fix_activate(&f, fix_root(150, 40, 150), NULL);
    KVT_TRUE(fix_fill(&f, seq, 150, 1));
    store_cont first = fix_checkpoint(&f, seq, 150), idle = fix_cont(&f, 64, 2);
    const struct kvd_victim victims[] = { released(first), released(idle) };
    KVT_OK(checkpointed(seq, 150, victims, 2, &made));
    KVT_TRUE(made.is_published && made.cont.bits == first.bits);
    KVT_EQ(made.n_gone, 0);
    KVT_TRUE(is_there(first) && is_there(idle));
    KVT_TRUE(fix_fill(&f, seq, 160, 1)); /* and now the new one replaces it */
    struct store_checkpoint want = { .tail = fix_tail(160), .victims = victims, .n_victims = 1, .revision = 1 };
    KVT_EQ(store_checkpoint_begin(f.store, seq, FIX_LEASE, &want, &made, &f.refusal), STORE_E_REVISION);
    want.revision = store_revision(f.store);
    KVT_OK(store_checkpoint_begin(f.store, seq, FIX_LEASE, &want, &made, &f.refusal));
    KVT_FALSE(is_there(first));
    KVT_OK(store_checkpoint_commit(f.store, made.cont, NULL, &f.refusal));
    KVT_EQ(checkpointed(seq, 160, victims, 1, &made), STORE_E_STALE);
    fix_close(&f);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(short_1_a_victim_gives_its_tail),
                                             KVT_CASE(act_5_a_shortened_victim_is_whole_again),
                                             KVT_CASE(short_1_shares_with_the_source),
                                             KVT_CASE(short_1_in_the_arena),
                                             KVT_CASE(short_1_what_is_no_cut),
                                             KVT_CASE(fit_1_the_choice_spares_the_prefix),
                                             KVT_CASE(fit_4_growth_takes_the_list),
                                             KVT_CASE(fit_4_in_vain_nobody_goes),
                                             KVT_CASE(fit_4_joint_and_useless_ones),
                                             KVT_CASE(fit_4_shortened_and_demoted),
                                             KVT_CASE(fit_4_held_ones_and_shortages),
                                             KVT_CASE(fit_4_in_two_pools),
                                             KVT_CASE(fit_1_a_checkpoint_in_a_full_pool),
                                             KVT_CASE(fit_1_a_checkpoint_without_descriptor_or_slot),
                                             KVT_CASE(fit_5_a_checkpoint_that_is_there),
                                             { 0 } };
    return kvt_main("store_victims", cases, argc, argv);
}
