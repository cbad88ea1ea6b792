/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights of the demo model: pseudo-random numbers from a fixed seed, laid out for matmul().
 */
#ifndef KVD_DEMO_MODEL_WEIGHTS_H
#define KVD_DEMO_MODEL_WEIGHTS_H

#include "model.h"

#define MODEL_Q (MODEL_HEADS * MODEL_HEAD_DIM)
#define MODEL_KV (MODEL_KV_HEADS * MODEL_HEAD_DIM)
#define MODEL_QKV (MODEL_Q + 2 * MODEL_KV)
#define MODEL_NORM_EPSILON 1e-6f

struct model_layer {
    float *qkv;     /* HIDDEN -> QKV: queries, keys, values */
    float *out;     /* Q -> HIDDEN */
    float *gate_up; /* HIDDEN -> 2 FFN */
    float *down;    /* FFN -> HIDDEN */
};

struct model_weights {
    float *embedding; /* [VOCABULARY][HIDDEN], unit variance */
    float *head;      /* HIDDEN -> VOCABULARY */
    struct model_layer layer[MODEL_LAYERS];
    float *block; /* all of it: n numbers */
    size_t n;
};

int model_weights_init(struct model_weights *ret_weights); /* 0 or -ENOMEM */
void model_weights_free(struct model_weights *weights);

#endif
