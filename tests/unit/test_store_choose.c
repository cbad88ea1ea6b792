/* SPDX-License-Identifier: Apache-2.0
 *
 * The choice of victims in a named order (Q-2, ACT-8, FIT-1) on real stores, and against the plan of every prefix.
 */
#include "store_fixture.h"

#define STRIDE 4096u
#define CONTS 160u

static struct fix f;
static struct kvd_victim victims[KVD_MAX_VICTIMS];
static struct store_chosen chosen;

static void open_store(uint32_t pages, uint32_t arena_pages) {
    struct store_config c = fix_config(GEOM_OFF);
    c.pool_pages[0] = pages;
    c.max_context = 64 * 200;
    c.max_continuations = CONTS;
    c.host_bytes = (uint64_t)arena_pages * STRIDE;
    c.host_stride[0] = STRIDE;
    fix_open(&f, &c);
}

static void copy_all(struct store_transition of) {
    struct store_copy copy;
    uint64_t cursor = 0;
    while (store_next_copies(f.store, of, &cursor, &copy, 1))
        if (copy.kind == STORE_COPY_PAGE_OUT) store_copied_out(f.store, copy.replica, copy.host + 1);
}

static void demote(store_cont cont) {
    store_move move;
    KVT_OK(store_move_begin(f.store, cont, STORE_PLACE_HOST, &move, &f.refusal));
    copy_all((struct store_transition){ true, move.bits });
    KVT_OK(store_move_commit(f.store, move, &f.refusal));
}

static store_cont fork_of(store_cont from, uint32_t frontier, uint32_t tokens, uint32_t salt) {
    store_seq seq = fix_activate(&f, fix_from(from, true, frontier, tokens, 1), NULL);
    if (!seq.bits) return (store_cont){ 0 };
    fix_fill(&f, seq, tokens, salt);
    return fix_retain(&f, seq, tokens);
}

static void retention(store_cont cont, uint32_t class) {
    KVT_OK(store_set_retention(f.store, cont, class, &f.refusal));
}

static struct store_activation choose(struct store_activation want) {
    const struct store_choice how = { .want = want, .max = KVD_MAX_VICTIMS, .demote = true };
    char *before = fix_dump(&f);
    KVT_OK(store_choose_victims(f.store, &how, victims, &chosen, &f.refusal));
    char *after = fix_dump(&f);
    KVT_EQ_STR(before, after); /* it looks and changes nothing */
    free(before);
    free(after);
    fix_audit(&f);
    want.victims = victims;
    want.n_victims = chosen.n;
    want.revision = chosen.plan.revision;
    return want;
}

/* The recipe does what was said of it. */
static void carry_out(const struct store_activation *want) {
    struct store_activated got;
    int rc;
    KVT_NEED(store_activate_begin(f.store, want, &got, &f.refusal) == STORE_OK);
    do copy_all((struct store_transition){ .bits = got.seq.bits });
    while ((rc = store_activate_commit(f.store, got.seq, &f.refusal)) == STORE_MORE);
    KVT_OK(rc);
    fix_audit(&f);
}

static bool is_victim(store_cont cont, bool demoted) {
    for (uint32_t i = 0; i < chosen.n; i++)
        if (victims[i].continuation.bits == cont.bits) return victims[i].demote == demoted;
    return false;
}

/* ---- by hand ---- */

