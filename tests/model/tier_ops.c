/* SPDX-License-Identifier: Apache-2.0
 *
 * One random operation: activations with recipes, what workers do, and the transfer engine's pieces of work.
 */
#include "tier.h"

#include <string.h>

#include "kvt.h"

int sweep(struct world *w, attempt_fn attempt, void *context, struct store_refusal *refusal) {
    for (uint32_t nth = 1;; nth++) {
        uint64_t before = fingerprint(w);
        store_fail_acquisition(w->kvd.store, nth);
        int code = attempt(w, context, refusal);
        bool fired = store_fail_acquisition(w->kvd.store, 0) >= nth;
        if (code == STORE_OK && fired) fail(w, "acquisition %u was refused, yet the operation succeeded", nth);
        if (code == STORE_OK || !fired || w->failed) return code;
        if (code != STORE_E_SHORT) fail(w, "with acquisition %u refused the code is %d", nth, code);
        if (fingerprint(w) != before) fail(w, "with acquisition %u refused something changed (SRV-2)", nth);
        w->injected++;
        if (w->failed) return code;
    }
}

/* ---- transitions: the transfer engine ---- */

struct flight *flight_new(struct world *w) {
    for (int i = 0; i < FLIGHTS; i++) {
        struct flight *f = &w->flight[i];
        if (f->used) continue;
        memset(f, 0, offsetof(struct flight, copies));
        f->used = true;
        return f;
    }
    return NULL;
}

void flight_end(struct world *w, struct flight *f) {
    (void)w;
    f->used = false;
}

static struct store_transition transition_of(const struct flight *f) {
    return (struct store_transition){ f->kind == FLIGHT_MOVE, f->kind == FLIGHT_MOVE ? f->move.bits : f->seq.bits };
}

static bool same_copy(const struct store_copy *a, const struct store_copy *b) {
    return a->kind == b->kind && a->pool == b->pool && a->src == b->src && a->dst == b->dst &&
           a->columns == b->columns && a->host == b->host && a->replica == b->replica;
}

/* The copies of the stage, by lists of any length; the sums must agree. */
void flight_fetch(struct world *w, struct flight *f) {
    uint64_t cursor = 0, again = 0;
    struct store_copy other[COPIES];
    struct store_work work = { 0 };
    uint32_t n, max = between(w, 1, 9), out = 0, in = 0, m = 0;
    bool same = true;
    f->n = 0;
    while (f->n + max <= COPIES &&
           (n = store_next_copies(w->kvd.store, transition_of(f), &cursor, f->copies + f->n, max)) > 0)
        f->n += n;
    while (m < COPIES && (n = store_next_copies(w->kvd.store, transition_of(f), &again, other + m, COPIES - m)) > 0)
        m += n;
    for (uint32_t i = 0; i < m && i < f->n; i++) same &= same_copy(&other[i], &f->copies[i]);
    if (m != f->n || !same) fail(w, "the list of copies depends on how it is read: %u and %u", f->n, m);
    for (uint32_t i = 0; i < f->n; i++) {
        enum store_copy_kind kind = f->copies[i].kind;
        out += kind == STORE_COPY_PAGE_OUT || kind == STORE_COPY_STATE_OUT;
        in += kind == STORE_COPY_PAGE_IN || kind == STORE_COPY_STATE_IN;
    }
    store_get_work(w->kvd.store, transition_of(f), &work);
    if (work.copies_out != out || work.copies_in != in || work.copies_device != f->n - out - in)
        fail(w, "work counts other copies than are listed");
    memset(f->done, 0, sizeof f->done);
    f->left = f->n;
    f->stages++;
}

static bool copy_in(struct world *w, const struct store_copy *c) {
    if (checksum_of(w, c->host, c->bytes) != c->checksum) {
        damaged(w, c->replica);
        return false;
    }
    if (c->kind == STORE_COPY_PAGE_IN)
        memcpy(device_page(w, c->pool, c->dst), w->arena + c->host, c->columns * sizeof(uint32_t));
    else memcpy(&w->slots[c->dst], w->arena + c->host, sizeof *w->slots);
    return true;
}

static void copy_out(struct world *w, const struct store_copy *c) {
    memset(w->arena + c->host, 0x11, c->bytes);
    if (c->kind == STORE_COPY_PAGE_OUT)
        memcpy(w->arena + c->host, device_page(w, c->pool, c->src), KVD_PAGE_TOKENS * sizeof(uint32_t));
    else memcpy(w->arena + c->host, &w->slots[c->src], sizeof *w->slots);
    for (uint64_t i = 0; i < c->bytes; i += UNIT) w->rotten[(c->host + i) / UNIT] = false;
    store_copied_out(w->kvd.store, c->replica, checksum_of(w, c->host, c->bytes));
}

bool flight_copy(struct world *w, struct flight *f, uint32_t i) {
    const struct store_copy *c = &f->copies[i];
    f->done[i] = true;
    f->left--;
    switch (c->kind) {
    case STORE_COPY_PAGE:
        memcpy(device_page(w, c->pool, c->dst), device_page(w, c->pool, c->src), c->columns * sizeof(uint32_t));
        return true;
    case STORE_COPY_STATE: w->slots[c->dst] = w->slots[c->src]; return true;
    case STORE_COPY_PAGE_OUT:
    case STORE_COPY_STATE_OUT: copy_out(w, c); return true;
    case STORE_COPY_PAGE_IN:
    case STORE_COPY_STATE_IN: break;
    }
    return copy_in(w, c);
}

/* ---- ends of an activation ---- */

