/* SPDX-License-Identifier: Apache-2.0
 *
 * The page for people in a real browser, headless Chromium: what it shows is what the protocol and /metrics say, it
 * runs under its own Content-Security-Policy, nothing is cut off at any width, it says when the daemon is another one
 * and when it is gone. Pictures of it go to UI_PICTURES.
 *
 * Skipped (77) where there is no Chromium; what needs none is in test_e2e_http.
 */
#include <arpa/inet.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "browser.h"
#include "http_client.h"
#include "scene.h"

#ifndef UI_CHROMIUM
#error "UI_CHROMIUM is the browser, UI_PICTURES a folder"
#endif

static struct e2e_daemon daemon_;
static kvd_client *client; /* scheduler and worker in one */
static char at[32];
static struct browser browser;

/* ---- a store with something in it ------------------------------------------------------------------- */

static int listen_somewhere(unsigned *ret_port) {
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t bytes = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    KVT_OK(bind(fd, (struct sockaddr *)&a, sizeof a));
    KVT_OK(getsockname(fd, (struct sockaddr *)&a, &bytes));
    KVT_OK(listen(fd, 16));
    *ret_port = ntohs(a.sin_port);
    return fd;
}

static void commit(kvd_sequence sequence, uint32_t frontier) {
    struct kvd_round_item item = scene_item(sequence);
    struct kvd_round_result result;
    item.pool[0] = (struct kvd_round_pool){ .ask = KVD_ROUND_COMMIT, .commit = frontier };
    KVT_EQ(kvd_round(client, &item, 1, &result, NULL), KVD_OK);
    KVT_EQ(result.status, KVD_OK);
}

static struct kvd_activated begin(uint64_t seed, uint32_t tokens, uint32_t output) {
    struct kvd_activation want = scene_want(kvd_client_session(client), tokens, output);
    struct kvd_hit hit = scene_find(client, seed, tokens);
    if (hit.usable) want.from = hit.continuation, want.keep = true, want.frontier = hit.usable;
    struct kvd_activated a = scene_activate(client, &want);
    commit(a.sequence, tokens);
    scene_name(client, a.sequence, seed, tokens);
    return a;
}

/* Continuations of which two share pages and one is in the host alone, sequences that run, one that forked, refusals of
 * two kinds. */
static bool fill(void) {
    static const uint32_t kept[] = { 1000, 2000, 640 };
    kvd_continuation last = { 0 };
    struct kvd_moved moved;
    for (uint32_t i = 0; i < 3; i++) {
        uint64_t seed = e2e_stream(10 + i, 5000, 0);
        last = scene_retain(client, begin(seed, kept[i], 64).sequence, seed, kept[i]);
    }
    KVT_EQ(kvd_demote(client, last, false, &moved, NULL), KVD_OK);
    uint64_t branch = e2e_stream(10, 700, 1);
    scene_retain(client, begin(branch, 1200, 64).sequence, branch, 1200);
    begin(e2e_stream(11, 5000, 0), 2100, 500);
    begin(e2e_stream(50, 5000, 0), 300, 3000);
    struct kvd_activation large = scene_want(kvd_client_session(client), 4000, 90);
    struct kvd_activated a;
    enum kvd_status status = KVD_OK;
    for (int i = 0; i < 20 && status == KVD_OK; i++) status = kvd_activate(client, &large, &a, NULL);
    KVT_EQ(status, KVD_RESOURCE_EXHAUSTED);
    large.from.bits = 0x99;
    KVT_EQ(kvd_activate(client, &large, &a, NULL), KVD_NOT_FOUND);
    return true;
}

static bool show_page(void) {
    char url[64];
    snprintf(url, sizeof url, "http://%s/ui", at);
    return browser_size(&browser, 1280, 1000, false) && browser_open(&browser, url) &&
           browser_until(&browser, "Boolean(now && before && past)", 20);
}

/* A daemon with these lines, and a browser that has its page open. */
static bool open_stage(const char *lines, uint32_t context, uint32_t tokens) {
    char more[256];
    unsigned port;
    int fd = listen_somewhere(&port);
    close(fd);
    snprintf(at, sizeof at, "127.0.0.1:%u", port);
    snprintf(more, sizeof more, "[http]\nlisten = %s\n%s", at, lines);
    struct e2e_setup setup = { .more = more,
                               .max_context = context,
                               .max_concurrency = 16,
                               .capacity_tokens = tokens,
                               .layers = 1,
                               .kv_heads = 1 };
    if (!e2e_daemon_start(&daemon_, &setup)) return false;
    client = e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "engine-1");
    return KVT_TRUE(client != NULL) && KVT_TRUE(browser_start(&browser, UI_CHROMIUM, daemon_.dir));
}
#define HOST "[host]\narena = 64MiB\n"

