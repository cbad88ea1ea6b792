/* SPDX-License-Identifier: Apache-2.0
 *
 * How long systemd lets an orderly stop take, by the word of systemctl: it knows the operator's drop-ins.
 */
#ifndef KVD_UNIT_LIMIT_H
#define KVD_UNIT_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

struct unit_limit {
    char unit[160];    /* kvd@NAME.service */
    char text[64];     /* as systemctl writes it: 1min 30s */
    uint64_t limit_ns; /* TimeoutStopSec= */
};

/* False: no unit kvd@NAME reads this configuration, it has no limit, or systemctl is not there or silent for some
 * seconds. Waits for systemctl, a process of its own. */
bool unit_limit_of(const char *config_path, struct unit_limit *ret_limit);

#endif
