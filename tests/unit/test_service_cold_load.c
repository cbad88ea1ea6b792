/* SPDX-License-Identifier: Apache-2.0
 *
 * What kvd reads from the cold tier: services, one after the other or two at once, over a real redis-server. COLD-1 to
 * COLD-6.
 */
#include <signal.h>
#include <sodium.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "clock.h"
#include "cold_reader.h"
#include "cold_tier.h"
#include "core.h"
#include "pending.h"
#include "redis.h"
#include "service_fixture.h"

#define REQUEST(t, ...)                                                                                                \
    &(struct msg_request) { .type = (t), __VA_ARGS__ }
#define HEADS 2u
#define TAIL 10u
#define NEAR                                                                                                           \
    "[pool.near]\ngroups = near\nwindow = 100\nshare = 1000\n[group.near]\nlayers = 1\nkv_heads = 2\nhead_dim = 64\n"
#define SECOND UINT64_C(1000000000)

static struct fx fx;
static struct msg_reply r;
static struct redis server;
static struct fx_peer *s;
static kvd_digest digests[40];

/* ---- service ---- */

static bool start_service(struct fx_setup setup, const char *cold) {
    static char text[1024];
    snprintf(text, sizeof text,
             "%s\n[host]\narena = 4MiB\nscrub = 0\n[cold]\naddress = unix:%s\ntimeout = 20s\nfind_time = 20s\n%s\n",
             setup.more ? setup.more : "", server.socket, cold);
    setup.more = text;
    setup.capacity_tokens = 64 * 64;
    if (!fx_start(&fx, &setup)) return false;
    s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    return true;
}

static void stop_service(void) {
    fx_peer_free(s);
    fx_stop(&fx);
}

static struct cold_reads reads(void) {
    struct cold_reads reads;
    cold_reader_stats(fx.service, &reads);
    return reads;
}

static bool is_up(void *unused) {
    struct cold_stats stats;
    (void)unused;
    pthread_mutex_lock(&fx.service->lock);
    cold_tier_stats(fx.service, &stats);
    pthread_mutex_unlock(&fx.service->lock);
    struct cold_reads now = reads();
    return (!stats.on || stats.engine.breaker == COLD_CLOSED) && now.finder.breaker == COLD_CLOSED &&
           now.loader.breaker == COLD_CLOSED;
}

static bool start_up(struct fx_setup setup, const char *cold) {
    return start_service(setup, cold) && KVT_TRUE(redis_until(is_up, NULL));
}

static bool has_written(void *continuations) {
    struct cold_stats stats;
    pthread_mutex_lock(&fx.service->lock);
    cold_tier_stats(fx.service, &stats);
    pthread_mutex_unlock(&fx.service->lock);
    return stats.continuations == *(uint64_t *)continuations;
}

/* The answer may come from another thread, and late on a busy machine. */
static uint32_t take_reply(struct fx_peer *p, uint16_t type) {
    uint64_t end = clock_ns() + 60 * SECOND;
    while (!p->n && clock_ns() < end) fx_settle(&fx, p);
    return KVT_TRUE(p->n > 0) && fx_reply(p, type, &r) ? r.status : UINT32_MAX;
}

static uint32_t ask(struct fx_peer *p, struct msg_request *q) {
    const struct frame_info *info = frame_info(q->type);
    q->header.session = p->session;
    if (info->numbering >= FRAME_CHANGE && !q->header.sequence) q->header.sequence = ++p->sequence;
    fx_send(p, q);
    return take_reply(p, q->type);
}

/* ---- content: a byte for each place, whichever rank has it ---- */

static uint8_t byte_at(uint32_t salt, uint32_t pool, uint32_t plane, uint32_t head, uint64_t k) {
    return (uint8_t)(salt * 31 + pool * 101 + plane * 53 + head * 17 + k + k / 256 + 1);
}

/* Bytes that are not those of this page; fill: after they were written. */
static uint64_t touch_page(uint32_t pool, uint32_t id, uint32_t salt, uint32_t columns, bool fill) {
    const struct geom_pool_spec *spec = geom_pool_at(&fx.service->plan.spec, pool);
    uint32_t slots = geom_plane_count(spec) / spec->n_layers;
    uint64_t wrong = 0;
    for (uint32_t rank = 0; rank < spec->n_ranks; rank++) {
        uint8_t *base = (uint8_t *)(uintptr_t)service_info(fx.service)->pool[pool].planes[rank].local_address;
        for (uint32_t i = 0; i < geom_plane_count(spec); i++) {
            struct geom_plane q;
            KVT_OK(geom_plane(spec, service_info(fx.service)->pool[pool].pages, rank, i / slots,
                              (enum geom_slot)(i % slots), &q, NULL, 0));
            for (uint32_t h = 0; h < q.n_heads; h++)
                for (uint64_t k = 0; k < columns * q.nb1; k++) {
                    uint8_t *at = &base[q.offset + id * q.nb3 + h * q.nb2 + k];
                    uint8_t want = byte_at(salt, pool, i, rank * q.n_heads + h, k);
                    if (fill) *at = want;
                    wrong += *at != want;
                }
        }
    }
    return wrong;
}

static const int32_t *row_of(uint32_t pool, uint32_t index) {
    return (const int32_t *)(uintptr_t)service_info(fx.service)->pool[pool].table[0].local_address + (size_t)index * 64;
}

