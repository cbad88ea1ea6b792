/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the codec: the arena's workings, and maps between generated messages and plain structs.
 *
 * A map is a table with one row a field. Offsets are taken from both structs, so a field that one of them lacks does
 * not compile, and the row macros check the C types of both sides. One small engine (codec_field.c) walks the tables in
 * both directions and applies the limits, so that what the encoder lets out is what the decoder lets in. Round has
 * columns instead of rows and is coded by hand (codec_round.c).
 */
#ifndef KVD_PROTO_CODEC_INTERNAL_H
#define KVD_PROTO_CODEC_INTERNAL_H

#include <protobuf-c/protobuf-c.h>

#include "codec.h"

/* ---- arena -------------------------------------------------------------------------------------- */

/* Block k holds ARENA_FIRST << k bytes; the last one alone could hold the whole limit, so that whether an allocation
 * succeeds depends on the bytes taken since the reset, never on history. */
#define ARENA_FIRST 16384u
#define ARENA_BLOCKS 7

struct codec_arena {
    uint8_t *block[ARENA_BLOCKS];
    uint32_t current;      /* block that is being filled */
    size_t fill;           /* of the current block */
    size_t taken, limit;   /* since the reset, rounded to 16 */
    bool refused;          /* since the reset: an allocation did not fit (or the system had no memory) */
    bool fixed;            /* block 0 belongs to the caller */
    ProtobufCAllocator pb; /* the same memory for protobuf-c; free does nothing */
};
/* An arena in the caller's memory, for small messages: bytes <= ARENA_FIRST, 16-byte aligned. Never mallocs, needs no
 * free. */
void codec_arena_fixed(struct codec_arena *arena, void *memory, size_t bytes);
/* Tests: a smaller cap, from the next allocation on. */
void codec_arena_set_limit(struct codec_arena *arena, size_t bytes);

/* ---- one pass over a message ----------------------------------------------------------------------- */

