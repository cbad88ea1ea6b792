/* SPDX-License-Identifier: Apache-2.0
 *
 * Transitions of the store, stage by stage: activations and moves of continuations.
 *
 * All functions are called under the core mutex.
 */
#ifndef KVD_STAGE_H
#define KVD_STAGE_H

#include "bundle.h"
#include "pending.h"

/* What a transition's stage has to copy between device and arena; false: nothing. */
bool stage_work(const struct service *s, struct store_transition of, struct store_work *ret_work);
/* Submits what the store lists now for a transition: its copies, and with rows those slices. */
void stage_submit(struct service *s, struct pending *op, struct store_transition of, const struct store_copy *copies,
                  uint32_t n_copies, const struct kvd_activated *rows);
/* All parts of a stage are done: on to the next. False: it is parked again. True: it has ended with *ret_status; why is
 * filled unless OK, and an undone bundle is freed. */
bool activation_advance(struct service *s, struct pending *op, enum kvd_status *ret_status, char *why,
                        size_t why_bytes);
/* Of a PENDING_DEMOTE, when a transition has ended: begins it, or waits on. As move_advance. */
bool demote_begin_late(struct service *s, struct pending *op, enum kvd_status *ret_status, char *why, size_t why_bytes);
bool move_advance(struct service *s, struct pending *op, enum kvd_status *ret_status, char *why, size_t why_bytes);

#endif
