/* SPDX-License-Identifier: Apache-2.0
 *
 * Exactness. The attention op cuts the work of a whole launch into equal shares, so that the order of its sums depends
 * on everything in the batch, and its kernels differ by the number of columns. Here every column has a launch of its
 * own (W = 1, B = 1, one envelope: the store's max_context), after the columns of the step were appended: such a launch
 * knows nothing but this column's query, position and keys, so that its bits are the same in any batch, in any chunk,
 * and in a worker that begins anew in the middle of one. An engine whose text may differ in rounding from run to run
 * takes whole batches.
 *
 * Steps of pure decode are CUDA Graphs, captured once for a number of columns and replayed with other tokens,
 * positions, table rows and tables.
 */
#include "model_cuda.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvd_ops.h"
#include "model_internal.h"
#include "model_kernels.h"

#define GRAPH_COLUMNS 16 /* decode steps of more columns are launched one by one */

struct step_input {
    int32_t token[MODEL_COLUMNS], position[MODEL_COLUMNS], row[MODEL_COLUMNS];
    int32_t wanted[MODEL_COLUMNS]; /* columns whose logits are asked for, in order; then zeros */
};

struct activations { /* on the device; [MODEL_COLUMNS] of each */
    struct step_input *input;
    float *x, *norm, *qkv, *gate_up, *act, *logits;
    uint16_t *q, *k, *v, *out;
};

struct replays { /* of one part */
    bool warm;   /* one step was launched with these views: every kernel is loaded */
    PagedKVBatchLayerView views[MODEL_LAYERS];
    cudaGraphExec_t exec[GRAPH_COLUMNS + 1]; /* by the number of columns */
};

struct cuda_model {
    struct model base;
    struct model_weights weights; /* on the device */
    float *cos, *sin;             /* the same */
    cudaStream_t stream;
    struct activations on;
    struct step_input *input; /* pinned: where a step's copy begins */
    float *logits;            /* pinned: where its results end; [MODEL_COLUMNS][MODEL_VOCABULARY] */
    void *workspace;
    size_t workspace_bytes;
    struct replays replays[2]; /* enum model_part */
};

struct step {
    enum model_part part;
    const PagedKVBatchLayerView *views;
    const struct model_segment *segments;
    uint32_t n_segments, columns, wanted;
    bool decode; /* each segment is one column */
};

static int failed(cudaError_t e, const char *what, char *err, size_t err_bytes) {
    if (e == cudaSuccess) return 0;
    snprintf(err, err_bytes, "the GPU cannot %s: %s", what, cudaGetErrorString(e));
    return e == cudaErrorMemoryAllocation ? -ENOMEM : -EIO;
}

/* ---- one step in the stream ----------------------------------------------------------------------------- */

static int append_step(const struct cuda_model *m, const struct step *step, const PagedKVBatchLayerView *view,
                       char *err, size_t err_bytes) {
    const struct activations *on = &m->on;
    uint32_t column = 0, calls = step->decode ? 1 : step->n_segments;
    for (uint32_t i = 0; i < calls; i++) {
        const struct kvd_ops_append op = { .view = *view,
                                           .k = on->k + (size_t)column * MODEL_KV,
                                           .v = on->v + (size_t)column * MODEL_KV,
                                           .positions = on->input->position + column,
                                           .table_rows = on->input->row + column,
                                           .w = step->decode ? 1 : step->segments[i].n,
                                           .b = step->decode ? step->columns : 1,
                                           .k_scale = scale_of_layer(view),
                                           .v_scale = scale_of_layer(view) };
        if (kvd_ops_append_cuda(&op, m->stream, err, err_bytes) != 0) return -EINVAL;
        column += op.w;
    }
    return 0;
}

static struct kvd_ops_attention attention_of(const struct cuda_model *m, const PagedKVBatchLayerView *view,
                                             uint32_t column) {
    const struct activations *on = &m->on;
    return (struct kvd_ops_attention){ .view = *view,
                                       .q = on->q + (size_t)column * MODEL_Q,
                                       .out = on->out + (size_t)column * MODEL_Q,
                                       .positions = on->input->position + column,
                                       .table_rows = on->input->row + column,
                                       .n_q_heads = MODEL_HEADS,
                                       .w = 1,
                                       .b = 1,
                                       .causal = 1,
                                       .scale = MODEL_SCALE,
                                       .k_scale = scale_of_layer(view),
                                       .v_scale = scale_of_layer(view) };
}

