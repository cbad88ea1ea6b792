/* SPDX-License-Identifier: Apache-2.0 */
#include "unix_socket.h"

#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int refuse_path(const char *path, const char *why, char *err, size_t err_bytes) {
    snprintf(err, err_bytes, "%s: %s", path, why);
    return 1;
}

static bool address_of(const char *path, struct sockaddr_un *ret_address) {
    *ret_address = (struct sockaddr_un){ .sun_family = AF_UNIX };
    int n = snprintf(ret_address->sun_path, sizeof ret_address->sun_path, "%s", path);
    return n > 0 && (size_t)n < sizeof ret_address->sun_path;
}

/* Of any type: the kernel looks for one that is served before it compares types. */
static bool is_served(const char *path) {
    struct sockaddr_un address;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool stale = fd >= 0 && address_of(path, &address) && connect(fd, (struct sockaddr *)&address, sizeof address) &&
                 errno == ECONNREFUSED;
    if (fd >= 0) close(fd);
    return !stale;
}

static int check_name(const char *path, char *err, size_t err_bytes) {
    struct stat st;
    if (lstat(path, &st)) return 0;
    if (!S_ISSOCK(st.st_mode))
        return refuse_path(path, "there is something that is no socket; remove it or choose another path", err,
                           err_bytes);
    if (is_served(path)) return refuse_path(path, "another program listens there; choose another path", err, err_bytes);
    return 0;
}

int unix_socket_prepare(const char *path, char private[UNIX_SOCKET_PATH], char *err, size_t err_bytes) {
    struct sockaddr_un address;
    int n = snprintf(private, UNIX_SOCKET_PATH, "%s.new", path);
    if (n < 0 || (size_t)n >= UNIX_SOCKET_PATH || !address_of(private, &address))
        return refuse_path(path, "the path is too long for a socket, with .new behind it; choose a shorter one", err,
                           err_bytes);
    if (check_name(path, err, err_bytes) || check_name(private, err, err_bytes)) return 1;
    unlink(private);
    return 0;
}

int unix_socket_publish(const struct config *c, const char *private, const char *path, struct unix_socket *ret_socket,
                        char *err, size_t err_bytes) {
    const struct group *g = *c->group ? getgrnam(c->group) : NULL;
    struct stat st;
    int bad = 0;
    if (*c->group && !g) {
        snprintf(err, err_bytes, "%s: there is no such group as %s; create it or change group = in section [kvd]", path,
                 c->group);
        bad = 1;
    } else if ((g && chown(private, (uid_t)-1, g->gr_gid)) || chmod(private, c->socket_mode)) {
        snprintf(err, err_bytes,
                 "%s: cannot get its group and mode: %s; change group = or socket_mode = in section [kvd]", path,
                 strerror(errno));
        bad = 1;
    } else if (check_name(path, err, err_bytes)) bad = 1;
    else if (lstat(private, &st) || rename(private, path)) bad = refuse_path(path, strerror(errno), err, err_bytes);
    if (bad) {
        unlink(private);
        return 1;
    }
    *ret_socket = (struct unix_socket){ .dev = st.st_dev, .ino = st.st_ino };
    snprintf(ret_socket->path, sizeof ret_socket->path, "%s", path);
    return 0;
}

int unix_socket_listen(const struct config *config, const char *path, int type, int backlog, int *ret_fd,
                       struct unix_socket *ret_socket, char *err, size_t err_bytes) {
    char private[UNIX_SOCKET_PATH];
    struct sockaddr_un address;
    if (unix_socket_prepare(path, private, err, err_bytes)) return 1;
    (void)address_of(private, &address); /* it has been looked at */
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    mode_t mask = umask(0177);
    int bad = fd < 0 || bind(fd, (const struct sockaddr *)&address, sizeof address) || listen(fd, backlog), e = errno;
    umask(mask);
    if (!bad && !unix_socket_publish(config, private, path, ret_socket, err, err_bytes)) {
        *ret_fd = fd;
        return 0;
    }
    if (bad)
        snprintf(err, err_bytes, "%s: cannot listen (does its directory exist, and may the daemon write there?): %s",
                 path, strerror(e));
    unlink(private);
    if (fd >= 0) close(fd);
    return 1;
}

void unix_socket_remove(struct unix_socket *s) {
    struct stat st;
    if (*s->path && !lstat(s->path, &st) && st.st_dev == s->dev && st.st_ino == s->ino) unlink(s->path);
    *s->path = 0;
}
