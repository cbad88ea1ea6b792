/* SPDX-License-Identifier: Apache-2.0
 *
 * The client of the cold tier's engine: against a real redis-server, against a cluster of three, and against a server
 * that answers nonsense. COLD-2, COLD-5.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "cold_breaker.h"
#include "cold_engine.h"
#include "cold_slots.h"
#include "kvt.h"
#include "redis_cluster.h"

#define SECOND UINT64_C(1000000000)
#define LONG (120 * SECOND) /* never over before the test is */

static struct cold_engine *engine;
static char err[256];

/* ---- helpers ---- */

static struct cold_engine_config config_at(const char *socket) {
    struct cold_engine_config config = {
        .lanes = 3, .connect_ns = 10 * SECOND, .retry_ns = SECOND / 50, .retry_most_ns = SECOND / 10
    };
    config.address.kind = LISTEN_UNIX;
    snprintf(config.address.path, sizeof config.address.path, "%s", socket);
    return config;
}

static struct cold_engine_state state_of(void) {
    struct cold_engine_state state;
    cold_engine_get_state(engine, &state);
    return state;
}

static bool is_closed(void *unused) {
    (void)unused;
    return state_of().breaker == COLD_CLOSED;
}

static bool is_open(void *unused) {
    (void)unused;
    return state_of().breaker == COLD_OPEN;
}

static bool start_engine(const struct cold_engine_config *config) {
    return KVT_OK(cold_engine_new(config, &engine, err, sizeof err));
}

static void stop_engine(void) { engine = cold_engine_free(engine); }

static struct cold_op make_op(enum cold_verb verb, const char *key) {
    struct cold_op op = { .verb = verb, .deadline_ns = clock_ns() + LONG };
    snprintf(op.key, sizeof op.key, "%s", key);
    return op;
}

static enum cold_outcome run_one(struct cold_op *op) {
    cold_engine_run(engine, op, 1);
    return op->outcome;
}

static enum cold_outcome set_key(const char *key, const void *value, uint64_t bytes) {
    struct cold_op op = make_op(COLD_SET, key);
    op.head = value;
    op.head_bytes = bytes < 5 ? bytes : 5;
    op.value = (const uint8_t *)value + op.head_bytes;
    op.value_bytes = bytes - op.head_bytes;
    return run_one(&op);
}

static enum cold_outcome ask_key(enum cold_verb verb, const char *key) {
    static uint8_t into[64];
    struct cold_op op = make_op(verb, key);
    op.into = into;
    op.into_bytes = sizeof into;
    return run_one(&op);
}

/* ---- what needs no server ---- */

static void slots_are_those_of_the_protocol(void) {
    static const struct {
        const char *key;
        uint32_t slot;
    } known[] = { { "123456789", 12739 }, /* CRC16 0x31c3 */
                  { "foo", 12182 },
                  { "{foo}.x", 12182 },
                  { "a{foo}{bar}", 12182 },
                  { "", 0 } };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        KVT_EQ(cold_slot_of(known[i].key, strlen(known[i].key)), known[i].slot);
    KVT_TRUE(cold_slot_of("{}foo", 5) != cold_slot_of("foo", 3));
    KVT_TRUE(cold_slot_of("{foo", 4) != cold_slot_of("foo", 3));
}

static bool redirects(const char *text, struct cold_redirect *ret) {
    return cold_read_redirect(text, strlen(text), ret);
}

static void redirects_are_read(void) {
    struct cold_redirect r;
    KVT_TRUE(redirects("MOVED 3999 127.0.0.1:6381", &r) && !r.ask && r.slot == 3999);
    KVT_EQ_STR(r.to.path, "127.0.0.1");
    KVT_EQ(r.to.port, 6381);
    KVT_TRUE(redirects("ASK 0 ::1:7", &r) && r.ask && r.to.kind == LISTEN_TCP6 && r.to.port == 7);
    KVT_TRUE(redirects("ASK 0 [::1]:7", &r) && r.to.kind == LISTEN_TCP6);
    KVT_TRUE(redirects("MOVED 16383 :65535", &r) && r.to.kind == LISTEN_NONE && r.to.port == 65535);
    static const char *const wrong[] = { "ERR x",
                                         "MOVED",
                                         "MOVED 1",
                                         "MOVED 16384 127.0.0.1:1",
                                         "MOVED -1 127.0.0.1:1",
                                         "MOVED 1 127.0.0.1",
                                         "MOVED 1 127.0.0.1:0",
                                         "MOVED 1 127.0.0.1:65536",
                                         "MOVED 1 example.org:1",
                                         "MOVED 1 ?:1",
                                         "ASKING 1 127.0.0.1:1",
                                         "" };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) KVT_FALSE(redirects(wrong[i], &r));
}

/* COLD-5: it opens by three faults in a row or a grave one, waits longer each time, and from the start after good work.
 */
