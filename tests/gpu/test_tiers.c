/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages of a CUDA device that go to the host arena and come back, and that outlive their kvd: copies beside a worker whose kernels keep the GPU busy, restarts
 * in order and by SIGKILL, and kvd replaced under a live worker (export = vmm). CONT-3, PAGE-7, HOST-2, SRV-8, ROW-5. Runs on a GPU or on the stand-in
 * driver; skips (77) where there is neither. With --bench: times of a host hit and a device hit, and of taking over pools, as BENCH lines.
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
static struct ipc_worker worker;

static bool open_stage(struct e2e_setup setup) {
    memset(&holder, 0, sizeof holder);
    setup.device = "cuda";
    setup.holder = &holder;
    if (!e2e_daemon_start(&daemon_, &setup)) return false;
    scheduler = e2e_connect(&daemon_, KVD_ROLE_ADMIN, "scheduler");
    return scheduler && ipc_open(&worker, &daemon_);
}

static void close_stage(void) {
    ipc_kill(&worker);
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
    KVT_TRUE(ipc_do(&worker, &call, &answer));
    return answer.status == KVD_OK ? (enum kvd_status)answer.result.status : answer.status;
}

static struct kvd_activated run(uint64_t text, uint64_t seed, uint32_t n) {
    struct kvd_activation want = scene_want(worker.session, n, 64);
    struct kvd_activated a = scene_activate(scheduler, &want);
    KVT_EQ(ipc_columns(&worker, IPC_WRITE, 0, a.pool[0].row, seed, 0, n), KVD_OK);
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
    struct kvd_activation want = scene_want(worker.session, n + 1, 64);
    if (!KVT_EQ(hit.usable, n)) return 0;
    want.from = hit.continuation;
    want.frontier = n;
    want.keep = true;
    struct kvd_activated a = scene_activate(scheduler, &want);
    KVT_EQ(ipc_columns(&worker, IPC_CHECK, 0, a.pool[0].row, seed, 0, n), KVD_OK);
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

static void there_and_back(const char *more) {
    uint64_t one = e2e_stream(1, 9000, 0), two = e2e_stream(2, 9000, 0);
    KVT_NEED(open_stage((struct e2e_setup){ .more = more, .capacity_tokens = 8192 }));
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

static void page_7_records(void) { there_and_back(ARENA); }
static void page_7_dense_planes(void) { there_and_back("[model]\narrangement = dense\n" ARENA); }

/* Rule 1 of the device work: copies do not wait for the time slices of a process that keeps the SMs busy for ever. */
static void page_7_beside_an_endless_kernel(void) {
    uint64_t one = e2e_stream(1, 9000, 0);
    KVT_NEED(open_stage((struct e2e_setup){ .more = ARENA, .capacity_tokens = 8192 }));
    kvd_continuation a = retained(one, 5, 1000);
    struct kvd_activated busy = run(e2e_stream(2, 9000, 0), 8, 100);
    struct ipc_call call = { .op = IPC_SCRIBBLE, .row = busy.pool[0].row, .from = 80 };
    struct ipc_answer answer = { 0 };
    if (!driver.fake) KVT_TRUE(ipc_do(&worker, &call, &answer)); /* the stand-in runs no kernels */
    demote(a, 16);
    struct kvd_activation want = scene_want(worker.session, 1001, 64);
    want.from = scene_find(scheduler, one, 1001).continuation;
    want.frontier = 1000;
    want.keep = true;
    struct kvd_activated there = scene_activate(scheduler, &want);
    KVT_EQ(there.restored[0], 16);
    ipc_kill(&worker); /* its kernel ends with it */
    KVT_NEED(ipc_open(&worker, &daemon_));
    KVT_EQ(reproduce(one, 5, 1000), 1); /* full pages are there: what the worker was running is a continuation now; the tail is its own */
    scene_audit(scheduler);
    close_stage();
}

/* ---- ends of the daemon ---- */

static void cont_3_ipc_demotes_at_an_orderly_stop(void) {
    uint64_t one = e2e_stream(1, 9000, 0);
    KVT_NEED(open_stage((struct e2e_setup){ .more = ARENA, .capacity_tokens = 8192 }));
    retained(one, 5, 1000);
    ipc_kill(&worker);
    KVT_NEED(replace(SIGTERM) && ipc_open(&worker, &daemon_));
    KVT_EQ(reproduce(one, 5, 1000), 16);
    ipc_kill(&worker);
    KVT_NEED(replace(SIGKILL) && ipc_open(&worker, &daemon_));
    KVT_EQ(reproduce(one, 5, 1000), 16);
    scene_audit(scheduler);
    close_stage();
}

/* kvd is killed and replaced under a worker that lives: it learns the new epoch before its next launch, attaches anew, and goes on with every page. */
static void replaced(int signal, const char *more) {
    uint64_t one = e2e_stream(1, 9000, 0), running = e2e_stream(2, 9000, 0);
    KVT_NEED(open_stage((struct e2e_setup){ .more = more, .capacity_tokens = 8192 }));
    retained(one, 5, 1000);
    struct kvd_activated a = run(running, 6, 640);
    KVT_NEED(replace(signal));
    KVT_EQ(scene_stats(scheduler).former_drivers, 1);
    KVT_EQ(commit(a.sequence, 640), KVD_ABORTED);
    KVT_NEED(ipc_reopen(&worker, &daemon_));
    KVT_EQ(scene_stats(scheduler).former_drivers, 0);
    KVT_EQ(reproduce(one, 5, 1000), 0);
    KVT_EQ(reproduce(running, 6, 640), 0);
    scene_audit(scheduler);
    close_stage();
}

static void cont_3_vmm_sigkill(void) { replaced(SIGKILL, VMM ARENA); }
static void cont_3_vmm_sigterm(void) { replaced(SIGTERM, VMM ARENA); }
static void cont_3_vmm_without_an_arena(void) { replaced(SIGKILL, VMM); }

/* ---- times ---- */

static double activate_ms(uint64_t text, uint32_t n, uint32_t *ret_restored) {
    struct kvd_hit hit = scene_find(scheduler, text, n + 1);
    struct kvd_activation want = scene_want(worker.session, n + 1, 64);
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

/* Activation of 10,000 tokens from the device and from the host; the geometry of a 27B-class hybrid (16 layers with full attention, 4 kv heads, D 256). */
static void bench_hits(void) {
    static const char *const profiles[] = { "bf16", "int8", "k8v4", "nvfp4" };
    for (uint32_t i = 0; i < 4; i++) {
        uint64_t one = e2e_stream(1, 90000, 0);
        const struct e2e_setup setup = { .profile = profiles[i], .layers = 16, .kv_heads = 4, .head_dim = 256, .max_context = 16384, .capacity_tokens = 32768,
                                         .more = "[host]\narena = 2GiB\nscrub = 0\n" };
        double device = 1e9, host = 1e9;
        uint32_t restored;
        KVT_NEED(open_stage(setup));
        struct kvd_activation want = scene_want(worker.session, 10000, 64);
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
        double demoted = (e2e_now() - begin) * 1e3;
        for (int k = 0; k < 20; k++) {
            double ms = activate_ms(one, 10000, &restored);
            KVT_EQ(restored, 157);
            host = ms < host ? ms : host;
        }
        struct kvd_stats stats = scene_stats(scheduler);
        double gib = (double)stats.host_occupied / 1e9;
        printf("BENCH hit10k.%s.device_ms %.3f ms\nBENCH hit10k.%s.host_ms %.3f ms\nBENCH hit10k.%s.restore_rate %.1f GB/s\n"
               "BENCH hit10k.%s.demote_rate %.1f GB/s\n", profiles[i], device, profiles[i], host, profiles[i], gib / ((host - device) / 1e3), profiles[i],
               gib / (demoted / 1e3));
        close_stage();
    }
}

/* How long a client is without kvd when it is replaced, with pools that are taken over (64 GiB of tokens where the device has them). */
static void bench_replaced(void) {
    KVT_NEED(open_stage((struct e2e_setup){ .layers = 16, .kv_heads = 4, .head_dim = 256, .max_context = 131072, .capacity_tokens = 1000000, .more = VMM }));
    kvd_disconnect(scheduler);
    double begin = e2e_now();
    e2e_daemon_stop(&daemon_, SIGKILL);
    KVT_NEED(e2e_daemon_restart(&daemon_));
    printf("BENCH replaced.64gib.ready_ms %.0f ms\n", (e2e_now() - begin) * 1e3);
    scheduler = e2e_connect(&daemon_, KVD_ROLE_ADMIN, "scheduler");
    KVT_NEED(scheduler && ipc_reopen(&worker, &daemon_));
    printf("BENCH replaced.64gib.attach_ms %.2f ms\n", worker.attach_ms);
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
    printf("BENCH arena32.none_s %.2f s\nBENCH arena32.new_s %.2f s\nBENCH arena32.cost_s %.2f s\n", took[0], took[1], took[1] - took[0]);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = {
        KVT_CASE(page_7_records), KVT_CASE(page_7_dense_planes), KVT_CASE(page_7_beside_an_endless_kernel),
        KVT_CASE(cont_3_ipc_demotes_at_an_orderly_stop), KVT_CASE(cont_3_vmm_sigkill), KVT_CASE(cont_3_vmm_sigterm),
        KVT_CASE(cont_3_vmm_without_an_arena), { 0 }
    };
    static const struct kvt_case benches[] = { KVT_CASE(bench_hits), KVT_CASE(bench_replaced), KVT_CASE(bench_arena), { 0 } };
    if (argc > 1 && strcmp(argv[1], "--worker") == 0) return ipc_worker_main();
    if (!driver_load(&driver)) {
        printf("SKIPPED: no CUDA driver, or no device\n");
        return 77;
    }
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) return kvt_main("tiers bench", benches, 1, argv);
    return kvt_main("tiers on a CUDA device", cases, argc, argv);
}
