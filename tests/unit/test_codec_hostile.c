/* SPDX-License-Identifier: Apache-2.0
 *
 * Codec against bodies that no encoder of ours made: cut, flipped, random, over every limit, or built to grow in memory
 * (SRV-2). Whatever is accepted must be in range, which the encoder's own checks and a look at the counts confirm.
 */
#include <stdlib.h>

#include "codec_fill.h"
#include "kvt.h"

#define SPACE (FRAME_LIMIT - FRAME_HEADER)

static struct fill fill;
static uint8_t body[SPACE + 64], again[SPACE + 64];
static char err[KVD_MESSAGE_BYTES];
static struct codec_arena *arena, *other;

static void begin(void) {
    fill.state = kvt_seed();
    fill.how = FILL_SMALL;
    codec_arena_reset(arena);
}

/* ---- a writer of protobuf bytes ------------------------------------------------------------------------- */

struct wire {
    size_t n;
    uint8_t bytes[FRAME_LIMIT * 2];
};
static struct wire wire;

static void wire_varint(struct wire *w, uint64_t v) {
    for (; v >= 0x80; v >>= 7) w->bytes[w->n++] = (uint8_t)(v | 0x80);
    w->bytes[w->n++] = (uint8_t)v;
}
static void wire_number(struct wire *w, uint32_t field, uint64_t v) {
    wire_varint(w, (uint64_t)field << 3);
    wire_varint(w, v);
}
static void wire_bytes(struct wire *w, uint32_t field, const void *data, size_t n) {
    wire_varint(w, (uint64_t)field << 3 | 2);
    wire_varint(w, n);
    if (n) memcpy(w->bytes + w->n, data, n);
    w->n += n;
}
static void wire_zeros(struct wire *w, uint32_t field, size_t n) {
    static const uint8_t zeros[FRAME_LIMIT];
    wire_bytes(w, field, zeros, n);
}
static void wire_text(struct wire *w, uint32_t field, const char *s) { wire_bytes(w, field, s, strlen(s)); }

/* ---- what is accepted is in range -------------------------------------------------------------------------- */

static bool text_ends(const char *s, size_t bytes) { return memchr(s, 0, bytes) != NULL; }

static bool request_in_range(const struct msg_request *q) {
    switch (q->type) {
    case FRAME_HELLO:
        return q->u.hello.role >= 1 && q->u.hello.role <= 4 && q->u.hello.rank < KVD_MAX_RANKS && q->u.hello.name[0] &&
               text_ends(q->u.hello.name, KVD_NAME_BYTES) && text_ends(q->u.hello.library, KVD_NAME_BYTES);
    case FRAME_DESCRIBE_PLANES: return q->u.planes.pool < KVD_MAX_POOLS && q->u.planes.rank < KVD_MAX_RANKS;
    case FRAME_PLAN:
    case FRAME_ACTIVATE: return q->u.activation.n_victims <= KVD_MAX_VICTIMS;
    case FRAME_FIND:
        return q->u.find.n <= KVD_MAX_DIGESTS && q->u.find.max <= KVD_MAX_HITS && (!q->u.find.n || q->u.find.digests) &&
               q->u.find.tokens.n <= KVD_TAIL_TOKENS;
    case FRAME_LIST_CONTINUATIONS:
    case FRAME_LIST_SEQUENCES:
    case FRAME_LIST_SESSIONS: return q->u.list.max <= KVD_MAX_LIST;
    case FRAME_LIST_CHANGES: return q->u.changes.max <= KVD_MAX_LIST;
    case FRAME_ROUND: return q->u.round.n <= KVD_MAX_ROUND && (!q->u.round.n || q->u.round.items);
    case FRAME_NAME_PAGES: return q->u.names.n <= KVD_MAX_DIGESTS && (!q->u.names.n || q->u.names.digests);
    case FRAME_CHECKPOINT: return q->u.checkpoint.tail.n <= KVD_TAIL_TOKENS;
    case FRAME_FINISH: return q->u.finish.tail.n <= KVD_TAIL_TOKENS;
    case FRAME_OPEN_GROUP: return q->u.group.n <= KVD_MAX_RANKS;
    case FRAME_DROP: return q->u.drop.tier <= KVD_TIER_HOST;
    default: return true;
    }
}

