/* SPDX-License-Identifier: Apache-2.0
 *
 * Attaching: a rank's planes and state slots (read-write) and block tables (read-only) in this process, and views of
 * them.
 *
 * Before anything is mapped the geometry is computed here from the store's description and its digest compared with
 * kvd's: two builds that place a byte differently must not meet (SRV-4). Mappings of one region in one process are
 * shared and counted by the device layer.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client.h"
#include "device.h"
#include "fds.h"
#include "frontiers.h"
#include "geometry.h"

struct kvd_store {
    pid_t pid;
    uint32_t rank;
    const struct kvd_client *client; /* while it is being attached, and */
    struct fds fds;
    struct kvd_store_info info;
    struct geom_pool_spec spec[KVD_MAX_POOLS];
    struct device_import *planes[KVD_MAX_POOLS], *table[KVD_MAX_POOLS];
    struct device_import *state; /* NULL: no state images */
    struct frontiers *frontiers; /* NULL: no board */
};

/* ---- geometry --------------------------------------------------------------------------------------- */

static struct geom_group group_spec(const struct kvd_layer_group *group) {
    return (struct geom_group){ .format = (enum kvd_format)group->format,
                                .storage = (enum kvd_storage)group->storage,
                                .order = (enum geom_order)group->order,
                                .n_layers = group->n_layers,
                                .n_kv_heads = group->n_kv_heads,
                                .head_dim = group->head_dim,
                                .v_head_dim = group->v_head_dim,
                                .row_bytes = group->row_bytes };
}

static struct geom_pool_spec pool_spec(const struct kvd_pool_info *pool) {
    struct geom_pool_spec spec = {
        .storage = (enum kvd_storage)pool->storage,
        .order = (enum geom_order)pool->order,
        .arrangement = (enum geom_arrangement)pool->arrangement,
        .n_layers = pool->n_layers,
        .n_kv_heads = pool->n_kv_heads,
        .head_dim = pool->head_dim,
        .n_ranks = pool->n_ranks,
        .n_groups = pool->n_groups,
        .window = { .tokens = pool->window, .lead = pool->window_lead, .aligned = pool->window_aligned }
    };
    for (uint32_t i = 0; i < pool->n_groups && i < GEOM_MAX_GROUPS; i++) spec.group[i] = group_spec(&pool->group[i]);
    return spec;
}

static enum kvd_status check_pools(const struct kvd_store_info *info, struct kvd_error *error) {
    char why[KVD_MESSAGE_BYTES];
    if (info->n_pools < 1 || info->n_pools > GEOM_MAX_POOLS)
        return client_fail(
            error, KVD_FAILED_PRECONDITION,
            "kvd describes a store of %u pools, and this library knows up to %d: install matching versions",
            info->n_pools, GEOM_MAX_POOLS);
    if (info->row_entries != geom_pages(info->max_context)) {
        return client_fail(error, KVD_FAILED_PRECONDITION,
                           "a row of the block tables has %u entries for kvd, and %u tokens are %u entries for this "
                           "library: install matching versions",
                           info->row_entries, info->max_context, geom_pages(info->max_context));
    }
    for (uint32_t i = 0; i < info->n_pools; i++) {
        struct geom_pool_spec spec = pool_spec(&info->pool[i]);
        if (geom_pool_check(&spec, why, sizeof why) != 0)
            return client_fail(error, KVD_FAILED_PRECONDITION, "this library does not know the geometry of pool %u: %s",
                               i, why);
        if (geom_page_bytes(&spec) != info->pool[i].page_bytes) {
            return client_fail(error, KVD_FAILED_PRECONDITION,
                               "a page of pool %u has %llu bytes for kvd and %llu for this library: install matching "
                               "versions",
                               i, (unsigned long long)info->pool[i].page_bytes,
                               (unsigned long long)geom_page_bytes(&spec));
        }
    }
    return KVD_OK;
}

