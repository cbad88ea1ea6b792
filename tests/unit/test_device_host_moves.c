/* SPDX-License-Identifier: Apache-2.0
 *
 * Moves of pages between a host device and pinned memory: packed bytes of every layout, runs, order, delays, loss.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "device.h"
#include "device_host_hook.h"
#include "groups_around.h"
#include "kvt.h"

#define MIB (UINT64_C(1) << 20)
#define PAGES 9u

static char err[512];

static struct device *open_device(void) {
    struct device *device = NULL;
    char prefix[48];
    snprintf(prefix, sizeof prefix, "/kvd-test-%d-", (int)getpid());
    struct device_config config = { .kind = DEVICE_HOST, .memory_bytes = 512 * MIB };
    if (!KVT_OK(device_open(&config, &device, err, sizeof err))) printf("  %s\n", err);
    return device;
}

/* A pool on a device, with random bytes in every byte of its region, and host memory for n packed pages. */
struct rig {
    struct device *device;
    struct device_region *region;
    struct geom_pool_spec spec;
    uint32_t rank, n_pages;
    uint64_t region_bytes, packed;
    uint8_t *memory, *host; /* the region; pinned memory of n_host pages */
    uint32_t n_host;
};

static void fill(uint8_t *at, uint64_t bytes, uint64_t *seed) {
    for (uint64_t i = 0; i < bytes; i++) at[i] = (uint8_t)(kvt_random(seed) >> 17);
}

static bool rig_up(struct rig *rig, const struct geom_pool_spec *spec, uint32_t rank, uint32_t n_pages, uint32_t n_host,
                   uint64_t *seed) {
    *rig = (struct rig){ .spec = *spec, .rank = rank, .n_pages = n_pages, .n_host = n_host };
    rig->device = open_device();
    rig->region_bytes = geom_region_bytes(spec, n_pages);
    rig->packed = geom_packed_bytes(spec);
    if (!rig->device ||
        !KVT_OK(device_region_new(rig->device, "main-r0", rig->region_bytes, 0, &rig->region, err, sizeof err)))
        return false;
    rig->memory = device_region_address(rig->region);
    rig->host = aligned_alloc(4096, (n_host * rig->packed + 4095) / 4096 * 4096);
    if (!KVT_TRUE(rig->host != NULL) ||
        !KVT_OK(device_pin(rig->device, rig->host, n_host * rig->packed, err, sizeof err)))
        return false;
    fill(rig->memory, rig->region_bytes, seed);
    fill(rig->host, n_host * rig->packed, seed);
    return true;
}

static void rig_down(struct rig *rig) {
    device_close(rig->device);
    free(rig->host);
}

static bool start(struct rig *rig, enum device_direction direction, const struct device_move *moves, uint32_t n,
                  uint64_t *ret_ticket, bool *ret_inline) {
    struct device_moves all = { .spec = &rig->spec,
                                .n_pages = rig->n_pages,
                                .rank = rig->rank,
                                .region = rig->region,
                                .direction = direction,
                                .moves = moves,
                                .n = n };
    if (KVT_OK(device_move(rig->device, &all, ret_ticket, ret_inline, err, sizeof err))) return true;
    printf("  %s\n", err);
    return false;
}

static bool await(struct device *device, enum device_direction direction, uint64_t ticket) {
    uint64_t done = 0, count;
    for (int i = 0; i < 200 && !device_poll_moves(device, direction, &done, err, sizeof err) && done < ticket; i++) {
        struct pollfd p = { .fd = device_event_fd(device), .events = POLLIN };
        if (poll(&p, 1, 100) == 1) (void)!read(p.fd, &count, sizeof count);
    }
    return done >= ticket;
}

static bool move(struct rig *rig, enum device_direction direction, const struct device_move *moves, uint32_t n) {
    uint64_t ticket;
    bool inline_done;
    return start(rig, direction, moves, n, &ticket, &inline_done) &&
           KVT_TRUE(inline_done || await(rig->device, direction, ticket));
}

