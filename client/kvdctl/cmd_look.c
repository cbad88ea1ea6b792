/* SPDX-License-Identifier: Apache-2.0
 *
 * Commands that look: status, stores and the lists.
 */
#include <stdio.h>
#include <stdlib.h>

#include "ctl.h"
#include "figures.h"

#define N(array) (sizeof(array) / sizeof *(array))

static const char *value_name(const char *const *names, size_t n, uint32_t value) {
    return value < n ? names[value] : "?";
}

/* ---- status ------------------------------------------------------------------------------------------- */

static void show_daemon(struct ctl *ctl, const struct kvd_stats *stats, const struct kvd_store_info *info) {
    static const struct out_column lines[] = {
        { "store", "store", false, 0 },
        { "version", "version", false, 0 },
        { "uptime_text", "up for", false, 0 },
        { "draining", "draining", false, 0 },
        { "former_drivers", "waits for processes of before", false, 0 },
        { "sessions", "sessions", false, 0 },
        { "sequences_text", "sequences", false, 0 },
        { "continuations_text", "continuations", false, 0 },
        { "state_slots_text", "state slots", false, 0 },
        { "requests_total", "requests", false, 0 },
        { "refusals_total", "refused", false, 0 },
        { "frames_bad_total", "broken frames", false, 0 },
        { "membership_text", "membership entries", false, 0 },
        { "resident_memory_bytes_text", "resident memory", false, 0 },
        { "epoch", "instance", false, 0 },
        { "revision", "revision", false, 0 },
    };
    out_facts(ctl->out, "daemon", lines, N(lines), figures_daemon(stats, info));
}

static void show_pools(struct ctl *ctl, const struct kvd_stats *stats, const struct kvd_store_info *info) {
    static const struct out_column columns[] = {
        { "pool", "POOL", false, 0 },
        { "pages", "PAGES", true, 0 },
        { "allocated_pages", "ALLOCATED", true, 0 },
        { "reserved_pages", "RESERVED", true, 0 },
        { "available_pages", "FREE", true, 0 },
        { "available_text", "FREE %", true, 0 },
        { "quarantined_pages", "QUARANTINED", true, 0 },
        { "shared_pages", "SHARED", true, 0 },
        { "lent_pages", "LENT", true, 0 },
        { "rows_text", "ROWS", true, 0 },
    };
    out_table(ctl->out, "pools", columns, N(columns), figures_pools(stats, info));
}

static void show_arena(struct ctl *ctl, const struct kvd_stats *stats) {
    static const struct out_column lines[] = {
        { "occupied_text", "host arena", false, 0 },
        { "largest_free_bytes_text", "largest free extent", false, 0 },
        { "state_images", "state images in it", false, 0 },
        { "demoted_continuations", "demoted continuations", false, 0 },
        { "moves_text", "moves under way", false, 0 },
        { "damaged_replicas_total", "damaged copies", false, 0 },
        { "lost_continuations_total", "lost continuations", false, 0 },
    };
    cJSON *arena = figures_arena(stats);
    if (stats->host_capacity) out_facts(ctl->out, "arena", lines, N(lines), arena);
    else out_add(ctl->out, "arena", arena);
}

int cmd_status(struct ctl *ctl) {
    struct kvd_stats stats;
    struct kvd_store_info info;
    struct kvd_error error;
    enum kvd_status status = kvd_stats(ctl->client, &stats, &error);
    if (status == KVD_OK) status = kvd_describe(ctl->client, &info, &error);
    if (status != KVD_OK) return ctl_refused(ctl, status, &error);
    show_daemon(ctl, &stats, &info);
    show_pools(ctl, &stats, &info);
    show_arena(ctl, &stats);
    return CTL_OK;
}

/* ---- stores ------------------------------------------------------------------------------------------- */

