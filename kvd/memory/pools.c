/* SPDX-License-Identifier: Apache-2.0 */
#include "pools.h"

#include "log.h"
#include "systemd.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

static int new_region(struct device *device, const char *what, uint32_t rank, uint64_t bytes, uint8_t fill,
                      struct device_region **ret_region, char *err, size_t err_bytes) {
    char label[32], why[384];
    snprintf(label, sizeof label, "%s-r%u", what, rank);
    if (device_region_new(device, label, bytes, fill, ret_region, why, sizeof why)) {
        snprintf(err, err_bytes, "device.%u: %s", rank, why);
        return 1;
    }
    return 0;
}

uint32_t pools_fd_index(uint32_t rank, uint32_t what) { return rank * POOLS_FDS + what; }

static const struct device_region *region_at(const struct pools *p, uint32_t rank, uint32_t what) {
    if (rank >= p->n_ranks) return NULL;
    if (what == POOLS_FD_STATE) return p->state[rank];
    uint32_t pool = what % GEOM_MAX_POOLS;
    if (pool >= p->n_pools) return NULL;
    return what < POOLS_FD_TABLE ? p->planes[pool][rank] : p->table[pool][rank];
}

int pools_fd(const struct pools *p, uint32_t fd_index) {
    const struct device_region *region = region_at(p, fd_index / POOLS_FDS, fd_index % POOLS_FDS);
    struct device_export e = { .fd = -1 };
    if (region) device_region_export(region, &e);
    return region && e.kind == DEVICE_EXPORT_FD ? e.fd : -1;
}

static void describe_region(struct pools *p, const struct device_region *region, uint32_t fd_index,
                            struct kvd_region_info *ret_info) {
    struct device_export e;
    device_region_export(region, &e);
    ret_info->kind = e.kind;
    p->has_descriptors |= e.kind == DEVICE_EXPORT_FD;
    ret_info->fd_index = fd_index;
    ret_info->bytes = e.bytes;
    memcpy(ret_info->ipc_handle, e.ipc_handle, sizeof ret_info->ipc_handle);
    memcpy(ret_info->uuid, e.uuid, sizeof ret_info->uuid);
    ret_info->owner_pid = e.owner_pid;
    ret_info->local_address = e.local_address;
}

/* A CUDA IPC handle is a bearer token. */
static void make_public(struct kvd_region_info *region) {
    memset(region->ipc_handle, 0, sizeof region->ipc_handle);
    region->local_address = 0;
}

static void describe_group(const struct config *c, const struct config_pool *pool, const struct geom_group *group,
                           uint32_t g, struct kvd_layer_group *ret_info) {
    *ret_info = (struct kvd_layer_group){ .format = group->format,
                                          .storage = group->storage,
                                          .order = group->order,
                                          .n_layers = group->n_layers,
                                          .n_kv_heads = group->n_kv_heads,
                                          .head_dim = group->head_dim,
                                          .v_head_dim = group->v_head_dim,
                                          .row_bytes = group->row_bytes };
    memcpy(ret_info->name, c->layer_group[pool->group[g]].name, sizeof ret_info->name);
}

static void describe_pool(const struct config *c, const struct plan *plan, struct pools *p, uint32_t i) {
    const struct geom_pool_spec *s = &p->spec[i];
    const struct config_pool *from = plan_pool(c, &plan->spec, i);
    struct kvd_pool_info *info = &p->info.pool[i];
    *info = (struct kvd_pool_info){ .storage = s->storage,
                                    .order = s->order,
                                    .arrangement = s->arrangement,
                                    .n_layers = s->n_layers,
                                    .n_kv_heads = s->n_kv_heads,
                                    .head_dim = s->head_dim,
                                    .n_ranks = s->n_ranks,
                                    .pages = p->pages[i],
                                    .page_bytes = geom_page_bytes(s),
                                    .n_groups = s->n_groups,
                                    .window = s->window.tokens,
                                    .window_lead = s->window.lead,
                                    .window_aligned = s->window.aligned };
    memcpy(info->name, from->name, sizeof info->name);
    for (uint32_t g = 0; g < s->n_groups; g++) describe_group(c, from, &s->group[g], g, &info->group[g]);
    for (uint32_t r = 0; r < p->n_ranks; r++) {
        describe_region(p, p->planes[i][r], pools_fd_index(r, POOLS_FD_PLANES + i), &info->planes[r]);
        describe_region(p, p->table[i][r], pools_fd_index(r, POOLS_FD_TABLE + i), &info->table[r]);
    }
}