/* What HOST-2 says, from planes and addresses (GEOM-4, GEOM-5), not from pieces: the model that moves are held to. */
static void pack(const struct rig *rig, uint32_t page, uint8_t *to) {
    uint32_t count = geom_plane_count(&rig->spec);
    memset(to, 0, rig->packed);
    for (uint32_t i = 0; i < count; i++) {
        struct geom_plane p;
        geom_plane_at(&rig->spec, rig->n_pages, rig->rank, i, &p);
        bool page_major = p.order == GEOM_PAGE_MAJOR;
        uint64_t page_stride = page_major ? p.nb3 : p.nb2, head_stride = page_major ? p.nb2 : p.nb3;
        for (uint32_t h = 0; h < p.n_heads; h++)
            memcpy(to + p.packed_offset + h * p.head_bytes,
                   rig->memory + p.offset + page * page_stride + h * head_stride, p.head_bytes);
    }
}

static const struct { uint32_t layers, heads; } shapes[] = { { 1, 2 }, { 3, 4 }, { 5, 2 } };

/* The packed bytes of a page are a function of its columns alone: the same for both orders, both arrangements, padding
 * zero (HOST-2); a page that comes back is the page that went, and no other byte of the region or the arena changes. */
static void host_2_packed_bytes_of_every_layout(void) {
    uint64_t seed = kvt_seed();
    for (uint32_t i = 0; i < KVD_N_STORAGE * 4 * 3 * 3; i++) {
        uint32_t storage = i % KVD_N_STORAGE, layout = i / KVD_N_STORAGE % 4, round = i / (KVD_N_STORAGE * 12),
                 ranks = 1 + (round > 0), shape = i / (KVD_N_STORAGE * 4) % 3;
        struct geom_pool_spec spec = { .storage = (enum kvd_storage)storage,
                                       .order = (enum geom_order)(layout & 1),
                                       .arrangement = (enum geom_arrangement)(layout >> 1),
                                       .n_layers = shapes[shape].layers,
                                       .n_kv_heads = shapes[shape].heads,
                                       .head_dim = storage ? 256 : 36,
                                       .n_ranks = ranks };
        struct rig rig;
        if (round == 2) spec = groups_around(&spec); /* GRP-1 */
        if (!rig_up(&rig, &spec, ranks - 1, PAGES, PAGES, &seed)) return;
        uint8_t *want = malloc(rig.packed * PAGES), *before = malloc(rig.region_bytes);
        memcpy(want, rig.host, rig.packed * PAGES);
        memcpy(before, rig.memory, rig.region_bytes);
        /* A run of three, and single pages, one of them going downwards; places 3 and 7 stay. */
        struct device_move moves[] = { { 4, rig.host },
                                       { 5, rig.host + rig.packed },
                                       { 6, rig.host + 2 * rig.packed },
                                       { 1, rig.host + 8 * rig.packed },
                                       { 0, rig.host + 4 * rig.packed },
                                       { 8, rig.host + 6 * rig.packed } };
        for (uint32_t m = 0; m < 6; m++) pack(&rig, moves[m].page, want + (moves[m].host - rig.host));
        bool same = move(&rig, DEVICE_TO_HOST, moves, 6) && KVT_EQ_MEM(rig.host, want, rig.packed * PAGES);
        fill(rig.memory, rig.region_bytes, &seed);
        uint8_t *after = malloc(rig.region_bytes);
        memcpy(after, rig.memory, rig.region_bytes);
        same = same && move(&rig, HOST_TO_DEVICE, moves, 6);
        uint8_t *page = malloc(rig.packed);
        for (uint32_t m = 0; same && m < 6; m++) {
            pack(&rig, moves[m].page, page);
            same = KVT_EQ_MEM(page, want + (moves[m].host - rig.host), rig.packed);
        }
        /* Back over it by the same pieces: then every byte that was not a moved page's is what it was. */
        for (uint32_t m = 0; m < 6; m++)
            for (uint32_t p = 0; p < geom_piece_count(&spec); p++) {
                struct geom_piece piece;
                geom_piece(&spec, PAGES, rig.rank, moves[m].page, p, &piece);
                memcpy(after + piece.region_offset, before + piece.region_offset, piece.bytes);
            }
        same = same && KVT_EQ_MEM(rig.memory, after, rig.region_bytes);
        if (!same)
            printf("  %s order %u arrangement %u layers %u heads %u ranks %u\n", geom_storage_name(spec.storage),
                   spec.order, spec.arrangement, spec.n_layers, spec.n_kv_heads, ranks);
        free(page);
        free(after);
        free(want);
        free(before);
        rig_down(&rig);
        if (!same) return;
    }
}

