/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages that are lent to an engine which manages its own blocks (ENG-1 to ENG-4).
 *
 * A sequence that lends holds its pages in no order, each by one active reference, so that they stay on the device
 * whatever becomes of the continuations that hold them, too. Naming makes such a continuation: that is how others find
 * a page, how it is demoted, recorded and recovered, and why it stays when the sequence ends. A lent page is blank (no
 * column is committed, nobody else holds it), complete, or written up to a column: the last page of one continuation,
 * which has the tokens of these columns for its tail.
 */
#include "store_internal.h"

#include <string.h>

static int find_lending(const struct store *store, store_seq handle, uint64_t lease, struct seq **ret_seq,
                        struct store_refusal *refusal) {
    int rc = seq_drive(store, handle, lease, ret_seq, refusal);
    if (rc == STORE_OK && !(*ret_seq)->lends)
        rc = store_refuse(refusal, STORE_E_STATE, STORE_S_LENT, KVD_NONE, handle.bits, 0, 0);
    return rc;
}

/* ---- lend, and adopt what is complete (ENG-2, ENG-3) ---- */

/* Nobody runs on it, no activation counts on its going, and an engine may read it. */
static bool is_adoptable(const struct page *page) {
    return page_on_device(page) && (page->flags & PAGE_NAMED) && !page->lent && !page->active_references &&
           !(page->flags & (PAGE_LOST | PAGE_LEAVING));
}

/* Marks at most `most` pages of chains that begin on the device, each behind the one before it, and returns how many.
 * seq: they are lent to it, too. */
static uint32_t adopt_chain(struct store *store, const struct cont *cont, uint32_t stamp, uint32_t most,
                            struct seq *seq) {
    struct pool *pool = &store->pool[0];
    uint32_t n, adopted = 0;
    for (uint32_t i = 0; i < cont->named; i += n) {
        const uint32_t *run = space_run(store, &cont->space[0], i, &n);
        n = min_u32(n, cont->named - i);
        for (uint32_t k = 0; k < n; k++) {
            struct page *page = &pool->pages[run[k]];
            if (page->stamp == stamp) continue;
            if (adopted == most || !is_adoptable(page)) return adopted;
            page->stamp = stamp;
            adopted++;
            if (!seq) continue;
            row_entries(store, 0, seq->row[0])[seq->space[0].count] = (int32_t)page->device;
            page_ref(pool, run[k], true);
            page_lend(pool, run[k], true);
            page->mark = seq->space[0].count;
            space_append(store, &seq->space[0], &run[k], 1);
        }
    }
    return adopted;
}

static uint32_t adopt_all(struct store *store, uint32_t most, struct seq *seq) {
    uint32_t stamp = store_next_stamp(store), adopted = 0;
    for (uint32_t i = 0; i < store->config.max_continuations && adopted < most; i++) {
        const struct cont *cont = &store->conts[i];
        if (cont->occupied && cont->published && !cont->owned && !cont->claimed)
            adopted += adopt_chain(store, cont, stamp, most - adopted, seq);
    }
    return adopted;
}

int store_lend(struct store *store, store_seq handle, uint64_t lease, bool adopt, struct store_lent *ret_lent,
               struct store_refusal *refusal) {
    struct seq *seq = NULL;
    int rc = seq_drive(store, handle, lease, &seq, refusal);
    if (rc) return rc;
    struct space *space = &seq->space[0];
    if (store->n_pools > 1 || store->config.has_state)
        return store_refuse(refusal, STORE_E_INCOMPLETE, STORE_S_LENT, KVD_NONE, 1, store->n_pools, 0);
    if (seq->lends || space->committed || seq->from != KVD_NONE)
        return store_refuse(refusal, STORE_E_STATE, STORE_S_LENT, KVD_NONE, handle.bits, 1, space->committed);
    uint32_t entitled = space_entitlement(space);
    uint32_t adopted = adopt ? adopt_all(store, store->row_entries - entitled, NULL) : 0;
    uint32_t chunks = chunks_for(entitled + adopted) - chunks_for(entitled);
    if (chunks > chunks_available(&store->chunks) || (adopted && !store_try(store)))
        return chunks_refuse(store, STORE_E_SHORT, chunks, chunks_available(&store->chunks), refusal);
    if (space->reserved) space_map(store, 0, space, space->reserved, row_entries(store, 0, seq->row[0]));
    seq->lends = true;
    for (uint32_t i = 0; i < space->count; i++) {
        uint32_t d = space_entry(store, space, i);
        page_lend(&store->pool[0], d, true);
        store->pool[0].pages[d].mark = i;
    }
    if (adopted) adopt_all(store, adopted, seq);
    store_changed(store, true);
    memset(ret_lent, 0, sizeof *ret_lent);
    ret_lent->adopted = adopted;
    seq_view(store, seq, 0, space->count, &ret_lent->pool[0]);
    return STORE_OK;
}

