/* SPDX-License-Identifier: Apache-2.0
 *
 * Running sequences: quarantine, names of their pages, checkpoints, and their ends.
 */
#include "store_internal.h"

#include <string.h>

int store_quarantine(struct store *store, store_seq handle, bool on, struct store_refusal *refusal) {
    struct seq *seq = seq_find(store, handle);
    if (!seq) return store_refuse(refusal, STORE_E_STALE, STORE_S_SEQUENCE, KVD_NONE, handle.bits, 0, 0);
    if (seq->state == STORE_SEQ_ACTIVATING)
        return store_refuse(refusal, STORE_E_STATE, STORE_S_SEQUENCE, KVD_NONE, (uint64_t)STORE_SEQ_ACTIVE,
                            (uint64_t)seq->state, 0);
    seq->state = on ? STORE_SEQ_QUARANTINED : STORE_SEQ_ACTIVE;
    store_changed(store, false);
    return STORE_OK;
}

/* ---- names ---- */

static int check_names(const struct store *store, const struct seq *seq, uint32_t first, uint32_t n,
                       const uint8_t (*digests)[32], struct store_refusal *refusal) {
    uint32_t full = seq->space[0].committed / KVD_PAGE_TOKENS;
    if (first > full || n > full - first)
        return store_refuse(refusal, STORE_E_RANGE, STORE_S_DIGEST, 0, (uint64_t)first + n, seq->named, full);
    if (n && first > seq->named)
        return store_refuse(refusal, STORE_E_UNNAMED, STORE_S_DIGEST, 0, first, seq->named, full);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t d = space_entry(store, &seq->space[0], first + i);
        if ((store->pool[0].pages[d].flags & PAGE_NAMED) && !digests_equal(store->digests[d], digests[i]))
            return store_refuse(refusal, STORE_E_NAME, STORE_S_DIGEST, 0, (uint64_t)first + i, seq->named, full);
    }
    return STORE_OK;
}

/* Pages behind the new names may have names already, given by a sharer. */
static uint32_t named_until(const struct store *store, const struct space *space, uint32_t named, uint32_t full) {
    while (named < full && (store->pool[0].pages[space_entry(store, space, named)].flags & PAGE_NAMED)) named++;
    return named;
}

/* Pages that others share got their names: those reach further now. Rare: only pages of a continuation left by a death
 * are shared without a name. Then one pass for all that were named together. */
static void extend_names(struct store *store) {
    for (uint32_t i = 0; i < store->config.max_continuations; i++) {
        struct cont *cont = &store->conts[i];
        uint32_t full = cont->frontier / KVD_PAGE_TOKENS;
        if (!cont->occupied || !cont->published || cont->named >= full) continue;
        uint32_t named = named_until(store, &cont->space[0], cont->named, full);
        if (named == cont->named) continue;
        index_drop(store, cont);
        cont->named = named;
        index_insert(store, cont);
        record_cont(store, cont);
    }
    for (uint32_t i = 0; i < store->config.max_concurrency; i++) {
        struct seq *seq = &store->seqs[i];
        if (!seq->occupied) continue;
        seq->named = named_until(store, &seq->space[0], seq->named, seq->space[0].committed / KVD_PAGE_TOKENS);
        live_update(store, seq);
    }
}

int store_name_pages(struct store *store, store_seq handle, uint64_t lease, uint32_t first, uint32_t n,
                     const uint8_t (*digests)[32], struct store_refusal *refusal) {
    struct seq *seq = NULL;
    int rc = seq_drive(store, handle, lease, &seq, refusal);
    if (rc == STORE_OK) rc = check_names(store, seq, first, n, digests, refusal);
    if (rc) return rc;
    bool shared = false;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t d = space_entry(store, &seq->space[0], first + i);
        struct page *page = &store->pool[0].pages[d];
        if (page->flags & PAGE_NAMED) continue;
        page->flags |= PAGE_NAMED;
        memcpy(store->digests[d], digests[i], 32);
        record_page_name(store, d);
        shared |= page->references > 1;
    }
    if (shared) extend_names(store);
    if (n)
        seq->named = named_until(store, &seq->space[0], max_u32(seq->named, first + n),
                                 seq->space[0].committed / KVD_PAGE_TOKENS);
    live_update(store, seq);
    if (n) record_seq(store, seq);
    store_changed(store, false);
    return STORE_OK;
}

