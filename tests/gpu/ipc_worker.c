/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc.h"
#include "round_ask.h"

/* ---- the worker's process ------------------------------------------------------------------- */

static struct driver driver;
static kvd_client *client;
static kvd_store *store;
static CUfunction spin;

/* BF16 of whole numbers below 128 is exact. */
uint16_t ipc_value(uint64_t seed, uint32_t layer, uint32_t slot, uint32_t head, uint32_t position, uint32_t d) {
    uint64_t n = seed * 31 + layer * 7 + slot * 13 + head * 17 + position * 5 + d * 3 + (uint64_t)position * d;
    float value = (float)(n % 128);
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (uint16_t)(bits >> 16);
}

static bool transfer(int fd, void *bytes, size_t n, bool out) {
    for (char *at = bytes; n;) {
        ssize_t got = out ? send(fd, at, n, MSG_NOSIGNAL) : read(fd, at, n);
        if (got <= 0) return false;
        at += got;
        n -= (size_t)got;
    }
    return true;
}

static int32_t entry_of(const PagedKVBatchLayerView *view, uint32_t row, uint32_t position) {
    int32_t page = -1;
    CUdeviceptr table = (CUdeviceptr)(uintptr_t)view->block_tables;
    DRIVER_OK(driver.cuMemcpyDtoH(&page, table + ((uint64_t)row * view->n_logical + position / 64) * 4, 4));
    return page;
}

/* Columns [o, o + n) of one head of one page: made, and written or compared. */
static bool head_columns(const kvd_plane_view *plane, const struct ipc_call *call, uint32_t layer, uint32_t slot,
                         uint32_t head, int32_t page, uint32_t position, uint32_t n) {
    static uint16_t made[64 * 4096], there[64 * 4096];
    uint64_t bytes = n * plane->stride_token;
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)plane->base + (uint64_t)page * plane->stride_page +
                     head * plane->stride_head + (position & 63) * plane->stride_token;
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t d = 0; d < plane->extent; d++)
            made[t * plane->extent + d] = ipc_value(call->seed, layer, slot, head, position + t, d);
    if (call->op == IPC_WRITE) return driver.cuMemcpyHtoD(at, made, bytes) == CUDA_SUCCESS;
    return driver.cuMemcpyDtoH(there, at, bytes) == CUDA_SUCCESS && memcmp(made, there, bytes) == 0;
}

static enum kvd_status do_columns(const struct ipc_call *call, struct kvd_error *error) {
    uint32_t layers = kvd_store_describe(store)->pool[call->pool].n_layers;
    for (uint32_t layer = 0; layer < layers; layer++) {
        PagedKVBatchLayerView view;
        enum kvd_status status = kvd_store_batch_view(store, call->pool, layer, &view, error);
        if (status != KVD_OK) return status;
        for (uint32_t p = call->from, n; p < call->to; p += n) {
            n = 64 - (p & 63) < call->to - p ? 64 - (p & 63) : call->to - p;
            int32_t page = entry_of(&view, call->row, p);
            for (uint32_t h = 0; h < view.n_kv_heads; h++)
                for (uint32_t slot = 0; slot < 2; slot++)
                    if (page < 0 || !head_columns(slot ? &view.v : &view.k, call, layer, slot, h, page, p, n)) {
                        snprintf(error->message, sizeof error->message,
                                 "pool %u row %u layer %u head %u slot %u tokens %u..%u in page %d", call->pool,
                                 call->row, layer, h, slot, p, p + n, page);
                        return KVD_DATA_LOSS;
                    }
        }
    }
    return KVD_OK;
}

static enum kvd_status do_context(const struct ipc_call *call, struct ipc_answer *a) {
    CUcontext context;
    double begin = driver_now();
    if (!driver_load(&driver)) return KVD_UNAVAILABLE;
    DRIVER_OK(driver.cuDevicePrimaryCtxRetain(&context, (CUdevice)call->device));
    DRIVER_OK(driver.cuCtxSetCurrent(context));
    a->ms = (driver_now() - begin) * 1e3;
    return KVD_OK;
}

static enum kvd_status do_attach(const struct ipc_call *call, struct ipc_answer *a, struct kvd_error *error) {
    CUuuid uuid;
    DRIVER_OK(driver.cuDeviceGetUuid_v2(&uuid, (CUdevice)call->device));
    if (call->flip) uuid.bytes[3] ^= 1;
    double begin = driver_now();
    enum kvd_status status = kvd_attach(client, call->rank, (const uint8_t *)uuid.bytes, &store, error);
    a->ms = (driver_now() - begin) * 1e3;
    return status;
}

static CUdeviceptr page_address(const struct ipc_call *call) {
    PagedKVBatchLayerView view;
    if (kvd_store_batch_view(store, call->pool, 0, &view, NULL) != KVD_OK) exit(2);
    int32_t page = entry_of(&view, call->row, call->from);
    if (page < 0) exit(2);
    return (CUdeviceptr)(uintptr_t)view.k.base + (uint64_t)page * view.k.stride_page;
}

