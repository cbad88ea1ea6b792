/* SPDX-License-Identifier: Apache-2.0
 *
 * The mirror: what the store holds, into the directory as it changes (CONT-3). A page has a record from when it is
 * first part of a bundle's committed frontier until it is recycled; a record of a bundle names its last pages, and
 * those their predecessors, so a bundle costs one record however long it is.
 *
 * Order: pages before the bundle that names them; what a change takes away goes from the directory before it goes from
 * the store.
 */
#include "store_internal.h"

#include <string.h>

static uint32_t device_of(const struct page *page) { return page_on_device(page) ? page->device : DIRECTORY_NONE; }

void record_page_device(struct store *store, uint32_t p, uint32_t d) {
    if (store->directory && directory_page_is_open(store->directory, p, d))
        directory_page_device(store->directory, p, d, device_of(&store->pool[p].pages[d]));
}

void record_page_host(struct store *store, uint32_t p, uint32_t d) {
    const struct page *page = &store->pool[p].pages[d];
    if (!store->directory || !directory_page_is_open(store->directory, p, d)) return;
    if (!page_in_host(page, 1)) {
        directory_page_host(store->directory, p, d, NULL);
        return;
    }
    struct directory_host host = { extent_offset(store->arena, page->host), store->pool[p].tier[d].checksum,
                                   page->host_columns };
    directory_page_host(store->directory, p, d, &host);
}

bool record_covers_more(const struct store *store, uint32_t p, uint32_t d) {
    struct directory_page page;
    bool damaged;
    return store->directory && store->pool[p].pages[d].host.bits &&
           directory_page_load(store->directory, p, d, &page, &damaged) && page.has_host &&
           page.host.columns > store->pool[p].pages[d].host_columns;
}

void record_page_name(struct store *store, uint32_t d) {
    bool named = store->pool[0].pages[d].flags & PAGE_NAMED;
    if (store->directory && directory_page_is_open(store->directory, 0, d))
        directory_page_name(store->directory, 0, d, named ? store->digests[d] : NULL);
}

void record_page_close(struct store *store, uint32_t p, uint32_t d) {
    if (store->directory) directory_page_close(store->directory, p, d);
}

static void open_page(struct store *store, uint32_t p, const struct space *space, uint32_t block) {
    uint32_t d = space_entry(store, space, block),
             parent = block > space->base ? space_entry(store, space, block - 1) : KVD_NONE;
    const struct page *page = &store->pool[p].pages[d];
    struct directory_base base = { page->generation, block, parent,
                                   parent == KVD_NONE ? 0 : store->pool[p].pages[parent].generation };
    directory_page_open(store->directory, p, d, &base);
    if (page_on_device(page)) directory_page_device(store->directory, p, d, page->device);
    if (page_in_host(page, 1)) record_page_host(store, p, d);
    if (p == 0 && (page->flags & PAGE_NAMED)) directory_page_name(store->directory, 0, d, store->digests[d]);
}

/* Records of the first n pages. Whoever has one has a predecessor that has one. */
static void open_pages(struct store *store, uint32_t p, const struct space *space, uint32_t n) {
    uint32_t first = n;
    while (first > space->base && !directory_page_is_open(store->directory, p, space_entry(store, space, first - 1)))
        first--;
    for (uint32_t i = first; i < n; i++) open_page(store, p, space, i);
}

/* Frontier and last page of one pool. */
static void put_space(struct store *store, uint32_t p, const struct space *space, uint32_t frontier,
                      struct directory_bundle *bundle) {
    uint32_t n = pages_of(frontier), last = n > space->base ? space_entry(store, space, n - 1) : KVD_NONE;
    open_pages(store, p, space, n);
    bundle->frontier[p] = frontier;
    bundle->last[p] = last == KVD_NONE ? DIRECTORY_NONE : last;
    bundle->last_generation[p] = last == KVD_NONE ? 0 : store->pool[p].pages[last].generation;
}

static void put_domain(const struct store *store, uint32_t domain, struct directory_bundle *bundle) {
    const struct kvd_root *root = &store->domains.list[domain].root;
    memcpy(bundle->root, root->digest.bytes, sizeof bundle->root);
    memcpy(bundle->label, root->label, sizeof bundle->label);
}

