/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the audit: audit.c (the device and the memberships), audit_tier.c (the host tier),
 * audit_walk.c (what both use).
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

/* Visits each page of a space, or of all spaces, once a holder; promised entries and aliases are passed over. */
struct audit_holder { /* one space of one object */
    const struct space *space;
    const struct seq *seq; /* or */
    const struct cont *cont;
    uint32_t pool, index; /* of the object */
};
typedef void audit_visit(struct audit *a, const struct audit_holder *h, uint32_t block, uint32_t entry, uint32_t stamp);
void audit_walk_space(struct audit *a, const struct audit_holder *h, audit_visit *visit, uint32_t stamp);
void audit_walk_all(struct audit *a, uint32_t pool, audit_visit *visit, bool seqs, bool conts);

/* audit_tier.c. pins: adds those of jobs to the marks. */
void audit_tier_pins(struct audit *a, uint32_t pool, uint32_t stamp);
void audit_tier(struct audit *a, uint32_t pool);
void audit_host(struct audit *a);

#endif
