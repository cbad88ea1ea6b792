/* SPDX-License-Identifier: Apache-2.0 */
#include "reuse_curve.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "paged_view.h"

#define TURNS (4 * CURVE_SAMPLES)   /* numbers of uses, before they are given anew */
#define BUCKETS (2 * CURVE_SAMPLES) /* of the table; a power of two, more than there are samples */
#define NONE UINT32_MAX

/* Sampled pages in the order of their last uses. A use has a turn, and the page that was used then stands there. A page
 * that is used again leaves its turn empty. Sums over the turns (Fenwick 1994) count the pages behind one. */
struct reuse_curve {
    uint64_t limit;           /* hashes below are samples */
    double pages_of;          /* a sample */
    uint32_t n, next, oldest; /* samples; turns: the next one, and one that is not behind the oldest page */
    uint32_t bucket[BUCKETS]; /* of a hash: its turn, or NONE; open addressing */
    uint64_t hash[TURNS];
    bool there[TURNS];
    uint32_t sum[TURNS + 1];
    uint64_t prompt_tokens, counted, sampled; /* uses by prompts: all, and those of samples */
    uint64_t returned[KVD_REUSE_SIZES];       /* samples that a cache of this size has, and of none before */
    uint64_t size[KVD_REUSE_SIZES];           /* pages; the last one is without an end */
    pthread_mutex_t lock;
};

struct reuse_curve *reuse_curve_new(uint64_t store_pages) {
    struct reuse_curve *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    double reach = (double)store_pages * CURVE_REACH;
    c->pages_of = reach > CURVE_SAMPLES ? reach / CURVE_SAMPLES : 1;
    c->limit = c->pages_of > 1 ? (uint64_t)(18446744073709549568.0 / c->pages_of) : UINT64_MAX;
    memset(c->bucket, 0xff, sizeof c->bucket);
    for (uint32_t i = 0; i < KVD_REUSE_SIZES - 1; i++)
        c->size[i] = i % 2 ? (uint64_t)(1.4142135623730951 * (double)(UINT64_C(1) << i / 2)) + 1 : UINT64_C(1) << i / 2;
    c->size[KVD_REUSE_SIZES - 1] = UINT64_MAX;
    pthread_mutex_init(&c->lock, NULL);
    return c;
}

void reuse_curve_free(struct reuse_curve *c) {
    if (c) pthread_mutex_destroy(&c->lock);
    free(c);
}

/* ---- samples ---- */

/* Names are digests, but a client chooses them: all of their bytes count. */
static uint64_t hash_name(const kvd_digest *name) {
    uint64_t word[4], hash = 0;
    memcpy(word, name->bytes, sizeof word);
    for (int i = 0; i < 4; i++) {
        hash = (hash ^ word[i]) * UINT64_C(0x9E3779B97F4A7C15);
        hash ^= hash >> 32;
    }
    return hash * UINT64_C(0xBF58476D1CE4E5B9);
}

static uint32_t home_of(uint64_t hash) { return (uint32_t)(hash & (BUCKETS - 1)); }

/* Where the sample is, or would be. */
static uint32_t *bucket_of(struct reuse_curve *c, uint64_t hash) {
    uint32_t at = home_of(hash);
    while (c->bucket[at] != NONE && c->hash[c->bucket[at]] != hash) at = (at + 1) & (BUCKETS - 1);
    return &c->bucket[at];
}

static void empty_bucket(struct reuse_curve *c, uint32_t hole) {
    for (uint32_t at = (hole + 1) & (BUCKETS - 1); c->bucket[at] != NONE; at = (at + 1) & (BUCKETS - 1)) {
        uint32_t home = home_of(c->hash[c->bucket[at]]);
        if (((at - home) & (BUCKETS - 1)) < ((at - hole) & (BUCKETS - 1))) continue;
        c->bucket[hole] = c->bucket[at];
        hole = at;
    }
    c->bucket[hole] = NONE;
}

/* ---- turns ---- */

static void add_to_sums(struct reuse_curve *c, uint32_t turn, uint32_t add) {
    for (uint32_t i = turn + 1; i <= TURNS; i += i & (0 - i)) c->sum[i] += add;
}

