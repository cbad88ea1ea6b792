/* SPDX-License-Identifier: Apache-2.0
 *
 * A bundle is the daemon's record of an active sequence: its owner (the session that activated it) and its drivers (the
 * session, or the group's sessions, that it is leased to). A bundle whose owner or a driver is gone is `ending`: nobody
 * may drive it, and it ends when each driver has yielded or is proven gone.
 *
 * A group is the sessions of one engine, a worker a device.
 *
 * All functions are called under the core mutex.
 */
#ifndef KVD_BUNDLE_H
#define KVD_BUNDLE_H

#include "kvd_types.h"
#include "metrics.h"
#include "store.h"

struct service;

struct group {
    bool used, broken /* a member is gone or fenced */, orphan /* its owner is gone */;
    uint32_t generation;
    kvd_session_id owner;
    uint32_t n_members, n_bundles;
    kvd_session_id member[KVD_MAX_RANKS];
};

/* Who may go where a lease is to grow, in order (FIT-4). From malloc. */
struct growth_list {
    uint32_t n;
    struct kvd_victim victims[KVD_MAX_GROWTH];
};

/* What its launcher's board says of a sequence (boards.h). */
struct on_board {
    uint64_t turn;                  /* 0: it is on none */
    bool arrives;                   /* it is put on when the batch has ended */
    uint32_t row, tag;              /* of the batch that brings what is mapped; 0: it is there */
    uint32_t mapped[KVD_MAX_POOLS]; /* tokens, with that batch */
};

struct bundle {
    bool used, ending, quarantined, activating, doomed /* to be aborted when its device work is done */,
        cancelled /* the same, by request */, bounded;
    store_seq seq;
    uint64_t lease;               /* as told to the store */
    kvd_session_id owner, worker; /* worker none: leased to the group */
    kvd_group_id group;
    uint32_t cleared; /* drivers, by index, that have yielded */
    uint64_t tenant;  /* the owner's uid */
    enum metrics_source source;
    uint32_t reused_tokens, prompt_tokens;
    uint32_t noted_pages;    /* whose names were looked at for the endless cache */
    uint32_t asked_pages;    /* whose names its lookup had */
    uint32_t domain;         /* metrics_domain_slot */
    uint64_t begun_ns;       /* when its Activate came */
    uint32_t tag;            /* of the pending operation that activates it; 0: none */
    kvd_session_id launcher; /* its last boundary asked to map, so a unit of it may run (ROW-5); none: no unit runs */
    struct growth_list *growth; /* owned; NULL: that of its owner */
    struct on_board on_board;
};

/* handles.c */
struct group *group_find(struct service *s, kvd_group_id id);
kvd_group_id group_id(const struct service *s, const struct group *group);

struct group *group_new(struct service *s, kvd_session_id owner, const struct kvd_group *members); /* NULL: none free */
void group_drop(struct service *s, struct group *group);
/* A member left or was fenced; gone: it no longer exists. */
void groups_lose(struct service *s, kvd_session_id session, bool gone);

struct bundle *bundle_find(struct service *s, store_seq seq);
/* There is one for every sequence of the store. */
struct bundle *bundle_new(struct service *s, store_seq seq, uint64_t lease, kvd_session_id owner, kvd_session_id worker,
                          kvd_group_id group);
void bundle_free(struct service *s, struct bundle *bundle);
/* The list that stands for it; NULL: none. */
const struct growth_list *bundle_growth(struct service *s, const struct bundle *bundle);
/* Index of a session among the drivers, or -1. */
int bundle_driver(struct service *s, const struct bundle *bundle, kvd_session_id session);
/* The sequence's bundle, if the session may act on it (owner, worker or leader). NULL: *ret_status and the sentence say
 * why not. */
struct bundle *bundle_to_act(struct service *s, kvd_session_id session, kvd_sequence sequence,
                             enum kvd_status *ret_status, char *why, size_t why_bytes);
/* ROW-5: whether a unit of another session may run on it, which freezes rows and pages. The sentence says whose. */
bool bundle_is_frozen(const struct bundle *bundle, kvd_session_id session, char *why, size_t why_bytes);
/* An event about it, to its owner, its drivers, observers and admins. */
void bundle_tell(struct service *s, const struct bundle *bundle, const struct kvd_event *event);
/* Brings quarantine up to date and ends an ending bundle whose drivers are all clear. May free it. */
void bundle_update(struct service *s, struct bundle *bundle);
/* It is being activated, and nobody wants it: no more is copied, and it is undone when what is under way has ended. */
void activation_cancel(struct service *s, struct bundle *bundle);
/* Nobody may drive it any more: its launcher learns it from the board. bundle_update ends it. */
void bundle_end(struct service *s, struct bundle *bundle);
/* A session is gone or fenced: its bundles become ending. */
void bundles_lose(struct service *s, kvd_session_id session);
void bundles_update_all(struct service *s);

#endif
