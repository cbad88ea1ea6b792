/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA device: pages to and from pinned memory. Runs on a GPU or on the stand-in driver, which also refuses copies in a
 * form that would wait for another process's time slice. Skips (77) where there is neither.
 */
#include <errno.h>
#include <sys/mman.h>

#include "device_fixture.h"
#include "groups_around.h"

#define PAGES 9u

/* Plain forms, one call a copy: what the counts of these tests are of. As shipped: host_2_every_form. */
static struct cuda_move_tuning shipped;
static const struct cuda_move_tuning defaults = {
    .streams = 2, .near = CUDA_FORM_2D, .far = CUDA_FORM_ROWS, .flight_bytes = 4 * MIB, .depth_bytes = 32 * MIB
};

/* A pool on a device, random in every byte, and pinned memory of n_host packed pages. */
struct rig {
    struct device *device;
    struct device_region *region;
    struct geom_pool_spec spec;
    uint32_t rank, n_pages, n_host;
    uint64_t region_bytes, packed, host_bytes;
    uint8_t *model, *host; /* what the region holds; the pinned memory */
};

static void fill(uint8_t *to, uint64_t bytes, uint64_t *seed) {
    uint64_t i = 0, x;
    for (; i + 8 <= bytes; i += 8) {
        x = kvt_random(seed);
        memcpy(to + i, &x, 8);
    }
    for (; i < bytes; i++) to[i] = (uint8_t)kvt_random(seed);
}

/* On a device that is open; rig_down leaves it so. */
static bool rig_up(struct rig *rig, struct device *device, const struct geom_pool_spec *spec, uint32_t rank,
                   uint32_t n_pages, uint32_t n_host, uint64_t *seed) {
    *rig = (struct rig){ .device = device, .spec = *spec, .rank = rank, .n_pages = n_pages, .n_host = n_host };
    rig->region_bytes = geom_region_bytes(spec, n_pages);
    rig->packed = geom_packed_bytes(spec);
    rig->host_bytes = (n_host * rig->packed + 4095) / 4096 * 4096;
    rig->region = device ? new_region(device, "main-r0", rig->region_bytes, 0) : NULL;
    rig->model = malloc(rig->region_bytes);
    rig->host = mmap(NULL, rig->host_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!KVT_TRUE(rig->region && rig->model && rig->host != MAP_FAILED)) return false;
    if (!KVT_OK(device_pin(device, rig->host, rig->host_bytes, err, sizeof err))) return printf("  %s\n", err), false;
    fill(rig->model, rig->region_bytes, seed);
    fill(rig->host, rig->host_bytes, seed);
    write_device(rig->region, 0, rig->model, rig->region_bytes);
    return true;
}

static void rig_down(struct rig *rig) {
    device_unpin(rig->device, rig->host);
    device_region_free(rig->region);
    munmap(rig->host, rig->host_bytes);
    free(rig->model);
}

static uint64_t start(struct rig *rig, enum device_direction direction, const struct device_move *moves, uint32_t n) {
    struct device_moves all = { .spec = &rig->spec,
                                .n_pages = rig->n_pages,
                                .rank = rig->rank,
                                .region = rig->region,
                                .direction = direction,
                                .moves = moves,
                                .n = n };
    uint64_t ticket = 0;
    bool inline_done = true;
    if (!KVT_OK(device_move(rig->device, &all, &ticket, &inline_done, err, sizeof err))) printf("  %s\n", err);
    KVT_FALSE(inline_done);
    return ticket;
}

static uint64_t done_of(struct device *device, enum device_direction direction) {
    uint64_t done = UINT64_MAX;
    KVT_OK(device_poll_moves(device, direction, &done, err, sizeof err));
    return done;
}

static bool landed(struct device *device, enum device_direction direction, uint64_t ticket) {
    uint64_t done = 0, count;
    for (int i = 0; i < 100 && !device_poll_moves(device, direction, &done, err, sizeof err) && done < ticket; i++) {
        struct pollfd p = { .fd = device_event_fd(device), .events = POLLIN };
        if (poll(&p, 1, 100) == 1) (void)!read(p.fd, &count, sizeof count);
    }
    return done >= ticket;
}

static bool move(struct rig *rig, enum device_direction direction, const struct device_move *moves, uint32_t n) {
    return KVT_TRUE(landed(rig->device, direction, start(rig, direction, moves, n)));
}