void record_cont(struct store *store, const struct cont *cont) {
    if (!store->directory || !cont->published || cont->owned)
        return; /* before the record is made: a store without one pays nothing */
    struct directory_bundle bundle = { .named = cont->named,
                                       .retention = cont->retention,
                                       .created = cont->created,
                                       .used = cont->used,
                                       .tag = cont->tag,
                                       .state_slot = image_in_slot(cont) || MUTANT(directory_knows_arriving_image)
                                                         ? cont->slot
                                                         : DIRECTORY_NONE,
                                       .state_frontier = cont->frontier,
                                       .tail_named = cont->tail_named };
    bundle.has_image = image_in_host(cont);
    if (bundle.has_image)
        bundle.image = (struct directory_host){ extent_offset(store->arena, cont->image), cont->image_checksum, 1 };
    put_domain(store, cont->domain, &bundle);
    bundle.n_tail = cont->tail.n;
    memcpy(bundle.tail, cont->tail.tokens, cont->tail.n * sizeof bundle.tail[0]);
    for (uint32_t p = 0; p < store->n_pools; p++) put_space(store, p, &cont->space[p], cont->frontier, &bundle);
    directory_bundle_put(store->directory, DIRECTORY_CONTINUATION, (uint32_t)(cont - store->conts), &bundle);
}

void record_cont_drop(struct store *store, const struct cont *cont) {
    if (store->directory && cont->published)
        directory_bundle_drop(store->directory, DIRECTORY_CONTINUATION, (uint32_t)(cont - store->conts));
}

/* GRP-4: not, where a window has left what the common frontier reads. Who holds those pages now may write in them, and
 * the records of the later ones still name them. */
static bool holds_common(const struct store *store, const struct seq *seq, const uint32_t frontier[KVD_MAX_POOLS]) {
    uint32_t common = frontier[0];
    for (uint32_t p = 1; p < store->n_pools; p++) common = min_u32(common, frontier[p]);
    return windows_hold(store, seq->space, common) || MUTANT(torn_sequence_is_recorded);
}

void record_seq_at(struct store *store, struct seq *seq, const uint32_t frontier[KVD_MAX_POOLS]) {
    if (!store->directory) return;
    bool image = store->config.has_state && seq->state_frontier != KVD_NONE && seq->state_frontier == frontier[0];
    struct directory_bundle bundle = { .named = min_u32(seq->named, frontier[0] / KVD_PAGE_TOKENS),
                                       .created = store->operations,
                                       .used = store->operations,
                                       .tag = seq->tag,
                                       .state_slot = image ? seq->state_slot : DIRECTORY_NONE,
                                       .state_frontier = image ? seq->state_frontier : 0 };
    if (frontier[0] == 0 || !holds_common(store, seq, frontier)) {
        record_seq_drop(store, seq);
        return;
    }
    put_domain(store, seq->domain, &bundle);
    for (uint32_t p = 0; p < store->n_pools; p++) put_space(store, p, &seq->space[p], frontier[p], &bundle);
    directory_bundle_put(store->directory, DIRECTORY_SEQUENCE, (uint32_t)(seq - store->seqs), &bundle);
    seq->recorded = true;
}

void record_seq_whole(struct store *store, struct seq *seq, uint32_t frontier) {
    uint32_t all[KVD_MAX_POOLS];
    for (uint32_t p = 0; p < KVD_MAX_POOLS; p++) all[p] = frontier;
    record_seq_at(store, seq, all);
}

void record_seq(struct store *store, struct seq *seq) {
    uint32_t frontier[KVD_MAX_POOLS] = { 0 };
    if (!store->directory) return;
    for (uint32_t p = 0; p < store->n_pools; p++) frontier[p] = seq->space[p].committed;
    record_seq_at(store, seq, frontier);
}

void record_seq_drop(struct store *store, struct seq *seq) {
    if (seq->recorded) directory_bundle_drop(store->directory, DIRECTORY_SEQUENCE, (uint32_t)(seq - store->seqs));
    seq->recorded = false;
}
