/* SPDX-License-Identifier: Apache-2.0
 *
 * What somebody who installed libkvd-ops would write first: pages of one's own, a token appended, a query. The token is
 * alone, so attention gives its values back.
 */
#include <kvd/kvd_ops.h>
#include <stdio.h>
#include <string.h>

enum { D = 64, HEADS = 2, PAGES = 3 };

static _Alignas(16) uint16_t k_pages[PAGES][HEADS][KVD_PAGE_TOKENS][D], v_pages[PAGES][HEADS][KVD_PAGE_TOKENS][D];

static kvd_plane_view plane_of(void *base) {
    kvd_plane_view plane = { base, KVD_DTYPE_BF16, D, 2, 2 * D, sizeof k_pages[0][0], sizeof k_pages[0] };
    return plane;
}

int main(void) {
    static const int32_t table[2] = { 2, -1 }, zero = 0;
    static uint16_t k[HEADS][D], v[HEADS][D], q[HEADS][D], out[HEADS][D];
    PagedKVBatchLayerView view = { .k = plane_of(k_pages), .v = plane_of(v_pages) };
    char err[256];
    view.block_tables = table, view.n_logical = 2, view.n_rows = 1, view.n_pages = PAGES;
    view.head_dim = D, view.n_kv_heads = HEADS, view.storage = KVD_STORAGE_BF16;
    for (int i = 0; i < HEADS * D; i++) k[0][i] = q[0][i] = 0x3F80, v[0][i] = (uint16_t)(0x3F80 + i);
    struct kvd_ops_append append = { .view = view, .k = k[0], .v = v[0], .positions = &zero, .table_rows = &zero };
    append.w = append.b = 1;
    struct kvd_ops_attention attention = { .view = view, .q = q[0], .out = out[0], .positions = &zero };
    attention.table_rows = &zero, attention.n_q_heads = HEADS, attention.causal = 1, attention.scale = 0.125f;
    attention.w = attention.b = 1;
    int bad = kvd_ops_append_host(&append, err, sizeof err) || kvd_ops_attention_host(&attention, err, sizeof err);
    bad = bad || memcmp(out, v, sizeof v) != 0 || memcmp(v_pages[2][1][0], v[1], sizeof v[1]) != 0;
    attention.n_q_heads = 3;
    bad = bad || kvd_ops_attention_host(&attention, err, sizeof err) != KVD_OPS_INVALID;
    printf("%s %s\n", kvd_ops_version(), bad ? err : "good");
    return bad;
}