/* ---- checkpoints (CKPT-1): full pages shared, tail and state image copied, the sequence goes on ---- */

/* What a continuation needs (CONT-1, CONT-2): one frontier of at least a token in all pools and the state image, every
 * full page named, the tail's tokens. */
static int seq_complete(const struct store *store, const struct seq *seq, const struct kvd_tail *tail,
                        struct store_refusal *refusal) {
    uint32_t frontier = seq->space[0].committed, full = frontier / KVD_PAGE_TOKENS,
             columns = frontier % KVD_PAGE_TOKENS;
    if (frontier == 0) return store_refuse(refusal, STORE_E_INCOMPLETE, STORE_S_FRONTIER, 0, 1, 0, 0);
    for (uint32_t p = 1; p < store->n_pools; p++)
        if (seq->space[p].committed != frontier)
            return store_refuse(refusal, STORE_E_INCOMPLETE, STORE_S_FRONTIER, p, frontier, seq->space[p].committed, 0);
    if (store->config.has_state && seq->state_frontier != frontier)
        return store_refuse(refusal, STORE_E_INCOMPLETE, STORE_S_STATE_FRONTIER, KVD_NONE, frontier,
                            seq->state_frontier == KVD_NONE ? 0 : seq->state_frontier, 0);
    if (seq->named < full) return store_refuse(refusal, STORE_E_UNNAMED, STORE_S_DIGEST, 0, full, seq->named, full);
    if ((tail ? tail->n : 0) != columns)
        return store_refuse(refusal, STORE_E_NAME, STORE_S_TAIL, 0, tail ? tail->n : 0, columns, KVD_PAGE_TOKENS - 1);
    return STORE_OK;
}

/* What there will be when the victims have given way. */
struct post_state {
    struct victim *victims; /* the store's scratch */
    uint32_t n, conts, slots, pages[KVD_MAX_POOLS];
    uint32_t reserve[KVD_MAX_POOLS]; /* for the sequence, in the stead of window pages that it shares from now on */
    uint64_t chunks;
};

static void add_victim(const struct store *store, const struct victim *victim, uint32_t stamp,
                       struct post_state *post) {
    const struct cont *cont = victim->cont;
    for (uint32_t p = 0; p < store->n_pools; p++) {
        const struct joint how = { p, victim_first(victim), stamp, !victim->demote, cont->demoted };
        post->pages[p] += joint_mark(store, &cont->space[p], &how);
        if (!victim->demote) post->chunks += victim_chunks(victim, p);
    }
    post->conts += victim_leaves_descriptor(victim);
    post->slots += cont->slot != KVD_NONE && store->slots[cont->slot].pins == 0;
}

/* A victim that is to rest must be able to without copies. */
static int check_rests(const struct store *store, const struct cont *cont, struct store_refusal *refusal) {
    uint32_t lacks = store->config.has_state && !image_in_host(cont);
    if (cont->moves) return store_refuse(refusal, STORE_E_BUSY, STORE_S_MOVE, KVD_NONE, 0, cont->moves, 0);
    for (uint32_t p = 0; p < store->n_pools; p++) lacks += tier_lacks(store, p, &cont->space[p], false);
    return lacks ? store_refuse(refusal, STORE_E_STATE, STORE_S_REPLICA, KVD_NONE, 0, lacks, 0) : STORE_OK;
}

static int look_ahead(const struct store *store, const struct store_checkpoint *want, struct post_state *ret_post,
                      struct store_refusal *refusal) {
    const struct recipe recipe = { .victims = want->victims, .n = want->n_victims, .revision = want->revision };
    struct post_state post = { .victims = store->victims,
                               .conts = conts_free(store),
                               .slots = slots_free(store),
                               .chunks = chunks_available(&store->chunks) };
    int rc = recipe_resolve(store, &recipe, post.victims, &post.n, refusal);
    for (uint32_t i = 0; i < post.n && rc == STORE_OK; i++)
        if (post.victims[i].demote) rc = check_rests(store, post.victims[i].cont, refusal);
    if (rc) return rc;
    uint32_t stamp = store_next_stamp(store);
    for (uint32_t p = 0; p < store->n_pools; p++) post.pages[p] = pool_available(&store->pool[p]);
    for (uint32_t i = 0; i < post.n && !MUTANT(victims_of_a_checkpoint_give_nothing); i++)
        add_victim(store, &post.victims[i], stamp, &post);
    *ret_post = post;
    return STORE_OK;
}

