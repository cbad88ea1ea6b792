/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver's copies, in forms that do not wait for another process's time slice: device to host; host to device 2-D
 * with two or more rows; host to device 1-D of 32 KiB and more. Everything that copies pages or tables comes through
 * here.
 */
#include <errno.h>
#include <stdlib.h>

#include "device_cuda_internal.h"
#include "device_strip.h"

#define FLAT_BATCH_BYTES (32u << 10) /* rows of a batched call to the device: they cannot be halved at no cost */

int cuda_to_host(CUstream stream, CUdeviceptr region, const struct move_strip *s, char *err, size_t err_bytes) {
    CUdeviceptr from = region + s->region_offset;
    CUDA_MEMCPY2D copy = { .srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = from,
                           .srcPitch = s->region_pitch,
                           .dstMemoryType = CU_MEMORYTYPE_HOST,
                           .dstHost = s->host,
                           .dstPitch = s->host_pitch,
                           .WidthInBytes = s->width,
                           .Height = s->rows };
    if (s->rows == 1) return CUDA_CALL(err, err_bytes, cuMemcpyDtoHAsync, s->host, from, s->width, stream);
    return CUDA_CALL(err, err_bytes, cuMemcpy2DAsync, &copy, stream);
}

/* A short single row goes as two dense rows of half of it. */
int cuda_to_device(CUstream stream, CUdeviceptr region, const struct move_strip *s, char *err, size_t err_bytes) {
    CUdeviceptr to = region + s->region_offset;
    if (s->rows == 1 && s->width >= CUDA_FLAT_COPY_BYTES)
        return CUDA_CALL(err, err_bytes, cuMemcpyHtoDAsync, to, s->host, s->width, stream);
    uint64_t half = s->rows == 1 ? s->width / 2 : 0;
    CUDA_MEMCPY2D copy = { .srcMemoryType = CU_MEMORYTYPE_HOST,
                           .srcHost = s->host,
                           .srcPitch = half ? half : s->host_pitch,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = to,
                           .dstPitch = half ? half : s->region_pitch,
                           .WidthInBytes = half ? half : s->width,
                           .Height = half ? 2 : s->rows };
    return CUDA_CALL(err, err_bytes, cuMemcpy2DAsync, &copy, stream);
}

static int send_strip(struct cuda_mover *m, CUdeviceptr region, const struct move_strip *s, char *err,
                      size_t err_bytes) {
    CUstream stream = m->streams[m->stream];
    m->loaded_ops++;
    if (m->direction == DEVICE_TO_HOST) return cuda_to_host(stream, region, s, err, err_bytes);
    return cuda_to_device(stream, region, s, err, err_bytes);
}

static int send_rows(struct cuda_mover *m, CUdeviceptr region, const struct move_strip *s, char *err,
                     size_t err_bytes) {
    int r = 0;
    for (uint64_t row = 0; !r && row < s->rows; row++) {
        struct move_strip one = { .region_offset = s->region_offset + row * s->region_pitch,
                                  .host = s->host + row * s->host_pitch,
                                  .width = s->width,
                                  .rows = 1 };
        r = send_strip(m, region, &one, err, err_bytes);
    }
    return r;
}

/* ---- batched calls ------------------------------------------------------------------------ */

#if CUDA_VERSION >= 13000
struct cuda_ops {
    size_t n_strips, n_rows;
    CUDA_MEMCPY3D_BATCH_OP strips[CUDA_MOVE_OPS];
    CUdeviceptr to[CUDA_MOVE_OPS], from[CUDA_MOVE_OPS];
    size_t bytes[CUDA_MOVE_OPS];
};

static CUmemcpy3DOperand operand(CUdeviceptr at, uint64_t pitch, uint64_t rows) {
    return (CUmemcpy3DOperand){ .type = CU_MEMCPY_OPERAND_TYPE_POINTER,
                                .op.ptr = { .ptr = at, .rowLength = pitch, .layerHeight = rows } };
}

static int flush_strips(struct cuda_mover *m, char *err, size_t err_bytes) {
    struct cuda_ops *ops = m->ops;
    size_t n = ops->n_strips;
    ops->n_strips = 0;
    if (!n) return 0;
    return CUDA_CALL(err, err_bytes, cuMemcpy3DBatchAsync, n, ops->strips, 0, m->streams[m->stream]);
}

static int flush_rows(struct cuda_mover *m, char *err, size_t err_bytes) {
    struct cuda_ops *ops = m->ops;
    CUmemcpyAttributes attributes = { .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
                                      .flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE };
    size_t n = ops->n_rows, first = 0;
    ops->n_rows = 0;
    if (!n) return 0;
    return CUDA_CALL(err, err_bytes, cuMemcpyBatchAsync, ops->to, ops->from, ops->bytes, n, &attributes, &first, 1,
                     m->streams[m->stream]);
}

int cuda_form_flush(struct cuda_mover *m, char *err, size_t err_bytes) {
    int r = flush_strips(m, err, err_bytes);
    return r ? r : flush_rows(m, err, err_bytes);
}

