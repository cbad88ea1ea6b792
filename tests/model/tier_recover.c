/* SPDX-License-Identifier: Apache-2.0
 *
 * The next kvd: recovers from a copy of the directory, at rest and at every write of it (CONT-3). What comes back is
 * exactly what was there, as far as it has a place; nothing that was released comes back; no two records name the same
 * bytes.
 */
#include "tier.h"

#include <string.h>

#include "crash.h"
#include "kvt.h"

/* ---- what must come back ---- */

static bool has_place(const struct page *page, uint32_t columns, bool device_lives) {
    return (device_lives && page_on_device(page)) || page_in_host(page, columns);
}

/* SRV-5: what a lookup can lead to. */
static uint32_t reach_of(const struct world *w, uint32_t f, uint32_t named, bool tail_known) {
    if (named == f / KVD_PAGE_TOKENS && tail_known) return f;
    return w->config.has_state ? 0 : named * KVD_PAGE_TOKENS;
}

uint32_t expected_frontier(const struct world *w, const struct store *store, const struct cont *cont,
                           bool device_lives) {
    uint32_t f = cont->frontier;
    for (uint32_t p = 0; p < w->n_pools; p++) {
        uint32_t b = cont->space[p].base;
        while (b < pages_of(f) && has_place(&store->pool[p].pages[space_entry(store, &cont->space[p], b)],
                                            columns_of(cont->frontier, b), device_lives))
            b++;
        f = min_u32(f, b * KVD_PAGE_TOKENS);
    }
    if (!windows_hold(store, cont->space, f)) return 0; /* GRP-4 */
    bool tail = f % KVD_PAGE_TOKENS == 0 || (f == cont->frontier && cont->tail_named);
    f = reach_of(w, f, min_u32(cont->named, f / KVD_PAGE_TOKENS), tail);
    if (!windows_hold(store, cont->space, f)) return 0;
    if (!w->config.has_state) return f;
    bool coming = cont->image_coming;
    bool image = (cont->image.bits && !cont->image_backing && !cont->image_lost) ||
                 (device_lives && cont->slot != KVD_NONE && !coming);
    return f == cont->frontier && image ? f : 0;
}

/* GRP-4: a sequence whose pools stand so far apart that a window has left what the common frontier reads. It does not
 * come back, whoever holds those pages now. */
static bool is_torn(const struct world *w, const struct store *store, const struct tier_seq *s) {
    const struct seq *seq = seq_find(store, s->handle);
    uint32_t f = UINT32_MAX;
    for (uint32_t p = 0; p < w->n_pools; p++) f = min_u32(f, s->committed[p]);
    return seq && s->active && !windows_hold(store, seq->space, f);
}

static uint32_t expected_of_seq(const struct world *w, const struct store *store, const struct tier_seq *s,
                                bool device_lives) {
    const struct seq *seq = seq_find(store, s->handle);
    uint32_t f = UINT32_MAX;
    uint32_t first[POOLS], common = UINT32_MAX;
    if (!seq || !s->active || is_torn(w, store, s)) return 0;
    for (uint32_t p = 0; p < w->n_pools; p++) common = min_u32(common, s->committed[p]);
    for (uint32_t p = 0; p < w->n_pools; p++) {
        uint32_t b = first[p] = window_first(store, p, common), full = s->committed[p];
        f = min_u32(f, full);
        while (b < pages_of(full) && has_place(&store->pool[p].pages[space_entry(store, &seq->space[p], b)],
                                               columns_of(full, b), device_lives))
            b++;
        if (b < pages_of(f)) f = b * KVD_PAGE_TOKENS;
    }
    f = reach_of(w, f, min_u32(seq->named, f / KVD_PAGE_TOKENS), f % KVD_PAGE_TOKENS == 0);
    for (uint32_t p = 0; p < w->n_pools; p++)
        if (window_first(store, p, f) < first[p]) return 0; /* GRP-4 */
    if (!w->config.has_state) return f;
    return device_lives && f == s->committed[0] && s->state_frontier == f ? f : 0;
}

/* ---- who came back ---- */

static bool same_names(const struct store *store, const struct cont *cont, const struct content *c) {
    for (uint32_t b = 0; b < cont->named; b++)
        if (memcmp(store->digests[space_entry(store, &cont->space[0], b)], c->chain[b], 32) != 0) return false;
    return true;
}

/* The continuation whose place this was, or the sequence whose tag it bears. */
static struct tier_cont *old_cont(struct world *w, uint32_t place, const struct cont *cont) {
    for (int i = 0; i < CONTS; i++) {
        struct tier_cont *m = &w->cont[i];
        if (m->used && (m->published || m->publishing) && (uint32_t)m->handle.bits == place && m->tag == cont->tag &&
            (w->dying || cont->retention == m->retention) && cont->frontier <= m->frontier)
            return m;
    }
    return NULL;
}

