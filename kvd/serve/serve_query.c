/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests that look and change nothing: descriptions, lists, Find, Stats, Audit.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "boards.h"
#include "bundle.h"
#include "clock.h"
#include "core.h"
#include "former_processes.h"
#include "host_tier.h"
#include "log.h"
#include "requests.h"
#include "session.h"
#include "tenant.h"

static uint32_t list_max(const struct call *call) {
    uint32_t max = call->request.u.list.max;
    return max && max < LIST_AT_ONCE ? max : LIST_AT_ONCE;
}

static uint32_t find_max(const struct call *call) {
    uint32_t max = call->request.u.find.max;
    return max && max < KVD_MAX_HITS ? max : KVD_MAX_HITS;
}

/* ---- descriptions ----------------------------------------------------------------------------- */

void serve_describe_store(struct call *call) {
    const struct pools *p = &call->service->pools;
    call->reply.u.store = call->memory;
    bool maps = call->session->role != KVD_ROLE_OBSERVER;
    *call->reply.u.store = maps ? p->info : p->public_info;
    bool boards = boards_are_given(call->service);
    if (!maps || !(p->has_descriptors || boards)) return;
    if (boards) {
        call->reply.u.store->board_index = BOARD_SEGMENT_FD;
        call->reply.u.store->bell_index = BOARD_BELL_FD;
    }
    call->session->fd_token = call->random;
    call->reply.u.store->fd_token = call->random;
    snprintf(call->reply.u.store->fd_socket, sizeof call->reply.u.store->fd_socket, "%s" FDPASS_SUFFIX,
             call->service->config.socket);
}

void serve_describe_planes(struct call *call) {
    const struct kvd_planes_request *want = &call->request.u.planes;
    const struct pools *p = &call->service->pools;
    struct kvd_plane_info *items = call->memory;
    struct geom_plane plane;
    uint32_t n = 0;
    if (want->pool >= p->n_pools || want->rank >= p->n_ranks) {
        call_refuse(call, KVD_OUT_OF_RANGE, "pool %u of rank %u does not exist: there are %u pools and %u ranks",
                    want->pool, want->rank, p->n_pools, p->n_ranks);
        return;
    }
    const struct geom_pool_spec *spec = &p->spec[want->pool];
    uint32_t total = geom_plane_count(spec);
    for (uint32_t ordinal = want->first; ordinal < total && n < KVD_MAX_LIST; ordinal++) {
        geom_plane_at(spec, p->pages[want->pool], want->rank, ordinal, &plane);
        items[n++] = (struct kvd_plane_info){ .ordinal = plane.ordinal,
                                              .layer = plane.layer,
                                              .slot = plane.slot,
                                              .dtype = plane.dtype,
                                              .extent = plane.extent,
                                              .n_heads = plane.n_heads,
                                              .offset = plane.offset,
                                              .nb0 = plane.nb0,
                                              .nb1 = plane.nb1,
                                              .nb2 = plane.nb2,
                                              .nb3 = plane.nb3,
                                              .format = plane.format,
                                              .order = plane.order };
    }
    call->reply.u.planes.n = n;
    call->reply.u.planes.total = total;
    call->reply.u.planes.items = items;
}

/* ---- lists -------------------------------------------------------------------------------------- */

void serve_list_continuations(struct call *call) {
    struct service *s = call->service;
    struct kvd_continuation_info *items = call->memory;
    const struct kvd_root *meant = &call->request.u.list.root;
    uint32_t cursor = call->request.u.list.cursor, n = 0, max = list_max(call);
    bool more = true;
    for (uint32_t looked = 0; looked < max && (more = store_next_cont(s->store, &cursor, &items[n])); looked++)
        n += store_root_is(&items[n].root, meant) &&
             tenant_sees(s, call->session, tenant_of(s, store_cont_of(items[n].continuation)));
    call->reply.u.continuations.n = n;
    call->reply.u.continuations.next_cursor = more ? cursor : KVD_UNCHANGED;
    call->reply.u.continuations.items = items;
}

