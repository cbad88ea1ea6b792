/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks of the op wrappers (VIEW-3). The first half reads no tensor and serves both wrappers; the second half reads
 * the small integer inputs and serves the host reference.
 */
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>

#include "geometry_internal.h"
#include "ops.h"
#include "ops_internal.h"

#define BASE_ALIGN 16        /* vector loads of the kernels */
#define BATCH_COLUMNS_MAX 16 /* W where B > 1 */

/* ---- shapes: no device value is read ------------------------------------------------------- */

/* Planes may be dense or interleaved, in either order: (page, head) pieces must not meet under the two strides. */
static bool strides_ok(const kvd_plane_view *plane, uint64_t piece, uint32_t heads, uint32_t pages) {
    uint64_t head = plane->stride_head, page = plane->stride_page, span;
    bool by_page = head >= piece && !__builtin_mul_overflow(head, (uint64_t)heads - 1, &span) && page >= piece + span;
    bool by_head = page >= piece && !__builtin_mul_overflow(page, (uint64_t)pages - 1, &span) && head >= piece + span;
    return (by_page || by_head || (heads == 1 && page >= piece) || (pages == 1 && head >= piece)) &&
           head % BASE_ALIGN == 0 && page % BASE_ALIGN == 0;
}

static int check_plane(const PagedKVBatchLayerView *view, const kvd_plane_view *plane, const char *name, uint32_t dtype,
                       uint32_t extent, uint32_t element, char *err, size_t err_bytes) {
    if (plane->dtype != dtype)
        return refuse_with(KVD_OPS_INVALID, err, err_bytes, "plane %s has dtype %u, storage %s wants %u", name,
                           plane->dtype, geom_storage_name((enum kvd_storage)view->storage), dtype);
    if (dtype == KVD_DTYPE_NONE) return 0;
    uint64_t token = (uint64_t)extent * element;
    if (plane->extent != extent || plane->stride_elem != element || plane->stride_token != token)
        return refuse_with(KVD_OPS_INVALID, err, err_bytes,
                           "plane %s has rows of %u at strides %" PRIu64 ", %" PRIu64
                           "; storage %s wants %u at %u, %" PRIu64,
                           name, plane->extent, plane->stride_elem, plane->stride_token,
                           geom_storage_name((enum kvd_storage)view->storage), extent, element, token);
    if (!strides_ok(plane, token * KVD_PAGE_TOKENS, view->n_kv_heads, view->n_pages))
        return refuse_with(KVD_OPS_INVALID, err, err_bytes,
                           "plane %s: head stride %" PRIu64 " and page stride %" PRIu64 " let pieces of %" PRIu64
                           " bytes overlap, or are no multiples of %d",
                           name, plane->stride_head, plane->stride_page, token * KVD_PAGE_TOKENS, BASE_ALIGN);
    if (!plane->base || (uintptr_t)plane->base % BASE_ALIGN)
        return refuse_with(KVD_OPS_INVALID, err, err_bytes, "plane %s is at %p: it must be mapped and aligned to %d",
                           name, plane->base, BASE_ALIGN);
    return 0;
}

static int check_table(const PagedKVBatchLayerView *view, char *err, size_t err_bytes) {
    if (!view->block_tables || (uintptr_t)view->block_tables % sizeof(int32_t))
        return refuse_with(KVD_OPS_INVALID, err, err_bytes, "the block table is missing or not aligned to 4");
    if (view->n_logical == 0 || view->n_logical > INT32_MAX / KVD_PAGE_TOKENS || view->n_rows == 0)
        return refuse_with(KVD_OPS_INVALID, err, err_bytes,
                           "a table of %u rows by %u entries: at least 1, and %d entries at most", view->n_rows,
                           view->n_logical, INT32_MAX / KVD_PAGE_TOKENS);
    return 0;
}

static int check_view(const PagedKVBatchLayerView *view, char *err, size_t err_bytes) {
    static const char *const names[GEOM_SLOTS] = { "k", "v", "k_scale", "v_scale" };
    const kvd_plane_view *planes[GEOM_SLOTS] = { &view->k, &view->v, &view->k_scale, &view->v_scale };
    struct geom_group group = { .storage = (enum kvd_storage)view->storage,
                                .head_dim = view->head_dim,
                                .v_head_dim = view->v_head_dim };
    struct geom_schema schema;
    if (view->format != KVD_FORMAT_KV)
        return refuse_with(KVD_OPS_INVALID, err, err_bytes, "a view of format %s: ops read K and V that stand apart",
                           geom_format_name((enum kvd_format)view->format));
    if (geom_group_schema(&group, &schema, err, err_bytes)) return KVD_OPS_INVALID;
    if (view->n_pages == 0 || view->n_pages > INT32_MAX || view->n_kv_heads == 0)
        return refuse_with(KVD_OPS_INVALID, err, err_bytes, "a view of %u pages and %u kv heads: at least 1 of each",
                           view->n_pages, view->n_kv_heads);
    for (uint32_t s = 0; s < GEOM_SLOTS; s++) {
        int r = check_plane(view, planes[s], names[s], schema.dtype[s], schema.extent[s], schema.element[s], err,
                            err_bytes);
        if (r) return r;
    }
    return check_table(view, err, err_bytes);
}

