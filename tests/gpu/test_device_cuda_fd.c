/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA device: regions as file descriptors. They outlive a maker that is killed, are adopted by the next owner and
 * imported by other processes. Runs on a GPU or on the stand-in driver; skips (77) where there is neither.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "device_fixture.h"

#define REGION_BYTES (5 * MIB + 12) /* not a whole number of granules */
#define TABLE_BYTES (64u << 10)

/* What goes over the socket beside descriptors. */
struct letter {
    struct device_export pool, table;
    int rc;
    uint8_t first, last, other;
    char text[300];
};

static bool send_letter(int socket, const struct letter *letter, const int *fds, int n) {
    struct iovec part = { (void *)(uintptr_t)letter, sizeof *letter };
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr align;
    } control = { 0 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
    if (n) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE((size_t)n * sizeof *fds);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN((size_t)n * sizeof *fds);
        memcpy(CMSG_DATA(header), fds, (size_t)n * sizeof *fds);
    }
    return sendmsg(socket, &message, 0) == (ssize_t)sizeof *letter;
}

static bool receive_letter(int socket, struct letter *letter, int *fds, int n) {
    struct iovec part = { letter, sizeof *letter };
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr align;
    } control = { 0 };
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes
    };
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof *letter) return false;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (n && (!header || header->cmsg_len != CMSG_LEN((size_t)n * sizeof *fds))) return false;
    if (n) memcpy(fds, CMSG_DATA(header), (size_t)n * sizeof *fds);
    return true;
}

static struct device_export export_of(const struct device_region *region) {
    struct device_export e;
    device_region_export(region, &e);
    return e;
}

/* ---- processes ------------------------------------------------------------------------------------------- */

/* This program again, with a socket to it as its standard input. */
static pid_t start_self(const char *role, int *ret_socket) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) return -1;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], 0);
        alarm(60);
        execl("/proc/self/exe", "test_device_cuda_fd", role, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    *ret_socket = ends[0];
    return pid;
}

/* Makes a pool and a table, writes into both, sends them, and stays until it is killed. */
static int maker(void) {
    struct device *device;
    struct device_region *pool, *table;
    struct device_config config = { .kind = DEVICE_CUDA, .export_fd = true };
    int32_t values[100];
    uint64_t ticket, done = 0;
    bool inline_done;
    if (device_open(&config, &device, err, sizeof err) ||
        device_region_new(device, "pool", REGION_BYTES, 0x5a, &pool, err, sizeof err) ||
        device_region_new(device, "table", TABLE_BYTES, 0xff, &table, err, sizeof err))
        return 2;
    for (int i = 0; i < 100; i++) values[i] = i;
    struct device_table_write write = { .region = table, .offset = 400, .count = 100, .values = values };
    struct device_batch batch = { .writes = &write, .n_writes = 1 };
    if (device_submit(device, &batch, &ticket, &inline_done, err, sizeof err)) return 3;
    while (done < ticket)
        if (device_poll(device, &done, err, sizeof err)) return 4;
    uint8_t mark = 0x77;
    use_context(device);
    DRIVER_OK(driver.cuMemcpyHtoD(at(pool) + REGION_BYTES - 1, &mark, 1));
    struct letter letter = { .pool = export_of(pool), .table = export_of(table) };
    int fds[2] = { letter.pool.fd, letter.table.fd };
    if (!send_letter(0, &letter, fds, 2)) return 5;
    for (;;) pause();
}

/* Imports a pool that it is sent, twice, reads, writes, and answers. */
static int consumer(void) {
    struct letter letter;
    struct device_import *a = NULL, *b = NULL;
    CUcontext context;
    int fd;
    uint8_t mine = 0x99;
    if (!receive_letter(0, &letter, &fd, 1)) return 2;
    DRIVER_OK(driver.cuDevicePrimaryCtxRetain(&context, 0));
    DRIVER_OK(driver.cuCtxSetCurrent(context));
    letter.pool.fd = fd;
    letter.rc = device_import(&letter.pool, letter.pool.uuid, false, &a, letter.text, sizeof letter.text);
    if (!letter.rc) letter.rc = device_import(&letter.pool, NULL, true, &b, letter.text, sizeof letter.text);
    close(fd); /* the mappings hold the memory */
    if (!letter.rc) {
        CUdeviceptr one = (CUdeviceptr)(uintptr_t)device_import_address(a),
                    two = (CUdeviceptr)(uintptr_t)device_import_address(b);
        DRIVER_OK(driver.cuMemcpyDtoH(&letter.first, one, 1));
        DRIVER_OK(driver.cuMemcpyDtoH(&letter.last, one + letter.pool.bytes - 1, 1));
        DRIVER_OK(driver.cuMemcpyHtoD(one + 1, &mine, 1));
        device_unimport(a);
        DRIVER_OK(driver.cuMemcpyDtoH(&letter.other, two + 1, 1));
        device_unimport(b);
    }
    return send_letter(0, &letter, NULL, 0) ? 0 : 3;
}

