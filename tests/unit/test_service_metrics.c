/* SPDX-License-Identifier: Apache-2.0
 *
 * The page of metrics: bytes in, text out. Each figure is worked out here from the requests that the case sends.
 * POOL-6, SPACE-3, SRV-5, SRV-7.
 *
 *     test_service_metrics --page    prints a page, for promtool
 */
#include <cjson/cJSON.h>
#include <ctype.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "core.h" /* to break a device */
#include "metrics_page.h"
#include "service_fixture.h"
#include "store_internal.h" /* to break an invariant */
#include "transfer.h"

static struct fx fx;
static struct msg_reply r;

#define REQUEST(t, ...)                                                                                                \
    &(struct msg_request) { .type = (t), __VA_ARGS__ }

/* What the cases have asked, by type, and how it was refused. */
static uint64_t asked[FRAME_TYPE_END], refused[FRAME_TYPE_END][METRICS_STATUSES];

static uint32_t ask(struct fx_peer *p, struct msg_request *q) {
    uint32_t status = fx_call(p, q, &r) ? r.status : UINT32_MAX;
    asked[q->type]++;
    if (status != KVD_OK && status < METRICS_STATUSES) refused[q->type][status]++;
    return status;
}

/* ---- the page --------------------------------------------------------------------------------- */

static char *text;

static void look(void) {
    size_t bytes = 0;
    free(text);
    text = metrics_page(fx.service, &bytes);
    if (!KVT_TRUE(text != NULL)) abort();
    KVT_EQ(bytes, strlen(text));
}

/* Of the series as it is written; a missing one fails. */
static double value(const char *series) {
    size_t n = strlen(series);
    for (const char *at = text; (at = strstr(at, series)); at += n)
        if ((at == text || at[-1] == '\n') && at[n] == ' ') return strtod(at + n, NULL);
    printf("    there is no %s\n", series);
    KVT_TRUE(false);
    return -1;
}

#define IS(series, expected) KVT_NEAR(value(series), (double)(expected), 0)

/* name{label="is"}, or name{label="is",status="status"}. */
static double value_of(const char *name, const char *label, const char *is, const char *status) {
    char series[256];
    if (status) snprintf(series, sizeof series, "%s{%s=\"%s\",status=\"%s\"}", name, label, is, status);
    else snprintf(series, sizeof series, "%s{%s=\"%s\"}", name, label, is);
    return value(series);
}

static bool name_is_fine(const char *name, size_t n) {
    if (!n || !islower((unsigned char)name[0])) return false;
    for (size_t i = 0; i < n; i++)
        if (!islower((unsigned char)name[i]) && !isdigit((unsigned char)name[i]) && name[i] != '_') return false;
    return true;
}

/* {a="x",b="y"}: the length, or 0. */
static size_t labels_length(const char *at) {
    const char *c = at + 1;
    while (*c != '}') {
        size_t n = strcspn(c, "=");
        if (!name_is_fine(c, n) || c[n + 1] != '"') return 0;
        c += n + 2;
        size_t v = strcspn(c, "\"\\\n");
        if (!v || c[v] != '"') return 0;
        c += v + 1;
        if (*c == ',') c++;
        else if (*c != '}') return 0;
    }
    return (size_t)(c + 1 - at);
}

static bool belongs(const char *name, size_t n, const char *family, const char *type) {
    size_t f = strlen(family);
    if (n < f || strncmp(name, family, f) != 0) return false;
    if (strcmp(type, "histogram") != 0) return n == f;
    return (n == f + 7 && strncmp(name + f, "_bucket", 7) == 0) || (n == f + 4 && strncmp(name + f, "_sum", 4) == 0) ||
           (n == f + 6 && strncmp(name + f, "_count", 6) == 0);
}

/* One sample: name, labels, blank, number. Its series goes to ret_series. */
static bool sample_is_fine(const char *line, const char *family, const char *type, char *ret_series, size_t bytes) {
    size_t n = strcspn(line, "{ ");
    char *end;
    if (!belongs(line, n, family, type)) return false;
    size_t labels = line[n] == '{' ? labels_length(line + n) : 0;
    if (line[n] == '{' && !labels) return false;
    if (line[n + labels] != ' ') return false;
    double v = strtod(line + n + labels + 1, &end);
    snprintf(ret_series, bytes, "%.*s\n", (int)(n + labels), line);
    return !*end && v >= 0;
}

/* Checks every line; the series one a line, to be freed. */
static char *all_series(unsigned *ret_families, unsigned *ret_samples) {
    char *copy = strdup(text), *save = NULL, family[96] = "", type[16] = "", series[256];
    char *list = calloc(1, strlen(text) + 2);
    unsigned help = 0, since = 1;
    *ret_families = *ret_samples = 0;
    KVT_EQ(text[strlen(text) - 1], '\n');
    list[0] = '\n';
    for (char *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (strncmp(line, "# HELP ", 7) == 0) {
            KVT_TRUE(since > 0); /* no family without a series */
            KVT_EQ(sscanf(line, "# HELP %95s", family), 1);
            KVT_TRUE(name_is_fine(family, strlen(family)) &&
                     (strncmp(family, "kvd_", 4) == 0 || strncmp(family, "process_", 8) == 0));
            KVT_TRUE(strlen(line) > 8 + strlen(family) + 5 && line[strlen(line) - 1] == '.');
            help++;
        } else if (strncmp(line, "# TYPE ", 7) == 0) {
            char of[96] = "";
            KVT_EQ(sscanf(line, "# TYPE %95s %15s", of, type), 2);
            KVT_EQ_STR(of, family);
            bool counter = strcmp(type, "counter") == 0, total = strstr(of, "_total") != NULL;
            KVT_TRUE(counter || strcmp(type, "gauge") == 0 || strcmp(type, "histogram") == 0);
            KVT_EQ(counter, total);
            (*ret_families)++;
            since = 0;
        } else {
            if (!KVT_TRUE(sample_is_fine(line, family, type, series, sizeof series))) printf("    %s\n", line);
            char *before = strstr(list, series);
            while (before && before[-1] != '\n') before = strstr(before + 1, series);
            KVT_TRUE(!before); /* each series once */
            strcat(list, series);
            (*ret_samples)++;
            since++;
        }
    }
    KVT_EQ(help, *ret_families);
    free(copy);
    return list;
}

/* ---- cases --------------------------------------------------------------------------------------- */

static const char *const scalar[] = {
    "kvd_uptime_seconds",
    "kvd_former_drivers",
    "kvd_draining",
    "kvd_device_lost",
    "kvd_metadata_bytes",
    "kvd_sequences",
    "kvd_continuations",
    "kvd_groups",
    "kvd_connections",
    "kvd_prefix_lookups_total",
    "kvd_frames_bad_total",
    "kvd_audits_total",
    "kvd_audit_violations",
    "kvd_continuation_limit",
    "kvd_membership_limit",
    "kvd_bounded_completions_total",
    "kvd_membership_entries",
    "kvd_resident_memory_bytes",
    "kvd_events_dropped_total",
};

