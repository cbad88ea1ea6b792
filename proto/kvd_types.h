/* SPDX-License-Identifier: Apache-2.0
 *
 * The plain structs of the kvd protocol. They are also the public types of libkvd: one definition for wire, daemon and
 * engine. kvd.proto and PROTOCOL.md describe what travels, and codec.h converts between the two. <kvd/kvd.h> includes
 * this file.
 *
 * Units: frontiers, prompts and outputs are tokens. Memberships and entitlements are pages of 64 tokens. Times are
 * nanoseconds of CLOCK_MONOTONIC unless a comment says otherwise. KVD_NONE stands for "none" in a slot or an index,
 * KVD_UNCHANGED for the end in a cursor. Pointers belong to whoever filled the struct in.
 */
#ifndef KVD_TYPES_H
#define KVD_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVD_PROTOCOL_VERSION 2u
#define KVD_MAX_POOLS 4
#define KVD_MAX_RANKS 8
#define KVD_DIGEST_BYTES 32
#define KVD_TAIL_TOKENS 63           /* tokens after the last full page, at most */
#define KVD_MAX_ROUND 256            /* sequences in one Round */
#define KVD_MAX_DIGESTS 1024         /* in one message */
#define KVD_MAX_VICTIMS 4096         /* of one activation: what a message holds, 1024 of them shortened */
#define KVD_VICTIMS_BESIDE_COLD 1024 /* with which a message also holds the digests of a kvd_cold_source */
#define KVD_MAX_GROWTH 256           /* victims of a list that stands for growth */
#define KVD_MAX_LIST 128             /* objects in one list answer */
#define KVD_MAX_HITS 16              /* in one answer */
#define KVD_NAME_BYTES 64
#define KVD_GROUP_NAME_BYTES 32
#define KVD_MAX_LAYER_GROUPS 8 /* of one pool */
#define KVD_LABEL_BYTES 64
#define KVD_MESSAGE_BYTES 384
#define KVD_UNCHANGED UINT32_MAX /* in a cursor: the list is at its end */
#define KVD_NONE UINT32_MAX      /* in a field that names a slot, row or page: there is none */

/* Canonical status codes with the numbers of google.rpc.Code, the same on the wire and in the library. */
/* Name, number, whether the same request may succeed later without a change to it, meaning, what the caller does. */
#define KVD_STATUS_LIST(X)                                                                                             \
    X(OK, 0, false, "ok", "goes on")                                                                                   \
    X(CANCELLED, 1, true, "an Activate that a Cancel ended",                                                           \
      "asks again, under a new number, if it wants it after all")                                                      \
    X(UNKNOWN, 2, false, "unknown", "reports it: kvd never answers it")                                                \
    X(INVALID_ARGUMENT, 3, false, "the request can never succeed as it stands", "corrects the request")                \
    X(DEADLINE_EXCEEDED, 4, true, "the deadline passed before the request began, or before its answer came",           \
      "asks again with the same sequence number to learn the outcome")                                                 \
    X(NOT_FOUND, 5, false, "no such object, or an older generation of it",                                             \
      "looks up what there is now (Find, the lists)")                                                                  \
    X(ALREADY_EXISTS, 6, false, "it exists", "nothing: kvd never answers it")                                          \
    X(PERMISSION_DENIED, 7, false, "the caller's role or lease does not allow it",                                     \
      "asks as somebody else, or lets the owner ask")                                                                  \
    X(RESOURCE_EXHAUSTED, 8, true, "short now; may fit after releases",                                                \
      "names victims, or waits for a sequence to end; then asks again")                                                \
    X(FAILED_PRECONDITION, 9, false, "something else must happen first; waiting alone does not help",                  \
      "does what the sentence says, then asks again")                                                                  \
    X(ABORTED, 10, true, "another request or revision came between; of a dead session or instance, in all answers",    \
      "looks again (Find, Plan), then asks again; after a dead session connects anew")                                 \
    X(OUT_OF_RANGE, 11, false, "an argument is outside what the object or the store allows",                           \
      "asks for a value inside the limit that the sentence names")                                                     \
    X(UNIMPLEMENTED, 12, false, "not in this build or version", "does without it")                                     \
    X(INTERNAL, 13, false, "a defect in kvd: please report it", "reports it")                                          \
    X(UNAVAILABLE, 14, true, "kvd cannot be reached, is draining, or the device is lost; try later",                   \
      "asks another store, or later; a request with a number repeats it")                                              \
    X(DATA_LOSS, 15, false, "stored bytes were lost or damaged", "computes the prefix again")                          \
    X(UNAUTHENTICATED, 16, false, "no valid session", "says Hello")
