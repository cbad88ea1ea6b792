/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames: the header's bytes, and refusals that are known before anything is allocated (SRV-2).
 */
#include "frame.h"
#include "kvt.h"

/* The bytes of PROTOCOL.md, so that another language's client is right. */
static void header_bytes(void) {
    static const uint8_t want[FRAME_HEADER] = { 0x11, 0, 0, 0, 10, 0, 1, 0, 8, 7, 6, 5, 4, 3, 2, 1 };
    uint8_t got[FRAME_HEADER];
    frame_head_write(got, FRAME_ROUND, FRAME_F_REPLY, 0x0102030405060708, 5);
    KVT_EQ_MEM(got, want, sizeof want);
}

static void header_round_trip(void) {
    uint64_t state = kvt_seed();
    for (int i = 0; i < 10000; i++) {
        uint8_t bytes[FRAME_HEADER];
        struct frame_head head;
        uint16_t type = (uint16_t)kvt_random(&state), flags = (uint16_t)kvt_random(&state);
        uint64_t id = kvt_random(&state);
        uint32_t body = kvt_below(&state, FRAME_LIMIT - FRAME_HEADER + 1);
        frame_head_write(bytes, type, flags, id, body);
        KVT_OK(frame_head_read(bytes, sizeof bytes, &head));
        KVT_EQ(head.length, body + 12);
        KVT_EQ(head.type, type);
        KVT_EQ(head.flags, flags);
        KVT_EQ(head.id, id);
    }
}

/* SRV-2: a length that cannot be is refused as soon as its four bytes are there, and nothing is written. */
static void srv_2_length_is_judged_first(void) {
    static const struct {
        uint32_t length;
        int want;
    } cases[] = {
        { 0, FRAME_E_LENGTH },
        { 11, FRAME_E_LENGTH },
        { 12, 0 },
        { 13, 0 },
        { FRAME_LIMIT - 4, 0 },
        { FRAME_LIMIT - 3, FRAME_E_LENGTH },
        { FRAME_LIMIT, FRAME_E_LENGTH },
        { 0x7fffffff, FRAME_E_LENGTH },
        { 0x80000000, FRAME_E_LENGTH },
        { UINT32_MAX, FRAME_E_LENGTH },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t bytes[FRAME_HEADER] = { 0 };
        for (unsigned k = 0; k < 4; k++) bytes[k] = (uint8_t)(cases[i].length >> 8 * k);
        struct frame_head head = { .length = 99, .type = 98, .flags = 97, .id = 96 };
        KVT_EQ_I(frame_head_read(bytes, FRAME_HEADER, &head), cases[i].want);
        KVT_EQ(head.length, cases[i].want ? 99 : cases[i].length);
        KVT_EQ_I(frame_head_read(bytes, 4, &head), cases[i].want ? cases[i].want : FRAME_E_SHORT);
    }
}

static void short_headers_ask_for_more(void) {
    uint8_t bytes[FRAME_HEADER];
    frame_head_write(bytes, FRAME_STATS, 0, 1, 0);
    for (size_t n = 0; n < FRAME_HEADER; n++) {
        struct frame_head head = { .length = 99 };
        KVT_EQ_I(frame_head_read(bytes, n, &head), FRAME_E_SHORT);
        KVT_EQ(head.length, 99);
    }
}

static void every_type_has_a_name_of_its_own(void) {
    for (uint16_t a = FRAME_HELLO; a < FRAME_TYPE_END; a++) {
        KVT_TRUE(frame_type_name(a)[0] >= 'A' && frame_type_name(a)[0] <= 'Z');
        for (uint16_t b = FRAME_HELLO; b < a; b++) KVT_TRUE(strcmp(frame_type_name(a), frame_type_name(b)) != 0);
    }
    KVT_EQ_STR(frame_type_name(FRAME_ACTIVATE), "Activate");
    KVT_EQ_STR(frame_type_name(FRAME_EVENT), "Event");
    KVT_EQ_STR(frame_type_name(0), "?");
    KVT_EQ_STR(frame_type_name(FRAME_TYPE_END), "?");
    KVT_EQ_STR(frame_type_name(UINT16_MAX), "?");
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = {
        KVT_CASE(header_bytes),
        KVT_CASE(header_round_trip),
        KVT_CASE(srv_2_length_is_judged_first),
        KVT_CASE(short_headers_ask_for_more),
        KVT_CASE(every_type_has_a_name_of_its_own),
        { 0 },
    };
    return kvt_main("frame", cases, argc, argv);
}
