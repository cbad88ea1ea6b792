/* SPDX-License-Identifier: Apache-2.0
 *
 * Publication and tail copies of the CUDA device: microseconds from device_submit to the batch being done, idle and
 * while another process keeps all SMs busy. `near` is back to back, `rare` after 1 ms of rest (the device's thread
 * sleeps then), `event` as rare, waiting in poll() on the device's event fd instead of asking. Usage: bench_publish
 * [REPEATS]
 */
#include <poll.h>

#include "busy.h"
#include "device.h"

#define MAX_REPEATS 20000
#define ROWS 256u
#define ENTRIES 2048u

static struct driver driver;
static struct device *device;
static struct device_region *table;
static int repeats = 2000;
static int32_t values[ENTRIES * ROWS];
static double took[MAX_REPEATS];

static void fail(const char *what) {
    fprintf(stderr, "bench_publish: %s\n", what);
    exit(2);
}

enum pace { NEAR, RARE, EVENT };

static double once(const struct device_batch *batch, enum pace pace) {
    uint64_t ticket, done = 0, count;
    bool inline_done;
    char err[400];
    struct pollfd p = { .fd = device_event_fd(device), .events = POLLIN };
    if (pace != NEAR) usleep(1000);
    (void)!read(p.fd, &count, sizeof count);
    double begin = driver_now();
    if (device_submit(device, batch, &ticket, &inline_done, err, sizeof err)) fail(err);
    while (!inline_done && done < ticket) {
        if (pace == EVENT && poll(&p, 1, -1) == 1) (void)!read(p.fd, &count, sizeof count);
        if (device_poll(device, &done, err, sizeof err)) fail(err);
    }
    return (driver_now() - begin) * 1e6;
}

static int by_value(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static void measure(const char *what, const struct device_batch *batch, enum pace pace, const char *load) {
    static const char *const paces[] = { "near", "rare", "event" };
    int n = pace == NEAR ? repeats : repeats / 4;
    for (int i = 0; i < 20; i++) once(batch, NEAR);
    for (int i = 0; i < n; i++) took[i] = once(batch, pace);
    qsort(took, (size_t)n, sizeof *took, by_value);
    printf("BENCH publish.%s.%s.%s.p50 %.1f us\n", what, paces[pace], load, took[n / 2]);
    printf("BENCH publish.%s.%s.%s.p99 %.1f us\n", what, paces[pace], load, took[n * 99 / 100]);
    fflush(stdout);
}

static struct device_batch slices(struct device_table_write *writes, uint32_t rows, uint32_t first, uint32_t count) {
    for (uint32_t r = 0; r < rows; r++)
        writes[r] = (struct device_table_write){
            .region = table, .offset = ((uint64_t)r * ENTRIES + first) * 4, .count = count, .values = values + r
        };
    return (struct device_batch){ .writes = writes, .n_writes = rows };
}

static void publications(const char *load) {
    static struct device_table_write writes[ROWS];
    struct device_batch batch = slices(writes, 1, 7, 1);
    measure("1_entry", &batch, NEAR, load);
    measure("1_entry", &batch, RARE, load);
    measure("1_entry", &batch, EVENT, load);
    batch = slices(writes, 1, 7, 64);
    measure("64_entries", &batch, NEAR, load);
    batch = slices(writes, 1, 0, ENTRIES);
    measure("row_of_2048", &batch, NEAR, load);
    batch = slices(writes, 64, 100, 4);
    measure("64_rows_of_4", &batch, NEAR, load);
    batch = slices(writes, ROWS, 100, 4);
    measure("256_rows_of_4", &batch, NEAR, load);
    batch = slices(writes, 1, 7, 4);
    writes[1] =
        (struct device_table_write){ .region = table, .offset = 200 * ENTRIES * 4, .count = 4, .values = values };
    batch.n_writes = 2; /* far apart: two copies */
    measure("2_far_slices", &batch, NEAR, load);
}

static void tails(const char *load) {
    static const struct {
        const char *name;
        enum kvd_storage storage;
        enum geom_arrangement arrangement;
        enum geom_order order;
        uint32_t pages;
    } kinds[] = {
        { "tail_bf16_record", KVD_STORAGE_BF16, GEOM_RECORD, GEOM_PAGE_MAJOR, 512 },
        { "tail_k8v4_record", KVD_STORAGE_K8V4, GEOM_RECORD, GEOM_PAGE_MAJOR, 512 },
        { "tail_k8v4_dense", KVD_STORAGE_K8V4, GEOM_DENSE, GEOM_PAGE_MAJOR, 512 },
        { "tail_bf16_dense_head_major", KVD_STORAGE_BF16, GEOM_DENSE, GEOM_HEAD_MAJOR, 512 },
        /* Layers farther apart than a 2-D copy reaches. Last: once it is freed, the driver may clear 64 GiB. */
        { "tail_bf16_record_64GiB", KVD_STORAGE_BF16, GEOM_RECORD, GEOM_PAGE_MAJOR, 16384 },
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct geom_pool_spec spec = { .storage = kinds[i].storage,
                                       .order = kinds[i].order,
                                       .arrangement = kinds[i].arrangement,
                                       .n_layers = 16,
                                       .n_kv_heads = 4,
                                       .head_dim = 256,
                                       .n_ranks = 1 };
        struct device_region *region;
        char err[400];
        if (driver.fake && kinds[i].pages > 512) continue;
        if (device_region_new(device, "main-r0", geom_region_bytes(&spec, kinds[i].pages), 0, &region, err, sizeof err))
            fail(err);
        struct device_page_copy copy = {
            .spec = &spec, .n_pages = kinds[i].pages, .region = region, .src = 400, .dst = 3, .columns = 40
        };
        struct device_batch batch = { .copies = &copy, .n_copies = 1 };
        int all = repeats;
        repeats = all / 4;
        measure(kinds[i].name, &batch, NEAR, load);
        repeats = all;
        device_region_free(region);
    }
}

int main(int argc, char **argv) {
    struct device_config config = { .kind = DEVICE_CUDA };
    char err[400];
    if (argc > 1 && strcmp(argv[1], "--busy") == 0) return busy_main(&driver);
    if (argc > 1) repeats = atoi(argv[1]);
    if (repeats < 100 || repeats > MAX_REPEATS) fail("REPEATS is 100..20000");
    if (!driver_load(&driver)) {
        printf("SKIPPED: no CUDA driver or no GPU here\n");
        return 77;
    }
    if (device_open(&config, &device, err, sizeof err) ||
        device_region_new(device, "table", ROWS * ENTRIES * 4, 0xff, &table, err, sizeof err))
        fail(err);
    publications("idle");
    tails("idle");
    if (!driver.fake) {
        int out;
        pid_t pid = busy_start(&out);
        if (pid < 0) fail("the busy process did not start");
        publications("busy");
        tails("busy");
        busy_stop(pid, out);
    }
    device_close(device);
    return 0;
}
