/* SPDX-License-Identifier: Apache-2.0
 *
 * Looking: objects one by one, page ids, statistics. Changes nothing.
 */
#include "store_internal.h"

#include <string.h>

static void seq_info(const struct store *store, const struct seq *seq, struct kvd_sequence_info *ret_info) {
    memset(ret_info, 0, sizeof *ret_info);
    ret_info->sequence.bits = seq_handle(store, seq).bits;
    ret_info->n_pools = store->n_pools;
    ret_info->state = seq->state;
    ret_info->prompt_tokens = seq->prompt;
    ret_info->ceiling_tokens = seq->ceiling;
    ret_info->state_slot = seq->state_slot;
    ret_info->named_pages = seq->named;
    ret_info->lends = seq->lends;
    ret_info->root = store->domains.list[seq->domain].root;
    for (uint32_t p = 0; p < store->n_pools; p++) seq_view(store, seq, p, 0, &ret_info->pool[p]);
}

/* Pages behind the shared ones are the continuation's own; a copy in flight reads at most the first of them
 * (a checkpoint shares all before its tail), and that one would stay. */
static uint32_t exclusive_pages(const struct store *store, const struct cont *cont, uint32_t p) {
    const struct space *space = &cont->space[p];
    if (store->window_pages[p] || (store->pool[p].tier && store->demoted + store->pool[p].absent))
        return joint_mark(store, space, &(struct joint){ p, 0, store_next_stamp(store), true, cont->demoted });
    uint32_t shared = space_shared(store, p, space), n = space->count - shared;
    return n && store->pool[p].pages[space_entry(store, space, shared)].pins ? n - 1 : n;
}

/* Pages with a valid replica on the device and in the host. */
static void count_places(const struct store *store, const struct cont *cont, uint32_t p,
                         struct kvd_continuation_info *info) {
    const struct space *space = &cont->space[p];
    const struct pool *pool = &store->pool[p];
    uint32_t n;
    info->device_pages[p] = space_held(space);
    if (pool->absent + pool->host_pages == 0) return;
    info->device_pages[p] = 0;
    for (uint32_t i = space->base; i < space->count; i += n) {
        const uint32_t *run = space_run(store, space, i, &n);
        for (uint32_t k = 0; k < n; k++) {
            const struct page *page = &pool->pages[run[k]];
            info->device_pages[p] += page_on_device(page);
            info->host_pages[p] += page_is_current(page);
            info->moving |= (page->flags & (PAGE_BACKING | PAGE_RESTORING)) != 0;
        }
    }
}

static void cont_info(const struct store *store, const struct cont *cont, struct kvd_continuation_info *ret_info) {
    memset(ret_info, 0, sizeof *ret_info);
    ret_info->continuation.bits = cont_handle(store, cont).bits;
    ret_info->frontier = cont->frontier;
    ret_info->named_pages = cont->named;
    ret_info->root = store->domains.list[cont->domain].root;
    ret_info->retention = cont->retention;
    ret_info->state_slot = cont->slot;
    ret_info->tail_named = cont->tail_named;
    ret_info->claimed = cont->claimed;
    ret_info->live = cont_is_live(cont);
    ret_info->rolling = cont->rolls_for != 0;
    ret_info->demoted = cont->demoted;
    ret_info->moving = cont->image_pins > 0;
    ret_info->image_on_device = image_in_slot(cont);
    ret_info->image_in_host = image_in_host(cont);
    ret_info->created = cont->created;
    ret_info->used = cont->used;
    ret_info->age_ns = store->now_ns - cont->made_ns;
    ret_info->idle_ns = store->now_ns - cont->used_ns;
    for (uint32_t p = 0; p < store->n_pools; p++) {
        ret_info->pages[p] = space_held(&cont->space[p]);
        count_places(store, cont, p, ret_info);
        ret_info->exclusive_pages[p] = cont_is_live(cont) ? 0 : exclusive_pages(store, cont, p);
        if (store->window_pages[p]) continue;
        uint32_t references = store->pool[p].pages[space_entry(store, &cont->space[p], 0)].references;
        ret_info->sharers = max_u32(ret_info->sharers, references - 1);
    }
}

bool store_next_seq(const struct store *store, uint32_t *cursor, struct kvd_sequence_info *ret_info) {
    while (*cursor < store->config.max_concurrency) {
        const struct seq *seq = &store->seqs[(*cursor)++];
        if (!seq->occupied) continue;
        seq_info(store, seq, ret_info);
        return true;
    }
    return false;
}

bool store_next_cont(const struct store *store, uint32_t *cursor, struct kvd_continuation_info *ret_info) {
    while (*cursor < store->config.max_continuations) {
        const struct cont *cont = &store->conts[(*cursor)++];
        if (!cont->occupied || !cont->published) continue;
        cont_info(store, cont, ret_info);
        return true;
    }
    return false;
}

bool store_next_change(const struct store *store, uint64_t *number, uint64_t end,
                       struct kvd_continuation_info *ret_info) {
    while (*number < end) {
        store_cont handle = store->changes[(*number)++ % store->change_limit];
        const struct cont *cont = cont_find(store, handle);
        if (cont && cont->change != *number) continue;
        *ret_info = (struct kvd_continuation_info){ .continuation.bits = handle.bits, .state_slot = KVD_NONE };
        if (cont && cont->published) cont_info(store, cont, ret_info);
        return true;
    }
    return false;
}

