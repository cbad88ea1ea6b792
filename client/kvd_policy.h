/* SPDX-License-Identifier: Apache-2.0
 *
 * What is worth keeping: a policy for schedulers, above kvd.h. kvd itself never chooses; kvd_choose_victims gives up
 * the least recently used. This policy remembers the prompts of the last day, also those whose KV is gone,
 * learns how likely and how soon a prefix returns, and how much of it, and gives up first what a page of memory would
 * serve least: the tail of a continuation before the rest, and of the last one no more than is needed.
 *
 *     kvd_policy_new(NULL, &policy);
 *     ... a request:
 *     use = kvd_policy_prompt(policy, chain, n_prompt, now);             // once a request, before it is activated
 *     kvd_find(...); fill in want;
 *     kvd_policy_choose(policy, client, &want, room, max, now, &error);  // instead of kvd_choose_victims
 *     kvd_activate(...); kvd_policy_gone(policy, want.from) where it was moved; the victims are forgotten by choose
 *     ... its end:
 *     kvd_finish(...); kvd_policy_kept(policy, use, finished.continuation, tokens);
 *
 * Conventions: those of kvd.h. Times are nanoseconds of one clock that does not go back; which one is the caller's
 * choice, so that a replay runs on the time of its trace. The same calls with the same times make the same choices. A
 * policy belongs to one thread at a time, and to one scheduler's client: what others keep it does not know, and gives
 * up last, by kvd_choose_victims. It costs about 210 bytes a remembered prompt, 120 a continuation, and 370,000 a
 * quota.
 */
#ifndef KVD_POLICY_H
#define KVD_POLICY_H

#include "kvd.h"

typedef struct kvd_policy kvd_policy;

struct kvd_policy_options {
    uint32_t prompts;       /* remembered at most; 0: 32,768. A power of two is not needed */
    uint32_t continuations; /* known at most; 0: 65,536. Of more the least recently used are forgotten */
    bool demotes;           /* the store has a host arena: victims are demoted while it holds them */
    uint32_t pinned_pages;  /* of pool 0 that may be pinned; 0: none */
};

/* What the engine knows of a continuation, beside what is learned. All zero: nothing. */
struct kvd_policy_terms {
    bool pinned;       /* never a victim of the policy */
    bool over;         /* it will not come back, or something took its place: it goes first */
    bool back;         /* it will come back: it goes after all that are neither pinned nor said to come back */
    uint64_t until_ns; /* from then on it is over, whatever else is said, a second later at most; 0: never */
};

/* What a domain may keep beside the needs of others, in pages of pool 0 of its continuations. Pages that several of
 * them share count once for each. */
#define KVD_POLICY_QUOTAS 64u /* domains that may have one */
struct kvd_policy_share {
    uint64_t pages; /* on the device and in the arena together. An arena holds bytes / kvd_pool_info.page_bytes */
    uint64_t device_pages; /* of those, on the device, where victims are demoted; 0: all */
};

/* options NULL: all defaults. The caller frees *ret_policy with kvd_policy_free. KVD_RESOURCE_EXHAUSTED: no memory.
 * Beside it kvd_policy_quota alone allocates. */
KVD_API enum kvd_status kvd_policy_new(const struct kvd_policy_options *options, kvd_policy **ret_policy);
KVD_API void kvd_policy_free(kvd_policy *policy); /* NULL is allowed */

/* A prompt of n_prompt tokens, whose full pages are in the chain; tokens of the chain beyond n_prompt do not count.
 * Returns a number for kvd_policy_kept. */
KVD_API uint64_t kvd_policy_prompt(kvd_policy *policy, const kvd_chain *chain, size_t n_prompt, uint64_t now_ns);
/* The use's request has left this continuation, of so many tokens. A handle that is known already (an equal one was
 * there, or a later turn moved it) is worth what this use says from here on. */
KVD_API void kvd_policy_kept(kvd_policy *policy, uint64_t use, kvd_continuation continuation, uint32_t tokens);
/* The continuation is no more: released, moved, or lost (KVD_EVENT_LOST). An unknown one is fine. */
KVD_API void kvd_policy_gone(kvd_policy *policy, kvd_continuation continuation);

/* Sets the terms of a known continuation, for as long as it has this handle and the policy knows it; they replace those
 * before. Of several that are said, the first counts. KVD_NOT_FOUND: it is not known. KVD_RESOURCE_EXHAUSTED: more than
 * pinned_pages would be pinned. Pages that pinned ones share count once for each.
 *
 * A pinned one goes only by its engine's hand. Where an activation fits only without it, kvd_policy_choose returns
 * KVD_RESOURCE_EXHAUSTED. Where the store holds what the policy does not know, give it the highest retention, too
 * (kvd_set_retention): then that goes before, and nothing is refused that fits. */
KVD_API enum kvd_status kvd_policy_set(kvd_policy *policy, kvd_continuation continuation,
                                       const struct kvd_policy_terms *terms);

/* new_one has taken the place of old_one, of which it was forked (the next turn of a conversation): it takes over its
 * terms, and old_one is over. A moved source is gone, and needs no word. KVD_NOT_FOUND: one of them is not known.
 * KVD_RESOURCE_EXHAUSTED: more than pinned_pages would be pinned. */
KVD_API enum kvd_status kvd_policy_supersede(kvd_policy *policy, kvd_continuation old_one, kvd_continuation new_one);

/* The domain of that root (kvd_chain_root) has this quota from now on; share NULL: none. A quota is no limit: who is
 * beyond it keeps what nobody needs. Victims are first what is over; then what domains keep beyond their quotas; then
 * continuations of domains without a quota; and what is within a quota last. Of each group those that are said to come
 * back go after the others, and the learned order decides within that. So one domain's flood takes nothing that another
 * one keeps within its quota, as long as all quotas together fit. Of a domain beyond its quota no more goes first than
 * lies beyond, but what cannot be shortened goes whole. Pinned pages count. What runs does not. It looks at all that is
 * known, so set quotas at the start. KVD_RESOURCE_EXHAUSTED: KVD_POLICY_QUOTAS domains have one, or there is no memory.
 */
KVD_API enum kvd_status kvd_policy_quota(kvd_policy *policy, const kvd_digest *root,
                                         const struct kvd_policy_share *share);

/* Continuations that are known, the least valuable first, without those that are pinned: writes at most max handles.
 * Returns how many. */
KVD_API uint32_t kvd_policy_rank(kvd_policy *policy, uint64_t now_ns, kvd_continuation *ret_continuations,
                                 uint32_t max);
/* As kvd_choose_victims, in the policy's order. Where there is an arena, victims are demoted, and what the arena lacks
 * then is released by the same order, of those that were demoted before, too. A victim that is released is shortened to
 * what is worth more, the last one to what need not go; not where there are state images, which belong to frontiers.
 * Where what it knows does not do, kvd_choose_victims decides. The victims are forgotten: where the activation is
 * refused after all, call kvd_policy_kept for them again, or leave them to the order of kvd_choose_victims. Sends one
 * message where nothing must go, and two or three mostly where something must: one more each time that victims free
 * less than they hold, because others share it. */
KVD_API enum kvd_status kvd_policy_choose(kvd_policy *policy, kvd_client *client, struct kvd_activation *want,
                                          struct kvd_victim *room, uint32_t max, uint64_t now_ns,
                                          struct kvd_error *error);

#endif
