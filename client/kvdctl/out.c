/* SPDX-License-Identifier: Apache-2.0 */
#include "out.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct out {
    bool json, colour, begun, lines;
    unsigned width; /* 0: no matter */
    FILE *stream;   /* of the text */
    cJSON *root;
};

struct out *out_new(bool json, bool colour, unsigned width) {
    struct out *out = calloc(1, sizeof *out);
    if (!out) return NULL;
    out->json = json;
    out->colour = colour && !json;
    out->width = width;
    out->stream = stdout;
    out->root = cJSON_CreateObject();
    return out;
}

void out_free(struct out *out) {
    if (!out) return;
    cJSON_Delete(out->root);
    free(out);
}

/* ---- values ----------------------------------------------------------------------------------------- */

void out_put_u64(cJSON *object, const char *key, uint64_t value) {
    char text[24];
    if (value < UINT64_C(1) << 53) {
        cJSON_AddNumberToObject(object, key, (double)value);
        return;
    }
    snprintf(text, sizeof text, "%" PRIu64, value);
    cJSON_AddStringToObject(object, key, text);
}

void out_put_text(cJSON *object, const char *key, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    cJSON_AddStringToObject(object, key, text);
}

void out_put_bytes(cJSON *object, const char *key, uint64_t bytes) {
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
    char name[64];
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024 && unit + 1 < sizeof units / sizeof *units) {
        value /= 1024;
        unit++;
    }
    out_put_u64(object, key, bytes);
    snprintf(name, sizeof name, "%s_text", key);
    out_put_text(object, name, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
}

/* ---- views -------------------------------------------------------------------------------------------- */

static const char *cell_text(const cJSON *object, const char *key, char *buf, size_t bytes) {
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key);
    if (cJSON_IsString(value)) return value->valuestring;
    if (cJSON_IsNumber(value)) snprintf(buf, bytes, "%.0f", value->valuedouble);
    else snprintf(buf, bytes, "%s", cJSON_IsTrue(value) ? "yes" : cJSON_IsFalse(value) ? "no" : "-");
    return buf;
}

static void gap(struct out *out) {
    if (out->begun) fputc('\n', out->stream);
    out->begun = true;
}

/* A line, broken at blanks where it is longer than there is room. */
static void print_wrapped(const struct out *out, const char *text) {
    while (strlen(text) > out->width) {
        size_t n = out->width;
        while (n && text[n] != ' ') n--;
        if (!n) break;
        fprintf(out->stream, "%.*s\n", (int)n, text);
        text += n + 1;
    }
    fprintf(out->stream, "%s\n", text);
}

void out_print(struct out *out, enum out_tone tone, const char *text) {
    const char *before = !out->colour || tone == OUT_PLAIN ? "" : tone == OUT_GOOD ? "\033[32m" : "\033[31m";
    fprintf(out->stream, "%s%s%s\n", before, text, *before ? "\033[0m" : "");
}

/* A table on its way to the stream: what its cells say, and how much of that fits. */
struct grid {
    const struct out_column *columns;
    size_t n, width[OUT_COLUMNS]; /* 0: left out */
    const cJSON *rows;
    bool headings;
};

static void measure_grid(struct grid *g) {
    const cJSON *row;
    char buf[64];
    for (size_t i = 0; i < g->n; i++) {
        g->width[i] = g->headings ? strlen(g->columns[i].heading) : 0;
        if (!g->width[i]) g->width[i] = 1;
        cJSON_ArrayForEach(row, g->rows) {
            size_t n = strlen(cell_text(row, g->columns[i].key, buf, sizeof buf));
            if (n > g->width[i]) g->width[i] = n;
        }
    }
}

static size_t grid_width(const struct grid *g) {
    size_t all = 0;
    for (size_t i = 0; i < g->n; i++) all += g->width[i] ? g->width[i] + 1 : 0;
    return all ? all - 1 : 0;
}

#define CUT_LEAST 8u

/* The column that goes first; n: none may. */
static size_t first_to_go(const struct grid *g) {
    size_t first = g->n;
    for (size_t i = 0; i < g->n; i++)
        if (g->width[i] && g->columns[i].drop && (first == g->n || g->columns[i].drop > g->columns[first].drop))
            first = i;
    return first;
}

static void cut_widest(struct grid *g, size_t over, FILE *note) {
    size_t widest = 0;
    for (size_t i = 0; i < g->n; i++)
        if (g->width[i] > g->width[widest]) widest = i;
    size_t most = g->width[widest] > CUT_LEAST ? g->width[widest] - CUT_LEAST : 0;
    if (!most) return;
    g->width[widest] -= over < most ? over : most;
    fprintf(note, "cut: %s; ", g->columns[widest].heading);
}

/* Leaves out and cuts until it fits, or can do no more; the note says what. */
static void fit_grid(struct grid *g, size_t width, FILE *note) {
    size_t first;
    const char *before = "(left out: ";
    if (grid_width(g) <= width) return;
    while (grid_width(g) > width && (first = first_to_go(g)) < g->n) {
        g->width[first] = 0;
        fprintf(note, "%s%s", before, g->columns[first].heading);
        before = ", ";
    }
    fputs(*before == ',' ? "; " : "(", note);
    if (grid_width(g) > width) cut_widest(g, grid_width(g) - width, note);
    fputs("--wide shows all)", note);
}

