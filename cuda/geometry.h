/* SPDX-License-Identifier: Apache-2.0
 *
 * Geometry: what a profile and a model mean in bytes. Pure C, no CUDA, no allocation.
 *
 * One schema function expands a closed profile into typed planes (GEOM-8); page bytes, region
 * layouts, capacity curve, host packed pages, copy lists and the geometry digest are all computed
 * from that inventory, so there is no second copy of a dimension formula anywhere.
 *
 * Pool planes are ordered rank-major, then layer, then slot [K, V, K scale, V scale] (absent slots
 * are skipped). A rank is one device of a tensor-parallel model; every rank holds n_kv_heads / n_ranks
 * heads of every layer, and all ranks share one page-id namespace (POOL-2, POOL-4). Where ranks outnumber
 * heads, each holds one head, and several hold the same (GRP-7).
 *
 * Layers of a pool need not be alike: a page is the sum of its layer groups (GRP-1), which stand one after
 * another in the region and in the packed page. Layers, planes and pieces are numbered through.
 *
 * Each (pool, rank) is one region: one allocation on that rank's device, exported by one handle.
 *
 * Errors: functions return 0 or a positive GEOM_E_* condition and write a sentence for people into
 * err (NUL-terminated, truncated at err_bytes; err may be NULL). Outputs are written only on success.
 * Threads: everything here is a pure function.
 */
#ifndef KVD_CUDA_GEOMETRY_H
#define KVD_CUDA_GEOMETRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "paged_view.h"

#define GEOM_MAX_RANKS 8
#define GEOM_MAX_POOLS 4
#define GEOM_MAX_GROUPS 8 /* layer groups of a pool */
#define GEOM_SLOTS 4
#define GEOM_ALIGN 256             /* bytes: every plane base and packed plane (HOST-2) */
#define GEOM_REGION_MIN (2u << 20) /* a device handle exposes whole 2 MiB blocks: regions are padded to it */

enum geom_error {
    GEOM_E_UNSUPPORTED = 1, /* profile x head_dim, unknown enum, ranks do not divide heads */
    GEOM_E_RANGE = 2,       /* a count is zero, or too large for 32-bit ids or 64-bit bytes */
    GEOM_E_CAPACITY = 3     /* capacity request outside the legal range, or memory too small */
};

enum geom_order { GEOM_PAGE_MAJOR = 0, GEOM_HEAD_MAJOR = 1 };
enum geom_slot { GEOM_K = 0, GEOM_V = 1, GEOM_K_SCALE = 2, GEOM_V_SCALE = 3 };

/* How planes share a region.
 * DENSE:  every plane is its own dense tensor (nb3 = the page slice of the plane).
 * RECORD: a page's planes of one layer stand side by side in packed-host-page order, so that one 2-D copy
 *         (rows = layers, width = record) moves a page. Head-major: the planes of one (layer, head) stand
 *         side by side, since the page-run order itself separates heads.
 * RECORD is the configuration's default: attention is as fast on it (within 0.8 %), and a page moves in fewer, wider
 * copies. */
enum geom_arrangement { GEOM_DENSE = 0, GEOM_RECORD = 1 };

enum geom_backend { GEOM_OFF = 0, GEOM_MTP = 1, GEOM_DFLASH = 2 }; /* POOL-3 */

/* Layers that store a token alike (GRP-1). The bytes of a latent or a packed row mean nothing here. */
struct geom_group {
    enum kvd_format format;
    enum kvd_storage storage; /* kv: the profile; else 0 */
    enum geom_order order;
    uint32_t n_layers;
    uint32_t n_kv_heads; /* kv, packed: of the model, over all ranks; latent: 1, which every rank holds whole */
    uint32_t head_dim, v_head_dim; /* kv: elements of a head of K and of V; V's 0: as K's. Else 0 */
    uint32_t row_bytes;            /* latent: of a token; packed: of a token and head, K and V together; kv: 0 */
};

/* What the layers of a pool read of the history (GRP-2), and how many pages that takes. tokens 0: all of it. */
struct geom_window {
    uint32_t tokens, lead; /* of a window, and more that a truncation may take back */
    bool aligned;          /* from the last multiple of `tokens` on */
    uint32_t least;        /* pages in the smallest store, >= 1 */
    uint32_t share;        /* pages beyond, for each 1,000 of Main's: 1..1000 */
};

/* A pool of one shape says it in its own fields. With groups, storage, order, n_kv_heads and head_dim are unused (0),
 * and n_layers is the sum. */
