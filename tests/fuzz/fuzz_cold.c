/* SPDX-License-Identifier: Apache-2.0
 *
 * Values as an engine of the cold tier returns them (COLD-3). The first byte says whether the checksums are made right,
 * so that the checks behind them are reached. What passes must be, byte by byte, what a writer of that name makes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checksum.h"
#include "cold_value.h"
#include "fuzz.h"

#define PAYLOAD 96u

static uint8_t value[4096], again[COLD_HEADER_BYTES];

static void put_sum(uint8_t *to, uint64_t sum) {
    for (unsigned i = 0; i < 8; i++) to[i] = (uint8_t)(sum >> (8 * i));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const uint8_t secret[COLD_SECRET_BYTES] = { 1, 2, 3 };
    struct cold_name name = { .kind = COLD_PAGE, .shard = 1, .columns = 64 };
    if (size < 1 || size > sizeof value) return 0;
    memset(name.layout, 'L', sizeof name.layout);
    memset(name.digest, 'D', sizeof name.digest);
    const uint8_t *with = data[0] & 1 ? secret : NULL;
    size_t n = size - 1;
    memcpy(value, data + 1, n);
    if (data[0] & 2 && n >= COLD_HEADER_BYTES) {
        put_sum(value + 104, checksum_of(value + COLD_HEADER_BYTES, n - COLD_HEADER_BYTES));
        put_sum(value + 144, checksum_of(value, 144));
    }
    if (cold_value_check(&name, PAYLOAD, with, value, n) != COLD_FINE) return 0;
    cold_value_seal(&name, value + COLD_HEADER_BYTES, PAYLOAD, with, again);
    if (n == COLD_HEADER_BYTES + PAYLOAD && memcmp(again, value, sizeof again) == 0) return 0;
    fprintf(stderr, "fuzz_cold: a value passed that no writer makes\n");
    abort();
}
