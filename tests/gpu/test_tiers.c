/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages of a CUDA device that go to the host arena and come back, and that outlive their kvd: copies beside a worker
 * whose kernels keep the GPU busy, restarts in order and by SIGKILL, and kvd replaced under a live worker (export =
 * vmm). CONT-3, PAGE-7, HOST-2, SRV-8, ROW-5, POOL-2. Runs on a GPU or on the stand-in driver; skips (77) where there
 * is neither. With --bench: times of a host hit and a device hit, and of taking over pools, as BENCH lines.
 */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "ipc.h"
#include "scene.h"

#define ARENA "[host]\narena = 64MiB\nscrub = 0\n"
#define VMM "[devices]\nexport = vmm\n"

static struct driver driver;
static struct e2e_daemon daemon_;
static struct e2e_holder holder;
static kvd_client *scheduler;
static struct ipc_worker worker[2]; /* one a rank */
static uint32_t ranks;
static kvd_group_id group;

/* What activations are leased to: the worker, or the group of the ranks. */
static struct kvd_activation want_of(uint32_t ensure, uint32_t ahead) {
    struct kvd_activation want = scene_want(ranks > 1 ? (kvd_session_id){ 0 } : worker[0].session, ensure, ahead);
    if (ranks > 1) want.group = group;
    return want;
}

static bool open_group(void) {
    struct kvd_group members = { .n = ranks };
    for (uint32_t r = 0; r < ranks; r++) members.members[r] = worker[r].session;
    return ranks == 1 || KVT_EQ(kvd_open_group(scheduler, &members, &group, NULL), KVD_OK);
}

static bool open_workers(void) {
    for (uint32_t r = 0; r < ranks; r++)
        if (!ipc_open_rank(&worker[r], &daemon_, r)) return false;
    return open_group();
}

static void kill_workers(void) {
    for (uint32_t r = 0; r < ranks; r++) ipc_kill(&worker[r]);
}

static bool open_stage(struct e2e_setup setup) {
    memset(&holder, 0, sizeof holder);
    setup.device = "cuda";
    setup.holder = &holder;
    ranks = setup.ranks ? setup.ranks : 1;
    if (!e2e_daemon_start(&daemon_, &setup)) return false;
    scheduler = e2e_connect(&daemon_, KVD_ROLE_ADMIN, "scheduler");
    return scheduler && open_workers();
}

static void close_stage(void) {
    kill_workers();
    kvd_disconnect(scheduler);
    scheduler = NULL;
    e2e_daemon_free(&daemon_);
    e2e_holder_free(&holder);
}

static bool replace(int signal) {
    kvd_disconnect(scheduler);
    scheduler = NULL;
    KVT_EQ_I(e2e_daemon_stop(&daemon_, signal), signal == SIGKILL ? -SIGKILL : 0);
    if (!e2e_daemon_restart(&daemon_)) return false;
    scheduler = e2e_connect(&daemon_, KVD_ROLE_ADMIN, "scheduler");
    return scheduler != NULL;
}

static enum kvd_status commit(kvd_sequence sequence, uint32_t tokens) {
    struct ipc_call call = { .op = IPC_ROUND };
    struct ipc_answer answer = { 0 };
    call.item = scene_item(sequence);
    call.item.pool[0].commit = tokens;
    KVT_TRUE(ipc_do(&worker[0], &call, &answer));
    return answer.status == KVD_OK ? (enum kvd_status)answer.result.status : answer.status;
}

/* Every rank's planes hold bytes of their own. */
static void columns(enum ipc_op op, uint32_t row, uint64_t seed, uint32_t n) {
    for (uint32_t r = 0; r < ranks; r++) KVT_EQ(ipc_columns(&worker[r], op, 0, row, seed + 1000 * r, 0, n), KVD_OK);
}

