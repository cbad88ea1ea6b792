/* SPDX-License-Identifier: Apache-2.0
 *
 * Rolling checkpoints (GRP-5), tried out boundary by boundary.
 */
#include "model_parts.h"

#include <string.h>

/* Its own that are there, the oldest first. */
uint32_t model_rolled(const struct model *m, int k, int ret[MODEL_CONTS]) {
    uint32_t n = 0;
    for (int c = 0; c < MODEL_CONTS; c++) {
        if (!m->cont[c].used || m->cont[c].rolls != k + 1) continue;
        uint32_t at = n++;
        for (; at > 0 && m->cont[ret[at - 1]].frontier > m->cont[c].frontier; at--) ret[at] = ret[at - 1];
        ret[at] = c;
    }
    return n;
}

bool model_may_supersede(const struct model *m, int c) {
    const struct model_cont *mc = &m->cont[c];
    return mc->published ? mc->claimed_by < 0 && mc->pins == 0 : mc->pinned_slot == KVD_NONE;
}

static bool is_boundary(const struct model *m, const struct model_seq *s, uint32_t f) {
    bool gone = m->config.has_state; /* else LIVE-1 shows all of it */
    for (uint32_t p = 0; p < m->n_pools; p++) gone |= model_has_window(m, p);
    if (f % KVD_PAGE_TOKENS || !gone || !m->config.max_rolling) return false;
    return (s->every && f % s->every == 0) ||
           (s->at_prompt && f < s->prompt && f + KVD_PAGE_TOKENS >= s->prompt); /* before its last token */
}

uint32_t model_due(const struct model *m, int k, const uint32_t committed[POOLS], uint32_t ret[MODEL_BLOCKS]) {
    const struct model_seq *s = &m->seq[k];
    uint32_t to = committed[0], n = 0, behind = 0;
    for (uint32_t p = 1; p < m->n_pools; p++)
        if (committed[p] < to) to = committed[p];
    for (uint32_t f = to / KVD_PAGE_TOKENS * KVD_PAGE_TOKENS; f > s->passed && behind < m->config.max_rolling;
         f -= KVD_PAGE_TOKENS) {
        if (is_boundary(m, s, f)) ret[n++] = f;
        behind += s->every && f % s->every == 0; /* as many as there may be come after what is before it */
    }
    for (uint32_t i = 0; i < n / 2; i++) {
        uint32_t other = ret[i];
        ret[i] = ret[n - 1 - i];
        ret[n - 1 - i] = other;
    }
    return n;
}

/* GRP-3: what it will not get back when it passes what the checkpoint holds. */
uint32_t model_replaced(const struct model *m, const struct model_seq *s, uint32_t p, uint32_t f) {
    if (!model_has_window(m, p)) return 0;
    uint32_t needs = model_needs(m, &s->sp, p, s->sp.n[p], model_full_entitlement(m, p, s->ceiling),
                                 model_first(m, p, f), model_pages(f));
    return needs > s->hold[p] ? needs - s->hold[p] : 0;
}

/* All that it takes is there, with what `victim` leaves (-1: nobody goes). */
static bool suffices(struct model *m, const struct model_seq *s, uint32_t f, int victim) {
    bool goes = victim >= 0, ok = model_descriptors_used(m) - goes < m->config.max_continuations;
    for (uint32_t p = 0; p < m->n_pools; p++) {
        uint32_t freed = goes ? model_joint(m, &victim, NULL, 1, p) : 0;
        model_count(m);
        m->replaced[p] = model_replaced(m, s, p, f);
        ok &= model_available(m, p) + freed >= m->replaced[p];
    }
    if (!m->config.has_state) return ok;
    bool slot = goes && m->cont[victim].slot != KVD_NONE && !model_slot_read(m, m->cont[victim].slot);
    return ok && model_slots_used(m) - slot < m->config.state_slots;
}

/* FIT-5: an equal one stands for it, and is nobody's own from then on. Of several any may: then the store says which.
 */
static void publish(struct model *m, int c) {
    struct model_cont *mc = &m->cont[c];
    int equal[MODEL_CONTS];
    uint32_t n = 0;
    for (int i = 0; i < MODEL_CONTS; i++)
        if (m->cont[i].used && m->cont[i].published &&
            model_equal(m, mc->domain, &mc->sp, mc->frontier, NULL, m->cont[i].handle) == i)
            equal[n++] = i;
    if (n == 1) m->cont[equal[0]].rolls = 0;
    for (uint32_t i = 0; n > 1 && i < n; i++) m->cont[equal[i]].asked = true;
    if (n) {
        model_drop_cont(m, c);
        return;
    }
    mc->published = true;
    mc->born = ++m->births;
}

