/* SPDX-License-Identifier: Apache-2.0 */
#include "named_before.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "paged_view.h"

#define LINE_WORDS 8u    /* of 64 bits: a cache line, which has all bits of a name */
#define LINES (1u << 14) /* of a filter: 1 MiB */
#define BITS 7u          /* of a name */
#define AHEAD 8u         /* names whose lines are asked for ahead of their need */

struct filter {
    uint64_t line[LINES][LINE_WORDS];
};
struct named_before {
    struct filter filter[2];
    uint32_t young, n; /* index of the younger one; names in it */
    uint64_t tokens;
    pthread_mutex_t lock;
};

struct named_before *named_before_new(void) {
    struct named_before *names = calloc(1, sizeof *names);
    if (names) pthread_mutex_init(&names->lock, NULL);
    return names;
}

void named_before_free(struct named_before *names) {
    if (names) pthread_mutex_destroy(&names->lock);
    free(names);
}

/* A client chooses its digests as it likes: all of their bytes count. */
static uint64_t mix_name(const kvd_digest *name) {
    uint64_t word[4], hash = 0;
    memcpy(word, name->bytes, sizeof word);
    for (int i = 0; i < 4; i++) {
        hash = (hash ^ word[i]) * UINT64_C(0x9E3779B97F4A7C15);
        hash ^= hash >> 29;
    }
    hash *= UINT64_C(0xBF58476D1CE4E5B9);
    return hash ^ hash >> 32;
}
static_assert(sizeof(kvd_digest) == 4 * sizeof(uint64_t), "a name is four words");

static uint32_t line_of(uint64_t hash) { return (uint32_t)(hash >> 50); }
static_assert(LINES == 1u << (64 - 50), "a line is named by the upper bits");

/* The hash of a name, whose lines are on their way from now on. */
static uint64_t expect_name(const struct named_before *names, const kvd_digest *name) {
    uint64_t hash = mix_name(name);
    __builtin_prefetch(names->filter[0].line[line_of(hash)]);
    __builtin_prefetch(names->filter[1].line[line_of(hash)]);
    return hash;
}

/* The bits of a name in its line. */
static void mask_of(uint64_t hash, uint64_t ret_mask[LINE_WORDS]) {
    uint64_t step = hash * UINT64_C(0x94D049BB133111EB);
    memset(ret_mask, 0, LINE_WORDS * sizeof *ret_mask);
    for (uint32_t i = 0; i < BITS; i++, step >>= 9) ret_mask[step >> 6 & 7] |= UINT64_C(1) << (step & 63);
}

static bool line_has(const uint64_t *line, const uint64_t *mask) {
    uint64_t missing = 0;
    for (uint32_t i = 0; i < LINE_WORDS; i++) missing |= mask[i] & ~line[i];
    return !missing;
}

/* True: it came before. */
static bool note_hash(struct named_before *names, uint64_t hash) {
    uint64_t mask[LINE_WORDS];
    uint32_t at = line_of(hash);
    mask_of(hash, mask);
    uint64_t *young = names->filter[names->young].line[at];
    if (line_has(young, mask)) return true;
    bool known = line_has(names->filter[!names->young].line[at], mask);
    for (uint32_t i = 0; i < LINE_WORDS; i++) young[i] |= mask[i];
    if (++names->n < NAMED_BEFORE_PAGES) return known;
    names->young = !names->young;
    names->n = 0;
    memset(&names->filter[names->young], 0, sizeof names->filter[0]);
    return known;
}

/* Tokens of the prompt in this page that were not reused. */
static uint32_t computed_tokens(const struct named_pages *pages, uint32_t page) {
    uint32_t begin = page * KVD_PAGE_TOKENS, end = begin + KVD_PAGE_TOKENS;
    if (page < pages->noted || end > pages->prompt_tokens || end <= pages->reused_tokens) return 0;
    return end - (begin > pages->reused_tokens ? begin : pages->reused_tokens);
}

void named_before_note(struct named_before *names, const struct named_pages *pages) {
    uint64_t ahead[AHEAD];
    pthread_mutex_lock(&names->lock);
    for (uint32_t i = 0; i < pages->n && i < AHEAD; i++) ahead[i] = expect_name(names, &pages->names[i]);
    for (uint32_t i = 0; i < pages->n; i++) {
        bool before = note_hash(names, ahead[i % AHEAD]);
        if (i + AHEAD < pages->n) ahead[i % AHEAD] = expect_name(names, &pages->names[i + AHEAD]);
        if (before) names->tokens += computed_tokens(pages, pages->first + i);
    }
    pthread_mutex_unlock(&names->lock);
}

uint64_t named_before_tokens(struct named_before *names) {
    pthread_mutex_lock(&names->lock);
    uint64_t tokens = names->tokens;
    pthread_mutex_unlock(&names->lock);
    return tokens;
}
