/* SPDX-License-Identifier: Apache-2.0 */
#include "codec_fill.h"

#include <string.h>

#include "kvt.h"

static bool full(const struct fill *f) { return f->how == FILL_FULL; }

static uint64_t u64(struct fill *f) {
    if (full(f)) return UINT64_MAX;
    switch (kvt_below(&f->state, 4)) {
    case 0: return kvt_below(&f->state, 3);
    case 1: return UINT64_MAX - kvt_below(&f->state, 2);
    default: return kvt_random(&f->state) >> kvt_below(&f->state, 64);
    }
}
static uint32_t u32(struct fill *f) { return full(f) ? UINT32_MAX : (uint32_t)(u64(f) & UINT32_MAX); }
static uint32_t asked(struct fill *f) {
    return full(f) ? UINT32_MAX - 1 : kvt_below(&f->state, 3) ? u32(f) : KVD_UNCHANGED;
}
static bool flag(struct fill *f) { return full(f) || kvt_below(&f->state, 2); }
static uint32_t upto(struct fill *f, uint32_t max) { return full(f) ? max : kvt_below(&f->state, max + 1); }
static uint32_t from_to(struct fill *f, uint32_t min, uint32_t max) { return min + upto(f, max - min); }
static uint32_t count(struct fill *f, uint32_t max) {
    if (f->how == FILL_SMALL) return kvt_below(&f->state, max < 4 ? max + 1 : 4);
    return full(f) || kvt_below(&f->state, 8) == 0 ? max : kvt_below(&f->state, max + 1);
}
static void raw(struct fill *f, uint8_t *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)kvt_random(&f->state);
}
static void characters(struct fill *f, char *s, size_t bytes, const char *set, uint32_t min) {
    uint32_t n = full(f) ? (uint32_t)bytes - 1 : min + kvt_below(&f->state, (uint32_t)bytes - min);
    if (f->how == FILL_SMALL && n > 12) n = 12;
    memset(s, 0, bytes);
    for (uint32_t i = 0; i < n; i++) s[i] = set[kvt_below(&f->state, (uint32_t)strlen(set))];
}
static void name(struct fill *f, char s[KVD_NAME_BYTES], uint32_t min) {
    characters(f, s, KVD_NAME_BYTES, "ABCXYZabcxyz0189._:/-", min);
}
static const char printable[] =
    " !\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~";

static void tail(struct fill *f, struct kvd_tail *t) {
    t->n = count(f, KVD_TAIL_TOKENS);
    for (uint32_t i = 0; i < t->n; i++) t->tokens[i] = u32(f);
}
static void place(struct fill *f, struct kvd_pool_view *p) {
    *p = (struct kvd_pool_view){ u32(f), u32(f), u32(f), u32(f), u32(f), u32(f), u32(f) };
}
static uint32_t places(struct fill *f, struct kvd_pool_view p[KVD_MAX_POOLS]) {
    uint32_t n = count(f, KVD_MAX_POOLS);
    for (uint32_t i = 0; i < n; i++) place(f, &p[i]);
    return n;
}
static void by_pool(struct fill *f, uint32_t v[KVD_MAX_POOLS]) {
    for (uint32_t i = 0; i < KVD_MAX_POOLS; i++) v[i] = u32(f);
}
static const kvd_digest *digests(struct fill *f, uint32_t *ret_n) {
    *ret_n = count(f, KVD_MAX_DIGESTS);
    raw(f, f->digests[0].bytes, *ret_n * sizeof f->digests[0]);
    return *ret_n ? f->digests : NULL;
}

/* ---- requests --------------------------------------------------------------------------------------- */

