/* SPDX-License-Identifier: Apache-2.0
 *
 * Plan, Activate, Checkpoint, Finish, and what a scheduler does to continuations.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cold_reader.h"
#include "cold_tier.h"
#include "core.h"
#include "former_processes.h"
#include "requests.h"
#include "session.h"
#include "stage.h"
#include "tenant.h"
#include "transfer.h"

static uint32_t choose_max(const struct call *call) {
    uint32_t max = call->request.u.choose.max;
    return max && max < KVD_MAX_VICTIMS ? max : KVD_MAX_VICTIMS;
}

bool victims_reserve(struct call *call) {
    uint32_t n = call->request.type == FRAME_CHOOSE       ? choose_max(call)
                 : call->request.type == FRAME_CHECKPOINT ? call->request.u.checkpoint.n_victims
                                                          : call->request.u.activation.n_victims;
    call->memory = n ? codec_arena_take(call->scratch->arena, n * sizeof(struct kvd_victim)) : NULL;
    return n == 0 || call->memory;
}

void victims_show(const struct call *call, const struct kvd_victim *victims, uint32_t n, struct kvd_victim *shown) {
    for (uint32_t i = 0; i < n; i++) {
        shown[i] = victims[i];
        shown[i].continuation.bits = tenant_change(call, victims[i].continuation).bits;
    }
}

/* The victims as the store is shown them are in the call's room. */
static void want_of(const struct call *call, const struct kvd_activation *a, uint64_t lease,
                    struct store_activation *ret_want) {
    victims_show(call, a->victims, a->n_victims, call->memory);
    *ret_want = (struct store_activation){ .root = a->root,
                                           .from = tenant_use(call, a->from),
                                           .keep = a->keep,
                                           .frontier = a->frontier,
                                           .lease = lease,
                                           .prompt_tokens = a->prompt_tokens,
                                           .max_output_tokens = a->max_output_tokens,
                                           .victims = call->memory,
                                           .n_victims = a->n_victims,
                                           .tag = call->session->peer.uid,
                                           .revision = a->revision,
                                           .checkpoint_every = a->checkpoint_every,
                                           .checkpoint_prompt = a->checkpoint_prompt };
    memcpy(ret_want->ensure, a->ensure, sizeof ret_want->ensure);
}

void victims_refuse(struct call *call, kvd_continuation named, const struct kvd_victim *victims, uint32_t n,
                    struct store_refusal *refusal) {
    for (uint32_t i = 0; refusal->subject == STORE_S_RECIPE && i < n; i++)
        if (tenant_change(call, victims[i].continuation).bits == refusal->asked) named = victims[i].continuation;
    call_refuse_cont(call, refusal, named);
}

static void refuse_activation(struct call *call, const struct kvd_activation *a, struct store_refusal *refusal) {
    victims_refuse(call, a->from, a->victims, a->n_victims, refusal);
}

/* Nothing is activated now, whatever it asks for: a plan says so, too. */
static bool check_open(struct call *call) {
    struct service *s = call->service;
    if (s->draining || s->stopping)
        call_refuse(call, KVD_UNAVAILABLE,
                    "kvd is draining: running sequences go on, new ones are refused; try another store, or later");
    else if (transfer_lost(s->transfer))
        call_refuse(call, KVD_UNAVAILABLE, "%.300s; kvd stops", transfer_error(s->transfer));
    else return former_clear(call);
    return false;
}

void serve_plan(struct call *call) {
    struct store_activation want;
    struct store_refusal refusal = { 0 };
    const struct kvd_activation *a = &call->request.u.activation;
    if (!check_open(call)) return;
    want_of(call, a, 1, &want);
    if (store_plan_activation(call->service->store, &want, &call->reply.u.plan, &refusal))
        refuse_activation(call, a, &refusal);
}

