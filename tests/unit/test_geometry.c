/* SPDX-License-Identifier: Apache-2.0
 *
 * Geometry: schema, planes, pieces, views, digest. Numbers are the published payload tables; addresses are held
 * against brute force over random specs.
 */
#include <stdlib.h>

#include "geometry.h"
#include "kvt.h"

static struct geom_pool_spec pool(enum kvd_storage storage, uint32_t layers, uint32_t heads, uint32_t dim) {
    return (struct geom_pool_spec){
        .storage = storage, .n_layers = layers, .n_kv_heads = heads, .head_dim = dim, .n_ranks = 1
    };
}

/* GEOM-1 */
static void geom_1_closed_profiles(void) {
    struct geom_schema schema;
    char err[256];
    for (unsigned s = 0; s < KVD_N_STORAGE; s++) {
        for (uint32_t d = 1; d < 1025; d++) {
            bool defined = s == KVD_STORAGE_BF16 || s == KVD_STORAGE_FP8_TENSOR || d == 64 || d == 96 || d == 128 ||
                           d == 192 || d == 256;
            int r = geom_schema((enum kvd_storage)s, d, &schema, err, sizeof err);
            KVT_EQ_I(r, defined ? 0 : GEOM_E_UNSUPPORTED);
        }
        KVT_EQ_I(geom_schema((enum kvd_storage)s, 0, &schema, err, sizeof err), GEOM_E_UNSUPPORTED);
    }
    KVT_EQ_I(geom_schema((enum kvd_storage)KVD_N_STORAGE, 256, &schema, err, sizeof err), GEOM_E_UNSUPPORTED);
    KVT_HAS(err, "fp8-tensor");
    KVT_EQ_I(geom_schema(KVD_STORAGE_FP8, 80, &schema, err, sizeof err), GEOM_E_UNSUPPORTED);
    KVT_HAS(err, "80");
    KVT_EQ_STR(geom_storage_name((enum kvd_storage)77), "unknown");
}

/* GEOM-2, GEOM-8: bytes follow from the typed planes, also where K and V differ. */
static void geom_2_token_bytes(void) {
    static const uint32_t bytes[KVD_N_STORAGE] = { 1024, 528, 516, 288, 402, 512 };
    for (unsigned s = 0; s < KVD_N_STORAGE; s++) {
        struct geom_pool_spec one = pool((enum kvd_storage)s, 1, 1, 256);
        KVT_EQ(geom_page_bytes(&one), bytes[s] * 64u);
    }
    /* Payload a page of whole models: 16 layers x 4 heads, 10 x 2, their one-layer MTP pools, an 8 x 128 draft layer.
     */
    static const struct {
        uint32_t layers, heads;
        uint64_t page[KVD_N_STORAGE];
    } models[] = {
        { 16, 4, { 4194304, 2162688, 2113536, 1179648, 1646592, 2097152 } },
        { 10, 2, { 1310720, 675840, 660480, 368640, 514560, 655360 } },
        { 1, 4, { 262144, 135168, 132096, 73728, 102912, 131072 } },
        { 1, 2, { 131072, 67584, 66048, 36864, 51456, 65536 } },
    };
    for (unsigned m = 0; m < sizeof models / sizeof *models; m++)
        for (unsigned s = 0; s < KVD_N_STORAGE; s++) {
            struct geom_pool_spec p = pool((enum kvd_storage)s, models[m].layers, models[m].heads, 256);
            KVT_EQ(geom_page_bytes(&p), models[m].page[s]);
            KVT_EQ(geom_packed_bytes(&p), models[m].page[s]); /* two heads and more: no padding anywhere */
            KVT_EQ(geom_page_bytes(&p) / 64, models[m].page[s] / 64);
            p.n_ranks = 2;
            KVT_EQ(geom_page_bytes(&p), models[m].page[s]);
            KVT_EQ(geom_rank_page_bytes(&p), models[m].page[s] / 2);
        }
    struct geom_pool_spec draft = pool(KVD_STORAGE_BF16, 1, 8, 128);
    draft.order = GEOM_HEAD_MAJOR;
    KVT_EQ(geom_page_bytes(&draft), 262144);
}

/* GEOM-3 */
static void geom_3_plane_extents(void) {
    static const struct {
        uint32_t dtype[4], extent[4];
    } want[KVD_N_STORAGE] = {
        { { KVD_DTYPE_BF16, KVD_DTYPE_BF16, 0, 0 }, { 256, 256, 0, 0 } },
        { { KVD_DTYPE_I8, KVD_DTYPE_I8, KVD_DTYPE_F16, KVD_DTYPE_F16 }, { 256, 256, 4, 4 } },
        { { KVD_DTYPE_E4M3, KVD_DTYPE_E4M3, KVD_DTYPE_F16, KVD_DTYPE_F16 }, { 256, 256, 1, 1 } },
        { { KVD_DTYPE_U8, KVD_DTYPE_U8, KVD_DTYPE_U8, KVD_DTYPE_U8 }, { 128, 128, 16, 16 } },
        { { KVD_DTYPE_E4M3, KVD_DTYPE_U8, KVD_DTYPE_F16, KVD_DTYPE_U8 }, { 256, 128, 1, 16 } },
        { { KVD_DTYPE_E4M3, KVD_DTYPE_E4M3, 0, 0 }, { 256, 256, 0, 0 } },
    };
    for (unsigned s = 0; s < KVD_N_STORAGE; s++) {
        struct geom_schema schema;
        KVT_OK(geom_schema((enum kvd_storage)s, 256, &schema, NULL, 0));
        KVT_EQ_MEM(schema.dtype, want[s].dtype, sizeof schema.dtype);
        KVT_EQ_MEM(schema.extent, want[s].extent, sizeof schema.extent);
        struct geom_pool_spec p = pool((enum kvd_storage)s, 3, 2, 256);
        uint32_t slots = want[s].extent[GEOM_K_SCALE] ? 4 : 2;
        KVT_EQ(geom_plane_count(&p), 3 * slots);
        for (uint32_t layer = 0; layer < 3; layer++)
            for (uint32_t slot = 0; slot < 4; slot++) {
                struct geom_plane plane;
                int r = geom_plane(&p, 5, 0, layer, (enum geom_slot)slot, &plane, NULL, 0);
                if (slot >= slots) {
                    KVT_EQ_I(r, GEOM_E_RANGE);
                    continue;
                }
                KVT_OK(r);
                KVT_EQ(plane.ordinal, layer * slots + slot); /* layer-major: K, V, K scale, V scale */
                KVT_EQ(plane.dtype, want[s].dtype[slot]);
                KVT_EQ(plane.nb1, plane.nb0 * plane.extent);
                KVT_EQ(plane.head_bytes, plane.nb1 * 64);
                KVT_EQ(plane.page_bytes, plane.head_bytes * 2);
            }
    }
}

