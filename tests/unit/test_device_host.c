/* SPDX-License-Identifier: Apache-2.0
 *
 * Host device: regions, imports in this and other processes, batches, accounting.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "device.h"
#include "kvt.h"

#define MIB (1u << 20)

static char err[512];

static struct device *open_device(uint64_t bytes) {
    struct device *device = NULL;
    struct device_config config = { .kind = DEVICE_HOST, .index = 3, .memory_bytes = bytes };
    if (!KVT_OK(device_open(&config, &device, err, sizeof err))) printf("  %s\n", err);
    return device;
}

static struct device_region *new_region(struct device *device, const char *label, uint64_t bytes, uint8_t fill) {
    struct device_region *region = NULL;
    if (!KVT_OK(device_region_new(device, label, bytes, fill, &region, err, sizeof err))) printf("  %s\n", err);
    return region;
}

/* Regions whose memory this process has open. */
static int objects_left(void) {
    int count = 0;
    char path[300], name[64];
    DIR *dir = opendir("/proc/self/fd");
    for (struct dirent *e; dir && (e = readdir(dir));) {
        snprintf(path, sizeof path, "/proc/self/fd/%s", e->d_name);
        ssize_t n = readlink(path, name, sizeof name);
        count += n > 11 && strncmp(name, "/memfd:kvd-", 11) == 0;
    }
    if (dir) closedir(dir);
    return count;
}

/* The owner's descriptor, opened by another process. */
static void take_fd_of_owner(struct device_export *e) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)e->owner_pid, e->fd);
    e->fd = open(path, O_RDWR | O_CLOEXEC);
}

/* A process forked before there is any region, so that it has none of the owner's mappings; it is sent an export, and
 * its exit status is the answer of `check`. */
struct peer {
    pid_t pid;
    int fd;
};

static struct peer peer_start(int (*check)(const struct device_export *)) {
    int ends[2];
    struct peer peer = { -1, -1 };
    if (pipe(ends)) return peer;
    fflush(stdout);
    peer = (struct peer){ fork(), ends[1] };
    if (peer.pid == 0) {
        struct device_export exported;
        signal(SIGSEGV, SIG_DFL);
        alarm(20);
        if (read(ends[0], &exported, sizeof exported) != sizeof exported) _exit(99);
        take_fd_of_owner(&exported);
        _exit(check(&exported));
    }
    close(ends[0]);
    return peer;
}

static int peer_answer(struct peer peer, const struct device_export *exported) {
    KVT_EQ_I(write(peer.fd, exported, sizeof *exported), (ssize_t)sizeof *exported);
    close(peer.fd);
    int end = kvt_wait(peer.pid);
    return end < 0 ? 128 - end : end;
}

static void identity_is_stable(void) {
    struct device *a = open_device(MIB), *b = open_device(MIB), *c = NULL;
    struct device_identity x, y, z;
    struct device_config other = { .kind = DEVICE_HOST, .index = 4, .memory_bytes = MIB };
    KVT_NEED(a && b);
    KVT_OK(device_open(&other, &c, err, sizeof err));
    device_identify(a, &x);
    device_identify(b, &y);
    device_identify(c, &z);
    KVT_EQ(x.kind, DEVICE_HOST);
    KVT_EQ(x.index, 3);
    KVT_EQ(x.total_bytes, MIB);
    KVT_EQ_MEM(x.uuid, y.uuid, 16);
    KVT_TRUE(memcmp(x.uuid, z.uuid, 16) != 0);
    KVT_EQ(x.uuid[6] >> 4, 8);
    device_close(a);
    device_close(b);
    device_close(c);
    device_close(NULL);
}

/* In a build without the backend. With it, tests/gpu has the cases without a driver and without a GPU. */
static void cuda_without_backend_is_refused(void) {
#ifndef KVD_HAVE_CUDA_BACKEND
    struct device *device = NULL;
    struct device_config config = { .kind = DEVICE_CUDA };
    struct device_export e = { .kind = DEVICE_EXPORT_CUDA_IPC, .bytes = 1 };
    struct device_import *import = NULL;
    KVT_EQ_I(device_open(&config, &device, err, sizeof err), -ENODEV);
    KVT_HAS(err, "no CUDA backend");
    KVT_FALSE(device_cuda_available(err, sizeof err));
    KVT_EQ_I(device_import(&e, NULL, false, &import, err, sizeof err), -ENODEV);
    KVT_TRUE(!device && !import);
#endif
}

