/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA device: regions, publication, page copies, imports, loss. Runs on a GPU, or on the stand-in driver
 * (fake_driver.h), which also checks that no copy has a form that would wait for another process's time slice. Skips
 * (77) where there is neither.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>

#include "device_fixture.h"
#include "groups_around.h"

/* ---- identity and regions --------------------------------------------------------------------- */

static void identity_and_free_bytes(void) {
    struct device *device = open_device();
    struct device_identity identity;
    uint64_t before = 0, during = 0, after = 0;
    CUuuid uuid;
    KVT_NEED(device);
    KVT_TRUE(device_cuda_available(err, sizeof err));
    device_identify(device, &identity);
    DRIVER_OK(driver.cuDeviceGetUuid_v2(&uuid, 0));
    KVT_EQ_MEM(identity.uuid, &uuid, 16);
    KVT_TRUE(identity.kind == DEVICE_CUDA && identity.name[0] && identity.total_bytes > 0);
    KVT_OK(device_free_bytes(device, &before, err, sizeof err));
    struct device_region *region = new_region(device, "pool-r0", 100 * MIB + 1, 0x11);
    KVT_NEED(region);
    KVT_OK(device_free_bytes(device, &during, err, sizeof err));
    KVT_EQ(before - during, 102 * MIB); /* whole 2 MiB blocks: nobody else's memory is behind the handle */
    device_region_free(region);
    KVT_OK(device_free_bytes(device, &after, err, sizeof err));
    KVT_EQ(after, before);
    device_close(device);
    struct device_config config = { .kind = DEVICE_CUDA, .index = 200 };
    KVT_EQ_I(device_open(&config, &device, err, sizeof err), -ENODEV);
    KVT_HAS(err, "cuda device 200");
}

static void regions_are_filled_and_refused(void) {
    struct device *device = open_device();
    uint64_t left = 0;
    static uint8_t bytes[3 * MIB];
    KVT_NEED(device);
    struct device_region *region = new_region(device, "a", sizeof bytes, 0xff), *none = NULL;
    KVT_NEED(region);
    read_device(bytes, region, 0, sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++)
        if (bytes[i] != 0xff) {
            KVT_EQ(bytes[i], 0xff);
            break;
        }
    KVT_OK(device_free_bytes(device, &left, err, sizeof err));
    KVT_EQ_I(device_region_new(device, "b", left + (1ull << 40), 0, &none, err, sizeof err), -ENOMEM);
    KVT_HAS(err, "are free on cuda device 0");
    KVT_TRUE(none == NULL);
    struct device_export e;
    device_region_export(region, &e);
    KVT_EQ(e.kind, DEVICE_EXPORT_CUDA_IPC);
    KVT_EQ(e.bytes, sizeof bytes);
    KVT_EQ(e.owner_pid, (uint64_t)getpid());
    device_close(device); /* frees it */
}

/* ---- publication: ROW-3, ROW-4, ROW-6 ------------------------------------------------------------ */

#define ROWS 48u
#define ENTRIES 1030u /* odd pages of 4-byte entries: rows start anywhere */

static struct device_region *new_table(struct device *device) {
    return new_region(device, "main-table-r0", ROWS * ENTRIES * 4, 0xff);
}

static bool table_is(const struct device_region *table, const int32_t *model) {
    static int32_t there[ROWS * ENTRIES];
    read_device(there, table, 0, sizeof there);
    return memcmp(there, model, sizeof there) == 0;
}

/* Any slice, single and odd ones too; the caller's values change as soon as submit has returned; neighbours stay what
 * they are. */