static void q_2_the_named_order(void) {
    store_cont c[4];
    open_store(40, 0);
    for (uint32_t i = 0; i < 4; i++) c[i] = fix_cont(&f, 640, i + 1); /* the first is the oldest */
    choose(fix_root(640, 1, 0));
    KVT_EQ(chosen.n, 1);
    KVT_TRUE(is_victim(c[0], false));
    retention(c[0], 5); /* the others have 1 */
    retention(c[1], 4);
    choose(fix_root(640, 1, 0));
    KVT_TRUE(chosen.n == 1 && is_victim(c[2], false));
    fix_activate(&f, fix_from(c[2], true, 640, 640, 1), NULL); /* used: the latest of its class */
    choose(fix_root(64, 1, 0));
    KVT_TRUE(chosen.n == 1 && is_victim(c[3], false));
    struct store_activation want = choose(fix_root(64 * 21, 1, 0)); /* c[2] frees nothing while its fork runs */
    KVT_EQ(chosen.plan.feasibility, KVD_READY);
    KVT_EQ(chosen.n, 3);
    KVT_TRUE(is_victim(c[3], false) && is_victim(c[1], false) && is_victim(c[0], false));
    carry_out(&want);
    fix_close(&f);
}

static void q_2_no_victims_where_it_fits(void) {
    open_store(8, 0);
    fix_cont(&f, 128, 1);
    choose(fix_root(384, 1, 0));
    KVT_EQ(chosen.n, 0);
    KVT_EQ(chosen.plan.feasibility, KVD_READY);
    choose(fix_root(640, 1, 0));
    KVT_EQ(chosen.plan.feasibility, KVD_INFEASIBLE);
    fix_close(&f);
}

/* FIT-1: any number of victims, in one transaction. */
static void fit_1_more_victims_than_64(void) {
    open_store(150, 0);
    for (uint32_t i = 0; i < 150; i++) fix_cont(&f, 64, i + 1);
    struct store_activation want = choose(fix_root(64 * 130, 1, 64 * 130));
    KVT_EQ(chosen.plan.feasibility, KVD_READY);
    KVT_EQ(chosen.n, 130);
    carry_out(&want);
    KVT_EQ(fix_pool(&f, 0).available, 0);
    const struct store_choice few = { .want = fix_root(64 * 15, 1, 0), .max = 5 };
    KVT_OK(store_choose_victims(f.store, &few, victims, &chosen, &f.refusal));
    KVT_EQ(chosen.plan.feasibility, KVD_BLOCKED);
    KVT_TRUE(chosen.more);
    fix_close(&f);
}

/* Running sequences hold it: nobody is walked, and nobody is named. */
static void fit_1_in_vain(void) {
    open_store(20, 0);
    fix_fill(&f, fix_activate(&f, fix_root(640, 1, 0), NULL), 640, 1);
    for (uint32_t i = 0; i < 10; i++) fix_cont(&f, 64, i + 2);
    choose(fix_root(64 * 11, 1, 0));
    KVT_EQ(chosen.plan.feasibility, KVD_BLOCKED);
    KVT_EQ(chosen.n, 0);
    KVT_FALSE(chosen.more);
    choose(fix_root(64 * 10, 1, 0));
    KVT_EQ(chosen.plan.feasibility, KVD_READY);
    KVT_EQ(chosen.n, 10);
    fix_close(&f);
}

/* Only of one owner; never the source, nor who is claimed. */
static void q_2_who_takes_no_part(void) {
    struct store_activated got;
    open_store(8, 0);
    store_cont a = fix_cont(&f, 128, 1), b = fix_cont(&f, 128, 2), c = fix_cont(&f, 128, 3);
    cont_find(f.store, a)->tag = 7;
    cont_find(f.store, b)->tag = cont_find(f.store, c)->tag = 8;
    struct store_choice how = { .want = fix_root(256, 1, 0), .max = KVD_MAX_VICTIMS, .of_tag = true, .tag = 8 };
    KVT_OK(store_choose_victims(f.store, &how, victims, &chosen, &f.refusal));
    KVT_TRUE(chosen.n == 1 && is_victim(b, false));
    choose(fix_from(a, true, 64, 256, 1));
    KVT_TRUE(chosen.n == 1 && is_victim(b, false));
    KVT_OK(
        store_activate_begin(f.store,
                             &(struct store_activation){
                                 .from = b, .frontier = 128, .lease = 1, .prompt_tokens = 128, .max_output_tokens = 1 },
                             &got, &f.refusal));
    choose(fix_from(a, true, 64, 256, 1));
    KVT_TRUE(chosen.n == 1 && is_victim(c, false));
    how.want.n_victims = 1;
    how.want.victims = victims;
    KVT_EQ(store_choose_victims(f.store, &how, victims, &chosen, &f.refusal), STORE_E_ARGUMENT);
    KVT_OK(store_activate_abort(f.store, got.seq, NULL, NULL));
    fix_close(&f);
}

