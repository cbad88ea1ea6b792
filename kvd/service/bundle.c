/* SPDX-License-Identifier: Apache-2.0
 *
 * Bundles (active sequences with owner and drivers) and groups of workers. Who may drive, and when a lost driver's
 * sequence ends.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "boards.h"
#include "bundle.h"
#include "core.h"
#include "events.h"
#include "log.h"
#include "mover.h"
#include "mutant.h"
#include "pending.h"
#include "remainder.h"
#include "session.h"
#include "tenant.h"
#include "transfer.h"

/* ---- groups -------------------------------------------------------------------------------- */

struct group *group_new(struct service *s, kvd_session_id owner, const struct kvd_group *members) {
    struct group *group = NULL;
    for (uint32_t i = 0; i < s->config.sessions && !group; i++)
        if (!s->groups[i].used && s->groups[i].generation < UINT32_MAX) group = &s->groups[i];
    if (!group) return NULL;
    *group =
        (struct group){ .used = true, .generation = group->generation + 1, .owner = owner, .n_members = members->n };
    memcpy(group->member, members->members, members->n * sizeof *group->member);
    s->n_groups++;
    return group;
}

void group_drop(struct service *s, struct group *group) {
    group->used = false;
    s->n_groups--;
}

static int group_place(const struct group *group, kvd_session_id session) {
    for (uint32_t i = 0; i < group->n_members; i++)
        if (group->member[i].bits == session.bits) return (int)i;
    return -1;
}

void groups_lose(struct service *s, kvd_session_id session, bool gone) {
    for (uint32_t i = 0; s->n_groups && i < s->config.sessions; i++) {
        struct group *g = &s->groups[i];
        if (!g->used) continue;
        int place = group_place(g, session);
        if (place == 0 || (place > 0 && !MUTANT(leader_alone_breaks_a_group))) g->broken = true;
        if (gone && g->owner.bits == session.bits) g->orphan = true;
        if (g->orphan && !g->n_bundles) group_drop(s, g);
    }
}

/* ---- the table ------------------------------------------------------------------------------- */

static uint32_t slot_of(const struct service *s, store_seq seq) {
    uint64_t h = seq.bits * UINT64_C(0x9E3779B97F4A7C15);
    return (uint32_t)(h >> 32) & s->bundle_index_mask;
}

struct bundle *bundle_find(struct service *s, store_seq seq) {
    for (uint32_t at = slot_of(s, seq); s->bundle_index[at]; at = (at + 1) & s->bundle_index_mask) {
        struct bundle *b = &s->bundles[s->bundle_index[at] - 1];
        if (b->seq.bits == seq.bits) return b;
    }
    return NULL;
}

struct bundle *bundle_new(struct service *s, store_seq seq, uint64_t lease, kvd_session_id owner, kvd_session_id worker,
                          kvd_group_id group) {
    uint32_t i = 0, at = slot_of(s, seq);
    while (s->bundles[i].used) i++; /* the store has no more sequences than there are bundles */
    while (s->bundle_index[at]) at = (at + 1) & s->bundle_index_mask;
    s->bundle_index[at] = i + 1;
    struct bundle *b = &s->bundles[i];
    *b = (struct bundle){
        .used = true, .activating = true, .seq = seq, .lease = lease, .owner = owner, .worker = worker, .group = group
    };
    struct session *session = session_find(s, owner);
    struct group *g = group_find(s, group);
    if (session) {
        session->n_owned++;
        b->tenant = session->peer.uid;
    }
    if (g) g->n_bundles++;
    s->n_bundles++;
    return b;
}

/* Linear probing without tombstones: what follows moves up. */
static void bundle_index_remove(struct service *s, const struct bundle *b) {
    uint32_t mask = s->bundle_index_mask, hole = slot_of(s, b->seq);
    while (&s->bundles[s->bundle_index[hole] - 1] != b) hole = (hole + 1) & mask;
    for (uint32_t at = (hole + 1) & mask; s->bundle_index[at]; at = (at + 1) & mask) {
        uint32_t home = slot_of(s, s->bundles[s->bundle_index[at] - 1].seq);
        if (((at - home) & mask) < ((at - hole) & mask)) continue; /* its home lies after the hole */
        s->bundle_index[hole] = s->bundle_index[at];
        hole = at;
    }
    s->bundle_index[hole] = 0;
}

