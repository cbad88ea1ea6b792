/* SPDX-License-Identifier: Apache-2.0
 *
 * The store: the storage contract as a pure state machine. Geometry goes in, decisions come out.
 *
 * It holds pools, pages, address spaces, rows, sequences (active bundles) and continuations (inactive, complete,
 * named). It knows whether a page is on the device, in the host arena, or both. It has no network, GPU, clock, file or
 * thread. It allocates nothing after store_init, and the same calls give the same answers.
 *
 * It calls only hostarena: the extent allocator, and the directory, where it records what it holds as that changes.
 * Bytes are copied by the caller: a begin call lists the copies, then the caller says that they are done (..._commit)
 * or cannot be done (..._abort). Rows are published by the caller: the store changes the row mirror and returns the
 * slices, which must be in device memory before the request is answered (ROW-4).
 *
 * Answers are the public structs of kvd_types.h. The store leaves owner, worker, group, ending and the daemon's own
 * numbers 0.
 *
 * Threads: none inside. The caller serialises all calls on one store.
 *
 * Errors: a function returns STORE_OK, or a positive store_code with a store_refusal that says what was asked and what
 * there was. After a refusal nothing has changed (SRV-2), and outputs are not written. store_refusal_text makes the
 * sentence.
 *
 * Handles have 64 bits: an index and a generation. A slot whose generation would wrap is retired.
 */
#ifndef KVD_STORE_H
#define KVD_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "geometry.h"
#include "histogram.h"
#include "kvd_types.h"

#define STORE_MAX_COPIES (KVD_MAX_POOLS + 1) /* of one transition: a tail a pool, and a state image */
#define STORE_MAX_ROLLING 16                 /* rolling checkpoints that are one sequence's own */

struct store;
typedef struct store_seq {
    uint64_t bits;
} store_seq; /* 0 = none */
typedef struct store_cont {
    uint64_t bits;
} store_cont; /* 0 = none */
static inline store_cont store_cont_of(kvd_continuation continuation) { return (store_cont){ continuation.bits }; }

/* What going on from a frontier reads of a pool: the last `tokens`, the one to come counted; aligned (chunked
 * attention): from the last multiple of `tokens` on. 0: all. A running sequence keeps `lead` tokens more, as many as a
 * truncation may take back (GRP-2). */
struct store_window {
    uint32_t tokens, lead;
    bool aligned;
};

struct store_config {
    enum geom_backend backend; /* POOL-3; DFLASH with pool_pages[1] == 0 has no draft pool */
    uint32_t more_pools;       /* behind Main and the draft pool, if there is one; KVD_MAX_POOLS in all */
    uint32_t pool_pages[KVD_MAX_POOLS];
    struct store_window window[KVD_MAX_POOLS]; /* not of Main, whose pages carry the names */
    uint32_t max_context;                      /* S tokens; L = ceil(S/64) */
    uint32_t max_concurrency;                  /* C: rows a pool, and active sequences */
    uint32_t draft_window;                     /* K (MTP: 1..15) */
    uint32_t widest_verify;                    /* widest verify extent in tokens, for the lease cushion */
    bool lease_growth;                         /* SPACE-3 */
    uint32_t lease_window;                     /* tokens, normally 4096 */
    uint32_t prefill_chunk;                    /* tokens; the window is at least this */
    uint32_t map_ahead;          /* pages mapped beyond an ensure that has to map anyway; capped by entitlement */
    uint32_t max_continuations;  /* descriptors */
    uint32_t max_rolling;        /* rolling checkpoints of one sequence, up to STORE_MAX_ROLLING; 0: none are made */
    uint32_t spare_pages;        /* page descriptors beyond physical pages and those that the arena holds, a pool */
    uint64_t membership_entries; /* logical-block entries over all spaces; 0 = a default that cannot starve C full
                                    sequences */
    bool has_state;              /* state_bytes > 0 */
    uint32_t state_slots;        /* device slots where has_state; at least C */
    uint64_t host_bytes;         /* of the arena; 0 = the host tier is off (HOST-7) */
    uint64_t host_stride[KVD_MAX_POOLS]; /* bytes of a packed page over all ranks; a multiple of 256 */
    uint64_t host_state_stride;          /* the same of a state image, where has_state */
    uint32_t generation; /* of the first handle of every slot; 0 = 1. Another one for each instance keeps handles of an
                          * earlier one from naming anything */
    bool recorded;       /* a directory will be set, also where host_bytes is 0 */
};

/* ---- refusals ------------------------------------------------------------------------------ */

enum store_code {
    STORE_OK = 0,
    STORE_E_STALE = 1,       /* no such object, or an older generation of it               -> NOT_FOUND */
    STORE_E_LEASE = 2,       /* the sequence is leased to somebody else                    -> PERMISSION_DENIED */
    STORE_E_STATE = 3,       /* object is quarantined or in the wrong state                -> FAILED_PRECONDITION */
    STORE_E_RANGE = 4,       /* an argument is outside what the object or configuration allows -> OUT_OF_RANGE */
    STORE_E_NEVER = 5,       /* more than the store could give with nothing else in it      -> INVALID_ARGUMENT */
    STORE_E_SHORT = 6,       /* short now; may fit after releases                           -> RESOURCE_EXHAUSTED */
    STORE_E_ENTITLEMENT = 7, /* mapping past the entitlement (SPACE-5)                      -> OUT_OF_RANGE */
    STORE_E_REVISION = 8,    /* recipe or plan made at another revision, or a victim is claimed -> ABORTED */
    STORE_E_INCOMPLETE = 9,  /* would publish an incomplete continuation (CONT-1)           -> FAILED_PRECONDITION */
    STORE_E_NAME = 10,       /* another digest than the page has, or a wrong tail (CONT-2) -> INVALID_ARGUMENT */
    STORE_E_PROTECTED =
        11,                /* would change columns that a checkpoint or another sequence reads -> FAILED_PRECONDITION */
    STORE_E_ARGUMENT = 12, /* malformed (duplicate victims, unknown flag)                  -> INVALID_ARGUMENT */
    STORE_E_TIER = 13,     /* there is no host tier                                       -> FAILED_PRECONDITION */
    STORE_E_DAMAGED = 14,  /* bytes in the arena do not match their checksum               -> DATA_LOSS */
    STORE_E_BUSY = 17,     /* claimed, being copied or still read: passes by itself      -> ABORTED */
    STORE_E_UNNAMED = 18,  /* pages that must have a name first have none (CONT-2)       -> FAILED_PRECONDITION */
    /* Of commits only; nothing is refused: */
    STORE_MORE = 15, /* this stage is done, there are more copies to make: list them */
    STORE_WAIT = 16  /* all own copies are done, another transition is bringing pages that this one needs, or has been
                        promised one: try when one has ended */
};

