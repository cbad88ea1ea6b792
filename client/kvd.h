/* SPDX-License-Identifier: Apache-2.0
 *
 * libkvd: the client library of kvd, a service that owns the KV cache of LLM inference engines.
 *
 * The life of a request, from the engine's side:
 *
 *     kvd_client *c;                                     // scheduler process
 *     kvd_connect(&options, &c, &error);
 *     kvd_chain_new(&domain, &chain); kvd_chain_push(chain, prompt, n_prompt);
 *     kvd_find(c, chain, prompt, n_prompt, hits, 16, &n, &error);         // token-exact prefixes
 *     want.from = hits[0].continuation; want.frontier = hits[0].usable; want.keep = true; ...
 *     kvd_activate(c, &want, &seq, &error);              // rows are in device memory when this returns
 *     ... worker: prefill and decode through kvd_store_batch_view(), Round about once in 256 tokens ...
 *     kvd_round(c, items, n, results, &error);           // commit, trim, map ahead, for a whole batch
 *     kvd_name_pages(c, seq.sequence, ...);              // as pages fill
 *     kvd_finish(c, &end, &finished, &error);            // retain: a continuation that outlives every engine
 *
 * Conventions
 * - Calls return enum kvd_status and, unless KVD_OK, fill *error (may be NULL) with a sentence: what was asked, what
 *   there was, what to change. After a refusal nothing has changed. Outputs are written only on KVD_OK.
 * - A client may be used by several threads; calls are pipelined on one connection. Each call blocks the caller until
 *   its answer or its deadline (kvd_client_set_timeout; default 5 s), never longer. That is the time of one message:
 *   kvd_find, kvd_name_pages, kvd_choose_victims and kvd_attach may send several, one after the other.
 * - No changing call runs twice. Where the connection breaks while a call waits, the library resumes the session and
 *   sends the call again under its number, once, within the deadline: kvd answers a number that it has executed with
 *   its first answer. If kvd is another instance by then (epoch), or no longer knows the session, the call and all
 *   later ones answer KVD_ABORTED: connect and attach anew.
 * - After KVD_DEADLINE_EXCEEDED, or KVD_UNAVAILABLE for a broken connection, the outcome is unknown. To learn it:
 *   where the connection is lost kvd_client_reconnect, then the same call with equal arguments, next. It takes up the
 *   unanswered request and returns its first answer; if it never ran, it runs now. This holds for kvd_activate,
 *   kvd_round(_start), kvd_checkpoint, kvd_finish, kvd_release, kvd_open_group, kvd_close_group, kvd_demote,
 *   kvd_prefetch and kvd_drop_replica, for the last 64 changing requests of the client, for a round or checkpoint until
 *   another call about one of its sequences is sent, and for the last three until another of them about the same
 *   continuation, or a kvd_activate, is. The other calls set something and may simply be made again.
 * - On a connection that is known to be lost calls answer KVD_UNAVAILABLE at once and send nothing, until
 *   kvd_client_reconnect.
 * - Calls read the connection themselves while they wait. A client that used its descriptor, events or tickets is read
 *   in the background from then on, too; any other learns of a lost connection by its next call, which resumes.
 * - After fork() the child must not use the parent's client or store: every call answers KVD_FAILED_PRECONDITION
 *   there, kvd_disconnect only frees memory. Nor can it connect, unless it executes a program: fork before the first
 * call.
 * - Nothing returned by the library needs to be freed unless said. No nng, protobuf or CUDA type appears here.
 * - Engines should block their signals before the first call: the transport starts threads.
 */
#ifndef KVD_H
#define KVD_H

#include "kvd_types.h"
#include "paged_view.h"

#if defined(__GNUC__)
#define KVD_API __attribute__((visibility("default")))
#else
#define KVD_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define KVD_VERSION_MAJOR 0
#define KVD_VERSION_MINOR 1
#define KVD_VERSION_PATCH 0

typedef struct kvd_client kvd_client; /* one connection and session */
typedef struct kvd_store kvd_store;   /* a mapped store: planes and tables in this process */

struct kvd_error {
    enum kvd_status status;
    char message[KVD_MESSAGE_BYTES];
};

