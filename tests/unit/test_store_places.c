/* SPDX-License-Identifier: Apache-2.0
 *
 * The rules of places, one a case, and the worked example of last-reference credits: PAGE-3, PAGE-6, PAGE-7, PAGE-8,
 * INV-9, ACT-7, ACT-8, CAP-7, HOST-1, HOST-4.
 */
#include "store_fixture.h"

#define STRIDE 4096u

static struct fix f;

/* An arena of so many packed pages beside 32 device pages. */
static void open_arena(uint32_t pages) {
    struct store_config c = fix_config(GEOM_OFF);
    c.pool_pages[0] = 32;
    c.host_bytes = (uint64_t)pages * STRIDE;
    c.host_stride[0] = STRIDE;
    fix_open(&f, &c);
}

static uint32_t make_copies(struct store_transition of, bool tell) {
    struct store_copy copy;
    uint64_t cursor = 0;
    uint32_t n = 0;
    for (; store_next_copies(f.store, of, &cursor, &copy, 1); n++)
        if (tell && (copy.kind == STORE_COPY_PAGE_OUT || copy.kind == STORE_COPY_STATE_OUT))
            store_copied_out(f.store, copy.replica, copy.host + 1);
    return n;
}

static int move(store_cont cont, enum store_place place, bool tell) {
    store_move m;
    int code = store_move_begin(f.store, cont, place, &m, &f.refusal);
    if (code) return code;
    make_copies((struct store_transition){ true, m.bits }, tell);
    return store_move_commit(f.store, m, &f.refusal);
}

static struct kvd_stats stats(void) {
    struct kvd_stats s;
    store_get_stats(f.store, &s);
    return s;
}

static store_cont fork_of(store_cont from, uint32_t frontier) {
    struct store_activated got;
    store_seq seq = fix_activate(&f, fix_from(from, true, frontier, frontier, 1), &got);
    return fix_retain(&f, seq, frontier);
}

/* HOST-4: an arena of 8 pages holds 2; the last reference to one of them goes: a demotion of 7 pages fits, of 8 it does
 * not. */
static void host_4_last_reference_credits(void) {
    struct kvd_plan plan;
    open_arena(8);
    store_cont both = fix_cont(&f, 128, 1), first = fork_of(both, 64), seven = fix_cont(&f, 7 * 64, 2),
               eight = fix_cont(&f, 8 * 64, 3);
    KVT_EQ(move(both, STORE_PLACE_BOTH, true), STORE_OK);
    KVT_EQ(stats().host_pages[0], 2);
    store_cont recipe[2] = { both, seven };
    struct store_activation want = fix_root(64, 1, 0);
    fix_recipe(&want, recipe, 2, 2);
    KVT_OK(store_plan_activation(f.store, &want, &plan, &f.refusal));
    KVT_EQ(plan.arena.needed, 7 * STRIDE);
    KVT_EQ(plan.arena.short_by, 0);
    KVT_EQ(plan.feasibility, KVD_READY);
    recipe[1] = eight;
    fix_recipe(&want, recipe, 2, 2);
    KVT_OK(store_plan_activation(f.store, &want, &plan, &f.refusal));
    KVT_EQ(plan.arena.needed, 8 * STRIDE);
    KVT_EQ(plan.arena.available, 7 * STRIDE);
    KVT_EQ(plan.feasibility, KVD_BLOCKED);
    struct store_activated got;
    KVT_EQ(store_activate_begin(f.store, &want, &got, &f.refusal), STORE_E_SHORT);
    KVT_EQ(f.refusal.subject, STORE_S_ARENA);
    KVT_EQ(fix_info(&f, first).host_pages[0], 1); /* the shared page keeps its replica */
    fix_close(&f);
}

/* ---- an arena in pieces ---- */

#define UNIT 256u

static extent_id blockers[16];