static void cold_5_breaker(void) {
    struct cold_breaker_state b;
    breaker_init(&b, 10, 35, 100);
    KVT_TRUE(b.open && b.until_ns == 100);
    breaker_tried(&b, false, 100);
    KVT_TRUE(b.open && b.until_ns == 120);
    breaker_tried(&b, false, 120);
    KVT_EQ(b.until_ns, 155); /* 40 are more than the most */
    breaker_tried(&b, true, 155);
    KVT_FALSE(b.open);
    KVT_FALSE(breaker_fault(&b, false, 1000));
    KVT_FALSE(breaker_fault(&b, false, 1000));
    breaker_good(&b);
    KVT_FALSE(breaker_fault(&b, false, 1000));
    KVT_FALSE(breaker_fault(&b, false, 1000));
    KVT_TRUE(breaker_fault(&b, false, 1000));
    KVT_EQ(b.until_ns, 1010);
    KVT_FALSE(breaker_fault(&b, true, 1005)); /* it is open */
    breaker_tried(&b, true, 1010);
    KVT_TRUE(breaker_fault(&b, true, 1011)); /* it answered, and fails the work again */
    KVT_EQ(b.until_ns, 1031);
}

/* ---- a real server ---- */

/* Bytes come back as they went; the first write of a key stays; what is larger than its place is refused. */
static void values_come_back(void) {
    struct redis server = { 0 };
    static uint8_t value[3 << 20], into[3 << 20];
    for (size_t i = 0; i < sizeof value; i++) value[i] = (uint8_t)(i * 7 + i / 4096);
    KVT_NEED(redis_start(&server));
    struct cold_engine_config config = config_at(server.socket);
    KVT_NEED(start_engine(&config) && KVT_TRUE(redis_until(is_closed, NULL)));
    KVT_EQ(set_key("big", value, sizeof value), COLD_DONE);
    KVT_EQ(set_key("big", "other", 5), COLD_DONE);
    KVT_EQ(set_key("tiny", "x", 1), COLD_DONE);
    struct cold_op get = make_op(COLD_GET, "big");
    get.into = into;
    get.into_bytes = sizeof into;
    KVT_EQ(run_one(&get), COLD_DONE);
    KVT_EQ(get.got, sizeof value);
    KVT_EQ_MEM(into, value, sizeof value);
    get.into_bytes = sizeof into - 1;
    KVT_EQ(run_one(&get), COLD_REFUSED);
    KVT_EQ(ask_key(COLD_GET, "tiny"), COLD_DONE);
    KVT_EQ(ask_key(COLD_GET, "none"), COLD_ABSENT);
    KVT_EQ(ask_key(COLD_TOUCH, "none"), COLD_ABSENT);
    KVT_EQ(ask_key(COLD_TOUCH, "tiny"), COLD_DONE);
    KVT_EQ(redis_number(&server, "PTTL tiny"), (uint64_t)-1); /* for good */
    struct cold_op touch = make_op(COLD_TOUCH, "tiny");
    touch.ttl_ms = 3600000;
    KVT_EQ(run_one(&touch), COLD_DONE);
    KVT_TRUE(redis_number(&server, "PTTL tiny") > 3000000);
    KVT_EQ(ask_key(COLD_DELETE, "tiny"), COLD_DONE);
    KVT_EQ(ask_key(COLD_DELETE, "tiny"), COLD_ABSENT);
    struct cold_engine_state state = state_of();
    KVT_EQ(state.ops[COLD_SET][COLD_DONE], 3);
    KVT_EQ(state.ops[COLD_GET][COLD_REFUSED], 1);
    KVT_EQ(state.bytes_in, sizeof value + 1);
    KVT_EQ(state.trips, 0);
    stop_engine();
    redis_free(&server);
}

/* A key of another type is refused, and is no reason to leave the engine alone. */
static void a_key_of_another_type_is_refused(void) {
    struct redis server = { 0 };
    KVT_NEED(redis_start(&server));
    struct cold_engine_config config = config_at(server.socket);
    KVT_NEED(start_engine(&config) && KVT_TRUE(redis_until(is_closed, NULL)));
    KVT_EQ(redis_number(&server, "LPUSH list x"), 1);
    for (int i = 0; i < 5; i++) KVT_EQ(ask_key(COLD_GET, "list"), COLD_REFUSED);
    KVT_EQ(state_of().breaker, COLD_CLOSED);
    stop_engine();
    redis_free(&server);
}

#define MANY 700u

static void fill_many(struct cold_op *ops, uint8_t (*value)[64], enum cold_verb verb) {
    for (uint32_t i = 0; i < MANY; i++) {
        char key[32];
        snprintf(key, sizeof key, "k:{%u}", i);
        ops[i] = make_op(verb, key);
        if (verb == COLD_SET) memset(value[i], (int)(i % 251), sizeof value[i]);
        else memset(value[i], 0xee, sizeof value[i]);
        ops[i].head = ops[i].value = value[i];
        ops[i].value_bytes = sizeof value[i];
        ops[i].into = value[i];
        ops[i].into_bytes = sizeof value[i];
    }
}

