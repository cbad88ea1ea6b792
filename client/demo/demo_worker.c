/* SPDX-License-Identifier: Apache-2.0
 *
 * demo_worker: runs the demo's model on the pages of a kvd store, on the CPU for a host device and on the GPU that has
 * the pages for a CUDA device. When kvd is restarted it attaches to the new instance and joins its scheduler again.
 * Exit codes: 0 ended in order, 1 usage, 2 cannot start, 3 kvd is gone.
 */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#ifdef DEMO_CUDA
#include "model_cuda.h"
#endif
#include "again.h"
#include "clock.h"
#include "worker.h"

#define YIELD_MS 5000 /* kvd learns of a dead scheduler within 100 ms */

struct worker_setup { /* what it was started with */
    struct kvd_connect_options options;
    const char *scheduler, *document;
    uint32_t round_tokens;
    int signals;
};

static struct engine_lane *lane_of(struct worker *worker, uint32_t id) {
    for (uint32_t i = 0; i < ENGINE_LANES; i++)
        if (worker->engine.lane[i].used && worker->engine.lane[i].id == id) return &worker->engine.lane[i];
    return NULL;
}

static void start_lane(struct worker *worker, const struct wire_message *m) {
    const struct engine *engine = &worker->engine;
    struct engine_lane *lane = NULL;
    for (uint32_t i = 0; i < ENGINE_LANES && !lane; i++)
        if (!engine->lane[i].used) lane = &worker->engine.lane[i];
    struct engine_lane refused = { .id = m->id };
    if (!lane || m->n_pools != engine->n_pools || m->frontier >= m->n_tokens || m->budget == 0 ||
        m->n_tokens > engine->max_context || m->budget > engine->max_context - m->n_tokens + 1) {
        worker_say_failed(worker, &refused,
                          lane ? "the request does not fit this worker's store" : "all lanes are taken");
        return;
    }
    memset(lane, 0, sizeof *lane);
    *lane = (struct engine_lane){ .used = true,
                                  .id = m->id,
                                  .sequence = m->sequence,
                                  .known = m->n_tokens,
                                  .reported = m->n_tokens,
                                  .end = m->n_tokens + m->budget,
                                  .hold_at = m->hold_at,
                                  .speculate = m->speculate != 0 };
    for (uint32_t p = 0; p < engine->n_pools; p++) {
        lane->row[p] = m->row[p];
        lane->mapped[p] = m->mapped[p] < engine->max_context ? m->mapped[p] : engine->max_context;
        lane->entitled[p] = m->entitled[p];
        lane->computed[p] = lane->committed[p] = m->frontier;
    }
    memcpy(lane->history, m->tokens, m->n_tokens);
}

/* 1 a message was taken, 0 none, -EPIPE the scheduler is gone. */
static int hear_scheduler(struct worker *worker) {
    static struct wire_message m;
    int r = wire_receive(worker->scheduler, false, &m);
    if (r == -EAGAIN) return 0;
    if (r <= 0) return -EPIPE;
    struct engine_lane *lane = lane_of(worker, m.id);
    if (m.type == WIRE_WELCOME) {
        worker->scheduler_session.bits = m.session;
    } else if (m.type == WIRE_START && !lane) {
        start_lane(worker, &m);
    } else if (m.type == WIRE_CONTINUE && lane) {
        lane->hold_at = 0;
    } else if (m.type == WIRE_FINISHED && lane) {
        worker_rounds_drop(worker);
        lane->used = false;
    }
    return 1;
}

/* 0, or -EIO: kvd is gone. */
static int hear_kvd(struct worker *worker, uint32_t timeout_ms) {
    struct kvd_event event;
    struct kvd_error error;
    enum kvd_status status;
    while ((status = kvd_next_event(worker->client, timeout_ms, &event, &error)) == KVD_OK) {
        timeout_ms = 0;
        if (event.kind == KVD_EVENT_SESSION_LOST && event.session.bits == worker->scheduler_session.bits)
            worker->scheduler_lost = true;
        for (uint32_t i = 0; event.kind == KVD_EVENT_SEQUENCE_ENDED && i < ENGINE_LANES; i++)
            if (worker->engine.lane[i].sequence == event.sequence.bits) worker->engine.lane[i].used = false;
    }
    if (status == KVD_DEADLINE_EXCEEDED) return 0;
    fprintf(stderr, "demo_worker: kvd is gone: %s\n", error.message);
    return -EIO;
}

