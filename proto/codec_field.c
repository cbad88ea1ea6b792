/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine under the maps: one load and one store for each kind of field. It checks a count before it allocates
 * anything of that size.
 *
 * A worked example: the answer to Checkpoint.
 *
 *     message CheckpointReply {                  struct msg_reply {
 *       ReplyHeader header = 1;                      uint32_t status; ... uint64_t epoch;
 *       fixed64 continuation = 2;                    union { ... struct kvd_checkpointed {
 *       uint32 frontier = 3;                             kvd_continuation continuation;
 *       fixed64 revision = 4;                            uint32_t frontier;
 *       repeated uint32 shared_pages = 5;                uint64_t revision;
 *     }                                                  uint32_t shared_pages[KVD_MAX_POOLS];
 *                                                    } checkpointed; } u;
 *                                                };
 *
 * codec_reply.c has a row for each field. PB and T name the two structs:
 *
 *     HEADER,
 *     HANDLE(continuation, u.checkpointed.continuation),
 *     U32(frontier, u.checkpointed.frontier),
 *     ...
 *     U32S_BY_POOL(shared_pages, u.checkpointed.shared_pages),
 *
 * U32(frontier, ...) becomes { .name = "frontier", .kind = CODEC_U32, .pb = offsetof(PB, frontier),
 * .at = offsetof(T, u.checkpointed.frontier), .low = 0, .high = UINT32_MAX }, and does not compile unless both sides
 * have 32 bits. To decode, codec.c unpacks the body into a PB, and codec_load calls load_field for each row: it reads
 * the value at .pb, refuses it outside of low..high ("Checkpoint: frontier is ..."), and writes it at .at. codec_store
 * goes the other way with store_field, and codec.c packs the PB. U32S_BY_POOL has .high = KVD_MAX_POOLS entries in
 * place and no count (.at_n = CODEC_NO_COUNT): trailing zeros do not travel, and entries that did not travel are zero.
 *
 * So a number in an answer is a line in each of four files: the message in kvd.proto, the struct in kvd_types.h, the
 * row in codec_reply.c, and the function of the service that fills it in. A request that is new has its line in
 * FRAME_LIST (frame.h) and in the service of kvd.proto, its map in codec_request.c, and its member of the union in
 * codec.h.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "codec_internal.h"

/* ---- sentences ------------------------------------------------------------------------------------ */

int codec_refuse(const struct codec_pass *pass, int code, const char *format, ...) {
    if (!pass->err || pass->err_bytes == 0) return code;
    int n = snprintf(pass->err, pass->err_bytes, "%s: ", pass->type);
    if (n < 0 || (size_t)n >= pass->err_bytes) return code;
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(pass->err + n, pass->err_bytes - (size_t)n, format, arguments);
    va_end(arguments);
    return code;
}

int codec_refuse_count(const struct codec_pass *pass, const char *field, size_t n, size_t limit) {
    return codec_refuse(pass, CODEC_E_LIMIT, "%s has %zu entries, the limit is %zu; send fewer, or several requests",
                        field, n, limit);
}

int codec_refuse_memory(const struct codec_pass *pass) {
    return codec_refuse(
        pass, CODEC_E_LIMIT,
        "the message needs more than the %zu bytes that one message may take once unpacked; send a smaller one",
        pass->arena->limit);
}

static int refuse_number(const struct codec_pass *pass, const struct codec_field *f, uint32_t value) {
    return codec_refuse(pass, CODEC_E_VALUE, "%s is %u, it must be from %u to %u", f->name, value, f->low, f->high);
}

/* ---- access ------------------------------------------------------------------------------------------ */

static const void *pointer_at(const void *base, size_t offset) {
    const void *p;
    memcpy(&p, codec_at(base, offset), sizeof p);
    return p;
}
static void pointer_set(void *base, size_t offset, const void *p) { memcpy(codec_at_mut(base, offset), &p, sizeof p); }

static uint32_t count_of(const struct codec_field *f, const void *plain) {
    return *(const uint32_t *)codec_at(plain, f->at_n);
}
static void count_set(const struct codec_field *f, void *plain, size_t n) {
    if (f->at_n != CODEC_NO_COUNT) *(uint32_t *)codec_at_mut(plain, f->at_n) = (uint32_t)n;
}

static bool all_zero(const uint8_t *p, size_t n) { return n == 0 || (p[0] == 0 && memcmp(p, p + 1, n - 1) == 0); }