/* Victims to be released or shortened that are so already. */
static uint32_t victims_gone(struct world *w, struct flight *f) {
    uint32_t gone = 0;
    for (uint32_t i = 0; i < f->n_victims; i++) {
        int v = find_cont(w, store_cont_of(f->victims[i].continuation));
        uint32_t cut = f->victims[i].frontier;
        const struct cont *cont = cont_find(w->kvd.store, store_cont_of(f->victims[i].continuation));
        if (v >= 0 && cut && f->victims[i].continuation.bits != f->cont.bits) {
            if (!cont) fail(w, "a victim that was to be shortened is gone");
            else if (cont->frontier != cut) continue;
            shortened_to(&w->cont[v], cut);
            gone++;
            continue;
        }
        if (v < 0 || cont_find(w->kvd.store, store_cont_of(f->victims[i].continuation)) ||
            f->victims[i].continuation.bits == f->cont.bits)
            continue; /* a moved source may stand there: it goes anyhow */
        if (f->victims[i].demote && !w->cont[v].doomed) fail(w, "a demoted victim is gone");
        w->cont[v].leaves = true;
        gone++;
    }
    return gone;
}

/* Released victims are gone, demoted ones rest. */
static void victims_settled(struct world *w, struct flight *f) {
    victims_gone(w, f);
    for (uint32_t i = 0; i < f->n_victims && !w->failed; i++) {
        int v = find_cont(w, store_cont_of(f->victims[i].continuation));
        struct cont *cont = cont_find(w->kvd.store, store_cont_of(f->victims[i].continuation));
        if (v < 0 || !cont || f->victims[i].continuation.bits == f->cont.bits) continue;
        if (f->victims[i].frontier && cont->frontier != f->victims[i].frontier)
            fail(w, "a victim of %u tokens was to be shortened to %u", cont->frontier, f->victims[i].frontier);
        if (f->victims[i].frontier) continue;
        if (!(f->victims[i].demote)) fail(w, "a released victim is still there");
        else if (!cont->demoted && !w->rots && tier_all_current(w->kvd.store, cont))
            fail(w, "a demoted victim does not rest");
    }
}

static void activated(struct world *w, struct flight *f) {
    struct tier_seq *s = &w->seq[find_seq(w, f->seq)];
    struct store_activated got;
    int source = find_cont(w, f->cont);
    victims_settled(w, f);
    if (store_activate_look(w->kvd.store, f->seq, &got, NULL))
        fail(w, "a sequence that was published cannot be looked at");
    s->active = true;
    if (source >= 0 && !f->keep) w->cont[source].leaves = true;
    if (!w->config.has_state || source < 0) return;
    s->source_slot = f->keep ? got.source_state_slot : KVD_NONE;
    if (s->source_slot == KVD_NONE) s->state_frontier = f->frontier;
    if (s->source_slot == KVD_NONE && w->slots[got.state_slot] != s->c.image)
        fail(w, "the state image of the source is not in slot %u", got.state_slot);
}

static int commit_activation(struct world *w, struct flight *f) {
    struct store_refusal refusal = { 0 };
    int code = store_activate_commit(w->kvd.store, f->seq, &refusal);
    if (code == STORE_OK) {
        activated(w, f);
        flight_end(w, f);
    } else if (code == STORE_MORE) {
        if (f->staged) { /* the victims have given way, and are free for anything now */
            w->staged++;
            victims_settled(w, f);
            f->n_victims = 0;
        }
        f->staged = false;
        flight_fetch(w, f);
    } else if (code == STORE_WAIT) {
        f->waits++;
        w->waits++;
        f->n = f->left = 0;
    } else if (code == STORE_E_DAMAGED || code == STORE_E_REVISION) {
        if (!w->rots) fail(w, "damage where nothing was damaged");
        flight_abort(w, f);
    } else {
        fail(w, "commit of an activation: %d", code);
    }
    return code;
}

static int commit_move(struct world *w, struct flight *f) {
    struct store *store = w->kvd.store;
    struct store_refusal refusal = { 0 };
    int code = store_move_commit(store, f->move, &refusal), c = find_cont(w, f->cont);
    const struct cont *cont = cont_find(store, f->cont);
    if (code == STORE_WAIT) {
        f->waits++;
        w->waits++;
        f->n = f->left = 0;
        return code;
    }
    if (code == STORE_MORE) {
        flight_fetch(w, f);
        return code;
    }
    if (code == STORE_E_DAMAGED && !w->rots) fail(w, "damage where nothing was damaged");
    if (code != STORE_OK && code != STORE_E_DAMAGED && code != STORE_E_SHORT && code != STORE_E_STATE &&
        code != STORE_E_BUSY)
        fail(w, "commit of a move: %d", code);
    if (code == STORE_OK && cont && c >= 0 && !cont->claimed && !w->cont[c].doomed && !w->rots) {
        bool on_device = true;
        for (uint32_t p = 0; p < w->n_pools; p++)
            for (uint32_t b = cont->space[p].base; b < cont->space[p].count; b++)
                on_device &= page_on_device(&store->pool[p].pages[space_entry(store, &cont->space[p], b)]);
        if (f->place != STORE_PLACE_DEVICE && !tier_all_current(store, cont))
            fail(w, "moved to the host, and not all is there");
        if (f->place == STORE_PLACE_HOST && !cont->demoted) fail(w, "demoted, and does not rest");
        if (f->place == STORE_PLACE_DEVICE &&
            (!on_device || cont->demoted || (w->config.has_state && cont->slot == KVD_NONE)))
            fail(w, "prefetched, and not all is on the device");
    }
    flight_end(w, f);
    return code;
}

