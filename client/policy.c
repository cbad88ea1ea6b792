/* SPDX-License-Identifier: Apache-2.0
 *
 * A policy over kvd's exact answers: which continuations to demote or release so that an activation fits. The
 * daemon decides nothing.
 *
 * Candidates are ordered by retention class, then by last use. The victims are the shortest prefix of this order for
 * which the plan is ready, less those whose going frees nothing there. With a host arena they are demoted; where that
 * leaves the arena short, the shortest prefix of victims and demoted ones together, in the same order, is released.
 * Messages: one a 256 continuations, one for the arena, and at most 11 plans, 20 where the arena is short or only
 * releases help; three times that where the store changes meanwhile.
 */
#include <stdlib.h>
#include <string.h>

#include "client.h"

#define ATTEMPTS 3

struct victim {
    kvd_continuation continuation;
    uint32_t retention;
    uint64_t used;
    uint64_t exclusive; /* device pages that its going alone would free */
    bool demoted;
};

struct victims {
    struct victim list[KVD_MAX_VICTIMS];
    uint32_t n;
};

struct ranking {
    struct victims best;    /* that do not rest, by policy order */
    struct victims big;     /* the same by pages freed, for where the first do not suffice */
    struct victims demoted; /* by policy order */
    struct victims chosen;
    uint32_t seen;
};

static bool goes_first(const struct victim *a, const struct victim *b) {
    if (a->retention != b->retention) return a->retention < b->retention;
    if (a->used != b->used) return a->used < b->used;
    return a->continuation.bits < b->continuation.bits;
}

static bool is_bigger(const struct victim *a, const struct victim *b) {
    return a->exclusive != b->exclusive ? a->exclusive > b->exclusive : goes_first(a, b);
}

static void keep_best(struct victims *to, const struct victim *victim,
                      bool (*before)(const struct victim *, const struct victim *)) {
    uint32_t at = to->n;
    while (at > 0 && before(victim, &to->list[at - 1])) at--;
    if (at == KVD_MAX_VICTIMS) return;
    if (to->n < KVD_MAX_VICTIMS) to->n++;
    memmove(&to->list[at + 1], &to->list[at], (to->n - 1 - at) * sizeof *to->list);
    to->list[at] = *victim;
}

static void consider(struct ranking *ranking, const struct kvd_continuation_info *info, kvd_continuation source) {
    if (info->claimed || info->continuation.bits == source.bits) return;
    struct victim victim = {
        .continuation = info->continuation, .retention = info->retention, .used = info->used, .demoted = info->demoted
    };
    for (uint32_t i = 0; i < KVD_MAX_POOLS; i++) victim.exclusive += info->exclusive_pages[i];
    ranking->seen++;
    if (info->demoted) {
        keep_best(&ranking->demoted, &victim, goes_first);
        return;
    }
    keep_best(&ranking->best, &victim, goes_first);
    keep_best(&ranking->big, &victim, is_bigger);
}

static enum kvd_status rank(struct kvd_client *c, kvd_continuation source, struct ranking *ranking,
                            struct kvd_error *error) {
    struct kvd_continuation_info *infos = calloc(KVD_MAX_LIST, sizeof *infos);
    enum kvd_status status = infos ? KVD_OK : client_fail(error, KVD_RESOURCE_EXHAUSTED, "out of memory for a list");
    uint32_t cursor = 0, n;
    memset(ranking, 0, sizeof *ranking);
    while (status == KVD_OK && cursor != KVD_UNCHANGED) {
        status = kvd_list_continuations(c, &cursor, infos, KVD_MAX_LIST, &n, error);
        for (uint32_t i = 0; status == KVD_OK && i < n; i++) consider(ranking, &infos[i], source);
    }
    free(infos);
    return status;
}

/* The plan with the first n victims of a list, of which those from `demoted` on are demoted, the others released. */
static enum kvd_status plan_with(struct kvd_client *c, struct kvd_activation *want, const struct victim *list,
                                 uint32_t n, uint32_t demoted, struct kvd_plan *ret_plan, struct kvd_error *error) {
    want->n_victims = n;
    want->revision = 0;
    want->demote = 0;
    for (uint32_t i = 0; i < n; i++) {
        want->victims[i] = list[i].continuation;
        if (i >= demoted) want->demote |= UINT64_C(1) << i;
    }
    enum kvd_status status = kvd_plan_activation(c, want, ret_plan, error);
    if (status == KVD_OK) want->revision = ret_plan->revision;
    return status;
}

