/* SPDX-License-Identifier: Apache-2.0 */
#include "paper_store.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

#define NAMES (1u << 18) /* places for pages; none is forgotten */

struct kvd_chain {
    struct kvd_root root;
    kvd_digest *digests;
    uint32_t n;
};
struct page {
    uint64_t name;
    uint32_t device, host, running; /* who holds it there; running sequences count in device, too */
};
struct holder { /* a continuation or a sequence */
    uint32_t *pages, n;
    bool alive, runs, demoted;
    uint64_t used;
};
struct paper_store {
    uint64_t pool, arena, clock, names;
    uint32_t most;
    struct paper_figures figures;
    struct page page[NAMES];
    struct holder holder[PAPER_MOST];
};

enum kvd_status client_fail(struct kvd_error *error, enum kvd_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (error) {
        error->status = status;
        vsnprintf(error->message, sizeof error->message, format, args);
    }
    va_end(args);
    return status;
}

static void *need(void *memory) {
    if (!memory) abort();
    return memory;
}

/* ---- names ---- */

static uint64_t mix(uint64_t z) {
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    return z ^ z >> 31;
}

kvd_chain *paper_chain(uint64_t domain, const uint64_t *pages, uint32_t n) {
    kvd_chain *chain = need(calloc(1, sizeof *chain));
    uint64_t name = mix(domain) + 1;
    chain->n = n;
    memcpy(chain->root.digest.bytes, &name, sizeof name);
    chain->digests = need(calloc(n + 1, sizeof *chain->digests));
    for (uint32_t i = 0; i < n; i++) {
        name = mix(name * UINT64_C(0x9E3779B97F4A7C15) + pages[i] + 1);
        memcpy(chain->digests[i].bytes, &name, sizeof name);
    }
    return chain;
}

void kvd_chain_free(kvd_chain *chain) {
    if (chain) free(chain->digests);
    free(chain);
}

const struct kvd_root *kvd_chain_root(const kvd_chain *chain) { return &chain->root; }
const kvd_digest *kvd_chain_digests(const kvd_chain *chain) { return chain->digests; }
size_t kvd_chain_pages(const kvd_chain *chain) { return chain->n; }

static uint64_t name_at(const kvd_chain *chain, uint32_t i) {
    uint64_t name;
    memcpy(&name, chain->digests[i].bytes, sizeof name);
    return name | 1;
}

static uint32_t place_of(const struct paper_store *s, uint64_t name) {
    uint32_t at = (uint32_t)(mix(name) & (NAMES - 1));
    while (s->page[at].name && s->page[at].name != name) at = (at + 1) & (NAMES - 1);
    return at;
}

/* ---- holders ---- */

struct paper_store *paper_new(uint64_t pool_pages, uint64_t arena_pages, uint32_t most_continuations) {
    struct paper_store *s = need(calloc(1, sizeof *s));
    s->pool = pool_pages;
    s->arena = arena_pages;
    s->most = most_continuations;
    return s;
}

void paper_free(struct paper_store *s) {
    for (uint32_t i = 0; i < PAPER_MOST; i++) free(s->holder[i].pages);
    free(s);
}

struct paper_figures paper_figures(const struct paper_store *s) {
    return s->figures;
}

static struct holder *holder_of(struct paper_store *s, uint64_t bits) {
    if (!bits || bits > PAPER_MOST || !s->holder[bits - 1].alive) abort();
    return &s->holder[bits - 1];
}

uint32_t paper_pages(const struct paper_store *s, kvd_continuation c) {
    return s->holder[c.bits - 1].alive ? s->holder[c.bits - 1].n : 0;
}

/* by: 1 or -1. */
static void count_page(struct paper_store *s, uint32_t page, bool host, int by) {
    uint32_t *count = host ? &s->page[page].host : &s->page[page].device;
    uint64_t *used = host ? &s->figures.host_used : &s->figures.used;
    bool before = *count > 0;
    *count += (uint32_t)by;
    *used += (uint64_t)((*count > 0) - before);
}

static void hold_pages(struct paper_store *s, const struct holder *h, uint32_t from, bool host, int by) {
    for (uint32_t i = from; i < h->n; i++) count_page(s, h->pages[i], host, by);
}

