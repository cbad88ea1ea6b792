/* SPDX-License-Identifier: Apache-2.0 */
#include "policy_memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STEP 8u          /* pages from one entry to the next, beyond the first eight */
#define ENTRIES_A_USE 8u /* of the table, on average */
#define REFRESH 64u      /* uses */

int memory_init(struct policy_memory *m, uint32_t uses) {
    *m = (struct policy_memory){ .n_uses = uses, .next = 1, .n_sets = 1 };
    while (m->n_sets * MEMORY_WAYS < (uint64_t)uses * ENTRIES_A_USE) m->n_sets *= 2;
    for (uint32_t b = 0; b < REUSE_BANDS; b++) m->passed[b] = 1;
    m->uses = calloc(uses, sizeof *m->uses);
    m->table = calloc(m->n_sets * MEMORY_WAYS, sizeof *m->table);
    reuse_init(&m->model);
    if (m->uses && m->table) return 0;
    memory_free(m);
    return 1;
}

void memory_free(struct policy_memory *m) {
    free(m->uses);
    free(m->table);
    m->uses = NULL;
    m->table = NULL;
}

struct use *memory_use(struct policy_memory *m, use_id use) {
    return use && use < m->next && m->next - use <= m->n_uses ? &m->uses[use % m->n_uses] : NULL;
}

/* ---- the table ---- */

/* Pages of the prefix at entry i: 1 to 8, then 16, 24, ... */
static uint32_t pages_at(uint32_t i) { return i < STEP ? i + 1 : (i - STEP + 2) * STEP; }
static uint32_t entries_of(uint32_t pages) {
    return pages < 2 * STEP ? (pages < STEP ? pages : STEP) : pages / STEP + STEP - 1;
}

static struct memory_entry *set_of(const struct policy_memory *m, const kvd_digest *digest, uint64_t *ret_key) {
    memcpy(ret_key, digest->bytes, sizeof *ret_key);
    *ret_key |= 1; /* 0 is no digest */
    return &m->table[(*ret_key >> 8 & (m->n_sets - 1)) * MEMORY_WAYS];
}

static use_id seek_digest(struct policy_memory *m, const kvd_digest *digest, uint64_t now_ns) {
    uint64_t key;
    const struct memory_entry *set = set_of(m, digest, &key);
    for (uint32_t w = 0; w < MEMORY_WAYS; w++) {
        if (set[w].digest != key) continue;
        const struct use *use = memory_use(m, set[w].use);
        return use && now_ns - use->at_ns <= REUSE_HORIZON_NS ? set[w].use : 0;
    }
    return 0;
}

static void put_digest(struct policy_memory *m, const kvd_digest *digest, use_id use) {
    uint64_t key;
    struct memory_entry *set = set_of(m, digest, &key), *to = set;
    for (uint32_t w = 0; w < MEMORY_WAYS; w++) {
        if (set[w].digest == key) {
            to = &set[w];
            break;
        }
        if (set[w].use < to->use) to = &set[w];
    }
    *to = (struct memory_entry){ key, use };
}

/* The last use of the longest prefix that is remembered. Who put a long prefix put the shorter ones, too. */
static use_id seek_prefix(struct policy_memory *m, const kvd_digest *digests, uint32_t pages, uint64_t now_ns,
                          uint32_t *ret_pages) {
    uint32_t low = 0, high = entries_of(pages);
    use_id found = 0;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        use_id use = seek_digest(m, &digests[pages_at(middle) - 1], now_ns);
        if (use) {
            found = use;
            *ret_pages = pages_at(middle);
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return found;
}

/* ---- uses ---- */

/* The bands that uses have passed without a return. */
static void pass_bands(struct policy_memory *m, uint64_t now_ns) {
    for (uint32_t b = 0; b < REUSE_BANDS; b++) {
        if (m->next - m->passed[b] > m->n_uses) m->passed[b] = m->next - m->n_uses;
        for (; m->passed[b] < m->next; m->passed[b]++) {
            const struct use *use = memory_use(m, m->passed[b]);
            if (now_ns - use->at_ns < m->model.edge[b + 1]) break;
            if (!use->returned) reuse_learn(&m->model, &use->class, b, false);
        }
    }
}

/* A return tells of the bands that were passed before, too: pass_bands has told of those. */
static void note_return(struct policy_memory *m, struct use *use, uint64_t now_ns) {
    if (use->returned) return;
    use->returned = true;
    reuse_learn(&m->model, &use->class, reuse_band(&m->model, now_ns - use->at_ns), true);
}

/* Where a prompt shares less than half of the use before, both begin alike (a system prompt), and neither is the
 * other's return. */
static struct reuse_facts facts_of(struct policy_memory *m, use_id before, uint32_t shared, uint32_t prompt_tokens,
                                   uint64_t now_ns) {
    struct reuse_facts facts = { .uses = 1, .prompt_tokens = prompt_tokens };
    struct use *use = memory_use(m, before);
    if (!use) return facts;
    bool returns = (uint64_t)shared * 2 >= use->pages;
    if (returns) note_return(m, use, now_ns);
    uint64_t gap = now_ns - use->at_ns;
    facts.gap_ns = use->gap_ns ? (uint64_t)(sqrt((double)use->gap_ns) * sqrt((double)gap)) : gap;
    if (!facts.gap_ns) facts.gap_ns = 1;
    facts.uses = returns && use->uses < UINT32_MAX ? use->uses + 1 : 2;
    facts.shared_pages = returns ? UINT32_MAX : shared;
    facts.new_tokens = prompt_tokens > use->tokens ? prompt_tokens - use->tokens : 0;
    return facts;
}

use_id memory_note(struct policy_memory *m, const kvd_digest *digests, uint32_t pages, uint32_t prompt_tokens,
                   uint64_t now_ns) {
    const struct use *last = memory_use(m, m->next - 1);
    uint32_t shared = 0;
    if (last && now_ns < last->at_ns) now_ns = last->at_ns;
    pass_bands(m, now_ns);
    use_id before = seek_prefix(m, digests, pages, now_ns, &shared);
    struct reuse_facts facts = facts_of(m, before, shared, prompt_tokens, now_ns);
    if (m->next % REFRESH == 0) reuse_refresh(&m->model);
    use_id id = m->next++;
    m->uses[id % m->n_uses] = (struct use){ .at_ns = now_ns,
                                            .gap_ns = facts.gap_ns,
                                            .uses = facts.uses,
                                            .pages = pages,
                                            .tokens = prompt_tokens,
                                            .class = reuse_classify(&m->model, &facts) };
    for (uint32_t i = 0; i < entries_of(pages); i++) put_digest(m, &digests[pages_at(i) - 1], id);
    return id;
}
