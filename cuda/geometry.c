/* SPDX-License-Identifier: Apache-2.0
 *
 * Planes, pieces and views of a pool. Every byte count here comes from geom_schema().
 */
#include "geometry.h"

#include <stdio.h>
#include <string.h>

#include "geometry_internal.h"

/* ---- schema ------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    uint32_t k, v; /* enum kvd_dtype of the codes */
} storages[KVD_N_STORAGE] = {
    [KVD_STORAGE_BF16] = { "bf16", KVD_DTYPE_BF16, KVD_DTYPE_BF16 },
    [KVD_STORAGE_INT8] = { "int8", KVD_DTYPE_I8, KVD_DTYPE_I8 },
    [KVD_STORAGE_FP8] = { "fp8", KVD_DTYPE_E4M3, KVD_DTYPE_E4M3 },
    [KVD_STORAGE_NVFP4] = { "nvfp4", KVD_DTYPE_U8, KVD_DTYPE_U8 },
    [KVD_STORAGE_K8V4] = { "k8v4", KVD_DTYPE_E4M3, KVD_DTYPE_U8 },
};

static bool storage_known(enum kvd_storage storage) { return (unsigned)storage < KVD_N_STORAGE; }

const char *geom_storage_name(enum kvd_storage storage) {
    return storage_known(storage) ? storages[storage].name : "unknown";
}

static void schema_slot(struct geom_schema *schema, enum geom_slot slot, uint32_t dtype, uint32_t extent) {
    schema->dtype[slot] = dtype;
    schema->extent[slot] = extent;
    schema->element[slot] = dtype == KVD_DTYPE_BF16 || dtype == KVD_DTYPE_F16 ? 2 : 1;
}

/* Codes of type `dtype` for D elements, and the scale plane that this code type calls for (GEOM-3). */
static void schema_pair(struct geom_schema *schema, enum geom_slot codes, enum geom_slot scale, uint32_t dtype,
                        uint32_t d) {
    switch (dtype) {
    case KVD_DTYPE_I8:
        schema_slot(schema, codes, dtype, d);
        schema_slot(schema, scale, KVD_DTYPE_F16, d / 64);
        break;
    case KVD_DTYPE_E4M3:
        schema_slot(schema, codes, dtype, d);
        schema_slot(schema, scale, KVD_DTYPE_F16, 1);
        break;
    case KVD_DTYPE_U8:
        schema_slot(schema, codes, dtype, d / 2);
        schema_slot(schema, scale, KVD_DTYPE_U8, d / 16);
        break;
    default: schema_slot(schema, codes, dtype, d); break;
    }
}

int geom_schema(enum kvd_storage storage, uint32_t head_dim, struct geom_schema *ret_schema, char *err,
                size_t err_bytes) {
    if (!storage_known(storage))
        return refuse_with(GEOM_E_UNSUPPORTED, err, err_bytes,
                           "storage %u is unknown: use bf16, int8, fp8, nvfp4 or k8v4", (unsigned)storage);
    if (head_dim == 0 || head_dim > GEOM_MAX_COUNT)
        return refuse_with(GEOM_E_UNSUPPORTED, err, err_bytes, "head_dim %u is not in 1..%u", head_dim, GEOM_MAX_COUNT);
    if (storage != KVD_STORAGE_BF16 && head_dim != 256)
        return refuse_with(GEOM_E_UNSUPPORTED, err, err_bytes,
                           "storage %s is defined at head_dim 256 only, the model has %u: use bf16",
                           geom_storage_name(storage), head_dim);
    struct geom_schema schema = { 0 };
    schema_pair(&schema, GEOM_K, GEOM_K_SCALE, storages[storage].k, head_dim);
    schema_pair(&schema, GEOM_V, GEOM_V_SCALE, storages[storage].v, head_dim);
    *ret_schema = schema;
    return 0;
}

/* ---- a spec in bytes ---------------------------------------------------------------------- */