static bool is_named(const struct model *m, const struct model_cont *c) {
    uint32_t full = c->frontier / KVD_PAGE_TOKENS;
    return model_named(m, &c->sp, full) == full;
}

/* -1: nobody may go. */
static int who_goes(const struct model *m, const int own[MODEL_CONTS], uint32_t n) {
    int oldest = -1;
    uint32_t found = 0;
    for (uint32_t i = 0; i < n; i++) found += m->cont[own[i]].published;
    for (uint32_t i = 0; i < n; i++) {
        bool last = m->cont[own[i]].published && found == 1;
        if (!model_may_supersede(m, own[i])) continue;
        if (!last) return own[i]; /* before it there is at most the last one that is found */
        oldest = own[i];
    }
    return oldest;
}

static bool take(struct model *m, int k, uint32_t f, const struct model_rolling *how) {
    struct model_seq *s = &m->seq[k];
    int own[MODEL_CONTS], victim = -1;
    uint32_t n = model_rolled(m, k, own), listed = 0;
    while (listed < how->n && how->got[listed].frontier != f) listed++;
    if ((m->config.has_state && how->image != f) || !model_holds(m, &s->sp, f)) return false;
    if (n >= m->config.max_rolling) victim = who_goes(m, own, n);
    if (n >= m->config.max_rolling && victim < 0) return false;
    if (!suffices(m, s, f, victim) || (how->unsure && listed == how->n)) return false;
    if (victim >= 0) model_drop_cont(m, victim);
    store_cont handle = { listed < how->n ? how->got[listed].cont.bits : UINT64_MAX - m->births };
    int i = model_new_cont(m, handle, f, 0, NULL);
    struct model_cont *c = &m->cont[i];
    c->domain = s->domain;
    c->rolls = k + 1;
    for (uint32_t p = 0; p < m->n_pools; p++) {
        model_share(m, &s->sp, &c->sp, f, p, f / KVD_PAGE_TOKENS);
        s->hold[p] += m->replaced[p];
    }
    memcpy(c->sp.chain, s->sp.chain, sizeof c->sp.chain);
    if (m->config.has_state) {
        model_adopt_slot(m, how->slot, &c->slot);
        c->pinned_slot = s->slot;
    } else if (is_named(m, c)) {
        publish(m, i); /* Main was ahead of the other pools */
    }
    return true;
}

void model_roll_pass(struct model *m, int k, const struct model_rolling *how) {
    uint32_t due[MODEL_BLOCKS], n = model_due(m, k, m->seq[k].sp.committed, due);
    for (uint32_t i = 0; i < n; i++) m->taken += take(m, k, due[i], how);
    for (uint32_t p = 0, least = KVD_NONE; p < m->n_pools; p++) {
        if (m->seq[k].sp.committed[p] < least) least = m->seq[k].sp.committed[p];
        if (p + 1 == m->n_pools && least > m->seq[k].passed) m->seq[k].passed = least;
    }
}

void model_roll_cut(struct model *m, int k, uint32_t frontier) {
    int own[MODEL_CONTS];
    uint32_t n = model_rolled(m, k, own);
    for (uint32_t i = 0; i < n; i++)
        if (m->cont[own[i]].frontier > frontier && model_may_supersede(m, own[i])) model_drop_cont(m, own[i]);
    if (frontier < m->seq[k].passed) m->seq[k].passed = frontier;
}

void model_roll_named(struct model *m) {
    for (int c = 0; c < MODEL_CONTS; c++)
        if (m->cont[c].used && !m->cont[c].published && m->cont[c].rolls && m->cont[c].pinned_slot == KVD_NONE &&
            is_named(m, &m->cont[c]))
            publish(m, c);
}

bool model_roll_waits(const struct model *m, int c) { return !m->cont[c].published && !is_named(m, &m->cont[c]); }

void model_roll_landed(struct model *m, int c) {
    m->cont[c].pinned_slot = KVD_NONE;
    if (!m->cont[c].rolls) model_drop_cont(m, c); /* nobody will name it any more */
}

void model_roll_end(struct model *m, int k) {
    int own[MODEL_CONTS];
    uint32_t n = model_rolled(m, k, own);
    for (uint32_t i = 0; i < n; i++) {
        m->cont[own[i]].rolls = 0;
        if (!m->cont[own[i]].published && m->cont[own[i]].pinned_slot == KVD_NONE) model_drop_cont(m, own[i]);
    }
}
