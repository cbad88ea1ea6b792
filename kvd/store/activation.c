/* SPDX-License-Identifier: Apache-2.0
 *
 * What an activation comes to: resolves its handles and counts exactly what it needs and what its recipe frees,
 * changing nothing. Plan and begin both stand on this, so they cannot disagree (ACT-8).
 */
#include "store_internal.h"

#include <string.h>

/* ---- arguments and states ---- */

static bool is_of_domain(const struct store *store, const struct cont *cont, const kvd_digest *digest) {
    if (store_root_is_none(digest) || MUTANT(source_of_any_domain)) return true;
    return domain_find(store, digest) == cont->domain;
}

static int check_source(const struct store *store, struct activation *act, struct store_refusal *refusal) {
    const struct store_activation *want = act->want;
    if (want->from.bits == 0) {
        if (want->frontier)
            return store_refuse(refusal, STORE_E_RANGE, STORE_S_FRONTIER, KVD_NONE, want->frontier, 0, 0);
        return STORE_OK;
    }
    struct cont *source = cont_find(store, want->from);
    if (!source) return store_refuse(refusal, STORE_E_STALE, STORE_S_CONTINUATION, KVD_NONE, want->from.bits, 0, 0);
    act->source = source;
    act->move = !want->keep;
    if (!is_of_domain(store, source, &want->root.digest))
        return store_refuse(refusal, STORE_E_ARGUMENT, STORE_S_DOMAIN, KVD_NONE, want->from.bits, 0, 0);
    if (cont_is_live(source) && want->frontier % KVD_PAGE_TOKENS && !MUTANT(live_one_is_cut))
        return store_refuse(refusal, STORE_E_RANGE, STORE_S_FRONTIER, KVD_NONE, want->frontier,
                            want->frontier / KVD_PAGE_TOKENS * KVD_PAGE_TOKENS, source->frontier);
    if (act->move && cont_check_live(store, source, refusal)) return STORE_E_BUSY;
    if (!source->published || source->claimed || (act->move && source->pins))
        return store_refuse(refusal, STORE_E_BUSY, STORE_S_CONTINUATION, KVD_NONE, 0, source->pins, 0);
    if (source->image_lost && !image_in_slot(source))
        return store_refuse(refusal, STORE_E_DAMAGED, STORE_S_CONTINUATION, KVD_NONE, want->from.bits, 0, 0);
    if (act->move && source->image_pins)
        return store_refuse(refusal, STORE_E_BUSY, STORE_S_STATE_SLOT, KVD_NONE, 0, source->image_pins, 0);
    if (act->move && source->slot != KVD_NONE && store->slots[source->slot].pins)
        return store_refuse(refusal, STORE_E_BUSY, STORE_S_STATE_SLOT, KVD_NONE, 0, store->slots[source->slot].pins, 0);
    if (want->frontier < 1)
        return store_refuse(refusal, STORE_E_RANGE, STORE_S_FRONTIER, KVD_NONE, want->frontier, source->frontier,
                            source->frontier);
    if (want->frontier > source->frontier) /* it may have been as long when it was found */
        return store_refuse(refusal, STORE_E_STALE, STORE_S_FRONTIER, KVD_NONE, want->frontier, source->frontier,
                            source->frontier);
    if (store->config.has_state && want->frontier != source->frontier) /* CONT-4 */
        return store_refuse(refusal, STORE_E_RANGE, STORE_S_STATE_FRONTIER, KVD_NONE, want->frontier, source->frontier,
                            source->frontier);
    for (uint32_t p = 0; p < store->n_pools && !MUTANT(fork_behind_a_window); p++) /* GRP-4 */
        if (window_first(store, p, want->frontier) < source->space[p].base)
            return store_refuse(refusal, STORE_E_RANGE, STORE_S_FRONTIER, p, want->frontier,
                                window_lowest(store, p, source->space[p].base), source->frontier);
    return STORE_OK;
}

