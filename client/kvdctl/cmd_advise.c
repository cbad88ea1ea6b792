/* SPDX-License-Identifier: Apache-2.0
 *
 * advise: what more memory would find of the prompts that came, and which domain uses what. kvd tells what caches of
 * rising sizes find (kvd_describe_reuse); here that becomes sizes of this store's pool and arena.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "ctl.h"
#include "figures.h"

#define N(array) (sizeof(array) / sizeof *(array))

struct advice {
    struct kvd_store_info info;
    struct kvd_stats stats;
    struct kvd_reuse reuse;
};

static enum kvd_status load_advice(struct ctl *ctl, struct advice *a, struct kvd_error *error) {
    enum kvd_status status = kvd_describe(ctl->client, &a->info, error);
    if (status == KVD_OK) status = kvd_stats(ctl->client, &a->stats, error);
    if (status == KVD_OK) status = kvd_describe_reuse(ctl->client, &a->reuse, error);
    return status;
}

/* Between two sizes that kvd tells it is a straight line over the logarithm. */
static double found_with(const struct kvd_reuse *r, double pages) {
    double below = 1, found = 0;
    for (uint32_t i = 0; i < r->n_sizes; i++) {
        double size = (double)r->sizes[i].pages, tokens = (double)r->sizes[i].found_tokens;
        if (pages <= size && size > below && size < 1e18)
            return found + (tokens - found) * log2(fmax(1, pages / below)) / log2(size / below);
        if (pages <= size) return tokens;
        below = size;
        found = tokens;
    }
    return found;
}

static void put_share(cJSON *row, double tokens, uint64_t of) {
    double share = of ? 100 * tokens / (double)of : 0;
    cJSON_AddNumberToObject(row, "found_percent", round(share * 100) / 100);
    out_put_text(row, "found_text", "%.1f %%", share);
}

static double page_bytes(const struct advice *a) { return (double)a->info.pool[0].page_bytes; }

/* more: than what there is now, in percent of the prompts' tokens. */
static void add_size(cJSON *rows, const struct advice *a, const char *memory, double pages, double now) {
    cJSON *row = cJSON_CreateObject();
    double tokens = found_with(&a->reuse, pages), all = fmax(1, (double)a->reuse.prompt_tokens);
    cJSON_AddStringToObject(row, "memory", memory);
    if (pages < 1e18) {
        out_put_u64(row, "pages", (uint64_t)pages);
        out_put_bytes(row, "bytes", (uint64_t)(pages * page_bytes(a)));
    }
    put_share(row, tokens, a->reuse.prompt_tokens);
    out_put_text(row, "more_text", "%+.1f", 100 * (tokens - now) / all);
    cJSON_AddItemToArray(rows, row);
}

static void show_sizes(struct ctl *ctl, const struct advice *a) {
    static const struct out_column columns[] = {
        { "memory", "MEMORY", false, 0 },
        { "bytes_text", "SIZE", true, 0 },
        { "found_text", "FINDS", true, 0 },
        { "more_text", "MORE", true, 0 },
    };
    double pool = a->info.pool[0].pages, arena = (double)a->stats.host_capacity / fmax(1, page_bytes(a));
    double now = found_with(&a->reuse, pool + arena);
    cJSON *rows = cJSON_CreateArray();
    add_size(rows, a, "half the pool", pool / 2, now);
    add_size(rows, a, "the pool", pool, now);
    if (arena >= 1) add_size(rows, a, "pool and arena", pool + arena, now);
    if (arena >= 1) add_size(rows, a, "pool, twice the arena", pool + 2 * arena, now);
    add_size(rows, a, arena >= 1 ? "twice both" : "twice the pool", 2 * (pool + arena), now);
    add_size(rows, a, arena >= 1 ? "four times both" : "four times the pool", 4 * (pool + arena), now);
    add_size(rows, a, "without an end (a cold tier)", 2e18, now);
    out_table(ctl->out, "sizes", columns, N(columns), rows);
}

/* ---- domains ---- */

/* By domain: continuations, and the pages that no other continuation has. */
struct holding {
    uint64_t count[KVD_REUSE_DOMAINS], pages[KVD_REUSE_DOMAINS];
};

static uint32_t domain_of(const struct kvd_reuse *r, const char *label) {
    const char *text = *label ? label : "unlabelled";
    for (uint32_t i = 0; i < r->n_domains; i++)
        if (strcmp(r->domains[i].label, text) == 0) return i;
    for (uint32_t i = 0; i < r->n_domains; i++)
        if (strcmp(r->domains[i].label, "other") == 0) return i;
    return KVD_REUSE_DOMAINS;
}