/* GEOM-4, GEOM-5: dense strides are those of tensors [X,64,H,N] and [X,64,N,H]. */
static void geom_4_5_dense_strides(void) {
    for (unsigned order = 0; order < 2; order++) {
        struct geom_pool_spec p = pool(KVD_STORAGE_K8V4, 2, 4, 256);
        p.order = (enum geom_order)order;
        uint64_t end = 0;
        for (uint32_t i = 0; i < 8; i++) {
            struct geom_plane plane;
            KVT_OK(geom_plane(&p, 7, 0, i / 4, (enum geom_slot)(i % 4), &plane, NULL, 0));
            KVT_EQ(plane.nb2, plane.nb1 * 64);
            KVT_EQ(plane.nb3, plane.nb2 * (order == GEOM_PAGE_MAJOR ? 4 : 7));
            KVT_EQ(plane.offset, end);
            end += 7 * plane.page_bytes;
        }
        KVT_EQ(geom_region_bytes(&p, 7), end);
    }
}

/* The device page of a layer is the packed record of that layer: pieces are layers at one pitch on both sides. */
static void record_page_is_one_2d_copy(void) {
    struct geom_pool_spec p = pool(KVD_STORAGE_K8V4, 16, 4, 256);
    p.arrangement = GEOM_RECORD;
    KVT_EQ(geom_piece_count(&p), 16);
    for (uint32_t i = 0; i < 16; i++) {
        struct geom_piece piece;
        geom_piece(&p, 100, 0, 42, i, &piece);
        KVT_EQ(piece.bytes, 102912);
        KVT_EQ(piece.packed_offset, i * 102912u);
        KVT_EQ(piece.region_offset, (i * 100u + 42) * 102912u);
    }
    p.n_kv_heads = 1; /* a scale plane of 128 bytes stands before another plane: planes move one by one */
    KVT_EQ(geom_piece_count(&p), 64);
    p.storage = KVD_STORAGE_NVFP4;
    KVT_EQ(geom_piece_count(&p), 16);
}

static struct geom_group random_group(uint64_t *seed, uint32_t ranks) {
    struct geom_group g = { .format = (enum kvd_format)kvt_below(seed, KVD_N_FORMAT),
                            .order = (enum geom_order)kvt_below(seed, 2),
                            .n_layers = 1 + kvt_below(seed, 2) };
    g.n_kv_heads = g.format == KVD_FORMAT_LATENT ? 1 : kvt_below(seed, 4) ? ranks * (1 + kvt_below(seed, 2)) : 1;
    if (g.format != KVD_FORMAT_KV) {
        g.row_bytes = 1 + kvt_below(seed, 200);
        return g;
    }
    g.storage = (enum kvd_storage)kvt_below(seed, KVD_N_STORAGE);
    g.head_dim = g.storage ? 256 : 1 + kvt_below(seed, 70);
    g.v_head_dim = g.storage ? 0 : kvt_below(seed, 70);
    return g;
}

/* GRP-1: a pool of groups that differ in everything. */
static void put_groups(uint64_t *seed, struct geom_pool_spec *p) {
    uint32_t n = 1 + kvt_below(seed, 4);
    *p = (struct geom_pool_spec){ .arrangement = p->arrangement, .n_ranks = p->n_ranks, .n_groups = n };
    for (uint32_t i = 0; i < n; i++) {
        p->group[i] = random_group(seed, p->n_ranks);
        p->n_layers += p->group[i].n_layers;
    }
}

static struct geom_pool_spec random_pool(uint64_t *seed) {
    struct geom_pool_spec p = { 0 };
    p.storage = (enum kvd_storage)kvt_below(seed, KVD_N_STORAGE);
    p.order = (enum geom_order)kvt_below(seed, 2);
    p.arrangement = (enum geom_arrangement)kvt_below(seed, 2);
    p.n_layers = 1 + kvt_below(seed, 3);
    p.n_ranks = 1 + kvt_below(seed, 3);
    p.n_kv_heads = p.n_ranks * (1 + kvt_below(seed, 3));
    static const uint32_t quantized[] = { 64, 96, 128, 192, 256 };
    p.head_dim = p.storage == KVD_STORAGE_BF16 ? 1 + kvt_below(seed, 70) : quantized[kvt_below(seed, 5)];
    if (kvt_below(seed, 2)) put_groups(seed, &p);
    return p;
}

/* Paints every piece of storage by the address formula; each byte may be painted once (POOL-4, GEOM-6). */
static void paint(const struct geom_pool_spec *p, uint32_t pages, uint32_t rank, uint8_t *map, uint64_t bytes) {
    uint64_t twice = 0, outside = 0;
    for (uint32_t i = 0; i < geom_plane_count(p); i++) {
        struct geom_plane plane, same;
        geom_plane_at(p, pages, rank, i, &plane);
        KVT_EQ(plane.ordinal, i);
        KVT_OK(geom_plane(p, pages, rank, plane.layer, (enum geom_slot)plane.slot, &same, NULL, 0));
        KVT_TRUE(same.ordinal == i && same.offset == plane.offset && same.packed_offset == plane.packed_offset);
        KVT_EQ(plane.offset % GEOM_ALIGN, 0);
        KVT_EQ(plane.packed_offset % GEOM_ALIGN, 0);
        if (!p->n_groups) KVT_EQ(plane.n_heads, p->n_kv_heads / p->n_ranks);
        for (uint32_t g = 0; g < pages; g++)
            for (uint32_t h = 0; h < plane.n_heads; h++)
                for (uint32_t o = 0; o < 64; o++) {
                    uint64_t at = plane.offset + o * plane.nb1 +
                                  (plane.order == GEOM_PAGE_MAJOR ? h * plane.nb2 + g * plane.nb3
                                                                  : g * plane.nb2 + h * plane.nb3);
                    for (uint64_t k = 0; k < plane.nb1; k++) {
                        if (at + k >= bytes) outside++;
                        else if (map[at + k]) twice++;
                        else map[at + k] = (uint8_t)(1 + g % 200);
                    }
                }
    }
    KVT_EQ(twice, 0);
    KVT_EQ(outside, 0);
}

