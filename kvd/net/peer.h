/* SPDX-License-Identifier: Apache-2.0
 *
 * Who is at the other end of a Unix socket, beyond uid, gid and pid: the supplementary groups.
 *
 * The kernel keeps those that the process held when it connected (SO_PEERGROUPS). nng does not give out the descriptor
 * that one has to ask, so all of this process are looked at for connections from the same pid, uid and gid, and what
 * all of them have counts: the peer's own is among them, so that the answer never has a group that the peer had not.
 * (Not taken: /proc/PID/status, which shows a process that may have run another program since, or another process that
 * got the pid; the group database, which knows nothing of SupplementaryGroups= and may block.)
 */
#ifndef KVD_PEER_H
#define KVD_PEER_H

#include "link.h"

/* Of a peer whose connection stays open meanwhile. Costs a system call a descriptor of this process, and one more for
 * each that matches. To free; NULL: no such connection, or no memory. */
struct groups *peer_groups(const struct peer *peer);

#endif