static uint32_t count_outcome(const struct cold_op *ops, enum cold_outcome outcome) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < MANY; i++) n += ops[i].outcome == outcome;
    return n;
}

static bool all_is_served(void *unused) {
    (void)unused;
    struct cold_op *ops = calloc(MANY, sizeof *ops);
    uint8_t(*value)[64] = calloc(MANY, sizeof *value);
    fill_many(ops, value, COLD_TOUCH);
    cold_engine_run(engine, ops, MANY);
    uint32_t n = count_outcome(ops, COLD_DONE) + count_outcome(ops, COLD_ABSENT);
    free(ops);
    free(value);
    return n == MANY;
}

/* Writes many, and reads each again as itself. */
static void check_many(void) {
    struct cold_op *ops = calloc(MANY, sizeof *ops);
    uint8_t(*value)[64] = calloc(MANY, sizeof *value);
    uint32_t wrong = 0;
    fill_many(ops, value, COLD_SET);
    cold_engine_run(engine, ops, MANY);
    KVT_EQ(count_outcome(ops, COLD_DONE), MANY);
    fill_many(ops, value, COLD_GET);
    cold_engine_run(engine, ops, MANY);
    KVT_EQ(count_outcome(ops, COLD_DONE), MANY);
    for (uint32_t i = 0; i < MANY; i++)
        for (uint32_t k = 0; k < sizeof value[i]; k++) wrong += value[i][k] != i % 251;
    KVT_EQ(wrong, 0);
    free(ops);
    free(value);
}

/* Pipelines over several lanes: each answer belongs to its operation. */
static void many_at_once(void) {
    struct redis server = { 0 };
    KVT_NEED(redis_start(&server));
    struct cold_engine_config config = config_at(server.socket);
    KVT_NEED(start_engine(&config) && KVT_TRUE(redis_until(is_closed, NULL)));
    check_many();
    KVT_TRUE(state_of().connections <= 3);
    stop_engine();
    redis_free(&server);
}

/* ---- COLD-5: what is wrong with it is told, nothing hangs, and it is tried again ---- */

static void write_password(const char *path, const char *password, mode_t mode) {
    FILE *file = fopen(path, "w");
    if (!KVT_TRUE(file != NULL)) return;
    fprintf(file, "%s\n", password);
    fclose(file);
    KVT_OK(chmod(path, mode));
}

static const char *expected;

static bool says_expected(void *unused) {
    (void)unused;
    return strstr(state_of().why, expected) != NULL;
}

static void must_say(const char *word) {
    expected = word;
    if (!KVT_TRUE(redis_until(says_expected, NULL))) printf("it says \"%s\", not %s\n", state_of().why, word);
}

static void cold_5_password(void) {
    static const char *const options[] = { "--requirepass", "right", NULL };
    struct redis server = { .options = options };
    KVT_NEED(redis_start(&server));
    struct cold_engine_config config = config_at(server.socket);
    KVT_NEED(start_engine(&config));
    must_say("NOAUTH");
    KVT_EQ(ask_key(COLD_TOUCH, "x"), COLD_DROPPED);
    stop_engine();
    snprintf(config.password_file, sizeof config.password_file, "%s/password", server.dir);
    KVT_NEED(start_engine(&config));
    must_say("No such file");
    write_password(config.password_file, "right", 0640);
    must_say("mode 0640");
    write_password(config.password_file, "wrong", 0600);
    must_say("the password is refused: WRONGPASS");
    KVT_EQ(ask_key(COLD_TOUCH, "x"), COLD_DROPPED);
    write_password(config.password_file, "right", 0600);
    KVT_TRUE(redis_until(is_closed, NULL));
    KVT_EQ(ask_key(COLD_TOUCH, "x"), COLD_ABSENT);
    stop_engine();
    redis_free(&server);
}

/* A user with a password; what it may not do is told. */
static void cold_5_rights(void) {
    static const char *const options[] = {
        "--user", "cold", "on", ">secret", "~kvd1:*", "+ping", "+get", "+set", NULL
    };
    struct redis server = { .options = options };
    KVT_NEED(redis_start(&server));
    struct cold_engine_config config = config_at(server.socket);
    snprintf(config.user, sizeof config.user, "cold");
    snprintf(config.password_file, sizeof config.password_file, "%s/password", server.dir);
    write_password(config.password_file, "secret", 0600);
    KVT_NEED(start_engine(&config) && KVT_TRUE(redis_until(is_closed, NULL)));
    KVT_EQ(set_key("kvd1:a", "value", 5), COLD_DONE);
    KVT_EQ(ask_key(COLD_GET, "kvd1:a"), COLD_DONE);
    KVT_EQ(state_of().trips, 0);
    KVT_EQ(ask_key(COLD_DELETE, "kvd1:a"), COLD_REFUSED);
    KVT_EQ(state_of().trips, 1);
    KVT_HAS(state_of().why, "NOPERM");
    stop_engine();
    redis_free(&server);
}