/* Only what the session may release or demote is in the answer. */
void serve_choose(struct call *call) {
    const struct kvd_choose *q = &call->request.u.choose;
    const struct session *session = call->session;
    struct kvd_choice *r = &call->reply.u.choice;
    struct store_choice how = { .max = choose_max(call),
                                .demote = true,
                                .of_tag = !tenant_sees(call->service, session, TENANT_UNKNOWN),
                                .tag = session->peer.uid };
    struct store_chosen chosen;
    struct store_refusal refusal = { 0 };
    if (q->order != KVD_ORDER_RETENTION_USED) {
        call_refuse(call, KVD_INVALID_ARGUMENT, "Choose names no order of going; say ORDER_RETENTION_USED");
        return;
    }
    if (q->activation.n_victims) {
        call_refuse(call, KVD_INVALID_ARGUMENT, "Choose finds the victims itself, and was given %u; leave them out",
                    q->activation.n_victims);
        return;
    }
    if (!check_open(call)) return;
    want_of(call, &q->activation, 1, &how.want);
    if (store_choose_victims(call->service->store, &how, call->memory, &chosen, &refusal)) {
        refuse_activation(call, &q->activation, &refusal);
        return;
    }
    *r = (struct kvd_choice){ .n = chosen.n, .victims = call->memory, .more = chosen.more, .plan = chosen.plan };
}

/* ---- activation ------------------------------------------------------------------------------ */

static bool check_worker(struct call *call, kvd_session_id id) {
    struct session *w = session_find(call->service, id);
    if (!w)
        call_refuse(call, KVD_NOT_FOUND,
                    "worker session %016" PRIx64 " does not exist, or not any more; lease to a living one", id.bits);
    else if (w->role != KVD_ROLE_WORKER && w != call->session)
        call_refuse(call, KVD_INVALID_ARGUMENT,
                    "session %016" PRIx64 " is no worker; lease to a worker, to a group, or to yourself", id.bits);
    else if (w->fenced || !w->link)
        call_refuse(call, KVD_FAILED_PRECONDITION, "worker session %016" PRIx64 " is %s; lease to another one", id.bits,
                    w->fenced ? "fenced" : "not connected");
    else return tenant_may_lease(call, w);
    return false;
}

static bool check_lease_group(struct call *call, kvd_group_id id) {
    struct group *g = group_find(call->service, id);
    if (!g) call_refuse(call, KVD_NOT_FOUND, "group %016" PRIx64 " does not exist, or not any more", id.bits);
    else if (g->owner.bits != session_id(call->service, call->session).bits && call->session->role != KVD_ROLE_ADMIN)
        call_refuse(call, KVD_PERMISSION_DENIED, "the group was opened by another session, which may lease to it");
    else if (g->broken)
        call_refuse(call, KVD_FAILED_PRECONDITION, "the group has lost a member; close it and open another one");
    else {
        for (uint32_t i = 0; i < g->n_members; i++) {
            struct session *m = session_find(call->service, g->member[i]);
            if (m && m->link && !tenant_may_lease(call, m)) return false;
            if (m && m->link) continue;
            call_refuse(call, KVD_FAILED_PRECONDITION,
                        "the group's member of rank %u is not connected; wait for it, or open another group", i);
            return false;
        }
        return true;
    }
    return false;
}

static bool check_activation(struct call *call) {
    const struct kvd_activation *a = &call->request.u.activation;
    struct service *s = call->service;
    uint32_t limit = s->config.sequences_per_session;
    if (!check_open(call)) return false;
    if (store_root_is_none(&a->root.digest))
        call_refuse(call, KVD_INVALID_ARGUMENT,
                    "Activate without a root: a sequence belongs to the domain of its prompt for its whole life; send "
                    "the root digest of the prompt's chain (kvd_chain_root)");
    else if (!a->worker.bits == !a->group.bits)
        call_refuse(call, KVD_INVALID_ARGUMENT, "name either a worker or a group to lease to, not %s",
                    a->worker.bits ? "both" : "neither");
    else if (limit != CONFIG_AUTO32 && call->session->n_owned >= limit)
        call_refuse(call, KVD_RESOURCE_EXHAUSTED,
                    "this session has %u active sequences, which is its limit; finish some, or raise "
                    "sequences_per_session = in section [limits]",
                    call->session->n_owned);
    else return a->worker.bits ? check_worker(call, a->worker) : check_lease_group(call, a->group);
    return false;
}

