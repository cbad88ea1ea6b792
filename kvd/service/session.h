/* SPDX-License-Identifier: Apache-2.0
 *
 * A session is a process that said Hello: a slot with a generation, which stays when its connection is lost, until the
 * process has said Goodbye or its exit is proven.
 *
 * All functions are called under the core mutex.
 */
#ifndef KVD_SESSION_H
#define KVD_SESSION_H

#include "answers.h"
#include "link.h"
#include "log.h"
#include "metrics.h"

struct call;
struct service;

struct session {
    bool used, fenced;
    uint32_t generation; /* of the slot; 0 is never used, a slot is retired at UINT32_MAX */
    uint32_t role, rank;
    struct peer peer; /* its pidfd is owned */
    uint64_t secret;
    char name[KVD_NAME_BYTES];
    struct link *link; /* a reference; NULL: connection lost */
    uint64_t last_sequence, requests;
    uint64_t begun_ns;      /* its first Hello */
    uint64_t process_start; /* its process holds memory that outlives this kvd: its start time; 0: it does not */
    uint64_t fd_token;      /* for the socket of descriptors; 0: none, or used */
    uint32_t n_owned;       /* bundles */
    struct metrics_lookups lookups;
    struct growth_list *growth; /* that stands for its sequences; owned, NULL: none */
    struct board *board;        /* owned; NULL: it has asked for none */
    struct answers answers;
};

/* handles.c */
kvd_session_id session_id(const struct service *s, const struct session *session);
struct session *session_find(struct service *s, kvd_session_id id); /* NULL: no such, or an older generation */

/* For the peer of the call's link, whose pidfd it takes over. NULL: every slot is in use, or, with *ret_errno, its
 * process cannot be watched. */
struct session *session_new(struct service *s, const struct call *call, int *ret_errno);
/* The process said Goodbye (in_order: only those who share its work are told) or is proven gone: its rights return now.
 */
void session_end(struct service *s, struct session *session, bool in_order);
/* At which level its coming and going is told: those who only look come often. */
enum log_level session_log_level(const struct session *session);
void session_fence(struct service *s, struct session *session);
void session_disconnected(struct service *s, struct session *session);
void session_connected(struct service *s, struct session *session, struct link *link);

#endif