static void do_scribble(const struct ipc_call *call) {
    CUstream stream;
    if (!spin) spin = driver_spin(&driver);
    DRIVER_OK(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    driver_launch_spin(&driver, spin, 264, page_address(call), UINT64_MAX, stream);
}

static enum kvd_status do_round(const struct ipc_call *call, struct ipc_answer *a, struct kvd_error *error) {
    struct kvd_round_item item = call->item;
    ROUND_ASK(&item);
    return kvd_round(client, &item, 1, &a->result, error);
}

static enum kvd_status serve(const struct ipc_call *call, struct ipc_answer *a, struct kvd_error *error) {
    struct kvd_connect_options options = { .struct_size = sizeof options,
                                           .socket = call->socket,
                                           .role = KVD_ROLE_WORKER,
                                           .rank = call->rank,
                                           .name = "gpu-worker" };
    PagedKVBatchLayerView view;
    enum kvd_status status;
    switch (call->op) {
    case IPC_CONNECT:
        status = kvd_connect(&options, &client, error);
        if (status == KVD_OK) a->session = kvd_client_session(client);
        return status;
    case IPC_CONTEXT: return do_context(call, a);
    case IPC_ATTACH: return do_attach(call, a, error);
    case IPC_ROW:
        status = kvd_store_batch_view(store, call->pool, 0, &view, error);
        if (status != KVD_OK) return status;
        uint32_t n = view.n_logical < IPC_ENTRIES ? view.n_logical : IPC_ENTRIES;
        DRIVER_OK(driver.cuMemcpyDtoH(
            a->entries, (CUdeviceptr)(uintptr_t)view.block_tables + (uint64_t)call->row * view.n_logical * 4, n * 4));
        return KVD_OK;
    case IPC_WRITE:
    case IPC_CHECK: return do_columns(call, error);
    case IPC_SCRIBBLE: do_scribble(call); return KVD_OK;
    case IPC_PEEK: DRIVER_OK(driver.cuMemcpyDtoH(&a->word, page_address(call), 8)); return KVD_OK;
    case IPC_ROUND: return do_round(call, a, error);
    case IPC_DETACH:
        kvd_detach(store);
        kvd_disconnect(client);
        store = NULL;
        client = NULL;
        return KVD_OK;
    default: return KVD_UNIMPLEMENTED;
    }
}

int ipc_worker_main(void) {
    struct ipc_call call;
    struct ipc_answer answer;
    while (transfer(3, &call, sizeof call, false)) {
        struct kvd_error error = { 0 };
        memset(&answer, 0, sizeof answer);
        answer.status = serve(&call, &answer, &error);
        memcpy(answer.message, error.message, sizeof answer.message);
        if (!transfer(3, &answer, sizeof answer, true)) break;
    }
    _exit(0); /* a kernel may still run: the driver ends it */
}

/* ---- the test's side -------------------------------------------------------------------------- */

bool ipc_start(struct ipc_worker *worker) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) return KVT_TRUE(false);
    fflush(stdout);
    *worker = (struct ipc_worker){ .pid = fork(), .fd = ends[0] };
    if (worker->pid == 0) {
        if (dup2(ends[1], 3) < 0) _exit(127);
        for (int fd = 4; fd < 256; fd++) close(fd);
        execl("/proc/self/exe", "ipc-worker", "--worker", (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    return KVT_TRUE(worker->pid > 0);
}

bool ipc_do(struct ipc_worker *worker, const struct ipc_call *call, struct ipc_answer *ret_answer) {
    struct ipc_call copy = *call;
    return transfer(worker->fd, &copy, sizeof copy, true) &&
           transfer(worker->fd, ret_answer, sizeof *ret_answer, false);
}

void ipc_kill(struct ipc_worker *worker) {
    if (worker->pid <= 0) return;
    kill(worker->pid, SIGKILL);
    waitpid(worker->pid, NULL, 0);
    close(worker->fd);
    worker->pid = 0;
}

static bool step(struct ipc_worker *worker, const struct ipc_call *call, struct ipc_answer *answer) {
    bool ok = KVT_TRUE(ipc_do(worker, call, answer)) && KVT_EQ(answer->status, KVD_OK);
    if (!ok) printf("    %s\n", answer->message);
    return ok;
}

bool ipc_open(struct ipc_worker *worker, const struct e2e_daemon *daemon) { return ipc_open_rank(worker, daemon, 0); }

bool ipc_open_rank(struct ipc_worker *worker, const struct e2e_daemon *daemon, uint32_t rank) {
    struct ipc_call call = { .op = IPC_CONNECT, .rank = rank, .device = rank };
    struct ipc_answer answer = { 0 };
    snprintf(call.socket, sizeof call.socket, "%s", daemon->socket);
    if (!ipc_start(worker)) return false;
    worker->rank = rank;
    if (!step(worker, &call, &answer)) return false;
    worker->session = answer.session;
    call.op = IPC_CONTEXT;
    if (!step(worker, &call, &answer)) return false;
    worker->context_ms = answer.ms;
    call.op = IPC_ATTACH;
    if (!step(worker, &call, &answer)) return false;
    worker->attach_ms = answer.ms;
    return true;
}

bool ipc_reopen(struct ipc_worker *worker, const struct e2e_daemon *daemon) {
    struct ipc_call call = { .op = IPC_DETACH, .rank = worker->rank, .device = worker->rank };
    struct ipc_answer answer = { 0 };
    snprintf(call.socket, sizeof call.socket, "%s", daemon->socket);
    if (!step(worker, &call, &answer)) return false;
    call.op = IPC_CONNECT;
    if (!step(worker, &call, &answer)) return false;
    worker->session = answer.session;
    call.op = IPC_ATTACH;
    if (!step(worker, &call, &answer)) return false;
    worker->attach_ms = answer.ms;
    return true;
}

enum kvd_status ipc_columns(struct ipc_worker *worker, enum ipc_op op, uint32_t pool, uint32_t row, uint64_t seed,
                            uint32_t from, uint32_t to) {
    struct ipc_call call = { .op = op, .pool = pool, .row = row, .seed = seed, .from = from, .to = to };
    struct ipc_answer answer = { 0 };
    if (!KVT_TRUE(ipc_do(worker, &call, &answer))) return KVD_UNAVAILABLE;
    if (answer.status != KVD_OK) printf("    %s\n", answer.message);
    return answer.status;
}
