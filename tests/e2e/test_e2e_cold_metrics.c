/* SPDX-License-Identifier: Apache-2.0
 * The series kvd_cold_* of a kvd on a real redis-server after a known course of writes, loads and losses: each of them
 * has the value that the test counted, or that the engine says it holds. What is not named must be 0. COLD-2, COLD-3,
 * COLD-5. */
#include <signal.h>
#include <stdlib.h>

#include "http_client.h"
#include "redis.h"
#include "scene.h"

#define OBJECTS 2u /* of a page: one for each KV head */

static struct redis server;
static struct e2e_daemon daemon_;
static kvd_client *scheduler;
static struct puppet worker;
static kvd_session_id worker_session;
static char at[160];

/* ---- what is expected ---------------------------------------------------------------------------- */

static struct expected {
    char series[96];
    double value;
    bool any, seen; /* any: more than 0 */
} expected[64];
static unsigned n_expected;

static struct expected *expect(const char *series) {
    unsigned i = 0;
    while (i < n_expected && strcmp(expected[i].series, series) != 0) i++;
    if (i == n_expected) {
        if (!KVT_TRUE(i < sizeof expected / sizeof *expected)) abort();
        snprintf(expected[n_expected++].series, sizeof expected->series, "%s", series);
    }
    return &expected[i];
}

static void set(const char *series, double value) { expect(series)->value = value; }

/* A time, or a count that depends on it. */
static void set_any(const char *series) { expect(series)->any = true; }

static void add(const char *series, double by) { expect(series)->value += by; }

/* To be freed; NULL: no answer, which fails the test. */
static char *page(void) {
    struct http_answer a;
    if (KVT_TRUE(http_ask(at, "GET", "/metrics", &a)) && KVT_EQ_I(a.status, 200)) return a.body;
    http_done(&a);
    return NULL;
}

/* Whether the value of a line is as expected; it is told where `tell` says so. */
static bool is_line_right(const char *line, bool tell) {
    char series[96];
    double value;
    if (sscanf(line, "%95s %lf", series, &value) != 2) return false;
    struct expected *e = expect(series);
    bool right = e->any ? value > 0 : value == e->value;
    e->seen = true;
    if (!right && tell) printf("    %s: %g, and not %g%s\n", series, value, e->value, e->any ? " and more" : "");
    return right;
}

static bool is_page_right(bool tell) {
    char *rest = NULL, *text = page();
    bool right = text != NULL;
    for (unsigned i = 0; i < n_expected; i++) expected[i].seen = false;
    for (char *line = text ? strtok_r(text, "\n", &rest) : NULL; line; line = strtok_r(NULL, "\n", &rest))
        if (strncmp(line, "kvd_cold_", 9) == 0) right &= is_line_right(line, tell);
    for (unsigned i = 0; text && i < n_expected; i++) {
        right &= expected[i].seen;
        if (!expected[i].seen && tell) printf("    %s is missing\n", expected[i].series);
    }
    free(text);
    return right;
}

static bool is_right(void *unused) {
    (void)unused;
    return is_page_right(false);
}

/* Each series of the page, and each one expected, once the page is of now: kvd shows one for a moment. */
static void check_page(void) {
    if (!KVT_TRUE(e2e_until(is_right, NULL, 60 * E2E_SLOW, NULL))) (void)is_page_right(true);
}

struct wish {
    const char *series;
    double value;
};
static bool has_value(void *wish) {
    const struct wish *w = wish;
    char *text = page(), *found = text;
    size_t n = strlen(w->series);
    bool has = !text;
    while (found && (found = strstr(found, w->series)) && !(found[-1] == '\n' && found[n] == ' ')) found += n;
    if (found) has = strtod(found + n, NULL) == w->value;
    free(text);
    return has;
}

static void await_value(const char *series, double value) {
    struct wish w = { series, value };
    if (!KVT_TRUE(e2e_until(has_value, &w, 60 * E2E_SLOW, NULL))) printf("    %s is not %g\n", series, value);
    set(series, value);
}