static struct kvd_tail some_tail(uint32_t n) {
    struct kvd_tail tail = { .n = n };
    for (uint32_t i = 0; i < n; i++) tail.tokens[i] = 7 * i;
    return tail;
}

static void name_pages(uint32_t first) {
    memset(digests, 0, sizeof digests);
    for (uint32_t i = 0; i < 40; i++) digests[i].bytes[0] = (uint8_t)(first + i), digests[i].bytes[1] = 1;
}

/* Pages with salts first, first + 1, ..., and a tail; named, kept, demoted, written. */
static void write_prompt(uint32_t pages, bool tail, uint32_t first) {
    struct kvd_activated a = { 0 };
    struct kvd_finish finish = { .retain = true, .tail = some_tail(tail ? TAIL : 0) };
    uint32_t tokens = pages * 64 + (tail ? TAIL : 0);
    struct kvd_round_item item;
    name_pages(first);
    KVT_EQ(fx_activate(s, s->session, tokens, 1, &a), KVD_OK);
    KVT_EQ(fx_round(s, a.sequence, KVD_UNCHANGED, tokens, NULL), KVD_OK);
    for (uint32_t p = 0; p < store_n_pools(fx.service->store); p++)
        for (uint32_t i = 0; i < pages + tail; i++)
            touch_page(p, (uint32_t)row_of(p, a.pool[p].row)[i], first + i, 64, true);
    KVT_EQ(fx_round(s, a.sequence, tokens, KVD_UNCHANGED, NULL), KVD_OK);
    if (fx.service->config.state_bytes) {
        memset(&item, 0, sizeof item);
        item.sequence = a.sequence;
        item.ask = KVD_ROUND_STATE;
        item.state_frontier = tokens;
        KVT_EQ(ask(s, REQUEST(FRAME_ROUND, .u.round = { 1, &item })), KVD_OK);
    }
    KVT_EQ(ask(s, REQUEST(FRAME_NAME_PAGES, .u.names = { a.sequence, 0, pages, digests })), KVD_OK);
    finish.sequence = a.sequence;
    KVT_EQ(ask(s, REQUEST(FRAME_FINISH, .u.finish = finish)), KVD_OK);
    KVT_EQ(ask(s, REQUEST(FRAME_DEMOTE, .u.demote = { .continuation = r.u.finished.continuation })), KVD_OK);
    KVT_TRUE(redis_until(has_written, &(uint64_t){ 1 }));
}

/* One kvd computes it, and goes with its arena; another one stands there then. cold: lines of [cold] of both; "": that
 * one only reads. */
static bool move_to_another(struct fx_setup first, struct fx_setup second, const char *cold, uint32_t pages, bool tail,
                            uint32_t salt) {
    server = (struct redis){ 0 };
    if (!redis_start(&server) || !start_up(first, cold)) return KVT_TRUE(false);
    write_prompt(pages, tail, salt);
    stop_service();
    return start_up(second, *cold ? cold : "write = off");
}

static void end(void) {
    stop_service();
    redis_free(&server);
}

/* ---- questions ---- */

static struct kvd_cold_want prompt(uint32_t pages, bool tail) {
    return (struct kvd_cold_want){
        .root.digest = fx_domain, .n = pages, .digests = digests, .tail = some_tail(tail ? TAIL : 0), .retention = 3
    };
}

static uint32_t find(uint32_t pages, bool tail) {
    KVT_EQ(ask(s, REQUEST(FRAME_FIND_COLD, .u.cold = prompt(pages, tail))), KVD_OK);
    KVT_EQ(r.u.cold.continuation.bits, 0);
    return r.u.cold.frontier;
}

static uint32_t load(uint32_t pages, bool tail) {
    KVT_EQ(ask(s, REQUEST(FRAME_LOAD_COLD, .u.cold = prompt(pages, tail))), KVD_OK);
    KVT_EQ(r.u.cold.continuation.bits != 0, r.u.cold.frontier != 0);
    KVT_EQ(fx_audit(&fx), 0);
    return r.u.cold.frontier;
}

static void check_rows(const struct kvd_activated *a, uint32_t frontier, uint32_t salt) {
    for (uint32_t p = 0; p < store_n_pools(fx.service->store); p++)
        for (uint32_t i = store_first_block(fx.service->store, p, frontier); i * 64 < frontier; i++)
            KVT_EQ(touch_page(p, (uint32_t)row_of(p, a->pool[p].row)[i], salt + i,
                              frontier - i * 64 < 64 ? frontier - i * 64 : 64, false),
                   0);
}

/* Activates what was loaded and compares every byte on the device. */
static void check_content(kvd_continuation from, uint32_t frontier, uint32_t salt) {
    struct kvd_activation want = { .root.digest = fx_domain,
                                   .from = from,
                                   .keep = true,
                                   .frontier = frontier,
                                   .worker = s->session,
                                   .prompt_tokens = frontier + 5,
                                   .max_output_tokens = 2 };
    KVT_NEED(ask(s, REQUEST(FRAME_ACTIVATE, .u.activation = want)) == KVD_OK);
    struct kvd_activated a = r.u.activated;
    check_rows(&a, frontier, salt);
    KVT_EQ(fx_finish(s, a.sequence), KVD_OK);
}

