/* SPDX-License-Identifier: Apache-2.0
 *
 * trace record: events and figures of a while into a file, one JSON object a line: first a header, then figures
 * ("daemon" and "pools" as in status) and events as `events` shows them, each with its time. trace show: such a file as
 * a table.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "figures.h"
#include "follow.h"

#define N(array) (sizeof(array) / sizeof *(array))
#define TRACE_VERSION 1

/* ---- record ---------------------------------------------------------------------------------------------- */

struct recorder {
    struct follow follow;
    FILE *file;
    const char *path;
    uint64_t figures, events;
};

/* A file that exists is not touched: it may be the trace of last night. */
static FILE *create_file(const char *path) {
    if (strcmp(path, "-") == 0) return fdopen(dup(STDOUT_FILENO), "w");
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!file && fd >= 0) close(fd);
    return file;
}

static bool put_object(struct recorder *r, cJSON *object) {
    bool ok = out_line(r->file, object);
    cJSON_Delete(object);
    if (!ok) fprintf(stderr, "kvdctl: %s: %s\n", r->path, strerror(errno));
    return ok;
}

static cJSON *header_object(const struct recorder *r, const cJSON *connected) {
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "kvd_trace", TRACE_VERSION);
    cJSON_AddNumberToObject(o, "time", figures_time());
    cJSON_AddStringToObject(o, "kvdctl", kvd_version());
    cJSON_AddStringToObject(o, "version", figures_string(connected, "version"));
    cJSON_AddStringToObject(o, "store", figures_string(connected, "store"));
    cJSON_AddStringToObject(o, "epoch", figures_string(connected, "epoch"));
    out_put_u64(o, "interval_seconds", r->follow.ctl->options.interval);
    return o;
}

/* One look. False: it cannot go on; *ret_code. */
static bool record_figures(struct recorder *r, int *ret_code) {
    struct ctl *ctl = r->follow.ctl;
    struct kvd_stats stats;
    struct kvd_error error = { .message = "" };
    if (!ctl->client) return true;
    enum kvd_status status = kvd_stats(ctl->client, &stats, &error);
    if (status != KVD_OK) {
        cJSON *lost = follow_failed(&r->follow, status, &error);
        *ret_code = lost ? CTL_OK : ctl_refused(ctl, status, &error);
        return lost && put_object(r, lost);
    }
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "time", figures_time());
    cJSON_AddItemToObject(o, "daemon", figures_daemon(&stats, &r->follow.store));
    cJSON_AddItemToObject(o, "pools", figures_pools(&stats, &r->follow.store));
    r->figures++;
    return put_object(r, o);
}

static bool record_events(struct recorder *r) {
    cJSON *event, *lost;
    while ((event = follow_event(&r->follow, &lost))) {
        r->events++;
        if (!put_object(r, event)) return false;
    }
    return !lost || put_object(r, lost);
}

/* Until interrupted or until the time is over. */
static int record_all(struct recorder *r) {
    const struct ctl_options *o = &r->follow.ctl->options;
    uint64_t interval = o->interval * UINT64_C(1000000000), due = clock_ns();
    uint64_t end = o->seconds ? due + o->seconds * UINT64_C(1000000000) : UINT64_MAX;
    int code = CTL_OK;
    for (;;) {
        if (clock_ns() >= due) {
            cJSON *news = r->follow.ctl->client ? NULL : follow_connect(&r->follow);
            if (news && !put_object(r, news)) return CTL_REFUSED;
            if (!record_figures(r, &code)) return code ? code : CTL_REFUSED;
            due += interval;
            if (due < clock_ns()) due = clock_ns() + interval; /* it was stopped for a while */
        }
        if (clock_ns() >= end || follow_wait(&r->follow, due < end ? due : end) == FOLLOW_STOP) return CTL_OK;
        if (!record_events(r)) return CTL_REFUSED;
    }
}

