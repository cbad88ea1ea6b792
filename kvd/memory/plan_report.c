/* SPDX-License-Identifier: Apache-2.0
 *
 * The report of kvd --plan: in words and units for people, every number as JSON for programs.
 */
#include <inttypes.h>
#include <string.h>

#include "plan.h"

#define PARTS (2 * GEOM_MAX_POOLS + 6u)

struct plan_part {
    char name[KVD_GROUP_NAME_BYTES + 16];
    uint64_t bytes;
};

static const char *pool_name(const struct config *c, const struct plan *plan, uint32_t pool) {
    return plan_pool(c, &plan->spec, pool)->name;
}

static void add_part(struct plan_part *part, const char *of, const char *name, uint64_t bytes) {
    snprintf(part->name, sizeof part->name, "%s%s%s", of, *of ? " " : "", name);
    part->bytes = bytes;
}

/* What a device holds, part by part. */
static uint32_t list_parts(const struct config *c, const struct plan *plan, struct plan_part ret_parts[PARTS]) {
    const struct geom_layout *l = &plan->capacity.layout;
    uint32_t n = 0;
    for (uint32_t p = 0; p < l->n_pools; p++) {
        add_part(&ret_parts[n++], pool_name(c, plan, p), "pool", l->pool_bytes[p]);
        add_part(&ret_parts[n++], pool_name(c, plan, p), "block table", l->table_bytes[p]);
    }
    add_part(&ret_parts[n++], "", "state images", l->state_bytes);
    add_part(&ret_parts[n++], "", "persistent", l->persistent_bytes);
    add_part(&ret_parts[n++], "", "workspace", l->workspace_bytes);
    add_part(&ret_parts[n++], "", "graphs", l->graph_bytes);
    add_part(&ret_parts[n++], "", "padding", l->padding_bytes);
    add_part(&ret_parts[n++], "", "total", l->total_bytes);
    return n;
}

/* The pools share the arena: tokens that it holds of all together (HOST-1), where windows take their share of each. */
static uint64_t arena_tokens(const struct plan *plan) {
    uint64_t page = 0;
    for (uint32_t p = 0; p < plan->capacity.layout.n_pools; p++) {
        const struct geom_window *window = &geom_pool_at(&plan->spec, p)->window;
        page += window->tokens ? plan->host_stride[p] / 1000 * window->share : plan->host_stride[p];
    }
    return plan->arena_bytes / page * KVD_PAGE_TOKENS;
}

/* ---- words ------------------------------------------------------------------------------------- */