/* What was short, or what the argument was about. */
enum store_subject {
    STORE_S_NONE = 0,
    STORE_S_PAGES,
    STORE_S_ROW,
    STORE_S_SEQUENCE,
    STORE_S_CONTINUATION,
    STORE_S_PAGE_DESCRIPTOR,
    STORE_S_MEMBERSHIP,
    STORE_S_STATE_SLOT,
    STORE_S_ARENA,
    STORE_S_COMMIT,
    STORE_S_TRUNCATE,
    STORE_S_KEEP,
    STORE_S_ENSURE,
    STORE_S_FRONTIER,
    STORE_S_PROMPT,
    STORE_S_OUTPUT,
    STORE_S_DIGEST,
    STORE_S_TAIL,
    STORE_S_RECIPE,
    STORE_S_STATE_FRONTIER,
    STORE_S_MOVE,    /* transitions that move pages between device and host at once */
    STORE_S_DOMAIN,  /* root digests */
    STORE_S_REPLICA, /* pages whose other replica is missing: dropping this one would lose them */
    STORE_S_LENT,    /* pages that a sequence lends, and that sequence */
    STORE_S_BOUNDARY /* of rolling checkpoints */
};

struct store_refusal {
    enum store_code code;
    enum store_subject subject;
    uint32_t pool;              /* KVD_NONE where no pool is meant */
    uint64_t asked, had, limit; /* in the unit of `what` (pages, tokens, slots, ...) */
};

/* Writes the sentence: what was asked, what there was, what to change. Returns buf. */
const char *store_refusal_text(const struct store_refusal *refusal, char *buf, size_t bytes);

/* ---- life ---------------------------------------------------------------------------------- */

/* Bytes that store_init needs for this configuration; 0 if the configuration is invalid or overflows. */
size_t store_bytes(const struct store_config *config);
/* Checks the configuration with a sentence. 0 or STORE_E_RANGE. */
int store_check_config(const struct store_config *config, char *err, size_t err_bytes);
/* memory: store_bytes() bytes, 64-byte aligned, owned by the caller, kept until the store is no longer used. */
int store_init(void *memory, size_t bytes, const struct store_config *config, struct store **ret_store, char *err,
               size_t err_bytes);

/* Pages that a running sequence maps of a window pool at once, at most (GRP-3): window, lead, what grows between two
 * boundaries, and a page for each end that is not aligned. */
uint32_t store_window_pages(const struct store_config *config, uint32_t pool);

const struct store_config *store_get_config(const struct store *store);
uint32_t store_n_pools(const struct store *store);
/* L and C. The mirror row: L entries, -1 outside the membership (ROW-1, ROW-6). Stable address. */
uint32_t store_row_entries(const struct store *store);
const int32_t *store_table_row(const struct store *store, uint32_t pool, uint32_t row);

/* Increases when ownership, placement, free or reserved numbers, or arena geometry change; not for mapping and commits
 * inside a sequence's own reservation. */
uint64_t store_revision(const struct store *store);

/* ---- tiers (PAGE-1, PAGE-3, PAGE-7) ------------------------------------------------------------
 *
 * A page has a device replica, a host replica, or both. A host replica is valid for n columns while its epoch is the
 * page's and it covers n columns. It is current when it covers what is committed. Each has an extent of its own.
 *
 * A continuation is demoted when all its pages are current in the host and it needs none of them on the device. A page
 * leaves the device when only demoted continuations refer to it and no copy uses it, so pages that they share with
 * others stay. The host replicas of a demoted continuation cannot be dropped: the only valid source is never released.
 *
 * Two transitions copy pages between the tiers: a move, and an activation. The activation restores what its source
 * lacks, in pages of its own reservation (ACT-7), and demotes victims. A page is copied in once; other transitions that
 * need it wait (STORE_WAIT).
 * Destinations are invisible until the commit, and both ends are pinned until then. */

/* A copy to make. Whole pages may be copied; `columns` matter. */
enum store_copy_kind {
    STORE_COPY_PAGE = 0,      /* device page src -> device page dst */
    STORE_COPY_STATE = 1,     /* device slot src -> device slot dst */
    STORE_COPY_PAGE_OUT = 2,  /* device page src -> arena bytes at host; tell store_copied_out the checksum */
    STORE_COPY_PAGE_IN = 3,   /* arena bytes at host -> device page dst; checksum must match, else store_damaged */
    STORE_COPY_STATE_OUT = 4, /* the same of state images: src / dst are slots */
    STORE_COPY_STATE_IN = 5
};
struct store_copy {
    enum store_copy_kind kind;
    uint32_t pool, src, dst, columns;
    uint64_t host, bytes; /* offset in the arena, and length there: the pool's stride */
    uint64_t checksum;    /* IN: XXH3-64 of those bytes, as told by store_copied_out */
    uint64_t replica;     /* names the replica to store_copied_out and store_damaged */
};

/* Whose copies: an activation's or a move's. */
typedef struct store_move {
    uint64_t bits;
} store_move; /* 0 = none */
struct store_transition {
    bool is_move;
    uint64_t bits; /* of the store_seq or store_move */
};
/* The copies of the current stage, each once; *cursor 0 to begin, the same list until the next commit. Returns how many
 * were written (0: the end). */
uint32_t store_next_copies(const struct store *store, struct store_transition of, uint64_t *cursor,
                           struct store_copy *ret_copies, uint32_t max);
/* Copies and payload bytes of the current stage, by direction. */
struct store_work {
    uint32_t copies_out, copies_in, copies_device;
    uint64_t bytes_out, bytes_in;
};
int store_get_work(const struct store *store, struct store_transition of, struct store_work *ret_work);
/* Between a copy's end and the commit of its stage. Checksum of the packed bytes in the arena. */
void store_copied_out(struct store *store, uint64_t replica, uint64_t checksum);
/* The bytes of a host replica do not match their checksum: the replica is dropped. Where it was the only valid one the
 * page is lost: every continuation that holds it is shortened to the pages before it, or released where there are none
 * or a state image belongs to its frontier. (Those that a transition holds: when it has ended; its commit answers
 * STORE_E_DAMAGED.) Returns the number of continuations released now. */
