/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of Unix sockets. A socket is bound at a private name beside its public one, gets its permissions and group, and
 * is moved into place: nobody connects to one that is not ready. A socket that nobody serves is replaced, anything else
 * at either name stays: it is refused, and never removed.
 */
#ifndef KVD_UNIX_SOCKET_H
#define KVD_UNIX_SOCKET_H

#include <stdbool.h>
#include <sys/stat.h>

#include "config.h"

#define UNIX_SOCKET_PATH 108u /* sizeof sun_path */

/* What stands at a public name and is ours. path "": nothing. */
struct unix_socket {
    char path[UNIX_SOCKET_PATH];
    dev_t dev;
    ino_t ino;
};

/* "PATH.new", where a socket for path is to be bound, is free now. 0, or 1 with a sentence; so, too, where path is
 * taken by what may not be replaced. */
int unix_socket_prepare(const char *path, char private[UNIX_SOCKET_PATH], char *err, size_t err_bytes);
/* Moves what is bound at private to path, with the mode and group of the configuration. On failure 1 with a sentence,
 * and the private name is removed. */
int unix_socket_publish(const struct config *config, const char *private, const char *path,
                        struct unix_socket *ret_socket, char *err, size_t err_bytes);
/* A socket of this type (SOCK_STREAM, ...) that listens at path; non-blocking. The caller closes it. 0, or 1 with a
 * sentence. Files that other threads make meanwhile are private to the user: the umask changes. */
int unix_socket_listen(const struct config *config, const char *path, int type, int backlog, int *ret_fd,
                       struct unix_socket *ret_socket, char *err, size_t err_bytes);
/* Removes the name, if it is still this socket's. */
void unix_socket_remove(struct unix_socket *socket);

#endif