/* All there on the first page, in a valid form; the same ones after work and clients came: nothing grows. */
static void every_series_from_the_start(void) {
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .backend = "mtp" }));
    unsigned families, samples, f, n;
    look();
    char *first = all_series(&families, &samples);
    KVT_TRUE(families >= 40);
    for (size_t i = 0; i < sizeof scalar / sizeof *scalar; i++) value(scalar[i]);
    for (uint16_t type = 1; type < FRAME_TYPE_END; type++) {
        KVT_NEAR(value_of("kvd_requests_total", "request", frame_type_name(type), NULL), 0, 0);
        KVT_NEAR(value_of("kvd_request_seconds_count", "request", frame_type_name(type), NULL), 0, 0);
        KVT_NEAR(value_of("kvd_request_seconds_sum", "request", frame_type_name(type), NULL), 0, 0);
        KVT_NEAR(value_of("kvd_refusals_total", "request", frame_type_name(type), "NOT_FOUND"), 0, 0);
    }
    IS("kvd_pool_pages{pool=\"main\"}", 256);
    value("kvd_pool_pages{pool=\"draft\"}");
    IS("kvd_build_info{version=\"" KVD_VERSION "\"}", 1);
    struct fx_peer *p[20];
    struct kvd_activated a;
    for (int i = 0; i < 20; i++) p[i] = fx_session(&fx, 1 + (uint32_t)i % 4, 0);
    for (int i = 0; i < 8; i++) KVT_EQ(fx_activate(p[2], p[1]->session, 64, 64, &a), KVD_OK);
    look();
    char *second = all_series(&f, &n);
    KVT_EQ(f, families);
    KVT_EQ(n, samples);
    KVT_EQ_STR(first, second);
    for (int i = 0; i < 20; i++) fx_peer_free(p[i]);
    look();
    free(second);
    second = all_series(&f, &n);
    KVT_EQ_STR(first, second);
    free(first);
    free(second);
    fx_stop(&fx);
}

static uint32_t pages(uint32_t tokens) { return (tokens + 63) / 64; }

static void pool_is(const char *pool, uint32_t allocated, uint32_t entitled, uint32_t rows) {
    char name[128];
    double capacity = value_of("kvd_pool_pages", "pool", pool, NULL);
    double reserved = entitled - allocated;
    static const char *const figures[] = { "allocated", "reserved", "available", "entitled" };
    double expected[] = { allocated, reserved, capacity - allocated - reserved, entitled };
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "kvd_pool_%s_pages{pool=\"%s\"}", figures[i], pool);
        KVT_NEAR(value(name), expected[i], 0);
    }
    KVT_NEAR(value_of("kvd_pool_used_rows", "pool", pool, NULL), rows, 0);
    KVT_NEAR(value_of("kvd_pool_rows", "pool", pool, NULL), 8, 0);
}

/* POOL-6, SPACE-3: two sequences in two pools, without sharing: what they hold and are promised. */
static void pools_add_up(void) {
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .backend = "mtp" })); /* draft window 4 */
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct kvd_activated a, b;
    look();
    pool_is("main", 0, 0, 0);
    pool_is("draft", 0, 0, 0);
    KVT_EQ(fx_activate(s, s->session, 130, 505, &a), KVD_OK); /* up to 634 tokens, 637 of the draft */
    KVT_EQ(fx_activate(s, s->session, 64, 65, &b), KVD_OK);   /* 128, 131 */
    look();
    pool_is("main", pages(130) + pages(64), pages(634) + pages(128), 2);
    pool_is("draft", pages(130) + pages(64), pages(637) + pages(131), 2);
    IS("kvd_sequences", 2);
    IS("kvd_sequence_limit", 8);
    IS("kvd_membership_entries", 2 * (pages(130) + pages(64)));
    KVT_EQ(fx_round(s, a.sequence, 130, 320, NULL), KVD_OK);
    look();
    pool_is("main", pages(320) + pages(64), pages(634) + pages(128), 2);
    pool_is("draft", pages(320) + pages(64), pages(637) + pages(131), 2);
    KVT_EQ(fx_finish(s, a.sequence), KVD_OK);
    KVT_EQ(fx_finish(s, b.sequence), KVD_OK);
    look();
    pool_is("main", 0, 0, 0);
    pool_is("draft", 0, 0, 0);
    fx_peer_free(s);
    fx_stop(&fx);
}

/* More sequences than are looked at in one hold of the mutex. */
static void entitlements_of_many_sequences(void) {
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .concurrency = 200, .capacity_tokens = 65536 }));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct kvd_activated a;
    for (uint32_t i = 0; i < 150; i++) KVT_EQ(fx_activate(s, s->session, 65, 1 + i, &a), KVD_OK);
    uint32_t entitled = 0;
    for (uint32_t i = 0; i < 150; i++) entitled += pages(65 + i);
    look();
    IS("kvd_pool_entitled_pages{pool=\"main\"}", entitled);
    IS("kvd_pool_allocated_pages{pool=\"main\"}", 300);
    IS("kvd_pool_used_rows{pool=\"main\"}", 150);
    fx_peer_free(s);
    fx_stop(&fx);
}

/* Buckets rise, the last one is the count, and the sum lies between what the buckets allow. */
static void check_times(uint16_t type, uint64_t expected) {
    const char *name = frame_type_name(type);
    char series[160];
    double before = 0, low = 0, high = 0, edge = 0, count = 0;
    enum { EDGES = 22 };
    for (uint32_t i = 0; i <= EDGES; i++) {
        double limit = i < EDGES ? (double)(UINT64_C(1024) << i) / 1e9 : 0;
        char le[32] = "+Inf";
        if (limit > 0) snprintf(le, sizeof le, "%.9f", limit);
        snprintf(series, sizeof series, "kvd_request_seconds_bucket{request=\"%s\",le=\"%s\"}", name, le);
        count = value(series);
        KVT_TRUE(count >= before);
        low += (count - before) * edge;
        high += (count - before) * (limit > 0 ? limit : 1e9);
        before = count;
        edge = limit;
    }
    double sum = value_of("kvd_request_seconds_sum", "request", name, NULL);
    KVT_NEAR(count, (double)expected, 0);
    KVT_NEAR(value_of("kvd_request_seconds_count", "request", name, NULL), (double)expected, 0);
    KVT_TRUE(sum >= low - 1e-9 && sum <= high + 1e-9 && (sum > 0) == (expected > 0));
}

