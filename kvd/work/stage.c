/* SPDX-License-Identifier: Apache-2.0
 *
 * Transitions of the store, stage by stage. A stage's copies go to the devices (transfer) and between device and
 * arena (mover); when all of its parts are done the transition is committed, which ends it, or lists the next stage
 * (STORE_MORE), or says that another transition is bringing pages that this one needs (STORE_WAIT): then it is tried
 * again whenever one has ended.
 */
#include <string.h>

#include "core.h"
#include "log.h"
#include "request.h"
#include "session.h"
#include "stage.h"
#include "tenant.h"
#include "transfer.h"

bool stage_work(const struct service *s, struct store_transition of, struct store_work *ret_work) {
    return s->mover && !store_get_work(s->store, of, ret_work) && ret_work->copies_out + ret_work->copies_in;
}

void stage_submit(struct service *s, struct pending *op, struct store_transition of, const struct store_copy *copies,
                  uint32_t n_copies, const struct kvd_activated *rows) {
    struct store_work work;
    transfer_begin(s->transfer);
    for (uint32_t i = 0; i < n_copies; i++) transfer_copy(s->transfer, &copies[i]);
    if (rows) transfer_rows(s->transfer, rows->pool);
    enum transfer_result result = transfer_submit(s->transfer, pending_tag(s, op));
    op->parts += result == TRANSFER_PENDING;
    op->lost |= result == TRANSFER_LOST;
    if (op->lost || !stage_work(s, of, &work)) return;
    if (mover_start(s->mover, of, &work, pending_tag(s, op))) op->parts++;
    else op->lost = true; /* there are as many jobs as transitions */
}

/* ---- activations -------------------------------------------------------------------------------- */

/* Returns the number of victims that had been released for it. */
static uint32_t activation_undo(struct service *s, struct bundle *b, const struct kvd_activated *activated) {
    struct store_refusal refusal = { 0 };
    uint32_t lost = 0;
    if (store_activate_abort(s->store, b->seq, &lost, &refusal))
        LOG(LOG_ERROR, "an activation could not be undone: store code %d", (int)refusal.code);
    bundle_free(s, b);
    transfer_publish(s->transfer, activated->pool);
    transition_ended(s);
    return lost;
}

/* Places and state slots as they are now. */
static void refresh_activated(struct service *s, const struct bundle *b, struct kvd_activated *activated,
                              struct store_activated *ret_now) {
    struct store_refusal refusal = { 0 };
    if (store_activate_look(s->store, b->seq, ret_now, &refusal)) return;
    for (uint32_t p = 0; p < s->pools.n_pools; p++) activated->pool[p] = ret_now->pool[p];
    activated->state_slot = ret_now->state_slot;
    activated->source_state_slot = ret_now->source_state_slot;
    memcpy(activated->restored, ret_now->restored, sizeof activated->restored);
}

/* Tokens of a frontier that lie in its last `pages` pages. (What had to be brought is mostly that: what others share,
 * and keep on the device, are the first.) */
static uint32_t tokens_of_last(uint32_t frontier, uint32_t pages) {
    uint32_t all = geom_pages(frontier);
    return !pages ? 0 : pages >= all ? frontier : frontier - (all - pages) * KVD_PAGE_TOKENS;
}

static void count_activation(struct service *s, struct bundle *b, uint32_t restored) {
    struct metrics *m = &s->metrics;
    struct metrics_domain *domain = &m->domain[b->domain];
    struct session *owner = session_find(s, b->owner);
    uint32_t from_host = tokens_of_last(b->reused_tokens, restored);
    domain->activations[b->reused_tokens > 0]++;
    domain->prompt_tokens += b->prompt_tokens;
    domain->reused_tokens += b->reused_tokens;
    m->endless_tokens += b->reused_tokens;
    if (owner) b->asked_pages = metrics_lookup_served(&owner->lookups, b->prompt_tokens);
    m->activations[b->source]++;
    m->reused_tokens += b->reused_tokens;
    m->prompt_tokens += b->prompt_tokens;
    m->tokens[METRICS_DEVICE] += b->reused_tokens - from_host;
    m->tokens[METRICS_HOST] += from_host;
    m->tokens[METRICS_COMPUTED] += b->prompt_tokens - b->reused_tokens;
}

static void activation_done(struct service *s, struct pending *op, struct bundle *b) {
    struct store_activated now = { 0 };
    struct kvd_activated *a = &op->u.activated;
    if (op->given_way || a->restored[0] || a->restored[1]) refresh_activated(s, b, a, &now);
    b->activating = false;
    b->tag = 0;
    tenant_note(s, store_live(s->store, b->seq), b->tenant); /* whose it is that others find of it */
    count_activation(s, b, a->restored[0]);
    a->revision = store_revision(s->store);
    bundle_update(s, b);
    transition_ended(s);
}

/* STORE_MORE: staged victims have given way, or all copies have ended and the rows are filled. */
static void next_stage(struct service *s, struct pending *op, struct bundle *b) {
    struct store_activated now = { 0 };
    op->given_way |= op->staged;
    op->staged = false;
    refresh_activated(s, b, &op->u.activated, &now);
    stage_submit(s, op, (struct store_transition){ .bits = b->seq.bits }, now.copies, now.n_copies, &op->u.activated);
}

