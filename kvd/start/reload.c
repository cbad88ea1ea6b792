/* SPDX-License-Identifier: Apache-2.0 */
#include "reload.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "clock.h"

struct reload {
    const char *path;
    int event_fd; /* what the thread leaves is read after it has been seen */
    bool reading, again, told;
    uint64_t begun_ns;

    /* of the thread while it reads */
    int bad;
    struct config config;
    char why[4096];
};

struct reload *reload_new(const char *path) {
    static struct reload reload; /* as long as the process */
    reload.path = path;
    reload.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return reload.event_fd >= 0 ? &reload : NULL;
}

int reload_fd(const struct reload *r) { return r->event_fd; }

static void tell(struct reload *r) {
    uint64_t one = 1;
    ssize_t n = write(r->event_fd, &one, sizeof one);
    (void)n; /* its counter is far from its end */
}

static void *read_configuration(void *argument) {
    struct reload *r = argument;
    r->bad = config_load(r->path, &r->config, r->why, sizeof r->why);
    tell(r);
    return NULL;
}

void reload_begin(struct reload *r, uint64_t now_ns) {
    pthread_t thread;
    sigset_t all, before;
    r->again = r->reading;
    if (r->reading) return;
    r->reading = true;
    r->told = false;
    r->begun_ns = now_ns;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int e = pthread_create(&thread, NULL, read_configuration, r);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!e) {
        pthread_detach(thread);
        return;
    }
    r->bad = 1;
    snprintf(r->why, sizeof r->why, "%s: no thread to read it: %s", r->path, strerror(e));
    tell(r);
}

enum reload_result reload_take(struct reload *r, struct config *ret_config, const char **ret_why) {
    uint64_t count;
    if (!r->reading || read(r->event_fd, &count, sizeof count) != sizeof count) return RELOAD_NONE;
    r->reading = false;
    if (r->again) {
        reload_begin(r, clock_ns());
        return RELOAD_NONE;
    }
    *ret_why = r->why;
    if (r->bad) return RELOAD_BAD;
    *ret_config = r->config;
    return RELOAD_GOOD;
}

bool reload_late(struct reload *r, uint64_t now_ns) {
    if (!r->reading || r->told || now_ns < r->begun_ns + RELOAD_LATE_NS) return false;
    r->told = true;
    return true;
}
