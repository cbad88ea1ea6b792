/* SPDX-License-Identifier: Apache-2.0
 *
 * The audit of continuations: claims, names and index, order, domains; and the sums over continuations and sequences.
 */
#include <string.h>

#include "audit.h"

/* ---- sums ---- */

/* What was recorded of one comes to the sums, or goes from them (by = UINT32_MAX). */
static void add_recorded(struct audit *a, uint32_t i, uint32_t by) {
    const struct store *store = a->store;
    const struct cont_recount *r = &store->recount[i];
    for (uint32_t k = 0; k < CONT_N; k++)
        if (r->kinds >> k & 1) a->conts[k] += by;
    a->entries += (uint64_t)(int32_t)by * r->entries;
    a->chunks += (uint64_t)(int32_t)by * r->chunks;
    if (!store->config.has_state) return;
    if (r->slot < store->config.state_slots) {
        store->slot_recount[r->slot].owners += by;
        if (r->kinds >> CONT_BACKING & 1) store->slot_recount[r->slot].pins += by;
    }
    if (r->source_slot < store->config.state_slots) store->slot_recount[r->source_slot].pins += by;
}

static void record_counts(struct audit *a, uint32_t i) {
    const struct store *store = a->store;
    const struct cont *cont = &store->conts[i];
    struct cont_recount *r = &store->recount[i];
    *r = (struct cont_recount){ .slot = KVD_NONE, .source_slot = KVD_NONE };
    if (!cont->occupied) return;
    r->kinds =
        (uint8_t)(1u << CONT_OCCUPIED | (unsigned)cont->owned << CONT_OWNED | (unsigned)cont->demoted << CONT_DEMOTED |
                  (unsigned)(cont->image.bits != 0) << CONT_IMAGE | (unsigned)cont->image_backing << CONT_BACKING |
                  (unsigned)(cont->published && !cont->owned) << CONT_PUBLISHED);
    r->slot = cont->slot;
    r->source_slot = cont->source_slot;
    for (uint32_t p = 0; p < store->n_pools && !cont->owned; p++) { /* an alias has none */
        r->entries += cont->space[p].count;
        r->chunks += chunks_for(cont->space[p].count);
    }
    add_recorded(a, i, 1);
}

uint32_t audit_forget_cont(struct audit *a, uint32_t i) {
    struct store *store = a->store;
    if (i == 0) {
        store->touched->n = 0;
        a->entries = a->chunks = 0;
        memset(a->conts, 0, sizeof a->conts);
        if (store->config.has_state)
            memset(store->slot_recount, 0, store->config.state_slots * sizeof *store->slot_recount);
    }
    store->conts[i].touched = false;
    store->recount[i] = (struct cont_recount){ .slot = KVD_NONE, .source_slot = KVD_NONE };
    return 1;
}

/* ---- one by one ---- */

static void check_claims(struct audit *a, uint32_t i) {
    const struct store *store = a->store;
    const struct cont *cont = &store->conts[i];
    uint32_t claims = 0, pins = 0;
    for (uint32_t k = 0; k < store->config.max_concurrency; k++) {
        const struct seq *seq = &store->seqs[k];
        if (!seq->occupied || seq->state != STORE_SEQ_ACTIVATING) continue;
        claims += seq->from == i && !seq->keep;
        pins += seq->from == i && seq->keep;
        for (uint32_t v = seq->victims; v != KVD_NONE; v = store->conts[v].next_victim) claims += v == i;
    }
    EXPECT(claims <= 1 && (claims == 1) == cont->claimed, "continuation %u: %u claims, %s", i, claims,
           cont->claimed ? "claimed" : "free");
    EXPECT(cont->cut_to == 0 || (cont->claimed && cont->cut_to < cont->frontier && !cont->demoting),
           "continuation %u of %u tokens is to be cut to %u", i, cont->frontier, cont->cut_to);
    EXPECT(pins == cont->pins, "continuation %u: %u forks in flight, %u pins", i, pins, cont->pins);
    EXPECT(!cont->going || (cont->pins && !cont->published), "continuation %u goes, and nothing holds it", i);
}

