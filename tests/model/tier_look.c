/* SPDX-License-Identifier: Apache-2.0
 *
 * After every step: the audit, what every listed bundle reads back from each of its replicas, and rubbish into all that
 * is free.
 */
#include "tier.h"

#include <string.h>
#include <xxhash.h>

/* ---- bytes ---- */

static bool device_holds(struct world *w, uint32_t p, uint32_t page, uint32_t n, const uint32_t *tokens) {
    return memcmp(device_page(w, p, page), tokens, n * sizeof *tokens) == 0;
}

/* A host replica that nobody rotted is what was copied out, and its checksum says so. */
static bool host_holds(const struct world *w, const struct store *store, uint32_t p, uint32_t d, uint32_t n,
                       const uint32_t *tokens) {
    const struct page *page = &store->pool[p].pages[d];
    uint64_t offset = extent_offset(store->arena, page->host);
    if (offset == UINT64_MAX || w->rotten[offset / UNIT]) return offset != UINT64_MAX;
    return memcmp(w->arena + offset, tokens, n * sizeof *tokens) == 0 &&
           checksum_of(w, offset, store->config.host_stride[p]) == store->pool[p].tier[d].checksum;
}

/* What is wrong with a page, NULL: nothing. */
static const char *page_reads(struct world *w, const struct store *store, uint32_t p, uint32_t d, uint32_t n,
                              const uint32_t *tokens) {
    const struct page *page = &store->pool[p].pages[d];
    bool device = page_on_device(page), host = page_in_host(page, n);
    if (!device && !host && !(page->flags & PAGE_LOST)) return "has no replica (PAGE-7)";
    if (device && !device_holds(w, p, page->device, n, tokens)) return "reads other bytes on the device";
    if (host && !host_holds(w, store, p, d, n, tokens)) return "reads other bytes in the host";
    return NULL;
}

bool reads(struct world *w, const struct store *store, const struct space *spaces, uint32_t frontier,
           const struct content *c, const char *why) {
    for (uint32_t p = 0; p < store->n_pools; p++)
        for (uint32_t b = spaces[p].base; b < pages_of(frontier); b++) {
            uint32_t d = space_entry(store, &spaces[p], b);
            const char *wrong = page_reads(w, store, p, d, columns_of(frontier, b), &c->token[p][b * KVD_PAGE_TOKENS]);
            if (wrong && why)
                fail(w, "%s: pool %u block %u (descriptor %u, device page %d) %s", why, p, b, d,
                     (int)store->pool[p].pages[d].device, wrong);
            if (wrong) return false;
        }
    return true;
}

uint32_t lost_pages(const struct world *w, const struct store *store, const struct cont *cont) {
    uint32_t n = cont->image_lost && !image_in_slot(cont);
    for (uint32_t p = 0; p < w->n_pools; p++)
        for (uint32_t b = cont->space[p].base; b < cont->space[p].count; b++)
            n += (store->pool[p].pages[space_entry(store, &cont->space[p], b)].flags & PAGE_LOST) != 0;
    return n;
}

/* ---- continuations ---- */

static void look_at_image(struct world *w, const struct store *store, const struct cont *cont,
                          const struct content *c) {
    if (!store->config.has_state || (cont->image_lost && !image_in_slot(cont))) return;
    if (image_in_slot(cont) && w->slots[cont->slot] != c->image)
        fail(w, "a state image changed on the device (slot %u)", cont->slot);
    if (!image_in_host(cont)) {
        if (cont->slot == KVD_NONE) fail(w, "a continuation without a state image (CONT-1)");
        return;
    }
    uint64_t offset = extent_offset(store->arena, cont->image), image;
    memcpy(&image, w->arena + offset, sizeof image);
    if (!w->rotten[offset / UNIT] &&
        (image != c->image || checksum_of(w, offset, store->config.host_state_stride) != cont->image_checksum))
        fail(w, "a state image changed in the host");
}

static void look_at_names(struct world *w, const struct store *store, const struct cont *cont,
                          const struct content *c) {
    for (uint32_t b = 0; b < cont->named; b++) {
        uint32_t d = space_entry(store, &cont->space[0], b);
        if (!(store->pool[0].pages[d].flags & PAGE_NAMED) || memcmp(store->digests[d], c->chain[b], 32) != 0)
            fail(w, "page %u of a continuation has another name", b);
    }
}

void shortened_to(struct tier_cont *m, uint32_t frontier) {
    m->frontier = frontier;
    m->tail.n = frontier % KVD_PAGE_TOKENS;
    m->tail_named = true;
}

