/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages between a GPU and pinned memory. Each direction has a queue, a thread and streams of its own. The thread turns
 * jobs into copies and puts them on its streams in flights of bounded size, by turns; only so many bytes are in the air
 * at once, so that a copy of somebody else finds little before it in the copy engine, and a device that is closed has
 * little to wait for. Flights are told done in the order in which they began: tickets complete in order.
 *
 * A copy engine turns to another queue only when the one that it works on has nothing ready. A stream that is never
 * empty starves every other copy of its direction, publications and those of engines too, for as long as it lasts
 * (measured: a quarter of a second and more). So flights go on two streams in turn, each waiting for the one before:
 * between two of them the engine looks around, and nobody waits for more than a flight. That costs 1 % of the rate.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "device_cuda_internal.h"
#include "device_strip.h"

#define SPIN_NS 100000u /* for a small flight; bulk is asked for in pauses */
#define SMALL_BYTES (1u << 20)

struct cuda_move_tuning cuda_move_tuning = {
    .streams = 2,
    .chain = true,
    .near = CUDA_FORM_BATCH_ROWS,
    .wide = CUDA_FORM_BATCH,
    .wide_bytes = 4u << 20,
    .far = CUDA_FORM_BATCH_ROWS,
    .flight_bytes = 8u << 20,
    .depth_bytes = 32u << 20,
};

/* ---- submit ------------------------------------------------------------------------------- */

int cuda_move(struct device *device, const struct device_moves *moves, uint64_t *ret_ticket, bool *ret_inline_done,
              char *err, size_t err_bytes) {
    struct cuda_device *d = cuda_of(device);
    struct cuda_queue *q = &d->movers[moves->direction].queue;
    size_t bytes = moves->n * sizeof *moves->moves;
    int r = cuda_check_lost(d, err, err_bytes);
    if (r) return r;
    struct cuda_job *job = malloc(sizeof *job + bytes);
    if (!job) return refuse_with(-ENOMEM, err, err_bytes, "no memory to queue %u moves of pages", moves->n);
    *job = (struct cuda_job){ .spec = *moves->spec,
                              .region = ((const struct cuda_region *)moves->region)->address,
                              .n_pages = moves->n_pages,
                              .rank = moves->rank,
                              .n = moves->n };
    if (bytes) memcpy(job->moves, moves->moves, bytes);
    *ret_ticket = q->last_ticket + 1;
    *ret_inline_done = false;
    cuda_queue_put(q, &job->item);
    return 0;
}

int cuda_poll_moves(struct device *device, enum device_direction direction, uint64_t *ret_done, char *err,
                    size_t err_bytes) {
    return cuda_queue_poll(&cuda_of(device)->movers[direction].queue, ret_done, err, err_bytes);
}

/* ---- flights ------------------------------------------------------------------------------ */

static void land_first(struct cuda_mover *m) {
    struct cuda_flight *flight = &m->flights[m->first];
    m->in_air -= flight->bytes;
    m->first = (m->first + 1) % CUDA_MOVE_FLIGHTS;
    m->n--;
    if (!flight->ticket) return;
    atomic_store_explicit(&m->queue.done, flight->ticket, memory_order_release);
    cuda_tell(m->queue.device);
}

static uint64_t spin_ns(const struct cuda_flight *flight) { return flight->bytes <= SMALL_BYTES ? SPIN_NS : 0; }

/* Lands the first flight, or rests a little. */
static int look_at_flights(struct cuda_mover *m, char *err, size_t err_bytes) {
    const struct cuda_flight *flight = &m->flights[m->first];
    CUresult result = cuda_driver.cuEventQuery(flight->event);
    if (result == CUDA_ERROR_NOT_READY)
        return cuda_pause(m->queue.device, flight->began, spin_ns(flight), err, err_bytes);
    int r = cuda_result(result, CUDA_NAME(cuEventQuery), err, err_bytes);
    if (!r) land_first(m);
    return r;
}

/* Until another flight of `bytes` may begin. One is always in the air if there is work: alone it may be of any size. */
static int make_way(struct cuda_mover *m, uint64_t bytes, char *err, size_t err_bytes) {
    int r = 0;
    while (!r && m->n && (m->n == CUDA_MOVE_FLIGHTS || m->in_air + bytes > m->tuning.depth_bytes))
        r = look_at_flights(m, err, err_bytes);
    return r;
}

/* ticket: of the job whose last copies they are, or 0. */
static int take_off(struct cuda_mover *m, uint64_t ticket, char *err, size_t err_bytes) {
    uint32_t at = (m->first + m->n) % CUDA_MOVE_FLIGHTS;
    struct cuda_flight *flight = &m->flights[at];
    int r = cuda_form_flush(m, err, err_bytes);
    if (!r) r = CUDA_CALL(err, err_bytes, cuEventRecord, flight->event, m->streams[m->stream]);
    if (r) return r;
    device_count_moved(&m->queue.device->base, m->direction, m->loaded_ops, m->loaded);
    flight->bytes = m->loaded;
    flight->began = cuda_now_ns();
    flight->ticket = ticket;
    m->in_air += m->loaded;
    m->n++;
    m->loaded = m->loaded_ops = 0;
    m->stream = (m->stream + 1) % m->tuning.streams;
    if (!m->tuning.chain || m->tuning.streams < 2) return 0;
    return CUDA_CALL(err, err_bytes, cuStreamWaitEvent, m->streams[m->stream], flight->event, 0);
}

/* ---- jobs --------------------------------------------------------------------------------- */

