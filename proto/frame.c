/* SPDX-License-Identifier: Apache-2.0 */
#include "frame.h"

#define LENGTH_MIN (FRAME_HEADER - 4u)
#define LENGTH_MAX (FRAME_LIMIT - 4u)

static uint32_t get32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void put32(uint8_t *p, uint32_t v) {
    for (unsigned i = 0; i < 4; i++) p[i] = (uint8_t)(v >> 8 * i);
}

int frame_head_read(const uint8_t *bytes, size_t n, struct frame_head *ret_head) {
    if (n < 4) return FRAME_E_SHORT;
    uint32_t length = get32(bytes);
    if (length < LENGTH_MIN || length > LENGTH_MAX) return FRAME_E_LENGTH; /* known as soon as four bytes are there */
    if (n < FRAME_HEADER) return FRAME_E_SHORT;
    uint32_t type = get32(bytes + 4);
    *ret_head = (struct frame_head){ .length = length,
                                     .type = (uint16_t)(type & 0xffffu),
                                     .flags = (uint16_t)(type >> 16),
                                     .id = (uint64_t)get32(bytes + 8) | (uint64_t)get32(bytes + 12) << 32 };
    return 0;
}

void frame_head_write(uint8_t *bytes, uint16_t type, uint16_t flags, uint64_t id, size_t body_bytes) {
    put32(bytes, (uint32_t)(body_bytes + LENGTH_MIN));
    put32(bytes + 4, (uint32_t)type | (uint32_t)flags << 16);
    put32(bytes + 8, (uint32_t)(id & UINT32_MAX));
    put32(bytes + 12, (uint32_t)(id >> 32));
}

const struct frame_info *frame_info(uint16_t type) {
    static const struct frame_info infos[FRAME_TYPE_END] = {
#define INFO(constant, number, name, function, request, reply, roles, numbering)                                       \
    [number] = { #name, FRAME_##roles, FRAME_##numbering },
        FRAME_LIST(INFO)
#undef INFO
    };
    return type < FRAME_TYPE_END && infos[type].name ? &infos[type] : NULL;
}

const char *frame_type_name(uint16_t type) {
    const struct frame_info *info = frame_info(type);
    return info ? info->name : type == FRAME_EVENT ? "Event" : "?";
}
