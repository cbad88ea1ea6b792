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
    [KVD_STORAGE_FP8_TENSOR] = { "fp8-tensor", KVD_DTYPE_E4M3, KVD_DTYPE_E4M3 },
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
                        uint32_t d, bool scaled) {
    if (!scaled) {
        schema_slot(schema, codes, dtype, d);
        return;
    }
    switch (dtype) {
    case KVD_DTYPE_I8:
        schema_slot(schema, codes, dtype, d);
        schema_slot(schema, scale, KVD_DTYPE_F16, (d + 63) / 64);
        break;
    case KVD_DTYPE_E4M3:
        schema_slot(schema, codes, dtype, d);
        schema_slot(schema, scale, KVD_DTYPE_F16, 1);
        break;
    default:
        schema_slot(schema, codes, dtype, d / 2);
        schema_slot(schema, scale, KVD_DTYPE_U8, d / 16);
        break;
    }
}

/* Whether pages hold scales: with the other profiles any number of elements makes a row. */
static bool storage_scaled(enum kvd_storage storage) {
    return storage != KVD_STORAGE_BF16 && storage != KVD_STORAGE_FP8_TENSOR;
}

static bool quantized_dim(uint32_t d) { return d == 64 || d == 96 || d == 128 || d == 192 || d == 256; }

int geom_schema(enum kvd_storage storage, uint32_t head_dim, struct geom_schema *ret_schema, char *err,
                size_t err_bytes) {
    if (!storage_known(storage))
        return refuse_with(GEOM_E_UNSUPPORTED, err, err_bytes,
                           "storage %u is unknown: use bf16, int8, fp8, nvfp4, k8v4 or fp8-tensor", (unsigned)storage);
    if (head_dim == 0 || head_dim > GEOM_MAX_COUNT)
        return refuse_with(GEOM_E_UNSUPPORTED, err, err_bytes, "head_dim %u is not in 1..%u", head_dim, GEOM_MAX_COUNT);
    if (storage_scaled(storage) && !quantized_dim(head_dim))
        return refuse_with(GEOM_E_UNSUPPORTED, err, err_bytes,
                           "storage %s is defined at head_dim 64, 96, 128, 192 and 256, the model has %u: use bf16 "
                           "or fp8-tensor",
                           geom_storage_name(storage), head_dim);
    struct geom_schema schema = { 0 };
    bool scaled = storage_scaled(storage);
    schema_pair(&schema, GEOM_K, GEOM_K_SCALE, storages[storage].k, head_dim, scaled);
    schema_pair(&schema, GEOM_V, GEOM_V_SCALE, storages[storage].v, head_dim, scaled);
    *ret_schema = schema;
    return 0;
}

/* ---- layer groups -------------------------------------------------------------------------- */

static const char *const formats[KVD_N_FORMAT] = {
    [KVD_FORMAT_KV] = "kv", [KVD_FORMAT_LATENT] = "latent", [KVD_FORMAT_PACKED] = "packed"
};

static bool format_known(enum kvd_format format) { return (unsigned)format < KVD_N_FORMAT; }

const char *geom_format_name(enum kvd_format format) { return format_known(format) ? formats[format] : "unknown"; }

uint32_t geom_group_count(const struct geom_pool_spec *spec) { return spec->n_groups ? spec->n_groups : 1; }

struct geom_group geom_group_at(const struct geom_pool_spec *spec, uint32_t i) {
    if (spec->n_groups) return spec->group[i];
    return (struct geom_group){ .format = KVD_FORMAT_KV,
                                .storage = spec->storage,
                                .order = spec->order,
                                .n_layers = spec->n_layers,
                                .n_kv_heads = spec->n_kv_heads,
                                .head_dim = spec->head_dim };
}

static uint32_t v_head_dim(const struct geom_group *group) {
    return group->v_head_dim ? group->v_head_dim : group->head_dim;
}

int geom_group_schema(const struct geom_group *group, struct geom_schema *ret_schema, char *err, size_t err_bytes) {
    struct geom_schema schema = { 0 }, v;
    if (group->format != KVD_FORMAT_KV) {
        schema_slot(&schema, GEOM_K, KVD_DTYPE_U8, group->row_bytes);
        *ret_schema = schema;
        return 0;
    }
    int r = geom_schema(group->storage, group->head_dim, &schema, err, err_bytes);
    if (!r) r = geom_schema(group->storage, v_head_dim(group), &v, err, err_bytes);
    if (r) return r;
    for (int slot = GEOM_V; slot < GEOM_SLOTS; slot += GEOM_V_SCALE - GEOM_V) {
        schema.dtype[slot] = v.dtype[slot];
        schema.extent[slot] = v.extent[slot];
        schema.element[slot] = v.element[slot];
    }
    *ret_schema = schema;
    return 0;
}