uint32_t store_damaged(struct store *store, uint64_t replica);

/* What damage took, each time once, oldest first; of more than 64 that nobody took the oldest are forgotten. False:
 * there is none. */
struct store_loss {
    store_cont cont;
    uint32_t frontier; /* that it was shortened to; 0: it was released */
};
bool store_take_loss(struct store *store, struct store_loss *ret_loss);

/* Changes of what the list of continuations shows (FEED-1): made, named, shortened, demoted or brought back, used, of
 * another class, or gone. They are numbered from 0 on, and the last ones are kept, at least twice as many as there are
 * continuations at most. */
uint64_t store_changes_begin(const struct store *store); /* number of the oldest one that is kept */
uint64_t store_changes_end(const struct store *store);   /* that the next one will have */
/* What has become of the continuation of the first change from *number on, and before end, that is the last of its
 * continuation; *number is behind it then. A frontier of 0: it is gone. It may be told to be gone several times. False:
 * there is none, and *number is end. It takes a step for each change that it passes.
 * store_changes_begin <= *number <= end <= store_changes_end. */
bool store_next_change(const struct store *store, uint64_t *number, uint64_t end,
                       struct kvd_continuation_info *ret_info);

enum store_place {
    STORE_PLACE_HOST = 0,  /* demote: host replicas of all pages, then it is demoted */
    STORE_PLACE_BOTH = 1,  /* host replicas; the device's stay, and those that are missing there are not brought */
    STORE_PLACE_DEVICE = 2 /* prefetch: device replicas of all pages; no longer demoted; host replicas stay */
};
/* Takes extents or pages for what is missing, all or nothing, pins, and lists copies (none: commit at once). With state
 * the image moves likewise: HOST copies it and frees its slot at commit. The continuation stays usable meanwhile; it
 * may even be gone at commit, which then keeps what it still can. */
int store_move_begin(struct store *store, store_cont cont, enum store_place place, store_move *ret_move,
                     struct store_refusal *refusal);
/* STORE_OK: published; STORE_WAIT, STORE_E_DAMAGED (ended, nothing more to do). */
int store_move_commit(struct store *store, store_move move, struct store_refusal *refusal);
int store_move_abort(struct store *store, store_move move, struct store_refusal *refusal);
/* Drops the redundant replicas of one tier. ret_dropped: pages by pool.
 * KVD_TIER_HOST: those of pages that are on the device and that no demoted continuation needs. Refused with
 * STORE_E_STATE where a page is not on the device. A demoted continuation is no longer demoted then.
 * KVD_TIER_DEVICE: the continuation is demoted. Refused with STORE_E_STATE, STORE_S_REPLICA and the number of pages
 * that are not current in the host. */
int store_drop_replica(struct store *store, store_cont cont, enum kvd_tier tier, uint32_t ret_dropped[KVD_MAX_POOLS],
                       struct store_refusal *refusal);

/* Scrub: returns true with the next host replica (a page or a state image) in the order of descriptors; one at a time.
 * Its bytes stay where they are until store_scrub_end, but the replica may go. A copy of 0 bytes says that this call
 * found none among those that it looked at: call again, without an end. Returns false when the round is over or there
 * is no arena; the next call begins anew. */
bool store_scrub_begin(struct store *store, struct store_copy *ret_copy);
/* right: the bytes had their checksum. Returns true when they had not and the replica is still there: then
 * store_damaged was done, and *ret_released is its number. */
bool store_scrub_end(struct store *store, bool right, uint32_t *ret_released);

/* ---- what the cold tier reads (COLD-4) ----
 *
 * Replicas are read as the scrub reads them: one at a time, nothing is pinned, and the bytes of the one that is read
 * stay where they are until the end. */

/* The first block that going on from a frontier reads of a pool (GRP-4). Of what is constant: any thread. */
uint32_t store_first_block(const struct store *store, uint32_t pool, uint32_t frontier);

enum store_piece_kind { STORE_PIECE_PAGE = 0, STORE_PIECE_TAIL, STORE_PIECE_IMAGE };
struct store_piece {
    enum store_piece_kind kind;
    struct store_copy copy; /* columns: those of the piece, perhaps fewer than the page has */
    kvd_digest digest;      /* of the page; of a tail what is before it; of an image the last page, or the root */
    struct kvd_tail tail;   /* of a tail, and of an image that ends one; else n is 0 */
};
/* The next piece of a continuation that has a host replica and a name: pages block by block, each in all pools, then
 * its tail, then its image. *cursor: 0 to begin; moved on. The end comes with store_read_end. False: there is no
 * further one, or no such continuation, or one is being read. */
bool store_read_begin(struct store *store, store_cont cont, uint64_t *cursor, struct store_piece *ret_piece);
/* As store_scrub_end. */
bool store_read_end(struct store *store, bool right, uint32_t *ret_released);
/* A continuation is to be written as if it had been demoted: ages: now, else at 0. One that is gone is not. */
void store_note_retained(struct store *store, store_cont cont, bool ages);
bool store_is_noted(const struct store *store, store_cont cont); /* it was demoted or noted, and was not taken since */
/* The one that was demoted or noted last, each time once; of more than 1,024 the oldest are forgotten. at_ns: when, by
 * the time that was told. It may be gone. False: there is none. */
bool store_take_demoted(struct store *store, store_cont *ret_cont, uint64_t *ret_at_ns);
uint64_t store_demoted_waiting(const struct store *store, uint64_t *ret_forgotten);

/* ---- what comes from the cold tier (COLD-3) ----
 *
 * A continuation in the host, of pages and an image whose bytes others have computed. begin takes extents for all of
 * it, or nothing; the caller writes each piece there, and tells its checksum (store_copied_out); commit publishes what
 * has one. Until then nobody finds or sees it. One at a time. */

