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

#include "kvd_types.h"

#define FRAME_HEADER 16u
#define FRAME_LIMIT 65536u /* whole frame, header included */
#define FRAME_F_REPLY 0x0001u
#define FRAME_F_EVENT 0x0002u

/* Who may send a request. */
#define FRAME_PEERS 0u /* who has no session yet */
#define FRAME_ADMINS (1u << KVD_ROLE_ADMIN)
#define FRAME_SCHEDULERS (1u << KVD_ROLE_SCHEDULER | FRAME_ADMINS)
#define FRAME_ENGINES (1u << KVD_ROLE_WORKER | FRAME_SCHEDULERS)
#define FRAME_ANYONE (1u << KVD_ROLE_OBSERVER | FRAME_ENGINES)

/* Whether a request takes a sequence number of its session (PROTOCOL.md). */
enum frame_numbering {
    FRAME_QUERY,  /* No: it changes nothing. */
    FRAME_EITHER, /* It may. Without a number its answer is not kept. */
    FRAME_CHANGE, /* Yes. A second execution would change nothing more and answer the same. */
    FRAME_REPEAT  /* Yes. A second execution would do or answer something else: a client that gave up waiting repeats
                     the request under its first number. */
};

/* Every request: X(constant, number, name, function, request, reply, roles, numbering).
 *
 * The service runs serve_<function>. <request>_map in codec_request.c and <reply>_map in codec_reply.c describe the
 * bodies. roles is one of the sets above, numbering one of the enum. The number is on the wire: it never changes, and a
 * new request takes the next one. PROTOCOL.md shows the same table; a test compares them. */