/* Takes units [first, end) for nobody. */
static extent_id block(uint32_t first, uint32_t end) {
    struct extent_info extent = { .id = { 0 } };
    KVT_EQ(extent_allocate_at(f.store->arena, (uint64_t)first * UNIT, (uint64_t)(end - first) * UNIT, 9, &extent), 0);
    return extent.id;
}

static void unblock(extent_id *ids, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) KVT_EQ(extent_release(f.store->arena, ids[i]), 0);
}

/* Packed pages of four units in both pools, an image of six. A continuation of two pages whose first pages have older
 * replicas of 40 columns, in units [19, 23) and [30, 34). Free beside them: eight units, four, four, and six that the
 * older replica of Main touches. */
static store_cont in_pieces(void) {
    struct store_config c = fix_config(GEOM_MTP);
    c.has_state = true;
    c.state_slots = 4;
    c.host_bytes = 200 * UNIT;
    c.host_stride[0] = c.host_stride[1] = 4 * UNIT;
    c.host_state_stride = 6 * UNIT;
    fix_open(&f, &c);
    store_cont older = fix_cont(&f, 40, 1);
    extent_id first[4] = { block(0, 19), block(23, 30), block(34, 35), block(41, 200) };
    KVT_EQ(move(older, STORE_PLACE_BOTH, true), STORE_OK);
    store_seq seq = fix_activate(&f, fix_from(older, false, 40, 100, 1), NULL); /* the image goes */
    fix_fill(&f, seq, 100, 1);
    store_cont cont = fix_retain(&f, seq, 100);
    KVT_EQ(stats().host_pages[0] + stats().host_pages[1], 2);
    KVT_EQ(extent_offset(f.store->arena,
                         f.store->pool[0].pages[space_entry(f.store, &cont_find(f.store, cont)->space[0], 0)].host),
           19 * UNIT);
    unblock(first, 4);
    static const uint32_t taken[][2] = { { 8, 9 }, { 13, 14 }, { 18, 19 }, { 29, 30 }, { 34, 200 } };
    for (uint32_t i = 0; i < 5; i++) blockers[i] = block(taken[i][0], taken[i][1]);
    return cont;
}

/* HOST-4: what was found to fit is what is taken, though older replicas go meanwhile and other free runs come of it. */
static void host_4_older_replicas_go_afterwards(void) {
    for (uint32_t recipe = 0; recipe < 2; recipe++) {
        struct store_activated got;
        store_cont cont = in_pieces();
        if (recipe) {
            struct store_activation want = fix_root(64, 1, 0);
            fix_recipe(&want, &cont, 1, 1);
            KVT_OK(store_activate_begin(f.store, &want, &got, &f.refusal));
            make_copies((struct store_transition){ false, got.seq.bits }, true);
            KVT_OK(fix_commit(&f, got.seq));
        } else {
            KVT_EQ(move(cont, STORE_PLACE_HOST, true), STORE_OK);
        }
        KVT_TRUE(fix_info(&f, cont).demoted);
        KVT_EQ(stats().host_occupied - (1 + 1 + 1 + 1 + 166) * UNIT, (4 * 4 + 6) * UNIT);
        unblock(blockers, 5);
        fix_close(&f);
    }
}

/* CAP-7, HOST-1: the host is charged by packed pages, each page once however many hold it, and it gives no entitlement
 * on the device. */
static void cap_7_charged_by_packed_pages(void) {
    struct kvd_plan plan;
    open_arena(16);
    store_cont a = fix_cont(&f, 100, 1), b = fork_of(a, 64);
    KVT_EQ(move(a, STORE_PLACE_HOST, true), STORE_OK);
    KVT_EQ(stats().host_occupied, 2 * STRIDE);
    KVT_EQ(move(b, STORE_PLACE_HOST, true), STORE_OK); /* its page is there already */
    KVT_EQ(stats().host_occupied, 2 * STRIDE);
    KVT_EQ(fix_pool(&f, 0).capacity, 32);
    struct store_activation want = fix_root(513, 1, 0);
    KVT_EQ(store_plan_activation(f.store, &want, &plan, &f.refusal), STORE_E_RANGE); /* S is what it was */
    fix_close(&f);
}