/* FIT-5: the handle is of one that was there, and that must be equal. NULL: it is new. */
static struct tier_cont *old_cont(struct world *w, store_cont handle, const struct tier_cont *m) {
    int c = find_cont(w, handle);
    if (c < 0) return NULL;
    struct tier_cont *old = &w->cont[c];
    if (!old->published || old->tag != m->tag || old->c.domain != m->c.domain || old->frontier != m->frontier ||
        !old->tail_named || !m->tail_named || old->tail.n != m->tail.n ||
        memcmp(old->tail.tokens, m->tail.tokens, m->tail.n * sizeof m->tail.tokens[0]) != 0)
        fail(w, "cont %d stands for one that is not equal", c);
    if (m->retention > old->retention) old->retention = m->retention;
    const struct cont *cont = cont_find(w->kvd.store, handle);
    if (w->config.has_state && cont->slot != KVD_NONE && w->slots[cont->slot] == m->c.image) old->c.image = m->c.image;
    note(w, " = cont %d", c);
    w->merged++;
    return old;
}

static int commit_checkpoint(struct world *w, struct flight *f) {
    struct store_refusal refusal = { 0 };
    int c = find_cont(w, f->cont), code;
    w->cont[c].publishing = true;
    store_cont got = f->cont;
    w->newer_image = w->cont[c].c.image;
    code = store_checkpoint_commit(w->kvd.store, f->cont, &got, &refusal);
    w->newer_image = 0;
    if (code) fail(w, "commit of a checkpoint: %d", code);
    else if (got.bits == f->cont.bits) w->cont[c].published = true;
    else if (!old_cont(w, got, &w->cont[c])) fail(w, "a checkpoint became nothing that was there");
    else w->cont[c].leaves = true;
    w->cont[c].publishing = false;
    flight_end(w, f);
    return code;
}

int flight_commit(struct world *w, struct flight *f) {
    int code = f->kind == FLIGHT_MOVE         ? commit_move(w, f)
               : f->kind == FLIGHT_CHECKPOINT ? commit_checkpoint(w, f)
                                              : commit_activation(w, f);
    note(w, " commit=%d", code);
    return code;
}

void flight_abort(struct world *w, struct flight *f) {
    struct store_refusal refusal = { 0 };
    uint32_t lost = 0;
    int code, c = find_cont(w, f->cont), s = find_seq(w, f->seq);
    if (f->kind == FLIGHT_MOVE) {
        code = store_move_abort(w->kvd.store, f->move, &refusal);
    } else if (f->kind == FLIGHT_CHECKPOINT) {
        code = store_checkpoint_abort(w->kvd.store, f->cont, &refusal);
        w->cont[c].leaves = true;
    } else {
        code = store_activate_abort(w->kvd.store, f->seq, &lost, &refusal);
        w->seq[s].used = false;
        bool gone = victims_gone(w, f) || f->lost_at_begin;
        if (gone && lost == 0 && f->stages < 2 && !w->rots) fail(w, "an abort lost victims and does not say so");
    }
    if (code) fail(w, "abort: %d", code);
    note(w, " abort");
    flight_end(w, f);
}

static struct flight *any_flight(struct world *w) {
    struct flight *list[FLIGHTS];
    uint32_t n = 0;
    for (int i = 0; i < FLIGHTS; i++)
        if (w->flight[i].used) list[n++] = &w->flight[i];
    return n ? list[below(w, n)] : NULL;
}

/* Some of its copies, in any order; when all are made, mostly the commit. */
static void op_fly(struct world *w) {
    struct flight *f = any_flight(w);
    if (!f) return;
    note(w, " %d (seq %d cont %d) %u of %u left", (int)f->kind, find_seq(w, f->seq), find_cont(w, f->cont), f->left,
         f->n);
    for (uint32_t tries = below(w, 2 * f->n + 1); tries && f->left && !w->failed; tries--) {
        uint32_t i = below(w, f->n);
        if (!f->done[i]) flight_copy(w, f, i);
    }
    if (chance(w, 6)) flight_abort(w, f);
    else if (f->left == 0) flight_commit(w, f);
    w->applied++;
}

/* Everything that is in flight comes to its end: nothing waits for ever. */
void drain(struct world *w) {
    for (int turn = 0; turn < 40; turn++) {
        bool any = false;
        for (int k = 0; k < FLIGHTS && !w->failed; k++) {
            struct flight *f = &w->flight[k];
            if (!f->used) continue;
            any = true;
            for (uint32_t i = 0; i < f->n; i++)
                if (!f->done[i]) flight_copy(w, f, i);
            flight_commit(w, f);
        }
        if (!any || w->failed) return;
    }
    fail(w, "transitions wait for each other");
}

/* ---- activation ---- */

/* A fork of what a running sequence has named. */
static bool wish_live(struct world *w, int k, struct store_activation *a) {
    struct kvd_continuation_info info;
    store_cont live = store_live(w->kvd.store, w->seq[k].handle);
    if (store_cont_look(w->kvd.store, live, &info, NULL)) return false;
    a->from = live;
    a->keep = chance(w, 95);
    a->frontier = between(w, 1, info.frontier / KVD_PAGE_TOKENS) * KVD_PAGE_TOKENS;
    return true;
}

/* Tokens up to which a window lets an activation map. */
static uint32_t room_in(const struct world *w, uint32_t p, uint32_t frontier) {
    if (w->config.window[p].tokens == 0) return UINT32_MAX;
    return (window_first(w->kvd.store, p, frontier) + store_window_pages(&w->config, p)) * KVD_PAGE_TOKENS;
}

