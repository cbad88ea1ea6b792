/* SPDX-License-Identifier: Apache-2.0
 *
 * What kvd writes into the cold tier: a service over a real redis-server. COLD-1 to COLD-5.
 */
#include <signal.h>
#include <sodium.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"
#include "cold_tier.h"
#include "core.h"
#include "plan.h"
#include "redis.h"
#include "segment.h"
#include "service_fixture.h"

static struct fx fx;
static struct msg_reply r;
static struct redis server;
static const uint8_t *secret; /* of objects; NULL: they have no MAC */

#define REQUEST(t, ...)                                                                                                \
    &(struct msg_request) { .type = (t), __VA_ARGS__ }
#define HEADS 2u
#define TAIL 10u

static uint32_t ask(struct fx_peer *p, struct msg_request *q) { return fx_call(p, q, &r) ? r.status : UINT32_MAX; }

static const char *arena = "16MiB";

/* The server is there, unless it is to come later; more: lines of [cold]. */
static bool start_service(struct fx_setup setup, const char *more) {
    static char text[1024];
    snprintf(text, sizeof text, "%s\n[host]\narena = %s\nscrub = 0\n[cold]\naddress = unix:%s\ntimeout = 20s\n%s\n",
             setup.more ? setup.more : "", arena, server.socket, more);
    setup.more = text;
    setup.capacity_tokens = 64 * 64;
    return fx_start(&fx, &setup);
}

static struct cold_stats cold(void) {
    struct cold_stats stats;
    pthread_mutex_lock(&fx.service->lock);
    cold_tier_stats(fx.service, &stats);
    pthread_mutex_unlock(&fx.service->lock);
    return stats;
}

static uint64_t expected;

static bool has_written(void *unused) {
    (void)unused;
    return cold().continuations == expected;
}

static void await_written(uint64_t continuations) {
    expected = continuations;
    KVT_TRUE(redis_until(has_written, NULL));
}

static bool is_up(void *unused) {
    (void)unused;
    return cold().engine.breaker == COLD_CLOSED;
}

static bool is_down(void *unused) {
    (void)unused;
    return cold().engine.breaker == COLD_OPEN;
}

/* ---- content: a byte for each place, whichever rank has it ---- */

static uint8_t byte_at(uint32_t salt, uint32_t pool, uint32_t plane, uint32_t head, uint64_t k) {
    return (uint8_t)(salt * 31 + pool * 101 + plane * 53 + head * 17 + k + k / 256 + 1);
}

static const struct geom_pool_spec *spec_of(uint32_t pool) {
    return pool ? &fx.service->plan.spec.draft : &fx.service->plan.spec.main;
}

static void fill_page(uint32_t pool, uint32_t id, uint32_t salt) {
    const struct geom_pool_spec *spec = spec_of(pool);
    uint32_t slots = geom_plane_count(spec) / spec->n_layers;
    for (uint32_t rank = 0; rank < spec->n_ranks; rank++) {
        uint8_t *base = (uint8_t *)(uintptr_t)service_info(fx.service)->pool[pool].planes[rank].local_address;
        for (uint32_t i = 0; i < geom_plane_count(spec); i++) {
            struct geom_plane q;
            KVT_OK(geom_plane(spec, service_info(fx.service)->pool[pool].pages, rank, i / slots,
                              (enum geom_slot)(i % slots), &q, NULL, 0));
            for (uint32_t h = 0; h < q.n_heads; h++)
                for (uint64_t k = 0; k < q.head_bytes; k++)
                    base[q.offset + id * q.nb3 + h * q.nb2 + k] = byte_at(salt, pool, i, rank * q.n_heads + h, k);
        }
    }
}

static const int32_t *row_of(uint32_t pool, uint32_t index) {
    return (const int32_t *)(uintptr_t)service_info(fx.service)->pool[pool].table[0].local_address + (size_t)index * 64;
}