/* PAGE-7, INV-9: a copy whose end nobody told is no replica; the source stays. */
static void page_7_nothing_untold_is_published(void) {
    open_arena(8);
    store_cont cont = fix_cont(&f, 192, 1);
    KVT_EQ(move(cont, STORE_PLACE_HOST, false), STORE_E_STATE);
    KVT_EQ(fix_info(&f, cont).host_pages[0], 0);
    KVT_EQ(fix_info(&f, cont).device_pages[0], 3);
    KVT_FALSE(fix_info(&f, cont).demoted);
    KVT_EQ(stats().host_occupied, 0);
    fix_close(&f);
}

/* PAGE-6, PAGE-3: a page lives on in the host alone; its descriptor goes with the last of all, and comes back as
 * another generation. */
static void page_6_host_only_then_recycled(void) {
    open_arena(8);
    store_cont cont = fix_cont(&f, 64, 1);
    uint32_t d = space_entry(f.store, &cont_find(f.store, cont)->space[0], 0);
    const struct page *page = &f.store->pool[0].pages[d];
    uint32_t generation = page->generation;
    uint64_t epoch = page->epoch;
    KVT_EQ(move(cont, STORE_PLACE_HOST, true), STORE_OK);
    KVT_EQ(page->device, KVD_NONE);
    KVT_EQ(page->generation, generation);
    KVT_EQ(page->host_epoch, epoch);
    KVT_EQ(fix_pool(&f, 0).available, 32);
    KVT_OK(store_release(f.store, cont, &f.refusal));
    KVT_EQ(page->generation, generation + 1);
    KVT_EQ(stats().host_occupied, 0);
    fix_close(&f);
}

/* PAGE-8: what is cut away takes the host replica of its page along; the pages before keep theirs. */
static void page_8_truncation_outdates_the_replica(void) {
    struct store_activated got;
    struct store_round_result r;
    open_arena(8);
    store_cont cont = fix_cont(&f, 192, 1);
    KVT_EQ(move(cont, STORE_PLACE_BOTH, true), STORE_OK);
    store_seq seq = fix_activate(&f, fix_from(cont, false, 192, 192, 10), &got);
    KVT_EQ(stats().host_pages[0], 3);
    KVT_EQ(fix_round(&f, seq, KVD_NONE, 150, KVD_NONE, KVD_NONE, &r), STORE_OK);
    KVT_EQ(stats().host_pages[0], 2);
    KVT_EQ(fix_round(&f, seq, 192, KVD_NONE, KVD_NONE, KVD_NONE, &r), STORE_OK);
    KVT_EQ(stats().host_pages[0], 2); /* as long as before, and other columns */
    fix_close(&f);
}

/* ACT-7: restored pages come out of the activation's own reservation: what the plan says is what goes from available,
 * and an abort gives it back. */
static void act_7_restores_are_the_activations_own(void) {
    struct kvd_plan plan;
    struct store_activated got;
    uint32_t lost;
    open_arena(8);
    store_cont cont = fix_cont(&f, 256, 1);
    KVT_EQ(move(cont, STORE_PLACE_HOST, true), STORE_OK);
    struct store_activation want = fix_from(cont, true, 256, 256, 65);
    KVT_OK(store_plan_activation(f.store, &want, &plan, &f.refusal));
    KVT_EQ(plan.restore_pages[0], 4);
    KVT_EQ(plan.pages[0].needed, 5);
    KVT_OK(store_activate_begin(f.store, &want, &got, &f.refusal));
    KVT_EQ(fix_pool(&f, 0).available, 27);
    KVT_EQ(make_copies((struct store_transition){ false, got.seq.bits }, true), 4);
    KVT_OK(store_activate_abort(f.store, got.seq, &lost, &f.refusal));
    fix_audit(&f);
    KVT_EQ(fix_pool(&f, 0).available, 32);
    KVT_TRUE(fix_info(&f, cont).demoted);
    fix_close(&f);
}

