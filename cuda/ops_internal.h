/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the C reference ops.
 */
#ifndef KVD_CUDA_OPS_INTERNAL_H
#define KVD_CUDA_OPS_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include "ops.h"
#include "refuse.h"

/* Loops that gain from wide vectors are built twice and picked when the program starts. No fused multiply-add in
 * either, so that both give the same bits. Sanitizers cannot run the resolver that this needs. */
#if defined(__x86_64__) && !defined(KVD_SANITIZE_ADDRESS) && !defined(KVD_SANITIZE_THREAD) && !defined(__clang__)
#define OPS_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define OPS_CLONES
#endif

/* Columns of compact row b that count. */
static inline uint32_t ops_valid(const int32_t *valid, uint32_t w, uint32_t b) {
    return valid ? (uint32_t)valid[b] : w;
}

static inline const int32_t *ops_table_row(const PagedKVBatchLayerView *view, int32_t row) {
    return view->block_tables + (size_t)row * view->n_logical;
}

/* Elements of a head of V, of its inputs and of the output. */
static inline uint32_t ops_v_dim(const PagedKVBatchLayerView *view) {
    return view->v_head_dim ? view->v_head_dim : view->head_dim;
}

/* First key that the causal query at `position` sees. */
static inline uint32_t ops_first_key(const struct kvd_ops_attention *op, uint32_t position) {
    if (op->window == 0) return 0;
    if (op->aligned) return position - position % op->window;
    return position >= op->window ? position - op->window + 1 : 0;
}

/* Address of a stored row: GEOM-6. */
static inline char *ops_plane_row(const kvd_plane_view *plane, int32_t page, uint32_t head, uint32_t offset) {
    return (char *)plane->base + (uint64_t)page * plane->stride_page + head * plane->stride_head +
           offset * plane->stride_token;
}

/* What the wrapper cannot check on a device, the reference checks on the host: counts, rows, consecutive ordinals, and
 * that every block it will touch is mapped. */
int ops_check_append_values(const struct kvd_ops_append *op, char *err, size_t err_bytes);
int ops_check_attention_values(const struct kvd_ops_attention *op, char *err, size_t err_bytes);

#endif
