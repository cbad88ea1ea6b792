/* SPDX-License-Identifier: Apache-2.0
 *
 * Names and values of the cold tier: COLD-1, COLD-3, and the worked example of PROTOCOL.md.
 */
#include <sodium.h>
#include <stdlib.h>

#include "checksum.h"
#include "cold_value.h"
#include "kvt.h"

#define PAYLOAD 512u

static uint8_t secret[COLD_SECRET_BYTES], value[COLD_HEADER_BYTES + PAYLOAD];
static uint8_t *const payload = value + COLD_HEADER_BYTES;
static char page[1 << 18];

static struct geom_store_spec small_spec(void) {
    return (struct geom_store_spec){
        .main = { .storage = KVD_STORAGE_BF16, .n_layers = 1, .n_kv_heads = 2, .head_dim = 2, .n_ranks = 1 }
    };
}

/* That of the example. */
static struct cold_name example(const uint8_t *with) {
    struct geom_store_spec spec = small_spec();
    struct cold_layout layout;
    struct cold_name name = { .kind = COLD_PAGE, .shard = 1, .columns = 64 };
    cold_layout_of(&spec, 1, with, &layout);
    memcpy(name.layout, layout.pages, sizeof name.layout);
    KVT_OK(sodium_hex2bin(name.digest, sizeof name.digest,
                          "cf06af79acb8bea7c3547d0ebae664524157a0a6aeff77a609b7154efaf3ea83", 64, NULL, NULL, NULL));
    return name;
}

static struct cold_name sealed(const uint8_t *with) {
    struct cold_name name = example(with);
    for (uint32_t i = 0; i < PAYLOAD; i++) payload[i] = (uint8_t)i;
    cold_value_seal(&name, payload, PAYLOAD, with, value);
    return name;
}

/* ---- PROTOCOL.md ---- */

static bool read_page(void) {
    FILE *file = fopen(PROTOCOL_MD, "r");
    if (!KVT_TRUE(file != NULL)) return false;
    size_t n = fread(page, 1, sizeof page - 1, file), kept = 0;
    fclose(file);
    for (size_t i = 0; i < n; i++)
        if (!strchr(" \n", page[i])) page[kept++] = page[i];
    page[kept] = '\0';
    return KVT_TRUE(n > 1000 && n < sizeof page - 1);
}

static void page_has(const uint8_t *bytes, size_t n) {
    char hex[2 * COLD_HEADER_BYTES + 1];
    sodium_bin2hex(hex, sizeof hex, bytes, n);
    if (!KVT_TRUE(strstr(page, hex) != NULL)) printf("PROTOCOL.md lacks %s\n", hex);
}

/* COLD-1: keys, digests and headers are those of the page that others write their readers from. */
static void cold_1_worked_example(void) {
    static const uint32_t tokens[] = { 64, 65, 66 };
    struct geom_store_spec spec = small_spec();
    struct cold_name name = sealed(NULL);
    uint8_t digest[COLD_DIGEST_BYTES];
    char key[COLD_KEY_BYTES];
    if (!read_page()) return;
    geom_shard_digest(&spec, 1, digest);
    page_has(digest, sizeof digest);
    page_has(name.layout, sizeof name.layout);
    page_has(value, COLD_HEADER_BYTES);
    size_t n = cold_key_of(&name, key);
    KVT_EQ(n, strlen(key));
    KVT_TRUE(strstr(page, key) != NULL);
    cold_tail_digest(name.digest, tokens, 3, digest);
    page_has(digest, sizeof digest);
    for (uint32_t i = 0; i < sizeof secret; i++) secret[i] = (uint8_t)i;
    name = sealed(secret);
    page_has(name.layout, sizeof name.layout);
    page_has(value, COLD_HEADER_BYTES);
}

/* ---- names ---- */

/* COLD-1: every part of a name changes the key, and the longest fits. */
static void cold_1_keys_differ(void) {
    struct cold_name base = example(NULL);
    char key[16][COLD_KEY_BYTES];
    uint32_t n = 0;
#define KEY(change)                                                                                                    \
    do {                                                                                                               \
        struct cold_name name = base;                                                                                  \
        change;                                                                                                        \
        KVT_TRUE(cold_key_of(&name, key[n++]) < COLD_KEY_BYTES);                                                       \
    } while (0)
    KEY((void)name);
    KEY(name.layout[31] ^= 1);
    KEY(name.digest[0] ^= 1);
    KEY(name.pool = 1);
    KEY(name.shard = 2);
    KEY(name.kind = COLD_IMAGE);
    KEY(name.pool = name.shard = UINT32_MAX);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < i; j++) KVT_TRUE(strcmp(key[i], key[j]) != 0);
    KVT_HAS(key[5], ":image.1");
}

/* COLD-1: of a page every number of ranks makes the same layout; of an image the ranks and its bytes count. */
static void cold_1_layouts(void) {
    struct geom_store_spec spec = small_spec();
    struct cold_layout one, other;
    cold_layout_of(&spec, 1, NULL, &one);
    KVT_TRUE(memcmp(one.pages, one.images, sizeof one.pages) != 0);
    spec.main.n_ranks = 2;
    cold_layout_of(&spec, 1, NULL, &other);
    KVT_EQ_MEM(one.pages, other.pages, sizeof one.pages);
    KVT_TRUE(memcmp(one.images, other.images, sizeof one.images) != 0);
    spec.main.n_ranks = 1;
    spec.state_bytes = 4096;
    cold_layout_of(&spec, 1, NULL, &other);
    KVT_EQ_MEM(one.pages, other.pages, sizeof one.pages);
    KVT_TRUE(memcmp(one.images, other.images, sizeof one.images) != 0);
}

