/* SPDX-License-Identifier: Apache-2.0
 *
 * Append: every byte of every addressed row, and nothing else (VIEW-3, VIEW-4, GEOM-4..6).
 */
#include <math.h>
#include <stdlib.h>

#include "ops_fixture.h"

static char err[256];

/* Where a row of a slot lies, by the plane inventory and not by the view. */
static uint8_t *row_at(const struct fix *fix, enum geom_slot slot, int32_t page, uint32_t head, uint32_t offset,
                       uint64_t *ret_bytes) {
    struct geom_plane p;
    if (geom_plane(&fix->spec, fix->view.n_pages, 0, 1, slot, &p, NULL, 0)) return NULL;
    uint64_t at = p.offset + offset * p.nb1;
    if (fix->spec.order == GEOM_PAGE_MAJOR) at += head * p.nb2 + (uint64_t)page * p.nb3;
    else at += (uint64_t)page * p.nb2 + head * p.nb3;
    *ret_bytes = p.nb1;
    return fix->region + at;
}

static void encode(const struct fix *fix, enum geom_slot slot, const uint16_t *x, uint8_t *codes, uint8_t *scales) {
    uint32_t dtype = slot == GEOM_K ? fix->view.k.dtype : fix->view.v.dtype;
    uint16_t halves[4] = { 0 };
    if (dtype == KVD_DTYPE_BF16) ops_encode_bf16(x, fix->spec.head_dim, (uint16_t *)(void *)codes);
    else if (dtype == KVD_DTYPE_I8) ops_encode_int8(x, fix->spec.head_dim, (int8_t *)codes, halves);
    else if (fix->k_scale > 0)
        ops_encode_fp8_tensor(x, fix->spec.head_dim, slot == GEOM_K ? fix->k_scale : fix->v_scale, codes);
    else if (dtype == KVD_DTYPE_E4M3) ops_encode_fp8(x, fix->spec.head_dim, codes, halves);
    else ops_encode_nvfp4(x, fix->spec.head_dim, codes, scales);
    if (dtype == KVD_DTYPE_I8 || dtype == KVD_DTYPE_E4M3) memcpy(scales, halves, sizeof halves);
}

/* Writes the expected bytes of one column into the image of the region. */
static void expect_column(const struct fix *fix, uint8_t *image, int32_t page, uint32_t offset, const uint16_t *k,
                          const uint16_t *v) {
    for (uint32_t h = 0; h < fix->spec.n_kv_heads; h++)
        for (unsigned half = 0; half < 2; half++) {
            _Alignas(16) uint8_t codes[2048], scales[16];
            uint64_t bytes;
            encode(fix, (enum geom_slot)half, (half ? v : k) + (size_t)h * fix->spec.head_dim, codes, scales);
            uint8_t *at = row_at(fix, (enum geom_slot)half, page, h, offset, &bytes);
            memcpy(image + (at - fix->region), codes, bytes);
            at = row_at(fix, (enum geom_slot)(half + 2), page, h, offset, &bytes);
            if (at) memcpy(image + (at - fix->region), scales, bytes);
        }
}

/* One batch of ragged rows at given starts, checked against an image of the whole region. */
static void run_batch(struct fix *fix, uint32_t w, uint32_t b, const int32_t *starts, const int32_t *valid,
                      const int32_t *rows, uint64_t *seed) {
    size_t column = (size_t)fix->spec.head_dim * fix->spec.n_kv_heads, n = column * w * b;
    uint16_t *k = malloc(n * 2), *v = malloc(n * 2);
    int32_t *positions = malloc(w * b * sizeof *positions);
    uint8_t *image = malloc(fix->bytes);
    memcpy(image, fix->region, fix->bytes);
    fix_random(k, n, 2.0f, seed);
    fix_random(v, n, 2.0f, seed);
    for (uint32_t i = 0; i < b; i++)
        for (uint32_t c = 0; c < w; c++) {
            uint32_t p = (uint32_t)starts[i] + c;
            bool counts = !valid || c < (uint32_t)valid[i];
            positions[i * w + c] = counts ? (int32_t)p : -77; /* columns that do not count may hold anything */
            if (counts)
                expect_column(fix, image, fix->table[(uint32_t)rows[i] * fix->view.n_logical + p / 64], p % 64,
                              k + (i * w + c) * column, v + (i * w + c) * column);
        }
    struct kvd_ops_append op = {
        .view = fix->view, .k = k, .v = v, .positions = positions, .valid = valid, .table_rows = rows, .w = w, .b = b
    };
    op.k_scale = fix->k_scale, op.v_scale = fix->v_scale;
    if (!KVT_OK(kvd_ops_append_host(&op, err, sizeof err))) printf("  %s\n", err);
    KVT_EQ_MEM(fix->region, image, fix->bytes);
    KVT_TRUE(fix_guards_ok(fix));
    free(image);
    free(positions);
    free(k);
    free(v);
}

