/* SPDX-License-Identifier: Apache-2.0
 *
 * Continuations that give way: released, shortened or demoted, for an activation (ACT-8), a checkpoint (FIT-1), or the
 * growth of a lease (FIT-4).
 */
#include "store_internal.h"

bool cont_may_go(const struct cont *cont) {
    bool live = cont_is_live(cont) && !MUTANT(live_one_is_taken);
    return cont->published && !live && !cont->claimed && !cont->pins && !cont->image_pins;
}

bool victim_for_growth(const struct store *store, const struct kvd_victim *want, struct victim *ret_victim) {
    struct cont *cont = cont_find(store, store_cont_of(want->continuation));
    if (!cont || cont->moves || (!cont_may_go(cont) && !MUTANT(growth_takes_what_is_claimed))) return false;
    bool rests = want->demote && store->arena && tier_all_current(store, cont);
    if (want->demote && cont->demoted) return false; /* it rests, and has nothing on the device */
    if (!want->demote && want->frontier &&
        (want->frontier >= cont->frontier || cont_check_cut(store, cont, want->frontier, NULL)))
        return false;
    *ret_victim = (struct victim){ cont, rests, want->demote ? 0 : want->frontier };
    return true;
}

/* What it is to become is possible, but for its claims. */
static int check_victim(const struct store *store, const struct kvd_victim *want, const struct cont *victim,
                        struct store_refusal *refusal) {
    if (want->demote && !store->arena) return store_refuse(refusal, STORE_E_TIER, STORE_S_ARENA, KVD_NONE, 0, 0, 0);
    if (want->demote && want->frontier)
        return store_refuse(refusal, STORE_E_ARGUMENT, STORE_S_RECIPE, KVD_NONE, want->frontier, 0, 0);
    if (want->frontier && want->frontier == victim->frontier)
        return store_refuse(refusal, STORE_E_RANGE, STORE_S_FRONTIER, KVD_NONE, want->frontier, victim->frontier,
                            victim->frontier - 1);
    return want->frontier ? cont_check_cut(store, victim, want->frontier, refusal) : STORE_OK;
}

int recipe_resolve(const struct store *store, const struct recipe *recipe, struct victim *ret_victims, uint32_t *ret_n,
                   struct store_refusal *refusal) {
    uint32_t stamp = store_next_stamp(store), n = recipe->n;
    if (recipe->revision && recipe->revision != store->revision)
        return store_refuse(refusal, STORE_E_REVISION, STORE_S_RECIPE, KVD_NONE, recipe->revision, store->revision, 0);
    if (n > KVD_MAX_VICTIMS)
        return store_refuse(refusal, STORE_E_RANGE, STORE_S_RECIPE, KVD_NONE, n, 0, KVD_MAX_VICTIMS);
    *ret_n = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct kvd_victim *want = &recipe->victims[i];
        struct cont *victim = cont_find(store, store_cont_of(want->continuation));
        if (!victim)
            return store_refuse(refusal, STORE_E_STALE, STORE_S_RECIPE, KVD_NONE, want->continuation.bits, 0, 0);
        if (victim->stamp == stamp || (victim == recipe->source && !recipe->move))
            return store_refuse(refusal, STORE_E_ARGUMENT, STORE_S_RECIPE, KVD_NONE, i, i, n);
        victim->stamp = stamp;
        if (cont_check_live(store, victim, refusal)) return STORE_E_BUSY;
        if (!cont_may_go(victim))
            return store_refuse(refusal, STORE_E_REVISION, STORE_S_RECIPE, KVD_NONE, recipe->revision, store->revision,
                                0);
        if (victim == recipe->source) continue;
        int rc = check_victim(store, want, victim, refusal);
        if (rc) return rc;
        ret_victims[(*ret_n)++] = (struct victim){ victim, want->demote, want->frontier };
    }
    return STORE_OK;
}

void victim_release(struct store *store, const struct victim *victim) {
    if (!victim->frontier || MUTANT(shortened_victim_goes_whole)) {
        cont_release(store, victim->cont, STORE_EVICTED);
        return;
    }
    store->lives.victims_shortened++;
    cont_shorten(store, victim->cont, victim->frontier);
}

void victim_give_way(struct store *store, const struct victim *victim) {
    if (!victim->demote) {
        victim_release(store, victim);
        return;
    }
    store->lives.victims_demoted++;
    cont_demote(store, victim->cont);
}
