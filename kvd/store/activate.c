/* SPDX-License-Identifier: Apache-2.0
 *
 * Activation: begin, commit, abort (ACT-*). begin first counts and checks everything (activation.c); what follows
 * cannot fail.
 *
 * In flight, a fork holds ordinary references on the pages that it shares. A move holds none: its membership is an
 * alias of the source's (which is claimed) and takes the references over at commit. Pages that victims or a moved
 * source still hold are "pending": their number is reserved, and entries mapped onto them are filled, when those go at
 * commit.
 */
#include "store_internal.h"

#include <string.h>

/* ---- begin ---- */

static void take_pages(struct store *store, uint32_t p, struct seq *seq, const struct cont *source, bool move,
                       int32_t *row) {
    struct pool *pool = &store->pool[p];
    uint32_t n;
    if (pool->absent && !MUTANT(restored_page_is_forgotten))
        job_copy_in(store, &seq->job, p, &source->space[p], seq->taken[p]);
    space_skip(store, &seq->space[p], source->space[p].base);
    for (uint32_t i = source->space[p].base; i < seq->taken[p]; i += n) {
        const uint32_t *run = space_run(store, &source->space[p], i, &n);
        n = min_u32(n, seq->taken[p] - i);
        for (uint32_t k = 0; k < n; k++) {
            const struct page *page = &pool->pages[run[k]];
            __builtin_prefetch(page + AHEAD, 1); /* neighbours in a space are mostly neighbours here */
            if (row) row[i + k] = (int32_t)page->device;
            if (!move) page_ref(pool, run[k], true);
        }
        space_append(store, &seq->space[p], run, n);
    }
}

static void copy_source_tail(struct store *store, uint32_t p, struct seq *seq, const struct cont *source,
                             const struct activation_pool *ap, int32_t *row, struct store_activated *out) {
    struct pool *pool = &store->pool[p];
    uint32_t columns = ap->tail_columns;
    uint32_t from = space_entry(store, &source->space[p], seq->taken[p]);
    space_map(store, p, &seq->space[p], 1, row);
    uint32_t to = space_entry(store, &seq->space[p], seq->taken[p]);
    page_commit(store, p, to, columns);
    page_pin(pool, to, 0); /* the other end when all is mapped: it may be promised, and is read before it is written */
    seq->tail_source[p] = from;
    seq->tail[p] = to;
    seq->tail_in[p] = ap->tail_in;
    if (ap->tail_in) return;
    out->copies[out->n_copies++] = (struct store_copy){ .kind = STORE_COPY_PAGE,
                                                        .pool = p,
                                                        .src = pool->pages[from].device,
                                                        .dst = pool->pages[to].device,
                                                        .columns = columns };
}

/* Maps n entries onto pages that will be freed at commit: those that the last count left wholly marked. */
static uint32_t promise_from(struct store *store, uint32_t p, struct seq *seq, const struct space *space,
                             uint32_t first, uint32_t stamp, uint32_t n, int32_t *row) {
    struct page *pages = store->pool[p].pages;
    uint32_t run_n, left = n;
    for (uint32_t i = max_u32(first, space->base); i < space->count && left; i += run_n) {
        const uint32_t *run = space_run(store, space, i, &run_n);
        for (uint32_t k = 0; k < run_n && left; k++) {
            struct page *page = &pages[run[k]];
            if (page->stamp != stamp || !joint_frees(store, p, run[k])) continue;
            page->mark = 0; /* once */
            if (row) row[seq->space[p].count] = (int32_t)page->device;
            uint32_t entry = page->device | PROMISED;
            space_append(store, &seq->space[p], &entry, 1);
            left--;
        }
    }
    return n - left;
}

static void promise_pages(struct store *store, uint32_t p, struct seq *seq, const struct activation *act, uint32_t n,
                          int32_t *row) {
    for (uint32_t i = 0; i < act->n_victims && n; i++)
        n -= promise_from(store, p, seq, &act->victims[i].cont->space[p], victim_first(&act->victims[i]), act->stamp, n,
                          row);
    if (n && act->move) promise_from(store, p, seq, &act->source->space[p], seq->taken[p], act->stamp, n, row);
}

