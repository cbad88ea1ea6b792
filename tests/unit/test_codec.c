/* SPDX-License-Identifier: Apache-2.0
 *
 * Codec: what goes in comes out, for every type; what is left out takes its default; what is out of range is refused,
 * by the encoder and the decoder alike (SRV-2: the sentence says field, value and limit; nothing is written).
 */
#include "codec_fill.h"
#include "kvt.h"

#define SPACE (FRAME_LIMIT - FRAME_HEADER)

static struct fill fill;
static uint8_t body[SPACE + 64];
static char err[KVD_MESSAGE_BYTES];
static struct codec_arena *arena, *other;

static void begin(enum fill_how how) {
    fill.state = kvt_seed();
    fill.how = how;
    codec_arena_reset(arena);
    codec_arena_reset(other);
}

static bool request_round_trip(const struct msg_request *request) {
    struct msg_request back;
    size_t bytes = 0;
    codec_arena_reset(arena);
    codec_arena_reset(other);
    memset(&back, 0x5a, sizeof back);
    bool ok = KVT_OK(codec_encode_request(request, arena, body, SPACE, &bytes, err, sizeof err)) &&
              KVT_OK(codec_decode_request(request->type, body, bytes, other, &back, err, sizeof err)) &&
              KVT_TRUE(same_request(request, &back));
    if (!ok) printf("    %s: %s\n", frame_type_name(request->type), err);
    return ok;
}

static bool reply_round_trip(const struct msg_reply *reply) {
    struct msg_reply back;
    size_t bytes = 0;
    codec_arena_reset(arena);
    codec_arena_reset(other);
    memset(&back, 0x5a, sizeof back);
    bool ok = KVT_OK(codec_encode_reply(reply, arena, body, SPACE, &bytes, err, sizeof err)) &&
              KVT_OK(codec_decode_reply(reply->type, body, bytes, other, &back, err, sizeof err)) &&
              KVT_TRUE(same_reply(reply, &back));
    if (!ok) printf("    %s: %s\n", frame_type_name(reply->type), err);
    return ok;
}

/* ---- round trips -------------------------------------------------------------------------------------- */

static void every_request_comes_back(void) {
    begin(FILL_RANDOM);
    for (int i = 0; i < 300; i++)
        for (uint16_t type = FRAME_HELLO; type < FRAME_TYPE_END; type++) {
            struct msg_request request;
            fill.how = i % 2 ? FILL_RANDOM : FILL_SMALL;
            fill_request(&fill, type, &request);
            if (!request_round_trip(&request)) return;
        }
}

static void every_reply_comes_back(void) {
    begin(FILL_RANDOM);
    for (int i = 0; i < 300; i++)
        for (uint16_t type = FRAME_HELLO; type < FRAME_TYPE_END; type++) {
            struct msg_reply reply;
            fill.how = i % 2 ? FILL_RANDOM : FILL_SMALL;
            fill_reply(&fill, type, &reply);
            if (!reply_round_trip(&reply)) return;
            fill_refusal(&fill, type, &reply);
            if (!reply_round_trip(&reply)) return;
        }
}

static void every_event_comes_back(void) {
    begin(FILL_RANDOM);
    for (int i = 0; i < 5000; i++) {
        struct kvd_event event, back;
        size_t bytes;
        fill.how = i ? FILL_RANDOM : FILL_FULL;
        fill_event(&fill, &event);
        KVT_NEED(codec_encode_event(&event, body, SPACE, &bytes, err, sizeof err) == 0);
        KVT_NEED(codec_decode_event(body, bytes, &back, err, sizeof err) == 0);
        KVT_EQ_MEM(&event, &back, sizeof event);
    }
}

/* SRV-2: whatever a well-formed answer holds, it fits a frame and the arena; so does every request. */
static void srv_2_the_longest_of_every_type_fits_a_frame(void) {
    begin(FILL_FULL);
    for (uint16_t type = FRAME_HELLO; type < FRAME_TYPE_END; type++) {
        struct msg_request request;
        struct msg_reply reply;
        fill_request(&fill, type, &request);
        KVT_TRUE(request_round_trip(&request));
        fill_reply(&fill, type, &reply);
        if (type != FRAME_ROUND) KVT_TRUE(reply_round_trip(&reply));
    }
}

/* SRV-2: 256 refusals with sentences of full length are longer than a frame. The round has been done, so its answer is
 * sent all the same: numbers whole, sentences shortened. */