/* ---- the engine ---------------------------------------------------------------------------------- */

static double bytes_there(void) {
    double bytes = 0;
    redisReply *keys = redis_ask(&server, "KEYS *");
    for (size_t i = 0; keys && i < keys->elements; i++)
        bytes += (double)redis_number(&server, "STRLEN %s", keys->element[i]->str);
    if (keys) freeReplyObject(keys);
    return bytes;
}

/* The same command for every object. */
static void change_all(const char *format) {
    redisReply *keys = redis_ask(&server, "KEYS *");
    for (size_t i = 0; keys && i < keys->elements; i++)
        KVT_TRUE(redis_number(&server, format, keys->element[i]->str) > 0);
    if (keys) freeReplyObject(keys);
}

static void forget_one(void) {
    redisReply *key = redis_ask(&server, "RANDOMKEY");
    if (KVT_TRUE(key && key->type == REDIS_REPLY_STRING)) KVT_EQ(redis_number(&server, "DEL %s", key->str), 1);
    if (key) freeReplyObject(key);
}

/* ---- steps --------------------------------------------------------------------------------------- */

static bool open_kvd(const char *arena, const char *cold) {
    char more[512];
    memset(expected, 0, sizeof expected);
    n_expected = 0;
    snprintf(at, sizeof at, "%s.http", server.socket);
    snprintf(more, sizeof more,
             "[host]\narena = %s\nscrub = 0\n[http]\nlisten = unix:%s\n[cold]\naddress = unix:%s\n"
             "timeout = 60s\nfind_time = 60s\nconnections = 1\n%s",
             arena, at, server.socket, cold);
    struct e2e_setup setup = { .kv_heads = OBJECTS, .more = more };
    if (!e2e_daemon_start(&daemon_, &setup)) return false;
    scheduler = e2e_connect(&daemon_, KVD_ROLE_ADMIN, "scheduler");
    if (!scheduler || !puppet_start(&worker)) return false;
    kvd_client_set_timeout(scheduler, 60000 * E2E_SLOW);
    worker_session = puppet_connect(&worker, &daemon_, KVD_ROLE_WORKER, 0);
    set("kvd_cold_configured", 1);
    return puppet_attach(&worker, 0);
}

static void close_kvd(void) {
    scene_audit(scheduler);
    puppet_kill(&worker);
    kvd_disconnect(scheduler);
    e2e_daemon_free(&daemon_);
    redis_free(&server);
}

static kvd_continuation keep(uint64_t seed, uint32_t n) {
    struct kvd_activated made = scene_run(scheduler, &worker, worker_session, seed, n, 16);
    return scene_retain(scheduler, made.sequence, seed, n);
}

static kvd_continuation demoted(uint64_t seed, uint32_t n) {
    struct kvd_moved moved;
    kvd_continuation c = keep(seed, n);
    KVT_EQ(kvd_demote(scheduler, c, false, &moved, NULL), KVD_OK);
    return c;
}

static void ask(uint64_t seed, uint32_t n, bool load, uint32_t frontier, kvd_continuation *ret_cont) {
    uint32_t tokens[512];
    struct kvd_cold_found found = { 0 };
    kvd_chain *chain = e2e_chain(seed, n);
    e2e_tokens(seed, n, tokens);
    struct kvd_cold_prompt prompt = { .chain = chain, .prompt = tokens, .until = n };
    KVT_EQ(load ? kvd_load_cold(scheduler, &prompt, &found, NULL) : kvd_find_cold(scheduler, &prompt, &found, NULL),
           KVD_OK);
    KVT_EQ(found.frontier, frontier);
    if (ret_cont) *ret_cont = found.continuation;
    kvd_chain_free(chain);
    add(load ? "kvd_cold_loads_total" : "kvd_cold_finds_total", 1);
    add(load ? "kvd_cold_loaded_total" : "kvd_cold_found_total", frontier > 0);
    add(load ? "kvd_cold_loaded_tokens_total" : "kvd_cold_found_tokens_total", frontier);
}