static void close_stage(void) {
    char command[160];
    KVT_EQ(browser.complaints, 0); /* of the policy, or thrown */
    browser_stop(&browser);
    snprintf(command, sizeof command, "rm -rf %s/browser", daemon_.dir);
    KVT_OK(system(command));
    kvd_disconnect(client);
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGTERM), 0);
    e2e_daemon_free(&daemon_);
}

/* ---- what the page shows -------------------------------------------------------------------------------- */

/* The text of the element with this data-k, in static memory. */
static const char *shown(const char *key) {
    static char text[128];
    char expression[256];
    snprintf(expression, sizeof expression,
             "[...document.querySelectorAll('[data-k]')].filter(e => e.dataset.k === '%s').map(e => e.textContent)[0]",
             key);
    cJSON *value = browser_value(&browser, expression);
    snprintf(text, sizeof text, "%s", cJSON_IsString(value) ? cJSON_GetStringValue(value) : "nothing");
    cJSON_Delete(value);
    return text;
}

static void shows(const char *key, const char *wanted) {
    if (!KVT_EQ_STR(shown(key), wanted)) printf("    %s\n", key);
}

static void shows_number(const char *key, uint64_t number) {
    char text[32], want[40];
    size_t n = 0;
    int digits = snprintf(text, sizeof text, "%" PRIu64, number);
    for (int i = 0; i < digits; i++) { /* 12345 is shown as 12,345 */
        if (i && (digits - i) % 3 == 0) want[n++] = ',';
        want[n++] = text[i];
    }
    want[n] = 0;
    shows(key, want);
}

