/* SPDX-License-Identifier: Apache-2.0
 *
 * What comes from the cold tier: a continuation whose pages get extents first, then bytes, and only then a name in the
 * tree (COLD-3). Until then it is like a checkpoint in flight: its pages and its image are being written, nobody sees
 * them, and they go with it. One at a time.
 */
#include "store_internal.h"

#include <string.h>

/* ---- begin ---- */

struct fetch_needs {
    uint32_t pages, frontier, chunks, n_wants;
    struct extent_page_want wants[KVD_MAX_POOLS + 1];
};

static int check_want(const struct store *store, const struct store_fetch *want, struct fetch_needs *ret_needs,
                      struct store_refusal *refusal) {
    uint32_t n_tail = want->tail ? want->tail->n : 0;
    uint64_t pages = (uint64_t)want->first + want->n, frontier = pages * KVD_PAGE_TOKENS + n_tail;
    if (!store->arena) return store_refuse(refusal, STORE_E_TIER, STORE_S_ARENA, KVD_NONE, 0, 0, 0);
    if (n_tail > KVD_TAIL_TOKENS)
        return store_refuse(refusal, STORE_E_ARGUMENT, STORE_S_TAIL, KVD_NONE, n_tail, 0, KVD_TAIL_TOKENS);
    if (want->n + n_tail == 0 || frontier > store->config.max_context)
        return store_refuse(refusal, STORE_E_RANGE, STORE_S_FRONTIER, KVD_NONE, frontier, 0, store->config.max_context);
    *ret_needs = (struct fetch_needs){ .pages = pages_of(frontier), .frontier = (uint32_t)frontier };
    return STORE_OK;
}

/* The continuation whose first pages it shares; none: its domain begins. */
static int check_from(const struct store *store, const struct store_fetch *want, const struct fetch_needs *needs,
                      struct cont **ret_from, struct store_refusal *refusal) {
    struct cont *from = want->from.bits ? cont_find(store, want->from) : NULL;
    *ret_from = from;
    if (want->from.bits && !from)
        return store_refuse(refusal, STORE_E_STALE, STORE_S_CONTINUATION, KVD_NONE, want->from.bits, 0, 0);
    if (want->first > (from ? from->named : 0))
        return store_refuse(refusal, STORE_E_RANGE, STORE_S_DIGEST, 0, want->first, from ? from->named : 0,
                            store->row_entries);
    if (!from) return STORE_OK;
    int rc = cont_check_live(store, from, refusal);
    if (rc) return rc;
    if (!from->published || from->claimed)
        return store_refuse(refusal, STORE_E_BUSY, STORE_S_CONTINUATION, KVD_NONE, 0, from->pins, 0);
    if (memcmp(store->domains.list[from->domain].root.digest.bytes, want->root.digest.bytes, KVD_DIGEST_BYTES) != 0)
        return store_refuse(refusal, STORE_E_NAME, STORE_S_DOMAIN, KVD_NONE, want->from.bits, 0, 0);
    for (uint32_t p = 0; p < store->n_pools; p++) {
        uint32_t begin = window_first(store, p, needs->frontier);
        if (begin < want->first && begin < from->space[p].base) /* GRP-4 */
            return store_refuse(refusal, STORE_E_RANGE, STORE_S_FRONTIER, p, needs->frontier, from->frontier,
                                from->frontier);
        if (tier_any(store, p, &from->space[p], want->first, PAGE_LOST))
            return store_refuse(refusal, STORE_E_DAMAGED, STORE_S_CONTINUATION, p, want->from.bits, 0, 0);
        if (tier_any(store, p, &from->space[p], want->first, PAGE_LEAVING))
            return store_refuse(refusal, STORE_E_REVISION, STORE_S_REPLICA, p, 0, store->revision, 0);
    }
    return STORE_OK;
}

/* The first block of a pool that comes. */
static uint32_t first_fetched(const struct store *store, const struct store_fetch *want,
                              const struct fetch_needs *needs, uint32_t p) {
    return max_u32(want->first, window_first(store, p, needs->frontier));
}