/* What HOST-2 says of a page of `region`, from planes and addresses. */
static void pack(const struct rig *rig, const uint8_t *region, uint32_t page, uint8_t *to) {
    uint32_t count = geom_plane_count(&rig->spec);
    memset(to, 0, rig->packed);
    for (uint32_t i = 0; i < count; i++) {
        struct geom_plane p;
        geom_plane_at(&rig->spec, rig->n_pages, rig->rank, i, &p);
        bool page_major = p.order == GEOM_PAGE_MAJOR;
        uint64_t page_stride = page_major ? p.nb3 : p.nb2, head_stride = page_major ? p.nb2 : p.nb3;
        for (uint32_t h = 0; h < p.n_heads; h++)
            memcpy(to + p.packed_offset + h * p.head_bytes, region + p.offset + page * page_stride + h * head_stride,
                   p.head_bytes);
    }
}

static void put_pieces(const struct rig *rig, uint8_t *region, uint32_t page, const uint8_t *packed) {
    for (uint32_t i = 0; i < geom_piece_count(&rig->spec); i++) {
        struct geom_piece piece;
        geom_piece(&rig->spec, rig->n_pages, rig->rank, page, i, &piece);
        memcpy(region + piece.region_offset, packed + piece.packed_offset, piece.bytes);
    }
}

/* ---- bytes: HOST-2 -------------------------------------------------------------------------------------- */

/* Out: the arena holds the packed pages and nothing else of it changes. In again, to other pages: the region holds them
 * there and nothing else of it changes. */
static bool there_and_back(struct rig *rig, uint64_t *seed) {
    uint8_t *arena = malloc(rig->host_bytes), *region = malloc(rig->region_bytes);
    uint64_t p = rig->packed;
    struct device_move moves[] = { { 4, rig->host },         { 5, rig->host + p },     { 6, rig->host + 2 * p },
                                   { 1, rig->host + 8 * p }, { 0, rig->host + 4 * p }, { 8, rig->host + 6 * p } };
    memcpy(arena, rig->host, rig->host_bytes);
    for (uint32_t m = 0; m < 6; m++) pack(rig, rig->model, moves[m].page, arena + (moves[m].host - rig->host));
    bool same = move(rig, DEVICE_TO_HOST, moves, 6) && KVT_TRUE(memcmp(rig->host, arena, rig->host_bytes) == 0);
    fill(rig->model, rig->region_bytes, seed);
    write_device(rig->region, 0, rig->model, rig->region_bytes);
    static const uint32_t others[6] = { 2, 3, 4, 8, 7, 0 };
    for (uint32_t m = 0; m < 6; m++) {
        moves[m].page = others[m];
        put_pieces(rig, rig->model, others[m], moves[m].host);
    }
    same = same && move(rig, HOST_TO_DEVICE, moves, 6);
    read_device(region, rig->region, 0, rig->region_bytes);
    same = same && KVT_TRUE(memcmp(region, rig->model, rig->region_bytes) == 0);
    free(arena);
    free(region);
    return same;
}

static void every_layout(struct device *device, uint32_t variants, uint64_t *seed) {
    static const struct { uint32_t layers, heads; } shapes[] = { { 3, 4 }, { 1, 2 }, { 5, 2 } };
    for (uint32_t i = 0; i < KVD_N_STORAGE * 4 * variants * 3; i++) {
        uint32_t storage = i % KVD_N_STORAGE, layout = i / KVD_N_STORAGE % 4,
                 shape = i / (KVD_N_STORAGE * 4) % variants, round = i / (KVD_N_STORAGE * 4 * variants),
                 ranks = 1 + (round > 0);
        struct geom_pool_spec spec = { .storage = (enum kvd_storage)storage,
                                       .order = (enum geom_order)(layout & 1),
                                       .arrangement = (enum geom_arrangement)(layout >> 1),
                                       .n_layers = shapes[shape].layers,
                                       .n_kv_heads = shapes[shape].heads,
                                       .head_dim = storage ? 256 : 36,
                                       .n_ranks = ranks };
        struct rig rig;
        if (round == 2) spec = groups_around(&spec); /* GRP-1 */
        if (!rig_up(&rig, device, &spec, ranks - 1, PAGES, PAGES, seed)) return;
        bool same = there_and_back(&rig, seed);
        rig_down(&rig);
        if (same) continue;
        printf("  %s order %u arrangement %u layers %u heads %u ranks %u\n", geom_storage_name(spec.storage),
               spec.order, spec.arrangement, spec.n_layers, spec.n_kv_heads, ranks);
        return;
    }
}