static void requests_refusals_and_times(void) {
    KVT_NEED(fx_start(&fx, NULL));
    memset(asked, 0, sizeof asked);
    memset(refused, 0, sizeof refused);
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *o = fx_session(&fx, KVD_ROLE_OBSERVER, 0);
    asked[FRAME_HELLO] += 2;
    struct msg_request root = { .type = FRAME_ACTIVATE,
                                .u.activation.worker = s->session,
                                .u.activation.prompt_tokens = 100,
                                .u.activation.max_output_tokens = 9 };
    for (int i = 0; i < 5; i++) KVT_EQ(ask(s, REQUEST(FRAME_STATS)), KVD_OK);
    struct msg_request q = root;
    KVT_EQ(ask(s, &q), KVD_OK);
    kvd_sequence sequence = r.u.activated.sequence;
    KVT_EQ(ask(s, &q), KVD_OK); /* the same number again: its answer, from memory */
    q = root;
    q.u.activation.prompt_tokens = 5000; /* longer than S */
    KVT_TRUE(ask(s, &q) != KVD_OK);
    q = root;
    KVT_EQ(ask(o, &q), KVD_PERMISSION_DENIED);
    KVT_EQ(ask(s, REQUEST(FRAME_FINISH, .u.finish.sequence = sequence)), KVD_OK);
    KVT_EQ(ask(s, REQUEST(FRAME_FINISH, .u.finish.sequence = sequence)), KVD_NOT_FOUND);
    KVT_EQ(ask(s, REQUEST(FRAME_RELEASE, .u.continuation.continuation.bits = 99)), KVD_NOT_FOUND);
    KVT_EQ(ask(s, REQUEST(FRAME_FIND, .u.find.first = 3)), KVD_INVALID_ARGUMENT);
    KVT_EQ(ask(s, REQUEST(FRAME_DRAIN, .u.drain = true)), KVD_PERMISSION_DENIED);
    KVT_EQ(ask(o, REQUEST(FRAME_STATS, .header.session.bits = 77)), KVD_UNAUTHENTICATED);
    /* Rubbish in a known type, and a type that does not exist. */
    uint8_t frame[FRAME_HEADER + 8];
    static const uint16_t types[] = { FRAME_ROUND, FRAME_TYPE_END, 999 };
    memset(frame, 0xff, sizeof frame);
    for (int i = 0; i < 3; i++) {
        size_t bytes;
        frame_head_write(frame, types[i], 0, 1, 8);
        KVT_TRUE(service_serve(fx.service, &o->link, frame, sizeof frame));
        uint8_t *answer = fx_frame(o, &bytes);
        KVT_TRUE(answer != NULL);
        free(answer);
    }
    look();
    double all = 0;
    for (uint16_t type = 1; type < FRAME_TYPE_END; type++) {
        uint64_t rubbish = type == FRAME_ROUND;
        const char *name = frame_type_name(type);
        KVT_NEAR(value_of("kvd_requests_total", "request", name, NULL), (double)(asked[type] + rubbish), 0);
        all += (double)(asked[type] + rubbish);
        check_times(type, asked[type]);
#define NAME(status, code, ...)                                                                                        \
    if ((code) != 0) KVT_NEAR(value_of("kvd_refusals_total", "request", name, #status), (double)refused[type][code], 0);
        KVD_STATUS_LIST(NAME)
#undef NAME
    }
    IS("kvd_requests_total{request=\"unknown\"}", 2);
    IS("kvd_frames_bad_total", 3);
    struct kvd_stats stats = fx_stats(s); /* one more */
    KVT_NEAR((double)stats.requests, all + 2 + 1, 0);
    uint64_t refusals = 0;
    for (uint32_t t = 0; t < FRAME_TYPE_END; t++)
        for (uint32_t c = 0; c < METRICS_STATUSES; c++) refusals += refused[t][c];
    KVT_EQ(stats.refusals, refusals);
    KVT_EQ(refusals, 7);
    fx_peer_free(s);
    fx_peer_free(o);
    fx_stop(&fx);
}

static double sum_of(const char *family) {
    double sum = 0;
    size_t n = strlen(family);
    for (const char *at = text; (at = strstr(at, family)); at += n)
        if (at[-1] == '\n' && at[n] == '{') sum += strtod(strstr(at, "} ") + 2, NULL);
    return sum;
}

/* Each shortage by its name, in requests and in rounds; replays, and what is left of Activate without them. */
static void shortages_items_and_replays(void) {
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .backend = "mtp",
                                               .capacity_tokens = 8192,
                                               .more = "[limits]\ncontinuations = 9\nsequences_per_session = 7\n" }));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *t = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct kvd_activated a[8] = { 0 };
    struct kvd_round_result result;
    unsigned good = 0;
    /* main_pages: 128 of them, 8 x 16 are wanted, one more is not to be had. */
    KVT_EQ(fx_activate(s, s->session, 4096, 1, &a[0]), KVD_OK);
    KVT_EQ(fx_activate(s, s->session, 4096 - 64, 1, &a[1]), KVD_OK);
    good += 2;
    KVT_EQ(fx_activate(s, s->session, 65, 1, &a[2]), KVD_RESOURCE_EXHAUSTED);
    look();
    IS("kvd_shortages_total{short=\"main_pages\"}", 1);
    KVT_EQ(fx_finish(s, a[0].sequence), KVD_OK);
    KVT_EQ(fx_finish(s, a[1].sequence), KVD_OK);
    /* limit: a session's sequences; sequences: all of them. */
    for (int i = 0; i < 7; i++) KVT_EQ(fx_activate(s, s->session, 64, 64, &a[i]), KVD_OK);
    KVT_EQ(fx_activate(s, s->session, 64, 64, &a[7]), KVD_RESOURCE_EXHAUSTED);
    KVT_EQ(fx_activate(t, t->session, 64, 64, &a[7]), KVD_OK);
    good += 8;
    struct kvd_activated none;
    KVT_EQ(fx_activate(t, t->session, 64, 64, &none), KVD_RESOURCE_EXHAUSTED);
    /* An item past its entitlement; an item of nothing; a good one. */
    KVT_EQ(fx_round(s, a[0].sequence, 64, 65 * 64, &result), KVD_OUT_OF_RANGE);
    KVT_EQ(fx_round(s, (kvd_sequence){ 99 }, 64, 64, &result), KVD_NOT_FOUND);
    KVT_EQ(fx_round(t, a[0].sequence, 64, 64, &result), KVD_PERMISSION_DENIED);
    for (int i = 0; i < 2; i++) { /* eight sequences own a descriptor each, a checkpoint takes the ninth */
        kvd_digest d = { { (uint8_t)(i + 1) } };
        KVT_EQ(fx_round(s, a[i].sequence, 64, 64, &result), KVD_OK);
        KVT_EQ(ask(s, REQUEST(FRAME_NAME_PAGES, .u.names = { a[i].sequence, 0, 1, &d })), KVD_OK);
        struct msg_request q = { .type = FRAME_CHECKPOINT, .u.checkpoint = { .sequence = a[i].sequence } };
        KVT_EQ(ask(s, &q), i ? KVD_RESOURCE_EXHAUSTED : KVD_OK);
        KVT_EQ(ask(s, &q), i ? KVD_RESOURCE_EXHAUSTED : KVD_OK); /* the same number: the same answer */
    }
    KVT_EQ(fx_finish(s, a[1].sequence), KVD_OK);
    struct msg_request again = {
        .type = FRAME_ACTIVATE, .u.activation = { .worker = s->session, .prompt_tokens = 64, .max_output_tokens = 1 }
    };
    for (int i = 0; i < 3; i++) KVT_EQ(ask(s, &again), KVD_OK);
    good++;
    look();
    IS("kvd_shortages_total{short=\"main_pages\"}", 1);
    IS("kvd_shortages_total{short=\"draft_pages\"}", 0);
    IS("kvd_shortages_total{short=\"limit\"}", 1);
    IS("kvd_shortages_total{short=\"sequences\"}", 1);
    IS("kvd_shortages_total{short=\"continuations\"}", 1); /* the repeated answer is no second shortage */
    IS("kvd_round_items_total{status=\"OK\"}", 2);
    IS("kvd_round_items_total{status=\"NOT_FOUND\"}", 1);
    IS("kvd_round_items_total{status=\"PERMISSION_DENIED\"}", 1);
    IS("kvd_round_items_total{status=\"OUT_OF_RANGE\"}", 1);
    IS("kvd_requests_total{request=\"Round\"}", 5);
    IS("kvd_replays_total{request=\"Checkpoint\"}", 2);
    IS("kvd_replays_total{request=\"Activate\"}", 2);
    KVT_NEAR(sum_of("kvd_round_items_total"), 5, 0);
    KVT_NEAR(sum_of("kvd_replays_total"), 4, 0);
    KVT_NEAR(sum_of("kvd_activations_total"), good, 0);
    KVT_NEAR(value("kvd_request_seconds_count{request=\"Activate\"}"), good + 3 + 2, 0); /* + refused + replayed */
    KVT_NEAR(sum_of("kvd_shortages_total"), 4, 0);
    struct kvd_stats stats = fx_stats(s);
    KVT_NEAR(sum_of("kvd_refusals_total"), (double)stats.refusals, 0);
    KVT_NEAR(sum_of("kvd_requests_total"), (double)stats.requests - 1, 0);
    fx_peer_free(s);
    fx_peer_free(t);
    fx_stop(&fx);
}

/* A status or a type that does not exist is not counted beyond the table. (test_store_lives has the edges.) */
static void what_does_not_exist_is_counted_apart(void) {
    struct metrics m = { 0 };
    metrics_answer(&m, FRAME_ROUND, 4711, 1);
    metrics_request(&m, 65535);
    KVT_EQ(m.time[FRAME_ROUND].sum_ns, 1);
    KVT_EQ(m.requests[0], 1);
}

