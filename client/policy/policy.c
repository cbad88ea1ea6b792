/* SPDX-License-Identifier: Apache-2.0
 *
 * The continuations that a policy knows, oldest use first, and the choice among them. A continuation is worth what its
 * last use says. Where several have one class and one band of ages, the oldest goes first.
 */
#include "kvd_policy.h"

#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "policy_memory.h"

#define DEFAULT_PROMPTS 32768u
#define DEFAULT_CONTINUATIONS 65536u

struct known {
    uint64_t bits; /* 0: gone */
    uint64_t at_ns;
    uint32_t pages; /* of pool 0, with those that it shares */
    uint8_t rate;
    bool demoted;
};

struct kvd_policy {
    struct policy_memory memory;
    struct known *known; /* [2 * most], in the order in which they were kept */
    uint32_t *slots;     /* [n_slots]: index + 1 of a handle in known; open addressing */
    uint32_t *ranked;    /* [most]: scratch of a choice */
    uint32_t most, n_slots, first, end, alive;
    uint64_t now_ns;
    bool demotes;
};

/* ---- handles ---- */

static uint32_t hash_handle(uint64_t bits) { return (uint32_t)(bits * UINT64_C(0x9E3779B97F4A7C15) >> 32); }

/* Where the handle is, or would be. */
static uint32_t *slot_of(const struct kvd_policy *p, uint64_t bits) {
    uint32_t at = hash_handle(bits) & (p->n_slots - 1);
    while (p->slots[at] && p->known[p->slots[at] - 1].bits != bits) at = (at + 1) & (p->n_slots - 1);
    return &p->slots[at];
}

/* Also moves what stood behind it because it was there. */
static void free_slot(struct kvd_policy *p, uint32_t *slot) {
    uint32_t mask = p->n_slots - 1, hole = (uint32_t)(slot - p->slots);
    for (uint32_t at = (hole + 1) & mask; p->slots[at]; at = (at + 1) & mask) {
        uint32_t home = hash_handle(p->known[p->slots[at] - 1].bits) & mask;
        if (((at - home) & mask) < ((at - hole) & mask)) continue;
        p->slots[hole] = p->slots[at];
        hole = at;
    }
    p->slots[hole] = 0;
}

static struct known *find_known(const struct kvd_policy *p, uint64_t bits) {
    uint32_t index = bits ? *slot_of(p, bits) : 0;
    return index ? &p->known[index - 1] : NULL;
}

static void forget_known(struct kvd_policy *p, uint64_t bits) {
    struct known *known = find_known(p, bits);
    if (!known) return;
    free_slot(p, slot_of(p, bits));
    known->bits = 0;
    p->alive--;
}

/* Closes the gaps. */
static void compact_known(struct kvd_policy *p) {
    uint32_t to = 0;
    for (uint32_t i = p->first; i < p->end; i++) {
        if (!p->known[i].bits) continue;
        *slot_of(p, p->known[i].bits) = to + 1;
        p->known[to++] = p->known[i];
    }
    p->first = 0;
    p->end = to;
}

static void append_known(struct kvd_policy *p, const struct known *known) {
    if (p->end == 2 * p->most) compact_known(p);
    while (p->alive == p->most) {
        if (p->known[p->first].bits) forget_known(p, p->known[p->first].bits);
        p->first++;
    }
    *slot_of(p, known->bits) = p->end + 1;
    p->known[p->end++] = *known;
    p->alive++;
}

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
    p->most = most;
    p->demotes = options->demotes;
    for (p->n_slots = 16; p->n_slots < 4 * most;) p->n_slots *= 2;
    p->known = calloc(2 * (size_t)most, sizeof *p->known);
    p->ranked = calloc(most, sizeof *p->ranked);
    p->slots = calloc(p->n_slots, sizeof *p->slots);
    if (memory_init(&p->memory, prompts) || !p->known || !p->ranked || !p->slots) {
        kvd_policy_free(p);
        return KVD_RESOURCE_EXHAUSTED;
    }
    *ret_policy = p;
    return KVD_OK;
}

void kvd_policy_free(kvd_policy *p) {
    if (!p) return;
    memory_free(&p->memory);
    free(p->known);
    free(p->ranked);
    free(p->slots);
    free(p);
}

/* ---- what happens ---- */

uint64_t kvd_policy_prompt(kvd_policy *p, const kvd_chain *chain, size_t n_prompt, uint64_t now_ns) {
    size_t pages = n_prompt / KVD_PAGE_TOKENS, most = kvd_chain_pages(chain);
    if (pages > most) pages = most;
    if (now_ns > p->now_ns) p->now_ns = now_ns;
    return memory_note(&p->memory, kvd_chain_digests(chain), (uint32_t)pages, (uint32_t)n_prompt, p->now_ns);
}