static void host_2_packed_bytes_of_every_layout(void) {
    uint64_t seed = kvt_seed();
    struct device *device = open_device();
    KVT_NEED(device);
    every_layout(device, 3, &seed);
    device_close(device);
    check_forms();
}

/* Every form of copy, strips that do not fit a flight, one and several streams; layers within the pitch of 2-D copies
 * and beyond it. */
static void host_2_every_form(void) {
    static const struct {
        enum cuda_form form;
        uint32_t streams;
        uint64_t flight_bytes;
    } ways[] = { { CUDA_FORM_2D, 1, 20000 },         { CUDA_FORM_2D, 4, 512 },
                 { CUDA_FORM_ROWS, 2, 100000 },      { CUDA_FORM_BATCH, 1, 4 * MIB },
                 { CUDA_FORM_BATCH, 2, 65536 },      { CUDA_FORM_BATCH_ROWS, 1, 4 * MIB },
                 { CUDA_FORM_BATCH_ROWS, 3, 40000 }, { CUDA_FORM_BATCH_ROWS, 0, 0 } /* as shipped */ };
    uint64_t seed = kvt_seed();
    for (size_t i = 0; i < 2 * sizeof ways / sizeof *ways; i++) {
        size_t w = i / 2;
        bool far = i % 2;
        cuda_move_tuning = (struct cuda_move_tuning){ .streams = ways[w].streams,
                                                      .near = far ? CUDA_FORM_2D : ways[w].form,
                                                      .far = far ? ways[w].form : CUDA_FORM_2D,
                                                      .flight_bytes = ways[w].flight_bytes,
                                                      .depth_bytes = 4 * ways[w].flight_bytes };
        if (!ways[w].streams) cuda_move_tuning = shipped;
        if (!ways[w].streams && !far) cuda_move_tuning.wide_bytes = 64 << 10; /* small pages here */
        if (far && ways[w].form == CUDA_FORM_2D) continue;
        struct device *device = open_device();
        KVT_NEED(device);
        uint64_t batched = driver.fake ? atomic_load(&driver.fake->batched) : 0;
        if (far) cuda_of(device)->pitch_limit = 1000;
        every_layout(device, 1, &seed);
        if (driver.fake && ways[w].form >= CUDA_FORM_BATCH && CUDA_VERSION >= 13000)
            KVT_TRUE(atomic_load(&driver.fake->batched) > batched);
        device_close(device);
    }
    cuda_move_tuning = defaults;
    check_forms();
}

/* Pages of megabytes, through several flights and past the depth; a state image, which is one row. */
static void host_2_large_pages(void) {
    uint64_t seed = kvt_seed(), stride = 0;
    struct device *device = open_device();
    struct geom_pool_spec spec = { .storage = KVD_STORAGE_INT8,
                                   .arrangement = GEOM_RECORD,
                                   .n_layers = 16,
                                   .n_kv_heads = 4,
                                   .head_dim = 256,
                                   .n_ranks = 1 };
    struct rig rig;
    KVT_NEED(device);
    cuda_of(device)->movers[0].tuning.depth_bytes = cuda_of(device)->movers[1].tuning.depth_bytes = 5 * MIB;
    KVT_NEED(rig_up(&rig, device, &spec, 0, PAGES, PAGES, &seed));
    KVT_TRUE(there_and_back(&rig, &seed));
    rig_down(&rig);
    KVT_EQ_I(geom_state(9 * MIB + 100, &spec, &stride, err, sizeof err), 0);
    KVT_NEED(rig_up(&rig, device, &spec, 0, PAGES, PAGES, &seed));
    KVT_EQ(rig.packed, stride);
    KVT_TRUE(there_and_back(&rig, &seed));
    rig_down(&rig);
    device_close(device);
    check_forms();
}

/* ---- runs: HOST-6 --------------------------------------------------------------------------------------- */

static uint64_t copies_of(struct rig *rig, enum device_direction way, const struct device_move *moves, uint32_t n) {
    struct device_move_stats before, after;
    device_get_move_stats(rig->device, way, &before);
    if (!move(rig, way, moves, n)) return 0;
    device_get_move_stats(rig->device, way, &after);
    KVT_EQ(after.bytes - before.bytes, n * geom_rank_page_bytes(&rig->spec));
    return after.operations - before.operations;
}

