/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of a GPU behind a file descriptor (cuMemCreate), and memory of the host that copies run on
 * (cuMemHostRegister).
 *
 * A descriptor keeps its memory alive without any process that has a CUDA context. It says nothing of its size:
 * whoever keeps the descriptor keeps the size with it, and mapping verifies it. Only the process that made the memory
 * can export it; everybody after it passes the descriptor on.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "device_cuda_internal.h"

static CUmemAllocationProp properties(CUdevice ordinal) {
    return (CUmemAllocationProp){ .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                  .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal } };
}

int cuda_vmm_round(CUdevice ordinal, uint64_t *bytes, char *err, size_t err_bytes) {
    CUmemAllocationProp prop = properties(ordinal);
    size_t granule = 0;
    int r = CUDA_CALL(err, err_bytes, cuMemGetAllocationGranularity, &granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (!r) *bytes = (*bytes + granule - 1) / granule * granule;
    return r;
}

/* ---- mapping ------------------------------------------------------------------------------ */

static int map_at(CUdevice ordinal, CUmemGenericAllocationHandle handle, CUdeviceptr at, uint64_t bytes, char *err,
                  size_t err_bytes) {
    CUmemAccessDesc access = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal },
                               .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    int r = CUDA_CALL(err, err_bytes, cuMemMap, at, bytes, 0, handle, 0);
    if (r) return r;
    r = CUDA_CALL(err, err_bytes, cuMemSetAccess, at, bytes, &access, 1);
    if (r) (void)cuda_driver.cuMemUnmap(at, bytes);
    return r;
}

static int map_new(CUdevice ordinal, CUmemGenericAllocationHandle handle, uint64_t bytes, CUdeviceptr *ret_address,
                   char *err, size_t err_bytes) {
    CUdeviceptr at = 0;
    int r = CUDA_CALL(err, err_bytes, cuMemAddressReserve, &at, bytes, 0, 0, 0);
    if (r) return r;
    r = map_at(ordinal, handle, at, bytes, err, err_bytes);
    if (r) (void)cuda_driver.cuMemAddressFree(at, bytes);
    else *ret_address = at;
    return r;
}

void cuda_vmm_unmap(CUdeviceptr address, uint64_t bytes) {
    (void)cuda_driver.cuMemUnmap(address, bytes);
    (void)cuda_driver.cuMemAddressFree(address, bytes);
}

/* ---- new memory --------------------------------------------------------------------------- */

int cuda_vmm_new(CUdevice ordinal, uint64_t bytes, CUdeviceptr *ret_address, int *ret_fd, char *err, size_t err_bytes) {
    CUmemAllocationProp prop = properties(ordinal);
    CUmemGenericAllocationHandle handle = 0;
    int fd = -1, r = CUDA_CALL(err, err_bytes, cuMemCreate, &handle, bytes, &prop, 0);
    if (r) return r;
    r = CUDA_CALL(err, err_bytes, cuMemExportToShareableHandle, &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                  0);
    if (!r) r = map_new(ordinal, handle, bytes, ret_address, err, err_bytes);
    if (r && fd >= 0) close(fd);
    (void)cuda_driver.cuMemRelease(handle); /* mapping and descriptor hold the memory */
    if (!r) *ret_fd = fd;
    return r;
}

/* ---- memory of somebody else -------------------------------------------------------------- */

static int check_place(CUdevice ordinal, CUmemGenericAllocationHandle handle, char *err, size_t err_bytes) {
    CUmemAllocationProp prop;
    int r = CUDA_CALL(err, err_bytes, cuMemGetAllocationPropertiesFromHandle, &prop, handle);
    if (r || (prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE && prop.location.id == ordinal)) return r;
    return refuse_with(-EINVAL, err, err_bytes, "the memory behind the descriptor is on GPU %d, not on %d",
                       prop.location.id, ordinal);
}

/* A mapping of one granule more must fail: else the memory is larger than what the caller knows of. */
static int check_exact(CUdevice ordinal, CUmemGenericAllocationHandle handle, uint64_t bytes, char *err,
                       size_t err_bytes) {
    uint64_t more = bytes + 1;
    CUdeviceptr at = 0;
    int r = cuda_vmm_round(ordinal, &more, err, err_bytes);
    if (r || cuda_driver.cuMemAddressReserve(&at, more, 0, 0, 0) != CUDA_SUCCESS) return r; /* no room: not checked */
    bool larger = cuda_driver.cuMemMap(at, more, 0, handle, 0) == CUDA_SUCCESS;
    if (larger) (void)cuda_driver.cuMemUnmap(at, more);
    (void)cuda_driver.cuMemAddressFree(at, more);
    if (!larger) return 0;
    return refuse_with(-EMSGSIZE, err, err_bytes, "the memory behind the descriptor has more than %" PRIu64 " bytes",
                       bytes);
}

