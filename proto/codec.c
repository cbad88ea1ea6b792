/* SPDX-License-Identifier: Apache-2.0
 *
 * The way in and out: unpack, then check and convert by the map of the type; or convert, measure, pack.
 */
#include <string.h>

#include "codec_internal.h"

static struct codec_pass pass_begin(struct codec_arena *arena, const char *type, size_t space, char *err,
                                    size_t err_bytes) {
    if (err && err_bytes) err[0] = '\0';
    return (struct codec_pass){ .arena = arena, .type = type, .space = space, .err = err, .err_bytes = err_bytes };
}

static const char *type_name(uint16_t type) { return codec_request_map(type) ? frame_type_name(type) : "frame"; }

static int refuse_type(const struct codec_pass *pass, uint16_t type) {
    return codec_refuse(pass, CODEC_E_TYPE, "type %u is unknown to protocol %u; known are 1 to %d", type,
                        KVD_PROTOCOL_VERSION, FRAME_TYPE_END - 1);
}

static int unpack_message(const struct codec_pass *pass, const struct codec_map *map, const uint8_t *body, size_t bytes,
                          ProtobufCMessage **ret_message) {
    *ret_message = NULL; /* gcc -O3 does not see that no refusal is 0 */
    if (bytes > FRAME_LIMIT - FRAME_HEADER)
        return codec_refuse(pass, CODEC_E_LIMIT, "the body has %zu bytes, the limit is %u", bytes,
                            FRAME_LIMIT - FRAME_HEADER);
    pass->arena->refused = false;
    ProtobufCMessage *message = protobuf_c_message_unpack(map->pb, &pass->arena->pb, bytes, body);
    if (!message && pass->arena->refused) return codec_refuse_memory(pass);
    if (!message)
        return codec_refuse(pass, CODEC_E_MALFORMED, "the %zu bytes are not a %s; check the protocol version", bytes,
                            map->pb->name);
    *ret_message = message;
    return 0;
}

static int pack_message(const struct codec_pass *pass, const ProtobufCMessage *message, uint8_t *body,
                        size_t *ret_bytes) {
    size_t bytes = protobuf_c_message_get_packed_size(message);
    if (bytes > pass->space)
        return codec_refuse(pass, CODEC_E_SPACE, "the body needs %zu bytes, there are %zu; ask for less at once", bytes,
                            pass->space);
    *ret_bytes = protobuf_c_message_pack(message, body);
    return 0;
}

/* The header row, or what follows it. */
static struct codec_map first_row(const struct codec_map *map) {
    return (struct codec_map){ map->pb, map->bytes, 1, map->fields };
}
static struct codec_map other_rows(const struct codec_map *map) {
    return (struct codec_map){ map->pb, map->bytes, map->n - 1, map->fields + 1 };
}

/* ---- requests --------------------------------------------------------------------------------------- */

int codec_decode_request(uint16_t type, const uint8_t *body, size_t bytes, struct codec_arena *arena,
                         struct msg_request *ret_request, char *err, size_t err_bytes) {
    struct codec_pass pass = pass_begin(arena, type_name(type), 0, err, err_bytes);
    const struct codec_map *map = codec_request_map(type);
    if (!map) return refuse_type(&pass, type);
    ProtobufCMessage *message;
    int r = unpack_message(&pass, map, body, bytes, &message);
    if (r) return r;
    struct msg_request request;
    memset(&request, 0, sizeof request);
    request.type = type;
    r = codec_load(&pass, map, message, &request);
    if (r == 0) memcpy(ret_request, &request, sizeof request);
    return r;
}

int codec_encode_request(const struct msg_request *request, struct codec_arena *arena, uint8_t *body, size_t space,
                         size_t *ret_bytes, char *err, size_t err_bytes) {
    struct codec_pass pass = pass_begin(arena, type_name(request->type), space, err, err_bytes);
    const struct codec_map *map = codec_request_map(request->type);
    if (!map) return refuse_type(&pass, request->type);
    ProtobufCMessage *message = codec_message_new(&pass, map->pb);
    if (!message) return codec_refuse_memory(&pass);
    int r = codec_store(&pass, map, message, request);
    return r ? r : pack_message(&pass, message, body, ret_bytes);
}

