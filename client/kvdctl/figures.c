/* SPDX-License-Identifier: Apache-2.0 */
#include "figures.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ctl.h"

#define N(array) (sizeof(array) / sizeof *(array))

/* A kvd before windows tells no names. */
const char *figures_pool(const struct kvd_store_info *info, uint32_t pool) {
    if (pool < info->n_pools && pool < KVD_MAX_POOLS && *info->pool[pool].name) return info->pool[pool].name;
    return pool == 0 ? "main" : pool == 1 ? "second" : pool == 2 ? "third" : "fourth";
}

uint32_t figures_other_pages(const uint32_t pages[KVD_MAX_POOLS]) {
    uint32_t sum = 0;
    for (uint32_t i = 1; i < KVD_MAX_POOLS; i++) sum += pages[i];
    return sum;
}

double figures_number(const cJSON *object, const char *key) {
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key);
    if (cJSON_IsString(value)) return strtod(value->valuestring, NULL);
    return cJSON_IsNumber(value) ? value->valuedouble : 0;
}

const char *figures_string(const cJSON *object, const char *key) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
    return text ? text : "";
}

/* ---- times ------------------------------------------------------------------------------------------ */

double figures_time(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)(t.tv_nsec / 1000) / 1e6;
}

const char *figures_clock(double time, char text[16]) {
    time_t seconds = (time_t)time;
    struct tm parts;
    if (!localtime_r(&seconds, &parts) || !strftime(text, 16, "%H:%M:%S", &parts)) snprintf(text, 16, "?");
    return text;
}

void figures_duration(cJSON *object, const char *key, double seconds) {
    uint64_t s = (uint64_t)seconds;
    if (s >= 86400) out_put_text(object, key, "%" PRIu64 " d %" PRIu64 " h", s / 86400, s / 3600 % 24);
    else if (s >= 3600) out_put_text(object, key, "%" PRIu64 " h %" PRIu64 " min", s / 3600, s / 60 % 60);
    else if (s >= 60) out_put_text(object, key, "%" PRIu64 " min %" PRIu64 " s", s / 60, s % 60);
    else out_put_text(object, key, "%.1f s", seconds);
}

/* ---- statistics ------------------------------------------------------------------------------------- */

cJSON *figures_daemon(const struct kvd_stats *stats, const struct kvd_store_info *info) {
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "store", info->name);
    cJSON_AddStringToObject(o, "version", stats->version);
    out_put_text(o, "epoch", "%016" PRIx64, stats->epoch);
    cJSON_AddNumberToObject(o, "uptime_seconds", (double)stats->uptime_ns / 1e9);
    figures_duration(o, "uptime_text", (double)stats->uptime_ns / 1e9);
    cJSON_AddBoolToObject(o, "draining", stats->draining);
    out_put_u64(o, "former_drivers", stats->former_drivers);
    out_put_u64(o, "sessions", stats->sessions);
    out_put_u64(o, "groups", stats->groups);
    out_put_u64(o, "connections", stats->connections);
    out_put_u64(o, "sequences", stats->sequences);
    out_put_u64(o, "sequence_limit", info->max_concurrency);
    out_put_text(o, "sequences_text", "%u of %u", stats->sequences, info->max_concurrency);
    out_put_u64(o, "continuations", stats->continuations);
    out_put_u64(o, "continuation_limit", stats->continuation_limit);
    out_put_text(o, "continuations_text", "%u of %u", stats->continuations, stats->continuation_limit);
    out_put_u64(o, "membership_entries", stats->membership_used);
    out_put_u64(o, "membership_limit", stats->membership_limit);
    out_put_text(o, "membership_text", "%" PRIu64 " of %" PRIu64, stats->membership_used, stats->membership_limit);
    out_put_u64(o, "state_slots_used", stats->state_slots_used);
    out_put_u64(o, "state_slots", info->state_slots);
    out_put_text(o, "state_slots_text", "%u of %u", stats->state_slots_used, info->state_slots);
    out_put_u64(o, "requests_total", stats->requests);
    out_put_u64(o, "refusals_total", stats->refusals);
    out_put_u64(o, "frames_bad_total", stats->frames_bad);
    out_put_u64(o, "events_dropped_total", stats->events_dropped);
    out_put_u64(o, "operations_total", stats->operations);
    out_put_u64(o, "committed_tokens_total", stats->committed_tokens);
    out_put_u64(o, "demoted_pages_total", stats->demoted_pages);
    out_put_u64(o, "restored_pages_total", stats->restored_pages);
    out_put_bytes(o, "resident_memory_bytes", stats->rss_bytes);
    out_put_bytes(o, "metadata_bytes", stats->metadata_bytes);
    out_put_u64(o, "revision", stats->revision);
    return o;
}

