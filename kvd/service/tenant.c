/* SPDX-License-Identifier: Apache-2.0
 *
 * Tenants ([access] tenants = uid): the processes of one user. Two things keep them apart, and the store knows of
 * neither. Digests go in as H(tag, uid, digest): equal tokens of two users have different names, so that no lookup
 * leads from one to the other. (A hash, not an exclusive or: a client chooses its digests as it likes.) And a table
 * beside the bundles says whose each continuation is; a handle of another tenant becomes one that names nothing before
 * the store sees it, so that the refusal is the same as if there were no such continuation. The root of each name is
 * salted like its digests, so that a continuation of less than a page has a name of its tenant's, too.
 *
 * This keeps names and bookkeeping apart, not memory: a worker maps whole pools.
 */
#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"
#include "request.h"
#include "session.h"
#include "tenant.h"

struct tenancy {
    uint64_t cont; /* handle with its generation: another one is nobody's entry */
    uint64_t uid;
};

int tenants_open(struct service *s) {
    if (s->config.tenants == TENANTS_SHARED) return 0;
    s->tenancy = calloc(store_get_config(s->store)->max_continuations, sizeof *s->tenancy);
    return s->tenancy == NULL;
}

void tenants_close(struct service *s) { free(s->tenancy); }

/* ---- whose a continuation is ---------------------------------------------------------------------- */

static struct tenancy *tenancy_of(const struct service *s, store_cont cont) {
    uint32_t index = (uint32_t)cont.bits;
    return s->tenancy && index < store_get_config(s->store)->max_continuations ? &s->tenancy[index] : NULL;
}

void tenant_note(struct service *s, store_cont cont, uint64_t uid) {
    struct tenancy *e = cont.bits ? tenancy_of(s, cont) : NULL;
    if (e) *e = (struct tenancy){ cont.bits, uid };
}

uint64_t tenant_of(const struct service *s, store_cont cont) {
    const struct tenancy *e = tenancy_of(s, cont);
    return e && e->cont == cont.bits ? e->uid : TENANT_UNKNOWN;
}

bool tenant_is(const struct service *s, const struct session *session, uint64_t uid) {
    return !s->tenancy || session->peer.uid == uid;
}

bool tenant_sees(const struct service *s, const struct session *session, uint64_t uid) {
    return tenant_is(s, session, uid) || session->role == KVD_ROLE_ADMIN || access_is_own(&session->peer);
}

/* ---- handles of others ------------------------------------------------------------------------------ */

#define NOWHERE UINT64_C(0xFFFFFFFF) /* an index that no slot has */

store_cont tenant_use(const struct call *call, kvd_continuation cont) {
    store_cont handle = { cont.bits };
    bool own = !cont.bits || tenant_is(call->service, call->session, tenant_of(call->service, handle));
    return own ? handle : (store_cont){ cont.bits | NOWHERE };
}

store_cont tenant_change(const struct call *call, kvd_continuation cont) {
    store_cont handle = { cont.bits };
    bool sees = !cont.bits || tenant_sees(call->service, call->session, tenant_of(call->service, handle));
    return sees ? handle : (store_cont){ cont.bits | NOWHERE };
}

void call_refuse_cont(struct call *call, struct store_refusal *refusal, kvd_continuation cont) {
    if (refusal->code == STORE_E_STALE && refusal->asked == (cont.bits | NOWHERE)) refusal->asked = cont.bits;
    call_refuse_store(call, refusal);
}

/* ---- names ------------------------------------------------------------------------------------------- */

static void salt_digest(kvd_digest *to, const kvd_digest *from, uint64_t uid) {
    struct {
        char tag[24]; /* zeros fill it */
        uint8_t uid[8];
        kvd_digest digest;
    } name = { .tag = "kvd.tenant.1", .digest = *from };
    for (int i = 0; i < 8; i++) name.uid[i] = (uint8_t)(uid >> (8 * i));
    (void)crypto_generichash(to->bytes, sizeof to->bytes, (const unsigned char *)&name, sizeof name, NULL, 0);
}
static_assert(crypto_generichash_BYTES == sizeof(kvd_digest), "a salted digest is a digest");

void tenant_salt_root(struct call *call, kvd_digest *root) {
    const kvd_digest from = *root;
    if (call->service->tenancy && !store_root_is_none(root)) salt_digest(root, &from, call->link->peer.uid);
}

bool tenant_salt(struct call *call, const kvd_digest **digests, uint32_t n) {
    if (!call->service->tenancy || !n) return true;
    kvd_digest *salted = codec_arena_take(call->scratch->arena, n * sizeof *salted);
    for (uint32_t i = 0; salted && i < n; i++) salt_digest(&salted[i], &(*digests)[i], call->link->peer.uid);
    *digests = salted;
    return salted != NULL;
}

bool tenant_may_lease(struct call *call, const struct session *worker) {
    if (tenant_is(call->service, call->session, worker->peer.uid)) return true;
    call_refuse(call, KVD_PERMISSION_DENIED,
                "session %016" PRIx64
                " belongs to another user, and with tenants = uid in section [access] a sequence is "
                "leased to processes of its own user",
                session_id(call->service, worker).bits);
    return false;
}