static const char *with_unit(uint64_t bytes, char text[24]) {
    static const char *const units[] = { "bytes", "KiB", "MiB", "GiB", "TiB" };
    double value = (double)bytes;
    size_t unit = 0;
    for (; value >= 1024 && unit + 1 < sizeof units / sizeof *units; unit++) value /= 1024;
    snprintf(text, 24, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return text;
}

static void print_arena(FILE *out, const struct config *c, const struct plan *plan) {
    char text[24];
    if (!plan->arena_bytes) {
        fputs("\nHost arena: none; nothing is demoted.\n", out);
        return;
    }
    fprintf(out, "\nHost arena: %s for %" PRIu64 " tokens\n", with_unit(plan->arena_bytes, text), arena_tokens(plan));
    for (uint32_t p = 0; p < plan->capacity.layout.n_pools; p++)
        fprintf(out, "  %s pool: a page takes %s; %" PRIu64 " fit of these alone\n", pool_name(c, plan, p),
                with_unit(plan->host_stride[p], text), plan->arena_bytes / plan->host_stride[p]);
    if (plan->host_state_stride) fprintf(out, "  a state image takes %s\n", with_unit(plan->host_state_stride, text));
}

/* KEEP-1 */
bool plan_cost_text(const struct arena_cost *cost, bool all, char *text, size_t bytes) {
    if (!cost || !cost->there) return false;
    if (cost->foreign) {
        snprintf(text, bytes, "the arena that is there has another geometry or format: a start empties it");
        return true;
    }
    if (cost->kept == cost->continuations && !cost->shortened) {
        snprintf(text, bytes, "the arena that is there has %u continuations, and all stay", cost->continuations);
        return all;
    }
    snprintf(text, bytes,
             "the arena that is there has %u continuations: %u stay, %u of them shorter; %u are lost, the least "
             "valuable",
             cost->continuations, cost->kept, cost->shortened, cost->continuations - cost->kept);
    return true;
}

/* Bytes of a token of a group on one device. */
static uint64_t group_token_bytes(const struct geom_pool_spec *pool, uint32_t g) {
    struct geom_group_shape shape;
    geom_group_shape(pool, g, &shape);
    return shape.rank_page_bytes / KVD_PAGE_TOKENS;
}

static const char *group_name(const struct config *c, const struct plan *plan, uint32_t pool, uint32_t g) {
    return c->layer_group[plan_pool(c, &plan->spec, pool)->group[g]].name;
}

static const struct geom_pool_spec *pool_spec(const struct plan *plan, uint32_t pool) {
    return geom_pool_at(&plan->spec, pool);
}

/* Of a pool of one shape: what all its layers are. */
static void print_group(FILE *out, const char *begin, const struct config *c, const struct plan *plan, uint32_t pool,
                        uint32_t g) {
    const struct geom_group group = geom_group_at(pool_spec(plan, pool), g);
    fprintf(out, "%s  %s pool", begin, pool_name(c, plan, pool));
    if (pool_spec(plan, pool)->n_groups) fprintf(out, ", group %s", group_name(c, plan, pool, g));
    fprintf(out, ": %u layers, ", group.n_layers);
    if (group.format == KVD_FORMAT_LATENT) fprintf(out, "latent of %u bytes", group.row_bytes);
    else if (group.format == KVD_FORMAT_PACKED)
        fprintf(out, "%u KV heads packed in rows of %u bytes", group.n_kv_heads, group.row_bytes);
    else {
        fprintf(out, "%s, %u KV heads, head_dim %u", geom_storage_name(group.storage), group.n_kv_heads,
                group.head_dim);
        if (group.v_head_dim && group.v_head_dim != group.head_dim) fprintf(out, " of K and %u of V", group.v_head_dim);
    }
    fprintf(out, ": %" PRIu64 " bytes a token on each device\n", group_token_bytes(pool_spec(plan, pool), g));
}

/* Of a pool with a window what a sequence has, and how many pages there are. */
static void print_window(FILE *out, const char *begin, const struct config *c, const struct plan *plan, uint32_t p) {
    const struct geom_window *window = &pool_spec(plan, p)->window;
    char text[24];
    if (!window->tokens) return;
    fprintf(out, "%s  %s pool: %s of %u tokens", begin, pool_name(c, plan, p),
            window->aligned ? "aligned chunks" : "a window", window->tokens);
    if (window->lead) fprintf(out, " and %u behind it", window->lead);
    fprintf(out, "; %u pages of %s on each device, %u for each 1000 more of main\n", plan->capacity.layout.pages[p],
            with_unit(geom_rank_page_bytes(pool_spec(plan, p)), text), window->share);
}

/* begin: what each line begins with. */
static void print_shape(FILE *out, const char *begin, const struct config *c, const struct plan *plan) {
    const struct geom_pool_spec *main = &plan->spec.main;
    const char *plural = c->n_devices > 1 ? "s" : "";
    uint32_t layers = main->n_layers, windows = plan->spec.n_more;
    for (uint32_t i = 0; i < windows; i++) layers += plan->spec.more[i].n_layers;
    if (windows)
        fprintf(out, "%sStore %s: %u layers in %u pools, on %u device%s\n", begin, c->store, layers, 1 + windows,
                c->n_devices, plural);
    else if (main->n_groups)
        fprintf(out, "%sStore %s: %u layers in %u group%s, on %u device%s\n", begin, c->store, main->n_layers,
                main->n_groups, main->n_groups > 1 ? "s" : "", c->n_devices, plural);
    else
        fprintf(out, "%sStore %s: profile %s, %u layers, %u KV heads, head_dim %u, on %u device%s\n", begin, c->store,
                geom_storage_name(main->storage), main->n_layers, main->n_kv_heads, main->head_dim, c->n_devices,
                plural);
    for (uint32_t p = 0; p < plan->capacity.layout.n_pools; p++) {
        print_window(out, begin, c, plan, p);
        uint32_t n = windows ? geom_group_count(pool_spec(plan, p)) : pool_spec(plan, p)->n_groups;
        for (uint32_t g = 0; g < n; g++) print_group(out, begin, c, plan, p, g);
    }
}

void plan_print_least(FILE *out, const struct config *c, const struct plan *plan) {
    const struct geom_curve *curve = &plan->capacity.curve;
    char least[24], more[24];
    fputs("\n# What it comes to; kvd --plan tells more of the whole configuration.\n", out);
    print_shape(out, "# ", c, plan);
    fprintf(out,
            "# A token takes %" PRIu64
            " bytes of main on each device, in pages of 64. The smallest store for max_context\n"
            "# and max_concurrency takes %s on each device, one more page%s %s.\n",
            geom_rank_page_bytes(&plan->spec.main) / KVD_PAGE_TOKENS, with_unit(curve->b_min, least),
            plan->spec.n_more ? " with its share of windows" : "", with_unit(curve->b_step, more));
}

static void print_words(FILE *out, const struct config *c, const struct plan *plan, const struct arena_cost *cost) {
    const struct geom_capacity *k = &plan->capacity;
    struct plan_part parts[PARTS];
    char text[24], other[24], sentence[160];
    uint64_t page = geom_page_bytes(&plan->spec.main);
    print_shape(out, "", c, plan);
    fprintf(out, "Capacity: %" PRIu64 " tokens in %u pages of 64%s; %u pages at least\n", k->tokens, k->pages,
            c->capacity_tokens == CONFIG_AUTO64 ? ", all that fit (tokens = auto)" : "", k->curve.m_min);
    fprintf(out, "A page takes %s over all devices, a token %s.\n", with_unit(page, text),
            with_unit(page / KVD_PAGE_TOKENS, other));
    if (plan->spec.state_slots)
        fprintf(out, "A state image takes %s on each device; %u slots\n", with_unit(plan->spec.state_bytes, text),
                plan->spec.state_slots);
    fputs("\nOn each device:\n", out);
    for (uint32_t i = 0, n = list_parts(c, plan, parts); i < n; i++)
        if (parts[i].bytes) fprintf(out, "  %-18s %14s\n", parts[i].name, with_unit(parts[i].bytes, text));
    fputs("\nDevices:\n", out);
    for (uint32_t i = 0; i < plan->n_devices; i++)
        fprintf(out, "  device.%u %s: %s free, %s of that left over\n", i, plan->identity[i].name,
                with_unit(plan->free_bytes[i], text), with_unit(plan->free_bytes[i] - k->bytes, other));
    print_arena(out, c, plan);
    if (plan_cost_text(cost, true, sentence, sizeof sentence)) fprintf(out, "  %s\n", sentence);
}

/* ---- JSON -------------------------------------------------------------------------------------- */

/* A name of ours or of a driver: without what a string of JSON would have to escape. */
static void print_string(FILE *out, const char *text) {
    fputc('"', out);
    for (; *text; text++) {
        bool plain = *text >= ' ' && *text <= '~' && *text != '"' && *text != '\\';
        fputc(plain ? *text : '?', out);
    }
    fputc('"', out);
}

static void print_key(FILE *out, const char *words) {
    for (; *words; words++) fputc(*words == ' ' ? '_' : *words, out);
}

/* An array, empty where all pools are of one shape. */
static void print_groups_json(FILE *out, const struct config *c, const struct plan *plan) {
    const char *comma = "";
    fputs("  \"layer_groups\": [", out);
    for (uint32_t p = 0; p < plan->capacity.layout.n_pools; p++)
        for (uint32_t g = 0; g < pool_spec(plan, p)->n_groups; g++) {
            const struct geom_group *group = &pool_spec(plan, p)->group[g];
            fprintf(out, "%s{\"pool\": \"%s\", \"group\": ", comma, pool_name(c, plan, p));
            print_string(out, group_name(c, plan, p, g));
            fprintf(out,
                    ", \"format\": \"%s\", \"profile\": \"%s\", \"layers\": %u, \"kv_heads\": %u, \"head_dim\": %u",
                    geom_format_name(group->format), group->format ? "" : geom_storage_name(group->storage),
                    group->n_layers, group->n_kv_heads, group->head_dim);
            fprintf(out, ", \"v_head_dim\": %u, \"row_bytes\": %u, \"token_bytes_each_device\": %" PRIu64 "}",
                    group->v_head_dim, group->row_bytes, group_token_bytes(pool_spec(plan, p), g));
            comma = ", ";
        }
    fputs("],\n", out);
}

static void print_pools_json(FILE *out, const struct config *c, const struct plan *plan) {
    fputs("  \"pools\": [", out);
    for (uint32_t p = 0; p < plan->capacity.layout.n_pools; p++) {
        const struct geom_pool_spec *spec = pool_spec(plan, p);
        fprintf(out, "%s{\"pool\": \"%s\", \"pages\": %u, \"page_bytes_each_device\": %" PRIu64, p ? ", " : "",
                pool_name(c, plan, p), plan->capacity.layout.pages[p], geom_rank_page_bytes(spec));
        fprintf(out, ", \"window\": %u, \"lead\": %u, \"aligned\": %s, \"share\": %u}", spec->window.tokens,
                spec->window.lead, spec->window.aligned ? "true" : "false", spec->window.share);
    }
    fputs("],\n", out);
}

static void print_json(FILE *out, const struct config *c, const struct plan *plan, const struct arena_cost *cost) {
    const struct geom_capacity *k = &plan->capacity;
    struct plan_part parts[PARTS];
    fputs("{\n  \"store\": ", out);
    print_string(out, c->store);
    const struct geom_pool_spec *main = &plan->spec.main;
    fprintf(out, ",\n  \"profile\": \"%s\",\n  \"layers\": %u,\n  \"kv_heads\": %u,\n  \"head_dim\": %u,\n",
            main->n_groups ? "groups" : geom_storage_name(main->storage), main->n_layers, main->n_kv_heads,
            main->head_dim);
    print_pools_json(out, c, plan);
    print_groups_json(out, c, plan);
    fprintf(out,
            "  \"tokens\": %" PRIu64 ",\n  \"pages\": %u,\n  \"least_pages\": %u,\n  \"page_bytes\": %" PRIu64 ",\n",
            k->tokens, k->pages, k->curve.m_min, geom_page_bytes(&plan->spec.main));
    fprintf(out, "  \"state_image_bytes\": %" PRIu64 ",\n  \"state_slots\": %u,\n", plan->spec.state_bytes,
            plan->spec.state_slots);
    fprintf(out, "  \"least_bytes\": %" PRIu64 ",\n  \"bytes_of_one_more_page\": %" PRIu64 ",\n  \"each_device\": {",
            k->curve.b_min, k->curve.b_step);
    for (uint32_t i = 0, n = list_parts(c, plan, parts); i < n; i++) {
        fputs(i ? ", \"" : "\"", out);
        print_key(out, parts[i].name);
        fprintf(out, "_bytes\": %" PRIu64, parts[i].bytes);
    }
    fputs("},\n  \"devices\": [", out);
    for (uint32_t i = 0; i < plan->n_devices; i++) {
        fputs(i ? ", {\"name\": " : "{\"name\": ", out);
        print_string(out, plan->identity[i].name);
        fprintf(out, ", \"free_bytes\": %" PRIu64 ", \"left_bytes\": %" PRIu64 "}", plan->free_bytes[i],
                plan->free_bytes[i] - k->bytes);
    }
    fprintf(out, "],\n  \"arena_bytes\": %" PRIu64 ",\n  \"arena_tokens\": %" PRIu64, plan->arena_bytes,
            arena_tokens(plan));
    fputs(",\n  \"arena_page_bytes\": [", out);
    for (uint32_t p = 0; p < k->layout.n_pools; p++) fprintf(out, "%s%" PRIu64, p ? ", " : "", plan->host_stride[p]);
    fprintf(out, "],\n  \"arena_state_image_bytes\": %" PRIu64, plan->host_state_stride);
    if (cost && cost->there)
        fprintf(out,
                ",\n  \"arena_now\": {\"foreign\": %s, \"continuations\": %u, \"kept\": %u, \"shortened\": %u, "
                "\"lost\": %u}",
                cost->foreign ? "true" : "false", cost->continuations, cost->kept, cost->shortened,
                cost->continuations - cost->kept);
    fputs("\n}\n", out);
}

void plan_print(FILE *out, const struct config *config, const struct plan *plan, const struct arena_cost *cost,
                bool json) {
    if (json) print_json(out, config, plan, cost);
    else print_words(out, config, plan, cost);
}
