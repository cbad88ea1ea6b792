/* SPDX-License-Identifier: Apache-2.0
 *
 * What is to be copied: the copies of a transition's stage one by one, their checksums, and damage that they find.
 *
 * A cursor is a part (state image, tails, victims' images, then a pool's job) and a position in it.
 */
#include "store_internal.h"

#include <string.h>

#define REPLICA_IMAGE (UINT64_C(1) << 62) /* | continuation slot; else pool << 32 | descriptor */

struct owner {             /* of the copies */
    const struct seq *seq; /* or */
    const struct move *move;
    const struct tier_job *job;
};

static bool find_owner(const struct store *store, struct store_transition of, struct owner *ret_owner) {
    struct owner owner = { 0 };
    if (of.is_move) {
        uint32_t i = (uint32_t)of.bits;
        if (i >= MOVE_LIMIT || !store->moves[i].occupied || store->moves[i].generation != of.bits >> 32) return false;
        owner.move = &store->moves[i];
        owner.job = &owner.move->job;
    } else {
        owner.seq = seq_find(store, (store_seq){ of.bits });
        if (!owner.seq || owner.seq->state != STORE_SEQ_ACTIVATING) return false;
        owner.job = &owner.seq->job;
    }
    *ret_owner = owner;
    return true;
}

/* ---- one copy ---- */

struct store_copy page_copy(const struct store *store, uint32_t p, uint32_t d) {
    const struct page *page = &store->pool[p].pages[d];
    bool out = page->flags & PAGE_BACKING;
    return (struct store_copy){ .kind = out ? STORE_COPY_PAGE_OUT : STORE_COPY_PAGE_IN,
                                .pool = p,
                                .src = page->device,
                                .dst = page->device,
                                .columns = page->host_columns,
                                .host = extent_offset(store->arena, page->host),
                                .bytes = store->config.host_stride[p],
                                .checksum = out ? 0 : store->pool[p].tier[d].checksum,
                                .replica = (uint64_t)p << 32 | d };
}

static struct store_copy tail_copy(const struct store *store, const struct seq *seq, uint32_t p) {
    const struct page *from = &store->pool[p].pages[seq->tail_source[p]], *to = &store->pool[p].pages[seq->tail[p]];
    if (!seq->tail_in[p])
        return (struct store_copy){
            .kind = STORE_COPY_PAGE, .pool = p, .src = from->device, .dst = to->device, .columns = to->committed
        };
    struct store_copy copy = page_copy(store, p, seq->tail_source[p]);
    copy.kind = STORE_COPY_PAGE_IN;
    copy.checksum = store->pool[p].tier[seq->tail_source[p]].checksum;
    copy.src = copy.dst = to->device;
    copy.columns = to->committed;
    return copy;
}

uint32_t tail_copies(const struct store *store, const struct seq *seq, struct store_copy ret_copies[KVD_MAX_POOLS]) {
    uint32_t n = 0;
    for (uint32_t p = 0; p < store->n_pools; p++)
        if (seq->tail[p] != KVD_NONE && !seq->tail_in[p]) ret_copies[n++] = tail_copy(store, seq, p);
    return n;
}

struct store_copy image_copy(const struct store *store, const struct cont *cont, bool out, uint32_t slot) {
    return (struct store_copy){ .kind = out ? STORE_COPY_STATE_OUT : STORE_COPY_STATE_IN,
                                .src = slot,
                                .dst = slot,
                                .host = extent_offset(store->arena, cont->image),
                                .bytes = store->config.host_state_stride,
                                .checksum = out ? 0 : cont->image_checksum,
                                .replica = REPLICA_IMAGE | (uint64_t)(cont - store->conts) };
}

/* ---- lists ---- */

/* Part 0: state image in. 1..pools: tails. Then the victims' images, then the job of each pool. */
enum {
    PART_IMAGE = 0,
    PART_TAILS = 1,
    PART_VICTIMS = PART_TAILS + KVD_MAX_POOLS,
    PART_JOB,
    PART_END = PART_JOB + KVD_MAX_POOLS
};

