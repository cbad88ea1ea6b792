/* SPDX-License-Identifier: Apache-2.0 */
#include "cold_value.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "checksum.h"

/* Where the fields of a header stand; all numbers are little-endian. */
enum {
    AT_MAGIC = 0,
    AT_VERSION = 8,
    AT_HEADER_BYTES = 12,
    AT_LAYOUT = 16,
    AT_DIGEST = 48,
    AT_KIND = 80,
    AT_POOL = 84,
    AT_SHARD = 88,
    AT_COLUMNS = 92,
    AT_LENGTH = 96,
    AT_CHECKSUM = 104,
    AT_MAC = 112,
    AT_HEADER_CHECKSUM = 144
};
#define VERSION 1u
_Static_assert(AT_HEADER_CHECKSUM + 8 == COLD_HEADER_BYTES, "the checksum of the header is its last field");

static const uint8_t magic[8] = { 'k', 'v', 'd', 'c', 'o', 'l', 'd', 0 };

static void put_bytes(uint8_t *to, uint64_t value, unsigned n) {
    for (unsigned i = 0; i < n; i++) to[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get_bytes(const uint8_t *from, unsigned n) {
    uint64_t value = 0;
    for (unsigned i = 0; i < n; i++) value |= (uint64_t)from[i] << (8 * i);
    return value;
}

/* ---- names ------------------------------------------------------------------------------------- */

static void hash_layout(const uint8_t shards[COLD_DIGEST_BYTES], uint64_t ranks, uint64_t image_bytes,
                        const uint8_t *secret, uint8_t ret_digest[COLD_DIGEST_BYTES]) {
    static const uint8_t label[] = { 'k', 'v', 'd', '.', 'c', 'o', 'l', 'd', '.', '1' };
    uint8_t numbers[16];
    crypto_generichash_state hash;
    put_bytes(numbers, ranks, 8);
    put_bytes(numbers + 8, image_bytes, 8);
    crypto_generichash_init(&hash, secret, secret ? COLD_SECRET_BYTES : 0, COLD_DIGEST_BYTES);
    crypto_generichash_update(&hash, label, sizeof label);
    crypto_generichash_update(&hash, shards, COLD_DIGEST_BYTES);
    crypto_generichash_update(&hash, numbers, sizeof numbers);
    crypto_generichash_final(&hash, ret_digest, COLD_DIGEST_BYTES);
}

void cold_layout_of(const struct geom_store_spec *spec, uint32_t n_pools, const uint8_t *secret,
                    struct cold_layout *ret_layout) {
    uint8_t shards[COLD_DIGEST_BYTES];
    geom_shard_digest(spec, n_pools, shards);
    hash_layout(shards, 0, 0, secret, ret_layout->pages);
    hash_layout(shards, spec->main.n_ranks, spec->state_bytes, secret, ret_layout->images);
}

void cold_tail_digest(const uint8_t before[COLD_DIGEST_BYTES], const uint32_t *tokens, uint32_t n,
                      uint8_t ret_digest[COLD_DIGEST_BYTES]) {
    static const uint8_t label[] = { 'k', 'v', 'd', '.', 't', 'a', 'i', 'l', '.', '1' };
    uint8_t number[4];
    crypto_generichash_state hash;
    crypto_generichash_init(&hash, NULL, 0, COLD_DIGEST_BYTES);
    crypto_generichash_update(&hash, label, sizeof label);
    crypto_generichash_update(&hash, before, COLD_DIGEST_BYTES);
    put_bytes(number, n, 4);
    crypto_generichash_update(&hash, number, sizeof number);
    for (uint32_t i = 0; i < n; i++) {
        put_bytes(number, tokens[i], 4);
        crypto_generichash_update(&hash, number, sizeof number);
    }
    crypto_generichash_final(&hash, ret_digest, COLD_DIGEST_BYTES);
}

size_t cold_key_of(const struct cold_name *name, char ret_key[COLD_KEY_BYTES]) {
    char layout[2 * COLD_DIGEST_BYTES + 1], digest[2 * COLD_DIGEST_BYTES + 1], pool[16] = "image";
    sodium_bin2hex(layout, sizeof layout, name->layout, sizeof name->layout);
    sodium_bin2hex(digest, sizeof digest, name->digest, sizeof name->digest);
    if (name->kind != COLD_IMAGE) snprintf(pool, sizeof pool, "%" PRIu32, name->pool);
    return (size_t)snprintf(ret_key, COLD_KEY_BYTES, "kvd1:%s:{%s}:%s.%" PRIu32, layout, digest, pool, name->shard);
}

/* ---- values ------------------------------------------------------------------------------------ */

static void hash_value(const uint8_t *header, const uint8_t *payload, uint64_t bytes, const uint8_t *secret,
                       uint8_t ret_mac[COLD_DIGEST_BYTES]) {
    crypto_generichash_state hash;
    crypto_generichash_init(&hash, secret, COLD_SECRET_BYTES, COLD_DIGEST_BYTES);
    crypto_generichash_update(&hash, header, AT_MAC);
    crypto_generichash_update(&hash, payload, bytes);
    crypto_generichash_final(&hash, ret_mac, COLD_DIGEST_BYTES);
}

void cold_value_seal(const struct cold_name *name, const uint8_t *payload, uint64_t bytes, const uint8_t *secret,
                     uint8_t ret_header[COLD_HEADER_BYTES]) {
    uint8_t *h = ret_header;
    memset(h, 0, COLD_HEADER_BYTES);
    memcpy(h + AT_MAGIC, magic, sizeof magic);
    put_bytes(h + AT_VERSION, VERSION, 4);
    put_bytes(h + AT_HEADER_BYTES, COLD_HEADER_BYTES, 4);
    memcpy(h + AT_LAYOUT, name->layout, sizeof name->layout);
    memcpy(h + AT_DIGEST, name->digest, sizeof name->digest);
    put_bytes(h + AT_KIND, name->kind, 4);
    put_bytes(h + AT_POOL, name->pool, 4);
    put_bytes(h + AT_SHARD, name->shard, 4);
    put_bytes(h + AT_COLUMNS, name->columns, 4);
    put_bytes(h + AT_LENGTH, bytes, 8);
    put_bytes(h + AT_CHECKSUM, checksum_of(payload, bytes), 8);
    if (secret) hash_value(h, payload, bytes, secret, h + AT_MAC);
    put_bytes(h + AT_HEADER_CHECKSUM, checksum_of(h, AT_HEADER_CHECKSUM), 8);
}

static enum cold_fault check_form(const uint8_t *value, uint64_t bytes) {
    if (bytes < COLD_HEADER_BYTES) return COLD_FAULT_SHORT;
    if (memcmp(value + AT_MAGIC, magic, sizeof magic) != 0) return COLD_FAULT_MAGIC;
    if (get_bytes(value + AT_VERSION, 4) != VERSION || get_bytes(value + AT_HEADER_BYTES, 4) != COLD_HEADER_BYTES)
        return COLD_FAULT_VERSION;
    if (get_bytes(value + AT_HEADER_CHECKSUM, 8) != checksum_of(value, AT_HEADER_CHECKSUM)) return COLD_FAULT_HEADER;
    return COLD_FINE;
}

static enum cold_fault check_fields(const struct cold_name *asked, const uint8_t *value) {
    if (memcmp(value + AT_LAYOUT, asked->layout, sizeof asked->layout) != 0) return COLD_FAULT_LAYOUT;
    if (memcmp(value + AT_DIGEST, asked->digest, sizeof asked->digest) != 0) return COLD_FAULT_DIGEST;
    if (get_bytes(value + AT_KIND, 4) != asked->kind) return COLD_FAULT_KIND;
    if (get_bytes(value + AT_POOL, 4) != asked->pool) return COLD_FAULT_POOL;
    if (get_bytes(value + AT_SHARD, 4) != asked->shard) return COLD_FAULT_SHARD;
    if (get_bytes(value + AT_COLUMNS, 4) != asked->columns) return COLD_FAULT_COLUMNS;
    return COLD_FINE;
}

enum cold_fault cold_value_check(const struct cold_name *asked, uint64_t payload_bytes, const uint8_t *secret,
                                 const uint8_t *value, uint64_t bytes) {
    uint8_t mac[COLD_DIGEST_BYTES] = { 0 };
    enum cold_fault fault = check_form(value, bytes);
    if (!fault) fault = check_fields(asked, value);
    if (fault) return fault;
    const uint8_t *payload = value + COLD_HEADER_BYTES;
    if (get_bytes(value + AT_LENGTH, 8) != payload_bytes || bytes - COLD_HEADER_BYTES != payload_bytes)
        return COLD_FAULT_LENGTH;
    if (get_bytes(value + AT_CHECKSUM, 8) != checksum_of(payload, payload_bytes)) return COLD_FAULT_CHECKSUM;
    if (secret) hash_value(value, payload, payload_bytes, secret, mac);
    return sodium_memcmp(mac, value + AT_MAC, sizeof mac) ? COLD_FAULT_MAC : COLD_FINE;
}

const char *cold_fault_name(enum cold_fault fault) {
    static const char *const names[COLD_FAULTS] = { [COLD_FINE] = "fine",
                                                    [COLD_FAULT_SHORT] = "short",
                                                    [COLD_FAULT_MAGIC] = "magic",
                                                    [COLD_FAULT_VERSION] = "version",
                                                    [COLD_FAULT_HEADER] = "header",
                                                    [COLD_FAULT_LAYOUT] = "layout",
                                                    [COLD_FAULT_DIGEST] = "digest",
                                                    [COLD_FAULT_KIND] = "kind",
                                                    [COLD_FAULT_POOL] = "pool",
                                                    [COLD_FAULT_SHARD] = "shard",
                                                    [COLD_FAULT_COLUMNS] = "columns",
                                                    [COLD_FAULT_LENGTH] = "length",
                                                    [COLD_FAULT_CHECKSUM] = "checksum",
                                                    [COLD_FAULT_MAC] = "mac" };
    return (unsigned)fault < COLD_FAULTS ? names[fault] : "unknown";
}