/* What the whole room computes from: the schema of a spec as byte counts of one rank. */
struct sizes {
    struct geom_schema schema;
    uint32_t slots;                   /* present, always the first ones */
    uint32_t heads;                   /* of one rank */
    uint64_t head_bytes[GEOM_SLOTS];  /* one (page, head) */
    uint64_t page_bytes[GEOM_SLOTS];  /* all heads of a rank */
    uint64_t packed_slot[GEOM_SLOTS]; /* offset in the packed record of a layer */
    uint64_t packed_record;           /* a layer of the packed page */
    uint64_t head_slot[GEOM_SLOTS];   /* offset in the head-major record */
    uint64_t head_record;
    uint64_t payload; /* page_bytes of all slots */
};

static uint64_t align_up(uint64_t value) { return (value + GEOM_ALIGN - 1) / GEOM_ALIGN * GEOM_ALIGN; }

static bool spec_sizes(const struct geom_pool_spec *spec, struct sizes *ret_sizes) {
    struct sizes z = { 0 };
    if (geom_schema(spec->storage, spec->head_dim, &z.schema, NULL, 0) || spec->n_ranks == 0) return false;
    z.heads = spec->n_kv_heads / spec->n_ranks;
    for (; z.slots < GEOM_SLOTS && z.schema.dtype[z.slots] != KVD_DTYPE_NONE; z.slots++) {
        uint32_t s = z.slots;
        z.head_bytes[s] = (uint64_t)z.schema.extent[s] * z.schema.element[s] * KVD_PAGE_TOKENS;
        z.page_bytes[s] = z.head_bytes[s] * z.heads;
        z.payload += z.page_bytes[s];
        z.packed_slot[s] = z.packed_record;
        z.packed_record += align_up(z.page_bytes[s]);
        z.head_slot[s] = z.head_record;
        z.head_record += align_up(z.head_bytes[s]);
    }
    *ret_sizes = z;
    return true;
}

int geom_pool_check(const struct geom_pool_spec *spec, char *err, size_t err_bytes) {
    struct geom_schema schema;
    int r = geom_schema(spec->storage, spec->head_dim, &schema, err, err_bytes);
    if (r) return r;
    if ((unsigned)spec->order > GEOM_HEAD_MAJOR)
        return refuse_with(GEOM_E_UNSUPPORTED, err, err_bytes,
                           "page order %u is unknown: use page-major (0) or head-major (1)", (unsigned)spec->order);
    if ((unsigned)spec->arrangement > GEOM_RECORD)
        return refuse_with(GEOM_E_UNSUPPORTED, err, err_bytes,
                           "plane arrangement %u is unknown: use dense (0) or record (1)", (unsigned)spec->arrangement);
    if (spec->n_layers == 0 || spec->n_layers > GEOM_MAX_COUNT)
        return refuse_with(GEOM_E_RANGE, err, err_bytes, "%u layers: a pool has 1..%u", spec->n_layers, GEOM_MAX_COUNT);
    if (spec->n_kv_heads == 0 || spec->n_kv_heads > GEOM_MAX_COUNT)
        return refuse_with(GEOM_E_RANGE, err, err_bytes, "%u kv heads: a pool has 1..%u", spec->n_kv_heads,
                           GEOM_MAX_COUNT);
    if (spec->n_ranks == 0 || spec->n_ranks > GEOM_MAX_RANKS)
        return refuse_with(GEOM_E_RANGE, err, err_bytes, "%u ranks: a pool has 1..%u", spec->n_ranks, GEOM_MAX_RANKS);
    if (spec->n_kv_heads % spec->n_ranks)
        return refuse_with(GEOM_E_UNSUPPORTED, err, err_bytes,
                           "%u kv heads do not divide over %u ranks: choose a rank count that divides the heads",
                           spec->n_kv_heads, spec->n_ranks);
    return 0;
}

uint32_t geom_plane_count(const struct geom_pool_spec *spec) {
    struct sizes z;
    if (geom_pool_check(spec, NULL, 0) || !spec_sizes(spec, &z)) return 0;
    return spec->n_layers * z.slots;
}

