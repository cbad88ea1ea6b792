/* SPDX-License-Identifier: Apache-2.0
 *
 * The round boundary, and everything that ends or copies a sequence.
 */
#include "model_parts.h"

#include <string.h>

static uint32_t min32(uint32_t a, uint32_t b) { return a < b ? a : b; }
static uint32_t max32(uint32_t a, uint32_t b) { return a > b ? a : b; }

void model_drive_reasons(const struct model *m, int k, uint64_t lease, struct reasons *r) {
    if (k < 0) {
        model_reason(r, STORE_E_STALE, ANY_WHAT, ANY_POOL);
        return;
    }
    if (m->seq[k].lease != lease) model_reason(r, STORE_E_LEASE, ANY_WHAT, ANY_POOL);
    if (m->seq[k].state != STORE_SEQ_ACTIVE) model_reason(r, STORE_E_STATE, ANY_WHAT, ANY_POOL);
}

/* ---- round ---- */

/* FIT-4: may it go now, and as what? */
static bool may_go(struct model *m, const struct kvd_victim *victim, int c) {
    struct reasons reasons = { 0 };
    if (c < 0 || !m->cont[c].published || m->cont[c].claimed_by >= 0 || m->cont[c].pins) return false;
    if (victim->frontier) model_shorten_reasons(m, c, victim->frontier, &reasons);
    return reasons.n == 0 && victim->frontier < m->cont[c].frontier;
}

static uint32_t freed_by(struct model *m, const struct model_round *rd, uint32_t p) {
    return rd->n_gone ? model_joint(m, rd->gone, rd->cut, rd->n_gone, p) : 0;
}

/* FIT-4: one after the other, until what they give jointly is `lacks` pages; nobody where all are too few. */
static bool ask_the_list(struct model *m, const struct store_round_item *it, uint32_t p, uint32_t lacks,
                         struct model_round *rd) {
    uint32_t before = rd->n_gone;
    for (uint32_t i = 0; i < it->n_growth && model_available(m, p) + freed_by(m, rd, p) < lacks; i++) {
        int c = model_find_cont(m, store_cont_of(it->growth[i].continuation));
        bool again = false;
        for (uint32_t k = 0; k < rd->n_gone; k++) again |= rd->gone[k] == c;
        if (again || !may_go(m, &it->growth[i], c)) continue;
        rd->cut[rd->n_gone] = it->growth[i].frontier;
        rd->gone[rd->n_gone++] = c;
    }
    if (model_available(m, p) + freed_by(m, rd, p) >= lacks) return true;
    rd->n_gone = before;
    return false;
}

/* What gives nothing stays: without it as many pages go, in every pool. */
static void leave_out(struct model *m, struct model_round *rd) {
    for (uint32_t i = 0; i < rd->n_gone;) {
        struct model_round less = *rd;
        less.n_gone--;
        memmove(&less.gone[i], &less.gone[i + 1], (less.n_gone - i) * sizeof less.gone[0]);
        memmove(&less.cut[i], &less.cut[i + 1], (less.n_gone - i) * sizeof less.cut[0]);
        bool same = true;
        for (uint32_t p = 0; p < m->n_pools; p++) same &= freed_by(m, &less, p) == freed_by(m, rd, p);
        if (same) *rd = less;
        else i++;
    }
}

/* SPACE-3: a thin pool tries window, 128 and 64 tokens past the frontier; then 64 with the list. */
static void growth(struct model *m, const struct store_round_item *it, const struct model_seq *s, uint32_t p,
                   struct model_round *rd) {
    uint32_t want = it->pool[p].ensure == KVD_NONE ? 0 : model_pages(it->pool[p].ensure);
    const uint32_t extra[] = { model_window(m), 128, 64 };
    uint32_t full = model_full_entitlement(m, p, s->ceiling), now = s->entitlement[p], committed = rd->committed[p];
    rd->entitlement[p] = now;
    if (model_has_window(m, p)) {
        rd->entitlement[p] = min32(rd->base[p] + model_bound(m, p), full); /* GRP-3 */
        return;
    }
    if (!m->config.lease_growth || want > full ||
        max32(min32(model_pages(committed) + model_cushion(m), full), want) <= now)
        return;
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t lead = model_pages(min32(m->config.max_context, committed + extra[i])) + model_cushion(m);
        uint32_t target = min32(full, max32(max32(now, lead), want));
        rd->growth[p].target[rd->growth[p].n++] = target;
        if (rd->entitlement[p] == now && target - now <= model_available(m, p) + freed_by(m, rd, p))
            rd->entitlement[p] = target;
    }
    uint32_t last = rd->growth[p].target[2];
    if (rd->entitlement[p] == now && last > now && ask_the_list(m, it, p, last - now, rd)) rd->entitlement[p] = last;
}

