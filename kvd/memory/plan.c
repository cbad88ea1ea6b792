/* SPDX-License-Identifier: Apache-2.0 */
#include "plan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "segment.h"

static uint32_t or_auto(uint32_t value, uint32_t automatic) { return value == CONFIG_AUTO32 ? automatic : value; }

static uint32_t state_slots(const struct config *c) {
    return c->state_bytes ? or_auto(c->state_slots, 2 * c->max_concurrency) : 0;
}

/* The groups of a pool, where it has any. A main pool of one plain group is of one shape: it has always had that
 * digest.
 */
static void take_groups(const struct config *c, uint32_t pool, struct geom_pool_spec *spec) {
    const struct config_pool *from = &c->pool[pool];
    struct geom_pool_spec made = { .arrangement = spec->arrangement,
                                   .n_ranks = spec->n_ranks,
                                   .n_groups = from->n_groups };
    for (uint32_t i = 0; i < from->n_groups; i++) {
        made.group[i] = config_group(c, from->group[i]);
        made.n_layers += made.group[i].n_layers;
    }
    const struct geom_group *only = &made.group[0];
    bool plain = pool == 0 && made.n_groups == 1 && only->format == KVD_FORMAT_KV && only->order == GEOM_PAGE_MAJOR &&
                 only->v_head_dim == only->head_dim;
    if (plain) {
        spec->storage = only->storage;
        spec->n_layers = only->n_layers;
        spec->n_kv_heads = only->n_kv_heads;
        spec->head_dim = only->head_dim;
    } else if (made.n_groups) {
        *spec = made;
    }
}

static struct geom_window window_of(const struct config *c, const struct config_pool *pool) {
    uint32_t lead = c->backend == GEOM_OFF ? 0 : c->widest_verify;
    return (struct geom_window){ .tokens = pool->window,
                                 .lead = or_auto(pool->lead, lead < pool->window ? lead : pool->window),
                                 .aligned = pool->aligned != 0 };
}

static struct geom_pool_spec draft_spec(const struct config *c) {
    bool full = c->backend == GEOM_DFLASH;
    struct geom_pool_spec draft = { .storage = full ? KVD_STORAGE_BF16 : (enum kvd_storage)c->profile,
                                    .order = full ? GEOM_HEAD_MAJOR : GEOM_PAGE_MAJOR,
                                    .arrangement = (enum geom_arrangement)c->arrangement,
                                    .n_layers = or_auto(c->draft_layers, 1),
                                    .n_kv_heads = or_auto(c->draft_kv_heads, full ? 8 : c->kv_heads),
                                    .head_dim = or_auto(c->draft_head_dim, full ? 128 : c->head_dim),
                                    .n_ranks = c->n_devices };
    take_groups(c, 1, &draft);
    draft.window = window_of(c, &c->pool[1]);
    return draft;
}

const struct config_pool *plan_pool(const struct config *c, const struct geom_store_spec *spec, uint32_t pool) {
    uint32_t before = geom_pool_count(spec) - spec->n_more;
    return &c->pool[pool < before ? pool : 2 + pool - before];
}

/* What decides how many pages a window takes. */
static void take_windows(const struct config *c, const struct geom_store_spec *spec, struct store_config *store) {
    store->max_context = c->max_context;
    store->prefill_chunk = c->prefill_chunk;
    store->widest_verify = c->widest_verify;
    store->draft_window = spec->draft_window;
    for (uint32_t p = 0; p < geom_pool_count(spec); p++) {
        const struct geom_window *window = &geom_pool_at(spec, p)->window;
        store->window[p] = (struct store_window){ window->tokens, window->lead, window->aligned };
    }
}

/* CAP-8: the smallest store runs one sequence of full length, or all with a page each; beyond, there is a window for
 * each eighth of a context in Main, unless the configuration says how many pages. */
static void size_window(const struct config *c, const struct store_config *store, uint32_t p, uint32_t asked,
                        struct geom_window *window) {
    uint32_t eighth = geom_pages(c->max_context) / 8, pages = store_window_pages(store, p);
    uint64_t share = eighth ? ((uint64_t)pages * 1000 + eighth - 1) / eighth : 1000;
    if (!window->tokens) return;
    window->least = pages > c->max_concurrency ? pages : c->max_concurrency;
    window->share = or_auto(asked, share > 1000 ? 1000 : (uint32_t)share);
}

static void size_windows(const struct config *c, struct geom_store_spec *spec) {
    struct store_config store = { 0 };
    uint32_t before = geom_pool_count(spec) - spec->n_more;
    take_windows(c, spec, &store);
    if (before > 1) size_window(c, &store, 1, c->pool[1].share, &spec->draft.window);
    for (uint32_t k = 0; k < spec->n_more; k++)
        size_window(c, &store, before + k, c->pool[2 + k].share, &spec->more[k].window);
}

