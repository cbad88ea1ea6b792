/* SPDX-License-Identifier: Apache-2.0 */
#include "metrics.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static_assert((int)KVD_UNAUTHENTICATED + 1 == (int)METRICS_STATUSES, "every status has a place");

static uint16_t known_type(uint16_t type) { return type < FRAME_TYPE_END ? type : 0; }

void metrics_request(struct metrics *m, uint16_t type) { m->requests[known_type(type)]++; }

void metrics_answer(struct metrics *m, uint16_t type, uint32_t status, uint64_t took_ns) {
    histogram_add(&m->time[known_type(type)], took_ns);
    if (status != KVD_OK && status < METRICS_STATUSES) m->refusals[known_type(type)][status]++;
}

void metrics_replay(struct metrics *m, uint16_t type) { m->replays[known_type(type)]++; }

void metrics_shortage(struct metrics *m, enum metrics_short what) {
    m->shortages[(unsigned)what < METRICS_SHORTS ? what : METRICS_SHORT_LIMIT]++;
}

void metrics_item(struct metrics *m, uint32_t status) { m->items[status < METRICS_STATUSES ? status : KVD_UNKNOWN]++; }

static bool was_asked(struct metrics_lookups *l, const struct metrics_find *find) {
    for (uint32_t i = 0; i < METRICS_LOOKUPS; i++)
        if (l->asked[i].name == find->name && l->asked[i].prompt_tokens == find->prompt_tokens) return true;
    l->at = l->next;
    l->asked[l->at].name = find->name;
    l->asked[l->at].prompt_tokens = find->prompt_tokens;
    l->asked[l->at].pages = 0;
    l->next = (l->next + 1) % METRICS_LOOKUPS;
    return false;
}

bool metrics_lookup(struct metrics *m, const struct metrics_find *find, struct metrics_lookups *l) {
    if (find->begins) {
        l->tokens = 0;
        l->repeated = was_asked(l, find);
        if (!l->repeated) m->looked_up_tokens += find->prompt_tokens;
    }
    if (l->repeated) return false;
    if (find->pages > l->asked[l->at].pages) l->asked[l->at].pages = find->pages;
    if (find->counts) {
        m->lookups++;
        if (find->usable) m->lookup_hits++;
        else m->lookup_misses++;
    }
    if (find->usable <= l->tokens) return true;
    m->lookup_tokens += find->usable - l->tokens;
    l->tokens = find->usable;
    return true;
}

uint32_t metrics_lookup_served(struct metrics_lookups *l, uint32_t prompt_tokens) {
    for (uint32_t i = 0; i < METRICS_LOOKUPS; i++)
        if (l->asked[i].name && l->asked[i].prompt_tokens == prompt_tokens) {
            l->asked[i].name = 0;
            return l->asked[i].pages;
        }
    return 0;
}

#define UNLABELLED "unlabelled"

void metrics_begin(struct metrics *m) {
    snprintf(m->domain[0].label, KVD_LABEL_BYTES, "other");
    snprintf(m->domain[1].label, KVD_LABEL_BYTES, UNLABELLED);
    m->n_domains = 2;
}

uint32_t metrics_domain_slot(struct metrics *m, const char *label, bool told) {
    const char *text = *label ? label : UNLABELLED;
    for (uint32_t i = 0; told && i < m->n_domains; i++)
        if (strcmp(m->domain[i].label, text) == 0) return i;
    if (!told || m->n_domains == METRICS_DOMAINS) return 0;
    snprintf(m->domain[m->n_domains].label, KVD_LABEL_BYTES, "%s", text);
    return m->n_domains++;
}

uint64_t metrics_resident_bytes(void) {
    uint64_t size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%" SCNu64 " %" SCNu64, &size, &resident) != 2) resident = 0;
    if (f) fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}
