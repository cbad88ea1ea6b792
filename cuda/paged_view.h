/* SPDX-License-Identifier: Apache-2.0
 *
 * Consumer views: plain structs that an attention or append kernel needs to address paged KV.
 *
 * A view holds the planes of ONE layer and a block table. It owns nothing and carries no
 * allocator handle, no request identity, no reservation and no frontier (VIEW-1). Frontiers,
 * valid columns and positions are inputs of the op, not of the view.
 *
 * Address of element d of token position p, kv head h (GEOM-4, GEOM-5, GEOM-6):
 *
 *     b = p >> 6;  o = p & 63;  g = block_table[b]
 *     base + d*stride_elem + o*stride_token + h*stride_head + g*stride_page      (bytes)
 *
 * The same formula serves page-major pools (stride_page is nb3, stride_head nb2), head-major pools
 * (stride_page is nb2, stride_head nb3) and both plane arrangements (dense planes, and the planes of
 * a layer side by side): only the strides differ, and they are always explicit.
 *
 * The header is C, C++ and CUDA. Pointers are addresses in the address space of the caller: device
 * pointers for a CUDA store, mapped shared memory for a host store.
 */
#ifndef KVD_PAGED_VIEW_H
#define KVD_PAGED_VIEW_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVD_PAGE_TOKENS 64 /* P: tokens a page group, the only page size (POOL-1) */
#define KVD_PAGE_SHIFT 6
#define KVD_PAGE_MASK 63

/* Closed storage profiles (GEOM-1). K8V4 is FP8 keys with NVFP4 values; nothing else mixes. Head_dim is 64, 96, 128,
 * 192 or 256 except with BF16 and FP8_TENSOR. */
enum kvd_storage {
    KVD_STORAGE_BF16 = 0,  /* K, V: BF16, bit copy; any head_dim > 0 */
    KVD_STORAGE_INT8 = 1,  /* INT8-G64: int8 codes, one FP16 scale for 64 elements (the last may have 32) */
    KVD_STORAGE_FP8 = 2,   /* FP8-E4M3FN: one FP16 scale a row */
    KVD_STORAGE_NVFP4 = 3, /* NVFP4-G16: E2M1 nibbles, one unsigned E4M3 scale for 16 */
    KVD_STORAGE_K8V4 = 4,  /* K as FP8, V as NVFP4-G16 */
    /* E4M3FN without scales in the page: K of a layer has one scale and V another, which the caller of each op gives;
     * any head_dim > 0 */
    KVD_STORAGE_FP8_TENSOR = 5
};
#define KVD_N_STORAGE 6

/* What a layer stores for a token (GRP-1). The bytes of latent and packed rows are the engine's business. */
enum kvd_format {
    KVD_FORMAT_KV = 0,     /* K and V of each head, apart */
    KVD_FORMAT_LATENT = 1, /* one row for all heads; every rank holds it whole */
    KVD_FORMAT_PACKED = 2  /* K and V of a head in one row */
};
#define KVD_N_FORMAT 3

/* Element type of a plane. */
enum kvd_dtype {
    KVD_DTYPE_NONE = 0, /* plane absent (scale planes of BF16 and FP8_TENSOR) */
    KVD_DTYPE_BF16 = 1, /* 2 bytes */
    KVD_DTYPE_I8 = 2,   /* 1 byte */
    KVD_DTYPE_E4M3 = 3, /* 1 byte, finite-only E4M3FN */
    KVD_DTYPE_U8 = 4,   /* 1 byte: packed E2M1 pairs (low nibble = even element) or E4M3 scales */
    KVD_DTYPE_F16 = 5   /* 2 bytes, IEEE half scales */
};

/* One plane of one layer. All strides in bytes. */
typedef struct kvd_plane_view {
    void *base;            /* address of (d=0, o=0, h=0, g=0); NULL where dtype is NONE */
    uint32_t dtype;        /* enum kvd_dtype */
    uint32_t extent;       /* X: elements of one row (GEOM-3) */
    uint64_t stride_elem;  /* nb0 = bytes of an element */
    uint64_t stride_token; /* nb1 */
    uint64_t stride_head;  /* nb2 page-major, nb3 head-major */
    uint64_t stride_page;  /* nb3 page-major, nb2 head-major */
} kvd_plane_view;

/* One sequence: planes of a layer and one row of the block table (VIEW-1). */
typedef struct PagedKVLayerView {
    kvd_plane_view k, v;             /* codes, or BF16 values */
    kvd_plane_view k_scale, v_scale; /* dtype NONE for BF16 and FP8_TENSOR */
    const int32_t *block_table;      /* I32 [n_logical]; -1 outside the membership (ROW-6) */
    uint32_t n_logical;              /* L: entries of a row */
    uint32_t n_pages;                /* physical page groups of the pool: valid ids are [0, n_pages) */
    uint32_t head_dim;               /* D */
    uint32_t n_kv_heads;             /* H of this device's planes */
    uint32_t storage;                /* enum kvd_storage */
    uint32_t format;                 /* enum kvd_format; latent, packed: the one plane is k, of bytes, head_dim is 0 */
    uint32_t v_head_dim;             /* of V; D unless the model says otherwise */
    uint32_t window;                 /* tokens that a query sees at most, its own among them; 0: all (GRP-2) */
    uint32_t window_aligned;         /* 1: it sees those from the last multiple of `window` on */
} PagedKVLayerView;

/* A batch: shared planes and the whole table matrix; table_rows[B] is an op input (VIEW-2). */
typedef struct PagedKVBatchLayerView {
    kvd_plane_view k, v;
    kvd_plane_view k_scale, v_scale;
    const int32_t *block_tables; /* I32 [n_logical, n_rows], entry (b, row) at row*n_logical + b */
    uint32_t n_logical;
    uint32_t n_rows; /* C */
    uint32_t n_pages;
    uint32_t head_dim;
    uint32_t n_kv_heads;
    uint32_t storage;
    uint32_t format;
    uint32_t v_head_dim;
    uint32_t window; /* of the pool. The ops take a window of their own */
    uint32_t window_aligned;
} PagedKVBatchLayerView;

#ifdef __cplusplus
}
#endif
#endif