static void srv_2_long_sentences_of_a_round_are_shortened(void) {
    begin(FILL_FULL);
    struct msg_reply reply, back;
    size_t bytes;
    fill_reply(&fill, FRAME_ROUND, &reply);
    KVT_NEED(codec_encode_reply(&reply, arena, body, SPACE, &bytes, err, sizeof err) == 0);
    KVT_TRUE(bytes > SPACE - 4096);
    KVT_NEED(codec_decode_reply(FRAME_ROUND, body, bytes, other, &back, err, sizeof err) == 0);
    KVT_NEED(back.u.round.n == KVD_MAX_ROUND);
    for (uint32_t i = 0; i < KVD_MAX_ROUND; i++) {
        struct kvd_round_result *want = &fill.results[i], *got = &back.u.round.items[i];
        size_t length = strlen(got->message);
        KVT_TRUE(length >= 64 && strncmp(got->message, want->message, length) == 0);
        memset(want->message, 0, sizeof want->message);
        memset(got->message, 0, sizeof got->message);
        KVT_EQ_MEM(want, got, sizeof *want);
    }
}

static void srv_2_numbers_of_a_round_go_before_sentences(void) {
    begin(FILL_FULL);
    struct msg_reply reply, back;
    size_t bytes, least = 0;
    fill_reply(&fill, FRAME_ROUND, &reply);
    for (size_t space = 15000; !least && space < SPACE; space++) {
        codec_arena_reset(arena);
        int r = codec_encode_reply(&reply, arena, body, space, &bytes, err, sizeof err);
        if (r == 0) least = space;
        else if (!KVT_EQ_I(r, CODEC_E_SPACE)) return;
    }
    KVT_NEED(least > 0);
    KVT_NEED(codec_decode_reply(FRAME_ROUND, body, bytes, other, &back, err, sizeof err) == 0);
    for (uint32_t i = 0; i < KVD_MAX_ROUND; i++) {
        KVT_EQ_STR(back.u.round.items[i].message, "");
        KVT_EQ(back.u.round.items[i].status, KVD_UNAUTHENTICATED);
    }
}

/* ---- defaults ----------------------------------------------------------------------------------------------- */

/* proto3: an empty body is a message of defaults; "+1" fields then say "not asked". */
static void empty_bodies_take_defaults(void) {
    begin(FILL_SMALL);
    for (uint16_t type = FRAME_DESCRIBE_STORE; type < FRAME_TYPE_END; type++) {
        struct msg_request request, zero = { .type = type };
        KVT_OK(codec_decode_request(type, NULL, 0, arena, &request, err, sizeof err));
        KVT_TRUE(same_request(&request, &zero));
    }
    struct msg_reply reply;
    KVT_OK(codec_decode_reply(FRAME_ACTIVATE, NULL, 0, arena, &reply, err, sizeof err));
    KVT_EQ(reply.u.activated.state_slot, KVD_NONE);
    KVT_EQ(reply.u.activated.source_state_slot, KVD_NONE);
    KVT_OK(codec_decode_reply(FRAME_LIST_SEQUENCES, NULL, 0, arena, &reply, err, sizeof err));
    KVT_EQ(reply.u.sequences.next_cursor, KVD_UNCHANGED);
    KVT_OK(codec_decode_reply(FRAME_DESCRIBE_STORE, NULL, 0, arena, &reply, err, sizeof err));
    KVT_NEED(reply.u.store != NULL);
    KVT_EQ(reply.u.store->n_pools, 0);
    KVT_EQ_STR(reply.u.store->fd_socket, "");
    KVT_OK(codec_decode_reply(FRAME_AUDIT, NULL, 0, arena, &reply, err, sizeof err));
    KVT_TRUE(reply.u.audit != NULL);
}

/* The body of a refusal does not count, whatever it holds. */
static void refusals_have_no_body(void) {
    begin(FILL_SMALL);
    struct msg_reply reply = { .type = FRAME_STATS, .status = KVD_UNAVAILABLE, .message = "draining", .epoch = 9 },
                     back;
    memset(&reply.u, 0xff, sizeof reply.u);
    size_t bytes;
    KVT_OK(codec_encode_reply(&reply, arena, body, SPACE, &bytes, err, sizeof err));
    KVT_TRUE(bytes < 32);
    KVT_OK(codec_decode_reply(FRAME_STATS, body, bytes, arena, &back, err, sizeof err));
    KVT_EQ(back.status, KVD_UNAVAILABLE);
    KVT_EQ_STR(back.message, "draining");
    KVT_EQ(back.epoch, 9);
    KVT_EQ(back.u.stats.sequences, 0);
}