/* ACT-8: victims that share pages give them only together, released or demoted alike. */
static void act_8_shared_pages_go_with_the_last(void) {
    struct kvd_plan plan;
    open_arena(8);
    store_cont a = fix_cont(&f, 192, 1), b = fork_of(a, 128), recipe[2] = { a, b };
    struct store_activation want = fix_root(64, 1, 0);
    fix_recipe(&want, recipe, 1, 0);
    KVT_OK(store_plan_activation(f.store, &want, &plan, &f.refusal));
    KVT_EQ(plan.freed_pages[0], 1);
    for (uint64_t demote = 0; demote < 4; demote++) {
        fix_recipe(&want, recipe, 2, demote);
        KVT_OK(store_plan_activation(f.store, &want, &plan, &f.refusal));
        KVT_EQ(plan.freed_pages[0], 3);
        KVT_EQ(plan.demote_pages[0], demote & 1 ? 3 : demote & 2 ? 2 : 0);
    }
    fix_close(&f);
}

/* HOST-5: whatever changes the arena makes another revision, so that a recipe from before is refused: a truncation that
 * outdates replicas, and bytes that were only being read when their replica went. */
static void host_5_a_changed_arena_is_another_revision(void) {
    struct store_activated got;
    struct store_round_result r;
    struct store_copy copy;
    uint32_t released = 0;
    open_arena(8);
    store_cont cont = fix_cont(&f, 192, 1), other = fix_cont(&f, 64, 2);
    KVT_EQ(move(cont, STORE_PLACE_BOTH, true), STORE_OK);
    store_seq seq = fix_activate(&f, fix_from(cont, false, 192, 192, 10), &got);
    struct store_activation want = fix_root(64, 1, 0);
    fix_recipe(&want, &other, 1, 1);
    want.revision = store_revision(f.store);
    KVT_EQ(fix_round(&f, seq, KVD_NONE, 150, KVD_NONE, KVD_NONE, &r), STORE_OK);
    KVT_EQ(store_activate_begin(f.store, &want, &got, &f.refusal), STORE_E_REVISION);
    want.revision = store_revision(f.store);
    KVT_EQ(fix_round(&f, seq, 160, KVD_NONE, KVD_NONE, KVD_NONE, &r), STORE_OK);
    KVT_EQ(store_revision(f.store), want.revision);
    KVT_EQ(move(other, STORE_PLACE_BOTH, true), STORE_OK);
    while (store_scrub_begin(f.store, &copy) &&
           (uint32_t)copy.replica != space_entry(f.store, &cont_find(f.store, other)->space[0], 0))
        (void)store_scrub_end(f.store, true, &released);
    KVT_OK(store_release(f.store, other, &f.refusal));
    want.revision = store_revision(f.store);
    uint64_t occupied = stats().host_occupied;
    KVT_FALSE(store_scrub_end(f.store, true, &released));
    KVT_EQ(stats().host_occupied, occupied - STRIDE);
    KVT_TRUE(store_revision(f.store) != want.revision);
    fix_close(&f);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(host_4_last_reference_credits),
                                             KVT_CASE(host_4_older_replicas_go_afterwards),
                                             KVT_CASE(cap_7_charged_by_packed_pages),
                                             KVT_CASE(page_7_nothing_untold_is_published),
                                             KVT_CASE(page_6_host_only_then_recycled),
                                             KVT_CASE(page_8_truncation_outdates_the_replica),
                                             KVT_CASE(act_7_restores_are_the_activations_own),
                                             KVT_CASE(act_8_shared_pages_go_with_the_last),
                                             KVT_CASE(host_5_a_changed_arena_is_another_revision),
                                             { 0 } };
    return kvt_main("places", cases, argc, argv);
}