enum kvd_status {
#define KVD_STATUS_ENUM(name, code, again, meaning, action) KVD_##name = code,
    KVD_STATUS_LIST(KVD_STATUS_ENUM)
#undef KVD_STATUS_ENUM
        KVD_STATUS_MAX_ = INT32_MAX
};

#define KVD_ROLE_LIST(X)                                                                                               \
    X(OBSERVER, 1, "observer")                                                                                         \
    X(WORKER, 2, "worker")                                                                                             \
    X(SCHEDULER, 3, "scheduler")                                                                                       \
    X(ADMIN, 4, "admin")
enum kvd_role {
#define KVD_ROLE_ENUM(name, number, text) KVD_ROLE_##name = number,
    KVD_ROLE_LIST(KVD_ROLE_ENUM)
#undef KVD_ROLE_ENUM
};

/* Handles: the index in the low 32 bits, the generation in the high ones. 0 = none. A handle of the wrong kind does not
 * compile. */
typedef struct kvd_session_id {
    uint64_t bits;
} kvd_session_id;
typedef struct kvd_group_id {
    uint64_t bits;
} kvd_group_id;
typedef struct kvd_sequence {
    uint64_t bits;
} kvd_sequence;
typedef struct kvd_continuation {
    uint64_t bits;
} kvd_continuation;
typedef struct kvd_digest {
    uint8_t bytes[KVD_DIGEST_BYTES];
} kvd_digest;

/* The domain of a name: model, adapter, tenant and modality, which are in the digest with which its chain begins. */
struct kvd_root {
    kvd_digest digest;
    char label[KVD_LABEL_BYTES]; /* for people: [A-Za-z0-9._:/-]*. The first one that is given for a digest stays */
};

/* ---- Hello ------------------------------------------------------------------------------------ */
struct kvd_hello {
    uint32_t protocol;
    uint32_t role;             /* enum kvd_role */
    char name[KVD_NAME_BYTES]; /* [A-Za-z0-9._:/-]+, for logs and kvdctl */
    char library[KVD_NAME_BYTES];
    uint32_t rank;         /* worker: its place in a tensor-parallel group, 0 if alone */
    kvd_session_id resume; /* on a new connection of the same process: the old session, and its secret below */
    uint64_t resume_secret;
};
struct kvd_hello_reply {
    kvd_session_id session;
    uint64_t secret;        /* for resume; never shown to others */
    uint64_t epoch;         /* random, of this daemon instance (SRV-8) */
    uint64_t last_sequence; /* highest sequence number executed (0 for a new session) */
    uint32_t protocol;
    char store[KVD_NAME_BYTES];
    char server[KVD_NAME_BYTES]; /* version */
    bool ring;                   /* OpenRing gives this connection a shared segment */
};

/* ---- OpenRing ----------------------------------------------------------------------------------- */
struct kvd_ring_info {
    char fd_socket[108]; /* path of the socket of descriptors */
    uint64_t fd_token;   /* for one connection there */
    uint32_t segment_index, doorbell_index;
};

