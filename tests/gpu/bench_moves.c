/* SPDX-License-Identifier: Apache-2.0
 *
 * How fast pages move between a GPU and pinned memory, against plain pinned copies of the same run: whole
 * continuations of five profiles and two geometries, contiguous and shuffled ids, each direction and both together,
 * idle and beside a process that keeps all SMs busy; ways of issuing the copies; pools whose layers are farther apart
 * than 2-D copies reach; publication and single pages while bulk moves; decode of a worker while bulk moves.
 *
 * usage: bench_moves [--small] [rates] [ways] [far] [beside] [decode=BENCH_OPS_CUDA]     default: all but decode
 * --small: a few pages and one pass, to try the program. Prints "BENCH name value unit" lines, and at the end one
 * table.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sys/mman.h>

#include "busy.h"
#include "device_cuda_internal.h"

#define MIB (UINT64_C(1) << 20)
#define KINDS 10u /* 2 geometries x 5 profiles */
#define SMALLEST (5u + KVD_STORAGE_NVFP4)

static struct driver driver;
static struct device *device;
static bool small;
static char err[512];

static uint8_t *arena;
static uint64_t arena_bytes;
static double peak[3]; /* plain pinned copies, GB/s: out, in, both */

static void print_table(void);

static void stop_if(bool bad, const char *what) {
    if (!bad) return;
    print_table();
    fprintf(stderr, "bench_moves: %s: %s\n", what, err);
    exit(2);
}

static void line(const char *name, double value, const char *unit) {
    printf("BENCH moves.%s %.4g %s\n", name, value, unit);
    fflush(stdout);
}

static int by_value(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static double middle(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, by_value);
    return x[n / 2];
}

/* ---- the arena ------------------------------------------------------------------------------------------- */

struct stretch {
    uint8_t *at;
    uint64_t bytes;
};

static void *touch(void *argument) {
    const struct stretch *s = argument;
    for (uint64_t i = 0; i < s->bytes; i += 4096) *(volatile uint8_t *)(s->at + i) = (uint8_t)(i >> 12);
    return NULL;
}

/* As the daemon's: shared memory, touched in parallel, then pinned. */
static void make_arena(uint64_t bytes) {
    enum { N = 16 };
    pthread_t threads[N];
    struct stretch parts[N];
    int fd = memfd_create("bench-moves", MFD_CLOEXEC);
    arena_bytes = bytes;
    snprintf(err, sizeof err, "%" PRIu64 " bytes of memory", bytes);
    stop_if(fd < 0 || ftruncate(fd, (off_t)bytes), "arena");
    arena = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    stop_if(arena == MAP_FAILED, "arena");
    close(fd);
    double begin = driver_now();
    for (int i = 0; i < N; i++) {
        parts[i] = (struct stretch){ arena + bytes / N * (uint64_t)i, bytes / N };
        pthread_create(&threads[i], NULL, touch, &parts[i]);
    }
    for (int i = 0; i < N; i++) pthread_join(threads[i], NULL);
    line("touch_16_threads", (driver_now() - begin) / ((double)bytes / 0x1p30), "s/GiB");
    begin = driver_now();
    stop_if(device_pin(device, arena, bytes, err, sizeof err), "pin");
    line("pin", (driver_now() - begin) / ((double)bytes / 0x1p30), "s/GiB");
}

/* ---- plain copies: the denominators ----------------------------------------------------------------------- */