/* Nothing is short, or only the arena is. */
static bool suffices(const struct kvd_plan *plan) {
    if (plan->feasibility == KVD_READY) return true;
    uint64_t others = plan->rows.short_by | plan->sequences.short_by | plan->continuations.short_by |
                      plan->state_slots.short_by | plan->membership.short_by | plan->pages[0].short_by |
                      plan->pages[1].short_by;
    return plan->arena.short_by && !others;
}

static enum kvd_status refuse_choice(const struct ranking *ranking, uint32_t n, const struct kvd_plan *plan,
                                     struct kvd_error *error) {
    const struct kvd_need *need = &plan->rows;
    const char *what = "rows";
    if (plan->sequences.short_by) need = &plan->sequences, what = "sequences";
    if (plan->state_slots.short_by) need = &plan->state_slots, what = "state slots";
    if (plan->continuations.short_by) need = &plan->continuations, what = "descriptors of continuations";
    if (plan->membership.short_by) need = &plan->membership, what = "membership entries";
    for (uint32_t i = plan->n_pools < KVD_MAX_POOLS ? plan->n_pools : KVD_MAX_POOLS; i-- > 0;)
        if (plan->pages[i].short_by) need = &plan->pages[i], what = i ? "pages of pool 1" : "pages of pool 0";
    return client_fail(error, KVD_RESOURCE_EXHAUSTED,
                       "needs %llu %s; even with %u of %u releasable continuations gone there are %llu, %llu "
                       "short: finish sequences, or ask for less output",
                       (unsigned long long)need->needed, what, n, ranking->seen, (unsigned long long)need->available,
                       (unsigned long long)need->short_by);
}

static enum kvd_status moved_on(struct kvd_error *error) {
    return client_fail(error, KVD_ABORTED, "the store changed while victims were chosen");
}

/* Into chosen: the shortest prefix of list[0..n) that suffices, of which the whole is known to. Its plan is the last
 * one made. */
static enum kvd_status shorten(struct kvd_client *c, struct kvd_activation *want, const struct victim *list, uint32_t n,
                               bool demote, struct victims *chosen, struct kvd_plan *plan, struct kvd_error *error) {
    uint32_t low = 0, high = n; /* low does not suffice, high does */
    enum kvd_status status;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        status = plan_with(c, want, list, middle, demote ? 0 : middle, plan, error);
        if (status != KVD_OK) return status;
        if (suffices(plan)) high = middle;
        else low = middle;
    }
    chosen->n = 0;
    for (uint32_t i = 0; i < high; i++)
        if (list[i].exclusive) chosen->list[chosen->n++] = list[i];
    if (chosen->n && chosen->n < high) { /* pages that victims share among each other are exclusive to none: ask */
        status = plan_with(c, want, chosen->list, chosen->n, demote ? 0 : chosen->n, plan, error);
        if (status != KVD_OK || suffices(plan)) return status;
    }
    chosen->n = high;
    memcpy(chosen->list, list, high * sizeof *list);
    status = plan_with(c, want, list, high, demote ? 0 : high, plan, error);
    return status != KVD_OK || suffices(plan) ? status : moved_on(error);
}

/* Of going (least valuable first) the first n released, the others demoted; those that rest already are left alone. */
static enum kvd_status plan_release(struct kvd_client *c, struct kvd_activation *want, const struct victims *going,
                                    uint32_t n, struct kvd_plan *ret_plan, struct kvd_error *error) {
    struct victims recipe = { .n = n };
    memcpy(recipe.list, going->list, n * sizeof *going->list);
    for (uint32_t i = n; i < going->n; i++)
        if (!going->list[i].demoted) recipe.list[recipe.n++] = going->list[i];
    return plan_with(c, want, recipe.list, recipe.n, n, ret_plan, error);
}

/* The arena cannot hold the chosen ones. Of these and of the demoted ones the least valuable are released, as few as
 * make the plan ready: all of the chosen ones would. */
static enum kvd_status release_some(struct kvd_client *c, struct kvd_activation *want, struct ranking *ranking,
                                    struct kvd_error *error) {
    struct victims going = { .n = 0 };
    struct kvd_plan plan;
    enum kvd_status status;
    for (uint32_t i = 0; i < ranking->chosen.n; i++) keep_best(&going, &ranking->chosen.list[i], goes_first);
    for (uint32_t i = 0; i < ranking->demoted.n && going.n < KVD_MAX_VICTIMS; i++)
        keep_best(&going, &ranking->demoted.list[i], goes_first);
    uint32_t low = 0, high = going.n; /* so many released: low is not ready, high is */
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if ((status = plan_release(c, want, &going, middle, &plan, error)) != KVD_OK) return status;
        if (plan.feasibility == KVD_READY) high = middle;
        else low = middle;
    }
    status = plan_release(c, want, &going, high, &plan, error);
    return status != KVD_OK || plan.feasibility == KVD_READY ? status : moved_on(error);
}

