/* SPDX-License-Identifier: Apache-2.0
 *
 * Who may take which role (SRV-3): the configuration's list against what the kernel reports of the peer.
 */
#include <inttypes.h>
#include <unistd.h>

#include "core.h"
#include "mutant.h"
#include "request.h"
#include "tenant.h"

const char *access_role_name(uint32_t role) {
#define ROLE_NAME(name, number, text) [number] = text,
    static const char *const names[] = { "no role", KVD_ROLE_LIST(ROLE_NAME) };
#undef ROLE_NAME
    return role < sizeof names / sizeof *names ? names[role] : names[0];
}

bool access_is_own(const struct peer *peer) {
    return (peer->uid == 0 && !MUTANT(root_is_a_stranger)) || peer->uid == (uint64_t)geteuid();
}

/* Allowed, not allowed, or it depends on groups that were not looked at. */
enum verdict { NO, YES, BY_GROUPS };

static enum verdict judge_peer(const struct config_access *access, const struct peer *peer,
                               const struct groups *groups) {
    enum verdict verdict = NO;
    if (access_is_own(peer)) return YES;
    for (uint32_t i = 0; i < access->n; i++) {
        uint32_t id = access->entry[i].id;
        switch (access->entry[i].kind) {
        case ACCESS_ALL: return YES;
        case ACCESS_UID:
            if (peer->uid == id) return YES;
            break;
        case ACCESS_GID:
            if (peer->gid == id || groups_have(groups, id)) return YES;
            verdict = BY_GROUPS;
            break;
        }
    }
    return verdict;
}

void access_look(struct call *call) {
    struct service *s = call->service;
    struct link *link = call->link;
    uint32_t role = call->request.u.hello.role;
    if (role < KVD_ROLE_OBSERVER || role > KVD_ROLE_ADMIN || !link->ops->groups) return;
    pthread_mutex_lock(&s->lock);
    struct config_access access = s->config.access[role - 1];
    pthread_mutex_unlock(&s->lock);
    if (judge_peer(&access, &link->peer, NULL) == BY_GROUPS) call->groups = link->ops->groups(link);
}

bool access_allows(struct call *call, uint32_t role) {
    const struct peer *peer = &call->link->peer;
    char others[48] = "";
    if (judge_peer(&call->service->config.access[role - 1], peer, call->groups) == YES) return true;
    if (call->groups) snprintf(others, sizeof others, " and %u other groups", call->groups->n);
    call_refuse(call, KVD_PERMISSION_DENIED,
                "uid %" PRIu64 " gid %" PRIu64 "%s may not be %s; add it to %s = in section [access] of the "
                "configuration",
                peer->uid, peer->gid, others, access_role_name(role), access_role_name(role));
    return false;
}
