/* SPDX-License-Identifier: Apache-2.0
 *
 * top: figures, rates, sequences and the last events, again and again. Not on a terminal it shows them once.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "figures.h"
#include "follow.h"
#include "screen.h"

#define N(array) (sizeof(array) / sizeof *(array))
#define EVENTS 5u
#define SHOWN_SEQUENCES 256u

/* What one look saw. */
struct picture {
    uint64_t at_ns; /* 0: none */
    cJSON *daemon, *pools, *arena, *sequences;
};

struct top {
    struct follow follow;
    struct screen *screen;
    struct picture now, before;
    char why[KVD_MESSAGE_BYTES]; /* of a daemon that is not there */
    char restart[16];            /* when another instance came; empty: never */
    cJSON *events;               /* newest last */
};

/* ---- looking ------------------------------------------------------------------------------------------- */

static void picture_drop(struct picture *p) {
    cJSON_Delete(p->daemon);
    cJSON_Delete(p->pools);
    cJSON_Delete(p->arena);
    cJSON_Delete(p->sequences);
    *p = (struct picture){ .at_ns = 0 };
}

/* Rates need two looks at one instance. */
static void forget_rates(struct top *t) {
    picture_drop(&t->before);
    picture_drop(&t->now);
}

static void note_event(struct top *t, cJSON *event) {
    cJSON_AddItemToArray(t->events, event);
    if (cJSON_GetArraySize(t->events) > (int)EVENTS) cJSON_DeleteItemFromArray(t->events, 0);
}

static void lose_connection(struct top *t, cJSON *lost) {
    snprintf(t->why, sizeof t->why, "%s", figures_string(lost, "message"));
    note_event(t, lost);
}

static enum kvd_status look_now(struct ctl *ctl, struct picture *ret_picture, struct kvd_error *error) {
    struct kvd_stats stats;
    struct kvd_store_info info;
    struct picture p = { .sequences = cJSON_CreateArray() };
    enum kvd_status status = kvd_stats(ctl->client, &stats, error);
    p.at_ns = clock_ns();
    if (status == KVD_OK) status = kvd_describe(ctl->client, &info, error);
    if (status == KVD_OK) status = look_sequences(ctl, p.sequences, error);
    if (status == KVD_OK) {
        p.daemon = figures_daemon(&stats, &info);
        p.pools = figures_pools(&stats, &info);
        p.arena = figures_arena(&stats);
        *ret_picture = p;
    } else {
        picture_drop(&p);
    }
    return status;
}

/* Both lists go by slot, which is the low half of a handle: the old one is walked once. */
static const cJSON *same_sequence(const cJSON **old, const cJSON *sequence) {
    unsigned long long bits = strtoull(figures_string(sequence, "sequence"), NULL, 16);
    while (*old) {
        unsigned long long other = strtoull(figures_string(*old, "sequence"), NULL, 16);
        if ((other & UINT32_MAX) > (bits & UINT32_MAX)) return NULL;
        const cJSON *at = *old;
        *old = at->next;
        if (other == bits) return at;
    }
    return NULL;
}

/* Tokens committed since the look before, of each sequence that was there then. (Those of all, short ones too, are
 * counted by the daemon.) */
static void rate_sequences(const struct picture *before, const struct picture *now) {
    double seconds = before->at_ns ? (double)(now->at_ns - before->at_ns) / 1e9 : 0;
    cJSON *s;
    const cJSON *old = before->sequences ? before->sequences->child : NULL;
    cJSON_ArrayForEach(s, now->sequences) {
        const cJSON *same = same_sequence(&old, s);
        double more = same ? figures_number(s, "committed") - figures_number(same, "committed") : 0;
        double rate = more > 0 && seconds > 0 ? more / seconds : 0;
        cJSON_AddNumberToObject(s, "tokens_per_second", rate);
        out_put_text(s, "rate_text", "%.0f", rate);
    }
}

/* False: refused for good; *ret_code. */
static bool look_again(struct top *t, int *ret_code) {
    struct ctl *ctl = t->follow.ctl;
    struct kvd_error error = { .message = "" };
    struct picture seen = { .at_ns = 0 };
    if (!ctl->client) {
        cJSON *news = follow_connect(&t->follow);
        if (!news) return true;
        bool other = strcmp(figures_string(news, "event"), "restarted") == 0;
        if (other) forget_rates(t);
        if (other) figures_clock(figures_number(news, "time"), t->restart);
        note_event(t, news);
        t->why[0] = 0;
    }
    enum kvd_status status = look_now(ctl, &seen, &error);
    if (status != KVD_OK) {
        cJSON *lost = follow_failed(&t->follow, status, &error);
        if (lost) lose_connection(t, lost);
        else *ret_code = ctl_refused(ctl, status, &error);
        return lost != NULL;
    }
    picture_drop(&t->before);
    t->before = t->now;
    t->now = seen;
    rate_sequences(&t->before, &t->now);
    return true;
}

