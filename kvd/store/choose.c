/* SPDX-License-Identifier: Apache-2.0
 *
 * The shortest recipe in an order that the caller names (ACT-8, Q-2): the store walks its continuations in that order
 * and takes each, until what they give jointly suffices. It prefers nobody by itself, and changes nothing.
 *
 * First those that are not demoted, to be demoted where the caller wants that. What of them frees nothing that is short
 * is left out. The last of those that are released is only shortened where that suffices. Where the arena cannot hold
 * what is demoted, the first of the chosen and of the demoted ones together are released, as few as do. Where
 * membership or descriptors are short, which demoted ones hold like any other, all take part, and are released.
 */
#include "store_internal.h"

struct recipe_search {
    struct store *store;
    const struct store_choice *how;
    struct activation act;
    uint32_t max;
    bool demote, all; /* those that are demoted take part, too */
    /* What is short without victims, and what those that were taken give so far. */
    bool short_pages[KVD_MAX_POOLS], short_slots, short_chunks, short_conts;
    uint32_t freed[KVD_MAX_POOLS], slots, chunks, conts, stamp;
};

enum recipe_answer { FITS, ARENA_SHORT, SHORT, NEVER };

/* What the recipe comes to. Acquires nothing. */
static enum recipe_answer check(struct recipe_search *c) {
    struct store *store = c->store;
    struct store_refusal refusal;
    uint32_t fail_in = store->fail_in, acquisitions = store->acquisitions;
    if (activation_measure(store, &c->act, NULL)) return SHORT;
    store->fail_in = 0;
    int rc = activation_check(store, &c->act, &refusal);
    store->fail_in = fail_in;
    store->acquisitions = acquisitions;
    if (rc == STORE_OK) return FITS;
    if (rc == STORE_E_NEVER) return NEVER;
    return refusal.subject == STORE_S_ARENA ? ARENA_SHORT : SHORT;
}

/* May it go now? One of which pages are on their way to the host cannot be demoted until they are there. */
static bool may_go(const struct recipe_search *c, const struct cont *cont, bool demote) {
    if (cont->claimed || cont->pins || cont->image_pins || cont == c->act.source) return false;
    if (c->how->of_tag && cont->tag != c->how->tag) return false;
    for (uint32_t p = 0; demote && p < c->store->n_pools; p++)
        if (tier_any(c->store, p, &cont->space[p], cont->space[p].count, PAGE_BACKING)) return false;
    return true;
}

static void find_short(struct recipe_search *c) {
    const struct store *store = c->store;
    for (uint32_t p = 0; p < store->n_pools; p++) {
        const struct activation_pool *ap = &c->act.pool[p];
        uint64_t now = pool_available(&store->pool[p]);
        c->short_pages[p] = now + ap->freed < ap->fresh || now < activation_now(ap);
    }
    c->short_slots = slots_free(store) < c->act.slots_needed;
    c->short_conts = conts_free(store) < c->act.conts_needed;
    uint32_t now = chunks_available(&store->chunks);
    c->short_chunks = now + c->act.chunks_freed < c->act.chunks_needed || now < c->act.chunks_now;
}

/* Whether what was counted on the way may suffice: then it is counted exactly. */
static bool may_suffice(const struct recipe_search *c) {
    const struct store *store = c->store;
    for (uint32_t p = 0; p < store->n_pools; p++)
        if (c->short_pages[p] && pool_available(&store->pool[p]) + (uint64_t)c->freed[p] < c->act.pool[p].fresh)
            return false;
    if (c->short_slots && slots_free(store) + c->slots < c->act.slots_needed) return false;
    if (c->short_conts && conts_free(store) + c->conts < c->act.conts_needed) return false;
    return !c->short_chunks || chunks_available(&store->chunks) + (uint64_t)c->chunks >= c->act.chunks_needed;
}