/* ---- replies ------------------------------------------------------------------------------------------ */

int codec_decode_reply(uint16_t type, const uint8_t *body, size_t bytes, struct codec_arena *arena,
                       struct msg_reply *ret_reply, char *err, size_t err_bytes) {
    struct codec_pass pass = pass_begin(arena, type_name(type), 0, err, err_bytes);
    const struct codec_map *map = codec_reply_map(type);
    if (!map) return refuse_type(&pass, type);
    ProtobufCMessage *message;
    int r = unpack_message(&pass, map, body, bytes, &message);
    if (r) return r;
    struct msg_reply reply;
    memset(&reply, 0, sizeof reply);
    reply.type = type;
    struct codec_map header = first_row(map), rest = other_rows(map);
    r = codec_load(&pass, &header, message, &reply);
    if (r == 0 && reply.status == KVD_OK) r = codec_load(&pass, &rest, message, &reply);
    if (r == 0) memcpy(ret_reply, &reply, sizeof reply);
    return r;
}

int codec_encode_reply(const struct msg_reply *reply, struct codec_arena *arena, uint8_t *body, size_t space,
                       size_t *ret_bytes, char *err, size_t err_bytes) {
    struct codec_pass pass = pass_begin(arena, type_name(reply->type), space, err, err_bytes);
    const struct codec_map *map = codec_reply_map(reply->type);
    if (!map && reply->status != KVD_OK) map = codec_reply_map(FRAME_GOODBYE); /* a header alone: the type is unknown */
    if (!map) return refuse_type(&pass, reply->type);
    ProtobufCMessage *message = codec_message_new(&pass, map->pb);
    if (!message) return codec_refuse_memory(&pass);
    struct codec_map header = first_row(map), rest = other_rows(map);
    int r = codec_store(&pass, &header, message, reply);
    if (r == 0 && reply->status == KVD_OK) r = codec_store(&pass, &rest, message, reply);
    return r ? r : pack_message(&pass, message, body, ret_bytes);
}

/* ---- events --------------------------------------------------------------------------------------------- */

#define EVENT_MEMORY 8192 /* the message, and unknown fields of newer servers */

int codec_decode_event(const uint8_t *body, size_t bytes, struct kvd_event *ret_event, char *err, size_t err_bytes) {
    _Alignas(16) uint8_t memory[EVENT_MEMORY];
    struct codec_arena arena;
    codec_arena_fixed(&arena, memory, sizeof memory);
    struct codec_pass pass = pass_begin(&arena, "Event", 0, err, err_bytes);
    ProtobufCMessage *message;
    int r = unpack_message(&pass, &codec_event_map, body, bytes, &message);
    if (r) return r;
    struct kvd_event event;
    memset(&event, 0, sizeof event);
    r = codec_load(&pass, &codec_event_map, message, &event);
    if (r == 0) memcpy(ret_event, &event, sizeof event);
    return r;
}

int codec_encode_event(const struct kvd_event *event, uint8_t *body, size_t space, size_t *ret_bytes, char *err,
                       size_t err_bytes) {
    _Alignas(16) uint8_t memory[512];
    struct codec_arena arena;
    codec_arena_fixed(&arena, memory, sizeof memory);
    struct codec_pass pass = pass_begin(&arena, "Event", space, err, err_bytes);
    ProtobufCMessage *message = codec_message_new(&pass, codec_event_map.pb);
    if (!message) return codec_refuse_memory(&pass);
    int r = codec_store(&pass, &codec_event_map, message, event);
    return r ? r : pack_message(&pass, message, body, ret_bytes);
}