static bool lanes_ready(const struct worker *worker) {
    for (uint32_t i = 0; i < ENGINE_LANES; i++)
        if (engine_room(&worker->engine, &worker->engine.lane[i]) > 0) return true;
    return false;
}

static bool lanes_left(const struct worker *worker) {
    for (uint32_t i = 0; i < ENGINE_LANES; i++)
        if (worker->engine.lane[i].used) return true;
    return false;
}

/* The scheduler is gone and no unit runs here: gives its sequences back, as soon as kvd knows that it is gone. */
static int give_back(struct worker *worker) {
    struct kvd_error error;
    uint32_t yielded = 0, sum = 0;
    uint64_t end = clock_ms() + YIELD_MS;
    worker_rounds_drop(worker);
    while (lanes_left(worker) && clock_ms() < end) {
        int r = worker->scheduler_lost ? 0 : hear_kvd(worker, (uint32_t)(end - clock_ms()));
        if (r != 0) return r;
        if (!worker->scheduler_lost) continue;
        if (kvd_yield(worker->client, &yielded, &error) != KVD_OK) {
            fprintf(stderr, "demo_worker: kvd does not take the yield: %s\n", error.message);
            return -EIO;
        }
        sum += yielded;
        break;
    }
    if (lanes_left(worker)) fprintf(stderr, "demo_worker: the scheduler is gone; gave %u sequences back\n", sum);
    memset(worker->engine.lane, 0, sizeof worker->engine.lane);
    worker->scheduler_lost = false;
    worker->scheduler_session.bits = 0;
    close(worker->scheduler);
    worker->scheduler = -1;
    return 0;
}

/* 1 connected, 0 nobody listens. */
static int join_scheduler(struct worker *worker, const char *path) {
    worker->scheduler = wire_connect(path);
    if (worker->scheduler < 0) return 0;
    worker->message.type = WIRE_HELLO;
    worker->message.session = kvd_client_session(worker->client).bits;
    worker->message.epoch = kvd_client_epoch(worker->client);
    worker->message.pid = (uint32_t)getpid();
    worker->message.n_tokens = 0;
    return wire_send(worker->scheduler, &worker->message) == 0;
}

/* Waits until something is to be read, or only looks. true: end in order. */
static bool wait_input(const struct worker *worker, int signals, bool wait) {
    struct pollfd fds[3] = { { .fd = signals, .events = POLLIN },
                             { .fd = worker->scheduler, .events = POLLIN },
                             { .fd = kvd_client_fd(worker->client), .events = POLLIN } };
    while (poll(fds, 3, wait ? -1 : 0) < 0 && errno == EINTR)
        ;
    return fds[0].revents != 0;
}

/* Of one shape, or of one group. */
static bool pool_fits(const struct kvd_pool_info *pool, uint32_t layers) {
    const struct kvd_layer_group *group = &pool->group[0];
    bool grouped = pool->n_groups == 1 && group->format == KVD_FORMAT_KV;
    uint32_t heads = grouped ? group->n_kv_heads : pool->n_kv_heads, dim = grouped ? group->head_dim : pool->head_dim;
    return pool->n_layers == layers && heads == MODEL_KV_HEADS && dim == MODEL_HEAD_DIM && pool->n_ranks == 1;
}

static bool latent_fits(const struct kvd_store_info *info) {
    const struct kvd_pool_info *pool = &info->pool[0];
    return info->n_pools == 1 && pool->n_groups == 1 && pool->group[0].format == KVD_FORMAT_LATENT &&
           pool->group[0].row_bytes == MODEL_LATENT_BYTES && pool->n_layers == MODEL_LAYERS && pool->n_ranks == 1;
}

static bool pools_fit(const struct kvd_store_info *info) {
    bool host = info->pool[0].planes[0].kind != 1;
    if (info->backend == 1)
        return info->n_pools == 2 && pool_fits(&info->pool[0], MODEL_LAYERS) &&
               pool_fits(&info->pool[1], MODEL_DRAFT_LAYERS) && info->draft_window >= 1 &&
               info->draft_window <= ENGINE_WINDOW;
    if (info->n_pools == 2)
        return host && pool_fits(&info->pool[0], 1) && pool_fits(&info->pool[ENGINE_NEAR], MODEL_LAYERS - 1);
    return info->n_pools == 1 && (pool_fits(&info->pool[0], MODEL_LAYERS) || (host && latent_fits(info)));
}

