/* SPDX-License-Identifier: Apache-2.0
 *
 * Capacity: how many page groups a store gets (CAP-1..6, CAP-8). geom_layout() is the only builder; the curve is read
 * off it.
 */
#include <inttypes.h>
#include <string.h>

#include "geometry.h"
#include "geometry_internal.h"

#define GEOM_MAX_DRAFT_WINDOW 15

uint32_t geom_pages(uint64_t tokens) {
    uint64_t pages = tokens / KVD_PAGE_TOKENS + (tokens % KVD_PAGE_TOKENS != 0);
    return pages > UINT32_MAX ? UINT32_MAX : (uint32_t)pages;
}

static bool has_draft(const struct geom_store_spec *spec) {
    return spec->backend == GEOM_MTP || (spec->backend == GEOM_DFLASH && spec->draft.n_layers > 0);
}

uint32_t geom_pool_count(const struct geom_store_spec *spec) { return 1 + has_draft(spec) + spec->n_more; }

const struct geom_pool_spec *geom_pool_at(const struct geom_store_spec *spec, uint32_t i) {
    if (i == 0) return &spec->main;
    return has_draft(spec) && i == 1 ? &spec->draft : &spec->more[i - 1 - has_draft(spec)];
}

/* CAP-5: pages of the draft pool beyond Main's. */
static uint64_t draft_extra(const struct geom_store_spec *spec) {
    if (spec->backend != GEOM_MTP) return 0;
    return (uint64_t)spec->max_concurrency * geom_pages(spec->draft_window - 1);
}

static uint32_t pages_min(const struct geom_store_spec *spec) {
    uint32_t row = geom_pages(spec->max_context);
    return row > spec->max_concurrency ? row : spec->max_concurrency;
}

/* What can be numbered (FIT-3): ids of both pools are below 31 bits. Pages that no running sequence needs hold what is
 * kept. */
static uint32_t pages_max(const struct geom_store_spec *spec) { return INT32_MAX - (uint32_t)draft_extra(spec); }

/* ---- window pools (CAP-8) ------------------------------------------------------------------ */

#define SHARE_OF 1000u

/* Of pool i beyond its part of the smallest store, which has pages_min() of Main. */
static uint64_t window_pages(const struct geom_window *window, uint64_t more) {
    return window->least + more * window->share / SHARE_OF;
}

static uint64_t pages_at(const struct geom_store_spec *spec, uint32_t i, uint32_t m) {
    const struct geom_window *window = &geom_pool_at(spec, i)->window;
    if (window->tokens) return window_pages(window, m - pages_min(spec));
    return m + (i ? draft_extra(spec) : 0);
}

static int check_window(const struct geom_store_spec *spec, uint32_t i, char *err, size_t err_bytes) {
    const struct geom_window *window = &geom_pool_at(spec, i)->window;
    if (!window->tokens) return 0;
    if (window->tokens > UINT32_MAX / 4 || window->lead > UINT32_MAX / 4)
        return refuse_with(GEOM_E_RANGE, err, err_bytes,
                           "pool %u has a window of %u tokens and a lead of %u: each is at most %u", i, window->tokens,
                           window->lead, UINT32_MAX / 4);
    if (window->least == 0 || window->least > pages_min(spec) || window->share == 0 || window->share > SHARE_OF)
        return refuse_with(GEOM_E_RANGE, err, err_bytes,
                           "pool %u has a window, %u pages at least and %u for each %u of Main: it has 1..%u and "
                           "1..%u",
                           i, window->least, window->share, SHARE_OF, pages_min(spec), SHARE_OF);
    return 0;
}