static void make_want(struct world *w, struct want *want) {
    struct store_activation *a = &want->a;
    uint32_t s = w->config.max_context;
    int c = chance(w, 25) ? -1 : any_cont(w, true), runs = chance(w, 25) ? any_seq(w, true) : -1;
    memset(want, 0, sizeof *want);
    a->victims = want->victims;
    a->lease = 1 + below(w, 3);
    if (c >= 0) {
        uint32_t f = w->cont[c].frontier;
        a->from = w->cont[c].handle;
        a->keep = chance(w, 50);
        a->frontier = w->config.has_state || chance(w, 50) ? f : between(w, 1, f);
        const struct cont *cont = cont_find(w->kvd.store, a->from);
        if (!windows_hold(w->kvd.store, cont->space, a->frontier) && chance(w, 95)) a->frontier = f;
    }
    if (runs >= 0 && wish_live(w, runs, a)) c = -1;
    for (uint32_t i = 0, n = chance(w, w->tight ? 85 : 55) ? between(w, 1, 4) : 0; i < n; i++) {
        int v = any_cont(w, true);
        bool again = v < 0 || (v == c && chance(w, 90));
        for (uint32_t k = 0; k < a->n_victims && v >= 0; k++)
            again |= want->victims[k].continuation.bits == w->cont[v].handle.bits;
        if (again) continue;
        want->victims[a->n_victims++] =
            (struct kvd_victim){ .continuation.bits = w->cont[v].handle.bits,
                                 .demote = w->config.host_bytes && chance(w, w->tight ? 90 : 65) };
        struct kvd_victim *victim = &want->victims[a->n_victims - 1];
        uint32_t pages = (w->cont[v].frontier - 1) / KVD_PAGE_TOKENS;
        if (!victim->demote && pages && !w->config.has_state && !w->rots && chance(w, 40))
            victim->frontier = between(w, 1, pages) * KVD_PAGE_TOKENS;
        const struct cont *cont = cont_find(w->kvd.store, w->cont[v].handle);
        if (!windows_hold(w->kvd.store, cont->space, victim->frontier) && chance(w, 95)) victim->frontier = 0;
    }
    a->prompt_tokens = between(w, a->frontier ? a->frontier : 1, chance(w, 30) ? s : min_u32(s, a->frontier + 150));
    a->max_output_tokens = min_u32(s - a->prompt_tokens + 1, between(w, 1, chance(w, 20) ? s : 100));
    for (uint32_t p = 0; p < w->n_pools; p++)
        if (chance(w, 70))
            a->ensure[p] = between(w, a->frontier, min_u32(a->prompt_tokens, room_in(w, p, a->frontier)));
    if (chance(w, 20)) a->revision = store_revision(w->kvd.store);
    a->tag = ++w->tags;
    if (chance(w, 50)) a->checkpoint_every = between(w, 1, 3) * KVD_PAGE_TOKENS;
    a->checkpoint_prompt = chance(w, 50);
    int live = find_live(w, a->from);
    a->root.digest.bytes[0] = c >= 0 ? w->cont[c].c.domain : live >= 0 ? w->seq[live].c.domain : (uint8_t)below(w, 3);
    if (live >= 0) note(w, " running %d", live);
    note(w, " from %d keep %d F %u prompt %u ensure %u,%u victims", c, a->keep, a->frontier, a->prompt_tokens,
         a->ensure[0], a->ensure[1]);
    for (uint32_t i = 0; i < a->n_victims; i++)
        note(w, " %d%s", find_cont(w, store_cont_of(want->victims[i].continuation)),
             want->victims[i].demote ? "d" : "");
}

struct begun {
    struct want *want;
    struct store_activated got;
};

static int attempt_begin(struct world *w, void *context, struct store_refusal *refusal) {
    struct begun *b = context;
    return store_activate_begin(w->kvd.store, &b->want->a, &b->got, refusal);
}

static struct flight *took_off(struct world *w, const struct want *want, const struct store_activated *got) {
    const struct store_activation *a = &want->a;
    struct flight *f = flight_new(w);
    int k = 0, c = find_cont(w, a->from), live = find_live(w, a->from);
    while (w->seq[k].used) k++;
    struct tier_seq *s = &w->seq[k];
    *s = (struct tier_seq){
        .used = true, .handle = got->seq, .tag = a->tag, .state_frontier = KVD_NONE, .source_slot = KVD_NONE
    };
    if (c >= 0) s->c = w->cont[c].c;
    else if (live >= 0) s->c = w->seq[live].c;
    else s->c.domain = a->root.digest.bytes[0];
    for (uint32_t p = 0; p < w->n_pools; p++) s->committed[p] = s->written[p] = a->frontier;
    chain_fill(w, &s->c, a->frontier / KVD_PAGE_TOKENS);
    f->kind = FLIGHT_ACTIVATION;
    f->seq = got->seq;
    f->cont = a->from;
    f->keep = a->keep;
    f->staged = got->staged;
    f->frontier = a->frontier;
    memcpy(f->ensure, a->ensure, sizeof f->ensure);
    f->n_victims = a->n_victims;
    memcpy(f->victims, want->victims, sizeof f->victims);
    flight_fetch(w, f);
    note(w, " -> seq %d%s", k, got->staged ? " staged" : "");
    return f;
}

/* Those to be released or shortened went at begin, past recall: what is left of them is free for anything now, another
 * activation's source too. */
static void victims_went_early(struct flight *f) {
    uint32_t left = 0;
    for (uint32_t i = 0; i < f->n_victims; i++)
        if (f->victims[i].demote) f->victims[left++] = f->victims[i];
    f->n_victims = left;
    f->lost_at_begin = true;
}