static struct letter consume(const struct letter *order, int fd) {
    struct letter answer = { .rc = -1 };
    int socket = -1;
    pid_t pid = start_self("--consumer", &socket);
    KVT_TRUE(pid > 0 && send_letter(socket, order, &fd, 1) && receive_letter(socket, &answer, NULL, 0));
    KVT_EQ_I(kvt_wait(pid), 0);
    close(socket);
    if (answer.rc) printf("  consumer: %s\n", answer.text);
    return answer;
}

/* ---- cases ----------------------------------------------------------------------------------------------- */

static int open_files(void) {
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (dir && readdir(dir)) n++;
    if (dir) closedir(dir);
    return n;
}

static void regions_are_descriptors(void) {
    struct device *device = open_device_as(true);
    uint64_t before = 0, during = 0, after = 0;
    KVT_NEED(device);
    KVT_OK(device_free_bytes(device, &before, err, sizeof err));
    struct device_region *region = new_region(device, "pool", REGION_BYTES, 0x42);
    KVT_NEED(region);
    KVT_OK(device_free_bytes(device, &during, err, sizeof err));
    KVT_EQ(before - during, 6 * MIB); /* whole granules */
    struct letter order = { .pool = export_of(region) };
    static const uint8_t none[64];
    KVT_TRUE(order.pool.kind == DEVICE_EXPORT_FD && order.pool.fd >= 0 && order.pool.bytes == REGION_BYTES);
    KVT_TRUE(fcntl(order.pool.fd, F_GETFD) & FD_CLOEXEC);
    KVT_EQ_MEM(order.pool.ipc_handle, none, 64);
    struct letter answer = consume(&order, order.pool.fd);
    KVT_TRUE(answer.rc == 0 && answer.first == 0x42 && answer.last == 0x42 && answer.other == 0x99);
    uint8_t there[2];
    read_device(there, region, 0, 2);
    KVT_TRUE(there[0] == 0x42 && there[1] == 0x99);
    /* What a consumer cannot map is a refusal: another size, another device, another process's secret. */
    struct letter bad = order;
    bad.pool.bytes += 4 * MIB;
    KVT_EQ_I(consume(&bad, order.pool.fd).rc, -EMSGSIZE);
    bad = order;
    bad.pool.bytes -= 4 * MIB;
    KVT_EQ_I(consume(&bad, order.pool.fd).rc, -EMSGSIZE);
    bad = order;
    bad.pool.uuid[0] ^= 1;
    KVT_EQ_I(consume(&bad, order.pool.fd).rc, -ENXIO);
    int ends[2];
    KVT_OK(pipe(ends));
    KVT_EQ_I(consume(&order, ends[0]).rc, -EINVAL);
    close(ends[0]);
    close(ends[1]);
    /* In the owner: the region's own address by its own descriptor, a mapping by a copy of it. */
    struct device_import *own = NULL, *copy = NULL, *hollow = NULL;
    use_context(device);
    KVT_OK(device_import(&order.pool, order.pool.uuid, false, &own, err, sizeof err));
    KVT_TRUE(own && device_import_address(own) == device_region_address(region));
    struct device_export e = order.pool;
    e.fd = fcntl(e.fd, F_DUPFD_CLOEXEC, 0);
    if (KVT_OK(device_import(&e, NULL, false, &copy, err, sizeof err))) {
        DRIVER_OK(driver.cuMemcpyDtoH(there, (CUdeviceptr)(uintptr_t)device_import_address(copy), 2));
        KVT_TRUE(there[1] == 0x99 && device_import_address(copy) != device_region_address(region));
    }
    close(e.fd);
    e.fd = -1;
    KVT_EQ_I(device_import(&e, NULL, false, &hollow, err, sizeof err), -EACCES);
    device_unimport(own);
    device_unimport(copy);
    DRIVER_OK(driver.cuCtxSetCurrent(NULL));
    device_region_free(region);
    KVT_TRUE(fcntl(order.pool.fd, F_GETFD) < 0);
    KVT_OK(device_free_bytes(device, &after, err, sizeof err));
    KVT_EQ(after, before);
    device_close(device);
}

/* CONT-3: every byte is there after the maker's SIGKILL. The next owner's regions are like any other: filled mirrors,
 * moves, exports, and again descriptors for consumers. */
