/* SPDX-License-Identifier: Apache-2.0 */
#include "out.h"

#include <inttypes.h>
#include <libsmartcols.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct out {
    bool json, colour, begun, lines;
    FILE *stream; /* of the text */
    cJSON *root;
};

struct out *out_new(bool json, bool colour) {
    struct out *out = calloc(1, sizeof *out);
    if (!out) return NULL;
    out->json = json;
    out->colour = colour && !json;
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

static void print_table(const struct out *out, const struct out_column *columns, size_t n, const cJSON *rows) {
    struct libscols_table *table = scols_new_table();
    char buf[64];
    if (!table) return;
    scols_table_set_stream(table, out->stream);
    if (out->colour) scols_table_enable_colors(table, 1);
    for (size_t i = 0; i < n; i++) {
        struct libscols_column *column =
            scols_table_new_column(table, columns[i].heading, 0, columns[i].right ? SCOLS_FL_RIGHT : 0);
        if (out->colour && column) scols_cell_set_color(scols_column_get_header(column), "bold");
    }
    const cJSON *row;
    cJSON_ArrayForEach(row, rows) {
        struct libscols_line *line = scols_table_new_line(table, NULL);
        for (size_t i = 0; line && i < n; i++)
            scols_line_set_data(line, i, cell_text(row, columns[i].key, buf, sizeof buf));
    }
    scols_print_table(table);
    scols_unref_table(table);
}

void out_table(struct out *out, const char *key, const struct out_column *columns, size_t n, cJSON *rows) {
    if (!out->json) {
        gap(out);
        if (cJSON_GetArraySize(rows)) print_table(out, columns, n, rows);
        else fprintf(out->stream, "no %s\n", key);
    }
    cJSON_AddItemToObject(out->root, key, rows);
}

void out_facts(struct out *out, const char *key, const struct out_column *lines, size_t n, cJSON *object) {
    struct libscols_table *table = out->json ? NULL : scols_new_table();
    char buf[64];
    if (table) {
        gap(out);
        scols_table_set_stream(table, out->stream);
        scols_table_enable_noheadings(table, 1);
        scols_table_new_column(table, "name", 0, 0);
        scols_table_new_column(table, "value", 0, 0);
        for (size_t i = 0; i < n; i++) {
            struct libscols_line *line = scols_table_new_line(table, NULL);
            if (!line) continue;
            scols_line_set_data(line, 0, lines[i].heading);
            scols_line_set_data(line, 1, cell_text(object, lines[i].key, buf, sizeof buf));
        }
        scols_print_table(table);
        scols_unref_table(table);
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

void out_print(struct out *out, enum out_tone tone, const char *text) {
    const char *before = !out->colour || tone == OUT_PLAIN ? "" : tone == OUT_GOOD ? "\033[32m" : "\033[31m";
    fprintf(out->stream, "%s%s%s\n", before, text, *before ? "\033[0m" : "");
}

void out_flag(struct out *out, const char *key, bool value) { cJSON_AddBoolToObject(out->root, key, value); }

void out_add(struct out *out, const char *key, cJSON *value) { cJSON_AddItemToObject(out->root, key, value); }

bool out_is_json(const struct out *out) { return out->json; }

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
