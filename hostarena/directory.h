/* SPDX-License-Identifier: Apache-2.0
 *
 * The directory: what the store holds, recorded in the arena's segment, so that the next kvd finds it after any end of
 * this one. It is plain memory: no file, no lock, no allocation. The caller serialises.
 *
 * A killed process leaves its stores in the order of the program, so readers see a prefix of its history:
 *   - A record is written first and its check word last. The check word is XXH3 of the content, its slot and the
 *     directory's id; the record counts only when it is right.
 *   - A deletion clears the check word first.
 *   - The caller deletes before it uses again: bundles before their pages, a page's host part before the arena bytes
 *     go to another. A lost addition is a miss; a lost deletion would be corruption.
 *
 * Two kinds of records, in fixed tables whose slots are the store's own:
 *   page    (pool, descriptor). Four parts come and go by themselves, each with its own check word:
 *             base    generation, block (its ordinal in every space that holds it), and its predecessor, the page of
 *                     block - 1. A page has one predecessor, since whoever holds a page holds all before it that its
 *                     window reads; so a space is its last page. All parts die with the base.
 *             name    digest (Main pages)
 *             host    packed bytes in the arena: offset, columns, checksum
 *             device  physical page group, valid while the pools of `pools_id` live
 *   bundle  an inactive continuation or an active sequence: frontiers, last page by pool, tail tokens, state image.
 *
 * Cost: every function but format and open is a handful of stores (figure to hold: 5 us a record, names included).
 */
#ifndef KVD_HOSTARENA_DIRECTORY_H
#define KVD_HOSTARENA_DIRECTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DIRECTORY_MAX_POOLS 4
#define DIRECTORY_TAIL 63
#define DIRECTORY_NONE UINT32_MAX

struct directory; /* in the process; the tables are in the segment */

struct directory_limits {
    uint32_t n_pools;
    uint32_t pages[DIRECTORY_MAX_POOLS]; /* descriptors of a pool */
    uint32_t continuations, sequences;
};

/* Bytes of the tables (multiple of 4096); 0 where the limits are zero or overflow. */
size_t directory_bytes(const struct directory_limits *limits);
/* An empty directory in zeroed or any memory. id: random, part of every check word, so that records of an earlier
 * directory never count. */
void directory_format(void *tables, const struct directory_limits *limits, uint64_t id);
/* The handle of tables that were formatted with the same limits and id. memory: directory_handle_bytes(). */
size_t directory_handle_bytes(void);
int directory_open(void *memory, void *tables, const struct directory_limits *limits, uint64_t id,
                   struct directory **ret_directory);

/* ---- pages ------------------------------------------------------------------------------------------------- */

struct directory_base {
    uint32_t generation, block;
    uint32_t parent, parent_generation; /* descriptor of block - 1 in the same pool, which may be gone; DIRECTORY_NONE,
                                         * 0 at block 0, and where nobody reads what is before */
};
struct directory_host {
    uint64_t offset, checksum;
    uint32_t columns; /* 1..64 */
};

/* Over an open page: closes it first. The other parts of a page that is not open are nobody's: setting them does
 * nothing. */
void directory_page_open(struct directory *directory, uint32_t pool, uint32_t page, const struct directory_base *base);
void directory_page_close(struct directory *directory, uint32_t pool,
                          uint32_t page); /* base first, then the rest; closed already: nothing */
void directory_page_name(struct directory *directory, uint32_t pool, uint32_t page,
                         const uint8_t *digest); /* NULL: no name */
void directory_page_host(struct directory *directory, uint32_t pool, uint32_t page,
                         const struct directory_host *host); /* NULL: none */
void directory_page_device(struct directory *directory, uint32_t pool, uint32_t page,
                           uint32_t device); /* DIRECTORY_NONE: none */
bool directory_page_is_open(const struct directory *directory, uint32_t pool, uint32_t page);

struct directory_page {
    struct directory_base base;
    bool named, has_host;
    uint8_t digest[32];
    struct directory_host host;
    uint32_t device;        /* DIRECTORY_NONE */
    uint32_t damaged_parts; /* parts that were there and whose check word is wrong: they do not count */
};
/* False: no such page (never was, closed, or its base is damaged: *ret_damaged true). */
bool directory_page_load(const struct directory *directory, uint32_t pool, uint32_t page,
                         struct directory_page *ret_page, bool *ret_damaged);

/* ---- bundles -------------------------------------------------------------------------------------------------- */

enum directory_kind { DIRECTORY_CONTINUATION = 0, DIRECTORY_SEQUENCE = 1 };
struct directory_bundle {
    uint32_t frontier[DIRECTORY_MAX_POOLS]; /* tokens, committed */
    uint32_t last[DIRECTORY_MAX_POOLS],
        last_generation[DIRECTORY_MAX_POOLS]; /* page of block pages(frontier) - 1; DIRECTORY_NONE: no page, at a
                                                 boundary */
    uint32_t named;                           /* leading pages with names */
    uint32_t retention;
    uint64_t created, used, tag; /* tag: the owner's, opaque */
    uint32_t state_slot;         /* device slot of the image, DIRECTORY_NONE */
    uint32_t state_frontier;     /* frontier of that image */
    bool has_image;              /* host copy of the state image */
    struct directory_host image; /* columns unused */
    uint8_t root[32];            /* root digest of its domain */
    char label[64];              /* of the domain; ends with a zero */
    bool tail_named;
    uint32_t n_tail, tail[DIRECTORY_TAIL]; /* tokens */
};
/* Whole record. A slot has two copies with a serial: the new one is written beside the old one, marked, and then the
 * old one is cleared, so that a kill leaves one of the two; where both check, the higher serial counts. Pools past
 * n_pools and tokens past n_tail are not kept. */
void directory_bundle_put(struct directory *directory, enum directory_kind kind, uint32_t slot,
                          const struct directory_bundle *bundle);
void directory_bundle_drop(struct directory *directory, enum directory_kind kind, uint32_t slot);
/* False: nothing there, or (*ret_damaged true) only what does not check. */
bool directory_bundle_load(const struct directory *directory, enum directory_kind kind, uint32_t slot,
                           struct directory_bundle *ret_bundle, bool *ret_damaged);
bool directory_bundle_is_there(const struct directory *directory, enum directory_kind kind, uint32_t slot);

#endif
