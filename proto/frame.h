/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames on the byte stream, both directions (PROTOCOL.md):
 *
 *     u32 length   bytes after this field: 12 + body, little-endian like all fields; <= FRAME_LIMIT
 *     u32 type     low 16 bits: enum frame_type; high 16: flags
 *     u64 id       request id, chosen by the client, repeated in the reply; 0 in events
 *     body         protobuf (kvd.proto)
 *
 * The length is checked before anything is allocated. A frame that breaks these rules ends the connection: there is no
 * way to find the next frame.
 */
#ifndef KVD_PROTO_FRAME_H
#define KVD_PROTO_FRAME_H

#include <stddef.h>
#include <stdint.h>

#define FRAME_HEADER 16u
#define FRAME_LIMIT 65536u /* whole frame, header included */
#define FRAME_F_REPLY 0x0001u
#define FRAME_F_EVENT 0x0002u

enum frame_type {
    FRAME_HELLO = 1,
    FRAME_DESCRIBE_STORE,
    FRAME_DESCRIBE_PLANES,
    FRAME_PLAN,
    FRAME_FIND,
    FRAME_LIST_CONTINUATIONS,
    FRAME_LIST_SEQUENCES,
    FRAME_LIST_SESSIONS,
    FRAME_ACTIVATE,
    FRAME_ROUND,
    FRAME_NAME_PAGES,
    FRAME_CHECKPOINT,
    FRAME_FINISH,
    FRAME_YIELD,
    FRAME_RELEASE,
    FRAME_SET_RETENTION,
    FRAME_OPEN_GROUP,
    FRAME_CLOSE_GROUP,
    FRAME_FENCE,
    FRAME_STATS,
    FRAME_AUDIT,
    FRAME_DRAIN,
    FRAME_SUBSCRIBE,
    FRAME_GOODBYE,
    FRAME_DEMOTE,
    FRAME_PREFETCH,
    FRAME_DROP,
    FRAME_TYPE_END,
    FRAME_EVENT = 64
};

struct frame_head {
    uint32_t length;
    uint16_t type, flags;
    uint64_t id;
};

enum frame_error { FRAME_E_SHORT = 1 /* more bytes needed */, FRAME_E_LENGTH = 2 /* impossible length: close */ };

/* Reads a header from n bytes. Only length is judged; an unknown type is the codec's business. */
int frame_head_read(const uint8_t *bytes, size_t n, struct frame_head *ret_head);
/* body_bytes <= FRAME_LIMIT - FRAME_HEADER. Writes FRAME_HEADER bytes. */
void frame_head_write(uint8_t *bytes, uint16_t type, uint16_t flags, uint64_t id, size_t body_bytes);
const char *frame_type_name(uint16_t type); /* "Activate", ...; "?" */

#endif