/* GRP-5: a rolling checkpoint is one of its sequence's; and what is not published is somebody's. */
static void check_rolling(struct audit *a, uint32_t i) {
    const struct store *store = a->store;
    const struct cont *cont = &store->conts[i];
    const struct seq *seq = cont->rolls_for ? &store->seqs[cont->rolls_for - 1] : NULL;
    uint32_t listed = 0, at = store->in_flight;
    for (uint32_t k = 0; seq && seq->occupied && k < seq->n_rolled; k++)
        listed += seq->rolled[k].bits == cont_handle(store, cont).bits;
    EXPECT(!seq || listed == 1,
           "GRP-5: continuation %u is a rolling checkpoint of sequence %u, which lists it %u times", i,
           cont->rolls_for - 1, listed);
    if (cont->published || cont->owned || cont->going || i == store->fetching) return;
    while (at != KVD_NONE && at != i) at = store->conts[at].next_victim;
    EXPECT(seq || at == i, "continuation %u is not published, and nobody will", i);
}

/* GRP-5: no more than may be, in order, none past the frontier, and each found that has its names. */
static void check_rolled(struct audit *a, uint32_t i) {
    const struct store *store = a->store;
    const struct seq *seq = &store->seqs[i];
    struct store_rolling own[STORE_MAX_ROLLING];
    uint32_t last = 0, n = store_get_rolling(store, seq_handle(store, seq), own);
    EXPECT(n <= store->config.max_rolling, "GRP-5: sequence %u has %u rolling checkpoints", i, n);
    for (uint32_t k = 0; k < n; k++) {
        const struct cont *cont = cont_find(store, own[k].cont);
        uint32_t end = space_entry(store, &cont->space[0], cont->space[0].count - 1);
        EXPECT(cont->frontier > last && cont->frontier < seq->roll_next,
               "GRP-5: a rolling checkpoint of sequence %u at %u comes after one at %u, the next is due at %u", i,
               cont->frontier, last, seq->roll_next);
        EXPECT(cont->published || cont->source_slot != KVD_NONE || !(store->pool[0].pages[end].flags & PAGE_NAMED),
               "GRP-5: the rolling checkpoint of sequence %u at %u has its names, and is not found", i, cont->frontier);
        last = cont->frontier;
    }
}

/* NAME-1: each holder is of a domain that is found by its digest. */
static void check_domain(struct audit *a, const char *kind, uint32_t i, uint32_t d) {
    const struct domains *domains = &a->store->domains;
    EXPECT(d < domains->fresh && domains->list[d].references &&
               domain_find(a->store, &domains->list[d].root.digest) == d,
           "%s %u: NAME-1: its domain %u is not found", kind, i, d);
}

static void check_path(struct audit *a, uint32_t i) {
    const struct store *store = a->store;
    const struct node *nodes = store->index.nodes;
    const struct cont *cont = &store->conts[i];
    uint32_t end = cont->named + 1;
    EXPECT(cont->named <= cont->frontier / KVD_PAGE_TOKENS && nodes[cont->node].end == end,
           "continuation %u ends at step %u, named %u", i, nodes[cont->node].end, cont->named);
    for (uint32_t n = cont->node; n != KVD_NONE; n = nodes[n].parent) {
        EXPECT(nodes[n].end == end, "node %u ends at %u, its child begins at %u", n, nodes[n].end, end);
        end = nodes[n].begin;
        for (uint32_t step = nodes[n].begin; step < nodes[n].end; step++)
            EXPECT(memcmp(index_digest(store, cont, step), index_digest(store, &store->conts[nodes[n].some], step),
                          32) == 0,
                   "continuation %u step %u: the index has another digest", i, step);
        if (n)
            EXPECT(index_child(store, nodes[n].parent, index_digest(store, cont, nodes[n].begin)) == n,
                   "node %u is not found", n);
    }
    EXPECT(end == 0, "continuation %u: its path begins at %u", i, end);
    for (uint32_t page = 0; page < cont->named; page++)
        EXPECT(store->pool[0].pages[space_entry(store, &cont->space[0], page)].flags & PAGE_NAMED,
               "continuation %u page %u has no name", i, page);
}

/* Among the ends of its node, in order of their tails: it is found by its own, and so is whoever stands behind it. */
static void check_end(struct audit *a, uint32_t c) {
    const struct store *store = a->store;
    uint32_t n = store->conts[c].node, next = end_next(store, c);
    EXPECT(end_is_found(store, c), "node %u: continuation %u is not found by its tail", n, c);
    if (next == KVD_NONE) return;
    const struct cont *behind = &store->conts[next];
    EXPECT(behind->occupied && behind->published && behind->node == n, "node %u ends stale continuation %u", n, next);
    EXPECT(end_previous(store, next) == c, "node %u: %u is not behind %u", n, next, c);
}

