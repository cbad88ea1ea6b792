/* SPDX-License-Identifier: Apache-2.0
 *
 * libkvd-ops: append and attention over paged KV, on the host (reference) and on a GPU (CUDA).
 *
 * The host form defines the bytes and the numbers. The CUDA form writes the same bytes and stays within the limits of
 * VIEW-6. Both read and write pages directly through a view and its block table: no gather, no staging. A view comes
 * from kvd_store_batch_view(), or from your own allocator: a view is strides and addresses and nothing else.
 *
 * Tensors. Dense BF16 (uint16_t bits), head_dim fastest:
 *     q: [D, n_q_heads, W, B]    out: [Dv, n_q_heads, W, B]    k: [D, n_kv_heads, W, B]    v: [Dv, n_kv_heads, W, B]
 * as an array of C or numpy: [B][W][heads][D]. Dv, the view's v_head_dim, is D unless the model says otherwise (0: D).
 * W is the number of query columns of a sequence: 1 decodes, up to 16 verifies a draft, more is a chunk of a prefill. W
 * is at most 16 where B > 1. B is at most the table's rows.
 *     positions:  I32 [W, B], cache ordinals of the columns, consecutive within a sequence
 *     valid:      I32 [B], columns that count, 0..W; NULL = W for all. Others: append skips, attention writes zeros
 *     table_rows: I32 [B], the table row of each sequence
 *
 * Shapes. BF16 and FP8_TENSOR at any head_dim; INT8, FP8, NVFP4 and K8V4 at 64, 96, 128, 192 and 256; D and Dv may
 * differ. Any number of query heads that the KV heads divide. On CUDA attention has tensor-core kernels where D = Dv is
 * 64, 128 or 256; all else up to 1152 has one plain kernel, which is right and slow. Plane bases and strides are
 * multiples of 16 bytes; on CUDA so are q and out of the tensor-core kernels, and k and v of quantized profiles.
 *
 * FP8_TENSOR. One scale for K of a layer and one for V, as checkpoints and engines have them, positive and finite. They
 * are no part of the page: whoever appends and whoever reads give the same ones. Append writes E4M3FN of x / scale in
 * FP32, to nearest even, saturating at 448, NaN as 0. The scales are 0 with every other profile. On CUDA both ops are
 * KVD_OPS_UNIMPLEMENTED: engines that store such pages have kernels for them, which take planes and table of the view.
 *
 * Windows. Table entries of blocks that are wholly behind the windows of a call are not read: they may be -1. On CUDA
 * the keys of a block that a window reaches in part are finite numbers, as append writes them, the unseen ones, too.
 *
 * Host. All pointers are host memory. What a call reads of positions, rows, valid counts and table is checked first: a
 * block that is not mapped, or a page that two sequences of a batch would write, is refused and nothing is written.
 *
 * CUDA. All pointers in the structs are memory of the current device. Calls are asynchronous on `stream`, allocate
 * nothing and read nothing of the device. So the caller guarantees what the host form checks: mapping, readable keys,
 * one writer a page, and rows that stay as they are until the launch has ended. Append skips a column whose block is
 * not mapped. A key past the last one that a query sees never reaches a result, whatever its bytes. Kernels are built
 * for compute capability 9.0. The library needs no CUDA to load, the driver is loaded by the first call.
 *
 * Graphs. All CUDA calls may be captured. A graph may be replayed with other table contents, positions, valid counts,
 * contexts and row selectors: grid and workspace depend on shapes and max_context only (VIEW-5). The addresses in the
 * structs, the workspace among them, stay what they were at the capture. Launches may start before the kernel ahead of
 * them in the stream has ended (programmatic dependent launch), and wait for it before they read.
 *
 * Errors. 0, or an enum kvd_ops_error and a sentence in err (NUL-terminated, cut to err_bytes; err may be NULL). After
 * a refusal nothing is written or launched. What a kernel that runs meets (an address that is not mapped) is CUDA's
 * error at the next synchronisation.
 *
 * Threads. Functions of their arguments, any thread. Two calls that write one page at a time are the caller's race.
 */
#ifndef KVD_OPS_H
#define KVD_OPS_H

#include <stddef.h>
#include <stdint.h>

#include "paged_view.h"