/* What begin did is what the plan said. */
static void check_begun(struct world *w, struct flight *f, const struct kvd_plan *plan,
                        const struct store_activated *got, uint64_t occupied) {
    uint32_t out[POOLS] = { 0 }, gone = victims_gone(w, f);
    struct kvd_stats st;
    store_get_stats(w->kvd.store, &st);
    for (uint32_t i = 0; i < f->n; i++)
        if (f->copies[i].kind == STORE_COPY_PAGE_OUT) out[f->copies[i].pool]++;
    for (uint32_t p = 0; p < w->n_pools; p++) {
        if (out[p] != plan->demote_pages[p])
            fail(w, "pool %u: %u pages are copied out, the plan said %u", p, out[p], plan->demote_pages[p]);
        /* A tail that victims held on the device, and that left with them at once, is read from the host. */
        bool tail = gone && f->keep && f->frontier % KVD_PAGE_TOKENS;
        if (!got->staged && got->restored[p] != plan->restore_pages[p] &&
            !(tail && got->restored[p] == plan->restore_pages[p] + 1))
            fail(w, "pool %u: %u pages are restored, the plan said %u", p, got->restored[p], plan->restore_pages[p]);
        uint32_t base = pages_of(f->frontier), ensure = pages_of(f->ensure[p]);
        uint32_t mapped = ensure > base ? min_u32(ensure + w->config.map_ahead, plan->entitlement[p]) : base;
        if (!got->staged && got->pool[p].membership != mapped)
            fail(w, "pool %u: %u pages are mapped, not %u", p, got->pool[p].membership, mapped);
        if (!got->staged && got->pool[p].entitlement != plan->entitlement[p])
            fail(w, "pool %u: another entitlement than the plan's", p);
    }
    if (!gone && st.host_occupied != occupied + plan->arena.needed)
        fail(w, "the arena grew by another number of bytes than the plan said");
    if (got->victims_lost) victims_went_early(f);
}

/* All of it at once, nothing between: the device is left as the plan said. */
static void complete(struct world *w, struct flight *f, const struct kvd_plan *plan) {
    uint64_t damages = w->damages;
    int code = STORE_MORE;
    while (code == STORE_MORE && !w->failed) {
        for (uint32_t i = 0; i < f->n && !w->failed; i++)
            if (!f->done[i]) flight_copy(w, f, i);
        if (!w->failed) code = flight_commit(w, f);
    }
    if (code != STORE_OK || damages != w->damages) return;
    w->atomic_checks++;
    for (uint32_t p = 0; p < w->n_pools; p++) {
        uint64_t left = pool_available(&w->kvd.store->pool[p]), said = plan->pages[p].available - plan->pages[p].needed;
        if (left != said)
            fail(w, "pool %u: %llu pages are left, the plan said %llu", p, (unsigned long long)left,
                 (unsigned long long)said);
    }
}

static void op_begin(struct world *w) {
    struct want want;
    struct begun b = { .want = &want };
    struct store_refusal planned = { 0 }, refusal = { 0 };
    struct kvd_plan plan = { 0 };
    struct kvd_stats st;
    make_want(w, &want);
    uint64_t before = fingerprint(w);
    int code = store_plan_activation(w->kvd.store, &want.a, &plan, &planned), rc;
    if (code == STORE_OK) plan_check(w, &want, &plan);
    if (fingerprint(w) != before) fail(w, "a plan changed the store");
    store_get_stats(w->kvd.store, &st);
    uint64_t replaced = code ? 0 : plan_replaced(w, &want);
    struct flight *room = flight_new(w);
    if (!room || w->failed) return;
    flight_end(w, room);
    bool ready = code == STORE_OK && plan.feasibility == KVD_READY;
    rc = ready && chance(w, 12) ? sweep(w, attempt_begin, &b, &refusal) : attempt_begin(w, &b, &refusal);
    note(w, " plan %d/%d = %d", code, (int)plan.feasibility, rc);
    int want_code = code                              ? code
                    : plan.feasibility == KVD_READY   ? STORE_OK
                    : plan.feasibility == KVD_BLOCKED ? STORE_E_SHORT
                                                      : STORE_E_NEVER;
    if (rc != want_code) fail(w, "begin answers %d, its plan %d and feasibility %d", rc, code, (int)plan.feasibility);
    if (rc) {
        w->refused++;
        if (fingerprint(w) != before) fail(w, "a refusal changed the store");
        return;
    }
    struct flight *f = took_off(w, &want, &b.got);
    check_begun(w, f, &plan, &b.got, st.host_occupied - replaced);
    w->applied++;
    if (!w->failed && chance(w, 45)) complete(w, f, &plan);
}

/* ---- workers ---- */

/* GRP-5: those that have come, are found from now on, or went for a newer one or with what was cut. */
static void see_rolling(struct world *w, const struct tier_seq *s) {
    struct store_rolling own[STORE_MAX_ROLLING];
    uint32_t n = store_get_rolling(w->kvd.store, s->handle, own);
    for (int i = 0; i < CONTS; i++) {
        struct tier_cont *m = &w->cont[i];
        if (m->used && m->rolls && m->tag == s->tag && !cont_find(w->kvd.store, m->handle)) m->used = false;
        m->publishing = false;
    }
    for (uint32_t i = 0; i < n; i++) {
        int c = find_cont(w, own[i].cont);
        if (c < 0) {
            w->cont[c = free_cont(w)] = (struct tier_cont){ .used = true,
                                                            .handle = own[i].cont,
                                                            .tag = s->tag,
                                                            .frontier = own[i].frontier,
                                                            .tail_named = true,
                                                            .rolls = true,
                                                            .c = s->c };
            w->rolled++;
        }
        w->cont[c].published = own[i].found;
    }
}

/* The step under way may publish them. */
static void expect_names(struct world *w, const struct tier_seq *s) {
    for (int i = 0; i < CONTS; i++)
        if (w->cont[i].used && w->cont[i].rolls && w->cont[i].tag == s->tag && !w->cont[i].published)
            w->cont[i].publishing = true;
}

static void copy_rolled(struct world *w, const struct tier_seq *s, const struct store_round_result *result) {
    struct store_refusal refusal = { 0 };
    see_rolling(w, s);
    if (!result->rolled.bits) return;
    w->slots[result->image.dst] = w->slots[result->image.src];
    expect_names(w, s);
    bool ok = chance(w, 95);
    if (ok ? store_checkpoint_commit(w->kvd.store, result->rolled, NULL, &refusal)
           : store_checkpoint_abort(w->kvd.store, result->rolled, &refusal))
        fail(w, "the end of a rolling checkpoint's copy is refused: %d", (int)refusal.code);
    see_rolling(w, s);
}