static uint64_t list_wants(const struct store *store, const struct store_fetch *want, struct fetch_needs *needs) {
    uint64_t pages = 0;
    for (uint32_t p = 0; p < store->n_pools; p++) {
        uint32_t n = needs->pages - first_fetched(store, want, needs, p);
        if (n) needs->wants[needs->n_wants++] = (struct extent_page_want){ store->config.host_stride[p], n, p };
        needs->chunks += chunks_for(needs->pages);
    }
    if (store->config.has_state)
        needs->wants[needs->n_wants++] = (struct extent_page_want){ store->config.host_state_stride, 1, KVD_MAX_POOLS };
    for (uint32_t i = 0; i < needs->n_wants; i++) pages += needs->wants[i].pages;
    return pages;
}

static int check_arena(struct store *store, const struct fetch_needs *needs, uint64_t pages,
                       struct store_refusal *refusal) {
    uint32_t placed[KVD_MAX_POOLS + 1] = { 0 };
    uint64_t needed = 0, fits = 0;
    bool ok = pages <= store->max_extents &&
              extent_pages_fit(store->arena, NULL, 0, needs->wants, needs->n_wants, store->fit_scratch, placed);
    for (uint32_t i = 0; i < needs->n_wants; i++) {
        needed += needs->wants[i].pages * needs->wants[i].stride;
        fits += placed[i] * needs->wants[i].stride;
    }
    if (ok && store_try(store)) return STORE_OK;
    return store_refuse(refusal, STORE_E_SHORT, STORE_S_ARENA, KVD_NONE, needed, fits, store->config.host_bytes);
}

static int check_needs(struct store *store, const struct store_fetch *want, struct fetch_needs *needs,
                       struct store_refusal *refusal) {
    if (store->fetching != KVD_NONE || !store_try(store))
        return store_refuse(refusal, STORE_E_SHORT, STORE_S_MOVE, KVD_NONE, 1, 0, 1);
    if (conts_free(store) < 1 || !store_try(store))
        return store_refuse(refusal, STORE_E_SHORT, STORE_S_CONTINUATION, KVD_NONE, 1, conts_free(store),
                            store->config.max_continuations);
    uint64_t pages = list_wants(store, want, needs);
    if (needs->chunks > chunks_available(&store->chunks) || !store_try(store))
        return chunks_refuse(store, STORE_E_SHORT, needs->chunks, chunks_available(&store->chunks), refusal);
    int rc = check_arena(store, needs, pages, refusal);
    for (uint32_t i = 0; rc == STORE_OK && i < needs->n_wants; i++) {
        uint32_t p = needs->wants[i].tag, n = needs->wants[i].pages;
        if (p == KVD_MAX_POOLS) continue;
        const struct pool *pool = &store->pool[p];
        uint32_t spare = pool->descriptors - pool->occupied - (pool->capacity - pool->allocated);
        if (n > spare || !store_try(store))
            rc = store_refuse(refusal, STORE_E_SHORT, STORE_S_PAGE_DESCRIPTOR, p, n, spare, pool->descriptors);
    }
    return rc;
}

static void share_pages(struct store *store, uint32_t p, const struct cont *from, struct cont *cont, uint32_t first) {
    uint32_t n;
    for (uint32_t i = cont->space[p].base; i < first; i += n) {
        const uint32_t *run = space_run(store, &from->space[p], i, &n);
        n = min_u32(n, first - i);
        for (uint32_t k = 0; k < n; k++) page_ref(&store->pool[p], run[k], false);
        space_append(store, &cont->space[p], run, n);
    }
}

/* Blocks [begin, pages) of a pool get a place, and are written from now on. */
static void open_pages(struct store *store, uint32_t p, struct cont *cont, const struct store_fetch *want,
                       const extent_id *ids) {
    struct pool *pool = &store->pool[p];
    uint32_t begin = cont->space[p].count, pages = pages_of(cont->frontier);
    for (uint32_t i = begin; i < pages; i++) {
        uint32_t columns = columns_of(cont->frontier, i), d = page_open_in_host(store, p, ids[i - begin], i, columns);
        page_ref(pool, d, false);
        if (p == 0 && columns == KVD_PAGE_TOKENS) {
            pool->pages[d].flags |= PAGE_NAMED;
            memcpy(store->digests[d], want->digests[i - want->first], KVD_DIGEST_BYTES);
        }
        job_write(store, &store->fetch_job, p, d);
        space_append(store, &cont->space[p], &d, 1);
    }
}

