/* SPDX-License-Identifier: Apache-2.0 */
#include "draw.h"

#include <string.h>

#include "codec_internal.h"
#include "round_ask.h"

uint8_t draw_u8(struct draw *d) {
    if (!d->left) return 0;
    d->left--;
    return *d->input++;
}

void draw_remember(struct draw *d, enum draw_kind kind, uint64_t handle) {
    if (handle) d->handles[kind][d->n_handles[kind]++ % DRAW_HANDLES] = handle;
}

static bool chance(struct draw *d, uint8_t of_256) { return draw_u8(d) < of_256; }

/* Mostly small or a page boundary, sometimes at the edges. */
static uint32_t number(struct draw *d) {
    uint8_t a = draw_u8(d);
    if (a < 80) return a;
    if (a < 160) return (a - 80) % 17u * 64;
    if (a < 200) return (uint32_t)(a - 160) * 64 + draw_u8(d) % 3;
    if (a < 240) return (uint32_t)draw_u8(d) * 16;
    return a < 248 ? KVD_UNCHANGED : UINT32_MAX - (uint32_t)(a - 247);
}

/* Mostly of the kind, sometimes of another, of none, of before or of later. */
static uint64_t handle(struct draw *d, enum draw_kind kind) {
    uint8_t a = draw_u8(d);
    if (a < 8) return 0;
    if (a < 16) return (uint64_t)draw_u8(d) << 32 | draw_u8(d);
    if (a < 32) kind = a % DRAW_KINDS;
    uint32_t n = d->n_handles[kind] < DRAW_HANDLES ? d->n_handles[kind] : DRAW_HANDLES;
    return n ? d->handles[kind][a % n] + (a > 250 ? UINT64_C(1) << 32 : 0) : 0;
}

/* What a field holds, from its name in kvd.proto. */
static enum draw_kind kind_of(const char *name) {
    static const char *const continuations[] = { "continuation", "from", "anchor" };
    for (size_t i = 0; i < sizeof continuations / sizeof *continuations; i++)
        if (!strcmp(name, continuations[i])) return DRAW_CONTINUATION;
    return !strcmp(name, "sequence") ? DRAW_SEQUENCE : !strcmp(name, "group") ? DRAW_GROUP : DRAW_SESSION;
}

static uint32_t asked(struct draw *d, uint8_t of_256) { return chance(d, of_256) ? number(d) : KVD_NONE; }

/* Of a domain, or the first byte of a digest: two, and seldom none. */
static uint8_t root_byte(struct draw *d) { return chance(d, 250) ? (uint8_t)(1 + draw_u8(d) % 2) : 0; }

static void fill_round(struct draw *d, struct msg_request *q) {
    q->u.round.n = 1 + draw_u8(d) % 3;
    q->u.round.items = d->items;
    for (uint32_t i = 0; i < q->u.round.n; i++) {
        d->items[i] = (struct kvd_round_item){ .sequence.bits = handle(d, DRAW_SEQUENCE) };
        for (int p = 0; p < KVD_MAX_POOLS; p++) {
            uint32_t commit = asked(d, 160), truncate = asked(d, 24), keep = asked(d, 24);
            d->items[i].pool[p] = round_pool(commit, truncate, keep, asked(d, 160));
        }
    }
}

static void fill_source(struct draw *d, struct kvd_activation *a) {
    a->from.bits = handle(d, DRAW_CONTINUATION);
    a->keep = chance(d, 128);
    a->frontier = number(d);
}

static void fill_activation(struct draw *d, struct kvd_activation *a) {
    *a = (struct kvd_activation){ .root.digest = { { root_byte(d) } } };
    if (chance(d, 32)) a->group.bits = handle(d, DRAW_GROUP);
    else a->worker.bits = handle(d, DRAW_SESSION);
    if (chance(d, 128)) fill_source(d, a);
    a->prompt_tokens = a->frontier + number(d);
    a->max_output_tokens = number(d);
    for (int p = 0; p < KVD_MAX_POOLS; p++) a->ensure[p] = chance(d, 200) ? a->prompt_tokens : number(d);
    a->n_victims = chance(d, 64) ? draw_u8(d) % 4u : 0;
    a->victims = d->victims;
    for (uint32_t i = 0; i < a->n_victims; i++) {
        d->victims[i].continuation.bits = handle(d, DRAW_CONTINUATION);
        d->victims[i].demote = chance(d, 128);
    }
}