static int round_of(struct world *w, struct tier_seq *s, const uint32_t commit[POOLS], const uint32_t truncate[POOLS],
                    const uint32_t ensure[POOLS], uint32_t state, struct store_round_result *result) {
    const struct seq *seq = seq_find(w->kvd.store, s->handle);
    struct store_round_item item = { .seq = s->handle, .lease = seq->lease, .state_frontier = state };
    for (uint32_t p = 0; p < POOLS; p++) item.pool[p] = round_pool(commit[p], truncate[p], KVD_NONE, ensure[p]);
    if ((commit[0] & truncate[0] & ensure[0]) != KVD_NONE && chance(w, truncate[0] != KVD_NONE ? 60 : 15))
        item.pool[0].keep = 0; /* trims */
    ROUND_ASK(&item);
    store_round(w->kvd.store, &item, 1, result);
    if (result->refusal.code == STORE_OK) copy_rolled(w, s, result);
    return (int)result->refusal.code;
}

#define NOTHING                                                                                                        \
    { KVD_NONE, KVD_NONE, KVD_NONE, KVD_NONE }
static const uint32_t none[POOLS] = NOTHING;

/* The kernels write behind the frontier, through the row. */
static void write_tokens(struct world *w, struct tier_seq *s, uint32_t p, uint32_t to) {
    const struct seq *seq = seq_find(w->kvd.store, s->handle);
    const int32_t *row = store_table_row(w->kvd.store, p, seq->row[p]);
    for (uint32_t t = s->committed[p]; t < to; t++) {
        s->c.token[p][t] = (uint32_t)kvt_random(&w->random);
        device_page(w, p, (uint32_t)row[t / KVD_PAGE_TOKENS])[t % KVD_PAGE_TOKENS] = s->c.token[p][t];
    }
    if (to > s->written[p]) s->written[p] = to;
}

/* An image is declared to be none while it is being written. */
static void write_image(struct world *w, struct tier_seq *s) {
    struct store_round_result result;
    const struct seq *seq = seq_find(w->kvd.store, s->handle);
    if (s->state_frontier != KVD_NONE && round_of(w, s, none, none, none, 0, &result)) fail(w, "an image is refused");
    s->state_frontier = KVD_NONE;
    s->c.image = kvt_random(&w->random);
    w->slots[seq->state_slot] = s->c.image;
}

/* A fork's worker fetches the source's image before the first commit; then the image follows the frontier, mostly. */
static void commit_to(struct world *w, struct tier_seq *s, const uint32_t to[POOLS]) {
    struct store_round_result result;
    const struct seq *seq = seq_find(w->kvd.store, s->handle);
    bool image = w->config.has_state && chance(w, 80);
    for (uint32_t p = 0; p < w->n_pools; p++) write_tokens(w, s, p, to[p]);
    if (s->source_slot != KVD_NONE) w->slots[seq->state_slot] = w->slots[s->source_slot];
    if (image) write_image(w, s);
    if (round_of(w, s, to, none, none, image ? to[0] : KVD_NONE, &result))
        fail(w, "commit refused: %d", (int)result.refusal.code);
    s->source_slot = KVD_NONE;
    if (image) s->state_frontier = to[0];
    for (uint32_t p = 0; p < w->n_pools; p++) {
        s->committed[p] = to[p];
        s->written[p] = min_u32(s->written[p], seq->space[p].count * KVD_PAGE_TOKENS); /* trimmed */
    }
    kill_between(w);
}

static void op_round(struct world *w) {
    int k = any_seq(w, true);
    struct store_round_result result;
    if (k < 0) return;
    struct tier_seq *s = &w->seq[k];
    uint32_t target = min_u32(w->config.max_context, s->committed[0] + below(w, chance(w, 30) ? 140 : 40)),
             ensure[POOLS], to[POOLS] = NOTHING;
    if (chance(w, 30)) target = min_u32(w->config.max_context, pages_of(target) * KVD_PAGE_TOKENS);
    for (uint32_t p = 0; p < POOLS; p++) ensure[p] = p < w->n_pools ? target + below(w, 30) : KVD_NONE;
    int code = round_of(w, s, none, none, ensure, KVD_NONE, &result);
    note(w, " seq %d to %u = %d", k, target, code);
    if (code && code != STORE_E_SHORT && code != STORE_E_ENTITLEMENT) fail(w, "ensure: %d", code);
    const struct seq *seq = seq_find(w->kvd.store, s->handle);
    uint32_t low = min_u32(target, seq->space[0].count * KVD_PAGE_TOKENS);
    for (uint32_t p = 0; p < w->n_pools; p++) {
        s->written[p] = min_u32(s->written[p], seq->space[p].count * KVD_PAGE_TOKENS);
        low = min_u32(low, seq->space[p].count * KVD_PAGE_TOKENS);
    }
    for (uint32_t p = 0; p < w->n_pools; p++)
        to[p] = max_u32(s->committed[p], chance(w, 85) ? low : min_u32(low, s->committed[p] + below(w, 9)));
    commit_to(w, s, to);
    w->applied++;
}

