/* SPDX-License-Identifier: Apache-2.0
 *
 * Looks at kvd, each in a process that has no other use: what they find stands in replay->shared. They return the exit
 * status of that process: 0, or 1 where something failed, which replay->shared->message says.
 */
#ifndef KVD_REPLAY_LOOK_H
#define KVD_REPLAY_LOOK_H

#include "replay.h"

/* Which prefixes of the ledger the host has whole. Waits until nothing is under way; the engine is stopped meanwhile.
 */
int look_at_host(struct replay *replay);
/* Audits, and looks for all prefixes of the ledger; the engine has ended. kvd_died: those that the host had must be
 * there, others may be. From then on the ledger says who holds them now. */
int look_at_ledger(struct replay *replay, bool kvd_died);
/* Audits, and asks for the figures of the end. */
int look_at_figures(struct replay *replay);

#endif