struct geom_pool_spec {
    enum kvd_storage storage;
    enum geom_order order;
    enum geom_arrangement arrangement;
    uint32_t n_layers;
    uint32_t n_kv_heads; /* of the model, over all ranks */
    uint32_t head_dim;
    uint32_t n_ranks; /* 1..GEOM_MAX_RANKS; one of ranks and heads divides the other */
    uint32_t n_groups;
    struct geom_group group[GEOM_MAX_GROUPS];
    struct geom_window window; /* never of Main, whose pages carry the names */
};

/* One row of the schema: what a slot of a profile stores for one (token, head). */
struct geom_schema {
    uint32_t dtype[GEOM_SLOTS];   /* enum kvd_dtype, NONE where absent */
    uint32_t extent[GEOM_SLOTS];  /* X, elements */
    uint32_t element[GEOM_SLOTS]; /* bytes of an element */
};

/* A plane of a pool with M physical pages: typed, placed, every stride explicit. Bytes throughout. */
struct geom_plane {
    uint32_t ordinal; /* within its rank */
    uint32_t rank, layer;
    uint32_t slot; /* enum geom_slot; GEOM_K for the one plane of a latent or packed layer */
    enum kvd_format format;
    enum geom_order order; /* says which of nb2 and nb3 is the page's */
    uint32_t dtype, extent;
    uint32_t n_heads;       /* of this rank */
    uint64_t offset;        /* of (0,0,0,0) from the start of the region of (pool, rank) */
    uint64_t nb0, nb1;      /* element, token */
    uint64_t nb2, nb3;      /* page-major: head, page.  head-major: page, head (GEOM-4, GEOM-5) */
    uint64_t head_bytes;    /* X * 64 * element: one (page, head) piece, always contiguous */
    uint64_t page_bytes;    /* head_bytes * n_heads */
    uint64_t packed_offset; /* of this plane inside the rank's packed page (HOST-2) */
};

/* Expands a profile (GEOM-3). GEOM_E_UNSUPPORTED for quantized storage at a head_dim that it has not. */
int geom_schema(enum kvd_storage storage, uint32_t head_dim, struct geom_schema *ret_schema, char *err,
                size_t err_bytes);

/* Number of planes on one rank: 1, 2 or 4 a layer. 0 for an invalid spec. */
uint32_t geom_plane_count(const struct geom_pool_spec *spec);

/* Plane (layer, slot) of a rank for a pool of n_pages. The slot must exist in the layer's group. */
int geom_plane(const struct geom_pool_spec *spec, uint32_t n_pages, uint32_t rank, uint32_t layer, enum geom_slot slot,
               struct geom_plane *ret_plane, char *err, size_t err_bytes);
/* Plane number `ordinal` < geom_plane_count(). Spec, pages and rank must be valid. */
void geom_plane_at(const struct geom_pool_spec *spec, uint32_t n_pages, uint32_t rank, uint32_t ordinal,
                   struct geom_plane *ret_plane);

/* Checks a whole spec (counts, profile, ranks) without placing anything; and one group of a pool of n_ranks. */
int geom_pool_check(const struct geom_pool_spec *spec, char *err, size_t err_bytes);
int geom_group_check(const struct geom_group *group, uint32_t n_ranks, char *err, size_t err_bytes);

/* The groups of a pool: 1 where its own fields are the group. Spec must be valid, i < count. */
uint32_t geom_group_count(const struct geom_pool_spec *spec);
struct geom_group geom_group_at(const struct geom_pool_spec *spec, uint32_t i);
/* What is alike in the layers of a group, and where its numbers begin. */
struct geom_group_shape {
    uint32_t layer, layers; /* the first, and how many */
    uint32_t piece, pieces; /* of geom_piece() */
    uint32_t slots;         /* planes of a layer */
    uint32_t heads;         /* of one rank */
    enum geom_order order;
    uint64_t rank_page_bytes; /* payload of a page on one rank */
};
void geom_group_shape(const struct geom_pool_spec *spec, uint32_t i, struct geom_group_shape *ret_shape);

/* Payload bytes of one page group: over all ranks, and on one rank (no padding). Spec must be valid. */
uint64_t geom_page_bytes(const struct geom_pool_spec *spec);
uint64_t geom_rank_page_bytes(const struct geom_pool_spec *spec);

/* Bytes of the region of one rank for n_pages, before padding to GEOM_REGION_MIN. Spec must be valid; UINT64_MAX where
 * the region would not fit 64-bit bytes or 31-bit page ids. */