/* Tries a list as a whole. */
static enum kvd_status try_all(struct kvd_client *c, struct kvd_activation *want, const struct victims *all,
                               bool demote, struct kvd_plan *ret_plan, struct kvd_error *error) {
    return plan_with(c, want, all->list, all->n, demote ? 0 : all->n, ret_plan, error);
}

/* Resting ones hold no pages of the device, but they hold everything else that a continuation does. */
static void count_demoted_in(struct ranking *ranking) {
    for (uint32_t i = 0; i < ranking->demoted.n; i++) keep_best(&ranking->best, &ranking->demoted.list[i], goes_first);
}

static enum kvd_status choose_among(struct kvd_client *c, struct kvd_activation *want, struct ranking *ranking,
                                    bool demote, struct kvd_error *error) {
    struct kvd_plan plan;
    const struct victims *all = &ranking->best;
    enum kvd_status status = try_all(c, want, all, demote, &plan, error);
    bool holds_short = plan.membership.short_by || plan.continuations.short_by; /* which demoted ones hold, too */
    if (status == KVD_OK && holds_short && (demote || ranking->demoted.n)) {
        count_demoted_in(ranking);
        demote = false;
        status = try_all(c, want, all, demote, &plan, error);
    }
    if (status == KVD_OK && !suffices(&plan) && all->n == KVD_MAX_VICTIMS && ranking->seen > all->n) {
        all = &ranking->big;
        status = try_all(c, want, all, demote, &plan, error);
    }
    if (status != KVD_OK) return status;
    if (!suffices(&plan)) return refuse_choice(ranking, all->n, &plan, error);
    status = shorten(c, want, all->list, all->n, demote, &ranking->chosen, &plan, error);
    if (status != KVD_OK || plan.feasibility == KVD_READY) return status;
    return release_some(c, want, ranking, error);
}

static enum kvd_status choose_plan(struct kvd_client *c, struct kvd_activation *want, struct ranking *ranking,
                                   struct kvd_error *error) {
    struct kvd_plan plan;
    struct kvd_stats stats;
    enum kvd_status status = plan_with(c, want, NULL, 0, 0, &plan, error);
    if (status != KVD_OK || plan.feasibility == KVD_READY) return status;
    if (plan.feasibility == KVD_INFEASIBLE) {
        return client_fail(error, KVD_INVALID_ARGUMENT,
                           "this activation needs %llu pages of pool 0 and never fits this store: shorten the "
                           "prompt or the output",
                           (unsigned long long)plan.pages[0].needed);
    }
    if ((status = kvd_stats(c, &stats, error)) != KVD_OK) return status;
    if ((status = rank(c, want->from, ranking, error)) != KVD_OK) return status;
    return choose_among(c, want, ranking, stats.host_capacity > 0, error);
}

enum kvd_status kvd_choose_victims(kvd_client *c, struct kvd_activation *want, struct kvd_error *error) {
    if (!want) return client_fail(error, KVD_INVALID_ARGUMENT, "kvd_choose_victims needs an activation");
    enum kvd_status status = client_guard(c, error);
    if (status != KVD_OK) return status;
    struct ranking *ranking = malloc(sizeof *ranking);
    struct kvd_activation *trial = malloc(sizeof *trial);
    if (!ranking || !trial) status = client_fail(error, KVD_RESOURCE_EXHAUSTED, "out of memory for choosing victims");
    for (int i = 0; status == KVD_OK && i < ATTEMPTS; i++) {
        *trial = *want;
        status = choose_plan(c, trial, ranking, error);
        /* A continuation that was listed has gone or is claimed: look again. */
        if (i + 1 == ATTEMPTS || (status != KVD_ABORTED && status != KVD_NOT_FOUND)) break;
        status = KVD_OK;
    }
    if (status == KVD_NOT_FOUND && !want->from.bits) status = moved_on(error); /* a victim went, and that passes */
    if (status == KVD_OK) *want = *trial;
    free(ranking);
    free(trial);
    return status;
}
