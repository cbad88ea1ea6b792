/* SPDX-License-Identifier: Apache-2.0
 *
 * Unix sockets that nobody can connect to before they are ready: bound under a private name, PATH.new, given mode and
 * group of the configuration, then moved into place over what an earlier instance left there.
 */
#ifndef KVD_UNIX_SOCKET_H
#define KVD_UNIX_SOCKET_H

#include "config.h"

/* PATH.new, in a buffer of bytes. */
void unix_socket_private(const char *path, char *name, size_t bytes);
/* Gives the socket at the private name mode and group, and moves it to path. 0, or 1 with a sentence, and the private
 * name is gone. */
int unix_socket_publish(const struct config *config, const char *path, char *err, size_t err_bytes);
/* A socket of this type (SOCK_STREAM, ...) that listens at path; non-blocking. The caller closes it. 0, or 1 with a
 * sentence. Files that other threads make meanwhile are private to the user: the umask changes. */
int unix_socket_listen(const struct config *config, const char *path, int type, int backlog, int *ret_fd, char *err,
                       size_t err_bytes);

#endif
