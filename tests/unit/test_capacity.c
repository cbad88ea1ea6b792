/* SPDX-License-Identifier: Apache-2.0
 *
 * Capacity rules on the published worked values, and the curve against the layout builder for every M.
 */
#include "geometry.h"
#include "kvt.h"

static char err[512];

static struct geom_pool_spec pool(enum kvd_storage storage, uint32_t layers, uint32_t heads, uint32_t dim) {
    return (struct geom_pool_spec){
        .storage = storage, .n_layers = layers, .n_kv_heads = heads, .head_dim = dim, .n_ranks = 1
    };
}

static struct geom_store_spec store(uint32_t context, uint32_t concurrency) {
    return (struct geom_store_spec){ .main = pool(KVD_STORAGE_INT8, 2, 2, 256),
                                     .max_context = context,
                                     .max_concurrency = concurrency };
}

/* CAP-1, FIT-3: above there is nothing but the number of a page. */
static void cap_1_range(void) {
    static const uint32_t rows[][4] = {
        { 1, 1, 1, INT32_MAX },         { 64, 3, 3, INT32_MAX },  { 65, 3, 3, INT32_MAX },
        { 262144, 8, 4096, INT32_MAX }, { 128, 8, 8, INT32_MAX },
    };
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct geom_store_spec s = store(rows[i][0], rows[i][1]);
        struct geom_curve curve;
        KVT_OK(geom_curve(&s, &curve, err, sizeof err));
        KVT_EQ(curve.m_min, rows[i][2]);
        KVT_EQ(curve.m_max, rows[i][3]);
        KVT_EQ(curve.b_step == 0, curve.m_min == curve.m_max);
    }
    KVT_EQ(geom_pages(0), 0);
    KVT_EQ(geom_pages(1), 1);
    KVT_EQ(geom_pages(64), 1);
    KVT_EQ(geom_pages(65), 2);
    KVT_EQ(geom_pages(UINT64_MAX), UINT32_MAX);
}

/* FIT-3: more tokens than all sequences could hold at once are capacity for what is kept. */
static void fit_3_more_than_all_sequences_hold(void) {
    struct geom_store_spec s = store(4096, 2); /* 64 pages a sequence, 128 of both */
    struct geom_capacity c;
    KVT_OK(geom_capacity_explicit(&s, 1000 * 64, UINT64_MAX / 2, &c, err, sizeof err));
    KVT_EQ(c.pages, 1000);
    KVT_OK(geom_capacity_auto(&s, c.bytes, 0, &c, err, sizeof err));
    KVT_EQ(c.pages, 1000);
    s.backend = GEOM_MTP;
    s.draft = s.main;
    s.draft_window = 15;
    struct geom_curve curve;
    KVT_OK(geom_curve(&s, &curve, err, sizeof err));
    KVT_EQ(curve.m_max, INT32_MAX - 2); /* the draft pool's ids end there too: a page more for each sequence */
    KVT_EQ_I(geom_capacity_explicit(&s, (uint64_t)INT32_MAX * 64, UINT64_MAX / 2, &c, err, sizeof err),
             GEOM_E_CAPACITY);
    KVT_HAS(err, "64..2147483645 pages");
    s.max_concurrency = 1 << 25; /* a table of more entries than can be numbered */
    KVT_EQ_I(geom_curve(&s, &curve, err, sizeof err), GEOM_E_RANGE);
}

/* CAP-2, CAP-3 on the worked curve: Mmin 2, Mmax 6, Bmin 1000, Bstep 128. */
static const struct geom_curve worked = { .m_min = 2, .m_max = 6, .b_min = 1000, .b_step = 128 };