static uint64_t operations(struct rig *rig, enum device_direction direction, uint64_t bytes_before, uint64_t pages) {
    struct device_move_stats stats;
    device_get_move_stats(rig->device, direction, &stats);
    KVT_EQ(stats.bytes - bytes_before, pages * geom_rank_page_bytes(&rig->spec));
    return stats.operations;
}

/* Adjacent ids with adjacent packed forms come to fewer, wider copies; anything else breaks a run (HOST-6). */
static void host_6_runs_are_merged(void) {
    static const struct {
        enum geom_order order;
        enum geom_arrangement arrangement;
        enum kvd_storage storage;
        uint32_t layers, heads, one, many; /* copies of a page, of a run of 40 */
    } cases[] = {
        { GEOM_PAGE_MAJOR, GEOM_RECORD, KVD_STORAGE_K8V4, 6, 2, 1, 6 },
        { GEOM_PAGE_MAJOR, GEOM_DENSE, KVD_STORAGE_K8V4, 6, 2, 4, 24 },
        { GEOM_HEAD_MAJOR, GEOM_DENSE, KVD_STORAGE_BF16, 6, 2, 4, 24 },   /* 2 slots x 2 heads of 6 layers */
        { GEOM_HEAD_MAJOR, GEOM_RECORD, KVD_STORAGE_BF16, 2, 8, 4, 32 },  /* 2 slots x 2 layers of 8 heads */
        { GEOM_PAGE_MAJOR, GEOM_RECORD, KVD_STORAGE_BF16, 64, 1, 1, 40 }, /* a page is fewer than a layer of the run */
    };
    uint64_t seed = kvt_seed();
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct geom_pool_spec spec = { .storage = cases[c].storage,
                                       .order = cases[c].order,
                                       .arrangement = cases[c].arrangement,
                                       .n_layers = cases[c].layers,
                                       .n_kv_heads = cases[c].heads,
                                       .head_dim = cases[c].storage ? 256 : 16,
                                       .n_ranks = 1 };
        struct rig rig;
        struct device_move run[40], apart[40], holes[40];
        if (!rig_up(&rig, &spec, 0, 80, 80, &seed)) return;
        for (uint32_t i = 0; i < 40; i++) {
            run[i] = (struct device_move){ 7 + i, rig.host + (20 + i) * rig.packed };
            apart[i] = (struct device_move){ 7 + 39 - i, rig.host + i * rig.packed }; /* ids go down */
            holes[i] = (struct device_move){ 7 + i, rig.host + 2 * i * rig.packed };  /* places are not adjacent */
        }
        for (int direction = 0; direction < 2; direction++) {
            enum device_direction way = (enum device_direction)direction;
            struct device_move_stats s;
            KVT_NEED(move(&rig, way, run, 1));
            KVT_EQ(operations(&rig, way, 0, 1), cases[c].one);
            device_get_move_stats(rig.device, way, &s);
            KVT_NEED(move(&rig, way, run, 40));
            KVT_EQ(operations(&rig, way, s.bytes, 40) - s.operations, cases[c].many);
            device_get_move_stats(rig.device, way, &s);
            KVT_NEED(move(&rig, way, apart, 40) && move(&rig, way, holes, 40));
            KVT_EQ(operations(&rig, way, s.bytes, 80) - s.operations, 80 * cases[c].one);
        }
        rig_down(&rig);
    }
}

/* ---- order, and both directions at once ---------------------------------------------------------------- */

static const struct geom_pool_spec plain = { .storage = KVD_STORAGE_INT8,
                                             .order = GEOM_PAGE_MAJOR,
                                             .arrangement = GEOM_RECORD,
                                             .n_layers = 2,
                                             .n_kv_heads = 2,
                                             .head_dim = 256,
                                             .n_ranks = 1 };

struct delays {
    pthread_mutex_t lock;
    uint64_t seed;
    atomic_int copies[2], dones[2];
    atomic_int held; /* a direction whose steps wait, or -1 */
    atomic_uint_fast64_t last[2];
    atomic_int disorder;
};

static int random_delay(void *context, enum device_direction direction, uint64_t ticket, enum device_host_step step) {
    struct delays *d = context;
    pthread_mutex_lock(&d->lock);
    useconds_t us = kvt_below(&d->seed, 3) ? 0 : kvt_below(&d->seed, 300);
    pthread_mutex_unlock(&d->lock);
    if (us) usleep(us);
    while (atomic_load(&d->held) == (int)direction) usleep(50);
    if (ticket < atomic_load(&d->last[direction])) atomic_fetch_add(&d->disorder, 1);
    atomic_store(&d->last[direction], ticket);
    atomic_fetch_add(step == DEVICE_HOST_BEFORE_COPY ? &d->copies[direction] : &d->dones[direction], 1);
    return 0;
}

