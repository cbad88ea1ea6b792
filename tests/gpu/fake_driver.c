/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_driver.h"

#include <cuda.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))
#define DEVICES 2
#define TOTAL_BYTES (16ull << 30)
#define LEAST_FLAT_BYTES (28u << 10)

PUBLIC extern struct fake_cuda fake_cuda;
struct fake_cuda fake_cuda;

struct CUctx_st {
    int device;
};
struct CUevent_st {
    CUstream stream;
    uint64_t position;
};
struct work {
    struct work *next;
    char *to;
    const char *from;
    size_t to_pitch, from_pitch, width, rows;
    struct CUevent_st after; /* of a wait: it copies nothing */
};
struct CUstream_st {
    CUstream next;
    struct work *first, **last;
    uint64_t enqueued, done;
};
struct block {
    struct block *next;
    char *at;
    size_t bytes;
    enum { DEVICE, PINNED, FOREIGN, REGISTERED, RESERVED, MAPPED } kind;
    char name[48];
    int device;
    bool accessible;         /* MAPPED */
    struct physical *memory; /* MAPPED */
};
/* Memory of cuMemCreate: a file of its bytes, and behind them what it is. */
struct physical {
    int fd, device;
    uint64_t bytes;
    unsigned users; /* handles and mappings */
    bool made_here;
};
struct label {
    uint64_t magic, bytes;
    int device;
};
#define LABEL_MAGIC UINT64_C(0x6b61662d61647563)
#define GRANULE (2u << 20)
struct handle {
    char name[48];
    uint32_t pid;
    uint32_t device;
    uint64_t bytes;
};
_Static_assert(sizeof(struct handle) == sizeof(CUipcMemHandle), "a handle's bytes");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUctx_st contexts[DEVICES] = { { 0 }, { 1 } };
static _Thread_local CUcontext stack[8];
static _Thread_local int depth;
static struct block *blocks;
static CUstream streams;
static size_t used[DEVICES];
static unsigned serial;

/* clang-format off */
#define NAME_LIST(X)                                                                                                   \
    X(CUDA_SUCCESS)                                                                                                    \
    X(CUDA_ERROR_INVALID_VALUE)                                                                                        \
    X(CUDA_ERROR_OUT_OF_MEMORY)                                                                                        \
    X(CUDA_ERROR_NO_DEVICE) X(CUDA_ERROR_INVALID_DEVICE) X(CUDA_ERROR_INVALID_CONTEXT) X(CUDA_ERROR_MAP_FAILED)        \
        X(CUDA_ERROR_NOT_READY) X(CUDA_ERROR_ILLEGAL_ADDRESS) X(CUDA_ERROR_NOT_SUPPORTED)                             \
            X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) X(CUDA_ERROR_INVALID_HANDLE)
/* clang-format on */

PUBLIC CUresult CUDAAPI cuGetErrorName(CUresult error, const char **ret_name) {
#define NAME(e)                                                                                                        \
    if (error == e) *ret_name = #e;
    NAME_LIST(NAME)
    return CUDA_SUCCESS;
}
PUBLIC CUresult CUDAAPI cuGetErrorString(CUresult error, const char **ret_text) {
    return cuGetErrorName(error, ret_text);
}
PUBLIC CUresult CUDAAPI cuInit(unsigned flags) { return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }
PUBLIC CUresult CUDAAPI cuDriverGetVersion(int *ret_version) { return *ret_version = 13000, CUDA_SUCCESS; }
PUBLIC CUresult CUDAAPI cuDeviceGetCount(int *ret_count) { return *ret_count = DEVICES, CUDA_SUCCESS; }
PUBLIC CUresult CUDAAPI cuDeviceGet(CUdevice *ret_device, int ordinal) {
    if (ordinal < 0 || ordinal >= DEVICES) return CUDA_ERROR_INVALID_DEVICE;
    return *ret_device = ordinal, CUDA_SUCCESS;
}
PUBLIC CUresult CUDAAPI cuDeviceGetName(char *name, int bytes, CUdevice device) {
    snprintf(name, (size_t)bytes, "stand-in GPU %d", device);
    return CUDA_SUCCESS;
}
PUBLIC CUresult CUDAAPI cuDeviceTotalMem(size_t *ret_bytes, CUdevice device) {
    return (void)device, *ret_bytes = TOTAL_BYTES, CUDA_SUCCESS;
}
PUBLIC CUresult CUDAAPI cuDeviceGetAttribute(int *ret_value, CUdevice_attribute attribute, CUdevice device) {
    (void)device;
    if (attribute != CU_DEVICE_ATTRIBUTE_MAX_PITCH) return CUDA_ERROR_INVALID_VALUE;
    return *ret_value = INT32_MAX, CUDA_SUCCESS;
}
PUBLIC CUresult CUDAAPI cuDeviceGetUuid(CUuuid *ret_uuid, CUdevice device) {
    memset(ret_uuid, 0x50 + device, sizeof *ret_uuid);
    return CUDA_SUCCESS;
}