static void look_at_cont(struct world *w, struct tier_cont *m) {
    const struct store *store = w->kvd.store;
    struct cont *cont = cont_find(store, m->handle);
    if (!cont) {
        if (!m->leaves && !(m->doomed && !m->good)) fail(w, "a continuation is gone that nobody released");
        w->lost += m->doomed && !m->leaves;
        m->used = false;
        return;
    }
    if (m->leaves) fail(w, "a continuation that was released is still there");
    if (m->doomed && m->published && !cont->claimed && !cont->pins && !cont->image_pins) {
        if (!m->good) fail(w, "a continuation with a lost page is still there");
        shortened_to(m, m->good); /* KEEP-2 */
        m->doomed = false;
    }
    if (!m->published || m->doomed || w->failed) return;
    if (cont->frontier != m->frontier || cont->tag != m->tag || cont->tail_named != m->tail_named)
        fail(w, "a continuation changed");
    if (store->domains.list[cont->domain].root.digest.bytes[0] != m->c.domain)
        fail(w, "a continuation is of another domain (NAME-1)");
    if (cont->tail_named &&
        (cont->tail.n != m->tail.n || memcmp(cont->tail.tokens, m->tail.tokens, m->tail.n * sizeof m->tail.tokens[0])))
        fail(w, "the tail of a continuation changed");
    if (lost_pages(w, store, cont)) fail(w, "a continuation lost a page that was not damaged");
    reads(w, store, cont->space, m->frontier, &m->c, "continuation");
    look_at_names(w, store, cont, &m->c);
    look_at_image(w, store, cont, &m->c);
}

/* LIVE-1: it reads what its sequence has written, and carries the sequence's names. */
static void look_at_live(struct world *w, const struct kvd_continuation_info *info) {
    store_cont handle = store_cont_of(info->continuation);
    int k = find_live(w, handle);
    if (k < 0) {
        fail(w, "what is found of a running sequence is nobody's");
        return;
    }
    const struct cont *cont = cont_find(w->kvd.store, handle);
    const struct tier_seq *m = &w->seq[k];
    for (uint32_t p = 0; p < w->n_pools; p++)
        if (info->frontier > m->committed[p] || info->frontier % KVD_PAGE_TOKENS)
            fail(w, "%u tokens are found of a running sequence that has %u", info->frontier, m->committed[p]);
    if (w->failed) return;
    reads(w, w->kvd.store, cont->space, info->frontier, &m->c, "running sequence");
    look_at_names(w, w->kvd.store, cont, &m->c);
}

/* As a reader that begins: where the changes stand, and then the list. */
static void know_list(struct world *w) {
    struct kvd_continuation_info info;
    uint32_t cursor = 0;
    memset(w->known, 0, sizeof w->known);
    w->known_restarts = w->restarts + 1;
    w->known_until = store_changes_end(w->kvd.store);
    while (store_next_cont(w->kvd.store, &cursor, &info)) w->known[(uint32_t)info.continuation.bits] = info;
}

/* FEED-1: who follows the changes, in steps of any length, knows what the list shows. */
static void follow_changes(struct world *w) {
    struct kvd_continuation_info info;
    if (w->known_restarts != w->restarts + 1) know_list(w);
    if (w->known_until < store_changes_begin(w->kvd.store)) fail(w, "FEED-1: changes of a few steps are not kept");
    while (store_next_change(w->kvd.store, &w->known_until, store_changes_end(w->kvd.store), &info)) {
        struct kvd_continuation_info *known = &w->known[(uint32_t)info.continuation.bits];
        if (info.frontier) *known = info;
        else if (known->continuation.bits == info.continuation.bits) known->frontier = 0;
    }
}

static bool is_known(const struct world *w, const struct kvd_continuation_info *info) {
    const struct kvd_continuation_info *known = &w->known[(uint32_t)info->continuation.bits];
    return known->continuation.bits == info->continuation.bits && known->frontier == info->frontier &&
           known->named_pages == info->named_pages && known->retention == info->retention &&
           known->demoted == info->demoted && known->live == info->live && known->created == info->created &&
           known->used == info->used && memcmp(&known->root, &info->root, sizeof info->root) == 0;
}

static void look_at_known(struct world *w) {
    struct kvd_continuation_info info;
    uint32_t cursor = 0, listed = 0, known = 0;
    if (w->step % 3) return;
    follow_changes(w);
    for (uint32_t i = 0; i < w->config.max_continuations; i++) known += w->known[i].frontier > 0;
    for (; !w->failed && store_next_cont(w->kvd.store, &cursor, &info); listed++)
        if (!is_known(w, &info)) fail(w, "FEED-1: continuation %u is not as its changes told", cursor - 1);
    if (listed != known) fail(w, "FEED-1: %u continuations are listed, and the changes told of %u", listed, known);
}

static void look_at_list(struct world *w) {
    struct kvd_continuation_info info;
    uint32_t cursor = 0;
    while (!w->failed && store_next_cont(w->kvd.store, &cursor, &info)) {
        if (info.live) {
            look_at_live(w, &info);
            continue;
        }
        int i = find_cont(w, store_cont_of(info.continuation));
        if (i < 0 || !w->cont[i].published) fail(w, "a continuation is listed that is not there (CONT-1)");
    }
}

/* ---- sequences ---- */