void draw_digests(struct draw *d, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        memset(&d->digests[i], 0, sizeof d->digests[i]);
        d->digests[i].bytes[0] = draw_u8(d) % 2;
        d->digests[i].bytes[1] = (uint8_t)i;
    }
}

static void fill_handles(struct draw *d, const struct codec_field *row, void *plain) {
    uint32_t n = 1 + draw_u8(d) % 3;
    for (uint32_t i = 0; i < n; i++) ((uint64_t *)codec_at_mut(plain, row->at))[i] = handle(d, kind_of(row->name));
    *(uint32_t *)codec_at_mut(plain, row->at_n) = n;
}

/* A field of a request, from its row in the codec's map. */
static void fill_field(struct draw *d, const struct codec_field *row, void *plain) {
    void *to = codec_at_mut(plain, row->at);
    if (row->kind == CODEC_U32)
        *(uint32_t *)to = row->high == UINT32_MAX ? number(d) : row->low + draw_u8(d) % (row->high - row->low + 1);
    if (row->kind == CODEC_U64) *(uint64_t *)to = handle(d, kind_of(row->name));
    if (row->kind == CODEC_BYTES) *(uint8_t *)to = root_byte(d);
    if (row->kind == CODEC_SUB)
        for (uint32_t i = 0; i < row->sub->n; i++) fill_field(d, &row->sub->fields[i], to);
    if (row->kind == CODEC_BOOL) *(bool *)to = draw_u8(d) % 2;
    if (row->kind == CODEC_U64S) fill_handles(d, row, plain);
    if (row->kind == CODEC_U32S && row->at_n != CODEC_NO_COUNT)
        *(uint32_t *)codec_at_mut(plain, row->at_n) = chance(d, 160) ? 0 : draw_u8(d) % (row->high + 1); /* zeros */
}

void draw_request(struct draw *d, struct msg_request *q) {
    const struct codec_map *map = codec_request_map(q->type);
    uint32_t n;
    switch (q->type) {
    case FRAME_CHOOSE:
        fill_activation(d, &q->u.choose.activation);
        if (chance(d, 250)) q->u.choose.activation.n_victims = 0;
        q->u.choose.order = KVD_ORDER_RETENTION_USED;
        q->u.choose.max = draw_u8(d);
        break;
    case FRAME_PLAN:
    case FRAME_ACTIVATE: fill_activation(d, &q->u.activation); break;
    case FRAME_ROUND: fill_round(d, q); break;
    case FRAME_NAME_PAGES:
        draw_digests(d, n = draw_u8(d) % 8);
        q->u.names =
            (struct kvd_names){ { handle(d, DRAW_SEQUENCE) }, chance(d, 160) ? 0 : draw_u8(d) % 4u, n, d->digests };
        break;
    case FRAME_FIND:
        draw_digests(d, n = draw_u8(d) % 8);
        q->u.find = (struct kvd_find){ .root = { { root_byte(d) } },
                                       .n = n,
                                       .max = draw_u8(d) % 17,
                                       .digests = d->digests,
                                       .prompt_tokens = number(d),
                                       .token_page = draw_u8(d) % 2 ? n : number(d),
                                       .tokens.n = draw_u8(d) % 64 };
        if (draw_u8(d) % 2) q->u.find.first = draw_u8(d) % 4, q->u.find.anchor.bits = handle(d, DRAW_CONTINUATION);
        break;
    default:
        for (uint32_t i = 1; i < map->n; i++) fill_field(d, &map->fields[i], q); /* after the header */
    }
}

/* The handle of what a request made is the first field of its answer. */
void draw_learn(struct draw *d, const struct msg_reply *r) {
    const struct codec_map *map = codec_reply_map(r->type);
    if (r->status != KVD_OK || !map || map->n < 2) return;
    const struct codec_field *row = &map->fields[1];
    if (row->kind == CODEC_U64 && strcmp(row->name, "revision") != 0)
        draw_remember(d, kind_of(row->name), *(const uint64_t *)codec_at(r, row->at));
}

bool draw_changes(uint16_t type) {
    const struct frame_info *info = frame_info(type);
    return info && info->numbering >= FRAME_CHANGE;
}
