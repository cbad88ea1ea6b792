/* SPDX-License-Identifier: Apache-2.0
 *
 * The instances of kvd on this machine.
 */
#ifndef KVDCTL_INSTANCES_H
#define KVDCTL_INSTANCES_H

#include "ctl.h"

#define INSTANCES 256u
#define ARENA_PREFIX "kvd-arena-"
#define INSTANCE_ARENA 32 /* bytes of the name of an arena's file */

struct found_instance {
    char name[64];    /* "": its socket has no folder of its own */
    char socket[108]; /* as in sun_path */
    bool there;       /* the socket is, or may be */
};
struct instances {
    uint32_t n;
    struct found_instance item[INSTANCES];
};

/* All, also those that only have a configuration. all comes zeroed. */
void instances_find(struct instances *all);
bool instance_listens(const struct found_instance *instance);
/* The name of its arena's file in /dev/shm, which need not be there. */
void instance_arena(const struct found_instance *instance, char file[INSTANCE_ARENA]);
/* Which socket is meant, into options->socket; NULL there leaves it to the library. CTL_OK, or CTL_USAGE after a
 * sentence on stderr. */
int instance_choose(struct ctl_options *options);

#endif
