/* SPDX-License-Identifier: Apache-2.0 */
#include "device_host_map.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "device_backend.h"

/* An object is known by device and inode: a name may be reused by a later owner while old mappings live. The inode
 * cannot be reused as long as it is mapped. */
struct host_map {
    struct host_map *next;
    dev_t dev;
    ino_t ino;
    bool read_only;
    uint32_t users;
    uint64_t bytes;
    void *address;
};

static pthread_mutex_t maps_lock = PTHREAD_MUTEX_INITIALIZER;
static struct host_map *maps;

static struct host_map *find_map(const struct stat *object, uint64_t bytes, bool read_only) {
    for (struct host_map *map = maps; map; map = map->next)
        if (map->dev == object->st_dev && map->ino == object->st_ino && map->bytes >= bytes &&
            (read_only || !map->read_only))
            return map;
    return NULL;
}

static int new_map(int fd, const struct stat *object, uint64_t bytes, bool read_only, struct host_map **ret_map) {
    struct host_map *map = malloc(sizeof *map);
    if (!map) return -ENOMEM;
    *map = (struct host_map){
        .next = maps, .dev = object->st_dev, .ino = object->st_ino, .read_only = read_only, .bytes = bytes
    };
    map->address = mmap(NULL, bytes, read_only ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map->address == MAP_FAILED) {
        int e = errno;
        free(map);
        return -e;
    }
    maps = map;
    *ret_map = map;
    return 0;
}

int host_map_add(int fd, uint64_t bytes, bool read_only, struct host_map **ret_map) {
    struct stat object;
    if (fstat(fd, &object)) return -errno;
    if (!S_ISREG(object.st_mode) || object.st_size < 0 || (uint64_t)object.st_size < bytes) return -EMSGSIZE;
    pthread_mutex_lock(&maps_lock);
    struct host_map *map = find_map(&object, bytes, read_only);
    int r = map ? 0 : new_map(fd, &object, bytes, read_only, &map);
    if (!r) {
        map->users++;
        *ret_map = map;
    }
    pthread_mutex_unlock(&maps_lock);
    return r;
}

void *host_map_address(const struct host_map *map) { return map->address; }

void host_map_drop(struct host_map *map) {
    pthread_mutex_lock(&maps_lock);
    if (--map->users == 0) {
        struct host_map **link = &maps;
        while (*link != map) link = &(*link)->next;
        *link = map->next;
        munmap(map->address, map->bytes);
        free(map);
    }
    pthread_mutex_unlock(&maps_lock);
}

/* ---- imports ------------------------------------------------------------------------------ */

struct host_import {
    struct device_import base;
    struct host_map *map;
};

static int check_uuid(const struct device_export *exported, const uint8_t *expect, char *err, size_t err_bytes) {
    char there[33], here[33];
    if (!expect || memcmp(exported->uuid, expect, 16) == 0) return 0;
    device_uuid_text(exported->uuid, there);
    device_uuid_text(expect, here);
    return refuse_with(-ENXIO, err, err_bytes,
                       "the region is on device %s, this consumer runs on %s: attach to its own rank", there, here);
}

bool device_host_is_memory(int fd) {
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) == (F_SEAL_SHRINK | F_SEAL_GROW);
}

int host_import(const struct device_export *exported, const uint8_t *expect_uuid, bool read_only,
                struct device_import **ret_import, char *err, size_t err_bytes) {
    int r = check_uuid(exported, expect_uuid, err, err_bytes);
    if (r) return r;
    struct host_import *import = malloc(sizeof *import);
    struct host_map *map = NULL;
    r = import ? host_map_add(exported->fd, exported->bytes, read_only, &map) : -ENOMEM;
    if (r) {
        free(import);
        return refuse_with(r, err, err_bytes, "memory behind a descriptor cannot be mapped with %" PRIu64 " bytes: %s",
                           exported->bytes,
                           r == -EMSGSIZE ? "the object is smaller, its owner has changed" : strerror(-r));
    }
    *import = (struct host_import){ .base.backend = &device_host_backend, .map = map };
    *ret_import = &import->base;
    return 0;
}

void *host_import_address(const struct device_import *import) {
    return host_map_address(((const struct host_import *)import)->map);
}

void host_unimport(struct device_import *base) {
    struct host_import *import = (struct host_import *)base;
    host_map_drop(import->map);
    free(import);
}
