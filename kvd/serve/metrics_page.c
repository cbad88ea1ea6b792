/* SPDX-License-Identifier: Apache-2.0
 *
 * One table of families drives the page: where the numbers stand in a view (a copy of everything, taken under the core
 * mutex), and which labels they carry.
 */
#include "metrics_page.h"

#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "clock.h"
#include "core.h"
#include "former_processes.h"
#include "host_tier.h"
#include "transfer.h"

/* ---- the view ---------------------------------------------------------------------------------- */

#define POOLS GEOM_MAX_POOLS

/* Numbers of a family stand side by side, in the order of its labels. */
struct view {
    uint64_t capacity[POOLS], allocated[POOLS], reserved[POOLS], available[POOLS], quarantined[POOLS], shared[POOLS],
        entitled[POOLS], rows[POOLS], rows_used[POOLS];
    uint64_t sequences, sequence_limit, groups, continuations, continuation_limit, membership_used, membership_limit,
        state_used, state_limit;
    uint64_t frames_bad, events_dropped, connections, connection_limit, session_limit, draining, former_drivers, lost;
    uint64_t uptime_ns, resident_bytes, metadata_bytes, one;
    uint64_t arena_bytes, arena_occupied, arena_largest_free, arena_pages[POOLS], arena_images, demoted_continuations,
        moves, moving[2], move_pages_left, moved_pages[2], moved_bytes[2], moved_ns[2], damaged, lost_continuations,
        recovered[HOST_OUTCOMES], scrubbed_pages, scrubbed_bytes;
    struct metrics m;
    uint32_t n_pools;
    char instance[160]; /* labels */
};

static void view_pools(struct service *s, struct view *v, const struct kvd_stats *from) {
    for (uint32_t p = 0; p < v->n_pools; p++) {
        const struct kvd_pool_stats *pool = &from->pool[p];
        v->capacity[p] = pool->capacity;
        v->allocated[p] = pool->allocated;
        v->reserved[p] = pool->reserved;
        v->available[p] = pool->available;
        v->quarantined[p] = pool->quarantined;
        v->shared[p] = pool->shared;
        v->rows[p] = s->config.max_concurrency;
        v->rows_used[p] = pool->rows_used;
    }
}

/* Looks at some sequences from cursor on, *left ones at most: the slots behind the last one are not searched. False:
 * these were the last. */
static bool view_entitled(struct service *s, struct view *v, uint32_t *cursor, uint64_t *left) {
    struct kvd_sequence_info info;
    for (uint32_t n = 0; n < 64; n++, --*left) {
        if (!*left || !store_next_seq(s->store, cursor, &info)) return false;
        for (uint32_t p = 0; p < v->n_pools; p++) v->entitled[p] += info.pool[p].entitlement;
    }
    return true;
}

/* Directions in the order of enum device_direction: demoted, restored. */
static void view_host(const struct service *s, struct view *v, const struct kvd_stats *from) {
    struct host_stats host;
    host_tier_stats(s, &host);
    v->arena_bytes = from->host_capacity;
    v->arena_occupied = from->host_occupied;
    v->arena_largest_free = from->host_largest_free;
    for (uint32_t p = 0; p < v->n_pools; p++) v->arena_pages[p] = from->host_pages[p];
    v->arena_images = from->host_images;
    v->demoted_continuations = from->demoted_continuations;
    v->moves = from->moves;
    v->move_pages_left = host.mover.pages_left;
    for (int d = 0; d < 2; d++) {
        v->moving[d] = host.mover.jobs[d];
        v->moved_pages[d] = host.mover.pages[d];
        v->moved_bytes[d] = host.mover.bytes[d];
        v->moved_ns[d] = host.mover.busy_ns[d];
    }
    v->damaged = from->damaged_replicas;
    v->lost_continuations = from->lost_continuations;
    for (int i = 0; i < HOST_OUTCOMES; i++) v->recovered[i] = host.recovered[i];
    v->scrubbed_pages = host.scrubbed_pages;
    v->scrubbed_bytes = host.scrubbed_bytes;
}