#if defined(__GNUC__)
#define KVD_OPS_API __attribute__((visibility("default")))
#else
#define KVD_OPS_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum kvd_ops_error {
    KVD_OPS_INVALID = 1,       /* an argument: the same call never succeeds */
    KVD_OPS_LAUNCH = 2,        /* CUDA refused the launch of a good call; the sentence has its words */
    KVD_OPS_UNIMPLEMENTED = 3, /* a good call for which there is no kernel here: use the host form */
    KVD_OPS_NO_MEMORY = 4      /* host attention needs some for its tiles */
};

#define KVD_OPS_VERSION "0.1.0"
KVD_OPS_API const char *kvd_ops_version(void); /* of the library at run time, "0.1.0" */

/* ---- append -------------------------------------------------------------------------------- */

struct kvd_ops_append {
    PagedKVBatchLayerView view;
    const uint16_t *k, *v;     /* [D, n_kv_heads, W, B], [Dv, ...] */
    const int32_t *positions;  /* [W, B] */
    const int32_t *valid;      /* [B] or NULL */
    const int32_t *table_rows; /* [B] */
    uint32_t w, b;
    float k_scale, v_scale; /* FP8_TENSOR: what a code of one is worth; else 0 */
};

/* cudaStream_t; NULL is the default stream. */
typedef void *kvd_ops_stream;

/* Writes every code and scale byte of every addressed (token, head), and nothing else. */
KVD_OPS_API int kvd_ops_append_host(const struct kvd_ops_append *op, char *err, size_t err_bytes);
KVD_OPS_API int kvd_ops_append_cuda(const struct kvd_ops_append *op, kvd_ops_stream stream, char *err,
                                    size_t err_bytes);

/* ---- attention ------------------------------------------------------------------------------ */

struct kvd_ops_attention {
    PagedKVBatchLayerView view;
    const uint16_t *q;
    uint16_t *out;
    const int32_t *positions;  /* [W, B]: the query at position p sees keys [0, p]; not read unless causal */
    const int32_t *valid;      /* [B] or NULL */
    const int32_t *table_rows; /* [B] */
    const int32_t *context;    /* [B], read unless causal: keys in the pages before the W columns */
    uint32_t n_q_heads;        /* query head h reads KV head h / (n_q_heads / n_kv_heads) */
    uint32_t w, b;
    uint32_t causal; /* 1; or 0: every column that counts sees keys [0, context + valid) */
    float scale;     /* of the softmax, normally 1/sqrt(D) */

    /* Zero turns each of these off. */
    uint32_t window;    /* causal only: keys that a query sees at most, its own among them */
    uint32_t aligned;   /* 1: it sees those from the last multiple of `window` on (chunked attention) */
    const float *sinks; /* [n_q_heads]: a finite logit of each head that takes weight and has no value; not scaled */
    float soft_cap;     /* scaled logits x become soft_cap * tanh(x / soft_cap) */

    /* A hint, 0 for none: all sequences of the batch may begin with up to so many tokens in the same pages, as forks of
     * one prompt do. On CUDA each launch then finds, in the tables and the positions of all that count, how many whole
     * pages they do share and reads those once for all. A hint that is too large costs a little time and changes no
     * result beyond the order of sums. It is not used on the host, with a window, and where B is 1. */
    uint32_t shared_prefix;

    float k_scale, v_scale; /* as append had them */
};

/* FP32 with an online softmax. The result for a query depends on that query and its keys only: the same bits for any
 * batch, W and page ids. */
KVD_OPS_API int kvd_ops_attention_host(const struct kvd_ops_attention *op, char *err, size_t err_bytes);
/* The same in FP64 and in the plainest form, to measure others by. Slow. */
KVD_OPS_API int kvd_ops_attention_oracle(const struct kvd_ops_attention *op, char *err, size_t err_bytes);

/* max_context: tokens; the most keys that any sequence of the batch has in this launch, or in any replay of a graph
 * that captures it. It is an envelope and masks nothing. The workspace is device memory, aligned to 256, of at least
 * the bytes that kvd_ops_attention_workspace says for the same shapes and the current device (0: none is needed).
 * Launches that may run at one time need one each. Pointers in *op are not read for the size and may be NULL. */
KVD_OPS_API size_t kvd_ops_attention_workspace(const struct kvd_ops_attention *op, uint32_t max_context);
KVD_OPS_API int kvd_ops_attention_cuda(const struct kvd_ops_attention *op, uint32_t max_context, void *workspace,
                                       size_t workspace_bytes, kvd_ops_stream stream, char *err, size_t err_bytes);

#ifdef __cplusplus
}
#endif
#endif