static enum kvd_status check_digest(const struct kvd_store_info *info, struct kvd_error *error) {
    struct geom_store_spec spec = { .backend = (enum geom_backend)info->backend,
                                    .main = pool_spec(&info->pool[0]),
                                    .max_context = info->max_context,
                                    .max_concurrency = info->max_concurrency,
                                    .draft_window = info->draft_window,
                                    .state_bytes = info->state_bytes };
    struct geom_layout layout = { .n_pools = info->n_pools };
    uint8_t digest[KVD_DIGEST_BYTES];
    if (spec.backend != GEOM_OFF && info->n_pools > 1) spec.draft = pool_spec(&info->pool[1]);
    for (uint32_t i = geom_pool_count(&spec); i < info->n_pools; i++)
        spec.more[spec.n_more++] = pool_spec(&info->pool[i]);
    for (uint32_t i = 0; i < info->n_pools; i++) layout.pages[i] = info->pool[i].pages;
    geom_digest(&spec, &layout, digest);
    if (memcmp(digest, info->geometry.bytes, sizeof digest) == 0) return KVD_OK;
    return client_fail(error, KVD_FAILED_PRECONDITION,
                       "the geometry of store %s has digest %02x%02x%02x%02x... for kvd and %02x%02x%02x%02x... for "
                       "this "
                       "library: they would place bytes differently; install matching versions",
                       info->name, info->geometry.bytes[0], info->geometry.bytes[1], info->geometry.bytes[2],
                       info->geometry.bytes[3], digest[0], digest[1], digest[2], digest[3]);
}

/* ---- mapping ------------------------------------------------------------------------------------------ */

static enum kvd_status status_of(int rc) {
    switch (rc) {
    case -ENOMEM:
    case -EMFILE:
    case -ENFILE: return KVD_RESOURCE_EXHAUSTED;
    case -EACCES:
    case -EPERM: return KVD_PERMISSION_DENIED;
    case -ENOSYS:
    case -ENOTSUP: return KVD_UNIMPLEMENTED;
    case -EIO: return KVD_UNAVAILABLE;
    case -EINVAL: return KVD_INVALID_ARGUMENT;
    default: return KVD_FAILED_PRECONDITION;
    }
}

static enum kvd_status map_region(struct kvd_store *store, const struct kvd_region_info *region,
                                  const uint8_t *device_uuid, bool read_only, const char *what, uint64_t least_bytes,
                                  struct device_import **ret_import, struct kvd_error *error) {
    struct device_export exported = { .kind = region->kind,
                                      .fd = -1,
                                      .bytes = region->bytes,
                                      .owner_pid = region->owner_pid,
                                      .local_address = region->local_address,
                                      .owner_instance = kvd_client_epoch(store->client) };
    char why[KVD_MESSAGE_BYTES] = "";
    memcpy(exported.ipc_handle, region->ipc_handle, sizeof exported.ipc_handle);
    memcpy(exported.uuid, region->uuid, sizeof exported.uuid);
    if (region->kind > DEVICE_EXPORT_FD) {
        return client_fail(error, KVD_FAILED_PRECONDITION,
                           "the %s are exported in a way (%u) that this library does not know", what, region->kind);
    }
    if (region->kind == 0)
        return client_fail(error, KVD_PERMISSION_DENIED, "kvd shows this session no %s: attach as a worker", what);
    if (region->bytes < least_bytes) {
        return client_fail(error, KVD_FAILED_PRECONDITION, "the %s have %llu bytes, their geometry needs %llu", what,
                           (unsigned long long)region->bytes, (unsigned long long)least_bytes);
    }
    if (region->kind == DEVICE_EXPORT_FD) {
        enum kvd_status status = fds_fetch(&store->fds, store->info.fd_socket, region->fd_index,
                                           client_deadline(store->client), &exported.fd, error);
        if (status != KVD_OK) return status;
    }
    int rc = device_import(&exported, device_uuid, read_only, ret_import, why, sizeof why);
    if (exported.fd >= 0) close(exported.fd);
    if (rc == 0) return KVD_OK;
    return client_fail(error, status_of(rc), "the %s cannot be mapped: %.300s", what, why);
}