/* Tickets of a direction complete in order however long a copy takes, and not before their copies; the other direction
 * and publication go on beside a direction that stands still. */
static void tickets_in_order_directions_apart(void) {
    uint64_t seed = kvt_seed(), tickets[2] = { 0, 0 }, done = 0, ticket;
    struct delays delays = { .lock = PTHREAD_MUTEX_INITIALIZER, .seed = seed, .held = DEVICE_TO_HOST };
    struct device_host_hook hook = { random_delay, &delays };
    struct rig rig;
    bool inline_done = true;
    KVT_NEED(rig_up(&rig, &plain, 0, 32, 32, &seed));
    device_host_set_hook(&hook);
    /* Pages 0..15 go down, 16..31 come up: the two never touch the same page or place. */
    uint8_t *up = malloc(16 * rig.packed), *page = malloc(rig.packed);
    memcpy(up, rig.host + 16 * rig.packed, 16 * rig.packed);
    for (uint32_t i = 0; i < 16; i++) {
        struct device_move there = { i, rig.host + i * rig.packed },
                           back = { 16 + i, rig.host + (16 + i) * rig.packed };
        KVT_TRUE(start(&rig, DEVICE_TO_HOST, &there, 1, &ticket, &inline_done) && ticket == ++tickets[0]);
        KVT_FALSE(inline_done);
        KVT_TRUE(start(&rig, HOST_TO_DEVICE, &back, 1, &ticket, &inline_done) && ticket == ++tickets[1]);
    }
    KVT_TRUE(await(rig.device, HOST_TO_DEVICE, 16));
    KVT_OK(device_poll_moves(rig.device, DEVICE_TO_HOST, &done, err, sizeof err));
    KVT_EQ(done, 0);
    int32_t value = 5;
    struct device_region *table = NULL;
    KVT_OK(device_region_new(rig.device, "table", 4096, 0xff, &table, err, sizeof err));
    struct device_table_write write = { .region = table, .count = 1, .values = &value };
    KVT_OK(device_submit(rig.device, &(struct device_batch){ .writes = &write, .n_writes = 1 }, &ticket, &inline_done,
                         err, sizeof err));
    KVT_TRUE(inline_done);
    atomic_store(&delays.held, -1);
    uint64_t before = 0;
    while (before < 16 && !device_poll_moves(rig.device, DEVICE_TO_HOST, &done, err, sizeof err)) {
        /* What is told is there, in order. */
        for (; before < done; before++) {
            pack(&rig, (uint32_t)before, page);
            KVT_EQ_MEM(rig.host + before * rig.packed, page, rig.packed);
        }
    }
    for (uint32_t i = 0; i < 16; i++) {
        pack(&rig, 16 + i, page);
        KVT_EQ_MEM(page, up + i * rig.packed, rig.packed);
    }
    KVT_EQ_I(atomic_load(&delays.disorder), 0);
    KVT_TRUE(delays.copies[0] == 16 && delays.copies[1] == 16 && delays.dones[0] == 16 && delays.dones[1] == 16);
    /* Freeing a region and unpinning wait for what is queued on them. */
    struct device_move all[16];
    for (uint32_t i = 0; i < 16; i++) all[i] = (struct device_move){ i, rig.host + (2 * i) % 32 * rig.packed };
    memset(rig.host, 0x11, rig.packed);
    for (int i = 0; i < 10; i++) KVT_TRUE(start(&rig, DEVICE_TO_HOST, all, 16, &ticket, &inline_done));
    device_unpin(rig.device, rig.host);
    KVT_OK(device_poll_moves(rig.device, DEVICE_TO_HOST, &done, err, sizeof err));
    KVT_EQ(done, ticket);
    KVT_OK(device_pin(rig.device, rig.host, 32 * rig.packed, err, sizeof err));
    for (int i = 0; i < 10; i++) KVT_TRUE(start(&rig, HOST_TO_DEVICE, all, 16, &ticket, &inline_done));
    device_region_free(rig.region);
    KVT_OK(device_poll_moves(rig.device, HOST_TO_DEVICE, &done, err, sizeof err));
    KVT_EQ(done, ticket);
    device_host_set_hook(NULL);
    free(up);
    free(page);
    rig_down(&rig);
}