static void take_events(struct top *t) {
    cJSON *event, *lost;
    while ((event = follow_event(&t->follow, &lost))) note_event(t, event);
    if (lost) lose_connection(t, lost);
}

/* ---- showing ------------------------------------------------------------------------------------------- */

static cJSON *rates_of(const struct top *t) {
    double seconds = t->before.at_ns ? (double)(t->now.at_ns - t->before.at_ns) / 1e9 : 0;
    cJSON *rates = figures_rates(t->before.daemon, t->now.daemon, seconds);
    cJSON *tokens = cJSON_DetachItemFromObjectCaseSensitive(rates, "committed_tokens_per_second");
    cJSON_AddItemToObject(rates, "tokens_per_second", tokens);
    return rates;
}

static const char *state_of(const struct top *t) {
    if (!t->follow.ctl->client) return "unreachable";
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(t->now.daemon, "draining")) ? "draining" : "ready";
}

static double sequence_pages(const cJSON *sequence) {
    return figures_number(cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(sequence, "pools"), 0), "membership");
}

static int by_pages(const void *a, const void *b) {
    const cJSON *x = *(cJSON *const *)a, *y = *(cJSON *const *)b;
    double p = sequence_pages(x), q = sequence_pages(y);
    return p != q ? (p < q ? 1 : -1) : strcmp(figures_string(x, "sequence"), figures_string(y, "sequence"));
}

/* The largest ones, as a new array that refers to the others' objects. */
static cJSON *largest_sequences(const cJSON *sequences, size_t most) {
    cJSON *array = cJSON_CreateArray(), *s;
    size_t n = 0, all = (size_t)cJSON_GetArraySize(sequences);
    cJSON **order = calloc(all + 1, sizeof(cJSON *));
    if (!order) return array;
    cJSON_ArrayForEach(s, sequences) order[n++] = s;
    qsort(order, n, sizeof *order, by_pages);
    for (size_t i = 0; i < n && i < most; i++) cJSON_AddItemReferenceToArray(array, order[i]);
    free(order);
    return array;
}

static void show_json(struct top *t) {
    struct out *out = t->follow.ctl->out;
    out_add(out, "time", cJSON_CreateNumber(figures_time()));
    out_add(out, "state", cJSON_CreateString(state_of(t)));
    if (!t->follow.ctl->client) out_add(out, "message", cJSON_CreateString(t->why));
    if (!t->now.at_ns) return;
    out_add(out, "age_seconds", cJSON_CreateNumber((double)(clock_ns() - t->now.at_ns) / 1e9));
    out_add(out, "daemon", cJSON_Duplicate(t->now.daemon, true));
    out_add(out, "pools", cJSON_Duplicate(t->now.pools, true));
    out_add(out, "arena", cJSON_Duplicate(t->now.arena, true));
    out_add(out, "rates", rates_of(t));
    out_add(out, "sequences", largest_sequences(t->now.sequences, SHOWN_SEQUENCES));
}

static void show_head(struct top *t, FILE *to, struct out *out) {
    const cJSON *d = t->now.daemon;
    char text[KVD_MESSAGE_BYTES + 96], clock[16];
    cJSON *rates = rates_of(t);
    snprintf(text, sizeof text, "kvd %s, store %s, up %s, instance %s, %s", figures_string(d, "version"),
             figures_string(d, "store"), figures_string(d, "uptime_text"), figures_string(d, "epoch"),
             figures_clock(figures_time(), clock));
    out_print(out, OUT_PLAIN, text);
    if (!t->follow.ctl->client) {
        snprintf(text, sizeof text, "NOT REACHABLE, the figures are %.0f s old: %s",
                 (double)(clock_ns() - t->now.at_ns) / 1e9, t->why);
        out_print(out, OUT_BAD, text);
    } else {
        bool draining = strcmp(state_of(t), "draining") == 0;
        snprintf(text, sizeof text, "%s%s%s", draining ? "draining: new activations are refused" : "ready",
                 *t->restart ? "; RESTARTED: another instance since " : "", t->restart);
        out_print(out, draining || *t->restart ? OUT_BAD : OUT_GOOD, text);
    }
    fprintf(to, "%.0f tokens/s, %.1f requests/s, %.1f refused/s, %.1f operations/s\n",
            figures_number(rates, "tokens_per_second"), figures_number(rates, "requests_per_second"),
            figures_number(rates, "refusals_per_second"), figures_number(rates, "operations_per_second"));
    fprintf(to, "sequences %s, continuations %s, sessions %.0f\nmembership %s, state slots %s, memory %s\n\n",
            figures_string(d, "sequences_text"), figures_string(d, "continuations_text"), figures_number(d, "sessions"),
            figures_string(d, "membership_text"), figures_string(d, "state_slots_text"),
            figures_string(d, "resident_memory_bytes_text"));
    if (figures_number(t->now.arena, "bytes") > 0)
        fprintf(to, "host arena %s, %.0f demoted pages/s, %.0f restored pages/s, moves %s\n\n",
                figures_string(t->now.arena, "occupied_text"), figures_number(rates, "demoted_pages_per_second"),
                figures_number(rates, "restored_pages_per_second"), figures_string(t->now.arena, "moves_text"));
    cJSON_Delete(rates);
}