struct store_fetch {
    struct kvd_root root;
    store_cont from; /* its first `first` pages are shared, wherever they are; none: the domain begins */
    uint32_t first, n;
    const uint8_t (*digests)[32]; /* n: of the pages that follow */
    const struct kvd_tail *tail;  /* behind them; NULL: none */
    uint32_t retention;
    uint64_t tag;
};
struct store_fetched {
    store_cont cont;   /* an equal one, where there is one (FIT-5); none: nothing of use has come */
    uint32_t frontier; /* as far as pages have come, without a gap; with a state image all, or 0 */
};
/* STORE_E_SHORT: the arena, descriptors or membership; or one is under way (STORE_S_MOVE). */
int store_fetch_begin(struct store *store, const struct store_fetch *want, store_cont *ret_cont,
                      struct store_refusal *refusal);
/* The pieces that are to come, in the order of store_read_begin: copy.host, copy.bytes and copy.replica say where to.
 * *cursor: 0 to begin. False: there is no further one. */
bool store_fetch_next(const struct store *store, store_cont cont, uint64_t *cursor, struct store_piece *ret_piece);
/* It is demoted where all of it is in the host. STORE_E_STALE: none is under way with this handle. */
int store_fetch_commit(struct store *store, store_cont cont, struct store_fetched *ret_fetched,
                       struct store_refusal *refusal);
int store_fetch_abort(struct store *store, store_cont cont, struct store_refusal *refusal);

/* ---- directory and recovery (CONT-3) ---- */

struct directory;
/* Recovery comes after store_init and before anything else. It fills the empty store from the directory, and from then
 * on everything that the store holds is recorded there. store_set_directory records without recovery (NULL: nothing is
 * recorded). The directory has the limits of store_directory_limits. */
struct directory_limits;
void store_directory_limits(const struct store *store, struct directory_limits *ret_limits);
struct store_recovered {
    uint32_t
        continuations;  /* kept, of records of continuations and of sequences (which end at their committed frontier) */
    uint32_t shortened; /* of those: cut to the leading pages that have a place */
    uint32_t dropped;   /* records of which nothing could be kept */
    uint32_t damaged;   /* records and parts whose check word is wrong */
    uint32_t pages[KVD_MAX_POOLS], dropped_pages[KVD_MAX_POOLS];
    uint32_t images; /* state images in the host */
};
/* device_lives: the device parts of the records hold (adopted pools). Checks every record against geometry and all
 * others; what contradicts is dropped. The directory is rewritten to what was kept before this returns. */
void store_recover(struct store *store, struct directory *directory, bool device_lives,
                   struct store_recovered *ret_recovered);
void store_set_directory(struct store *store, struct directory *directory);

/* KEEP-1: one bundle of a directory of other limits, whose arena is another one, too. After store_set_directory, with
 * nothing running. Its pages go on in the host; it is cut to what fits, with a state image not at all. */
struct store_import {
    const struct directory *directory;
    uint32_t *map[KVD_MAX_POOLS]; /* a number a page of that directory, KVD_NONE at first: what it has become */
    uint64_t arena_bytes;
    void (*copy)(void *context, uint64_t from, uint64_t to, uint64_t bytes); /* offsets in the two arenas; at once */
    void *context;
};
/* kind: enum directory_kind. Returns the frontier that was kept; 0: nothing. */
uint32_t store_import(struct store *store, const struct store_import *from, uint32_t kind, uint32_t slot);

/* ---- activation (ACT-*) ---------------------------------------------------------------------- */

/* Entitlement of a pool, in pages (SPACE-3). The ceiling is T = prompt + max_output_tokens - 1 tokens, min(S, T +
 * draft_window - 1) in an MTP pool. Without lease growth the entitlement is pages(ceiling). With it: the prompt, a
 * window W = max(lease_window, prefill_chunk) and the cushion = ceil((widest_verify + draft_window + 2)/64) + 1 pages,
 * that is min(pages(ceiling), pages(min(S, prompt + W [+ draft_window - 1 for MTP])) + cushion).
 *
 * Source: `from` none = root. keep = the source survives (Fork at `frontier`); not keep = it is consumed (Move;
 * trailing pages past frontier are dropped). The store still copies a tail whenever another reference to it survives
 * (ACT-3).
 *
 * With windows the frontier must be one from which the source's windows suffice to go on: its own, or one that reads
 * from the same block on (GRP-4; else STORE_E_RANGE with the pool, had: the lowest). In a window pool the entitlement
 * is what a window, its lead and one step take, however long the request is (GRP-3). */
struct store_activation {
    struct kvd_root root; /* domain of the sequence (NAME-1), for its life. With a source it must be the source's; a
                           * digest of zeros takes that one */
    store_cont from;
    bool keep;
    uint32_t frontier;                /* F <= source frontier (else STORE_E_STALE: it may have been shortened since),
                                       * >= 1 with a source; 0 for root */
    uint64_t lease;                   /* who may drive it: opaque, nonzero */
    uint32_t prompt_tokens;           /* whole prompt, >= frontier */
    uint32_t max_output_tokens;       /* 1 to S - prompt + 1: STORE_E_RANGE past it, never cut silently */
    uint32_t ensure[KVD_MAX_POOLS];   /* tokens to map at once, lower bound; <= entitlement. 0 = only the membership of
                                           the source */
    const struct kvd_victim *victims; /* recipe: they give way atomically with the activation, or not at all (ACT-8):
                                       * released, demoted, or shortened (as by store_shorten, to less than they are) */
    uint32_t n_victims;               /* at most KVD_MAX_VICTIMS */
    uint64_t revision;                /* recipe made at; 0 = do not check */
    uint64_t
        tag; /* the owner's, opaque: carried by the sequence and the continuations made of it, also over a restart */
    uint32_t checkpoint_every; /* GRP-5: at each multiple of so many tokens, itself one of 64; 0: at none */
    bool checkpoint_prompt;    /* and at the last page boundary before the prompt's last token */
};

struct store_activated {
    store_seq seq;
    uint32_t n_copies; /* those of this stage from device page to device page; store_next_copies lists all that are to
                          be made */
    struct store_copy copies[STORE_MAX_COPIES];
    bool staged; /* victims must be demoted before anything can be mapped: the first stage's copies are those; rows
                    follow with STORE_MORE */
    uint32_t state_slot;              /* KVD_NONE without state */
    uint32_t source_state_slot;       /* slot to copy from on the device; pinned until the first commit. KVD_NONE: none
                                         (root, a move, or the image was restored into state_slot) */
    uint32_t restored[KVD_MAX_POOLS]; /* pages that come from the host */
    uint32_t victims_lost;            /* released or shortened at begin, past recall */
    struct kvd_pool_view pool[KVD_MAX_POOLS]; /* slices empty while the rows show nothing */
};

