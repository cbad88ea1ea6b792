/* SPDX-License-Identifier: Apache-2.0
 *
 * One table of families drives the page: where the numbers stand in a view (a copy of everything, taken under the core
 * mutex), and which labels they carry.
 */
#include "metrics_page.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cold_reader.h"
#include "cold_tier.h"
#include "core.h"
#include "host_tier.h"
#include "process_figures.h"
#include "requests.h"
#include "transfer.h"

/* ---- the view ---------------------------------------------------------------------------------- */

#define POOLS KVD_MAX_POOLS

/* Everything that Stats answers, what is counted by request, and what only this page shows. */
struct view {
    struct kvd_stats stats;
    struct metrics m;
    struct store_lives lives;
    struct process_figures process;
    struct histogram copied[2]; /* by enum device_direction */
    uint64_t page_bytes[POOLS], pool_bytes[POOLS], reloaded_s;
    uint64_t entitled[POOLS], rows, sequence_limit, state_limit, connection_limit, session_limit, scrubbed_bytes;
    uint32_t moving[2]; /* by enum device_direction */
    struct cold_stats cold;
    struct cold_reads cold_reads;
    bool cold_up, lost, one, reload_good;
    char instance[160], build[256]; /* labels */
    char pool[POOLS][KVD_GROUP_NAME_BYTES], short_pages[POOLS][KVD_GROUP_NAME_BYTES + 8];
};

/* Looks at some sequences from cursor on, *left ones at most: the slots behind the last one are not searched. False:
 * these were the last. */
static bool view_entitled(struct service *s, struct view *v, uint32_t *cursor, uint64_t *left) {
    struct kvd_sequence_info info;
    for (uint32_t n = 0; n < 64; n++, --*left) {
        if (!*left || !store_next_seq(s->store, cursor, &info)) return false;
        for (uint32_t p = 0; p < v->stats.n_pools; p++) v->entitled[p] += info.pool[p].entitlement;
    }
    return true;
}

static void view_service(struct service *s, struct view *v) {
    struct host_stats host;
    host_tier_stats(s, &host);
    service_stats(s, &v->stats);
    v->m = s->metrics;
    v->m.endless_tokens += named_before_tokens(s->named_before);
    v->lives = *store_get_lives(s->store);
    v->reloaded_s = s->reloaded_s;
    v->reload_good = !s->reload_failed;
    for (uint32_t p = 0; p < s->pools.n_pools; p++) {
        v->page_bytes[p] = s->pools.info.pool[p].page_bytes;
        v->pool_bytes[p] = v->page_bytes[p] * s->pools.pages[p];
        memcpy(v->pool[p], s->pools.info.pool[p].name, sizeof v->pool[p]);
        snprintf(v->short_pages[p], sizeof v->short_pages[p], "%s_pages", s->pools.info.pool[p].name);
    }
    v->rows = v->sequence_limit = s->config.max_concurrency;
    v->state_limit = s->pools.state_slots;
    v->connection_limit = s->config.connections;
    v->session_limit = s->config.sessions;
    v->lost = transfer_lost(s->transfer);
    v->scrubbed_bytes = host.scrubbed_bytes;
    cold_tier_stats(s, &v->cold);
    cold_reader_stats(s, &v->cold_reads);
    v->cold_up = v->cold.on && v->cold.engine.breaker == COLD_CLOSED;
    memcpy(v->moving, host.mover.jobs, sizeof v->moving);
    memcpy(v->copied, host.mover.took, sizeof v->copied);
}

/* All under one hold of the mutex, but for the entitlements of more sequences than 64: those are added up in parts, so
 * that no request waits long for a page. */
static void view_take(struct service *s, struct view *v) {
    uint32_t cursor = 0;
    v->one = true;
    process_figures_read(&v->process);
    pthread_mutex_lock(&s->lock);
    view_service(s, v);
    v->stats.rss_bytes = v->process.resident_bytes;
    uint64_t left = v->stats.sequences;
    snprintf(v->build, sizeof v->build, "version=\"%s\"%s%s", KVD_VERSION, s->build_labels ? "," : "",
             s->build_labels ? s->build_labels : "");
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
    FATE,
    ROLLING,
    DOMAIN,
    DOMAIN_RESULT,
    REASON,
    CHECKED,
    FAULT,
    BUILD,
    INSTANCE
};
enum family_unit { PLAIN, NANOSECONDS /* shown in seconds */ };