/* A sentence may quote what a client sent; an answer does not fail for that. */
static void sentences_are_made_printable(void) {
    begin(FILL_SMALL);
    struct msg_reply reply = { .type = FRAME_FENCE, .status = KVD_NOT_FOUND, .message = "name \xff\x01\n is unknown" },
                     back;
    size_t bytes;
    KVT_OK(codec_encode_reply(&reply, arena, body, SPACE, &bytes, err, sizeof err));
    KVT_OK(codec_decode_reply(FRAME_FENCE, body, bytes, arena, &back, err, sizeof err));
    KVT_EQ_STR(back.message, "name ??? is unknown");
}

/* ---- refusals of the encoder ------------------------------------------------------------------------------------ */

static void refuse_encode(const struct msg_request *request, int code, const char *part, const char *more) {
    size_t bytes = 4711;
    codec_arena_reset(arena);
    KVT_EQ_I(codec_encode_request(request, arena, body, SPACE, &bytes, err, sizeof err), code);
    KVT_EQ(bytes, 4711);
    KVT_HAS(err, frame_type_name(request->type));
    KVT_HAS(err, part);
    KVT_HAS(err, more);
}

static void srv_2_encoder_refuses_what_the_decoder_would(void) {
    begin(FILL_SMALL);
    struct msg_request q = { .type = FRAME_HELLO, .u.hello = { .protocol = 1, .role = 5, .name = "engine" } };
    refuse_encode(&q, CODEC_E_VALUE, "role is 5", "from 1 to 4");
    q.u.hello.role = KVD_ROLE_WORKER;
    q.u.hello.rank = 8;
    refuse_encode(&q, CODEC_E_VALUE, "rank is 8", "to 7");
    q.u.hello.rank = 0;
    strcpy(q.u.hello.name, "an engine");
    refuse_encode(&q, CODEC_E_VALUE, "name has the byte 0x20 at 2", "letters, digits");
    memset(q.u.hello.name, 'x', sizeof q.u.hello.name);
    refuse_encode(&q, CODEC_E_LIMIT, "name has 64 characters", "63");
    q.u.hello.name[0] = '\0';
    refuse_encode(&q, CODEC_E_VALUE, "name is empty", "give one");
    q = (struct msg_request){ .type = FRAME_ACTIVATE, .u.activation.n_victims = 4097 };
    refuse_encode(&q, CODEC_E_LIMIT, "victims has 4097 entries", "4096");
    q = (struct msg_request){ .type = FRAME_FIND, .u.find = { .n = 1025, .max = 1, .digests = fill.digests } };
    refuse_encode(&q, CODEC_E_LIMIT, "digests has 1025 entries", "1024");
    q = (struct msg_request){ .type = FRAME_FIND, .u.find = { .n = 1, .max = 17, .digests = fill.digests } };
    refuse_encode(&q, CODEC_E_VALUE, "max is 17", "16");
    q = (struct msg_request){ .type = FRAME_FIND, .u.find = { .n = 1, .max = 1 } };
    refuse_encode(&q, CODEC_E_VALUE, "digests", "no address");
    q = (struct msg_request){ .type = FRAME_ROUND, .u.round = { 257, fill.items } };
    refuse_encode(&q, CODEC_E_LIMIT, "sequence has 257 entries", "256");
    q = (struct msg_request){ .type = FRAME_ROUND, .u.round = { 1, NULL } };
    refuse_encode(&q, CODEC_E_VALUE, "1 items", "no address");
    q = (struct msg_request){ .type = FRAME_CHECKPOINT, .u.checkpoint.tail.n = 64 };
    refuse_encode(&q, CODEC_E_LIMIT, "tail has 64 entries", "63");
    q = (struct msg_request){ .type = FRAME_OPEN_GROUP, .u.group.n = 9 };
    refuse_encode(&q, CODEC_E_LIMIT, "members has 9 entries", "8");
    q = (struct msg_request){ .type = FRAME_DROP, .u.drop.tier = 2 };
    refuse_encode(&q, CODEC_E_VALUE, "tier is 2", "from 0 to 1");
    q = (struct msg_request){ .type = FRAME_LIST_SESSIONS, .u.list.max = 257 };
    refuse_encode(&q, CODEC_E_VALUE, "max is 257", "128");
}