static void row_4_slices_of_any_size(void) {
    struct device *device = open_device();
    KVT_NEED(device);
    struct device_region *table = new_table(device);
    static int32_t model[ROWS * ENTRIES], values[8][ENTRIES];
    uint64_t seed = kvt_seed(), ticket = 0;
    KVT_NEED(table);
    memset(model, 0xff, sizeof model);
    KVT_TRUE(table_is(table, model));
    for (int round = 0; round < 300; round++) {
        struct device_table_write writes[8];
        uint32_t n = 1 + kvt_below(&seed, 8);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t count = kvt_below(&seed, 4) ? kvt_below(&seed, 6) : kvt_below(&seed, ENTRIES);
            uint32_t first = kvt_below(&seed, ROWS * ENTRIES - count + 1);
            for (uint32_t k = 0; k < count; k++) model[first + k] = values[i][k] = (int32_t)kvt_below(&seed, 1u << 30);
            writes[i] = (struct device_table_write){
                .region = table, .offset = first * 4ull, .count = count, .values = values[i]
            };
        }
        ticket = submit(device, &(struct device_batch){ .writes = writes, .n_writes = n });
        KVT_EQ(ticket, round + 1);
        memset(values, 0x77, sizeof values);
        if (round % 3 == 0) {
            KVT_NEED(await(device, ticket, 5));
            KVT_NEED(table_is(table, model));
        }
    }
    KVT_NEED(await(device, ticket, 5));
    KVT_TRUE(table_is(table, model));
    check_forms();
    device_close(device);
}

/* A boundary of the whole batch: one slice in every row, then all rows whole. */
static void row_3_many_rows_at_once(void) {
    struct device *device = open_device();
    KVT_NEED(device);
    struct device_region *table = new_table(device), *large = new_region(device, "draft-table-r0", 80 * MIB, 0xff);
    static int32_t model[ROWS * ENTRIES];
    struct device_table_write writes[ROWS];
    KVT_NEED(table && large);
    memset(model, 0xff, sizeof model);
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t r = 0; r < ROWS; r++) {
            uint32_t count = pass ? ENTRIES : 3, first = pass ? 0 : r * 7;
            for (uint32_t k = 0; k < count; k++) model[r * ENTRIES + first + k] = (int32_t)(r * 10000 + k + pass);
            writes[r] = (struct device_table_write){ .region = table,
                                                     .offset = (r * ENTRIES + first) * 4ull,
                                                     .count = count,
                                                     .values = &model[r * ENTRIES + first] };
        }
        KVT_NEED(await(device, submit(device, &(struct device_batch){ .writes = writes, .n_writes = ROWS }), 5));
        KVT_TRUE(table_is(table, model));
    }
    /* Without a mirror of its own yet, last entries of the region. */
    int32_t last[3] = { 1, 2, 3 }, there[6];
    struct device_table_write end = { .region = large, .offset = 80 * MIB - 12, .count = 3, .values = last };
    KVT_NEED(await(device, submit(device, &(struct device_batch){ .writes = &end, .n_writes = 1 }), 5));
    read_device(there, large, 80 * MIB - 24, 24);
    KVT_TRUE(there[2] == -1 && there[3] == 1 && there[4] == 2 && there[5] == 3);
    check_forms();
    device_close(device);
}

/* ---- page copies: ACT-4, CKPT-1 -------------------------------------------------------------------- */

static void apply_copy(uint8_t *bytes, const struct geom_pool_spec *spec, uint32_t n_pages, uint32_t rank, uint32_t src,
                       uint32_t dst) {
    struct geom_piece from, to;
    for (uint32_t i = 0; i < geom_piece_count(spec); i++) {
        geom_piece(spec, n_pages, rank, src, i, &from);
        geom_piece(spec, n_pages, rank, dst, i, &to);
        memcpy(bytes + to.region_offset, bytes + from.region_offset, from.bytes);
    }
}

/* Every payload byte of every page. */
static bool same_payload(const uint8_t *a, const uint8_t *b, const struct geom_pool_spec *spec, uint32_t n_pages,
                         uint32_t rank) {
    struct geom_piece piece;
    for (uint32_t page = 0; page < n_pages; page++)
        for (uint32_t i = 0; i < geom_piece_count(spec); i++) {
            geom_piece(spec, n_pages, rank, page, i, &piece);
            if (memcmp(a + piece.region_offset, b + piece.region_offset, piece.bytes) != 0) {
                printf("  page %u, piece %u differs\n", page, i);
                return false;
            }
        }
    return true;
}

