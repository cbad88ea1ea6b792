/* SPDX-License-Identifier: Apache-2.0
 *
 * Maps of the requests, on struct msg_request.
 */
#include "codec_internal.h"
#include "kvd.pb-c.h"

_Static_assert((int)KVD__V1__ROLE__ROLE_OBSERVER == KVD_ROLE_OBSERVER &&
                   (int)KVD__V1__ROLE__ROLE_WORKER == KVD_ROLE_WORKER &&
                   (int)KVD__V1__ROLE__ROLE_SCHEDULER == KVD_ROLE_SCHEDULER &&
                   (int)KVD__V1__ROLE__ROLE_ADMIN == KVD_ROLE_ADMIN,
               "roles of kvd.proto and kvd_types.h");
_Static_assert((int)KVD__V1__TIER__TIER_DEVICE == KVD_TIER_DEVICE && (int)KVD__V1__TIER__TIER_HOST == KVD_TIER_HOST,
               "tiers of kvd.proto and kvd_types.h");

/* ---- header and structs ------------------------------------------------------------------------------ */

#define PB Kvd__V1__RequestHeader
#define T struct msg_header
static const struct codec_field header_fields[] = {
    HANDLE(session, session),
    U64(sequence, sequence),
    U64(deadline_ns, deadline_ns),
    U64(epoch, epoch),
};
static const struct codec_map header_map = CODEC_TABLE(kvd__v1__request_header__descriptor, header_fields);
#undef PB
#undef T

#define PB Kvd__V1__Victim
#define T struct kvd_victim
static const struct codec_field victim_fields[] = { HANDLE(continuation, continuation), BOOL(demote, demote),
                                                    U32(frontier, frontier) };
const struct codec_map codec_victim_map = CODEC_TABLE(kvd__v1__victim__descriptor, victim_fields);
#undef PB
#undef T

#define PB Kvd__V1__LentPage
#define T struct kvd_lent_page
static const struct codec_field lent_page_fields[] = { U32_PLUS(page, page), BYTES(digest, digest.bytes) };
const struct codec_map codec_lent_page_map = CODEC_TABLE(kvd__v1__lent_page__descriptor, lent_page_fields);
#undef PB
#undef T

#define PB Kvd__V1__Root
#define T struct kvd_root
static const struct codec_field root_fields[] = { BYTES(digest, digest.bytes), NAME(label, label) };
const struct codec_map codec_root_map = CODEC_TABLE(kvd__v1__root__descriptor, root_fields);
#undef PB
#undef T

#define PB Kvd__V1__ColdSource
#define T struct kvd_cold_source
static const struct codec_field cold_source_fields[] = { U32(first, first), DIGESTS(digests, digests, n),
                                                         U32S(tail, tail.tokens, tail.n), U32(retention, retention) };
static const struct codec_map cold_source_map = CODEC_TABLE(kvd__v1__cold_source__descriptor, cold_source_fields);
#undef PB
#undef T

/* ---- requests -------------------------------------------------------------------------------------------- */

#define T struct msg_request
#define HEADER SUB(header, header, header_map)

#define PB Kvd__V1__HelloRequest
static const struct codec_field hello_fields[] = {
    U32(protocol, u.hello.protocol),
    U32_IN(role, u.hello.role, KVD_ROLE_OBSERVER, KVD_ROLE_ADMIN),
    NAME_REQUIRED(name, u.hello.name),
    TEXT(library, u.hello.library),
    U32_IN(rank, u.hello.rank, 0, KVD_MAX_RANKS - 1),
    HANDLE(resume, u.hello.resume),
    U64(resume_secret, u.hello.resume_secret),
};
static const struct codec_map hello_map = CODEC_TABLE(kvd__v1__hello_request__descriptor, hello_fields);
#undef PB

#define PB Kvd__V1__EmptyRequest
static const struct codec_field empty_fields[] = { HEADER };
static const struct codec_map empty_map = CODEC_TABLE(kvd__v1__empty_request__descriptor, empty_fields);
#undef PB

#define PB Kvd__V1__DescribePlanesRequest
static const struct codec_field planes_fields[] = {
    HEADER,
    U32_IN(pool, u.planes.pool, 0, KVD_MAX_POOLS - 1),
    U32_IN(rank, u.planes.rank, 0, KVD_MAX_RANKS - 1),
    U32(first, u.planes.first),
};
static const struct codec_map planes_map = CODEC_TABLE(kvd__v1__describe_planes_request__descriptor, planes_fields);
#undef PB