static uint32_t first_of(const struct owner *o, uint32_t part) {
    if (part >= PART_JOB) return o->job->head[part - PART_JOB];
    if (part == PART_VICTIMS) return o->seq ? o->seq->victims : KVD_NONE;
    return 0;
}

/* The copy at a position, if there is one, and the next position (NONE: the part ends). */
static bool copy_at(const struct store *store, const struct owner *o, uint32_t part, uint32_t at, uint32_t *ret_next,
                    struct store_copy *ret_copy) {
    *ret_next = KVD_NONE;
    if (part >= PART_JOB) {
        *ret_next = store->pool[part - PART_JOB].tier[at].link;
        *ret_copy = page_copy(store, part - PART_JOB, at);
        return true;
    }
    if (part == PART_VICTIMS) {
        const struct cont *victim = &store->conts[at];
        *ret_next = victim->next_victim;
        if (victim->image_backing) *ret_copy = image_copy(store, victim, true, victim->slot);
        return victim->image_backing;
    }
    if (part == PART_IMAGE && o->seq) {
        if (o->seq->image_in) *ret_copy = image_copy(store, &store->conts[o->seq->from], false, o->seq->state_slot);
        return o->seq->image_in;
    }
    if (part == PART_IMAGE) {
        const struct cont *cont = o->move->image ? cont_find(store, o->move->cont) : NULL;
        if (cont) *ret_copy = image_copy(store, cont, cont->image_backing, cont->slot);
        return cont != NULL;
    }
    uint32_t p = part - PART_TAILS;
    if (!o->seq || p >= store->n_pools || o->seq->tail[p] == KVD_NONE) return false;
    *ret_copy = tail_copy(store, o->seq, p);
    return true;
}

uint32_t store_next_copies(const struct store *store, struct store_transition of, uint64_t *cursor,
                           struct store_copy *ret_copies, uint32_t max) {
    struct owner o;
    uint32_t n = 0;
    if (!find_owner(store, of, &o)) return 0;
    uint32_t part = (uint32_t)(*cursor >> 32), at = *cursor ? (uint32_t)*cursor : first_of(&o, 0);
    while (n < max && part < PART_END) {
        uint32_t next = KVD_NONE;
        if (at != KVD_NONE) n += copy_at(store, &o, part, at, &next, &ret_copies[n]);
        at = next;
        if (at == KVD_NONE && ++part < PART_END) at = first_of(&o, part);
    }
    *cursor = (uint64_t)part << 32 | at;
    return n;
}

int store_get_work(const struct store *store, struct store_transition of, struct store_work *ret_work) {
    struct store_work work = { 0 };
    struct store_copy copies[64];
    struct owner o;
    uint64_t cursor = 0;
    uint32_t n;
    if (!find_owner(store, of, &o)) return STORE_E_STALE;
    while ((n = store_next_copies(store, of, &cursor, copies, 64)) > 0)
        for (uint32_t i = 0; i < n; i++) {
            bool out = copies[i].kind == STORE_COPY_PAGE_OUT || copies[i].kind == STORE_COPY_STATE_OUT;
            bool in = copies[i].kind == STORE_COPY_PAGE_IN || copies[i].kind == STORE_COPY_STATE_IN;
            work.copies_out += out;
            work.copies_in += in;
            work.copies_device += !out && !in;
            if (out) work.bytes_out += copies[i].bytes;
            if (in) work.bytes_in += copies[i].bytes;
        }
    *ret_work = work;
    return STORE_OK;
}

static bool has_copies(const struct store *store, const struct seq *seq) {
    if (!seq->occupied || seq->state != STORE_SEQ_ACTIVATING) return false;
    if (seq->image_in || !job_is_empty(store, &seq->job)) return true;
    for (uint32_t p = 0; p < store->n_pools; p++)
        if (seq->tail[p] != KVD_NONE && seq->tail_in[p]) return true;
    return false;
}