static const int32_t boundaries[] = { 0, 1, 31, 32, 63, 64, 65, 127, 128 };

/* GEOM-4, GEOM-5, GEOM-6, VIEW-4: all profiles, orders, arrangements, id orders, boundary positions. */
static void geom_6_append_writes_its_rows_only(void) {
    uint64_t seed = kvt_seed();
    for (unsigned storage = 0; storage < KVD_N_STORAGE; storage++)
        for (unsigned variant = 0; variant < 4; variant++)
            for (unsigned ids = 0; ids < 4; ids++) {
                struct fix fix;
                fix_open(&fix, fix_spec((enum kvd_storage)storage, 2, 256, variant), 4, 1, (enum fix_ids)ids, &seed);
                for (unsigned i = 0; i < sizeof boundaries / sizeof *boundaries; i++)
                    run_batch(&fix, 1 + (ids + i) % 3, 1, &boundaries[i], NULL, &(int32_t){ 0 }, &seed);
                fix_close(&fix);
            }
}

static void append_crosses_pages(void) {
    uint64_t seed = kvt_seed();
    for (unsigned storage = 0; storage < KVD_N_STORAGE; storage++) {
        struct fix fix;
        fix_open(&fix, fix_spec((enum kvd_storage)storage, 4, 256, storage), 4, 2, FIX_FRAGMENTED, &seed);
        run_batch(&fix, 129, 1, &(int32_t){ 63 }, NULL, &(int32_t){ 1 }, &seed);
        fix_close(&fix);
    }
}

/* GEOM-1, GEOM-3: each profile at each head_dim that it has. */
static void append_head_dims(void) {
    uint64_t seed = kvt_seed();
    static const uint32_t quantized[] = { 64, 96, 128, 192 };
    for (unsigned i = 0; i < 4 * (KVD_N_STORAGE - 1); i++) {
        struct fix fix;
        enum kvd_storage storage = (enum kvd_storage)(1 + i / 4);
        fix_open(&fix, fix_spec(storage, 1 + i % 3, quantized[i % 4], i / 4 & 3), 3, 1, FIX_SHUFFLED, &seed);
        run_batch(&fix, 70, 1, &(int32_t){ 60 }, NULL, &(int32_t){ 0 }, &seed);
        fix_close(&fix);
    }
    static const uint32_t dims[] = { 1, 2, 7, 64, 80, 128, 512 };
    for (unsigned i = 0; i < sizeof dims / sizeof *dims; i++)
        for (unsigned variant = 0; variant < 8; variant++) {
            struct fix fix;
            enum kvd_storage storage = variant & 4 ? KVD_STORAGE_FP8_TENSOR : KVD_STORAGE_BF16;
            fix_open(&fix, fix_spec(storage, 1 + i % 3, dims[i], variant & 3), 3, 1, FIX_SHUFFLED, &seed);
            run_batch(&fix, 70, 1, &(int32_t){ 60 }, NULL, &(int32_t){ 0 }, &seed);
            fix_close(&fix);
        }
}

/* VIEW-2, VIEW-6: ragged valid counts incl. 0, rows in any order; what is past valid is not written. */
static void view_2_ragged_batch(void) {
    uint64_t seed = kvt_seed();
    static const int32_t rows[8] = { 7, 0, 4, 2, 6, 1, 5, 3 };
    for (unsigned storage = 0; storage < KVD_N_STORAGE; storage++) {
        struct fix fix;
        fix_open(&fix, fix_spec((enum kvd_storage)storage, 2, 256, storage & 3), 4, 8, FIX_SHUFFLED, &seed);
        for (int round = 0; round < 4; round++) {
            int32_t starts[8], valid[8];
            for (int i = 0; i < 8; i++) {
                starts[i] = (int32_t)kvt_below(&seed, 240);
                valid[i] = (int32_t)kvt_below(&seed, 17);
            }
            valid[round] = 0;
            starts[round] = -5;
            run_batch(&fix, 16, 8, starts, valid, rows, &seed);
        }
        static const int32_t prefix_counts[5] = { 0, 1, 3, 7, 16 }, at[5] = { 0, 63, 60, 128, 240 };
        run_batch(&fix, 16, 5, at, prefix_counts, rows, &seed);
        fix_close(&fix);
    }
}

