/* SPDX-License-Identifier: Apache-2.0 */
#include "cold_engine.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "clock.h"
#include "cold_breaker.h"
#include "cold_lane.h"
#include "log.h"

#define SECOND UINT64_C(1000000000)

/* What a caller waits for. */
struct cold_run {
    uint32_t left;
};

struct lane_thread {
    struct cold_engine *engine;
    struct cold_lane lane;
    bool first;       /* it tries the engine while the breaker is open */
    uint64_t answers; /* the try that its map of slots is not older than */
    pthread_t thread;
};

struct cold_engine {
    struct cold_engine_config config;
    int stop_fd;          /* an eventfd: ends every wait of the lanes */
    pthread_mutex_t lock; /* a leaf */
    pthread_cond_t work, done;
    struct cold_op *first, **last;
    uint32_t queued;
    bool stop;
    struct cold_breaker_state breaker;
    struct cold_engine_state state;
    uint32_t n_lanes; /* that run; the starting thread's */
    struct lane_thread *lanes;
    /* Tries that succeeded, and the nodes that the last one knew: the configured one may be dead by then, and what
     * another lane knows be from before the engine failed over. */
    uint64_t answers;
    struct config_listen known[COLD_NODES];
    uint32_t n_known;
};

/* ---- under the lock ------------------------------------------------------------------------------ */

static void finish_op(struct cold_engine *e, struct cold_op *op) {
    e->state.ops[op->verb][op->outcome]++;
    if (op->outcome == COLD_DONE) {
        e->state.bytes_out += op->verb == COLD_SET ? op->head_bytes + op->value_bytes : 0;
        e->state.bytes_in += op->got;
    }
    op->run->left--;
}

static void drop_queue(struct cold_engine *e) {
    while (e->first) {
        struct cold_op *op = e->first;
        e->first = op->next;
        op->outcome = COLD_DROPPED;
        finish_op(e, op);
    }
    e->last = &e->first;
    e->queued = 0;
    pthread_cond_broadcast(&e->done);
}

/* A share of what is queued, so that all lanes have some. What nobody waits for any more is not begun. */
static uint32_t take_ops(struct cold_engine *e, struct cold_op *ops[COLD_PIPELINE]) {
    uint32_t share = (e->queued + e->config.lanes - 1) / e->config.lanes, n = 0;
    uint64_t now = clock_ns();
    while (e->first && n < share && n < COLD_PIPELINE) {
        struct cold_op *op = e->first;
        e->first = op->next;
        if (!e->first) e->last = &e->first;
        e->queued--;
        if (now < op->deadline_ns) {
            ops[n++] = op;
            continue;
        }
        op->outcome = COLD_DROPPED;
        finish_op(e, op);
        pthread_cond_broadcast(&e->done);
    }
    return n;
}

static void note_breaker(struct cold_engine *e, const struct cold_lane *lane) {
    e->state.clustered = lane->clustered;
    e->state.breaker = e->breaker.open ? COLD_OPEN : COLD_CLOSED;
    if (!e->breaker.open) return;
    e->state.trips++;
    snprintf(e->state.why, sizeof e->state.why, "%s", lane->why);
    LOG(LOG_WARNING, "the engine of the cold tier is left alone: %s; it is tried again in %.2f s", lane->why,
        (double)e->breaker.wait_ns / (double)SECOND);
    drop_queue(e);
    pthread_cond_broadcast(&e->work); /* the first lane has a try to wait for */
}

/* ---- lanes --------------------------------------------------------------------------------------- */

static void try_engine(struct cold_engine *e, struct lane_thread *t) {
    uint64_t before = t->lane.connections;
    pthread_mutex_unlock(&e->lock);
    bool good = cold_lane_try(&t->lane, clock_ns() + 4 * e->config.connect_ns);
    pthread_mutex_lock(&e->lock);
    if (e->stop) return;
    e->state.connections += t->lane.connections - before;
    breaker_tried(&e->breaker, good, clock_ns());
    if (good) {
        t->answers = ++e->answers;
        e->n_known = t->lane.n_nodes;
        for (uint32_t i = 0; i < e->n_known; i++) e->known[i] = t->lane.node[i].address;
        LOG(LOG_NOTICE, "the engine of the cold tier answers%s", t->lane.clustered ? ", it is a cluster" : "");
        pthread_cond_broadcast(&e->work);
    }
    note_breaker(e, &t->lane);
}

static void serve_ops(struct cold_engine *e, struct lane_thread *t, struct cold_op **ops, uint32_t n) {
    uint64_t before = t->lane.connections;
    if (t->answers != e->answers) cold_lane_learn(&t->lane, e->known, e->n_known);
    t->answers = e->answers;
    pthread_mutex_unlock(&e->lock);
    cold_lane_serve(&t->lane, ops, n);
    pthread_mutex_lock(&e->lock);
    e->state.connections += t->lane.connections - before;
    for (uint32_t i = 0; i < n; i++) finish_op(e, ops[i]);
    pthread_cond_broadcast(&e->done);
    if (e->stop) return;
    if (!t->lane.faults) breaker_good(&e->breaker);
    else if (breaker_fault(&e->breaker, t->lane.grave, clock_ns())) note_breaker(e, &t->lane);
}