/* The pages as a bar: # allocated, = reserved, . available. What there is shows, however little. */
static void put_map(cJSON *object, const struct kvd_pool_stats *pool) {
    enum { WIDTH = 24 };
    char bar[WIDTH + 1];
    uint64_t capacity = pool->capacity ? pool->capacity : 1;
    uint64_t used = (pool->allocated * (uint64_t)WIDTH + capacity - 1) / capacity;
    uint64_t taken = ((pool->allocated + (uint64_t)pool->reserved) * WIDTH + capacity - 1) / capacity;
    for (uint64_t i = 0; i < WIDTH; i++) bar[i] = i < used ? '#' : i < taken ? '=' : '.';
    bar[WIDTH] = 0;
    cJSON_AddStringToObject(object, "map_text", bar);
}

cJSON *figures_pools(const struct kvd_stats *stats, const struct kvd_store_info *info) {
    cJSON *rows = cJSON_CreateArray();
    for (uint32_t i = 0; i < stats->n_pools && i < KVD_MAX_POOLS; i++) {
        const struct kvd_pool_stats *pool = &stats->pool[i];
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "pool", figures_pool(info, i));
        out_put_u64(o, "pages", pool->capacity);
        out_put_u64(o, "allocated_pages", pool->allocated);
        out_put_u64(o, "reserved_pages", pool->reserved);
        out_put_u64(o, "available_pages", pool->available);
        out_put_text(o, "available_text", "%.1f", pool->capacity ? 100.0 * pool->available / pool->capacity : 0.0);
        out_put_u64(o, "quarantined_pages", pool->quarantined);
        out_put_u64(o, "shared_pages", pool->shared);
        out_put_u64(o, "lent_pages", pool->lent);
        out_put_u64(o, "used_rows", pool->rows_used);
        out_put_u64(o, "rows", info->max_concurrency);
        out_put_text(o, "rows_text", "%u of %u", pool->rows_used, info->max_concurrency);
        put_map(o, pool);
        cJSON_AddItemToArray(rows, o);
    }
    return rows;
}

cJSON *figures_arena(const struct kvd_stats *stats) {
    cJSON *o = cJSON_CreateObject(), *pages = cJSON_AddArrayToObject(o, "pages");
    out_put_bytes(o, "bytes", stats->host_capacity);
    out_put_bytes(o, "occupied_bytes", stats->host_occupied);
    out_put_bytes(o, "largest_free_bytes", stats->host_largest_free);
    out_put_text(o, "occupied_text", "%s of %s", figures_string(o, "occupied_bytes_text"),
                 figures_string(o, "bytes_text"));
    for (uint32_t i = 0; i < stats->n_pools && i < KVD_MAX_POOLS; i++)
        cJSON_AddItemToArray(pages, cJSON_CreateNumber(stats->host_pages[i]));
    out_put_u64(o, "state_images", stats->host_images);
    out_put_u64(o, "demoted_continuations", stats->demoted_continuations);
    out_put_u64(o, "moves", stats->moves);
    out_put_u64(o, "move_pages_left", stats->move_pages_left);
    out_put_text(o, "moves_text", "%u, %u pages to go", stats->moves, stats->move_pages_left);
    out_put_u64(o, "damaged_replicas_total", stats->damaged_replicas);
    out_put_u64(o, "lost_continuations_total", stats->lost_continuations);
    return o;
}

cJSON *figures_rates(const cJSON *before, const cJSON *now, double seconds) {
    static const char *const counters[] = { "requests",   "refusals",      "frames_bad",     "events_dropped",
                                            "operations", "demoted_pages", "restored_pages", "committed_tokens" };
    cJSON *o = cJSON_CreateObject();
    for (size_t i = 0; i < N(counters); i++) {
        char from[40], to[40];
        snprintf(from, sizeof from, "%s_total", counters[i]);
        snprintf(to, sizeof to, "%s_per_second", counters[i]);
        double more = figures_number(now, from) - figures_number(before, from);
        cJSON_AddNumberToObject(o, to, seconds > 0 && more > 0 ? more / seconds : 0);
    }
    return o;
}

/* ---- events ------------------------------------------------------------------------------------------- */

static void put_handle(cJSON *object, const char *key, uint64_t bits) {
    char buf[24];
    if (bits) cJSON_AddStringToObject(object, key, ctl_handle_text(bits, buf));
}