/* A continuation of whole pages with these digests; a worker's or scheduler's. */
static kvd_continuation keep(struct fx_peer *s, const kvd_digest *digests, uint32_t n) {
    struct kvd_activated a = { 0 };
    KVT_EQ(fx_activate(s, s->session, n * 64, 1, &a), KVD_OK);
    KVT_EQ(fx_round(s, a.sequence, n * 64, KVD_UNCHANGED, NULL), KVD_OK);
    KVT_EQ(ask(s, REQUEST(FRAME_NAME_PAGES, .u.names = { a.sequence, 0, n, digests })), KVD_OK);
    KVT_EQ(ask(s, REQUEST(FRAME_FINISH, .u.finish = { .sequence = a.sequence, .retain = true })), KVD_OK);
    return r.u.finished.continuation;
}

static uint32_t activate_from(struct fx_peer *s, kvd_continuation from, bool keep_it, uint32_t frontier) {
    return ask(s, REQUEST(FRAME_ACTIVATE, .u.activation = { .worker = s->session,
                                                            .from = from,
                                                            .keep = keep_it,
                                                            .frontier = frontier,
                                                            .prompt_tokens = 600,
                                                            .max_output_tokens = 10 }));
}

static void lookups_are(uint32_t hits, uint32_t misses, uint32_t tokens) {
    look();
    IS("kvd_prefix_lookups_total", hits + misses);
    IS("kvd_prefix_lookup_results_total{result=\"hit\"}", hits);
    IS("kvd_prefix_lookup_results_total{result=\"miss\"}", misses);
    IS("kvd_prefix_matched_tokens_total", tokens);
}

static void lookups_are_hits_and_misses(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    kvd_digest d[12] = { 0 }, other = { { 99 } };
    for (uint8_t i = 0; i < 12; i++) d[i].bytes[0] = (uint8_t)(i + 1);
    lookups_are(0, 0, 0);
    KVT_EQ(ask(s, REQUEST(FRAME_FIND, .u.find = { .n = 2, .max = 4, .digests = d })), KVD_OK);
    lookups_are(0, 1, 0); /* nothing is there yet */
    keep(s, d, 8);
    KVT_EQ(ask(s, REQUEST(FRAME_FIND, .u.find = { .n = 12, .max = 4, .digests = d })), KVD_OK);
    KVT_EQ(r.u.hits.items[0].usable, 8 * 64);
    lookups_are(1, 1, 8 * 64);
    KVT_EQ(ask(s, REQUEST(FRAME_FIND, .u.find = { .n = 1, .max = 4, .digests = &other })), KVD_OK);
    lookups_are(1, 2, 8 * 64);
    KVT_EQ(ask(s, REQUEST(FRAME_FIND, .u.find = { .n = 0, .max = 4 })), KVD_OK); /* what is shorter than a page */
    lookups_are(1, 3, 8 * 64);
    /* In parts: one lookup, and its tokens once. */
    KVT_EQ(ask(s, REQUEST(FRAME_FIND, .u.find = { .n = 3, .max = 4, .digests = d })), KVD_OK);
    kvd_continuation anchor = r.u.hits.anchor;
    lookups_are(2, 3, 11 * 64);
    KVT_EQ(ask(s, REQUEST(FRAME_FIND, .u.find = { .n = 4, .max = 4, .digests = d + 2, .first = 2, .anchor = anchor })),
           KVD_OK);
    KVT_EQ(r.u.hits.items[0].usable, 6 * 64);
    lookups_are(2, 3, 14 * 64);
    kvd_digest leaves[2] = { d[2], other }; /* a part that finds nothing further takes nothing away */
    KVT_EQ(ask(s, REQUEST(FRAME_FIND, .u.find = { .n = 2, .max = 4, .digests = leaves, .first = 2, .anchor = anchor })),
           KVD_OK);
    KVT_EQ(r.u.hits.n, 0);
    lookups_are(2, 3, 14 * 64);
    /* A refused one is none. */
    KVT_EQ(ask(s, REQUEST(FRAME_FIND, .u.find = { .n = 1, .max = 4, .digests = &other, .first = 1 })),
           KVD_INVALID_ARGUMENT);
    lookups_are(2, 3, 14 * 64);
    fx_peer_free(s);
    fx_stop(&fx);
}

/* A request that waits is looked up again and again: that is one lookup, until it is activated. */
static void a_waiting_request_is_one_lookup(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *t = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct kvd_activated a;
    kvd_digest d[2] = { { { 1 } }, { { 2 } } }, other = { { 3 } };
    struct msg_request find = { .type = FRAME_FIND, .u.find = { .n = 2, .max = 4, .digests = d } };
    keep(s, d, 1);
    for (int i = 0; i < 5; i++) {
        struct msg_request q = find;
        KVT_EQ(ask(s, &q), KVD_OK);
        KVT_EQ(ask(s, REQUEST(FRAME_FIND, .u.find = { .n = 1, .max = 4, .digests = &other })), KVD_OK); /* another */
    }
    lookups_are(1, 1, 64);
    IS("kvd_prefix_looked_up_tokens_total", 2 * 64 + 63 + 64 + 63);
    struct msg_request q = find;
    KVT_EQ(ask(t, &q), KVD_OK); /* of another session */
    lookups_are(2, 1, 128);
    KVT_EQ(fx_activate(s, s->session, 2 * 64 + 63, 1, &a), KVD_OK);
    q = find;
    KVT_EQ(ask(s, &q), KVD_OK); /* the next request of the same prompt */
    lookups_are(3, 1, 192);
    KVT_TRUE(value("kvd_prefix_matched_tokens_total") <= value("kvd_prefix_looked_up_tokens_total"));
    fx_peer_free(t);
    fx_peer_free(s);
    fx_stop(&fx);
}

/* Computes a prompt of n pages whose names are those of d, without reuse. */
static void compute(struct fx_peer *s, const kvd_digest *d, uint32_t n, uint32_t output) {
    struct kvd_activated a = { 0 };
    uint32_t tokens = n * 64 + output;
    KVT_EQ(fx_activate(s, s->session, n * 64, output + 1, &a), KVD_OK);
    KVT_EQ(fx_round(s, a.sequence, KVD_UNCHANGED, tokens, NULL), KVD_OK);
    KVT_EQ(fx_round(s, a.sequence, tokens, KVD_UNCHANGED, NULL), KVD_OK);
    for (int twice = 0; twice < 2; twice++) /* the second time it is only said again */
        KVT_EQ(ask(s, REQUEST(FRAME_NAME_PAGES, .u.names = { a.sequence, 0, tokens / 64, d })), KVD_OK);
    KVT_EQ(fx_finish(s, a.sequence), KVD_OK);
}

/* What an endless cache would have had: reused tokens, and pages of prompts that were computed before. */
static void an_endless_cache(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    kvd_digest d[8] = { 0 };
    for (uint8_t i = 0; i < 8; i++) d[i].bytes[0] = (uint8_t)(i + 1);
    compute(s, d, 4, 128); /* two pages of output have names, too */
    look();
    IS("kvd_endless_cache_tokens_total", 0);
    compute(s, d, 4, 128); /* again, and outputs are no prompts */
    look();
    IS("kvd_endless_cache_tokens_total", 4 * 64);
    compute(s, d, 6, 0); /* the next turn: prompt and output of before */
    look();
    IS("kvd_endless_cache_tokens_total", 10 * 64);
    kvd_continuation from = keep(s, d, 8); /* two pages are new */
    look();
    IS("kvd_endless_cache_tokens_total", 16 * 64);
    KVT_EQ(activate_from(s, from, true, 500), KVD_OK); /* of 600 */
    kvd_sequence fork = r.u.activated.sequence;
    KVT_EQ(fx_round(s, fork, KVD_UNCHANGED, 600, NULL), KVD_OK);
    KVT_EQ(fx_round(s, fork, 600, KVD_UNCHANGED, NULL), KVD_OK);
    KVT_EQ(ask(s, REQUEST(FRAME_NAME_PAGES, .u.names = { fork, 0, 8, d })), KVD_OK); /* 12 of the last were computed */
    look();
    IS("kvd_endless_cache_tokens_total", 16 * 64 + 512);
    IS("kvd_activated_reused_tokens_total", 500);
    KVT_TRUE(value("kvd_endless_cache_tokens_total") <= value("kvd_activated_prompt_tokens_total"));
    fx_peer_free(s);
    fx_stop(&fx);
}

