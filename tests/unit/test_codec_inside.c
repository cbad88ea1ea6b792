/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the codec: the arena's cap and reuse, shortage of memory at every allocation, and maps that cover their
 * messages.
 */
#include <stdlib.h>

#include "codec_fill.h"
#include "codec_internal.h"
#include "kvt.h"

#define SPACE (FRAME_LIMIT - FRAME_HEADER)

static struct fill fill;
static uint8_t body[SPACE];
static char err[KVD_MESSAGE_BYTES];

/* ---- arena ------------------------------------------------------------------------------------------ */

static void arena_is_aligned_zeroed_and_apart(void) {
    struct codec_arena *arena = codec_arena_new();
    KVT_NEED(arena != NULL);
    uint64_t state = kvt_seed();
    for (int round = 0; round < 20; round++) {
        struct {
            uint8_t *p;
            size_t n;
            uint8_t mark;
        } taken[200];
        codec_arena_reset(arena);
        for (int i = 0; i < 200; i++) {
            size_t n = kvt_below(&state, i % 16 ? 300 : 30000);
            uint8_t *p = codec_arena_alloc(arena, n);
            KVT_NEED(p != NULL);
            KVT_EQ((uintptr_t)p % 16, 0);
            for (size_t k = 0; k < n; k++)
                if (p[k] != 0) {
                    KVT_EQ(p[k], 0);
                    return;
                }
            taken[i].p = p, taken[i].n = n, taken[i].mark = (uint8_t)(i + 1);
            memset(p, taken[i].mark, n);
        }
        for (int i = 0; i < 200; i++)
            for (size_t k = 0; k < taken[i].n; k++)
                if (taken[i].p[k] != taken[i].mark) {
                    KVT_EQ(taken[i].p[k], taken[i].mark);
                    return;
                }
    }
    KVT_TRUE(codec_arena_free(arena) == NULL);
    KVT_TRUE(codec_arena_free(NULL) == NULL);
}

/* Whether an allocation succeeds depends on what was taken since the reset, not on what came before it. */
static void arena_cap_is_exact(void) {
    static const size_t sizes[] = { 16, 48, 1024, 16384, 65536, 262144, CODEC_ARENA_LIMIT };
    struct codec_arena *arena = codec_arena_new();
    KVT_NEED(arena != NULL);
    uint64_t state = kvt_seed();
    for (int round = 0; round < 50; round++) {
        size_t size = sizes[kvt_below(&state, 7)], taken = 0;
        codec_arena_reset(arena);
        while (codec_arena_take(arena, size)) taken += size;
        KVT_EQ(taken, CODEC_ARENA_LIMIT / size * size);
        KVT_TRUE(arena->refused);
    }
    codec_arena_reset(arena);
    KVT_FALSE(arena->refused);
    KVT_TRUE(codec_arena_alloc(arena, CODEC_ARENA_LIMIT + 1) == NULL);
    KVT_TRUE(codec_arena_alloc(arena, SIZE_MAX) == NULL);
    KVT_TRUE(codec_arena_alloc(arena, SIZE_MAX - 15) == NULL);
    KVT_TRUE(codec_arena_alloc(arena, 1) != NULL);
    codec_arena_free(arena);
}

/* In steady state nothing is allocated: the same requests find the same blocks. */
static void arena_keeps_its_blocks(void) {
    struct codec_arena *arena = codec_arena_new();
    KVT_NEED(arena != NULL);
    void *first[300];
    for (int round = 0; round < 5; round++) {
        codec_arena_reset(arena);
        for (int i = 0; i < 300; i++) {
            void *p = codec_arena_take(arena, 2000);
            KVT_NEED(p != NULL);
            if (round == 0) first[i] = p;
            KVT_TRUE(first[i] == p);
        }
    }
    codec_arena_free(arena);
}

/* ---- shortage -------------------------------------------------------------------------------------------- */

/* Every cap from nothing to just too little is refused with LIMIT and leaves the output alone; enough is enough. All
 * takings are multiples of 16, so this fails each allocation once. */
