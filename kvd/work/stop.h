/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the orderly stop (service.h: service_stop_begin, service_stop_step). Under the core mutex.
 */
#ifndef KVD_STOP_H
#define KVD_STOP_H

#include "service.h"

/* One of its moves has ended. */
void stop_moved(struct service *s, bool done);
void stop_free(struct service *s);

#endif
