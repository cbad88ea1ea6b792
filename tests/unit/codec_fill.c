/* SPDX-License-Identifier: Apache-2.0 */
#include "codec_fill.h"

#include <stdlib.h>
#include <string.h>

#include "codec_internal.h"
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
static const char printable[] = /* the first is for text of several lines */
    "\n !\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~";

static void numbers(struct fill *f, const struct codec_field *row, void *plain, size_t bytes) {
    uint32_t n = count(f, row->high);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t value = bytes == sizeof value ? u64(f) : u32(f);
        memcpy(codec_at_mut(plain, row->at + i * bytes), &value, bytes); /* little-endian, as the frames are */
    }
    if (row->at_n != CODEC_NO_COUNT) memcpy(codec_at_mut(plain, row->at_n), &n, sizeof n);
}

/* Zeroed memory of the message, and the pointer to it. */
static uint8_t *points_to(struct fill *f, const struct codec_field *row, void *plain, size_t bytes) {
    uint8_t *p = (uint8_t *)f->memory + f->used;
    f->used += (bytes + 15) & ~(size_t)15;
    if (f->used > sizeof f->memory) abort();
    memset(p, 0, bytes);
    memcpy(codec_at_mut(plain, row->at), &(void *){ bytes ? p : NULL }, sizeof(void *));
    return p;
}

static void fill_map(struct fill *f, const struct codec_map *map, uint32_t first, void *plain);

static void structs(struct fill *f, const struct codec_field *row, void *plain) {
    uint32_t n = count(f, row->high);
    size_t bytes = row->sub->bytes;
    uint8_t *to = row->kind == CODEC_SUBS_NEW ? points_to(f, row, plain, n * bytes) : codec_at_mut(plain, row->at);
    for (uint32_t i = 0; i < n; i++) fill_map(f, row->sub, 0, to + i * bytes);
    for (uint32_t i = 1024; row->sub == &codec_victim_map && i < n;
         i++) /* of so many a message has room for 1024 cuts */
        ((struct kvd_victim *)(void *)to)[i].frontier = 0;
    if (row->at_n != CODEC_NO_COUNT) memcpy(codec_at_mut(plain, row->at_n), &n, sizeof n);
}

static void digests(struct fill *f, const struct codec_field *row, void *plain) {
    uint32_t n = count(f, row->high);
    raw(f, points_to(f, row, plain, n * sizeof(kvd_digest)), n * sizeof(kvd_digest));
    memcpy(codec_at_mut(plain, row->at_n), &n, sizeof n);
}

static void fill_field(struct fill *f, const struct codec_field *row, void *plain) {
    void *to = codec_at_mut(plain, row->at);
    switch (row->kind) {
    case CODEC_U32:
        *(uint32_t *)to = row->high == UINT32_MAX ? u32(f) : row->low + upto(f, row->high - row->low);
        break;
    case CODEC_U32_PLUS: *(uint32_t *)to = asked(f); break;
    case CODEC_U64: *(uint64_t *)to = u64(f); break;
    case CODEC_BOOL: *(bool *)to = flag(f); break;
    case CODEC_NAME: characters(f, to, row->high + 1, "ABCXYZabcxyz0189._:/-", row->low); break;
    case CODEC_TEXT: characters(f, to, row->high + 1, row->low ? printable : printable + 1, 0); break;
    case CODEC_BYTES:
        if (flag(f)) raw(f, to, row->high);
        break;
    case CODEC_DIGESTS: digests(f, row, plain); break;
    case CODEC_U32S: numbers(f, row, plain, sizeof(uint32_t)); break;
    case CODEC_U64S: numbers(f, row, plain, sizeof(uint64_t)); break;
    case CODEC_SUB: fill_map(f, row->sub, 0, to); break;
    case CODEC_SUB_NEW: fill_map(f, row->sub, 0, points_to(f, row, plain, row->sub->bytes)); break;
    case CODEC_SUBS:
    case CODEC_SUBS_NEW: structs(f, row, plain); break;
    case CODEC_CUSTOM: break; /* see round_items(), results(), audit() */
    }
}

static void fill_map(struct fill *f, const struct codec_map *map, uint32_t first, void *plain) {
    for (uint32_t i = first; i < map->n; i++) fill_field(f, &map->fields[i], plain);
}

/* ---- requests and replies --------------------------------------------------------------------------- */

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

/* Beside so many victims a message has no room for digests. */
static void leave_room(struct kvd_activation *a) {
    if (a->n_victims <= KVD_VICTIMS_BESIDE_COLD) return;
    a->cold.n = 0;
    a->cold.digests = NULL;
}

void fill_request(struct fill *f, uint16_t type, struct msg_request *q) {
    memset(q, 0, sizeof *q);
    f->used = 0;
    q->type = type;
    fill_map(f, codec_request_map(type), 0, q);
    if (type == FRAME_ROUND) round_items(f, q);
    if (type == FRAME_ACTIVATE || type == FRAME_PLAN) leave_room(&q->u.activation);
    if (type == FRAME_CHOOSE) leave_room(&q->u.choose.activation);
}