/* A batch of two copies, the second from what the first one makes; the rest of the pool does not change. */
static void copies_match(struct device *device, const struct geom_pool_spec *spec, uint32_t n_pages, uint32_t rank) {
    uint64_t bytes = geom_region_bytes(spec, n_pages), seed = kvt_seed() + bytes;
    uint8_t *model = malloc(bytes), *there = malloc(bytes);
    struct device_region *region = new_region(device, "main-r0", bytes, 0);
    KVT_NEED(model && there && region);
    for (uint64_t i = 0; i < bytes; i++) model[i] = (uint8_t)(kvt_random(&seed) >> 20);
    write_device(region, 0, model, bytes);
    uint32_t a = n_pages - 1, b = 0, c = n_pages / 2;
    struct device_page_copy copies[3] = {
        { .spec = spec, .n_pages = n_pages, .rank = rank, .region = region, .src = a, .dst = b, .columns = 40 },
        { .spec = spec, .n_pages = n_pages, .rank = rank, .region = region, .src = c, .dst = c, .columns = 1 },
        { .spec = spec, .n_pages = n_pages, .rank = rank, .region = region, .src = b, .dst = c, .columns = 64 }
    };
    submit(device, &(struct device_batch){ .copies = &copies[1], .n_copies = 1 });
    copies[1] = copies[2];
    KVT_NEED(await(device, submit(device, &(struct device_batch){ .copies = copies, .n_copies = 2 }), 20));
    apply_copy(model, spec, n_pages, rank, a, b);
    apply_copy(model, spec, n_pages, rank, b, c);
    read_device(there, region, 0, bytes);
    if (!KVT_TRUE(same_payload(there, model, spec, n_pages, rank)))
        printf("  %s order %d arrangement %d layers %u heads %u D %u\n", geom_storage_name(spec->storage), spec->order,
               spec->arrangement, spec->n_layers, spec->n_kv_heads, spec->head_dim);
    device_region_free(region);
    free(model);
    free(there);
}

static void act_4_tail_copies_of_every_layout(void) {
    static const struct {
        uint32_t layers, heads, ranks;
    } shapes[] = { { 1, 1, 1 }, { 3, 2, 1 }, { 2, 4, 1 }, { 5, 4, 2 } };
    struct device *device = open_device();
    KVT_NEED(device);
    for (uint32_t storage = 0; storage < KVD_N_STORAGE; storage++)
        for (uint32_t layout = 0; layout < 4; layout++)
            for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
                struct geom_pool_spec spec = { .storage = (enum kvd_storage)storage,
                                               .order = (enum geom_order)(layout & 1),
                                               .arrangement = (enum geom_arrangement)(layout >> 1),
                                               .n_layers = shapes[s].layers,
                                               .n_kv_heads = shapes[s].heads,
                                               .head_dim = storage ? 256 : 80,
                                               .n_ranks = shapes[s].ranks };
                copies_match(device, &spec, 5, shapes[s].ranks - 1);
                struct geom_pool_spec groups = groups_around(&spec); /* GRP-1 */
                copies_match(device, &groups, 5, shapes[s].ranks - 1);
            }
    check_forms();
    device_close(device);
}

/* Pages that do not fit the bounce buffer, in rows and in one row; and a pool whose layers are farther apart than a 2-D
 * copy reaches. */
static void act_4_large_pages_and_pitches(void) {
    struct device *device = open_device();
    KVT_NEED(device);
    struct geom_pool_spec spec = { .order = GEOM_PAGE_MAJOR,
                                   .arrangement = GEOM_RECORD,
                                   .n_layers = 1,
                                   .n_kv_heads = 2,
                                   .head_dim = 40000,
                                   .n_ranks = 1 };
    copies_match(device, &spec, 3, 0); /* one row of 19.5 MiB */
    spec.n_layers = 5, spec.n_kv_heads = 1, spec.head_dim = 20000;
    copies_match(device, &spec, 3, 0); /* five rows of 4.9 MiB: 3 and 2 */
    spec.n_layers = 7, spec.head_dim = 12000;
    copies_match(device, &spec, 3, 0); /* seven of 2.9 MiB: 5 and 2 */
    cuda_of(device)->pitch_limit = 1000;
    spec.n_layers = 4, spec.n_kv_heads = 2, spec.head_dim = 64;
    for (uint32_t layout = 0; layout < 4; layout++) {
        spec.order = (enum geom_order)(layout & 1);
        spec.arrangement = (enum geom_arrangement)(layout >> 1);
        copies_match(device, &spec, 6, 0);
    }
    check_forms();
    device_close(device);
}

