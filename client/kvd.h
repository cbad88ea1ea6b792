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
 * Conventions, which hold for every call unless its own comment says otherwise
 * - Status. A call returns enum kvd_status. Unless it returns KVD_OK it fills *error with a sentence: what was asked,
 *   what there was, what to change. error may be NULL. After a refusal nothing has changed, and outputs (ret_*) are as
 *   they were. A NULL argument where one is needed is KVD_INVALID_ARGUMENT.
 * - Units. Frontiers, prompts and outputs are tokens. Memberships and entitlements are pages of 64 tokens.
 * - Ownership. What a caller passes stays the caller's, and the library does not look at it after the call. Nothing
 *   that the library returns needs to be freed, but for clients, stores and chains.
 * - Threads. Several threads may use one client: their calls travel on one connection and do not wait for each other.
 *   A chain belongs to one thread at a time. A store may be read by any thread until kvd_detach. kvd_disconnect must be
 *   the last call on its client. The library's own threads block all signals.
 * - Time. A call blocks until its answer or its deadline, never longer. The deadline is that of kvd_client_set_timeout
 *   (5 s by default) and counts for one message. kvd_find, kvd_find_cold, kvd_load_cold, kvd_name_pages,
 *   kvd_choose_victims and kvd_attach may send several messages, one after the other.
 * - Once. No changing call runs twice. Where the connection breaks while a call waits, the library resumes the session
 *   and sends the call again under its number, once, within the deadline. kvd answers a number that it has executed
 *   with its first answer. If kvd is another instance by then (another epoch), or no longer knows the session, the call
 *   and all later ones return KVD_ABORTED: connect and attach anew.
 * - Unknown outcomes. After KVD_DEADLINE_EXCEEDED, or KVD_UNAVAILABLE for a broken connection, the outcome is unknown.
 *   To learn it, call kvd_client_reconnect where the connection is lost, then make the same call with equal arguments.
 *   It takes up the unanswered request and returns its first answer. If the request never ran, it runs now. This holds
 *   for kvd_activate, kvd_round, kvd_round_start, kvd_checkpoint, kvd_finish, kvd_release, kvd_open_group,
 *   kvd_close_group, kvd_demote, kvd_prefetch and kvd_drop_replica, among the last 64 changing requests of the client.
 *   It ends for a round or a checkpoint when another call about one of its sequences is sent, and for the last three
 *   when another of them about the same continuation, or a kvd_activate, is sent. All other calls set something: make
 *   them again.
 * - A lost connection. Once it is known to be lost, calls return KVD_UNAVAILABLE at once and send nothing, until
 *   kvd_client_reconnect. A client that has used its descriptor, events or tickets knows at once, because threads of
 *   the library read its connection. Any other learns of it in its next call, which resumes the session.
 * - Forks. After fork() the child must not use the parent's client or store: calls return KVD_FAILED_PRECONDITION, and
 *   kvd_disconnect frees memory only. The child cannot connect either, unless it executes a program. Fork before the
 *   first call.
 * - No type of nng, protobuf or CUDA appears here.
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

/* A request that was started and whose answer is collected later, by the same client. */
typedef struct kvd_ticket {
    uint64_t id;
} kvd_ticket;

struct kvd_error {
    enum kvd_status status;
    char message[KVD_MESSAGE_BYTES];
};

KVD_API const char *kvd_version(void);                       /* of the library at run time, "0.1.0" */
KVD_API const char *kvd_status_name(enum kvd_status status); /* "RESOURCE_EXHAUSTED" */
/* True where the same call may succeed later although the caller changes nothing. */
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
/* Connects and opens a session. The caller ends *ret_client with kvd_disconnect. KVD_UNAVAILABLE: nobody listens there.
 * KVD_PERMISSION_DENIED: the socket or the role is not for this user. KVD_FAILED_PRECONDITION: kvd speaks another
 * protocol, or this process is a fork of one that used the library. */
KVD_API enum kvd_status kvd_connect(const struct kvd_connect_options *options, kvd_client **ret_client,
                                    struct kvd_error *error);
/* Resumes the session on a new connection after the old one was lost. Does nothing while a connection stands. Open
 * requests and tickets go on. Events are subscribed to again; those of the meantime are lost. KVD_ABORTED: kvd is
 * another instance, or it fenced the session: connect anew. */
KVD_API enum kvd_status kvd_client_reconnect(kvd_client *client, struct kvd_error *error);
/* Ends the session at once, and its sequences as if this process had died, then frees the client. NULL is allowed.
 * Waits for kvd 1 s at most. */
KVD_API void kvd_disconnect(kvd_client *client);
/* For calls that begin from now on. 0 = 5000. */
KVD_API void kvd_client_set_timeout(kvd_client *client, uint32_t timeout_ms);
/* These two never block. A NULL client has session and epoch 0. */
KVD_API kvd_session_id kvd_client_session(const kvd_client *client);
KVD_API uint64_t kvd_client_epoch(const kvd_client *client);
/* Returns a descriptor for poll(), which stays the client's. It is readable while kvd_next_event, kvd_round_poll or
 * kvd_cold_poll may have something, and when the connection is lost. Do not read it. -1: client is NULL. */
