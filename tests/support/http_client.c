/* SPDX-License-Identifier: Apache-2.0 */
#include "http_client.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int http_dial(const char *at) {
    struct sockaddr_un path = { .sun_family = AF_UNIX };
    struct sockaddr_in ip = { .sin_family = AF_INET };
    char host[32];
    unsigned port = 0;
    bool local = at[0] == '/';
    if (local) snprintf(path.sun_path, sizeof path.sun_path, "%.100s", at);
    else if (sscanf(at, "%31[0-9.]:%u", host, &port) != 2 || inet_pton(AF_INET, host, &ip.sin_addr) != 1) return -1;
    ip.sin_port = htons((uint16_t)port);
    int fd = socket(local ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && (local ? connect(fd, (struct sockaddr *)&path, sizeof path)
                          : connect(fd, (struct sockaddr *)&ip, sizeof ip)) == 0)
        return fd;
    if (fd >= 0) close(fd);
    return -1;
}

bool http_read(int fd, struct http_answer *ret_answer) {
    size_t room = 4096, n = 0;
    char *all = malloc(room + 1);
    bool end = false;
    while (!end) {
        struct pollfd p = { .fd = fd, .events = POLLIN };
        if (poll(&p, 1, 20000) != 1) break;
        if (n == room) all = realloc(all, (room *= 2) + 1);
        ssize_t got = read(fd, all + n, room - n);
        end = got <= 0; /* a reset is an end, too */
        if (got > 0) n += (size_t)got;
    }
    all[n] = 0;
    memset(ret_answer, 0, sizeof *ret_answer);
    ret_answer->announced = -1;
    char *blank = strstr(all, "\r\n\r\n");
    size_t head = blank ? (size_t)(blank - all) : 0;
    if (sscanf(all, "HTTP/1.%*1[01] %d", &ret_answer->status) != 1 || !blank) ret_answer->status = 0;
    snprintf(ret_answer->head, sizeof ret_answer->head, "%.*s\r\n", (int)head, all);
    const char *length = strstr(ret_answer->head, "Content-Length: ");
    if (length) ret_answer->announced = strtol(length + 16, NULL, 10);
    ret_answer->bytes = blank ? n - head - 4 : n;
    if (blank) memmove(all, blank + 4, ret_answer->bytes + 1);
    ret_answer->body = all;
    return end;
}

bool http_raw(const char *at, const char *bytes, size_t n, struct http_answer *ret_answer) {
    int fd = http_dial(at);
    memset(ret_answer, 0, sizeof *ret_answer);
    if (fd < 0) return false;
    for (size_t sent = 0; sent < n;) { /* who refuses the rest has closed: its answer may be there */
        ssize_t some = send(fd, bytes + sent, n - sent, MSG_NOSIGNAL);
        if (some <= 0) break;
        sent += (size_t)some;
    }
    bool ok = http_read(fd, ret_answer);
    close(fd);
    return ok;
}

bool http_ask(const char *at, const char *method, const char *target, struct http_answer *ret_answer) {
    char request[512];
    int n = snprintf(request, sizeof request, "%s %s HTTP/1.1\r\nHost: localhost\r\n\r\n", method, target);
    return http_raw(at, request, (size_t)n, ret_answer);
}

void http_done(struct http_answer *answer) {
    free(answer->body);
    answer->body = NULL;
}

int http_status(const char *at, const char *target, const char *word, bool *ret_has) {
    struct http_answer a;
    bool ok = http_ask(at, "GET", target, &a);
    if (ret_has) *ret_has = ok && strstr(a.body, word) != NULL;
    http_done(&a);
    return ok ? a.status : 0;
}
