/* SPDX-License-Identifier: Apache-2.0
 *
 * A scheduler's operations: activation with its plan, commit and abort, and what is done to continuations.
 */
#include <string.h>

#include "driver.h"
#include "kvt.h"

/* ---- a wish ---- */

struct wish {
    struct store_activation want;
    struct kvd_victim victims[MODEL_CONTS];
    struct store_activated got;
};

static void wish_live(struct run *r, struct store_activation *w, int k) {
    uint32_t pages = model_live(&r->model, k);
    w->from = r->model.seq[k].live;
    w->keep = chance(r, 93);
    w->frontier = (chance(r, 50) ? pages : between(r, 1, pages)) * KVD_PAGE_TOKENS;
    if (chance(r, 6)) w->frontier = below(r, (pages + 1) * KVD_PAGE_TOKENS + 2);
}

static void wish_source(struct run *r, struct store_activation *w) {
    int k = chance(r, 20) ? any_live(r) : -1;
    if (k >= 0) {
        wish_live(r, w, k);
        return;
    }
    int c = chance(r, 30) ? -1 : any_cont(r, !chance(r, 3));
    if (c < 0) {
        if (chance(r, 2)) w->frontier = between(r, 1, 200);
        if (chance(r, 2)) w->from = some_cont(r, -1);
        return;
    }
    uint32_t f = r->model.cont[c].frontier;
    w->from = some_cont(r, c);
    w->keep = chance(r, 55);
    w->frontier = chance(r, r->model.config.has_state ? 92 : 45) ? f : between(r, 1, f);
    if (chance(r, 20) && w->frontier > 64) w->frontier = w->frontier / 64 * 64;
    if (chance(r, 2)) w->frontier = below(r, f + 70);
}

void draw_cut(struct run *r, struct kvd_victim *victim) {
    int c = model_find_cont(&r->model, store_cont_of(victim->continuation));
    uint32_t f = c < 0 ? 0 : r->model.cont[c].frontier;
    if (!chance(r, 30) || f < 2 || (r->model.config.has_state && !chance(r, 3))) return;
    victim->frontier = f > KVD_PAGE_TOKENS ? between(r, 1, (f - 1) / KVD_PAGE_TOKENS) * KVD_PAGE_TOKENS : f - 1;
    if (chance(r, 10)) victim->frontier = between(r, 1, f + 5);
}

static void wish_victims(struct run *r, struct wish *wish) {
    struct store_activation *w = &wish->want;
    w->victims = wish->victims;
    if (!chance(r, 35)) return;
    uint32_t n = 1 + below(r, chance(r, 20) ? 6 : 3);
    for (uint32_t i = 0; i < n; i++) {
        int c = any_cont(r, !chance(r, 2)), live = chance(r, 2) ? any_live(r) : -1;
        bool again = false;
        if (live >= 0) wish->victims[w->n_victims++].continuation.bits = r->model.seq[live].live.bits;
        for (uint32_t j = 0; c >= 0 && j < w->n_victims; j++)
            again |= wish->victims[j].continuation.bits == r->model.cont[c].handle.bits;
        bool source = c >= 0 && w->from.bits == r->model.cont[c].handle.bits;
        if ((again || source || c < 0) && !chance(r, 4)) continue;
        wish->victims[w->n_victims].continuation.bits = some_cont(r, c).bits;
        draw_cut(r, &wish->victims[w->n_victims++]);
    }
    if (chance(r, 1)) w->n_victims = KVD_MAX_VICTIMS + 1;
}

/* As a scheduler would: while pages or slots lack, one more victim. */
static void make_room(struct run *r, struct wish *wish) {
    struct model_plan pl;
    for (int i = 0; i < 6; i++) {
        model_plan_activation(&r->model, &wish->want, 0, &pl);
        int c = any_cont(r, true);
        if (pl.hard.n || pl.never.n || !pl.lacking.n || c < 0 || c == pl.from || r->model.cont[c].claimed_by >= 0 ||
            r->model.cont[c].pins)
            return;
        bool again = false;
        for (uint32_t v = 0; v < pl.n_victims; v++) again |= pl.victims[v] == c;
        if (again) continue;
        wish->victims[wish->want.n_victims].continuation.bits = r->model.cont[c].handle.bits;
        draw_cut(r, &wish->victims[wish->want.n_victims++]);
    }
}