static void take_victim(struct recipe_search *c, struct cont *cont) {
    const struct store *store = c->store;
    c->act.victims[c->act.n_victims++] = (struct victim){ .cont = cont, .demote = c->demote };
    for (uint32_t p = 0; p < store->n_pools; p++) {
        c->freed[p] += joint_mark(store, &cont->space[p], &(struct joint){ p, 0, c->stamp, !c->demote, cont->demoted });
        if (!c->demote) c->chunks += chunks_for(cont->space[p].count);
    }
    c->conts += !c->demote && cont_leaves_descriptor(cont);
    c->slots += cont->slot != KVD_NONE && store->slots[cont->slot].pins == 0;
}

/* What a moved source drops counts before all victims: a page that both hold goes with the last. */
static void begin_walk(struct recipe_search *c) {
    struct store *store = c->store;
    c->act.n_victims = c->slots = c->chunks = c->conts = 0;
    c->stamp = store_next_stamp(store);
    for (uint32_t p = 0; p < store->n_pools; p++) {
        c->freed[p] = 0;
        if (!c->act.move) continue;
        const struct joint how = { p, c->act.pool[p].taken, c->stamp, false, false };
        c->freed[p] = joint_mark(store, &c->act.source->space[p], &how);
        c->chunks += chunks_for(c->act.source->space[p].count);
    }
}

/* The marks of an exact count are those of the victims so far: the walk goes on with them. */
static void resume_walk(struct recipe_search *c) {
    c->stamp = c->act.stamp;
    c->chunks = c->act.chunks_freed;
    c->slots = c->act.slots_freed;
    c->conts = c->act.conts_freed;
    for (uint32_t p = 0; p < c->store->n_pools; p++) c->freed[p] = c->act.pool[p].freed;
}

/* The shortest prefix of the victims that does as well as all of them; `low` of them do not. */
static enum recipe_answer shorten(struct recipe_search *c, uint32_t low) {
    uint32_t high = c->act.n_victims;
    while (high - low > 1 && !MUTANT(choice_is_not_the_shortest)) {
        c->act.n_victims = low + (high - low) / 2;
        if (check(c) == SHORT) low = c->act.n_victims;
        else high = c->act.n_victims;
    }
    c->act.n_victims = high;
    return check(c);
}

/* Takes one after the other. What is counted on the way leaves out rare things (the tail's page, what a demoted source
 * keeps); where it was wrong, the next exact count is made at twice as many. */
static enum recipe_answer walk(struct recipe_search *c) {
    const struct store *store = c->store;
    uint32_t at[2] = { order_first(store, false), c->all ? order_first(store, true) : KVD_NONE }, failed = 0;
    begin_walk(c);
    while ((at[0] != KVD_NONE || at[1] != KVD_NONE) && c->act.n_victims < c->max) {
        uint32_t *next = &at[!order_is_first(store, at[0], at[1])];
        struct cont *cont = &store->conts[*next];
        *next = order_next(store, *next);
        if (!may_go(c, cont, c->demote)) continue;
        take_victim(c, cont);
        if (c->act.n_victims < 2 * failed || !may_suffice(c)) continue;
        if (check(c) != SHORT) return shorten(c, failed);
        failed = c->act.n_victims;
        resume_walk(c);
    }
    return check(c) == SHORT ? SHORT : shorten(c, failed);
}

/* Running sequences hold what is short: then a walk over all the others would be in vain. What they do not share is
 * theirs alone. A restored page of a window that victims hold, too, comes back when it is passed, so that none is
 * counted here. */
static bool is_in_vain(const struct recipe_search *c) {
    const struct store *store = c->store;
    for (uint32_t p = 0; p < store->n_pools; p++) {
        uint64_t most = store->pool[p].capacity - store->pool[p].reserved;
        for (uint32_t i = 0; i < store->config.max_concurrency; i++) {
            const struct seq *seq = &store->seqs[i];
            if (!seq->occupied || seq->state == STORE_SEQ_ACTIVATING) continue;
            most -=
                seq->space[p].count - max_u32(seq->space[p].base, min_u32(seq->space[p].shared, seq->space[p].count));
        }
        uint32_t back = store->window_pages[p] ? c->act.pool[p].restore : 0;
        if (most < c->act.pool[p].fresh - back) return true;
    }
    return store->seq_free == KVD_NONE;
}