void kvd_policy_kept(kvd_policy *p, uint64_t use_, kvd_continuation continuation, uint32_t tokens) {
    struct use *use = memory_use(&p->memory, use_);
    if (!continuation.bits) return;
    struct known known = { .bits = continuation.bits, .at_ns = p->now_ns, .pages = tokens / KVD_PAGE_TOKENS + 1 };
    const struct known *before = find_known(p, continuation.bits);
    if (use) {
        if (tokens > use->tokens) use->tokens = tokens;
        known.at_ns = use->at_ns;
        known.rate = use->class.rate;
    } else if (before) {
        known.rate = before->rate;
    }
    forget_known(p, continuation.bits);
    append_known(p, &known);
}

void kvd_policy_gone(kvd_policy *p, kvd_continuation continuation) { forget_known(p, continuation.bits); }

/* ---- order ---- */

/* Ranks all that are known: p->ranked[0..n) are places in p->known. Requests end in another order than they begin, so
 * ages are looked up one by one, from the band of the one before. */
static uint32_t rank_known(struct kvd_policy *p) {
    const struct reuse_model *m = &p->memory.model;
    uint32_t count[REUSE_CELLS + 1] = { 0 }, first[REUSE_CELLS], at = 0;
    for (int pass = 0; pass < 2; pass++) {
        uint32_t band = REUSE_BANDS - 1;
        for (uint32_t i = p->first; i < p->end; i++) {
            const struct known *known = &p->known[i];
            if (!known->bits) continue;
            uint64_t age = p->now_ns > known->at_ns ? p->now_ns - known->at_ns : 0;
            while (band && age < m->edge[band]) band--;
            while (band + 1 < REUSE_BANDS && age >= m->edge[band + 1]) band++;
            uint32_t cell = known->rate * REUSE_BANDS + band;
            if (pass) p->ranked[first[cell]++] = i;
            else count[cell]++;
        }
        for (uint32_t c = 0; !pass && c < REUSE_CELLS; c++) {
            first[m->order[c]] = at;
            at += count[m->order[c]];
        }
    }
    return at;
}

uint32_t kvd_policy_rank(kvd_policy *p, uint64_t now_ns, kvd_continuation *ret_continuations, uint32_t max) {
    if (now_ns > p->now_ns) p->now_ns = now_ns;
    uint32_t n = rank_known(p);
    if (n > max) n = max;
    for (uint32_t i = 0; i < n; i++) ret_continuations[i].bits = p->known[p->ranked[i]].bits;
    return n;
}

/* ---- choice ---- */

/* A recipe: the first `taken` of the order that are on the device give way, and of the first `released` of the order
 * all are released, also those that were demoted before. Returns the number of victims. */
static uint32_t write_recipe(const struct kvd_policy *p, uint32_t n, uint64_t source, uint32_t taken, uint32_t released,
                             struct kvd_victim *room, uint32_t max) {
    uint32_t victims = 0;
    for (uint32_t i = 0; i < n && victims < max && (i < released || taken); i++) {
        const struct known *known = &p->known[p->ranked[i]];
        if (known->bits == source) continue;
        bool release = !p->demotes || i < released;
        if (known->demoted && !release) continue;
        if (!known->demoted) {
            if (!taken) continue;
            taken--;
        }
        room[victims++] = (struct kvd_victim){ .continuation.bits = known->bits, .demote = !release };
    }
    return victims;
}

/* So many of the order have as many pages as are short; one at least. They free fewer: some pages are shared. */
static uint32_t first_taken(const struct kvd_policy *p, uint32_t n, const struct kvd_plan *plan) {
    uint64_t pages = 0, wanted = plan->pages[0].short_by;
    uint32_t taken = 0;
    for (uint32_t i = 0; i < n && (pages < wanted || !taken); i++) {
        const struct known *known = &p->known[p->ranked[i]];
        if (known->demoted) continue;
        pages += known->pages;
        taken++;
    }
    return taken ? taken : 1;
}

/* So many more as would free what is short, where each frees as much as those so far did on average; twice as many more
 * as the last time at least, since what is left may hold little alone. */
