/* SPDX-License-Identifier: Apache-2.0
 *
 * Remainders: what a dead worker leaves without a name. No lookup leads there; the scheduler of the sequence knows it,
 * because an event tells it the handle. When that scheduler is gone, too, it is nobody's, and is released (SRV-5).
 *
 * All functions are called under the core mutex.
 */
#ifndef KVD_REMAINDER_H
#define KVD_REMAINDER_H

#include "kvd_types.h"
#include "store.h"

struct service;

int remainders_open(struct service *s); /* 1: no memory */
void remainders_close(struct service *s);
/* What a sequence of this owner left when it ended. Returns it, or none: nobody could find it, and it is released. */
store_cont remainder_note(struct service *s, store_cont cont, kvd_session_id owner);
/* A session has ended, or a transition has let go of something. */
void remainders_release(struct service *s);

#endif