static void check_order(struct audit *a, uint32_t i) {
    const struct store *store = a->store;
    uint32_t next = order_next(store, i);
    EXPECT(store->conts[i].ordered && order_is_found(store, i), "continuation %u is not where it stands in the order",
           i);
    if (next == KVD_NONE) return;
    const struct cont *behind = &store->conts[next];
    EXPECT(behind->occupied && behind->published && behind->ordered && behind->demoted == store->conts[i].demoted,
           "continuation %u is not where it stands in the order", next);
    EXPECT(order_is_first(store, i, next), "continuation %u goes before %u", next, i);
}

uint32_t audit_cont(struct audit *a, uint32_t i) {
    const struct cont *cont = &a->store->conts[i];
    uint32_t work = a->store->config.max_concurrency / 4 + MOVE_LIMIT / 4;
    record_counts(a, i);
    if (!cont->occupied) return 1;
    check_claims(a, i);
    audit_image(a, i);
    check_rolling(a, i);
    if (!cont->owned) check_domain(a, "continuation", i, cont->domain);
    if (!cont->published) return work;
    const struct store *store = a->store;
    EXPECT(cont->change && cont->change <= store->n_changes &&
               (store->n_changes - cont->change >= store->change_limit ||
                store->changes[(cont->change - 1) % store->change_limit].bits == cont_handle(store, cont).bits),
           "FEED-1: nothing tells that continuation %u has changed", i);
    check_path(a, i);
    check_end(a, i);
    if (!cont->owned) check_order(a, i);
    return work + 2 * cont->named + 16;
}

/* ---- index and domains ---- */

static bool is_below(const struct store *store, uint32_t node, uint32_t n) {
    while (n != KVD_NONE && n != node) n = store->index.nodes[n].parent;
    return n == node;
}

static void check_siblings(struct audit *a, uint32_t n) {
    const struct node *nodes = a->store->index.nodes, *node = &nodes[n];
    uint32_t before = node->prev == KVD_NONE ? nodes[node->parent].first_child : nodes[node->prev].next;
    EXPECT(before == n &&
               (node->next == KVD_NONE || (nodes[node->next].prev == n && nodes[node->next].parent == node->parent)),
           "node %u is not the parent of %u", node->parent, n);
}

uint32_t audit_node(struct audit *a, uint32_t n) {
    struct store *store = a->store;
    struct index *index = &store->index;
    const struct node *node = &index->nodes[n];
    if (n == 0) index->recounted = 0;
    index->audited = n + 1;
    if (n && node->parent == KVD_NONE) return 1;
    index->recounted++;
    if (node->ends != KVD_NONE)
        EXPECT(store->conts[node->ends].published && store->conts[node->ends].node == n,
               "node %u ends stale continuation %u", n, node->ends);
    if (node->first_child != KVD_NONE)
        EXPECT(index->nodes[node->first_child].parent == n, "node %u is not the parent of %u", n, node->first_child);
    if (!n) return 4;
    check_siblings(a, n);
    bool branches = node->first_child != KVD_NONE && index->nodes[node->first_child].next != KVD_NONE;
    EXPECT(node->begin < node->end && (node->ends != KVD_NONE || branches), "node %u is of no use", n);
    EXPECT(store->conts[node->some].published && is_below(store, n, store->conts[node->some].node),
           "node %u reads continuation %u, which is elsewhere", n, node->some);
    return 8;
}

uint32_t audit_bucket(struct audit *a, uint32_t bucket) {
    struct domains *domains = &a->store->domains;
    uint32_t work = 0;
    if (bucket == 0) domains->recounted = 0, domains->recounted_holders = 0;
    domains->audited = bucket + 1;
    for (uint32_t d = domains->hash[bucket]; d != KVD_NONE && work <= domains->capacity; d = domains->list[d].next) {
        domains->recounted_holders += domains->list[d].references;
        domains->recounted++;
        work++;
    }
    return work + (bucket % 8 == 0);
}

/* ---- sequences, and what is compared all at once ---- */

struct seq_sums {
    uint32_t n, owners;
    uint64_t entries, chunks, reserved;
};

/* LIVE-1: its descriptor is found for as many pages as are named and complete in all pools. (The pages:
 * audit_spaces.c.)
 */