static void view_service(struct service *s, struct view *v) {
    struct kvd_stats stats;
    store_get_stats(s->store, &stats);
    v->n_pools = s->pools.n_pools;
    view_pools(s, v, &stats);
    view_host(s, v, &stats);
    v->sequences = stats.sequences;
    v->sequence_limit = s->config.max_concurrency;
    v->groups = s->n_groups;
    v->continuations = stats.continuations;
    v->continuation_limit = stats.continuation_limit;
    v->membership_used = stats.membership_used;
    v->membership_limit = stats.membership_limit;
    v->state_used = stats.state_slots_used;
    v->state_limit = s->pools.state_slots;
    v->frames_bad = s->frames_bad;
    v->events_dropped = s->events_dropped;
    v->connections = s->connections;
    v->connection_limit = s->config.connections;
    v->session_limit = s->config.sessions;
    v->draining = s->draining || s->stopping;
    v->former_drivers = former_waited(s);
    v->lost = transfer_lost(s->transfer);
    v->uptime_ns = clock_ns() - s->started_ns;
    v->metadata_bytes = s->store_bytes;
    v->m = s->metrics;
}

/* All under one hold of the mutex, but for the entitlements of more sequences than 64: those are added up in parts, so
 * that no request waits long for a page. */
static void view_take(struct service *s, struct view *v) {
    uint32_t cursor = 0;
    v->resident_bytes = metrics_resident_bytes();
    v->one = 1;
    pthread_mutex_lock(&s->lock);
    view_service(s, v);
    uint64_t left = v->sequences;
    snprintf(v->instance, sizeof v->instance, "store=\"%s\",epoch=\"%016" PRIx64 "\"", s->config.store, s->epoch);
    while (view_entitled(s, v, &cursor, &left)) {
        pthread_mutex_unlock(&s->lock);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
}

/* ---- the table ------------------------------------------------------------------------------------- */

enum type { COUNTER, GAUGE, HISTOGRAM };
enum labels {
    NONE,
    POOL,
    ROLE,
    SOURCE,
    END,
    REQUEST,
    REFUSAL,
    SHORT,
    ITEM,
    RESULT,
    TIER,
    DIRECTION,
    OUTCOME,
    BUILD,
    INSTANCE
};
enum family_unit { PLAIN, NANOSECONDS /* shown in seconds */ };

static const struct family {
    const char *name;
    enum type type;
    enum labels labels;
    enum family_unit unit;
    size_t offset; /* in struct view: of uint64_t, or of struct metrics_time */
    const char *help;
} families[] = {
#define AT(f) offsetof(struct view, f)
    { "kvd_build_info", GAUGE, BUILD, PLAIN, AT(one), "Version of kvd; always 1." },
    { "kvd_instance_info", GAUGE, INSTANCE, PLAIN, AT(one),
      "Store and instance epoch: another epoch is another start of the daemon; always 1." },
    { "kvd_uptime_seconds", GAUGE, NONE, NANOSECONDS, AT(uptime_ns), "Time since the start." },
    { "kvd_former_drivers", GAUGE, NONE, PLAIN, AT(former_drivers),
      "Processes of an earlier instance that may still run on its pages: activations wait for them." },
    { "kvd_draining", GAUGE, NONE, PLAIN, AT(draining), "1 while new activations are refused (drain, orderly stop)." },
    { "kvd_device_lost", GAUGE, NONE, PLAIN, AT(lost), "1 when a device is lost: the daemon stops." },
    { "kvd_resident_memory_bytes", GAUGE, NONE, PLAIN, AT(resident_bytes),
      "Resident memory of the daemon; pools of host devices count, as far as they were touched." },
    { "kvd_metadata_bytes", GAUGE, NONE, PLAIN, AT(metadata_bytes), "Memory of the store's tables." },

    { "kvd_pool_pages", GAUGE, POOL, PLAIN, AT(capacity), "Pages of a pool: allocated + reserved + available." },
    { "kvd_pool_allocated_pages", GAUGE, POOL, PLAIN, AT(allocated),
      "Pages that hold KV of sequences or continuations." },
    { "kvd_pool_reserved_pages", GAUGE, POOL, PLAIN, AT(reserved), "Pages promised to sequences, not mapped yet." },
    { "kvd_pool_available_pages", GAUGE, POOL, PLAIN, AT(available), "Pages that an activation could have." },
    { "kvd_pool_quarantined_pages", GAUGE, POOL, PLAIN, AT(quarantined),
      "Pages that only sequences of lost workers hold." },
    { "kvd_pool_shared_pages", GAUGE, POOL, PLAIN, AT(shared), "Pages with several references." },
    { "kvd_pool_entitled_pages", GAUGE, POOL, PLAIN, AT(entitled), "Pages guaranteed to sequences, mapped or not." },
    { "kvd_pool_rows", GAUGE, POOL, PLAIN, AT(rows), "Rows of a pool's block table." },
    { "kvd_pool_used_rows", GAUGE, POOL, PLAIN, AT(rows_used), "Rows in use." },

    { "kvd_sequences", GAUGE, NONE, PLAIN, AT(sequences), "Active sequences." },
    { "kvd_sequence_limit", GAUGE, NONE, PLAIN, AT(sequence_limit), "Active sequences at once." },
    { "kvd_continuations", GAUGE, NONE, PLAIN, AT(continuations), "Continuations kept." },
    { "kvd_continuation_limit", GAUGE, NONE, PLAIN, AT(continuation_limit), "Continuations that can be kept." },
    { "kvd_membership_entries", GAUGE, NONE, PLAIN, AT(membership_used), "Page-list entries in use." },
    { "kvd_membership_limit", GAUGE, NONE, PLAIN, AT(membership_limit), "Page-list entries that there are." },
    { "kvd_state_slots_used", GAUGE, NONE, PLAIN, AT(state_used), "State images in use on each device." },
    { "kvd_state_slots", GAUGE, NONE, PLAIN, AT(state_limit), "State images that each device holds." },

    { "kvd_sessions", GAUGE, ROLE, PLAIN, AT(m.sessions), "Sessions, by role." },
    { "kvd_session_limit", GAUGE, NONE, PLAIN, AT(session_limit), "Sessions at once." },
    { "kvd_groups", GAUGE, NONE, PLAIN, AT(groups), "Groups of workers." },
    { "kvd_connections", GAUGE, NONE, PLAIN, AT(connections), "Connections, counted about once a second." },
    { "kvd_connection_limit", GAUGE, NONE, PLAIN, AT(connection_limit), "Connections at once." },

    { "kvd_prefix_lookups_total", COUNTER, NONE, PLAIN, AT(m.lookups),
      "Prefix lookups of a full page at least (Find from page 0 with digests): hits + misses." },
    { "kvd_prefix_lookup_results_total", COUNTER, RESULT, PLAIN, AT(m.lookup_hits),
      "Prefix lookups by result: a hit matched a full page at least." },
    { "kvd_prefix_matched_tokens_total", COUNTER, NONE, PLAIN, AT(m.lookup_tokens),
      "Tokens of full pages that the best candidates of lookups matched." },
    { "kvd_activations_total", COUNTER, SOURCE, PLAIN, AT(m.activations),
      "Activations that succeeded, by source: from nothing, a continuation moved, one kept." },
    { "kvd_activated_prompt_tokens_total", COUNTER, NONE, PLAIN, AT(m.prompt_tokens), "Prompt tokens of activations." },
    { "kvd_activated_reused_tokens_total", COUNTER, NONE, PLAIN, AT(m.reused_tokens),
      "Those of them that a continuation held already." },
    { "kvd_activated_tokens_total", COUNTER, TIER, PLAIN, AT(m.tokens),
      "The same prompt tokens by where they came from: pages on the device, pages restored from the host, neither." },
    { "kvd_bounded_completions_total", COUNTER, NONE, PLAIN, AT(m.bounded),
      "Sequences whose lease could not grow: they end before their output budget." },
    { "kvd_sequences_lost_total", COUNTER, END, PLAIN, AT(m.ended),
      "Sequences ended because a worker or scheduler was lost: kept as a continuation, or released." },

    { "kvd_arena_bytes", GAUGE, NONE, PLAIN, AT(arena_bytes), "Size of the host arena; 0: there is none." },
    { "kvd_arena_occupied_bytes", GAUGE, NONE, PLAIN, AT(arena_occupied),
      "Bytes of it that hold pages and state images." },
    { "kvd_arena_largest_free_bytes", GAUGE, NONE, PLAIN, AT(arena_largest_free), "Longest free run of it." },
    { "kvd_arena_pages", GAUGE, POOL, PLAIN, AT(arena_pages), "Pages in the host arena." },
    { "kvd_arena_state_images", GAUGE, NONE, PLAIN, AT(arena_images), "State images in the host arena." },
    { "kvd_demoted_continuations", GAUGE, NONE, PLAIN, AT(demoted_continuations),
      "Continuations that were demoted: they ask for no page on the device." },
    { "kvd_moves", GAUGE, NONE, PLAIN, AT(moves), "Activations and moves that copy between device and host now." },
    { "kvd_moving", GAUGE, DIRECTION, PLAIN, AT(moving), "Those of them that copy in a direction." },
    { "kvd_move_pages_left", GAUGE, NONE, PLAIN, AT(move_pages_left),
      "Pages and state images that they still have to copy." },
    { "kvd_moved_pages_total", COUNTER, DIRECTION, PLAIN, AT(moved_pages), "Pages copied to the host and back." },
    { "kvd_moved_bytes_total", COUNTER, DIRECTION, PLAIN, AT(moved_bytes), "Bytes copied, state images too." },
    { "kvd_moved_seconds_total", COUNTER, DIRECTION, NANOSECONDS, AT(moved_ns),
      "Time in which copies of a direction were under way, checksums included." },
    { "kvd_damaged_replicas_total", COUNTER, NONE, PLAIN, AT(damaged),
      "Copies in the host arena whose bytes did not match their checksum; they were dropped." },
    { "kvd_lost_continuations_total", COUNTER, NONE, PLAIN, AT(lost_continuations),
      "Continuations released because such a copy was the only one." },
    { "kvd_recovered_continuations", GAUGE, OUTCOME, PLAIN, AT(recovered),
      "What this instance found in the arena at its start. damaged: records and parts of records." },
    { "kvd_scrubbed_pages_total", COUNTER, NONE, PLAIN, AT(scrubbed_pages),
      "Pages and images of the arena read again." },
    { "kvd_scrubbed_bytes_total", COUNTER, NONE, PLAIN, AT(scrubbed_bytes), "Their bytes." },

    { "kvd_requests_total", COUNTER, REQUEST, PLAIN, AT(m.requests), "Requests, by type; unknown: no such type." },
    { "kvd_refusals_total", COUNTER, REFUSAL, PLAIN, AT(m.refusals),
      "Requests that were refused, by type and status." },
    { "kvd_replays_total", COUNTER, REQUEST, PLAIN, AT(m.replays),
      "Repeated requests that got their first answer from memory." },
    { "kvd_round_items_total", COUNTER, ITEM, PLAIN, AT(m.items), "Sequences of rounds, by the status of each." },
    { "kvd_shortages_total", COUNTER, SHORT, PLAIN, AT(m.shortages),
      "RESOURCE_EXHAUSTED, of requests and of sequences in rounds, by what was short." },
    { "kvd_request_seconds", HISTOGRAM, REQUEST, NANOSECONDS, AT(m.time),
      "Time from a request's frame to its outcome, waits for the store and for devices included." },
    { "kvd_frames_bad_total", COUNTER, NONE, PLAIN, AT(frames_bad), "Frames whose content could not be decoded." },
    { "kvd_events_dropped_total", COUNTER, NONE, PLAIN, AT(events_dropped), "Events lost to slow subscribers." },
    { "kvd_audits_total", COUNTER, NONE, PLAIN, AT(m.audits), "Audits (kvdctl audit)." },
    { "kvd_audit_violations", GAUGE, NONE, PLAIN, AT(m.audit_violations),
      "Broken invariants that the last audit found; 0 before the first." },
#undef AT
};

/* ---- text -------------------------------------------------------------------------------------------- */

static const char *const pool_names[POOLS] = { "main", "draft" };
#define ROLE_NAME(name, number, text) text,
static const char *const role_names[METRICS_ROLES] = { KVD_ROLE_LIST(ROLE_NAME) };
#undef ROLE_NAME
static const char *const source_names[METRICS_SOURCES] = { "root", "move", "fork" };
static const char *const short_names[METRICS_SHORTS] = {
    [METRICS_SHORT_LIMIT] = "limit",           [METRICS_SHORT_PAGES] = "main_pages",
    [METRICS_SHORT_PAGES + 1] = "draft_pages", [METRICS_SHORT_ROWS] = "rows",
    [METRICS_SHORT_SEQUENCES] = "sequences",   [METRICS_SHORT_CONTINUATIONS] = "continuations",
    [METRICS_SHORT_MEMBERSHIP] = "membership", [METRICS_SHORT_STATE_SLOTS] = "state_slots",
    [METRICS_SHORT_ARENA] = "arena",           [METRICS_SHORT_ENTITLEMENT] = "entitlement",
};
static_assert(POOLS == 2, "every pool's pages have a name");
static const char *const end_names[METRICS_ENDS] = { "kept", "released" };
static const char *const tier_names[METRICS_TIERS] = { "device", "host", "computed" };
static const char *const direction_names[2] = { [DEVICE_TO_HOST] = "demoted", [HOST_TO_DEVICE] = "restored" };
static const char *const outcome_names[HOST_OUTCOMES] = { "kept", "shortened", "dropped", "damaged" };
static const char *const result_names[2] = { "hit", "miss" };
static const char *const status_names[METRICS_STATUSES] = {
#define NAME(name, code, text) [code] = #name,
    KVD_STATUS_LIST(NAME)
#undef NAME
};
static_assert(offsetof(struct metrics, lookup_misses) == offsetof(struct metrics, lookup_hits) + sizeof(uint64_t),
              "hits and misses are one family");

static const char *request_name(uint32_t type) { return type ? frame_type_name((uint16_t)type) : "unknown"; }

static void write_number(FILE *out, enum family_unit unit, uint64_t value) {
    if (unit == PLAIN) fprintf(out, " %" PRIu64 "\n", value);
    else fprintf(out, " %" PRIu64 ".%09" PRIu64 "\n", value / 1000000000u, value % 1000000000u);
}

static void write_list(FILE *out, const struct family *f, const uint64_t *at, const char *label,
                       const char *const *names, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        fprintf(out, "%s{%s=\"%s\"}", f->name, label, names[i]);
        write_number(out, f->unit, at[i]);
    }
}