static void activation(struct fill *f, struct kvd_activation *a) {
    a->worker.bits = u64(f), a->group.bits = u64(f), a->from.bits = u64(f);
    a->keep = flag(f);
    a->frontier = u32(f), a->prompt_tokens = u32(f), a->max_output_tokens = u32(f);
    by_pool(f, a->ensure);
    a->n_victims = count(f, KVD_MAX_VICTIMS);
    for (uint32_t i = 0; i < a->n_victims; i++) a->victims[i].bits = u64(f);
    a->revision = u64(f), a->demote = u64(f);
}

static void hello(struct fill *f, struct kvd_hello *h) {
    h->protocol = u32(f);
    h->role = from_to(f, KVD_ROLE_OBSERVER, KVD_ROLE_ADMIN);
    name(f, h->name, 1);
    characters(f, h->library, sizeof h->library, printable, 0);
    h->rank = upto(f, KVD_MAX_RANKS - 1);
    h->resume.bits = u64(f), h->resume_secret = u64(f);
}

static void ask(struct fill *f, bool silent, uint32_t bit, uint32_t *ret_mask, uint32_t *ret_value) {
    uint32_t value = silent ? KVD_NONE : asked(f);
    if (value == KVD_NONE) return;
    *ret_mask |= bit;
    *ret_value = value;
}

static void round_items(struct fill *f, struct msg_request *q) {
    uint32_t n = count(f, KVD_MAX_ROUND),
             silent = full(f) ? 0 : kvt_below(&f->state, 512); /* columns in which nobody asks */
    memset(f->items, 0, sizeof f->items);
    for (uint32_t i = 0; i < n; i++) {
        struct kvd_round_item *it = &f->items[i];
        it->sequence.bits = u64(f);
        ask(f, silent & 256, KVD_ROUND_STATE, &it->ask, &it->state_frontier);
        for (uint32_t p = 0; p < KVD_MAX_POOLS; p++) {
            uint32_t *v[4] = { &it->pool[p].commit, &it->pool[p].truncate, &it->pool[p].keep, &it->pool[p].ensure };
            for (uint32_t k = 0; k < 4; k++) ask(f, silent >> (4 * p + k) & 1, 1u << k, &it->pool[p].ask, v[k]);
        }
    }
    q->u.round.n = n;
    q->u.round.items = n ? f->items : NULL;
}

static void group(struct fill *f, struct kvd_group *g) {
    g->n = count(f, KVD_MAX_RANKS);
    for (uint32_t i = 0; i < g->n; i++) g->members[i].bits = u64(f);
}

void fill_request(struct fill *f, uint16_t type, struct msg_request *q) {
    memset(q, 0, sizeof *q);
    q->type = type;
    if (type != FRAME_HELLO) q->header = (struct msg_header){ { u64(f) }, u64(f), u64(f), u64(f) };
    switch (type) {
    case FRAME_HELLO: hello(f, &q->u.hello); break;
    case FRAME_DESCRIBE_PLANES:
        q->u.planes = (struct kvd_planes_request){ upto(f, KVD_MAX_POOLS - 1), upto(f, KVD_MAX_RANKS - 1), u32(f) };
        break;
    case FRAME_PLAN:
    case FRAME_ACTIVATE: activation(f, &q->u.activation); break;
    case FRAME_FIND:
        q->u.find.max = upto(f, KVD_MAX_CANDIDATES);
        q->u.find.digests = digests(f, &q->u.find.n);
        q->u.find.first = u32(f);
        q->u.find.anchor.bits = u64(f);
        break;
    case FRAME_LIST_CONTINUATIONS:
    case FRAME_LIST_SEQUENCES:
    case FRAME_LIST_SESSIONS: q->u.list = (struct kvd_list){ u32(f), upto(f, KVD_MAX_LIST) }; break;
    case FRAME_ROUND: round_items(f, q); break;
    case FRAME_NAME_PAGES:
        q->u.names.sequence.bits = u64(f);
        q->u.names.first = u32(f);
        q->u.names.digests = digests(f, &q->u.names.n);
        break;
    case FRAME_CHECKPOINT:
        q->u.checkpoint.sequence.bits = u64(f);
        tail(f, &q->u.checkpoint.tail);
        q->u.checkpoint.retention = u32(f);
        break;
    case FRAME_FINISH:
        q->u.finish.sequence.bits = u64(f);
        q->u.finish.retain = flag(f);
        tail(f, &q->u.finish.tail);
        q->u.finish.retention = u32(f);
        break;
    case FRAME_RELEASE:
    case FRAME_SET_RETENTION:
        q->u.continuation.continuation.bits = u64(f);
        q->u.continuation.retention = u32(f);
        break;
    case FRAME_OPEN_GROUP: group(f, &q->u.group); break;
    case FRAME_CLOSE_GROUP: q->u.group_id.bits = u64(f); break;
    case FRAME_FENCE: q->u.session.bits = u64(f); break;
    case FRAME_DRAIN: q->u.drain = flag(f); break;
    case FRAME_SUBSCRIBE: q->u.event_mask = u32(f); break;
    case FRAME_DEMOTE: q->u.demote = (struct kvd_demote){ { u64(f) }, flag(f) }; break;
    case FRAME_PREFETCH: q->u.prefetch.bits = u64(f); break;
    case FRAME_DROP: q->u.drop = (struct kvd_drop){ { u64(f) }, upto(f, KVD_TIER_HOST) }; break;
    case FRAME_SHORTEN:
        q->u.shorten.continuation.bits = u64(f);
        q->u.shorten.frontier = u32(f);
        break;
    default: break;
    }
}

