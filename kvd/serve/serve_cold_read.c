/* SPDX-License-Identifier: Apache-2.0
 *
 * FindCold and LoadCold: what the engine of the cold tier has of a prompt, and that into the arena. The core looks at
 * nothing but its own state here, and hands the question over; the answer comes when the engine's does (COLD-2).
 */
#include <string.h>

#include "cold_reader.h"
#include "core.h"
#include "pending.h"
#include "requests.h"
#include "session.h"
#include "tenant.h"

bool cold_reserve(struct call *call) {
    struct kvd_cold_want *want = &call->request.u.cold;
    tenant_salt_root(call, &want->root.digest);
    if (!tenant_salt(call, &want->digests, want->n)) return false;
    call->cold = cold_job_new(want, call->request.type == FRAME_LOAD_COLD, 0);
    return call->cold != NULL;
}

static bool check_tier(struct call *call) {
    const struct service *s = call->service;
    if (!s->cold_reader)
        call_refuse(call, KVD_FAILED_PRECONDITION,
                    "%s asks the cold tier, and there is none; set address = in section [cold]",
                    frame_type_name(call->request.type));
    else if (s->stopping)
        call_refuse(call, KVD_UNAVAILABLE, "kvd stops, and reads nothing from the cold tier any more: ask another one");
    else return true;
    return false;
}

bool cold_check_want(struct call *call) {
    const struct kvd_cold_want *want = &call->cold->want;
    const char *name = frame_type_name(call->request.type);
    if (store_root_is_none(&want->root.digest))
        call_refuse(call, KVD_INVALID_ARGUMENT,
                    "%s without a root: KV is found within one domain only; send the root digest of the prompt's "
                    "chain (kvd_chain_root)",
                    name);
    else if (want->n ? want->first > UINT32_MAX / KVD_PAGE_TOKENS - KVD_MAX_DIGESTS - 1 : want->first || !want->tail.n)
        call_refuse(call, KVD_INVALID_ARGUMENT,
                    "%s from page %u with %u digests and %u tokens behind them asks for nothing that has a name; send "
                    "the digests of the pages, or, of a prompt of less than a page, its tokens",
                    name, want->first, want->n, want->tail.n);
    else if (call->cold->load && (want->first > 0) != (want->from.bits != 0))
        call_refuse(call, KVD_INVALID_ARGUMENT,
                    "%s from page %u with %s continuation before it: what is loaded begins with the first pages "
                    "of `from`, or at page 0 without one",
                    name, want->first, want->from.bits ? "a" : "no");
    else return true;
    return false;
}

static void hand_over(struct call *call, struct pending *op) {
    struct cold_job *job = call->cold;
    call->cold = NULL;
    job->arrived_ns = call->now_ns;
    job->session = call->request.header.session;
    job->uid = call->session->peer.uid;
    job->from = tenant_use(call, job->want.from);
    cold_reader_ask(call->service, job, op);
    call->parked = true;
}

void serve_find_cold(struct call *call) {
    struct pending *op = check_tier(call) && cold_check_want(call) ? pending_new(call) : NULL;
    if (op) hand_over(call, op);
}

void cold_load_for(struct call *call) {
    if (!pending_check_slow(call)) return;
    struct pending *quick = pending_new(call), *op = quick ? pending_make_slow(call->service, quick) : NULL;
    if (!op) return;
    call->slow = true;
    hand_over(call, op);
}

void serve_load_cold(struct call *call) {
    if (check_tier(call) && cold_check_want(call)) cold_load_for(call);
}
