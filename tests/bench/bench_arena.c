/* SPDX-License-Identifier: Apache-2.0
 *
 * What the host arena costs: records of the directory, pages that are extents, a segment made ready. Prints lines
 * "BENCH name value unit".
 *
 * Usage: bench_arena [MiB of the segment, default 1024]
 */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "extent.h"
#include "segment.h"

#define CONTINUATIONS 10000u
#define CHAIN 100u
#define PAGES (CONTINUATIONS * CHAIN)
#define RUNS 5

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void die(const char *what) {
    fprintf(stderr, "bench_arena: %s\n", what);
    exit(1);
}

static void *memory(size_t bytes) {
    void *p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!p) die("out of memory");
    memset(p, 0, bytes);
    return p;
}

static void result(const char *name, double value, const char *unit) {
    printf("BENCH arena_%s %.3f %s\n", name, value, unit);
}

/* ---- directory ---------------------------------------------------------------------------------------------- */

static const struct directory_limits LIMITS = {
    .n_pools = 1, .pages = { PAGES }, .continuations = CONTINUATIONS, .sequences = 64
};

static void write_pages(struct directory *d, const uint32_t *order) {
    uint8_t digest[32] = { 1 };
    for (uint32_t i = 0; i < PAGES; i++) {
        uint32_t page = order[i], block = page % CHAIN;
        digest[0] = (uint8_t)i;
        directory_page_open(d, 0, page,
                            &(struct directory_base){ 1, block, block ? page - 1 : DIRECTORY_NONE, block ? 1 : 0 });
        directory_page_name(d, 0, page, digest);
        directory_page_host(d, 0, page, &(struct directory_host){ (uint64_t)page << 20, i, 64 });
        directory_page_device(d, 0, page, i);
    }
}

static void put_bundles(struct directory *d, uint32_t n_tail) {
    struct directory_bundle b = { .frontier = { CHAIN * 64, 0 },
                                  .last_generation = { 1, 0 },
                                  .named = CHAIN,
                                  .state_slot = DIRECTORY_NONE,
                                  .n_tail = n_tail };
    for (uint32_t i = 0; i < CONTINUATIONS; i++) {
        b.last[0] = i * CHAIN + CHAIN - 1, b.last[1] = DIRECTORY_NONE, b.tag = i;
        directory_bundle_put(d, DIRECTORY_CONTINUATION, i, &b);
    }
}

/* All of it, as recovery reads it: every page, every bundle. */
static uint64_t load_all(const struct directory *d) {
    struct directory_page page;
    struct directory_bundle bundle;
    uint64_t n = 0;
    bool damaged;
    for (uint32_t i = 0; i < PAGES; i++)
        n += directory_page_load(d, 0, i, &page, &damaged) && page.named && page.has_host;
    for (uint32_t i = 0; i < CONTINUATIONS; i++)
        n += directory_bundle_load(d, DIRECTORY_CONTINUATION, i, &bundle, &damaged);
    return n;
}

/* The best of some runs: what is asked is the cost, and others use this machine too. */
#define BEST(seconds, ...)                                                                                             \
    do {                                                                                                               \
        seconds = 1e9;                                                                                                 \
        for (int run_ = 0; run_ < RUNS; run_++) {                                                                      \
            double begin_ = now();                                                                                     \
            __VA_ARGS__;                                                                                               \
            double took_ = now() - begin_;                                                                             \
            if (took_ < seconds) seconds = took_;                                                                      \
        }                                                                                                              \
    } while (0)

static void bench_directory(void) {
    struct directory *d;
    size_t bytes = directory_bytes(&LIMITS), used = (size_t)PAGES * 128 + (size_t)CONTINUATIONS * 384;
    void *tables = memory(bytes), *copy = memory(bytes);
    uint32_t *order = memory(PAGES * sizeof *order);
    uint64_t state = 1, loaded = 0;
    double in_order, shuffled, put, closed, load, copied;
    directory_format(tables, &LIMITS, 42);
    if (directory_open(memory(directory_handle_bytes()), tables, &LIMITS, 42, &d)) die("directory_open");
    for (uint32_t i = 0; i < PAGES; i++) order[i] = i;
    BEST(in_order, write_pages(d, order));
    for (uint32_t i = PAGES - 1; i; i--) {
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
        uint32_t k = (uint32_t)((state >> 33) % (i + 1)), t = order[i];
        order[i] = order[k], order[k] = t;
    }
    BEST(shuffled, write_pages(d, order));
    result("page_record_ns", in_order / PAGES * 1e9, "ns");
    result("page_record_shuffled_ns", shuffled / PAGES * 1e9, "ns");
    BEST(put, put_bundles(d, DIRECTORY_TAIL));
    result("bundle_put_tail63_ns", put / CONTINUATIONS * 1e9, "ns");
    BEST(put, put_bundles(d, 0));
    result("bundle_put_ns", put / CONTINUATIONS * 1e9, "ns");
    BEST(load, loaded = load_all(d));
    if (loaded != PAGES + CONTINUATIONS) die("not everything came back");
    BEST(copied, memcpy(copy, tables, used));
    result("load_10000x100_ms", load * 1e3, "ms");
    result("load_ratio_to_memcpy", load / copied, "x");
    double begin = now();
    for (uint32_t i = 0; i < PAGES; i++) directory_page_close(d, 0, order[i]);
    closed = now() - begin;
    result("page_close_shuffled_ns", closed / PAGES * 1e9, "ns");
    result("directory_bytes_a_page", 128, "B");
    free(tables), free(copy), free(order);
}