KVD_API int kvd_client_fd(const kvd_client *client);

/* ---- names of prefixes --------------------------------------------------------------------------- */

/* What KV depends on besides tokens. Every field is a tagged part of the chain's root, so that a hit never crosses
 * domains. NULL = "". */
struct kvd_domain {
    const char *model, *adapter, *tenant, *modality;
    const char *label; /* for people, in lists: [A-Za-z0-9._:/-], 63 at most; no part of the root. NULL = "" */
};

/* A chain names the pages of a token sequence: digest[-1] = BLAKE2b-256("kvd.chain.1" and the tagged domain), digest[i]
 * = BLAKE2b-256(digest[i-1], the tokens of page i as 64 little-endian u32). It keeps the digests of all full pages and
 * the tokens of the tail. Chains never talk to kvd. */
typedef struct kvd_chain kvd_chain;
/* domain NULL: all fields "". The caller frees *ret_chain with kvd_chain_free. KVD_RESOURCE_EXHAUSTED: no memory.
 * KVD_INVALID_ARGUMENT: the label is too long. */
KVD_API enum kvd_status kvd_chain_new(const struct kvd_domain *domain, kvd_chain **ret_chain);
/* Appends n tokens. KVD_RESOURCE_EXHAUSTED: no memory. */
KVD_API enum kvd_status kvd_chain_push(kvd_chain *chain, const uint32_t *tokens, size_t n);
/* Shortens the chain to a number of tokens that lies within the current tail or at a page boundary. KVD_OUT_OF_RANGE:
 * the chain is shorter. KVD_INVALID_ARGUMENT: it is neither; the tokens of full pages are not kept. */
KVD_API enum kvd_status kvd_chain_truncate(kvd_chain *chain, size_t tokens);
/* Root and label of its domain, for kvd_activation.root. Valid until kvd_chain_free. */
KVD_API const struct kvd_root *kvd_chain_root(const kvd_chain *chain);
KVD_API size_t kvd_chain_tokens(const kvd_chain *chain);
KVD_API size_t kvd_chain_pages(const kvd_chain *chain);              /* full ones */
KVD_API const kvd_digest *kvd_chain_digests(const kvd_chain *chain); /* [pages]; valid until the next push or free */
KVD_API void kvd_chain_tail(const kvd_chain *chain, struct kvd_tail *ret_tail);
KVD_API void kvd_chain_free(kvd_chain *chain); /* NULL is allowed */

/* ---- scheduler ------------------------------------------------------------------------------------- */

/* Finds what a prompt may start from in the domain of its chain, longest first. chain must hold exactly the prompt's
 * tokens, else KVD_INVALID_ARGUMENT. A hit is exact: its first `usable` tokens are the prompt's. At the end of a
 * continuation any token counts: all of it, and where the store has no state images any part of its tail (the tokens
 * after its last full page). Within a continuation page boundaries count. At most prompt - 1 tokens are usable, because
 * one query must be computed. ret_hits has room for max hits; KVD_MAX_HITS are returned at most.
 *
 * A hit may be `live`: what a running sequence has named so far. Fork it (keep) at `usable`; look again later, and it
 * may have come further. Nothing else can be done to it: a move, a recipe that names it, kvd_release and the like
 * return KVD_ABORTED until the sequence has finished. Its handle is the same all the time. kvd_finish with retain keeps
 * it, unless its answer is another one (an equal continuation was there); without retain it is gone.
 *
 * Sends one message for every KVD_MAX_DIGESTS - 1 pages that match, and one more where tails end at an earlier page
 * than the prompt's last; with state images up to four more, one for each branch at which no tail fits. If what matches
 * is released meanwhile, the hits reach as far as was asked until then. */
KVD_API enum kvd_status kvd_find(kvd_client *client, const kvd_chain *chain, const uint32_t *prompt, size_t n_prompt,
                                 struct kvd_hit *ret_hits, uint32_t max, uint32_t *ret_n, struct kvd_error *error);
/* Says what kvd_activate would need now, and whether that is there. Changes nothing. plan.feasibility tells a store
 * that is short (KVD_BLOCKED) from a request that can never fit (KVD_INFEASIBLE). */
KVD_API enum kvd_status kvd_plan_activation(kvd_client *client, const struct kvd_activation *want,
                                            struct kvd_plan *ret_plan, struct kvd_error *error);
/* Starts a sequence from nothing or from a continuation, releases or demotes the recipe's victims, and leases the
 * sequence to a worker or a group: all of it or nothing. Returns when the rows are in device memory and all copies are
 * done. KVD_RESOURCE_EXHAUSTED: the store is short now. KVD_ABORTED: the store moved on since want->revision.
 * KVD_NOT_FOUND: the source or a victim has gone, or the source has become shorter than the frontier: look it up again.
 * KVD_UNAVAILABLE: kvd drains.
 *
 * Where want->cold says so (kvd_set_cold), what the cold tier has of the prompt is loaded first, each byte checked, and
 * the sequence starts from it: nobody comes between, and ret_activated->pool[0].committed says how far. What is missing
 * there, an engine that does not answer, a full arena and a kvd without a cold tier only shorten that, down to the
 * frontier of `from`, which is then where it starts. Such a call waits for the engine: give it time. What was loaded is
 * a continuation, kept or moved as want->keep says. The victims go with the activation, as chosen before the load; with
 * more than KVD_VICTIMS_BESIDE_COLD of them nothing is loaded. */