static void shows_bytes(const char *key, uint64_t bytes) {
    static const char *const units[] = { "B", "KiB", "MiB", "GiB" };
    char want[32];
    double value = (double)bytes;
    unsigned unit = 0;
    for (; value >= 1024 && unit < 3; unit++) value /= 1024;
    snprintf(want, sizeof want, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    shows(key, want);
}

/* Of a page of metrics; -1: there is no such series. */
static double series_of(const char *metrics, const char *series) {
    size_t n = strlen(series);
    for (const char *line = metrics; (line = strstr(line, series)); line += n)
        if ((line == metrics || line[-1] == '\n') && line[n] == ' ') return strtod(line + n, NULL);
    return -1;
}

/* Every figure that names a series, against /metrics. Those that grow by looking are not among them. */
static unsigned compare_with_metrics(void) {
    struct http_answer answer;
    unsigned n = 0;
    KVT_TRUE(http_ask(at, "GET", "/metrics", &answer) && answer.status == 200);
    cJSON *all = browser_value(&browser, "[...document.querySelectorAll('[data-k^=\"kvd_\"]')].map(e => [e.dataset.k, "
                                         "e.textContent.replaceAll(',', '')])");
    for (const cJSON *one = all ? all->child : NULL; one; one = one->next, n++) {
        const char *series = cJSON_GetStringValue(cJSON_GetArrayItem(one, 0));
        const char *text = cJSON_GetStringValue(cJSON_GetArrayItem(one, 1));
        if (!KVT_NEAR(strtod(text, NULL), series_of(answer.body, series), 0))
            printf("    %s is shown as %s\n", series, text);
    }
    cJSON_Delete(all);
    http_done(&answer);
    return n;
}

/* ---- nothing is cut off ---------------------------------------------------------------------------------- */

/* What does not fit: elements beyond the right edge, boxes whose content is wider than they are, texts over each other
 * in a row of a table, columns that are not there. */
static const char what_does_not_fit[] =
    "(() => { const bad = [], wide = document.documentElement;"
    "if (wide.scrollWidth > innerWidth) bad.push('the page is ' + wide.scrollWidth + ' wide');"
    "for (const e of document.querySelectorAll('header *, main *')) {"
    "  if (e.closest('svg') || e.tagName === 'OPTION' || !e.getClientRects().length) continue;"
    "  const r = e.getBoundingClientRect(), name = e.tagName + ' ' + (e.id || e.className) + ' ' + "
    "e.textContent.slice(0, 40);"
    "  if (r.right > innerWidth + 1 || r.left < -1) bad.push('beyond the edge: ' + name);"
    "  if (e.scrollWidth > e.clientWidth + 1 && e.clientWidth && getComputedStyle(e).display !== 'inline')"
    "    bad.push('wider than its box: ' + name);"
    "}"
    "for (const row of document.querySelectorAll('tbody tr')) for (const cell of row.cells)"
    "  if (!cell.getClientRects().length || cell.getBoundingClientRect().width < 8) bad.push('no column ' + "
    "cell.dataset.name);"
    "return bad.slice(0, 8); })()";

/* Texts whose contrast to what is behind them is less than 4.5 to 1 (WCAG 2, level AA). */
static const char what_is_faint[] =
    "(() => { const bad = [], light = c => { const [r, g, b] = c.match(/[\\d.]+/g).map(v => (v /= 255) <= .03928 ? v / "
    "12.92 :"
    "  ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b + .05; };"
    "for (const e of document.querySelectorAll('header *, main *')) {"
    "  if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || !e.getClientRects().length) continue;"
    "  let back = e; while (/, 0\\)$/.test(getComputedStyle(back).backgroundColor)) back = back.parentElement;"
    "  const a = light(getComputedStyle(e).color), b = light(getComputedStyle(back).backgroundColor);"
    "  if (Math.max(a, b) / Math.min(a, b) < 4.5) bad.push(e.tagName + ' ' + e.className + ' ' + "
    "e.textContent.slice(0, 40));"
    "} return bad.slice(0, 8); })()";

static void check_none(const char *expression, const char *scene, uint32_t width) {
    cJSON *bad = browser_value(&browser, expression);
    KVT_TRUE(cJSON_IsArray(bad));
    if (!KVT_EQ_I(cJSON_GetArraySize(bad), 0)) {
        char *text = cJSON_Print(bad);
        printf("    %s, %u wide: %s\n", scene, width, text);
        free(text);
    }
    cJSON_Delete(bad);
}

static void take_picture(const char *scene, uint32_t width, bool dark) {
    char path[512];
    snprintf(path, sizeof path, "%s/ui-%s-%u-%s.png", UI_PICTURES, scene, width, dark ? "dark" : "light");
    KVT_TRUE(browser_picture(&browser, path));
    printf("    picture: %s\n", path);
}

static void resize(uint32_t width, bool dark) {
    KVT_TRUE(browser_size(&browser, width, 900, dark));
    KVT_TRUE(browser_until(&browser, "new Promise(r => requestAnimationFrame(() => r(true)))", 5));
}

/* At two widths, light and dark: the colours are others, and texts stand out from what is behind them. */
static void check_looks(const char *scene) {
    static const uint32_t widths[] = { 1280, 400 };
    for (int i = 0; i < 4; i++) {
        bool dark = i % 2;
        resize(widths[i / 2], dark);
        cJSON *back =
            browser_value(&browser, "Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])");
        KVT_EQ(cJSON_GetNumberValue(back) < 60, dark);
        cJSON_Delete(back);
        check_none(what_does_not_fit, scene, widths[i / 2]);
        if (i < 2) check_none(what_is_faint, scene, widths[i / 2]);
        take_picture(scene, widths[i / 2], dark);
    }
}

/* ---- scenes ------------------------------------------------------------------------------------------------ */

static void idle(void) {
    KVT_NEED(open_stage("", 8192, 32768));
    KVT_NEED(show_page());
    KVT_TRUE(compare_with_metrics() >= 30);
    KVT_TRUE(browser_is(&browser, "document.getElementById('alarms').children.length === 0"));
    KVT_TRUE(browser_is(&browser, "document.querySelectorAll('.bad').length === 0"));
    check_looks("idle");
    close_stage();
}

static void check_lists(void) {
    struct kvd_sequence_info sequences[KVD_MAX_LIST];
    struct kvd_continuation_info continuations[KVD_MAX_LIST];
    char key[64];
    uint32_t cursor = 0, n = 0;
    KVT_EQ(kvd_list_sequences(client, NULL, &cursor, sequences, KVD_MAX_LIST, &n, NULL), KVD_OK);
    KVT_TRUE(n >= 3);
    for (uint32_t i = 0; i < n; i++) {
        snprintf(key, sizeof key, "0x%" PRIx64 ".committed", sequences[i].sequence.bits);
        shows_number(key, sequences[i].pool[0].committed);
    }
    cursor = 0;
    KVT_EQ(kvd_list_continuations(client, NULL, &cursor, continuations, KVD_MAX_LIST, &n, NULL), KVD_OK);
    uint32_t live = 0;
    for (uint32_t i = 0; i < n; i++) {
        live += continuations[i].live;
        snprintf(key, sizeof key, "0x%" PRIx64 ".frontier", continuations[i].continuation.bits);
        if (!continuations[i].live) shows_number(key, continuations[i].frontier);
        else shows(key, "nothing"); /* LIVE-1: it has no turn to go */
    }
    KVT_EQ(n - live, 4);
    KVT_EQ(live, 2);
}

/* A full hour as kvd would tell it: 1,000 tokens each ten seconds, a quarter of the prompts reused. */
static const char full_hour[] =
    "(() => { const n = 361, each = f => Array.from({ length: n }, (_, i) => f(i));"
    "past = { ...past, time_ms: each(i => 1700000000000 + 10000 * i), tokens: each(i => 1000 * i),"
    "  requests: each(i => 70 * i + 20 * Math.round(10 * Math.sin(i / 20))), refusals: each(i => i),"
    "  prompt_tokens: each(i => 400 * i), reused_tokens: each(i => 100 * i), endless_tokens: each(i => 300 * i),"
    "  moved_bytes: each(i => 1048576 * i), occupied_bytes: each(i => 100000 * i), sequences: each(i => i % 17),"
    "  continuations: each(i => i), 'available[0]': each(i => 512 - i) };"
    "pastAt = Date.now(); showGraphs(); return true; })()";

static void check_graph(uint32_t at_graph, const char *wanted) {
    char expression[256];
    snprintf(
        expression, sizeof expression,
        "[...document.querySelectorAll('.graph')[%u].querySelectorAll('.legend b')].map(e => e.textContent).join()",
        at_graph);
    cJSON *value = browser_value(&browser, expression);
    KVT_EQ_STR(cJSON_IsString(value) ? cJSON_GetStringValue(value) : "nothing", wanted);
    cJSON_Delete(value);
}

static void check_graphs(void) {
    KVT_NEED(browser_size(&browser, 1280, 900, false));
    KVT_NEED(browser_is(&browser, full_hour));
    check_graph(0, "100 /s");
    check_graph(2, "25 %,75 %");
    check_graph(3, "29.7 %"); /* 152 of 512 pages */
    check_graph(6, "102.4 KiB/s");
    KVT_TRUE(browser_is(&browser,
                        "document.querySelector('.graph polyline').getAttribute('points').split(' ').length === 360"));
    /* Where the pointer is, its time and its value are told. */
    KVT_TRUE(browser_is(&browser,
                        "(() => { const s = document.querySelectorAll('.graph svg')[3], r = s.getBoundingClientRect();"
                        "s.dispatchEvent(new PointerEvent('pointermove', { clientX: r.left + r.width / 2 }));"
                        "return s.parentNode.querySelector('h2 small').textContent === clock(1700001800000); })()"));
    check_graph(3, "64.8 %"); /* 332 of 512 */
    check_none(what_does_not_fit, "hour", 1280);
    take_picture("hour", 1280, false);
}

/* Every figure of the page is that of the protocol, and of /metrics. */
static void busy(void) {
    char epoch[24];
    KVT_NEED(open_stage(HOST, 8192, 32768));
    KVT_NEED(fill());
    KVT_NEED(show_page());
    struct kvd_stats stats = scene_stats(client);
    KVT_TRUE(compare_with_metrics() >= 30);
    shows_number("free_pages", stats.pool[0].available);
    KVT_TRUE(stats.pool[0].shared > 0 && stats.pool[0].reserved > 0);
    shows_number("refusals", stats.refusals);
    KVT_EQ(stats.refusals, 2);
    shows("refused.RESOURCE_EXHAUSTED", "1");
    shows("refused.NOT_FOUND", "1");
    shows("kvd_shortages_total{short=\"main_pages\"}", "1");
    shows("kvd_activations_total{source=\"fork\"}", "2");
    shows_number("kvd_activations_total{source=\"root\"}", stats.sequences + 4 - 2);
    /* 700 tokens are equal, 640 of them in full pages; and all of the other */
    shows_number("kvd_activated_tokens_total{tier=\"device\"}", 640 + 2000);
    shows("kvd_activated_tokens_total{tier=\"host\"}", "0");
    shows_number("kvd_committed_tokens_total", stats.committed_tokens);
    KVT_TRUE(stats.host_occupied > 0 && stats.demoted_continuations == 1);
    shows_bytes("arena.capacity", stats.host_capacity);
    shows_bytes("arena.occupied", stats.host_occupied);
    shows_bytes("arena.largest_free", stats.host_largest_free);
    snprintf(epoch, sizeof epoch, "%016" PRIx64, stats.epoch);
    shows("epoch", epoch);
    shows("version", stats.version);
    KVT_TRUE(browser_is(&browser, "document.body.textContent.includes('engine-1')"));
    KVT_TRUE(browser_is(&browser, "document.getElementById('lost').hidden"));
    KVT_TRUE(browser_is(&browser,
                        "[...document.querySelectorAll('#continuations td')].some(e => e.textContent === 'host')"));
    check_lists();
    /* A full store is no alarm, and a refusal for want of pages is not red. */
    KVT_TRUE(browser_is(&browser, "document.querySelectorAll('.bad').length === 0"));
    KVT_TRUE(browser_is(&browser, "document.querySelectorAll('#graphs svg').length >= 6"));
    KVT_TRUE(browser_is(&browser, "document.querySelectorAll('.map path').length >= 3"));
    KVT_TRUE(
        browser_is(&browser,
                   "[...document.querySelectorAll('th')].filter(e => e.closest('.rows') && !e.title).length <= 1"));
    check_looks("busy");
    check_graphs();
    close_stage();
}

/* Every column that there can be, with long names and large numbers, at widths between those of the pictures. */
static void all_columns_fit(void) {
    static const uint32_t widths[] = { 1600, 1280, 1241, 1240, 800, 561, 360 };
    KVT_NEED(open_stage(HOST "[capacity]\nstate_bytes = 4096\n", 262144, 262144 * 2));
    kvd_client *other =
        e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "scheduler-of-a-machine.with-a-very-long-name.example.org:12345");
    KVT_NEED(other);
    struct kvd_activation want = scene_want(kvd_client_session(other), 200000, 2000);
    struct kvd_activated a;
    snprintf(want.root.label, sizeof want.root.label, "organisation/model-with-a-long-name-1234b-it/adapter/tenant");
    KVT_EQ(kvd_activate(other, &want, &a, NULL), KVD_OK);
    KVT_NEED(show_page());
    /* What the daemon does not say here: a second pool, and a continuation with everything. */
    KVT_TRUE(browser_is(
        &browser,
        "(() => { const s = now.sequences.items[0];"
        "s.pages = s.entitled_pages = [123456, 123456]; s.state = 'quarantined'; s.ending = true; s.age = 987654;"
        "const c = { continuation: '0xffffffffffffffff', frontier: 262144, retention: 4294967295, sharers: 12345,"
        "  claimed: true, age: 987654, idle: 987654, pages: [4096, 4096], exclusive_pages: [4096, 4096],"
        "  device_pages: [1, 1], host_pages: [1, 1], demoted: false, moving: false, state_slot: 12345,"
        "  domain: s.domain, label: s.label };"
        "now.continuations = { total: 1, matching: 1, items: [c] }; clearTimeout(timer); looking = true; showAll();"
        "return document.querySelectorAll('#continuations th').length === 12; })()"));
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        resize(widths[i], false);
        check_none(what_does_not_fit, "columns", widths[i]);
    }
    kvd_disconnect(other);
    close_stage();
}