/* ---- names (ENG-1) ---- */

/* The page of the pool's first plane that this sequence lends; NULL: it is not one of its own. */
static struct page *lent_page(const struct store *store, const struct seq *seq, uint32_t id) {
    const struct pool *pool = &store->pool[0];
    uint32_t d = id < pool->capacity ? pool->leases[id].owner : KVD_NONE;
    if (d == KVD_NONE || !pool->pages[d].lent || pool->pages[d].device != id) return NULL;
    const int32_t *row = row_entries(store, 0, seq->row[0]);
    uint32_t at = pool->pages[d].mark; /* a hint: where it stood last */
    if (at >= seq->space[0].count || row[at] != (int32_t)id)
        for (at = 0; at < seq->space[0].count && row[at] != (int32_t)id;) at++;
    if (at == seq->space[0].count) return NULL;
    pool->pages[d].mark = at;
    return &pool->pages[d];
}

/* Each is a lent page, and stands there once. STORE_S_PAGES: which one is not. written: the first one may be so. */
static int check_ids(const struct store *store, const struct seq *seq, const struct kvd_lent_page *pages, uint32_t n,
                     bool blank, bool written, struct store_refusal *refusal) {
    uint32_t stamp = store_next_stamp(store);
    for (uint32_t i = 0; i < n; i++) {
        struct page *page = lent_page(store, seq, pages[i].page);
        if (!page || page->stamp == stamp)
            return store_refuse(refusal, STORE_E_ARGUMENT, STORE_S_LENT, 0, pages[i].page, page != NULL, i);
        if (blank && page->committed && !(written && i == 0) && !MUTANT(complete_page_is_named_again))
            return store_refuse(refusal, STORE_E_NAME, STORE_S_LENT, 0, pages[i].page, page->committed, 0);
        page->stamp = stamp;
    }
    return STORE_OK;
}

static uint32_t tail_of(const struct store_lent_name *want) { return want->tail ? want->tail->n : 0; }
static uint32_t full_of(const struct store_lent_name *want) { return want->n - (tail_of(want) > 0); }

/* The continuation whose first pages the new one shares; none: the domain begins. */
static int find_chain(const struct store *store, const struct store_lent_name *want, struct cont **ret_from,
                      struct store_refusal *refusal) {
    struct cont *from = want->from.bits ? cont_find(store, want->from) : NULL;
    uint32_t pages = from ? from->named : 0;
    *ret_from = from;
    if (want->from.bits && !from)
        return store_refuse(refusal, STORE_E_STALE, STORE_S_CONTINUATION, KVD_NONE, want->from.bits, 0, 0);
    if (want->first > pages || want->n == 0 || want->n > store->row_entries - want->first ||
        (uint64_t)(want->first + full_of(want)) * KVD_PAGE_TOKENS + tail_of(want) > store->config.max_context)
        return store_refuse(refusal, STORE_E_RANGE, STORE_S_DIGEST, 0, (uint64_t)want->first + want->n, pages,
                            store->config.max_context / KVD_PAGE_TOKENS);
    if (!from) return STORE_OK;
    int rc = cont_check_live(store, from, refusal);
    if (rc) return rc;
    if (!from->published || from->claimed)
        return store_refuse(refusal, STORE_E_BUSY, STORE_S_CONTINUATION, KVD_NONE, 0, from->pins, 0);
    if (tier_any(store, 0, &from->space[0], want->first, PAGE_LOST))
        return store_refuse(refusal, STORE_E_DAMAGED, STORE_S_CONTINUATION, 0, want->from.bits, 0, 0);
    if (tier_any(store, 0, &from->space[0], want->first, PAGE_LEAVING))
        return store_refuse(refusal, STORE_E_REVISION, STORE_S_REPLICA, 0, 0, store->revision, 0);
    return STORE_OK;
}

static bool goes_on_in_place(const struct store *store, const struct seq *seq, const struct store_lent_name *want,
                             const struct cont *from) {
    if (!from || from->frontier / KVD_PAGE_TOKENS != want->first || from->frontier % KVD_PAGE_TOKENS == 0) return false;
    return lent_page(store, seq, want->pages[0].page) ==
           &store->pool[0].pages[space_entry(store, &from->space[0], want->first)];
}