static void cap_3_automatic_worked(void) {
    uint32_t m = 99;
    KVT_OK(geom_resolve_auto(&worked, 1360, 50, &m, err, sizeof err));
    KVT_EQ(m, 4);
    KVT_OK(geom_resolve_auto(&worked, 10000, 50, &m, err, sizeof err));
    KVT_EQ(m, 6);
    KVT_OK(geom_resolve_auto(&worked, 1050, 50, &m, err, sizeof err));
    KVT_EQ(m, 2);
    KVT_OK(geom_resolve_auto(&worked, 1178, 50, &m, err, sizeof err));
    KVT_EQ(m, 3);
    KVT_OK(geom_resolve_auto(&worked, 1177, 50, &m, err, sizeof err));
    KVT_EQ(m, 2);
    m = 99;
    KVT_EQ_I(geom_resolve_auto(&worked, 1049, 50, &m, err, sizeof err), GEOM_E_CAPACITY);
    KVT_HAS(err, " 1 are missing");
    KVT_EQ_I(geom_resolve_auto(&worked, 49, 50, &m, err, sizeof err), GEOM_E_CAPACITY);
    KVT_HAS(err, " 1001 are missing");
    KVT_EQ_I(geom_resolve_auto(&worked, UINT64_MAX, UINT64_MAX, &m, err, sizeof err), GEOM_E_CAPACITY);
    KVT_EQ(m, 99);
    struct geom_curve one = { .m_min = 5, .m_max = 5, .b_min = 1000 };
    KVT_OK(geom_resolve_auto(&one, 5000, 0, &m, err, sizeof err));
    KVT_EQ(m, 5);
}

static void cap_2_explicit_worked(void) {
    uint32_t m = 99;
    KVT_OK(geom_resolve_explicit(&worked, 129, 128, 1200, &m, err, sizeof err));
    KVT_EQ(m, 3);
    KVT_OK(geom_resolve_explicit(&worked, 129, 128, 1128, &m, err, sizeof err)); /* B(3) exactly, no headroom */
    KVT_OK(geom_resolve_explicit(&worked, 384, 128, 1512, &m, err, sizeof err));
    KVT_EQ(m, 6);
    m = 99;
    KVT_EQ_I(geom_resolve_explicit(&worked, 129, 128, 1127, &m, err, sizeof err), GEOM_E_CAPACITY);
    KVT_HAS(err, "1128");
    KVT_EQ_I(geom_resolve_explicit(&worked, 385, 128, 10000, &m, err, sizeof err), GEOM_E_CAPACITY);
    KVT_HAS(err, "2..6 pages (128..384 tokens)");
    KVT_EQ_I(geom_resolve_explicit(&worked, 64, 64, 10000, &m, err, sizeof err), GEOM_E_CAPACITY);
    KVT_EQ_I(geom_resolve_explicit(&worked, 127, 128, 10000, &m, err, sizeof err), GEOM_E_CAPACITY);
    KVT_HAS(err, "max_context 128");
    KVT_EQ_I(geom_resolve_explicit(&worked, UINT64_MAX, 128, UINT64_MAX, &m, err, sizeof err), GEOM_E_CAPACITY);
    struct geom_curve steep = { .m_min = 1, .m_max = 6, .b_min = 1, .b_step = UINT64_MAX / 2 };
    KVT_EQ_I(geom_resolve_explicit(&steep, 384, 64, UINT64_MAX, &m, err, sizeof err), GEOM_E_CAPACITY);
    KVT_EQ(m, 99);
}