static int check_more(const struct geom_store_spec *spec, char *err, size_t err_bytes) {
    int r = 0;
    if (geom_pool_count(spec) > GEOM_MAX_POOLS)
        return refuse_with(GEOM_E_RANGE, err, err_bytes, "%u pools: a store has 1..%d", geom_pool_count(spec),
                           GEOM_MAX_POOLS);
    if (spec->main.window.tokens)
        return refuse_with(GEOM_E_UNSUPPORTED, err, err_bytes,
                           "Main has a window of %u tokens: its pages carry the names, so it has none",
                           spec->main.window.tokens);
    for (uint32_t i = 1; !r && i < geom_pool_count(spec); i++) r = check_window(spec, i, err, err_bytes);
    for (uint32_t k = 0; !r && k < spec->n_more; k++) {
        const struct geom_pool_spec *pool = &spec->more[k];
        r = geom_pool_check(pool, err, err_bytes);
        if (!r && (!pool->window.tokens || pool->n_ranks != spec->main.n_ranks))
            r = refuse_with(GEOM_E_UNSUPPORTED, err, err_bytes,
                            "pool %u has a window of %u tokens on %u ranks: it needs a window, and Main's %u ranks",
                            geom_pool_count(spec) - spec->n_more + k, pool->window.tokens, pool->n_ranks,
                            spec->main.n_ranks);
    }
    return r;
}

/* ---- checks ------------------------------------------------------------------------------- */

static int check_draft(const struct geom_store_spec *spec, char *err, size_t err_bytes) {
    const struct geom_pool_spec *draft = &spec->draft;
    int r = geom_pool_check(draft, err, err_bytes);
    if (r) return r;
    if (draft->n_ranks != spec->main.n_ranks)
        return refuse_with(GEOM_E_UNSUPPORTED, err, err_bytes,
                           "the draft pool has %u ranks and Main has %u: both live on the same devices", draft->n_ranks,
                           spec->main.n_ranks);
    if (spec->backend == GEOM_MTP) {
        bool shapes = !draft->n_groups && !spec->main.n_groups; /* a group says its own */
        if (shapes && (draft->storage != spec->main.storage || draft->order != GEOM_PAGE_MAJOR))
            return refuse_with(GEOM_E_UNSUPPORTED, err, err_bytes,
                               "the MTP pool is %s, order %u: it takes Main's storage (%s), page-major",
                               geom_storage_name(draft->storage), (unsigned)draft->order,
                               geom_storage_name(spec->main.storage));
        if (spec->draft_window == 0 || spec->draft_window > GEOM_MAX_DRAFT_WINDOW)
            return refuse_with(GEOM_E_RANGE, err, err_bytes, "draft_window %u: MTP takes 1..%d", spec->draft_window,
                               GEOM_MAX_DRAFT_WINDOW);
        return 0;
    }
    if (!draft->n_groups && (draft->storage != KVD_STORAGE_BF16 || draft->order != GEOM_HEAD_MAJOR))
        return refuse_with(GEOM_E_UNSUPPORTED, err, err_bytes,
                           "the Draft Full pool is %s, order %u: it is bf16, head-major",
                           geom_storage_name(draft->storage), (unsigned)draft->order);
    return 0;
}

/* Counts that must stay below 31 bits: page ids are int32, and so are token ordinals of a row. */
static int check_counts(const struct geom_store_spec *spec, char *err, size_t err_bytes) {
    if (spec->max_context == 0 || spec->max_concurrency == 0)
        return refuse_with(GEOM_E_RANGE, err, err_bytes, "max_context %u, max_concurrency %u: both must be at least 1",
                           spec->max_context, spec->max_concurrency);
    uint64_t row = geom_pages(spec->max_context);
    if (row * KVD_PAGE_TOKENS > INT32_MAX)
        return refuse_with(GEOM_E_RANGE, err, err_bytes, "max_context %u: a row holds at most %d tokens",
                           spec->max_context, INT32_MAX / KVD_PAGE_TOKENS * KVD_PAGE_TOKENS);
    if (row * spec->max_concurrency > INT32_MAX || pages_min(spec) + draft_extra(spec) > INT32_MAX)
        return refuse_with(GEOM_E_RANGE, err, err_bytes,
                           "%u sequences of %" PRIu64
                           " pages: entries of a block table and page ids end at %d, lower max_context or "
                           "max_concurrency",
                           spec->max_concurrency, row, INT32_MAX);
    return 0;
}