static bool reply_in_range(const struct msg_reply *y) {
    if (y->status > KVD_UNAUTHENTICATED || !text_ends(y->message, sizeof y->message)) return false;
    if (y->status != KVD_OK) return true;
    switch (y->type) {
    case FRAME_DESCRIBE_STORE:
        return y->u.store && y->u.store->n_pools <= KVD_MAX_POOLS && text_ends(y->u.store->name, KVD_NAME_BYTES) &&
               text_ends(y->u.store->fd_socket, sizeof y->u.store->fd_socket);
    case FRAME_DESCRIBE_PLANES: return y->u.planes.n <= KVD_MAX_LIST;
    case FRAME_PLAN: return y->u.plan.n_pools <= KVD_MAX_POOLS && y->u.plan.feasibility <= KVD_INFEASIBLE;
    case FRAME_FIND: return y->u.hits.n <= KVD_MAX_HITS;
    case FRAME_LIST_CONTINUATIONS: return y->u.continuations.n <= KVD_MAX_LIST;
    case FRAME_LIST_CHANGES: return y->u.changes.n <= KVD_MAX_LIST;
    case FRAME_LIST_SEQUENCES: return y->u.sequences.n <= KVD_MAX_LIST;
    case FRAME_LIST_SESSIONS: return y->u.sessions.n <= KVD_MAX_LIST;
    case FRAME_ACTIVATE: return y->u.activated.n_pools <= KVD_MAX_POOLS;
    case FRAME_ROUND: return y->u.round.n <= KVD_MAX_ROUND;
    case FRAME_STATS: return y->u.stats.n_pools <= KVD_MAX_POOLS && text_ends(y->u.stats.version, KVD_NAME_BYTES);
    case FRAME_AUDIT: return y->u.audit && text_ends(y->u.audit->text, sizeof y->u.audit->text);
    default: return true;
    }
}

/* The input lies at the end of a block of its own, so that reading past it is seen by a sanitizer. */
static uint8_t *exact_copy(const uint8_t *bytes, size_t n) {
    uint8_t *copy = malloc(n ? n : 1);
    if (copy && n) memcpy(copy, bytes, n);
    return copy;
}

static int try_request(uint16_t type, const uint8_t *bytes, size_t n) {
    struct msg_request q;
    size_t out;
    uint8_t *copy = exact_copy(bytes, n);
    memset(&q, 0x5a, sizeof q);
    codec_arena_reset(arena);
    codec_arena_reset(other);
    int r = codec_decode_request(type, copy, n, arena, &q, err, sizeof err);
    free(copy);
    if (r == 0) {
        KVT_TRUE(q.type == type && request_in_range(&q));
        KVT_OK(codec_encode_request(&q, other, again, SPACE, &out, err, sizeof err));
    } else {
        KVT_TRUE(r > 0 && r < CODEC_E_SPACE && strlen(err) > 10 && ((uint8_t *)&q)[0] == 0x5a &&
                 ((uint8_t *)&q)[sizeof q - 1] == 0x5a);
    }
    return r;
}

static int try_reply(uint16_t type, const uint8_t *bytes, size_t n) {
    struct msg_reply y;
    size_t out;
    uint8_t *copy = exact_copy(bytes, n);
    memset(&y, 0x5a, sizeof y);
    codec_arena_reset(arena);
    codec_arena_reset(other);
    int r = codec_decode_reply(type, copy, n, arena, &y, err, sizeof err);
    free(copy);
    if (r == 0) {
        KVT_TRUE(y.type == type && reply_in_range(&y));
        KVT_OK(codec_encode_reply(&y, other, again, SPACE, &out, err, sizeof err));
    } else {
        KVT_TRUE(r > 0 && r < CODEC_E_SPACE && strlen(err) > 10 && ((uint8_t *)&y)[0] == 0x5a &&
                 ((uint8_t *)&y)[sizeof y - 1] == 0x5a);
    }
    return r;
}

static size_t valid_request(uint16_t type) {
    struct msg_request q;
    size_t n = 0;
    codec_arena_reset(arena);
    fill_request(&fill, type, &q);
    KVT_OK(codec_encode_request(&q, arena, body, SPACE, &n, err, sizeof err));
    return n;
}

static size_t valid_reply(uint16_t type) {
    struct msg_reply y;
    size_t n = 0;
    codec_arena_reset(arena);
    fill_reply(&fill, type, &y);
    KVT_OK(codec_encode_reply(&y, arena, body, SPACE, &n, err, sizeof err));
    return n;
}