/* want: as it was made. */
static void describe_activation(struct call *call, const struct store_activation *want,
                                const struct store_activated *made, struct bundle *b) {
    const struct kvd_activation *a = &call->request.u.activation;
    struct kvd_activated *r = &call->reply.u.activated;
    b->source = !want->from.bits ? METRICS_ROOT : a->keep ? METRICS_FORK : METRICS_MOVE;
    b->reused_tokens = want->frontier;
    b->prompt_tokens = a->prompt_tokens;
    b->begun_ns = call->now_ns;
    b->domain = metrics_domain_slot(&call->service->metrics, a->root.label, !call->service->tenancy);
    *r = (struct kvd_activated){ .sequence.bits = made->seq.bits,
                                 .state_slot = made->state_slot,
                                 .source_state_slot = made->source_state_slot,
                                 .n_pools = call->service->pools.n_pools };
    memcpy(r->restored, made->restored, sizeof r->restored);
    for (uint32_t p = 0; p < r->n_pools; p++) r->pool[p] = made->pool[p];
}

/* It may have copies between device and host to wait for: a victim is to be demoted, or not all of the source is on the
 * device. */
static bool may_wait_for_copies(const struct service *s, const struct store_activation *want) {
    struct kvd_continuation_info info;
    struct store_refusal refusal;
    bool here = true;
    if (!s->mover) return false;
    for (uint32_t i = 0; i < want->n_victims; i++)
        if (want->victims[i].demote) return true;
    if (!want->from.bits || store_cont_look(s->store, want->from, &info, &refusal)) return false;
    for (uint32_t p = 0; p < s->pools.n_pools; p++) here &= info.device_pages[p] == info.pages[p];
    return !here || (s->config.state_bytes && !info.image_on_device);
}

/* What has to be copied between device and host waits in a place for that. */
static struct pending *place_for_copies(struct service *s, struct pending *op, const struct bundle *b) {
    struct store_work work;
    struct pending *slow =
        stage_work(s, (struct store_transition){ .bits = b->seq.bits }, &work) ? pending_make_slow(s, op) : NULL;
    return slow ? slow : op;
}

/* Its bundle, and its copies on their way. Returns its operation as it is then. */
static struct pending *submit_activation(struct call *call, const struct store_activation *want,
                                         const struct store_activated *made, struct pending *op) {
    struct service *s = call->service;
    const struct kvd_activation *a = &call->request.u.activation;
    struct bundle *b = bundle_new(s, made->seq, want->lease, session_id(s, call->session), a->worker, a->group);
    describe_activation(call, want, made, b);
    op->kind = PENDING_ACTIVATE;
    op->bundle = (uint32_t)(b - s->bundles);
    b->tag = pending_tag(s, op);
    op = place_for_copies(s, op, b);
    op->given_way = made->victims_lost;
    op->staged = made->staged;
    if (made->staged) cold_tier_keep_copy(s);
    op->u.activated = call->reply.u.activated;
    stage_submit(s, op, (struct store_transition){ .bits = b->seq.bits }, made->copies, made->n_copies,
                 &op->u.activated);
    return op;
}

static void answer_activation(struct call *call, struct pending *op) {
    struct service *s = call->service;
    char why[KVD_MESSAGE_BYTES];
    enum kvd_status status;
    uint32_t bundle = op->bundle;
    if (!activation_advance(s, op, &status, why, sizeof why)) {
        call->parked = true;
        call->slow = s->ops[s->bundles[bundle].tag - 1].slow;
        return;
    }
    call->reply.u.activated = op->u.activated;
    pending_free(s, op);
    if (status == KVD_OK) return;
    call_refuse(call, status, "%s", why);
    call->short_of = op->short_of;
}

/* ---- what the cold tier has first ---- */