static void begin_pool(struct store *store, uint32_t p, struct seq *seq, const struct activation *act,
                       struct store_activated *out) {
    const struct activation_pool *ap = &act->pool[p];
    struct space *space = &seq->space[p];
    struct pool *pool = &store->pool[p];
    int32_t *row = seq->shown ? row_entries(store, p, seq->row[p]) : NULL;
    seq->taken[p] = ap->taken;
    if (act->source) take_pages(store, p, seq, act->source, act->move, row);
    uint32_t fresh = ap->fresh - ap->restore, now = min_u32(fresh, pool_available(pool));
    pool->reserved += now;
    space->reserved = now;
    space->pending = fresh - now;
    store->chunks.reserved += chunks_for(ap->mapped) - chunks_for(space->count);
    if (ap->tail_columns) copy_source_tail(store, p, seq, act->source, ap, row, out);
    seq->restored[p] = out->restored[p] = ap->restore + ap->tail_in;
    uint32_t real = min_u32(ap->mapped - space->count, space->reserved);
    if (real) space_map(store, p, space, real, row);
    uint32_t promised = ap->mapped - space->count;
    if (promised) {
        uint32_t before = chunks_for(space->count);
        promise_pages(store, p, seq, act, promised, row);
        space->pending -= promised;
        store->chunks.reserved -= chunks_for(space->count) - before;
    }
    if (ap->tail_columns) page_pin(pool, seq->tail_source[p], 0); /* its continuation protects it */
    space->committed = act->want->frontier;
    space->shared = act->move ? 0 : ap->taken;
    seq_view(store, seq, p, seq->shown ? space->count : 0, &out->pool[p]);
}

/* The growth part of the membership is reserved; what only victims or the moved source free is pending. */
static void begin_chunks(struct store *store, struct seq *seq, const struct activation *act) {
    uint32_t rest = act->chunks_needed - act->chunks_now, now = min_u32(rest, chunks_available(&store->chunks));
    store->chunks.reserved += now;
    seq->chunks_pending = rest - now;
}

static void begin_state(struct store *store, struct seq *seq, const struct activation *act) {
    if (!store->config.has_state) return;
    if (act->move && !act->image_in) {
        seq->state_slot = act->source->slot;
    } else if (slots_free(store)) {
        seq->state_slot = slot_take(store);
    } else { /* a victim's: handed over at commit */
        uint32_t i = 0;
        while (act->victims[i].cont->slot == KVD_NONE || store->slots[act->victims[i].cont->slot].pins) i++;
        seq->state_slot = act->victims[i].cont->slot;
    }
    if (act->move || act->image_in) seq->state_frontier = act->want->frontier;
    seq->image_in = act->image_in;
    if (act->image_in) {
        act->source->image_pins++;
    } else if (act->source && !act->move) {
        seq->source_slot = act->source->slot;
        slot_pin(store, seq->source_slot);
    }
}

/* Nobody drops the host replicas that a victim is going to rest on. */
static void count_demoting(struct store *store, const struct cont *victim, bool on) {
    uint32_t n;
    for (uint32_t p = 0; p < store->n_pools; p++)
        for (uint32_t i = victim->space[p].base; i < victim->space[p].count; i += n) {
            const uint32_t *run = space_run(store, &victim->space[p], i, &n);
            for (uint32_t k = 0; k < n; k++) store->pool[p].tier[run[k]].demoting += on ? 1 : UINT32_MAX;
        }
}

static void begin_claims(struct store *store, struct seq *seq, const struct activation *act) {
    if (act->source) {
        seq->from = (uint32_t)(act->source - store->conts);
        seq->named = min_u32(act->source->named, act->want->frontier / KVD_PAGE_TOKENS);
        if (act->move) act->source->claimed = true;
        else act->source->pins++;
    }
    for (uint32_t i = 0; i < act->n_victims; i++) {
        act->victims[i].cont->claimed = true;
        act->victims[i].cont->demoting = act->victims[i].demote;
        act->victims[i].cont->cut_to = act->victims[i].frontier;
        if (act->victims[i].demote) count_demoting(store, act->victims[i].cont, true);
        act->victims[i].cont->next_victim = seq->victims;
        seq->victims = (uint32_t)(act->victims[i].cont - store->conts);
    }
    seq->n_victims = act->n_victims;
}

/* What the victims (and a moved source) let go although a demoted continuation holds it too: nobody else may count on
 * it from now on. */
static void mark_leaving(struct store *store, uint32_t p, const struct space *space, uint32_t first, uint32_t by,
                         bool on) {
    struct pool *pool = &store->pool[p];
    uint32_t n;
    for (uint32_t i = max_u32(first, space->base); i < space->count; i += n) {
        const uint32_t *run = space_run(store, space, i, &n);
        for (uint32_t k = 0; k < n; k++) {
            struct page *page = &pool->pages[run[k]];
            struct page_tier *tier = &pool->tier[run[k]];
            if (!on) { /* another activation may have promised it */
                if (tier->leaving_for == by) page->flags = (uint8_t)(page->flags & ~PAGE_LEAVING);
            } else if (tier->demoted && joint_frees(store, p, run[k])) {
                page->flags |= PAGE_LEAVING;
                tier->leaving_for = by;
            }
        }
    }
}