static double plain_rate(CUdeviceptr at, int ways, uint64_t bytes) {
    CUstream streams[2];
    double rates[5];
    for (int i = 0; i < 2; i++) DRIVER_OK(driver.cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    for (int turn = 0; turn < 5; turn++) {
        double begin = driver_now();
        if (ways != 1) DRIVER_OK(driver.cuMemcpyDtoHAsync(arena, at, bytes, streams[0]));
        if (ways != 0) DRIVER_OK(driver.cuMemcpyHtoDAsync(at + bytes, arena + bytes, bytes, streams[1]));
        for (int i = 0; i < 2; i++) DRIVER_OK(driver.cuStreamSynchronize(streams[i]));
        rates[turn] = (double)bytes * (ways == 2 ? 2 : 1) / (driver_now() - begin) / 1e9;
    }
    return middle(rates, 5);
}

static void plain_rates(void) {
    static const char *const names[] = { "plain.out", "plain.in", "plain.both" };
    struct device_region *region;
    uint64_t bytes = arena_bytes / 2 < 512 * MIB ? arena_bytes / 2 : 512 * MIB;
    stop_if(device_region_new(device, "plain", 2 * bytes, 0, &region, err, sizeof err), "region");
    for (int ways = 0; ways < 3; ways++) {
        peak[ways] = plain_rate((CUdeviceptr)(uintptr_t)device_region_address(region), ways, bytes);
        line(names[ways], peak[ways], "GB/s");
    }
    device_region_free(region);
}

/* ---- pools ------------------------------------------------------------------------------------------------ */

struct pool {
    struct geom_pool_spec spec;
    char name[48];
    uint32_t n_pages, n; /* moved: n of them each way */
    uint64_t packed;
    struct device_region *region;
    struct device_move *moves[2]; /* by direction: other pages and places */
};

static struct geom_pool_spec spec_of(uint32_t kind) {
    return (struct geom_pool_spec){ .storage = (enum kvd_storage)(kind % KVD_N_STORAGE),
                                    .order = GEOM_PAGE_MAJOR,
                                    .arrangement = GEOM_RECORD,
                                    .n_layers = kind < KVD_N_STORAGE ? 16 : 10,
                                    .n_kv_heads = kind < KVD_N_STORAGE ? 4 : 2,
                                    .head_dim = 256,
                                    .n_ranks = 1 };
}

static uint64_t next_random(uint64_t *state) {
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* The lower half of the pages is for out, the upper half for in. */
static void pick_pages(struct pool *pool, bool shuffled) {
    uint64_t seed = 99;
    uint32_t half = pool->n_pages / 2;
    uint32_t *ids = malloc(half * sizeof *ids);
    for (int way = 0; way < 2; way++) {
        for (uint32_t i = 0; i < half; i++) ids[i] = i;
        for (uint32_t i = half; shuffled && i > 1; i--) {
            uint32_t j = (uint32_t)(next_random(&seed) % i), t = ids[i - 1];
            ids[i - 1] = ids[j];
            ids[j] = t;
        }
        for (uint32_t i = 0; i < pool->n; i++)
            pool->moves[way][i] = (struct device_move){ (uint32_t)way * half + ids[i],
                                                        arena + ((uint64_t)way * pool->n + i) * pool->packed };
    }
    free(ids);
}

static void pool_up(struct pool *pool, uint32_t kind, uint32_t n_pages, uint32_t n) {
    *pool = (struct pool){ .spec = spec_of(kind), .n_pages = n_pages, .n = n };
    pool->packed = geom_packed_bytes(&pool->spec);
    snprintf(pool->name, sizeof pool->name, "%ux%u.%s", pool->spec.n_layers, pool->spec.n_kv_heads,
             geom_storage_name(pool->spec.storage));
    stop_if(device_region_new(device, "pool", geom_region_bytes(&pool->spec, n_pages), 0x11, &pool->region, err,
                              sizeof err),
            pool->name);
    for (int way = 0; way < 2; way++) pool->moves[way] = malloc(n * sizeof *pool->moves[way]);
}

static void pool_down(struct pool *pool) {
    device_region_free(pool->region);
    free(pool->moves[0]);
    free(pool->moves[1]);
}

static uint64_t begin_move(const struct pool *pool, enum device_direction way, uint32_t first, uint32_t n) {
    struct device_moves moves = { .spec = &pool->spec,
                                  .n_pages = pool->n_pages,
                                  .region = pool->region,
                                  .direction = way,
                                  .moves = pool->moves[way] + first,
                                  .n = n };
    uint64_t ticket;
    bool inline_done;
    stop_if(device_move(device, &moves, &ticket, &inline_done, err, sizeof err), pool->name);
    return ticket;
}

static void wait_for(enum device_direction way, uint64_t ticket) {
    uint64_t done = 0;
    while (done < ticket) stop_if(device_poll_moves(device, way, &done, err, sizeof err), "poll");
}

/* ways: 0 out, 1 in, 2 both. Continuations of 256 pages, as many as give a measurable time; GB/s, the middle of
 * three. */
static double move_rate(const struct pool *pool, int ways) {
    uint64_t last[2] = { 0, 0 }, bytes = pool->n * geom_rank_page_bytes(&pool->spec);
    uint32_t passes = small ? 1 : (uint32_t)(600 * MIB / bytes) + 1;
    double rates[3];
    for (int turn = -1; turn < 3; turn++) { /* one to warm up */
        double begin = driver_now();
        for (uint32_t pass = 0; pass < (turn < 0 ? 1 : passes); pass++)
            for (uint32_t first = 0; first < pool->n; first += 256)
                for (int way = 0; way < 2; way++)
                    if (ways == 2 || ways == way)
                        last[way] = begin_move(pool, (enum device_direction)way, first,
                                               pool->n - first < 256 ? pool->n - first : 256);
        for (int way = 0; way < 2; way++) wait_for((enum device_direction)way, last[way]);
        if (turn >= 0) rates[turn] = (double)bytes * passes * (ways == 2 ? 2 : 1) / (driver_now() - begin) / 1e9;
    }
    return middle(rates, 3);
}

static uint32_t pages_for(uint32_t kind) {
    struct geom_pool_spec spec = spec_of(kind);
    uint64_t fit = arena_bytes / 2 / geom_packed_bytes(&spec);
    return (uint32_t)(fit < 512 ? fit : 512);
}

/* ---- rates ------------------------------------------------------------------------------------------------ */

static double rates[KINDS][2][2][3]; /* kind, shuffled, busy, ways */

static void measure_rates(bool busy) {
    for (uint32_t kind = 0; kind < KINDS; kind++) {
        struct pool pool;
        pool_up(&pool, kind, 2 * pages_for(kind), pages_for(kind));
        for (int shuffled = 0; shuffled < 2; shuffled++) {
            pick_pages(&pool, shuffled);
            for (int ways = 0; ways < 3; ways++) {
                static const char *const names[] = { "out", "in", "both" };
                char name[128];
                rates[kind][shuffled][busy][ways] = move_rate(&pool, ways);
                snprintf(name, sizeof name, "%s.%s.%s.%s", pool.name, shuffled ? "shuffled" : "contiguous",
                         busy ? "busy" : "idle", names[ways]);
                line(name, rates[kind][shuffled][busy][ways], "GB/s");
            }
        }
        pool_down(&pool);
    }
}

/* A figure, marked where it is under its aim. */
static void cell(double value, double aim) { printf(" %5.2f%c", value, value < aim ? '!' : ' '); }

static void print_table(void) {
    if (rates[0][0][0][0] <= 0) return; /* not measured */
    printf("\nRates over plain pinned copies of this run (out %.1f, in %.1f, both %.1f GB/s); busy over idle; both\n"
           "over the mean of out and in. ! marks a figure under its aim: contiguous 0.95, shuffled 0.90 (pages of 1\n"
           "MiB and more) or 0.80, busy 0.93, both 1.7\n",
           peak[0], peak[1], peak[2]);
    printf("%-12s %9s | contiguous: out    in  both | busy: out    in  both | shuffled: out    in  both "
           "| busy: out    in  both\n",
           "pool", "page");
    for (uint32_t kind = 0; kind < KINDS; kind++) {
        struct geom_pool_spec spec = spec_of(kind);
        uint64_t page = geom_packed_bytes(&spec);
        char name[32];
        snprintf(name, sizeof name, "%ux%u %s", spec.n_layers, spec.n_kv_heads, geom_storage_name(spec.storage));
        printf("%-12s %9" PRIu64 " |", name, page);
        for (int shuffled = 0; shuffled < 2; shuffled++) {
            double aim = !shuffled ? 0.95 : page >= MIB ? 0.90 : 0.80;
            double *idle = rates[kind][shuffled][0], *busy = rates[kind][shuffled][1];
            printf(shuffled ? " |      " : "        ");
            cell(idle[0] / peak[0], aim);
            cell(idle[1] / peak[1], aim);
            cell(idle[2] / ((idle[0] + idle[1]) / 2), 1.7);
            printf(" | ");
            for (int ways = 0; ways < 3; ways++) cell(busy[ways] / idle[ways], ways < 2 ? 0.93 : 0);
        }
        printf("\n");
    }
}

/* ---- ways of issuing -------------------------------------------------------------------------------------- */

static const char *const form_names[] = { "2d", "rows", "batch", "batch_rows" };

static void tune(uint32_t streams, enum cuda_form near, enum cuda_form far, uint64_t flight, uint64_t depth) {
    /* Both directions are idle: their threads see this with the next job. */
    for (int way = 0; way < 2; way++) {
        struct cuda_mover *m = &cuda_of(device)->movers[way];
        m->tuning = (struct cuda_move_tuning){
            .streams = streams, .near = near, .far = far, .flight_bytes = flight, .depth_bytes = depth
        };
        m->stream = 0;
    }
}

static uint32_t default_streams; /* the device is opened with as many as there can be */

static void tune_default(void) {
    for (int way = 0; way < 2; way++) {
        struct cuda_mover *m = &cuda_of(device)->movers[way];
        m->tuning = cuda_move_tuning;
        m->tuning.streams = default_streams;
        m->stream = 0;
    }
}

static void measure_ways(bool busy) {
    static const struct {
        uint32_t streams;
        enum cuda_form form;
        uint64_t flight, depth;
    } ways[] = { { 1, CUDA_FORM_2D, 4 * MIB, 32 * MIB },        { 2, CUDA_FORM_2D, 4 * MIB, 32 * MIB },
                 { 4, CUDA_FORM_2D, 4 * MIB, 32 * MIB },        { 2, CUDA_FORM_2D, 1 * MIB, 16 * MIB },
                 { 1, CUDA_FORM_BATCH, 8 * MIB, 32 * MIB },     { 2, CUDA_FORM_BATCH, 8 * MIB, 32 * MIB },
                 { 2, CUDA_FORM_BATCH, 2 * MIB, 16 * MIB },     { 1, CUDA_FORM_BATCH_ROWS, 8 * MIB, 32 * MIB },
                 { 2, CUDA_FORM_BATCH_ROWS, 8 * MIB, 32 * MIB } };
    static const uint32_t kinds[] = { 0, 3, 6, SMALLEST, 9 }; /* pages of 4, 1.1, 0.64, 0.35 and 0.49 MiB */
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct pool pool;
        uint32_t n = pages_for(kinds[k]);
        pool_up(&pool, kinds[k], 2 * n, n);
        for (int shuffled = 1; shuffled >= 0; shuffled--) {
            pick_pages(&pool, shuffled);
            for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
                double r[3];
                if (!shuffled && k != 0 && k != 3) continue;
                tune(ways[w].streams, ways[w].form, CUDA_FORM_ROWS, ways[w].flight, ways[w].depth);
                for (int i = 0; i < 3; i++) r[i] = move_rate(&pool, i);
                printf("WAY %s %-10s %s %u stream%s of %-10s flight %2u depth %2u MiB: out %5.1f in %5.1f both %5.1f "
                       "GB/s, over plain %.2f %.2f %.2f\n",
                       busy ? "busy" : "idle", pool.name, shuffled ? "shuffled  " : "contiguous", ways[w].streams,
                       ways[w].streams > 1 ? "s" : " ", form_names[ways[w].form], (unsigned)(ways[w].flight / MIB),
                       (unsigned)(ways[w].depth / MIB), r[0], r[1], r[2], r[0] / peak[0], r[1] / peak[1],
                       r[2] / peak[2]);
                fflush(stdout);
            }
        }
        pool_down(&pool);
    }
    tune_default();
}

