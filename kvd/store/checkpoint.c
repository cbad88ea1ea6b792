/* SPDX-License-Identifier: Apache-2.0
 *
 * Checkpoints of running sequences (CKPT-1): full pages are shared, tail and state image are copied, and the sequence
 * goes on. What is checked and taken here serves rolling checkpoints (roll.c), too.
 */
#include "store_internal.h"

#include <string.h>

int seq_complete(const struct store *store, const struct seq *seq, const struct kvd_tail *tail,
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

void post_look(const struct store *store, struct post_state *post) {
    uint32_t stamp = store_next_stamp(store);
    post->conts = conts_free(store);
    post->slots = slots_free(store);
    post->chunks = chunks_available(&store->chunks);
    for (uint32_t p = 0; p < store->n_pools; p++) post->pages[p] = pool_available(&store->pool[p]);
    for (uint32_t i = 0; i < post->n && !MUTANT(victims_of_a_checkpoint_give_nothing); i++)
        add_victim(store, &post->victims[i], stamp, post);
}

static int look_ahead(const struct store *store, const struct store_checkpoint *want, struct post_state *ret_post,
                      struct store_refusal *refusal) {
    const struct recipe recipe = { .victims = want->victims, .n = want->n_victims, .revision = want->revision };
    struct post_state post = { .victims = store->victims };
    int rc = recipe_resolve(store, &recipe, post.victims, &post.n, refusal);
    for (uint32_t i = 0; i < post.n && rc == STORE_OK; i++)
        if (post.victims[i].demote) rc = check_rests(store, post.victims[i].cont, refusal);
    if (rc) return rc;
    post_look(store, &post);
    *ret_post = post;
    return STORE_OK;
}

/* GRP-3: what the checkpoint holds does not come back when the sequence passes it. */
static uint32_t reserve_for_shared(const struct store *store, const struct seq *seq, uint32_t p, uint32_t frontier) {
    const struct space *space = &seq->space[p];
    const struct blocks shared = { window_first(store, p, frontier), pages_of(frontier) };
    if (!store->window_pages[p] || MUTANT(shared_window_is_not_replaced)) return 0;
    uint32_t needs = window_needs(store, p, space, space->count, seq_reach(store, seq, p), shared, NULL);
    return needs - min_u32(needs, space->reserved);
}

int checkpoint_check(struct store *store, const struct seq *seq, uint32_t frontier, struct post_state *post,
                     struct store_refusal *refusal) {
    uint32_t chunks = store->n_pools * chunks_for(pages_of(frontier));
    if (post->conts < 1 || !store_try(store))
        return store_refuse(refusal, STORE_E_SHORT, STORE_S_CONTINUATION, KVD_NONE, 1, post->conts,
                            store->config.max_continuations);
    for (uint32_t p = 0; p < store->n_pools; p++) {
        post->reserve[p] = reserve_for_shared(store, seq, p, frontier);
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

struct cont *checkpoint_take(struct store *store, struct seq *seq, uint32_t frontier, const struct post_state *post) {
    struct cont *cont = cont_take(store);
    cont->frontier = frontier;
    cont->tail_named = true;
    cont->tag = seq->tag;
    cont->domain = domain_hold(store, seq->domain);
    for (uint32_t p = 0; p < store->n_pools; p++) {
        share_full_pages(store, p, &seq->space[p], &cont->space[p], window_first(store, p, frontier),
                         frontier / KVD_PAGE_TOKENS);
        cont->space[p].committed = frontier;
        store->pool[p].reserved += post->reserve[p];
        seq->space[p].reserved += post->reserve[p];
    }
    return cont;
}

void checkpoint_fly(struct store *store, struct cont *cont) {
    cont->next_victim = store->in_flight;
    store->in_flight = (uint32_t)(cont - store->conts);
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

struct store_copy checkpoint_image(struct store *store, const struct seq *seq, struct cont *cont) {
    cont->slot = slot_take(store);
    cont->source_slot = seq->state_slot;
    slot_pin(store, cont->source_slot);
    return (struct store_copy){ .kind = STORE_COPY_STATE, .src = cont->source_slot, .dst = cont->slot };
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
    if (rc == STORE_OK) rc = checkpoint_check(store, seq, seq->space[0].committed, &post, refusal);
    if (rc) return rc;
    memset(&out, 0, sizeof out);
    for (; out.n_gone < post.n; out.n_gone++) victim_give_way(store, &post.victims[out.n_gone]);
    uint32_t frontier = seq->space[0].committed, full = frontier / KVD_PAGE_TOKENS,
             columns = frontier % KVD_PAGE_TOKENS;
    struct cont *cont = checkpoint_take(store, seq, frontier, &post);
    checkpoint_fly(store, cont);
    cont->named = full;
    cont->retention = want->retention;
    if (columns) cont->tail = *want->tail;
    for (uint32_t p = 0; p < store->n_pools; p++) {
        out.shared_pages[p] = full - window_first(store, p, frontier);
        if (columns) copy_running_tail(store, p, seq, cont, columns, &out);
    }
    if (store->config.has_state) out.copies[out.n_copies++] = checkpoint_image(store, seq, cont);
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

void checkpoint_land(struct store *store, struct cont *cont) {
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

bool checkpoint_is_named(const struct store *store, const struct cont *cont) {
    uint32_t last = space_entry(store, &cont->space[0], cont->space[0].count - 1);
    return store->pool[0].pages[last].flags & PAGE_NAMED || MUTANT(rolling_one_is_found_unnamed);
}

struct cont *checkpoint_show(struct store *store, struct cont *cont) {
    cont_touch(store, cont);
    cont->named = cont->frontier / KVD_PAGE_TOKENS;
    store->lives.rolling[STORE_ROLLING_FOUND]++;
    return cont_publish_or_merge(store, cont);
}

/* The image of a rolling one is copied. NULL: it is not found yet, or has gone. */
static struct cont *end_rolling_copy(struct store *store, struct cont *cont) {
    if (checkpoint_is_named(store, cont)) return checkpoint_show(store, cont);
    if (!cont->rolls_for) cont_release(store, cont, STORE_RELEASED); /* nobody will name it any more */
    return NULL;
}

int store_checkpoint_commit(struct store *store, store_cont handle, store_cont *ret_cont,
                            struct store_refusal *refusal) {
    struct cont *cont = NULL;
    int rc = find_in_flight(store, handle, &cont, refusal);
    if (rc) return rc;
    store_changed(store, true);
    checkpoint_land(store, cont);
    bool rolls = cont->named < cont->frontier / KVD_PAGE_TOKENS;
    cont = rolls ? end_rolling_copy(store, cont) : cont_publish_or_merge(store, cont);
    if (ret_cont) *ret_cont = cont ? cont_handle(store, cont) : (store_cont){ 0 };
    return STORE_OK;
}

int store_checkpoint_abort(struct store *store, store_cont handle, struct store_refusal *refusal) {
    struct cont *cont = NULL;
    int rc = find_in_flight(store, handle, &cont, refusal);
    if (rc) return rc;
    store_changed(store, true);
    checkpoint_land(store, cont);
    cont_release(store, cont, STORE_RELEASED);
    return STORE_OK;
}
