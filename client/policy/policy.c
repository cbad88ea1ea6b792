/* SPDX-License-Identifier: Apache-2.0
 *
 * The policy: what it is told, and its choice.
 */
#include "kvd_policy.h"

#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "policy_memory.h"
#include "recipe.h"

#define DEFAULT_PROMPTS 32768u
#define DEFAULT_CONTINUATIONS 65536u
#define WHOLE_CHOICES 64u

struct kvd_policy {
    struct policy_memory memory;
    struct catalog catalog;
    uint64_t now_ns;
    uint32_t choices;
    uint32_t pinned_pages; /* at most */
    uint32_t whole_until;  /* a number of choices: nothing is shortened before */
    bool demotes;
};

/* ---- life ---- */

enum kvd_status kvd_policy_new(const struct kvd_policy_options *options, kvd_policy **ret_policy) {
    static const struct kvd_policy_options none = { 0 };
    if (!ret_policy) return KVD_INVALID_ARGUMENT;
    if (!options) options = &none;
    uint32_t prompts = options->prompts ? options->prompts : DEFAULT_PROMPTS;
    uint32_t most = options->continuations ? options->continuations : DEFAULT_CONTINUATIONS;
    if (prompts > 1u << 24 || most > 1u << 24) return KVD_INVALID_ARGUMENT;
    struct kvd_policy *p = calloc(1, sizeof *p);
    if (!p) return KVD_RESOURCE_EXHAUSTED;
    p->demotes = options->demotes;
    p->pinned_pages = options->pinned_pages;
    if (memory_init(&p->memory, prompts) || catalog_init(&p->catalog, &p->memory.model, most)) {
        kvd_policy_free(p);
        return KVD_RESOURCE_EXHAUSTED;
    }
    *ret_policy = p;
    return KVD_OK;
}

void kvd_policy_free(kvd_policy *p) {
    if (!p) return;
    memory_free(&p->memory);
    catalog_free(&p->catalog);
    free(p);
}

/* ---- what happens ---- */

/* A number for a root; never 0. */
static uint64_t domain_of(const kvd_digest *root) {
    uint64_t domain;
    memcpy(&domain, root->bytes, sizeof domain);
    return domain | 1;
}

uint64_t kvd_policy_prompt(kvd_policy *p, const kvd_chain *chain, size_t n_prompt, uint64_t now_ns) {
    size_t pages = n_prompt / KVD_PAGE_TOKENS, most = kvd_chain_pages(chain);
    if (pages > most) pages = most;
    if (now_ns > p->now_ns) p->now_ns = now_ns;
    use_id use = memory_note(&p->memory, kvd_chain_digests(chain), (uint32_t)pages, (uint32_t)n_prompt, p->now_ns);
    if (chain) memory_use(&p->memory, use)->domain = domain_of(&kvd_chain_root(chain)->digest);
    return use;
}

void kvd_policy_kept(kvd_policy *p, uint64_t use_, kvd_continuation continuation, uint32_t tokens) {
    struct use *use = memory_use(&p->memory, use_);
    if (!continuation.bits) return;
    struct catalog_entry entry = { .bits = continuation.bits,
                                   .at_ns = p->now_ns,
                                   .pages = tokens / KVD_PAGE_TOKENS + (tokens % KVD_PAGE_TOKENS != 0),
                                   .prompt_pages = tokens / KVD_PAGE_TOKENS };
    const struct catalog_entry *before = catalog_find(&p->catalog, continuation.bits);
    if (use) {
        if (tokens > use->tokens) use->tokens = tokens;
        entry.at_ns = use->at_ns;
        entry.rate = use->class.rate;
        entry.domain = use->domain;
        entry.prompt_pages = use->pages;
    } else if (before) {
        entry.rate = before->rate;
        entry.domain = before->domain;
        entry.prompt_pages = before->prompt_pages;
    }
    catalog_put(&p->catalog, &entry);
}

void kvd_policy_gone(kvd_policy *p, kvd_continuation continuation) { catalog_remove(&p->catalog, continuation.bits); }

enum kvd_status kvd_policy_set(kvd_policy *p, kvd_continuation continuation, const struct kvd_policy_terms *terms) {
    if (!p || !terms) return KVD_INVALID_ARGUMENT;
    struct catalog_entry *e = catalog_find(&p->catalog, continuation.bits);
    if (!e) return KVD_NOT_FOUND;
    uint64_t pinned = p->catalog.pinned_pages - (e->class == CATALOG_PINNED ? e->pages : 0);
    if (terms->pinned && pinned + e->pages > p->pinned_pages) return KVD_RESOURCE_EXHAUSTED;
    enum catalog_class class = terms->pinned ? CATALOG_PINNED
                               : terms->over ? CATALOG_OVER
                               : terms->back ? CATALOG_BACK
                                             : CATALOG_PLAIN;
    catalog_set(&p->catalog, e, class, terms->until_ns);
    return KVD_OK;
}

static struct kvd_policy_terms terms_of(const struct catalog_entry *e) {
    return (struct kvd_policy_terms){ .pinned = e->class == CATALOG_PINNED,
                                      .over = e->class == CATALOG_OVER,
                                      .back = e->class == CATALOG_BACK,
                                      .until_ns = e->until_ns };
}

enum kvd_status kvd_policy_supersede(kvd_policy *p, kvd_continuation old, kvd_continuation new) {
    if (!p || old.bits == new.bits) return KVD_INVALID_ARGUMENT;
    const struct catalog_entry *before = catalog_find(&p->catalog, old.bits);
    if (!before || !catalog_find(&p->catalog, new.bits)) return KVD_NOT_FOUND;
    const struct kvd_policy_terms now = terms_of(before), over = { .over = true };
    kvd_policy_set(p, old, &over);
    enum kvd_status status = kvd_policy_set(p, new, &now);
    if (status != KVD_OK) kvd_policy_set(p, old, &now);
    return status;
}

