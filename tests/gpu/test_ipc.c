/* SPDX-License-Identifier: Apache-2.0
 *
 * kvd on a CUDA device, and workers in other processes that map its pools: rows before replies, tail copies, death
 * inside a kernel, imports that are given back, refusals, a device that does not answer. Runs on a GPU or on the
 * stand-in driver; skips (77) where there is neither. With --bench: attach and activation times as BENCH lines.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc.h"
#include "scene.h"

static struct driver driver;
static struct e2e_daemon daemon_;
static kvd_client *scheduler;

static bool open_stage(struct e2e_setup setup) {
    setup.device = "cuda";
    if (!e2e_daemon_start(&daemon_, &setup)) return false;
    scheduler = e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "scheduler");
    return scheduler != NULL;
}

static void close_stage(void) {
    kvd_disconnect(scheduler);
    scheduler = NULL;
    e2e_daemon_free(&daemon_);
}

static bool sequences_are(void *argument) { return scene_stats(scheduler).sequences == *(uint32_t *)argument; }

static bool wait_sequences(uint32_t n) { return KVT_TRUE(e2e_until(sequences_are, &n, 10, NULL)); }

static struct kvd_round_result commit(struct ipc_worker *worker, kvd_sequence sequence, uint32_t main, uint32_t draft) {
    struct ipc_call call = { .op = IPC_ROUND };
    struct ipc_answer answer = { 0 };
    call.item = scene_item(sequence);
    call.item.pool[0].commit = main;
    call.item.pool[1].commit = draft;
    KVT_TRUE(ipc_do(worker, &call, &answer));
    KVT_EQ(answer.status, KVD_OK);
    if (!KVT_EQ(answer.result.status, KVD_OK)) printf("    %s\n", answer.result.message);
    return answer.result;
}

static void finish(kvd_sequence sequence) {
    struct kvd_finish how = { .sequence = sequence };
    struct kvd_finished finished;
    struct kvd_error error;
    if (!KVT_EQ(kvd_finish(scheduler, &how, &finished, &error), KVD_OK)) printf("    %s\n", error.message);
}

/* ---- ROW-3, ROW-4, ROW-6: what another process sees when the reply is here ---------------------- */

static bool row_holds(struct ipc_worker *worker, uint32_t row, uint32_t membership, uint32_t pages) {
    struct ipc_call call = { .op = IPC_ROW, .row = row };
    struct ipc_answer answer = { 0 };
    static bool seen[4096];
    if (!KVT_TRUE(ipc_do(worker, &call, &answer) && answer.status == KVD_OK)) return false;
    memset(seen, 0, sizeof seen);
    for (uint32_t i = 0; i < 64; i++) {
        int32_t e = answer.entries[i];
        bool ok = i < membership ? e >= 0 && (uint32_t)e < pages && !seen[e] : e == -1;
        if (!ok) {
            printf("    row %u, entry %u of %u is %d\n", row, i, membership, e);
            return false;
        }
        if (e >= 0) seen[e] = true;
    }
    return true;
}

static void row_4_rows_are_there_before_the_reply(void) {
    struct ipc_worker driver_of = { 0 }, reader = { 0 };
    uint64_t seed = kvt_seed();
    KVT_NEED(open_stage((struct e2e_setup){ .max_concurrency = 6, .capacity_tokens = 20000 }));
    KVT_NEED(ipc_open(&driver_of, &daemon_) && ipc_open(&reader, &daemon_));
    for (int round = 0; round < 60; round++) {
        struct kvd_activation want = scene_want(driver_of.session, 1 + kvt_below(&seed, 3000), 200);
        struct kvd_activated a = scene_activate(scheduler, &want);
        KVT_TRUE(row_holds(&reader, a.pool[0].row, a.pool[0].membership, 313));
        struct ipc_call call = { .op = IPC_ROUND };
        struct ipc_answer answer = { 0 };
        call.item = scene_item(a.sequence);
        call.item.pool[0].ensure = want.prompt_tokens + 150;
        KVT_TRUE(ipc_do(&driver_of, &call, &answer) && answer.result.status == KVD_OK);
        KVT_TRUE(row_holds(&reader, a.pool[0].row, answer.result.pool[0].membership, 313));
        call.item = scene_item(a.sequence); /* no unit runs */
        KVT_TRUE(ipc_do(&driver_of, &call, &answer) && answer.result.status == KVD_OK);
        finish(a.sequence);
        KVT_TRUE(row_holds(&reader, a.pool[0].row, 0, 313));
    }
    scene_audit(scheduler);
    ipc_kill(&driver_of);
    ipc_kill(&reader);
    close_stage();
}

