/* SPDX-License-Identifier: Apache-2.0
 *
 * Whose a session, a sequence, a continuation is (section [access]).
 *
 * All functions are called under the core mutex where it does not say otherwise.
 */
#ifndef KVD_TENANT_H
#define KVD_TENANT_H

#include "link.h"
#include "store.h"

struct call;
struct service;
struct session;

/* ---- access.c: who may take which role ---- */

const char *access_role_name(uint32_t role); /* "worker"; "no role". Any thread. */
/* Root, or the daemon's own user. Any thread. */
bool access_is_own(const struct peer *peer);
/* Looks at the peer's groups, if a Hello depends on them. Without the lock. */
void access_look(struct call *call);
/* The peer may take this role; false: refused. */
bool access_allows(struct call *call, uint32_t role);

/* ---- tenant.c ---- */

int tenants_open(struct service *s); /* 1: no memory */
void tenants_close(struct service *s);
#define TENANT_UNKNOWN 0u /* of a continuation that nobody has noted: root's */
/* Whoever makes a continuation, or finds one, notes whose it is: the tenant of the sequence that it is of. */
void tenant_note(struct service *s, store_cont cont, uint64_t uid);
uint64_t tenant_of(const struct service *s, store_cont cont);
/* The session is of this tenant: it may read what is the tenant's. True for all with tenants = shared. */
bool tenant_is(const struct service *s, const struct session *session, uint64_t uid);
/* It is, or it is an operator's (root, the daemon's own user, an admin), who list and release what they cannot use. */
bool tenant_sees(const struct service *s, const struct session *session, uint64_t uid);
/* The session may be leased sequences of the caller's; false: refused. */
bool tenant_may_lease(struct call *call, const struct session *worker);
/* A continuation that a request names, to be read (use) or to be released or kept (change): itself, or a handle that
 * names nothing, which the store refuses. call_refuse_cont tells it with the handle that was named. */
store_cont tenant_use(const struct call *call, kvd_continuation cont);
store_cont tenant_change(const struct call *call, kvd_continuation cont);
void call_refuse_cont(struct call *call, struct store_refusal *refusal, kvd_continuation cont);
/* The root of the session's names as the store has it; zeros stay. Without the lock. */
void tenant_salt_root(struct call *call, kvd_digest *root);
/* The session's digests as the store has them. Without the lock. False: no memory. */
bool tenant_salt(struct call *call, const kvd_digest **digests, uint32_t n);

#endif