static struct kvd_activated run(uint64_t text, uint64_t seed, uint32_t n) {
    struct kvd_activation want = want_of(n, 64);
    struct kvd_activated a = scene_activate(scheduler, &want);
    columns(IPC_WRITE, a.pool[0].row, seed, n);
    KVT_EQ(commit(a.sequence, n), KVD_OK);
    scene_name(scheduler, a.sequence, text, n);
    return a;
}

static kvd_continuation retained(uint64_t text, uint64_t seed, uint32_t n) {
    return scene_retain(scheduler, run(text, seed, n).sequence, text, n);
}

static void finish(kvd_sequence sequence) {
    struct kvd_finish how = { .sequence = sequence };
    struct kvd_finished finished;
    KVT_EQ(kvd_finish(scheduler, &how, &finished, NULL), KVD_OK);
}

/* Found, activated, every byte as the kernel's process wrote it. Returns the pages that came from the host. */
static uint32_t reproduce(uint64_t text, uint64_t seed, uint32_t n) {
    struct kvd_hit hit = scene_find(scheduler, text, n + 1);
    struct kvd_activation want = want_of(n + 1, 64);
    if (!KVT_EQ(hit.usable, n)) return 0;
    want.from = hit.continuation;
    want.frontier = n;
    want.keep = true;
    struct kvd_activated a = scene_activate(scheduler, &want);
    columns(IPC_CHECK, a.pool[0].row, seed, n);
    finish(a.sequence);
    return a.restored[0];
}

static void demote(kvd_continuation c, uint32_t pages) {
    struct kvd_moved moved = { 0 };
    struct kvd_error error = { 0 };
    if (!KVT_EQ(kvd_demote(scheduler, c, false, &moved, &error), KVD_OK)) printf("    %s\n", error.message);
    KVT_EQ(moved.pages[0], pages);
}

/* ---- there and back ---- */

static void there_and_back(uint32_t n_ranks, const char *more) {
    uint64_t one = e2e_stream(1, 9000, 0), two = e2e_stream(2, 9000, 0);
    KVT_NEED(open_stage((struct e2e_setup){ .ranks = n_ranks, .more = more, .capacity_tokens = 8192 }));
    kvd_continuation a = retained(one, 5, 1000), b = retained(two, 6, 640);
    demote(a, 16);
    demote(b, 10);
    KVT_EQ(scene_stats(scheduler).pool[0].allocated, 0);
    uint64_t other = e2e_stream(3, 9000, 0);
    kvd_continuation c = retained(other, 7, 4000); /* where they were is somebody else's now */
    KVT_EQ(reproduce(one, 5, 1000), 16);
    KVT_EQ(reproduce(two, 6, 640), 10);
    KVT_EQ(reproduce(other, 7, 4000), 0);
    KVT_EQ(kvd_release(scheduler, c, NULL), KVD_OK);
    scene_audit(scheduler);
    close_stage();
}

static void page_7_records(void) { there_and_back(1, ARENA); }
static void page_7_dense_planes(void) { there_and_back(1, "[model]\narrangement = dense\n" ARENA); }

/* Rule 1 of the device work: copies do not wait for the time slices of a process that keeps the SMs busy for ever. */
static void page_7_beside_an_endless_kernel(void) {
    uint64_t one = e2e_stream(1, 9000, 0);
    KVT_NEED(open_stage((struct e2e_setup){ .more = ARENA, .capacity_tokens = 8192 }));
    kvd_continuation a = retained(one, 5, 1000);
    struct kvd_activated busy = run(e2e_stream(2, 9000, 0), 8, 100);
    struct ipc_call call = { .op = IPC_SCRIBBLE, .row = busy.pool[0].row, .from = 80 };
    struct ipc_answer answer = { 0 };
    if (!driver.fake) KVT_TRUE(ipc_do(&worker[0], &call, &answer)); /* the stand-in runs no kernels */
    demote(a, 16);
    struct kvd_activation want = want_of(1001, 64);
    want.from = scene_find(scheduler, one, 1001).continuation;
    want.frontier = 1000;
    want.keep = true;
    struct kvd_activated there = scene_activate(scheduler, &want);
    KVT_EQ(there.restored[0], 16);
    kill_workers(); /* the kernel ends with its process */
    KVT_NEED(open_workers());
    KVT_EQ(reproduce(one, 5, 1000),
           1); /* full pages are there: what the worker was running is a continuation now; the tail is its own */
    scene_audit(scheduler);
    close_stage();
}

