/* SPDX-License-Identifier: Apache-2.0
 *
 * What an engine process does when kvd does not answer: it waits for it, and learns whether the same instance came
 * back.
 */
#ifndef KVD_DEMO_AGAIN_H
#define KVD_DEMO_AGAIN_H

#include "kvd.h"

enum again {
    AGAIN_SAME = 0, /* the session goes on, and with it every sequence and mapping */
    AGAIN_OTHER =
        1,          /* another instance: *client is a new connection; every handle and mapping of the old one is void */
    AGAIN_STOP = 2, /* a signal came on `signals` meanwhile */
    AGAIN_GONE = 3  /* kvd did not come back in time (printed) */
};

/* The old client is freed with AGAIN_OTHER; a store that was attached through it may be detached later. */
enum again kvd_again(kvd_client **client, const struct kvd_connect_options *options, int signals);

#endif