/* GRP-3: what the checkpoint holds does not come back when the sequence passes it. */
static uint32_t reserve_for_shared(const struct store *store, const struct seq *seq, uint32_t p) {
    const struct space *space = &seq->space[p];
    const struct blocks shared = { window_first(store, p, space->committed), pages_of(space->committed) };
    if (!store->window_pages[p] || MUTANT(shared_window_is_not_replaced)) return 0;
    uint32_t needs = window_needs(store, p, space, space->count, seq_reach(store, seq, p), shared);
    return needs - min_u32(needs, space->reserved);
}

/* Acquisitions in order: descriptor, pages (tail, and for windows), state slot, membership. */
static int check_checkpoint_needs(struct store *store, const struct seq *seq, struct post_state *post,
                                  struct store_refusal *refusal) {
    uint32_t frontier = seq->space[0].committed, chunks = store->n_pools * chunks_for(pages_of(frontier));
    if (post->conts < 1 || !store_try(store))
        return store_refuse(refusal, STORE_E_SHORT, STORE_S_CONTINUATION, KVD_NONE, 1, post->conts,
                            store->config.max_continuations);
    for (uint32_t p = 0; p < store->n_pools; p++) {
        post->reserve[p] = reserve_for_shared(store, seq, p);
        uint32_t pages = (frontier % KVD_PAGE_TOKENS != 0) + post->reserve[p];
        if (pages && (post->pages[p] < pages || !store_try(store)))
            return store_refuse(refusal, STORE_E_SHORT, STORE_S_PAGES, p, pages, post->pages[p],
                                store->pool[p].capacity);
    }
    if (store->config.has_state && (post->slots < 1 || !store_try(store)))
        return store_refuse(refusal, STORE_E_SHORT, STORE_S_STATE_SLOT, KVD_NONE, 1, post->slots,
                            store->config.state_slots);
    if (post->chunks < chunks || !store_try(store))
        return chunks_refuse(store, STORE_E_SHORT, chunks, post->chunks, refusal);
    return STORE_OK;
}

static void share_full_pages(struct store *store, uint32_t p, const struct space *from, struct space *to,
                             uint32_t first, uint32_t full) {
    uint32_t n;
    space_skip(store, to, first);
    for (uint32_t i = first; i < full; i += n) {
        const uint32_t *run = space_run(store, from, i, &n);
        n = min_u32(n, full - i);
        for (uint32_t k = 0; k < n; k++) page_ref(&store->pool[p], run[k], false);
        space_append(store, to, run, n);
    }
}

static void copy_running_tail(struct store *store, uint32_t p, const struct seq *seq, struct cont *cont,
                              uint32_t columns, struct store_checkpointed *out) {
    struct pool *pool = &store->pool[p];
    uint32_t start, from = space_entry(store, &seq->space[p], cont->space[p].count);
    struct pool_choice choice = { 1, pool->pages[from].device, false };
    pool_choose(pool, &choice, &start);
    pool_take(pool, start, 1);
    uint32_t to = page_open(store, p, start, cont->space[p].count, false);
    page_commit(store, p, to, columns);
    page_pin(pool, from, columns);
    page_pin(pool, to, 0);
    space_append(store, &cont->space[p], &to, 1);
    cont->tail_source[p] = from;
    cont->tail_copy[p] = to;
    out->copies[out->n_copies++] = (struct store_copy){
        .kind = STORE_COPY_PAGE, .pool = p, .src = pool->pages[from].device, .dst = start, .columns = columns
    };
}

static void copy_state(struct store *store, const struct seq *seq, struct cont *cont, struct store_checkpointed *out) {
    cont->slot = slot_take(store);
    cont->source_slot = seq->state_slot;
    slot_pin(store, cont->source_slot);
    out->copies[out->n_copies++] =
        (struct store_copy){ .kind = STORE_COPY_STATE, .src = cont->source_slot, .dst = cont->slot };
}

