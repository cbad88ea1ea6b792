/* SPDX-License-Identifier: Apache-2.0
 *
 * The round boundary (SPACE-4..7, PAGE-8): commit, truncate, trim, lease growth and mapping of one sequence in all its
 * pools, or nothing. Each pool is first worked out on paper; only then anything changes.
 *
 * Where no step of lease growth finds room, the last one takes it from the item's list (FIT-4), one after the other,
 * until what they give jointly is enough. What gives nothing stays.
 */
#include "store_internal.h"

#include <string.h>

struct paper {
    uint32_t committed; /* after commit and truncate */
    uint32_t base;      /* of a window: the first block that is kept */
    uint32_t count;     /* membership after the trim */
    uint32_t ensure;    /* pages asked for */
    uint32_t entitlement;
    uint32_t mapped; /* membership at the end */
    bool bounded;
};

/* Who gives way for the growth of one item, as far as it is worked out. */
struct room {
    const struct store_round_item *item;
    struct victim *victims; /* the store's scratch */
    uint32_t n, next;       /* taken; the next one of the list */
    uint32_t freed[KVD_MAX_POOLS], chunks, stamp;
};

/* Pages that a move in flight still copies stay mapped: they could not come back to the reservation now. */
static uint32_t trim_count(const struct store *store, uint32_t p, const struct space *space, uint32_t count) {
    uint32_t n = space->count;
    if (!store->pool[p].tier || store->moves_used == 0 || MUTANT(pinned_page_is_trimmed)) return count;
    while (n > count && store->pool[p].pages[space_entry(store, space, n - 1)].pins == 0) n--;
    return n;
}

static int check_frontiers(const struct store *store, const struct seq *seq, const struct kvd_round_pool *want,
                           uint32_t p, struct paper *paper, struct store_refusal *refusal) {
    const struct space *space = &seq->space[p];
    uint64_t mapped = min_u64((uint64_t)space->count * KVD_PAGE_TOKENS, store->config.max_context);
    paper->committed = space->committed;
    if (want->ask & KVD_ROUND_COMMIT) {
        if (want->commit < space->committed || want->commit > mapped)
            return store_refuse(refusal, STORE_E_RANGE, STORE_S_COMMIT, p, want->commit, space->committed, mapped);
        paper->committed = want->commit;
    }
    if (want->ask & KVD_ROUND_TRUNCATE) {
        if (want->truncate > paper->committed)
            return store_refuse(refusal, STORE_E_RANGE, STORE_S_TRUNCATE, p, want->truncate, paper->committed,
                                paper->committed);
        uint32_t protected = seq_protected(store, seq, p);
        if (want->truncate < protected)
            return store_refuse(refusal, STORE_E_PROTECTED, STORE_S_TRUNCATE, p, want->truncate, protected,
                                paper->committed);
        if (window_first(store, p, want->truncate) < space->base) /* GRP-2: what it would read is not there any more */
            return store_refuse(refusal, STORE_E_RANGE, STORE_S_TRUNCATE, p, want->truncate,
                                window_lowest(store, p, space->base), paper->committed);
        paper->committed = want->truncate;
    }
    if (store->window_pages[p]) paper->base = max_u32(space->base, window_kept(store, p, paper->committed));
    paper->count = space->count;
    if (want->ask & KVD_ROUND_KEEP)
        paper->count =
            trim_count(store, p, space, min_u32(space->count, pages_of(max_u32(paper->committed, want->keep))));
    return STORE_OK;
}

