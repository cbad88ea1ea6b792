/* SPDX-License-Identifier: Apache-2.0
 *
 * File descriptors that outlive the daemon: systemd's store of them (sd_notify(3) FDSTORE=1, FileDescriptorStoreMax= of
 * the unit), or any holder that speaks the same protocol: a datagram with the descriptor to $NOTIFY_SOCKET, and at the
 * next start $LISTEN_PID, $LISTEN_FDS, $LISTEN_FDNAMES with descriptors from 3 on. Without one nothing is kept, and
 * nothing fails.
 *
 * systemd keeps them over restart, SIGKILL and daemon-reexec, and drops them at stop.
 */
#ifndef KVD_FDSTORE_H
#define KVD_FDSTORE_H

#include <stdbool.h>
#include <stdint.h>

#define FDSTORE_NAME 96
#define FDSTORE_MAX 128

struct fdstore_item {
    char name[FDSTORE_NAME];
    int fd;
};

struct fdstore_set {
    uint32_t n;
    struct fdstore_item items[FDSTORE_MAX];
};

/* What a holder hands over to this process. Once, before any thread exists, since it unsets the variables, and before
 * any other file is opened, whose number might be counted among them. Descriptors are the caller's. Those with a name
 * that does not fit are closed. */
void fdstore_take(struct fdstore_set *ret_set);
/* Gives a copy to the holder. False: there is none, or it does not take it. */
bool fdstore_put(const char *name, int fd);
/* The holder closes those of this name. */
void fdstore_remove(const char *name);
/* Waits until the holder has worked off what was sent before (BARRIER=1). False: it did not answer in time. */
bool fdstore_settle(unsigned timeout_ms);

#endif