static uint32_t activate_labelled(struct fx_peer *s, kvd_continuation from, const char *label, uint32_t prompt) {
    struct msg_request q = { .type = FRAME_ACTIVATE,
                             .u.activation = { .worker = s->session,
                                               .from = from,
                                               .keep = from.bits != 0,
                                               .frontier = from.bits ? 64 : 0,
                                               .prompt_tokens = prompt,
                                               .max_output_tokens = 1 } };
    snprintf(q.u.activation.root.label, KVD_LABEL_BYTES, "%s", label);
    return ask(s, &q);
}

/* By the label of the domain: as many labels as there may be have figures, and the others have some together. */
static void domains_are_bounded(void) {
    char label[32], series[128];
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    kvd_digest d[2] = { { { 1 } }, { { 2 } } };
    kvd_continuation from = keep(s, d, 2); /* without a label */
    for (uint32_t i = 0; i < METRICS_DOMAINS + 8; i++) {
        snprintf(label, sizeof label, "m/%u", i % (METRICS_DOMAINS + 5));
        KVT_EQ(activate_labelled(s, i % 2 ? from : (kvd_continuation){ 0 }, label, 100), KVD_OK);
        KVT_EQ(fx_finish(s, r.u.activated.sequence), KVD_OK);
    }
    look();
    unsigned n = 0;
    for (const char *at = text; (at = strstr(at, "\nkvd_domain_prompt_tokens_total{")); at++) n++;
    KVT_EQ(n, METRICS_DOMAINS);
    IS("kvd_domain_activations_total{domain=\"unlabelled\",result=\"miss\"}", 1);
    IS("kvd_domain_activations_total{domain=\"m/0\",result=\"miss\"}", 1);
    IS("kvd_domain_activations_total{domain=\"m/0\",result=\"hit\"}", 1); /* the 38th was m/0 again, and odd */
    snprintf(series, sizeof series, "kvd_domain_prompt_tokens_total{domain=\"m/%u\"}", METRICS_DOMAINS - 3);
    IS(series, 100);
    snprintf(series, sizeof series, "kvd_domain_reused_tokens_total{domain=\"m/%u\"}", METRICS_DOMAINS - 3);
    IS(series, 64);
    IS("kvd_domain_prompt_tokens_total{domain=\"other\"}", 700); /* m/30 to m/36 */
    double tokens = 0, activations = 0;
    for (const char *at = text; (at = strstr(at, "\nkvd_domain_")); at++) {
        double v = strtod(strstr(at, "} ") + 2, NULL);
        if (strncmp(at, "\nkvd_domain_prompt", 18) == 0) tokens += v;
        if (strncmp(at, "\nkvd_domain_activations", 23) == 0) activations += v;
    }
    KVT_NEAR(tokens, value("kvd_activated_prompt_tokens_total"), 0);
    KVT_NEAR(activations, METRICS_DOMAINS + 8 + 1, 0);
    fx_peer_free(s);
    fx_stop(&fx);
}

/* Where users are kept apart, nobody reads the labels of others. */
static void labels_of_users_kept_apart_are_not_shown(void) {
    char more[] = "[access]\ntenants = uid\n";
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .more = more }));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    KVT_EQ(activate_labelled(s, (kvd_continuation){ 0 }, "secret", 100), KVD_OK);
    look();
    IS("kvd_domain_prompt_tokens_total{domain=\"other\"}", 100);
    KVT_FALSE(strstr(text, "secret") != NULL);
    fx_peer_free(s);
    fx_stop(&fx);
}

static uint64_t copies_of(const char *direction) {
    return (uint64_t)value_of("kvd_copy_seconds_count", "direction", direction, NULL);
}

/* What continuations go through: each end by its reason, with its times; copies to the host and back. */
static void lives_of_continuations(void) {
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .more = "[host]\narena = 64MiB\nscrub = 0\n" }));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    kvd_continuation c[5];
    for (uint8_t i = 0; i < 5; i++) {
        kvd_digest d = { { (uint8_t)(i + 1) } };
        c[i] = keep(s, &d, 1);
    }
    kvd_digest again = { { 1 } };
    KVT_EQ(keep(s, &again, 1).bits, c[0].bits);
    KVT_EQ(ask(s, REQUEST(FRAME_RELEASE, .u.continuation.continuation = c[0])), KVD_OK);
    KVT_EQ(activate_from(s, c[1], false, 64), KVD_OK);
    struct kvd_victim victims[2] = { { c[2], false, 0 }, { c[3], true, 0 } };
    struct msg_request evict = { .type = FRAME_ACTIVATE,
                                 .u.activation = { .worker = s->session,
                                                   .prompt_tokens = 64,
                                                   .max_output_tokens = 1,
                                                   .n_victims = 2,
                                                   .victims = victims } };
    fx_send(s, (evict.header = (struct msg_header){ .session = s->session, .sequence = ++s->sequence }, &evict));
    fx_settle(&fx, s);
    KVT_NEED(fx_reply(s, FRAME_ACTIVATE, &r) && r.status == KVD_OK);
    look();
    IS("kvd_continuations", 2);
    IS("kvd_continuations_made_total", 5);
    IS("kvd_continuations_merged_total", 1);
    IS("kvd_continuations_ended_total{reason=\"released\"}", 1);
    IS("kvd_continuations_ended_total{reason=\"moved\"}", 1);
    IS("kvd_continuations_ended_total{reason=\"evicted\"}", 1);
    IS("kvd_continuations_ended_total{reason=\"lost\"}", 0);
    IS("kvd_victims_demoted_total", 1);
    IS("kvd_continuation_lifetime_seconds_count{reason=\"evicted\"}", 1);
    IS("kvd_continuation_idle_seconds_bucket{reason=\"released\",le=\"+Inf\"}", 1);
    IS("kvd_continuation_idle_seconds_bucket{reason=\"released\",le=\"70368.744177664\"}", 1);
    IS("kvd_continuation_reuse_gap_seconds_count", 1);
    KVT_TRUE(value("kvd_continuation_lifetime_seconds_sum{reason=\"moved\"}") > 0);
    KVT_EQ(copies_of("demoted"), 1);
    KVT_EQ(copies_of("restored"), 0);
    IS("kvd_committed_tokens_total", 6 * 64);
    KVT_EQ(fx_audit(&fx), 0);
    fx_peer_free(s);
    fx_stop(&fx);
}

/* What does not change, the process, and the configuration's reload. */
static void sizes_process_and_reload(void) {
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .backend = "mtp" }));
    struct timespec now;
    struct config config = service_config(fx.service);
    clock_gettime(CLOCK_REALTIME, &now);
    look();
    IS("kvd_page_bytes{pool=\"main\"}", 2 * 2 * 2 * 64 * 64 * 2); /* layers, K and V, heads, tokens, head_dim, BF16 */
    IS("kvd_pool_bytes{pool=\"main\"}", 256 * value("kvd_page_bytes{pool=\"main\"}"));
    KVT_TRUE(value("process_cpu_seconds_total") > 0);
    KVT_TRUE(value("process_open_fds") > 3);
    KVT_TRUE(value("process_max_fds") >= value("process_open_fds"));
    KVT_TRUE(value("process_threads") >= 1);
    KVT_TRUE(value("process_virtual_memory_bytes") > value("process_resident_memory_bytes"));
    KVT_NEAR(value("process_resident_memory_bytes"), value("kvd_resident_memory_bytes"), 0);
    double started = value("process_start_time_seconds"), reloaded;
    KVT_TRUE(started <= (double)now.tv_sec + 1 && started > (double)now.tv_sec - 600);
    IS("kvd_config_last_reload_successful", 1);
    reloaded = value("kvd_config_last_reload_success_timestamp_seconds");
    KVT_TRUE(reloaded <= (double)now.tv_sec && reloaded > (double)now.tv_sec - 600);
    service_note_reload_failed(fx.service);
    look();
    IS("kvd_config_last_reload_successful", 0);
    IS("kvd_config_last_reload_success_timestamp_seconds", reloaded);
    service_reload(fx.service, &config);
    look();
    IS("kvd_config_last_reload_successful", 1);
    KVT_TRUE(value("kvd_config_last_reload_success_timestamp_seconds") >= reloaded);
    fx_stop(&fx);
}