/* A full engine refuses writes. */
static void cold_5_full(void) {
    static const char *const options[] = { "--maxmemory", "3mb", "--maxmemory-policy", "noeviction", NULL };
    static uint8_t value[1 << 20];
    struct redis server = { .options = options };
    KVT_NEED(redis_start(&server));
    struct cold_engine_config config = config_at(server.socket);
    KVT_NEED(start_engine(&config) && KVT_TRUE(redis_until(is_closed, NULL)));
    uint32_t done = 0;
    char key[16] = "k0";
    for (; done < 9 && set_key(key, value, sizeof value) == COLD_DONE; snprintf(key, sizeof key, "k%u", done)) done++;
    KVT_TRUE(done < 9);
    KVT_HAS(state_of().why, "OOM");
    KVT_EQ(state_of().trips, 1);
    stop_engine();
    redis_free(&server);
}

/* Whatever the engine evicts: a write is taken, and what is read is what was written, or nothing. A policy that evicts
 * only what has a time to live finds none without one, and then the engine is full. */
static void check_evictions(const struct redis *server, const char *policy, uint64_t ttl_ms) {
    static uint8_t value[64 << 10], into[64 << 10];
    uint32_t done = 0, there = 0, wrong = 0;
    bool evicts = strncmp(policy, "allkeys", 7) == 0 || (strncmp(policy, "volatile", 8) == 0 && ttl_ms);
    uint64_t trips = state_of().trips;
    redis_must(redis_ask(server, "CONFIG SET maxmemory-policy %s", policy));
    for (uint32_t i = 0; i < 200; i++) {
        struct cold_op op = make_op(COLD_SET, "");
        snprintf(op.key, sizeof op.key, "k%u", i);
        memset(value, (int)i, sizeof value);
        op.head = op.value = value;
        op.value_bytes = sizeof value;
        op.ttl_ms = ttl_ms;
        done += run_one(&op) == COLD_DONE;
    }
    KVT_TRUE(redis_until(is_closed, NULL));
    for (uint32_t i = 0; i < 200; i++) {
        struct cold_op op = make_op(COLD_GET, "");
        snprintf(op.key, sizeof op.key, "k%u", i);
        op.into = into;
        op.into_bytes = sizeof into;
        memset(value, (int)i, sizeof value);
        enum cold_outcome outcome = run_one(&op);
        there += outcome == COLD_DONE;
        wrong += outcome == COLD_DONE ? memcmp(value, into, sizeof into) != 0 : outcome != COLD_ABSENT;
    }
    KVT_EQ(wrong, 0);
    KVT_TRUE(there > 0 && there < 200);
    KVT_TRUE(evicts ? done == 200 && state_of().trips == trips : done < 200 && state_of().trips > trips);
    KVT_TRUE(evicts || strstr(state_of().why, "OOM") != NULL);
}

static void cold_5_evictions(void) {
    static const char *const options[] = { "--maxmemory", "6mb", NULL };
    static const struct {
        const char *policy;
        uint64_t ttl_ms;
    } all[] = { { "noeviction", 3600000 },   { "allkeys-lru", 0 },           { "allkeys-lfu", 0 },
                { "allkeys-random", 0 },     { "volatile-lru", 3600000 },    { "volatile-lfu", 3600000 },
                { "volatile-ttl", 3600000 }, { "volatile-random", 3600000 }, { "volatile-lru", 0 } };
    struct redis server = { .options = options };
    KVT_NEED(redis_start(&server));
    struct cold_engine_config config = config_at(server.socket);
    KVT_NEED(start_engine(&config));
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        KVT_TRUE(redis_until(is_closed, NULL));
        check_evictions(&server, all[i].policy, all[i].ttl_ms);
        redis_must(redis_ask(&server, "FLUSHALL"));
    }
    stop_engine();
    redis_free(&server);
}

/* Killed in the middle of work, and back: every operation has an outcome, and then all is as before. */
static void cold_5_killed_and_back(void) {
    struct redis server = { 0 };
    KVT_NEED(redis_start(&server));
    struct cold_engine_config config = config_at(server.socket);
    KVT_NEED(start_engine(&config) && KVT_TRUE(redis_until(is_closed, NULL)));
    check_many();
    redis_kill(&server);
    for (int i = 0; i < 4; i++) {
        enum cold_outcome outcome = ask_key(COLD_TOUCH, "k:{1}");
        KVT_TRUE(outcome == COLD_FAILED || outcome == COLD_DROPPED);
    }
    KVT_TRUE(redis_until(is_open, NULL));
    KVT_HAS(state_of().why, "connecting");
    KVT_EQ(ask_key(COLD_TOUCH, "k:{1}"), COLD_DROPPED);
    KVT_NEED(redis_start(&server));
    KVT_TRUE(redis_until(is_closed, NULL));
    check_many();
    stop_engine();
    redis_free(&server);
}