static void make_wish(struct run *r, struct wish *wish) {
    struct store_activation *w = &wish->want;
    uint32_t S = r->model.config.max_context;
    memset(wish, 0, sizeof *wish);
    wish_source(r, w);
    wish_victims(r, wish);
    int source = model_find_cont(&r->model, w->from), live = model_find_live(&r->model, w->from);
    uint8_t domain = (uint8_t)below(r, 3);
    if (source >= 0 && chance(r, 95)) domain = r->model.cont[source].domain;
    if (live >= 0 && chance(r, 95)) domain = r->model.seq[live].domain;
    w->root = model_root(domain);
    w->lease = chance(r, 1) ? 0 : 1 + below(r, 5);
    w->prompt_tokens = between(r, w->frontier ? w->frontier : 1, chance(r, 15) ? S : w->frontier + 200 * r->stride);
    if (w->prompt_tokens > S && !chance(r, 5)) w->prompt_tokens = S;
    if (chance(r, 2)) w->prompt_tokens = below(r, S + 100);
    w->max_output_tokens = chance(r, 1) ? 0 : between(r, 1, chance(r, 10) ? 2 * S : 200 * r->stride);
    if (chance(r, 1)) w->max_output_tokens = UINT32_MAX;
    if (w->prompt_tokens - 1 < S && w->max_output_tokens > S - w->prompt_tokens + 1 && !chance(r, 5))
        w->max_output_tokens = S - w->prompt_tokens + 1; /* the most that fits */
    for (uint32_t p = 0; p < r->model.n_pools; p++) {
        if (chance(r, 30)) continue;
        w->ensure[p] = between(r, w->frontier, w->prompt_tokens);
        if (model_has_window(&r->model, p) && chance(r, 90)) {
            uint32_t end = (model_first(&r->model, p, w->frontier) + model_bound(&r->model, p)) * KVD_PAGE_TOKENS;
            if (w->ensure[p] > end) w->ensure[p] = end;
        }
        if (chance(r, 5)) w->ensure[p] = below(r, S + 200);
    }
    if (chance(r, 40)) w->checkpoint_every = between(r, 1, 3) * KVD_PAGE_TOKENS + chance(r, 1);
    w->checkpoint_prompt = chance(r, 40);
    if (chance(r, 60)) make_room(r, wish);
    if (chance(r, 25)) w->revision = chance(r, 90) ? store_revision(r->store) : store_revision(r->store) - 1;
    note(r, " from %d (running %d) keep %d F %u prompt %u out %u ensure %u,%u victims %u rev %d", source, live, w->keep,
         w->frontier, w->prompt_tokens, w->max_output_tokens, w->ensure[0], w->ensure[1], w->n_victims,
         w->revision != 0);
}

/* ---- plan ---- */

#define SAME(got, want, subject)                                                                                       \
    do {                                                                                                               \
        if ((uint64_t)(got) != (uint64_t)(want))                                                                       \
            fail(r, "%s, pool %u: %s is %llu, the model says %llu", subject, p, #got, (unsigned long long)(got),       \
                 (unsigned long long)(want));                                                                          \
    } while (0)

static uint64_t lack(uint64_t needed, uint64_t available) { return needed > available ? needed - available : 0; }