/* ---- scenes -------------------------------------------------------------------------------------- */

static kvd_continuation first, second; /* 64 tokens, and 300 that begin with those */
static uint64_t short_text, long_text;

static void write_two(void) {
    first = demoted(short_text, 64);
    await_value("kvd_cold_continuations_total", 1);
    double written = bytes_there(), of_one = written / OBJECTS;
    set("kvd_cold_written_objects_total", OBJECTS);
    set("kvd_cold_written_bytes_total", written);
    set_any("kvd_cold_written_seconds_total");
    KVT_EQ(redis_number(&server, "DBSIZE"), OBJECTS);
    check_page();
    forget_one();
    KVT_EQ(kvd_check_cold_tier(scheduler, KVD_MAX_COLD_CHECK, NULL), KVD_OK);
    await_value("kvd_cold_checks_total", 1);
    set("kvd_cold_checked_objects_total{outcome=\"right\"}", OBJECTS - 1);
    set("kvd_cold_checked_objects_total{outcome=\"absent\"}", 1);
    check_page();
    second = demoted(long_text, 300);
    await_value("kvd_cold_continuations_total", 2);
    set("kvd_cold_met_objects_total", OBJECTS - 1);
    set("kvd_cold_written_objects_total", 5 * OBJECTS + 1);
    set("kvd_cold_written_bytes_total", bytes_there() + of_one);
    KVT_EQ(redis_number(&server, "DBSIZE"), 5 * OBJECTS);
    check_page();
}

static void read_and_lose(void) {
    kvd_continuation loaded;
    KVT_EQ(kvd_release(scheduler, first, NULL), KVD_OK);
    KVT_EQ(kvd_release(scheduler, second, NULL), KVD_OK);
    ask(e2e_stream(2, 5000, 0), 200, false, 0, NULL);
    ask(long_text, 300, false, 300, NULL);
    ask(long_text, 300, true, 300, &loaded);
    set("kvd_cold_loaded_objects_total", 5 * OBJECTS);
    set("kvd_cold_loaded_bytes_total", bytes_there());
    set_any("kvd_cold_loaded_seconds_total");
    await_value("kvd_cold_continuations_total", 3); /* it rests in the arena, as what is demoted does */
    set_any("kvd_cold_met_objects_total");          /* more, where the writer was told so long ago that it asks again */
    check_page();
    KVT_EQ(kvd_release(scheduler, loaded, NULL), KVD_OK);
    change_all("SETRANGE %s 200 xyz");
    ask(long_text, 300, true, 0, NULL);
    set("kvd_cold_wrong_objects_total{field=\"checksum\"}", OBJECTS);
    KVT_EQ(redis_number(&server, "DBSIZE"), 4 * OBJECTS);
    check_page();
    change_all("APPEND %s x");
    KVT_EQ(kvd_check_cold_tier(scheduler, KVD_MAX_COLD_CHECK, NULL), KVD_OK);
    await_value("kvd_cold_checks_total", 2);
    /* It looks at what was written, once for each time: that which was lost and written again twice. */
    add("kvd_cold_checked_objects_total{outcome=\"absent\"}", OBJECTS + 1);
    add("kvd_cold_checked_objects_total{outcome=\"wrong\"}", 4 * OBJECTS);
    KVT_EQ(redis_number(&server, "DBSIZE"), 0);
    check_page();
}

static bool is_up(void) {
    struct kvd_cold_tier cold = { 0 };
    KVT_EQ(kvd_describe_cold_tier(scheduler, &cold, NULL), KVD_OK);
    return cold.breaker == KVD_COLD_CLOSED;
}

