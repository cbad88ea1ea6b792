/* SPDX-License-Identifier: Apache-2.0 */
#include "unix_socket.h"

#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static int complain_path(const char *what, char *err, size_t err_bytes) {
    snprintf(err, err_bytes, "%s: %s", what, strerror(errno));
    return 1;
}

void unix_socket_private(const char *path, char *name, size_t bytes) { snprintf(name, bytes, "%s.new", path); }

/* Under its private name it becomes what it shall be. */
static int publish_private(const struct config *c, const char *private, const char *path, char *err, size_t err_bytes) {
    const struct group *g = *c->group ? getgrnam(c->group) : NULL;
    if (*c->group && !g) {
        snprintf(err, err_bytes, "there is no such group as %s; create it or change group = in section [kvd]",
                 c->group);
        return 1;
    }
    if (chmod(private, c->socket_mode)) return complain_path("chmod", err, err_bytes);
    if (g && chown(private, (uid_t)-1, g->gr_gid)) return complain_path("cannot be given to its group", err, err_bytes);
    if (rename(private, path)) return complain_path("rename", err, err_bytes);
    return 0;
}

int unix_socket_publish(const struct config *config, const char *path, char *err, size_t err_bytes) {
    char private[sizeof(((struct sockaddr_un *)0)->sun_path)];
    unix_socket_private(path, private, sizeof private);
    int bad = publish_private(config, private, path, err, err_bytes);
    if (bad) unlink(private);
    return bad;
}

int unix_socket_listen(const struct config *config, const char *path, int type, int backlog, int *ret_fd, char *err,
                       size_t err_bytes) {
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    unix_socket_private(path, address.sun_path, sizeof address.sun_path);
    unlink(address.sun_path);
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    mode_t mask = umask(0177);
    int bad = fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, backlog);
    umask(mask);
    if (bad) complain_path("cannot listen (does its directory exist, and may the daemon write there?)", err, err_bytes);
    else if (!unix_socket_publish(config, path, err, err_bytes)) {
        *ret_fd = fd;
        return 0;
    }
    unlink(address.sun_path);
    if (fd >= 0) close(fd);
    return 1;
}