/* ---- those that are of no use ---- */

/* With the marks of the last count: does it hold anything that goes, and that is short? */
static bool is_of_use(const struct recipe_search *c, const struct victim *victim) {
    const struct store *store = c->store;
    const struct cont *cont = victim->cont;
    uint32_t n;
    if (c->short_slots && cont->slot != KVD_NONE && store->slots[cont->slot].pins == 0) return true;
    if ((c->short_chunks || c->short_conts) && !victim->demote) return true;
    for (uint32_t p = 0; p < store->n_pools; p++) {
        for (uint32_t i = cont->space[p].base; c->short_pages[p] && i < cont->space[p].count; i += n) {
            const uint32_t *run = space_run(store, &cont->space[p], i, &n);
            for (uint32_t k = 0; k < n; k++)
                if (store->pool[p].pages[run[k]].stamp == c->act.stamp && joint_frees(store, p, run[k])) return true;
        }
    }
    return false;
}

/* Leading pages of the last victim with which it still suffices: what goes of it then is marked by the last count. */
static uint32_t spared_pages(const struct recipe_search *c, uint32_t p, const struct space *space) {
    const struct store *store = c->store;
    const struct activation_pool *ap = &c->act.pool[p];
    uint64_t now = pool_available(&store->pool[p]);
    uint64_t spare = min_u64(now + ap->freed - ap->fresh, now + ap->freed_victims - activation_now(ap));
    uint32_t n;
    for (uint32_t i = space->base; i < space->count; i += n) {
        const uint32_t *run = space_run(store, space, i, &n);
        for (uint32_t k = 0; k < n; k++) {
            if (store->pool[p].pages[run[k]].stamp != c->act.stamp || !joint_frees(store, p, run[k])) continue;
            if (spare-- == 0) return i + k;
        }
    }
    return space->count;
}

/* The last one that is released goes from its end, as far as it must: its first pages stay a prefix that is found. */
static void spare_prefix(struct recipe_search *c) {
    struct victim *last = c->act.n_victims ? &c->act.victims[c->act.n_victims - 1] : NULL;
    if (!last || last->demote || c->store->config.has_state || last->cont->moves || MUTANT(last_victim_goes_whole))
        return;
    uint32_t keep = min_u32(last->cont->named, (last->cont->frontier - 1) / KVD_PAGE_TOKENS);
    for (uint32_t p = 0; p < c->store->n_pools; p++) keep = min_u32(keep, spared_pages(c, p, &last->cont->space[p]));
    if (keep == 0 || !windows_hold(c->store, last->cont->space, keep * KVD_PAGE_TOKENS)) return;
    last->frontier = keep * KVD_PAGE_TOKENS;
    if (check(c) == FITS) return;
    last->frontier = 0; /* it is more than pages that is short */
    (void)check(c);
}

static enum recipe_answer leave_out(struct recipe_search *c) {
    uint32_t n = c->act.n_victims, left = 0;
    for (uint32_t i = 0; i < n; i++)
        if (is_of_use(c, &c->act.victims[i]) || MUTANT(useless_victims_stay))
            c->act.victims[left++] = c->act.victims[i];
    c->act.n_victims = left;
    enum recipe_answer answer = check(c);
    return answer == SHORT ? walk(c) : answer; /* a tail that some of the others shared is to be copied now */
}

/* ---- the arena is short ---- */

/* The recipe in which the first `released` of the merged order are released: steps[i] is the victim whose turn is i;
 * demoted ones stand behind the chosen ones, in their order. */
static enum recipe_answer check_released(struct recipe_search *c, uint32_t n_chosen, const uint32_t *steps,
                                         uint32_t n_steps, uint32_t released) {
    c->act.n_victims = n_chosen;
    for (uint32_t i = 0; i < n_steps; i++) {
        if (steps[i] < n_chosen) c->act.victims[steps[i]].demote = i >= released;
        else if (i < released) c->act.n_victims = steps[i] + 1;
    }
    return check(c);
}