/* ---- ACT-4, CKPT-1: tails bit-exact, both arrangements, both orders ------------------------------ */

static void fork_with(const char *more) {
    struct ipc_worker worker = { 0 };
    const uint64_t text = e2e_stream(5, 9000, 0);
    KVT_NEED(open_stage((struct e2e_setup){ .backend = "dflash", .draft_window = 4, .more = more }));
    KVT_NEED(ipc_open(&worker, &daemon_));
    struct kvd_activation want = scene_want(worker.session, 1000, 100);
    want.ensure[1] = 1000;
    struct kvd_activated a = scene_activate(scheduler, &want);
    for (uint32_t pool = 0; pool < 2; pool++)
        KVT_EQ(ipc_columns(&worker, IPC_WRITE, pool, a.pool[pool].row, 77 + pool, 0, 1000), KVD_OK);
    commit(&worker, a.sequence, 1000, 1000);
    scene_name(scheduler, a.sequence, text, 1000);
    want.from = scene_retain(scheduler, a.sequence, text, 1000);
    want.keep = true;
    for (uint32_t frontier = 1000; frontier >= 900; frontier -= 33) { /* in the tail page and in full ones */
        want.frontier = frontier;
        want.prompt_tokens = 1001;
        struct kvd_activated b = scene_activate(scheduler, &want);
        for (uint32_t pool = 0; pool < 2; pool++) {
            KVT_EQ(ipc_columns(&worker, IPC_CHECK, pool, b.pool[pool].row, 77 + pool, 0, frontier), KVD_OK);
            KVT_EQ(ipc_columns(&worker, IPC_WRITE, pool, b.pool[pool].row, 500 + frontier, frontier, 1000),
                   KVD_OK); /* never seen by the next */
        }
        finish(b.sequence);
    }
    scene_audit(scheduler);
    ipc_kill(&worker);
    close_stage();
}

static void act_4_tails_of_records(void) { fork_with("[model]\narrangement = record"); }
static void act_4_tails_of_dense_planes(void) { fork_with("[model]\narrangement = dense"); }

/* ---- SRV-4 ------------------------------------------------------------------------------------------ */