/* Draft tokens are rejected: other tokens follow. */
static void op_truncate(struct world *w) {
    int k = any_seq(w, true);
    struct store_round_result result;
    if (k < 0) return;
    struct tier_seq *s = &w->seq[k];
    uint32_t to[POOLS] = NOTHING, least = UINT32_MAX;
    for (uint32_t p = 0; p < w->n_pools; p++) to[p] = s->committed[p] - min_u32(s->committed[p], below(w, 50));
    for (uint32_t p = 0; p < w->n_pools; p++) least = min_u32(least, to[p]);
    if (chance(w, 70))
        for (uint32_t p = 0; p < w->n_pools; p++) to[p] = least;
    if (s->source_slot != KVD_NONE) return; /* nothing was committed yet */
    int code = round_of(w, s, none, to, none, KVD_NONE, &result);
    note(w, " seq %d to %u,%u = %d", k, to[0], to[1], code);
    if (code) {
        bool behind = false; /* GRP-2: behind a window */
        for (uint32_t p = 0; p < w->n_pools; p++)
            behind |= window_first(w->kvd.store, p, to[p]) < seq_find(w->kvd.store, s->handle)->space[p].base;
        if (code != STORE_E_PROTECTED && !(code == STORE_E_RANGE && behind)) fail(w, "truncate: %d", code);
        return;
    }
    const struct seq *seq = seq_find(w->kvd.store, s->handle);
    for (uint32_t p = 0; p < w->n_pools; p++) {
        s->written[p] = min_u32(to[p] < s->committed[p] ? to[p] : s->written[p], seq->space[p].count * KVD_PAGE_TOKENS);
        s->committed[p] = to[p];
    }
    if (s->state_frontier != KVD_NONE && s->state_frontier > to[0]) s->state_frontier = KVD_NONE;
    chain_fill(w, &s->c, to[0] / KVD_PAGE_TOKENS);
    w->applied++;
}

static void name_all(struct world *w, struct tier_seq *s) {
    const struct seq *seq = seq_find(w->kvd.store, s->handle);
    struct store_refusal refusal = { 0 };
    uint32_t full = s->committed[0] / KVD_PAGE_TOKENS;
    if (seq->named >= full) return;
    expect_names(w, s);
    int code = store_name_pages(w->kvd.store, s->handle, seq->lease, seq->named, full - seq->named,
                                (const uint8_t(*)[32])s->c.chain[seq->named], &refusal);
    if (code) fail(w, "names refused: %d", code);
    see_rolling(w, s);
    kill_between(w);
}

/* All pools at one frontier, an image of it, names: what a continuation needs. False: it cannot be now. */
static bool make_whole(struct world *w, struct tier_seq *s) {
    const struct seq *seq = seq_find(w->kvd.store, s->handle);
    uint32_t f = s->committed[0], to[POOLS] = NOTHING;
    struct store_round_result result;
    for (uint32_t p = 1; p < w->n_pools; p++) f = max_u32(f, s->committed[p]);
    for (uint32_t p = 0; p < w->n_pools; p++) {
        if (seq->space[p].count * KVD_PAGE_TOKENS < f) return false;
        to[p] = f;
    }
    if (f == 0 || s->source_slot != KVD_NONE) return false;
    commit_to(w, s, to);
    if (!w->failed && w->config.has_state && s->state_frontier != f) {
        write_image(w, s);
        if (round_of(w, s, none, none, none, f, &result)) fail(w, "an image is refused");
        s->state_frontier = f;
    }
    for (uint32_t p = 0; p < w->n_pools; p++)
        s->written[p] = min_u32(s->written[p], seq->space[p].count * KVD_PAGE_TOKENS);
    if (!w->failed) name_all(w, s);
    return !w->failed;
}

static void op_name(struct world *w) {
    int k = any_seq(w, true);
    if (k >= 0) name_all(w, &w->seq[k]);
}

/* Equal where what was written is equal, in all pools: equal tokens have equal KV. */
struct kvd_tail tail_of(const struct world *w, const struct content *c, uint32_t frontier) {
    struct kvd_tail tail = { .n = frontier % KVD_PAGE_TOKENS };
    for (uint32_t i = 0; i < tail.n; i++)
        for (uint32_t p = 0; p < w->n_pools; p++)
            tail.tokens[i] = tail.tokens[i] * 0x9E3779B1u + c->token[p][frontier - tail.n + i];
    return tail;
}

static struct kvd_tail make_tail(const struct world *w, const struct tier_seq *s) {
    return tail_of(w, &s->c, s->committed[0]);
}

static struct tier_cont *new_cont(struct world *w, const struct tier_seq *s, store_cont handle, uint32_t frontier,
                                  const struct kvd_tail *tail, uint32_t retention) {
    static struct tier_cont new;
    new = (struct tier_cont){
        .used = true, .handle = handle, .tag = s->tag, .frontier = frontier, .retention = retention, .c = s->c
    };
    new.tail_named = tail || frontier % KVD_PAGE_TOKENS == 0;
    if (tail) new.tail = *tail;
    struct tier_cont *m = old_cont(w, handle, &new);
    if (m) return m;
    m = &w->cont[free_cont(w)];
    *m = new;
    note(w, " -> cont %d", (int)(m - w->cont));
    return m;
}

struct snap {
    store_seq seq;
    uint64_t lease;
    struct kvd_tail tail;
    struct store_checkpointed got;
};

static int attempt_checkpoint(struct world *w, void *context, struct store_refusal *refusal) {
    struct snap *s = context;
    return store_checkpoint_begin(w->kvd.store, s->seq, s->lease,
                                  &(struct store_checkpoint){ .tail = &s->tail, .retention = 3 }, &s->got, refusal);
}

static void op_checkpoint(struct world *w) {
    int k = any_seq(w, true);
    struct store_refusal refusal = { 0 };
    if (k < 0 || !make_whole(w, &w->seq[k])) return;
    struct tier_seq *s = &w->seq[k];
    struct snap snap = { .seq = s->handle, .lease = seq_find(w->kvd.store, s->handle)->lease, .tail = make_tail(w, s) };
    struct flight *f = flight_new(w);
    if (!f) return;
    int code = chance(w, 15) ? sweep(w, attempt_checkpoint, &snap, &refusal) : attempt_checkpoint(w, &snap, &refusal);
    note(w, " seq %d = %d", k, code);
    if (code) {
        if (code != STORE_E_SHORT) fail(w, "checkpoint: %d", code);
        flight_end(w, f);
        w->refused++;
        return;
    }
    new_cont(w, s, snap.got.cont, s->committed[0], &snap.tail, 3);
    if (snap.got.is_published) {
        flight_end(w, f);
        w->applied++;
        return;
    }
    f->kind = FLIGHT_CHECKPOINT;
    f->cont = snap.got.cont;
    f->n = f->left = snap.got.n_copies;
    memcpy(f->copies, snap.got.copies, sizeof snap.got.copies);
    memset(f->done, 0, sizeof f->done);
    for (uint32_t i = 0; i < f->n; i++) /* the worker goes on in the source slot */
        if (f->copies[i].kind == STORE_COPY_STATE) flight_copy(w, f, i);
    w->applied++;
}