/* SPACE-4: refused growth ends the request where its entitlement does; of several pools the nearest end counts. */
static void bound(const struct model_seq *s, uint32_t p, struct model_round *rd) {
    uint32_t end = min32(rd->entitlement[p] * KVD_PAGE_TOKENS, s->ceiling);
    if (rd->growth[p].n == 0 || rd->entitlement[p] > s->entitlement[p] || (rd->bounded && rd->bounded_frontier <= end))
        return;
    rd->bounded = true;
    rd->bounded_pool = p;
    rd->bounded_frontier = end;
}

static void frontiers(struct model *m, const struct model_seq *s, const struct kvd_round_pool *in, uint32_t p,
                      struct model_round *rd) {
    uint32_t c = s->sp.committed[p];
    if (in->commit != KVD_NONE) {
        if (in->commit < c || in->commit > s->sp.n[p] * KVD_PAGE_TOKENS || in->commit > m->config.max_context)
            model_reason(&rd->reasons, STORE_E_RANGE, STORE_S_COMMIT, p);
        c = in->commit;
    }
    if (in->truncate != KVD_NONE) {
        if (in->truncate > c) model_reason(&rd->reasons, STORE_E_RANGE, STORE_S_TRUNCATE, p);
        else if (in->truncate < c && in->truncate < model_protected(m, s, p))
            model_reason(&rd->reasons, STORE_E_PROTECTED, STORE_S_TRUNCATE, p);
        if (model_first(m, p, in->truncate) < s->sp.base[p])
            model_reason(&rd->reasons, STORE_E_RANGE, STORE_S_TRUNCATE, p); /* GRP-2 */
        c = in->truncate;
    }
    rd->base[p] = max32(s->sp.base[p], model_stays(m, p, c));
    rd->committed[p] = c;
    rd->kept[p] = s->sp.n[p];
    if (in->keep != KVD_NONE) rd->kept[p] = min32(s->sp.n[p], model_pages(max32(c, in->keep)));
}

static void mapping(struct model *m, const struct model_seq *s, const struct store_round_item *it, uint32_t p,
                    struct model_round *rd) {
    const struct kvd_round_pool *in = &it->pool[p];
    uint32_t want = in->ensure == KVD_NONE ? 0 : model_pages(in->ensure), ent = rd->entitlement[p];
    if (want > ent) {
        bool refused_growth = rd->growth[p].n && ent == s->entitlement[p];
        if (!refused_growth || want > model_full_entitlement(m, p, s->ceiling)) {
            model_reason(&rd->reasons, STORE_E_ENTITLEMENT, STORE_S_ENSURE, p);
            return;
        }
        want = ent;
    }
    bool maps = want > rd->kept[p] || (it->ahead && want); /* STEP-2 */
    rd->map[p] = maps ? max32(rd->kept[p], min32(want + m->config.map_ahead, ent)) : rd->kept[p];
}

void model_round_settle(struct model *m, const struct store_round_item *it, struct model_round *rd) {
    rd->bounded = false;
    for (uint32_t p = 0; p < m->n_pools; p++) {
        bound(&m->seq[rd->seq], p, rd);
        mapping(m, &m->seq[rd->seq], it, p, rd);
    }
}

void model_round(struct model *m, const struct store_round_item *it, struct model_round *rd) {
    memset(rd, 0, sizeof *rd);
    rd->seq = model_find_seq(m, it->seq);
    model_drive_reasons(m, rd->seq, it->lease, &rd->reasons);
    if (rd->reasons.n) return;
    const struct model_seq *s = &m->seq[rd->seq];
    model_count(m);
    for (uint32_t p = 0; p < m->n_pools; p++) {
        frontiers(m, s, &it->pool[p], p, rd);
        growth(m, it, s, p, rd);
    }
    leave_out(m, rd);
    model_round_settle(m, it, rd);
    if (it->state_frontier == KVD_NONE) return;
    if (!m->config.has_state) {
        model_reason(&rd->reasons, STORE_E_ARGUMENT, STORE_S_STATE_FRONTIER, ANY_POOL);
    } else if (it->state_frontier > min32(s->sp.n[0] * KVD_PAGE_TOKENS, m->config.max_context)) {
        model_reason(&rd->reasons, STORE_E_RANGE, STORE_S_STATE_FRONTIER, ANY_POOL);
    }
}

