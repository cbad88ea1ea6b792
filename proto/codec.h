/* SPDX-License-Identifier: Apache-2.0
 *
 * Codec: protobuf bodies <-> plain structs of kvd_types.h. The only code that sees generated headers.
 *
 * Decoding allocates from an arena with a hard cap (CODEC_ARENA_LIMIT), so that a small frame cannot take much memory.
 * Everything that a decoded struct points to lives in that arena until codec_arena_reset. Decoding checks every
 * repeated field, fixed-size bytes field, enum and name against its limit. It ignores unknown fields, which a newer
 * client may send, up to the arena's cap. Missing fields take proto3 defaults.
 *
 * Errors: 0 or a positive CODEC_E_* with a sentence in err. Threads: an arena belongs to one thread at a time;
 * functions are pure otherwise.
 */
#ifndef KVD_PROTO_CODEC_H
#define KVD_PROTO_CODEC_H

#include <stddef.h>
#include <stdint.h>

#include "frame.h"
#include "kvd_types.h"

#define CODEC_ARENA_LIMIT (1u << 20)

enum codec_error {
    CODEC_E_MALFORMED = 1, /* not protobuf, or not this message */
    CODEC_E_LIMIT = 2,     /* a count or size over its limit, or the arena is full */
    CODEC_E_VALUE = 3,     /* a field has a value outside its type (enum, name characters, digest length) */
    CODEC_E_TYPE = 4,      /* unknown frame type */
    CODEC_E_SPACE = 5      /* encode: does not fit the buffer */
};

struct codec_arena;                        /* grows by blocks to the limit; blocks are kept over resets */
struct codec_arena *codec_arena_new(void); /* NULL: no memory */
void codec_arena_reset(struct codec_arena *arena);
struct codec_arena *codec_arena_free(struct codec_arena *arena);  /* returns NULL */
void *codec_arena_alloc(struct codec_arena *arena, size_t bytes); /* zeroed, 16-byte aligned; NULL past the cap */
void *codec_arena_take(struct codec_arena *arena, size_t bytes);  /* the same, not zeroed */
/* n results of a Round, zeroed. Of a message only the first byte is: a message is long, and few results have one. */
struct kvd_round_result *codec_arena_results(struct codec_arena *arena, size_t n);

/* Common part of every request but Hello. */
struct msg_header {
    kvd_session_id session;
    uint64_t sequence;    /* 1, 2, 3, ... for mutating requests of a session; 0 for queries */
    uint64_t deadline_ns; /* CLOCK_MONOTONIC; 0 = none */
    uint64_t epoch;       /* instance the client believes it talks to; 0 = any */
};

struct msg_request {
    uint16_t type; /* enum frame_type */
    struct msg_header header;
    union {
        struct kvd_hello hello;
        struct kvd_planes_request planes;
        struct kvd_activation activation; /* Plan, Activate */
        struct kvd_find find;
        struct kvd_list list; /* four lists */
        struct {
            uint32_t n;
            struct kvd_round_item *items;
        } round;
        struct kvd_names names;
        struct kvd_checkpoint checkpoint;
        struct kvd_finish finish;
        struct {
            kvd_continuation continuation;
            uint32_t retention;
        } continuation;         /* Release, SetRetention */
        struct kvd_group group; /* OpenGroup */
        kvd_group_id group_id;  /* CloseGroup */
        kvd_session_id session; /* Fence */
        bool drain;
        uint32_t event_mask; /* Subscribe */
        struct kvd_demote demote;
        struct kvd_domain_release release_domain;
        kvd_continuation prefetch;
        struct kvd_drop drop; /* DropReplica */
        struct {
            kvd_continuation continuation;
            uint32_t frontier;
        } shorten;
        struct kvd_choose choose;
        struct kvd_growth_victims growth; /* SetGrowthVictims */
        struct {
            uint64_t activate;     /* number of the request, or */
            kvd_sequence sequence; /* what it makes */
        } cancel;
        struct kvd_lend lend;               /* LendPages */
        struct kvd_lent_names lent_names;   /* NameLent */
        struct kvd_lent_return lent_return; /* ReturnLent */
        struct {
            kvd_continuation continuation;
            uint32_t first;
        } read_chain;
        struct {
            uint64_t cursor;
            uint32_t max;
        } changes;                 /* ListChanges */
        uint32_t check_cold;       /* CheckColdTier: objects */
        struct kvd_cold_want cold; /* FindCold, LoadCold */
    } u;
};

