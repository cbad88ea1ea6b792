/* SPDX-License-Identifier: Apache-2.0
 *
 * Which pages of a prompt the engine of the cold tier has. It is asked for the first object of each page in each pool:
 * one that is missing behind that shortens the load, as anything does that has gone by then (COLD-2).
 */
#include <string.h>

#include "clock.h"
#include "cold_desk.h"
#include "core.h"

#define ABSENT_FOR UINT64_C(1000000000) /* a second */
#define IMAGE (1u << KVD_MAX_POOLS)

/* ---- what was not there a moment ago ---- */

static uint64_t absent_mark(const kvd_digest *digest, uint32_t *ret_slot) {
    uint64_t word[2];
    memcpy(word, digest->bytes, sizeof word);
    *ret_slot = (uint32_t)(word[0] % COLD_ABSENT_SLOTS);
    return word[1] ^ word[0];
}

static void note_absent(struct cold_reader *reader, const kvd_digest *digest) {
    uint32_t slot;
    uint64_t mark = absent_mark(digest, &slot);
    reader->absent[slot] = (struct cold_absent){ mark, clock_ns() + ABSENT_FOR };
}

static bool was_absent(const struct cold_reader *reader, const kvd_digest *digest) {
    uint32_t slot;
    uint64_t mark = absent_mark(digest, &slot);
    return reader->absent[slot].mark == mark && clock_ns() < reader->absent[slot].until_ns;
}

/* ---- blocks ---- */

/* Behind the pages a tail of one token, of two, and so on. */
static uint32_t blocks_of(const struct cold_job *job) { return job->want.n + job->want.tail.n; }

/* The first object of a block: of a pool's page or tail, or (pool KVD_MAX_POOLS) of the image that ends it. */
static void name_block(const struct cold_reader *reader, const struct cold_job *job, uint32_t block, uint32_t pool,
                       struct cold_name *ret_name) {
    uint32_t pages = job->want.n, tail = block < pages ? 0 : block - pages + 1;
    const kvd_digest *before = pages ? &job->digests[pages - 1] : &job->want.root.digest;
    struct store_piece piece = { .kind = pool == KVD_MAX_POOLS ? STORE_PIECE_IMAGE
                                         : tail                ? STORE_PIECE_TAIL
                                                               : STORE_PIECE_PAGE,
                                 .copy = { .pool = pool, .columns = tail ? tail : KVD_PAGE_TOKENS },
                                 .digest = tail ? *before : job->digests[block] };
    if (tail) piece.tail = job->want.tail;
    piece.tail.n = tail;
    cold_name_piece(&reader->naming.layout, &piece, ret_name);
}

static uint32_t parts_of(const struct service *s, uint32_t *ret_pools) {
    *ret_pools = s->pools.n_pools;
    return s->pools.n_pools + (store_get_config(s->store)->has_state ? 1 : 0);
}

/* ---- the question ---- */

static void ask_blocks(struct cold_desk *desk, const struct cold_job *job, uint32_t first, uint32_t n,
                       uint64_t deadline) {
    uint32_t pools, parts = parts_of(desk->reader->service, &pools), k = 0;
    struct cold_name name;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t part = 0; part < parts; part++, k++) {
            name_block(desk->reader, job, first + i, part < pools ? part : KVD_MAX_POOLS, &name);
            cold_key_of(&name, desk->ops[k].key);
        }
    cold_run_ops(desk, COLD_TOUCH, k, deadline);
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *has = &desk->presence.has[first + i];
        *has = 0;
        for (uint32_t part = 0; part < parts; part++)
            if (desk->ops[i * parts + part].outcome == COLD_DONE) *has |= (uint8_t)(part < pools ? 1u << part : IMAGE);
    }
}

/* All, unless the first page of a part is missing. */
static void ask_presence(struct cold_desk *desk, const struct cold_job *job, uint64_t deadline) {
    uint32_t pools, most = DESK_OPS / parts_of(desk->reader->service, &pools), blocks = blocks_of(job);
    desk->presence.blocks = 0;
    for (uint32_t n; desk->presence.blocks < blocks; desk->presence.blocks += n) {
        uint32_t at = desk->presence.blocks;
        if (at && at <= job->want.n && !(desk->presence.has[at - 1] & 1)) return;
        n = blocks - at < most ? blocks - at : most;
        ask_blocks(desk, job, at, n, deadline);
    }
}

/* ---- the answer ---- */

static uint32_t frontier_at(const struct cold_job *job, uint32_t pages, uint32_t tail) {
    return (job->want.first + pages) * KVD_PAGE_TOKENS + tail;
}