/* Pieces cover exactly the bytes of their page, and each packed byte once. */
static void cover(const struct geom_pool_spec *p, uint32_t pages, uint32_t rank, uint32_t page, const uint8_t *map) {
    uint8_t *packed = calloc(1, geom_packed_bytes(p));
    uint64_t sum = 0, wrong = 0;
    for (uint32_t i = 0; i < geom_piece_count(p); i++) {
        struct geom_piece piece;
        geom_piece(p, pages, rank, page, i, &piece);
        sum += piece.bytes;
        for (uint64_t k = 0; k < piece.bytes; k++) {
            wrong += map[piece.region_offset + k] != 1 + page % 200;
            wrong += piece.packed_offset + k >= geom_packed_bytes(p) || packed[piece.packed_offset + k]++;
        }
    }
    KVT_EQ(wrong, 0);
    KVT_EQ(sum, geom_rank_page_bytes(p));
    free(packed);
}

/* POOL-4, GEOM-6, INV-3: one page id selects one slice in every plane. */
static void pool_4_geom_6_planes_disjoint(void) {
    uint64_t seed = kvt_seed();
    for (int round = 0; round < 24; round++) {
        struct geom_pool_spec p = random_pool(&seed);
        uint32_t pages = 1 + kvt_below(&seed, 5), rank = kvt_below(&seed, p.n_ranks);
        uint64_t bytes = geom_region_bytes(&p, pages);
        uint8_t *map = calloc(1, bytes);
        paint(&p, pages, rank, map, bytes);
        for (uint32_t page = 0; page < pages; page++) cover(&p, pages, rank, page, map);
        free(map);
    }
}

/* HOST-2: the packed page is the same for both orders and both arrangements: move a page through it. */
static void host_2_packed_is_order_free(void) {
    uint64_t seed = kvt_seed();
    for (int round = 0; round < 16; round++) {
        struct geom_pool_spec p = random_pool(&seed);
        uint32_t pages = 1 + kvt_below(&seed, 5), page = kvt_below(&seed, pages);
        uint8_t *packed[4];
        for (unsigned variant = 0; variant < 4; variant++) {
            p.order = (enum geom_order)(variant & 1);
            for (uint32_t g = 0; g < p.n_groups; g++) p.group[g].order = p.order;
            p.arrangement = (enum geom_arrangement)(variant >> 1);
            packed[variant] = calloc(1, geom_packed_bytes(&p));
            uint8_t *region = calloc(1, geom_region_bytes(&p, pages));
            for (uint32_t i = 0; i < geom_plane_count(&p); i++) {
                struct geom_plane q;
                geom_plane_at(&p, pages, 0, i, &q);
                for (uint32_t h = 0; h < q.n_heads; h++)
                    for (uint64_t k = 0; k < q.head_bytes; k++) /* a name for every (plane, head, byte) */
                        region[q.offset + k +
                               (q.order == GEOM_PAGE_MAJOR ? h * q.nb2 + page * q.nb3 : page * q.nb2 + h * q.nb3)] =
                            (uint8_t)(i * 53 + h * 17 + k + k / 256 + 1);
            }
            for (uint32_t i = 0; i < geom_piece_count(&p); i++) {
                struct geom_piece piece;
                geom_piece(&p, pages, 0, page, i, &piece);
                memcpy(packed[variant] + piece.packed_offset, region + piece.region_offset, piece.bytes);
            }
            KVT_EQ_MEM(packed[variant], packed[0], geom_packed_bytes(&p));
            free(region);
        }
        for (unsigned variant = 0; variant < 4; variant++) free(packed[variant]);
    }
}

/* A byte for every (layer, slot, head of the model, byte of its piece). */
static uint8_t painted(uint32_t plane, uint32_t head, uint64_t k) {
    return (uint8_t)(plane * 53 + head * 17 + k + k / 256 + 1);
}

static uint32_t heads_of(const struct geom_pool_spec *p, uint32_t layer) {
    uint32_t g = 0;
    while (p->n_groups && layer >= p->group[g].n_layers) layer -= p->group[g++].n_layers;
    return geom_group_at(p, g).n_kv_heads;
}

/* Packed pages of all ranks with those bytes; padding and what is behind the columns is noise. */
static uint8_t *paint_packed(const struct geom_pool_spec *p, uint32_t columns) {
    uint64_t packed = geom_packed_bytes(p);
    uint8_t *page = malloc(packed * p->n_ranks);
    memset(page, 0xa5, packed * p->n_ranks);
    for (uint32_t rank = 0; rank < p->n_ranks; rank++)
        for (uint32_t i = 0; i < geom_plane_count(p); i++) {
            struct geom_plane q;
            geom_plane_at(p, 1, rank, i, &q);
            uint32_t all = heads_of(p, q.layer), first = all < p->n_ranks ? rank * all / p->n_ranks : rank * q.n_heads;
            for (uint32_t h = 0; h < q.n_heads; h++)
                for (uint64_t k = 0; k < columns * q.nb1; k++)
                    page[rank * packed + q.packed_offset + h * q.head_bytes + k] = painted(i, first + h, k);
        }
    return page;
}