/* GEOM-9: one by one, in a batch, and as a chunk give the same bytes. */
static void append_is_the_same_in_any_cut(void) {
    for (unsigned storage = 0; storage < KVD_N_STORAGE; storage++) {
        struct fix a, b;
        uint64_t seed = 5;
        fix_open(&a, fix_spec((enum kvd_storage)storage, 2, 256, 2), 4, 1, FIX_IDENTITY, &seed);
        fix_open(&b, fix_spec((enum kvd_storage)storage, 2, 256, 2), 4, 1, FIX_IDENTITY, &seed);
        fix_append(&a, 0, 0, 150, 9, NULL, NULL);
        for (uint32_t p = 0; p < 150; p++) fix_append(&b, 0, p, p + 1, 9, NULL, NULL);
        KVT_EQ_MEM(a.region, b.region, a.bytes);
        fix_close(&a);
        fix_close(&b);
    }
}

static struct kvd_ops_append good_op(struct fix *fix, uint16_t *k, uint16_t *v, int32_t *positions,
                                     const int32_t *rows) {
    return (struct kvd_ops_append){
        .view = fix->view, .k = k, .v = v, .positions = positions, .table_rows = rows, .w = 2, .b = 2
    };
}

/* VIEW-3, INV-7: refused with a sentence, and nothing is written. */
static void view_3_bad_calls_refused(void) {
    uint64_t seed = kvt_seed();
    struct fix fix;
    fix_open(&fix, fix_spec(KVD_STORAGE_INT8, 2, 256, 0), 3, 3, FIX_OFFSET, &seed);
    uint16_t k[2048], v[2048];
    int32_t positions[4] = { 10, 11, 70, 71 }, rows[3] = { 0, 2, 1 }, valid[2] = { 2, 2 };
    fix_random(k, 2048, 1, &seed);
    fix_random(v, 2048, 1, &seed);
    uint8_t *image = malloc(fix.bytes);
    memcpy(image, fix.region, fix.bytes);
    struct kvd_ops_append op;
#define REFUSED(change, word)                                                                                          \
    do {                                                                                                               \
        op = good_op(&fix, k, v, positions, rows);                                                                     \
        change;                                                                                                        \
        err[0] = 0;                                                                                                    \
        KVT_EQ_I(kvd_ops_append_host(&op, err, sizeof err), KVD_OPS_INVALID);                                          \
        KVT_HAS(err, word);                                                                                            \
        KVT_EQ_MEM(fix.region, image, fix.bytes);                                                                      \
    } while (0)
    REFUSED(op.view.storage = 9, "storage");
    REFUSED(op.view.storage = KVD_STORAGE_FP8, "dtype");
    REFUSED(op.view.storage = KVD_STORAGE_BF16, "dtype");
    REFUSED(op.view.head_dim = 80, "head_dim");
    REFUSED(op.view.head_dim = 128, "plane k");
    REFUSED(op.view.v_head_dim = 128, "plane v");
    REFUSED(op.view.v_head_dim = 80, "head_dim");
    REFUSED(op.view.format = KVD_FORMAT_LATENT, "latent");
    REFUSED(op.view.format = 7, "unknown");
    REFUSED(op.view.k_scale.dtype = KVD_DTYPE_NONE, "k_scale");
    REFUSED(op.view.v_scale.extent = 1, "v_scale");
    REFUSED(op.view.v.stride_elem = 2, "plane v");
    REFUSED(op.view.v.stride_token = 512, "plane v");
    REFUSED(op.view.k.stride_head = 64 * 256 - 16, "overlap");
    REFUSED(op.view.k.stride_page = 64 * 256, "overlap");
    REFUSED(op.view.k.stride_page += 8, "multiples");
    REFUSED(op.view.k.base = NULL, "plane k");
    REFUSED(op.view.v.base = (char *)op.view.v.base + 8, "aligned");
    REFUSED(op.view.n_kv_heads = 4, "overlap");
    REFUSED(op.view.n_kv_heads = 0, "kv heads");
    REFUSED(op.view.n_pages = 0, "pages");
    REFUSED(op.view.n_pages = UINT32_MAX, "pages");
    REFUSED(op.view.block_tables = NULL, "block table");
    REFUSED(op.view.n_logical = 0, "entries");
    REFUSED(op.view.n_logical = 1u << 26, "entries");
    REFUSED(op.view.n_rows = 1, "rows");
    REFUSED(op.w = 0, "at least 1");
    REFUSED(op.b = 0, "at least 1");
    REFUSED(op.b = 4, "table rows");
    REFUSED(op.w = 17, "columns");
    REFUSED((op.b = 1, op.w = 193), "columns");
    REFUSED(op.k = NULL, "tensor k");
    REFUSED(op.v = op.view.v_scale.base, "overlaps");
    REFUSED(op.k = (uint16_t *)(void *)fix.table, "overlaps");
    REFUSED(op.v_scale = 1, "write 0");
    REFUSED(op.positions = NULL, "positions");
    REFUSED(op.table_rows = NULL, "table_rows");
    int32_t bad_positions[][4] = {
        { 10, 12, 70, 71 }, { -1, 0, 70, 71 }, { 10, 11, 191, 192 }, { INT32_MAX, INT32_MIN, 70, 71 }
    };
    for (int i = 0; i < 4; i++) REFUSED(op.positions = bad_positions[i], i == 0 || i == 3 ? "" : "ordinals");
    int32_t bad_rows[][2] = { { 0, 3 }, { -1, 1 }, { 1, 1 } };
    for (int i = 0; i < 3; i++) REFUSED(op.table_rows = bad_rows[i], i == 2 ? "" : "table row");
    int32_t bad_valid[][2] = { { 3, 0 }, { -1, 0 } };
    for (int i = 0; i < 2; i++) REFUSED(op.valid = bad_valid[i], "valid[0]");
    int32_t keep = fix.table[2 * 3 + 1];
    for (int32_t id = -1; id <= (int32_t)fix.view.n_pages; id += (int32_t)fix.view.n_pages + 1) {
        fix.table[2 * 3 + 1] = id;
        REFUSED((void)op, "map it");
    }
    fix.table[2 * 3 + 1] = fix.table[0]; /* two rows that would write one physical page */
    REFUSED((void)op, "one writer");
    valid[1] = 0; /* unless one of them writes nothing */
    op = good_op(&fix, k, v, positions, rows);
    op.valid = valid;
    KVT_OK(kvd_ops_append_host(&op, err, sizeof err));
    fix.table[2 * 3 + 1] = keep;
    KVT_EQ_I(kvd_ops_append_host(&(struct kvd_ops_append){ 0 }, NULL, 0), KVD_OPS_INVALID);
    free(image);
    fix_close(&fix);
}