static int check_batch(const PagedKVBatchLayerView *view, uint32_t w, uint32_t b, const int32_t *table_rows, char *err,
                       size_t err_bytes) {
    if (w == 0 || b == 0) return refuse_with(KVD_OPS_INVALID, err, err_bytes, "W %u, B %u: both are at least 1", w, b);
    if (b > view->n_rows)
        return refuse_with(KVD_OPS_INVALID, err, err_bytes,
                           "a batch of %u sequences and %u table rows: one row a sequence", b, view->n_rows);
    if (b > 1 && w > BATCH_COLUMNS_MAX)
        return refuse_with(KVD_OPS_INVALID, err, err_bytes,
                           "W %u with B %u: at most %d columns in a batch, any number alone", w, b, BATCH_COLUMNS_MAX);
    if (w > view->n_logical * (uint64_t)KVD_PAGE_TOKENS)
        return refuse_with(KVD_OPS_INVALID, err, err_bytes, "W %u columns: a row holds %" PRIu64 " tokens", w,
                           view->n_logical * (uint64_t)KVD_PAGE_TOKENS);
    if (!table_rows) return refuse_with(KVD_OPS_INVALID, err, err_bytes, "table_rows is missing");
    return 0;
}

struct range {
    uintptr_t begin, end;
};

static bool meet(struct range a, struct range b) { return a.begin < b.end && b.begin < a.end; }

static struct range plane_range(const PagedKVBatchLayerView *view, const kvd_plane_view *plane) {
    uintptr_t begin = (uintptr_t)plane->base;
    if (plane->dtype == KVD_DTYPE_NONE) return (struct range){ 0, 0 };
    return (struct range){ begin, begin + (view->n_kv_heads - 1) * plane->stride_head +
                                      (view->n_pages - 1) * plane->stride_page +
                                      plane->stride_token * KVD_PAGE_TOKENS };
}

/* A dense BF16 tensor [dim, heads, W, B]: present, aligned, countable, and apart from planes and table. */
static int check_tensor(const PagedKVBatchLayerView *view, const uint16_t *tensor, const char *name, uint32_t dim,
                        uint32_t heads, uint32_t w, uint32_t b, struct range *ret_range, char *err, size_t err_bytes) {
    const kvd_plane_view *planes[GEOM_SLOTS] = { &view->k, &view->v, &view->k_scale, &view->v_scale };
    uint64_t bytes = (uint64_t)dim * sizeof *tensor;
    struct range table = { (uintptr_t)view->block_tables, 0 };
    table.end = table.begin + (uintptr_t)view->n_rows * view->n_logical * sizeof(int32_t);
    if (!tensor || (uintptr_t)tensor % sizeof *tensor)
        return refuse_with(KVD_OPS_INVALID, err, err_bytes, "tensor %s is missing or not aligned", name);
    if (__builtin_mul_overflow(bytes, heads, &bytes) || __builtin_mul_overflow(bytes, w, &bytes) ||
        __builtin_mul_overflow(bytes, b, &bytes) || bytes > PTRDIFF_MAX)
        return refuse_with(KVD_OPS_INVALID, err, err_bytes, "tensor %s [%u, %u, %u, %u] does not fit the address space",
                           name, dim, heads, w, b);
    struct range range = { (uintptr_t)tensor, (uintptr_t)tensor + bytes };
    bool clash = meet(range, table);
    for (uint32_t s = 0; s < GEOM_SLOTS; s++) clash = clash || meet(range, plane_range(view, planes[s]));
    if (clash)
        return refuse_with(KVD_OPS_INVALID, err, err_bytes,
                           "tensor %s overlaps the cache or its table: give it memory of its own", name);
    *ret_range = range;
    return 0;
}

/* Scales of a layer: positive where pages hold none (FP8_TENSOR), and nowhere else. */
static int check_scales(const PagedKVBatchLayerView *view, float k_scale, float v_scale, char *err, size_t err_bytes) {
    bool tensor = view->storage == KVD_STORAGE_FP8_TENSOR;
    bool good = k_scale > 0 && v_scale > 0 && isfinite(k_scale) && isfinite(v_scale),
         none = k_scale == 0 && v_scale == 0;
    if (tensor ? good : none) return 0;
    return refuse_with(KVD_OPS_INVALID, err, err_bytes, "k_scale %g and v_scale %g with storage %s: %s",
                       (double)k_scale, (double)v_scale, geom_storage_name((enum kvd_storage)view->storage),
                       tensor ? "both are positive and finite" : "its scales are in the pages, write 0");
}