/* Pages with salts first, first + 1, ..., and a tail of TAIL tokens where there is to be one; named and kept. */
static kvd_continuation retained(struct fx_peer *s, uint32_t pages, bool tail, uint32_t first) {
    struct kvd_activated a = { 0 };
    struct kvd_finish finish = { .retain = true };
    kvd_digest digests[32];
    uint32_t tokens = pages * 64 + (tail ? TAIL : 0), n_pools = store_n_pools(fx.service->store);
    memset(digests, 0, sizeof digests);
    KVT_EQ(fx_activate(s, s->session, tokens, 1, &a), KVD_OK);
    KVT_EQ(fx_round(s, a.sequence, KVD_UNCHANGED, tokens, NULL), KVD_OK);
    for (uint32_t p = 0; p < n_pools; p++)
        for (uint32_t i = 0; i < pages + tail; i++) fill_page(p, (uint32_t)row_of(p, a.pool[p].row)[i], first + i);
    for (uint32_t i = 0; i < pages; i++) digests[i].bytes[0] = (uint8_t)(first + i), digests[i].bytes[1] = 1;
    KVT_EQ(fx_round(s, a.sequence, tokens, KVD_UNCHANGED, NULL), KVD_OK);
    KVT_EQ(ask(s, REQUEST(FRAME_NAME_PAGES, .u.names = { a.sequence, 0, pages, digests })), KVD_OK);
    finish.sequence = a.sequence;
    finish.tail.n = tail ? TAIL : 0;
    for (uint32_t i = 0; i < finish.tail.n; i++) finish.tail.tokens[i] = 7 * i;
    KVT_EQ(ask(s, REQUEST(FRAME_FINISH, .u.finish = finish)), KVD_OK);
    return r.u.finished.continuation;
}

static kvd_continuation demoted(struct fx_peer *s, uint32_t pages, bool tail, uint32_t first) {
    kvd_continuation c = retained(s, pages, tail, first);
    KVT_EQ(ask(s, REQUEST(FRAME_DEMOTE, .u.demote = { .continuation = c })), KVD_OK);
    return c;
}

/* ---- objects ---- */

static struct cold_name name_of(uint32_t pool, uint32_t shard, uint32_t salt) {
    struct cold_name name = { .kind = COLD_PAGE, .pool = pool, .shard = shard, .columns = 64 };
    struct cold_layout layout;
    cold_layout_of(&fx.service->plan.spec, store_n_pools(fx.service->store), secret, &layout);
    memcpy(name.layout, layout.pages, sizeof name.layout);
    name.digest[0] = (uint8_t)salt;
    name.digest[1] = 1;
    return name;
}

static bool holds(const struct geom_pool_spec *spec, const struct cold_name *name, uint32_t salt, const uint8_t *at) {
    uint32_t slots = geom_plane_count(spec) / spec->n_layers;
    uint64_t wrong = 0, n = 0;
    for (uint32_t i = 0; i < geom_plane_count(spec); i++) {
        struct geom_plane q;
        geom_plane(spec, 1, 0, i / slots, (enum geom_slot)(i % slots), &q, NULL, 0);
        for (uint64_t k = 0; k < q.head_bytes; k++)
            wrong += at[n++] != (k < name->columns * q.nb1 ? byte_at(salt, name->pool, i, name->shard, k) : 0);
    }
    return KVT_EQ(wrong, 0);
}

/* It is there, passes every check, and has the bytes of that page. */
static void check_object(const struct cold_name *name, uint32_t salt) {
    const struct geom_pool_spec *spec = spec_of(name->pool);
    char key[COLD_KEY_BYTES];
    cold_key_of(name, key);
    redisReply *reply = redis_ask(&server, "GET %s", key);
    KVT_NEED(reply != NULL);
    if (KVT_EQ(reply->type, REDIS_REPLY_STRING)) {
        const uint8_t *value = (const uint8_t *)reply->str;
        KVT_EQ(cold_value_check(name, geom_shard_bytes(spec), secret, value, reply->len), COLD_FINE);
        if (reply->len == COLD_HEADER_BYTES + geom_shard_bytes(spec))
            holds(spec, name, salt, value + COLD_HEADER_BYTES);
    }
    freeReplyObject(reply);
}

static void check_pages(uint32_t pool, uint32_t pages, uint32_t first) {
    for (uint32_t i = 0; i < pages; i++)
        for (uint32_t shard = 0; shard < HEADS; shard++) {
            struct cold_name name = name_of(pool, shard, first + i);
            check_object(&name, first + i);
        }
}

static void check_tail(uint32_t pool, uint32_t pages, uint32_t first) {
    uint32_t tokens[TAIL];
    for (uint32_t i = 0; i < TAIL; i++) tokens[i] = 7 * i;
    for (uint32_t shard = 0; shard < HEADS; shard++) {
        struct cold_name name = name_of(pool, shard, first + pages - 1);
        cold_tail_digest(name.digest, tokens, TAIL, name.digest);
        name.kind = COLD_TAIL;
        name.columns = TAIL;
        check_object(&name, first + pages);
    }
}

