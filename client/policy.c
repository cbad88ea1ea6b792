/* SPDX-License-Identifier: Apache-2.0
 *
 * A policy over kvd's exact answers: which continuations to release so that an activation fits. The daemon
 * decides nothing.
 *
 * Candidates are ordered by retention class, then by last use. The victims are the shortest prefix of this order for
 * which the plan is ready, less those whose release frees nothing there. Messages: one a 256 continuations, and at most
 * 11 plans; three times that where the store changes meanwhile.
 */
#include <stdlib.h>
#include <string.h>

#include "client.h"

#define ATTEMPTS 3

struct victim {
    kvd_continuation continuation;
    uint32_t retention;
    uint64_t used;
    uint64_t exclusive; /* pages that its release alone would free */
};

struct ranking {
    struct victim best[KVD_MAX_VICTIMS]; /* by policy order */
    uint32_t n;
    struct victim big[KVD_MAX_VICTIMS]; /* by pages freed, for where the first do not suffice */
    uint32_t n_big;
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

static void keep_best(struct victim *list, uint32_t *n, const struct victim *victim,
                      bool (*before)(const struct victim *, const struct victim *)) {
    uint32_t at = *n;
    while (at > 0 && before(victim, &list[at - 1])) at--;
    if (at == KVD_MAX_VICTIMS) return;
    if (*n < KVD_MAX_VICTIMS) (*n)++;
    memmove(&list[at + 1], &list[at], (*n - 1 - at) * sizeof *list);
    list[at] = *victim;
}

static void consider(struct ranking *ranking, const struct kvd_continuation_info *info, kvd_continuation source) {
    if (info->claimed || info->continuation.bits == source.bits) return;
    struct victim victim = { .continuation = info->continuation, .retention = info->retention, .used = info->used };
    for (uint32_t i = 0; i < KVD_MAX_POOLS; i++) victim.exclusive += info->exclusive_pages[i];
    keep_best(ranking->best, &ranking->n, &victim, goes_first);
    keep_best(ranking->big, &ranking->n_big, &victim, is_bigger);
    ranking->seen++;
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

/* The plan with the first n victims of a list. */
static enum kvd_status plan_with(struct kvd_client *c, struct kvd_activation *want, const struct victim *list,
                                 uint32_t n, struct kvd_plan *ret_plan, struct kvd_error *error) {
    want->n_victims = n;
    want->revision = 0;
    for (uint32_t i = 0; i < n; i++) want->victims[i] = list[i].continuation;
    enum kvd_status status = kvd_plan_activation(c, want, ret_plan, error);
    if (status == KVD_OK) want->revision = ret_plan->revision;
    return status;
}

static enum kvd_status refuse(const struct ranking *ranking, uint32_t n, const struct kvd_plan *plan,
                              struct kvd_error *error) {
    const struct kvd_need *need = &plan->rows;
    const char *what = "rows";
    if (plan->sequences.short_by) need = &plan->sequences, what = "sequences";
    if (plan->state_slots.short_by) need = &plan->state_slots, what = "state slots";
    if (plan->membership.short_by) need = &plan->membership, what = "membership entries";
    for (uint32_t i = plan->n_pools < KVD_MAX_POOLS ? plan->n_pools : KVD_MAX_POOLS; i-- > 0;)
        if (plan->pages[i].short_by) need = &plan->pages[i], what = i ? "pages of pool 1" : "pages of pool 0";
    return client_fail(error, KVD_RESOURCE_EXHAUSTED,
                       "needs %llu %s; even with %u of %u releasable continuations released there are %llu, %llu "
                       "short: finish sequences, or ask for less output",
                       (unsigned long long)need->needed, what, n, ranking->seen, (unsigned long long)need->available,
                       (unsigned long long)need->short_by);
}

/* Shortest ready prefix of list[0..n), of which the whole is known to be ready. */
static enum kvd_status shorten(struct kvd_client *c, struct kvd_activation *want, const struct victim *list, uint32_t n,
                               struct kvd_error *error) {
    struct kvd_plan plan;
    struct victim useful[KVD_MAX_VICTIMS];
    uint32_t low = 0, high = n, n_useful = 0; /* low is not ready, high is */
    enum kvd_status status;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if ((status = plan_with(c, want, list, middle, &plan, error)) != KVD_OK) return status;
        if (plan.feasibility == KVD_READY) high = middle;
        else low = middle;
    }
    for (uint32_t i = 0; i < high; i++)
        if (list[i].exclusive) useful[n_useful++] = list[i];
    if (n_useful &&
        n_useful < high) { /* pages that victims share among each other are exclusive to none of them: ask */
        if ((status = plan_with(c, want, useful, n_useful, &plan, error)) != KVD_OK) return status;
        if (plan.feasibility == KVD_READY) return KVD_OK;
    }
    if ((status = plan_with(c, want, list, high, &plan, error)) != KVD_OK) return status;
    return plan.feasibility == KVD_READY
               ? KVD_OK
               : client_fail(error, KVD_ABORTED, "the store changed while victims were chosen");
}

static enum kvd_status choose(struct kvd_client *c, struct kvd_activation *want, struct ranking *ranking,
                              struct kvd_error *error) {
    struct kvd_plan plan;
    enum kvd_status status = plan_with(c, want, NULL, 0, &plan, error);
    if (status != KVD_OK || plan.feasibility == KVD_READY) return status;
    if (plan.feasibility == KVD_INFEASIBLE) {
        return client_fail(error, KVD_INVALID_ARGUMENT,
                           "this activation needs %llu pages of pool 0 and never fits this store: shorten the "
                           "prompt or the output",
                           (unsigned long long)plan.pages[0].needed);
    }
    if ((status = rank(c, want->from, ranking, error)) != KVD_OK) return status;
    const struct victim *list = ranking->best;
    uint32_t n = ranking->n;
    if ((status = plan_with(c, want, list, n, &plan, error)) != KVD_OK) return status;
    if (plan.feasibility != KVD_READY && ranking->seen > n) {
        list = ranking->big;
        n = ranking->n_big;
        if ((status = plan_with(c, want, list, n, &plan, error)) != KVD_OK) return status;
    }
    if (plan.feasibility != KVD_READY) return refuse(ranking, n, &plan, error);
    return shorten(c, want, list, n, error);
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
        status = choose(c, trial, ranking, error);
        /* A continuation that was listed has gone or is claimed: look again. */
        if (i + 1 == ATTEMPTS || (status != KVD_ABORTED && status != KVD_NOT_FOUND)) break;
        status = KVD_OK;
    }
    if (status == KVD_OK) *want = *trial;
    free(ranking);
    free(trial);
    return status;
}