KVD_API const char *kvd_version(void);                       /* of the library at run time, "0.1.0" */
KVD_API const char *kvd_status_name(enum kvd_status status); /* "RESOURCE_EXHAUSTED" */
KVD_API bool kvd_status_retryable(enum kvd_status status);

/* ---- connection -------------------------------------------------------------------------------- */

struct kvd_connect_options {
    size_t struct_size; /* sizeof(struct kvd_connect_options) */
    const char *socket; /* path; NULL: $KVD_SOCKET, else /run/kvd/kvd.sock */
    enum kvd_role role;
    const char *name;    /* for logs and kvdctl */
    uint32_t rank;       /* worker in a tensor-parallel group */
    uint32_t timeout_ms; /* for connecting, and the default of every call; 0 = 5000 */
};
KVD_API enum kvd_status kvd_connect(const struct kvd_connect_options *options, kvd_client **ret_client,
                                    struct kvd_error *error);
/* New connection, same session (same process only): after a lost connection; nothing happens while one stands. Open
 * requests and tickets go on, events are subscribed to again (what happened meanwhile is not told). KVD_ABORTED: the
 * daemon is another instance (epoch changed) or the session was fenced: connect anew. */
KVD_API enum kvd_status kvd_client_reconnect(kvd_client *client, struct kvd_error *error);
/* Ends the session in order (its sequences end as if it had died, at once) and frees. NULL is fine. */
KVD_API void kvd_disconnect(kvd_client *client);
KVD_API void kvd_client_set_timeout(kvd_client *client, uint32_t timeout_ms);
KVD_API kvd_session_id kvd_client_session(const kvd_client *client);
KVD_API uint64_t kvd_client_epoch(const kvd_client *client);
/* Readable (poll) when kvd_next_event or kvd_round_poll may have something, and when the connection is lost. Owned by
 * the client. */
KVD_API int kvd_client_fd(const kvd_client *client);

/* ---- names of prefixes --------------------------------------------------------------------------- */

/* What KV depends on besides tokens. Every field is a tagged part of the chain's root: a hit never crosses domains.
 * NULL = "". */
struct kvd_domain {
    const char *model, *adapter, *tenant, *modality;
};

/* digest[-1] = BLAKE2b-256("kvd.chain.1" and the tagged domain); digest[i] = BLAKE2b-256(digest[i-1], tokens of page i
 * as 64 little-endian u32). The chain keeps every digest of its full pages and the tail's tokens. */
typedef struct kvd_chain kvd_chain;
KVD_API enum kvd_status kvd_chain_new(const struct kvd_domain *domain, kvd_chain **ret_chain);
KVD_API enum kvd_status kvd_chain_push(kvd_chain *chain, const uint32_t *tokens, size_t n);
/* To a length in [0, current]; within the current tail or at a page boundary. */
KVD_API enum kvd_status kvd_chain_truncate(kvd_chain *chain, size_t tokens);
KVD_API size_t kvd_chain_tokens(const kvd_chain *chain);
KVD_API size_t kvd_chain_pages(const kvd_chain *chain);
KVD_API const kvd_digest *kvd_chain_digests(const kvd_chain *chain); /* [pages]; until the next push or free */
KVD_API void kvd_chain_tail(const kvd_chain *chain, struct kvd_tail *ret_tail);
KVD_API void kvd_chain_free(kvd_chain *chain);

/* ---- scheduler ------------------------------------------------------------------------------------- */

struct kvd_hit {
    kvd_continuation continuation;
    uint32_t usable;   /* tokens of the prompt that it covers exactly: activate with frontier = usable */
    uint32_t frontier; /* of the continuation */
    uint32_t retention;
    uint32_t restore_pages; /* cost: pages that the activation brings back from the host tier */
};
/* The token-exact reusable prefixes of a prompt, longest first; at most prompt - 1 tokens are usable (one query must be
 * computed). chain must hold exactly these tokens. The tails of candidates are compared here, so that a hit is exact to
 * the token. One message for every KVD_MAX_DIGESTS - 1 pages that match; if what they match is released meanwhile, the
 * hits reach as far as was asked. */