/* Layers 3 GiB apart, beyond the driver's documented pitch; only on a GPU. */
static void act_4_region_of_many_gigabytes(void) {
    if (driver.fake) {
        printf("  SKIPPED: needs a GPU's memory\n");
        return;
    }
    struct device *device = open_device();
    KVT_NEED(device);
    struct geom_pool_spec spec = { .order = GEOM_PAGE_MAJOR,
                                   .arrangement = GEOM_RECORD,
                                   .n_layers = 3,
                                   .n_kv_heads = 4,
                                   .head_dim = 256,
                                   .n_ranks = 1 };
    uint32_t n_pages = 3 * 4096; /* a layer of a page: 256 KiB */
    struct device_region *region = new_region(device, "main-r0", geom_region_bytes(&spec, n_pages), 0x5a);
    KVT_NEED(region);
    uint64_t seed = kvt_seed();
    size_t record = 256 << 10;
    uint8_t *bytes = malloc(record), *there = malloc(record);
    struct device_page_copy copy = {
        .spec = &spec, .n_pages = n_pages, .region = region, .src = n_pages - 2, .dst = 5, .columns = 64
    };
    struct geom_piece piece;
    err[0] = 0;
    for (uint32_t layer = 0; layer < 3; layer++) {
        for (size_t i = 0; i < record; i++) bytes[i] = (uint8_t)(kvt_random(&seed) >> 11);
        geom_piece(&spec, n_pages, 0, copy.src, layer, &piece);
        KVT_EQ(piece.bytes, record);
        write_device(region, piece.region_offset, bytes, record);
    }
    KVT_NEED(await(device, submit(device, &(struct device_batch){ .copies = &copy, .n_copies = 1 }), 10));
    for (uint32_t layer = 0; layer < 3; layer++) {
        geom_piece(&spec, n_pages, 0, copy.src, layer, &piece);
        read_device(bytes, region, piece.region_offset, record);
        geom_piece(&spec, n_pages, 0, copy.dst, layer, &piece);
        read_device(there, region, piece.region_offset, record);
        KVT_EQ_MEM(bytes, there, record);
        read_device(there, region, piece.region_offset + piece.bytes, 64); /* the page after it */
        KVT_EQ(there[0], 0x5a);
    }
    /* What the driver does beyond its documented pitch, for the record: kvd does not rely on it. */
    cuda_of(device)->pitch_limit = UINT64_MAX;
    copy.dst = 9;
    bool exact = await(device, submit(device, &(struct device_batch){ .copies = &copy, .n_copies = 1 }), 10);
    for (uint32_t layer = 0; exact && layer < 3; layer++) {
        geom_piece(&spec, n_pages, 0, copy.src, layer, &piece);
        read_device(bytes, region, piece.region_offset, record);
        geom_piece(&spec, n_pages, 0, copy.dst, layer, &piece);
        read_device(there, region, piece.region_offset, record);
        exact = memcmp(bytes, there, record) == 0;
    }
    printf("  a pitch of 3 GiB: %s\n", exact ? "exact" : err[0] ? err : "wrong bytes");
    free(bytes);
    free(there);
    device_close(device);
}

/* ---- other processes: SRV-4 -------------------------------------------------------------------------- */

struct order {
    struct device_export exported;
    uint64_t bytes_more;
};
struct report {
    int rc;
    uint8_t first, last;
    bool shared, kept_apart;
    char text[400];
};