/* ---- extents ------------------------------------------------------------------------------------------------ */

static void bench_extents(void) {
    const uint32_t n = 100000;
    struct extent_arena *a;
    size_t bytes = extent_bytes(2 * n);
    extent_id *ids = memory(2 * n * sizeof *ids);
    uint64_t *scratch = memory(n * sizeof *scratch);
    struct extent_page_want want = { 256, n, 0 };
    uint32_t placed;
    double seconds;
    if (extent_init(memory(bytes), bytes, UINT64_C(512) * n, 2 * n, &a)) die("extent_init");
    BEST(seconds, if (!extent_pages_fit(a, NULL, 0, &want, 1, scratch, &placed)) die("fit"));
    result("fit_100000_adjacent_ms", seconds * 1e3, "ms");
    double begin = now();
    if (extent_take_pages(a, 256, n, 0, ids) || extent_take_pages(a, 256, n, 0, ids + n)) die("take");
    result("take_100000_adjacent_ms", (now() - begin) / 2 * 1e3, "ms");
    begin = now();
    for (uint32_t i = 0; i < n; i++)
        if (extent_release(a, ids[2 * i])) die("release");
    result("release_scattered_ns", (now() - begin) / n * 1e9, "ns");
    BEST(seconds, if (!extent_pages_fit(a, NULL, 0, &want, 1, scratch, &placed)) die("fit"));
    result("fit_100000_scattered_ms", seconds * 1e3, "ms");
    begin = now();
    if (extent_take_pages(a, 256, n, 0, ids)) die("take");
    result("take_100000_scattered_ms", (now() - begin) * 1e3, "ms");
    want.pages = 1000;
    BEST(seconds, if (!extent_pages_fit(a, ids, 1000, &want, 1, scratch, &placed)) die("fit"));
    result("fit_1000_after_1000_drops_us", seconds * 1e6, "us");
    free(a), free(ids), free(scratch);
}

/* ---- segment ------------------------------------------------------------------------------------------------ */

struct part {
    uint8_t *address;
    uint64_t bytes;
};

static void *set_part(void *argument) {
    const struct part *p = argument;
    memset(p->address, 1, p->bytes);
    return NULL;
}

/* A new object of the same size, mapped and written by plain memset with as many threads. */
static double plain_memset(const char *name, uint64_t bytes, uint32_t threads) {
    pthread_t thread[64];
    struct part part[64];
    double begin = now();
    int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)bytes)) die("shm_open");
    uint8_t *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) die("mmap");
    for (uint32_t i = 0; i < threads; i++) {
        part[i] = (struct part){ base + bytes / threads * i, bytes / threads };
        if (pthread_create(&thread[i], NULL, set_part, &part[i])) die("pthread_create");
    }
    for (uint32_t i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    double seconds = now() - begin;
    munmap(base, bytes), close(fd), shm_unlink(name);
    return seconds;
}

static void bench_segment(uint64_t bytes) {
    char name[48], plain[64], err[512];
    cpu_set_t cpus;
    uint32_t threads = sched_getaffinity(0, sizeof cpus, &cpus) ? 1 : (uint32_t)CPU_COUNT(&cpus);
    if (threads > 16) threads = 16;
    snprintf(name, sizeof name, "/kvd-bench-arena-%d", (int)getpid()), snprintf(plain, sizeof plain, "%s-plain", name);
    struct segment_config c = { .name = name,
                                .arena_bytes = bytes,
                                .numa_node = SEGMENT_ANY_NODE,
                                .threads = threads,
                                .limits = { .n_pools = 1, .pages = { 1000 }, .continuations = 100, .sequences = 10 } };
    struct segment *segment;
    enum segment_found found;
    double made = 1e9, adopted = 1e9, set = 1e9;
    for (int run = 0; run < RUNS; run++) {
        double begin = now();
        if (segment_open(&c, &segment, &found, err, sizeof err)) die(err);
        double seconds = now() - begin;
        if (seconds < made) made = seconds;
        segment_close(segment);
        begin = now();
        if (segment_open(&c, &segment, &found, err, sizeof err) || found != SEGMENT_ADOPTED) die("adopt");
        seconds = now() - begin;
        if (seconds < adopted) adopted = seconds;
        segment_close(segment);
        segment_destroy(name);
        seconds = plain_memset(plain, bytes, threads);
        if (seconds < set) set = seconds;
    }
    result("segment_ready_ms", made * 1e3, "ms");
    result("segment_adopted_ms", adopted * 1e3, "ms");
    result("plain_memset_ms", set * 1e3, "ms");
    result("segment_ready_ratio_to_memset", made / set, "x");
    c.arena_bytes = UINT64_C(1) << 50;
    double begin = now();
    if (!segment_open(&c, &segment, &found, err, sizeof err)) die("a PiB fits");
    result("segment_refused_ms", (now() - begin) * 1e3, "ms");
}

int main(int argc, char **argv) {
    uint64_t mib = argc > 1 ? strtoull(argv[1], NULL, 10) : 1024;
    if (!mib) return 2;
    bench_directory();
    bench_extents();
    bench_segment(mib << 20);
    return 0;
}