static int check_ensure(const struct store *store, const struct seq *seq, const struct kvd_round_pool *want, uint32_t p,
                        struct paper *paper, struct store_refusal *refusal) {
    const struct space *space = &seq->space[p];
    uint32_t limit = paper->entitlement = space_entitlement(space);
    paper->ensure = want->ask & KVD_ROUND_ENSURE ? pages_of(want->ensure) : 0;
    if (store->window_pages[p])
        limit = paper->entitlement = window_end(store, p, paper->base, seq_reach(store, seq, p));
    else if (store->config.lease_growth) limit = max_u32(limit, entitle_ceiling(store, p, seq->ceiling));
    if (paper->ensure > limit)
        return store_refuse(refusal, STORE_E_ENTITLEMENT, STORE_S_ENSURE, p, paper->ensure, space->count, limit);
    return STORE_OK;
}

static int check_item(const struct store *store, const struct seq *seq, const struct store_round_item *item,
                      struct paper *paper, struct store_refusal *refusal) {
    if (item->ask & KVD_ROUND_STATE) {
        uint64_t mapped = min_u64((uint64_t)seq->space[0].count * KVD_PAGE_TOKENS, store->config.max_context);
        if (!store->config.has_state)
            return store_refuse(refusal, STORE_E_ARGUMENT, STORE_S_STATE_FRONTIER, KVD_NONE, item->state_frontier, 0,
                                0);
        if (item->state_frontier > mapped)
            return store_refuse(refusal, STORE_E_RANGE, STORE_S_STATE_FRONTIER, KVD_NONE, item->state_frontier,
                                seq->space[0].committed, mapped);
    }
    for (uint32_t p = 0; p < store->n_pools; p++) {
        int rc = check_frontiers(store, seq, &item->pool[p], p, &paper[p], refusal);
        if (rc == STORE_OK) rc = check_ensure(store, seq, &item->pool[p], p, &paper[p], refusal);
        if (rc) return rc;
    }
    return STORE_OK;
}

/* ---- lease growth ---- */

static void mark_victim(struct store *store, struct room *room, const struct victim *victim) {
    victim->cont->stamp = room->stamp;
    for (uint32_t p = 0; p < store->n_pools; p++) {
        const struct joint how = { p, victim_first(victim), room->stamp, !victim->demote, victim->cont->demoted };
        room->freed[p] += joint_mark(store, &victim->cont->space[p], &how);
        if (!victim->demote) room->chunks += victim_chunks(victim, p);
    }
}

/* Back to the first n of those that were taken. */
static void keep_victims(struct store *store, struct room *room, uint32_t n) {
    room->stamp = store_next_stamp(store);
    room->n = n;
    room->chunks = 0;
    memset(room->freed, 0, sizeof room->freed);
    for (uint32_t i = 0; i < n; i++) mark_victim(store, room, &room->victims[i]);
}

/* The next one of the list that may go, and that is not taken already. */
static bool take_victim(struct store *store, struct room *room) {
    if (!room->stamp) room->stamp = store_next_stamp(store);
    while (room->next < room->item->n_growth && room->n < KVD_MAX_VICTIMS) {
        struct victim *victim = &room->victims[room->n];
        if (!victim_for_growth(store, &room->item->growth[room->next++], victim)) continue;
        if (victim->cont->stamp == room->stamp) continue;
        mark_victim(store, room, victim);
        room->n++;
        return true;
    }
    return false;
}

static bool has_room(const struct store *store, const struct room *room, uint32_t p, uint32_t pages, uint32_t chunks) {
    if (pages > pool_available(&store->pool[p]) + room->freed[p]) return false;
    return chunks <= chunks_available(&store->chunks) + room->chunks || MUTANT(growth_takes_any_membership);
}

/* asks: the list gives what lacks. */
static bool grow_to(struct store *store, uint32_t p, struct paper *paper, uint32_t target, uint32_t *chunks,
                    struct room *room, bool asks) {
    uint32_t more = chunks_for(target) - chunks_for(paper->entitlement), pages = target - paper->entitlement,
             taken = room->n, next = room->next;
    bool ok = has_room(store, room, p, pages, *chunks + more);
    while ((!ok || MUTANT(growth_asks_the_list_first)) && asks && take_victim(store, room))
        ok = has_room(store, room, p, pages, *chunks + more);
    if (ok) ok = store_try(store);
    if (!ok) {
        if (taken < room->n) keep_victims(store, room, taken);
        room->next = next;
        return false;
    }
    *chunks += more;
    paper->entitlement = target;
    return true;
}