static void object_key(uint32_t pool, uint32_t shard, uint32_t page, char key[COLD_KEY_BYTES]) {
    struct cold_name name = { .kind = COLD_PAGE, .pool = pool, .shard = shard, .columns = 64 };
    struct cold_layout layout;
    cold_layout_of(&fx.service->plan.spec, store_n_pools(fx.service->store), NULL, &layout);
    memcpy(name.layout, layout.pages, sizeof name.layout);
    memcpy(name.digest, digests[page].bytes, sizeof name.digest);
    cold_key_of(&name, key);
}

/* ---- cases ---- */

/* COLD-6: what one kvd computed with two ranks another one with one rank serves, byte for byte, in all pools; twice is
 * once. */
static void cold_6_another_kvd_serves_it(void) {
    struct fx_setup first = { .backend = "mtp", .ranks = 2 }, second = { .backend = "mtp" };
    KVT_NEED(move_to_another(first, second, "", 5, true, 40));
    KVT_EQ(find(5, true), 5 * 64 + TAIL);
    uint64_t cost = r.u.cold.bytes;
    KVT_EQ(find(7, true), 5 * 64); /* another tail, behind other pages */
    KVT_EQ(load(5, true), 5 * 64 + TAIL);
    KVT_EQ(r.u.cold.bytes, cost);
    KVT_EQ(reads().loaded_bytes, cost);
    KVT_EQ(reads().loaded_objects, 2 * 6 * HEADS);
    kvd_continuation c = r.u.cold.continuation;
    struct kvd_continuation_info info;
    struct store_refusal refusal;
    KVT_OK(store_cont_look(fx.service->store, store_cont_of(c), &info, &refusal));
    KVT_TRUE(info.demoted && info.tail_named && info.retention == 3);
    check_content(c, 5 * 64 + TAIL, 40);
    KVT_EQ(load(5, true), 5 * 64 + TAIL);
    KVT_EQ(r.u.cold.continuation.bits, c.bits);
    struct msg_request again = { .type = FRAME_LOAD_COLD, .header.sequence = s->sequence, .u.cold = prompt(5, true) };
    uint64_t loads = reads().loads;
    KVT_EQ(ask(s, &again), KVD_OK); /* the same message */
    KVT_EQ(r.u.cold.continuation.bits, c.bits);
    KVT_EQ(reads().loads, loads);
    end();
}

/* What is there already is shared: only what follows comes. */
static void what_is_there_is_shared(void) {
    KVT_NEED(move_to_another((struct fx_setup){ 0 }, (struct fx_setup){ 0 }, "", 12, false, 60));
    KVT_EQ(load(4, false), 256);
    kvd_continuation c = r.u.cold.continuation;
    struct kvd_cold_want want = prompt(8, false);
    want.first = 4;
    want.digests = digests + 4;
    KVT_EQ(ask(s, REQUEST(FRAME_FIND_COLD, .u.cold = want)), KVD_OK);
    KVT_EQ(r.u.cold.frontier, 768);
    want.from = c;
    KVT_EQ(ask(s, REQUEST(FRAME_LOAD_COLD, .u.cold = want)), KVD_OK);
    KVT_EQ(r.u.cold.frontier, 768);
    KVT_EQ(reads().loaded_objects, 12 * HEADS);
    check_content(r.u.cold.continuation, 768, 60);
    want.from.bits += UINT64_C(1) << 32;
    KVT_EQ(ask(s, REQUEST(FRAME_LOAD_COLD, .u.cold = want)), KVD_NOT_FOUND);
    end();
}

/* CONT-2, CONT-4, GRP-4: a continuation is found behind any token of the tail that is asked for, the longest of these,
 * with its image, its window. Where the pages end before, the answer says where to ask for it. */
static void find_within_a_page(struct fx_setup setup, bool page_too) {
    struct kvd_cold_want want = prompt(3, false);
    KVT_NEED(move_to_another(setup, setup, "", 3, true, 50));
    want.tail = some_tail(TAIL + 20);
    KVT_EQ(ask(s, REQUEST(FRAME_FIND_COLD, .u.cold = want)), KVD_OK);
    KVT_EQ(r.u.cold.frontier, 3 * 64 + TAIL);
    KVT_EQ(r.u.cold.pages, 3);
    uint64_t cost = r.u.cold.bytes;
    want.tail.tokens[TAIL - 1]++;
    KVT_EQ(ask(s, REQUEST(FRAME_FIND_COLD, .u.cold = want)), KVD_OK);
    KVT_EQ(r.u.cold.frontier, page_too ? 3 * 64 : 0);
    want = prompt(7, true);
    KVT_EQ(ask(s, REQUEST(FRAME_LOAD_COLD, .u.cold = want)), KVD_OK);
    KVT_EQ(r.u.cold.frontier, page_too ? 3 * 64 : 0);
    KVT_EQ(r.u.cold.pages, 3);
    want = prompt(3, false);
    want.tail = some_tail(63);
    KVT_EQ(ask(s, REQUEST(FRAME_LOAD_COLD, .u.cold = want)), KVD_OK);
    KVT_EQ(r.u.cold.frontier, 3 * 64 + TAIL);
    KVT_EQ(r.u.cold.bytes, cost);
    KVT_EQ(fx_audit(&fx), 0);
    check_content(r.u.cold.continuation, 3 * 64 + TAIL, 50);
    end();
}