/* Small moves need no thread; behind a queued one they queue, too. */
static void small_moves_are_inline(void) {
    uint64_t seed = kvt_seed(), ticket = 0, last = 0;
    struct rig rig;
    bool inline_done = false, queued = false;
    KVT_NEED(rig_up(&rig, &plain, 0, 64, 64, &seed));
    struct device_move one = { 3, rig.host }, many[64];
    for (uint32_t i = 0; i < 64; i++) many[i] = (struct device_move){ i, rig.host + i * rig.packed };
    KVT_TRUE(start(&rig, DEVICE_TO_HOST, &one, 1, &ticket, &inline_done) && inline_done && ticket == 1);
    KVT_TRUE(start(&rig, HOST_TO_DEVICE, NULL, 0, &ticket, &inline_done) && inline_done && ticket == 1);
    uint8_t *page = malloc(rig.packed), *place = rig.host + 63 * rig.packed;
    pack(&rig, 63, page);
    for (int i = 0; i < 50; i++) {
        memset(place, 0, rig.packed);
        KVT_TRUE(start(&rig, DEVICE_TO_HOST, many, 64, &ticket, &inline_done));
        queued = queued || !inline_done;
        KVT_TRUE(start(&rig, DEVICE_TO_HOST, &one, 1, &last, &inline_done) && last == ticket + 1);
        KVT_TRUE(inline_done || await(rig.device, DEVICE_TO_HOST, last));
        KVT_EQ_MEM(place, page, rig.packed);
    }
    KVT_TRUE(queued);
    free(page);
    rig_down(&rig);
}

/* ---- refusals and loss ---------------------------------------------------------------------------------- */

static void bad_moves_change_nothing(void) {
    uint64_t seed = kvt_seed(), ticket = 77, done = 9;
    bool inline_done;
    struct rig rig, other;
    KVT_NEED(rig_up(&rig, &plain, 0, 8, 8, &seed));
    struct device_config second = { .kind = DEVICE_HOST, .memory_bytes = MIB };
    KVT_OK(device_open(&second, &other.device, err, sizeof err));
    KVT_OK(device_region_new(other.device, "x", 4096, 0, &other.region, err, sizeof err));
    uint8_t *before = malloc(8 * rig.packed);
    memcpy(before, rig.host, 8 * rig.packed);
    struct geom_pool_spec broken = plain;
    broken.n_kv_heads = 0;
    struct device_move good[2] = { { 1, rig.host }, { 2, rig.host + rig.packed } };
    struct device_move bad[][2] = { { good[0], { 8, rig.host } },
                                    { good[0], { 1, NULL } },
                                    { good[0], { 1, rig.host - 1 } },
                                    { good[0], { 1, rig.host + 7 * rig.packed + 1 } },
                                    { good[0], { 1, (uint8_t *)UINTPTR_MAX } } };
    struct device_moves all = {
        .spec = &plain, .n_pages = 8, .region = rig.region, .direction = DEVICE_TO_HOST, .moves = good, .n = 2
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct device_moves moves = all;
        moves.moves = bad[i];
        KVT_EQ_I(device_move(rig.device, &moves, &ticket, &inline_done, err, sizeof err), -EINVAL);
        KVT_HAS(err, "move 1 of page");
    }
    for (int i = 0; i < 9; i++) {
        struct device_moves moves = all;
        if (i == 0) moves.spec = NULL;
        if (i == 1) moves.spec = &broken;
        if (i == 2) moves.region = NULL;
        if (i == 3) moves.region = other.region;
        if (i == 4) moves.n_pages = 0;
        if (i == 5) moves.n_pages = 9; /* more than the region has */
        if (i == 6) moves.rank = 1;
        if (i == 7) moves.direction = (enum device_direction)2;
        if (i == 8) moves.moves = NULL;
        KVT_EQ_I(device_move(rig.device, &moves, &ticket, &inline_done, err, sizeof err), -EINVAL);
    }
    KVT_EQ(ticket, 77);
    KVT_EQ_MEM(rig.host, before, 8 * rig.packed);
    KVT_OK(device_poll_moves(rig.device, DEVICE_TO_HOST, &done, err, sizeof err));
    KVT_EQ(done, 0);
    /* Pins: whole, once, not overlapping, forgotten when told. */
    KVT_EQ_I(device_pin(rig.device, rig.host, 100, err, sizeof err), -EEXIST);
    KVT_EQ_I(device_pin(rig.device, rig.host + 8 * rig.packed - 1, 4096, err, sizeof err), -EEXIST);
    KVT_EQ_I(device_pin(rig.device, NULL, 4096, err, sizeof err), -EINVAL);
    KVT_EQ_I(device_pin(rig.device, rig.host, 0, err, sizeof err), -EINVAL);
    KVT_EQ_I(device_pin(rig.device, before, UINT64_MAX, err, sizeof err), -EINVAL);
    static uint8_t rooms[17][64];
    int pinned = 0, r = 0;
    for (int i = 0; i < 17 && !(r = device_pin(rig.device, rooms[i], 64, err, sizeof err)); i++) pinned++;
    KVT_EQ_I(r, -ENOSPC);
    KVT_EQ_I(pinned, 15);
    device_unpin(rig.device, rig.host);
    device_unpin(rig.device, before); /* not pinned: nothing happens */
    KVT_EQ_I(device_move(rig.device, &all, &ticket, &inline_done, err, sizeof err), -EINVAL);
    KVT_HAS(err, "pinned");
    free(before);
    device_close(other.device);
    rig_down(&rig);
}