static void srv_4_attach_is_refused_with_the_reason(void) {
    struct ipc_worker worker = { 0 };
    struct ipc_call call = { .op = IPC_CONNECT };
    struct ipc_answer answer = { 0 };
    KVT_NEED(open_stage((struct e2e_setup){ 0 }) && ipc_start(&worker));
    snprintf(call.socket, sizeof call.socket, "%s", daemon_.socket);
    KVT_TRUE(ipc_do(&worker, &call, &answer) && answer.status == KVD_OK);
    call.op = IPC_CONTEXT;
    KVT_TRUE(ipc_do(&worker, &call, &answer) && answer.status == KVD_OK);
    call.op = IPC_ATTACH;
    call.flip = true;
    KVT_TRUE(ipc_do(&worker, &call, &answer));
    KVT_EQ(answer.status, KVD_FAILED_PRECONDITION);
    KVT_HAS(answer.message, "attach the rank of this device");
    call.flip = false;
    KVT_TRUE(ipc_do(&worker, &call, &answer) && answer.status == KVD_OK);
    /* No GPU named: this process has no context either. */
    kvd_client *client = e2e_connect(&daemon_, KVD_ROLE_WORKER, "bare");
    kvd_store *store = NULL;
    struct kvd_error error = { 0 };
    struct kvd_store_info *info = calloc(1, sizeof *info);
    KVT_EQ(kvd_attach(client, 0, NULL, &store, &error), KVD_INVALID_ARGUMENT);
    KVT_HAS(error.message, "UUID");
    KVT_EQ(kvd_describe(client, info, NULL), KVD_OK);
    DRIVER_OK(driver.cuCtxSetCurrent(NULL));
    KVT_EQ(kvd_attach(client, 0, info->pool[0].planes[0].uuid, &store, &error), KVD_INVALID_ARGUMENT);
    KVT_HAS(error.message, "no CUDA context is current");
    kvd_disconnect(client);
    /* An observer is shown no handle. */
    client = e2e_connect(&daemon_, KVD_ROLE_OBSERVER, "looks");
    static const uint8_t none[64];
    KVT_EQ(kvd_describe(client, info, NULL), KVD_OK);
    KVT_EQ_MEM(info->pool[0].planes[0].ipc_handle, none, 64);
    KVT_EQ_MEM(info->pool[0].table[0].ipc_handle, none, 64);
    free(info);
    kvd_disconnect(client);
    ipc_kill(&worker);
    close_stage();
}

/* POOL-2, ROW-4: two ranks on two GPUs share page ids: the same row stands on both when the reply is here, each rank
 * has its own planes, and a process on the wrong GPU is refused. */
static void pool_2_ranks_on_two_devices(void) {
    int devices = 0;
    DRIVER_OK(driver.cuDeviceGetCount(&devices));
    if (devices < 2) {
        printf("  SKIPPED: needs two GPUs\n");
        return;
    }
    struct ipc_worker worker[2] = { 0 };
    struct ipc_call call = { .op = IPC_ROW };
    struct ipc_answer row[2] = { 0 };
    struct kvd_group members = { .n = 2 };
    struct kvd_activation want = scene_want((kvd_session_id){ 0 }, 1000, 100);
    KVT_NEED(open_stage((struct e2e_setup){ .ranks = 2 }));
    for (uint32_t r = 0; r < 2; r++) {
        KVT_NEED(ipc_open_rank(&worker[r], &daemon_, r));
        members.members[r] = worker[r].session;
    }
    KVT_EQ(kvd_open_group(scheduler, &members, &want.group, NULL), KVD_OK);
    struct kvd_activated a = scene_activate(scheduler, &want);
    for (uint32_t r = 0; r < 2; r++) {
        KVT_TRUE(row_holds(&worker[r], a.pool[0].row, a.pool[0].membership, 256));
        call.row = a.pool[0].row;
        KVT_TRUE(ipc_do(&worker[r], &call, &row[r]) && row[r].status == KVD_OK);
        KVT_EQ(ipc_columns(&worker[r], IPC_WRITE, 0, a.pool[0].row, 40 + r, 0, 1000), KVD_OK);
    }
    KVT_EQ_MEM(row[0].entries, row[1].entries, 64 * sizeof(int32_t));
    for (uint32_t r = 0; r < 2; r++)
        KVT_EQ(ipc_columns(&worker[r], IPC_CHECK, 0, a.pool[0].row, 40 + r, 0, 1000), KVD_OK);
    finish(a.sequence);
    for (uint32_t r = 0; r < 2; r++) KVT_TRUE(row_holds(&worker[r], a.pool[0].row, 0, 256));
    call = (struct ipc_call){ .op = IPC_ATTACH, .rank = 0, .device = 1 };
    KVT_TRUE(ipc_do(&worker[1], &call, &row[1]));
    KVT_EQ(row[1].status, KVD_FAILED_PRECONDITION);
    printf("  %s\n", row[1].message);
    for (uint32_t r = 0; r < 2; r++) ipc_kill(&worker[r]);
    close_stage();
}