int plan_spec(const struct config *c, struct geom_store_spec *ret_spec, char *err, size_t err_bytes) {
    struct geom_store_spec spec = {
        .backend = (enum geom_backend)c->backend,
        .main = { .storage = (enum kvd_storage)c->profile,
                  .order = GEOM_PAGE_MAJOR,
                  .arrangement = (enum geom_arrangement)c->arrangement,
                  .n_layers = c->layers,
                  .n_kv_heads = c->kv_heads,
                  .head_dim = c->head_dim,
                  .n_ranks = c->n_devices },
        .max_context = c->max_context,
        .max_concurrency = c->max_concurrency,
        .draft_window = c->backend == GEOM_OFF ? 0 : c->draft_window,
        .state_bytes = c->state_bytes,
        .state_slots = state_slots(c),
        .persistent_bytes = c->persistent_bytes,
        .workspace_bytes = c->workspace_bytes,
        .graph_bytes = c->graph_bytes,
    };
    take_groups(c, 0, &spec.main);
    if (c->backend != GEOM_OFF) spec.draft = draft_spec(c);
    for (; spec.n_more < c->n_window_pools && spec.n_more < GEOM_MAX_POOLS - 1; spec.n_more++) {
        struct geom_pool_spec *pool = &spec.more[spec.n_more];
        *pool = (struct geom_pool_spec){ .arrangement = spec.main.arrangement, .n_ranks = c->n_devices };
        take_groups(c, 2 + spec.n_more, pool);
        pool->window = window_of(c, &c->pool[2 + spec.n_more]);
    }
    size_windows(c, &spec);
    if (geom_store_check(&spec, err, err_bytes)) return 1;
    *ret_spec = spec;
    return 0;
}

void plan_arena_name(const char *prefix, char *name, size_t bytes) {
    const char *instance = strncmp(prefix, "/kvd-", 5) == 0 ? prefix + 5 : prefix;
    int n = (int)strlen(instance);
    if (n && instance[n - 1] == '-') n--;
    snprintf(name, bytes, "/kvd-arena-%.*s", n, instance);
}

int plan_open_devices(const struct config *c, struct device **ret_devices, char *err, size_t err_bytes) {
    for (uint32_t i = 0; i < c->n_devices; i++) {
        struct device_config d = { .kind = (enum device_kind)c->device[i].kind,
                                   .index = c->device[i].index,
                                   .memory_bytes = c->memory,
                                   .export_fd = c->export == EXPORT_VMM };
        char why[384];
        if (!device_open(&d, &ret_devices[i], why, sizeof why)) continue;
        snprintf(err, err_bytes, "device.%u = %s:%u cannot be opened: %s", i, d.kind == DEVICE_CUDA ? "cuda" : "host",
                 d.index, why);
        while (i-- > 0) device_close(ret_devices[i]);
        return 1;
    }
    return 0;
}

static uint32_t count_hosts(const struct config *c) {
    uint32_t hosts = 0;
    for (uint32_t i = 0; i < c->n_devices; i++) hosts += c->device[i].kind == DEVICE_HOST;
    return hosts;
}

static uint64_t less_bytes(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

/* Of the arena, those that an earlier instance has not left there. */
static uint64_t arena_missing(const struct config *c, const char *arena) {
    return less_bytes(c->arena_bytes, arena ? segment_bytes_there(arena) : 0);
}

static uint64_t stored_on_hosts(const struct config *c, const struct stored_regions *stored) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; stored && i < c->n_devices; i++)
        if (c->device[i].kind == DEVICE_HOST) bytes += stored->bytes[i];
    return bytes;
}

/* Host devices and the arena stand in one memory: each device takes its share, at most, of what the arena leaves. What
 * is asked for in tokens is taken or refused. */
static uint64_t free_on_host(const struct config *c, const char *arena, const struct stored_regions *stored,
                             uint64_t free_bytes) {
    uint64_t left = segment_memory_left("");
    if (left == UINT64_MAX || c->capacity_tokens != CONFIG_AUTO64) return free_bytes;
    uint64_t share = less_bytes(left + stored_on_hosts(c, stored), arena_missing(c, arena)) / count_hosts(c);
    return free_bytes < share ? free_bytes : share;
}

/* Before a byte is taken: what the machine, the control groups and the limits of this process leave for the regions of
 * host devices and the arena together. */
static int check_memory(const struct config *c, const char *arena, const struct stored_regions *stored,
                        const struct plan *plan, char *err, size_t err_bytes) {
    const struct geom_layout *l = &plan->capacity.layout;
    uint64_t region = l->state_bytes, device = l->state_bytes, missing = arena_missing(c, arena);
    for (uint32_t p = 0; p < l->n_pools; p++) {
        device += l->pool_bytes[p] + l->table_bytes[p];
        if (l->pool_bytes[p] > region) region = l->pool_bytes[p];
    }
    uint32_t hosts = count_hosts(c);
    if (!hosts) device = region = 0;
    struct segment_need need = { .root = "",
                                 .what = "pools of host devices and the arena need",
                                 .lower = "tokens, memory or [host] arena",
                                 .bytes = less_bytes(hosts * device, stored_on_hosts(c, stored)) + missing,
                                 .shm_bytes = missing,
                                 .file_bytes = region > c->arena_bytes ? region : c->arena_bytes };
    return segment_check_need(&need, err, err_bytes) != 0;
}