enum kvd_status kvd_policy_quota(kvd_policy *p, const kvd_digest *root, const struct kvd_policy_share *share) {
    if (!p || !root) return KVD_INVALID_ARGUMENT;
    if (!share) {
        catalog_drop_share(&p->catalog, domain_of(root));
        return KVD_OK;
    }
    const uint64_t most[CATALOG_COUNTS] = {
        [CATALOG_ALL] = share->pages, [CATALOG_DEVICE] = share->device_pages ? share->device_pages : share->pages
    };
    return catalog_set_share(&p->catalog, domain_of(root), most) ? KVD_RESOURCE_EXHAUSTED : KVD_OK;
}

/* ---- order ---- */

uint32_t kvd_policy_rank(kvd_policy *p, uint64_t now_ns, kvd_continuation *ret_continuations, uint32_t max) {
    struct catalog_walk walk;
    const struct catalog_entry *entry;
    uint32_t part, n = 0;
    if (now_ns > p->now_ns) p->now_ns = now_ns;
    catalog_advance(&p->catalog, p->now_ns);
    catalog_begin(&p->catalog, true, &walk);
    while (n < max && (entry = catalog_step(&walk, &part))) {
        catalog_take(&p->catalog, entry, entry->pages, entry->pages);
        ret_continuations[n++].bits = entry->bits;
    }
    return n;
}

/* ---- choice ---- */

static void learn_reach(struct kvd_policy *p, const struct kvd_activation *want) {
    const struct catalog_entry *source = catalog_find(&p->catalog, want->from.bits);
    if (source) reuse_reach(&p->memory.model, source->prompt_pages, source->pages, want->frontier / KVD_PAGE_TOKENS);
}

/* kvd_choose_victims knows of no pins: what it answers may not do. */
static enum kvd_status check_pins(const struct kvd_policy *p, const struct kvd_activation *want,
                                  const struct kvd_activation *trial, struct kvd_error *error) {
    const struct catalog_entry *e = catalog_find(&p->catalog, want->from.bits);
    bool taken = e && e->class == CATALOG_PINNED && (trial->from.bits != want->from.bits || trial->keep != want->keep);
    for (uint32_t i = 0; i < trial->n_victims && !taken; i++) {
        e = catalog_find(&p->catalog, trial->victims[i].continuation.bits);
        taken = e && e->class == CATALOG_PINNED;
    }
    if (!taken) return KVD_OK;
    return client_fail(error, KVD_RESOURCE_EXHAUSTED,
                       "fits only without what is pinned, %llu pages: unpin some (kvd_policy_set), or ask for less",
                       (unsigned long long)p->catalog.pinned_pages);
}

static void note_victims(struct kvd_policy *p, const struct kvd_activation *want) {
    for (uint32_t i = 0; i < want->n_victims; i++) {
        const struct kvd_victim *v = &want->victims[i];
        struct catalog_entry *e = catalog_find(&p->catalog, v->continuation.bits);
        if (!e) continue;
        if (v->demote) catalog_change(&p->catalog, e, e->pages, true);
        else if (v->frontier)
            catalog_change(&p->catalog, e, (v->frontier + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS, e->demoted);
        else catalog_remove(&p->catalog, e->bits);
    }
}

/* Where state images belong to frontiers nothing can be shortened, which a refusal tells. Or somebody else has
 * shortened one before: so it is tried again after a while. */
static enum kvd_status find_victims(struct kvd_policy *p, struct policy_recipe *r) {
    enum kvd_status status;
    bool refused;
    do {
        r->cuts = p->choices >= p->whole_until;
        r->n = r->shortened = 0;
        r->choice = ++p->choices;
        if (r->demotes) catalog_begin(&p->catalog, true, &r->demoting);
        catalog_begin(&p->catalog, false, &r->releasing);
        status = recipe_find(r);
        refused = status == KVD_OUT_OF_RANGE && r->shortened;
        if (refused) p->whole_until = p->choices + WHOLE_CHOICES;
    } while (refused);
    return status;
}

enum kvd_status kvd_policy_choose(kvd_policy *p, kvd_client *c, struct kvd_activation *want, struct kvd_victim *room,
                                  uint32_t max, uint64_t now_ns, struct kvd_error *error) {
    if (!p || !want || !room || !max)
        return client_fail(error, KVD_INVALID_ARGUMENT, "kvd_policy_choose needs a policy, an activation and room");
    if (max > KVD_MAX_VICTIMS) max = KVD_MAX_VICTIMS;
    if (now_ns > p->now_ns) p->now_ns = now_ns;
    learn_reach(p, want);
    struct policy_recipe r = { .model = &p->memory.model,
                               .client = c,
                               .trial = *want,
                               .room = room,
                               .max = max,
                               .demotes = p->demotes,
                               .error = error };
    r.trial.revision = 0;
    catalog_advance(&p->catalog, p->now_ns);
    enum kvd_status status = find_victims(p, &r);
    if (status == KVD_OK && r.plan.feasibility == KVD_READY) {
        *want = r.trial;
        want->revision = r.plan.revision;
    } else {
        r.trial = *want;
        status = kvd_choose_victims(c, &r.trial, room, max, error);
        if (status == KVD_OK) status = check_pins(p, want, &r.trial, error);
        if (status != KVD_OK) return status;
        *want = r.trial;
    }
    note_victims(p, want);
    return KVD_OK;
}