/* POOL-5: where the k pages right behind the last one are all free, they are taken. */
static void adjacent(struct model *m, const struct space *sp, uint32_t p, const uint32_t *ids, uint32_t n) {
    uint32_t from = sp->n[p], k = n > from ? n - from : 0;
    if (from == sp->base[p] || k == 0) return;
    model_count(m);
    uint32_t next = sp->page[p][from - 1] + 1;
    for (uint32_t i = 0; i < k; i++)
        if (next + i >= m->config.pool_pages[p] || m->refs[p][next + i] || m->pins[p][next + i]) return;
    for (uint32_t i = 0; i < k; i++)
        if (ids[from + i] != next + i)
            model_wrong(m, "pool %u: %u pages behind %u are free, page %u was taken", p, k, next - 1, ids[from + i]);
}

/* GRP-2: what lies behind the window goes; what the sequence alone holds comes back to it. */
static void pass(struct model *m, struct model_seq *s, uint32_t p, uint32_t base) {
    model_count(m);
    for (uint32_t b = s->sp.base[p]; b < base; b++) {
        s->hold[p] += m->refs[p][s->sp.page[p][b]] == 1 && m->pins[p][s->sp.page[p][b]] == 0;
        s->sp.page[p][b] = KVD_NONE;
    }
    if (base > s->sp.base[p]) s->sp.base[p] = base;
}

void model_round_apply(struct model *m, const struct store_round_item *it, const struct model_round *rd,
                       const struct model_rolling *rolling, uint32_t *const ids[POOLS], const uint32_t n[POOLS]) {
    struct model_seq *s = &m->seq[rd->seq];
    for (uint32_t i = 0; i < rd->n_gone; i++) model_give_way(m, rd->gone[i], rd->cut[i]);
    for (uint32_t p = 0; p < m->n_pools; p++) {
        uint32_t before = it->pool[p].commit == KVD_NONE ? s->sp.committed[p] : it->pool[p].commit;
        if (it->pool[p].truncate != KVD_NONE) model_roll_cut(m, rd->seq, it->pool[p].truncate);
        if (p == 0 && rd->committed[0] < before) /* shortened: another content from here on (PAGE-8) */
            model_unname(m, &s->sp, rd->committed[0] / KVD_PAGE_TOKENS);
        s->sp.committed[p] = rd->committed[p];
        s->entitlement[p] = rd->entitlement[p];
    }
    model_roll_pass(m, rd->seq, rolling); /* while what lies behind the windows is there */
    for (uint32_t p = 0; p < m->n_pools; p++) {
        if (it->pool[p].commit != KVD_NONE) s->source_slot = KVD_NONE;
        pass(m, s, p, rd->base[p]);
        s->hold[p] += s->sp.n[p] - rd->kept[p];
        model_cut(m, &s->sp, p, rd->kept[p]);
        adjacent(m, &s->sp, p, ids[p], n[p]);
        s->hold[p] -= n[p] - s->sp.n[p];
        model_adopt(m, &s->sp, p, ids[p], s->sp.n[p], n[p]);
    }
    uint32_t cut = it->pool[0].truncate;
    if (cut != KVD_NONE && s->state_frontier != KVD_NONE && s->state_frontier > cut) s->state_frontier = KVD_NONE;
    if (m->config.has_state && it->state_frontier != KVD_NONE) s->state_frontier = it->state_frontier;
}

/* ---- names ---- */