static void cont_3_adopted_after_sigkill(void) {
    struct letter letter;
    struct device_region *pool = NULL, *table = NULL;
    int fds[2] = { -1, -1 }, socket = -1;
    pid_t pid = start_self("--maker", &socket);
    KVT_NEED(pid > 0 && receive_letter(socket, &letter, fds, 2));
    kill(pid, SIGKILL);
    KVT_EQ_I(kvt_wait(pid), -SIGKILL);
    close(socket);
    struct device *device = open_device_as(true);
    KVT_NEED(device);
    if (!KVT_OK(device_region_adopt(device, "pool", REGION_BYTES, fds[0], &pool, err, sizeof err)))
        printf("  %s\n", err);
    if (!KVT_OK(device_region_adopt(device, "table", TABLE_BYTES, fds[1], &table, err, sizeof err)))
        printf("  %s\n", err);
    KVT_NEED(pool && table);
    uint8_t *bytes = malloc(REGION_BYTES);
    read_device(bytes, pool, 0, REGION_BYTES);
    uint64_t wrong = bytes[REGION_BYTES - 1] != 0x77;
    for (uint64_t i = 0; i < REGION_BYTES - 1; i++) wrong += bytes[i] != 0x5a;
    KVT_EQ(wrong, 0);
    free(bytes);
    /* Windows that are sent are wider than a write: its neighbours are what the maker left. */
    int32_t value = 1000, entries[TABLE_BYTES / 4];
    struct device_table_write writes[2] = { { .region = table, .offset = 404, .count = 1, .values = &value },
                                            { .region = table, .offset = 800, .count = 1, .values = &value } };
    KVT_TRUE(await(device, submit(device, &(struct device_batch){ .writes = writes, .n_writes = 2 }), 5));
    read_device(entries, table, 0, sizeof entries);
    wrong = 0;
    for (int i = 0; i < (int)(TABLE_BYTES / 4); i++)
        wrong += entries[i] != (i == 101 || i == 200 ? 1000 : i >= 100 && i < 200 ? i - 100 : -1);
    KVT_EQ(wrong, 0);
    struct letter order = { .pool = export_of(pool) };
    KVT_TRUE(order.pool.kind == DEVICE_EXPORT_FD && order.pool.fd == fds[0] && order.pool.bytes == REGION_BYTES);
    struct letter answer = consume(&order, order.pool.fd);
    KVT_TRUE(answer.rc == 0 && answer.first == 0x5a && answer.last == 0x77 && answer.other == 0x99);
    device_close(device);
    KVT_TRUE(fcntl(fds[0], F_GETFD) < 0 && fcntl(fds[1], F_GETFD) < 0);
    check_forms();
}

static void wrong_descriptors_are_refused(void) {
    struct device *device = open_device_as(true), *other = NULL;
    struct device_config second = { .kind = DEVICE_CUDA, .index = 1, .export_fd = true };
    struct device_region *region = device ? new_region(device, "pool", REGION_BYTES, 1) : NULL, *adopted = NULL;
    int ends[2], file = open("/dev/null", O_RDONLY | O_CLOEXEC), memory = memfd_create("x", MFD_CLOEXEC);
    KVT_NEED(region && file >= 0 && memory >= 0);
    KVT_OK(pipe(ends));
    KVT_OK(ftruncate(memory, (off_t)REGION_BYTES));
    int files = open_files(), fd = export_of(region).fd;
    const int wrong[] = { ends[0], file, memory, 1000000, -1 };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        KVT_EQ_I(device_region_adopt(device, "pool", REGION_BYTES, wrong[i], &adopted, err, sizeof err), -EINVAL);
        if (wrong[i] >= 0) printf("  %s\n", err);
    }
    KVT_EQ_I(device_region_adopt(device, "pool", REGION_BYTES + 4 * MIB, fd, &adopted, err, sizeof err), -EINVAL);
    printf("  %s\n", err);
    KVT_EQ_I(device_region_adopt(device, "pool", REGION_BYTES - 4 * MIB, fd, &adopted, err, sizeof err), -EINVAL);
    printf("  %s\n", err);
    if (driver.fake) { /* a machine of one GPU has no other device */
        KVT_OK(device_open(&second, &other, err, sizeof err));
        KVT_EQ_I(device_region_adopt(other, "pool", REGION_BYTES, fd, &adopted, err, sizeof err), -EINVAL);
        KVT_HAS(err, "on GPU 0, not on 1");
        device_close(other);
    }
    KVT_TRUE(!adopted);
    KVT_TRUE(fcntl(fd, F_GETFD) >= 0 && fcntl(ends[0], F_GETFD) >= 0); /* what is refused stays the caller's */
    KVT_EQ_I(open_files(), files);
    uint8_t byte = 0;
    read_device(&byte, region, REGION_BYTES - 1, 1);
    KVT_EQ(byte, 1);
    close(ends[0]);
    close(ends[1]);
    close(file);
    close(memory);
    device_close(device);
}

/* ---- shortage -------------------------------------------------------------------------------------------- */

