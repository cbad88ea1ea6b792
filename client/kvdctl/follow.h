/* SPDX-License-Identifier: Apache-2.0
 *
 * A connection that outlives the daemon, for the commands that go on: top, events, trace. It is subscribed to every
 * event. When it is lost, follow_connect tries again, once a call; what came back, the same instance or another, is
 * told as an event of kvdctl's own ("lost", "reconnected", "restarted").
 *
 * SIGINT, SIGTERM and SIGHUP end follow_wait.
 */
#ifndef KVDCTL_FOLLOW_H
#define KVDCTL_FOLLOW_H

#include "clock.h"
#include "ctl.h"

struct follow {
    struct ctl *ctl;
    uint64_t epoch; /* of the instance last seen */
    char version[KVD_NAME_BYTES];
    struct kvd_store_info store;
    int signal_fd;
    bool keys; /* standard input is a terminal whose keys are read */
};

enum follow_wake { FOLLOW_TIME, FOLLOW_CONNECTION /* an event, or it is lost */, FOLLOW_KEY, FOLLOW_STOP };

/* Connects as an observer and subscribes. CTL_OK and the object "connected" in *ret_news, or the exit status after a
 * sentence. */
int follow_begin(struct follow *follow, struct ctl *ctl, cJSON **ret_news);
void follow_end(struct follow *follow);

/* Sleeps until a time of CLOCK_MONOTONIC, in ns, or until something comes. */
enum follow_wake follow_wait(const struct follow *follow, uint64_t until_ns);

/* The next event that is there; NULL: none now, or the connection is lost: then *ret_lost is the object "lost". */
cJSON *follow_event(struct follow *follow, cJSON **ret_lost);
/* A call answered with this status: where that means that the daemon is gone the connection is let go and the object
 * "lost" comes back; NULL: a refusal like others. */
cJSON *follow_failed(struct follow *follow, enum kvd_status status, const struct kvd_error *error);
/* Without a connection: one attempt. The object "reconnected" or "restarted", or NULL: not yet. */
cJSON *follow_connect(struct follow *follow);

#endif