static void cont_2_within_a_page(void) {
    find_within_a_page((struct fx_setup){ 0 }, true);
    find_within_a_page((struct fx_setup){ .more = "[capacity]\nstate_bytes = 1000\n" }, false);
    find_within_a_page((struct fx_setup){ .more = NEAR }, true);
}

/* Behind page 0 there may be a tail alone; and what was loaded up to there is shared. */
static void cont_2_within_the_page_behind_what_came(void) {
    struct kvd_cold_want want = prompt(0, false);
    KVT_NEED(move_to_another((struct fx_setup){ 0 }, (struct fx_setup){ 0 }, "", 3, true, 50));
    want.tail = some_tail(63);
    KVT_EQ(ask(s, REQUEST(FRAME_LOAD_COLD, .u.cold = want)), KVD_OK);
    KVT_EQ(r.u.cold.frontier, 0);
    KVT_EQ(load(7, false), 3 * 64);
    want.from = r.u.cold.continuation;
    want.first = 2;
    want.n = 1;
    want.digests = digests + 2;
    KVT_EQ(ask(s, REQUEST(FRAME_LOAD_COLD, .u.cold = want)), KVD_OK);
    KVT_EQ(r.u.cold.frontier, 3 * 64 + TAIL);
    KVT_EQ(reads().loaded_objects, (3 + 2) * HEADS);
    check_content(r.u.cold.continuation, 3 * 64 + TAIL, 50);
    end();
}

static void flip_bit(const char *key) {
    redisReply *reply = redis_ask(&server, "GET %s", key);
    KVT_NEED(reply && reply->type == REDIS_REPLY_STRING);
    reply->str[reply->len / 2] = (char)(reply->str[reply->len / 2] ^ 4);
    freeReplyObject(redis_ask(&server, "SET %s %b", key, reply->str, reply->len));
    freeReplyObject(reply);
}

/* COLD-3: what is not what was asked for ends what is served, is deleted there, and is counted. */
static void cold_3_wrong_values(void) {
    char key[COLD_KEY_BYTES], other[COLD_KEY_BYTES];
    KVT_NEED(move_to_another((struct fx_setup){ 0 }, (struct fx_setup){ 0 }, "", 8, false, 80));
    object_key(0, 1, 6, key);
    flip_bit(key);
    KVT_EQ(load(8, false), 6 * 64);
    check_content(r.u.cold.continuation, 6 * 64, 80);
    KVT_EQ(reads().wrong[COLD_FAULT_CHECKSUM], 1);
    KVT_EQ(redis_number(&server, "EXISTS %s", key), 0);
    object_key(0, 0, 5, key);
    object_key(0, 0, 4, other); /* another page's value under its name */
    redisReply *reply = redis_ask(&server, "GET %s", other);
    KVT_NEED(reply && reply->type == REDIS_REPLY_STRING);
    freeReplyObject(redis_ask(&server, "SET %s %b", key, reply->str, reply->len));
    freeReplyObject(reply);
    KVT_EQ(load(8, false), 5 * 64);
    KVT_EQ(reads().wrong[COLD_FAULT_DIGEST], 1);
    object_key(0, 0, 3, key);
    freeReplyObject(redis_ask(&server, "APPEND %s x", key)); /* longer than it may be */
    KVT_EQ(load(8, false), 3 * 64);
    KVT_EQ(reads().wrong[COLD_FAULT_LENGTH], 1);
    object_key(0, 0, 0, key);
    freeReplyObject(redis_ask(&server, "SET %s short", key));
    KVT_EQ(load(8, false), 0);
    KVT_EQ(reads().wrong[COLD_FAULT_SHORT], 1);
    KVT_EQ(redis_number(&server, "EXISTS %s", key), 0);
    end();
}

/* COLD-2: whatever is missing only shortens. */
static void cold_2_missing_pages(void) {
    char key[COLD_KEY_BYTES];
    KVT_NEED(move_to_another((struct fx_setup){ 0 }, (struct fx_setup){ 0 }, "", 10, false, 100));
    for (uint32_t i = 5; i < 10; i += 2) {
        object_key(0, 0, i, key);
        KVT_EQ(redis_number(&server, "DEL %s", key), 1);
    }
    KVT_EQ(find(10, false), 5 * 64);
    object_key(0, 1, 3, key); /* what is found is one of a page's objects */
    KVT_EQ(redis_number(&server, "DEL %s", key), 1);
    KVT_EQ(load(10, false), 3 * 64);
    check_content(r.u.cold.continuation, 3 * 64, 100);
    freeReplyObject(redis_ask(&server, "FLUSHALL"));
    KVT_EQ(load(10, false), 0);
    KVT_EQ(find(10, false), 0);
    uint64_t remembered = reads().remembered, asked = reads().finder.ops[COLD_TOUCH][COLD_ABSENT];
    uint64_t begin = clock_ns();
    KVT_EQ(find(10, false), 0);
    if (clock_ns() - begin < SECOND / 2) { /* a moment has not passed */
        KVT_EQ(reads().remembered, remembered + 1);
        KVT_EQ(reads().finder.ops[COLD_TOUCH][COLD_ABSENT], asked);
    }
    end();
}