int activation_resolve(const struct store *store, const struct store_activation *want, struct activation *ret_act,
                       struct store_refusal *refusal) {
    uint32_t s = store->config.max_context;
    struct activation act = { .want = want, .victims = store->victims };
    if (want->lease == 0) return store_refuse(refusal, STORE_E_ARGUMENT, STORE_S_SEQUENCE, KVD_NONE, 0, 0, 0);
    if (want->prompt_tokens < 1 || want->prompt_tokens < want->frontier || want->prompt_tokens > s)
        return store_refuse(refusal, STORE_E_RANGE, STORE_S_PROMPT, KVD_NONE, want->prompt_tokens, want->frontier, s);
    if (want->max_output_tokens < 1 || want->max_output_tokens > s - want->prompt_tokens + 1)
        return store_refuse(refusal, STORE_E_RANGE, STORE_S_OUTPUT, KVD_NONE, want->max_output_tokens,
                            want->prompt_tokens, s - want->prompt_tokens + 1);
    if (want->checkpoint_every % KVD_PAGE_TOKENS)
        return store_refuse(refusal, STORE_E_ARGUMENT, STORE_S_BOUNDARY, KVD_NONE, want->checkpoint_every, 0, 0);
    act.ceiling = want->prompt_tokens + want->max_output_tokens - 1;
    int rc = check_source(store, &act, refusal);
    if (rc) return rc;
    const struct recipe recipe = { want->victims, want->n_victims, want->revision, act.source, act.move };
    rc = recipe_resolve(store, &recipe, act.victims, &act.n_victims, refusal);
    if (rc == STORE_OK) *ret_act = act;
    return rc;
}

/* ---- joint release ---- */

/* A page leaves the device when its references are marked or demoted; one that a copy uses stays. */
uint32_t joint_mark(const struct store *store, const struct space *space, const struct joint *how) {
    const struct pool *pool = &store->pool[how->pool];
    uint32_t freed = 0, n;
    for (uint32_t i = max_u32(how->first, space->base); i < space->count; i += n) {
        const uint32_t *run = space_run(store, space, i, &n);
        for (uint32_t k = 0; k < n; k++) {
            struct page *page = &pool->pages[run[k]];
            if (page->stamp != how->stamp) {
                page->stamp = how->stamp;
                page->mark = 0;
                if (pool->tier) pool->tier[run[k]].gone = 0;
            }
            if (pool->tier && how->released) pool->tier[run[k]].gone++;
            if (how->demoted) continue; /* counts already */
            page->mark = MUTANT(jointly_held_counts_once) ? page->references : page->mark + 1;
            freed += joint_frees(store, how->pool, run[k]);
        }
    }
    return freed;
}

/* What is taken over from a demoted source stays on the device, whoever else lets go of it. What a moved one drops
 * counts like that of one that does not rest: it goes at its own turn. */
static void mark_source(const struct store *store, const struct activation *act, uint32_t p) {
    const struct space *space = &act->source->space[p];
    uint32_t n, count = act->move ? space->count : act->pool[p].taken;
    for (uint32_t i = space->base; i < count; i += n) {
        const uint32_t *run = space_run(store, space, i, &n);
        n = min_u32(n, count - i);
        for (uint32_t k = 0; k < n; k++) {
            store->pool[p].pages[run[k]].stamp = act->stamp;
            store->pool[p].pages[run[k]].mark = i + k < act->pool[p].taken ? STAYS : UINT32_MAX;
            store->pool[p].tier[run[k]].gone = 0;
        }
    }
}

static void count_freed(const struct store *store, struct activation *act) {
    act->stamp = store_next_stamp(store);
    act->chunks_freed_victims = act->chunks_freed = act->slots_freed = 0;
    for (uint32_t p = 0; p < store->n_pools; p++) {
        struct activation_pool *ap = &act->pool[p];
        ap->freed_victims = 0;
        if (act->source && act->source->demoted && !MUTANT(source_counts_as_freed)) mark_source(store, act, p);
        for (uint32_t i = 0; i < act->n_victims; i++) {
            const struct cont *victim = act->victims[i].cont;
            const struct joint how = { p, victim_first(&act->victims[i]), act->stamp, !act->victims[i].demote,
                                       victim->demoted };
            ap->freed_victims += joint_mark(store, &victim->space[p], &how);
            if (!act->victims[i].demote) act->chunks_freed_victims += victim_chunks(&act->victims[i], p);
        }
        ap->freed = ap->freed_victims;
        if (!act->move) continue;
        ap->freed += joint_mark(store, &act->source->space[p],
                                &(struct joint){ p, ap->taken, act->stamp, MUTANT(extents_of_a_mover_at_begin),
                                                 false }); /* its extents go at commit */
        act->chunks_freed += chunks_for(act->source->space[p].count);
    }
    act->chunks_freed += act->chunks_freed_victims;
    act->conts_freed = 0;
    for (uint32_t i = 0; i < act->n_victims; i++) {
        const struct cont *victim = act->victims[i].cont;
        act->conts_freed += victim_leaves_descriptor(&act->victims[i]);
        act->slots_freed += victim->slot != KVD_NONE && store->slots[victim->slot].pins == 0;
    }
}