/* ---- DescribeStore ------------------------------------------------------------------------------ */
struct kvd_region_info { /* planes of a pool, a block table, or the state slots, of one rank */
    uint32_t kind;       /* 1 CUDA IPC handle; 2 file descriptor, from the socket of descriptors */
    uint32_t fd_index;   /* kind 2: the number to ask for there */
    uint64_t bytes;
    uint8_t ipc_handle[64]; /* bearer token */
    uint8_t uuid[16];       /* device */
    uint64_t owner_pid, local_address;
};
/* Layers of a pool that store a token alike. The enums are those of paged_view.h. */
struct kvd_layer_group {
    char name[KVD_GROUP_NAME_BYTES]; /* that the configuration gives it */
    uint32_t format, storage, order; /* enum kvd_format, enum kvd_storage; 0 page-major 1 head-major */
    uint32_t n_layers;
    uint32_t n_kv_heads;           /* kv, packed: of the model, over all ranks; latent: 1, whole on every rank */
    uint32_t head_dim, v_head_dim; /* kv: of K and of V; else 0 */
    uint32_t row_bytes;            /* latent: of a token; packed: of a token and head; kv: 0 */
};
struct kvd_pool_info {
    uint32_t storage, order, arrangement; /* enum kvd_storage; 0 page-major 1 head-major; 0 dense 1 record */
    uint32_t n_layers, n_kv_heads, head_dim, n_ranks;
    uint32_t pages;
    uint64_t page_bytes; /* payload of a page group over all ranks */
    /* 0: the pool is of one shape, which the fields above say. Else n_layers is the sum, and storage, order, n_kv_heads
     * and head_dim are 0. Layers are numbered through, group by group. */
    uint32_t n_groups;
    struct kvd_layer_group group[KVD_MAX_LAYER_GROUPS];
    char name[KVD_GROUP_NAME_BYTES]; /* main, draft, or what the configuration calls it */
    uint32_t window, window_lead;    /* tokens that a layer sees at most, and that are kept behind them; 0: all */
    bool window_aligned;             /* it sees those from the last multiple of `window` on */
    struct kvd_region_info planes[KVD_MAX_RANKS];
    struct kvd_region_info table[KVD_MAX_RANKS]; /* I32 [L, C] */
};
struct kvd_store_info {
    char name[KVD_NAME_BYTES];
    uint32_t backend; /* 0 off, 1 mtp, 2 dflash */
    uint32_t n_pools;
    uint32_t max_context, max_concurrency, row_entries /* L */, draft_window, map_ahead;
    uint64_t state_bytes;                        /* one state image on each rank, 0 = none */
    uint32_t state_slots;                        /* images on each rank */
    uint64_t state_stride;                       /* bytes from a slot to the next, >= state_bytes */
    struct kvd_region_info state[KVD_MAX_RANKS]; /* slot s begins at s * state_stride */
    uint64_t capacity_tokens;                    /* M * 64 */
    bool lease_growth;
    bool pages_outlive; /* device pages outlive this kvd (export = vmm): the next one may take them over */
    kvd_digest geometry;
    char fd_socket[108];              /* path of the socket of descriptors; "": nothing comes from there */
    uint64_t fd_token;                /* one-time, for this session; a bearer token */
    uint32_t board_index, bell_index; /* there: the session's board and its bell; 0: none (kvd_advance) */
    struct kvd_pool_info pool[KVD_MAX_POOLS];
};
/* Planes with explicit strides, for consumers that do not use libkvd. */
struct kvd_planes_request {
    uint32_t pool, rank, first;
};
struct kvd_plane_info {
    uint32_t ordinal, layer, slot /* 0 K 1 V 2 K scale 3 V scale */, dtype, extent, n_heads;
    uint64_t offset, nb0, nb1, nb2, nb3;
    uint32_t format, order; /* of its layer group: enum kvd_format; 0: nb3 is the page's stride, 1: nb2 is */
};