static uint32_t next_demoted(const struct recipe_search *c, uint32_t at) {
    while (at != KVD_NONE && !may_go(c, &c->store->conts[at], false)) at = order_next(c->store, at);
    return at;
}

/* Of the chosen ones (in order) and the demoted ones together the first are released, as few as make it fit: all of the
 * chosen ones would. */
static enum recipe_answer release_some(struct recipe_search *c) {
    struct store *store = c->store;
    uint32_t *steps = store->steps, n_chosen = c->act.n_victims, n = n_chosen, turn = 0, n_steps = 0, low = 0;
    uint32_t at = next_demoted(c, order_first(store, true));
    for (uint32_t tried = 1;; tried *= 2) { /* 1, 2, 4, ... as far as there are */
        while (n_steps < tried && turn < n_chosen) {
            uint32_t chosen = (uint32_t)(c->act.victims[turn].cont - store->conts);
            if (n == c->max || order_is_first(store, chosen, at)) {
                steps[n_steps++] = turn++;
                continue;
            }
            c->act.victims[n] = (struct victim){ .cont = &store->conts[at] };
            steps[n_steps++] = n++;
            at = next_demoted(c, order_next(store, at));
        }
        if (check_released(c, n_chosen, steps, n_steps, n_steps) == FITS || turn == n_chosen) break;
        low = n_steps;
    }
    uint32_t high = n_steps; /* low does not fit, high does */
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (check_released(c, n_chosen, steps, n_steps, middle) == FITS) high = middle;
        else low = middle;
    }
    return check_released(c, n_chosen, steps, n_steps, high);
}

/* ---- the answer ---- */

static enum recipe_answer find_recipe(struct recipe_search *c) {
    enum recipe_answer answer = check(c);
    if (answer != SHORT) return answer;
    find_short(c);
    if (is_in_vain(c)) return SHORT;
    c->demote = c->how->demote && c->store->arena;
    answer = walk(c);
    if (answer == SHORT && (c->short_chunks || c->short_conts)) {
        c->demote = false;
        c->all = true;
        answer = walk(c);
    }
    if (answer == FITS || answer == ARENA_SHORT) answer = leave_out(c);
    if (answer == FITS) spare_prefix(c);
    return answer == ARENA_SHORT ? release_some(c) : answer;
}

int store_choose_victims(struct store *store, const struct store_choice *how, struct kvd_victim *ret_victims,
                         struct store_chosen *ret_chosen, struct store_refusal *refusal) {
    struct recipe_search c = { .store = store, .how = how, .max = min_u32(how->max, KVD_MAX_VICTIMS) };
    if (how->want.n_victims)
        return store_refuse(refusal, STORE_E_ARGUMENT, STORE_S_RECIPE, KVD_NONE, how->want.n_victims, 0, 0);
    int rc = activation_resolve(store, &how->want, &c.act, refusal);
    if (rc == STORE_OK) rc = activation_measure(store, &c.act, refusal);
    if (rc) return rc;
    enum recipe_answer answer = find_recipe(&c);
    *ret_chosen = (struct store_chosen){ .n = c.act.n_victims, .more = answer == SHORT && c.act.n_victims == c.max };
    for (uint32_t i = 0; i < c.act.n_victims; i++)
        ret_victims[i] = (struct kvd_victim){ .continuation.bits = cont_handle(store, c.act.victims[i].cont).bits,
                                              .demote = c.act.victims[i].demote,
                                              .frontier = c.act.victims[i].frontier };
    activation_plan(store, &c.act, &ret_chosen->plan);
    ret_chosen->plan.feasibility = answer == FITS ? KVD_READY : answer == NEVER ? KVD_INFEASIBLE : KVD_BLOCKED;
    return STORE_OK;
}