KVD_API enum kvd_status kvd_activate(kvd_client *client, const struct kvd_activation *want,
                                     struct kvd_activated *ret_activated, struct kvd_error *error);
/* Fills want->cold: the prompt behind the full pages of want->frontier, but its last token; the first KVD_MAX_DIGESTS
 * pages of that. A tail alone is not asked for: to wait for the engine is more than to compute it. Call it last, when
 * source and victims are chosen, for a source that is not live. want->cold.retention, of what is loaded, stays. want
 * points into the chain then, until that is pushed to or freed. KVD_OUT_OF_RANGE: the chain is shorter than the prompt.
 * Sends nothing. */
KVD_API enum kvd_status kvd_set_cold(struct kvd_activation *want, const kvd_chain *chain, const uint32_t *prompt,
                                     struct kvd_error *error);
/* Gives up an activation of this client that is not answered: one that kvd_activate left with KVD_DEADLINE_EXCEEDED, or
 * in which another thread waits (its answer is KVD_CANCELLED then). what: the activation as it was given. Its copies
 * end, and what it held is free as soon as those under way have ended. Nothing is given up without this call: after
 * KVD_DEADLINE_EXCEEDED the activation goes on, and the same kvd_activate made again waits for it.
 * KVD_NOT_FOUND: no such activation is open. KVD_FAILED_PRECONDITION: it has ended; the same kvd_activate made again
 * returns its answer at once. */
KVD_API enum kvd_status kvd_cancel(kvd_client *client, const struct kvd_activation *what, struct kvd_error *error);
/* For engines that hand out pages themselves (PROTOCOL.md, Lent pages). The sequence was activated from nothing, for as
 * many tokens as pages are wanted: its row lists their ids. kvd_finish, or the end of the process, gives all back; what
 * has a name stays. KVD_FAILED_PRECONDITION: it has committed something, lends already, there are two pools or state
 * images, or tenants = uid. */
KVD_API enum kvd_status kvd_lend_pages(kvd_client *client, const struct kvd_lend *how, struct kvd_lent *ret_lent,
                                       struct kvd_error *error);
/* Blank pages are complete now, and end a chain: they are found from then on, kept, and can be demoted. With a tail the
 * last of them is written up to a column, and goes on in place as the first page of a later call, `from` this
 * continuation. KVD_INVALID_ARGUMENT: a page is not lent by the sequence, stands there twice, or has a name already;
 * KVD_ABORTED: what would go on in place is being copied. */
KVD_API enum kvd_status kvd_name_lent(kvd_client *client, const struct kvd_lent_names *names,
                                      struct kvd_lent_named *ret_named, struct kvd_error *error);
/* Gives pages back, or (again) makes them blank so that they may be overwritten. KVD_FAILED_PRECONDITION, of again: a
 * continuation that is not demoted needs one: demote, shorten or release it first. KVD_ABORTED: a copy or a running
 * sequence reads one. */
KVD_API enum kvd_status kvd_return_lent(kvd_client *client, const struct kvd_lent_return *what,
                                        struct kvd_error *error);
/* Pages of a continuation that have names, from page `first` on: ids and digests, for who adopts them. ret_pages: room
 * for KVD_MAX_LENT, of which *ret_n are written; fewer: the names end there. */
KVD_API enum kvd_status kvd_read_chain(kvd_client *client, kvd_continuation continuation, uint32_t first,
                                       struct kvd_lent_page *ret_pages, uint32_t *ret_n, struct kvd_error *error);
/* Names pages first_page .. first_page + n_pages of the sequence by the digests of a chain. Where the store has no
 * state images kvd_find finds them at once, as far as all pools are committed, and others may share them from then on:
 * the sequence cannot be truncated below what they share. KVD_OUT_OF_RANGE: the chain has fewer pages. Sends a message
 * for every KVD_MAX_DIGESTS pages; where one is refused, the pages before it are named. */
KVD_API enum kvd_status kvd_name_pages(kvd_client *client, kvd_sequence sequence, const kvd_chain *chain,
                                       uint32_t first_page, uint32_t n_pages, struct kvd_error *error);
/* Makes a continuation of what the sequence has committed, which shares its full pages. The sequence goes on.
 * what->tail holds the tokens after the last full page. KVD_FAILED_PRECONDITION: the state image does not stand at the
 * committed frontier (kvd_store_state). KVD_RESOURCE_EXHAUSTED: the store is short.
 * Where an equal continuation is there (names, tail, frontier, user), and no activation holds it, its handle is the
 * answer, and nothing is taken. what->victims give way in the same transaction, so that a checkpoint finds room in a
 * full store: all of them, or none where it is refused or an equal one is there. A scheduler names them, a worker none.
 * KVD_FAILED_PRECONDITION: one that is to be demoted is not in the host yet (kvd_demote with keep_device). */