/* ---- pools beyond the pitch ------------------------------------------------------------------------------- */

/* Out by `form` is what in by single rows has put there, and the other way round. */
static bool far_exact(const struct pool *pool, enum cuda_form form) {
    uint64_t bytes = pool->n * pool->packed, wrong = 0, seed = 1;
    for (int turn = 0; turn < 2; turn++) {
        enum cuda_form in = turn ? form : CUDA_FORM_ROWS, out = turn ? CUDA_FORM_ROWS : form;
        uint64_t *put = (uint64_t *)(void *)(arena + bytes), *got = (uint64_t *)(void *)arena;
        for (uint64_t i = 0; i < bytes / 8; i++) put[i] = next_random(&seed);
        memset(got, 0, bytes);
        tune(2, CUDA_FORM_2D, in, 4 * MIB, 32 * MIB);
        wait_for(HOST_TO_DEVICE, begin_move(pool, HOST_TO_DEVICE, 0, pool->n));
        tune(2, CUDA_FORM_2D, out, 4 * MIB, 32 * MIB);
        wait_for(DEVICE_TO_HOST, begin_move(pool, DEVICE_TO_HOST, 0, pool->n));
        for (uint64_t i = 0; i < bytes / 8; i++) wrong += put[i] != got[i];
    }
    return wrong == 0;
}

