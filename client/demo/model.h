/* SPDX-License-Identifier: Apache-2.0
 *
 * The demo's model: a small decoder-only transformer over byte tokens with weights from a fixed seed. Grouped-query
 * attention at head_dim 256, RoPE, RMSNorm, SwiGLU. Its only memory of the past is paged KV: keys and values go into
 * pages by the append op, and attention reads them by the attention op, through views and nothing else.
 *
 * On the CPU (model_new) or on a GPU (model_cuda.h): the same model, but not the same bits.
 *
 * Each is deterministic to the bit: the result of a column depends on the stored KV of its own history alone, not on
 * the batch, on how a prompt was cut into chunks, or on page ids. Greedy choice, so equal KV gives equal text.
 *
 * On the CPU layers may have a window, and may keep a latent: one row a token that serves all heads as key and value.
 * What a layer has its view says.
 *
 * The draft head is the first layer with a KV pool of its own (MTP), followed by the same output head: it sees tokens
 * only, so that a column of its KV depends on the tokens up to there and a prefix can be reused in both pools.
 *
 * Threads: one at a time a model.
 */
#ifndef KVD_DEMO_MODEL_H
#define KVD_DEMO_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "paged_view.h"

#define MODEL_LAYERS 4
#define MODEL_DRAFT_LAYERS 1
#define MODEL_HIDDEN 256
#define MODEL_HEADS 8
#define MODEL_KV_HEADS 2
#define MODEL_HEAD_DIM 256
#define MODEL_LATENT_BYTES (2 * MODEL_HEAD_DIM) /* of a token, in BF16 */
#define MODEL_FFN 512
#define MODEL_VOCABULARY 256
#define MODEL_COLUMNS 256 /* columns of one step, over all its segments */
#define MODEL_SEGMENTS 64
#define MODEL_SHORT 16 /* segments up to this length share one batched attention */
#define MODEL_NAME "kvd-demo-4x256-1"

enum model_part { MODEL_MAIN = 0, MODEL_DRAFT = 1 };

struct model;

/* On the CPU, for host views. document: a text file for the table of text.h. 0 or -errno with a sentence. */
int model_new(uint32_t max_context, const char *document, struct model **ret_model, char *err, size_t err_bytes);
void model_free(struct model *model);

/* Columns [first, first + n) of one sequence: the tokens history[first .. first + n) are read, their KV is written at
 * these ordinals, and attention sees [0, p] for each. For the last `want` columns the following token goes to
 * next[0..want). */
struct model_segment {
    uint32_t row;           /* of the block-table matrix */
    uint32_t window_row;    /* of that of layers with a window, which is another pool's */
    uint32_t first, n;      /* n >= 1 */
    uint32_t want;          /* <= n */
    const uint8_t *history; /* the sequence's tokens from ordinal 0 */
    uint8_t *next;          /* [want] */
    float *logits;          /* [want][256] of the model before the table is mixed in, or NULL */
};

/* One step of a batch. views: MODEL_LAYERS views for MAIN, one for DRAFT. The caller guarantees that the columns are
 * mapped. 0, -EINVAL with the sentence of the op that refused, or -EIO when a GPU failed. What was written is complete
 * when the call returns. */
int model_step(struct model *model, enum model_part part, const PagedKVBatchLayerView *views,
               const struct model_segment *segments, uint32_t n_segments, char *err, size_t err_bytes);

#endif
