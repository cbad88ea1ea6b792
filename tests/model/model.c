/* SPDX-License-Identifier: Apache-2.0
 *
 * Objects, recounting and the questions that can be asked of a store.
 */
#include "model.h"
#include "model_parts.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

uint32_t model_pages(uint64_t tokens) { return (uint32_t)((tokens + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS); }

void model_init(struct model *m, const struct store_config *config) {
    memset(m, 0, sizeof *m);
    m->config = *config;
    m->n_pools = config->backend == GEOM_OFF || (config->backend == GEOM_DFLASH && config->pool_pages[1] == 0) ? 1 : 2;
    m->n_pools += config->more_pools;
    m->blocks = model_pages(config->max_context);
    for (int i = 0; i < MODEL_CONTS; i++) m->cont[i].claimed_by = -1;
}

void model_wrong(struct model *m, const char *format, ...) {
    va_list args;
    if (m->wrong[0]) return;
    va_start(args, format);
    vsnprintf(m->wrong, sizeof m->wrong, format, args);
    va_end(args);
}

/* ---- windows ---- */

bool model_has_window(const struct model *m, uint32_t p) { return m->config.window[p].tokens > 0; }

uint32_t model_first(const struct model *m, uint32_t p, uint32_t frontier) {
    const struct store_window *w = &m->config.window[p];
    uint32_t first = frontier; /* the earliest token that token `frontier` reads */
    if (!w->tokens) return 0;
    while (first > 0 && (w->aligned ? first % w->tokens != 0 : frontier - first + 1 < w->tokens)) first--;
    return first / KVD_PAGE_TOKENS;
}

uint32_t model_stays(const struct model *m, uint32_t p, uint32_t frontier) {
    uint32_t lead = m->config.window[p].lead;
    return model_first(m, p, frontier > lead ? frontier - lead : 0);
}

uint32_t model_bound(const struct model *m, uint32_t p) {
    const struct store_config *c = &m->config;
    uint32_t growth = c->widest_verify + c->draft_window + 2;
    if (c->prefill_chunk > growth) growth = c->prefill_chunk;
    uint32_t pages = model_pages((uint64_t)c->window[p].tokens + c->window[p].lead + growth) + 1;
    return pages < m->blocks ? pages : m->blocks;
}

/* Tried out with every base that it may come to. */
uint32_t model_needs(const struct model *m, const struct space *sp, uint32_t p, uint32_t count, uint32_t reach,
                     uint32_t begin, uint32_t end) {
    int most = 0, back = 0;
    for (uint32_t base = sp->base[p]; base <= count; base++) {
        uint32_t last = base + model_bound(m, p) < reach ? base + model_bound(m, p) : reach;
        int lacks = (int)last - (int)count - back;
        if (lacks > most) most = lacks;
        if (base == count || (base >= begin && base < end)) continue;
        back += m->refs[p][sp->page[p][base]] == 1 && m->pins[p][sp->page[p][base]] == 0;
    }
    return (uint32_t)most;
}

bool model_holds(const struct model *m, const struct space *sp, uint32_t frontier) {
    for (uint32_t p = 0; p < m->n_pools; p++)
        if (model_first(m, p, frontier) < sp->base[p]) return false;
    return true;
}

static bool has_windows(const struct model *m) {
    bool has = false;
    for (uint32_t p = 0; p < m->n_pools; p++) has |= model_has_window(m, p);
    return has;
}

/* ---- reasons ---- */

void model_reason(struct reasons *r, enum store_code code, enum store_subject subject, uint32_t pool) {
    if (r->n < MODEL_REASONS) r->list[r->n++] = (struct reason){ .code = code, .subject = subject, .pool = pool };
}

void model_reason_short(struct reasons *r, enum store_code code, enum store_subject subject, uint32_t pool,
                        uint64_t asked, uint64_t had) {
    if (r->n < MODEL_REASONS)
        r->list[r->n++] = (struct reason){
            .code = code, .subject = subject, .pool = pool, .numbers = true, .asked = asked, .had = had
        };
}

void model_reason_maybe(struct reasons *r, enum store_code code) {
    model_reason(r, code, ANY_WHAT, ANY_POOL);
    r->list[r->n - 1].maybe = true;
}

bool model_expects(const struct reasons *r, const struct store_refusal *got) {
    bool must = false;
    for (uint32_t i = 0; i < r->n; i++) {
        const struct reason *x = &r->list[i];
        must |= !x->maybe;
        if (got->code == x->code && (x->subject == ANY_WHAT || got->subject == x->subject) &&
            (x->pool == ANY_POOL || got->pool == x->pool) &&
            (!x->numbers || (got->asked == x->asked && got->had == x->had)))
            return true;
    }
    return got->code == STORE_OK && !must;
}

/* ---- objects ---- */

int model_find_seq(const struct model *m, store_seq handle) {
    for (int i = 0; i < MODEL_SEQS; i++)
        if (m->seq[i].used && m->seq[i].handle.bits == handle.bits) return i;
    return -1;
}

int model_find_cont(const struct model *m, store_cont handle) {
    for (int i = 0; i < MODEL_CONTS; i++)
        if (m->cont[i].used && !m->cont[i].going && m->cont[i].handle.bits == handle.bits) return i;
    return -1;
}

int model_free_seq(const struct model *m) {
    int i = 0;
    while (m->seq[i].used) i++;
    return i;
}

int model_free_cont(const struct model *m) {
    int i = 0;
    while (m->cont[i].used) i++;
    return i;
}

uint32_t model_seqs_used(const struct model *m) {
    uint32_t n = 0;
    for (int i = 0; i < MODEL_SEQS; i++) n += m->seq[i].used;
    return n;
}

uint32_t model_conts_used(const struct model *m) {
    uint32_t n = 0;
    for (int i = 0; i < MODEL_CONTS; i++) n += m->cont[i].used;
    return n;
}

uint32_t model_descriptors_used(const struct model *m) {
    uint32_t n = model_conts_used(m);
    for (int i = 0; i < MODEL_SEQS; i++) n += m->seq[i].used && m->seq[i].own;
    return n;
}

/* A moving sequence and the continuation that it consumes are one reference, not two. */
static bool moving(const struct model *m, const struct model_cont *c) {
    return c->claimed_by >= 0 && m->seq[c->claimed_by].from >= 0 && &m->cont[m->seq[c->claimed_by].from] == c;
}

void model_count(struct model *m) {
    for (uint32_t p = 0; p < m->n_pools; p++) {
        memset(m->refs[p], 0, m->config.pool_pages[p] * sizeof m->refs[p][0]);
        memset(m->pins[p], 0, m->config.pool_pages[p] * sizeof m->pins[p][0]);
        for (int i = 0; i < MODEL_CONTS; i++) {
            for (uint32_t b = m->cont[i].sp.base[p]; m->cont[i].used && b < m->cont[i].sp.n[p]; b++)
                m->refs[p][m->cont[i].sp.page[p][b]]++;
            if (m->cont[i].used && m->cont[i].pinned[p] != KVD_NONE) m->pins[p][m->cont[i].pinned[p]]++;
        }
        for (int i = 0; i < MODEL_SEQS; i++) {
            const struct model_seq *s = &m->seq[i];
            if (!s->used) continue;
            const struct model_cont *source = s->from >= 0 ? &m->cont[s->from] : NULL;
            if (source && s->copied[p]) m->pins[p][source->sp.page[p][s->sp.committed[p] / KVD_PAGE_TOKENS]]++;
            for (uint32_t b = s->sp.base[p]; b < s->sp.n[p]; b++) {
                uint32_t page = s->sp.page[p][b];
                if (s->lent[p][b]) continue;
                if (source && moving(m, source) && b < source->sp.n[p] && source->sp.page[p][b] == page) continue;
                m->refs[p][page]++;
            }
        }
    }
}

static uint32_t allocated(const struct model *m, uint32_t p) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->config.pool_pages[p]; i++) n += m->refs[p][i] > 0 || m->pins[p][i] > 0;
    return n;
}