static void measure_far(bool busy) {
    static const uint32_t kinds[] = { 0, SMALLEST };
    static const uint32_t pages[] = { 9000, 62000 }; /* layers 2.2 GiB apart */
    static const enum cuda_form forms[] = { CUDA_FORM_ROWS, CUDA_FORM_BATCH_ROWS, CUDA_FORM_BATCH, CUDA_FORM_2D };
    for (size_t k = 0; k < 2; k++) {
        struct pool pool;
        uint32_t n = pages_for(kinds[k]) / 2;
        pool_up(&pool, kinds[k], small ? 2 * n : pages[k], n);
        pick_pages(&pool, true);
        uint64_t limit = cuda_of(device)->pitch_limit;
        for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
            double r[3];
            if (small) cuda_of(device)->pitch_limit = 1000;
            if (forms[f] == CUDA_FORM_2D) cuda_of(device)->pitch_limit = UINT64_MAX; /* try what is not documented */
            /* The same pages both ways, so that one can check the other. */
            struct device_move *in = pool.moves[1], *same = malloc(n * sizeof *same);
            for (uint32_t i = 0; i < n; i++) same[i] = (struct device_move){ pool.moves[0][i].page, in[i].host };
            pool.moves[1] = same;
            bool exact = busy || far_exact(&pool, forms[f]);
            pool.moves[1] = in;
            free(same);
            for (uint32_t streams = 1; streams <= 2; streams++) {
                tune(streams, CUDA_FORM_2D, forms[f], 4 * MIB, 32 * MIB);
                for (int i = 0; i < 3; i++) r[i] = move_rate(&pool, i);
                printf("FAR %s %-10s %u stream%s of %-10s %s: out %5.1f in %5.1f both %5.1f GB/s, over plain %.2f %.2f "
                       "%.2f\n",
                       busy ? "busy" : "idle", pool.name, streams, streams > 1 ? "s" : " ", form_names[forms[f]],
                       busy    ? ""
                       : exact ? "(exact)"
                               : "(WRONG BYTES)",
                       r[0], r[1], r[2], r[0] / peak[0], r[1] / peak[1], r[2] / peak[2]);
                fflush(stdout);
            }
            cuda_of(device)->pitch_limit = limit;
        }
        pool_down(&pool);
    }
    tune_default();
}

