/* SPDX-License-Identifier: Apache-2.0
 *
 * Layout of the directory's tables, shared by directory.c (writes) and directory_load.c (reads). Numbers have this
 * machine's byte order. From offset 0, each table at a multiple of 128 bytes:
 *
 *     pages of pool 0      pages[0] records of 128 bytes
 *     pages of the others  the same
 *     continuations        `continuations` slots of two copies of 512 bytes
 *     sequences            `sequences` slots of two copies of 512 bytes
 *
 * A check word is XXH3 (64 bits) of what it stands for, never 0; 0 says that nothing is there. Its seed ties it to
 * where it stands:
 *     base of a page, copy of a bundle   directory id ^ (table << 33 | copy << 32 | slot); tables 1 to 4 are the
 *                                        pools, 5 and 6 the kinds of bundles
 *     other parts of a page              check word of the base + number of the part: with another base, or none,
 *                                        they are nobody's
 *
 * page record (two cache lines):
 *       0  base    check, generation, block, parent, parent generation (u32)     24
 *      24  name    check, digest                                                 40
 *      64  host    check, offset, checksum (u64), columns, 0 (u32)               32
 *      96  device  check, device, 0 (u32)                                        16
 *     112  spare
 * bundle copy: its check stands for the bytes from `serial` to the last of n_tail tokens.
 */
#ifndef KVD_HOSTARENA_DIRECTORY_INTERNAL_H
#define KVD_HOSTARENA_DIRECTORY_INTERNAL_H

#include <assert.h>

#include "directory.h"
#include "mark.h"

struct base_body {
    uint32_t generation, block, parent, parent_generation;
};
struct name_body {
    uint8_t digest[32];
};
struct host_body {
    uint64_t offset, checksum;
    uint32_t columns, zero;
};
struct device_body {
    uint32_t device, zero;
};

struct page_record {
    struct {
        check_word check;
        struct base_body body;
    } base;
    struct {
        check_word check;
        struct name_body body;
    } name;
    struct {
        check_word check;
        struct host_body body;
    } host;
    struct {
        check_word check;
        struct device_body body;
    } device;
    uint64_t spare[2];
};

#define BUNDLE_IMAGE 1u
#define BUNDLE_TAIL_NAMED 2u
struct bundle_body {
    uint64_t serial;
    uint32_t frontier[DIRECTORY_MAX_POOLS], last[DIRECTORY_MAX_POOLS], last_generation[DIRECTORY_MAX_POOLS];
    uint32_t named, retention;
    uint64_t created, used, tag;
    uint32_t state_slot, state_frontier;
    uint64_t image_offset, image_checksum;
    uint8_t root[32];
    char label[64];
    uint32_t flags, n_tail, tail[DIRECTORY_TAIL];
};
struct bundle_copy {
    check_word check;
    struct bundle_body body;
    uint64_t spare[4];
};

static_assert(sizeof(struct page_record) == 128, "two cache lines");
static_assert(offsetof(struct page_record, host) == 64, "base and name share the first line");
static_assert(sizeof(struct bundle_copy) == 512, "eight cache lines");

struct directory {
    struct directory_limits limits;
    uint64_t id;
    struct page_record *pages[DIRECTORY_MAX_POOLS];
    struct bundle_copy *bundles[2]; /* by kind; [slot * 2 + copy] */
};

enum part { PART_NAME = 1, PART_HOST = 2, PART_DEVICE = 3 };

static inline uint64_t base_check(const struct directory *d, uint32_t pool, uint32_t page,
                                  const struct base_body *body) {
    return check_of(body, sizeof *body, d->id ^ ((uint64_t)(1 + pool) << 33 | page));
}

/* body->n_tail <= DIRECTORY_TAIL. */
static inline uint64_t bundle_check(const struct directory *d, enum directory_kind kind, uint32_t slot, uint32_t copy,
                                    const struct bundle_body *body) {
    size_t bytes = offsetof(struct bundle_body, tail) + body->n_tail * sizeof body->tail[0];
    return check_of(body, bytes,
                    d->id ^ ((uint64_t)(1 + DIRECTORY_MAX_POOLS + (uint32_t)kind) << 33 | (uint64_t)copy << 32 | slot));
}

static inline bool page_is_known(const struct directory *d, uint32_t pool, uint32_t page) {
    return pool < d->limits.n_pools && page < d->limits.pages[pool];
}

static inline bool slot_is_known(const struct directory *d, enum directory_kind kind, uint32_t slot) {
    return slot < (kind == DIRECTORY_CONTINUATION ? d->limits.continuations : d->limits.sequences);
}

/* Which copy of a slot counts: 0 or 1; 2 where none does. */
uint32_t bundle_valid_copy(const struct directory *directory, enum directory_kind kind, uint32_t slot);

#endif