static struct cont *open_fetched(struct store *store, const struct store_fetch *want, const struct cont *from,
                                 uint32_t frontier) {
    struct cont *cont = cont_take(store);
    cont->frontier = frontier;
    cont->named = frontier / KVD_PAGE_TOKENS;
    cont->retention = want->retention;
    cont->tail_named = true;
    if (frontier % KVD_PAGE_TOKENS) cont->tail = *want->tail;
    cont->tag = want->tag;
    cont->domain = from ? domain_hold(store, from->domain) : domain_take(store, &want->root);
    store->fetching = (uint32_t)(cont - store->conts);
    for (uint32_t p = 0; p < store->n_pools; p++) {
        space_skip(store, &cont->space[p], window_first(store, p, frontier));
        if (from) share_pages(store, p, from, cont, want->first);
        cont->space[p].committed = frontier;
    }
    return cont;
}

int store_fetch_begin(struct store *store, const struct store_fetch *want, store_cont *ret_cont,
                      struct store_refusal *refusal) {
    struct fetch_needs needs;
    struct cont *from = NULL;
    int rc = check_want(store, want, &needs, refusal);
    if (rc == STORE_OK) rc = check_from(store, want, &needs, &from, refusal);
    if (rc == STORE_OK) rc = check_needs(store, want, &needs, refusal);
    if (rc) return rc;
    struct cont *cont = open_fetched(store, want, from, needs.frontier);
    const extent_id *ids = tier_take(store, needs.wants, needs.n_wants);
    for (uint32_t i = 0; i < needs.n_wants; ids += needs.wants[i++].pages) {
        if (needs.wants[i].tag < KVD_MAX_POOLS) {
            open_pages(store, needs.wants[i].tag, cont, want, ids);
            continue;
        }
        cont->image = *ids;
        cont->image_backing = true;
        cont->image_pins = 1;
        store->host_images++;
    }
    store_changed(store, true);
    *ret_cont = cont_handle(store, cont);
    return STORE_OK;
}

/* ---- what is to come ---- */

static struct cont *find_fetched(const struct store *store, store_cont handle) {
    struct cont *cont = store->fetching == KVD_NONE ? NULL : &store->conts[store->fetching];
    return cont && cont_handle(store, cont).bits == handle.bits ? cont : NULL;
}

static bool piece_at(const struct store *store, const struct cont *cont, uint32_t p, uint32_t block,
                     struct store_piece *ret_piece) {
    if (block < cont->space[p].base) return false;
    uint32_t d = space_entry(store, &cont->space[p], block), columns = columns_of(cont->frontier, block);
    bool tail = columns < KVD_PAGE_TOKENS;
    if (store->pool[p].pages[d].device != KVD_NONE || !(store->pool[p].pages[d].flags & PAGE_BACKING)) return false;
    *ret_piece =
        (struct store_piece){ .kind = tail ? STORE_PIECE_TAIL : STORE_PIECE_PAGE, .copy = page_copy(store, p, d) };
    ret_piece->copy.columns = columns;
    if (tail) ret_piece->tail = cont->tail;
    memcpy(ret_piece->digest.bytes, index_digest(store, cont, tail ? block : block + 1), KVD_DIGEST_BYTES);
    return true;
}

bool store_fetch_next(const struct store *store, store_cont handle, uint64_t *cursor, struct store_piece *ret_piece) {
    const struct cont *cont = find_fetched(store, handle);
    uint64_t end = cont ? (uint64_t)pages_of(cont->frontier) * store->n_pools : 0;
    while (*cursor < end) {
        uint64_t at = (*cursor)++;
        if (piece_at(store, cont, (uint32_t)(at % store->n_pools), (uint32_t)(at / store->n_pools), ret_piece))
            return true;
    }
    if (!cont || (*cursor)++ != end || !cont->image_backing) return false;
    *ret_piece = (struct store_piece){ .kind = STORE_PIECE_IMAGE,
                                       .copy = image_copy(store, cont, true, KVD_NONE),
                                       .tail = cont->tail };
    memcpy(ret_piece->digest.bytes, index_digest(store, cont, cont->frontier / KVD_PAGE_TOKENS), KVD_DIGEST_BYTES);
    return true;
}