/* ---- replies ------------------------------------------------------------------------------------------ */

static void region(struct fill *f, struct kvd_region_info *r) {
    r->kind = upto(f, 2);
    r->fd_index = u32(f);
    r->bytes = u64(f);
    if (flag(f)) raw(f, r->ipc_handle, sizeof r->ipc_handle);
    if (flag(f)) raw(f, r->uuid, sizeof r->uuid);
    r->owner_pid = u64(f), r->local_address = u64(f);
}

static void store(struct fill *f, struct kvd_store_info *s) {
    memset(s, 0, sizeof *s);
    name(f, s->name, 0);
    s->backend = upto(f, 2);
    s->n_pools = count(f, KVD_MAX_POOLS);
    s->max_context = u32(f), s->max_concurrency = u32(f), s->row_entries = u32(f), s->draft_window = u32(f),
    s->map_ahead = u32(f);
    s->state_bytes = u64(f), s->capacity_tokens = u64(f);
    s->state_slots = u32(f), s->state_stride = u64(f);
    for (uint32_t r = upto(f, KVD_MAX_RANKS); r-- > 0;) region(f, &s->state[r]);
    s->lease_growth = flag(f);
    raw(f, s->geometry.bytes, sizeof s->geometry.bytes);
    characters(f, s->fd_socket, sizeof s->fd_socket, printable, 0);
    s->fd_token = u64(f);
    for (uint32_t p = 0; p < s->n_pools; p++) {
        struct kvd_pool_info *pool = &s->pool[p];
        pool->storage = upto(f, 4), pool->order = upto(f, 1), pool->arrangement = upto(f, 1);
        pool->n_layers = u32(f), pool->n_kv_heads = u32(f), pool->head_dim = u32(f), pool->pages = u32(f);
        pool->n_ranks = upto(f, KVD_MAX_RANKS);
        pool->page_bytes = u64(f);
        for (uint32_t r = 0; r < pool->n_ranks; r++) region(f, &pool->planes[r]), region(f, &pool->table[r]);
    }
}

static void need(struct fill *f, struct kvd_need *n) { *n = (struct kvd_need){ u64(f), u64(f), u64(f) }; }

