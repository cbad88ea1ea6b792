/* SPDX-License-Identifier: Apache-2.0
 *
 * The page for people in a real browser, headless Chromium: what it shows is what the protocol says, it runs under its
 * own Content-Security-Policy, it says when the daemon is another one and when it is gone. Pictures of it go to
 * UI_PICTURES.
 *
 * Skipped (77) where there is no Chromium; what needs none is in test_e2e_http.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "http_client.h"
#include "scene.h"

#ifndef UI_CHROMIUM
#error "UI_CHROMIUM is the browser, UI_PICTURES a folder"
#endif

static struct e2e_daemon daemon_;
static kvd_client *client; /* scheduler and worker in one */
static char at[32];

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

static bool open_stage(void) {
    char more[96];
    unsigned port;
    int fd = listen_somewhere(&port);
    close(fd);
    snprintf(at, sizeof at, "127.0.0.1:%u", port);
    snprintf(more, sizeof more, "[http]\nlisten = %s\n[host]\narena = 64MiB\n", at);
    if (!e2e_daemon_start(&daemon_,
                          &(struct e2e_setup){
                              .more = more, .max_context = 8192, .max_concurrency = 16, .capacity_tokens = 32768 }))
        return false;
    client = e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "engine-1");
    return KVT_TRUE(client != NULL) && fill();
}

static void close_stage(void) {
    kvd_disconnect(client);
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGTERM), 0);
    e2e_daemon_free(&daemon_);
}

/* ---- the browser --------------------------------------------------------------------------------------- */

static char page[1 << 20];

/* Its output into page. False: it failed, or took longer than 40 s. */
static bool browse_once(const char *const *argv) {
    int ends[2], status = -1, null = open("/dev/null", O_RDWR | O_CLOEXEC);
    KVT_OK(pipe2(ends, O_CLOEXEC));
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        setpgid(0, 0);
        dup2(null, 0), dup2(ends[1], 1), dup2(null, 2);
        execv(argv[0], (char **)(uintptr_t)argv);
        _exit(127);
    }
    close(ends[1]);
    close(null);
    size_t got = 0;
    ssize_t some = 1;
    double end = e2e_now() + 40;
    while (some > 0 && e2e_now() < end && got < sizeof page - 1) {
        struct pollfd p = { .fd = ends[0], .events = POLLIN };
        if (poll(&p, 1, 1000) == 1 && (some = read(ends[0], page + got, sizeof page - 1 - got)) > 0)
            got += (size_t)some;
    }
    page[got] = 0;
    close(ends[0]);
    if (some > 0) kill(-pid, SIGKILL); /* its helpers, too */
    waitpid(pid, &status, 0);
    return some == 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* With these arguments up to NULL, and what it always needs. Headless Chromium under virtual time does not come back
 * now and then, whatever the page: it is asked three times. */
static bool browse(const char *first, ...) {
    const char *argv[24] = { UI_CHROMIUM,      "--headless",        "--no-sandbox", "--disable-gpu",
                             "--no-first-run", "--hide-scrollbars", first };
    char profile[160], clear[192];
    int n = 7;
    bool ok = false;
    va_list args;
    va_start(args, first);
    while (n < 22 && (argv[n] = va_arg(args, const char *))) n++;
    va_end(args);
    snprintf(profile, sizeof profile, "--user-data-dir=%s/browser", daemon_.dir);
    snprintf(clear, sizeof clear, "rm -rf %s/browser", daemon_.dir);
    argv[n++] = profile;
    argv[n] = NULL;
    for (int turn = 0; turn < 3 && !ok; turn++) {
        ok = browse_once(argv);
        KVT_OK(system(clear));
    }
    return ok;
}

/* The text of the element with this data-k; NULL: there is none. */
static const char *shown(const char *key) {
    static char text[128];
    char mark[128];
    snprintf(mark, sizeof mark, "data-k=\"%s\">", key);
    const char *from = strstr(page, mark);
    if (!from) return NULL;
    from += strlen(mark);
    snprintf(text, sizeof text, "%.*s", (int)strcspn(from, "<"), from);
    return text;
}

static bool shows(const char *key, uint64_t number) {
    char text[32], want[40];
    size_t n = 0;
    int digits = snprintf(text, sizeof text, "%" PRIu64, number);
    for (int i = 0; i < digits; i++) { /* 12345 is shown as 12,345 */
        if (i && (digits - i) % 3 == 0) want[n++] = ',';
        want[n++] = text[i];
    }
    want[n] = 0;
    const char *is = shown(key);
    if (KVT_EQ_STR(is ? is : "nothing", want)) return true;
    printf("    %s\n", key);
    return false;
}