/* COLD-2: ten thousand writes are lost, each has its outcome, and nothing of them is left over. */
static void cold_2_ten_thousand_lost_writes(void) {
    struct redis server = { 0 };
    struct cold_op *ops = calloc(MANY, sizeof *ops);
    uint8_t(*value)[64] = calloc(MANY, sizeof *value);
    uint64_t lost = 0;
    KVT_NEED(redis_start(&server));
    struct cold_engine_config config = config_at(server.socket);
    KVT_NEED(start_engine(&config) && KVT_TRUE(redis_until(is_closed, NULL)));
    redis_kill(&server);
    while (lost < 10000) {
        fill_many(ops, value, COLD_SET);
        cold_engine_run(engine, ops, MANY);
        uint32_t n = count_outcome(ops, COLD_FAILED) + count_outcome(ops, COLD_DROPPED);
        if (!KVT_EQ(n, MANY)) break;
        lost += n;
    }
    struct cold_engine_state state = state_of();
    KVT_EQ(state.ops[COLD_SET][COLD_FAILED] + state.ops[COLD_SET][COLD_DROPPED], lost);
    KVT_EQ(state.bytes_out, 0);
    KVT_NEED(redis_start(&server));
    KVT_TRUE(redis_until(is_closed, NULL));
    check_many();
    KVT_EQ(redis_number(&server, "DBSIZE"), MANY);
    free(ops);
    free(value);
    stop_engine();
    redis_free(&server);
}

/* Stopped: deadlines end what waits, the breaker spares the rest the wait, and it comes back by itself. */
static void cold_5_stopped_and_back(void) {
    struct redis server = { 0 };
    KVT_NEED(redis_start(&server));
    struct cold_engine_config config = config_at(server.socket);
    config.connect_ns = SECOND / 5;
    KVT_NEED(start_engine(&config) && KVT_TRUE(redis_until(is_closed, NULL)));
    KVT_EQ(ask_key(COLD_TOUCH, "x"), COLD_ABSENT);
    redis_stop(&server);
    for (int i = 0; i < 5; i++) {
        struct cold_op op = make_op(COLD_TOUCH, "x");
        op.deadline_ns = clock_ns() + SECOND / 10;
        enum cold_outcome outcome = run_one(&op);
        KVT_TRUE(outcome == COLD_FAILED || outcome == COLD_DROPPED);
    }
    KVT_TRUE(redis_until(is_open, NULL));
    KVT_HAS(state_of().why, "in time");
    KVT_EQ(ask_key(COLD_TOUCH, "x"), COLD_DROPPED);
    kill(server.pid, SIGCONT);
    KVT_TRUE(redis_until(is_closed, NULL));
    KVT_EQ(ask_key(COLD_TOUCH, "x"), COLD_ABSENT);
    stop_engine();
    redis_free(&server);
}

/* An engine closes connections that are idle: that is no fault. */
static void idle_connections_are_opened_again(void) {
    struct redis server = { 0 };
    KVT_NEED(redis_start(&server));
    struct cold_engine_config config = config_at(server.socket);
    config.lanes = 1;
    KVT_NEED(start_engine(&config) && KVT_TRUE(redis_until(is_closed, NULL)));
    for (int i = 0; i < 4; i++) {
        KVT_EQ(ask_key(COLD_TOUCH, "x"), COLD_ABSENT);
        KVT_TRUE(redis_number(&server, "CLIENT KILL TYPE normal SKIPME yes") >= 1);
    }
    KVT_EQ(state_of().trips, 0);
    KVT_EQ(state_of().ops[COLD_TOUCH][COLD_ABSENT], 4);
    stop_engine();
    redis_free(&server);
}

/* ---- a tunnel, as the guide has it ---- */

/* What follows a line of OPERATING.md, up to the end of that block. */
static void read_block(const char *line, char *ret_text, size_t bytes) {
    static char page[1 << 18];
    FILE *file = fopen(OPERATING_MD, "r");
    ret_text[0] = '\0';
    if (!KVT_TRUE(file != NULL)) return;
    page[fread(page, 1, sizeof page - 1, file)] = '\0';
    fclose(file);
    const char *begin = strstr(page, line), *end = begin ? strstr(begin, "```") : NULL;
    if (KVT_TRUE(end != NULL)) snprintf(ret_text, bytes, "%.*s", (int)(end - begin), begin);
}