/* ---- the arena ---- */

/* Pages of one demoted victim that no host replica covers, each once over all victims. False: another transition is
 * copying some. */
static bool count_backing(const struct store *store, uint32_t p, const struct space *space, uint32_t stamp,
                          uint32_t *count) {
    uint32_t n;
    for (uint32_t i = space->base; i < space->count; i += n) {
        const uint32_t *run = space_run(store, space, i, &n);
        for (uint32_t k = 0; k < n; k++) {
            struct page *page = &store->pool[p].pages[run[k]];
            if (page->flags & PAGE_BACKING) return false;
            if ((page->stamp == stamp && !MUTANT(demotes_twice)) || page_is_current(page)) continue;
            page->stamp = stamp;
            ++*count;
        }
    }
    return true;
}

static int count_demotions(const struct store *store, struct activation *act, struct store_refusal *refusal) {
    uint32_t stamp = store_next_stamp(store);
    act->images = 0;
    for (uint32_t p = 0; p < store->n_pools; p++) act->pool[p].demote = 0;
    for (uint32_t i = 0; i < act->n_victims; i++) {
        if (!act->victims[i].demote) continue;
        for (uint32_t p = 0; p < store->n_pools; p++)
            if (!count_backing(store, p, &act->victims[i].cont->space[p], stamp, &act->pool[p].demote))
                return store_refuse(refusal, STORE_E_REVISION, STORE_S_RECIPE, KVD_NONE, act->want->revision,
                                    store->revision, 0);
        act->images += store->config.has_state && !act->victims[i].cont->image.bits;
    }
    return STORE_OK;
}

/* Extents that go with the released victims (after count_freed). */
static uint32_t collect_drops(const struct store *store, const struct activation *act) {
    uint32_t n_ids = 0, n;
    for (uint32_t v = 0; v < act->n_victims; v++) {
        if (act->victims[v].demote) continue;
        extent_id image = act->victims[v].cont->image; /* where there are images nothing is shortened */
        if (image.bits && !arena_is_read(store, image)) store->ids[n_ids++] = image;
        for (uint32_t p = 0; p < store->n_pools; p++) {
            const struct space *space = &act->victims[v].cont->space[p];
            for (uint32_t i = max_u32(victim_first(&act->victims[v]), space->base); i < space->count; i += n) {
                const uint32_t *run = space_run(store, space, i, &n);
                for (uint32_t k = 0; k < n; k++) {
                    const struct page *page = &store->pool[p].pages[run[k]];
                    struct page_tier *tier = &store->pool[p].tier[run[k]];
                    if (tier->gone != page->references || page->pins || !page->host.bits) continue;
                    if (arena_is_read(store, page->host)) continue; /* comes later */
                    tier->gone = 0;                                 /* once */
                    store->ids[n_ids++] = page->host;
                }
            }
        }
    }
    return n_ids;
}

uint32_t activation_extents(const struct store *store, const struct activation *act,
                            struct extent_page_want wants[KVD_MAX_POOLS + 1]) {
    uint32_t n = 0;
    for (uint32_t p = 0; p < store->n_pools; p++)
        if (act->pool[p].demote)
            wants[n++] = (struct extent_page_want){ store->config.host_stride[p], act->pool[p].demote, p };
    if (act->images)
        wants[n++] = (struct extent_page_want){ store->config.host_state_stride, act->images, KVD_MAX_POOLS };
    return n;
}