static void host_6_runs_are_merged(void) {
    static const struct {
        enum geom_order order;
        enum geom_arrangement arrangement;
        enum kvd_storage storage;
        uint32_t layers, heads, one, many; /* copies of a page, of a run of 40 */
    } cases[] = {
        { GEOM_PAGE_MAJOR, GEOM_RECORD, KVD_STORAGE_K8V4, 6, 2, 1, 6 },
        { GEOM_PAGE_MAJOR, GEOM_DENSE, KVD_STORAGE_K8V4, 6, 2, 4, 24 },
        { GEOM_HEAD_MAJOR, GEOM_DENSE, KVD_STORAGE_BF16, 6, 2, 4, 24 },
        { GEOM_HEAD_MAJOR, GEOM_RECORD, KVD_STORAGE_BF16, 2, 8, 4, 32 },
        { GEOM_PAGE_MAJOR, GEOM_RECORD, KVD_STORAGE_BF16, 64, 1, 1, 40 }, /* a page is fewer than a layer of the run */
    };
    uint64_t seed = kvt_seed();
    struct device *device = open_device();
    KVT_NEED(device);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct geom_pool_spec spec = { .storage = cases[c].storage,
                                       .order = cases[c].order,
                                       .arrangement = cases[c].arrangement,
                                       .n_layers = cases[c].layers,
                                       .n_kv_heads = cases[c].heads,
                                       .head_dim = cases[c].storage ? 256 : 16,
                                       .n_ranks = 1 };
        struct rig rig;
        struct device_move run[40], apart[40];
        KVT_NEED(rig_up(&rig, device, &spec, 0, 60, 60, &seed));
        for (uint32_t i = 0; i < 40; i++) {
            run[i] = (struct device_move){ 7 + i, rig.host + (20 + i) * rig.packed };
            apart[i] = (struct device_move){ 46 - i, rig.host + i * rig.packed };
        }
        for (int way = 0; way < 2; way++) {
            KVT_EQ(copies_of(&rig, (enum device_direction)way, run, 1), cases[c].one);
            KVT_EQ(copies_of(&rig, (enum device_direction)way, run, 40), cases[c].many);
            KVT_EQ(copies_of(&rig, (enum device_direction)way, apart, 40), 40 * cases[c].one);
            KVT_EQ(copies_of(&rig, (enum device_direction)way, NULL, 0), 0);
        }
        rig_down(&rig);
    }
    device_close(device);
    check_forms();
}

/* ---- order, depth, the other queues --------------------------------------------------------------------- */

static const struct geom_pool_spec plain = { .storage = KVD_STORAGE_INT8,
                                             .order = GEOM_PAGE_MAJOR,
                                             .arrangement = GEOM_RECORD,
                                             .n_layers = 4,
                                             .n_kv_heads = 2,
                                             .head_dim = 256,
                                             .n_ranks = 1 };

/* Both directions at once, at random, with publications beside them: every ticket comes, in order, with its bytes. */
static void both_directions_at_once(void) {
    enum { N = 64 };
    uint64_t seed = kvt_seed(), last[2] = { 0, 0 }, seen[2] = { 0, 0 };
    struct device *device = open_device();
    struct rig rig;
    KVT_NEED(device && rig_up(&rig, device, &plain, 0, N, N, &seed));
    struct device_region *table = new_region(device, "table", MIB, 0xff);
    uint8_t *arena = malloc(rig.host_bytes), *region = malloc(rig.region_bytes);
    KVT_NEED(table && arena && region);
    memcpy(arena, rig.host, rig.host_bytes);
    /* The lower half of pages and places goes out, the upper half comes in. */
    for (int32_t round = 0; round < 200; round++) {
        for (int way = 0; way < 2; way++) {
            struct device_move moves[8];
            uint32_t n = 1 + kvt_below(&seed, 8), base = way ? N / 2 : 0;
            uint32_t page = kvt_below(&seed, N / 2 - n), place = kvt_below(&seed, N / 2 - n);
            for (uint32_t i = 0; i < n; i++) {
                moves[i] = (struct device_move){ base + page + i, rig.host + (base + place + i) * rig.packed };
                if (way) put_pieces(&rig, rig.model, moves[i].page, moves[i].host);
                else pack(&rig, rig.model, moves[i].page, arena + (moves[i].host - rig.host));
            }
            KVT_EQ(start(&rig, (enum device_direction)way, moves, n), ++last[way]);
            uint64_t done = done_of(device, (enum device_direction)way);
            KVT_TRUE(done >= seen[way] && done <= last[way]);
            seen[way] = done;
        }
        struct device_table_write write = {
            .region = table, .offset = 4u * (uint32_t)round, .count = 1, .values = &round
        };
        submit(device, &(struct device_batch){ .writes = &write, .n_writes = 1 });
    }
    KVT_TRUE(landed(device, DEVICE_TO_HOST, last[0]) && landed(device, HOST_TO_DEVICE, last[1]) &&
             await(device, 200, 10));
    KVT_TRUE(memcmp(rig.host, arena, N / 2 * rig.packed) == 0);
    read_device(region, rig.region, 0, rig.region_bytes);
    KVT_TRUE(memcmp(region, rig.model, rig.region_bytes) == 0);
    free(arena);
    free(region);
    rig_down(&rig);
    device_close(device);
    check_forms();
}