static uint32_t pages_before(const struct reuse_curve *c, uint32_t turn) {
    uint32_t pages = 0;
    for (uint32_t i = turn; i; i -= i & (0 - i)) pages += c->sum[i];
    return pages;
}

static void leave_turn(struct reuse_curve *c, uint32_t turn) {
    c->there[turn] = false;
    add_to_sums(c, turn, UINT32_MAX); /* one less */
    c->n--;
}

static void take_turn(struct reuse_curve *c, uint64_t hash) {
    uint32_t turn = c->next++;
    c->hash[turn] = hash;
    c->there[turn] = true;
    *bucket_of(c, hash) = turn;
    add_to_sums(c, turn, 1);
    c->n++;
}

static void forget_oldest(struct reuse_curve *c) {
    while (!c->there[c->oldest]) c->oldest++;
    empty_bucket(c, (uint32_t)(bucket_of(c, c->hash[c->oldest]) - c->bucket));
    leave_turn(c, c->oldest);
}

/* All turns are given: the pages that are there get the first ones anew. */
static void renumber_turns(struct reuse_curve *c) {
    uint32_t n = 0;
    memset(c->sum, 0, sizeof c->sum);
    memset(c->bucket, 0xff, sizeof c->bucket);
    for (uint32_t turn = 0; turn < TURNS; turn++)
        if (c->there[turn]) c->hash[n++] = c->hash[turn];
    memset(c->there, 0, sizeof c->there);
    c->n = c->next = c->oldest = 0;
    while (n > c->n) take_turn(c, c->hash[c->n]);
}

/* ---- uses ---- */

static void note_distance(struct reuse_curve *c, uint32_t samples_between) {
    double pages = (samples_between + 0.5) * c->pages_of + 0.5;
    uint32_t i = 0;
    while (pages > (double)c->size[i]) i++;
    c->returned[i]++;
}

static void note_sample(struct reuse_curve *c, uint64_t hash, bool counts) {
    uint32_t turn = *bucket_of(c, hash);
    if (turn != NONE) {
        if (counts) note_distance(c, c->n - pages_before(c, turn + 1));
        empty_bucket(c, (uint32_t)(bucket_of(c, hash) - c->bucket));
        leave_turn(c, turn);
    } else if (c->n == CURVE_SAMPLES) {
        forget_oldest(c);
    }
    if (c->next == TURNS) renumber_turns(c);
    take_turn(c, hash);
}

/* The first page of a prompt is used last: what is short of memory loses tails first. */
void reuse_curve_note(struct reuse_curve *c, const struct curve_pages *pages) {
    pthread_mutex_lock(&c->lock);
    c->prompt_tokens += pages->prompt_tokens;
    c->counted += pages->counted;
    for (uint32_t i = pages->n; i-- > 0;) {
        uint64_t hash = hash_name(&pages->names[i]);
        if (hash > c->limit) continue;
        c->sampled += i < pages->counted;
        note_sample(c, hash, i < pages->counted);
    }
    pthread_mutex_unlock(&c->lock);
}

/* Samples that are used more often than others say too much or too little: the difference between the uses that there
 * were and those that the samples stand for belongs to the pages that are used most, which the smallest cache has. */
void reuse_curve_read(struct reuse_curve *c, struct kvd_reuse *r) {
    pthread_mutex_lock(&c->lock);
    double found = (double)c->counted - (double)c->sampled * c->pages_of;
    r->prompt_tokens = c->prompt_tokens;
    r->pages_of_sample = (uint64_t)c->pages_of;
    r->n_sizes = KVD_REUSE_SIZES;
    for (uint32_t i = 0; i < KVD_REUSE_SIZES; i++) {
        found += (double)c->returned[i] * c->pages_of;
        double tokens = found > 0 ? found * KVD_PAGE_TOKENS : 0;
        if (tokens > (double)c->prompt_tokens) tokens = (double)c->prompt_tokens;
        r->sizes[i] = (struct kvd_reuse_size){ .pages = c->size[i], .found_tokens = (uint64_t)tokens };
    }
    pthread_mutex_unlock(&c->lock);
}