/* ---- what else the device does beside bulk ---------------------------------------------------------------- */

struct bulk {
    const struct pool *pool;
    int ways; /* -1: none */
    uint64_t last[2];
};

/* Keeps some continuations queued. */
static void feed(struct bulk *bulk) {
    uint32_t n = bulk->pool->n < 256 ? bulk->pool->n : 256;
    for (int way = 0; way < 2; way++) {
        uint64_t done = 0;
        if (bulk->ways != way && bulk->ways != 2) continue;
        stop_if(device_poll_moves(device, (enum device_direction)way, &done, err, sizeof err), "poll");
        while (bulk->last[way] < done + 4) bulk->last[way] = begin_move(bulk->pool, (enum device_direction)way, 0, n);
    }
}

static void starve(struct bulk *bulk) {
    for (int way = 0; way < 2; way++) wait_for((enum device_direction)way, bulk->last[way]);
}

static double publish_us(struct device_region *table, struct bulk *bulk) {
    static const int32_t value = 5;
    struct device_table_write write = { .region = table, .offset = 400, .count = 1, .values = &value };
    struct device_batch batch = { .writes = &write, .n_writes = 1 };
    uint64_t ticket, done = 0;
    bool inline_done;
    feed(bulk);
    double begin = driver_now();
    stop_if(device_submit(device, &batch, &ticket, &inline_done, err, sizeof err), "publish");
    while (done < ticket) {
        stop_if(device_poll(device, &done, err, sizeof err), "publish");
        if (driver_now() - begin > 0.0002) feed(bulk);
    }
    return (driver_now() - begin) * 1e6;
}

