/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "matmul.h"
#include "model_internal.h"
#include "ops.h"

/* Activations of one step. Columns stand in the order of the segments. Attention may want more columns than there are,
 * since short segments of different lengths share one padded batch. */
#define PADDED (MODEL_COLUMNS + MODEL_SEGMENTS * MODEL_SHORT)

struct cpu_model {
    struct model base;
    float x[MODEL_COLUMNS][MODEL_HIDDEN], norm[MODEL_COLUMNS][MODEL_HIDDEN];
    float qkv[MODEL_COLUMNS][MODEL_QKV];
    float mix[MODEL_COLUMNS][MODEL_Q];
    float gate_up[MODEL_COLUMNS][2 * MODEL_FFN], act[MODEL_COLUMNS][MODEL_FFN];
    float logits[MODEL_COLUMNS][MODEL_VOCABULARY];
    uint16_t q[PADDED][MODEL_Q], out[PADDED][MODEL_Q];
    uint16_t k[PADDED * MODEL_KV], v[PADDED * MODEL_KV]; /* as many heads a column as the layer has */
    int32_t positions[PADDED];
};

static void rms_norm(const float *x, float *y) {
    float sum = 0;
    for (uint32_t i = 0; i < MODEL_HIDDEN; i++) sum += x[i] * x[i];
    float scale = 1.0f / sqrtf(sum / MODEL_HIDDEN + MODEL_NORM_EPSILON);
    for (uint32_t i = 0; i < MODEL_HIDDEN; i++) y[i] = x[i] * scale;
}

/* Rotates pairs (i, i + MODEL_HALF) of each head and stores BF16. */
static void rotate(const struct cpu_model *model, const float *x, uint32_t heads, uint32_t position, uint16_t *y) {
    const size_t at = (size_t)position * MODEL_HALF;
    const float *c = model->base.cos + at, *s = model->base.sin + at;
    for (uint32_t h = 0; h < heads; h++, x += MODEL_HEAD_DIM, y += MODEL_HEAD_DIM)
        for (uint32_t i = 0; i < MODEL_HALF; i++) {
            y[i] = ops_f32_to_bf16(x[i] * c[i] - x[i + MODEL_HALF] * s[i]);
            y[i + MODEL_HALF] = ops_f32_to_bf16(x[i] * s[i] + x[i + MODEL_HALF] * c[i]);
        }
}

/* Segments that go through one call of the ops: `w` columns each, padded with columns past `valid`. */
struct cpu_group {
    const struct model_segment *segments;
    uint32_t n, w;
    uint32_t column; /* of the first segment's first column */
};

static void group_pack(struct cpu_model *model, const struct cpu_group *group, const PagedKVBatchLayerView *view,
                       int32_t *valid, int32_t *rows) {
    uint32_t column = group->column, kv = view->n_kv_heads * MODEL_HEAD_DIM;
    for (uint32_t b = 0; b < group->n; b++) {
        const struct model_segment *s = &group->segments[b];
        valid[b] = (int32_t)s->n;
        rows[b] = (int32_t)(view->window ? s->window_row : s->row);
        for (uint32_t i = 0; i < group->w; i++) {
            uint32_t at = b * group->w + i;
            model->positions[at] = (int32_t)(s->first + i);
            if (i >= s->n) {
                memset(model->q[at], 0, sizeof model->q[at]);
                memset(model->k + (size_t)at * kv, 0, kv * sizeof *model->k);
                memset(model->v + (size_t)at * kv, 0, kv * sizeof *model->v);
                continue;
            }
            const float *qkv = model->qkv[column++];
            rotate(model, qkv, MODEL_HEADS, s->first + i, model->q[at]);
            rotate(model, qkv + MODEL_Q, view->n_kv_heads, s->first + i, model->k + (size_t)at * kv);
            for (uint32_t d = 0; d < kv; d++)
                model->v[(size_t)at * kv + d] = ops_f32_to_bf16(qkv[MODEL_Q + MODEL_KV + d]);
        }
    }
}

static void group_unpack(struct cpu_model *model, const struct cpu_group *group) {
    uint32_t column = group->column;
    for (uint32_t b = 0; b < group->n; b++)
        for (uint32_t i = 0; i < group->segments[b].n; i++, column++)
            for (uint32_t d = 0; d < MODEL_Q; d++)
                model->mix[column][d] = ops_bf16_to_f32(model->out[b * group->w + i][d]);
}

/* A latent's bytes are the engine's business: here K and V of one head, at one place. */
static PagedKVBatchLayerView view_of_latent(const PagedKVBatchLayerView *latent) {
    PagedKVBatchLayerView view = *latent;
    view.format = KVD_FORMAT_KV;
    view.head_dim = view.v_head_dim = MODEL_HEAD_DIM;
    view.k.dtype = KVD_DTYPE_BF16;
    view.k.extent = MODEL_HEAD_DIM;
    view.k.stride_elem = sizeof(uint16_t);
    view.v = view.k;
    return view;
}

