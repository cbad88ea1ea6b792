/* SPDX-License-Identifier: Apache-2.0
 *
 * A policy over kvd's exact answers: which continuations to demote or release so that an activation fits. The
 * daemon decides nothing: it is told the order, and answers how far one must go in it.
 *
 * The others go first. Where even all of them would not do, the source goes, too: it is moved instead of forked, and if
 * that does not help, it is a victim like the others, and the activation starts from nothing. One message each.
 */
#include <string.h>

#include "client.h"

static enum kvd_status refuse_choice(const struct kvd_plan *plan, const struct kvd_choice *choice, uint32_t max,
                                     struct kvd_error *error) {
    const struct kvd_need *need = &plan->rows;
    const char *what = "rows";
    if (choice->more)
        return client_fail(
            error, KVD_RESOURCE_EXHAUSTED,
            "needs more than %u victims at once: release some first (kvd_release), then choose again, or "
            "give room for more, at most %d",
            max, KVD_MAX_VICTIMS);
    if (plan->sequences.short_by) need = &plan->sequences, what = "sequences";
    if (plan->state_slots.short_by) need = &plan->state_slots, what = "state slots";
    if (plan->continuations.short_by) need = &plan->continuations, what = "descriptors of continuations";
    if (plan->membership.short_by) need = &plan->membership, what = "membership entries";
    for (uint32_t i = plan->n_pools < KVD_MAX_POOLS ? plan->n_pools : KVD_MAX_POOLS; i-- > 0;)
        if (plan->pages[i].short_by) need = &plan->pages[i], what = i ? "pages of pool 1" : "pages of pool 0";
    return client_fail(error, KVD_RESOURCE_EXHAUSTED,
                       "needs %llu %s, and %llu more than there would be even if everything idle went: sequences that "
                       "run, or copies under way, hold them; wait for one to end, or ask for less output",
                       (unsigned long long)need->needed, what, (unsigned long long)need->short_by);
}

/* One question. KVD_OK with an answer that is not ready: it does not do. */
static enum kvd_status ask_choice(struct kvd_client *c, const struct kvd_activation *want, struct kvd_victim *room,
                                  uint32_t max, struct kvd_choice *ret_choice, struct kvd_error *error) {
    struct msg_request request = { .type = FRAME_CHOOSE,
                                   .u.choose = { .activation = *want, .order = KVD_ORDER_RETENTION_USED, .max = max } };
    request.u.choose.activation.cold = (struct kvd_cold_source){ 0 }; /* no plan looks there */
    struct msg_reply reply;
    struct pending_call *call;
    enum kvd_status status = call_run(c, &request, &call, &reply, error);
    if (status != KVD_OK) return status;
    *ret_choice = reply.u.choice;
    if (ret_choice->n > max)
        status = client_fail(error, KVD_INTERNAL, "kvd answered %u victims, of %u", ret_choice->n, max);
    else if (ret_choice->n) memcpy(room, ret_choice->victims, ret_choice->n * sizeof *room);
    ret_choice->victims = room;
    call_done(c, call);
    return status;
}

static bool take_source_less(struct kvd_activation *want) {
    if (!want->from.bits) return false;
    if (want->keep) {
        want->keep = false;
        return true;
    }
    want->from.bits = 0;
    want->frontier = 0;
    return true;
}

enum kvd_status kvd_choose_victims(kvd_client *c, struct kvd_activation *want, struct kvd_victim *room, uint32_t max,
                                   struct kvd_error *error) {
    struct kvd_choice choice, first;
    if (!want || !room || !max)
        return client_fail(error, KVD_INVALID_ARGUMENT, "kvd_choose_victims needs an activation and room for victims");
    if (max > KVD_MAX_VICTIMS) max = KVD_MAX_VICTIMS;
    struct kvd_activation trial = *want;
    trial.n_victims = 0;
    trial.victims = NULL;
    trial.revision = 0;
    enum kvd_status status = ask_choice(c, &trial, room, max, &choice, error);
    for (first = choice; status == KVD_OK && choice.plan.feasibility == KVD_BLOCKED && take_source_less(&trial);) {
        status = ask_choice(c, &trial, room, max, &choice, error);
        if (status == KVD_ABORTED && trial.from.bits) status = KVD_OK; /* others read it: no move now */
    }
    if (status != KVD_OK) return status;
    if (choice.plan.feasibility == KVD_INFEASIBLE)
        return client_fail(
            error, KVD_INVALID_ARGUMENT,
            "this activation needs %llu pages of pool 0 and never fits this store: shorten the prompt or "
            "the output",
            (unsigned long long)choice.plan.pages[0].needed);
    if (choice.plan.feasibility != KVD_READY) return refuse_choice(&first.plan, &choice, max, error);
    trial.n_victims = choice.n;
    trial.victims = choice.n ? room : NULL;
    trial.revision = choice.plan.revision;
    *want = trial;
    return KVD_OK;
}