#define ACTIVATION_ROWS(at)                                                                                            \
    HANDLE(worker, at.worker), HANDLE(group, at.group), HANDLE(from, at.from), BOOL(keep, at.keep),                    \
        U32(frontier, at.frontier), U32(prompt_tokens, at.prompt_tokens),                                              \
        U32(max_output_tokens, at.max_output_tokens), U32S_BY_POOL(ensure, at.ensure),                                 \
        SUBS_NEW(victims, at.victims, at.n_victims, KVD_MAX_VICTIMS, codec_victim_map), U64(revision, at.revision),    \
        SUB(root, at.root, codec_root_map), U32(checkpoint_every, at.checkpoint_every),                                \
        BOOL(checkpoint_prompt, at.checkpoint_prompt), SUB(cold, at.cold, cold_source_map)

#define PB Kvd__V1__ActivationRequest
static const struct codec_field activation_fields[] = { HEADER, ACTIVATION_ROWS(u.activation) };
static const struct codec_map activation_map = CODEC_TABLE(kvd__v1__activation_request__descriptor, activation_fields);
static const struct codec_field wanted_fields[] = { ACTIVATION_ROWS(u.choose.activation) };
static const struct codec_map wanted_map = CODEC_TABLE(kvd__v1__activation_request__descriptor, wanted_fields);
#undef PB

#define PB Kvd__V1__ChooseRequest
static const struct codec_field choose_fields[] = {
    HEADER,
    { .name = "activation", .kind = CODEC_SUB, .pb = offsetof(PB, activation), .at = 0, .sub = &wanted_map },
    U32_IN(order, u.choose.order, 0, KVD_ORDER_RETENTION_USED),
    U32(max, u.choose.max),
};
static const struct codec_map choose_map = CODEC_TABLE(kvd__v1__choose_request__descriptor, choose_fields);
#undef PB

#define PB Kvd__V1__CancelRequest
static const struct codec_field cancel_fields[] = {
    HEADER,
    U64(activate, u.cancel.activate),
    HANDLE(sequence, u.cancel.sequence),
};
static const struct codec_map cancel_map = CODEC_TABLE(kvd__v1__cancel_request__descriptor, cancel_fields);
#undef PB

#define PB Kvd__V1__SetGrowthVictimsRequest
static const struct codec_field growth_fields[] = {
    HEADER,
    HANDLE(sequence, u.growth.sequence),
    SUBS_NEW(victims, u.growth.victims, u.growth.n_victims, KVD_MAX_GROWTH, codec_victim_map),
};
static const struct codec_map growth_map = CODEC_TABLE(kvd__v1__set_growth_victims_request__descriptor, growth_fields);
#undef PB

#define PB Kvd__V1__LendPagesRequest
static const struct codec_field lend_fields[] = { HEADER, HANDLE(sequence, u.lend.sequence),
                                                  BOOL(adopt, u.lend.adopt) };
static const struct codec_map lend_map = CODEC_TABLE(kvd__v1__lend_pages_request__descriptor, lend_fields);
#undef PB

#define PB Kvd__V1__NameLentRequest
static const struct codec_field lent_names_fields[] = {
    HEADER,
    HANDLE(sequence, u.lent_names.sequence),
    HANDLE(from, u.lent_names.from),
    U32(first, u.lent_names.first),
    SUB(root, u.lent_names.root, codec_root_map),
    SUBS_NEW(pages, u.lent_names.pages, u.lent_names.n, KVD_MAX_LENT, codec_lent_page_map),
    U32(retention, u.lent_names.retention),
    BOOL(replace, u.lent_names.replace),
    U32S(tail, u.lent_names.tail.tokens, u.lent_names.tail.n),
};
static const struct codec_map lent_names_map = CODEC_TABLE(kvd__v1__name_lent_request__descriptor, lent_names_fields);
#undef PB

#define PB Kvd__V1__ReturnLentRequest
static const struct codec_field lent_return_fields[] = {
    HEADER,
    HANDLE(sequence, u.lent_return.sequence),
    BOOL(again, u.lent_return.again),
    SUBS_NEW(pages, u.lent_return.pages, u.lent_return.n, KVD_MAX_LENT, codec_lent_page_map),
};
static const struct codec_map lent_return_map =
    CODEC_TABLE(kvd__v1__return_lent_request__descriptor, lent_return_fields);