/* An equal one that lies on the device is the checkpoint: nothing is acquired or copied, and nobody gives way. */
static bool merge_checkpoint(struct store *store, const struct seq *seq, const struct store_checkpoint *want,
                             struct store_checkpointed *ret_checkpointed) {
    uint32_t frontier = seq->space[0].committed;
    struct cont like = { .frontier = frontier,
                         .named = frontier / KVD_PAGE_TOKENS,
                         .tail_named = true,
                         .tag = seq->tag,
                         .domain = seq->domain,
                         .space = { seq->space[0] } };
    if (want->tail) like.tail = *want->tail;
    struct cont *equal = cont_find_equal(store, &like);
    if (!equal || !cont_stands_for(store, equal, want->retention)) return false;
    *ret_checkpointed =
        (struct store_checkpointed){ .cont = cont_handle(store, equal), .frontier = frontier, .is_published = true };
    store_changed(store, false);
    return true;
}

int store_checkpoint_begin(struct store *store, store_seq handle, uint64_t lease, const struct store_checkpoint *want,
                           struct store_checkpointed *ret_checkpointed, struct store_refusal *refusal) {
    struct seq *seq = NULL;
    struct store_checkpointed out;
    struct post_state post;
    int rc = seq_drive(store, handle, lease, &seq, refusal);
    if (rc == STORE_OK) rc = seq_complete(store, seq, want->tail, refusal);
    if (rc == STORE_OK) rc = look_ahead(store, want, &post, refusal);
    if (rc == STORE_OK && merge_checkpoint(store, seq, want, ret_checkpointed)) return STORE_OK;
    if (rc == STORE_OK) rc = check_checkpoint_needs(store, seq, &post, refusal);
    if (rc) return rc;
    memset(&out, 0, sizeof out);
    for (; out.n_gone < post.n; out.n_gone++) victim_give_way(store, &post.victims[out.n_gone]);
    struct cont *cont = cont_take(store);
    uint32_t frontier = seq->space[0].committed, full = frontier / KVD_PAGE_TOKENS,
             columns = frontier % KVD_PAGE_TOKENS;
    cont->next_victim = store->in_flight;
    store->in_flight = (uint32_t)(cont - store->conts);
    cont->frontier = frontier;
    cont->named = full;
    cont->retention = want->retention;
    cont->tail_named = true;
    cont->tag = seq->tag;
    cont->domain = domain_hold(store, seq->domain);
    if (columns) cont->tail = *want->tail;
    for (uint32_t p = 0; p < store->n_pools; p++) {
        uint32_t first = window_first(store, p, frontier);
        share_full_pages(store, p, &seq->space[p], &cont->space[p], first, full);
        cont->space[p].committed = frontier;
        if (columns) copy_running_tail(store, p, seq, cont, columns, &out);
        store->pool[p].reserved += post.reserve[p];
        seq->space[p].reserved += post.reserve[p];
        out.shared_pages[p] = full - first;
    }
    if (store->config.has_state) copy_state(store, seq, cont, &out);
    out.cont = cont_handle(store, cont);
    out.frontier = frontier;
    store_changed(store, true);
    *ret_checkpointed = out;
    return STORE_OK;
}

static int find_in_flight(const struct store *store, store_cont handle, struct cont **ret_cont,
                          struct store_refusal *refusal) {
    struct cont *cont = cont_find(store, handle);
    if (cont && cont->published) return store_refuse(refusal, STORE_E_STATE, STORE_S_CONTINUATION, KVD_NONE, 0, 1, 0);
    uint32_t at = cont ? store->in_flight : KVD_NONE; /* a running sequence's own descriptor is in no checkpoint */
    while (at != KVD_NONE && &store->conts[at] != cont) at = store->conts[at].next_victim;
    if (at == KVD_NONE) return store_refuse(refusal, STORE_E_STALE, STORE_S_CONTINUATION, KVD_NONE, handle.bits, 0, 0);
    *ret_cont = cont;
    return STORE_OK;
}

/* Columns of a page that the checkpoints still in flight read. */
static uint32_t read_columns(const struct store *store, uint32_t p, uint32_t page) {
    uint32_t columns = 0;
    for (uint32_t i = store->in_flight; i != KVD_NONE; i = store->conts[i].next_victim)
        if (store->conts[i].tail_source[p] == page)
            columns = max_u32(columns, store->conts[i].frontier % KVD_PAGE_TOKENS);
    return columns;
}