KVD_API enum kvd_status kvd_checkpoint(kvd_client *client, const struct kvd_checkpoint *what,
                                       struct kvd_checkpointed *ret_checkpointed, struct kvd_error *error);
/* Ends the sequence. With how->retain it becomes a continuation, which outlives every engine; else its pages are free.
 * It never lacks a descriptor, for a running sequence owns the one that keeps it. Where an equal continuation is there,
 * the answer is that one's handle, as of kvd_checkpoint. KVD_FAILED_PRECONDITION as for kvd_checkpoint, and while a
 * unit of another session may run on it (kvd_round). */
KVD_API enum kvd_status kvd_finish(kvd_client *client, const struct kvd_finish *how, struct kvd_finished *ret_finished,
                                   struct kvd_error *error);
/* Drops a continuation. Its pages are free unless something else shares them. KVD_NOT_FOUND: it has gone already. */
KVD_API enum kvd_status kvd_release(kvd_client *client, kvd_continuation continuation, struct kvd_error *error);
/* Cuts a continuation to a frontier, at once or not at all. Its handle, retention and time of use stay; the pages
 * behind are free unless something else shares them. frontier: a page boundary, or a place in its tail. Its own
 * frontier changes nothing. KVD_INVALID_ARGUMENT: the tokens of that page are not known. KVD_OUT_OF_RANGE: 0, more than
 * it has, or state images belong to frontiers. KVD_ABORTED: a fork or a copy reads it now. */
KVD_API enum kvd_status kvd_shorten(kvd_client *client, kvd_continuation continuation, uint32_t frontier,
                                    struct kvd_error *error);
/* Releases the continuations of a domain (as in the lists; digest or label is needed), a step a call: begin with
 * *cursor 0 and go on until it is KVD_UNCHANGED. Each answer counts what its step released, and what stays because an
 * activation or a move holds it; the last one counts the running sequences of the domain, which go on. With tenants =
 * uid the digest is the one that lists show. */
KVD_API enum kvd_status kvd_release_domain(kvd_client *client, const struct kvd_root *domain, uint32_t *cursor,
                                           struct kvd_domain_released *ret_released, struct kvd_error *error);
/* Sets the retention class: kvd_choose_victims and a kvd that stops give up the lowest first. */
KVD_API enum kvd_status kvd_set_retention(kvd_client *client, kvd_continuation continuation, uint32_t retention,
                                          struct kvd_error *error);
/* Leaves the list of continuations that may go where lease growth (`growth = yes`) lacks pages, in the order of going,
 * for one sequence or for all of this session. kvd takes as few as suffice for the next 64 tokens, leaves out those
 * that give nothing, and takes nobody else; each is told by KVD_EVENT_GAVE_WAY. What is in use then, or gone, is passed
 * over. The list replaces the one before and stands until the sequence or the session ends. KVD_PERMISSION_DENIED: the
 * sequence is another session's. */
KVD_API enum kvd_status kvd_set_growth_victims(kvd_client *client, const struct kvd_growth_victims *list,
                                               struct kvd_error *error);
/* Makes a group of 1 to KVD_MAX_RANKS worker sessions, one a rank, to which sequences can be leased. Its leader
 * (members[0]) sends the rounds. */
KVD_API enum kvd_status kvd_open_group(kvd_client *client, const struct kvd_group *group, kvd_group_id *ret_group,
                                       struct kvd_error *error);
/* KVD_FAILED_PRECONDITION: sequences are still leased to it. */
KVD_API enum kvd_status kvd_close_group(kvd_client *client, kvd_group_id group, struct kvd_error *error);
/* Fences another session. kvd refuses all its requests from now on. Its sequences stay quarantined until its process is
 * proven gone. */
KVD_API enum kvd_status kvd_fence(kvd_client *client, kvd_session_id session, struct kvd_error *error);

/* Places. Pages of a continuation are on the device, in the host arena (kvd_stats.host_capacity > 0), or in both. What
 * is in the host only is found and activated all the same: the activation brings it back first, at the price of
 * restore_pages.
 *
 * Each of the next three blocks until the copies are done or the deadline has passed. After KVD_DEADLINE_EXCEEDED the
 * copies go on, and the same call made again waits for them. The continuation can be used meanwhile. Repeating a call
 * is harmless: what is in place is not copied again, and ret_moved (may be NULL) then counts nothing. The whole
 * continuation moves, its state image included, or nothing does. KVD_RESOURCE_EXHAUSTED: the arena or a pool is short.
 * KVD_FAILED_PRECONDITION: there is no host tier. KVD_DATA_LOSS: bytes in the host were damaged, and the continuation
 * had no other copy. */
/* Copies all pages to the host. Then the device gives up those that nothing else needs, and the continuation asks for
 * no place there (`demoted`). keep_device: copies only, so that a later demotion costs nothing and a restart of kvd
 * finds it. */