KVD_API enum kvd_status kvd_find(kvd_client *client, const kvd_chain *chain, const uint32_t *prompt, size_t n_prompt,
                                 struct kvd_hit *ret_hits, uint32_t max, uint32_t *ret_n, struct kvd_error *error);
KVD_API enum kvd_status kvd_plan_activation(kvd_client *client, const struct kvd_activation *want,
                                            struct kvd_plan *ret_plan, struct kvd_error *error);
KVD_API enum kvd_status kvd_activate(kvd_client *client, const struct kvd_activation *want,
                                     struct kvd_activated *ret_activated, struct kvd_error *error);
/* Pages past KVD_MAX_DIGESTS go in further messages: where one of those is refused, the pages before it are named. */
KVD_API enum kvd_status kvd_name_pages(kvd_client *client, kvd_sequence sequence, const kvd_chain *chain,
                                       uint32_t first_page, uint32_t n_pages, struct kvd_error *error);
KVD_API enum kvd_status kvd_checkpoint(kvd_client *client, const struct kvd_checkpoint *what,
                                       struct kvd_checkpointed *ret_checkpointed, struct kvd_error *error);
KVD_API enum kvd_status kvd_finish(kvd_client *client, const struct kvd_finish *how, struct kvd_finished *ret_finished,
                                   struct kvd_error *error);
KVD_API enum kvd_status kvd_release(kvd_client *client, kvd_continuation continuation, struct kvd_error *error);
KVD_API enum kvd_status kvd_set_retention(kvd_client *client, kvd_continuation continuation, uint32_t retention,
                                          struct kvd_error *error);
KVD_API enum kvd_status kvd_open_group(kvd_client *client, const struct kvd_group *group, kvd_group_id *ret_group,
                                       struct kvd_error *error);
KVD_API enum kvd_status kvd_close_group(kvd_client *client, kvd_group_id group, struct kvd_error *error);
/* Fences another session: its requests are refused from now on; its sequences stay quarantined until its process is
 * proven gone. */
KVD_API enum kvd_status kvd_fence(kvd_client *client, kvd_session_id session, struct kvd_error *error);

/* Places: pages of a continuation are on the device, in the host arena (kvd_stats.host_capacity > 0), or in both. What
 * is in the host only is found and activated all the same; the activation brings it back first (restore_pages is the
 * price).
 *
 * Each of these blocks until the copies are done or the deadline has passed; after KVD_DEADLINE_EXCEEDED the copies go
 * on, and the same call made again waits for them. The continuation can be used meanwhile. Repeating one is harmless:
 * what is in place is copied no second time, and ret_moved (may be NULL) then counts nothing. All of a continuation,
 * its state image with it, moves or nothing does: KVD_RESOURCE_EXHAUSTED where the arena or a pool is short,
 * KVD_FAILED_PRECONDITION where there is no host tier, KVD_DATA_LOSS where bytes in the host were damaged and the
 * continuation had no other copy. */
/* Host copies of all its pages; then the device gives up those that nothing else needs, and the continuation rests.
 * keep_device: only the copies, so that a later demotion costs nothing and a restart of kvd finds it. */
KVD_API enum kvd_status kvd_demote(kvd_client *client, kvd_continuation continuation, bool keep_device,
                                   struct kvd_moved *ret_moved, struct kvd_error *error);
/* Device copies of all its pages, ahead of an activation. The host's copies stay; it rests no more. */
KVD_API enum kvd_status kvd_prefetch(kvd_client *client, kvd_continuation continuation, struct kvd_moved *ret_moved,
                                     struct kvd_error *error);
/* Drops the copies of one tier that the other has, too. KVD_FAILED_PRECONDITION where that would lose a page. */
KVD_API enum kvd_status kvd_drop_replica(kvd_client *client, kvd_continuation continuation, enum kvd_tier tier,
                                         struct kvd_moved *ret_moved, struct kvd_error *error);