#undef PB

#define PB Kvd__V1__ReadChainRequest
static const struct codec_field read_chain_fields[] = {
    HEADER,
    HANDLE(continuation, u.read_chain.continuation),
    U32(first, u.read_chain.first),
};
static const struct codec_map read_chain_map = CODEC_TABLE(kvd__v1__read_chain_request__descriptor, read_chain_fields);
#undef PB

#define PB Kvd__V1__CheckColdTierRequest
static const struct codec_field check_cold_fields[] = { HEADER, U32_IN(objects, u.check_cold, 0, KVD_MAX_COLD_CHECK) };
static const struct codec_map check_cold_map =
    CODEC_TABLE(kvd__v1__check_cold_tier_request__descriptor, check_cold_fields);
#undef PB

#define PB Kvd__V1__FindRequest
static const struct codec_field find_fields[] = {
    HEADER,
    U32_IN(max, u.find.max, 0, KVD_MAX_HITS),
    DIGESTS(digests, u.find.digests, u.find.n),
    U32(first, u.find.first),
    HANDLE(anchor, u.find.anchor),
    BYTES(root, u.find.root.bytes),
    U32(prompt_tokens, u.find.prompt_tokens),
    U32(token_page, u.find.token_page),
    U32S(tokens, u.find.tokens.tokens, u.find.tokens.n),
};
static const struct codec_map find_map = CODEC_TABLE(kvd__v1__find_request__descriptor, find_fields);
#undef PB

#define PB Kvd__V1__ListRequest
static const struct codec_field list_fields[] = {
    HEADER,
    U32(cursor, u.list.cursor),
    U32_IN(max, u.list.max, 0, KVD_MAX_LIST),
    SUB(root, u.list.root, codec_root_map),
};
static const struct codec_map list_map = CODEC_TABLE(kvd__v1__list_request__descriptor, list_fields);
#undef PB

#define PB Kvd__V1__ListChangesRequest
static const struct codec_field changes_fields[] = {
    HEADER,
    U64(cursor, u.changes.cursor),
    U32_IN(max, u.changes.max, 0, KVD_MAX_LIST),
};
static const struct codec_map changes_map = CODEC_TABLE(kvd__v1__list_changes_request__descriptor, changes_fields);
#undef PB

#define PB Kvd__V1__RoundRequest
static const struct codec_field round_fields[] = { HEADER, CUSTOM("round", codec_round_load, codec_round_store) };
static const struct codec_map round_map = CODEC_TABLE(kvd__v1__round_request__descriptor, round_fields);
#undef PB

#define PB Kvd__V1__NamePagesRequest
static const struct codec_field names_fields[] = {
    HEADER,
    HANDLE(sequence, u.names.sequence),
    U32(first, u.names.first),
    DIGESTS(digests, u.names.digests, u.names.n),
};
static const struct codec_map names_map = CODEC_TABLE(kvd__v1__name_pages_request__descriptor, names_fields);
#undef PB

#define PB Kvd__V1__CheckpointRequest
static const struct codec_field checkpoint_fields[] = {
    HEADER,
    HANDLE(sequence, u.checkpoint.sequence),
    U32S(tail, u.checkpoint.tail.tokens, u.checkpoint.tail.n),
    U32(retention, u.checkpoint.retention),
    SUBS_NEW(victims, u.checkpoint.victims, u.checkpoint.n_victims, KVD_MAX_VICTIMS, codec_victim_map),
    U64(revision, u.checkpoint.revision),
};
static const struct codec_map checkpoint_map = CODEC_TABLE(kvd__v1__checkpoint_request__descriptor, checkpoint_fields);
#undef PB

#define PB Kvd__V1__FinishRequest
static const struct codec_field finish_fields[] = {
    HEADER,
    HANDLE(sequence, u.finish.sequence),
    BOOL(retain, u.finish.retain),
    U32S(tail, u.finish.tail.tokens, u.finish.tail.n),
    U32(retention, u.finish.retention),
};
static const struct codec_map finish_map = CODEC_TABLE(kvd__v1__finish_request__descriptor, finish_fields);
#undef PB

#define PB Kvd__V1__ContinuationRequest
static const struct codec_field continuation_fields[] = {
    HEADER,
    HANDLE(continuation, u.continuation.continuation),
    U32(retention, u.continuation.retention),
};
static const struct codec_map continuation_map =
    CODEC_TABLE(kvd__v1__continuation_request__descriptor, continuation_fields);