uint64_t geom_rank_page_bytes(const struct geom_pool_spec *spec) {
    struct sizes z;
    return spec_sizes(spec, &z) ? z.payload * spec->n_layers : 0;
}

uint64_t geom_page_bytes(const struct geom_pool_spec *spec) { return geom_rank_page_bytes(spec) * spec->n_ranks; }

uint64_t geom_packed_bytes(const struct geom_pool_spec *spec) {
    struct sizes z;
    return spec_sizes(spec, &z) ? z.packed_record * spec->n_layers : 0;
}

/* ---- places of planes --------------------------------------------------------------------- */

/* Bytes of one layer of a region: four dense tensors, or n_pages (times heads) records. */
static uint64_t layer_bytes(const struct geom_pool_spec *spec, const struct sizes *z, uint64_t n_pages) {
    uint64_t bytes = 0;
    if (spec->arrangement == GEOM_RECORD)
        return n_pages * (spec->order == GEOM_PAGE_MAJOR ? z->packed_record : z->head_record * z->heads);
    for (uint32_t s = 0; s < z->slots; s++) bytes += align_up(z->page_bytes[s] * n_pages);
    return bytes;
}

uint64_t geom_region_linear(const struct geom_pool_spec *spec) {
    struct sizes z;
    if (!spec_sizes(spec, &z)) return 0;
    if (spec->arrangement == GEOM_DENSE) return z.payload * spec->n_layers;
    return layer_bytes(spec, &z, 1) * spec->n_layers;
}

/* Upper bound first, so that no later product of n_pages can overflow. */
static bool region_fits(const struct geom_pool_spec *spec, const struct sizes *z, uint64_t n_pages) {
    uint64_t most = (z->packed_record + z->head_record * z->heads) * spec->n_layers, bytes;
    if (n_pages > INT32_MAX || __builtin_mul_overflow(most, n_pages, &bytes)) return false;
    return geom_add(&bytes, (uint64_t)spec->n_layers * GEOM_SLOTS * GEOM_ALIGN);
}

uint64_t geom_region_bytes(const struct geom_pool_spec *spec, uint32_t n_pages) {
    struct sizes z;
    if (!spec_sizes(spec, &z)) return 0;
    return region_fits(spec, &z, n_pages) ? layer_bytes(spec, &z, n_pages) * spec->n_layers : UINT64_MAX;
}

/* Offset and page/head strides of a plane; the rest of geom_plane does not depend on the arrangement. */
static void place_plane(const struct geom_pool_spec *spec, const struct sizes *z, uint64_t n_pages,
                        struct geom_plane *plane) {
    uint32_t s = plane->slot;
    uint64_t page_stride, head_stride;
    plane->offset = plane->layer * layer_bytes(spec, z, n_pages);
    if (spec->arrangement == GEOM_DENSE) {
        for (uint32_t i = 0; i < s; i++) plane->offset += align_up(z->page_bytes[i] * n_pages);
        page_stride = spec->order == GEOM_PAGE_MAJOR ? z->page_bytes[s] : z->head_bytes[s];
        head_stride = spec->order == GEOM_PAGE_MAJOR ? z->head_bytes[s] : z->head_bytes[s] * n_pages;
    } else if (spec->order == GEOM_PAGE_MAJOR) {
        plane->offset += z->packed_slot[s];
        page_stride = z->packed_record;
        head_stride = z->head_bytes[s];
    } else {
        plane->offset += z->head_slot[s];
        page_stride = z->head_record;
        head_stride = z->head_record * n_pages;
    }
    plane->nb2 = spec->order == GEOM_PAGE_MAJOR ? head_stride : page_stride;
    plane->nb3 = spec->order == GEOM_PAGE_MAJOR ? page_stride : head_stride;
}

