/* SPDX-License-Identifier: Apache-2.0
 *
 * A plan, recounted from scratch: memberships, who rests, which replicas are there (ACT-7, ACT-8, CAP-7, HOST-4). A
 * page leaves the device when everybody who holds it is a victim, rests, or is the part of a moved source that is
 * dropped: the joint post-state.
 */
#include "tier.h"

#include <string.h>

#define PAGES 1024

struct count {
    const struct store *store;
    const struct cont *source;
    bool move;
    const struct cont *victims[VICTIMS];
    bool demote[VICTIMS];
    uint32_t first[VICTIMS]; /* block that goes of it, where it is only shortened */
    uint32_t n_victims;
    uint32_t holders[PAGES], going[PAGES], released[PAGES]; /* by descriptor of one pool */
    bool kept[PAGES], backed[PAGES];
};

static void count_held(struct count *c, uint32_t *holders, uint32_t p, const struct space *space, uint32_t first) {
    for (uint32_t b = max_u32(first, space->base); b < space->count; b++) {
        uint32_t entry = space_entry(c->store, space, b);
        if (!(entry & PROMISED)) holders[entry]++;
    }
    (void)p;
}

/* The first block that it lets go; none: KVD_NONE. */
static uint32_t first_going(const struct count *c, const struct cont *cont) {
    if (cont->demoted && cont != c->source) return 0;
    for (uint32_t i = 0; i < c->n_victims; i++)
        if (c->victims[i] == cont) return c->first[i];
    return KVD_NONE;
}

static void count_holders(struct count *c, uint32_t p) {
    const struct store *store = c->store;
    memset(c->holders, 0, sizeof c->holders);
    memset(c->going, 0, sizeof c->going);
    memset(c->released, 0, sizeof c->released);
    for (uint32_t i = 0; i < store->config.max_continuations; i++) {
        const struct cont *cont = &store->conts[i];
        if (!cont->occupied || cont->owned) continue;
        count_held(c, c->holders, p, &cont->space[p], 0);
        count_held(c, c->going, p, &cont->space[p], first_going(c, cont));
    }
    for (uint32_t i = 0; i < store->config.max_concurrency; i++) {
        const struct seq *seq = &store->seqs[i];
        bool moves = seq->occupied && seq->state == STORE_SEQ_ACTIVATING && seq->from != KVD_NONE && !seq->keep;
        if (seq->occupied)
            count_held(c, c->holders, p, &seq->space[p],
                       moves ? seq->taken[p] : 0); /* what a move takes over is the source's still */
    }
    for (uint32_t i = 0; i < c->n_victims; i++)
        if (!c->demote[i]) count_held(c, c->released, p, &c->victims[i]->space[p], c->first[i]);
}

/* ---- arena: a map of units ---- */

struct play {
    uint8_t taken[UNITS];
    uint32_t n;
};

static uint32_t run_at(const struct play *play, uint32_t i) {
    uint32_t n = 0;
    while (i + n < play->n && !play->taken[i + n]) n++;
    return n;
}

/* n pages side by side where a run holds them all, else wherever there is room, lowest first. Returns how many found a
 * place. */
static uint32_t take(struct play *play, uint32_t stride, uint32_t n) {
    uint32_t left = n;
    for (uint32_t i = 0, run; i < play->n; i += run ? run : 1) {
        run = run_at(play, i);
        if (run < stride * n) continue;
        memset(play->taken + i, 1, stride * n);
        return n;
    }
    for (uint32_t i = 0, run; i < play->n && left; i += run ? run : 1) {
        run = run_at(play, i);
        uint32_t fit = min_u32(run / stride, left);
        memset(play->taken + i, 1, fit * stride);
        left -= fit;
    }
    return n - left;
}

static void play_arena(struct world *w, const struct count *c, struct play *play) {
    uint32_t cursor = 0;
    struct extent_info extent;
    (void)c;
    memset(play, 0, sizeof *play);
    play->n = (uint32_t)(w->config.host_bytes / UNIT);
    while (extent_next(w->kvd.store->arena, &cursor, &extent))
        memset(play->taken + extent.offset / UNIT, 1, extent.stride / UNIT);
}

static void give_back(struct world *w, struct play *play, extent_id id) {
    struct extent_info extent;
    if (extent_look(w->kvd.store->arena, id, &extent) == 0)
        memset(play->taken + extent.offset / UNIT, 0, extent.stride / UNIT);
}