static bool shows_bytes(const char *key, uint64_t bytes) {
    static const char *const units[] = { "B", "KiB", "MiB", "GiB" };
    char want[32];
    double value = (double)bytes;
    unsigned unit = 0;
    for (; value >= 1024 && unit < 3; unit++) value /= 1024;
    snprintf(want, sizeof want, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    const char *is = shown(key);
    if (KVT_EQ_STR(is ? is : "nothing", want)) return true;
    printf("    %s\n", key);
    return false;
}

/* ---- scenes ------------------------------------------------------------------------------------------------ */

static void check_lists(void) {
    struct kvd_sequence_info sequences[KVD_MAX_LIST];
    struct kvd_continuation_info continuations[KVD_MAX_LIST];
    char key[64];
    uint32_t cursor = 0, n = 0;
    KVT_EQ(kvd_list_sequences(client, NULL, &cursor, sequences, KVD_MAX_LIST, &n, NULL), KVD_OK);
    KVT_TRUE(n >= 3);
    for (uint32_t i = 0; i < n; i++) {
        snprintf(key, sizeof key, "0x%" PRIx64 ".committed", sequences[i].sequence.bits);
        shows(key, sequences[i].pool[0].committed);
    }
    cursor = 0;
    KVT_EQ(kvd_list_continuations(client, NULL, &cursor, continuations, KVD_MAX_LIST, &n, NULL), KVD_OK);
    KVT_EQ(n, 4);
    for (uint32_t i = 0; i < n; i++) {
        snprintf(key, sizeof key, "0x%" PRIx64 ".frontier", continuations[i].continuation.bits);
        shows(key, continuations[i].frontier);
    }
}

/* Every figure of the page is that of the protocol. */
static void figures_are_those_of_stats(void) {
    char url[64], epoch[24];
    KVT_NEED(open_stage());
    snprintf(url, sizeof url, "http://%s/ui", at);
    KVT_NEED(browse("--dump-dom", "--virtual-time-budget=3000", url, (char *)NULL));
    struct kvd_stats stats = scene_stats(client);
    shows("main.pages", stats.pool[0].capacity);
    shows("main.allocated_pages", stats.pool[0].allocated);
    shows("main.reserved_pages", stats.pool[0].reserved);
    shows("main.available_pages", stats.pool[0].available);
    shows("free_pages", stats.pool[0].available);
    shows("main.quarantined_pages", stats.pool[0].quarantined);
    shows("main.shared_pages", stats.pool[0].shared);
    shows("main.used_rows", stats.pool[0].rows_used);
    KVT_TRUE(stats.pool[0].shared > 0 && stats.pool[0].reserved > 0);
    shows("kvd_sequences", stats.sequences);
    shows("kvd_continuations", stats.continuations);
    shows("refusals", stats.refusals);
    KVT_EQ(stats.refusals, 2);
    shows("refused.RESOURCE_EXHAUSTED", 1);
    shows("refused.NOT_FOUND", 1);
    shows("short.main_pages", 1);
    shows("activations.fork", 2);
    shows("activations.root", stats.sequences + 4 - 2);
    shows("tokens.device", 640 + 2000); /* 700 tokens are equal, 640 of them in full pages; and all of the other */
    shows("tokens.host", 0);
    KVT_TRUE(stats.host_occupied > 0 && stats.demoted_continuations == 1);
    shows_bytes("arena.capacity", stats.host_capacity);
    shows_bytes("arena.occupied", stats.host_occupied);
    shows_bytes("arena.largest_free", stats.host_largest_free);
    KVT_HAS(page, "<td class=\"text\">host</td>"); /* the place of one */
    snprintf(epoch, sizeof epoch, "%016" PRIx64, stats.epoch);
    KVT_EQ_STR(shown("epoch") ? shown("epoch") : "nothing", epoch);
    KVT_EQ_STR(shown("version") ? shown("version") : "nothing", stats.version);
    KVT_HAS(page, "engine-1");
    KVT_HAS(page, "id=\"lost\" class=\"banner\" role=\"alert\" hidden");
    check_lists();
    close_stage();
}

/* Width and height of a PNG that is more than one colour. */
static bool is_picture(const char *path, uint32_t width) {
    uint8_t head[24] = { 0 };
    struct stat st = { .st_size = 0 };
    FILE *f = fopen(path, "re");
    bool ok = f && fread(head, 1, sizeof head, f) == sizeof head && !memcmp(head + 1, "PNG", 3) && !stat(path, &st);
    if (f) fclose(f);
    return ok && st.st_size > 20000 && ((uint32_t)head[18] << 8 | head[19]) == width;
}

static void pictures(void) {
    static const struct {
        const char *name, *size, *scheme;
        uint32_t width;
    } all[] = {
        { "wide-light", "--window-size=1280,1250", "--blink-settings=preferredColorScheme=1", 1280 },
        { "wide-dark", "--window-size=1280,1250", "--blink-settings=preferredColorScheme=0", 1280 },
        { "narrow-light", "--window-size=500,2300", "--blink-settings=preferredColorScheme=1", 500 },
        { "narrow-dark", "--window-size=500,2300", "--blink-settings=preferredColorScheme=0", 500 },
    };
    char url[64], path[512], option[544];
    KVT_NEED(open_stage());
    snprintf(url, sizeof url, "http://%s/ui", at);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        snprintf(path, sizeof path, "%s/ui-%s.png", UI_PICTURES, all[i].name);
        snprintf(option, sizeof option, "--screenshot=%s", path);
        unlink(path);
        KVT_TRUE(browse(option, all[i].size, all[i].scheme, "--virtual-time-budget=3000", url, (char *)NULL));
        KVT_TRUE(is_picture(path, all[i].width));
        printf("    picture: %s\n", path);
    }
    close_stage();
}