static void fill_plane(const struct geom_pool_spec *spec, const struct sizes *z, uint32_t n_pages, uint32_t rank,
                       uint32_t layer, uint32_t s, struct geom_plane *plane) {
    *plane = (struct geom_plane){
        .ordinal = layer * z->slots + s,
        .rank = rank,
        .layer = layer,
        .slot = s,
        .dtype = z->schema.dtype[s],
        .extent = z->schema.extent[s],
        .n_heads = z->heads,
        .nb0 = z->schema.element[s],
        .nb1 = (uint64_t)z->schema.extent[s] * z->schema.element[s],
        .head_bytes = z->head_bytes[s],
        .page_bytes = z->page_bytes[s],
        .packed_offset = layer * z->packed_record + z->packed_slot[s],
    };
    place_plane(spec, z, n_pages, plane);
}

int geom_plane(const struct geom_pool_spec *spec, uint32_t n_pages, uint32_t rank, uint32_t layer, enum geom_slot slot,
               struct geom_plane *ret_plane, char *err, size_t err_bytes) {
    struct sizes z;
    int r = geom_pool_check(spec, err, err_bytes);
    if (r) return r;
    if (!spec_sizes(spec, &z) || n_pages == 0 || !region_fits(spec, &z, n_pages))
        return refuse_with(GEOM_E_RANGE, err, err_bytes,
                           "%u pages of %llu bytes: a region has 1..%d pages and 64-bit bytes", n_pages,
                           (unsigned long long)geom_rank_page_bytes(spec), INT32_MAX);
    if (rank >= spec->n_ranks || layer >= spec->n_layers || (unsigned)slot >= z.slots)
        return refuse_with(GEOM_E_RANGE, err, err_bytes,
                           "no plane (rank %u, layer %u, slot %u): there are %u ranks, %u layers, %u slots of %s", rank,
                           layer, (unsigned)slot, spec->n_ranks, spec->n_layers, z.slots,
                           geom_storage_name(spec->storage));
    fill_plane(spec, &z, n_pages, rank, layer, slot, ret_plane);
    return 0;
}

/* ---- pieces ------------------------------------------------------------------------------- */

/* With records, the planes of a layer are one piece where no padding separates them. */
static bool pieces_are_layers(const struct geom_pool_spec *spec, const struct sizes *z) {
    if (spec->arrangement != GEOM_RECORD || spec->order != GEOM_PAGE_MAJOR) return false;
    for (uint32_t s = 0; s + 1 < z->slots; s++)
        if (z->page_bytes[s] % GEOM_ALIGN) return false;
    return true;
}

uint32_t geom_piece_count(const struct geom_pool_spec *spec) {
    struct sizes z;
    if (geom_pool_check(spec, NULL, 0) || !spec_sizes(spec, &z)) return 0;
    if (pieces_are_layers(spec, &z)) return spec->n_layers;
    uint64_t count = (uint64_t)spec->n_layers * z.slots * (spec->order == GEOM_PAGE_MAJOR ? 1 : z.heads);
    return count > UINT32_MAX ? 0 : (uint32_t)count;
}

void geom_piece(const struct geom_pool_spec *spec, uint32_t n_pages, uint32_t rank, uint32_t page, uint32_t i,
                struct geom_piece *ret_piece) {
    struct sizes z;
    struct geom_plane plane;
    if (!spec_sizes(spec, &z)) return;
    bool layers = pieces_are_layers(spec, &z);
    uint32_t per_plane = spec->order == GEOM_PAGE_MAJOR ? 1 : z.heads;
    uint32_t ordinal = layers ? i * z.slots : i / per_plane, head = layers ? 0 : i % per_plane;
    fill_plane(spec, &z, n_pages, rank, ordinal / z.slots, ordinal % z.slots, &plane);
    bool page_major = spec->order == GEOM_PAGE_MAJOR;
    *ret_piece = (struct geom_piece){
        .region_offset =
            plane.offset + page * (page_major ? plane.nb3 : plane.nb2) + head * (page_major ? 0 : plane.nb3),
        .packed_offset = plane.packed_offset + head * plane.head_bytes,
        .bytes = layers       ? z.packed_slot[z.slots - 1] + z.page_bytes[z.slots - 1]
                 : page_major ? plane.page_bytes
                              : plane.head_bytes,
    };
}