int cuda_vmm_map(CUdevice ordinal, int fd, uint64_t bytes, CUdeviceptr *ret_address, char *err, size_t err_bytes) {
    CUmemGenericAllocationHandle handle = 0;
    char why[256] = "";
    int r = CUDA_CALL(why, sizeof why, cuMemImportFromShareableHandle, &handle, (void *)(uintptr_t)fd,
                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (r)
        return refuse_with(r == -EIO ? -EINVAL : r, err, err_bytes,
                           "descriptor %d is no memory of a GPU, or of one that this process does not see: %s", fd,
                           why);
    r = check_place(ordinal, handle, err, err_bytes);
    if (!r) r = check_exact(ordinal, handle, bytes, err, err_bytes);
    if (!r) {
        r = map_new(ordinal, handle, bytes, ret_address, why, sizeof why);
        if (r)
            refuse_with(r = r == -EIO || r == -ENOTSUP ? -EMSGSIZE : r, err, err_bytes,
                        "the memory behind the descriptor cannot be mapped with %" PRIu64 " bytes: %s", bytes, why);
    }
    (void)cuda_driver.cuMemRelease(handle);
    return r;
}

/* ---- host memory -------------------------------------------------------------------------- */

/* Registered once a process, portably: several devices that pin the same memory share it, counted. */
struct registration {
    struct registration *next;
    void *address;
    uint64_t bytes;
    CUcontext context; /* that registered it */
    uint32_t users;
};

static pthread_mutex_t registrations_lock = PTHREAD_MUTEX_INITIALIZER;
static struct registration *registrations;

static struct registration **find_registration(const void *address) {
    struct registration **link = &registrations;
    while (*link && (*link)->address != address) link = &(*link)->next;
    return link;
}

static int register_memory(struct cuda_device *d, struct registration *r, char *err, size_t err_bytes) {
    int code = cuda_context_push(d->context, err, err_bytes);
    if (code) return code;
    code = CUDA_CALL(err, err_bytes, cuMemHostRegister, r->address, r->bytes, CU_MEMHOSTREGISTER_PORTABLE);
    cuda_context_pop();
    return code;
}

/* With the lock held. */
static int add_registration(struct cuda_device *d, void *address, uint64_t bytes, char *err, size_t err_bytes) {
    char why[256] = "";
    struct registration *r = malloc(sizeof *r);
    if (!r) return refuse_with(-ENOMEM, err, err_bytes, "no memory to describe pinned memory");
    *r = (struct registration){
        .next = registrations, .address = address, .bytes = bytes, .context = d->context, .users = 1
    };
    int code = register_memory(d, r, why, sizeof why);
    if (code) {
        free(r);
        return refuse_with(code, err, err_bytes,
                           "%" PRIu64 " bytes of host memory cannot be pinned for cuda device %u: %s; ask for less, "
                           "or raise the memory that the process may use",
                           bytes, d->identity.index, why);
    }
    registrations = r;
    return 0;
}

int cuda_pin(struct device *device, void *address, uint64_t bytes, char *err, size_t err_bytes) {
    struct cuda_device *d = cuda_of(device);
    int code = cuda_check_lost(d, err, err_bytes);
    if (code) return code;
    pthread_mutex_lock(&registrations_lock);
    struct registration *r = *find_registration(address);
    if (!r) code = add_registration(d, address, bytes, err, err_bytes);
    else if (r->bytes != bytes)
        code = refuse_with(-EEXIST, err, err_bytes,
                           "the memory is pinned for another device with %" PRIu64 " bytes, not %" PRIu64, r->bytes,
                           bytes);
    else r->users++;
    pthread_mutex_unlock(&registrations_lock);
    return code;
}

void cuda_unpin(struct device *device, void *address) {
    bool give_back = cuda_may_free(cuda_of(device)); /* else the registration stays to the end of the process */
    pthread_mutex_lock(&registrations_lock);
    struct registration **link = find_registration(address), *r = *link;
    if (give_back && r && --r->users == 0) {
        *link = r->next;
        /* The context may be gone already, and its registrations with it. */
        if (!cuda_context_push(r->context, NULL, 0)) {
            (void)cuda_driver.cuMemHostUnregister(r->address);
            cuda_context_pop();
        }
        free(r);
    }
    pthread_mutex_unlock(&registrations_lock);
}