static void plan(struct fill *f, struct kvd_plan *p) {
    p->feasibility = upto(f, KVD_INFEASIBLE);
    p->revision = u64(f);
    p->n_pools = upto(f, KVD_MAX_POOLS);
    for (uint32_t i = 0; i < KVD_MAX_POOLS; i++) need(f, &p->pages[i]);
    need(f, &p->rows), need(f, &p->sequences), need(f, &p->state_slots), need(f, &p->membership),
        need(f, &p->continuations);
    by_pool(f, p->entitlement), by_pool(f, p->shared_pages), by_pool(f, p->copied_columns), by_pool(f, p->freed_pages);
    by_pool(f, p->restore_pages), by_pool(f, p->demote_pages), need(f, &p->arena);
}

static void planes(struct fill *f, struct msg_reply *y) {
    uint32_t n = count(f, KVD_MAX_LIST);
    for (uint32_t i = 0; i < n; i++)
        f->planes[i] = (struct kvd_plane_info){ u32(f), u32(f), upto(f, 3), upto(f, 5), u32(f), u32(f),
                                                u64(f), u64(f), u64(f),     u64(f),     u64(f) };
    y->u.planes.n = n, y->u.planes.total = u32(f), y->u.planes.items = n ? f->planes : NULL;
}

static void candidates(struct fill *f, struct msg_reply *y) {
    uint32_t n = count(f, KVD_MAX_CANDIDATES);
    memset(f->candidates, 0, sizeof f->candidates);
    for (uint32_t i = 0; i < n; i++) {
        struct kvd_candidate *c = &f->candidates[i];
        c->continuation.bits = u64(f);
        c->matched_pages = u32(f), c->frontier = u32(f), c->retention = u32(f), c->restore_pages = u32(f);
        c->exact_pages = flag(f);
        tail(f, &c->tail);
    }
    y->u.candidates.n = n, y->u.candidates.items = n ? f->candidates : NULL;
    y->u.candidates.anchor.bits = u64(f);
}

static void continuations(struct fill *f, struct msg_reply *y) {
    uint32_t n = count(f, KVD_MAX_LIST);
    memset(f->continuations, 0, sizeof f->continuations);
    for (uint32_t i = 0; i < n; i++) {
        struct kvd_continuation_info *c = &f->continuations[i];
        c->continuation.bits = u64(f);
        c->frontier = u32(f), c->named_pages = u32(f), c->retention = u32(f), c->sharers = u32(f);
        c->tail_named = flag(f), c->claimed = flag(f);
        c->created = u64(f), c->used = u64(f);
        by_pool(f, c->pages), by_pool(f, c->exclusive_pages), by_pool(f, c->device_pages), by_pool(f, c->host_pages);
        c->demoted = flag(f), c->moving = flag(f), c->image_on_device = flag(f), c->image_in_host = flag(f);
        c->state_slot = asked(f);
    }
    y->u.continuations.n = n, y->u.continuations.next_cursor = asked(f),
    y->u.continuations.items = n ? f->continuations : NULL;
}

static void sequences(struct fill *f, struct msg_reply *y) {
    uint32_t n = count(f, KVD_MAX_LIST);
    memset(f->sequences, 0, sizeof f->sequences);
    for (uint32_t i = 0; i < n; i++) {
        struct kvd_sequence_info *s = &f->sequences[i];
        s->sequence.bits = u64(f), s->owner.bits = u64(f), s->worker.bits = u64(f), s->group.bits = u64(f);
        s->state = upto(f, 2);
        s->ending = flag(f);
        s->prompt_tokens = u32(f), s->ceiling_tokens = u32(f), s->named_pages = u32(f);
        s->n_pools = places(f, s->pool);
        s->state_slot = asked(f);
    }
    y->u.sequences.n = n, y->u.sequences.next_cursor = asked(f), y->u.sequences.items = n ? f->sequences : NULL;
}