static void bad_arguments_refused(void) {
    struct device *device = NULL;
    struct device_region *region = NULL;
    struct device_config kind = { .kind = (enum device_kind)7, .memory_bytes = 1 };
    KVT_EQ_I(device_open(&kind, &device, err, sizeof err), -EINVAL);
    struct device_config empty = { .kind = DEVICE_HOST };
    KVT_EQ_I(device_open(&empty, &device, err, sizeof err), -EINVAL);
    KVT_TRUE(device == NULL);
    device = open_device(MIB);
    static const char *const bad_labels[] = { NULL, "", "A", "a/b", "a b", "a_b", "../x" };
    for (unsigned i = 0; i < sizeof bad_labels / sizeof *bad_labels; i++)
        KVT_EQ_I(device_region_new(device, bad_labels[i], 100, 0, &region, err, sizeof err), -EINVAL);
    KVT_EQ_I(device_region_new(device, "zero", 0, 0, &region, err, sizeof err), -EINVAL);
    KVT_EQ_I(device_region_new(device, "huge", UINT64_MAX, 0, &region, err, sizeof err), -EINVAL);
    KVT_TRUE(region == NULL);
    KVT_EQ_I(objects_left(), 0);
    device_close(device);
}

static void regions_are_whole_and_accounted(void) {
    struct device *device = open_device(4 * MIB);
    uint64_t free_bytes = 0;
    KVT_NEED(device);
    KVT_OK(device_free_bytes(device, &free_bytes, err, sizeof err));
    KVT_EQ(free_bytes, 4 * MIB);
    struct device_region *a = new_region(device, "main-0", MIB + 1, 0xA5), *b = NULL;
    KVT_NEED(a);
    const uint8_t *bytes = device_region_address(a);
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < MIB + 1; i++) wrong += bytes[i] != 0xA5;
    KVT_EQ(wrong, 0);
    KVT_OK(device_free_bytes(device, &free_bytes, err, sizeof err));
    KVT_EQ(free_bytes, 3 * MIB - 4096); /* whole pages are charged */
    KVT_EQ_I(device_region_new(device, "draft-0", 3 * MIB, 0, &b, err, sizeof err), -ENOMEM);
    KVT_HAS(err, "memory_bytes");
    KVT_EQ_I(objects_left(), 1);
    struct device_export e;
    struct stat st;
    device_region_export(a, &e);
    KVT_OK(fstat(e.fd, &st));
    KVT_EQ(st.st_mode & 0777, 0600);
    KVT_EQ(st.st_size, MIB + 1);
    KVT_TRUE((uint64_t)st.st_blocks * 512 >= MIB + 1); /* committed, not sparse */
    device_region_free(a);
    KVT_OK(device_free_bytes(device, &free_bytes, err, sizeof err));
    KVT_EQ(free_bytes, 4 * MIB);
    KVT_EQ_I(objects_left(), 0);
    device_close(device);
}

/* A system that gives no descriptor, or stops in the middle of the allocation: refused, nothing left, and the next try
 * works. */
static void region_new_fails_clean(void) {
    struct device *device = open_device(8 * MIB);
    struct device_region *region = NULL;
    struct rlimit files, sizes, low;
    uint64_t free_bytes = 0;
    getrlimit(RLIMIT_NOFILE, &files);
    getrlimit(RLIMIT_FSIZE, &sizes);
    low = files;
    low.rlim_cur = 0;
    setrlimit(RLIMIT_NOFILE, &low);
    int no_file = device_region_new(device, "main-0", MIB, 0, &region, err, sizeof err);
    setrlimit(RLIMIT_NOFILE, &files);
    KVT_EQ_I(no_file, -EMFILE);
    signal(SIGXFSZ, SIG_IGN);
    low = sizes;
    low.rlim_cur = 4096;
    setrlimit(RLIMIT_FSIZE, &low);
    int no_room = device_region_new(device, "main-0", MIB, 0, &region, err, sizeof err);
    setrlimit(RLIMIT_FSIZE, &sizes);
    signal(SIGXFSZ, SIG_DFL);
    KVT_EQ_I(no_room, -EFBIG);
    KVT_HAS(err, "main-0");
    KVT_TRUE(region == NULL);
    KVT_EQ_I(objects_left(), 0);
    KVT_OK(device_free_bytes(device, &free_bytes, err, sizeof err));
    KVT_EQ(free_bytes, 8 * MIB);
    KVT_TRUE(new_region(device, "main-0", MIB, 0) != NULL);
    device_close(device);
    KVT_EQ_I(objects_left(), 0);
}