/* ---- activation ----------------------------------------------------------------------------------- */
struct kvd_victim { /* a continuation that gives way */
    kvd_continuation continuation;
    bool demote;       /* to the host arena; otherwise it is released, or */
    uint32_t frontier; /* shortened to this one, where it is not 0 (as by Shorten, and less than its own) */
};
struct kvd_tail {
    uint32_t n;
    uint32_t tokens[KVD_TAIL_TOKENS];
};
/* What the cold tier may have of the prompt of an activation. n and tail.n are 0: nothing is asked for. */
struct kvd_cold_source {
    uint32_t first, n;         /* pages: `from` has those before the first one; n: at most KVD_MAX_DIGESTS */
    const kvd_digest *digests; /* of pages first, first + 1, ... */
    struct kvd_tail tail;      /* behind the last of these pages; a continuation may end behind any of these tokens */
    uint32_t retention;        /* of what is loaded */
};
struct kvd_activation {
    kvd_session_id worker; /* the lease goes to this session; none with a group. A scheduler may name itself */
    kvd_group_id group;
    struct kvd_root root;  /* of the prompt's chain. Plan and Choose take zeros for the source's own */
    kvd_continuation from; /* none = start empty. It must be of the same domain */
    bool keep;             /* fork: the source survives. Otherwise a move takes it over */
    uint32_t frontier;     /* of the source to start from */
    /* prompt + output - 1 <= max_context, or KVD_OUT_OF_RANGE: an output is never cut silently. */
    uint32_t prompt_tokens, max_output_tokens;
    uint32_t ensure[KVD_MAX_POOLS];
    uint32_t n_victims;               /* at most KVD_MAX_VICTIMS */
    const struct kvd_victim *victims; /* the recipe: they give way with the activation or not at all */
    uint64_t revision;                /* of the store when the recipe was made; 0 = any */
    /* Rolling checkpoints, which the sequence leaves while it runs, where windows or state images would be gone: at
     * multiples of so many tokens (itself a multiple of 64; 0: none), and at the last page boundary before the prompt's
     * last token. */
    uint32_t checkpoint_every;
    bool checkpoint_prompt;
    struct kvd_cold_source cold; /* kvd_activate: loaded first, and started from as far as it comes; see kvd_set_cold */
};
struct kvd_pool_view { /* one pool of a sequence now */
    uint32_t row, membership, entitlement, committed;
    uint32_t protected_frontier;       /* that a surviving checkpoint or sharer reads: truncation stops here */
    uint32_t slice_begin, slice_count; /* entries of the row that this request changed */
    uint32_t first; /* of a pool with a window: entries before this one are behind it, -1, and never to be read again.
                     * They count for membership. Else 0 */
};
struct kvd_activated {
    kvd_sequence sequence;
    uint32_t state_slot, source_state_slot; /* KVD_NONE = none; see kvd_store_state in kvd.h */
    uint64_t revision;
    uint32_t restored[KVD_MAX_POOLS]; /* pages that were brought back from the host */
    uint32_t n_pools;
    struct kvd_pool_view pool[KVD_MAX_POOLS];
};
enum kvd_feasibility { KVD_READY = 0, KVD_BLOCKED = 1, KVD_INFEASIBLE = 2 };
struct kvd_need {
    uint64_t needed, available, short_by;
};
struct kvd_plan {
    uint32_t feasibility;
    uint64_t revision;
    uint32_t n_pools;
    struct kvd_need pages[KVD_MAX_POOLS], rows, sequences, continuations, state_slots, membership;
    uint32_t entitlement[KVD_MAX_POOLS], shared_pages[KVD_MAX_POOLS], copied_columns[KVD_MAX_POOLS],
        freed_pages[KVD_MAX_POOLS];
    uint32_t restore_pages[KVD_MAX_POOLS]; /* of the source, to be brought back from the host; part of pages[].needed */
    uint32_t demote_pages[KVD_MAX_POOLS];  /* of demoted victims, to be copied to the host */
    struct kvd_need arena;                 /* bytes for those, in the arena's real geometry after the releases */
};

/* Which continuations would have to go for an activation, in an order that the caller names. */
enum kvd_order {
    KVD_ORDER_RETENTION_USED = 1 /* the lowest retention first, of one retention the least recently used */
};
struct kvd_choose {
    struct kvd_activation activation; /* without victims */
    uint32_t order;                   /* enum kvd_order */
    uint32_t max;                     /* victims that are wanted at most; 0 = KVD_MAX_VICTIMS */
};
struct kvd_choice {
    uint32_t n;
    const struct kvd_victim *victims; /* the shortest prefix that suffices, less what gives nothing that is short */
    bool more;                        /* they do not suffice, and there are more than max */
    struct kvd_plan plan;             /* with them. KVD_BLOCKED and no victims: nothing that is idle would help */
};

/* Who may go where lease growth lacks pages, in the order of going: a list that stands until it is replaced, or ends
 * with its sequence or session. */
struct kvd_growth_victims {
    kvd_sequence sequence;            /* none: of all sequences of the session that have no list of their own */
    uint32_t n_victims;               /* at most KVD_MAX_GROWTH; 0: there is no list any more */
    const struct kvd_victim *victims; /* with `demote` a continuation rests where the host has all of it already, and is
                                       * released where it has not */
};