/* The same, with the value of a key replaced by a file of this folder. */
static void put_path(char *text, size_t bytes, const char *key, const char *dir, const char *name) {
    char rest[1024], *at = strstr(text, key);
    if (!KVT_TRUE(at != NULL)) return;
    at += strlen(key);
    snprintf(rest, sizeof rest, "%s", at + strcspn(at, "\n"));
    snprintf(at, bytes - (size_t)(at - text), "%s/%s%s", dir, name, rest);
}

static pid_t start_tunnel(const char *dir, const char *marker, const char *accepts, const char *connects) {
    char text[1024], path[128];
    read_block(marker, text, sizeof text);
    put_path(text, sizeof text, "accept = ", dir, accepts);
    put_path(text, sizeof text, "connect = ", dir, connects);
    put_path(text, sizeof text, "PSKsecrets = ", dir, "psk");
    snprintf(path, sizeof path, "%s/%s.conf", dir, accepts);
    FILE *file = fopen(path, "w");
    if (!KVT_TRUE(file != NULL)) return 0;
    fprintf(file, "foreground = yes\npid =\nsyslog = no\noutput = %s/%s.log\n%s", dir, accepts, text);
    fclose(file);
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        dup2(null, 1);
        dup2(null, 2);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execlp("stunnel", "stunnel", path, (char *)NULL);
        _exit(127);
    }
    return pid;
}