static int trace_record(struct ctl *ctl, const char *path) {
    struct recorder r = { .path = path };
    cJSON *connected;
    int code = follow_begin(&r.follow, ctl, &connected);
    if (code != CTL_OK) return code;
    r.file = create_file(path);
    if (!r.file) {
        fprintf(stderr, "kvdctl: %s: %s%s\n", path, strerror(errno),
                errno == EEXIST ? "; remove it, or choose another name" : "");
        code = CTL_USAGE;
    } else if (!put_object(&r, header_object(&r, connected))) {
        code = CTL_REFUSED;
    } else {
        code = record_all(&r);
    }
    cJSON_Delete(connected);
    follow_end(&r.follow);
    if (r.file && fclose(r.file) != 0) {
        fprintf(stderr, "kvdctl: %s: %s\n", path, strerror(errno));
        return CTL_REFUSED;
    }
    if (r.file && strcmp(path, "-") != 0) {
        out_add(ctl->out, "figures", cJSON_CreateNumber((double)r.figures));
        out_add(ctl->out, "events", cJSON_CreateNumber((double)r.events));
        out_say(ctl->out, "result", OUT_PLAIN, "recorded %.0f looks and %.0f events in %s", (double)r.figures,
                (double)r.events, path);
    }
    return code;
}

/* ---- show -------------------------------------------------------------------------------------------------- */

struct reading {
    FILE *file;
    const char *path;
    char *line;
    size_t room;
    unsigned number;
    bool cut;             /* the last line is no JSON: the recorder was killed within it */
    cJSON *rows, *before; /* before: the figures that rates are taken from */
    double begin;
};

/* The next object, NULL at the end. */
static cJSON *next_object(struct reading *r) {
    ssize_t n = getline(&r->line, &r->room, r->file);
    if (n <= 0) return NULL;
    r->number++;
    cJSON *o = cJSON_ParseWithLength(r->line, (size_t)n);
    r->cut = !cJSON_IsObject(o);
    if (!r->cut) return o;
    cJSON_Delete(o);
    return NULL;
}

static void add_figures(struct reading *r, cJSON *row, const cJSON *o) {
    const cJSON *daemon = cJSON_GetObjectItemCaseSensitive(o, "daemon"),
                *pool = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(o, "pools"), 0),
                *old = cJSON_GetObjectItemCaseSensitive(r->before, "daemon");
    static const char *const copied[] = { "sequences", "continuations", "sessions" };
    static const char *const rates[] = { "requests_per_second", "refusals_per_second", "operations_per_second" };
    for (size_t i = 0; i < N(copied); i++) cJSON_AddNumberToObject(row, copied[i], figures_number(daemon, copied[i]));
    cJSON_AddNumberToObject(row, "available_pages", figures_number(pool, "available_pages"));
    cJSON_AddNumberToObject(row, "allocated_pages", figures_number(pool, "allocated_pages"));
    cJSON_AddNumberToObject(row, "reserved_pages", figures_number(pool, "reserved_pages"));
    bool same = old && strcmp(figures_string(old, "epoch"), figures_string(daemon, "epoch")) == 0;
    if (same) {
        cJSON *all = figures_rates(old, daemon, figures_number(o, "time") - figures_number(r->before, "time"));
        for (size_t i = 0; i < N(rates); i++) {
            char key[64];
            double rate = figures_number(all, rates[i]);
            cJSON_AddNumberToObject(row, rates[i], rate);
            snprintf(key, sizeof key, "%s_text", rates[i]);
            out_put_text(row, key, "%.1f", rate);
        }
        cJSON_Delete(all);
    }
}