static void wait_for_work(struct cold_engine *e, bool until_try) {
    uint64_t until = e->breaker.until_ns;
    struct timespec t = { .tv_sec = (time_t)(until / SECOND), .tv_nsec = (long)(until % SECOND) };
    if (until_try) pthread_cond_timedwait(&e->work, &e->lock, &t);
    else pthread_cond_wait(&e->work, &e->lock);
}

static void *run_lane(void *argument) {
    struct lane_thread *t = argument;
    struct cold_engine *e = t->engine;
    struct cold_op *ops[COLD_PIPELINE];
    pthread_mutex_lock(&e->lock);
    while (!e->stop) {
        bool open = e->breaker.open;
        uint32_t n = open ? 0 : take_ops(e, ops);
        if (n) serve_ops(e, t, ops, n);
        else if (open && t->first && clock_ns() >= e->breaker.until_ns) try_engine(e, t);
        else wait_for_work(e, open && t->first);
    }
    pthread_mutex_unlock(&e->lock);
    cold_lane_close(&t->lane);
    return NULL;
}

/* ---- face ---------------------------------------------------------------------------------------- */

void cold_engine_run(struct cold_engine *e, struct cold_op *ops, uint32_t n) {
    struct cold_run run = { n };
    pthread_mutex_lock(&e->lock);
    for (uint32_t i = 0; i < n; i++) {
        ops[i].run = &run;
        ops[i].next = NULL;
        ops[i].got = 0;
        *e->last = &ops[i];
        e->last = &ops[i].next;
    }
    e->queued += n;
    if (e->stop || e->breaker.open) drop_queue(e);
    else pthread_cond_broadcast(&e->work);
    while (run.left) pthread_cond_wait(&e->done, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

void cold_engine_get_state(struct cold_engine *e, struct cold_engine_state *ret_state) {
    pthread_mutex_lock(&e->lock);
    uint64_t now = clock_ns();
    *ret_state = e->state;
    ret_state->retry_ns = e->breaker.open && e->breaker.until_ns > now ? e->breaker.until_ns - now : 0;
    pthread_mutex_unlock(&e->lock);
}

void cold_engine_stop(struct cold_engine *e) {
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    ssize_t n = write(e->stop_fd, &(uint64_t){ 1 }, sizeof(uint64_t));
    (void)n; /* fails only when the counter is full, and then it is readable */
    drop_queue(e);
    pthread_cond_broadcast(&e->work);
    pthread_mutex_unlock(&e->lock);
}

struct cold_engine *cold_engine_free(struct cold_engine *e) {
    if (!e) return NULL;
    cold_engine_stop(e);
    for (uint32_t i = 0; i < e->n_lanes; i++) pthread_join(e->lanes[i].thread, NULL);
    close(e->stop_fd);
    pthread_cond_destroy(&e->work);
    pthread_cond_destroy(&e->done);
    pthread_mutex_destroy(&e->lock);
    free(e->lanes);
    free(e);
    return NULL;
}

/* No signal is theirs: kvd's main thread takes them all. */
static bool start_lanes(struct cold_engine *e) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (e->n_lanes < e->config.lanes) {
        struct lane_thread *t = &e->lanes[e->n_lanes];
        t->engine = e;
        t->first = e->n_lanes == 0;
        cold_lane_init(&t->lane, &e->config, e->stop_fd);
        if (pthread_create(&t->thread, NULL, run_lane, t)) break;
        e->n_lanes++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return e->n_lanes == e->config.lanes;
}

int cold_engine_new(const struct cold_engine_config *config, struct cold_engine **ret_engine, char *err,
                    size_t err_bytes) {
    pthread_condattr_t clock;
    struct cold_engine *e = calloc(1, sizeof *e);
    struct lane_thread *lanes = calloc(config->lanes, sizeof *lanes);
    int stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!e || !lanes || stop_fd < 0) {
        free(e);
        free(lanes);
        if (stop_fd >= 0) close(stop_fd);
        snprintf(err, err_bytes, "no memory or descriptor for the client of the cold tier's engine");
        return 1;
    }
    e->config = *config;
    e->lanes = lanes;
    e->stop_fd = stop_fd;
    e->last = &e->first;
    breaker_init(&e->breaker, config->retry_ns, config->retry_most_ns, clock_ns());
    pthread_mutex_init(&e->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&e->work, &clock);
    pthread_cond_init(&e->done, NULL);
    pthread_condattr_destroy(&clock);
    if (start_lanes(e)) {
        *ret_engine = e;
        return 0;
    }
    snprintf(err, err_bytes, "no thread for the client of the cold tier's engine");
    cold_engine_free(e);
    return 1;
}