/* ---- cases ---- */

/* COLD-1: every page and the tail of what was demoted, byte by byte, with a time to live; what the next stores of other
 * ranks would write is there already. */
static void cold_1_what_was_demoted_is_written(void) {
    server = (struct redis){ 0 };
    KVT_NEED(redis_start(&server));
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        KVT_NEED(start_service((struct fx_setup){ .ranks = ranks }, ""));
        KVT_TRUE(redis_until(is_up, NULL));
        struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
        (void)demoted(s, 5, true, 40);
        await_written(1);
        check_pages(0, 5, 40);
        check_tail(0, 5, 40);
        KVT_EQ(redis_number(&server, "DBSIZE"), 6 * HEADS);
        KVT_EQ(cold().written_objects, ranks == 1 ? 6 * HEADS : 0);
        KVT_EQ(cold().met_objects, ranks == 1 ? 0 : 6 * HEADS);
        char key[COLD_KEY_BYTES];
        struct cold_name name = name_of(0, 1, 41);
        cold_key_of(&name, key);
        KVT_TRUE(redis_number(&server, "PTTL %s", key) > 80000000);
        fx_peer_free(s);
        fx_stop(&fx);
    }
    redis_free(&server);
}

/* The pools of a speculative backend are written, too. */
static void cold_1_all_pools(void) {
    server = (struct redis){ 0 };
    KVT_NEED(redis_start(&server));
    KVT_NEED(start_service((struct fx_setup){ .backend = "mtp" }, ""));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    KVT_TRUE(redis_until(is_up, NULL));
    (void)demoted(s, 3, false, 7);
    await_written(1);
    check_pages(0, 3, 7);
    check_pages(1, 3, 7);
    KVT_EQ(redis_number(&server, "DBSIZE"), 2 * 3 * HEADS);
    fx_peer_free(s);
    fx_stop(&fx);
    redis_free(&server);
}

/* A state image goes with its frontier. */
static void cold_1_images(void) {
    server = (struct redis){ 0 };
    KVT_NEED(redis_start(&server));
    KVT_NEED(start_service((struct fx_setup){ .more = "[capacity]\nstate_bytes = 1000\n", .ranks = 2 }, ""));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct kvd_activated a = { 0 };
    struct kvd_round_item item;
    kvd_digest digest = { .bytes = { 9, 1 } };
    KVT_EQ(fx_activate(s, s->session, 64, 1, &a), KVD_OK);
    KVT_EQ(fx_round(s, a.sequence, 64, KVD_UNCHANGED, NULL), KVD_OK);
    memset(&item, 0, sizeof item);
    item.sequence = a.sequence;
    item.ask = KVD_ROUND_STATE;
    item.state_frontier = 64;
    KVT_EQ(ask(s, REQUEST(FRAME_ROUND, .u.round = { 1, &item })), KVD_OK);
    KVT_EQ(ask(s, REQUEST(FRAME_NAME_PAGES, .u.names = { a.sequence, 0, 1, &digest })), KVD_OK);
    KVT_EQ(ask(s, REQUEST(FRAME_FINISH, .u.finish = { .sequence = a.sequence, .retain = true })), KVD_OK);
    KVT_EQ(ask(s, REQUEST(FRAME_DEMOTE, .u.demote = { .continuation = r.u.finished.continuation })), KVD_OK);
    await_written(1);
    KVT_EQ(redis_number(&server, "DBSIZE"), HEADS + 2);
    struct cold_layout layout;
    struct cold_name name = { .kind = COLD_IMAGE, .shard = 1, .digest = { 9, 1 } };
    char key[COLD_KEY_BYTES];
    cold_layout_of(&fx.service->plan.spec, 1, NULL, &layout);
    memcpy(name.layout, layout.images, sizeof name.layout);
    cold_key_of(&name, key);
    redisReply *reply = redis_ask(&server, "GET %s", key);
    if (KVT_TRUE(reply && reply->type == REDIS_REPLY_STRING))
        KVT_EQ(cold_value_check(&name, store_get_config(fx.service->store)->host_state_stride / 2, NULL,
                                (const uint8_t *)reply->str, reply->len),
               COLD_FINE);
    if (reply) freeReplyObject(reply);
    fx_peer_free(s);
    fx_stop(&fx);
    redis_free(&server);
}