uint32_t moves_in_flight(const struct store *store) {
    uint32_t n = store->moves_used;
    for (uint32_t i = 0; store->arena && store->seqs_used && i < store->config.max_concurrency; i++)
        n += has_copies(store, &store->seqs[i]);
    return n;
}

/* ---- checksums ---- */

static bool replica_exists(const struct store *store, uint64_t replica) {
    uint32_t index = (uint32_t)replica;
    if (replica & REPLICA_IMAGE) return index < store->config.max_continuations && store->conts[index].occupied;
    uint64_t p = replica >> 32;
    return p < store->n_pools && store->pool[p].tier && index < store->pool[p].descriptors;
}

void store_copied_out(struct store *store, uint64_t replica, uint64_t checksum) {
    if (!replica_exists(store, replica)) return;
    checksum += checksum == 0; /* 0: not told yet */
    if (replica & REPLICA_IMAGE) store->conts[(uint32_t)replica].image_checksum = checksum;
    else store->pool[replica >> 32].tier[(uint32_t)replica].checksum = checksum;
}

/* Whoever holds the page and is in no transition is released, or no longer demoted. A page has one place in all spaces,
 * so that one look at each continuation does, until all inactive references are found; and the search begins where the
 * last one ended, for bad memory is mostly of one continuation. */
static uint32_t tell_holders(struct store *store, uint32_t p, uint32_t d, bool lost) {
    uint32_t released = 0, block = store->pool[p].tier[d].block, first = store->last_holder,
             limit = store->config.max_continuations;
    uint32_t left = store->pool[p].pages[d].references - store->pool[p].pages[d].active_references;
    for (uint32_t i = 0; i < limit && left; i++) {
        uint32_t at = (first + i) % limit;
        struct cont *cont = &store->conts[at];
        if (!cont->occupied || cont->owned || cont->space[p].count <= block ||
            space_entry(store, &cont->space[p], block) != d)
            continue;
        left--;
        store->last_holder = at;
        if (!cont->published) continue;
        cont->demotes_again |= lost && cont->demoted;
        cont_undemote(store, cont);
        if (lost) released += cont_give_up_lost(store, cont);
    }
    return released;
}

/* Once a replica, however many find it. */
static void count_damage(struct store *store) {
    store->damaged++;
    store_changed(store, true);
}

static uint32_t damaged_image(struct store *store, struct cont *cont) {
    if (!cont->image.bits || cont->image_backing || cont->image_lost) return 0;
    count_damage(store);
    for (uint32_t i = 0; cont->image_pins && i < store->config.max_concurrency;
         i++) { /* what is in its slot is made of it */
        struct seq *seq = &store->seqs[i];
        seq->damaged |= seq->occupied && seq->image_in && seq->from == (uint32_t)(cont - store->conts);
    }
    cont->image_lost = true; /* the extent stays until the copies that use it have ended */
    if (image_in_slot(cont) && cont->image_pins == 0) cont_drop_image(store, cont);
    else record_cont(store, cont);
    return cont_give_up_lost(store, cont);
}

uint32_t store_damaged(struct store *store, uint64_t replica) {
    if (!replica_exists(store, replica)) return 0;
    if (replica & REPLICA_IMAGE) return damaged_image(store, &store->conts[(uint32_t)replica]);
    uint32_t p = (uint32_t)(replica >> 32), d = (uint32_t)replica;
    struct page *page = &store->pool[p].pages[d];
    if (!(page->flags & PAGE_OCCUPIED) || !page->host.bits || (page->flags & (PAGE_BACKING | PAGE_LOST))) return 0;
    bool lost = !page_on_device(page);
    count_damage(store);
    for (uint32_t i = 0; page->pins && i < store->config.max_concurrency;
         i++) { /* a tail is made of it: of bytes that do not match */
        struct seq *seq = &store->seqs[i];
        seq->damaged |= seq->occupied && seq->tail_in[p] && seq->tail_source[p] == d && !MUTANT(damaged_tail_is_taken);
    }
    if (lost && !MUTANT(damage_keeps_holders)) page_lose(store, p, d);
    else page_leave_host(store, p, d);
    return tell_holders(store, p, d, lost);
}