static bool store_fits(const struct kvd_store_info *info) {
    bool fits = info->max_context <= ENGINE_CONTEXT && info->state_bytes == 0 && info->backend <= 1 && pools_fit(info);
    if (!fits)
        fprintf(stderr,
                "demo_worker: the store %s is made for another model: the demo needs %d layers, %d kv heads, "
                "head_dim %d, one device, at most %d tokens of context, and no backend or an MTP pool of "
                "%d layer with a window of 1 to %d. On a host device all layers but one may be in a pool with a "
                "window, or all may be latent with %d bytes\n",
                info->name, MODEL_LAYERS, MODEL_KV_HEADS, MODEL_HEAD_DIM, ENGINE_CONTEXT, MODEL_DRAFT_LAYERS,
                ENGINE_WINDOW, MODEL_LATENT_BYTES);
    return fits;
}

static const uint8_t *device_uuid(const struct kvd_store_info *info) {
    const struct kvd_region_info *planes = &info->pool[0].planes[0];
    return planes->kind == 1 ? planes->uuid : NULL;
}

/* The model where the store's pages are. */
static int open_model(struct worker *worker, const struct kvd_store_info *info, const char *document) {
    char err[256] = "";
    const uint8_t *uuid = device_uuid(info);
    int r;
    if (!uuid) {
        r = model_new(info->max_context, document, &worker->engine.model, err, sizeof err);
    } else {
#ifdef DEMO_CUDA
        r = model_cuda_new(uuid, info->max_context, document, &worker->engine.model, err, sizeof err);
#else
        r = -ENOTSUP;
        snprintf(err, sizeof err, "the store %s is in GPU memory, and this program was built without CUDA", info->name);
#endif
    }
    if (r == 0) return 0;
    fprintf(stderr, "demo_worker: %s\n", err);
    return 2;
}

static int open_views(struct worker *worker) {
    const struct kvd_store_info *info = kvd_store_describe(worker->store);
    struct engine *engine = &worker->engine;
    struct kvd_error error;
    engine->n_pools = info->n_pools;
    engine->window = info->draft_window;
    bool near = engine->n_pools > 1 && !engine_has_drafts(engine);
    engine->max_context = info->max_context;
    for (uint32_t l = 0; l < MODEL_LAYERS; l++) { /* three with a window, then one without */
        uint32_t pool = near && l + 1 < MODEL_LAYERS ? ENGINE_NEAR : ENGINE_MAIN, layer = near && !pool ? 0 : l;
        if (kvd_store_batch_view(worker->store, pool, layer, &engine->main[l], &error) != KVD_OK) goto refused;
    }
    for (uint32_t l = 0; engine_has_drafts(engine) && l < MODEL_DRAFT_LAYERS; l++)
        if (kvd_store_batch_view(worker->store, ENGINE_MTP, l, &engine->mtp[l], &error) != KVD_OK) goto refused;
    return 0;
refused:
    fprintf(stderr, "demo_worker: no view of the store: %s\n", error.message);
    return 2;
}

/* Maps the store that the client is connected to; the model, which makes the GPU context that it is mapped into, comes
 * before and stays. 0, or an exit code, or -EIO: kvd is gone (printed). */
static int open_store(struct worker *worker, const char *document) {
    static struct kvd_store_info info;
    struct kvd_error error;
    if (kvd_describe(worker->client, &info, &error) != KVD_OK) goto refused;
    if (!store_fits(&info)) return 2;
    int r = worker->engine.model ? 0 : open_model(worker, &info, document);
    if (r != 0) return r;
    if (kvd_attach(worker->client, 0, device_uuid(&info), &worker->store, &error) == KVD_OK &&
        kvd_subscribe(worker->client, KVD_EVENT_MASK(KVD_EVENT_SESSION_LOST) | KVD_EVENT_MASK(KVD_EVENT_SEQUENCE_ENDED),
                      &error) == KVD_OK)
        return open_views(worker);
refused:
    fprintf(stderr, "demo_worker: %s\n", error.message);
    return kvd_status_retryable(error.status) ? -EIO : 2;
}