/* What the engine was just given is not sent again. */
static void what_is_there_is_not_sent_again(void) {
    server = (struct redis){ 0 };
    KVT_NEED(redis_start(&server));
    KVT_NEED(start_service((struct fx_setup){ .ranks = 1 }, ""));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    KVT_TRUE(redis_until(is_up, NULL));
    kvd_continuation c = demoted(s, 4, false, 1);
    await_written(1);
    KVT_EQ(ask(s, REQUEST(FRAME_PREFETCH, .u.prefetch = c)), KVD_OK);
    KVT_EQ(ask(s, REQUEST(FRAME_DEMOTE, .u.demote = { .continuation = c })), KVD_OK);
    await_written(2);
    KVT_EQ(cold().written_objects, 4 * HEADS);
    KVT_EQ(cold().met_objects, 0);
    fx_peer_free(s);
    fx_stop(&fx);
    redis_free(&server);
}

/* COLD-2, COLD-5: without its engine kvd does all as ever; when it comes, what was demoted meanwhile is written. */
static void cold_2_the_engine_comes_later(void) {
    server = (struct redis){ 0 };
    KVT_NEED(redis_start(&server)); /* for its folder */
    redis_kill(&server);
    KVT_NEED(start_service((struct fx_setup){ .ranks = 1 }, ""));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    KVT_TRUE(redis_until(is_down, NULL));
    kvd_continuation c = demoted(s, 5, true, 20);
    KVT_EQ(ask(s, REQUEST(FRAME_PREFETCH, .u.prefetch = c)), KVD_OK);
    KVT_EQ(ask(s, REQUEST(FRAME_DEMOTE, .u.demote = { .continuation = c })), KVD_OK);
    (void)demoted(s, 2, false, 60);
    KVT_EQ(cold().waiting, 3);
    KVT_HAS(cold().engine.why, "connecting");
    KVT_NEED(redis_start(&server));
    await_written(3);
    check_pages(0, 5, 20);
    check_pages(0, 2, 60);
    fx_peer_free(s);
    fx_stop(&fx);
    redis_free(&server);
}

static bool has_aged(void *unused) {
    (void)unused;
    return cold().dropped[COLD_DROP_AGE] == 1;
}

/* COLD-4: what waited too long is dropped, and counted. */
static void cold_4_age(void) {
    server = (struct redis){ 0 };
    KVT_NEED(redis_start(&server));
    redis_kill(&server);
    KVT_NEED(start_service((struct fx_setup){ .ranks = 1 }, "age = 100ms"));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    KVT_TRUE(redis_until(is_down, NULL));
    (void)demoted(s, 2, false, 60);
    uint64_t aged = clock_ns() + 150000000;
    while (clock_ns() < aged) fx_settle(&fx, NULL);
    KVT_NEED(redis_start(&server));
    KVT_TRUE(redis_until(has_aged, NULL));
    KVT_EQ(redis_number(&server, "DBSIZE"), 0);
    KVT_EQ(cold().waiting, 0);
    fx_peer_free(s);
    fx_stop(&fx);
    redis_free(&server);
}

/* COLD-2: an engine that hangs holds up no request, and not the end. */
static void cold_2_a_hanging_engine_holds_up_nobody(void) {
    server = (struct redis){ 0 };
    KVT_NEED(redis_start(&server));
    KVT_NEED(start_service((struct fx_setup){ .ranks = 1 }, ""));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    KVT_TRUE(redis_until(is_up, NULL));
    redis_stop(&server);
    uint64_t begin = clock_ns();
    for (uint32_t i = 0; i < 4; i++) {
        kvd_continuation c = demoted(s, 5, true, 20 * i);
        KVT_EQ(ask(s, REQUEST(FRAME_PREFETCH, .u.prefetch = c)), KVD_OK);
        KVT_EQ(ask(s, REQUEST(FRAME_RELEASE, .u.continuation = { .continuation = c })), KVD_OK);
    }
    KVT_EQ(fx_stats(s).host_occupied, 0);
    fx_peer_free(s);
    fx_stop(&fx);
    KVT_TRUE(clock_ns() - begin < 20 * UINT64_C(1000000000)); /* its timeout was never waited for */
    redis_free(&server);
}

static bool has_damage(void *unused) {
    (void)unused;
    struct kvd_stats stats;
    pthread_mutex_lock(&fx.service->lock);
    store_get_stats(fx.service->store, &stats);
    pthread_mutex_unlock(&fx.service->lock);
    return stats.damaged_replicas == 1;
}