/* ---- contexts ---- */
PUBLIC CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *ret_context, CUdevice device) {
    return *ret_context = &contexts[device], CUDA_SUCCESS;
}
PUBLIC CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device) { return (void)device, CUDA_SUCCESS; }
PUBLIC CUresult CUDAAPI cuCtxPushCurrent(CUcontext context) {
    if (depth == 8) return CUDA_ERROR_INVALID_VALUE;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}
PUBLIC CUresult CUDAAPI cuCtxPopCurrent(CUcontext *ret_context) {
    if (!depth) return CUDA_ERROR_INVALID_CONTEXT;
    *ret_context = stack[--depth];
    return CUDA_SUCCESS;
}
PUBLIC CUresult CUDAAPI cuCtxGetCurrent(CUcontext *ret_context) {
    return *ret_context = depth ? stack[depth - 1] : NULL, CUDA_SUCCESS;
}
PUBLIC CUresult CUDAAPI cuCtxSetCurrent(CUcontext context) {
    if (!depth) depth = 1;
    stack[depth - 1] = context;
    return CUDA_SUCCESS;
}
PUBLIC CUresult CUDAAPI cuCtxGetDevice(CUdevice *ret_device) {
    if (!depth || !stack[depth - 1]) return CUDA_ERROR_INVALID_CONTEXT;
    return *ret_device = stack[depth - 1]->device, CUDA_SUCCESS;
}
static int current(void) { return depth && stack[depth - 1] ? stack[depth - 1]->device : -1; }

/* ---- failures ---- */
static CUresult injected(const char *call) {
    const char *failing = atomic_load(&fake_cuda.fail_call);
    if (!failing || strcmp(failing, call) != 0 || atomic_fetch_sub(&fake_cuda.fail_after, 1) > 0) return CUDA_SUCCESS;
    return (CUresult)atomic_load(&fake_cuda.fail_code);
}
#define MAY_FAIL(call)                                                                                                 \
    do {                                                                                                               \
        CUresult failure = injected(call);                                                                             \
        if (failure != CUDA_SUCCESS) return failure;                                                                   \
    } while (0)

/* ---- memory ---- */
static void *map_object(const char *name, size_t bytes, bool create) {
    int fd = shm_open(name, O_RDWR | (create ? O_CREAT | O_EXCL : 0), 0600);
    void *at = MAP_FAILED;
    if (fd < 0) return NULL;
    if (!create || ftruncate(fd, (off_t)bytes) == 0) at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED && create) shm_unlink(name);
    return at == MAP_FAILED ? NULL : at;
}

static struct block *add_block(char *at, size_t bytes, int kind, const char *name, int device) {
    struct block *b = calloc(1, sizeof *b);
    *b = (struct block){ .next = blocks, .at = at, .bytes = bytes, .kind = kind, .device = device };
    snprintf(b->name, sizeof b->name, "%s", name);
    atomic_fetch_add(&fake_cuda.objects, 1);
    return blocks = b;
}

