/* SPDX-License-Identifier: Apache-2.0
 *
 * Activation (ACT-*), its plan, and the entitlement of a request (SPACE-3).
 */
#include "model_parts.h"

#include <string.h>

static uint32_t min32(uint32_t a, uint32_t b) { return a < b ? a : b; }
static uint32_t max32(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* Tokens that a request may ever need in a pool: SPACE-3, SPEC-2. */
static uint32_t ceiling_in(const struct model *m, uint32_t p, uint32_t ceiling) {
    const struct store_config *c = &m->config;
    if (p == 1 && c->backend == GEOM_MTP) return min32(c->max_context, ceiling + c->draft_window - 1);
    return ceiling;
}

uint32_t model_cushion(const struct model *m) {
    return model_pages((uint64_t)m->config.widest_verify + m->config.draft_window + 2) + 1;
}
uint32_t model_window(const struct model *m) { return max32(m->config.lease_window, m->config.prefill_chunk); }

uint32_t model_full_entitlement(const struct model *m, uint32_t p, uint32_t ceiling) {
    return model_pages(ceiling_in(m, p, ceiling));
}

/* Prompt, window and cushion, never more than the request can use. */
static uint32_t window_entitlement(const struct model *m, uint32_t p, uint32_t ceiling, uint32_t prompt) {
    uint32_t tokens =
        prompt + model_window(m) + (p == 1 && m->config.backend == GEOM_MTP ? m->config.draft_window - 1 : 0);
    return min32(model_full_entitlement(m, p, ceiling),
                 model_pages(min32(m->config.max_context, tokens)) + model_cushion(m));
}

/* ---- recipe ---- */

static void source_reasons(const struct model *m, const struct store_activation *w, struct model_plan *pl) {
    struct reasons *r = &pl->hard;
    if (w->from.bits == 0) {
        if (w->frontier != 0) model_reason(r, STORE_E_RANGE, STORE_S_FRONTIER, ANY_POOL);
        return;
    }
    uint8_t domain = w->root.digest.bytes[0];
    pl->from = model_find_cont(m, w->from);
    pl->from_seq = model_find_live(m, w->from);
    if (pl->from_seq >= 0) { /* LIVE-1: a fork at a page boundary */
        if (domain && domain != m->seq[pl->from_seq].domain)
            model_reason(r, STORE_E_ARGUMENT, STORE_S_DOMAIN, ANY_POOL);
        if (!w->keep) model_reason(r, STORE_E_BUSY, STORE_S_SEQUENCE, ANY_POOL);
        if (w->frontier == 0 || w->frontier % KVD_PAGE_TOKENS)
            model_reason(r, STORE_E_RANGE, STORE_S_FRONTIER, ANY_POOL);
        if (w->frontier > model_live(m, pl->from_seq) * KVD_PAGE_TOKENS)
            model_reason(r, STORE_E_STALE, ANY_WHAT, ANY_POOL);
        return;
    }
    if (pl->from < 0) {
        model_reason(r, STORE_E_STALE, ANY_WHAT, ANY_POOL);
        return;
    }
    const struct model_cont *c = &m->cont[pl->from];
    if (domain && domain != c->domain) model_reason(r, STORE_E_ARGUMENT, STORE_S_DOMAIN, ANY_POOL); /* NAME-1 */
    if (!c->published) {
        model_reason(r, STORE_E_BUSY, ANY_WHAT, ANY_POOL);
        model_reason(r, STORE_E_STALE, ANY_WHAT, ANY_POOL);
    }
    if (c->claimed_by >= 0 || (!w->keep && (c->pins || model_slot_read(m, c->slot))))
        model_reason(r, STORE_E_BUSY, ANY_WHAT, ANY_POOL);
    if (w->frontier == 0) model_reason(r, STORE_E_RANGE, STORE_S_FRONTIER, ANY_POOL);
    else if (w->frontier > c->frontier) model_reason(r, STORE_E_STALE, STORE_S_FRONTIER, ANY_POOL);
    else if (m->config.has_state && w->frontier != c->frontier) {
        model_reason(r, STORE_E_RANGE, STORE_S_STATE_FRONTIER, ANY_POOL);
        model_reason(r, STORE_E_RANGE, STORE_S_FRONTIER, ANY_POOL);
    }
    if (w->frontier && w->frontier <= c->frontier && !model_holds(m, &c->sp, w->frontier)) /* GRP-4 */
        model_reason(r, STORE_E_RANGE, STORE_S_FRONTIER, ANY_POOL);
}

static void victim_reasons(struct model *m, const struct store_activation *w, struct model_plan *pl) {
    struct reasons *r = &pl->hard;
    if (w->n_victims > KVD_MAX_VICTIMS) {
        model_reason(r, STORE_E_ARGUMENT, ANY_WHAT, ANY_POOL);
        model_reason(r, STORE_E_RANGE, STORE_S_RECIPE, ANY_POOL);
        return;
    }
    for (uint32_t i = 0; i < w->n_victims; i++) {
        int v = model_find_cont(m, store_cont_of(w->victims[i].continuation));
        for (uint32_t j = 0; j < i; j++)
            if (w->victims[j].continuation.bits == w->victims[i].continuation.bits)
                model_reason(r, STORE_E_ARGUMENT, ANY_WHAT, ANY_POOL);
        if (v < 0) {
            bool live = model_find_live(m, store_cont_of(w->victims[i].continuation)) >= 0;
            model_reason(r, live ? STORE_E_BUSY : STORE_E_STALE, live ? STORE_S_SEQUENCE : ANY_WHAT, ANY_POOL);
            if (w->victims[i].continuation.bits == w->from.bits) model_reason(r, STORE_E_ARGUMENT, ANY_WHAT, ANY_POOL);
            continue;
        }
        if (v == pl->from && !w->keep) continue; /* it goes anyhow */
        if (v == pl->from) {
            model_reason(r, STORE_E_ARGUMENT, ANY_WHAT, ANY_POOL);
            model_reason(r, STORE_E_BUSY, ANY_WHAT, ANY_POOL);
        }
        if (m->cont[v].claimed_by >= 0 || m->cont[v].pins) model_reason(r, STORE_E_REVISION, ANY_WHAT, ANY_POOL);
        if (!m->cont[v].published) {
            model_reason(r, STORE_E_STALE, ANY_WHAT, ANY_POOL);
            model_reason(r, STORE_E_REVISION, ANY_WHAT, ANY_POOL);
            model_reason(r, STORE_E_BUSY, ANY_WHAT, ANY_POOL);
        }
        uint32_t to = w->victims[i].frontier;
        if (to && to >= m->cont[v].frontier) model_reason(r, STORE_E_RANGE, STORE_S_FRONTIER, ANY_POOL);
        if (to) model_shorten_reasons(m, v, to, r);
        pl->cut[pl->n_victims] = to;
        pl->victims[pl->n_victims++] = v;
    }
}

/* ---- amounts ---- */

static void request_size(const struct model *m, const struct store_activation *w, struct model_plan *pl) {
    struct reasons *r = &pl->hard;
    uint32_t S = m->config.max_context;
    if (w->lease == 0) model_reason(r, STORE_E_ARGUMENT, ANY_WHAT, ANY_POOL);
    if (w->checkpoint_every % KVD_PAGE_TOKENS) model_reason(r, STORE_E_ARGUMENT, STORE_S_BOUNDARY, ANY_POOL);
    if (w->max_output_tokens == 0) model_reason(r, STORE_E_RANGE, STORE_S_OUTPUT, ANY_POOL);
    if (w->prompt_tokens < w->frontier || w->prompt_tokens == 0 || w->prompt_tokens > S) {
        model_reason(r, STORE_E_RANGE, STORE_S_PROMPT, ANY_POOL);
        if (w->prompt_tokens > S) model_reason(r, STORE_E_NEVER, STORE_S_PROMPT, ANY_POOL);
        return;
    }
    uint32_t most = S - w->prompt_tokens + 1, out = min32(w->max_output_tokens, most);
    if (w->max_output_tokens > most) model_reason(r, STORE_E_RANGE, STORE_S_OUTPUT, ANY_POOL);
    pl->ceiling = w->prompt_tokens + max32(out, 1) - 1;
    for (uint32_t p = 0; p < m->n_pools; p++) {
        pl->entitlement[p] = m->config.lease_growth ? window_entitlement(m, p, pl->ceiling, w->prompt_tokens)
                                                    : model_full_entitlement(m, p, pl->ceiling);
        if (model_has_window(m, p)) { /* GRP-3 */
            pl->base[p] = pl->from >= 0 ? m->cont[pl->from].sp.base[p] : 0;
            pl->entitlement[p] = min32(pl->base[p] + model_bound(m, p), model_full_entitlement(m, p, pl->ceiling));
        }
        if (pl->entitlement[p] - pl->base[p] > m->config.pool_pages[p])
            model_reason(&pl->never, STORE_E_NEVER, STORE_S_PAGES, p);
        if (model_pages(w->ensure[p]) > pl->entitlement[p]) {
            model_reason(r, STORE_E_RANGE, STORE_S_ENSURE, p);
            model_reason(r, STORE_E_RANGE, STORE_S_ENSURE, p);
        }
    }
}

void model_recipe(struct model *m, const struct kvd_victim *victims, uint32_t n, uint64_t revision, uint64_t now,
                  struct model_plan *ret) {
    const struct store_activation w = { .victims = victims, .n_victims = n };
    memset(ret, 0, sizeof *ret);
    ret->from = -1;
    model_count(m);
    if (revision && revision != now) model_reason(&ret->hard, STORE_E_REVISION, ANY_WHAT, ANY_POOL);
    victim_reasons(m, &w, ret);
}

/* References to a page that survive the commit: those of neither a victim nor a consumed source. */
static uint32_t surviving(const struct model *m, const struct store_activation *w, const struct model_plan *pl,
                          uint32_t p, uint32_t page) {
    uint32_t n = m->refs[p][page];
    for (uint32_t v = 0; v <= pl->n_victims; v++) {
        int i = v < pl->n_victims ? pl->victims[v] : w->keep ? -1 : pl->from;
        for (uint32_t b = v < pl->n_victims ? model_pages(pl->cut[v]) : 0; i >= 0 && b < m->cont[i].sp.n[p]; b++)
            n -= m->cont[i].sp.page[p][b] == page;
    }
    return n;
}

static void taken_over(const struct model *m, const struct store_activation *w, struct model_plan *pl, uint32_t p) {
    uint32_t full = w->frontier / KVD_PAGE_TOKENS, tail = w->frontier % KVD_PAGE_TOKENS;
    pl->shared[p] = full;
    if (pl->from < 0 || tail == 0) return;
    const struct space *sp = &m->cont[pl->from].sp;
    uint32_t page = sp->page[p][full];
    bool cut =
        m->pins[p][page] && w->frontier < m->cont[pl->from].frontier; /* a copy in flight may read past the frontier */
    if (w->keep || cut || surviving(m, w, pl, p, page) > 0) pl->copied[p] = tail;
    else pl->shared[p]++;
}

/* Pages that nobody holds after the commit (9.2: the complete joint post-state). */
static uint32_t freed(const struct model *m, const struct store_activation *w, const struct model_plan *pl,
                      uint32_t p) {
    uint32_t n = 0;
    bool kept[MODEL_PAGES] = { false };
    for (uint32_t b = pl->base[p]; pl->from >= 0 && b < pl->shared[p]; b++)
        kept[m->cont[pl->from].sp.page[p][b]] = true;
    for (uint32_t i = 0; i < m->config.pool_pages[p]; i++)
        n += m->refs[p][i] > 0 && !kept[i] && !m->pins[p][i] && surviving(m, w, pl, p, i) == 0;
    return n;
}

static void slots(const struct model *m, const struct store_activation *w, struct model_plan *pl) {
    if (!m->config.has_state) return;
    pl->slots_needed = w->from.bits == 0 || w->keep ? 1 : 0;
    pl->slots_available = m->config.state_slots - model_slots_used(m);
    for (uint32_t v = 0; v < pl->n_victims; v++) {
        pl->slots_available += !model_slot_read(m, m->cont[pl->victims[v]].slot);
    }
    if (pl->slots_needed > pl->slots_available)
        model_reason_short(&pl->lacking, STORE_E_SHORT, STORE_S_STATE_SLOT, ANY_POOL, pl->slots_needed,
                           pl->slots_available);
}

/* FIT-2: a moved source leaves its descriptor to the sequence, and every victim one. */
static void descriptors(const struct model *m, const struct store_activation *w, struct model_plan *pl) {
    pl->conts_needed = w->from.bits == 0 || w->keep ? 1 : 0;
    pl->conts_available = m->config.max_continuations - model_descriptors_used(m);
    for (uint32_t v = 0; v < pl->n_victims; v++) pl->conts_available += pl->cut[v] == 0;
    if (pl->conts_needed > pl->conts_available)
        model_reason_short(&pl->lacking, STORE_E_SHORT, STORE_S_CONTINUATION, ANY_POOL, 1, 0);
}

/* What the victims hold, out of the counts and back. */
static void count_victims(struct model *m, const struct model_plan *pl, uint32_t p, int by) {
    for (uint32_t v = 0; v < pl->n_victims; v++) {
        const struct space *sp = &m->cont[pl->victims[v]].sp;
        for (uint32_t b = max32(sp->base[p], model_pages(pl->cut[v])); b < sp->n[p]; b++)
            m->refs[p][sp->page[p][b]] += (uint32_t)by;
    }
}

static void pages(struct model *m, const struct store_activation *w, struct model_plan *pl, uint32_t p) {
    taken_over(m, w, pl, p);
    pl->freed[p] = freed(m, w, pl, p);
    pl->needed[p] = pl->entitlement[p] - pl->shared[p];
    if (model_has_window(m, p)) {
        static const struct space none;
        count_victims(m, pl, p, -1); /* GRP-3: what they leave of a moved window is its sequence's alone */
        pl->needed[p] = model_needs(m, pl->from < 0 ? &none : &m->cont[pl->from].sp, p, pl->shared[p],
                                    model_full_entitlement(m, p, pl->ceiling), 0, w->keep ? pl->shared[p] : 0);
        count_victims(m, pl, p, 1);
    }
    pl->available[p] = model_available(m, p) + pl->freed[p];
    if (pl->needed[p] > pl->available[p])
        model_reason_short(&pl->lacking, STORE_E_SHORT, STORE_S_PAGES, p, pl->needed[p], pl->available[p]);
    else if (pl->copied[p] && model_available(m, p) + model_joint(m, pl->victims, pl->cut, pl->n_victims, p) == 0)
        model_reason(&pl->lacking, STORE_E_SHORT, STORE_S_PAGES,
                     p); /* a copy cannot wait for its source to drop pages */
    uint32_t base = model_pages(w->frontier), want = model_pages(w->ensure[p]);
    pl->map[p] = want > base ? min32(want + m->config.map_ahead, pl->entitlement[p]) : base;
    pl->takes_victims_now[p] = pl->copied[p] && model_available(m, p) == 0;
}

void model_plan_activation(struct model *m, const struct store_activation *w, uint64_t revision,
                           struct model_plan *pl) {
    memset(pl, 0, sizeof *pl);
    pl->from = pl->from_seq = -1;
    model_count(m);
    source_reasons(m, w, pl);
    victim_reasons(m, w, pl);
    request_size(m, w, pl);
    if (w->revision != 0 && w->revision != revision) model_reason(&pl->hard, STORE_E_REVISION, ANY_WHAT, ANY_POOL);
    if (pl->hard.n) return;
    for (uint32_t p = 0; p < m->n_pools; p++) pages(m, w, pl, p);
    slots(m, w, pl);
    descriptors(m, w, pl);
    uint32_t used = model_seqs_used(m);
    if (used >= m->config.max_concurrency) {
        model_reason_short(&pl->lacking, STORE_E_SHORT, STORE_S_ROW, ANY_POOL, 1, m->config.max_concurrency - used);
        model_reason_short(&pl->lacking, STORE_E_SHORT, STORE_S_SEQUENCE, ANY_POOL, 1,
                           m->config.max_concurrency - used);
    }
}

/* ---- spaces ---- */

/* Pages that nobody will hold once seq is committed: new entries may name them before. */
static bool going(const struct model *m, const struct model_seq *s, uint32_t p, uint32_t page) {
    uint32_t n = m->refs[p][page] + m->pins[p][page];
    for (uint32_t v = 0; v <= s->n_victims; v++) {
        int i = v < s->n_victims ? s->victims[v] : s->keep ? -1 : s->from;
        for (uint32_t b = v < s->n_victims ? model_pages(s->cut[v]) : 0; i >= 0 && b < m->cont[i].sp.n[p]; b++)
            n -= m->cont[i].sp.page[p][b] == page;
    }
    return n == 0;
}

void model_adopt(struct model *m, struct space *sp, uint32_t p, const uint32_t *ids, uint32_t from, uint32_t n) {
    if (n > m->blocks) {
        model_wrong(m, "pool %u: membership of %u pages, L is %u", p, n, m->blocks);
        return;
    }
    for (uint32_t b = from; b < n; b++) {
        model_count(m);
        if (ids[b] >= m->config.pool_pages[p]) {
            model_wrong(m, "pool %u: page id %u outside the pool", p, ids[b]);
            return;
        }
        if (m->refs[p][ids[b]] || m->pins[p][ids[b]])
            model_wrong(m, "pool %u: page %u given out while it is held", p, ids[b]);
        for (uint32_t i = 0; i < b && i < sp->n[p]; i++)
            if (sp->page[p][i] == ids[b]) model_wrong(m, "pool %u: page %u twice in one space", p, ids[b]);
        sp->page[p][b] = ids[b];
        sp->n[p] = b + 1;
        if (p == 0) m->named[ids[b]] = false;
    }
}

void model_adopt_slot(struct model *m, uint32_t slot, uint32_t *ret_slot) {
    if (slot >= m->config.state_slots || model_slot_taken(m, slot)) model_wrong(m, "state slot %u is not free", slot);
    *ret_slot = slot;
}

void model_cut(struct model *m, struct space *sp, uint32_t p, uint32_t pages_kept) {
    (void)m;
    if (sp->n[p] > pages_kept) sp->n[p] = pages_kept;
}

void model_unname(struct model *m, const struct space *sp, uint32_t from_block) {
    for (uint32_t b = from_block; b < sp->n[0]; b++) m->named[sp->page[0][b]] = false;
}

void model_share(const struct model *m, const struct space *from, struct space *to, uint32_t frontier, uint32_t p,
                 uint32_t n) {
    memcpy(to->page[p], from->page[p], n * sizeof to->page[p][0]);
    memcpy(to->token[p], from->token[p], frontier * sizeof to->token[p][0]);
    to->n[p] = n;
    to->base[p] = model_first(m, p, frontier);
    for (uint32_t b = 0; b < to->base[p]; b++) to->page[p][b] = KVD_NONE;
    to->committed[p] = frontier;
}

/* ---- begin, commit, abort ---- */

static void begin_pool(struct model *m, struct model_seq *s, const struct store_activation *w,
                       const struct model_plan *pl, uint32_t p, const uint32_t *ids, uint32_t n) {
    struct space none = { 0 };
    const struct space *from = pl->from >= 0       ? &m->cont[pl->from].sp
                               : pl->from_seq >= 0 ? &m->seq[pl->from_seq].sp
                                                   : &none;
    uint32_t free_now = model_available(m, p);
    s->entitlement[p] = pl->entitlement[p];
    s->copied[p] = pl->copied[p];
    s->owed[p] = pl->needed[p] > free_now ? pl->needed[p] - free_now : 0;
    model_share(m, from, &s->sp, w->frontier, p, pl->shared[p]);
    for (uint32_t b = 0; b < pl->shared[p] && b < n; b++)
        if (ids[b] != s->sp.page[p][b])
            model_wrong(m, "pool %u block %u: page %u, not the source's %u", p, b, ids[b], s->sp.page[p][b]);
    if (n < pl->shared[p]) model_wrong(m, "pool %u: only %u pages of the source's %u", p, n, pl->shared[p]);
    uint32_t on_hand = pl->needed[p] - s->owed[p];
    for (uint32_t b = pl->shared[p]; b < n; b++) {
        model_count(m);
        if (on_hand) {
            model_adopt(m, &s->sp, p, ids, b, b + 1);
            on_hand--;
        } else if (ids[b] < m->config.pool_pages[p] &&
                   going(m, s, p, ids[b])) { /* mapped before it is free; not written before */
            s->sp.page[p][b] = ids[b];
            s->sp.n[p] = b + 1;
            s->lent[p][b] = true;
            s->borrowed[p]++;
        } else {
            model_wrong(m, "pool %u: page %u at block %u will not be free", p, ids[b], b);
        }
    }
    s->hold[p] = pl->needed[p] - (n - pl->shared[p]);
}

void model_drop_cont(struct model *m, int c) {
    m->cont[c].used = false;
    m->cont[c].claimed_by = -1;
}

void model_give_way(struct model *m, int c, uint32_t cut) {
    m->cont[c].claimed_by = -1;
    if (cut) model_shorten(m, c, cut);
    else model_drop_cont(m, c);
}

static void drop_victims(struct model *m, int seq) {
    for (uint32_t v = 0; v < m->seq[seq].n_victims; v++) model_give_way(m, m->seq[seq].victims[v], m->seq[seq].cut[v]);
    m->seq[seq].n_victims = 0;
}

/* With no slot free, that of a victim is named before it goes, like its pages. */
static bool going_slot(const struct model *m, const struct model_seq *s, uint32_t slot) {
    bool going = false;
    for (uint32_t v = 0; v < s->n_victims; v++) going |= m->cont[s->victims[v]].slot == slot;
    return going && !model_slot_read(m, slot);
}

int model_begin(struct model *m, const struct store_activation *w, const struct model_plan *pl,
                const struct store_activated *got, bool victims_gone, uint32_t *const ids[POOLS],
                const uint32_t n[POOLS]) {
    int k = model_free_seq(m);
    struct model_seq *s = &m->seq[k];
    if (model_find_seq(m, got->seq) >= 0 || got->seq.bits == 0) model_wrong(m, "the new handle is not new");
    memset(s, 0, offsetof(struct model_seq, sp));
    s->used = true;
    s->handle = got->seq;
    s->lease = w->lease;
    s->domain = pl->from >= 0       ? m->cont[pl->from].domain
                : pl->from_seq >= 0 ? m->seq[pl->from_seq].domain
                                    : w->root.digest.bytes[0];
    s->state = STORE_SEQ_ACTIVATING;
    s->prompt = w->prompt_tokens;
    s->ceiling = pl->ceiling;
    s->every = w->checkpoint_every;
    s->at_prompt = w->checkpoint_prompt;
    s->passed = w->frontier;
    s->slot = s->source_slot = s->state_frontier = KVD_NONE;
    s->from = pl->from;
    s->from_seq = pl->from_seq;
    s->keep = w->keep;
    memcpy(s->victims, pl->victims, sizeof s->victims);
    memcpy(s->cut, pl->cut, sizeof s->cut);
    s->n_victims = pl->n_victims;
    memset(s->sp.n, 0, sizeof s->sp.n);
    memset(s->sp.base, 0, sizeof s->sp.base);
    memset(s->sp.committed, 0, sizeof s->sp.committed);
    memset(s->copied, 0, sizeof s->copied);
    for (uint32_t v = 0; v < pl->n_victims; v++) m->cont[pl->victims[v]].claimed_by = k;
    if (pl->from >= 0 && w->keep) m->cont[pl->from].pins++;
    if (pl->from >= 0 && !w->keep) m->cont[pl->from].claimed_by = k;
    if (victims_gone) drop_victims(m, k);
    s->own = pl->conts_needed && model_descriptors_used(m) < m->config.max_continuations;
    for (uint32_t p = 0; p < m->n_pools; p++) {
        model_count(m);
        begin_pool(m, s, w, pl, p, ids[p], n[p]);
        for (int i = 0; i < MODEL_SEQS; i++)
            if (i != k && m->seq[i].used && m->seq[i].row[p] == got->pool[p].row)
                model_wrong(m, "pool %u: row %u is taken", p, got->pool[p].row);
        s->row[p] = got->pool[p].row;
        s->hidden |= s->copied[p] > 0;
    }
    if (m->config.has_state) {
        struct model_cont *c = pl->from >= 0 ? &m->cont[pl->from] : NULL;
        if (c && !w->keep) s->slot = c->slot;
        else if (model_slots_used(m) == m->config.state_slots && going_slot(m, s, got->state_slot))
            s->slot = got->state_slot;
        else model_adopt_slot(m, got->state_slot, &s->slot);
        if (s->slot != got->state_slot) model_wrong(m, "state slot %u, not the moved %u", got->state_slot, s->slot);
        if (c && w->keep) s->source_slot = c->slot;
        if (c) s->wanted_image = c->sp.image;
        if (c && !w->keep) s->state_frontier = w->frontier;
        s->sp.image = s->wanted_image;
    } else if (got->state_slot != KVD_NONE) model_wrong(m, "a state slot without state");
    if (got->source_state_slot != s->source_slot)
        model_wrong(m, "source slot %u, not %u", got->source_state_slot, s->source_slot);
    return k;
}

/* A fork in flight no more: what was kept for such ones alone goes with the last. */
static void unpin(struct model *m, int c) {
    m->cont[c].pins--;
    if (m->cont[c].going && m->cont[c].pins == 0) model_drop_cont(m, c);
}

void model_activate_commit(struct model *m, int k) {
    struct model_seq *s = &m->seq[k];
    drop_victims(m, k);
    if (s->from >= 0 && s->keep) unpin(m, s->from);
    if (s->from >= 0 && !s->keep) {
        model_drop_cont(m, s->from);
        uint32_t full =
            s->sp.committed[0] / KVD_PAGE_TOKENS; /* the page that the frontier cuts is whole no more (PAGE-8) */
        if (s->sp.committed[0] % KVD_PAGE_TOKENS) model_unname(m, &s->sp, full);
    }
    s->from = s->from_seq = -1;
    s->own = true;
    s->state = STORE_SEQ_ACTIVE;
    for (uint32_t b = 0; b < s->sp.n[0]; b++)
        if (s->lent[0][b]) m->named[s->sp.page[0][b]] = false; /* the victim's name went with it */
    memset(s->owed, 0, sizeof s->owed);
    memset(s->borrowed, 0, sizeof s->borrowed);
    memset(s->lent, 0, sizeof s->lent);
}

void model_activate_abort(struct model *m, int k) {
    struct model_seq *s = &m->seq[k];
    for (uint32_t v = 0; v < s->n_victims; v++) m->cont[s->victims[v]].claimed_by = -1;
    if (s->from >= 0 && s->keep) unpin(m, s->from);
    if (s->from >= 0 && !s->keep) m->cont[s->from].claimed_by = -1;
    s->used = false;
}

void model_claim_reasons(const struct model *m, int k, struct reasons *r) {
    if (k < 0) model_reason(r, STORE_E_STALE, ANY_WHAT, ANY_POOL);
    else if (m->seq[k].state != STORE_SEQ_ACTIVATING) model_reason(r, STORE_E_STATE, ANY_WHAT, ANY_POOL);
}
