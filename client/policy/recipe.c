/* SPDX-License-Identifier: Apache-2.0 */
#include "recipe.h"

#define MOST_SHORTENED 1024u /* in a message */

static struct kvd_victim *victim_of(struct policy_recipe *r, struct catalog_entry *e) {
    if (e->choice == r->choice) return &r->room[e->victim];
    if (r->n == r->max || e->bits == r->trial.from.bits) return NULL;
    e->choice = r->choice;
    e->victim = r->n++;
    r->room[e->victim] = (struct kvd_victim){ .continuation.bits = e->bits };
    return &r->room[e->victim];
}

/* Pages that it still has after the recipe so far. */
static uint32_t pages_left(const struct policy_recipe *r, const struct catalog_entry *e) {
    if (e->choice != r->choice || r->room[e->victim].demote) return e->pages;
    return r->room[e->victim].frontier / KVD_PAGE_TOKENS;
}

/* Where continuations are not shortened, one goes whole when the turn is at its rest. */
static bool may_cut(const struct policy_recipe *r, const struct catalog_entry *e) {
    bool cut = e->choice == r->choice && r->room[e->victim].frontier;
    return r->cuts && (cut || r->shortened < MOST_SHORTENED);
}

/* `most` pages go at most: returns how many do. */
static uint32_t release_part(struct policy_recipe *r, struct catalog_entry *e, uint32_t part, uint32_t most) {
    uint32_t left = pages_left(r, e), to = reuse_part(e->prompt_pages, r->model->with[part]);
    bool cut = e->choice == r->choice && r->room[e->victim].frontier;
    uint32_t next = to ? reuse_first_part(e->prompt_pages, to) : 0;
    if (left - to > most) to = left - most, next = part;
    if (to && !may_cut(r, e)) {
        if (part < REUSE_PARTS - 1) {
            catalog_again(&r->releasing, e, REUSE_PARTS - 1);
            return 0;
        }
        to = 0;
    }
    struct kvd_victim *v = victim_of(r, e);
    if (!v) return 0;
    int64_t here = e->demoted || v->demote ? 0 : left; /* on the device until now */
    catalog_take(r->releasing.catalog, e, (int64_t)left - to, here - (e->demoted ? 0 : to));
    v->demote = false;
    v->frontier = to * KVD_PAGE_TOKENS;
    r->shortened = r->shortened + (to != 0) - cut;
    if (to) catalog_again(&r->releasing, e, next);
    return left - to;
}

static bool release_pages(struct policy_recipe *r, uint64_t pages) {
    uint64_t gone = 0;
    while (gone < pages) {
        uint32_t part;
        uint64_t most = pages - gone < UINT32_MAX ? pages - gone : UINT32_MAX;
        struct catalog_entry *e = catalog_step(&r->releasing, &part);
        if (!e) return gone > 0;
        uint64_t beyond = catalog_beyond(&r->releasing, e);
        if (beyond < most) most = beyond;
        gone += release_part(r, e, part, (uint32_t)most);
    }
    return true;
}

/* Only a continuation that goes whole gives its descriptor. */
static bool release_whole(struct policy_recipe *r, uint64_t continuations) {
    uint64_t gone = 0;
    bool cuts = r->cuts;
    r->cuts = false;
    while (gone < continuations) {
        uint32_t part;
        struct catalog_entry *e = catalog_step(&r->releasing, &part);
        if (!e) break;
        gone += release_part(r, e, part, UINT32_MAX) > 0;
    }
    r->cuts = cuts;
    return gone > 0;
}

static bool demote_pages(struct policy_recipe *r, uint64_t pages) {
    uint64_t gone = 0;
    while (gone < pages) {
        uint32_t part;
        struct catalog_entry *e = catalog_step(&r->demoting, &part);
        if (!e) return gone > 0;
        if (e->choice == r->choice) continue;
        struct kvd_victim *v = victim_of(r, e);
        if (!v) continue;
        v->demote = true;
        catalog_take(r->demoting.catalog, e, 0, e->pages);
        gone += e->pages;
    }
    return true;
}

static bool has_pages(const struct kvd_plan *plan) {
    bool fine = !plan->rows.short_by && !plan->sequences.short_by && !plan->continuations.short_by &&
                !plan->state_slots.short_by && !plan->membership.short_by;
    for (uint32_t i = 0; i < plan->n_pools; i++) fine &= !plan->pages[i].short_by;
    return fine;
}

static uint64_t pages_short(const struct kvd_plan *plan) {
    uint64_t most = 1;
    for (uint32_t i = 0; i < plan->n_pools; i++)
        if (plan->pages[i].short_by > most) most = plan->pages[i].short_by;
    return most;
}

static uint64_t arena_short(const struct kvd_plan *plan) {
    double pages = 0, bytes = (double)plan->arena.needed;
    for (uint32_t i = 0; i < plan->n_pools; i++) pages += plan->demote_pages[i];
    return bytes > 0 && pages > 0 ? (uint64_t)((double)plan->arena.short_by * pages / bytes + 0.999) : 1;
}

/* False: nothing more can go, or what is short only an end of a sequence gives. */
static bool grow_recipe(struct policy_recipe *r, uint64_t least) {
    const struct kvd_plan *plan = &r->plan;
    bool device = !has_pages(plan);
    uint64_t pages = device ? pages_short(plan) : arena_short(plan);
    if (plan->rows.short_by || plan->sequences.short_by) return false;
    if (plan->continuations.short_by) return release_whole(r, plan->continuations.short_by);
    if (pages < least) pages = least;
    bool demotes = device && r->demotes && !plan->membership.short_by; /* it keeps membership */
    return demotes ? demote_pages(r, pages) : release_pages(r, pages);
}

static enum kvd_status ask_plan(struct policy_recipe *r) {
    r->trial.n_victims = r->n;
    r->trial.victims = r->n ? r->room : NULL;
    return kvd_plan_activation(r->client, &r->trial, &r->plan, r->error);
}

enum kvd_status recipe_find(struct policy_recipe *r) {
    enum kvd_status status = ask_plan(r);
    for (uint64_t least = 1; status == KVD_OK && r->plan.feasibility == KVD_BLOCKED; least *= 2) {
        if (!grow_recipe(r, least)) break;
        status = ask_plan(r);
    }
    return status;
}
