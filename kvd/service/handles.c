/* SPDX-License-Identifier: Apache-2.0 */
#include "bundle.h"
#include "core.h"
#include "session.h"

kvd_session_id session_id(const struct service *s, const struct session *session) {
    return (kvd_session_id){ (uint64_t)session->generation << 32 | (uint64_t)(session - s->sessions) };
}

struct session *session_find(struct service *s, kvd_session_id id) {
    uint32_t index = (uint32_t)id.bits;
    if (!id.bits || index >= s->config.sessions) return NULL;
    struct session *session = &s->sessions[index];
    return session->used && session->generation == id.bits >> 32 ? session : NULL;
}

kvd_group_id group_id(const struct service *s, const struct group *group) {
    return (kvd_group_id){ (uint64_t)group->generation << 32 | (uint64_t)(group - s->groups) };
}

struct group *group_find(struct service *s, kvd_group_id id) {
    uint32_t index = (uint32_t)id.bits;
    if (!id.bits || index >= s->config.sessions) return NULL;
    struct group *group = &s->groups[index];
    return group->used && group->generation == id.bits >> 32 ? group : NULL;
}