static uint32_t reserved(const struct model *m, uint32_t p) {
    uint32_t n = 0;
    for (int i = 0; i < MODEL_SEQS; i++)
        if (m->seq[i].used) {
            uint32_t unmapped =
                model_has_window(m, p) ? m->seq[i].hold[p] : m->seq[i].entitlement[p] - m->seq[i].sp.n[p];
            n += unmapped - m->seq[i].owed[p] + m->seq[i].borrowed[p];
        }
    return n;
}

uint32_t model_available(const struct model *m, uint32_t p) {
    return m->config.pool_pages[p] - allocated(m, p) - reserved(m, p);
}

/* Pages that a worker which may still be alive could write: those that its sequence alone holds. */
static uint32_t quarantined(const struct model *m, uint32_t p) {
    uint32_t n = 0;
    for (int i = 0; i < MODEL_SEQS; i++)
        for (uint32_t b = m->seq[i].sp.base[p];
             m->seq[i].used && m->seq[i].state == STORE_SEQ_QUARANTINED && b < m->seq[i].sp.n[p]; b++)
            n += m->refs[p][m->seq[i].sp.page[p][b]] == 1;
    return n;
}

/* POOL-6, INV-4: occupancy is distinct pages plus reservations; aliases are free. */
struct kvd_pool_stats model_stats(struct model *m, uint32_t p) {
    model_count(m);
    struct kvd_pool_stats s = { .capacity = m->config.pool_pages[p],
                                .allocated = allocated(m, p),
                                .reserved = reserved(m, p),
                                .quarantined = quarantined(m, p),
                                .rows_used = model_seqs_used(m) };
    s.available = s.capacity - s.allocated - s.reserved;
    for (uint32_t i = 0; i < s.capacity; i++) s.shared += m->refs[p][i] > 1;
    if (s.allocated + s.reserved > s.capacity)
        model_wrong(m, "pool %u: %u allocated and %u reserved of %u", p, s.allocated, s.reserved, s.capacity);
    return s;
}