static void plan_numbers(struct run *r, const struct kvd_plan *got, const struct model_plan *pl) {
    for (uint32_t p = 0; p < r->model.n_pools; p++) {
        SAME(got->entitlement[p], pl->entitlement[p], "plan");
        SAME(got->shared_pages[p], pl->shared[p] - pl->base[p], "plan");
        SAME(got->copied_columns[p], pl->copied[p], "plan");
        SAME(got->freed_pages[p], pl->freed[p], "plan");
        SAME(got->pages[p].needed, pl->needed[p], "plan");
        SAME(got->pages[p].available, pl->available[p], "plan");
        SAME(got->pages[p].short_by, lack(pl->needed[p], pl->available[p]), "plan");
    }
    uint32_t p = 0, free_seqs = r->model.config.max_concurrency - model_seqs_used(&r->model);
    SAME(got->rows.short_by, lack(1, free_seqs), "plan");
    SAME(got->sequences.short_by, lack(1, free_seqs), "plan");
    SAME(got->rows.available, free_seqs, "plan");
    SAME(got->state_slots.needed, pl->slots_needed, "plan");
    SAME(got->state_slots.short_by, lack(pl->slots_needed, pl->slots_available), "plan");
    SAME(got->continuations.needed, pl->conts_needed, "plan");
    SAME(got->continuations.available, pl->conts_available, "plan");
    SAME(got->membership.short_by, lack(got->membership.needed, got->membership.available), "plan");
}

/* Returns whether the store's plan lacks membership room, the one thing that the model does not count. */
static bool check_plan(struct run *r, const struct wish *wish, const struct model_plan *pl,
                       enum kvd_feasibility *ret_answer) {
    struct kvd_plan got;
    struct store_refusal refusal = { 0 };
    memset(&got, 0xEE, sizeof got);
    int code = store_plan_activation(r->store, &wish->want, &got, &refusal);
    *ret_answer = KVD_BLOCKED;
    if (!agreed(r, "plan", code, &refusal, &pl->hard)) return false;
    plan_numbers(r, &got, pl);
    bool room = got.membership.short_by == 0;
    enum kvd_feasibility want = pl->never.n ? KVD_INFEASIBLE : pl->lacking.n || !room ? KVD_BLOCKED : KVD_READY;
    if (want == KVD_READY && got.feasibility == KVD_BLOCKED && r->model.config.membership_entries)
        room = false; /* room right now */
    else if (got.feasibility != want)
        fail(r, "plan: feasibility %d, the model says %d", (int)got.feasibility, (int)want);
    if (got.revision != store_revision(r->store)) fail(r, "plan: another revision");
    if (!room && r->model.config.membership_entries == 0) fail(r, "the default membership room starves an activation");
    *ret_answer = got.feasibility;
    return !room;
}

void op_plan(struct run *r) {
    struct wish wish;
    struct model_plan pl;
    enum kvd_feasibility answer;
    make_wish(r, &wish);
    model_plan_activation(&r->model, &wish.want, store_revision(r->store), &pl);
    check_plan(r, &wish, &pl, &answer);
}

/* ---- begin ---- */

static int attempt_begin(struct run *r, void *context, struct store_refusal *refusal) {
    struct wish *wish = context;
    return store_activate_begin(r->store, &wish->want, &wish->got, refusal);
}

static void join(struct reasons *to, const struct reasons *from) {
    for (uint32_t i = 0; i < from->n && to->n < MODEL_REASONS; i++) to->list[to->n++] = from->list[i];
}

/* Victims go at begin only where a tail copy had no free page (or no membership room). */
static bool victims_gone(struct run *r, const struct model_plan *pl) {
    struct kvd_continuation_info info;
    struct store_refusal refusal;
    uint32_t gone = 0, n = pl->n_victims;
    for (uint32_t v = 0; v < n; v++)
        gone += store_cont_look(r->store, r->model.cont[pl->victims[v]].handle, &info, &refusal) != STORE_OK ||
                info.frontier == pl->cut[v];
    if (gone == 0) return false;
    if (gone != n) fail(r, "begin released %u of %u victims", gone, n);
    bool needed = r->model.config.membership_entries != 0;
    for (uint32_t p = 0; p < r->model.n_pools; p++) needed |= pl->takes_victims_now[p];
    if (!needed) fail(r, "begin released the victims without need");
    for (uint32_t v = 0; v < n; v++)
        if (pl->cut[v] == 0) bury_cont(r, r->model.cont[pl->victims[v]].handle);
    return true;
}