static void clear_leaving(struct store *store, const struct seq *seq) {
    uint32_t by = (uint32_t)(seq - store->seqs);
    for (uint32_t p = 0; p < store->n_pools && store->pool[p].tier; p++) {
        for (uint32_t v = seq->victims; v != KVD_NONE; v = store->conts[v].next_victim)
            mark_leaving(store, p, &store->conts[v].space[p], 0, by, false);
        if (seq->from != KVD_NONE && !seq->keep)
            mark_leaving(store, p, &store->conts[seq->from].space[p], 0, by, false);
    }
}

static void set_leaving(struct store *store, const struct seq *seq, const struct activation *act) {
    uint32_t by = (uint32_t)(seq - store->seqs);
    for (uint32_t p = 0; p < store->n_pools && store->pool[p].tier; p++) {
        for (uint32_t i = 0; i < act->n_victims; i++)
            mark_leaving(store, p, &act->victims[i].cont->space[p], victim_first(&act->victims[i]), by, true);
        if (act->move) mark_leaving(store, p, &act->source->space[p], act->pool[p].taken, by, true);
    }
}

/* Extents for the demoted victims, and their copies into the list. */
static void begin_backing(struct store *store, struct seq *seq, const struct activation *act) {
    struct extent_page_want wants[KVD_MAX_POOLS + 1];
    uint32_t n = activation_extents(store, act, wants);
    const extent_id *ids = tier_take(store, wants, n);
    for (uint32_t w = 0; w < n; w++) {
        uint32_t p = wants[w].tag;
        for (uint32_t i = 0; i < act->n_victims; i++) {
            struct cont *victim = act->victims[i].cont;
            if (!act->victims[i].demote) continue;
            if (p < KVD_MAX_POOLS) ids += job_copy_out(store, &seq->job, p, &victim->space[p], ids);
            else if (!victim->image.bits) image_copy_out(store, victim, *ids++);
        }
    }
}

/* Holds what there is until the victims have given way. */
static void hold_for_victims(struct store *store, struct seq *seq, const struct activation *act) {
    seq->staged = true;
    seq->want = *act->want;
    seq->want.victims = NULL;
    seq->want.n_victims = 0;
    for (uint32_t p = 0; p < store->n_pools; p++) {
        uint32_t now = min_u32(act->pool[p].fresh, pool_available(&store->pool[p]));
        store->pool[p].reserved += now;
        seq->space[p].reserved = now;
        seq->space[p].pending = act->pool[p].fresh - now;
    }
    seq->chunks_held = min_u32(act->chunks_needed, chunks_available(&store->chunks));
    store->chunks.reserved += seq->chunks_held;
    if (act->slots_needed && slots_free(store)) seq->state_slot = slot_take(store);
}

static void release_held(struct store *store, struct seq *seq) {
    for (uint32_t p = 0; p < store->n_pools; p++) {
        store->pool[p].reserved -= seq->space[p].reserved;
        seq->space[p].reserved = seq->space[p].pending = 0;
    }
    store->chunks.reserved -= seq->chunks_held;
    seq->chunks_held = 0;
    slot_release(store, seq->state_slot);
    seq->state_slot = KVD_NONE;
    seq->staged = false;
}

/* Bytes are still to come into what it will map, by its own copies or by another transition's. */
static bool awaits_copies(const struct store *store, const struct activation *act) {
    bool awaits = act->image_in;
    for (uint32_t p = 0; act->source && p < store->n_pools; p++) {
        const struct activation_pool *ap = &act->pool[p];
        awaits |= ap->restore || ap->tail_columns;
        awaits |= store->pool[p].absent && tier_any(store, p, &act->source->space[p], ap->taken, PAGE_RESTORING);
    }
    return awaits && !MUTANT(row_beside_its_copies);
}

/* Membership, reservations, and rows where they have nothing to wait for: all that begin publishes in the store. */
static void begin_map(struct store *store, struct seq *seq, const struct activation *act, struct store_activated *out) {
    seq->shown = !awaits_copies(store, act);
    for (uint32_t p = 0; p < store->n_pools; p++) begin_pool(store, p, seq, act, out);
    begin_chunks(store, seq, act);
    begin_state(store, seq, act);
    out->state_slot = seq->state_slot;
    out->source_state_slot = seq->source_slot;
}

