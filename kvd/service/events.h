/* SPDX-License-Identifier: Apache-2.0
 *
 * Events: queued under the core mutex in a bounded ring a link, posted without it. A reader that does not read loses
 * the oldest ones and is told how many.
 */
#ifndef KVD_EVENTS_H
#define KVD_EVENTS_H

#include "kvd_types.h"

struct scratch;
struct service;
struct session;

/* Under the lock: to every subscriber of the kind whom it concerns. concerned may be NULL (everybody). */
void events_add(struct service *s, const struct kvd_event *event,
                bool (*concerned)(struct service *, struct session *, const void *), const void *with);
void events_lost(struct service *s);     /* of continuations that the store has lost since */
void events_pressure(struct service *s); /* looks at the pools if the store's revision moved */
/* Posts what is queued. Without the lock; scratch NULL: with one of its own, or, without memory, not now. */
void events_flush(struct service *s, struct scratch *scratch);

#endif