KVD_API enum kvd_status kvd_demote(kvd_client *client, kvd_continuation continuation, bool keep_device,
                                   struct kvd_moved *ret_moved, struct kvd_error *error);
/* Copies all pages to the device, ahead of an activation. The host's copies stay. It asks for its place on the device
 * again. */
KVD_API enum kvd_status kvd_prefetch(kvd_client *client, kvd_continuation continuation, struct kvd_moved *ret_moved,
                                     struct kvd_error *error);
/* Drops the copies of one tier that the other tier has too. KVD_FAILED_PRECONDITION: that would lose a page. */
KVD_API enum kvd_status kvd_drop_replica(kvd_client *client, kvd_continuation continuation, enum kvd_tier tier,
                                         struct kvd_moved *ret_moved, struct kvd_error *error);

/* The cold tier: pages in a Redis or Valkey that several kvd share ([cold] in the configuration). Nothing but these
 * calls, and an activation that says so (kvd_set_cold), waits for it.
 *
 * The first `until` tokens of a prompt, from page `first` on: behind what kvd_find has found here. A continuation is
 * looked for that ends at `until` or before that: within the page behind the last one that is there, or at a page
 * boundary. chain holds the prompt's tokens, at
 * least until of them. */
struct kvd_cold_prompt {
    const kvd_chain *chain;
    const uint32_t *prompt;
    uint32_t until;        /* more than first pages have; of a prompt to be computed at most its tokens - 1 */
    uint32_t first;        /* pages */
    kvd_continuation from; /* kvd_load_cold: has those pages, and is no live one; none where first is 0 */
    uint32_t retention;    /* kvd_load_cold: of what is made */
};
/* Asks what is there, for [cold] find_time at most; ret_found->bytes is the cost of loading it. Nothing there, and an
 * engine that does not answer, is a frontier at page `first` and KVD_OK. What is there may have gone when it is loaded.
 * KVD_FAILED_PRECONDITION: there is no cold tier. Sends a message for every KVD_MAX_DIGESTS pages. */
KVD_API enum kvd_status kvd_find_cold(kvd_client *client, const struct kvd_cold_prompt *prompt,
                                      struct kvd_cold_found *ret_found, struct kvd_error *error);
/* Loads it into the host, each byte checked, and answers with a continuation there: it shares the first pages of
 * `from`, ends where something was missing, and is activated or prefetched as any other. KVD_OK with no continuation:
 * nothing has come. Twice is once: an equal one that is there is the answer. KVD_RESOURCE_EXHAUSTED: the host arena is
 * full (release what is worth less). KVD_NOT_FOUND: `from` has gone. After KVD_DEADLINE_EXCEEDED it goes on, and is
 * there when kvd_find finds it. Sends a message for every KVD_MAX_DIGESTS pages; where a later one is refused, the
 * answer is what came before it. */
KVD_API enum kvd_status kvd_load_cold(kvd_client *client, const struct kvd_cold_prompt *prompt,
                                      struct kvd_cold_found *ret_found, struct kvd_error *error);
/* Loads it, then copies it to the device (kvd_prefetch), ahead of an activation. Where that is refused, what was loaded
 * stays in the host, and kvd_find finds it. */
KVD_API enum kvd_status kvd_prefetch_cold(kvd_client *client, const struct kvd_cold_prompt *prompt,
                                          struct kvd_cold_found *ret_found, struct kvd_error *error);
/* Lookups and loads off the critical path: a scheduler runs on while the engine behind kvd works. The start sends one
 * message and returns; a message is about the first KVD_MAX_DIGESTS pages behind `first`. Where all of those are there
 * and more is wanted, start again behind them, `from` the continuation of the part before, and release that when the
 * longer one has come. kvd_cold_poll never blocks and returns KVD_UNAVAILABLE while there is no answer; kvd_cold_wait
 * blocks up to the timeout. Tickets, their deadlines and lost connections are as those of kvd_round_start. A load whose
 * ticket has ended by its deadline goes on. */
KVD_API enum kvd_status kvd_find_cold_start(kvd_client *client, const struct kvd_cold_prompt *prompt,
                                            kvd_ticket *ret_ticket, struct kvd_error *error);
KVD_API enum kvd_status kvd_load_cold_start(kvd_client *client, const struct kvd_cold_prompt *prompt,
                                            kvd_ticket *ret_ticket, struct kvd_error *error);
KVD_API enum kvd_status kvd_cold_poll(kvd_client *client, kvd_ticket ticket, struct kvd_cold_found *ret_found,
                                      struct kvd_error *error);
KVD_API enum kvd_status kvd_cold_wait(kvd_client *client, kvd_ticket ticket, struct kvd_cold_found *ret_found,
                                      struct kvd_error *error);