/* The page that `from` ends in gets more columns: the ones that it has stay, and nothing may count on its end there. */
static int check_grows(const struct store *store, const struct store_lent_name *want, const struct cont *from,
                       struct store_refusal *refusal) {
    const struct page *page = &store->pool[0].pages[space_entry(store, &from->space[0], want->first)];
    bool longer = full_of(want) || tail_of(want) > page->committed;
    if (longer && !full_of(want) && !MUTANT(written_columns_change))
        longer = !memcmp(want->tail->tokens, from->tail.tokens, page->committed * sizeof from->tail.tokens[0]);
    if (!longer || !from->tail_named)
        return store_refuse(refusal, STORE_E_NAME, STORE_S_LENT, 0, want->pages[0].page, page->committed, 0);
    if ((from->pins || from->moves || page->pins) && !MUTANT(page_grows_under_a_copy))
        return store_refuse(refusal, STORE_E_BUSY, STORE_S_LENT, 0, want->pages[0].page, page->pins, 0);
    return STORE_OK;
}

static int check_room(struct store *store, uint32_t pages, struct store_refusal *refusal) {
    if (conts_free(store) < 1 || !store_try(store))
        return store_refuse(refusal, STORE_E_SHORT, STORE_S_CONTINUATION, KVD_NONE, 1, conts_free(store),
                            store->config.max_continuations);
    if (chunks_for(pages) > chunks_available(&store->chunks) || !store_try(store))
        return chunks_refuse(store, STORE_E_SHORT, chunks_for(pages), chunks_available(&store->chunks), refusal);
    return STORE_OK;
}

/* columns < 64: of a tail, and no digest names them. */
static void name_page(struct store *store, struct cont *cont, uint32_t id, const uint8_t digest[32], uint32_t columns) {
    struct pool *pool = &store->pool[0];
    uint32_t d = pool->leases[id].owner;
    if (pool->tier) pool->tier[d].block = cont->space[0].count;
    if (pool->pages[d].committed) page_write_on(store, 0, d);
    page_ref(pool, d, false);
    page_commit(store, 0, d, columns);
    if (columns == KVD_PAGE_TOKENS) {
        pool->pages[d].flags |= PAGE_NAMED;
        memcpy(store->digests[d], digest, 32);
        record_page_name(store, d);
    }
    space_append(store, &cont->space[0], &d, 1);
}

static struct cont *compose(struct store *store, const struct seq *seq, const struct store_lent_name *want,
                            const struct cont *from) {
    struct cont *cont = cont_take(store);
    uint32_t n;
    cont->domain = from ? domain_hold(store, from->domain) : domain_take(store, &want->root);
    for (uint32_t i = 0; i < want->first; i += n) {
        const uint32_t *run = space_run(store, &from->space[0], i, &n);
        n = min_u32(n, want->first - i);
        for (uint32_t k = 0; k < n; k++) page_ref(&store->pool[0], run[k], false);
        space_append(store, &cont->space[0], run, n);
    }
    for (uint32_t i = 0; i < want->n; i++)
        name_page(store, cont, want->pages[i].page, want->pages[i].digest.bytes,
                  i < full_of(want) ? KVD_PAGE_TOKENS : tail_of(want));
    cont->named = want->first + full_of(want);
    cont->space[0].committed = cont->frontier = cont->named * KVD_PAGE_TOKENS + tail_of(want);
    if (tail_of(want)) cont->tail = *want->tail;
    cont->retention = want->retention;
    cont->tail_named = true;
    cont->tag = seq->tag;
    return cont;
}

/* What an equal one stands for has no name of its own: the bytes are the engine's, as they were. */
static void blank_pages(struct store *store, const struct kvd_lent_page *pages, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) page_commit(store, 0, store->pool[0].leases[pages[i].page].owner, 0);
}

int store_name_lent(struct store *store, store_seq handle, uint64_t lease, const struct store_lent_name *want,
                    struct store_lent_named *ret_named, struct store_refusal *refusal) {
    struct seq *seq = NULL;
    struct cont *from = NULL, *gone = NULL;
    int rc = find_lending(store, handle, lease, &seq, refusal);
    if (rc == STORE_OK) rc = find_chain(store, want, &from, refusal);
    bool grows = rc == STORE_OK && goes_on_in_place(store, seq, want, from);
    if (rc == STORE_OK) rc = check_ids(store, seq, want->pages, want->n, true, grows, refusal);
    if (grows && rc == STORE_OK) rc = check_grows(store, want, from, refusal);
    if (rc == STORE_OK) rc = check_room(store, want->first + want->n, refusal);
    if (rc) return rc;
    bool replaces = want->replace && from && want->first * KVD_PAGE_TOKENS == from->frontier && !from->moves;
    struct cont *made = compose(store, seq, want, from), *cont = cont_publish_or_merge(store, made);
    /* Of two that end in one page, the earlier one goes: its record after the other one's, so that a kill finds one. */
    if ((replaces || (grows && !MUTANT(written_page_is_shared))) && from != cont &&
        cont_find_unclaimed(store, want->from, &gone, NULL) == STORE_OK)
        cont_release(store, gone, STORE_MOVED);
    uint32_t d = store->pool[0].leases[want->pages[0].page].owner;
    *ret_named =
        (struct store_lent_named){ .cont = cont_handle(store, cont), .stood = store->pool[0].pages[d].references == 1 };
    if (ret_named->stood && !MUTANT(page_without_a_chain_keeps_its_name)) blank_pages(store, want->pages, want->n);
    store_changed(store, true);
    return STORE_OK;
}