static int import_writes(const struct device_export *e) {
    struct device_import *import = NULL, *again = NULL;
    uint8_t other[16] = { 1 };
    char text[256];
    if (device_import(e, other, false, &import, text, sizeof text) != -ENXIO || !strstr(text, "0100000000")) return 1;
    for (int byte = 0; byte < 16; byte++) { /* all of it is compared */
        memcpy(other, e->uuid, sizeof other);
        other[byte] ^= 1;
        if (device_import(e, other, false, &import, text, sizeof text) != -ENXIO) return 6;
    }
    if (device_import(e, e->uuid, false, &import, text, sizeof text)) return 2;
    if (device_import(e, NULL, false, &again, text, sizeof text)) return 3;
    unsigned char *address = device_import_address(import);
    if (device_import_address(again) != address) return 4; /* one mapping, counted */
    device_unimport(import);
    if (address[0] != 0x11 || address[MIB - 1] != 0x11) return 5;
    address[5] = 0x22;
    device_unimport(again);
    return 0;
}

/* A read-only import reads, and a write to it faults: _exit in the handler shows that the fault came where it should.
 */
static void on_fault(int number) {
    (void)number;
    _exit(42);
}

static int import_read_only_traps(const struct device_export *e) {
    struct device_import *import = NULL;
    char text[256];
    if (device_import(e, NULL, true, &import, text, sizeof text)) return 2;
    volatile unsigned char *address = device_import_address(import);
    if (address[0] != 0x11) return 3;
    signal(SIGSEGV, on_fault);
    address[0] = 1;
    return 4;
}

static void import_shares_memory(void) {
    struct peer writer = peer_start(import_writes), reader = peer_start(import_read_only_traps);
    struct device *device = open_device(8 * MIB);
    struct device_region *region = new_region(device, "main-0", MIB, 0x11);
    struct device_export e;
    struct device_import *a = NULL, *b = NULL;
    KVT_NEED(region);
    device_region_export(region, &e);
    KVT_EQ(e.bytes, MIB);
    KVT_EQ(e.owner_pid, getpid());
    KVT_EQ_I(peer_answer(writer, &e), 0);
    KVT_EQ_I(peer_answer(reader, &e), 42);
    unsigned char *address = device_region_address(region);
    KVT_EQ(address[5], 0x22);
    /* In the owner's process: its own address, and it outlives the region. */
    KVT_OK(device_import(&e, NULL, false, &a, err, sizeof err));
    KVT_OK(device_import(&e, e.uuid, true, &b, err, sizeof err));
    KVT_TRUE(device_import_address(a) == (void *)address && device_import_address(b) == (void *)address);
    KVT_EQ(e.local_address, (uint64_t)(uintptr_t)address);
    device_region_free(region);
    KVT_EQ(address[5], 0x22);
    struct device_import *late = NULL;
    KVT_TRUE(device_import(&e, NULL, false, &late, err, sizeof err) < 0);
    /* The same label again is another object: the old mapping is not handed out for it. */
    region = new_region(device, "main-0", MIB, 0x33);
    device_region_export(region, &e);
    KVT_OK(device_import(&e, NULL, false, &late, err, sizeof err));
    KVT_EQ(((unsigned char *)device_import_address(late))[5], 0x33);
    KVT_EQ(address[5], 0x22);
    device_unimport(a);
    device_unimport(b);
    device_unimport(late);
    device_unimport(NULL);
    device_close(device);
}

/* SRV-8: what would fault is refused. */
static void import_checks_the_object(void) {
    struct device *device = open_device(8 * MIB);
    struct device_region *region = new_region(device, "main-0", MIB, 0);
    struct device_import *import = NULL;
    struct device_export e, bad;
    KVT_NEED(region);
    device_region_export(region, &e);
    bad = e;
    bad.bytes = MIB + 1;
    KVT_EQ_I(device_import(&bad, NULL, false, &import, err, sizeof err), -EMSGSIZE);
    KVT_HAS(err, "smaller");
    bad.bytes = 0;
    KVT_EQ_I(device_import(&bad, NULL, false, &import, err, sizeof err), -EINVAL);
    bad.bytes = UINT64_MAX;
    KVT_EQ_I(device_import(&bad, NULL, false, &import, err, sizeof err), -EINVAL);
    bad = e;
    bad.fd = -1;
    KVT_EQ_I(device_import(&bad, NULL, false, &import, err, sizeof err), -EACCES);
    bad.fd = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING); /* somebody could cut it short */
    KVT_OK(ftruncate(bad.fd, MIB));
    KVT_TRUE(device_import(&bad, NULL, false, &import, err, sizeof err) < 0);
    close(bad.fd);
    bad = e;
    bad.kind = 9;
    KVT_EQ_I(device_import(&bad, NULL, false, &import, err, sizeof err), -EINVAL);
    KVT_TRUE(import == NULL);
    device_close(device);
}