/* A cursor is a number of the store's changes beside a mark of this instance, so that one of another is known. */
#define CHANGE_BITS 44
#define CHANGE_MASK ((UINT64_C(1) << CHANGE_BITS) - 1)
#define CHANGES_AT_ONCE 4096u /* that an answer passes at most: most of them may be followed by a later one */

static uint64_t change_mark(const struct service *s) { return s->epoch << CHANGE_BITS | UINT64_C(1) << 63; }

static bool check_changes(struct call *call) {
    const struct service *s = call->service;
    uint64_t cursor = call->request.u.changes.cursor, number = cursor & CHANGE_MASK;
    if ((cursor & ~CHANGE_MASK) == change_mark(s) && number >= store_changes_begin(s->store) &&
        number <= store_changes_end(s->store))
        return true;
    call_refuse(call, KVD_OUT_OF_RANGE,
                "changes from %016" PRIx64 " on are not kept: they are those from %016" PRIx64 " to %016" PRIx64
                "; begin with cursor 0, and list the continuations again",
                cursor, change_mark(s) | store_changes_begin(s->store), change_mark(s) | store_changes_end(s->store));
    return false;
}

/* Of what is gone another one may have the place in the table of tenants by now; a handle that finds nothing tells
 * nobody anything, and its owner must hear of it. */
static bool may_see_change(const struct call *call, const struct kvd_continuation_info *info) {
    uint64_t owner = tenant_of(call->service, store_cont_of(info->continuation));
    return tenant_sees(call->service, call->session, owner) || (!info->frontier && owner == TENANT_UNKNOWN);
}

void serve_list_changes(struct call *call) {
    struct service *s = call->service;
    struct kvd_continuation_info *items = call->memory;
    uint32_t max = call->request.u.changes.max, n = 0;
    uint64_t all = store_changes_end(s->store), number = all;
    if (call->request.u.changes.cursor && !check_changes(call)) return;
    if (call->request.u.changes.cursor) number = call->request.u.changes.cursor & CHANGE_MASK;
    if (!max || max > LIST_AT_ONCE) max = LIST_AT_ONCE;
    uint64_t end = all - number < CHANGES_AT_ONCE ? all : number + CHANGES_AT_ONCE;
    for (uint32_t looked = 0; looked < max && store_next_change(s->store, &number, end, &items[n]); looked++)
        n += may_see_change(call, &items[n]);
    call->reply.u.changes.cursor = change_mark(s) | number;
    call->reply.u.changes.more = number < all;
    call->reply.u.changes.n = n;
    call->reply.u.changes.items = items;
}

void serve_list_sequences(struct call *call) {
    struct service *s = call->service;
    struct kvd_sequence_info *items = call->memory;
    uint32_t cursor = call->request.u.list.cursor, n = 0, max = list_max(call);
    bool more = true;
    for (uint32_t looked = 0; looked < max && (more = store_next_seq(s->store, &cursor, &items[n])); looked++) {
        const struct bundle *b = bundle_find(s, (store_seq){ items[n].sequence.bits });
        if (!store_root_is(&items[n].root, &call->request.u.list.root)) continue;
        if (!tenant_sees(s, call->session, b ? b->tenant : TENANT_UNKNOWN)) continue;
        if (b) {
            items[n].owner = b->owner;
            items[n].worker = b->worker;
            items[n].group = b->group;
            items[n].ending = b->ending;
            items[n].age_ns = clock_since(b->begun_ns, call->now_ns);
        }
        n++;
    }
    call->reply.u.sequences.n = n;
    call->reply.u.sequences.next_cursor = more ? cursor : KVD_UNCHANGED;
    call->reply.u.sequences.items = items;
}

static uint32_t count_driven(struct service *s, kvd_session_id id) {
    uint32_t n = 0;
    for (uint32_t i = 0; s->n_bundles && i < s->config.max_concurrency; i++) {
        const struct bundle *b = &s->bundles[i];
        n += b->used && (b->owner.bits == id.bits || bundle_driver(s, b, id) >= 0);
    }
    return n;
}

