/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the audit: audit.c (steps, pools, pages), audit_spaces.c (memberships and rows), audit_conts.c
 * (continuations, names, order), audit_tier.c (the host tier), audit_walk.c (what all use).
 *
 * An audit may be taken in steps, between which the store changes. What is true of one object by itself (a row and its
 * sequence, a lease and its page, a name and its path) is looked at within one step, so it is exact. What is counted
 * over many objects is exact in this way:
 *   - A page, and a continuation, is marked as touched by whatever changes what is counted of it. What a pass counted
 * of a page that nobody touched since the pass began is compared; of the others a next pass is made, three at most.
 *   - Sums (how many pages are on the device, say) are taken object by object, then mended by what is touched, and
 *     compared, both in one step.
 * So no fault that stood before the audit began is passed over, except where a page changed in all three passes, or
 * more was touched than the list holds: those are counted, and the answer says how many. A fault that comes while the
 * audit is in work may be left to the next one. An audit of one step leaves nothing out.
 */
#ifndef KVD_STORE_AUDIT_H
#define KVD_STORE_AUDIT_H

#include "store_internal.h"

#define AUDIT_PASSES 3u
#define AUDIT_LINKS 8192u /* of a list of free things that are followed: a list cannot be left and taken up again */

enum page_kind { /* what is summed of pages; the bits of page_recount.kinds */
                 KIND_OCCUPIED,
                 KIND_RESIDENT,
                 KIND_SHARED,
                 KIND_LISTED,
                 KIND_ABSENT,
                 KIND_HOST,
                 KIND_N
};
enum cont_kind { CONT_OCCUPIED, CONT_OWNED, CONT_DEMOTED, CONT_IMAGE, CONT_BACKING, CONT_PUBLISHED, CONT_N };

struct audit {
    struct store *store;
    uint32_t violations;
    char *text;
    size_t bytes, used;
    uint32_t section, pool, at, pass;
    uint64_t left; /* of the work of this step */
    uint32_t sums[KIND_N], conts[CONT_N];
    uint64_t entries, chunks;
    uint32_t changed, left_out; /* pages that changed in this pass; what was compared in no pass */
    bool whole, linked_all, summed, is_over;
};

void audit_report(struct audit *a, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define EXPECT(ok, ...)                                                                                                \
    do {                                                                                                               \
        if (!(ok)) audit_report(a, __VA_ARGS__);                                                                       \
    } while (0)

/* Work done; false: the step is over. One unit is a look at a record, a tenth of a microsecond or less. */
bool audit_spend(struct audit *a, uint64_t work);
/* Goes over objects [0, n) from where the last step ended. True: all are done, and `at` is 0 again. */
bool audit_each(struct audit *a, uint32_t n, uint32_t (*look)(struct audit *, uint32_t)); /* returns its work */

struct audit_holder { /* one space of one object */
    const struct space *space;
    const struct seq *seq; /* or */
    const struct cont *cont;
    uint32_t pool, index; /* of the object */
};

/* audit_spaces.c. Sequences and continuations of the pool `a->pool`: each counts again what its pages have. */
uint32_t audit_seq_space(struct audit *a, uint32_t i);
uint32_t audit_cont_space(struct audit *a, uint32_t i);
uint32_t audit_row(struct audit *a, uint32_t row);

/* audit_tier.c */
void audit_count_job(struct audit *a, uint32_t pool, const struct tier_job *job);
uint32_t audit_move_jobs(struct audit *a, uint32_t i);
void audit_tier_page(struct audit *a, uint32_t pool, uint32_t d); /* of a page that is occupied */
void audit_image(struct audit *a, uint32_t i);
void audit_host(struct audit *a); /* counters */
bool audit_extents(struct audit *a);

/* audit_conts.c */
uint32_t audit_forget_cont(struct audit *a, uint32_t i);
uint32_t audit_cont(struct audit *a, uint32_t i);
uint32_t audit_node(struct audit *a, uint32_t n);
uint32_t audit_bucket(struct audit *a, uint32_t bucket);
void audit_objects(struct audit *a); /* sums over continuations, sequences and domains */

#endif