/* ---- round ------------------------------------------------------------------------------------------ */
/* What a boundary asks for. A field whose bit is not set is not looked at, so a zeroed item asks for nothing. */
enum kvd_round_ask {
    KVD_ROUND_COMMIT = 1,
    KVD_ROUND_TRUNCATE = 2,
    KVD_ROUND_KEEP = 4,
    KVD_ROUND_ENSURE = 8,
    KVD_ROUND_STATE = 16
};
struct kvd_round_pool {
    uint32_t ask; /* KVD_ROUND_COMMIT to KVD_ROUND_ENSURE */
    uint32_t commit, truncate, keep, ensure;
};
struct kvd_round_item {
    kvd_sequence sequence;
    uint32_t ask;            /* KVD_ROUND_STATE, or 0 */
    uint32_t state_frontier; /* of the image in the sequence's slot now, 0 = it is none; see kvd_store_state in kvd.h */
    struct kvd_round_pool pool[KVD_MAX_POOLS];
};
struct kvd_round_result {
    uint32_t status; /* enum kvd_status of this sequence */
    bool bounded;
    uint32_t bounded_pool, bounded_frontier;
    uint32_t n_pools;
    struct kvd_pool_view pool[KVD_MAX_POOLS];
    char message[KVD_MESSAGE_BYTES]; /* empty when OK */
};

/* ---- names, checkpoint, finish ------------------------------------------------------------------------- */
struct kvd_names {
    kvd_sequence sequence;
    uint32_t first, n;
    const kvd_digest *digests;
};
struct kvd_checkpoint {
    kvd_sequence sequence;
    struct kvd_tail tail;
    uint32_t retention;
    uint32_t n_victims;               /* at most KVD_MAX_VICTIMS; a worker names none */
    const struct kvd_victim *victims; /* they give way with the checkpoint or not at all. One that is to be demoted has
                                       * been copied to the host before (Demote, keep_device) */
    uint64_t revision;                /* of the store when the recipe was made; 0 = any */
};
struct kvd_checkpointed {
    kvd_continuation continuation;
    uint32_t frontier;
    uint64_t revision;
    uint32_t shared_pages[KVD_MAX_POOLS];
};
struct kvd_finish {
    kvd_sequence sequence;
    bool retain;
    struct kvd_tail tail;
    uint32_t retention;
};
struct kvd_finished {
    kvd_continuation continuation;
    uint64_t revision;
}; /* none after a release */

/* ---- pages that an engine hands out itself ---------------------------------------------------------------- */
#define KVD_MAX_LENT 1024 /* pages in one message */
struct kvd_lend {
    kvd_sequence sequence; /* it began from nothing, and has committed nothing */
    bool adopt;            /* lend also what is complete on the device, and that no sequence holds */
};
struct kvd_lent {
    uint32_t adopted; /* pages; they stand last in the row */
    uint64_t revision;
    uint32_t n_pools;
    struct kvd_pool_view pool[KVD_MAX_POOLS]; /* the row lists the lent pages, in no order that means anything */
};
struct kvd_lent_page {
    uint32_t page;     /* id; KVD_NONE: it is not on the device */
    kvd_digest digest; /* of the chain that it ends. A return leaves it out */
};
struct kvd_lent_names {
    kvd_sequence sequence;
    kvd_continuation from; /* whose first pages these continue; none: `root` begins */
    uint32_t first;        /* how many those are */
    struct kvd_root root;
    uint32_t n; /* at most KVD_MAX_LENT */
    const struct kvd_lent_page *pages;
    uint32_t retention;
    bool replace;         /* `from` goes where all of it is continued and nobody uses it */
    struct kvd_tail tail; /* the tokens of the last of `pages`, which is written so far; n = 0: all are complete */
};
struct kvd_lent_named {
    kvd_continuation continuation;
    bool stood; /* an equal one was there, on the device: the pages stay blank */
    uint64_t revision;
};
struct kvd_lent_return {
    kvd_sequence sequence;
    bool again; /* they stay lent, and are blank: other bytes may come into them. Else they are lent no more */
    uint32_t n; /* at most KVD_MAX_LENT */
    const struct kvd_lent_page *pages;
};