/* ---- ends of the daemon ---- */

static void stopped_and_killed(uint32_t n_ranks) {
    uint64_t one = e2e_stream(1, 9000, 0);
    KVT_NEED(open_stage((struct e2e_setup){ .ranks = n_ranks, .more = ARENA, .capacity_tokens = 8192 }));
    retained(one, 5, 1000);
    kill_workers();
    KVT_NEED(replace(SIGTERM) && open_workers());
    KVT_EQ(reproduce(one, 5, 1000), 16);
    kill_workers();
    KVT_NEED(replace(SIGKILL) && open_workers());
    KVT_EQ(reproduce(one, 5, 1000), 16);
    scene_audit(scheduler);
    close_stage();
}

static void cont_3_ipc_demotes_at_an_orderly_stop(void) { stopped_and_killed(1); }

/* kvd is killed and replaced under a worker that lives: it learns the new epoch before its next launch, attaches anew,
 * and goes on with every page. */
static void replaced(int signal, uint32_t n_ranks, const char *more) {
    uint64_t one = e2e_stream(1, 9000, 0), running = e2e_stream(2, 9000, 0);
    KVT_NEED(open_stage((struct e2e_setup){ .ranks = n_ranks, .more = more, .capacity_tokens = 8192 }));
    retained(one, 5, 1000);
    struct kvd_activated a = run(running, 6, 640);
    KVT_NEED(replace(signal));
    KVT_EQ(commit(a.sequence, 640), KVD_ABORTED);
    for (uint32_t r = 0; r < ranks; r++) {
        KVT_EQ(scene_stats(scheduler).former_drivers, ranks - r);
        KVT_NEED(ipc_reopen(&worker[r], &daemon_));
    }
    KVT_EQ(scene_stats(scheduler).former_drivers, 0);
    KVT_NEED(open_group());
    KVT_EQ(reproduce(one, 5, 1000), 0);
    KVT_EQ(reproduce(running, 6, 640), 0);
    scene_audit(scheduler);
    close_stage();
}

static void cont_3_vmm_sigkill(void) { replaced(SIGKILL, 1, VMM ARENA); }
static void cont_3_vmm_sigterm(void) { replaced(SIGTERM, 1, VMM ARENA); }
static void cont_3_vmm_without_an_arena(void) { replaced(SIGKILL, 1, VMM); }

/* ---- two ranks on two GPUs: one page of the arena holds the bytes of both ---- */

static bool two_devices(void) {
    int n = 0;
    DRIVER_OK(driver.cuDeviceGetCount(&n));
    if (n < 2) printf("  SKIPPED: needs two GPUs\n");
    return n >= 2;
}

static void pool_2_there_and_back(void) {
    if (two_devices()) there_and_back(2, ARENA);
}
static void pool_2_ipc_stopped_and_killed(void) {
    if (two_devices()) stopped_and_killed(2);
}
static void pool_2_vmm_replaced(void) {
    if (two_devices()) replaced(SIGKILL, 2, VMM ARENA);
}

/* ---- times ---- */

static double activate_ms(uint64_t text, uint32_t n, uint32_t *ret_restored) {
    struct kvd_hit hit = scene_find(scheduler, text, n + 1);
    struct kvd_activation want = want_of(n + 1, 64);
    want.from = hit.continuation;
    want.frontier = n;
    want.keep = true;
    double begin = e2e_now();
    struct kvd_activated a = scene_activate(scheduler, &want);
    double ms = (e2e_now() - begin) * 1e3;
    *ret_restored = a.restored[0];
    finish(a.sequence);
    return ms;
}

