/* SPDX-License-Identifier: Apache-2.0
 *
 * The instances of kvd on this machine: which one is meant where no socket is named, and the list of them.
 *
 * An instance NAME has its socket in /run/kvd/NAME, or is kvd.sock in /run/kvd itself; /etc/kvd/NAME.conf says that
 * there could be one. Its arena is named after the socket (see make_prefix in kvd/start/main.c).
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <xxhash.h>

#include "instances.h"

static const char *runtime_folder(void) {
    const char *folder = getenv("KVD_RUNTIME_DIR");
    return folder && *folder ? folder : "/run/kvd";
}

/* "" is the one without a folder of its own. */
static bool socket_of(const char *name, char *socket, size_t bytes) {
    return (size_t)snprintf(socket, bytes, "%s/%s%skvd.sock", runtime_folder(), name, *name ? "/" : "") < bytes;
}

static void note_instance(struct instances *all, const char *name) {
    struct found_instance *new = &all->item[all->n];
    struct stat st;
    if (all->n == INSTANCES || strlen(name) >= sizeof new->name || !socket_of(name, new->socket, sizeof new->socket))
        return;
    for (uint32_t i = 0; i < all->n; i++)
        if (strcmp(all->item[i].name, name) == 0) return;
    memcpy(new->name, name, strlen(name) + 1);
    new->there = !stat(new->socket, &st) || errno == EACCES;
    all->n++;
}

/* Names of a folder that end in suffix, without it. */
static void note_folder(struct instances *all, const char *folder, const char *suffix, bool folders) {
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t n = strlen(e->d_name), less = strlen(suffix);
        char name[256];
        if (e->d_name[0] == '.' || n <= less || strcmp(e->d_name + n - less, suffix) != 0) continue;
        if (folders && e->d_type != DT_DIR && e->d_type != DT_UNKNOWN) continue;
        snprintf(name, sizeof name, "%.*s", (int)(n - less), e->d_name);
        note_instance(all, name);
    }
    if (d) closedir(d);
}

static int by_name(const void *a, const void *b) {
    const struct found_instance *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* Those whose socket is there. */
static void find_sockets(struct instances *all) {
    uint32_t kept = 0;
    note_instance(all, "");
    note_folder(all, runtime_folder(), "", true);
    for (uint32_t i = 0; i < all->n; i++)
        if (all->item[i].there) all->item[kept++] = all->item[i];
    all->n = kept;
    qsort(all->item, all->n, sizeof *all->item, by_name);
}

bool instance_listens(const struct found_instance *instance) {
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    memcpy(to.sun_path, instance->socket, sizeof to.sun_path);
    bool is = fd >= 0 && (!connect(fd, (struct sockaddr *)&to, sizeof to) || errno == EAGAIN || errno == EACCES);
    if (fd >= 0) close(fd);
    return is;
}

static int refuse_choice(const struct instances *all) {
    fputs("kvdctl: several instances run here:", stderr);
    for (uint32_t i = 0; i < all->n; i++)
        fprintf(stderr, "%s %s", i ? "," : "", *all->item[i].name ? all->item[i].name : all->item[i].socket);
    fputs("; say which one by --instance NAME or --socket PATH\n", stderr);
    return CTL_USAGE;
}

void instances_find(struct instances *all) {
    note_instance(all, "");
    if (!all->item[0].there) all->n = 0;
    note_folder(all, runtime_folder(), "", true);
    note_folder(all, "/etc/kvd", ".conf", false);
    qsort(all->item, all->n, sizeof *all->item, by_name);
}

void instance_arena(const struct found_instance *instance, char file[INSTANCE_ARENA]) {
    snprintf(file, INSTANCE_ARENA, ARENA_PREFIX "%016" PRIx64,
             (uint64_t)XXH3_64bits(instance->socket, strlen(instance->socket)));
}

/* The only one that is there; of several the only one that listens. */
static int choose_instance(struct instances *all, const char **ret_socket) {
    find_sockets(all);
    uint32_t listening = 0;
    for (uint32_t i = 0; all->n > 1 && i < all->n; i++)
        if (instance_listens(&all->item[i])) all->item[listening++] = all->item[i];
    if (all->n > 1) all->n = listening ? listening : 1;
    if (all->n > 1) return refuse_choice(all);
    *ret_socket = all->n ? all->item[0].socket : NULL;
    return CTL_OK;
}

int instance_choose(struct ctl_options *options) {
    static struct instances all;
    static char named[sizeof all.item[0].socket];
    const char *environment = getenv("KVD_SOCKET");
    if (options->socket) return CTL_OK;
    if (!options->instance) return environment && *environment ? CTL_OK : choose_instance(&all, &options->socket);
    if (!*options->instance || strchr(options->instance, '/') || !socket_of(options->instance, named, sizeof named)) {
        fprintf(stderr, "kvdctl: \"%s\" is no name of an instance: it is the NAME of /etc/kvd/NAME.conf and kvd@NAME\n",
                options->instance);
        return CTL_USAGE;
    }
    options->socket = named;
    return CTL_OK;
}