/* ---- SRV-5 -------------------------------------------------------------------------------------------- */

static bool is_gone(pid_t pid) {
    siginfo_t info = { 0 };
    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
}

static bool kernel_runs(struct ipc_worker *worker, uint32_t row) {
    struct ipc_call call = { .op = IPC_PEEK, .row = row };
    struct ipc_answer a = { 0 }, b = { 0 };
    return ipc_do(worker, &call, &a) && ipc_do(worker, &call, &b) && a.word != b.word;
}

/* Two sequences fill the pool. One worker dies while its kernel stores to its pages for ever: they come back only when
 * its exit is proven, and whoever gets them then is not disturbed; the other worker's bytes never change. */
static void srv_5_killed_inside_a_kernel(void) {
    struct ipc_worker victim = { 0 }, survivor = { 0 };
    KVT_NEED(open_stage((struct e2e_setup){ .max_context = 1024, .max_concurrency = 2, .capacity_tokens = 2048 }));
    KVT_NEED(ipc_open(&victim, &daemon_) && ipc_open(&survivor, &daemon_));
    struct kvd_activation want = scene_want(survivor.session, 960, 64);
    struct kvd_activated b = scene_activate(scheduler, &want);
    want.worker = victim.session;
    struct kvd_activated a = scene_activate(scheduler, &want);
    KVT_EQ(scene_stats(scheduler).pool[0].available, 0);
    KVT_EQ(ipc_columns(&survivor, IPC_WRITE, 0, b.pool[0].row, 1, 0, 960), KVD_OK);
    KVT_EQ(ipc_columns(&victim, IPC_WRITE, 0, a.pool[0].row, 2, 0, 960), KVD_OK);
    if (!driver.fake) {
        struct ipc_call call = { .op = IPC_SCRIBBLE, .row = a.pool[0].row, .from = 0 };
        struct ipc_answer answer = { 0 };
        KVT_TRUE(ipc_do(&victim, &call, &answer) && answer.status == KVD_OK);
        double end = e2e_now() + 5;
        while (!kernel_runs(&victim, a.pool[0].row) && e2e_now() < end) {
        }
        KVT_TRUE(kernel_runs(&victim, a.pool[0].row));
        KVT_EQ(ipc_columns(&survivor, IPC_CHECK, 0, b.pool[0].row, 1, 0, 960), KVD_OK); /* beside the kernel */
    }
    double begin = e2e_now(), returned;
    kill(victim.pid, SIGKILL);
    for (bool back = false; !back && e2e_now() - begin < 20;) {
        back = scene_stats(scheduler).sequences == 1;
        if (back) KVT_TRUE(is_gone(victim.pid));
    }
    returned = e2e_now() - begin;
    printf("  rights back %.1f ms after SIGKILL\n", returned * 1e3);
    KVT_NEED(wait_sequences(1));
    want.worker = survivor.session;
    struct kvd_activated c = scene_activate(scheduler, &want); /* on the victim's pages: there are no others */
    KVT_EQ(scene_stats(scheduler).pool[0].available, 0);
    KVT_EQ(ipc_columns(&survivor, IPC_WRITE, 0, c.pool[0].row, 3, 0, 960), KVD_OK);
    for (double end = e2e_now() + 0.5; e2e_now() < end;) {
        if (!KVT_EQ(ipc_columns(&survivor, IPC_CHECK, 0, c.pool[0].row, 3, 0, 960), KVD_OK)) break;
        if (!KVT_EQ(ipc_columns(&survivor, IPC_CHECK, 0, b.pool[0].row, 1, 0, 960), KVD_OK)) break;
    }
    scene_audit(scheduler);
    ipc_kill(&victim);
    ipc_kill(&survivor);
    close_stage();
}

static uint64_t free_bytes(void) {
    size_t left = 0, total = 0;
    CUcontext context;
    DRIVER_OK(driver.cuDevicePrimaryCtxRetain(&context, 0));
    DRIVER_OK(driver.cuCtxSetCurrent(context));
    DRIVER_OK(driver.cuMemGetInfo(&left, &total));
    return left;
}