/* ---- continuations --------------------------------------------------------------------------------------- */
/* Finds what a prompt may start from, in the domain of its root only. digests[i] is of page first + i. tokens are those
 * of the prompt from page token_page on: first the ones behind its last full page. A message with first > 0 goes on
 * where an earlier answer ended: its digests[0] is the last one sent before, and anchor is the continuation that the
 * earlier answer named. Its hits are those that match further than page `first`. */
struct kvd_find {
    kvd_digest root;
    uint32_t n, max;
    const kvd_digest *digests;
    uint32_t first;
    kvd_continuation anchor;
    uint32_t prompt_tokens; /* of the whole prompt */
    uint32_t token_page;
    struct kvd_tail tokens;
};
struct kvd_hit {
    kvd_continuation continuation;
    uint32_t usable;   /* tokens of the prompt that it covers exactly: activate with frontier = usable */
    uint32_t frontier; /* of the continuation */
    uint32_t retention;
    uint32_t restore_pages; /* cost: pages that the activation brings back from the host tier */
    bool live;              /* named pages of a running sequence: fork it (keep). A move answers KVD_ABORTED */
};
struct kvd_list {
    uint32_t cursor;
    uint32_t max;
    struct kvd_root root; /* only what is of this domain: of this digest, where it is not zeros, and of this label,
                           * where it is not empty */
};
struct kvd_domain_release {
    struct kvd_root root; /* as in kvd_list; one of the two is needed */
    uint32_t cursor;      /* 0 to begin, then next_cursor of the answer */
};
struct kvd_domain_released {
    uint32_t released;    /* continuations that this call released */
    uint32_t in_use;      /* continuations that a transition holds: they stay */
    uint32_t sequences;   /* running ones of the domain, counted by the last call */
    uint32_t next_cursor; /* KVD_UNCHANGED: the end; else call again */
    uint64_t revision;
};
struct kvd_continuation_info {
    kvd_continuation continuation;
    struct kvd_root root;
    uint32_t frontier, named_pages, retention, sharers;
    bool tail_named, claimed;
    bool live;              /* what a running sequence has named so far: it can be found and forked, and nothing else */
    bool rolling;           /* a running sequence's own rolling checkpoint: a newer one may take its place */
    uint64_t created, used; /* logical time: operations of the store */
    uint32_t pages[KVD_MAX_POOLS], exclusive_pages[KVD_MAX_POOLS];
    uint32_t device_pages[KVD_MAX_POOLS], host_pages[KVD_MAX_POOLS]; /* with a valid replica there */
    bool demoted;                                                    /* demoted: it asks for no place on the device */
    bool moving;                                                     /* copies between device and host are under way */
    bool image_on_device, image_in_host;                             /* of its state image, where the store has them */
    uint32_t state_slot;                                             /* KVD_NONE = none */
    /* Since it was made, and since it was last used. Of one found in the arena: since this instance has it. */
    uint64_t age_ns, idle_ns;
};
struct kvd_sequence_info {
    kvd_sequence sequence;
    struct kvd_root root;
    kvd_session_id owner, worker;
    kvd_group_id group;
    uint32_t state; /* 0 activating, 1 active, 2 quarantined */
    bool ending;    /* owner or a member is gone: waits for a yield or a proof of death */
    uint32_t prompt_tokens, ceiling_tokens, named_pages;
    uint32_t state_slot; /* KVD_NONE = none */
    bool lends;          /* its pages are an engine's, which hands them out itself */
    uint32_t n_pools;
    struct kvd_pool_view pool[KVD_MAX_POOLS];
    uint64_t age_ns; /* since its Activate came */
};
struct kvd_session_info {
    kvd_session_id session;
    uint32_t role, rank;
    uint64_t uid, gid, pid;
    bool connected, fenced;
    uint32_t sequences;
    uint64_t requests;
    uint64_t age_ns; /* since its first Hello */
    char name[KVD_NAME_BYTES];
};

/* ---- places of continuations ------------------------------------------------------------------------------------ */
enum kvd_tier { KVD_TIER_DEVICE = 0, KVD_TIER_HOST = 1 };
/* Demote copies all pages and the state image to the host; then the device gives up what nothing else needs. With
 * keep_device it only copies. Prefetch copies all pages to the device; the host's copies stay. Drop drops the copies of
 * one tier that the other has too. */