int geom_store_check(const struct geom_store_spec *spec, char *err, size_t err_bytes) {
    if ((unsigned)spec->backend > GEOM_DFLASH)
        return refuse_with(GEOM_E_UNSUPPORTED, err, err_bytes, "backend %u is unknown: use off, mtp or dflash",
                           (unsigned)spec->backend);
    int r = geom_pool_check(&spec->main, err, err_bytes);
    if (r) return r;
    if (spec->main.order != GEOM_PAGE_MAJOR)
        return refuse_with(GEOM_E_UNSUPPORTED, err, err_bytes, "the Main pool is head-major: Main is page-major");
    if (has_draft(spec) && (r = check_draft(spec, err, err_bytes))) return r;
    if ((r = check_counts(spec, err, err_bytes)) || (r = check_more(spec, err, err_bytes))) return r;
    struct geom_pool_spec state;
    uint64_t stride;
    if (spec->state_bytes && (r = geom_state(spec->state_bytes, &state, &stride, err, err_bytes))) return r;
    if (spec->state_bytes && spec->state_slots < spec->max_concurrency)
        return refuse_with(GEOM_E_RANGE, err, err_bytes,
                           "%u state slots for %u sequences: every active sequence needs one, raise state_slots",
                           spec->state_slots, spec->max_concurrency);
    return 0;
}

/* ---- state images ------------------------------------------------------------------------- */

/* BF16 K and V of one head and 64 tokens are 256 * head_dim bytes; head_dim is even, so that each of the two is a
 * multiple of GEOM_ALIGN and the record has no padding. As few heads as do: a head is one piece of a copy. */
int geom_state(uint64_t state_bytes, struct geom_pool_spec *ret_spec, uint64_t *ret_stride, char *err,
               size_t err_bytes) {
    const uint64_t unit = 2 * GEOM_ALIGN, most_dim = GEOM_MAX_COUNT / 2, most = unit * most_dim * GEOM_MAX_COUNT;
    if (state_bytes == 0 || state_bytes > most)
        return refuse_with(GEOM_E_RANGE, err, err_bytes,
                           "a state image of %" PRIu64 " bytes: 1..%" PRIu64 " can be kept", state_bytes, most);
    uint64_t units = (state_bytes + unit - 1) / unit;
    uint64_t heads = (units + most_dim - 1) / most_dim, dim = (units + heads - 1) / heads;
    *ret_spec = (struct geom_pool_spec){ .storage = KVD_STORAGE_BF16,
                                         .order = GEOM_PAGE_MAJOR,
                                         .arrangement = GEOM_RECORD,
                                         .n_layers = 1,
                                         .n_kv_heads = (uint32_t)heads,
                                         .head_dim = (uint32_t)(2 * dim),
                                         .n_ranks = 1 };
    *ret_stride = unit * dim * heads;
    return 0;
}

/* ---- layout ------------------------------------------------------------------------------- */

static bool pad_region(uint64_t bytes, uint64_t *ret_bytes) { return geom_align_up(bytes, GEOM_REGION_MIN, ret_bytes); }

/* Linear bytes of pool i, and of a window pool in whole bytes for each page of Main. */
static bool linear_bytes(const struct geom_store_spec *spec, uint32_t i, uint32_t m, uint64_t *ret_bytes) {
    const struct geom_pool_spec *pool = geom_pool_at(spec, i);
    uint64_t page = geom_region_linear(pool), bytes, more = 0, step;
    if (!pool->window.tokens) return !__builtin_mul_overflow(page, pages_at(spec, i, m), ret_bytes);
    if (__builtin_mul_overflow(page, pool->window.share, &step)) return false;
    step = step / SHARE_OF + (step % SHARE_OF != 0);
    if (__builtin_mul_overflow(page, pool->window.least, &bytes) ||
        __builtin_mul_overflow(step, m - pages_min(spec), &more) || !geom_add(&bytes, more))
        return false;
    *ret_bytes = bytes;
    return true;
}

/* Pool regions, and what tops each up to its affine bound: linear bytes, one GEOM_ALIGN a plane, one GEOM_REGION_MIN.
 */
static bool layout_pool(const struct geom_store_spec *spec, uint32_t i, uint32_t m, struct geom_layout *layout) {
    const struct geom_pool_spec *pool = geom_pool_at(spec, i);
    uint64_t bound, fixed = (uint64_t)geom_plane_count(pool) * GEOM_ALIGN + GEOM_REGION_MIN;
    layout->pages[i] = (uint32_t)pages_at(spec, i, m);
    uint64_t region = geom_region_bytes(pool, layout->pages[i]);
    if (region == UINT64_MAX || !pad_region(region, &layout->pool_bytes[i])) return false;
    if (!linear_bytes(spec, i, m, &bound) || !geom_add(&bound, fixed)) return false;
    return geom_add(&layout->padding_bytes, bound - layout->pool_bytes[i]);
}