/* Plan: the answer that activate would give, changing nothing. */
int store_plan_activation(struct store *store, const struct store_activation *want, struct kvd_plan *ret_plan,
                          struct store_refusal *refusal);

/* KEEP-2: what one continuation is worth beside another: the retention counts first, then the last use. < 0: it goes
 * before the other one. */
int store_compare_value(uint32_t retention, uint64_t used, uint32_t than_retention, uint64_t than_used);

/* Choice: the shortest recipe in an order that the caller names: of the lowest retention first, of one retention
 * the least recently used. It leaves out what gives nothing that is short, and of the last one, where that is released,
 * the pages before what is needed of it: it is shortened. Changes nothing, and takes time in proportion to the pages of
 * what goes. */
struct store_choice {
    struct store_activation want; /* without victims */
    uint32_t max;                 /* victims that are wanted at most; KVD_MAX_VICTIMS is the limit */
    bool demote;                  /* those that go from the device are demoted, as far as the arena can hold them */
    bool of_tag;                  /* only those of this tag */
    uint64_t tag;
};
struct store_chosen {
    uint32_t n;           /* victims */
    bool more;            /* they do not suffice, and there are more than max */
    struct kvd_plan plan; /* with them. Where it is KVD_BLOCKED and n is 0: nothing that is idle would help */
};
/* ret_victims: as many as max. Errors: those of store_plan_activation. */
int store_choose_victims(struct store *store, const struct store_choice *how, struct kvd_victim *ret_victims,
                         struct store_chosen *ret_chosen, struct store_refusal *refusal);

/* begin takes everything for all pools, or nothing. Then the sequence is ACTIVATING; source and victims are claimed and
 * intact. The row mirror is filled, unless victims must be demoted first (staged) or bytes are still to come into what
 * it maps: a destination is in no row before its copy has ended.
 *
 * What only the victims, or the dropped pages of a moved source, will free is not in `reserved` before the commit.
 * Entries mapped past the free pages name pages that victims hold until then: nobody may write them before.
 *
 * Exception: where the copies need pages, membership or extents that are not free, victims to be released or shortened
 * go at begin for good, and abort returns how many.
 *
 * Victims may contain a moved source, which goes anyhow. A moved source must have no other activation in flight and no
 * fork that still reads its state slot (STORE_E_STATE). With state images, frontier must be the source's own (CONT-4).
 */
int store_activate_begin(struct store *store, const struct store_activation *want,
                         struct store_activated *ret_activated, struct store_refusal *refusal);
/* Ends a stage.
 * STORE_OK: published. Victims are released, shortened or demoted; a moved source has become the sequence.
 * STORE_MORE: the next stage. Staged victims have given way and are past recall, and the next copies are listed; or all
 * bytes are there and the row mirror is filled now, which is published before the last commit.
 * STORE_WAIT: another transition brings pages that this one needs. Try again when one has ended.
 * STORE_E_DAMAGED, STORE_E_REVISION: damage took what it was to be made of, or what its victims were to give. Abort it.
 */
int store_activate_commit(struct store *store, store_seq seq, struct store_refusal *refusal);
/* As it is now, in the form of begin's answer, slices = the whole membership, once the rows show it: after STORE_MORE,
 * and for the reply. */
int store_activate_look(const struct store *store, store_seq seq, struct store_activated *ret_activated,
                        struct store_refusal *refusal);
/* Restores the full inactive state, but for victims that were released already: *ret_victims_lost. Restored pages leave
 * the device again unless others use them. */
int store_activate_abort(struct store *store, store_seq seq, uint32_t *ret_victims_lost, struct store_refusal *refusal);

/* ---- round boundary --------------------------------------------------------------------------- */

/* One sequence's boundary: all of it in all pools, or nothing. What `ask` does not name is not looked at. Order in a
 * pool:
 *   commit    the new committed frontier, from the old one up to membership * 64 (SPACE-6)
 *   truncate  shortens the committed frontier: new epochs (PAGE-8). Not below protected coverage or into a shared page.
 *             Pages stay mapped. Nor to where a window has left what is read (STORE_E_RANGE; had: the lowest that is
 * held) keep      the provisional frontier: trailing pages past max(committed, keep) return to the reservation
 * (SPACE-7), but none before one that a move in flight copies growth    with lease growth only ensure    tokens that
 * must be mapped, a lower bound (SPACE-5) Lease growth, each pool on its own: a pool is thin when
 * max(min(pages(committed) + cushion, pages(ceiling)), pages(ensure)) is more than the entitlement. An ensure past
 * pages(ceiling) is refused (STORE_E_ENTITLEMENT). For extra = W, 128, 64 the entitlement becomes min(pages(ceiling),
 * max(entitlement, pages(min(S, committed + extra)) + cushion, pages(ensure))) if the pool can give that. If the last
 * is refused too, the result is bounded: pages are mapped as far as the entitlement reaches. Of several bounded pools
 * the nearest frontier is told.
 *
 * GRP-2, GRP-3: the pages behind a window go after the commit and before anything is mapped. Their entries become -1,
 * and the slice begins with them. A window pool has no lease to grow: its entitlement is the block up to which it may
 * map now, which moves with the window, and an ensure past it is refused.
 *
 * FIT-4: where none of the three is there, the last is taken from the continuations of `growth`, and from nobody else:
 * in their order, as few as suffice, less those that give nothing; none where all of them do not suffice. One whose
 * `demote` is set rests where the host has all of it already, and is released where it has not. Passed over is what is
 * gone, held by a transition, or cannot be shortened to its frontier. */
