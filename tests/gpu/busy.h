/* SPDX-License-Identifier: Apache-2.0
 *
 * Another process that keeps all SMs busy, for benches: the program itself, started again with "--busy".
 */
#ifndef KVD_TESTS_GPU_BUSY_H
#define KVD_TESTS_GPU_BUSY_H

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

/* The other process: kernels of about a millisecond on every SM, without end. */
static inline int busy_main(struct driver *driver) {
    CUcontext context;
    CUdeviceptr at;
    CUstream stream;
    if (!driver_load(driver)) return 2;
    DRIVER_OK(driver->cuDevicePrimaryCtxRetain(&context, 0));
    DRIVER_OK(driver->cuCtxSetCurrent(context));
    DRIVER_OK(driver->cuMemAlloc(&at, 1 << 20));
    DRIVER_OK(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUfunction spin = driver_spin(driver);
    for (bool told = false;;) {
        for (int i = 0; i < 8; i++) driver_launch_spin(driver, spin, 132 * 8, at, 2000, stream);
        if (!told && write(1, "r", 1) != 1) return 2;
        told = true;
        DRIVER_OK(driver->cuStreamSynchronize(stream));
    }
}

/* A program whose output can be read from *ret_out, once it has written a byte; -1 where it does not start. */
static inline pid_t busy_start_program(const char *path, char *const argv[], int *ret_out) {
    int out[2];
    char c;
    if (pipe(out)) return -1;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(out[1], 1);
        for (int fd = 3; fd < 256; fd++) close(fd);
        execv(path, argv);
        _exit(127);
    }
    close(out[1]);
    *ret_out = out[0];
    return pid > 0 && read(out[0], &c, 1) == 1 ? pid : -1;
}

static inline void busy_stop(pid_t pid, int out) {
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    close(out);
}

static inline pid_t busy_start(int *ret_out) {
    char *argv[] = { (char *)(uintptr_t) "busy", (char *)(uintptr_t) "--busy", NULL };
    return busy_start_program("/proc/self/exe", argv, ret_out);
}

#endif