static void show_store(struct ctl *ctl, const struct kvd_store_info *info) {
    static const char *const backends[] = { "off", "mtp", "dflash" };
    static const struct out_column lines[] = {
        { "name", "store", false, 0 },
        { "backend", "speculative backend", false, 0 },
        { "max_context", "longest sequence (tokens)", false, 0 },
        { "max_concurrency", "sequences at once", false, 0 },
        { "capacity_tokens", "capacity (tokens)", false, 0 },
        { "draft_window", "draft window", false, 0 },
        { "map_ahead", "pages mapped ahead", false, 0 },
        { "lease_growth", "entitlement grows by leases", false, 0 },
        { "pages_outlive", "device pages outlive kvd", false, 0 },
        { "state_bytes_text", "state image", false, 0 },
        { "geometry", "geometry digest", false, 0 },
    };
    char digest[2 * KVD_DIGEST_BYTES + 1];
    for (size_t i = 0; i < KVD_DIGEST_BYTES; i++) snprintf(digest + 2 * i, 3, "%02x", info->geometry.bytes[i]);
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "name", info->name);
    cJSON_AddStringToObject(o, "backend", value_name(backends, N(backends), info->backend));
    out_put_u64(o, "max_context", info->max_context);
    out_put_u64(o, "max_concurrency", info->max_concurrency);
    out_put_u64(o, "row_entries", info->row_entries);
    out_put_u64(o, "capacity_tokens", info->capacity_tokens);
    out_put_u64(o, "draft_window", info->draft_window);
    out_put_u64(o, "map_ahead", info->map_ahead);
    cJSON_AddBoolToObject(o, "lease_growth", info->lease_growth);
    cJSON_AddBoolToObject(o, "pages_outlive", info->pages_outlive);
    out_put_bytes(o, "state_bytes", info->state_bytes);
    cJSON_AddStringToObject(o, "geometry", digest);
    out_facts(ctl->out, "store", lines, N(lines), o);
}

static const char *const storages[] = { "bf16", "int8", "fp8", "nvfp4", "k8v4", "fp8-tensor" },
                         *const orders[] = { "page-major", "head-major" },
                         *const arrangements[] = { "dense", "record" }, *const formats[] = { "kv", "latent", "packed" };

/* Empty where all pools are of one shape. */
static void show_groups(struct ctl *ctl, const struct kvd_store_info *info) {
    static const struct out_column columns[] = {
        { "pool", "POOL", false, 0 },          { "group", "GROUP", false, 0 },
        { "format", "FORMAT", false, 0 },      { "storage", "STORAGE", false, 0 },
        { "layers", "LAYERS", true, 0 },       { "kv_heads", "KV HEADS", true, 0 },
        { "head_dim", "HEAD DIM", true, 0 },   { "v_head_dim", "V HEAD DIM", true, 1 },
        { "row_bytes", "ROW BYTES", true, 0 }, { "order", "ORDER", false, 2 },
    };
    cJSON *rows = cJSON_CreateArray();
    for (uint32_t i = 0; i < info->n_pools && i < KVD_MAX_POOLS; i++)
        for (uint32_t g = 0; g < info->pool[i].n_groups && g < KVD_MAX_LAYER_GROUPS; g++) {
            const struct kvd_layer_group *group = &info->pool[i].group[g];
            cJSON *o = cJSON_CreateObject();
            cJSON_AddStringToObject(o, "pool", figures_pool(info, i));
            cJSON_AddStringToObject(o, "group", group->name);
            cJSON_AddStringToObject(o, "format", value_name(formats, N(formats), group->format));
            cJSON_AddStringToObject(o, "storage",
                                    group->format ? "bytes" : value_name(storages, N(storages), group->storage));
            out_put_u64(o, "layers", group->n_layers);
            out_put_u64(o, "kv_heads", group->n_kv_heads);
            out_put_u64(o, "head_dim", group->head_dim);
            out_put_u64(o, "v_head_dim", group->v_head_dim);
            out_put_u64(o, "row_bytes", group->row_bytes);
            cJSON_AddStringToObject(o, "order", value_name(orders, N(orders), group->order));
            cJSON_AddItemToArray(rows, o);
        }
    if (cJSON_GetArraySize(rows)) out_table(ctl->out, "layer_groups", columns, N(columns), rows);
    else cJSON_Delete(rows);
}