static struct tier_seq *old_seq(struct world *w, const struct cont *cont) {
    for (int i = 0; i < SEQS; i++) {
        struct tier_seq *s = &w->seq[i];
        bool reaches = s->used && s->tag == cont->tag;
        for (uint32_t p = 0; p < w->n_pools; p++) reaches &= cont->frontier <= s->written[p];
        if (reaches) return s;
    }
    return NULL;
}

static void check_tail(struct world *w, const struct cont *cont, const struct tier_cont *m) {
    if (!cont->tail_named || cont->tail.n == 0) return;
    if (!m->tail_named || cont->tail.n > m->tail.n || (!w->dying && cont->tail.n != m->tail.n) /* being cut */ ||
        memcmp(cont->tail.tokens, m->tail.tokens, cont->tail.n * sizeof m->tail.tokens[0]))
        fail(w, "a continuation came back with another tail");
}

static void check_image(struct world *w, const struct store *store, const struct cont *cont, const struct content *c) {
    uint64_t offset = cont->image.bits ? extent_offset(store->arena, cont->image) : 0, image;
    if (!w->config.has_state) return;
    if (cont->slot == KVD_NONE && !cont->image.bits)
        fail(w, "a continuation came back without its state image (CONT-1)");
    if (cont->slot != KVD_NONE && w->slots[cont->slot] != c->image && w->slots[cont->slot] != w->newer_image)
        fail(w, "a continuation came back with another state image (slot %u)", cont->slot);
    if (!cont->image.bits || w->rotten[offset / UNIT]) return;
    memcpy(&image, w->arena + offset, sizeof image);
    if (image != c->image || checksum_of(w, offset, store->config.host_state_stride) != cont->image_checksum)
        fail(w, "a continuation came back with another state image in the host");
}

static bool is_it(struct world *w, const struct store *store, const struct cont *cont, const struct content *c) {
    return reads(w, store, cont->space, cont->frontier, c, NULL) &&
           (cont->slot == KVD_NONE || w->slots[cont->slot] == c->image || w->slots[cont->slot] == w->newer_image);
}

struct back {
    uint32_t cont[CONTS], seq[SEQS];
}; /* frontiers that came back, by the old one's index */

static void check_cont(struct world *w, const struct store *store, uint32_t place, bool device_lives,
                       struct back *back) {
    const struct cont *cont = &store->conts[place];
    struct tier_cont *m = old_cont(w, place, cont);
    struct tier_seq *s = old_seq(w, cont);
    if (m && s && w->dying && !is_it(w, store, cont, &m->c)) m = NULL; /* its own record is not there yet, or no more */
    const struct content *c = m ? &m->c : s ? &s->c : NULL;
    if (!c) {
        fail(w, "place %u: a continuation of %u tokens (tag %llu) came back that nobody holds", place, cont->frontier,
             (unsigned long long)cont->tag);
        return;
    }
    for (uint32_t p = 0; p < w->n_pools && !device_lives; p++)
        for (uint32_t b = cont->space[p].base; b < cont->space[p].count; b++)
            if (store->pool[p].pages[space_entry(store, &cont->space[p], b)].device != KVD_NONE)
                fail(w, "a page came back on a device that is gone");
    reads(w, store, cont->space, cont->frontier, c, "came back");
    if (store->domains.list[cont->domain].root.digest.bytes[0] != c->domain)
        fail(w, "place %u: a continuation came back in another domain (NAME-1)", place);
    if (!same_names(store, cont, c)) fail(w, "place %u: a continuation came back with other names", place);
    if (m) check_tail(w, cont, m);
    check_image(w, store, cont, c);
    if (m && s && w->dying)
        back->seq[s - w->seq] = max_u32(back->seq[s - w->seq], cont->frontier); /* which of the two cannot be told */
    uint32_t *slot = m ? &back->cont[m - w->cont] : &back->seq[s - w->seq];
    if (*slot && !w->dying) fail(w, "place %u: one bundle came back twice", place);
    *slot = max_u32(*slot, cont->frontier); /* a kill may find it in its old record and in its new one */
}

/* Deletions go first: nothing is in a record that the store has given back already. */
static void check_held(struct world *w) {
    const struct store *now = w->kvd.store, *next = w->next.store;
    uint8_t held[UNITS] = { 0 };
    struct extent_info extent;
    uint32_t cursor = 0;
    for (uint32_t p = 0; p < w->n_pools; p++)
        for (uint32_t i = 0; i < w->config.pool_pages[p]; i++)
            if (!pool_is_free(&next->pool[p], i) && pool_is_free(&now->pool[p], i))
                fail(w, "pool %u: the directory names page %u, which is free", p, i);
    if (!now->arena) return;
    while (extent_next(now->arena, &cursor, &extent)) memset(held + extent.offset / UNIT, 1, extent.stride / UNIT);
    for (cursor = 0; extent_next(next->arena, &cursor, &extent);)
        if (!held[extent.offset / UNIT])
            fail(w, "the directory names arena bytes at %llu, which are free", (unsigned long long)extent.offset);
}