static int group_attend(struct cpu_model *model, const struct cpu_group *group, const PagedKVBatchLayerView *layer,
                        char *err, size_t err_bytes) {
    int32_t valid[MODEL_SEGMENTS], rows[MODEL_SEGMENTS];
    bool latent = layer->format == KVD_FORMAT_LATENT;
    const PagedKVBatchLayerView view = latent ? view_of_latent(layer) : *layer;
    group_pack(model, group, &view, valid, rows);
    const struct kvd_ops_append append = { .view = view,
                                           .k = model->k,
                                           .v = latent ? model->k : model->v,
                                           .positions = model->positions,
                                           .valid = valid,
                                           .table_rows = rows,
                                           .w = group->w,
                                           .b = group->n,
                                           .k_scale = scale_of_layer(&view),
                                           .v_scale = scale_of_layer(&view) };
    if (kvd_ops_append_host(&append, err, err_bytes) != 0) return -EINVAL;
    const struct kvd_ops_attention attention = { .view = view,
                                                 .q = model->q[0],
                                                 .out = model->out[0],
                                                 .positions = model->positions,
                                                 .valid = valid,
                                                 .table_rows = rows,
                                                 .n_q_heads = MODEL_HEADS,
                                                 .w = group->w,
                                                 .b = group->n,
                                                 .causal = 1,
                                                 .window = view.window,
                                                 .aligned = view.window_aligned,
                                                 .scale = MODEL_SCALE,
                                                 .k_scale = scale_of_layer(&view),
                                                 .v_scale = scale_of_layer(&view) };
    if (kvd_ops_attention_host(&attention, err, err_bytes) != 0) return -EINVAL;
    group_unpack(model, group);
    return 0;
}

/* Neighbouring short segments share a call; a long one has its own. */
static int attend_segments(struct cpu_model *model, const PagedKVBatchLayerView *view,
                           const struct model_segment *segments, uint32_t n, char *err, size_t err_bytes) {
    uint32_t column = 0;
    for (uint32_t i = 0; i < n;) {
        struct cpu_group group = { .segments = segments + i, .n = 1, .w = segments[i].n, .column = column };
        column += segments[i++].n;
        while (group.w <= MODEL_SHORT && i < n && segments[i].n <= MODEL_SHORT) {
            group.n++;
            group.w = segments[i].n > group.w ? segments[i].n : group.w;
            column += segments[i++].n;
        }
        int r = group_attend(model, &group, view, err, err_bytes);
        if (r != 0) return r;
    }
    return 0;
}

static int step_layer(struct cpu_model *model, const struct model_layer *layer, const PagedKVBatchLayerView *view,
                      const struct model_segment *segments, uint32_t n, uint32_t columns, char *err, size_t err_bytes) {
    for (uint32_t i = 0; i < columns; i++) rms_norm(model->x[i], model->norm[i]);
    matmul(model->norm[0], columns, MODEL_HIDDEN, layer->qkv, MODEL_QKV, 0, model->qkv[0]);
    int r = attend_segments(model, view, segments, n, err, err_bytes);
    if (r != 0) return r;
    matmul(model->mix[0], columns, MODEL_Q, layer->out, MODEL_HIDDEN, 1, model->x[0]);
    for (uint32_t i = 0; i < columns; i++) rms_norm(model->x[i], model->norm[i]);
    matmul(model->norm[0], columns, MODEL_HIDDEN, layer->gate_up, 2 * MODEL_FFN, 0, model->gate_up[0]);
    for (uint32_t i = 0; i < columns; i++)
        for (uint32_t j = 0; j < MODEL_FFN; j++) {
            float gate = model->gate_up[i][j];
            model->act[i][j] = gate / (1.0f + expf(-gate)) * model->gate_up[i][MODEL_FFN + j];
        }
    matmul(model->act[0], columns, MODEL_FFN, layer->down, MODEL_HIDDEN, 1, model->x[0]);
    return 0;
}

/* Output head of the wanted columns only, each a row of its own. */
static void write_logits(struct cpu_model *model, const struct model_segment *segments, uint32_t n) {
    uint32_t column = 0, wanted = 0;
    for (uint32_t i = 0; i < n; column += segments[i++].n)
        for (uint32_t j = segments[i].n - segments[i].want; j < segments[i].n; j++)
            rms_norm(model->x[column + j], model->norm[wanted++]);
    matmul(model->norm[0], wanted, MODEL_HIDDEN, model->base.weights.head, MODEL_VOCABULARY, 0, model->logits[0]);
    model_answer(&model->base, segments, n, model->logits[0]);
}

static int cpu_step(struct model *base, enum model_part part, const PagedKVBatchLayerView *views,
                    const struct model_segment *segments, uint32_t n_segments, uint32_t columns, char *err,
                    size_t err_bytes) {
    struct cpu_model *model = (struct cpu_model *)base;
    const struct model_weights *weights = &base->weights;
    uint32_t column = 0;
    for (uint32_t i = 0; i < n_segments; i++)
        for (uint32_t j = 0; j < segments[i].n; j++, column++)
            memcpy(model->x[column],
                   weights->embedding + (size_t)segments[i].history[segments[i].first + j] * MODEL_HIDDEN,
                   sizeof model->x[column]);
    uint32_t layers = part == MODEL_MAIN ? MODEL_LAYERS : MODEL_DRAFT_LAYERS;
    for (uint32_t l = 0; l < layers; l++) {
        int r = step_layer(model, &weights->layer[l], &views[l], segments, n_segments, columns, err, err_bytes);
        if (r != 0) return r;
    }
    write_logits(model, segments, n_segments);
    return 0;
}

static void cpu_free(struct model *base) {
    model_fini(base);
    free(base);
}

int model_new(uint32_t max_context, const char *document, struct model **ret_model, char *err, size_t err_bytes) {
    static const struct model_kind kind = { .step = cpu_step, .free = cpu_free };
    struct cpu_model *model = calloc(1, sizeof *model);
    if (!model) {
        snprintf(err, err_bytes, "not enough memory for the demo model (about 40 MiB)");
        return -ENOMEM;
    }
    int r = model_init(&model->base, &kind, max_context, document, err, err_bytes);
    if (r != 0) {
        cpu_free(&model->base);
        return r;
    }
    *ret_model = &model->base;
    return 0;
}