static void show_tables(struct top *t, struct out *out, size_t most) {
    static const struct out_column pools[] = {
        { "pool", "POOL", false, 0 },
        { "map_text", "ALLOCATED #  RESERVED =", false, 0 },
        { "available_text", "FREE %", true, 0 },
        { "available_pages", "FREE", true, 0 },
        { "allocated_pages", "ALLOCATED", true, 0 },
        { "reserved_pages", "RESERVED", true, 0 },
        { "shared_pages", "SHARED", true, 2 },
        { "quarantined_pages", "QUARANTINED", true, 0 },
        { "rows_text", "ROWS", true, 3 },
    };
    static const struct out_column sequences[] = {
        { "sequence", "SEQUENCE", false, 0 },
        { "state", "STATE", false, 0 },
        { "row", "ROW", true, 1 },
        { "prompt_tokens", "PROMPT", true, 0 },
        { "committed", "COMMITTED", true, 0 },
        { "ceiling_tokens", "CEILING", true, 0 },
        { "pages_text", "PAGES", true, 0 },
        { "state_slot", "STATE SLOT", true, 2 },
        { "rate_text", "TOKENS/S", true, 0 },
    };
    out_table(out, "pools", pools, N(pools), cJSON_Duplicate(t->now.pools, true));
    out_table(out, "sequences", sequences, N(sequences), largest_sequences(t->now.sequences, most));
}

static void show_screen(struct top *t) {
    struct out *out = t->follow.ctl->out;
    char *text = NULL, line[640], clock[16];
    size_t bytes, lines = t->screen ? screen_lines() : 1000, used = 14 + (size_t)cJSON_GetArraySize(t->now.pools);
    const cJSON *event;
    FILE *to = open_memstream(&text, &bytes);
    if (!to) return;
    out_stream(out, to);
    if (t->screen) out_set_width(out, screen_columns());
    used += (size_t)cJSON_GetArraySize(t->events) + 1;
    show_head(t, to, out);
    show_tables(t, out, lines > used + 3 ? lines - used : 3);
    if (cJSON_GetArraySize(t->events) > 1) fputc('\n', to);
    cJSON_ArrayForEach(event, t->events) {
        figures_event_text(event, line, sizeof line);
        if (strcmp(figures_string(event, "event"), "connected") != 0)
            fprintf(to, "%s  %s\n", figures_clock(figures_number(event, "time"), clock), line);
    }
    out_stream(out, NULL);
    if (fclose(to) == 0) {
        if (t->screen) screen_draw(t->screen, text);
        else fputs(text, stdout);
    }
    free(text);
}

static bool show_picture(struct top *t) {
    struct out *out = t->follow.ctl->out;
    if (out_is_json(out)) show_json(t);
    else if (t->now.at_ns) show_screen(t);
    return out_next(out) && fflush(stdout) == 0;
}

/* ---- the loop ------------------------------------------------------------------------------------------- */

/* Until the next look is due; events and keys show at once. False: the end. */
static bool pause_until(struct top *t, uint64_t due_ns) {
    for (;;) {
        int key;
        switch (follow_wait(&t->follow, due_ns)) {
        case FOLLOW_TIME: return true;
        case FOLLOW_STOP: return false;
        case FOLLOW_KEY:
            key = screen_key(t->screen);
            if (!key || key == 'q' || key == 'Q') return false;
            return true; /* any other: look now */
        case FOLLOW_CONNECTION:
            take_events(t);
            if (t->screen && !show_picture(t)) return false;
            break;
        }
    }
}

static int run_top(struct top *t, uint32_t count) {
    uint64_t interval = t->follow.ctl->options.interval * UINT64_C(1000000000);
    int code = CTL_OK;
    if (!look_again(t, &code)) return code;
    if (t->screen && !show_picture(t)) return CTL_REFUSED; /* at once; rates come with the second look */
    for (uint32_t shown = 0;;) {
        if (!pause_until(t, clock_ns() + interval) || !look_again(t, &code)) return code;
        take_events(t);
        if (!show_picture(t)) return CTL_REFUSED;
        if (count && ++shown == count) return t->follow.ctl->client ? CTL_OK : CTL_UNREACHABLE;
    }
}

int cmd_top(struct ctl *ctl) {
    struct top top = { .events = cJSON_CreateArray() };
    cJSON *news;
    uint32_t count = ctl->options.count;
    int code = follow_begin(&top.follow, ctl, &news);
    if (code == CTL_OK) {
        note_event(&top, news);
        if (!ctl->options.json) top.screen = screen_open();
        top.follow.keys = screen_has_keys(top.screen);
        if (count == KVD_UNCHANGED) count = top.screen ? 0 : 1;
        code = run_top(&top, count);
        screen_close(top.screen);
        follow_end(&top.follow);
    }
    picture_drop(&top.now);
    picture_drop(&top.before);
    cJSON_Delete(top.events);
    return code;
}