/* CONT-4: with state images a continuation comes with its image, at the frontier that has one. */
static void cont_4_images(void) {
    struct fx_setup setup = { .more = "[capacity]\nstate_bytes = 1000\n" };
    KVT_NEED(move_to_another(setup, setup, "", 3, true, 120));
    KVT_EQ(find(3, false), 0);
    KVT_EQ(find(3, true), 3 * 64 + TAIL);
    KVT_EQ(load(3, true), 3 * 64 + TAIL);
    KVT_EQ(fx_stats(s).host_images, 1);
    check_content(r.u.cold.continuation, 3 * 64 + TAIL, 120);
    KVT_EQ(load(2, false), 0);
    end();
}

/* A key decides what objects are called, and signs them. */
static void with_a_secret(void) {
    char path[128], cold[192];
    static const char hex[] = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";
    snprintf(path, sizeof path, "/tmp/kvd-test-secret-%d", (int)getpid());
    FILE *f = fopen(path, "w");
    KVT_NEED(f != NULL);
    KVT_TRUE(fputs(hex, f) >= 0);
    KVT_EQ(fclose(f), 0);
    KVT_EQ(chmod(path, 0600), 0);
    snprintf(cold, sizeof cold, "secret_file = %s", path);
    KVT_NEED(move_to_another((struct fx_setup){ 0 }, (struct fx_setup){ 0 }, cold, 2, false, 7));
    KVT_EQ(load(2, false), 128);
    check_content(r.u.cold.continuation, 128, 7);
    stop_service();
    KVT_NEED(start_up((struct fx_setup){ 0 }, ""));
    KVT_EQ(find(2, false), 0);
    KVT_EQ(unlink(path), 0);
    end();
}

/* COLD-2: an engine that hangs holds up nobody who does not ask for it, neither who looks while another loads, nor the
 * end. */
static void cold_2_a_hanging_engine_holds_up_nobody(void) {
    KVT_NEED(move_to_another((struct fx_setup){ 0 }, (struct fx_setup){ 0 }, "", 4, false, 20));
    struct fx_peer *other = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    redis_stop(&server);
    struct msg_request q = { .type = FRAME_LOAD_COLD, .u.cold = prompt(4, false) };
    q.header.session = s->session;
    q.header.sequence = ++s->sequence;
    fx_send(s, &q);
    uint64_t begin = clock_ns();
    struct kvd_activated a;
    KVT_EQ(fx_activate(other, other->session, 100, 1, &a), KVD_OK);
    KVT_EQ(fx_finish(other, a.sequence), KVD_OK);
    KVT_EQ(s->n, 0);
    KVT_TRUE(clock_ns() - begin < 15 * SECOND);
    fx_peer_free(other);
    end(); /* its timeout was not waited for */
    KVT_TRUE(clock_ns() - begin < 18 * SECOND);
}

static bool is_idle(void *unused) {
    (void)unused;
    fx_settle(&fx, NULL);
    pthread_mutex_lock(&fx.service->lock);
    struct kvd_stats stats;
    store_get_stats(fx.service->store, &stats);
    bool busy = false;
    for (uint32_t i = 0; i < fx.service->config.sessions * PENDING_SLOTS; i++) busy |= fx.service->ops[i].used;
    pthread_mutex_unlock(&fx.service->lock);
    return !busy && stats.host_occupied == 0 && reads().loads == 1;
}

/* Who asked dies while it loads: nothing is kept, and the next one is served. */
static void a_client_dies_in_the_middle(void) {
    KVT_NEED(move_to_another((struct fx_setup){ 0 }, (struct fx_setup){ 0 }, "", 4, false, 20));
    redis_stop(&server);
    struct msg_request q = { .type = FRAME_LOAD_COLD, .u.cold = prompt(4, false) };
    q.header.session = s->session;
    q.header.sequence = ++s->sequence;
    fx_send(s, &q);
    fx_kill(s);
    fx_peer_free(s);
    kill(server.pid, SIGCONT);
    KVT_TRUE(redis_until(is_idle, NULL));
    s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    KVT_TRUE(redis_until(is_up, NULL));
    KVT_EQ(load(4, false), 256);
    check_content(r.u.cold.continuation, 256, 20);
    end();
}

/* COLD-5: killed and back. */
static void cold_5_the_engine_goes_and_comes(void) {
    server =
        (struct redis){ .options = (const char *const[]){ "--appendonly", "yes", "--appendfsync", "always", NULL } };
    KVT_NEED(redis_start(&server));
    KVT_NEED(start_up((struct fx_setup){ 0 }, ""));
    write_prompt(3, false, 33);
    stop_service();
    KVT_NEED(start_up((struct fx_setup){ 0 }, ""));
    redis_kill(&server);
    KVT_EQ(load(3, false), 0);
    KVT_EQ(find(3, false), 0);
    KVT_NEED(redis_start(&server));
    /* A lane notices a broken connection by its next question. */
    for (uint64_t until = clock_ns() + 60 * SECOND; load(3, false) == 0 && clock_ns() < until;)
        (void)redis_until(is_up, NULL);
    KVT_EQ(r.u.cold.frontier, 192);
    check_content(r.u.cold.continuation, 192, 33);
    end();
}