static void decode_with_too_little_memory(void) {
    struct codec_arena *arena = codec_arena_new();
    KVT_NEED(arena != NULL);
    fill.state = kvt_seed();
    fill.how = FILL_SMALL;
    for (uint16_t type = FRAME_HELLO; type < FRAME_TYPE_END; type++) {
        struct msg_request q;
        struct msg_reply y;
        size_t n;
        codec_arena_set_limit(arena, CODEC_ARENA_LIMIT);
        codec_arena_reset(arena);
        fill_request(&fill, type, &q);
        KVT_NEED(codec_encode_request(&q, arena, body, SPACE, &n, err, sizeof err) == 0);
        codec_arena_reset(arena);
        KVT_NEED(codec_decode_request(type, body, n, arena, &q, err, sizeof err) == 0);
        size_t need = arena->taken;
        for (size_t limit = 0; limit <= need; limit += 16) {
            codec_arena_reset(arena);
            codec_arena_set_limit(arena, limit);
            q.type = 4711;
            KVT_EQ_I(codec_decode_request(type, body, n, arena, &q, err, sizeof err), limit < need ? CODEC_E_LIMIT : 0);
            KVT_EQ(q.type, limit < need ? 4711 : type);
            if (limit < need) KVT_HAS(err, "may take once unpacked");
        }
        codec_arena_set_limit(arena, CODEC_ARENA_LIMIT);
        codec_arena_reset(arena);
        fill_reply(&fill, type, &y);
        KVT_NEED(codec_encode_reply(&y, arena, body, SPACE, &n, err, sizeof err) == 0);
        codec_arena_reset(arena);
        KVT_NEED(codec_decode_reply(type, body, n, arena, &y, err, sizeof err) == 0);
        need = arena->taken;
        for (size_t limit = 0; limit <= need; limit += 16) {
            codec_arena_reset(arena);
            codec_arena_set_limit(arena, limit);
            y.type = 4711;
            KVT_EQ_I(codec_decode_reply(type, body, n, arena, &y, err, sizeof err), limit < need ? CODEC_E_LIMIT : 0);
            KVT_EQ(y.type, limit < need ? 4711 : type);
        }
    }
    codec_arena_free(arena);
}

static void encode_with_too_little_memory(void) {
    struct codec_arena *arena = codec_arena_new();
    KVT_NEED(arena != NULL);
    fill.state = kvt_seed();
    fill.how = FILL_SMALL;
    for (uint16_t type = FRAME_HELLO; type < FRAME_TYPE_END; type++) {
        struct msg_request q;
        struct msg_reply y;
        size_t n;
        codec_arena_set_limit(arena, CODEC_ARENA_LIMIT);
        codec_arena_reset(arena);
        fill_request(&fill, type, &q);
        KVT_NEED(codec_encode_request(&q, arena, body, SPACE, &n, err, sizeof err) == 0);
        size_t need = arena->taken;
        for (size_t limit = 0; limit <= need; limit += 16) {
            codec_arena_reset(arena);
            codec_arena_set_limit(arena, limit);
            KVT_EQ_I(codec_encode_request(&q, arena, body, SPACE, &n, err, sizeof err),
                     limit < need ? CODEC_E_LIMIT : 0);
        }
        codec_arena_set_limit(arena, CODEC_ARENA_LIMIT);
        codec_arena_reset(arena);
        fill_reply(&fill, type, &y);
        KVT_NEED(codec_encode_reply(&y, arena, body, SPACE, &n, err, sizeof err) == 0);
        need = arena->taken;
        for (size_t limit = 0; limit <= need; limit += 16) {
            codec_arena_reset(arena);
            codec_arena_set_limit(arena, limit);
            KVT_EQ_I(codec_encode_reply(&y, arena, body, SPACE, &n, err, sizeof err), limit < need ? CODEC_E_LIMIT : 0);
        }
    }
    codec_arena_free(arena);
}

/* ---- maps ---------------------------------------------------------------------------------------------------- */

static bool custom(const struct codec_map *map) {
    for (uint32_t i = 0; i < map->n; i++)
        if (map->fields[i].kind == CODEC_CUSTOM) return true;
    return false;
}

/* Every field of the message has one row, which agrees with the generated descriptor; no two rows share a field of the
 * plain struct; and so down. */