static void check_copies(struct run *r, const struct model_plan *pl, int k, const struct store_activated *got) {
    struct worker *worker = &r->worker[k];
    uint32_t n = 0;
    for (uint32_t p = 0; p < r->model.n_pools; p++) {
        uint32_t block = r->model.seq[k].sp.committed[p] / KVD_PAGE_TOKENS;
        if (!pl->copied[p]) continue;
        bool found = false;
        for (uint32_t i = 0; i < got->n_copies && i < STORE_MAX_COPIES; i++) {
            const struct store_copy *c = &got->copies[i];
            found |= c->kind != STORE_COPY_STATE && c->pool == p && c->columns == pl->copied[p] &&
                     c->dst == r->model.seq[k].sp.page[p][block] && c->src == r->model.cont[pl->from].sp.page[p][block];
        }
        if (!found) fail(r, "pool %u: no copy of the %u columns of the tail", p, pl->copied[p]);
        n++;
        r->copies++;
        r->moved_tails += !r->model.seq[k].keep;
    }
    if (got->n_copies != n) fail(r, "%u copies, the model says %u", got->n_copies, n);
    worker->n_copies = n;
    memcpy(worker->copies, got->copies, sizeof worker->copies);
}

static void check_begin_view(struct run *r, const struct model_plan *pl, const struct model_seq *s,
                             const struct store_activated *got, uint32_t p) {
    const struct kvd_pool_view *v = &got->pool[p];
    SAME(v->row, s->row[p], "begin");
    SAME(v->membership, pl->map[p], "begin");
    SAME(v->membership, s->sp.n[p], "begin");
    SAME(v->entitlement, pl->entitlement[p], "begin");
    SAME(v->committed, s->sp.committed[p], "begin");
    SAME(v->slice_begin, 0, "begin"); /* ROW-3: the whole membership at once */
    SAME(v->slice_count, s->hidden ? 0 : pl->map[p], "begin");
}

static void begun(struct run *r, struct wish *wish, struct model_plan *pl) {
    uint32_t n[POOLS] = { 0 };
    bool gone = victims_gone(r, pl);
    int victims[MODEL_CONTS];
    memcpy(victims, pl->victims, sizeof victims);
    read_pages(r, wish->got.seq, (store_cont){ 0 }, n);
    int k = model_begin(&r->model, &wish->want, pl, &wish->got, gone, run_ids, n);
    struct model_seq *s = &r->model.seq[k];
    struct worker *worker = &r->worker[k];
    memset(worker, 0, sizeof *worker);
    worker->victims_lost = gone ? pl->n_victims : 0;
    for (uint32_t p = 0; p < r->model.n_pools; p++) {
        check_begin_view(r, pl, s, &wish->got, p);
        worker->slice[p] = wish->got.pool[p];
        worker->written[p] = s->sp.committed[p];
    }
    check_copies(r, pl, k, &wish->got);
    for (uint32_t p = 0; p < r->model.n_pools; p++) {
        r->owed += s->owed[p] > 0;
        r->borrowed += s->borrowed[p];
    }
    uint32_t full = wish->want.frontier / KVD_PAGE_TOKENS;
    if (pl->from >= 0) memcpy(s->sp.chain, r->model.cont[pl->from].sp.chain, sizeof s->sp.chain);
    if (pl->from_seq >= 0) memcpy(s->sp.chain, r->model.seq[pl->from_seq].sp.chain, sizeof s->sp.chain);
    chain_fill(r, &s->sp, full);
    r->moved = r->reowned = true;
    note(r, " -> seq %d", k);
}

static void resolve_activation(struct run *r, int k, bool commit);