/* For room that the copies need before the victims can go: those that are to be released or shortened go now. */
static uint32_t release_now(struct store *store, struct activation *act) {
    uint32_t lost = 0, left = 0;
    for (uint32_t i = 0; i < act->n_victims; i++) {
        if (act->victims[i].demote) {
            act->victims[left++] = act->victims[i];
            continue;
        }
        victim_release(store, &act->victims[i]);
        lost++;
    }
    act->n_victims = left;
    if (lost) activation_measure(store, act, NULL);
    return lost;
}

/* What a fork takes over from a demoted source, and victims let go of, stays on the device until it is referenced. */
static void pin_source_pages(struct store *store, const struct cont *source, uint32_t frontier, bool on) {
    for (uint32_t p = 0; p < store->n_pools; p++)
        tier_pin_pages(store, p, &source->space[p], frontier / KVD_PAGE_TOKENS, on);
}

static void unpin_source_pages(struct store *store, struct seq *seq) {
    if (seq->holds_source) pin_source_pages(store, &store->conts[seq->from], seq->frontier, false);
    seq->holds_source = false;
}

static void begin_activation(struct store *store, struct activation *act, struct store_activated *ret_activated) {
    struct store_activated out;
    memset(&out, 0, sizeof out);
    out.state_slot = out.source_state_slot = KVD_NONE;
    bool demotes = false;
    for (uint32_t i = 0; i < act->n_victims; i++) demotes |= act->victims[i].demote;
    bool was_demoted = act->move && act->source->demoted;
    if (was_demoted) { /* references that somebody counts on are coming: counted as such from here on */
        cont_undemote(store, act->source);
        activation_measure(store, act, NULL);
    }
    bool holds = act->source && act->source->demoted;
    if (holds) pin_source_pages(store, act->source, act->want->frontier, true);
    uint32_t lost = 0;
    if ((act->arena_needed && !act->arena_now) || (!demotes && activation_is_short_now(store, act)))
        lost = release_now(store, act);
    struct seq *seq = seq_take(store);
    seq->lease = act->want->lease;
    seq->tag = act->want->tag;
    seq->domain = act->source ? domain_hold(store, act->source->domain) : domain_take(store, &act->want->root);
    seq->prompt = act->want->prompt_tokens;
    seq->ceiling = act->ceiling;
    roll_begin(store, seq, act->want);
    seq->keep = act->want->keep;
    seq->frontier = act->want->frontier;
    seq->victims_lost = lost;
    for (uint32_t p = 0; p < store->n_pools; p++) seq->row[p] = row_take(store, p, (uint32_t)(seq - store->seqs));
    seq->was_demoted = was_demoted;
    if ((act->n_victims || act->move) && !MUTANT(leaving_page_reused)) set_leaving(store, seq, act);
    if (demotes && activation_is_short_now(store, act)) hold_for_victims(store, seq, act);
    else begin_map(store, seq, act, &out);
    begin_claims(store, seq, act);
    seq_own_descriptor(store, seq);
    if (demotes) begin_backing(store, seq, act);
    seq->holds_source = holds && seq->staged;
    if (holds && !seq->holds_source) pin_source_pages(store, act->source, act->want->frontier, false);
    out.staged = seq->staged;
    out.victims_lost = lost;
    for (uint32_t p = 0; p < store->n_pools && seq->staged; p++) seq_view(store, seq, p, 0, &out.pool[p]);
    out.seq = seq_handle(store, seq);
    store_changed(store, true);
    *ret_activated = out;
}

int store_activate_begin(struct store *store, const struct store_activation *want,
                         struct store_activated *ret_activated, struct store_refusal *refusal) {
    struct activation act;
    int rc = activation_resolve(store, want, &act, refusal);
    if (rc == STORE_OK) rc = activation_measure(store, &act, refusal);
    if (rc == STORE_OK) rc = activation_check(store, &act, refusal);
    if (rc == STORE_OK) begin_activation(store, &act, ret_activated);
    return rc;
}

int store_activate_look(const struct store *store, store_seq handle, struct store_activated *ret_activated,
                        struct store_refusal *refusal) {
    const struct seq *seq = seq_find(store, handle);
    struct store_activated out;
    if (!seq) return store_refuse(refusal, STORE_E_STALE, STORE_S_SEQUENCE, KVD_NONE, handle.bits, 0, 0);
    memset(&out, 0, sizeof out);
    out.seq = handle;
    out.staged = seq->staged;
    out.state_slot = seq->state_slot;
    out.source_state_slot = seq->source_slot;
    out.n_copies = tail_copies(store, seq, out.copies);
    for (uint32_t p = 0; p < store->n_pools; p++) {
        out.restored[p] = seq->restored[p];
        seq_view(store, seq, p, seq->shown ? seq->space[p].count : 0, &out.pool[p]);
    }
    *ret_activated = out;
    return STORE_OK;
}