/* An alarm of the guide is shown by its name, with what it counts; so is the event. */
static void a_lost_worker_shows(void) {
    struct puppet worker;
    KVT_NEED(open_stage("", 8192, 32768));
    KVT_NEED(puppet_start(&worker));
    kvd_session_id session = puppet_connect(&worker, &daemon_, KVD_ROLE_WORKER, 0);
    struct kvd_activation want = scene_want(session, 100, 100);
    scene_activate(client, &want);
    puppet_kill(&worker);
    KVT_NEED(show_page());
    KVT_TRUE(browser_until(&browser, "document.querySelector('[data-alarm=KvdSequencesLost] .warn') !== null", 20));
    KVT_TRUE(browser_until(&browser, "document.querySelector('[data-event=ended]') !== null", 20));
    KVT_TRUE(browser_is(&browser, "document.querySelectorAll('.bad').length === 0")); /* that is a warning */
    check_looks("alarm");
    close_stage();
}

/* n continuations of a page each, of two domains by turns; as many sequences at once as there may be. */
static void keep_many(uint32_t n) {
    enum { AT_ONCE = 16 };
    struct kvd_round_item items[AT_ONCE];
    struct kvd_round_result results[AT_ONCE];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = i % AT_ONCE;
        struct kvd_activation want = scene_want(kvd_client_session(client), 3, 1);
        want.root.digest.bytes[0] ^= (uint8_t)(i % 2);
        snprintf(want.root.label, sizeof want.root.label, "model-%s/adapter-with-a-long-name", i % 2 ? "a" : "b");
        items[k] = scene_item(scene_activate(client, &want).sequence);
        items[k].pool[0] = (struct kvd_round_pool){ .ask = KVD_ROUND_COMMIT, .commit = 3 };
        if (k + 1 < AT_ONCE) continue;
        KVT_NEED(kvd_round(client, items, AT_ONCE, results, NULL) == KVD_OK);
        for (k = 0; k < AT_ONCE; k++) {
            uint32_t number = i + 1 - AT_ONCE + k;
            struct kvd_finish finish = {
                .sequence = items[k].sequence, .retain = true, .retention = number % 7, .tail = { 3, { number, 1, 2 } }
            };
            struct kvd_finished made;
            KVT_EQ(kvd_finish(client, &finish, &made, NULL), KVD_OK);
        }
    }
}