int store_seq_look(const struct store *store, store_seq handle, struct kvd_sequence_info *ret_info,
                   struct store_refusal *refusal) {
    const struct seq *seq = seq_find(store, handle);
    if (!seq) return store_refuse(refusal, STORE_E_STALE, STORE_S_SEQUENCE, KVD_NONE, handle.bits, 0, 0);
    seq_info(store, seq, ret_info);
    return STORE_OK;
}

int store_cont_look(const struct store *store, store_cont handle, struct kvd_continuation_info *ret_info,
                    struct store_refusal *refusal) {
    const struct cont *cont = cont_find(store, handle);
    if (!cont) return store_refuse(refusal, STORE_E_STALE, STORE_S_CONTINUATION, KVD_NONE, handle.bits, 0, 0);
    if (!cont->published) return store_refuse(refusal, STORE_E_STATE, STORE_S_CONTINUATION, KVD_NONE, 0, 0, 0);
    cont_info(store, cont, ret_info);
    return STORE_OK;
}

bool store_can_be_found(const struct store *store, store_cont handle) {
    const struct cont *cont = cont_find(store, handle);
    return cont && (cont_is_whole(cont) || (!store->config.has_state && cont->named > 0));
}

store_cont store_live(const struct store *store, store_seq handle) {
    const struct seq *seq = seq_find(store, handle);
    return seq && seq->own != KVD_NONE ? cont_handle(store, &store->conts[seq->own]) : (store_cont){ 0 };
}

uint64_t store_tag(const struct store *store, store_cont handle) {
    const struct cont *cont = cont_find(store, handle);
    return cont ? cont->tag : 0;
}

uint32_t store_seq_pages(const struct store *store, store_seq handle, uint32_t pool, uint32_t *ret_ids, uint32_t max) {
    const struct seq *seq = seq_find(store, handle);
    return seq && pool < store->n_pools ? space_copy_ids(store, pool, &seq->space[pool], ret_ids, max) : 0;
}

uint32_t store_cont_pages(const struct store *store, store_cont handle, uint32_t pool, uint32_t *ret_ids,
                          uint32_t max) {
    const struct cont *cont = cont_find(store, handle);
    return cont && pool < store->n_pools ? space_copy_ids(store, pool, &cont->space[pool], ret_ids, max) : 0;
}

/* Pages that no other space holds. In a window they need not be the last ones. */
static uint32_t lonely_pages(const struct store *store, uint32_t p, const struct space *space) {
    uint32_t lonely = 0, n;
    if (!store->window_pages[p]) return space->count - space_shared(store, p, space);
    for (uint32_t i = space->base; i < space->count; i += n) {
        const uint32_t *run = space_run(store, space, i, &n);
        for (uint32_t k = 0; k < n; k++) lonely += store->pool[p].pages[run[k]].references == 1;
    }
    return lonely;
}

static uint32_t quarantined_pages(const struct store *store, uint32_t p) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < store->config.max_concurrency; i++) {
        const struct seq *seq = &store->seqs[i];
        if (seq->occupied && seq->state == STORE_SEQ_QUARANTINED) n += lonely_pages(store, p, &seq->space[p]);
    }
    return n;
}

uint32_t store_available(const struct store *store, uint32_t pool) { return pool_available(&store->pool[pool]); }

void store_get_stats(const struct store *store, struct kvd_stats *ret_stats) {
    memset(ret_stats, 0, sizeof *ret_stats);
    ret_stats->n_pools = store->n_pools;
    for (uint32_t p = 0; p < store->n_pools; p++) {
        const struct pool *pool = &store->pool[p];
        ret_stats->pool[p] = (struct kvd_pool_stats){
            pool->capacity, pool->allocated, pool->reserved, pool_available(pool), quarantined_pages(store, p),
            pool->shared,   pool->rows_used, pool->lent
        };
    }
    ret_stats->sequences = store->seqs_used;
    ret_stats->continuations = store->conts_used - store->conts_owned;
    ret_stats->continuation_limit = store->config.max_continuations;
    ret_stats->state_slots_used = store->slots_used;
    ret_stats->membership_used = store->entries;
    ret_stats->membership_limit = (uint64_t)store->chunks.capacity * CHUNK;
    ret_stats->operations = store->operations;
    ret_stats->committed_tokens = store->lives.committed_tokens;
    ret_stats->revision = store->revision;
    ret_stats->host_images = store->host_images;
    ret_stats->demoted_continuations = store->demoted;
    ret_stats->damaged_replicas = store->damaged;
    ret_stats->lost_continuations = store->lost;
    for (uint32_t p = 0; p < store->n_pools; p++) ret_stats->host_pages[p] = store->pool[p].host_pages;
    ret_stats->moves = moves_in_flight(store);
    if (!store->arena) return;
    struct extent_stats arena;
    extent_get_stats(store->arena, &arena);
    ret_stats->host_capacity = arena.capacity;
    ret_stats->host_occupied = arena.occupied;
    ret_stats->host_largest_free = arena.largest_free;
}