/* Entries to send of an array in place: its count, or what is left once zeros at the end are cut. */
static uint32_t entries(const struct codec_field *f, const void *plain, size_t entry_bytes) {
    if (f->at_n != CODEC_NO_COUNT) return count_of(f, plain);
    uint32_t n = f->high;
    while (n > 0 && all_zero(codec_at(plain, f->at + (n - 1) * entry_bytes), entry_bytes)) n--;
    return n;
}

void *codec_message_new(const struct codec_pass *pass, const ProtobufCMessageDescriptor *descriptor) {
    void *message = codec_arena_take(pass->arena, descriptor->sizeof_message);
    if (message) descriptor->message_init(message);
    return message;
}

/* ---- characters ---------------------------------------------------------------------------------------- */

static bool name_character(uint8_t c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (c != 0 && strchr("._:/-", c));
}

static bool character_fits(const struct codec_field *f, uint8_t c) {
    if (f->kind == CODEC_NAME) return name_character(c);
    return (c >= 0x20 && c < 0x7f) || (f->low && c == '\n');
}

static const char *character_set(const struct codec_field *f) {
    return f->kind == CODEC_NAME ? "letters, digits and . _ : / -" : "printable ASCII";
}

static int check_characters(const struct codec_pass *pass, const struct codec_field *f, const uint8_t *s, size_t n) {
    if (n > f->high)
        return codec_refuse(pass, CODEC_E_LIMIT, "%s has %zu characters, the limit is %u", f->name, n, f->high);
    if (f->kind == CODEC_NAME && n < f->low) return codec_refuse(pass, CODEC_E_VALUE, "%s is empty; give one", f->name);
    for (size_t i = 0; i < n; i++)
        if (!character_fits(f, s[i]))
            return codec_refuse(pass, CODEC_E_VALUE, "%s has the byte 0x%02x at %zu; use only %s", f->name, s[i], i,
                                character_set(f));
    return 0;
}

static int load_characters(const struct codec_pass *pass, const struct codec_field *f, const ProtobufCBinaryData *pb,
                           char *plain) {
    int r = check_characters(pass, f, pb->data, pb->len);
    if (r) return r;
    if (pb->len) memcpy(plain, pb->data, pb->len);
    plain[pb->len] = '\0';
    return 0;
}

/* A sentence may quote anything; what readers could not take is replaced, so that no answer fails for its text. */
static uint8_t *printable_copy(const struct codec_pass *pass, const struct codec_field *f, const char *s, size_t n) {
    uint8_t *copy = codec_arena_take(pass->arena, n);
    for (size_t i = 0; copy && i < n; i++) copy[i] = character_fits(f, (uint8_t)s[i]) ? (uint8_t)s[i] : (uint8_t)'?';
    return copy;
}

static int store_characters(const struct codec_pass *pass, const struct codec_field *f, ProtobufCBinaryData *pb,
                            const char *plain) {
    size_t n = strnlen(plain, (size_t)f->high + 1);
    pb->data = (uint8_t *)(uintptr_t)plain;
    pb->len = n;
    if (f->kind == CODEC_TEXT && n <= f->high && n > 0) {
        pb->data = printable_copy(pass, f, plain, n);
        return pb->data ? 0 : codec_refuse_memory(pass);
    }
    return check_characters(pass, f, pb->data, n);
}

/* ---- bytes ------------------------------------------------------------------------------------------------- */

static int load_bytes(const struct codec_pass *pass, const struct codec_field *f, const ProtobufCBinaryData *pb,
                      uint8_t *plain) {
    if (pb->len == 0) return 0;
    if (pb->len != f->high)
        return codec_refuse(pass, CODEC_E_VALUE, "%s has %zu bytes, it must have %u", f->name, pb->len, f->high);
    memcpy(plain, pb->data, f->high);
    return 0;
}

static int store_bytes(const struct codec_field *f, ProtobufCBinaryData *pb, const uint8_t *plain) {
    if (all_zero(plain, f->high)) return 0;
    pb->data = (uint8_t *)(uintptr_t)plain;
    pb->len = f->high;
    return 0;
}

static int load_digests(const struct codec_pass *pass, const struct codec_field *f, const ProtobufCBinaryData *pb,
                        void *plain) {
    size_t n = pb->len / KVD_DIGEST_BYTES;
    if (pb->len % KVD_DIGEST_BYTES)
        return codec_refuse(pass, CODEC_E_VALUE, "%s has %zu bytes, it must be a multiple of %d", f->name, pb->len,
                            KVD_DIGEST_BYTES);
    if (n > f->high) return codec_refuse_count(pass, f->name, n, f->high);
    const kvd_digest *digests = n ? (const kvd_digest *)(const void *)pb->data : NULL;
    pointer_set(plain, f->at, digests);
    count_set(f, plain, n);
    return 0;
}