/* Plane after plane, head after head, without padding. */
static void check_shard(const struct geom_pool_spec *p, uint32_t shard, uint32_t columns, const uint8_t *at) {
    uint64_t wrong = 0, n = 0;
    for (uint32_t i = 0; i < geom_plane_count(p); i++) {
        struct geom_plane q;
        geom_plane_at(p, 1, 0, i, &q);
        uint32_t heads = heads_of(p, q.layer) / geom_shard_count(p);
        for (uint32_t h = shard * heads; h < (shard + 1) * heads; h++)
            for (uint64_t k = 0; k < q.head_bytes; k++)
                wrong += at[n++] != (k < columns * q.nb1 ? painted(i, h, k) : 0);
    }
    KVT_EQ(wrong, 0);
    KVT_EQ(n, geom_shard_bytes(p));
}

/* COLD-3: into an empty page, the shards make the page again, whichever rank holds a head; padding stays as it was. */
static void check_scattered(const struct geom_pool_spec *p, uint32_t columns, const uint8_t *packed) {
    uint64_t bytes = geom_packed_bytes(p) * p->n_ranks, wrong = 0;
    uint8_t *page = malloc(bytes), *want = malloc(bytes), *shard = malloc(geom_shard_bytes(p));
    memset(page, 0, bytes);
    memset(want, 0, bytes);
    for (uint32_t s = 0; s < geom_shard_count(p); s++) {
        geom_shard_gather(p, s, columns, packed, shard);
        geom_shard_scatter(p, s, shard, page);
    }
    for (uint32_t rank = 0; rank < p->n_ranks; rank++)
        for (uint32_t i = 0; i < geom_plane_count(p); i++) {
            struct geom_plane q;
            geom_plane_at(p, 1, rank, i, &q);
            uint64_t at = rank * geom_packed_bytes(p) + q.packed_offset;
            for (uint32_t h = 0; h < q.n_heads; h++)
                memcpy(want + at + h * q.head_bytes, packed + at + h * q.head_bytes, columns * q.nb1);
        }
    for (uint64_t k = 0; k < bytes; k++) wrong += page[k] != want[k];
    KVT_EQ(wrong, 0);
    free(page);
    free(want);
    free(shard);
}

/* COLD-1: the same shards come out of the packed pages of every number of ranks, and nothing of what is behind the
 * columns. */
static void cold_1_shards_are_free_of_ranks(void) {
    static const struct {
        uint32_t heads, shard;
    } all[] = { { 1, 1 }, { 2, 1 }, { 4, 1 }, { 5, 1 }, { 8, 1 }, { 11, 11 }, { 16, 2 }, { 24, 1 }, { 48, 2 } };
    uint32_t compared = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (uint32_t ranks = 1; ranks <= GEOM_MAX_RANKS; ranks++) {
            struct geom_pool_spec p =
                i % 2 ? pool(KVD_STORAGE_K8V4, 2, all[i].heads, 256) : pool(KVD_STORAGE_BF16, 3, all[i].heads, 5);
            p.n_ranks = ranks;
            KVT_EQ(geom_shard_heads(&p), all[i].shard);
            if (all[i].heads % ranks && ranks % all[i].heads) continue;
            uint32_t columns = ranks == 2 ? 64 : 7;
            uint8_t *packed = paint_packed(&p, columns), *shard = malloc(geom_shard_bytes(&p));
            for (uint32_t s = 0; s < all[i].heads / all[i].shard; s++, compared++) {
                geom_shard_gather(&p, s, columns, packed, shard);
                check_shard(&p, s, columns, shard);
            }
            check_scattered(&p, columns, packed);
            free(packed);
            free(shard);
        }
    KVT_TRUE(compared > 100);
}

/* COLD-1, GRP-1, GRP-7: so do shards of groups, and of heads that several ranks hold. */
static void cold_1_shards_of_groups(void) {
    struct geom_pool_spec p = { .n_layers = 5, .n_groups = 2 };
    p.group[0] = (struct geom_group){ .n_layers = 2, .n_kv_heads = 8, .head_dim = 6, .v_head_dim = 3 };
    p.group[1] = (struct geom_group){ .format = KVD_FORMAT_PACKED, .n_layers = 3, .n_kv_heads = 4, .row_bytes = 7 };
    for (uint32_t latent = 0; latent < 2; latent++) {
        if (latent)
            p.group[1] = (struct geom_group){ KVD_FORMAT_LATENT, .n_layers = 3, .n_kv_heads = 1, .row_bytes = 7 };
        for (p.n_ranks = 1; p.n_ranks <= 8; p.n_ranks *= 2) {
            KVT_EQ(geom_shard_count(&p), latent ? 1 : 4);
            uint8_t *packed = paint_packed(&p, 7), *shard = malloc(geom_shard_bytes(&p));
            for (uint32_t s = 0; s < geom_shard_count(&p); s++) {
                geom_shard_gather(&p, s, 7, packed, shard);
                check_shard(&p, s, 7, shard);
            }
            check_scattered(&p, 7, packed);
            free(packed);
            free(shard);
        }
    }
}

/* COLD-1: the identity of shards is layers, heads, head_dim and profile of all pools. */
static void cold_1_identity_of_shards(void) {
    struct geom_store_spec base = { .backend = GEOM_MTP,
                                    .main = pool(KVD_STORAGE_FP8, 4, 4, 256),
                                    .draft = pool(KVD_STORAGE_FP8, 1, 4, 256),
                                    .max_context = 4096 };
    uint8_t digests[8][32], same[32];
    uint32_t n = 0;
    geom_shard_digest(&base, 2, digests[n++]);
    geom_shard_digest(&base, 1, digests[n++]);
#define SHARDS(change, into)                                                                                           \
    do {                                                                                                               \
        struct geom_store_spec s = base;                                                                               \
        change;                                                                                                        \
        geom_shard_digest(&s, 2, into);                                                                                \
    } while (0)
    SHARDS(s.main.n_layers = 5, digests[n++]);
    SHARDS(s.draft.n_layers = 2, digests[n++]);
    SHARDS(s.main.n_kv_heads = 8, digests[n++]);
    SHARDS(s.main.storage = KVD_STORAGE_INT8, digests[n++]);
    SHARDS((s.main = pool(KVD_STORAGE_BF16, 4, 4, 128)), digests[n++]);
    SHARDS((s.main = pool(KVD_STORAGE_BF16, 4, 4, 256)), digests[n++]);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < i; j++) KVT_TRUE(memcmp(digests[i], digests[j], 32) != 0);
    SHARDS(s.main.n_ranks = s.draft.n_ranks = 4; s.main.order = GEOM_HEAD_MAJOR; s.main.arrangement = GEOM_RECORD;
           s.max_context = 64; s.state_bytes = 100, same);
    KVT_EQ_MEM(same, digests[0], 32);
}