/* ---- damage --------------------------------------------------------------------------------------------------- */

static void srv_2_every_truncation(void) {
    begin();
    for (int i = 0; i < 8; i++)
        for (uint16_t type = FRAME_HELLO; type < FRAME_TYPE_END; type++) {
            size_t n = valid_request(type);
            for (size_t cut = 0; cut < n; cut++) try_request(type, body, cut);
            n = valid_reply(type);
            for (size_t cut = 0; cut < n; cut++) try_reply(type, body, cut);
        }
    struct kvd_event event;
    size_t n;
    fill_event(&fill, &event);
    KVT_NEED(codec_encode_event(&event, body, SPACE, &n, err, sizeof err) == 0);
    for (size_t cut = 0; cut < n; cut++) {
        uint8_t *copy = exact_copy(body, cut);
        int r = codec_decode_event(copy, cut, &event, err, sizeof err);
        KVT_TRUE(r ? r <= CODEC_E_VALUE : event.kind >= 1 && event.kind <= KVD_EVENT_GAVE_WAY);
        free(copy);
    }
}

static void srv_2_bit_flips(void) {
    begin();
    for (uint16_t type = FRAME_HELLO; type < FRAME_TYPE_END; type++)
        for (int i = 0; i < 400; i++) {
            size_t n = valid_request(type);
            for (uint32_t k = kvt_below(&fill.state, 4) + 1; n && k > 0; k--)
                body[kvt_below(&fill.state, (uint32_t)n)] ^= (uint8_t)(1u << kvt_below(&fill.state, 8));
            try_request(type, body, n);
            n = valid_reply(type);
            for (uint32_t k = kvt_below(&fill.state, 4) + 1; n && k > 0; k--)
                body[kvt_below(&fill.state, (uint32_t)n)] ^= (uint8_t)(1u << kvt_below(&fill.state, 8));
            try_reply(type, body, n);
        }
}

static void srv_2_noise_and_bodies_of_other_types(void) {
    begin();
    for (int i = 0; i < 20000; i++) {
        size_t n = kvt_below(&fill.state, 200);
        for (size_t k = 0; k < n; k++) body[k] = (uint8_t)kvt_random(&fill.state);
        uint16_t type = (uint16_t)(1 + kvt_below(&fill.state, FRAME_TYPE_END - 1));
        try_request(type, body, n);
        try_reply(type, body, n);
    }
    for (uint16_t a = FRAME_HELLO; a < FRAME_TYPE_END; a++)
        for (uint16_t b = FRAME_HELLO; b < FRAME_TYPE_END; b++) {
            try_request(b, body, valid_request(a));
            try_reply(b, body, valid_reply(a));
        }
}

/* ---- limits on the wire ------------------------------------------------------------------------------------------ */

static void refused(uint16_t type, int code, const char *part, const char *more) {
    KVT_EQ_I(try_request(type, wire.bytes, wire.n), code);
    KVT_HAS(err, part);
    KVT_HAS(err, more);
    wire.n = 0;
}
static void refused_reply(uint16_t type, int code, const char *part, const char *more) {
    KVT_EQ_I(try_reply(type, wire.bytes, wire.n), code);
    KVT_HAS(err, part);
    KVT_HAS(err, more);
    wire.n = 0;
}