/* Recovers a copy of the directory as it is at this moment into w->next. */
static bool recover_copy(struct world *w, bool device_lives, struct back *back) {
    struct store_recovered out;
    char text[512] = "";
    memset(back, 0, sizeof *back);
    memcpy(w->next.tables, w->kvd.tables, w->tables_size);
    w->next.id = w->kvd.id;
    if (!kvd_start(w, &w->next)) return false;
    directory_open(w->next.handle, w->next.tables, &w->limits, w->next.id, &w->next.directory);
    store_recover(w->next.store, w->next.directory, device_lives, &out);
    w->recoveries++;
    w->shortened += out.shortened;
    if (out.damaged) fail(w, "recovery found %u damaged records, and nothing was damaged", out.damaged);
    if (store_audit(w->next.store, text, sizeof text)) fail(w, "recovered: %s", text);
    for (uint32_t i = 0; i < w->config.max_continuations && !w->failed; i++)
        if (w->next.store->conts[i].occupied) check_cont(w, w->next.store, i, device_lives, back);
    if (w->next.store->seqs_used) fail(w, "recovered: a sequence runs");
    check_held(w);
    return !w->failed;
}

/* ---- at rest ---- */

static void check_all_back(struct world *w, const struct back *back, bool device_lives) {
    const struct store *store = w->kvd.store;
    for (int i = 0; i < CONTS && !w->failed; i++) {
        const struct tier_cont *m = &w->cont[i];
        if (!m->used || !m->published) continue;
        uint32_t want = expected_frontier(w, store, cont_find(store, m->handle), device_lives);
        if (back->cont[i] != want)
            fail(w, "cont %d of %u tokens came back at %u, it has places up to %u", i, m->frontier, back->cont[i],
                 want);
    }
    for (int i = 0; i < SEQS && !w->failed; i++) {
        uint32_t want = w->seq[i].used ? expected_of_seq(w, store, &w->seq[i], device_lives) : 0;
        if (back->seq[i] != want) /* FIT-2: there is a descriptor for each */
            fail(w, "seq %d came back at %u, it has places up to %u", i, back->seq[i], want);
    }
}

/* The directory that recovery rewrote says the same again. */
static void check_again(struct world *w, bool device_lives) {
    struct store_recovered again;
    uint32_t frontier[64] = { 0 };
    struct store *store = w->next.store;
    for (uint32_t i = 0; i < w->config.max_continuations; i++)
        if (store->conts[i].occupied) frontier[i] = store->conts[i].frontier;
    if (!kvd_start(w, &w->next)) return;
    store_recover(w->next.store, w->next.directory, device_lives, &again);
    uint32_t dropped = 0;
    for (uint32_t p = 0; p < w->n_pools; p++) dropped += again.dropped_pages[p];
    if (again.damaged || again.dropped || again.shortened || dropped) fail(w, "recovered twice: something was dropped");
    for (uint32_t i = 0; i < w->config.max_continuations; i++) {
        const struct cont *cont = &w->next.store->conts[i];
        if ((cont->occupied ? cont->frontier : 0) != frontier[i]) fail(w, "recovered twice: place %u differs", i);
    }
}

/* The run goes on with the next kvd: sequences and transitions are gone, continuations are what came back. */
static void restart(struct world *w, bool device_lives) {
    static struct tier_cont old[CONTS];
    struct kvd last = w->kvd;
    memcpy(old, w->cont, sizeof old);
    w->kvd = w->next;
    w->next = last;
    memset(w->flight, 0, sizeof w->flight);
    w->scrubbing = w->reading = w->fetching = false;
    memset(w->cont, 0, sizeof w->cont);
    for (uint32_t i = 0, n = 0; i < w->config.max_continuations; i++) {
        const struct cont *cont = &w->kvd.store->conts[i];
        const struct tier_cont *m = NULL;
        if (!cont->occupied) continue;
        for (int k = 0; k < CONTS; k++)
            if (old[k].used && old[k].published && (uint32_t)old[k].handle.bits == i && old[k].tag == cont->tag &&
                old[k].retention == cont->retention && cont->frontier <= old[k].frontier)
                m = &old[k];
        const struct tier_seq *s = m ? NULL : old_seq(w, cont);
        w->cont[n++] = (struct tier_cont){ .used = true,
                                           .published = true,
                                           .handle = cont_handle(w->kvd.store, cont),
                                           .tag = cont->tag,
                                           .frontier = cont->frontier,
                                           .retention = cont->retention,
                                           .tail_named = cont->tail_named,
                                           .tail = cont->tail,
                                           .c = m ? m->c : s->c };
    }
    memset(w->seq, 0, sizeof w->seq);
    for (uint32_t p = 0; p < w->n_pools; p++) {
        memset(w->held[p], 1, sizeof w->held[p]);
        if (!device_lives)
            memset(w->device[p], 0x99, (size_t)w->config.pool_pages[p] * KVD_PAGE_TOKENS * sizeof(uint32_t));
    }
    for (uint32_t i = 0; !device_lives && i < w->config.state_slots; i++) w->slots[i] = UINT64_MAX;
    memset(w->held_units, 1, sizeof w->held_units);
    w->restarts++;
    note(w, " restart");
}