static void measure_arena(const struct store *store, struct activation *act) {
    struct extent_page_want wants[KVD_MAX_POOLS + 1];
    uint32_t placed[KVD_MAX_POOLS + 1], n = activation_extents(store, act, wants);
    uint64_t pages = 0;
    act->arena_needed = act->arena_placed = 0;
    act->arena_now = true;
    if (n == 0) return;
    for (uint32_t i = 0; i < n; i++) {
        act->arena_needed += wants[i].stride * wants[i].pages;
        pages += wants[i].pages;
    }
    if (pages > store->max_extents) { /* more than the arena could ever hold: no room to play it */
        act->arena_now = false;
        return;
    }
    act->arena_now = extent_pages_fit(store->arena, NULL, 0, wants, n, store->fit_scratch, placed);
    if (!act->arena_now)
        extent_pages_fit(store->arena, store->ids, collect_drops(store, act), wants, n, store->fit_scratch, placed);
    for (uint32_t i = 0; i < n; i++) act->arena_placed += wants[i].stride * placed[i];
}

/* ---- needs ---- */

/* A moved tail goes on in place unless somebody else reads it: another reference, or a copy in flight that would be
 * cut. */
static bool tail_in_place(const struct store *store, const struct activation *act, uint32_t pool, uint32_t block,
                          uint32_t columns) {
    uint32_t descriptor = space_entry(store, &act->source->space[pool], block);
    const struct page *page = &store->pool[pool].pages[descriptor];
    return act->move && victims_leave(store, act, pool, block, descriptor) == 1 &&
           (page->pins == 0 || page->committed == columns);
}

/* A page that is lost cannot be taken; nor one that is promised to another activation and about to leave the device: of
 * a source that a move takes over, that is any page, for it must go on demoted as a whole. */
static int check_places(const struct store *store, const struct activation *act, uint32_t p,
                        struct store_refusal *refusal) {
    const struct space *space = &act->source->space[p];
    uint32_t n = min_u32(space->count, pages_of(act->want->frontier));
    if (tier_any(store, p, space, n, PAGE_LOST))
        return store_refuse(refusal, STORE_E_DAMAGED, STORE_S_CONTINUATION, p, act->want->from.bits, 0, 0);
    if (tier_any(store, p, space, act->move ? space->count : n, PAGE_LEAVING))
        return store_refuse(refusal, STORE_E_REVISION, STORE_S_REPLICA, p, act->want->revision, store->revision, 0);
    return STORE_OK;
}

static void measure_reach(const struct store *store, struct activation *act, uint32_t p, uint32_t base) {
    struct activation_pool *ap = &act->pool[p];
    ap->base = base;
    ap->entitlement = ap->reach = entitle_at_start(store, p, act->want->prompt_tokens, act->ceiling);
    if (!store->window_pages[p]) return;
    ap->reach = entitle_ceiling(store, p, act->ceiling);
    ap->entitlement = window_end(store, p, base, ap->reach);
}

static int measure_pool(const struct store *store, struct activation *act, uint32_t p, struct store_refusal *refusal) {
    const struct store_activation *want = act->want;
    struct activation_pool *ap = &act->pool[p];
    uint32_t full = want->frontier / KVD_PAGE_TOKENS, columns = want->frontier % KVD_PAGE_TOKENS;
    uint32_t ensure = pages_of(want->ensure[p]);
    const struct space none = { 0 }, *from = act->source ? &act->source->space[p] : &none;
    measure_reach(store, act, p, from->base);
    ap->taken = full;
    ap->tail_columns = columns;
    ap->tail_in = false;
    if (columns && tail_in_place(store, act, p, full, columns)) {
        ap->taken = full + 1;
        ap->tail_columns = 0;
    } else if (columns) {
        ap->tail_in = !page_on_device(&store->pool[p].pages[space_entry(store, &act->source->space[p], full)]);
    }
    if (act->source && store->pool[p].tier) {
        int rc = check_places(store, act, p, refusal);
        if (rc) return rc;
    }
    ap->mapped = pages_of(want->frontier);
    if (ensure > ap->entitlement)
        return store_refuse(refusal, STORE_E_RANGE, STORE_S_ENSURE, p, ensure, ap->mapped, ap->entitlement);
    if (ensure > ap->mapped)
        ap->mapped = (uint32_t)min_u64((uint64_t)ensure + store->config.map_ahead, ap->entitlement);
    ap->restore = act->source ? tier_missing(store, p, from, ap->taken) : 0;
    ap->fresh = store->window_pages[p] ? window_needs(store, p, from, ap->taken, ap->reach,
                                                      (struct blocks){ 0, act->move ? 0 : ap->taken }, act)
                                       : ap->entitlement - ap->taken;
    ap->fresh += MUTANT(restore_out_of_thin_air) ? 0 : ap->restore;
    act->chunks_needed += chunks_for(ap->reach);
    act->chunks_now += chunks_for(ap->mapped);
    return STORE_OK;
}