static struct block *find_block(const void *at, size_t bytes) {
    for (struct block *b = blocks; b; b = b->next)
        if ((const char *)at >= b->at && (const char *)at + bytes <= b->at + b->bytes) return b;
    return NULL;
}

static bool touches(const struct block *b, const char *at, size_t pitch, const struct work *w) {
    return at < b->at + b->bytes && b->at < at + pitch * (w->rows - 1) + w->width;
}

static void run_until(CUstream s, uint64_t position);

/* Memory goes: what still copies there is counted, and ends first. */
static void settle_block(const struct block *block) {
    for (CUstream s = streams; s; s = s->next) {
        unsigned users = 0;
        for (const struct work *w = s->first; w; w = w->next)
            users += w->rows && (touches(block, w->to, w->to_pitch, w) || touches(block, w->from, w->from_pitch, w));
        atomic_fetch_add(&fake_cuda.early, users);
        if (users) run_until(s, s->enqueued);
    }
}

static void drop_block(struct block *block) {
    struct block **link = &blocks;
    if (block->kind != RESERVED) settle_block(block);
    while (*link != block) link = &(*link)->next;
    *link = block->next;
    atomic_fetch_sub(&fake_cuda.objects, 1);
    if (block->kind != REGISTERED) munmap(block->at, block->bytes);
    if (block->kind == DEVICE) shm_unlink(block->name);
    free(block);
}

/* As a real driver gives everything back at the end of a process. */
__attribute__((destructor)) static void unlink_all(void) {
    for (struct block *b = blocks; b; b = b->next)
        if (b->kind == DEVICE) shm_unlink(b->name);
}

