/* SPDX-License-Identifier: Apache-2.0
 *
 * The socket is made here, so that a Unix one is never reachable before it has its permissions, and libmicrohttpd takes
 * it over. Its thread calls back one connection at a time: what it alone uses needs no lock.
 */
#include "http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "clock.h"
#include "metrics_page.h"
#include "ui.h"
#include "unix_socket.h"

#define MEMORY 8192u /* of a connection: request line and headers must fit */
#define BACKLOG 64

struct http {
    struct MHD_Daemon *daemon;
    _Atomic(struct service *) service; /* NULL: starting */
    struct unix_socket name;           /* of a Unix one; only the thread that opens and closes */
    bool ui, tcp;

    /* of the thread */
    uint64_t looked_ns; /* 0: never */
    enum service_state state;
    struct MHD_Response *metrics, *ui_history; /* of this look; NULL: no memory, or nobody has asked yet */
    const char *text;                          /* of metrics, and as long as that is held */
    struct {
        struct MHD_Response *response;
        char domain[2 * KVD_DIGEST_BYTES + 1];
    } ui_state[HTTP_DOMAINS]; /* of this look, the first ones that were asked for */

    pthread_mutex_t lock; /* leaf: connections */
    struct http_place {
        int fd; /* -1: free */
        bool pushed_out;
        uint64_t since_ns;
    } open[HTTP_CONNECTIONS];
};

/* ---- the socket -------------------------------------------------------------------------------- */

static int complain_listen(const struct config_listen *at, const char *what, const char *why, char *err,
                           size_t err_bytes) {
    if (at->kind == LISTEN_UNIX)
        snprintf(err, err_bytes, "listen = unix:%s in section [http]: %s: %s", at->path, what, why);
    else snprintf(err, err_bytes, "listen = %s:%u in section [http]: %s: %s", at->path, (unsigned)at->port, what, why);
    return 1;
}

static int listen_tcp(const struct config_listen *at, int *ret_fd, char *err, size_t err_bytes) {
    struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_port = htons(at->port), .sin6_addr = in6addr_loopback };
    struct sockaddr_in four = { .sin_family = AF_INET, .sin_port = htons(at->port) };
    bool is_six = at->kind == LISTEN_TCP6;
    int on = 1, fd = socket(is_six ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (!is_six) (void)inet_pton(AF_INET, at->path, &four.sin_addr);
    if (fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) &&
        !(is_six ? bind(fd, (struct sockaddr *)&six, sizeof six) : bind(fd, (struct sockaddr *)&four, sizeof four)) &&
        !listen(fd, BACKLOG)) {
        *ret_fd = fd;
        return 0;
    }
    complain_listen(at, errno == EADDRINUSE ? "another program listens there; choose another port" : "cannot listen",
                    strerror(errno), err, err_bytes);
    if (fd >= 0) close(fd);
    return 1;
}

static int listen_at_path(struct http *h, const struct config *c, int *ret_fd, char *err, size_t err_bytes) {
    const struct config_listen *at = &c->http_listen;
    char why[320];
    if (!unix_socket_listen(c, at->path, SOCK_STREAM, BACKLOG, ret_fd, &h->name, why, sizeof why)) return 0;
    return complain_listen(at, "open", why, err, err_bytes);
}

/* ---- answers -------------------------------------------------------------------------------------- */

static void put_header(struct MHD_Response *response, const char *name, const char *value) {
    (void)MHD_add_response_header(response, name, value);
}

static struct MHD_Response *with_headers(struct MHD_Response *response, const char *type) {
    if (!response) return NULL;
    put_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    put_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    put_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    put_header(response, "X-Content-Type-Options", "nosniff");
    return response;
}

/* Of bytes that stay. */
static struct MHD_Response *constant_response(const void *bytes, size_t n, const char *type) {
    return with_headers(MHD_create_response_from_buffer(n, (void *)(uintptr_t)bytes, MHD_RESPMEM_PERSISTENT), type);
}

