/* SPDX-License-Identifier: Apache-2.0
 *
 * Maps of the replies, on struct msg_reply, and of the event. The first row of every reply is its header: the codec
 * stops there unless the status is OK.
 */
#include "codec_internal.h"
#include "kvd.pb-c.h"

#define STATUS_SAME(name, code, ...)                                                                                   \
    _Static_assert((int)KVD__V1__STATUS__STATUS_##name == (code), "status of kvd.proto and kvd_types.h");
KVD_STATUS_LIST(STATUS_SAME)
#undef STATUS_SAME
_Static_assert((int)KVD__V1__FEASIBILITY__FEASIBILITY_BLOCKED == KVD_BLOCKED &&
                   (int)KVD__V1__FEASIBILITY__FEASIBILITY_INFEASIBLE == KVD_INFEASIBLE,
               "feasibilities of kvd.proto and kvd_types.h");
_Static_assert((int)KVD__V1__EVENT_KIND__EVENT_PRESSURE == KVD_EVENT_PRESSURE &&
                   (int)KVD__V1__EVENT_KIND__EVENT_BOUNDED == KVD_EVENT_BOUNDED &&
                   (int)KVD__V1__EVENT_KIND__EVENT_SESSION_LOST == KVD_EVENT_SESSION_LOST &&
                   (int)KVD__V1__EVENT_KIND__EVENT_SEQUENCE_ENDED == KVD_EVENT_SEQUENCE_ENDED &&
                   (int)KVD__V1__EVENT_KIND__EVENT_DRAINING == KVD_EVENT_DRAINING &&
                   (int)KVD__V1__EVENT_KIND__EVENT_LOST == KVD_EVENT_LOST &&
                   (int)KVD__V1__EVENT_KIND__EVENT_GAVE_WAY == KVD_EVENT_GAVE_WAY,
               "events of kvd.proto and kvd_types.h");

/* ---- structs ------------------------------------------------------------------------------------------- */

#define PB Kvd__V1__ReplyHeader
#define T struct msg_reply
static const struct codec_field header_fields[] = { U32_IN(status, status, KVD_OK, KVD_UNAUTHENTICATED),
                                                    TEXT(message, message), U64(epoch, epoch),
                                                    U64(next_sequence, next_sequence) };
static const struct codec_map header_map = CODEC_TABLE(kvd__v1__reply_header__descriptor, header_fields);
#undef PB
#undef T

#define PB Kvd__V1__RegionInfo
#define T struct kvd_region_info
static const struct codec_field region_fields[] = {
    U32_IN(kind, kind, 0, KVD__V1__REGION_KIND__REGION_FD),
    U64(bytes, bytes),
    BYTES(ipc_handle, ipc_handle),
    BYTES(uuid, uuid),
    U64(owner_pid, owner_pid),
    U64(local_address, local_address),
    U32(fd_index, fd_index),
};
static const struct codec_map region_map = CODEC_TABLE(kvd__v1__region_info__descriptor, region_fields);
#undef PB
#undef T

#define PB Kvd__V1__LayerGroup
#define T struct kvd_layer_group
static const struct codec_field layer_group_fields[] = {
    NAME(name, name),
    U32_IN(format, format, 0, KVD__V1__FORMAT__FORMAT_PACKED),
    U32_IN(storage, storage, 0, KVD__V1__STORAGE__STORAGE_FP8_TENSOR),
    U32_IN(order, order, 0, KVD__V1__PLANE_ORDER__ORDER_HEAD_MAJOR),
    U32(n_layers, n_layers),
    U32(n_kv_heads, n_kv_heads),
    U32(head_dim, head_dim),
    U32(v_head_dim, v_head_dim),
    U32(row_bytes, row_bytes),
};
static const struct codec_map layer_group_map = CODEC_TABLE(kvd__v1__layer_group__descriptor, layer_group_fields);
#undef PB
#undef T

#define PB Kvd__V1__PoolInfo
#define T struct kvd_pool_info
static const struct codec_field pool_info_fields[] = {
    U32_IN(storage, storage, 0, KVD__V1__STORAGE__STORAGE_FP8_TENSOR),
    U32_IN(order, order, 0, KVD__V1__PLANE_ORDER__ORDER_HEAD_MAJOR),
    U32_IN(arrangement, arrangement, 0, KVD__V1__ARRANGEMENT__ARRANGEMENT_RECORD),
    U32(n_layers, n_layers),
    U32(n_kv_heads, n_kv_heads),
    U32(head_dim, head_dim),
    U32_IN(n_ranks, n_ranks, 0, KVD_MAX_RANKS),
    U32(pages, pages),
    U64(page_bytes, page_bytes),
    SUBS_CUT(planes, planes, region_map),
    SUBS_CUT(table, table, region_map),
    SUBS(group, group, n_groups, layer_group_map),
    NAME(name, name),
    U32(window, window),
    U32(window_lead, window_lead),
    BOOL(window_aligned, window_aligned),
};
static const struct codec_map pool_info_map = CODEC_TABLE(kvd__v1__pool_info__descriptor, pool_info_fields);
#undef PB
#undef T

#define PB Kvd__V1__StoreInfo
#define T struct kvd_store_info
static const struct codec_field store_fields[] = {
    NAME(name, name),
    U32_IN(backend, backend, 0, KVD__V1__BACKEND__BACKEND_DFLASH),
    U32(max_context, max_context),
    U32(max_concurrency, max_concurrency),
    U32(row_entries, row_entries),
    U32(draft_window, draft_window),
    U32(map_ahead, map_ahead),
    U64(state_bytes, state_bytes),
    U64(capacity_tokens, capacity_tokens),
    BOOL(lease_growth, lease_growth),
    BYTES(geometry, geometry.bytes),
    SUBS(pool, pool, n_pools, pool_info_map),
    U32(state_slots, state_slots),
    U64(state_stride, state_stride),
    SUBS_CUT(state, state, region_map),
    TEXT(fd_socket, fd_socket),
    U64(fd_token, fd_token),
    BOOL(pages_outlive, pages_outlive),
    U32(board_index, board_index),
    U32(bell_index, bell_index),
};
static const struct codec_map store_map = CODEC_TABLE(kvd__v1__store_info__descriptor, store_fields);
#undef PB
#undef T

#define PB Kvd__V1__PlaneInfo
#define T struct kvd_plane_info
static const struct codec_field plane_fields[] = {
    U32(ordinal, ordinal),
    U32(layer, layer),
    U32_IN(slot, slot, 0, KVD__V1__PLANE_SLOT__SLOT_V_SCALE),
    U32_IN(dtype, dtype, 0, KVD__V1__ELEMENT_TYPE__ELEMENT_F16),
    U32(extent, extent),
    U32(n_heads, n_heads),
    U64(offset, offset),
    U64(nb0, nb0),
    U64(nb1, nb1),
    U64(nb2, nb2),
    U64(nb3, nb3),
    U32_IN(format, format, 0, KVD__V1__FORMAT__FORMAT_PACKED),
    U32_IN(order, order, 0, KVD__V1__PLANE_ORDER__ORDER_HEAD_MAJOR),
};
static const struct codec_map plane_map = CODEC_TABLE(kvd__v1__plane_info__descriptor, plane_fields);
#undef PB
#undef T

#define PB Kvd__V1__Need
#define T struct kvd_need
static const struct codec_field need_fields[] = { U64(needed, needed), U64(available, available),
                                                  U64(short_by, short_by) };
static const struct codec_map need_map = CODEC_TABLE(kvd__v1__need__descriptor, need_fields);
#undef PB
#undef T

#define PB Kvd__V1__PoolView
#define T struct kvd_pool_view
static const struct codec_field view_fields[] = {
    U32(row, row),
    U32(membership, membership),
    U32(entitlement, entitlement),
    U32(committed, committed),
    U32(protected_frontier, protected_frontier),
    U32(slice_begin, slice_begin),
    U32(slice_count, slice_count),
    U32(first, first),
};
static const struct codec_map view_map = CODEC_TABLE(kvd__v1__pool_view__descriptor, view_fields);
#undef PB
#undef T

#define PB Kvd__V1__Hit
#define T struct kvd_hit
static const struct codec_field hit_fields[] = {
    HANDLE(continuation, continuation), U32(usable, usable), U32(frontier, frontier), U32(retention, retention),
    U32(restore_pages, restore_pages),  BOOL(live, live),
};
static const struct codec_map hit_map = CODEC_TABLE(kvd__v1__hit__descriptor, hit_fields);
#undef PB
#undef T

#define PB Kvd__V1__ContinuationInfo
#define T struct kvd_continuation_info
static const struct codec_field continuation_fields[] = {
    HANDLE(continuation, continuation),
    U32(frontier, frontier),
    U32(named_pages, named_pages),
    U32(retention, retention),
    U32(sharers, sharers),
    BOOL(tail_named, tail_named),
    BOOL(claimed, claimed),
    U64(created, created),
    U64(used, used),
    U32S_BY_POOL(pages, pages),
    U32S_BY_POOL(exclusive_pages, exclusive_pages),
    U32S_BY_POOL(device_pages, device_pages),
    U32S_BY_POOL(host_pages, host_pages),
    BOOL(demoted, demoted),
    BOOL(moving, moving),
    BOOL(image_on_device, image_on_device),
    BOOL(image_in_host, image_in_host),
    U32_PLUS(state_slot, state_slot),
    SUB(root, root, codec_root_map),
    U64(age_ns, age_ns),
    U64(idle_ns, idle_ns),
    BOOL(live, live),
    BOOL(rolling, rolling),
};
static const struct codec_map continuation_map =
    CODEC_TABLE(kvd__v1__continuation_info__descriptor, continuation_fields);
#undef PB
#undef T

#define PB Kvd__V1__SequenceInfo
#define T struct kvd_sequence_info
static const struct codec_field sequence_fields[] = {
    HANDLE(sequence, sequence),
    HANDLE(owner, owner),
    HANDLE(worker, worker),
    HANDLE(group, group),
    U32_IN(state, state, 0, KVD__V1__SEQUENCE_STATE__SEQUENCE_QUARANTINED),
    BOOL(ending, ending),
    U32(prompt_tokens, prompt_tokens),
    U32(ceiling_tokens, ceiling_tokens),
    U32(named_pages, named_pages),
    SUBS(pool, pool, n_pools, view_map),
    U32_PLUS(state_slot, state_slot),
    SUB(root, root, codec_root_map),
    U64(age_ns, age_ns),
    BOOL(lends, lends),
};
static const struct codec_map sequence_map = CODEC_TABLE(kvd__v1__sequence_info__descriptor, sequence_fields);
#undef PB
#undef T

#define PB Kvd__V1__SessionInfo
#define T struct kvd_session_info
static const struct codec_field session_fields[] = {
    HANDLE(session, session),
    U32_IN(role, role, 0, KVD_ROLE_ADMIN),
    U32(rank, rank),
    U64(uid, uid),
    U64(gid, gid),
    U64(pid, pid),
    BOOL(connected, connected),
    BOOL(fenced, fenced),
    U32(sequences, sequences),
    U64(requests, requests),
    NAME(name, name),
    U64(age_ns, age_ns),
};
static const struct codec_map session_map = CODEC_TABLE(kvd__v1__session_info__descriptor, session_fields);
#undef PB
#undef T

#define PB Kvd__V1__Setting
#define T struct kvd_setting
static const struct codec_field setting_fields[] = {
    NAME(section, section), NAME(name, name),       TEXT(value, value),
    TEXT(source, source),   TEXT(pending, pending), BOOL(restart, restart),
};
static const struct codec_map setting_map = CODEC_TABLE(kvd__v1__setting__descriptor, setting_fields);
#undef PB
#undef T

#define PB Kvd__V1__ReuseSize
#define T struct kvd_reuse_size
static const struct codec_field reuse_size_fields[] = { U64(pages, pages), U64(found_tokens, found_tokens) };
static const struct codec_map reuse_size_map = CODEC_TABLE(kvd__v1__reuse_size__descriptor, reuse_size_fields);
#undef PB
#undef T

#define PB Kvd__V1__ReuseDomain
#define T struct kvd_reuse_domain
static const struct codec_field reuse_domain_fields[] = { NAME(label, label), U64(activations, activations),
                                                          U64(prompt_tokens, prompt_tokens),
                                                          U64(reused_tokens, reused_tokens) };
static const struct codec_map reuse_domain_map = CODEC_TABLE(kvd__v1__reuse_domain__descriptor, reuse_domain_fields);
#undef PB
#undef T

#define PB Kvd__V1__ReuseInfo
#define T struct kvd_reuse
static const struct codec_field reuse_fields[] = {
    U64(prompt_tokens, prompt_tokens),
    U64(pages_of_sample, pages_of_sample),
    SUBS(sizes, sizes, n_sizes, reuse_size_map),
    SUBS(domains, domains, n_domains, reuse_domain_map),
};
static const struct codec_map reuse_info_map = CODEC_TABLE(kvd__v1__reuse_info__descriptor, reuse_fields);
#undef PB
#undef T

#define PB Kvd__V1__PoolStats
#define T struct kvd_pool_stats
static const struct codec_field pool_stats_fields[] = { U32(capacity, capacity),       U32(allocated, allocated),
                                                        U32(reserved, reserved),       U32(available, available),
                                                        U32(quarantined, quarantined), U32(shared, shared),
                                                        U32(rows_used, rows_used),     U32(lent, lent) };
static const struct codec_map pool_stats_map = CODEC_TABLE(kvd__v1__pool_stats__descriptor, pool_stats_fields);
#undef PB
#undef T

/* ---- event ------------------------------------------------------------------------------------------------- */

#define PB Kvd__V1__Event
#define T struct kvd_event
static const struct codec_field event_fields[] = {
    U32_IN(kind, kind, KVD_EVENT_PRESSURE, KVD_EVENT_GAVE_WAY),
    U32_IN(pool, pool, 0, KVD_MAX_POOLS - 1),
    U32(frontier, frontier),
    U32(available, available),
    HANDLE(sequence, sequence),
    HANDLE(continuation, continuation),
    HANDLE(session, session),
    HANDLE(group, group),
    U64(dropped, dropped),
    U64(epoch, epoch),
};
const struct codec_map codec_event_map = CODEC_TABLE(kvd__v1__event__descriptor, event_fields);
#undef PB
#undef T

/* ---- replies ------------------------------------------------------------------------------------------------ */

#define T struct msg_reply
#define HEADER                                                                                                         \
    { .name = "header", .kind = CODEC_SUB, .pb = offsetof(PB, header), .at = 0, .sub = &header_map }

#define PB Kvd__V1__EmptyReply
static const struct codec_field empty_fields[] = { HEADER };
static const struct codec_map empty_map = CODEC_TABLE(kvd__v1__empty_reply__descriptor, empty_fields);
#undef PB

#define PB Kvd__V1__HelloReply
static const struct codec_field hello_fields[] = {
    HEADER,
    HANDLE(session, u.hello.session),
    U64(secret, u.hello.secret),
    U64(epoch, u.hello.epoch),
    U64(last_sequence, u.hello.last_sequence),
    U32(protocol, u.hello.protocol),
    NAME(store, u.hello.store),
    TEXT(server, u.hello.server),
    BOOL(ring, u.hello.ring),
};
static const struct codec_map hello_map = CODEC_TABLE(kvd__v1__hello_reply__descriptor, hello_fields);
#undef PB

#define PB Kvd__V1__OpenRingReply
static const struct codec_field ring_fields[] = {
    HEADER,
    TEXT(fd_socket, u.ring.fd_socket),
    U64(fd_token, u.ring.fd_token),
    U32(segment_index, u.ring.segment_index),
    U32(doorbell_index, u.ring.doorbell_index),
};
static const struct codec_map ring_map = CODEC_TABLE(kvd__v1__open_ring_reply__descriptor, ring_fields);
#undef PB

#define PB Kvd__V1__DescribeStoreReply
static const struct codec_field describe_fields[] = { HEADER, SUB_NEW(store, u.store, store_map) };
static const struct codec_map describe_map = CODEC_TABLE(kvd__v1__describe_store_reply__descriptor, describe_fields);
#undef PB

#define PB Kvd__V1__DescribePlanesReply
static const struct codec_field planes_fields[] = {
    HEADER,
    U32(total, u.planes.total),
    SUBS_NEW(planes, u.planes.items, u.planes.n, KVD_MAX_LIST, plane_map),
};
static const struct codec_map planes_map = CODEC_TABLE(kvd__v1__describe_planes_reply__descriptor, planes_fields);
#undef PB

#define PLAN_ROWS(at)                                                                                                  \
    U32_IN(feasibility, at.feasibility, KVD_READY, KVD_INFEASIBLE), U64(revision, at.revision),                        \
        U32_IN(n_pools, at.n_pools, 0, KVD_MAX_POOLS), SUBS_CUT(pages, at.pages, need_map),                            \
        SUB(rows, at.rows, need_map), SUB(sequences, at.sequences, need_map),                                          \
        SUB(continuations, at.continuations, need_map), SUB(state_slots, at.state_slots, need_map),                    \
        SUB(membership, at.membership, need_map), U32S_BY_POOL(entitlement, at.entitlement),                           \
        U32S_BY_POOL(shared_pages, at.shared_pages), U32S_BY_POOL(copied_columns, at.copied_columns),                  \
        U32S_BY_POOL(freed_pages, at.freed_pages), U32S_BY_POOL(restore_pages, at.restore_pages),                      \
        U32S_BY_POOL(demote_pages, at.demote_pages), SUB(arena, at.arena, need_map)

#define PB Kvd__V1__PlanReply
static const struct codec_field plan_fields[] = { HEADER, PLAN_ROWS(u.plan) };
static const struct codec_map plan_map = CODEC_TABLE(kvd__v1__plan_reply__descriptor, plan_fields);
static const struct codec_field chosen_fields[] = { PLAN_ROWS(u.choice.plan) };
static const struct codec_map chosen_map = CODEC_TABLE(kvd__v1__plan_reply__descriptor, chosen_fields);
#undef PB

#define PB Kvd__V1__ChooseReply
static const struct codec_field choice_fields[] = {
    HEADER,
    SUBS_NEW(victims, u.choice.victims, u.choice.n, KVD_MAX_VICTIMS, codec_victim_map),
    BOOL(more, u.choice.more),
    { .name = "plan", .kind = CODEC_SUB, .pb = offsetof(PB, plan), .at = 0, .sub = &chosen_map },
};
static const struct codec_map choice_map = CODEC_TABLE(kvd__v1__choose_reply__descriptor, choice_fields);
#undef PB

#define PB Kvd__V1__FindReply
static const struct codec_field find_fields[] = {
    HEADER,
    SUBS_NEW(hits, u.hits.items, u.hits.n, KVD_MAX_HITS, hit_map),
    HANDLE(anchor, u.hits.anchor),
    U32_PLUS(want_page, u.hits.want_page),
};
static const struct codec_map find_map = CODEC_TABLE(kvd__v1__find_reply__descriptor, find_fields);
#undef PB

#define PB Kvd__V1__DescribeReuseReply
static const struct codec_field describe_reuse_fields[] = { HEADER, SUB_NEW(reuse, u.reuse, reuse_info_map) };
static const struct codec_map reuse_map = CODEC_TABLE(kvd__v1__describe_reuse_reply__descriptor, describe_reuse_fields);
#undef PB

#define PB Kvd__V1__ListContinuationsReply
static const struct codec_field continuations_fields[] = {
    HEADER,
    U32_PLUS(next, u.continuations.next_cursor),
    SUBS_NEW(items, u.continuations.items, u.continuations.n, KVD_MAX_LIST, continuation_map),
};
static const struct codec_map continuations_map =
    CODEC_TABLE(kvd__v1__list_continuations_reply__descriptor, continuations_fields);
#undef PB

#define PB Kvd__V1__ListChangesReply
static const struct codec_field changes_fields[] = {
    HEADER,
    U64(cursor, u.changes.cursor),
    BOOL(more, u.changes.more),
    SUBS_NEW(items, u.changes.items, u.changes.n, KVD_MAX_LIST, continuation_map),
};
static const struct codec_map changes_map = CODEC_TABLE(kvd__v1__list_changes_reply__descriptor, changes_fields);
#undef PB

#define PB Kvd__V1__ListSequencesReply
static const struct codec_field sequences_fields[] = {
    HEADER,
    U32_PLUS(next, u.sequences.next_cursor),
    SUBS_NEW(items, u.sequences.items, u.sequences.n, KVD_MAX_LIST, sequence_map),
};
static const struct codec_map sequences_map = CODEC_TABLE(kvd__v1__list_sequences_reply__descriptor, sequences_fields);
#undef PB

#define PB Kvd__V1__ListSessionsReply
static const struct codec_field sessions_fields[] = {
    HEADER,
    U32_PLUS(next, u.sessions.next_cursor),
    SUBS_NEW(items, u.sessions.items, u.sessions.n, KVD_MAX_LIST, session_map),
};
static const struct codec_map sessions_map = CODEC_TABLE(kvd__v1__list_sessions_reply__descriptor, sessions_fields);
#undef PB

#define PB Kvd__V1__ListSettingsReply
static const struct codec_field settings_fields[] = {
    HEADER,
    U32_PLUS(next, u.settings.next_cursor),
    SUBS_NEW(items, u.settings.items, u.settings.n, KVD_MAX_SETTINGS, setting_map),
};
static const struct codec_map settings_map = CODEC_TABLE(kvd__v1__list_settings_reply__descriptor, settings_fields);
#undef PB

#define PB Kvd__V1__ActivateReply
static const struct codec_field activated_fields[] = {
    HEADER,
    HANDLE(sequence, u.activated.sequence),
    U32_PLUS(state_slot, u.activated.state_slot),
    U32_PLUS(source_state_slot, u.activated.source_state_slot),
    U64(revision, u.activated.revision),
    SUBS(pool, u.activated.pool, u.activated.n_pools, view_map),
    U32S_BY_POOL(restored, u.activated.restored),
};
static const struct codec_map activated_map = CODEC_TABLE(kvd__v1__activate_reply__descriptor, activated_fields);
#undef PB

#define PB Kvd__V1__RoundReply
static const struct codec_field round_fields[] = { HEADER,
                                                   CUSTOM("round", codec_round_reply_load, codec_round_reply_store) };
static const struct codec_map round_map = CODEC_TABLE(kvd__v1__round_reply__descriptor, round_fields);
#undef PB

#define PB Kvd__V1__LendPagesReply
static const struct codec_field lent_fields[] = {
    HEADER,
    U32(adopted, u.lent.adopted),
    U64(revision, u.lent.revision),
    SUBS(pool, u.lent.pool, u.lent.n_pools, view_map),
};
static const struct codec_map lent_map = CODEC_TABLE(kvd__v1__lend_pages_reply__descriptor, lent_fields);
#undef PB

#define PB Kvd__V1__NameLentReply
static const struct codec_field lent_named_fields[] = {
    HEADER,
    HANDLE(continuation, u.lent_named.continuation),
    BOOL(stood, u.lent_named.stood),
    U64(revision, u.lent_named.revision),
};
static const struct codec_map lent_named_map = CODEC_TABLE(kvd__v1__name_lent_reply__descriptor, lent_named_fields);
#undef PB

#define PB Kvd__V1__ReadChainReply
static const struct codec_field read_chain_fields[] = {
    HEADER,
    SUBS_NEW(pages, u.chain.pages, u.chain.n, KVD_MAX_LENT, codec_lent_page_map),
};
static const struct codec_map read_chain_map = CODEC_TABLE(kvd__v1__read_chain_reply__descriptor, read_chain_fields);
#undef PB

#define PB Kvd__V1__ColdTierReply
static const struct codec_field cold_tier_fields[] = {
    HEADER,
    BOOL(configured, u.cold_tier.configured),
    U32_IN(breaker, u.cold_tier.breaker, 0, KVD_COLD_OPEN),
    BOOL(clustered, u.cold_tier.clustered),
    TEXT(why, u.cold_tier.why),
    U64(retry_ns, u.cold_tier.retry_ns),
    U64(trips, u.cold_tier.trips),
    U64(connections, u.cold_tier.connections),
    U64(waiting, u.cold_tier.waiting),
    U64(continuations, u.cold_tier.continuations),
    U64(dropped_age, u.cold_tier.dropped_age),
    U64(dropped_queue, u.cold_tier.dropped_queue),
    U64(dropped_engine, u.cold_tier.dropped_engine),
    U64(dropped_arena, u.cold_tier.dropped_arena),
    U64(written_objects, u.cold_tier.written_objects),
    U64(written_bytes, u.cold_tier.written_bytes),
    U64(written_ns, u.cold_tier.written_ns),
    U64(met_objects, u.cold_tier.met_objects),
    U64(checks, u.cold_tier.checks),
    U64(ping_ns, u.cold_tier.ping_ns),
    U32(read_objects, u.cold_tier.read_objects),
    U32(right_objects, u.cold_tier.right_objects),
    U32(absent_objects, u.cold_tier.absent_objects),
    U32(wrong_objects, u.cold_tier.wrong_objects),
    U32(unanswered_objects, u.cold_tier.unanswered_objects),
    NAME(wrong_field, u.cold_tier.wrong_field),
};
static const struct codec_map cold_tier_map = CODEC_TABLE(kvd__v1__cold_tier_reply__descriptor, cold_tier_fields);
#undef PB

#define PB Kvd__V1__CheckpointReply
static const struct codec_field checkpointed_fields[] = {
    HEADER,
    HANDLE(continuation, u.checkpointed.continuation),
    U32(frontier, u.checkpointed.frontier),
    U64(revision, u.checkpointed.revision),
    U32S_BY_POOL(shared_pages, u.checkpointed.shared_pages),
};
static const struct codec_map checkpointed_map =
    CODEC_TABLE(kvd__v1__checkpoint_reply__descriptor, checkpointed_fields);
#undef PB

#define PB Kvd__V1__FinishReply
static const struct codec_field finished_fields[] = { HEADER, HANDLE(continuation, u.finished.continuation),
                                                      U64(revision, u.finished.revision) };
static const struct codec_map finished_map = CODEC_TABLE(kvd__v1__finish_reply__descriptor, finished_fields);
#undef PB

#define PB Kvd__V1__YieldReply
static const struct codec_field yielded_fields[] = { HEADER, U32(yielded, u.yielded) };
static const struct codec_map yielded_map = CODEC_TABLE(kvd__v1__yield_reply__descriptor, yielded_fields);
#undef PB

#define PB Kvd__V1__RevisionReply
static const struct codec_field revision_fields[] = { HEADER, U64(revision, u.revision) };
static const struct codec_map revision_map = CODEC_TABLE(kvd__v1__revision_reply__descriptor, revision_fields);
#undef PB

#define PB Kvd__V1__ReleaseDomainReply
static const struct codec_field dom_released_fields[] = {
    HEADER,
    U32(released, u.domain_released.released),
    U32(in_use, u.domain_released.in_use),
    U32(sequences, u.domain_released.sequences),
    U32_PLUS(next, u.domain_released.next_cursor),
    U64(revision, u.domain_released.revision),
};
static const struct codec_map dom_released_map =
    CODEC_TABLE(kvd__v1__release_domain_reply__descriptor, dom_released_fields);
#undef PB

#define PB Kvd__V1__ColdReply
static const struct codec_field cold_fields[] = {
    HEADER,
    HANDLE(continuation, u.cold.continuation),
    U32(frontier, u.cold.frontier),
    U64(bytes, u.cold.bytes),
    U32(pages, u.cold.pages),
};
static const struct codec_map cold_map = CODEC_TABLE(kvd__v1__cold_reply__descriptor, cold_fields);
#undef PB

#define PB Kvd__V1__MovedReply
static const struct codec_field moved_fields[] = {
    HEADER,
    U64(revision, u.moved.revision),
    U32S_BY_POOL(pages, u.moved.pages),
    U64(bytes, u.moved.bytes),
};
static const struct codec_map moved_map = CODEC_TABLE(kvd__v1__moved_reply__descriptor, moved_fields);
#undef PB

#define PB Kvd__V1__OpenGroupReply
static const struct codec_field group_fields[] = { HEADER, HANDLE(group, u.group) };
static const struct codec_map group_map = CODEC_TABLE(kvd__v1__open_group_reply__descriptor, group_fields);
#undef PB

#define PB Kvd__V1__StatsReply
static const struct codec_field stats_fields[] = {
    HEADER,
    SUBS(pool, u.stats.pool, u.stats.n_pools, pool_stats_map),
    U32(sequences, u.stats.sequences),
    U32(continuations, u.stats.continuations),
    U32(continuation_limit, u.stats.continuation_limit),
    U32(sessions, u.stats.sessions),
    U32(groups, u.stats.groups),
    U32(state_slots_used, u.stats.state_slots_used),
    U64(membership_used, u.stats.membership_used),
    U64(membership_limit, u.stats.membership_limit),
    U64(operations, u.stats.operations),
    U64(revision, u.stats.revision),
    U64(epoch, u.stats.epoch),
    U64(requests, u.stats.requests),
    U64(refusals, u.stats.refusals),
    U64(frames_bad, u.stats.frames_bad),
    U64(connections, u.stats.connections),
    U64(events_dropped, u.stats.events_dropped),
    U64(uptime_ns, u.stats.uptime_ns),
    U64(rss_bytes, u.stats.rss_bytes),
    U64(metadata_bytes, u.stats.metadata_bytes),
    BOOL(draining, u.stats.draining),
    TEXT(version, u.stats.version),
    U64(host_capacity, u.stats.host_capacity),
    U64(host_occupied, u.stats.host_occupied),
    U64(host_largest_free, u.stats.host_largest_free),
    U32S_BY_POOL(host_pages, u.stats.host_pages),
    U32(host_images, u.stats.host_images),
    U32(demoted_continuations, u.stats.demoted_continuations),
    U32(moves, u.stats.moves),
    U32(move_pages_left, u.stats.move_pages_left),
    U64(demoted_pages, u.stats.demoted_pages),
    U64(demoted_bytes, u.stats.demoted_bytes),
    U64(demoted_ns, u.stats.demoted_ns),
    U64(restored_pages, u.stats.restored_pages),
    U64(restored_bytes, u.stats.restored_bytes),
    U64(restored_ns, u.stats.restored_ns),
    U64(scrubbed_pages, u.stats.scrubbed_pages),
    U64(damaged_replicas, u.stats.damaged_replicas),
    U64(lost_continuations, u.stats.lost_continuations),
    U32(recovered_continuations, u.stats.recovered_continuations),
    U32(recovered_shortened, u.stats.recovered_shortened),
    U32(recovered_dropped, u.stats.recovered_dropped),
    U32(recovered_damaged, u.stats.recovered_damaged),
    U32(former_drivers, u.stats.former_drivers),
    U64(committed_tokens, u.stats.committed_tokens),
};
static const struct codec_map stats_map = CODEC_TABLE(kvd__v1__stats_reply__descriptor, stats_fields);
#undef PB
#undef T

/* u.audit is a pointer, so its rows stand on a struct of their own while the message is flat. */
#define PB Kvd__V1__AuditReply
#define T struct kvd_audit
static const struct codec_field audit_body_fields[] = { U32(violations, violations), LINES(text, text),
                                                        U32(left_out, left_out) };
static const struct codec_map audit_body_map = CODEC_TABLE(kvd__v1__audit_reply__descriptor, audit_body_fields);
#undef T

static int audit_load(struct codec_pass *pass, const void *pb, void *plain) {
    struct msg_reply *reply = plain;
    reply->u.audit = codec_arena_alloc(pass->arena, sizeof *reply->u.audit);
    return reply->u.audit ? codec_load(pass, &audit_body_map, pb, reply->u.audit) : codec_refuse_memory(pass);
}

static int audit_store(struct codec_pass *pass, void *pb, const void *plain) {
    const struct msg_reply *reply = plain;
    return reply->u.audit ? codec_store(pass, &audit_body_map, pb, reply->u.audit) : 0;
}

#define T struct msg_reply
static const struct codec_field audit_fields[] = { HEADER, CUSTOM("audit", audit_load, audit_store) };
static const struct codec_map audit_map = CODEC_TABLE(kvd__v1__audit_reply__descriptor, audit_fields);
#undef PB
#undef T

const struct codec_map *codec_reply_map(uint16_t type) {
    static const struct codec_map *const maps[FRAME_TYPE_END] = {
#define MAP(constant, number, name, function, request, reply, ...) [number] = &reply##_map,
        FRAME_LIST(MAP)
#undef MAP
    };
    return type < FRAME_TYPE_END ? maps[type] : NULL;
}