/* All is there that a continuation needs that ends with so many tokens behind so many pages, of which Main has all
 * (GRP-4, CONT-4). */
static bool holds_all(const struct cold_desk *desk, const struct cold_job *job, uint32_t pages, uint32_t tail) {
    const struct service *s = desk->reader->service;
    const uint8_t *has = desk->presence.has;
    uint32_t first = job->want.first, of_tail = (1u << s->pools.n_pools) - 1;
    uint8_t last = has[tail ? job->want.n + tail - 1 : pages - 1];
    if (tail && (last & of_tail) != of_tail) return false;
    for (uint32_t p = 1; p < s->pools.n_pools; p++) {
        uint32_t begin = store_first_block(s->store, p, frontier_at(job, pages, tail));
        for (uint32_t i = begin > first ? begin - first : 0; i < pages; i++)
            if (!(has[i] >> p & 1)) return false;
    }
    return !store_get_config(s->store)->has_state || last & IMAGE;
}

uint32_t cold_look_up(struct cold_desk *desk, struct cold_job *job, uint64_t deadline) {
    uint32_t pages = 0, tail = 0, n = job->want.n;
    ask_presence(desk, job, deadline);
    const struct cold_presence *there = &desk->presence;
    while (pages < n && pages < there->blocks && there->has[pages] & 1) pages++;
    job->found.pages = job->want.first + pages;
    if (pages == n && there->blocks > n) tail = there->blocks - n;
    while (tail && !holds_all(desk, job, pages, tail)) tail--;
    if (!tail)
        while (pages && !holds_all(desk, job, pages, 0)) pages--;
    job->want.tail.n = tail;
    return frontier_at(job, pages, tail);
}

uint64_t cold_cost_of(const struct cold_reader *reader, const struct cold_job *job, uint32_t frontier) {
    const struct service *s = reader->service;
    uint32_t pools, parts = parts_of(s, &pools), end = geom_pages(frontier);
    uint64_t bytes = 0, of_one;
    for (uint32_t part = 0; part < parts && end > job->want.first; part++) {
        struct cold_name name = { .kind = part < pools ? COLD_PAGE : COLD_IMAGE, .pool = part < pools ? part : 0 };
        uint32_t begin = part < pools ? store_first_block(s->store, part, frontier) : end - 1;
        uint32_t n = cold_objects_of(s, &name, &of_one);
        bytes += (end - (begin > job->want.first ? begin : job->want.first)) * n * (of_one + COLD_HEADER_BYTES);
    }
    return bytes;
}

/* The page that ended it is not asked for again for a moment, unless the engine did not answer. */
static void remember(struct cold_desk *desk, const struct cold_job *job) {
    uint32_t i = 0, pools, parts = parts_of(desk->reader->service, &pools), most = DESK_OPS / parts;
    while (i < desk->presence.blocks && desk->presence.has[i] & 1) i++;
    uint32_t last = desk->presence.blocks ? (desk->presence.blocks - 1) / most * most : 0; /* of the last question */
    if (i >= desk->presence.blocks || i >= job->want.n || i < last) return;
    if (desk->ops[(i - last) * parts].outcome == COLD_ABSENT) note_absent(desk->reader, &job->digests[i]);
}

void cold_find(struct cold_desk *desk, struct cold_job *job) {
    struct cold_reader *reader = desk->reader;
    uint32_t known = 0, wanted = job->want.n;
    while (known < wanted && !was_absent(reader, &job->digests[known])) known++;
    if (known < wanted) {
        job->want.n = known;
        job->want.tail.n = 0;
    }
    bool asks = blocks_of(job) > 0;
    uint32_t frontier = job->want.first * KVD_PAGE_TOKENS;
    job->found.pages = job->want.first;
    if (asks) {
        frontier = cold_look_up(desk, job, job->arrived_ns + reader->service->config.cold_find_time);
        remember(desk, job);
    }
    job->found.frontier = frontier;
    job->found.bytes = cold_cost_of(reader, job, frontier);
    uint32_t tokens = frontier - job->want.first * KVD_PAGE_TOKENS;
    pthread_mutex_lock(&reader->lock);
    reader->reads.finds++;
    reader->reads.remembered += !asks;
    reader->reads.found += tokens > 0;
    reader->reads.found_tokens += tokens;
    pthread_mutex_unlock(&reader->lock);
    pthread_mutex_lock(&reader->service->lock);
    cold_end_job(reader->service, job);
    pthread_mutex_unlock(&reader->service->lock);
}
