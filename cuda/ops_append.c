/* SPDX-License-Identifier: Apache-2.0
 *
 * Reference append: encodes K and V rows straight into their pages.
 */
#include "ops.h"
#include "ops_internal.h"

/* Planes hold each element at its natural alignment: bases and strides are checked multiples of 16, rows of the
 * element. */
static uint16_t *as_u16(char *address) { return (uint16_t *)(void *)address; }

/* scale: of the layer, where rows have none (FP8_TENSOR). */
static void store_row(uint32_t dtype, uint32_t head_dim, float scale, const uint16_t *x, char *codes, char *scales) {
    switch (dtype) {
    case KVD_DTYPE_I8: ops_encode_int8(x, head_dim, (int8_t *)codes, as_u16(scales)); break;
    case KVD_DTYPE_E4M3:
        if (scales) ops_encode_fp8(x, head_dim, (uint8_t *)codes, as_u16(scales));
        else ops_encode_fp8_tensor(x, head_dim, scale, (uint8_t *)codes);
        break;
    case KVD_DTYPE_U8: ops_encode_nvfp4(x, head_dim, (uint8_t *)codes, (uint8_t *)scales); break;
    default: ops_encode_bf16(x, head_dim, as_u16(codes)); break;
    }
}

static void store_half(const PagedKVBatchLayerView *view, const kvd_plane_view *codes, const kvd_plane_view *scales,
                       uint32_t dim, float scale, const uint16_t *x, int32_t page, uint32_t offset) {
    for (uint32_t h = 0; h < view->n_kv_heads; h++) {
        char *scale_row = scales->dtype == KVD_DTYPE_NONE ? NULL : ops_plane_row(scales, page, h, offset);
        store_row(codes->dtype, dim, scale, x + (size_t)h * dim, ops_plane_row(codes, page, h, offset), scale_row);
    }
}

int kvd_ops_append_host(const struct kvd_ops_append *op, char *err, size_t err_bytes) {
    const PagedKVBatchLayerView *view = &op->view;
    uint32_t d = view->head_dim, dv = ops_v_dim(view);
    int r = ops_append_check(op, err, err_bytes);
    if (!r) r = ops_check_append_values(op, err, err_bytes);
    if (r) return r;
    for (uint32_t b = 0; b < op->b; b++) {
        for (uint32_t w = 0; w < ops_valid(op->valid, op->w, b); w++) {
            size_t column = (size_t)b * op->w + w, heads = column * view->n_kv_heads;
            uint32_t position = (uint32_t)op->positions[column];
            int32_t page = ops_table_row(view, op->table_rows[b])[position >> KVD_PAGE_SHIFT];
            uint32_t offset = position & KVD_PAGE_MASK;
            store_half(view, &view->k, &view->k_scale, d, op->k_scale, op->k + heads * d, page, offset);
            store_half(view, &view->v, &view->v_scale, dv, op->v_scale, op->v + heads * dv, page, offset);
        }
    }
    return 0;
}