static int store_digests(const struct codec_pass *pass, const struct codec_field *f, ProtobufCBinaryData *pb,
                         const void *plain) {
    const kvd_digest *digests = pointer_at(plain, f->at);
    uint32_t n = count_of(f, plain);
    if (n > f->high) return codec_refuse_count(pass, f->name, n, f->high);
    if (n && !digests) return codec_refuse(pass, CODEC_E_VALUE, "%s has %u entries and no address", f->name, n);
    pb->data = n ? (uint8_t *)(uintptr_t)digests->bytes : NULL;
    pb->len = (size_t)n * KVD_DIGEST_BYTES;
    return 0;
}

/* ---- numbers ----------------------------------------------------------------------------------------------- */

static int load_numbers(const struct codec_pass *pass, const struct codec_field *f, const void *pb, void *plain,
                        size_t bytes) {
    size_t n = *(const size_t *)codec_at(pb, f->pb_n);
    const void *from = pointer_at(pb, f->pb);
    if (n > f->high) return codec_refuse_count(pass, f->name, n, f->high);
    if (n) memcpy(codec_at_mut(plain, f->at), from, n * bytes);
    count_set(f, plain, n);
    return 0;
}

static int store_numbers(const struct codec_pass *pass, const struct codec_field *f, void *pb, const void *plain,
                         size_t bytes) {
    uint32_t n = entries(f, plain, bytes);
    if (n > f->high) return codec_refuse_count(pass, f->name, n, f->high);
    *(size_t *)codec_at_mut(pb, f->pb_n) = n;
    pointer_set(pb, f->pb, n ? codec_at(plain, f->at) : NULL);
    return 0;
}

/* ---- messages ------------------------------------------------------------------------------------------------- */

static int load_sub(struct codec_pass *pass, const struct codec_field *f, const void *pb, void *plain) {
    const void *message = pointer_at(pb, f->pb);
    if (!message) message = codec_message_new(pass, f->sub->pb); /* defaults are not always zeros */
    if (!message) return codec_refuse_memory(pass);
    if (f->kind == CODEC_SUB) return codec_load(pass, f->sub, message, codec_at_mut(plain, f->at));
    void *fresh = codec_arena_alloc(pass->arena, f->sub->bytes);
    if (!fresh) return codec_refuse_memory(pass);
    pointer_set(plain, f->at, fresh);
    return codec_load(pass, f->sub, message, fresh);
}

static int store_sub(struct codec_pass *pass, const struct codec_field *f, void *pb, const void *plain) {
    const void *from = f->kind == CODEC_SUB ? codec_at(plain, f->at) : pointer_at(plain, f->at);
    if (!from) return 0;
    void *message = codec_message_new(pass, f->sub->pb);
    if (!message) return codec_refuse_memory(pass);
    pointer_set(pb, f->pb, message);
    return codec_store(pass, f->sub, message, from);
}

static int load_subs(struct codec_pass *pass, const struct codec_field *f, const void *pb, void *plain) {
    size_t n = *(const size_t *)codec_at(pb, f->pb_n);
    const void *const *messages = pointer_at(pb, f->pb);
    void *to = codec_at_mut(plain, f->at);
    if (n > f->high) return codec_refuse_count(pass, f->name, n, f->high);
    count_set(f, plain, n);
    if (f->kind == CODEC_SUBS_NEW) {
        void *fresh = n ? codec_arena_alloc(pass->arena, n * f->sub->bytes) : NULL;
        if (n && !fresh) return codec_refuse_memory(pass);
        pointer_set(plain, f->at, fresh);
        to = fresh;
    }
    for (size_t i = 0; i < n; i++) {
        int r = codec_load(pass, f->sub, messages[i], codec_at_mut(to, i * f->sub->bytes));
        if (r) return r;
    }
    return 0;
}

static int store_subs(struct codec_pass *pass, const struct codec_field *f, void *pb, const void *plain) {
    uint32_t n = entries(f, plain, f->sub->bytes);
    const void *from = f->kind == CODEC_SUBS ? codec_at(plain, f->at) : pointer_at(plain, f->at);
    if (n > f->high) return codec_refuse_count(pass, f->name, n, f->high);
    if (n == 0) return 0;
    if (!from) return codec_refuse(pass, CODEC_E_VALUE, "%s has %u entries and no address", f->name, n);
    void **messages = codec_arena_take(pass->arena, n * sizeof *messages);
    if (!messages) return codec_refuse_memory(pass);
    for (uint32_t i = 0; i < n; i++) {
        messages[i] = codec_message_new(pass, f->sub->pb);
        if (!messages[i]) return codec_refuse_memory(pass);
        int r = codec_store(pass, f->sub, messages[i], codec_at(from, i * f->sub->bytes));
        if (r) return r;
    }
    *(size_t *)codec_at_mut(pb, f->pb_n) = n;
    pointer_set(pb, f->pb, messages);
    return 0;
}