int cmd_stores(struct ctl *ctl) {
    static const struct out_column columns[] = {
        { "pool", "POOL", false, 0 },           { "storage", "STORAGE", false, 0 },
        { "layers", "LAYERS", true, 0 },        { "kv_heads", "KV HEADS", true, 0 },
        { "head_dim", "HEAD DIM", true, 0 },    { "ranks", "RANKS", true, 1 },
        { "pages", "PAGES", true, 0 },          { "page_bytes_text", "A PAGE", true, 0 },
        { "bytes_text", "ALL PAGES", true, 0 }, { "window_text", "WINDOW", true, 1 },
        { "order", "ORDER", false, 3 },         { "arrangement", "PLANES", false, 2 },
    };
    struct kvd_store_info info;
    struct kvd_error error;
    enum kvd_status status = kvd_describe(ctl->client, &info, &error);
    if (status != KVD_OK) return ctl_refused(ctl, status, &error);
    show_store(ctl, &info);
    cJSON *rows = cJSON_CreateArray();
    for (uint32_t i = 0; i < info.n_pools && i < KVD_MAX_POOLS; i++) {
        const struct kvd_pool_info *pool = &info.pool[i];
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "pool", figures_pool(&info, i));
        cJSON_AddStringToObject(o, "storage",
                                pool->n_groups ? "groups" : value_name(storages, N(storages), pool->storage));
        out_put_u64(o, "layers", pool->n_layers);
        out_put_u64(o, "kv_heads", pool->n_kv_heads);
        out_put_u64(o, "head_dim", pool->head_dim);
        out_put_u64(o, "ranks", pool->n_ranks);
        out_put_u64(o, "pages", pool->pages);
        out_put_bytes(o, "page_bytes", pool->page_bytes);
        out_put_bytes(o, "bytes", pool->page_bytes * pool->pages);
        out_put_u64(o, "window", pool->window);
        out_put_u64(o, "window_lead", pool->window_lead);
        cJSON_AddBoolToObject(o, "window_aligned", pool->window_aligned);
        if (pool->window) out_put_text(o, "window_text", "%u%s", pool->window, pool->window_aligned ? " aligned" : "");
        else cJSON_AddStringToObject(o, "window_text", "-");
        cJSON_AddStringToObject(o, "order", value_name(orders, N(orders), pool->order));
        cJSON_AddStringToObject(o, "arrangement", value_name(arrangements, N(arrangements), pool->arrangement));
        cJSON_AddItemToArray(rows, o);
    }
    out_table(ctl->out, "pools", columns, N(columns), rows);
    show_groups(ctl, &info);
    return CTL_OK;
}

/* ---- lists ---------------------------------------------------------------------------------------------- */

/* null where there is none: no store with state, or not yet. */
static void put_slot(cJSON *object, uint32_t slot) {
    if (slot == KVD_NONE) cJSON_AddNullToObject(object, "state_slot");
    else out_put_u64(object, "state_slot", slot);
}

static void put_age(cJSON *object, uint64_t ns) {
    cJSON_AddNumberToObject(object, "age_seconds", (double)ns / 1e9);
    figures_duration(object, "age_text", (double)ns / 1e9);
}

static cJSON *sequence_row(const struct kvd_sequence_info *s) {
    static const char *const states[] = { "activating", "active", "quarantined" };
    char buf[24];
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "sequence", ctl_handle_text(s->sequence.bits, buf));
    out_put_text(o, "state", "%s%s%s", value_name(states, N(states), s->state), s->lends ? ", lends" : "",
                 s->ending ? ", ending" : "");
    cJSON_AddStringToObject(o, "owner", ctl_handle_text(s->owner.bits, buf));
    cJSON_AddStringToObject(o, "worker", ctl_handle_text(s->worker.bits, buf));
    cJSON_AddStringToObject(o, "group", ctl_handle_text(s->group.bits, buf));
    ctl_put_domain(o, &s->root);
    put_age(o, s->age_ns);
    out_put_u64(o, "prompt_tokens", s->prompt_tokens);
    out_put_u64(o, "ceiling_tokens", s->ceiling_tokens);
    out_put_u64(o, "named_pages", s->named_pages);
    cJSON_AddBoolToObject(o, "lends", s->lends);
    put_slot(o, s->state_slot);
    cJSON *pools = cJSON_AddArrayToObject(o, "pools");
    for (uint32_t i = 0; i < s->n_pools && i < KVD_MAX_POOLS; i++) {
        cJSON *pool = cJSON_CreateObject();
        out_put_u64(pool, "row", s->pool[i].row);
        out_put_u64(pool, "committed", s->pool[i].committed);
        out_put_u64(pool, "membership", s->pool[i].membership);
        out_put_u64(pool, "entitlement", s->pool[i].entitlement);
        out_put_u64(pool, "first", s->pool[i].first);
        out_put_u64(pool, "protected", s->pool[i].protected_frontier);
        cJSON_AddItemToArray(pools, pool);
    }
    out_put_u64(o, "committed", s->pool[0].committed);
    out_put_u64(o, "row", s->pool[0].row);
    out_put_text(o, "pages_text", "%u of %u", s->pool[0].membership, s->pool[0].entitlement);
    return o;
}