/* COLD-3: bytes of the arena that do not match their checksum are not written under a checksum that does. */
static void cold_3_damage_is_not_written(void) {
    server = (struct redis){ 0 };
    KVT_NEED(redis_start(&server));
    redis_kill(&server);
    KVT_NEED(start_service((struct fx_setup){ .ranks = 1 }, ""));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    KVT_TRUE(redis_until(is_down, NULL));
    (void)demoted(s, 1, false, 60);
    uint32_t cursor = 0;
    uint64_t offset, bytes;
    KVT_TRUE(store_next_extent(fx.service->store, &cursor, &offset, &bytes));
    segment_arena(fx.service->segment)[offset + 100] ^= 1;
    KVT_NEED(redis_start(&server));
    KVT_TRUE(redis_until(has_damage, NULL));
    (void)demoted(s, 1, false, 70); /* and it goes on */
    await_written(2);
    KVT_EQ(redis_number(&server, "DBSIZE"), HEADS);
    check_pages(0, 1, 70);
    fx_peer_free(s);
    fx_stop(&fx);
    redis_free(&server);
}

static struct kvd_cold_tier described(struct fx_peer *s) {
    if (!KVT_EQ(ask(s, REQUEST(FRAME_DESCRIBE_COLD_TIER)), KVD_OK)) return (struct kvd_cold_tier){ 0 };
    return r.u.cold_tier;
}

static uint64_t checks_before;

static bool has_checked(void *peer) { return described(peer).checks > checks_before; }

static struct kvd_cold_tier checked(struct fx_peer *admin, uint32_t objects) {
    checks_before = described(admin).checks;
    KVT_EQ(ask(admin, REQUEST(FRAME_CHECK_COLD_TIER, .u.check_cold = objects)), KVD_OK);
    KVT_TRUE(redis_until(has_checked, admin));
    return described(admin);
}

/* A command on an object, %s in it. */
static void damage(const char *command, uint32_t shard, uint32_t salt) {
    char key[COLD_KEY_BYTES];
    struct cold_name name = name_of(0, shard, salt);
    cold_key_of(&name, key);
    KVT_TRUE(redis_number(&server, command, key) > 0);
}

/* COLD-3, COLD-5: a check reads back what was written. What is gone is told; what is wrong is told and deleted; both
 * are written again with the next demotion. An engine that is away is told in words. */
static void cold_3_checks(void) {
    server = (struct redis){ 0 };
    KVT_NEED(redis_start(&server));
    KVT_NEED(start_service((struct fx_setup){ .ranks = 1 }, "buffer = 128KiB\nrate = 0"));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_ADMIN, 0);
    KVT_TRUE(redis_until(is_up, NULL));
    KVT_EQ(checked(s, 0).read_objects, 0);
    KVT_TRUE(described(s).ping_ns > 0);
    KVT_EQ(checked(s, 10).read_objects, 0); /* nothing was written yet */
    kvd_continuation c = demoted(s, 8, false, 1);
    await_written(1);
    struct kvd_cold_tier now = checked(s, KVD_MAX_COLD_CHECK);
    KVT_TRUE(now.configured && now.breaker == KVD_COLD_CLOSED && !now.clustered);
    KVT_EQ(now.right_objects, 8 * HEADS);
    KVT_EQ(now.read_objects, 8 * HEADS);
    KVT_EQ(now.written_objects, 8 * HEADS);
    KVT_TRUE(now.written_bytes > 0 && now.written_ns > 0);
    KVT_EQ(checked(s, 3).right_objects, 3);
    damage("SETRANGE %s 200 xyz", 0, 2);
    damage("APPEND %s x", 1, 3);
    damage("DEL %s", 0, 4);
    now = checked(s, KVD_MAX_COLD_CHECK);
    KVT_EQ(now.right_objects, 8 * HEADS - 3);
    KVT_EQ(now.wrong_objects, 2);
    KVT_EQ(now.absent_objects, 1);
    KVT_TRUE(*now.wrong_field);
    KVT_EQ(redis_number(&server, "DBSIZE"), 8 * HEADS - 3);
    KVT_EQ(ask(s, REQUEST(FRAME_PREFETCH, .u.prefetch = c)), KVD_OK);
    KVT_EQ(ask(s, REQUEST(FRAME_DEMOTE, .u.demote = { .continuation = c })), KVD_OK);
    await_written(2);
    check_pages(0, 8, 1);
    KVT_EQ(described(s).written_objects, 8 * HEADS + 3);
    /* Asked for twice, by one that is gone then. */
    struct fx_peer *other = fx_session(&fx, KVD_ROLE_ADMIN, 0);
    checks_before = described(s).checks;
    for (uint32_t i = 0; i < 2; i++) KVT_EQ(ask(other, REQUEST(FRAME_CHECK_COLD_TIER, .u.check_cold = 5)), KVD_OK);
    fx_peer_free(other);
    KVT_TRUE(redis_until(has_checked, s));
    KVT_EQ(described(s).right_objects, 5);
    redis_kill(&server);
    now = checked(s, 4);
    KVT_EQ(now.ping_ns, 0);
    KVT_EQ(now.unanswered_objects, 4);
    KVT_TRUE(redis_until(is_down, NULL));
    now = described(s);
    KVT_EQ(now.breaker, KVD_COLD_OPEN);
    KVT_TRUE(*now.why && now.trips > 0);
    fx_peer_free(s);
    fx_stop(&fx);
    redis_free(&server);
}