static void release_played(struct world *w, struct count *c, struct play *play) {
    for (uint32_t p = 0; p < w->n_pools; p++) {
        count_holders(c, p);
        for (uint32_t d = 0; d < w->kvd.store->pool[p].descriptors; d++) {
            const struct page *page = &w->kvd.store->pool[p].pages[d];
            bool goes =
                (page->flags & PAGE_OCCUPIED) && c->released[d] && c->released[d] == c->holders[d] && page->pins == 0;
            if (goes && page->host.bits && !arena_is_read(w->kvd.store, page->host)) give_back(w, play, page->host);
        }
    }
    for (uint32_t i = 0; i < c->n_victims; i++)
        if (!c->demote[i] && c->victims[i]->image.bits && !arena_is_read(w->kvd.store, c->victims[i]->image))
            give_back(w, play, c->victims[i]->image);
}

/* ---- the numbers ---- */

#define SAME(got, want)                                                                                                \
    do {                                                                                                               \
        if ((uint64_t)(got) != (uint64_t)(want))                                                                       \
            fail(w, "plan, pool %u: %s is %llu, recounted it is %llu", p, #got, (unsigned long long)(got),             \
                 (unsigned long long)(want));                                                                          \
    } while (0)

/* ACT-3: a moved tail goes on in place when nobody else reads it. */
static bool tail_stays(const struct count *c, uint32_t p, uint32_t frontier) {
    uint32_t d = space_entry(c->store, &c->source->space[p], frontier / KVD_PAGE_TOKENS);
    const struct page *page = &c->store->pool[p].pages[d];
    return c->move && c->holders[d] - c->released[d] == 1 &&
           (page->pins == 0 || page->committed == frontier % KVD_PAGE_TOKENS);
}

/* GRP-3: the most that lacks with any base that it may come to; what it alone holds once the victims have gone
 * comes back when it is passed. */
static uint32_t window_lacks(const struct count *c, const struct store_activation *a, uint32_t p, uint32_t kept) {
    uint32_t bound = store_window_pages(&c->store->config, p),
             reach = entitle_ceiling(c->store, p, a->prompt_tokens + a->max_output_tokens - 1), most = 0, back = 0;
    for (uint32_t base = c->source ? c->source->space[p].base : 0; base <= kept; base++) {
        uint32_t end = min_u32(base + bound, reach);
        if (end > kept + back) most = max_u32(most, end - kept - back);
        if (base == kept || !c->move) continue;
        uint32_t d = space_entry(c->store, &c->source->space[p], base);
        back += c->holders[d] - c->released[d] == 1 && c->store->pool[p].pages[d].pins == 0;
    }
    return most;
}

static void check_pool(struct world *w, struct count *c, const struct store_activation *a, const struct kvd_plan *plan,
                       uint32_t p, uint32_t *ret_demote) {
    const struct pool *pool = &c->store->pool[p];
    uint32_t full = a->frontier / KVD_PAGE_TOKENS, tail = a->frontier % KVD_PAGE_TOKENS, kept = full, freed = 0,
             restore = 0, base = c->source ? c->source->space[p].base : 0;
    count_holders(c, p);
    memset(c->kept, 0, sizeof c->kept);
    if (tail && tail_stays(c, p, a->frontier)) kept++;
    for (uint32_t b = base; b < kept; b++) {
        uint32_t d = space_entry(c->store, &c->source->space[p], b);
        c->kept[d] = true;
        restore += pool->pages[d].device == KVD_NONE;
    }
    if (c->source && (c->move || c->source->demoted))
        count_held(c, c->going, p, &c->source->space[p], c->move ? kept : 0);
    for (uint32_t d = 0; d < pool->descriptors; d++) {
        const struct page *page = &pool->pages[d];
        bool counted = (page->flags & PAGE_OCCUPIED) && page->device != KVD_NONE && !page->pins;
        freed += counted && c->holders[d] && c->going[d] == c->holders[d] && !c->kept[d];
    }
    memset(c->backed, 0, sizeof c->backed);
    for (uint32_t i = 0; i < c->n_victims; i++)
        for (uint32_t b = c->victims[i]->space[p].base; c->demote[i] && b < c->victims[i]->space[p].count; b++) {
            uint32_t d = space_entry(c->store, &c->victims[i]->space[p], b);
            *ret_demote += !c->backed[d] && !page_is_current(&pool->pages[d]);
            c->backed[d] = true;
        }
    SAME(plan->shared_pages[p], kept - base);
    SAME(plan->copied_columns[p], kept > full ? 0 : tail);
    SAME(plan->freed_pages[p], freed);
    bool tail_in =
        tail && kept == full && !page_on_device(&pool->pages[space_entry(c->store, &c->source->space[p], full)]);
    SAME(plan->restore_pages[p], restore + tail_in);
    SAME(plan->demote_pages[p], *ret_demote);
    uint32_t lacks = w->config.window[p].tokens ? window_lacks(c, a, p, kept) : plan->entitlement[p] - kept;
    SAME(plan->pages[p].needed, lacks + restore);
    SAME(plan->pages[p].available, pool_available(pool) + freed);
}

