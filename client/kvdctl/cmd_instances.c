/* SPDX-License-Identifier: Apache-2.0
 *
 * instances: those of this machine, what each daemon says, and whose arena is whose.
 */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "figures.h"
#include "instances.h"

static const char shm_folder[] = "/dev/shm";

static void put_arena(cJSON *row, const char *file) {
    char path[300];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", shm_folder, file);
    if (stat(path, &st)) return;
    cJSON_AddStringToObject(row, "arena", path);
    cJSON_AddStringToObject(row, "arena_text", file + sizeof ARENA_PREFIX - 1);
    out_put_bytes(row, "arena_bytes", (uint64_t)st.st_size);
}

/* What its daemon says of itself; or why it says nothing. */
static const char *ask_daemon(struct ctl *ctl, const struct found_instance *instance, cJSON *row,
                              struct kvd_error *error) {
    struct kvd_store_info info;
    struct kvd_stats stats;
    ctl->options.socket = instance->socket;
    enum kvd_status status = ctl_connect(ctl, KVD_ROLE_OBSERVER, error);
    if (status != KVD_OK) return strstr(error->message, "permission denied") ? "no permission" : "does not answer";
    status = kvd_describe(ctl->client, &info, error);
    if (status == KVD_OK) status = kvd_stats(ctl->client, &stats, error);
    if (status == KVD_OK) {
        cJSON_AddStringToObject(row, "store", info.name);
        cJSON_AddStringToObject(row, "version", stats.version);
        out_put_u64(row, "sequences", stats.sequences);
        figures_duration(row, "uptime_text", (double)stats.uptime_ns / 1e9);
    }
    kvd_disconnect(ctl->client);
    ctl->client = NULL;
    return status != KVD_OK ? "does not answer" : stats.draining ? "draining" : "serves";
}

static cJSON *instance_row(struct ctl *ctl, const struct found_instance *instance) {
    struct kvd_error error = { .message = "" };
    char arena[INSTANCE_ARENA];
    cJSON *row = cJSON_CreateObject();
    cJSON_AddStringToObject(row, "instance", instance->name);
    cJSON_AddStringToObject(row, "instance_text", *instance->name ? instance->name : "-");
    cJSON_AddStringToObject(row, "socket", instance->socket);
    cJSON_AddStringToObject(row, "state",
                            instance->there && instance_listens(instance) ? ask_daemon(ctl, instance, row, &error)
                                                                          : "does not run");
    if (*error.message) cJSON_AddStringToObject(row, "message", error.message);
    instance_arena(instance, arena);
    put_arena(row, arena);
    return row;
}

static const char *file_of(const cJSON *row) {
    const char *slash = strrchr(figures_string(row, "arena"), '/');
    return slash ? slash + 1 : "";
}

/* Arenas that no instance of the list has. */
static void add_strays(cJSON *rows) {
    const cJSON *row;
    DIR *d = opendir(shm_folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        bool known = strncmp(e->d_name, ARENA_PREFIX, sizeof ARENA_PREFIX - 1) != 0;
        cJSON_ArrayForEach(row, rows) known |= strcmp(file_of(row), e->d_name) == 0;
        if (known) continue;
        cJSON *stray = cJSON_CreateObject();
        cJSON_AddStringToObject(stray, "instance_text", "?");
        cJSON_AddStringToObject(stray, "state", "not known");
        put_arena(stray, e->d_name);
        cJSON_AddItemToArray(rows, stray);
    }
    if (d) closedir(d);
}

int cmd_instances(struct ctl *ctl) {
    static const struct out_column columns[] = {
        { .key = "instance_text", .heading = "INSTANCE" },
        { .key = "state", .heading = "STATE" },
        { .key = "uptime_text", .heading = "UP FOR", .right = true, .drop = 2 },
        { .key = "version", .heading = "VERSION", .drop = 4 },
        { .key = "store", .heading = "STORE", .drop = 3 },
        { .key = "socket", .heading = "SOCKET" },
        { .key = "arena_bytes_text", .heading = "ARENA", .right = true, .drop = 1 },
        { .key = "arena_text", .heading = "/dev/shm/" ARENA_PREFIX },
    };
    static struct instances all;
    cJSON *rows = cJSON_CreateArray();
    instances_find(&all);
    for (uint32_t i = 0; i < all.n; i++) cJSON_AddItemToArray(rows, instance_row(ctl, &all.item[i]));
    add_strays(rows);
    out_table(ctl->out, "instances", columns, sizeof columns / sizeof *columns, rows);
    return CTL_OK;
}