/* A policy; the store itself never chooses. Sets want->victims so that the plan is ready: the continuations of the
 * lowest retention class first, of one class the least recently used, no more than needed, and none that frees nothing.
 * n_victims is 0 where none are needed. Sets want->revision. kvd_activate may still return KVD_ABORTED when the store
 * has moved on: choose again. What want->victims was before does not matter. Sends 1 to 3 messages.
 *
 * room is the caller's, with space for max victims, at least 1; want->victims points there afterwards, so keep it until
 * the activation is answered. A message holds KVD_MAX_VICTIMS. Where an activation needs more, release the least
 * valuable with kvd_release, then choose again: each release is complete in itself.
 *
 * The source goes last. Where even all others would not do, want->keep becomes false: the source is moved, and what it
 * holds past the frontier goes. Where that does not do either, want->from becomes none and want->frontier 0: the source
 * is a victim, and the whole prompt is computed. Look at the three after the call.
 *
 * Where there is a host arena, victims are demoted, and nothing is lost as long as the arena can hold them. Where it
 * cannot hold them all, the least valuable of the victims and of the continuations that were demoted before are
 * released, as few as make the plan ready. Those demoted before are not touched otherwise, for they have nothing on the
 * device. Where membership entries are short, which a demoted continuation holds like any other, all take part and
 * victims are released. An activation that demotes or restores waits for the copies: give it time.
 *
 * KVD_RESOURCE_EXHAUSTED: even all of them would not do, or more than max are needed. *want is as it was. */
KVD_API enum kvd_status kvd_choose_victims(kvd_client *client, struct kvd_activation *want, struct kvd_victim *room,
                                           uint32_t max, struct kvd_error *error);

/* ---- worker ------------------------------------------------------------------------------------------- */

/* One boundary for a whole batch in one message: 1 to KVD_MAX_ROUND items. What an item asks for is in its masks.
 * ret_results[i] belongs to items[i]. Returns KVD_OK when the message was served; each item has its own status. A
 * commit says: my GPU work up to there is complete. An ensure says also: a unit of mine may run on this sequence from
 * now on. Until an item of this session without ensure, which says that none runs any more, rounds and kvd_finish of
 * other sessions answer KVD_FAILED_PRECONDITION for it. */
KVD_API enum kvd_status kvd_round(kvd_client *client, const struct kvd_round_item *items, uint32_t n,
                                  struct kvd_round_result *ret_results, struct kvd_error *error);
/* The same off the critical path. kvd_round_start sends the round and returns. kvd_round_poll never blocks and returns
 * KVD_UNAVAILABLE while there is no answer. kvd_round_wait blocks up to the timeout. Any other answer ends the ticket,
 * KVD_INVALID_ARGUMENT for too small a max excepted; a ticket whose deadline, counted from its start, has passed ends
 * when it is polled. KVD_NOT_FOUND: the ticket has ended. kvd_round_poll never connects: after a lost connection
 * kvd_client_reconnect or kvd_round_wait sends the round again. */
KVD_API enum kvd_status kvd_round_start(kvd_client *client, const struct kvd_round_item *items, uint32_t n,
                                        kvd_ticket *ret_ticket, struct kvd_error *error);
KVD_API enum kvd_status kvd_round_poll(kvd_client *client, kvd_ticket ticket, struct kvd_round_result *ret_results,
                                       uint32_t max, uint32_t *ret_n, struct kvd_error *error);
KVD_API enum kvd_status kvd_round_wait(kvd_client *client, kvd_ticket ticket, struct kvd_round_result *ret_results,
                                       uint32_t max, uint32_t *ret_n, struct kvd_error *error);
/* Says: no unit of mine runs on any sequence whose scheduler or other rank is gone. kvd takes these sequences back.
 * *ret_yielded: how many. */
KVD_API enum kvd_status kvd_yield(kvd_client *client, uint32_t *ret_yielded, struct kvd_error *error);

/* Decode without a call. Between two Rounds of a sequence a worker says by plain stores, in memory that it shares with
 * kvd, how far its GPU has come, and kvd maps the next pages ahead (map_ahead in section [lease]) and tells by plain
 * stores when they are in device memory. So a worker whose sequences go on calls this once a step for the whole batch,
 * and kvd_round only where that is due: for the first step, for a truncation, where kvd could not map, and before names
 * or a finish that need the frontier: kvd takes a frontier over when it maps, and before that knows nothing of it.
 *
 * A sequence takes part from the end of a kvd_round of this session that asked for ensure on it, until the next one
 * without. */
struct kvd_frontier {
    kvd_sequence sequence;
    uint32_t row;                   /* kvd_pool_view.row of pool 0 */
    uint32_t commit[KVD_MAX_POOLS]; /* tokens, as in a Round: the GPU work up to there is complete. 0: nothing new */
    uint32_t ensure[KVD_MAX_POOLS]; /* tokens that the next unit needs mapped. 0: none of this pool */
    /* Tokens whose pages are mapped. Set it to kvd_pool_view.membership * 64 of the last answer of kvd_activate or
     * kvd_round; kvd_advance raises it. */
    uint32_t mapped[KVD_MAX_POOLS];
    bool due; /* set: send a Round before the next unit: ensure is not mapped, or kvd needs a word of yours */
};
/* Writes what the items say, and sets mapped and due of each. *ret_due: how many are due. Makes no system call but,
 * about once in a window and sequence, a write to an eventfd. Never waits, and reports no loss of the connection: a
 * Round does. Leave out a sequence whose Round is under way (kvd_round_start): what this says could overtake it, and
 * the Round's commit would be refused. Where the store gives no boards (ring = no, or state images) only what is mapped
 * counts.
 * Threads: one thread at a time advances a sequence. KVD_OUT_OF_RANGE: there is no such row; nothing was written. */
