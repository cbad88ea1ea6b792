/* SPDX-License-Identifier: Apache-2.0 */
#include "model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model_internal.h"

#define ROTARY_BASE 10000.0

static int model_rotary(struct model *model) {
    size_t n = (size_t)model->max_context * MODEL_HALF;
    model->cos = malloc(n * sizeof *model->cos);
    model->sin = malloc(n * sizeof *model->sin);
    if (!model->cos || !model->sin) return -ENOMEM;
    for (uint32_t i = 0; i < MODEL_HALF; i++) {
        double step = pow(ROTARY_BASE, -(double)i / MODEL_HALF);
        for (uint32_t p = 0; p < model->max_context; p++) {
            model->cos[(size_t)p * MODEL_HALF + i] = (float)cos(p * step);
            model->sin[(size_t)p * MODEL_HALF + i] = (float)sin(p * step);
        }
    }
    return 0;
}

int model_init(struct model *model, const struct model_kind *kind, uint32_t max_context, const char *document,
               char *err, size_t err_bytes) {
    if (max_context == 0 || max_context > 1u << 20) {
        snprintf(err, err_bytes, "the demo model is made for contexts of 1 to %u tokens, not %u", 1u << 20,
                 max_context);
        return -EINVAL;
    }
    model->kind = kind;
    model->max_context = max_context;
    int r = model_weights_init(&model->weights);
    if (r == 0) r = model_rotary(model);
    if (r == -ENOMEM) snprintf(err, err_bytes, "not enough memory for the demo model (about 40 MiB)");
    if (r == 0) r = text_new(document, &model->text, err, err_bytes);
    return r;
}

void model_fini(struct model *model) {
    model_weights_free(&model->weights);
    text_free(model->text);
    free(model->cos);
    free(model->sin);
}

void model_free(struct model *model) {
    if (model) model->kind->free(model);
}

static uint8_t choose_token(const struct model *model, const float *logits, const uint8_t *history, uint32_t n) {
    float scores[TEXT_VOCABULARY];
    text_scores(model->text, history, n, scores);
    uint32_t best = 0;
    float most = -INFINITY;
    for (uint32_t c = 0; c < MODEL_VOCABULARY; c++)
        if (scores[c] + logits[c] > most) {
            most = scores[c] + logits[c];
            best = c;
        }
    return (uint8_t)best;
}

void model_answer(const struct model *model, const struct model_segment *segments, uint32_t n, const float *logits) {
    for (uint32_t i = 0; i < n; i++) {
        const struct model_segment *s = &segments[i];
        for (uint32_t j = 0; j < s->want; j++, logits += MODEL_VOCABULARY) {
            s->next[j] = choose_token(model, logits, s->history, s->first + s->n - s->want + j + 1);
            if (s->logits) memcpy(s->logits + (size_t)j * MODEL_VOCABULARY, logits, MODEL_VOCABULARY * sizeof *logits);
        }
    }
}

static int check_segments(const struct model *model, const struct model_segment *segments, uint32_t n,
                          uint32_t *ret_columns, char *err, size_t err_bytes) {
    uint32_t columns = 0;
    if (n == 0 || n > MODEL_SEGMENTS) {
        snprintf(err, err_bytes, "a step takes 1 to %d segments, not %u", MODEL_SEGMENTS, n);
        return -EINVAL;
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct model_segment *s = &segments[i];
        if (s->n == 0 || s->n > MODEL_COLUMNS - columns || s->want > s->n || s->first >= model->max_context ||
            s->n > model->max_context - s->first) {
            snprintf(err, err_bytes,
                     "segment %u: columns %u to %u do not fit a step of %d columns and a context of %u tokens", i,
                     s->first, s->first + s->n, MODEL_COLUMNS, model->max_context);
            return -EINVAL;
        }
        columns += s->n;
    }
    *ret_columns = columns;
    return 0;
}

int model_step(struct model *model, enum model_part part, const PagedKVBatchLayerView *views,
               const struct model_segment *segments, uint32_t n_segments, char *err, size_t err_bytes) {
    uint32_t columns = 0;
    int r = check_segments(model, segments, n_segments, &columns, err, err_bytes);
    return r == 0 ? model->kind->step(model, part, views, segments, n_segments, columns, err, err_bytes) : r;
}