/* ACTIVATING: what its rows name already has its bytes (PAGE-7). */
static void look_at_rows(struct world *w, const struct tier_seq *m, const struct seq *seq) {
    for (uint32_t p = 0; p < w->n_pools; p++)
        for (uint32_t b = 0; b < pages_of(m->committed[p]); b++) {
            int32_t page = store_table_row(w->kvd.store, p, seq->row[p])[b];
            if (page != -1 && !device_holds(w, p, (uint32_t)page, columns_of(m->committed[p], b),
                                            &m->c.token[p][b * KVD_PAGE_TOKENS]))
                fail(w, "pool %u block %u: a row names page %d before its bytes are there", p, b, page);
        }
}

static void look_at_seq(struct world *w, const struct tier_seq *m) {
    const struct store *store = w->kvd.store;
    const struct seq *seq = seq_find(store, m->handle);
    if (!seq) fail(w, "a sequence is gone that nobody ended");
    if (seq && !m->active) look_at_rows(w, m, seq);
    if (!seq || !m->active) return;
    for (uint32_t p = 0; p < w->n_pools && !w->failed; p++) {
        const int32_t *row = store_table_row(store, p, seq->row[p]);
        if (seq->space[p].committed != m->committed[p]) fail(w, "pool %u: a frontier changed", p);
        for (uint32_t b = 0; b < seq->space[p].base; b++)
            if (row[b] != -1) fail(w, "pool %u block %u: page %d behind the window is in a row (GRP-2)", p, b, row[b]);
        for (uint32_t b = seq->space[p].base; b < seq->space[p].count; b++) {
            const struct page *page = &store->pool[p].pages[space_entry(store, &seq->space[p], b)];
            if (!page_on_device(page) || row[b] != (int32_t)page->device)
                fail(w, "pool %u block %u: an active page is at %d, its row says %d", p, b, (int)page->device, row[b]);
            uint32_t n = columns_of(m->written[p], b);
            if (!w->failed && !device_holds(w, p, page->device, n, &m->c.token[p][b * KVD_PAGE_TOKENS]))
                fail(w, "pool %u block %u (page %u): a sequence reads other bytes", p, b, page->device);
        }
    }
    if (m->source_slot != KVD_NONE && w->slots[m->source_slot] != m->c.image)
        fail(w, "the source's state image went before the first commit");
    if (m->source_slot == KVD_NONE && m->state_frontier != KVD_NONE && w->slots[seq->state_slot] != m->c.image)
        fail(w, "the state image of a sequence changed");
}

/* ---- scribbling ---- */

static void scribble_device(struct world *w, uint32_t p) {
    const struct pool *pool = &w->kvd.store->pool[p];
    for (uint32_t i = 0; i < pool->capacity; i++) {
        bool held = !pool_is_free(pool, i);
        if (w->held[p][i] && !held)
            memset(device_page(w, p, i), (int)(0x80 | (w->step & 0x7f)), KVD_PAGE_TOKENS * sizeof(uint32_t));
        w->held[p][i] = held;
    }
}

static void scribble_arena(struct world *w) {
    const struct store *store = w->kvd.store;
    uint8_t held[UNITS] = { 0 };
    uint32_t cursor = 0;
    struct extent_info extent;
    if (!store->arena) return;
    while (extent_next(store->arena, &cursor, &extent)) memset(held + extent.offset / UNIT, 1, extent.stride / UNIT);
    for (uint32_t i = 0; i < w->config.host_bytes / UNIT; i++) {
        if (held[i]) continue;
        if (w->held_units[i]) memset(w->arena + (size_t)i * UNIT, (int)(0x80 | (w->step & 0x7f)), UNIT);
        w->rotten[i] = false;
    }
    memcpy(w->held_units, held, sizeof held);
}

static void scribble(struct world *w) {
    const struct store *store = w->kvd.store;
    for (uint32_t p = 0; p < w->n_pools; p++) scribble_device(w, p);
    scribble_arena(w);
    for (uint32_t i = 0; w->config.has_state && i < w->config.state_slots; i++)
        if (!store->slots[i].used && !store->slots[i].pins) w->slots[i] = UINT64_MAX - w->step;
}

/* Half of the time whole, half of the time a step of one that runs while the store changes: it may leave out what
 * changed, and never accuses. A store that was recovered meanwhile has none in work. */
static void audit_now(struct world *w) {
    char text[1024] = "";
    struct store_audited audited = { 0 };
    bool more = false;
    if (w->step % 256 < 128) audited.violations = store_audit(w->kvd.store, text, sizeof text);
    else if (w->step % 256 == 128) store_audit_begin(w->kvd.store, w->audit_text, sizeof w->audit_text);
    else more = store_audit_step(w->kvd.store, 64, &audited);
    if (more || audited.violations == 0) return;
    fail(w, "audit: %s", w->step % 256 < 128 ? text : w->audit_text);
}

void look(struct world *w) {
    scribble(w);
    audit_now(w);
    for (int i = 0; i < CONTS && !w->failed; i++)
        if (w->cont[i].used) look_at_cont(w, &w->cont[i]);
    for (int i = 0; i < SEQS && !w->failed; i++)
        if (w->seq[i].used) look_at_seq(w, &w->seq[i]);
    if (!w->failed) look_at_list(w);
    if (!w->failed) look_at_known(w);
}