static enum kvd_status check_device(const struct kvd_region_info *region, const uint8_t *device_uuid,
                                    struct kvd_error *error) {
    if (region->kind == 1 && !device_uuid) {
        return client_fail(error, KVD_INVALID_ARGUMENT,
                           "the store is in GPU memory: pass the UUID of the GPU that this process runs on");
    }
    if (device_uuid && memcmp(device_uuid, region->uuid, 16) != 0) {
        return client_fail(error, KVD_FAILED_PRECONDITION,
                           "the rank's memory is on device %02x%02x%02x%02x..., this process runs on "
                           "%02x%02x%02x%02x...: "
                           "attach the rank of this device",
                           region->uuid[0], region->uuid[1], region->uuid[2], region->uuid[3], device_uuid[0],
                           device_uuid[1], device_uuid[2], device_uuid[3]);
    }
    return KVD_OK;
}

static enum kvd_status map_pool(struct kvd_store *store, uint32_t i, const uint8_t *device_uuid,
                                struct kvd_error *error) {
    const struct kvd_pool_info *pool = &store->info.pool[i];
    const struct kvd_region_info *planes = &pool->planes[store->rank], *table = &pool->table[store->rank];
    uint64_t table_bytes = (uint64_t)store->info.row_entries * store->info.max_concurrency * sizeof(int32_t);
    char planes_name[32], tables_name[32];
    snprintf(planes_name, sizeof planes_name, "planes of pool %u", i);
    snprintf(tables_name, sizeof tables_name, "block tables of pool %u", i);
    store->spec[i] = pool_spec(pool);
    enum kvd_status status = check_device(planes, device_uuid, error);
    if (status == KVD_OK) {
        status = map_region(store, planes, device_uuid, false, planes_name,
                            geom_region_bytes(&store->spec[i], pool->pages), &store->planes[i], error);
    }
    if (status == KVD_OK)
        status = map_region(store, table, device_uuid, true, tables_name, table_bytes, &store->table[i], error);
    return status;
}

/* The stride is told, not computed: a slot is the engine's bytes, of which this library knows the number alone. A kvd
 * that says nothing of slots is older than they are: everything else of its store can be used. */
static enum kvd_status map_state(struct kvd_store *store, const uint8_t *device_uuid, struct kvd_error *error) {
    const struct kvd_store_info *info = &store->info;
    uint64_t bytes;
    if (!info->state_bytes || !info->state_slots) return KVD_OK;
    if (info->state_stride < info->state_bytes ||
        __builtin_mul_overflow(info->state_stride, (uint64_t)info->state_slots, &bytes)) {
        return client_fail(error, KVD_FAILED_PRECONDITION,
                           "kvd describes %u state slots of %llu bytes, %llu bytes apart, which cannot be: install "
                           "matching versions",
                           info->state_slots, (unsigned long long)info->state_bytes,
                           (unsigned long long)info->state_stride);
    }
    enum kvd_status status = check_device(&info->state[store->rank], device_uuid, error);
    if (status != KVD_OK) return status;
    return map_region(store, &info->state[store->rank], device_uuid, false, "state slots", bytes, &store->state, error);
}

/* Whatever fails, Rounds serve as well. */
static void map_board(struct kvd_store *store) {
    const struct kvd_store_info *info = &store->info;
    uint64_t deadline_ns = client_deadline(store->client);
    int segment, bell;
    if (!info->board_index || !info->bell_index) return;
    if (fds_fetch(&store->fds, info->fd_socket, info->board_index, deadline_ns, &segment, NULL) != KVD_OK) return;
    if (fds_fetch(&store->fds, info->fd_socket, info->bell_index, deadline_ns, &bell, NULL) == KVD_OK)
        store->frontiers = frontiers_open(segment, bell, kvd_client_epoch(store->client), info->max_concurrency);
    else close(segment);
}