static void *import_loop(void *argument) {
    const struct device_export *e = argument;
    uintptr_t bad = 0;
    for (int i = 0; i < 300; i++) {
        struct device_import *import;
        char text[128];
        if (device_import(e, NULL, i & 1, &import, text, sizeof text)) {
            bad++;
            continue;
        }
        bad += ((const volatile unsigned char *)device_import_address(import))[i] != 0x5A;
        device_unimport(import);
    }
    return (void *)bad;
}

static void import_from_threads(void) {
    struct device *device = open_device(MIB);
    struct device_region *region = new_region(device, "main-0", 65536, 0x5A);
    struct device_export e;
    pthread_t threads[4];
    KVT_NEED(region);
    device_region_export(region, &e);
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, import_loop, &e);
    for (int i = 0; i < 4; i++) {
        void *bad = NULL;
        pthread_join(threads[i], &bad);
        KVT_TRUE(bad == NULL);
    }
    device_close(device);
}

/* ---- batches ------------------------------------------------------------------------------ */

static struct geom_pool_spec spec_of(enum geom_order order, enum geom_arrangement arrangement, uint32_t layers) {
    return (struct geom_pool_spec){ .storage = KVD_STORAGE_K8V4,
                                    .order = order,
                                    .arrangement = arrangement,
                                    .n_layers = layers,
                                    .n_kv_heads = 2,
                                    .head_dim = 256,
                                    .n_ranks = 1 };
}

/* GRP-1: a latent group behind the spec's shape. */
static void put_groups(struct geom_pool_spec *spec) {
    const struct geom_group shape = geom_group_at(spec, 0);
    *spec = (struct geom_pool_spec){ .arrangement = spec->arrangement, .n_ranks = 1, .n_layers = 5, .n_groups = 2 };
    spec->group[0] = shape;
    spec->group[1] =
        (struct geom_group){ .format = KVD_FORMAT_LATENT, .n_layers = 3, .n_kv_heads = 1, .row_bytes = 100 };
}

/* A copy moves exactly the columns asked for, of every plane and head (ACT-4), and nothing else. */
static void act_4_copy_moves_columns(void) {
    for (unsigned variant = 0; variant < 8; variant++) {
        struct geom_pool_spec spec =
            spec_of((enum geom_order)(variant & 1), (enum geom_arrangement)(variant >> 1 & 1), 2);
        if (variant >= 4) put_groups(&spec);
        uint64_t bytes = geom_region_bytes(&spec, 5);
        struct device *device = open_device(64 * MIB);
        struct device_region *region = new_region(device, "main-0", bytes, 0);
        KVT_NEED(region);
        uint8_t *now = device_region_address(region), *want = malloc(bytes);
        for (uint64_t i = 0; i < bytes; i++) now[i] = want[i] = (uint8_t)(i * 2654435761u >> 13);
        for (uint32_t i = 0; i < geom_plane_count(&spec); i++) {
            struct geom_plane p;
            geom_plane_at(&spec, 5, 0, i, &p);
            bool page_major = p.order == GEOM_PAGE_MAJOR;
            for (uint32_t h = 0; h < p.n_heads; h++) {
                uint64_t page = page_major ? p.nb3 : p.nb2, head = page_major ? p.nb2 : p.nb3;
                for (uint32_t o = 0; o < 40; o++)
                    memcpy(want + p.offset + h * head + 1 * page + o * p.nb1,
                           now + p.offset + h * head + 4 * page + o * p.nb1, p.nb1);
            }
        }
        struct device_page_copy copy = {
            .spec = &spec, .n_pages = 5, .region = region, .src = 4, .dst = 1, .columns = 40
        };
        struct device_batch batch = { .copies = &copy, .n_copies = 1 };
        uint64_t ticket = 0, done = 0;
        bool inline_done = false;
        KVT_OK(device_submit(device, &batch, &ticket, &inline_done, err, sizeof err));
        KVT_EQ(ticket, 1);
        KVT_TRUE(inline_done); /* 40 columns of two layers are far below the inline bound */
        KVT_OK(device_poll(device, &done, err, sizeof err));
        KVT_EQ(done, 1);
        KVT_EQ_MEM(now, want, bytes);
        copy.src = 1; /* onto itself: nothing */
        KVT_OK(device_submit(device, &batch, &ticket, &inline_done, err, sizeof err));
        KVT_EQ_MEM(now, want, bytes);
        free(want);
        device_close(device);
    }
}