static void srv_2_unknown_types_are_refused(void) {
    static const uint16_t types[] = { 0, FRAME_TYPE_END, FRAME_EVENT, 255, UINT16_MAX };
    char known[32];
    snprintf(known, sizeof known, "known are 1 to %d", FRAME_TYPE_END - 1);
    begin(FILL_SMALL);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        struct msg_request q = { .type = types[i] };
        struct msg_reply y = { .type = types[i] };
        size_t bytes;
        KVT_EQ_I(codec_encode_request(&q, arena, body, SPACE, &bytes, err, sizeof err), CODEC_E_TYPE);
        KVT_EQ_I(codec_encode_reply(&y, arena, body, SPACE, &bytes, err, sizeof err), CODEC_E_TYPE);
        KVT_EQ_I(codec_decode_reply(types[i], NULL, 0, arena, &y, err, sizeof err), CODEC_E_TYPE);
        KVT_EQ_I(codec_decode_request(types[i], NULL, 0, arena, &q, err, sizeof err), CODEC_E_TYPE);
        KVT_HAS(err, known);
    }
}

/* SRV-2: an unknown type can be told so: the header of a reply is the same in all. */
static void srv_2_unknown_types_can_be_refused(void) {
    begin(FILL_SMALL);
    struct msg_reply y = { .type = 999, .status = KVD_UNIMPLEMENTED, .message = "type 999 is unknown", .epoch = 3 },
                     back;
    size_t bytes;
    KVT_OK(codec_encode_reply(&y, arena, body, SPACE, &bytes, err, sizeof err));
    KVT_OK(codec_decode_reply(FRAME_GOODBYE, body, bytes, arena, &back, err, sizeof err));
    KVT_EQ(back.status, KVD_UNIMPLEMENTED);
    KVT_EQ_STR(back.message, "type 999 is unknown");
}

/* Never a byte past `space`: every space below the body's size is refused, and what follows the buffer stays. */
static void encoders_never_pass_their_space(void) {
    begin(FILL_SMALL);
    for (uint16_t type = FRAME_HELLO; type < FRAME_TYPE_END; type++) {
        struct msg_request q;
        struct msg_reply y;
        size_t need, bytes;
        fill_request(&fill, type, &q);
        KVT_NEED(codec_encode_request(&q, arena, body, SPACE, &need, err, sizeof err) == 0);
        for (size_t space = 0; space <= need; space++) {
            codec_arena_reset(arena);
            memset(body, 0xee, need + 8);
            int r = codec_encode_request(&q, arena, body, space, &bytes, err, sizeof err);
            KVT_EQ_I(r, space < need ? CODEC_E_SPACE : 0);
            KVT_TRUE(body[space] == 0xee && body[need] == 0xee);
        }
        if (type == FRAME_ROUND) continue; /* shortens its sentences instead */
        fill_reply(&fill, type, &y);
        KVT_NEED(codec_encode_reply(&y, arena, body, SPACE, &need, err, sizeof err) == 0);
        for (size_t space = 0; space <= need; space++) {
            codec_arena_reset(arena);
            memset(body, 0xee, need + 8);
            int r = codec_encode_reply(&y, arena, body, space, &bytes, err, sizeof err);
            KVT_EQ_I(r, space < need ? CODEC_E_SPACE : 0);
            KVT_TRUE(body[space] == 0xee && body[need] == 0xee);
        }
    }
}

/* Sentences are optional and cut at the caller's buffer. */
static void error_buffers_may_be_short_or_missing(void) {
    begin(FILL_SMALL);
    struct msg_request q = { .type = FRAME_OPEN_GROUP, .u.group.n = 9 };
    size_t bytes;
    char tiny[8] = "xxxxxxx";
    KVT_EQ_I(codec_encode_request(&q, arena, body, SPACE, &bytes, NULL, 0), CODEC_E_LIMIT);
    for (size_t n = 1; n <= sizeof tiny; n++) {
        KVT_EQ_I(codec_encode_request(&q, arena, body, SPACE, &bytes, tiny, n), CODEC_E_LIMIT);
        KVT_EQ(strlen(tiny), n - 1);
    }
}

/* ---- PROTOCOL.md ------------------------------------------------------------------------------------------------ */

static char page[1 << 16];

static bool read_page(bool with_spaces) {
    FILE *file = fopen(PROTOCOL_MD, "r");
    if (!KVT_TRUE(file != NULL)) return false;
    size_t n = fread(page, 1, sizeof page - 1, file), kept = 0;
    fclose(file);
    for (size_t i = 0; i < n; i++)
        if (with_spaces || !strchr(" \n", page[i])) page[kept++] = page[i];
    page[kept] = '\0';
    return KVT_TRUE(n > 1000 && n < sizeof page - 1);
}