/* Of text that it takes over; NULL gives NULL. */
static struct MHD_Response *text_response(char *text, size_t n, const char *type) {
    struct MHD_Response *response = text ? MHD_create_response_from_buffer(n, text, MHD_RESPMEM_MUST_FREE) : NULL;
    if (!response) free(text);
    return with_headers(response, type);
}

/* Takes the response. */
static enum MHD_Result send_once(struct MHD_Connection *connection, unsigned status, struct MHD_Response *response) {
    if (!response) return MHD_NO; /* closes the connection */
    enum MHD_Result r = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return r;
}

static enum MHD_Result send_text(struct MHD_Connection *connection, unsigned status, const char *text) {
    struct MHD_Response *response = constant_response(text, strlen(text), "text/plain; charset=utf-8");
    if (response && status == MHD_HTTP_METHOD_NOT_ALLOWED) put_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    return send_once(connection, status, response);
}

/* ---- looking ---------------------------------------------------------------------------------------- */

static void forget_look(struct http *h) { /* those being sent live on */
    if (h->metrics) MHD_destroy_response(h->metrics);
    if (h->ui_history) MHD_destroy_response(h->ui_history);
    for (uint32_t i = 0; i < HTTP_DOMAINS; i++) {
        if (h->ui_state[i].response) MHD_destroy_response(h->ui_state[i].response);
        h->ui_state[i].response = NULL;
    }
    h->metrics = h->ui_history = NULL;
    h->text = NULL;
}

/* However many ask, the service is looked at a few times a second. */
static void look_at_service(struct http *h, struct service *service) {
    uint64_t now = clock_ns();
    if (h->looked_ns && now - h->looked_ns < HTTP_FRESH_NS) return;
    size_t bytes = 0;
    forget_look(h);
    h->state = service_state(service);
    char *text = metrics_page(service, &bytes);
    h->metrics = text_response(text, bytes, "text/plain; version=0.0.4; charset=utf-8");
    h->text = h->metrics ? text : NULL;
    h->looked_ns = now;
}

/* The lists of the page are looked up only where somebody has it open, and once a look for each of a few domains. NULL:
 * others have asked for too many, or no memory. */
static struct MHD_Response *look_for_people(struct http *h, struct service *service, const char *domain) {
    size_t bytes = 0;
    for (uint32_t i = 0; h->text && i < HTTP_DOMAINS; i++) {
        if (!h->ui_state[i].response) {
            snprintf(h->ui_state[i].domain, sizeof h->ui_state[i].domain, "%s", domain);
            char *text = ui_state(service, h->text, h->ui_state[i].domain, &bytes);
            return h->ui_state[i].response = text_response(text, bytes, "application/json");
        }
        if (strncmp(h->ui_state[i].domain, domain, sizeof h->ui_state[i].domain - 1) == 0)
            return h->ui_state[i].response;
    }
    return NULL;
}

static void look_at_history(struct http *h, struct service *service) {
    size_t bytes = 0;
    if (h->ui_history) return;
    char *text = ui_history(service, &bytes);
    h->ui_history = text_response(text, bytes, "application/json");
}

/* ---- answers -------------------------------------------------------------------------------------- */

static enum MHD_Result send_page(struct MHD_Connection *connection) {
    struct MHD_Response *page = constant_response(ui_page, ui_page_bytes, "text/html; charset=utf-8");
    if (page) {
        put_header(page, "Content-Security-Policy", ui_policy);
        put_header(page, "Referrer-Policy", "no-referrer");
    }
    return send_once(connection, MHD_HTTP_OK, page);
}

static enum MHD_Result send_look(struct MHD_Connection *connection, struct MHD_Response *response) {
    return response ? MHD_queue_response(connection, MHD_HTTP_OK, response)
                    : send_text(connection, MHD_HTTP_SERVICE_UNAVAILABLE,
                                "too many ask, or no memory for the page; try again\n");
}

