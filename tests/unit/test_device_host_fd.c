/* SPDX-License-Identifier: Apache-2.0
 *
 * Regions of a host device as file descriptors: sealed memory that outlives its maker, adopted by the next owner and
 * imported by consumers that were sent the descriptor.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device.h"
#include "kvt.h"

#define MIB (UINT64_C(1) << 20)

static char err[512];

static struct device *open_index(uint32_t index, uint64_t bytes) {
    struct device *device = NULL;
    struct device_config config = { .kind = DEVICE_HOST, .index = index, .memory_bytes = bytes, .export_fd = true };
    if (device_open(&config, &device, err, sizeof err)) printf("  %s\n", err);
    return device;
}

static bool send_fd(int socket, int fd) {
    char byte = 'f';
    struct iovec part = { &byte, 1 };
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = { 0 };
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes
    };
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    return sendmsg(socket, &message, 0) == 1;
}

static int receive_fd(int socket) {
    char byte;
    int fd = -1;
    struct iovec part = { &byte, 1 };
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = { 0 };
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes
    };
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return -1;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header && header->cmsg_type == SCM_RIGHTS) memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return fd;
}

static struct device_export export_of(const struct device_region *region) {
    struct device_export e;
    device_region_export(region, &e);
    return e;
}

static void region_is_sealed_memory(void) {
    struct device *device = open_index(0, 8 * MIB);
    struct device_region *region = NULL, *more = NULL;
    struct stat object;
    uint64_t left = 0;
    KVT_NEED(device);
    KVT_OK(device_region_new(device, "main-r0", MIB + 1, 0xA5, &region, err, sizeof err));
    KVT_NEED(region);
    struct device_export e = export_of(region);
    KVT_EQ(e.kind, DEVICE_EXPORT_FD);
    KVT_EQ(e.bytes, MIB + 1);
    KVT_OK(fstat(e.fd, &object));
    KVT_TRUE((uint64_t)object.st_blocks * 512 >= MIB + 1); /* committed, not sparse */
    KVT_EQ(object.st_mode & 0777, 0600);
    /* SRV-8: nobody who holds it can pull the memory away, or keep the next owner from writing. */
    KVT_TRUE(ftruncate(e.fd, 0) != 0 && errno == EPERM);
    KVT_TRUE(ftruncate(e.fd, 64 * (off_t)MIB) != 0 && errno == EPERM);
    KVT_TRUE(fcntl(e.fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0 && errno == EPERM);
    const uint8_t *bytes = device_region_address(region);
    KVT_TRUE(bytes[0] == 0xA5 && bytes[MIB] == 0xA5);
    KVT_OK(device_free_bytes(device, &left, err, sizeof err));
    KVT_EQ(left, 7 * MIB - 4096);
    KVT_EQ_I(device_region_new(device, "large", 8 * MIB, 0, &more, err, sizeof err), -ENOMEM);
    KVT_HAS(err, "memory_bytes");
    /* A system that has no descriptor, or no memory in the middle: refused, nothing left. */
    struct rlimit files, sizes, low;
    getrlimit(RLIMIT_NOFILE, &files);
    getrlimit(RLIMIT_FSIZE, &sizes);
    low = files;
    low.rlim_cur = 0;
    setrlimit(RLIMIT_NOFILE, &low);
    int no_file = device_region_new(device, "next", MIB, 0, &more, err, sizeof err);
    setrlimit(RLIMIT_NOFILE, &files);
    KVT_EQ_I(no_file, -EMFILE);
    signal(SIGXFSZ, SIG_IGN);
    low = sizes;
    low.rlim_cur = 4096;
    setrlimit(RLIMIT_FSIZE, &low);
    int no_room = device_region_new(device, "next", MIB, 0, &more, err, sizeof err);
    setrlimit(RLIMIT_FSIZE, &sizes);
    signal(SIGXFSZ, SIG_DFL);
    KVT_EQ_I(no_room, -EFBIG);
    KVT_HAS(err, "region next");
    KVT_TRUE(!more);
    KVT_OK(device_free_bytes(device, &left, err, sizeof err));
    KVT_EQ(left, 7 * MIB - 4096);
    device_region_free(region);
    KVT_TRUE(fcntl(e.fd, F_GETFD) < 0); /* closed with it */
    KVT_OK(device_free_bytes(device, &left, err, sizeof err));
    KVT_EQ(left, 8 * MIB);
    device_close(device);
}