static void hold(const struct cuda_mover *m, uint32_t first, uint32_t n) {
    for (uint32_t i = 0; i < 4; i++) atomic_store(&driver.fake->held[i], i < n ? m->streams[first + i] : NULL);
}

/* A flight that is done waits for the one before it; nothing waits for a direction that stands still; not more is in
 * the air than the depth allows. */
static void standing_direction(void) {
    if (!driver.fake) {
        printf("  SKIPPED: needs the stand-in driver\n");
        return;
    }
    enum { N = 64 };
    uint64_t seed = kvt_seed();
    cuda_move_tuning.depth_bytes = 2 * MIB;
    struct device *device = open_device();
    cuda_move_tuning = defaults;
    struct rig rig;
    struct device_move moves[N];
    KVT_NEED(device && rig_up(&rig, device, &plain, 0, N, N, &seed));
    struct device_region *table = new_region(device, "table", MIB, 0xff);
    for (uint32_t i = 0; i < N; i++) moves[i] = (struct device_move){ N - 1 - i, rig.host + i * rig.packed };
    struct cuda_mover *out = &cuda_of(device)->movers[DEVICE_TO_HOST];
    hold(out, 0, 1);
    uint64_t copies = atomic_load(&driver.fake->copies);
    uint64_t first = start(&rig, DEVICE_TO_HOST, moves, 1), second = start(&rig, DEVICE_TO_HOST, moves + 1, 1);
    /* The second one's bytes come; its ticket must not. */
    uint8_t *page = malloc(rig.packed);
    pack(&rig, rig.model, moves[1].page, page);
    while (atomic_load(&driver.fake->copies) < copies + 2) usleep(100);
    DRIVER_OK(driver.cuStreamSynchronize(out->streams[1]));
    KVT_EQ_MEM(moves[1].host, page, rig.packed);
    KVT_TRUE(memcmp(moves[0].host, page, rig.packed) != 0);
    KVT_EQ(done_of(device, DEVICE_TO_HOST), 0);
    hold(out, 0, 2);
    for (int i = 0; i < 20; i++) start(&rig, DEVICE_TO_HOST, moves, N);
    /* What stands there holds up neither the other direction nor publication, and only so much of it is enqueued. */
    int32_t value = 7, there = 0;
    struct device_table_write write = { .region = table, .count = 1, .values = &value };
    KVT_TRUE(await(device, submit(device, &(struct device_batch){ .writes = &write, .n_writes = 1 }), 5));
    read_device(&there, table, 0, 4);
    KVT_EQ_I(there, 7);
    struct device_move in = { 5, rig.host + 63 * rig.packed };
    KVT_TRUE(move(&rig, HOST_TO_DEVICE, &in, 1));
    uint64_t enqueued = atomic_load(&driver.fake->copies) - copies - 2;
    KVT_TRUE((enqueued + 2) * rig.packed <= 2 * MIB + 4 * MIB); /* the depth, and the flight that is being made */
    KVT_EQ(done_of(device, DEVICE_TO_HOST), 0);
    hold(out, 1, 0);
    KVT_TRUE(landed(device, DEVICE_TO_HOST, second + 20));
    KVT_TRUE(first == 1 && second == 2);
    free(page);
    rig_down(&rig);
    device_close(device);
    check_forms();
}