static void srv_2_counts_and_lengths_over_the_limit(void) {
    begin();
    wire.n = 0;
    wire_zeros(&wire, 3, 31);
    refused(FRAME_FIND, CODEC_E_VALUE, "digests has 31 bytes", "multiple of 32");
    wire_zeros(&wire, 3, 1025 * 32);
    refused(FRAME_FIND, CODEC_E_LIMIT, "digests has 1025 entries", "1024");
    wire_zeros(&wire, 4, 33);
    refused(FRAME_NAME_PAGES, CODEC_E_VALUE, "digests has 33 bytes", "multiple of 32");
    wire.n = 0;
    for (int i = 0; i < 4097; i++) wire_bytes(&wire, 13, "", 0);
    refused(FRAME_ACTIVATE, CODEC_E_LIMIT, "victims has 4097 entries", "4096");
    wire_zeros(&wire, 9, 5);
    refused(FRAME_PLAN, CODEC_E_LIMIT, "ensure has 5 entries", "4");
    wire_zeros(&wire, 3, 64);
    refused(FRAME_CHECKPOINT, CODEC_E_LIMIT, "tail has 64 entries", "63");
    wire_zeros(&wire, 4, 64);
    refused(FRAME_FINISH, CODEC_E_LIMIT, "tail has 64 entries", "63");
    wire_zeros(&wire, 2, 9 * 8);
    refused(FRAME_OPEN_GROUP, CODEC_E_LIMIT, "members has 9 entries", "8");
    for (int i = 0; i < 257; i++) wire_zeros(&wire, 3, 0);
    refused_reply(FRAME_LIST_SESSIONS, CODEC_E_LIMIT, "items has 257 entries", "128");
    for (int i = 0; i < 17; i++) wire_zeros(&wire, 2, 0);
    refused_reply(FRAME_FIND, CODEC_E_LIMIT, "hits has 17 entries", "16");
    for (int i = 0; i < 5; i++) wire_zeros(&wire, 6, 0);
    refused_reply(FRAME_ACTIVATE, CODEC_E_LIMIT, "pool has 5 entries", "4");
    wire_zeros(&wire, 3, 5);
    refused_reply(FRAME_DEMOTE, CODEC_E_LIMIT, "pages has 5 entries", "4");
    wire_zeros(&wire, 3, 5000);
    refused_reply(FRAME_AUDIT, CODEC_E_LIMIT, "text has 5000 characters", "4095");
}

static void srv_2_round_columns_must_agree(void) {
    begin();
    wire.n = 0;
    wire_zeros(&wire, 2, 257 * 8);
    refused(FRAME_ROUND, CODEC_E_LIMIT, "sequence has 257 entries", "256");
    wire_zeros(&wire, 2, 3 * 8);
    wire_zeros(&wire, 3, 2 * 4);
    refused(FRAME_ROUND, CODEC_E_VALUE, "state_frontier has 2 entries", "3 items");
    wire_zeros(&wire, 2, 3 * 8);
    wire_bytes(&wire, 4,
               "\x1a\x10"
               "aaaabbbbccccdddd",
               18);
    refused(FRAME_ROUND, CODEC_E_VALUE, "keep has 4 entries", "3 items");
    for (int i = 0; i < 5; i++) wire_zeros(&wire, 4, 0);
    refused(FRAME_ROUND, CODEC_E_LIMIT, "pool has 5 entries", "4");
    wire_number(&wire, 2, 257);
    refused_reply(FRAME_ROUND, CODEC_E_LIMIT, "n has 257 entries", "256");
    wire_number(&wire, 2, 2);
    wire_bytes(&wire, 3, "\x00\x00\x00", 3);
    refused_reply(FRAME_ROUND, CODEC_E_VALUE, "status has 3 entries", "2 items");
    wire_number(&wire, 2, 2);
    wire_bytes(&wire, 3, "\x00\x11", 2);
    refused_reply(FRAME_ROUND, CODEC_E_VALUE, "status of item 1 is 17", "16");
    wire_number(&wire, 2, 2);
    wire_bytes(&wire, 4, "\x01\x00", 2);
    refused_reply(FRAME_ROUND, CODEC_E_VALUE, "n_pools of item 0 is 1", "has 0");
    wire_number(&wire, 2, 2);
    wire_bytes(&wire, 6, "\x08\x02", 2);
    refused_reply(FRAME_ROUND, CODEC_E_VALUE, "index 2 of bounded", "2 items");
    wire_number(&wire, 2, 2);
    wire_bytes(&wire, 6, "\x10\x04", 2);
    refused_reply(FRAME_ROUND, CODEC_E_VALUE, "pool of bounded is 4", "below 4");
    wire_number(&wire, 2, 2);
    wire_bytes(&wire, 7, "\x08\x01\x12\x01x", 5);
    wire_bytes(&wire, 7, "\x08\x01\x12\x01y", 5);
    refused_reply(FRAME_ROUND, CODEC_E_VALUE, "index 1 of messages", "after the one before");
    wire_number(&wire, 2, 2);
    wire_bytes(&wire, 7, "\x12\x01\x00", 3);
    refused_reply(FRAME_ROUND, CODEC_E_VALUE, "message of item 0 has the byte 0x00", "printable");
}

