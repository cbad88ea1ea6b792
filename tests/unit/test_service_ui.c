/* SPDX-License-Identifier: Apache-2.0
 *
 * The document behind the page for people: its figures, its bounds, and what is not in it. SRV-2, SRV-7.
 */
#include <cjson/cJSON.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "clock.h"
#include "core.h"
#include "events.h"
#include "http.h"
#include "http_client.h"
#include "metrics_page.h"
#include "service_fixture.h"
#include "session.h"
#include "ui.h"

static struct fx fx;

static const cJSON *at(const cJSON *object, const char *key) { return cJSON_GetObjectItemCaseSensitive(object, key); }
static double number(const cJSON *object, const char *key) { return cJSON_GetNumberValue(at(object, key)); }
static const char *text(const cJSON *object, const char *key) {
    const char *t = cJSON_GetStringValue(at(object, key));
    return t ? t : "nothing";
}

/* The document of now, and its text. domain: "" for all. */
static cJSON *state_of(const char *domain, char **ret_text, size_t *ret_bytes) {
    size_t bytes = 0;
    char *metrics = metrics_page(fx.service, &bytes);
    *ret_text = metrics ? ui_state(fx.service, metrics, domain, ret_bytes) : NULL;
    free(metrics);
    cJSON *root = *ret_text ? cJSON_ParseWithLength(*ret_text, *ret_bytes) : NULL;
    if (!KVT_TRUE(root != NULL)) printf("%s\n", *ret_text ? *ret_text : "no memory");
    return root;
}

static cJSON *hour(void) {
    size_t bytes = 0;
    char *document = ui_history(fx.service, &bytes);
    cJSON *root = document ? cJSON_ParseWithLength(document, bytes) : NULL;
    KVT_TRUE(root != NULL);
    free(document);
    return root;
}

static cJSON *state(char **ret_text, size_t *ret_bytes) { return state_of("", ret_text, ret_bytes); }

/* One of `tokens` tokens that is committed and runs. */
static struct kvd_activated run(struct fx_peer *peer, uint32_t tokens) {
    struct kvd_activated a = { .n_pools = 0 };
    struct kvd_round_result r;
    KVT_EQ(fx_activate(peer, peer->session, tokens, 1, &a), KVD_OK);
    KVT_EQ(fx_round(peer, a.sequence, tokens, tokens, &r), KVD_OK);
    return a;
}

/* Continuations without a full page: their tails name them. */
static void keep(struct fx_peer *peer, uint32_t n, kvd_continuation *ret_kept) {
    for (uint32_t i = 0; i < n; i++) {
        struct msg_request finish = { .type = FRAME_FINISH };
        struct msg_reply reply;
        finish.u.finish = (struct kvd_finish){ .sequence = run(peer, 3).sequence, .retain = true, .tail.n = 3 };
        for (uint32_t k = 0; k < 3; k++) finish.u.finish.tail.tokens[k] = 777000000 + i;
        KVT_TRUE(fx_call(peer, &finish, &reply) && reply.status == KVD_OK);
        ret_kept[i] = reply.u.finished.continuation;
    }
}