/* Activation of 10,000 tokens from the device and from the host; the geometry of a 27B-class hybrid (16 layers with
 * full attention, 4 kv heads, D 256). */
static void bench_hit(const char *profile, uint32_t n_ranks) {
    uint64_t one = e2e_stream(1, 90000, 0);
    const struct e2e_setup setup = { .profile = profile,
                                     .ranks = n_ranks,
                                     .layers = 16,
                                     .kv_heads = 4,
                                     .head_dim = 256,
                                     .max_context = 16384,
                                     .capacity_tokens = 32768,
                                     .more = "[host]\narena = 2GiB\nscrub = 0\n" };
    double device = 1e9, host = 1e9, copied;
    char name[64];
    uint32_t restored;
    KVT_NEED(open_stage(setup));
    struct kvd_activation want = want_of(10000, 64);
    struct kvd_activated a = scene_activate(scheduler, &want);
    KVT_EQ(commit(a.sequence, 10000), KVD_OK);
    scene_name(scheduler, a.sequence, one, 10000);
    kvd_continuation c = scene_retain(scheduler, a.sequence, one, 10000);
    for (int k = 0; k < 20; k++) {
        double ms = activate_ms(one, 10000, &restored);
        device = ms < device ? ms : device;
    }
    double begin = e2e_now();
    demote(c, 157);
    copied = (e2e_now() - begin) * 1e3;
    for (int k = 0; k < 20; k++) {
        double ms = activate_ms(one, 10000, &restored);
        KVT_EQ(restored, 157);
        host = ms < host ? ms : host;
    }
    double gb = (double)scene_stats(scheduler).host_occupied / 1e9;
    snprintf(name, sizeof name, "BENCH hit10k.%s.%u", profile, n_ranks);
    printf("%s.device_ms %.3f ms\n%s.host_ms %.3f ms\n%s.restore_rate %.1f GB/s\n%s.demote_rate %.1f GB/s\n", name,
           device, name, host, name, gb / ((host - device) / 1e3), name, gb / (copied / 1e3));
    close_stage();
}

/* What the links of one device and of two at once do with plain copies of pinned memory: what the rates above can be.
 */
static void bench_links(void) {
    enum { BYTES = 256 << 20, TIMES = 8 };
    CUdeviceptr at[2];
    CUstream stream[2];
    CUcontext context[2];
    void *host[2];
    for (uint32_t n = 1; n <= 2 && (n == 1 || two_devices()); n++) {
        DRIVER_OK(driver.cuDevicePrimaryCtxRetain(&context[n - 1], (CUdevice)(n - 1)));
        DRIVER_OK(driver.cuCtxSetCurrent(context[n - 1]));
        DRIVER_OK(driver.cuMemAlloc(&at[n - 1], BYTES));
        DRIVER_OK(driver.cuMemHostAlloc(&host[n - 1], BYTES, CU_MEMHOSTALLOC_PORTABLE));
        DRIVER_OK(driver.cuStreamCreate(&stream[n - 1], CU_STREAM_NON_BLOCKING));
        for (int in = 0; in < 2; in++) {
            double begin = e2e_now();
            for (int i = 0; i < TIMES; i++)
                for (uint32_t d = 0; d < n; d++) {
                    DRIVER_OK(driver.cuCtxSetCurrent(context[d]));
                    if (in) DRIVER_OK(driver.cuMemcpyHtoDAsync(at[d], host[d], BYTES, stream[d]));
                    else DRIVER_OK(driver.cuMemcpyDtoHAsync(host[d], at[d], BYTES, stream[d]));
                }
            for (uint32_t d = 0; d < n; d++) {
                DRIVER_OK(driver.cuCtxSetCurrent(context[d]));
                DRIVER_OK(driver.cuStreamSynchronize(stream[d]));
            }
            printf("BENCH link.%u.%s %.1f GB/s\n", n, in ? "in" : "out",
                   (double)n * TIMES * BYTES / (e2e_now() - begin) / 1e9);
        }
    }
}