static double page_us(struct bulk *bulk) {
    uint64_t done = 0;
    feed(bulk);
    double begin = driver_now();
    uint64_t ticket = bulk->last[HOST_TO_DEVICE] = begin_move(bulk->pool, HOST_TO_DEVICE, 0, 1);
    while (done < ticket) {
        stop_if(device_poll_moves(device, HOST_TO_DEVICE, &done, err, sizeof err), "page");
        if (driver_now() - begin > 0.0002) feed(bulk);
    }
    return (driver_now() - begin) * 1e6;
}

static void beside(const struct pool *pool, struct device_region *table, int ways, const char *load) {
    enum { N = 400 };
    static const char *const names[] = { "nothing", "out", "in", "both" };
    static double us[N];
    struct bulk bulk = { .pool = pool, .ways = ways };
    int n = small ? 10 : N;
    char name[128];
    for (int what = 0; what < (ways <= 0 ? 2 : 1); what++) {
        for (int i = 0; i < n; i++) us[i] = what ? page_us(&bulk) : publish_us(table, &bulk);
        starve(&bulk);
        double p50 = middle(us, n), p99 = us[n * 99 / 100];
        snprintf(name, sizeof name, "%s_beside.%s.%s.p50", what ? "page_in" : "publish", names[ways + 1], load);
        line(name, p50, "us");
        snprintf(name, sizeof name, "%s_beside.%s.%s.p99", what ? "page_in" : "publish", names[ways + 1], load);
        line(name, p99, "us");
    }
}

static void measure_beside(bool busy) {
    struct pool pool;
    struct device_region *table;
    pool_up(&pool, SMALLEST, 2 * pages_for(SMALLEST), pages_for(SMALLEST));
    stop_if(device_region_new(device, "table", MIB, 0xff, &table, err, sizeof err), "table");
    for (int shuffled = 0; shuffled < 2; shuffled++) {
        char load[32];
        pick_pages(&pool, shuffled);
        snprintf(load, sizeof load, "%s.%s", shuffled ? "shuffled" : "contiguous", busy ? "busy" : "idle");
        for (int ways = -1; ways < 3; ways++)
            if (ways >= 0 || !shuffled) beside(&pool, table, ways, load);
    }
    device_region_free(table);
    pool_down(&pool);
}

/* What bulk costs those who move a few bytes the same way, by form, flight and depth: rate of the bulk, and the time of
 * small copies that come one after another meanwhile: publications to the device, 8 bytes from it. The engine of a
 * direction turns to another channel only when the one it works on has run dry: a queue that is never empty lets nobody
 * through. */
static double small_copy_us(struct device_region *table, enum device_direction way, CUstream stream, struct bulk *bulk,
                            double end) {
    static const int32_t value = 5;
    static uint64_t *word;
    struct device_table_write write = { .region = table, .offset = 400, .count = 1, .values = &value };
    struct device_batch batch = { .writes = &write, .n_writes = 1 };
    uint64_t ticket = 0, done = 0;
    bool inline_done;
    if (!word) DRIVER_OK(driver.cuMemHostAlloc((void **)&word, 4096, 0));
    double at = driver_now();
    if (way == HOST_TO_DEVICE) {
        stop_if(device_submit(device, &batch, &ticket, &inline_done, err, sizeof err), "publish");
        while (done < ticket) {
            stop_if(device_poll(device, &done, err, sizeof err), "publish");
            if (driver_now() < end) feed(bulk);
        }
    } else {
        DRIVER_OK(driver.cuMemcpyDtoHAsync(word, (CUdeviceptr)(uintptr_t)device_region_address(table), 8, stream));
        DRIVER_OK(driver.cuStreamSynchronize(stream)); /* bulk for some milliseconds is queued */
    }
    return (driver_now() - at) * 1e6;
}