/* The tables of the page are those of the headers. */
static void protocol_page_tables(void) {
    char row[256];
    KVT_NEED(read_page(true));
#define ROW(name, code, again, meaning, action)                                                                        \
    snprintf(row, sizeof row, "| %d | %s | %s | %s | %s |\n", code, #name, meaning, again ? "yes" : "no", action);     \
    KVT_TRUE(strstr(page, row) != NULL);
    KVD_STATUS_LIST(ROW)
#undef ROW
    static const struct {
        const char *what;
        unsigned limit;
    } limits[] = {
        { "| frame | %u bytes", FRAME_LIMIT },
        { "| sequences in a Round | %u |", KVD_MAX_ROUND },
        { "| digests in a message | %u |", KVD_MAX_DIGESTS },
        { "| victims of an activation or a checkpoint | %u |", KVD_MAX_VICTIMS },
        { "| victims of a list for growth | %u |", KVD_MAX_GROWTH },
        { "| hits of a Find | %u |", KVD_MAX_HITS },
        { "| objects in a list answer, planes in an answer | %u", KVD_MAX_LIST },
        { "| tokens of a tail | %u |", KVD_TAIL_TOKENS },
        { "| members of a group | %u |", KVD_MAX_RANKS },
        { "| pools of a store | %u |", KVD_MAX_POOLS },
        { "| name, label, library, version | %u characters", KVD_NAME_BYTES - 1 },
        { "| sentence | %u characters", KVD_MESSAGE_BYTES - 1 },
        { "| audit text | %u characters", sizeof((struct kvd_audit *)0)->text - 1 },
    };
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        char *number = row + snprintf(row, sizeof row, "%.*s", (int)strcspn(limits[i].what, "%"), limits[i].what);
        snprintf(number, sizeof row - (size_t)(number - row), "%u%s", limits[i].limit, strchr(limits[i].what, '%') + 2);
        KVT_HAS(page, row);
    }
}

static void page_has_frame(const struct msg_request *q, uint64_t id) {
    uint8_t frame[256];
    char hex[2 * sizeof frame + 1];
    size_t n;
    codec_arena_reset(arena);
    KVT_NEED(codec_encode_request(q, arena, frame + FRAME_HEADER, sizeof frame - FRAME_HEADER, &n, err, sizeof err) ==
             0);
    frame_head_write(frame, q->type, 0, id, n);
    for (size_t i = 0; i < FRAME_HEADER + n; i++) snprintf(hex + 2 * i, 3, "%02x", frame[i]);
    KVT_TRUE(strstr(page, hex) != NULL);
}

/* The bytes that the page shows are those of the codec. */
static void protocol_page_examples(void) {
    KVT_NEED(read_page(false));
    struct msg_request hello = {
        .type = FRAME_HELLO, .u.hello = { .protocol = KVD_PROTOCOL_VERSION, .role = KVD_ROLE_WORKER, .name = "engine" }
    };
    page_has_frame(&hello, 1);
    struct kvd_round_item item = {
        .sequence = { 0x0000000300000002 },
        .pool[0] = { .ask = KVD_ROUND_COMMIT | KVD_ROUND_ENSURE, .commit = 128, .ensure = 192 },
    };
    struct msg_request round = { .type = FRAME_ROUND,
                                 .header = { .session = { 0x0000000100000001 }, .sequence = 1 },
                                 .u.round = { 1, &item } };
    page_has_frame(&round, 2);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = {
        KVT_CASE(every_request_comes_back),
        KVT_CASE(every_reply_comes_back),
        KVT_CASE(every_event_comes_back),
        KVT_CASE(srv_2_the_longest_of_every_type_fits_a_frame),
        KVT_CASE(srv_2_long_sentences_of_a_round_are_shortened),
        KVT_CASE(srv_2_numbers_of_a_round_go_before_sentences),
        KVT_CASE(empty_bodies_take_defaults),
        KVT_CASE(refusals_have_no_body),
        KVT_CASE(sentences_are_made_printable),
        KVT_CASE(srv_2_encoder_refuses_what_the_decoder_would),
        KVT_CASE(srv_2_unknown_types_are_refused),
        KVT_CASE(srv_2_unknown_types_can_be_refused),
        KVT_CASE(encoders_never_pass_their_space),
        KVT_CASE(error_buffers_may_be_short_or_missing),
        KVT_CASE(protocol_page_tables),
        KVT_CASE(protocol_page_examples),
        { 0 },
    };
    arena = codec_arena_new();
    other = codec_arena_new();
    int r = arena && other ? kvt_main("codec", cases, argc, argv) : 2;
    arena = codec_arena_free(arena);
    other = codec_arena_free(other);
    return r;
}