static const char *continuation_place(const struct kvd_continuation_info *c) {
    bool host = c->image_in_host;
    for (uint32_t i = 0; i < KVD_MAX_POOLS; i++) host = host || c->host_pages[i];
    if (c->live) return "live";
    if (c->moving) return "moving";
    if (c->rolling) return host ? "device, host, rolling" : "device, rolling";
    return !host ? "device" : c->demoted ? "host" : "device, host";
}

static struct kvd_store_info described; /* for the bytes of pages */

static cJSON *continuation_row(const struct kvd_continuation_info *c) {
    char buf[24];
    uint64_t freed = 0;
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "continuation", ctl_handle_text(c->continuation.bits, buf));
    ctl_put_domain(o, &c->root);
    out_put_u64(o, "frontier", c->frontier);
    out_put_u64(o, "named_pages", c->named_pages);
    cJSON_AddBoolToObject(o, "tail_named", c->tail_named);
    out_put_u64(o, "retention", c->retention);
    out_put_u64(o, "sharers", c->sharers);
    cJSON_AddBoolToObject(o, "claimed", c->claimed);
    cJSON_AddBoolToObject(o, "live", c->live);
    cJSON_AddBoolToObject(o, "rolling", c->rolling);
    put_slot(o, c->state_slot);
    cJSON_AddStringToObject(o, "place", continuation_place(c));
    cJSON_AddBoolToObject(o, "demoted", c->demoted);
    cJSON_AddBoolToObject(o, "moving", c->moving);
    out_put_u64(o, "device_pages", c->device_pages[0]);
    out_put_u64(o, "host_pages", c->host_pages[0]);
    out_put_u64(o, "backend_device_pages", figures_other_pages(c->device_pages));
    out_put_u64(o, "backend_host_pages", figures_other_pages(c->host_pages));
    out_put_u64(o, "created", c->created);
    out_put_u64(o, "used", c->used);
    put_age(o, c->age_ns);
    cJSON_AddNumberToObject(o, "idle_seconds", (double)c->idle_ns / 1e9);
    figures_duration(o, "idle_text", (double)c->idle_ns / 1e9);
    out_put_u64(o, "pages", c->pages[0]);
    out_put_u64(o, "exclusive_pages", c->exclusive_pages[0]);
    out_put_u64(o, "backend_pages", figures_other_pages(c->pages));
    out_put_u64(o, "backend_exclusive_pages", figures_other_pages(c->exclusive_pages));
    for (uint32_t i = 0; i < KVD_MAX_POOLS; i++) freed += c->exclusive_pages[i] * described.pool[i].page_bytes;
    out_put_bytes(o, "exclusive_bytes", freed);
    return o;
}

static cJSON *session_row(const struct kvd_session_info *s) {
#define ROLE_NAME(name, number, text) text,
    static const char *const roles[] = { "?", KVD_ROLE_LIST(ROLE_NAME) };
#undef ROLE_NAME
    char buf[24];
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "session", ctl_handle_text(s->session.bits, buf));
    cJSON_AddStringToObject(o, "name", s->name);
    cJSON_AddStringToObject(o, "role", value_name(roles, N(roles), s->role));
    out_put_u64(o, "rank", s->rank);
    out_put_u64(o, "pid", s->pid);
    out_put_u64(o, "uid", s->uid);
    out_put_u64(o, "gid", s->gid);
    cJSON_AddBoolToObject(o, "connected", s->connected);
    cJSON_AddBoolToObject(o, "fenced", s->fenced);
    out_put_u64(o, "sequences", s->sequences);
    out_put_u64(o, "requests", s->requests);
    put_age(o, s->age_ns);
    return o;
}

/* Walks a list to its end, a page of it at a time. */
#define DEFINE_WALK(walk, list, item, make_row)                                                                        \
    enum kvd_status walk(struct ctl *ctl, cJSON *rows, struct kvd_error *error) {                                      \
        struct item *infos = calloc(KVD_MAX_LIST, sizeof *infos);                                                      \
        enum kvd_status status = infos ? KVD_OK : KVD_RESOURCE_EXHAUSTED;                                              \
        struct kvd_root domain = ctl_domain(&ctl->options);                                                            \
        uint32_t cursor = 0, n;                                                                                        \
        if (!infos) snprintf(error->message, sizeof error->message, "out of memory");                                  \
        while (status == KVD_OK && cursor != KVD_UNCHANGED) {                                                          \
            status = list(ctl->client, &domain, &cursor, infos, KVD_MAX_LIST, &n, error);                              \
            for (uint32_t i = 0; status == KVD_OK && i < n; i++) cJSON_AddItemToArray(rows, make_row(&infos[i]));      \
        }                                                                                                              \
        free(infos);                                                                                                   \
        return status;                                                                                                 \
    }