/* What the victim gives; by = 1 takes it back. */
static void give_way(struct paper_store *s, const struct kvd_victim *v, int by) {
    const struct holder *h = holder_of(s, v->continuation.bits);
    hold_pages(s, h, v->demote ? 0 : (v->frontier + 63) / 64, h->demoted, by);
    if (v->demote) hold_pages(s, h, 0, true, -by);
    if (!v->demote && !v->frontier) s->figures.continuations += (uint32_t)by;
}

/* ---- plans ---- */

static struct kvd_need need_of(uint64_t needed, uint64_t available) {
    return (struct kvd_need){ needed, available, needed > available ? needed - available : 0 };
}

/* With what has given way so far. */
static void plan_now(struct paper_store *s, const struct kvd_activation *want, struct kvd_plan *plan) {
    const struct holder *source = want->from.bits ? holder_of(s, want->from.bits) : NULL;
    uint32_t total = (want->ensure[0] + 63) / 64, shared = 0, freed = 0, used = want->frontier / 64;
    for (uint32_t i = 0; source && i < used; i++) shared += s->page[source->pages[i]].device > 0;
    for (uint32_t i = used; source && !want->keep && !source->demoted && i < source->n; i++)
        freed += s->page[source->pages[i]].device == 1;
    uint64_t host = s->figures.host_used, descriptors = s->figures.continuations + 1u - (source && !want->keep);
    *plan = (struct kvd_plan){ .n_pools = 1, .revision = 1 };
    plan->pages[0] = need_of(total - shared, s->pool + freed - s->figures.used);
    plan->arena = need_of(host, s->arena);
    plan->continuations = need_of(descriptors, s->most);
    for (uint32_t i = 0; i < want->n_victims; i++)
        if (want->victims[i].demote) plan->demote_pages[0] += holder_of(s, want->victims[i].continuation.bits)->n;
    plan->arena.needed = plan->demote_pages[0];
    bool ready = !plan->pages[0].short_by && !plan->arena.short_by && !plan->continuations.short_by;
    plan->feasibility = ready ? KVD_READY : total > s->pool ? KVD_INFEASIBLE : KVD_BLOCKED;
}

enum kvd_status kvd_plan_activation(kvd_client *client, const struct kvd_activation *want, struct kvd_plan *ret_plan,
                                    struct kvd_error *error) {
    struct paper_store *s = (struct paper_store *)client;
    (void)error;
    s->figures.plans++;
    for (uint32_t i = 0; i < want->n_victims; i++) give_way(s, &want->victims[i], -1);
    plan_now(s, want, ret_plan);
    for (uint32_t i = want->n_victims; i-- > 0;) give_way(s, &want->victims[i], 1);
    return KVD_OK;
}

/* The least recently used one that is no victim yet. */
static uint64_t oldest_of(const struct paper_store *s, const struct kvd_activation *t) {
    uint64_t oldest = 0;
    for (uint32_t i = 0; i < PAPER_MOST; i++) {
        const struct holder *h = &s->holder[i];
        bool taken = !h->alive || h->runs || i + 1 == t->from.bits;
        for (uint32_t k = 0; k < t->n_victims && !taken; k++) taken = t->victims[k].continuation.bits == i + 1;
        if (!taken && (!oldest || h->used < s->holder[oldest - 1].used)) oldest = i + 1;
    }
    return oldest;
}

/* Releases, the oldest first. */
static bool choose_released(struct paper_store *s, struct kvd_activation *t, struct kvd_victim *room, uint32_t max) {
    struct kvd_plan plan;
    uint64_t oldest;
    t->n_victims = 0;
    t->victims = room;
    kvd_plan_activation((kvd_client *)s, t, &plan, NULL);
    while (plan.feasibility == KVD_BLOCKED && t->n_victims < max && (oldest = oldest_of(s, t))) {
        room[t->n_victims++] = (struct kvd_victim){ .continuation.bits = oldest };
        kvd_plan_activation((kvd_client *)s, t, &plan, NULL);
    }
    return plan.feasibility == KVD_READY;
}