/* In a process of its own: makes a region, sends its descriptor, writes into it until it is killed. */
static void maker(int socket) {
    struct device *device = open_index(2, 8 * MIB);
    struct device_region *region = NULL;
    if (!device || device_region_new(device, "main-r0", MIB, 0x11, &region, err, sizeof err)) _exit(2);
    uint8_t *bytes = device_region_address(region);
    bytes[777] = 0x99;
    if (!send_fd(socket, export_of(region).fd)) _exit(3);
    for (;;) pause();
}

/* Every byte is there after the maker's SIGKILL, and the region is one like any other: exported again, its descriptor
 * too, written, freed. */
static void cont_3_adopted_after_sigkill(void) {
    int ends[2];
    uint64_t left = 0;
    struct device_region *region = NULL;
    KVT_OK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) maker(ends[1]);
    close(ends[1]);
    int fd = receive_fd(ends[0]);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    close(ends[0]);
    KVT_NEED(fd >= 0);
    struct device *device = open_index(2, 8 * MIB);
    KVT_NEED(device);
    KVT_OK(device_region_adopt(device, "main-r0", MIB, fd, &region, err, sizeof err));
    KVT_NEED(region);
    uint8_t *bytes = device_region_address(region);
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < MIB; i++) wrong += bytes[i] != (i == 777 ? 0x99 : 0x11);
    KVT_EQ(wrong, 0);
    struct device_export e = export_of(region);
    KVT_TRUE(e.kind == DEVICE_EXPORT_FD && e.bytes == MIB && e.fd == fd);
    KVT_OK(device_free_bytes(device, &left, err, sizeof err));
    KVT_EQ(left, 7 * MIB);
    int32_t value = 42;
    struct device_table_write write = { .region = region, .offset = 4, .count = 1, .values = &value };
    uint64_t ticket;
    bool inline_done;
    KVT_OK(device_submit(device, &(struct device_batch){ .writes = &write, .n_writes = 1 }, &ticket, &inline_done, err,
                         sizeof err));
    KVT_EQ(bytes[4], 42);
    device_region_free(region);
    KVT_TRUE(fcntl(fd, F_GETFD) < 0);
    device_close(device);
}