/* ---- a daemon that restarts and goes ------------------------------------------------------------------------- */

struct double_ {
    int fd;
    struct http_answer page, state; /* of the real one */
    _Atomic bool stop;
    unsigned asked; /* for the state */
};

static void answer(int fd, const char *type, const char *head, const char *body, size_t bytes) {
    char text[1024];
    const char *policy = strstr(head, "Content-Security-Policy: ");
    int n = snprintf(text, sizeof text,
                     "HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
                     "Connection: close\r\n%.*s\r\n\r\n",
                     type, bytes, policy ? (int)strcspn(policy, "\r") : 6, policy ? policy : "X-A: b");
    KVT_TRUE(send(fd, text, (size_t)n, MSG_NOSIGNAL) == n);
    for (size_t sent = 0; sent < bytes;) {
        ssize_t some = send(fd, body + sent, bytes - sent, MSG_NOSIGNAL);
        if (some <= 0) return;
        sent += (size_t)some;
    }
}

/* The state as it was, a second later, and of another instance from the third time on. NULL: no answer. */
static char *state_now(struct double_ *d) {
    char *text = strdup(d->state.body), *epoch = strstr(text, "epoch=\\\""), *time = strstr(text, "\"time\":");
    unsigned turn = d->asked++;
    KVT_TRUE(epoch && time);
    time[7 + 9] = (char)('0' + turn % 10); /* the seconds' last digit */
    if (turn >= 2) memcpy(epoch + 8, "0123456789abcdef", 16), time[7 + 8] = '9';
    if (turn < 4) return text;
    free(text);
    return NULL;
}

static void *play(void *argument) {
    struct double_ *d = argument;
    while (!d->stop) {
        struct pollfd p = { .fd = d->fd, .events = POLLIN };
        char request[4096];
        int fd = poll(&p, 1, 50) == 1 ? accept4(d->fd, NULL, NULL, SOCK_CLOEXEC) : -1;
        if (fd < 0) continue;
        struct pollfd said = { .fd = fd, .events = POLLIN };
        ssize_t n = poll(&said, 1, 1000) == 1 ? recv(fd, request, sizeof request - 1, 0) : 0;
        request[n > 0 ? n : 0] = 0;
        char *state = strncmp(request, "GET /ui/state.json ", 19) == 0 ? state_now(d) : NULL;
        if (state) answer(fd, "application/json", "", state, strlen(state));
        if (strncmp(request, "GET /ui ", 8) == 0) {
            d->asked = 0;
            answer(fd, "text/html", d->page.head, d->page.body, d->page.bytes);
        }
        free(state);
        close(fd);
    }
    return NULL;
}

/* SRV-8 for people: another instance is pointed out; when the daemon is gone a banner says so, and the last figures
 * stay with their age. */
static void srv_8_restart_and_loss_show(void) {
    struct double_ d = { .asked = 0 };
    pthread_t thread;
    unsigned port;
    char url[64];
    KVT_NEED(open_stage());
    KVT_TRUE(http_ask(at, "GET", "/ui", &d.page) && d.page.status == 200);
    KVT_TRUE(http_ask(at, "GET", "/ui/state.json", &d.state) && d.state.status == 200);
    uint32_t sequences = scene_stats(client).sequences;
    close_stage();
    snprintf(daemon_.dir, sizeof daemon_.dir, "/tmp/kvd-e2e-ui-XXXXXX");
    KVT_NEED(mkdtemp(daemon_.dir)); /* for the browser */
    d.fd = listen_somewhere(&port);
    KVT_OK(pthread_create(&thread, NULL, play, &d));
    snprintf(url, sizeof url, "http://127.0.0.1:%u/ui", port);
    KVT_TRUE(browse("--dump-dom", "--virtual-time-budget=12000", url, (char *)NULL));
    d.stop = true;
    pthread_join(thread, NULL);
    KVT_TRUE(d.asked > 4);
    KVT_HAS(page, "kvd was restarted: this is another instance since");
    KVT_HAS(page, "kvd is not reachable: the connection was refused or broke. The figures are ");
    KVT_HAS(page, "<span id=\"state\" class=\"state bad\">not reachable</span>");
    KVT_EQ_STR(shown("epoch") ? shown("epoch") : "nothing", "0123456789abcdef");
    shows("kvd_sequences", sequences);
    close(d.fd);
    rmdir(daemon_.dir);
    http_done(&d.page);
    http_done(&d.state);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = {
        KVT_CASE(figures_are_those_of_stats), KVT_CASE(pictures), KVT_CASE(srv_8_restart_and_loss_show), { 0 }
    };
    if (access(UI_CHROMIUM, X_OK) != 0) {
        puts("skipped: no headless Chromium (Debian: chromium-headless-shell)");
        return 77;
    }
    signal(SIGPIPE, SIG_IGN);
    return kvt_main("e2e_ui", cases, argc, argv);
}