static uint32_t next_step(const struct kvd_plan *plan, uint32_t taken, uint32_t step) {
    double more = 2.0 * step;
    for (uint32_t i = 0; i < plan->n_pools; i++) {
        double short_by = (double)plan->pages[i].short_by, freed = plan->freed_pages[i];
        if (short_by > 0 && freed > 0 && short_by * taken / freed > more) more = short_by * taken / freed;
    }
    return more < 1e9 ? (uint32_t)more : 1000000000u;
}

struct policy_recipe {
    kvd_client *client;
    struct kvd_activation trial;
    struct kvd_plan plan;
    struct kvd_victim *room;
    uint32_t max, n, taken, released; /* n: that are known; of them so many are taken, and released */
    struct kvd_error *error;
};

static enum kvd_status try_recipe(const struct kvd_policy *p, struct policy_recipe *r) {
    r->trial.n_victims = write_recipe(p, r->n, r->trial.from.bits, r->taken, r->released, r->room, r->max);
    r->trial.victims = r->trial.n_victims ? r->room : NULL;
    return kvd_plan_activation(r->client, &r->trial, &r->plan, r->error);
}

static bool recipe_fits(const struct policy_recipe *r) { return r->plan.feasibility == KVD_READY; }

/* Nothing is short but, perhaps, the arena. */
static bool recipe_has_pages(const struct policy_recipe *r) {
    const struct kvd_plan *plan = &r->plan;
    bool fine = !plan->rows.short_by && !plan->sequences.short_by && !plan->continuations.short_by &&
                !plan->state_slots.short_by && !plan->membership.short_by;
    for (uint32_t i = 0; i < plan->n_pools; i++) fine &= !plan->pages[i].short_by;
    return fine;
}

/* One of the two numbers grows until pages (or the arena) suffice, by steps that grow; then it is halved back to what
 * just does, but for a sixteenth. */
static enum kvd_status find_number(const struct kvd_policy *p, struct policy_recipe *r, uint32_t *number,
                                   uint32_t first, bool (*does)(const struct policy_recipe *)) {
    uint32_t low = *number, step = first;
    enum kvd_status status = KVD_OK;
    while (status == KVD_OK && !does(r) && *number < r->n) {
        low = *number;
        *number = step < r->n - low ? low + step : r->n;
        status = try_recipe(p, r);
        step = next_step(&r->plan, *number, step);
    }
    uint32_t high = *number;
    for (bool enough = does(r); status == KVD_OK && enough && high - low > 1 + high / 16;) {
        *number = low + (high - low) / 2;
        status = try_recipe(p, r);
        if (does(r)) high = *number;
        else low = *number;
    }
    if (status != KVD_OK || *number == high) return status;
    *number = high;
    return try_recipe(p, r);
}

static enum kvd_status find_recipe(const struct kvd_policy *p, struct policy_recipe *r) {
    enum kvd_status status = try_recipe(p, r);
    if (status != KVD_OK || r->plan.feasibility != KVD_BLOCKED) return status;
    status = find_number(p, r, &r->taken, first_taken(p, r->n, &r->plan), recipe_has_pages);
    if (status != KVD_OK || !recipe_has_pages(r) || recipe_fits(r)) return status;
    return find_number(p, r, &r->released, 1, recipe_fits); /* the arena is short */
}

static void settle_victims(struct kvd_policy *p, const struct kvd_activation *want) {
    for (uint32_t i = 0; i < want->n_victims; i++) {
        struct known *known = find_known(p, want->victims[i].continuation.bits);
        if (known && want->victims[i].demote) known->demoted = true;
        else forget_known(p, want->victims[i].continuation.bits);
    }
}

enum kvd_status kvd_policy_choose(kvd_policy *p, kvd_client *c, struct kvd_activation *want, struct kvd_victim *room,
                                  uint32_t max, uint64_t now_ns, struct kvd_error *error) {
    if (!p || !want || !room || !max)
        return client_fail(error, KVD_INVALID_ARGUMENT, "kvd_policy_choose needs a policy, an activation and room");
    if (max > KVD_MAX_VICTIMS) max = KVD_MAX_VICTIMS;
    if (now_ns > p->now_ns) p->now_ns = now_ns;
    struct policy_recipe r = {
        .client = c, .trial = *want, .room = room, .max = max, .n = rank_known(p), .error = error
    };
    r.trial.revision = 0;
    enum kvd_status status = find_recipe(p, &r);
    if (status == KVD_OK && recipe_fits(&r)) {
        *want = r.trial;
        want->revision = r.plan.revision;
    } else if ((status = kvd_choose_victims(c, want, room, max, error)) != KVD_OK) {
        return status;
    }
    settle_victims(p, want);
    return KVD_OK;
}