static void view_1_strides_of_planes(void) {
    uint64_t seed = kvt_seed();
    char err[256], region[16];
    for (int round = 0; round < 200; round++) {
        struct geom_pool_spec p = random_pool(&seed);
        uint32_t pages = 1 + kvt_below(&seed, 9), layer = kvt_below(&seed, p.n_layers);
        PagedKVBatchLayerView view;
        KVT_OK(geom_layer_view(&p, pages, 0, layer, region, &view, err, sizeof err));
        const kvd_plane_view *planes[4] = { &view.k, &view.v, &view.k_scale, &view.v_scale };
        for (uint32_t slot = 0; slot < 4; slot++) {
            struct geom_plane q;
            if (geom_plane(&p, pages, 0, layer, (enum geom_slot)slot, &q, NULL, 0)) {
                KVT_TRUE(planes[slot]->base == NULL && planes[slot]->dtype == KVD_DTYPE_NONE);
                continue;
            }
            KVT_EQ((char *)planes[slot]->base - region, q.offset);
            KVT_EQ(planes[slot]->stride_token, q.nb1);
            KVT_EQ(planes[slot]->stride_head, q.order == GEOM_PAGE_MAJOR ? q.nb2 : q.nb3);
            KVT_EQ(planes[slot]->stride_page, q.order == GEOM_PAGE_MAJOR ? q.nb3 : q.nb2);
            KVT_EQ(planes[slot]->extent, q.extent);
            KVT_EQ(view.n_kv_heads, q.n_heads);
            KVT_EQ(view.format, q.format);
        }
        KVT_TRUE(view.block_tables == NULL);
        KVT_EQ(view.n_pages, pages);
        KVT_EQ(view.head_dim == 0, view.format != KVD_FORMAT_KV);
        KVT_EQ_I(geom_layer_view(&p, pages, p.n_ranks, layer, region, &view, err, sizeof err), GEOM_E_RANGE);
        KVT_EQ_I(geom_layer_view(&p, pages, 0, layer, NULL, &view, err, sizeof err), GEOM_E_RANGE);
    }
}

static void pool_2_ranks_share_ids(void) {
    struct geom_pool_spec p = pool(KVD_STORAGE_INT8, 2, 8, 256), alone = pool(KVD_STORAGE_INT8, 2, 2, 256);
    p.n_ranks = 4;
    KVT_EQ(geom_region_bytes(&p, 9), geom_region_bytes(&alone, 9));
    for (uint32_t rank = 0; rank < 4; rank++) {
        struct geom_plane a, b;
        KVT_OK(geom_plane(&p, 9, rank, 1, GEOM_V, &a, NULL, 0));
        KVT_OK(geom_plane(&alone, 9, 0, 1, GEOM_V, &b, NULL, 0));
        KVT_EQ(a.rank, rank);
        KVT_TRUE(a.offset == b.offset && a.nb3 == b.nb3 && a.ordinal == b.ordinal &&
                 a.packed_offset == b.packed_offset);
    }
}

static void bad_specs_refused(void) {
    char err[256];
    struct geom_plane plane = { .offset = 12345 };
    struct geom_pool_spec ok = pool(KVD_STORAGE_BF16, 2, 4, 80), p;
#define REFUSED(field, value, code)                                                                                    \
    (p = ok, p.field = value, KVT_EQ_I(geom_pool_check(&p, err, sizeof err), code), KVT_EQ(geom_plane_count(&p), 0),   \
     KVT_EQ_I(geom_plane(&p, 4, 0, 0, GEOM_K, &plane, err, sizeof err), code), KVT_EQ(plane.offset, 12345))
    REFUSED(n_layers, 0, GEOM_E_RANGE);
    REFUSED(n_layers, 1u << 30, GEOM_E_RANGE);
    REFUSED(n_kv_heads, 0, GEOM_E_RANGE);
    REFUSED(n_ranks, 0, GEOM_E_RANGE);
    REFUSED(n_ranks, 9, GEOM_E_RANGE);
    REFUSED(n_ranks, 3, GEOM_E_UNSUPPORTED);
    REFUSED(n_groups, 9, GEOM_E_RANGE);
    REFUSED(n_groups, 1, GEOM_E_UNSUPPORTED); /* an empty group */
    REFUSED(head_dim, 0, GEOM_E_UNSUPPORTED);
    REFUSED(head_dim, UINT32_MAX, GEOM_E_UNSUPPORTED);
    REFUSED(order, (enum geom_order)2, GEOM_E_UNSUPPORTED);
    REFUSED(arrangement, (enum geom_arrangement)2, GEOM_E_UNSUPPORTED);
    REFUSED(storage, KVD_STORAGE_INT8, GEOM_E_UNSUPPORTED);
    p = ok;
    KVT_EQ_I(geom_plane(&p, 0, 0, 0, GEOM_K, &plane, err, sizeof err), GEOM_E_RANGE);
    KVT_EQ_I(geom_plane(&p, 1u << 31, 0, 0, GEOM_K, &plane, err, sizeof err), GEOM_E_RANGE);
    KVT_EQ_I(geom_plane(&p, 4, 0, 2, GEOM_K, &plane, err, sizeof err), GEOM_E_RANGE);
    KVT_EQ_I(geom_plane(&p, 4, 0, 0, (enum geom_slot)4, &plane, NULL, 0), GEOM_E_RANGE);
    /* The widest spec overflows 64 bits at many pages, and says so instead of wrapping. */
    p = (struct geom_pool_spec){ .n_layers = 1u << 16, .n_kv_heads = 1u << 16, .head_dim = 1u << 16, .n_ranks = 1 };
    KVT_OK(geom_pool_check(&p, err, sizeof err));
    KVT_EQ(geom_region_bytes(&p, 1000000), UINT64_MAX);
    KVT_EQ_I(geom_plane(&p, 1000000, 0, 0, GEOM_K, &plane, err, sizeof err), GEOM_E_RANGE);
    char tiny[4];
    KVT_EQ_I(geom_pool_check(&(struct geom_pool_spec){ 0 }, tiny, sizeof tiny), GEOM_E_UNSUPPORTED);
    KVT_EQ(strlen(tiny), 3);
}