void bundle_free(struct service *s, struct bundle *b) {
    struct session *session = session_find(s, b->owner);
    struct group *g = group_find(s, b->group);
    if (session) session->n_owned--;
    board_remove(s, b);
    bundle_index_remove(s, b);
    free(b->growth);
    b->growth = NULL;
    b->used = false;
    s->n_bundles--;
    if (g && --g->n_bundles == 0 && g->orphan) group_drop(s, g);
}

const struct growth_list *bundle_growth(struct service *s, const struct bundle *b) {
    if (MUTANT(growth_list_is_lost)) return NULL;
    const struct session *owner = session_find(s, b->owner);
    return b->growth ? b->growth : owner ? owner->growth : NULL;
}

/* ---- rights ---------------------------------------------------------------------------------- */

int bundle_driver(struct service *s, const struct bundle *b, kvd_session_id session) {
    if (b->worker.bits) return b->worker.bits == session.bits ? 0 : -1;
    const struct group *g = group_find(s, b->group);
    return g ? group_place(g, session) : -1;
}

static bool bundle_allows(struct service *s, const struct bundle *b, kvd_session_id session) {
    return b->owner.bits == session.bits || bundle_driver(s, b, session) == 0; /* place 0: the worker, or the leader */
}

struct bundle *bundle_to_act(struct service *s, kvd_session_id session, kvd_sequence sequence,
                             enum kvd_status *ret_status, char *why, size_t why_bytes) {
    struct bundle *b = bundle_find(s, (store_seq){ sequence.bits });
    if (!b || b->activating) {
        *ret_status = KVD_NOT_FOUND;
        snprintf(why, why_bytes, "sequence %016" PRIx64 " does not exist, or not any more", sequence.bits);
    } else if (!bundle_allows(s, b, session)) {
        *ret_status = KVD_PERMISSION_DENIED;
        snprintf(why, why_bytes,
                 "sequence %016" PRIx64 " is neither owned by this session nor leased to it (of a group, rank 0 acts)",
                 sequence.bits);
    } else if (b->ending) {
        *ret_status = KVD_FAILED_PRECONDITION;
        snprintf(why, why_bytes,
                 "sequence %016" PRIx64
                 " is ending: its scheduler or a worker was lost, or kvd stops; workers: finish your unit and yield",
                 sequence.bits);
    } else {
        return b;
    }
    return NULL;
}

bool bundle_is_frozen(const struct bundle *b, kvd_session_id session, char *why, size_t why_bytes) {
    if (!b->launcher.bits || b->launcher.bits == session.bits || MUTANT(unit_freezes_nothing)) return false;
    snprintf(why, why_bytes,
             "a unit of session %016" PRIx64 " may run on sequence %016" PRIx64
             ": its last Round asked to map; have it send a Round that asks for no ensure when the unit has ended",
             b->launcher.bits, b->seq.bits);
    return true;
}

/* ---- death ------------------------------------------------------------------------------------ */

static bool bundle_concerns(struct service *s, struct session *with, const void *argument) {
    const struct bundle *b = argument;
    kvd_session_id me = session_id(s, with);
    if (!tenant_sees(s, with, b->tenant)) return false;
    return with->role == KVD_ROLE_OBSERVER || with->role == KVD_ROLE_ADMIN || b->owner.bits == me.bits ||
           bundle_driver(s, b, me) >= 0;
}

void bundle_tell(struct service *s, const struct bundle *b, const struct kvd_event *event) {
    events_add(s, event, bundle_concerns, b);
}