static void write_histogram(FILE *out, const struct family *f, const struct metrics_time *times) {
    for (uint32_t type = 1; type < FRAME_TYPE_END; type++) {
        const char *name = request_name(type);
        uint64_t sum = 0;
        for (uint32_t i = 0; i + 1 < METRICS_BUCKETS; i++) {
            uint64_t limit = UINT64_C(1) << (METRICS_FIRST_BIT + i);
            sum += times[type].bucket[i];
            fprintf(out, "%s_bucket{request=\"%s\",le=\"%" PRIu64 ".%09" PRIu64 "\"} %" PRIu64 "\n", f->name, name,
                    limit / 1000000000u, limit % 1000000000u, sum);
        }
        sum += times[type].bucket[METRICS_BUCKETS - 1];
        fprintf(out, "%s_bucket{request=\"%s\",le=\"+Inf\"} %" PRIu64 "\n", f->name, name, sum);
        fprintf(out, "%s_sum{request=\"%s\"}", f->name, name);
        write_number(out, f->unit, times[type].sum_ns);
        fprintf(out, "%s_count{request=\"%s\"} %" PRIu64 "\n", f->name, name, sum);
    }
}

static void write_requests(FILE *out, const struct family *f, const uint64_t *at) {
    for (uint32_t type = 0; type < FRAME_TYPE_END; type++)
        fprintf(out, "%s{request=\"%s\"} %" PRIu64 "\n", f->name, request_name(type), at[type]);
}