static void sessions(struct fill *f, struct msg_reply *y) {
    uint32_t n = count(f, KVD_MAX_LIST);
    memset(f->sessions, 0, sizeof f->sessions);
    for (uint32_t i = 0; i < n; i++) {
        struct kvd_session_info *s = &f->sessions[i];
        s->session.bits = u64(f);
        s->role = upto(f, KVD_ROLE_ADMIN), s->rank = u32(f);
        s->uid = u64(f), s->gid = u64(f), s->pid = u64(f);
        s->connected = flag(f), s->fenced = flag(f);
        s->sequences = u32(f), s->requests = u64(f);
        name(f, s->name, 0);
    }
    y->u.sessions.n = n, y->u.sessions.next_cursor = asked(f), y->u.sessions.items = n ? f->sessions : NULL;
}

static void results(struct fill *f, struct msg_reply *y) {
    uint32_t n = count(f, KVD_MAX_ROUND);
    memset(f->results, 0, sizeof f->results);
    for (uint32_t i = 0; i < n; i++) {
        struct kvd_round_result *r = &f->results[i];
        r->n_pools = places(f, r->pool);
        r->bounded = flag(f);
        if (r->bounded) r->bounded_pool = upto(f, KVD_MAX_POOLS - 1), r->bounded_frontier = u32(f);
        if (!full(f) && kvt_below(&f->state, 8)) continue;
        r->status = from_to(f, KVD_OK + 1, KVD_UNAUTHENTICATED);
        characters(f, r->message, full(f) ? KVD_MESSAGE_BYTES : 128, printable, 1);
    }
    y->u.round.n = n, y->u.round.items = n ? f->results : NULL;
}

static void stats(struct fill *f, struct kvd_stats *s) {
    s->n_pools = count(f, KVD_MAX_POOLS);
    for (uint32_t p = 0; p < s->n_pools; p++)
        s->pool[p] = (struct kvd_pool_stats){ u32(f), u32(f), u32(f), u32(f), u32(f), u32(f), u32(f) };
    s->sequences = u32(f), s->continuations = u32(f), s->continuation_limit = u32(f), s->sessions = u32(f),
    s->groups = u32(f);
    s->state_slots_used = u32(f);
    s->membership_used = u64(f), s->membership_limit = u64(f), s->operations = u64(f), s->revision = u64(f),
    s->epoch = u64(f);
    s->requests = u64(f), s->refusals = u64(f), s->frames_bad = u64(f), s->connections = u64(f),
    s->events_dropped = u64(f);
    s->uptime_ns = u64(f), s->rss_bytes = u64(f), s->metadata_bytes = u64(f);
    s->draining = flag(f);
    characters(f, s->version, sizeof s->version, printable, 0);
    s->host_capacity = u64(f), s->host_occupied = u64(f), s->host_largest_free = u64(f);
    by_pool(f, s->host_pages);
    s->host_images = u32(f), s->demoted_continuations = u32(f), s->moves = u32(f), s->move_pages_left = u32(f);
    s->demoted_pages = u64(f), s->demoted_bytes = u64(f), s->demoted_ns = u64(f);
    s->restored_pages = u64(f), s->restored_bytes = u64(f), s->restored_ns = u64(f);
    s->scrubbed_pages = u64(f), s->damaged_replicas = u64(f), s->lost_continuations = u64(f);
    s->recovered_continuations = u32(f), s->recovered_shortened = u32(f), s->recovered_dropped = u32(f),
    s->recovered_damaged = u32(f), s->former_drivers = u32(f);
}

static void hello_reply(struct fill *f, struct kvd_hello_reply *h) {
    h->session.bits = u64(f), h->secret = u64(f), h->epoch = u64(f), h->last_sequence = u64(f), h->protocol = u32(f);
    name(f, h->store, 0);
    characters(f, h->server, sizeof h->server, printable, 0);
}

static void activated(struct fill *f, struct kvd_activated *a) {
    a->sequence.bits = u64(f);
    a->state_slot = asked(f), a->source_state_slot = asked(f);
    a->revision = u64(f);
    a->n_pools = places(f, a->pool);
    by_pool(f, a->restored);
}