PUBLIC CUresult CUDAAPI cuMemGetInfo(size_t *ret_free, size_t *ret_total) {
    if (current() < 0) return CUDA_ERROR_INVALID_CONTEXT;
    return *ret_free = TOTAL_BYTES - used[current()], *ret_total = TOTAL_BYTES, CUDA_SUCCESS;
}
PUBLIC CUresult CUDAAPI cuMemAlloc(CUdeviceptr *ret_at, size_t bytes) {
    char name[48], *at;
    if (current() < 0) return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
    snprintf(name, sizeof name, "/fake-cuda-%d-%u", (int)getpid(), serial++);
    if (bytes <= TOTAL_BYTES - used[current()] && (at = map_object(name, bytes, true))) {
        add_block(at, bytes, DEVICE, name, current());
        used[current()] += bytes;
        *ret_at = (CUdeviceptr)(uintptr_t)at;
        r = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return r;
}
PUBLIC CUresult CUDAAPI cuMemFree(CUdeviceptr at) {
    pthread_mutex_lock(&lock);
    struct block *b = find_block((void *)(uintptr_t)at, 1);
    if (b) {
        used[b->device] -= b->bytes;
        drop_block(b);
    }
    pthread_mutex_unlock(&lock);
    return b ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
PUBLIC CUresult CUDAAPI cuMemHostAlloc(void **ret_at, size_t bytes, unsigned flags) {
    MAY_FAIL("cuMemHostAlloc");
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    (void)flags;
    if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    add_block(at, bytes, PINNED, "", -1);
    pthread_mutex_unlock(&lock);
    return *ret_at = at, CUDA_SUCCESS;
}
PUBLIC CUresult CUDAAPI cuMemFreeHost(void *at) {
    pthread_mutex_lock(&lock);
    struct block *b = find_block(at, 1);
    if (b) drop_block(b);
    pthread_mutex_unlock(&lock);
    return b ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
PUBLIC CUresult CUDAAPI cuMemGetAddressRange(CUdeviceptr *ret_base, size_t *ret_bytes, CUdeviceptr at) {
    pthread_mutex_lock(&lock);
    struct block *b = find_block((void *)(uintptr_t)at, 1);
    if (b) {
        *ret_base = (CUdeviceptr)(uintptr_t)b->at;
        *ret_bytes = b->bytes;
    }
    pthread_mutex_unlock(&lock);
    return b ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

PUBLIC CUresult CUDAAPI cuMemHostRegister(void *at, size_t bytes, unsigned flags) {
    CUresult r = CUDA_SUCCESS;
    MAY_FAIL("cuMemHostRegister");
    if (!(flags & CU_MEMHOSTREGISTER_PORTABLE) || current() < 0) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (const struct block *b = blocks; b; b = b->next)
        if ((char *)at < b->at + b->bytes && b->at < (char *)at + bytes) r = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    if (r == CUDA_SUCCESS) add_block(at, bytes, REGISTERED, "", -1);
    pthread_mutex_unlock(&lock);
    return r;
}
PUBLIC CUresult CUDAAPI cuMemHostUnregister(void *at) {
    pthread_mutex_lock(&lock);
    struct block *b = find_block(at, 1);
    bool ok = b && b->kind == REGISTERED && b->at == at;
    if (ok) drop_block(b);
    pthread_mutex_unlock(&lock);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- memory behind descriptors ---- */
static CUmemGenericAllocationHandle handle_of(const struct physical *p) {
    return (CUmemGenericAllocationHandle)(uintptr_t)p;
}
static struct physical *physical_of(CUmemGenericAllocationHandle handle) {
    return (struct physical *)(uintptr_t)handle;
}

static struct physical *new_physical(int fd, int device, uint64_t bytes, bool made_here) {
    struct physical *p = calloc(1, sizeof *p);
    *p = (struct physical){ .fd = fd, .device = device, .bytes = bytes, .users = 1, .made_here = made_here };
    atomic_fetch_add(&fake_cuda.objects, 1);
    return p;
}

/* With the lock held. */
static void drop_physical(struct physical *p) {
    if (--p->users) return;
    if (p->made_here) used[p->device] -= p->bytes;
    atomic_fetch_sub(&fake_cuda.objects, 1);
    close(p->fd);
    free(p);
}

static bool is_plain(const CUmemAllocationProp *prop) {
    return prop->type == CU_MEM_ALLOCATION_TYPE_PINNED && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
           prop->location.id >= 0 && prop->location.id < DEVICES &&
           prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
}

PUBLIC CUresult CUDAAPI cuMemGetAllocationGranularity(size_t *ret_bytes, const CUmemAllocationProp *prop,
                                                      CUmemAllocationGranularity_flags option) {
    MAY_FAIL("cuMemGetAllocationGranularity");
    (void)option;
    if (!is_plain(prop)) return CUDA_ERROR_INVALID_VALUE;
    return *ret_bytes = GRANULE, CUDA_SUCCESS;
}
PUBLIC CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *ret_handle, size_t bytes,
                                    const CUmemAllocationProp *prop, unsigned long long flags) {
    char name[48];
    struct label label = { .magic = LABEL_MAGIC, .bytes = bytes, .device = prop->location.id };
    MAY_FAIL("cuMemCreate");
    if (flags || !is_plain(prop) || bytes % GRANULE) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    snprintf(name, sizeof name, "/fake-cuda-%d-%u", (int)getpid(), serial++);
    int fd = bytes <= TOTAL_BYTES - used[label.device] ? shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600) : -1;
    bool ok = fd >= 0 && ftruncate(fd, (off_t)(bytes + sizeof label)) == 0 &&
              pwrite(fd, &label, sizeof label, (off_t)bytes) == (ssize_t)sizeof label;
    if (fd >= 0) shm_unlink(name);
    if (ok) {
        used[label.device] += bytes;
        *ret_handle = handle_of(new_physical(fd, label.device, bytes, true));
    } else if (fd >= 0) {
        close(fd);
    }
    pthread_mutex_unlock(&lock);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
PUBLIC CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle) {
    pthread_mutex_lock(&lock);
    drop_physical(physical_of(handle));
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
PUBLIC CUresult CUDAAPI cuMemExportToShareableHandle(void *ret_fd, CUmemGenericAllocationHandle handle,
                                                     CUmemAllocationHandleType type, unsigned long long flags) {
    const struct physical *p = physical_of(handle);
    MAY_FAIL("cuMemExportToShareableHandle");
    /* An importer cannot export again. */
    if (flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !p->made_here) return CUDA_ERROR_INVALID_VALUE;
    int fd = fcntl(p->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(ret_fd, &fd, sizeof fd);
    return CUDA_SUCCESS;
}
PUBLIC CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *ret_handle, void *os_handle,
                                                       CUmemAllocationHandleType type) {
    struct label label;
    struct stat object;
    int fd = (int)(intptr_t)os_handle;
    MAY_FAIL("cuMemImportFromShareableHandle");
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || fstat(fd, &object) || !S_ISREG(object.st_mode) ||
        object.st_size < (off_t)sizeof label ||
        pread(fd, &label, sizeof label, object.st_size - (off_t)sizeof label) != (ssize_t)sizeof label ||
        label.magic != LABEL_MAGIC || label.bytes + sizeof label != (uint64_t)object.st_size)
        return CUDA_ERROR_INVALID_VALUE;
    *ret_handle = handle_of(new_physical(fcntl(fd, F_DUPFD_CLOEXEC, 0), label.device, label.bytes, false));
    return CUDA_SUCCESS;
}
PUBLIC CUresult CUDAAPI cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *ret_prop,
                                                               CUmemGenericAllocationHandle handle) {
    MAY_FAIL("cuMemGetAllocationPropertiesFromHandle");
    *ret_prop =
        (CUmemAllocationProp){ .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                               .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = physical_of(handle)->device } };
    return CUDA_SUCCESS;
}
PUBLIC CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr *ret_at, size_t bytes, size_t alignment, CUdeviceptr wish,
                                            unsigned long long flags) {
    MAY_FAIL("cuMemAddressReserve");
    if (alignment || wish || flags || bytes % GRANULE) return CUDA_ERROR_INVALID_VALUE;
    void *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    add_block(at, bytes, RESERVED, "", -1);
    pthread_mutex_unlock(&lock);
    return *ret_at = (CUdeviceptr)(uintptr_t)at, CUDA_SUCCESS;
}