/* ---- both ends ---- */

static int find_activating(const struct store *store, store_seq handle, struct seq **ret_seq,
                           struct store_refusal *refusal) {
    struct seq *seq = seq_find(store, handle);
    if (!seq) return store_refuse(refusal, STORE_E_STALE, STORE_S_SEQUENCE, KVD_NONE, handle.bits, 0, 0);
    if (seq->state != STORE_SEQ_ACTIVATING)
        return store_refuse(refusal, STORE_E_STATE, STORE_S_SEQUENCE, KVD_NONE, (uint64_t)STORE_SEQ_ACTIVATING,
                            (uint64_t)seq->state, 0);
    *ret_seq = seq;
    return STORE_OK;
}

static void unpin_tails(struct store *store, struct seq *seq) {
    for (uint32_t p = 0; p < store->n_pools; p++) {
        struct pool_batch batch = { &store->pool[p], 0, 0 };
        if (seq->tail[p] == KVD_NONE) continue;
        page_unpin(store, &batch, seq->tail_source[p]);
        page_unpin(store, &batch, seq->tail[p]);
        pool_flush(&batch);
        seq->tail_source[p] = seq->tail[p] = KVD_NONE;
        seq->tail_in[p] = false;
    }
}

/* ---- commit ---- */

static void take_over_tail(struct store *store, uint32_t p, uint32_t d, uint32_t columns) {
    if (store->pool[p].pages[d].committed != columns) page_commit(store, p, d, columns);
    else page_write_on(store, p, d);
}

/* The source's references become the sequence's; what it does not keep goes. */
static void take_over(struct store *store, struct seq *seq, struct cont *source) {
    life_use(store, source);
    if (!MUTANT(move_is_no_end)) life_end(store, source, STORE_MOVED);
    record_cont_drop(store, source); /* the sequence's record is there */
    index_drop(store, source);
    if (!MUTANT(directory_keeps_consumed)) source->published = false; /* nothing writes its record again */
    cont_drop_image(store, source);                                   /* of a frontier that the sequence leaves */
    for (uint32_t p = 0; p < store->n_pools; p++) {
        struct pool *pool = &store->pool[p];
        uint32_t n, kept = seq->taken[p];
        space_drop(store, p, &source->space[p], kept, false, false, NULL);
        space_cut(store, &source->space[p], 0);
        for (uint32_t i = seq->space[p].base; i < kept; i += n) {
            const uint32_t *run = space_run(store, &seq->space[p], i, &n);
            n = min_u32(n, kept - i);
            for (uint32_t k = 0; k < n; k++) {
                pool->pages[run[k]].active_references++;
                page_update(pool, run[k]);
            }
        }
        uint32_t tail = seq->frontier / KVD_PAGE_TOKENS, columns = seq->frontier % KVD_PAGE_TOKENS;
        if (kept > tail) take_over_tail(store, p, space_entry(store, &seq->space[p], tail), columns);
    }
    cont_free(store, source);
}

static void map_promised(struct store *store, struct seq *seq) {
    for (uint32_t p = 0; p < store->n_pools; p++) {
        struct space *space = &seq->space[p];
        struct pool *pool = &store->pool[p];
        for (uint32_t i = space->count; i-- > space->base;) { /* promised entries are the last ones */
            uint32_t n, *entry = space_run(store, space, i, &n);
            if (!(*entry & PROMISED)) break;
            uint32_t device = *entry & ~PROMISED;
            pool_take(pool, device, 1);
            *entry = page_open(store, p, device, i, true);
        }
        pool->reserved += space->pending;
        space->reserved += space->pending;
        space->pending = 0;
    }
    store->chunks.reserved += seq->chunks_pending;
    seq->chunks_pending = 0;
}

/* Released, shortened or demoted; their slot is the sequence's where it was handed over. */
static void release_victim(struct store *store, struct seq *seq, struct cont *victim) {
    const struct victim how = { .cont = victim, .frontier = victim->cut_to };
    if (victim->slot != KVD_NONE && victim->slot == seq->state_slot) victim->slot = KVD_NONE;
    cont_touch(store, victim);
    victim->claimed = false;
    victim->cut_to = 0;
    if (!victim->demoting) {
        seq->victims_lost++;
        victim_release(store, &how);
        if (how.frontier) cont_give_up_lost(store, victim); /* damage before the cut waited for the claim's end */
        return;
    }
    victim->demoting = false;
    store->lives.victims_demoted++;
    count_demoting(store, victim, false);
    if (!MUTANT(directory_keeps_handed_slot)) record_cont(store, victim); /* its slot may have gone */
    cont_demote(store, victim);
}

