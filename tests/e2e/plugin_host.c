/* SPDX-License-Identifier: Apache-2.0
 *
 * A program that knows nothing of libkvd and loads it as a plug-in: plugin_host LIBRARY SOCKET HOW. It ends with 0, or
 * with the number of the step that failed.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kvd.h"

struct plugin {
    void *handle;
    enum kvd_status (*connect)(const struct kvd_connect_options *, kvd_client **, struct kvd_error *);
    void (*disconnect)(kvd_client *);
    const char *(*status_name)(enum kvd_status);
};

static bool load(const char *library, struct plugin *p) {
    p->handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!p->handle) return false;
    *(void **)&p->connect = dlsym(p->handle, "kvd_connect");
    *(void **)&p->disconnect = dlsym(p->handle, "kvd_disconnect");
    *(void **)&p->status_name = dlsym(p->handle, "kvd_status_name");
    return p->connect && p->disconnect && p->status_name;
}

static enum kvd_status connect_to(const struct plugin *p, const char *socket, kvd_client **ret_client) {
    struct kvd_connect_options options = { .struct_size = sizeof options,
                                           .socket = socket,
                                           .role = KVD_ROLE_OBSERVER,
                                           .name = "plug-in",
                                           .timeout_ms = 20000 };
    return p->connect(&options, ret_client, NULL);
}

/* Loaded, used and unloaded again and again. A pointer into the library outlives dlclose, as its threads do. */
static int reload(const char *library, const char *socket) {
    for (int i = 0; i < 12; i++) {
        struct plugin p;
        kvd_client *client;
        if (!load(library, &p)) return 1;
        if (connect_to(&p, socket, &client) != KVD_OK) return 2;
        p.disconnect(client);
        if (dlclose(p.handle)) return 3;
        if (strcmp(p.status_name(KVD_OK), "OK") != 0) return 4;
    }
    return 0;
}

/* A child of a host that has unloaded it: ends as processes end; loading it again, it is told that it is a fork. */
static int fork_after(const char *library, const char *socket) {
    struct plugin p;
    kvd_client *client;
    for (int ways = 0; ways < 3; ways++) {
        if (!load(library, &p) || connect_to(&p, socket, &client) != KVD_OK) return 1;
        p.disconnect(client);
        if (dlclose(p.handle)) return 2;
        int status = -1;
        pid_t pid = fork();
        if (pid == 0 && ways == 0) exit(0);
        if (pid == 0 && ways == 1) _exit(0);
        if (pid == 0) exit(load(library, &p) && connect_to(&p, socket, &client) == KVD_FAILED_PRECONDITION ? 0 : 1);
        if (waitpid(pid, &status, 0) != pid || status) return 3;
    }
    return 0;
}

/* Ends with the client open and its library closed. */
static int leave_open(const char *library, const char *socket) {
    struct plugin p;
    kvd_client *client;
    if (!load(library, &p) || connect_to(&p, socket, &client) != KVD_OK) return 1;
    return dlclose(p.handle) ? 2 : 0;
}

int main(int argc, char **argv) {
    if (argc != 4) return 100;
    if (strcmp(argv[3], "reload") == 0) return reload(argv[1], argv[2]);
    if (strcmp(argv[3], "fork") == 0) return fork_after(argv[1], argv[2]);
    return strcmp(argv[3], "leave") == 0 ? leave_open(argv[1], argv[2]) : 101;
}