static enum kvd_status load_holding(struct ctl *ctl, const struct kvd_reuse *r, struct holding *h,
                                    struct kvd_error *error) {
    static struct kvd_continuation_info list[KVD_MAX_LIST];
    uint32_t cursor = 0, n;
    while (cursor != KVD_UNCHANGED) {
        enum kvd_status status = kvd_list_continuations(ctl->client, NULL, &cursor, list, KVD_MAX_LIST, &n, error);
        if (status != KVD_OK) return status;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t d = domain_of(r, list[i].root.label);
            if (d == KVD_REUSE_DOMAINS) continue;
            h->count[d]++;
            h->pages[d] += list[i].exclusive_pages[0];
        }
    }
    return KVD_OK;
}

static void show_domains(struct ctl *ctl, const struct advice *a, const struct holding *h) {
    static const struct out_column columns[] = {
        { "domain", "DOMAIN", false, 0 },       { "activations", "PROMPTS", true, 0 },
        { "prompt_tokens", "TOKENS", true, 1 }, { "found_text", "FOUND", true, 0 },
        { "continuations", "KEEPS", true, 0 },  { "exclusive_pages", "OWN PAGES", true, 0 },
    };
    cJSON *rows = cJSON_CreateArray();
    for (uint32_t i = 0; i < a->reuse.n_domains; i++) {
        const struct kvd_reuse_domain *d = &a->reuse.domains[i];
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "domain", d->label);
        out_put_u64(row, "activations", d->activations);
        out_put_u64(row, "prompt_tokens", d->prompt_tokens);
        out_put_u64(row, "reused_tokens", d->reused_tokens);
        put_share(row, (double)d->reused_tokens, d->prompt_tokens);
        out_put_u64(row, "continuations", h->count[i]);
        out_put_u64(row, "exclusive_pages", h->pages[i]);
        cJSON_AddItemToArray(rows, row);
    }
    out_table(ctl->out, "domains", columns, N(columns), rows);
}

/* ---- the command ---- */

static void show_facts(struct ctl *ctl, const struct advice *a) {
    static const struct out_column lines[] = {
        { "since_text", "kvd is up for", false, 0 },
        { "prompt_tokens", "prompt tokens looked up", false, 0 },
        { "found_text", "found", false, 0 },
        { "pages_of_sample", "pages that a sample stands for", false, 0 },
    };
    cJSON *o = cJSON_CreateObject();
    uint64_t prompt = 0, reused = 0;
    for (uint32_t i = 0; i < a->reuse.n_domains; i++) {
        prompt += a->reuse.domains[i].prompt_tokens;
        reused += a->reuse.domains[i].reused_tokens;
    }
    figures_duration(o, "since_text", (double)a->stats.uptime_ns / 1e9);
    out_put_u64(o, "prompt_tokens", a->reuse.prompt_tokens);
    out_put_u64(o, "activated_prompt_tokens", prompt);
    out_put_u64(o, "reused_tokens", reused);
    put_share(o, (double)reused, prompt);
    out_put_u64(o, "pages_of_sample", a->reuse.pages_of_sample);
    out_facts(ctl->out, "reuse", lines, N(lines), o);
}

/* What the tables are worth: the sizes that hold what came once only cannot be told apart. */
static void say_doubts(struct ctl *ctl, const struct advice *a) {
    double pool = a->info.pool[0].pages, came = (double)a->reuse.prompt_tokens / KVD_PAGE_TOKENS;
    if (came < 4 * pool)
        out_say(ctl->out, "doubt", OUT_BAD,
                "Prompts of %.0f pages came so far, and the pool has %.0f: ask again when more than four times as many "
                "came.",
                came, pool);
}

int cmd_advise(struct ctl *ctl) {
    static struct advice advice;
    struct holding holding = { 0 };
    struct kvd_error error = { .message = "" };
    enum kvd_status status = load_advice(ctl, &advice, &error);
    if (status == KVD_OK) status = load_holding(ctl, &advice.reuse, &holding, &error);
    if (status != KVD_OK) return ctl_refused(ctl, status, &error);
    show_facts(ctl, &advice);
    show_sizes(ctl, &advice);
    show_domains(ctl, &advice, &holding);
    say_doubts(ctl, &advice);
    return CTL_OK;
}