static const struct family {
    const char *name;
    enum type type;
    enum labels labels;
    enum family_unit unit;
    size_t offset, width, stride; /* in struct view: of the first number; its bytes; from one label to the next */
    const char *help;
} families[] = {
#define STRIDE(f, stride) offsetof(struct view, f), sizeof(((struct view *)0)->f), stride
#define AT(f) STRIDE(f, sizeof(((struct view *)0)->f))
#define AT_DOMAIN(f) STRIDE(m.domain[0].f, sizeof(struct metrics_domain))
#define AT_HISTOGRAM(f) STRIDE(f, sizeof(struct histogram))
#define AT_POOL(f) STRIDE(stats.pool[0].f, sizeof(struct kvd_pool_stats))
#define AT_MOVED(f)                                                                                                    \
    STRIDE(stats.demoted_##f, offsetof(struct kvd_stats, restored_##f) - offsetof(struct kvd_stats, demoted_##f))
    { "kvd_build_info", GAUGE, BUILD, PLAIN, AT(one),
      "Version of kvd, its commit, whether it has CUDA, its package; always 1." },
    { "kvd_instance_info", GAUGE, INSTANCE, PLAIN, AT(one),
      "Store and instance epoch: another epoch is another start of the daemon; always 1." },
    { "kvd_uptime_seconds", GAUGE, NONE, NANOSECONDS, AT(stats.uptime_ns), "Time since the start." },
    { "kvd_config_last_reload_successful", GAUGE, NONE, PLAIN, AT(reload_good),
      "1 unless the last reload of the configuration failed: kvd then goes on with the one before." },
    { "kvd_config_last_reload_success_timestamp_seconds", GAUGE, NONE, PLAIN, AT(reloaded_s),
      "When the configuration was last read with success." },
    { "kvd_former_drivers", GAUGE, NONE, PLAIN, AT(stats.former_drivers),
      "Processes of an earlier instance that may still run on its pages: activations wait for them." },
    { "kvd_draining", GAUGE, NONE, PLAIN, AT(stats.draining),
      "1 while new activations are refused (drain, orderly stop)." },
    { "kvd_device_lost", GAUGE, NONE, PLAIN, AT(lost), "1 when a device is lost: the daemon stops." },
    { "kvd_resident_memory_bytes", GAUGE, NONE, PLAIN, AT(stats.rss_bytes),
      "Resident memory of the daemon; pools of host devices count, as far as they were touched." },
    { "kvd_metadata_bytes", GAUGE, NONE, PLAIN, AT(stats.metadata_bytes), "Memory of the store's tables." },

    { "kvd_page_bytes", GAUGE, POOL, PLAIN, AT(page_bytes[0]), "Bytes of a page, over all devices." },
    { "kvd_pool_bytes", GAUGE, POOL, PLAIN, AT(pool_bytes[0]), "Bytes of a pool's pages, over all devices." },
    { "kvd_pool_pages", GAUGE, POOL, PLAIN, AT_POOL(capacity), "Pages of a pool: allocated + reserved + available." },
    { "kvd_pool_allocated_pages", GAUGE, POOL, PLAIN, AT_POOL(allocated),
      "Pages that hold KV of sequences or continuations." },
    { "kvd_pool_reserved_pages", GAUGE, POOL, PLAIN, AT_POOL(reserved),
      "Pages promised to sequences, not mapped yet." },
    { "kvd_pool_available_pages", GAUGE, POOL, PLAIN, AT_POOL(available), "Pages that an activation could have." },
    { "kvd_pool_quarantined_pages", GAUGE, POOL, PLAIN, AT_POOL(quarantined),
      "Pages that only sequences of lost workers hold." },
    { "kvd_pool_shared_pages", GAUGE, POOL, PLAIN, AT_POOL(shared), "Pages with several references." },
    { "kvd_pool_entitled_pages", GAUGE, POOL, PLAIN, AT(entitled[0]), "Pages guaranteed to sequences, mapped or not." },
    { "kvd_pool_rows", GAUGE, POOL, PLAIN, STRIDE(rows, 0), "Rows of a pool's block table." },
    { "kvd_pool_used_rows", GAUGE, POOL, PLAIN, AT_POOL(rows_used), "Rows in use." },

    { "kvd_sequences", GAUGE, NONE, PLAIN, AT(stats.sequences), "Active sequences." },
    { "kvd_sequence_limit", GAUGE, NONE, PLAIN, AT(sequence_limit), "Active sequences at once." },
    { "kvd_continuations", GAUGE, NONE, PLAIN, AT(stats.continuations), "Continuations kept." },
    { "kvd_continuation_limit", GAUGE, NONE, PLAIN, AT(stats.continuation_limit), "Continuations that can be kept." },
    { "kvd_membership_entries", GAUGE, NONE, PLAIN, AT(stats.membership_used), "Page-list entries in use." },
    { "kvd_membership_limit", GAUGE, NONE, PLAIN, AT(stats.membership_limit), "Page-list entries that there are." },
    { "kvd_state_slots_used", GAUGE, NONE, PLAIN, AT(stats.state_slots_used), "State images in use on each device." },
    { "kvd_state_slots", GAUGE, NONE, PLAIN, AT(state_limit), "State images that each device holds." },

    { "kvd_sessions", GAUGE, ROLE, PLAIN, AT(m.sessions[0]), "Sessions, by role." },
    { "kvd_session_limit", GAUGE, NONE, PLAIN, AT(session_limit), "Sessions at once." },
    { "kvd_groups", GAUGE, NONE, PLAIN, AT(stats.groups), "Groups of workers." },
    { "kvd_connections", GAUGE, NONE, PLAIN, AT(stats.connections), "Connections, counted about once a second." },
    { "kvd_connection_limit", GAUGE, NONE, PLAIN, AT(connection_limit), "Connections at once." },

    { "kvd_prefix_lookups_total", COUNTER, NONE, PLAIN, AT(m.lookups),
      "Prefix lookups, each of one Find or more: hits + misses." },
    { "kvd_prefix_lookup_results_total", COUNTER, RESULT, PLAIN, AT(m.lookup_hits),
      "Prefix lookups by result: a hit has usable tokens." },
    { "kvd_prefix_matched_tokens_total", COUNTER, NONE, PLAIN, AT(m.lookup_tokens),
      "Usable tokens of the best hits of lookups." },
    { "kvd_prefix_looked_up_tokens_total", COUNTER, NONE, PLAIN, AT(m.looked_up_tokens),
      "Prompt tokens of lookups; those of a request that waits and is looked up again count once." },
    { "kvd_activations_total", COUNTER, SOURCE, PLAIN, AT(m.activations[0]),
      "Activations that succeeded, by source: from nothing, a continuation moved, one kept." },
    { "kvd_activated_prompt_tokens_total", COUNTER, NONE, PLAIN, AT(m.prompt_tokens), "Prompt tokens of activations." },
    { "kvd_activated_reused_tokens_total", COUNTER, NONE, PLAIN, AT(m.reused_tokens),
      "Those of them that a continuation held already." },
    { "kvd_activated_tokens_total", COUNTER, TIER, PLAIN, AT(m.tokens[0]),
      "The same prompt tokens by where they came from: pages on the device, pages restored from the host, neither." },
    { "kvd_endless_cache_tokens_total", COUNTER, NONE, PLAIN, AT(m.endless_tokens),
      "Prompt tokens that a cache without limits would have held: the reused ones, and those of computed pages whose "
      "names had come before. An estimate: at most 2 percent of the other pages are counted too, and names older than "
      "the last 700,000 may be forgotten." },
    { "kvd_domain_activations_total", COUNTER, DOMAIN_RESULT, PLAIN, AT_DOMAIN(activations[0]),
      "Activations by the label of the prompt's domain; a hit reuses tokens. The first 30 labels have figures of "
      "their own, the others and, with tenants = uid, all are under other." },
    { "kvd_domain_prompt_tokens_total", COUNTER, DOMAIN, PLAIN, AT_DOMAIN(prompt_tokens),
      "Prompt tokens of activations by domain." },
    { "kvd_domain_reused_tokens_total", COUNTER, DOMAIN, PLAIN, AT_DOMAIN(reused_tokens),
      "Those of them that a continuation held already." },
    { "kvd_committed_tokens_total", COUNTER, NONE, PLAIN, AT(stats.committed_tokens),
      "Tokens committed by rounds, of prompts and of outputs; what is cut off and committed again counts again." },
    { "kvd_continuations_made_total", COUNTER, NONE, PLAIN, AT(lives.made), "Continuations made." },
    { "kvd_continuations_merged_total", COUNTER, NONE, PLAIN, AT(lives.merged),
      "What was to be kept and was there already: the equal one stands for it." },
    { "kvd_continuations_found_total", COUNTER, NONE, PLAIN, AT(lives.found),
      "Continuations that this instance found in the arena or on devices." },
    { "kvd_continuations_ended_total", COUNTER, FATE, PLAIN, AT(lives.ended[0]),
      "Continuations that went: released by request, evicted for others, moved into a sequence, lost to damage." },
    { "kvd_victims_demoted_total", COUNTER, NONE, PLAIN, AT(lives.victims_demoted),
      "Continuations that were demoted to the host arena for others." },
    { "kvd_victims_shortened_total", COUNTER, NONE, PLAIN, AT(lives.victims_shortened),
      "Continuations that were shortened for others." },
    { "kvd_rolling_checkpoints_total", COUNTER, ROLLING, PLAIN, AT(lives.rolling[0]),
      "Rolling checkpoints: found under their names, superseded by a newer one of their sequence, skipped for want of "
      "a "
      "continuation, a page, a state slot or an image." },
    { "kvd_continuation_lifetime_seconds", HISTOGRAM, FATE, NANOSECONDS, AT_HISTOGRAM(lives.lifetime[0]),
      "Time from the making of a continuation to its end." },
    { "kvd_continuation_idle_seconds", HISTOGRAM, FATE, NANOSECONDS, AT_HISTOGRAM(lives.idle[0]),
      "Time from the last use of a continuation to its end." },
    { "kvd_continuation_reuse_gap_seconds", HISTOGRAM, NONE, NANOSECONDS, AT_HISTOGRAM(lives.reuse_gap),
      "Time from one use of a continuation to the next." },
    { "kvd_bounded_completions_total", COUNTER, NONE, PLAIN, AT(m.bounded),
      "Sequences whose lease could not grow: they end before their output budget." },
    { "kvd_sequences_lost_total", COUNTER, END, PLAIN, AT(m.ended[0]),
      "Sequences ended because a worker or scheduler was lost: kept as a continuation, or released." },

    { "kvd_arena_bytes", GAUGE, NONE, PLAIN, AT(stats.host_capacity), "Size of the host arena; 0: there is none." },
    { "kvd_arena_occupied_bytes", GAUGE, NONE, PLAIN, AT(stats.host_occupied),
      "Bytes of it that hold pages and state images." },
    { "kvd_arena_largest_free_bytes", GAUGE, NONE, PLAIN, AT(stats.host_largest_free), "Longest free run of it." },
    { "kvd_arena_pages", GAUGE, POOL, PLAIN, AT(stats.host_pages[0]), "Pages in the host arena." },
    { "kvd_arena_state_images", GAUGE, NONE, PLAIN, AT(stats.host_images), "State images in the host arena." },
    { "kvd_demoted_continuations", GAUGE, NONE, PLAIN, AT(stats.demoted_continuations),
      "Continuations that were demoted: they ask for no page on the device." },
    { "kvd_moves", GAUGE, NONE, PLAIN, AT(stats.moves),
      "Activations and moves that copy between device and host now." },
    { "kvd_moving", GAUGE, DIRECTION, PLAIN, AT(moving[0]), "Those of them that copy in a direction." },
    { "kvd_move_pages_left", GAUGE, NONE, PLAIN, AT(stats.move_pages_left),
      "Pages and state images that they still have to copy." },
    { "kvd_moved_pages_total", COUNTER, DIRECTION, PLAIN, AT_MOVED(pages), "Pages copied to the host and back." },
    { "kvd_moved_bytes_total", COUNTER, DIRECTION, PLAIN, AT_MOVED(bytes), "Bytes copied, state images too." },
    { "kvd_moved_seconds_total", COUNTER, DIRECTION, NANOSECONDS, AT_MOVED(ns),
      "Time in which copies of a direction were under way, checksums included." },
    { "kvd_copy_seconds", HISTOGRAM, DIRECTION, NANOSECONDS, AT_HISTOGRAM(copied[0]),
      "Time that a move or an activation waited for its copies of a direction, checksums included." },
    { "kvd_damaged_replicas_total", COUNTER, NONE, PLAIN, AT(stats.damaged_replicas),
      "Copies in the host arena whose bytes did not match their checksum; they were dropped." },
    { "kvd_lost_continuations_total", COUNTER, NONE, PLAIN, AT(stats.lost_continuations),
      "Continuations released because such a copy was the only one." },
    { "kvd_recovered_continuations", GAUGE, OUTCOME, PLAIN, AT(stats.recovered_continuations),
      "What this instance found in the arena at its start. damaged: records and parts of records." },
    { "kvd_scrubbed_pages_total", COUNTER, NONE, PLAIN, AT(stats.scrubbed_pages),
      "Pages and images of the arena read again." },
    { "kvd_scrubbed_bytes_total", COUNTER, NONE, PLAIN, AT(scrubbed_bytes), "Their bytes." },

    { "kvd_cold_configured", GAUGE, NONE, PLAIN, AT(cold.on), "1 where there is a cold tier to write to." },
    { "kvd_cold_up", GAUGE, NONE, PLAIN, AT(cold_up),
      "1 while its engine answers; 0 while it is left alone, and where there is none." },
    { "kvd_cold_breaker_trips_total", COUNTER, NONE, PLAIN, AT(cold.engine.trips),
      "How often the engine was left alone for a while because it was slow, full, gone or refused." },
    { "kvd_cold_waiting_continuations", GAUGE, NONE, PLAIN, AT(cold.waiting),
      "Demoted continuations that wait to be written." },
    { "kvd_cold_continuations_total", COUNTER, NONE, PLAIN, AT(cold.continuations),
      "Continuations that the engine has whole, as far as they were named: written, or there already." },
    { "kvd_cold_dropped_continuations_total", COUNTER, REASON, PLAIN, AT(cold.dropped[0]),
      "Continuations that were not written whole: they waited too long, newer ones took their place, the engine did "
      "not "
      "take them, or the arena had no room for a copy to write from." },
    { "kvd_cold_written_objects_total", COUNTER, NONE, PLAIN, AT(cold.written_objects), "Objects written." },
    { "kvd_cold_written_bytes_total", COUNTER, NONE, PLAIN, AT(cold.written_bytes), "Their bytes." },
    { "kvd_cold_written_seconds_total", COUNTER, NONE, NANOSECONDS, AT(cold.written_ns),
      "Time with writes under way." },
    { "kvd_cold_met_objects_total", COUNTER, NONE, PLAIN, AT(cold.met_objects),
      "Objects that were there when they were to be written." },
    { "kvd_cold_connections_total", COUNTER, NONE, PLAIN, AT(cold.engine.connections), "Connections to the engine." },
    { "kvd_cold_checks_total", COUNTER, NONE, PLAIN, AT(cold.checks),
      "Checks of the engine (kvdctl cold ping, verify)." },
    { "kvd_cold_checked_objects_total", COUNTER, CHECKED, PLAIN, AT(cold.checked_objects[0]),
      "Objects that they read. absent: expired, evicted or flushed. wrong: not what was written; deleted there." },
    { "kvd_cold_finds_total", COUNTER, NONE, PLAIN, AT(cold_reads.finds), "Lookups in the cold tier (FindCold)." },
    { "kvd_cold_found_total", COUNTER, NONE, PLAIN, AT(cold_reads.found), "Those that found something." },
    { "kvd_cold_found_tokens_total", COUNTER, NONE, PLAIN, AT(cold_reads.found_tokens),
      "Tokens that they found, behind what the question said was there." },
    { "kvd_cold_loads_total", COUNTER, NONE, PLAIN, AT(cold_reads.loads), "Loads from the cold tier (LoadCold)." },
    { "kvd_cold_loaded_total", COUNTER, NONE, PLAIN, AT(cold_reads.loaded), "Those of which something came." },
    { "kvd_cold_loaded_tokens_total", COUNTER, NONE, PLAIN, AT(cold_reads.loaded_tokens), "Tokens that came." },
    { "kvd_cold_loaded_objects_total", COUNTER, NONE, PLAIN, AT(cold_reads.loaded_objects), "Objects that came." },
    { "kvd_cold_loaded_bytes_total", COUNTER, NONE, PLAIN, AT(cold_reads.loaded_bytes), "Their bytes." },
    { "kvd_cold_loaded_seconds_total", COUNTER, NONE, NANOSECONDS, AT(cold_reads.load_ns),
      "Time with loads under way." },
    { "kvd_cold_wrong_objects_total", COUNTER, FAULT, PLAIN, AT(cold_reads.wrong[COLD_FAULT_SHORT]),
      "Objects that a load read and that were not what was asked for, by what was wrong: deleted there, never "
      "served." },

    { "kvd_requests_total", COUNTER, REQUEST, PLAIN, AT(m.requests[0]), "Requests, by type; unknown: no such type." },
    { "kvd_refusals_total", COUNTER, REFUSAL, PLAIN, AT(m.refusals[0][0]),
      "Requests that were refused, by type and status." },
    { "kvd_replays_total", COUNTER, REQUEST, PLAIN, AT(m.replays[0]),
      "Repeated requests that got their first answer from memory." },
    { "kvd_round_items_total", COUNTER, ITEM, PLAIN, AT(m.items[0]), "Sequences of rounds, by the status of each." },
    { "kvd_board_boundaries_total", COUNTER, NONE, PLAIN, AT(m.board_boundaries),
      "Boundaries of sequences that workers asked for on their boards, without a message, and got." },
    { "kvd_board_refusals_total", COUNTER, NONE, PLAIN, AT(m.board_refusals),
      "Those that they did not get: a frontier that cannot be, or no page for it. The worker sends a Round then." },
    { "kvd_shortages_total", COUNTER, SHORT, PLAIN, AT(m.shortages[0]),
      "RESOURCE_EXHAUSTED, of requests and of sequences in rounds, by what was short." },
    { "kvd_request_seconds", HISTOGRAM, REQUEST, NANOSECONDS, AT_HISTOGRAM(m.time[0]),
      "Time from a request's frame to its outcome, waits for the store and for devices included." },
    { "kvd_frames_bad_total", COUNTER, NONE, PLAIN, AT(stats.frames_bad),
      "Frames whose content could not be decoded." },
    { "kvd_events_dropped_total", COUNTER, NONE, PLAIN, AT(stats.events_dropped), "Events lost to slow subscribers." },
    { "kvd_audits_total", COUNTER, NONE, PLAIN, AT(m.audits), "Audits (kvdctl audit)." },
    { "kvd_audit_violations", GAUGE, NONE, PLAIN, AT(m.audit_violations),
      "Broken invariants that the last audit found; 0 before the first." },

    { "process_cpu_seconds_total", COUNTER, NONE, NANOSECONDS, AT(process.cpu_ns), "Processor time." },
    { "process_start_time_seconds", GAUGE, NONE, NANOSECONDS, AT(process.started_ns), "Start, since 1970." },
    { "process_resident_memory_bytes", GAUGE, NONE, PLAIN, AT(process.resident_bytes), "Resident memory." },
    { "process_virtual_memory_bytes", GAUGE, NONE, PLAIN, AT(process.virtual_bytes), "Address space." },
    { "process_open_fds", GAUGE, NONE, PLAIN, AT(process.open_files), "Open files." },
    { "process_max_fds", GAUGE, NONE, PLAIN, AT(process.most_files), "Open files at most." },
    { "process_threads", GAUGE, NONE, PLAIN, AT(process.threads), "Threads." },
#undef AT_MOVED
#undef AT_POOL
#undef AT_HISTOGRAM
#undef AT_DOMAIN
#undef AT
#undef STRIDE
};

/* ---- text -------------------------------------------------------------------------------------------- */

#define ROLE_NAME(name, number, text) text,
static const char *const role_names[METRICS_ROLES] = { KVD_ROLE_LIST(ROLE_NAME) };
#undef ROLE_NAME
static const char *const source_names[METRICS_SOURCES] = { "root", "move", "fork" };
static const char *const short_names[METRICS_SHORTS] = {
    [METRICS_SHORT_LIMIT] = "limit",
    [METRICS_SHORT_PAGES + 1] = "draft_pages", /* also where there is no such pool; those of the others have its name */
    [METRICS_SHORT_ROWS] = "rows",
    [METRICS_SHORT_SEQUENCES] = "sequences",
    [METRICS_SHORT_CONTINUATIONS] = "continuations",
    [METRICS_SHORT_MEMBERSHIP] = "membership",
    [METRICS_SHORT_STATE_SLOTS] = "state_slots",
    [METRICS_SHORT_ARENA] = "arena",
};
static const char *const end_names[METRICS_ENDS] = { "kept", "released" };
static const char *const tier_names[METRICS_TIERS] = { "device", "host", "computed" };
static const char *const direction_names[2] = { [DEVICE_TO_HOST] = "demoted", [HOST_TO_DEVICE] = "restored" };
static const char *const outcome_names[HOST_OUTCOMES] = { "kept", "shortened", "dropped", "damaged" };
static const char *const result_names[2] = { "hit", "miss" };
static const char *const fate_names[STORE_FATES] = { "released", "evicted", "moved", "lost" };
static const char *const rolling_names[STORE_ROLLINGS] = { "found", "superseded", "skipped" };
static const char *const reason_names[COLD_DROPS] = { "age", "queue", "engine", "arena" };
/* cold_fault_name, from COLD_FAULT_SHORT on. */
static const char *const fault_names[] = { "short", "magic", "version", "header", "layout",   "digest", "kind",
                                           "pool",  "shard", "columns", "length", "checksum", "mac" };
_Static_assert(sizeof fault_names / sizeof *fault_names == COLD_FAULTS - 1, "a name for each fault");
static const char *const checked_names[COLD_CHECK_OUTCOMES] = { "right", "absent", "wrong", "unanswered" };
static const char *const request_names[FRAME_TYPE_END] = { "unknown",
#define NAME(constant, number, name, ...) [number] = #name,
                                                           FRAME_LIST(NAME)
#undef NAME
};
static const char *const status_names[METRICS_STATUSES] = {
#define NAME(name, code, ...) [code] = #name,
    KVD_STATUS_LIST(NAME)
#undef NAME
};
static_assert(offsetof(struct metrics, lookup_misses) == offsetof(struct metrics, lookup_hits) + sizeof(uint64_t),
              "hits and misses are one family");
static_assert(offsetof(struct kvd_stats, recovered_damaged) ==
                  offsetof(struct kvd_stats, recovered_continuations) + HOST_DAMAGED * sizeof(uint32_t),
              "outcomes of a recovery are one family, in the order of their names");

/* Families with one label, whose values are constant, but the names of pools. Histograms of requests have fewer. */
static const struct label_set {
    const char *label;
    const char *const *names;
    uint32_t n;
} label_sets[] = {
    [POOL] = { "pool", NULL, POOLS },
    [ROLE] = { "role", role_names, METRICS_ROLES },
    [SOURCE] = { "source", source_names, METRICS_SOURCES },
    [END] = { "end", end_names, METRICS_ENDS },
    [REQUEST] = { "request", request_names, FRAME_TYPE_END },
    [SHORT] = { "short", short_names, METRICS_SHORTS },
    [ITEM] = { "status", status_names, METRICS_STATUSES },
    [TIER] = { "tier", tier_names, METRICS_TIERS },
    [DIRECTION] = { "direction", direction_names, 2 },
    [OUTCOME] = { "outcome", outcome_names, HOST_OUTCOMES },
    [RESULT] = { "result", result_names, 2 },
    [FATE] = { "reason", fate_names, STORE_FATES },
    [ROLLING] = { "outcome", rolling_names, STORE_ROLLINGS },
    [REASON] = { "reason", reason_names, COLD_DROPS },
    [CHECKED] = { "outcome", checked_names, COLD_CHECK_OUTCOMES },
    [FAULT] = { "field", fault_names, COLD_FAULTS - 1 },
};

/* Number i of a family. */
static uint64_t number_at(const struct view *v, const struct family *f, uint32_t i) {
    const char *at = (const char *)v + f->offset + i * f->stride;
    uint64_t wide;
    uint32_t narrow;
    if (f->width == sizeof(bool)) return (uint64_t)*at;
    if (f->width == sizeof narrow) {
        memcpy(&narrow, at, sizeof narrow);
        return narrow;
    }
    memcpy(&wide, at, sizeof wide);
    return wide;
}

static void write_number(FILE *out, enum family_unit unit, uint64_t value) {
    if (unit == PLAIN) fprintf(out, " %" PRIu64 "\n", value);
    else fprintf(out, " %" PRIu64 ".%09" PRIu64 "\n", value / 1000000000u, value % 1000000000u);
}

/* NULL: of a pool that is not there. */
static const char *label_value(const struct family *f, const struct view *v, uint32_t i) {
    if (f->labels == POOL) return i < v->stats.n_pools ? v->pool[i] : NULL;
    if (f->labels == SHORT && i - METRICS_SHORT_PAGES < v->stats.n_pools)
        return v->short_pages[i - METRICS_SHORT_PAGES];
    return label_sets[f->labels].names[i];
}

static void write_list(FILE *out, const struct family *f, const struct view *v) {
    const struct label_set *set = &label_sets[f->labels];
    for (uint32_t i = 0; i < set->n; i++) {
        const char *value = label_value(f, v, i);
        if (!value) continue;
        fprintf(out, "%s{%s=\"%s\"}", f->name, set->label, value);
        write_number(out, f->unit, number_at(v, f, i));
    }
}

/* Of histograms: the edges 2^first, 2^(first + step) .. 2^last ns. */
static const struct edges {
    uint32_t first, last, step;
} edges_of_requests = { 10, 31, 1 }, /* 1.024 us to 2.1 s */
    edges_of_copies = { 14, 36, 1 }, /* 16 us to 69 s */
    edges_of_lives = { 20, 46, 2 };  /* 1 ms to 19.5 hours */

static const struct edges *edges_of(const struct family *f) {
    return f->labels == REQUEST ? &edges_of_requests : f->labels == DIRECTION ? &edges_of_copies : &edges_of_lives;
}

/* One histogram; labels: with a comma at the end, or empty. */
static void write_histogram(FILE *out, const struct family *f, const struct histogram *h, const char *labels) {
    const struct edges *edges = edges_of(f);
    uint64_t sum = 0;
    uint32_t i = 0;
    for (uint32_t bit = edges->first; bit <= edges->last; bit += edges->step) {
        uint64_t limit = UINT64_C(1) << bit;
        while (i <= bit - HISTOGRAM_FIRST_BIT) sum += h->bucket[i++];
        fprintf(out, "%s_bucket{%sle=\"%" PRIu64 ".%09" PRIu64 "\"} %" PRIu64 "\n", f->name, labels,
                limit / 1000000000u, limit % 1000000000u, sum);
    }
    while (i < HISTOGRAM_BUCKETS) sum += h->bucket[i++];
    fprintf(out, "%s_bucket{%sle=\"+Inf\"} %" PRIu64 "\n", f->name, labels, sum);
    size_t n = strlen(labels);
    fprintf(out, n ? "%s_sum{%.*s}" : "%s_sum%.*s", f->name, n ? (int)n - 1 : 0, labels);
    write_number(out, f->unit, h->sum_ns);
    fprintf(out, n ? "%s_count{%.*s} %" PRIu64 "\n" : "%s_count%.*s %" PRIu64 "\n", f->name, n ? (int)n - 1 : 0, labels,
            sum);
}

static void write_histograms(FILE *out, const struct family *f, const struct view *v) {
    const struct label_set *set = &label_sets[f->labels];
    const struct histogram *first = (const void *)((const char *)v + f->offset);
    char labels[96];
    if (f->labels == NONE) write_histogram(out, f, first, "");
    for (uint32_t i = f->labels == REQUEST /* not the unknown ones */; i < set->n; i++) {
        snprintf(labels, sizeof labels, "%s=\"%s\",", set->label, set->names[i]);
        write_histogram(out, f, &first[i], labels);
    }
}

static void write_refusals(FILE *out, const struct family *f, const struct view *v) {
    for (uint32_t type = 1; type < FRAME_TYPE_END; type++)
        for (uint32_t status = KVD_OK + 1; status < METRICS_STATUSES; status++)
            fprintf(out, "%s{request=\"%s\",status=\"%s\"} %" PRIu64 "\n", f->name, request_names[type],
                    status_names[status], number_at(v, f, type * METRICS_STATUSES + status));
}

/* A label of a domain has no character that would have to be escaped. */
static void write_domains(FILE *out, const struct family *f, const struct view *v) {
    for (uint32_t i = 0; i < v->m.n_domains; i++) {
        const struct metrics_domain *d = &v->m.domain[i];
        if (f->labels == DOMAIN) fprintf(out, "%s{domain=\"%s\"} %" PRIu64 "\n", f->name, d->label, number_at(v, f, i));
        for (uint32_t hit = 0; f->labels == DOMAIN_RESULT && hit < 2; hit++)
            fprintf(out, "%s{domain=\"%s\",result=\"%s\"} %" PRIu64 "\n", f->name, d->label, result_names[!hit],
                    d->activations[hit]);
    }
}

static void write_family(FILE *out, const struct family *f, const struct view *v) {
    static const char *const types[] = { [COUNTER] = "counter", [GAUGE] = "gauge", [HISTOGRAM] = "histogram" };
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", f->name, f->help, f->name, types[f->type]);
    if (f->type == HISTOGRAM) {
        write_histograms(out, f, v);
    } else if (f->labels == NONE) {
        fputs(f->name, out);
        write_number(out, f->unit, number_at(v, f, 0));
    } else if (f->labels == REFUSAL) {
        write_refusals(out, f, v);
    } else if (f->labels == DOMAIN || f->labels == DOMAIN_RESULT) {
        write_domains(out, f, v);
    } else if (f->labels == BUILD) {
        fprintf(out, "%s{%s} %" PRIu64 "\n", f->name, v->build, number_at(v, f, 0));
    } else if (f->labels == INSTANCE) {
        fprintf(out, "%s{%s} %" PRIu64 "\n", f->name, v->instance, number_at(v, f, 0));
    } else {
        write_list(out, f, v);
    }
}

char *metrics_page(struct service *s, size_t *ret_bytes) {
    struct view *v = calloc(1, sizeof *v);
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = v ? open_memstream(&text, &bytes) : NULL;
    if (out) {
        view_take(s, v);
        for (size_t i = 0; i < sizeof families / sizeof *families; i++) write_family(out, &families[i], v);
    }
    free(v);
    if (!out) return NULL;
    if (fclose(out)) {
        free(text);
        return NULL;
    }
    *ret_bytes = bytes;
    return text;
}