/* ---- end ---- */

/* What is shared may have been damaged meanwhile. */
static bool has_come(const struct store *store, uint32_t p, uint32_t d) {
    const struct page *page = &store->pool[p].pages[d];
    if (page->flags & PAGE_LOST && !MUTANT(fetched_behind_damage)) return false;
    bool written = page->device == KVD_NONE && page->flags & PAGE_BACKING;
    return !written || store->pool[p].tier[d].checksum || MUTANT(fetched_without_bytes);
}

/* Tokens up to which all has come; 0: nothing of it is of use. */
static uint32_t fetched_frontier(const struct store *store, const struct cont *cont) {
    uint32_t block = 0, pages = pages_of(cont->frontier);
    for (bool all = true; block < pages; block++) {
        for (uint32_t p = 0; p < store->n_pools; p++)
            if (block >= cont->space[p].base) all &= has_come(store, p, space_entry(store, &cont->space[p], block));
        if (!all) break;
    }
    uint32_t frontier = block < pages ? block * KVD_PAGE_TOKENS : cont->frontier;
    if (store->config.has_state && (frontier != cont->frontier || !cont->image_checksum)) return 0; /* CONT-4 */
    return windows_hold(store, cont->space, frontier) || MUTANT(fetched_behind_a_window) ? frontier : 0;
}

/* Its writing is over: what has a checksum has a replica. */
static void end_writing(struct store *store, struct cont *cont, bool ok) {
    job_finish(store, &store->fetch_job, ok);
    if (store->config.has_state) {
        cont->image_backing = false;
        cont->image_pins = 0;
    }
    cont_touch(store, cont);
    store->fetching = KVD_NONE;
    store_changed(store, true);
}

static void cut_fetched(struct store *store, struct cont *cont, uint32_t frontier) {
    if (frontier == cont->frontier) return;
    for (uint32_t p = 0; p < store->n_pools; p++) {
        space_drop(store, p, &cont->space[p], pages_of(frontier), false, false, NULL);
        cont->space[p].committed = frontier;
    }
    cont->frontier = frontier;
    cont->named = frontier / KVD_PAGE_TOKENS;
    cont->tail.n = 0;
}

/* FIT-5: what was there first stays; what came is given back. */
static struct cont *publish_fetched(struct store *store, struct cont *cont) {
    struct cont *equal = MUTANT(fetched_twice_stays_twice) ? NULL : cont_find_equal(store, cont);
    if (equal) {
        (void)cont_stands_for(store, equal, cont->retention);
        store->lives.merged++;
        cont_release(store, cont, STORE_RELEASED);
        return equal;
    }
    cont->published = true;
    life_begin(store, cont, false);
    cont->created = cont->used = store->operations;
    index_insert(store, cont);
    record_cont(store, cont);
    if (tier_all_current(store, cont)) cont_demote(store, cont);
    return cont;
}

int store_fetch_commit(struct store *store, store_cont handle, struct store_fetched *ret_fetched,
                       struct store_refusal *refusal) {
    struct cont *cont = find_fetched(store, handle);
    if (!cont) return store_refuse(refusal, STORE_E_STALE, STORE_S_MOVE, KVD_NONE, handle.bits, 0, 0);
    uint32_t frontier = fetched_frontier(store, cont);
    end_writing(store, cont, true);
    *ret_fetched = (struct store_fetched){ .frontier = frontier };
    if (frontier) {
        cut_fetched(store, cont, frontier);
        ret_fetched->cont = cont_handle(store, publish_fetched(store, cont));
    } else {
        cont_release(store, cont, STORE_RELEASED);
    }
    return STORE_OK;
}

int store_fetch_abort(struct store *store, store_cont handle, struct store_refusal *refusal) {
    struct cont *cont = find_fetched(store, handle);
    if (!cont) return store_refuse(refusal, STORE_E_STALE, STORE_S_MOVE, KVD_NONE, handle.bits, 0, 0);
    end_writing(store, cont, false);
    cont_release(store, cont, STORE_RELEASED);
    return STORE_OK;
}
