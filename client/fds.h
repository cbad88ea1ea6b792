/* SPDX-License-Identifier: Apache-2.0
 *
 * Regions that kvd hands over as file descriptors, fetched from the socket that StoreInfo names (proto/PROTOCOL.md).
 */
#ifndef KVD_CLIENT_FDS_H
#define KVD_CLIENT_FDS_H

#include "client.h"

struct fds {
    int socket; /* -1: not connected */
    uint64_t token;
};

#define FDS_NONE                                                                                                       \
    { -1, 0 }

/* One descriptor, the caller's. Connects on the first call. */
enum kvd_status fds_fetch(struct fds *fds, const struct kvd_store_info *info, uint32_t fd_index, uint64_t deadline_ns,
                          int *ret_fd, struct kvd_error *error);
void fds_close(struct fds *fds);

#endif
