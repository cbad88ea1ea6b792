/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon's HTTP side in real life: what it serves, what it refuses, and that neither rubbish nor a flood there
 * costs the protocol anything. SRV-2.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "e2e.h"
#include "http_client.h"

#define CONNECTIONS 32u /* http.h */

static struct e2e_daemon daemon_;
static char at[32];

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

static bool start(void) {
    char more[64];
    snprintf(at, sizeof at, "127.0.0.1:%u", free_port());
    snprintf(more, sizeof more, "[http]\nlisten = %s\n", at);
    return e2e_daemon_start(&daemon_, &(struct e2e_setup){ .more = more });
}

struct wish {
    const char *target, *word;
    int status;
};
static bool granted(void *argument) {
    const struct wish *w = argument;
    bool has;
    return http_status(at, w->target, w->word, &has) == w->status && has;
}
static bool comes(const char *target, int status, const char *word) {
    return KVT_TRUE(e2e_until(granted, &(struct wish){ target, word, status }, 60, NULL));
}

static bool few_files(void *most) { return e2e_fd_count(daemon_.pid) <= *(unsigned *)most; }

/* The labels say what `kvd --version` says: kvd 0.1.0 without CUDA (package P, commit C). */
static void check_build(const char *page) {
    char command[64], text[256] = "", wanted[512], *commit, *package;
    snprintf(command, sizeof command, "/proc/%d/exe --version", (int)daemon_.pid);
    FILE *f = popen(command, "re");
    KVT_NEED(f != NULL);
    KVT_TRUE(fgets(text, sizeof text, f) != NULL);
    KVT_OK(pclose(f));
    KVT_NEED((commit = strstr(text, "commit ")) != NULL);
    package = strstr(text, "package ");
    commit += strlen("commit ");
    if (package) package += strlen("package ");
    snprintf(wanted, sizeof wanted, "\nkvd_build_info{version=\"%s\",commit=\"%.*s\",cuda=\"%s\",package=\"%.*s\"} 1\n",
             kvd_version(), (int)strcspn(commit, ")"), commit, strstr(text, "with CUDA") ? "yes" : "no",
             package ? (int)strcspn(package, ",") : 0, package ? package : "");
    KVT_HAS(page, wanted);
}

static void what_is_served(void) {
    KVT_NEED(start());
    struct http_answer a, head;
    KVT_TRUE(http_ask(at, "GET", "/metrics", &a));
    KVT_EQ_I(a.status, 200);
    KVT_HAS(a.head, "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n");
    KVT_HAS(a.head, "Connection: close\r\n");
    KVT_EQ(a.announced, a.bytes);
    KVT_HAS(a.body, "# HELP kvd_build_info ");
    check_build(a.body);
    KVT_HAS(a.body, "\nkvd_audit_violations 0\n");
    KVT_TRUE(http_ask(at, "HEAD", "/metrics", &head));
    KVT_EQ_I(head.status, 200);
    KVT_EQ(head.bytes, 0);
    KVT_TRUE(head.announced > 10000);
    http_done(&a);
    http_done(&head);
    static const struct {
        const char *method, *target;
        int status;
    } asked[] = { { "GET", "/healthz", 200 },   { "GET", "/readyz", 200 },
                  { "HEAD", "/readyz", 200 },   { "GET", "/ui", 200 },
                  { "HEAD", "/ui", 200 },       { "GET", "/ui/state.json", 200 },
                  { "GET", "/ui/", 404 },       { "GET", "/ui/index.html", 404 },
                  { "POST", "/ui", 405 },       { "GET", "/metrics?a=b", 200 },
                  { "GET", "/", 404 },          { "GET", "/metrics/", 404 },
                  { "GET", "/METRICS", 404 },   { "GET", "/../metrics", 404 },
                  { "HEAD", "/x", 404 },        { "PUT", "/metrics", 405 },
                  { "DELETE", "/", 405 },       { "OPTIONS", "/metrics", 405 },
                  { "TRACE", "/metrics", 405 }, { "get", "/metrics", 405 },
                  { "BREW", "/pot", 405 } };
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        KVT_TRUE(http_ask(at, asked[i].method, asked[i].target, &a));
        if (!KVT_EQ_I(a.status, asked[i].status)) printf("    %s %s\n", asked[i].method, asked[i].target);
        if (asked[i].status == 405) KVT_HAS(a.head, "Allow: GET, HEAD\r\n");
        http_done(&a);
    }
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGTERM), 0);
    KVT_EQ_I(http_dial(at), -1);
    e2e_daemon_free(&daemon_);
}