/* COLD-1: a tail is named by what is before it, its number of tokens, and each of them. */
static void cold_1_tails_differ(void) {
    uint8_t before[COLD_DIGEST_BYTES] = { 1 }, digest[5][COLD_DIGEST_BYTES];
    uint32_t tokens[63] = { 7, 8, 9 };
    cold_tail_digest(before, tokens, 3, digest[0]);
    cold_tail_digest(before, tokens, 2, digest[1]);
    cold_tail_digest(before, tokens, 63, digest[2]);
    tokens[2] = 10;
    cold_tail_digest(before, tokens, 3, digest[3]);
    before[31] = 1;
    cold_tail_digest(before, tokens, 3, digest[4]);
    for (uint32_t i = 0; i < 5; i++)
        for (uint32_t j = 0; j < i; j++) KVT_TRUE(memcmp(digest[i], digest[j], COLD_DIGEST_BYTES) != 0);
}

/* ---- values ---- */

/* COLD-3: each field is compared with what was asked, by itself. */
static void cold_3_each_field_is_compared(void) {
    struct cold_name name = sealed(NULL);
    KVT_EQ(cold_value_check(&name, PAYLOAD, NULL, value, sizeof value), COLD_FINE);
#define ASK(change, fault)                                                                                             \
    do {                                                                                                               \
        struct cold_name other = name;                                                                                 \
        other.change;                                                                                                  \
        KVT_EQ(cold_value_check(&other, PAYLOAD, NULL, value, sizeof value), fault);                                   \
    } while (0)
    ASK(layout[0] ^= 1, COLD_FAULT_LAYOUT);
    ASK(digest[31] ^= 1, COLD_FAULT_DIGEST);
    ASK(kind = COLD_TAIL, COLD_FAULT_KIND);
    ASK(pool = 1, COLD_FAULT_POOL);
    ASK(shard = 0, COLD_FAULT_SHARD);
    ASK(columns = 63, COLD_FAULT_COLUMNS);
    KVT_EQ(cold_value_check(&name, PAYLOAD - 1, NULL, value, sizeof value), COLD_FAULT_LENGTH);
    KVT_EQ(cold_value_check(&name, PAYLOAD, NULL, value, sizeof value - 1), COLD_FAULT_LENGTH);
    for (uint32_t n = 0; n < COLD_HEADER_BYTES; n++)
        KVT_EQ(cold_value_check(&name, PAYLOAD, NULL, value, n), COLD_FAULT_SHORT);
}

/* COLD-3: no flipped bit passes, wherever it is. */
static void cold_3_no_flipped_bit_passes(void) {
    for (int keyed = 0; keyed < 2; keyed++) {
        const uint8_t *with = keyed ? secret : NULL;
        struct cold_name name = sealed(with);
        KVT_EQ(cold_value_check(&name, PAYLOAD, with, value, sizeof value), COLD_FINE);
        uint32_t passed = 0, seen[COLD_FAULTS] = { 0 };
        for (size_t bit = 0; bit < 8 * sizeof value; bit++) {
            value[bit / 8] ^= (uint8_t)(1u << bit % 8);
            enum cold_fault fault = cold_value_check(&name, PAYLOAD, with, value, sizeof value);
            value[bit / 8] ^= (uint8_t)(1u << bit % 8);
            passed += fault == COLD_FINE;
            seen[fault]++;
        }
        KVT_EQ(passed, 0);
        KVT_EQ(seen[COLD_FAULT_MAGIC], 64);
        KVT_EQ(seen[COLD_FAULT_VERSION], 64);
        KVT_EQ(seen[COLD_FAULT_HEADER], 8 * (COLD_HEADER_BYTES - 16));
        KVT_EQ(seen[COLD_FAULT_CHECKSUM], 8 * PAYLOAD);
    }
}

/* Whoever can compute checksums can change a value: the MAC sees it, in header and payload. */
static void cold_3_a_forged_value_fails_the_mac(void) {
    static const uint8_t other[COLD_SECRET_BYTES] = { 9 };
    struct cold_name name = sealed(secret);
    uint8_t mac[COLD_DIGEST_BYTES];
    memcpy(mac, value + 112, sizeof mac);
    KVT_EQ(cold_value_check(&name, PAYLOAD, other, value, sizeof value), COLD_FAULT_MAC);
    KVT_EQ(cold_value_check(&name, PAYLOAD, NULL, value, sizeof value), COLD_FAULT_MAC);
    payload[100] ^= 1;
    cold_value_seal(&name, payload, PAYLOAD, NULL, value);
    KVT_EQ(cold_value_check(&name, PAYLOAD, secret, value, sizeof value), COLD_FAULT_MAC);
    memcpy(value + 112, mac, sizeof mac);
    uint64_t sum = checksum_of(value, 144);
    for (uint32_t i = 0; i < 8; i++) value[144 + i] = (uint8_t)(sum >> (8 * i));
    KVT_EQ(cold_value_check(&name, PAYLOAD, secret, value, sizeof value), COLD_FAULT_MAC);
    KVT_EQ_STR(cold_fault_name(COLD_FAULT_MAC), "mac");
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(cold_1_worked_example),
                                             KVT_CASE(cold_1_keys_differ),
                                             KVT_CASE(cold_1_layouts),
                                             KVT_CASE(cold_1_tails_differ),
                                             KVT_CASE(cold_3_each_field_is_compared),
                                             KVT_CASE(cold_3_no_flipped_bit_passes),
                                             KVT_CASE(cold_3_a_forged_value_fails_the_mac),
                                             { 0 } };
    if (sodium_init() < 0) return 2;
    return kvt_main("cold_value", cases, argc, argv);
}
