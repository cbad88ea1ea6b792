/* SPDX-License-Identifier: Apache-2.0 */
#include "metrics.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

static_assert((int)KVD_UNAUTHENTICATED + 1 == (int)METRICS_STATUSES, "every status has a place");

static uint16_t known_type(uint16_t type) { return type < FRAME_TYPE_END ? type : 0; }

void metrics_request(struct metrics *m, uint16_t type) { m->requests[known_type(type)]++; }

static uint32_t time_bucket(uint64_t ns) {
    uint32_t bits = ns > 1 ? 64 - (uint32_t)__builtin_clzll(ns - 1) : 0; /* 2^bits is the least that is not less */
    if (bits <= METRICS_FIRST_BIT) return 0;
    return bits - METRICS_FIRST_BIT < METRICS_BUCKETS ? bits - METRICS_FIRST_BIT : METRICS_BUCKETS - 1;
}

void metrics_answer(struct metrics *m, uint16_t type, uint32_t status, uint64_t took_ns) {
    struct metrics_time *t = &m->time[known_type(type)];
    t->sum_ns += took_ns;
    t->bucket[time_bucket(took_ns)]++;
    if (status != KVD_OK && status < METRICS_STATUSES) m->refusals[known_type(type)][status]++;
}

void metrics_replay(struct metrics *m, uint16_t type) { m->replays[known_type(type)]++; }

void metrics_shortage(struct metrics *m, enum metrics_short what) {
    m->shortages[(unsigned)what < METRICS_SHORTS ? what : METRICS_SHORT_LIMIT]++;
}

void metrics_item(struct metrics *m, uint32_t status) { m->items[status < METRICS_STATUSES ? status : KVD_UNKNOWN]++; }

void metrics_lookup(struct metrics *m, bool begins, bool counts, uint32_t usable, uint32_t *before) {
    if (begins) *before = 0;
    if (counts) {
        m->lookups++;
        if (usable) m->lookup_hits++;
        else m->lookup_misses++;
    }
    if (usable <= *before) return;
    m->lookup_tokens += usable - *before;
    *before = usable;
}

uint64_t metrics_resident_bytes(void) {
    uint64_t size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%" SCNu64 " %" SCNu64, &size, &resident) != 2) resident = 0;
    if (f) fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}