#undef PB

#define PB Kvd__V1__ShortenRequest
static const struct codec_field shorten_fields[] = {
    HEADER,
    HANDLE(continuation, u.shorten.continuation),
    U32(frontier, u.shorten.frontier),
};
static const struct codec_map shorten_map = CODEC_TABLE(kvd__v1__shorten_request__descriptor, shorten_fields);
#undef PB

#define PB Kvd__V1__ReleaseDomainRequest
static const struct codec_field release_dom_fields[] = {
    HEADER,
    SUB(root, u.release_domain.root, codec_root_map),
    U32(cursor, u.release_domain.cursor),
};
static const struct codec_map release_dom_map =
    CODEC_TABLE(kvd__v1__release_domain_request__descriptor, release_dom_fields);
#undef PB

#define PB Kvd__V1__DemoteRequest
static const struct codec_field demote_fields[] = {
    HEADER,
    HANDLE(continuation, u.demote.continuation),
    BOOL(keep_device, u.demote.keep_device),
};
static const struct codec_map demote_map = CODEC_TABLE(kvd__v1__demote_request__descriptor, demote_fields);
#undef PB

#define PB Kvd__V1__PrefetchRequest
static const struct codec_field prefetch_fields[] = { HEADER, HANDLE(continuation, u.prefetch) };
static const struct codec_map prefetch_map = CODEC_TABLE(kvd__v1__prefetch_request__descriptor, prefetch_fields);
#undef PB

#define PB Kvd__V1__DropReplicaRequest
static const struct codec_field drop_fields[] = {
    HEADER,
    HANDLE(continuation, u.drop.continuation),
    U32_IN(tier, u.drop.tier, KVD_TIER_DEVICE, KVD_TIER_HOST),
};
static const struct codec_map drop_map = CODEC_TABLE(kvd__v1__drop_replica_request__descriptor, drop_fields);
#undef PB

#define PB Kvd__V1__OpenGroupRequest
static const struct codec_field open_group_fields[] = { HEADER, HANDLES(members, u.group.members, u.group.n) };
static const struct codec_map open_group_map = CODEC_TABLE(kvd__v1__open_group_request__descriptor, open_group_fields);
#undef PB

#define PB Kvd__V1__CloseGroupRequest
static const struct codec_field close_group_fields[] = { HEADER, HANDLE(group, u.group_id) };
static const struct codec_map close_group_map =
    CODEC_TABLE(kvd__v1__close_group_request__descriptor, close_group_fields);
#undef PB

#define PB Kvd__V1__FenceRequest
static const struct codec_field fence_fields[] = { HEADER, HANDLE(session, u.session) };
static const struct codec_map fence_map = CODEC_TABLE(kvd__v1__fence_request__descriptor, fence_fields);
#undef PB

#define PB Kvd__V1__DrainRequest
static const struct codec_field drain_fields[] = { HEADER, BOOL(drain, u.drain) };
static const struct codec_map drain_map = CODEC_TABLE(kvd__v1__drain_request__descriptor, drain_fields);
#undef PB

#define PB Kvd__V1__SubscribeRequest
static const struct codec_field subscribe_fields[] = { HEADER, U32(event_mask, u.event_mask) };
static const struct codec_map subscribe_map = CODEC_TABLE(kvd__v1__subscribe_request__descriptor, subscribe_fields);
#undef PB

#define PB Kvd__V1__ColdRequest
static const struct codec_field cold_fields[] = {
    HEADER,
    SUB(root, u.cold.root, codec_root_map),
    HANDLE(from, u.cold.from),
    U32(first, u.cold.first),
    DIGESTS(digests, u.cold.digests, u.cold.n),
    U32S(tail, u.cold.tail.tokens, u.cold.tail.n),
    U32(retention, u.cold.retention),
};
static const struct codec_map cold_map = CODEC_TABLE(kvd__v1__cold_request__descriptor, cold_fields);
#undef PB

const struct codec_map *codec_request_map(uint16_t type) {
    static const struct codec_map *const maps[FRAME_TYPE_END] = {
#define MAP(constant, number, name, function, request, reply, ...) [number] = &request##_map,
        FRAME_LIST(MAP)
#undef MAP
    };
    return type < FRAME_TYPE_END ? maps[type] : NULL;
}
