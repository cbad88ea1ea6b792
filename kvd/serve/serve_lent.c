/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages that an engine hands out itself: LendPages, NameLent, ReturnLent, ReadChain (ENG-1 to ENG-4).
 */
#include "bundle.h"
#include "core.h"
#include "pending.h"
#include "requests.h"
#include "session.h"
#include "tenant.h"
#include "transfer.h"

/* With tenants = uid the store has other names than the engine gives, and it could not know again what it adopts. */
static bool check_shared(struct call *call) {
    if (!call->service->tenancy) return true;
    call_refuse(
        call, KVD_FAILED_PRECONDITION,
        "%s is for engines that hand out pages themselves and know them by their digests; with tenants = uid in "
        "section [access] kvd salts these: give such an engine a kvd of its own, with tenants = shared",
        frame_type_name(call->request.type));
    return false;
}

void serve_lend_pages(struct call *call) {
    struct service *s = call->service;
    const struct kvd_lend *lend = &call->request.u.lend;
    struct kvd_lent *r = &call->reply.u.lent;
    struct store_refusal refusal = { 0 };
    struct store_lent lent;
    struct bundle *b = check_shared(call) ? call_bundle(call, lend->sequence) : NULL;
    struct pending *op = b ? pending_new(call) : NULL;
    if (!op) return;
    if (store_lend(s->store, b->seq, b->lease, lend->adopt, &lent, &refusal)) {
        pending_free(s, op);
        call_refuse_store(call, &refusal);
        return;
    }
    *r = (struct kvd_lent){ .adopted = lent.adopted, .revision = store_revision(s->store), .n_pools = 1 };
    r->pool[0] = lent.pool[0];
    transfer_begin(s->transfer);
    transfer_rows(s->transfer, lent.pool);
    publish_rows(call, op);
}

void serve_name_lent(struct call *call) {
    struct service *s = call->service;
    const struct kvd_lent_names *names = &call->request.u.lent_names;
    const struct store_lent_name want = { .from = tenant_use(call, names->from),
                                          .first = names->first,
                                          .n = names->n,
                                          .root = names->root,
                                          .pages = names->pages,
                                          .tail = &names->tail,
                                          .retention = names->retention,
                                          .replace = names->replace };
    struct store_refusal refusal = { 0 };
    struct store_lent_named named;
    const struct bundle *b = call_bundle(call, names->sequence);
    if (!b) return;
    if (!names->from.bits && store_root_is_none(&names->root.digest)) {
        call_refuse(call, KVD_INVALID_ARGUMENT,
                    "NameLent without `from` and without a root: names belong to a domain; send the root digest of the "
                    "chain (kvd_chain_root)");
        return;
    }
    if (store_name_lent(s->store, b->seq, b->lease, &want, &named, &refusal)) {
        call_refuse_cont(call, &refusal, names->from);
        return;
    }
    tenant_note(s, named.cont, b->tenant);
    call->reply.u.lent_named = (struct kvd_lent_named){ .continuation.bits = named.cont.bits,
                                                        .stood = named.stood,
                                                        .revision = store_revision(s->store) };
}

void serve_return_lent(struct call *call) {
    struct service *s = call->service;
    const struct kvd_lent_return *back = &call->request.u.lent_return;
    struct kvd_pool_view view[KVD_MAX_POOLS] = { 0 };
    struct store_refusal refusal = { 0 };
    const struct bundle *b = call_bundle(call, back->sequence);
    struct pending *op = b ? pending_new(call) : NULL;
    if (!op) return;
    if (store_return_lent(s->store, b->seq, b->lease, back->pages, back->n, back->again, &view[0], &refusal)) {
        pending_free(s, op);
        call_refuse_store(call, &refusal);
        return;
    }
    call->reply.u.revision = store_revision(s->store);
    transfer_begin(s->transfer);
    transfer_rows(s->transfer, view);
    publish_rows(call, op);
}

bool chain_reserve(struct call *call) {
    call->memory = codec_arena_take(call->scratch->arena, KVD_MAX_LENT * sizeof(struct kvd_lent_page));
    return call->memory != NULL;
}

void serve_read_chain(struct call *call) {
    struct store_refusal refusal = { 0 };
    kvd_continuation named = call->request.u.read_chain.continuation;
    call->reply.u.chain.pages = call->memory;
    if (!check_shared(call)) return;
    if (store_read_chain(call->service->store, tenant_use(call, named), call->request.u.read_chain.first, KVD_MAX_LENT,
                         call->memory, &call->reply.u.chain.n, &refusal))
        call_refuse_cont(call, &refusal, named);
}