/* Nothing is lost as long as the arena holds it; then the least valuable of all go, as few as do. */
static void act_8_demoted_as_far_as_the_arena_goes(void) {
    store_cont c[6];
    open_store(48, 16);
    for (uint32_t i = 0; i < 6; i++) c[i] = fix_cont(&f, 512, i + 1); /* 8 pages each: full */
    struct store_activation want = choose(fix_root(512, 1, 0));
    KVT_TRUE(chosen.n == 1 && is_victim(c[0], true));
    carry_out(&want);
    demote(c[1]); /* the arena is full; 8 pages are free */
    retention(c[1], 3);
    want = choose(fix_root(1024, 1, 0));
    KVT_EQ(chosen.plan.feasibility, KVD_READY);
    KVT_EQ(chosen.n, 2);
    KVT_TRUE(is_victim(c[0], false) && is_victim(c[2], true)); /* not c[1]: it is kept longer */
    carry_out(&want);
    KVT_TRUE(fix_info(&f, c[2]).demoted && fix_info(&f, c[1]).demoted);
    fix_close(&f);
}

/* FIT-1: membership is held by demoted ones, too: there the oldest goes, wherever it lies. */
static void fit_1_membership(void) {
    struct store_config config = fix_config(GEOM_OFF);
    config.pool_pages[0] = 64;
    config.membership_entries = 4 * CHUNK;
    config.host_bytes = 64 * STRIDE;
    config.host_stride[0] = STRIDE;
    fix_open(&f, &config);
    store_cont c[4];
    for (uint32_t i = 0; i < 4; i++) c[i] = fix_cont(&f, 64, i + 1);
    demote(c[0]);
    struct store_activation want = choose(fix_root(64, 1, 0));
    KVT_EQ(chosen.plan.feasibility, KVD_READY);
    KVT_TRUE(chosen.n == 1 && is_victim(c[0], false));
    carry_out(&want);
    fix_close(&f);
}

/* ---- against every prefix ---- */

struct listed {
    store_cont handle;
    uint32_t retention;
    uint64_t used;
};

static int by_order(const void *a, const void *b) {
    const struct listed *x = a, *y = b;
    if (x->retention != y->retention) return x->retention < y->retention ? -1 : 1;
    if (x->used != y->used) return x->used < y->used ? -1 : 1;
    return (uint32_t)x->handle.bits < (uint32_t)y->handle.bits ? -1 : 1;
}

static bool ready(struct store_activation want, const struct listed *list, uint32_t n) {
    static struct kvd_victim all[CONTS];
    struct kvd_plan plan;
    for (uint32_t i = 0; i < n; i++) all[i] = (struct kvd_victim){ .continuation.bits = list[i].handle.bits };
    want.victims = all;
    want.n_victims = n;
    return store_plan_activation(f.store, &want, &plan, NULL) == STORE_OK && plan.feasibility == KVD_READY;
}