uint64_t geom_region_bytes(const struct geom_pool_spec *spec, uint32_t n_pages);

/* Packed host page of one rank: planes in ordinal order, each at 256-byte alignment (HOST-2). */
uint64_t geom_packed_bytes(const struct geom_pool_spec *spec);

/* A contiguous piece of a page, for copies: walk i in [0, geom_piece_count). Pieces never contain padding, so that the
 * packed bytes are the same for every order and arrangement (HOST-2). Page-major: a piece is a plane, and with records
 * the whole layer where its planes are multiples of 256 bytes (then pieces are layers, at one pitch on both
 * sides: one 2-D copy a group and page). Head-major: a piece is one head of a plane. Pieces of one group have their
 * layers at one pitch on both sides. */
struct geom_piece {
    uint64_t region_offset; /* in the rank's region */
    uint64_t packed_offset; /* in the rank's packed page */
    uint64_t bytes;
};
uint32_t geom_piece_count(const struct geom_pool_spec *spec);
void geom_piece(const struct geom_pool_spec *spec, uint32_t n_pages, uint32_t rank, uint32_t page, uint32_t i,
                struct geom_piece *ret_piece);

/* A shard of a page is a range of its KV heads, the same for every number of ranks: of a pool of one shape shard i has
 * the heads [i * geom_shard_heads, (i + 1) * geom_shard_heads) of the model, and lies within one rank at each number of
 * ranks, up to GEOM_MAX_RANKS, that divides the heads. Of layer groups each shard has the same part of each group's
 * heads; with a latent there is one shard. Its bytes are the pieces of those heads, plane after plane in ordinal order,
 * without padding; a head that several ranks hold is in them once. Spec must be valid. geom_shard_heads: of one shape.
 */
uint32_t geom_shard_count(const struct geom_pool_spec *spec);
uint32_t geom_shard_heads(const struct geom_pool_spec *spec);
uint64_t geom_shard_bytes(const struct geom_pool_spec *spec);
/* Copies one shard out of a packed page: n_ranks packed pages of geom_packed_bytes each, one after the other. Tokens
 * from `columns` on are 0 in the copy. to: geom_shard_bytes. */
void geom_shard_gather(const struct geom_pool_spec *spec, uint32_t shard, uint32_t columns, const uint8_t *packed,
                       uint8_t *to);
/* The other way: the heads of one shard into a packed page, for every rank that holds them. The rest of the page stays.
 */
void geom_shard_scatter(const struct geom_pool_spec *spec, uint32_t shard, const uint8_t *from, uint8_t *packed);

/* Fills the plane parts of a layer view; base is the address of the rank's region in the caller. The caller adds
 * the block table. */
int geom_layer_view(const struct geom_pool_spec *spec, uint32_t n_pages, uint32_t rank, uint32_t layer, void *base,
                    PagedKVBatchLayerView *ret_view, char *err, size_t err_bytes);

/* ---- capacity (CAP-*) -------------------------------------------------------------------- */

/* What one store needs on every device. Bytes are for ONE rank unless said otherwise. */
struct geom_store_spec {
    enum geom_backend backend;
    struct geom_pool_spec main;
    struct geom_pool_spec draft; /* MTP or Draft Full; unused for OFF. DFLASH with n_layers 0: no draft pool */
    uint32_t n_more;             /* pools of the model beside Main, each with a window */
    struct geom_pool_spec more[GEOM_MAX_POOLS - 1];
    uint32_t max_context;      /* S tokens */
    uint32_t max_concurrency;  /* C sequences */
    uint32_t draft_window;     /* K, 1..15 with MTP (CAP-5) */
    uint64_t state_bytes;      /* one state image, 0 = none */
    uint32_t state_slots;      /* device slots, >= C where state_bytes > 0 */
    uint64_t persistent_bytes; /* fixed state the engine declares */
    uint64_t workspace_bytes;
    uint64_t graph_bytes;
};

/* The whole device reservation for a given M, part by part; total is the sum. Offsets are per region, so a
 * layout is these byte counts plus geom_plane(). Rounding a region up is not affine in M; padding_bytes tops the
 * rounding of every pool region up to a fixed bound, so that total is (CAP-4). It is charged, never allocated. */
struct geom_layout {
    uint32_t n_pools;
    uint32_t pages[GEOM_MAX_POOLS];       /* Main M, draft by CAP-5, window pools by CAP-8 */
    uint64_t pool_bytes[GEOM_MAX_POOLS];  /* region of a rank, padded */
    uint64_t table_bytes[GEOM_MAX_POOLS]; /* C rows x L entries x 4, padded */
    uint64_t state_bytes; /* state_slots images at geom_state()'s stride, padded; 0 where there are none */
    uint64_t persistent_bytes, workspace_bytes, graph_bytes;
    uint64_t padding_bytes;
    uint64_t total_bytes;
};

