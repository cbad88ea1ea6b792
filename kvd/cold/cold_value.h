/* SPDX-License-Identifier: Apache-2.0
 *
 * The names and values of the cold tier: what kvd writes into an engine behind it (Redis, Valkey), byte by byte.
 * proto/PROTOCOL.md describes the format with a worked example.
 *
 * An object is one shard of one page, of one tail, or one rank's part of a state image. Its name is made of what it
 * contains, and of nothing else: a late or repeated write is harmless, and no list of objects is needed (COLD-1). The
 * domain is inside the digests. What comes back is compared field by field with what was asked, then by its checksum
 * and, with a key, by its MAC (COLD-3).
 *
 * Pure functions: no I/O, no allocation, any thread. sodium_init comes before.
 */
#ifndef KVD_COLD_VALUE_H
#define KVD_COLD_VALUE_H

#include <stddef.h>
#include <stdint.h>

#include "geometry.h"

#define COLD_DIGEST_BYTES 32u
#define COLD_SECRET_BYTES 32u
#define COLD_HEADER_BYTES 152u
#define COLD_KEY_BYTES 176u /* with the terminator; the longest is shorter */

enum cold_kind { COLD_PAGE = 0, COLD_TAIL = 1, COLD_IMAGE = 2 };

/* What decides what the bytes of objects mean. With a secret it is in both, so that those who do not share it do not
 * meet. */
struct cold_layout {
    uint8_t pages[COLD_DIGEST_BYTES];  /* of pages and tails: of any number of ranks */
    uint8_t images[COLD_DIGEST_BYTES]; /* of state images: also of the ranks and their bytes */
};

struct cold_name {
    uint8_t layout[COLD_DIGEST_BYTES];
    uint8_t digest[COLD_DIGEST_BYTES]; /* of the page's chain; of a tail cold_tail_digest; of an image what it ends */
    uint32_t kind;                     /* enum cold_kind */
    uint32_t pool;                     /* 0 of an image */
    uint32_t shard;                    /* of an image its rank */
    uint32_t columns;                  /* 1 to 64; 0 of an image */
};

/* secret: COLD_SECRET_BYTES, or NULL. */
void cold_layout_of(const struct geom_store_spec *spec, uint32_t n_pools, const uint8_t *secret,
                    struct cold_layout *ret_layout);
/* before: the digest of the page before the tail, or the root. n: 1 to 63 tokens. */
void cold_tail_digest(const uint8_t before[COLD_DIGEST_BYTES], const uint32_t *tokens, uint32_t n,
                      uint8_t ret_digest[COLD_DIGEST_BYTES]);
/* The key under which the engine has it. All objects of one page are in one slot of a cluster. Returns its length. */
size_t cold_key_of(const struct cold_name *name, char ret_key[COLD_KEY_BYTES]);

/* The header before these bytes. */
void cold_value_seal(const struct cold_name *name, const uint8_t *payload, uint64_t bytes, const uint8_t *secret,
                     uint8_t ret_header[COLD_HEADER_BYTES]);

/* Why a value is not served, in the order in which it is looked at. */
enum cold_fault {
    COLD_FINE = 0,
    COLD_FAULT_SHORT,   /* less than a header */
    COLD_FAULT_MAGIC,   /* no value of kvd */
    COLD_FAULT_VERSION, /* of another format */
    COLD_FAULT_HEADER,  /* the header does not match its own checksum */
    COLD_FAULT_LAYOUT,
    COLD_FAULT_DIGEST,
    COLD_FAULT_KIND,
    COLD_FAULT_POOL,
    COLD_FAULT_SHARD,
    COLD_FAULT_COLUMNS,
    COLD_FAULT_LENGTH,
    COLD_FAULT_CHECKSUM,
    COLD_FAULT_MAC,
    COLD_FAULTS
};
/* Whether value is what was asked for, with a payload of so many bytes behind its header. */
enum cold_fault cold_value_check(const struct cold_name *asked, uint64_t payload_bytes, const uint8_t *secret,
                                 const uint8_t *value, uint64_t bytes);
const char *cold_fault_name(enum cold_fault fault); /* one word, for logs and metrics */

#endif