void op_begin(struct run *r) {
    struct wish wish;
    struct model_plan pl;
    struct reasons reasons;
    struct store_refusal refusal = { 0 };
    enum kvd_feasibility answer = KVD_BLOCKED;
    bool fired = false, planned = chance(r, 50) || r->model.config.membership_entries != 0, no_room = false;
    make_wish(r, &wish);
    model_plan_activation(&r->model, &wish.want, store_revision(r->store), &pl);
    reasons = pl.hard;
    join(&reasons, &pl.never);
    join(&reasons, &pl.lacking);
    if (planned) no_room = check_plan(r, &wish, &pl, &answer);
    if (no_room) {
        model_maybe_membership(&reasons);
        reasons.list[reasons.n - 1].maybe = false;
    }
    int code = reasons.n == 0 && chance(r, 8) ? sweep(r, attempt_begin, &wish, false, &fired)
                                              : attempt_begin(r, &wish, &refusal);
    if (r->failed || !agreed(r, "begin", code, &refusal, &reasons)) return;
    if (planned && answer != KVD_READY) fail(r, "begin succeeded where plan said %d", (int)answer);
    begun(r, &wish, &pl);
    if (r->failed || r->model.wrong[0] || chance(r, 40)) return;
    look(r);
    int k = model_find_seq(&r->model, wish.got.seq);
    if (!r->failed) resolve_activation(r, k, chance(r, 85));
}

/* ---- commit, abort ---- */

static void make_copies(struct run *r, const struct worker *w) {
    for (uint32_t i = 0; i < w->n_copies; i++) {
        const struct store_copy *c = &w->copies[i];
        if (c->kind != STORE_COPY_STATE) memory_copy(r->memory, c->pool, c->src, c->dst, c->columns);
    }
}

/* PAGE-7: its tails are there, and only now the rows name their pages. */
static void show_rows(struct run *r, int k, struct store_refusal *refusal) {
    struct model_seq *s = &r->model.seq[k];
    struct store_activated now;
    make_copies(r, &r->worker[k]);
    int code = store_activate_commit(r->store, s->handle, refusal);
    if (code != STORE_MORE) fail(r, "commit of copies: %d", code);
    if (store_activate_look(r->store, s->handle, &now, refusal)) fail(r, "what is activated cannot be looked at");
    if (r->failed) return;
    if (now.n_copies) fail(r, "%u copies are left", now.n_copies);
    s->hidden = false;
    memset(s->copied, 0, sizeof s->copied); /* nobody reads the source's tail any more */
    for (uint32_t p = 0; p < r->model.n_pools; p++) {
        SAME(now.pool[p].slice_count, s->sp.n[p], "rows");
        r->worker[k].slice[p] = now.pool[p];
    }
    r->moved = true;
    look(r);
}

static void abort_activation(struct run *r, int k, struct store_refusal *refusal);

static void commit_activation(struct run *r, int k, struct store_refusal *refusal) {
    struct model_seq *s = &r->model.seq[k];
    if (s->hidden) {
        show_rows(r, k, refusal);
        if (!r->failed && chance(r, 15)) abort_activation(r, k, refusal);
        if (r->failed || !s->used) return;
    }
    int code = store_activate_commit(r->store, s->handle, refusal);
    if (code) {
        fail(r, "commit refused: %d", code);
        return;
    }
    for (uint32_t v = 0; v < s->n_victims; v++)
        if (s->cut[v] == 0) bury_cont(r, r->model.cont[s->victims[v]].handle);
    if (s->from >= 0 && !s->keep) bury_cont(r, r->model.cont[s->from].handle);
    r->reowned = s->n_victims > 0 || (s->from >= 0 && !s->keep);
    model_activate_commit(&r->model, k);
    s->live = store_live(r->store, s->handle);
    if (model_find_cont(&r->model, s->live) >= 0 || !s->live.bits) fail(r, "its descriptor is another's, or none");
    for (uint32_t p = 0; p < r->model.n_pools; p++) publish(r, p, &r->worker[k].slice[p]);
}