static void fail(const char *call, int after) {
    atomic_store(&driver.fake->fail_after, after);
    atomic_store(&driver.fake->fail_code, CUDA_ERROR_OUT_OF_MEMORY);
    atomic_store(&driver.fake->fail_call, call);
}

/* Whichever call fails, nothing is left of the attempt, and the next one works. */
static void every_call_may_fail(void) {
    static const char *const making[] = { "cuMemGetAllocationGranularity",
                                          "cuMemCreate",
                                          "cuMemExportToShareableHandle",
                                          "cuMemAddressReserve",
                                          "cuMemMap",
                                          "cuMemSetAccess",
                                          "cuMemHostAlloc" };
    static const char *const adopting[] = { "cuMemGetAllocationGranularity",
                                            "cuMemImportFromShareableHandle",
                                            "cuMemGetAllocationPropertiesFromHandle",
                                            "cuMemMap",
                                            "cuMemSetAccess",
                                            "cuMemHostAlloc",
                                            "cuMemcpyDtoHAsync" };
    static const char *const opening[] = { "cuStreamCreate", "cuEventCreate", "cuMemHostAlloc" };
    struct device *device = NULL;
    struct device_config config = { .kind = DEVICE_CUDA, .export_fd = true };
    uint64_t left, now;
    if (!driver.fake) {
        printf("  SKIPPED: needs the stand-in driver\n");
        return;
    }
    uint64_t objects = atomic_load(&driver.fake->objects);
    int files = open_files();
    for (size_t i = 0; i < sizeof opening / sizeof *opening; i++)
        for (int after = 0; after < 4; after++) {
            fail(opening[i], after);
            int r = device_open(&config, &device, err, sizeof err);
            KVT_TRUE(r == -ENOMEM || (after && i == 2 && r == 0));
            if (!r) device_close(device);
            KVT_EQ(atomic_load(&driver.fake->objects), objects);
            KVT_EQ_I(open_files(), files);
        }
    fail(NULL, 0);
    device = open_device_as(true);
    KVT_NEED(device);
    objects = atomic_load(&driver.fake->objects);
    files = open_files();
    KVT_OK(device_free_bytes(device, &left, err, sizeof err));
    for (size_t i = 0; i < sizeof making / sizeof *making; i++) {
        struct device_region *region = NULL;
        fail(making[i], 0);
        KVT_EQ_I(device_region_new(device, "pool", REGION_BYTES, 0, &region, err, sizeof err), -ENOMEM);
        KVT_HAS(err, making[i]);
        KVT_TRUE(!region);
        KVT_EQ(atomic_load(&driver.fake->objects), objects);
        KVT_EQ_I(open_files(), files);
        KVT_OK(device_free_bytes(device, &now, err, sizeof err));
        KVT_EQ(now, left);
    }
    fail(NULL, 0);
    struct device_region *region = new_region(device, "pool", REGION_BYTES, 3), *adopted = NULL;
    KVT_NEED(region);
    int fd = fcntl(export_of(region).fd, F_DUPFD_CLOEXEC, 0);
    device_region_free(region);
    KVT_NEED(fd >= 0);
    files = open_files();
    for (size_t i = 0; i < sizeof adopting / sizeof *adopting; i++) {
        /* The first cuMemMap is the one that must fail. */
        fail(adopting[i], strcmp(adopting[i], "cuMemMap") == 0);
        int r = device_region_adopt(device, "pool", REGION_BYTES, fd, &adopted, err, sizeof err);
        KVT_EQ_I(r, -ENOMEM);
        KVT_HAS(err, adopting[i]);
        KVT_TRUE(!adopted && fcntl(fd, F_GETFD) >= 0);
        KVT_EQ(atomic_load(&driver.fake->objects), objects);
        KVT_EQ_I(open_files(), files);
    }
    fail(NULL, 0);
    KVT_OK(device_region_adopt(device, "pool", REGION_BYTES, fd, &adopted, err, sizeof err));
    uint8_t byte = 0;
    KVT_NEED(adopted);
    read_device(&byte, adopted, REGION_BYTES - 1, 1);
    KVT_EQ(byte, 3);
    device_close(device);
    KVT_TRUE(fcntl(fd, F_GETFD) < 0);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(regions_are_descriptors),
                                             KVT_CASE(cont_3_adopted_after_sigkill),
                                             KVT_CASE(wrong_descriptors_are_refused),
                                             KVT_CASE(every_call_may_fail),
                                             { 0 } };
    if (!driver_load(&driver)) {
        printf("SKIPPED: no CUDA driver or no GPU here\n");
        return 77;
    }
    if (argc > 1 && strcmp(argv[1], "--maker") == 0) return maker();
    if (argc > 1 && strcmp(argv[1], "--consumer") == 0) return consumer();
    return kvt_main("device cuda fd", cases, argc, argv);
}