static void bounded_and_the_first_ones(void) {
    enum { KEPT = 700, RUNNING = 300 };
    char *document, more[] = "[limits]\nsequences_per_session = auto\n";
    size_t bytes;
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .more = more, .concurrency = 320, .capacity_tokens = 2048 * 64 }));
    struct fx_peer *peer = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    kvd_continuation kept[KEPT];
    keep(peer, KEPT, kept);
    for (uint32_t i = 0; i < 40; i++) {
        struct msg_request release = { .type = FRAME_RELEASE, .u.continuation.continuation = kept[i] };
        struct msg_reply reply;
        KVT_TRUE(fx_call(peer, &release, &reply) && reply.status == KVD_OK);
    }
    for (uint32_t i = 0; i < RUNNING; i++) run(peer, i == 250 ? 640 : i % 2 ? 100 : 20);
    cJSON *root = state(&document, &bytes);
    const cJSON *sequences = at(root, "sequences"), *continuations = at(root, "continuations"), *item;
    KVT_NEAR(number(sequences, "total"), RUNNING, 0);
    KVT_NEAR(number(continuations, "total"), KEPT - 40, 0);
    KVT_EQ_I(cJSON_GetArraySize(at(sequences, "items")), UI_ITEMS);
    KVT_EQ_I(cJSON_GetArraySize(at(continuations, "items")), UI_ITEMS);
    const cJSON *first = cJSON_GetArrayItem(at(sequences, "items"), 0);
    KVT_NEAR(number(first, "committed"), 640, 0); /* though it came late */
    KVT_EQ_STR(text(first, "state"), "active");
    double before = 1e9;
    unsigned large = 0;
    cJSON_ArrayForEach(item, at(sequences, "items")) {
        double pages = cJSON_GetNumberValue(cJSON_GetArrayItem(at(item, "pages"), 0));
        KVT_TRUE(pages <= before);
        before = pages;
        large += pages >= 2;
    }
    KVT_EQ(large, RUNNING / 2 + 1); /* none of them was cut off */
    /* Those that go first, that is the oldest; some went already. */
    const cJSON *listed = at(continuations, "items");
    char handle[32];
    snprintf(handle, sizeof handle, "0x%" PRIx64, kept[40].bits);
    KVT_EQ_STR(text(cJSON_GetArrayItem(listed, 0), "continuation"), handle);
    snprintf(handle, sizeof handle, "0x%" PRIx64, kept[40 + UI_ITEMS - 1].bits);
    KVT_EQ_STR(text(cJSON_GetArrayItem(listed, UI_ITEMS - 1), "continuation"), handle);
    KVT_NEAR(number(continuations, "matching"), KEPT - 40, 0);
    KVT_TRUE(bytes < 192u << 10);
    KVT_EQ(fx_audit(&fx), 0);
    /* Nothing of what is stored, nor of how it is shared. */
    KVT_FALSE(strstr(document, "777000"));
    KVT_FALSE(strstr(document, "tail"));
    KVT_FALSE(strstr(document, "\"digest\":")); /* a cold object may be wrong in its "digest": a label */
    KVT_FALSE(strstr(document, FDPASS_SUFFIX "\""));
    cJSON_Delete(root);
    free(document);
    fx_peer_free(peer);
    fx_stop(&fx);
}

/* CONT-2: who reads the page may be anybody. */
static void users_kept_apart_are_not_listed(void) {
    char *document, more[] = "[access]\ntenants = uid\n";
    size_t bytes;
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .more = more }));
    struct fx_peer *peer = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    kvd_continuation kept[3];
    keep(peer, 3, kept);
    run(peer, 100);
    cJSON *root = state(&document, &bytes);
    KVT_NEAR(number(at(root, "sequences"), "total"), 1, 0);
    KVT_NEAR(number(at(root, "continuations"), "total"), 3, 0);
    KVT_EQ_I(cJSON_GetArraySize(at(at(root, "sequences"), "items")), 0);
    KVT_EQ_I(cJSON_GetArraySize(at(at(root, "continuations"), "items")), 0);
    cJSON_Delete(root);
    free(document);
    pthread_mutex_lock(&fx.service->lock);
    events_add(fx.service, &(struct kvd_event){ .kind = KVD_EVENT_DRAINING }, NULL, NULL);
    pthread_mutex_unlock(&fx.service->lock);
    root = hour();
    KVT_EQ_I(cJSON_GetArraySize(at(root, "events")), 0);
    cJSON_Delete(root);
    fx_peer_free(peer);
    fx_stop(&fx);
}

static uint32_t cells_of(const cJSON *root, const char *map, char letter) {
    const char *cells = text(at(at(root, "maps"), map), "cells");
    uint32_t n = 0;
    for (size_t i = 0; cells[i] && cells[i + 1]; i += 2)
        n += cells[i] == letter && (letter == '.' || cells[i + 1] == '9');
    return n;
}