static void end_sequence(struct service *s, struct bundle *b) {
    struct kvd_pool_view rows[KVD_MAX_POOLS] = { 0 };
    struct store_refusal refusal = { 0 };
    store_cont cont = { 0 };
    char why[KVD_MESSAGE_BYTES];
    if (store_end(s->store, b->seq, &cont, rows, &refusal)) {
        LOG(LOG_ERROR, "a lost sequence cannot be ended: %s", store_refusal_text(&refusal, why, sizeof why));
    } else {
        cont = remainder_note(s, cont, b->owner);
        tenant_note(s, cont, b->tenant);
        transfer_publish(s->transfer, rows);
        s->metrics.ended[cont.bits ? METRICS_KEPT : METRICS_RELEASED]++;
    }
    bundle_tell(s, b,
                &(struct kvd_event){ .kind = KVD_EVENT_SEQUENCE_ENDED,
                                     .sequence.bits = b->seq.bits,
                                     .continuation.bits = cont.bits,
                                     .session = b->worker,
                                     .group = b->group });
    LOG(cont.bits ? LOG_INFO : LOG_WARNING, "a sequence ended with its %s: %s",
        b->worker.bits ? "worker or scheduler" : "group or scheduler", cont.bits ? "kept as a continuation" : "lost");
    bundle_free(s, b);
}

static const struct session *bundle_driver_at(struct service *s, const struct bundle *b, uint32_t place, bool *ret_is) {
    const struct group *g = b->worker.bits ? NULL : group_find(s, b->group);
    *ret_is = b->worker.bits ? place == 0 : g && place < g->n_members;
    if (!*ret_is) return NULL;
    return session_find(s, b->worker.bits ? b->worker : g->member[place]);
}

static void stop_copies(struct service *s, const struct bundle *b, const struct pending *op) {
    if (op->waits) transition_ended(s); /* it is tried again, and undone */
    else mover_cancel(s->mover, b->tag);
}

/* The owner or a driver is gone during the activation, which is undone when its copies have ended. */
static void activation_end_early(struct service *s, struct bundle *b) {
    const struct pending *op = b->tag ? &s->ops[b->tag - 1] : NULL;
    b->doomed = true;
    if (op && !op->given_way) stop_copies(s, b, op);
}

void activation_cancel(struct service *s, struct bundle *b) {
    b->cancelled = true;
    if (b->tag && !MUTANT(cancel_waits_for_its_turn)) stop_copies(s, b, &s->ops[b->tag - 1]);
}

void bundle_update(struct service *s, struct bundle *b) {
    struct store_refusal refusal;
    bool away = false, clear = true, is;
    for (uint32_t place = 0; place < KVD_MAX_RANKS; place++) {
        const struct session *driver = bundle_driver_at(s, b, place, &is);
        if (!is) break;
        away |= !driver || !driver->link || driver->fenced;
        clear &= !driver || (b->cleared >> place & 1);
    }
    if (b->ending && b->activating) {
        activation_end_early(s, b);
        return;
    }
    if (b->ending && clear) {
        end_sequence(s, b);
        return;
    }
    bool want = b->ending || away;
    if (b->activating || want == b->quarantined) return;
    if (store_quarantine(s->store, b->seq, want, &refusal) == STORE_OK) b->quarantined = want;
}

void bundle_end(struct service *s, struct bundle *b) {
    b->ending = true;
    if (!MUTANT(ending_sequence_stays_on_its_board)) board_remove(s, b);
}

void bundles_lose(struct service *s, kvd_session_id session) {
    for (uint32_t i = 0; s->n_bundles && i < s->config.max_concurrency; i++) {
        struct bundle *b = &s->bundles[i];
        if (b->used && (b->owner.bits == session.bits || bundle_driver(s, b, session) >= 0)) bundle_end(s, b);
    }
}

void bundles_update_all(struct service *s) {
    for (uint32_t i = 0; s->n_bundles && i < s->config.max_concurrency; i++)
        if (s->bundles[i].used) bundle_update(s, &s->bundles[i]);
}