static unsigned count_of(const char *text, const char *word) {
    unsigned n = 0;
    for (const char *p = text; (p = strstr(p, word)); p += strlen(word)) n++;
    return n;
}

/* The page for people needs nothing from elsewhere and may have nothing from there; ui = no takes it away. */
static void page_for_people(void) {
    char more[96];
    struct http_answer a;
    KVT_NEED(start());
    KVT_TRUE(http_ask(at, "GET", "/ui", &a));
    KVT_HAS(a.head, "Content-Type: text/html; charset=utf-8\r\n");
    KVT_HAS(a.head, "Content-Security-Policy: default-src 'none'; style-src 'sha256-");
    KVT_HAS(a.head, "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n");
    KVT_FALSE(strstr(a.head, "unsafe-"));
    KVT_HAS(a.head, "Cache-Control: no-store\r\n");
    KVT_HAS(a.body, "<!DOCTYPE html>");
    KVT_EQ(count_of(a.body, "://"), 1); /* the name of SVG, which nobody fetches */
    KVT_EQ(count_of(a.body, " src=") + count_of(a.body, " href=") + count_of(a.body, "url(") +
               count_of(a.body, "@import") + count_of(a.body, "innerHTML"),
           0);
    http_done(&a);
    KVT_TRUE(http_ask(at, "GET", "/ui/state.json", &a));
    KVT_HAS(a.head, "Content-Type: application/json\r\n");
    KVT_HAS(a.body, "\"kvd_pool_available_pages{pool=\\\"main\\\"}\":256");
    http_done(&a);
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGTERM), 0);
    e2e_daemon_free(&daemon_);
    snprintf(at, sizeof at, "127.0.0.1:%u", free_port());
    snprintf(more, sizeof more, "[http]\nlisten = %s\nui = no\n", at);
    KVT_NEED(e2e_daemon_start(&daemon_, &(struct e2e_setup){ .more = more }));
    KVT_EQ_I(http_status(at, "/ui", "There are /metrics", NULL), 404);
    KVT_EQ_I(http_status(at, "/ui/state.json", "There are /metrics", NULL), 404);
    KVT_EQ_I(http_status(at, "/metrics", "kvd_build_info", NULL), 200);
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGTERM), 0);
    e2e_daemon_free(&daemon_);
}

/* The same figures as the protocol's; drain and its end are told. */
static void agrees_with_the_protocol(void) {
    KVT_NEED(start());
    kvd_client *c = e2e_connect(&daemon_, KVD_ROLE_ADMIN, "admin");
    struct kvd_stats stats;
    struct kvd_error error;
    char word[96];
    KVT_NEED(c);
    for (int i = 0; i < 7; i++) KVT_EQ_I(kvd_stats(c, &stats, &error), KVD_OK);
    comes("/metrics", 200, "\nkvd_requests_total{request=\"Stats\"} 7\n");
    comes("/metrics", 200, "\nkvd_request_seconds_count{request=\"Stats\"} 7\n");
    snprintf(word, sizeof word, "\nkvd_pool_available_pages{pool=\"main\"} %u\n", stats.pool[0].available);
    comes("/metrics", 200, word);
    snprintf(word, sizeof word, ",epoch=\"%016" PRIx64 "\"} 1\n", stats.epoch);
    comes("/metrics", 200, word);
    comes("/metrics", 200, "\nkvd_sessions{role=\"admin\"} 1\n");
    comes("/metrics", 200, "\nkvd_connections 1\n"); /* told once a second */
    comes("/readyz", 200, "ready");
    KVT_EQ_I(kvd_drain(c, true, &error), KVD_OK);
    comes("/readyz", 503, "draining");
    comes("/healthz", 200, "ok");
    KVT_EQ_I(kvd_drain(c, false, &error), KVD_OK);
    comes("/readyz", 200, "ready");
    kvd_disconnect(c);
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGTERM), 0);
    e2e_daemon_free(&daemon_);
}