static enum kvd_status list_sessions(kvd_client *client, const struct kvd_root *domain, uint32_t *cursor,
                                     struct kvd_session_info *ret_infos, uint32_t max, uint32_t *ret_n,
                                     struct kvd_error *error) {
    (void)domain; /* a session is of none */
    return kvd_list_sessions(client, cursor, ret_infos, max, ret_n, error);
}

DEFINE_WALK(look_sequences, kvd_list_sequences, kvd_sequence_info, sequence_row)
static DEFINE_WALK(look_continuations, kvd_list_continuations, kvd_continuation_info,
                   continuation_row) static DEFINE_WALK(look_sessions, list_sessions, kvd_session_info, session_row)

    typedef enum kvd_status walk_fn(struct ctl *ctl, cJSON *rows, struct kvd_error *error);

static int show_list(struct ctl *ctl, walk_fn *walk, const char *key, const struct out_column *columns, size_t n) {
    struct kvd_error error = { .message = "" };
    cJSON *rows = cJSON_CreateArray();
    enum kvd_status status = walk(ctl, rows, &error);
    if (status == KVD_OK) out_table(ctl->out, key, columns, n, rows);
    else cJSON_Delete(rows);
    return status == KVD_OK ? CTL_OK : ctl_refused(ctl, status, &error);
}

static const struct out_column sequence_columns[] = {
    { "sequence", "SEQUENCE", false, 0 },
    { "state", "STATE", false, 0 },
    { "age_text", "AGE", true, 0 },
    { "owner", "OWNER", false, 4 },
    { "worker", "WORKER", false, 3 },
    { "group", "GROUP", false, 7 },
    { "row", "ROW", true, 5 },
    { "prompt_tokens", "PROMPT", true, 0 },
    { "committed", "COMMITTED", true, 0 },
    { "ceiling_tokens", "CEILING", true, 2 },
    { "pages_text", "PAGES", true, 0 },
    { "state_slot", "STATE SLOT", true, 6 },
    { "domain_text", "DOMAIN", false, 1 },
};
static const struct out_column continuation_columns[] = {
    { "continuation", "CONTINUATION", false, 0 },
    { "frontier", "FRONTIER", true, 0 },
    { "retention", "RETENTION", true, 2 },
    { "age_text", "AGE", true, 5 },
    { "idle_text", "IDLE", true, 0 },
    { "pages", "PAGES", true, 0 },
    { "exclusive_bytes_text", "FREES", true, 0 },
    { "sharers", "SHARERS", true, 3 },
    { "state_slot", "STATE SLOT", true, 6 },
    { "place", "PLACE", false, 0 },
    { "claimed", "CLAIMED", false, 4 },
    { "domain_text", "DOMAIN", false, 1 },
};
static const struct out_column session_columns[] = {
    { "session", "SESSION", false, 0 },  { "name", "NAME", false, 0 },
    { "role", "ROLE", false, 0 },        { "rank", "RANK", true, 3 },
    { "pid", "PID", true, 0 },           { "age_text", "AGE", true, 0 },
    { "uid", "UID", true, 2 },           { "connected", "CONNECTED", false, 0 },
    { "fenced", "FENCED", false, 0 },    { "sequences", "SEQUENCES", true, 0 },
    { "requests", "REQUESTS", true, 1 },
};

int cmd_sequences(struct ctl *ctl) {
    return show_list(ctl, look_sequences, "sequences", sequence_columns, N(sequence_columns));
}

int cmd_continuations(struct ctl *ctl) {
    struct kvd_error error = { .message = "" };
    enum kvd_status status = kvd_describe(ctl->client, &described, &error);
    if (status != KVD_OK) return ctl_refused(ctl, status, &error);
    return show_list(ctl, look_continuations, "continuations", continuation_columns, N(continuation_columns));
}

int cmd_sessions(struct ctl *ctl) {
    return show_list(ctl, look_sessions, "sessions", session_columns, N(session_columns));
}