static void grow_lease(struct store *store, const struct seq *seq, uint32_t p, struct paper *paper, uint32_t *chunks,
                       struct room *room) {
    uint32_t ceiling = entitle_ceiling(store, p, seq->ceiling), cushion = entitle_cushion(store);
    uint64_t thin = max_u64(min_u64((uint64_t)pages_of(paper->committed) + cushion, ceiling), paper->ensure);
    if (thin <= paper->entitlement) return;
    for (uint32_t step = MUTANT(growth_asks_the_list_first) ? 3 : 0; step < 4; step++) {
        uint32_t rung = min_u32(step, 2); /* the last one once more, with the list */
        uint64_t tokens = min_u64(store->config.max_context, (uint64_t)paper->committed + entitle_rung(store, rung));
        uint64_t target = min_u64(ceiling, max_u64((uint64_t)pages_of(tokens) + cushion, paper->ensure));
        if (step == 3 && room->item->n_growth == 0) break;
        if (grow_to(store, p, paper, (uint32_t)max_u64(target, paper->entitlement), chunks, room, step == 3)) return;
    }
    paper->bounded = true;
}

/* With the marks of those that were taken: does anything go with it? */
static bool frees_pages(const struct store *store, const struct room *room, const struct victim *victim) {
    uint32_t n;
    for (uint32_t p = 0; p < store->n_pools; p++) {
        const struct space *space = &victim->cont->space[p];
        for (uint32_t i = max_u32(victim_first(victim), space->base); i < space->count; i += n) {
            const uint32_t *run = space_run(store, space, i, &n);
            for (uint32_t k = 0; k < n; k++)
                if (store->pool[p].pages[run[k]].stamp == room->stamp && joint_frees(store, p, run[k])) return true;
        }
    }
    return false;
}

/* They go, but for those that give nothing that lacks. chunks: what growth takes of the membership. Returns how many
 * went. */
static uint32_t release_victims(struct store *store, struct room *room, uint32_t chunks) {
    bool all = chunks > chunks_available(&store->chunks);
    uint32_t gone = 0;
    for (uint32_t i = 0; i < room->n; i++)
        if (all || MUTANT(useless_victim_goes) || frees_pages(store, room, &room->victims[i]))
            room->victims[gone++] = room->victims[i];
    for (uint32_t i = 0; i < gone; i++) {
        struct victim *victim = &room->victims[i];
        room->item->gone[i] =
            (struct kvd_victim){ .continuation.bits = cont_handle(store, victim->cont).bits,
                                 .demote = victim->demote,
                                 .frontier = victim->demote ? victim->cont->frontier : victim->frontier };
        victim_give_way(store, victim);
    }
    return gone;
}

static int plan_mapping(struct store *store, uint32_t p, bool ahead, struct paper *paper,
                        struct store_refusal *refusal) {
    bool asks = paper->ensure > paper->count || (ahead && paper->ensure && !MUTANT(next_window_comes_late));
    paper->mapped = paper->count;
    if (!asks) return STORE_OK;
    uint64_t window = min_u64((uint64_t)paper->ensure + store->config.map_ahead, paper->entitlement);
    paper->mapped = max_u32(paper->count, (uint32_t)window);
    if (paper->mapped <= paper->count || store_try(store)) return STORE_OK;
    return store_refuse(refusal, STORE_E_SHORT, STORE_S_PAGES, p, paper->mapped - paper->count, 0, paper->entitlement);
}

/* ---- applying: cannot fail ---- */