void model_name_reasons(struct model *m, int k, uint64_t lease, uint32_t first, uint32_t n,
                        const uint8_t (*digests)[32], struct reasons *r) {
    model_drive_reasons(m, k, lease, r);
    if (r->n) return;
    const struct space *sp = &m->seq[k].sp;
    uint32_t full = sp->committed[0] / KVD_PAGE_TOKENS;
    if ((uint64_t)first + n > full) {
        model_reason(r, STORE_E_RANGE, ANY_WHAT, ANY_POOL);
        return;
    }
    if (n && first > model_named(m, sp, full))
        model_reason(r, STORE_E_UNNAMED, STORE_S_DIGEST, ANY_POOL); /* a gap in the chain */
    for (uint32_t i = 0; i < n; i++) {
        uint32_t page = sp->page[0][first + i];
        if (m->named[page] && memcmp(m->digest[page], digests[i], 32) != 0)
            model_reason(r, STORE_E_NAME, STORE_S_DIGEST, ANY_POOL);
    }
}

void model_name(struct model *m, int k, uint32_t first, uint32_t n, const uint8_t (*digests)[32]) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t page = m->seq[k].sp.page[0][first + i];
        m->named[page] = true;
        memcpy(m->digest[page], digests[i], 32);
    }
    model_roll_named(m);
}

/* ---- checkpoint and finish ---- */

static void complete_reasons(struct model *m, int k, const struct kvd_tail *tail, struct reasons *r) {
    const struct model_seq *s = &m->seq[k];
    uint32_t f = s->sp.committed[0], full = f / KVD_PAGE_TOKENS;
    if (f == 0) {
        model_reason(r, STORE_E_INCOMPLETE, ANY_WHAT, ANY_POOL);
        model_reason(r, STORE_E_RANGE, ANY_WHAT, ANY_POOL);
    }
    for (uint32_t p = 1; p < m->n_pools; p++)
        if (s->sp.committed[p] != f) model_reason(r, STORE_E_INCOMPLETE, ANY_WHAT, ANY_POOL);
    if (m->config.has_state && s->state_frontier != f)
        model_reason(r, STORE_E_INCOMPLETE, STORE_S_STATE_FRONTIER, ANY_POOL);
    if (model_named(m, &s->sp, full) < full) model_reason(r, STORE_E_UNNAMED, STORE_S_DIGEST, ANY_POOL);
    if ((tail ? tail->n : 0) != f % KVD_PAGE_TOKENS) {
        model_reason(r, STORE_E_NAME, STORE_S_TAIL, ANY_POOL);
        model_reason(r, STORE_E_ARGUMENT, STORE_S_TAIL, ANY_POOL);
    }
}

void model_keep_reasons(struct model *m, int k, uint64_t lease, const struct kvd_tail *tail, bool retain,
                        const struct model_plan *recipe, struct reasons *r) {
    uint32_t conts = 0, slots = 0;
    model_drive_reasons(m, k, lease, r);
    for (uint32_t i = 0; recipe && i < recipe->hard.n; i++) r->list[r->n++] = recipe->hard.list[i];
    if (k < 0 || m->seq[k].state == STORE_SEQ_ACTIVATING) return;
    model_count(m);
    complete_reasons(m, k, tail, r);
    if (retain) return;
    for (uint32_t v = 0; recipe && v < recipe->n_victims; v++) {
        const struct model_cont *c = &m->cont[recipe->victims[v]];
        conts += recipe->cut[v] == 0;
        slots += c->slot != KVD_NONE && !model_slot_read(m, c->slot);
    }
    if (model_descriptors_used(m) >= m->config.max_continuations + conts)
        model_reason_short(r, STORE_E_SHORT, STORE_S_CONTINUATION, ANY_POOL, 1, 0);
    for (uint32_t p = 0; p < m->n_pools; p++) {
        uint32_t freed = recipe ? model_joint(m, recipe->victims, recipe->cut, recipe->n_victims, p) : 0;
        m->replaced[p] = model_replaced(m, &m->seq[k], p, m->seq[k].sp.committed[p]);
        uint32_t needs = m->replaced[p] + (m->seq[k].sp.committed[0] % KVD_PAGE_TOKENS > 0);
        if (model_available(m, p) + freed < needs)
            model_reason_short(r, STORE_E_SHORT, STORE_S_PAGES, p, needs, model_available(m, p) + freed);
    }
    if (m->config.has_state && model_slots_used(m) >= m->config.state_slots + slots)
        model_reason_short(r, STORE_E_SHORT, STORE_S_STATE_SLOT, ANY_POOL, 1, 0);
}

static void unpin_copies(struct model_cont *c) {
    for (uint32_t p = 0; p < POOLS; p++) c->pinned[p] = KVD_NONE;
    c->pinned_slot = KVD_NONE;
}