/* GRP-1: a page is the sum of its groups, and bytes of opaque rows are counted as they are. */
static void grp_1_page_is_the_sum_of_its_groups(void) {
    struct geom_pool_spec p = { .arrangement = GEOM_RECORD, .n_ranks = 1, .n_layers = 10, .n_groups = 4 };
    p.group[0] = (struct geom_group){ .n_layers = 2, .n_kv_heads = 2, .head_dim = 64, .v_head_dim = 32 };
    p.group[1] = (struct geom_group){
        .format = KVD_FORMAT_LATENT, .n_layers = 3, .n_kv_heads = 1, .row_bytes = 656 /* no multiple of 256 */
    };
    p.group[2] = (struct geom_group){ .format = KVD_FORMAT_PACKED, .n_layers = 4, .n_kv_heads = 2, .row_bytes = 512 };
    p.group[3] = (struct geom_group){ .storage = KVD_STORAGE_NVFP4, .n_layers = 1, .n_kv_heads = 1, .head_dim = 256 };
    KVT_EQ(geom_page_bytes(&p), 64u * (2 * 2 * 192 + 3 * 656 + 4 * 2 * 512 + 288));
    KVT_EQ(geom_plane_count(&p), 2 * 2 + 3 + 4 + 4);
    struct geom_plane plane;
    KVT_OK(geom_plane(&p, 7, 0, 3, GEOM_K, &plane, NULL, 0)); /* the second latent layer */
    KVT_EQ(plane.format, KVD_FORMAT_LATENT);
    KVT_EQ(plane.extent, 656);
    KVT_EQ(plane.nb1, 656);
    KVT_EQ(plane.ordinal, 5);
    KVT_EQ_I(geom_plane(&p, 7, 0, 3, GEOM_V, &plane, NULL, 0), GEOM_E_RANGE);
    KVT_OK(geom_plane(&p, 7, 0, 1, GEOM_V, &plane, NULL, 0));
    KVT_EQ(plane.extent, 32);
    KVT_EQ_I(geom_plane(&p, 7, 0, 10, GEOM_K, &plane, NULL, 0), GEOM_E_RANGE);
    char err[256];
    p.n_layers = 11;
    KVT_EQ_I(geom_pool_check(&p, err, sizeof err), GEOM_E_RANGE);
    KVT_HAS(err, "have 10");
    p.n_layers = 10;
    p.group[1].n_kv_heads = 2;
    KVT_EQ_I(geom_pool_check(&p, err, sizeof err), GEOM_E_UNSUPPORTED);
    KVT_HAS(err, "layer group 1: a latent of 2 heads");
    p.group[1].n_kv_heads = 1;
    p.group[2].row_bytes = 0;
    KVT_EQ_I(geom_pool_check(&p, err, sizeof err), GEOM_E_RANGE);
    KVT_HAS(err, "layer group 2: packed rows of 0 bytes");
    p.group[2].format = (enum kvd_format)3;
    KVT_EQ_I(geom_pool_check(&p, err, sizeof err), GEOM_E_UNSUPPORTED);
}

/* A group's pieces have one pitch from layer to layer, which a 2-D copy needs. */
static void grp_1_shapes_describe_pieces(void) {
    uint64_t seed = kvt_seed();
    for (int round = 0; round < 100; round++) {
        struct geom_pool_spec p = random_pool(&seed);
        struct geom_group_shape s;
        uint32_t layers = 0, pieces = 0;
        uint64_t bytes = 0;
        for (uint32_t g = 0; g < geom_group_count(&p); g++) {
            geom_group_shape(&p, g, &s);
            KVT_EQ(s.layer, layers);
            KVT_EQ(s.piece, pieces);
            layers += s.layers;
            pieces += s.pieces;
            bytes += s.rank_page_bytes;
            uint32_t each = s.pieces / s.layers;
            for (uint32_t i = 2 * each; i < s.pieces; i++) {
                struct geom_piece a, b, c;
                geom_piece(&p, 5, 0, 3, s.piece + i - 2 * each, &a);
                geom_piece(&p, 5, 0, 3, s.piece + i - each, &b);
                geom_piece(&p, 5, 0, 3, s.piece + i, &c);
                KVT_TRUE(b.region_offset - a.region_offset == c.region_offset - b.region_offset &&
                         b.packed_offset - a.packed_offset == c.packed_offset - b.packed_offset && a.bytes == c.bytes);
            }
        }
        KVT_EQ(layers, p.n_layers);
        KVT_EQ(pieces, geom_piece_count(&p));
        KVT_EQ(bytes, geom_rank_page_bytes(&p));
    }
}

/* GRP-7: 4 heads on 8 ranks: each holds one, and the page costs what all of them hold. */
static void grp_7_heads_are_replicated(void) {
    struct geom_pool_spec p = pool(KVD_STORAGE_BF16, 2, 4, 128), one = pool(KVD_STORAGE_BF16, 2, 1, 128);
    p.n_ranks = 8;
    KVT_EQ(geom_rank_page_bytes(&p), geom_page_bytes(&one));
    KVT_EQ(geom_page_bytes(&p), 8 * geom_page_bytes(&one));
    KVT_EQ(geom_region_bytes(&p, 9), geom_region_bytes(&one, 9));
    struct geom_plane plane;
    for (uint32_t rank = 0; rank < 8; rank++) {
        KVT_OK(geom_plane(&p, 9, rank, 1, GEOM_V, &plane, NULL, 0));
        KVT_EQ(plane.n_heads, 1);
    }
    p.n_kv_heads = 3;
    KVT_EQ_I(geom_pool_check(&p, NULL, 0), GEOM_E_UNSUPPORTED);
}

static void hex_of(const uint8_t digest[32], char text[65]) {
    for (int i = 0; i < 32; i++) snprintf(text + 2 * i, 3, "%02x", digest[i]);
}