static int attend_step(const struct cuda_model *m, const struct step *step, const PagedKVBatchLayerView *view,
                       char *err, size_t err_bytes) {
    for (uint32_t i = 0; i < step->columns; i++) {
        const struct kvd_ops_attention op = attention_of(m, view, i);
        if (kvd_ops_attention_cuda(&op, m->base.max_context, m->workspace, m->workspace_bytes, m->stream, err,
                                   err_bytes))
            return -EINVAL;
    }
    return 0;
}

static int layer_step(const struct cuda_model *m, const struct step *step, uint32_t l, char *err, size_t err_bytes) {
    const struct activations *on = &m->on;
    const struct model_layer *layer = &m->weights.layer[l];
    const uint32_t n = step->columns;
    kernel_norm(on->x, NULL, n, on->norm, m->stream);
    kernel_matmul(on->norm, n, MODEL_HIDDEN, layer->qkv, MODEL_QKV, 0, on->qkv, m->stream);
    kernel_rotate(on->qkv, m->cos, m->sin, on->input->position, n, on->q, on->k, on->v, m->stream);
    int r = append_step(m, step, &step->views[l], err, err_bytes);
    if (r == 0) r = attend_step(m, step, &step->views[l], err, err_bytes);
    if (r != 0) return r;
    kernel_matmul_bf16(on->out, n, MODEL_Q, layer->out, MODEL_HIDDEN, 1, on->x, m->stream);
    kernel_norm(on->x, NULL, n, on->norm, m->stream);
    kernel_matmul(on->norm, n, MODEL_HIDDEN, layer->gate_up, 2 * MODEL_FFN, 0, on->gate_up, m->stream);
    kernel_gate(on->gate_up, n, on->act, m->stream);
    kernel_matmul(on->act, n, MODEL_FFN, layer->down, MODEL_HIDDEN, 1, on->x, m->stream);
    return 0;
}

/* From the pinned input to the pinned logits of the first `wanted` wanted columns. */
static int enqueue_step(const struct cuda_model *m, const struct step *step, uint32_t wanted, char *err,
                        size_t err_bytes) {
    const struct activations *on = &m->on;
    const size_t bytes = (size_t)wanted * MODEL_VOCABULARY * sizeof *m->logits;
    int r = failed(cudaMemcpyAsync(on->input, m->input, sizeof *m->input, cudaMemcpyHostToDevice, m->stream),
                   "take the input of a step", err, err_bytes);
    if (r != 0) return r;
    kernel_embed(m->weights.embedding, on->input->token, step->columns, on->x, m->stream);
    for (uint32_t l = 0; r == 0 && l < (step->part == MODEL_MAIN ? MODEL_LAYERS : MODEL_DRAFT_LAYERS); l++)
        r = layer_step(m, step, l, err, err_bytes);
    if (r == 0 && wanted > 0) {
        kernel_norm(on->x, on->input->wanted, wanted, on->norm, m->stream);
        kernel_matmul(on->norm, wanted, MODEL_HIDDEN, m->weights.head, MODEL_VOCABULARY, 0, on->logits, m->stream);
        r = failed(cudaMemcpyAsync(m->logits, on->logits, bytes, cudaMemcpyDeviceToHost, m->stream),
                   "give the logits of a step", err, err_bytes);
    }
    return r == 0 ? failed(cudaGetLastError(), "launch a step of the model", err, err_bytes) : r;
}

/* ---- graphs ------------------------------------------------------------------------------------------------ */

static void replays_drop(struct replays *replays) {
    for (uint32_t i = 0; i <= GRAPH_COLUMNS; i++)
        if (replays->exec[i]) cudaGraphExecDestroy(replays->exec[i]);
    memset(replays, 0, sizeof *replays);
}

static int capture(const struct cuda_model *m, const struct step *step, cudaGraphExec_t *ret_exec, char *err,
                   size_t err_bytes) {
    cudaGraph_t graph = NULL;
    int r =
        failed(cudaStreamBeginCapture(m->stream, cudaStreamCaptureModeThreadLocal), "begin a capture", err, err_bytes);
    if (r != 0) return r;
    r = enqueue_step(m, step, step->columns, err, err_bytes);
    cudaError_t e = cudaStreamEndCapture(m->stream, &graph);
    if (r == 0) r = failed(e, "end a capture", err, err_bytes);
    if (r == 0) r = failed(cudaGraphInstantiate(ret_exec, graph, 0), "make a graph of a step", err, err_bytes);
    if (graph) cudaGraphDestroy(graph);
    return r;
}