static void no_cold_tier_to_check(void) {
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_ADMIN, 0);
    KVT_FALSE(described(s).configured);
    KVT_EQ(ask(s, REQUEST(FRAME_CHECK_COLD_TIER)), KVD_FAILED_PRECONDITION);
    KVT_HAS(r.message, "set address = in section [cold]");
    fx_peer_free(s);
    fx_stop(&fx);
}

static struct kvd_stats settled(void) {
    struct kvd_stats stats;
    fx_settle(&fx, NULL); /* moves end */
    pthread_mutex_lock(&fx.service->lock);
    store_get_stats(fx.service->store, &stats);
    pthread_mutex_unlock(&fx.service->lock);
    return stats;
}

static uint64_t occupied(void) { return settled().host_occupied; }

static bool has_empty_arena(void *unused) {
    (void)unused;
    return occupied() == 0;
}

static bool has_filled_arena(void *unused) { return !has_empty_arena(unused); }

static bool has_available(void *pages) { return settled().pool[0].available == *(uint32_t *)pages; }

static bool has_object(void *salt) {
    char key[COLD_KEY_BYTES];
    struct cold_name name = name_of(0, HEADS - 1, *(uint32_t *)salt);
    cold_key_of(&name, key);
    fx_settle(&fx, NULL);
    return redis_number(&server, "EXISTS %s", key) == 1;
}

static bool has_no_room(void *unused) {
    (void)unused;
    fx_settle(&fx, NULL);
    return cold().dropped[COLD_DROP_ARENA] == 1;
}

/* Its bytes may be on their way when its copy has gone. */
static bool is_not_written(void *cont) {
    pthread_mutex_lock(&fx.service->lock);
    bool writes = cold_tier_is_writing(fx.service, *(store_cont *)cont);
    pthread_mutex_unlock(&fx.service->lock);
    return !writes;
}

/* Where the writer stands still: the engine hangs, and what it writes from is in the arena. */
static kvd_continuation retained_and_stuck(struct fx_peer *s, uint32_t first) {
    redis_stop(&server);
    kvd_continuation c = retained(s, 6, true, first);
    KVT_TRUE(redis_until(has_filled_arena, NULL));
    return c;
}

/* COLD-4: what a finished sequence leaves on the device is written without a demotion, by a copy in the arena that is
 * gone then. What is retained is where it was. */