static char *long_text(const char *begin, char fill, size_t n, const char *end) {
    size_t b = strlen(begin);
    char *text = malloc(b + n + strlen(end) + 1);
    memcpy(text, begin, b);
    memset(text + b, fill, n);
    strcpy(text + b + n, end);
    return text;
}

static bool reload_with(const char *line) {
    char more[128];
    snprintf(more, sizeof more, "[http]\nlisten = %s\n%s", at, line);
    return KVT_TRUE(e2e_daemon_configure(&daemon_, &(struct e2e_setup){ .more = more })) &&
           KVT_OK(kill(daemon_.pid, SIGHUP));
}

/* What KvdReloadFailed is about. */
static void a_failed_reload_shows(void) {
    KVT_NEED(start());
    comes("/metrics", 200, "\nkvd_config_last_reload_successful 1\n");
    KVT_NEED(reload_with("nonsense = 1\n"));
    comes("/metrics", 200, "\nkvd_config_last_reload_successful 0\n");
    KVT_NEED(reload_with(""));
    comes("/metrics", 200, "\nkvd_config_last_reload_successful 1\n");
    e2e_daemon_stop(&daemon_, SIGTERM);
    e2e_daemon_free(&daemon_);
}

static void wrong_bytes(void) {
    KVT_NEED(start());
    static const struct {
        const char *begin;
        size_t n;
        const char *end;
        int low, high; /* status; 0: closed without one */
    } wrong[] = {
        { "GET /", 1 << 16, " HTTP/1.1\r\nHost: k\r\n\r\n", 0, 499 }, /* a long request line */
        { "GET /metrics?", 1 << 20, " HTTP/1.1\r\n\r\n", 0, 499 },
        { "GET /metrics HTTP/1.1\r\nHost: k\r\nX: ", 1 << 16, "\r\n\r\n", 0, 499 },
        { "POST /metrics HTTP/1.1\r\nHost: k\r\nContent-Length: 1000000\r\n\r\n", 1000000, "", 405, 405 },
        { "POST /metrics HTTP/1.1\r\nHost: k\r\nContent-Length: 99999999999999999999\r\n\r\n", 10, "", 0, 499 },
        { "PUT /metrics HTTP/1.1\r\nHost: k\r\nTransfer-Encoding: chunked\r\n\r\nzzzz\r\n", 10, "\r\n", 0, 499 },
        { "\r\n\r\n\r\n", 4, "\r\n\r\n", 0, 499 },
        { "\x16\x03\x01\x02", 300, "\r\n\r\n", 0, 499 }, /* TLS */
        { "GET /metrics HTTP/9.9\r\n\r\n", 0, "", 0, 505 },
    };
    unsigned files = e2e_fd_count(daemon_.pid);
    struct http_answer a;
    for (int turn = 0; turn < 20 / E2E_SLOW; turn++)
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
            char *text = long_text(wrong[i].begin, 'a', wrong[i].n, wrong[i].end);
            if (!KVT_TRUE(http_raw(at, text, strlen(text), &a) && a.status >= wrong[i].low &&
                          a.status <= wrong[i].high && a.status != 200))
                printf("    case %zu: status %d\n", i, a.status);
            http_done(&a);
            free(text);
        }
    comes("/healthz", 200, "ok");
    KVT_TRUE(e2e_until(few_files, &files, 60, NULL));
    kvd_client *c = e2e_connect(&daemon_, KVD_ROLE_OBSERVER, "observer");
    struct kvd_stats stats;
    KVT_NEED(c);
    KVT_EQ_I(kvd_stats(c, &stats, NULL), KVD_OK);
    KVT_EQ(stats.requests, 2); /* Hello, Stats: nothing of that was taken for a request */
    KVT_EQ(stats.frames_bad, 0);
    kvd_disconnect(c);
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGTERM), 0);
    e2e_daemon_free(&daemon_);
}

static pid_t flooder(int turns) {
    pid_t pid = fork();
    if (pid) return pid;
    int good = 0;
    for (int i = 0; i < turns; i++)
        good += http_status(at, i % 2 ? "/metrics" : "/ui/state.json", "kvd_build_info", NULL) == 200;
    _exit(good ? 0 : 1);
}

/* Processes that ask without end, then idle connections to the limit and beyond: the protocol is served meanwhile,
 * memory and files are bounded, and everything comes back. */