/* SRV-5: fifty workers attach, write and are killed: device memory, pages and sessions are what they were. */
static void srv_5_fifty_kill_and_attach_cycles(void) {
    KVT_NEED(open_stage((struct e2e_setup){ 0 }));
    struct kvd_stats before = { 0 };
    uint64_t left = 0;
    for (int cycle = 0; cycle < 53; cycle++) {
        struct ipc_worker worker = { 0 };
        if (cycle == 3) {
            before = scene_stats(scheduler);
            left = free_bytes();
        }
        KVT_NEED(ipc_open(&worker, &daemon_));
        struct kvd_activation want = scene_want(worker.session, 200, 50);
        struct kvd_activated a = scene_activate(scheduler, &want);
        KVT_EQ(ipc_columns(&worker, IPC_WRITE, 0, a.pool[0].row, (uint64_t)cycle, 0, 200), KVD_OK);
        ipc_kill(&worker);
        KVT_NEED(wait_sequences(0));
    }
    struct kvd_stats after = scene_stats(scheduler);
    uint64_t now = free_bytes();
    KVT_TRUE(e2e_same_resources(&before, &after));
    KVT_EQ(after.sessions, before.sessions);
    printf("  free before %llu, after %llu bytes\n", (unsigned long long)left, (unsigned long long)now);
    KVT_EQ(now, left);
    scene_audit(scheduler);
    close_stage();
}

/* ---- SRV-7 ------------------------------------------------------------------------------------------------ */

/* A worker's endless kernel keeps all SMs; kvd publishes and answers beside it. */
static void srv_7_endless_kernel_of_a_worker(void) {
    if (driver.fake) {
        printf("  SKIPPED: needs a GPU\n");
        return;
    }
    struct ipc_worker busy = { 0 }, reader = { 0 };
    KVT_NEED(open_stage((struct e2e_setup){ 0 }) && ipc_open(&busy, &daemon_) && ipc_open(&reader, &daemon_));
    struct kvd_activation want = scene_want(busy.session, 500, 100);
    struct kvd_activated a = scene_activate(scheduler, &want);
    struct ipc_call call = { .op = IPC_SCRIBBLE, .row = a.pool[0].row };
    struct ipc_answer answer = { 0 };
    KVT_TRUE(ipc_do(&busy, &call, &answer) && answer.status == KVD_OK);
    want.worker = reader.session;
    for (int i = 0; i < 20; i++) {
        double begin = e2e_now();
        struct kvd_activated b = scene_activate(scheduler, &want);
        KVT_TRUE(row_holds(&reader, b.pool[0].row, b.pool[0].membership, 256));
        scene_stats(scheduler);
        finish(b.sequence);
        KVT_TRUE(e2e_now() - begin < 1);
    }
    ipc_kill(&busy);
    KVT_NEED(wait_sequences(0));
    ipc_kill(&reader);
    close_stage();
}

/* The device finishes nothing: an activation waits, everything that needs no device is answered, and when it answers
 * again all is well. */