int model_new_cont(struct model *m, store_cont handle, uint32_t frontier, uint32_t retention,
                   const struct kvd_tail *tail) {
    int k = model_free_cont(m);
    struct model_cont *c = &m->cont[k];
    if (model_find_cont(m, handle) >= 0 || handle.bits == 0) model_wrong(m, "the new continuation's handle is not new");
    memset(c, 0, offsetof(struct model_cont, sp));
    c->used = true;
    c->handle = handle;
    c->frontier = frontier;
    c->retention = retention;
    c->slot = KVD_NONE;
    c->claimed_by = -1;
    unpin_copies(c);
    c->born = ++m->births;
    c->tail_named = tail != NULL || frontier % KVD_PAGE_TOKENS == 0;
    if (tail) c->tail = *tail;
    memset(c->sp.n, 0, sizeof c->sp.n);
    memset(c->sp.base, 0, sizeof c->sp.base);
    return k;
}

int model_checkpoint(struct model *m, int seq, const struct kvd_tail *tail, uint32_t retention,
                     const struct store_checkpointed *got, uint32_t *const ids[POOLS], const uint32_t n[POOLS]) {
    struct model_seq *s = &m->seq[seq];
    uint32_t f = s->sp.committed[0], full = f / KVD_PAGE_TOKENS;
    int k = model_new_cont(m, got->cont, f, retention, tail);
    struct model_cont *c = &m->cont[k];
    c->domain = s->domain;
    if (got->frontier != f) model_wrong(m, "a checkpoint at %u, not %u", got->frontier, f);
    for (uint32_t p = 0; p < m->n_pools; p++) {
        model_share(m, &s->sp, &c->sp, f, p, full);
        for (uint32_t b = 0; b < full && b < n[p]; b++)
            if (ids[p][b] != c->sp.page[p][b]) model_wrong(m, "pool %u block %u of the checkpoint is not shared", p, b);
        if (n[p] != model_pages(f))
            model_wrong(m, "pool %u: a checkpoint of %u pages, not %u", p, n[p], model_pages(f));
        else model_adopt(m, &c->sp, p, ids[p], full, n[p]);
        s->hold[p] += m->replaced[p];
        if (got->shared_pages[p] != full - c->sp.base[p])
            model_wrong(m, "pool %u: %u pages shared, not %u", p, got->shared_pages[p], full - c->sp.base[p]);
    }
    for (uint32_t p = 0; p < m->n_pools && f % KVD_PAGE_TOKENS; p++) c->pinned[p] = s->sp.page[p][full];
    if (m->config.has_state) c->pinned_slot = s->slot;
    memcpy(c->sp.chain, s->sp.chain, sizeof c->sp.chain);
    c->sp.image = s->sp.image;
    return k;
}

void model_checkpoint_reasons(const struct model *m, store_cont handle, struct reasons *r) {
    int c = model_find_cont(m, handle);
    if (model_find_live(m, handle) >= 0) model_reason(r, STORE_E_STATE, ANY_WHAT, ANY_POOL);
    else if (c < 0) model_reason(r, STORE_E_STALE, ANY_WHAT, ANY_POOL);
    else if (m->cont[c].published) model_reason(r, STORE_E_STATE, ANY_WHAT, ANY_POOL);
    else if (model_roll_waits(m, c) && m->cont[c].pinned_slot == KVD_NONE)
        model_reason(r, STORE_E_STALE, ANY_WHAT, ANY_POOL); /* it has no copy in flight */
}

void model_checkpoint_publish(struct model *m, int c) {
    m->cont[c].published = true;
    m->cont[c].born = ++m->births;
    unpin_copies(&m->cont[c]);
}

static bool is_equal(const struct model *m, const struct model_cont *c, uint8_t domain, const struct space *sp,
                     uint32_t frontier, const struct kvd_tail *tail) {
    uint32_t full = frontier / KVD_PAGE_TOKENS, n = frontier % KVD_PAGE_TOKENS;
    if (!c->used || !c->published || c->claimed_by >= 0 || c->frontier != frontier || !c->tail_named) return false;
    if (c->domain != domain) return false; /* NAME-1 */
    if (n && (!tail || memcmp(tail->tokens, c->tail.tokens, n * sizeof tail->tokens[0]) != 0)) return false;
    if (model_named(m, sp, full) < full || model_named(m, &c->sp, full) < full) return false;
    for (uint32_t b = 0; b < full; b++)
        if (memcmp(m->digest[sp->page[0][b]], m->digest[c->sp.page[0][b]], 32) != 0) return false;
    return true;
}