static void unpin_checkpoint(struct store *store, struct cont *cont) {
    uint32_t *link = &store->in_flight;
    while (*link != (uint32_t)(cont - store->conts)) link = &store->conts[*link].next_victim;
    *link = cont->next_victim;
    cont->next_victim = KVD_NONE;
    for (uint32_t p = 0; p < store->n_pools; p++) {
        struct pool_batch batch = { &store->pool[p], 0, 0 };
        if (cont->tail_copy[p] == KVD_NONE) continue;
        page_protect(&store->pool[p], cont->tail_source[p], read_columns(store, p, cont->tail_source[p]));
        page_unpin(store, &batch, cont->tail_source[p]);
        page_unpin(store, &batch, cont->tail_copy[p]);
        pool_flush(&batch);
        cont->tail_source[p] = cont->tail_copy[p] = KVD_NONE;
    }
    cont_touch(store, cont);
    slot_unpin(store, cont->source_slot);
    cont->source_slot = KVD_NONE;
}

struct cont *cont_publish_or_merge(struct store *store, struct cont *cont) {
    struct cont *equal = cont->pins ? NULL : cont_find_equal(store, cont); /* a fork in flight is of this one */
    if (!equal) {
        cont->published = true;
        life_begin(store, cont, false);
        cont->created = cont->used = store->operations;
        index_insert(store, cont);
        record_cont(store, cont);
        return cont;
    }
    if (!cont_stands_for(store, equal, cont->retention)) cont_take_pages(store, equal, cont);
    store->lives.merged++;
    cont_release(store, cont, STORE_RELEASED);
    return equal;
}

int store_checkpoint_commit(struct store *store, store_cont handle, store_cont *ret_cont,
                            struct store_refusal *refusal) {
    struct cont *cont = NULL;
    int rc = find_in_flight(store, handle, &cont, refusal);
    if (rc) return rc;
    store_changed(store, true);
    unpin_checkpoint(store, cont);
    cont = cont_publish_or_merge(store, cont);
    if (ret_cont) *ret_cont = cont_handle(store, cont);
    return STORE_OK;
}

int store_checkpoint_abort(struct store *store, store_cont handle, struct store_refusal *refusal) {
    struct cont *cont = NULL;
    int rc = find_in_flight(store, handle, &cont, refusal);
    if (rc) return rc;
    store_changed(store, true);
    unpin_checkpoint(store, cont);
    cont_release(store, cont, STORE_RELEASED);
    return STORE_OK;
}

/* ---- ends (FIN-1, SRV-5): released, retained as a continuation, or ended by the proven death of its worker ---- */

static void release_reservation(struct store *store, uint32_t p, struct seq *seq) {
    struct space *space = &seq->space[p];
    store->chunks.reserved -= chunks_for(seq_reach(store, seq, p)) - chunks_for(space->count);
    store->pool[p].reserved -= space->reserved;
    space->reserved = 0;
}

static void release_all(struct store *store, struct seq *seq) {
    live_set(store, seq, 0, NULL);
    record_seq_drop(store, seq);
    if (seq->lends) space_end_lending(store, 0, &seq->space[0]);
    for (uint32_t p = 0; p < store->n_pools; p++) {
        release_reservation(store, p, seq);
        space_drop(store, p, &seq->space[p], 0, true, false, NULL);
    }
    slot_release(store, seq->state_slot);
}

/* Pages past the frontier, and what going on from it does not read, go to available; the rest loses its writer and its
 * active references. */
static void deactivate_space(struct store *store, uint32_t p, struct seq *seq, uint32_t frontier) {
    struct space *space = &seq->space[p];
    uint32_t n, last = pages_of(frontier) - 1;
    if (store->window_pages[p]) (void)window_pass(store, p, space, window_first(store, p, frontier), NULL);
    release_reservation(store, p, seq);
    space_drop(store, p, space, last + 1, true, false, NULL);
    if (space->committed > frontier && frontier % KVD_PAGE_TOKENS)
        page_commit(store, p, space_entry(store, space, last), columns_of(frontier, last));
    space->committed = frontier;
    for (uint32_t i = space->base; i < space->count; i += n) {
        const uint32_t *run = space_run(store, space, i, &n);
        for (uint32_t k = 0; k < n; k++) {
            struct page *page = &store->pool[p].pages[run[k]];
            page->active_references--;
            page_update(&store->pool[p], run[k]);
        }
    }
}