static void srv_7_status_while_the_device_is_stuck(void) {
    if (!driver.fake) {
        printf("  SKIPPED: needs the stand-in driver (a GPU's own case is in test_device_cuda)\n");
        return;
    }
    char file[64];
    snprintf(file, sizeof file, "/tmp/kvd-wedge-%d", (int)getpid());
    setenv("FAKE_CUDA_WEDGE", file, 1);
    struct ipc_worker worker = { 0 };
    bool opened = open_stage((struct e2e_setup){ 0 }) && ipc_open(&worker, &daemon_);
    unsetenv("FAKE_CUDA_WEDGE");
    KVT_NEED(opened);
    FILE *f = fopen(file, "w");
    KVT_NEED(f);
    fclose(f);
    struct kvd_activation want = scene_want(worker.session, 100, 100);
    struct kvd_activated a = { 0 };
    struct kvd_error error = { 0 };
    kvd_client *other = e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "other");
    kvd_client_set_timeout(scheduler, 500);
    KVT_EQ(kvd_activate(scheduler, &want, &a, &error), KVD_DEADLINE_EXCEEDED);
    double begin = e2e_now();
    for (int i = 0; i < 50; i++) {
        struct kvd_stats stats = scene_stats(other);
        KVT_EQ(stats.sequences, 1);
    }
    scene_audit(other);
    KVT_TRUE(e2e_now() - begin < 2 * E2E_SLOW);
    unlink(file);
    kvd_client_set_timeout(scheduler, 5000);
    KVT_EQ(kvd_activate(scheduler, &want, &a, &error), KVD_OK); /* the same number: the first answer */
    KVT_EQ(scene_stats(other).sequences, 1);
    KVT_TRUE(row_holds(&worker, a.pool[0].row, a.pool[0].membership, 256));
    finish(a.sequence);
    scene_audit(other);
    kvd_disconnect(other);
    ipc_kill(&worker);
    close_stage();
}

/* A driver call fails: whoever waits is told, and kvd stops with the status that says so, rather than serve tables that
 * the device does not have. */
static void srv_7_lost_device_stops_kvd(void) {
    if (!driver.fake) {
        printf("  SKIPPED: needs the stand-in driver\n");
        return;
    }
    char file[64];
    snprintf(file, sizeof file, "/tmp/kvd-fail-%d", (int)getpid());
    setenv("FAKE_CUDA_FAIL", file, 1);
    struct ipc_worker worker = { 0 };
    bool opened = open_stage((struct e2e_setup){ 0 }) && ipc_open(&worker, &daemon_);
    unsetenv("FAKE_CUDA_FAIL");
    KVT_NEED(opened);
    FILE *f = fopen(file, "w");
    KVT_NEED(f);
    fclose(f);
    struct kvd_activation want = scene_want(worker.session, 100, 100);
    struct kvd_activated a = { 0 };
    struct kvd_error error = { 0 };
    KVT_EQ(kvd_activate(scheduler, &want, &a, &error), KVD_UNAVAILABLE);
    printf("  %s\n", error.message);
    KVT_EQ_I(e2e_daemon_wait(&daemon_), 3);
    unlink(file);
    ipc_kill(&worker);
    close_stage();
}

/* ---- CAP-3: automatic capacity from the GPU's real free memory -------------------------------------------- */

static void cap_3_automatic_capacity(void) {
    uint64_t left = free_bytes();
    KVT_NEED(open_stage((struct e2e_setup){ .layers = 16,
                                            .kv_heads = 4,
                                            .head_dim = 256,
                                            .max_context = 131072,
                                            .max_concurrency = 256,
                                            .capacity_tokens = E2E_AUTO,
                                            .more = "[capacity]\nheadroom = 2GiB" }));
    struct kvd_stats stats = scene_stats(scheduler);
    uint64_t pool = stats.pool[0].capacity * (UINT64_C(4) << 20);
    printf("  %.1f GiB free before kvd, pool of %u pages, %.1f GiB\n", (double)left / 0x1p30, stats.pool[0].capacity,
           (double)pool / 0x1p30);
    KVT_TRUE(pool < left);
    KVT_TRUE(pool > left - (UINT64_C(6) << 30)); /* headroom, kvd's own context, tables */
    struct ipc_worker worker = { 0 };
    KVT_TRUE(driver.fake || ipc_open(&worker, &daemon_)); /* the headroom is for the worker's context */
    ipc_kill(&worker);
    close_stage();
}

/* ---- VIEW-1: consumers without libkvd ------------------------------------------------------------------------ */

static void hex(FILE *f, const char *name, const uint8_t *bytes, size_t n) {
    fprintf(f, "\"%s\": \"", name);
    for (size_t i = 0; i < n; i++) fprintf(f, "%02x", bytes[i]);
    fprintf(f, "\", ");
}