/* A token is of one instance and one session. Where either has ended since, that is the reason, and every request says
 * so. */
static enum kvd_status explain_denial(kvd_client *c, struct kvd_store *store, struct kvd_error *error) {
    struct kvd_error now;
    enum kvd_status status = kvd_describe(c, &store->info, &now);
    if (status == KVD_OK) return KVD_PERMISSION_DENIED;
    if (error) *error = now;
    return status;
}

enum kvd_status kvd_attach(kvd_client *c, uint32_t rank, const uint8_t *device_uuid, kvd_store **ret_store,
                           struct kvd_error *error) {
    if (!ret_store) return client_fail(error, KVD_INVALID_ARGUMENT, "kvd_attach needs a place for the store");
    struct kvd_store *store = calloc(1, sizeof *store);
    if (!store) return client_fail(error, KVD_RESOURCE_EXHAUSTED, "out of memory for a store");
    store->pid = getpid();
    store->rank = rank;
    store->client = c;
    store->fds.socket = -1;
    enum kvd_status status = kvd_describe(c, &store->info, error);
    store->fds.token = store->info.fd_token;
    if (status == KVD_OK) status = check_pools(&store->info, error);
    if (status == KVD_OK) status = check_digest(&store->info, error);
    if (status == KVD_OK && rank >= store->info.pool[0].n_ranks) {
        status = client_fail(error, KVD_OUT_OF_RANGE, "asked for rank %u; store %s has ranks 0 to %u", rank,
                             store->info.name, store->info.pool[0].n_ranks - 1);
    }
    for (uint32_t i = 0; status == KVD_OK && i < store->info.n_pools; i++)
        status = map_pool(store, i, device_uuid, error);
    if (status == KVD_OK) status = map_state(store, device_uuid, error);
    if (status == KVD_OK) map_board(store);
    if (status == KVD_PERMISSION_DENIED) status = explain_denial(c, store, error);
    fds_close(&store->fds);
    store->client = NULL;
    if (status == KVD_OK) *ret_store = store;
    else kvd_detach(store);
    return status;
}

void kvd_detach(kvd_store *store) {
    if (!store) return;
    for (uint32_t i = 0; store->pid == getpid() && i < KVD_MAX_POOLS; i++) {
        if (store->planes[i]) device_unimport(store->planes[i]);
        if (store->table[i]) device_unimport(store->table[i]);
    }
    if (store->state && store->pid == getpid()) device_unimport(store->state);
    frontiers_close(store->frontiers, store->pid != getpid());
    free(store);
}

const struct kvd_store_info *kvd_store_describe(const kvd_store *store) { return store ? &store->info : NULL; }

/* ---- frontiers -------------------------------------------------------------------------------------------- */

enum kvd_status kvd_advance(kvd_store *store, struct kvd_frontier *items, uint32_t n, uint32_t *ret_due,
                            struct kvd_error *error) {
    if (!store || (n && !items) || !ret_due)
        return client_fail(error, KVD_INVALID_ARGUMENT, "kvd_advance needs a store, items and a place for a number");
    if (store->pid != getpid())
        return client_fail(error, KVD_FAILED_PRECONDITION,
                           "this store was attached by process %d, of which this one is a fork", (int)store->pid);
    for (uint32_t i = 0; i < n; i++)
        if (items[i].row >= store->info.max_concurrency)
            return client_fail(error, KVD_OUT_OF_RANGE, "asked for row %u; store %s has rows 0 to %u", items[i].row,
                               store->info.name, store->info.max_concurrency - 1);
    *ret_due = frontiers_advance(store->frontiers, items, n);
    return KVD_OK;
}

/* ---- state ------------------------------------------------------------------------------------------------ */