static enum target {
    METRICS,
    HEALTH,
    READINESS,
    PAGE,
    PAGE_STATE,
    PAGE_HISTORY,
    NOTHING
} target_of(const struct http *h, const char *url) {
    static const char *const names[] = {
        [METRICS] = "/metrics", [HEALTH] = "/healthz",           [READINESS] = "/readyz",
        [PAGE] = "/ui",         [PAGE_STATE] = "/ui/state.json", [PAGE_HISTORY] = "/ui/history.json",
    };
    for (uint32_t t = 0; t < (h->ui ? NOTHING : PAGE); t++)
        if (strcmp(url, names[t]) == 0) return (enum target)t;
    return NOTHING;
}

static enum MHD_Result answer_url(struct http *h, struct MHD_Connection *connection, const char *url) {
    static const char *const states[] = {
        [SERVICE_READY] = "ready\n", [SERVICE_DRAINING] = "draining\n", [SERVICE_LOST] = "device lost\n"
    };
    struct service *service = atomic_load(&h->service);
    enum target target = target_of(h, url);
    if (target == NOTHING)
        return send_text(connection, MHD_HTTP_NOT_FOUND,
                         h->ui ? "There are /ui, /metrics, /healthz and /readyz.\n"
                               : "There are /metrics, /healthz and /readyz.\n");
    if (target == PAGE) return send_page(connection);
    if (!service)
        return send_text(connection, target == HEALTH ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE, "starting\n");
    look_at_service(h, service);
    if (target == PAGE_STATE) {
        const char *domain = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "domain");
        return send_look(connection, look_for_people(h, service, domain ? domain : ""));
    }
    if (target == PAGE_HISTORY) {
        look_at_history(h, service);
        return send_look(connection, h->ui_history);
    }
    if (target == METRICS) return send_look(connection, h->metrics);
    if (target == HEALTH) return send_text(connection, MHD_HTTP_OK, "ok\n");
    return send_text(connection, h->state == SERVICE_READY ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE,
                     states[h->state]);
}

/* Of this machine's loopback, with or without a port. */
static bool is_local_name(const char *host) {
    char name[64];
    struct in_addr four;
    size_t n = *host == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":");
    if (n >= sizeof name) return false;
    snprintf(name, sizeof name, "%.*s", (int)n, host);
    if (strcasecmp(name, "localhost") == 0 || strcmp(name, "[::1]") == 0) return true;
    return inet_pton(AF_INET, name, &four) == 1 && ntohl(four.s_addr) >> 24 == 127;
}

/* Any page that a browser shows can ask a port of the loopback, and read the answer where its own name leads there (DNS
 * rebinding): the browser then says that name. Who says none is no browser; no browser speaks to a Unix socket. */
static bool is_asked_by_name(const struct http *h, struct MHD_Connection *connection) {
    const char *host = h->tcp ? MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST) : NULL;
    return !host || is_local_name(host);
}

static enum MHD_Result on_request(void *argument, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *upload, size_t *upload_bytes,
                                  void **context) {
    (void)version, (void)upload, (void)upload_bytes, (void)context;
    /* Answered at the headers: a body is not read, the connection is closed. */
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return send_text(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "Only GET and HEAD are served.\n");
    if (!is_asked_by_name(argument, connection))
        return send_text(connection, MHD_HTTP_FORBIDDEN,
                         "The Host header names another machine; ask 127.0.0.1, [::1] or localhost, and let a proxy in "
                         "front say so.\n");
    return answer_url(argument, connection, url);
}

/* ---- connections -------------------------------------------------------------------------------- */

/* Who asks is answered in milliseconds: the oldest is one that does not ask, or does not read. It goes for a newcomer,
 * so that nobody's silence keeps others out. */
static void push_out_oldest(struct http *h) {
    struct http_place *oldest = NULL;
    uint32_t n = 0;
    for (uint32_t i = 0; i < HTTP_CONNECTIONS; i++) {
        struct http_place *at = &h->open[i];
        if (at->fd < 0 || at->pushed_out) continue;
        n++;
        if (!oldest || at->since_ns < oldest->since_ns) oldest = at;
    }
    if (n <= HTTP_CONNECTIONS - HTTP_CLOSING) return;
    oldest->pushed_out = true;
    shutdown(oldest->fd, SHUT_RDWR);
}