static void flood(void) {
    enum { IDLE = 96, PROCESSES = 4 };
    KVT_NEED(start());
    kvd_client *c = e2e_connect(&daemon_, KVD_ROLE_SCHEDULER, "scheduler");
    struct kvd_stats before, after;
    pid_t pids[PROCESSES];
    int idle[IDLE], status, running = PROCESSES;
    KVT_NEED(c);
    comes("/healthz", 200, "ok");
    unsigned files = e2e_fd_count(daemon_.pid), most = files + CONNECTIONS + 2;
    uint64_t memory = e2e_rss_bytes(daemon_.pid);
    KVT_EQ_I(kvd_stats(c, &before, NULL), KVD_OK);
    for (int i = 0; i < PROCESSES; i++) pids[i] = flooder(1000 / E2E_SLOW);
    uint64_t rounds = 0;
    while (running) {
        struct kvd_activated a;
        struct kvd_finished f;
        struct kvd_activation want = {
            .root = e2e_root(), .worker = kvd_client_session(c), .prompt_tokens = 64, .max_output_tokens = 64
        };
        if (!KVT_EQ_I(kvd_activate(c, &want, &a, NULL), KVD_OK)) break;
        KVT_EQ_I(kvd_finish(c, &(struct kvd_finish){ .sequence = a.sequence }, &f, NULL), KVD_OK);
        KVT_TRUE(e2e_fd_count(daemon_.pid) <= most);
        rounds++;
        for (int i = 0; i < PROCESSES; i++)
            if (pids[i] && waitpid(pids[i], &status, WNOHANG) == pids[i]) {
                KVT_EQ_I(status, 0);
                pids[i] = 0;
                running--;
            }
    }
    KVT_TRUE(rounds > 20);
    for (int i = 0; i < PROCESSES; i++)
        if (pids[i]) kill(pids[i], SIGKILL), waitpid(pids[i], NULL, 0);
    for (int i = 0; i < IDLE; i++) idle[i] = http_dial(at); /* most of them wait in the backlog */
    for (int i = 0; i < 100; i++) KVT_EQ_I(kvd_stats(c, &after, NULL), KVD_OK);
    KVT_TRUE(e2e_fd_count(daemon_.pid) <= most);
    KVT_EQ_I(kvd_stats(c, &after, NULL), KVD_OK);
    KVT_TRUE(e2e_same_resources(&before, &after));
    KVT_EQ(after.requests, before.requests + 2 * rounds + 101);
#if E2E_SLOW == 1
    KVT_TRUE(e2e_rss_bytes(daemon_.pid) < memory + (4u << 20));
#else
    (void)memory; /* sanitizers keep what is freed */
#endif
    for (int i = 0; i < IDLE; i++)
        if (idle[i] >= 0) close(idle[i]);
    comes("/metrics", 200, "kvd_build_info");
    KVT_TRUE(e2e_until(few_files, &files, 60, NULL));
    kvd_disconnect(c);
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGTERM), 0);
    e2e_daemon_free(&daemon_);
}

static bool asked(const char *head, int status) {
    char request[256];
    struct http_answer a;
    int n = snprintf(request, sizeof request, "GET /ui/state.json HTTP/1.1\r\n%sConnection: close\r\n\r\n", head);
    if (!http_raw(at, request, (size_t)n, &a)) return false;
    bool same = a.status == status && (status == 200 || !strstr(a.body, "tokens"));
    http_done(&a);
    if (!same) printf("    %s: %d\n", head, a.status);
    return same;
}

/* SRV-3: a page that a browser shows reaches this port under its own name (DNS rebinding), and gets nothing. */
static void srv_3_other_hosts_names(void) {
    KVT_NEED(start());
    static const char *const ours[] = { "Host: 127.0.0.1\r\n", "Host: 127.9.8.7:1234\r\n", "Host: LocalHost:80\r\n",
                                        "Host: [::1]:9464\r\n" };
    static const char *const others[] = {
        "Host: evil.example\r\n",
        "Host: evil.example:9464\r\n",
        "Host: 127.0.0.1.evil.example\r\n",
        "Host: localhost.evil.example\r\n",
        "Host: 10.0.0.1\r\n",
        "Host: [::2]\r\n",
        "Host: [::1\r\n",
        "Host: \r\n",
        "Host: 0x7f000001\r\n",
        "Host: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n"
    };
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) KVT_TRUE(asked(ours[i], 200));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) KVT_TRUE(asked(others[i], 403));
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGTERM), 0);
    e2e_daemon_free(&daemon_);
}