/* A policy (the store itself never chooses): fills want->victims with the continuations of least retention class, least
 * recently used first, never the source, until the plan is ready; n_victims stays 0 where none are needed.
 *
 * Where there is a host arena, victims are demoted (their bits in want->demote) and nothing is lost as long as the
 * arena can hold it. Where it cannot hold them all, of the victims and the resting continuations together the least
 * valuable by the same order are released, as few as make the plan ready; those that already rest are not touched
 * otherwise, for they have nothing on the device. Where membership entries are short, which a resting continuation
 * holds like any other, all take part and victims are released.
 *
 * KVD_RESOURCE_EXHAUSTED: even all of them would not do. Sets want->revision; activate may still answer KVD_ABORTED
 * when the store moved on: choose again. An activation that demotes or restores waits for the copies: give it time. */
KVD_API enum kvd_status kvd_choose_victims(kvd_client *client, struct kvd_activation *want, struct kvd_error *error);

/* ---- worker ------------------------------------------------------------------------------------------- */

/* One boundary for a whole batch in one message. results[i] belongs to items[i]; the call is KVD_OK when the message
 * was served, each item has its own status. A commit says: my GPU work up to there is complete. */
KVD_API enum kvd_status kvd_round(kvd_client *client, const struct kvd_round_item *items, uint32_t n,
                                  struct kvd_round_result *ret_results, struct kvd_error *error);
/* The same off the critical path: start sends and returns; poll answers KVD_UNAVAILABLE while there is no answer,
 * without blocking; wait blocks up to the timeout. A ticket ends with the first other answer; so does one whose
 * deadline, counted from its start, has passed when it is polled. Poll never connects: after a lost connection
 * kvd_client_reconnect or kvd_round_wait sends the round again. */
typedef struct kvd_ticket {
    uint64_t id;
} kvd_ticket;
KVD_API enum kvd_status kvd_round_start(kvd_client *client, const struct kvd_round_item *items, uint32_t n,
                                        kvd_ticket *ret_ticket, struct kvd_error *error);
KVD_API enum kvd_status kvd_round_poll(kvd_client *client, kvd_ticket ticket, struct kvd_round_result *ret_results,
                                       uint32_t max, uint32_t *ret_n, struct kvd_error *error);
KVD_API enum kvd_status kvd_round_wait(kvd_client *client, kvd_ticket ticket, struct kvd_round_result *ret_results,
                                       uint32_t max, uint32_t *ret_n, struct kvd_error *error);
/* "No unit of mine runs on any sequence that is ending (its scheduler or another rank is gone)": gives them back. */
KVD_API enum kvd_status kvd_yield(kvd_client *client, uint32_t *ret_yielded, struct kvd_error *error);

/* ---- views ------------------------------------------------------------------------------------------------ */

/* Where kvd was replaced under this process (another epoch) and its device memory outlives it, attaching says that no
 * unit of this process runs that was launched on an earlier attachment: synchronize the device and detach first.
 *
 * Maps the store's pools of one rank. device_uuid: 16 bytes of the GPU that this process runs on, NULL for a host
 * store; a mismatch in protocol, geometry, device or namespace is refused with the reason (SRV-4). CUDA stores: the
 * context that is current in the calling thread. */
KVD_API enum kvd_status kvd_attach(kvd_client *client, uint32_t rank, const uint8_t *device_uuid, kvd_store **ret_store,
                                   struct kvd_error *error);
/* Views die with it. May outlive the client. */
KVD_API void kvd_detach(kvd_store *store);
KVD_API const struct kvd_store_info *kvd_store_describe(const kvd_store *store);
KVD_API enum kvd_status kvd_store_batch_view(const kvd_store *store, uint32_t pool, uint32_t layer,
                                             PagedKVBatchLayerView *ret_view, struct kvd_error *error);
KVD_API enum kvd_status kvd_store_layer_view(const kvd_store *store, uint32_t pool, uint32_t layer, uint32_t row,
                                             PagedKVLayerView *ret_view, struct kvd_error *error);