static void plan_host(const struct config *c, struct plan *plan) {
    struct geom_pool_spec state;
    uint64_t stride;
    plan->arena_bytes = (c->arena_bytes + 4095) / 4096 * 4096;
    for (uint32_t p = 0; p < plan->capacity.layout.n_pools; p++)
        plan->host_stride[p] = geom_packed_bytes(geom_pool_at(&plan->spec, p)) * c->n_devices;
    if (plan->spec.state_bytes && !geom_state(plan->spec.state_bytes, &state, &stride, NULL, 0))
        plan->host_state_stride = geom_packed_bytes(&state) * c->n_devices;
}

/* An automatic capacity stays what it was with the regions that are stored, whatever else came to the device since. */
static int resolve_capacity(const struct config *c, const struct stored_regions *stored, uint64_t free_bytes,
                            struct plan *plan, char *err, size_t err_bytes) {
    uint64_t tokens = c->capacity_tokens;
    if (tokens == CONFIG_AUTO64 && stored && stored->id &&
        !geom_capacity_explicit(&plan->spec, (uint64_t)stored->pages * KVD_PAGE_TOKENS, free_bytes, &plan->capacity,
                                NULL, 0) &&
        stored_matches(stored, &plan->capacity.layout, c->n_devices))
        return 0;
    return tokens == CONFIG_AUTO64
               ? geom_capacity_auto(&plan->spec, free_bytes, c->headroom, &plan->capacity, err, err_bytes)
               : geom_capacity_explicit(&plan->spec, tokens, free_bytes, &plan->capacity, err, err_bytes);
}

int plan_make(const struct config *c, struct device *const *devices, const struct stored_regions *stored,
              const char *arena, struct plan *ret_plan, char *err, size_t err_bytes) {
    struct plan plan = { .n_devices = c->n_devices };
    uint64_t least = UINT64_MAX;
    uint32_t tightest = 0;
    char why[384];
    if (plan_spec(c, &plan.spec, err, err_bytes) || check_memory(c, arena, stored, &plan, err, err_bytes))
        return 1; /* the arena alone: nothing is planned yet */
    for (uint32_t i = 0; i < c->n_devices; i++) {
        device_identify(devices[i], &plan.identity[i]);
        if (device_free_bytes(devices[i], &plan.free_bytes[i], err, err_bytes)) return 1;
        if (c->device[i].kind == DEVICE_HOST) plan.free_bytes[i] = free_on_host(c, arena, stored, plan.free_bytes[i]);
        else if (stored) plan.free_bytes[i] += stored->bytes[i];
        if (plan.free_bytes[i] >= least) continue;
        least = plan.free_bytes[i];
        tightest = i;
    }
    if (resolve_capacity(c, stored, least, &plan, why, sizeof why)) {
        snprintf(err, err_bytes, "capacity on device.%u (%" PRIu64 " bytes free): %s", tightest, least, why);
        return 1;
    }
    if (check_memory(c, arena, stored, &plan, err, err_bytes)) return 1;
    plan_host(c, &plan);
    *ret_plan = plan;
    return 0;
}

bool plan_sizes(const struct config *c, struct plan *ret_plan) {
    struct plan plan = { .n_devices = c->n_devices };
    char ignored[8];
    if (c->capacity_tokens == CONFIG_AUTO64 || plan_spec(c, &plan.spec, ignored, sizeof ignored) ||
        geom_capacity_explicit(&plan.spec, c->capacity_tokens, UINT64_MAX, &plan.capacity, ignored, sizeof ignored))
        return false;
    plan_host(c, &plan);
    *ret_plan = plan;
    return true;
}

/* One for each page that can be stored, so that it is pages that run out first; bounded, for each costs about a
 * kilobyte of memory. */
static uint32_t continuations_of(const struct config *c, const struct plan *plan) {
    uint64_t pages = plan->capacity.layout.pages[0] + plan->arena_bytes / plan->host_stride[0], n;
    n = c->max_concurrency + pages;
    return or_auto(c->continuations, n < 4096 ? 4096 : n > 262144 ? 262144 : (uint32_t)n);
}

void plan_store_config(const struct config *c, const struct plan *plan, struct store_config *ret_store) {
    *ret_store = (struct store_config){
        .backend = plan->spec.backend,
        .more_pools = plan->spec.n_more,
        .max_concurrency = c->max_concurrency,
        .lease_growth = c->lease_growth != 0,
        .lease_window = c->lease_window,
        .map_ahead = c->map_ahead,
        .max_continuations = continuations_of(c, plan),
        .max_rolling = c->rolling_checkpoints,
        .has_state = c->state_bytes > 0,
        .state_slots = plan->spec.state_slots,
        .generation = c->first_generation,
        .host_bytes = plan->arena_bytes,
        .host_state_stride = plan->host_state_stride,
        .recorded = plan->arena_bytes > 0 || c->export == EXPORT_VMM,
    };
    take_windows(c, &plan->spec, ret_store);
    for (uint32_t p = 0; p < plan->capacity.layout.n_pools; p++) {
        ret_store->pool_pages[p] = plan->capacity.layout.pages[p];
        ret_store->host_stride[p] = plan->host_stride[p];
    }
}