static void op_finish(struct world *w) {
    int k = any_seq(w, true);
    struct kvd_pool_view rows[POOLS];
    struct store_refusal refusal = { 0 };
    store_cont cont = { 0 };
    if (k < 0) return;
    struct tier_seq *s = &w->seq[k];
    bool retain = chance(w, 85) && make_whole(w, s);
    struct kvd_tail tail = make_tail(w, s);
    if (w->failed) return;
    w->newer_image = s->c.image;
    int code = store_finish(w->kvd.store, s->handle, seq_find(w->kvd.store, s->handle)->lease,
                            retain ? STORE_FINISH_RETAIN : STORE_FINISH_RELEASE, retain ? &tail : NULL, 5, &cont, rows,
                            &refusal);
    w->newer_image = 0;
    note(w, " seq %d retain %d = %d", k, retain, code);
    if (code && (code != STORE_E_SHORT || !retain)) fail(w, "finish: %d", code);
    if (code) return;
    if (retain) new_cont(w, s, cont, s->committed[0], &tail, 5)->published = true;
    see_rolling(w, s);
    s->used = false;
    w->applied++;
}

/* A worker died, whatever it was in. */
static void op_end(struct world *w) {
    int k = any_seq(w, chance(w, 70));
    struct kvd_pool_view rows[POOLS];
    struct store_refusal refusal = { 0 };
    store_cont cont = { 0 };
    if (k < 0) return;
    struct tier_seq *s = &w->seq[k];
    uint32_t f = s->committed[0];
    for (uint32_t p = 1; p < w->n_pools; p++) f = min_u32(f, s->committed[p]);
    bool held = windows_hold(w->kvd.store, seq_find(w->kvd.store, s->handle)->space, f);
    w->newer_image = s->c.image;
    int code = store_end(w->kvd.store, s->handle, &cont, rows, &refusal);
    w->newer_image = 0;
    note(w, " seq %d = %d", k, code);
    if (code) fail(w, "end: %d", code);
    for (int i = 0; i < FLIGHTS; i++) {
        struct flight *flight = &w->flight[i];
        if (!flight->used || flight->kind != FLIGHT_ACTIVATION || flight->seq.bits != s->handle.bits) continue;
        victims_gone(w, flight);
        flight_end(w, flight);
    }
    bool whole =
        s->active && f && held && (!w->config.has_state || s->state_frontier == f) && s->source_slot == KVD_NONE;
    if (cont.bits && !s->active) fail(w, "an activation that ended left a continuation");
    if (!cont.bits && whole) fail(w, "a complete sequence left nothing");
    if (cont.bits) new_cont(w, s, cont, f, NULL, 0)->published = true;
    see_rolling(w, s);
    s->used = false;
    w->applied++;
}

static void op_release(struct world *w) {
    int c = any_cont(w, true);
    struct store_refusal refusal = { 0 };
    if (c < 0) return;
    int code = store_release(w->kvd.store, w->cont[c].handle, &refusal);
    note(w, " cont %d = %d", c, code);
    if (code && code != STORE_E_BUSY) fail(w, "release: %d", code);
    w->cont[c].leaves = code == STORE_OK;
    w->applied += code == STORE_OK;
}

static void op_retention(struct world *w) {
    int c = any_cont(w, true);
    struct store_refusal refusal;
    uint32_t retention = between(w, 1, 9);
    if (c >= 0 && store_set_retention(w->kvd.store, w->cont[c].handle, retention, &refusal) == STORE_OK)
        w->cont[c].retention = retention;
}

/* ---- choice ---- */

static const struct {
    const char *name;
    uint32_t weight;
    void (*run)(struct world *w);
} operations[] = {
    { "begin", 16, op_begin },        { "fly", 34, op_fly },      { "round", 20, op_round },
    { "truncate", 3, op_truncate },   { "name", 3, op_name },     { "checkpoint", 6, op_checkpoint },
    { "finish", 8, op_finish },       { "end", 3, op_end },       { "release", 3, op_release },
    { "retention", 1, op_retention }, { "move", 10, op_move },    { "drop", 5, op_drop },
    { "shorten", 3, op_shorten },     { "damage", 1, op_damage }, { "scrub", 2, op_scrub },
    { "recover", 2, op_recover },     { "drain", 1, drain },      { "read", 3, op_read },
    { "fetch", 6, op_fetch },
};
#define N_OPERATIONS (sizeof operations / sizeof *operations)

void tier_step(struct world *w) {
    uint32_t total = 0, k = 0;
    for (size_t i = 0; i < N_OPERATIONS; i++) total += operations[i].weight;
    for (uint32_t pick = below(w, total); pick >= operations[k].weight; k++) pick -= operations[k].weight;
    if (any_seq(w, true) < 0 && any_seq(w, false) < 0 && chance(w, 60)) k = 0;
    w->history[w->step % HISTORY][0] = 0;
    note(w, "%s", operations[k].name);
    for (int i = 0; i < CONTS; i++) w->cont[i].leaves = false;
    bool kill = operations[k].run != op_recover && chance(w, 4);
    if (kill) kill_begin(w);
    operations[k].run(w);
    if (!w->failed) look(w);
    if (kill) kill_end(w);
}