KVD_API enum kvd_status kvd_advance(kvd_store *store, struct kvd_frontier *items, uint32_t n, uint32_t *ret_due,
                                    struct kvd_error *error);

/* ---- views ------------------------------------------------------------------------------------------------ */

/* Maps the store's pools of one rank into this process. device_uuid: 16 bytes of the GPU that this process runs on,
 * NULL for a host store. For a CUDA store the context must be current in the calling thread. The caller ends *ret_store
 * with kvd_detach. KVD_FAILED_PRECONDITION: protocol, geometry, device or namespace do not match; the sentence says
 * which. KVD_PERMISSION_DENIED: the role sees no memory.
 *
 * Where kvd was replaced under this process (another epoch) and its device memory outlives it, attaching says that no
 * unit of this process runs that was launched on an earlier attachment. Synchronize the device and detach first. */
KVD_API enum kvd_status kvd_attach(kvd_client *client, uint32_t rank, const uint8_t *device_uuid, kvd_store **ret_store,
                                   struct kvd_error *error);
/* Unmaps the store; all views of it end. A store may outlive its client. NULL is allowed. */
KVD_API void kvd_detach(kvd_store *store);
/* Valid until kvd_detach. */
KVD_API const struct kvd_store_info *kvd_store_describe(const kvd_store *store);
/* A layer of a pool for kernels: planes and block tables of all rows, or of one row. Valid until kvd_detach. Layers of
 * a pool with layer groups (kvd_pool_info.group) are numbered through, and `format` says what a layer's planes are.
 * KVD_OUT_OF_RANGE: there is no such pool, layer or row. */
KVD_API enum kvd_status kvd_store_batch_view(const kvd_store *store, uint32_t pool, uint32_t layer,
                                             PagedKVBatchLayerView *ret_view, struct kvd_error *error);
KVD_API enum kvd_status kvd_store_layer_view(const kvd_store *store, uint32_t pool, uint32_t layer, uint32_t row,
                                             PagedKVLayerView *ret_view, struct kvd_error *error);

/* State images, where the store has state_bytes > 0: what a model's frontier needs besides KV (recurrent or convolution
 * state, a draft's cyclic cache). Each rank has its own image in the slot of one number. kvd never looks inside.
 *
 * Returns address and length of a slot in this process. The address is a multiple of 256 and valid until kvd_detach.
 * KVD_OUT_OF_RANGE: there is no such slot. KVD_FAILED_PRECONDITION: the store has no images. The call does not check
 * whose slot it is:
 *
 * - kvd_activate names the sequence's state_slot. Only the sequence's workers, one a rank, write it, from that answer
 *   until the sequence finishes or they yield it. They may read it as long, and source_state_slot until their first
 *   commit.
 * - Root: the slot holds bytes of a sequence that is gone. Begin with a state of your own.
 * - Fork (source_state_slot is not KVD_NONE): copy that slot to state_slot on the device before the first
 * kvd_round with a commit, which gives the source up. Never write the source, because others fork from it. A fork
 * starts at the source's own frontier, the only one with an image. The sequence has no image until a round reports the
 * copy (state_frontier).
 * - Move: the slot comes with the sequence, its image in it. state_frontier stands at the frontier.
 * - The image belongs to the frontier that a round last reported as state_frontier. Report it when the GPU has written
 *   the image on all ranks. kvd_checkpoint and kvd_finish with retain need it at the committed frontier, else they
 * return KVD_FAILED_PRECONDITION. If a worker dies, the sequence is kept only if its image stands there.
 * - Before you write over an image at the committed frontier (after such a round, or a move), report state_frontier 0
 * in a round: there is no image. Otherwise a death in the middle would keep half an image. An engine whose running
 * state is elsewhere and that writes the slot at boundaries only does this once a boundary.
 * - kvd_checkpoint copies the slot as it is. Do not write it until the answer is there. */
KVD_API enum kvd_status kvd_store_state(const kvd_store *store, uint32_t slot, void **ret_address, uint64_t *ret_bytes,
                                        struct kvd_error *error);

/* ---- operators ------------------------------------------------------------------------------------------------ */

/* The store's geometry and capacity. Observers see no region names or handles. */
KVD_API enum kvd_status kvd_describe(kvd_client *client, struct kvd_store_info *ret_info, struct kvd_error *error);
/* Planes of a pool and rank with explicit strides, from number which->first on. *ret_n: how many were written, max at
 * most; *ret_total: how many there are. */
KVD_API enum kvd_status kvd_describe_planes(kvd_client *client, const struct kvd_planes_request *which,
                                            struct kvd_plane_info *ret_planes, uint32_t max, uint32_t *ret_n,
                                            uint32_t *ret_total, struct kvd_error *error);