/* KEEP-1: what was written before there were groups is found again: these digests must never change. */
static void keep_1_digests_of_one_shape_stay(void) {
    struct geom_store_spec s = {
        .backend = GEOM_MTP, .max_context = 8192, .max_concurrency = 8, .draft_window = 4, .state_bytes = 1000
    };
    const struct geom_layout layout = { .n_pools = 2, .pages = { 100, 108 } };
    uint8_t digest[32];
    char text[65];
    s.main = pool(KVD_STORAGE_K8V4, 16, 4, 256);
    s.main.arrangement = GEOM_RECORD;
    s.main.n_ranks = 2;
    s.draft = s.main;
    s.draft.n_layers = 1;
    geom_digest(&s, &layout, digest);
    hex_of(digest, text);
    KVT_EQ_STR(text, "f38e865b75405c8b04bd8c3a410c28352a3638cc7d8de2337df69a7331482e05");
    geom_packed_digest(&s, 2, digest);
    hex_of(digest, text);
    KVT_EQ_STR(text, "732d66c68aac42595947b043b6be902663fd920646412ea9606aa965adb57b9f");
}

/* SRV-4, KEEP-1, GRP-1: each number of a group moves the digests; order and arrangement that of places only. */
static void srv_4_groups_move_the_digest(void) {
    struct geom_store_spec base = { .max_context = 4096, .max_concurrency = 4 };
    const struct geom_layout layout = { .n_pools = 1, .pages = { 100 } };
    uint8_t placed[16][32], packed[16][32];
    uint32_t n = 0;
    base.main = (struct geom_pool_spec){ .arrangement = GEOM_RECORD, .n_ranks = 2, .n_layers = 5, .n_groups = 2 };
    base.main.group[0] = (struct geom_group){ .n_layers = 2, .n_kv_heads = 2, .head_dim = 64, .v_head_dim = 64 };
    base.main.group[1] =
        (struct geom_group){ .format = KVD_FORMAT_PACKED, .n_layers = 3, .n_kv_heads = 2, .row_bytes = 64 };
#define GROUPED(change)                                                                                                \
    do {                                                                                                               \
        struct geom_store_spec s = base;                                                                               \
        change;                                                                                                        \
        geom_digest(&s, &layout, placed[n]);                                                                           \
        geom_packed_digest(&s, 1, packed[n++]);                                                                        \
    } while (0)
    GROUPED((void)s);
    GROUPED(s.main.group[0].order = GEOM_HEAD_MAJOR);
    GROUPED(s.main.arrangement = GEOM_DENSE);
    GROUPED((s.main.group[0].n_layers = 3, s.main.group[1].n_layers = 2));
    GROUPED(s.main.group[0].head_dim = 32);
    GROUPED(s.main.group[0].v_head_dim = 32);
    GROUPED(s.main.group[0].n_kv_heads = 4);
    GROUPED((s.main.group[1].format = KVD_FORMAT_LATENT, s.main.group[1].n_kv_heads = 1));
    GROUPED(s.main.group[1].row_bytes = 65);
    GROUPED(s.main.n_ranks = 1);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < i; j++) {
            KVT_TRUE(memcmp(placed[i], placed[j], 32) != 0);
            KVT_EQ(memcmp(packed[i], packed[j], 32) == 0, i <= 2);
        }
    struct geom_store_spec named = base;
    named.main.group[0].v_head_dim = 0; /* as K's: the same bytes */
    geom_digest(&named, &layout, placed[1]);
    KVT_EQ_MEM(placed[1], placed[0], 32);
}

/* SRV-4, KEEP-1, GRP-2: a window moves the digests, its lead that of places only, and its share none. */
static void srv_4_windows_move_the_digest(void) {
    struct geom_store_spec base = { .max_context = 4096, .max_concurrency = 4, .n_more = 1 };
    const struct geom_layout layout = { .n_pools = 2, .pages = { 100, 50 } };
    uint8_t placed[8][32], packed[8][32];
    uint32_t n = 0;
    base.main = base.more[0] = pool(KVD_STORAGE_BF16, 2, 2, 64);
    base.more[0].window = (struct geom_window){ .tokens = 128, .least = 4, .share = 100 };
#define WINDOW(change)                                                                                                 \
    do {                                                                                                               \
        struct geom_store_spec s = base;                                                                               \
        change;                                                                                                        \
        geom_digest(&s, &layout, placed[n]);                                                                           \
        geom_packed_digest(&s, 2, packed[n++]);                                                                        \
    } while (0)
    WINDOW((void)s);
    WINDOW(s.more[0].window.share = 101);
    WINDOW(s.more[0].window.lead = 8);
    WINDOW(s.more[0].window.tokens = 129);
    WINDOW(s.more[0].window.aligned = true);
    WINDOW(s.more[0].window.tokens = 0);
    WINDOW(s.more[0].n_layers = 3);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < i; j++) {
            KVT_EQ(memcmp(placed[i], placed[j], 32) == 0, i <= 1);
            KVT_EQ(memcmp(packed[i], packed[j], 32) == 0, i <= 2);
        }
}

/* SRV-4: the digest moves with everything that moves a byte, and with nothing else. */
static void digest_covers_geometry(void) {
    struct geom_store_spec base = { .backend = GEOM_MTP,
                                    .main = pool(KVD_STORAGE_FP8, 4, 4, 256),
                                    .draft = pool(KVD_STORAGE_FP8, 1, 4, 256),
                                    .max_context = 4096,
                                    .max_concurrency = 4,
                                    .draft_window = 3 };
    struct geom_layout layout;
    uint8_t digests[16][32];
    int n = 0;
    KVT_OK(geom_layout(&base, 100, &layout, NULL, 0));
    geom_digest(&base, &layout, digests[n++]);
    KVT_OK(geom_layout(&base, 101, &layout, NULL, 0));
    geom_digest(&base, &layout, digests[n++]);
#define VARIANT(change)                                                                                                \
    do {                                                                                                               \
        struct geom_store_spec s = base;                                                                               \
        change;                                                                                                        \
        KVT_OK(geom_layout(&s, 100, &layout, NULL, 0));                                                                \
        geom_digest(&s, &layout, digests[n++]);                                                                        \
    } while (0)
    VARIANT(s.main.arrangement = GEOM_RECORD);
    VARIANT(s.draft.arrangement = GEOM_RECORD);
    VARIANT(s.main.n_layers = 5);
    VARIANT(s.main.n_kv_heads = 8);
    VARIANT((s.main.n_ranks = 2, s.draft.n_ranks = 2));
    VARIANT((s.main.storage = KVD_STORAGE_INT8, s.draft.storage = KVD_STORAGE_INT8));
    VARIANT(s.backend = GEOM_OFF);
    VARIANT(s.max_context = 4095);
    VARIANT(s.max_concurrency = 3);
    VARIANT((s.state_bytes = 100, s.state_slots = 4));
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) KVT_TRUE(memcmp(digests[i], digests[j], 32) != 0);
    n = 0;
    VARIANT(s.workspace_bytes = 1 << 20);
    VARIANT((s.persistent_bytes = 5, s.graph_bytes = 7));
    VARIANT((void)s);
    KVT_EQ_MEM(digests[0], digests[2], 32);
    KVT_EQ_MEM(digests[1], digests[2], 32);
}