enum kvd_status kvd_choose_victims(kvd_client *client, struct kvd_activation *want, struct kvd_victim *room,
                                   uint32_t max, struct kvd_error *error) {
    struct paper_store *s = (struct paper_store *)client;
    struct kvd_activation t = *want;
    s->figures.fallbacks++;
    for (bool done = false; !done && !choose_released(s, &t, room, max);) {
        done = !t.from.bits;
        if (t.keep) t.keep = false;
        else t.from.bits = 0, t.frontier = 0;
        if (done) return client_fail(error, KVD_RESOURCE_EXHAUSTED, "short");
    }
    *want = t;
    return KVD_OK;
}

/* ---- life ---- */

static void end_holder(struct paper_store *s, struct holder *h) {
    hold_pages(s, h, 0, h->demoted, -1);
    s->figures.continuations--;
    free(h->pages);
    *h = (struct holder){ .alive = false };
}

static void take_victim(struct paper_store *s, const struct kvd_victim *v) {
    struct holder *h = holder_of(s, v->continuation.bits);
    if (v->demote) {
        hold_pages(s, h, 0, true, 1);
        hold_pages(s, h, 0, false, -1);
        h->demoted = true;
        s->figures.demoted++;
    } else if (v->frontier) {
        uint32_t left = (v->frontier + 63) / 64;
        hold_pages(s, h, left, h->demoted, -1);
        h->n = left;
    } else {
        end_holder(s, h);
        s->figures.released++;
    }
}

void paper_find(const struct paper_store *s, const kvd_chain *chain, struct kvd_activation *want) {
    uint32_t best = 0;
    uint64_t used = 0;
    for (uint32_t i = 0; i < PAPER_MOST; i++) {
        const struct holder *h = &s->holder[i];
        uint32_t n = 0;
        if (!h->alive || h->runs) continue;
        while (n < h->n && n < chain->n && s->page[h->pages[n]].name == name_at(chain, n)) n++;
        while (n && n * 64 >= want->prompt_tokens) n--; /* one token is computed */
        if (n < best || !n || (n == best && h->used < used)) continue;
        best = n;
        used = h->used;
        want->from.bits = i + 1;
        want->frontier = n * 64;
        want->keep = n * 4 < h->n * 3;
    }
}

uint32_t paper_start(struct paper_store *s, const kvd_chain *chain, const struct kvd_activation *want) {
    uint32_t at = 0, total = (want->ensure[0] + 63) / 64, used = want->frontier / 64;
    for (uint32_t i = 0; i < want->n_victims; i++) take_victim(s, &want->victims[i]);
    while (s->holder[at].alive)
        if (++at == PAPER_MOST) abort();
    struct holder *h = &s->holder[at], *source = want->from.bits ? holder_of(s, want->from.bits) : NULL;
    *h = (struct holder){ need(calloc(total + 1, sizeof *h->pages)), total, true, true, false, ++s->clock };
    s->figures.continuations++;
    for (uint32_t i = 0; i < total; i++) {
        uint64_t own = mix(((s->clock << 20) + i) * UINT64_C(0x9E3779B97F4A7C15)) | 1;
        uint32_t page = i < used ? source->pages[i] : place_of(s, i < chain->n ? name_at(chain, i) : own);
        if (!s->page[page].name) {
            s->page[page].name = i < chain->n ? name_at(chain, i) : own;
            if (++s->names > NAMES / 4 * 3) abort();
        }
        h->pages[i] = page;
        s->figures.pages += s->page[page].running++ == 0;
    }
    if (source && !want->keep) end_holder(s, source);
    else if (source) source->used = s->clock;
    hold_pages(s, h, 0, false, 1);
    if (s->figures.used > s->pool || s->figures.host_used > s->arena || s->figures.continuations > s->most) abort();
    return at;
}

kvd_continuation paper_end(struct paper_store *s, uint32_t sequence) {
    struct holder *h = &s->holder[sequence];
    h->runs = false;
    for (uint32_t i = 0; i < h->n; i++) s->figures.pages -= --s->page[h->pages[i]].running == 0;
    for (uint32_t i = 0; i < PAPER_MOST; i++) {
        struct holder *other = &s->holder[i];
        if (i == sequence || !other->alive || other->runs || other->n != h->n) continue;
        if (memcmp(other->pages, h->pages, h->n * sizeof *h->pages) != 0) continue;
        end_holder(s, h);
        other->used = ++s->clock;
        return (kvd_continuation){ i + 1 };
    }
    h->used = ++s->clock;
    return (kvd_continuation){ sequence + 1 };
}