static void check_arena(struct world *w, struct count *c, const struct kvd_plan *plan, const uint32_t demote[POOLS]) {
    struct play play;
    uint32_t images = 0, p = 0;
    uint64_t needed = 0, placed = 0;
    for (uint32_t i = 0; i < c->n_victims; i++)
        images += w->config.has_state && c->demote[i] && !c->victims[i]->image.bits;
    for (int turn = 0; turn < 2; turn++) { /* as it is; if that is too little, after the releases */
        play_arena(w, c, &play);
        if (turn) release_played(w, c, &play);
        needed = placed = 0;
        for (uint32_t q = 0; q <= w->n_pools; q++) {
            uint64_t stride = q < w->n_pools ? w->config.host_stride[q] : w->config.host_state_stride;
            uint32_t n = q < w->n_pools ? demote[q] : images;
            if (n == 0) continue;
            needed += stride * n;
            placed += stride * take(&play, (uint32_t)(stride / UNIT), n);
        }
        if (placed == needed) break;
    }
    SAME(plan->arena.needed, needed);
    if (needed <= w->config.host_bytes) SAME(plan->arena.available, placed);
}

uint64_t plan_replaced(const struct world *w, const struct want *want) {
    uint64_t bytes = 0;
    for (uint32_t p = 0; p < w->n_pools; p++) {
        bool seen[PAGES] = { false };
        for (uint32_t i = 0; i < want->a.n_victims; i++) {
            const struct cont *victim = cont_find(w->kvd.store, store_cont_of(want->victims[i].continuation));
            bool demoted = want->victims[i].demote && want->victims[i].continuation.bits != want->a.from.bits;
            for (uint32_t b = demoted ? victim->space[p].base : 0; demoted && b < victim->space[p].count; b++) {
                uint32_t d = space_entry(w->kvd.store, &victim->space[p], b);
                const struct page *page = &w->kvd.store->pool[p].pages[d];
                if (!seen[d] && page->host.bits && !arena_is_read(w->kvd.store, page->host) && !page_is_current(page))
                    bytes += w->config.host_stride[p];
                seen[d] = true;
            }
        }
    }
    return bytes;
}

void plan_check(struct world *w, const struct want *want, const struct kvd_plan *plan) {
    static struct count c;
    uint32_t demote[POOLS] = { 0 };
    const struct store_activation *a = &want->a;
    c = (struct count){ .store = w->kvd.store,
                        .source = a->from.bits ? cont_find(w->kvd.store, a->from) : NULL,
                        .move = a->from.bits && !a->keep };
    for (uint32_t i = 0; i < a->n_victims; i++) {
        const struct cont *victim = cont_find(c.store, store_cont_of(want->victims[i].continuation));
        if (victim == c.source) continue; /* it goes anyhow */
        c.demote[c.n_victims] = want->victims[i].demote;
        c.first[c.n_victims] = pages_of(want->victims[i].frontier);
        c.victims[c.n_victims++] = victim;
    }
    uint32_t available = w->config.max_continuations - w->kvd.store->conts_used;
    for (uint32_t i = 0; i < c.n_victims; i++) available += !c.demote[i] && c.first[i] == 0;
    if (plan->continuations.needed != !c.move || plan->continuations.available != available)
        fail(w, "plan: %u descriptors are free after the releases", available);
    for (uint32_t p = 0; p < w->n_pools; p++) check_pool(w, &c, a, plan, p, &demote[p]);
    if (c.store->arena) check_arena(w, &c, plan, demote);
}
