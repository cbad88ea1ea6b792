/* SPDX-License-Identifier: Apache-2.0
 *
 * events: what the daemon tells, a line each, until interrupted.
 */
#include <stdio.h>
#include <stdlib.h>

#include "figures.h"
#include "follow.h"

static bool show_event(struct ctl *ctl, cJSON *event) {
    char text[640], clock[16];
    bool ok = true;
    if (out_is_json(ctl->out)) {
        ok = out_line(stdout, event);
    } else {
        figures_event_text(event, text, sizeof text);
        ok = printf("%s  %s\n", figures_clock(figures_number(event, "time"), clock), text) > 0 && fflush(stdout) == 0;
    }
    cJSON_Delete(event);
    return ok;
}

/* Everything that is there. False: it is over; *ret_code says how. */
static bool show_all(struct follow *f, uint32_t *left, int *ret_code) {
    cJSON *lost, *event;
    while (*left && (event = follow_event(f, &lost))) {
        if (*left != KVD_UNCHANGED) --*left;
        if (show_event(f->ctl, event)) continue;
        *ret_code = CTL_REFUSED; /* who ends the program says why */
        return false;
    }
    if (!*left) return false;
    if (!lost) return true;
    if (!f->ctl->options.follow) {
        fprintf(stderr, "kvdctl: %s (with --follow it would wait for the daemon)\n", figures_string(lost, "message"));
        *ret_code = CTL_UNREACHABLE;
    }
    return show_event(f->ctl, lost) && f->ctl->options.follow;
}

int cmd_events(struct ctl *ctl) {
    struct follow follow;
    cJSON *news;
    uint32_t seconds = ctl->options.seconds, left = ctl->options.count ? ctl->options.count : KVD_UNCHANGED;
    int code = follow_begin(&follow, ctl, &news);
    if (code != CTL_OK) return code;
    uint64_t end = seconds ? clock_ns() + seconds * UINT64_C(1000000000) : UINT64_MAX;
    for (bool on = show_event(ctl, news); on;) {
        uint64_t until = ctl->client ? end : clock_ns() + UINT64_C(1000000000);
        enum follow_wake wake = follow_wait(&follow, until < end ? until : end);
        if (wake == FOLLOW_STOP || (wake == FOLLOW_TIME && clock_ns() >= end)) break;
        if (!ctl->client && (news = follow_connect(&follow)) != NULL) on = show_event(ctl, news);
        on = on && show_all(&follow, &left, &code);
    }
    follow_end(&follow);
    return code;
}