static int fail_third(void *context, enum device_direction direction, uint64_t ticket, enum device_host_step step) {
    (void)context;
    return direction == DEVICE_TO_HOST && ticket == 3 && step == DEVICE_HOST_BEFORE_COPY ? -5 : 0;
}

/* A device that is lost in the middle says so to everybody, wakes its owner, and can be closed. */
static void lost_in_the_middle(void) {
    uint64_t seed = kvt_seed(), ticket, done = 0, count;
    bool inline_done;
    int32_t value = 1;
    struct device_host_hook hook = { fail_third, NULL };
    struct rig rig;
    KVT_NEED(rig_up(&rig, &plain, 0, 8, 8, &seed));
    device_host_set_hook(&hook);
    memset(rig.host, 0x77, 8 * rig.packed);
    for (uint32_t i = 0; i < 5; i++) {
        struct device_move one = { i, rig.host + i * rig.packed };
        struct device_moves all = { .spec = &plain, .n_pages = 8, .region = rig.region, .moves = &one, .n = 1 };
        int r = device_move(rig.device, &all, &ticket, &inline_done, err, sizeof err);
        KVT_TRUE(r == 0 || (r == -EIO && i > 2)); /* it may be lost already */
    }
    for (int i = 0; i < 100 && !device_poll_moves(rig.device, DEVICE_TO_HOST, &done, err, sizeof err); i++) {
        struct pollfd p = { .fd = device_event_fd(rig.device), .events = POLLIN };
        KVT_NEED(poll(&p, 1, 5000) == 1);
        (void)!read(p.fd, &count, sizeof count);
    }
    KVT_EQ_I(device_poll_moves(rig.device, HOST_TO_DEVICE, &done, err, sizeof err), -EIO);
    KVT_HAS(err, "move 3 to the host failed");
    KVT_EQ_I(device_poll(rig.device, &done, err, sizeof err), -EIO);
    struct device_table_write write = { .region = rig.region, .count = 1, .values = &value };
    KVT_EQ_I(device_submit(rig.device, &(struct device_batch){ .writes = &write, .n_writes = 1 }, &ticket, &inline_done,
                           err, sizeof err),
             -EIO);
    struct device_region *more = NULL;
    KVT_EQ_I(device_region_new(rig.device, "more", 4096, 0, &more, err, sizeof err), -EIO);
    device_unpin(rig.device, rig.host);
    for (uint64_t i = 2 * rig.packed; i < 5 * rig.packed; i++)
        if (rig.host[i] != 0x77) {
            KVT_EQ(rig.host[i], 0x77); /* nothing after the loss was copied */
            break;
        }
    device_host_set_hook(NULL);
    rig_down(&rig);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = {
        KVT_CASE(host_2_packed_bytes_of_every_layout),
        KVT_CASE(host_6_runs_are_merged),
        KVT_CASE(tickets_in_order_directions_apart),
        KVT_CASE(small_moves_are_inline),
        KVT_CASE(bad_moves_change_nothing),
        KVT_CASE(lost_in_the_middle),
        { 0 },
    };
    return kvt_main("device_host_moves", cases, argc, argv);
}