/* ---- state slots ---- */

bool model_slot_taken(const struct model *m, uint32_t slot) {
    for (int i = 0; i < MODEL_SEQS; i++)
        if (m->seq[i].used && (m->seq[i].slot == slot || m->seq[i].source_slot == slot)) return true;
    for (int i = 0; i < MODEL_CONTS; i++)
        if (m->cont[i].used && (m->cont[i].slot == slot || m->cont[i].pinned_slot == slot)) return true;
    return false;
}

bool model_slot_read(const struct model *m, uint32_t slot) {
    for (int i = 0; i < MODEL_SEQS; i++)
        if (slot != KVD_NONE && m->seq[i].used && m->seq[i].source_slot == slot) return true;
    for (int i = 0; i < MODEL_CONTS; i++)
        if (slot != KVD_NONE && m->cont[i].used && m->cont[i].pinned_slot == slot) return true;
    return false;
}

uint32_t model_slots_used(const struct model *m) {
    uint32_t n = 0;
    for (uint32_t i = 0; m->config.has_state && i < m->config.state_slots; i++) n += model_slot_taken(m, i);
    return n;
}

uint64_t model_membership(const struct model *m) {
    uint64_t n = 0;
    for (uint32_t p = 0; p < m->n_pools; p++) {
        for (int i = 0; i < MODEL_SEQS; i++) n += m->seq[i].used ? m->seq[i].sp.n[p] : 0;
        for (int i = 0; i < MODEL_CONTS; i++) n += m->cont[i].used ? m->cont[i].sp.n[p] : 0;
    }
    return n;
}

/* ---- what runs (LIVE-1) ---- */

uint32_t model_live(const struct model *m, int k) {
    const struct model_seq *s = &m->seq[k];
    if (!s->used || s->state == STORE_SEQ_ACTIVATING || m->config.has_state || has_windows(m)) return 0;
    uint32_t n = model_named(m, &s->sp, s->sp.committed[0] / KVD_PAGE_TOKENS);
    for (uint32_t p = 1; p < m->n_pools; p++)
        if (s->sp.committed[p] / KVD_PAGE_TOKENS < n) n = s->sp.committed[p] / KVD_PAGE_TOKENS;
    return n;
}

int model_find_live(const struct model *m, store_cont handle) {
    for (int k = 0; k < MODEL_SEQS; k++)
        if (model_live(m, k) && m->seq[k].live.bits == handle.bits) return k;
    return -1;
}

uint32_t model_forks(const struct model *m, int k, uint32_t *ret_frontier) {
    uint32_t n = 0;
    *ret_frontier = 0;
    for (int i = 0; i < MODEL_SEQS; i++) {
        if (!m->seq[i].used || m->seq[i].from_seq != k) continue;
        n++;
        if (m->seq[i].sp.committed[0] > *ret_frontier) *ret_frontier = m->seq[i].sp.committed[0];
    }
    return n;
}

/* ---- names, protection, sharing ---- */

uint32_t model_named(const struct model *m, const struct space *sp, uint32_t full_pages) {
    uint32_t n = 0;
    while (n < full_pages && m->named[sp->page[0][n]]) n++;
    return n;
}

/* GRP-5: by rolling checkpoints that a truncation takes along. */
static uint32_t held_by_own(const struct model *m, const struct model_seq *s, uint32_t p, uint32_t b) {
    uint32_t held = 0;
    int own[MODEL_CONTS];
    for (uint32_t i = model_rolled(m, (int)(s - m->seq), own); i-- > 0;)
        held += model_may_supersede(m, own[i]) && b >= m->cont[own[i]].sp.base[p] && b < m->cont[own[i]].sp.n[p];
    return held;
}

/* Truncation stops after the last page that somebody else holds, and at the tails that checkpoints are being copied
 * from. */