static void check_map(const struct codec_map *map) {
    bool headless = map->pb->n_fields && !strcmp(map->pb->fields[0].name, "header") &&
                    strcmp(map->fields[0].name, "header"); /* inside of another message */
    if (!custom(map)) KVT_EQ(map->n + headless, map->pb->n_fields);
    for (uint32_t i = 0; i < map->n; i++) {
        const struct codec_field *f = &map->fields[i];
        if (f->kind == CODEC_CUSTOM) continue;
        const ProtobufCFieldDescriptor *d = protobuf_c_message_descriptor_get_field_by_name(map->pb, f->name);
        KVT_NEED(d != NULL);
        bool many =
            f->kind == CODEC_U32S || f->kind == CODEC_U64S || f->kind == CODEC_SUBS || f->kind == CODEC_SUBS_NEW;
        KVT_EQ(d->offset, f->pb);
        KVT_EQ(d->label == PROTOBUF_C_LABEL_REPEATED, many);
        if (many) KVT_EQ(d->quantifier_offset, f->pb_n);
        if (f->sub) KVT_TRUE(d->type == PROTOBUF_C_TYPE_MESSAGE && d->descriptor == f->sub->pb);
        if (f->kind == CODEC_U32S || f->kind == CODEC_U64S) KVT_TRUE(d->flags & PROTOBUF_C_FIELD_FLAG_PACKED);
        for (uint32_t k = 0; k < i; k++)
            KVT_TRUE(map->fields[k].kind == CODEC_CUSTOM ||
                     (map->fields[k].pb != f->pb && (map->fields[k].at != f->at || k == 0)));
        if (f->sub) check_map(f->sub);
    }
}

static void maps_cover_their_messages(void) {
    for (uint16_t type = FRAME_HELLO; type < FRAME_TYPE_END; type++) {
        KVT_NEED(codec_request_map(type) && codec_reply_map(type));
        check_map(codec_request_map(type));
        check_map(codec_reply_map(type));
    }
    check_map(&codec_event_map);
}

/* ---- PROTOCOL.md ------------------------------------------------------------------------------------------------ */

static void append_roles(char *text, size_t bytes, unsigned roles) {
    static const char *const names[] = { "observer", "worker", "scheduler", "admin" };
    size_t n = strlen(text);
    if (roles == FRAME_PEERS) snprintf(text + n, bytes - n, "any peer that the configuration lets in");
    if (roles == FRAME_ANYONE) snprintf(text + n, bytes - n, "all");
    if (roles == FRAME_PEERS || roles == FRAME_ANYONE) return;
    const char *comma = "";
    for (uint32_t i = 0; i < 4; i++) {
        if (!(roles & 1u << (KVD_ROLE_OBSERVER + i))) continue;
        n += (size_t)snprintf(text + n, bytes - n, "%s%s", comma, names[i]);
        comma = ", ";
    }
}

/* The page's table of requests is FRAME_LIST: numbers, names, messages, numbering, roles, and nothing else. */
static void protocol_page_has_the_list_of_requests(void) {
    static const char *const changes[] = { "", "may ", "yes ", "yes " };
    static char page[1 << 16];
    char rows[1 << 13] = "\n|---|---|---|---|---|---|\n";
    FILE *file = fopen(PROTOCOL_MD, "r");
    KVT_NEED(file != NULL);
    page[fread(page, 1, sizeof page - 1, file)] = '\0';
    fclose(file);
    for (uint16_t type = FRAME_HELLO; type < FRAME_TYPE_END; type++) {
        const struct frame_info *info = frame_info(type);
        size_t n = strlen(rows);
        KVT_NEED(info != NULL);
        snprintf(rows + n, sizeof rows - n, "| %u | %s | %s | %s | %s| ", type, info->name,
                 codec_request_map(type)->pb->short_name, codec_reply_map(type)->pb->short_name,
                 changes[info->numbering]);
        append_roles(rows, sizeof rows, info->roles);
        strncat(rows, " |\n", sizeof rows - strlen(rows) - 1);
    }
    strncat(rows, "\n", sizeof rows - strlen(rows) - 1);
    if (!KVT_TRUE(strstr(page, rows) != NULL)) printf("the table of requests in PROTOCOL.md should be:\n%s", rows);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = {
        KVT_CASE(arena_is_aligned_zeroed_and_apart),
        KVT_CASE(arena_cap_is_exact),
        KVT_CASE(arena_keeps_its_blocks),
        KVT_CASE(decode_with_too_little_memory),
        KVT_CASE(encode_with_too_little_memory),
        KVT_CASE(maps_cover_their_messages),
        KVT_CASE(protocol_page_has_the_list_of_requests),
        { 0 },
    };
    return kvt_main("codec_inside", cases, argc, argv);
}