/* The consumer's side, in a process that has never seen the owner's context: argv[1] says what to try. */
static int consumer(const char *what) {
    struct order order;
    struct report report = { .rc = -1 };
    struct device_import *a = NULL, *b = NULL;
    CUcontext context;
    uint8_t uuid[16];
    if (read(0, &order, sizeof order) != sizeof order || !driver_load(&driver)) return 2;
    memcpy(uuid, order.exported.uuid, 16);
    if (strcmp(what, "no-context") != 0) {
        DRIVER_OK(driver.cuDevicePrimaryCtxRetain(&context, 0));
        DRIVER_OK(driver.cuCtxSetCurrent(context));
    }
    if (strcmp(what, "wrong-uuid") == 0) uuid[0] ^= 1;
    if (strcmp(what, "wrong-device") == 0) order.exported.uuid[0] ^= 1;
    if (strcmp(what, "no-handle") == 0) memset(order.exported.ipc_handle, 0, 64);
    if (strcmp(what, "too-long") == 0) order.exported.bytes += order.bytes_more;
    order.exported.owner_instance = 7;
    report.rc = device_import(&order.exported, uuid, false, &a, report.text, sizeof report.text);
    if (!report.rc) {
        report.shared = !device_import(&order.exported, NULL, true, &b, NULL, 0) &&
                        device_import_address(a) == device_import_address(b);
        device_unimport(a); /* b still holds the mapping */
        CUdeviceptr base = (CUdeviceptr)(uintptr_t)device_import_address(b);
        DRIVER_OK(driver.cuMemcpyDtoH(&report.first, base, 1));
        DRIVER_OK(driver.cuMemcpyDtoH(&report.last, base + order.exported.bytes - 1, 1));
        uint8_t mine = 0x99;
        DRIVER_OK(driver.cuMemcpyHtoD(base + 1, &mine, 1));
        /* Another owner whose region has the same handle: not what this one left here. */
        order.exported.owner_instance = 8;
        report.kept_apart = device_import(&order.exported, NULL, false, &a, report.text, sizeof report.text) == -EBUSY;
        device_unimport(b);
        report.rc = device_import(&order.exported, uuid, false, &a, report.text, sizeof report.text); /* once more */
        if (!report.rc) device_unimport(a);
    }
    return write(1, &report, sizeof report) == sizeof report ? 0 : 2;
}

/* The owner's side: makes a region, says so on fd 1, and stays until its standard input ends. */
static int owner(void) {
    struct device *device = NULL;
    struct device_region *region = NULL;
    struct device_config config = { .kind = DEVICE_CUDA };
    struct order order = { .bytes_more = 0 };
    char c;
    if (device_open(&config, &device, err, sizeof err) ||
        device_region_new(device, "x", 4 * MIB, 0x42, &region, err, sizeof err))
        return 2;
    device_region_export(region, &order.exported);
    if (write(1, &order, sizeof order) != sizeof order) return 2;
    while (read(0, &c, 1) > 0) {
    }
    return 0;
}

struct child {
    pid_t pid;
    int in, out;
};