/* SRV-2: an arena that is full refuses, in words, and all is as it was. */
static void a_full_arena_refuses(void) {
    KVT_NEED(move_to_another((struct fx_setup){ 0 }, (struct fx_setup){ 0 }, "", 30, false, 50));
    uint64_t page = store_get_config(fx.service->store)->host_stride[0];
    uint32_t loads = 0;
    for (; ask(s, REQUEST(FRAME_LOAD_COLD, .u.cold = prompt(30 - loads, false))) == KVD_OK; loads++)
        KVT_EQ(r.u.cold.frontier, (30 - loads) * 64);
    KVT_TRUE(loads > 0);
    KVT_EQ(r.status, KVD_RESOURCE_EXHAUSTED);
    KVT_HAS(r.message, "arena");
    KVT_TRUE(fx_stats(s).host_occupied > (4u << 20) - 31 * page);
    KVT_EQ(fx_audit(&fx), 0);
    end();
}

/* ---- an activation that loads first ---- */

static struct kvd_activation wanted(uint32_t pages, bool tail) {
    return (struct kvd_activation){
        .root.digest = fx_domain,
        .keep = true,
        .worker = s->session,
        .prompt_tokens = pages * 64 + TAIL + 5,
        .max_output_tokens = 2,
        .cold = { .n = pages, .digests = digests, .tail = some_tail(tail ? TAIL : 0), .retention = 3 }
    };
}

/* Tokens that it starts with; its bytes are right, and it ends. */
static uint32_t start(const struct kvd_activation *want, uint32_t salt) {
    if (!KVT_EQ(ask(s, REQUEST(FRAME_ACTIVATE, .u.activation = *want)), KVD_OK)) {
        printf("    %s\n", r.message);
        return UINT32_MAX;
    }
    struct kvd_activated a = r.u.activated;
    check_rows(&a, a.pool[0].committed, salt);
    KVT_EQ(fx_finish(s, a.sequence), KVD_OK);
    KVT_EQ(fx_audit(&fx), 0);
    return a.pool[0].committed;
}

/* One message: loaded, activated, byte for byte, counted once; the same message again is the same answer. */
static void an_activation_loads_first(void) {
    struct fx_setup first = { .backend = "mtp", .ranks = 2 }, second = { .backend = "mtp" };
    KVT_NEED(move_to_another(first, second, "", 5, true, 40));
    struct kvd_activation want = wanted(5, true);
    KVT_EQ(start(&want, 40), 5 * 64 + TAIL);
    KVT_EQ(reads().loads, 1);
    KVT_EQ(reads().loaded_tokens, 5 * 64 + TAIL);
    KVT_EQ(fx_stats(s).continuations, 1);
    struct msg_request again = {
        .type = FRAME_ACTIVATE, .header.sequence = s->sequence - 1, .u.activation = want /* before its Finish */
    };
    KVT_EQ(ask(s, &again), KVD_OK);
    KVT_EQ(r.u.activated.pool[0].committed, 5 * 64 + TAIL);
    KVT_EQ(reads().loads, 1);
    KVT_EQ(fx_stats(s).sequences, 0);
    end();
}

static kvd_continuation load_part(uint32_t pages) {
    KVT_EQ(load(pages, false), pages * 64);
    return r.u.cold.continuation;
}

/* COLD-2: what is there is shared, and is what remains where the engine has lost the rest. */
static void an_activation_is_shortened(void) {
    char key[COLD_KEY_BYTES];
    KVT_NEED(move_to_another((struct fx_setup){ 0 }, (struct fx_setup){ 0 }, "", 12, false, 60));
    struct kvd_activation want = wanted(12, false);
    want.from = load_part(4);
    want.frontier = 250; /* a part of its last page */
    want.cold.first = 3;
    want.cold.n = 9;
    want.cold.digests = digests + 3;
    object_key(0, 1, 9, key); /* the second of its page: the lookup does not see that it has gone */
    KVT_EQ(redis_number(&server, "DEL %s", key), 1);
    KVT_EQ(start(&want, 60), 9 * 64);
    KVT_EQ(reads().loaded_objects, (4 + 6) * HEADS);
    freeReplyObject(redis_ask(&server, "FLUSHALL"));
    KVT_EQ(start(&want, 60), 250);
    struct kvd_activation none = wanted(12, false);
    KVT_EQ(start(&none, 60), 0);
    end();
}

/* GRP-4, GRP-6: of a pool with a window what going on reads is written, found and loaded, and serves byte for byte.
 * Where a page of that is missing nothing is left. */
static void grp_4_windows(void) {
    struct fx_setup setup = { .more = NEAR };
    uint32_t frontier = 5 * 64 + TAIL;
    char key[COLD_KEY_BYTES];
    KVT_NEED(move_to_another(setup, setup, "", 5, true, 30));
    KVT_EQ(find(5, true), frontier);
    KVT_EQ(find(5, false), 5 * 64);
    KVT_EQ(find(4, false), 0); /* that needs page 2 of the window, which had left it */
    KVT_EQ(load(5, true), frontier);
    KVT_EQ(reads().loaded_objects, (6 + 3) * HEADS); /* the window begins at page 3 */
    check_content(r.u.cold.continuation, frontier, 30);
    KVT_EQ(ask(s, REQUEST(FRAME_RELEASE, .u.continuation = { .continuation = r.u.cold.continuation })), KVD_OK);
    struct kvd_activation want = wanted(5, true);
    KVT_EQ(start(&want, 30), frontier);
    object_key(1, 1, 4, key); /* the second of its page: the lookup does not see that it has gone */
    KVT_EQ(redis_number(&server, "DEL %s", key), 1);
    KVT_EQ(load(5, true), 0);
    KVT_EQ(fx_stats(s).continuations, 1);
    end();
}

