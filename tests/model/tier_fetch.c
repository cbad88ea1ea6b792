/* SPDX-License-Identifier: Apache-2.0
 *
 * What comes from a third tier: a continuation that is made of names and of bytes from elsewhere (COLD-3). Its pieces
 * are written in the order in which they are listed, some steps apart; then it is published as far as they go, or given
 * up.
 */
#include "tier.h"

#include "kvt.h"

#include <string.h>

/* ---- begin ---- */

struct attempt {
    struct store_fetch want;
    store_cont got;
};

static int attempt_fetch(struct world *w, void *context, struct store_refusal *refusal) {
    struct attempt *a = context;
    return store_fetch_begin(w->kvd.store, &a->want, &a->got, refusal);
}

/* Somebody's text up to a page that has a name there, and from there on the same, or another one. */
static uint32_t compose(struct world *w, int from, struct content *c, bool *ret_same) {
    const struct cont *cont = from >= 0 ? cont_find(w->kvd.store, w->cont[from].handle) : NULL;
    uint32_t first = cont ? below(w, cont->named + 1) : 0;
    *ret_same = cont && chance(w, 40);
    if (from >= 0) *c = w->cont[from].c;
    else c->domain = (uint8_t)below(w, 3);
    if (*ret_same) return first;
    for (uint32_t p = 0; p < w->n_pools; p++)
        for (uint32_t t = first * KVD_PAGE_TOKENS; t < w->blocks * KVD_PAGE_TOKENS; t++)
            c->token[p][t] = (uint32_t)kvt_random(&w->random);
    chain_fill(w, c, first);
    c->image = kvt_random(&w->random);
    return first;
}

/* Bytes that it must take. */
static uint64_t bytes_of(const struct world *w, uint32_t first, uint32_t frontier) {
    uint64_t bytes = w->config.has_state ? w->config.host_state_stride : 0;
    for (uint32_t p = 0; p < w->n_pools; p++)
        for (uint32_t b = first; b < pages_of(frontier); b++)
            if (b >= store_first_block(w->kvd.store, p, frontier)) bytes += w->config.host_stride[p];
    return bytes;
}

static uint64_t occupied(const struct world *w) {
    struct kvd_stats stats;
    store_get_stats(w->kvd.store, &stats);
    return stats.host_occupied;
}

static void begin_fetch(struct world *w) {
    static struct tier_cont new;
    static struct content c;
    bool same, shares;
    int from = any_cont(w, true);
    memset(&new, 0, sizeof new);
    memset(&c, 0, sizeof c);
    uint32_t first = compose(w, from, &c, &same), last = w->blocks < first + 3 ? w->blocks : first + 3;
    shares = first && (!same || chance(w, 50));
    /* What is the same is asked for as far as it has names there; perhaps all of it is there already (FIT-5). */
    uint32_t frontier = same && chance(w, 60) && w->cont[from].tail_named ? w->cont[from].frontier
                        : same                                            ? first * KVD_PAGE_TOKENS
                               : between(w, first * KVD_PAGE_TOKENS + 1, last * KVD_PAGE_TOKENS);
    if (!shares) first = 0;
    if (frontier <= first * KVD_PAGE_TOKENS || frontier > w->config.max_context) return;
    new = (struct tier_cont){ .used = true, .frontier = frontier, .retention = 4, .tail_named = true, .c = c };
    new.tag = same &&chance(w, 70) ? w->cont[from].tag : ++w->tags;
    new.tail = tail_of(w, &c, frontier);
    struct attempt a = { .want = { .first = first,
                                   .n = frontier / KVD_PAGE_TOKENS - first,
                                   .digests = (const uint8_t(*)[32])c.chain + first,
                                   .tail = &new.tail,
                                   .retention = 4,
                                   .tag = new.tag } };
    a.want.root.digest.bytes[0] = c.domain;
    if (shares) a.want.from = w->cont[from].handle;
    uint64_t before = occupied(w);
    struct store_refusal refusal = { 0 };
    int code = chance(w, 20) ? sweep(w, attempt_fetch, &a, &refusal) : attempt_fetch(w, &a, &refusal);
    note(w, " from cont %d, %u pages shared, to %u = %d", from, first, frontier, code);
    w->refused += code != STORE_OK;
    if (code == STORE_E_ARGUMENT || code == STORE_E_NAME || code == STORE_E_STALE) fail(w, "fetch: %d", code);
    if (code != STORE_OK) return;
    if (occupied(w) != before + bytes_of(w, first, frontier)) fail(w, "the arena grew by another number of bytes");
    new.handle = a.got;
    w->fetched = free_cont(w);
    w->cont[w->fetched] = new;
    w->fetching = true;
    w->fetch_cursor = 0;
    w->fetch_written = 0;
    w->applied++;
}

/* ---- bytes ---- */