void serve_list_sessions(struct call *call) {
    struct service *s = call->service;
    struct kvd_session_info *items = call->memory;
    uint32_t cursor = call->request.u.list.cursor, n = 0, max = list_max(call);
    for (; cursor < s->config.sessions && n < max; cursor++) {
        const struct session *from = &s->sessions[cursor];
        if (!from->used || !tenant_sees(s, call->session, from->peer.uid)) continue;
        struct kvd_session_info *to = &items[n++];
        *to = (struct kvd_session_info){ .session = session_id(s, from),
                                         .role = from->role,
                                         .rank = from->rank,
                                         .uid = from->peer.uid,
                                         .gid = from->peer.gid,
                                         .pid = from->peer.pid,
                                         .connected = from->link != NULL,
                                         .fenced = from->fenced,
                                         .sequences = count_driven(s, session_id(s, from)),
                                         .requests = from->requests,
                                         .age_ns = clock_since(from->begun_ns, call->now_ns) };
        memcpy(to->name, from->name, sizeof to->name);
    }
    call->reply.u.sessions.n = n;
    call->reply.u.sessions.next_cursor = cursor < s->config.sessions ? cursor : KVD_UNCHANGED;
    call->reply.u.sessions.items = items;
}

/* What kvd has made of an auto; 0: it decides that later, or not as a number. */
static uint64_t chosen_value(const struct service *s, const struct kvd_setting *setting) {
    const struct kvd_store_info *info = &s->pools.info;
    bool backend = info->n_pools - s->plan.spec.n_more > 1;
    const struct kvd_pool_info *draft = backend ? &info->pool[1] : &(struct kvd_pool_info){ 0 };
    struct store_config store;
    plan_store_config(&s->config, &s->plan, &store);
    const struct {
        const char *section, *name;
        uint64_t value;
    } chosen[] = {
        { "backend", "layers", draft->n_layers },
        { "backend", "kv_heads", draft->n_kv_heads },
        { "backend", "head_dim", draft->head_dim },
        { "capacity", "tokens", info->capacity_tokens },
        { "capacity", "state_slots", info->state_slots },
        { "limits", "sessions_per_uid", (s->config.sessions + 1) / 2 },
        { "limits", "continuations", store.max_continuations },
        { "limits", "sequences_per_session", s->config.max_concurrency },
    };
    for (size_t i = 0; i < sizeof chosen / sizeof *chosen; i++)
        if (strcmp(setting->section, chosen[i].section) == 0 && strcmp(setting->name, chosen[i].name) == 0)
            return chosen[i].value;
    return 0;
}

static void choose_auto(const struct service *s, struct kvd_setting *setting) {
    char source[sizeof setting->source];
    uint64_t chosen = strcmp(setting->value, "auto") == 0 ? chosen_value(s, setting) : 0;
    if (!chosen) return;
    snprintf(setting->value, sizeof setting->value, "%" PRIu64, chosen);
    memcpy(source, setting->source, sizeof source);
    snprintf(setting->source, sizeof setting->source, "auto, %.*s", (int)sizeof source - 7, source);
}

void serve_list_settings(struct call *call) {
    const struct service *s = call->service;
    struct kvd_setting *items = call->memory;
    uint32_t cursor = call->request.u.list.cursor, n = 0, max = list_max(call);
    while (n < max && config_setting(&s->config, &s->wanted, cursor, &items[n])) {
        choose_auto(s, &items[n++]);
        cursor++;
    }
    call->reply.u.settings.n = n;
    call->reply.u.settings.next_cursor = n == max ? cursor : KVD_UNCHANGED;
    call->reply.u.settings.items = items;
}