static int add_strip(struct cuda_mover *m, CUdeviceptr region, const struct move_strip *s, char *err,
                     size_t err_bytes) {
    struct cuda_ops *ops = m->ops;
    uint64_t width = s->width, rows = s->rows, pitch = s->region_pitch, host_pitch = s->host_pitch;
    bool to_host = m->direction == DEVICE_TO_HOST;
    if (rows == 1) {
        rows = to_host || width >= CUDA_FLAT_COPY_BYTES ? 1 : 2;
        pitch = host_pitch = width = width / rows;
    }
    CUmemcpy3DOperand there = operand(region + s->region_offset, pitch, rows),
                      here = operand((CUdeviceptr)(uintptr_t)s->host, host_pitch, rows);
    ops->strips[ops->n_strips++] = (CUDA_MEMCPY3D_BATCH_OP){ .src = to_host ? there : here,
                                                             .dst = to_host ? here : there,
                                                             .extent = { .width = width, .height = rows, .depth = 1 },
                                                             .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
                                                             .flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE };
    m->loaded_ops++;
    return ops->n_strips == CUDA_MOVE_OPS ? flush_strips(m, err, err_bytes) : 0;
}

static int add_rows(struct cuda_mover *m, CUdeviceptr region, const struct move_strip *s, char *err, size_t err_bytes) {
    struct cuda_ops *ops = m->ops;
    bool to_host = m->direction == DEVICE_TO_HOST;
    int r = 0;
    for (uint64_t row = 0; !r && row < s->rows; row++) {
        CUdeviceptr there = region + s->region_offset + row * s->region_pitch,
                    here = (CUdeviceptr)(uintptr_t)(s->host + row * s->host_pitch);
        ops->to[ops->n_rows] = to_host ? here : there;
        ops->from[ops->n_rows] = to_host ? there : here;
        ops->bytes[ops->n_rows++] = s->width;
        m->loaded_ops++;
        if (ops->n_rows == CUDA_MOVE_OPS) r = flush_rows(m, err, err_bytes);
    }
    return r;
}

static bool can_batch(enum cuda_form form) {
    return form == CUDA_FORM_BATCH ? cuda_driver.cuMemcpy3DBatchAsync != NULL : cuda_driver.cuMemcpyBatchAsync != NULL;
}

int cuda_ops_new(struct cuda_mover *m) {
    m->ops = calloc(1, sizeof *m->ops);
    return m->ops ? 0 : -ENOMEM;
}

void cuda_ops_free(struct cuda_mover *m) { free(m->ops); }
#else
int cuda_form_flush(struct cuda_mover *m, char *err, size_t err_bytes) {
    (void)m, (void)err, (void)err_bytes;
    return 0;
}
static bool can_batch(enum cuda_form form) { return (void)form, false; }
static int add_strip(struct cuda_mover *m, CUdeviceptr region, const struct move_strip *s, char *err,
                     size_t err_bytes) {
    return send_strip(m, region, s, err, err_bytes);
}
static int add_rows(struct cuda_mover *m, CUdeviceptr region, const struct move_strip *s, char *err, size_t err_bytes) {
    return send_rows(m, region, s, err, err_bytes);
}
int cuda_ops_new(struct cuda_mover *m) { return (void)m, 0; }
void cuda_ops_free(struct cuda_mover *m) { (void)m; }
#endif

/* ---- choice ------------------------------------------------------------------------------- */

static enum cuda_form form_of(const struct cuda_mover *m, const struct move_strip *s) {
    uint64_t limit = m->queue.device->pitch_limit;
    bool far = s->rows > 1 && (s->region_pitch > limit || s->host_pitch > limit);
    bool wide = m->tuning.wide_bytes && s->width * s->rows >= m->tuning.wide_bytes;
    enum cuda_form form = far ? m->tuning.far : wide ? m->tuning.wide : m->tuning.near;
    bool short_rows = m->direction == HOST_TO_DEVICE && s->width < FLAT_BATCH_BYTES;
    if (form == CUDA_FORM_BATCH_ROWS && short_rows) form = far ? CUDA_FORM_ROWS : CUDA_FORM_BATCH;
    if ((form == CUDA_FORM_BATCH || form == CUDA_FORM_BATCH_ROWS) && !can_batch(form))
        return far ? CUDA_FORM_ROWS : CUDA_FORM_2D;
    return form;
}

int cuda_form_add(struct cuda_mover *m, CUdeviceptr region, const struct move_strip *s, char *err, size_t err_bytes) {
    switch (form_of(m, s)) {
    case CUDA_FORM_BATCH: return add_strip(m, region, s, err, err_bytes);
    case CUDA_FORM_BATCH_ROWS: return add_rows(m, region, s, err, err_bytes);
    case CUDA_FORM_ROWS: return send_rows(m, region, s, err, err_bytes);
    case CUDA_FORM_2D:
    default: return send_strip(m, region, s, err, err_bytes);
    }
}