int activation_measure(const struct store *store, struct activation *act, struct store_refusal *refusal) {
    act->chunks_needed = act->chunks_now = 0;
    for (uint32_t p = 0; p < store->n_pools; p++) {
        int rc = measure_pool(store, act, p, refusal);
        if (rc) return rc;
    }
    act->image_in = store->config.has_state && act->source && !image_in_slot(act->source) &&
                    !(MUTANT(image_taken_before_it_is_there) && act->source->slot != KVD_NONE);
    act->conts_needed = !act->move || !cont_leaves_descriptor(act->source);
    act->slots_needed = store->config.has_state && (!act->move || act->image_in);
    int rc = count_demotions(store, act, refusal);
    if (rc) return rc;
    count_freed(store, act);
    if (store->arena) measure_arena(store, act);
    return STORE_OK;
}

static int check_never(const struct store *store, const struct activation *act, struct store_refusal *refusal) {
    for (uint32_t p = 0; p < store->n_pools; p++)
        if (act->pool[p].entitlement - act->pool[p].base > store->pool[p].capacity)
            return store_refuse(refusal, STORE_E_NEVER, STORE_S_PAGES, p, act->pool[p].entitlement - act->pool[p].base,
                                pool_available(&store->pool[p]), store->pool[p].capacity);
    if (act->chunks_needed > store->chunks.capacity)
        return chunks_refuse(store, STORE_E_NEVER, act->chunks_needed, chunks_available(&store->chunks), refusal);
    return STORE_OK;
}

/* Reservation, restored pages, tail page and mapped pages are four acquisitions; copies cannot wait for a moved source
 * to drop pages. */
static int check_pages(struct store *store, const struct activation *act, uint32_t p, struct store_refusal *refusal) {
    const struct activation_pool *ap = &act->pool[p];
    const struct pool *pool = &store->pool[p];
    uint64_t now = pool_available(pool);
    bool ok = now + ap->freed >= ap->fresh && now + ap->freed_victims >= activation_now(ap);
    if (ap->fresh) ok &= store_try(store);
    if (ok && ap->restore) ok = store_try(store);
    if (ok && ap->tail_columns) ok = store_try(store);
    if (ok && ap->mapped > ap->taken + (ap->tail_columns > 0)) ok = store_try(store);
    return ok ? STORE_OK
              : store_refuse(refusal, STORE_E_SHORT, STORE_S_PAGES, p, ap->fresh, now + ap->freed, pool->capacity);
}

static int check_chunks(struct store *store, const struct activation *act, struct store_refusal *refusal) {
    uint64_t now = chunks_available(&store->chunks);
    bool ok = now + act->chunks_freed >= act->chunks_needed && now + act->chunks_freed_victims >= act->chunks_now;
    if (ok && store_try(store)) return STORE_OK;
    return chunks_refuse(store, STORE_E_SHORT, act->chunks_needed, now + act->chunks_freed, refusal);
}