int ops_append_check(const struct kvd_ops_append *op, char *err, size_t err_bytes) {
    uint32_t d = op->view.head_dim, dv = ops_v_dim(&op->view);
    struct range range;
    int r = check_view(&op->view, err, err_bytes);
    if (!r) r = check_batch(&op->view, op->w, op->b, op->table_rows, err, err_bytes);
    if (!r) r = check_tensor(&op->view, op->k, "k", d, op->view.n_kv_heads, op->w, op->b, &range, err, err_bytes);
    if (!r) r = check_tensor(&op->view, op->v, "v", dv, op->view.n_kv_heads, op->w, op->b, &range, err, err_bytes);
    if (!r) r = check_scales(&op->view, op->k_scale, op->v_scale, err, err_bytes);
    if (!r && !op->positions) r = refuse_with(KVD_OPS_INVALID, err, err_bytes, "positions is missing");
    return r;
}

/* Window, sinks and soft cap. */
static int check_logits(const struct kvd_ops_attention *op, char *err, size_t err_bytes) {
    if (op->aligned > 1 || (op->aligned && op->window == 0) || (op->window && !op->causal))
        return refuse_with(KVD_OPS_INVALID, err, err_bytes,
                           "window %u, aligned %u, causal %u: a window needs causal, and aligned is 0, or 1 with one",
                           op->window, op->aligned, op->causal);
    if (!(op->soft_cap >= 0) || !isfinite(op->soft_cap))
        return refuse_with(KVD_OPS_INVALID, err, err_bytes, "soft cap %g: it is positive and finite, or 0 for none",
                           (double)op->soft_cap);
    if ((uintptr_t)op->sinks % sizeof *op->sinks)
        return refuse_with(KVD_OPS_INVALID, err, err_bytes, "sinks at %p are not aligned to 4",
                           (const void *)op->sinks);
    return 0;
}

int ops_attention_check(const struct kvd_ops_attention *op, char *err, size_t err_bytes) {
    struct range q, out;
    int r = check_view(&op->view, err, err_bytes);
    if (!r) r = check_batch(&op->view, op->w, op->b, op->table_rows, err, err_bytes);
    if (r) return r;
    if (op->n_q_heads == 0 || op->n_q_heads % op->view.n_kv_heads)
        return refuse_with(KVD_OPS_INVALID, err, err_bytes, "%u query heads over %u kv heads: a multiple is needed",
                           op->n_q_heads, op->view.n_kv_heads);
    if (!(op->scale > 0) || !isfinite(op->scale))
        return refuse_with(KVD_OPS_INVALID, err, err_bytes,
                           "softmax scale %g: it is positive and finite, normally 1/sqrt(%u)", (double)op->scale,
                           op->view.head_dim);
    if (op->causal > 1 || (op->causal ? !op->positions : !op->context))
        return refuse_with(KVD_OPS_INVALID, err, err_bytes,
                           "causal %u needs %s: causal is 1 with positions or 0 with context", op->causal,
                           op->causal ? "positions" : "context");
    r = check_logits(op, err, err_bytes);
    if (!r) r = check_scales(&op->view, op->k_scale, op->v_scale, err, err_bytes);
    if (!r) r = check_tensor(&op->view, op->q, "q", op->view.head_dim, op->n_q_heads, op->w, op->b, &q, err, err_bytes);
    if (!r)
        r = check_tensor(&op->view, op->out, "out", ops_v_dim(&op->view), op->n_q_heads, op->w, op->b, &out, err,
                         err_bytes);
    if (!r && meet(q, out))
        r = refuse_with(KVD_OPS_INVALID, err, err_bytes, "out overlaps q: give it memory of its own");
    return r;
}

int ops_cuda_check(const PagedKVBatchLayerView *view, char *err, size_t err_bytes) {
    if (view->storage != KVD_STORAGE_FP8_TENSOR) return 0;
    return refuse_with(KVD_OPS_UNIMPLEMENTED, err, err_bytes,
                       "storage %s has no kernel on GPUs: use the host form, or the engine's own kernels on the view",
                       geom_storage_name(KVD_STORAGE_FP8_TENSOR));
}

/* ---- values: host memory only --------------------------------------------------------------- */

struct span { /* ordinals that a compact row touches: [begin, end) */
    int32_t row;
    int64_t begin, end;
};