/* State images, where the store has state_bytes > 0: what a model's frontier needs besides KV (recurrent or convolution
 * state, a draft's cyclic cache). Each rank has its own image in the slot of one number; kvd never looks inside.
 *
 * Address and length of a slot in this process; the address is a multiple of 256 and holds until kvd_detach.
 * KVD_OUT_OF_RANGE past the last slot, KVD_FAILED_PRECONDITION where the store has none. Whose slot it is, and since
 * when, is not checked here:
 *
 * - kvd_activate names the sequence's state_slot. Its workers, one a rank, are the only ones that write it, from that
 *   answer until the sequence finishes or they yield it. They may read it as long, and source_state_slot until their
 *   first commit.
 * - Root: the slot holds bytes of another sequence that is gone: begin with a state of your own.
 * - Fork (source_state_slot is not KVD_UNCHANGED): copy that slot to state_slot on the device, before the first
 *   kvd_round with a commit, which lets go of the source. Never write the source: others fork from it. A fork starts at
 *   the source's own frontier, the only one of which there is an image. Until the copy is reported (state_frontier) the
 *   sequence has no image.
 * - Move: the slot comes with the sequence, its image in it, and state_frontier stands at the frontier.
 * - The image belongs to the frontier last reported as state_frontier of a round: report it when the GPU has written
 *   it, on all ranks. kvd_checkpoint and kvd_finish with retain need it at the committed frontier, else they answer
 *   KVD_FAILED_PRECONDITION; if a worker dies with it there, the sequence is kept, else released.
 * - So, before writing over an image that stands at the committed frontier (after such a round, or a move), report
 *   state_frontier 0 in a round: the image is none. Else a death in the middle would keep half an image. Engines whose
 *   running state is elsewhere, and that write the slot at boundaries only, do it once a boundary.
 * - kvd_checkpoint copies the slot as it is: do not write it until the answer is there. */
KVD_API enum kvd_status kvd_store_state(const kvd_store *store, uint32_t slot, void **ret_address, uint64_t *ret_bytes,
                                        struct kvd_error *error);

/* ---- operators ------------------------------------------------------------------------------------------------ */

KVD_API enum kvd_status kvd_describe(kvd_client *client, struct kvd_store_info *ret_info, struct kvd_error *error);
KVD_API enum kvd_status kvd_describe_planes(kvd_client *client, const struct kvd_planes_request *which,
                                            struct kvd_plane_info *ret_planes, uint32_t max, uint32_t *ret_n,
                                            uint32_t *ret_total, struct kvd_error *error);
KVD_API enum kvd_status kvd_stats(kvd_client *client, struct kvd_stats *ret_stats, struct kvd_error *error);
KVD_API enum kvd_status kvd_audit(kvd_client *client, struct kvd_audit *ret_audit, struct kvd_error *error);
/* on: new activations are refused with KVD_UNAVAILABLE; running ones go on. */
KVD_API enum kvd_status kvd_drain(kvd_client *client, bool on, struct kvd_error *error);
/* Lists: *cursor 0 to begin; KVD_UNCHANGED in *cursor = the end. max <= KVD_MAX_LIST. */
KVD_API enum kvd_status kvd_list_continuations(kvd_client *client, uint32_t *cursor,
                                               struct kvd_continuation_info *ret_infos, uint32_t max, uint32_t *ret_n,
                                               struct kvd_error *error);
KVD_API enum kvd_status kvd_list_sequences(kvd_client *client, uint32_t *cursor, struct kvd_sequence_info *ret_infos,
                                           uint32_t max, uint32_t *ret_n, struct kvd_error *error);
KVD_API enum kvd_status kvd_list_sessions(kvd_client *client, uint32_t *cursor, struct kvd_session_info *ret_infos,
                                          uint32_t max, uint32_t *ret_n, struct kvd_error *error);

/* ---- events ------------------------------------------------------------------------------------------------------ */

KVD_API enum kvd_status kvd_subscribe(kvd_client *client, uint32_t mask, struct kvd_error *error);
/* KVD_DEADLINE_EXCEEDED when none came in timeout_ms (0 = just look); KVD_UNAVAILABLE when the connection is lost. */
KVD_API enum kvd_status kvd_next_event(kvd_client *client, uint32_t timeout_ms, struct kvd_event *ret_event,
                                       struct kvd_error *error);

#ifdef __cplusplus
}
#endif
#endif