static struct geom_store_spec random_store(uint64_t *seed) {
    struct geom_store_spec s = store(1 + kvt_below(seed, 64 * 20), 1 + kvt_below(seed, 6));
    s.backend = (enum geom_backend)kvt_below(seed, 3);
    s.main.storage = (enum kvd_storage)kvt_below(seed, KVD_N_STORAGE);
    s.main.arrangement = (enum geom_arrangement)kvt_below(seed, 2);
    s.main.n_ranks = 1 + kvt_below(seed, 2);
    s.main.n_kv_heads = s.main.n_ranks * (1 + kvt_below(seed, 3));
    if (s.main.storage == KVD_STORAGE_BF16) s.main.head_dim = 1 + kvt_below(seed, 300);
    s.draft = s.main;
    s.draft.n_layers = 1;
    s.draft_window = 1 + kvt_below(seed, 15);
    if (s.backend == GEOM_DFLASH) {
        s.draft = pool(KVD_STORAGE_BF16, kvt_below(seed, 2), 8, 128);
        s.draft.order = GEOM_HEAD_MAJOR;
        s.draft.arrangement = (enum geom_arrangement)kvt_below(seed, 2);
        s.draft.n_ranks = s.main.n_ranks;
    }
    uint32_t most = GEOM_MAX_POOLS - geom_pool_count(&s), full = geom_pages(s.max_context);
    for (s.n_more = kvt_below(seed, most + 1), most = 0; most < s.n_more; most++) {
        s.more[most] = pool(KVD_STORAGE_BF16, 1 + kvt_below(seed, 3), s.main.n_ranks, 1 + kvt_below(seed, 100));
        s.more[most].n_ranks = s.main.n_ranks;
        s.more[most].arrangement = (enum geom_arrangement)kvt_below(seed, 2);
        s.more[most].window = (struct geom_window){ .tokens = 1 + kvt_below(seed, 500),
                                                    .least = 1 + kvt_below(seed, full),
                                                    .share = 1 + kvt_below(seed, 1000) };
    }
    if (kvt_below(seed, 2)) {
        s.state_bytes = 1 + kvt_below(seed, 1 << 22);
        s.state_slots = s.max_concurrency + kvt_below(seed, 3);
    }
    s.persistent_bytes = kvt_below(seed, 1000000);
    s.workspace_bytes = kvt_below(seed, 1000000);
    s.graph_bytes = kvt_below(seed, 1000000);
    return s;
}

/* What would be allocated must never exceed what was charged, and the bound may cost one region block and one alignment
 * a plane at most. */
static void check_layout(const struct geom_store_spec *s, const struct geom_layout *l) {
    const struct geom_pool_spec *pools[GEOM_MAX_POOLS];
    uint64_t total = l->padding_bytes + l->state_bytes + l->persistent_bytes + l->workspace_bytes + l->graph_bytes,
             bound = 0;
    KVT_EQ(l->n_pools, geom_pool_count(s));
    for (uint32_t i = 0; i < l->n_pools; i++) {
        pools[i] = geom_pool_at(s, i);
        KVT_EQ(l->pool_bytes[i] % GEOM_REGION_MIN, 0);
        KVT_EQ(l->table_bytes[i] % GEOM_REGION_MIN, 0);
        KVT_TRUE(l->pool_bytes[i] >= geom_region_bytes(pools[i], l->pages[i]));
        KVT_TRUE(l->pool_bytes[i] < geom_region_bytes(pools[i], l->pages[i]) + GEOM_REGION_MIN);
        KVT_TRUE(l->table_bytes[i] >= 4ull * s->max_concurrency * geom_pages(s->max_context));
        total += l->pool_bytes[i] + l->table_bytes[i];
        bound += GEOM_REGION_MIN + GEOM_ALIGN * (uint64_t)geom_plane_count(pools[i]);
        if (pools[i]->window.tokens) /* a part of a page, and a part of a byte for each page of Main */
            bound += geom_region_bytes(pools[i], 1) + l->pages[0];
    }
    KVT_TRUE(l->padding_bytes <= bound);
    if (s->state_bytes) {
        struct geom_pool_spec state;
        uint64_t stride;
        KVT_OK(geom_state(s->state_bytes, &state, &stride, NULL, 0));
        KVT_TRUE(l->state_bytes >= stride * s->state_slots);
        KVT_TRUE(l->state_bytes < stride * s->state_slots + GEOM_REGION_MIN);
    } else {
        KVT_EQ(l->state_bytes, 0);
    }
    KVT_EQ(total, l->total_bytes);
}