/* As many as a store has: those that go first are listed, of the domain that is chosen. */
static void ten_thousand_continuations(void) {
    KVT_NEED(open_stage("[limits]\ncontinuations = 10100\n", 8192, 12000 * 64));
    keep_many(10000);
    KVT_EQ(scene_stats(client).continuations, 10000);
    KVT_NEED(show_page());
    KVT_TRUE(compare_with_metrics() >= 30);
    shows("kvd_continuations", "10,000");
    KVT_TRUE(browser_is(&browser, "now.continuations.items.length === 200 && now.continuations.total === 10000"));
    KVT_TRUE(browser_is(&browser, "now.continuations.items.every(c => c.retention === 0)"));
    KVT_TRUE(browser_is(&browser, "document.getElementById('continuations-note').textContent === "
                                  "'the 200 that go first of 10,000'"));
    check_looks("many");
    KVT_TRUE(browser_is(&browser,
                        "(() => { const s = document.getElementById('domain'); s.value = "
                        "'model-a/adapter-with-a-long-name'; s.dispatchEvent(new Event('change')); return true; })()"));
    KVT_TRUE(browser_until(&browser, "now.continuations.matching === 5000", 15));
    KVT_TRUE(browser_is(&browser, "now.continuations.items.length === 200 && "
                                  "now.continuations.items.every(c => c.label.startsWith('model-a/'))"));
    KVT_TRUE(browser_is(&browser, "document.getElementById('continuations-note').textContent === "
                                  "'the 200 that go first of 5,000 of this domain, 10,000 in all'"));
    close_stage();
}

