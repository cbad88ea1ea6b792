/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the tests of the CUDA device: a device, its regions, its memory from outside, waiting. Each program has
 * its own driver and error text.
 */
#ifndef KVD_TESTS_GPU_DEVICE_FIXTURE_H
#define KVD_TESTS_GPU_DEVICE_FIXTURE_H

#include <poll.h>
#include <unistd.h>

#include "device_cuda_internal.h"
#include "driver.h"
#include "kvt.h"

#define MIB (UINT64_C(1) << 20)

static struct driver driver;
static char err[512];

static inline double now_ms(void) { return driver_now() * 1e3; }

static inline struct device *open_device_as(bool export_fd) {
    struct device *device = NULL;
    struct device_config config = { .kind = DEVICE_CUDA, .index = 0, .export_fd = export_fd };
    if (!KVT_OK(device_open(&config, &device, err, sizeof err))) printf("  %s\n", err);
    return device;
}

static inline struct device *open_device(void) { return open_device_as(false); }

static inline struct device_region *new_region(struct device *device, const char *label, uint64_t bytes, uint8_t fill) {
    struct device_region *region = NULL;
    if (!KVT_OK(device_region_new(device, label, bytes, fill, &region, err, sizeof err))) printf("  %s\n", err);
    return region;
}

static inline CUdeviceptr at(const struct device_region *region) {
    return (CUdeviceptr)(uintptr_t)device_region_address(region);
}

static inline void use_context(struct device *device) { DRIVER_OK(driver.cuCtxSetCurrent(cuda_of(device)->context)); }

static inline void read_device(void *to, const struct device_region *region, uint64_t offset, uint64_t bytes) {
    use_context(region->device);
    DRIVER_OK(driver.cuMemcpyDtoH(to, at(region) + offset, bytes));
}

static inline void write_device(const struct device_region *region, uint64_t offset, const void *from, uint64_t bytes) {
    use_context(region->device);
    DRIVER_OK(driver.cuMemcpyHtoD(at(region) + offset, from, bytes));
}

static inline uint64_t submit(struct device *device, const struct device_batch *batch) {
    uint64_t ticket = 0;
    bool inline_done = true;
    if (!KVT_OK(device_submit(device, batch, &ticket, &inline_done, err, sizeof err))) printf("  %s\n", err);
    KVT_FALSE(inline_done);
    return ticket;
}

static inline bool await(struct device *device, uint64_t ticket, double seconds) {
    uint64_t done = 0, count;
    double end = now_ms() + seconds * 1e3;
    while (!device_poll(device, &done, err, sizeof err) && done < ticket && now_ms() < end) {
        struct pollfd p = { .fd = device_event_fd(device), .events = POLLIN };
        if (poll(&p, 1, 100) == 1) (void)!read(p.fd, &count, sizeof count);
    }
    return done >= ticket;
}

/* Everything after this on the stream waits until unwedge: on a GPU, in memory that it looks at. */
static volatile uint32_t *gate;

static inline void wedge(struct device *device, CUstream stream) {
    CUdeviceptr there;
    if (driver.fake) {
        atomic_store(&driver.fake->wedged, 1);
        return;
    }
    use_context(device);
    if (!gate)
        DRIVER_OK(driver.cuMemHostAlloc((void **)(uintptr_t)&gate, 4096,
                                        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    *gate = 0;
    DRIVER_OK(driver.cuMemHostGetDevicePointer(&there, (void *)(uintptr_t)gate, 0));
    DRIVER_OK(driver.cuStreamWaitValue32(stream, there, 1, CU_STREAM_WAIT_VALUE_EQ));
}

static inline void unwedge(void) {
    if (driver.fake) atomic_store(&driver.fake->wedged, 0);
    else *gate = 1;
}

static inline void check_forms(void) {
    if (!driver.fake) return;
    KVT_EQ(atomic_load(&driver.fake->slow_form), 0);
    KVT_EQ(atomic_load(&driver.fake->outside), 0);
    KVT_EQ(atomic_load(&driver.fake->early), 0);
}

#endif