/* SRV-4: each number moves the digest by itself, also where the pages are as many as before. */
static void srv_4_each_number_moves_the_digest(void) {
    struct geom_store_spec base = { .backend = GEOM_MTP,
                                    .main = pool(KVD_STORAGE_FP8, 4, 4, 256),
                                    .draft = pool(KVD_STORAGE_FP8, 1, 4, 256),
                                    .max_context = 4096,
                                    .max_concurrency = 4,
                                    .draft_window = 3 };
    struct geom_layout layout;
    uint8_t digests[8][32];
    uint32_t n = 0;
    KVT_OK(geom_layout(&base, 100, &layout, NULL, 0));
#define ALONE(change)                                                                                                  \
    do {                                                                                                               \
        struct geom_store_spec s = base;                                                                               \
        change;                                                                                                        \
        geom_digest(&s, &layout, digests[n++]);                                                                        \
    } while (0)
    ALONE((void)s);
    ALONE(s.max_context = 4095);
    ALONE(s.max_concurrency = 3);
    ALONE(s.draft_window = 4);
    ALONE(s.state_bytes = 100);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < i; j++) KVT_TRUE(memcmp(digests[i], digests[j], 32) != 0);
}

/* KEEP-1: the identity of packed pages is the geometry of a page (and of a state image), and nothing else: no limit, no
 * size, no order or arrangement on the device moves it. */
static void keep_1_packed_identity_is_the_pages_geometry(void) {
    struct geom_store_spec base = { .backend = GEOM_MTP,
                                    .main = pool(KVD_STORAGE_FP8, 4, 4, 256),
                                    .draft = pool(KVD_STORAGE_FP8, 1, 4, 256),
                                    .max_context = 4096,
                                    .max_concurrency = 4,
                                    .draft_window = 3 };
    uint8_t digests[16][32], same[32];
    uint32_t n = 0;
    geom_packed_digest(&base, 2, digests[n++]);
    geom_packed_digest(&base, 1, digests[n++]);
#define PACKED(change, into)                                                                                           \
    do {                                                                                                               \
        struct geom_store_spec s = base;                                                                               \
        change;                                                                                                        \
        geom_packed_digest(&s, 2, into);                                                                               \
    } while (0)
    PACKED(s.main.n_layers = 5, digests[n++]);
    PACKED(s.draft.n_layers = 2, digests[n++]);
    PACKED(s.main.n_kv_heads = 8, digests[n++]);
    PACKED(s.main.n_ranks = 2, digests[n++]);
    PACKED(s.main.storage = KVD_STORAGE_INT8, digests[n++]);
    PACKED((s.main = pool(KVD_STORAGE_BF16, 4, 4, 128)), digests[n++]);
    PACKED((s.main = pool(KVD_STORAGE_BF16, 4, 4, 256)), digests[n++]);
    PACKED(s.state_bytes = 100, digests[n++]);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < i; j++) KVT_TRUE(memcmp(digests[i], digests[j], 32) != 0);
#define UNMOVED(change)                                                                                                \
    do {                                                                                                               \
        PACKED(change, same);                                                                                          \
        KVT_EQ_MEM(same, digests[0], 32);                                                                              \
    } while (0)
    UNMOVED((void)s);
    UNMOVED(s.max_context = 4095);
    UNMOVED(s.max_concurrency = 3);
    UNMOVED(s.draft_window = 4);
    UNMOVED(s.state_slots = 4);
    UNMOVED(s.workspace_bytes = 1 << 20);
    UNMOVED(s.main.arrangement = GEOM_RECORD);
    UNMOVED(s.main.order = GEOM_HEAD_MAJOR);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = {
        KVT_CASE(geom_1_closed_profiles),
        KVT_CASE(geom_2_token_bytes),
        KVT_CASE(geom_3_plane_extents),
        KVT_CASE(geom_4_5_dense_strides),
        KVT_CASE(record_page_is_one_2d_copy),
        KVT_CASE(pool_4_geom_6_planes_disjoint),
        KVT_CASE(host_2_packed_is_order_free),
        KVT_CASE(cold_1_shards_are_free_of_ranks),
        KVT_CASE(cold_1_shards_of_groups),
        KVT_CASE(cold_1_identity_of_shards),
        KVT_CASE(view_1_strides_of_planes),
        KVT_CASE(pool_2_ranks_share_ids),
        KVT_CASE(bad_specs_refused),
        KVT_CASE(grp_1_page_is_the_sum_of_its_groups),
        KVT_CASE(grp_1_shapes_describe_pieces),
        KVT_CASE(grp_7_heads_are_replicated),
        KVT_CASE(keep_1_digests_of_one_shape_stay),
        KVT_CASE(srv_4_groups_move_the_digest),
        KVT_CASE(srv_4_windows_move_the_digest),
        KVT_CASE(digest_covers_geometry),
        KVT_CASE(srv_4_each_number_moves_the_digest),
        KVT_CASE(keep_1_packed_identity_is_the_pages_geometry),
        { 0 },
    };
    return kvt_main("geometry", cases, argc, argv);
}