struct store_round_item {
    store_seq seq;
    uint64_t lease;
    uint32_t ask;            /* KVD_ROUND_STATE, or 0 */
    uint32_t state_frontier; /* of the image in the sequence's slot now. 0: it is being written. Not asked: as before,
                              * but a truncation below it outdates the image */
    bool ahead;              /* where `ensure` is mapped already, pages are mapped ahead of it all the same */
    struct kvd_round_pool pool[KVD_MAX_POOLS];
    const struct kvd_victim *growth; /* who may go where lease growth lacks room; at most KVD_MAX_VICTIMS */
    uint32_t n_growth;
    uint64_t ticket;         /* of copies of state images: to store_rolling_copied. 0: none */
    struct kvd_victim *gone; /* room for n_growth: those that went. frontier: what is left of each, 0: released */
};
struct store_round_result {
    struct store_refusal refusal; /* code STORE_OK: applied */
    bool bounded; /* lease growth refused: the request ends at bounded_frontier = min(entitlement * 64, ceiling) tokens
                   * (SPACE-4); everything else was applied */
    uint32_t bounded_pool, bounded_frontier;
    uint32_t n_gone;   /* entries of the item's `gone` */
    uint32_t n_rolled; /* rolling checkpoints taken */
    store_cont rolled; /* with state images: a rolling checkpoint whose image is to be copied; else none */
    struct store_copy
        image; /* that copy. Its end is told by store_rolling_copied, or by store_checkpoint_commit and _abort */
    struct kvd_pool_view pool[KVD_MAX_POOLS];
};
/* GRP-5: where the frontier that all pools have passes a boundary that the activation asked for, a checkpoint of it is
 * taken before anything behind a window goes. With state images that takes an item whose commits end at the boundary
 * and whose state_frontier says that the slot has the image of it. It waits, and no request can name it, until all its
 * pages have names (and the image is copied): then it is found. Where the sequence has max_rolling of its own already,
 * the oldest that nobody uses goes for it; the last one that is found goes only where no other may. What lacks a
 * descriptor, a page, a slot or membership is skipped and counted, and the item is applied all the same. Its own
 * checkpoints stop no truncation: those that lie behind it go.
 */
struct store_rolling {
    store_cont cont;
    uint32_t frontier;
    bool found; /* it has its names */
};
/* A sequence's own, the oldest first. Returns how many. */
uint32_t store_get_rolling(const struct store *store, store_seq seq,
                           struct store_rolling ret_rolling[STORE_MAX_ROLLING]);
/* The images of all rolling checkpoints taken by items with this ticket (not 0) are copied, or (ok: false) never will
 * be. */
void store_rolling_copied(struct store *store, uint64_t ticket, bool ok);
/* Never fails as a whole; neighbours of a bad item are applied. */
void store_round(struct store *store, const struct store_round_item *items, uint32_t n,
                 struct store_round_result *results);

/* ---- names (CONT-2) ------------------------------------------------------------------------------ */

/* Digest i names Main pages 0..i of this chain (it commits to all tokens before it). Pages [first, first+n) must be
 * fully committed; a page that has a name must have the same one. */
int store_name_pages(struct store *store, store_seq seq, uint64_t lease, uint32_t first, uint32_t n,
                     const uint8_t (*digests)[32], struct store_refusal *refusal);

/* ---- pages that an engine hands out itself (ENG-1 to ENG-4) --------------------------------------
 *
 * A sequence that began from nothing and has committed nothing can lend its pages.
 * All that it is entitled to are mapped, in no order that means anything, and its row lists them.
 * Of each page the store knows that it is blank, complete and named, or written up to a column: the tail of one
 * continuation. Nobody reads behind that column; the engine goes on writing there.
 * Finish with release, and the end, give all back.
 * What has a name stays with the continuations that hold it.
 * A lending sequence has no boundary, no names and no checkpoint of its own (STORE_E_STATE).
 * There must be one pool, and no state image.
 */

struct store_lent {
    uint32_t adopted;
    struct kvd_pool_view pool[KVD_MAX_POOLS]; /* slice: the whole row */
};
/* adopt: the complete pages on the device that no sequence holds are lent, too, beyond the entitlement, as far as a row
 * reaches: chain by chain, each page behind the one before it. */
int store_lend(struct store *store, store_seq seq, uint64_t lease, bool adopt, struct store_lent *ret_lent,
               struct store_refusal *refusal);

/* The bytes of n blank pages are complete: they continue the first `first` pages of `from` (none: 0, and the domain
 * begins) and make a continuation with those. replace: `from` goes, where all of it is continued and nobody uses it.
 * tail: of the last of the pages only so many columns are written, with these tokens.
 * The page that `from` ends in may stand first, with all full pages of `from` before it. Then it has more columns now,
 * the old ones as they were, and `from` goes. STORE_E_NAME: it has not more, or other tokens; STORE_E_BUSY: something
 * copies from it. */
struct store_lent_name {
    store_cont from;
    uint32_t first, n;
    struct kvd_root root;              /* without `from` */
    const struct kvd_lent_page *pages; /* n, blank, each once */
    const struct kvd_tail *tail;       /* NULL or none: all are complete. The last page's digest is not read then */
    uint32_t retention;
    bool replace;
};
struct store_lent_named {
    store_cont cont;
    bool stood; /* an equal one was there, on the device (FIT-5): the pages stay blank */
};
int store_name_lent(struct store *store, store_seq seq, uint64_t lease, const struct store_lent_name *want,
                    struct store_lent_named *ret_named, struct store_refusal *refusal);

/* again: the pages are blank from now on, under the same ids, and may be overwritten. STORE_E_STATE, STORE_S_REPLICA:
 * a continuation that is not demoted needs one (demote, shorten or release it first); STORE_E_BUSY: a copy or a running
 * sequence reads it. Else: they are lent no more; what has a name stays, and the sequence is entitled to as many less.
 */
int store_return_lent(struct store *store, store_seq seq, uint64_t lease, const struct kvd_lent_page *pages, uint32_t n,
                      bool again, struct kvd_pool_view *ret_view, struct store_refusal *refusal);

/* Pages [first, first + max) of a continuation that have names: place on the device (KVD_NONE: none) and digest. */
int store_read_chain(const struct store *store, store_cont cont, uint32_t first, uint32_t max,
                     struct kvd_lent_page *ret_pages, uint32_t *ret_n, struct store_refusal *refusal);

/* ---- checkpoint, finish, death ------------------------------------------------------------------- */