static void check_live(struct audit *a, uint32_t i) {
    const struct store *store = a->store;
    const struct seq *seq = &store->seqs[i];
    const struct cont *cont = &store->conts[seq->own];
    uint32_t committed[KVD_MAX_POOLS] = { 0 }, pages = 0;
    for (uint32_t p = 0; p < store->n_pools; p++) committed[p] = seq->space[p].committed;
    if (seq->state != STORE_SEQ_ACTIVATING) pages = live_reach(store, seq, committed);
    EXPECT(live_now(store, seq) == pages, "LIVE-1: %u pages of sequence %u are to be found, %u are", pages, i,
           live_now(store, seq));
    if (!cont->published) return;
    EXPECT(cont->frontier == cont->named * KVD_PAGE_TOKENS && cont->tag == seq->tag && cont->domain == seq->domain &&
               !cont->claimed && !cont->demoted && !cont->moves && !cont->ordered && !cont->going,
           "LIVE-1: what is found of sequence %u is not its own", i);
}

/* FIT-2: every active sequence owns one descriptor, and every owned descriptor is one sequence's. */
static void check_own(struct audit *a, uint32_t i, struct seq_sums *sums) {
    const struct store *store = a->store;
    const struct seq *seq = &store->seqs[i];
    EXPECT(seq->own != KVD_NONE || seq->state == STORE_SEQ_ACTIVATING, "FIT-2: sequence %u owns no descriptor", i);
    if (seq->own == KVD_NONE) return;
    sums->owners++;
    EXPECT(store->conts[seq->own].occupied && store->conts[seq->own].owned,
           "FIT-2: sequence %u owns descriptor %u, which is no sequence's", i, seq->own);
    check_live(a, i);
}

static void count_seq(struct audit *a, uint32_t i, struct seq_sums *sums) {
    const struct store *store = a->store;
    const struct seq *seq = &store->seqs[i];
    sums->n++;
    check_own(a, i, sums);
    if (seq->n_rolled) check_rolled(a, i);
    check_domain(a, "sequence", i, seq->domain);
    for (uint32_t p = 0; p < store->n_pools; p++) {
        const struct space *space = &seq->space[p];
        sums->chunks += chunks_for(space->count);
        sums->entries += space->count;
        if (!seq->staged) sums->reserved += chunks_for(seq_reach(store, seq, p)) - chunks_for(space->count);
    }
    sums->reserved += seq->chunks_held;
    sums->reserved -= seq->chunks_pending;
    if (!store->config.has_state) return;
    if (seq->state != STORE_SEQ_ACTIVATING && seq->state_slot < store->config.state_slots)
        store->slot_recount[seq->state_slot].owners++;
    if (seq->source_slot < store->config.state_slots) store->slot_recount[seq->source_slot].pins++;
}

static void check_slots(struct audit *a) {
    const struct store *store = a->store;
    uint32_t used = 0;
    for (uint32_t i = 0; i < store->config.max_concurrency; i++) { /* in flight: fresh, or a victim's or the source's */
        const struct seq *seq = &store->seqs[i];
        if (!seq->occupied || seq->state != STORE_SEQ_ACTIVATING || seq->state_slot >= store->config.state_slots)
            continue;
        if (store->slot_recount[seq->state_slot].owners == 0) store->slot_recount[seq->state_slot].owners = 1;
    }
    for (uint32_t s = 0; s < store->config.state_slots; s++) {
        const struct slot_recount *r = &store->slot_recount[s];
        const struct slot *slot = &store->slots[s];
        EXPECT(r->owners <= 1 && (r->owners == 1) == slot->used, "state slot %u has %u owners and is %s", s, r->owners,
               slot->used ? "used" : "free");
        EXPECT(r->pins == slot->pins, "state slot %u has %u pins, transitions hold %u", s, slot->pins, r->pins);
        used += r->owners || r->pins;
        EXPECT(r->owners || r->pins || s >= store->slot_hint, "state slot %u is free below the hint %u", s,
               store->slot_hint);
    }
    EXPECT(used == store->slots_used, "%u state slots used, %u counted", used, store->slots_used);
}