static void cap_4_curve_is_the_layout(void) {
    uint64_t seed = kvt_seed();
    for (int round = 0; round < 60; round++) {
        struct geom_store_spec s = random_store(&seed);
        struct geom_curve curve;
        if (!KVT_EQ_I(geom_curve(&s, &curve, err, sizeof err), 0)) {
            printf("  %s\n", err);
            continue;
        }
        KVT_TRUE(curve.m_max > 2 * s.max_concurrency * geom_pages(s.max_context));
        for (uint32_t m = curve.m_min; m <= 2 * s.max_concurrency * geom_pages(s.max_context); m++) {
            struct geom_layout layout;
            KVT_OK(geom_layout(&s, m, &layout, err, sizeof err));
            KVT_EQ(layout.total_bytes, curve.b_min + (m - curve.m_min) * curve.b_step);
            check_layout(&s, &layout);
        }
        struct geom_layout layout;
        KVT_EQ_I(geom_layout(&s, curve.m_min - 1, &layout, err, sizeof err), GEOM_E_CAPACITY);
        KVT_EQ_I(geom_layout(&s, curve.m_max + 1, &layout, err, sizeof err), GEOM_E_CAPACITY);
    }
}

static void cap_8_bad_windows_refused(void) {
    static const struct {
        struct geom_window window;
        int code;
        const char *says;
    } bad[] = {
        { { .tokens = 0, .least = 1, .share = 1 }, GEOM_E_UNSUPPORTED, "it needs a window" },
        { { .tokens = UINT32_MAX, .least = 1, .share = 1 }, GEOM_E_RANGE, "each is at most" },
        { { .tokens = 8, .lead = UINT32_MAX, .least = 1, .share = 1 }, GEOM_E_RANGE, "each is at most" },
        { { .tokens = 8, .least = 0, .share = 1 }, GEOM_E_RANGE, "it has 1..4 and 1..1000" },
        { { .tokens = 8, .least = 5, .share = 1 }, GEOM_E_RANGE, "it has 1..4" },
        { { .tokens = 8, .least = 1, .share = 0 }, GEOM_E_RANGE, "1..1000" },
        { { .tokens = 8, .least = 1, .share = 1001 }, GEOM_E_RANGE, "1..1000" },
        { { .tokens = 8, .least = 4, .share = 1000 }, 0, "" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct geom_store_spec s = store(256, 3);
        s.n_more = 1;
        s.more[0] = s.main;
        s.more[0].window = bad[i].window;
        KVT_EQ_I(geom_store_check(&s, err, sizeof err), bad[i].code);
        if (bad[i].code) KVT_HAS(err, bad[i].says);
        if (bad[i].code) continue;
        s.more[0].n_ranks = 2;
        s.more[0].n_kv_heads = 2;
        KVT_EQ_I(geom_store_check(&s, err, sizeof err), GEOM_E_UNSUPPORTED);
        KVT_HAS(err, "on 2 ranks");
        s.n_more = 4;
        KVT_EQ_I(geom_store_check(&s, err, sizeof err), GEOM_E_RANGE);
        KVT_HAS(err, "5 pools: a store has 1..4");
        s.n_more = 0;
        s.main.window = bad[i].window;
        KVT_EQ_I(geom_store_check(&s, err, sizeof err), GEOM_E_UNSUPPORTED);
        KVT_HAS(err, "Main has a window of 8 tokens");
    }
}

static void cap_3_automatic_takes_all_it_may(void) {
    uint64_t seed = kvt_seed();
    for (int round = 0; round < 300; round++) {
        struct geom_store_spec s = random_store(&seed);
        struct geom_capacity c;
        struct geom_curve curve;
        KVT_OK(geom_curve(&s, &curve, err, sizeof err));
        uint64_t headroom = kvt_below(&seed, 1 << 24),
                 free_bytes = curve.b_min + headroom + kvt_random(&seed) % (200u << 20);
        KVT_OK(geom_capacity_auto(&s, free_bytes, headroom, &c, err, sizeof err));
        KVT_EQ(c.slack, free_bytes - c.bytes);
        KVT_EQ(c.bytes, c.layout.total_bytes);
        KVT_TRUE(c.slack >= headroom);
        if (c.pages < curve.m_max) KVT_TRUE(c.slack < headroom + curve.b_step);
        KVT_EQ(c.tokens, c.pages * 64ull); /* CAP-6 */
        struct geom_capacity again;
        if (c.tokens >= s.max_context) {
            KVT_OK(geom_capacity_explicit(&s, c.tokens, c.bytes, &again, err, sizeof err));
            KVT_EQ(again.pages, c.pages);
            KVT_EQ(again.slack, 0);
            KVT_EQ_I(geom_capacity_explicit(&s, c.tokens, c.bytes - 1, &again, err, sizeof err), GEOM_E_CAPACITY);
        }
        KVT_EQ_I(geom_capacity_auto(&s, curve.b_min + headroom - 1, headroom, &c, err, sizeof err), GEOM_E_CAPACITY);
        KVT_HAS(err, " 1 are missing");
    }
}

/* CAP-5, POOL-3. */
static void cap_5_backend_pages(void) {
    struct geom_layout l;
    struct geom_store_spec s = store(4096, 4);
    KVT_OK(geom_layout(&s, 100, &l, err, sizeof err));
    KVT_EQ(l.n_pools, 1);
    s.backend = GEOM_MTP;
    s.draft = pool(KVD_STORAGE_INT8, 1, 2, 256);
    for (s.draft_window = 1; s.draft_window <= 15; s.draft_window++) {
        KVT_OK(geom_layout(&s, 100, &l, err, sizeof err));
        KVT_EQ(l.n_pools, 2);
        KVT_EQ(l.pages[1], s.draft_window == 1 ? 100 : 104);
    }
    KVT_EQ_I(geom_layout(&s, 100, &l, err, sizeof err), GEOM_E_RANGE);
    s.draft_window = 0;
    KVT_EQ_I(geom_layout(&s, 100, &l, err, sizeof err), GEOM_E_RANGE);
    s.backend = GEOM_DFLASH;
    s.draft = pool(KVD_STORAGE_BF16, 1, 8, 128);
    s.draft.order = GEOM_HEAD_MAJOR;
    KVT_OK(geom_layout(&s, 100, &l, err, sizeof err));
    KVT_EQ(l.n_pools, 2);
    KVT_EQ(l.pages[1], 100);
    s.draft.n_layers = 0; /* no full-attention draft layer, no pool */
    KVT_OK(geom_layout(&s, 100, &l, err, sizeof err));
    KVT_EQ(l.n_pools, 1);
}

static void pool_3_backend_profiles(void) {
    struct geom_store_spec s = store(4096, 4);
    s.backend = GEOM_DFLASH;
    s.draft = pool(KVD_STORAGE_INT8, 1, 8, 256);
    s.draft.order = GEOM_HEAD_MAJOR;
    KVT_EQ_I(geom_store_check(&s, err, sizeof err), GEOM_E_UNSUPPORTED);
    KVT_HAS(err, "bf16");
    s.draft = pool(KVD_STORAGE_BF16, 1, 8, 128);
    KVT_EQ_I(geom_store_check(&s, err, sizeof err), GEOM_E_UNSUPPORTED);
    s.backend = GEOM_MTP;
    s.draft_window = 2;
    KVT_EQ_I(geom_store_check(&s, err, sizeof err), GEOM_E_UNSUPPORTED); /* bf16 beside an int8 Main */
    s.draft = s.main;
    KVT_OK(geom_store_check(&s, err, sizeof err));
    s.draft.n_ranks = 2;
    KVT_EQ_I(geom_store_check(&s, err, sizeof err), GEOM_E_UNSUPPORTED);
    s.backend = (enum geom_backend)3;
    KVT_EQ_I(geom_store_check(&s, err, sizeof err), GEOM_E_UNSUPPORTED);
    s = store(4096, 4);
    s.main.order = GEOM_HEAD_MAJOR;
    KVT_EQ_I(geom_store_check(&s, err, sizeof err), GEOM_E_UNSUPPORTED);
}

static void bad_counts_refused(void) {
    struct geom_curve curve;
    struct geom_store_spec s = store(0, 1);
    KVT_EQ_I(geom_curve(&s, &curve, err, sizeof err), GEOM_E_RANGE);
    s = store(1, 0);
    KVT_EQ_I(geom_curve(&s, &curve, err, sizeof err), GEOM_E_RANGE);
    s = store(UINT32_MAX, 1);
    KVT_EQ_I(geom_curve(&s, &curve, err, sizeof err), GEOM_E_RANGE);
    s = store(1 << 24, 1 << 20);
    KVT_EQ_I(geom_curve(&s, &curve, err, sizeof err), GEOM_E_RANGE);
    s = store(100, 4);
    s.state_bytes = 1;
    s.state_slots = 3;
    KVT_EQ_I(geom_curve(&s, &curve, err, sizeof err), GEOM_E_RANGE);
    KVT_HAS(err, "state_slots");
    s.state_slots = 4;
    s.state_bytes = UINT64_MAX;
    KVT_EQ_I(geom_curve(&s, &curve, err, sizeof err), GEOM_E_RANGE);
    s.state_bytes = 0;
    s.workspace_bytes = UINT64_MAX - 5;
    KVT_EQ_I(geom_curve(&s, &curve, err, sizeof err), GEOM_E_RANGE);
}

/* CAP-4, GEOM-8: an image's slot is exactly a page of its spec, without padding, so that what copies pages copies
 * images. */
static void state_slots_are_pages(void) {
    static const uint64_t sizes[] = { 1,
                                      256,
                                      257,
                                      511,
                                      512,
                                      513,
                                      1000,
                                      100000,
                                      1 << 24,
                                      (1 << 24) + 1,
                                      33333333,
                                      UINT64_C(1) << 30,
                                      (UINT64_C(1) << 35) - 77,
                                      UINT64_C(1) << 40 };
    uint64_t seed = kvt_seed();
    for (uint32_t i = 0; i < 400; i++) {
        uint64_t random = 1 + (kvt_random(&seed) >> (24 + kvt_below(&seed, 39)));
        uint64_t bytes = i < sizeof sizes / sizeof *sizes ? sizes[i] : random;
        struct geom_pool_spec spec;
        struct geom_plane k, v;
        uint64_t stride;
        KVT_OK(geom_state(bytes, &spec, &stride, err, sizeof err));
        KVT_OK(geom_pool_check(&spec, err, sizeof err));
        KVT_TRUE(stride >= bytes && stride % 512 == 0);
        KVT_TRUE(stride - bytes < 512 * (uint64_t)spec.n_kv_heads);
        KVT_EQ(geom_page_bytes(&spec), stride);
        KVT_EQ(geom_packed_bytes(&spec), stride);
        KVT_EQ(geom_region_bytes(&spec, 7), 7 * stride);
        KVT_OK(geom_plane(&spec, 7, 0, 0, GEOM_K, &k, err, sizeof err));
        KVT_OK(geom_plane(&spec, 7, 0, 0, GEOM_V, &v, err, sizeof err));
        KVT_EQ(k.nb3, stride);
        KVT_EQ(v.nb3, stride);
        KVT_EQ(k.offset, 0);
        KVT_EQ(v.offset, k.page_bytes);
        KVT_EQ(k.page_bytes + v.page_bytes, stride);
    }
    struct geom_pool_spec spec;
    uint64_t stride;
    KVT_EQ_I(geom_state(0, &spec, &stride, err, sizeof err), GEOM_E_RANGE);
    KVT_EQ_I(geom_state((UINT64_C(1) << 40) + 1, &spec, &stride, err, sizeof err), GEOM_E_RANGE);
    KVT_HAS(err, "state image");
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = {
        KVT_CASE(cap_1_range),
        KVT_CASE(cap_3_automatic_worked),
        KVT_CASE(cap_2_explicit_worked),
        KVT_CASE(cap_4_curve_is_the_layout),
        KVT_CASE(state_slots_are_pages),
        KVT_CASE(cap_8_bad_windows_refused),
        KVT_CASE(cap_3_automatic_takes_all_it_may),
        KVT_CASE(cap_5_backend_pages),
        KVT_CASE(pool_3_backend_profiles),
        KVT_CASE(bad_counts_refused),
        KVT_CASE(fit_3_more_than_all_sequences_hold),
        { 0 },
    };
    return kvt_main("capacity", cases, argc, argv);
}