static void describe_store(const struct config *c, const struct plan *plan, struct pools *p) {
    struct kvd_store_info *info = &p->info;
    memcpy(info->name, c->store, sizeof info->name);
    info->backend = c->backend;
    info->n_pools = p->n_pools;
    info->max_context = c->max_context;
    info->max_concurrency = c->max_concurrency;
    info->row_entries = p->row_entries;
    info->draft_window = plan->spec.draft_window;
    info->map_ahead = c->map_ahead;
    info->state_bytes = c->state_bytes;
    info->state_slots = p->state_slots;
    info->state_stride = p->state_stride;
    info->capacity_tokens = plan->capacity.tokens;
    info->lease_growth = c->lease_growth != 0;
    info->pages_outlive = p->id != 0;
    geom_digest(&plan->spec, &plan->capacity.layout, info->geometry.bytes);
    for (uint32_t i = 0; i < p->n_pools; i++) describe_pool(c, plan, p, i);
    for (uint32_t r = 0; r < p->n_ranks && p->state_slots; r++)
        describe_region(p, p->state[r], pools_fd_index(r, POOLS_FD_STATE), &info->state[r]);
    p->public_info = *info;
    for (uint32_t r = 0; r < p->n_ranks; r++) {
        for (uint32_t i = 0; i < p->n_pools; i++) {
            make_public(&p->public_info.pool[i].planes[r]);
            make_public(&p->public_info.pool[i].table[r]);
        }
        make_public(&p->public_info.state[r]);
    }
}

/* A region that outlives the process: taken over from the one before, or made and given to the holder. */
static int open_stored(struct pools *p, struct stored_regions *stored, uint32_t rank, uint32_t what, uint64_t bytes,
                       struct device_region **ret_region, char *err, size_t err_bytes) {
    char name[FDSTORE_NAME], label[32], why[384];
    struct device_export e;
    snprintf(label, sizeof label, "%s-r%u", stored_kind_name(what), rank);
    struct stored_region *region = &stored->region[rank][what];
    if (p->adopted) {
        if (!device_region_adopt(p->device[rank], label, bytes, region->fd, ret_region, why, sizeof why)) {
            region->fd = -1;
            return 0;
        }
        snprintf(err, err_bytes, "device.%u: the region that an earlier kvd left cannot be taken over: %s", rank, why);
        return 1;
    }
    if (new_region(p->device[rank], stored_kind_name(what), rank, bytes, 0, ret_region, err, err_bytes)) return 1;
    if (!p->id) return 0;
    device_region_export(*ret_region, &e);
    stored_name(p->id, rank, what, p->pages[0], bytes, name, sizeof name);
    if (!fdstore_put(name, e.fd) && what == STORED_POOLS && rank == 0)
        LOG(LOG_WARNING,
            "export = vmm, but nobody keeps descriptors for this process (NOTIFY_SOCKET): its device pages go with it");
    return 0;
}

static int open_rank(const struct geom_layout *layout, struct pools *p, struct stored_regions *stored, uint32_t rank,
                     char *err, size_t err_bytes) {
    static const char *const tables[GEOM_MAX_POOLS] = { "main-table", "draft-table", "table2", "table3" };
    for (uint32_t i = 0; i < p->n_pools; i++)
        if (open_stored(p, stored, rank, STORED_POOLS + i, layout->pool_bytes[i], &p->planes[i][rank], err,
                        err_bytes) ||
            new_region(p->device[rank], tables[i], rank, layout->table_bytes[i], 0xff, &p->table[i][rank], err,
                       err_bytes))
            return 1; /* tables: every entry -1 (ROW-6) */
    if (!layout->state_bytes) return 0;
    return open_stored(p, stored, rank, STORED_STATE, layout->state_bytes, &p->state[rank], err, err_bytes);
}