static void release_victims(struct store *store, struct seq *seq) {
    while (seq->victims != KVD_NONE) {
        struct cont *victim = &store->conts[seq->victims];
        seq->victims = victim->next_victim;
        victim->next_victim = KVD_NONE;
        release_victim(store, seq, victim);
    }
    seq->n_victims = 0;
}

/* The copies of the stage are there. */
static void finish_copies(struct store *store, struct seq *seq, bool ok) {
    job_finish(store, &seq->job, ok);
    for (uint32_t v = seq->victims; v != KVD_NONE; v = store->conts[v].next_victim)
        if (store->conts[v].image_backing) image_finish(store, &store->conts[v], ok);
    if (!seq->image_in) return;
    image_unpin(store, &store->conts[seq->from]);
    seq->image_in = false;
}

/* STORE_OK, or why what was copied is not all. Own pages that an aborted neighbour left half brought are taken over. */
static int check_arrived(struct store *store, struct seq *seq, struct store_refusal *refusal) {
    const struct cont *source = seq->from == KVD_NONE ? NULL : &store->conts[seq->from];
    bool more = false, waits = false;
    if (!source) return STORE_OK;
    if (seq->damaged) return store_refuse(refusal, STORE_E_DAMAGED, STORE_S_CONTINUATION, KVD_NONE, 0, 0, 0);
    if (source->image_lost && !image_in_slot(source))
        return store_refuse(refusal, STORE_E_DAMAGED, STORE_S_STATE_SLOT, KVD_NONE, 0, 0, 0);
    for (uint32_t p = 0; p < store->n_pools && store->pool[p].tier; p++) {
        const struct space *space = &source->space[p];
        if (tier_any(store, p, space, pages_of(seq->frontier), PAGE_LOST) && !MUTANT(lost_page_is_taken))
            return store_refuse(refusal, STORE_E_DAMAGED, STORE_S_CONTINUATION, p, 0, 0, 0);
        more |= !MUTANT(orphan_is_forgotten) && job_adopt(store, &seq->job, p, space, seq->taken[p]);
        waits |= store->pool[p].absent && tier_any(store, p, space, seq->taken[p], PAGE_RESTORING);
    }
    return more ? STORE_MORE : waits && !MUTANT(waits_for_nobody) ? STORE_WAIT : STORE_OK;
}

/* ---- what was promised at begin (damage may have taken it: a demoted continuation needs the device again, a victim
 * cannot rest) ---- */

static uint32_t count_leaving(const struct store *store, const struct seq *seq, uint32_t p, uint32_t stamp) {
    uint32_t freed = 0;
    for (uint32_t v = seq->victims; v != KVD_NONE; v = store->conts[v].next_victim) {
        const struct cont *victim = &store->conts[v];
        const struct joint how = { p, pages_of(victim->cut_to), stamp, !victim->demoting, victim->demoted };
        freed += joint_mark(store, &victim->space[p], &how);
    }
    if (seq->from == KVD_NONE || seq->keep) return freed;
    const struct cont *source = &store->conts[seq->from];
    return freed +
           joint_mark(store, &source->space[p], &(struct joint){ p, seq->taken[p], stamp, true, source->demoted });
}

/* Promised entries are the last ones. Their pages, and as many as are pending beside them, leave the device now. */
static bool promise_holds(const struct store *store, const struct seq *seq, uint32_t p) {
    const struct pool *pool = &store->pool[p];
    const struct space *space = &seq->space[p];
    uint32_t n, stamp = store_next_stamp(store), freed = 0, promised = 0;
    if (!space->pending && (!space_held(space) || !(space_entry(store, space, space->count - 1) & PROMISED)))
        return true;
    freed = count_leaving(store, seq, p, stamp);
    for (uint32_t i = space->count; i-- > space->base; promised++) {
        uint32_t entry = *space_run(store, space, i, &n);
        if (!(entry & PROMISED)) break;
        uint32_t d = pool->leases[entry & ~PROMISED].owner;
        if (d == KVD_NONE || pool->pages[d].stamp != stamp || !joint_frees(store, p, d)) return false;
    }
    return freed >= promised + space->pending;
}

static bool victims_are_current(const struct store *store, const struct seq *seq) {
    for (uint32_t v = seq->victims; v != KVD_NONE; v = store->conts[v].next_victim)
        if (store->conts[v].demoting && !tier_all_current(store, &store->conts[v])) return false;
    return true;
}