/* Its own descriptor has what it has up to a frontier, and is nobody's yet. */
static struct cont *deactivate(struct store *store, struct seq *seq, uint32_t frontier) {
    live_set(store, seq, 0, NULL);
    struct cont *cont = seq_leave_descriptor(store, seq);
    for (uint32_t p = 0; p < store->n_pools; p++) {
        deactivate_space(store, p, seq, frontier);
        cont->space[p] = seq->space[p];
    }
    cont->frontier = frontier;
    cont->named = min_u32(seq->named, frontier / KVD_PAGE_TOKENS);
    cont->slot = seq->state_slot;
    cont->tag = seq->tag;
    cont->domain = domain_hold(store, seq->domain);
    return cont;
}

/* What forks in flight have yet to take goes with the last of them (LIVE-1); all else now. */
static void release_sequence(struct store *store, struct seq *seq) {
    uint32_t forked = MUTANT(forks_in_flight_are_cut) ? 0 : live_forked(store, seq);
    if (!forked) {
        release_all(store, seq);
        return;
    }
    record_seq_drop(store, seq);
    deactivate(store, seq, forked)->going = true;
}

static struct cont *retain_as_continuation(struct store *store, struct seq *seq, uint32_t frontier,
                                           const struct kvd_tail *tail, uint32_t retention) {
    record_seq_whole(store, seq, frontier); /* before what is past it goes */
    struct cont *cont = deactivate(store, seq, frontier);
    cont->retention = retention;
    cont->tail_named = tail || frontier % KVD_PAGE_TOKENS == 0;
    if (tail && tail->n) cont->tail = *tail;
    cont = cont_publish_or_merge(store, cont);
    record_seq_drop(store, seq); /* its pages are the continuation's */
    return cont;
}

int store_finish(struct store *store, store_seq handle, uint64_t lease, enum store_finish how,
                 const struct kvd_tail *tail, uint32_t retention, store_cont *ret_cont,
                 struct kvd_pool_view ret_rows[KVD_MAX_POOLS], struct store_refusal *refusal) {
    struct seq *seq = NULL;
    store_cont retained = { 0 };
    int rc = seq_drive(store, handle, lease, &seq, refusal);
    if (rc) return rc;
    if (how != STORE_FINISH_RELEASE && how != STORE_FINISH_RETAIN)
        return store_refuse(refusal, STORE_E_ARGUMENT, STORE_S_NONE, KVD_NONE, (uint64_t)how, 0,
                            (uint64_t)STORE_FINISH_RETAIN);
    if (how == STORE_FINISH_RETAIN) {
        rc = seq_complete(store, seq, tail, refusal);
        if (rc) return rc;
    }
    store_changed(store, true);
    seq_unpin_source(store, seq);
    seq_release_rows(store, seq, ret_rows);
    if (how == STORE_FINISH_RETAIN)
        retained = cont_handle(store, retain_as_continuation(store, seq, seq->space[0].committed, tail, retention));
    else release_sequence(store, seq);
    seq_free(store, seq);
    *ret_cont = retained;
    return STORE_OK;
}

/* The frontier that survives a death, 0 = none. */
static uint32_t surviving_frontier(const struct store *store, const struct seq *seq) {
    uint32_t frontier = seq->space[0].committed;
    for (uint32_t p = 1; p < store->n_pools; p++) frontier = min_u32(frontier, seq->space[p].committed);
    if (store->config.has_state && seq->state_frontier != frontier) return 0;
    return windows_hold(store, seq->space, frontier) ? frontier : 0;
}

int store_end(struct store *store, store_seq handle, store_cont *ret_cont, struct kvd_pool_view ret_rows[KVD_MAX_POOLS],
              struct store_refusal *refusal) {
    struct seq *seq = seq_find(store, handle);
    store_cont retained = { 0 };
    if (!seq) return store_refuse(refusal, STORE_E_STALE, STORE_S_SEQUENCE, KVD_NONE, handle.bits, 0, 0);
    store_changed(store, true);
    seq_release_rows(store, seq, ret_rows);
    if (seq->state == STORE_SEQ_ACTIVATING) {
        seq_abort(store, seq);
    } else {
        uint32_t frontier = surviving_frontier(store, seq);
        seq_unpin_source(store, seq);
        if (frontier) retained = cont_handle(store, retain_as_continuation(store, seq, frontier, NULL, 0));
        else release_all(store, seq);
        seq_free(store, seq);
    }
    *ret_cont = retained;
    return STORE_OK;
}