/* VIEW-3: both scales of a layer, and none of another sign or size. */
static void view_3_scales_of_a_layer(void) {
    static const float bad[][2] = { { 0, 1 }, { 1, 0 }, { -1, 1 }, { 1, -1 }, { NAN, 1 }, { 1, INFINITY } };
    uint64_t seed = kvt_seed();
    struct fix fix;
    fix_open(&fix, fix_spec(KVD_STORAGE_FP8_TENSOR, 1, 40, 0), 1, 1, FIX_IDENTITY, &seed);
    uint16_t x[40] = { 0 };
    int32_t zero = 0;
    struct kvd_ops_append op = {
        .view = fix.view, .k = x, .v = x, .positions = &zero, .table_rows = &zero, .w = 1, .b = 1
    };
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        op.k_scale = bad[i][0], op.v_scale = bad[i][1];
        KVT_EQ_I(kvd_ops_append_host(&op, err, sizeof err), KVD_OPS_INVALID);
        KVT_HAS(err, "positive and finite");
    }
    KVT_EQ(fix.region[0], 0xFF); /* nothing is written */
    op.k_scale = op.v_scale = 1e-3f;
    KVT_OK(kvd_ops_append_host(&op, err, sizeof err));
    fix_close(&fix);
}

/* VIEW-3: where there is no kernel a GPU's call says so, and launches nothing. */
static void view_3_profiles_without_kernels(void) {
    for (unsigned storage = 0; storage < KVD_N_STORAGE; storage++) {
        PagedKVBatchLayerView view = { .storage = storage };
        int rc = ops_cuda_check(&view, err, sizeof err);
        KVT_EQ_I(rc, storage == KVD_STORAGE_FP8_TENSOR ? KVD_OPS_UNIMPLEMENTED : 0);
        if (rc) KVT_HAS(err, "fp8-tensor has no kernel on GPUs");
    }
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = {
        KVT_CASE(geom_6_append_writes_its_rows_only),
        KVT_CASE(append_crosses_pages),
        KVT_CASE(append_head_dims),
        KVT_CASE(view_2_ragged_batch),
        KVT_CASE(append_is_the_same_in_any_cut),
        KVT_CASE(view_3_bad_calls_refused),
        KVT_CASE(view_3_scales_of_a_layer),
        KVT_CASE(view_3_profiles_without_kernels),
        { 0 },
    };
    return kvt_main("ops_append", cases, argc, argv);
}