/* Each page and each part of the arena by its use: here a cell is one page. */
static void maps_show_what_is_used(void) {
    char *document;
    size_t bytes;
    struct msg_reply reply;
    kvd_continuation kept[5];
    KVT_NEED(fx_start(&fx, &(struct fx_setup){ .more = "[host]\narena = 64MiB\nscrub = 0\n" }));
    struct fx_peer *peer = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    keep(peer, 5, kept); /* a page each */
    run(peer, 640);
    struct msg_request fork = { .type = FRAME_ACTIVATE,
                                .u.activation = { .worker = peer->session,
                                                  .from = kept[0],
                                                  .keep = true,
                                                  .frontier = 3,
                                                  .prompt_tokens = 3 + 64,
                                                  .max_output_tokens = 1 } };
    KVT_TRUE(fx_call(peer, &fork, &reply) && reply.status == KVD_OK); /* copies the tail, shares nothing, maps a page */
    cJSON *root = state(&document, &bytes);
    KVT_NEAR(number(at(at(root, "maps"), "main"), "cell"), 1, 0);
    KVT_EQ(cells_of(root, "main", 'c'), 5);
    KVT_EQ(cells_of(root, "main", 'r'), 10 + 1);
    KVT_EQ(cells_of(root, "main", 's'), 0);
    KVT_EQ(cells_of(root, "main", '.'), 256 - 16);
    KVT_EQ(cells_of(root, "arena", '.'), UI_CELLS);
    cJSON_Delete(root);
    free(document);
    struct msg_request demote = { .type = FRAME_DEMOTE, .u.demote.continuation = kept[1] };
    fx_send(peer,
            (demote.header = (struct msg_header){ .session = peer->session, .sequence = ++peer->sequence }, &demote));
    fx_settle(&fx, peer);
    KVT_NEED(fx_reply(peer, FRAME_DEMOTE, &reply) && reply.status == KVD_OK);
    root = state(&document, &bytes);
    KVT_EQ(cells_of(root, "main", 'c'), 4);
    KVT_EQ(cells_of(root, "main", '.'), 256 - 15);
    KVT_EQ(cells_of(root, "arena", '.'), UI_CELLS - 1); /* 64 KiB in a cell of 128 KiB */
    KVT_NEAR(number(at(at(root, "maps"), "arena"), "cell"), 131072, 0);
    KVT_TRUE(strncmp(text(at(at(root, "maps"), "arena"), "cells"), "h5..", 4) == 0);
    cJSON_Delete(root);
    free(document);
    fx_peer_free(peer);
    fx_stop(&fx);
}

/* By label, and by digest where there is no label. */
static void one_domain_is_listed(void) {
    char *document, digest[2 * KVD_DIGEST_BYTES + 1], label[KVD_LABEL_BYTES + 8];
    size_t bytes;
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *peer = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct msg_reply reply;
    kvd_continuation kept[3];
    keep(peer, 3, kept);
    struct msg_request other = { .type = FRAME_ACTIVATE,
                                 .u.activation = { .worker = peer->session,
                                                   .root = { { { 7 } }, "m/other" },
                                                   .ensure = { 64 },
                                                   .prompt_tokens = 64,
                                                   .max_output_tokens = 1 } };
    KVT_TRUE(fx_call(peer, &other, &reply) && reply.status == KVD_OK);
    /* It has a name while it runs (LIVE-1), and is among the sequences all the same. */
    kvd_digest name = { { 8 } };
    struct msg_request names = { .type = FRAME_NAME_PAGES, .u.names = { reply.u.activated.sequence, 0, 1, &name } };
    KVT_EQ(fx_round(peer, reply.u.activated.sequence, 64, 64, NULL), KVD_OK);
    KVT_TRUE(fx_call(peer, &names, &reply) && reply.status == KVD_OK);
    for (uint32_t i = 0; i < KVD_DIGEST_BYTES; i++) snprintf(digest + 2 * i, 3, "%02x", fx_domain.bytes[i]);
    memset(label, 'x', sizeof label);
    label[sizeof label - 1] = 0;
    struct {
        const char *domain;
        unsigned sequences, continuations;
    } wants[] = { { "", 1, 3 }, { "m/other", 1, 0 }, { digest, 0, 3 }, { "m/none", 0, 0 }, { label, 0, 0 } };
    for (size_t i = 0; i < sizeof wants / sizeof *wants; i++) {
        cJSON *root = state_of(wants[i].domain, &document, &bytes);
        const cJSON *s = at(root, "sequences"), *c = at(root, "continuations");
        KVT_EQ_I(cJSON_GetArraySize(at(s, "items")), wants[i].sequences);
        KVT_NEAR(number(s, "matching"), wants[i].sequences, 0);
        KVT_EQ_I(cJSON_GetArraySize(at(c, "items")), wants[i].continuations);
        KVT_NEAR(number(c, "matching"), wants[i].continuations, 0);
        KVT_NEAR(number(s, "total") + number(c, "total"), 4, 0);
        cJSON_Delete(root);
        free(document);
    }
    fx_peer_free(peer);
    fx_stop(&fx);
}