static void add_row(struct reading *r, cJSON *o) {
    char text[640], clock[16];
    cJSON *row = cJSON_CreateObject();
    double time = figures_number(o, "time");
    cJSON_AddNumberToObject(row, "time", time);
    out_put_text(row, "time_text", "%s", figures_clock(time, clock));
    out_put_text(row, "after_text", "%.1f", time - r->begin);
    if (cJSON_HasObjectItem(o, "event")) {
        figures_event_text(o, text, sizeof text);
        cJSON_AddStringToObject(row, "event", figures_string(o, "event"));
        cJSON_AddStringToObject(row, "event_text", text);
        cJSON_Delete(o);
    } else {
        cJSON_AddStringToObject(row, "event_text", "");
        add_figures(r, row, o);
        cJSON_Delete(r->before);
        r->before = o;
    }
    cJSON_AddItemToArray(r->rows, row);
}

static void show_rows(struct ctl *ctl, cJSON *head, cJSON *rows) {
    static const struct out_column lines[] = {
        { "store", "store", false, 0 },
        { "version", "version", false, 0 },
        { "epoch", "instance", false, 0 },
        { "begin_text", "begun", false, 0 },
    };
    static const struct out_column columns[] = {
        { "time_text", "TIME", false, 0 },
        { "after_text", "AFTER", true, 0 },
        { "sequences", "SEQUENCES", true, 0 },
        { "continuations", "CONTINUATIONS", true, 3 },
        { "available_pages", "FREE PAGES", true, 0 },
        { "requests_per_second_text", "REQUESTS/S", true, 0 },
        { "refusals_per_second_text", "REFUSED/S", true, 2 },
        { "operations_per_second_text", "OPERATIONS/S", true, 4 },
        { "event_text", "EVENT", false, 0 },
    };
    out_facts(ctl->out, "trace", lines, N(lines), head);
    out_table(ctl->out, "rows", columns, N(columns), rows);
}

static int no_trace(const struct reading *r, const char *why) {
    fprintf(stderr, "kvdctl: %s is no trace of kvdctl trace record: %s\n", r->path, why);
    return CTL_USAGE;
}

static int show_trace(struct ctl *ctl, struct reading *r) {
    cJSON *head = next_object(r), *o;
    char clock[16];
    if (!head || !cJSON_HasObjectItem(head, "kvd_trace")) {
        cJSON_Delete(head);
        return no_trace(r, "it does not begin with a header");
    }
    if (figures_number(head, "kvd_trace") > TRACE_VERSION) {
        cJSON_Delete(head);
        return no_trace(r, "it is of a newer kvdctl; use that one");
    }
    r->begin = figures_number(head, "time");
    out_put_text(head, "begin_text", "%s", figures_clock(r->begin, clock));
    while ((o = next_object(r))) add_row(r, o);
    bool middle = r->cut && getline(&r->line, &r->room, r->file) > 0;
    if (middle) {
        cJSON_Delete(head);
        fprintf(stderr, "kvdctl: %s: line %u is no JSON object\n", r->path, r->number);
        return CTL_USAGE;
    }
    show_rows(ctl, head, r->rows);
    r->rows = NULL;
    if (r->cut) out_say(ctl->out, "remark", OUT_BAD, "the last line is cut: the recorder was killed");
    return CTL_OK;
}

static int trace_show(struct ctl *ctl, const char *path) {
    struct reading r = { .path = path, .file = strcmp(path, "-") == 0 ? stdin : fopen(path, "re") };
    if (!r.file) {
        fprintf(stderr, "kvdctl: %s: %s\n", path, strerror(errno));
        return CTL_USAGE;
    }
    r.rows = cJSON_CreateArray();
    int code = show_trace(ctl, &r);
    cJSON_Delete(r.rows);
    cJSON_Delete(r.before);
    free(r.line);
    if (r.file != stdin) fclose(r.file);
    return code;
}

int cmd_trace(struct ctl *ctl) {
    if (strcmp(ctl->args[0], "record") == 0) return trace_record(ctl, ctl->args[1]);
    if (strcmp(ctl->args[0], "show") == 0) return trace_show(ctl, ctl->args[1]);
    fprintf(stderr, "kvdctl: trace takes record FILE or show FILE, not \"%s\"\n", ctl->args[0]);
    return CTL_USAGE;
}
