/* SPDX-License-Identifier: Apache-2.0
 *
 * What the demo's models of all kinds share: weights, rotation, the table of text, and the choice of a token.
 */
#ifndef KVD_DEMO_MODEL_INTERNAL_H
#define KVD_DEMO_MODEL_INTERNAL_H

#include "model.h"
#include "model_weights.h"
#include "text.h"

#define MODEL_HALF (MODEL_HEAD_DIM / 2)
#define MODEL_SCALE 0.0625f /* of the softmax: 1/sqrt(256) */

/* Of the keys and values of every layer, where the profile wants them (fp8-tensor): these stay within +-8. */
static inline float scale_of_layer(const PagedKVBatchLayerView *view) {
    return view->storage == KVD_STORAGE_FP8_TENSOR ? 0.02f : 0.0f;
}

struct model_kind {
    /* As model_step(), after its checks; columns: of all segments. */
    int (*step)(struct model *model, enum model_part part, const PagedKVBatchLayerView *views,
                const struct model_segment *segments, uint32_t n_segments, uint32_t columns, char *err,
                size_t err_bytes);
    void (*free)(struct model *model); /* all of it; calls model_fini() */
};

struct model { /* first member of the model of a kind */
    const struct model_kind *kind;
    uint32_t max_context;
    struct model_weights weights;
    struct text *text;
    float *cos, *sin; /* [max_context][MODEL_HALF] */
};

/* Fills a zeroed model. 0 or -errno with a sentence; then what there is belongs to model_fini() all the same. */
int model_init(struct model *model, const struct model_kind *kind, uint32_t max_context, const char *document,
               char *err, size_t err_bytes);
void model_fini(struct model *model);

/* Tokens and logits of the wanted columns to the segments. logits: [wanted][MODEL_VOCABULARY] in the order of the
 * segments. */
void model_answer(const struct model *model, const struct model_segment *segments, uint32_t n, const float *logits);

#endif
