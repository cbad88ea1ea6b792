/* SPDX-License-Identifier: Apache-2.0
 *
 * Regions that kvd hands over as file descriptors, and the two of a ring, fetched from the socket that kvd names
 * (proto/PROTOCOL.md).
 */
#ifndef KVD_CLIENT_FDS_H
#define KVD_CLIENT_FDS_H

#include "client.h"

struct fds {
    int socket;     /* -1: not connected */
    uint64_t token; /* for the next request; 0: an earlier one has opened the connection */
};

/* One descriptor, the caller's, from the socket at path. Connects on the first call. */
enum kvd_status fds_fetch(struct fds *fds, const char *path, uint32_t fd_index, uint64_t deadline_ns, int *ret_fd,
                          struct kvd_error *error);
void fds_close(struct fds *fds);

#endif