/* A number for a prompt, by the first message of its lookup. Not 0. */
static uint64_t prompt_name(const struct kvd_find *f) {
    uint64_t root, last = 0, name;
    memcpy(&root, f->root.bytes, sizeof root);
    if (f->n) memcpy(&last, f->digests[f->n - 1].bytes, sizeof last);
    name = root ^ last * UINT64_C(0x9E3779B97F4A7C15) ^ f->n;
    for (uint32_t i = 0; i < f->tokens.n; i++) name = (name ^ f->tokens.tokens[i]) * UINT64_C(0x100000001B3);
    return name | 1;
}

/* A lookup counts once, with the message that tells whether it hits: not with one whose answer wants tokens first. */
static void count_lookup(struct call *call, const struct store_found *found, const struct kvd_hit *hits) {
    const struct kvd_find *f = &call->request.u.find;
    bool again = f->token_page < f->prompt_tokens / KVD_PAGE_TOKENS;
    struct metrics_find find = { .begins = f->first == 0 && !again,
                                 .counts =
                                     f->first == 0 && (found->anchor.bits ? !again : found->want_page == KVD_NONE),
                                 .usable = found->n ? hits[0].usable : 0,
                                 .pages = f->first + f->n,
                                 .prompt_tokens = f->prompt_tokens };
    if (find.begins) find.name = prompt_name(f);
    bool counted = metrics_lookup(&call->service->metrics, &find, &call->session->lookups);
    uint32_t known = f->first > 0; /* of these names: the message before had it, too */
    if (!counted || again || f->n < known) return;
    uint32_t n = f->n - known;
    call->used = (struct curve_pages){ .names = n ? f->digests + known : NULL, .n = n, .counted = n };
    if (find.begins) call->used.prompt_tokens = f->prompt_tokens;
}

static bool check_find(struct call *call) {
    const struct kvd_find *f = &call->request.u.find;
    if (store_root_is_none(&f->root))
        call_refuse(call, KVD_INVALID_ARGUMENT,
                    "Find without a root: KV is found within one domain only; send the root digest of the prompt's "
                    "chain (kvd_chain_root)");
    else if ((f->first > 0) != (f->anchor.bits != 0) || (f->first > 0 && f->n == 0))
        call_refuse(
            call, KVD_INVALID_ARGUMENT,
            "Find from page %u with %u digests and %s anchor: a lookup begins at page 0 without one, and goes on from "
            "the page of its first digest with the anchor of the answer before",
            f->first, f->n, f->anchor.bits ? "an" : "no");
    else return true;
    return false;
}

void serve_find(struct call *call) {
    const struct kvd_find *f = &call->request.u.find;
    const struct store_query query = { .root = f->root,
                                       .digests = (const uint8_t(*)[32])(const void *)f->digests,
                                       .first = f->first,
                                       .n = f->n,
                                       .max = find_max(call),
                                       .anchor = tenant_use(call, f->anchor),
                                       .prompt_tokens = f->prompt_tokens,
                                       .token_page = f->token_page,
                                       .tokens = &f->tokens };
    struct kvd_hit *items = call->memory;
    struct store_found found;
    struct store_refusal refusal;
    if (!check_find(call)) return;
    if (store_find(call->service->store, &query, items, &found, &refusal)) {
        call_refuse_cont(call, &refusal, f->anchor);
        return;
    }
    count_lookup(call, &found, items);
    call->reply.u.hits.n = found.n;
    call->reply.u.hits.items = items;
    call->reply.u.hits.anchor.bits = found.anchor.bits;
    call->reply.u.hits.want_page = found.want_page;
}

/* ---- numbers ------------------------------------------------------------------------------------- */

