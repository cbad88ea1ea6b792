/* SPDX-License-Identifier: Apache-2.0
 *
 * kvd as a real Prometheus sees it: a known course of requests, and every figure that Prometheus then has of it,
 * against the test's own count. Figures that are not named below must be 0. POOL-6, SPACE-3, SRV-5, SRV-8.
 *
 * Prometheus runs on loopback with a folder of its own. Skipped (77) where it is not installed.
 */
#include <arpa/inet.h>
#include <cjson/cJSON.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "e2e.h"
#include "frame.h"
#include "http_client.h"
#include "round_ask.h"

static struct e2e_daemon daemon_;
static char kvd_at[32], prometheus_at[32], folder[64];
static pid_t prometheus;

/* ---- what is expected ---------------------------------------------------------------------------- */

static struct expected {
    char series[128];
    double value;
    bool seen;
} expected[128];
static unsigned n_expected;

/* A series as name{label="value",...}, labels in order. */
static void add(double by, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(double by, const char *format, ...) {
    char series[128];
    unsigned i = 0;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(series, sizeof series, format, arguments);
    va_end(arguments);
    while (i < n_expected && strcmp(expected[i].series, series) != 0) i++;
    if (i == n_expected) {
        if (!KVT_TRUE(i < sizeof expected / sizeof *expected)) abort();
        snprintf(expected[n_expected++].series, sizeof series, "%s", series);
    }
    expected[i].value += by;
}

static void asked(const char *request) {
    add(1, "kvd_requests_total{request=\"%s\"}", request);
    add(1, "kvd_request_seconds_count{request=\"%s\"}", request);
    add(1, "kvd_request_seconds_bucket{le=\"+Inf\",request=\"%s\"}", request);
}

/* A call was made, and answered as it should be. */
static void did(const char *request, enum kvd_status status, enum kvd_status wanted, const struct kvd_error *error) {
    asked(request);
    if (wanted != KVD_OK) add(1, "kvd_refusals_total{request=\"%s\",status=\"%s\"}", request, kvd_status_name(wanted));
    if (!KVT_EQ(status, wanted)) printf("    %s: %s\n", request, error->message);
}

/* ---- Prometheus ----------------------------------------------------------------------------------- */

/* A port that was free a moment ago. */
static unsigned free_port(void) {
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t bytes = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    KVT_OK(bind(fd, (struct sockaddr *)&a, sizeof a));
    KVT_OK(getsockname(fd, (struct sockaddr *)&a, &bytes));
    close(fd);
    return ntohs(a.sin_port);
}

/* The body of an answer to GET; NULL unless 200. HTTP/1.0: whole and closed. To be freed. */
static char *get(const char *target) {
    char request[1024];
    struct http_answer a;
    int n = snprintf(request, sizeof request, "GET %s HTTP/1.0\r\nHost: prometheus\r\n\r\n", target);
    if (http_raw(prometheus_at, request, (size_t)n, &a) && a.status == 200) return a.body;
    http_done(&a);
    return NULL;
}

/* The result of an instant query: an array. To be deleted; NULL: no answer. */
static cJSON *query(const char *expression) {
    char target[1024] = "/api/v1/query?query=";
    size_t n = strlen(target);
    for (const char *c = expression; *c && n + 4 < sizeof target; c++)
        n += (size_t)snprintf(target + n, sizeof target - n, "%%%02x", (unsigned char)*c);
    char *body = get(target);
    cJSON *answer = body ? cJSON_Parse(body) : NULL;
    cJSON *result = cJSON_DetachItemFromObject(cJSON_GetObjectItem(answer, "data"), "result");
    free(body);
    cJSON_Delete(answer);
    return result;
}

static double sample(const cJSON *result) {
    const char *text = cJSON_GetStringValue(cJSON_GetArrayItem(cJSON_GetObjectItem(result, "value"), 1));
    return text ? strtod(text, NULL) : -1;
}

/* Of an expression with one result; -1: none, or several. */
static double value(const char *expression) {
    cJSON *result = query(expression);
    double v = cJSON_GetArraySize(result) == 1 ? sample(cJSON_GetArrayItem(result, 0)) : -1;
    cJSON_Delete(result);
    return v;
}

#define IS(expression, wanted)                                                                                         \
    if (!KVT_NEAR(value(expression), (double)(wanted), 0)) printf("    %s\n", expression)

struct wish {
    const char *expression;
    double value;
};
static bool granted(void *argument) {
    const struct wish *w = argument;
    double v = value(w->expression);
    return v >= w->value && v <= w->value;
}
static bool comes(const char *expression, double wanted) {
    bool ok = e2e_until(granted, &(struct wish){ expression, wanted }, 60, NULL);
    if (!KVT_TRUE(ok)) printf("    %s is %g, not %g\n", expression, value(expression), wanted);
    return ok;
}

static bool write_prometheus(void) {
    char path[96];
    snprintf(path, sizeof path, "%s/prometheus.yml", folder);
    FILE *f = fopen(path, "w");
    if (!f) return false;
    fprintf(f,
            "global: { scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms }\n"
            "rule_files: [ '%s/prometheus/kvd.rules.yml' ]\n"
            "scrape_configs:\n  - job_name: kvd\n    static_configs: [ { targets: [ '%s' ] } ]\n",
            KVD_DEPLOY, kvd_at);
    return fclose(f) == 0;
}

static void run_prometheus(void) {
    char config[96], data[96], listen[64];
    snprintf(config, sizeof config, "--config.file=%s/prometheus.yml", folder);
    snprintf(data, sizeof data, "--storage.tsdb.path=%s/data", folder);
    snprintf(listen, sizeof listen, "--web.listen-address=%s", prometheus_at);
    prometheus = fork();
    if (prometheus) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (chdir(folder)) _exit(126);
    int log = open("log", O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(log, 1);
    dup2(log, 2);
    for (int fd = 3; fd < 256; fd++) close(fd);
    execlp("prometheus", "prometheus", config, data, listen, "--log.level=warn", (char *)NULL);
    _exit(127);
}

static bool is_ready(void *unused) {
    (void)unused;
    char *body = get("/-/ready");
    free(body);
    return body != NULL;
}

static void show_log(void) {
    char line[512], path[96];
    snprintf(path, sizeof path, "%s/log", folder);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) printf("    prometheus: %s", line);
    if (f) fclose(f);
}

static bool start_prometheus(void) {
    snprintf(folder, sizeof folder, "/tmp/kvd-prometheus-XXXXXX");
    if (!mkdtemp(folder) || !write_prometheus()) return KVT_TRUE(false);
    snprintf(prometheus_at, sizeof prometheus_at, "127.0.0.1:%u", free_port());
    run_prometheus();
    bool ok = e2e_until(is_ready, NULL, 60, NULL);
    if (!ok) show_log();
    return KVT_TRUE(ok);
}

static int remove_one(const char *path, const struct stat *status, int flag, struct FTW *at) {
    (void)status, (void)flag, (void)at;
    return remove(path);
}

static void stop_prometheus(void) {
    if (prometheus > 0) {
        KVT_OK(kill(prometheus, SIGTERM));
        KVT_EQ_I(kvt_wait(prometheus), 0);
    }
    prometheus = 0;
    if (folder[0]) nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- the course of requests ------------------------------------------------------------------------- */

enum { S = 4096, C = 8, MAIN = 256, DRAFT = MAIN + C, WINDOW = 4 };
static kvd_client *admin, *scheduler;
static struct kvd_error error;
static uint32_t entitled[2], mapped[2]; /* pages of what lives at the end */

static uint32_t pages(uint32_t tokens) { return (tokens + 63) / 64; }

static kvd_client *hello(enum kvd_role role, const char *name) {
    kvd_client *c = e2e_connect(&daemon_, role, name);
    asked("Hello");
    if (role == KVD_ROLE_SCHEDULER || role == KVD_ROLE_WORKER) asked("OpenRing");
    add(1, "kvd_sessions{role=\"%s\"}", name);
    return c;
}

static struct kvd_activation root(kvd_session_id worker, uint32_t prompt, uint32_t output) {
    return (struct kvd_activation){ .root = e2e_root(),
                                    .worker = worker,
                                    .prompt_tokens = prompt,
                                    .max_output_tokens = output,
                                    .ensure = { prompt, prompt } };
}

static struct kvd_activated activate(const struct kvd_activation *want, enum kvd_status wanted) {
    struct kvd_activated a = { 0 };
    did("Activate", kvd_activate(scheduler, want, &a, &error), wanted, &error);
    if (wanted != KVD_OK) return a;
    const char *source = !want->from.bits ? "root" : want->keep ? "fork" : "move";
    add(1, "kvd_activations_total{source=\"%s\"}", source);
    add(want->prompt_tokens, "kvd_activated_prompt_tokens_total");
    add(want->frontier, "kvd_activated_reused_tokens_total");
    add(want->frontier, "kvd_activated_tokens_total{tier=\"device\"}");
    add(want->prompt_tokens - want->frontier, "kvd_activated_tokens_total{tier=\"computed\"}");
    add(want->frontier, "kvd_endless_cache_tokens_total"); /* no page is computed twice */
    add(1, "kvd_domain_activations_total{domain=\"e2e\",result=\"%s\"}", want->frontier ? "hit" : "miss");
    add(want->prompt_tokens, "kvd_domain_prompt_tokens_total{domain=\"e2e\"}");
    add(want->frontier, "kvd_domain_reused_tokens_total{domain=\"e2e\"}");
    return a;
}

/* Commits in both pools; maps in Main. */
static void round_of(kvd_sequence sequence, uint32_t commit, uint32_t ensure, enum kvd_status wanted) {
    struct kvd_round_item item = { .sequence = sequence };
    struct kvd_round_result result;
    for (int p = 0; p < 2; p++) item.pool[p] = round_pool(commit, KVD_NONE, KVD_NONE, p ? KVD_NONE : ensure);
    did("Round", kvd_round(scheduler, &item, 1, &result, &error), KVD_OK, &error);
    add(1, "kvd_round_items_total{status=\"%s\"}", kvd_status_name(wanted));
    if (!KVT_EQ(result.status, wanted)) printf("    %s\n", result.message);
}

static void finish(kvd_sequence sequence, enum kvd_status wanted) {
    struct kvd_finished f;
    did("Finish", kvd_finish(scheduler, &(struct kvd_finish){ .sequence = sequence }, &f, &error), wanted, &error);
}

static void find(uint64_t seed, uint32_t n, uint32_t hit_tokens, struct kvd_hit *ret_hit) {
    uint32_t prompt[512], n_hits = 0;
    struct kvd_hit hits[4];
    kvd_chain *chain = e2e_chain(seed, n);
    e2e_tokens(seed, n, prompt);
    did("Find", kvd_find(scheduler, chain, prompt, n, hits, 4, &n_hits, &error), KVD_OK, &error);
    kvd_chain_free(chain);
    if (hit_tokens) asked("Find"); /* once more, with the tokens of the page where the tail is: the same lookup */
    add(1, "kvd_prefix_lookups_total");
    add(1, "kvd_prefix_lookup_results_total{result=\"%s\"}", hit_tokens ? "hit" : "miss");
    add(hit_tokens, "kvd_prefix_matched_tokens_total");
    add(n, "kvd_prefix_looked_up_tokens_total");
    KVT_EQ(n_hits, hit_tokens > 0);
    if (n_hits) *ret_hit = hits[0];
}

/* Root, checkpoint, hit, fork and move of one stream of 200 tokens. */
static void the_life_of_a_prefix(void) {
    uint64_t seed = e2e_stream(7, 0, 1);
    struct kvd_hit hit = { 0 };
    struct kvd_checkpoint what = { 0 };
    struct kvd_checkpointed made;
    find(seed, 261, 0, NULL);
    struct kvd_activation want = root(kvd_client_session(scheduler), 200, 57);
    struct kvd_activated first = activate(&want, KVD_OK);
    round_of(first.sequence, 200, KVD_UNCHANGED, KVD_OK);
    kvd_chain *chain = e2e_chain(seed, 200);
    did("NamePages", kvd_name_pages(scheduler, first.sequence, chain, 0, 3, &error), KVD_OK, &error);
    kvd_chain_free(chain);
    what.sequence = first.sequence;
    e2e_tail(seed, 200, &what.tail);
    did("Checkpoint", kvd_checkpoint(scheduler, &what, &made, &error), KVD_OK, &error);
    finish(first.sequence, KVD_OK);
    add(1, "kvd_continuations_made_total");
    find(seed, 260, 200, &hit);
    KVT_EQ(hit.usable, 200);
    want = root(kvd_client_session(scheduler), 260, 10);
    want.from = hit.continuation;
    want.frontier = 200;
    want.keep = true;
    struct kvd_activated fork = activate(&want, KVD_OK);
    finish(fork.sequence, KVD_OK);
    want.keep = false;
    struct kvd_activated move = activate(&want, KVD_OK); /* stays */
    for (int p = 0; p < 2; p++) {
        mapped[p] += pages(260);
        entitled[p] += pages(269 + (p ? WINDOW - 1 : 0));
    }
    round_of(move.sequence, 260, 261, KVD_OK);
    round_of(move.sequence, KVD_UNCHANGED, 321, KVD_OUT_OF_RANGE); /* past its 5 pages: no shortage */
    activate(&want, KVD_NOT_FOUND);                                /* what was moved is not there any more */
    add(200 + 60, "kvd_committed_tokens_total");
    add(1, "kvd_continuations_ended_total{reason=\"moved\"}");
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "lifetime" : "idle";
        add(1, "kvd_continuation_%s_seconds_count{reason=\"moved\"}", name);
        add(1, "kvd_continuation_%s_seconds_bucket{le=\"+Inf\",reason=\"moved\"}", name);
    }
    add(2, "kvd_continuation_reuse_gap_seconds_count");
    add(2, "kvd_continuation_reuse_gap_seconds_bucket{le=\"+Inf\"}");
}

static void refusals(void) {
    struct kvd_activation whole = root(kvd_client_session(scheduler), S, 1), want = whole;
    struct kvd_activated a[3];
    finish((kvd_sequence){ 12345 }, KVD_NOT_FOUND);
    round_of((kvd_sequence){ 12345 }, 1, 1, KVD_NOT_FOUND);
    want.prompt_tokens = S + 1;
    activate(&want, KVD_OUT_OF_RANGE);
    want = whole;
    want.worker.bits = 99;
    activate(&want, KVD_NOT_FOUND);
    did("Release", kvd_release(scheduler, (kvd_continuation){ 99 }, &error), KVD_NOT_FOUND, &error);
    did("Drain", kvd_drain(scheduler, true, &error), KVD_PERMISSION_DENIED, &error);
    did("Drain", kvd_drain(admin, true, &error), KVD_OK, &error);
    activate(&whole, KVD_UNAVAILABLE);
    did("Drain", kvd_drain(admin, false, &error), KVD_OK, &error);
    for (int i = 0; i < 3; i++) a[i] = activate(&whole, KVD_OK); /* 192 of 251 pages */
    activate(&whole, KVD_RESOURCE_EXHAUSTED);
    activate(&whole, KVD_RESOURCE_EXHAUSTED);
    add(2, "kvd_shortages_total{short=\"main_pages\"}");
    for (int i = 0; i < 3; i++) finish(a[i].sequence, KVD_OK);
}

/* A frame whose body is no protobuf: a request, but no answer that has a time. */
static void rubbish(void) {
    uint8_t frame[FRAME_HEADER + 8], answer[64];
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    snprintf(a.sun_path, sizeof a.sun_path, "%.100s", daemon_.socket);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memset(frame, 0xff, sizeof frame);
    frame_head_write(frame, FRAME_CHECKPOINT, 0, 1, 8);
    KVT_OK(connect(fd, (struct sockaddr *)&a, sizeof a));
    KVT_EQ(write(fd, frame, sizeof frame), sizeof frame);
    struct pollfd p = { .fd = fd, .events = POLLIN };
    KVT_TRUE(poll(&p, 1, 20000 * E2E_SLOW) == 1 && read(fd, answer, sizeof answer) > 0);
    close(fd);
    add(1, "kvd_requests_total{request=\"Checkpoint\"}");
    add(1, "kvd_frames_bad_total");
}

static bool quiet_again(void *unused) {
    bool has = false;
    (void)unused;
    http_status(kvd_at, "/metrics", "\nkvd_sequences_lost_total{end=\"released\"} 1\n", &has);
    return has;
}

/* A worker dies with a sequence of which nothing was committed. */
static void a_death(void) {
    struct puppet worker;
    KVT_NEED(puppet_start(&worker));
    kvd_session_id session = puppet_connect(&worker, &daemon_, KVD_ROLE_WORKER, 0);
    asked("Hello");
    asked("OpenRing");
    struct kvd_activation want = root(session, 100, 100);
    activate(&want, KVD_OK);
    puppet_kill(&worker);
    KVT_TRUE(e2e_until(quiet_again, NULL, 60, NULL));
    add(1, "kvd_sequences_lost_total{end=\"released\"}");
}

/* What stays, so that the gauges have something to say. */
static void what_lives_at_the_end(void) {
    struct kvd_activation want = root(kvd_client_session(scheduler), 130, 505);
    struct kvd_audit *audit = calloc(1, sizeof *audit);
    struct kvd_stats stats;
    activate(&want, KVD_OK);
    for (int p = 0; p < 2; p++) {
        mapped[p] += pages(130);
        entitled[p] += pages(634 + (p ? WINDOW - 1 : 0));
    }
    for (int i = 0; i < 2; i++) did("Audit", kvd_audit(admin, audit, &error), KVD_OK, &error);
    KVT_EQ(audit->violations, 0);
    free(audit);
    add(2, "kvd_audits_total");
    for (int i = 0; i < 5; i++) did("Stats", kvd_stats(admin, &stats, &error), KVD_OK, &error);
}

static void gauges(void) {
    static const char *const names[] = { "main", "draft" };
    static const uint32_t capacity[] = { MAIN, DRAFT };
    struct kvd_store_info info;
    did("DescribeStore", kvd_describe(admin, &info, &error), KVD_OK, &error);
    for (int p = 0; p < 2; p++) {
        add(capacity[p], "kvd_pool_pages{pool=\"%s\"}", names[p]);
        add(mapped[p], "kvd_pool_allocated_pages{pool=\"%s\"}", names[p]);
        add(entitled[p] - mapped[p], "kvd_pool_reserved_pages{pool=\"%s\"}", names[p]);
        add(capacity[p] - entitled[p], "kvd_pool_available_pages{pool=\"%s\"}", names[p]);
        add(entitled[p], "kvd_pool_entitled_pages{pool=\"%s\"}", names[p]);
        add((double)info.pool[p].page_bytes, "kvd_page_bytes{pool=\"%s\"}", names[p]);
        add((double)info.pool[p].page_bytes * capacity[p], "kvd_pool_bytes{pool=\"%s\"}", names[p]);
        add(C, "kvd_pool_rows{pool=\"%s\"}", names[p]);
        add(2, "kvd_pool_used_rows{pool=\"%s\"}", names[p]);
    }
    add(2, "kvd_sequences");
    add(C, "kvd_sequence_limit");
    add(mapped[0] + mapped[1], "kvd_membership_entries");
    add(4096, "kvd_continuation_limit");
    add(1, "kvd_config_last_reload_successful");
    add(256, "kvd_session_limit");
    add(320, "kvd_connection_limit");
    add(1, "kvd_instance_info{epoch=\"%016" PRIx64 "\",store=\"e2e\"}", kvd_client_epoch(admin));
}

/* ---- what Prometheus has ------------------------------------------------------------------------------ */

/* What time, memory or the configuration's tables decide: there, but not counted here. */
static bool is_free(const char *name, const cJSON *labels) {
    static const char *const names[] = { "kvd_request_seconds_sum",
                                         "kvd_continuation_lifetime_seconds_sum",
                                         "kvd_continuation_idle_seconds_sum",
                                         "kvd_continuation_reuse_gap_seconds_sum",
                                         "kvd_config_last_reload_success_timestamp_seconds",
                                         "kvd_uptime_seconds",
                                         "kvd_build_info",
                                         "kvd_resident_memory_bytes",
                                         "kvd_metadata_bytes",
                                         "kvd_membership_limit",
                                         "kvd_connections",
                                         "kvd_state_slots" };
    const char *le = cJSON_GetStringValue(cJSON_GetObjectItem(labels, "le"));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return le && strcmp(le, "+Inf") != 0;
}

static const char *series_of(const cJSON *labels, char *text, size_t bytes) {
    size_t n = (size_t)snprintf(text, bytes, "%s", cJSON_GetStringValue(cJSON_GetObjectItem(labels, "__name__")));
    char sign = '{';
    for (const cJSON *l = labels->child; l && n < bytes; l = l->next) {
        if (strcmp(l->string, "__name__") == 0 || strcmp(l->string, "instance") == 0 || strcmp(l->string, "job") == 0)
            continue;
        n += (size_t)snprintf(text + n, bytes - n, "%c%s=\"%s\"", sign, l->string, l->valuestring);
        sign = ',';
    }
    if (sign == ',' && n < bytes) snprintf(text + n, bytes - n, "}");
    return text;
}

static cJSON *all;

/* After a scrape that came too late there is nothing, until the next one. */
static bool all_is_there(void *unused) {
    (void)unused;
    cJSON_Delete(all);
    all = query("{__name__=~\"kvd_.+\"}");
    return cJSON_GetArraySize(all) > 1000;
}

static void compare(void) {
    char series[256];
    unsigned n = 0, missing = 0;
    KVT_NEED(e2e_until(all_is_there, NULL, 60, NULL));
    for (const cJSON *one = all->child; one; one = one->next) {
        const cJSON *labels = cJSON_GetObjectItem(one, "metric");
        series_of(labels, series, sizeof series);
        if (is_free(cJSON_GetStringValue(cJSON_GetObjectItem(labels, "__name__")), labels)) continue;
        double wanted = 0;
        for (unsigned i = 0; i < n_expected; i++)
            if (strcmp(expected[i].series, series) == 0) {
                wanted = expected[i].value;
                expected[i].seen = true;
            }
        if (!KVT_NEAR(sample(one), wanted, 0)) printf("    %s\n", series);
        n++;
    }
    for (unsigned i = 0; i < n_expected; i++)
        if (!expected[i].seen) {
            printf("    Prometheus has no %s\n", expected[i].series);
            missing++;
        }
    KVT_EQ(missing, 0);
    KVT_TRUE(n > 500);
    printf("(%u series compared, %u of them not 0) ", n, n_expected);
    cJSON_Delete(all);
    all = NULL;
}

/* The greatest value on all pages so far of what must be 0. */
#define NEVER(expression) IS("max(max_over_time(abs(" expression ")[5m:100ms]))", 0)

/* One scrape is one moment: what adds up, adds up in each of them. */
static void sums(void) {
    NEVER("kvd_pool_pages - kvd_pool_allocated_pages - kvd_pool_reserved_pages - kvd_pool_available_pages");
    NEVER("kvd_prefix_lookups_total - ignoring(result) sum without(result) (kvd_prefix_lookup_results_total)");
    NEVER("sum(kvd_shortages_total) - sum(kvd_refusals_total{status=\"RESOURCE_EXHAUSTED\"}) - "
          "sum(kvd_round_items_total{status=\"RESOURCE_EXHAUSTED\"})");
    NEVER("sum(kvd_activations_total) + sum(kvd_refusals_total{request=\"Activate\"}) + "
          "sum(kvd_replays_total{request=\"Activate\"}) - sum(kvd_request_seconds_count{request=\"Activate\"})");
    NEVER("sum(kvd_requests_total) - sum(kvd_frames_bad_total) - sum(kvd_request_seconds_count)"); /* no request waits
                                                                                                      here */
    NEVER("sum(kvd_domain_activations_total) - sum(kvd_activations_total)");
    NEVER("clamp_min(kvd_prefix_matched_tokens_total - kvd_prefix_looked_up_tokens_total, 0)");
    NEVER("clamp_min(kvd_endless_cache_tokens_total - kvd_activated_prompt_tokens_total, 0)");
    NEVER("kvd_continuations_made_total + kvd_continuations_found_total - sum without(reason) "
          "(kvd_continuations_ended_total) - kvd_continuations");
    /* Every series is as old as the first scrape, but for those of a domain. */
    IS("max_over_time(count({__name__=~\"kvd_.+\",__name__!~\"kvd_domain.+\"})[5m:100ms]) - "
       "min_over_time(count({__name__=~\"kvd_.+\",__name__!~\"kvd_domain.+\"})[5m:100ms])",
       0);
}

static bool lost_is_told(void *unused) {
    (void)unused;
    return value("count(ALERTS{alertname=\"KvdSequencesLost\",alertstate=\"firing\"})") > 0;
}

/* The rules as they are delivered: all of them work, one has something to say, and nothing else has. */
static void alerts(void) {
    char *body = get("/api/v1/rules");
    cJSON *answer = body ? cJSON_Parse(body) : NULL;
    const cJSON *groups = cJSON_GetObjectItem(cJSON_GetObjectItem(answer, "data"), "groups");
    const cJSON *rules = cJSON_GetObjectItem(cJSON_GetArrayItem(groups, 0), "rules");
    KVT_TRUE(cJSON_GetArraySize(rules) >= 14);
    for (const cJSON *r = rules ? rules->child : NULL; r; r = r->next)
        if (!KVT_EQ_STR(cJSON_GetStringValue(cJSON_GetObjectItem(r, "health")), "ok"))
            printf("    %s\n", cJSON_GetStringValue(cJSON_GetObjectItem(r, "name")));
    cJSON_Delete(answer);
    free(body);
    KVT_TRUE(e2e_until(lost_is_told, NULL, 60, NULL));
    IS("count(ALERTS{alertstate=\"firing\"})", 1);
}

static void a_known_course_as_prometheus_sees_it(void) {
    char more[64];
    snprintf(kvd_at, sizeof kvd_at, "127.0.0.1:%u", free_port());
    snprintf(more, sizeof more, "[http]\nlisten = %s\n", kvd_at);
    KVT_NEED(e2e_daemon_start(&daemon_, &(struct e2e_setup){ .backend = "mtp", .draft_window = WINDOW, .more = more }));
    KVT_NEED(start_prometheus());
    KVT_NEED(comes("kvd_sequences", 0)); /* the first scrape: nothing has happened */
    IS("count({__name__=~\"kvd_.+_total\"} > 0) or vector(0)", 0);
    admin = hello(KVD_ROLE_ADMIN, "admin");
    scheduler = hello(KVD_ROLE_SCHEDULER, "scheduler");
    KVT_NEED(admin && scheduler);
    the_life_of_a_prefix();
    refusals();
    rubbish();
    a_death();
    what_lives_at_the_end();
    gauges();
    KVT_NEED(comes("kvd_requests_total{request=\"Stats\"}", 5)); /* the last request was seen: so was all before it */
    compare();
    sums();
    alerts();
}

/* SRV-8: the next instance is another one in Prometheus, too, and begins at 0. */
static void a_new_instance(void) {
    KVT_NEED(prometheus > 0);
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGKILL), -SIGKILL);
    comes("up{job=\"kvd\"}", 0);
    comes("count(ALERTS{alertname=\"KvdDown\",alertstate=\"pending\"})", 1);
    kvd_disconnect(admin);
    kvd_disconnect(scheduler);
    KVT_NEED(e2e_daemon_restart(&daemon_));
    comes("up{job=\"kvd\"}", 1);
    comes("sum(kvd_requests_total)", 0);
    IS("count(last_over_time(kvd_instance_info[5m]))", 2);
    comes("count(kvd_instance_info)", 1);
    stop_prometheus();
    e2e_daemon_free(&daemon_);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(a_known_course_as_prometheus_sees_it),
                                             KVT_CASE(a_new_instance),
                                             { 0 } };
    signal(SIGPIPE, SIG_IGN);
    if (system("command -v prometheus >/dev/null 2>&1") != 0) {
        puts("skipped: prometheus is not installed (Debian: prometheus)");
        return 77;
    }
    int status = kvt_main("e2e_prometheus", cases, argc, argv);
    if (prometheus > 0) stop_prometheus();
    return status;
}