/* A request that waits for what is loaded, behind its job. */
struct loading {
    struct kvd_activation activation;
    struct kvd_victim victims[]; /* its own, and as many as the store is shown */
};

bool activation_reserve(struct call *call) {
    struct kvd_activation *a = &call->request.u.activation;
    struct kvd_cold_source *c = &a->cold;
    tenant_salt_root(call, &a->root.digest);
    if (!victims_reserve(call)) return false;
    if (!c->n && !c->tail.n) return true;
    if (!tenant_salt(call, &c->digests, c->n)) return false;
    const struct kvd_cold_want want = { .root = a->root,
                                        .from.bits = c->first ? a->from.bits : 0,
                                        .first = c->first,
                                        .n = c->n,
                                        .digests = c->digests,
                                        .tail = c->tail,
                                        .retention = c->retention };
    call->cold = cold_job_new(&want, true, sizeof(struct loading) + 2 * a->n_victims * sizeof a->victims[0]);
    return call->cold != NULL;
}

/* From what was loaded, where that is more and fits; else from what was there. */
static bool begin_loaded(struct call *call, const struct cold_job *job, struct store_activation *want,
                         struct store_activated *made) {
    struct service *s = call->service;
    struct store_refusal refusal = { 0 };
    const struct kvd_activation *a = &call->request.u.activation;
    struct store_activation loaded = *want;
    loaded.from.bits = job->found.continuation.bits;
    loaded.frontier = job->found.frontier;
    if (loaded.from.bits && loaded.frontier > want->frontier &&
        !store_activate_begin(s->store, &loaded, made, &refusal)) {
        *want = loaded;
        return true;
    }
    if (!store_activate_begin(s->store, want, made, &refusal)) return true;
    refuse_activation(call, a, &refusal);
    return false;
}

/* The recipe was checked against its revision when it came: what was loaded since then has changed that. */
static bool activate_job(struct call *call, struct cold_job *job, struct pending *op) {
    const struct kvd_activation *a = &call->request.u.activation;
    struct store_activation want;
    struct store_activated made;
    if (!check_activation(call)) return false;
    want_of(call, a, a->worker.bits ? a->worker.bits : ~a->group.bits, &want);
    want.revision = 0;
    if (!begin_loaded(call, job, &want, &made)) return false;
    op = submit_activation(call, &want, &made, op);
    if (!op->parts) pending_ready(call->service, op);
    return true;
}

/* The load has ended, whatever it brought. */
static void activate_loaded(struct service *s, struct cold_job *job, struct pending *op) {
    struct loading *loading = job->more;
    const struct kvd_activation *a = &loading->activation;
    struct call call = { .service = s, .now_ns = job->arrived_ns, .session = session_find(s, job->session) };
    call.request.type = FRAME_ACTIVATE;
    call.request.u.activation = *a;
    call.memory = loading->victims + a->n_victims;
    if (!call.session || job->cancelled)
        call_refuse(&call, KVD_CANCELLED, "a Cancel, or the end of its session, ended it: nothing was activated");
    else if (activate_job(&call, job, op)) {
        free(job);
        return;
    }
    job->status = (enum kvd_status)call.reply.status;
    job->short_of = call.short_of;
    snprintf(job->why, sizeof job->why, "%s", call.reply.message);
    pending_ready(s, op);
}

/* What can be refused now is, before anything is loaded. */
static void load_first(struct call *call, const struct store_activation *want) {
    const struct kvd_activation *a = &call->request.u.activation;
    struct loading *loading = call->cold->more;
    struct store_refusal refusal = { 0 };
    struct kvd_plan plan;
    if (!cold_check_want(call)) return;
    if (store_plan_activation(call->service->store, want, &plan, &refusal)) {
        refuse_activation(call, a, &refusal);
        return;
    }
    loading->activation = *a;
    loading->activation.victims = loading->victims;
    if (a->n_victims) memcpy(loading->victims, a->victims, a->n_victims * sizeof a->victims[0]);
    call->cold->then = activate_loaded;
    cold_load_for(call);
}

/* ---- activation and cancel ---- */