/* ---- shards ------------------------------------------------------------------------------- */

static uint32_t common_divisor(uint32_t a, uint32_t b) { return b ? common_divisor(b, a % b) : a; }

uint32_t geom_shard_heads(const struct geom_pool_spec *spec) {
    uint32_t heads = spec->n_kv_heads;
    for (uint32_t ranks = 2; ranks <= GEOM_MAX_RANKS; ranks++)
        if (spec->n_kv_heads % ranks == 0) heads = common_divisor(heads, spec->n_kv_heads / ranks);
    return heads;
}

uint64_t geom_shard_bytes(const struct geom_pool_spec *spec) {
    return geom_page_bytes(spec) / spec->n_kv_heads * geom_shard_heads(spec);
}

/* One plane of so many heads; what is behind the columns may be anybody's. */
static uint8_t *gather_heads(const struct geom_plane *plane, uint32_t heads, uint32_t columns, const uint8_t *from,
                             uint8_t *to) {
    uint64_t filled = columns * plane->nb1;
    for (uint32_t h = 0; h < heads; h++, from += plane->head_bytes, to += plane->head_bytes) {
        memcpy(to, from, filled);
        memset(to + filled, 0, plane->head_bytes - filled);
    }
    return to;
}

void geom_shard_gather(const struct geom_pool_spec *spec, uint32_t shard, uint32_t columns, const uint8_t *packed,
                       uint8_t *to) {
    struct sizes z;
    struct geom_plane plane;
    if (!spec_sizes(spec, &z)) return;
    uint32_t heads = geom_shard_heads(spec), first = shard * heads;
    packed += first / z.heads * geom_packed_bytes(spec);
    for (uint32_t i = 0; i < spec->n_layers * z.slots; i++) {
        fill_plane(spec, &z, 1, 0, i / z.slots, i % z.slots, &plane);
        to =
            gather_heads(&plane, heads, columns, packed + plane.packed_offset + first % z.heads * plane.head_bytes, to);
    }
}

/* ---- views -------------------------------------------------------------------------------- */

static void view_plane(const struct geom_pool_spec *spec, const struct geom_plane *plane, void *base,
                       kvd_plane_view *view) {
    bool page_major = spec->order == GEOM_PAGE_MAJOR;
    *view = (kvd_plane_view){
        .base = (char *)base + plane->offset,
        .dtype = plane->dtype,
        .extent = plane->extent,
        .stride_elem = plane->nb0,
        .stride_token = plane->nb1,
        .stride_head = page_major ? plane->nb2 : plane->nb3,
        .stride_page = page_major ? plane->nb3 : plane->nb2,
    };
}

int geom_layer_view(const struct geom_pool_spec *spec, uint32_t n_pages, uint32_t rank, uint32_t layer, void *base,
                    PagedKVBatchLayerView *ret_view, char *err, size_t err_bytes) {
    PagedKVBatchLayerView view = { 0 };
    kvd_plane_view *planes[GEOM_SLOTS] = { &view.k, &view.v, &view.k_scale, &view.v_scale };
    struct geom_plane plane;
    struct sizes z;
    if (!base) return refuse_with(GEOM_E_RANGE, err, err_bytes, "the region of the view has no address: map it first");
    /* The K plane checks spec, rank and layer for all of them. */
    int r = geom_plane(spec, n_pages, rank, layer, GEOM_K, &plane, err, err_bytes);
    if (r) return r;
    spec_sizes(spec, &z);
    for (uint32_t s = 0; s < z.slots; s++) {
        fill_plane(spec, &z, n_pages, rank, layer, s, &plane);
        view_plane(spec, &plane, base, planes[s]);
    }
    view.n_pages = n_pages;
    view.head_dim = spec->head_dim;
    view.n_kv_heads = z.heads;
    view.storage = spec->storage;
    *ret_view = view;
    return 0;
}