static void end_tunnel(pid_t pid) {
    if (pid <= 0) return;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* COLD-5: through a TLS tunnel of the guide's configuration values go and come; without the key nobody comes in; when
 * the tunnel dies the engine is gone, and it is back with it. */
static void cold_5_tunnel(void) {
    struct redis server = { 0 };
    char path[128];
    KVT_NEED(redis_start(&server));
    snprintf(path, sizeof path, "%s/psk", server.dir);
    write_password(path, "kvd:000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f", 0600);
    pid_t far = start_tunnel(server.dir, "; the engine's end", "tls", "s"),
          near = start_tunnel(server.dir, "; kvd's end", "local", "tls");
    snprintf(path, sizeof path, "%s/local", server.dir);
    struct cold_engine_config config = config_at(path);
    KVT_NEED(start_engine(&config));
    if (!KVT_TRUE(redis_until(is_closed, NULL))) printf("    %s (Debian's package stunnel4)\n", state_of().why);
    check_many();
    end_tunnel(near);
    unlink(path);
    enum cold_outcome outcome = ask_key(COLD_TOUCH, "x");
    KVT_TRUE(outcome == COLD_FAILED || outcome == COLD_DROPPED);
    near = start_tunnel(server.dir, "; kvd's end", "local", "tls");
    KVT_TRUE(redis_until(is_closed, NULL));
    KVT_TRUE(redis_until(all_is_served, NULL));
    stop_engine();
    snprintf(config.address.path, sizeof config.address.path, "%s/tls", server.dir); /* in clear, without the key */
    config.connect_ns = SECOND;
    KVT_NEED(start_engine(&config) && KVT_TRUE(redis_until(is_open, NULL)));
    KVT_EQ(ask_key(COLD_TOUCH, "k:{1}"), COLD_DROPPED);
    stop_engine();
    end_tunnel(near);
    end_tunnel(far);
    redis_free(&server);
}

/* ---- a server that answers nonsense ---- */

struct nonsense {
    int fd;
    char dir[64], socket[96];
    pthread_t thread;
    const char *answer; /* to what is neither CLUSTER nor PING */
    bool endless, hangs_up;
};

static void answer_one(const struct nonsense *n, int fd) {
    char text[4096];
    ssize_t got;
    while ((got = recv(fd, text, sizeof text - 1, 0)) > 0) {
        text[got] = '\0';
        const char *answer = strstr(text, "CLUSTER") ? "-ERR no cluster\r\n"
                             : strstr(text, "PING")  ? "+PONG\r\n"
                                                     : n->answer;
        bool sent = send(fd, answer, strlen(answer), MSG_NOSIGNAL) >= 0;
        if (answer != n->answer) continue;
        while (sent && n->endless) sent = send(fd, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 32, MSG_NOSIGNAL) > 0;
        if (n->hangs_up || n->endless) break;
    }
}

struct nonsense_peer {
    const struct nonsense *n;
    int fd;
};

static void *serve_peer(void *argument) {
    struct nonsense_peer *peer = argument;
    answer_one(peer->n, peer->fd);
    close(peer->fd);
    free(peer);
    return NULL;
}

/* Until its socket is shut down; each peer ends with the engine. */
static void *serve_nonsense(void *argument) {
    struct nonsense *n = argument;
    pthread_t thread[64];
    uint32_t threads = 0;
    int fd;
    while (threads < 64 && (fd = accept(n->fd, NULL, NULL)) >= 0) {
        struct nonsense_peer *peer = malloc(sizeof *peer);
        *peer = (struct nonsense_peer){ n, fd };
        threads += !pthread_create(&thread[threads], NULL, serve_peer, peer);
    }
    for (uint32_t i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    return NULL;
}

static bool nonsense_start(struct nonsense *n) {
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    snprintf(n->dir, sizeof n->dir, "/tmp/kvd-nonsense-XXXXXX");
    if (!KVT_TRUE(mkdtemp(n->dir) != NULL)) return false;
    snprintf(n->socket, sizeof n->socket, "%s/s", n->dir);
    snprintf(at.sun_path, sizeof at.sun_path, "%s", n->socket);
    n->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return KVT_OK(bind(n->fd, (struct sockaddr *)&at, sizeof at)) && KVT_OK(listen(n->fd, 16)) &&
           KVT_OK(pthread_create(&n->thread, NULL, serve_nonsense, n));
}

static void nonsense_free(struct nonsense *n) {
    shutdown(n->fd, SHUT_RDWR);
    pthread_join(n->thread, NULL);
    close(n->fd);
    unlink(n->socket);
    rmdir(n->dir);
}

/* One operation that fails, whatever comes. With `waits` its deadline ends it, before or after it was sent. */
static void fail_one(bool waits) {
    uint8_t into[64];
    struct cold_op op = make_op(COLD_GET, "k");
    op.into = into;
    op.into_bytes = sizeof into;
    if (waits) op.deadline_ns = clock_ns() + SECOND / 10;
    enum cold_outcome outcome = run_one(&op);
    KVT_TRUE(outcome == COLD_FAILED || (waits && outcome == COLD_DROPPED));
    KVT_EQ(op.got, 0);
}

static bool trips_at_last(void *waits) {
    fail_one(*(bool *)waits);
    return state_of().trips > 0;
}

/* COLD-2, COLD-5: whatever comes, an operation ends by its deadline and brings nothing that is no value. */
static void check_nonsense(const struct nonsense *what, bool waits) {
    struct nonsense n = *what;
    KVT_NEED(nonsense_start(&n));
    struct cold_engine_config config = config_at(n.socket);
    config.lanes = 1;
    config.retry_ns = config.retry_most_ns = LONG; /* once it has tripped it stays so */
    KVT_NEED(start_engine(&config) && KVT_TRUE(redis_until(is_closed, NULL)));
    KVT_TRUE(redis_until(trips_at_last, &waits));
    KVT_TRUE(*state_of().why);
    stop_engine();
    nonsense_free(&n);
}

static void cold_2_nonsense(void) {
    static const struct nonsense all[] = {
        { .answer = "what?\r\n" },
        { .answer = "*1000000000\r\n" },
        { .answer = "*2147483647\r\n" },
        { .answer = "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n" },
        { .answer = ":7\r\n" },
        { .answer = "*1\r\n:1\r\n" },
        { .answer = "$-7\r\n" },
        { .answer = "$5\r\nab", .hangs_up = true },
        { .answer = "", .hangs_up = true },
        { .answer = "$9000000000\r\n", .endless = true },
        { .answer = "$1000000\r\n", .endless = true },
        { .answer = "+", .endless = true },
        { .answer = "*4096\r\n", .endless = true },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) check_nonsense(&all[i], false);
}

static void cold_2_silence(void) {
    static const struct nonsense all[] = { { .answer = "" }, { .answer = "$5\r\nab" }, { .answer = "*3\r\n:1\r\n" } };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) check_nonsense(&all[i], true);
}

/* Nobody waits for an engine at the end: a stop ends what is under way long before its deadline. */
static void *stop_soon(void *unused) {
    cold_engine_stop(engine);
    return unused;
}

static void cold_2_stop_waits_for_nobody(void) {
    struct nonsense n = { .answer = "" };
    pthread_t stopper;
    KVT_NEED(nonsense_start(&n));
    struct cold_engine_config config = config_at(n.socket);
    KVT_NEED(start_engine(&config) && KVT_TRUE(redis_until(is_closed, NULL)));
    KVT_OK(pthread_create(&stopper, NULL, stop_soon, NULL));
    enum cold_outcome outcome = ask_key(COLD_GET, "k"); /* would wait for LONG */
    KVT_TRUE(outcome == COLD_FAILED || outcome == COLD_DROPPED);
    pthread_join(stopper, NULL);
    KVT_EQ(ask_key(COLD_GET, "k"), COLD_DROPPED);
    stop_engine();
    nonsense_free(&n);
}

/* ---- a cluster ---- */

static struct redis_cluster cluster;

static void start_on_cluster(void) {
    struct cold_engine_config config = config_at("");
    config.address.kind = LISTEN_TCP4;
    config.address.port = cluster.node[1].port;
    snprintf(config.address.path, sizeof config.address.path, "127.0.0.1");
    if (start_engine(&config)) KVT_TRUE(redis_until(is_closed, NULL));
}

/* Keys of all slots find their node, when a slot has moved, and in the middle of a migration (ASK). */
static void move_a_slot(void) {
    const char *key = "{moving}old";
    uint32_t slot = cold_slot_of(key, strlen(key)), owner = slot < 5000 ? 0 : slot < 10000 ? 1 : 2;
    uint32_t target = (owner + 1) % REDIS_MASTERS;
    KVT_EQ(set_key(key, "before", 6), COLD_DONE);
    redis_must(redis_ask(&cluster.node[target], "CLUSTER SETSLOT %d IMPORTING %s", (int)slot, cluster.id[owner]));
    redis_must(redis_ask(&cluster.node[owner], "CLUSTER SETSLOT %d MIGRATING %s", (int)slot, cluster.id[target]));
    KVT_EQ(ask_key(COLD_GET, key), COLD_DONE);
    KVT_EQ(set_key("{moving}new", "x", 1), COLD_DONE); /* the owner has it not: ASK */
    KVT_EQ(redis_number(&cluster.node[target], "CLUSTER COUNTKEYSINSLOT %d", (int)slot), 1);
    KVT_EQ(ask_key(COLD_GET, "{moving}new"), COLD_DONE);
    redis_must(redis_ask(&cluster.node[owner], "MIGRATE 127.0.0.1 %d %s 0 5000", (int)cluster.node[target].port, key));
    KVT_EQ(ask_key(COLD_GET, key), COLD_DONE); /* ASK */
    for (uint32_t i = 0; i < REDIS_MASTERS; i++) {
        uint32_t k = (target + i) % REDIS_MASTERS; /* the new owner first */
        redis_must(redis_ask(&cluster.node[k], "CLUSTER SETSLOT %d NODE %s", (int)slot, cluster.id[target]));
    }
    KVT_EQ(ask_key(COLD_GET, key), COLD_DONE); /* MOVED */
    KVT_EQ(ask_key(COLD_GET, "{moving}new"), COLD_DONE);
    KVT_EQ(state_of().trips, 0);
}

/* COLD-5: the configured node dies, which is a master. Meanwhile every operation has an outcome; then its replica is
 * the master, has what was written, and takes more. */
static void fail_over(void) {
    const char *key = "{12}failing";
    uint32_t slot = cold_slot_of(key, strlen(key));
    KVT_TRUE(slot >= 5000 && slot < 10000); /* of node 1 */
    KVT_EQ(set_key(key, "before", 6), COLD_DONE);
    KVT_TRUE(redis_until(redis_cluster_is_replicated, &cluster));
    redis_cluster_set_patience(&cluster, 1000);
    redis_kill(&cluster.node[1]);
    KVT_TRUE(redis_until(all_is_served, NULL));
    redis_cluster_set_patience(&cluster, 60000); /* no other one */
    KVT_TRUE(redis_until(is_closed, NULL));
    KVT_EQ(ask_key(COLD_GET, key), COLD_DONE);
    KVT_EQ(redis_number(&cluster.node[1 + REDIS_MASTERS], "EXISTS %s", key), 1);
    KVT_EQ(set_key("{12}after", "x", 1), COLD_DONE);
    KVT_EQ(ask_key(COLD_GET, "{12}after"), COLD_DONE);
    check_many();
}

/* One cluster for all of it: three masters, each with a replica. */
static void cold_5_cluster(void) {
    KVT_NEED(redis_cluster_start(&cluster));
    start_on_cluster();
    check_many();
    KVT_TRUE(state_of().clustered);
    move_a_slot();
    fail_over();
    stop_engine();
    redis_cluster_free(&cluster);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(slots_are_those_of_the_protocol),
                                             KVT_CASE(redirects_are_read),
                                             KVT_CASE(cold_5_breaker),
                                             KVT_CASE(values_come_back),
                                             KVT_CASE(a_key_of_another_type_is_refused),
                                             KVT_CASE(many_at_once),
                                             KVT_CASE(cold_5_password),
                                             KVT_CASE(cold_5_rights),
                                             KVT_CASE(cold_5_full),
                                             KVT_CASE(cold_5_evictions),
                                             KVT_CASE(cold_5_killed_and_back),
                                             KVT_CASE(cold_2_ten_thousand_lost_writes),
                                             KVT_CASE(cold_5_stopped_and_back),
                                             KVT_CASE(idle_connections_are_opened_again),
                                             KVT_CASE(cold_5_tunnel),
                                             KVT_CASE(cold_2_nonsense),
                                             KVT_CASE(cold_2_silence),
                                             KVT_CASE(cold_2_stop_waits_for_nobody),
                                             KVT_CASE(cold_5_cluster),
                                             { 0 } };
    return kvt_main("cold_engine", cases, argc, argv);
}