static uint32_t fail_acquisition(uint32_t nth) {
    pthread_mutex_lock(&fx.service->lock);
    uint32_t acquired = store_fail_acquisition(fx.service->store, nth);
    pthread_mutex_unlock(&fx.service->lock);
    return acquired;
}

/* SRV-2: wherever a resource runs out, what is there is activated, or nothing has changed. */
static void an_activation_runs_out_in_the_middle(void) {
    KVT_NEED(move_to_another((struct fx_setup){ 0 }, (struct fx_setup){ 0 }, "", 6, false, 70));
    struct kvd_activation want = wanted(6, false);
    uint32_t n = 1, without = 0;
    for (bool all = false; !all && n < 200; n++) {
        struct kvd_stats before = fx_stats(s);
        (void)fail_acquisition(n);
        uint32_t status = ask(s, REQUEST(FRAME_ACTIVATE, .u.activation = want));
        all = fail_acquisition(0) < n;
        KVT_EQ(fx_audit(&fx), 0);
        if (status != KVD_OK) {
            KVT_EQ(status, KVD_RESOURCE_EXHAUSTED);
        } else {
            struct kvd_activated a = r.u.activated;
            without += a.pool[0].committed == 0;
            KVT_TRUE(a.pool[0].committed == 0 || a.pool[0].committed == 6 * 64);
            check_rows(&a, a.pool[0].committed, 70);
            KVT_EQ(fx_finish(s, a.sequence), KVD_OK);
        }
        struct kvd_stats after = fx_stats(s);
        KVT_EQ(after.sequences, before.sequences);
        KVT_TRUE(after.continuations == before.continuations || after.continuations == 1);
    }
    KVT_TRUE(n < 200 && without > 0);
    end();
}

static void send_activation(struct fx_peer *p, const struct kvd_activation *want) {
    struct msg_request q = { .type = FRAME_ACTIVATE, .u.activation = *want };
    q.header.session = p->session;
    q.header.sequence = ++p->sequence;
    fx_send(p, &q);
}

/* Who asked dies while it loads: nothing is activated or kept. */
static void its_client_dies_in_the_middle(void) {
    KVT_NEED(move_to_another((struct fx_setup){ 0 }, (struct fx_setup){ 0 }, "", 4, false, 20));
    struct kvd_activation want = wanted(4, false);
    redis_stop(&server);
    send_activation(s, &want);
    fx_kill(s);
    fx_peer_free(s);
    kill(server.pid, SIGCONT);
    KVT_TRUE(redis_until(is_idle, NULL));
    s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    KVT_EQ(fx_stats(s).sequences, 0);
    KVT_TRUE(redis_until(is_up, NULL));
    want.worker = s->session;
    KVT_EQ(start(&want, 20), 256);
    end();
}

/* ACT-9: cancelled while it loads; and its worker dies while it loads. Both leave nothing active. */
static void an_activation_is_cancelled_while_it_loads(void) {
    KVT_NEED(move_to_another((struct fx_setup){ 0 }, (struct fx_setup){ 0 }, "", 4, false, 20));
    struct fx_peer *worker = fx_session(&fx, KVD_ROLE_WORKER, 0), *other = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct kvd_activation want = wanted(4, false);
    redis_stop(&server);
    send_activation(s, &want);
    struct msg_request cancel = { .type = FRAME_CANCEL, .u.cancel.activate = s->sequence };
    KVT_EQ(ask(other, &cancel), KVD_NOT_FOUND); /* it is another session's */
    uint64_t number = s->sequence;
    struct msg_request own = { .type = FRAME_CANCEL, .u.cancel.activate = number };
    KVT_EQ(ask(s, &own), KVD_OK);
    want.worker = worker->session;
    send_activation(s, &want);
    fx_kill(worker);
    kill(server.pid, SIGCONT);
    KVT_EQ(take_reply(s, FRAME_ACTIVATE), KVD_CANCELLED);
    KVT_EQ(take_reply(s, FRAME_ACTIVATE), KVD_NOT_FOUND);
    KVT_EQ(ask(s, REQUEST(FRAME_CANCEL, .u.cancel.activate = number)), KVD_FAILED_PRECONDITION);
    KVT_EQ(fx_stats(s).sequences, 0);
    KVT_EQ(fx_audit(&fx), 0);
    fx_peer_free(worker);
    fx_peer_free(other);
    end();
}