static void commit_pool(struct store *store, struct seq *seq, const struct kvd_round_pool *want, uint32_t p) {
    struct space *space = &seq->space[p];
    if (p == 0 && want->ask & KVD_ROUND_COMMIT) store->lives.committed_tokens += want->commit - space->committed;
    if (want->ask & KVD_ROUND_COMMIT) space_commit(store, p, space, want->commit);
    if (want->ask & KVD_ROUND_TRUNCATE) space_commit(store, p, space, want->truncate);
    if (p == 0) seq->named = min_u32(seq->named, space->committed / KVD_PAGE_TOKENS);
}

static bool grow_space(struct store *store, uint32_t p, struct space *space, uint32_t entitlement) {
    uint32_t entitled = space_entitlement(space);
    store->pool[p].reserved += entitlement - entitled;
    space->reserved += entitlement - entitled;
    store->chunks.reserved += chunks_for(entitlement) - chunks_for(entitled);
    return entitlement != entitled;
}

/* True: not only its own reservation changed. */
static bool apply_pool(struct store *store, struct seq *seq, uint32_t p, const struct paper *paper,
                       struct kvd_pool_view *ret_view) {
    struct space *space = &seq->space[p];
    int32_t *row = row_entries(store, p, seq->row[p]);
    uint32_t before = space->count, first = paper->base > space->base ? space->base : paper->count;
    bool changed = paper->base > space->base && window_pass(store, p, space, paper->base, row);
    if (paper->count < before) space_drop(store, p, space, paper->count, true, true, row);
    if (paper->mapped > space->count) space_map(store, p, space, paper->mapped - space->count, row);
    space->shared = space_shared(store, p, space);
    seq_view(store, seq, p, 0, ret_view);
    ret_view->slice_count = max_u32(before, space->count) - first;
    if (ret_view->slice_count) ret_view->slice_begin = first;
    return changed;
}

/* What is passed goes from the directory before it goes from the store: the record of the new frontier needs it no
 * more. */
static void commit_pools(struct store *store, struct seq *seq, const struct store_round_item *item,
                         const struct paper *paper) {
    bool passes = false;
    for (uint32_t p = 0; p < store->n_pools; p++) {
        commit_pool(store, seq, &item->pool[p], p);
        passes |= paper[p].base > seq->space[p].base;
    }
    if (passes) record_seq(store, seq);
}

/* GRP-5: before what is behind the windows goes, and after all that the item itself takes has been taken. */
static bool take_checkpoints(struct store *store, struct seq *seq, const struct store_round_item *item,
                             struct store_round_result *result) {
    uint32_t committed = seq->space[0].committed;
    for (uint32_t p = 1; p < store->n_pools; p++) committed = min_u32(committed, seq->space[p].committed);
    return seq->roll_next <= committed && roll_pass(store, seq, committed, item, result);
}

/* Those of its own that lie behind where it is cut go with what is cut. */
static bool cut_checkpoints(struct store *store, struct seq *seq, const struct store_round_item *item) {
    uint32_t frontier = KVD_NONE;
    for (uint32_t p = 0; p < store->n_pools; p++)
        if (item->pool[p].ask & KVD_ROUND_TRUNCATE) frontier = min_u32(frontier, item->pool[p].truncate);
    return frontier != KVD_NONE && roll_cut(store, seq, frontier);
}

static void report_bounds(const struct store *store, const struct seq *seq, const struct paper *paper,
                          struct store_round_result *result) {
    for (uint32_t p = 0; p < store->n_pools; p++) {
        uint32_t frontier = (uint32_t)min_u64((uint64_t)paper[p].entitlement * KVD_PAGE_TOKENS, seq->ceiling);
        if (!paper[p].bounded || (result->bounded && frontier >= result->bounded_frontier)) continue;
        result->bounded = true;
        result->bounded_pool = p;
        result->bounded_frontier = frontier;
    }
}

static uint32_t packed_pages(const struct store *store) {
    uint32_t pages = 0;
    for (uint32_t p = 0; p < store->n_pools; p++) pages += store->pool[p].host_pages;
    return pages;
}