static int replay(struct cuda_model *m, const struct step *step, char *err, size_t err_bytes) {
    cudaGraphExec_t *exec = &m->replays[step->part].exec[step->columns];
    int r = *exec ? 0 : capture(m, step, exec, err, err_bytes);
    return r == 0 ? failed(cudaGraphLaunch(*exec, m->stream), "replay a step", err, err_bytes) : r;
}

/* ---- steps ----------------------------------------------------------------------------------------------------- */

static void input_fill(struct step_input *input, struct step *step) {
    uint32_t column = 0, wanted = 0;
    step->decode = true;
    memset(input->wanted, 0, sizeof input->wanted);
    for (uint32_t i = 0; i < step->n_segments; i++) {
        const struct model_segment *s = &step->segments[i];
        step->decode = step->decode && s->n == 1;
        for (uint32_t j = 0; j < s->n; j++, column++) {
            input->token[column] = s->history[s->first + j];
            input->position[column] = (int32_t)(s->first + j);
            input->row[column] = (int32_t)s->row;
            if (j >= s->n - s->want) input->wanted[wanted++] = (int32_t)column;
        }
    }
    step->wanted = wanted;
}

/* Graphs hold the workspace and the views that they were captured with. */
static int prepare_step(struct cuda_model *m, const struct step *step, char *err, size_t err_bytes) {
    struct replays *replays = &m->replays[step->part];
    const size_t bytes = (step->part == MODEL_MAIN ? MODEL_LAYERS : MODEL_DRAFT_LAYERS) * sizeof *step->views;
    const struct kvd_ops_attention op = attention_of(m, step->views, 0);
    const size_t need = kvd_ops_attention_workspace(&op, m->base.max_context);
    if (need > m->workspace_bytes) {
        for (uint32_t i = 0; i < 2; i++) replays_drop(&m->replays[i]);
        cudaFree(m->workspace);
        m->workspace = NULL;
        m->workspace_bytes = 0;
        int r = failed(cudaMalloc(&m->workspace, need), "give a workspace", err, err_bytes);
        if (r != 0) return r;
        m->workspace_bytes = need;
    }
    if (memcmp(replays->views, step->views, bytes) != 0) {
        replays_drop(replays);
        memcpy(replays->views, step->views, bytes);
    }
    return 0;
}

static int cuda_step(struct model *base, enum model_part part, const PagedKVBatchLayerView *views,
                     const struct model_segment *segments, uint32_t n_segments, uint32_t columns, char *err,
                     size_t err_bytes) {
    struct cuda_model *m = (struct cuda_model *)base;
    struct replays *replays = &m->replays[part];
    struct step step = {
        .part = part, .views = views, .segments = segments, .n_segments = n_segments, .columns = columns
    };
    input_fill(m->input, &step);
    int r = prepare_step(m, &step, err, err_bytes);
    if (r == 0) {
        bool graph = step.decode && columns <= GRAPH_COLUMNS && replays->warm;
        r = graph ? replay(m, &step, err, err_bytes) : enqueue_step(m, &step, step.wanted, err, err_bytes);
    }
    /* Also after a refusal: nothing of this step runs when the caller goes on. */
    int end = failed(cudaStreamSynchronize(m->stream), "finish a step", r == 0 ? err : NULL, r == 0 ? err_bytes : 0);
    r = r == 0 ? end : r;
    if (r == 0) {
        replays->warm = true;
        model_answer(base, segments, n_segments, m->logits);
    }
    return r;
}

/* ---- life ------------------------------------------------------------------------------------------------- */

static void cuda_free(struct model *base) {
    struct cuda_model *m = (struct cuda_model *)base;
    struct activations *on = &m->on;
    for (uint32_t i = 0; i < 2; i++) replays_drop(&m->replays[i]);
    void *const device[] = { m->weights.block, m->cos,     m->sin, on->input, on->x, on->norm, on->qkv,     on->gate_up,
                             on->act,          on->logits, on->q,  on->k,     on->v, on->out,  m->workspace };
    for (uint32_t i = 0; i < sizeof device / sizeof device[0]; i++) cudaFree(device[i]);
    cudaFreeHost(m->input);
    cudaFreeHost(m->logits);
    if (m->stream) cudaStreamDestroy(m->stream);
    model_fini(base);
    free(m);
}

static cudaError_t upload(const float *from, size_t n, float **ret_to) {
    cudaError_t e = cudaMalloc((void **)ret_to, n * sizeof *from);
    return e == cudaSuccess ? cudaMemcpy(*ret_to, from, n * sizeof *from, cudaMemcpyHostToDevice) : e;
}