struct store_checkpointed {
    store_cont cont;
    uint32_t frontier;
    uint32_t n_copies; /* device to device */
    struct store_copy copies[STORE_MAX_COPIES];
    uint32_t shared_pages[KVD_MAX_POOLS];
    bool is_published; /* an equal one was there and is this checkpoint: nothing to copy, no commit, nothing shared */
    uint32_t n_gone;   /* victims that have given way: all, or none where an equal one was there */
};
struct store_checkpoint {
    const struct kvd_tail *tail; /* NULL: none */
    uint32_t retention;
    const struct kvd_victim *victims; /* recipe: they give way at begin, past recall (ACT-8) */
    uint32_t n_victims;               /* at most KVD_MAX_VICTIMS */
    uint64_t revision;                /* recipe made at; 0 = do not check */
};
/* Of a running sequence at its committed frontier (CKPT-1): full pages shared, tail copied, the row is not touched, the
 * sequence goes on. The continuation is invisible until commit. Several may be in flight, and the sequence may finish
 * or end meanwhile: the pages and the slot that are copied from stay pinned until commit or abort, and until then the
 * sequence cannot be truncated below the copied frontier. Needs every full Main page named and the tail's tokens, equal
 * frontiers in all pools, and, with state, state_frontier == committed. Of a window pool the window alone is shared;
 * for each page that would have come back to the sequence another is reserved (GRP-3).
 *
 * Its victims give way in the same transaction: what they leave (pages, descriptors, slots, membership) is the
 * checkpoint's. A victim to be demoted must have been copied already (STORE_E_STATE, STORE_S_REPLICA), since nothing
 * here waits for copies to the host. */
int store_checkpoint_begin(struct store *store, store_seq seq, uint64_t lease, const struct store_checkpoint *want,
                           struct store_checkpointed *ret_checkpointed, struct store_refusal *refusal);
/* ret_cont (may be NULL): the handle to go by: of an equal continuation, if one came to be meanwhile (FIT-5); none of a
 * rolling checkpoint that has no names yet. */
int store_checkpoint_commit(struct store *store, store_cont cont, store_cont *ret_cont, struct store_refusal *refusal);
int store_checkpoint_abort(struct store *store, store_cont cont, struct store_refusal *refusal);

/* FIN-1. Release everything, or retain a continuation (same conditions as a checkpoint; no copy, and nothing that could
 * be short). ret_cont is none after a release, and an equal continuation that was there already (FIT-5): same names,
 * tail, frontier and tag, in no activation. That one counts as used now, gets the higher retention, and, where its own
 * pages are not all on the device, these pages. Slices of the freed rows (now -1) are in ret_rows, row numbers
 * included. */
enum store_finish { STORE_FINISH_RELEASE = 0, STORE_FINISH_RETAIN = 1 };
int store_finish(struct store *store, store_seq seq, uint64_t lease, enum store_finish how, const struct kvd_tail *tail,
                 uint32_t retention, store_cont *ret_cont, struct kvd_pool_view ret_rows[KVD_MAX_POOLS],
                 struct store_refusal *refusal);

/* SRV-5. Quarantine: the worker is lost but not proven gone; nobody may drive the sequence, its pages stay.
 * Unquarantine: it came back. */
int store_quarantine(struct store *store, store_seq seq, bool on, struct store_refusal *refusal);
/* The worker is proven gone: the sequence becomes inactive at its committed frontier if complete (the smallest frontier
 * over pools, without state; with state only when state_frontier equals it), named as far as its pages are named, else
 * it is released. An ACTIVATING sequence is aborted. */
int store_end(struct store *store, store_seq seq, store_cont *ret_cont, struct kvd_pool_view ret_rows[KVD_MAX_POOLS],
              struct store_refusal *refusal);

/* ---- continuations ---------------------------------------------------------------------------------- */

int store_release(struct store *store, store_cont cont, struct store_refusal *refusal);
/* SHORT-1: cuts it to a frontier, all or nothing. Handle, retention and time of use stay. The pages behind go with
 * their last reference, and so do tokens of the tail. frontier: 1 to its own, at a page boundary or inside a tail that
 * is known (else STORE_E_NAME; had: the boundary below); with state images its own only (STORE_E_RANGE). Its own
 * changes nothing. STORE_E_BUSY: claimed, read by a fork, or a copy is under way. */
int store_shorten(struct store *store, store_cont cont, uint32_t frontier, struct store_refusal *refusal);
int store_set_retention(struct store *store, store_cont cont, uint32_t retention, struct store_refusal *refusal);

/* digests[i] is of page first + i of a prompt's chain of full pages in the domain `root`. first == 0 begins at the
 * root. first > 0 goes on where an earlier answer ended, for a chain that is too long for one message: digests[0] is
 * the last digest of the part before, so that it is checked, and anchor is that answer's. tokens: those of the prompt
 * from page token_page on, as many as a tail can have; first those behind its last full page, in a second question
 * those of the page that the answer wants. */
struct store_query {
    kvd_digest root;
    const uint8_t (*digests)[32];
    uint32_t first, n, max; /* max: of ret_hits */
    store_cont anchor;
    uint32_t prompt_tokens, token_page;
    const struct kvd_tail *tokens; /* NULL: none */
};
struct store_found {
    uint32_t n;         /* hits written */
    store_cont anchor;  /* a continuation that has all digests sent and goes on, or shares its path with one that does;
                         * none: no longer match exists */
    uint32_t want_page; /* tails at this page boundary may match further: the same question with the tokens of this
                         * page tells. It is below token_page. KVD_NONE: none do */
};
/* A hit is a continuation of the domain from which an activation may start at `usable`, which is exact and at most
 * prompt_tokens - 1: without state images at any token that both share, within a page of the continuation at its
 * boundary; with state images at the continuation's own frontier only (CONT-4); with windows where they suffice to go
 * on (GRP-4). Only hits count for max (NAME-2). They
 * come best first: most usable tokens, then fewest pages to restore, then the nearest frontier; where more share the
 * same number of tokens than fit, those that end there come first, and which others are told is left open. Those of a
 * part that goes on match past page `first`: they go before the earlier ones. An unpublished or claimed continuation is
 * no hit. A lookup counts as no use. Cost: the branches on the way down from the anchor, and the logarithm of the
 * continuations that end at each. STORE_E_STALE: the anchor has gone. STORE_E_NAME: it has another digest there, or
 * none, or is of another domain. */
int store_find(const struct store *store, const struct store_query *query, struct kvd_hit *ret_hits,
               struct store_found *ret_found, struct store_refusal *refusal);