/* STORE_WAIT. The rest is behind copies, so it does not keep a place from what is not, unless all places behind copies
 * are taken: it has begun, and is not refused for that. */
static void park_pending(struct service *s, struct pending *op) {
    struct pending *slow = pending_make_slow(s, op);
    pending_wait(s, slow ? slow : op);
}

static enum kvd_status why_ended(struct service *s, const struct pending *op, const struct bundle *b, char *why,
                                 size_t why_bytes) {
    if (b->cancelled) {
        snprintf(why, why_bytes, "a Cancel ended it, nothing was activated");
        return KVD_CANCELLED;
    }
    /* A recipe is executed wholly or not at all: once some of its victims have gone the activation goes on, and ends
     * when published. */
    if (b->doomed && !op->given_way) {
        snprintf(why, why_bytes, "the scheduler or the worker was lost meanwhile, nothing was activated");
        return KVD_ABORTED;
    }
    if (op->lost) {
        snprintf(why, why_bytes, "the device is lost, nothing was activated: %.300s", transfer_error(s->transfer));
        return KVD_UNAVAILABLE;
    }
    return KVD_OK;
}

bool activation_advance(struct service *s, struct pending *op, enum kvd_status *ret_status, char *why,
                        size_t why_bytes) {
    struct bundle *b = &s->bundles[op->bundle];
    struct store_refusal refusal = { 0 };
    enum kvd_status status = KVD_OK;
    while (!op->parts && (status = why_ended(s, op, b, why, why_bytes)) == KVD_OK) {
        int code = store_activate_commit(s->store, b->seq, &refusal);
        if (code == STORE_OK) {
            activation_done(s, op, b);
            *ret_status = KVD_OK;
            return true;
        }
        if (code == STORE_MORE) {
            next_stage(s, op, b);
        } else if (code == STORE_WAIT) {
            park_pending(s, op);
            return false;
        } else {
            refusal.code = (enum store_code)code;
            status = status_of_store(refusal.code);
            op->short_of = short_of_store(&refusal);
            store_refusal_text(&refusal, why, why_bytes);
            break;
        }
    }
    if (status == KVD_OK) return false;
    uint32_t lost = activation_undo(s, b, &op->u.activated);
    size_t n = strlen(why);
    if (lost)
        snprintf(why + n, why_bytes - n,
                 "; %u continuation%s of its recipe had been released or shortened for it already", lost,
                 lost > 1 ? "s" : "");
    *ret_status = status;
    return true;
}

/* ---- moves of continuations ------------------------------------------------------------------------ */

static void tell_moved(struct service *s, struct pending *op) {
    struct kvd_moved *r = &op->u.moved;
    *r = (struct kvd_moved){ .revision = store_revision(s->store), .bytes = op->moved.bytes[0] + op->moved.bytes[1] };
    for (uint32_t p = 0; p < KVD_MAX_POOLS; p++) r->pages[p] = op->moved.pages[0][p] + op->moved.pages[1][p];
}

bool move_advance(struct service *s, struct pending *op, enum kvd_status *ret_status, char *why, size_t why_bytes) {
    struct store_refusal refusal = { 0 };
    *ret_status = KVD_OK;
    if (op->parts) return false;
    if (op->lost) {
        (void)store_move_abort(s->store, op->move, &refusal);
        snprintf(why, why_bytes, "the device is lost, nothing was moved: %.300s", transfer_error(s->transfer));
        *ret_status = KVD_UNAVAILABLE;
        transition_ended(s);
        return true;
    }
    int code = store_move_commit(s->store, op->move, &refusal);
    if (code == STORE_MORE) {
        stage_submit(s, op, (struct store_transition){ true, op->move.bits }, NULL, 0, NULL);
        return !op->parts && move_advance(s, op, ret_status, why, why_bytes);
    }
    if (code == STORE_WAIT) {
        pending_wait(s, op);
        return false;
    }
    transition_ended(s);
    if (code == STORE_OK) {
        tell_moved(s, op);
        return true;
    }
    refusal.code = (enum store_code)code;
    op->short_of = short_of_store(&refusal);
    store_refusal_text(&refusal, why, why_bytes);
    /* Somebody has dropped what was there at the beginning, or has taken the place of it. */
    *ret_status = status_of_store(refusal.code);
    return true;
}

bool demote_begin_late(struct service *s, struct pending *op, enum kvd_status *ret_status, char *why,
                       size_t why_bytes) {
    struct store_refusal refusal = { 0 };
    int code = store_move_begin(s->store, op->demote.cont, op->demote.to, &op->move, &refusal);
    if (code == STORE_E_BUSY && s->cold_copying.bits == op->demote.cont.bits) {
        pending_wait(s, op);
        return false;
    }
    if (code) {
        op->short_of = short_of_store(&refusal);
        store_refusal_text(&refusal, why, why_bytes);
        *ret_status = status_of_store(refusal.code);
        return true;
    }
    op->kind = PENDING_MOVE;
    s->n_moves++;
    stage_submit(s, op, (struct store_transition){ true, op->move.bits }, NULL, 0, NULL);
    return move_advance(s, op, ret_status, why, why_bytes);
}