struct kvd_demote {
    kvd_continuation continuation;
    bool keep_device;
};
struct kvd_drop {
    kvd_continuation continuation;
    uint32_t tier; /* enum kvd_tier */
};
struct kvd_moved {
    uint64_t revision;
    uint32_t pages[KVD_MAX_POOLS];
    uint64_t bytes;
}; /* what was copied, or dropped */

/* ---- cold tier ---- */

/* What the engine of the cold tier has of a prompt behind its first `first` pages: FindCold and LoadCold. */
struct kvd_cold_want {
    struct kvd_root root;      /* domain of the prompt. The label counts for LoadCold alone */
    kvd_continuation from;     /* LoadCold: it has those first pages, which the loaded one shares; none: first is 0 */
    uint32_t first, n;         /* n: at most KVD_MAX_DIGESTS */
    const kvd_digest *digests; /* of pages first, first + 1, ... */
    /* The tokens behind the last of these pages, where a continuation may end exactly there. n is 0: none is asked
     * for. Where first is not 0, n pages of the question must not be 0. */
    struct kvd_tail tail;
    uint32_t retention; /* LoadCold: of what is made */
};
struct kvd_cold_found {
    kvd_continuation continuation; /* LoadCold: in the host; none: nothing has come */
    uint32_t frontier;             /* tokens of the prompt, those before `first` counted; 0: nothing has come */
    uint32_t pages;                /* that are there, from the first on, whether one ends there or not */
    uint64_t bytes;                /* cost: of values to load, or loaded */
};

/* ---- groups -------------------------------------------------------------------------------------------------- */
struct kvd_group {
    uint32_t n;
    kvd_session_id members[KVD_MAX_RANKS];
}; /* by rank; members[0] leads */

/* ---- looking ---------------------------------------------------------------------------------------------------- */
struct kvd_pool_stats { /* quarantined: held by quarantined sequences alone; shared: by several */
    uint32_t capacity, allocated, reserved, available, quarantined, shared, rows_used;
    uint32_t lent; /* pages that engines hand out themselves */
};
struct kvd_stats {
    uint32_t n_pools;
    struct kvd_pool_stats pool[KVD_MAX_POOLS];
    uint32_t sequences, continuations, continuation_limit, sessions, groups, state_slots_used;
    uint64_t membership_used, membership_limit, operations, revision, epoch;
    uint64_t requests, refusals, frames_bad, connections, events_dropped;
    uint64_t uptime_ns, rss_bytes, metadata_bytes;
    bool draining;
    char version[KVD_NAME_BYTES];
    /* The host arena; all zero where there is none. */
    uint64_t host_capacity, host_occupied, host_largest_free; /* bytes */
    uint32_t host_pages[KVD_MAX_POOLS], host_images, demoted_continuations;
    uint32_t moves, move_pages_left; /* transitions that copy between device and host now; pages that they have left */
    /* Copies to the host and from it: pages, bytes, and the time in which some were under way. */
    uint64_t demoted_pages, demoted_bytes, demoted_ns;
    uint64_t restored_pages, restored_bytes, restored_ns;
    uint64_t scrubbed_pages, damaged_replicas, lost_continuations;
    /* At this instance's start. */
    uint32_t recovered_continuations, recovered_shortened, recovered_dropped, recovered_damaged;
    uint32_t former_drivers; /* former processes that may still run on rows of an earlier instance: activations wait */
    uint64_t committed_tokens; /* by rounds; what is cut off and committed again counts again */
};
struct kvd_audit {
    uint32_t violations;
    uint32_t left_out; /* pages, and sums over many, that changed as long as the audit lasted: not compared */
    char text[4096];
};

/* What prompts used again, since the daemon's start. */
#define KVD_REUSE_SIZES 64
#define KVD_REUSE_DOMAINS 32
struct kvd_reuse_size { /* of a cache that gives up the least recently used page */
    uint64_t pages;     /* of pool 0; UINT64_MAX: without an end */
    uint64_t found_tokens;
};
struct kvd_reuse_domain {
    char label[KVD_LABEL_BYTES]; /* "other": of all that came when there were 32; "unlabelled" */
    uint64_t activations, prompt_tokens, reused_tokens;
};
struct kvd_reuse {
    uint64_t prompt_tokens;   /* that were looked up */
    uint64_t pages_of_sample; /* 1: every page was looked at; n: one of n was */
    uint32_t n_sizes, n_domains;
    struct kvd_reuse_size sizes[KVD_REUSE_SIZES]; /* rising */
    struct kvd_reuse_domain domains[KVD_REUSE_DOMAINS];
};