/* What DescribeStore and DescribePlanes say, for test_ipc.py. */
static bool describe_for_python(const char *path, uint32_t row, uint32_t tokens) {
    kvd_client *client = e2e_connect(&daemon_, KVD_ROLE_WORKER, "python");
    struct kvd_store_info *info = calloc(1, sizeof *info);
    struct kvd_plane_info planes[16];
    struct kvd_planes_request which = { 0 };
    uint32_t n = 0, total = 0;
    FILE *f = fopen(path, "w");
    bool ok = f && client && kvd_describe(client, info, NULL) == KVD_OK &&
              kvd_describe_planes(client, &which, planes, 16, &n, &total, NULL) == KVD_OK && n == total;
    if (ok) {
        const struct kvd_pool_info *p = &info->pool[0];
        fprintf(f, "{");
        hex(f, "planes_handle", p->planes[0].ipc_handle, 64);
        hex(f, "table_handle", p->table[0].ipc_handle, 64);
        fprintf(f,
                "\"planes_bytes\": %llu, \"table_bytes\": %llu, \"pages\": %u, \"heads\": %u, \"head_dim\": %u, "
                "\"row\": %u, \"tokens\": %u, \"row_entries\": %u, "
                "\"rows\": %u, \"seed\": 9, \"planes\": [",
                (unsigned long long)p->planes[0].bytes, (unsigned long long)p->table[0].bytes, p->pages, p->n_kv_heads,
                p->head_dim, row, tokens, info->row_entries, info->max_concurrency);
        for (uint32_t i = 0; i < n; i++)
            fprintf(f, "%s{\"layer\": %u, \"slot\": %u, \"offset\": %llu, \"nb\": [%llu, %llu, %llu, %llu]}",
                    i ? ", " : "", planes[i].layer, planes[i].slot, (unsigned long long)planes[i].offset,
                    (unsigned long long)planes[i].nb0, (unsigned long long)planes[i].nb1,
                    (unsigned long long)planes[i].nb2, (unsigned long long)planes[i].nb3);
        fprintf(f, "]}\n");
    }
    if (f) fclose(f);
    free(info);
    kvd_disconnect(client);
    return ok;
}

static void view_1_torch_maps_the_pool(void) {
    const char *script = getenv("KVD_IPC_PY") ? getenv("KVD_IPC_PY") : IPC_PY;
    if (driver.fake || system("python3 -c 'import torch; assert torch.cuda.is_available()' >/dev/null 2>&1") != 0) {
        printf("  SKIPPED: needs a GPU and Python with PyTorch\n");
        return;
    }
    for (int dense = 0; dense < 2; dense++) {
        struct ipc_worker worker = { 0 };
        char path[160], command[512];
        KVT_NEED(open_stage((struct e2e_setup){ .more = dense ? "[model]\narrangement = dense" : NULL }) &&
                 ipc_open(&worker, &daemon_));
        /* A first sequence that ends scatters the ids of the next. */
        struct kvd_activation want = scene_want(worker.session, 300, 10);
        struct kvd_activated first = scene_activate(scheduler, &want), hold = scene_activate(scheduler, &want);
        finish(first.sequence);
        want = scene_want(worker.session, 1500, 10);
        struct kvd_activated a = scene_activate(scheduler, &want);
        KVT_EQ(ipc_columns(&worker, IPC_WRITE, 0, a.pool[0].row, 9, 0, 1500), KVD_OK);
        snprintf(path, sizeof path, "%s/planes.json", daemon_.dir);
        KVT_TRUE(describe_for_python(path, a.pool[0].row, 1500));
        snprintf(command, sizeof command, "python3 -W ignore '%s' '%s'", script, path);
        fflush(stdout);
        KVT_EQ_I(system(command), 0);
        KVT_EQ(ipc_columns(&worker, IPC_CHECK, 0, a.pool[0].row, 9, 0, 1500), KVD_OK);
        finish(hold.sequence);
        ipc_kill(&worker);
        close_stage();
    }
}