static int check_rows(const struct geom_group *group, char *err, size_t err_bytes) {
    struct geom_schema schema;
    if (!format_known(group->format))
        return refuse_with(GEOM_E_UNSUPPORTED, err, err_bytes, "format %u is unknown: use kv, latent or packed",
                           (unsigned)group->format);
    if (group->format == KVD_FORMAT_KV) return geom_group_schema(group, &schema, err, err_bytes);
    if (group->row_bytes == 0 || group->row_bytes > GEOM_MAX_COUNT)
        return refuse_with(GEOM_E_RANGE, err, err_bytes, "%s rows of %u bytes: a row has 1..%u",
                           geom_format_name(group->format), group->row_bytes, GEOM_MAX_COUNT);
    return 0;
}

int geom_group_check(const struct geom_group *group, uint32_t n_ranks, char *err, size_t err_bytes) {
    int r = check_rows(group, err, err_bytes);
    if (r) return r;
    if ((unsigned)group->order > GEOM_HEAD_MAJOR)
        return refuse_with(GEOM_E_UNSUPPORTED, err, err_bytes,
                           "page order %u is unknown: use page-major (0) or head-major (1)", (unsigned)group->order);
    if (group->n_layers == 0 || group->n_layers > GEOM_MAX_COUNT)
        return refuse_with(GEOM_E_RANGE, err, err_bytes, "%u layers: a pool has 1..%u", group->n_layers,
                           GEOM_MAX_COUNT);
    if (group->n_kv_heads == 0 || group->n_kv_heads > GEOM_MAX_COUNT)
        return refuse_with(GEOM_E_RANGE, err, err_bytes, "%u kv heads: a pool has 1..%u", group->n_kv_heads,
                           GEOM_MAX_COUNT);
    if (group->format == KVD_FORMAT_LATENT && group->n_kv_heads != 1)
        return refuse_with(GEOM_E_UNSUPPORTED, err, err_bytes, "a latent of %u heads: it is one row for all, write 1",
                           group->n_kv_heads);
    if (n_ranks == 0 || n_ranks > GEOM_MAX_RANKS)
        return refuse_with(GEOM_E_RANGE, err, err_bytes, "%u ranks: a pool has 1..%u", n_ranks, GEOM_MAX_RANKS);
    if (group->n_kv_heads % n_ranks && n_ranks % group->n_kv_heads)
        return refuse_with(GEOM_E_UNSUPPORTED, err, err_bytes,
                           "%u kv heads do not divide over %u ranks, nor ranks over heads: choose a rank count that "
                           "divides the heads, or a multiple of them",
                           group->n_kv_heads, n_ranks);
    return 0;
}

static int check_groups(const struct geom_pool_spec *spec, char *err, size_t err_bytes) {
    char why[256];
    uint64_t layers = 0;
    if (spec->n_groups > GEOM_MAX_GROUPS)
        return refuse_with(GEOM_E_RANGE, err, err_bytes, "%u layer groups: a pool has at most %d", spec->n_groups,
                           GEOM_MAX_GROUPS);
    for (uint32_t i = 0; i < spec->n_groups; i++) {
        int r = geom_group_check(&spec->group[i], spec->n_ranks, why, sizeof why);
        if (r) return refuse_with(r, err, err_bytes, "layer group %u: %s", i, why);
        layers += spec->group[i].n_layers;
    }
    if (layers != spec->n_layers || layers > GEOM_MAX_COUNT)
        return refuse_with(GEOM_E_RANGE, err, err_bytes,
                           "%u layers in a pool whose groups have %llu: it is their sum, at most %u", spec->n_layers,
                           (unsigned long long)layers, GEOM_MAX_COUNT);
    return 0;
}

int geom_pool_check(const struct geom_pool_spec *spec, char *err, size_t err_bytes) {
    if ((unsigned)spec->arrangement > GEOM_RECORD)
        return refuse_with(GEOM_E_UNSUPPORTED, err, err_bytes,
                           "plane arrangement %u is unknown: use dense (0) or record (1)", (unsigned)spec->arrangement);
    if (spec->n_groups) return check_groups(spec, err, err_bytes);
    struct geom_group group = geom_group_at(spec, 0);
    return geom_group_check(&group, spec->n_ranks, err, err_bytes);
}