static int check_mapped(const PagedKVBatchLayerView *view, uint32_t b, struct span span, char *err, size_t err_bytes) {
    if (span.row < 0 || (uint32_t)span.row >= view->n_rows)
        return refuse_with(KVD_OPS_INVALID, err, err_bytes, "table row %d of sequence %u: there are %u rows", span.row,
                           b, view->n_rows);
    if (span.begin < 0 || span.end > (int64_t)view->n_logical * KVD_PAGE_TOKENS)
        return refuse_with(KVD_OPS_INVALID, err, err_bytes,
                           "sequence %u reaches ordinals %" PRId64 "..%" PRId64 ": a row holds 0..%" PRId64, b,
                           span.begin, span.end - 1, (int64_t)view->n_logical * KVD_PAGE_TOKENS - 1);
    const int32_t *table = ops_table_row(view, span.row);
    for (int64_t block = span.begin >> KVD_PAGE_SHIFT; block << KVD_PAGE_SHIFT < span.end; block++)
        if (table[block] < 0 || (uint32_t)table[block] >= view->n_pages)
            return refuse_with(KVD_OPS_INVALID, err, err_bytes,
                               "block %" PRId64
                               " of sequence %u (row %d) is page %d, the pool has %u: map it before the launch",
                               block, b, span.row, table[block], view->n_pages);
    return 0;
}

/* valid[b] in 0..W, and the valid ordinals consecutive from the first. */
static int check_columns(const int32_t *positions, const int32_t *valid, uint32_t w, uint32_t b, char *err,
                         size_t err_bytes) {
    if (valid && (valid[b] < 0 || (uint32_t)valid[b] > w))
        return refuse_with(KVD_OPS_INVALID, err, err_bytes, "valid[%u] is %d: a row has 0..%u columns", b, valid[b], w);
    const int32_t *row = positions ? positions + (size_t)b * w : NULL;
    for (uint32_t i = 1; row && i < ops_valid(valid, w, b); i++)
        if ((int64_t)row[i] != (int64_t)row[0] + i)
            return refuse_with(KVD_OPS_INVALID, err, err_bytes,
                               "position %u of sequence %u is %d after %d: they are consecutive", i, b, row[i],
                               row[i - 1]);
    return 0;
}

static struct span append_span(const struct kvd_ops_append *op, uint32_t b) {
    int64_t first = op->positions[(size_t)b * op->w];
    return (struct span){ op->table_rows[b], first, first + ops_valid(op->valid, op->w, b) };
}

/* INV-7: a page has one writer. Two sequences of a batch must not write one page, by the same row or by two. */
static int check_writers(const struct kvd_ops_append *op, uint32_t a, uint32_t b, char *err, size_t err_bytes) {
    struct span x = append_span(op, a), y = append_span(op, b);
    const int32_t *tx = ops_table_row(&op->view, x.row), *ty = ops_table_row(&op->view, y.row);
    if (x.begin == x.end || y.begin == y.end) return 0;
    for (int64_t i = x.begin >> KVD_PAGE_SHIFT; i << KVD_PAGE_SHIFT < x.end; i++)
        for (int64_t j = y.begin >> KVD_PAGE_SHIFT; j << KVD_PAGE_SHIFT < y.end; j++)
            if (x.row == y.row || tx[i] == ty[j])
                return refuse_with(KVD_OPS_INVALID, err, err_bytes,
                                   "sequences %u and %u both write page %d: a page has one writer, copy it first", a, b,
                                   tx[i]);
    return 0;
}

int ops_check_append_values(const struct kvd_ops_append *op, char *err, size_t err_bytes) {
    int r = 0;
    for (uint32_t b = 0; !r && b < op->b; b++) {
        r = check_columns(op->positions, op->valid, op->w, b, err, err_bytes);
        if (!r && ops_valid(op->valid, op->w, b) > 0)
            r = check_mapped(&op->view, b, append_span(op, b), err, err_bytes);
    }
    for (uint32_t b = 1; !r && b < op->b; b++)
        for (uint32_t a = 0; !r && a < b; a++)
            if (ops_valid(op->valid, op->w, a) && ops_valid(op->valid, op->w, b))
                r = check_writers(op, a, b, err, err_bytes);
    return r;
}

int ops_check_attention_values(const struct kvd_ops_attention *op, char *err, size_t err_bytes) {
    int r = 0;
    for (uint32_t b = 0; !r && b < op->b; b++) {
        r = check_columns(op->causal ? op->positions : NULL, op->valid, op->w, b, err, err_bytes);
        uint32_t valid = r ? 0 : ops_valid(op->valid, op->w, b);
        if (valid == 0) continue;
        int64_t first = op->causal ? op->positions[(size_t)b * op->w] : op->context[b];
        r = check_mapped(&op->view, b, (struct span){ op->table_rows[b], first, first + valid }, err, err_bytes);
        int64_t key = r || !op->causal ? 0 : ops_first_key(op, (uint32_t)first);
        if (!r) r = check_mapped(&op->view, b, (struct span){ op->table_rows[b], key, first + valid }, err, err_bytes);
    }
    return r;
}