/* ---- loss and shortage ---------------------------------------------------------------------------------- */

static uint64_t objects(void) { return atomic_load(&driver.fake->objects); }

static void fail(const char *call, int after, CUresult code) {
    atomic_store(&driver.fake->fail_after, after);
    atomic_store(&driver.fake->fail_code, (int)code);
    atomic_store(&driver.fake->fail_call, call);
}

/* A call of the driver that fails in the middle of a move loses the device, at any call: tickets before it are done,
 * none after it is, everybody is told, and all memory can be given back. */
static void lost_in_the_middle(void) {
    static const char *const calls[] = { "cuMemcpy2DAsync", "cuEventRecord", "cuEventQuery" };
    uint64_t seed = kvt_seed(), ticket, done, before;
    bool inline_done;
    if (!driver.fake) {
        printf("  SKIPPED: needs the stand-in driver\n");
        return;
    }
    before = objects();
    for (int i = 0; i < 3 * 2 * 4; i++) {
        enum device_direction way = (enum device_direction)(i & 1);
        struct device *device = open_device();
        struct rig rig;
        struct device_move moves[20];
        KVT_NEED(device && rig_up(&rig, device, &plain, 0, 20, 20, &seed));
        for (uint32_t p = 0; p < 20; p++) moves[p] = (struct device_move){ 19 - p, rig.host + p * rig.packed };
        KVT_TRUE(move(&rig, way, moves, 20));
        fail(calls[i / 8], (i / 2 & 3) * 3, CUDA_ERROR_ILLEGAL_ADDRESS);
        struct device_moves all = {
            .spec = &plain, .n_pages = 20, .region = rig.region, .direction = way, .moves = moves, .n = 20
        };
        int r = 0;
        for (int k = 0; k < 12 && !r; k++) r = device_move(device, &all, &ticket, &inline_done, err, sizeof err);
        for (int k = 0; k < 100 && !(r = device_poll_moves(device, way, &done, err, sizeof err)); k++) {
            struct pollfd p = { .fd = device_event_fd(device), .events = POLLIN };
            uint64_t count;
            if (poll(&p, 1, 100) == 1) (void)!read(p.fd, &count, sizeof count);
        }
        KVT_EQ_I(r, -EIO);
        KVT_HAS(err, calls[i / 8]);
        KVT_HAS(err, "ILLEGAL_ADDRESS");
        fail(NULL, 0, CUDA_SUCCESS);
        KVT_EQ_I(device_poll_moves(device, (enum device_direction) !way, &done, err, sizeof err), -EIO);
        KVT_EQ_I(device_poll(device, &done, err, sizeof err), -EIO);
        KVT_EQ_I(device_move(device, &all, &ticket, &inline_done, err, sizeof err), -EIO);
        KVT_EQ_I(device_pin(device, rig.model, 4096, err, sizeof err), -EIO);
        rig_down(&rig);
        device_close(device);
    }
    KVT_EQ(objects(), before);
}

static void pins_are_shared_and_refused(void) {
    uint64_t seed = kvt_seed();
    struct device *device = open_device(), *same = open_device();
    struct rig rig;
    uint8_t *more = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    KVT_NEED(device && same && more != MAP_FAILED && rig_up(&rig, device, &plain, 0, 8, 8, &seed));
    /* Two devices share the registration: the second one may stay. */
    KVT_OK(device_pin(same, rig.host, rig.host_bytes, err, sizeof err));
    KVT_EQ_I(device_pin(device, rig.host, rig.host_bytes, err, sizeof err), -EEXIST);
    KVT_OK(device_pin(device, more, MIB, err, sizeof err));
    KVT_EQ_I(device_pin(same, more, MIB / 2, err, sizeof err), -EEXIST);
    KVT_HAS(err, "another device");
    device_unpin(device, more);
    /* Without unpinning: closing does it. */
    KVT_OK(device_pin(device, more, MIB, err, sizeof err));
    struct device_move one = { 1, more };
    struct device_moves all = { .spec = &plain, .n_pages = 8, .region = rig.region, .moves = &one, .n = 1 };
    uint64_t ticket;
    bool inline_done;
    KVT_OK(device_move(device, &all, &ticket, &inline_done, err, sizeof err));
    KVT_TRUE(landed(device, DEVICE_TO_HOST, ticket));
    one.host = (uint8_t *)rig.model; /* plain memory of the process */
    KVT_EQ_I(device_move(device, &all, &ticket, &inline_done, err, sizeof err), -EINVAL);
    KVT_HAS(err, "pinned");
    if (driver.fake) {
        device_unpin(device, more);
        fail("cuMemHostRegister", 0, CUDA_ERROR_OUT_OF_MEMORY);
        KVT_EQ_I(device_pin(device, more, MIB, err, sizeof err), -ENOMEM);
        KVT_HAS(err, "cannot be pinned");
        fail(NULL, 0, CUDA_SUCCESS);
        KVT_OK(device_pin(device, more, MIB, err, sizeof err));
    }
    rig_down(&rig);
    device_close(device);
    device_close(same);
    munmap(more, MIB);
}

