/* SPDX-License-Identifier: Apache-2.0
 *
 * sd_notify(3) without libsystemd: a datagram to the socket that NOTIFY_SOCKET names. Nothing happens where there is
 * none. Waits a second at most for a manager whose queue is full.
 */
#ifndef KVD_NOTIFY_H
#define KVD_NOTIFY_H

#include <stdbool.h>

bool notify_send(const char *state);            /* "READY=1\nSTATUS=..."; whether it was sent */
bool notify_send_fd(const char *state, int fd); /* with a descriptor; -1: none */

#endif