static int open_ranks(const struct geom_layout *layout, struct pools *p, struct stored_regions *stored, char *err,
                      size_t err_bytes) {
    for (uint32_t r = 0; r < p->n_ranks; r++)
        if (open_rank(layout, p, stored, r, err, err_bytes)) return 1;
    return 0;
}

static void free_regions(struct pools *p) {
    for (uint32_t r = 0; r < p->n_ranks; r++) {
        for (uint32_t i = 0; i < p->n_pools; i++) {
            if (p->planes[i][r]) device_region_free(p->planes[i][r]);
            if (p->table[i][r]) device_region_free(p->table[i][r]);
            p->planes[i][r] = p->table[i][r] = NULL;
        }
        if (p->state[r]) device_region_free(p->state[r]);
        p->state[r] = NULL;
    }
}

/* What an earlier instance left, where it is whole and fits; it is let go before anything else takes the memory. */
static int open_regions(const struct config *c, const struct plan *plan, struct pools *p, struct stored_regions *stored,
                        char *err, size_t err_bytes) {
    const struct geom_layout *layout = &plan->capacity.layout;
    if (c->export == EXPORT_VMM && stored_matches(stored, layout, p->n_ranks)) {
        uint64_t id = stored->id;
        p->adopted = true;
        p->id = id;
        if (!open_ranks(layout, p, stored, err, err_bytes)) return 0;
        LOG(LOG_WARNING, "%.300s; new pools are made", err);
        free_regions(p);
        p->adopted = false;
    } else if (stored->id) {
        LOG(LOG_WARNING, "the device memory that an earlier kvd left is of another configuration: let go");
    }
    stored_drop(stored);
    p->id = 0;
    while (c->export == EXPORT_VMM && !p->id)
        if (getrandom(&p->id, sizeof p->id, 0) != sizeof p->id) p->id = 0;
    if (open_ranks(layout, p, stored, err, err_bytes)) return 1;
    if (p->id) (void)fdstore_wait(5000);
    return 0;
}

int pools_open(const struct config *config, const struct plan *plan, struct device *const *devices,
               struct stored_regions *stored, struct pools *ret_pools, char *err, size_t err_bytes) {
    const struct geom_layout *layout = &plan->capacity.layout;
    memset(ret_pools, 0, sizeof *ret_pools);
    ret_pools->n_pools = layout->n_pools;
    ret_pools->n_ranks = plan->n_devices;
    ret_pools->row_entries = geom_pages(config->max_context);
    for (uint32_t p = 0; p < layout->n_pools; p++) ret_pools->spec[p] = *geom_pool_at(&plan->spec, p);
    memcpy(ret_pools->pages, layout->pages, sizeof ret_pools->pages);
    memcpy(ret_pools->device, devices, plan->n_devices * sizeof *devices);
    if (plan->spec.state_bytes) { /* the plan has checked it */
        (void)geom_state(plan->spec.state_bytes, &ret_pools->state_spec, &ret_pools->state_stride, NULL, 0);
        ret_pools->state_slots = plan->spec.state_slots;
    }
    if (open_regions(config, plan, ret_pools, stored, err, err_bytes)) {
        pools_close(ret_pools);
        return 1;
    }
    describe_store(config, plan, ret_pools);
    return 0;
}

void pools_close(struct pools *pools) {
    for (uint32_t r = 0; r < pools->n_ranks; r++) {
        device_close(pools->device[r]); /* frees its regions */
        pools->device[r] = NULL;
    }
    pools->n_ranks = 0;
}