static void activations_by_source(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    kvd_digest d[8] = { 0 };
    for (uint8_t i = 0; i < 8; i++) d[i].bytes[0] = (uint8_t)(i + 1);
    kvd_continuation from = keep(s, d, 8); /* a root of 512 tokens */
    KVT_EQ(activate_from(s, from, true, 256), KVD_OK);
    KVT_EQ(activate_from(s, from, true, 500), KVD_OK);
    look();
    IS("kvd_pool_shared_pages{pool=\"main\"}", 7);
    IS("kvd_continuations", 1);
    KVT_EQ(activate_from(s, from, false, 512), KVD_OK);
    KVT_EQ(activate_from(s, from, false, 512), KVD_NOT_FOUND); /* it has gone, and is not counted */
    look();
    IS("kvd_activations_total{source=\"root\"}", 1);
    IS("kvd_activations_total{source=\"fork\"}", 2);
    IS("kvd_activations_total{source=\"move\"}", 1);
    IS("kvd_activated_prompt_tokens_total", 512 + 3 * 600);
    IS("kvd_activated_reused_tokens_total", 256 + 500 + 512);
    IS("kvd_continuations", 0);
    IS("kvd_refusals_total{request=\"Activate\",status=\"NOT_FOUND\"}", 1);
    fx_peer_free(s);
    fx_stop(&fx);
}

/* SRV-7: the device works, the page is there; the request counts when its device has finished. */
static void pages_while_a_device_works(void) {
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .layers = 16, .head_dim = 256, .capacity_tokens = 6144 }));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    kvd_digest d[2] = { { { 1 } }, { { 2 } } };
    kvd_continuation from = keep(s, d, 2);
    struct msg_request q = { .type = FRAME_ACTIVATE,
                             .header = { .session = s->session, .sequence = ++s->sequence },
                             .u.activation = { .worker = s->session,
                                               .from = from,
                                               .keep = true,
                                               .frontier = 100,
                                               .prompt_tokens = 120,
                                               .max_output_tokens = 64 } };
    fx_send(s, &q); /* a tail of 2 MiB is copied elsewhere */
    fx_send(s, &q); /* the same again waits for the same answer: a request, but no outcome of its own */
    KVT_EQ(s->n, 0);
    look();
    IS("kvd_requests_total{request=\"Activate\"}", 3);
    IS("kvd_request_seconds_count{request=\"Activate\"}", 1);
    IS("kvd_activations_total{source=\"fork\"}", 0);
    IS("kvd_sequences", 1);
    fx_settle(&fx, s);
    for (int i = 0; i < 2; i++) {
        KVT_NEED(fx_reply(s, FRAME_ACTIVATE, &r));
        KVT_EQ(r.status, KVD_OK);
    }
    look();
    IS("kvd_request_seconds_count{request=\"Activate\"}", 2);
    IS("kvd_activations_total{source=\"fork\"}", 1);
    check_times(FRAME_ACTIVATE, 2);
    /* And when it is lost meanwhile: a refusal. */
    q.header.sequence = ++s->sequence;
    fx_send(s, &q);
    KVT_EQ(s->n, 0);
    KVT_EQ(service_state(fx.service), SERVICE_READY);
    transfer_lose(fx.service->transfer, 0, "unplugged");
    fx_settle(&fx, s);
    KVT_NEED(fx_reply(s, FRAME_ACTIVATE, &r));
    KVT_EQ(r.status, KVD_UNAVAILABLE);
    look();
    IS("kvd_refusals_total{request=\"Activate\",status=\"UNAVAILABLE\"}", 1);
    IS("kvd_request_seconds_count{request=\"Activate\"}", 3);
    IS("kvd_activations_total{source=\"fork\"}", 1);
    IS("kvd_device_lost", 1);
    KVT_EQ(fx_stats(s).refusals, 1);
    KVT_EQ(service_state(fx.service), SERVICE_LOST);
    fx_peer_free(s);
    fx_stop(&fx);
}

static void bounded_completions(void) {
    KVT_NEED(fx_start(&fx, &(struct fx_setup){
                               .growth = true, .capacity_tokens = 8192, .more = "window = 64\nprefill_chunk = 64\n" }));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct kvd_activated a, rest;
    struct kvd_round_result result = { 0 };
    KVT_EQ(fx_activate(s, s->session, 64, 4000, &a), KVD_OK);
    while (fx_activate(s, s->session, 1000, 1, &rest) == KVD_OK) continue;
    while (fx_activate(s, s->session, 1, 1, &rest) == KVD_OK) continue;
    KVT_EQ(fx_round(s, a.sequence, 64, a.pool[0].entitlement * 64, &result), KVD_OK);
    for (int i = 0; i < 200 && !result.bounded; i++) {
        look();
        IS("kvd_bounded_completions_total", 0);
        uint32_t tokens = result.pool[0].membership * 64;
        KVT_NEED(fx_round(s, a.sequence, tokens, tokens + 64, &result) == KVD_OK);
    }
    KVT_TRUE(result.bounded);
    KVT_EQ(fx_round(s, a.sequence, KVD_UNCHANGED, result.bounded_frontier + 1, &result), KVD_OK);
    KVT_TRUE(result.bounded); /* still the same completion */
    look();
    IS("kvd_bounded_completions_total", 1);
    fx_peer_free(s);
    fx_stop(&fx);
}

/* SRV-5: a worker dies with three sequences; two have committed something. */
static void sequences_lost(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0), *w = fx_session(&fx, KVD_ROLE_WORKER, 0);
    struct kvd_activated a[4];
    kvd_digest d[2] = { { { 1 } }, { { 2 } } };
    for (int i = 0; i < 3; i++) KVT_EQ(fx_activate(s, w->session, 130, 64, &a[i]), KVD_OK);
    KVT_EQ(fx_activate(s, s->session, 64, 64, &a[3]), KVD_OK);
    for (int i = 0; i < 2; i++) {
        KVT_EQ(fx_round(w, a[i].sequence, 128, KVD_UNCHANGED, NULL), KVD_OK);
        d[0].bytes[1] = (uint8_t)i;
        KVT_EQ(ask(w, REQUEST(FRAME_NAME_PAGES, .u.names = { a[i].sequence, 0, 2, d })), KVD_OK);
    }
    fx_cut(w);
    look();
    IS("kvd_pool_quarantined_pages{pool=\"main\"}", 9);
    IS("kvd_sequences_lost_total{end=\"kept\"}", 0);
    fx_kill(w);
    look();
    IS("kvd_pool_quarantined_pages{pool=\"main\"}", 0);
    IS("kvd_sequences_lost_total{end=\"kept\"}", 2);
    IS("kvd_sequences_lost_total{end=\"released\"}", 1);
    IS("kvd_sequences", 1);
    IS("kvd_continuations", 2);
    IS("kvd_continuation_limit", 4096);
    fx_peer_free(w);
    fx_peer_free(s);
    fx_stop(&fx);
}

static void sessions_are(uint32_t observers, uint32_t workers, uint32_t schedulers, uint32_t admins) {
    look();
    IS("kvd_sessions{role=\"observer\"}", observers);
    IS("kvd_sessions{role=\"worker\"}", workers);
    IS("kvd_sessions{role=\"scheduler\"}", schedulers);
    IS("kvd_sessions{role=\"admin\"}", admins);
}