enum kvd_status kvd_store_state(const kvd_store *store, uint32_t slot, void **ret_address, uint64_t *ret_bytes,
                                struct kvd_error *error) {
    if (!store || !ret_address || !ret_bytes)
        return client_fail(error, KVD_INVALID_ARGUMENT, "a state slot needs a store and places for address and bytes");
    if (store->pid != getpid())
        return client_fail(error, KVD_FAILED_PRECONDITION,
                           "this store was attached by process %d, of which this one is a fork", (int)store->pid);
    if (!store->state)
        return client_fail(error, KVD_FAILED_PRECONDITION, "asked for state slot %u; store %s %s", slot,
                           store->info.name,
                           store->info.state_bytes ? "belongs to a kvd that does not share them: install a later one"
                                                   : "keeps no state images: set state_bytes = in section [capacity]");
    if (slot >= store->info.state_slots)
        return client_fail(error, KVD_OUT_OF_RANGE, "asked for state slot %u; store %s has slots 0 to %u%s", slot,
                           store->info.name, store->info.state_slots - 1,
                           slot == KVD_NONE ? ", and KVD_NONE stands for none" : "");
    *ret_address = (char *)device_import_address(store->state) + slot * store->info.state_stride;
    *ret_bytes = store->info.state_bytes;
    return KVD_OK;
}

/* ---- views ------------------------------------------------------------------------------------------------ */

enum kvd_status kvd_store_batch_view(const kvd_store *store, uint32_t pool, uint32_t layer,
                                     PagedKVBatchLayerView *ret_view, struct kvd_error *error) {
    char why[KVD_MESSAGE_BYTES] = "";
    PagedKVBatchLayerView view = { .n_pages = 0 };
    if (!store || !ret_view) return client_fail(error, KVD_INVALID_ARGUMENT, "a view needs a store and a place for it");
    if (store->pid != getpid())
        return client_fail(error, KVD_FAILED_PRECONDITION,
                           "this store was attached by process %d, of which this one is a fork", (int)store->pid);
    if (pool >= store->info.n_pools || layer >= store->info.pool[pool].n_layers) {
        return client_fail(error, KVD_OUT_OF_RANGE, "asked for pool %u, layer %u; store %s has %u pools%s", pool, layer,
                           store->info.name, store->info.n_pools,
                           pool < store->info.n_pools ? ", and this one fewer layers" : "");
    }
    if (geom_layer_view(&store->spec[pool], store->info.pool[pool].pages, store->rank, layer,
                        device_import_address(store->planes[pool]), &view, why, sizeof why) != 0)
        return client_fail(error, KVD_INTERNAL, "pool %u, layer %u: %s", pool, layer, why);
    view.block_tables = device_import_address(store->table[pool]);
    view.n_logical = store->info.row_entries;
    view.n_rows = store->info.max_concurrency;
    *ret_view = view;
    return KVD_OK;
}

enum kvd_status kvd_store_layer_view(const kvd_store *store, uint32_t pool, uint32_t layer, uint32_t row,
                                     PagedKVLayerView *ret_view, struct kvd_error *error) {
    PagedKVBatchLayerView batch;
    if (!ret_view) return client_fail(error, KVD_INVALID_ARGUMENT, "a view needs a place for it");
    enum kvd_status status = kvd_store_batch_view(store, pool, layer, &batch, error);
    if (status != KVD_OK) return status;
    if (row >= batch.n_rows)
        return client_fail(error, KVD_OUT_OF_RANGE, "asked for row %u; there are %u", row, batch.n_rows);
    *ret_view = (PagedKVLayerView){ .k = batch.k,
                                    .v = batch.v,
                                    .k_scale = batch.k_scale,
                                    .v_scale = batch.v_scale,
                                    .block_table = batch.block_tables + (size_t)row * batch.n_logical,
                                    .n_logical = batch.n_logical,
                                    .n_pages = batch.n_pages,
                                    .head_dim = batch.head_dim,
                                    .n_kv_heads = batch.n_kv_heads,
                                    .storage = batch.storage,
                                    .format = batch.format,
                                    .v_head_dim = batch.v_head_dim,
                                    .window = batch.window,
                                    .window_aligned = batch.window_aligned };
    return KVD_OK;
}