int model_equal(const struct model *m, uint8_t domain, const struct space *sp, uint32_t frontier,
                const struct kvd_tail *tail, store_cont handle) {
    for (int i = 0; i < MODEL_CONTS; i++)
        if ((handle.bits == 0 || handle.bits == m->cont[i].handle.bits) &&
            is_equal(m, &m->cont[i], domain, sp, frontier, tail))
            return i;
    return -1;
}

void model_merge(struct model *m, int c, uint32_t retention) {
    if (retention > m->cont[c].retention) m->cont[c].retention = retention;
    m->cont[c].rolls = 0; /* it stands for another's (GRP-5) */
}

/* Forks in flight from a sequence that ends are of its continuation from now on. */
static void hand_over_forks(struct model *m, int k, int c) {
    for (int i = 0; i < MODEL_SEQS; i++) {
        if (!m->seq[i].used || m->seq[i].from_seq != k) continue;
        m->seq[i].from_seq = -1;
        m->seq[i].from = c;
        m->cont[c].pins++;
    }
}

/* LIVE-1: what they share stays until they are there, whoever else lets go of it. */
static void leave_to_forks(struct model *m, int k) {
    uint32_t frontier;
    if (!model_forks(m, k, &frontier)) return;
    int i = model_new_cont(m, m->seq[k].live, frontier, 0, NULL);
    m->cont[i].going = true;
    m->cont[i].domain = m->seq[k].domain;
    for (uint32_t p = 0; p < m->n_pools; p++)
        model_share(m, &m->seq[k].sp, &m->cont[i].sp, frontier, p, model_pages(frontier));
    hand_over_forks(m, k, i);
}

/* A sequence becomes inactive at `frontier` with what it holds. */
static int retain_at(struct model *m, int k, uint32_t frontier, const struct kvd_tail *tail, uint32_t retention,
                     store_cont handle) {
    struct model_seq *s = &m->seq[k];
    uint32_t forked;
    int i = model_equal(m, s->domain, &s->sp, frontier, tail, (store_cont){ 0 });
    if (i >= 0 && !model_forks(m, k, &forked)) {
        i = model_equal(m, s->domain, &s->sp, frontier, tail, handle);
        if (i < 0) model_wrong(m, "an equal continuation is kept beside one that was there");
        else model_merge(m, i, retention);
        model_roll_end(m, k);
        s->used = false;
        return i;
    }
    if (handle.bits != s->live.bits) model_wrong(m, "what is kept has another handle than it had while it ran");
    i = model_new_cont(m, handle, frontier, retention, tail);
    struct model_cont *c = &m->cont[i];
    c->domain = s->domain;
    hand_over_forks(m, k, i);
    model_count(m);
    for (uint32_t p = 0; p < m->n_pools; p++) {
        uint32_t block = frontier / KVD_PAGE_TOKENS;
        if (p == 0 && block < s->sp.n[0] && m->refs[0][s->sp.page[0][block]] == 1)
            m->named[s->sp.page[0][block]] = false;
        model_share(m, &s->sp, &c->sp, frontier, p, model_pages(frontier));
    }
    memcpy(c->sp.chain, s->sp.chain, sizeof c->sp.chain);
    c->sp.image = s->sp.image;
    c->slot = s->slot;
    c->published = true;
    model_roll_end(m, k);
    m->seq[k].used = false;
    return i;
}

int model_finish(struct model *m, int k, bool retain, const struct kvd_tail *tail, uint32_t retention,
                 store_cont handle) {
    if (retain) return retain_at(m, k, m->seq[k].sp.committed[0], tail, retention, handle);
    leave_to_forks(m, k);
    model_roll_end(m, k);
    m->seq[k].used = false;
    return -1;
}

/* SRV-5, CONT-1: the smallest frontier over the pools; with state only at the image's frontier. */
uint32_t model_end_frontier(const struct model *m, int k) {
    uint32_t f = m->seq[k].sp.committed[0];
    for (uint32_t p = 1; p < m->n_pools; p++) f = min32(f, m->seq[k].sp.committed[p]);
    return f;
}