static void abort_activation(struct run *r, int k, struct store_refusal *refusal) {
    struct model_seq *s = &r->model.seq[k];
    uint32_t lost = 999;
    if (s->hidden && chance(r, 50)) make_copies(r, &r->worker[k]); /* made or not: an abort forgets them */
    int code = store_activate_abort(r->store, s->handle, &lost, refusal);
    if (code) fail(r, "abort refused: %d", code);
    else if (lost != r->worker[k].victims_lost)
        fail(r, "abort: %u victims lost, not %u", lost, r->worker[k].victims_lost);
    r->lost_victims += r->worker[k].victims_lost;
    bury_seq(r, s->handle);
    r->reowned = true;
    model_activate_abort(&r->model, k);
}

static void resolve_activation(struct run *r, int k, bool commit) {
    struct store_refusal refusal;
    note(r, "; %s seq %d", commit ? "commit" : "abort", k);
    if (commit) commit_activation(r, k, &refusal);
    else abort_activation(r, k, &refusal);
    r->moved = true;
}

static void resolve_checkpoint(struct run *r, int c, bool commit) {
    struct store_refusal refusal;
    struct model_cont *mc = &r->model.cont[c];
    note(r, " %s checkpoint %d", commit ? "commit" : "abort", c);
    bool waits = model_roll_waits(&r->model, c), copied = mc->pinned_slot != KVD_NONE;
    if ((!waits || copied) && (commit || chance(r, 50))) make_copies(r, &r->snapper[c]);
    store_cont got = { 0 };
    int equal = model_equal(&r->model, mc->domain, &mc->sp, mc->frontier, &mc->tail, got);
    int code = commit ? store_checkpoint_commit(r->store, mc->handle, &got, &refusal)
                      : store_checkpoint_abort(r->store, mc->handle, &refusal);
    if (waits && !copied) { /* GRP-5: nobody's to resolve */
        if (code != STORE_E_STALE)
            fail(r, "%s of a checkpoint that waits for names: %d", commit ? "commit" : "abort", code);
        return;
    }
    if (code) fail(r, "%s of a checkpoint refused: %d", commit ? "commit" : "abort", code);
    if (commit && waits) {
        if (got.bits) fail(r, "a checkpoint is found without names");
        model_roll_landed(&r->model, c);
    } else if (commit && equal >= 0) { /* FIT-5 */
        equal = model_equal(&r->model, mc->domain, &mc->sp, mc->frontier, &mc->tail, got);
        if (equal < 0) fail(r, "an equal continuation is published beside one that was there");
        else model_merge(&r->model, equal, mc->retention);
        bury_cont(r, mc->handle);
        model_release(&r->model, c);
    } else if (commit) {
        if (got.bits != mc->handle.bits) fail(r, "a checkpoint's commit answers another handle");
        model_checkpoint_publish(&r->model, c);
    } else {
        bury_cont(r, mc->handle);
        model_release(&r->model, c);
    }
    r->moved = r->reowned = true;
}

/* Commit and abort of what is not in flight. */
static void resolve_nothing(struct run *r) {
    struct store_refusal refusal;
    struct reasons reasons = { 0 };
    uint32_t lost;
    if (chance(r, 50)) {
        store_seq h = some_seq(r, any_seq(r, -1));
        int k = model_find_seq(&r->model, h);
        model_claim_reasons(&r->model, k, &reasons);
        if (reasons.n == 0) return;
        int code = chance(r, 50) ? store_activate_commit(r->store, h, &refusal)
                                 : store_activate_abort(r->store, h, &lost, &refusal);
        agreed(r, " commit or abort", code, &refusal, &reasons);
    } else {
        store_cont h = some_cont(r, any_cont(r, true));
        model_checkpoint_reasons(&r->model, h, &reasons);
        if (reasons.n == 0) return;
        int code = chance(r, 50) ? store_checkpoint_commit(r->store, h, NULL, &refusal)
                                 : store_checkpoint_abort(r->store, h, &refusal);
        agreed(r, " checkpoint commit or abort", code, &refusal, &reasons);
    }
}