static void bench_hits(void) {
    static const char *const profiles[] = { "bf16", "int8", "k8v4", "nvfp4" };
    for (uint32_t n_ranks = 1; n_ranks <= 2; n_ranks++)
        for (uint32_t i = 0; i < 4 && (n_ranks == 1 || two_devices()); i++) bench_hit(profiles[i], n_ranks);
}

/* How long a client is without kvd when it is replaced, with pools that are taken over (64 GiB of tokens where the
 * device has them). */
static void bench_replaced(void) {
    KVT_NEED(open_stage((struct e2e_setup){ .layers = 16,
                                            .kv_heads = 4,
                                            .head_dim = 256,
                                            .max_context = 131072,
                                            .capacity_tokens = 1000000,
                                            .more = VMM }));
    kvd_disconnect(scheduler);
    double begin = e2e_now();
    e2e_daemon_stop(&daemon_, SIGKILL);
    KVT_NEED(e2e_daemon_restart(&daemon_));
    printf("BENCH replaced.64gib.ready_ms %.0f ms\n", (e2e_now() - begin) * 1e3);
    scheduler = e2e_connect(&daemon_, KVD_ROLE_ADMIN, "scheduler");
    KVT_NEED(scheduler && ipc_reopen(&worker[0], &daemon_));
    printf("BENCH replaced.64gib.attach_ms %.2f ms\n", worker[0].attach_ms);
    close_stage();
}

/* READY with and without an arena of 32 GiB, touched and pinned; then again over the arena that is there. */
static void bench_arena(void) {
    const char *const more[] = { "", "[host]\narena = 32GiB\nscrub = 0\n" };
    double took[2];
    for (int i = 0; i < 2; i++) {
        double begin = e2e_now();
        KVT_NEED(open_stage((struct e2e_setup){ .capacity_tokens = 8192, .more = more[i] }));
        took[i] = e2e_now() - begin;
        if (i == 1) {
            begin = e2e_now();
            e2e_daemon_stop(&daemon_, SIGKILL);
            KVT_NEED(e2e_daemon_restart(&daemon_));
            printf("BENCH arena32.adopted_s %.2f s\n", e2e_now() - begin);
        }
        close_stage();
    }
    printf("BENCH arena32.none_s %.2f s\nBENCH arena32.new_s %.2f s\nBENCH arena32.cost_s %.2f s\n", took[0], took[1],
           took[1] - took[0]);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(page_7_records),
                                             KVT_CASE(page_7_dense_planes),
                                             KVT_CASE(page_7_beside_an_endless_kernel),
                                             KVT_CASE(cont_3_ipc_demotes_at_an_orderly_stop),
                                             KVT_CASE(cont_3_vmm_sigkill),
                                             KVT_CASE(cont_3_vmm_sigterm),
                                             KVT_CASE(cont_3_vmm_without_an_arena),
                                             KVT_CASE(pool_2_there_and_back),
                                             KVT_CASE(pool_2_ipc_stopped_and_killed),
                                             KVT_CASE(pool_2_vmm_replaced),
                                             { 0 } };
    static const struct kvt_case benches[] = {
        KVT_CASE(bench_links), KVT_CASE(bench_hits), KVT_CASE(bench_replaced), KVT_CASE(bench_arena), { 0 }
    };
    if (argc > 1 && strcmp(argv[1], "--worker") == 0) return ipc_worker_main();
    if (!driver_load(&driver)) {
        printf("SKIPPED: no CUDA driver, or no device\n");
        return 77;
    }
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) return kvt_main("tiers bench", benches, 1, argv);
    return kvt_main("tiers on a CUDA device", cases, argc, argv);
}