static int check_promises(const struct store *store, const struct seq *seq, struct store_refusal *refusal) {
    if (!victims_are_current(store, seq))
        return store_refuse(refusal, STORE_E_REVISION, STORE_S_RECIPE, KVD_NONE, 0, store->revision, 0);
    for (uint32_t p = 0; p < store->n_pools; p++)
        if (!promise_holds(store, seq, p))
            return store_refuse(refusal, STORE_E_REVISION, STORE_S_RECIPE, p, 0, store->revision, 0);
    return STORE_OK;
}

/* The same for what is held until the victims have given way: what is there now and what they leave must do, counted
 * anew. */
static int check_held(const struct store *store, const struct seq *seq, struct activation *act,
                      struct store_refusal *refusal) {
    if (!victims_are_current(store, seq))
        return store_refuse(refusal, STORE_E_REVISION, STORE_S_RECIPE, KVD_NONE, 0, store->revision, 0);
    for (uint32_t v = seq->victims; v != KVD_NONE; v = store->conts[v].next_victim) {
        act->victims[act->n_victims++] =
            (struct victim){ &store->conts[v], store->conts[v].demoting, store->conts[v].cut_to };
    }
    int rc = activation_measure(store, act, refusal);
    for (uint32_t p = 0; p < store->n_pools && rc == STORE_OK; p++) {
        const struct activation_pool *ap = &act->pool[p];
        uint64_t now = (uint64_t)pool_available(&store->pool[p]) + seq->space[p].reserved;
        if (now + ap->freed < ap->fresh || now + ap->freed_victims < activation_now(ap))
            rc = store_refuse(refusal, STORE_E_REVISION, STORE_S_RECIPE, p, 0, store->revision, 0);
    }
    act->n_victims = 0;
    return rc;
}

/* The victims have been copied: they give way, and the rest of begin is done. */
static int commit_stage(struct store *store, struct seq *seq, struct store_refusal *refusal) {
    struct cont *source = seq->from == KVD_NONE ? NULL : &store->conts[seq->from];
    struct activation act = {
        .want = &seq->want,
        .source = source,
        .move = source && !seq->keep,
        .ceiling = seq->ceiling,
        .victims = store->victims,
    };
    struct store_activated out;
    memset(&out, 0, sizeof out);
    finish_copies(store, seq, true);
    clear_leaving(store, seq);
    int rc = check_held(store, seq, &act, refusal);
    if (rc) return rc;
    release_victims(store, seq);
    seq_own_descriptor(store, seq);
    release_held(store, seq);
    activation_measure(store, &act, NULL);
    if (act.move) set_leaving(store, seq, &act);
    begin_map(store, seq, &act, &out);
    unpin_source_pages(store, seq);
    return STORE_MORE;
}

/* The place that a staged fork would read its tail from may have been promised since: who counts on it goes first.
 * (What it shares is pinned; a source that a move takes over is no longer demoted, so nobody can count on its pages.)
 */
static bool tail_is_leaving(const struct store *store, const struct seq *seq) {
    uint32_t block = seq->frontier / KVD_PAGE_TOKENS;
    if (seq->from == KVD_NONE || !seq->keep || seq->frontier % KVD_PAGE_TOKENS == 0) return false;
    for (uint32_t p = 0; p < store->n_pools; p++) {
        uint32_t d = space_entry(store, &store->conts[seq->from].space[p], block);
        bool leaving = store->pool[p].pages[d].flags & PAGE_LEAVING;
        if (leaving && store->pool[p].tier[d].leaving_for != (uint32_t)(seq - store->seqs)) return true;
    }
    return false;
}

/* ROW-4, PAGE-7: all bytes are there, so the rows may name the pages. */
static void show_rows(struct store *store, struct seq *seq) {
    for (uint32_t p = 0; p < store->n_pools; p++)
        space_copy_ids(store, p, &seq->space[p], (uint32_t *)row_entries(store, p, seq->row[p]), seq->space[p].count);
    seq->shown = true;
}

/* A fork from it is in flight no more. */
static void unpin_fork_source(struct store *store, struct cont *source) {
    source->pins--;
    if (source->going && source->pins == 0) cont_release(store, source, STORE_RELEASED);
    else if (!source->going) cont_give_up_lost(store, source); /* what it lost lies past the frontier */
}

/* It served: it goes later. */
static void count_use(struct store *store, struct cont *source) {
    if (source->owned || source->going) return;
    life_use(store, source);
    order_drop(store, source);
    source->used = store->operations;
    order_insert(store, source);
    if (!MUTANT(use_is_not_told)) note_change(store, source);
    record_cont(store, source);
}