static void srv_2_enums_and_numbers_out_of_range(void) {
    begin();
    wire.n = 0;
    wire_text(&wire, 4, "engine");
    refused(FRAME_HELLO, CODEC_E_VALUE, "role is 0", "from 1 to 4");
    wire_text(&wire, 4, "engine");
    wire_number(&wire, 3, 5);
    refused(FRAME_HELLO, CODEC_E_VALUE, "role is 5", "from 1 to 4");
    wire_text(&wire, 4, "engine");
    wire_number(&wire, 3, UINT64_MAX); /* -1 as an enum */
    refused(FRAME_HELLO, CODEC_E_VALUE, "role is 4294967295", "from 1 to 4");
    wire_number(&wire, 2, 4);
    refused(FRAME_DESCRIBE_PLANES, CODEC_E_VALUE, "pool is 4", "to 3");
    wire_number(&wire, 3, 2);
    refused(FRAME_DROP, CODEC_E_VALUE, "tier is 2", "to 1");
    wire_number(&wire, 3, 257);
    refused(FRAME_LIST_CONTINUATIONS, CODEC_E_VALUE, "max is 257", "128");
    wire_bytes(&wire, 1, "\x08\x11", 2);
    refused_reply(FRAME_YIELD, CODEC_E_VALUE, "status is 17", "from 0 to 16");
    wire_number(&wire, 2, 3);
    refused_reply(FRAME_PLAN, CODEC_E_VALUE, "feasibility is 3", "from 0 to 2");
    struct kvd_event event = { .kind = 77 };
    KVT_EQ_I(codec_decode_event((const uint8_t *)"\x08\x09", 2, &event, err, sizeof err), CODEC_E_VALUE);
    KVT_HAS(err, "kind is 9");
    KVT_EQ_I(codec_decode_event(NULL, 0, &event, err, sizeof err), CODEC_E_VALUE);
    KVT_EQ(event.kind, 77);
}

static void srv_2_names(void) {
    static const struct {
        const char *name;
        size_t n;
        const char *part;
    } cases[] = {
        { "", 0, "name is empty" }, { "a b", 3, "0x20 at 1" },   { "a\0b", 3, "0x00 at 1" },
        { "\0", 1, "0x00 at 0" },   { "x\n", 2, "0x0a at 1" },   { "caf\xc3\xa9", 5, "0xc3 at 3" },
        { "a%s", 3, "0x25 at 1" },  { "../\\", 4, "0x5c at 3" }, { "end\x7f", 4, "0x7f at 3" },
    };
    begin();
    wire.n = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        wire_number(&wire, 3, KVD_ROLE_WORKER);
        wire_bytes(&wire, 4, cases[i].name, cases[i].n);
        refused(FRAME_HELLO, CODEC_E_VALUE, cases[i].part, "Hello: name");
    }
    char longest[KVD_NAME_BYTES];
    memset(longest, 'n', sizeof longest);
    wire_number(&wire, 3, KVD_ROLE_WORKER);
    wire_bytes(&wire, 4, longest, sizeof longest);
    refused(FRAME_HELLO, CODEC_E_LIMIT, "name has 64 characters", "63");
    wire_number(&wire, 3, KVD_ROLE_WORKER);
    wire_bytes(&wire, 4, longest, sizeof longest - 1);
    KVT_OK(try_request(FRAME_HELLO, wire.bytes, wire.n));
    wire.n = 0;
    wire_number(&wire, 3, KVD_ROLE_WORKER);
    wire_text(&wire, 4, "vllm:0/worker-1.a_b");
    wire_bytes(&wire, 5, "lib\0kvd", 7);
    refused(FRAME_HELLO, CODEC_E_VALUE, "library has the byte 0x00 at 3", "printable");
}

static void srv_2_fixed_lengths(void) {
    static const size_t lengths[] = { 1, 15, 17, 63, 65, 128 };
    begin();
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        static struct wire region, pool, info;
        region.n = pool.n = info.n = wire.n = 0;
        wire_zeros(&region, i % 2 ? 4 : 5, lengths[i]);
        wire_bytes(&pool, 10, region.bytes, region.n);
        wire_bytes(&info, 12, pool.bytes, pool.n);
        wire_bytes(&wire, 2, info.bytes, info.n);
        refused_reply(FRAME_DESCRIBE_STORE, CODEC_E_VALUE, i % 2 ? "ipc_handle has" : "uuid has",
                      i % 2 ? "must have 64" : "must have 16");
    }
}

/* ---- newer peers, larger memories ------------------------------------------------------------------------------- */