struct msg_reply {
    uint16_t type;
    uint32_t status; /* enum kvd_status; the body below counts only when OK */
    char message[KVD_MESSAGE_BYTES];
    uint64_t epoch;
    uint64_t next_sequence; /* the number that the session expects next; 0: there is no session */
    union {
        struct kvd_hello_reply hello;
        struct kvd_ring_info ring; /* OpenRing */
        struct kvd_store_info *store;
        struct {
            uint32_t n, total;
            struct kvd_plane_info *items;
        } planes;
        struct kvd_plan plan;
        struct {
            uint32_t n;
            struct kvd_hit *items;
            kvd_continuation anchor; /* start the next Find from it; or none */
            uint32_t want_page;      /* ask again with the tokens of this page; KVD_NONE: no need */
        } hits;
        struct {
            uint32_t n, next_cursor;
            struct kvd_continuation_info *items;
        } continuations; /* next_cursor is KVD_UNCHANGED at the end */
        struct {
            uint64_t cursor;
            uint32_t n;
            bool more;
            struct kvd_continuation_info *items;
        } changes;
        struct {
            uint32_t n, next_cursor;
            struct kvd_sequence_info *items;
        } sequences;
        struct {
            uint32_t n, next_cursor;
            struct kvd_session_info *items;
        } sessions;
        struct kvd_activated activated;
        struct {
            uint32_t n;
            struct kvd_round_result *items;
        } round;
        struct kvd_checkpointed checkpointed;
        struct kvd_finished finished;
        uint32_t yielded;  /* number of sequences given back */
        uint64_t revision; /* Release, SetRetention, Shorten */
        struct kvd_domain_released domain_released;
        struct kvd_moved moved; /* Demote, Prefetch, DropReplica */
        kvd_group_id group;
        struct kvd_stats stats;
        struct kvd_audit *audit;
        struct kvd_choice choice;
        struct {
            uint32_t n, next_cursor;
            struct kvd_setting *items;
        } settings;
        struct kvd_reuse *reuse; /* DescribeReuse */
        struct kvd_lent lent;
        struct kvd_lent_named lent_named;
        struct {
            uint32_t n;
            struct kvd_lent_page *pages;
        } chain; /* ReadChain */
        struct kvd_cold_tier cold_tier;
        struct kvd_cold_found cold;
    } u;
};

/* body -> struct. type is the frame's. */
int codec_decode_request(uint16_t type, const uint8_t *body, size_t bytes, struct codec_arena *arena,
                         struct msg_request *ret_request, char *err, size_t err_bytes);
int codec_decode_reply(uint16_t type, const uint8_t *body, size_t bytes, struct codec_arena *arena,
                       struct msg_reply *ret_reply, char *err, size_t err_bytes);
int codec_decode_event(const uint8_t *body, size_t bytes, struct kvd_event *ret_event, char *err, size_t err_bytes);

/* struct -> body. Writes at most `space` bytes (FRAME_LIMIT - FRAME_HEADER on the wire). Takes scratch memory from the
 * arena. In replies, characters that text may not contain become '?', and the sentences of a Round are shortened where
 * all of them would not fit. A reply whose status is not OK may have any type, so that an unknown one can be refused.
 */
int codec_encode_request(const struct msg_request *request, struct codec_arena *arena, uint8_t *body, size_t space,
                         size_t *ret_bytes, char *err, size_t err_bytes);
int codec_encode_reply(const struct msg_reply *reply, struct codec_arena *arena, uint8_t *body, size_t space,
                       size_t *ret_bytes, char *err, size_t err_bytes);
int codec_encode_event(const struct kvd_event *event, uint8_t *body, size_t space, size_t *ret_bytes, char *err,
                       size_t err_bytes);

#endif