static void mix(const struct pool *pool, struct device_region *table, const char *load, enum device_direction way,
                enum cuda_form form, uint64_t flight, uint64_t depth, uint32_t streams, bool chain) {
    enum { N = 20000 };
    static double us[N];
    static CUstream stream;
    struct bulk bulk = { .pool = pool, .ways = (int)way };
    struct device_move_stats before, after;
    int n = 0;
    if (!stream) DRIVER_OK(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    tune(streams, form, form, flight, depth);
    cuda_of(device)->movers[way].tuning.chain = chain;
    feed(&bulk);
    device_get_move_stats(device, way, &before);
    double begin = driver_now(), end = begin + (small ? 0.02 : 0.2);
    while (driver_now() < end && n < N) {
        us[n++] = small_copy_us(table, way, stream, &bulk, end);
        for (double pause = driver_now() + 50e-6; driver_now() < pause;) feed(&bulk);
    }
    device_get_move_stats(device, way, &after);
    double rate = (double)(after.bytes - before.bytes) / (driver_now() - begin) / 1e9;
    starve(&bulk);
    double p50 = middle(us, n), p99 = us[n * 99 / 100], most = us[n - 1];
    printf("MIX %-8s %-4s %u x %-10s %s flight %4.1f depth %4.1f MiB: %5.1f GB/s, small copies p50 %7.1f p99 %7.1f max "
           "%9.1f us of %d\n",
           load, way ? "in" : "out", streams, form_names[form], chain ? "chained" : "free   ", (double)flight / MIB,
           (double)depth / MIB, rate, p50, p99, most, n);
    fflush(stdout);
}

static void measure_mix(bool busy) {
    static const uint32_t pools[] = { 0, SMALLEST };
    static const struct {
        double flight, depth;
        uint32_t streams;
        bool chain;
    } sizes[] = { { 8, 32, 1, false }, { 8, 32, 2, false }, { 2, 32, 2, true }, { 4, 32, 2, true },
                  { 8, 32, 2, true },  { 4, 16, 3, true },  { 8, 32, 4, true }, { 16, 64, 2, true } };
    static const enum cuda_form forms[] = { CUDA_FORM_BATCH, CUDA_FORM_BATCH_ROWS };
    struct device_region *table;
    if (busy) return;
    stop_if(device_region_new(device, "table", MIB, 0xff, &table, err, sizeof err), "table");
    for (size_t p = 0; p < 2; p++) {
        struct pool pool;
        pool_up(&pool, pools[p], 2 * pages_for(pools[p]), pages_for(pools[p]));
        pick_pages(&pool, true);
        for (int way = 0; way < 2; way++)
            for (size_t f = 0; f < 2; f++)
                for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
                    mix(&pool, table, p ? "smallest" : "largest", (enum device_direction)way, forms[f],
                        (uint64_t)(sizes[i].flight * MIB), (uint64_t)(sizes[i].depth * MIB), sizes[i].streams,
                        sizes[i].chain);
        pool_down(&pool);
    }
    device_region_free(table);
    tune_default();
}

/* ---- decode of a worker ----------------------------------------------------------------------------------- */

/* Reads what the worker has printed; the middle step of those that ended in [begin, end). */
static double decode_us(int out, double begin, double end) {
    static char text[1 << 20];
    static double us[1 << 15];
    size_t n = 0;
    int count = 0;
    for (ssize_t got; n < sizeof text - 1 && (got = read(out, text + n, sizeof text - 1 - n)) > 0;) n += (size_t)got;
    text[n] = 0;
    char *last = strrchr(text, '\n');
    for (char *at = strchr(text, '\n'); at && at != last; at = strchr(at + 1, '\n')) {
        double when, step;
        if (sscanf(at + 1, "%lf %lf", &when, &step) == 2 && when >= begin && when < end && count < 1 << 15)
            us[count++] = step;
    }
    return count ? middle(us, count) : 0;
}

static void measure_decode(const char *path) {
    static const char *const names[] = { "nothing", "out", "in", "both" };
    char *argv[] = { (char *)(uintptr_t)path, (char *)(uintptr_t) "--steady", NULL };
    struct pool pool;
    int out = -1;
    double alone = 0;
    pid_t pid = busy_start_program(path, argv, &out);
    snprintf(err, sizeof err, "%s does not start", path);
    stop_if(pid < 0, "decode");
    fcntl(out, F_SETFL, O_NONBLOCK);
    pool_up(&pool, 0, 2 * pages_for(0), pages_for(0));
    pick_pages(&pool, true);
    usleep(500000);
    for (int turn = 0; turn < 8; turn++) { /* each of the four twice: drift shows */
        int ways = turn % 4 - 1;
        struct bulk bulk = { .pool = &pool, .ways = ways };
        struct device_move_stats before[2], after[2];
        uint64_t moved = 0;
        char name[64];
        for (int i = 0; i < 2; i++) device_get_move_stats(device, (enum device_direction)i, &before[i]);
        double begin = driver_now(), end = begin + (small ? 0.1 : 1.2);
        for (; driver_now() < end; usleep(1000)) feed(&bulk);
        for (int i = 0; i < 2; i++) {
            device_get_move_stats(device, (enum device_direction)i, &after[i]);
            moved += after[i].bytes - before[i].bytes;
        }
        double us = decode_us(out, begin + 0.1, end), rate = (double)moved / (driver_now() - begin) / 1e9;
        starve(&bulk);
        if (ways < 0) alone = us;
        snprintf(name, sizeof name, "decode_beside.%s", names[ways + 1]);
        printf("BENCH moves.%s %.1f us (%+.1f %%) at %.1f GB/s\n", name, us, alone > 0 ? 100 * (us / alone - 1) : 0,
               rate);
        fflush(stdout);
    }
    pool_down(&pool);
    busy_stop(pid, out);
}

/* ---- main ------------------------------------------------------------------------------------------------- */

static bool wanted(int argc, char **argv, const char *what) {
    bool any = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], what) == 0) return true;
        any = any || argv[i][0] != '-';
    }
    return !any;
}