static void publish_sequence(struct store *store, struct seq *seq) {
    clear_leaving(store, seq);   /* damage may have left pages on the device that nobody counted on in the end */
    release_victims(store, seq); /* before the move: a tail that victims shared goes on in place */
    if (seq->from != KVD_NONE) record_seq_whole(store, seq, seq->frontier);
    if (seq->from != KVD_NONE) {
        struct cont *source = &store->conts[seq->from];
        if (seq->keep) {
            seq_own_descriptor(store, seq);
            live_show(store, seq, source->published ? source : NULL);
            count_use(store, source);
            unpin_fork_source(store, source);
        } else {
            take_over(store, seq, source);
        }
    }
    map_promised(store, seq);
    seq->from = KVD_NONE;
    seq->state = STORE_SEQ_ACTIVE;
    seq_own_descriptor(store, seq);
    live_update(store, seq);
}

int store_activate_commit(struct store *store, store_seq handle, struct store_refusal *refusal) {
    struct seq *seq = NULL;
    int rc = find_activating(store, handle, &seq, refusal);
    if (rc) return rc;
    if (!seq->staged) {
        if (store->arena || seq->image_in) finish_copies(store, seq, true);
        rc = check_arrived(store, seq, refusal);
        if (rc == STORE_OK) unpin_tails(store, seq); /* a tail's source may be promised */
        if (rc == STORE_OK) rc = check_promises(store, seq, refusal);
        if (rc == STORE_OK && seq->shown) {
            publish_sequence(store, seq);
        } else if (rc == STORE_OK) {
            show_rows(store, seq);
            rc = STORE_MORE;
        }
    } else {
        rc = check_arrived(store, seq, refusal);
        if (rc == STORE_OK || rc == STORE_WAIT)
            rc = tail_is_leaving(store, seq) ? STORE_WAIT : commit_stage(store, seq, refusal);
    }
    if (rc != STORE_WAIT) store_changed(store, true);
    return rc;
}

/* ---- abort ---- */

static void abort_victims(struct store *store, struct seq *seq, bool *slot_is_ours) {
    while (seq->victims != KVD_NONE) {
        struct cont *victim = &store->conts[seq->victims];
        seq->victims = victim->next_victim;
        victim->next_victim = KVD_NONE;
        if (victim->demoting) count_demoting(store, victim, false);
        victim->claimed = victim->demoting = false;
        victim->cut_to = 0;
        if (seq->state_slot != KVD_NONE && victim->slot == seq->state_slot) *slot_is_ours = false;
        cont_give_up_lost(store, victim);
    }
}

static void abort_mapping(struct store *store, struct seq *seq, const struct cont *source) {
    store->chunks.reserved += seq->chunks_pending; /* was never taken */
    for (uint32_t p = 0; p < store->n_pools; p++) {
        struct space *space = &seq->space[p];
        store->chunks.reserved -= chunks_for(seq_reach(store, seq, p)) - chunks_for(space->count);
        store->pool[p].reserved -= space->reserved;
        space_drop(store, p, space, seq->taken[p], true, false, NULL);
        if (source && seq->keep) space_drop(store, p, space, 0, true, false, NULL);
        else space_cut(store, space, 0);
    }
}

void seq_abort(struct store *store, struct seq *seq) {
    struct cont *source = seq->from == KVD_NONE ? NULL : &store->conts[seq->from];
    bool slot_is_ours = seq->state_slot != KVD_NONE && (!source || seq->keep || seq->state_slot != source->slot);
    finish_copies(store, seq, false);
    unpin_tails(store, seq);
    seq_unpin_source(store, seq);
    clear_leaving(store, seq);
    abort_victims(store, seq, &slot_is_ours);
    unpin_source_pages(store, seq);
    if (seq->staged) release_held(store, seq);
    else abort_mapping(store, seq, source);
    if (slot_is_ours) slot_release(store, seq->state_slot);
    if (source && !seq->keep) source->claimed = false;
    if (source && seq->was_demoted && tier_all_current(store, source) && !MUTANT(abort_forgets_demoted))
        cont_demote(store, source);
    if (source && seq->keep) unpin_fork_source(store, source);
    else if (source) cont_give_up_lost(store, source);
    seq_free(store, seq);
}

int store_activate_abort(struct store *store, store_seq handle, uint32_t *ret_victims_lost,
                         struct store_refusal *refusal) {
    struct kvd_pool_view rows[KVD_MAX_POOLS];
    struct seq *seq = NULL;
    int rc = find_activating(store, handle, &seq, refusal);
    if (rc) return rc;
    if (ret_victims_lost) *ret_victims_lost = seq->victims_lost;
    seq_release_rows(store, seq, rows);
    seq_abort(store, seq);
    store_changed(store, true);
    return STORE_OK;
}