#define SLOW 150

/* One process that holds as many connections as it can get, says a byte on each again and again, and comes back with
 * each that is closed. */
static pid_t slow_client(void) {
    pid_t pid = fork();
    if (pid) return pid;
    static int fds[SLOW];
    memset(fds, -1, sizeof fds);
    for (;;)
        for (int i = 0; i < SLOW; i++)
            if (fds[i] < 0) {
                fds[i] = http_dial(at);
                if (fds[i] >= 0) (void)send(fds[i], "GET /m", 6, MSG_NOSIGNAL | MSG_DONTWAIT);
            } else if (send(fds[i], "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno != EAGAIN) {
                close(fds[i]);
                fds[i] = -1;
            }
}

/* SRV-7: connections that say nothing, or little and slowly, keep nobody out: scrapes are answered at once. */
static void srv_7_slow_connections_make_room(void) {
    int silent[CONNECTIONS];
    KVT_NEED(start());
    for (uint32_t i = 0; i < CONNECTIONS; i++) KVT_TRUE((silent[i] = http_dial(at)) >= 0);
    double begin = e2e_now();
    comes("/healthz", 200, "ok");
    KVT_TRUE(e2e_now() - begin < 4 * E2E_SLOW); /* before the time of the silent ones is over */
    for (uint32_t i = 0; i < CONNECTIONS; i++) close(silent[i]);
    pid_t pid = slow_client();
    for (int i = 0; i < 50; i++) {
        struct wish wish = { "/metrics", "kvd_build_info", 200 };
        if (!KVT_TRUE(e2e_until(granted, &wish, 60, NULL))) break;
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGTERM), 0);
    e2e_daemon_free(&daemon_);
}

/* A Unix socket: its permissions, what a killed daemon leaves, a file in the way, an orderly end. */
static void unix_socket(void) {
    char more[96], path[64], text[16384];
    snprintf(path, sizeof path, "/tmp/kvd-e2e-http-%d.sock", (int)getpid());
    snprintf(more, sizeof more, "[http]\nlisten = unix:%s\n", path);
    KVT_NEED(e2e_daemon_start(&daemon_, &(struct e2e_setup){ .more = more }));
    KVT_EQ_I(http_status(path, "/readyz", "ready", NULL), 200);
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGKILL), -SIGKILL);
    KVT_OK(access(path, F_OK));
    KVT_NEED(e2e_daemon_restart(&daemon_));
    KVT_EQ_I(http_status(path, "/readyz", "ready", NULL), 200);
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGTERM), 0);
    KVT_TRUE(access(path, F_OK) != 0);
    FILE *f = fopen(path, "w");
    fclose(f);
    KVT_NEED(e2e_daemon_restart(&daemon_)); /* the cache is served without its figures, and the log says so */
    KVT_EQ_I(e2e_daemon_stop(&daemon_, SIGTERM), 0);
    FILE *log = fopen(daemon_.log, "r");
    KVT_NEED(log);
    text[fread(text, 1, sizeof text - 1, log)] = 0;
    fclose(log);
    KVT_HAS(text, "error: there is no monitoring: listen = unix:");
    KVT_HAS(text, "remove it or choose another path");
    KVT_OK(access(path, F_OK)); /* not kvd's */
    unlink(path);
    e2e_daemon_free(&daemon_);
}

int main(int argc, char **argv) {
    static const struct kvt_case cases[] = { KVT_CASE(what_is_served),
                                             KVT_CASE(page_for_people),
                                             KVT_CASE(agrees_with_the_protocol),
                                             KVT_CASE(a_failed_reload_shows),
                                             KVT_CASE(wrong_bytes),
                                             KVT_CASE(flood),
                                             KVT_CASE(srv_3_other_hosts_names),
                                             KVT_CASE(srv_7_slow_connections_make_room),
                                             KVT_CASE(unix_socket),
                                             { 0 } };
    signal(SIGPIPE, SIG_IGN);
    return kvt_main("e2e_http", cases, argc, argv);
}
