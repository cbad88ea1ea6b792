/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of the model share among themselves.
 */
#ifndef KVD_TESTS_MODEL_PARTS_H
#define KVD_TESTS_MODEL_PARTS_H

#include "model.h"

#define ANY_WHAT ((enum store_subject)99)
#define ANY_POOL (KVD_NONE - 1)

void model_reason(struct reasons *r, enum store_code code, enum store_subject subject, uint32_t pool);
void model_reason_short(struct reasons *r, enum store_code code, enum store_subject subject, uint32_t pool,
                        uint64_t asked, uint64_t had);
void model_reason_maybe(struct reasons *r, enum store_code code);
int model_free_seq(const struct model *m);
int model_free_cont(const struct model *m);
uint32_t model_available(const struct model *m, uint32_t p); /* after model_count() */
bool model_slot_read(const struct model *m, uint32_t slot);  /* somebody has yet to copy a state image from there */
uint32_t model_cushion(const struct model *m);
uint32_t model_window(const struct model *m);
uint32_t model_full_entitlement(const struct model *m, uint32_t p, uint32_t ceiling);
void model_drop_cont(struct model *m, int c);
int model_new_cont(struct model *m, store_cont handle, uint32_t frontier, uint32_t retention,
                   const struct kvd_tail *tail);
uint32_t model_replaced(const struct model *m, const struct model_seq *s, uint32_t p, uint32_t frontier);
/* The store put these ids behind entries [from, n) of a space: each must have been free. Call after the old entries are
 * cut. */
void model_adopt(struct model *m, struct space *sp, uint32_t p, const uint32_t *ids, uint32_t from, uint32_t n);
void model_adopt_slot(struct model *m, uint32_t slot, uint32_t *ret_slot);
void model_cut(struct model *m, struct space *sp, uint32_t p, uint32_t pages); /* drops trailing memberships */
void model_share(const struct model *m, const struct space *from, struct space *to, uint32_t frontier, uint32_t p,
                 uint32_t pages);
void model_unname(struct model *m, const struct space *sp, uint32_t from_block);

#endif
