/* SPDX-License-Identifier: Apache-2.0
 *
 * Output: everything is built as JSON once; --json prints that, otherwise tables are views of it. Numbers that do not
 * fit a double exactly (handles, epochs) are strings in both.
 */
#ifndef KVDCTL_OUT_H
#define KVDCTL_OUT_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct out;
enum out_tone { OUT_PLAIN, OUT_GOOD, OUT_BAD };

struct out_column {
    const char *key, *heading;
    bool right; /* align */
    int drop;   /* where the lines are too narrow the highest goes first; 0: it stays, and is cut if it must be */
};
#define OUT_COLUMNS 16 /* of a table, at most */

/* width: columns of a line of text, 0: as many as it takes. What a table leaves out for it is said below it. */
struct out *out_new(bool json, bool colour, unsigned width);
void out_free(struct out *out);

/* Adds an array of objects under key and shows it as a table. Takes rows. */
void out_table(struct out *out, const char *key, const struct out_column *columns, size_t n, cJSON *rows);
/* Adds an object under key and shows it as lines "heading  value". Takes object. */
void out_facts(struct out *out, const char *key, const struct out_column *lines, size_t n, cJSON *object);
/* A sentence, under key in JSON. */
void out_say(struct out *out, const char *key, enum out_tone tone, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* A line of text alone; nothing in JSON. */
void out_print(struct out *out, enum out_tone tone, const char *text);
/* JSON only. */
void out_flag(struct out *out, const char *key, bool value);
void out_add(struct out *out, const char *key, cJSON *value); /* takes value */
bool out_is_json(const struct out *out);
/* The same for another width. */
void out_set_width(struct out *out, unsigned width);
/* Where text goes from now on; NULL: standard output. */
void out_stream(struct out *out, FILE *stream);

/* Prints the JSON document, if that was asked for. */
void out_end(struct out *out);
/* For those who go on: ends a document, which is one line of JSON, and begins the next. False: it cannot be written. */
bool out_next(struct out *out);
/* An object as one line, at once. Its text becomes UTF-8 where it is not. */
bool out_line(FILE *to, cJSON *object);

/* For building rows. */
void out_put_u64(cJSON *object, const char *key, uint64_t value); /* a number; a string from 2^53 on */
void out_put_text(cJSON *object, const char *key, const char *format, ...) __attribute__((format(printf, 3, 4)));
void out_put_bytes(cJSON *object, const char *key, uint64_t bytes); /* key: number; key_text: "1.5 GiB" */

#endif
