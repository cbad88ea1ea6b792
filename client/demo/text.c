/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_SHORTEST 2 /* bytes of history in the hash */
#define TEXT_LONGEST 5  /* bytes of history that are compared at most */
#define TEXT_SURE 5     /* so many bytes may have a single successor: words are spelled to their end */
#define TEXT_LIMIT (4u << 20)

struct text {
    uint8_t *bytes;
    uint32_t n;
    uint32_t *next;       /* [n] earlier place with the same two bytes before it; 0 ends */
    uint32_t head[65536]; /* newest place after these two bytes */
    float unigram[TEXT_VOCABULARY];
};

static size_t text_clean(uint8_t *bytes, size_t n) {
    size_t out = 0;
    for (size_t i = 0; i < n; i++) {
        uint8_t c = bytes[i];
        if (c == '\t' || c == '\r' || c == '\f') c = ' ';
        if (c != '\n' && (c < 0x20 || c > 0x7e)) continue;
        bool blank = c == ' ' || c == '\n';
        bool after_blank = out > 0 && (bytes[out - 1] == ' ' || bytes[out - 1] == '\n');
        if (blank && (out == 0 || after_blank)) {
            if (c == '\n' && out > 0) bytes[out - 1] = '\n';
            continue;
        }
        bytes[out++] = c;
    }
    return out;
}

int text_load(const char *path, uint8_t **ret_bytes, size_t *ret_n, char *err, size_t err_bytes) {
    FILE *file = fopen(path, "re");
    if (!file) {
        int e = errno;
        snprintf(err, err_bytes, "cannot open the document %s: %s", path, strerror(e));
        return -e;
    }
    uint8_t *bytes = malloc(TEXT_LIMIT);
    size_t n = bytes ? fread(bytes, 1, TEXT_LIMIT, file) : 0;
    bool broken = ferror(file) != 0;
    fclose(file);
    if (!bytes || broken) {
        free(bytes);
        snprintf(err, err_bytes, "cannot read the document %s", path);
        return bytes ? -EIO : -ENOMEM;
    }
    *ret_n = text_clean(bytes, n);
    *ret_bytes = bytes;
    return 0;
}

static void text_index(struct text *text) {
    uint32_t counts[TEXT_VOCABULARY] = { 0 };
    for (uint32_t i = 0; i < text->n; i++) counts[text->bytes[i]]++;
    for (uint32_t c = 0; c < TEXT_VOCABULARY; c++)
        text->unigram[c] = counts[c] > 0 ? logf((float)counts[c]) : -INFINITY;
    for (uint32_t i = TEXT_SHORTEST; i < text->n; i++) {
        uint32_t key = (uint32_t)text->bytes[i - 2] << 8 | text->bytes[i - 1];
        text->next[i] = text->head[key];
        text->head[key] = i;
    }
}

int text_new(const char *path, struct text **ret_text, char *err, size_t err_bytes) {
    struct text *text = calloc(1, sizeof *text);
    size_t n = 0;
    int r = text ? text_load(path, &text->bytes, &n, err, err_bytes) : -ENOMEM;
    if (r == 0 && n < 1024) {
        snprintf(err, err_bytes, "the document %s has only %zu bytes of text, at least 1024 are needed", path, n);
        r = -ENODATA;
    }
    if (r == 0) {
        text->n = (uint32_t)n;
        text->next = calloc(n, sizeof *text->next);
        r = text->next ? 0 : -ENOMEM;
    }
    if (r != 0) {
        text_free(text);
        return r;
    }
    text_index(text);
    *ret_text = text;
    return 0;
}

void text_free(struct text *text) {
    if (!text) return;
    free(text->bytes);
    free(text->next);
    free(text);
}

/* How many of the last bytes agree at place i, at most TEXT_LONGEST. */
static uint32_t text_match(const struct text *text, uint32_t i, const uint8_t *history, size_t n) {
    uint32_t most = n < TEXT_LONGEST ? (uint32_t)n : TEXT_LONGEST;
    if (most > i) most = i;
    uint32_t k = TEXT_SHORTEST;
    while (k < most && text->bytes[i - k - 1] == history[n - k - 1]) k++;
    return k;
}

void text_scores(const struct text *text, const uint8_t *history, size_t n, float ret_scores[TEXT_VOCABULARY]) {
    uint32_t counts[TEXT_LONGEST + 1][TEXT_VOCABULARY] = { { 0 } };
    if (n >= TEXT_SHORTEST) {
        uint32_t key = (uint32_t)history[n - 2] << 8 | history[n - 1];
        for (uint32_t i = text->head[key]; i != 0; i = text->next[i])
            counts[text_match(text, i, history, n)][text->bytes[i]]++;
    }
    uint32_t sum[TEXT_VOCABULARY] = { 0 };
    for (uint32_t k = TEXT_LONGEST; k >= TEXT_SHORTEST;
         k--) { /* the longest history that was seen: a short one must leave a choice */
        uint32_t distinct = 0;
        for (uint32_t c = 0; c < TEXT_VOCABULARY; c++) {
            sum[c] += counts[k][c];
            distinct += sum[c] > 0;
        }
        if (distinct < (k >= TEXT_SURE ? 1 : 2)) continue;
        for (uint32_t c = 0; c < TEXT_VOCABULARY; c++) ret_scores[c] = sum[c] > 0 ? logf((float)sum[c]) : -INFINITY;
        return;
    }
    memcpy(ret_scores, text->unigram, sizeof text->unigram);
}