static void cold_4_retained(void) {
    server = (struct redis){ 0 };
    KVT_NEED(redis_start(&server));
    KVT_NEED(start_service((struct fx_setup){ .ranks = 2 }, "write = retained"));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    KVT_TRUE(redis_until(is_up, NULL));
    uint32_t free = fx_stats(s).pool[0].available;
    kvd_continuation c = retained(s, 5, true, 10);
    KVT_TRUE(redis_until(has_object, &(uint32_t){ 14 }));
    KVT_TRUE(redis_until(has_empty_arena, NULL));
    check_pages(0, 5, 10);
    check_tail(0, 5, 10);
    KVT_EQ(fx_stats(s).pool[0].available, free - 6);
    KVT_TRUE(redis_until(is_not_written, &(store_cont){ c.bits }));
    /* Released while it is written: nothing waits for the engine, and nothing is left of it. */
    kvd_continuation other = retained_and_stuck(s, 30);
    KVT_EQ(ask(s, REQUEST(FRAME_RELEASE, .u.continuation = { .continuation = other })), KVD_OK);
    KVT_TRUE(redis_until(has_available, &(uint32_t){ free - 6 })); /* as soon as no copy reads it */
    kill(server.pid, SIGCONT);
    KVT_TRUE(redis_until(has_empty_arena, NULL));
    KVT_TRUE(redis_until(is_not_written, &(store_cont){ other.bits })); /* or it waits for the engine, stopped again */
    /* Demoted while it is written: the copy is that of the demotion, and stays. */
    other = retained_and_stuck(s, 50);
    KVT_EQ(ask(s, REQUEST(FRAME_DEMOTE, .u.demote = { .continuation = other })), KVD_OK);
    KVT_EQ(fx_stats(s).pool[0].available, free - 6);
    kill(server.pid, SIGCONT);
    (void)retained(s, 1, false, 90);
    KVT_TRUE(redis_until(has_object, &(uint32_t){ 90 }));
    KVT_TRUE(redis_until(has_object, &(uint32_t){ 55 }));
    check_pages(0, 6, 50);
    check_pages(0, 1, 90);
    KVT_TRUE(occupied() > 0);
    KVT_EQ(ask(s, REQUEST(FRAME_PREFETCH, .u.prefetch = other)), KVD_OK);
    KVT_EQ(ask(s, REQUEST(FRAME_DEMOTE, .u.demote = { .continuation = c })), KVD_OK);
    fx_peer_free(s);
    fx_stop(&fx);
    redis_free(&server);
}

/* COLD-4: copies to write from leave half of the arena free, and then what is retained is dropped, and told. */
static void cold_4_retained_leaves_half_of_the_arena(void) {
    server = (struct redis){ 0 };
    KVT_NEED(redis_start(&server));
    KVT_NEED(start_service((struct fx_setup){ .ranks = 1 }, "write = retained"));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    KVT_TRUE(redis_until(is_up, NULL));
    uint64_t half = (16 << 20) / 2, page = store_get_config(fx.service->store)->host_stride[0];
    uint32_t salt = 1;
    while (occupied() + 2 * page <= half) {
        (void)demoted(s, 1, false, salt++);
        KVT_NEED(salt < 250);
    }
    KVT_EQ(cold().dropped[COLD_DROP_ARENA], 0);
    (void)retained(s, 2, false, 250);
    KVT_TRUE(redis_until(has_no_room, NULL));
    fx_peer_free(s);
    fx_stop(&fx);
    redis_free(&server);
}

static uint64_t aged;

static bool have_aged(void *unused) {
    (void)unused;
    return cold().dropped[COLD_DROP_AGE] == aged;
}

/* KEEP-2, COLD-4: what an orderly stop releases for what is worth more is written before. It was not when it was
 * demoted: the engine was away for too long. */
static void cold_4_what_a_stop_releases_is_written(void) {
    server = (struct redis){ 0 };
    KVT_NEED(redis_start(&server));
    redis_kill(&server);
    arena = "4MiB";
    bool started = start_service((struct fx_setup){ .ranks = 1 }, "age = 100ms\n[host]\nstop_time = 1000s");
    arena = "16MiB";
    KVT_NEED(started);
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    KVT_TRUE(redis_until(is_down, NULL));
    uint64_t page = store_get_config(fx.service->store)->host_stride[0];
    while (occupied() + 2 * page <= 4 << 20) {
        (void)demoted(s, 1, false, (uint32_t)++aged);
        KVT_NEED(aged < 240);
    }
    uint64_t since = clock_ns();
    while (clock_ns() - since < 150000000) fx_settle(&fx, NULL); /* none of them is written for itself */
    (void)retained(s, 2, false, 250);
    KVT_NEED(redis_start(&server));
    KVT_TRUE(redis_until(have_aged, NULL));
    KVT_EQ(redis_number(&server, "DBSIZE"), 0);
    struct service_stop told = { 0 };
    fx_peer_free(s);
    service_stop_begin(fx.service);
    for (service_stop_step(fx.service, &told); !told.over; service_stop_step(fx.service, &told)) fx_settle(&fx, NULL);
    KVT_EQ(told.released, 1);
    KVT_EQ(told.demoted, 1);
    check_pages(0, 1, 1); /* the one that was used longest ago */
    fx_stop(&fx);
    redis_free(&server);
}

static void write_secret(char path[96], const char *text, mode_t mode) {
    snprintf(path, 96, "%s/secret", server.dir);
    FILE *file = fopen(path, "w");
    if (!KVT_TRUE(file != NULL)) return;
    fprintf(file, "%s\n", text);
    fclose(file);
    KVT_OK(chmod(path, mode));
}