bool model_end_retains(const struct model *m, int k) {
    const struct model_seq *s = &m->seq[k];
    uint32_t f = model_end_frontier(m, k);
    if (s->state == STORE_SEQ_ACTIVATING || f == 0 || !model_holds(m, &s->sp, f)) return false;
    return !m->config.has_state || s->state_frontier == f;
}

int model_end(struct model *m, int k, store_cont handle) {
    if (model_end_retains(m, k)) return retain_at(m, k, model_end_frontier(m, k), NULL, 0, handle);
    if (m->seq[k].state == STORE_SEQ_ACTIVATING) model_activate_abort(m, k);
    model_roll_end(m, k);
    m->seq[k].used = false;
    return -1;
}

/* ---- continuations ---- */

int model_cont_reasons(const struct model *m, store_cont handle, struct reasons *r) {
    int c = model_find_cont(m, handle);
    if (model_find_live(m, handle) >= 0) model_reason(r, STORE_E_BUSY, STORE_S_SEQUENCE, ANY_POOL); /* LIVE-1 */
    else if (c < 0) model_reason(r, STORE_E_STALE, ANY_WHAT, ANY_POOL);
    else if (!m->cont[c].published) {
        model_reason(r, STORE_E_BUSY, ANY_WHAT, ANY_POOL);
        model_reason(r, STORE_E_STALE, ANY_WHAT, ANY_POOL);
    } else if (m->cont[c].claimed_by >= 0 || m->cont[c].pins) model_reason(r, STORE_E_BUSY, ANY_WHAT, ANY_POOL);
    return c;
}

void model_shorten_reasons(struct model *m, int c, uint32_t to, struct reasons *r) {
    const struct model_cont *mc = c < 0 ? NULL : &m->cont[c];
    if (!mc) return;
    uint32_t boundary = mc->frontier / KVD_PAGE_TOKENS * KVD_PAGE_TOKENS;
    if (to == 0 || to > mc->frontier || (m->config.has_state && to != mc->frontier)) /* CONT-4 */
        model_reason(r, STORE_E_RANGE, ANY_WHAT, ANY_POOL);
    if (to && to < mc->frontier && !model_holds(m, &mc->sp, to)) /* GRP-4 */
        model_reason(r, STORE_E_RANGE, STORE_S_FRONTIER, ANY_POOL);
    if (to == mc->frontier || to % KVD_PAGE_TOKENS == 0) return;
    if (to < boundary || !mc->tail_named) model_reason(r, STORE_E_NAME, ANY_WHAT, ANY_POOL);
    if (to < boundary) return;
    model_count(m);
    for (uint32_t p = 0; p < m->n_pools; p++) /* its tail is being copied for a checkpoint */
        if (to / KVD_PAGE_TOKENS >= mc->sp.base[p] && to < mc->frontier &&
            m->pins[p][mc->sp.page[p][to / KVD_PAGE_TOKENS]])
            model_reason(r, STORE_E_BUSY, ANY_WHAT, ANY_POOL);
}

void model_shorten(struct model *m, int c, uint32_t to) {
    struct model_cont *mc = &m->cont[c];
    if (to == mc->frontier) return;
    mc->frontier = to;
    mc->rolls = 0;
    mc->tail.n = to % KVD_PAGE_TOKENS;
    mc->tail_named = true;
    for (uint32_t p = 0; p < m->n_pools; p++) {
        mc->sp.n[p] = model_pages(to);
        mc->sp.committed[p] = to;
    }
}

void model_release(struct model *m, int c) { model_drop_cont(m, c); }

void model_quarantine_reasons(const struct model *m, int k, bool on, struct reasons *r) {
    if (k < 0) model_reason(r, STORE_E_STALE, ANY_WHAT, ANY_POOL);
    else if (m->seq[k].state == STORE_SEQ_ACTIVATING) model_reason(r, STORE_E_STATE, ANY_WHAT, ANY_POOL);
    else if (on == (m->seq[k].state == STORE_SEQ_QUARANTINED)) model_reason_maybe(r, STORE_E_STATE);
}

void model_maybe_membership(struct reasons *r) {
    model_reason_maybe(r, STORE_E_SHORT);
    r->list[r->n - 1].subject = STORE_S_MEMBERSHIP;
}
