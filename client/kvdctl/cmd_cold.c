/* SPDX-License-Identifier: Apache-2.0
 *
 * cold: the cold tier and its engine; asks it once (ping), or has some of what was written read back (verify).
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "ctl.h"
#include "figures.h"

#define SAMPLE 256u /* objects that verify reads */
#define N(array) (sizeof(array) / sizeof *(array))

/* ---- figures: as in /metrics, without "kvd_cold_" ------------------------------------------------------ */

static void put_engine(cJSON *o, const struct kvd_cold_tier *cold) {
    static const char *const names[] = { "connecting", "closed", "open" };
    const char *of = cold->clustered ? ", a cluster" : "";
    cJSON_AddBoolToObject(o, "configured", cold->configured);
    cJSON_AddBoolToObject(o, "up", cold->breaker == KVD_COLD_CLOSED);
    cJSON_AddStringToObject(o, "breaker", cold->breaker < N(names) ? names[cold->breaker] : "?");
    cJSON_AddBoolToObject(o, "clustered", cold->clustered);
    cJSON_AddNumberToObject(o, "retry_seconds", (double)cold->retry_ns / 1e9);
    if (!cold->configured) cJSON_AddStringToObject(o, "engine_text", "there is none");
    else if (cold->breaker == KVD_COLD_CLOSED) out_put_text(o, "engine_text", "it answers%s", of);
    else if (cold->breaker == KVD_COLD_CONNECTING) cJSON_AddStringToObject(o, "engine_text", "it is tried now");
    else out_put_text(o, "engine_text", "left alone%s, tried again in %.1f s", of, (double)cold->retry_ns / 1e9);
    cJSON_AddStringToObject(o, "why", cold->why);
    out_put_text(o, "why_text", "%s", *cold->why ? cold->why : "never");
    out_put_u64(o, "breaker_trips_total", cold->trips);
    out_put_u64(o, "connections_total", cold->connections);
}

static void put_writing(cJSON *o, const struct kvd_cold_tier *cold) {
    double seconds = (double)cold->written_ns / 1e9;
    double rate = cold->written_ns ? (double)cold->written_bytes / seconds : 0;
    cJSON *dropped = cJSON_AddObjectToObject(o, "dropped_continuations_total");
    out_put_u64(o, "waiting_continuations", cold->waiting);
    out_put_u64(o, "continuations_total", cold->continuations);
    out_put_u64(dropped, "age", cold->dropped_age);
    out_put_u64(dropped, "queue", cold->dropped_queue);
    out_put_u64(dropped, "engine", cold->dropped_engine);
    out_put_u64(dropped, "arena", cold->dropped_arena);
    out_put_text(o, "dropped_text", "age %" PRIu64 ", queue %" PRIu64 ", engine %" PRIu64 ", arena %" PRIu64,
                 cold->dropped_age, cold->dropped_queue, cold->dropped_engine, cold->dropped_arena);
    out_put_u64(o, "written_objects_total", cold->written_objects);
    out_put_u64(o, "met_objects_total", cold->met_objects);
    out_put_text(o, "objects_text", "%" PRIu64 " written, %" PRIu64 " were there", cold->written_objects,
                 cold->met_objects);
    out_put_bytes(o, "written_bytes_total", cold->written_bytes);
    cJSON_AddNumberToObject(o, "written_seconds_total", seconds);
    out_put_bytes(o, "written_bytes_per_second", (uint64_t)rate);
    out_put_text(o, "written_text", "%s in %.1f s, %s a second", figures_string(o, "written_bytes_total_text"), seconds,
                 figures_string(o, "written_bytes_per_second_text"));
}

static void put_check(cJSON *o, const struct kvd_cold_tier *cold) {
    out_put_u64(o, "checks_total", cold->checks);
    cJSON *check = cJSON_AddObjectToObject(o, "check");
    cJSON_AddNumberToObject(check, "ping_seconds", (double)cold->ping_ns / 1e9);
    out_put_u64(check, "read", cold->read_objects);
    out_put_u64(check, "right", cold->right_objects);
    out_put_u64(check, "absent", cold->absent_objects);
    out_put_u64(check, "wrong", cold->wrong_objects);
    out_put_u64(check, "unanswered", cold->unanswered_objects);
    cJSON_AddStringToObject(check, "wrong_field", cold->wrong_field);
}