static bool child_start(struct child *child, const char *mode, const char *what) {
    int in[2], out[2];
    if (pipe(in) || pipe(out)) return false;
    fflush(stdout);
    child->pid = fork();
    if (child->pid == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        for (int fd = 3; fd < 256; fd++) close(fd);
        execl("/proc/self/exe", "test_device_cuda", mode, what, (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    child->in = in[1];
    child->out = out[0];
    return child->pid > 0;
}

static int child_end(struct child *child, int signal) {
    if (signal) kill(child->pid, signal);
    close(child->in);
    close(child->out);
    return kvt_wait(child->pid);
}

static struct report consume(const struct order *order, const char *what) {
    struct report report = { .rc = -1 };
    struct child child;
    if (!KVT_TRUE(child_start(&child, "--consumer", what))) return report;
    KVT_EQ(write(child.in, order, sizeof *order), sizeof *order);
    KVT_EQ(read(child.out, &report, sizeof report), sizeof report);
    KVT_EQ_I(child_end(&child, 0), 0);
    if (report.rc) printf("  %s: %s\n", what, report.text);
    return report;
}

static void srv_4_imports_and_refusals(void) {
    struct device *device = open_device();
    KVT_NEED(device);
    struct device_region *region = new_region(device, "x", 4 * MIB - 8, 0x42);
    struct order order = { .bytes_more = 4 * MIB };
    struct device_import *own = NULL;
    uint8_t there[2];
    KVT_NEED(region);
    device_region_export(region, &order.exported);
    struct report ok = consume(&order, "ok");
    KVT_TRUE(ok.rc == 0 && ok.shared && ok.kept_apart);
    KVT_TRUE(ok.first == 0x42 && ok.last == 0x42);
    read_device(there, region, 0, 2);
    KVT_EQ(there[1], 0x99); /* the consumer's store */
    KVT_EQ_I(consume(&order, "no-context").rc, -EINVAL);
    KVT_EQ_I(consume(&order, "wrong-uuid").rc, -ENXIO);
    KVT_EQ_I(consume(&order, "wrong-device").rc, -ENXIO);
    KVT_EQ_I(consume(&order, "no-handle").rc, -EACCES);
    KVT_EQ_I(consume(&order, "too-long").rc, -EMSGSIZE);
    /* In the owner itself. */
    use_context(device);
    KVT_OK(device_import(&order.exported, order.exported.uuid, false, &own, err, sizeof err));
    KVT_TRUE(own && device_import_address(own) == device_region_address(region));
    device_unimport(own);
    /* The same process number elsewhere: an address that is not ours is never used. */
    order.exported.ipc_handle[20] ^= 0x55;
    own = NULL;
    KVT_TRUE(device_import(&order.exported, NULL, false, &own, err, sizeof err) < 0 && !own);
    printf("  forged: %s\n", err);
    DRIVER_OK(driver.cuCtxSetCurrent(NULL));
    device_close(device);
}

static void srv_4_dead_owner(void) {
    struct child child;
    struct order order;
    KVT_NEED(child_start(&child, "--owner", NULL));
    KVT_EQ(read(child.out, &order, sizeof order), sizeof order);
    KVT_EQ_I(consume(&order, "ok").rc, 0);
    KVT_EQ_I(child_end(&child, SIGKILL), -SIGKILL);
    struct report report = consume(&order, "dead owner");
    KVT_EQ_I(report.rc, -ENOENT);
    KVT_HAS(report.text, "PID namespace");
}

/* ---- a GPU that does not answer: SRV-7 ------------------------------------------------------------------ */

static void srv_7_wedged_device_blocks_nobody(void) {
    struct device *device = open_device();
    KVT_NEED(device);
    struct device_region *table = new_table(device);
    static int32_t model[ROWS * ENTRIES];
    uint64_t ticket = 0, done = 99, left;
    KVT_NEED(table);
    memset(model, 0xff, sizeof model);
    wedge(device, cuda_of(device)->stream);
    double begin = now_ms();
    for (uint32_t i = 0; i < 1000; i++) {
        int32_t value = (int32_t)i;
        model[i * 7] = value;
        struct device_table_write write = { .region = table, .offset = i * 28, .count = 1, .values = &value };
        ticket = submit(device, &(struct device_batch){ .writes = &write, .n_writes = 1 });
        KVT_OK(device_poll(device, &done, err, sizeof err));
        KVT_EQ(done, 0);
    }
    KVT_TRUE(now_ms() - begin < 1000);
    KVT_FALSE(await(device, 1, 0.3));
    KVT_OK(device_free_bytes(device, &left, err, sizeof err));
    unwedge();
    KVT_TRUE(await(device, ticket, 5));
    KVT_TRUE(table_is(table, model));
    device_close(device);
}

/* In a process of its own: closing must not wait for the GPU, and neither may the end of the process. */
static int close_wedged(void) {
    struct device *device = NULL;
    struct device_region *table = NULL;
    struct device_config config = { .kind = DEVICE_CUDA };
    int32_t value = 5;
    uint64_t ticket;
    bool inline_done;
    if (!driver_load(&driver) || device_open(&config, &device, err, sizeof err) ||
        device_region_new(device, "t", MIB, 0xff, &table, err, sizeof err))
        return 2;
    wedge(device, cuda_of(device)->stream);
    struct device_table_write write = { .region = table, .count = 1, .values = &value };
    if (device_submit(device, &(struct device_batch){ .writes = &write, .n_writes = 1 }, &ticket, &inline_done, err,
                      sizeof err))
        return 3;
    double begin = now_ms();
    device_close(device);
    return now_ms() - begin < 8000 ? 0 : 4;
}

static void closes_in_time(const char *mode) {
    struct child child;
    struct pollfd p;
    KVT_NEED(child_start(&child, mode, NULL));
    p = (struct pollfd){ .fd = child.out, .events = POLLIN };
    KVT_EQ(poll(&p, 1, 30000), 1); /* end of file: it is gone */
    KVT_EQ_I(child_end(&child, p.revents ? 0 : SIGKILL), 0);
}

static void srv_7_closing_a_wedged_device(void) { closes_in_time("--close-wedged"); }

/* In a process of its own: the thread is inside the driver when the device is closed, and comes out of it later. The
 * event fd that it writes to then must not have become somebody else's. */
static int close_stuck(void) {
    struct device *device = NULL;
    struct device_region *table = NULL;
    struct device_config config = { .kind = DEVICE_CUDA };
    int32_t value = 5;
    uint64_t ticket;
    bool inline_done;
    if (!driver_load(&driver) || device_open(&config, &device, err, sizeof err) ||
        device_region_new(device, "t", MIB, 0xff, &table, err, sizeof err))
        return 2;
    struct pollfd p = { .fd = device_event_fd(device), .events = POLLIN };
    struct device_table_write write = { .region = table, .count = 1, .values = &value };
    atomic_store(&driver.fake->stuck, 1);
    if (device_submit(device, &(struct device_batch){ .writes = &write, .n_writes = 1 }, &ticket, &inline_done, err,
                      sizeof err))
        return 3;
    while (!atomic_load(&driver.fake->callers)) usleep(100);
    double begin = now_ms();
    device_close(device);
    if (now_ms() - begin > 8000) return 4;
    if (fcntl(p.fd, F_GETFD) < 0) return 5;
    atomic_store(&driver.fake->stuck, 0);
    return poll(&p, 1, 10000) == 1 && p.revents == POLLIN ? 0 : 6; /* it did write */
}

static void srv_7_closing_a_device_whose_driver_hangs(void) {
    if (!driver.fake) {
        printf("  SKIPPED: needs the stand-in driver\n");
        return;
    }
    closes_in_time("--close-stuck");
}

/* The clock is read before the word that the device is being closed, which may come between the two: that alone is no
 * reason to give a GPU up. */
static void srv_7_closing_gives_the_gpu_its_time(void) {
    struct cuda_device *d = calloc(1, sizeof *d);
    KVT_NEED(d);
    atomic_store(&d->stop_ns, cuda_now_ns() + UINT64_C(1000000000));
    atomic_store(&d->stop, true);
    KVT_EQ_I(cuda_pause(d, cuda_now_ns(), 0, err, sizeof err), 0);
    atomic_store(&d->stop_ns, cuda_now_ns() - UINT64_C(3000000000));
    KVT_EQ_I(cuda_pause(d, cuda_now_ns(), 0, err, sizeof err), -ETIMEDOUT);
    free(d);
}

static void failed_call_loses_the_device(void) {
    if (!driver.fake) {
        printf("  SKIPPED: needs the stand-in driver\n");
        return;
    }
    struct device *device = open_device();
    KVT_NEED(device);
    struct device_region *table = new_table(device), *other = NULL;
    int32_t value = 1;
    uint64_t ticket = 0, done;
    bool inline_done;
    KVT_NEED(table);
    struct device_table_write write = { .region = table, .count = 1, .values = &value };
    struct device_batch batch = { .writes = &write, .n_writes = 1 };
    atomic_store(&driver.fake->fail_copies, 1);
    submit(device, &batch);
    struct pollfd p = { .fd = device_event_fd(device), .events = POLLIN };
    KVT_EQ(poll(&p, 1, 5000), 1); /* loss wakes the owner, too */
    KVT_EQ_I(device_poll(device, &done, err, sizeof err), -EIO);
    KVT_HAS(err, "cuMemcpy2DAsync");
    KVT_HAS(err, "ILLEGAL_ADDRESS");
    KVT_EQ_I(device_submit(device, &batch, &ticket, &inline_done, err, sizeof err), -EIO);
    KVT_EQ_I(device_region_new(device, "y", MIB, 0, &other, err, sizeof err), -EIO);
    atomic_store(&driver.fake->fail_copies, 0);
    KVT_EQ_I(device_submit(device, &batch, &ticket, &inline_done, err, sizeof err), -EIO); /* from then on */
    device_close(device);
}

static void fail(const char *call, int after, CUresult code) {
    atomic_store(&driver.fake->fail_after, after);
    atomic_store(&driver.fake->fail_code, (int)code);
    atomic_store(&driver.fake->fail_call, call);
}

/* What was enqueued before the call that failed still copies: the region, its mirror and the bounce buffer stay until
 * it has ended, in memory of either kind. */
static void failed_call_in_the_middle_of_a_batch(void) {
    struct geom_pool_spec spec = {
        .storage = KVD_STORAGE_INT8, .n_layers = 2, .n_kv_heads = 2, .head_dim = 256, .n_ranks = 1
    };
    if (!driver.fake) {
        printf("  SKIPPED: needs the stand-in driver\n");
        return;
    }
    static const int good_copies[] = { 0, 1, 5, 9, 10 }; /* of 4 to the host, 4 from it, 3 of the table */
    for (int i = 0; i < 2 * 6; i++) {
        struct device *device = open_device_as(i % 2);
        KVT_NEED(device);
        struct device_region *table = new_region(device, "table", MIB, 0xff),
                             *pool = new_region(device, "main-r0", geom_region_bytes(&spec, 4), 0);
        int32_t value = 1;
        uint64_t ticket, done;
        bool inline_done;
        KVT_NEED(table && pool);
        struct device_table_write writes[3]; /* too far apart to be merged */
        for (uint32_t k = 0; k < 3; k++)
            writes[k] =
                (struct device_table_write){ .region = table, .offset = k * 200000, .count = 1, .values = &value };
        struct device_page_copy copy = { .spec = &spec, .n_pages = 4, .region = pool, .dst = 2, .columns = 64 };
        struct device_batch batch = { .copies = &copy, .n_copies = 1, .writes = writes, .n_writes = 3 };
        if (i / 2 < 5) fail("cuMemcpy2DAsync", good_copies[i / 2], CUDA_ERROR_INVALID_VALUE);
        else fail("cuEventRecord", 0, CUDA_ERROR_INVALID_VALUE);
        KVT_OK(device_submit(device, &batch, &ticket, &inline_done, err, sizeof err));
        struct pollfd p = { .fd = device_event_fd(device), .events = POLLIN };
        KVT_EQ(poll(&p, 1, 5000), 1);
        KVT_EQ_I(device_poll(device, &done, err, sizeof err), -EIO);
        fail(NULL, 0, CUDA_SUCCESS);
        device_region_free(table);
        device_region_free(pool);
        device_close(device);
    }
    check_forms();
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(identity_and_free_bytes),
                                             KVT_CASE(regions_are_filled_and_refused),
                                             KVT_CASE(row_4_slices_of_any_size),
                                             KVT_CASE(row_3_many_rows_at_once),
                                             KVT_CASE(act_4_tail_copies_of_every_layout),
                                             KVT_CASE(act_4_large_pages_and_pitches),
                                             KVT_CASE(act_4_region_of_many_gigabytes),
                                             KVT_CASE(srv_4_imports_and_refusals),
                                             KVT_CASE(srv_4_dead_owner),
                                             KVT_CASE(srv_7_wedged_device_blocks_nobody),
                                             KVT_CASE(srv_7_closing_a_wedged_device),
                                             KVT_CASE(srv_7_closing_a_device_whose_driver_hangs),
                                             KVT_CASE(srv_7_closing_gives_the_gpu_its_time),
                                             KVT_CASE(failed_call_loses_the_device),
                                             KVT_CASE(failed_call_in_the_middle_of_a_batch),
                                             { 0 } };
    if (argc > 1 && strcmp(argv[1], "--consumer") == 0) return consumer(argv[2]);
    if (argc > 1 && strcmp(argv[1], "--owner") == 0) return owner();
    if (argc > 1 && strcmp(argv[1], "--close-wedged") == 0) return close_wedged();
    if (argc > 1 && strcmp(argv[1], "--close-stuck") == 0) return close_stuck();
    if (!driver_load(&driver)) {
        printf("SKIPPED: no CUDA driver or no GPU here\n");
        return 77;
    }
    return kvt_main("device cuda", cases, argc, argv);
}