static void run_section(const char *name, bool busy) {
    if (strcmp(name, "rates") == 0) measure_rates(busy);
    if (strcmp(name, "beside") == 0) measure_beside(busy);
    if (strcmp(name, "ways") == 0) measure_ways(busy);
    if (strcmp(name, "far") == 0) measure_far(busy);
    if (strcmp(name, "mix") == 0) measure_mix(busy);
}

/* The sections from `first` on, all of them idle and then beside the busy process. */
static void measure(int argc, char **argv, int first, int n) {
    static const char *const sections[] = { "rates", "beside", "ways", "far", "mix" };
    bool any = false;
    int out;
    for (int i = first; i < first + n; i++)
        if (wanted(argc, argv, sections[i])) {
            run_section(sections[i], false);
            any = true;
        }
    if (!any || driver.fake) return;
    pid_t pid = busy_start(&out);
    snprintf(err, sizeof err, "it does not start");
    stop_if(pid < 0, "the busy process");
    for (int i = first; i < first + n; i++)
        if (wanted(argc, argv, sections[i])) run_section(sections[i], true);
    busy_stop(pid, out);
}

int main(int argc, char **argv) {
    struct device_config config = { .kind = DEVICE_CUDA };
    if (argc > 1 && strcmp(argv[1], "--busy") == 0) return busy_main(&driver);
    if (!driver_load(&driver)) {
        printf("SKIPPED: no CUDA driver or no GPU here\n");
        return 77;
    }
    for (int i = 1; i < argc; i++) small = small || strcmp(argv[i], "--small") == 0;
    default_streams = cuda_move_tuning.streams;
    cuda_move_tuning.streams = CUDA_MOVE_STREAMS;
    stop_if(device_open(&config, &device, err, sizeof err), "open");
    tune_default();
    DRIVER_OK(driver.cuCtxSetCurrent(cuda_of(device)->context));
    make_arena(small ? 64 * MIB : 2048 * MIB);
    plain_rates();
    measure(argc, argv, 0, 2);
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], "decode=", 7) == 0 && !driver.fake) measure_decode(argv[i] + 7);
    measure(argc, argv, 2, 3); /* what the library does not do: after what it does */
    print_table();
    device_close(device);
    return 0;
}