static bool wait_for(struct device *device, uint64_t ticket) {
    uint64_t done = 0, count;
    for (;;) {
        if (device_poll(device, &done, err, sizeof err)) return false;
        if (done >= ticket) return true;
        struct pollfd p = { .fd = device_event_fd(device), .events = POLLIN };
        if (poll(&p, 1, 20000) != 1) return false; /* nobody told us within 20 s */
        if (read(p.fd, &count, sizeof count) != sizeof count) return false;
    }
}

/* ROW-4: table writes of a batch are done after its copies, batches in ticket order, and small ones never overtake. */
static void row_4_batches_in_order(void) {
    enum { PAGES = 24, TABLE = 1024 };
    struct geom_pool_spec spec = spec_of(GEOM_PAGE_MAJOR, GEOM_RECORD, 16);
    struct device *device = open_device(256 * MIB);
    struct device_region *pool = new_region(device, "main-0", geom_region_bytes(&spec, PAGES), 0);
    struct device_region *table = new_region(device, "table-0", TABLE * 4, 0xFF);
    KVT_NEED(pool && table);
    const _Atomic int32_t *entries = device_region_address(table);
    uint8_t *bytes = device_region_address(pool);
    struct geom_piece piece;
    geom_piece(&spec, PAGES, 0, 0, 15, &piece);
    static int32_t values[200];
    uint64_t last = 0, queued = 0;
    for (uint32_t i = 0; i < PAGES; i++) memset(bytes + piece.region_offset + i * piece.bytes, (int)i, piece.bytes);
    for (int32_t round = 0; round < 200; round++) {
        struct device_page_copy copies[4];
        uint32_t n = round % 3 ? 0 : 4; /* a chain: page k+1 gets what page k got before it */
        for (uint32_t k = 0; k < n; k++)
            copies[k] = (struct device_page_copy){
                .spec = &spec, .n_pages = PAGES, .region = pool, .src = k, .dst = k + 1, .columns = 64
            };
        values[round] = round;
        struct device_table_write writes[2] = { { table, 0, 1, &values[round] },
                                                { table, 4 + 4 * (uint64_t)round, 1, &values[round] } };
        struct device_batch batch = { .copies = copies, .n_copies = n, .writes = writes, .n_writes = 2 };
        uint64_t ticket = 0, done;
        bool inline_done = true;
        if (!KVT_OK(device_submit(device, &batch, &ticket, &inline_done, err, sizeof err))) break;
        KVT_EQ(ticket, ++last);
        queued += !inline_done;
        if (n) KVT_FALSE(inline_done);
        KVT_OK(device_poll(device, &done, err, sizeof err));
        KVT_TRUE(done <= ticket && (!inline_done || done == ticket));
        memset(copies, 0xEE, sizeof copies); /* the caller's arrays are its own again; only values must live on */
        memset(writes, 0xEE, sizeof writes);
        if (round % 50 == 49) {
            KVT_TRUE(wait_for(device, ticket));
            KVT_EQ_I(entries[0], round);
        }
    }
    KVT_TRUE(wait_for(device, last));
    KVT_TRUE(queued >= 67);
    KVT_EQ_I(entries[0], 199);
    for (int32_t round = 0; round < 200; round++) KVT_EQ_I(entries[1 + round], round);
    for (uint32_t k = 1; k <= 4; k++) KVT_EQ(bytes[piece.region_offset + k * piece.bytes], 0);
    KVT_EQ(bytes[piece.region_offset + 5 * piece.bytes], 5);
    /* Freeing a region waits for what is queued on it; an import keeps the memory for those who look later. */
    struct device_page_copy big = {
        .spec = &spec, .n_pages = PAGES, .region = pool, .src = 7, .dst = 8, .columns = 64
    };
    struct device_batch batch = { .copies = &big, .n_copies = 1 };
    struct device_export e;
    struct device_import *import = NULL;
    uint64_t ticket = 0, done = 0;
    bool inline_done;
    device_region_export(pool, &e);
    KVT_OK(device_import(&e, NULL, true, &import, err, sizeof err));
    for (int i = 0; i < 300; i++) KVT_OK(device_submit(device, &batch, &ticket, &inline_done, err, sizeof err));
    device_region_free(pool);
    KVT_OK(device_poll(device, &done, err, sizeof err));
    KVT_EQ(done, ticket);
    KVT_EQ(bytes[piece.region_offset + 8 * piece.bytes], 7);
    device_unimport(import);
    device_close(device);
    KVT_EQ_I(objects_left(), 0);
}