void op_recover(struct world *w) {
    struct back back;
    bool device_lives = chance(w, 50);
    note(w, " device %s", device_lives ? "lives" : "gone");
    if (!recover_copy(w, device_lives, &back)) return;
    check_all_back(w, &back, device_lives);
    if (!w->failed) check_again(w, device_lives);
    if (!w->failed && chance(w, 25)) restart(w, device_lives);
}

/* ---- at every write ---- */

static void note_least(struct world *w, const struct back *back) {
    bool full = w->next.store->conts_used == w->config.max_continuations; /* no place for a sequence's record */
    for (int i = 0; i < CONTS; i++) w->least[i] = min_u32(w->least[i], back->cont[i]);
    for (int i = 0; i < SEQS && !full; i++) w->least_seq[i] = min_u32(w->least_seq[i], back->seq[i]);
}

static void at_a_write(void *context, const char *where) {
    struct world *w = context;
    struct back back;
    if (!w->killing || w->failed) return;
    w->dying = true;
    w->killing = false; /* the copy's own writes are no kill points of this one */
    char *line = w->history[w->step % HISTORY];
    size_t length = strlen(line);
    note(w, " (%s)", where);
    w->kills++;
    if (recover_copy(w, w->killing_device, &back)) note_least(w, &back);
    if (!w->failed) line[length] = 0;
    w->killing = true;
    w->dying = false;
}

void kill_begin(struct world *w) {
    for (int i = 0; i < CONTS; i++) {
        const struct cont *cont =
            w->cont[i].used && w->cont[i].published ? cont_find(w->kvd.store, w->cont[i].handle) : NULL;
        w->least[i] = UINT32_MAX;
        w->expected[i] = cont ? expected_frontier(w, w->kvd.store, cont, w->killing_device) : 0;
        w->watched[i] = cont ? w->cont[i].handle.bits : 0;
    }
    for (int i = 0; i < SEQS; i++) {
        w->least_seq[i] = UINT32_MAX;
        w->watched_seq[i] = w->seq[i].used && w->seq[i].active ? w->seq[i].handle.bits : 0;
        w->expected_seq[i] = w->watched_seq[i] ? expected_of_seq(w, w->kvd.store, &w->seq[i], w->killing_device) : 0;
    }
    w->killing = true;
    crash_hook(at_a_write, w);
}

/* What lived through the call was there at every moment, as far as it was before and after. */
static void judge_kills(struct world *w) {
    w->killing = false;
    crash_hook(NULL, NULL);
    for (int i = 0; i < CONTS && !w->failed; i++) {
        if (!w->cont[i].used || !w->watched[i] || w->cont[i].handle.bits != w->watched[i]) continue;
        const struct cont *cont = cont_find(w->kvd.store, w->cont[i].handle);
        uint32_t after = cont ? expected_frontier(w, w->kvd.store, cont, w->killing_device) : 0;
        if (w->least[i] < min_u32(w->expected[i], after))
            fail(w, "killed in this step, cont %d would come back at %u; before it was %u, after it %u", i, w->least[i],
                 w->expected[i], after);
    }
    for (int i = 0; i < SEQS && !w->failed && !w->config.has_state;
         i++) { /* with state an image is none while it is written */
        if (!w->seq[i].used || !w->watched_seq[i] || w->seq[i].handle.bits != w->watched_seq[i]) continue;
        uint32_t after = expected_of_seq(w, w->kvd.store, &w->seq[i], w->killing_device);
        if (w->least_seq[i] < min_u32(w->expected_seq[i], after))
            fail(w, "killed in this step, seq %d would come back at %u; before it was %u, after it %u", i,
                 w->least_seq[i], w->expected_seq[i], after);
    }
}

void kill_end(struct world *w) {
    judge_kills(w);
    w->killing_device = chance(w, 50);
}

void kill_between(struct world *w) {
    if (!w->killing) return;
    judge_kills(w);
    kill_begin(w);
}