/* A key of the daemon's configuration. */
#define KVD_MAX_SETTINGS 64 /* in one message */
struct kvd_setting {
    char section[KVD_GROUP_NAME_BYTES + 8], name[32];
    char value[256];   /* in effect */
    char source[96];   /* "default", or FILE:LINE; "auto, " before it: kvd has chosen the value */
    char pending[256]; /* where restart: what the file that was read last has instead */
    bool restart;
};

/* The cold tier and the engine behind it. Counts are since the start of this instance. */
enum kvd_cold_breaker {
    KVD_COLD_CONNECTING = 0, /* nothing is known yet */
    KVD_COLD_CLOSED = 1,     /* the engine is used */
    KVD_COLD_OPEN = 2        /* it is left alone for a while */
};
#define KVD_MAX_COLD_CHECK 1024 /* objects that one check reads */
struct kvd_cold_tier {
    bool configured;             /* else the rest is zero */
    uint32_t breaker;            /* enum kvd_cold_breaker */
    bool clustered;              /* the engine is a cluster */
    char why[256];               /* why it was left alone last; "": never */
    uint64_t retry_ns;           /* where open: until it is tried again */
    uint64_t trips, connections; /* how often it was left alone; connections made */
    uint64_t waiting;            /* continuations to be written */
    uint64_t continuations;      /* that it has whole, as far as they were named */
    /* Continuations that were not written whole: they waited too long, gave way to newer ones, it did not take all, or
     * the arena had no room for a copy to write from. */
    uint64_t dropped_age, dropped_queue, dropped_engine, dropped_arena;
    uint64_t written_objects, written_bytes, written_ns; /* ns: time with writes under way */
    uint64_t met_objects;                                /* that were there */
    /* Checks that have ended, and the last one: the time of a question and its answer (0: there was none); objects that
     * it read = right + absent + wrong + unanswered. */
    uint64_t checks, ping_ns;
    uint32_t read_objects, right_objects;
    uint32_t absent_objects; /* it has lost them: expired, evicted, flushed */
    uint32_t wrong_objects;  /* not what was written; deleted there */
    uint32_t unanswered_objects;
    char wrong_field[16]; /* what was wrong with the first of the wrong ones */
};

/* ---- events ----------------------------------------------------------------------------------------------- */
enum kvd_event_kind {
    KVD_EVENT_PRESSURE = 1, /* a pool fell below its low-water mark, or rose above it: pool, available */
    KVD_EVENT_BOUNDED = 2,  /* a sequence reached a bounded completion: sequence, pool, frontier */
    /* A session ended: session. If it is your scheduler or a member of your group, finish your unit, then yield. Of a
     * session that left in order only those are told who share its work. */
    KVD_EVENT_SESSION_LOST = 3,
    /* sequence ended without a finish. continuation holds what was complete; it may be none. */
    KVD_EVENT_SEQUENCE_ENDED = 4,
    /* Activations are refused from now on: a Drain, or kvd stops. If it stops, sequences may be ending: finish your
     * unit, then yield; a yield after this event clears all of yours. Told again at the stop after a Drain. */
    KVD_EVENT_DRAINING = 5,
    KVD_EVENT_LOST = 6,      /* continuation was lost: its only copy, in the host, did not match its checksum */
    KVD_EVENT_SHORTENED = 7, /* continuation was shortened to frontier: the only copy of a page behind did not match its
                              * checksum */
    KVD_EVENT_GAVE_WAY = 8   /* continuation gave way for the growth of sequence, from the list that stood for it.
                              * frontier: what is left of it; 0: it was released */
};
#define KVD_EVENT_MASK(kind) (1u << (kind))
struct kvd_event {
    uint32_t kind;
    uint32_t pool, frontier, available;
    kvd_sequence sequence;
    kvd_continuation continuation;
    kvd_session_id session;
    kvd_group_id group;
    uint64_t dropped; /* events that a slow reader lost before this one */
    uint64_t epoch;
};

#ifdef __cplusplus
}
#endif
#endif
