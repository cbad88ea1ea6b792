/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the audit (audit.c: what is on the device and in the memberships; audit_tier.c: the host
 * tier).
 */
#ifndef KVD_STORE_AUDIT_H
#define KVD_STORE_AUDIT_H

#include "store_internal.h"

struct audit {
    const struct store *store;
    uint32_t violations;
    char *text;
    size_t bytes, used;
};

void audit_report(struct audit *a, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define EXPECT(ok, ...)                                                                                                \
    do {                                                                                                               \
        if (!(ok)) audit_report(a, __VA_ARGS__);                                                                       \
    } while (0)

/* Scratch of a counting walk: the mark of a page, zero when it was not met since the stamp. */
uint32_t *audit_mark(const struct audit *a, uint32_t pool, uint32_t page, uint32_t stamp);
uint32_t audit_marked(const struct store *store, const struct page *page);

/* audit_tier.c. pins: adds those of jobs to the marks. */
void audit_tier_pins(struct audit *a, uint32_t pool, uint32_t stamp);
void audit_tier(struct audit *a, uint32_t pool);
void audit_host(struct audit *a);

#endif