static bool write_piece(struct world *w) {
    const struct tier_cont *m = &w->cont[w->fetched];
    struct store_piece piece;
    if (!store_fetch_next(w->kvd.store, m->handle, &w->fetch_cursor, &piece)) return false;
    const struct store_copy *copy = &piece.copy;
    uint32_t block = (uint32_t)((w->fetch_cursor - 1) / w->n_pools);
    memset(w->arena + copy->host, 0x22, copy->bytes);
    if (piece.kind == STORE_PIECE_IMAGE) memcpy(w->arena + copy->host, &m->c.image, sizeof m->c.image);
    else {
        if (copy->pool != (w->fetch_cursor - 1) % w->n_pools || copy->columns != columns_of(m->frontier, block))
            fail(w, "a piece of pool %u with %u columns is not block %u", copy->pool, copy->columns, block);
        memcpy(w->arena + copy->host, &m->c.token[copy->pool][block * KVD_PAGE_TOKENS],
               copy->columns * sizeof(uint32_t));
        if (piece.kind == STORE_PIECE_PAGE && memcmp(piece.digest.bytes, m->c.chain[block], KVD_DIGEST_BYTES) != 0)
            fail(w, "block %u is to come under another name", block);
    }
    for (uint64_t i = 0; i < copy->bytes; i += UNIT) w->rotten[(copy->host + i) / UNIT] = false;
    store_copied_out(w->kvd.store, copy->replica, checksum_of(w, copy->host, copy->bytes));
    w->fetch_written = w->fetch_cursor;
    return true;
}

/* ---- end ---- */

/* Tokens up to which all is there: what was written, in its order, and what is shared and not lost. */
static uint32_t expected_fetch(const struct world *w) {
    const struct store *store = w->kvd.store;
    const struct tier_cont *m = &w->cont[w->fetched];
    const struct cont *cont = cont_find(store, m->handle);
    uint32_t blocks = 0, pages = pages_of(m->frontier);
    for (bool all = true; blocks < pages; blocks++) {
        for (uint32_t p = 0; p < w->n_pools; p++) {
            if (blocks < store_first_block(store, p, m->frontier)) continue;
            const struct page *page = &store->pool[p].pages[space_entry(store, &cont->space[p], blocks)];
            bool comes = page->device == KVD_NONE && page->flags & PAGE_BACKING;
            all &= !(page->flags & PAGE_LOST);
            all &= !comes || (uint64_t)blocks * w->n_pools + p < w->fetch_written;
        }
        if (!all) break;
    }
    uint32_t frontier = blocks < pages ? blocks * KVD_PAGE_TOKENS : m->frontier;
    if (w->config.has_state && w->fetch_written <= (uint64_t)pages * w->n_pools) return 0; /* its image is the last */
    if (w->config.has_state && frontier < m->frontier) return 0;
    for (uint32_t p = 0; p < w->n_pools; p++)
        if (store_first_block(store, p, frontier) < store_first_block(store, p, m->frontier)) return 0;
    return frontier;
}

static void check_equal(struct world *w, store_cont got, const struct tier_cont *m) {
    int c = find_cont(w, got);
    const struct tier_cont *old = c >= 0 ? &w->cont[c] : NULL;
    if (!old || !old->published || old->tag != m->tag || old->frontier != m->frontier || old->tail.n != m->tail.n ||
        old->c.domain != m->c.domain || memcmp(old->c.chain, m->c.chain, m->frontier / KVD_PAGE_TOKENS * 32) != 0 ||
        memcmp(old->tail.tokens, m->tail.tokens, m->tail.n * sizeof m->tail.tokens[0]) != 0)
        fail(w, "cont %d stands for a fetched one that is not equal", c);
    if (old && m->retention > old->retention) {
        const struct cont *cont = cont_find(w->kvd.store, got);
        w->cont[c].retention = cont->retention;
    }
    w->merged++;
}

static void end_fetch(struct world *w) {
    struct tier_cont *m = &w->cont[w->fetched];
    struct store_fetched got = { { 0 }, 0 };
    struct store_refusal refusal = { 0 };
    uint32_t expected = expected_fetch(w);
    bool commits = chance(w, 80);
    m->publishing = commits;
    m->doomed = false;
    if (commits && expected) shortened_to(m, expected);
    int code = commits ? store_fetch_commit(w->kvd.store, m->handle, &got, &refusal)
                       : store_fetch_abort(w->kvd.store, m->handle, &refusal);
    note(w, " %s = %d, %u of %u tokens", commits ? "commit" : "abort", code, got.frontier, m->frontier);
    m->publishing = false;
    w->fetching = false;
    w->applied++;
    if (code || (commits && got.frontier != expected)) {
        fail(w, "a fetch ends with %d at %u tokens, not %u", code, got.frontier, expected);
        return;
    }
    if (got.cont.bits == m->handle.bits) {
        const struct cont *cont = cont_find(w->kvd.store, m->handle);
        if (cont->demoted != tier_all_current(w->kvd.store, cont)) fail(w, "a fetched continuation rests elsewhere");
        m->published = true;
        w->fetches++;
        return;
    }
    if (got.cont.bits) check_equal(w, got.cont, m);
    m->leaves = true;
}

void op_fetch(struct world *w) {
    if (!w->fetching) {
        if (w->kvd.store->arena) begin_fetch(w);
        return;
    }
    for (uint32_t n = below(w, 6); n > 0 && write_piece(w); n--) w->applied++;
    if (chance(w, 50)) end_fetch(w);
}