static bool layout_fixed(const struct geom_store_spec *spec, struct geom_layout *layout) {
    uint64_t table = (uint64_t)spec->max_concurrency * geom_pages(spec->max_context) * sizeof(int32_t);
    for (uint32_t i = 0; i < layout->n_pools; i++)
        if (!pad_region(table, &layout->table_bytes[i])) return false;
    if (spec->state_bytes) {
        struct geom_pool_spec state;
        uint64_t image = 0, images = 0;
        if (geom_state(spec->state_bytes, &state, &image, NULL, 0) ||
            __builtin_mul_overflow(image, spec->state_slots, &images) || !pad_region(images, &layout->state_bytes))
            return false;
    }
    layout->persistent_bytes = spec->persistent_bytes;
    layout->workspace_bytes = spec->workspace_bytes;
    layout->graph_bytes = spec->graph_bytes;
    return true;
}

static bool layout_total(struct geom_layout *layout) {
    uint64_t total = layout->padding_bytes;
    bool ok = true;
    for (uint32_t i = 0; i < layout->n_pools; i++)
        ok = ok && geom_add(&total, layout->pool_bytes[i]) && geom_add(&total, layout->table_bytes[i]);
    ok = ok && geom_add(&total, layout->state_bytes) && geom_add(&total, layout->persistent_bytes) &&
         geom_add(&total, layout->workspace_bytes) && geom_add(&total, layout->graph_bytes);
    layout->total_bytes = total;
    return ok;
}

int geom_layout(const struct geom_store_spec *spec, uint32_t m, struct geom_layout *ret_layout, char *err,
                size_t err_bytes) {
    struct geom_layout layout = { 0 };
    int r = geom_store_check(spec, err, err_bytes);
    if (r) return r;
    if (m < pages_min(spec) || m > pages_max(spec))
        return refuse_with(GEOM_E_CAPACITY, err, err_bytes, "%u pages: this store takes %u..%u", m, pages_min(spec),
                           pages_max(spec));
    bool ok = true;
    layout.n_pools = geom_pool_count(spec);
    for (uint32_t i = 0; ok && i < layout.n_pools; i++) ok = layout_pool(spec, i, m, &layout);
    if (!ok || !layout_fixed(spec, &layout) || !layout_total(&layout))
        return refuse_with(GEOM_E_RANGE, err, err_bytes, "the store's bytes at %u pages do not fit 64 bits", m);
    *ret_layout = layout;
    return 0;
}

/* ---- curve and choice --------------------------------------------------------------------- */

int geom_curve(const struct geom_store_spec *spec, struct geom_curve *ret_curve, char *err, size_t err_bytes) {
    struct geom_layout layout;
    int r = geom_store_check(spec, err, err_bytes);
    if (r) return r;
    struct geom_curve curve = { .m_min = pages_min(spec), .m_max = pages_max(spec) };
    if ((r = geom_layout(spec, curve.m_min, &layout, err, err_bytes))) return r;
    curve.b_min = layout.total_bytes;
    if (curve.m_min < curve.m_max) {
        if ((r = geom_layout(spec, curve.m_min + 1, &layout, err, err_bytes))) return r;
        curve.b_step = layout.total_bytes - curve.b_min;
    }
    *ret_curve = curve;
    return 0;
}

/* B(M) of the curve; false where it does not fit 64 bits. */
static bool curve_bytes(const struct geom_curve *curve, uint32_t pages, uint64_t *ret_bytes) {
    uint64_t bytes;
    if (__builtin_mul_overflow(curve->b_step, (uint64_t)(pages - curve->m_min), &bytes)) return false;
    if (!geom_add(&bytes, curve->b_min)) return false;
    *ret_bytes = bytes;
    return true;
}