/* ---- back (ENG-4) ---- */

/* Its bytes may be overwritten, or its place be anybody's: nobody else needs them on the device. */
static int check_leaves(const struct store *store, const struct kvd_lent_page *pages, uint32_t n,
                        struct store_refusal *refusal) {
    const struct pool *pool = &store->pool[0];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t d = pool->leases[pages[i].page].owner;
        const struct page *page = &pool->pages[d];
        uint32_t demoted = pool->tier ? pool->tier[d].demoted : 0;
        if (page->pins || page->active_references > 1)
            return store_refuse(refusal, STORE_E_BUSY, STORE_S_LENT, 0, pages[i].page, page->pins, 0);
        if (page->references != 1 + demoted && !MUTANT(needed_page_is_overwritten))
            return store_refuse(refusal, STORE_E_STATE, STORE_S_REPLICA, 0, pages[i].page,
                                page->references - 1 - demoted, 0);
    }
    return STORE_OK;
}

/* Its content goes where else it is, and a blank page is in its place, under the same id. */
static uint32_t open_again(struct store *store, uint32_t id) {
    struct pool *pool = &store->pool[0];
    struct pool_batch batch = { pool, 0, 0 };
    uint32_t d = pool->leases[id].owner;
    page_lend(pool, d, false);
    page_unref(store, &batch, d, true);
    pool_flush(&batch);
    pool_take(pool, id, 1);
    d = page_open(store, 0, id, 0, true);
    page_lend(pool, d, true);
    return d;
}

static void write_entry(const struct store *store, const struct space *space, uint32_t at, uint32_t entry) {
    uint32_t n;
    *space_run(store, space, at, &n) = entry;
}

static void give_back(struct store *store, struct seq *seq, uint32_t id, uint32_t at) {
    struct pool *pool = &store->pool[0];
    struct pool_batch batch = { pool, 0, 0 };
    struct space *space = &seq->space[0];
    int32_t *row = row_entries(store, 0, seq->row[0]);
    uint32_t d = pool->leases[id].owner, last = space->count - 1, moved = space_entry(store, space, last);
    write_entry(store, space, at, moved);
    row[at] = row[last];
    row[last] = -1;
    if (moved != d) pool->pages[moved].mark = at;
    space_cut(store, space, last);
    page_lend(pool, d, false);
    page_unref(store, &batch, d, true);
    pool_flush(&batch);
}

int store_return_lent(struct store *store, store_seq handle, uint64_t lease, const struct kvd_lent_page *pages,
                      uint32_t n, bool again, struct kvd_pool_view *ret_view, struct store_refusal *refusal) {
    struct seq *seq = NULL;
    int rc = find_lending(store, handle, lease, &seq, refusal);
    if (rc == STORE_OK) rc = check_ids(store, seq, pages, n, false, false, refusal);
    if (rc == STORE_OK && again) rc = check_leaves(store, pages, n, refusal);
    if (rc) return rc;
    uint32_t before = seq->space[0].count;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = lent_page(store, seq, pages[i].page)->mark;
        if (again) {
            uint32_t d = open_again(store, pages[i].page);
            store->pool[0].pages[d].mark = at;
            write_entry(store, &seq->space[0], at, d);
        } else give_back(store, seq, pages[i].page, at);
    }
    store_changed(store, n > 0);
    seq_view(store, seq, 0, again ? 0 : before, ret_view);
    return STORE_OK;
}

/* ---- the list that the next engine goes by (ENG-3) ---- */

int store_read_chain(const struct store *store, store_cont handle, uint32_t first, uint32_t max,
                     struct kvd_lent_page *ret_pages, uint32_t *ret_n, struct store_refusal *refusal) {
    const struct cont *cont = cont_find(store, handle);
    if (!cont || !cont->published)
        return store_refuse(refusal, STORE_E_STALE, STORE_S_CONTINUATION, KVD_NONE, handle.bits, 0, 0);
    uint32_t n = first < cont->named ? min_u32(max, cont->named - first) : 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct page *page = &store->pool[0].pages[space_entry(store, &cont->space[0], first + i)];
        ret_pages[i].page = page_on_device(page) ? page->device : KVD_NONE;
        memcpy(ret_pages[i].digest.bytes, index_digest(store, cont, first + i + 1), 32);
    }
    *ret_n = n;
    return STORE_OK;
}