static void moved(struct fill *f, struct kvd_moved *m) {
    m->revision = u64(f), m->bytes = u64(f);
    by_pool(f, m->pages);
}

void fill_reply(struct fill *f, uint16_t type, struct msg_reply *y) {
    memset(y, 0, sizeof *y);
    y->type = type;
    y->epoch = u64(f), y->next_sequence = u64(f);
    if (full(f)) characters(f, y->message, sizeof y->message, printable, 0);
    switch (type) {
    case FRAME_HELLO: hello_reply(f, &y->u.hello); break;
    case FRAME_DESCRIBE_STORE: store(f, y->u.store = &f->store); break;
    case FRAME_DESCRIBE_PLANES: planes(f, y); break;
    case FRAME_PLAN: plan(f, &y->u.plan); break;
    case FRAME_FIND: candidates(f, y); break;
    case FRAME_LIST_CONTINUATIONS: continuations(f, y); break;
    case FRAME_LIST_SEQUENCES: sequences(f, y); break;
    case FRAME_LIST_SESSIONS: sessions(f, y); break;
    case FRAME_ACTIVATE: activated(f, &y->u.activated); break;
    case FRAME_ROUND: results(f, y); break;
    case FRAME_CHECKPOINT:
        y->u.checkpointed = (struct kvd_checkpointed){ { u64(f) }, u32(f), u64(f), { u32(f), u32(f) } };
        break;
    case FRAME_FINISH: y->u.finished = (struct kvd_finished){ { u64(f) }, u64(f) }; break;
    case FRAME_YIELD: y->u.yielded = u32(f); break;
    case FRAME_RELEASE:
    case FRAME_SHORTEN:
    case FRAME_SET_RETENTION: y->u.revision = u64(f); break;
    case FRAME_OPEN_GROUP: y->u.group.bits = u64(f); break;
    case FRAME_DEMOTE:
    case FRAME_PREFETCH:
    case FRAME_DROP: moved(f, &y->u.moved); break;
    case FRAME_STATS: stats(f, &y->u.stats); break;
    case FRAME_AUDIT:
        y->u.audit = &f->audit;
        f->audit.violations = u32(f);
        characters(f, f->audit.text, sizeof f->audit.text, "INV-1234567890: page\n", 0);
        break;
    default: break;
    }
}

void fill_refusal(struct fill *f, uint16_t type, struct msg_reply *y) {
    memset(y, 0, sizeof *y);
    y->type = type;
    y->status = from_to(f, KVD_OK + 1, KVD_UNAUTHENTICATED);
    y->epoch = u64(f), y->next_sequence = u64(f);
    characters(f, y->message, sizeof y->message, printable, 0);
}

void fill_event(struct fill *f, struct kvd_event *e) {
    memset(e, 0, sizeof *e);
    e->kind = from_to(f, KVD_EVENT_PRESSURE, KVD_EVENT_SHORTENED);
    e->pool = upto(f, KVD_MAX_POOLS - 1);
    e->frontier = u32(f), e->available = u32(f);
    e->sequence.bits = u64(f), e->continuation.bits = u64(f), e->session.bits = u64(f), e->group.bits = u64(f);
    e->dropped = u64(f), e->epoch = u64(f);
}

void fill_decode_round(struct fill *f, uint32_t n, struct msg_request *q, struct msg_reply *y) {
    memset(q, 0, sizeof *q);
    memset(y, 0, sizeof *y);
    memset(f->results, 0, sizeof f->results);
    q->type = y->type = FRAME_ROUND;
    q->header = (struct msg_header){ { 0x100000001 }, 77, 0, 0x123456789abcdef0 };
    y->epoch = q->header.epoch;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t frontier = 1000 + kvt_below(&f->state, 100000), pages = frontier / 64 + 5;
        f->items[i] = (struct kvd_round_item){
            .sequence = { 0x300000000 + i },
            .pool[0] = { .ask = KVD_ROUND_COMMIT | KVD_ROUND_ENSURE, .commit = frontier, .ensure = frontier + 2 }
        };
        f->results[i].n_pools = 1;
        f->results[i].pool[0] = (struct kvd_pool_view){ i, pages, pages + 20, frontier, 0, pages - 4, 4 };
    }
    q->u.round.n = y->u.round.n = n;
    q->u.round.items = f->items;
    y->u.round.items = f->results;
}