static int load_part(struct cuda_mover *m, CUdeviceptr region, const struct move_strip *part, char *err,
                     size_t err_bytes) {
    uint64_t bytes = part->width * part->rows;
    int r = 0;
    if (m->loaded && m->loaded + bytes > m->tuning.flight_bytes) r = take_off(m, 0, err, err_bytes);
    if (!r && !m->loaded) r = make_way(m, bytes, err, err_bytes);
    if (!r) r = cuda_form_add(m, region, part, err, err_bytes);
    if (!r) m->loaded += bytes;
    return r;
}

/* A row that is larger than a flight. */
static int load_row(struct cuda_mover *m, CUdeviceptr region, struct move_strip part, char *err, size_t err_bytes) {
    uint64_t left = part.width, most = m->tuning.flight_bytes;
    int r = 0;
    for (; !r && left; left -= part.width) {
        part.width = left < most ? left : most;
        r = load_part(m, region, &part, err, err_bytes);
        part.region_offset += part.width;
        part.host += part.width;
    }
    return r;
}

/* In parts of as many rows as a flight may carry, of about the same size. */
static int load_strip(struct cuda_mover *m, CUdeviceptr region, const struct move_strip *strip, char *err,
                      size_t err_bytes) {
    uint64_t most = m->tuning.flight_bytes / strip->width, parts = most ? (strip->rows + most - 1) / most : strip->rows;
    int r = 0;
    for (uint64_t row = 0, i = 0; !r && i < parts; i++) {
        struct move_strip part = *strip;
        part.rows = strip->rows / parts + (i < strip->rows % parts);
        part.region_offset += row * strip->region_pitch;
        part.host += row * strip->host_pitch;
        row += part.rows;
        r = most ? load_part(m, region, &part, err, err_bytes) : load_row(m, region, part, err, err_bytes);
    }
    return r;
}

static int run_job(struct cuda_mover *m, const struct cuda_job *job, char *err, size_t err_bytes) {
    struct cuda_device *d = m->queue.device;
    struct move_walk walk;
    struct move_strip strip;
    int r = 0;
    for (uint32_t i = 0; m->direction == DEVICE_TO_HOST && i < job->n; i++)
        move_clear_padding(&job->spec, job->moves[i].host);
    move_walk_begin(&walk, &job->spec, job->n_pages, job->rank, job->moves, job->n);
    while (!r && move_walk_next(&walk, &strip)) {
        r = load_strip(m, job->region, &strip, err, err_bytes);
        if (!r && atomic_load(&d->stop)) return take_off(m, 0, err, err_bytes); /* nobody asks for the rest */
        if (!r) r = cuda_check_lost(d, err, err_bytes);
    }
    if (!r && !m->loaded) r = make_way(m, 0, err, err_bytes); /* no pages: done with what is before it */
    return r ? r : take_off(m, job->item.ticket, err, err_bytes);
}

/* ---- the thread --------------------------------------------------------------------------- */

/* One job, or one look at the flights. 1: stop. */
static int turn(struct cuda_mover *m, char *err, size_t err_bytes) {
    struct cuda_item *item = m->n ? cuda_queue_look(&m->queue) : cuda_queue_take(&m->queue, NULL);
    if (!item && !m->n) return 1;
    if (!item) return look_at_flights(m, err, err_bytes);
    int r = cuda_check_lost(m->queue.device, err, err_bytes);
    if (!r && !atomic_load(&m->queue.device->stop)) r = run_job(m, (const struct cuda_job *)item, err, err_bytes);
    cuda_items_free(item);
    return r;
}

static int drain(struct cuda_mover *m) {
    int r = 0;
    for (uint32_t i = 0; !r && i < m->tuning.streams; i++) r = cuda_drain(m->queue.device, m->streams[i]);
    m->n = 0;
    m->in_air = m->loaded = m->loaded_ops = 0;
    return r;
}

void cuda_move_thread(struct cuda_queue *q) {
    struct cuda_device *d = q->device;
    struct cuda_mover *m = (struct cuda_mover *)q;
    char why[sizeof d->why] = "";
    for (int r = 0; r != 1;) {
        r = turn(m, why, sizeof why);
        if (r < 0) cuda_lose(d, why);
        if (r < 0 && r != -ETIMEDOUT) r = drain(m);
        if (r == -ETIMEDOUT) {
            atomic_store(&d->abandoned, true);
            return;
        }
    }
}

/* ---- driver objects ----------------------------------------------------------------------- */

int cuda_mover_make(struct cuda_device *d, enum device_direction direction, char *err, size_t err_bytes) {
    struct cuda_mover *m = &d->movers[direction];
    int r = cuda_ops_new(m);
    m->direction = direction;
    m->tuning = cuda_move_tuning;
    if (r) return refuse_with(r, err, err_bytes, "no memory for the moves of a device");
    for (uint32_t i = 0; !r && i < m->tuning.streams; i++)
        r = CUDA_CALL(err, err_bytes, cuStreamCreate, &m->streams[i], CU_STREAM_NON_BLOCKING);
    for (uint32_t i = 0; !r && i < CUDA_MOVE_FLIGHTS; i++)
        r = CUDA_CALL(err, err_bytes, cuEventCreate, &m->flights[i].event, CU_EVENT_DISABLE_TIMING);
    return r;
}

void cuda_mover_drop(struct cuda_mover *m) {
    for (uint32_t i = 0; i < CUDA_MOVE_FLIGHTS; i++)
        if (m->flights[i].event) (void)cuda_driver.cuEventDestroy(m->flights[i].event);
    for (uint32_t i = 0; i < CUDA_MOVE_STREAMS; i++)
        if (m->streams[i]) (void)cuda_driver.cuStreamDestroy(m->streams[i]);
    cuda_ops_free(m);
}