/* The engine goes: what is demoted then is dropped until the breaker opens, and then waits; and it comes back. */
static void lose_the_engine(void) {
    uint32_t dropped = 0;
    redis_kill(&server);
    while (is_up() && dropped < 10) { /* each is a fault at least */
        (void)demoted(e2e_stream(10 + dropped, 5000, 0), 100);
        await_value("kvd_cold_dropped_continuations_total{reason=\"engine\"}", ++dropped);
    }
    await_value("kvd_cold_up", 0);
    set_any("kvd_cold_breaker_trips_total"); /* once for each try that failed, too */
    check_page();
    (void)demoted(e2e_stream(4, 5000, 0), 100);
    await_value("kvd_cold_waiting_continuations", 1);
    check_page();
    if (!KVT_TRUE(redis_start(&server))) return;
    await_value("kvd_cold_continuations_total", 4);
    await_value("kvd_cold_waiting_continuations", 0);
    await_value("kvd_cold_up", 1);
    set("kvd_cold_connections_total", 2);
    add("kvd_cold_written_objects_total", 2 * OBJECTS);
    add("kvd_cold_written_bytes_total", bytes_there());
    check_page();
}

static void cold_every_series(void) {
    short_text = e2e_stream(1, 64, 1);
    long_text = e2e_stream(1, 64, 2);
    server = (struct redis){ 0 };
    KVT_NEED(redis_start(&server));
    KVT_NEED(open_kvd("64MiB", ""));
    await_value("kvd_cold_up", 1);
    set("kvd_cold_connections_total", 1);
    check_page();
    write_two();
    read_and_lose();
    lose_the_engine();
    close_kvd();
}

#define NOTED 1024u /* what the store keeps in mind for the writer */

static bool is_past(void *until) { return e2e_now() > *(double *)until; }

/* What waits while the engine is away gives way to newer ones, and is too old in the end. */
static void cold_drops_by_queue_and_age(void) {
    struct kvd_moved moved;
    server = (struct redis){ 0 };
    KVT_NEED(redis_start(&server));
    redis_kill(&server);
    KVT_NEED(open_kvd("64MiB", "age = 1s\n"));
    kvd_continuation c = demoted(e2e_stream(1, 5000, 0), 64);
    for (uint32_t i = 1; i < NOTED + 3; i++) {
        KVT_EQ(kvd_prefetch(scheduler, c, &moved, NULL), KVD_OK);
        KVT_EQ(kvd_demote(scheduler, c, false, &moved, NULL), KVD_OK);
    }
    double until = e2e_now() + 1;
    set_any("kvd_cold_breaker_trips_total");
    set("kvd_cold_waiting_continuations", NOTED);
    set("kvd_cold_dropped_continuations_total{reason=\"queue\"}", 3);
    check_page();
    KVT_TRUE(e2e_until(is_past, &until, 60, NULL));
    KVT_NEED(redis_start(&server));
    await_value("kvd_cold_dropped_continuations_total{reason=\"age\"}", NOTED);
    await_value("kvd_cold_waiting_continuations", 0);
    await_value("kvd_cold_up", 1);
    set("kvd_cold_connections_total", 1);
    KVT_EQ(redis_number(&server, "DBSIZE"), 0);
    check_page();
    close_kvd();
}

/* What is retained is not written where its copy would take more than half of the arena. */
static void cold_drops_by_arena(void) {
    server = (struct redis){ 0 };
    KVT_NEED(redis_start(&server));
    KVT_NEED(open_kvd("2MiB", "write = retained\n"));
    await_value("kvd_cold_up", 1);
    set("kvd_cold_connections_total", 1);
    (void)keep(e2e_stream(1, 5000, 0), 20 * 64);
    await_value("kvd_cold_dropped_continuations_total{reason=\"arena\"}", 1);
    KVT_EQ(redis_number(&server, "DBSIZE"), 0);
    check_page();
    close_kvd();
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = {
        KVT_CASE(cold_every_series), KVT_CASE(cold_drops_by_queue_and_age), KVT_CASE(cold_drops_by_arena), { 0 }
    };
    return kvt_main("e2e_cold_metrics", cases, argc, argv);
}
