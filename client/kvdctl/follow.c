/* SPDX-License-Identifier: Apache-2.0 */
#include "follow.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "figures.h"

static void stop_signals(sigset_t *ret_set) {
    sigemptyset(ret_set);
    sigaddset(ret_set, SIGINT);
    sigaddset(ret_set, SIGTERM);
    sigaddset(ret_set, SIGHUP);
}

/* An older daemon refuses the kinds that it does not have: the newest are given up one by one. */
static enum kvd_status subscribe_all(kvd_client *client, struct kvd_error *error) {
    enum kvd_status status = KVD_INVALID_ARGUMENT;
    for (uint32_t mask = figures_event_mask(), highest; mask && status == KVD_INVALID_ARGUMENT; mask ^= highest) {
        highest = UINT32_C(1) << (31 - __builtin_clz(mask));
        status = kvd_subscribe(client, mask, error);
    }
    return status;
}

/* Subscribes and learns whom it talks to. */
static enum kvd_status greet_daemon(struct follow *f, struct kvd_error *error) {
    struct kvd_stats stats;
    enum kvd_status status = subscribe_all(f->ctl->client, error);
    if (status == KVD_OK) status = kvd_describe(f->ctl->client, &f->store, error);
    if (status == KVD_OK) status = kvd_stats(f->ctl->client, &stats, error);
    if (status == KVD_OK) memcpy(f->version, stats.version, sizeof f->version);
    return status;
}

static cJSON *make_news(const struct follow *f, const char *what) {
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "time", figures_time());
    cJSON_AddStringToObject(o, "event", what);
    cJSON_AddStringToObject(o, "store", f->store.name);
    cJSON_AddStringToObject(o, "version", f->version);
    out_put_text(o, "epoch", "%016" PRIx64, f->epoch);
    return o;
}

int follow_begin(struct follow *f, struct ctl *ctl, cJSON **ret_news) {
    struct kvd_error error = { .message = "" };
    sigset_t set;
    *f = (struct follow){ .ctl = ctl };
    stop_signals(&set);
    sigprocmask(SIG_BLOCK, &set, NULL); /* before the library has threads that could take them */
    f->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    int code = ctl_connect_or_say(ctl, KVD_ROLE_OBSERVER);
    if (code != CTL_OK) {
        follow_end(f);
        return code;
    }
    f->epoch = kvd_client_epoch(ctl->client);
    enum kvd_status status = greet_daemon(f, &error);
    if (status != KVD_OK) {
        follow_end(f);
        return ctl_refused(ctl, status, &error);
    }
    *ret_news = make_news(f, "connected");
    return CTL_OK;
}

void follow_end(struct follow *f) {
    if (f->signal_fd >= 0) close(f->signal_fd);
    f->signal_fd = -1;
}

enum follow_wake follow_wait(const struct follow *f, uint64_t until_ns) {
    enum { SIGNAL, CLIENT, KEYS };
    struct pollfd fds[] = { [SIGNAL] = { .fd = f->signal_fd, .events = POLLIN },
                            [CLIENT] = { .fd = f->ctl->client ? kvd_client_fd(f->ctl->client) : -1, .events = POLLIN },
                            [KEYS] = { .fd = f->keys ? STDIN_FILENO : -1, .events = POLLIN } };
    for (;;) {
        uint64_t now = clock_ns(), left = until_ns > now ? until_ns - now : 0;
        struct timespec t = { .tv_sec = (time_t)(left / 1000000000u), .tv_nsec = (long)(left % 1000000000u) };
        int n = ppoll(fds, 3, &t, NULL);
        if (n < 0 && errno == EINTR) continue; /* stopped and continued, another size: the time goes on */
        if (n < 0 || fds[SIGNAL].revents) return FOLLOW_STOP;
        if (fds[KEYS].revents) return FOLLOW_KEY;
        return n ? FOLLOW_CONNECTION : FOLLOW_TIME;
    }
}

cJSON *follow_failed(struct follow *f, enum kvd_status status, const struct kvd_error *error) {
    /* An observer holds nothing that ABORTED could take: it means another instance, or that it was fenced. */
    if (status != KVD_UNAVAILABLE && status != KVD_DEADLINE_EXCEEDED && status != KVD_ABORTED &&
        status != KVD_UNAUTHENTICATED)
        return NULL;
    kvd_disconnect(f->ctl->client);
    f->ctl->client = NULL;
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "time", figures_time());
    cJSON_AddStringToObject(o, "event", "lost");
    /* What the library tells programs to call is no news for people. */
    const char *advice = strstr(error->message, ": call ");
    out_put_text(o, "message", "%.*s", (int)(advice ? advice - error->message : KVD_MESSAGE_BYTES), error->message);
    return o;
}

cJSON *follow_event(struct follow *f, cJSON **ret_lost) {
    struct kvd_event event;
    struct kvd_error error = { .message = "" };
    *ret_lost = NULL;
    if (!f->ctl->client) return NULL;
    enum kvd_status status = kvd_next_event(f->ctl->client, 0, &event, &error);
    if (status == KVD_OK) return figures_event(&event, &f->store);
    if (status != KVD_DEADLINE_EXCEEDED) *ret_lost = follow_failed(f, status, &error);
    return NULL;
}

cJSON *follow_connect(struct follow *f) {
    struct kvd_error error;
    if (ctl_connect(f->ctl, KVD_ROLE_OBSERVER, &error) != KVD_OK) return NULL;
    if (greet_daemon(f, &error) != KVD_OK) {
        kvd_disconnect(f->ctl->client);
        f->ctl->client = NULL;
        return NULL;
    }
    bool same = kvd_client_epoch(f->ctl->client) == f->epoch;
    f->epoch = kvd_client_epoch(f->ctl->client);
    return make_news(f, same ? "reconnected" : "restarted");
}