static void check_membership(struct audit *a, const struct seq_sums *sums) {
    const struct store *store = a->store;
    const struct chunks *c = &store->chunks;
    uint64_t used = a->chunks + sums->chunks, entries = a->entries + sums->entries, freed = 0;
    uint32_t chunk = c->head;
    for (; chunk != KVD_NONE && freed < AUDIT_LINKS && freed <= c->capacity; freed++)
        chunk = c->entries[(size_t)chunk * CHUNK];
    EXPECT(used == c->used && (chunk == KVD_NONE ? used + freed == c->fresh : used + freed <= c->fresh),
           "membership: %llu chunks used, %u counted, %llu freed of %u ever used", (unsigned long long)used, c->used,
           (unsigned long long)freed, c->fresh);
    EXPECT(sums->reserved == c->reserved && used + sums->reserved <= c->capacity,
           "membership: %llu chunks reserved, %u counted, capacity %u", (unsigned long long)sums->reserved, c->reserved,
           c->capacity);
    EXPECT(entries == store->entries, "membership: %llu entries, %llu counted", (unsigned long long)entries,
           (unsigned long long)store->entries);
}

static void check_free(struct audit *a, const struct seq_sums *sums) {
    const struct store *store = a->store;
    uint32_t conts = a->conts[CONT_OCCUPIED], free_seqs = 0, free_conts = 0;
    for (uint32_t i = store->seq_free; i != KVD_NONE && free_seqs <= store->config.max_concurrency;
         i = store->seqs[i].next_free)
        free_seqs++;
    for (uint32_t i = store->cont_free;
         i != KVD_NONE && free_conts <= store->config.max_continuations && free_conts < AUDIT_LINKS;
         i = store->conts[i].next_free)
        free_conts++;
    EXPECT(sums->n == store->seqs_used && sums->n + free_seqs <= store->config.max_concurrency,
           "%u sequences, %u counted, %u free", sums->n, store->seqs_used, free_seqs);
    EXPECT(conts == store->conts_used && conts + free_conts <= store->config.max_continuations,
           "%u continuations, %u counted, %u free", conts, store->conts_used, free_conts);
    EXPECT(a->conts[CONT_PUBLISHED] == lives_balance(store), "%u continuations are published, %llu were made and live",
           a->conts[CONT_PUBLISHED], (unsigned long long)lives_balance(store));
    EXPECT(a->conts[CONT_OWNED] == sums->owners && sums->owners == store->conts_owned,
           "FIT-2: %u descriptors are owned by %u sequences, counts %u", a->conts[CONT_OWNED], sums->owners,
           store->conts_owned);
    EXPECT(a->conts[CONT_IMAGE] == store->host_images && a->conts[CONT_DEMOTED] == store->demoted,
           "%u images and %u demoted, counts %u and %u", a->conts[CONT_IMAGE], a->conts[CONT_DEMOTED],
           store->host_images, store->demoted);
}

static void check_names(struct audit *a, const struct seq_sums *sums) {
    const struct store *store = a->store;
    const struct domains *domains = &store->domains;
    uint64_t holders = sums->n + a->conts[CONT_OCCUPIED] - a->conts[CONT_OWNED];
    EXPECT(domains->recounted == domains->used && domains->recounted_holders == holders,
           "domains: %u found, %u counted; %llu references, %llu holders", domains->recounted, domains->used,
           (unsigned long long)domains->recounted_holders, (unsigned long long)holders);
    EXPECT(store->index.recounted == store->index.used, "index: %u nodes, %u counted", store->index.recounted,
           store->index.used);
}

static void mend_conts(struct audit *a) {
    const struct touched *touched = a->store->touched;
    for (uint32_t i = 0; i < touched->n; i++) {
        add_recorded(a, touched->item[i], UINT32_MAX);
        record_counts(a, touched->item[i]);
    }
}

void audit_objects(struct audit *a) {
    const struct store *store = a->store;
    struct seq_sums sums = { 0 };
    a->summed = store->touched->n <= TOUCHED_LIMIT;
    if (!a->summed) return;
    mend_conts(a);
    for (uint32_t i = 0; i < store->config.max_concurrency; i++)
        if (store->seqs[i].occupied) count_seq(a, i, &sums);
    for (uint32_t i = store->in_flight; i != KVD_NONE; i = store->conts[i].next_victim)
        EXPECT(store->conts[i].occupied && !store->conts[i].published, "continuation %u is not in flight", i);
    check_membership(a, &sums);
    if (store->config.has_state) check_slots(a);
    check_free(a, &sums);
    check_names(a, &sums);
}