/* The block that begins there and has that size and kind. With the lock held. */
static struct block *find_exact(CUdeviceptr at, size_t bytes, int kind) {
    struct block *b = find_block((void *)(uintptr_t)at, bytes);
    return b && b->at == (char *)(uintptr_t)at && b->bytes == bytes && (int)b->kind == kind ? b : NULL;
}

PUBLIC CUresult CUDAAPI cuMemAddressFree(CUdeviceptr at, size_t bytes) {
    pthread_mutex_lock(&lock);
    struct block *b = find_exact(at, bytes, RESERVED);
    if (b) drop_block(b);
    pthread_mutex_unlock(&lock);
    return b ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
PUBLIC CUresult CUDAAPI cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                                 unsigned long long flags) {
    struct physical *p = physical_of(handle);
    MAY_FAIL("cuMemMap");
    pthread_mutex_lock(&lock);
    struct block *b = offset || flags || bytes > p->bytes ? NULL : find_exact(at, bytes, RESERVED);
    if (b && mmap(b->at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, p->fd, 0) == MAP_FAILED) b = NULL;
    if (b) {
        b->kind = MAPPED;
        b->accessible = false;
        b->device = p->device;
        b->memory = p;
        p->users++;
    }
    pthread_mutex_unlock(&lock);
    return b ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
PUBLIC CUresult CUDAAPI cuMemUnmap(CUdeviceptr at, size_t bytes) {
    pthread_mutex_lock(&lock);
    struct block *b = find_exact(at, bytes, MAPPED);
    if (b) {
        settle_block(b);
        (void)!mmap(b->at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
        b->kind = RESERVED;
        drop_physical(b->memory);
    }
    pthread_mutex_unlock(&lock);
    return b ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
PUBLIC CUresult CUDAAPI cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t count) {
    MAY_FAIL("cuMemSetAccess");
    pthread_mutex_lock(&lock);
    struct block *b =
        count == 1 && access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? find_exact(at, bytes, MAPPED) : NULL;
    if (b && (b->device != access->location.id || mprotect(b->at, bytes, PROT_READ | PROT_WRITE))) b = NULL;
    if (b) b->accessible = true;
    pthread_mutex_unlock(&lock);
    return b ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- other processes ---- */
PUBLIC CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle *ret_handle, CUdeviceptr at) {
    struct handle h = { .pid = (uint32_t)getpid() };
    pthread_mutex_lock(&lock);
    struct block *b = find_block((void *)(uintptr_t)at, 1);
    if (b) {
        memcpy(h.name, b->name, sizeof h.name);
        h.bytes = b->bytes;
        h.device = (uint32_t)b->device;
    }
    pthread_mutex_unlock(&lock);
    memcpy(ret_handle, &h, sizeof h);
    return b ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
PUBLIC CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr *ret_at, CUipcMemHandle handle, unsigned flags) {
    struct handle h;
    (void)flags;
    memcpy(&h, &handle, sizeof h);
    if (current() < 0 || h.pid == (uint32_t)getpid()) return CUDA_ERROR_INVALID_CONTEXT;
    bool dead = kill((pid_t)h.pid, 0) != 0 && errno == ESRCH;
    char *at = dead ? NULL : map_object(h.name, h.bytes, false);
    if (dead) shm_unlink(h.name); /* its owner was killed */
    if (!at) return CUDA_ERROR_MAP_FAILED;
    pthread_mutex_lock(&lock);
    add_block(at, h.bytes, FOREIGN, h.name, (int)h.device);
    pthread_mutex_unlock(&lock);
    return *ret_at = (CUdeviceptr)(uintptr_t)at, CUDA_SUCCESS;
}
PUBLIC CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr at) {
    pthread_mutex_lock(&lock);
    struct block *b = find_block((void *)(uintptr_t)at, 1);
    bool ok = b && b->kind == FOREIGN;
    if (ok) drop_block(b);
    pthread_mutex_unlock(&lock);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- work ---- */
PUBLIC CUresult CUDAAPI cuStreamCreate(CUstream *ret_stream, unsigned flags) {
    MAY_FAIL("cuStreamCreate");
    CUstream s = calloc(1, sizeof *s);
    (void)flags;
    s->last = &s->first;
    pthread_mutex_lock(&lock);
    s->next = streams;
    streams = s;
    pthread_mutex_unlock(&lock);
    return *ret_stream = s, CUDA_SUCCESS;
}
PUBLIC CUresult CUDAAPI cuEventCreate(CUevent *ret_event, unsigned flags) {
    MAY_FAIL("cuEventCreate");
    (void)flags;
    return *ret_event = calloc(1, sizeof **ret_event), CUDA_SUCCESS;
}
PUBLIC CUresult CUDAAPI cuEventDestroy(CUevent event) { return free(event), CUDA_SUCCESS; }
PUBLIC CUresult CUDAAPI cuEventRecord(CUevent event, CUstream stream) {
    MAY_FAIL("cuEventRecord");
    pthread_mutex_lock(&lock);
    *event = (struct CUevent_st){ stream, stream->enqueued };
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static bool wedged(void) {
    const char *file = getenv("FAKE_CUDA_WEDGE");
    return atomic_load(&fake_cuda.wedged) || (file && access(file, F_OK) == 0);
}

static void append(CUstream stream, struct work work) {
    struct work *w = malloc(sizeof *w);
    *w = work;
    w->next = NULL;
    *stream->last = w;
    stream->last = &w->next;
    stream->enqueued++;
}

/* Does the work of a stream up to a position. */
static void run_until(CUstream s, uint64_t position) {
    while (s->done < position) {
        struct work *w = s->first;
        if (w->after.stream) run_until(w->after.stream, w->after.position);
        for (size_t i = 0; i < w->rows; i++) memcpy(w->to + i * w->to_pitch, w->from + i * w->from_pitch, w->width);
        s->first = w->next;
        if (!s->first) s->last = &s->first;
        s->done++;
        free(w);
    }
}

static bool held(CUstream stream) {
    for (size_t i = 0; stream && i < sizeof fake_cuda.held / sizeof *fake_cuda.held; i++)
        if (atomic_load(&fake_cuda.held[i]) == stream) return true;
    return false;
}

static CUresult finish(struct CUevent_st event) {
    if (wedged() || held(event.stream)) return CUDA_ERROR_NOT_READY;
    pthread_mutex_lock(&lock);
    if (event.stream) run_until(event.stream, event.position);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

PUBLIC CUresult CUDAAPI cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    MAY_FAIL("cuStreamWaitEvent");
    (void)flags;
    pthread_mutex_lock(&lock);
    append(stream, (struct work){ .after = *event });
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
PUBLIC CUresult CUDAAPI cuEventQuery(CUevent event) {
    MAY_FAIL("cuEventQuery");
    return finish(*event);
}
PUBLIC CUresult CUDAAPI cuStreamQuery(CUstream stream) {
    if (!stream) return CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    struct CUevent_st all = { stream, stream->enqueued };
    pthread_mutex_unlock(&lock);
    return finish(all);
}
PUBLIC CUresult CUDAAPI cuStreamSynchronize(CUstream stream) {
    CUresult r;
    while ((r = cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY) usleep(100);
    return r;
}
PUBLIC CUresult CUDAAPI cuStreamDestroy(CUstream stream) {
    cuStreamSynchronize(stream);
    pthread_mutex_lock(&lock);
    CUstream *link = &streams;
    while (*link != stream) link = &(*link)->next;
    *link = stream->next;
    pthread_mutex_unlock(&lock);
    return free(stream), CUDA_SUCCESS;
}

static bool failing(void) {
    const char *file = getenv("FAKE_CUDA_FAIL");
    return atomic_load(&fake_cuda.fail_copies) || (file && access(file, F_OK) == 0);
}

static CUresult enqueue(CUstream stream, struct work work, bool to_device) {
    const char *device = to_device ? work.to : work.from, *host = to_device ? work.from : work.to;
    size_t device_span = (to_device ? work.to_pitch : work.from_pitch) * (work.rows - 1) + work.width;
    size_t host_span = (to_device ? work.from_pitch : work.to_pitch) * (work.rows - 1) + work.width;
    atomic_fetch_add(&fake_cuda.callers, 1);
    while (atomic_load(&fake_cuda.stuck)) usleep(100);
    atomic_fetch_sub(&fake_cuda.callers, 1);
    if (failing()) return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (!work.width || !work.rows || work.width > work.to_pitch || work.width > work.from_pitch)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct block *d = find_block(device, device_span), *h = find_block(host, host_span);
    atomic_fetch_add(&fake_cuda.copies, 1);
    bool inside = d && (d->kind == DEVICE || d->kind == FOREIGN || (d->kind == MAPPED && d->accessible)) && h &&
                  (h->kind == PINNED || h->kind == REGISTERED);
    bool slow = to_device && work.rows < 2 && work.width < LEAST_FLAT_BYTES;
    if (!inside) atomic_fetch_add(&fake_cuda.outside, 1);
    if (slow) atomic_fetch_add(&fake_cuda.slow_form, 1);
    if (inside && !slow) append(stream, work);
    pthread_mutex_unlock(&lock);
    return inside && !slow ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

PUBLIC CUresult CUDAAPI cuMemcpy2DAsync(const CUDA_MEMCPY2D *c, CUstream stream) {
    MAY_FAIL("cuMemcpy2DAsync");
    if (c->srcPitch > INT32_MAX || c->dstPitch > INT32_MAX) return CUDA_ERROR_INVALID_VALUE;
    bool to_device = c->dstMemoryType == CU_MEMORYTYPE_DEVICE;
    if (to_device == (c->srcMemoryType == CU_MEMORYTYPE_DEVICE)) atomic_fetch_add(&fake_cuda.slow_form, 1);
    struct work w = { .to = to_device ? (char *)(uintptr_t)c->dstDevice : c->dstHost,
                      .to_pitch = c->dstPitch,
                      .from = to_device ? c->srcHost : (char *)(uintptr_t)c->srcDevice,
                      .from_pitch = c->srcPitch,
                      .width = c->WidthInBytes,
                      .rows = c->Height };
    return enqueue(stream, w, to_device);
}
PUBLIC CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    MAY_FAIL("cuMemcpyHtoDAsync");
    return enqueue(stream,
                   (struct work){ .to = (char *)(uintptr_t)to,
                                  .from = from,
                                  .to_pitch = bytes,
                                  .from_pitch = bytes,
                                  .width = bytes,
                                  .rows = 1 },
                   true);
}
PUBLIC CUresult CUDAAPI cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    MAY_FAIL("cuMemcpyDtoHAsync");
    return enqueue(stream,
                   (struct work){ .to = to,
                                  .from = (char *)(uintptr_t)from,
                                  .to_pitch = bytes,
                                  .from_pitch = bytes,
                                  .width = bytes,
                                  .rows = 1 },
                   false);
}
#if CUDA_VERSION >= 13000
/* Which of two places is the host's. */
static bool goes_to_device(CUdeviceptr to) {
    pthread_mutex_lock(&lock);
    const struct block *b = find_block((void *)(uintptr_t)to, 1);
    bool yes = b && b->kind != PINNED && b->kind != REGISTERED;
    pthread_mutex_unlock(&lock);
    return yes;
}

PUBLIC CUresult CUDAAPI cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
                                           CUmemcpyAttributes *attributes, size_t *first, size_t n_attributes,
                                           CUstream stream) {
    CUresult r = CUDA_SUCCESS;
    MAY_FAIL("cuMemcpyBatchAsync");
    if (!count || n_attributes != 1 || first[0] || attributes->srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; r == CUDA_SUCCESS && i < count; i++) {
        struct work w = { .to = (char *)(uintptr_t)to[i],
                          .from = (const char *)(uintptr_t)from[i],
                          .to_pitch = bytes[i],
                          .from_pitch = bytes[i],
                          .width = bytes[i],
                          .rows = 1 };
        r = enqueue(stream, w, goes_to_device(to[i]));
        atomic_fetch_add(&fake_cuda.batched, 1);
    }
    return r;
}
PUBLIC CUresult CUDAAPI cuMemcpy3DBatchAsync(size_t count, CUDA_MEMCPY3D_BATCH_OP *ops, unsigned long long flags,
                                             CUstream stream) {
    CUresult r = CUDA_SUCCESS;
    MAY_FAIL("cuMemcpy3DBatchAsync");
    if (!count || flags) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; r == CUDA_SUCCESS && i < count; i++) {
        const CUDA_MEMCPY3D_BATCH_OP *op = &ops[i];
        if (op->extent.depth != 1 || op->srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
            op->src.type != CU_MEMCPY_OPERAND_TYPE_POINTER || op->dst.type != CU_MEMCPY_OPERAND_TYPE_POINTER ||
            op->src.op.ptr.layerHeight < op->extent.height || op->dst.op.ptr.layerHeight < op->extent.height)
            return CUDA_ERROR_INVALID_VALUE;
        struct work w = { .to = (char *)(uintptr_t)op->dst.op.ptr.ptr,
                          .from = (const char *)(uintptr_t)op->src.op.ptr.ptr,
                          .to_pitch = op->dst.op.ptr.rowLength,
                          .from_pitch = op->src.op.ptr.rowLength,
                          .width = op->extent.width,
                          .rows = op->extent.height };
        r = enqueue(stream, w, goes_to_device(op->dst.op.ptr.ptr));
        atomic_fetch_add(&fake_cuda.batched, 1);
    }
    return r;
}
#endif

PUBLIC CUresult CUDAAPI cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes) {
    return memcpy(to, (void *)(uintptr_t)from, bytes), CUDA_SUCCESS;
}
PUBLIC CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes) {
    return memcpy((void *)(uintptr_t)to, from, bytes), CUDA_SUCCESS;
}
PUBLIC CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t bytes, CUstream stream) {
    (void)stream;
    if (value) memset((void *)(uintptr_t)at, value, bytes); /* new shared memory is zero, and stays sparse */
    return CUDA_SUCCESS;
}
