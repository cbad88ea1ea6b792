/* SPDX-License-Identifier: Apache-2.0
 *
 * One function a request (serve_*.c). Each is called by dispatch.c under the core mutex, after admission, and fills
 * call->reply, refuses, or parks the call.
 */
#ifndef KVD_REQUESTS_H
#define KVD_REQUESTS_H

#include "request.h"

/* Objects of a list looked at under the lock, those that the caller may not see among them. */
#define LIST_AT_ONCE 64u

/* Reserves what a Round needs. Without the lock. False: no memory. */
bool round_reserve(struct call *call);
/* The same for the victims of a Plan, Activate or Checkpoint, and for those that a Choose may answer. */
bool victims_reserve(struct call *call);
/* Victims as the store is shown them, in `shown`: those of others are none. */
void victims_show(const struct call *call, const struct kvd_victim *victims, uint32_t n, struct kvd_victim *shown);
/* Refuses what names a continuation: this one, or one of the victims, which the store may not have been shown. */
void victims_refuse(struct call *call, kvd_continuation named, const struct kvd_victim *victims, uint32_t n,
                    struct store_refusal *refusal);

/* The caller's bundle; NULL: refused. */
struct bundle *call_bundle(struct call *call, kvd_sequence sequence);
/* Submits the batch of the transfer; the answer is held until the devices are done. */
struct pending;
void publish_rows(struct call *call, struct pending *op);

/* Reserves what a ReadChain answers. Without the lock. False: no memory. */
bool chain_reserve(struct call *call);

/* Makes the job of a FindCold or a LoadCold. Without the lock. False: no memory. */
bool cold_reserve(struct call *call);
/* What the call's job wants has names; false: refused. */
bool cold_check_want(struct call *call);
/* The call's job goes to who loads, and the call waits for it; or it is refused. */
void cold_load_for(struct call *call);
/* Reserves the victims of an Activate, and the job of what it loads first. Without the lock. False: no memory. */
bool activation_reserve(struct call *call);

/* Of an Audit that takes more than one step: goes on without the lock, and takes it for each. Others: nothing. */
void audit_go_on(struct call *call);

/* Everything that Stats answers but rss_bytes, which is read without the lock. Under the lock. */
void service_stats(const struct service *service, struct kvd_stats *ret_stats);

#define SERVE_FUNCTION(constant, number, name, function, ...) void serve_##function(struct call *call);
FRAME_LIST(SERVE_FUNCTION)
#undef SERVE_FUNCTION

#endif
