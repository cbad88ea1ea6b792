/* SPDX-License-Identifier: Apache-2.0 */
#include "fdstore.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "notify.h"

#define FIRST_FD 3

/* The n-th of the names, which stand with colons between them. False: there is none, or it is too long. */
static bool name_at(const char *names, uint32_t n, char *ret_name) {
    for (; names && n; n--) names = (names = strchr(names, ':')) ? names + 1 : NULL;
    size_t length = names ? strcspn(names, ":") : 0;
    if (length == 0 || length >= FDSTORE_NAME) return false;
    memcpy(ret_name, names, length);
    ret_name[length] = 0;
    return true;
}

static bool number(const char *text, unsigned long *ret_number) {
    char *end = NULL;
    if (!text || *text < '0' || *text > '9') return false;
    errno = 0;
    *ret_number = strtoul(text, &end, 10);
    return !errno && !*end;
}

void fdstore_take(struct fdstore_set *ret_set) {
    const char *names = getenv("LISTEN_FDNAMES");
    unsigned long pid, count;
    struct fdstore_item *items = ret_set->items;
    uint32_t n = 0;
    bool ours = number(getenv("LISTEN_PID"), &pid) && pid == (unsigned long)getpid() &&
                number(getenv("LISTEN_FDS"), &count) && count < 4096;
    for (unsigned long i = 0; ours && i < count; i++) {
        int fd = FIRST_FD + (int)i;
        if (fcntl(fd, F_SETFD, FD_CLOEXEC)) continue;
        if (n < FDSTORE_MAX && name_at(names, (uint32_t)i, items[n].name)) items[n++].fd = fd;
        else close(fd);
    }
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    ret_set->n = n;
}

bool fdstore_put(const char *name, int fd) {
    char text[FDSTORE_NAME + 64];
    snprintf(text, sizeof text, "FDSTORE=1\nFDPOLL=0\nFDNAME=%s", name); /* not polled: a HUP would drop it */
    return notify_send_fd(text, fd);
}

void fdstore_remove(const char *name) {
    char text[FDSTORE_NAME + 64];
    snprintf(text, sizeof text, "FDSTOREREMOVE=1\nFDNAME=%s", name);
    notify_send(text);
}

bool fdstore_settle(unsigned timeout_ms) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC)) return false;
    bool sent = notify_send_fd("BARRIER=1", ends[1]); /* the holder closes it when it comes to it */
    close(ends[1]);
    struct pollfd wait = { .fd = ends[0] };
    bool settled = sent && poll(&wait, 1, (int)timeout_ms) == 1;
    close(ends[0]);
    return settled;
}