/* A recipe counts at the revision of the time when it came, and its victims go with the activation. */
static void an_activation_that_loads_has_victims(void) {
    KVT_NEED(move_to_another((struct fx_setup){ 0 }, (struct fx_setup){ 0 }, "", 6, false, 90));
    struct kvd_activated a = { 0 };
    struct kvd_finish finish = { .retain = true, .tail = some_tail(TAIL) };
    KVT_EQ(fx_activate(s, s->session, TAIL, 1, &a), KVD_OK);
    KVT_EQ(fx_round(s, a.sequence, KVD_UNCHANGED, TAIL, NULL), KVD_OK);
    KVT_EQ(fx_round(s, a.sequence, TAIL, KVD_UNCHANGED, NULL), KVD_OK);
    finish.sequence = a.sequence;
    KVT_EQ(ask(s, REQUEST(FRAME_FINISH, .u.finish = finish)), KVD_OK);
    struct kvd_victim victim = { .continuation = r.u.finished.continuation };
    struct kvd_activation want = wanted(6, false);
    want.victims = &victim;
    want.n_victims = 1;
    want.revision = 1; /* long ago */
    KVT_EQ(ask(s, REQUEST(FRAME_ACTIVATE, .u.activation = want)), KVD_ABORTED);
    KVT_EQ(reads().loads, 0);
    want.revision = store_revision(fx.service->store);
    KVT_EQ(start(&want, 90), 6 * 64);
    KVT_EQ(fx_stats(s).continuations, 1); /* what was loaded; the victim has gone */
    KVT_EQ(ask(s, REQUEST(FRAME_ACTIVATE, .u.activation = want)), KVD_ABORTED);
    want.revision = 0;
    KVT_EQ(ask(s, REQUEST(FRAME_ACTIVATE, .u.activation = want)), KVD_NOT_FOUND);
    end();
}

static void an_activation_that_asks_for_nothing_sound(void) {
    struct kvd_activation want = { 0 };
    name_pages(1);
    KVT_NEED(fx_start(&fx, NULL));
    s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    want = wanted(4, false);
    KVT_EQ(start(&want, 0), 0); /* without a cold tier it starts from what is here */
    stop_service();
    server = (struct redis){ 0 };
    KVT_NEED(redis_start(&server));
    KVT_NEED(start_up((struct fx_setup){ 0 }, ""));
    want = wanted(4, false);
    want.cold.first = 2; /* of no continuation */
    KVT_EQ(ask(s, REQUEST(FRAME_ACTIVATE, .u.activation = want)), KVD_INVALID_ARGUMENT);
    KVT_HAS(r.message, "Activate from page 2");
    want = wanted(4, false);
    want.from.bits = 77;
    KVT_EQ(ask(s, REQUEST(FRAME_ACTIVATE, .u.activation = want)), KVD_NOT_FOUND);
    KVT_EQ(reads().loads, 0);
    end();
}

static void refusals(void) {
    struct kvd_cold_want want = prompt(1, false);
    name_pages(1);
    KVT_NEED(fx_start(&fx, NULL));
    s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    KVT_EQ(ask(s, REQUEST(FRAME_FIND_COLD, .u.cold = want)), KVD_FAILED_PRECONDITION);
    KVT_HAS(r.message, "[cold]");
    stop_service();
    server = (struct redis){ 0 };
    KVT_NEED(redis_start(&server));
    KVT_NEED(start_up((struct fx_setup){ 0 }, ""));
    want.root.digest = (kvd_digest){ { 0 } };
    KVT_EQ(ask(s, REQUEST(FRAME_LOAD_COLD, .u.cold = want)), KVD_INVALID_ARGUMENT);
    KVT_HAS(r.message, "without a root");
    want = prompt(0, false);
    KVT_EQ(ask(s, REQUEST(FRAME_FIND_COLD, .u.cold = want)), KVD_INVALID_ARGUMENT);
    want = prompt(1, false);
    want.first = 3;
    KVT_EQ(ask(s, REQUEST(FRAME_LOAD_COLD, .u.cold = want)), KVD_INVALID_ARGUMENT);
    want = prompt(1, false);
    want.first = UINT32_MAX;
    KVT_EQ(ask(s, REQUEST(FRAME_FIND_COLD, .u.cold = want)), KVD_INVALID_ARGUMENT);
    struct fx_peer *worker = fx_session(&fx, KVD_ROLE_WORKER, 0);
    KVT_EQ(ask(worker, REQUEST(FRAME_FIND_COLD, .u.cold = prompt(1, false))), KVD_OK);
    KVT_EQ(ask(worker, REQUEST(FRAME_LOAD_COLD, .u.cold = prompt(1, false))), KVD_PERMISSION_DENIED);
    fx_peer_free(worker);
    end();
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(cold_6_another_kvd_serves_it),
                                             KVT_CASE(what_is_there_is_shared),
                                             KVT_CASE(cont_2_within_a_page),
                                             KVT_CASE(cont_2_within_the_page_behind_what_came),
                                             KVT_CASE(cold_3_wrong_values),
                                             KVT_CASE(cold_2_missing_pages),
                                             KVT_CASE(cont_4_images),
                                             KVT_CASE(with_a_secret),
                                             KVT_CASE(cold_2_a_hanging_engine_holds_up_nobody),
                                             KVT_CASE(a_client_dies_in_the_middle),
                                             KVT_CASE(cold_5_the_engine_goes_and_comes),
                                             KVT_CASE(a_full_arena_refuses),
                                             KVT_CASE(an_activation_loads_first),
                                             KVT_CASE(an_activation_is_shortened),
                                             KVT_CASE(grp_4_windows),
                                             KVT_CASE(an_activation_runs_out_in_the_middle),
                                             KVT_CASE(its_client_dies_in_the_middle),
                                             KVT_CASE(an_activation_is_cancelled_while_it_loads),
                                             KVT_CASE(an_activation_that_loads_has_victims),
                                             KVT_CASE(an_activation_that_asks_for_nothing_sound),
                                             KVT_CASE(refusals),
                                             { 0 } };
    if (sodium_init() < 0) return 2;
    return kvt_main("service_cold_load", cases, argc, argv);
}