/* A start with these lines of [cold] is refused in these words. The arena was there before the cold tier. */
static void refuses_start(const char *lines, const char *key, const char *word) {
    char text[512], err[512], name[96], prefix[48];
    struct config config;
    snprintf(text, sizeof text,
             "[model]\nhead_dim = 64\nlayers = 2\n[capacity]\ntokens = 8192\n[host]\narena = 16MiB\n"
             "[cold]\naddress = unix:/nowhere\n%s\n",
             lines);
    KVT_OK(config_parse("test", text, &config, err, sizeof err));
    snprintf(prefix, sizeof prefix, "/kvd-test-cold-%d", (int)getpid());
    KVT_EQ(service_new(&config, prefix, NULL, &fx.service, err, sizeof err), 1);
    KVT_HAS(err, key);
    KVT_HAS(err, word);
    plan_arena_name(prefix, name, sizeof name);
    KVT_OK(shm_unlink(name));
}

static void refuses_secret(const char *path, const char *word) {
    char line[128];
    snprintf(line, sizeof line, "secret_file = %s", path);
    refuses_start(line, "[cold] secret_file: ", word);
}

/* COLD-3: with a secret every object has a MAC, under names that only those have who share it. A secret that others
 * may read, or that is none, is refused at the start. */
static void cold_3_secret(void) {
    static const char *const digits = "000102030405060708090A0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    static uint8_t key[COLD_SECRET_BYTES];
    char path[96], more[128];
    for (uint32_t i = 0; i < sizeof key; i++) key[i] = (uint8_t)i;
    server = (struct redis){ 0 };
    KVT_NEED(redis_start(&server));
    refuses_secret("/nowhere/secret", "No such file");
    write_secret(path, digits, 0640);
    refuses_secret(path, "mode 0640");
    write_secret(path, digits + 2, 0600);
    refuses_secret(path, "no line of 64 hexadecimal digits");
    write_secret(path, "0001020304050607 8090A0b0c0d0e0f101112131415161718191a1b1c1d1e1f", 0600);
    refuses_secret(path, "no line of 64 hexadecimal digits");
    write_secret(path, digits, 0600);
    snprintf(more, sizeof more, "secret_file = %s", path);
    KVT_NEED(start_service((struct fx_setup){ .ranks = 1 }, more));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    KVT_TRUE(redis_until(is_up, NULL));
    (void)demoted(s, 2, true, 5);
    await_written(1);
    secret = key;
    check_pages(0, 2, 5);
    check_tail(0, 2, 5);
    secret = NULL;
    KVT_EQ(redis_number(&server, "DBSIZE"), 3 * HEADS);
    fx_peer_free(s);
    fx_stop(&fx);
    redis_free(&server);
}

/* COLD-4: more than the buffer holds goes in parts; a page that it does not hold is refused at the start, in words. */
static void cold_4_buffer(void) {
    server = (struct redis){ 0 };
    KVT_NEED(redis_start(&server));
    KVT_NEED(start_service((struct fx_setup){ .ranks = 1 }, "buffer = 128KiB\nrate = 64MiB"));
    struct fx_peer *s = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    KVT_TRUE(redis_until(is_up, NULL));
    (void)demoted(s, 20, true, 100);
    await_written(1);
    check_pages(0, 20, 100);
    check_tail(0, 20, 100);
    fx_peer_free(s);
    fx_stop(&fx);
    redis_free(&server);
    refuses_start("buffer = 64KiB", "[cold] buffer", "raise it");
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(cold_1_what_was_demoted_is_written),
                                             KVT_CASE(cold_1_all_pools),
                                             KVT_CASE(cold_1_images),
                                             KVT_CASE(what_is_there_is_not_sent_again),
                                             KVT_CASE(cold_2_the_engine_comes_later),
                                             KVT_CASE(cold_4_age),
                                             KVT_CASE(cold_2_a_hanging_engine_holds_up_nobody),
                                             KVT_CASE(cold_3_damage_is_not_written),
                                             KVT_CASE(cold_4_retained),
                                             KVT_CASE(cold_4_retained_leaves_half_of_the_arena),
                                             KVT_CASE(cold_4_what_a_stop_releases_is_written),
                                             KVT_CASE(cold_3_checks),
                                             KVT_CASE(no_cold_tier_to_check),
                                             KVT_CASE(cold_3_secret),
                                             KVT_CASE(cold_4_buffer),
                                             { 0 } };
    if (sodium_init() < 0) return 2;
    return kvt_main("service_cold", cases, argc, argv);
}