/* CLOSED comes before the file is closed: a number in the table is always of our connection. */
static void on_connection(void *argument, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode code) {
    (void)context;
    struct http *h = argument;
    bool started = code == MHD_CONNECTION_NOTIFY_STARTED;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (!info) return;
    int from = started ? -1 : info->connect_fd, to = started ? info->connect_fd : -1;
    pthread_mutex_lock(&h->lock);
    for (uint32_t i = 0; i < HTTP_CONNECTIONS; i++)
        if (h->open[i].fd == from) {
            h->open[i] = (struct http_place){ .fd = to, .since_ns = clock_ns() };
            break;
        }
    if (started) push_out_oldest(h);
    pthread_mutex_unlock(&h->lock);
}

/* libmicrohttpd's time-out is of silence: who sends a byte now and then would stay for ever. */
void http_tick(struct http *h, uint64_t now_ns) {
    if (!h) return;
    pthread_mutex_lock(&h->lock);
    for (uint32_t i = 0; i < HTTP_CONNECTIONS; i++)
        if (h->open[i].fd >= 0 && now_ns > h->open[i].since_ns + HTTP_LIFE_NS) shutdown(h->open[i].fd, SHUT_RDWR);
    pthread_mutex_unlock(&h->lock);
}

/* ---- life ------------------------------------------------------------------------------------------ */

__attribute__((format(printf, 2, 0))) static void on_log(void *argument, const char *format, va_list arguments) {
    char text[256];
    (void)argument;
    vsnprintf(text, sizeof text, format, arguments);
    text[strcspn(text, "\n")] = 0;
    LOG(LOG_DEBUG, "http: %s", text);
}

static int start_server(struct http *h, int fd) {
    h->daemon = MHD_start_daemon(MHD_USE_POLL_INTERNAL_THREAD | MHD_USE_ITC | MHD_USE_ERROR_LOG, 0, NULL, NULL,
                                 on_request, h, MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL, MHD_OPTION_LISTEN_SOCKET, fd,
                                 MHD_OPTION_CONNECTION_LIMIT, HTTP_CONNECTIONS, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                                 (size_t)MEMORY, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)(HTTP_LIFE_NS / 1000000000u),
                                 MHD_OPTION_NOTIFY_CONNECTION, on_connection, h, MHD_OPTION_END);
    return h->daemon == NULL;
}

int http_open(const struct config *config, struct http **ret_http, char *err, size_t err_bytes) {
    const struct config_listen *at = &config->http_listen;
    int fd;
    *ret_http = NULL;
    if (at->kind == LISTEN_NONE) return 0;
    struct http *h = calloc(1, sizeof *h);
    if (!h) return complain_listen(at, "open", "no memory", err, err_bytes);
    h->ui = config->http_ui;
    h->tcp = at->kind != LISTEN_UNIX;
    pthread_mutex_init(&h->lock, NULL);
    for (uint32_t i = 0; i < HTTP_CONNECTIONS; i++) h->open[i].fd = -1;
    if (at->kind == LISTEN_UNIX ? listen_at_path(h, config, &fd, err, err_bytes)
                                : listen_tcp(at, &fd, err, err_bytes)) {
        http_close(h);
        return 1;
    }
    if (start_server(h, fd)) {
        close(fd);
        http_close(h);
        return complain_listen(at, "open", "no memory, thread or files for the HTTP server", err, err_bytes);
    }
    *ret_http = h;
    return 0;
}

void http_serve(struct http *h, struct service *service) {
    if (h) atomic_store(&h->service, service);
}

struct http *http_close(struct http *h) {
    if (!h) return NULL;
    unix_socket_remove(&h->name);
    if (h->daemon) MHD_stop_daemon(h->daemon); /* closes the socket too */
    forget_look(h);
    pthread_mutex_destroy(&h->lock);
    free(h);
    return NULL;
}
