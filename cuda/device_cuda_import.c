/* SPDX-License-Identifier: Apache-2.0
 *
 * Consumer side of the CUDA backend: regions of another process, mapped into the caller's current context.
 *
 * The driver opens a handle once a process and context; imports of one region share that mapping and count. A handle
 * of this process itself is not opened at all: the region's own address is used, for as long as the region lives.
 * Memory behind a descriptor has a mapping an import, since nothing tells whether two descriptors are of one memory;
 * the region's own descriptor in the process that owns it is known by its number. CUDA cannot map memory read-only, so
 * read_only is a promise of the consumer here.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "device_cuda_internal.h"

struct cuda_map {
    struct cuda_map *next;
    CUipcMemHandle handle;
    uint64_t instance; /* of the owner */
    CUcontext context;
    CUdeviceptr address;
    uint32_t users;
};

struct cuda_import {
    struct device_import base;
    struct cuda_map *map; /* of a handle, else NULL */
    uint64_t mapped;      /* bytes, of a descriptor, else 0. Neither: own memory */
    CUdeviceptr address;
};

static pthread_mutex_t maps_lock = PTHREAD_MUTEX_INITIALIZER; /* both lists */
static struct cuda_map *maps;
static struct cuda_region *own;

void cuda_own_add(struct cuda_region *region) {
    pthread_mutex_lock(&maps_lock);
    region->next_own = own;
    own = region;
    pthread_mutex_unlock(&maps_lock);
}

void cuda_own_drop(struct cuda_region *region) {
    pthread_mutex_lock(&maps_lock);
    struct cuda_region **link = &own;
    while (*link != region) link = &(*link)->next_own;
    *link = region->next_own;
    pthread_mutex_unlock(&maps_lock);
}

/* ---- refusals ----------------------------------------------------------------------------- */

/* The context must be on the region's device, and so must the device that the caller named. */
static int check_device(const struct device_export *exported, const uint8_t *expect, char *err, size_t err_bytes) {
    char there[33], here[33];
    CUdevice device;
    CUuuid uuid;
    int r = CUDA_CALL(err, err_bytes, cuCtxGetDevice, &device);
    if (!r) r = CUDA_CALL(err, err_bytes, cuDeviceGetUuid_v2, &uuid, device);
    if (r) return r;
    device_uuid_text(exported->uuid, there);
    if (memcmp(&uuid, exported->uuid, sizeof exported->uuid) != 0) {
        device_uuid_text((const uint8_t *)&uuid, here);
        return refuse_with(-ENXIO, err, err_bytes,
                           "the region is on GPU %s, the current CUDA context on %s: make a context of that GPU "
                           "current, or attach the "
                           "rank of this one",
                           there, here);
    }
    if (expect && memcmp(expect, exported->uuid, sizeof exported->uuid) != 0) {
        device_uuid_text(expect, here);
        return refuse_with(-ENXIO, err, err_bytes,
                           "the region is on GPU %s, this consumer says it runs on %s: attach to its own rank", there,
                           here);
    }
    return 0;
}

/* What the driver does not say: whether there is still somebody behind the handle. */
static int open_failed(int code, const struct device_export *exported, const char *why, char *err, size_t err_bytes) {
    pid_t pid = (pid_t)exported->owner_pid;
    if (pid > 0 && kill(pid, 0) != 0 && errno == ESRCH)
        return refuse_with(-ENOENT, err, err_bytes,
                           "%s; its owner, process %" PRIu64
                           ", is not seen from here: it is gone (attach again), or it runs in "
                           "another PID namespace (share it, for example --pid=host)",
                           why, exported->owner_pid);
    return refuse_with(code, err, err_bytes,
                       "%s; its owner, process %" PRIu64
                       ", lives: has it freed the region (attach again), or do the two run in "
                       "different containers (share IPC and PID namespaces) or under different users?",
                       why, exported->owner_pid);
}

/* ---- maps --------------------------------------------------------------------------------- */

static bool same_handle(const void *a, const void *b) { return memcmp(a, b, sizeof(CUipcMemHandle)) == 0; }

/* With the lock held. */
static struct cuda_region *find_own(const struct device_export *exported) {
    bool by_fd = exported->kind == DEVICE_EXPORT_FD;
    for (struct cuda_region *region = own; region; region = region->next_own)
        if (by_fd ? region->fd == exported->fd && region->address == exported->local_address
                  : region->fd < 0 && same_handle(&region->handle, exported->ipc_handle))
            return region;
    return NULL;
}

static struct cuda_map *find_map(const struct device_export *exported) {
    for (struct cuda_map *map = maps; map; map = map->next)
        if (same_handle(&map->handle, exported->ipc_handle)) return map;
    return NULL;
}

static int check_size(CUdeviceptr address, const struct device_export *exported, char *err, size_t err_bytes) {
    CUdeviceptr base = 0;
    size_t bytes = 0;
    int r = CUDA_CALL(err, err_bytes, cuMemGetAddressRange, &base, &bytes, address);
    if (r) return r;
    if (bytes - (address - base) >= exported->bytes) return 0;
    return refuse_with(-EMSGSIZE, err, err_bytes,
                       "the export names %" PRIu64 " bytes, the memory behind it has %zu: its owner has changed, "
                       "attach again",
                       exported->bytes, bytes);
}