struct geom_curve {
    uint32_t m_min, m_max;  /* CAP-1; m_max is what can be numbered (FIT-3) */
    uint64_t b_min, b_step; /* bytes on one rank; b_step is 0 where m_min == m_max */
};

struct geom_capacity {
    uint32_t pages;  /* M */
    uint64_t tokens; /* M * 64, the public capacity (CAP-6) */
    uint64_t bytes;  /* B(M) */
    uint64_t slack;  /* free - B(M) */
    struct geom_layout layout;
    struct geom_curve curve;
};

/* State images: one region a rank, slot s at s * stride. An image is also a page of *ret_spec (pages = slots), so that
 * a device copies it as it copies any page: K then V of one layer, in a record of exactly `stride` bytes. The stride is
 * state_bytes rounded up, to a multiple of 512 bytes. GEOM_E_RANGE for 0 and for more than 1 TiB. */
int geom_state(uint64_t state_bytes, struct geom_pool_spec *ret_spec, uint64_t *ret_stride, char *err,
               size_t err_bytes);

uint32_t geom_pages(uint64_t tokens); /* ceil(tokens / 64) */
/* The pools of a store in the order of their numbers: Main, the draft's if there is one, the others. i < count. */
uint32_t geom_pool_count(const struct geom_store_spec *spec);
const struct geom_pool_spec *geom_pool_at(const struct geom_store_spec *spec, uint32_t i);
int geom_store_check(const struct geom_store_spec *spec, char *err, size_t err_bytes);
int geom_layout(const struct geom_store_spec *spec, uint32_t m, struct geom_layout *ret_layout, char *err,
                size_t err_bytes);

/* CAP-4: Bmin and Bstep come from geom_layout(); padding of regions to 2 MiB is charged as the affine upper
 * bound, and the final layout is checked against the curve. */
int geom_curve(const struct geom_store_spec *spec, struct geom_curve *ret_curve, char *err, size_t err_bytes);

/* CAP-2: explicit capacity of `tokens`; free_bytes is what the device has. */
int geom_capacity_explicit(const struct geom_store_spec *spec, uint64_t tokens, uint64_t free_bytes,
                           struct geom_capacity *ret_capacity, char *err, size_t err_bytes);

/* CAP-3: automatic capacity from free bytes F and headroom R. */
int geom_capacity_auto(const struct geom_store_spec *spec, uint64_t free_bytes, uint64_t headroom,
                       struct geom_capacity *ret_capacity, char *err, size_t err_bytes);

/* The rules of CAP-1..3 on bare numbers, so that they can be tested with the worked values of the reference. */
int geom_resolve_auto(const struct geom_curve *curve, uint64_t free_bytes, uint64_t headroom, uint32_t *ret_pages,
                      char *err, size_t err_bytes);
int geom_resolve_explicit(const struct geom_curve *curve, uint64_t tokens, uint32_t max_context, uint64_t free_bytes,
                          uint32_t *ret_pages, char *err, size_t err_bytes);

/* 256-bit digest of everything that decides where a byte of KV lies and what it means: specs, pages, page size,
 * order, arrangement, windows, schema version. Equal digests mean interchangeable bytes (SRV-4). BLAKE2b-256. The names
 * of groups are not in it, and a pool of one shape has the digest that it had before there were groups and windows. */
void geom_digest(const struct geom_store_spec *spec, const struct geom_layout *layout, uint8_t ret_digest[32]);

/* 256-bit digest of what decides what packed pages and images mean: layers, heads, head_dim, profile, ranks and window
 * of every pool, and the bytes of an image. Sizes, limits, orders and arrangements are not in it (HOST-2, KEEP-1). */
void geom_packed_digest(const struct geom_store_spec *spec, uint32_t n_pools, uint8_t ret_digest[32]);

/* 256-bit digest of what decides what the bytes of shards mean: layers, heads, head_dim, profile and shard of every
 * pool. Ranks are not in it. */
void geom_shard_digest(const struct geom_store_spec *spec, uint32_t n_pools, uint8_t ret_digest[32]);

const char *geom_storage_name(enum kvd_storage storage); /* "bf16" ... "fp8-tensor" */
const char *geom_format_name(enum kvd_format format);    /* "kv", "latent", "packed" */

#endif
