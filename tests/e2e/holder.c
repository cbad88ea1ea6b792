/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "e2e.h"

static void forget(struct e2e_holder *h, const char *name) {
    uint32_t left = 0;
    for (uint32_t i = 0; i < h->n; i++) {
        if (strcmp(h->item[i].name, name) == 0) close(h->item[i].fd);
        else h->item[left++] = h->item[i];
    }
    h->n = left;
}

static void name_of(const char *text, char *name, size_t bytes) {
    const char *at = strstr(text, "FDNAME=");
    snprintf(name, bytes, "%.*s", at ? (int)strcspn(at + 7, "\n") : 0, at ? at + 7 : "");
}

void e2e_holder_take(struct e2e_holder *h, const char *text, int fd) {
    char name[96];
    name_of(text, name, sizeof name);
    if (strstr(text, "FDSTOREREMOVE=1")) forget(h, name);
    else if (strstr(text, "FDSTORE=1") && fd >= 0 && h->n < sizeof h->item / sizeof h->item[0]) {
        memcpy(h->item[h->n].name, name, sizeof name);
        h->item[h->n++].fd = fd;
        fd = -1;
    }
    if (fd >= 0) close(fd); /* a barrier's */
}

void e2e_holder_give(const struct e2e_holder *h) {
    char names[sizeof h->item / sizeof h->item[0] * 97] = "", number[24];
    int high[sizeof h->item / sizeof h->item[0]];
    size_t used = 0;
    for (uint32_t i = 0; i < h->n; i++) high[i] = fcntl(h->item[i].fd, F_DUPFD_CLOEXEC, 512);
    for (int fd = 3; fd < 512; fd++) close(fd);
    for (uint32_t i = 0; i < h->n; i++) {
        dup2(high[i], 3 + (int)i);
        used += (size_t)snprintf(names + used, sizeof names - used, i ? ":%s" : "%s", h->item[i].name);
    }
    snprintf(number, sizeof number, "%d", (int)getpid());
    setenv("LISTEN_PID", number, 1);
    snprintf(number, sizeof number, "%u", h->n);
    setenv("LISTEN_FDS", number, 1);
    setenv("LISTEN_FDNAMES", names, 1);
}

void e2e_holder_free(struct e2e_holder *h) {
    for (uint32_t i = 0; i < h->n; i++) close(h->item[i].fd);
    h->n = 0;
}
