/* SPDX-License-Identifier: Apache-2.0 */
#include "model_weights.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#define SEED UINT64_C(0x6b76642d64656d6f)

/* Gains over the usual 1/sqrt(n_in): keys sharp enough that single tokens matter, attention strong against the residual
 * stream, so that the text depends on what stands in the pages. */
#define GAIN_QKV 1.6f
#define GAIN_OUT 2.0f
#define GAIN_FFN 1.4f
#define GAIN_HEAD 2.0f

static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15); /* splitmix64 */
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Uniform with unit variance, from 24 bits: exact in float on every machine. */
static void fill_weights(float *w, size_t n, float scale, uint64_t *state) {
    for (size_t i = 0; i < n; i++) w[i] = ((float)(next_random(state) >> 40) * 0x1p-23f - 1.0f) * (1.7320508f * scale);
}

static float *carve(float **at, size_t n, uint32_t n_in, float gain, uint64_t *state) {
    float *w = *at;
    fill_weights(w, n, gain / sqrtf((float)n_in), state);
    *at += n;
    return w;
}

int model_weights_init(struct model_weights *ret_weights) {
    const size_t embedding = (size_t)MODEL_VOCABULARY * MODEL_HIDDEN, head = embedding;
    const size_t qkv = (size_t)MODEL_HIDDEN * MODEL_QKV, out = (size_t)MODEL_Q * MODEL_HIDDEN;
    const size_t gate_up = (size_t)MODEL_HIDDEN * 2 * MODEL_FFN, down = (size_t)MODEL_FFN * MODEL_HIDDEN;
    struct model_weights w;
    w.n = embedding + head + MODEL_LAYERS * (qkv + out + gate_up + down);
    w.block = aligned_alloc(64, w.n * sizeof(float));
    if (!w.block) return -ENOMEM;
    uint64_t state = SEED;
    float *at = w.block;
    w.embedding = carve(&at, embedding, 1, 1.0f, &state);
    w.head = carve(&at, head, MODEL_HIDDEN, GAIN_HEAD, &state);
    for (uint32_t l = 0; l < MODEL_LAYERS; l++) {
        w.layer[l].qkv = carve(&at, qkv, MODEL_HIDDEN, GAIN_QKV, &state);
        w.layer[l].out = carve(&at, out, MODEL_Q, GAIN_OUT, &state);
        w.layer[l].gate_up = carve(&at, gate_up, MODEL_HIDDEN, GAIN_FFN, &state);
        w.layer[l].down = carve(&at, down, MODEL_FFN, GAIN_FFN, &state);
    }
    *ret_weights = w;
    return 0;
}

void model_weights_free(struct model_weights *weights) {
    free(weights->block);
    weights->block = NULL;
}