void op_resolve(struct run *r) {
    int k = any_seq(r, STORE_SEQ_ACTIVATING), c = any_cont(r, false);
    if (chance(r, 10) || (k < 0 && c < 0)) resolve_nothing(r);
    else if (k >= 0 && (c < 0 || chance(r, 50))) resolve_activation(r, k, chance(r, 75));
    else resolve_checkpoint(r, c, chance(r, 80));
}

/* ---- continuations ---- */

void op_release(struct run *r) {
    struct store_refusal refusal = { 0 };
    struct reasons reasons = { 0 };
    store_cont h = some_target(r);
    int c = model_cont_reasons(&r->model, h, &reasons);
    note(r, " cont %d", c);
    if (!agreed(r, "release", store_release(r->store, h, &refusal), &refusal, &reasons)) return;
    bury_cont(r, h);
    model_release(&r->model, c);
    r->moved = r->reowned = true;
}

void op_retention(struct run *r) {
    struct store_refusal refusal = { 0 };
    struct reasons reasons = { 0 };
    store_cont h = some_target(r);
    uint32_t value = below(r, 100);
    int c = model_cont_reasons(&r->model, h, &reasons);
    for (uint32_t i = 0; c >= 0 && r->model.cont[c].published && i < reasons.n; i++) reasons.list[i].maybe = true;
    if (!agreed(r, "retention", store_set_retention(r->store, h, value, &refusal), &refusal, &reasons)) return;
    r->model.cont[c].retention = value;
    r->model.cont[c].rolls = 0;
    r->moved = true;
}

void op_shorten(struct run *r) {
    struct store_refusal refusal = { 0 };
    struct reasons reasons = { 0 };
    store_cont h = some_target(r);
    int c = model_cont_reasons(&r->model, h, &reasons);
    uint32_t f = c < 0 ? 100 : r->model.cont[c].frontier, to = between(r, 1, f + (chance(r, 3) ? 70 : 0));
    if (chance(r, 60) && to > KVD_PAGE_TOKENS) to = to / KVD_PAGE_TOKENS * KVD_PAGE_TOKENS;
    else if (chance(r, 50)) to = between(r, f > KVD_PAGE_TOKENS ? f / KVD_PAGE_TOKENS * KVD_PAGE_TOKENS : 1, f);
    if (chance(r, 2)) to = 0;
    model_shorten_reasons(&r->model, c, to, &reasons);
    note(r, " cont %d to %u", c, to);
    if (!agreed(r, "shorten", store_shorten(r->store, h, to, &refusal), &refusal, &reasons)) return;
    model_shorten(&r->model, c, to);
    r->moved = r->reowned = to != f;
}

static void look_up_strangers(struct run *r) {
    struct store_refusal refusal = { 0 };
    struct kvd_sequence_info si;
    struct kvd_continuation_info ci;
    store_seq s = some_seq(r, -1);
    store_cont c = some_cont(r, -1);
    if (model_find_seq(&r->model, s) < 0 && store_seq_look(r->store, s, &si, &refusal) != STORE_E_STALE)
        fail(r, "a dead sequence is seen");
    if (model_find_cont(&r->model, c) < 0 && model_find_live(&r->model, c) < 0 &&
        store_cont_look(r->store, c, &ci, &refusal) != STORE_E_STALE)
        fail(r, "a dead continuation is seen");
}

/* What the store tells is what the model says: as many, the best of them, each with what it is good for. */
static void compare_hits(struct run *r, const struct store_query *q, uint32_t floor, const struct kvd_hit *got,
                         uint32_t n) {
    uint32_t want[MODEL_HITS], match, all = model_hits(&r->model, q, floor, want);
    if (n != (all < q->max ? all : q->max)) fail(r, "find: %u hits of %u, the model says %u", n, q->max, all);
    for (uint32_t i = 0; i < n && !r->failed; i++) {
        int c = model_find_cont(&r->model, store_cont_of(got[i].continuation));
        int k = model_find_live(&r->model, store_cont_of(got[i].continuation));
        uint32_t usable = c >= 0   ? model_usable(&r->model, &r->model.cont[c], q, &match)
                          : k >= 0 ? model_live_usable(&r->model, k, q, &match)
                                   : 0;
        if (got[i].usable != usable || usable != want[i])
            fail(r,
                 "find: hit %u is cont %d (running %d), %u tokens of it are told, %u are usable, and %u of the best "
                 "left",
                 i, c, k, got[i].usable, usable, want[i]);
        else if (got[i].live != (k >= 0)) fail(r, "find: hit %u is live, or is not", i);
        else if (k < 0 &&
                 (got[i].frontier != r->model.cont[c].frontier || got[i].retention != r->model.cont[c].retention))
            fail(r, "find: hit %u has frontier %u and retention %u", i, got[i].frontier, got[i].retention);
    }
}