int activation_check(struct store *store, const struct activation *act, struct store_refusal *refusal) {
    uint32_t c = store->config.max_concurrency;
    int rc = check_never(store, act, refusal);
    if (rc) return rc;
    if (store->seq_free == KVD_NONE || !store_try(store))
        return store_refuse(refusal, STORE_E_SHORT, STORE_S_SEQUENCE, KVD_NONE, 1, c - store->seqs_used, c);
    uint32_t conts = conts_free(store) + act->conts_freed;
    if (act->conts_needed && !MUTANT(descriptor_is_not_reserved) && (conts < 1 || !store_try(store)))
        return store_refuse(refusal, STORE_E_SHORT, STORE_S_CONTINUATION, KVD_NONE, 1, conts,
                            store->config.max_continuations);
    for (uint32_t p = 0; p < store->n_pools && rc == STORE_OK; p++) rc = check_pages(store, act, p, refusal);
    if (rc) return rc;
    if (act->slots_needed && (slots_free(store) + act->slots_freed < 1 || !store_try(store)))
        return store_refuse(refusal, STORE_E_SHORT, STORE_S_STATE_SLOT, KVD_NONE, 1,
                            slots_free(store) + act->slots_freed, store->config.state_slots);
    rc = check_chunks(store, act, refusal);
    if (rc) return rc;
    for (uint32_t p = 0; p < store->n_pools; p++)
        if (store->pool[p].rows_used == c || !store_try(store))
            return store_refuse(refusal, STORE_E_SHORT, STORE_S_ROW, p, 1, c - store->pool[p].rows_used, c);
    if (act->arena_needed && (act->arena_placed < act->arena_needed || !store_try(store)))
        return store_refuse(refusal, STORE_E_SHORT, STORE_S_ARENA, KVD_NONE, act->arena_needed, act->arena_placed,
                            store->config.host_bytes);
    return STORE_OK;
}

bool activation_is_short_now(const struct store *store, const struct activation *act) {
    if (chunks_available(&store->chunks) < act->chunks_now) return true;
    if (act->image_in && slots_free(store) == 0)
        return true; /* a victim's slot cannot be written before its image is out */
    for (uint32_t p = 0; p < store->n_pools; p++)
        if (pool_available(&store->pool[p]) < activation_now(&act->pool[p])) return true;
    return false;
}

/* ---- plan ---- */

/* available: for the arena, what of the need finds a place. */
static struct kvd_need plan_need(uint64_t needed, uint64_t available) {
    return (struct kvd_need){ needed, available, needed > available ? needed - available : 0 };
}

void activation_plan(const struct store *store, const struct activation *act, struct kvd_plan *plan) {
    memset(plan, 0, sizeof *plan);
    uint32_t rows_used = 0, c = store->config.max_concurrency;
    for (uint32_t p = 0; p < store->n_pools; p++) {
        const struct activation_pool *ap = &act->pool[p];
        plan->pages[p] = plan_need(ap->fresh, (uint64_t)pool_available(&store->pool[p]) + ap->freed);
        plan->entitlement[p] = ap->entitlement;
        plan->shared_pages[p] = ap->taken - ap->base;
        plan->copied_columns[p] = ap->tail_columns;
        plan->freed_pages[p] = ap->freed;
        plan->restore_pages[p] = ap->restore + ap->tail_in;
        plan->demote_pages[p] = ap->demote;
        rows_used = max_u32(rows_used, store->pool[p].rows_used);
    }
    plan->n_pools = store->n_pools;
    plan->revision = store->revision;
    plan->arena = plan_need(act->arena_needed, act->arena_placed);
    plan->rows = plan_need(1, c - rows_used);
    plan->sequences = plan_need(1, store->seq_free == KVD_NONE ? 0 : c - store->seqs_used);
    plan->continuations = plan_need(act->conts_needed, (uint64_t)conts_free(store) + act->conts_freed);
    plan->state_slots = plan_need(act->slots_needed, (uint64_t)slots_free(store) + act->slots_freed);
    plan->membership = plan_need((uint64_t)act->chunks_needed * CHUNK,
                                 ((uint64_t)chunks_available(&store->chunks) + act->chunks_freed) * CHUNK);
}

int store_plan_activation(struct store *store, const struct store_activation *want, struct kvd_plan *ret_plan,
                          struct store_refusal *refusal) {
    struct activation act;
    struct kvd_plan plan;
    int rc = activation_resolve(store, want, &act, refusal);
    if (rc == STORE_OK) rc = activation_measure(store, &act, refusal);
    if (rc) return rc;
    activation_plan(store, &act, &plan);
    uint32_t fail_in = store->fail_in, acquisitions = store->acquisitions; /* a plan acquires nothing */
    store->fail_in = 0;
    rc = activation_check(store, &act, NULL);
    store->fail_in = fail_in;
    store->acquisitions = acquisitions;
    plan.feasibility = rc == STORE_OK ? KVD_READY : rc == STORE_E_NEVER ? KVD_INFEASIBLE : KVD_BLOCKED;
    *ret_plan = plan;
    return STORE_OK;
}