static int round_item(struct store *store, const struct store_round_item *item, struct store_round_result *result) {
    struct seq *seq = NULL;
    struct paper paper[KVD_MAX_POOLS] = { 0 };
    struct room room = { .item = item, .victims = store->victims };
    uint32_t chunks = 0;
    bool grew = false;
    int rc = seq_drive(store, item->seq, item->lease, &seq, &result->refusal);
    if (rc == STORE_OK && seq->lends)
        rc = store_refuse(&result->refusal, STORE_E_STATE, STORE_S_LENT, KVD_NONE, item->seq.bits, 1, 0);
    if (rc == STORE_OK) rc = check_item(store, seq, item, paper, &result->refusal);
    for (uint32_t p = 0; p < store->n_pools && rc == STORE_OK && store->config.lease_growth; p++)
        if (!store->window_pages[p]) grow_lease(store, seq, p, &paper[p], &chunks, &room);
    for (uint32_t p = 0; p < store->n_pools && rc == STORE_OK; p++)
        rc = plan_mapping(store, p, item->ahead, &paper[p], &result->refusal);
    if (rc) return rc;
    bool shortens = false, commits = false;
    uint32_t packed = packed_pages(store), committed[KVD_MAX_POOLS], before[KVD_MAX_POOLS];
    if (room.n) result->n_gone = release_victims(store, &room, chunks);
    for (uint32_t p = 0; p < store->n_pools; p++) {
        committed[p] = paper[p].committed;
        before[p] = min_u32(committed[p], seq->space[p].committed);
        shortens |= paper[p].committed < seq->space[p].committed || item->pool[p].ask & KVD_ROUND_TRUNCATE;
        commits |= item->pool[p].ask & KVD_ROUND_COMMIT;
    }
    bool rolls = seq->roll_every || seq->roll_prompt;
    if (shortens && rolls) grew |= cut_checkpoints(store, seq, item);
    if (shortens && !MUTANT(directory_late_truncation)) /* what goes, goes from the directory first */
        record_seq_at(store, seq, before);
    if (shortens) /* while the pages and names that go are there */
        live_set(store, seq, min_u32(live_reach(store, seq, committed), live_now(store, seq)), NULL);
    commit_pools(store, seq, item, paper);
    for (uint32_t p = 0; p < store->n_pools; p++)
        if (!store->window_pages[p]) grew |= grow_space(store, p, &seq->space[p], paper[p].entitlement);
    if (rolls) grew |= take_checkpoints(store, seq, item, result);
    for (uint32_t p = 0; p < store->n_pools; p++) {
        grew |= apply_pool(store, seq, p, &paper[p], &result->pool[p]);
        if (item->pool[p].ask & KVD_ROUND_COMMIT) seq_unpin_source(store, seq);
    }
    if (item->ask & KVD_ROUND_STATE) seq->state_frontier = item->state_frontier;
    else if (item->pool[0].ask & KVD_ROUND_TRUNCATE && seq->state_frontier != KVD_NONE &&
             seq->state_frontier > item->pool[0].truncate)
        seq->state_frontier = KVD_NONE;               /* the image is of columns that are gone */
    if (commits || shortens) live_update(store, seq); /* another pool may have come as far as the names */
    if (commits || shortens || item->ask & KVD_ROUND_STATE) record_seq(store, seq);
    report_bounds(store, seq, paper, result);
    store_changed(store, grew || packed_pages(store) != packed);
    return STORE_OK;
}

void store_round(struct store *store, const struct store_round_item *items, uint32_t n,
                 struct store_round_result *results) {
    for (uint32_t i = 0; i < n; i++) {
        memset(&results[i], 0, sizeof results[i]);
        results[i].refusal.pool = KVD_NONE;
        round_item(store, &items[i], &results[i]);
    }
}