static void sessions_groups_events(void) {
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .ranks = 2, .more = "[limits]\nevent_queue = 8\nsessions = 40\n" }));
    struct fx_peer *w[10], *o = fx_session(&fx, KVD_ROLE_OBSERVER, 0), *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0),
                           *admin = fx_session(&fx, KVD_ROLE_ADMIN, 0);
    for (uint32_t i = 0; i < 10; i++) w[i] = fx_session(&fx, KVD_ROLE_WORKER, i % 2);
    sessions_are(1, 10, 1, 1);
    IS("kvd_session_limit", 40);
    KVT_EQ(ask(s, REQUEST(FRAME_OPEN_GROUP, .u.group = { 2, { w[8]->session, w[9]->session } })), KVD_OK);
    kvd_group_id group = r.u.group;
    look();
    IS("kvd_groups", 1);
    KVT_EQ(ask(s, REQUEST(FRAME_CLOSE_GROUP, .u.group_id = group)), KVD_OK);
    KVT_EQ(ask(o, REQUEST(FRAME_SUBSCRIBE, .u.event_mask = KVD_EVENT_MASK(KVD_EVENT_SESSION_LOST))), KVD_OK);
    o->slow = true;
    for (int i = 0; i < 10; i++) fx_kill(w[i]); /* an orderly end would be no loss */
    sessions_are(1, 0, 1, 1);
    IS("kvd_groups", 0);
    IS("kvd_events_dropped_total", 2); /* 10 told, 8 kept */
    fx_kill(admin);
    sessions_are(1, 0, 1, 0);
    service_note_connections(fx.service, 17);
    look();
    IS("kvd_connections", 17);
    for (int i = 0; i < 10; i++) fx_peer_free(w[i]);
    fx_peer_free(o);
    fx_peer_free(s);
    fx_peer_free(admin);
    sessions_are(0, 0, 0, 0);
    fx_stop(&fx);
}

static void drain_audit_instance(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *admin = fx_session(&fx, KVD_ROLE_ADMIN, 0);
    char series[128];
    look();
    IS("kvd_draining", 0);
    IS("kvd_former_drivers", 0);
    IS("kvd_audits_total", 0);
    snprintf(series, sizeof series, "kvd_instance_info{store=\"main\",epoch=\"%016" PRIx64 "\"}", fx.epoch);
    IS(series, 1);
    double uptime = value("kvd_uptime_seconds");
    KVT_TRUE(uptime > 0 && uptime < 600);
    KVT_TRUE(value("kvd_resident_memory_bytes") > 1e6);
    KVT_NEAR(value("kvd_metadata_bytes"), (double)fx_stats(admin).metadata_bytes, 0);
    KVT_EQ(ask(admin, REQUEST(FRAME_DRAIN, .u.drain = true)), KVD_OK);
    KVT_EQ(ask(admin, REQUEST(FRAME_AUDIT)), KVD_OK);
    KVT_EQ(ask(admin, REQUEST(FRAME_AUDIT)), KVD_OK);
    KVT_EQ(service_state(fx.service), SERVICE_DRAINING);
    look();
    KVT_TRUE(value("kvd_uptime_seconds") > uptime);
    IS("kvd_draining", 1);
    IS("kvd_audits_total", 2);
    IS("kvd_audit_violations", 0);
    fx.service->store->pool[0].allocated++; /* POOL-6 is broken, found, and mended */
    log_set_level(LOG_ERROR - 1);
    KVT_EQ(ask(admin, REQUEST(FRAME_AUDIT)), KVD_OK);
    log_set_level(LOG_ERROR);
    uint32_t violations = r.u.audit->violations;
    fx.service->store->pool[0].allocated--;
    KVT_TRUE(violations > 0);
    look();
    IS("kvd_audit_violations", violations);
    KVT_EQ(ask(admin, REQUEST(FRAME_AUDIT)), KVD_OK);
    look();
    IS("kvd_audit_violations", 0);
    IS("kvd_audits_total", 4);
    KVT_EQ(ask(admin, REQUEST(FRAME_DRAIN, .u.drain = false)), KVD_OK);
    KVT_EQ(service_state(fx.service), SERVICE_READY);
    look();
    IS("kvd_draining", 0);
    fx_peer_free(admin);
    fx_stop(&fx);
}

/* ---- at every instant -------------------------------------------------------------------------- */

#define PAGES 50
static atomic_bool working;
static atomic_uint seen;
static unsigned finds[2]; /* of what is not there, of what is */

static void *work(void *argument) {
    struct fx_peer *s = argument;
    kvd_digest d[2] = { { { 1 } }, { { 2 } } };
    struct kvd_activated a;
    keep(s, d, 2);
    for (int i = 0; i < 1000 || atomic_load(&seen) < PAGES; i++) {
        ask(s, REQUEST(FRAME_FIND, .u.find = { .n = 1, .max = 1, .digests = i % 3 ? d : d + 1 }));
        finds[i % 3 != 0]++;
        if (fx_activate(s, s->session, 127, 300, &a) != KVD_OK) break; /* the prompt that was looked up */
        fx_round(s, a.sequence, 127, 200, NULL);
        fx_finish(s, a.sequence);
    }
    atomic_store(&working, false);
    return NULL;
}

/* Without checks of CUnit: those belong to the other thread now. */
static double number_in(const char *page, const char *series) {
    const char *at = strstr(page, series);
    return at ? strtod(at + strlen(series), NULL) : -1;
}

/* POOL-6 and the sums hold on every page, whatever happens while it is made. */
static void sums_hold_at_every_instant(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    pthread_t thread;
    unsigned wrong = 0, busy = 0;
    double last = 0;
    atomic_store(&working, true);
    atomic_store(&seen, 0);
    finds[0] = finds[1] = 0;
    KVT_NEED(pthread_create(&thread, NULL, work, s) == 0);
    do {
        size_t bytes;
        char *page = metrics_page(fx.service, &bytes);
        if (!page) abort();
        double capacity = number_in(page, "\nkvd_pool_pages{pool=\"main\"}"),
               allocated = number_in(page, "\nkvd_pool_allocated_pages{pool=\"main\"}"),
               reserved = number_in(page, "\nkvd_pool_reserved_pages{pool=\"main\"}"),
               available = number_in(page, "\nkvd_pool_available_pages{pool=\"main\"}"),
               lookups = number_in(page, "\nkvd_prefix_lookups_total"),
               hits = number_in(page, "\nkvd_prefix_lookup_results_total{result=\"hit\"}"),
               misses = number_in(page, "\nkvd_prefix_lookup_results_total{result=\"miss\"}"),
               answers = number_in(page, "\nkvd_request_seconds_count{request=\"Find\"}");
        wrong += capacity < 256 || capacity > 256 || allocated + reserved + available < capacity ||
                 allocated + reserved + available > capacity || lookups < hits + misses || lookups > hits + misses ||
                 answers < lookups || answers > lookups || lookups < last;
        busy += reserved > 0;
        last = lookups;
        atomic_fetch_add(&seen, 1);
        free(page);
    } while (atomic_load(&working));
    pthread_join(thread, NULL);
    KVT_EQ(wrong, 0);
    look();
    IS("kvd_prefix_lookup_results_total{result=\"hit\"}", finds[1]);
    IS("kvd_prefix_lookup_results_total{result=\"miss\"}", finds[0]);
    printf("(%u pages, %u with a sequence) ", atomic_load(&seen), busy);
    fx_peer_free(s);
    fx_stop(&fx);
}

/* ---- what is delivered with kvd -------------------------------------------------------------------- */

static char *slurp(const char *path) {
    FILE *f = fopen(path, "r");
    char *file = calloc(1, 1 << 20);
    if (KVT_TRUE(f != NULL)) KVT_TRUE(fread(file, 1, (1 << 20) - 1, f) > 0);
    if (f) fclose(f);
    return file;
}