int geom_resolve_auto(const struct geom_curve *curve, uint64_t free_bytes, uint64_t headroom, uint32_t *ret_pages,
                      char *err, size_t err_bytes) {
    uint64_t need = curve->b_min;
    if (!geom_add(&need, headroom) || free_bytes < need)
        return refuse_with(GEOM_E_CAPACITY, err, err_bytes,
                           "the smallest store needs %" PRIu64 " bytes and %" PRIu64 " of headroom, %" PRIu64
                           " are free, %" PRIu64 " are missing: lower max_context, max_concurrency or the headroom",
                           curve->b_min, headroom, free_bytes, need < headroom ? UINT64_MAX : need - free_bytes);
    uint32_t pages = curve->m_min;
    if (curve->m_min < curve->m_max && curve->b_step) {
        uint64_t more = (free_bytes - need) / curve->b_step, most = curve->m_max - curve->m_min;
        pages += (uint32_t)(more < most ? more : most);
    }
    *ret_pages = pages;
    return 0;
}

int geom_resolve_explicit(const struct geom_curve *curve, uint64_t tokens, uint32_t max_context, uint64_t free_bytes,
                          uint32_t *ret_pages, char *err, size_t err_bytes) {
    uint64_t bytes;
    if (tokens < max_context)
        return refuse_with(GEOM_E_CAPACITY, err, err_bytes,
                           "capacity of %" PRIu64 " tokens is below max_context %u: ask for at least one full context",
                           tokens, max_context);
    uint32_t pages = geom_pages(tokens);
    if (pages < curve->m_min || pages > curve->m_max)
        return refuse_with(GEOM_E_CAPACITY, err, err_bytes,
                           "capacity of %" PRIu64 " tokens is %u pages, legal are %u..%u pages (%" PRIu64 "..%" PRIu64
                           " tokens): choose one in the range",
                           tokens, pages, curve->m_min, curve->m_max, (uint64_t)curve->m_min * KVD_PAGE_TOKENS,
                           (uint64_t)curve->m_max * KVD_PAGE_TOKENS);
    if (!curve_bytes(curve, pages, &bytes) || bytes > free_bytes)
        return refuse_with(GEOM_E_CAPACITY, err, err_bytes,
                           "capacity of %" PRIu64 " tokens needs %" PRIu64 " bytes, %" PRIu64
                           " are free: lower the capacity, max_context or max_concurrency",
                           tokens, curve_bytes(curve, pages, &bytes) ? bytes : UINT64_MAX, free_bytes);
    *ret_pages = pages;
    return 0;
}

/* Rebuilds the layout at M and holds it against the curve (CAP-4). */
static int choose_capacity(const struct geom_store_spec *spec, const struct geom_curve *curve, uint32_t pages,
                           uint64_t free_bytes, struct geom_capacity *ret_capacity, char *err, size_t err_bytes) {
    struct geom_capacity capacity = { .pages = pages, .tokens = (uint64_t)pages * KVD_PAGE_TOKENS, .curve = *curve };
    uint64_t expected;
    int r = geom_layout(spec, pages, &capacity.layout, err, err_bytes);
    if (r) return r;
    capacity.bytes = capacity.layout.total_bytes;
    if (!curve_bytes(curve, pages, &expected) || expected != capacity.bytes)
        return refuse_with(GEOM_E_RANGE, err, err_bytes,
                           "the layout of %u pages takes %" PRIu64 " bytes, which is off the capacity curve", pages,
                           capacity.bytes);
    capacity.slack = free_bytes - capacity.bytes;
    *ret_capacity = capacity;
    return 0;
}

int geom_capacity_explicit(const struct geom_store_spec *spec, uint64_t tokens, uint64_t free_bytes,
                           struct geom_capacity *ret_capacity, char *err, size_t err_bytes) {
    struct geom_curve curve;
    uint32_t pages;
    int r = geom_curve(spec, &curve, err, err_bytes);
    if (!r) r = geom_resolve_explicit(&curve, tokens, spec->max_context, free_bytes, &pages, err, err_bytes);
    return r ? r : choose_capacity(spec, &curve, pages, free_bytes, ret_capacity, err, err_bytes);
}

int geom_capacity_auto(const struct geom_store_spec *spec, uint64_t free_bytes, uint64_t headroom,
                       struct geom_capacity *ret_capacity, char *err, size_t err_bytes) {
    struct geom_curve curve;
    uint32_t pages = 0;
    int r = geom_curve(spec, &curve, err, err_bytes);
    if (!r) r = geom_resolve_auto(&curve, free_bytes, headroom, &pages, err, err_bytes);
    return r ? r : choose_capacity(spec, &curve, pages, free_bytes, ret_capacity, err, err_bytes);
}