/* The digest of zeros: no domain is meant. */
bool store_root_is_none(const kvd_digest *digest);
/* A domain is the one that is meant: by its digest, by its label, or by both. Nothing given means every domain. */
bool store_root_is(const struct kvd_root *root, const struct kvd_root *meant);

/* ---- looking ------------------------------------------------------------------------------------------ */

enum store_seq_state { STORE_SEQ_ACTIVATING = 0, STORE_SEQ_ACTIVE = 1, STORE_SEQ_QUARANTINED = 2 };
/* Iterate: *cursor 0 to begin; false at the end. Order is by slot; a published object that lives throughout is seen
 * exactly once. */
bool store_next_seq(const struct store *store, uint32_t *cursor, struct kvd_sequence_info *ret_info);
bool store_next_cont(const struct store *store, uint32_t *cursor, struct kvd_continuation_info *ret_info);
/* Returns the owner's tag of a continuation; 0 where there is none. */
uint64_t store_tag(const struct store *store, store_cont cont);
/* A lookup can lead to it: it has a name, or with state images the name of all of it. */
bool store_can_be_found(const struct store *store, store_cont cont);
/* LIVE-1: the handle of what is found of a running sequence, whether something is now or not (nothing is with state
 * images or windows). It is the same for all its life, and a finish with retain or a death leaves it to what is kept,
 * unless that is an equal one (FIT-5). */
store_cont store_live(const struct store *store, store_seq seq);
int store_seq_look(const struct store *store, store_seq seq, struct kvd_sequence_info *ret_info,
                   struct store_refusal *refusal);
int store_cont_look(const struct store *store, store_cont cont, struct kvd_continuation_info *ret_info,
                    struct store_refusal *refusal);
/* Page ids of a space in logical order (tests, tools). Returns how many were written. */
uint32_t store_seq_pages(const struct store *store, store_seq seq, uint32_t pool, uint32_t *ret_ids, uint32_t max);
uint32_t store_cont_pages(const struct store *store, store_cont cont, uint32_t pool, uint32_t *ret_ids, uint32_t max);
void store_get_stats(const struct store *store, struct kvd_stats *ret_stats);
/* Pages of a pool that are free and promised to nobody (POOL-6). Counted as state changes: costs a subtraction. */
uint32_t store_available(const struct store *store, uint32_t pool);

/* What the physical pages [first, first + n) of a pool are used for, added to ret_counts. Returns how many there were:
 * less than n at the pool's end, 0 behind it. */
enum store_use {
    STORE_FREE = 0, /* or reserved */
    STORE_RUNNING,  /* of one sequence */
    STORE_CACHED,   /* of one continuation */
    STORE_SHARED,   /* of several */
    STORE_USES
};
uint32_t store_count_uses(const struct store *store, uint32_t pool, uint32_t first, uint32_t n,
                          uint32_t ret_counts[STORE_USES]);
/* Iterates the used parts of the arena, in no order of theirs. *cursor is 0 to begin; false at the end. */
bool store_next_extent(const struct store *store, uint32_t *cursor, uint64_t *ret_offset, uint64_t *ret_bytes);
/* Iterates continuations that are kept (none that is live) as store_next_cont does, in time that does not depend on
 * their pages. root is the store's, and valid until the next call that changes something. */
struct store_brief {
    store_cont cont;
    uint32_t retention;
    uint64_t used;
    const struct kvd_root *root;
};
bool store_next_brief(const struct store *store, uint32_t *cursor, struct store_brief *ret_brief);

/* How continuations went. */
enum store_fate {
    STORE_RELEASED = 0, /* by request, or because nobody could find it */
    STORE_EVICTED,      /* as a victim of what needed its place */
    STORE_MOVED,        /* into a sequence */
    STORE_LOST,         /* damaged */
    STORE_FATES
};
/* Of rolling checkpoints. */
enum store_rolling_outcome {
    STORE_ROLLING_FOUND = 0,  /* under its names, or one that stands for it is */
    STORE_ROLLING_SUPERSEDED, /* gone for a newer one of its sequence */
    STORE_ROLLING_SKIPPED,    /* not taken, for want of something */
    STORE_ROLLINGS
};
/* Since store_init. Times are those that store_set_time told: of one that was found in the directory, since then. */
struct store_lives {
    uint64_t made, merged /* kept, but an equal one stood for it */, found /* in the directory */, ended[STORE_FATES];
    uint64_t victims_demoted, victims_shortened; /* they go on; released ones are STORE_EVICTED */
    uint64_t rolling[STORE_ROLLINGS];
    uint64_t committed_tokens; /* by rounds, in Main; what is cut off and committed again counts again */
    struct histogram lifetime[STORE_FATES];
    struct histogram idle[STORE_FATES]; /* from the last use to the end */
    struct histogram reuse_gap;         /* from one use to the next: a fork or a move of it */
};
const struct store_lives *store_get_lives(const struct store *store);
/* Tells the time, for figures alone (any clock that does not go back). Before a call: what it does happened then. */
void store_set_time(struct store *store, uint64_t now_ns);

/* Recomputes INV-1..13, 16, 17 and POOL-6 from scratch. (INV-14 and 15 are the consumers'.) Returns the number of
 * violations; the first ones, a line each, go to text. */
uint32_t store_audit(struct store *store, char *text, size_t bytes);
/* The same in steps, between which the store may be used. One is in work at a time: begin forgets the one before. text:
 * as above, the caller's until the last step. work: looks at records in this step, each of a tenth of a microsecond or
 * less; a step ends with the object in which it is spent. False: it is over.
 *
 * A fault that stood before the audit began is found, unless it concerns what is counted of a page that changed in each
 * of three passes over the pages, the sums where more changed than is remembered, or the free runs of an arena that has
 * more than 8,192 of them: left_out is how many pages, sums and trees that were. A list of free descriptors is followed
 * over 8,192 links. A fault that comes meanwhile may be left to the next audit. */
struct store_audited {
    uint32_t violations, left_out;
};
void store_audit_begin(struct store *store, char *text, size_t bytes);
bool store_audit_step(struct store *store, uint64_t work, struct store_audited *ret_audited);

/* Fault injection for tests: the n-th acquisition from now (page, reservation, row, descriptor, slot, membership chunk,
 * extents) is refused as if that resource were short; 0 = off. Returns the number of acquisitions since the last call.
 */
uint32_t store_fail_acquisition(struct store *store, uint32_t nth);

#endif