static void stats_host(const struct service *s, struct kvd_stats *r) {
    struct host_stats host;
    host_tier_stats(s, &host);
    r->move_pages_left = host.mover.pages_left;
    r->demoted_pages = host.mover.pages[DEVICE_TO_HOST];
    r->demoted_bytes = host.mover.bytes[DEVICE_TO_HOST];
    r->demoted_ns = host.mover.busy_ns[DEVICE_TO_HOST];
    r->restored_pages = host.mover.pages[HOST_TO_DEVICE];
    r->restored_bytes = host.mover.bytes[HOST_TO_DEVICE];
    r->restored_ns = host.mover.busy_ns[HOST_TO_DEVICE];
    r->scrubbed_pages = host.scrubbed_pages;
    r->recovered_continuations = host.recovered[HOST_KEPT];
    r->recovered_shortened = host.recovered[HOST_SHORTENED];
    r->recovered_dropped = host.recovered[HOST_DROPPED];
    r->recovered_damaged = host.recovered[HOST_DAMAGED];
    r->former_drivers = former_waited(s);
}

void service_stats(const struct service *s, struct kvd_stats *r) {
    store_get_stats(s->store, r);
    r->sessions = s->n_sessions;
    r->groups = s->n_groups;
    r->epoch = s->epoch;
    r->requests = s->requests;
    r->refusals = s->refusals;
    r->frames_bad = s->frames_bad;
    r->connections = s->connections;
    r->events_dropped = s->events_dropped;
    r->uptime_ns = clock_ns() - s->started_ns;
    r->metadata_bytes = s->store_bytes;
    r->draining = s->draining || s->stopping;
    stats_host(s, r);
    snprintf(r->version, sizeof r->version, "%s", KVD_VERSION);
}

static void describe_domains(const struct metrics *m, struct kvd_reuse *r) {
    static_assert(KVD_REUSE_DOMAINS == METRICS_DOMAINS, "each slot has a place");
    for (uint32_t i = 0; i < m->n_domains; i++) {
        const struct metrics_domain *d = &m->domain[i];
        struct kvd_reuse_domain *to = &r->domains[r->n_domains];
        *to = (struct kvd_reuse_domain){ .activations = d->activations[0] + d->activations[1],
                                         .prompt_tokens = d->prompt_tokens,
                                         .reused_tokens = d->reused_tokens };
        memcpy(to->label, d->label, sizeof to->label);
        r->n_domains += to->activations > 0;
    }
}

void serve_describe_reuse(struct call *call) {
    struct kvd_reuse *r = call->reply.u.reuse = call->memory;
    *r = (struct kvd_reuse){ .n_domains = 0 };
    describe_domains(&call->service->metrics, r);
    reuse_curve_read(call->service->reuse_curve, r);
}

void serve_stats(struct call *call) {
    struct kvd_stats *r = &call->reply.u.stats;
    service_stats(call->service, r);
    r->rss_bytes = call->rss_bytes;
}

/* ---- audit --------------------------------------------------------------------------------------- */

/* Looks at records in one hold of the core mutex: about a quarter of a millisecond. */
#define AUDIT_WORK 2048u

/* Under the lock. */
static void audit_step(struct call *call) {
    struct service *s = call->service;
    struct kvd_audit *r = call->memory;
    struct store_audited audited;
    call->auditing = s->auditing = store_audit_step(s->store, AUDIT_WORK, &audited);
    if (call->auditing) return;
    r->violations = audited.violations;
    r->left_out = audited.left_out;
    s->metrics.audits++;
    s->metrics.audit_violations = r->violations;
    if (r->violations) LOG(LOG_ERROR, "the audit found %u violations: %.700s", r->violations, r->text);
}

void serve_audit(struct call *call) {
    if (call->service->auditing) {
        call_refuse(call, KVD_UNAVAILABLE, "another audit is in work; ask again when it is over");
        return;
    }
    call->reply.u.audit = call->memory;
    store_audit_begin(call->service->store, call->reply.u.audit->text, sizeof call->reply.u.audit->text);
    audit_step(call);
}

/* Rests between the steps, so that whoever waits for the lock gets it. */
void audit_go_on(struct call *call) {
    struct service *s = call->service;
    while (call->auditing) {
        nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
        pthread_mutex_lock(&s->lock);
        audit_step(call);
        if (!call->auditing) count_outcome(s, FRAME_AUDIT, call->reply.status, call->short_of, call->now_ns);
        pthread_mutex_unlock(&s->lock);
    }
}