/* The device's weights stand as the host's do. */
static void place_weights(const struct model_weights *host, struct model_weights *device) {
    device->n = host->n;
    device->embedding = device->block + (host->embedding - host->block);
    device->head = device->block + (host->head - host->block);
    for (uint32_t l = 0; l < MODEL_LAYERS; l++) {
        const struct model_layer *from = &host->layer[l];
        device->layer[l] = (struct model_layer){ .qkv = device->block + (from->qkv - host->block),
                                                 .out = device->block + (from->out - host->block),
                                                 .gate_up = device->block + (from->gate_up - host->block),
                                                 .down = device->block + (from->down - host->block) };
    }
}

static cudaError_t make_buffers(struct cuda_model *m) {
    struct activations *on = &m->on;
    const struct {
        void **at;
        size_t bytes; /* of a column */
    } arrays[] = {
        { (void **)&on->x, MODEL_HIDDEN * sizeof(float) }, { (void **)&on->norm, MODEL_HIDDEN * sizeof(float) },
        { (void **)&on->qkv, MODEL_QKV * sizeof(float) },  { (void **)&on->gate_up, 2 * MODEL_FFN * sizeof(float) },
        { (void **)&on->act, MODEL_FFN * sizeof(float) },  { (void **)&on->logits, MODEL_VOCABULARY * sizeof(float) },
        { (void **)&on->q, MODEL_Q * sizeof(uint16_t) },   { (void **)&on->k, MODEL_KV * sizeof(uint16_t) },
        { (void **)&on->v, MODEL_KV * sizeof(uint16_t) },  { (void **)&on->out, MODEL_Q * sizeof(uint16_t) }
    };
    cudaError_t e = cudaMalloc((void **)&on->input, sizeof *on->input);
    for (uint32_t i = 0; e == cudaSuccess && i < sizeof arrays / sizeof arrays[0]; i++)
        e = cudaMalloc(arrays[i].at, MODEL_COLUMNS * arrays[i].bytes);
    if (e == cudaSuccess) e = cudaMallocHost((void **)&m->input, sizeof *m->input);
    if (e == cudaSuccess)
        e = cudaMallocHost((void **)&m->logits, (size_t)MODEL_COLUMNS * MODEL_VOCABULARY * sizeof *m->logits);
    return e == cudaSuccess ? cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking) : e;
}

static int choose_device(const uint8_t *uuid, char *err, size_t err_bytes) {
    int n = 0, index = -1;
    cudaError_t e = cudaGetDeviceCount(&n);
    for (int i = 0; e == cudaSuccess && index < 0 && i < n; i++) {
        struct cudaDeviceProp properties;
        e = cudaGetDeviceProperties(&properties, i);
        if (e == cudaSuccess && (!uuid || memcmp(properties.uuid.bytes, uuid, 16) == 0)) index = i;
    }
    if (e == cudaSuccess && index >= 0) return failed(cudaSetDevice(index), "be used", err, err_bytes);
    if (e == cudaSuccess)
        snprintf(err, err_bytes, "none of the %d GPUs that this process sees is that of the store", n);
    else snprintf(err, err_bytes, "no GPU can be used here: %s", cudaGetErrorString(e));
    return -ENODEV;
}

int model_cuda_new(const uint8_t *device_uuid, uint32_t max_context, const char *document, struct model **ret_model,
                   char *err, size_t err_bytes) {
    static const struct model_kind kind = { .step = cuda_step, .free = cuda_free };
    int r = choose_device(device_uuid, err, err_bytes);
    if (r != 0) return r;
    struct cuda_model *m = calloc(1, sizeof *m);
    if (!m) {
        snprintf(err, err_bytes, "not enough memory for the demo model");
        return -ENOMEM;
    }
    r = model_init(&m->base, &kind, max_context, document, err, err_bytes);
    const size_t angles = (size_t)max_context * MODEL_HALF;
    cudaError_t e = cudaSuccess;
    if (r == 0) e = upload(m->base.weights.block, m->base.weights.n, &m->weights.block);
    if (r == 0 && e == cudaSuccess) e = upload(m->base.cos, angles, &m->cos);
    if (r == 0 && e == cudaSuccess) e = upload(m->base.sin, angles, &m->sin);
    if (r == 0 && e == cudaSuccess) e = make_buffers(m);
    if (r == 0 && e == cudaSuccess) e = cudaDeviceSynchronize(); /* uploads may still be on their way */
    if (r == 0) r = failed(e, "hold the demo model", err, err_bytes);
    if (r != 0) {
        cuda_free(&m->base);
        return r;
    }
    place_weights(&m->base.weights, &m->weights);
    *ret_model = &m->base;
    return 0;
}