void serve_activate(struct call *call) {
    struct service *s = call->service;
    const struct kvd_activation *a = &call->request.u.activation;
    struct store_activation want;
    struct store_activated made;
    struct store_refusal refusal = { 0 };
    if (!check_activation(call)) return;
    want_of(call, a, a->worker.bits ? a->worker.bits : ~a->group.bits, &want);
    if (call->cold && s->cold_reader) {
        load_first(call, &want);
        return;
    }
    /* All places are looked at before anything is begun, for what begins may release victims past recall. */
    if (may_wait_for_copies(s, &want) && !pending_check_slow(call)) return;
    struct pending *op = pending_new(call);
    if (!op) return;
    if (store_activate_begin(s->store, &want, &made, &refusal)) {
        pending_free(s, op);
        refuse_activation(call, a, &refusal);
        return;
    }
    answer_activation(call, submit_activation(call, &want, &made, op));
}

/* The activation of this number of the session that is in work; NULL: there is none. */
static struct bundle *activation_of(struct service *s, kvd_session_id session, uint64_t number) {
    for (uint32_t i = 0; s->n_bundles && i < s->config.max_concurrency; i++) {
        struct bundle *b = &s->bundles[i];
        const struct pending *op = b->used && b->activating && b->tag ? &s->ops[b->tag - 1] : NULL;
        if (op && op->session.bits == session.bits && op->sequence == number) return b;
    }
    return NULL;
}

/* One that waits for what it loads first. True: it ends without it. */
static bool cancel_loading(struct service *s, kvd_session_id session, uint64_t number) {
    for (size_t i = 0; i < (size_t)s->config.sessions * PENDING_SLOTS; i++) {
        const struct pending *op = &s->ops[i];
        if (!op->used || op->kind != PENDING_COLD || op->type != FRAME_ACTIVATE || op->sequence != number ||
            op->session.bits != session.bits)
            continue;
        op->cold->cancelled = true;
        return true;
    }
    return false;
}

static void refuse_cancel(struct call *call, uint64_t number) {
    const struct answer *a = answer_find(call->session, number);
    if (a && a->type == FRAME_ACTIVATE)
        call_refuse(call, KVD_FAILED_PRECONDITION,
                    "request %" PRIu64
                    " has ended already: repeat it under its number to learn how, and finish what it "
                    "activated",
                    number);
    else
        call_refuse(call, KVD_NOT_FOUND,
                    "no Activate with number %" PRIu64 " of this session is in work; name one whose answer is still to "
                    "come",
                    number);
}

static struct bundle *cancel_sequence(struct call *call, kvd_sequence sequence) {
    struct bundle *b = bundle_find(call->service, (store_seq){ sequence.bits });
    if (!b) {
        call_refuse(call, KVD_NOT_FOUND, "sequence %016" PRIx64 " does not exist, or not any more", sequence.bits);
    } else if (b->owner.bits != session_id(call->service, call->session).bits) {
        call_refuse(call, KVD_PERMISSION_DENIED,
                    "sequence %016" PRIx64 " is activated by another session, which alone may cancel that",
                    sequence.bits);
    } else if (!b->activating) {
        call_refuse(call, KVD_FAILED_PRECONDITION, "sequence %016" PRIx64 " is active already: finish it",
                    sequence.bits);
    } else return b;
    return NULL;
}

void serve_cancel(struct call *call) {
    struct service *s = call->service;
    uint64_t number = call->request.u.cancel.activate;
    kvd_sequence sequence = call->request.u.cancel.sequence;
    struct bundle *b = NULL;
    if (!number == !sequence.bits)
        call_refuse(call, KVD_INVALID_ARGUMENT, "Cancel names either the number of an Activate or its sequence, not %s",
                    number ? "both" : "neither");
    else if (sequence.bits) b = cancel_sequence(call, sequence);
    else if (!(b = activation_of(s, session_id(s, call->session), number)) &&
             !cancel_loading(s, session_id(s, call->session), number))
        refuse_cancel(call, number);
    if (b) activation_cancel(s, b);
}