static void print_cell(FILE *to, const struct out_column *column, const char *text, size_t width, bool last) {
    size_t n = strlen(text);
    if (n > width) fprintf(to, "%.*s..", (int)width - 2, text);
    else if (column->right) fprintf(to, "%*s", (int)width, text);
    else fprintf(to, "%-*s", last ? 0 : (int)width, text);
}

/* row NULL: the headings. */
static void print_row(const struct out *out, const struct grid *g, const cJSON *row) {
    size_t last = g->n;
    char buf[64];
    bool bold = !row && out->colour, begun = false;
    while (last > 0 && !g->width[last - 1]) last--;
    for (size_t i = 0; i < last; i++) {
        if (!g->width[i]) continue;
        fputs(begun ? " " : bold ? "\033[1m" : "", out->stream);
        begun = true;
        print_cell(out->stream, &g->columns[i],
                   row ? cell_text(row, g->columns[i].key, buf, sizeof buf) : g->columns[i].heading, g->width[i],
                   i + 1 == last);
    }
    fputs(bold ? "\033[0m\n" : "\n", out->stream);
}

static void print_grid(struct out *out, struct grid *g) {
    const cJSON *row;
    char *left = NULL;
    size_t bytes;
    FILE *note = out->width ? open_memstream(&left, &bytes) : NULL;
    measure_grid(g);
    if (note) {
        fit_grid(g, out->width, note);
        fclose(note);
    }
    if (g->headings) print_row(out, g, NULL);
    cJSON_ArrayForEach(row, g->rows) print_row(out, g, row);
    if (left && *left) print_wrapped(out, left);
    free(left);
}

void out_table(struct out *out, const char *key, const struct out_column *columns, size_t n, cJSON *rows) {
    if (!out->json) {
        gap(out);
        if (cJSON_GetArraySize(rows))
            print_grid(out, &(struct grid){ .columns = columns, .n = n, .rows = rows, .headings = true });
        else fprintf(out->stream, "no %s\n", key);
    }
    cJSON_AddItemToObject(out->root, key, rows);
}

void out_facts(struct out *out, const char *key, const struct out_column *lines, size_t n, cJSON *object) {
    static const struct out_column columns[] = { { .key = "name", .heading = "names" },
                                                 { .key = "value", .heading = "values" } };
    char buf[64];
    if (!out->json) {
        cJSON *rows = cJSON_CreateArray();
        for (size_t i = 0; i < n; i++) {
            cJSON *row = cJSON_CreateObject();
            cJSON_AddStringToObject(row, "name", lines[i].heading);
            cJSON_AddStringToObject(row, "value", cell_text(object, lines[i].key, buf, sizeof buf));
            cJSON_AddItemToArray(rows, row);
        }
        gap(out);
        print_grid(out, &(struct grid){ .columns = columns, .n = 2, .rows = rows });
        cJSON_Delete(rows);
    }
    cJSON_AddItemToObject(out->root, key, object);
}

void out_say(struct out *out, const char *key, enum out_tone tone, const char *format, ...) {
    char text[8192];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    cJSON_AddStringToObject(out->root, key, text);
    if (out->json) return;
    gap(out);
    out_print(out, tone, text);
}

void out_flag(struct out *out, const char *key, bool value) { cJSON_AddBoolToObject(out->root, key, value); }

void out_add(struct out *out, const char *key, cJSON *value) { cJSON_AddItemToObject(out->root, key, value); }

bool out_is_json(const struct out *out) { return out->json; }

void out_set_width(struct out *out, unsigned width) { out->width = width; }

void out_stream(struct out *out, FILE *stream) { out->stream = stream ? stream : stdout; }

/* ---- documents ---------------------------------------------------------------------------------------- */

/* Bytes of the character of UTF-8 that text begins with; 0: none (RFC 3629). */
static size_t character(const unsigned char *text) {
    unsigned char first = text[0], low = 0x80, high = 0xbf;
    size_t n = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
    if (first == 0xe0) low = 0xa0;
    if (first == 0xed) high = 0x9f;
    if (first == 0xf0) low = 0x90;
    if (first == 0xf4) high = 0x8f;
    for (size_t i = 1; i < n; i++, low = 0x80, high = 0xbf)
        if (text[i] < low || text[i] > high) return 0;
    return n;
}

static void clean_text(char *text) {
    while (text && *text) {
        size_t n = character((const unsigned char *)text);
        if (!n) *text = '?';
        text += n ? n : 1;
    }
}

/* JSON is UTF-8, but paths and files may hold any bytes. */
static void clean(cJSON *item) {
    for (; item; item = item->next) {
        clean_text(item->valuestring);
        if (!(item->type & cJSON_StringIsConst)) clean_text(item->string);
        clean(item->child);
    }
}

bool out_line(FILE *to, cJSON *object) {
    clean(object);
    char *text = cJSON_PrintUnformatted(object);
    bool ok = text && fprintf(to, "%s\n", text) >= 0 && fflush(to) == 0;
    cJSON_free(text);
    return ok;
}

bool out_next(struct out *out) {
    bool ok = !out->json || out_line(stdout, out->root);
    cJSON_Delete(out->root);
    out->root = cJSON_CreateObject();
    out->begun = false;
    out->lines = true;
    return ok;
}

void out_end(struct out *out) {
    if (!out->json || !out->root->child) return;
    if (out->lines) {
        out_line(stdout, out->root);
        return;
    }
    clean(out->root);
    char *text = cJSON_Print(out->root);
    if (text) puts(text);
    cJSON_free(text);
}