/* ---- benches ---------------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static void bench_line(const char *name, double *values, int n, const char *unit) {
    qsort(values, (size_t)n, sizeof *values, by_value);
    printf("BENCH %s.p50 %.3f %s\nBENCH %s.p99 %.3f %s\n", name, values[n / 2], unit, name,
           values[(n * 99 + 99) / 100 - 1], unit);
}

static void bench_activation(const char *name, kvd_session_id session) {
    double activate[400], end[400];
    for (int i = 0; i < 400; i++) {
        struct kvd_activation want = scene_want(session, 2000, 100);
        double begin = e2e_now();
        struct kvd_activated a = scene_activate(scheduler, &want);
        activate[i] = (e2e_now() - begin) * 1e6;
        begin = e2e_now();
        finish(a.sequence);
        end[i] = (e2e_now() - begin) * 1e6;
    }
    char line[80];
    snprintf(line, sizeof line, "ipc.activate.%s", name);
    bench_line(line, activate, 400, "us");
    snprintf(line, sizeof line, "ipc.finish.%s", name);
    bench_line(line, end, 400, "us");
}

static void bench(void) {
    double context[20], attach[20];
    struct ipc_worker worker = { 0 };
    double begin = e2e_now();
    KVT_NEED(open_stage((struct e2e_setup){ .layers = 16,
                                            .kv_heads = 4,
                                            .head_dim = 256,
                                            .max_context = 131072,
                                            .max_concurrency = 8,
                                            .capacity_tokens = driver.fake ? 131072 : 1048576 }));
    printf("BENCH ipc.start_64GiB %.3f s\n", e2e_now() - begin);
    for (int i = 0; i < 20; i++) {
        ipc_kill(&worker);
        KVT_NEED(ipc_open(&worker, &daemon_));
        context[i] = worker.context_ms;
        attach[i] = worker.attach_ms;
    }
    bench_line("ipc.context", context, 20, "ms");
    bench_line("ipc.attach_64GiB", attach, 20, "ms");
    bench_activation("idle", worker.session);
    if (!driver.fake) {
        struct kvd_activation want = scene_want(worker.session, 2000, 100);
        struct kvd_activated a = scene_activate(scheduler, &want);
        struct ipc_call call = { .op = IPC_SCRIBBLE, .row = a.pool[0].row };
        struct ipc_answer answer = { 0 };
        KVT_TRUE(ipc_do(&worker, &call, &answer) && answer.status == KVD_OK);
        bench_activation("busy", worker.session);
    }
    ipc_kill(&worker);
    close_stage();
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(row_4_rows_are_there_before_the_reply),
                                             KVT_CASE(act_4_tails_of_records),
                                             KVT_CASE(act_4_tails_of_dense_planes),
                                             KVT_CASE(srv_4_attach_is_refused_with_the_reason),
                                             KVT_CASE(pool_2_ranks_on_two_devices),
                                             KVT_CASE(srv_5_killed_inside_a_kernel),
                                             KVT_CASE(srv_5_fifty_kill_and_attach_cycles),
                                             KVT_CASE(srv_7_endless_kernel_of_a_worker),
                                             KVT_CASE(srv_7_status_while_the_device_is_stuck),
                                             KVT_CASE(srv_7_lost_device_stops_kvd),
                                             KVT_CASE(cap_3_automatic_capacity),
                                             KVT_CASE(view_1_torch_maps_the_pool),
                                             { 0 } };
    static const struct kvt_case benches[] = { KVT_CASE(bench), { 0 } };
    if (argc > 1 && strcmp(argv[1], "--worker") == 0) return ipc_worker_main();
    if (!driver_load(&driver)) {
        printf("SKIPPED: no CUDA driver or no GPU here\n");
        return 77;
    }
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) return kvt_main("ipc benches", benches, 1, argv);
    return kvt_main("ipc", cases, argc, argv);
}
