/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVD_REPLAY_REPORT_H
#define KVD_REPLAY_REPORT_H

#include "engine.h"

/* Prints the figures, and whether all is as it must be: without lost prefixes, violations, and, where that is to be
 * checked, with a policy that finds as much as the least recently used blocks. False: it is not, and stderr says why.
 */
bool report_replay(const struct replay *replay, const struct replay_kills *kills, double seconds);

#endif