/* SRV-8 for people: when the daemon is gone a banner says so, and the last figures stay with their age; another
 * instance is pointed out. */
static void srv_8_loss_and_restart_show(void) {
    KVT_NEED(open_stage(HOST, 8192, 32768));
    KVT_NEED(fill());
    KVT_NEED(show_page());
    uint32_t sequences = scene_stats(client).sequences;
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGKILL), -SIGKILL);
    KVT_TRUE(browser_until(&browser,
                           "document.getElementById('lost').textContent.startsWith('kvd is not reachable: the "
                           "connection was refused or broke. The figures are ')",
                           20));
    KVT_TRUE(browser_is(&browser, "document.getElementById('state').textContent === 'not reachable'"));
    shows_number("kvd_sequences", sequences);
    check_looks("dead");
    kvd_disconnect(client);
    KVT_NEED(e2e_daemon_restart(&daemon_));
    client = e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "engine-1");
    KVT_TRUE(browser_until(&browser,
                           "document.getElementById('other').textContent.startsWith('kvd was restarted: this is "
                           "another instance since ')",
                           20));
    KVT_TRUE(browser_is(&browser, "document.getElementById('lost').hidden"));
    shows("kvd_sequences", "0");
    close_stage();
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(idle),
                                             KVT_CASE(busy),
                                             KVT_CASE(all_columns_fit),
                                             KVT_CASE(a_lost_worker_shows),
                                             KVT_CASE(ten_thousand_continuations),
                                             KVT_CASE(srv_8_loss_and_restart_show),
                                             { 0 } };
    if (access(UI_CHROMIUM, X_OK) != 0) {
        puts("skipped: no headless Chromium (Debian: chromium-headless-shell)");
        return 77;
    }
    signal(SIGPIPE, SIG_IGN);
    return kvt_main("e2e_ui", cases, argc, argv);
}