/* A device that is closed with moves queued drops those that have not begun. */
static void closing_drops_what_has_not_begun(void) {
    enum { N = 64 };
    uint64_t seed = kvt_seed();
    struct device *device = open_device();
    struct rig rig;
    struct device_move moves[N];
    KVT_NEED(device && rig_up(&rig, device, &plain, 0, N, N, &seed));
    for (uint32_t i = 0; i < N; i++) moves[i] = (struct device_move){ N - 1 - i, rig.host + i * rig.packed };
    for (int i = 0; i < 200; i++) start(&rig, (enum device_direction)(i & 1), moves, N);
    double begin = now_ms();
    device_close(device);
    KVT_TRUE(now_ms() - begin < 2000);
    munmap(rig.host, rig.host_bytes);
    free(rig.model);
    check_forms();
}

/* In a process of its own: neither closing nor the end of the process waits for a GPU that does not answer. SRV-7 */
static int close_wedged(void) {
    static _Alignas(4096) uint8_t host[MIB];
    struct device *device;
    struct device_region *region;
    struct device_config config = { .kind = DEVICE_CUDA };
    uint64_t ticket, done = 9;
    bool inline_done;
    if (device_open(&config, &device, err, sizeof err) ||
        device_region_new(device, "x", geom_region_bytes(&plain, 8), 0, &region, err, sizeof err) ||
        device_pin(device, host, sizeof host, err, sizeof err))
        return 2;
    wedge(device, cuda_of(device)->movers[DEVICE_TO_HOST].streams[0]);
    struct device_move one = { 1, host };
    struct device_moves all = { .spec = &plain, .n_pages = 8, .region = region, .moves = &one, .n = 1 };
    if (device_move(device, &all, &ticket, &inline_done, err, sizeof err) ||
        device_poll_moves(device, DEVICE_TO_HOST, &done, err, sizeof err) || done)
        return 3;
    double begin = now_ms();
    device_unpin(device, host); /* gives up after 2 s, the memory stays registered */
    if (now_ms() - begin > 4000) return 4;
    if (device_poll_moves(device, DEVICE_TO_HOST, &done, err, sizeof err) != -EIO) return 6; /* keep it mapped */
    device_close(device);
    return now_ms() - begin < 12000 ? 0 : 5;
}

static void srv_7_closing_with_a_wedged_direction(void) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(40);
        execl("/proc/self/exe", "test_device_cuda_moves", "--close-wedged", (char *)NULL);
        _exit(127);
    }
    KVT_EQ_I(kvt_wait(pid), 0);
}

int main(int argc, char **argv) {
    shipped = cuda_move_tuning;
    cuda_move_tuning = defaults;
    static const struct kvt_case cases[] = { KVT_CASE(host_2_packed_bytes_of_every_layout),
                                             KVT_CASE(host_2_every_form),
                                             KVT_CASE(host_2_large_pages),
                                             KVT_CASE(host_6_runs_are_merged),
                                             KVT_CASE(both_directions_at_once),
                                             KVT_CASE(standing_direction),
                                             KVT_CASE(lost_in_the_middle),
                                             KVT_CASE(pins_are_shared_and_refused),
                                             KVT_CASE(closing_drops_what_has_not_begun),
                                             KVT_CASE(srv_7_closing_with_a_wedged_direction),
                                             { 0 } };
    if (!driver_load(&driver)) {
        printf("SKIPPED: no CUDA driver or no GPU here\n");
        return 77;
    }
    cuda_move_tuning = defaults;
    if (argc > 1 && strcmp(argv[1], "--close-wedged") == 0) return close_wedged();
    return kvt_main("device cuda moves", cases, argc, argv);
}