/* clang-format off */
#define FRAME_LIST(X) \
    X(HELLO,              1,  Hello,             hello,              hello,        hello,         PEERS,      QUERY)  \
    X(DESCRIBE_STORE,     2,  DescribeStore,     describe_store,     empty,        describe,      ANYONE,     QUERY)  \
    X(DESCRIBE_PLANES,    3,  DescribePlanes,    describe_planes,    planes,       planes,        ANYONE,     QUERY)  \
    X(PLAN,               4,  Plan,              plan,               activation,   plan,          ANYONE,     QUERY)  \
    X(FIND,               5,  Find,              find,               find,         find,          ENGINES,    QUERY)  \
    X(LIST_CONTINUATIONS, 6,  ListContinuations, list_continuations, list,         continuations, ANYONE,     QUERY)  \
    X(LIST_SEQUENCES,     7,  ListSequences,     list_sequences,     list,         sequences,     ANYONE,     QUERY)  \
    X(LIST_SESSIONS,      8,  ListSessions,      list_sessions,      list,         sessions,      ANYONE,     QUERY)  \
    X(ACTIVATE,           9,  Activate,          activate,           activation,   activated,     SCHEDULERS, REPEAT) \
    X(ROUND,              10, Round,             round,              round,        round,         ENGINES,    REPEAT) \
    X(NAME_PAGES,         11, NamePages,         name_pages,         names,        empty,         ENGINES,    CHANGE) \
    X(CHECKPOINT,         12, Checkpoint,        checkpoint,         checkpoint,   checkpointed,  ENGINES,    REPEAT) \
    X(FINISH,             13, Finish,            finish,             finish,       finished,      ENGINES,    REPEAT) \
    X(YIELD,              14, Yield,             yield,              empty,        yielded,       ENGINES,    CHANGE) \
    X(RELEASE,            15, Release,           release,            continuation, revision,      SCHEDULERS, REPEAT) \
    X(SET_RETENTION,      16, SetRetention,      set_retention,      continuation, revision,      SCHEDULERS, CHANGE) \
    X(OPEN_GROUP,         17, OpenGroup,         open_group,         open_group,   group,         SCHEDULERS, REPEAT) \
    X(CLOSE_GROUP,        18, CloseGroup,        close_group,        close_group,  empty,         SCHEDULERS, REPEAT) \
    X(FENCE,              19, Fence,             fence,              fence,        empty,         SCHEDULERS, CHANGE) \
    X(STATS,              20, Stats,             stats,              empty,        stats,         ANYONE,     QUERY)  \
    X(AUDIT,              21, Audit,             audit,              empty,        audit,         SCHEDULERS, QUERY)  \
    X(DRAIN,              22, Drain,             drain,              drain,        empty,         ADMINS,     CHANGE) \
    X(SUBSCRIBE,          23, Subscribe,         subscribe,          subscribe,    empty,         ANYONE,     EITHER) \
    X(GOODBYE,            24, Goodbye,           goodbye,            empty,        empty,         ANYONE,     EITHER) \
    X(DEMOTE,             25, Demote,            demote,             demote,       moved,         SCHEDULERS, REPEAT) \
    X(PREFETCH,           26, Prefetch,          prefetch,           prefetch,     moved,         SCHEDULERS, REPEAT) \
    X(DROP,               27, DropReplica,       drop,               drop,         moved,         SCHEDULERS, REPEAT) \
    X(SHORTEN,            28, Shorten,           shorten,            shorten,      revision,      SCHEDULERS, CHANGE) \
    X(CHOOSE,             29, Choose,            choose,             choose,       choice,        ANYONE,     QUERY) \
    X(RELEASE_DOMAIN,     30, ReleaseDomain,     release_domain,     release_dom,  dom_released,  SCHEDULERS, REPEAT) \
    X(LIST_SETTINGS,      31, ListSettings,      list_settings,      list,         settings,      ANYONE,     QUERY)  \
    X(SET_GROWTH_VICTIMS, 32, SetGrowthVictims,  set_growth_victims, growth,       empty,         SCHEDULERS, CHANGE) \
    X(CANCEL,             33, Cancel,            cancel,             cancel,       empty,         SCHEDULERS, REPEAT) \
    X(LEND_PAGES,         34, LendPages,         lend_pages,         lend,         lent,          ENGINES,    REPEAT) \
    X(NAME_LENT,          35, NameLent,          name_lent,          lent_names,   lent_named,    ENGINES,    REPEAT) \
    X(RETURN_LENT,        36, ReturnLent,        return_lent,        lent_return,  revision,      ENGINES,    REPEAT) \
    X(READ_CHAIN,         37, ReadChain,         read_chain,         read_chain,   read_chain,    ENGINES,    QUERY)  \
    X(DESCRIBE_COLD_TIER, 38, DescribeColdTier,  describe_cold_tier, empty,        cold_tier,     ANYONE,     QUERY)  \
    X(CHECK_COLD_TIER,    39, CheckColdTier,     check_cold_tier,    check_cold,   empty,         ADMINS,     CHANGE) \
    X(FIND_COLD,          40, FindCold,          find_cold,          cold,         cold,          ENGINES,    CHANGE) \
    X(LOAD_COLD,          41, LoadCold,          load_cold,          cold,         cold,          SCHEDULERS, CHANGE) \
    X(OPEN_RING,          42, OpenRing,          open_ring,          empty,        ring,          ANYONE,     QUERY) \
    X(DESCRIBE_REUSE,     43, DescribeReuse,     describe_reuse,     empty,        reuse,         ANYONE,     QUERY)  \
    X(LIST_CHANGES,       44, ListChanges,       list_changes,       changes,      changes,       ANYONE,     QUERY)
/* clang-format on */

enum frame_type {
#define FRAME_ENUM(constant, number, ...) FRAME_##constant = (number),
    FRAME_LIST(FRAME_ENUM)
#undef FRAME_ENUM
        FRAME_TYPE_END,
    FRAME_EVENT = 64
};

struct frame_info {
    const char *name; /* "Activate" */
    unsigned roles;   /* bit r: enum kvd_role r */
    enum frame_numbering numbering;
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
const struct frame_info *frame_info(uint16_t type); /* of a request; NULL: there is no such request */
const char *frame_type_name(uint16_t type);         /* "Activate", ...; "Event"; "?" */

#endif
