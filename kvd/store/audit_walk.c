/* SPDX-License-Identifier: Apache-2.0
 *
 * What the audits share: the report, the marks of pages, and walks over all memberships.
 */
#include "audit.h"

#include <stdarg.h>
#include <stdio.h>

void audit_report(struct audit *a, const char *format, ...) {
    va_list args;
    a->violations++;
    if (!a->text || a->used + 1 >= a->bytes) return;
    va_start(args, format);
    int n = vsnprintf(a->text + a->used, a->bytes - a->used, format, args);
    va_end(args);
    if (n < 0 || (size_t)n + 1 >= a->bytes - a->used) { /* a line that does not fit is left out */
        a->text[a->used] = '\0';
        a->bytes = a->used;
        return;
    }
    a->used += (size_t)n;
    a->text[a->used++] = '\n';
    a->text[a->used] = '\0';
}

/* ---- walks over all memberships ---- */

/* A moving sequence's kept entries are an alias of the claimed source until commit. */
static bool is_alias(const struct audit_holder *h, uint32_t block) {
    const struct seq *seq = h->seq;
    return seq && seq->state == STORE_SEQ_ACTIVATING && seq->from != KVD_NONE && !seq->keep &&
           block < seq->taken[h->pool];
}

void audit_walk_space(struct audit *a, const struct audit_holder *h, audit_visit *visit, uint32_t stamp) {
    uint32_t n;
    for (uint32_t i = 0; i < h->space->count; i += n) {
        const uint32_t *run = space_run(a->store, h->space, i, &n);
        for (uint32_t k = 0; k < n; k++)
            if (!(run[k] & PROMISED) && !is_alias(h, i + k)) visit(a, h, i + k, run[k], stamp);
    }
}

void audit_walk_all(struct audit *a, uint32_t pool, audit_visit *visit, bool seqs, bool conts) {
    const struct store *store = a->store;
    uint32_t stamp = store_next_stamp(store);
    for (uint32_t i = 0; seqs && i < store->config.max_concurrency; i++) {
        struct audit_holder h = { &store->seqs[i].space[pool], &store->seqs[i], NULL, pool, i };
        if (store->seqs[i].occupied) audit_walk_space(a, &h, visit, stamp);
    }
    for (uint32_t i = 0; conts && i < store->config.max_continuations; i++) {
        struct audit_holder h = { &store->conts[i].space[pool], NULL, &store->conts[i], pool, i };
        if (store->conts[i].occupied) audit_walk_space(a, &h, visit, stamp);
    }
}

uint32_t audit_marked(const struct store *store, const struct page *page) {
    return page->stamp == *store->stamp ? page->mark : 0;
}

uint32_t *audit_mark(const struct audit *a, uint32_t pool, uint32_t entry, uint32_t stamp) {
    struct page *page = &a->store->pool[pool].pages[entry];
    if (page->stamp != stamp) page->mark = 0;
    page->stamp = stamp;
    return &page->mark;
}