struct codec_pass {
    struct codec_arena *arena;
    const char *type; /* for sentences: "Activate" */
    size_t space;     /* encode: bytes of the body at most */
    char *err;
    size_t err_bytes;
};
/* Write the sentence and return the code. */
int codec_refuse(const struct codec_pass *pass, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
int codec_refuse_count(const struct codec_pass *pass, const char *field, size_t n, size_t limit);
int codec_refuse_memory(const struct codec_pass *pass);

static inline const void *codec_at(const void *base, size_t offset) { return (const char *)base + offset; }
static inline void *codec_at_mut(void *base, size_t offset) { return (char *)base + offset; }

/* ---- maps --------------------------------------------------------------------------------------------- */

enum codec_kind {
    CODEC_U32,      /* uint32 or enum; low..high */
    CODEC_U32_PLUS, /* uint32 carrying value + 1: absent = KVD_UNCHANGED */
    CODEC_U64,      /* uint64, fixed64, handle */
    CODEC_BOOL,
    CODEC_NAME,     /* bytes -> char[high + 1], [A-Za-z0-9._:/-]; at least low */
    CODEC_TEXT,     /* bytes -> char[high + 1], printable ASCII (low: and newlines); others are encoded as '?' */
    CODEC_BYTES,    /* bytes -> uint8_t[high]: absent = zeros */
    CODEC_DIGESTS,  /* bytes -> pointer and count of kvd_digest in the arena; at most high */
    CODEC_U32S,     /* packed -> uint32_t[high], with a count or cut at trailing zeros */
    CODEC_U64S,     /* packed -> uint64_t-sized[high], with a count */
    CODEC_SUB,      /* message -> struct in place; absent = defaults */
    CODEC_SUB_NEW,  /* message -> pointer to a struct in the arena; absent = defaults */
    CODEC_SUBS,     /* messages -> struct[high] in place, with a count or cut at trailing zeros */
    CODEC_SUBS_NEW, /* messages -> pointer to an array in the arena, and a count; at most high */
    CODEC_CUSTOM    /* load and store see the whole message and the whole struct */
};

struct codec_map;
struct codec_field {
    const char *name;
    enum codec_kind kind;
    uint32_t pb, pb_n;  /* offsets in the generated struct: field and its quantifier */
    uint32_t at, at_n;  /* offsets in the plain struct: field and its count, or CODEC_NO_COUNT */
    uint32_t low, high; /* see the kinds */
    const struct codec_map *sub;
    int (*load)(struct codec_pass *pass, const void *pb, void *plain);
    int (*store)(struct codec_pass *pass, void *pb, const void *plain);
};
struct codec_map {
    const ProtobufCMessageDescriptor *pb;
    size_t bytes; /* of the plain struct */
    uint32_t n;
    const struct codec_field *fields;
};
#define CODEC_NO_COUNT UINT32_MAX

/* pb -> plain; plain comes zeroed. plain -> pb; pb comes initialised, and may point into plain afterwards. */
int codec_load(struct codec_pass *pass, const struct codec_map *map, const void *pb, void *plain);
int codec_store(struct codec_pass *pass, const struct codec_map *map, void *pb, const void *plain);
/* NULL: arena full. */
void *codec_message_new(const struct codec_pass *pass, const ProtobufCMessageDescriptor *descriptor);

/* NULL: unknown type. The request map stands on struct msg_request, the reply map on struct msg_reply. */
const struct codec_map *codec_request_map(uint16_t type);
const struct codec_map *codec_reply_map(uint16_t type);
extern const struct codec_map codec_root_map;      /* on struct kvd_root */
extern const struct codec_map codec_event_map;     /* on struct kvd_event */
extern const struct codec_map codec_victim_map;    /* on struct kvd_victim */
extern const struct codec_map codec_lent_page_map; /* on struct kvd_lent_page */

int codec_round_load(struct codec_pass *pass, const void *pb, void *plain);
int codec_round_store(struct codec_pass *pass, void *pb, const void *plain);
int codec_round_reply_load(struct codec_pass *pass, const void *pb, void *plain);
int codec_round_reply_store(struct codec_pass *pass, void *pb, const void *plain);

/* ---- rows of maps: PB and T are defined to the generated and the plain struct around each table ---------- */

#define CODEC_FIELD(s, f) (((s *)0)->f)
#define CODEC_IF(condition)                                                                                            \
    (0 * (uint32_t)sizeof(struct { int wrong_type : (condition) ? 1 : -1; })) /* 0, or no compile */
#define CODEC_IS(type, e) _Generic((e), type : 1, default : 0)
#define CODEC_AT(pb_name, path) .name = #pb_name, .pb = offsetof(PB, pb_name), .at = offsetof(T, path)
#define CODEC_MANY(pb_name) .pb_n = offsetof(PB, n_##pb_name)
#define CODEC_COUNT(path) .at_n = offsetof(T, path) + CODEC_IF(CODEC_IS(uint32_t, CODEC_FIELD(T, path)))
#define CODEC_TABLE(descriptor, fields_)                                                                               \
    { &(descriptor), sizeof(T), sizeof(fields_) / sizeof((fields_)[0]), fields_ }

#define U32_IN(pb_name, path, min, max)                                                                                \
    {                                                                                                                  \
        CODEC_AT(pb_name, path),                                                                                       \
            .kind = CODEC_U32, .low = (min),                                                                           \
            .high =                                                                                                    \
                (max) + CODEC_IF(sizeof(CODEC_FIELD(PB, pb_name)) == 4 && CODEC_IS(uint32_t, CODEC_FIELD(T, path)))    \
    }
#define U32(pb_name, path) U32_IN(pb_name, path, 0, UINT32_MAX)
#define U32_PLUS(pb_name, path)                                                                                        \
    {                                                                                                                  \
        CODEC_AT(pb_name, path),                                                                                       \
            .kind = CODEC_U32_PLUS,                                                                                    \
            .high = CODEC_IF(CODEC_IS(uint32_t, CODEC_FIELD(PB, pb_name)) && CODEC_IS(uint32_t, CODEC_FIELD(T, path))) \
    }
#define U64(pb_name, path)                                                                                             \
    {                                                                                                                  \
        CODEC_AT(pb_name, path),                                                                                       \
            .kind = CODEC_U64,                                                                                         \
            .high = CODEC_IF(CODEC_IS(uint64_t, CODEC_FIELD(PB, pb_name)) && CODEC_IS(uint64_t, CODEC_FIELD(T, path))) \
    }
#define HANDLE(pb_name, path) U64(pb_name, path.bits)
#define BOOL(pb_name, path)                                                                                            \
    {                                                                                                                  \
        CODEC_AT(pb_name, path), .kind = CODEC_BOOL,                                                                   \
                                 .high = CODEC_IF(CODEC_IS(protobuf_c_boolean, CODEC_FIELD(PB, pb_name)) &&            \
                                                  CODEC_IS(bool, CODEC_FIELD(T, path)))                                \
    }
#define CODEC_BINARY(pb_name) CODEC_IF(CODEC_IS(ProtobufCBinaryData, CODEC_FIELD(PB, pb_name)))
#define CODEC_CHARS(pb_name, path, kind_, low_)                                                                        \
    {                                                                                                                  \
        CODEC_AT(pb_name, path), .kind = kind_, .low = low_,                                                           \
                                 .high = sizeof(CODEC_FIELD(T, path)) - 1 + CODEC_BINARY(pb_name)                      \
    }
#define NAME(pb_name, path) CODEC_CHARS(pb_name, path, CODEC_NAME, 0)
#define NAME_REQUIRED(pb_name, path) CODEC_CHARS(pb_name, path, CODEC_NAME, 1)
#define TEXT(pb_name, path) CODEC_CHARS(pb_name, path, CODEC_TEXT, 0)
#define LINES(pb_name, path) CODEC_CHARS(pb_name, path, CODEC_TEXT, 1)
#define BYTES(pb_name, path)                                                                                           \
    { CODEC_AT(pb_name, path), .kind = CODEC_BYTES, .high = sizeof(CODEC_FIELD(T, path)) + CODEC_BINARY(pb_name) }
#define DIGESTS(pb_name, path, count)                                                                                  \
    {                                                                                                                  \
        CODEC_AT(pb_name, path), CODEC_COUNT(count),                                                                   \
            .kind = CODEC_DIGESTS,                                                                                     \
            .high =                                                                                                    \
                KVD_MAX_DIGESTS + CODEC_BINARY(pb_name) + CODEC_IF(CODEC_IS(const kvd_digest *, CODEC_FIELD(T, path))) \
    }
#define CODEC_ROOM(path) (sizeof(CODEC_FIELD(T, path)) / sizeof(CODEC_FIELD(T, path)[0]))
#define CODEC_U32S_OK(pb_name, path)                                                                                   \
    CODEC_IF(CODEC_IS(uint32_t *, CODEC_FIELD(PB, pb_name)) && CODEC_IS(uint32_t, CODEC_FIELD(T, path)[0]))
#define U32S(pb_name, path, count)                                                                                     \
    {                                                                                                                  \
        CODEC_AT(pb_name, path), CODEC_MANY(pb_name), CODEC_COUNT(count),                                              \
            .kind = CODEC_U32S, .high = CODEC_ROOM(path) + CODEC_U32S_OK(pb_name, path)                                \
    }
#define U32S_BY_POOL(pb_name, path)                                                                                    \
    {                                                                                                                  \
        CODEC_AT(pb_name, path), CODEC_MANY(pb_name), .at_n = CODEC_NO_COUNT, .kind = CODEC_U32S,                      \
                                                      .high = CODEC_ROOM(path) + CODEC_U32S_OK(pb_name, path)          \
    }
#define HANDLES(pb_name, path, count)                                                                                  \
    {                                                                                                                  \
        CODEC_AT(pb_name, path), CODEC_MANY(pb_name), CODEC_COUNT(count),                                              \
            .kind = CODEC_U64S,                                                                                        \
            .high = CODEC_ROOM(path) + CODEC_IF(CODEC_IS(uint64_t *, CODEC_FIELD(PB, pb_name)) &&                      \
                                                CODEC_IS(uint64_t, CODEC_FIELD(T, path)[0].bits))                      \
    }
#define SUB(pb_name, path, map)                                                                                        \
    { CODEC_AT(pb_name, path), .kind = CODEC_SUB, .sub = &(map) }
#define SUB_NEW(pb_name, path, map)                                                                                    \
    { CODEC_AT(pb_name, path), .kind = CODEC_SUB_NEW, .sub = &(map) }
#define SUBS(pb_name, path, count, map)                                                                                \
    {                                                                                                                  \
        CODEC_AT(pb_name, path), CODEC_MANY(pb_name), CODEC_COUNT(count), .kind = CODEC_SUBS,                          \
                                                                          .high = CODEC_ROOM(path), .sub = &(map)      \
    }
#define SUBS_CUT(pb_name, path, map)                                                                                   \
    {                                                                                                                  \
        CODEC_AT(pb_name, path), CODEC_MANY(pb_name), .at_n = CODEC_NO_COUNT, .kind = CODEC_SUBS,                      \
                                                      .high = CODEC_ROOM(path), .sub = &(map)                          \
    }
#define SUBS_NEW(pb_name, path, count, max, map)                                                                       \
    {                                                                                                                  \
        CODEC_AT(pb_name, path), CODEC_MANY(pb_name), CODEC_COUNT(count), .kind = CODEC_SUBS_NEW, .high = (max),       \
                                                                          .sub = &(map)                                \
    }
#define CUSTOM(name_, load_, store_)                                                                                   \
    { .name = name_, .kind = CODEC_CUSTOM, .load = load_, .store = store_ }

#endif