uint32_t model_protected(struct model *m, const struct model_seq *s, uint32_t p) {
    uint32_t n = 0, tail = 0;
    model_count(m);
    for (uint32_t b = s->sp.base[p]; b < s->sp.n[p]; b++)
        if (m->refs[p][s->sp.page[p][b]] > 1 + held_by_own(m, s, p, b)) n = b + 1;
    for (int i = 0; i < MODEL_CONTS; i++) {
        const struct model_cont *c = &m->cont[i];
        uint32_t block = c->frontier / KVD_PAGE_TOKENS;
        if (!c->used || c->pinned[p] == KVD_NONE || block >= s->sp.n[p] || s->sp.page[p][block] != c->pinned[p])
            continue;
        if (c->frontier > tail) tail = c->frontier;
    }
    n *= KVD_PAGE_TOKENS;
    if (n < tail) n = tail;
    uint32_t main = model_has_window(m, p) ? model_protected(m, s, 0) : 0;
    return n > main ? n : main;
}

uint32_t model_sharers(struct model *m, const struct model_cont *c) {
    uint32_t most = 0;
    model_count(m);
    for (uint32_t p = 0; p < m->n_pools; p++)
        for (uint32_t b = 0; !model_has_window(m, p) && b < c->sp.n[p]; b++)
            if (m->refs[p][c->sp.page[p][b]] - 1 > most) most = m->refs[p][c->sp.page[p][b]] - 1;
    return most;
}

uint32_t model_joint(struct model *m, const int *conts, const uint32_t *cut, uint32_t n, uint32_t p) {
    uint32_t freed = 0;
    static uint32_t held[MODEL_PAGES];
    memset(held, 0, sizeof held);
    model_count(m);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t b = cut ? model_pages(cut[i]) : 0; b < m->cont[conts[i]].sp.n[p]; b++)
            if (b >= m->cont[conts[i]].sp.base[p]) held[m->cont[conts[i]].sp.page[p][b]]++;
    for (uint32_t i = 0; i < m->config.pool_pages[p]; i++)
        freed += held[i] > 0 && held[i] == m->refs[p][i] && !m->pins[p][i];
    return freed;
}

/* ---- find (CONT-2, NAME-1, NAME-2) ---- */

struct kvd_root model_root(uint8_t domain) {
    return (struct kvd_root){ .digest = { { domain } }, .label = "" };
}

uint32_t model_usable(const struct model *m, const struct model_cont *c, const struct store_query *q,
                      uint32_t *ret_pages) {
    uint32_t full = c->frontier / KVD_PAGE_TOKENS, named = model_named(m, &c->sp, full), match = 0, tail = 0;
    struct kvd_root root = model_root(c->domain);
    if (!c->used || !c->published || c->claimed_by >= 0 || memcmp(&root.digest, &q->root, sizeof q->root) != 0)
        return 0;
    while (match < q->n && match < named && memcmp(m->digest[c->sp.page[0][match]], q->digests[match], 32) == 0)
        match++;
    bool whole = match == full && c->tail_named;
    if (whole && q->tokens && q->token_page == match)
        while (tail < q->tokens->n && tail < c->tail.n && q->tokens->tokens[tail] == c->tail.tokens[tail]) tail++;
    uint32_t usable = match * KVD_PAGE_TOKENS + tail;
    if (usable >= q->prompt_tokens) usable = q->prompt_tokens - 1;
    *ret_pages = match;
    if (!model_holds(m, &c->sp, usable)) return 0; /* GRP-4 */
    return m->config.has_state && (!whole || usable != c->frontier) ? 0 : usable;
}

uint32_t model_live_usable(const struct model *m, int k, const struct store_query *q, uint32_t *ret_pages) {
    const struct model_seq *s = &m->seq[k];
    struct kvd_root root = model_root(s->domain);
    uint32_t pages = model_live(m, k), match = 0;
    if (memcmp(&root.digest, &q->root, sizeof q->root) != 0) return 0;
    while (match < q->n && match < pages && memcmp(m->digest[s->sp.page[0][match]], q->digests[match], 32) == 0)
        match++;
    *ret_pages = match;
    if (match * KVD_PAGE_TOKENS >= q->prompt_tokens) match = (q->prompt_tokens - 1) / KVD_PAGE_TOKENS;
    return match * KVD_PAGE_TOKENS;
}

uint32_t model_hits(const struct model *m, const struct store_query *q, uint32_t floor, uint32_t ret[MODEL_HITS]) {
    uint32_t n = 0, match = 0;
    for (int i = 0; i < MODEL_HITS; i++) {
        uint32_t at = n, usable = i < MODEL_CONTS ? model_usable(m, &m->cont[i], q, &match)
                                                  : model_live_usable(m, i - MODEL_CONTS, q, &match);
        if (!usable || (floor && match <= floor)) continue;
        for (; at > 0 && usable > ret[at - 1]; at--) ret[at] = ret[at - 1];
        ret[at] = usable;
        n++;
    }
    return n;
}