KVD_API enum kvd_status kvd_stats(kvd_client *client, struct kvd_stats *ret_stats, struct kvd_error *error);
/* What prompts used again since this instance of kvd has started: what a cache of other sizes would have found, and how
 * much each domain has. The sizes are of caches that give up the least recently used page; a better policy finds more.
 * A sample of the pages is looked at, a few percent off in stores of many pages. */
KVD_API enum kvd_status kvd_describe_reuse(kvd_client *client, struct kvd_reuse *ret_reuse, struct kvd_error *error);
/* Recomputes every invariant of the store, in steps of less than a millisecond, between which other requests are
 * served. What stood wrong before the call is found, unless it is counted in left_out. KVD_UNAVAILABLE: another audit
 * is in work. For schedulers and admins. */
KVD_API enum kvd_status kvd_audit(kvd_client *client, struct kvd_audit *ret_audit, struct kvd_error *error);
/* on: kvd refuses new activations with KVD_UNAVAILABLE. Running sequences go on. For admins. */
KVD_API enum kvd_status kvd_drain(kvd_client *client, bool on, struct kvd_error *error);
/* Lists. Begin with *cursor 0 and go on until *cursor is KVD_UNCHANGED, the end. One call writes max objects or
 * KVD_MAX_LIST at most; it may write none before the end. An object that lives throughout is seen once. domain: only
 * what is of this digest, where it is not zeros, and of this label, where it is not empty. NULL: everything. */
KVD_API enum kvd_status kvd_list_continuations(kvd_client *client, const struct kvd_root *domain, uint32_t *cursor,
                                               struct kvd_continuation_info *ret_infos, uint32_t max, uint32_t *ret_n,
                                               struct kvd_error *error);
/* Continuations that changed behind *cursor: made, named further, shortened, demoted or brought back, used, of another
 * retention, or gone (frontier 0, and nothing else is told; it may be told more than once). What they are now, not what
 * they were. Writes max or KVD_MAX_LIST at most; *ret_more: there are more by now, even where it writes none.
 *
 * So a scheduler keeps its own catalogue: begin with *cursor 0, which writes none and sets *cursor; then list all; then
 * call this again and again. KVD_OUT_OF_RANGE: so many have changed that the oldest are not kept, or kvd is another
 * instance: begin anew. An answer that is lost does no harm: call with the cursor before. */
KVD_API enum kvd_status kvd_list_changes(kvd_client *client, uint64_t *cursor, struct kvd_continuation_info *ret_infos,
                                         uint32_t max, uint32_t *ret_n, bool *ret_more, struct kvd_error *error);
KVD_API enum kvd_status kvd_list_sequences(kvd_client *client, const struct kvd_root *domain, uint32_t *cursor,
                                           struct kvd_sequence_info *ret_infos, uint32_t max, uint32_t *ret_n,
                                           struct kvd_error *error);
KVD_API enum kvd_status kvd_list_sessions(kvd_client *client, uint32_t *cursor, struct kvd_session_info *ret_infos,
                                          uint32_t max, uint32_t *ret_n, struct kvd_error *error);
/* The keys of the configuration with the values that are in effect, in the order of kvd.conf(5). One call writes
 * KVD_MAX_SETTINGS at most. */
KVD_API enum kvd_status kvd_list_settings(kvd_client *client, uint32_t *cursor, struct kvd_setting *ret_infos,
                                          uint32_t max, uint32_t *ret_n, struct kvd_error *error);

/* The cold tier: what its engine does, and what was written. */
KVD_API enum kvd_status kvd_describe_cold_tier(kvd_client *client, struct kvd_cold_tier *ret_cold,
                                               struct kvd_error *error);
/* Begins a check of the engine, and does not wait for it: when it has ended, `checks` of kvd_describe_cold_tier has
 * grown. objects: so many of those that were written lately are read back and compared, at most KVD_MAX_COLD_CHECK; 0:
 * it is only asked once. KVD_FAILED_PRECONDITION: there is no cold tier. For admins. */
KVD_API enum kvd_status kvd_check_cold_tier(kvd_client *client, uint32_t objects, struct kvd_error *error);

/* ---- events ------------------------------------------------------------------------------------------------------ */

/* mask: KVD_EVENT_MASK of the kinds that are wanted, 0 = none. Replaces the mask before. The library keeps the oldest
 * 256 events that were not taken, and counts those that it drops. */
KVD_API enum kvd_status kvd_subscribe(kvd_client *client, uint32_t mask, struct kvd_error *error);
/* Takes the oldest event, and waits for one up to timeout_ms; 0 = do not wait. KVD_DEADLINE_EXCEEDED: none came.
 * KVD_UNAVAILABLE: the connection is lost. */
KVD_API enum kvd_status kvd_next_event(kvd_client *client, uint32_t timeout_ms, struct kvd_event *ret_event,
                                       struct kvd_error *error);

#ifdef __cplusplus
}
#endif
#endif