static void show_cold(struct ctl *ctl, const struct kvd_cold_tier *cold) {
    static const struct out_column lines[] = {
        { "engine_text", "engine", false, 0 },
        { "why_text", "left alone last", false, 0 },
        { "breaker_trips_total", "how often", false, 0 },
        { "connections_total", "connections made", false, 0 },
        { "waiting_continuations", "continuations that wait", false, 0 },
        { "continuations_total", "that it has", false, 0 },
        { "dropped_text", "dropped", false, 0 },
        { "objects_text", "objects", false, 0 },
        { "written_text", "bytes written", false, 0 },
    };
    cJSON *o = cJSON_CreateObject();
    put_engine(o, cold);
    put_writing(o, cold);
    put_check(o, cold);
    out_facts(ctl->out, "cold", lines, cold->configured ? N(lines) : 1, o);
}

/* ---- checks ------------------------------------------------------------------------------------------- */

/* Asks until a check has ended that began after this. */
static enum kvd_status await_check(struct ctl *ctl, uint32_t objects, struct kvd_cold_tier *ret_cold,
                                   struct kvd_error *error) {
    uint32_t timeout_ms = ctl->options.timeout_ms ? ctl->options.timeout_ms : 5000;
    const struct timespec pause = { .tv_nsec = 20000000 };
    enum kvd_status status = kvd_describe_cold_tier(ctl->client, ret_cold, error);
    uint64_t before = ret_cold->checks;
    double end = figures_time() + timeout_ms / 1e3;
    if (status == KVD_OK) status = kvd_check_cold_tier(ctl->client, objects, error);
    while (status == KVD_OK) {
        status = kvd_describe_cold_tier(ctl->client, ret_cold, error);
        if (status != KVD_OK || ret_cold->checks > before) break;
        if (figures_time() < end) {
            nanosleep(&pause, NULL);
            continue;
        }
        status = KVD_DEADLINE_EXCEEDED;
        snprintf(error->message, sizeof error->message,
                 "the check is in work after %" PRIu32 " ms, and goes on; raise --timeout", timeout_ms);
    }
    return status;
}

static int tell_check(struct ctl *ctl, const struct kvd_cold_tier *cold) {
    bool good = cold->ping_ns && !cold->wrong_objects && !cold->unanswered_objects;
    if (!cold->ping_ns) {
        out_say(ctl->out, "result", OUT_BAD, "the engine does not answer%s%s", *cold->why ? ": " : "", cold->why);
    } else if (!cold->read_objects) {
        out_say(ctl->out, "result", OUT_GOOD, "the engine answers in %.2f ms", (double)cold->ping_ns / 1e6);
    } else {
        out_say(ctl->out, "result", good ? OUT_GOOD : OUT_BAD,
                "the engine answers in %.2f ms; of %u objects %u are as they were written, %u are gone, %u are "
                "wrong%s%s%s, "
                "%u without an answer",
                (double)cold->ping_ns / 1e6, cold->read_objects, cold->right_objects, cold->absent_objects,
                cold->wrong_objects, cold->wrong_objects ? " (" : "", cold->wrong_field,
                cold->wrong_objects ? ") and deleted" : "", cold->unanswered_objects);
    }
    return good ? CTL_OK : CTL_REFUSED;
}

int cmd_cold(struct ctl *ctl) {
    struct kvd_cold_tier cold;
    struct kvd_error error = { .message = "" };
    const char *what = ctl->n_args ? ctl->args[0] : "";
    bool ping = strcmp(what, "ping") == 0, verify = strcmp(what, "verify") == 0;
    if (*what && !ping && !verify) {
        fprintf(stderr, "kvdctl: cold takes nothing, \"ping\" or \"verify\", not \"%s\"\n", what);
        return CTL_USAGE;
    }
    int code = ctl_connect_or_say(ctl, ping || verify ? KVD_ROLE_ADMIN : KVD_ROLE_OBSERVER);
    if (code != CTL_OK) return code;
    enum kvd_status status = ping || verify ? await_check(ctl, verify ? SAMPLE : 0, &cold, &error)
                                            : kvd_describe_cold_tier(ctl->client, &cold, &error);
    if (status != KVD_OK) return ctl_refused(ctl, status, &error);
    if (ping || verify) code = tell_check(ctl, &cold);
    if (out_is_json(ctl->out) || !*what) show_cold(ctl, &cold);
    return code;
}
