/* SPDX-License-Identifier: Apache-2.0
 *
 * Pending operations whose copies are done.
 */
#ifndef KVD_COMPLETE_H
#define KVD_COMPLETE_H

#include "pending.h"
#include "transfer.h"

/* Under the lock: the copies of a checkpoint have ended so. why is filled unless OK. */
enum kvd_status checkpoint_finish(struct service *s, const struct pending *op, enum transfer_result result,
                                  struct kvd_checkpointed *made, char *why, size_t why_bytes);
/* Without the lock: ends what devices have done, posts the answers and events. */
void pending_run(struct service *s);

#endif