/* The last hour in a ring: as many samples as it holds, the newest last; the last events, the newest first. */
static void the_last_hour(void) {
    enum { NOTES = HISTORY_SAMPLES + 50, EVENTS = HISTORY_EVENTS + 10 };
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *peer = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct service *s = fx.service;
    uint64_t before = s->history.samples, now = clock_ns();
    run(peer, 200);
    for (uint32_t i = 0; i < NOTES; i++) {
        s->metrics.reused_tokens = i;
        history_note(s, now + i);
    }
    KVT_EQ(s->history.samples, before + NOTES);
    KVT_FALSE(history_is_due(&s->history, now + NOTES - 1));
    KVT_TRUE(history_is_due(&s->history, now + NOTES - 1 + HISTORY_STEP_NS));
    for (uint32_t i = 0; i < EVENTS; i++)
        events_add(s, &(struct kvd_event){ .kind = KVD_EVENT_BOUNDED, .frontier = i, .session = peer->session }, NULL,
                   NULL);
    cJSON *root = hour();
    static const char *const names[] = { "time_ms",        "tokens",        "requests",       "refusals",
                                         "prompt_tokens",  "reused_tokens", "endless_tokens", "moved_bytes",
                                         "occupied_bytes", "sequences",     "continuations",  "available[0]" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        KVT_EQ_I(cJSON_GetArraySize(at(root, names[i])), HISTORY_SAMPLES);
    const cJSON *reused = at(root, "reused_tokens");
    KVT_NEAR(cJSON_GetNumberValue(cJSON_GetArrayItem(reused, 0)), NOTES - HISTORY_SAMPLES, 0);
    KVT_NEAR(cJSON_GetNumberValue(cJSON_GetArrayItem(reused, HISTORY_SAMPLES - 1)), NOTES - 1, 0);
    KVT_NEAR(cJSON_GetNumberValue(cJSON_GetArrayItem(at(root, "tokens"), 0)), 200, 0);
    KVT_NEAR(cJSON_GetNumberValue(cJSON_GetArrayItem(at(root, "available[0]"), 0)), 256 - 4, 0);
    const cJSON *events = at(root, "events");
    KVT_EQ_I(cJSON_GetArraySize(events), HISTORY_EVENTS);
    KVT_NEAR(number(root, "events_so_far"), EVENTS, 0);
    KVT_NEAR(number(cJSON_GetArrayItem(events, 0), "frontier"), EVENTS - 1, 0);
    KVT_EQ_STR(text(cJSON_GetArrayItem(events, 0), "kind"), "bounded");
    KVT_EQ_STR(text(cJSON_GetArrayItem(events, 0), "session"), s->sessions[0].name);
    cJSON_Delete(root);
    fx_peer_free(peer);
    fx_stop(&fx);
}

static void series_are_those_of_metrics(void) {
    char *document;
    size_t bytes;
    KVT_NEED(fx_start(&fx, NULL));
    struct fx_peer *peer = fx_session(&fx, KVD_ROLE_SCHEDULER, 0);
    struct kvd_activated a = run(peer, 200), none;
    struct kvd_activated b;
    KVT_EQ(fx_activate(peer, peer->session, 1u << 30, 1, &none), KVD_OUT_OF_RANGE);
    KVT_EQ(fx_activate(peer, peer->session, 64, 64, &b), KVD_OK);
    struct kvd_stats stats = fx_stats(peer);
    cJSON *root = state(&document, &bytes);
    const cJSON *series = at(root, "series"), *item = cJSON_GetArrayItem(at(at(root, "sequences"), "items"), 0);
    KVT_NEAR(number(series, "kvd_pool_available_pages{pool=\"main\"}"), stats.pool[0].available, 0);
    KVT_NEAR(number(series, "kvd_pool_reserved_pages{pool=\"main\"}"), stats.pool[0].reserved, 0);
    KVT_NEAR(number(series, "kvd_sequences"), 2, 0);
    KVT_NEAR(number(series, "kvd_refusals_total{request=\"Activate\",status=\"OUT_OF_RANGE\"}"), 1, 0);
    KVT_FALSE(at(series, "kvd_refusals_total{request=\"Activate\",status=\"INTERNAL\"}") != NULL); /* none of those */
    KVT_TRUE(number(series, "kvd_request_seconds_sum{request=\"Activate\"}") > 0);
    KVT_FALSE(strstr(document, "_bucket"));
    KVT_NEAR(number(item, "committed"), 200, 0);
    KVT_NEAR(number(item, "row"), a.pool[0].row, 0);
    KVT_EQ_STR(text(item, "owner"), text(item, "worker"));
    KVT_TRUE(*text(item, "owner"));
    KVT_TRUE(cJSON_IsNull(at(item, "state_slot")));
    KVT_NEAR(number(root, "operations"), (double)stats.operations, 0);
    KVT_NEAR(number(at(root, "arena"), "capacity"), 0, 0);
    cJSON_Delete(root);
    free(document);
    fx_peer_free(peer);
    fx_stop(&fx);
}

/* However many ask, there are ten looks a second at most; each answer is a whole document. */
static void ten_looks_a_second(void) {
    char place[64], says[256], listen[128], last[32] = "";
    struct config config;
    struct http *http = NULL;
    snprintf(place, sizeof place, "/tmp/kvd-test-ui-%d.sock", (int)getpid());
    snprintf(listen, sizeof listen, "[http]\nlisten = unix:%s\n", place);
    KVT_NEED(fx_start(&fx, NULL));
    KVT_OK(config_parse("k.conf", listen, &config, says, sizeof says));
    KVT_OK(http_open(&config, &http, says, sizeof says));
    KVT_NEED(http);
    KVT_EQ_I(http_status(place, "/ui/state.json", "starting", NULL), 503);
    KVT_EQ_I(http_status(place, "/ui", "<!DOCTYPE html>", NULL), 200); /* it says itself that there is nothing yet */
    KVT_EQ_I(http_status(place, "/ui/history.json", "starting", NULL), 503);
    http_serve(http, fx.service);
    bool has = false;
    KVT_EQ_I(http_status(place, "/ui/history.json", "\"events\":[", &has), 200);
    KVT_TRUE(has);
    unsigned asked = 0, looks = 0;
    uint64_t begin = clock_ns();
    for (; clock_ns() < begin + UINT64_C(650000000) || looks < 2 || asked == looks; asked++) {
        KVT_NEED(clock_ns() < begin + UINT64_C(60000000000)); /* each was a look of its own for a minute */
        struct http_answer a;
        KVT_TRUE(http_ask(place, "GET", "/ui/state.json", &a) && a.status == 200);
        KVT_EQ(a.announced, a.bytes);
        KVT_TRUE(a.bytes > 2 && a.body[a.bytes - 2] == '}');
        char time[32];
        snprintf(time, sizeof time, "%.24s", a.body);
        looks += strcmp(time, last) != 0;
        memcpy(last, time, sizeof last);
        http_done(&a);
    }
    KVT_TRUE(looks <= (clock_ns() - begin) / HTTP_FRESH_NS + 1);
    /* Of a few domains at a time: who asks for many is told to wait, and the service is not looked at. */
    bool refused = false;
    for (unsigned i = 0; !refused && i < 1000; i++) {
        char target[64];
        snprintf(target, sizeof target, "/ui/state.json?domain=m/%u", i);
        int status = http_status(place, target, "too many ask", &has);
        KVT_EQ_I(status, has ? 503 : 200);
        refused = has;
    }
    KVT_TRUE(refused);
    http_close(http);
    fx_stop(&fx);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(bounded_and_the_first_ones),
                                             KVT_CASE(users_kept_apart_are_not_listed),
                                             KVT_CASE(maps_show_what_is_used),
                                             KVT_CASE(one_domain_is_listed),
                                             KVT_CASE(the_last_hour),
                                             KVT_CASE(series_are_those_of_metrics),
                                             KVT_CASE(ten_looks_a_second),
                                             { 0 } };
    return kvt_main("service_ui", cases, argc, argv);
}