/* ---- a group in bytes ---------------------------------------------------------------------- */

/* What the whole room computes from: the schema of a group as byte counts of one rank. */
struct sizes {
    struct geom_schema schema;
    enum kvd_format format;
    enum geom_order order;
    enum geom_arrangement arrangement;
    uint32_t layers;
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

static bool group_sizes(const struct geom_pool_spec *spec, uint32_t i, struct sizes *ret_sizes) {
    struct geom_group group = geom_group_at(spec, i);
    struct sizes z = {
        .format = group.format, .order = group.order, .arrangement = spec->arrangement, .layers = group.n_layers
    };
    if (geom_group_schema(&group, &z.schema, NULL, 0) || spec->n_ranks == 0) return false;
    z.heads = group.n_kv_heads > spec->n_ranks ? group.n_kv_heads / spec->n_ranks : group.n_kv_heads > 0;
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

/* Bytes of one layer of a region: dense tensors, or n_pages (times heads) records. */
static uint64_t layer_bytes(const struct sizes *z, uint64_t n_pages) {
    uint64_t bytes = 0;
    if (z->arrangement == GEOM_RECORD)
        return n_pages * (z->order == GEOM_PAGE_MAJOR ? z->packed_record : z->head_record * z->heads);
    for (uint32_t s = 0; s < z->slots; s++) bytes += align_up(z->page_bytes[s] * n_pages);
    return bytes;
}

/* With records, the planes of a layer are one piece where no padding separates them. */
static bool pieces_are_layers(const struct sizes *z) {
    if (z->arrangement != GEOM_RECORD || z->order != GEOM_PAGE_MAJOR) return false;
    for (uint32_t s = 0; s + 1 < z->slots; s++)
        if (z->page_bytes[s] % GEOM_ALIGN) return false;
    return true;
}

static uint64_t piece_count(const struct sizes *z) {
    if (pieces_are_layers(z)) return z->layers;
    return (uint64_t)z->layers * z->slots * (z->order == GEOM_PAGE_MAJOR ? 1 : z->heads);
}

/* ---- sums over groups ---------------------------------------------------------------------- */

enum unit { UNIT_LAYER, UNIT_PLANE, UNIT_PIECE, N_UNITS };

/* What stands before a group. */
struct start {
    uint64_t unit[N_UNITS];
    uint64_t region, packed, payload;
};

static void pass_group(const struct sizes *z, uint64_t n_pages, struct start *start) {
    start->unit[UNIT_LAYER] += z->layers;
    start->unit[UNIT_PLANE] += (uint64_t)z->layers * z->slots;
    start->unit[UNIT_PIECE] += piece_count(z);
    start->region += layer_bytes(z, n_pages) * z->layers;
    start->packed += z->packed_record * z->layers;
    start->payload += z->payload * z->layers;
}

/* All groups; zeros for an invalid spec. */
static struct start pass_all(const struct geom_pool_spec *spec, uint64_t n_pages) {
    struct start start = { 0 };
    struct sizes z;
    for (uint32_t i = 0; i < geom_group_count(spec); i++) {
        if (!group_sizes(spec, i, &z)) return (struct start){ 0 };
        pass_group(&z, n_pages, &start);
    }
    return start;
}

/* The group in which unit number i is. */
static bool seek_group(const struct geom_pool_spec *spec, uint64_t n_pages, enum unit unit, uint32_t i,
                       struct sizes *ret_sizes, struct start *ret_start) {
    struct start start = { 0 };
    for (uint32_t g = 0; g < geom_group_count(spec); g++) {
        struct start next = start;
        if (!group_sizes(spec, g, ret_sizes)) return false;
        pass_group(ret_sizes, n_pages, &next);
        *ret_start = start;
        if (i < next.unit[unit]) return true;
        start = next;
    }
    return false;
}

void geom_group_shape(const struct geom_pool_spec *spec, uint32_t i, struct geom_group_shape *ret_shape) {
    struct start start = { 0 };
    struct sizes z = { 0 };
    for (uint32_t g = 0; g <= i && group_sizes(spec, g, &z); g++)
        if (g < i) pass_group(&z, 0, &start);
    *ret_shape = (struct geom_group_shape){ .layer = (uint32_t)start.unit[UNIT_LAYER],
                                            .layers = z.layers,
                                            .piece = (uint32_t)start.unit[UNIT_PIECE],
                                            .pieces = (uint32_t)piece_count(&z),
                                            .slots = z.slots,
                                            .heads = z.heads,
                                            .order = z.order,
                                            .rank_page_bytes = z.payload * z.layers };
}

uint32_t geom_plane_count(const struct geom_pool_spec *spec) {
    return geom_pool_check(spec, NULL, 0) ? 0 : (uint32_t)pass_all(spec, 0).unit[UNIT_PLANE];
}

uint32_t geom_piece_count(const struct geom_pool_spec *spec) {
    if (geom_pool_check(spec, NULL, 0)) return 0;
    uint64_t count = pass_all(spec, 0).unit[UNIT_PIECE];
    return count > UINT32_MAX ? 0 : (uint32_t)count;
}

uint64_t geom_rank_page_bytes(const struct geom_pool_spec *spec) { return pass_all(spec, 0).payload; }

uint64_t geom_page_bytes(const struct geom_pool_spec *spec) { return geom_rank_page_bytes(spec) * spec->n_ranks; }

uint64_t geom_packed_bytes(const struct geom_pool_spec *spec) { return pass_all(spec, 0).packed; }

uint64_t geom_region_linear(const struct geom_pool_spec *spec) {
    return spec->arrangement == GEOM_DENSE ? geom_rank_page_bytes(spec) : pass_all(spec, 1).region;
}

/* Upper bound first, so that no later product of n_pages can overflow. */
static bool region_fits(const struct geom_pool_spec *spec, uint64_t n_pages) {
    uint64_t most = 0, bytes;
    struct sizes z;
    for (uint32_t i = 0; i < geom_group_count(spec); i++) {
        if (!group_sizes(spec, i, &z)) return false;
        most += (z.packed_record + z.head_record * z.heads) * z.layers;
    }
    if (n_pages > INT32_MAX || __builtin_mul_overflow(most, n_pages, &bytes)) return false;
    return geom_add(&bytes, (uint64_t)spec->n_layers * GEOM_SLOTS * GEOM_ALIGN);
}

uint64_t geom_region_bytes(const struct geom_pool_spec *spec, uint32_t n_pages) {
    return region_fits(spec, n_pages) ? pass_all(spec, n_pages).region : UINT64_MAX;
}

/* ---- planes -------------------------------------------------------------------------------- */

/* Offset and page/head strides of a plane of layer l of a group; the rest does not depend on the arrangement. */
static void place_plane(const struct sizes *z, uint64_t n_pages, uint32_t l, struct geom_plane *plane) {
    uint32_t s = plane->slot;
    uint64_t page_stride, head_stride;
    plane->offset += l * layer_bytes(z, n_pages);
    if (z->arrangement == GEOM_DENSE) {
        for (uint32_t i = 0; i < s; i++) plane->offset += align_up(z->page_bytes[i] * n_pages);
        page_stride = z->order == GEOM_PAGE_MAJOR ? z->page_bytes[s] : z->head_bytes[s];
        head_stride = z->order == GEOM_PAGE_MAJOR ? z->head_bytes[s] : z->head_bytes[s] * n_pages;
    } else if (z->order == GEOM_PAGE_MAJOR) {
        plane->offset += z->packed_slot[s];
        page_stride = z->packed_record;
        head_stride = z->head_bytes[s];
    } else {
        plane->offset += z->head_slot[s];
        page_stride = z->head_record;
        head_stride = z->head_record * n_pages;
    }
    plane->nb2 = z->order == GEOM_PAGE_MAJOR ? head_stride : page_stride;
    plane->nb3 = z->order == GEOM_PAGE_MAJOR ? page_stride : head_stride;
}

static void fill_plane(const struct sizes *z, const struct start *start, uint32_t n_pages, uint32_t rank,
                       uint32_t layer, uint32_t s, struct geom_plane *plane) {
    uint32_t l = layer - (uint32_t)start->unit[UNIT_LAYER];
    *plane = (struct geom_plane){
        .ordinal = (uint32_t)start->unit[UNIT_PLANE] + l * z->slots + s,
        .rank = rank,
        .layer = layer,
        .slot = s,
        .format = z->format,
        .order = z->order,
        .dtype = z->schema.dtype[s],
        .extent = z->schema.extent[s],
        .n_heads = z->heads,
        .offset = start->region,
        .nb0 = z->schema.element[s],
        .nb1 = (uint64_t)z->schema.extent[s] * z->schema.element[s],
        .head_bytes = z->head_bytes[s],
        .page_bytes = z->page_bytes[s],
        .packed_offset = start->packed + l * z->packed_record + z->packed_slot[s],
    };
    place_plane(z, n_pages, l, plane);
}

int geom_plane(const struct geom_pool_spec *spec, uint32_t n_pages, uint32_t rank, uint32_t layer, enum geom_slot slot,
               struct geom_plane *ret_plane, char *err, size_t err_bytes) {
    struct sizes z = { 0 };
    struct start start;
    int r = geom_pool_check(spec, err, err_bytes);
    if (r) return r;
    if (n_pages == 0 || !region_fits(spec, n_pages))
        return refuse_with(GEOM_E_RANGE, err, err_bytes,
                           "%u pages of %llu bytes: a region has 1..%d pages and 64-bit bytes", n_pages,
                           (unsigned long long)geom_rank_page_bytes(spec), INT32_MAX);
    if (rank >= spec->n_ranks || !seek_group(spec, n_pages, UNIT_LAYER, layer, &z, &start) || (unsigned)slot >= z.slots)
        return refuse_with(GEOM_E_RANGE, err, err_bytes,
                           "no plane (rank %u, layer %u, slot %u): there are %u ranks, %u layers, and %u slots of %s",
                           rank, layer, (unsigned)slot, spec->n_ranks, spec->n_layers, z.slots,
                           z.format == KVD_FORMAT_KV ? geom_storage_name(spec->storage) : geom_format_name(z.format));
    fill_plane(&z, &start, n_pages, rank, layer, slot, ret_plane);
    return 0;
}

void geom_plane_at(const struct geom_pool_spec *spec, uint32_t n_pages, uint32_t rank, uint32_t ordinal,
                   struct geom_plane *ret_plane) {
    struct sizes z;
    struct start start;
    if (!seek_group(spec, n_pages, UNIT_PLANE, ordinal, &z, &start)) return;
    uint32_t i = ordinal - (uint32_t)start.unit[UNIT_PLANE];
    fill_plane(&z, &start, n_pages, rank, (uint32_t)start.unit[UNIT_LAYER] + i / z.slots, i % z.slots, ret_plane);
}

/* ---- pieces ------------------------------------------------------------------------------- */

void geom_piece(const struct geom_pool_spec *spec, uint32_t n_pages, uint32_t rank, uint32_t page, uint32_t i,
                struct geom_piece *ret_piece) {
    struct sizes z;
    struct start start;
    struct geom_plane plane;
    if (!seek_group(spec, n_pages, UNIT_PIECE, i, &z, &start)) return;
    i -= (uint32_t)start.unit[UNIT_PIECE];
    bool layers = pieces_are_layers(&z), page_major = z.order == GEOM_PAGE_MAJOR;
    uint32_t per_plane = page_major ? 1 : z.heads;
    uint32_t ordinal = layers ? i * z.slots : i / per_plane, head = layers ? 0 : i % per_plane;
    fill_plane(&z, &start, n_pages, rank, (uint32_t)start.unit[UNIT_LAYER] + ordinal / z.slots, ordinal % z.slots,
               &plane);
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

static uint32_t shard_heads(uint32_t n_kv_heads) {
    uint32_t heads = n_kv_heads;
    for (uint32_t ranks = 2; ranks <= GEOM_MAX_RANKS; ranks++)
        if (n_kv_heads % ranks == 0) heads = common_divisor(heads, n_kv_heads / ranks);
    return heads;
}

uint32_t geom_shard_heads(const struct geom_pool_spec *spec) { return shard_heads(spec->n_kv_heads); }

uint32_t geom_shard_count(const struct geom_pool_spec *spec) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < geom_group_count(spec); i++) {
        uint32_t heads = geom_group_at(spec, i).n_kv_heads;
        count = common_divisor(count, heads / shard_heads(heads));
    }
    return count;
}

uint64_t geom_shard_bytes(const struct geom_pool_spec *spec) {
    uint32_t shards = geom_shard_count(spec);
    uint64_t bytes = 0;
    struct sizes z;
    for (uint32_t i = 0; i < geom_group_count(spec) && group_sizes(spec, i, &z); i++)
        bytes += z.payload / z.heads * z.layers * (geom_group_at(spec, i).n_kv_heads / shards);
    return bytes;
}

/* A head of a plane, in a shard and in a packed page of all ranks: at the first rank that holds it, and at those behind
 * it that have a copy. */
struct shard_head {
    uint64_t shard_offset, packed_offset, packed_bytes; /* of a rank's page */
    uint64_t bytes, token_bytes;
    uint32_t ranks;
};

static struct shard_head head_of(const struct geom_pool_spec *spec, const struct geom_plane *plane, uint32_t n_heads,
                                 uint64_t packed_bytes, uint32_t h) {
    uint32_t ranks = n_heads < spec->n_ranks ? spec->n_ranks / n_heads : 1;
    uint32_t first = n_heads < spec->n_ranks ? ranks * h : h / plane->n_heads;
    return (struct shard_head){ .packed_offset = first * packed_bytes + plane->packed_offset +
                                                 h % plane->n_heads * plane->head_bytes,
                                .packed_bytes = packed_bytes,
                                .bytes = plane->head_bytes,
                                .token_bytes = plane->nb1,
                                .ranks = ranks };
}

static void each_shard_head(const struct geom_pool_spec *spec, uint32_t shard,
                            void (*visit)(void *context, const struct shard_head *head), void *context) {
    struct geom_group_shape shape;
    struct geom_plane plane;
    uint32_t shards = geom_shard_count(spec), ordinal = 0;
    uint64_t packed_bytes = geom_packed_bytes(spec), offset = 0;
    for (uint32_t g = 0; g < geom_group_count(spec); g++) {
        uint32_t n_heads = geom_group_at(spec, g).n_kv_heads, heads = n_heads / shards;
        geom_group_shape(spec, g, &shape);
        for (uint32_t end = ordinal + shape.layers * shape.slots; ordinal < end; ordinal++) {
            geom_plane_at(spec, 1, 0, ordinal, &plane);
            for (uint32_t h = shard * heads; h < (shard + 1) * heads; h++, offset += plane.head_bytes) {
                struct shard_head head = head_of(spec, &plane, n_heads, packed_bytes, h);
                head.shard_offset = offset;
                visit(context, &head);
            }
        }
    }
}

struct gather {
    const uint8_t *packed;
    uint8_t *to;
    uint32_t columns;
};

static void gather_head(void *context, const struct shard_head *head) {
    const struct gather *gather = context;
    uint64_t filled = gather->columns * head->token_bytes; /* what is behind the columns may be anybody's */
    memcpy(gather->to + head->shard_offset, gather->packed + head->packed_offset, filled);
    memset(gather->to + head->shard_offset + filled, 0, head->bytes - filled);
}

void geom_shard_gather(const struct geom_pool_spec *spec, uint32_t shard, uint32_t columns, const uint8_t *packed,
                       uint8_t *to) {
    each_shard_head(spec, shard, gather_head, &(struct gather){ packed, to, columns });
}

struct scatter {
    const uint8_t *from;
    uint8_t *packed;
};

static void scatter_head(void *context, const struct shard_head *head) {
    const struct scatter *scatter = context;
    for (uint32_t r = 0; r < head->ranks; r++)
        memcpy(scatter->packed + head->packed_offset + r * head->packed_bytes, scatter->from + head->shard_offset,
               head->bytes);
}

void geom_shard_scatter(const struct geom_pool_spec *spec, uint32_t shard, const uint8_t *from, uint8_t *packed) {
    each_shard_head(spec, shard, scatter_head, &(struct scatter){ from, packed });
}

/* ---- views -------------------------------------------------------------------------------- */

static void view_plane(const struct geom_plane *plane, void *base, kvd_plane_view *view) {
    bool page_major = plane->order == GEOM_PAGE_MAJOR;
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
    struct geom_group group;
    struct geom_group_shape shape;
    if (!base) return refuse_with(GEOM_E_RANGE, err, err_bytes, "the region of the view has no address: map it first");
    /* The first plane checks spec, rank and layer for all of them. */
    int r = geom_plane(spec, n_pages, rank, layer, GEOM_K, &plane, err, err_bytes);
    if (r) return r;
    for (uint32_t i = 0; i < geom_group_count(spec); i++) {
        geom_group_shape(spec, i, &shape);
        group = geom_group_at(spec, i);
        if (layer - shape.layer < shape.layers) break;
    }
    for (uint32_t s = 0; s < shape.slots; s++) {
        geom_plane_at(spec, n_pages, rank, plane.ordinal + s - plane.slot, &plane);
        view_plane(&plane, base, planes[s]);
    }
    view.n_pages = n_pages;
    view.head_dim = group.head_dim;
    view.v_head_dim = v_head_dim(&group);
    view.n_kv_heads = plane.n_heads;
    view.storage = group.storage;
    view.format = group.format;
    view.window = spec->window.tokens;
    view.window_aligned = spec->window.aligned;
    *ret_view = view;
    return 0;
}