static void bad_batches_change_nothing(void) {
    struct geom_pool_spec spec = spec_of(GEOM_PAGE_MAJOR, GEOM_DENSE, 1), broken = spec;
    struct device *device = open_device(64 * MIB), *other = open_device(64 * MIB);
    struct device_region *region = new_region(device, "main-0", geom_region_bytes(&spec, 4), 0),
                         *foreign = new_region(other, "f", 4096, 0);
    KVT_NEED(region && foreign);
    broken.n_ranks = 0;
    int32_t value = 7;
    struct device_page_copy good = { .spec = &spec, .n_pages = 4, .region = region, .src = 0, .dst = 1, .columns = 64 },
                            c[10];
    for (int i = 0; i < 10; i++) c[i] = good;
    c[0].src = 4;
    c[1].dst = UINT32_MAX;
    c[2].columns = 0;
    c[3].columns = 65;
    c[4].rank = 1;
    c[5].n_pages = 5;
    c[6].spec = &broken;
    c[7].region = foreign;
    c[8].region = NULL;
    c[9].spec = NULL;
    uint64_t ticket = 77, done = 0;
    bool inline_done;
    for (int i = 0; i < 10; i++) {
        struct device_page_copy two[2] = { good, c[i] };
        struct device_batch batch = { .copies = two, .n_copies = 2 };
        ((uint8_t *)device_region_address(region))[0] = 0x42;
        KVT_EQ_I(device_submit(device, &batch, &ticket, &inline_done, err, sizeof err), -EINVAL);
        KVT_HAS(err, "copy 1");
        struct geom_plane p;
        geom_plane(&spec, 4, 0, 0, GEOM_K, &p, NULL, 0);
        KVT_EQ(((uint8_t *)device_region_address(region))[p.nb3], 0);
    }
    struct device_table_write w[] = { { region, 2, 1, &value },
                                      { region, geom_region_bytes(&spec, 4), 1, &value },
                                      { region, UINT64_MAX - 3, 1, &value },
                                      { foreign, 0, 1, &value },
                                      { NULL, 0, 1, &value },
                                      { region, 0, 1, NULL },
                                      { region, 0, UINT32_MAX, &value } };
    for (unsigned i = 0; i < sizeof w / sizeof *w; i++) {
        struct device_batch batch = { .writes = &w[i], .n_writes = 1 };
        KVT_EQ_I(device_submit(device, &batch, &ticket, &inline_done, err, sizeof err), -EINVAL);
    }
    struct device_batch hollow = { .n_writes = 1 };
    KVT_EQ_I(device_submit(device, &hollow, &ticket, &inline_done, err, sizeof err), -EINVAL);
    KVT_EQ(ticket, 77);
    KVT_OK(device_poll(device, &done, err, sizeof err));
    KVT_EQ(done, 0);
    struct device_batch nothing = { 0 };
    KVT_OK(device_submit(device, &nothing, &ticket, &inline_done, err, sizeof err));
    KVT_EQ(ticket, 1);
    device_close(device);
    device_close(other);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = {
        KVT_CASE(identity_is_stable),         KVT_CASE(cuda_without_backend_is_refused),
        KVT_CASE(bad_arguments_refused),      KVT_CASE(regions_are_whole_and_accounted),
        KVT_CASE(region_new_fails_clean),     KVT_CASE(import_shares_memory),
        KVT_CASE(import_checks_the_object),   KVT_CASE(import_from_threads),
        KVT_CASE(act_4_copy_moves_columns),   KVT_CASE(row_4_batches_in_order),
        KVT_CASE(bad_batches_change_nothing), { 0 },
    };
    return kvt_main("device_host", cases, argc, argv);
}