/* ---- comparing -------------------------------------------------------------------------------------------- */

static bool same_array(const void *a, const void *b, size_t n, size_t bytes) {
    return n == 0 || memcmp(a, b, n * bytes) == 0;
}

/* Compares what pointers point to, then clears them in the copies, whose bytes must then agree. */
#define DEEP(n_field, pointer)                                                                                         \
    do {                                                                                                               \
        if (x.n_field != z.n_field || !same_array(x.pointer, z.pointer, x.n_field, sizeof *x.pointer)) return false;   \
        x.pointer = z.pointer = NULL;                                                                                  \
    } while (0)
#define DEEP_ONE(pointer)                                                                                              \
    do {                                                                                                               \
        if (!x.pointer || !z.pointer || memcmp(x.pointer, z.pointer, sizeof *x.pointer) != 0) return false;            \
        x.pointer = z.pointer = NULL;                                                                                  \
    } while (0)

bool same_request(const struct msg_request *a, const struct msg_request *b) {
    struct msg_request x, z;
    memcpy(&x, a, sizeof x);
    memcpy(&z, b, sizeof z);
    if (x.type != z.type) return false;
    if (x.type == FRAME_FIND) DEEP(u.find.n, u.find.digests);
    if (x.type == FRAME_NAME_PAGES) DEEP(u.names.n, u.names.digests);
    if (x.type == FRAME_ROUND) DEEP(u.round.n, u.round.items);
    return memcmp(&x, &z, sizeof x) == 0;
}

/* What follows the end of a message does not count. */
static bool same_results(const struct msg_reply *x, const struct msg_reply *z) {
    if (x->u.round.n != z->u.round.n) return false;
    for (uint32_t i = 0; i < x->u.round.n; i++) {
        const struct kvd_round_result *a = &x->u.round.items[i], *b = &z->u.round.items[i];
        if (memcmp(a, b, offsetof(struct kvd_round_result, message)) != 0 || strcmp(a->message, b->message) != 0)
            return false;
    }
    return true;
}

bool same_reply(const struct msg_reply *a, const struct msg_reply *b) {
    struct msg_reply x, z;
    memcpy(&x, a, sizeof x);
    memcpy(&z, b, sizeof z);
    if (x.type != z.type || x.status != z.status) return false;
    if (x.status != KVD_OK) return memcmp(&x, &z, sizeof x) == 0;
    switch (x.type) {
    case FRAME_DESCRIBE_STORE: DEEP_ONE(u.store); break;
    case FRAME_AUDIT: DEEP_ONE(u.audit); break;
    case FRAME_DESCRIBE_PLANES: DEEP(u.planes.n, u.planes.items); break;
    case FRAME_FIND: DEEP(u.candidates.n, u.candidates.items); break;
    case FRAME_LIST_CONTINUATIONS: DEEP(u.continuations.n, u.continuations.items); break;
    case FRAME_LIST_SEQUENCES: DEEP(u.sequences.n, u.sequences.items); break;
    case FRAME_LIST_SESSIONS: DEEP(u.sessions.n, u.sessions.items); break;
    case FRAME_ROUND:
        if (!same_results(&x, &z)) return false;
        x.u.round.items = z.u.round.items = NULL;
        break;
    default: break;
    }
    return memcmp(&x, &z, sizeof x) == 0;
}