/* By enum kvd_event_kind. A kind that is added there gets its name here and its words below. */
static const char *const kinds[] = { "unknown",        "pressure", "bounded",           "session_lost",
                                     "sequence_ended", "draining", "continuation_lost", "continuation_shortened",
                                     "gave_way" };

uint32_t figures_event_mask(void) { return (UINT32_C(1) << N(kinds)) - KVD_EVENT_MASK(KVD_EVENT_PRESSURE); }

cJSON *figures_event(const struct kvd_event *event, const struct kvd_store_info *info) {
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "time", figures_time());
    cJSON_AddStringToObject(o, "event", kinds[event->kind < N(kinds) ? event->kind : 0]);
    if (event->kind >= N(kinds)) out_put_u64(o, "kind", event->kind);
    if (event->kind == KVD_EVENT_PRESSURE || event->kind == KVD_EVENT_BOUNDED)
        cJSON_AddStringToObject(o, "pool", figures_pool(info, event->pool));
    if (event->kind == KVD_EVENT_PRESSURE) out_put_u64(o, "available_pages", event->available);
    if (event->kind == KVD_EVENT_BOUNDED || event->kind == KVD_EVENT_SHORTENED || event->kind == KVD_EVENT_GAVE_WAY)
        out_put_u64(o, "frontier", event->frontier);
    put_handle(o, "sequence", event->sequence.bits);
    put_handle(o, "continuation", event->continuation.bits);
    put_handle(o, "session", event->session.bits);
    put_handle(o, "group", event->group.bits);
    if (event->dropped) out_put_u64(o, "events_dropped", event->dropped);
    out_put_text(o, "epoch", "%016" PRIx64, event->epoch);
    return o;
}

void figures_event_text(const cJSON *e, char *text, size_t bytes) {
    const char *kind = figures_string(e, "event"), *kept = figures_string(e, "continuation");
    char words[512] = "";
    if (strcmp(kind, "pressure") == 0)
        snprintf(words, sizeof words, "%s pool: %.0f pages are available", figures_string(e, "pool"),
                 figures_number(e, "available_pages"));
    else if (strcmp(kind, "bounded") == 0)
        snprintf(words, sizeof words, "sequence %s ends at token %.0f: the %s pool could not grow its lease",
                 figures_string(e, "sequence"), figures_number(e, "frontier"), figures_string(e, "pool"));
    else if (strcmp(kind, "session_lost") == 0)
        snprintf(words, sizeof words, "session %s is gone", figures_string(e, "session"));
    else if (strcmp(kind, "sequence_ended") == 0)
        snprintf(words, sizeof words, "sequence %s ended without a finish: %s%s", figures_string(e, "sequence"),
                 *kept ? "kept as continuation " : "released", kept);
    else if (strcmp(kind, "continuation_lost") == 0)
        snprintf(words, sizeof words, "continuation %s is lost: its only copy did not match its checksum", kept);
    else if (strcmp(kind, "continuation_shortened") == 0)
        snprintf(words, sizeof words,
                 "continuation %s has %.0f tokens left: the only copy of a page behind did not match its checksum",
                 kept, figures_number(e, "frontier"));
    else if (strcmp(kind, "gave_way") == 0)
        snprintf(words, sizeof words,
                 "continuation %s gave way for the growth of sequence %s: %.0f tokens of it are left", kept,
                 figures_string(e, "sequence"), figures_number(e, "frontier"));
    else if (strcmp(kind, "draining") == 0) snprintf(words, sizeof words, "new activations are refused");
    else if (strcmp(kind, "connected") == 0 || strcmp(kind, "reconnected") == 0 || strcmp(kind, "restarted") == 0)
        snprintf(words, sizeof words, "%sstore %s, kvd %s, instance %s",
                 strcmp(kind, "restarted") == 0 ? "another instance of the daemon: " : "", figures_string(e, "store"),
                 figures_string(e, "version"), figures_string(e, "epoch"));
    else if (strcmp(kind, "lost") == 0) snprintf(words, sizeof words, "%s", figures_string(e, "message"));
    else snprintf(words, sizeof words, "kind %.0f, which this kvdctl does not know", figures_number(e, "kind"));
    double dropped = figures_number(e, "events_dropped");
    if (dropped > 0) snprintf(text, bytes, "%-14s  %s (%.0f events before it were lost)", kind, words, dropped);
    else snprintf(text, bytes, "%-14s  %s", kind, words);
}
