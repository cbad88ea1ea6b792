/* SPDX-License-Identifier: Apache-2.0 */
#include "peer.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static_assert(sizeof(gid_t) == sizeof(uint32_t), "groups are kept as the kernel gives them");

static bool is_from(int fd, const struct peer *peer) {
    struct ucred cred;
    socklen_t bytes = sizeof cred;
    return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &bytes) && bytes == sizeof cred &&
           (uint64_t)cred.pid == peer->pid && cred.uid == peer->uid && cred.gid == peer->gid;
}

/* The groups of one connection; NULL: it cannot be asked, or no memory. */
static struct groups *groups_of_socket(int fd) {
    for (socklen_t room = 64 * sizeof(uint32_t);;) {
        struct groups *g = malloc(sizeof *g + room);
        socklen_t bytes = room;
        if (!g) return NULL;
        if (!getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, g->gid, &bytes)) {
            g->n = (uint32_t)(bytes / sizeof *g->gid);
            return g;
        }
        free(g);
        if (errno != ERANGE || bytes <= room) return NULL; /* ERANGE says how many there are */
        room = bytes;
    }
}

static void keep_common(struct groups *all, const struct groups *with) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < all->n; i++)
        if (groups_have(with, all->gid[i])) all->gid[n++] = all->gid[i];
    all->n = n;
}

struct groups *peer_groups(const struct peer *peer) {
    struct groups *all = NULL;
    bool sure = true;
    DIR *own = opendir("/proc/self/fd");
    for (struct dirent *e; own && sure && (e = readdir(own));) {
        int fd = e->d_name[0] == '.' ? -1 : atoi(e->d_name);
        if (fd < 0 || !is_from(fd, peer)) continue;
        struct groups *one = groups_of_socket(fd);
        sure = one != NULL; /* it may have been the one that counts */
        if (all && one) keep_common(all, one);
        if (!all) all = one;
        else free(one);
    }
    if (own) closedir(own);
    if (sure) return all;
    free(all);
    return NULL;
}