/* Names of series in an expression: each must be on the page, with these characters after it. Returns how many. */
static unsigned names_exist(const char *file) {
    unsigned n = 0;
    for (const char *at = file; (at = strstr(at, "kvd_"));) {
        size_t length = strspn(at, "abcdefghijklmnopqrstuvwxyz0123456789_");
        char first[128], second[128];
        snprintf(first, sizeof first, "\n%.*s ", (int)length, at);
        snprintf(second, sizeof second, "\n%.*s{", (int)length, at);
        if (!KVT_TRUE(strstr(text, first) || strstr(text, second))) printf("    there is no %.*s\n", (int)length, at);
        at += length;
        n++;
    }
    return n;
}

static unsigned expressions_exist(const cJSON *in) {
    unsigned n = 0;
    for (const cJSON *item = in->child; item; item = item->next) {
        if (item->string && strcmp(item->string, "expr") == 0 && cJSON_IsString(item)) {
            unsigned some = names_exist(item->valuestring);
            KVT_TRUE(some > 0);
            n += some;
        }
        n += expressions_exist(item);
    }
    return n;
}

static void rules_and_dashboard_name_series_that_exist(void) {
    KVT_NEED(fx_start(&fx, NULL));
    look();
    char *rules = slurp(KVD_DEPLOY "/prometheus/kvd.rules.yml"), *board = slurp(KVD_DEPLOY "/grafana/kvd.json");
    unsigned alerts = 0, said = 0;
    for (const char *at = rules; (at = strstr(at, "- alert: ")); at++) alerts++;
    for (const char *at = rules; (at = strstr(at, "description: ")); at++) said++;
    KVT_TRUE(alerts >= 5);
    KVT_EQ(said, alerts);
    KVT_TRUE(names_exist(rules) >= alerts);
    cJSON *json = cJSON_Parse(board);
    KVT_TRUE(json != NULL);
    if (json) KVT_TRUE(expressions_exist(json) >= 20);
    KVT_TRUE(names_exist(board) >= 20); /* the variables of the dashboard, too */
    cJSON_Delete(json);
    free(rules);
    free(board);
    fx_stop(&fx);
}

/* The text of the line after `key` in an alert's part of the rules; empty without one. */
static const char *said_of(const char *alert, const char *end, const char *key) {
    static char line[256];
    const char *at = strstr(alert, key);
    line[0] = 0;
    if (at && at < end) snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at + strlen(key));
    return line;
}

/* Who is called names the instance, and finds the row that says what to do. */
static void alerts_name_the_instance_and_a_row_of_the_guide(void) {
    char *rules = slurp(KVD_DEPLOY "/prometheus/kvd.rules.yml"), *guide = slurp(KVD_DEPLOY "/OPERATING.md");
    const char *section = strstr(guide, "\n### Alarms\n");
    KVT_NEED(section);
    const char *section_end = strstr(section + 1, "\n## ");
    KVT_NEED(section_end);
    unsigned n = 0;
    for (const char *at = strstr(rules, "- alert: "), *next; at; at = next, n++) {
        char name[64], row[80], runbook[160];
        next = strstr(at + 1, "- alert: ");
        const char *end = next ? next : rules + strlen(rules);
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at + 9, "\n"), at + 9);
        KVT_HAS(said_of(at, end, "summary: "), "{{ $labels.instance }}: ");
        snprintf(runbook, sizeof runbook, "/usr/share/doc/kvd/OPERATING.md, section Alarms, row %s", name);
        KVT_HAS(said_of(at, end, "runbook: "), runbook);
        snprintf(row, sizeof row, "\n| `%s` |", name);
        const char *found = strstr(section, row);
        if (!KVT_TRUE(found && found < section_end)) printf("    no row of %s\n", name);
    }
    KVT_TRUE(n >= 18);
    free(rules);
    free(guide);
}

static unsigned check_targets(const cJSON *panel) {
    unsigned n = 0;
    for (const cJSON *t = cJSON_GetObjectItem(panel, "targets")->child; t; t = t->next, n++) {
        const char *expression = cJSON_GetStringValue(cJSON_GetObjectItem(t, "expr"));
        const char *quantile = strstr(expression, "histogram_quantile"), *by = strstr(expression, " by (");
        KVT_HAS(cJSON_GetStringValue(cJSON_GetObjectItem(t, "legendFormat")), "{{instance}}");
        KVT_HAS(expression, "{instance=~\"$instance\"");
        if (quantile) KVT_TRUE(by && strncmp(by, " by (instance, le", 17) == 0);
        else KVT_TRUE(!by);
    }
    return n;
}

/* Several instances are shown: each line of a panel is of one, also where quantiles are made. */
static void the_dashboard_tells_instances_apart(void) {
    char *board = slurp(KVD_DEPLOY "/grafana/kvd.json");
    cJSON *json = cJSON_Parse(board);
    const cJSON *panels = cJSON_GetObjectItem(json, "panels");
    unsigned n = 0;
    KVT_NEED(panels);
    for (const cJSON *p = panels->child; p; p = p->next) {
        const cJSON *defaults = cJSON_GetObjectItem(cJSON_GetObjectItem(p, "fieldConfig"), "defaults");
        const char *unit = cJSON_GetStringValue(cJSON_GetObjectItem(defaults, "unit"));
        const char *first =
            cJSON_GetStringValue(cJSON_GetObjectItem(cJSON_GetArrayItem(cJSON_GetObjectItem(p, "targets"), 0), "expr"));
        KVT_NEED(unit && first);
        if (strstr(first, "histogram_quantile")) KVT_EQ_STR(unit, "s");
        if (strncmp(first, "rate(kvd_", 9) == 0 && strstr(first, "_tokens_total") && !strstr(first, " / "))
            KVT_EQ_STR(unit, "suffix: tokens/s");
        if (strstr(first, " / ")) KVT_EQ_STR(unit, "percentunit");
        if (strstr(first, "bytes")) KVT_EQ_STR(unit, strncmp(first, "rate", 4) == 0 ? "binBps" : "bytes");
        n += check_targets(p);
    }
    KVT_TRUE(n >= 40);
    cJSON_Delete(json);
    free(board);
}

static void print_page(void) {
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .backend = "mtp" }));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    look();
    printf("\n%s", text);
    fx_peer_free(s);
    fx_stop(&fx);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(every_series_from_the_start),
                                             KVT_CASE(pools_add_up),
                                             KVT_CASE(entitlements_of_many_sequences),
                                             KVT_CASE(requests_refusals_and_times),
                                             KVT_CASE(shortages_items_and_replays),
                                             KVT_CASE(what_does_not_exist_is_counted_apart),
                                             KVT_CASE(lookups_are_hits_and_misses),
                                             KVT_CASE(a_waiting_request_is_one_lookup),
                                             KVT_CASE(an_endless_cache),
                                             KVT_CASE(domains_are_bounded),
                                             KVT_CASE(labels_of_users_kept_apart_are_not_shown),
                                             KVT_CASE(lives_of_continuations),
                                             KVT_CASE(sizes_process_and_reload),
                                             KVT_CASE(activations_by_source),
                                             KVT_CASE(pages_while_a_device_works),
                                             KVT_CASE(bounded_completions),
                                             KVT_CASE(sequences_lost),
                                             KVT_CASE(sessions_groups_events),
                                             KVT_CASE(drain_audit_instance),
                                             KVT_CASE(sums_hold_at_every_instant),
                                             KVT_CASE(rules_and_dashboard_name_series_that_exist),
                                             KVT_CASE(alerts_name_the_instance_and_a_row_of_the_guide),
                                             KVT_CASE(the_dashboard_tells_instances_apart),
                                             { 0 } };
    static const struct kvt_case page[] = { KVT_CASE(print_page), { 0 } };
    bool only_page = argc == 2 && strcmp(argv[1], "--page") == 0;
    int status = only_page ? kvt_main("page", page, 1, argv) : kvt_main("service_metrics", cases, argc, argv);
    free(text);
    return status;
}