/* Until kvd is there again and joined. 0, -EIO: it went once more; positive: end, with this exit code + 1. */
static int come_back(struct worker *worker, const struct worker_setup *service) {
    switch (kvd_again(&worker->client, &service->options, service->signals)) {
    case AGAIN_SAME: return 0;
    case AGAIN_STOP: return 1;
    case AGAIN_GONE: return 3 + 1;
    case AGAIN_OTHER: break;
    }
    /* The sequences are no more; the scheduler, which meets the same, hears of a worker with a new session. */
    memset(worker->engine.lane, 0, sizeof worker->engine.lane);
    worker->in_flight = worker->scheduler_lost = false;
    worker->scheduler_session.bits = 0;
    kvd_detach(worker->store);
    worker->store = NULL;
    if (worker->scheduler >= 0) close(worker->scheduler);
    worker->scheduler = -1;
    int r = open_store(worker, service->document);
    if (r != 0) return r > 0 ? r + 1 : r;
    return join_scheduler(worker, service->scheduler) == 0 ? 1 : 0;
}

static int serve_scheduler(struct worker *worker, const struct worker_setup *service) {
    char err[256];
    if (join_scheduler(worker, service->scheduler) == 0) return 0;
    uint32_t columns = 0;
    for (;;) {
        if (wait_input(worker, service->signals, !lanes_ready(worker))) return 0;
        int r = hear_kvd(worker, 0), heard;
        while ((heard = hear_scheduler(worker)) > 0)
            ;
        if (r == 0 && heard == -EPIPE) {
            r = give_back(worker);
            if (r == 0 && join_scheduler(worker, service->scheduler) == 0) return 0;
        }
        if (r == 0) r = engine_step(&worker->engine, &columns, err, sizeof err) == 0 ? 0 : -EINVAL;
        if (r == -EINVAL) fprintf(stderr, "demo_worker: %s\n", err);
        if (r == 0) {
            worker_say_tokens(worker);
            r = worker_rounds(worker, false);
        }
        while (r == -EIO) r = come_back(worker, service);
        if (r != 0) return r > 0 ? r - 1 : 3;
    }
}

static int run_worker(const struct worker_setup *service) {
    static struct worker worker;
    struct kvd_error error;
    worker.round_tokens = service->round_tokens;
    worker.scheduler = -1;
    int r = 2;
    if (kvd_connect(&service->options, &worker.client, &error) != KVD_OK)
        fprintf(stderr, "demo_worker: %s\n", error.message);
    else r = open_store(&worker, service->document);
    if (r == 0) r = serve_scheduler(&worker, service);
    worker_rounds_drop(&worker);
    kvd_detach(worker.store);
    kvd_disconnect(worker.client);
    model_free(worker.engine.model);
    return r >= 0 ? r : 2;
}

static const char usage[] =
    "Usage: demo_worker --scheduler PATH [--kvd SOCKET] [--document FILE] [--name NAME] [--round N]\n"
    "Runs the demo's model for the demo_scheduler that listens at PATH, on the device of the store's pages.\n"
    "  --document FILE  text that gives the output its looks (default /usr/share/common-licenses/GPL-3)\n"
    "  --round N        commit after N columns of a sequence (default 64)\n";

int main(int argc, char **argv) {
    static const struct option options[] = { { "kvd", required_argument, NULL, 'k' },
                                             { "scheduler", required_argument, NULL, 's' },
                                             { "document", required_argument, NULL, 'd' },
                                             { "name", required_argument, NULL, 'n' },
                                             { "round", required_argument, NULL, 'r' },
                                             { "help", no_argument, NULL, 'h' },
                                             { NULL, 0, NULL, 0 } };
    const char *socket = NULL, *scheduler = NULL, *name = "demo-worker";
    const char *document = "/usr/share/common-licenses/GPL-3";
    unsigned long round_tokens = 64;
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (o == 'k') socket = optarg;
        else if (o == 's') scheduler = optarg;
        else if (o == 'd') document = optarg;
        else if (o == 'n') name = optarg;
        else if (o == 'r') round_tokens = strtoul(optarg, NULL, 10);
        else return fputs(usage, o == 'h' ? stdout : stderr), o == 'h' ? 0 : 1;
    }
    if (!scheduler || optind != argc || round_tokens < 1 || round_tokens > ENGINE_CONTEXT)
        return fputs(usage, stderr), 1;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int signals = signalfd(-1, &set, SFD_CLOEXEC);
    if (signals < 0) return perror("demo_worker: signalfd"), 2;
    return run_worker(&(struct worker_setup){ .options = { .struct_size = sizeof(struct kvd_connect_options),
                                                           .socket = socket,
                                                           .role = KVD_ROLE_WORKER,
                                                           .name = name },
                                              .scheduler = scheduler,
                                              .document = document,
                                              .round_tokens = (uint32_t)round_tokens,
                                              .signals = signals });
}