static int new_map(const struct device_export *exported, CUcontext context, struct cuda_map **ret_map, char *err,
                   size_t err_bytes) {
    char why[256] = "";
    struct cuda_map *map = malloc(sizeof *map);
    if (!map) return refuse_with(-ENOMEM, err, err_bytes, "no memory to describe a mapping");
    *map = (struct cuda_map){ .next = maps, .instance = exported->owner_instance, .context = context };
    memcpy(&map->handle, exported->ipc_handle, sizeof map->handle);
    int r =
        CUDA_CALL(why, sizeof why, cuIpcOpenMemHandle, &map->address, map->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (r) {
        free(map);
        return open_failed(r, exported, why, err, err_bytes);
    }
    r = check_size(map->address, exported, err, err_bytes);
    if (r) {
        (void)cuda_driver.cuIpcCloseMemHandle(map->address);
        free(map);
        return r;
    }
    maps = map;
    *ret_map = map;
    return 0;
}

/* With the lock held: the mapping, one user more. A handle is made of numbers that a later owner may have again, such
 * as its process's; the driver, too, then gives what it has opened already: the memory of the one before. */
static int use_map(const struct device_export *exported, CUcontext context, struct cuda_map **ret_map, char *err,
                   size_t err_bytes) {
    struct cuda_map *map = find_map(exported);
    int r = map ? 0 : new_map(exported, context, &map, err, err_bytes);
    if (r) return r;
    if (map->instance != exported->owner_instance)
        return refuse_with(-EBUSY, err, err_bytes,
                           "this process still has memory of an earlier owner mapped under the same handle: detach "
                           "that first");
    if (map->context != context)
        return refuse_with(-EBUSY, err, err_bytes,
                           "this process has the region mapped in another CUDA context, and CUDA maps it in one only: "
                           "make that one current, or detach there first");
    map->users++;
    *ret_map = map;
    return 0;
}

static int map_descriptor(const struct device_export *exported, struct cuda_import *import, char *err,
                          size_t err_bytes) {
    uint64_t bytes = (exported->bytes + GEOM_REGION_MIN - 1) / GEOM_REGION_MIN * GEOM_REGION_MIN;
    CUdevice device;
    int r = CUDA_CALL(err, err_bytes, cuCtxGetDevice, &device);
    if (!r) r = cuda_vmm_round(device, &bytes, err, err_bytes);
    if (!r) r = cuda_vmm_map(device, exported->fd, bytes, &import->address, err, err_bytes);
    if (!r) import->mapped = bytes;
    return r;
}

static int open_import(const struct device_export *exported, CUcontext context, struct cuda_import *import, char *err,
                       size_t err_bytes) {
    int r = 0;
    pthread_mutex_lock(&maps_lock);
    struct cuda_region *region = find_own(exported);
    if (region && region->bytes < exported->bytes)
        r = refuse_with(-EMSGSIZE, err, err_bytes, "the export names %" PRIu64 " bytes, its region has %" PRIu64,
                        exported->bytes, region->bytes);
    else if (region) import->address = region->address;
    else if (exported->kind == DEVICE_EXPORT_FD) r = map_descriptor(exported, import, err, err_bytes);
    else if (!(r = use_map(exported, context, &import->map, err, err_bytes))) import->address = import->map->address;
    pthread_mutex_unlock(&maps_lock);
    return r;
}

int cuda_import(const struct device_export *exported, const uint8_t *expect_uuid, bool read_only,
                struct device_import **ret_import, char *err, size_t err_bytes) {
    static const uint8_t none[sizeof(CUipcMemHandle)];
    CUcontext context = NULL;
    (void)read_only;
    if (exported->kind == DEVICE_EXPORT_CUDA_IPC && same_handle(exported->ipc_handle, none))
        return refuse_with(-EACCES, err, err_bytes,
                           "the owner shows this session no handle of the region: attach as a worker");
    int r = cuda_driver_load(err, err_bytes);
    if (!r) r = CUDA_CALL(err, err_bytes, cuCtxGetCurrent, &context);
    if (r) return r;
    if (!context)
        return refuse_with(
            -EINVAL, err, err_bytes,
            "the region is GPU memory and no CUDA context is current in this thread: call cuCtxSetCurrent or "
            "cudaSetDevice (and one call that starts the runtime, such as cudaFree(0)) before attaching");
    if ((r = check_device(exported, expect_uuid, err, err_bytes))) return r;
    struct cuda_import *import = calloc(1, sizeof *import);
    if (!import) return refuse_with(-ENOMEM, err, err_bytes, "no memory to describe an import");
    import->base.backend = &device_cuda_backend;
    r = open_import(exported, context, import, err, err_bytes);
    if (r) free(import);
    else *ret_import = &import->base;
    return r;
}

void *cuda_import_address(const struct device_import *import) {
    return (void *)(uintptr_t)((const struct cuda_import *)import)->address;
}

void cuda_unimport(struct device_import *base) {
    struct cuda_import *import = (struct cuda_import *)base;
    struct cuda_map *map = import->map;
    if (import->mapped) cuda_vmm_unmap(import->address, import->mapped);
    free(import);
    if (!map) return;
    pthread_mutex_lock(&maps_lock);
    if (--map->users == 0) {
        struct cuda_map **link = &maps;
        while (*link != map) link = &(*link)->next;
        *link = map->next;
        /* The context may be gone already, and its mappings with it: then there is nothing to close. */
        if (!cuda_context_push(map->context, NULL, 0)) {
            (void)cuda_driver.cuIpcCloseMemHandle(map->address);
            cuda_context_pop();
        }
        free(map);
    }
    pthread_mutex_unlock(&maps_lock);
}