static void write_refusals(FILE *out, const struct family *f, const uint64_t *at) {
    for (uint32_t type = 1; type < FRAME_TYPE_END; type++)
        for (uint32_t status = KVD_OK + 1; status < METRICS_STATUSES; status++)
            fprintf(out, "%s{request=\"%s\",status=\"%s\"} %" PRIu64 "\n", f->name, request_name(type),
                    status_names[status], at[type * METRICS_STATUSES + status]);
}

static void write_family(FILE *out, const struct family *f, const struct view *v) {
    static const char *const types[] = { [COUNTER] = "counter", [GAUGE] = "gauge", [HISTOGRAM] = "histogram" };
    const uint64_t *at = (const void *)((const char *)v + f->offset);
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", f->name, f->help, f->name, types[f->type]);
    if (f->type == HISTOGRAM) {
        write_histogram(out, f, (const void *)at);
        return;
    }
    switch (f->labels) {
    case NONE:
        fputs(f->name, out);
        write_number(out, f->unit, *at);
        break;
    case POOL: write_list(out, f, at, "pool", pool_names, v->n_pools); break;
    case ROLE: write_list(out, f, at, "role", role_names, METRICS_ROLES); break;
    case SOURCE: write_list(out, f, at, "source", source_names, METRICS_SOURCES); break;
    case END: write_list(out, f, at, "end", end_names, METRICS_ENDS); break;
    case SHORT: write_list(out, f, at, "short", short_names, METRICS_SHORTS); break;
    case ITEM: write_list(out, f, at, "status", status_names, METRICS_STATUSES); break;
    case TIER: write_list(out, f, at, "tier", tier_names, METRICS_TIERS); break;
    case DIRECTION: write_list(out, f, at, "direction", direction_names, 2); break;
    case OUTCOME: write_list(out, f, at, "outcome", outcome_names, HOST_OUTCOMES); break;
    case RESULT: write_list(out, f, at, "result", result_names, 2); break;
    case REQUEST: write_requests(out, f, at); break;
    case REFUSAL: write_refusals(out, f, at); break;
    case BUILD: fprintf(out, "%s{version=\"%s\"} %" PRIu64 "\n", f->name, KVD_VERSION, *at); break;
    case INSTANCE: fprintf(out, "%s{%s} %" PRIu64 "\n", f->name, v->instance, *at); break;
    }
}

char *metrics_page(struct service *s, size_t *ret_bytes) {
    struct view v = { 0 };
    char *text = NULL;
    size_t bytes = 0;
    view_take(s, &v);
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return NULL;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) write_family(out, &families[i], &v);
    if (fclose(out)) {
        free(text);
        return NULL;
    }
    *ret_bytes = bytes;
    return text;
}