static void unknown_fields_are_ignored(void) {
    begin();
    for (uint16_t type = FRAME_HELLO; type < FRAME_TYPE_END; type++) {
        struct msg_request q, back;
        size_t n;
        codec_arena_reset(arena);
        fill_request(&fill, type, &q);
        KVT_NEED(codec_encode_request(&q, arena, body, SPACE, &n, err, sizeof err) == 0);
        wire.n = 0;
        wire_number(&wire, 900, 7);
        wire_text(&wire, 901, "from the future");
        memcpy(wire.bytes + wire.n, body, n);
        wire.n += n;
        wire_zeros(&wire, 536870911, 40);
        KVT_OK(codec_decode_request(type, wire.bytes, wire.n, arena, &back, err, sizeof err));
        KVT_TRUE(same_request(&q, &back));
    }
    struct kvd_event event, back;
    size_t n;
    fill_event(&fill, &event);
    KVT_NEED(codec_encode_event(&event, wire.bytes, SPACE, &n, err, sizeof err) == 0);
    wire.n = n;
    for (uint32_t k = 0; k < 20; k++) wire_number(&wire, 100 + k, k);
    KVT_OK(codec_decode_event(wire.bytes, wire.n, &back, err, sizeof err));
    KVT_EQ_MEM(&event, &back, sizeof event);
}

/* SRV-2: 60 KB of empty sub-messages would be about 3 MB of structs: the cap refuses, and the connection's next request
 * is served. */
static void srv_2_amplification_stops_at_the_cap(void) {
    begin();
    wire.n = 0;
    while (wire.n < 60000) wire_zeros(&wire, 3, 0);
    refused_reply(FRAME_LIST_SEQUENCES, CODEC_E_LIMIT, "1048576 bytes", "smaller");
    while (wire.n < 60000) wire_zeros(&wire, 4, 0);
    refused(FRAME_ROUND, CODEC_E_LIMIT, "1048576 bytes", "smaller");
    while (wire.n < 60000) wire_number(&wire, 15, 0); /* unknown */
    refused(FRAME_STATS, CODEC_E_LIMIT, "1048576 bytes", "smaller");
    while (wire.n < 9000) wire_number(&wire, 15, 0);
    KVT_OK(try_request(FRAME_STATS, wire.bytes, wire.n));
    wire.n = 0;
    struct kvd_event event;
    while (wire.n < 60000) wire_number(&wire, 20, 0);
    KVT_EQ_I(codec_decode_event(wire.bytes, wire.n, &event, err, sizeof err), CODEC_E_LIMIT);
    KVT_OK(try_request(FRAME_ROUND, body, valid_request(FRAME_ROUND)));
}

static void srv_2_bodies_longer_than_a_frame(void) {
    begin();
    struct msg_request q;
    wire.n = 0;
    wire_zeros(&wire, 50, SPACE - 5);
    KVT_EQ(wire.n, SPACE);
    KVT_OK(codec_decode_request(FRAME_STATS, wire.bytes, wire.n, arena, &q, err, sizeof err));
    wire.n = 0;
    wire_zeros(&wire, 50, SPACE - 4);
    KVT_EQ(wire.n, SPACE + 1);
    KVT_EQ_I(codec_decode_request(FRAME_STATS, wire.bytes, wire.n, arena, &q, err, sizeof err), CODEC_E_LIMIT);
    KVT_HAS(err, "the limit is 65520");
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = {
        KVT_CASE(srv_2_every_truncation),
        KVT_CASE(srv_2_bit_flips),
        KVT_CASE(srv_2_noise_and_bodies_of_other_types),
        KVT_CASE(srv_2_counts_and_lengths_over_the_limit),
        KVT_CASE(srv_2_round_columns_must_agree),
        KVT_CASE(srv_2_enums_and_numbers_out_of_range),
        KVT_CASE(srv_2_names),
        KVT_CASE(srv_2_fixed_lengths),
        KVT_CASE(unknown_fields_are_ignored),
        KVT_CASE(srv_2_amplification_stops_at_the_cap),
        KVT_CASE(srv_2_bodies_longer_than_a_frame),
        { 0 },
    };
    arena = codec_arena_new();
    other = codec_arena_new();
    int r = arena && other ? kvt_main("codec_hostile", cases, argc, argv) : 2;
    arena = codec_arena_free(arena);
    other = codec_arena_free(other);
    return r;
}