/* A region in one device, offered to others and under other names; what is refused stays the caller's. */
static void wrong_descriptors_are_refused(void) {
    struct device *device = open_index(0, 8 * MIB), *other = open_index(1, 8 * MIB), *small = open_index(0, 100);
    struct device_region *region = NULL, *adopted = NULL;
    int pipe_ends[2];
    KVT_NEED(device && other && small);
    KVT_OK(device_region_new(device, "main-r0", MIB, 0x11, &region, err, sizeof err));
    KVT_NEED(region);
    int fd = export_of(region).fd, shm = shm_open("/kvd-test-fd-shm", O_RDWR | O_CREAT | O_EXCL, 0600),
        unsealed = memfd_create("kvd-x", MFD_CLOEXEC | MFD_ALLOW_SEALING),
        foreign = memfd_create("kvd-y", MFD_ALLOW_SEALING);
    KVT_NEED(shm >= 0 && unsealed >= 0 && foreign >= 0);
    shm_unlink("/kvd-test-fd-shm");
    KVT_TRUE(!ftruncate(shm, (off_t)MIB) && !ftruncate(unsealed, (off_t)MIB) && !ftruncate(foreign, (off_t)MIB));
    KVT_OK(fcntl(foreign, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
    KVT_OK(pipe(pipe_ends));
    const int wrong[] = { shm, unsealed, foreign, pipe_ends[0], 0x7ffffff, -1 };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        KVT_EQ_I(device_region_adopt(device, "main-r0", MIB, wrong[i], &adopted, err, sizeof err), -EINVAL);
    KVT_EQ_I(device_region_adopt(device, "main-r0", MIB - 4096, fd, &adopted, err, sizeof err), -EINVAL);
    KVT_HAS(err, "1048576");
    KVT_EQ_I(device_region_adopt(device, "main-r0", MIB + 1, fd, &adopted, err, sizeof err), -EINVAL);
    KVT_EQ_I(device_region_adopt(device, "main-r0", 0, fd, &adopted, err, sizeof err), -EINVAL);
    KVT_EQ_I(device_region_adopt(device, "draft-r0", MIB, fd, &adopted, err, sizeof err), -EINVAL);
    KVT_HAS(err, "main-r0");
    KVT_EQ_I(device_region_adopt(device, "A", MIB, fd, &adopted, err, sizeof err), -EINVAL);
    KVT_EQ_I(device_region_adopt(other, "main-r0", MIB, fd, &adopted, err, sizeof err), -EINVAL); /* another device's */
    KVT_EQ_I(device_region_adopt(small, "main-r0", MIB, fd, &adopted, err, sizeof err), -ENOMEM);
    KVT_TRUE(!adopted);
    KVT_TRUE(fcntl(fd, F_GETFD) >= 0 && fcntl(foreign, F_GETFD) >= 0);
    close(shm);
    close(unsealed);
    close(foreign);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    device_close(small);
    device_close(other);
    device_close(device);
}

/* A consumer that is sent the descriptor: maps it read-write, once however often it asks, and closes its own. */
static int consumer(int socket, struct device_export e) {
    struct device_import *a = NULL, *b = NULL;
    uint8_t other[16] = { 1 };
    e.fd = -1;
    if (device_import(&e, NULL, false, &a, err, sizeof err) != -EACCES) return 1;
    e.fd = receive_fd(socket);
    if (e.fd < 0) return 2;
    if (device_import(&e, other, false, &a, err, sizeof err) != -ENXIO) return 3;
    if (device_import(&e, e.uuid, false, &a, err, sizeof err)) return 4;
    if (device_import(&e, NULL, true, &b, err, sizeof err)) return 5;
    close(e.fd);
    uint8_t *bytes = device_import_address(a);
    if (device_import_address(b) != bytes || bytes[MIB - 1] != 0x11) return 6;
    bytes[5] = 0x22;
    device_unimport(a);
    if (bytes[0] != 0x11) return 7; /* b still holds it */
    device_unimport(b);
    return 0;
}

static void consumers_import_a_descriptor(void) {
    struct device *device = open_index(0, 8 * MIB);
    struct device_region *region = NULL;
    struct device_import *own = NULL, *bad = NULL;
    int ends[2];
    KVT_NEED(device);
    KVT_OK(device_region_new(device, "main-r0", MIB, 0x11, &region, err, sizeof err));
    KVT_NEED(region);
    struct device_export e = export_of(region);
    uint8_t *bytes = device_region_address(region);
    KVT_OK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(20);
        close(e.fd);
        _exit(consumer(ends[1], e));
    }
    KVT_TRUE(send_fd(ends[0], e.fd));
    KVT_EQ_I(kvt_wait(pid), 0);
    KVT_EQ(bytes[5], 0x22);
    close(ends[0]);
    close(ends[1]);
    /* In the owner's process: the region's own address, and it outlives the region. */
    KVT_OK(device_import(&e, NULL, false, &own, err, sizeof err));
    KVT_TRUE(own && device_import_address(own) == (void *)bytes);
    struct device_export longer = e;
    longer.bytes = MIB + 1;
    KVT_EQ_I(device_import(&longer, NULL, false, &bad, err, sizeof err), -EMSGSIZE);
    longer = e;
    longer.fd = ends[0]; /* closed */
    KVT_TRUE(device_import(&longer, NULL, false, &bad, err, sizeof err) < 0);
    KVT_TRUE(!bad);
    device_region_free(region);
    KVT_EQ(bytes[5], 0x22);
    device_unimport(own);
    device_close(device);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = {
        KVT_CASE(region_is_sealed_memory),
        KVT_CASE(cont_3_adopted_after_sigkill),
        KVT_CASE(wrong_descriptors_are_refused),
        KVT_CASE(consumers_import_a_descriptor),
        { 0 },
    };
    return kvt_main("device_host_fd", cases, argc, argv);
}