/* ---- both directions -------------------------------------------------------------------------------------------- */

static int load_u32(const struct codec_pass *pass, const struct codec_field *f, uint32_t value, uint32_t *plain) {
    if (value < f->low || value > f->high) return refuse_number(pass, f, value);
    *plain = value;
    return 0;
}

static int load_field(struct codec_pass *pass, const struct codec_field *f, const void *pb, void *plain) {
    const void *from = codec_at(pb, f->pb);
    void *to = codec_at_mut(plain, f->at);
    switch (f->kind) {
    case CODEC_U32: return load_u32(pass, f, *(const uint32_t *)from, to);
    case CODEC_U32_PLUS: *(uint32_t *)to = *(const uint32_t *)from - 1u; return 0; /* 0 -> KVD_UNCHANGED */
    case CODEC_U64: *(uint64_t *)to = *(const uint64_t *)from; return 0;
    case CODEC_BOOL: *(bool *)to = *(const protobuf_c_boolean *)from != 0; return 0;
    case CODEC_NAME:
    case CODEC_TEXT: return load_characters(pass, f, from, to);
    case CODEC_BYTES: return load_bytes(pass, f, from, to);
    case CODEC_DIGESTS: return load_digests(pass, f, from, plain);
    case CODEC_U32S: return load_numbers(pass, f, pb, plain, sizeof(uint32_t));
    case CODEC_U64S: return load_numbers(pass, f, pb, plain, sizeof(uint64_t));
    case CODEC_SUB:
    case CODEC_SUB_NEW: return load_sub(pass, f, pb, plain);
    case CODEC_SUBS:
    case CODEC_SUBS_NEW: return load_subs(pass, f, pb, plain);
    case CODEC_CUSTOM: return f->load(pass, pb, plain);
    }
    return codec_refuse(pass, CODEC_E_TYPE, "%s has a kind that the codec does not know; please report it", f->name);
}

static int store_field(struct codec_pass *pass, const struct codec_field *f, void *pb, const void *plain) {
    const void *from = codec_at(plain, f->at);
    void *to = codec_at_mut(pb, f->pb);
    switch (f->kind) {
    case CODEC_U32: return load_u32(pass, f, *(const uint32_t *)from, to);
    case CODEC_U32_PLUS: *(uint32_t *)to = *(const uint32_t *)from + 1u; return 0;
    case CODEC_U64: *(uint64_t *)to = *(const uint64_t *)from; return 0;
    case CODEC_BOOL: *(protobuf_c_boolean *)to = *(const bool *)from; return 0;
    case CODEC_NAME:
    case CODEC_TEXT: return store_characters(pass, f, to, from);
    case CODEC_BYTES: return store_bytes(f, to, from);
    case CODEC_DIGESTS: return store_digests(pass, f, to, plain);
    case CODEC_U32S: return store_numbers(pass, f, pb, plain, sizeof(uint32_t));
    case CODEC_U64S: return store_numbers(pass, f, pb, plain, sizeof(uint64_t));
    case CODEC_SUB:
    case CODEC_SUB_NEW: return store_sub(pass, f, pb, plain);
    case CODEC_SUBS:
    case CODEC_SUBS_NEW: return store_subs(pass, f, pb, plain);
    case CODEC_CUSTOM: return f->store(pass, pb, plain);
    }
    return codec_refuse(pass, CODEC_E_TYPE, "%s has a kind that the codec does not know; please report it", f->name);
}

int codec_load(struct codec_pass *pass, const struct codec_map *map, const void *pb, void *plain) {
    for (uint32_t i = 0; i < map->n; i++) {
        int r = load_field(pass, &map->fields[i], pb, plain);
        if (r) return r;
    }
    return 0;
}

int codec_store(struct codec_pass *pass, const struct codec_map *map, void *pb, const void *plain) {
    for (uint32_t i = 0; i < map->n; i++) {
        int r = store_field(pass, &map->fields[i], pb, plain);
        if (r) return r;
    }
    return 0;
}