/* The lookup in two parts: the second tells what the model knows past the cut. */
static void find_in_parts(struct run *r, const struct store_query *whole) {
    struct kvd_hit got[MODEL_HITS];
    struct store_refusal refusal;
    uint32_t cut = 2 + below(r, whole->n - 2), deeper[MODEL_HITS];
    struct store_query part = *whole;
    struct store_found found;
    part.n = cut;
    if (store_find(r->store, &part, got, &found, &refusal)) fail(r, "find: the first of two parts is refused");
    part.n = whole->n - cut + 1;
    part.first = cut - 1;
    part.digests = whole->digests + cut - 1;
    part.anchor = found.anchor;
    found.n = 0;
    if (found.anchor.bits && store_find(r->store, &part, got, &found, &refusal))
        fail(r, "find: the second of two parts is refused (%d)", (int)refusal.code);
    if (part.anchor.bits) compare_hits(r, whole, cut, got, found.n);
    else if (model_hits(&r->model, whole, cut, deeper)) fail(r, "find: no part follows page %u", cut);
}

/* A prompt like a continuation or a sequence, or like none; and its tokens at some page. */
void op_find(struct run *r) {
    uint8_t chain[MODEL_BLOCKS][32];
    struct kvd_hit got[MODEL_HITS];
    struct kvd_tail tokens = { .n = below(r, 64) };
    int c = any_cont(r, true), k = any_seq(r, -1);
    uint32_t n = below(r, r->model.blocks + 1);
    struct space sp = { 0 };
    bool like_cont = c >= 0 && chance(r, 60);
    const struct space *like = like_cont ? &r->model.cont[c].sp : k >= 0 ? &r->model.seq[k].sp : NULL;
    uint8_t domain = like_cont && chance(r, 80) ? r->model.cont[c].domain : (uint8_t)below(r, 3);
    if (like) memcpy(sp.chain, like->chain, sizeof sp.chain);
    else chain_fill(r, &sp, 0);
    if (chance(r, 30)) chain_fill(r, &sp, below(r, r->model.blocks));
    memcpy(chain, sp.chain, sizeof chain);
    if (like_cont && chance(r, 70)) tokens = r->model.cont[c].tail;
    if (tokens.n && chance(r, 30)) tokens.tokens[below(r, tokens.n)]++;
    struct store_query q = { .root = model_root(domain).digest,
                             .digests = (const uint8_t(*)[32])chain,
                             .n = n,
                             .max = chance(r, 80) ? MODEL_HITS : below(r, 4),
                             .prompt_tokens = n * KVD_PAGE_TOKENS + tokens.n + 1,
                             .token_page = n,
                             .tokens = &tokens };
    if (like_cont && chance(r, 50)) q.token_page = r->model.cont[c].frontier / KVD_PAGE_TOKENS;
    struct store_found found = { 0 };
    if (store_find(r->store, &q, got, &found, NULL)) fail(r, "find: refused");
    note(r, " %u pages of domain %u max %u = %u", n, domain, q.max, found.n);
    compare_hits(r, &q, 0, got, found.n);
    if (found.want_page != KVD_NONE && found.want_page >= q.token_page) fail(r, "find: wants a page that was sent");
    if (n >= 3 && q.max == MODEL_HITS) find_in_parts(r, &q);
    look_up_strangers(r);
}