static void place(struct fill *f, struct kvd_pool_view *p) {
    *p = (struct kvd_pool_view){ u32(f), u32(f), u32(f), u32(f), u32(f), u32(f), u32(f), u32(f) };
}
static uint32_t places(struct fill *f, struct kvd_pool_view p[KVD_MAX_POOLS]) {
    uint32_t n = count(f, KVD_MAX_POOLS);
    for (uint32_t i = 0; i < n; i++) place(f, &p[i]);
    return n;
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
        characters(f, r->message, full(f) ? KVD_MESSAGE_BYTES : 128, printable + 1, 1);
    }
    y->u.round.n = n, y->u.round.items = n ? f->results : NULL;
}

static void audit(struct fill *f, struct msg_reply *y) {
    y->u.audit = &f->audit;
    f->audit.violations = u32(f);
    f->audit.left_out = u32(f);
    characters(f, f->audit.text, sizeof f->audit.text, "INV-1234567890: page\n", 0);
}

void fill_reply(struct fill *f, uint16_t type, struct msg_reply *y) {
    memset(y, 0, sizeof *y);
    f->used = 0;
    y->type = type;
    y->epoch = u64(f), y->next_sequence = u64(f);
    if (full(f)) characters(f, y->message, sizeof y->message, printable + 1, 0);
    fill_map(f, codec_reply_map(type), 1, y); /* the first row is the header */
    if (type == FRAME_ROUND) results(f, y);
    if (type == FRAME_AUDIT) audit(f, y);
}

void fill_refusal(struct fill *f, uint16_t type, struct msg_reply *y) {
    memset(y, 0, sizeof *y);
    y->type = type;
    y->status = from_to(f, KVD_OK + 1, KVD_UNAUTHENTICATED);
    y->epoch = u64(f), y->next_sequence = u64(f);
    characters(f, y->message, sizeof y->message, printable + 1, 0);
}

void fill_event(struct fill *f, struct kvd_event *e) {
    memset(e, 0, sizeof *e);
    fill_map(f, &codec_event_map, 0, e);
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
        f->results[i].pool[0] = (struct kvd_pool_view){ i, pages, pages + 20, frontier, 0, pages - 4, 4, 0 };
    }
    q->u.round.n = y->u.round.n = n;
    q->u.round.items = f->items;
    y->u.round.items = f->results;
}

/* ---- comparing -------------------------------------------------------------------------------------------- */

static const void *pointer_at(const void *plain, const struct codec_field *row) {
    const void *p;
    memcpy(&p, codec_at(plain, row->at), sizeof p);
    return p;
}

/* Entries and size of what a row points to; 0: the row has no pointer. */
static size_t pointed_bytes(const struct codec_field *row, const void *plain) {
    uint32_t n = 1;
    if (row->kind == CODEC_DIGESTS || row->kind == CODEC_SUBS_NEW) memcpy(&n, codec_at(plain, row->at_n), sizeof n);
    if (row->kind == CODEC_DIGESTS) return n * sizeof(kvd_digest);
    return row->kind == CODEC_SUBS_NEW || row->kind == CODEC_SUB_NEW ? n * row->sub->bytes : 0;
}

/* Compares what the pointers of two messages point to, then clears them: the rest of their bytes must then agree. */
static bool same_pointed(const struct codec_map *map, void *x, void *z) {
    for (uint32_t i = 0; i < map->n; i++) {
        const struct codec_field *row = &map->fields[i];
        if (row->kind == CODEC_SUB && !same_pointed(row->sub, codec_at_mut(x, row->at), codec_at_mut(z, row->at)))
            return false;
        if (row->kind != CODEC_DIGESTS && row->kind != CODEC_SUBS_NEW && row->kind != CODEC_SUB_NEW) continue;
        size_t bytes = pointed_bytes(row, x);
        const void *a = pointer_at(x, row), *b = pointer_at(z, row);
        if (bytes != pointed_bytes(row, z) || (bytes && (!a || !b || memcmp(a, b, bytes) != 0))) return false;
        memset(codec_at_mut(x, row->at), 0, sizeof a);
        memset(codec_at_mut(z, row->at), 0, sizeof b);
    }
    return true;
}

bool same_request(const struct msg_request *a, const struct msg_request *b) {
    struct msg_request x, z;
    memcpy(&x, a, sizeof x);
    memcpy(&z, b, sizeof z);
    if (x.type != z.type || !same_pointed(codec_request_map(x.type), &x, &z)) return false;
    if (x.type == FRAME_ROUND) {
        if (x.u.round.n != z.u.round.n) return false;
        if (x.u.round.n && memcmp(x.u.round.items, z.u.round.items, x.u.round.n * sizeof *x.u.round.items) != 0)
            return false;
        x.u.round.items = z.u.round.items = NULL;
    }
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
    if (!same_pointed(codec_reply_map(x.type), &x, &z)) return false;
    if (x.type == FRAME_ROUND) {
        if (!same_results(&x, &z)) return false;
        x.u.round.items = z.u.round.items = NULL;
    }
    if (x.type == FRAME_AUDIT) {
        if (!x.u.audit || !z.u.audit || memcmp(x.u.audit, z.u.audit, sizeof *x.u.audit) != 0) return false;
        x.u.audit = z.u.audit = NULL;
    }
    return memcmp(&x, &z, sizeof x) == 0;
}