static void random_store(uint64_t *random) {
    store_cont c[40];
    uint32_t n = 0;
    open_store(64, kvt_below(random, 2) ? 1 + kvt_below(random, 80) : 0);
    if (kvt_below(random, 2)) fix_activate(&f, fix_root(1 + kvt_below(random, 3000), 1, 0), NULL); /* it runs */
    while (n < 40) {
        uint32_t tokens = 1 + kvt_below(random, 600);
        if (fix_pool(&f, 0).available < (tokens + 63) / 64) break;
        bool fork = n && kvt_below(random, 2);
        store_cont from = fork ? c[kvt_below(random, n)] : (store_cont){ 0 };
        uint32_t at = fork ? fix_info(&f, from).frontier : 0;
        if (fork && at + 64 > 64 * 20) continue;
        if (fork && fix_info(&f, from).demoted) continue;
        c[n] = fork ? fork_of(from, 1 + kvt_below(random, at), at + 1 + kvt_below(random, 64), n + 1)
                    : fix_cont(&f, tokens, n + 1);
        if (!c[n].bits) break;
        retention(c[n], kvt_below(random, 3));
        n++;
        if (f.store->arena && kvt_below(random, 4) == 0 &&
            store_move_begin(f.store, c[n - 1], STORE_PLACE_HOST, &(store_move){ 0 }, NULL) == STORE_OK) {
            struct store_transition of = { true, 0 };
            for (uint32_t m = 0; m < MOVE_LIMIT; m++)
                if (f.store->moves[m].occupied) of.bits = (uint64_t)f.store->moves[m].generation << 32 | m;
            copy_all(of);
            KVT_OK(store_move_commit(f.store, (store_move){ of.bits }, NULL));
        }
    }
}

/* The choice is the shortest prefix, released or demoted, less some; and where it says that nothing would do, that is
 * true of all that there are. */
static void q_2_the_shortest_prefix(void) {
    uint64_t random = kvt_seed();
    uint32_t found = 0, none = 0;
    for (int round = 0; round < 300; round++) {
        struct listed list[CONTS];
        struct kvd_continuation_info info;
        uint32_t cursor = 0, n = 0;
        random_store(&random);
        while (store_next_cont(f.store, &cursor, &info)) {
            list[n++] = (struct listed){ store_cont_of(info.continuation), info.retention, info.used };
        }
        qsort(list, n, sizeof *list, by_order);
        bool from = n && kvt_below(&random, 2), keep = kvt_below(&random, 2);
        store_cont source = from ? list[kvt_below(&random, n)].handle : (store_cont){ 0 };
        uint32_t frontier = from ? fix_info(&f, source).frontier : 0;
        struct store_activation want =
            from ? fix_from(source, keep, frontier, frontier + 1 + kvt_below(&random, 3000), 1)
                 : fix_root(1 + kvt_below(&random, 4096), 1, 0);
        if (want.prompt_tokens > 4096) want.prompt_tokens = 4096;
        struct listed candidates[CONTS];
        uint32_t left = 0;
        for (uint32_t i = 0; i < n; i++)
            if (list[i].handle.bits != source.bits && !fix_info(&f, list[i].handle).demoted)
                candidates[left++] = list[i];
        want = choose(want);
        if (chosen.plan.feasibility != KVD_READY) {
            KVT_FALSE(ready(want, candidates, left));
            none++;
            fix_close(&f);
            continue;
        }
        found += chosen.n > 0;
        uint32_t shortest = 0;
        while (!ready(want, candidates, shortest) && shortest < left) shortest++;
        for (uint32_t i = 0; i < chosen.n; i++) { /* behind the prefix only what the arena needs: released */
            uint32_t at = 0;
            while (at < left && candidates[at].handle.bits != victims[i].continuation.bits) at++;
            KVT_TRUE(at < shortest || (at == left && !victims[i].demote));
        }
        carry_out(&want);
        fix_close(&f);
    }
    KVT_TRUE(found > 30);
    KVT_TRUE(none > 10);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(q_2_the_named_order),
                                             KVT_CASE(q_2_no_victims_where_it_fits),
                                             KVT_CASE(fit_1_more_victims_than_64),
                                             KVT_CASE(fit_1_in_vain),
                                             KVT_CASE(q_2_who_takes_no_part),
                                             KVT_CASE(act_8_demoted_as_far_as_the_arena_goes),
                                             KVT_CASE(fit_1_membership),
                                             KVT_CASE(q_2_the_shortest_prefix),
                                             { 0 } };
    return kvt_main("store choose", cases, argc, argv);
}
